//! The crash-point explorer: runs a small device through operations of every kind, cuts the power
//! after every single step of the medium with every torn outcome of what is in flight, recovers
//! each image with a fresh FTL and holds everything it reads against the model.
//!
//! Of some images the recovery itself is cut, after each of its steps; and some live on: they are
//! recovered twice (both must agree), written, flushed, cut again, shut down and mounted.
//!
//! Invariants:
//! - An image is a clone: nothing an image does reaches the run it was taken from.
//! - A seed decides everything, so a failure is repeated by its seed.

use crate::checker::verify_valid;
use crate::device::{Manner, Small};
use crate::driver::{Failure, Plant, Sim, State, Step};
use crate::host::Host;
use crate::medium::SimMedium;
use crate::model::Model;
use crate::workload::{Action, Arrival, Generator, Op, Pattern, Workload, fast_shares};
use flash::{BlockId, FastTier, Hint, Instant, MICROSECOND, Pairing, Random};
use ftl::{DamagedSlot, FormatOptions, MountReport, PolicyNames, Rebuilt, Settings};
use nand::Faults;

/// Steps of a recovery, and of what follows it by itself, that are cut again.
const RECOVERY_STEPS_MAX: u32 = 400;

/// Of so many images with a part of the map in DRAM, one has its valid slots counted block by block.
const COUNT_EVERY: u64 = 7;

/// What to explore. [`CrashOptions::of_seed`] draws one.
#[derive(Clone, Debug)]
pub struct CrashOptions {
    /// The device.
    pub device: Small,
    /// What goes wrong by itself. It must leave every block readable.
    pub faults: Faults,
    /// Settings of the FTL.
    pub settings: Settings,
    /// Share of the largest logical space that the device offers.
    pub fill: f64,
    /// Operations before the first cut: they bring the device to some age.
    pub operations_before: u32,
    /// Operations with cuts.
    pub operations: u32,
    /// Operations in flight.
    pub depth: u32,
    /// Most images of one cut. All fates if there are no more, else so many drawn at random.
    pub images_per_cut: u32,
    /// Of so many images one has its recovery cut, after each step.
    pub recut_every: u64,
    /// Of so many images one lives on.
    pub live_on_every: u64,
    /// Done to every FTL of the run before its first step.
    pub plant: Plant,
    /// The fast tier is detached, the device goes on without, and gets it back; all with cuts.
    pub detach: bool,
    /// So many of the units are added to the device in its life; then it goes on as a larger one. All with cuts.
    pub units_added: u32,
    /// The label is changed now and then.
    pub relabel: bool,
    /// Volumes with a share of the fast tier each.
    pub volumes: u32,
}

impl CrashOptions {
    /// A device, settings and a length, all drawn from `seed`.
    pub fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6372_6173_6800);
        let manners = [
            Manner::Nand(Pairing::None),
            Manner::Nand(Pairing::Staircase),
            Manner::Nand(Pairing::Adjacent(2)),
            Manner::File,
        ];
        // Every fourth has spare bands for many placement handles.
        let roomy = if seed % 4 == 3 { 8 } else { 0 };
        let device = Small {
            manner: manners[random.below(4) as usize],
            units: 2,
            blocks_per_unit: 10 + roomy + random.below(3) as u32,
            pages_per_block: 8,
            slots_per_page: 1 + random.below(2) as u32,
            open_blocks_max: 0,
        };
        let mut pick =
            |names: &[&str]| names[random.below(names.len() as u64) as usize].to_string();
        let policies = PolicyNames {
            victim: pick(ftl::policy::VICTIMS),
            wear: pick(ftl::policy::WEARS),
            erase: pick(ftl::policy::ERASES),
            unit: pick(ftl::policy::UNITS),
            stream: pick(ftl::policy::stream::STREAMS),
            ..PolicyNames::default()
        };
        let settings = Settings {
            handles: 1 + random.below(2) as u8,
            append_wait_ns: 20 * MICROSECOND,
            checkpoint_slots: [0, 24, 60][random.below(3) as usize],
            idle_ns: 100 * MICROSECOND,
            relocation_blocks: 64,
            read_slo_ns: [0, 60 * MICROSECOND, 200 * MICROSECOND][(seed / 2 % 3) as usize],
            policies,
            seed,
            ..Settings::default()
        };
        Self {
            device,
            faults: Faults::default(),
            settings,
            fill: [0.3, 0.7, 0.9, 1.0][random.below(4) as usize],
            operations_before: [0, 60, 400][random.below(3) as usize],
            operations: 40,
            depth: 1 + random.below(5) as u32,
            images_per_cut: if device.manner.forgets() { 16 } else { 64 },
            recut_every: 251,
            live_on_every: 29,
            plant: Plant::default(),
            detach: false,
            units_added: 0,
            relabel: false,
            volumes: 1,
        }
    }
}

