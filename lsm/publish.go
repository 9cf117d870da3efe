package lsm

import (
	"sync"
	"sync/atomic"
)

// publishSlots bounds the batches between numbering and visibility. More
// writers than this wait before they are numbered.
const publishSlots = 4096

// publisher moves V, the visible seqno, over batches in the order in which they
// were numbered, however they finish: a batch that is inserted early waits for
// the ones before it (reliability W17).
type publisher struct {
	slots []publishSlot
	head  atomic.Uint64 // next ticket; advanced under committer.mu
	tail  atomic.Uint64 // lowest unfinished ticket; advanced under mu

	// mu guards done flags and the order of V. It is taken last and nothing
	// blocks under it.
	mu      sync.Mutex
	cond    sync.Cond
	waiting int
	visible atomic.Uint64
}

type publishSlot struct {
	last Seqno
	done bool
}

func (p *publisher) init(visible Seqno) {
	p.slots = make([]publishSlot, publishSlots)
	p.cond.L = &p.mu
	p.visible.Store(uint64(visible))
}

// enter gives a batch its turn. committer.mu is held. false: too many batches
// are under way.
func (p *publisher) enter(last Seqno) (ticket uint64, ok bool) {
	h := p.head.Load()
	if h-p.tail.Load() >= publishSlots {
		return 0, false
	}
	s := &p.slots[h%publishSlots]
	s.last, s.done = last, false
	p.head.Store(h + 1)
	return h, true
}

// full reports whether enter would fail. committer.mu is held.
func (p *publisher) full() bool { return p.head.Load()-p.tail.Load() >= publishSlots }

// finish says that everything of the batch is in its memtables.
func (p *publisher) finish(ticket uint64) {
	p.mu.Lock()
	p.slots[ticket%publishSlots].done = true
	t, h := p.tail.Load(), p.head.Load()
	moved := false
	for t < h && p.slots[t%publishSlots].done {
		p.visible.Store(uint64(p.slots[t%publishSlots].last))
		t++
		moved = true
	}
	if moved {
		p.tail.Store(t)
		if p.waiting > 0 {
			p.cond.Broadcast()
		}
	}
	p.mu.Unlock()
}

// wait returns when s is visible. Batches before s are being inserted right
// now; nothing they do blocks.
func (p *publisher) wait(s Seqno) {
	if Seqno(p.visible.Load()) >= s {
		return
	}
	p.mu.Lock()
	p.waiting++
	for Seqno(p.visible.Load()) < s {
		p.cond.Wait()
	}
	p.waiting--
	p.mu.Unlock()
}

// waitSlot returns when a batch may enter again.
func (p *publisher) waitSlot() {
	p.mu.Lock()
	p.waiting++
	for p.full() {
		p.cond.Wait()
	}
	p.waiting--
	p.mu.Unlock()
}
