package mcbp

import "encoding/binary"

// Frame infos of a request with magic 0x08.
const (
	infoBarrier      = 0
	infoDurability   = 1
	infoStreamID     = 2
	infoImpersonate  = 4
	infoPreserveTTL  = 5
	infoPrivilege    = 6
	infoPrivilegeTok = 7
)

// framing is what the frame infos of a request ask for.
type framing struct {
	preserveTTL bool // keep the stored expiry when the document exists
	durable     bool // the answer waits for the sync, whatever the store's mode
}

// parse reads a run of frame infos for a command and returns StatusSuccess or
// the status to refuse the request with. Each info is one byte (id in the high
// nibble, length in the low one; 15 means 15 plus the next byte) and its data.
// Infos are checked to the end of the run, also behind one that is acted on.
func (fr *framing) parse(b []byte, c *command) Status {
	*fr = framing{}
	for len(b) > 0 {
		id, n := int(b[0]>>4), int(b[0]&15)
		b = b[1:]
		if id == 15 {
			if len(b) == 0 {
				return StatusInvalid
			}
			id += int(b[0])
			b = b[1:]
		}
		if n == 15 {
			if len(b) == 0 {
				return StatusInvalid
			}
			n += int(b[0])
			b = b[1:]
		}
		if n > len(b) {
			return StatusInvalid
		}
		if status := fr.add(id, b[:n], c); status != StatusSuccess {
			return status
		}
		b = b[n:]
	}
	return StatusSuccess
}

func (fr *framing) add(id int, data []byte, c *command) Status {
	switch id {
	case infoBarrier:
		// A connection runs its commands in order: every one is a barrier.
		if len(data) != 0 {
			return StatusInvalid
		}
	case infoDurability:
		return fr.addDurability(data, c)
	case infoStreamID:
		if len(data) != 2 {
			return StatusInvalid
		}
	case infoImpersonate, infoPrivilege, infoPrivilegeTok:
		// They narrow rights; ignoring them would widen what a user may do.
		return StatusNoAccess
	case infoPreserveTTL:
		if len(data) != 0 {
			return StatusInvalid
		}
		if !c.preserve {
			return StatusNotSupported
		}
		fr.preserveTTL = true
	default:
		return StatusUnknownFrameInfo
	}
	return StatusSuccess
}

// addDurability takes level, or level and timeout in milliseconds. With one
// copy of the data every level means the same here: synced. The timeout is
// checked for form only: a sync that does not end ends the store.
func (fr *framing) addDurability(data []byte, c *command) Status {
	switch len(data) {
	case 1:
	case 3:
		if t := binary.BigEndian.Uint16(data[1:]); t == 0 || t == 0xffff {
			return StatusInvalid
		}
	default:
		return StatusInvalid
	}
	if !c.durable {
		return StatusInvalid
	}
	if data[0] < 1 || data[0] > 3 {
		return StatusDurabilityLevel
	}
	fr.durable = true
	return StatusSuccess
}
