//! Format and recovery.
//!
//! 1. *Probe*: the first slot of every block is read. It tells whether the block was written since
//!    its erase, by which write of which raw block, or that it holds lane records.
//! 2. *Look*: of blocks whose first slot says nothing a page or two more are asked: see `look`.
//! 3. *Records*: every page of the blocks with records is read. The newest sound one of a lane counts.
//! 4. *Ends*: for each raw block the newest sequence counts, and how far it was written is told by the
//!    record or searched: see `ends`.
//!
//! Bounded: three reads a block, some more for each raw block written in part or damaged. Nothing is
//! programmed or erased before the end, so recovery can be cut off anywhere and done again.

use super::blocks::Use;
use super::ends::End;
use super::format::{
    LaneRecord, NamedState, RawHeader, decode_record_oob, is_lane_record, is_sound, mark_of,
};
use super::look::Found;
use super::{Lanes, NONE, Phase, RawBlock, RawFormat, RawSettings, RawState, RawUnits, ReadOp};
use crate::api::{MountError, MountReport, Output};
use crate::format::{Root, uuid_crc};
use crate::mutant::Mutant;
use flash::{BlockId, Geometry, Health, MediumError, Oob, SlotId, SlotRead, SlotStatus};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Reads of recovery on a unit at a time.
const READS_PER_UNIT: usize = 4;

/// What the first slot of a block said.
#[derive(Clone, Copy, Debug)]
pub(super) enum Probe {
    /// Never asked, or no answer.
    Skipped,
    Erased,
    Unreadable,
    /// Readable: the bytes beside the data, and the data's checksum.
    Read(Oob, u32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    Probe,
    Look,
    Records,
    Ends,
    /// Format: erases what makes a device of the medium.
    EraseRoots,
    /// Format: erases the rest.
    EraseRest,
    /// Format: the first record of each lane.
    FirstRecords,
    /// Format: the records that make it a device.
    LastRecords,
}

#[derive(Debug)]
pub(crate) struct Mount {
    pub(super) stage: Stage,
    format: Option<RawFormat>,
    /// Reads to do, by unit: first slot and slots.
    pub(super) jobs: Vec<VecDeque<(SlotId, u32)>>,
    running: u32,
    pub(super) probes: Vec<Probe>,
    /// By block: its first slot was durable for certain.
    durable: Vec<bool>,
    /// By block: what it says of itself.
    pub(super) found: Vec<Option<Found>>,
    /// By unit: the newest sequence of any sound header.
    pub(super) newest: Vec<u64>,
    /// Blocks whose first slot holds a lane record.
    pub(super) records_found: Vec<(BlockId, LaneRecord)>,
    /// Blocks that hold what makes the medium a device of whatever kind.
    roots: Vec<BlockId>,
    ftl_found: bool,
    version_found: Option<u16>,
    /// The newest record of each lane, and the block it lies in.
    pub(super) records: Vec<Option<(LaneRecord, BlockId)>>,
    /// By lane: the newest of any other block, its number and block.
    seconds: Vec<Option<(u64, BlockId)>>,
    /// By lane: its record is of a clean shutdown, and nothing speaks against that.
    pub(super) clean: Vec<bool>,
    /// Raw blocks of which only an older write was found than the record tells of.
    outdated: BTreeSet<u32>,
    pub(super) ends: BTreeMap<BlockId, End>,
    /// By raw block and member: pages found written.
    pub(super) pages: Vec<u32>,
    /// And the first that is missing before the last of these.
    pub(super) gaps: Vec<Option<u32>>,
    /// Whether behind the last of these lies what is not sound.
    pub(super) torn: Vec<bool>,
    pub(super) report: MountReport,
    error: Option<MountError>,
}

impl RawUnits {
    /// Erases what is on the medium and makes it raw units. Ends with [`Output::Ready`].
    pub fn format(
        geometry: Geometry,
        health: &Health,
        format: RawFormat,
        settings: RawSettings,
    ) -> Result<Self, String> {
        if settings.read_only {
            return Err("a format writes: read_only must be off".into());
        }
        let lanes = Lanes::of_format(&geometry, health, &format)?;
        let mut units = Self::empty(geometry, health, settings, lanes)?;
        units.uuid = format.uuid;
        units.uuid_crc = uuid_crc(format.uuid);
        units.label = format.label.clone();
        units.generation = 1;
        units.start_mount(Some(format));
        Ok(units)
    }

