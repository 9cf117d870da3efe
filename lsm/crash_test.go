package lsm

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// How the loops work:
//
//	base ──copy──> disk ──play, power cut at call n──> what clients were told (history)
//	                 │
//	                 └─> for each damage and seed: a copy of the disk as it is found
//	                       open, compare with the history, write, (crash again), open, compare
//
// for every n, before the call and within it. Copies that were checked before,
// byte by byte and with the same history, are not checked again. For some
// copies the recovery itself is crashed at every call.
//
// FLUXKV_SOAK=1 takes more seeds and crashes every recovery.

// tally counts what a loop did.
type tally struct {
	plays, images, checks, recoveries, discards atomic.Int64
}

func (c *tally) String() string {
	return fmt.Sprintf("%d scenarios cut, %d images, %d different ones opened and checked, %d recoveries cut, %d with a discarded group",
		c.plays.Load(), c.images.Load(), c.checks.Load(), c.recoveries.Load(), c.discards.Load())
}

// everyNth is the step of a loop: 1, or n in short runs, which are for the race
// detector.
func everyNth(n int) int {
	if testing.Short() {
		return n
	}
	return 1
}

func soak() bool { return os.Getenv("FLUXKV_SOAK") != "" }

// seedsOf is how often a damage is drawn.
func seedsOf(d memfs.Damage) int64 {
	switch d {
	case memfs.Random, memfs.Torn, memfs.Prefix:
		if soak() {
			return 12
		}
		return 2
	case memfs.OldContent:
		return 2
	}
	return 1
}

// inParallel runs fn(0..n-1) on a few goroutines: some scenarios wait for
// timers.
func inParallel(n, workers int, fn func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				fn(i)
			}
		})
	}
	wg.Wait()
}

// loop is the crash loop of one scenario.
type loop struct {
	t    *testing.T
	sc   *scenario
	o    Options
	base *memfs.FS
	h    *history
	*tally

	calls     int64     // of the scenario on a good disk
	rehearsal *memfs.FS // which counted them
	changes   []int64   // those of them that change the disk

	mu           sync.Mutex
	checked      map[[3]uint64]bool
	recovered    int   // recoveries that were crashed at every call
	nextRecovery int64 // not before a crash at this call
}

func newLoop(t *testing.T, sc *scenario, c *tally) *loop {
	l := &loop{t: t, sc: sc, o: sc.tiny(), tally: c, checked: map[[3]uint64]bool{}}
	l.base, l.h = sc.start(t)
	return l
}

// again is a loop over the same base that knows of no checks yet.
func (l *loop) again(t *testing.T) *loop {
	return &loop{t: t, sc: l.sc, o: l.o, base: l.base, h: l.h, tally: l.tally, checked: map[[3]uint64]bool{}}
}

// player puts a copy of the base under a fresh player.
func (l *loop) player() (*player, *memfs.FS) {
	disk := l.base.CrashCopy(0, memfs.DropAll)
	p := newPlayer(l.sc.disk(disk), l.o, l.h.clone())
	p.halted = func() bool { _, off := disk.Crashed(); return off }
	return p, disk
}

// rehearse plays the scenario once on a good disk. It returns how many calls
// that took.
func (l *loop) rehearse() int64 {
	p, disk := l.player()
	var mu sync.Mutex
	disk.SetHook(func(op vfs.Op) error {
		if changes(op) {
			mu.Lock()
			l.changes = append(l.changes, op.N)
			mu.Unlock()
		}
		return nil
	})
	l.sc.play(p)
	p.close()
	disk.SetHook(nil)
	slices.Sort(l.changes)
	if p.dead != nil {
		l.t.Fatal("on a good disk: ", p.dead)
	}
	if p.report(l.t, "on a good disk") {
		l.t.FailNow()
	}
	for _, c := range l.sc.crossed {
		if os.Getenv("FLUXKV_MUTANT") != "" {
			break // a defect must be caught by what it does
		}
		if n := disk.Count(c.pattern, c.kind); n < c.min || c.max != 0 && n > c.max {
			l.t.Errorf("the scenario made %d calls of %v %s, %d to %d are wanted", n, c.kind, c.pattern, c.min, c.max)
		}
	}
	l.calls, l.rehearsal = disk.Calls(), disk
	return l.calls
}

