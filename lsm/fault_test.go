package lsm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// faultLoop fails each call of a scenario in one way.
type faultLoop struct {
	*loop
	fault faultfs.Fault
	once  bool
}

// run plays the scenario with the n'th call that the fault can hit failing, and
// checks the store during the fault, after it, after a restart and after a
// power cut.
func (l *faultLoop) run(n int) {
	disk := l.base.CrashCopy(0, memfs.DropAll)
	faulty := faultfs.Wrap(disk)
	var open atomic.Int64
	p := newPlayer(openFiles(l.sc.disk(faulty), &open), l.o, l.h.clone())
	p.faulty, p.fault = true, l.fault
	faulty.Add(faultfs.Rule{From: n, Once: l.once, Fault: l.fault})
	defer watch(fmt.Sprintf("%s: %v at call %d, once=%v", l.sc.name, l.fault, n, l.once))()
	l.sc.play(p)
	l.plays.Add(1)
	hit := faulty.FirstInjected()
	faulty.Clear() // the disk heals
	where := fmt.Sprintf("%v at %v", l.fault, hit)
	if !l.once {
		where += " and ever after"
	}
	if p.db != nil && !p.over() {
		l.healed(p, hit)
	}
	p.close()
	if n := open.Load(); n != 0 {
		p.problem("%d files are left open", n)
	}
	if p.report(l.t, where) {
		return
	}
	if hit.N == 0 {
		if p.dead != nil {
			l.t.Errorf("no fault: %v", p.dead)
		}
		return
	}
	for _, d := range []memfs.Damage{memfs.DropAll, memfs.KeepAll, memfs.Random} {
		l.images.Add(1)
		image := disk.CrashCopy(int64(n), d)
		if l.fresh(image, p.h, p.clock.Load()) {
			l.check(image, p.h, p.clock.Load(), fmt.Sprintf("%s, then %v", where, d))
		}
	}
	if trusted := l.fault != faultfs.SyncDrop || l.o.BufferedIO; trusted && (p.dead != nil || l.o.BufferedIO) && !l.t.Failed() {
		// The same disk, with whatever locks the failed start left behind, and
		// whatever the page cache shows.
		l.check(disk, p.h, p.clock.Load(), where+", then a restart")
	}
}

// healed checks a store that is open when the disk works again: one that is
// read-only must have had a reason, and reads; any other takes writes without a
// restart.
func (l *faultLoop) healed(p *player, hit vfs.Op) {
	readOnly := p.db.readOnly.Load()
	if readOnly == nil {
		i := len(p.h.clients)
		p.h.clients = append(p.h.clients, &client{name: "healed"})
		p.faulty = false
		if p.db.Stats().FlushError != "" {
			// This store tries again when it is asked (flushOnDemand); until
			// then a full write cache refuses.
			p.flush(i)
		}
		p.write(i, "healed1:100", "healed2")
		p.sync(i)
		p.flush(i)
		if readOnly = p.db.readOnly.Load(); readOnly == nil || !errors.Is(p.dead, ErrReadOnly) || !l.endsWriting(hit) {
			if p.dead != nil {
				p.problem("the disk works again, but: %w", p.dead)
			}
			p.verify()
			if l.once && hit.Kind != vfs.OpRemove {
				p.store() // files that could not be removed stay until the next open
			}
			p.faulty = true
			return
		}
		// A goroutine of the store was about to say that it failed.
		p.faulty, p.dead = true, nil
	}
	if !errors.Is(*readOnly, ErrReadOnly) || !errors.Is(*readOnly, faultfs.ErrInjected) {
		p.problem("read-only without the cause: %w", *readOnly)
	}
	if l.once && hit.N != 0 && !l.endsWriting(hit) {
		p.problem("the store became read-only, though nothing was half done: %w", *readOnly)
	}
	if _, err := p.db.Set([]byte("refused"), nil, Meta{}); !errors.Is(err, ErrReadOnly) {
		p.problem("write to a read-only store: %w", err)
	}
	if err := p.db.Flush(); !errors.Is(err, ErrReadOnly) {
		p.problem("flush of a read-only store: %w", err)
	}
	if _, err := p.h.check(p.db); err != nil {
		p.problem("reading a read-only store: %w", err)
	}
}

// watch ends the process when what follows hangs, and shows where. It returns
// what calls that off.
func watch(what string) func() {
	timer := time.AfterFunc(4*time.Minute, func() {
		_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
		panic("still running: " + what)
	})
	return func() { timer.Stop() }
}

// endsWriting reports whether a failure of this call leaves it open what is on
// the device: a group, a record of the manifest, the switch of CURRENT.
func (l *faultLoop) endsWriting(op vfs.Op) bool {
	switch op.Kind {
	case vfs.OpWriteDurable:
		return true
	case vfs.OpWriteAt:
		return strings.Contains(op.Name, "MANIFEST") && l.fault != faultfs.ENOSPC
	case vfs.OpSync:
		return strings.Contains(op.Name, "MANIFEST")
	case vfs.OpRename:
		return strings.HasSuffix(op.Name, "CURRENT.tmp")
	case vfs.OpSyncDir:
		return op.Name == "data"
	}
	return false
}

// hits are the calls that a fault can meet; none means all.
var hits = map[faultfs.Fault][]vfs.OpKind{
	faultfs.ENOSPC: {
		vfs.OpCreate, vfs.OpRemove, vfs.OpRename, vfs.OpMkdirAll, vfs.OpSyncDir, vfs.OpLock, vfs.OpWriteAt,
		vfs.OpWriteDurable, vfs.OpSync, vfs.OpAllocate, vfs.OpTruncate,
	},
	faultfs.ShortWrite: {vfs.OpWriteAt, vfs.OpWriteDurable},
	faultfs.SyncDrop:   {vfs.OpSync, vfs.OpWriteDurable, vfs.OpSyncDir},
	faultfs.BitFlip:    {vfs.OpReadAt},
}

// faultPoints is how many calls of a scenario one fault hits, about, unless the
// loops soak: long scenarios repeat themselves.
const faultPoints = 24

// TestFaultLoop fails every call of the scenarios, once and for ever.
func TestFaultLoop(t *testing.T) {
	start := time.Now()
	var total tally
	for _, sc := range scenarios {
		if sc.sparse && !soak() {
			continue
		}
		base := newLoop(t, sc, &total)
		base.rehearse()
		for _, fault := range []faultfs.Fault{faultfs.EIO, faultfs.ENOSPC, faultfs.ShortWrite, faultfs.SyncDrop, faultfs.BitFlip} {
			for _, once := range []bool{true, false} {
				if fault == faultfs.BitFlip && !once {
					continue // that is rot: see TestRot
				}
				t.Run(fmt.Sprintf("%s/%v/once=%v", sc.name, fault, once), func(t *testing.T) {
					l := &faultLoop{base.again(t), fault, once}
					step := everyNth(12)
					// A fault may lead to calls that a good disk never sees.
					points := base.rehearsal.Count("", hits[fault]...) + 8
					if !soak() {
						step *= 1 + points/faultPoints
					}
					if !once && !soak() {
						step *= 3 // most of them end at the first call
					}
					from := 1 + int(fault)%step // not the same calls by each fault
					inParallel((points-from+step)/step, 8*runtime.GOMAXPROCS(0), func(i int) {
						if !t.Failed() {
							l.run(from + i*step)
						}
					})
				})
			}
		}
	}
	t.Logf("fault loop: %d runs, %d images, %d different ones opened and checked; %.1f s",
		total.plays.Load(), total.images.Load(), total.checks.Load(), time.Since(start).Seconds())
}