    /// Recovers the raw units on the medium. Ends with [`Output::Ready`].
    pub fn mount(
        geometry: Geometry,
        health: &Health,
        settings: RawSettings,
    ) -> Result<Self, String> {
        // The lanes are known when a record was read; until then each unit is one.
        let lanes = Lanes::new(&geometry, 1, 0)?;
        let mut units = Self::empty(geometry, health, settings, lanes)?;
        units.start_mount(None);
        Ok(units)
    }

    fn start_mount(&mut self, format: Option<RawFormat>) {
        let mut jobs = vec![VecDeque::new(); self.geometry.units as usize];
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let unit = self.unit_of(block) as usize;
            if !self.dies[unit].gone {
                jobs[unit].push_back((self.geometry.slot(block, 0, 0), 1));
            }
        }
        let bands_probed = jobs.iter().map(|jobs| jobs.len() as u32).sum();
        self.mount = Some(Box::new(Mount {
            stage: Stage::Probe,
            format,
            jobs,
            running: 0,
            probes: vec![Probe::Skipped; self.geometry.blocks() as usize],
            durable: vec![false; self.geometry.blocks() as usize],
            found: vec![None; self.geometry.blocks() as usize],
            newest: vec![0; self.geometry.units as usize],
            records_found: Vec::new(),
            roots: Vec::new(),
            ftl_found: false,
            version_found: None,
            records: Vec::new(),
            seconds: Vec::new(),
            clean: Vec::new(),
            outdated: BTreeSet::new(),
            ends: BTreeMap::new(),
            pages: Vec::new(),
            gaps: Vec::new(),
            torn: Vec::new(),
            report: MountReport { bands_probed, ..MountReport::default() },
            error: None,
        }));
        self.mount_pump();
    }

    /// Keeps the reads of recovery going, and goes on to the next stage after the last.
    pub(crate) fn mount_pump(&mut self) {
        loop {
            let Some(mut mount) = self.mount.take() else { return };
            self.start_jobs(&mut mount);
            let busy = mount.running > 0 || mount.jobs.iter().any(|jobs| !jobs.is_empty());
            if busy || mount.error.is_none() && !self.stage_ended(mount.stage) {
                self.mount = Some(mount);
                return;
            }
            let error = mount.error.take().or_else(|| self.next_stage(&mut mount).err());
            if let Some(error) = error {
                self.phase = Phase::Stopped;
                self.outputs.push_back(Output::Ready(Err(error)));
                return;
            }
            if matches!(self.phase, Phase::Running | Phase::ReadOnly) {
                self.finish_mount(mount.report);
                return;
            }
            self.mount = Some(mount);
        }
    }

    /// The mount or format that is under way ends with `error` once its reads have come back.
    pub(crate) fn fail_mount(&mut self, error: MountError) {
        if let Some(mount) = &mut self.mount {
            mount.error.get_or_insert(error);
        }
    }

    fn stage_ended(&self, stage: Stage) -> bool {
        match stage {
            Stage::Probe | Stage::Look | Stage::Records | Stage::Ends => true,
            Stage::EraseRoots | Stage::EraseRest => self
                .dies
                .iter()
                .all(|die| die.gone || die.dirty.is_empty() && die.erases_running == 0),
            Stage::FirstRecords | Stage::LastRecords => {
                self.lane.iter().all(|lane| lane.gone || !lane.is_recording())
            }
        }
    }

    fn start_jobs(&mut self, mount: &mut Mount) {
        for unit in 0..self.geometry.units {
            while self.dies[unit as usize].reads_low.len() < READS_PER_UNIT {
                let Some((slot, count)) = mount.jobs[unit as usize].pop_front() else { break };
                mount.running += 1;
                let read = self.reads.take();
                self.reads[read] = ReadOp { slot, count, ..ReadOp::default() };
                self.dies[unit as usize].reads_low.push_back(read);
                self.dispatch(unit);
            }
        }
    }

