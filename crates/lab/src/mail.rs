//! A mail server: writers that each write a small file and flush, and delete files. What such a load
//! costs on flash whose pages share cells, and whether any write is refused while space is free.
//!
//! Invariants:
//! - no more files exist at a time than the load says, so a refused write is a broken promise;
//! - the same device, load and seed give the same figures, to the bit.

use crate::device::nand_of;
use crate::driver::{Failure, Finished, Sim, Step};
use crate::load::Latency;
use crate::medium::SimMedium;
use flash::{Hint, Instant, MILLISECOND, Operation, Random, RequestError};
use ftl::{FormatOptions, Settings};
use nand::{Faults, Layout};

/// The device.
#[derive(Clone, Debug)]
pub struct MailDevice {
    /// A built-in profile.
    pub profile: String,
    /// Pages of a block; 0 for as many as the profile has.
    pub pages_per_block: u32,
    /// Dies, a bus each.
    pub units: u32,
    /// Blocks of each die.
    pub blocks_per_unit: u32,
    /// Flash beyond the logical space, in percent of it; 0 for the least that a format takes.
    pub op_percent: u32,
    /// Blocks that are bad from the factory, as a share.
    pub factory_bad: f64,
}

impl MailDevice {
    /// The emulated flash.
    pub fn medium(&self, faults: Faults) -> Result<SimMedium, Failure> {
        let layout = Layout {
            channels: self.units,
            dies_per_channel: 1,
            blocks_per_plane: self.blocks_per_unit,
        };
        let faults = Faults { factory_bad: self.factory_bad, ..faults };
        let medium = nand_of(&self.profile, &layout, faults, |profile| {
            if self.pages_per_block > 0 {
                profile.pages_per_block = self.pages_per_block;
            }
        });
        medium.map_err(Failure)
    }

    /// Logical blocks that it offers: as the over-provisioning says, and no more than a format takes.
    pub fn logical_blocks(&self, medium: &SimMedium, settings: &Settings) -> u32 {
        let geometry = medium.geometry();
        let most = ftl::logical_blocks_max(geometry, &medium.health(), settings);
        if self.op_percent == 0 {
            return most;
        }
        let wanted = geometry.slots() * 100 / u64::from(100 + self.op_percent);
        most.min(wanted as u32)
    }
}

/// How the requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MailPace {
    /// So many writers, each waiting for its write, then for its flush.
    Writers(u32),
    /// So many requests in flight, in the order of a recorded list.
    Depth(u32),
    /// So many files a second at random instants; each flush follows the end of its write.
    Rate(f64),
}

/// The load.
#[derive(Clone, Debug)]
pub struct MailLoad {
    /// How the requests come.
    pub pace: MailPace,
    /// Writes for each flush; 0 for no flush at all.
    pub writes_per_flush: u32,
    /// Flushes are writes with FUA instead.
    pub fua: bool,
    /// Share of the logical space that the files may fill.
    pub utilization: f64,
    /// All files exist when the load begins.
    pub filled: bool,
    /// Share of the operations that delete a file.
    pub deletes: f64,
    /// Files written or deleted.
    pub operations: u64,
    /// Everything drawn.
    pub seed: u64,
}

