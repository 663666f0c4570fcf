//! Devices with snapshots and clones that grow: their shadows lie behind the last block, wherever that is.

use super::{Explorer, SnapshotReport, begin};
use crate::crash::{CrashOptions, generator};
use crate::driver::{Failure, State, Step};
use crate::host::Host;
use flash::Instant;

/// Explores one seed: a device with snapshots gets units, with the power cut at every step of the mount that takes them
/// in and of what comes then.
pub fn explore_growth(seed: u64, options: &CrashOptions) -> Result<SnapshotReport, Failure> {
    let (mut explorer, mut host, mut before) = begin(seed, options)?;
    explorer.run(&mut host, &mut before, options.operations_before, false)?;
    explorer.grow(&mut host)?;
    let mut after = generator(seed, options.depth, explorer.logical_blocks);
    explorer.run(&mut host, &mut after, options.operations, true)?;
    explorer.read_snapshots(&mut host.sim)?;
    host.read_back()?;
    explorer.give_all_up(&mut host)?;
    Ok(explorer.report)
}

impl Explorer<'_> {
    /// A clean shutdown, and a mount with units that the device does not know of.
    fn grow(&mut self, host: &mut Host) -> Result<(), Failure> {
        let shadow_blocks = host.sim.ftl().shadow_blocks();
        self.shut_down(host, true)?;
        let mut medium = host.sim.medium().clone();
        medium.show_all();
        let (geometry, health) = (*medium.geometry(), medium.health());
        let settings = &self.options.settings;
        let max = ftl::logical_blocks_beside(&geometry, &health, settings, shadow_blocks);
        let blocks = ((f64::from(max) * self.options.fill) as u32).max(self.logical_blocks + 1);
        let by = blocks - self.logical_blocks;
        host.model.grow(by);
        self.logical_blocks = blocks;
        let known = self.known.iter_mut().flat_map(|known| &mut known.stretches);
        let clones = self.clones.iter_mut().flat_map(|clone| &mut clone.stretches);
        known.chain(clones).for_each(|stretch| stretch.shadow += by);
        host.sim = self.begin_mount(medium, host.sim.now())?;
        while *host.sim.state() == State::Starting {
            match host.sim.step(Instant(u64::MAX))? {
                Step::Idle => return Err(Failure("the mount never ends".into())),
                Step::Change => self.cut(host)?,
                _ => {}
            }
        }
        let report = host.sim.run_until_ready()?;
        if report.logical_blocks != blocks || report.blocks_added != by {
            return Err(Failure(format!("a device of {blocks} blocks is mounted as {report:?}")));
        }
        self.check_snapshots(&mut host.sim)?;
        self.settle(&host.sim);
        host.read_back()
    }
}