    fn next_stage(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        match mount.stage {
            Stage::Probe if mount.format.is_some() => self.erase_roots(mount),
            Stage::Probe => self.begin_look(mount)?,
            Stage::Look => self.begin_records(mount),
            Stage::Records => self.begin_ends(mount)?,
            Stage::Ends => self.take_state(mount),
            Stage::EraseRoots => self.erase_rest(mount),
            Stage::EraseRest => {
                self.erase_all = false;
                mount.stage = Stage::FirstRecords;
                (0..self.lanes.lanes).for_each(|lane| self.want_record(lane));
            }
            Stage::FirstRecords => {
                self.formatted = true;
                mount.stage = Stage::LastRecords;
                (0..self.lanes.lanes).for_each(|lane| self.want_record(lane));
            }
            Stage::LastRecords => {
                if self.lane.iter().all(|lane| lane.gone) {
                    return Err(MountError::Medium);
                }
                self.phase = Phase::Running;
            }
        }
        Ok(())
    }

    /// Format: first what would be taken for a device, so that a format cut off half way leaves
    /// none.
    fn erase_roots(&mut self, mount: &mut Mount) {
        self.resize(self.lanes);
        self.phase = Phase::Formatting;
        self.erase_all = true;
        mount.stage = Stage::EraseRoots;
        for block in std::mem::take(&mut mount.roots) {
            self.put_dirty(block);
        }
        (0..self.lanes.lanes).for_each(|lane| self.dispatch_lane(lane));
    }

    fn erase_rest(&mut self, mount: &mut Mount) {
        mount.stage = Stage::EraseRest;
        let blank = |probe: &Probe| matches!(probe, Probe::Erased | Probe::Skipped);
        let fresh = self.blocks.iter().zip(&mount.probes).all(|(block, probe)| {
            block.failing || block.used != Use::Unknown || blank(probe) && block.erase_count == 0
        });
        for block in (0..self.geometry.blocks()).map(BlockId) {
            if self.block(block).used != Use::Unknown {
                continue;
            }
            if self.block(block).failing {
                self.put_bad(block, "bad when it was formatted");
                continue;
            }
            match mount.probes[block.0 as usize] {
                Probe::Skipped => self.put_bad(block, "its unit is gone"),
                // Of a medium that was never used there is no erase to doubt.
                Probe::Erased if fresh => self.put_clean(block),
                Probe::Erased => self.put_unproven(block),
                Probe::Unreadable | Probe::Read(..) => self.put_dirty(block),
            }
        }
        (0..self.lanes.lanes).for_each(|lane| self.dispatch_lane(lane));
    }

    /// Takes what makes a device of the medium, and looks where it says nothing.
    fn begin_look(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        if let Some(found) = mount.version_found {
            return Err(MountError::Version { found });
        }
        // Blocks of another device may have come here: the one whose slots are most is this one.
        let newest = mount.records_found.iter().map(|(_, record)| record);
        let newest = newest.max_by_key(|record| {
            (self.blocks_sound(mount, record.uuid), record.generation, record.number)
        });
        let Some(newest) = newest else {
            return Err(if mount.ftl_found {
                MountError::Mode { found: "a block device", wanted: "raw units" }
            } else {
                MountError::NotFormatted
            });
        };
        if newest.shape != crate::format::shape(&self.geometry) {
            return Err(MountError::Geometry);
        }
        let lanes = Lanes::new(&self.geometry, newest.gang, newest.raw_blocks)
            .map_err(|_| MountError::Geometry)?;
        if !(1..=self.geometry.blocks_per_unit).contains(&newest.raw_blocks) {
            return Err(MountError::Geometry);
        }
        self.uuid = newest.uuid;
        self.uuid_crc = uuid_crc(newest.uuid);
        self.label = newest.label.clone();
        self.resize(lanes);
        mount.records = vec![None; lanes.lanes as usize];
        mount.seconds = vec![None; lanes.lanes as usize];
        self.look(mount);
        Ok(())
    }

