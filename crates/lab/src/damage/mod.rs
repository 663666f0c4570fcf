//! The damage simulation: small devices of every kind live, are stopped or cut off, and then a part of
//! them goes wrong, in every way a part can. What they show after that is held against what they were
//! told, and what they say of themselves against what was done to them.
//!
//! What is promised, precisely. An *image* is a medium without power, or one in use, of which the sound
//! reading is known. After anything at all was done to it:
//! - *right or an error*: each block reads as a version that the [`Model`] allows, or ends in an error.
//!   Never as an older version, never as zeroes unless a trim allows that, never as another block or
//!   another device's; an atomic write that can be read is there whole or not at all;
//! - *told*: where a block cannot be read that could be before, `check` names it, as it reads them all;
//!   beside that the report says that the device is damaged ([`is_told`]) where something is damaged
//!   that no power cut explains and that recovery goes by: after a clean stop, every slot of the last
//!   checkpoint. What nobody goes by any more, superseded data, padding and older checkpoints, may be
//!   told or not;
//! - *no false alarm*: without damage the report says nothing, whatever pages a power cut tore;
//! - *no worse than it is*: where no root record is damaged, the device is mounted;
//! - *still so*: some writes, a clean stop and a mount later all this still holds, what was unreadable and
//!   not written again is not wrong then, and what was written reads.
//!
//! Undecidable, and so not promised: which of two lives of one device with one name is the right one. Where
//! both are mixed ([`Harm::Cloned`]) a block never shows another block, and nothing else is asked.
//!
//! Invariant: a seed and the number of an image decide all that happens to that image.

mod apply;
mod image;
mod kinds;
mod known;
mod lone;
mod raw;
mod shapes;

pub use kinds::{Case, Combination, Field, Harm, Matrix, Moment, SlotKind, Tally};
pub use lone::{LoneOptions, LoneReport, run_lone};
pub use raw::{KINDS as RAW_KINDS, explore_raw_damage};
pub use shapes::Shape;

use crate::crash::CrashOptions;
use crate::driver::{Failure, Plant, Sim, State, Step};
use crate::host::Host;
use crate::medium::SimMedium;
use crate::model::{Model, ZERO};
use crate::parallel::{SeedFailure, for_each_seed, guarded};
use crate::workload::{Action, Op};
use flash::{Geometry, Hint, Instant, Random, SlotId};
use ftl::format::Kind;
use image::{Family, Image, family, header_of, mount};
use known::{Failed, KNOWN, Known};
use std::collections::{BTreeMap, BTreeSet};

/// What to try.
#[derive(Clone, Debug)]
pub struct DamageOptions {
    /// Images of each device.
    pub images: u64,
    /// Only this one of them.
    pub only: Option<u64>,
    /// Nothing but this case.
    pub case: Option<Case>,
    /// Failures of cases that are known not to hold yet are passed over: see [`KNOWN`].
    pub known_pass: bool,
    /// Done to every FTL before its first step.
    pub plant: Plant,
}

impl Default for DamageOptions {
    fn default() -> Self {
        Self { images: IMAGES, only: None, case: None, known_pass: true, plant: Plant::default() }
    }
}

/// What was tried, and what came of it.
#[derive(Clone, Debug, Default)]
pub struct DamageReport {
    /// By moment, kind of slot and kind of damage.
    pub matrix: Matrix,
    /// Images that failed in a way that is known, by what is wrong.
    pub known: BTreeMap<&'static str, u64>,
}

impl DamageReport {
    /// Adds what others tried.
    pub fn add(&mut self, other: &Self) {
        self.matrix.add(&other.matrix);
        for (&reason, &images) in &other.known {
            *self.known.entry(reason).or_default() += images;
        }
    }

    /// Counts an image that failed in a way that is known.
    fn count_known(&mut self, moment: Moment, case: Case, class: &Known) {
        self.matrix.count(moment, case, Tally { images: 1, ..Tally::default() });
        *self.known.entry(class.reason).or_default() += 1;
    }

    /// What is known to fail, and was met more often than that explains.
    pub fn beyond_known(&self) -> Option<String> {
        known::beyond(&self.known, self.matrix.total().images)
    }

    /// The matrix, and what is known to fail.
    pub fn as_text(&self) -> String {
        let known = self.known.iter().map(|(reason, images)| format!("{images} known: {reason}\n"));
        self.matrix.as_text() + &known.collect::<String>()
    }
}

