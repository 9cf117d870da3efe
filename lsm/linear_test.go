package lsm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/memfs"
)

// The state of a key is its value, or absent. Values are written once, so that
// a value is as good as its CAS.
type register struct {
	value  string
	exists bool
}

type linearKind int

const (
	linearGet linearKind = iota
	linearSet
	linearDelete  // blind
	linearReplace // sets value if the old one is expect
	linearRemove  // deletes if there is something
	linearAdd     // counts up, from 0 when absent
)

func (k linearKind) String() string {
	return [...]string{"get", "set", "delete", "replace", "remove", "add"}[k]
}

type linearInput struct {
	kind          linearKind
	key           string
	value, expect string
}

// linearOutput is an answer. An operation that a crash interrupted has none:
// it may have happened at any time since, or never, which is the same as after
// everything else.
type linearOutput struct {
	unknown bool
	found   register // get, and the number that add returns
	done    bool     // replace, remove
}

var registerModel = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(register), input.(linearInput), output.(linearOutput)
		next, answer := s, linearOutput{}
		switch in.kind {
		case linearGet:
			answer.found = s
		case linearSet:
			next = register{in.value, true}
		case linearDelete:
			next = register{}
		case linearReplace:
			if answer.done = s == (register{in.expect, true}); answer.done {
				next = register{in.value, true}
			}
		case linearRemove:
			answer.done = s.exists
			next = register{}
		case linearAdd:
			n, _ := strconv.Atoi(s.value)
			next = register{strconv.Itoa(n + 1), true}
			answer.found = next
		}
		return out.unknown || out == answer, next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// linearClient is one caller, like a connection.
type linearClient struct {
	db    *DB
	id    int
	rnd   *rand.Rand
	start time.Time
	n     int
	pad   int // bytes added to values, so that some are separated
	own   Seqno
	seen  map[string]string // value last read of a key

	history map[string][]porcupine.Operation
}

func (c *linearClient) now() int64 { return int64(time.Since(c.start)) }

// note adds a finished operation, or one without an answer.
func (c *linearClient) note(in linearInput, call int64, out linearOutput) {
	if in.kind == linearGet && !c.db.Durable() && c.db.readOnly.Load() != nil {
		return // a store that failed shows what is durable, which is older
	}
	op := porcupine.Operation{ClientId: c.id, Input: in, Call: call, Output: out, Return: c.now()}
	if out.unknown {
		op.Return = math.MaxInt64
	}
	c.history[in.key] = append(c.history[in.key], op)
}

// value returns one that nobody else writes. The padding is not in the model.
func (c *linearClient) value() string {
	c.n++
	return fmt.Sprintf("%d.%d", c.id, c.n)
}

func (c *linearClient) encode(v string) []byte {
	return fmt.Appendf(nil, "%s|%*s", v, c.rnd.IntN(c.pad+1), "")
}

func decodeLinear(b []byte) string {
	for i := range b {
		if b[i] == '|' {
			return string(b[:i])
		}
	}
	return "not a value: " + string(b)
}

var linearKeys = []string{"r0", "r1", "r2", "r3", "n0", "n1"}

