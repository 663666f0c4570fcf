//! The crash-point explorer for raw units: as [`crate::crash`] does it for the FTL. The power is cut
//! after every step with every torn outcome, each image is recovered and held against the model; of
//! some the recovery is cut again, and some live on. What a host does between the cuts, and what it may
//! find after them, is a [`CrashHost`]'s: of places ([`crate::raw_host`]) or of IDs ([`crate::raw_ids`]).
//!
//! Invariants: as in [`crate::crash`].

use crate::crash::{CrashReport, Fates};
use crate::device::{Manner, Small};
use crate::driver::{Failure, Sim, State, Step};
use crate::medium::SimMedium;
use crate::model::Model;
use crate::raw_host::{RawCounts, RawHost};
use crate::raw_ids::{IdHost, IdHostCounts, IdModel};
use flash::{Instant, MICROSECOND, Pairing, Random};
use ftl::Mutant;
use ftl::raw::{EraseTime, RawFormat, RawSettings, RawUnits, WriteUnit};
use nand::Faults;
use std::marker::PhantomData;

/// Steps of a recovery that are cut again.
const RECOVERY_STEPS_MAX: u32 = 300;

/// What to explore. [`RawCrashOptions::of_seed`] draws one.
#[derive(Clone, Debug)]
pub struct RawCrashOptions {
    /// The device.
    pub device: Small,
    /// What goes wrong with it by itself.
    pub faults: Faults,
    /// Units of a lane.
    pub gang: u32,
    /// Share of blocks kept back.
    pub spare: f64,
    /// Settings of the raw units.
    pub settings: RawSettings,
    /// Operations before the first cut.
    pub operations_before: u32,
    /// Operations with cuts.
    pub operations: u32,
    /// Operations in flight.
    pub depth: u32,
    /// Most images of one cut.
    pub images_per_cut: u32,
    /// Of so many images one has its recovery cut, after each step.
    pub recut_every: u64,
    /// Of so many images one lives on.
    pub live_on_every: u64,
    /// A bug in the raw units that the exploration must find.
    pub mutant: Option<Mutant>,
}

impl RawCrashOptions {
    /// A device, settings and a length, all drawn from `seed`.
    pub fn of_seed(seed: u64, manner: Manner) -> Self {
        let mut random = Random::new(seed ^ 0x7261_7700);
        let gang = 1 + random.below(2) as u32;
        let device = Small {
            manner,
            units: 2,
            blocks_per_unit: 7 + random.below(3) as u32,
            pages_per_block: if gang == 1 { 8 } else { 4 },
            slots_per_page: 1 + random.below(2) as u32,
            open_blocks_max: 0,
        };
        let settings = RawSettings {
            write: [WriteUnit::Block, WriteUnit::Page][random.below(2) as usize],
            erase: [EraseTime::Now, EraseTime::Background][random.below(2) as usize],
            idle_ns: 300 * MICROSECOND,
            ..RawSettings::default()
        };
        let reserved = if gang == 1 { 3.0 } else { 2.0 };
        Self {
            device,
            faults: Faults::default(),
            gang,
            spare: (reserved + random.below(2) as f64) / f64::from(device.blocks_per_unit),
            settings,
            operations_before: [0, 40, 200][random.below(3) as usize],
            operations: 30,
            depth: 1 + random.below(4) as u32,
            images_per_cut: if manner.forgets() { 12 } else { 48 },
            recut_every: 251,
            live_on_every: 23,
            mutant: None,
        }
    }
}

/// A host of raw units, and the model of what it may find.
pub trait CrashHost: Sized {
    /// What it may find.
    type Model: Clone;
    /// What it found after a recovery.
    type Seen;

