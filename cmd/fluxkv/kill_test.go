package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fluxkv/mcbp"
)

const (
	killWriters      = 8
	killKeys         = 150  // of each writer
	killWindow       = 16   // open requests of each writer
	killRequests     = 1500 // of each writer and round, at most
	killRoundsAStore = 40   // then the write cache of the server would fill
)

// killFlags are the settings that rounds start the server with, by turns:
// whatever wrote a store, every other setting must read it.
var killFlags = [][]string{
	{"--mem-quota", "2GiB", "--write-cache", "1GiB"},
	{"--mem-quota", "3GiB", "--write-cache", "1500MiB", "--log-inflight", "4"},
	{"--mem-quota", "2GiB", "--write-cache", "1GiB", "--log-align", "16384", "--segment-size", "8MiB"},
	{"--mem-quota", "2GiB", "--write-cache", "1GiB", "--log-align", "512", "--log-inflight", "2", "--inline-limit", "0"},
	{"--mem-quota", "2GiB", "--write-cache", "1GiB", "--segment-size", "4MiB", "--inline-limit", "4096"},
}

// TestKill kills the server under load, again and again. After every restart
// each acknowledged write is there with its bytes, nothing older is back, and
// nothing that was never sent appears; a write without an answer happened or
// did not.
func TestKill(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	if s := os.Getenv("FLUXKV_KILL_ROUNDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			t.Fatalf("FLUXKV_KILL_ROUNDS=%q: want a number above 0", s)
		}
		rounds = n
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("FLUXKV_KILL_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("FLUXKV_KILL_SEED=%q: %v", s, err)
		}
		seed = n
	}
	t.Logf("%d rounds, FLUXKV_KILL_SEED=%d", rounds, seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	binary := buildServer(t)

	var ledgers [][]*ledger // by writer
	var dir string
	var acks, open int64
	for round := range rounds {
		if round%killRoundsAStore == 0 {
			dir = filepath.Join(t.TempDir(), "data")
			ledgers = nil
			for w := range killWriters {
				var mine []*ledger
				for k := range killKeys {
					mine = append(mine, newLedger(fmt.Sprintf("writer%d-key%03d", w, k)))
				}
				ledgers = append(ledgers, mine)
			}
		}
		flags := killFlags[rnd.IntN(len(killFlags))]
		p := start(t, binary, dir, flags...)
		a, o := killRound(t, p, ledgers, rnd)
		acks, open = acks+a, open+o

		// Now and then the restart is killed too, before or soon after it is
		// ready.
		if rnd.IntN(3) == 0 {
			p := startUnready(t, binary, dir, killFlags[rnd.IntN(len(killFlags))]...)
			time.Sleep(time.Duration(rnd.IntN(60)) * time.Millisecond)
			p.kill()
		}
		flags = killFlags[rnd.IntN(len(killFlags))]
		p = start(t, binary, dir, flags...)
		checkLedgers(t, p, ledgers, round)
		if rnd.IntN(4) == 0 {
			p.stop() // an orderly end between two kills
		} else {
			p.kill()
		}
		if t.Failed() {
			t.Fatalf("round %d, flags %v, data was in %s", round, flags, dir)
		}
	}
	t.Logf("%d writes acknowledged, %d open when the server died", acks, open)
	if acks == 0 || open == 0 {
		t.Errorf("%d acknowledged and %d open writes: the kills did not meet the load", acks, open)
	}
}

// killRound writes to p, kills it after a random number of answers, and
// returns how many writes were acknowledged and how many were open.
func killRound(t *testing.T, p *process, ledgers [][]*ledger, rnd *rand.Rand) (acks, open int64) {
	t.Helper()
	var acked, opened atomic.Int64
	limit := int64(rnd.IntN(killWriters * killRequests * 9 / 10))
	reached := make(chan struct{})
	var once sync.Once
	if limit == 0 {
		once.Do(func() { close(reached) })
	}
	var wg sync.WaitGroup
	for _, mine := range ledgers {
		r := rand.New(rand.NewPCG(rnd.Uint64(), 2))
		wg.Add(1)
		go func() {
			defer wg.Done()
			n, err := killWriter(p, mine, r, func() {
				if acked.Add(1) >= limit {
					once.Do(func() { close(reached) })
				}
			})
			opened.Add(int64(n))
			if err != nil {
				t.Error(err)
				once.Do(func() { close(reached) })
			}
		}()
	}
	// A reader holds the server to what it shows: a document that was read
	// must outlive the kill, acknowledged to its writer or not.
	r := rand.New(rand.NewPCG(rnd.Uint64(), 3))
	wg.Add(1)
	go func() {
		defer wg.Done()
		if err := killReader(p, ledgers, r); err != nil {
			t.Error(err)
			once.Do(func() { close(reached) })
		}
	}()
	select {
	case <-reached:
	case <-p.done:
		t.Errorf("the server ended by itself: %v\n%s", p.err, p.text())
	case <-time.After(patience):
		t.Errorf("only %d of %d answers after %v\n%s", acked.Load(), limit, patience, p.text())
	}
	p.kill()
	wg.Wait()
	return acked.Load(), opened.Load()
}

