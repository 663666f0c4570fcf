//! Format and recovery.
//!
//! 1. *Probe*: the first slot of every block is read. It tells whether the block was written since
//!    its erase, by which write of which raw block, or that it holds lane records.
//! 2. *Records*: every page of the blocks with records is read. The newest sound one of a lane counts.
//! 3. *Ends*: for each raw block the newest sequence counts. The last page of each of its blocks is
//!    read; if that is not sound, the end of what was written is searched: by halves where a program
//!    is durable when it ends, else page by page from the start.
//!
//! Bounded: two reads a block, some more for each raw block written in part. Nothing is programmed or
//! erased before the end, so recovery can be cut off anywhere and done again.

use super::blocks::Use;
use super::format::{LaneRecord, decode_record_oob, header_of, is_lane_record};
use super::{Lanes, NONE, Phase, RawBlock, RawFormat, RawSettings, RawState, RawUnits, ReadOp};
use crate::Mutant;
use crate::api::{MountError, MountReport, Output};
use crate::format::{Root, uuid_crc};
use flash::{BlockId, Geometry, Health, MediumError, Oob, SlotId, SlotRead, SlotStatus};
use std::collections::{BTreeMap, VecDeque};

/// Reads of recovery on a unit at a time.
const READS_PER_UNIT: usize = 4;

