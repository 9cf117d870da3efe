package mcbp

import "fmt"

// Status is the outcome that a response carries.
type Status uint16

// The statuses that this server sends.
const (
	StatusSuccess          Status = 0x00
	StatusNotFound         Status = 0x01
	StatusExists           Status = 0x02
	StatusTooLarge         Status = 0x03
	StatusInvalid          Status = 0x04
	StatusNoAccess         Status = 0x24
	StatusUnknownFrameInfo Status = 0x80
	StatusUnknownCommand   Status = 0x81
	StatusOutOfMemory      Status = 0x82
	StatusNotSupported     Status = 0x83
	StatusInternal         Status = 0x84
	StatusDurabilityLevel  Status = 0xa0
)

// statusTexts are the bodies of error answers. None is empty: libmemcached
// takes a quiet error without a body for the answer to its next command.
var statusTexts = map[Status]string{
	StatusSuccess:          "Success",
	StatusNotFound:         "Not found",
	StatusExists:           "Data exists for key.",
	StatusTooLarge:         "Too large.",
	StatusInvalid:          "Invalid arguments",
	StatusNoAccess:         "No access",
	StatusUnknownFrameInfo: "Unknown frame info",
	StatusUnknownCommand:   "Unknown command",
	StatusOutOfMemory:      "Out of memory",
	StatusNotSupported:     "Not supported",
	StatusInternal:         "Internal error",
	StatusDurabilityLevel:  "Invalid durability level",
}

// String returns the English text of a status that this server sends, else
// its number.
func (s Status) String() string {
	if t, ok := statusTexts[s]; ok {
		return t
	}
	return fmt.Sprintf("status 0x%02x", uint16(s))
}
