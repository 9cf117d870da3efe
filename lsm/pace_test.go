package lsm

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fluxkv/compaction"
	"fluxkv/internal/vfs/memfs"
)

func TestSpaceRate(t *testing.T) {
	var c spaceControl
	if got := c.rate(9); got != 0 {
		t.Errorf("%d bytes/s before the first collection", got)
	}
	start := time.Unix(1000, 0)
	c.collected(start, start.Add(time.Second), 100*mib, 60*mib)
	for _, x := range []struct{ pressure, want float64 }{
		{0, 0}, {1, 0}, {1.0001, 399.5}, {1.025, 250}, {1.05, 100}, {1.1, 75}, {1.15, 50}, {7, 50},
	} {
		if got := float64(c.rate(x.pressure)) / mib; got < x.want-1 || got > x.want+1 {
			t.Errorf("pressure %v: %v MiB/s, want %v", x.pressure, got, x.want)
		}
	}
	last := c.rate(1.0001)
	for p := 1.001; p < 2; p += 0.001 {
		if r := c.rate(p); r > last || r < paceMin {
			t.Fatalf("pressure %v: %d after %d", p, r, last)
		} else {
			last = r
		}
	}
	// Collections that win nothing do not stop writers.
	c = spaceControl{}
	c.collected(start, start.Add(time.Second), mib, 90*mib)
	if got := c.rate(2); got != 30*mib {
		t.Errorf("%d bytes/s beside collections that write 90 MiB/s", got)
	}
	c = spaceControl{}
	c.collected(start, start, 0, 0)
	if got := c.rate(2); got != paceMin {
		t.Errorf("%d bytes/s beside collections that do nothing", got)
	}
}

// TestG10_SpaceIsHeld: writers that could be faster than collections end up just
// as fast, files stay near the target, and the rate does not swing.
func TestG10_SpaceIsHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		live := rapid.Float64Range(50, 100_000).Draw(t, "live MiB")
		fast := rapid.Float64Range(20, 2000).Draw(t, "writers MiB/s")
		collects := rapid.Float64Range(40, 400).Draw(t, "collections read MiB/s")
		output := min(128, rapid.Float64Range(0.002, 0.01).Draw(t, "output, of live")*live)
		target := rapid.Float64Range(1.3, 2).Draw(t, "space amp")
		var c spaceControl
		now := time.Unix(1000, 0)
		garbage, rate := 0.2*live, 0.0
		room := (target - 1.1) * live
		low, high := 1e9, 0.0
		for i := range 4000 {
			pressure := garbage / room
			if pressure <= 1 {
				rate = 0
				now = now.Add(100 * time.Millisecond)
				garbage += 0.1 * fast
				continue
			}
			rate = float64(c.rate(pressure)) / mib
			// Victims have twice the mean share of garbage.
			share := min(0.9, 2*garbage/(live+garbage))
			read := min(output/(1-share), 16*128)
			took := read / collects
			begun := now
			now = now.Add(time.Duration(took * 1e9))
			won := read * share
			c.collected(begun, now, int64(won*mib), int64((read-won)*mib))
			writes := fast
			if rate > 0 {
				writes = min(writes, rate)
			}
			garbage += writes*took - won
			if i > 2000 && writes < fast {
				low, high = min(low, pressure), max(high, pressure)
			}
		}
		if limit := max(1.2, 1+3*output/room+2*fast*0.1/room); high > limit {
			t.Fatalf("pressure between %.3f and %.3f, limit %.3f; %+v, room %v", low, high, limit, c, room)
		}
	})
}

func TestPacer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pacer
		rate := rapid.Int64Range(paceMin, 1<<30).Draw(t, "rate")
		p.set(rate)
		start := p.at
		now, taken, largest := start, int64(0), int64(0)
		for range 200 {
			n := rapid.Int64Range(1, 4*mib).Draw(t, "bytes")
			for tries := 0; ; tries++ {
				pause := p.take(n, now)
				if pause == 0 {
					break
				}
				if pause < paceSleepMin || pause > paceSleepMax || tries > 1000 {
					t.Fatalf("pause %v at try %d", pause, tries)
				}
				now = now.Add(pause)
			}
			taken, largest = taken+n, max(largest, n)
			now = now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "ms")) * time.Millisecond)
			if most := now.Sub(start).Seconds()*float64(rate) + paceBurst.Seconds()*float64(rate) + float64(largest); float64(taken) > most {
				t.Fatalf("%d bytes in %v at %d a second", taken, now.Sub(start), rate)
			}
		}
	})
}

// TestPacerLetsGo: writers that are held up go on when the bound ends, or the store
// does; and then a rate that is set late holds up nobody.
func TestPacerLetsGo(t *testing.T) {
	for name, letGo := range map[string]func(p *pacer){
		"no bound": func(p *pacer) { p.set(0) },
		"the end":  func(p *pacer) { p.end(); p.set(2) },
	} {
		t.Run(name, func(t *testing.T) {
			var p pacer
			p.wait(1 << 40) // without a bound
			p.set(1)
			p.mu.Lock()
			p.tokens = -1e9
			before := p.at
			p.mu.Unlock()
			var all sync.WaitGroup
			for range 8 {
				all.Add(1)
				go func() {
					defer all.Done()
					p.wait(100)
				}()
			}
			for waits := false; !waits; {
				p.mu.Lock()
				waits = p.at.After(before)
				p.mu.Unlock()
			}
			letGo(&p)
			all.Wait()
		})
	}
}

// TestWritersArePacedWhileCollectionsRun: what collections won is the measure; and
// when there is none to wait for, nobody is held up.
func TestWritersArePacedWhileCollectionsRun(t *testing.T) {
	o := testOptions(memfs.New())
	o.NonDurable, o.flushOnDemand = true, true
	o.KVStores, o.VBuckets = 2, 4
	db := mustOpen(t, "data", o)
	write := func(every int) {
		t.Helper()
		v := make([]byte, 1000)
		for i := 0; i < 2000; i++ {
			if i%every == 1 {
				continue
			}
			if _, err := db.Set(fmt.Appendf(nil, "k%04d", i%2000), v, Meta{}); err != nil {
				t.Fatal(err)
			}
			if i%500 == 0 {
				if err := db.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	over := &compaction.GCJob{Pressure: 1.1}
	if db.paceWriters(over, true); db.Stats().SpaceRate != 0 {
		t.Error("writers are held up, and nothing was ever collected")
	}
	write(2000)
	write(3) // every segment has documents that live
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.SpaceRate != 0 || s.Collections == 0 {
		t.Fatalf("%+v", s)
	}
	for i := 0; db.Stats().Paced == 0; i++ {
		db.quota.pace.set(100_000) // the scheduler may have ended it
		if _, err := db.Set([]byte("k0000"), make([]byte, 1000), Meta{}); err != nil || i == 1000 {
			t.Fatalf("write %d: %v, %+v", i, err, db.Stats())
		}
	}
	if err := db.Compact(); err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.SpaceRate != 0 {
		t.Errorf("%d bytes/s, and nothing is to be collected", s.SpaceRate)
	}
	db.paceWriters(over, true)
	if rate := db.sched.space.rate(over.Pressure); rate < paceMin {
		t.Errorf("%d bytes/s", rate)
	}
	c := &gcJob{}
	if db.collected(c, time.Now(), errGone); db.Stats().SpaceRate != 0 {
		t.Error("writers are held up for a collection that failed")
	}
}
