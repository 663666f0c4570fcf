//! Checkpoints: the whole map on flash, so that recovery reads it and the bands that were appended
//! to since, and nothing else.
//!
//! A checkpoint is named by the first order that it does not cover. It is taken while the host goes
//! on: a chunk of the map may hold later writes than the checkpoint's name says, which recovery
//! finds again and applies once more to the same effect.
//!
//! Invariants:
//! - the footer is written only when every slot that the chunks point to is durable;
//! - the previous checkpoint's bands are given up only when a footer is durable. Where one of the two
//!   could not be written, the checkpoint counts all the same: recovery would go by it. But another one
//!   follows at once. Where none could be written, recovery may still go by what there is: its bands,
//!   too, are given up only when a later one is complete;
//! - no slot of an order from the name on is older than what the map holds of its block: else replay
//!   would put it on top. Appends that come late (`Ftl::comes_late`) are placed before a checkpoint
//!   begins, or it begins anew;
//! - the map never holds what is undone afterwards: then, too, it begins anew;
//! - pages of a checkpoint hold no order back, so no host flush waits for one;
//! - root records and the footer are written twice, so no single page is what a mount hangs on;
//! - at a clean stop both footers are durable before a seal is written behind them.

use crate::config::Settings;
use crate::format::{
    BandNote, CHUNK_ENTRIES, CheckpointLayout, Footer, Kind, ROOT_PAGES, Root, VERSION,
    VERSION_CLONES, root_shape,
};
use crate::log::points::{Append, NONE, Owner, Page};
use crate::map::staging::Staging;
use crate::mutant::Mutant;
use crate::policy::Purpose;
use crate::recovery::counting::Counting;
use crate::recovery::mending::{Mended, Parity};
use crate::space::bands::BandState;
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{
    BLOCK_BYTES, BlockId, Geometry, Instant, MILLISECOND, MediumError, SECOND, SlotData, crc,
};

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Idle,
    /// Waits for enough clean bands.
    Wanted,
    /// Appends the map.
    Content,
    /// Waits until all that the map points to is durable.
    Settling,
    /// Waits for a flush of the content.
    Flushing,
    /// The footer is on its way.
    Footer,
    /// Waits for a flush of the footers.
    Sealing,
    /// A page failed, or the map turned out wrong: waits for its pages under way, then begins anew.
    Aborting,
}

#[derive(Clone, Default)]
pub(crate) struct Checkpoint {
    stage: Stage,
    /// Name of the last complete one; records of lower orders are not needed any more.
    pub order: u64,
    /// Its bands.
    pub bands: Vec<BlockId>,
    /// The one that a map of which only a part is in DRAM rests on: its name, and its bands by
    /// position, `None` where recovery found none.
    pub base_name: u64,
    pub base_bands: Vec<Option<BlockId>>,
    /// How that one lies in its bands: it may be of the device with a fast tier, and the next one of that
    /// without.
    pub base_layout: Option<CheckpointLayout>,
    /// Of that one, what parity gave while the host was served.
    pub mended: Mended,
    /// Of that one, until every chunk of it was looked at after a mount.
    pub counting: Option<Box<Counting>>,
    /// Recovered, and the checkpoint that says so is not complete: the host may read only. Until
    /// then a second recovery must find what the first one found, and nothing else.
    pub settling: bool,
    /// The band table of the one being written.
    table: Vec<u8>,
    /// The next content of the one being written.
    pub staging: Staging,
    /// Of the run of pages being written.
    parity: Parity,
    /// The last complete one has every version and record of a lower sequence.
    pub sequence_covered: u64,
    /// Name, bands (with their open entries) of the one being written.
    next_order: u64,
    sequence_begun: u64,
    opens: Vec<u32>,
    pub page_next: u32,
    pages_running: u32,
    /// Every order below this must be durable before the footer.
    covered: u64,
    flush_number: u64,
    clean: bool,
    /// Footers of the one being written that are programmed.
    footers: u32,
    /// The seals of a clean stop were appended behind them.
    sealed: bool,
    /// A page of it failed when its content was whole.
    was_whole: bool,
    /// It was sealed by one of two footers.
    half_sealed: bool,
    /// Bands of those that have a whole content and no footer.
    unsealed: Vec<BlockId>,
    /// For a page of it there was no room behind the medium.
    no_room: bool,
    /// So many came to nothing for that reason, one after the other.
    without_room: u32,
    /// Until when none is tried again while nobody waits for one.
    rests_until: Instant,
}

