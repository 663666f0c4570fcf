//! Flash that goes bad under what it holds, until nothing new fits: the way out that status tells, to trim what is not
//! needed, has to go on, whatever is restarted or cut in between, until there is room again.
//!
//! - Single blocks are written at random until so many in a row are refused.
//! - From then on a trim of what holds data must succeed, before a restart, after one, after a power cut, as long as a band is
//!   left that is free.
//! - With most of it trimmed, writes go on.

use crate::device::Small;
use crate::driver::{Failure, Sim};
use crate::host::Host;
use crate::medium::SimMedium;
use crate::model::Model;
use crate::workload::{Action, Op};
use flash::{Hint, Instant, Random, SECOND};
use ftl::{FormatOptions, Settings};
use nand::Faults;
use std::collections::BTreeSet;

/// What to run.
#[derive(Clone, Debug)]
pub struct WornOptions {
    /// The device.
    pub device: Small,
    /// Settings of the FTL.
    pub settings: Settings,
    /// Share of the largest logical space that the device offers.
    pub fill: f64,
    /// A program fails, and its block is bad.
    pub program_fail: f64,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct WornReport {
    /// Writes until nothing new fitted.
    pub writes: u64,
    /// Blocks that held data then.
    pub held: u64,
    /// Most that could be kept then.
    pub kept: u64,
    /// Trims that went on.
    pub trims: u64,
    /// Writes that went on at the end.
    pub writes_after: u64,
    /// A trim found no room: so much went bad meanwhile that no band is left to be opened.
    pub used_up: bool,
}

/// Writes in a row that are refused before the device counts as full.
const REFUSED_IN_A_ROW: u32 = 20;

/// Trims between two restarts.
const TRIMS_A_LIFE: u32 = 20;

/// Where so little can be kept, the flash is used up, and nothing is promised any more.
const BANDS_KEPT_MIN: u64 = 8;

struct Worn {
    settings: Settings,
    host: Host,
    random: Random,
    blocks: u32,
    /// Blocks that hold data.
    held: BTreeSet<u32>,
    report: WornReport,
}

/// Runs one seed; `None` if the flash was used up before it was full.
pub fn run_worn(seed: u64, options: &WornOptions) -> Result<Option<WornReport>, Failure> {
    let faults = Faults { seed, program_fail: options.program_fail, ..Faults::default() };
    let medium = options.device.build(faults).map_err(Failure)?;
    let geometry = *medium.geometry();
    let max = ftl::logical_blocks_max(&geometry, &medium.health(), &options.settings);
    let blocks = (f64::from(max) * options.fill) as u32;
    let format =
        FormatOptions { logical_blocks: blocks, uuid: u128::from(seed) + 1, label: Vec::new() };
    let mut sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    sim.set_patience(SECOND);
    let mut host = Host::new(sim, Model::new(blocks, geometry.keeps_every_acknowledged_write()));
    (host.full_is_legal, host.refusals_are_legal) = (true, true);
    let random = Random::new(seed);
    let mut worn = Worn {
        settings: options.settings.clone(),
        host,
        random,
        blocks,
        held: BTreeSet::new(),
        report: WornReport::default(),
    };
    worn.fill()?;
    let (held, kept) = (worn.counter("blocks_mapped"), worn.counter("logical_blocks_kept"));
    (worn.report.held, worn.report.kept) = (held, kept);
    if kept < BANDS_KEPT_MIN * u64::from(geometry.slots_per_block()) {
        return Ok(None);
    }
    worn.make_room()?;
    worn.host.read_back()?;
    Ok(Some(worn.report))
}

impl Worn {
    fn counter(&self, name: &'static str) -> u64 {
        self.host.sim.ftl().counter(name)
    }

    /// Whether a request of one block succeeds.
    fn succeeds(&mut self, action: Action, lba: u32) -> Result<bool, Failure> {
        let before = self.host.counts;
        self.host.submit(Op { action, lba, blocks: 1 }, Hint::default());
        self.host.drain()?;
        let after = self.host.counts;
        if after.refused > before.refused {
            return Err(Failure(format!("{action:?} of {lba} failed: {}", self.state())));
        }
        Ok(after.no_space == before.no_space)
    }

    fn state(&self) -> String {
        let count = |name| (name, self.counter(name));
        let counts = ["bands_bad", "bands_free", "blocks_mapped", "logical_blocks_kept"].map(count);
        format!("{counts:?}; {:?}; {}", self.report, self.host.sim.ftl().explain())
    }

    fn fill(&mut self) -> Result<(), Failure> {
        let mut refused = 0;
        while refused < REFUSED_IN_A_ROW {
            let lba = self.random.below(u64::from(self.blocks)) as u32;
            let done = self.succeeds(Action::Write { fua: false, atomic: false }, lba)?;
            self.report.writes += u64::from(done);
            self.held.extend(done.then_some(lba));
            refused = if done { 0 } else { refused + 1 };
        }
        Ok(())
    }

    /// False if no band is left for one of them.
    fn trim(&mut self, count: u32) -> Result<bool, Failure> {
        for _ in 0..count {
            let first = self.random.below(u64::from(self.blocks)) as u32;
            let mut held = self.held.range(first..).chain(&self.held);
            let Some(&lba) = held.next() else { break };
            if !self.succeeds(Action::Trim { fua: false }, lba)? {
                self.report.used_up = self.counter("bands_free") == 0;
                let why = || Failure(format!("a trim found no room: {}", self.state()));
                return if self.report.used_up { Ok(false) } else { Err(why()) };
            }
            self.held.remove(&lba);
            self.report.trims += 1;
        }
        Ok(true)
    }

    fn make_room(&mut self) -> Result<(), Failure> {
        for next in [Self::restart, Self::cut, Self::restart] {
            if !self.trim(TRIMS_A_LIFE)? {
                return Ok(());
            }
            next(self)?;
        }
        while self.counter("blocks_mapped") > self.counter("logical_blocks_kept") / 2 {
            if !self.trim(1)? {
                return Ok(());
            }
        }
        self.write_again()
    }

    fn write_again(&mut self) -> Result<(), Failure> {
        for _ in 0..REFUSED_IN_A_ROW {
            let lba = self.random.below(u64::from(self.blocks)) as u32;
            if !self.succeeds(Action::Write { fua: false, atomic: false }, lba)? {
                return Err(Failure(format!("a write found no room: {}", self.state())));
            }
            self.report.writes_after += 1;
        }
        Ok(())
    }

    fn restart(&mut self) -> Result<(), Failure> {
        if !self.host.sim.stop()? {
            return Err(Failure(format!("it could not be stopped well: {}", self.state())));
        }
        self.host.model.shut_down();
        self.mount_again(self.host.sim.medium().clone())?;
        self.host.read_back()
    }

    fn cut(&mut self) -> Result<(), Failure> {
        let mut medium = self.host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        self.mount_again(medium)?;
        self.host.settle()
    }

    fn mount_again(&mut self, medium: SimMedium) -> Result<(), Failure> {
        self.host.sim.verify()?;
        let mut sim = Sim::mount(medium, self.settings.clone(), self.host.sim.now())?;
        sim.run_until_ready()?;
        sim.set_patience(SECOND);
        self.host.sim = sim;
        Ok(())
    }
}
