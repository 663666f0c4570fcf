//! Format and recovery: media to state.
//!
//! 1. *Probe*: the first slot of every good band is read. It tells whether the band was written
//!    since its erase, in which order, and whether it belongs to a checkpoint. Where that is a root
//!    record, or nothing that this device has put there, the second page is read as well: it may hold
//!    a copy of a root record. If no root record was found, so are all others.
//! 2. *Footer*: of the newest checkpoint, and its copy; if nothing was written there, of the next.
//! 3. *Content*: the map and the band table of that checkpoint. A footer is written when the
//!    content is durable, so one that cannot be read says as much, if the content is whole; the
//!    root record has the rest of what it said. Where only a part of the map is kept in DRAM and
//!    all this is whole, the band table is enough.
//! 4. *Scan*: every page of the bands that were open at the checkpoint or opened after it, and of
//!    those whose first slot is damaged. If a part of the content was lost, or no footer is sound,
//!    of every band (see `rebuild`).
//! 5. *Replay* (see `replay`), with what is missing and what is damaged (see `missing`).
//! 6. A new checkpoint in the background; where only a part of the map is kept in DRAM, this is when
//!    what is valid is counted (see `counting`), and every band is read if a part of the map is lost.
//!
//! Nothing is programmed or erased before step 6, so recovery can be cut off anywhere and done
//! again. Afterwards every free band is erased before it is used: an erase may have been cut off.

mod footers;

use crate::api::{MountError, MountReport, Output};
use crate::config::{FormatOptions, Settings};
use crate::format::LABEL_BYTES_MAX;
use crate::format::{
    CHUNK_ENTRIES, CheckpointLayout, Footer, Header, Kind, Root, decode_header, may_be_root,
    payload_crc_of, root_shape, uuid_crc,
};
use crate::map::Map;
use crate::mutant::Mutant;
use crate::recovery::mending::Mending;
use crate::recovery::missing::Missing;
use crate::recovery::rebuild::Rebuild;
use crate::recovery::replay::Candidate;
use crate::space::bands::BandState;
use crate::space::capacity::logical_blocks_max;
use crate::space::filling::Filling;
use crate::space::scheduler::{ReadOp, ReadPurpose};
use crate::whole::Ftl;
use crate::whole::Phase;
use flash::{
    BLOCK_BYTES, BlockId, Geometry, Health, MediumError, Oob, SlotId, SlotRead, SlotStatus,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Reads of recovery on a unit at a time.
const READS_PER_UNIT: usize = 4;

/// Sequences that a mount skips: those that a torn page may have used are not used again.
pub(crate) const SEQUENCES_SKIPPED: u64 = 1 << 20;

/// What the first slot of a band said.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Probe {
    /// Never asked: bad, or on a unit that is gone.
    Skipped,
    Erased,
    Unreadable,
    Read(Oob),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Probe,
    /// Second pages, where the first one is or may have been a root record's.
    Copies,
    Footer,
    Content,
    /// Runs of pages of which content is missing.
    Mend,
    Scan,
    /// The host is served; what is valid is being counted.
    Counting,
    /// Likewise, and a part of the map turned out lost: the runs that it is of are read.
    MendLate,
    /// That did not do: every band is read.
    Rescan,
    /// Format: waits for the erases.
    Erase,
    /// Format: waits for the first checkpoint.
    FirstCheckpoint,
}