/// Whether the device says that it is damaged, beside what reads say.
pub(crate) fn is_told(sim: &mut Sim) -> Result<bool, Failure> {
    let told = sim.run_until_ready()?.damage().is_some();
    let rebuilt = sim.rebuilt()?.is_some();
    // What was found and mended late is counted.
    Ok(rebuilt || told || sim.ftl().counter("slots_damaged") > 0)
}

struct Tester<'a> {
    crash: &'a CrashOptions,
    family: &'a Family,
    seed: u64,
    /// What the slots were that the last image had damaged.
    touched: Vec<SlotKind>,
    report: DamageReport,
}

/// What is done to one image.
struct Plan<'a> {
    image: &'a Image,
    moment: Moment,
    case: Case,
    random: Random,
    touched: Vec<SlotKind>,
}

/// Damages one device in many ways; the first failure ends it.
pub fn explore_damage(seed: u64, options: &DamageOptions) -> Result<DamageReport, Failure> {
    explore(seed, options, &mut |failure| Err(failure))
}

/// The same, but `failed` judges what fails: it goes on if that does.
pub fn explore(
    seed: u64,
    options: &DamageOptions,
    failed: &mut dyn FnMut(Failure) -> Result<(), Failure>,
) -> Result<DamageReport, Failure> {
    let shape = Shape::of_seed(seed);
    let mut crash = shape.options(seed);
    crash.plant = options.plant.clone();
    let family = family(shape, seed, &crash)
        .map_err(|Failure(why)| Failure(format!("{shape:?}, before any damage: {why}")))?;
    let report = DamageReport::default();
    let mut tester = Tester { crash: &crash, family: &family, seed, touched: Vec::new(), report };
    let mut cases = Matrix::default().missing(&Shape::KINDS, true);
    cases.retain(|&(_, case)| options.case.is_none_or(|only| only == case));
    for number in (0..options.images).filter(|&number| options.only.is_none_or(|it| it == number)) {
        let (moment, case) = cases[case_at(seed, number, cases.len())];
        let Err(Failure(why)) = guarded(|| tester.try_case(number, moment, case)) else { continue };
        let touched = &tester.touched;
        let holds = |class: &&Known| (class.holds)(&Failed { moment, touched, why: &why });
        let class = KNOWN.iter().find(holds).filter(|_| options.known_pass);
        if let Some(class) = class {
            tester.report.count_known(moment, case, class);
        } else {
            failed(Failure(format!("{shape:?}, image {number}, {moment:?}, {case:?}: {why}")))?;
        }
    }
    Ok(tester.report)
}

/// The case of an image: the seeds of one shape walk through all of them together, each on from where the
/// one before ends.
fn case_at(seed: u64, number: u64, cases: usize) -> usize {
    // Of a size that no number of cases shares a factor with: each of them comes once in a round.
    const STRIDE: u64 = 1009;
    let round = seed / Shape::ALL.len() as u64;
    ((round * IMAGES + number) * STRIDE % cases as u64) as usize
}

/// Images of a device, unless said otherwise.
const IMAGES: u64 = 420;

/// Explores `seeds` on `threads` threads; the first failure ends it, with its seed.
pub fn explore_seeds(
    seeds: std::ops::Range<u64>,
    threads: usize,
    options: &DamageOptions,
) -> Result<DamageReport, SeedFailure> {
    let reports = for_each_seed(seeds, threads, |seed| explore_damage(seed, options))?;
    let mut total = DamageReport::default();
    reports.iter().for_each(|report| total.add(report));
    Ok(total)
}

