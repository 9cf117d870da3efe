//go:build mutants

package mutant

import (
	"os"
	"slices"
)

func on(name string) bool {
	if !slices.Contains(Names, name) {
		panic("mutant: " + name + " is not in Names")
	}
	return os.Getenv("FLUXKV_MUTANT") == name
}

func init() {
	if name := os.Getenv("FLUXKV_MUTANT"); name != "" && !slices.Contains(Names, name) {
		panic("mutant: FLUXKV_MUTANT=" + name + " is no defect")
	}
}

// The defects. They are read-only after start-up.
var (
	// AckBeforeSync lets writers go on while their group is still to be written.
	AckBeforeSync = on("AckBeforeSync")
	// AcceptStaleGroup takes a group that an earlier life of a recycled segment left for one of this life.
	AcceptStaleGroup = on("AcceptStaleGroup")
	// AcceptTornGroup trusts a group's header and does not verify its records.
	AcceptTornGroup = on("AcceptTornGroup")
	// ClearBeforeDurable drops what a clear ended before the clear is durable.
	ClearBeforeDurable = on("ClearBeforeDurable")
	// DropBeforeEdit frees the segments of a clear before the edit that drops them, and dawdles in between.
	DropBeforeEdit = on("DropBeforeEdit")
	// DurableOutOfOrder moves the durable seqno over groups that are still being written.
	DurableOutOfOrder = on("DurableOutOfOrder")
	// IgnoreEvidence takes every damaged group for the torn end of the log.
	IgnoreEvidence = on("IgnoreEvidence")
	// IgnoreShortWrite takes half a group for a whole one.
	IgnoreShortWrite = on("IgnoreShortWrite")
	// LeaveFullSegments records no end of the segments that a kill left full.
	LeaveFullSegments = on("LeaveFullSegments")
	// KeepTornTail starts a new segment after a torn one without recording where that ends.
	KeepTornTail = on("KeepTornTail")
	// LateRegister names a segment in the manifest only when it is sealed.
	LateRegister = on("LateRegister")
	// NoSeqnoJump goes on with the next seqno after a log that did not end in order.
	NoSeqnoJump = on("NoSeqnoJump")
	// PromiseEarly promises what is before a group, durable or not.
	PromiseEarly = on("PromiseEarly")
	// FillBelowWord takes into the document cache what a reader found before its key was written.
	FillBelowWord = on("FillBelowWord")
	// KeepOnWrite leaves in the document cache what a write replaces.
	KeepOnWrite = on("KeepOnWrite")
	// ServeAboveReadSeqno answers from the document cache with what is too new for the reader.
	ServeAboveReadSeqno = on("ServeAboveReadSeqno")
	// ReadAtVisible lets readers of a durable store see what is not durable.
	ReadAtVisible = on("ReadAtVisible")
	// RetryFailedSync syncs again after a failed write, and believes the answer.
	RetryFailedSync = on("RetryFailedSync")
	// RotationLosesTail switches to a manifest without the edits made since its snapshot.
	RotationLosesTail = on("RotationLosesTail")
	// SkipTailSync does not sync those edits before the switch.
	SkipTailSync = on("SkipTailSync")
	// SkipCurrentDirSync does not sync the directory after CURRENT was renamed.
	SkipCurrentDirSync = on("SkipCurrentDirSync")
	// SkipCurrentSync renames a CURRENT whose bytes were not synced.
	SkipCurrentSync = on("SkipCurrentSync")
	// SkipGroupSync writes groups without making them durable.
	SkipGroupSync = on("SkipGroupSync")
	// SkipManifestSync does not sync edits of the manifest.
	SkipManifestSync = on("SkipManifestSync")
	// SkipNewManifestSync switches CURRENT to a manifest that was not synced.
	SkipNewManifestSync = on("SkipNewManifestSync")
	// SkipReplaySync does not sync what recovery read.
	SkipReplaySync = on("SkipReplaySync")
	// SkipSealSync records a sealed segment whose footer and length were not synced.
	SkipSealSync = on("SkipSealSync")
	// SkipSegmentDirSync does not sync the directory after making a segment.
	SkipSegmentDirSync = on("SkipSegmentDirSync")
	// SkipSegmentSync registers a segment whose header was not synced.
	SkipSegmentSync = on("SkipSegmentSync")
	// TrustPageCache takes what recovery read without direct I/O for written.
	TrustPageCache = on("TrustPageCache")
	// ClearUnderSnapshot drops the tables that a clear ended although a snapshot still sees them.
	ClearUnderSnapshot = on("ClearUnderSnapshot")
	// DropBeforeFlushEdit frees the segments of a flush before the edit that drops them.
	DropBeforeFlushEdit = on("DropBeforeFlushEdit")
	// FlushBeforeDurable flushes what is not durable, and says so in the manifest.
	FlushBeforeDurable = on("FlushBeforeDurable")
	// HorizonAtVisible lets a flush drop versions that a snapshot sees.
	HorizonAtVisible = on("HorizonAtVisible")
	// ReplayFlushed loads again what is in tables.
	ReplayFlushed = on("ReplayFlushed")
	// ReplayFromEnd lets replay start behind memtables that are not flushed.
	ReplayFromEnd = on("ReplayFromEnd")
	// SkipTableDirSync names tables in the manifest whose directory was not synced.
	SkipTableDirSync = on("SkipTableDirSync")
	// SkipTableSync names tables in the manifest that were not synced.
	SkipTableSync = on("SkipTableSync")
	// AlwaysBottom lets a flush drop tombstones although an older table has the keys.
	AlwaysBottom = on("AlwaysBottom")
	// ClearIgnoredInTables lets a start forget what a clear ended, as far as tables have it.
	ClearIgnoredInTables = on("ClearIgnoredInTables")
	// DeadInWrongSegment counts dead documents in a segment that they are not in.
	DeadInWrongSegment = on("DeadInWrongSegment")
	// FlushInFlight flushes a memtable while batches are still being inserted into it, which dawdle.
	FlushInFlight = on("FlushInFlight")
	// FlushNewestFirst flushes the newest sealed memtable of a kvstore and leaves older ones for later.
	FlushNewestFirst = on("FlushNewestFirst")
	// FlushedAhead says that all is flushed that was visible when a flush ended.
	FlushedAhead = on("FlushedAhead")
	// IgnoreOvertaking installs tables with what a clear ended meanwhile.
	IgnoreOvertaking = on("IgnoreOvertaking")
	// InstallBeforeEdit gives memtables up before the edit that names their tables.
	InstallBeforeEdit = on("InstallBeforeEdit")
	// KeepFailedTables leaves the files of a flush that failed.
	KeepFailedTables = on("KeepFailedTables")
	// LiveCountsAsDead counts a document among the dead that a flush keeps.
	LiveCountsAsDead = on("LiveCountsAsDead")
	// OldestRunFirst reads older tables before newer ones.
	OldestRunFirst = on("OldestRunFirst")
	// OrphansIncludeNamed removes tables that the manifest names.
	OrphansIncludeNamed = on("OrphansIncludeNamed")
	// ReplayFromSkipsOne moves the start of replay past what one kvstore has not flushed.
	ReplayFromSkipsOne = on("ReplayFromSkipsOne")
	// ReuseTableNumbers gives the numbers of tables away that a crash left.
	ReuseTableNumbers = on("ReuseTableNumbers")
	// ScanSkipsErrors ends a scan quietly where a table cannot be read.
	ScanSkipsErrors = on("ScanSkipsErrors")
	// SkipSpillDirSync names tables in the edit of recovery whose directory was not synced.
	SkipSpillDirSync = on("SkipSpillDirSync")
	// SkipUnreadableTable lets an older table answer when a newer one cannot be read.
	SkipUnreadableTable = on("SkipUnreadableTable")
	// SpillAlwaysBottom lets a flush during replay drop tombstones although an older table has the keys.
	SpillAlwaysBottom = on("SpillAlwaysBottom")
	// SpillReplayFromEnd lets replay start behind what recovery holds in memory.
	SpillReplayFromEnd = on("SpillReplayFromEnd")
	// KeepMovedSum copies documents with the sums of where they stood.
	KeepMovedSum = on("KeepMovedSum")
	// MoveUnverified copies documents of a victim whose sums are wrong, and makes them right.
	MoveUnverified = on("MoveUnverified")
	// SkipMovedDirSync names outputs of garbage collection whose directory was not synced.
	SkipMovedDirSync = on("SkipMovedDirSync")
	// SkipMovedSync names outputs of garbage collection that were not synced.
	SkipMovedSync = on("SkipMovedSync")
	// CountPhantoms counts a dead document in an output that does not have it.
	CountPhantoms = on("CountPhantoms")
	// DropForwardEarly forgets where documents went while tables still name their old place.
	DropForwardEarly = on("DropForwardEarly")
	// ForgetDeadMeanwhile does not carry over what died while segments were collected.
	ForgetDeadMeanwhile = on("ForgetDeadMeanwhile")
	// ProbeWithoutHorizon lets garbage collection drop what a newer version replaces that nobody may see yet.
	ProbeWithoutHorizon = on("ProbeWithoutHorizon")
	// CollectClearEarly lets a collection drop what a clear ended although a snapshot still sees it.
	CollectClearEarly = on("CollectClearEarly")
	// CollectReplayed collects segments that memtables and replay need.
	CollectReplayed = on("CollectReplayed")
	// DropVictimsEarly removes collected segments before the edit that drops them.
	DropVictimsEarly = on("DropVictimsEarly")
	// DropInputsEarly removes merged tables before the edit that drops them.
	DropInputsEarly = on("DropInputsEarly")
	// ForwardTooNarrow forwards only the last of the documents that an output took over.
	ForwardTooNarrow = on("ForwardTooNarrow")
	// MergeAlwaysBottom lets any merge drop tombstones, although older tables have the keys.
	MergeAlwaysBottom = on("MergeAlwaysBottom")
	// MergeAtVisible lets a merge drop versions that a snapshot sees.
	MergeAtVisible = on("MergeAtVisible")
	// ProbeAnyKey takes a newer version of any key for one of the key that is looked for.
	ProbeAnyKey = on("ProbeAnyKey")
	// SkipMergeDirSync names tables of a merge in the manifest whose directory was not synced.
	SkipMergeDirSync = on("SkipMergeDirSync")
	// NoFence picks what could not be read again and again.
	NoFence = on("NoFence")
	// FenceNeighbours leaves all files of a job alone when one of them cannot be read.
	FenceNeighbours = on("FenceNeighbours")
	// FreeUnreadable takes a victim that cannot be read for an empty one.
	FreeUnreadable = on("FreeUnreadable")
)