#[derive(Debug)]
pub(crate) struct Mount {
    stage: Stage,
    format: bool,
    /// Reads to do, by unit: first slot and slots.
    jobs: Vec<VecDeque<(SlotId, u32)>>,
    running: u32,
    pub probes: Vec<Probe>,
    /// Bands whose first slot is older than what the checkpoint's map points to in them.
    pub other_lives: Vec<BlockId>,
    /// Bands whose first slot was durable, and whose data is not what its header was made for.
    pub unfit: BTreeSet<BlockId>,
    pub roots: Vec<(BlockId, Root)>,
    /// Of these, those that their header vouches for, with the checkpoint's name.
    roots_sound: BTreeSet<(SlotId, u64)>,
    version_found: Option<u16>,
    /// A lane record was found: the medium holds raw units.
    raw_found: bool,
    /// Checkpoints whose footer was not looked at yet, oldest first.
    checkpoints: Vec<Named>,
    /// The newest one that has something where its footers belong, and nothing sound.
    damaged: Option<Named>,
    /// Of the one to go by: bands with something where a footer belongs, and nothing sound.
    footers_unsound: BTreeSet<BlockId>,
    /// Of the one to go by: a footer is sound.
    pub footer_found: bool,
    /// Of the one to go by: places of footers where nothing sound is, and whether the medium could read
    /// what is there.
    footers_missing: Vec<(SlotId, bool)>,
    /// Of the one to go by: a seal is sound, so both footers were durable.
    sealed: bool,
    /// Of the one to go by: bands of which more than the first page is there.
    bands_sound: BTreeSet<BlockId>,
    /// The one to go by, and what its footer says.
    pub chosen: Named,
    pub footer: Option<Footer>,
    /// Of the content the band table is read only.
    table_only: bool,
    /// By content slot: it was read, or need not be.
    pub found: Vec<bool>,
    pub table: Vec<u8>,
    pub mending: Mending,
    pub candidates: Vec<Candidate>,
    pub missing: Missing,
    pub rebuild: Option<Rebuild>,
    pub report: MountReport,
    error: Option<MountError>,
}

impl Mount {
    /// The device is ready, and what is valid is counted from now on.
    pub fn begin_counting(&mut self) {
        self.stage = Stage::Counting;
        (self.candidates, self.roots) = (Vec::new(), Vec::new());
    }

    /// Slots to read when `unit` has time.
    pub fn read(&mut self, unit: u32, slot: SlotId, count: u32) {
        self.jobs[unit as usize].push_back((slot, count));
    }

    /// Runs of pages are read to mend what is missing; `late` while the host is served.
    pub fn begin_mend(&mut self, late: bool) {
        self.stage = if late { Stage::MendLate } else { Stage::Mend };
    }

    /// What can be mended before the host is served is.
    pub fn end_mend(&mut self) {
        self.stage = Stage::Content;
    }

    /// Every band is read to make up for chunks that are lost.
    pub fn begin_rescan(&mut self, rebuild: Rebuild) {
        self.stage = Stage::Rescan;
        self.rebuild = Some(rebuild);
    }

    /// Whether a footer was written and is damaged. An erase that was cut off, or lost, leaves the
    /// same at a footer's place, in a checkpoint that was never complete as well; but it leaves no
    /// page of its band beside the first. So the band itself must show one: its neighbours say
    /// nothing, as bands are erased one by one.
    fn footer_damaged(&self) -> bool {
        !self.footers_unsound.is_disjoint(&self.bands_sound)
    }
}

/// A checkpoint by its root records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    pub name: u64,
    /// By position; `None` where no root record was found.
    pub bands: Vec<Option<BlockId>>,
    /// That of the medium, or without its fast tier, or without units that were added since.
    pub shape: [u32; 6],
    pub logical_blocks: u32,
    /// Of the format.
    pub version: u16,
    /// Entries of shadows in its map.
    pub shadow_blocks: u32,
}

impl Named {
    /// The one that a root record is of, whose bands are still to be found.
    fn of(root: &Root) -> Self {
        Self {
            name: root.checkpoint,
            bands: Vec::new(),
            shape: root.shape,
            logical_blocks: root.logical_blocks,
            version: root.version,
            shadow_blocks: root.shadow_blocks,
        }
    }
}