// changes reports whether a call leaves the disk another one. A crash at any
// other finds what a crash before the next such call finds.
func changes(op vfs.Op) bool {
	switch op.Kind {
	case vfs.OpReadAt, vfs.OpOpen, vfs.OpSize, vfs.OpList, vfs.OpLinks, vfs.OpFreeBytes, vfs.OpClose, vfs.OpLock:
		return false
	}
	return true
}

// nearChange reports whether call n of the scenario may be one that changes the
// disk: goroutines of the store make the numbers vary a little.
func (l *loop) nearChange(n int64) bool {
	if soak() || n >= l.calls-4 {
		return true
	}
	// A defect may show at one call alone: there none is left out.
	if l.sc.stride > 1 && os.Getenv("FLUXKV_MUTANT") == "" {
		i, exact := slices.BinarySearch(l.changes, n)
		return exact && i%l.sc.stride == 0
	}
	i, _ := slices.BinarySearch(l.changes, n-2)
	return i < len(l.changes) && l.changes[i] <= n+2
}

// crash plays the scenario with a power cut at call n and checks every disk
// that this may leave.
func (l *loop) crash(n int64, when memfs.When) {
	p, disk := l.player()
	disk.CrashAt(n, when)
	l.sc.play(p)
	p.close()
	l.plays.Add(1)
	op, crashed := disk.Crashed()
	if crashed && !changes(op) && !soak() && len(p.problems) == 0 {
		return
	}
	where := fmt.Sprintf("power cut %s call %v", [...]string{"before", "within"}[when], op)
	if p.report(l.t, where) {
		return
	}
	if !crashed && p.dead != nil {
		l.t.Errorf("no power cut: %v", p.dead)
		return
	}
	for _, d := range memfs.Damages() {
		for seed := range seedsOf(d) {
			l.images.Add(1)
			image := disk.CrashCopy(n*100+seed, d)
			here := fmt.Sprintf("%s, %v, seed %d", where, d, n*100+seed)
			if !l.fresh(image, p.h, p.clock.Load()) {
				continue
			}
			if l.wantRecoveryCrash(op, n) {
				l.crashRecovery(image, p.h, p.clock.Load(), here)
			}
			l.check(image, p.h, p.clock.Load(), here)
		}
	}
}

