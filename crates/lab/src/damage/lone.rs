//! A client that writes one block at a time and waits for each to be durable, a power cut, and then damage to the end of a band that
//! was being filled: the one place whose damage looks as if the cut had torn it.
//!
//! Promised: of what was durable no block but the one written last reads old without an error, as what was written next lies on
//! another unit and vouches for what was written before. Wherever the damage is: so what vouches stays until a checkpoint has what it
//! vouches for.

use super::apply::page_of;
use crate::device::Small;
use crate::driver::{Failure, Sim};
use crate::host::Host;
use crate::medium::{Content, Mask, SimMedium};
use crate::model::Model;
use crate::workload::{Action, Op};
use flash::{BlockId, Hint, Instant, Random};
use ftl::{FormatOptions, Settings};
use nand::Faults;
use std::ops::Range;

/// What to run.
#[derive(Clone, Debug)]
pub struct LoneOptions {
    /// The device.
    pub device: Small,
    /// Settings of the FTL.
    pub settings: Settings,
    /// Writes before the cut.
    pub writes: u32,
    /// Pages of a band that are damaged.
    pub pages: u32,
    /// Anywhere in any band, and not at the end of those that were being filled.
    pub anywhere: bool,
}

/// What came of it, over all bands that were damaged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LoneReport {
    /// Bands that were damaged, one at a time.
    pub bands: u32,
    /// Durable blocks that read old without an error.
    pub old: u32,
    /// Blocks that ended in an error.
    pub errors: u32,
}

/// Runs one seed.
pub fn run_lone(seed: u64, options: &LoneOptions) -> Result<LoneReport, Failure> {
    let medium = options.device.build(Faults::default()).map_err(Failure)?;
    let geometry = *medium.geometry();
    let blocks = ftl::logical_blocks_max(&geometry, &medium.health(), &options.settings) / 2;
    let format = FormatOptions { logical_blocks: blocks, uuid: 5, label: Vec::new() };
    let mut sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    let mut host = Host::new(sim, Model::new(blocks, geometry.keeps_every_acknowledged_write()));
    let mut random = Random::new(seed);
    let mut last = 0;
    for _ in 0..options.writes {
        last = random.below(u64::from(blocks)) as u32;
        let action = Action::Write { fua: false, atomic: false };
        host.submit(Op { action, lba: last, blocks: 1 }, Hint::default());
        host.drain()?;
        host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
        host.drain()?;
    }
    let mut medium = host.sim.medium().clone();
    medium.power_cut_by_chance(&mut random);
    let show = |medium| {
        let mut sim = Sim::mount(medium, options.settings.clone(), host.sim.now())?;
        sim.run_until_ready()?;
        sim.read_all(blocks)
    };
    let sound = show(medium.clone())?;
    host.model.check_recovered(&sound).map_err(Failure)?;
    let mut report = LoneReport::default();
    for block in (0..geometry.blocks()).map(BlockId) {
        for mask in [Mask::Erased, Mask::Unreadable] {
            let mut damaged = medium.clone();
            let Some(pages) = pages_to_damage(&damaged, block, options, &mut random) else {
                continue;
            };
            for page in pages.clone() {
                for slot in page_of(&geometry, geometry.slot(block, page, 0)) {
                    damaged.mask(slot, mask);
                }
            }
            let shown = show(damaged)?;
            let pairs = || (0..).zip(sound.iter().zip(&shown));
            let old = pairs().filter(|(_, (sound, shown))| shown.is_some() && sound != shown);
            let old: Vec<u32> = old.map(|(lba, _)| lba).collect();
            if old.iter().any(|&lba| lba != last) {
                let why = format!("read old without an error, and block {last} was written last");
                return Err(Failure(format!("{mask:?} at {pages:?} of {block:?}: {old:?} {why}")));
            }
            report.bands += 1;
            report.old += old.len() as u32;
            report.errors += pairs().filter(|(_, (_, shown))| shown.is_none()).count() as u32;
        }
    }
    Ok(report)
}

/// The last pages of a band that is written in part, or any of a band; none of a checkpoint's.
fn pages_to_damage(
    medium: &SimMedium,
    block: BlockId,
    options: &LoneOptions,
    random: &mut Random,
) -> Option<Range<u32>> {
    let geometry = medium.geometry();
    let is_written = |page: &u32| medium.peek(geometry.slot(block, *page, 0)).is_some();
    let end = (0..geometry.pages_per_block).take_while(is_written).count() as u32;
    let first = medium.peek(geometry.slot(block, 0, 0));
    if end == 0 || matches!(first, Some((_, Content::Meta(_)))) {
        return None;
    }
    if options.anywhere {
        let first = random.below(u64::from(end)) as u32;
        return Some(first..(first + options.pages).min(end));
    }
    (end < geometry.pages_per_block).then(|| end.saturating_sub(options.pages)..end)
}