    /// Blocks whose first slot is sound if the device is that of `uuid`.
    fn blocks_sound(&self, mount: &Mount, uuid: u128) -> usize {
        let uuid_crc = uuid_crc(uuid);
        let is_sound = |(block, probe): &(BlockId, &Probe)| {
            let Probe::Read(oob, crc) = *probe else { return false };
            is_sound(oob, self.geometry.slot(*block, 0, 0), uuid_crc, *crc)
        };
        (0..).map(BlockId).zip(&mount.probes).filter(is_sound).count()
    }

    fn begin_records(&mut self, mount: &mut Mount) {
        mount.stage = Stage::Records;
        for (block, record) in std::mem::take(&mut mount.records_found) {
            if !self.is_record_of(block, &record) {
                continue;
            }
            let unit = self.geometry.unit_of(block);
            for page in 0..self.geometry.pages_per_block {
                mount.jobs[unit as usize].push_back((self.geometry.slot(block, page, 0), 1));
            }
        }
    }

    /// Chooses the blocks of each raw block, and searches their ends.
    fn begin_ends(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        let records = || mount.records.iter().flatten().map(|(record, _)| record);
        if !records().any(|record| record.formatted) {
            return Err(MountError::NotFormatted);
        }
        self.formatted = true;
        self.generation = records().map(|record| record.generation).max().unwrap_or(0) + 1;
        self.sequence_next = records().map(|record| record.sequence_next).max().unwrap_or(1);
        (0..self.lanes.lanes).for_each(|lane| self.take_lane(mount, lane));
        let stale = self.choose_blocks(mount);
        for (block, sequence) in stale {
            let lane = self.lanes.lane_of(self.unit_of(block));
            self.lane[lane as usize].dead.insert((block, sequence));
        }
        self.search_ends(mount);
        Ok(())
    }

    /// Takes what the records of a lane say, and keeps their blocks.
    fn take_lane(&mut self, mount: &mut Mount, lane: u32) {
        let entry = &mut self.lane[lane as usize];
        let unit_gone = entry.gone;
        let Some((record, newest)) = mount.records[lane as usize].as_ref().filter(|_| !unit_gone)
        else {
            // What it lists as dead, or what its blocks hold, is unknown: nothing can be trusted.
            (entry.gone, entry.unknown) = (true, true);
            mount.report.blocks_lost += u64::from(self.lanes.lane_slots());
            mount.clean.push(false);
            return;
        };
        entry.keep_newest(*newest);
        self.blocks[newest.0 as usize].used = Use::Record;
        // There is room for two on a unit only where the lane has no other.
        let (gang, unit) = (self.lanes.gang, self.geometry.unit_of(*newest));
        let second = mount.seconds[lane as usize].map(|(_, block)| block);
        if let Some(block) = second.filter(|it| gang == 1 || self.geometry.unit_of(*it) != unit) {
            entry.keep_second(block);
            self.blocks[block.0 as usize].used = Use::Record;
        }
        entry.number = record.number;
        let later = mount.newest.iter().zip(0..).any(|(&newest, unit)| {
            self.lanes.lane_of(unit) == lane && newest >= record.sequence_next
        });
        mount.clean.push(record.clean && !later);
        if !self.is_mutant(Mutant::RawForgetDead) {
            self.lane[lane as usize].dead = record.dead.iter().copied().collect();
        }
    }

