package lsm

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fluxkv/internal/entry"
	"fluxkv/internal/manifest"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/wal"
)

func init() { scenarios = append(scenarios, killedScenarios...) }

// footless is a disk on which no footer of a segment comes to its end: what a
// process leaves that is killed over it, at each of the places where it can be.
// The segments are full, and the manifest has no end of them.
type footless struct {
	*tapFS
	mu      sync.Mutex
	left    int // footers begun
	place   map[string]int
	ends    bool // the manifest takes the end of one alone
	refused int  // ends that it did not take
}

var errFootless = errors.New("no footer today")

// The places: nothing of the footer is there; it is, and the file is not cut; the
// file is cut, which is not synced, and the edit is missing.
const footlessPlaces = 3

func newFootless(inner vfs.FS) *footless {
	f := &footless{tapFS: &tapFS{inner: inner}, place: map[string]int{}}
	f.call = func(op vfs.Op, do func() error, _ *tapFile, p []byte) error {
		f.mu.Lock()
		place, begun := f.place[op.Name]
		if !begun && op.Kind == vfs.OpWriteAt && isSegment(op) && !strings.HasSuffix(op.Name, ".gc.seg") && bytes.Contains(p, []byte("fluxend\n")) {
			place, begun = f.left%footlessPlaces, true
			f.place[op.Name] = place
			f.left++
		} else if begun && op.Kind == vfs.OpTruncate {
			f.place[op.Name] = place + footlessPlaces
		}
		// A record that is appended and begins with the end of a segment has nothing
		// else.
		end := op.Kind == vfs.OpWriteAt && op.Off > 0 && strings.Contains(op.Name, "MANIFEST") && len(p) > 16 && p[16] == 3 && !f.ends
		if end {
			f.refused++
		}
		f.mu.Unlock()
		switch {
		case end:
			return vfs.ErrNoSpace // which leaves the manifest as it was
		case begun && place == 0 && op.Kind == vfs.OpWriteAt,
			begun && place == 1 && op.Kind == vfs.OpTruncate,
			begun && place == 2+footlessPlaces && op.Kind == vfs.OpSync:
			return errFootless
		}
		return do()
	}
	return f
}

// begun returns how many footers were begun.
func (f *footless) begun() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.left
}

// takeEnds has the manifest take ends once it has refused one. It returns how many
// it refused.
func (f *footless) takeEnds() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ends = f.refused > 0
	return f.refused
}

// leftFull makes a base that a kill left with full segments of which no end is
// recorded, before and behind replay-from.
func leftFull(play func(p *player)) func(*testing.T, Options) (*memfs.FS, *history) {
	return func(t *testing.T, o Options) (*memfs.FS, *history) {
		disk := memfs.New()
		fs := newFootless(disk)
		p := newPlayer(fs, o, newHistory("a"))
		p.open()
		play(p)
		p.wait(time.Minute, func(s Stats) bool { return int64(fs.begun()) == s.Log.Seals })
		disk.Crash()
		p.close()
		if p.report(t, "base") {
			t.FailNow()
		}
		return disk.CrashCopy(0, memfs.KeepAll), p.h
	}
}

// endless returns the segments of the log without an end, of a store that is
// closed or killed.
func endless(t testing.TB, disk *memfs.FS) (before, behind []entry.SegmentID) {
	t.Helper()
	format, err := manifest.ReadFormat(disk, "data")
	if err != nil {
		t.Fatal(err)
	}
	l, st, err := manifest.Open(disk, "data", format.Secret)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, s := range st.Segments {
		switch {
		case s.Kind != manifest.SegmentLog || s.Sealed || s.Ended:
		case s.ID < st.ReplayFrom.Segment:
			before = append(before, s.ID)
		default:
			behind = append(behind, s.ID)
		}
	}
	return before, behind
}

var killedScenarios = []*scenario{
	{
		name:   "segments that a kill left full",
		base:   leftFull(func(p *player) { hot(p, 0, 6); hot(p, 1, 4); fill(p, 7) }),
		stride: 9,
		play: func(p *player) {
			p.open()
			p.sees("segments ended", func(s Stats) bool { return s.Recovery.Ended >= 7 && s.Recovery.Endless == 0 })
			p.checked()
			p.verify()
			hot(p, 2, 4)
			p.collect()
			p.sees("collection of them", func(s Stats) bool { return s.Collections > 0 })
			p.verify()
			p.rolled()
			p.reopen()
			p.verify()
			p.checked()
		},
		crossed: []crossing{{vfs.OpTruncate, "*.seg", 5, 0}, {vfs.OpCreate, "*.gc.seg", 1, 0}},
	},
	{
		name:    "segments that a kill left full, in the page cache",
		base:    leftFull(func(p *player) { hot(p, 0, 3); fill(p, 4) }),
		stride:  9,
		options: func(o *Options) { o.BufferedIO = true },
		play: func(p *player) {
			p.open()
			p.sees("segments ended", func(s Stats) bool { return s.Recovery.Ended >= 3 })
			p.verify()
			p.flush(0)
			p.collect()
			p.verify()
		},
		sparse: true,
	},
}

