//go:build !mutants

package mutant

// Built without defects: see on.go.
const (
	AckBeforeSync       = false
	AcceptStaleGroup    = false
	AcceptTornGroup     = false
	DropBeforeEdit      = false
	DurableOutOfOrder   = false
	IgnoreEvidence      = false
	KeepTornTail        = false
	LateRegister        = false
	NoSeqnoJump         = false
	PromiseEarly        = false
	ReadAtVisible       = false
	RotationLosesTail   = false
	SkipTailSync        = false
	RetryFailedSync     = false
	SkipCurrentDirSync  = false
	SkipGroupSync       = false
	SkipManifestSync    = false
	SkipNewManifestSync = false
	SkipReplaySync      = false
	SkipSealSync        = false
	SkipSegmentDirSync  = false
	SkipSegmentSync     = false
	TrustPageCache      = false
	ClearBeforeDurable  = false
	IgnoreShortWrite    = false
	SkipCurrentSync     = false
	ClearUnderSnapshot  = false
	DropBeforeFlushEdit = false
	FlushBeforeDurable  = false
	HorizonAtVisible    = false
	ReplayFlushed       = false
	ReplayFromEnd       = false
	SkipTableDirSync    = false
	SkipTableSync       = false
)
