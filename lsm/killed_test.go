package lsm

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// kill plays the scenario, and the process is killed at call n. The disk goes
// on with whatever is in the page cache: the next process may find a group
// there that never reached the device. What it shows its clients must survive a
// power cut all the same (R10).
func (l *loop) kill(n int, within bool) {
	disk := l.base.CrashCopy(0, memfs.DropAll)
	process := killAt(disk, n, within)
	p := newPlayer(l.sc.disk(process), l.o, l.h.clone())
	p.halted = func() bool { process.mu.Lock(); defer process.mu.Unlock(); return process.dead }
	l.sc.play(p)
	p.close()
	l.plays.Add(1)
	where := fmt.Sprintf("killed at call %v (within: %v)", process.killed, within)
	if p.report(l.t, where) {
		return
	}
	q := newPlayer(disk, l.o, p.h)
	q.clock.Store(p.clock.Load())
	q.open()
	if q.dead != nil {
		l.t.Errorf("%s: %v", where, q.dead)
		return
	}
	q.settle()
	for _, d := range []memfs.Damage{memfs.DropAll, memfs.Random} {
		l.images.Add(1)
		image := disk.CrashCopy(int64(n), d)
		if l.fresh(image, q.h, q.clock.Load()) {
			l.check(image, q.h, q.clock.Load(), fmt.Sprintf("%s, restarted, then a power cut, %v", where, d))
		}
	}
	q.close()
	q.report(l.t, where+", restarted")
}

// TestKillLoop kills the process at every call of every scenario, restarts it
// and then cuts the power.
func TestKillLoop(t *testing.T) {
	start := time.Now()
	var total tally
	for _, sc := range scenarios {
		if sc.sparse && !soak() {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			l := newLoop(t, sc, &total)
			step := everyNth(12)
			inParallel(int(2*l.rehearse())/step, 4*runtime.GOMAXPROCS(0), func(i int) {
				n := i*step/2 + 1
				if sc.flushes() && !soak() && step == 1 && n%2 != i%2 {
					return // before one call, within the next
				}
				if !t.Failed() && l.nearChange(int64(n)) {
					l.kill(n, i%2 == 1)
				}
			})
		})
	}
	t.Logf("kill loop: %d kills, %d images, %d different ones opened and checked; %.1f s",
		total.plays.Load(), total.images.Load(), total.checks.Load(), time.Since(start).Seconds())
}

// TestRot flips a bit in every block of every file of stores that were closed in
// order: then everything was promised to be durable. Open must refuse and say
// where the damage is, or find everything.
func TestRot(t *testing.T) {
	flips, refused := 0, 0
	for _, sc := range scenarios {
		if sc.overtake || sc.sparse {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			l := newLoop(t, sc, new(tally))
			p, disk := l.player()
			sc.play(p)
			p.close()
			if p.dead != nil {
				t.Fatal(p.dead)
			}
			for _, dir := range []string{"data", "data/log"} {
				names, err := disk.List(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, base := range names {
					name := path.Join(dir, base)
					size, err := disk.Size(name)
					if err != nil {
						continue // a directory
					}
					for off := int64(0); off < size; off += vfs.BlockBytes {
						flips++
						if l.rot(disk.CrashCopy(0, memfs.KeepAll), name, off, p) {
							refused++
						}
					}
				}
			}
		})
	}
	t.Logf("%d blocks damaged, %d starts refused", flips, refused)
	if refused == 0 {
		t.Error("no damage was noticed")
	}
}

// rot damages one block and opens the store.
func (l *loop) rot(disk *memfs.FS, name string, off int64, p *player) (refused bool) {
	f, err := disk.Open(name, vfs.OpenOptions{Write: true})
	if err != nil {
		l.t.Fatal(err)
	}
	block := make([]byte, vfs.BlockBytes)
	n, _ := f.ReadAt(block, off)
	at := 0 // the last byte that is not zero has a meaning for sure
	for i, b := range block[:n] {
		if b != 0 {
			at = i
		}
	}
	at = at / 2
	if _, err := f.WriteDurable([]byte{block[at] ^ 0x10}, off+int64(at)); err != nil {
		l.t.Fatal(err)
	}
	where := fmt.Sprintf("bit flipped at %d of %s", off+int64(at), name)
	o := p.options()
	o.FS = disk
	db, err := Open("data", o)
	switch {
	case errors.Is(err, ErrCorrupt):
		if !strings.Contains(err.Error(), "data/") || !strings.Contains(err.Error(), "offset") {
			l.t.Errorf("%s: the error does not say where: %v", where, err)
		}
		return true
	case err != nil:
		l.t.Errorf("%s: not called corruption: %v", where, err)
		return true
	}
	_, err = p.h.check(db)
	if err != nil && strings.HasSuffix(name, ".seg") {
		// Replay does not read it: only documents that tables address are lost.
		_, _, err = p.h.damaged(db, name)
	}
	if err != nil {
		l.t.Errorf("%s: the store opens, but: %v", where, err)
	}
	if err := db.Close(); err != nil {
		l.t.Errorf("%s: close: %v", where, err)
	}
	return false
}
