package mcbp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"fluxkv/lsm"
)

func TestEveryOpcodeAndShape(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	for op := range 256 {
		for shape := range 8 {
			r := Request{Opcode: Opcode(op), Opaque: 0xfeedbeef}
			if shape&1 != 0 {
				r.Extras = []byte{1}
			}
			if shape&2 != 0 {
				r.Key = []byte("k")
			}
			if shape&4 != 0 {
				r.Value = []byte("v")
			}
			c := commands[op]
			want := StatusSuccess
			switch {
			case c.run == nil:
				want = StatusUnknownCommand
			case !c.extras.admits(uint8(len(r.Extras))), !c.key.admits(int64(len(r.Key))), !c.value.admits(int64(len(r.Value))):
				want = StatusInvalid
			case c.kind == runRead, Opcode(op) == OpDelete, Opcode(op) == OpDeleteQ, Opcode(op) == OpStat && len(r.Key) > 0:
				want = StatusNotFound
			}
			d := newDriver(t, srv)
			noop := Request{Opcode: OpNoop, Opaque: 7}
			got := responses(t, d.feed(noop.Append(r.Append(nil))))
			name := fmt.Sprintf("%v shape %03b", Opcode(op), shape)
			if c.run != nil && (Opcode(op) == OpQuit || Opcode(op) == OpQuitQ) && want == StatusSuccess {
				if !d.closed || (len(got) == 1) != (Opcode(op) == OpQuit) {
					t.Errorf("%s: closed %v, answers %v", name, d.closed, got)
				}
				continue
			}
			if d.closed {
				t.Errorf("%s: closed", name)
				continue
			}
			last := got[len(got)-1]
			if last.Opcode != OpNoop || last.Opaque != 7 || last.Status != StatusSuccess {
				t.Errorf("%s: out of step: %+v", name, last)
			}
			quiet := c.quiet && (want == StatusSuccess || want == StatusNotFound && c.kind == runRead)
			if quiet {
				if len(got) != 1 {
					t.Errorf("%s: answered %+v, want silence", name, got[0])
				}
				continue
			}
			first := got[0]
			if first.Status != want || first.Opcode != Opcode(op) || first.Opaque != r.Opaque {
				t.Errorf("%s: answered %+v, want status %v", name, first, want)
			}
			if first.Status != StatusSuccess && len(first.Value) == 0 && len(first.Key) == 0 {
				t.Errorf("%s: an error without a body", name)
			}
			if first.CAS != 0 && c.kind != runWrite {
				t.Errorf("%s: CAS %d", name, first.CAS)
			}
		}
	}
}

// TestHeaderFieldsAtTheirBounds changes one field of a good SET at a time.
func TestHeaderFieldsAtTheirBounds(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	for _, tc := range []struct {
		name   string
		change func(h []byte)
		close  bool
		status Status // of the first answer; ignored when closed without one
	}{
		{"key length 0", func(h []byte) { h[2], h[3] = 0, 0 }, false, StatusInvalid},
		{"key length max", func(h []byte) { h[2], h[3] = 255, 255 }, true, StatusInvalid},
		{"extras length 0", func(h []byte) { h[4] = 0 }, false, StatusInvalid},
		{"extras length max", func(h []byte) { h[4] = 255 }, true, StatusInvalid},
		{"datatype max", func(h []byte) { h[5] = 255 }, false, StatusSuccess},
		{"vbucket max", func(h []byte) { h[6], h[7] = 255, 255 }, false, StatusSuccess},
		{"body length 0", func(h []byte) { binary.BigEndian.PutUint32(h[8:], 0) }, true, StatusInvalid},
		{"body length max", func(h []byte) { binary.BigEndian.PutUint32(h[8:], math.MaxUint32) }, true, StatusTooLarge},
		{"body length max-1", func(h []byte) { binary.BigEndian.PutUint32(h[8:], math.MaxUint32-1) }, true, StatusTooLarge},
		{"body at the frame limit", func(h []byte) { binary.BigEndian.PutUint32(h[8:], frameBytesDefault+1) }, true, StatusTooLarge},
		{"opaque max", func(h []byte) { binary.BigEndian.PutUint32(h[12:], math.MaxUint32) }, false, StatusSuccess},
		{"cas max", func(h []byte) { binary.BigEndian.PutUint64(h[16:], math.MaxUint64) }, false, StatusExists},
		{"magic 0", func(h []byte) { h[0] = 0 }, true, 0},
		{"magic of a response", func(h []byte) { h[0] = 0x81 }, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDriver(t, srv)
			d.feed(setFrame(OpSet, "key"))
			b := setFrame(OpSet, "key")
			tc.change(b)
			got := responses(t, d.feed(b))
			if d.closed != tc.close {
				t.Fatalf("closed %v, want %v", d.closed, tc.close)
			}
			if tc.status == 0 && tc.close {
				if len(got) != 0 {
					t.Fatalf("answered %+v", got)
				}
				return
			}
			if len(got) != 1 || got[0].Status != tc.status {
				t.Fatalf("answered %+v, want %v", got, tc.status)
			}
		})
	}
}