impl Ftl {
    /// Erases what is on the medium and makes it a device of `options`. Ends with
    /// [`Output::Ready`].
    pub fn format(
        geometry: Geometry,
        health: &Health,
        options: FormatOptions,
        settings: Settings,
    ) -> Result<Self, String> {
        let max = logical_blocks_max(&geometry, health, &settings);
        if options.logical_blocks == 0 || options.logical_blocks > max {
            return Err(format!(
                "logical capacity of {} blocks of 4 KiB: this medium can offer 1 to {max}",
                options.logical_blocks
            ));
        }
        if options.label.len() > LABEL_BYTES_MAX {
            return Err(format!(
                "label of {} bytes: at most {LABEL_BYTES_MAX}",
                options.label.len()
            ));
        }
        if settings.read_only {
            return Err("a format writes: read_only must be off".into());
        }
        let mut ftl = Self::empty(geometry, health, settings, options.logical_blocks)?;
        ftl.check_fast_tier(health)?;
        ftl.check_openings().map_err(|error| error.to_string())?;
        ftl.uuid = options.uuid;
        ftl.uuid_crc = uuid_crc(options.uuid);
        ftl.label = options.label;
        ftl.generation = 1;
        ftl.start_mount(true);
        Ok(ftl)
    }

    /// Recovers the device on the medium. Ends with [`Output::Ready`].
    pub fn mount(geometry: Geometry, health: &Health, settings: Settings) -> Result<Self, String> {
        let mut ftl = Self::empty(geometry, health, settings, 1)?;
        ftl.start_mount(false);
        Ok(ftl)
    }

    fn start_mount(&mut self, format: bool) {
        let mut jobs = vec![VecDeque::new(); self.geometry.units as usize];
        for block in self.bands.ids() {
            if self.bands[block].state != BandState::Retired {
                let unit = self.geometry.unit_of(block) as usize;
                jobs[unit].push_back((self.geometry.slot(block, 0, 0), 1));
            }
        }
        let probed = jobs.iter().map(|jobs| jobs.len() as u32).sum();
        self.mount = Some(Box::new(Mount {
            stage: Stage::Probe,
            format,
            jobs,
            running: 0,
            probes: vec![Probe::Skipped; self.geometry.blocks() as usize],
            other_lives: Vec::new(),
            unfit: BTreeSet::new(),
            roots: Vec::new(),
            roots_sound: BTreeSet::new(),
            version_found: None,
            raw_found: false,
            checkpoints: Vec::new(),
            damaged: None,
            footers_unsound: BTreeSet::new(),
            footer_found: false,
            footers_missing: Vec::new(),
            sealed: false,
            bands_sound: BTreeSet::new(),
            chosen: Named::default(),
            footer: None,
            table_only: false,
            found: Vec::new(),
            table: Vec::new(),
            mending: Mending::default(),
            candidates: Vec::new(),
            missing: Missing::default(),
            rebuild: None,
            report: MountReport { bands_probed: probed, ..MountReport::default() },
            error: None,
        }));
        self.mount_pump();
    }

    /// Keeps the reads of recovery going, and goes on to the next stage after the last.
    pub(crate) fn mount_pump(&mut self) {
        loop {
            let Some(mut mount) = self.mount.take() else { return };
            self.start_jobs(&mut mount);
            let busy = mount.running > 0;
            let (stage, failed) = (mount.stage, mount.error.is_some());
            self.mount = Some(mount);
            if busy {
                return;
            }
            if failed {
                self.mount_failed();
                return;
            }
            let waits = match stage {
                Stage::Erase => self.bands.free + self.bands.free_fast > self.clean_bands(),
                Stage::FirstCheckpoint => self.counters.checkpoints == 0,
                Stage::Counting => self.counts_on(),
                _ => false,
            };
            if waits {
                return;
            }
            self.next_stage(stage);
        }
    }

    fn start_jobs(&mut self, mount: &mut Mount) {
        for unit in 0..self.geometry.units as usize {
            while self.units[unit].reads_low.len() < READS_PER_UNIT {
                let Some((slot, count)) = mount.jobs[unit].pop_front() else { break };
                mount.running += 1;
                let read = self.units.reads.take();
                let purpose = ReadPurpose::Mount;
                self.units.reads[read] = ReadOp { purpose, slot, count, ..ReadOp::default() };
                self.queue_read(read);
            }
        }
    }