impl CrashOptions {
    /// The same with a fast tier before the device, hardly larger than it must be.
    pub fn tiered_of_seed(seed: u64) -> Self {
        let mut options = Self::of_seed(seed);
        let mut random = Random::new(seed ^ 0x7469_6572);
        let pairings = [Pairing::None, Pairing::Staircase, Pairing::Adjacent(2), Pairing::None];
        options.device.manner = Manner::Tiered {
            pairing: pairings[random.below(4) as usize],
            fast: FastTier { units: 2, blocks_per_unit: 6 + random.below(2) as u32 },
        };
        options.device.slots_per_page = [1, 2, 4][random.below(3) as usize];
        options.settings.destage_above = [0, 40, 80][random.below(3) as usize];
        options.images_per_cut = 64;
        options.volumes = 1 + random.below(3) as u32;
        options
    }
}

impl CrashOptions {
    /// The same with but a part of the map in DRAM, about as small as it may be. Of a device a little
    /// larger, so that it does not all fit.
    pub fn with_part_of_the_map(mut self) -> Self {
        self.device.blocks_per_unit += 12;
        self.fill = self.fill.max(0.6);
        // Deep enough that the frames run out.
        self.depth += 3;
        self.settings.map_piece_blocks = 8;
        if let Ok(medium) = self.device.build(Faults::default()) {
            self.settings.map_bytes = ftl::map_bytes_min(medium.geometry(), 8);
        }
        self
    }
}

/// What an exploration covered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CrashReport {
    /// Moments at which the power was cut.
    pub cuts: u64,
    /// Images that were recovered and read whole.
    pub images: u64,
    /// Of these: cut again during the recovery from another.
    pub recuts: u64,
    /// Images that lived on.
    pub lived_on: u64,
    /// Blocks that images were read for.
    pub blocks_read: u64,
    /// Images of which something was told to be damaged, though it was not.
    pub alarms: u64,
    /// Changes of the label that were durable.
    pub labels: u64,
}

impl CrashReport {
    /// Adds what another exploration covered.
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.images += other.images;
        self.recuts += other.recuts;
        self.lived_on += other.lived_on;
        self.blocks_read += other.blocks_read;
        self.alarms += other.alarms;
        self.labels += other.labels;
    }
}

/// The fates of one power cut: enumerates every combination, or draws some.
#[derive(Debug)]
pub(crate) struct Fates {
    /// What was chosen, of how many.
    pub(crate) choices: Vec<(u32, u32)>,
    at: usize,
    drawn: Option<Random>,
    /// Combinations that there were.
    images: u32,
}

impl Fates {
    pub(crate) fn new() -> Self {
        Self { choices: Vec::new(), at: 0, drawn: None, images: 0 }
    }

    pub(crate) fn choose(&mut self, fates: u32) -> u32 {
        if let Some(random) = &mut self.drawn {
            return random.below(u64::from(fates)) as u32;
        }
        if self.at == self.choices.len() {
            self.choices.push((0, fates));
        }
        self.at += 1;
        self.choices[self.at - 1].0
    }

    /// Goes on to the next combination; draws them if there are more than `images_max`. False after the last.
    pub(crate) fn go_on(&mut self, images_max: u32, random: &mut Random) -> bool {
        if self.images == 0 && self.combinations() > u64::from(images_max) {
            self.drawn = Some(Random::new(random.next_u64()));
        }
        self.images += 1;
        self.advance()
    }

    /// How many combinations there are, judged by the first.
    fn combinations(&self) -> u64 {
        self.choices.iter().fold(1, |product, &(_, of)| product.saturating_mul(u64::from(of)))
    }

