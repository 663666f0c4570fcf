//! Silent damage: slots that changed, or hold another slot's data, while the medium says that all
//! is well. A read must find it: the right data, or an error, never anything else.

use crate::crash::CrashOptions;
use crate::device::Manner;
use crate::driver::{Failure, Sim, State, Step};
use crate::host::Host;
use crate::medium::{Content, SimMedium};
use crate::model::Model;
use crate::workload::{Action, Generator, Op, Workload};
use flash::{Hint, Instant, Oob, Pairing, Random, SlotId};
use ftl::FormatOptions;
use ftl::format::{Header, decode_header, encode_header, uuid_crc};
use nand::Faults;

/// What happened to a slot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Damage {
    /// The data changed.
    Bits,
    /// The slot holds what was written to another one, header and all.
    Misdirected(SlotId),
    /// Erase and program never happened: the slot holds what it held before them.
    Lost(Oob, Content),
    /// The slot holds another logical block, sound in every other way: what a map that points to
    /// the wrong place would find.
    AnotherBlock(SlotId),
}

impl Damage {
    /// Damages `slot`.
    pub fn apply(self, medium: &mut SimMedium, slot: SlotId) {
        let found = match &self {
            Self::Bits => medium.peek(slot),
            Self::Misdirected(from) => medium.peek(*from),
            Self::Lost(oob, content) => Some((*oob, content.clone())),
            Self::AnotherBlock(other) => readdressed(medium, *other, slot),
        };
        let Some((oob, content)) = found else { return };
        let content = match (self, content) {
            (Self::Bits, Content::Stamp(stamp)) => Content::Stamp(stamp ^ 1 << 40),
            (_, content) => content,
        };
        medium.damage(slot, oob, content);
    }
}

/// What slot `from` holds, with a header that is right for `slot`.
fn readdressed(medium: &SimMedium, from: SlotId, slot: SlotId) -> Option<(Oob, Content)> {
    let uuid_crc = uuid_crc(UUID);
    let (oob, content) = medium.peek(from)?;
    let header = decode_header(&oob, from, uuid_crc)?;
    let own = decode_header(&medium.peek(slot)?.0, slot, uuid_crc)?;
    let header = Header { order: own.order, ..header };
    Some((encode_header(&header, slot, uuid_crc), content))
}

const UUID: u128 = 5;

/// Writes a device full, damages slots of every kind, and reads everything: directly, and after GC
/// has moved what it found. Then writes all blocks again, which must heal them.
pub fn survive_damage(seed: u64, options: &CrashOptions) -> Result<u64, Failure> {
    let mut device = options.device;
    device.manner = Manner::Nand(Pairing::None);
    let medium = device.build(Faults::default()).map_err(Failure)?;
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &options.settings);
    let format = FormatOptions { logical_blocks: max, uuid: UUID, label: Vec::new() };
    let mut sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    options.plant.apply(sim.ftl_mut());
    sim.run_until_ready()?;
    let mut model = Model::new(max, true);
    model.tolerate_unreadable();
    let mut host = Host::new(sim, model);
    write_all(&mut host)?;
    let mut random = Random::new(seed);
    for round in 0..4 {
        damage_some(&mut host, &mut random);
        host.read_back()?;
        let before = host.sim.medium().clone();
        churn(&mut host, max, random.next_u64())?;
        host.read_back()?;
        if round % 2 == 1 {
            remount(&mut host, options)?;
        }
        lose_some(&mut host, &before, &mut random);
        host.read_back()?;
    }
    let found = host.counts.unreadable;
    if found == 0 {
        return Err(Failure("nothing that was damaged was ever found".into()));
    }
    write_all(&mut host)?;
    host.counts.unreadable = 0;
    host.read_back()?;
    if host.counts.unreadable > 0 {
        return Err(Failure("blocks stay unreadable after they were written again".into()));
    }
    Ok(found)
}

fn write_all(host: &mut Host) -> Result<(), Failure> {
    let action = Action::Write { fua: false, atomic: false };
    for lba in 0..host.model.logical_blocks() {
        host.submit(Op { action, lba, blocks: 1 }, Hint::default());
        if lba % 16 == 15 {
            host.drain()?;
        }
    }
    host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
    host.drain()
}

/// Random writes, so that GC meets some of the damage.
fn churn(host: &mut Host, logical_blocks: u32, seed: u64) -> Result<(), Failure> {
    let mut generator =
        Generator::new(Workload::default(), logical_blocks, seed).map_err(Failure)?;
    for _ in 0..logical_blocks / 2 {
        host.submit(generator.draw(), Hint::default());
        host.drain()?;
    }
    Ok(())
}

fn remount(host: &mut Host, options: &CrashOptions) -> Result<(), Failure> {
    host.sim.begin_shutdown();
    while !matches!(host.sim.state(), State::Stopped(_)) {
        if host.sim.step(Instant(u64::MAX))? == Step::Idle {
            return Err(host.sim.stuck());
        }
    }
    host.model.shut_down();
    let (medium, now) = (host.sim.medium().clone(), host.sim.now());
    host.sim = Sim::mount(medium, options.settings.clone(), now)?;
    options.plant.apply(host.sim.ftl_mut());
    host.sim.run_until_ready().map(|_| ())
}

/// Takes slots back to what they held `before`, as if the writes since had been lost.
fn lose_some(host: &mut Host, before: &SimMedium, random: &mut Random) {
    for (slot, stamp) in host.sim.medium().stamped_slots() {
        let Some((oob, Content::Stamp(old))) = before.peek(slot) else { continue };
        if old != stamp && random.chance(0.2) {
            Damage::Lost(oob, Content::Stamp(old)).apply(host.sim.medium_mut(), slot);
        }
    }
}

fn damage_some(host: &mut Host, random: &mut Random) {
    let slots = host.sim.medium().stamped_slots();
    // Where an entry is not in DRAM, GC goes by the header, which is sound here as it never is on flash.
    let kinds = 2 + u64::from(host.sim.settings().map_bytes == 0);
    for _ in 0..slots.len() / 12 {
        let mut pick = || slots[random.below(slots.len() as u64) as usize].0;
        let (slot, from) = (pick(), pick());
        let damage = match random.below(kinds) {
            0 => Damage::Bits,
            1 => Damage::Misdirected(from),
            _ => Damage::AnotherBlock(from),
        };
        damage.apply(host.sim.medium_mut(), slot);
    }
}
