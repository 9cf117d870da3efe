package lsm

import "errors"

// Errors that callers branch on. They may come wrapped; use errors.Is.
var (
	// ErrNotFound: the key has no live version at the read seqno.
	ErrNotFound = errors.New("not found")
	// ErrClosed: the store is closed or closing.
	ErrClosed = errors.New("store is closed")
	// ErrReadOnly: a log or manifest write failed, and with it the promise that
	// later ones would be durable. Reads go on at the last durable seqno;
	// only a restart ends this state. Writes that got this error may or may
	// not be there after the restart.
	ErrReadOnly = errors.New("store is read-only after a failed write")
	// ErrOverloaded: the write cache is full and the store was opened with
	// Reject. Temporary; nothing was written.
	ErrOverloaded = errors.New("write cache is full")
	// ErrDiskFull: no space for another log segment, and no job that would free
	// some, or the store was opened with Reject. Temporary: it heals when
	// space returns. Nothing was written.
	ErrDiskFull = errors.New("no disk space for the log")
	// ErrBatchTooLarge: a batch must fit one log group (Options.BatchBytesMax).
	ErrBatchTooLarge = errors.New("batch too large")
	// ErrKeySize: a key must have 1 to 65535 bytes.
	ErrKeySize = errors.New("key size out of range")
	// ErrValueSize: key and value exceed Options.MaxItemBytes.
	ErrValueSize = errors.New("item too large")
	// ErrCAS: an explicit CAS below 2^56 could be mistaken for a seqno.
	ErrCAS = errors.New("explicit CAS below 2^56")
	// ErrReadLimit: the documents before this one in its ReadBatch are as much
	// as one GetMany reads from the device. Ask for it again.
	ErrReadLimit = errors.New("read batch has reached its limit")
	// ErrCorrupt: bytes on disk are not what was written there.
	ErrCorrupt = errors.New("corrupt")
	// ErrLocked: another process, or another DB in this one, has the directory.
	ErrLocked = errors.New("data directory is locked")
	// ErrNestedUpdate: Update was called inside an Update's function.
	ErrNestedUpdate = errors.New("Update inside an Update's function")
)
