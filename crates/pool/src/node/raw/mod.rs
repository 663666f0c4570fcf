//! The store on Weir's raw units: a band is a raw block. The units below do bad blocks, wear and recovery of write
//! pointers; here are only the layout of a band, its index, and a log of fences.
//!
//! A band's raw block has the band's name as its tag. An append writes a header slot and behind it the slots that are
//! not zeroes, filled up to whole pages of the flash; a seal writes a footer, twice, that says where each page is. What
//! the raw block cannot say any more (it is full, or a power cut or a failed program has ended it), the log
//! says. Formats: `format` and docs/formats.md.
//!
//! Driven as the units themselves are: the driver carries out [`Output::Medium`] and gives [`ftl::Input`]. Data never
//! passes here: [`RawStore::piece`] names what a program writes, [`RawStore::wants`] what a read must give back,
//! with [`RawStore::give`] between the completion and the next [`RawStore::poll`].
//!
//! Invariants:
//! - A torn append is no append: a page counts when its header is sound and all of its slots lie below the write
//!   pointer. A band without a page, and a copy without a seal, is erased when it is found.
//! - Nothing is ended as done before it is durable, but appends where the medium is not durable at completion.
//! - A raw block is free, a band's, the log's or being erased; four are always kept for the log: two that it lies in,
//!   and two for the next ones.
//! - Nothing is written or erased before it is certain that the store can be opened.
//! - A slot that is read is returned only with the checksum that its header has for it.
//!
//! `io` talks with the units, `bands` does the commands, `look` finds what a raw block holds, `log` keeps fences.

mod bands;
pub mod format;
mod io;
mod log;
mod look;

use super::store::{Command, CommandId, Data, Done, End, Found, Sensed, StoreError};
use crate::message::BandHeader;
use crate::words::{BandName, BandShape};
use flash::{Completion, Geometry, Health, Instant, Lba, Pairing, Payload, Slab, SlotWrite, Tag};
use format::{AppendHeader, Entry, footer_slots};
use ftl::raw::{RawFormat, RawSettings, RawUnits, WriteUnit};
use ftl::{Core, Input, MountError};
use io::{Buffer, Io};
use log::Log;
use look::Look;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use io::{Given, Piece, Wants};

/// What the owner of a raw store chooses.
#[derive(Clone, Debug, PartialEq)]
pub struct RawStoreSettings {
    /// Of the units below. The store decides what a write fills and what a read is made of.
    pub units: RawSettings,
    /// Volumes that may ever be fenced here.
    pub volumes_max: u32,
    /// Pages of sealed bands of which it is kept in memory where they are, 16 bytes each. Of others it is read again.
    pub indexed_pages_max: u32,
    /// Headers of appends that are kept in memory, 2.4 KiB each: a read needs that of its page.
    pub headers_max: u32,
}

impl Default for RawStoreSettings {
    fn default() -> Self {
        Self {
            units: RawSettings::default(),
            volumes_max: 1024,
            indexed_pages_max: 1 << 20,
            headers_max: 1024,
        }
    }
}

/// Why a raw store cannot be opened. The store has erased and written nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OpenError {
    /// The units below cannot be mounted.
    Units(MountError),
    /// The log that says who is fenced is damaged or gone: an owner that was shut out could write again.
    Log,
    /// The shape does not suit; says why.
    Shape(String),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Units(error) => write!(f, "{error}"),
            Self::Log => write!(
                f,
                "the log of fences on this drive is damaged or gone, so nobody knows which owners of a volume were shut \
                 out: give the node up (`weir pool replace NODE --by none`), so that its bands are copied from the others, and \
                 let the drive, formatted, join under a new number"
            ),
            Self::Shape(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for OpenError {}

/// What [`RawStore::poll`] hands to the driver.
#[derive(Clone, Debug)]
pub enum Output<D> {
    /// Give this to the medium.
    Medium(flash::Command),
    /// The format or mount has ended; commands are welcome if `Ok`.
    Ready(Result<Box<Found>, OpenError>),
    /// A command ended.
    Ended(End<D>),
    /// The end of a shutdown: true if everything is durable.
    Stopped(bool),
}

/// A band on the units.
#[derive(Debug)]
struct Held {
    raw: u32,
    header: BandHeader,
    /// Pages that are there.
    pages: u32,
    /// The first of them that was damaged when the store was opened, or any number behind the last.
    sound: u32,
    /// What was written last was not all sound then.
    torn: bool,
    /// So many of the last ones were not sound.
    loose: u32,
    sealed: bool,
    hidden: bool,
    /// Takes no more appends, and its raw block no more footer.
    failed: bool,
    /// Where the next append goes.
    next: u32,
    /// Writes at the units.
    writing: u32,
    /// Where its pages are, those that are being written behind the others.
    index: Option<Vec<Entry>>,
    /// When it was used last, to drop the index of what is used least.
    used: u64,
}

/// How far the store is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// The units mount.
    Mounting,
    /// Logs are read, then what each raw block holds.
    Looking,
    /// What the log must say is written.
    Settling,
    Ready,
    Refused,
}