impl Default for MailLoad {
    fn default() -> Self {
        Self {
            pace: MailPace::Writers(16),
            writes_per_flush: 1,
            fua: false,
            utilization: 0.9,
            filled: true,
            deletes: 0.3,
            operations: 50_000,
            seed: 1,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct MailReport {
    /// Files written.
    pub writes: u64,
    /// Of them, those that were refused for want of space.
    pub refused: u64,
    /// Deletes that were refused for want of space.
    pub trims_refused: u64,
    /// Whatever failed otherwise.
    pub failed: u64,
    /// Blocks programmed for each block written, checkpoints left out.
    pub waf: f64,
    /// Share of what was programmed that is padding.
    pub padded: f64,
    /// Share of what was programmed that GC moved.
    pub relocated: f64,
    /// Share of what was programmed that GC moved to where padding would have been.
    pub closing: f64,
    /// From the flush to its reply.
    pub flushes: Latency,
    /// From the write to its reply.
    pub writes_took: Latency,
    /// How long all took.
    pub took_ns: u64,
    /// The state at the first error, in words.
    pub refusal: String,
    /// Writes that were refused though all that the device offers could still be kept.
    pub refused_early: u64,
    /// Bands that were bad in the end.
    pub bands_bad: u64,
    /// What the status warned of in the end, and at the first refusal.
    pub warnings: [Vec<String>; 2],
}

impl std::fmt::Display for MailReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |ns: u64| ns as f64 / MILLISECOND as f64;
        write!(
            f,
            "{} writes, {} refused, {} failed; WAF {:.2}, {:.0} % padding, {:.0} % moved, {:.0} % \
             in its place; {:.0} writes/s; flush p50 {:.2} p99 {:.2} max {:.2} ms; write p50 {:.2} p99 {:.2} max {:.2} ms",
            self.writes,
            self.refused,
            self.failed,
            self.waf,
            100.0 * self.padded,
            100.0 * self.relocated,
            100.0 * self.closing,
            self.writes as f64 / (self.took_ns as f64 / 1e9),
            ms(self.flushes.quantile_ns(0.5)),
            ms(self.flushes.quantile_ns(0.99)),
            ms(self.flushes.max_ns()),
            ms(self.writes_took.quantile_ns(0.5)),
            ms(self.writes_took.quantile_ns(0.99)),
            ms(self.writes_took.max_ns()),
        )
    }
}

/// Blocks of the place of a file.
const FILE_BLOCKS: u32 = 4;

/// Requests in flight at which an open loop waits: the bound of memory.
const IN_FLIGHT_MAX: u32 = 1024;

/// Tokens: what a request is.
const WRITE: u64 = 0;
const TRIM: u64 = 1;
const FLUSH: u64 = 2;

struct Mail<'a> {
    load: &'a MailLoad,
    sim: Sim,
    random: Random,
    /// Blocks of each file; 0 where none exists.
    files: Vec<u32>,
    issued: u64,
    /// With [`MailPace::Depth`]: a flush comes next.
    flush_next: bool,
    next_at: Instant,
    report: MailReport,
}

/// Fills the device and runs `load` on it.
pub fn run(
    device: &MailDevice,
    load: &MailLoad,
    settings: &Settings,
) -> Result<MailReport, Failure> {
    run_with(device.medium(Faults::default())?, device, load, settings)
}

