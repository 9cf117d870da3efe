package manifest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// held stops the first call of a kind on a file, until it is let go.
type held struct {
	met, let chan struct{}
	once     sync.Once
}

// hold has the disk stop at the first such call. More is asked about all calls.
func hold(disk *memfs.FS, kind vfs.OpKind, name string, more func(vfs.Op) error) *held {
	h := &held{met: make(chan struct{}), let: make(chan struct{})}
	disk.SetHook(func(op vfs.Op) error {
		if op.Kind == kind && vfs.MatchName(name, op.Name) {
			h.once.Do(func() {
				close(h.met)
				<-h.let
			})
		}
		if more != nil {
			return more(op)
		}
		return nil
	})
	return h
}

// TestR26_ApplyIsNotHeldUpByASnapshot: while each call of the snapshot hangs,
// edits, promises and looks at the state go on in the old file, which stays in
// force; then the new one has them all.
func TestR26_ApplyIsNotHeldUpByASnapshot(t *testing.T) {
	for _, c := range []struct {
		kind vfs.OpKind
		name string
	}{{vfs.OpCreate, "MANIFEST-000002"}, {vfs.OpWriteAt, "MANIFEST-000002"}, {vfs.OpSync, "MANIFEST-000002"}, {vfs.OpSyncDir, "data"}} {
		t.Run(c.kind.String(), func(t *testing.T) {
			disk := newDisk(t)
			l := mustCreate(t, disk, "")
			grow(l)
			h := hold(disk, c.kind, c.name, nil)
			mustApply(t, l, "next 5")
			<-h.met
			grow(l) // and still there is only one rotation
			for i := range 6 {
				want := mustApply(t, l, fmt.Sprintf("add %d gc 4096; next %d", l.NextFileNumber(), 13+i))
				if got := l.State(); dump(got) != dump(want) || got.Manifest != 1 {
					t.Fatalf("manifest %d\n%s", got.Manifest, dump(got))
				}
				if err := l.Promise(); err != nil {
					t.Fatal(err)
				}
				for _, damage := range memfs.Damages() {
					if _, got := mustOpen(t, disk.CrashCopy(int64(i), damage)); dump(got) != dump(want) || got.Manifest != 1 {
						t.Fatalf("%v: manifest %d\n%s", damage, got.Manifest, dump(got))
					}
				}
			}
			close(h.let)
			settle(l)
			st := l.State()
			if st.Manifest != 2 || len(st.Segments) != 6 || st.NextSeqno != 18 || listDisk(t, disk) != "CURRENT MANIFEST-000002" {
				t.Fatalf("manifest %d, %s\n%s", st.Manifest, listDisk(t, disk), dump(st))
			}
			for _, damage := range memfs.Damages() {
				if _, got := mustOpen(t, disk.CrashCopy(1, damage)); dump(got) != dump(st) || got.Manifest != 2 {
					t.Fatalf("%v: manifest %d\n%swant\n%s", damage, got.Manifest, dump(got), dump(st))
				}
			}
			// It goes on behind the tail.
			want := mustApply(t, l, "drop 5; next 40")
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if _, got := mustOpen(t, disk); dump(got) != dump(want) {
				t.Fatalf("got\n%swant\n%s", dump(got), dump(want))
			}
		})
	}
}

// TestR26_CloseWaitsForARotation, and after it nothing touches the disk.
func TestR26_CloseWaitsForARotation(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	grow(l)
	h := hold(disk, vfs.OpSync, "MANIFEST-000002", nil)
	mustApply(t, l, "next 5")
	<-h.met
	mustApply(t, l, "next 6")
	closed := make(chan error, 2)
	for range 2 {
		go func() { closed <- l.Close() }()
	}
	for { // until Close has begun
		if err := l.Promise(); errors.Is(err, ErrClosed) {
			break
		}
	}
	if _, err := l.Apply(&Edit{NextSeqno: 7}); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	select {
	case <-closed:
		t.Fatal("Close returned under a rotation")
	default:
	}
	close(h.let)
	for range 2 {
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	}
	got, calls := listDisk(t, disk), disk.Calls()
	if got != "CURRENT MANIFEST-000002" || l.rotation != nil {
		t.Fatalf("left %s", got)
	}
	if _, got := mustOpen(t, disk.CrashCopy(1, memfs.DropAll)); got.NextSeqno != 6 {
		t.Fatal(dump(got))
	}
	if disk.Calls() != calls {
		t.Fatal("calls after Close")
	}
}

