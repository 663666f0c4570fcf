//! The same for raw units: raw blocks and the records of lanes. What is not written reads as zeroes here,
//! so a raw block that was written and is gone without an error counts as wrong.

use super::apply::{Past, Sources, apply, band_of, page_of};
use super::kinds::{Case, Harm, Matrix, Moment, SlotKind, Tally};
use super::known::{Failed, KNOWN_OF_RAW};
use super::{DamageOptions, DamageReport};
use crate::device::Manner;
use crate::driver::{Failure, Sim, State, Step};
use crate::medium::{Content, SimMedium, stamp_crc};
use crate::model::{Model, ZERO};
use crate::parallel::guarded;
use crate::raw_crash::{CrashHost, RawCrashOptions};
use crate::raw_host::RawHost;
use flash::{Instant, Pairing, Random, RequestError, SlotId};
use ftl::format::uuid_crc;
use ftl::raw::format::decode_raw_header;
use ftl::raw::{RawFormat, RawUnits, WriteUnit};
use nand::Faults;
use std::collections::BTreeMap;

const UUID: u128 = 21;

/// The kinds of slots of raw units.
pub const KINDS: [SlotKind; 2] = [SlotKind::RawData, SlotKind::LaneRecord];

struct Image {
    medium: SimMedium,
    now: Instant,
    model: Model,
    settled: Model,
    clean: bool,
    observed: Vec<Option<u64>>,
    slots: BTreeMap<SlotKind, Vec<SlotId>>,
    older: usize,
}

struct Tester<'a> {
    options: &'a RawCrashOptions,
    images: Vec<Image>,
    sources: Sources,
    random: Random,
    report: DamageReport,
}

/// Lets raw units live, and damages them in many ways.
pub fn explore_raw_damage(seed: u64, options: &DamageOptions) -> Result<DamageReport, Failure> {
    let manners = [
        Manner::Nand(Pairing::None),
        Manner::Nand(Pairing::Staircase),
        Manner::File,
        Manner::Folder,
    ];
    let raw = RawCrashOptions::of_seed(seed, manners[(seed % 4) as usize]);
    let random = Random::new(seed ^ 0x7261_7764);
    let mut tester = family(&raw, random)
        .map_err(|Failure(why)| Failure(format!("before any damage: {why}")))?;
    let mut cases = Matrix::default().missing(&KINDS, false);
    cases.retain(|&(_, case)| options.case.is_none_or(|only| only == case));
    for number in (0..options.images).filter(|&number| options.only.is_none_or(|it| it == number)) {
        let (moment, case) = cases[((seed * 31 + number * 7) % cases.len() as u64) as usize];
        tester.random = Random::new(seed << 32 ^ number << 8 ^ 0x4da);
        let Err(Failure(why)) = guarded(|| tester.try_case(moment, case)) else { continue };
        let touched: Vec<SlotKind> = match case {
            Case::One(kind, _) => vec![kind],
            Case::Several(_) => Vec::new(),
        };
        let failed = Failed { moment, touched: &touched, why: &why };
        let class = KNOWN_OF_RAW.iter().find(|class| (class.holds)(&failed));
        if let Some(class) = class.filter(|_| options.known_pass) {
            tester.report.count_known(moment, case, class);
        } else {
            return Err(Failure(format!("raw units, image {number}, {moment:?}, {case:?}: {why}")));
        }
    }
    Ok(tester.report)
}

fn family(options: &RawCrashOptions, random: Random) -> Result<Tester<'_>, Failure> {
    let medium = options.device.build(Faults::default()).map_err(Failure)?;
    let empty = Sources {
        older: Vec::new(),
        foreign: medium.clone(),
        clone: medium.clone(),
        uuid_crc: uuid_crc(UUID),
    };
    let report = DamageReport::default();
    let mut tester = Tester { options, images: Vec::new(), sources: empty, random, report };
    let mut host = tester.born(medium.clone(), UUID)?;
    tester.live(&mut host, 150)?;
    tester.sources.older.push(host.sim.medium().clone());
    tester.live(&mut host, 100)?;
    tester.stopped(&mut host)?;
    tester.sources.clone = tester.branch(&host)?;
    tester.live(&mut host, 60)?;
    tester.cut_off(&host)?;
    tester.drain(&mut host)?;
    tester.sources.older.push(host.sim.medium().clone());
    tester.live(&mut host, 60)?;
    tester.stopped(&mut host)?;
    tester.live(&mut host, 30)?;
    tester.cut_off(&host)?;
    let mut stranger = tester.born(medium, UUID + 1)?;
    tester.live(&mut stranger, 150)?;
    tester.sources.foreign = stranger.sim.medium().clone();
    Ok(tester)
}

