package lsm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"fluxkv/internal/vfs/memfs"
)

// smallDisk opens a store on a disk of so many bytes. Nothing but need starts its
// jobs: it is never idle.
func smallDisk(t *testing.T, bytes int64, reject bool) (*DB, *memfs.FS) {
	fs := memfs.New()
	fs.SetFree(bytes)
	o := testOptions(fs)
	o.VBuckets, o.KVStores, o.IdleFlush = 4, 2, time.Hour
	o.WriteCache, o.SegmentBytes, o.TableBytes, o.tableBytesMin = 8*mib, 256*kib, 256*kib, 64*kib
	o.Reject = reject
	return mustOpen(t, "data", o), fs
}

// TestR22_AFullDiskIsOverwritten: documents are replaced on a disk that their
// garbage fills again and again. With stall no write is refused as long as there is
// garbage; with reject a refused one is taken soon. When all is live the error is
// clean, and deleting and clearing make room.
func TestR22_AFullDiskIsOverwritten(t *testing.T) {
	for _, reject := range []bool{false, true} {
		for _, size := range []int{100, 3000} {
			t.Run(fmt.Sprintf("reject=%v/%d bytes", reject, size), func(t *testing.T) {
				defer watch("overwrite on a full disk")()
				const disk = 12 * mib // 5 of them are the reserve
				db, fs := smallDisk(t, disk, reject)
				keys := int(2 * mib / (size + 100))
				rnd := rand.New(rand.NewPCG(1, 2))
				step := max(size, 4096) // of the log, where each is a group of its own
				// patient does what a client of a store that rejects does.
				patient := func(do func() error) error {
					err := do()
					for tries := 0; errors.Is(err, ErrDiskFull) && reject && tries < 10_000; tries++ {
						time.Sleep(time.Millisecond)
						err = do()
					}
					return err
				}
				put := func(key, value string) error {
					_, err := db.Set([]byte(key), []byte(value), Meta{})
					return err
				}
				latest := map[string]string{}
				for written := 0; written < 5*disk; written += step {
					key, value := fmt.Sprintf("key%05d", rnd.IntN(keys)), fmt.Sprintf("%0*d", size, written)
					if err := patient(func() error { return put(key, value) }); err != nil {
						free, _ := fs.FreeBytes("data")
						t.Fatalf("after %d bytes, %d bytes free: %v; %+v", written, free, err, db.Stats())
					}
					latest[key] = value
				}
				check := func() {
					t.Helper()
					for key, value := range latest {
						want(t, db, key, value)
					}
				}
				check()
				// Values of this length are live until the disk is full of them.
				large := strings.Repeat("m", 3000)
				more := 0
				fill := func() {
					t.Helper()
					for from := more; ; more++ {
						key := fmt.Sprintf("more%d", more)
						err := put(key, large)
						if reject && errors.Is(err, ErrDiskFull) {
							mustCompact(t, db)
							err = put(key, large)
						}
						if errors.Is(err, ErrDiskFull) {
							if n := (more - from) * len(large); n < disk/8 {
								t.Errorf("%d bytes more on a disk of %d", n, disk)
							}
							return
						}
						if err != nil || more-from > 2*disk/len(large) {
							t.Fatalf("document %d, all are live: %v", more, err)
						}
					}
				}
				fill()
				if s := db.Stats(); s.ReadOnly != "" || s.DiskFull == 0 {
					t.Errorf("a full disk made the store read-only: %q; %d writes refused", s.ReadOnly, s.DiskFull)
				}
				check()
				for i := range more { // deletes may use some of the reserve, and make room
					if err := patient(func() error { _, err := db.Delete(fmt.Appendf(nil, "more%d", i)); return err }); err != nil {
						t.Fatalf("delete %d of %d on a full disk: %v", i, more, err)
					}
				}
				check()
				fill()
				if _, err := db.Clear(time.Time{}); err != nil {
					t.Fatalf("clear on a full disk: %v", err)
				}
				if err := patient(func() error { return put("healed", large) }); err != nil {
					t.Fatalf("after a clear: %v", err)
				}
				want(t, db, "healed", large)
				want(t, db, "more0", "")
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