/// The same on a medium of the caller.
pub fn run_with(
    medium: SimMedium,
    device: &MailDevice,
    load: &MailLoad,
    settings: &Settings,
) -> Result<MailReport, Failure> {
    let logical_blocks = device.logical_blocks(&medium, settings);
    if logical_blocks < FILE_BLOCKS * 4 {
        return Err(Failure(format!("{device:?} offers {logical_blocks} blocks: too few")));
    }
    let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
    let mut sim = Sim::format(medium, options, settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    let files = (f64::from(logical_blocks / FILE_BLOCKS) * load.utilization) as usize;
    let mut mail = Mail {
        load,
        sim,
        random: Random::new(load.seed),
        files: vec![0; files.max(1)],
        issued: 0,
        flush_next: false,
        next_at: Instant(0),
        report: MailReport::default(),
    };
    if load.filled {
        mail.fill()?;
    }
    mail.run()
}

impl Mail<'_> {
    /// Writes every file once, without a flush, as fast as it goes.
    fn fill(&mut self) -> Result<(), Failure> {
        for file in 0..self.files.len() as u32 {
            self.files[file as usize] = FILE_BLOCKS;
            let stamps = [u64::from(file) + 1; FILE_BLOCKS as usize];
            self.sim.write(WRITE, file * FILE_BLOCKS, &stamps, (false, false), Hint::default());
            if self.sim.in_flight() >= 32 {
                self.sim.run_until_answered()?;
            }
            self.collect(false)?;
        }
        self.sim.run_until_answered()?;
        self.collect(false)
    }

    fn run(mut self) -> Result<MailReport, Failure> {
        let before = self.counted();
        let began = self.sim.now();
        self.next_at = began;
        if let MailPace::Writers(writers) = self.load.pace {
            (0..writers).for_each(|_| self.file());
        }
        loop {
            self.issue();
            let limit = match self.load.pace {
                MailPace::Rate(_) if self.more() && self.sim.in_flight() < IN_FLIGHT_MAX => {
                    self.next_at
                }
                _ => Instant(u64::MAX),
            };
            let step = self.sim.step(limit)?;
            self.collect(true)?;
            if step == Step::Idle && limit == Instant(u64::MAX) {
                if self.sim.in_flight() > 0 {
                    return Err(self.sim.stuck());
                }
                if !self.more() {
                    break;
                }
            }
        }
        self.sim.verify()?;
        let after = self.counted();
        let [written, programmed, padded, relocated, closing] =
            std::array::from_fn(|at| (after[at] - before[at]) as f64);
        self.report.waf = programmed / written.max(1.0);
        self.report.padded = padded / programmed.max(1.0);
        self.report.relocated = relocated / programmed.max(1.0);
        self.report.closing = closing / programmed.max(1.0);
        self.report.bands_bad = self.sim.ftl().counter("bands_bad");
        self.report.warnings[0] = self.sim.ftl().status().warnings;
        self.report.took_ns = self.sim.now() - began;
        // Whatever is left of the device, it can be stopped.
        self.sim.stop()?;
        Ok(self.report)
    }

    fn counted(&self) -> [u64; 5] {
        let names = [
            "host_blocks_written",
            "slots_programmed",
            "slots_padded",
            "slots_relocated",
            "slots_moved_closing",
        ];
        names.map(|name| self.sim.ftl().counter(name))
    }

    fn more(&self) -> bool {
        self.issued < self.load.operations
    }

    /// Submits what the pace allows now.
    fn issue(&mut self) {
        match self.load.pace {
            MailPace::Writers(_) => {}
            MailPace::Depth(depth) => {
                while (self.more() || self.flush_next) && self.sim.in_flight() < depth {
                    if std::mem::take(&mut self.flush_next) {
                        self.sim.flush(FLUSH);
                    } else {
                        self.file();
                        self.flush_next = self.wants_flush();
                    }
                }
            }
            MailPace::Rate(rate) => {
                while self.more()
                    && self.sim.in_flight() < IN_FLIGHT_MAX
                    && self.sim.now() >= self.next_at
                {
                    self.file();
                    let gap = -libm::log(1.0 - self.random.fraction()) * 1e9 / rate;
                    self.next_at = self.next_at + gap as u64;
                }
            }
        }
    }

    fn wants_flush(&self) -> bool {
        let every = u64::from(self.load.writes_per_flush);
        every > 0 && self.issued.is_multiple_of(every)
    }

    /// Writes or deletes one file.
    fn file(&mut self) {
        if !self.more() {
            return;
        }
        self.issued += 1;
        let file = self.random.below(self.files.len() as u64) as u32;
        let lba = file * FILE_BLOCKS;
        let fua = self.load.fua && self.wants_flush();
        if self.files[file as usize] > 0 && self.random.chance(self.load.deletes) {
            self.files[file as usize] = 0;
            self.sim.trim(TRIM, lba, FILE_BLOCKS, fua);
            return;
        }
        // Most mails are short.
        let blocks = [1, 1, 1, 1, 1, 2, 2, 4][self.random.below(8) as usize];
        self.files[file as usize] = self.files[file as usize].max(blocks);
        let stamps = [self.issued; FILE_BLOCKS as usize];
        let flags = (fua, false);
        self.sim.write(WRITE, lba, &stamps[..blocks as usize], flags, Hint::default());
        self.report.writes += 1;
    }

    fn collect(&mut self, counts: bool) -> Result<(), Failure> {
        while let Some(finished) = self.sim.take_finished() {
            let Finished { token, result, submitted, finished: at, request, .. } = finished;
            self.sim.release(finished);
            if result.is_err() && self.report.refusal.is_empty() {
                self.report.refusal = self.sim.ftl().explain();
            }
            if result == Err(RequestError::NoSpace) && token == WRITE {
                if self.report.refused == 0 {
                    self.report.warnings[1] = self.sim.ftl().status().warnings;
                }
                let kept = self.sim.ftl().counter("logical_blocks_kept");
                let offered = self.sim.ftl().counter("logical_blocks");
                self.report.refused_early += u64::from(kept == offered);
                self.report.refused += 1;
            } else if result == Err(RequestError::NoSpace) && token == TRIM {
                if self.report.trims_refused == 0 {
                    self.report.refusal = self.sim.ftl().explain();
                }
                self.report.trims_refused += 1;
            } else if result.is_err() {
                self.report.failed += 1;
            }
            if !counts {
                continue;
            }
            let flushes =
                token == FLUSH || matches!(request.operation, Operation::Write { fua: true, .. });
            let seen =
                if flushes { &mut self.report.flushes } else { &mut self.report.writes_took };
            if token != TRIM {
                seen.add(at - submitted);
            }
            self.go_on(token);
        }
        Ok(())
    }

    /// A writer, or an arrival of an open loop, goes on after a request has ended.
    fn go_on(&mut self, token: u64) {
        let closed = match self.load.pace {
            MailPace::Depth(_) => return,
            MailPace::Writers(_) => true,
            MailPace::Rate(_) => false,
        };
        let every = u64::from(self.load.writes_per_flush);
        if token != FLUSH && !self.load.fua && every > 0 && self.random.below(every) == 0 {
            self.sim.flush(FLUSH);
        } else if closed {
            self.file();
        }
    }
}
