package lsm

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// TestCloseWaitsForDeviceReads: a file is not closed under a reader, however it
// reads.
func TestCloseWaitsForDeviceReads(t *testing.T) {
	key := []byte("k")
	readers := []struct {
		name string
		read func(db *DB) ([]byte, error)
	}{
		{"Get", func(db *DB) ([]byte, error) {
			item, err := db.Get(nil, key)
			return item.Value, err
		}},
		{"GetMany", func(db *DB) ([]byte, error) {
			var b ReadBatch
			b.Add(key)
			defer b.Release()
			return b.valueOf(db)
		}},
		{"Snapshot.Get", func(db *DB) ([]byte, error) {
			s, err := db.NewSnapshot()
			if err != nil {
				return nil, err
			}
			defer s.Close()
			item, err := s.Get(nil, key)
			return item.Value, err
		}},
		{"Update", func(db *DB) (value []byte, err error) {
			_, err = db.Update(key, func(old *Item) (UpdateOp, []byte, Meta, error) {
				value = append(value, old.Value...)
				return UpdateNone, nil, Meta{}, nil
			})
			return value, err
		}},
		{"Iterator.Item", func(db *DB) ([]byte, error) {
			it, err := db.NewIter(nil, nil, IterOptions{})
			if err != nil {
				return nil, err
			}
			defer it.Close()
			if !it.First() {
				return nil, it.Error()
			}
			item, err := it.Item()
			return item.Value, err
		}},
	}
	for _, r := range readers {
		t.Run(r.name, func(t *testing.T) {
			fs := memfs.New()
			o := testOptions(fs)
			o.InlineLimit = -1
			db := mustOpen(t, "data", o)
			mustSet(t, db, "k", "value")
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			db = mustOpen(t, "data", o)
			var reading, read atomic.Bool
			fs.SetHook(func(op memfs.Op) error {
				if op.Kind == vfs.OpReadAt && !reading.Swap(true) {
					for !db.closing.Load() {
						runtime.Gosched()
					}
					for range 1000 {
						runtime.Gosched() // Close goes on if nothing holds it
					}
					read.Store(true)
				}
				return nil
			})
			done := make(chan error)
			go func() {
				value, err := r.read(db)
				if err == nil && string(value) != "value" {
					err = errors.New("got " + string(value))
				}
				done <- err
			}()
			for !reading.Load() {
				runtime.Gosched()
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			if !read.Load() {
				t.Error("closed under the reader")
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if _, err := r.read(db); !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// valueOf reads the batch's only key.
func (b *ReadBatch) valueOf(db *DB) ([]byte, error) {
	if err := db.GetMany(b); err != nil {
		return nil, err
	}
	return append([]byte(nil), b.Item(0).Value...), b.Err(0)
}
