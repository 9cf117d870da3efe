package lsm

import (
	"sync"

	"fluxkv/internal/blockcache"
	"fluxkv/internal/offheap"
)

// tableMemory is what tables may take in memory, Options.BlockCacheBytes in all:
//
//	[ filters, indexes -> |      <- for the probe ][ blocks that were read ....... ]
//	  pinned, at most 15/16                          what is left, at least 1/16
//
// Whoever pins takes from blocks, which give way at once.
type tableMemory struct {
	total  int64
	pinned *offheap.Budget // filters and indexes of open tables, and tables for the probe
	probe  *offheap.Budget // of pinned, what the probe has: at most half of total
	blocks *blockcache.Cache

	// mu orders the changes of the cache's size. It is a leaf; giving pages back
	// is a system call.
	mu     sync.Mutex
	fitted int64
	closed bool
}

// init makes the cache for data blocks of up to blockBytes.
func (m *tableMemory) init(total int64, blockBytes int) error {
	m.total = total
	m.pinned = offheap.NewBudget(total - total/16)
	m.probe = offheap.NewBudget(total / 2)
	blocks, err := blockcache.New(blockcache.Options{Bytes: total, BlockBytesMax: blockBytes})
	m.blocks, m.fitted = blocks, total
	return err
}

// reserveProbe takes n bytes for a table that the probe asks, if they fit.
func (m *tableMemory) reserveProbe(n int64) bool {
	if !m.probe.TryReserve(n) {
		return false
	}
	if !m.pinned.TryReserve(n) {
		m.probe.Release(n)
		return false
	}
	m.fit()
	return true
}

// releaseProbe gives them back.
func (m *tableMemory) releaseProbe(n int64) {
	m.pinned.Release(n)
	m.probe.Release(n)
	m.fit()
}

// close gives the cache back.
func (m *tableMemory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.blocks.Close()
}

// fit gives the cache of blocks what nobody has pinned. Small differences are
// left for the next time.
func (m *tableMemory) fit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return // an iterator that outlived the store closes its table
	}
	want := max(m.total-m.pinned.Used(), m.total/16)
	if want < m.fitted || want-m.fitted >= max(m.total/64, mib) || want > m.fitted && want == m.total {
		m.blocks.Resize(want)
		m.fitted = want
	}
}