// TestR04_AStartRecordsTheEndOfFullSegments: a kill leaves full segments whose end
// the manifest does not have, some of which replay does not read any more. The
// next start records them all in its one edit, gives back what they do not use,
// and they are collected like any others.
func TestR04_AStartRecordsTheEndOfFullSegments(t *testing.T) {
	sc := killedScenarios[0]
	o := sc.tiny()
	disk, _ := sc.start(t)
	before, behind := endless(t, disk)
	if len(before) < footlessPlaces || len(behind) < footlessPlaces {
		t.Fatalf("segments %v before replay-from and %v behind it have no end: too few", before, behind)
	}
	o.FS = disk
	db := mustOpen(t, "data", o)
	if err := checkEnds(db); err != nil {
		t.Fatal(err)
	}
	if n := disk.Count("CURRENT.tmp", vfs.OpRename); n != 1 {
		t.Errorf("%d manifests for one edit", n)
	}
	st := db.edits.log.State()
	for _, id := range append(before, behind...) {
		s, ok := st.Segment(id)
		if !ok {
			continue // the one prepared
		}
		n, err := disk.Size(path.Join("data", wal.SegmentsDir, wal.SegmentName(id, wal.SegmentLog)))
		if err != nil || n != int64(s.End) {
			t.Errorf("file of %d bytes, %v: %+v", n, err, s)
		}
	}
	mustFlush(t, db)
	mustCompact(t, db)
	// All of them are old and mostly dead by now.
	for i := range 3 {
		set(t, db, fmt.Sprintf("h%d", i), "small")
	}
	for round := range 2 {
		for i := range 6 {
			del(t, db, fmt.Sprintf("c%d%d", round, i))
			set(t, db, fmt.Sprintf("f%d", i%3), "small")
			set(t, db, fmt.Sprintf("h%d", i), "small")
		}
	}
	mustCompact(t, db)
	st = db.edits.log.State()
	for _, id := range append(before, behind...) {
		if s, ok := st.Segment(id); ok {
			t.Errorf("everything in it is dead, but segment %06d is still there: %+v", id, s)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestG9_AFailedFooterCostsNoEnd: a footer that cannot be written costs the segment
// its index, not its end, without which it would not be collected before a
// restart. When the manifest has no room for the end it is recorded later.
func TestG9_AFailedFooterCostsNoEnd(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprintf("manifest full=%v", full), func(t *testing.T) {
			disk := memfs.New()
			fs := newFootless(disk)
			fs.ends = !full
			o := tinyOptions()
			o.FS = fs
			db := mustOpen(t, "data", o)
			write := func(round int) {
				for i := range 8 {
					set(t, db, fmt.Sprintf("key%d", i), killedValue(round, i, 6000))
				}
			}
			write(0)
			if full {
				for start := time.Now(); fs.takeEnds() == 0; time.Sleep(100 * time.Microsecond) {
					if time.Since(start) > time.Minute {
						t.Fatal("no end was refused")
					}
				}
				write(1)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if before, behind := endless(t, disk); len(before) > 0 || len(behind) > 2 {
				t.Errorf("segments %v and %v have no end", before, behind) // the last one and the one prepared have none
			}
			o.FS = disk
			db = mustOpen(t, "data", o)
			defer db.Close()
			if n := db.recovery.Ended; n > 0 {
				t.Errorf("the start had to end %d segments", n)
			}
			for i := range 8 {
				round := 0
				if full {
					round = 1
				}
				want(t, db, fmt.Sprintf("key%d", i), killedValue(round, i, 6000))
			}
		})
	}
}

// TestR21_ADamagedFullSegmentGetsNoEnd: a full segment that replay does not read,
// without a footer and damaged, has no end that could be known. The store opens
// all the same, says so, serves what can be read, and never frees what it has.
func TestR21_ADamagedFullSegmentGetsNoEnd(t *testing.T) {
	sc := killedScenarios[0]
	o := sc.tiny()
	disk, _ := sc.start(t)
	before, _ := endless(t, disk)
	o.FS = disk
	bad := entry.SegmentID(0)
	name := func(id entry.SegmentID) string {
		return path.Join("data", wal.SegmentsDir, wal.SegmentName(id, wal.SegmentLog))
	}
	format, err := manifest.ReadFormat(disk, "data")
	if err != nil {
		t.Fatal(err)
	}
	secret := wal.Secret(format.Secret)
	for _, id := range before {
		if ok, err := wal.HasFooter(disk, "data", id, &secret, false); err != nil {
			t.Fatal(err)
		} else if !ok && bad == 0 {
			bad = id
		}
	}
	damage(t, disk, name(bad), 4096+1000) // in the first document
	var lines []string
	o.Logf = func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for range 2 { // the next start finds nothing else
		lines = nil
		db := mustOpen(t, "data", o)
		if r := db.Stats().Recovery; r.Endless != 1 {
			t.Fatalf("%+v", r)
		}
		if said := strings.Join(lines, "\n"); !strings.Contains(said, name(bad)) {
			t.Errorf("the start does not name %s: %s", name(bad), said)
		}
		served, refused := 0, 0
		for i := range 6 {
			switch _, err := db.Get(nil, fmt.Appendf(nil, "c0%d", i)); {
			case err == nil:
				served++
			case errors.Is(err, ErrCorrupt):
				refused++
			default:
				t.Error(err)
			}
		}
		if refused > 1 || served < 5 {
			t.Errorf("%d documents served, %d refused", served, refused)
		}
		for i := range 4 {
			set(t, db, fmt.Sprintf("h%d", i), "small")
		}
		mustCompact(t, db)
		st := db.edits.log.State()
		if s, ok := st.Segment(bad); !ok || s.Sealed || s.Ended {
			t.Errorf("segment %06d: %+v, registered: %v", bad, s, ok)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestR04_SpaceIsBoundedOverManyKills: a store that is killed again and again
// while it is overwritten, each time with full segments that have no end, takes no
// more space for that.
func TestR04_SpaceIsBoundedOverManyKills(t *testing.T) {
	const rounds, turns, keys, bytes = 36, 12, 8, 6000
	for _, buffered := range []bool{false, true} {
		t.Run(fmt.Sprintf("buffered=%v", buffered), func(t *testing.T) {
			disk := memfs.New()
			o := tinyOptions()
			o.BufferedIO = buffered
			var after [rounds]int64 // each start
			for round := range rounds {
				o.FS = newFootless(disk)
				db := mustOpen(t, "data", o)
				// What is there is merged and collected, with what the last run left.
				mustCompact(t, db)
				after[round] = usedBytes(t, disk)
				if round > 0 {
					for i := range keys {
						want(t, db, fmt.Sprintf("key%d", i), killedValue(round-1, i, bytes))
						if old := round - turns; old >= 0 {
							want(t, db, fmt.Sprintf("cold%d.%d", old%turns, i), killedValue(old, i, 100))
						}
					}
				}
				for i := range keys {
					// One that stays for a while beside each that is written over and
					// over: no segment goes by itself.
					set(t, db, fmt.Sprintf("cold%d.%d", round%turns, i), killedValue(round, i, 100))
					set(t, db, fmt.Sprintf("key%d", i), killedValue(round, i, bytes))
					if i == keys/2 && round%2 == 0 {
						mustFlush(t, db)
					}
				}
				disk.Crash()
				_ = db.Close()
				disk = disk.CrashCopy(int64(round), memfs.KeepAll)
			}
			// What is live are 56 kB; the cold ones lie in outputs of 12 kB for a few
			// hundred bytes each, and segments of 32 KiB are active, prepared or in the
			// pool: 0.56 MB. With segments that nothing collects it would be 1.6 MB.
			if most := slices.Max(after[:]); most > mib {
				t.Errorf("bytes on disk after each start: %d", after)
			}
		})
	}
}

// killedValue is what key i gets in a round.
func killedValue(round, i, bytes int) string {
	v := fmt.Sprintf("%d.%d.", round, i)
	return v + strings.Repeat("v", bytes-len(v))
}

// usedBytes is what the files of a store take.
func usedBytes(t testing.TB, disk *memfs.FS) int64 {
	t.Helper()
	sum := int64(0)
	for _, dir := range []string{"data", "data/log", "data/idx"} {
		names, err := disk.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if size, err := disk.Size(path.Join(dir, n)); err == nil {
				sum += size
			}
		}
	}
	return sum
}

// TestW9_GroupsWrittenAgainSurviveAnotherPowerCut: a start through the page cache
// writes the last groups once more, of which nothing says that they were durable.
// When they were, no power cut during that may cost them.
func TestW9_GroupsWrittenAgainSurviveAnotherPowerCut(t *testing.T) {
	disk := memfs.New()
	o := tinyOptions()
	o.BufferedIO = true
	o.FS = disk
	db := mustOpen(t, "data", o)
	value := strings.Repeat("v", 3000)
	set(t, db, "first", value)
	set(t, db, "last", value) // nothing vouches for this one
	image := disk.CrashCopy(1, memfs.DropAll)
	_ = db.Close()
	again := 0
	for n := int64(1); ; n++ {
		disk := image.CrashCopy(0, memfs.DropAll)
		disk.CrashAt(n, memfs.Within)
		o.FS = disk
		db, err := Open("data", o)
		if err == nil {
			_ = db.Close()
		}
		op, crashed := disk.Crashed()
		if !crashed {
			break
		}
		if op.Kind == vfs.OpWriteAt && isSegment(op) && op.Off > 0 {
			again++
		}
		for _, d := range memfs.Damages() {
			o.FS = disk.CrashCopy(n, d)
			db, err := Open("data", o)
			if err != nil {
				t.Fatalf("power cut within %v, %v: %v", op, d, err)
			}
			for _, key := range []string{"first", "last"} {
				if it, err := db.Get(nil, []byte(key)); err != nil || string(it.Value) != value {
					t.Errorf("power cut within %v, %v: %s has %d bytes, %v", op, d, key, len(it.Value), err)
				}
			}
			_ = db.Close()
		}
		if t.Failed() {
			return
		}
	}
	if again == 0 {
		t.Error("no group was written again")
	}
}