    /// Maps to each raw block the blocks of its newest write. Returns what is out of date, with its
    /// sequence.
    fn choose_blocks(&mut self, mount: &mut Mount) -> Vec<(BlockId, u64)> {
        let mut stale = Vec::new();
        let mut claims = Vec::new();
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let Some(Found { header, .. }) = mount.found[block.0 as usize] else { continue };
            if header.raw_block >= self.lanes.raw_blocks {
                continue;
            }
            self.sequence_next = self.sequence_next.max(header.sequence + 1);
            let lane = self.lanes.lane_of(self.geometry.unit_of(block));
            let entry = &self.lane[lane as usize];
            if entry.gone || entry.dead.contains(&(block, header.sequence)) {
                continue;
            }
            let raw = self.raw_at(lane, header.raw_block);
            let outdated = is_outdated(&mount.records[lane as usize], &header);
            if outdated && !self.is_mutant(Mutant::RawForgetDead) {
                stale.push((block, header.sequence));
                mount.outdated.insert(raw);
                continue;
            }
            let entry = &mut self.raw[raw as usize];
            entry.sequence = entry.sequence.max(header.sequence);
            claims.push((block, raw, header));
        }
        for (block, raw, header) in claims {
            let member = self.lanes.member_of(self.geometry.unit_of(block));
            let at = (raw * self.lanes.gang + member) as usize;
            let rival = BlockId(self.map[at]);
            if header.sequence < self.raw[raw as usize].sequence {
                stale.push((block, header.sequence));
            } else if self.map[at] != NONE && self.block(block).failing {
                // The write began again on another block when this one failed.
                stale.push((block, header.sequence));
            } else {
                if self.map[at] != NONE {
                    stale.push((rival, header.sequence));
                }
                self.map[at] = block.0;
                self.raw[raw as usize].pages_taken = u32::from(header.whole);
                if let Some(tag) = header.tag {
                    self.tags.insert(raw, tag);
                } else {
                    self.tags.remove(&raw);
                }
            }
        }
        stale
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
            (Stage::Probe, Ok(slots)) => note_probe(&mut mount, block, &slots[0]),
            (Stage::Look, slots) => self.take_look(&mut mount, op.slot, slots.unwrap_or(&[])),
            (Stage::Records, Ok(slots)) => self.take_record(&mut mount, op.slot, &slots[0]),
            (Stage::Ends, slots) => self.narrow(&mut mount, op.slot, slots.unwrap_or(&[])),
            (_, Err(_)) => {}
            (_, Ok(_)) => unreachable!("a format reads nothing after its probes"),
        }
        self.mount = Some(mount);
    }

    fn take_record(&mut self, mount: &mut Mount, slot: SlotId, read: &SlotRead<'_>) {
        let readable = read.is_readable();
        let Some(bytes) = read.bytes.filter(|_| readable) else { return };
        let number = decode_record_oob(&read.oob, slot, self.uuid_crc, flash::crc(bytes));
        let Some(Ok(record)) = LaneRecord::decode(bytes) else { return };
        let block = self.geometry.block_of(slot);
        if number != Some(record.number) || !self.is_record_of(block, &record) {
            return;
        }
        let lane = self.lanes.lane_of(self.unit_of(block));
        let second = &mut mount.seconds[lane as usize];
        match &mut mount.records[lane as usize] {
            Some((newest, at)) if newest.number >= record.number => {
                if *at != block && second.is_none_or(|(number, _)| number < record.number) {
                    *second = Some((record.number, block));
                }
            }
            newest => {
                let before = newest.replace((record, block));
                if let Some((before, at)) = before.filter(|(_, at)| *at != block) {
                    *second = Some((before.number, at));
                }
            }
        }
    }

    /// What was found becomes the state.
    fn take_state(&mut self, mount: &mut Mount) {
        for raw in 0..self.raw.len() as u32 {
            self.take_raw_block(mount, raw);
        }
        self.pool_blocks(mount);
        mount.report.clean = mount.records.iter().flatten().all(|(record, _)| record.clean);
        self.phase = if self.settings.read_only { Phase::ReadOnly } else { Phase::Running };
    }

    fn take_raw_block(&mut self, mount: &mut Mount, raw: u32) {
        let told = self.told(mount, raw);
        let missing = told.map_or(0, |pages| self.pages_missing(raw, pages));
        let whole = self.raw[raw as usize].pages_taken == 1;
        let gang = self.lanes.gang;
        let members = (raw * gang) as usize..((raw + 1) * gang) as usize;
        let ends =
            (0..).zip(&mount.pages[members.clone()]).map(|(member, &pages)| pages * gang + member);
        let found = ends.min().unwrap_or(0).min(self.lanes.pages);
        let goes_on = (0..).zip(members.clone()).any(|(member, at)| {
            mount.torn[at] || mount.pages[at] > self.lanes.pages_of(member, found)
        });
        let gaps = (0..).zip(&mount.gaps[members]);
        let gap = gaps.filter_map(|(member, gap)| Some((*gap)? * gang + member)).min();
        let half_erased = told.is_none() && self.is_half_erased(mount, raw);
        // What counts only when whole counts no more when a part of it is erased.
        let found = if half_erased && whole { 0 } else { found };
        let pages = told.unwrap_or(found);
        if pages == 0 || told.is_none() && whole && pages < self.lanes.pages {
            self.drop_claims(raw);
            return;
        }
        let (lane, index) = (self.lane_of_raw(raw) as usize, raw % self.lanes.raw_blocks);
        let record = mount.records[lane].as_ref().filter(|_| mount.clean[lane]);
        let named = record.and_then(|(record, _)| {
            record.open.iter().find(|it| (it.raw_block, it.pages) == (index, pages))
        });
        let named = named.map(|named| named.state);
        // One whose last page is sound in part is no full one.
        let torn =
            half_erased || named == Some(NamedState::Torn) || told.is_none() && gap.is_some();
        let state = match pages {
            pages if pages == self.lanes.pages && !torn => RawState::Full,
            _ if named == Some(NamedState::Open) && missing == 0 => RawState::Open,
            _ => RawState::Torn,
        };
        if state == RawState::Open {
            self.open.insert(raw);
        }
        let slots = self.geometry.slots_per_page;
        mount.report.pages_torn += u64::from(state == RawState::Torn);
        mount.report.blocks_mapped += u64::from(pages * slots);
        mount.report.blocks_lost += u64::from(missing * slots);
        let entry = &mut self.raw[raw as usize];
        (entry.state, entry.pages, entry.pages_taken) = (state, pages, pages);
        (entry.gap, entry.lost) = (gap, missing > 0);
        entry.goes_on = told.is_none() && goes_on;
        for member in 0..gang {
            if let Some(block) = self.block_at(raw, member) {
                self.set_use(block, Use::Raw);
            }
        }
    }

    /// An erase of the raw block may have been cut off: a block of it begins as if it was erased, and goes
    /// on with what it held. Where that is not durable when it ends, it may be written again by then.
    fn is_half_erased(&self, mount: &Mount, raw: u32) -> bool {
        let volatile = !self.geometry.durable_at_completion;
        let blocks = (0..self.lanes.gang).filter_map(|member| self.block_at(raw, member));
        !mount.clean[self.lane_of_raw(raw) as usize]
            && blocks.map(|block| block.0 as usize).any(|at| {
                let late = mount.found[at].is_some_and(|found| found.looked.is_some());
                // Before an erase begins the medium says no more that anything there was durable.
                late && !mount.durable[at]
                    && (volatile || matches!(mount.probes[at], Probe::Erased))
            })
    }

    /// The pages of a raw block, where the record of its lane says how many there are, found or not.
    pub(super) fn told(&self, mount: &Mount, raw: u32) -> Option<u32> {
        let (lane, index) = (self.lane_of_raw(raw), raw % self.lanes.raw_blocks);
        let (record, _) = mount.records[lane as usize].as_ref()?;
        let named = record.open.iter().find(|named| named.raw_block == index);
        let pages = named.map_or(self.lanes.pages, |named| named.pages).min(self.lanes.pages);
        let sequence = self.raw[raw as usize].sequence;
        if sequence >= record.sequence_next || !record.names_all {
            return None;
        }
        let written = record.marks.get(index as usize).is_some_and(|&mark| mark != 0);
        let lost = named.is_some_and(|named| named.state == NamedState::Lost);
        // An erase of it would have been told by a later record.
        let counts = mount.clean[lane as usize] || lost;
        if counts && (sequence > 0 || written || lost) || written && self.shows_its_past(mount, raw)
        {
            return Some(pages);
        }
        None
    }

    /// Nothing was found of the raw block but an older write, which no erase brings back.
    fn shows_its_past(&self, mount: &Mount, raw: u32) -> bool {
        let durable = self.geometry.durable_at_completion;
        durable && self.raw[raw as usize].sequence == 0 && mount.outdated.contains(&raw)
    }

    /// Of the first `pages` of a raw block those whose block was not found.
    fn pages_missing(&self, raw: u32, pages: u32) -> u32 {
        let missing = (0..self.lanes.gang).filter(|&member| self.block_at(raw, member).is_none());
        missing.map(|member| self.lanes.pages_of(member, pages)).sum()
    }

    /// Nothing of what claims to be `raw` may be read.
    fn drop_claims(&mut self, raw: u32) {
        let gang = self.lanes.gang;
        let (lane, sequence) = (self.lane_of_raw(raw), self.raw[raw as usize].sequence);
        for block in &mut self.map[(raw * gang) as usize..((raw + 1) * gang) as usize] {
            if *block != NONE {
                // After a clean stop nothing would tell it from what is whole and damaged.
                self.lane[lane as usize].dead.insert((BlockId(*block), sequence));
            }
            *block = NONE;
        }
        self.raw[raw as usize] = RawBlock { sequence, ..RawBlock::default() };
        self.tags.remove(&raw);
    }

    /// Every block that holds nothing goes to a pool.
    fn pool_blocks(&mut self, mount: &Mount) {
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let unit = self.unit_of(block);
            let probe = mount.probes[block.0 as usize];
            let erased = matches!(probe, Probe::Erased) && mount.found[block.0 as usize].is_none();
            if erased {
                for sequence in self.dead_sequences(block) {
                    self.forget_dead(block, sequence);
                }
            }
            if self.block(block).used != Use::Unknown {
                continue;
            }
            if self.block(block).failing || self.dies[unit as usize].gone {
                self.put_bad(block, "bad when it was mounted");
                continue;
            }
            match probe {
                Probe::Erased if erased => self.put_unproven(block),
                _ => self.put_dirty(block),
            }
        }
    }

    fn finish_mount(&mut self, report: MountReport) {
        for unit in 0..self.geometry.units {
            if self.dies[unit as usize].gone {
                self.lane[self.lanes.lane_of(unit) as usize].gone = true;
            }
        }
        let report = MountReport {
            logical_blocks: self.lanes.logical_blocks(),
            label: self.label.clone(),
            uuid: self.uuid,
            generation: self.generation,
            ..report
        };
        self.outputs.push_back(Output::Ready(Ok(Box::new(report))));
        for lane in 0..self.lanes.lanes {
            if !self.lane[lane as usize].settled {
                self.want_record(lane);
            }
        }
    }
}

