// Package mutant holds deliberate defects, to prove that the crash, kill and
// fault loops would notice real ones.
//
//	normal build          every name is the constant false: no code, no cost
//	-tags mutants         every name is false but the one in FLUXKV_MUTANT
//
// At the point of a defect the code reads
//
//	if mutant.IgnoreEvidence {
//		return nil
//	}
//	err := mutant.Skip(mutant.SkipSealSync, file.Sync)
//
// The package's test builds the loops with the tag and demands that each defect
// makes them fail.
package mutant

// Skip calls do, unless the defect is on. It is for steps that a defect leaves
// out.
func Skip(defect bool, do func() error) error {
	if defect {
		return nil
	}
	return do()
}

// Names are all defects; what each one does is said where its variable is.
var Names = []string{
	"AcceptStaleGroup",
	"AcceptTornGroup",
	"AckBeforeSync",
	"AlwaysBottom",
	"ClearBeforeDurable",
	"ClearIgnoredInTables",
	"ClearUnderSnapshot",
	"CollectClearEarly",
	"CollectReplayed",
	"CountPhantoms",
	"DeadInWrongSegment",
	"DropBeforeEdit",
	"DropBeforeFlushEdit",
	"DropForwardEarly",
	"DropInputsEarly",
	"DropVictimsEarly",
	"DurableOutOfOrder",
	"FenceNeighbours",
	"FillBelowWord",
	"FlushBeforeDurable",
	"FlushInFlight",
	"FlushNewestFirst",
	"FlushedAhead",
	"ForgetDeadMeanwhile",
	"ForwardTooNarrow",
	"FreeUnreadable",
	"HorizonAtVisible",
	"IgnoreEvidence",
	"IgnoreOvertaking",
	"IgnoreShortWrite",
	"InstallBeforeEdit",
	"KeepFailedTables",
	"KeepMovedSum",
	"KeepOnWrite",
	"KeepTornTail",
	"LateRegister",
	"LeaveFullSegments",
	"LiveCountsAsDead",
	"MergeAlwaysBottom",
	"MergeAtVisible",
	"MoveUnverified",
	"NoFence",
	"NoSeqnoJump",
	"OldestRunFirst",
	"OrphansIncludeNamed",
	"ProbeAnyKey",
	"ProbeWithoutHorizon",
	"PromiseEarly",
	"ReadAtVisible",
	"ReplayFlushed",
	"ReplayFromEnd",
	"ReplayFromSkipsOne",
	"RetryFailedSync",
	"ReuseTableNumbers",
	"RotationLosesTail",
	"ScanSkipsErrors",
	"ServeAboveReadSeqno",
	"SkipCurrentDirSync",
	"SkipCurrentSync",
	"SkipGroupSync",
	"SkipManifestSync",
	"SkipMergeDirSync",
	"SkipMovedDirSync",
	"SkipMovedSync",
	"SkipNewManifestSync",
	"SkipReplaySync",
	"SkipSealSync",
	"SkipSegmentDirSync",
	"SkipSegmentSync",
	"SkipSpillDirSync",
	"SkipTableDirSync",
	"SkipTableSync",
	"SkipTailSync",
	"SkipUnreadableTable",
	"SpillAlwaysBottom",
	"SpillReplayFromEnd",
	"TrustPageCache",
}