    /// Goes on to the next combination; false after the last. What follows a changed choice may
    /// have other numbers of fates, so it is asked anew.
    fn advance(&mut self) -> bool {
        self.at = 0;
        if self.drawn.is_some() {
            return true;
        }
        while let Some((chosen, of)) = self.choices.pop() {
            if chosen + 1 < of {
                self.choices.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

struct Explorer<'a> {
    options: &'a CrashOptions,
    logical_blocks: u32,
    random: Random,
    report: CrashReport,
    /// Steps since the last reply.
    fruitless: u64,
    /// The label that is durable, and after it the one that was asked for.
    labels: Vec<Vec<u8>>,
}

/// As the device is formatted.
const LABEL: &[u8] = b"crash";

/// With fewer there is nothing to explore.
pub(crate) const LOGICAL_BLOCKS_MIN: u32 = 8;

/// Steps without a reply after which the device is taken to be stuck in work that leads to nothing. Each of
/// them may be a cut, and so a hundred mounts.
const FRUITLESS_STEPS_MAX: u64 = 1_000_000;

/// Explores one seed.
pub fn explore(seed: u64, options: &CrashOptions) -> Result<CrashReport, Failure> {
    let mut medium = options.device.build(options.faults.clone()).map_err(Failure)?;
    medium.hide_units(options.units_added);
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &options.settings);
    if max < LOGICAL_BLOCKS_MIN {
        return Err(Failure(format!("the device offers only {max} logical blocks")));
    }
    let logical_blocks = ((f64::from(max) * options.fill) as u32).max(LOGICAL_BLOCKS_MIN);
    let geometry = medium.geometry();
    let durable_at_reply = geometry.keeps_every_acknowledged_write();
    let mut options = options.clone();
    options.settings.fast_shares = fast_shares(logical_blocks, options.volumes);
    let options = &options;
    let mut explorer = Explorer {
        options,
        logical_blocks,
        random: Random::new(seed),
        report: CrashReport::default(),
        fruitless: 0,
        labels: vec![LABEL.to_vec()],
    };
    let model = Model::new(logical_blocks, durable_at_reply);
    let sim = explorer.format(medium, &model, seed)?;
    let mut host = Host::new(sim, model);
    let mut generator = generator(seed, options.depth, logical_blocks).among(options.volumes);
    explorer.run(&mut host, &mut generator, options.operations_before, false)?;
    explorer.run(&mut host, &mut generator, options.operations, true)?;
    if options.detach {
        explorer.detach(&mut host, &mut generator)?;
        explorer.run(&mut host, &mut generator, options.operations, true)?;
        explorer.attach(&mut host)?;
        explorer.run(&mut host, &mut generator, options.operations, true)?;
    }
    if options.units_added > 0 {
        let mut generator = explorer.grow(&mut host, seed)?;
        explorer.run(&mut host, &mut generator, options.operations_before, false)?;
        explorer.run(&mut host, &mut generator, options.operations, true)?;
    }
    host.read_back()?;
    Ok(explorer.report)
}

/// Operations of every kind, on few blocks, so that they overwrite each other.
pub(crate) fn generator(seed: u64, depth: u32, logical_blocks: u32) -> Generator {
    let share = 0.5 + 0.4 * (seed % 2) as f64;
    let workload = Workload {
        reads: 0.1,
        trims: 0.12,
        flushes: 0.12,
        fua: 0.15,
        atomic: 0.35,
        sizes: vec![(1, 5.0), (2, 2.0), (3, 1.0), (7, 1.0)],
        pattern: Pattern::HotCold { fraction: 0.15, share },
        arrival: Arrival::Closed { depth },
    };
    Generator::new(workload, logical_blocks, seed).expect("at least 8 logical blocks")
}

impl Explorer<'_> {
    fn mount(&self, medium: SimMedium, now: Instant) -> Result<Sim, Failure> {
        let mut settings = self.options.settings.clone();
        settings.logical_blocks_min = self.logical_blocks;
        let mut sim = Sim::mount(medium, settings, now)?;
        self.options.plant.apply(sim.ftl_mut());
        Ok(sim)
    }

    /// Formats; a device whose format was cut either holds zeroes or says it is not formatted.
    fn format(&mut self, medium: SimMedium, model: &Model, seed: u64) -> Result<Sim, Failure> {
        let options = FormatOptions {
            logical_blocks: self.logical_blocks,
            uuid: u128::from(seed) << 64 | 7,
            label: LABEL.to_vec(),
        };
        let mut sim = Sim::format(medium, options, self.options.settings.clone(), Instant(0))?;
        self.options.plant.apply(sim.ftl_mut());
        while *sim.state() == State::Starting {
            match sim.step(Instant(u64::MAX))? {
                Step::Idle => return Err(Failure("the format never ended".into())),
                Step::Change if self.random.chance(0.2) => {
                    let mut image = sim.medium().clone();
                    image.power_cut_by_chance(&mut self.random);
                    let mut sim = self.mount(image, sim.now())?;
                    if let State::Ready(report) = sim.run_until_mounted()? {
                        never_damaged(report)?;
                        let observed = sim.read_all(self.logical_blocks)?;
                        model.check_recovered(&observed).map_err(Failure)?;
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
    fn run(
        &mut self,
        host: &mut Host,
        generator: &mut Generator,
        operations: u32,
        cuts: bool,
    ) -> Result<(), Failure> {
        let mut submitted = 0;
        while submitted < operations || host.sim.in_flight() > 0 {
            while submitted < operations && host.sim.in_flight() < self.options.depth {
                let handle = self.random.below(2) as u8;
                host.submit(generator.draw(), Hint { handle, ..Hint::default() });
                submitted += 1;
            }
            if self.options.relabel && submitted < operations && self.random.chance(0.05) {
                self.relabel(host);
            }
            self.step(host, cuts)?;
            if submitted < operations && self.random.chance(0.001) {
                self.remount(host, cuts)?;
            }
        }
        Ok(())
    }

    /// Asks for another label, unless one is under way.
    fn relabel(&mut self, host: &mut Host) {
        if self.labels.len() == 1 {
            let label = format!("{:x}", self.random.next_u64()).into_bytes();
            host.sim.begin_label(&label);
            self.labels.push(label);
        }
    }

    /// A change of the label that has ended is durable; one that the end of a life has left open, perhaps.
    fn look_at_label(&mut self, host: &Host) -> Result<(), Failure> {
        match host.sim.labelled() {
            Some(true) if self.labels.len() == 2 => {
                self.labels.remove(0);
                self.report.labels += 1;
            }
            Some(false) => return Err(Failure("the label was refused".into())),
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        let step = host.sim.step(Instant(u64::MAX))?;
        self.look_at_label(host)?;
        let promised = host.collect()?;
        self.fruitless = if step == Step::Reply { 0 } else { self.fruitless + 1 };
        match step {
            Step::Idle => Err(host.sim.stuck()),
            _ if self.fruitless > FRUITLESS_STEPS_MAX => Err(host.sim.stuck()),
            Step::Change if cuts => self.cut(host),
            Step::Reply if cuts && promised => self.cut(host),
            _ => Ok(()),
        }
    }

    /// A clean shutdown with requests in flight, and the mount after it.
    fn remount(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        self.shut_down(host, cuts)?;
        let medium = host.sim.medium().clone();
        self.mount_again(host, medium, cuts)
    }

    fn shut_down(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        host.sim.begin_shutdown();
        host.refusals_are_legal = true;
        while !matches!(host.sim.state(), State::Stopped(_)) {
            self.step(host, cuts)?;
        }
        if *host.sim.state() != State::Stopped(true) || host.sim.in_flight() > 0 {
            return Err(Failure(format!(
                "a clean shutdown ended as {:?} with {} requests unanswered: {}",
                host.sim.state(),
                host.sim.in_flight(),
                host.sim.ftl().explain(),
            )));
        }
        host.refusals_are_legal = false;
        host.model.shut_down();
        Ok(())
    }

    fn mount_again(
        &mut self,
        host: &mut Host,
        medium: SimMedium,
        cuts: bool,
    ) -> Result<(), Failure> {
        let now = host.sim.now();
        host.sim = self.mount(medium, now)?;
        while *host.sim.state() == State::Starting {
            self.step(host, cuts)?;
        }
        let report = host.sim.run_until_ready()?;
        if !report.clean {
            return Err(Failure(format!("the mount after a clean shutdown says {report:?}")));
        }
        self.labels.retain(|label| *label == report.label);
        if self.labels.is_empty() {
            return Err(Failure(format!("no label that was asked for: {:?}", report.label)));
        }
        host.read_back()
    }

    /// Takes the fast tier away while the host goes on, with cuts. Before its end a recovery finds
    /// both tiers, after it only the other one.
    fn detach(&mut self, host: &mut Host, generator: &mut Generator) -> Result<(), Failure> {
        host.sim.begin_detach();
        let mut submitted = 0;
        while host.sim.detached().is_none() {
            while submitted < self.options.operations && host.sim.in_flight() < self.options.depth {
                host.submit(generator.draw(), Hint::default());
                submitted += 1;
            }
            self.step(host, true)?;
        }
        if host.sim.detached() != Some(true) {
            return Err(Failure("the fast tier could not be detached".into()));
        }
        // Nothing has told anybody yet: the next start may still find both.
        self.cut(host)?;
        host.sim.drop_fast();
        let alone = host.sim.medium().geometry().keeps_every_acknowledged_write();
        host.model.set_durable_at_reply(alone);
        host.sim.verify()
    }

    /// A clean shutdown, and a mount with a fast tier that the device does not know of.
    fn attach(&mut self, host: &mut Host) -> Result<(), Failure> {
        self.shut_down(host, true)?;
        let mut medium = host.sim.medium().clone();
        medium.show_all();
        host.model.set_durable_at_reply(medium.geometry().keeps_every_acknowledged_write());
        self.mount_again(host, medium, true)
    }

    /// A clean shutdown, and a mount with units that the device does not know of, which make it larger.
    /// Returns what uses all of it.
    fn grow(&mut self, host: &mut Host, seed: u64) -> Result<Generator, Failure> {
        self.shut_down(host, true)?;
        let mut medium = host.sim.medium().clone();
        medium.show_all();
        let max =
            ftl::logical_blocks_max(medium.geometry(), &medium.health(), &self.options.settings);
        let blocks = ((f64::from(max) * self.options.fill) as u32).max(self.logical_blocks + 1);
        host.model.grow(blocks - self.logical_blocks);
        self.logical_blocks = blocks;
        self.mount_again(host, medium, true)?;
        let State::Ready(report) = host.sim.state() else { unreachable!("it was mounted") };
        if report.logical_blocks != blocks || report.blocks_added == 0 {
            return Err(Failure(format!("a device of {blocks} blocks is mounted as {report:?}")));
        }
        Ok(generator(seed, self.options.depth, blocks).among(self.options.volumes))
    }

    /// Cuts the power here, with every fate of what is in flight.
    fn cut(&mut self, host: &Host) -> Result<(), Failure> {
        self.report.cuts += 1;
        let mut fates = Fates::new();
        for image_index in 0..self.options.images_per_cut {
            let mut image = host.sim.medium().clone();
            image.power_cut(&mut |of| fates.choose(of));
            let context = |Failure(why): Failure| {
                Failure(format!(
                    "power cut at {} ns, image {image_index} ({:?}): {why}",
                    host.sim.now().0,
                    fates.choices
                ))
            };
            self.recover(image, &host.model, host.sim.now()).map_err(context)?;
            if !fates.go_on(self.options.images_per_cut, &mut self.random) {
                break;
            }
        }
        Ok(())
    }

    fn recover(&mut self, image: SimMedium, model: &Model, now: Instant) -> Result<(), Failure> {
        self.report.images += 1;
        let recut = self.report.images.is_multiple_of(self.options.recut_every);
        let live_on = self.report.images.is_multiple_of(self.options.live_on_every);
        let again = recut.then(|| image.clone());
        let mut sim = self.mount(image, now)?;
        let report = sim.run_until_ready()?;
        let (damaged, label) = (report.damaged.clone(), report.label.clone());
        if !self.labels.contains(&report.label) {
            let (found, wanted) = (&report.label, &self.labels);
            return Err(Failure(format!("the label is {found:?}, none of {wanted:?}")));
        }
        if !damaged.is_empty() && !model.tolerates_unreadable() {
            self.report.alarms += 1;
        }
        let per_unit = sim.medium().geometry().blocks_per_unit;
        let of_checkpoint = |slot: &&DamagedSlot| {
            sim.ftl().checkpoint_bands().contains(&BlockId(slot.unit * per_unit + slot.block))
        };
        if let Some(slot) = damaged.iter().find(of_checkpoint)
            && !model.tolerates_unreadable()
        {
            return Err(Failure(format!("false alarm: the checkpoint is damaged at {slot}")));
        }
        let observed = sim.read_all(self.logical_blocks)?;
        self.report.blocks_read += u64::from(self.logical_blocks);
        model.check_recovered(&observed).map_err(Failure)?;
        sim.verify()?;
        if self.options.settings.map_bytes > 0 && self.report.images.is_multiple_of(COUNT_EVERY) {
            sim.run_until_counted()?;
            sim.verify()?;
            verify_valid(&mut sim, self.logical_blocks)?;
        }
        if let Some(image) = again {
            self.cut_recovery(image, model, (&observed, &label), now)?;
        }
        if live_on {
            self.live_on(sim, model, &observed)?;
        }
        Ok(())
    }

    /// Recovers the image once more, with what the FTL does by itself after it is ready, and cuts
    /// the power at each step of that. Every further recovery must read as the first one did.
    fn cut_recovery(
        &mut self,
        image: SimMedium,
        model: &Model,
        (observed, label): (&[Option<u64>], &[u8]),
        now: Instant,
    ) -> Result<(), Failure> {
        let mut model = model.clone();
        model.settle(observed);
        let mut sim = self.mount(image, now)?;
        for _ in 0..RECOVERY_STEPS_MAX {
            match sim.step(Instant(u64::MAX))? {
                Step::Idle => break,
                Step::Change => self.cut_once_more(&sim, &model, label)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// The power goes again while a recovery runs.
    fn cut_once_more(&mut self, sim: &Sim, model: &Model, label: &[u8]) -> Result<(), Failure> {
        for _ in 0..2 {
            let again = |Failure(why): Failure| Failure(format!("cut again in recovery: {why}"));
            let mut sim = self.cut_at_random(sim)?;
            if let State::Ready(report) = sim.state()
                && report.label != label
            {
                let why = format!("the label is {:?}, and was {label:?}", report.label);
                return Err(again(Failure(why)));
            }
            let observed = sim.read_all(self.logical_blocks).map_err(again)?;
            self.report.recuts += 1;
            model.check_recovered(&observed).map_err(Failure).map_err(again)?;
        }
        Ok(())
    }

    /// A recovered FTL on what a cut at this moment, with fates at random, leaves.
    fn cut_at_random(&mut self, sim: &Sim) -> Result<Sim, Failure> {
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
        sim: Sim,
        model: &Model,
        observed: &[Option<u64>],
    ) -> Result<(), Failure> {
        self.report.lived_on += 1;
        // What the device below waits for is not what this one does.
        let fruitless = std::mem::take(&mut self.fruitless);
        let found = match sim.state() {
            State::Ready(report) => vec![report.label.clone()],
            _ => Vec::new(),
        };
        let labels = std::mem::replace(&mut self.labels, found);
        let mut model = model.clone();
        model.settle(observed);
        let context = |what: &'static str| move |why| Failure(format!("{what}: {why}"));
        let mut again = self.cut_at_random(&sim)?;
        let second = again.read_all(self.logical_blocks)?;
        model.check_recovered(&second).map_err(context("two recoveries disagree"))?;

        let mut host = Host::new(sim, model);
        let seed = self.random.next_u64();
        let volumes = self.options.volumes;
        let mut generator = generator(seed, self.options.depth, self.logical_blocks).among(volumes);
        self.run(&mut host, &mut generator, 12, false)?;
        let mut again = self.cut_at_random(&host.sim)?;
        let third = again.read_all(self.logical_blocks)?;
        (host.model.check_recovered(&third)).map_err(context("cut after a recovery"))?;

        host.submit(Op { action: Action::Flush, lba: 0, blocks: 0 }, Hint::default());
        host.drain()?;
        host.sim.verify()?;
        self.remount(&mut host, false)?;
        (self.fruitless, self.labels) = (fruitless, labels);
        Ok(())
    }
}

/// Explores `seeds` on `threads` threads; the first failure ends it, with its seed.
pub fn explore_seeds(
    seeds: std::ops::Range<u64>,
    threads: usize,
    options: impl Fn(u64) -> CrashOptions + Sync,
) -> Result<CrashReport, crate::parallel::SeedFailure> {
    let reports =
        crate::parallel::for_each_seed(seeds, threads, |seed| explore(seed, &options(seed)))?;
    let mut total = CrashReport::default();
    reports.iter().for_each(|report| total.add(report));
    Ok(total)
}

/// Nothing was there before the format, so a cut of it loses nothing, and nobody is to be told of damage.
fn never_damaged(report: &MountReport) -> Result<(), Failure> {
    let rebuilt = report.rebuilt.filter(Rebuilt::is_damage).map(|rebuilt| rebuilt.to_string());
    match report.damage().or(rebuilt) {
        Some(what) => Err(Failure(format!("a cut format is told to be damage: {what}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::Fates;

    #[test]
    fn fates_enumerate_every_combination_once() {
        let (mut fates, mut seen) = (Fates::new(), Vec::new());
        loop {
            // The second question depends on the first answer, as it does on a real cut.
            let first = fates.choose(2);
            let second = if first == 0 { fates.choose(3) } else { fates.choose(2) };
            seen.push((first, second));
            if !fates.advance() {
                break;
            }
        }
        assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]);
    }
}