    /// A host at units that are ready and hold what `model` says.
    fn attach(sim: Sim<RawUnits>, model: Self::Model, options: &RawCrashOptions) -> Self;
    /// Goes on with the same units, mounted again.
    fn reattach(&mut self, sim: Sim<RawUnits>, options: &RawCrashOptions);
    /// The units.
    fn sim(&mut self) -> &mut Sim<RawUnits>;
    /// What it may find.
    fn model(&mut self) -> &mut Self::Model;
    /// Submits an operation of any kind.
    fn submit_any(&mut self, random: &mut Random);
    /// Operations without an answer.
    fn in_flight(&self) -> u32;
    /// Takes the answers that have come and judges them. True if one of them changed what a power
    /// cut may leave.
    fn collect(&mut self) -> Result<bool, Failure>;
    /// Reads everything and judges it.
    fn read_back(&mut self) -> Result<(), Failure>;
    /// Everything is durable now.
    fn shut_down(&mut self, options: &RawCrashOptions);
    /// What units show that are ready, and how many blocks that is.
    fn observe(sim: &mut Sim<RawUnits>) -> Result<(Self::Seen, u64), Failure>;
    /// `Err` says what of it may not be.
    fn check(model: &Self::Model, seen: &Self::Seen) -> Result<(), String>;
    /// From now on it may only be as it was seen.
    fn settle(model: &mut Self::Model, seen: &Self::Seen);
}

struct Explorer<'a, H> {
    options: &'a RawCrashOptions,
    random: Random,
    report: CrashReport,
    host: PhantomData<H>,
}

/// Explores one seed with a host of places. With `operations` 0 it only runs, without a cut.
pub fn explore_raw(
    seed: u64,
    options: &RawCrashOptions,
) -> Result<(CrashReport, RawCounts), Failure> {
    let whole = options.settings.write == WriteUnit::Block;
    let model = |sim: &Sim<RawUnits>| {
        let geometry = sim.medium().geometry();
        let safe_pages = geometry.pairing == Pairing::None || whole;
        let durable_at_reply = geometry.durable_at_completion && safe_pages;
        let mut model = Model::new(sim.ftl().lanes().logical_blocks(), durable_at_reply);
        if options.faults.uncorrectable > 0.0 {
            model.tolerate_unreadable();
        }
        model
    };
    let (report, host) = explore_host::<RawHost>(seed, options, model)?;
    Ok((report, host.counts))
}

/// Explores one seed with a host of IDs.
pub fn explore_ids(
    seed: u64,
    options: &RawCrashOptions,
) -> Result<(CrashReport, IdHostCounts), Failure> {
    let (report, host) = explore_host::<IdHost>(seed, options, |_| IdModel::default())?;
    Ok((report, host.counts))
}

fn explore_host<H: CrashHost>(
    seed: u64,
    options: &RawCrashOptions,
    model: impl FnOnce(&Sim<RawUnits>) -> H::Model,
) -> Result<(CrashReport, H), Failure> {
    let medium = options.device.build(options.faults.clone()).map_err(Failure)?;
    let (random, report) = (Random::new(seed), CrashReport::default());
    let mut explorer = Explorer::<H> { options, random, report, host: PhantomData };
    let sim = explorer.format(medium, seed)?;
    let model = model(&sim);
    let mut host = H::attach(sim, model, options);
    explorer.run(&mut host, options.operations_before, false)?;
    host.sim().verify()?;
    explorer.run(&mut host, options.operations, true)?;
    host.read_back()?;
    host.sim().verify()?;
    explorer.remount(&mut host)?;
    host.read_back()?;
    Ok((explorer.report, host))
}