/// See the head of this file.
pub struct RawStore<D> {
    units: RawUnits,
    geometry: Geometry,
    settings: RawStoreSettings,
    now: Instant,
    phase: Phase,
    /// The drive is being made a store.
    formats: bool,
    /// Not everything can be read at present: what is not found may still be there.
    blind: bool,
    bands: BTreeMap<BandName, Held>,
    /// Raw blocks that may be written, by lane.
    free: Vec<BTreeSet<u32>>,
    /// Bands that are open, by lane.
    open: Vec<u32>,
    log: Log,
    /// As they were begun: a raw block may be another's before an answer comes.
    looks: BTreeMap<u64, Look>,
    looks_begun: u64,
    /// Bands whose raw block is being erased.
    freeing: BTreeMap<CommandId, (BandName, Held)>,
    /// Bands whose raw block says only once that they are sealed.
    thin: Vec<(BandName, u32)>,
    /// Raw blocks to erase once it is certain that the store can be opened.
    doomed: Vec<u32>,
    /// Raw blocks that nothing needs, and whose erase found no room below.
    unerased: Vec<u32>,
    /// Raw blocks to look at during the mount.
    unlooked: VecDeque<u32>,
    /// Commands that wait until it is known where the pages of a band are.
    waiting: BTreeMap<BandName, Vec<(CommandId, Command<D>)>>,
    reads: Slab<bands::Reading<D>>,
    headers: BTreeMap<(BandName, u32), AppendHeader>,
    /// The same keys, as they came.
    headers_order: VecDeque<(BandName, u32)>,
    buffers: Slab<Buffer<D>>,
    ios: BTreeMap<u64, Io>,
    ios_begun: u64,
    /// Where what the medium reads goes.
    reading: BTreeMap<Tag, (Payload, u32)>,
    uses: u64,
    indexed_pages: u64,
    outputs: VecDeque<Output<D>>,
    empty_crc: u32,
    /// The owner's bytes, as formatted.
    label: Vec<u8>,
}

impl<D: Data> RawStore<D> {
    /// Erases what is on the medium and makes it a store. Ends with [`Output::Ready`].
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn format(
        geometry: Geometry,
        health: &Health,
        format: RawFormat,
        settings: RawStoreSettings,
    ) -> Result<Self, String> {
        let settings = settle(&geometry, settings)?;
        let units = RawUnits::format(geometry, health, format, settings.units.clone())?;
        Ok(Self { formats: true, ..Self::over(units, geometry, settings) })
    }

    /// Recovers the store on the medium. Ends with [`Output::Ready`].
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn mount(
        geometry: Geometry,
        health: &Health,
        settings: RawStoreSettings,
    ) -> Result<Self, String> {
        let settings = settle(&geometry, settings)?;
        let units = RawUnits::mount(geometry, health, settings.units.clone())?;
        Ok(Self::over(units, geometry, settings))
    }

    fn over(units: RawUnits, geometry: Geometry, settings: RawStoreSettings) -> Self {
        Self {
            units,
            geometry,
            settings,
            now: Instant(0),
            phase: Phase::Mounting,
            formats: false,
            blind: false,
            bands: BTreeMap::new(),
            free: Vec::new(),
            open: Vec::new(),
            log: Log::default(),
            looks: BTreeMap::new(),
            looks_begun: 0,
            freeing: BTreeMap::new(),
            thin: Vec::new(),
            doomed: Vec::new(),
            unerased: Vec::new(),
            unlooked: VecDeque::new(),
            waiting: BTreeMap::new(),
            reads: Slab::default(),
            headers: BTreeMap::new(),
            headers_order: VecDeque::new(),
            buffers: Slab::default(),
            ios: BTreeMap::new(),
            ios_begun: 0,
            reading: BTreeMap::new(),
            uses: 0,
            indexed_pages: 0,
            outputs: VecDeque::new(),
            empty_crc: flash::crc(&[0; flash::BLOCK_BYTES]),
            label: Vec::new(),
        }
    }

    /// Takes what the medium or the clock says, or asks for the end. Then give what was read, and drain `poll`.
    pub fn handle(&mut self, now: Instant, input: Input<'_>) {
        self.now = self.now.max(now);
        if let Input::Completion(Completion::Read { tag, slots }) = &input {
            self.note_read(*tag, *slots);
        }
        self.units.handle(now, input);
    }

