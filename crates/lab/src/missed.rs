//! Damage that recovery meets: after a crash any slot may be damaged in any way, alone. What the device
//! shows then is right, or an error, and its report says so.
//!
//! Invariants:
//! - A block never shows an older version, or zeroes, where a slot is damaged that was durable: the run
//!   rests before it ends, so that somebody has vouched for everything. But an unreadable page that a cut
//!   explains may be taken for torn where nobody does any more: that is counted, and must be rare.
//! - Blocks that are refused, as nobody knew which one was in the slot, are announced.
//! - What was lost stays lost over a clean shutdown, until it is written.

use crate::crash::{CrashOptions, generator};
use crate::driver::{Failure, Sim, Step};
use crate::host::Host;
use crate::medium::{Content, SimMedium};
use crate::model::Model;
use crate::workload::{Action, Op};
use flash::{BlockId, Hint, Instant, Random, SlotId};
use ftl::FormatOptions;
use ftl::format::{decode_header, uuid_crc};
use nand::Faults;

const UUID: u128 = 13;

/// What was tried.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MissedReport {
    /// Images with one damaged slot or page.
    pub images: u64,
    /// Of them: something read as an error that else did not.
    pub noticed: u64,
    /// Of them: refused what may be old, as nobody knew of which block the slot was.
    pub refused: u64,
    /// Of them: a block showed an older version, as nobody vouched any more for what an unreadable page
    /// held that a cut explains: the last of its band, or any of a medium with a volatile cache.
    pub older: u64,
    /// Blocks that read as an error.
    pub blocks: u64,
}

/// What happens to a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// A bit of the data.
    Data,
    /// A bit of what is beside it.
    Beside,
    /// The whole page cannot be read any more.
    Page,
}

/// Ages a device, crashes it at rest, and damages its slots one at a time.
pub fn survive_missing(seed: u64, options: &CrashOptions) -> Result<MissedReport, Failure> {
    let mut random = Random::new(seed ^ 0x6d69_7373);
    let host = age(seed, options, &mut random)?;
    let (blocks, now) = (host.model.logical_blocks(), host.sim.now());
    let medium = host.sim.medium().clone();
    let mut sound = mount(medium.clone(), options, now)?;
    let observed = sound.read_all(blocks)?;
    host.model.check_recovered(&observed).map_err(Failure)?;
    let mut report = MissedReport::default();
    let slots = slots_after_checkpoint(&sound, &medium);
    for slot in slots {
        for harm in [Harm::Data, Harm::Beside, Harm::Page] {
            let header =
                medium.peek(slot).and_then(|(oob, _)| decode_header(&oob, slot, uuid_crc(UUID)));
            let context =
                |Failure(why)| Failure(format!("slot {}, {harm:?} of {header:?}: {why}", slot.0));
            let image = harmed(&medium, slot, harm);
            let mut sim = mount(image, options, now).map_err(context)?;
            let found = sim.run_until_ready()?.clone();
            let shown = sim.read_all(blocks).map_err(context)?;
            report.images += 1;
            let torn = medium_forgets(&medium) || is_last_page(&medium, slot);
            let errors = match only_errors(&observed, &shown) {
                Ok(errors) => errors,
                // A cut explains it, and nobody vouches for it any more.
                Err(_)
                    if torn && matches!(harm, Harm::Page)
                        || medium_forgets(&medium) && matches!(harm, Harm::Data) =>
                {
                    report.older += 1;
                    continue;
                }
                Err(why) => return Err(context(why)),
            };
            report.noticed += u64::from(errors > 0);
            report.refused += u64::from(found.blocks_refused > 0);
            report.blocks += errors;
            if found.blocks_refused == 0 && random.chance(0.2) {
                stays_lost(sim, options, &shown).map_err(context)?;
            }
        }
    }
    Ok(report)
}

