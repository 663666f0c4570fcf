//! What goes into the FTL and what comes out.

use crate::format::ShadowStretch;
use flash::{
    Command, Completion, Geometry, Instant, Lba, Payload, Reply, Request, SlotId, SlotWrite, Tag,
};

/// Most blocks of an atomic write.
pub const ATOMIC_BLOCKS_MAX: u32 = 64;

/// Blocks of one trim record: bounds the work between two looks at the other queues.
pub(crate) const TRIM_BLOCKS_MAX: u32 = 1 << 16;

/// What owns a medium and serves a host: [`crate::whole::Ftl`] or [`crate::raw::RawUnits`]. A driver of one
/// drives the other; the contract is on the crate's page.
pub trait Core {
    /// Chosen at each mount.
    type Settings: Clone;
    /// Takes one event. Drain [`Core::poll`] afterwards.
    fn handle(&mut self, now: Instant, input: Input<'_>);
    /// What to do next; `None` when there is nothing until the next event.
    fn poll(&mut self) -> Option<Output>;
    /// When to give [`Input::Deadline`] if nothing happens before.
    fn deadline(&self) -> Option<Instant>;
    /// The slots of a program command, until the next `handle`.
    fn program(&self, tag: Tag) -> &[SlotWrite];
    /// Commands waiting for or running on the unit that serves a read of `lba` now.
    fn queue_at(&self, lba: Lba) -> u32;
    /// Where a block lies now, if blocks are mapped one by one and this one is: a driver in memory
    /// brings it into its cache ahead of the request.
    fn slot_of(&self, _lba: Lba) -> Option<SlotId> {
        None
    }
    /// Equal parts of the address space that are lanes of their own; 1 unless the host sees the units.
    fn lane_count(&self) -> u32 {
        1
    }
    /// One counter by its name; 0 for an unknown name.
    fn counter(&self, name: &str) -> u64;
    /// Checks what must hold between events; `Err` says what does not. For tests: it walks the map.
    fn verify(&self) -> Result<(), String>;
    /// What it waits for, in words: for a test or an operator who finds it stuck.
    fn explain(&self) -> String;
}

/// An event for [`Core::handle`].
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// The host asks. `checksums` holds the CRC-32C of each block of a write, else nothing.
    Request {
        /// What it asks.
        request: Request,
        /// One entry per block of a write.
        checksums: &'a [u32],
    },
    /// The medium answers.
    Completion(Completion<'a>),
    /// The instant of [`Core::deadline`] has come.
    Deadline,
    /// Do without the fast tier from now on: destage all it holds, then `FastDetached`. The host is
    /// served meanwhile.
    DetachFast,
    /// Keep these bytes of the owner, at most [`crate::LABEL_BYTES_MAX`], in place of those there were, then `Labelled`.
    /// Until that, a recovery finds the ones or the others.
    Label(&'a [u8]),
    /// Take a snapshot of some blocks, make a clone of one, or give either up. Ends with [`Output::Snapshot`].
    Snapshot {
        /// What the owner calls it; one number at a time.
        number: u32,
        /// What is to be done.
        order: SnapshotOrder<'a>,
    },
    /// Accept no more requests, make everything durable, write a checkpoint, then `Stopped`.
    Shutdown,
    /// Nothing may be written to the medium any more: somebody else has it, or the driver knows that it
    /// cannot keep its word. As after a failed flush, whatever would have to be written ends with an
    /// error, and reads go on. What the medium has been given already is awaited.
    Fail,
}

/// What is to be done about a snapshot. To take one is two orders, so that several FTLs can be cut at one instant.
#[derive(Clone, Copy, Debug)]
pub enum SnapshotOrder<'a> {
    /// Make room for the shadow of these blocks. The host is served meanwhile; a restart knows nothing of it.
    Prepare(&'a [ShadowStretch]),
    /// What its blocks hold now is what it holds, whatever comes: of all that was answered before, and of nothing that is
    /// asked after. No write or trim of its blocks may be under way. It can be read at once, at the addresses of its
    /// shadow; the order ends when it is durable.
    Cut,
    /// These blocks, which hold nothing, are from now on as the addresses of snapshots are that stand in place of their
    /// shadows, until they are written or trimmed: a clone, which takes no room. The order ends when that is durable. No
    /// request for these blocks may be under way.
    Clone(&'a [ShadowStretch]),
    /// Give it up, prepared or taken, or a clone. The order ends when it can never come back; its room does after that.
    Drop,
}

impl SnapshotOrder<'_> {
    /// Which order it is.
    pub fn step(&self) -> SnapshotStep {
        match self {
            Self::Prepare(_) => SnapshotStep::Prepare,
            Self::Cut => SnapshotStep::Cut,
            Self::Clone(_) => SnapshotStep::Clone,
            Self::Drop => SnapshotStep::Drop,
        }
    }
}

/// A [`SnapshotOrder`], without what it is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SnapshotStep {
    /// [`SnapshotOrder::Prepare`].
    Prepare,
    /// [`SnapshotOrder::Cut`].
    Cut,
    /// [`SnapshotOrder::Clone`].
    Clone,
    /// [`SnapshotOrder::Drop`].
    Drop,
}

/// Why nothing came of a [`SnapshotOrder`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SnapshotError {
    /// Only a part of the map is in DRAM.
    CachedMap,
    /// To prepare or clone: there is one of this number. Else: there is none, or it is not prepared (cut) or leaving (drop).
    Number,
    /// No stretches, or some that are empty, overlap, are beyond the device, or whose shadow is not free; of a clone: that
    /// have another one's blocks, or name what is no snapshot.
    Stretches,
    /// Blocks that should be a clone hold something.
    NotEmpty,
    /// There are clones of the snapshot, or snapshots of the clone.
    Needed,
    /// The root record has no room for one more.
    TooMany,
    /// The device cannot keep what it holds beside larger checkpoints.
    NoSpace,
    /// A write or trim of its blocks is under way; of a clone, any request. Nothing has happened.
    Busy,
    /// Nothing is written any more. What had begun is done or not: the next mount tells.
    Failed,
}