    fn next_stage(&mut self, stage: Stage) {
        let mut mount = self.mount.take().expect("a mount is under way");
        let result = match stage {
            Stage::Probe if mount.format => self.begin_erase(&mut mount),
            Stage::Probe => self.probe_copies(&mut mount),
            Stage::Copies => self.list_checkpoints(&mut mount),
            Stage::Footer => self.begin_content(&mut mount),
            Stage::Content => self.end_content(&mut mount),
            Stage::Mend => self.end_mending(&mut mount),
            Stage::Scan => {
                self.replay(&mut mount);
                self.finish_mount(mount);
                return;
            }
            Stage::MendLate => {
                self.end_late_mending(&mut mount);
                Ok(())
            }
            Stage::Counting if self.chunks_are_lost() => {
                if !self.begin_late_mending(&mut mount) {
                    self.begin_rescan(&mut mount);
                }
                Ok(())
            }
            Stage::Counting => {
                self.end_counting();
                self.counters.slots_damaged += self.lives_missing(&mount).len() as u64;
                return;
            }
            Stage::Rescan => {
                self.end_rescan(mount);
                return;
            }
            Stage::Erase => {
                self.checkpoint.want();
                mount.stage = Stage::FirstCheckpoint;
                self.erase_all = false;
                Ok(())
            }
            Stage::FirstCheckpoint => {
                self.phase = Phase::Running;
                let report = self.report(mount.report);
                self.outputs.push_back(Output::Ready(Ok(Box::new(report))));
                return;
            }
        };
        mount.error = result.err();
        self.mount = Some(mount);
    }

    pub(crate) fn clean_bands(&self) -> u32 {
        (0..self.geometry.units).map(|unit| self.bands.clean(unit).len() as u32).sum()
    }

    /// Format: everything that is not erased is erased, checkpoints of an older device first, so
    /// that a format cut off half way leaves no device rather than half of one.
    fn begin_erase(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        for block in self.bands.ids() {
            let state = match mount.probes[block.0 as usize] {
                _ if self.bands[block].failing => BandState::Retired,
                Probe::Skipped => BandState::Retired,
                Probe::Erased => BandState::Clean,
                Probe::Unreadable | Probe::Read(_) => BandState::Dirty,
            };
            self.bands[block].state = state;
        }
        // The scheduler erases a unit's last dirty band first.
        self.bands.index_all();
        for block in self.bands.ids() {
            let maybe_root = match &mount.probes[block.0 as usize] {
                Probe::Unreadable => true,
                Probe::Read(oob) => may_be_root(oob),
                Probe::Erased | Probe::Skipped => false,
            };
            if maybe_root && self.bands[block].state != BandState::Retired {
                self.bands.set_state(block, BandState::Draining);
                self.bands.set_state(block, BandState::Dirty);
            }
        }
        self.phase = Phase::Formatting;
        // A bad block may keep a root record of the device that was here: it must never be newer.
        let newest = mount.roots.iter().map(|(_, root)| root.checkpoint).max();
        self.restart_orders(newest.unwrap_or(0) + 1);
        self.erase_all = true;
        mount.stage = Stage::Erase;
        self.dispatch_all();
        Ok(())
    }

    fn probe_copies(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        mount.stage = Stage::Copies;
        let newest = mount.roots.iter().map(|(_, root)| root).max_by_key(|root| root.checkpoint);
        let device = newest.map(|root| uuid_crc(root.uuid));
        for block in self.bands.ids() {
            let first = self.geometry.slot(block, 0, 0);
            let look = match (&mount.probes[block.0 as usize], device) {
                (Probe::Skipped, _) => false,
                // The second one of any band may be all that is left.
                (_, None) | (Probe::Unreadable, _) => true,
                (Probe::Erased, _) => false,
                // Of a checkpoint both should be there.
                (Probe::Read(oob), Some(device)) => {
                    may_be_root(oob) || decode_header(oob, first, device).is_none()
                }
            };
            if look {
                let unit = self.geometry.unit_of(block) as usize;
                mount.jobs[unit].push_back((self.geometry.slot(block, 1, 0), 1));
            }
        }
        Ok(())
    }