func TestTooLargeIsSkippedAndAnswered(t *testing.T) {
	srv := testServer(t, testStore(t, nil, func(o *lsm.Options) { o.MaxItemBytes = 1000 }), Options{MaxItemBytes: 1000})
	for _, op := range []Opcode{OpSet, OpSetQ} {
		d := newDriver(t, srv)
		large := setRequest(op, "key", strings.Repeat("x", 998), 0, 0)
		b := keyRequestFrame(OpNoop, "", large.Append(setFrame(OpSetQ, "key")))
		var got []byte
		for len(b) > 0 {
			n := min(7, len(b))
			got = append(got, d.feed(b[:n])...)
			if len(d.pending) > HeaderBytes+8+len("key")+1 {
				t.Fatalf("%d bytes are held of a body that is refused", len(d.pending))
			}
			b = b[n:]
		}
		all := responses(t, got)
		if len(all) != 2 || all[0].Status != StatusTooLarge || all[0].Opcode != op || all[1].Opcode != OpNoop {
			t.Fatalf("answers %+v", all)
		}
		if r := d.ask(keyRequest(OpGet, "key")); string(r.Value) != "v" {
			t.Errorf("a refused SET changed the document: %+v", r)
		}
		fits := setRequest(OpSet, "key", strings.Repeat("x", 997), 0, 0)
		if r := d.ask(fits); r.Status != StatusSuccess {
			t.Errorf("key + value at the limit: %v", r.Status)
		}
	}
}

func keyRequestFrame(op Opcode, key string, dst []byte) []byte {
	r := keyRequest(op, key)
	return r.Append(dst)
}

