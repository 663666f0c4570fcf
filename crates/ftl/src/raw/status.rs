//! What raw units tell about themselves: counters since the mount, gauges of now.

use super::blocks::Work;
use super::{Lanes, Phase, RawState, RawUnits};
use flash::Lba;

/// Counters since the mount. All slots are 4 KiB.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub host_blocks_read: u64,
    pub host_blocks_written: u64,
    pub host_blocks_trimmed: u64,
    pub host_flushes: u64,
    pub host_errors: u64,
    pub slots_programmed: u64,
    pub slots_corrected: u64,
    pub reads_unreadable: u64,
    pub programs_failed: u64,
    pub erases: u64,
    pub erases_failed: u64,
    pub records: u64,
    pub units_gone: u64,
    pub medium_flushes: u64,
    pub medium_failures: u64,
}

/// One lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaneStatus {
    /// Host reads of pages waiting or running.
    pub reads_queued: u32,
    /// Host writes waiting or running, counted on each unit.
    pub writes_queued: u32,
    /// Host erases waiting or running, counted on each unit.
    pub erases_queued: u32,
    /// Requests under way.
    pub requests: u32,
    /// Time with a command running since the mount, summed over its units.
    pub busy_ns: u64,
    /// Raw blocks that may be written from their start.
    pub raw_blocks_erased: u32,
    /// Raw blocks written in part, or being written.
    pub raw_blocks_open: u32,
    /// Raw blocks written whole.
    pub raw_blocks_full: u32,
    /// Raw blocks that must be erased before they are written, as their last write was not whole.
    pub raw_blocks_torn: u32,
    /// Raw blocks being erased.
    pub raw_blocks_erasing: u32,
    /// Pages that may be read.
    pub pages_written: u64,
    /// Lowest erase count of a usable block.
    pub erase_count_min: u32,
    /// Highest erase count of a usable block.
    pub erase_count_max: u32,
    /// Blocks out of use.
    pub blocks_bad: u32,
    /// Good blocks of its scarcest unit beyond what its raw blocks need.
    pub blocks_spare: u32,
    /// Blocks waiting for an erase in the background.
    pub blocks_dirty: u32,
    /// Nothing can be written any more.
    pub gone: bool,
    /// What its units did last beyond reads and writes, and why.
    pub last_reason: &'static str,
}

/// One raw block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RawBlockState {
    /// "erased", "open", "full", "torn" or "erasing".
    pub state: &'static str,
    /// Logical blocks that may be read, from its start.
    pub blocks_written: u32,
    /// Those before the first page that is not all sound, if a power cut or damage has left one: there and behind it lies
    /// what may have been flushed, or not.
    pub blocks_before_gap: u32,
    /// More was written behind them, and is not all sound: a power cut has torn it, or it is damaged.
    pub goes_on: bool,
    /// The owner's bytes.
    pub tag: Option<u128>,
    /// Names the write; a later one has a larger number.
    pub sequence: u64,
}

impl RawUnits {
    /// The shape of the address space.
    pub fn lanes(&self) -> Lanes {
        self.lanes
    }