/// What it waits for; not what it has to write, which is long.
impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut of = f.debug_struct("Checkpoint");
        of.field("stage", &self.stage).field("order", &self.order).field("bands", &self.bands);
        of.field("base", &(self.base_name, self.base_bands.len()));
        of.field("counting", &self.counting).field("settling", &self.settling);
        of.field("next", &(self.next_order, &self.opens, self.page_next, self.pages_running));
        of.field("covered", &self.covered).field("flush", &self.flush_number);
        of.field("footers", &self.footers).field("was_whole", &self.was_whole);
        of.field("unsealed", &self.unsealed).field("no_room", &(self.no_room, self.without_room));
        of.field("rests_until", &self.rests_until).finish_non_exhaustive()
    }
}

/// The longest rest. Each try erases what the one before has written: a file system that stays full would wear the
/// flash of an idle device for ever.
const REST_NS_MAX: u64 = 60 * SECOND;
/// The rest after the first one, which doubles with each.
const REST_NS: u64 = 100 * MILLISECOND;

impl Checkpoint {
    pub fn want(&mut self) {
        if self.stage == Stage::Idle {
            self.stage = Stage::Wanted;
        }
    }

    /// There may be room again: the rest ends at `at`, if not before.
    pub fn rest_until(&mut self, at: Instant) {
        self.rests_until = self.rests_until.min(at);
    }

    pub fn rest_ends_at(&self, now: Instant) -> Option<Instant> {
        (self.is_wanted() && now < self.rests_until).then_some(self.rests_until)
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// True while it waits for bands.
    pub fn is_wanted(&self) -> bool {
        self.stage == Stage::Wanted
    }

    /// True from the moment it has taken its bands.
    pub fn is_writing(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Wanted)
    }

    /// The map that is being written is not what the next recovery may go by. After these stages all
    /// that it holds is durable, and cannot turn out wrong any more.
    pub fn begin_anew(&mut self) {
        if matches!(self.stage, Stage::Content | Stage::Settling) {
            self.stage = Stage::Aborting;
        }
    }

    /// True if `order` is covered by the one being written.
    pub fn covers(&self, order: u64) -> bool {
        self.is_writing() && order < self.next_order
    }

    /// The next checkpoint says that the shutdown was clean.
    pub fn want_clean(&mut self) {
        self.clean = true;
        self.want();
    }
}

/// Slots that are appended between two checkpoints of a device of so many logical blocks.
pub fn checkpoint_slots(geometry: &Geometry, logical_blocks: u32, settings: &Settings) -> u64 {
    match settings.checkpoint_slots {
        // The map's own size sixteen times over: checkpoints cost 6 % of what is appended.
        0 => (u64::from(logical_blocks).div_ceil(CHUNK_ENTRIES as u64) * 16)
            .max(u64::from(geometry.slots_per_block()) * 8),
        slots => slots,
    }
}

impl Ftl {
    pub(crate) fn checkpoint_pump(&mut self) {
        loop {
            let before = self.checkpoint.stage;
            match before {
                Stage::Idle => self.checkpoint_if_due(),
                Stage::Wanted => self.begin_checkpoint(),
                Stage::Content => self.append_content(),
                Stage::Settling => self.settle_content(),
                Stage::Flushing => self.after_flush(Stage::Footer),
                Stage::Footer => self.footer_ended(),
                Stage::Sealing => self.after_flush(Stage::Idle),
                Stage::Aborting => self.abort_ended(),
            }
            if self.checkpoint.stage == before {
                return;
            }
        }
    }

    fn checkpoint_if_due(&mut self) {
        if let Some(cached) = self.map.cached_mut() {
            cached.sweep_on();
            if cached.sweep(0) && self.phase == Phase::Running && self.changes_are_many() {
                self.checkpoint.want();
            }
        }
        let interval = checkpoint_slots(&self.geometry, self.map.entries(), &self.settings);
        let due = self.counters.slots_since_checkpoint >= interval;
        let wanted = self.label_wants_checkpoint() || self.snapshots_want_checkpoint();
        if self.phase == Phase::Running && due || wanted {
            self.checkpoint.want();
        }
    }