impl<H: CrashHost> Explorer<'_, H> {
    fn mount(&self, medium: SimMedium, now: Instant) -> Result<Sim<RawUnits>, Failure> {
        let settings = self.options.settings.clone();
        let mut sim = Sim::mount_raw(medium, self.options.gang, settings, now)?;
        self.plant(&mut sim);
        Ok(sim)
    }

    fn plant(&self, sim: &mut Sim<RawUnits>) {
        if let Some(mutant) = self.options.mutant {
            sim.ftl_mut().set_mutant(mutant);
        }
    }

    /// Formats; a device whose format was cut either is empty or says it is not formatted.
    fn format(&mut self, medium: SimMedium, seed: u64) -> Result<Sim<RawUnits>, Failure> {
        let format = RawFormat {
            gang: self.options.gang,
            spare: self.options.spare,
            uuid: u128::from(seed) << 64 | 7,
            label: b"raw".to_vec(),
        };
        let settings = self.options.settings.clone();
        let mut sim = Sim::format_raw(medium, format, settings, Instant(0))?;
        self.plant(&mut sim);
        while *sim.state() == State::Starting {
            match sim.step(Instant(u64::MAX))? {
                Step::Idle => return Err(sim.stuck()),
                Step::Change if self.random.chance(0.2) => {
                    let mut image = sim.medium().clone();
                    image.power_cut_by_chance(&mut self.random);
                    let mut cut = self.mount(image, sim.now())?;
                    let ready = matches!(cut.run_until_mounted()?, State::Ready(_));
                    if ready && cut.ftl().written().next().is_some() {
                        return Err(Failure("a cut format left data".into()));
                    }
                }
                _ => {}
            }
        }
        sim.run_until_ready()?;
        Ok(sim)
    }

    /// Runs `operations` operations, with clean remounts among them; with `cuts` the power is cut
    /// after every step that changes what a cut leaves.
    fn run(&mut self, host: &mut H, operations: u32, cuts: bool) -> Result<(), Failure> {
        let mut submitted = 0;
        while submitted < operations || host.in_flight() > 0 {
            while submitted < operations && host.in_flight() < self.options.depth {
                host.submit_any(&mut self.random);
                submitted += 1;
            }
            self.step(host, cuts)?;
            if self.random.chance(0.002) {
                self.drain(host)?;
                self.remount(host)?;
            }
            if host.in_flight() == 0 && self.random.chance(0.05) {
                // Time for erases in the background.
                let until = host.sim().now() + 1_000 * MICROSECOND;
                while host.sim().now() < until {
                    let step = host.sim().step(until)?;
                    if cuts && step == Step::Change {
                        self.cut(host)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn drain(&mut self, host: &mut H) -> Result<(), Failure> {
        while host.in_flight() > 0 {
            self.step(host, false)?;
        }
        Ok(())
    }

    fn step(&mut self, host: &mut H, cuts: bool) -> Result<(), Failure> {
        // What was refused at once, and what that leaves to be done, comes before time goes on.
        host.collect()?;
        if host.in_flight() == 0 {
            return Ok(());
        }
        let step = host.sim().step(Instant(u64::MAX))?;
        let promised = host.collect()?;
        match step {
            Step::Idle => Err(host.sim().stuck()),
            Step::Change if cuts => self.cut(host),
            Step::Reply if cuts && promised => self.cut(host),
            _ => Ok(()),
        }
    }

    /// A clean shutdown and the mount after it: nothing is lost, and open raw blocks stay open.
    fn remount(&mut self, host: &mut H) -> Result<(), Failure> {
        let before: Vec<_> = host.sim().ftl().written().collect();
        host.sim().begin_shutdown();
        while !matches!(host.sim().state(), State::Stopped(_)) {
            if host.sim().step(Instant(u64::MAX))? == Step::Idle {
                return Err(host.sim().stuck());
            }
        }
        if *host.sim().state() != State::Stopped(true) {
            return Err(Failure("a clean shutdown left something volatile".into()));
        }
        host.shut_down(self.options);
        let mut sim = self.mount(host.sim().medium().clone(), host.sim().now())?;
        let report = sim.run_until_ready()?;
        if !report.clean {
            return Err(Failure(format!("the mount after a clean shutdown says {report:?}")));
        }
        let after: Vec<_> = sim.ftl().written().collect();
        // A torn raw block may show more than before: pages that were programmed when it failed.
        let torn = |all: &[(_, ftl::raw::RawBlockState)]| {
            all.iter().filter(|(_, block)| block.state != "torn").copied().collect::<Vec<_>>()
        };
        let (before, after) = (torn(&before), torn(&after));
        if before != after {
            return Err(Failure(format!("a clean remount turned {before:?} into {after:?}")));
        }
        host.reattach(sim, self.options);
        Ok(())
    }

    /// Cuts the power here, with every fate of what is in flight.
    fn cut(&mut self, host: &mut H) -> Result<(), Failure> {
        self.report.cuts += 1;
        let mut fates = Fates::new();
        let now = host.sim().now();
        for image_index in 0..self.options.images_per_cut {
            let mut image = host.sim().medium().clone();
            image.power_cut(&mut |of| fates.choose(of));
            let context = |Failure(why): Failure| {
                Failure(format!(
                    "power cut at {} ns, image {image_index} ({:?}): {why}",
                    now.0, fates.choices
                ))
            };
            self.recover(image, host.model(), now).map_err(context)?;
            if !fates.go_on(self.options.images_per_cut, &mut self.random) {
                break;
            }
        }
        Ok(())
    }

    fn recover(&mut self, image: SimMedium, model: &H::Model, now: Instant) -> Result<(), Failure> {
        self.report.images += 1;
        let recut = self.report.images.is_multiple_of(self.options.recut_every);
        let live_on = self.report.images.is_multiple_of(self.options.live_on_every);
        let again = recut.then(|| image.clone());
        let mut sim = self.mount(image, now)?;
        sim.run_until_ready()?;
        let (seen, blocks) = H::observe(&mut sim)?;
        self.report.blocks_read += blocks;
        H::check(model, &seen).map_err(Failure)?;
        sim.verify()?;
        if let Some(image) = again {
            self.cut_recovery(image, model, &seen, now)?;
        }
        if live_on {
            self.live_on(sim, model, &seen)?;
        }
        Ok(())
    }

    /// Recovers the image once more, with what it does by itself after it is ready, and cuts the
    /// power at each step of that. Every further recovery must read as the first one did.
    fn cut_recovery(
        &mut self,
        image: SimMedium,
        model: &H::Model,
        seen: &H::Seen,
        now: Instant,
    ) -> Result<(), Failure> {
        let mut model = model.clone();
        H::settle(&mut model, seen);
        let mut sim = self.mount(image, now)?;
        for _ in 0..RECOVERY_STEPS_MAX {
            match sim.step(Instant(u64::MAX))? {
                Step::Idle => break,
                Step::Change => self.cut_once_more(&sim, &model)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn cut_once_more(&mut self, sim: &Sim<RawUnits>, model: &H::Model) -> Result<(), Failure> {
        let mut sim = self.cut_at_random(sim)?;
        let (seen, _) = H::observe(&mut sim)?;
        self.report.recuts += 1;
        let again = |why| Failure(format!("cut again in recovery: {why}"));
        H::check(model, &seen).map_err(again)
    }

    fn cut_at_random(&mut self, sim: &Sim<RawUnits>) -> Result<Sim<RawUnits>, Failure> {
        let mut image = sim.medium().clone();
        image.power_cut_by_chance(&mut self.random);
        self.report.images += 1;
        let mut sim = self.mount(image, sim.now())?;
        sim.run_until_ready()?;
        Ok(sim)
    }

    /// A recovered device must keep what it showed, and still work.
    fn live_on(
        &mut self,
        sim: Sim<RawUnits>,
        model: &H::Model,
        seen: &H::Seen,
    ) -> Result<(), Failure> {
        self.report.lived_on += 1;
        let mut model = model.clone();
        H::settle(&mut model, seen);
        let context = |what: &'static str| move |why| Failure(format!("{what}: {why}"));
        let mut again = self.cut_at_random(&sim)?;
        let (second, _) = H::observe(&mut again)?;
        H::check(&model, &second).map_err(context("two recoveries disagree"))?;
        let mut host = H::attach(sim, model, self.options);
        self.run(&mut host, 12, false)?;
        let mut again = self.cut_at_random(host.sim())?;
        let (third, _) = H::observe(&mut again)?;
        H::check(host.model(), &third).map_err(context("cut after a recovery"))?;
        host.sim().verify()?;
        self.remount(&mut host)?;
        host.read_back()
    }
}