    fn list_checkpoints(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        if let Some(found) = mount.version_found {
            return Err(MountError::Version { found });
        }
        let Some((_, newest)) = mount.roots.iter().max_by_key(|(_, root)| root.checkpoint) else {
            return Err(if mount.raw_found {
                MountError::Mode { found: "raw units", wanted: "a block device" }
            } else {
                MountError::NotFormatted
            });
        };
        if !self.may_have_been(newest.shape) {
            return Err(MountError::Geometry);
        }
        if newest.shape != root_shape(&self.geometry) && self.units.iter().any(|unit| unit.gone) {
            // Those that are gone may have said more.
            return Err(MountError::Medium);
        }
        self.uuid = newest.uuid;
        self.uuid_crc = uuid_crc(newest.uuid);
        self.label = newest.label.clone();
        self.resize(newest.logical_blocks)?;
        self.check_growth(newest)?;
        let bands_of = |root: &Root| {
            let layout = self.layout_recorded(&Named::of(root));
            let bands = layout.filter(|_| self.may_have_been(root.shape));
            let bands = bands.map(|layout| layout.bands);
            bands.filter(|&bands| bands <= self.geometry.blocks())
        };
        let mut names: BTreeMap<u64, Named> = BTreeMap::new();
        for (block, root) in &mount.roots {
            let same = root.uuid == self.uuid
                && root.logical_blocks <= newest.logical_blocks
                && bands_of(root) == Some(root.bands)
                && root.position < root.bands;
            if same {
                let named = names.entry(root.checkpoint).or_insert_with(|| Named::of(root));
                named.bands.resize(root.bands as usize, None);
                named.bands[root.position as usize] = Some(*block);
            }
        }
        mount.checkpoints = names.into_values().collect();
        self.read_footers(mount)
    }

    /// Takes the size that the root record tells.
    pub(crate) fn resize(&mut self, logical_blocks: u32) -> Result<(), MountError> {
        let layout = CheckpointLayout::new(&self.geometry, logical_blocks);
        let fits = u64::from(logical_blocks) < self.geometry.slots() && logical_blocks > 0;
        self.layout = layout.filter(|_| fits).ok_or(MountError::Geometry)?;
        self.map = Map::of(&self.settings, logical_blocks);
        self.set_up_streams().expect("the settings are sound");
        self.set_up_reclaim();
        self.check_openings()
    }

    /// Reads the content from the page of slot `first` on.
    fn read_content(&self, mount: &mut Mount, first: u32) {
        let slots = self.layout.chunks + self.layout.table_slots;
        let per_page = self.geometry.slots_per_page;
        for page in first / per_page..slots.div_ceil(per_page) {
            let (position, index) = self.layout.place(self.layout.page_of_content(page));
            let block = mount.chosen.bands.get(position as usize).copied().flatten();
            let Some(block) = block else { continue };
            let count = (slots - page * per_page).min(per_page);
            let unit = self.geometry.unit_of(block) as usize;
            mount.jobs[unit].push_back((self.geometry.slot(block, index, 0), count));
        }
    }

    pub(crate) fn end_content(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        if mount.table_only {
            let table = &mount.found[self.layout.chunks as usize..];
            if !table.iter().all(|&found| found) {
                if self.begin_mending(mount, self.layout.chunks) {
                    return Ok(());
                }
                // Every band will be read: then it is good to know what else is lost.
                mount.table_only = false;
                self.read_content(mount, 0);
                return Ok(());
            }
            mount.table_only = false;
            mount.found[..self.layout.chunks as usize].fill(true);
        }
        if mount.footers_unsound.is_empty() || mount.footer_damaged() {
            if self.begin_mending(mount, 0) {
                return Ok(());
            }
            return self.begin_scan(mount);
        }
        mount.damaged.get_or_insert_with(|| mount.chosen.clone());
        self.read_footers(mount)
    }

