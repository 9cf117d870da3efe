package mcbp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
	"fluxkv/lsm"
)

// readGate holds back reads of a disk by their places, and remembers which came.
type readGate struct {
	mu    sync.Mutex
	cond  *sync.Cond
	all   bool            // hold every one
	held  map[string]bool // hold these
	seen  map[string]int
	order []string
}

func newReadGate(fs *memfs.FS) *readGate {
	g := &readGate{held: map[string]bool{}, seen: map[string]int{}}
	g.cond = sync.NewCond(&g.mu)
	fs.SetHook(func(op memfs.Op) error {
		if op.Kind == vfs.OpReadAt {
			g.pass(fmt.Sprintf("%s@%d", op.Name, op.Off))
		}
		return nil
	})
	return g
}

func (g *readGate) pass(place string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen[place]++
	g.order = append(g.order, place)
	for g.all || g.held[place] {
		g.cond.Wait()
	}
}

func (g *readGate) hold(places ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range places {
		g.held[p] = true
	}
}

// shut holds every read from now on.
func (g *readGate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = true
}

// open lets all go.
func (g *readGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all = false
	clear(g.held)
	g.cond.Broadcast()
}

func (g *readGate) count(place string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[place]
}

func (g *readGate) total() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.order)
}

// onDisk is a store whose documents, doc00 and so on, must be read from the log,
// and where each of them is.
func onDisk(t testing.TB, fs *memfs.FS, n, valueBytes int, o Options) (srv *Server, g *readGate, places []string) {
	t.Helper()
	db := testStore(t, fs, nil)
	srv = testServer(t, db, o)
	for i := range n {
		if _, err := db.Set(docKey(i), docValue(i, valueBytes), lsm.Meta{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	g = newReadGate(fs)
	t.Cleanup(g.open)
	for i := range n {
		if _, err := db.Get(nil, docKey(i)); err != nil {
			t.Fatal(err)
		}
		// The document comes last.
		places = append(places, g.order[len(g.order)-1])
	}
	return srv, g, places
}

func docKey(i int) []byte { return fmt.Appendf(nil, "doc%04d", i) }

func docValue(i, n int) []byte { return bytes.Repeat(fmt.Appendf(nil, "%04d", i), n/4) }

func docGets(from, to int) (b []byte) {
	for i := from; i < to; i++ {
		r := keyRequest(OpGetK, string(docKey(i)))
		r.Opaque = uint32(i)
		b = r.Append(b)
	}
	return b
}

// wantDocs reads the answers to docGets.
func (c *client) wantDocs(from, to int) {
	c.t.Helper()
	for i := from; i < to; i++ {
		r, err := c.next()
		if err != nil || r.Opaque != uint32(i) || !bytes.Equal(r.Key, docKey(i)) || !bytes.HasPrefix(r.Value, docValue(i, 4)) {
			c.t.Fatalf("answer %d: %v: opaque %d key %q, %d bytes", i, err, r.Opaque, r.Key, len(r.Value))
		}
	}
}

// TestReadsRoll: requests that a client sends for the first answers are with the
// device before the last read of the first batch is done.
func TestReadsRoll(t *testing.T) {
	const first, docs = 32, 128
	fs := memfs.New()
	srv, _, at := onDisk(t, fs, docs, 5000, Options{})
	number := map[string]int{}
	for i, place := range at {
		number[place] = i
	}
	var mu sync.Mutex
	early, rolled := 0, false // reads of the first batch under way
	fs.SetHook(func(op memfs.Op) error {
		i, ok := number[fmt.Sprintf("%s@%d", op.Name, op.Off)]
		if op.Kind != vfs.OpReadAt || !ok {
			return nil
		}
		step := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			if i < first {
				early += n
			} else if early > 0 {
				rolled = true
			}
		}
		step(1)
		time.Sleep(time.Duration(i%7) * 100 * time.Microsecond)
		step(-1)
		return nil
	})
	c := dial(t, "tcp", listen(t, srv))
	for round := 0; ; round++ {
		c.send(docGets(0, first))
		for i := range docs {
			c.wantDocs(i, i+1)
			if i+first < docs {
				c.send(docGets(i+first, i+first+1))
			}
		}
		mu.Lock()
		done := rolled
		mu.Unlock()
		if done {
			break
		}
		if round == 1000 {
			t.Fatal("no read of a later request was ever under way with one of the first batch")
		}
	}
	if r := c.ask(keyRequest(OpNoop, "")); r.Status != StatusSuccess {
		t.Errorf("%+v", r)
	}
	if n := srv.rolls.Load(); n != 0 {
		t.Errorf("%d runs are under way", n)
	}
}

// TestRunsAreUnderWayTogether: one run after the other is started while no read
// has come back, up to the bound.
func TestRunsAreUnderWayTogether(t *testing.T) {
	srv, g, _ := onDisk(t, memfs.New(), 4*rollsMax, 5000, Options{})
	d := newDriver(t, srv)
	g.shut()
	before := g.total()
	for i := range rollsMax {
		if d.p.full() {
			t.Fatalf("full after %d runs", i)
		}
		d.pending = docGets(4*i, 4*i+4)
		if d.step(true); len(d.p.out) != 0 {
			t.Fatalf("%d bytes of answers", len(d.p.out))
		}
		eventually(t, "the reads of a run have come", func() bool { return g.total() == before+4*i+4 })
	}
	if !d.p.full() {
		t.Error("not full")
	}
	g.open()
	for i, r := range responses(t, d.feed(nil)) {
		if r.Opaque != uint32(i) || !bytes.Equal(r.Value, docValue(i, 5000)) {
			t.Fatalf("answer %d: opaque %d, %d bytes", i, r.Opaque, len(r.Value))
		}
	}
	if n := srv.rolls.Load(); n != 0 {
		t.Errorf("%d runs are under way", n)
	}
}

// TestWhatIsNoReadWaitsForReads: every other command is behind the reads under
// way, and what it does is behind what they see.
func TestWhatIsNoReadWaitsForReads(t *testing.T) {
	for _, r := range []Request{
		{Opcode: OpNoop}, setRequest(OpSet, "doc0001", "new", 0, 0), keyRequest(OpDelete, "doc0001"), {Opcode: OpVersion},
		{Opcode: OpFlush}, {Opcode: OpQuit}, {Opcode: 0x70},
	} {
		t.Run(fmt.Sprint(r.Opcode), func(t *testing.T) {
			srv, g, at := onDisk(t, memfs.New(), 4, 5000, Options{})
			c := dial(t, "tcp", listen(t, srv))
			defer g.open()
			g.hold(at[1])
			c.send(docGets(0, 2))
			eventually(t, "the reads are under way", func() bool { return g.count(at[1]) == 2 })
			c.send(r.Append(nil))
			g.open()
			c.wantDocs(0, 2)
			got, err := c.next()
			if err != nil || got.Opcode != r.Opcode {
				t.Fatalf("%+v, %v", got, err)
			}
		})
	}
}

// noneHeld fills memtables and flushes them: a view that somebody has left would
// keep what was in the memtables that it knows.
func noneHeld(t testing.TB, db *lsm.DB) {
	t.Helper()
	const docs = 5000
	for at := 0; at < docs; at += 500 {
		var b lsm.Batch
		for i := at; i < at+500; i++ {
			if err := b.Set(binary.BigEndian.AppendUint32(nil, uint32(i)), make([]byte, 200), lsm.Meta{}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.Apply(&b, lsm.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no memtable is held", func() bool { return db.Stats().WriteCacheUsed < docs*200 })
}

// TestReadsUnderWayEnd: however a connection ends, its reads do first, and let
// go of everything.
func TestReadsUnderWayEnd(t *testing.T) {
	released := func(t *testing.T, srv *Server) {
		t.Helper()
		eventually(t, "the connection is gone", func() bool { return srv.conns.Load() == 0 })
		if n := srv.rolls.Load(); n != 0 {
			t.Errorf("%d runs are under way", n)
		}
		if n := srv.buffers.Used() + srv.frames.Used(); n != 0 {
			t.Errorf("%d bytes are reserved", n)
		}
		noneHeld(t, srv.db)
	}
	start := func(t *testing.T) (*Server, *readGate, *client) {
		srv, g, _ := onDisk(t, memfs.New(), 16, 5000, Options{})
		c := dial(t, "tcp", listen(t, srv))
		t.Cleanup(g.open) // before the server waits for its connections
		g.shut()
		c.send(docGets(0, 16))
		eventually(t, "the reads are under way", func() bool { return srv.rolls.Load() > 0 })
		c.send(docGets(0, 4))
		return srv, g, c
	}
	t.Run("the peer leaves", func(t *testing.T) {
		srv, g, c := start(t)
		c.Close()
		g.open()
		released(t, srv)
	})
	t.Run("the peer has sent all", func(t *testing.T) {
		srv, g, c := start(t)
		c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		g.open()
		c.wantDocs(0, 16)
		c.wantDocs(0, 4)
		if _, err := c.next(); err != io.EOF {
			t.Errorf("behind the last answer: %v", err)
		}
		released(t, srv)
	})
	t.Run("Shutdown", func(t *testing.T) {
		srv, g, c := start(t)
		done := make(chan error, 1)
		go func() { done <- srv.Shutdown(context.Background()) }()
		eventually(t, "Shutdown has begun", func() bool {
			select {
			case <-srv.done:
				return true
			default:
				return false
			}
		})
		g.open()
		c.wantDocs(0, 16)
		if err := <-done; err != nil {
			t.Error(err)
		}
		released(t, srv)
	})
	t.Run("Close", func(t *testing.T) {
		srv, g, c := start(t)
		srv.Close()
		c.ended()
		g.open()
		released(t, srv)
	})
	t.Run("a panic", func(t *testing.T) {
		saved := commands[0x71]
		defer func() { commands[0x71] = saved }()
		commands[0x71] = command{name: "PANIC", kind: runRead, run: func(*pipeline, *session) { panic("in a test") }, extras: noExtras}
		srv, g, c := start(t)
		c.send(keyRequestFrame(0x71, "", docGets(0, 1)))
		g.open()
		c.ended()
		released(t, srv)
	})
}

// TestRollsAnswerAsOneAtATime sends random requests, cut anywhere, to a store
// whose reads take a while: the answers are those of a connection that sends one
// request after the other.
func TestRollsAnswerAsOneAtATime(t *testing.T) {
	rolled := 0
	rapid.Check(t, func(rt *rapid.T) {
		fs := memfs.New()
		db, err := lsm.Open("data", lsm.Options{FS: fs, KVStores: 2, MemQuota: 64 << 20, WriteCache: 48 << 20})
		if err != nil {
			rt.Fatal(err)
		}
		defer db.Close()
		plain, err := lsm.Open("data", lsm.Options{FS: memfs.New(), KVStores: 2, MemQuota: 64 << 20, WriteCache: 48 << 20})
		if err != nil {
			rt.Fatal(err)
		}
		defer plain.Close()
		for _, db := range []*lsm.DB{db, plain} {
			for i := range 8 {
				if _, err := db.Set(docKey(i), docValue(i, 40<<(i%5)), lsm.Meta{Flags: uint32(i)}); err != nil {
					rt.Fatal(err)
				}
			}
			if err := db.Flush(); err != nil {
				rt.Fatal(err)
			}
		}
		fs.SetHook(func(op memfs.Op) error {
			if op.Kind == vfs.OpReadAt {
				time.Sleep(50 * time.Microsecond)
			}
			return nil
		})
		one := newDriver(t, testServer(t, plain, Options{}))
		many := newDriver(t, testServer(t, db, Options{}))
		ops := []Opcode{OpGet, OpGetQ, OpGetK, OpGetKQ, OpGet, OpGetK, OpGet, OpGetQ, OpGet, OpSet, OpSetQ, OpDelete, OpDeleteQ, OpNoop, 0x70}
		var input, want []byte
		for i := range rapid.IntRange(1, 60).Draw(rt, "requests") {
			op := rapid.SampledFrom(ops).Draw(rt, "opcode")
			// Two keys of ten are never there.
			key := string(docKey(rapid.IntRange(0, 9).Draw(rt, "key")))
			r := keyRequest(op, key)
			switch op {
			case OpSet, OpSetQ:
				n := rapid.SampledFrom([]int{0, 8, 1000}).Draw(rt, "bytes")
				r = setRequest(op, key, strings.Repeat("n", n), uint32(i), 0)
			case OpNoop:
				r.Key = nil
			}
			r.Opaque = uint32(i)
			frame := r.Append(nil)
			input = append(input, frame...)
			want = append(want, one.feed(frame)...)
		}
		many.s.readsMax = rapid.SampledFrom([]int{runReadsMax, runReadsMax, 5}).Draw(rt, "reads of a pass")
		var got []byte
		for len(input) > 0 || len(many.p.rolls) > 0 {
			rolled += len(many.p.rolls)
			if what := rapid.IntRange(0, 9).Draw(rt, "what"); len(input) == 0 || len(many.p.rolls) > 0 && what < 4 {
				if what == 0 {
					many.p.park()
				}
				r := many.step(false)
				got = append(got, many.p.out...)
				many.settle(&r)
				continue
			}
			n := rapid.IntRange(1, min(len(input), 400)).Draw(rt, "bytes of input")
			many.pending = append(many.pending, input[:n]...)
			input = input[n:]
			for {
				r := many.step(true)
				got = append(got, many.p.out...)
				many.settle(&r)
				if !r.more {
					break
				}
			}
		}
		if !bytes.Equal(got, want) {
			rt.Fatalf("answers differ:\ngot  %s\nwant %s", describe(t, got), describe(t, want))
		}
		if n := many.p.srv.rolls.Load(); n != 0 {
			rt.Fatalf("%d runs are under way", n)
		}
	})
	if rolled == 0 {
		t.Error("no read was ever under way between two passes")
	}
}

func describe(t testing.TB, b []byte) string {
	var s strings.Builder
	for _, r := range responses(t, b) {
		fmt.Fprintf(&s, "\n  %d %v %v key %q, CAS %d, %d bytes", r.Opaque, r.Opcode, r.Status, r.Key, r.CAS, len(r.Value))
	}
	return s.String()
}

// TestR10_FailedSyncRefusesReadsUnderWay: reads that saw what then cannot be made
// durable are refused, each once and in order, wherever they are: answered in
// the pass, under way, or in its input.
func TestR10_FailedSyncRefusesReadsUnderWay(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  []byte // of the input; nil: a turn
		want int
	}{
		{"a turn", nil, 0},
		{"a NOOP", keyRequestFrame(OpNoop, "", nil), 1},
		{"more reads, of which the first are answered", docGets(20, 24), 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fs := memfs.New()
			srv, g, _ := onDisk(t, fs, 24, 5000, Options{})
			d := newDriver(t, srv)
			broken := errors.New("device gone")
			fs.SetHook(func(op memfs.Op) error {
				switch op.Kind {
				case vfs.OpWriteAt, vfs.OpWriteDurable, vfs.OpSync:
					return broken
				case vfs.OpReadAt:
					g.pass(fmt.Sprintf("%s@%d", op.Name, op.Off))
				}
				return nil
			})
			d.pending = setFrame(OpSetQ, "k")
			d.step(true)
			g.shut()
			for i := 0; i < 20; i += 5 {
				d.pending = docGets(i, i+5)
				if d.step(true); len(d.p.out) != 0 {
					t.Fatalf("%d bytes of answers", len(d.p.out))
				}
			}
			if n := len(d.p.rolls); n != 4 {
				t.Fatalf("%d runs are under way, want 4", n)
			}
			g.open()
			d.p.inEngine = true
			d.p.rolls[0].reads.Wait(5)
			d.p.rolls[1].reads.Wait(2)
			d.p.inEngine = false
			d.pending = tc.end
			d.step(tc.end != nil)
			got := responses(t, d.p.out)
			if len(got) != 20+tc.want {
				t.Fatalf("%d answers, want %d", len(got), 20+tc.want)
			}
			for i, r := range got {
				if r.Status != StatusOutOfMemory || !strings.Contains(string(r.Value), "read-only") {
					t.Errorf("answer %d: %v %q", i, r.Status, r.Value)
				}
				if i < 20 && r.Opaque != uint32(i) {
					t.Errorf("answer %d has opaque %d", i, r.Opaque)
				}
			}
			if len(d.p.rolls) != 0 || srv.rolls.Load() != 0 {
				t.Errorf("%d runs are under way", len(d.p.rolls))
			}
			got = responses(t, d.feed(docGets(3, 4)))
			if len(got) != 1 || !bytes.Equal(got[0].Value, docValue(3, 5000)) {
				t.Errorf("what was durable: %+v", got)
			}
		})
	}
}

// TestR25_ReadsUnderWayAreBounded asks for a thousand large documents in small
// runs: however many runs are under way, what they read is bounded.
func TestR25_ReadsUnderWayAreBounded(t *testing.T) {
	const docs, valueBytes, asked = 24, 300_000, 1024
	srv, _, _ := onDisk(t, memfs.New(), docs, valueBytes, Options{})
	d := newDriver(t, srv)
	var b []byte
	for i := range asked {
		b = append(b, docGets(i%docs, i%docs+1)...)
	}
	frame := len(docGets(0, 1))
	answered, mostRead, mostRuns := 0, 0, 0
	look := func(r passResult) {
		if len(d.p.out) > passAnswerBytesMax+answerStepBytes {
			t.Errorf("%d bytes of answers", len(d.p.out))
		}
		for _, a := range responses(t, d.p.out) {
			if i := answered % docs; a.Opaque != uint32(i) || !bytes.Equal(a.Value, docValue(i, valueBytes)) {
				t.Fatalf("answer %d: opaque %d, %d bytes", answered, a.Opaque, len(a.Value))
			}
			answered++
		}
		d.settle(&r)
		// Everything that the runs read, once they have.
		read := 0
		for _, roll := range d.p.rolls {
			if !roll.started {
				continue
			}
			for i := range roll.reads.Wait(len(roll.gets)) {
				if roll.reads.Err(i) == nil {
					read += len(roll.reads.Item(i).Value)
				}
			}
		}
		mostRead, mostRuns = max(mostRead, read), max(mostRuns, len(d.p.rolls))
	}
	for len(b) > 0 || len(d.p.rolls) > 0 {
		if len(b) > 0 && !d.p.full() {
			n := min(len(b), 7*frame)
			d.pending = append(d.pending, b[:n]...)
			b = b[n:]
			for more := true; more; {
				r := d.step(true)
				more = r.more
				look(r)
			}
			continue
		}
		look(d.step(false))
	}
	if answered != asked {
		t.Errorf("%d answers, want %d", answered, asked)
	}
	if mostRead > 2*passAnswerBytesMax {
		t.Errorf("%d bytes were held by reads under way", mostRead)
	}
	if srv.buffers.Used() != 0 {
		t.Errorf("%d bytes are reserved", srv.buffers.Used())
	}
	t.Logf("at most %d runs and %d bytes under way", mostRuns, mostRead)
}

// TestReadsOfASlowPeerLetGo: a peer that does not take its answers holds no
// memtable, although reads were under way behind them; and it loses nothing.
func TestReadsOfASlowPeerLetGo(t *testing.T) {
	const docs, valueBytes = 64, 100_000
	srv, _, _ := onDisk(t, memfs.New(), docs, valueBytes, Options{})
	c := dial(t, "tcp", listen(t, srv))
	const rounds = 20
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range rounds {
			for i := 0; i < docs; i += 8 {
				if _, err := c.Write(docGets(i, i+8)); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	eventually(t, "the sockets are filling", func() bool { return srv.counters[getHits].Load() >= 8 })
	for range 10 { // while the connection comes to stand still, and behind that
		noneHeld(t, srv.db)
	}
	for range rounds {
		c.wantDocs(0, docs)
	}
	<-sent
}