impl Tester<'_> {
    fn born(&mut self, medium: SimMedium, uuid: u128) -> Result<RawHost, Failure> {
        let (gang, spare) = (self.options.gang, self.options.spare);
        let format = RawFormat { gang, spare, uuid, label: b"raw".to_vec() };
        let settings = self.options.settings.clone();
        let mut sim = Sim::format_raw(medium, format, settings, Instant(0))?;
        sim.run_until_ready()?;
        let geometry = sim.medium().geometry();
        let whole = self.options.settings.write == WriteUnit::Block;
        let durable =
            geometry.durable_at_completion && (geometry.pairing == Pairing::None || whole);
        let model = Model::new(sim.ftl().lanes().logical_blocks(), durable);
        Ok(RawHost::attach(sim, model, self.options))
    }

    fn mount(&self, medium: SimMedium, now: Instant) -> Result<Sim<RawUnits>, Failure> {
        Sim::mount_raw(medium, self.options.gang, self.options.settings.clone(), now)
    }

    /// Operations of every kind. The last of them are left in flight.
    fn live(&mut self, host: &mut RawHost, operations: u32) -> Result<(), Failure> {
        for _ in 0..operations {
            while host.in_flight() >= self.options.depth {
                if host.sim.step(Instant(u64::MAX))? == Step::Idle {
                    return Err(host.sim.stuck());
                }
                host.collect()?;
            }
            host.submit_any(&mut self.random);
            host.collect()?;
        }
        Ok(())
    }

    fn drain(&mut self, host: &mut RawHost) -> Result<(), Failure> {
        host.sim.run_until_answered()?;
        host.collect().map(|_| ())
    }

    /// Stops the units cleanly, takes an image, and starts them again.
    fn stopped(&mut self, host: &mut RawHost) -> Result<(), Failure> {
        self.drain(host)?;
        stop(&mut host.sim)?;
        host.shut_down(self.options);
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        let now = host.sim.now();
        self.image(medium.clone(), now, &host.model, true)?;
        let mut sim = self.mount(medium, now)?;
        sim.run_until_ready()?;
        host.reattach(sim, self.options);
        Ok(())
    }

    fn cut_off(&mut self, host: &RawHost) -> Result<(), Failure> {
        let mut medium = host.sim.medium().clone();
        medium.power_cut_by_chance(&mut self.random);
        self.image(medium, host.sim.now(), &host.model, false)
    }

    /// Another life from here on.
    fn branch(&mut self, host: &RawHost) -> Result<SimMedium, Failure> {
        let mut sim = self.mount(host.sim.medium().clone(), host.sim.now())?;
        sim.run_until_ready()?;
        let mut other = RawHost::attach(sim, host.model.clone(), self.options);
        self.live(&mut other, 40)?;
        self.drain(&mut other)?;
        Ok(other.sim.medium().clone())
    }

    fn image(
        &mut self,
        medium: SimMedium,
        now: Instant,
        model: &Model,
        clean: bool,
    ) -> Result<(), Failure> {
        let mut sim = self.mount(medium.clone(), now)?;
        if sim.run_until_ready()?.damage().is_some() {
            return Err(Failure(format!("false alarm: nothing is damaged, and {:?}", sim.state())));
        }
        let observed = observe(&mut sim)?;
        let mut model = model.clone();
        model.tolerate_errors();
        model.check_recovered(&observed).map_err(Failure)?;
        let mut settled = model.clone();
        settled.settle(&observed);
        let slots = classify(&medium);
        let older = self.sources.older.len();
        self.images.push(Image { medium, now, model, settled, clean, observed, slots, older });
        Ok(())
    }

    fn try_case(&mut self, moment: Moment, case: Case) -> Result<(), Failure> {
        let Case::One(kind, harm) = case else { return Ok(()) };
        let first = self.random.below(self.images.len() as u64) as usize;
        for at in 0..self.images.len() {
            let index = (first + at) % self.images.len();
            let clean = self.images[index].clean;
            if moment == Moment::Stopped && !clean || moment == Moment::Cut && clean {
                continue;
            }
            if let Some(tally) = self.try_image(index, moment, kind, harm)? {
                self.report.matrix.count(moment, case, tally);
                return Ok(());
            }
        }
        Ok(())
    }

    fn try_image(
        &mut self,
        index: usize,
        moment: Moment,
        kind: SlotKind,
        harm: Harm,
    ) -> Result<Option<Tally>, Failure> {
        let (mut medium, mut now) = (self.images[index].medium.clone(), self.images[index].now);
        let mut sim;
        if moment == Moment::Served {
            sim = self.mount(medium, now)?;
            sim.run_until_ready()?;
            medium = sim.medium().clone();
            if !self.damage(index, &mut medium, kind, harm) {
                return Ok(None);
            }
            *sim.medium_mut() = medium;
        } else {
            if !self.damage(index, &mut medium, kind, harm) {
                return Ok(None);
            }
            if moment == Moment::Recovery {
                let mut first = self.mount(medium, now)?;
                for _ in 0..self.random.below(120) {
                    if first.step(Instant(u64::MAX))? == Step::Idle {
                        break;
                    }
                }
                now = first.now();
                medium = first.into_medium();
                medium.power_cut_by_chance(&mut self.random);
            }
            sim = self.mount(medium, now)?;
            if let State::Refused(why) = sim.run_until_mounted()? {
                // Without any record of a lane there is no device.
                if kind == SlotKind::LaneRecord || harm == Harm::Cloned {
                    return Ok(Some(Tally { images: 1, refused: 1, ..Tally::default() }));
                }
                return Err(Failure(format!("cannot be mounted: {why}")));
            }
        }
        let image = &self.images[index];
        let model = if moment == Moment::Served { &image.settled } else { &image.model };
        let observed = observe(&mut sim)?;
        let cloned = harm == Harm::Cloned;
        let checked = if cloned { Ok(()) } else { model.check_recovered(&observed) };
        checked.map_err(Failure)?;
        sim.verify()?;
        let errors = super::lost(&image.observed, &observed);
        let told = sim.run_until_ready()?.damage().is_some();
        if !told && is_lost_unnamed(&sim, &observed) {
            return Err(Failure("blocks are lost, and nobody says so".into()));
        }
        let mut model = model.clone();
        model.settle(&observed);
        stop(&mut sim)?;
        let mut again = self.mount(sim.medium().clone(), sim.now())?;
        again.run_until_ready()?;
        let observed = observe(&mut again)?;
        let checked = if cloned { Ok(()) } else { model.check_recovered(&observed) };
        checked.map_err(|why| Failure(format!("{why} after a clean stop")))?;
        Ok(Some(super::tally(errors, told)))
    }

    fn damage(&mut self, index: usize, medium: &mut SimMedium, kind: SlotKind, harm: Harm) -> bool {
        let geometry = *medium.geometry();
        let image = &self.images[index];
        let Some(slots) = image.slots.get(&kind) else { return false };
        for _ in 0..8 {
            let slot = slots[self.random.below(slots.len() as u64) as usize];
            let extent = if harm.is_of_one_slot() { 0 } else { self.random.below(3) };
            let mut slots = match extent {
                0 => vec![slot],
                1 => page_of(&geometry, slot),
                _ => band_of(&geometry, geometry.block_of(slot)),
            };
            slots.retain(|&slot| medium.peek(slot).is_some());
            let past = Past { sources: &self.sources, older: image.older };
            if !slots.is_empty() && apply(harm, &slots, medium, past, &mut self.random) {
                return true;
            }
        }
        false
    }
}

