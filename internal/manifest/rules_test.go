package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// Tests of the rules of design and reliability that this package answers for,
// named after them. M1, M7 and M8 stand beside the code they test as well.

// mutating are the calls that change a disk.
var mutating = []vfs.OpKind{
	vfs.OpCreate, vfs.OpRemove, vfs.OpRename, vfs.OpMkdirAll, vfs.OpSyncDir, vfs.OpLock,
	vfs.OpWriteAt, vfs.OpWriteDurable, vfs.OpSync, vfs.OpAllocate, vfs.OpTruncate,
}

// TestR04_OneEditEndsATornSegment: where the torn segment ends, that later log
// segments are gone, and the seqno jump, all survive together, and the torn
// segment can neither be sealed nor ended again.
func TestR04_OneEditEndsATornSegment(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 65536; replay 2 4096 1")
	mustApply(t, l, "add 3 log 65536")
	l.Close()
	l, _ = mustOpen(t, disk)
	want := mustApply(t, l, "end 2 end=8192 last=17 next=16777234; drop 3")
	if want.NextSeqno != 16777234 {
		t.Fatalf("next seqno %d", want.NextSeqno)
	}
	for _, text := range []string{"seal 2 end=8192 last=17 file=8192", "end 2 end=12288 last=20 next=30"} {
		e := parseEdit(t, text)
		if _, err := l.Apply(&e); !errors.Is(err, ErrInvalidEdit) {
			t.Fatalf("%s: %v", text, err)
		}
	}
	// Another run that wrote nothing behind it may only raise the jump.
	if want = mustApply(t, l, "end 2 end=8192 last=17 next=33554451"); want.NextSeqno != 33554451 {
		t.Fatalf("next seqno %d", want.NextSeqno)
	}
	l.Close()
	if _, got := mustOpen(t, disk.CrashCopy(1, memfs.DropAll)); dump(got) != dump(want) {
		t.Fatalf("got\n%swant\n%s", dump(got), dump(want))
	}
}

// TestR09_RegistrationIsDurableBeforeApplyReturns: a group may follow at once.
func TestR09_RegistrationIsDurableBeforeApplyReturns(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	for id := 2; id < 6; id++ {
		want := mustApply(t, l, fmt.Sprintf("add %d log 4096", id))
		for _, damage := range memfs.Damages() {
			if _, got := mustOpen(t, disk.CrashCopy(int64(id), damage)); dump(got) != dump(want) {
				t.Fatalf("%v: got\n%swant\n%s", damage, dump(got), dump(want))
			}
		}
	}
}