// TestR26_ATailPromisesOnlyItsSnapshot: its records are written at once, so none
// was synced before the next. CURRENT vouches for all.
func TestR26_ATailPromisesOnlyItsSnapshot(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	grow(l)
	h := hold(disk, vfs.OpCreate, "MANIFEST-000002", nil)
	mustApply(t, l, "next 5")
	<-h.met
	for i := range 3 {
		mustApply(t, l, fmt.Sprintf("next %d", 6+i))
	}
	close(h.let)
	settle(l)
	b := readDisk(t, disk, Name(2))
	var promises, starts []int64
	for off := int64(headerBytes); off < int64(len(b)); {
		edit, prevEnd, ok := recordAt(b, off, testSecret, 2)
		if !ok {
			t.Fatalf("record at %d", off)
		}
		promises, starts = append(promises, prevEnd), append(starts, off)
		off += recordHeaderBytes + int64(len(edit))
	}
	if want := []int64{headerBytes, starts[1], starts[1], starts[1]}; !slices.Equal(promises, want) {
		t.Fatalf("records at %d promise %d, want %d", starts, promises, want)
	}
	c, err := decodeCurrent("CURRENT", readDisk(t, disk, CurrentName), testSecret)
	if err != nil || c.synced != int64(len(b)) {
		t.Fatalf("CURRENT says %d of %d bytes: %v", c.synced, len(b), err)
	}
}

