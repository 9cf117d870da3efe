package manifest

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	"fluxkv/internal/entry"
	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

const testDir = "data"

func newDisk(t testing.TB) *memfs.FS {
	t.Helper()
	disk := memfs.New()
	if err := disk.MkdirAll(testDir); err != nil {
		t.Fatal(err)
	}
	return disk
}

func mustCreate(t testing.TB, fs vfs.FS, initial string) *Log {
	t.Helper()
	l, err := Create(fs, testDir, testSecret, parseEdit(t, initial))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustOpen(t testing.TB, fs vfs.FS) (*Log, State) {
	t.Helper()
	l, st, err := Open(fs, testDir, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	return l, st
}

func mustApply(t testing.TB, l *Log, text string) State {
	t.Helper()
	e := parseEdit(t, text)
	st, err := l.Apply(&e)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return st
}

// grow makes the next Apply start a rotation, as if the file had grown.
func grow(l *Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rotateAt = l.end
}

// settle waits for a rotation under way.
func settle(l *Log) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.rotation != nil {
		l.rotated.Wait()
	}
}

// inline makes rotations run within the Apply that starts one, behind its edit.
func inline(l *Log) *Log {
	l.run = func(work func()) { work() }
	return l
}

func readDisk(t testing.TB, fs vfs.FS, base string) []byte {
	t.Helper()
	b, err := readWhole(fs, path.Join(testDir, base), manifestBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// writeDisk replaces a file's content.
func writeDisk(t testing.TB, fs vfs.FS, base string, b []byte) {
	t.Helper()
	name := path.Join(testDir, base)
	if err := fs.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	f, err := fs.Create(name, vfs.OpenOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > 0 {
		if _, err := f.WriteAt(b, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.Sync(), f.Close(), fs.SyncDir(testDir)); err != nil {
		t.Fatal(err)
	}
}

func listDisk(t testing.TB, fs vfs.FS) string {
	t.Helper()
	names, err := fs.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(names, " ")
}

func TestLifeOfAManifest(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "next 5")
	if got := listDisk(t, disk); got != "CURRENT MANIFEST-000001" {
		t.Fatalf("after Create: %s", got)
	}
	mustApply(t, l, "add 2 log 4096; replay 2 4096 5")
	want := mustApply(t, l, "add 3 log 4096; seal 2 end=4096 last=9 file=4096; next 10; clear 7; pending 99")
	if got := l.State(); dump(got) != dump(want) {
		t.Fatalf("State says\n%s", dump(got))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}
	if _, err := l.Apply(&Edit{}); !errors.Is(err, ErrClosed) {
		t.Fatalf("Apply after Close: %v", err)
	}
	if err := l.Promise(); !errors.Is(err, ErrClosed) {
		t.Fatalf("Promise after Close: %v", err)
	}

	l, got := mustOpen(t, disk)
	if dump(got) != dump(want) || got.Manifest != 1 {
		t.Fatalf("reopened as %d\n%swant\n%s", got.Manifest, dump(got), dump(want))
	}
	after := mustApply(t, l, "next 12")
	if after.Manifest == 1 || listDisk(t, disk) != "CURRENT "+Name(after.Manifest) {
		t.Fatalf("the first Apply after Open left %s", listDisk(t, disk))
	}
	again := mustApply(t, l, "next 13")
	if again.Manifest != after.Manifest {
		t.Fatal("the second Apply started another file")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, got = mustOpen(t, disk); dump(got) != dump(again) {
		t.Fatalf("reopened\n%swant\n%s", dump(got), dump(again))
	}
}

func TestCreateRefusesAStore(t *testing.T) {
	disk := newDisk(t)
	mustCreate(t, disk, "").Close()
	if _, err := Create(disk, testDir, testSecret, Edit{}); !errors.Is(err, os.ErrExist) {
		t.Fatalf("second Create: %v", err)
	}
	if err := CreateFormat(disk, testDir, Format{}); err != nil {
		t.Fatal(err)
	}
	if err := CreateFormat(disk, testDir, Format{}); !errors.Is(err, os.ErrExist) {
		t.Fatalf("second CreateFormat: %v", err)
	}
	if got := disk.Count("MANIFEST-*", vfs.OpCreate); got != 1 {
		t.Fatalf("%d manifests were created", got)
	}
}

func TestCreateStepsOverLeftovers(t *testing.T) {
	disk := newDisk(t)
	writeDisk(t, disk, "MANIFEST-000004", []byte("cut short"))
	writeDisk(t, disk, "CURRENT.tmp", []byte("cut short"))
	writeDisk(t, disk, "FORMAT.tmp", []byte("cut short"))
	f, err := NewFormat(16, 16, epoch)
	if err != nil {
		t.Fatal(err)
	}
	if err := CreateFormat(disk, testDir, f); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadFormat(disk, testDir); err != nil || got != f {
		t.Fatalf("%+v %v", got, err)
	}
	l := mustCreate(t, disk, "")
	if st := l.State(); st.Manifest != 5 || l.NextFileNumber() != 6 {
		t.Fatalf("manifest %d", st.Manifest)
	}
}

func TestFindStage(t *testing.T) {
	for _, c := range []struct {
		files string
		want  Stage
		err   string
	}{
		{"", StageNone, ""},
		{"LOCK FORMAT.tmp notes.txt log", StageNone, ""},
		{"FORMAT LOCK", StageUnfinished, ""},
		{"FORMAT MANIFEST-000001 CURRENT.tmp", StageUnfinished, ""},
		{"FORMAT MANIFEST-000001 CURRENT", StageCreated, ""},
		{"FORMAT CURRENT", StageCreated, ""},
		{"CURRENT", StageNone, "data/FORMAT at offset 0: missing, but CURRENT exists"},
		{"MANIFEST-000009", StageNone, "missing, but MANIFEST-000009 exists"},
	} {
		t.Run(c.files, func(t *testing.T) {
			disk := newDisk(t)
			for _, name := range strings.Fields(c.files) {
				writeDisk(t, disk, name, nil)
			}
			got, err := FindStage(disk, testDir)
			if c.err == "" && (err != nil || got != c.want) {
				t.Fatalf("%v %v", got, err)
			}
			if c.err != "" && (!errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestRotationBySize(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	first := l.State().Manifest
	if l.rotateAt != rotateBytesMin {
		t.Fatalf("an empty store replaces its manifest at %d bytes", l.rotateAt)
	}
	// Grow the state so that four snapshots are the larger bound.
	var big strings.Builder
	for id := 100; id < 20100; id++ {
		fmt.Fprintf(&big, "add %d gc 4096\n", id)
	}
	mustApply(t, l, big.String())
	if got := l.State().Manifest; got != first {
		t.Fatal("replaced too early")
	}
	grow(l)
	mustApply(t, l, "next 3")
	settle(l)
	st := l.State()
	if st.Manifest == first {
		t.Fatal("not replaced")
	}
	if want := rotateSnapshotsMin * l.end; l.rotateAt != want || want <= rotateBytesMin {
		t.Fatalf("a snapshot of %d bytes is replaced at %d", l.end, l.rotateAt)
	}
	if got := listDisk(t, disk); got != "CURRENT "+Name(st.Manifest) {
		t.Fatalf("left %s", got)
	}
	l.Close()
	if _, got := mustOpen(t, disk); dump(got) != dump(st) {
		t.Fatal("the new manifest holds another state")
	}
}

func TestNumbersFromManyGoroutines(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	var mu sync.Mutex
	seen := map[uint64]bool{}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				n := l.NextFileNumber()
				if g == 0 {
					l.SeenFile(n + 3)
				}
				mu.Lock()
				if seen[n] {
					t.Errorf("%d handed out twice", n)
				}
				seen[n] = true
				mu.Unlock()
				if i%20 == 0 {
					st, err := l.Apply(&Edit{AddSegments: []AddSegment{{ID: entry.SegmentID(n), Kind: SegmentGC, Size: 1}}})
					if err != nil || st.NextFileNumber <= n {
						t.Errorf("%v %d", err, st.NextFileNumber)
					}
				}
			}
		})
	}
	wg.Wait()
	st := l.State()
	l.Close()
	l, got := mustOpen(t, disk)
	if dump(got) != dump(st) || len(got.Segments) != 40 {
		t.Fatalf("%d segments after reopening", len(got.Segments))
	}
	if n := l.NextFileNumber(); n < st.NextFileNumber {
		t.Fatalf("number %d again", n)
	}
}

// TestCloseOfAPoisonedManifest: the failure was reported by Apply; Close does
// not write.
func TestCloseOfAPoisonedManifest(t *testing.T) {
	disk := newDisk(t)
	l := mustCreate(t, disk, "")
	failNext(disk, vfs.OpSync, "MANIFEST-*", errEIO)
	if _, err := l.Apply(&Edit{NextSeqno: 9}); !errors.Is(err, ErrPoisoned) {
		t.Fatal(err)
	}
	writes := disk.Count("", vfs.OpWriteAt, vfs.OpSync)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := disk.Count("", vfs.OpWriteAt, vfs.OpSync); got != writes {
		t.Fatal("Close wrote to a poisoned manifest")
	}
}
