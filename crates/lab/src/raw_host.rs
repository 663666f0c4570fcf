//! A host of raw units that knows what it may read: it writes what is erased, in order, erases what
//! it wants to write again, and holds every answer against the [`Model`]. What is not written reads
//! as [`ZERO`].
//!
//! Invariant: `blocks` says of each raw block what the host may do next; only failures of the medium
//! make the device say otherwise.

use crate::driver::{Failure, Finished, Sim};
use crate::model::{Model, ZERO};
use crate::raw_crash::{CrashHost, RawCrashOptions};
use flash::{Hint, Lba, Operation, Pairing, Random, RequestError};
use ftl::raw::{Lanes, RawUnits, WriteUnit};

/// What the host knows of a raw block.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Pages submitted since the erase.
    pages: u32,
    /// Writes in flight.
    writes: u32,
    /// One of them may be refused.
    fua: bool,
    erasing: bool,
    /// A write of it failed, or it was torn: it must be erased.
    spoiled: bool,
}

/// What went through the host so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RawCounts {
    /// Successful writes.
    pub writes: u64,
    /// Successful erases.
    pub erases: u64,
    /// Successful reads.
    pub reads: u64,
    /// Reads refused because nothing is written there.
    pub not_written: u64,
    /// Flushes and FUA writes refused because pages are at risk.
    pub at_risk: u64,
    /// Writes that failed with the medium.
    pub failed: u64,
    /// Reads of what the medium lost.
    pub unreadable: u64,
}

/// See the head of this file.
pub struct RawHost {
    /// The device.
    pub sim: Sim<RawUnits>,
    /// What it may return.
    pub model: Model,
    /// What went through so far.
    pub counts: RawCounts,
    /// The medium fails: so may writes.
    pub failures_are_legal: bool,
    known: Vec<Known>,
    write: WriteUnit,
    lanes: Lanes,
    slots_per_page: u32,
    /// The medium is durable at completion: so is an erase when it is answered.
    erases_are_durable: bool,
    stamps: Vec<u64>,
}

impl RawHost {
    /// A host at a device that is ready and reads as `model` says.
    pub fn new(sim: Sim<RawUnits>, model: Model, write: WriteUnit) -> Self {
        let (geometry, lanes) = (*sim.medium().geometry(), sim.ftl().lanes());
        let mut known = vec![Known::default(); (lanes.lanes * lanes.raw_blocks) as usize];
        for (lba, block) in sim.ftl().written() {
            known[(lba.0 / lanes.slots) as usize] = Known {
                pages: block.blocks_written / geometry.slots_per_page,
                spoiled: block.state == "torn",
                ..Known::default()
            };
        }
        Self {
            sim,
            model,
            counts: RawCounts::default(),
            failures_are_legal: false,
            known,
            write,
            lanes,
            slots_per_page: geometry.slots_per_page,
            erases_are_durable: geometry.durable_at_completion,
            stamps: Vec::new(),
        }
    }

    fn write(&mut self, raw: u32, random: &mut Random) {
        let known = &mut self.known[raw as usize];
        let whole = self.write == WriteUnit::Block;
        if whole && known.pages > 0 {
            // Left from pages that were written before a change of the settings.
            return self.flush();
        }
        let left = self.lanes.pages - known.pages;
        let pages = if whole { left } else { left.min(1 + random.below(3) as u32) };
        // A refused write would leave what follows it out of order.
        let fua = known.writes == 0 && random.chance(0.2);
        let lba = raw * self.lanes.slots + known.pages * self.slots_per_page;
        let first = known.pages == 0;
        known.pages += pages;
        known.writes += 1;
        known.fua = fua;
        self.stamps.clear();
        self.stamps.resize((pages * self.slots_per_page) as usize, 0);
        let id = self.model.submit_write(lba, fua, whole, &mut self.stamps);
        if first {
            // The tag repeats the first stamp, so that a recovery can be held against the data.
            self.sim.ftl_mut().tag(Lba(lba), u128::from(self.stamps[0]) << 64 | 5);
        }
        self.sim.write(u64::from(id), lba, &self.stamps, (fua, false), Hint::default());
    }