// TestR12_M5_OpenWritesNothing, and a failed one neither: recovery may refuse and
// must then have changed nothing.
func TestR12_M5_OpenWritesNothing(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 4096")
	name := Name(mustApply(t, l, "next 7").Manifest)
	for _, c := range []struct {
		name   string
		damage func()
		want   error
	}{
		{"intact", func() {}, nil},
		{"torn tail", func() { writeDisk(t, disk, name, append(readDisk(t, disk, name), 1, 2, 3)) }, nil},
		{"damaged", func() { writeDisk(t, disk, name, readDisk(t, disk, name)[:30]) }, ErrCorrupt},
		{"without CURRENT", func() { disk.Remove("data/CURRENT") }, ErrNoCurrent},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.damage()
			disk.ResetCounts()
			for range 2 {
				l, _, err := Open(disk, testDir, testSecret)
				if !errors.Is(err, c.want) {
					t.Fatal(err)
				}
				if err == nil {
					l.NextFileNumber()
					l.SeenFile(100)
					if err := errors.Join(l.Promise(), l.Close()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := disk.Count("", mutating...); n != 0 {
				t.Fatalf("%d calls changed the disk", n)
			}
		})
	}
}

// TestR13_ClearSurvives: the clear seqno and a pending clear are in every later
// manifest until they change.
func TestR13_ClearSurvives(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	mustApply(t, l, "pending 1800000000000000000; clear 40")
	for range 3 { // each round through a new file
		l.Close()
		var st State
		l, st = mustOpen(t, disk)
		if st.ClearSeqno != 40 || st.PendingClear != 1800000000000000000 {
			t.Fatal(dump(st))
		}
		mustApply(t, l, "")
	}
	st := mustApply(t, l, "clear 90; pending 0")
	l.Close()
	if _, got := mustOpen(t, disk); got.ClearSeqno != 90 || got.PendingClear != 0 || dump(got) != dump(st) {
		t.Fatal(dump(got))
	}
}

// TestR24_TheExpiryClockNeverFalls: neither by a later edit with an earlier
// time, nor over a new file.
func TestR24_TheExpiryClockNeverFalls(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	mustApply(t, l, "expiry 1700000000")
	mustApply(t, l, "expiry 1600000000")
	for range 3 { // each round through a new file
		l.Close()
		var st State
		if l, st = mustOpen(t, disk); st.ExpiryClock != 1700000000 {
			t.Fatal(dump(st))
		}
		mustApply(t, l, "expiry 1600000001")
	}
	if st := mustApply(t, l, "expiry 1700000001"); st.ExpiryClock != 1700000001 {
		t.Fatal(dump(st))
	}
}

// TestR26_EachEditPromisesItsPredecessor in the bytes, and the promise is the
// synced end, not more.
func TestR26_EachEditPromisesItsPredecessor(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	for i := range 5 {
		mustApply(t, l, fmt.Sprintf("next %d", i+2))
	}
	l.Close()
	b := readDisk(t, disk, Name(1))
	records := 0
	for off := int64(headerBytes); off < int64(len(b)); records++ {
		edit, prevEnd, ok := recordAt(b, off, testSecret, 1)
		if !ok || prevEnd != off {
			t.Fatalf("record at %d: ok %v, promises %d", off, ok, prevEnd)
		}
		off += recordHeaderBytes + int64(len(edit))
	}
	if records != 7 { // the state, five edits, the promise of Close
		t.Fatalf("%d records", records)
	}
}

// TestM2_SwitchOrder: the new manifest and its name are durable before CURRENT
// is written, CURRENT's bytes before its rename, the rename before anything is
// removed.
func TestM2_SwitchOrder(t *testing.T) {
	disk := newDisk(t)
	l := inline(mustCreate(t, disk, ""))
	grow(l)
	var calls []string
	disk.SetHook(func(op vfs.Op) error {
		if slices.Contains(mutating, op.Kind) {
			calls = append(calls, fmt.Sprintf("%s %s", op.Kind, strings.TrimPrefix(op.Name, "data/")))
		}
		return nil
	})
	mustApply(t, l, "next 5")
	got := strings.Join(calls, "\n")
	want := `WriteAt MANIFEST-000001
Sync MANIFEST-000001
Create MANIFEST-000002
WriteAt MANIFEST-000002
Sync MANIFEST-000002
SyncDir data
Remove CURRENT.tmp
Create CURRENT.tmp
WriteAt CURRENT.tmp
Sync CURRENT.tmp
Rename CURRENT.tmp
SyncDir data
Remove MANIFEST-000001`
	if got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

// TestM3_FailedWritePoisons: after a failed append, sync or switch nothing is
// written or removed any more, and every later Apply says why.
func TestM3_FailedWritePoisons(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    vfs.OpKind
		pattern string
		err     error
		reopen  bool
	}{
		{"append", vfs.OpWriteAt, "MANIFEST-*", errEIO, false},
		{"sync", vfs.OpSync, "MANIFEST-*", errEIO, false},
		{"sync without space", vfs.OpSync, "MANIFEST-*", vfs.ErrNoSpace, false},
		{"rename of CURRENT at the first edit", vfs.OpRename, "*", errEIO, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := newDisk(t)
			l := mustCreate(t, disk, "")
			acked := mustApply(t, l, "next 5")
			if c.reopen {
				l.Close()
				l, acked = mustOpen(t, disk)
			}
			failNext(disk, c.kind, c.pattern, c.err)
			st, err := l.Apply(&Edit{NextSeqno: 6})
			if !errors.Is(err, ErrPoisoned) || !errors.Is(err, c.err) || !errors.Is(l.Err(), c.err) {
				t.Fatalf("got %v", err)
			}
			if dump(st) != dump(acked) || dump(l.State()) != dump(acked) {
				t.Fatalf("the failed edit is in the state\n%s", dump(st))
			}
			before := listDisk(t, disk)
			disk.ResetCounts()
			for range 3 {
				if _, err := l.Apply(&Edit{NextSeqno: 7}); !errors.Is(err, ErrPoisoned) || !errors.Is(err, c.err) {
					t.Fatalf("a later Apply: %v", err)
				}
				if err := l.Promise(); !errors.Is(err, ErrPoisoned) {
					t.Fatalf("a later Promise: %v", err)
				}
			}
			l.Close()
			if n := disk.Count("", mutating...); n != 0 || listDisk(t, disk) != before {
				t.Fatalf("%d calls changed the disk afterwards", n)
			}
			_, got := mustOpen(t, disk)
			if got.NextSeqno != 5 && got.NextSeqno != 6 {
				t.Fatal(dump(got))
			}
		})
	}
}