// TestM2_TheTailIsDurableBeforeCurrent, as the snapshot is, and an edit made
// meanwhile goes to the old file.
func TestM2_TheTailIsDurableBeforeCurrent(t *testing.T) {
	disk := newDisk(t)
	l := inline(mustCreate(t, disk, ""))
	grow(l)
	var calls []string
	meanwhile := true
	disk.SetHook(func(op vfs.Op) error {
		if slices.Contains(mutating, op.Kind) {
			calls = append(calls, fmt.Sprintf("%s %s", op.Kind, strings.TrimPrefix(op.Name, "data/")))
		}
		if op.Kind == vfs.OpSync && op.Name == "data/MANIFEST-000002" && meanwhile {
			meanwhile = false
			mustApply(t, l, "next 6")
		}
		return nil
	})
	l.run = func(work func()) {
		calls = nil
		work()
	}
	mustApply(t, l, "next 5")
	want := `Create MANIFEST-000002
WriteAt MANIFEST-000002
Sync MANIFEST-000002
WriteAt MANIFEST-000001
Sync MANIFEST-000001
SyncDir data
WriteAt MANIFEST-000002
Sync MANIFEST-000002
Remove CURRENT.tmp
Create CURRENT.tmp
WriteAt CURRENT.tmp
Sync CURRENT.tmp
Rename CURRENT.tmp
SyncDir data
Remove MANIFEST-000001`
	if got := strings.Join(calls, "\n"); got != want {
		t.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

// TestM4_EveryFlippedBitOfATailIsNoticed: CURRENT vouches for it.
func TestM4_EveryFlippedBitOfATailIsNoticed(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "add 2 log 4096; replay 2 4096 1")
	grow(l)
	h := hold(disk, vfs.OpWriteAt, "MANIFEST-000004", nil)
	mustApply(t, l, "next 5")
	<-h.met
	mustApply(t, l, "next 6")
	want := mustApply(t, l, "dead 2 3,4; clear 2")
	close(h.let)
	settle(l)
	b := readDisk(t, disk, Name(4))
	c, err := decodeCurrent("CURRENT", readDisk(t, disk, CurrentName), testSecret)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := replay("m", b, testSecret, 4, c.synced); err != nil || logical(r.state) != logical(want) {
		t.Fatalf("%v\n%s", err, dump(r.state))
	}
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		var ce *CorruptError
		if _, err := replay("m", b, testSecret, 4, c.synced); !errors.As(err, &ce) || ce.Offset > int64(bit/8) {
			t.Fatalf("bit %d of byte %d: %v", bit%8, bit/8, err)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
}

// TestR26_F1_FailedRotationFallsBack: whatever fails before CURRENT is touched,
// the old manifest has every edit, is used on, and is not replaced again at once.
func TestR26_F1_FailedRotationFallsBack(t *testing.T) {
	for _, c := range []struct {
		name string
		rule faultfs.Rule
	}{
		{"creation", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpCreate}, Name: "MANIFEST-000002"}},
		{"write", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "MANIFEST-000002"}},
		{"half a write", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "MANIFEST-000002", Fault: faultfs.ShortWrite}},
		{"sync", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync}, Name: "MANIFEST-000002", Fault: faultfs.SyncDrop}},
		{"sync of the directory", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSyncDir}}},
		{"write of the tail", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "MANIFEST-000002", From: 2}},
		{"half a write of the tail", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "MANIFEST-000002", From: 2, Fault: faultfs.ShortWrite}},
		{"sync of the tail", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync}, Name: "MANIFEST-000002", From: 2, Fault: faultfs.SyncDrop}},
		{"creation of CURRENT.tmp", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpCreate}, Name: "CURRENT.tmp"}},
		{"write of CURRENT.tmp", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpWriteAt}, Name: "CURRENT.tmp"}},
		{"sync of CURRENT.tmp", faultfs.Rule{Kinds: []vfs.OpKind{vfs.OpSync}, Name: "CURRENT.tmp"}},
	} {
		for _, fault := range []faultfs.Fault{faultfs.EIO, faultfs.ENOSPC} {
			t.Run(fmt.Sprintf("%s/%v", c.name, fault), func(t *testing.T) {
				disk := newDisk(t)
				faulty := faultfs.Wrap(disk)
				l := mustCreate(t, faulty, "")
				rule := c.rule
				if rule.Once = true; rule.Fault == faultfs.None {
					rule.Fault = fault
				}
				faulty.Add(rule)
				grow(l)
				h := hold(disk, vfs.OpRemove, "nothing", nil)
				if c.rule.Name != "MANIFEST-000002" || c.rule.From == 2 {
					h = hold(disk, vfs.OpSync, "MANIFEST-000002", nil)
				} else {
					close(h.met)
				}
				mustApply(t, l, "next 5")
				<-h.met
				want := mustApply(t, l, "clear 3") // the tail
				close(h.let)
				settle(l)
				if faulty.Injected() != 1 {
					t.Fatalf("%d faults", faulty.Injected())
				}
				if st := l.State(); dump(st) != dump(want) || st.Manifest != 1 || l.Err() != nil || listDisk(t, disk) != "CURRENT MANIFEST-000001" {
					t.Fatalf("manifest %d, %v, %s\n%s", st.Manifest, l.Err(), listDisk(t, disk), dump(st))
				}
				creations := disk.Count("MANIFEST-*", vfs.OpCreate)
				want = mustApply(t, l, "next 6")
				settle(l)
				if disk.Count("MANIFEST-*", vfs.OpCreate) != creations {
					t.Fatal("tried again at the next edit")
				}
				if _, got := mustOpen(t, disk.CrashCopy(1, memfs.DropAll)); dump(got) != dump(want) {
					t.Fatalf("got\n%swant\n%s", dump(got), dump(want))
				}
				grow(l)
				want = mustApply(t, l, "next 7")
				settle(l)
				if st := l.State(); st.Manifest == 1 || listDisk(t, disk) != "CURRENT "+Name(st.Manifest) {
					t.Fatalf("never replaced: %s", listDisk(t, disk))
				}
				if _, got := mustOpen(t, disk.CrashCopy(1, memfs.DropAll)); logical(got) != logical(want) {
					t.Fatalf("got\n%swant\n%s", dump(got), dump(want))
				}
			})
		}
	}
}

