package lsm

import (
	"context"
	"fmt"

	"pgregory.net/rapid"
)

// manyKeys make tables of several blocks.
var manyKeys = func() (keys []string) {
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("many:%05d", i*i))
	}
	return keys
}()

// Load writes a batch of many keys.
func (m *machine) Load(t *rapid.T) {
	from, n := rapid.IntRange(0, len(manyKeys)-1).Draw(t, "from"), rapid.IntRange(1, 60).Draw(t, "documents")
	length := rapid.SampledFrom([]int{0, 8, 100, 700}).Draw(t, "length")
	var b Batch
	var changes []change
	for i := range n {
		c := change{key: manyKeys[(from+3*i)%len(manyKeys)], value: m.value(length), del: i%7 == 6}
		if c.del {
			c.value = nil
			b.Delete([]byte(c.key))
		} else {
			if i%5 == 4 {
				c.meta.Expiry = uint32(m.now.Load() + 20)
			}
			b.Set([]byte(c.key), c.value, c.meta)
		}
		changes = append(changes, c)
	}
	_, err := m.db.Apply(&b, WriteOptions{NoWait: true})
	if m.full(t, err) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	m.wrote(t, b.Seqno(0), changes...)
}

// Flush flushes everything.
func (m *machine) Flush(t *rapid.T) {
	if err := m.db.Flush(); err != nil {
		t.Fatalf("flush: %v", err)
	}
	if d := m.db.log.DurableSeqno(); d < m.truth.Last() {
		t.Fatalf("flushed %d, durable is %d", m.truth.Last(), d)
	}
	v := m.db.pin()
	defer v.release()
	for k := range m.db.kvstores {
		for _, tab := range v.tables[k] {
			if n := tab.Len(); n != 0 && tab.cleared == 0 {
				t.Fatalf("flushed, but a memtable of kvstore %d has %d versions", k, n)
			}
		}
	}
	m.shape.flushes.Add(1)
}

// Compact merges and collects whatever is worth it.
func (m *machine) Compact(t *rapid.T) {
	if err := m.db.Compact(); err != nil {
		t.Fatalf("compact: %v", err)
	}
}

// FlushSome flushes some kvstores, as the scheduler would.
func (m *machine) FlushSome(t *rapid.T) {
	var picked []int
	for k := range m.db.kvstores {
		if rapid.Bool().Draw(t, "kvstore") {
			picked = append(picked, k)
		}
	}
	if err := m.flushOnly(picked); err != nil {
		t.Fatalf("flush of %v: %v", picked, err)
	}
}

func (m *machine) flushOnly(picked []int) error {
	s := &m.db.sched
	s.mu.Lock()
	for s.running > 0 {
		s.cond.Wait()
	}
	for _, k := range picked {
		s.busy[k] = true
	}
	s.running++
	s.mu.Unlock()
	err := m.db.flush(context.Background(), picked)
	m.db.flushEnded(picked, err)
	return err
}

// ClockBack sets the clock back. What expired comes back, unless it was given up
// (design R24).
func (m *machine) ClockBack(t *rapid.T) {
	// A job that runs would give up as of the time before.
	m.db.sched.mu.Lock()
	defer m.db.sched.mu.Unlock()
	m.quietLocked()
	m.now.Add(-int64(rapid.SampledFrom([]int{1, 10, 100, 4000}).Draw(t, "seconds")))
}

// clock is the time that expiry goes by.
func (m *machine) clock() int64 { return max(m.now.Load(), int64(m.db.expiryClock.Load())) }