impl std::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CachedMap => {
                "only a part of the map is in DRAM: leave map_memory out of the config, and start again"
            }
            Self::Number => "there is no snapshot of this number that this could be done to",
            Self::Stretches => "the shadow would lie where there is no room for it",
            Self::NotEmpty => "blocks that should be a clone hold something: trim them before",
            Self::Needed => "there are clones of it, or snapshots: give those up before",
            Self::TooMany => {
                "the device has as many snapshots and clones as its root record holds: give one up"
            }
            Self::NoSpace => {
                "the device is too full to keep the map of another snapshot: trim what is not needed, or give \
                 one up"
            }
            Self::Busy => "writes of these blocks are under way: try again",
            Self::Failed => "nothing is written to the device any more",
        })
    }
}

impl std::error::Error for SnapshotError {}

/// A snapshot, as [`crate::Ftl::snapshots`] has it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SnapshotStatus {
    /// What the owner calls it.
    pub number: u32,
    /// Its blocks, and their shadows.
    pub stretches: Vec<ShadowStretch>,
    /// It can be read; else it is prepared, or its room is being given back.
    pub taken: bool,
    /// Blocks of flash that its shadow holds. To give it up frees as many at most: an older one may need some.
    pub blocks_held: u64,
}

/// What [`Core::poll`] hands to the driver, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Give this to the medium.
    Command(Command),
    /// Fill these blocks of a host buffer with zeroes.
    ReadZeroes {
        /// The first block.
        into: Payload,
        /// How many.
        count: u32,
    },
    /// Answer the host.
    Reply(Reply),
    /// The end of a format or a mount; requests are welcome if `Ok`.
    Ready(Result<Box<MountReport>, MountError>),
    /// The end of a detach: true if nothing needs the fast units any more, and no mount will miss
    /// them; false if there is no fast tier, or it cannot be drained.
    FastDetached(bool),
    /// The end of a change of the label: true if it is durable; false if it was refused, or nothing can be written any
    /// more, so that the next mount tells which there is. What is not answered before `Stopped` is not known either.
    Labelled(bool),
    /// The end of a [`SnapshotOrder`]. What is not answered before `Stopped` is not known either.
    Snapshot {
        /// Whose.
        number: u32,
        /// Which order it was.
        step: SnapshotStep,
        /// What came of it.
        result: Result<(), SnapshotError>,
    },
    /// The end of a shutdown: true if everything is durable.
    Stopped(bool),
}