/// Whether a block cannot be read that is of no raw block with content: who reads all of those that there
/// are does not meet it.
fn is_lost_unnamed(sim: &Sim<RawUnits>, observed: &[Option<u64>]) -> bool {
    let mut named = vec![false; observed.len()];
    for (lba, block) in sim.ftl().written() {
        named[lba.0 as usize..(lba.0 + block.blocks_written) as usize].fill(true);
    }
    observed.iter().zip(named).any(|(stamp, named)| stamp.is_none() && !named)
}

fn stop(sim: &mut Sim<RawUnits>) -> Result<(), Failure> {
    sim.begin_shutdown();
    while !matches!(sim.state(), State::Stopped(_)) {
        if sim.step(Instant(u64::MAX))? == Step::Idle {
            return Err(sim.stuck());
        }
    }
    Ok(())
}

fn classify(medium: &SimMedium) -> BTreeMap<SlotKind, Vec<SlotId>> {
    let mut slots: BTreeMap<SlotKind, Vec<SlotId>> = BTreeMap::new();
    for slot in (0..medium.geometry().slots() as u32).map(SlotId) {
        let Some((oob, content)) = medium.peek(slot).filter(|_| medium.is_readable(slot)) else {
            continue;
        };
        let kind = match &content {
            Content::Meta(_) => SlotKind::LaneRecord,
            Content::Stamp(stamp) => {
                if decode_raw_header(&oob, slot, uuid_crc(UUID), stamp_crc(*stamp)).is_none() {
                    continue;
                }
                SlotKind::RawData
            }
            Content::Empty => continue,
        };
        slots.entry(kind).or_default().push(slot);
    }
    slots
}

/// Reads every page: [`ZERO`] where nothing is written, `None` where what is written cannot be read.
fn observe(sim: &mut Sim<RawUnits>) -> Result<Vec<Option<u64>>, Failure> {
    let (lanes, slots) = (sim.ftl().lanes(), sim.medium().geometry().slots_per_page);
    let mut observed = Vec::new();
    for lba in (0..lanes.logical_blocks()).step_by(slots as usize) {
        sim.read(0, lba, slots);
        sim.run_until_answered()?;
        let finished = sim.take_finished().expect("it was answered");
        match finished.result {
            Ok(()) => observed.extend(sim.stamps(&finished).iter().map(|&stamp| Some(stamp))),
            Err(RequestError::NotWritten) => observed.extend((0..slots).map(|_| Some(ZERO))),
            Err(RequestError::Unreadable | RequestError::Failed) => {
                observed.extend((0..slots).map(|_| None));
            }
            Err(error) => return Err(Failure(format!("a read of page {lba}: {error:?}"))),
        }
        sim.release(finished);
    }
    Ok(observed)
}