/// A device that has lived through operations of every kind and rests after a flush.
fn age(seed: u64, options: &CrashOptions, random: &mut Random) -> Result<Host, Failure> {
    let medium = options.device.build(Faults::default()).map_err(Failure)?;
    let settings = options.settings.clone();
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let logical_blocks = (f64::from(max) * options.fill) as u32;
    let durable_at_reply = medium.geometry().keeps_every_acknowledged_write();
    let format = FormatOptions { logical_blocks, uuid: UUID, label: b"missed".to_vec() };
    let mut sim = Sim::format(medium, format, settings, Instant(0))?;
    options.plant.apply(sim.ftl_mut());
    sim.run_until_ready()?;
    let mut host = Host::new(sim, Model::new(logical_blocks, durable_at_reply));
    let mut generator = generator(seed, options.depth, logical_blocks);
    for _ in 0..100 + random.below(100) {
        host.submit(generator.draw(), Hint { handle: random.below(2) as u8, ..Hint::default() });
        if random.chance(0.4) {
            host.drain()?;
        }
    }
    host.drain()?;
    host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
    host.drain()?;
    while host.sim.step(Instant(u64::MAX))? != Step::Idle {}
    Ok(host)
}

fn mount(medium: SimMedium, options: &CrashOptions, now: Instant) -> Result<Sim, Failure> {
    let mut sim = Sim::mount(medium, options.settings.clone(), now)?;
    options.plant.apply(sim.ftl_mut());
    sim.run_until_ready()?;
    Ok(sim)
}

/// Programmed slots that are not of the checkpoint.
pub(crate) fn slots_after_checkpoint(sim: &Sim, medium: &SimMedium) -> Vec<SlotId> {
    let geometry = *medium.geometry();
    let of_checkpoint = sim.ftl().checkpoint_bands();
    let blocks = (0..geometry.blocks()).map(BlockId);
    let slots = blocks.filter(|block| !of_checkpoint.contains(block)).flat_map(|block| {
        let first = geometry.slot(block, 0, 0).0;
        (first..first + geometry.slots_per_block()).map(SlotId)
    });
    slots.filter(|&slot| medium.is_readable(slot) && medium.peek(slot).is_some()).collect()
}

pub(crate) fn harmed(medium: &SimMedium, slot: SlotId, harm: Harm) -> SimMedium {
    let mut medium = medium.clone();
    let (mut oob, mut content) = medium.peek(slot).expect("it is programmed");
    match harm {
        Harm::Data => {
            content = match content {
                Content::Stamp(stamp) => Content::Stamp(stamp ^ 1 << 33),
                _ => Content::Stamp(77),
            };
        }
        Harm::Beside => oob[9 + slot.0 as usize % 20] ^= 4,
        Harm::Page => {
            medium.rot(slot);
            return medium;
        }
    }
    medium.damage(slot, oob, content);
    medium
}

/// Whether a power cut may have torn the page: no later one of its band shows that it was durable.
fn is_last_page(medium: &SimMedium, slot: SlotId) -> bool {
    let geometry = *medium.geometry();
    let (block, page) = (geometry.block_of(slot), geometry.page_in_block(slot));
    let partner = geometry.pairing.last_partner(page, geometry.pages_per_block);
    let mut later = partner + 1..geometry.pages_per_block;
    later.all(|page| medium.peek(geometry.slot(block, page, 0)).is_none())
}

fn medium_forgets(medium: &SimMedium) -> bool {
    !medium.geometry().durable_at_completion
}

/// How many blocks are errors now. Fails if one shows anything else than before.
fn only_errors(before: &[Option<u64>], after: &[Option<u64>]) -> Result<u64, Failure> {
    let mut errors = 0;
    for (lba, (before, after)) in before.iter().zip(after).enumerate() {
        match after {
            None => errors += u64::from(before.is_some()),
            Some(_) if before != after => {
                return Err(Failure(format!("block {lba} showed {before:?} and shows {after:?}")));
            }
            Some(_) => {}
        }
    }
    Ok(errors)
}

/// Another mount after a clean shutdown shows the same.
fn stays_lost(sim: Sim, options: &CrashOptions, shown: &[Option<u64>]) -> Result<(), Failure> {
    let now = sim.now();
    let mut again = mount(sim.shutdown()?, options, now)?;
    let second = again.read_all(shown.len() as u32)?;
    match second.iter().zip(shown).position(|(second, first)| first != second) {
        Some(lba) => Err(Failure(format!(
            "block {lba} showed {:?}, and {:?} after a clean shutdown",
            shown[lba], second[lba]
        ))),
        None => Ok(()),
    }
}