    /// The label is that of the checkpoint that recovery goes by: a newer root record may be of one that was never
    /// complete.
    fn take_label(&mut self, mount: &Mount) {
        let of_it = |root: &&Root| root.uuid == self.uuid && root.checkpoint == mount.chosen.name;
        if let Some(root) = mount.roots.iter().map(|(_, root)| root).find(of_it)
            && !self.is_mutant(Mutant::LabelOfNewestRoot)
        {
            self.label = root.label.clone();
        }
    }

    fn begin_scan(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        mount.stage = Stage::Scan;
        let footer = mount.footer.expect("content has a footer");
        self.take_label(mount);
        self.take_snapshots(mount)?;
        self.note_copies(mount);
        self.rebuild_if_needed(mount);
        let everything = mount.rebuild.is_some();
        self.lose_chunks(mount);
        // Another device's says nothing of what is in the band.
        let own = mount.roots.iter().filter(|(_, root)| root.uuid == self.uuid);
        let roots: BTreeSet<BlockId> = own.map(|(block, _)| *block).collect();
        let of_checkpoint: BTreeSet<BlockId> =
            mount.chosen.bands.iter().flatten().copied().collect();
        for block in self.bands.ids() {
            let probe = mount.probes[block.0 as usize];
            let note = self.layout.note_of(&mount.table, block);
            let open = note.open && !self.is_mutant(Mutant::SkipOpenBands);
            let header = self.probed_header(block, probe);
            let later = header.is_some_and(|header| header.order >= footer.checkpoint);
            // Units that the device does not know of hold nothing of it.
            let unknown = !mount.chosen.knows(&self.geometry, block);
            let is_life = !later && !unknown && !of_checkpoint.contains(&block);
            let life = Some(note.first_order).filter(|&order| order > 0 && is_life);
            // What the first slot says is of another life than what the map points to.
            let other_life = life.zip(header).is_some_and(|(life, header)| header.order != life);
            let scan = match (probe, header) {
                (Probe::Skipped | Probe::Erased, _) => false,
                _ if unknown => false,
                // Whatever its first slot says now, nothing but the checkpoint was put there.
                _ if of_checkpoint.contains(&block) => false,
                (_, Some(header)) if header.kind == Kind::Root => false,
                // Data that does not fit may be of a later life than what is beside it.
                (_, Some(_)) => {
                    let unfit = mount.unfit.contains(&block);
                    everything || open || unfit || other_life || later
                }
                // What is beside it is damaged; the root record itself is not.
                (_, None) => !roots.contains(&block),
            };
            self.note_life(block, life, header);
            if other_life {
                mount.other_lives.push(block);
            }
            if scan {
                self.scan_band(mount, block);
            }
        }
        Ok(())
    }

    /// Notes since when `block` holds what it does: as the checkpoint says, or else its first slot.
    fn note_life(&mut self, block: BlockId, life: Option<u64>, header: Option<Header>) {
        if let Some(header) = header {
            self.bands[block].first_order = life.unwrap_or(header.order);
            if header.kind == Kind::Data {
                self.bands[block].filling = Filling::recovered(header.sequence);
            }
            self.durable_seen = self.durable_seen.max(header.order);
        } else if let Some(life) = life {
            self.bands[block].first_order = life;
        }
    }

    /// Chunks that were not found have no base.
    fn lose_chunks(&mut self, mount: &Mount) {
        let Some(cached) = self.map.cached_mut() else { return };
        for chunk in (0..self.layout.chunks).filter(|&chunk| !mount.found[chunk as usize]) {
            cached.lose_chunk(chunk);
        }
    }