    fn begin_checkpoint(&mut self) {
        let wanted = self.layout.bands;
        let units = self.units_for(Purpose::Checkpoint);
        let clean: u32 = units.clone().map(|unit| self.clean_usable(unit)).sum();
        let rests = self.now < self.checkpoint.rests_until
            && self.phase == Phase::Running
            && self.host.writes.is_empty();
        let waits = rests
            || self.checkpoint_waits_for_moves()
            || self.chunks_are_lost()
            || self.snapshots_hold_checkpoint();
        if self.now < self.no_space_until || waits || !self.may_open_checkpoint() {
            return;
        }
        // One more while an atomic write is undecided, or what a failed page held has no place: the checkpoint waits
        // for the commit record and for that.
        let others = u32::from(self.host.groups_undecided > 0) + u32::from(self.moves_failed > 0);
        if clean < wanted + others {
            let free: u32 = units.map(|unit| self.bands.sums(unit).bands_free).sum();
            if free < wanted {
                // It is not known yet which others are.
                self.count_by_reads();
            }
            self.units.clean_wanted = true;
            self.dispatch_all();
            self.demand_space();
            return;
        }
        // Pages opened before belong to the checkpoint, pages opened after to the replay.
        for point in 0..self.points.len() {
            self.seal(point);
        }
        self.open_checkpoint(wanted, units);
        self.table_at_checkpoint();
        if let Some(cached) = self.map.cached_mut() {
            cached.sweep(u32::MAX);
        }
        let checkpoint = &mut self.checkpoint;
        checkpoint.next_order = self.durable.next();
        checkpoint.sequence_begun = self.sequence_next;
        (checkpoint.page_next, checkpoint.pages_running, checkpoint.footers) = (0, 0, 0);
        checkpoint.sealed = false;
        checkpoint.staging.clear();
        checkpoint.parity.clear();
        checkpoint.stage = Stage::Content;
        self.counters.slots_since_checkpoint = 0;
        self.label_begun();
        self.snapshots_begun();
        for position in 0..wanted {
            self.append_roots(position);
        }
    }

    /// Opens bands on the units that follow those of the last checkpoint. Always the same would fall behind
    /// with data while they work on checkpoints, keep room where the others have none left, and then do the
    /// work of all.
    fn open_checkpoint(&mut self, wanted: u32, units: std::ops::Range<u32>) {
        let last = self.checkpoint.bands.last().map(|&block| self.geometry.unit_of(block));
        let after = last.filter(|unit| units.contains(unit)).map_or(units.start, |unit| unit + 1);
        self.checkpoint.opens.clear();
        for unit in (after..units.end).chain(units.start..after).cycle() {
            if self.checkpoint.opens.len() as u32 == wanted {
                return;
            }
            if self.clean_usable(unit) > 0
                && let Some(open) = self.open_band(unit, Purpose::Checkpoint)
            {
                self.checkpoint.opens.push(open);
            }
        }
    }

    fn clean_usable(&self, unit: u32) -> u32 {
        if self.units[unit as usize].gone { 0 } else { self.bands.clean(unit).len() as u32 }
    }

    /// Remembers which bands recovery must scan, those that pages can still go to, and which life of each
    /// the map points to: what is older there must not pass for it.
    fn table_at_checkpoint(&mut self) {
        let table = &mut self.checkpoint.table;
        table.clear();
        for block in self.bands.ids() {
            let band = &self.bands[block];
            let holds = matches!(
                band.state,
                BandState::Open | BandState::Full | BandState::Draining | BandState::Uncounted
            );
            let first_order = if holds { band.first_order } else { 0 };
            let open = band.state == BandState::Open;
            table.extend(BandNote { open, first_order }.encode());
        }
        table.resize(self.layout.table_slots as usize * BLOCK_BYTES, 0);
    }

