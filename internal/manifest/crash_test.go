package manifest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"fluxkv/internal/vfs"
	"fluxkv/internal/vfs/faultfs"
	"fluxkv/internal/vfs/memfs"
)

// step is one thing a scenario does.
type step struct {
	verb string // create, apply, promise, close, open, grow (rotate behind the next apply), during CALL
	edit string
}

// A step "during CALL" is an edit that comes while the rotation of the next
// apply is about to make this call of its snapshot, without the lock.
var snapshotCalls = map[string]vfs.OpKind{"create": vfs.OpCreate, "write": vfs.OpWriteAt, "sync": vfs.OpSync, "syncdir": vfs.OpSyncDir}

// scenarios are tiny lives of a manifest. crossed lists calls each must make,
// so that a scenario cannot quietly stop testing what its name says.
var scenarios = []struct {
	name    string
	steps   []step
	crossed map[string]vfs.OpKind // name pattern -> kind
}{
	{
		name:    "creation",
		steps:   []step{{"create", "next 3"}},
		crossed: map[string]vfs.OpKind{"FORMAT.tmp": vfs.OpRename, "CURRENT.tmp": vfs.OpRename, "data": vfs.OpSyncDir},
	},
	{
		name: "edits and a promise",
		steps: []step{{"create", ""}, {"apply", "add 2 log 65536; replay 2 4096 1"}, {"apply", "seal 2 end=8192 last=9 file=9000; add 3 log 65536"},
			{"promise", ""}, {"apply", "replay 3 4096 10; drop 2; next 10"}, {"close", ""}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000001": vfs.OpSync},
	},
	{
		name: "switch after a start",
		steps: []step{{"create", "next 5"}, {"apply", "add 2 log 65536"}, {"close", ""}, {"open", ""}, {"apply", "end 2 end=8192 last=9 next=16777226"},
			{"apply", "add 7 log 65536"}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000003": vfs.OpCreate, "CURRENT.tmp": vfs.OpRename, "MANIFEST-000001": vfs.OpRemove},
	},
	{
		name:    "switch for size",
		steps:   []step{{"create", ""}, {"apply", "next 4"}, {"grow", ""}, {"apply", "clear 3; pending 7"}, {"apply", "next 6"}, {"grow", ""}, {"apply", "pending 0"}, {"apply", ""}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000003": vfs.OpSync, "MANIFEST-000002": vfs.OpRemove},
	},
	{
		name: "tables come and go",
		steps: []step{{"create", ""}, {"apply", "add 2 log 65536; replay 2 4096 1"},
			{"apply", "seal 2 end=8192 last=9 file=9000; add 3 log 65536; table 4 kv=1 run=4 keys=a..c seqnos=1..9 seg=2; flushed 1 9; replay 3 4096 10; next 10; dead 2 3"},
			{"apply", "add 5 gc 65536; seal 5 end=8192 last=9 file=8192; drop 2; forward 2 5:1..9; dead 5 4"}, {"grow", ""},
			{"apply", "untable 4; table 6 kv=1 level=1 keys=a..c seqnos=1..9 seg=5; unforward 2; dead 5 6,7"}, {"close", ""}, {"open", ""}, {"apply", "dead 5 8; flushed 1 12"}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000001": vfs.OpRemove, "CURRENT.tmp": vfs.OpRename},
	},
	{
		name: "edits while a snapshot is written",
		steps: []step{{"create", ""}, {"apply", "add 2 log 65536; replay 2 4096 1"}, {"grow", ""},
			{"during create", "add 3 log 65536; seal 2 end=8192 last=9 file=9000"},
			{"during write", "table 4 kv=1 run=4 keys=a..c seqnos=1..9 seg=2; flushed 1 9; replay 3 4096 10"},
			{"during sync", "dead 2 3,5; next 10"},
			{"during syncdir", "untable 4; drop 2"},
			{"apply", "clear 3"}, {"apply", "next 20"}, {"promise", ""}, {"close", ""}, {"open", ""}, {"apply", "next 21"}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000001": vfs.OpRemove},
	},
	{
		name: "one rotation after the other",
		steps: []step{{"create", ""}, {"grow", ""}, {"during write", "next 5"}, {"apply", "next 4"}, {"grow", ""}, {"during create", "next 7; expiry 9"}, {"apply", "next 6"},
			{"promise", ""}, {"grow", ""}, {"during syncdir", "clear 2"}, {"apply", "pending 7"}, {"apply", "pending 0"}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000001": vfs.OpRemove, "MANIFEST-000002": vfs.OpRemove},
	},
	{
		name:    "starts without a change",
		steps:   []step{{"create", "next 5"}, {"open", ""}, {"close", ""}, {"open", ""}, {"apply", "next 6"}, {"open", ""}},
		crossed: map[string]vfs.OpKind{"MANIFEST-000001": vfs.OpReadAt},
	},
}

// player runs a scenario and notes what was acknowledged.
type player struct {
	t       testing.TB
	fs      vfs.FS
	log     *Log
	retry   bool   // on a temporary failure, as the store does
	during  []step // edits for the next rotation
	nested  bool   // one of them came during the apply under way
	met     int    // so many did
	err     error  // of that edit
	created bool   // Create returned
	acked   State  // after the last successful change
	flying  *State // what the change under way would make
}

// run returns the first error that ends the run of the store. Rotations run
// within the apply that starts them, so that every run makes the same calls.
func (p *player) run(disk *memfs.FS, steps []step) error {
	disk.SetHook(func(op vfs.Op) error {
		p.meet(op)
		return nil
	})
	defer disk.SetHook(nil)
	for _, s := range steps {
		if err := p.try(s); err != nil {
			return fmt.Errorf("%s %s: %w", s.verb, s.edit, err)
		}
		if p.err != nil {
			return p.err
		}
	}
	return nil
}

func (p *player) try(s step) error {
	err := p.step(s)
	for tries := 0; err != nil && p.retry && errors.Is(err, vfs.ErrNoSpace) && !errors.Is(err, ErrPoisoned) && tries < 3; tries++ {
		err = p.step(s)
	}
	return err
}

// meet makes the edits that wait for this call of a snapshot. The edit that
// began the rotation is durable by then.
func (p *player) meet(op vfs.Op) {
	for len(p.during) > 0 && p.err == nil {
		name, _ := strings.CutPrefix(p.during[0].verb, "during ")
		if op.Kind != snapshotCalls[name] || !p.log.mu.TryLock() {
			return
		}
		rotating := p.log.rotation != nil
		p.log.mu.Unlock()
		if !rotating {
			return
		}
		s := step{"apply", p.during[0].edit}
		p.during = p.during[1:]
		if !p.nested {
			p.acked = *p.flying
		}
		p.nested = true
		p.met++
		if err := p.try(s); err != nil {
			p.err = fmt.Errorf("during %s %s: %w", name, s.edit, err)
		}
	}
}

func (p *player) step(s step) error {
	switch s.verb {
	case "create":
		e := parseEdit(p.t, s.edit)
		st, err := emptyState().Apply(&e)
		if err != nil {
			p.t.Fatal(err)
		}
		p.flying = &st
		if err := p.createFormat(); err != nil {
			return err
		}
		if p.log, err = Create(p.fs, testDir, testSecret, e); err != nil {
			return err
		}
		inline(p.log)
		p.created, p.acked, p.flying = true, p.log.State(), nil
	case "apply":
		e := parseEdit(p.t, s.edit)
		flying, err := p.acked.Apply(&e)
		if err != nil {
			p.t.Fatal(err)
		}
		p.flying = &flying
		outer := !p.nested
		st, err := p.log.Apply(&e)
		if err != nil {
			return err
		}
		if !outer {
			p.acked, p.flying = st, nil
			return nil
		}
		if !p.nested { // else the last of those says what is acknowledged
			p.acked, p.flying = st, nil
		}
		p.nested = false
		for len(p.during) > 0 && p.err == nil { // the rotation did not come so far
			s := step{"apply", p.during[0].edit}
			p.during = p.during[1:]
			if err := p.try(s); err != nil {
				return err
			}
		}
	case "during create", "during write", "during sync", "during syncdir":
		p.during = append(p.during, s)
	case "promise":
		return p.log.Promise()
	case "close":
		return p.log.Close()
	case "open":
		l, st, err := Open(p.fs, testDir, testSecret)
		if err != nil {
			return err
		}
		if logical(st) != logical(p.acked) {
			p.t.Fatalf("opened\n%swant\n%s", dump(st), dump(p.acked))
		}
		p.log = inline(l)
	case "grow":
		grow(p.log)
	default:
		p.t.Fatalf("unknown step %s", s.verb)
	}
	return nil
}

// createFormat does what a store does first; a store whose creation was cut
// short has it already.
func (p *player) createFormat() error {
	err := CreateFormat(p.fs, testDir, Format{VBuckets: 16, KVStores: 16, Secret: testSecret, Created: time.Unix(0, 1)})
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// logical shows what edits decide, without file numbers: those may be higher
// than what was acknowledged, because failed changes used some up.
func logical(st State) string {
	st.NextFileNumber = 0
	return dump(st)
}

// check opens the disk and compares: acknowledged is there, the change under
// way is there whole or not at all, and nothing else.
func (p *player) check(disk *memfs.FS) (State, error) {
	stage, err := FindStage(disk, testDir)
	if err != nil {
		return State{}, err
	}
	if stage != StageCreated {
		if p.created {
			return State{}, fmt.Errorf("stage %v of a store whose creation was acknowledged", stage)
		}
		return State{}, nil
	}
	if _, err := ReadFormat(disk, testDir); err != nil {
		return State{}, err
	}
	_, st, err := Open(disk, testDir, testSecret)
	switch {
	case err != nil:
		return State{}, err
	case p.created && st.NextFileNumber < p.acked.NextFileNumber:
		return State{}, fmt.Errorf("next file number %d, but %d was recorded", st.NextFileNumber, p.acked.NextFileNumber)
	case p.created && logical(st) == logical(p.acked):
	case p.flying != nil && logical(st) == logical(*p.flying):
	default:
		return State{}, fmt.Errorf("found\n%s", dump(st))
	}
	return st, nil
}

// again is what happens after a crash: start, record, end. When the store never
// came to be it is made anew.
func (p *player) again() []step {
	if !p.created {
		return []step{{"create", "next 3"}, {"apply", "next 77"}}
	}
	return []step{{"open", ""}, {"apply", "next 16777777"}, {"apply", "add 1000 log 4096"}, {"close", ""}}
}

// TestCrashAtEveryCall crashes each scenario at every call, with every damage,
// then crashes the start that follows at every one of its calls.
func TestCrashAtEveryCall(t *testing.T) {
	// It runs in one goroutine, where the race detector has nothing to find.
	seeds, short := int64(3), testing.Short() || raceBuild
	if short {
		seeds = 1
	}
	runs := 0
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			for n := int64(1); ; n++ {
				disk := newDisk(t)
				before := disk.Calls()
				disk.CrashAt(before+n, memfs.Within)
				p := &player{t: t, fs: disk}
				err := p.run(disk, sc.steps)
				op, crashed := disk.Crashed()
				if crashed && err == nil && op.Kind != vfs.OpClose && op.Kind != vfs.OpRemove {
					t.Fatalf("crashed at %v, but every step succeeded", op)
				}
				if !crashed && err != nil {
					t.Fatal(err)
				}
				for _, damage := range memfs.Damages() {
					for seed := range seeds {
						runs++
						copied := disk.CrashCopy(seed, damage)
						st, err := p.check(copied)
						if err != nil {
							t.Fatalf("crash at %v, %v, seed %d: %v\nacknowledged:\n%s", op, damage, seed, err, dump(p.acked))
						}
						if seed == 0 && (!short || damage == memfs.DropAll && n%4 == 1) {
							runs += p.crashAgain(t, disk, damage, st, fmt.Sprintf("crash at %v, %v", op, damage))
						}
					}
				}
				if !crashed {
					during := 0
					for _, s := range sc.steps {
						if strings.HasPrefix(s.verb, "during ") {
							during++
						}
					}
					if p.met != during {
						t.Errorf("%d of %d edits met a rotation", p.met, during)
					}
					for pattern, kind := range sc.crossed {
						if disk.Count(pattern, kind) == 0 {
							t.Errorf("the scenario made no %v of %s", kind, pattern)
						}
					}
					break
				}
			}
		})
	}
	t.Logf("%d crashed stores opened", runs)
}

// crashAgain starts the store that a crash left, crashes that start at every
// call, and checks what is left then.
func (p *player) crashAgain(t *testing.T, disk *memfs.FS, damage memfs.Damage, found State, where string) int {
	runs := 0
	for n := int64(1); ; n++ {
		second := disk.CrashCopy(0, damage)
		second.CrashAt(n, memfs.Within)
		q := &player{t: t, fs: second, created: found.Manifest != 0, acked: found}
		err := q.run(second, q.again())
		op, crashed := second.Crashed()
		if !crashed && err != nil {
			t.Fatalf("%s: the next start: %v", where, err)
		}
		for _, d := range []memfs.Damage{memfs.DropAll, memfs.KeepAll, memfs.Random, memfs.Torn} {
			runs++
			if _, err := q.check(second.CrashCopy(n, d)); err != nil {
				t.Fatalf("%s, then at %v, %v: %v\nacknowledged:\n%s", where, op, d, err, dump(q.acked))
			}
		}
		if !crashed {
			return runs
		}
	}
}

// TestErrorAtEveryCall fails each call of each scenario, once and for ever: an
// I/O error, a full disk, a short write, a sync that fails and drops the data.
// A full disk met once must not be noticed beyond a retry, except where the
// manifest is poisoned.
func TestErrorAtEveryCall(t *testing.T) {
	runs := 0
	for _, sc := range scenarios {
		for _, fault := range []faultfs.Fault{faultfs.EIO, faultfs.ENOSPC, faultfs.ShortWrite, faultfs.SyncDrop} {
			for _, once := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%v/once=%v", sc.name, fault, once), func(t *testing.T) {
					for n := 1; ; n++ {
						disk := newDisk(t)
						faulty := faultfs.Wrap(disk)
						faulty.Add(faultfs.Rule{From: n, Fault: fault, Once: once})
						p := &player{t: t, fs: faulty, retry: true}
						err := p.run(disk, sc.steps)
						hit := faulty.Injected() > 0
						if err != nil && !errors.Is(err, faultfs.ErrInjected) {
							t.Fatalf("call %d failed, and the store says only: %v", n, err)
						}
						if err != nil && once && fault == faultfs.ENOSPC && !errors.Is(err, ErrPoisoned) {
							t.Fatalf("call %d met a full disk once; no retry healed it: %v", n, err)
						}
						for _, damage := range []memfs.Damage{memfs.DropAll, memfs.KeepAll, memfs.Random} {
							runs++
							if _, err := p.check(disk.CrashCopy(int64(n), damage)); err != nil {
								t.Fatalf("call %d failed, %v: %v\nacknowledged:\n%s", n, damage, err, dump(p.acked))
							}
						}
						if !hit {
							break
						}
					}
				})
			}
		}
	}
	t.Logf("%d stores opened", runs)
}