/// What the first slot of a block said.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// Never asked, or no answer.
    Skipped,
    Erased,
    Unreadable,
    /// Readable: the bytes beside the data, and the data's checksum.
    Read(Oob, u32),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stage {
    Probe,
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

/// The search for the end of what was written in a block: pages up to `low` are sound, those from
/// `high` on are not. `low` is asked next, or the middle.
#[derive(Clone, Copy, Debug)]
struct End {
    raw: u32,
    member: u32,
    low: u32,
    high: u32,
}

#[derive(Debug)]
pub(crate) struct Mount {
    stage: Stage,
    format: Option<RawFormat>,
    /// Reads to do, by unit: first slot and slots.
    jobs: Vec<VecDeque<(SlotId, u32)>>,
    running: u32,
    probes: Vec<Probe>,
    /// Blocks whose first slot holds a lane record.
    records_found: Vec<(BlockId, LaneRecord)>,
    /// Blocks that hold what makes the medium a device of whatever kind.
    roots: Vec<BlockId>,
    ftl_found: bool,
    version_found: Option<u16>,
    /// The newest record of each lane, and the block it lies in.
    records: Vec<Option<(LaneRecord, BlockId)>>,
    ends: BTreeMap<BlockId, End>,
    /// By raw block and member: pages found sound.
    pages: Vec<u32>,
    report: MountReport,
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
            records_found: Vec::new(),
            roots: Vec::new(),
            ftl_found: false,
            version_found: None,
            records: Vec::new(),
            ends: BTreeMap::new(),
            pages: Vec::new(),
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
            Stage::Probe | Stage::Records | Stage::Ends => true,
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
            Stage::Probe => self.begin_records(mount)?,
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

    fn begin_records(&mut self, mount: &mut Mount) -> Result<(), MountError> {
        if let Some(found) = mount.version_found {
            return Err(MountError::Version { found });
        }
        let newest = mount.records_found.iter().map(|(_, record)| record);
        let Some(newest) = newest.max_by_key(|record| (record.generation, record.number)) else {
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
        mount.stage = Stage::Records;
        for (block, record) in std::mem::take(&mut mount.records_found) {
            let unit = self.geometry.unit_of(block);
            if record.uuid != self.uuid || record.lane != lanes.lane_of(unit) {
                continue;
            }
            for page in 0..self.geometry.pages_per_block {
                mount.jobs[unit as usize].push_back((self.geometry.slot(block, page, 0), 1));
            }
        }
        Ok(())
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
        for lane in 0..self.lanes.lanes as usize {
            match &mount.records[lane] {
                Some((record, block)) => {
                    // All others hold older ones.
                    self.blocks[block.0 as usize].used = Use::Record;
                    self.lane[lane].keep_old(*block);
                    self.lane[lane].number = record.number;
                    if !self.is_mutant(Mutant::RawForgetDead) {
                        self.lane[lane].dead = record.dead.iter().copied().collect();
                    }
                }
                // What it lists as dead is unknown: nothing of the lane can be trusted.
                None => self.lane[lane].gone = true,
            }
        }
        let stale = self.choose_blocks(mount);
        for (block, sequence) in stale {
            let lane = self.lanes.lane_of(self.unit_of(block));
            self.lane[lane as usize].dead.insert((block, sequence));
        }
        mount.stage = Stage::Ends;
        mount.pages = vec![0; self.map.len()];
        let last = self.geometry.pages_per_block - 1;
        // On a medium with a volatile cache a page may be half there.
        let low = u32::from(self.geometry.durable_at_completion);
        for (at, &block) in self.map.iter().enumerate() {
            if block == NONE {
                continue;
            }
            let (raw, member) = (at as u32 / self.lanes.gang, at as u32 % self.lanes.gang);
            let (block, high) = (BlockId(block), self.geometry.pages_per_block);
            mount.ends.insert(block, End { raw, member, low, high });
            let unit = self.geometry.unit_of(block) as usize;
            let slots = self.geometry.slots_per_page;
            mount.jobs[unit].push_back((self.geometry.slot(block, last, 0), slots));
        }
        Ok(())
    }

    /// Maps to each raw block the blocks of its newest write. Returns what is out of date, with its
    /// sequence.
    fn choose_blocks(&mut self, mount: &Mount) -> Vec<(BlockId, u64)> {
        let mut stale = Vec::new();
        let mut claims = Vec::new();
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let Probe::Read(oob, crc) = mount.probes[block.0 as usize] else { continue };
            let slot = self.geometry.slot(block, 0, 0);
            let header = super::format::decode_raw_header(&oob, slot, self.uuid_crc, crc);
            let Some(header) = header.filter(|it| it.raw_block < self.lanes.raw_blocks) else {
                continue;
            };
            self.sequence_next = self.sequence_next.max(header.sequence + 1);
            let lane = self.lanes.lane_of(self.geometry.unit_of(block));
            let entry = &self.lane[lane as usize];
            if entry.gone || entry.dead.contains(&(block, header.sequence)) {
                continue;
            }
            let raw = self.raw_at(lane, header.raw_block);
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
            (Stage::Records, Ok(slots)) => self.take_record(&mut mount, op.slot, &slots[0]),
            (Stage::Ends, slots) => self.narrow(&mut mount, op.slot, slots.unwrap_or(&[])),
            (_, Err(_)) => {}
            (_, Ok(_)) => unreachable!("a format reads nothing after its probes"),
        }
        self.mount = Some(mount);
    }

    fn take_record(&mut self, mount: &mut Mount, slot: SlotId, read: &SlotRead<'_>) {
        let readable = matches!(read.status, SlotStatus::Ok | SlotStatus::Corrected(_));
        let Some(bytes) = read.bytes.filter(|_| readable) else { return };
        let number = decode_record_oob(&read.oob, slot, self.uuid_crc, flash::crc(bytes));
        let Some(Ok(record)) = LaneRecord::decode(bytes) else { return };
        let lane = self.lanes.lane_of(self.unit_of(self.geometry.block_of(slot)));
        if number != Some(record.number) || record.uuid != self.uuid || record.lane != lane {
            return;
        }
        let newest = &mut mount.records[lane as usize];
        if newest.as_ref().is_none_or(|(newest, _)| newest.number < record.number) {
            *newest = Some((record, self.geometry.block_of(slot)));
        }
    }

    /// Takes a page of a block whose end is searched, and asks for the next.
    fn narrow(&mut self, mount: &mut Mount, slot: SlotId, slots: &[SlotRead<'_>]) {
        let (block, page) = (self.geometry.block_of(slot), self.geometry.page_in_block(slot));
        let mut end = mount.ends.remove(&block).expect("its end is searched");
        let index = end.raw % self.lanes.raw_blocks;
        let sequence = self.raw[end.raw as usize].sequence;
        let sound = !slots.is_empty()
            && (0..).zip(slots).all(|(i, read)| {
                let header = header_of(read, SlotId(slot.0 + i), self.uuid_crc);
                header.is_some_and(|it| it.raw_block == index && it.sequence == sequence)
            });
        if sound || self.is_mutant(Mutant::RawTrustFirstPage) {
            end.low = page + 1;
        } else {
            end.high = page;
        }
        // A write that counts only when whole is not searched: it is not whole.
        let whole = self.raw[end.raw as usize].pages_taken == 1;
        let none = whole && end.low <= page;
        if end.low >= end.high || none {
            let at = end.raw * self.lanes.gang + end.member;
            mount.pages[at as usize] = if none { 0 } else { end.low.min(end.high) };
            return;
        }
        mount.report.bands_scanned += u32::from(page + 1 == self.geometry.pages_per_block);
        let next =
            if self.geometry.durable_at_completion { end.low.midpoint(end.high) } else { end.low };
        mount.ends.insert(block, end);
        let unit = self.geometry.unit_of(block) as usize;
        let job = (self.geometry.slot(block, next, 0), self.geometry.slots_per_page);
        mount.jobs[unit].push_front(job);
    }

    /// What was found becomes the state.
    fn take_state(&mut self, mount: &mut Mount) {
        for raw in 0..self.raw.len() as u32 {
            let whole = self.raw[raw as usize].pages_taken == 1;
            let gang = self.lanes.gang;
            let found = &mount.pages[(raw * gang) as usize..((raw + 1) * gang) as usize];
            let ends = (0..).zip(found).map(|(member, &pages)| pages * gang + member);
            let pages = ends.min().unwrap_or(0).min(self.lanes.pages);
            let counts = pages > 0 && (!whole || pages == self.lanes.pages);
            if !counts {
                self.drop_claims(raw);
                continue;
            }
            let (lane, index) = (self.lane_of_raw(raw), raw % self.lanes.raw_blocks);
            let record = mount.records[lane as usize].as_ref();
            let kept = record.is_some_and(|(it, _)| it.clean && it.open.contains(&(index, pages)));
            let state = match pages {
                pages if pages == self.lanes.pages => RawState::Full,
                _ if kept => RawState::Open,
                _ => RawState::Torn,
            };
            if state == RawState::Open {
                self.open.insert(raw);
            }
            mount.report.pages_torn += u64::from(state == RawState::Torn);
            mount.report.blocks_mapped += u64::from(pages * self.geometry.slots_per_page);
            let entry = &mut self.raw[raw as usize];
            (entry.state, entry.pages, entry.pages_taken) = (state, pages, pages);
            for member in 0..gang {
                if let Some(block) = self.block_at(raw, member) {
                    self.set_use(block, Use::Raw);
                }
            }
        }
        self.pool_blocks(mount);
        mount.report.clean = mount.records.iter().flatten().all(|(record, _)| record.clean);
        self.phase = if self.settings.read_only { Phase::ReadOnly } else { Phase::Running };
    }

    /// Nothing of what claims to be `raw` may be read.
    fn drop_claims(&mut self, raw: u32) {
        let gang = self.lanes.gang;
        self.map[(raw * gang) as usize..((raw + 1) * gang) as usize].fill(NONE);
        let sequence = self.raw[raw as usize].sequence;
        self.raw[raw as usize] = RawBlock { sequence, ..RawBlock::default() };
        self.tags.remove(&raw);
    }

    /// Every block that holds nothing goes to a pool.
    fn pool_blocks(&mut self, mount: &Mount) {
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let unit = self.unit_of(block);
            let probe = mount.probes[block.0 as usize];
            if matches!(probe, Probe::Erased) {
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
                Probe::Erased => self.put_unproven(block),
                Probe::Skipped | Probe::Unreadable | Probe::Read(..) => self.put_dirty(block),
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

fn note_probe(mount: &mut Mount, block: BlockId, read: &SlotRead<'_>) {
    mount.probes[block.0 as usize] = match read.status {
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