/// What recovery found.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MountReport {
    /// Logical blocks the device offers.
    pub logical_blocks: u32,
    /// So many of them came with this mount: units were added.
    pub blocks_added: u32,
    /// Units were added since the last checkpoint, and the mount, which does not write, leaves it to the next to record
    /// what they are for.
    pub may_grow: bool,
    /// The owner's bytes.
    pub label: Vec<u8>,
    /// The device's identity, as formatted.
    pub uuid: u128,
    /// Mounts since the format, this one included.
    pub generation: u64,
    /// The last shutdown was clean.
    pub clean: bool,
    /// Bands whose header was read.
    pub bands_probed: u32,
    /// Bands read whole, because they were appended to after the checkpoint.
    pub bands_scanned: u32,
    /// Slots found after the checkpoint.
    pub slots_replayed: u64,
    /// Pages that a power cut had torn.
    pub pages_torn: u64,
    /// Slots that were met, cannot be read, and that no power cut explains.
    pub slots_damaged: u64,
    /// The first of them.
    pub damaged: Vec<DamagedSlot>,
    /// Blocks of which the newest version is missing: their reads fail until they are written.
    pub blocks_lost: u64,
    /// Blocks whose reads fail because a slot is missing and nobody knows of which block: any that were
    /// not written later. Then the device is served read-only.
    pub blocks_refused: u64,
    /// The same of a mount with [`Settings::salvage`](crate::config::Settings::salvage): they show what was found.
    pub blocks_stale_max: u64,
    /// Slots of the last checkpoint's content that could not be read and follow from its parity.
    pub content_mended: u64,
    /// Logical blocks that hold data; 0 where only a part of the map is in DRAM, as they are counted
    /// later: see [`crate::whole::Ftl::is_counting`].
    pub blocks_mapped: u64,
    /// Part of the last checkpoint could not be read, and every band was read to make up for it. What
    /// is found after the mount is told by [`crate::whole::Ftl::rebuilt_late`].
    pub rebuilt: Option<Rebuilt>,
}

/// What becomes of blocks that may be older than what was written last.
const REFUSED: &str = "their reads fail and the device is read-only; copy the rest to a new device, or \
                       start this one with --salvage to have them as they were found";

/// What the mount found damaged, in words.
pub(crate) fn say_damage(damaged: u64, lost: u64, refused: u64, stale_max: u64) -> String {
    let mut text = format!(
        "the mount found {damaged} slots damaged that no power cut explains; {lost} blocks lost their \
         newest version: their reads fail until they are written"
    );
    if refused > 0 {
        text.push_str(&format!(
            "; of which block a slot was is not known, and {refused} blocks may be older than what was \
             written last: {REFUSED}"
        ));
    }
    if stale_max > 0 {
        text.push_str(&format!(
            "; of which block a slot was is not known, and any of {stale_max} blocks may be older than what \
             was written last"
        ));
    }
    text
}

/// Damaged slots that are named one by one.
const NAMED_MAX: usize = 64;

impl MountReport {
    /// Tells that `slot` is damaged.
    pub(crate) fn note_damaged(&mut self, geometry: &Geometry, slot: SlotId) {
        self.slots_damaged += 1;
        if self.damaged.len() < NAMED_MAX {
            let block = geometry.block_of(slot);
            self.damaged.push(DamagedSlot {
                unit: geometry.unit_of(block),
                block: block.0 % geometry.blocks_per_unit,
                page: geometry.page_in_block(slot),
                slot: geometry.slot_in_page(slot),
            });
        }
    }

    /// What is damaged, in words, if anything is.
    pub fn damage(&self) -> Option<String> {
        let Self { slots_damaged, blocks_lost, blocks_refused, blocks_stale_max, .. } = *self;
        let none = slots_damaged + blocks_lost + blocks_refused + blocks_stale_max == 0;
        (!none).then(|| say_damage(slots_damaged, blocks_lost, blocks_refused, blocks_stale_max))
    }
}

/// Where a damaged slot is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DamagedSlot {
    /// Unit.
    pub unit: u32,
    /// Block of the unit.
    pub block: u32,
    /// Page of the block.
    pub page: u32,
    /// Slot of the page.
    pub slot: u32,
}

impl std::fmt::Display for DamagedSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { unit, block, page, slot } = self;
        write!(f, "unit {unit}, block {block}, page {page}, slot {slot}")
    }
}

/// What a rebuild came to: see docs/formats.md for what is promised then.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rebuilt {
    /// Map chunks (of 1024 logical blocks) that were lost and found again band by band.
    pub chunks: u32,
    /// With [`Settings::salvage`](crate::config::Settings::salvage): blocks that show what was found of them
    /// before the checkpoint. They may be older than what was written last: the record of a trim may be
    /// gone, or the newest version in a page that is lost.
    pub blocks_stale_max: u64,
    /// Without it: blocks of these chunks that nothing written since the checkpoint tells of. They are
    /// refused, and the device is read-only.
    pub blocks_refused: u64,
    /// Pages that could not be read and that no power cut explains: newer versions may have been there.
    pub pages_lost: u64,
    /// The first checkpoint of the device was never seen complete: its format was cut off, before which
    /// there was nothing that could be lost.
    pub of_cut_format: bool,
}

