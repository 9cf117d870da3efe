package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// A ledger is what the parent of a server that is killed knows about one key:
// the newest state it was told of, and the states it asked for since then
// without hearing the outcome. It lives outside the store.
//
//	told 17      asked 18  19  20(delete)      then SIGKILL
//	may be read after the restart: 17 18 19 or nothing, and no other bytes
type ledger struct {
	key string
	// mu lets a reader report what it saw while the writer of the key goes on.
	mu sync.Mutex
	// states were asked for and are not yet overruled, in order; states[0] is
	// the newest one that was acknowledged or read.
	states []state
	next   uint64 // version of the next state
	// sizes are those of its values, one as likely as the other; none: any up to
	// ledgerValueMax.
	sizes []int
}

// state is one version of a key: a value of bytes bytes, or its absence.
type state struct {
	version uint64
	bytes   int
	absent  bool
}

// Values of 8 B to 5 KB: a version, then bytes that follow from key and
// version.
const (
	ledgerValueMin = 8
	ledgerValueMax = 5 << 10
)

func newLedger(key string) *ledger {
	return &ledger{key: key, states: []state{{absent: true}}, next: 1}
}

// ask makes the next state and remembers that it was asked for.
func (l *ledger) ask(rnd *rand.Rand) state {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := state{version: l.next, absent: rnd.IntN(20) == 0}
	switch {
	case s.absent:
	case len(l.sizes) > 0:
		s.bytes = l.sizes[rnd.IntN(len(l.sizes))]
	default:
		// Small and large values alike: every power of two is as likely.
		top := ledgerValueMin << rnd.IntN(10)
		s.bytes = min(ledgerValueMin+rnd.IntN(top), ledgerValueMax)
	}
	l.next++
	l.states = append(l.states, s)
	return s
}

// acknowledged tells that the server answered: nothing older may come back.
func (l *ledger) acknowledged(version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.states) > 1 && l.states[0].version < version {
		l.states = l.states[1:]
	}
}

// value returns the bytes of a state. Those of every other version repeat
// themselves, for servers that compress.
func (l *ledger) value(s state) []byte {
	b := make([]byte, (s.bytes+7)&^7)
	x := s.version
	for i := range len(l.key) {
		x = (x ^ uint64(l.key[i])<<32) * 0x9e3779b97f4a7c15
	}
	seed := x
	for i := 0; i < len(b); i += 8 {
		if s.version%2 == 0 && i%64 == 0 {
			x = seed
		}
		binary.LittleEndian.PutUint64(b[i:], x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	binary.LittleEndian.PutUint64(b, s.version)
	return b[:s.bytes]
}

// observed tells what a read returned, nil for a miss, and fails when that is
// no state that the key may have. What was read is from then on the oldest
// state that may be read again.
func (l *ledger) observed(value []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if value == nil {
		for i, s := range l.states {
			if s.absent {
				l.states = l.states[i:]
				return nil
			}
		}
		return fmt.Errorf("key %s is missing; %s", l.key, l.expected())
	}
	if len(value) < ledgerValueMin {
		return fmt.Errorf("key %s: %d bytes; %s", l.key, len(value), l.expected())
	}
	version := binary.LittleEndian.Uint64(value)
	for i, s := range l.states {
		if s.version == version && !s.absent {
			if want := l.value(s); !bytes.Equal(value, want) {
				return fmt.Errorf("key %s: version %d has other bytes than were sent (%d, sent %d)", l.key, version, len(value), len(want))
			}
			l.states = l.states[i:]
			return nil
		}
	}
	return fmt.Errorf("key %s: version %d; %s", l.key, version, l.expected())
}

// settle is called after the check that follows a restart: what was read is
// the only state left.
func (l *ledger) settle() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states = l.states[:1:1]
}

func (l *ledger) expected() string {
	s := "allowed:"
	for i, st := range l.states {
		if i == 20 {
			return fmt.Sprintf("%s and %d more", s, len(l.states)-i)
		}
		switch {
		case st.absent:
			s += fmt.Sprintf(" %d(absent)", st.version)
		default:
			s += fmt.Sprintf(" %d(%d bytes)", st.version, st.bytes)
		}
	}
	return s
}

// seen tells what a reader got while the writer went on. The answer may be
// older than what was acknowledged since, which proves nothing; a version that
// was never sent, or other bytes, are an error.
func (l *ledger) seen(value []byte, version uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version == 0 || version >= l.next {
		return fmt.Errorf("key %s: read version %d, only %d were sent", l.key, version, l.next-1)
	}
	for i, s := range l.states {
		if s.version != version {
			continue
		}
		if s.absent || !bytes.Equal(value, l.value(s)) {
			return fmt.Errorf("key %s: read %d bytes that are not version %d", l.key, len(value), version)
		}
		l.states = l.states[i:]
		break
	}
	return nil
}

func TestLedger(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	fresh := func() *ledger { return newLedger("k") }
	set := func(l *ledger) state {
		for {
			if s := l.ask(rnd); !s.absent {
				return s
			}
			l.states = l.states[:len(l.states)-1]
		}
	}
	for _, c := range []struct {
		name string
		do   func(l *ledger) error
		bad  bool
	}{
		{"absent at first", func(l *ledger) error { return l.observed(nil) }, false},
		{"open write is there", func(l *ledger) error { return l.observed(l.value(set(l))) }, false},
		{"open write is not there", func(l *ledger) error { set(l); return l.observed(nil) }, false},
		{"acknowledged write is lost", func(l *ledger) error {
			l.acknowledged(set(l).version)
			return l.observed(nil)
		}, true},
		{"older than acknowledged", func(l *ledger) error {
			a := set(l)
			l.acknowledged(set(l).version)
			return l.observed(l.value(a))
		}, true},
		{"older than read", func(l *ledger) error {
			a, b := set(l), set(l)
			if err := l.seen(l.value(b), b.version); err != nil {
				return err
			}
			return l.observed(l.value(a))
		}, true},
		{"never sent", func(l *ledger) error { return l.observed(l.value(state{version: 9, bytes: 100})) }, true},
		{"read before it was sent", func(l *ledger) error { return l.seen(nil, 9) }, true},
		{"other bytes", func(l *ledger) error {
			v := l.value(set(l))
			v[len(v)-1] ^= 1
			return l.observed(v)
		}, true},
		{"a settled loser comes back", func(l *ledger) error {
			s := set(l)
			if err := l.observed(nil); err != nil {
				return err
			}
			l.settle()
			return l.observed(l.value(s))
		}, true},
	} {
		if err := c.do(fresh()); (err != nil) != c.bad {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
