package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestBytesInto(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64 // 0: refused
	}{
		{"1GB", 1e9}, {"64MiB", 64 << 20}, {"3kB", 3000}, {"12", 12},
		{"", 0}, {"0", 0}, {"-1", 0}, {"GB", 0}, {"1TB", 0}, {"1.5GB", 0}, {"9999999999GB", 0},
	} {
		var n int64
		if err := bytesInto(&n)(c.text); n != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%q: %d, %v, want %d", c.text, n, err, c.want)
		}
	}
}

func TestRowHasMedians(t *testing.T) {
	var out bytes.Buffer
	runs := []figures{
		{AckSeconds: 1, SettledSeconds: 2, CPUSeconds: 3, DeviceBytes: 4e6, DiskBytes: 150, Written: map[string]int64{"log": 1e6, "flush": 5e5}},
		{AckSeconds: 9, SettledSeconds: 9, CPUSeconds: 9, DeviceBytes: 9e6, DiskBytes: 900, Written: map[string]int64{"log": 9e6, "flush": 9e5}},
		{AckSeconds: 2, SettledSeconds: 4, CPUSeconds: 1, DeviceBytes: 2e6, DiskBytes: 130, Written: map[string]int64{"log": 2e6, "flush": 1e5}},
	}
	row(&out, "fluxkv", 8, 1000, 100, runs)
	for _, want := range []string{"| 8 | fluxkv | 500,", "| 250,", "| 2.00, 4.00 (2.00 9.00 4.00) | 3.00 | 4 |", "| 1.500 |", "flush 0.5, log 2.0 |"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, &out)
		}
	}
}

// TestLoad drives a load of each engine to its end, and checks that a store
// without the documents has no figures.
func TestLoad(t *testing.T) {
	for _, engine := range engines {
		w := writing{
			load:   load{dir: t.TempDir(), documents: 20000, keyBytes: compareKeyBytes, valueSize: 100},
			engine: engine, writers: 3, batch: 128, memory: 2 << 20,
		}
		f, err := w.run()
		if err != nil {
			t.Fatal(err)
		}
		bytes := int64(w.documents) * int64(w.keyBytes+w.valueSize)
		if f.Written["flush"] < bytes || f.Written["log"] < bytes || f.DiskBytes < bytes || f.AckSeconds <= 0 || f.SettledSeconds < f.AckSeconds {
			t.Errorf("%s: %+v", engine, f)
		}
		w.dir = t.TempDir()
		s, err := w.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.check(s); err == nil || !strings.Contains(err.Error(), "is missing") {
			t.Errorf("an empty store of %s has all documents: %v", engine, err)
		}
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}
}