    fn append_roots(&mut self, position: u32) {
        let root = Root {
            version: if self.shadows.clones.is_empty() { VERSION } else { VERSION_CLONES },
            uuid: self.uuid,
            checkpoint: self.checkpoint.next_order,
            bands: self.layout.bands,
            position,
            shape: root_shape(&self.geometry_recorded()),
            logical_blocks: self.map.blocks(),
            sequence_begun: self.checkpoint.sequence_begun,
            generation: self.generation,
            label: self.label.clone(),
            shadow_blocks: self.map.shadow_blocks(),
            snapshots: self.shadows.records(),
            clones: self.shadows.clones.list().to_vec(),
        };
        for _ in 0..ROOT_PAGES {
            let page = self.checkpoint_page(position);
            self.put_meta(page, Kind::Root, position, root.encode());
            self.pad(page);
            self.queue_page(page);
        }
    }

    /// The next page of the checkpoint band at `position`.
    fn checkpoint_page(&mut self, position: u32) -> u32 {
        let page = self.allocate_page(self.checkpoint.opens[position as usize]);
        self.checkpoint_page_begun(page);
        page
    }

    pub(crate) fn checkpoint_page_begun(&mut self, page: u32) {
        let order = self.pages[page].order;
        self.release(order);
        self.checkpoint.pages_running += 1;
    }

    pub(crate) fn checkpoint_page_ended(&mut self, page: u32, result: Result<(), MediumError>) {
        self.checkpoint.pages_running -= 1;
        if result.is_err() {
            self.checkpoint.no_room |= result == Err(MediumError::NoSpace);
            self.checkpoint.was_whole |= self.checkpoint.stage == Stage::Footer;
            self.checkpoint.stage = Stage::Aborting;
        } else if self.is_footer(page) {
            self.checkpoint.footers += 1;
        }
        self.counters.slots_checkpointed += u64::from(self.geometry.slots_per_page);
    }

    fn is_footer(&self, page: u32) -> bool {
        let Page { open, index, .. } = self.pages[page];
        self.layout.footers().iter().any(|&(position, footer)| {
            footer == index && self.checkpoint.opens[position as usize] == open
        })
    }

    fn put_meta(&mut self, page: u32, kind: Kind, index: u32, bytes: Box<[u8; BLOCK_BYTES]>) {
        let append = Append {
            kind,
            lba: index,
            sequence: self.checkpoint.next_order,
            payload_crc: crc(&bytes[..]),
            argument: 0,
            group: (0, 0),
            data: SlotData::Meta(bytes),
            owner: Owner::Nobody,
        };
        self.put(page, append);
    }

    fn append_content(&mut self) {
        let running_max = (2 * self.layout.bands).clamp(4, 64);
        while self.checkpoint.page_next < self.layout.pages {
            if self.checkpoint.pages_running >= running_max {
                return;
            }
            let index = self.checkpoint.page_next;
            let content = self.layout.content_before(index);
            let (position, _) = self.layout.place(index);
            if self.layout.is_parity(index) {
                self.checkpoint.page_next += 1;
                let page = self.checkpoint_page(position);
                self.put_parity(page, self.layout.run_of(content - 1));
                self.pad(page);
                self.queue_page(page);
                continue;
            }
            if !self.content_is_staged(content) {
                return;
            }
            let bases = self.take_staged();
            self.checkpoint.page_next += 1;
            let page = self.checkpoint_page(position);
            let first = content * self.geometry.slots_per_page;
            for slot in first..first + self.geometry.slots_per_page {
                let base = bases.get((slot - first) as usize).and_then(Option::as_deref);
                self.put_content(page, slot, base);
            }
            self.pad(page);
            self.queue_page(page);
        }
        for position in 0..self.layout.bands {
            let open = self.checkpoint.opens[position as usize];
            self.pad_to(open, self.layout.footer_page - 1);
        }
        self.checkpoint.covered = self.durable.next();
        self.checkpoint.stage = Stage::Settling;
    }

    /// Content slot `index`: a map chunk, or part of the band table.
    fn put_content(&mut self, page: u32, index: u32, base: Option<&[u8]>) {
        let in_page = index % self.geometry.slots_per_page;
        if index < self.layout.chunks {
            let bytes = self.chunk(index, base);
            if index > 0 || !self.is_mutant(Mutant::ParityMissesSlot) {
                self.checkpoint.parity.add(in_page, &bytes);
            }
            self.put_meta(page, Kind::Map, index, bytes);
        } else if index < self.layout.chunks + self.layout.table_slots {
            let number = index - self.layout.chunks;
            let at = number as usize * BLOCK_BYTES;
            let mut bytes = Box::new([0; BLOCK_BYTES]);
            bytes.copy_from_slice(&self.checkpoint.table[at..at + BLOCK_BYTES]);
            self.checkpoint.parity.add(in_page, &bytes);
            self.put_meta(page, Kind::BandTable, number, bytes);
        }
    }

