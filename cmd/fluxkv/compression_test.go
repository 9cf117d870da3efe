package main

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompression writes documents that compress and others that do not, with
// --compression and without it, kills the server, and reads everything back with
// the other setting each time.
func TestCompression(t *testing.T) {
	binary := buildServer(t)
	ctl := filepath.Join(t.TempDir(), "fluxctl")
	if out, err := exec.Command("go", "build", "-o", ctl, "../fluxctl").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	dir := filepath.Join(t.TempDir(), "data")
	want := map[string]string{}
	rnd := rand.New(rand.NewPCG(1, 2))
	value := func(n int, repeats bool) string {
		var b strings.Builder
		for i := 0; b.Len() < n; i++ {
			if repeats {
				fmt.Fprintf(&b, `{"field": %d, "of": "a document"},`, i%10)
			} else {
				b.WriteByte(byte(rnd.Uint32()))
			}
		}
		return b.String()[:n]
	}
	write := func(cl *client, from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			key := fmt.Sprint("key", i)
			want[key] = value([]int{20, 300, 1000, 5000}[i%4], i%8 < 4)
			if err := cl.set(key, want[key]); err != nil {
				t.Fatal(err)
			}
		}
	}
	read := func(cl *client) {
		t.Helper()
		for key, v := range want {
			if got, err := cl.get(key); err != nil || got != v {
				t.Fatalf("%s: %d bytes, %v; want %d", key, len(got), err, len(v))
			}
		}
	}
	for round, flags := range [][]string{{"--compression", "snappy"}, nil, {"--compression", "snappy", "--inline-limit", "0"}, {"--compression", "none"}} {
		p := start(t, binary, dir, flags...)
		cl := p.connect()
		read(cl)
		write(cl, 200*round, 200*round+400)
		read(cl)
		s, err := cl.stats()
		if err != nil {
			t.Fatal(err)
		}
		tried, kept, raw, stored := s["compression_tried_documents"], s["compression_kept_documents"], s["compression_raw_bytes"], s["compression_stored_bytes"]
		if round%2 == 0 {
			// Half of what has 300 bytes or more repeats itself.
			if tried != 300 || kept != 150 || raw != 50*(300+1000+5000) || stored == 0 || stored > raw/2 {
				t.Errorf("round %d: %d of %d documents, %d bytes in %d", round, kept, tried, raw, stored)
			}
		} else if tried+kept+raw+stored != 0 {
			t.Errorf("round %d: compressed %d documents without being asked", round, tried)
		}
		if round == 1 {
			p.stop() // or by a kill
		} else {
			p.kill()
		}
	}
	p := start(t, binary, dir)
	read(p.connect())
	p.stop()
	if out, err := exec.Command(ctl, "verify", dir).CombinedOutput(); err != nil {
		t.Errorf("fluxctl verify: %v\n%s", err, out)
	}
}