func TestRunsAnswerInOrder(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	d := newDriver(t, srv)
	var b []byte
	add := func(r Request) {
		r.Opaque = uint32(len(b))
		b = r.Append(b)
	}
	add(setRequest(OpSet, "a", "1", 0, 0))
	add(setRequest(OpSetQ, "b", "2", 0, 0))
	add(keyRequest(OpGet, "a"))
	add(keyRequest(OpGetQ, "none"))
	add(keyRequest(OpGetQ, "b"))
	add(setRequest(OpSet, "a", "3", 0, 0))
	add(setRequest(OpSet, "a", "4", 0, 0))
	add(keyRequest(OpGetK, "a"))
	add(keyRequest(OpDelete, "a"))
	add(keyRequest(OpGetK, "a"))
	add(keyRequest(OpDeleteQ, "a"))
	add(keyRequest(OpDeleteQ, "b"))
	add(Request{Opcode: 0x70, Key: []byte("x")})
	add(keyRequest(OpGet, "b"))
	add(Request{Opcode: OpNoop})
	var got []string
	lastCAS := uint64(0)
	for _, r := range responses(t, d.feed(b)) {
		got = append(got, fmt.Sprintf("%v %q %q %v", r.Opcode, r.Key, r.Value, r.Status))
		if r.Opcode == OpSet {
			if r.CAS <= lastCAS {
				t.Errorf("CAS %d after %d", r.CAS, lastCAS)
			}
			lastCAS = r.CAS
		}
	}
	want := []string{
		`SET "" "" Success`,
		`GET "" "1" Success`,
		`GETQ "" "2" Success`,
		`SET "" "" Success`,
		`SET "" "" Success`,
		`GETK "a" "4" Success`,
		`DELETE "" "" Success`,
		`GETK "a" "" Not found`,
		`DELETEQ "" "Not found" Not found`,
		`opcode 0x70 "" "Unknown command" Unknown command`,
		`GET "" "Not found" Not found`,
		`NOOP "" "" Success`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

func TestCAS(t *testing.T) {
	d := newDriver(t, testServer(t, testStore(t, nil, nil), Options{}))
	first := d.ask(setRequest(OpSet, "k", "1", 5, 0))
	got := d.ask(keyRequest(OpGet, "k"))
	if first.CAS == 0 || got.CAS != first.CAS {
		t.Fatalf("SET said CAS %d, GET %d", first.CAS, got.CAS)
	}
	with := func(r Request, cas uint64) Request { r.CAS = cas; return r }
	steps := []struct {
		name string
		r    Request
		want Status
	}{
		{"set, wrong", with(setRequest(OpSet, "k", "2", 0, 0), first.CAS+1<<20), StatusExists},
		{"set, missing", with(setRequest(OpSet, "none", "2", 0, 0), first.CAS), StatusNotFound},
		{"delete, wrong", with(keyRequest(OpDelete, "k"), first.CAS+1<<20), StatusExists},
		{"delete, missing", with(keyRequest(OpDelete, "none"), first.CAS), StatusNotFound},
		{"get ignores it", with(keyRequest(OpGet, "k"), 77), StatusSuccess},
		{"set, right", with(setRequest(OpSet, "k", "2", 0, 0), first.CAS), StatusSuccess},
		{"set, used up", with(setRequest(OpSet, "k", "3", 0, 0), first.CAS), StatusExists},
	}
	for _, s := range steps {
		r := d.ask(s.r)
		if r.Status != s.want {
			t.Errorf("%s: %v, want %v", s.name, r.Status, s.want)
		}
		if r.Status != StatusSuccess && r.CAS != 0 {
			t.Errorf("%s: CAS %d with an error", s.name, r.CAS)
		}
	}
	got = d.ask(keyRequest(OpGet, "k"))
	if string(got.Value) != "2" || got.CAS <= first.CAS {
		t.Fatalf("after CAS: %+v", got)
	}
	if r := d.ask(with(keyRequest(OpDelete, "k"), got.CAS)); r.Status != StatusSuccess || r.CAS != 0 {
		t.Errorf("delete, right: %+v", r)
	}
}

func TestExpiry(t *testing.T) {
	c := newClock(time.Unix(1_800_000_000, 500_000_000))
	db := testStore(t, nil, func(o *lsm.Options) { o.Now = c.now })
	srv := testServer(t, db, Options{Now: c.now})
	start := c.now()
	for _, tc := range []struct {
		name   string
		expiry uint32
		lives  time.Duration // at least; 0 = gone at once, -1 = for ever
		gone   time.Duration
	}{
		{"never", 0, -1, 0},
		{"one second is never early", 1, 1000 * time.Millisecond, 1500 * time.Millisecond},
		{"thirty days are relative", relativeSecondsMax, relativeSecondsMax * time.Second, (relativeSecondsMax + 1) * time.Second},
		{"thirty-one days are January 1970", 31 * 24 * 3600, 0, 0},
		{"absolute in the past", 1_799_999_999, 0, 0},
		{"absolute in the future", 1_800_000_100, 99 * time.Second, 100 * time.Second},
		{"all ones are the year 2106", math.MaxUint32, 20 * 365 * 24 * time.Hour, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.set(start)
			d := newDriver(t, srv)
			if r := d.ask(setRequest(OpSet, "k", "v", 0, tc.expiry)); r.Status != StatusSuccess || r.CAS == 0 {
				t.Fatalf("SET: %+v", r)
			}
			check := func(after time.Duration, want Status) {
				t.Helper()
				c.set(start.Add(after))
				if r := d.ask(keyRequest(OpGet, "k")); r.Status != want {
					t.Errorf("after %v: %v, want %v", after, r.Status, want)
				}
			}
			switch tc.lives {
			case 0:
				check(0, StatusNotFound)
				if r := d.ask(keyRequest(OpDelete, "k")); r.Status != StatusNotFound {
					t.Errorf("DELETE of an expired document: %v", r.Status)
				}
				return
			case -1:
				check(50*365*24*time.Hour, StatusSuccess)
				return
			}
			check(0, StatusSuccess)
			check(tc.lives, StatusSuccess)
			if tc.gone > 0 {
				check(tc.gone, StatusNotFound)
			}
		})
	}
}

func TestAbsoluteExpiryDoesNotWrap(t *testing.T) {
	late := func() time.Time { return time.Unix(math.MaxUint32-10, 0) }
	if got := absoluteExpiry(100, late); got != math.MaxUint32 {
		t.Errorf("got %d", got)
	}
}

func TestFlush(t *testing.T) {
	c := newClock(time.Unix(1_800_000_000, 0))
	db := testStore(t, nil, func(o *lsm.Options) { o.Now = c.now })
	srv := testServer(t, db, Options{Now: c.now})
	d := newDriver(t, srv)
	delay := func(op Opcode, seconds uint32) Request {
		return Request{Opcode: op, Extras: binary.BigEndian.AppendUint32(nil, seconds)}
	}
	for _, tc := range []struct {
		name string
		r    Request
	}{
		{"no extras", Request{Opcode: OpFlush}},
		{"delay 0", delay(OpFlush, 0)},
		{"absolute past", delay(OpFlush, 1_799_999_999)},
		{"quiet", delay(OpFlushQ, 0)},
	} {
		before := srv.counters[cmdFlush].Load()
		d.ask(setRequest(OpSet, "k", "v", 0, 0))
		all := responses(t, d.feed(keyRequestFrame(OpGet, "k", tc.r.Append(nil))))
		get := all[len(all)-1]
		if get.Status != StatusNotFound {
			t.Errorf("%s: GET behind it: %v", tc.name, get.Status)
		}
		if len(all) == 2 && (all[0].Status != StatusSuccess || all[0].CAS != 0 || len(all[0].Value) != 0) {
			t.Errorf("%s: %+v", tc.name, all[0])
		}
		if quiet := tc.r.Opcode == OpFlushQ; quiet != (len(all) == 1) {
			t.Errorf("%s: %d answers", tc.name, len(all))
		}
		if n := srv.counters[cmdFlush].Load() - before; n != 1 {
			t.Errorf("%s: cmd_flush grew by %d", tc.name, n)
		}
		d.ask(setRequest(OpSet, "k", "new", 0, 0))
		if r := d.ask(keyRequest(OpGet, "k")); string(r.Value) != "new" {
			t.Errorf("%s: SET behind it: %+v", tc.name, r)
		}
	}
	if r := d.ask(delay(OpFlush, 1000)); r.Status != StatusSuccess {
		t.Fatalf("delayed: %+v", r)
	}
	if r := d.ask(keyRequest(OpGet, "k")); r.Status != StatusSuccess {
		t.Errorf("before a delayed FLUSH fires: %v", r.Status)
	}
}

func TestFlushTime(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		delay uint32
		want  time.Time
	}{
		{0, time.Time{}},
		{10, now.Add(10 * time.Second)},
		{relativeSecondsMax, now.Add(relativeSecondsMax * time.Second)},
		{relativeSecondsMax + 1, time.Time{}},
		{1_800_000_001, now.Add(time.Second)},
	} {
		if got := flushTime(tc.delay, func() time.Time { return now }); !got.Equal(tc.want) {
			t.Errorf("delay %d: %v, want %v", tc.delay, got, tc.want)
		}
	}
}