    pub(crate) fn scan_band(&self, mount: &mut Mount, block: BlockId) {
        mount.report.bands_scanned += 1;
        let unit = self.geometry.unit_of(block) as usize;
        for page in 0..self.geometry.pages_per_block {
            let slot = self.geometry.slot(block, page, 0);
            mount.jobs[unit].push_back((slot, self.geometry.slots_per_page));
        }
    }

    pub(crate) fn probed_header(&self, block: BlockId, probe: Probe) -> Option<Header> {
        let Probe::Read(oob) = probe else { return None };
        decode_header(&oob, self.geometry.slot(block, 0, 0), self.uuid_crc)
    }

    pub(crate) fn end_mount_read(
        &mut self,
        op: &ReadOp,
        slots: Result<&[SlotRead<'_>], MediumError>,
    ) {
        let mut mount = self.mount.take().expect("a mount is under way");
        mount.running -= 1;
        let block = self.geometry.block_of(op.slot);
        match (mount.stage, slots) {
            (Stage::Probe, Ok(slots)) => {
                let probe = note_root(&mut mount, block, op.slot, &slots[0]);
                mount.probes[block.0 as usize] = probe;
                if slots[0].durable && !fits(&slots[0]) {
                    mount.unfit.insert(block);
                }
            }
            (Stage::Probe, Err(_)) => mount.probes[block.0 as usize] = Probe::Unreadable,
            (Stage::Copies, Ok(slots)) if !self.is_mutant(Mutant::IgnoreSecondRoot) => {
                note_root(&mut mount, block, op.slot, &slots[0]);
            }
            (Stage::Footer, Ok(slots)) => self.note_footer(&mut mount, op.slot, &slots[0]),
            (Stage::Content, Ok(slots)) => {
                for (index, read) in slots.iter().enumerate() {
                    self.take_content(&mut mount, SlotId(op.slot.0 + index as u32), read);
                }
            }
            (Stage::Mend | Stage::MendLate, slots) => {
                self.take_mending(&mut mount, op.slot, slots.unwrap_or_default());
            }
            (Stage::Scan | Stage::Rescan, Ok(slots)) => self.take_candidates(&mut mount, op, slots),
            (Stage::Scan | Stage::Rescan, Err(_)) => {
                mount.report.pages_torn += 1;
                if let Some(rebuild) = &mut mount.rebuild {
                    rebuild.note_unanswered();
                }
            }
            // What was not found is missed later.
            (Stage::Copies, _) | (Stage::Footer | Stage::Content, Err(_)) => {}
            (Stage::Erase | Stage::FirstCheckpoint | Stage::Counting, _) => {
                unreachable!("a format reads nothing after its probes, and a count by other means")
            }
        }
        self.mount = Some(mount);
    }

    /// The header and bytes of a slot of a checkpoint, if they are sound.
    pub(crate) fn checkpoint_bytes<'a>(
        &self,
        slot: SlotId,
        read: &SlotRead<'a>,
    ) -> Option<(Header, &'a [u8])> {
        let readable = read.is_readable();
        let header = decode_header(&read.oob, slot, self.uuid_crc).filter(|_| readable)?;
        let bytes = read.bytes.filter(|bytes| flash::crc(bytes) == header.payload_crc)?;
        (bytes.len() == BLOCK_BYTES).then_some((header, bytes))
    }

    /// A content slot. One that is not sound is not found; parity or a rebuild makes up for it.
    fn take_content(&mut self, mount: &mut Mount, slot: SlotId, read: &SlotRead<'_>) {
        let name = mount.footer.map(|footer| footer.checkpoint);
        let content = self.checkpoint_bytes(slot, read);
        let Some((header, bytes)) = content.filter(|(header, _)| Some(header.sequence) == name)
        else {
            return;
        };
        let index = match header.kind {
            Kind::Map if header.lba < self.layout.chunks => header.lba,
            Kind::BandTable if header.lba < self.layout.table_slots => {
                self.layout.chunks + header.lba
            }
            _ => return,
        };
        mount.bands_sound.insert(self.geometry.block_of(slot));
        self.adopt_content(mount, index, bytes);
    }