// TestM3_SyncDirAfterSwitchPoisons: the rename may or may not be durable, so
// both manifests must stay.
func TestM3_SyncDirAfterSwitchPoisons(t *testing.T) {
	disk := newDisk(t)
	l := inline(mustCreate(t, disk, ""))
	grow(l)
	syncs := 0
	disk.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSyncDir {
			if syncs++; syncs == 2 {
				return errEIO
			}
		}
		return nil
	})
	mustApply(t, l, "next 6") // which the old manifest has
	if _, err := l.Apply(&Edit{NextSeqno: 7}); !errors.Is(err, ErrPoisoned) || !errors.Is(err, errEIO) {
		t.Fatal(err)
	}
	disk.SetHook(nil)
	if got := listDisk(t, disk); got != "CURRENT MANIFEST-000001 MANIFEST-000002" {
		t.Fatalf("left %s", got)
	}
	for _, damage := range memfs.Damages() {
		for seed := range int64(8) {
			_, st := mustOpen(t, disk.CrashCopy(seed, damage))
			if st.NextSeqno != 6 {
				t.Fatal(dump(st))
			}
		}
	}
}

// TestM3_F1_NoSpaceBeforeAnyByteIsTemporary: nothing was written, so the edit
// may be tried again, and succeeds when there is space.
func TestM3_F1_NoSpaceBeforeAnyByteIsTemporary(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    vfs.OpKind
		pattern string
		reopen  bool
	}{
		{"append", vfs.OpWriteAt, "MANIFEST-*", false},
		{"creation of the next manifest", vfs.OpCreate, "MANIFEST-*", true},
		{"write of the next manifest", vfs.OpWriteAt, "MANIFEST-*", true},
		{"sync of the next manifest", vfs.OpSync, "MANIFEST-*", true},
		{"creation of CURRENT.tmp", vfs.OpCreate, "CURRENT.tmp", true},
		{"write of CURRENT.tmp", vfs.OpWriteAt, "CURRENT.tmp", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			disk := newDisk(t)
			l := mustCreate(t, disk, "")
			mustApply(t, l, "next 5")
			if c.reopen {
				l.Close()
				l, _ = mustOpen(t, disk)
			}
			before := listDisk(t, disk)
			for range 3 {
				failNext(disk, c.kind, c.pattern, fmt.Errorf("test: %w", vfs.ErrNoSpace))
				if _, err := l.Apply(&Edit{NextSeqno: 6}); !errors.Is(err, vfs.ErrNoSpace) || errors.Is(err, ErrPoisoned) {
					t.Fatalf("got %v", err)
				}
				if got := listDisk(t, disk); got != before {
					t.Fatalf("left %s", got)
				}
			}
			want := mustApply(t, l, "next 7")
			l.Close()
			if _, got := mustOpen(t, disk.CrashCopy(1, memfs.DropAll)); dump(got) != dump(want) {
				t.Fatalf("got\n%swant\n%s", dump(got), dump(want))
			}
		})
	}
}