func TestStat(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{MaxConns: 77})
	d := newDriver(t, srv)
	group := func(name string) (map[string]string, []Response) {
		r := Request{Opcode: OpStat, Key: []byte(name), Opaque: 9}
		all := responses(t, d.feed(r.Append(nil)))
		m := map[string]string{}
		for _, r := range all {
			if r.Opcode != OpStat || r.Opaque != 9 || r.CAS != 0 || len(r.Extras) != 0 {
				t.Errorf("%+v", r)
			}
			if len(r.Key)+len(r.Value) >= 349 {
				t.Errorf("%s is too long for libmemcached", r.Key)
			}
			if _, ok := m[string(r.Key)]; ok && len(r.Key) > 0 {
				t.Errorf("%s comes twice", r.Key)
			}
			m[string(r.Key)] = string(r.Value)
		}
		return m, all
	}
	d.feed(keyRequestFrame(OpGet, "none", setFrame(OpSet, "k")))
	m, all := group("")
	if last := all[len(all)-1]; len(last.Key) != 0 || len(last.Value) != 0 || last.Status != StatusSuccess {
		t.Errorf("terminator %+v", last)
	}
	for _, name := range strings.Fields(`pid uptime time version pointer_size curr_items total_items bytes cmd_get cmd_set cmd_flush
		cmd_touch get_hits get_misses curr_connections threads limit_maxbytes evictions`) {
		if m[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	cache, _ := reflect.TypeFor[lsm.Stats]().FieldByName("DocumentCache")
	for i := range cache.Type.NumField() {
		if name := cache.Tag.Get("json") + "_" + cache.Type.Field(i).Tag.Get("json"); m[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	// Bytes by cause: all of them, or their sum is not what was written.
	written := reflect.TypeFor[lsm.Written]()
	for i := range written.NumField() {
		if name := "written_" + written.Field(i).Tag.Get("json"); m[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	for _, name := range strings.Fields("flushes compactions compactions_failed collections collections_failed allocated_bytes live_bytes") {
		if m[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
	if m["cmd_get"] != "1" || m["get_misses"] != "1" || m["cmd_set"] != "1" || m["version"] != Version {
		t.Errorf("%v", m)
	}
	m, _ = group("settings")
	for _, name := range strings.Fields("maxconns domain_socket evictions cas_enabled flush_enabled") {
		if m[name] == "" {
			t.Errorf("settings: %s is missing", name)
		}
	}
	if m["maxconns"] != "77" {
		t.Errorf("maxconns %s", m["maxconns"])
	}
	if _, all := group("reset"); len(all) != 1 || len(all[0].Key) != 0 || all[0].Status != StatusSuccess {
		t.Errorf("reset: %+v", all)
	}
	if m, _ := group(""); m["cmd_set"] != "0" {
		t.Errorf("after reset: cmd_set %s", m["cmd_set"])
	}
	if _, all := group("nonsense"); len(all) != 1 || all[0].Status != StatusNotFound {
		t.Errorf("unknown group: %+v", all)
	}
}

func TestPassEndsAtItsBounds(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	d := newDriver(t, srv)
	value := strings.Repeat("x", 300<<10)
	var b []byte
	for i := range 10 {
		r := setRequest(OpSet, fmt.Sprint("k", i), value, 0, 0)
		b = r.Append(b)
	}
	d.passes = 0
	if n := len(responses(t, d.feed(b))); n != 10 {
		t.Fatalf("%d answers", n)
	}
	if d.passes != 4 { // 3 of 300 KiB a pass
		t.Errorf("10 SETs of 300 KiB took %d passes, want 4", d.passes)
	}
	b = nil
	for i := range 100 {
		b = keyRequestFrame(OpGetK, fmt.Sprint("k", i%10), b)
	}
	b = keyRequestFrame(OpNoop, "", b)
	d.pending, d.passes = b, 0
	total, largest := 0, 0
	for {
		r := d.p.pass(&d.s, d.pending)
		d.passes++
		largest = max(largest, len(d.p.out))
		for _, a := range responses(t, d.p.out) {
			if want := fmt.Sprint("k", total%10); total < 100 && (string(a.Key) != want || len(a.Value) != len(value)) {
				t.Fatalf("answer %d has key %q and %d bytes", total, a.Key, len(a.Value))
			}
			total++
		}
		d.p.release()
		d.pending = d.pending[r.consumed:]
		if !r.more {
			break
		}
	}
	if total != 101 || largest > passAnswerBytesMax || d.passes != 4 {
		t.Errorf("%d answers in %d passes of at most %d bytes", total, d.passes, largest)
	}
	if srv.buffers.Used() != 0 {
		t.Errorf("%d bytes are still reserved", srv.buffers.Used())
	}
}

// TestAnswersWithoutMemory takes the budget away: answers come in small passes,
// and one that needs more waits for its memory and then arrives.
func TestAnswersWithoutMemory(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	d := newDriver(t, srv)
	small, large := strings.Repeat("s", 100<<10), strings.Repeat("l", 2<<20)
	d.ask(setRequest(OpSet, "small", small, 0, 0))
	d.ask(setRequest(OpSet, "large", large, 0, 0))
	all := srv.buffers.Limit() - srv.buffers.Used()
	srv.buffers.Reserve(all)
	var b []byte
	for range 5 {
		b = keyRequestFrame(OpGet, "small", b)
	}
	b = keyRequestFrame(OpGet, "large", b)
	d.pending = b
	answers := 0
	for {
		r := d.p.pass(&d.s, d.pending)
		if len(d.p.out) > freeAnswerBytes {
			t.Fatalf("%d bytes of answers without memory", len(d.p.out))
		}
		answers += len(responses(t, d.p.out))
		d.p.release()
		d.pending = d.pending[r.consumed:]
		if r.memory > 0 {
			if answers != 5 || r.memory != 3<<20 || r.consumed != 0 {
				t.Fatalf("wants %d bytes after %d answers", r.memory, answers)
			}
			break
		}
		if !r.more {
			t.Fatal("the large answer left without memory")
		}
	}
	srv.buffers.Release(all)
	if got := responses(t, d.feed(nil)); len(got) != 1 || string(got[0].Value) != large {
		t.Fatalf("%d answers", len(got))
	}
}

func TestFailure(t *testing.T) {
	for _, tc := range []struct {
		err    error
		status Status
		text   string
	}{
		{fmt.Errorf("apply: %w", lsm.ErrOverloaded), StatusOutOfMemory, lsm.ErrOverloaded.Error()},
		{lsm.ErrDiskFull, StatusOutOfMemory, lsm.ErrDiskFull.Error()},
		{fmt.Errorf("%w: pwrite: input/output error", lsm.ErrReadOnly), StatusOutOfMemory, lsm.ErrReadOnly.Error()},
		{lsm.ErrValueSize, StatusTooLarge, "Too large."},
		{lsm.ErrBatchTooLarge, StatusTooLarge, "Too large."},
		{lsm.ErrKeySize, StatusInvalid, "Invalid arguments"},
		{fmt.Errorf("read 000041.seg: %w", lsm.ErrCorrupt), StatusInternal, "Internal error"},
		{errors.New("anything else"), StatusInternal, "Internal error"},
	} {
		status, text := failure(tc.err)
		if status != tc.status || text != tc.text {
			t.Errorf("%v: %v %q", tc.err, status, text)
		}
	}
}

func TestNothingBehindQuitIsRun(t *testing.T) {
	srv := testServer(t, testStore(t, nil, nil), Options{})
	d := newDriver(t, srv)
	b := append(keyRequestFrame(OpQuit, "", setFrame(OpSetQ, "before")), setFrame(OpSetQ, "behind")...)
	if got := responses(t, d.feed(b)); len(got) != 1 || got[0].Opcode != OpQuit || !d.closed {
		t.Fatalf("%+v", got)
	}
	d = newDriver(t, srv)
	if got := d.ask(keyRequest(OpGet, "before")); got.Status != StatusSuccess {
		t.Errorf("before: %v", got.Status)
	}
	if got := d.ask(keyRequest(OpGet, "behind")); got.Status != StatusNotFound {
		t.Errorf("behind: %v", got.Status)
	}
}