// TestM3_PoisonedUnderARotation: an edit that failed half-way may be in the old
// manifest, so the new one, which may not have it, must not come into force.
func TestM3_PoisonedUnderARotation(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	grow(l)
	fail := false
	h := hold(disk, vfs.OpWriteAt, "MANIFEST-000002", func(op vfs.Op) error {
		if fail && op.Kind == vfs.OpSync && op.Name == "data/MANIFEST-000001" {
			return errEIO
		}
		return nil
	})
	mustApply(t, l, "next 5")
	<-h.met
	acked := mustApply(t, l, "next 6")
	fail = true
	if _, err := l.Apply(&Edit{NextSeqno: 7}); !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	current := readDisk(t, disk, CurrentName)
	close(h.let)
	settle(l)
	if !slices.Equal(readDisk(t, disk, CurrentName), current) || !strings.Contains(listDisk(t, disk), Name(1)) {
		t.Fatalf("CURRENT %q, %s", readDisk(t, disk, CurrentName), listDisk(t, disk))
	}
	if _, err := l.Apply(&Edit{NextSeqno: 8}); !errors.Is(err, ErrPoisoned) || !errors.Is(err, errEIO) {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, damage := range memfs.Damages() {
		_, st := mustOpen(t, disk.CrashCopy(1, damage))
		if st.NextSeqno != 6 && st.NextSeqno != 7 || st.Manifest != 1 {
			t.Fatalf("manifest %d\n%safter\n%s", st.Manifest, dump(st), dump(acked))
		}
		names, _ := disk.List(testDir)
		st.NextFileNumber = max(st.NextFileNumber, l.NextFileNumber())
		if got := Obsolete(names, st); !slices.Equal(got, []string{Name(2)}) {
			t.Fatalf("obsolete: %v", got)
		}
	}
}

// TestR26_ManyAtOnce edits from several goroutines, over many rotations, on a
// disk that fails or crashes at some call: every acknowledged edit is there, and
// at most the one under way besides.
func TestR26_ManyAtOnce(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	rotations := 0
	for round := range rounds {
		rnd := rand.New(rand.NewPCG(7, uint64(round)))
		disk := newDisk(t)
		l := mustCreate(t, disk, "")
		switch at := 1 + rnd.Int64N(400); round % 3 {
		case 1:
			disk.CrashAt(disk.Calls()+at, memfs.Within)
		case 2:
			disk.SetHook(func(op vfs.Op) error {
				if op.N >= at && op.Kind != vfs.OpReadAt {
					return errEIO
				}
				return nil
			})
		}
		var acked [4]entry.Seqno
		var wg sync.WaitGroup
		for kv := range acked {
			wg.Go(func() {
				for s := entry.Seqno(1); s <= 40; s++ {
					if s%4 == 0 {
						grow(l)
					}
					if _, err := l.Apply(&Edit{Flushed: []Flushed{{KVStore: uint16(kv), Seqno: s}}}); err != nil {
						return
					}
					acked[kv] = s
					if got := l.State(); got.FlushedSeqno(uint16(kv)) != s {
						t.Errorf("kvstore %d: %d in the state, want %d", kv, got.FlushedSeqno(uint16(kv)), s)
					}
					if s%8 == 0 {
						_ = l.Promise()
					}
				}
			})
		}
		wg.Wait()
		last := l.State()
		err := l.Close()
		if _, crashed := disk.Crashed(); err != nil && !crashed && round%3 != 2 {
			t.Fatal(err)
		}
		rotations += disk.Count("CURRENT.tmp", vfs.OpRename)
		disk.SetHook(nil)
		for _, damage := range memfs.Damages() {
			_, st, err := Open(disk.CrashCopy(int64(round), damage), testDir, testSecret)
			if err != nil {
				t.Fatalf("round %d, %v: %v", round, damage, err)
			}
			for kv, s := range acked {
				if got := st.FlushedSeqno(uint16(kv)); got != s && got != s+1 {
					t.Fatalf("round %d, %v: kvstore %d at %d, acknowledged %d", round, damage, kv, got, s)
				}
			}
			if round%3 == 0 && st.NextFileNumber < last.NextFileNumber {
				t.Fatalf("next file %d, want %d", st.NextFileNumber, last.NextFileNumber)
			}
		}
	}
	if rotations < rounds {
		t.Errorf("only %d rotations", rotations)
	}
	t.Logf("%d rotations", rotations)
}

// TestM7_ObsoleteKnowsAbandonedRotations: a new manifest that a crash left
// behind is named as soon as its number is used up, and never the current one.
func TestM7_ObsoleteKnowsAbandonedRotations(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	grow(l)
	h := hold(disk, vfs.OpSync, "MANIFEST-000002", nil)
	mustApply(t, l, "next 5")
	<-h.met
	left := disk.CrashCopy(1, memfs.KeepAll)
	close(h.let)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l, _ = mustOpen(t, left)
	st := mustApply(t, l, "")
	if st.Manifest <= 2 {
		t.Fatalf("number %d again (M6)", st.Manifest)
	}
	names, err := left.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	if got := Obsolete(names, st); !slices.Equal(got, []string{Name(2)}) {
		t.Fatalf("obsolete of %v: %v", names, got)
	}
	if err := left.Remove(path.Join(testDir, Name(2))); err != nil {
		t.Fatal(err)
	}
	if _, got := mustOpen(t, left); dump(got) != dump(st) {
		t.Fatalf("got\n%swant\n%s", dump(got), dump(st))
	}
}
