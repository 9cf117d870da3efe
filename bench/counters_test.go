package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// diskstats is what Linux 6.18 shows, and one line as before 4.18.
const diskstats = `   7       0 loop0 747429 7 14279988 804277 170885 86958 9885068 218281 0 224884 1154603 0 0 0 0 91899 132043
 254       0 vda 117796440 233885 2061169314 13628455 15028703 756705 1933339139 4438198 1 5775288 19468676 1054929 44 2162311824 398190 5523867 1003832
 254       1 vda1 12 3 100 7 6 5 40 8 0 9 10
 253       0 zram0 0 0 0
   8       0 sda 1 2 x 4 5 6 7 8 0 0 0
`

func TestDiskstats(t *testing.T) {
	for _, c := range []struct {
		major, minor uint32
		want         DeviceIO
		trouble      string
	}{
		{254, 0, DeviceIO{Reads: 117796440, ReadsMerged: 233885, ReadBytes: 2061169314 * 512, Writes: 15028703, WriteBytes: 1933339139 * 512}, ""},
		{254, 1, DeviceIO{Reads: 12, ReadsMerged: 3, ReadBytes: 51200, Writes: 6, WriteBytes: 20480}, ""},
		{25, 40, DeviceIO{}, "device 25:40 is not in"},
		{253, 0, DeviceIO{}, "device 253:0 is not in"}, // a line that is too short
		{8, 0, DeviceIO{}, `"x"`},
	} {
		got, err := parseDiskstats([]byte(diskstats), c.major, c.minor)
		if got != c.want || (err == nil) != (c.trouble == "") || err != nil && !strings.Contains(err.Error(), c.trouble) {
			t.Errorf("%d:%d: %+v, %v; want %+v, %q", c.major, c.minor, got, err, c.want, c.trouble)
		}
	}
	d := DeviceIO{Reads: 5, ReadsMerged: 4, ReadBytes: 3, Writes: 2, WriteBytes: 1}
	if got := (DeviceIO{Reads: 15, ReadsMerged: 24, ReadBytes: 33, Writes: 42, WriteBytes: 51}).Sub(d); got != (DeviceIO{Reads: 10, ReadsMerged: 20, ReadBytes: 30, Writes: 40, WriteBytes: 50}) {
		t.Errorf("difference %+v", got)
	}
}

func TestColonNumber(t *testing.T) {
	const status = "Name:\tfluxkv\nVmHWM:\t  123456 kB\nVmRSS:\t   98765 kB\nThreads:\t7\nrchar: 5\nread_bytes: 4096\ncancelled_write_bytes: 1\nwrite_bytes: x\n"
	for _, c := range []struct {
		name string
		want int64 // -1: an error
	}{
		{"VmHWM", 123456}, {"VmRSS", 98765}, {"Threads", 7}, {"read_bytes", 4096}, {"write_bytes", -1}, {"bytes", -1}, {"Vm", -1}, {"Name", -1},
	} {
		if n, err := colonNumber([]byte(status), c.name); (err != nil) != (c.want < 0) || err == nil && n != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, n, err, c.want)
		}
	}
}

// TestMemoryOfThisProcess takes and touches memory.
func TestMemoryOfThisProcess(t *testing.T) {
	before, err := ProcessMemory(os.Getpid())
	if err != nil || before.Resident < 1<<20 || before.Peak < before.Resident {
		t.Fatalf("%+v, %v", before, err)
	}
	b := make([]byte, 64<<20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	// The kernel counts pages by processor and adds them up late.
	after, err := ProcessMemory(os.Getpid())
	if err != nil || after.Peak < 60<<20 || after.Peak < before.Peak {
		t.Errorf("%+v with 64 MiB, %+v before, %v", after, before, err)
	}
	b[0] = 2
	if _, err := ProcessMemory(1 << 30); err == nil {
		t.Error("no such process: no error")
	}
}

func TestDropCached(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("document", 1000)
	for _, name := range []string{"a", "below/b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/nonexistent", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := DropCached(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "below/b"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if err := DropCached(filepath.Join(dir, "none")); err == nil {
		t.Error("no such directory: no error")
	}
}
