//go:build !mutants

package mutant

// Built without defects: see on.go.
const (
	AckBeforeSync        = false
	AcceptStaleGroup     = false
	AcceptTornGroup      = false
	DropBeforeEdit       = false
	DurableOutOfOrder    = false
	IgnoreEvidence       = false
	KeepTornTail         = false
	LateRegister         = false
	NoSeqnoJump          = false
	PromiseEarly         = false
	ReadAtVisible        = false
	RotationLosesTail    = false
	SkipTailSync         = false
	RetryFailedSync      = false
	SkipCurrentDirSync   = false
	SkipGroupSync        = false
	SkipManifestSync     = false
	SkipNewManifestSync  = false
	SkipReplaySync       = false
	SkipSealSync         = false
	SkipSegmentDirSync   = false
	SkipSegmentSync      = false
	TrustPageCache       = false
	ClearBeforeDurable   = false
	IgnoreShortWrite     = false
	SkipCurrentSync      = false
	ClearUnderSnapshot   = false
	DropBeforeFlushEdit  = false
	FlushBeforeDurable   = false
	HorizonAtVisible     = false
	ReplayFlushed        = false
	ReplayFromEnd        = false
	SkipTableDirSync     = false
	SkipTableSync        = false
	AlwaysBottom         = false
	ClearIgnoredInTables = false
	DeadInWrongSegment   = false
	FlushInFlight        = false
	FlushNewestFirst     = false
	FlushedAhead         = false
	IgnoreOvertaking     = false
	InstallBeforeEdit    = false
	KeepFailedTables     = false
	LiveCountsAsDead     = false
	OldestRunFirst       = false
	OrphansIncludeNamed  = false
	ReplayFromSkipsOne   = false
	ReuseTableNumbers    = false
	ScanSkipsErrors      = false
	SkipSpillDirSync     = false
	SkipUnreadableTable  = false
	SpillAlwaysBottom    = false
	SpillReplayFromEnd   = false
	KeepMovedSum         = false
	MoveUnverified       = false
	SkipMovedDirSync     = false
	SkipMovedSync        = false
	CountPhantoms        = false
	DropForwardEarly     = false
	ForgetDeadMeanwhile  = false
	ProbeWithoutHorizon  = false
	CollectClearEarly    = false
	CollectReplayed      = false
	DropVictimsEarly     = false
	ForwardTooNarrow     = false
	MergeAlwaysBottom    = false
	MergeAtVisible       = false
	ProbeAnyKey          = false
	SkipMergeDirSync     = false
)