    /// What makes up for a slot of `run` that is lost.
    fn put_parity(&mut self, page: u32, run: u32) {
        let first = run * self.geometry.slots_per_page;
        for (index, bytes) in (first..).zip(self.checkpoint.parity.take()) {
            self.put_meta(page, Kind::Parity, index, bytes);
        }
    }

    fn settle_content(&mut self) {
        let hasty = self.is_mutant(Mutant::CheckpointBeforeDurable);
        if self.checkpoint.pages_running > 0 && !hasty {
            return;
        }
        let covered = self.checkpoint.covered;
        if self.durable.safe_below() < covered && !hasty {
            // Otherwise it would wait for the host to go on writing.
            if self.units.are_quiet() || self.phase != Phase::Running {
                self.force_safe(covered - 1);
            } else {
                self.seal_covered(covered);
            }
            return;
        }
        self.checkpoint.flush_number = self.flush_number_after_now();
        self.checkpoint.stage = Stage::Flushing;
    }

    /// Programs the pages that are being filled and that the checkpoint waits for.
    fn seal_covered(&mut self, covered: u64) {
        for point in 0..self.points.len() {
            let page = self.points[point].page;
            if page == NONE {
                continue;
            }
            let Page { order, open, index, .. } = self.pages[page];
            let wanted = self.partner_wanted(open, covered - 1, false);
            let closes = wanted.is_some_and(|wanted| index <= wanted);
            if order < covered || closes && !self.geometry.is_tiered() {
                self.seal(point);
            }
        }
    }

    fn after_flush(&mut self, next: Stage) {
        if self.flush.ended < self.checkpoint.flush_number {
            self.want_flush();
            return;
        }
        if next == Stage::Footer {
            if self.units.iter().any(|unit| unit.erases_running > 0) && self.checkpoint.clean {
                return;
            }
            self.append_footer();
        } else if self.append_seals() {
            self.checkpoint.stage = Stage::Footer;
            return;
        } else {
            self.complete_checkpoint();
        }
        self.checkpoint.stage = next;
        if next == Stage::Idle && std::mem::take(&mut self.checkpoint.half_sealed) {
            self.renew_checkpoint();
        }
    }

    fn append_footer(&mut self) {
        let footer = Footer {
            checkpoint: self.checkpoint.next_order,
            sequence_next: self.sequence_next,
            sequence_begun: self.checkpoint.sequence_begun,
            order_next: self.durable.next(),
            generation: self.generation,
            clean: self.checkpoint.clean,
        };
        for (position, index) in self.layout.footers() {
            let open = self.checkpoint.opens[position as usize];
            self.pad_to(open, index - 1);
            let page = self.checkpoint_page(position);
            assert_eq!(self.pages[page].index, index, "the footer has its place");
            self.put_meta(page, Kind::Footer, 0, footer.encode());
            self.pad(page);
            self.queue_page(page);
        }
        for (position, index) in self.layout.footers() {
            let partner = self.geometry.pairing.last_partner(index, self.geometry.pages_per_block);
            self.pad_to(self.checkpoint.opens[position as usize], partner);
        }
    }

    /// Both footers are durable: at a clean stop a page of padding behind each says so, if there is room. A
    /// mount that finds one knows that no power cut explains a footer that is not sound. False if there is
    /// nothing to wait for.
    fn append_seals(&mut self) -> bool {
        let checkpoint = &mut self.checkpoint;
        if !checkpoint.clean || checkpoint.footers < 2 || checkpoint.half_sealed {
            return false;
        }
        if std::mem::replace(&mut checkpoint.sealed, true) {
            return false;
        }
        for (position, index) in self.seals() {
            self.pad_to(self.checkpoint.opens[position as usize], index);
        }
        self.checkpoint.pages_running > 0
    }