/// Whether `header` is of a write that was over when the newest record of its lane was made, as that tells
/// of another one or of none.
fn is_outdated(record: &Option<(LaneRecord, BlockId)>, header: &RawHeader) -> bool {
    let Some((record, _)) = record else { return false };
    let mark = record.marks.get(header.raw_block as usize);
    header.sequence < record.sequence_next
        && mark.is_some_and(|&mark| mark != mark_of(header.sequence, record.mark_bytes))
}

fn note_probe(mount: &mut Mount, block: BlockId, read: &SlotRead<'_>) {
    mount.durable[block.0 as usize] = read.durable;
    mount.probes[block.0 as usize] = match read.status {
        SlotStatus::Erased if read.durable => Probe::Unreadable,
        SlotStatus::Erased => Probe::Erased,
        SlotStatus::Uncorrectable => Probe::Unreadable,
        SlotStatus::Ok | SlotStatus::Corrected(_) => {
            // Lane records and root records carry their own checksum: the uuid that the bytes beside
            // them need is only known from here.
            let bytes = read.bytes.unwrap_or(&[]);
            match (LaneRecord::decode(bytes), Root::decode(bytes)) {
                (Some(Ok(record)), _) => mount.records_found.push((block, record)),
                (Some(Err(MountError::Version { found })), _) => mount.version_found = Some(found),
                (_, Some(_)) => mount.ftl_found = true,
                _ => {}
            }
            if is_lane_record(bytes) || Root::decode(bytes).is_some() {
                mount.roots.push(block);
            }
            Probe::Read(read.oob, read.crc)
        }
    };
}
