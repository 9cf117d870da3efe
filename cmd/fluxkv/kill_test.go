package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	killRoundsAStore = 40   // then a store without flushes would fill its write cache
)

// killSet is one way to run the server that is killed.
type killSet struct {
	name  string
	flags string
	// keys of each writer and the sizes of their values; 0 and none are the
	// usual ones.
	keys  int
	sizes []int
	// churns: in enough rounds, tables are merged and segments are collected.
	churns bool
}

// killSets are what rounds start the server with. Whatever wrote a store, every
// other set must read it, replay it in its own write cache, and go on from it.
var killSets = []killSet{
	{name: "memory", flags: "--mem-quota 2GiB --write-cache 1GiB"},
	{name: "inflight", flags: "--mem-quota 3GiB --write-cache 1500MiB --log-inflight 4"},
	{name: "align", flags: "--mem-quota 2GiB --write-cache 1GiB --log-align 16384 --segment-size 8MiB"},
	{name: "separate", flags: "--mem-quota 2GiB --write-cache 1GiB --log-align 512 --log-inflight 2 --inline-limit 0 --compression snappy"},
	{name: "inline", flags: "--mem-quota 2GiB --write-cache 1GiB --segment-size 4MiB --inline-limit 4096"},
	{name: "flush", flags: "--mem-quota 64MiB --write-cache 4MiB --max-item-size 64KiB --cache-size 8MiB --io-engine aio"},
	{name: "flushers", flags: "--mem-quota 64MiB --write-cache 1MiB --segment-size 4MiB --sstable-size 1MiB --flushers 4 --max-item-size 64KiB --key-warm-new-tables --io-engine pread --io-queue-depth 2"},
	{name: "tables", flags: "--mem-quota 64MiB --write-cache 1MiB --bloom-bits 0 --index-compression snappy --compression snappy --key-block-size 512 --inline-limit 1024 --max-item-size 64KiB --block-cache 1MiB --io-engine uring"},
	// Few keys, overwritten: nearly all is garbage soon, and merges and
	// collections run all the time.
	{name: "churn", flags: "--mem-quota 32MiB --write-cache 1MiB --segment-size 4MiB --space-amp 1.2 --compactors 2 --max-item-size 64KiB --cache-size 4MiB --block-cache 2MiB", keys: 25, sizes: []int{1024, 1024, 1024, 24}, churns: true},
	{name: "leveled", flags: "--mem-quota 32MiB --write-cache 1MiB --segment-size 4MiB --space-amp 1.2 --key-shape leveled --l0-tables 2 --base-level-size 1MiB --key-level-multiplier 2 --sstable-size 1MiB --max-item-size 64KiB --cache-size 1MiB --direct-io=false", keys: 25, sizes: []int{1024, 1024, 1024, 24}, churns: true},
}

func (s *killSet) args() []string { return strings.Fields(s.flags) }

// killChurnRounds are enough for sets that churn to merge and to collect.
const killChurnRounds = 10