// TestF1_FailedRotationFallsBack: a manifest that cannot be replaced for its
// size goes on; the edit is not lost.
func TestF1_FailedRotationFallsBack(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpCreate, vfs.OpSyncDir} {
		disk := newDisk(t)
		l := inline(mustCreate(t, disk, ""))
		grow(l)
		failNext(disk, kind, "*", errEIO)
		st := mustApply(t, l, "next 5")
		if st.Manifest != 1 || listDisk(t, disk) != "CURRENT MANIFEST-000001" {
			t.Fatalf("%v: manifest %d, %s", kind, st.Manifest, listDisk(t, disk))
		}
		if l.rotateAt <= l.end {
			t.Fatalf("%v: tried again at each edit", kind)
		}
		grow(l)
		mustApply(t, l, "next 6")
		if st = l.State(); st.Manifest == 1 {
			t.Fatalf("%v: never replaced", kind)
		}
		l.Close()
		if _, got := mustOpen(t, disk); dump(got) != dump(st) {
			t.Fatal(dump(got))
		}
	}
}

// TestF2_OpenOnAFullDisk: nothing is needed to open, and what is in the way can
// be named.
func TestF2_OpenOnAFullDisk(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "next 5")
	l.Close()
	writeDisk(t, disk, "MANIFEST-000009", make([]byte, 64<<10))
	disk.SetFree(0)
	l, st := mustOpen(t, disk)
	if _, err := l.Apply(&Edit{NextSeqno: 6}); !errors.Is(err, vfs.ErrNoSpace) || errors.Is(err, ErrPoisoned) {
		t.Fatalf("got %v", err)
	}
	names, _ := disk.List(testDir)
	st.NextFileNumber = l.NextFileNumber()
	for _, name := range Obsolete(names, st) {
		if err := disk.Remove(testDir + "/" + name); err != nil {
			t.Fatal(err)
		}
	}
	mustApply(t, l, "next 7")
}

// TestF6_ReadErrorIsNotTheEnd: a device that does not answer stops the start.
func TestF6_ReadErrorIsNotTheEnd(t *testing.T) {
	disk := newDisk(t)
	mustCreate(t, disk, "next 5").Close()
	for _, pattern := range []string{"CURRENT", "MANIFEST-*"} {
		for _, kind := range []vfs.OpKind{vfs.OpOpen, vfs.OpSize, vfs.OpReadAt} {
			failNext(disk, kind, pattern, errEIO)
			_, _, err := Open(disk, testDir, testSecret)
			if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v of %s: %v", kind, pattern, err)
			}
		}
	}
}

// TestM4_EveryFlippedBitIsNoticed: a damaged byte in what was promised refuses
// to open; in the last edit it can only look like a torn tail, unless Promise
// or Close vouched for it.
func TestM4_EveryFlippedBitIsNoticed(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 4096; replay 2 4096 1")
	mustApply(t, l, "add 3 log 4096")
	before := l.State()
	number, lastAt := before.Manifest, l.end
	mustApply(t, l, "next 9")
	unpromised := readDisk(t, disk, Name(number))
	if err := l.Promise(); err != nil {
		t.Fatal(err)
	}
	promiseAt := l.end - recordHeaderBytes
	after := l.State()
	if err := errors.Join(l.Promise(), l.Close()); err != nil { // both have nothing to add
		t.Fatal(err)
	}
	promised := readDisk(t, disk, Name(number))
	c, err := decodeCurrent("CURRENT", readDisk(t, disk, "CURRENT"), testSecret)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(promised)) != promiseAt+recordHeaderBytes {
		t.Fatalf("%d bytes, promise at %d", len(promised), promiseAt)
	}
	for bit := range 8 * len(promised) {
		b := bytes.Clone(promised)
		b[bit/8] ^= 1 << (bit % 8)
		r, err := replay("m", b, testSecret, number, c.synced)
		switch at := int64(bit / 8); {
		case at < promiseAt:
			var ce *CorruptError
			if !errors.As(err, &ce) || ce.File != "m" || ce.Offset > at {
				t.Fatalf("bit %d of byte %d: %v", bit%8, at, err)
			}
		case err != nil || dump(r.state) != dump(after) || !r.torn:
			t.Fatalf("bit %d of byte %d, in the promise itself: %v\n%s", bit%8, at, err, dump(r.state))
		}
	}
	for bit := 8 * lastAt; bit < int64(8*len(unpromised)); bit++ {
		b := bytes.Clone(unpromised)
		b[bit/8] ^= 1 << (bit % 8)
		r, err := replay("m", b, testSecret, number, c.synced)
		if err != nil || dump(r.state) != dump(before) || !r.torn {
			t.Fatalf("bit %d of byte %d: %v\n%s", bit%8, bit/8, err, dump(r.state))
		}
	}
}

