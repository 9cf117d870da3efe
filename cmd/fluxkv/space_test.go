package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"fluxkv/mcbp"
)

// Space that a store must give back by itself, without further writes or reads.
const (
	spaceValue = 1024
	// spaceKeyBytes is what a key takes.
	spaceKeyBytes = 12
	// spaceWait is how long it may take.
	spaceWait = 3 * time.Minute
	// spaceBound is what the directory may take, over what is live.
	spaceBound = 1.6
	// spaceRewrites of one document of spaceLarge keep the directory below
	// spaceLargeMost.
	spaceRewrites  = 10_000
	spaceLarge     = 1_000_000
	spaceLargeMost = 1 << 30
	spaceDepth     = 64
)

// spaceNumber reads a number from the environment.
func spaceNumber(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: want a number above 0", name, s)
	}
	return n
}

// space is a server whose directory is watched.
type space struct {
	*process
	t   *testing.T
	dir string
}

// startSpace starts a server for one of the tests of space, which are skipped
// without FLUXKV_SPACE_MB: they take minutes, most of them of waiting.
func startSpace(t *testing.T, megabytes *uint64) *space {
	if os.Getenv("FLUXKV_SPACE_MB") == "" {
		t.Skip("FLUXKV_SPACE_MB says how much is written; make test-space sets it")
	}
	*megabytes = spaceNumber(t, "FLUXKV_SPACE_MB", 1)
	dir := filepath.Join(t.TempDir(), "data")
	flags := append([]string{"--durable=false", "--mem-quota", "512MiB"}, strings.Fields(os.Getenv("FLUXKV_SPACE_FLAGS"))...)
	return &space{process: start(t, buildServer(t), dir, flags...), t: t, dir: dir}
}

func spaceKey(dst []byte, n uint64) []byte { return fmt.Appendf(dst[:0], "k%011d", n) }

// write sends the requests that request makes of the numbers below n, from some
// connections at once.
func (s *space) write(n uint64, request func(n uint64, r *mcbp.Request)) {
	s.t.Helper()
	err := s.onConnections(func(c uint64, cl *client) error {
		next := c
		_, _, err := pipelined(cl, spaceDepth, func(r *mcbp.Request) (uint64, bool) {
			at := next
			if at >= n {
				return 0, false
			}
			next += largeConns
			request(at, r)
			return at, true
		}, func(n uint64, a *mcbp.Response) error {
			if a.Status != mcbp.StatusSuccess {
				return fmt.Errorf("number %d: %v", n, a.Status)
			}
			return nil
		})
		return err
	})
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.text())
	}
}

// load sets n documents that expire at a Unix time, or never.
func (s *space) load(n uint64, expiry uint32) {
	s.t.Helper()
	values := make([]byte, 1<<20+spaceValue)
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := 0; i+8 <= len(values); i += 8 {
		binary.LittleEndian.PutUint64(values[i:], rnd.Uint64())
	}
	s.write(n, func(n uint64, r *mcbp.Request) {
		at := n * 977 % (1 << 20)
		*r = mcbp.Request{Opcode: mcbp.OpSet, Key: spaceKey(nil, n), Value: values[at : at+spaceValue], Extras: make([]byte, 8)}
		binary.BigEndian.PutUint32(r.Extras[4:], expiry)
	})
}

// waitFor waits until the directory takes at most most, and says how long that
// took; within spaceWait, or the test fails.
func (s *space) waitFor(most int64) {
	s.t.Helper()
	began := time.Now()
	before := directoryBytes(s.t, s.dir)
	for {
		now := directoryBytes(s.t, s.dir)
		took := time.Since(began)
		switch {
		case now <= most:
			s.t.Logf("from %d to %d MB, %d were wanted, in %.0f s", before/1e6, now/1e6, most/1e6, took.Seconds())
			s.healthy()
			return
		case took > spaceWait:
			m, err := s.connect().stats()
			s.t.Fatalf("from %d to %d MB, and not to %d, in %v\n%v %v\n%s\n%s", before/1e6, now/1e6, most/1e6, took, err, m, s.files(), s.text())
		}
		select {
		case <-s.done:
			s.t.Fatalf("the server ended by itself: %v\n%s", s.err, s.text())
		case <-time.After(time.Second):
		}
	}
}

// healthy fails when anything failed in the background.
func (s *space) healthy() {
	s.t.Helper()
	m, err := s.connect().stats()
	if err != nil || counted(m).failed != 0 {
		s.t.Errorf("%v, %+v\n%s", err, counted(m), s.text())
	}
	s.t.Logf("%d flushes, %d merges, %d collections", m["flushes"], m["compactions"], m["collections"])
}

