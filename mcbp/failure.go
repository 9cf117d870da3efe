package mcbp

import (
	"errors"

	"fluxkv/lsm"
)

// failures says how an error of the engine is told to a plain client. A status
// that libmemcached does not know costs it the connection, so what is
// temporary is 0x82.
var failures = []struct {
	err    error
	status Status
	text   string // empty: the text of the error
}{
	{err: lsm.ErrOverloaded, status: StatusOutOfMemory},
	{err: lsm.ErrDiskFull, status: StatusOutOfMemory},
	{err: lsm.ErrReadOnly, status: StatusOutOfMemory},
	{err: lsm.ErrClosed, status: StatusOutOfMemory},
	{err: lsm.ErrValueSize, status: StatusTooLarge, text: StatusTooLarge.String()},
	{err: lsm.ErrBatchTooLarge, status: StatusTooLarge, text: StatusTooLarge.String()},
	{err: lsm.ErrKeySize, status: StatusInvalid, text: StatusInvalid.String()},
}

// failure returns status and text of an error. What has no entry, a corrupt
// document among them, is an internal error whose details go to the
// operator's log only.
func failure(err error) (Status, string) {
	for i := range failures {
		if f := &failures[i]; errors.Is(err, f.err) {
			if f.text == "" {
				return f.status, f.err.Error()
			}
			return f.status, f.text
		}
	}
	return StatusInternal, StatusInternal.String()
}
