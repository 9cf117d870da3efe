package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"fluxkv/bench"
)

// writing is one load of an engine: batches from some writers, none of which
// waits for a sync.
type writing struct {
	load
	engine  string
	writers int
	batch   int
	memory  int64 // bytes of all memtables
}

// store is an engine that is loaded: fluxkv or Pebble.
type store interface {
	// write applies a batch: documents of keyBytes and valueBytes each, one
	// behind the other in b, which it does not keep. It is called by several
	// writers at once.
	write(b []byte, keyBytes, valueBytes int) error
	// flush moves every document into a table.
	flush() error
	// busy reports whether anything runs in the background. It fails when
	// something failed there.
	busy() (bool, error)
	// get returns the value of a key, and false when there is none.
	get(dst, key []byte) ([]byte, bool, error)
	// written returns the bytes that the engine says it wrote, by cause.
	written() (map[string]int64, error)
	close() error
}

// figures is what one load took.
type figures struct {
	AckSeconds     float64          `json:"ack_seconds"`     // until the last batch was acknowledged
	SettledSeconds float64          `json:"settled_seconds"` // until everything was in tables
	CPUSeconds     float64          `json:"cpu_seconds"`     // of the process, until then
	DeviceBytes    int64            `json:"device_bytes"`    // written to the device meanwhile, by anyone
	ProcessBytes   int64            `json:"process_bytes"`   // written by the process, as the kernel accounts for it
	DiskBytes      int64            `json:"disk_bytes"`      // that the directory takes
	MemoryBytes    int64            `json:"memory_bytes"`    // most that was resident
	Written        map[string]int64 `json:"written"`         // by cause, as the engine says
}

// run loads, and compares some of the documents afterwards. Figures come only
// with all of them right.
func (w *writing) run() (f figures, err error) {
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		return f, err
	}
	s, err := w.open()
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	// What others left to be written is not of this load.
	if err := bench.SyncDirectory(w.dir); err != nil {
		return f, err
	}
	before, err := w.measure()
	if err != nil {
		return f, err
	}
	began := time.Now()
	if err := w.writeAll(s); err != nil {
		return f, err
	}
	f.AckSeconds = time.Since(began).Seconds()
	if err := s.flush(); err != nil {
		return f, err
	}
	settled, err := settle(s)
	if err != nil {
		return f, err
	}
	f.SettledSeconds = settled.Sub(began).Seconds()
	// Where the page cache is used, not all has reached the device yet.
	if err := bench.SyncDirectory(w.dir); err != nil {
		return f, err
	}
	after, err := w.measure()
	if err != nil {
		return f, err
	}
	f.CPUSeconds = after.cpu - before.cpu
	f.DeviceBytes = after.device - before.device
	f.ProcessBytes = after.process - before.process
	f.MemoryBytes = after.memory
	if f.DiskBytes, err = bench.DirectoryBytes(w.dir); err != nil {
		return f, err
	}
	if f.Written, err = s.written(); err != nil {
		return f, err
	}
	return f, w.check(s)
}

// A store has settled when nothing ran in the background for quiet, seen every
// settlePoll: one job that ended may make room for the next.
const (
	quiet      = time.Second
	settlePoll = 20 * time.Millisecond
)

// settle waits until a store has settled, and returns since when it has.
func settle(s store) (time.Time, error) {
	busy := time.Now()
	var last map[string]int64
	for {
		is, err := s.busy()
		if err != nil {
			return busy, err
		}
		written, err := s.written()
		if err != nil {
			return busy, err
		}
		if is || last != nil && !maps.Equal(written, last) {
			busy = time.Now()
		}
		if last = written; time.Since(busy) >= quiet {
			return busy, nil
		}
		time.Sleep(settlePoll)
	}
}

func (w *writing) open() (store, error) {
	switch w.engine {
	case "fluxkv":
		return openFluxkvStore(w)
	case "pebble":
		return openPebbleStore(w, false)
	case "pebble-snappy":
		return openPebbleStore(w, true)
	}
	return nil, fmt.Errorf("engine %q: want fluxkv, pebble or pebble-snappy", w.engine)
}

// writeAll writes every document once. Writers take batches by turns.
func (w *writing) writeAll(s store) error {
	var next atomic.Uint64
	var wg sync.WaitGroup
	errs := make(chan error, w.writers)
	for range w.writers {
		wg.Go(func() {
			size := w.keyBytes + w.valueSize
			b := make([]byte, 0, w.batch*size)
			for {
				first := next.Add(uint64(w.batch)) - uint64(w.batch)
				if first >= w.documents {
					return
				}
				b = b[:0]
				for i := first; i < min(first+uint64(w.batch), w.documents); i++ {
					b = b[:len(b)+size]
					document := b[len(b)-size:]
					putKey(document[:w.keyBytes], i)
					putValue(document[w.keyBytes:], i)
				}
				if err := s.write(b, w.keyBytes, w.valueSize); err != nil {
					errs <- fmt.Errorf("batch at document %d: %w", first, err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// spotChecks is how many documents are compared, spread evenly.
const spotChecks = 10000

// spot returns the n-th index of the documents that are compared. The first
// and the last document are among them.
func (l *load) spot(n uint64) uint64 {
	if l.documents <= spotChecks {
		return n
	}
	hi, lo := bits.Mul64(n, l.documents-1)
	i, _ := bits.Div64(hi, lo, spotChecks-1)
	return i
}

// check compares some of the documents.
func (w *writing) check(s store) error {
	key, want := make([]byte, w.keyBytes), make([]byte, w.valueSize)
	var got []byte
	for n := range min(spotChecks, w.documents) {
		i := w.spot(n)
		putKey(key, i)
		putValue(want, i)
		var ok bool
		var err error
		got, ok, err = s.get(got[:0], key)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("document %d (%s) is missing", i, key)
		case !bytes.Equal(got, want):
			return fmt.Errorf("document %d (%s) has another value", i, key)
		}
	}
	return nil
}