    /// Band positions and pages of the seals: the first pages that share no cells with a footer.
    pub(crate) fn seals(&self) -> Vec<(u32, u32)> {
        let pages = self.geometry.pages_per_block;
        let behind =
            |(position, index)| (position, self.geometry.pairing.last_partner(index, pages) + 1);
        let [first, second] = self.layout.footers().map(behind);
        // Both footers may lie in one band.
        let mut seals = vec![first, second];
        if first.0 == second.0 {
            seals = vec![(first.0, first.1.max(second.1))];
        }
        seals.retain(|&(_, index)| index < pages);
        seals
    }

    fn footer_ended(&mut self) {
        if self.checkpoint.pages_running == 0 {
            self.checkpoint.flush_number = self.flush_number_after_now();
            self.checkpoint.stage = Stage::Sealing;
        }
    }

    fn complete_checkpoint(&mut self) {
        self.counters.checkpoints += 1;
        (self.checkpoint.without_room, self.checkpoint.no_room) = (0, false);
        self.checkpoint.settling = false;
        self.checkpoint.order = self.checkpoint.next_order;
        self.checkpoint.sequence_covered = self.checkpoint.sequence_begun;
        self.label_durable();
        self.snapshots_durable();
        let bands = self.close_checkpoint_bands();
        let old = std::mem::replace(&mut self.checkpoint.bands, bands);
        self.rebase();
        self.give_up(&old);
        let unsealed = std::mem::take(&mut self.checkpoint.unsealed);
        self.give_up(&unsealed);
        self.drain_check = true;
    }

    fn close_checkpoint_bands(&mut self) -> Vec<BlockId> {
        let opens = std::mem::take(&mut self.checkpoint.opens);
        let mut bands = Vec::new();
        for open in opens {
            assert!(self.opens[open].outstanding.is_empty(), "every page of it has ended");
            bands.push(self.opens[open].block);
            self.give_open(open);
        }
        bands
    }

    fn give_up(&mut self, bands: &[BlockId]) {
        for &block in bands {
            if self.bands[block].state == BandState::Checkpoint {
                self.bands[block].invalid_order = 0;
                self.bands[block].hold_order = 0;
                self.bands.set_state(block, BandState::Draining);
            }
        }
        self.drain();
    }

    /// Gives up the one being written, if it is not whole yet, for the bands that it has.
    pub(crate) fn make_room_of_checkpoint(&mut self) {
        self.checkpoint.begin_anew();
        if self.checkpoint.stage == Stage::Aborting {
            self.abort_ended();
        }
    }

    fn abort_ended(&mut self) {
        if self.checkpoint.pages_running > 0 {
            return;
        }
        let was_whole = std::mem::take(&mut self.checkpoint.was_whole);
        if was_whole && self.checkpoint.footers > 0 && self.checkpoint_answers() {
            // To write it anew would take bands beside those of this one, which recovery may go by.
            self.checkpoint.half_sealed = true;
            self.footer_ended();
            return;
        }
        self.counters.checkpoints_aborted += 1;
        if std::mem::take(&mut self.checkpoint.no_room) {
            let rest_ns = (REST_NS << self.checkpoint.without_room.min(20)).min(REST_NS_MAX);
            self.checkpoint.without_room += 1;
            self.checkpoint.rests_until = self.now + rest_ns;
        }
        let bands = self.close_checkpoint_bands();
        if was_whole {
            // A footer may be unreadable: an erase now would make it a damaged one.
            self.checkpoint.unsealed.extend(bands);
        } else {
            self.give_up(&bands);
        }
        self.checkpoint.staging.clear();
        if let Some(cached) = self.map.cached_mut() {
            cached.checkpoint_aborted();
        }
        self.checkpoint.stage = Stage::Wanted;
        self.stir_snapshots();
    }

    /// Every unit that the one being written lies on is there.
    fn checkpoint_answers(&self) -> bool {
        let mut bands = self.checkpoint.opens.iter().map(|&open| self.opens[open].block);
        bands.all(|block| !self.units[self.geometry.unit_of(block) as usize].gone)
    }

    /// The last checkpoint lies on a band that failed. At the end of a shutdown it will do.
    fn renew_checkpoint(&mut self) {
        if matches!(self.phase, Phase::Running | Phase::Formatting) {
            self.checkpoint.want();
        }
    }
}