    fn erase(&mut self, raw: u32, fua: bool) {
        self.known[raw as usize] = Known { erasing: true, ..Known::default() };
        let (lba, slots) = (raw * self.lanes.slots, self.lanes.slots);
        let id = self.model.submit_trim(lba, slots, fua || self.erases_are_durable);
        self.sim.trim(u64::from(id), lba, slots, fua);
    }

    fn flush(&mut self) {
        let id = self.model.submit_flush();
        self.sim.flush(u64::from(id));
    }

    fn read_page(&mut self, raw: u32, page: u32) {
        self.read(raw * self.lanes.slots + page * self.slots_per_page, self.slots_per_page);
    }

    fn read(&mut self, lba: u32, blocks: u32) {
        let id = self.model.submit_read(lba, blocks);
        self.sim.read(u64::from(id), lba, blocks);
    }

    fn judge(&mut self, finished: &Finished) -> Result<bool, Failure> {
        let (id, request) = (finished.token as u32, &finished.request);
        let raw = (request.lba.0 / self.lanes.slots) as usize;
        match request.operation {
            Operation::Read { .. } => {
                self.judge_read(finished, id)?;
                return Ok(false);
            }
            Operation::Write { .. } => {
                self.known[raw].writes -= 1;
                self.known[raw].fua = false;
            }
            Operation::Trim { .. } => self.known[raw].erasing = false,
            Operation::Flush => {}
        }
        let Err(error) = finished.result else {
            match request.operation {
                Operation::Write { .. } => self.counts.writes += 1,
                Operation::Trim { .. } => self.counts.erases += 1,
                _ => {}
            }
            self.model.acknowledge(id);
            return Ok(true);
        };
        self.model.fail(id);
        match (request.operation, error) {
            (Operation::Flush, RequestError::AtRisk) => self.counts.at_risk += 1,
            (Operation::Write { fua: true, .. }, RequestError::AtRisk) => {
                // Refused: nothing of it was taken.
                self.known[raw].pages -= request.blocks / self.slots_per_page;
                self.counts.at_risk += 1;
            }
            (Operation::Write { .. }, _) if self.failures_are_legal => {
                self.known[raw].spoiled = true;
                self.counts.failed += 1;
            }
            _ => return Err(Failure(format!("failed: {error:?}"))),
        }
        Ok(false)
    }

    fn judge_read(&mut self, finished: &Finished, id: u32) -> Result<(), Failure> {
        let blocks = finished.request.blocks;
        let stamps = match finished.result {
            Ok(()) => {
                self.counts.reads += 1;
                self.sim.stamps(finished).to_vec()
            }
            // Of a page nothing is written, or all.
            Err(RequestError::NotWritten) if blocks == self.slots_per_page => {
                self.counts.not_written += 1;
                vec![ZERO; blocks as usize]
            }
            Err(RequestError::NotWritten) => {
                self.counts.not_written += 1;
                self.model.fail(id);
                return Ok(());
            }
            // A power cut took what was not durable, in a raw block that says so.
            Err(RequestError::Unreadable) if self.is_torn(finished.request.lba) => {
                self.counts.unreadable += 1;
                if blocks != self.slots_per_page {
                    self.model.fail(id);
                    return Ok(());
                }
                vec![ZERO; blocks as usize]
            }
            Err(RequestError::Unreadable) if self.model.tolerates_unreadable() => {
                self.counts.unreadable += 1;
                self.model.fail(id);
                return Ok(());
            }
            Err(error) => return Err(Failure(format!("{error:?}"))),
        };
        self.model.finish_read(id, &stamps).map_err(Failure)
    }

    /// Whether it is, or was before an erase that came after the read.
    fn is_torn(&self, lba: Lba) -> bool {
        let erasing = self.known[(lba.0 / self.lanes.slots) as usize].erasing;
        erasing || self.sim.ftl().raw_block(lba).is_some_and(|block| block.state == "torn")
    }

    /// Waits for every answer and checks each.
    fn drain(&mut self) -> Result<(), Failure> {
        self.sim.run_until_answered()?;
        self.collect().map(|_| ())
    }
}

impl CrashHost for RawHost {
    type Model = Model;
    type Seen = Vec<Option<u64>>;