impl Rebuilt {
    /// True if something that was durable was lost, be it only a part of the checkpoint.
    pub fn is_damage(&self) -> bool {
        !self.of_cut_format || self.blocks_stale_max + self.blocks_refused + self.pages_lost > 0
    }
}

impl std::fmt::Display for Rebuilt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { chunks, blocks_stale_max, blocks_refused, pages_lost, .. } = self;
        if !self.is_damage() {
            return f.write_str(
                "the format of the device was cut off before its first checkpoint was complete: what was \
                 written since was found band by band, and nothing is lost",
            );
        }
        write!(
            f,
            "part of the last checkpoint could not be read: {chunks} map chunks were rebuilt from every \
             band, {pages_lost} pages of which could not be read"
        )?;
        if *blocks_refused > 0 {
            write!(
                f,
                "; {blocks_refused} blocks may be older than what was written last: {REFUSED}"
            )?;
        }
        if *blocks_stale_max > 0 {
            write!(
                f,
                "; up to {blocks_stale_max} blocks are older than what was written last, or were trimmed"
            )?;
        }
        Ok(())
    }
}

/// Why a device cannot be mounted. Nothing was written to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MountError {
    /// No root record: never formatted, or not by Weir.
    NotFormatted,
    /// Root records exist but no checkpoint is complete: the medium lost flushed data.
    NoCheckpoint,
    /// Written by another version of Weir.
    Version {
        /// The version on flash.
        found: u16,
    },
    /// The root record was made for a medium of another shape.
    Geometry,
    /// More bands would be open at a time than the medium allows.
    OpenBlocks {
        /// Those of a checkpoint and of each volume.
        wanted: u32,
        /// As many may be open.
        max: u32,
    },
    /// Formatted to be used in another way.
    Mode {
        /// What it is.
        found: &'static str,
        /// What it was opened as.
        wanted: &'static str,
    },
    /// The device has snapshots, and only a part of its map was to be in DRAM.
    MapOfSnapshots,
    /// Units were added, and only a part of the map was to be in DRAM.
    MapOfGrowth,
    /// The medium failed during the mount.
    Medium,
    /// There is no room behind the medium for what a format writes.
    NoSpace,
}

impl std::fmt::Display for MountError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFormatted => f.write_str(
                "no root record found: it was never formatted, or what recovery begins with is damaged",
            ),
            Self::NoCheckpoint => {
                write!(f, "no complete checkpoint: the medium lost data it had made durable")
            }
            Self::Version { found } => {
                write!(
                    f,
                    "on-flash format version {found}; this build reads up to {}: copy the data off with a \
                     Weir of that version, or format the device anew",
                    crate::format::VERSION_CLONES
                )
            }
            Self::Geometry => write!(f, "formatted for a medium of another geometry"),
            Self::OpenBlocks { wanted, max } => write!(
                f,
                "{wanted} bands at least are open at a time, those of a checkpoint and two of each \
                 volume with streams of its own, and the medium lets each shard have {max}: use fewer \
                 shards or fewer such volumes, or a fast tier, where checkpoints go then"
            ),
            Self::Mode { found, wanted } => {
                write!(f, "the device is formatted as {found}, not as {wanted}: open it as {found}")
            }
            Self::MapOfGrowth => write!(
                f,
                "units were added, and a device grows with the whole map in DRAM: leave map_memory out of the config \
                 for this start"
            ),
            Self::MapOfSnapshots => write!(
                f,
                "the device has snapshots, which want the whole map in DRAM: leave map_memory out of the \
                 config, or start without it once and give them up"
            ),
            Self::Medium => write!(f, "the medium failed while the device was mounted"),
            Self::NoSpace => write!(
                f,
                "no space is left below the device for what a format writes: make room there, then \
                 try again"
            ),
        }
    }
}

impl std::error::Error for MountError {}

