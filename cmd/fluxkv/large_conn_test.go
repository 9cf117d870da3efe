package main

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"fluxkv/mcbp"
)

// pipelined keeps up to depth requests open over c until next has no more, and
// hands each answer, in order, to answered with the tag of its request. It
// returns how many were sent and answered, also when the connection broke.
func pipelined[T any](c *client, depth int, next func(r *mcbp.Request) (T, bool), answered func(T, *mcbp.Response) error) (sent, done uint64, err error) {
	tags := make([]T, depth)
	for more := true; ; {
		// Half a window at once: neither side waits for the other.
		if open := int(sent - done); more && open <= depth/2 {
			for ; more && open < depth; open++ {
				var r mcbp.Request
				var tag T
				if tag, more = next(&r); more {
					r.Opaque = uint32(sent)
					c.put(&r)
					tags[sent%uint64(depth)] = tag
					sent++
				}
			}
			if err := c.send(); err != nil {
				return sent, done, err
			}
		}
		if sent == done {
			return sent, done, nil
		}
		a, err := c.receive()
		if err != nil {
			return sent, done, err
		}
		if a.Opaque != uint32(done) {
			return sent, done, fmt.Errorf("answer %d, want %d", a.Opaque, uint32(done))
		}
		done++
		if err := answered(tags[(done-1)%uint64(depth)], &a); err != nil {
			return sent, done, err
		}
	}
}

// wrongAnswer ends a connection whose server answered what it must not.
type wrongAnswer struct{ error }

// largeWrite is one write in flight: the number, its new version, and whether
// the key has a document before it, which a DELETE tells.
type largeWrite struct {
	n   uint64
	v   version
	had bool
}

// request fills r with the write. scratch is reused from call to call.
func (w *largeWrite) request(d *largeData, r *mcbp.Request, scratch []byte) []byte {
	scratch = d.appendKey(scratch[:0], w.n)
	r.Key = scratch
	if w.v == absent {
		r.Opcode = mcbp.OpDelete
		return scratch
	}
	scratch = d.appendValue(scratch, w.n, w.v)
	r.Key = scratch[:largeKeyBytes]
	r.Opcode, r.Extras, r.Value = mcbp.OpSet, setExtras[:], scratch[largeKeyBytes:]
	return scratch
}

var setExtras [8]byte // flags and expiry 0

// check fails unless the answer to the write says what it must.
func (w *largeWrite) check(a *mcbp.Response) error {
	want := mcbp.StatusSuccess
	if w.v == absent && !w.had {
		want = mcbp.StatusNotFound
	}
	if a.Status != want {
		return wrongAnswer{fmt.Errorf("number %d, write of version %d (a document before it: %v): %v, want %v", w.n, w.v, w.had, a.Status, want)}
	}
	return nil
}

// onConnections runs fn once for each connection of p and returns the first
// error.
func (p *process) onConnections(fn func(c uint64, cl *client) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, largeConns)
	for c := range uint64(largeConns) {
		wg.Go(func() {
			cl, err := dialClient(p.addr)
			if err == nil {
				err = fn(c, cl)
				cl.close()
			}
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// largeMistakes counts what reads found wrong, by kind, and keeps the first
// examples.
type largeMistakes struct {
	mu       sync.Mutex
	counts   map[string]int
	examples []string
	read     atomic.Uint64
}

const largeExamples = 20

func (m *largeMistakes) add(kind, format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counts == nil {
		m.counts = map[string]int{}
	}
	m.counts[kind]++
	if m.counts[kind] <= largeExamples/4 && len(m.examples) < largeExamples {
		m.examples = append(m.examples, kind+": "+fmt.Sprintf(format, args...))
	}
}

// observe compares one answer with the versions that the key may have, the
// likely one first, and returns the one it has.
func (m *largeMistakes) observe(d *largeData, n uint64, a *mcbp.Response, may ...version) version {
	m.read.Add(1)
	switch a.Status {
	case mcbp.StatusNotFound:
		for _, v := range may {
			if v == absent {
				return v
			}
		}
		m.add("missing", "key %s (number %d), want version %v, %d bytes", d.appendKey(nil, n), n, may, d.valueBytes(n, may[0]))
		return absent
	case mcbp.StatusSuccess:
	default:
		m.add("refused", "key %s (number %d): %v", d.appendKey(nil, n), n, a.Status)
		return may[0]
	}
	for _, v := range may {
		if d.hits(a.Value, n, v) {
			return v
		}
	}
	for v := version(1); v < 16+largeRoundsMax; v++ {
		if d.hits(a.Value, n, v) {
			kind := "stale"
			if may[0] == absent {
				kind = "resurrected"
			}
			m.add(kind, "key %s (number %d): version %d, want %v", d.appendKey(nil, n), n, v, may)
			return v
		}
	}
	m.add("wrong", "key %s (number %d): %d bytes that no version has, want version %v, %d bytes; they begin %x",
		d.appendKey(nil, n), n, len(a.Value), may, d.valueBytes(n, may[0]), a.Value[:min(16, len(a.Value))])
	return may[0]
}

// TestLargeMistakes checks that a read that is wrong is counted as what it is.
func TestLargeMistakes(t *testing.T) {
	d, err := newLargeData(700, 1300, 1)
	if err != nil {
		t.Fatal(err)
	}
	var n uint64 = 3 * largeConns // loaded, written again
	found := func(value []byte) *mcbp.Response { return &mcbp.Response{Value: value} }
	missing := &mcbp.Response{Status: mcbp.StatusNotFound}
	value := d.appendValue(nil, n, 2)
	for _, c := range []struct {
		name   string
		answer *mcbp.Response
		may    []version
		want   string // "": right
	}{
		{"the version", found(value), []version{2}, ""},
		{"either version", found(value), []version{1, 2}, ""},
		{"absent", missing, []version{absent}, ""},
		{"perhaps absent", missing, []version{2, absent}, ""},
		{"missing", missing, []version{2}, "missing"},
		{"older", found(d.appendValue(nil, n, 1)), []version{2}, "stale"},
		{"newer", found(d.appendValue(nil, n, 16)), []version{2}, "stale"},
		{"deleted", found(value), []version{absent}, "resurrected"},
		{"cut", found(value[:len(value)-1]), []version{2}, "wrong"},
		{"longer", found(append(value[:len(value):len(value)], 0)), []version{2}, "wrong"},
		{"empty", found(nil), []version{2}, "wrong"},
		{"of another key", found(d.appendValue(nil, n+1, 2)), []version{2}, "wrong"},
		{"error", &mcbp.Response{Status: mcbp.StatusInternal}, []version{2}, "refused"},
	} {
		var m largeMistakes
		m.observe(d, n, c.answer, c.may...)
		want := map[string]int{c.want: 1}
		if c.want == "" {
			want = nil
		}
		if !maps.Equal(m.counts, want) || len(m.examples) != len(want) || m.read.Load() != 1 {
			t.Errorf("%s: counted %v, want %v\n%v", c.name, m.counts, want, m.examples)
		}
	}
}