    /// Begins a command.
    ///
    /// # Panics
    /// Before the store was ready.
    pub fn begin(&mut self, now: Instant, id: CommandId, command: Command<D>) {
        assert_eq!(self.phase, Phase::Ready, "the store was ready");
        self.now = self.now.max(now);
        self.command(id, command);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<Output<D>> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            match self.units.poll()? {
                ftl::Output::Command(command) => {
                    self.note_command(&command);
                    return Some(Output::Medium(command));
                }
                ftl::Output::Reply(reply) => self.replied(reply),
                ftl::Output::Ready(Ok(report)) => {
                    self.label = report.label;
                    self.begin_looking();
                }
                ftl::Output::Ready(Err(error)) => self.open_failed(OpenError::Units(error)),
                ftl::Output::Stopped(durable) => return Some(Output::Stopped(durable)),
                ftl::Output::ReadZeroes { .. }
                | ftl::Output::FastDetached(_)
                | ftl::Output::Labelled(_)
                | ftl::Output::Snapshot { .. } => {
                    unreachable!(
                        "raw units have no zeroes of their own, and nobody asks for the rest"
                    )
                }
            }
        }
    }

    /// When to give [`Input::Deadline`], if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        self.units.deadline()
    }

    /// What a program command writes, until the next call.
    pub fn program(&self, tag: Tag) -> &[SlotWrite] {
        self.units.program(tag)
    }

    /// The label that the drive was formatted with, once the units have mounted.
    pub fn label(&self) -> &[u8] {
        &self.label
    }

    /// The units below, to look at.
    pub fn units(&self) -> &RawUnits {
        &self.units
    }

    /// Whether a band of this shape fits a raw block in the worst case: each page lone, nothing zeroes.
    ///
    /// # Errors
    /// How much it takes, and what would fit.
    pub fn fits(&self, shape: BandShape) -> Result<(), String> {
        let lanes = self.units.lanes();
        let worst = self.slots_of(shape);
        if worst <= u64::from(lanes.slots) {
            return Ok(());
        }
        Err(format!(
            "a band of {} pages of {} slots takes {worst} slots of this drive with its headers, and a raw \
             block has {}: use bands of at most {} such pages, or a drive with larger raw blocks (a larger raw.gang)",
            shape.pages,
            shape.slots_per_page,
            lanes.slots,
            self.band_pages(shape.slots_per_page)
        ))
    }

    /// Slots of the drive that a band takes in the worst case, with its headers and footers.
    fn slots_of(&self, shape: BandShape) -> u64 {
        let page = self.whole(u64::from(shape.slots_per_page) + 1);
        let footer = 2 * self.whole(footer_slots(shape.pages).into());
        page * u64::from(shape.pages) + footer
    }

    /// Pages of the longest band that a raw block holds in the worst case.
    fn band_pages(&self, slots_per_page: u32) -> u32 {
        let slots = u64::from(self.units.lanes().slots);
        let most = slots / self.whole(u64::from(slots_per_page) + 1);
        let holds = |&pages: &u32| self.slots_of(BandShape { pages, slots_per_page }) <= slots;
        (1..=most as u32).rev().find(holds).unwrap_or(0)
    }

    /// So many slots, filled up to whole pages of the flash.
    fn whole(&self, slots: u64) -> u64 {
        slots.next_multiple_of(self.geometry.slots_per_page.into())
    }

    fn end(&mut self, id: CommandId, result: Result<Done<D>, StoreError>, raw: Option<u32>) {
        let sensed = raw.map(|raw| self.sense(raw)).unwrap_or_default();
        self.outputs.push_back(Output::Ended(End { id, result, sensed }));
    }

    fn sense(&self, raw: u32) -> Sensed {
        let lba = Lba(raw * self.units.lanes().slots);
        let queue = self.units.queue_at(lba).min(u16::MAX.into()) as u16;
        Sensed { unit_queue: Some(queue), unit_stirs: self.units.stirs(lba) }
    }

    fn lane_of(&self, raw: u32) -> usize {
        (raw / self.units.lanes().raw_blocks) as usize
    }

    fn open_failed(&mut self, error: OpenError) {
        self.phase = Phase::Refused;
        self.outputs.push_back(Output::Ready(Err(error)));
    }

    /// Takes an erased raw block on the lane that is used least, leaving `keep` of all; not on lane `but`.
    fn take_free(&mut self, keep: usize, but: Option<usize>) -> Option<u32> {
        let lanes = (0..self.free.len()).filter(|&lane| !self.units.is_lane_gone(lane as u32));
        let lanes: Vec<usize> = lanes.filter(|&lane| !self.free[lane].is_empty()).collect();
        if lanes.iter().map(|&lane| self.free[lane].len()).sum::<usize>() <= keep {
            return None;
        }
        let lanes = lanes.into_iter().filter(|&lane| Some(lane) != but);
        let lane =
            lanes.min_by_key(|&lane| (self.open[lane], usize::MAX - self.free[lane].len()))?;
        self.free[lane].pop_first()
    }

    /// Raw blocks that must stay free for the log.
    fn log_reserve(&self) -> usize {
        (log::RAW_BLOCKS as usize).saturating_sub(self.log.raw_blocks())
    }
}

/// What the store decides of the units, and whether the medium suits.
fn settle(geometry: &Geometry, mut settings: RawStoreSettings) -> Result<RawStoreSettings, String> {
    if geometry.pairing != Pairing::None {
        return Err(
            "pages of this medium share cells with later ones, so that a page is not durable when it is \
             written: a node needs one whose pages do not (pairing none), or mode = \"block\" on this one"
                .into(),
        );
    }
    settings.units.write = WriteUnit::Page;
    settings.units.read_granule = 1;
    if settings.units.read_only {
        return Err("a node writes who is fenced: read_only must be off".into());
    }
    Ok(settings)
}