    /// "running", "read-only", "stopping", "failed" and so on.
    pub fn phase(&self) -> &'static str {
        match self.phase {
            Phase::Formatting => "formatting",
            Phase::Mounting => "mounting",
            Phase::Running => "running",
            Phase::ReadOnly => "read-only",
            Phase::Stopping => "stopping",
            Phase::Stopped => "stopped",
            Phase::Failed => "failed",
        }
    }

    /// The raw block that holds `lba`; `None` beyond the address space.
    pub fn raw_block(&self, lba: Lba) -> Option<RawBlockState> {
        let raw = lba.0 / self.lanes.slots.max(1);
        let block = self.raw.get(raw as usize)?;
        Some(RawBlockState {
            state: state_name(block.state),
            blocks_written: block.pages * self.geometry.slots_per_page,
            blocks_before_gap: block.gap.map_or(block.pages, |gap| gap.min(block.pages))
                * self.geometry.slots_per_page,
            goes_on: block.goes_on,
            tag: self.tags.get(&raw).copied(),
            sequence: block.sequence,
        })
    }

    /// An erase runs or waits on the unit that serves a read of `lba`, or is about to be begun there as a
    /// write waits for a clean block.
    pub fn stirs(&self, lba: Lba) -> bool {
        if lba.0 >= self.lanes.logical_blocks() {
            return false;
        }
        let page = lba.0 % self.lanes.slots / self.geometry.slots_per_page;
        let unit = self.lanes.unit(lba.0 / self.lanes.lane_slots(), page % self.lanes.gang);
        let die = &self.dies[unit as usize];
        let waits = || die.work.iter().any(|work| matches!(work, Work::Erase(_)));
        die.erases_running > 0 || die.clean_wanted || waits()
    }

    /// The raw blocks that hold something, by their first logical block.
    pub fn written(&self) -> impl Iterator<Item = (Lba, RawBlockState)> {
        let slots = self.lanes.slots;
        let raw = (0..).zip(&self.raw).filter(|(_, block)| block.state != RawState::Erased);
        raw.filter_map(move |(raw, _)| {
            let lba = Lba(raw * slots);
            Some((lba, self.raw_block(lba)?))
        })
    }

    /// Nothing can be written on a lane any more.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn is_lane_gone(&self, lane: u32) -> bool {
        self.lane[lane as usize].gone
    }

    /// One lane. Walks its blocks.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn lane_status(&self, lane: u32) -> LaneStatus {
        let entry = &self.lane[lane as usize];
        let mut status = LaneStatus {
            requests: entry.requests,
            gone: entry.gone,
            erase_count_min: u32::MAX,
            blocks_spare: u32::MAX,
            ..LaneStatus::default()
        };
        for member in 0..self.lanes.gang {
            self.add_unit(self.lanes.unit(lane, member), &mut status);
        }
        status.erase_count_min = status.erase_count_min.min(status.erase_count_max);
        let first = (lane * self.lanes.raw_blocks) as usize;
        for block in &self.raw[first..first + self.lanes.raw_blocks as usize] {
            status.pages_written += u64::from(block.pages);
            *match block.state {
                RawState::Erased => &mut status.raw_blocks_erased,
                RawState::Open => &mut status.raw_blocks_open,
                RawState::Full => &mut status.raw_blocks_full,
                RawState::Torn => &mut status.raw_blocks_torn,
                RawState::Erasing => &mut status.raw_blocks_erasing,
            } += 1;
        }
        status
    }

    fn add_unit(&self, unit: u32, status: &mut LaneStatus) {
        let die = &self.dies[unit as usize];
        status.reads_queued += die.reads.len() as u32 + die.reads_running;
        let erases = die.work.iter().filter(|work| matches!(work, Work::Erase(_))).count() as u32;
        status.writes_queued += die.work.len() as u32 - erases;
        status.erases_queued += erases + die.erases_running;
        status.busy_ns += die.busy_ns;
        status.blocks_bad += die.bad;
        status.blocks_dirty += die.dirty.len() as u32;
        let good = self.geometry.blocks_per_unit - die.bad;
        let needed = self.lanes.raw_blocks + self.lanes.record_blocks();
        status.blocks_spare = status.blocks_spare.min(good.saturating_sub(needed));
        if !die.last_reason.is_empty() {
            status.last_reason = die.last_reason;
        }
        let first = (unit * self.geometry.blocks_per_unit) as usize;
        for block in &self.blocks[first..first + self.geometry.blocks_per_unit as usize] {
            if block.used != super::blocks::Use::Bad {
                status.erase_count_min = status.erase_count_min.min(block.erase_count);
                status.erase_count_max = status.erase_count_max.max(block.erase_count);
            }
        }
    }

    /// Counters by stable snake_case name, in a stable order.
    pub fn counter_list(&self) -> Vec<(&'static str, u64)> {
        let c = &self.counters;
        vec![
            ("logical_blocks", u64::from(self.lanes.logical_blocks())),
            ("generation", self.generation),
            ("requests_running", self.requests.in_use() as u64),
            ("host_blocks_read", c.host_blocks_read),
            ("host_blocks_written", c.host_blocks_written),
            ("host_blocks_trimmed", c.host_blocks_trimmed),
            ("host_flushes", c.host_flushes),
            ("host_errors", c.host_errors),
            ("slots_programmed", c.slots_programmed),
            ("slots_corrected", c.slots_corrected),
            ("reads_unreadable", c.reads_unreadable),
            ("programs_failed", c.programs_failed),
            ("erases", c.erases),
            ("erases_failed", c.erases_failed),
            ("records", c.records),
            ("units_gone", c.units_gone),
            ("medium_flushes", c.medium_flushes),
            ("medium_failures", c.medium_failures),
        ]
    }

    /// What it waits for, in words: for a test or an operator who finds it stuck.
    pub(crate) fn explain_state(&self) -> String {
        let units: Vec<String> = (0..self.geometry.units)
            .filter(|&unit| !self.dies[unit as usize].is_idle())
            .map(|unit| format!("unit {unit}: {:?}", self.dies[unit as usize]))
            .collect();
        let lanes: Vec<String> = (0..self.lanes.lanes)
            .filter(|&lane| self.lane[lane as usize].is_recording())
            .map(|lane| format!("lane {lane}: {:?}", self.lane[lane as usize]))
            .collect();
        format!(
            "phase {}, flush {:?}, {:?}, {} requests; {}; {}",
            self.phase(),
            self.flush,
            self.quiet,
            self.requests.in_use(),
            units.join(", "),
            lanes.join(", "),
        )
    }
}

fn state_name(state: RawState) -> &'static str {
    match state {
        RawState::Erased => "erased",
        RawState::Open => "open",
        RawState::Full => "full",
        RawState::Torn => "torn",
        RawState::Erasing => "erasing",
    }
}
