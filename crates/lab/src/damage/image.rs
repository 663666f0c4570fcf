//! Devices without power whose content is known: what they would show, and what each slot is to them.

use super::apply::Sources;
use super::kinds::SlotKind;
use super::shapes::Shape;
use crate::crash::{CrashOptions, generator};
use crate::driver::{Failure, Sim, State};
use crate::host::Host;
use crate::medium::{Content, Mask, SimMedium, stamp_crc};
use crate::model::Model;
use crate::workload::{Action, Op};
use flash::{BlockId, Hint, Instant, Lba, Random, SlotId};
use ftl::format::{Header, Kind, decode_header, uuid_crc};
use ftl::{Core, FormatOptions};
use nand::Faults;
use std::collections::BTreeMap;

/// Names the device under test; the other device has the next one.
const UUID: u128 = 11;

/// What a clone writes has versions from here on, so that they are told from the device's own.
const CLONE_SEQUENCES: u32 = 1 << 24;

/// A device without power.
pub(super) struct Image {
    pub medium: SimMedium,
    pub now: Instant,
    /// What it may show, and what a recovery that met no damage made of that.
    pub model: Model,
    pub settled: Model,
    /// It was stopped cleanly.
    pub clean: bool,
    /// What it shows if nothing is damaged.
    pub observed: Vec<Option<u64>>,
    pub slots: BTreeMap<SlotKind, Vec<SlotId>>,
    /// So many of [`Sources::older`] were there before it.
    pub older: usize,
}

impl Image {
    /// What a slot is to the device.
    pub fn kind_of(&self, slot: SlotId) -> Option<SlotKind> {
        let of =
            |(&kind, slots): (_, &Vec<SlotId>)| slots.binary_search(&slot).is_ok().then_some(kind);
        self.slots.iter().find_map(of)
    }
}

/// A device that has lived, and its relatives.
pub(super) struct Family {
    pub images: Vec<Image>,
    pub sources: Sources,
}

/// Mounts a medium as `options` say.
pub(super) fn mount(
    options: &CrashOptions,
    medium: SimMedium,
    now: Instant,
) -> Result<Sim, Failure> {
    let mut sim = Sim::mount(medium, options.settings.clone(), now)?;
    options.plant.apply(sim.ftl_mut());
    Ok(sim)
}

struct Life<'a> {
    options: &'a CrashOptions,
    logical_blocks: u32,
    random: Random,
    seed: u64,
}

/// Lets a device of `shape` live, and takes images of it.
pub(super) fn family(shape: Shape, seed: u64, options: &CrashOptions) -> Result<Family, Failure> {
    let medium = options.device.build(Faults::default()).map_err(Failure)?;
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &options.settings);
    let logical_blocks = (f64::from(max) * options.fill) as u32;
    let random = Random::new(seed ^ 0x6461_6d61_6765);
    let mut life = Life { options, logical_blocks, random, seed };
    let mut host = life.born(medium, UUID)?;
    let mut older = Vec::new();
    let mut images = Vec::new();
    life.live(&mut host, shape.operations(), 1)?;
    life.power_cut(&mut host)?;
    older.push(host.sim.medium().clone());
    life.live(&mut host, shape.operations(), 2)?;
    let clone = life.branch(&host)?;
    images.push(life.stopped(&mut host, older.len())?);
    older.push(host.sim.medium().clone());
    life.live(&mut host, shape.operations() / 3, 3)?;
    if (seed / Shape::ALL.len() as u64 + seed) % 4 < 3 {
        life.lose_a_block(&mut host)?;
    }
    life.live(&mut host, 30, 4)?;
    images.push(life.cut_off(&host, older.len())?);
    life.drain(&mut host)?;
    older.push(host.sim.medium().clone());
    life.live(&mut host, 40, 5)?;
    images.push(life.stopped(&mut host, older.len())?);
    life.live(&mut host, 25, 6)?;
    images.push(life.cut_off(&host, older.len())?);
    let foreign = life.stranger()?;
    let sources = Sources { older, foreign, clone, uuid_crc: uuid_crc(UUID) };
    Ok(Family { images, sources })
}

