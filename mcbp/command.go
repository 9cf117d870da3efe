package mcbp

// KeyBytesMax is the longest key, as in memcached and Couchbase.
const KeyBytesMax = 250

// part says whether a frame has a key, or a value.
type part uint8

const (
	forbidden part = iota
	required
	optional
)

func (q part) admits(n int64) bool {
	switch q {
	case forbidden:
		return n == 0
	case required:
		return n > 0
	}
	return true
}

// extras is the set of lengths that the extras of an opcode may have: bit n
// for n bytes.
type extras uint32

const (
	noExtras     extras = 1 << 0
	extras4      extras = 1 << 4
	extras8      extras = 1 << 8
	extrasNoneOr        = noExtras | extras4
)

func (e extras) admits(n uint8) bool { return n < 32 && e>>n&1 == 1 }

// kind says how a command meets its neighbours in a pass.
type kind uint8

const (
	alone    kind = iota // runs when everything before it has run
	runRead              // joins a run of reads: one GetMany
	runWrite             // joins a run of writes: one Apply; with CAS it runs alone
)

// command is what the server knows about one opcode. Everything that can be
// told from a header is here, so that a refused body is never buffered.
type command struct {
	name     string
	run      func(*pipeline, *session) // nil: unknown command
	extras   extras
	key      part
	value    part
	kind     kind
	quiet    bool // leaves out success (a quiet read: the miss)
	durable  bool // may carry a durability requirement
	preserve bool // may carry preserve TTL
}

// commands has one entry an opcode; a hole answers "Unknown command".
var commands = [256]command{
	OpGet:       {name: "GET", run: (*pipeline).get, extras: noExtras, key: required, kind: runRead},
	OpGetQ:      {name: "GETQ", run: (*pipeline).get, extras: noExtras, key: required, kind: runRead, quiet: true},
	OpGetK:      {name: "GETK", run: (*pipeline).get, extras: noExtras, key: required, kind: runRead},
	OpGetKQ:     {name: "GETKQ", run: (*pipeline).get, extras: noExtras, key: required, kind: runRead, quiet: true},
	OpSet:       {name: "SET", run: (*pipeline).set, extras: extras8, key: required, value: optional, kind: runWrite, durable: true, preserve: true},
	OpSetQ:      {name: "SETQ", run: (*pipeline).set, extras: extras8, key: required, value: optional, kind: runWrite, quiet: true, preserve: true},
	OpDelete:    {name: "DELETE", run: (*pipeline).delete, extras: noExtras, key: required, durable: true},
	OpDeleteQ:   {name: "DELETEQ", run: (*pipeline).delete, extras: noExtras, key: required, quiet: true},
	OpFlush:     {name: "FLUSH", run: (*pipeline).flush, extras: extrasNoneOr},
	OpFlushQ:    {name: "FLUSHQ", run: (*pipeline).flush, extras: extrasNoneOr, quiet: true},
	OpNoop:      {name: "NOOP", run: (*pipeline).noop, extras: noExtras},
	OpVersion:   {name: "VERSION", run: (*pipeline).version, extras: noExtras},
	OpVerbosity: {name: "VERBOSITY", run: (*pipeline).verbosity, extras: extras4},
	OpStat:      {name: "STAT", run: (*pipeline).stat, extras: noExtras, key: optional},
	OpQuit:      {name: "QUIT", run: (*pipeline).quit, extras: noExtras},
	OpQuitQ:     {name: "QUITQ", run: (*pipeline).quit, extras: noExtras, quiet: true},
}

// judge decides from the header of a sane frame whether its command may run:
// StatusSuccess, or the status to refuse it with. The body has not arrived yet
// and is not looked at.
func judge(h *Header, itemBytesMax int64) Status {
	c := &commands[h.Opcode]
	value := h.valueBytes()
	switch {
	case c.run == nil:
		return StatusUnknownCommand
	case !c.extras.admits(h.ExtrasBytes), !c.key.admits(int64(h.KeyBytes)), h.KeyBytes > KeyBytesMax, !c.value.admits(value):
		return StatusInvalid
	case int64(h.KeyBytes)+value > itemBytesMax:
		return StatusTooLarge
	}
	return StatusSuccess
}
