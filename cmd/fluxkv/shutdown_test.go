package main

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestShutdownKeepsEverything(t *testing.T) {
	binary := buildServer(t)
	for _, c := range []struct {
		name  string
		flags []string
	}{
		{"durable", nil},
		{"not durable", []string{"--durable=false", "--async-window", "10s"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			p := start(t, binary, dir, c.flags...)
			cl := p.connect()
			for i := range 300 {
				if err := cl.set(fmt.Sprint("key", i), fmt.Sprint("value", i)); err != nil {
					t.Fatal(err)
				}
			}
			p.stop()
			p = start(t, binary, dir)
			cl = p.connect()
			for i := range 300 {
				if got, err := cl.get(fmt.Sprint("key", i)); err != nil || got != fmt.Sprint("value", i) {
					t.Fatalf("key%d after the restart: %q, %v", i, got, err)
				}
			}
			p.stop()
		})
	}
}

// TestShutdownUnderLoad signals while writers run: the process ends with
// status 0, and whatever it answered is there.
func TestShutdownUnderLoad(t *testing.T) {
	binary := buildServer(t)
	for _, c := range []struct {
		name    string
		signals int
	}{
		{"one signal drains", 1},
		{"a second signal ends at once", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			p := start(t, binary, dir)
			var wg sync.WaitGroup
			var total atomic.Int64
			last := make([]int, 4) // acknowledged by each writer
			for w := range last {
				wg.Add(1)
				go func() {
					defer wg.Done()
					cl, err := dialClient(p.addr)
					if err != nil {
						t.Error(err)
						return
					}
					defer cl.close()
					for i := 1; cl.set(fmt.Sprint("writer", w), fmt.Sprint(i)) == nil; i++ {
						last[w] = i
						total.Add(1)
					}
				}()
			}
			for total.Load() < 200 {
				select {
				case <-p.done:
					t.Fatalf("the server ended by itself: %v\n%s", p.err, p.text())
				case <-time.After(time.Millisecond):
				}
			}
			for range c.signals {
				p.signal(syscall.SIGTERM)
			}
			status := p.wait()
			wg.Wait()
			if status != 0 && c.signals == 1 {
				t.Errorf("exit status %d, want 0\n%s", status, p.text())
			}
			p = start(t, binary, dir)
			cl := p.connect()
			for w, n := range last {
				got, err := cl.get(fmt.Sprint("writer", w))
				if err != nil || got != fmt.Sprint(n) && got != fmt.Sprint(n+1) {
					t.Errorf("writer %d: acknowledged %d, after the restart %q, %v", w, n, got, err)
				}
			}
			p.stop()
		})
	}
}

// TestShutdownIgnoresIdleAndHalfSentFrames holds connections open that will
// never finish: they must not keep the process alive.
func TestShutdownIgnoresIdleAndHalfSentFrames(t *testing.T) {
	binary := buildServer(t)
	p := start(t, binary, filepath.Join(t.TempDir(), "data"))
	idle, half := p.connect(), p.connect()
	if err := idle.set("key", "value"); err != nil {
		t.Fatal(err)
	}
	if _, err := half.conn.Write([]byte{0x80, 0x01, 0, 3}); err != nil {
		t.Fatal(err)
	}
	p.stop()
}