impl Tester<'_> {
    fn try_case(&mut self, number: u64, moment: Moment, case: Case) -> Result<(), Failure> {
        self.touched.clear();
        let mut random = Random::new(self.seed << 32 ^ number << 8 ^ 0xda);
        let wanted = |image: &&Image| match moment {
            Moment::Stopped => image.clean,
            Moment::Cut => !image.clean,
            Moment::Recovery | Moment::Served => true,
        };
        let images: Vec<&Image> = self.family.images.iter().filter(wanted).collect();
        // The first that has what is to be damaged.
        let first = random.below(images.len() as u64) as usize;
        for at in 0..images.len() {
            let image = images[(first + at) % images.len()];
            let (touched, random) = (Vec::new(), random.clone());
            let mut plan = Plan { image, moment, case, random, touched };
            let tally = match moment {
                Moment::Served => self.served(&mut plan),
                _ => self.stored(&mut plan),
            };
            self.touched = plan.touched;
            if let Some(tally) = tally? {
                self.report.matrix.count(moment, case, tally);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Damages a medium without power, mounts it, and looks. `None` if there is nothing to damage.
    fn stored(&self, plan: &mut Plan<'_>) -> Result<Option<Tally>, Failure> {
        let image = plan.image;
        let mut medium = image.medium.clone();
        if !self.damage(plan, &mut medium) {
            return Ok(None);
        }
        let mut now = image.now;
        if plan.moment == Moment::Recovery {
            let mut sim = mount(self.crash, medium, now)?;
            for _ in 0..plan.random.below(250) {
                if sim.step(Instant(u64::MAX))? == Step::Idle {
                    break;
                }
            }
            now = sim.now();
            medium = sim.into_medium();
            medium.power_cut_by_chance(&mut plan.random);
            if plan.random.chance(0.3) {
                self.damage(plan, &mut medium);
            }
        }
        let must_tell = self.must_tell(plan, &medium);
        let mut sim = mount(self.crash, medium, now)?;
        if let Some(refused) = ready_or_refused(&mut sim)? {
            return self.refused(plan, &sim, &refused).map(Some);
        }
        let observed = sim.read_all(image.observed.len() as u32)?;
        let told = is_told(&mut sim)?;
        sim.verify()?;
        self.judge(plan, &image.model, &observed, "")?;
        let errors = lost(&image.observed, &observed);
        if must_tell && !told && errors == 0 {
            return Err(Failure("the checkpoint is damaged, and nobody says so".into()));
        }
        let mut model = image.model.clone();
        model.settle(&observed);
        self.live_on(plan, sim, model)?;
        Ok(Some(tally(errors, told)))
    }

    /// Damages the medium of a device that serves.
    fn served(&self, plan: &mut Plan<'_>) -> Result<Option<Tally>, Failure> {
        let image = plan.image;
        let mut sim = mount(self.crash, image.medium.clone(), image.now)?;
        sim.run_until_ready()?;
        for _ in 0..[0, 30, 500][plan.random.below(3) as usize] {
            sim.step(Instant(u64::MAX))?;
        }
        let mut medium = sim.medium().clone();
        if !self.damage(plan, &mut medium) {
            return Ok(None);
        }
        // What was nothing in the image may be of the checkpoint by now.
        let geometry = *medium.geometry();
        let of_checkpoint = sim.ftl().checkpoint_bands();
        let mut slots = of_checkpoint.iter().flat_map(|&band| apply::band_of(&geometry, band));
        if slots.any(|slot| apply::shows(sim.medium(), slot) != apply::shows(&medium, slot)) {
            plan.touched.push(SlotKind::Map);
        }
        *sim.medium_mut() = medium;
        let blocks = image.observed.len() as u32;
        let observed = sim.read_all(blocks)?;
        self.judge(plan, &image.settled, &observed, "while it is served")?;
        let errors = lost(&image.observed, &observed);
        let mut host = Host::new(sim, image.settled.clone());
        host.refusals_are_legal = self.may_lose_map(plan);
        self.churn(plan, &mut host, blocks / 3)?;
        let told = is_told(&mut host.sim)?;
        let (sim, model) = (host.sim, host.model);
        self.live_on(plan, sim, model)?;
        Ok(Some(tally(errors, told)))
    }

    /// Every block reads right or not at all.
    fn judge(
        &self,
        plan: &Plan<'_>,
        model: &Model,
        observed: &[Option<u64>],
        when: &str,
    ) -> Result<(), Failure> {
        if !is_cloned(plan.case) {
            let checked = model.check_recovered(observed);
            return checked.map_err(|why| Failure(format!("{why} {when}")));
        }
        for (lba, stamp) in (0..).zip(observed) {
            let own = |&of: &u64| of == ZERO || of as u32 == lba;
            if !stamp.as_ref().is_none_or(own) {
                return Err(Failure(format!("block {lba} shows {stamp:?} {when}")));
            }
        }
        Ok(())
    }

    /// Whether a part of the checkpoint is damaged, and no power cut explains it.
    fn must_tell(&self, plan: &Plan<'_>, medium: &SimMedium) -> bool {
        let Case::One(kind, harm) = plan.case else { return false };
        let gone_by = plan.moment == Moment::Stopped && kind.is_of_checkpoint();
        if !gone_by || matches!(harm, Harm::EraseCount | Harm::PointerLarge | Harm::Cloned) {
            return false;
        }
        let image = plan.image;
        let is_damaged =
            |slot: &SlotId| apply::shows(&image.medium, *slot) != apply::shows(medium, *slot);
        let of_kind = |kind| image.slots.get(&kind).into_iter().flatten().copied();
        let of_checkpoint = SlotKind::ALL.into_iter().filter(|kind| kind.is_of_checkpoint());
        // What the block's record forgets may be padding.
        let damaged: Vec<SlotId> = of_checkpoint.flat_map(of_kind).filter(is_damaged).collect();
        // Where the stop itself is cut off, a footer is missing, and there is no seal behind it. On a medium
        // that is not durable at once there may be anything in its place.
        let geometry = medium.geometry();
        let leaves_nothing = geometry.durable_at_completion && !geometry.is_tiered();
        let wrong = |slot: &SlotId| medium.is_readable(*slot) && leaves_nothing;
        let footers: Vec<SlotId> = of_kind(SlotKind::Footer).collect();
        if footers.iter().any(|slot| !is_damaged(slot)) {
            let sealed = is_sealed(medium, &footers);
            return damaged.iter().any(|slot| sealed || !footers.contains(slot) || wrong(slot));
        }
        // Without a footer it looks like one that a cut has left unfinished, also where an erase was lost
        // and shows what was there before.
        let stale = matches!(harm, Harm::Stale | Harm::PointerStale);
        !stale && damaged.iter().any(wrong)
    }

    /// Without any root record there is no device.
    fn refused(&self, plan: &Plan<'_>, sim: &Sim, why: &str) -> Result<Tally, Failure> {
        let roots = plan.image.slots.get(&SlotKind::Root).into_iter().flatten();
        let mut sound = roots.filter(|&&slot| is_root(sim.medium(), slot));
        match sound.next() {
            Some(root) if !is_cloned(plan.case) => Err(Failure(format!(
                "cannot be mounted, though the root record in slot {} is sound: {why}",
                root.0
            ))),
            _ => Ok(Tally { images: 1, refused: 1, ..Tally::default() }),
        }
    }

    /// A part of the map that only lies in a checkpoint can be lost while it serves: then nothing is written
    /// before the next mount, which makes up for it.
    fn may_lose_map(&self, plan: &Plan<'_>) -> bool {
        let of_map = |kind: &SlotKind| kind.is_of_checkpoint() || *kind == SlotKind::OldCheckpoint;
        self.crash.settings.map_bytes > 0
            && plan.moment == Moment::Served
            && plan.touched.iter().any(of_map)
    }

    /// Some writes and reads by a host that knows what it may see.
    fn churn(&self, plan: &mut Plan<'_>, host: &mut Host, writes: u32) -> Result<(), Failure> {
        let blocks = u64::from(host.model.logical_blocks());
        for _ in 0..writes {
            let action = match plan.random.below(10) {
                0 => Action::Trim { fua: false },
                1 if !is_cloned(plan.case) => Action::Read,
                _ => Action::Write { fua: false, atomic: false },
            };
            let lba = plan.random.below(blocks) as u32;
            host.submit(Op { action, lba, blocks: 1 }, Hint::default());
            if plan.random.chance(0.2) {
                host.drain()?;
            }
        }
        host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
        host.drain()?;
        host.sim.verify()
    }

    /// Some writes, a clean stop, and a mount later.
    fn live_on(&self, plan: &mut Plan<'_>, sim: Sim, model: Model) -> Result<(), Failure> {
        let mut host = Host::new(sim, model);
        if host.read_only() {
            return Ok(());
        }
        host.refusals_are_legal = self.may_lose_map(plan);
        let context = |what: &'static str| move |Failure(why)| Failure(format!("{what}: {why}"));
        self.churn(plan, &mut host, 8).map_err(context("writes after it"))?;
        host.sim.begin_shutdown();
        while !matches!(host.sim.state(), State::Stopped(_)) {
            if host.sim.step(Instant(u64::MAX))? == Step::Idle {
                return Err(host.sim.stuck());
            }
        }
        let stopped = *host.sim.state() == State::Stopped(true);
        if !stopped && !self.may_lose_map(plan) {
            return Err(Failure(format!("a clean stop ended as {:?}", host.sim.state())));
        }
        if stopped {
            host.model.shut_down();
        }
        let (now, model) = (host.sim.now(), host.model);
        let mut again = mount(self.crash, host.sim.into_medium(), now)?;
        if let Some(refused) = ready_or_refused(&mut again)? {
            let slots = again.medium().geometry().slots() as u32;
            if !stopped && !(0..slots).any(|slot| is_root(again.medium(), SlotId(slot))) {
                // It could write none, and those that there were are damaged.
                return Ok(());
            }
            return Err(Failure(format!("after a clean stop it cannot be mounted: {refused}")));
        }
        let observed = again.read_all(model.logical_blocks())?;
        self.judge(plan, &model, &observed, "after a clean stop")?;
        again.verify()
    }

    fn past(&self, image: &Image) -> apply::Past<'_> {
        apply::Past { sources: &self.family.sources, older: image.older }
    }

    /// Does what the plan says; false if nothing came of it.
    fn damage(&self, plan: &mut Plan<'_>, medium: &mut SimMedium) -> bool {
        match plan.case {
            Case::One(kind, harm) => self.damage_one(plan, medium, kind, harm),
            Case::Several(combination) => self.damage_several(plan, medium, combination),
        }
    }

    fn damage_one(
        &self,
        plan: &mut Plan<'_>,
        medium: &mut SimMedium,
        kind: SlotKind,
        harm: Harm,
    ) -> bool {
        let geometry = *medium.geometry();
        let Some(slots) = plan.image.slots.get(&kind) else { return false };
        // It may take a few before one is found that held something else once.
        for _ in 0..8 {
            let slot = slots[plan.random.below(slots.len() as u64) as usize];
            let extent = if harm.is_of_one_slot() { 0 } else { plan.random.below(5) };
            let slots = match extent {
                0 => vec![slot],
                1 | 2 => apply::page_of(&geometry, slot),
                3 => apply::pages_of(&geometry, slot, 2 + plan.random.below(3) as u32),
                _ => apply::band_of(&geometry, geometry.block_of(slot)),
            };
            // Beyond what was written there is nothing to damage, but where that is the point.
            let written = |slot: &SlotId| medium.peek(*slot).is_some();
            let slots: Vec<_> =
                slots.into_iter().filter(|at| kind == SlotKind::Blank || written(at)).collect();
            // What is kept of a block is about all of it.
            let whole = harm.is_of_record().then(|| band_slots(&geometry, slot));
            let touched = whole.as_ref().unwrap_or(&slots);
            plan.touched.extend(touched.iter().filter_map(|&slot| plan.image.kind_of(slot)));
            let random = &mut plan.random;
            if !slots.is_empty()
                && apply::apply(harm, &slots, medium, self.past(plan.image), random)
            {
                return true;
            }
        }
        false
    }

    fn damage_several(
        &self,
        plan: &mut Plan<'_>,
        medium: &mut SimMedium,
        combination: Combination,
    ) -> bool {
        let geometry = *medium.geometry();
        let all = |kind: SlotKind| plan.image.slots.get(&kind).cloned().unwrap_or_default();
        let (maps, mut data) = (all(SlotKind::Map), all(SlotKind::Data));
        data.extend(all(SlotKind::FastData));
        if data.is_empty() || maps.is_empty() {
            return false;
        }
        let mut random = plan.random.clone();
        plan.random.next_u64();
        if combination == Combination::Tails && !self.crash.device.manner.has_records() {
            return false;
        }
        let pages = [1, 2, 4, 8, 40][random.below(5) as usize];
        let mut one = |of: &[SlotId]| of[random.below(of.len() as u64) as usize];
        let (map, some) = (one(&maps), one(&data));
        let many: Vec<_> = (0..5).map(|_| one(&data)).collect();
        let gone =
            [Harm::Unreadable, Harm::Scrambled, Harm::Zeroed, Harm::Data][random.below(4) as usize];
        let bit = Harm::Oob([Field::Sum, Field::Order, Field::Lba][random.below(3) as usize]);
        let band = apply::band_of(&geometry, geometry.block_of(some));
        let steps: Vec<(Harm, Vec<SlotId>)> = match combination {
            Combination::MapAndBand => vec![(gone, vec![map]), (gone, band)],
            Combination::MapAndData => vec![(gone, vec![map]), (gone, vec![some])],
            Combination::MapsAndBandOob => vec![(bit, maps), (bit, band)],
            Combination::Roots => vec![(gone, all(SlotKind::Root))],
            Combination::Footers => vec![(gone, all(SlotKind::Footer))],
            Combination::FootersAndMap => {
                vec![(gone, all(SlotKind::Footer)), (gone, vec![map])]
            }
            Combination::RootAndData => {
                vec![(gone, all(SlotKind::Root)[..1].to_vec()), (gone, vec![some])]
            }
            Combination::TableAndData => vec![(gone, all(SlotKind::BandTable)), (gone, vec![some])],
            Combination::Records => {
                let records = [SlotKind::Trim, SlotKind::Commit].map(all).concat();
                vec![(gone, records)]
            }
            Combination::ManyData => vec![(gone, many)],
            Combination::MapAndMoved => vec![(gone, vec![map]), (Harm::Moved, vec![some])],
            Combination::Tail => vec![(Harm::Erased, newest(medium, band, pages))],
            Combination::Tails => {
                let all = (0..geometry.slots() as u32).map(SlotId).collect();
                vec![(Harm::Erased, newest(medium, all, pages))]
            }
        };
        let mut done = false;
        for (harm, mut slots) in steps {
            // A device that serves may have erased some meanwhile.
            slots.retain(|&slot| medium.peek(slot).is_some());
            if slots.is_empty() {
                continue;
            }
            let past = self.past(plan.image);
            plan.touched.extend(slots.iter().filter_map(|&slot| plan.image.kind_of(slot)));
            done |= apply::apply(harm, &slots, medium, past, &mut random);
        }
        done
    }
}

/// Whether a page behind one of the footers, and what shares cells with them, says that both were durable.
fn is_sealed(medium: &SimMedium, footers: &[SlotId]) -> bool {
    let geometry = medium.geometry();
    let pages = geometry.pages_per_block;
    footers.iter().any(|&footer| {
        let block = geometry.block_of(footer);
        let of_band = footers.iter().filter(|&&other| geometry.block_of(other) == block);
        let last = of_band
            .map(|&other| geometry.pairing.last_partner(geometry.page_in_block(other), pages));
        let seal = last.max().map_or(pages, |last| last + 1);
        let header = (seal < pages).then(|| header_of(medium, geometry.slot(block, seal, 0)));
        header.flatten().is_some_and(|(header, _)| header.kind == Kind::Pad)
    })
}

/// Of these slots those in the pages that were programmed last, but what belongs to a checkpoint.
fn newest(medium: &SimMedium, mut slots: Vec<SlotId>, pages: usize) -> Vec<SlotId> {
    let order = |slot: SlotId| {
        let header = header_of(medium, slot).map(|(header, _)| header);
        header.filter(|header| !header.kind.is_of_checkpoint()).map(|header| header.order)
    };
    let orders: BTreeSet<u64> = slots.iter().filter_map(|&slot| order(slot)).collect();
    let last: BTreeSet<u64> = orders.into_iter().rev().take(pages).collect();
    slots.retain(|&slot| order(slot).is_some_and(|order| last.contains(&order)));
    slots
}

/// Whether a slot holds a sound root record.
fn is_root(medium: &SimMedium, slot: SlotId) -> bool {
    header_of(medium, slot).is_some_and(|(header, _)| header.kind == Kind::Root)
}

fn band_slots(geometry: &Geometry, slot: SlotId) -> Vec<SlotId> {
    apply::band_of(geometry, geometry.block_of(slot))
}

/// Steps until a mount has ended; says why, if it was refused.
fn ready_or_refused(sim: &mut Sim) -> Result<Option<String>, Failure> {
    Ok(match sim.run_until_mounted()? {
        State::Refused(error) => Some(error.to_string()),
        _ => None,
    })
}

/// Two lives of one device are mixed up.
fn is_cloned(case: Case) -> bool {
    matches!(case, Case::One(_, Harm::Cloned))
}

/// Blocks that could be read before and cannot now.
fn lost(before: &[Option<u64>], after: &[Option<u64>]) -> u64 {
    before.iter().zip(after).filter(|(before, after)| before.is_some() && after.is_none()).count()
        as u64
}

fn tally(errors: u64, told: bool) -> Tally {
    Tally { images: 1, errors: u64::from(errors > 0), told: u64::from(told), refused: 0 }
}
