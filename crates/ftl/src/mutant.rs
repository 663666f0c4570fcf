//! Seeded bugs, to test the tests: each breaks one rule that a promise rests on. Compiled in always
//! and dead without the feature `mutants`.

/// One wrong behaviour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mutant {
    /// A flush is acknowledged at once.
    DropFlush,
    /// A write with FUA is acknowledged when programmed, pairs or not.
    IgnoreFua,
    /// A read does not compare the payload's checksum.
    SkipChecksum,
    /// A read does not compare the logical block.
    SkipAddress,
    /// A band is erased before what superseded its slots is durable.
    ReuseBeforeDurable,
    /// A band is erased though recovery needs records in it.
    EraseHeldRecords,
    /// Recovery applies slots in the order it finds them.
    IgnoreSequence,
    /// Recovery forgets trims.
    ForgetTrim,
    /// A read does not wait for the program of its slot.
    ReadBeforeProgram,
    /// A footer is written before what the map points to is durable.
    CheckpointBeforeDurable,
    /// Recovery takes the members of an atomic write without its commit record.
    LoseGroup,
    /// Parity leaves out the first slot of the content.
    ParityMissesSlot,
    /// A page counts as safe though a later program shares its cells.
    ForgetPairing,
    /// A relocated copy gets a new sequence.
    RenumberRelocated,
    /// Recovery does not check payloads of what it replays.
    TrustTornPages,
    /// Recovery takes whatever it cannot read for torn by the power cut.
    TakeDamageForTorn,
    /// Recovery skips bands that were open at the checkpoint.
    SkipOpenBands,
    /// Recovery does not look for the copy of a root record.
    IgnoreSecondRoot,
    /// Recovery gives up where no footer is sound.
    NeverRebuild,
    /// A rebuild with gaps goes on as if it were complete.
    RebuildHidesGaps,
    /// A band of the fast tier is erased before what was destaged from it is durable.
    EraseBeforeDestaged,
    /// A band of the fast tier is erased before what superseded its slots on that tier is durable.
    EraseBeforeOverwritten,
    /// Destage drops blocks as if they had been overwritten.
    DropWhenDestaged,
    /// A piece of the map that leaves DRAM takes what changed in it along.
    EvictForgetsChanges,
    /// When a checkpoint is complete, changes that came too late for it are forgotten, too.
    CompletionForgetsLater,
    /// A piece of the map is taken from a checkpoint that is not the last one any more.
    TrustOldBase,
    /// After a mount that knows a part of the map, valid is what the last checkpoint says, whatever was
    /// found since.
    CountBeforeReplay,
    /// A piece of the map that is being rebuilt is shown as far as that has come.
    ServeBeforeRebuilt,
    /// Another label is said to be durable when the checkpoint that has it has begun.
    LabelTooEarly,
    /// Recovery takes the label of a checkpoint that was never complete.
    LabelOfNewestRoot,
    /// A trim does not leave what a snapshot holds in its shadow.
    TrimForgetsShadow,
    /// A shadow that says something of a block is overwritten by the next change of it.
    FillShadowTwice,
    /// A snapshot is said to be durable when the checkpoint that has it has begun.
    SnapshotTooEarly,
    /// Recovery does not know when snapshots were cut.
    CutNotRecorded,
    /// Recovery does not move what a block held to its shadow.
    ReplayForgetsShadow,
    /// Recovery takes every version for one that came after all cuts.
    ReplayIgnoresCuts,
    /// A checkpoint goes on over a cut that its root records do not have.
    CutKeepsCheckpoint,
    /// What snapshots keep takes no room.
    ShadowTakesNoSpace,
    /// A snapshot that is given up lets go of what a change may still give back.
    SweepUndecided,
    /// What a snapshot that is given up had is not handed to the older one.
    DropForgetsOlder,
    /// A snapshot that is given up is gone before that is durable.
    SweepBeforeDurable,
    /// A trim of a block of a clone leaves no mark.
    TrimShowsOrigin,
    /// Recovery leaves no mark where a block of a clone was trimmed.
    ReplayShowsOrigin,
    /// A snapshot of a clone takes what has not changed of it for nothing.
    SnapshotForgetsOrigin,
    /// A snapshot is given up that clones are made of.
    DropForgetsClones,
    /// Raw units: a write with FUA is acknowledged when programmed, whatever the medium keeps back.
    RawIgnoreFua,
    /// Raw units: recovery takes a block for whole by its first page.
    RawTrustFirstPage,
    /// Raw units: recovery forgets what a lane's record lists as dead.
    RawForgetDead,
    /// Raw units: an erase in the background is acknowledged before a record of it is durable.
    RawEraseUnrecorded,
}

impl Mutant {
    /// Every mutant of the FTL.
    pub const ALL: &[Self] = &[
        Self::DropFlush,
        Self::IgnoreFua,
        Self::SkipChecksum,
        Self::SkipAddress,
        Self::ReuseBeforeDurable,
        Self::EraseHeldRecords,
        Self::IgnoreSequence,
        Self::ForgetTrim,
        Self::ReadBeforeProgram,
        Self::CheckpointBeforeDurable,
        Self::LoseGroup,
        Self::ParityMissesSlot,
        Self::ForgetPairing,
        Self::RenumberRelocated,
        Self::TrustTornPages,
        Self::TakeDamageForTorn,
        Self::SkipOpenBands,
        Self::IgnoreSecondRoot,
        Self::NeverRebuild,
        Self::RebuildHidesGaps,
    ];

    /// Every mutant of the fast tier: dead on a device of one kind.
    pub const TIER: &[Self] =
        &[Self::EraseBeforeDestaged, Self::EraseBeforeOverwritten, Self::DropWhenDestaged];

    /// Every mutant of the label: dead as long as nobody changes it.
    pub const LABEL: &[Self] = &[Self::LabelTooEarly, Self::LabelOfNewestRoot];

    /// Every mutant of snapshots: dead as long as there is none.
    pub const SNAPSHOTS: &[Self] = &[
        Self::TrimForgetsShadow,
        Self::FillShadowTwice,
        Self::SnapshotTooEarly,
        Self::CutNotRecorded,
        Self::ReplayForgetsShadow,
        Self::ReplayIgnoresCuts,
        Self::CutKeepsCheckpoint,
        Self::ShadowTakesNoSpace,
        Self::SweepUndecided,
        Self::DropForgetsOlder,
        Self::SweepBeforeDurable,
        Self::TrimShowsOrigin,
        Self::ReplayShowsOrigin,
        Self::SnapshotForgetsOrigin,
        Self::DropForgetsClones,
    ];

    /// Every mutant of a map of which a part is in DRAM: dead with all of it there.
    pub const MAP: &[Self] = &[
        Self::EvictForgetsChanges,
        Self::CompletionForgetsLater,
        Self::TrustOldBase,
        Self::CountBeforeReplay,
        Self::ServeBeforeRebuilt,
    ];

    /// Every mutant of raw units.
    pub const RAW: &[Self] = &[
        Self::RawIgnoreFua,
        Self::RawTrustFirstPage,
        Self::RawForgetDead,
        Self::RawEraseUnrecorded,
    ];
}
