//! What must hold of every run, whatever the workload: the invariants that the lab watches beside
//! those of the [`crate::model`].
//!
//! Watched here: the write amplification is never below 1; what the FTL counts as programmed and
//! erased is what the medium did; no band holds more valid slots than were written, no free band
//! any; bands and units add up; a band holds as many valid slots as the map points to; and the hash of all outputs, by which two runs are told apart.

use crate::driver::{Failure, Sim};
use crate::medium::DoneCounts;
use flash::{Command, Instant, Lba, RequestError};
use ftl::{BandStatus, Core, Output, Status};

/// Hash of every output of a run, in order, with its time.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceHash(u64);

impl TraceHash {
    /// The hash so far.
    pub fn value(self) -> u64 {
        self.0
    }

    fn mix(&mut self, word: u64) {
        // One round of a multiply-rotate hash: cheap, and every bit reaches every other one soon.
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed.rotate_left(29) ^ mixed;
    }

    /// Adds an output that was carried out at `now`.
    pub fn add(&mut self, now: Instant, output: &Output) {
        self.mix(now.0);
        match output {
            Output::Command(command) => self.add_command(command),
            Output::ReadZeroes { into, count } => {
                self.mix(5 << 60 | u64::from(into.buffer) << 28 | u64::from(*count));
                self.mix(u64::from(into.index));
            }
            Output::Reply(reply) => {
                self.mix(6 << 60 | reply.id);
                self.mix(result_code(reply.result));
            }
            Output::Ready(result) => {
                self.mix(7 << 60 | u64::from(result.is_ok()));
                if let Ok(report) = result {
                    self.mix(report.slots_replayed);
                    self.mix(report.blocks_mapped);
                }
            }
            Output::Stopped(durable) => self.mix(8 << 60 | u64::from(*durable)),
            Output::FastDetached(gone) => self.mix(9 << 60 | u64::from(*gone)),
            Output::Labelled(durable) => self.mix(10 << 60 | u64::from(*durable)),
            Output::Snapshot { number, step, result } => {
                self.mix(11 << 60 | (*step as u64) << 33 | u64::from(result.is_ok()) << 32);
                self.mix(u64::from(*number));
            }
        }
    }

    fn add_command(&mut self, command: &Command) {
        let tag = u64::from(command.tag().0);
        match *command {
            Command::Read { slot, count, into, urgent, .. } => {
                self.mix(1 << 60 | u64::from(count) << 33 | u64::from(urgent) << 32 | tag);
                let into = into
                    .map_or(u64::MAX, |into| u64::from(into.buffer) << 32 | u64::from(into.index));
                self.mix(u64::from(slot.0));
                self.mix(into);
            }
            Command::Program { slot, .. } => {
                self.mix(2 << 60 | tag);
                self.mix(u64::from(slot.0));
            }
            Command::Erase { block, .. } => {
                self.mix(3 << 60 | tag);
                self.mix(u64::from(block.0));
            }
            Command::Finish { block, .. } => {
                self.mix(5 << 60 | tag);
                self.mix(u64::from(block.0));
            }
            Command::Flush { .. } => self.mix(4 << 60 | tag),
        }
    }
}

fn result_code(result: Result<(), RequestError>) -> u64 {
    match result {
        Ok(()) => 0,
        Err(RequestError::OutOfRange) => 1,
        Err(RequestError::NoSpace) => 2,
        Err(RequestError::Unreadable) => 3,
        Err(RequestError::Failed) => 4,
        Err(RequestError::ShuttingDown) => 5,
        Err(RequestError::Misaligned) => 6,
        Err(RequestError::NotErased) => 7,
        Err(RequestError::OutOfOrder) => 8,
        Err(RequestError::NotWritten) => 9,
        Err(RequestError::Busy) => 10,
        Err(RequestError::AtRisk) => 11,
        Err(RequestError::ProgramFailed) => 12,
        Err(RequestError::Zone(error)) => 13 + error as u64,
    }
}

/// The FTL's counter of this name, if it has one.
pub fn counter(status: &Status, name: &str) -> Option<u64> {
    status.counters.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
}

/// Checks what the FTL says of itself.
pub fn verify_status(status: &Status, bands: &[BandStatus]) -> Result<(), Failure> {
    for band in bands {
        // What recovery did not need to scan counts as unknown, which is 0.
        if band.slots_written > 0 && band.slots_valid > band.slots_written {
            return Err(Failure(format!("more valid slots than were written: {band:?}")));
        }
        if matches!(band.state, "clean" | "dirty" | "erasing" | "draining") && band.slots_valid > 0
        {
            return Err(Failure(format!("a free band holds valid data: {band:?}")));
        }
    }
    let valid: u64 = bands.iter().map(|band| u64::from(band.slots_valid)).sum();
    let by_unit: u64 = status.units.iter().map(|unit| unit.slots_valid).sum();
    if valid != by_unit {
        return Err(Failure(format!("{valid} valid slots by band, {by_unit} by unit")));
    }
    Ok(())
}

/// Holds the valid slots that the FTL counts against what its map says, block by block: where only a part
/// of the map is in DRAM, the FTL cannot do that by itself. No request is in flight.
pub fn verify_valid(sim: &mut Sim, logical_blocks: u32) -> Result<(), Failure> {
    let geometry = *sim.medium().geometry();
    loop {
        sim.run_until_idle(Instant(u64::MAX))?;
        let before = sim.ftl().bands();
        let mut valid = vec![0; before.len()];
        for lba in 0..logical_blocks {
            // So that its entry is there.
            sim.read(0, lba, 1);
            sim.run_until_answered()?;
            sim.take_finished().into_iter().for_each(|finished| sim.release(finished));
            if let Some(slot) = sim.ftl().slot_of(Lba(lba)) {
                valid[geometry.block_of(slot).0 as usize] += 1;
            }
        }
        let bands = sim.ftl().bands();
        if bands.iter().map(|band| band.slots_valid).ne(before.iter().map(|band| band.slots_valid))
        {
            // GC, which works ahead and rests at some time, has moved what was looked at.
            continue;
        }
        let wrong = bands.iter().zip(valid).find(|(band, valid)| band.slots_valid != *valid);
        return wrong.map_or(Ok(()), |(band, valid)| {
            Err(Failure(format!("the map points to {valid} slots of a band: {band:?}")))
        });
    }
}

/// Holds the FTL's counters against what the medium did since `before`.
pub fn verify_counts(status: &Status, before: DoneCounts, now: DoneCounts) -> Result<(), Failure> {
    let named = |name: &str| counter(status, name).unwrap_or(0);
    let (programmed, erases) = (named("slots_programmed"), named("erases"));
    let medium_programmed = now.slots_programmed - before.slots_programmed;
    let medium_erases = now.erases - before.erases;
    if erases != medium_erases {
        return Err(Failure(format!("{erases} erases counted, {medium_erases} done")));
    }
    // Pages of a band end in order, so the count may trail while programs run.
    let quiet = status.units.iter().all(|unit| unit.appends_queued == 0);
    if programmed > medium_programmed || quiet && programmed != medium_programmed {
        return Err(Failure(format!(
            "{programmed} slots programmed by the count, {medium_programmed} by the medium"
        )));
    }
    let written = named("host_blocks_written");
    if quiet && named("requests_running") == 0 && medium_programmed < written {
        return Err(Failure(format!(
            "write amplification below 1: {medium_programmed} slots for {written} blocks"
        )));
    }
    Ok(())
}