/// What a request waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waits {
    /// Nothing: it was answered.
    Nothing,
    /// The first checkpoint after the mount.
    FirstCheckpoint,
    /// Room behind the medium.
    Room,
    /// A place in the queue of a unit, each of which has as many pages as may wait on it.
    Queues,
    /// A free band, which GC has to make.
    FreeBand,
    /// Its turn: what the host may append is what GC has gained.
    GcPace,
    /// Its turn on the fast tier, which is emptied as fast as the capacity tier takes it.
    Destage,
    /// Pieces of the map that are not in DRAM, or changes of it to be written.
    Map,
    /// An atomic write that has not ended.
    Atomic,
    /// Its page to be full, or old enough.
    Page,
    /// The pages before its own.
    Order,
    /// Pages before it to be safe from a power cut.
    Safety,
    /// A flush of the medium.
    Flush,
    /// Another place for what could not be programmed.
    AnotherPlace,
    /// What stands before it on a unit.
    Unit(u32, Ahead),
    /// None of these.
    Other,
}

/// What stands before a request on a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ahead {
    /// Nothing: the medium does what was asked.
    Medium,
    /// An erase.
    Erase,
    /// An erase that is suspended for it.
    ErasePaused,
    /// A program.
    Program(By),
    /// A program that is suspended for it.
    ProgramPaused(By),
    /// The program of the very block.
    OwnProgram,
    /// Reads.
    Reads(By),
    /// Reads that have suspended it.
    Suspended,
    /// Its turn: the service level of reads lets nothing begin.
    Turn,
}

/// For whom a command is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum By {
    /// The host.
    Host,
    /// GC, or destage.
    Gc,
    /// The FTL: checkpoints, records, the map, scrub.
    Own,
}

impl Waits {
    /// A stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::FirstCheckpoint => "first_checkpoint",
            Self::Room => "room",
            Self::Queues => "unit_queues",
            Self::FreeBand => "gc_free_band",
            Self::GcPace => "gc_pace",
            Self::Destage => "destage",
            Self::Map => "map",
            Self::Atomic => "atomic_write",
            Self::Page => "page",
            Self::Order => "page_order",
            Self::Safety => "page_safety",
            Self::Flush => "medium_flush",
            Self::AnotherPlace => "another_place",
            Self::Unit(_, ahead) => ahead.name(),
            Self::Other => "other",
        }
    }

    /// The unit where it waits, if it is one.
    pub fn unit(self) -> Option<u32> {
        match self {
            Self::Unit(unit, _) => Some(unit),
            _ => None,
        }
    }
}

impl Ahead {
    fn name(self) -> &'static str {
        match self {
            Self::Medium => "medium",
            Self::Erase => "erase",
            Self::ErasePaused => "erase_suspended",
            Self::Program(By::Host) => "host_program",
            Self::Program(By::Gc) => "gc_program",
            Self::Program(By::Own) => "own_program",
            Self::ProgramPaused(_) => "program_suspended",
            Self::OwnProgram => "program_of_the_block",
            Self::Reads(By::Host) => "host_reads",
            Self::Reads(By::Gc) => "gc_reads",
            Self::Reads(By::Own) => "own_reads",
            Self::Suspended => "suspended_by_reads",
            Self::Turn => "read_slo",
        }
    }
}

impl std::fmt::Display for Waits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing: it was answered",
            Self::FirstCheckpoint => "the first checkpoint after the mount",
            Self::Room => "room below the medium",
            Self::Queues => "a place in the units' queues, which were full",
            Self::FreeBand => "GC to make a free band",
            Self::GcPace => "GC, whose pace bounds what the host appends",
            Self::Destage => "room on the fast tier, which is being destaged",
            Self::Map => "the map, a part of which was not in DRAM",
            Self::Atomic => "the end of an atomic write",
            Self::Page => "its page to be full or old enough",
            Self::Order => "the pages before its own",
            Self::Safety => "pages before it to be safe",
            Self::Flush => "a flush of the medium",
            Self::AnotherPlace => "another place for what could not be programmed",
            Self::Unit(unit, ahead) => return write!(f, "{ahead} unit {unit}"),
            Self::Other => "something else",
        })
    }
}

impl std::fmt::Display for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Medium => "the medium itself, on",
            Self::Erase => "an erase of",
            Self::ErasePaused => "an erase to be suspended on",
            Self::Program(By::Host) => "a program of the host's on",
            Self::Program(By::Gc) => "a program of GC's on",
            Self::Program(By::Own) => "a program of the FTL's own on",
            Self::ProgramPaused(_) => "a program to be suspended on",
            Self::OwnProgram => "the program of the very block on",
            Self::Reads(By::Host) => "other reads of the host's on",
            Self::Reads(By::Gc) => "reads of GC's on",
            Self::Reads(By::Own) => "reads of the FTL's own on",
            Self::Suspended => "reads that suspended its program on",
            Self::Turn => "its turn, which the reads' service level delays, on",
        })
    }
}