    fn attach(sim: Sim<RawUnits>, model: Model, options: &RawCrashOptions) -> Self {
        let mut host = Self::new(sim, model, options.settings.write);
        let faults = &options.faults;
        host.failures_are_legal = faults.program_fail + faults.erase_fail > 0.0;
        host
    }

    fn reattach(&mut self, sim: Sim<RawUnits>, options: &RawCrashOptions) {
        let (model, counts) = (self.model.clone(), self.counts);
        *self = Self::attach(sim, model, options);
        self.counts = counts;
    }

    fn sim(&mut self) -> &mut Sim<RawUnits> {
        &mut self.sim
    }

    fn model(&mut self) -> &mut Model {
        &mut self.model
    }

    fn submit_any(&mut self, random: &mut Random) {
        let raw = random.below(self.known.len() as u64) as u32;
        let known = self.known[raw as usize];
        let writable =
            !known.erasing && !known.fua && !known.spoiled && known.pages < self.lanes.pages;
        match random.below(10) {
            0 => self.flush(),
            1..=2 => self.read_page(raw, random.below(u64::from(self.lanes.pages)) as u32),
            3 => self.read(raw * self.lanes.slots, self.lanes.slots),
            4..=5 if !known.erasing && known.writes == 0 => self.erase(raw, random.chance(0.2)),
            _ if writable => self.write(raw, random),
            _ if !known.erasing && known.writes == 0 => self.erase(raw, random.chance(0.2)),
            _ => self.read_page(raw, 0),
        }
    }

    fn in_flight(&self) -> u32 {
        self.sim.in_flight()
    }

    fn collect(&mut self) -> Result<bool, Failure> {
        let mut changed = false;
        while let Some(finished) = self.sim.take_finished() {
            changed |= self.judge(&finished).map_err(|Failure(why)| {
                Failure(format!("at {} ns, {:?}: {why}", finished.finished.0, finished.request))
            })?;
            self.sim.release(finished);
        }
        Ok(changed)
    }

    fn read_back(&mut self) -> Result<(), Failure> {
        for raw in 0..self.known.len() as u32 {
            for page in 0..self.lanes.pages {
                self.read_page(raw, page);
                self.drain()?;
            }
        }
        Ok(())
    }

    fn shut_down(&mut self, options: &RawCrashOptions) {
        let pairing = self.sim.medium().geometry().pairing;
        if pairing == Pairing::None || options.settings.write == WriteUnit::Block {
            self.model.shut_down();
        }
    }

    fn observe(sim: &mut Sim<RawUnits>) -> Result<(Self::Seen, u64), Failure> {
        let observed = observe(sim)?;
        let blocks = observed.len() as u64;
        Ok((observed, blocks))
    }

    fn check(model: &Model, seen: &Self::Seen) -> Result<(), String> {
        model.check_recovered(seen)
    }

    fn settle(model: &mut Model, seen: &Self::Seen) {
        model.settle(seen);
    }
}

/// Reads every page of a device that is ready. What is not written, or was lost with a write that
/// nobody acknowledged, is [`ZERO`]. Checks the tag of what is there.
fn observe(sim: &mut Sim<RawUnits>) -> Result<Vec<Option<u64>>, Failure> {
    let (lanes, slots) = (sim.ftl().lanes(), sim.medium().geometry().slots_per_page);
    let mut observed = Vec::new();
    for lba in (0..lanes.logical_blocks()).step_by(slots as usize) {
        sim.read(0, lba, slots);
        sim.run_until_answered()?;
        let finished = sim.take_finished().expect("it was answered");
        match finished.result {
            Ok(()) => observed.extend(sim.stamps(&finished).iter().map(|&stamp| Some(stamp))),
            Err(RequestError::NotWritten | RequestError::Unreadable) => {
                observed.extend((0..slots).map(|_| Some(ZERO)));
            }
            Err(error) => return Err(Failure(format!("a read of page {lba}: {error:?}"))),
        }
        sim.release(finished);
    }
    for (lba, block) in sim.ftl().written() {
        let first = observed[lba.0 as usize].unwrap_or(ZERO);
        let tag = Some(u128::from(first) << 64 | 5);
        if block.blocks_written > 0 && first != ZERO && block.tag != tag {
            return Err(Failure(format!(
                "the tag of {lba:?} is {block:?}, its first stamp {first}"
            )));
        }
    }
    Ok(observed)
}