// TestKill kills the server under load, again and again, with each set of
// flags. After every restart, which half the time has another set's flags, each
// acknowledged write is there with its bytes, nothing older is back, and nothing
// that was never sent appears; a write without an answer happened or did not.
func TestKill(t *testing.T) {
	rounds := 2
	if testing.Short() {
		rounds = 1
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
	t.Logf("%d rounds a set, FLUXKV_KILL_SEED=%d", rounds, seed)
	binary := buildServer(t)
	for i := range killSets {
		set := &killSets[i]
		t.Run(set.name, func(t *testing.T) {
			testKillSet(t, binary, set, rounds, rand.New(rand.NewPCG(seed, uint64(i))))
		})
	}
}

func testKillSet(t *testing.T, binary string, set *killSet, rounds int, rnd *rand.Rand) {
	var ledgers [][]*ledger // by writer
	var dir string
	var sum killed
	for round := range rounds {
		if round%killRoundsAStore == 0 {
			dir = filepath.Join(t.TempDir(), "data")
			ledgers = nil
			for w := range killWriters {
				var mine []*ledger
				for k := range cmp.Or(set.keys, killKeys) {
					l := newLedger(fmt.Sprintf("writer%d-key%03d", w, k))
					l.sizes = set.sizes
					mine = append(mine, l)
				}
				ledgers = append(ledgers, mine)
			}
		}
		p := start(t, binary, dir, set.args()...)
		k := killRound(t, p, ledgers, rnd)
		if sum.add(k); k.failed > 0 {
			t.Errorf("%d flushes, merges or collections failed\n%s", k.failed, p.text())
		}

		another := func() []string {
			if rnd.IntN(2) == 0 {
				return set.args()
			}
			return killSets[rnd.IntN(len(killSets))].args()
		}
		// Now and then the restart is killed too, before or soon after it is
		// ready.
		if rnd.IntN(3) == 0 {
			p := startUnready(t, binary, dir, another()...)
			time.Sleep(time.Duration(rnd.IntN(60)) * time.Millisecond)
			p.kill()
		}
		flags := another()
		p = start(t, binary, dir, flags...)
		checkLedgers(t, p, ledgers, round)
		m, err := p.connect().stats()
		if err != nil {
			t.Fatalf("STAT: %v\n%s", err, p.text())
		}
		k = counted(m)
		if sum.add(k); k.failed > 0 {
			t.Errorf("%d flushes, merges or collections failed\n%s", k.failed, p.text())
		}
		if rnd.IntN(4) == 0 {
			p.stop() // an orderly end between two kills
		} else {
			p.kill()
		}
		if t.Failed() {
			t.Fatalf("round %d, restarted with %v, data was in %s", round, flags, dir)
		}
	}
	t.Logf("%d rounds: %d writes acknowledged, %d open when the server died; at least %d flushes, %d merges, %d collections",
		rounds, sum.acks, sum.open, sum.flushes, sum.merges, sum.collections)
	// One round may be killed at its first write, or after its last.
	if rounds > 1 && (sum.acks == 0 || sum.open == 0) {
		t.Errorf("%d acknowledged and %d open writes: the kills did not meet the load", sum.acks, sum.open)
	}
	if set.churns && rounds >= killChurnRounds && (sum.merges == 0 || sum.collections == 0) {
		t.Errorf("%d merges and %d collections in %d rounds: the kills did not meet them", sum.merges, sum.collections, rounds)
	}
}

// killed is what happened in rounds.
type killed struct {
	acks, open                   int64 // writes
	flushes, merges, collections int64 // that ended before the kills
	failed                       int64 // of those three
}

func (k *killed) add(o killed) {
	k.acks += o.acks
	k.open += o.open
	k.flushes += o.flushes
	k.merges += o.merges
	k.collections += o.collections
	k.failed += o.failed
}

// counted takes from statistics what a server has done since it started.
func counted(m map[string]int64) killed {
	return killed{
		flushes: m["flushes"], merges: m["compactions"], collections: m["collections"],
		failed: m["flushes_failed"] + m["compactions_failed"] + m["collections_failed"],
	}
}

// killRound writes to p, kills it after a random number of answers, and
// returns what happened until then.
func killRound(t *testing.T, p *process, ledgers [][]*ledger, rnd *rand.Rand) (k killed) {
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
		var err error
		if k, err = killReader(p, ledgers, r); err != nil {
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
	k.acks, k.open = acked.Load(), opened.Load()
	return k
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

// killReader reads random keys until the connection breaks, and returns what
// the server had counted shortly before.
func killReader(p *process, ledgers [][]*ledger, rnd *rand.Rand) (k killed, err error) {
	c, err := dialClient(p.addr)
	if err != nil {
		return k, nil
	}
	defer c.close()
	for i := 0; ; i++ {
		if i%64 == 0 {
			m, err := c.stats()
			if err != nil {
				return k, nil
			}
			k = counted(m)
		}
		mine := ledgers[rnd.IntN(len(ledgers))]
		l := mine[rnd.IntN(len(mine))]
		// The writer goes on meanwhile: an answer may be older than what is
		// acknowledged when it arrives, so only what it proves is kept.
		value, err := c.get(l.key)
		switch {
		case errors.Is(err, errMissing):
		case err != nil:
			return k, nil
		case len(value) < ledgerValueMin:
			return k, fmt.Errorf("key %s: read %d bytes", l.key, len(value))
		default:
			if err := l.seen([]byte(value), binary.LittleEndian.Uint64([]byte(value))); err != nil {
				return k, err
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
		t.Errorf("round %d: %d keys are wrong\n%s", round, failures, p.text())
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