    /// What content slot `index` holds.
    pub(crate) fn adopt_content(&mut self, mount: &mut Mount, index: u32, bytes: &[u8]) {
        mount.found[index as usize] = true;
        if index >= self.layout.chunks {
            let at = (index - self.layout.chunks) as usize * BLOCK_BYTES;
            mount.table[at..at + BLOCK_BYTES].copy_from_slice(bytes);
        } else if let Some(flat) = self.map.flat_mut() {
            let first = index as usize * CHUNK_ENTRIES;
            let end = (first + CHUNK_ENTRIES).min(flat.len());
            for (entry, at) in flat[first..end].iter_mut().zip(bytes.chunks_exact(4)) {
                *entry = u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
            }
        }
    }

    /// The mount or format that is under way ends with `error` once its reads have come back.
    pub(crate) fn fail_mount(&mut self, error: MountError) {
        if let Some(mount) = &mut self.mount {
            mount.error.get_or_insert(error);
            self.mount_pump();
        }
    }

    fn mount_failed(&mut self) {
        let mount = self.mount.take().expect("a mount is under way");
        self.phase = Phase::Stopped;
        let error = mount.error.expect("checked by the caller");
        self.outputs.push_back(Output::Ready(Err(error)));
    }

    /// Keeps the checkpoint that recovery went by until the next one is complete, and records, too:
    /// a recovery cut off must find them again.
    pub(crate) fn mark_checkpoint_bands(&mut self, mount: &Mount) {
        let bands: Vec<BlockId> = mount.chosen.bands.iter().flatten().copied().collect();
        for &block in &bands {
            self.bands[block].state = BandState::Checkpoint;
        }
        // Orders start at 1: after a rebuild every record counts.
        self.checkpoint.order = if mount.rebuild.is_some() { 1 } else { mount.chosen.name };
        self.checkpoint.bands = bands;
        (self.checkpoint.base_name, self.checkpoint.base_bands) =
            (mount.chosen.name, mount.chosen.bands.clone());
        self.checkpoint.base_layout = Some(self.layout_chosen(&mount.chosen));
    }

    pub(crate) fn report(&self, report: MountReport) -> MountReport {
        MountReport {
            logical_blocks: self.map.blocks(),
            label: self.label.clone(),
            uuid: self.uuid,
            generation: self.generation,
            blocks_mapped: self.blocks_mapped,
            ..report
        }
    }
}

/// Whether the data of a slot is what its header was made for, whatever device that is of.
fn fits(read: &SlotRead<'_>) -> bool {
    let readable = read.is_readable();
    !readable || payload_crc_of(&read.oob) == read.crc
}

/// Takes the root record of `block`, if the slot is one, and says what the slot is.
fn note_root(mount: &mut Mount, block: BlockId, slot: SlotId, read: &SlotRead<'_>) -> Probe {
    match read.status {
        SlotStatus::Erased if read.durable => Probe::Unreadable,
        SlotStatus::Erased => Probe::Erased,
        SlotStatus::Uncorrectable => Probe::Unreadable,
        SlotStatus::Ok | SlotStatus::Corrected(_) => {
            // Root records carry their own checksum: the uuid that headers need is in them.
            mount.raw_found |= read.bytes.is_some_and(crate::raw::format::is_lane_record);
            match read.bytes.and_then(Root::decode) {
                Some(Ok(root)) => {
                    let header = decode_header(&read.oob, slot, uuid_crc(root.uuid));
                    let of_it = |header: &Header| {
                        (header.kind, header.sequence) == (Kind::Root, root.checkpoint)
                            && header.payload_crc == read.crc
                    };
                    if header.as_ref().is_some_and(of_it) {
                        mount.roots_sound.insert((slot, root.checkpoint));
                    }
                    mount.roots.push((block, root));
                }
                Some(Err(unknown)) => mount.version_found = Some(unknown.found),
                _ => {}
            }
            Probe::Read(read.oob)
        }
    }
}