impl Life<'_> {
    fn born(&mut self, medium: SimMedium, uuid: u128) -> Result<Host, Failure> {
        let geometry = *medium.geometry();
        let label = b"damage".to_vec();
        let format = FormatOptions { logical_blocks: self.logical_blocks, uuid, label };
        let settings = self.options.settings.clone();
        let mut sim = Sim::format(medium, format, settings, Instant(0))?;
        self.options.plant.apply(sim.ftl_mut());
        sim.run_until_ready()?;
        let durable_at_reply = geometry.keeps_every_acknowledged_write();
        Ok(Host::new(sim, Model::new(self.logical_blocks, durable_at_reply)))
    }

    /// Operations of every kind. The last of them are left in flight.
    fn live(&mut self, host: &mut Host, operations: u32, part: u64) -> Result<(), Failure> {
        let seed = self.seed ^ part << 32;
        let mut generator = generator(seed, self.options.depth, self.logical_blocks);
        for _ in 0..operations {
            while host.sim.in_flight() >= self.options.depth {
                if host.sim.step(Instant(u64::MAX))? == crate::Step::Idle {
                    return Err(host.sim.stuck());
                }
                host.collect()?;
            }
            let hint = Hint { handle: self.random.below(2) as u8, ..Hint::default() };
            host.submit(generator.draw(), hint);
            host.collect()?;
        }
        Ok(())
    }

    fn drain(&mut self, host: &mut Host) -> Result<(), Failure> {
        host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
        host.drain()
    }

    /// A power cut, and the recovery from it.
    fn power_cut(&mut self, host: &mut Host) -> Result<(), Failure> {
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        self.go_on(host, medium)?;
        host.settle()
    }

    fn go_on(&mut self, host: &mut Host, medium: SimMedium) -> Result<(), Failure> {
        host.sim = mount(self.options, medium, host.sim.now())?;
        host.sim.run_until_ready().map(|_| ())
    }

    /// The data of a slot that a block lies in goes, and GC meets it: from then on a record says that the
    /// block is lost.
    fn lose_a_block(&mut self, host: &mut Host) -> Result<(), Failure> {
        self.drain(host)?;
        host.model.tolerate_errors();
        let wanted = host.sim.ftl().counter("blocks_poisoned") + 1;
        for part in 10..30 {
            let stamped = host.sim.medium().stamped_slots();
            let (slot, _) = stamped[self.random.below(stamped.len() as u64) as usize];
            host.sim.medium_mut().mask(slot, Mask::Unreadable);
            self.live(host, 40, part)?;
            self.drain(host)?;
            if host.sim.ftl().counter("blocks_poisoned") >= wanted {
                break;
            }
        }
        Ok(())
    }

    /// Another life from here on, of a device with the same name.
    fn branch(&mut self, host: &Host) -> Result<SimMedium, Failure> {
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        let mut sim = mount(self.options, medium, host.sim.now())?;
        sim.run_until_ready()?;
        let mut model = host.model.clone();
        let observed = sim.read_all(self.logical_blocks)?;
        model.settle(&observed);
        model.skip_sequences(CLONE_SEQUENCES);
        let mut other = Host::new(sim, model);
        self.live(&mut other, 60, 7)?;
        self.drain(&mut other)?;
        Ok(other.sim.medium().clone())
    }

    /// Another device.
    fn stranger(&mut self) -> Result<SimMedium, Failure> {
        let medium = self.options.device.build(Faults::default()).map_err(Failure)?;
        let mut host = self.born(medium, UUID + 1)?;
        self.live(&mut host, 150, 8)?;
        self.drain(&mut host)?;
        Ok(host.sim.medium().clone())
    }

    /// Stops the device cleanly, takes an image, and starts it again.
    fn stopped(&mut self, host: &mut Host, older: usize) -> Result<Image, Failure> {
        host.drain()?;
        host.sim.begin_shutdown();
        while !matches!(host.sim.state(), State::Stopped(_)) {
            if host.sim.step(Instant(u64::MAX))? == crate::Step::Idle {
                return Err(host.sim.stuck());
            }
        }
        host.model.shut_down();
        let mut medium = host.sim.medium().clone();
        // An erase that no flush covers may still be lost.
        medium.power_cut_by_chance(&mut self.random);
        let image = self.image(medium.clone(), host, older, true)?;
        self.go_on(host, medium)?;
        Ok(image)
    }

    /// An image of what a power cut leaves now.
    fn cut_off(&mut self, host: &Host, older: usize) -> Result<Image, Failure> {
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        self.image(medium, host, older, false)
    }

    fn image(
        &self,
        medium: SimMedium,
        host: &Host,
        older: usize,
        clean: bool,
    ) -> Result<Image, Failure> {
        let mut model = host.model.clone();
        let (now, lossy) = (host.sim.now(), model.tolerates_unreadable());
        let mut sim = mount(self.options, medium.clone(), now)?;
        sim.run_until_ready()?;
        let checkpoint = sim.ftl().checkpoint_bands().to_vec();
        let place = |lba| sim.ftl().slot_of(Lba(lba));
        let places: Vec<_> = (0..self.logical_blocks).map(place).collect();
        let observed = sim.read_all(self.logical_blocks)?;
        model.check_recovered(&observed).map_err(Failure)?;
        if !lossy && super::is_told(&mut sim)? {
            return Err(Failure(format!("false alarm: nothing is damaged, and {:?}", sim.state())));
        }
        model.tolerate_errors();
        let mut settled = model.clone();
        settled.settle(&observed);
        let slots = classify(&medium, &checkpoint, &places, &observed);
        Ok(Image { medium, now, model, settled, clean, observed, slots, older })
    }
}

