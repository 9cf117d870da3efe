package faultfs

import (
	"fmt"
	"time"

	"fluxkv/internal/vfs"
)

// Fault is what happens to a call.
type Fault int

const (
	// None lets the call through; for rules that only add latency.
	None Fault = iota
	// EIO fails the call without effect: ErrInjected and syscall.EIO.
	EIO
	// ENOSPC fails a call that could need space, without effect: ErrInjected
	// and vfs.ErrNoSpace.
	ENOSPC
	// ShortWrite writes the first half of a write of two bytes or more,
	// whole blocks in files opened Direct, and returns that count with
	// ErrInjected and io.ErrShortWrite.
	ShortWrite
	// SyncDrop fails a Sync or WriteDurable the way Linux does (rule W9): the
	// data stays readable and will never be durable, and the next Sync
	// succeeds. ErrInjected and syscall.EIO. On a disk that cannot drop data
	// (any but memfs) it is merely not synced. A SyncDir just fails.
	SyncDrop
	// BitFlip lets a read succeed with one bit of the buffer changed.
	BitFlip
	faults
)

var faultNames = [faults]string{"none", "EIO", "ENOSPC", "short write", "sync drop", "bit flip"}

func (f Fault) String() string {
	if f >= 0 && f < faults {
		return faultNames[f]
	}
	return fmt.Sprintf("Fault(%d)", int(f))
}

// hits reports whether calls of kind can meet f.
func (f Fault) hits(kind vfs.OpKind) bool {
	switch f {
	case ENOSPC:
		switch kind {
		case vfs.OpCreate, vfs.OpRemove, vfs.OpRename, vfs.OpLink, vfs.OpMkdirAll, vfs.OpSyncDir, vfs.OpLock, vfs.OpWriteAt,
			vfs.OpWriteDurable, vfs.OpSync, vfs.OpAllocate, vfs.OpTruncate:
			return true
		}
		return false
	case ShortWrite:
		return kind == vfs.OpWriteAt || kind == vfs.OpWriteDurable
	case SyncDrop:
		return kind == vfs.OpSync || kind == vfs.OpWriteDurable || kind == vfs.OpSyncDir
	case BitFlip:
		return kind == vfs.OpReadAt
	}
	return true
}

// Rule says which calls meet which fault.
type Rule struct {
	// Kinds are the calls it is about; none means all.
	Kinds []vfs.OpKind
	// Name is a pattern for the file's name or base name (vfs.MatchName); for
	// a rename or a link, the old name. Empty means all.
	Name string
	// From is the first call that fails, counted from 1 among the calls that
	// this rule is about since it was added. 0 is 1.
	From int
	// Once ends the rule after one fault; otherwise every call from From on
	// fails.
	Once bool
	// Fault is what happens.
	Fault Fault
	// Latency is slept before, fault or none. It holds up only this call.
	Latency time.Duration
}

// activeRule is a rule and its count of calls.
type activeRule struct {
	Rule
	seen int
}

// meets counts a call and reports whether the rule applies to it.
func (r *activeRule) meets(kind vfs.OpKind, name string) bool {
	if !r.Fault.hits(kind) || !vfs.MatchKind(r.Kinds, kind) || !vfs.MatchName(r.Name, name) {
		return false
	}
	r.seen++
	from := max(r.From, 1)
	return r.seen == from || r.seen > from && !r.Once
}