// run does operations until the store fails.
func (c *linearClient) run(ops int) error {
	for range ops {
		var err error
		key := linearKeys[c.rnd.IntN(len(linearKeys))]
		switch p := c.rnd.IntN(10); {
		case p < 3:
			err = c.get(key)
		case p < 4:
			err = c.getMany()
		case key[0] == 'n' && p < 9:
			err = c.update(linearInput{kind: linearAdd, key: key})
		case p < 6:
			err = c.write(key)
		case p < 9 && c.seen[key] != "":
			err = c.update(linearInput{kind: linearReplace, key: key, value: c.value(), expect: c.seen[key]})
		default:
			err = c.update(linearInput{kind: linearRemove, key: key})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *linearClient) get(key string) error {
	call := c.now()
	item, err := c.db.Get(nil, []byte(key))
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err // a read that failed has told nothing
	}
	c.found(key, call, &item, err)
	return nil
}

func (c *linearClient) found(key string, call int64, item *Item, err error) {
	out := linearOutput{}
	if err == nil {
		out.found = register{decodeLinear(item.Value), true}
	}
	c.seen[key] = out.found.value
	c.note(linearInput{kind: linearGet, key: key}, call, out)
}

func (c *linearClient) getMany() error {
	var b ReadBatch
	for _, key := range linearKeys {
		b.Add([]byte(key))
	}
	b.After(c.own)
	call := c.now()
	if err := c.db.GetMany(&b); err != nil {
		return err
	}
	defer b.Release()
	// What a reader saw of its own writes is told when it is durable.
	if err := c.db.WaitDurable(c.own); err != nil {
		return err
	}
	for i, key := range linearKeys {
		if err := b.Err(i); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		c.found(key, call, b.Item(i), b.Err(i))
	}
	return nil
}

// write applies a batch of blind writes to different keys.
func (c *linearClient) write(first string) error {
	var b Batch
	var ins []linearInput
	for i, key := range linearKeys {
		if key != first && (key[0] == 'n' || c.rnd.IntN(8) > 0) {
			continue
		}
		in := linearInput{kind: linearSet, key: key, value: c.value()}
		if key[0] == 'n' || c.rnd.IntN(4) == 0 {
			in.kind, in.value = linearDelete, ""
			b.Delete([]byte(linearKeys[i]))
		} else {
			b.Set([]byte(key), c.encode(in.value), Meta{})
		}
		ins = append(ins, in)
	}
	call := c.now()
	w := WriteOptions{NoWait: c.rnd.IntN(2) == 0}
	last, err := c.db.Apply(&b, w)
	if err == nil && w.NoWait {
		c.own = last
		err = c.db.WaitDurable(last)
	}
	for _, in := range ins {
		c.note(in, call, linearOutput{unknown: err != nil})
	}
	return err
}

func (c *linearClient) update(in linearInput) error {
	call := c.now()
	var out linearOutput
	seen, err := c.db.Update([]byte(in.key), func(old *Item) (UpdateOp, []byte, Meta, error) {
		s := register{}
		if old != nil {
			s = register{decodeLinear(old.Value), true}
		}
		_, next := registerModel.Step(s, in, linearOutput{unknown: true})
		out = linearOutput{}
		switch n := next.(register); in.kind {
		case linearReplace:
			if out.done = s.exists && s.value == in.expect; out.done {
				return UpdateSet, c.encode(n.value), Meta{}, nil
			}
		case linearRemove:
			if out.done = s.exists; out.done {
				return UpdateDelete, nil, Meta{}, nil
			}
		case linearAdd:
			out.found = n
			return UpdateSet, c.encode(n.value), Meta{}, nil
		}
		return UpdateNone, nil, Meta{}, nil
	})
	if err == nil {
		c.own = max(c.own, seen)
		err = c.db.WaitDurable(seen)
	}
	if err != nil {
		out = linearOutput{unknown: true}
	}
	c.note(in, call, out)
	return err
}

// TestLinearizable runs callers against a store on a slow disk, flushed all the
// time, through power cuts, and wants one order of all operations on each key
// that explains every answer. What a store that is not durable has answered may
// vanish in a power cut: each of its runs is a history of its own, which begins
// with what was recovered.
func TestLinearizable(t *testing.T) {
	for _, c := range []struct {
		name string
		pad  int
		o    Options
	}{
		{"one group in flight", 20, Options{KVStores: 4}},
		{"three groups in flight", 20, Options{KVStores: 1, VBuckets: 1, LogInflight: 3}},
		{"values in the log", 400, Options{KVStores: 4, InlineLimit: 64, LogInflight: 2}},
		{"flushes side by side", 400, Options{KVStores: 4, InlineLimit: 64, Flushers: 4, BlockBytes: 512}},
		{"a document cache", 400, Options{KVStores: 4, InlineLimit: 64, DocumentCacheBytes: mib}},
		{"a tiny document cache, not durable", 8000, Options{KVStores: 4, InlineLimit: 64, NonDurable: true, AsyncWindow: time.Millisecond, DocumentCacheBytes: 128 * kib}},
		{"not durable", 400, Options{KVStores: 4, InlineLimit: 64, NonDurable: true, AsyncWindow: time.Millisecond}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for range 8 {
				seed := rand.Uint64()
				if !linearRun(t, seed, c.pad, c.o) {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

const (
	linearClients = 6
	linearCrashes = 3
)

func linearRun(t *testing.T, seed uint64, pad int, o Options) bool {
	rnd := rand.New(rand.NewPCG(seed, 0))
	disk := memfs.New()
	tiny := testOptions(disk)
	o.MemQuota, o.WriteCache, o.MaxItemBytes, o.documentCacheMin = tiny.MemQuota, tiny.WriteCache, 16*kib, 128*kib
	o.SegmentBytes, o.segmentBytesMin, o.groupBytesMax = 64*kib, 64*kib, 4*kib
	o.Logf = func(string, ...any) {} // power cuts are many
	start := time.Now()
	var clients []*linearClient
	for i := range linearClients * (linearCrashes + 1) {
		clients = append(clients, &linearClient{id: i, rnd: rand.New(rand.NewPCG(seed, uint64(i+1))), start: start,
			pad: pad, seen: map[string]string{}, history: map[string][]porcupine.Operation{}})
	}
	flushed, ops := int64(0), 100
	if o.NonDurable {
		ops = 300 // they wait for no disk
	}
	var found [linearCrashes + 1]map[string]porcupine.Operation
	for round := range linearCrashes + 1 {
		o.FS = disk
		db := mustOpen(t, "data", o)
		found[round] = recoveredRegisters(t, db, int64(time.Since(start)))
		disk.SetHook(slowWrites(seed + uint64(round)))
		if round < linearCrashes {
			when := []memfs.When{memfs.Before, memfs.Within}[rnd.IntN(2)]
			disk.CrashAt(disk.Calls()+20+int64(rnd.IntN(400)), when)
		}
		var wg, flushes sync.WaitGroup
		var done atomic.Bool
		flushes.Go(func() {
			for !done.Load() && db.Flush() == nil {
				runtime.Gosched()
			}
		})
		for _, c := range clients[round*linearClients:][:linearClients] {
			c.db = db
			wg.Go(func() {
				if err := c.run(ops); err != nil && round == linearCrashes {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		done.Store(true)
		flushes.Wait()
		flushed += db.Stats().Flushes
		db.Close()
		disk = disk.CrashCopy(int64(seed), memfs.Damages()[rnd.IntN(len(memfs.Damages()))])
	}
	if flushed < linearCrashes {
		t.Errorf("only %d flushes", flushed)
	}
	if !o.NonDurable {
		return linearizable(t, clients, nil)
	}
	ok := true
	for round := range found {
		ok = linearizable(t, clients[round*linearClients:][:linearClients], found[round]) && ok
	}
	return ok
}

// recoveredRegisters reads what was recovered, as writes before all others.
func recoveredRegisters(t *testing.T, db *DB, now int64) map[string]porcupine.Operation {
	all := map[string]porcupine.Operation{}
	for _, key := range linearKeys {
		in := linearInput{kind: linearDelete, key: key}
		item, err := db.Get(nil, []byte(key))
		switch {
		case err == nil:
			in.kind, in.value = linearSet, decodeLinear(item.Value)
		case !errors.Is(err, ErrNotFound):
			t.Errorf("recovered %s: %v", key, err)
		}
		all[key] = porcupine.Operation{Input: in, Output: linearOutput{}, Call: now, Return: now}
	}
	return all
}

// linearizable checks what clients were told, key by key, on top of first.
func linearizable(t *testing.T, clients []*linearClient, first map[string]porcupine.Operation) bool {
	ok := true
	for _, key := range linearKeys {
		var history []porcupine.Operation
		if op, found := first[key]; found {
			history = append(history, op)
		}
		unknown := 0
		for _, c := range clients {
			history = append(history, c.history[key]...)
		}
		for i := range history {
			if history[i].Output.(linearOutput).unknown {
				unknown++
			}
		}
		switch porcupine.CheckOperationsTimeout(registerModel, history, time.Minute) {
		case porcupine.Illegal:
			t.Errorf("key %s: no order explains the %d answers", key, len(history))
			ok = false
		case porcupine.Unknown:
			t.Logf("key %s: %d answers, %d unknown, took too long to check", key, len(history), unknown)
		}
	}
	return ok
}

// slowWrites makes durable writes take up to 300 microseconds.
func slowWrites(seed uint64) func(memfs.Op) error {
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	return func(op memfs.Op) error {
		if op.Kind == vfs.OpWriteDurable {
			mu.Lock()
			d := time.Duration(rnd.IntN(300)) * time.Microsecond
			mu.Unlock()
			time.Sleep(d)
		}
		return nil
	}
}