// killWriter keeps a window of writes open until the connection breaks, and
// returns how many had no answer then. An error is an answer that no server
// may give.
func killWriter(p *process, mine []*ledger, rnd *rand.Rand, ack func()) (open int, err error) {
	type asked struct {
		l *ledger
		s state
	}
	var window []asked
	c, err := dialClient(p.addr)
	if err != nil {
		return 0, nil // killed before this writer came
	}
	defer c.close()
	for sent := 0; sent < killRequests || len(window) > 0; {
		for len(window) < killWindow && sent < killRequests {
			l := mine[rnd.IntN(len(mine))]
			s := l.ask(rnd)
			r := mcbp.Request{Opcode: mcbp.OpSet, Extras: make([]byte, 8), Key: []byte(l.key), Opaque: uint32(sent)}
			if s.absent {
				r.Opcode, r.Extras = mcbp.OpDelete, nil
			} else {
				r.Value = l.value(s)
			}
			c.put(&r)
			window = append(window, asked{l, s})
			sent++
		}
		if len(c.out) > 0 && c.send() != nil {
			return len(window), nil
		}
		// At least one answer, then all that came with it.
		for first := true; len(window) > 0 && (first || c.r.Buffered() >= mcbp.HeaderBytes); first = false {
			a, err := c.receive()
			if err != nil {
				return len(window), nil
			}
			due := window[0]
			want := uint32(sent - len(window))
			miss := due.s.absent && a.Status == mcbp.StatusNotFound
			if a.Opaque != want || a.Status != mcbp.StatusSuccess && !miss {
				return len(window), fmt.Errorf("key %s: answer %d with %v, want %d with success", due.l.key, a.Opaque, a.Status, want)
			}
			due.l.acknowledged(due.s.version)
			window = window[1:]
			ack()
		}
	}
	// All is answered; the connection stays open until the kill.
	_, _ = c.receive()
	return 0, nil
}

// killReader reads random keys until the connection breaks.
func killReader(p *process, ledgers [][]*ledger, rnd *rand.Rand) error {
	c, err := dialClient(p.addr)
	if err != nil {
		return nil
	}
	defer c.close()
	for {
		mine := ledgers[rnd.IntN(len(ledgers))]
		l := mine[rnd.IntN(len(mine))]
		// The writer goes on meanwhile: an answer may be older than what is
		// acknowledged when it arrives, so only what it proves is kept.
		value, err := c.get(l.key)
		switch {
		case errors.Is(err, errMissing):
		case err != nil:
			return nil
		default:
			if len(value) < ledgerValueMin {
				return fmt.Errorf("key %s: read %d bytes", l.key, len(value))
			}
			if err := l.seen([]byte(value), binary.LittleEndian.Uint64([]byte(value))); err != nil {
				return err
			}
		}
	}
}

// checkLedgers reads every key once, pipelined, and compares.
func checkLedgers(t *testing.T, p *process, ledgers [][]*ledger, round int) {
	t.Helper()
	c := p.connect()
	failures := 0
	for _, mine := range ledgers {
		for _, l := range mine {
			c.put(&mcbp.Request{Opcode: mcbp.OpGet, Key: []byte(l.key)})
		}
		if err := c.send(); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, p.text())
		}
		for _, l := range mine {
			a, err := c.receive()
			if err != nil {
				t.Fatalf("round %d: %v\n%s", round, err, p.text())
			}
			switch a.Status {
			case mcbp.StatusSuccess:
				err = l.observed(a.Value)
			case mcbp.StatusNotFound:
				err = l.observed(nil)
			default:
				err = fmt.Errorf("key %s: %v", l.key, a.Status)
			}
			if err != nil {
				if failures++; failures <= 10 {
					t.Errorf("round %d: %v", round, err)
				}
			}
			l.settle()
		}
	}
	if failures > 0 {
		t.Errorf("round %d: %d of %d keys are wrong\n%s", round, failures, killWriters*killKeys, p.text())
	}
}

// TestKillDuringShutdown ends the server the orderly way and kills it while it
// does so.
func TestKillDuringShutdown(t *testing.T) {
	binary := buildServer(t)
	dir := filepath.Join(t.TempDir(), "data")
	l := []*ledger{newLedger("only")}
	rnd := rand.New(rand.NewPCG(5, 5))
	for round := range 5 {
		p := start(t, binary, dir)
		c := p.connect()
		for range 20 {
			s := l[0].ask(rnd)
			var err error
			if s.absent {
				_, err = c.ask(&mcbp.Request{Opcode: mcbp.OpDelete, Key: []byte("only")})
			} else {
				err = c.set("only", string(l[0].value(s)))
			}
			if err != nil {
				t.Fatal(err)
			}
			l[0].acknowledged(s.version)
		}
		p.signal(syscall.SIGTERM)
		time.Sleep(time.Duration(rnd.IntN(5)) * time.Millisecond)
		p.kill()
		p = start(t, binary, dir)
		checkLedgers(t, p, [][]*ledger{l}, round)
		p.kill()
	}
}