/// What the slot's OOB says, if the slot is sound.
pub(super) fn header_of(medium: &SimMedium, slot: SlotId) -> Option<(Header, Content)> {
    let (oob, content) = medium.peek(slot).filter(|_| medium.is_readable(slot))?;
    let crc = match &content {
        Content::Stamp(stamp) => stamp_crc(*stamp),
        Content::Meta(bytes) => flash::crc(&bytes[..]),
        Content::Empty => flash::crc(&[0; flash::BLOCK_BYTES]),
    };
    let header = decode_header(&oob, slot, uuid_crc(UUID))?;
    (header.payload_crc == crc).then_some((header, content))
}

/// The largest sequence of any slot that lies well before an order, of all orders and sequences.
fn largest_before(mut newest: Vec<(u64, u64)>) -> impl Fn(u64) -> u64 {
    newest.sort_unstable();
    let mut largest = 0;
    for (_, sequence) in &mut newest {
        largest = largest.max(*sequence);
        *sequence = largest;
    }
    move |order| {
        let at = newest.partition_point(|&(other, _)| other + 16 < order);
        if at == 0 { 0 } else { newest[at - 1].1 }
    }
}

/// What every slot is to a device whose logical blocks lie at `places`, where those are known.
fn classify(
    medium: &SimMedium,
    checkpoint: &[BlockId],
    places: &[Option<SlotId>],
    observed: &[Option<u64>],
) -> BTreeMap<SlotKind, Vec<SlotId>> {
    let geometry = *medium.geometry();
    let mut slots: BTreeMap<SlotKind, Vec<SlotId>> = BTreeMap::new();
    let headers: Vec<_> = (0..geometry.slots() as u32)
        .filter_map(|slot| Some((SlotId(slot), header_of(medium, SlotId(slot))?)))
        .collect();
    let orders = headers.iter().map(|(_, (header, _))| (header.order, header.sequence));
    let before = largest_before(orders.collect());
    for (slot, (header, content)) in headers {
        let block = geometry.block_of(slot);
        let of_checkpoint = checkpoint.contains(&block);
        let kind = match header.kind {
            Kind::Data => {
                let lba = header.lba as usize;
                let live = match places.get(lba) {
                    Some(Some(place)) => *place == slot,
                    _ => {
                        let shown = observed.get(lba).copied().flatten();
                        shown.is_some_and(|stamp| content == Content::Stamp(stamp))
                    }
                };
                match live {
                    true if geometry.is_fast(block) => SlotKind::FastData,
                    true if header.sequence + 64 < before(header.order) => SlotKind::Copy,
                    true => SlotKind::Data,
                    false if geometry.is_fast(block) => SlotKind::FastOther,
                    false => SlotKind::Superseded,
                }
            }
            kind if kind.is_of_checkpoint() && !of_checkpoint => SlotKind::OldCheckpoint,
            Kind::Root => SlotKind::Root,
            Kind::Map => SlotKind::Map,
            Kind::BandTable => SlotKind::BandTable,
            Kind::Footer => SlotKind::Footer,
            Kind::Parity => SlotKind::Parity,
            _ if geometry.is_fast(block) => SlotKind::FastOther,
            Kind::Pad => SlotKind::Pad,
            Kind::Trim => SlotKind::Trim,
            Kind::Poison => SlotKind::Poison,
            Kind::Commit => SlotKind::Commit,
        };
        slots.entry(kind).or_default().push(slot);
    }
    // Of a file, which keeps no write pointers: what lies behind them is looked at.
    if !geometry.durable_at_completion {
        for block in (0..geometry.blocks()).map(BlockId) {
            let pages = 0..geometry.pages_per_block;
            let blank = |page: &u32| medium.peek(geometry.slot(block, *page, 0)).is_none();
            let first = pages.clone().find(blank);
            if let Some(page) = first.filter(|&page| page > 0) {
                slots.entry(SlotKind::Blank).or_default().push(geometry.slot(block, page, 0));
            }
        }
    }
    slots
}