// files lists what the directory has.
func (s *space) files() string {
	var b strings.Builder
	_ = filepath.WalkDir(s.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			if info, err := e.Info(); err == nil {
				fmt.Fprintf(&b, "%s %d\n", strings.TrimPrefix(path, s.dir), info.Size())
			}
		}
		return nil
	})
	return b.String()
}

// TestSpaceOfDeleted: nine documents of ten are deleted, and nothing else comes.
func TestSpaceOfDeleted(t *testing.T) {
	var mb uint64
	s := startSpace(t, &mb)
	n := mb * 1e6 / (spaceValue + spaceKeyBytes)
	s.load(n, 0)
	kept := uint64(0)
	s.write(n, func(n uint64, r *mcbp.Request) {
		if n/largeConns%10 == 0 { // of each connection
			*r = mcbp.Request{Opcode: mcbp.OpGet, Key: spaceKey(nil, n)}
			return
		}
		*r = mcbp.Request{Opcode: mcbp.OpDelete, Key: spaceKey(nil, n)}
	})
	for i := range n {
		if i/largeConns%10 == 0 {
			kept++
		}
	}
	live := int64(kept) * (spaceValue + spaceKeyBytes)
	s.waitFor(int64(spaceBound * float64(live)))
	s.write(n, func(n uint64, r *mcbp.Request) { // misses are no success
		n = n / largeConns / 10 * 10 * largeConns
		*r = mcbp.Request{Opcode: mcbp.OpGet, Key: spaceKey(nil, n)}
	})
}

// TestSpaceOfExpired: all documents expire, and nobody reads them.
func TestSpaceOfExpired(t *testing.T) {
	var mb uint64
	s := startSpace(t, &mb)
	n := mb * 1e6 / (spaceValue + spaceKeyBytes)
	// Long enough for the load; what is left of it is not measured.
	expiry := time.Now().Add(time.Duration(20+mb/10) * time.Second)
	s.load(n, uint32(expiry.Unix()))
	if time.Now().After(expiry) {
		t.Fatalf("the load of %d MB took until its documents expired", mb)
	}
	full := directoryBytes(t, s.dir)
	bytes := int64(n) * (spaceValue + spaceKeyBytes)
	if full < bytes {
		t.Fatalf("the directory takes %d bytes, less than what is in it", full)
	}
	select {
	case <-s.done:
		t.Fatalf("the server ended by itself: %v\n%s", s.err, s.text())
	case <-time.After(time.Until(expiry)):
	}
	s.waitFor(full - bytes*9/10)
	a, err := s.connect().ask(&mcbp.Request{Opcode: mcbp.OpGet, Key: spaceKey(nil, 1)})
	if err != nil || a.Status != mcbp.StatusNotFound {
		t.Errorf("an expired document: %v, %v", a.Status, err)
	}
}

// TestSpaceOfOneDocument: one large document is overwritten again and again, and
// the directory is looked at all the time.
func TestSpaceOfOneDocument(t *testing.T) {
	var mb uint64
	s := startSpace(t, &mb)
	rewrites := spaceNumber(t, "FLUXKV_SPACE_REWRITES", spaceRewrites)
	stop, watched := make(chan struct{}), make(chan int64)
	go func() {
		most := int64(0)
		for {
			most = max(most, directoryBytes(t, s.dir))
			select {
			case <-stop:
				watched <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	value := make([]byte, spaceLarge)
	c := s.connect()
	var err error
	for n := range rewrites {
		binary.LittleEndian.PutUint64(value, n)
		if err = c.set("one", string(value)); err != nil {
			break
		}
	}
	close(stop)
	most := <-watched
	if err != nil {
		t.Fatalf("%v\n%s", err, s.text())
	}
	t.Logf("%d times 1 MB: the directory took %d MB at most", rewrites, most/1e6)
	if most > spaceLargeMost {
		t.Errorf("the directory took %d MB, want at most %d\n%s", most/1e6, spaceLargeMost/1000000, s.files())
	}
	got, err := c.get("one")
	if err != nil || len(got) != spaceLarge || binary.LittleEndian.Uint64([]byte(got)) != rewrites-1 {
		t.Error(errors.Join(err, fmt.Errorf("read %d bytes that are not the last ones", len(got))))
	}
	s.healthy()
}
