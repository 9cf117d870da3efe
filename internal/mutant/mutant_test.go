package mutant

import (
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// caughtBy says which loop, on which scenario, must notice each defect. It is
// the quickest that does; most defects fail in many places.
var caughtBy = map[string]string{
	"AcceptStaleGroup":     "TestCrashLoop/pool",
	"AcceptTornGroup":      "TestCrashLoop/large_documents",
	"AckBeforeSync":        "TestCrashLoop/single_write",
	"AlwaysBottom":         "TestCrashLoop/two_flushes",
	"ClearBeforeDurable":   "TestCrashLoop/clear$",
	"ClearIgnoredInTables": "TestCrashLoop/clear_and_flush_under_a_snapshot",
	"ClearUnderSnapshot":   "TestCrashLoop/clear_and_flush_under_a_snapshot",
	"CollectClearEarly":    "TestCrashLoop/clear_of_moved",
	"CollectReplayed":      "TestCrashLoop/^the_log_rolls_on",
	"CountPhantoms":        "TestCrashLoop/collection_of_outputs",
	"DeadInWrongSegment":   "TestCrashLoop/flush_of_small_and_large",
	"DropBeforeEdit":       "TestCrashLoop/pool",
	"DropBeforeFlushEdit":  "TestCrashLoop/flush_that_makes_several_tables",
	"DropForwardEarly":     "TestCrashLoop/collection_of_log",
	"DropInputsEarly":      "TestCrashLoop/eight_slices",
	"DropVictimsEarly":     "TestCrashLoop/collection_of_log",
	"DurableOutOfOrder":    "TestCrashLoop/several_writers",
	"FenceNeighbours":      "TestR21_AnUnreadableVictimIsLeftAlone",
	"FillBelowWord":        "TestR16_AFillBelowTheWordIsRefused",
	"FlushBeforeDurable":   "TestCrashLoop/store_that_is_not_durable,_flushed",
	"FlushInFlight":        "TestCrashLoop/writers_and_flushes_at_once",
	"FlushNewestFirst":     "TestCrashLoop/disk_full",
	"FlushedAhead":         "TestCrashLoop/writers_go_on",
	"ForgetDeadMeanwhile":  "TestCrashLoop/documents_die",
	"ForwardTooNarrow":     "TestCrashLoop/collection_of_log",
	"FreeUnreadable":       "TestCrashLoop/a_victim_and_a_table",
	"HorizonAtVisible":     "TestCrashLoop/flush_under_a_snapshot",
	"IgnoreEvidence":       "TestRot",
	"IgnoreOvertaking":     "TestCrashLoop/clear_during_a_flush",
	"IgnoreShortWrite":     "TestFaultLoop/single_write/short_write",
	"InstallBeforeEdit":    "TestCrashLoop/disk_full",
	"KeepFailedTables":     "TestCrashLoop/disk_full",
	"KeepMovedSum":         "TestG8_RewriteCrashAtEveryCall",
	"KeepOnWrite":          "TestR16_WritesRefreshWhatIsThere",
	"KeepTornTail":         "TestCrashLoop/recovery_after_a_torn_tail",
	"LateRegister":         "TestCrashLoop/single_write",
	"LeaveFullSegments":    "TestCrashLoop/segment_roll",
	"LiveCountsAsDead":     "TestCrashLoop/flush_of_small_and_large",
	"MergeAlwaysBottom":    "TestCrashLoop/eight_slices",
	"MergeAtVisible":       "TestCrashLoop/merges_with_deletes",
	"MoveUnverified":       "TestR21_RewriteNamesWhatIsDamaged",
	"NoFence":              "TestR21_AnUnreadableTableIsLeftAlone",
	"NoSeqnoJump":          "TestCrashLoop/single_write",
	"OldestRunFirst":       "TestCrashLoop/two_flushes",
	"OrphansIncludeNamed":  "TestCrashLoop/two_flushes",
	"ProbeAnyKey":          "TestCrashLoop/collection_of_log",
	"ProbeWithoutHorizon":  "TestCrashLoop/merges_with_deletes",
	"PromiseEarly":         "TestCrashLoop/several_writers",
	"ReadAtVisible":        "TestCrashLoop/readers",
	"ReplayFlushed":        "TestCrashLoop/writers_that_fill_the_write_cache",
	"ReplayFromEnd":        "TestCrashLoop/writers_go_on",
	"ReplayFromSkipsOne":   "TestCrashLoop/writers_go_on",
	"RetryFailedSync":      "TestFaultLoop/single_write/sync_drop",
	"ReuseTableNumbers":    "TestCrashLoop/tables_that_a_crash_left",
	"RotationLosesTail":    "TestCrashAtEveryCall/edits_while_a_snapshot_is_written",
	"ScanSkipsErrors":      "TestRotOfTables/^flush$",
	"ServeAboveReadSeqno":  "TestR16_AHitAboveTheReadSeqnoIsAMiss",
	"SkipCurrentDirSync":   "TestCrashLoop/single_write",
	"SkipCurrentSync":      "TestCrashLoop/switch_of_the_manifest",
	"SkipGroupSync":        "TestCrashLoop/single_write",
	"SkipManifestSync":     "TestCrashLoop/segment_roll",
	"SkipMergeDirSync":     "TestCrashLoop/eight_slices",
	"SkipMovedDirSync":     "TestG8_RewriteCrashAtEveryCall",
	"SkipMovedSync":        "TestG8_RewriteCrashAtEveryCall",
	"SkipNewManifestSync":  "TestCrashLoop/switch_of_the_manifest",
	"SkipReplaySync":       "TestKillLoop/single_write",
	"SkipSealSync":         "TestCrashLoop/seal_with_footer",
	"SkipSegmentDirSync":   "TestCrashLoop/single_write",
	"SkipSegmentSync":      "TestCrashLoop/single_write",
	"SkipSpillDirSync":     "TestCrashLoop/flush_during_replay$",
	"SkipTableDirSync":     "TestCrashLoop/^flush$",
	"SkipTableSync":        "TestCrashLoop/^flush$",
	"SkipTailSync":         "TestCrashAtEveryCall/edits_while_a_snapshot_is_written",
	"SkipUnreadableTable":  "TestRotOfTables/flush_of_small_and_large",
	"SpillAlwaysBottom":    "TestCrashLoop/flush_during_replay,_twice",
	"SpillReplayFromEnd":   "TestCrashLoop/flush_during_replay$",
	"TrustPageCache":       "TestFaultLoop/page_cache/sync_drop",
}

// loopsOf names the package of a loop that is not in lsm.
var loopsOf = map[string]string{
	"KeepMovedSum":      "fluxkv/wal",
	"MoveUnverified":    "fluxkv/wal",
	"RotationLosesTail": "fluxkv/internal/manifest",
	"SkipMovedDirSync":  "fluxkv/wal",
	"SkipMovedSync":     "fluxkv/wal",
	"SkipTailSync":      "fluxkv/internal/manifest",
}

// TestLoopsNotice builds the loops with each defect in turn: they must fail, by
// a check of theirs and not for want of time.
func TestLoopsNotice(t *testing.T) {
	if os.Getenv("FLUXKV_MUTANT") != "" {
		t.Fatal("FLUXKV_MUTANT is set")
	}
	names := Names
	if testing.Short() {
		names = []string{"AckBeforeSync", "SkipSegmentDirSync"}
	}
	binaries := map[string]string{}
	for pkg, loop := range map[string]string{
		"fluxkv/lsm":               "Test(Crash|Kill)Loop/(single_write|^flush$)",
		"fluxkv/internal/manifest": "TestCrashAtEveryCall/edits_while",
		"fluxkv/wal":               "Test(G8_RewriteCrash|R21_Rewrite)",
	} {
		binary := filepath.Join(t.TempDir(), "loops.test")
		build := exec.Command("go", "test", "-c", "-tags", "mutants", "-o", binary, pkg)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", build, err, out)
		}
		// Without a defect the same loops pass: a failure below is the defect's.
		if out, err := play(t, binary, "", loop); err != nil {
			t.Fatalf("without a defect: %v\n%s", err, out)
		}
		binaries[pkg] = binary
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			out, err := play(t, binaries[cmp.Or(loopsOf[name], "fluxkv/lsm")], name, caughtBy[name])
			switch {
			case err == nil:
				t.Fatalf("%s passes with this defect", caughtBy[name])
			case !bytes.Contains(out, []byte("--- FAIL: Test")) || bytes.Contains(out, []byte("panic: test timed out")):
				t.Fatalf("%v, but no check failed:\n%s", err, out)
			}
			t.Logf("%.1f s: %s", time.Since(start).Seconds(), firstFailure(out))
		})
	}
}

// play runs the tests that match pattern with a defect.
func play(t *testing.T, binary, name, pattern string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+pattern, "-test.failfast", "-test.timeout", "150s", "-test.v")
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "FLUXKV_MUTANT="+name)
	return cmd.CombinedOutput()
}

// firstFailure is the line that names the crash.
func firstFailure(out []byte) string {
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, "_test.go:") {
			line = strings.TrimSpace(line)
			return line[:min(len(line), 240)]
		}
	}
	return "?"
}

func TestEveryDefectIsCaughtBySomething(t *testing.T) {
	if len(Names) < 8 {
		t.Fatal("too few defects")
	}
	for _, name := range Names {
		if caughtBy[name] == "" {
			t.Errorf("no loop is named for %s", name)
		}
	}
	if len(caughtBy) != len(Names) {
		t.Errorf("%d loops for %d defects", len(caughtBy), len(Names))
	}
}