// TestM4_EveryCut: a file cut anywhere behind what CURRENT vouches for opens
// with the whole records that are left; anywhere before it is refused.
func TestM4_EveryCut(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 4096")
	number := l.State().Manifest
	ends := map[int64]string{l.end: dump(l.State())}
	synced := l.end
	for i := range 4 {
		st := mustApply(t, l, fmt.Sprintf("add %d log 4096; next %d", i+3, i+2))
		ends[l.end] = dump(st)
	}
	whole := readDisk(t, disk, Name(number))
	want := ""
	for cut := range int64(len(whole)) + 1 {
		if s, ok := ends[cut]; ok {
			want = s
		}
		for _, zeros := range []int{0, 1, 40, 5000} {
			b := append(bytes.Clone(whole[:cut]), make([]byte, zeros)...)
			r, err := replay("m", b, testSecret, number, synced)
			if cut < synced {
				if !errors.Is(err, ErrCorrupt) && whole[cut] != 0 {
					t.Fatalf("cut at %d: %v", cut, err)
				}
				continue
			}
			if err != nil {
				t.Fatalf("cut at %d and %d zeros: %v", cut, zeros, err)
			}
			// Zeros may happen to complete a record whose last bytes are zero.
			if dump(r.state) != want && zeros == 0 {
				t.Fatalf("cut at %d: got\n%swant\n%s", cut, dump(r.state), want)
			}
		}
	}
}

// TestM6_NumbersAreNeverReused: also not those of files that no edit names.
func TestM6_NumbersAreNeverReused(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	handedOut := l.NextFileNumber()
	mustApply(t, l, "") // any edit records it
	lost := l.NextFileNumber()
	l.Close()
	writeDisk(t, disk, Name(30), []byte("an orphan"))
	l, st := mustOpen(t, disk)
	if st.NextFileNumber <= handedOut {
		t.Fatalf("next %d, and %d is used", st.NextFileNumber, handedOut)
	}
	l.SeenFile(41) // the segment file that was made with a number above
	l.SeenFile(lost)
	if n := l.NextFileNumber(); n != 42 {
		t.Fatalf("got %d", n)
	}
	st = mustApply(t, l, "")
	if st.Manifest != 43 || st.NextFileNumber != 44 {
		t.Fatalf("manifest %d, next %d", st.Manifest, st.NextFileNumber)
	}
	names, _ := disk.List(testDir)
	if got := Obsolete(names, st); !slices.Equal(got, []string{Name(30)}) {
		t.Fatalf("obsolete: %v", got)
	}
}

// TestF5_AFlipOnTheWayToMemoryIsReadAgain: the second look finds the bytes
// intact, so nothing was damaged and the last edit was not torn.
func TestF5_AFlipOnTheWayToMemoryIsReadAgain(t *testing.T) {
	disk := newDisk(t)
	if err := CreateFormat(disk, testDir, Format{VBuckets: 16, KVStores: 16, Secret: testSecret, Created: epoch}); err != nil {
		t.Fatal(err)
	}
	l := mustCreate(t, disk, "")
	want := mustApply(t, l, "next 9")
	for _, name := range []string{"FORMAT", "CURRENT", "MANIFEST-*"} {
		flips := faultfs.Wrap(disk)
		flips.Add(faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpReadAt}, Name: name, Fault: faultfs.BitFlip, From: 1, Once: true})
		_, formatErr := ReadFormat(flips, testDir)
		_, got, err := Open(flips, testDir, testSecret)
		if err != nil || formatErr != nil || dump(got) != dump(want) || flips.Count(name, vfs.OpReadAt) != 2 {
			t.Fatalf("%s: %v, %v, %d reads\n%s", name, formatErr, err, flips.Count(name, vfs.OpReadAt), dump(got))
		}
	}
}