// fresh reports whether this disk with this history was not checked yet.
func (l *loop) fresh(image *memfs.FS, h *history, clock int64) bool {
	key := [3]uint64{imageSum(image), h.fingerprint(), uint64(clock)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.checked[key] {
		return false
	}
	l.checked[key] = true
	return true
}

// check opens what a crash left, compares, goes on with it, and opens it again,
// after a close or another power cut.
func (l *loop) check(image *memfs.FS, h *history, clock int64, where string) {
	if l.t.Failed() {
		return // one story at a time
	}
	n := l.checks.Add(1)
	p := newPlayer(image, l.o, h.clone())
	p.clock.Store(clock)
	p.open()
	if p.dead != nil {
		l.t.Errorf("%s: %v", where, p.dead)
		return
	}
	if p.db.recovery.Discarded > 0 {
		l.discards.Add(1)
	}
	if err := checkEnds(p.db); err != nil {
		l.t.Errorf("%s: %v", where, err)
	}
	p.settle()
	p.store()
	if !p.report(l.t, where) {
		p.h.clients = append(p.h.clients, &client{name: "new"})
		i := len(p.h.clients) - 1
		p.write(i, "new1", "new2:100")
		p.sync(i)
		p.look(i, "new2")
		if n%4 < 2 {
			p.flush(i)
		}
		p.verify()
		if p.dead != nil {
			l.t.Errorf("%s: after recovery: %v", where, p.dead)
		}
	}
	if p.report(l.t, where+": after recovery") || p.dead != nil {
		p.close()
		return
	}
	again := image
	if n%2 == 0 {
		again = image.CrashCopy(n, memfs.DropAll)
	}
	p.close()
	q := newPlayer(again, l.o, p.h)
	q.clock.Store(clock)
	q.open()
	if q.dead != nil {
		l.t.Errorf("%s: opened again: %v", where, q.dead)
		return
	}
	q.verify()
	q.store()
	q.report(l.t, where+": opened again")
	q.close()
}

// wantRecoveryCrash picks the copies whose recovery is crashed: after a group
// write, a switch or a new name, some way apart.
func (l *loop) wantRecoveryCrash(op vfs.Op, n int64) bool {
	limit, apart := 2, l.calls/3
	if l.sc.flushes() {
		limit = 1 // their recoveries are long and alike
	}
	if soak() {
		limit, apart = 1000, 0
	}
	if testing.Short() && !l.sc.discards {
		limit = 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch op.Kind {
	case vfs.OpWriteDurable, vfs.OpRename, vfs.OpSyncDir:
	default:
		return false
	}
	if l.recovered >= limit || n < l.nextRecovery {
		return false
	}
	l.recovered++
	l.nextRecovery = n + apart
	return true
}

// crashRecovery cuts the power at every call of the start after a crash.
func (l *loop) crashRecovery(image *memfs.FS, h *history, clock int64, where string) {
	for m := int64(1); !l.t.Failed(); m++ {
		disk := image.CrashCopy(0, memfs.DropAll)
		disk.CrashAt(m, memfs.Within)
		p := newPlayer(disk, l.o, h.clone())
		p.clock.Store(clock)
		p.halted = func() bool { _, off := disk.Crashed(); return off }
		p.open()
		if !p.over() {
			p.settle()
			p.h.clients = append(p.h.clients, &client{name: "mid"})
			p.write(len(p.h.clients)-1, "mid1")
		}
		p.close()
		l.recoveries.Add(1)
		op, crashed := disk.Crashed()
		here := fmt.Sprintf("%s, then power cut within call %v of the recovery", where, op)
		if p.report(l.t, here) {
			return
		}
		for _, d := range []memfs.Damage{memfs.DropAll, memfs.KeepAll, memfs.Random, memfs.Zeros, memfs.Torn} {
			second := disk.CrashCopy(m, d)
			l.images.Add(1)
			if l.fresh(second, p.h, clock) {
				l.check(second, p.h, clock, fmt.Sprintf("%s, %v", here, d))
			}
		}
		if !crashed {
			return
		}
	}
}

// TestCrashLoop cuts the power at every call of every scenario.
func TestCrashLoop(t *testing.T) {
	start := time.Now()
	var total tally
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			began := time.Now()
			var c tally
			l := newLoop(t, sc, &c)
			calls := l.rehearse()
			step := everyNth(10)
			if sc.discards {
				step = 1 // every tenth call may miss all that it is there for
			}
			// Goroutines of the store make the number of calls vary a little.
			points := int(2*(calls+2)) / step
			inParallel(points, 4*runtime.GOMAXPROCS(0), func(i int) {
				n, when := int64(i*step/2+1), memfs.When(i%2)
				if when == memfs.Before && n%2 == 0 && !soak() {
					return // much like the crash within the call before
				}
				if !t.Failed() && l.nearChange(n) {
					l.crash(n, when)
				}
			})
			if sc.discards && c.discards.Load() == 0 {
				t.Error("no crash tore a group with a later one intact")
			}
			total.plays.Add(c.plays.Load())
			total.images.Add(c.images.Load())
			total.checks.Add(c.checks.Load())
			total.recoveries.Add(c.recoveries.Load())
			total.discards.Add(c.discards.Load())
			t.Logf("%d calls; %v; %.1f s", calls, &c, time.Since(began).Seconds())
		})
	}
	t.Logf("crash loop: %d scenarios; %v; %.1f s", len(scenarios), &total, time.Since(start).Seconds())
}
