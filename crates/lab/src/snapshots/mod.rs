//! Snapshots under power cuts: a host writes, trims and flushes while snapshots of parts of the device are taken, read
//! and given up in any order, and the power is cut at every step. What is held:
//!
//! - a snapshot reads as its blocks did at its cut, whatever came since: the model of one is a map from block to stamp;
//! - one that was acknowledged is there after any cut. One that was not, or is being given up, is there wholly or not at
//!   all; and no other is there;
//! - the volume reads as its own model allows, snapshots or not;
//! - a clone reads as the snapshot that it was made of, but for what was written and trimmed since, and is there or not as a
//!   snapshot is;
//! - no more blocks are held than the device offers, a trim is never refused, and when the last snapshot is gone, so is
//!   what only snapshots held.

mod clones;
mod growth;
mod known;
mod report;

pub use growth::explore_growth;
pub use known::SnapshotEnd;
pub use report::{SnapshotReport, SnapshotRotReport};

use crate::crash::{CrashOptions, Fates, LOGICAL_BLOCKS_MIN, generator};
use crate::device::Manner;
use crate::driver::{Failure, Finished, Sim, State, Step};
use crate::host::Host;
use crate::medium::SimMedium;
use crate::missed::{Harm, harmed, slots_after_checkpoint};
use crate::model::Model;
use crate::workload::{Action, Generator, Op};
use clones::KnownClone;
use flash::{Hint, Instant, Lba, Operation, Pairing, Random, RequestError, SlotId};
use ftl::{FormatOptions, MountError, ShadowStretch, SnapshotError, SnapshotOrder, SnapshotStep};
use known::{Known, Phase, SNAPSHOT_TOKEN};
use nand::Faults;
use std::collections::BTreeMap;

/// Snapshots at a time.
const SNAPSHOTS_MAX: usize = 4;

/// Lives of an image that lives on, each ended by a power cut.
const LIVES: u32 = 3;

/// Steps without a reply after which the device is taken to be stuck.
const FRUITLESS_STEPS_MAX: u64 = 1_000_000;

struct Explorer<'a> {
    options: &'a CrashOptions,
    logical_blocks: u32,
    random: Random,
    report: SnapshotReport,
    known: Vec<Known>,
    clones: Vec<KnownClone>,
    /// Blocks from this one on may become clones; few snapshots have any that is not one.
    clones_from: u32,
    /// Snapshots and clones so far, in the order in which they were taken and made.
    moment: u32,
    next_number: u32,
    /// Blocks that are read for the content of a snapshot, with what they hold.
    seen: Option<BTreeMap<u32, u64>>,
    fruitless: u64,
    /// Most blocks that may be held: what the device offers, or more if a power cut has undone trims.
    held_max: u64,
}

/// Devices of every manner, with and without failing programs, drawn from `seed`.
pub fn options_of_seed(seed: u64) -> CrashOptions {
    let manners = [
        Manner::Nand(Pairing::None),
        Manner::Nand(Pairing::Staircase),
        Manner::Nand(Pairing::Adjacent(2)),
        Manner::File,
        Manner::Folder,
    ];
    let mut options = match seed % 6 {
        5 => CrashOptions::tiered_of_seed(seed),
        _ => CrashOptions::of_seed(seed),
    };
    if let Some(&manner) = manners.get(seed as usize % 6) {
        options.device.manner = manner;
        // Of pages that share cells a checkpoint takes two bands.
        options.device.blocks_per_unit += 2;
        options.device.slots_per_page = 2;
    }
    options.device.blocks_per_unit += [0, 6][seed as usize / 6 % 2];
    options.fill = [0.4, 0.8, 0.95][seed as usize / 12 % 3];
    options.settings.checkpoint_slots = [0, 24, 90][seed as usize / 2 % 3];
    if seed % 5 == 2 {
        // Checkpoints all the time, over which snapshots are cut.
        options.settings.checkpoint_slots = 10;
        options.depth += 4;
    }
    options.volumes = 1;
    (options.operations_before, options.operations) = ([40, 250][seed as usize / 3 % 2], 70);
    (options.images_per_cut, options.live_on_every) = (3, 61);
    let is_nand = matches!(options.device.manner, Manner::Nand(_));
    if seed % 4 == 3 && is_nand {
        // Room for blocks that go bad.
        (options.device.blocks_per_unit, options.fill) = (48, 0.2);
        let (program_fail, program_cut) = if seed % 8 == 3 { (0.01, 0.0) } else { (0.0, 0.02) };
        options.faults = Faults { seed, program_fail, program_cut, ..Faults::default() };
    }
    options
}

/// The same for a long run without power cuts, on devices of an ordinary size: does it go on?
pub fn long_options_of_seed(seed: u64) -> CrashOptions {
    let mut options = options_of_seed(seed);
    options.device.blocks_per_unit *= 2;
    (options.operations_before, options.operations) = (6_000, 0);
    options.depth += 3;
    // Fewer, in so long a run.
    options.faults.program_fail /= 10.0;
    options
}

/// Explores one seed.
pub fn explore(seed: u64, options: &CrashOptions) -> Result<SnapshotReport, Failure> {
    let (mut explorer, mut host, mut generator) = begin(seed, options)?;
    explorer.run(&mut host, &mut generator, options.operations_before, false)?;
    explorer.run(&mut host, &mut generator, options.operations, true)?;
    explorer.read_snapshots(&mut host.sim)?;
    host.read_back()?;
    if seed % 2 == 1 {
        explorer.fail(&mut host, &mut generator)?;
        return Ok(explorer.report);
    }
    explorer.give_all_up(&mut host)?;
    Ok(explorer.report)
}

/// Ages a device with snapshots and lets pages of its checkpoint rot: any single one costs nothing, and of more what is
/// not certain is an error, and never anything else than the snapshot held.
pub fn survive_rot(seed: u64, options: &CrashOptions) -> Result<SnapshotRotReport, Failure> {
    let (mut explorer, mut host, mut generator) = begin(seed, options)?;
    explorer.run(&mut host, &mut generator, options.operations_before + 150, false)?;
    let bands = host.sim.ftl().checkpoint_bands().to_vec();
    let geometry = *host.sim.medium().geometry();
    let pages = bands.iter().flat_map(|&block| {
        (0..geometry.pages_per_block).map(move |page| geometry.slot(block, page, 0))
    });
    let pages: Vec<SlotId> = pages.collect();
    let mut report = SnapshotRotReport::default();
    let quiet = |host: &Host| {
        let mut image = host.sim.medium().clone();
        image.power_cut(&mut |_| 0);
        image
    };
    for &page in &pages {
        let mut image = quiet(&host);
        image.rot(page);
        let context = |Failure(why)| Failure(format!("page {} rots: {why}", page.0));
        let mut sim = explorer.mount(image, host.sim.now()).map_err(context)?;
        explorer.check(&mut sim, &host.model).map_err(context)?;
        report.single += 1;
    }
    for _ in 0..24 {
        let mut image = quiet(&host);
        let count = 2 + explorer.random.below(5);
        for _ in 0..count {
            image.rot(pages[explorer.random.below(pages.len() as u64) as usize]);
        }
        report.unreadable += explorer.survive_many(&host, image)?;
        report.many += 1;
    }
    Ok(report)
}

/// Ages a device with snapshots, cuts the power, and damages slots one at a time: a snapshot shows what it held, or an
/// error. Returns how many images were tried, and how many blocks of snapshots were errors.
pub fn survive_missing(seed: u64, options: &CrashOptions) -> Result<(u64, u64), Failure> {
    let (mut explorer, mut host, mut generator) = begin(seed, options)?;
    explorer.run(&mut host, &mut generator, options.operations_before + 60, false)?;
    while host.sim.step(Instant(u64::MAX))? != Step::Idle {}
    explorer.hear(&mut host)?;
    let medium = host.sim.medium().clone();
    let mut sound = explorer.mount(medium.clone(), host.sim.now())?;
    explorer.check(&mut sound, &host.model)?;
    explorer.settle(&sound);
    let slots = slots_after_checkpoint(&sound, &medium);
    let (mut images, mut errors) = (0, 0);
    for slot in slots {
        let harms = [Harm::Data, Harm::Beside, Harm::Page];
        let harm = harms[explorer.random.below(3) as usize];
        let context = |Failure(why)| Failure(format!("slot {}, {harm:?}: {why}", slot.0));
        let image = harmed(&medium, slot, harm);
        let mut sim = explorer.mount(image, host.sim.now()).map_err(context)?;
        let found = sim.ftl().snapshots();
        for known in &explorer.known {
            if !found.iter().any(|status| status.number == known.number) {
                return Err(context(Failure(format!("snapshot {} is gone", known.number))));
            }
            errors += known.read_what_can_be(&mut sim).map_err(context)?;
        }
        sim.verify().map_err(context)?;
        images += 1;
    }
    Ok((images, errors))
}

/// A device that is formatted, and nothing more.
fn begin<'a>(
    seed: u64,
    options: &'a CrashOptions,
) -> Result<(Explorer<'a>, Host, Generator), Failure> {
    let mut medium = options.device.build(options.faults.clone()).map_err(Failure)?;
    medium.hide_units(options.units_added);
    let geometry = *medium.geometry();
    let max = ftl::logical_blocks_max(&geometry, &medium.health(), &options.settings);
    let logical_blocks = ((f64::from(max) * options.fill) as u32).max(LOGICAL_BLOCKS_MIN);
    let format = FormatOptions { logical_blocks, uuid: u128::from(seed) << 64 | 5, label: vec![] };
    let mut sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    options.plant.apply(sim.ftl_mut());
    sim.run_until_ready()?;
    let model = Model::new(logical_blocks, geometry.keeps_every_acknowledged_write());
    let explorer = Explorer {
        options,
        logical_blocks,
        random: Random::new(seed ^ 0x736e_6170),
        report: SnapshotReport::default(),
        known: Vec::new(),
        clones: Vec::new(),
        clones_from: if seed.is_multiple_of(3) {
            logical_blocks
        } else {
            logical_blocks - logical_blocks / 3
        },
        moment: 0,
        next_number: 1,
        seen: None,
        fruitless: 0,
        held_max: logical_blocks.into(),
    };
    let mut host = Host::new(sim, model);
    host.full_is_legal = true;
    Ok((explorer, host, generator(seed, options.depth, logical_blocks)))
}

impl Explorer<'_> {
    /// Mounts an image of which much rotted, without and with salvage. Returns the blocks of snapshots that cannot be
    /// read.
    fn survive_many(&mut self, host: &Host, image: SimMedium) -> Result<u64, Failure> {
        let settings = ftl::Settings { salvage: true, ..self.options.settings.clone() };
        let mut salvaged = Sim::mount(image.clone(), settings, host.sim.now())?;
        match salvaged.run_until_mounted()? {
            State::Ready(_) => salvaged.verify()?,
            // Both copies of every root record are gone.
            State::Refused(MountError::NotFormatted) => return Ok(0),
            other => return Err(Failure(format!("a mount with salvage ended as {other:?}"))),
        }
        let mut sim = Sim::mount(image, self.options.settings.clone(), host.sim.now())?;
        if !matches!(sim.run_until_mounted()?, State::Ready(_)) {
            return Ok(0);
        }
        sim.verify()?;
        let mut unreadable = 0;
        let found = sim.ftl().snapshots();
        for known in &self.known {
            if found.iter().any(|status| status.number == known.number) {
                unreadable += known.read_what_can_be(&mut sim)?;
            }
        }
        Ok(unreadable)
    }

    fn mount(&self, medium: SimMedium, now: Instant) -> Result<Sim, Failure> {
        let mut sim = self.begin_mount(medium, now)?;
        sim.run_until_ready()?;
        Ok(sim)
    }

    fn begin_mount(&self, medium: SimMedium, now: Instant) -> Result<Sim, Failure> {
        let mut settings = self.options.settings.clone();
        settings.logical_blocks_min = self.logical_blocks;
        let mut sim = Sim::mount(medium, settings, now)?;
        self.options.plant.apply(sim.ftl_mut());
        Ok(sim)
    }

    /// Runs `operations` operations of the host, with orders about snapshots among them; with `cuts` the power is cut
    /// after every step that changes what a cut leaves.
    fn run(
        &mut self,
        host: &mut Host,
        generator: &mut Generator,
        operations: u32,
        cuts: bool,
    ) -> Result<(), Failure> {
        let mut submitted = 0;
        while submitted < operations || host.sim.in_flight() > 0 || self.is_ordered() {
            if submitted < operations && self.random.chance(0.12) {
                self.act(host, cuts)?;
            }
            while submitted < operations && host.sim.in_flight() < self.options.depth {
                let handle = self.random.below(2) as u8;
                host.submit(generator.draw(), Hint { handle, ..Hint::default() });
                submitted += 1;
                self.read_some(host);
            }
            self.step(host, cuts)?;
            if submitted < operations && self.random.chance(0.001) {
                self.remount(host, cuts)?;
            }
        }
        host.sim.verify()
    }

    /// Something was ordered that has not ended.
    fn is_ordered(&self) -> bool {
        let waits = |known: &Known| !matches!(known.phase, Phase::Prepared | Phase::Taken);
        self.known.iter().any(waits) || self.is_clone_ordered()
    }

    /// Takes the next step towards a snapshot, or gives one up.
    fn act(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        host.sim.verify()?;
        let prepared = self.known.iter().position(|known| known.phase == Phase::Prepared);
        if let Some(at) = prepared.filter(|_| self.random.chance(0.8)) {
            return self.take(host, at, cuts);
        }
        if self.random.chance(0.3) && self.act_on_clones(host, cuts)? {
            return Ok(());
        }
        let preparing = self.known.iter().any(|known| known.phase == Phase::Preparing);
        if !preparing && self.known.len() < SNAPSHOTS_MAX && self.random.chance(0.6) {
            self.prepare(host);
            return Ok(());
        }
        let may_go = |known: &&mut Known| matches!(known.phase, Phase::Prepared | Phase::Taken);
        let mut there: Vec<&mut Known> = self.known.iter_mut().filter(may_go).collect();
        if !there.is_empty() {
            let at = self.random.below(there.len() as u64) as usize;
            there[at].phase = Phase::Dropping;
            host.sim.order_snapshot(there[at].number, SnapshotOrder::Drop);
        }
        Ok(())
    }

    fn prepare(&mut self, host: &mut Host) {
        let blocks = if self.random.chance(0.2) { self.logical_blocks } else { self.clones_from };
        let half = blocks / 2;
        let mut lower = |from: u32, to: u32| {
            let first = from + self.random.below(u64::from((to - from) / 2)) as u32;
            let blocks = 1 + self.random.below(u64::from(to - first)) as u32;
            (first, blocks)
        };
        let mut parts = match lower(0, 9).0 {
            0 => vec![lower(0, half), lower(half, blocks)],
            1 => vec![lower(0, blocks)],
            _ => vec![(0, blocks)],
        };
        if let Some(of_clone) = self.part_of_clone().filter(|_| blocks == self.clones_from) {
            if self.random.chance(0.5) {
                parts.clear();
            }
            parts.push(of_clone);
        }
        // The order of stretches says nothing.
        if self.random.chance(0.5) {
            parts.reverse();
        }
        let mut stretches = Vec::new();
        for (first, blocks) in parts {
            let shadow = self.free_address(blocks, &stretches);
            stretches.push(ShadowStretch { first, blocks, shadow });
        }
        let number = self.next_number;
        self.next_number += 1;
        host.sim.order_snapshot(number, SnapshotOrder::Prepare(&stretches));
        let (phase, content) = (Phase::Preparing, BTreeMap::new());
        self.known.push(Known { number, stretches, phase, taken_at: 0, content });
    }

    /// Where the next so many addresses are free: mostly near, sometimes so far that a checkpoint takes more pages.
    fn free_address(&mut self, blocks: u32, own: &[ShadowStretch]) -> u32 {
        let far = [0, 0, 3000, 9000][self.random.below(4) as usize];
        let mut address = self.logical_blocks + far + self.random.below(3) as u32;
        let others = self.known.iter().flat_map(|known| &known.stretches).chain(own);
        let others: Vec<_> = others.collect();
        while let Some(other) = others
            .iter()
            .find(|other| address < other.shadow + other.blocks && other.shadow < address + blocks)
        {
            address = other.shadow + other.blocks;
        }
        address
    }

    /// Ends what is under way, looks at what the blocks hold, and cuts.
    fn take(&mut self, host: &mut Host, at: usize, cuts: bool) -> Result<(), Failure> {
        let number = self.known[at].number;
        while host.sim.in_flight() > 0 {
            self.step(host, cuts)?;
        }
        let Some(at) = self.known.iter().position(|known| known.number == number) else {
            return Ok(());
        };
        self.seen = Some(BTreeMap::new());
        for stretch in self.known[at].stretches.clone() {
            for first in (0..stretch.blocks).step_by(64) {
                let (lba, blocks) = (stretch.first + first, 64.min(stretch.blocks - first));
                host.submit(Op { action: Action::Read, lba, blocks }, Hint::default());
                while host.sim.in_flight() > 0 {
                    self.step(host, cuts)?;
                }
            }
        }
        let known = self.known.iter_mut().find(|known| known.number == number);
        let known = known.ok_or_else(|| Failure("a prepared snapshot vanished".into()))?;
        known.content = self.seen.take().unwrap_or_default();
        known.phase = Phase::Cutting;
        self.moment += 1;
        known.taken_at = self.moment;
        host.sim.order_snapshot(number, SnapshotOrder::Cut);
        Ok(())
    }

    /// Reads a few blocks of a snapshot while the host goes on.
    fn read_some(&mut self, host: &mut Host) {
        let readable: Vec<&Known> = self.known.iter().filter(|known| known.is_readable()).collect();
        if readable.is_empty() || !self.random.chance(0.4) {
            return;
        }
        let known = readable[self.random.below(readable.len() as u64) as usize];
        let stretch = known.stretches[self.random.below(known.stretches.len() as u64) as usize];
        let first = self.random.below(u64::from(stretch.blocks)) as u32;
        let blocks = (1 + self.random.below(6) as u32).min(stretch.blocks - first);
        let token = SNAPSHOT_TOKEN | u64::from(known.number);
        host.sim.read(token, stretch.shadow + first, blocks);
    }

    fn step(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        let step = host.sim.step(Instant(u64::MAX))?;
        let promised = self.collect(host)?;
        let ended = self.hear(host)?;
        let moves = step == Step::Reply || ended;
        self.fruitless = if moves { 0 } else { self.fruitless + 1 };
        let held = host.sim.ftl().counter("blocks_mapped");
        if held > self.held_max {
            return Err(Failure(format!("{held} blocks are held, of {}", self.logical_blocks)));
        }
        match step {
            Step::Idle if host.sim.in_flight() > 0 => Err(host.sim.stuck()),
            Step::Idle if self.is_ordered() => {
                let ordered: Vec<_> =
                    self.known.iter().map(|known| (known.number, known.phase)).collect();
                let state = host.sim.ftl().explain();
                Err(Failure(format!("orders never end: {ordered:?}; {state}")))
            }
            _ if self.fruitless > FRUITLESS_STEPS_MAX => Err(host.sim.stuck()),
            Step::Change if cuts => self.cut(host),
            _ if cuts && (promised || ended) => self.cut(host),
            _ => Ok(()),
        }
    }

    /// Takes the answers that have come. True if one of them changed what a power cut may leave.
    fn collect(&mut self, host: &mut Host) -> Result<bool, Failure> {
        let mut changed = false;
        while let Some(finished) = host.sim.take_finished() {
            if finished.token >= SNAPSHOT_TOKEN {
                self.judge(host, &finished)?;
            } else {
                self.look_at(host, &finished)?;
                changed |= host.judge(&finished)?;
            }
            host.sim.release(finished);
        }
        Ok(changed)
    }

    /// A read of a snapshot has ended. Of one that has been given up since nothing is known.
    fn judge(&mut self, host: &Host, finished: &Finished) -> Result<(), Failure> {
        let number = (finished.token - SNAPSHOT_TOKEN) as u32;
        let known = self.known.iter().find(|known| known.number == number);
        let Some(known) = known.filter(|known| known.is_readable()) else { return Ok(()) };
        if let Err(error) = finished.result {
            return Err(Failure(format!("a read of snapshot {number} failed: {error:?}")));
        }
        let address = finished.request.lba.0;
        for (at, &stamp) in (address..).zip(host.sim.stamps(finished)) {
            known.check(at, Some(stamp))?;
        }
        self.report.blocks_read += u64::from(finished.request.blocks);
        Ok(())
    }

    /// A request of the host has ended.
    fn look_at(&mut self, host: &Host, finished: &Finished) -> Result<(), Failure> {
        let request = &finished.request;
        match (request.operation, finished.result) {
            (Operation::Read { .. }, Ok(())) => {
                if let Some(seen) = &mut self.seen {
                    let stamps = host.sim.stamps(finished).iter().copied();
                    seen.extend((request.lba.0..).zip(stamps));
                }
            }
            (Operation::Write { .. }, Err(RequestError::NoSpace)) => self.report.refused += 1,
            (_, Err(RequestError::NoSpace)) if !host.is_worn_out() => {
                let count = |name| host.sim.ftl().counter(name);
                let (held, kept) = (count("blocks_mapped"), count("logical_blocks_kept"));
                return Err(Failure(format!(
                    "{request:?} was refused for want of space, where {held} of {kept} blocks are held; {}",
                    host.sim.ftl().explain()
                )));
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the ends of orders. True if one of them changed what a power cut may leave.
    fn hear(&mut self, host: &mut Host) -> Result<bool, Failure> {
        let mut heard = false;
        while let Some(SnapshotEnd { number, step, result }) = host.sim.take_snapshot_end() {
            heard = true;
            if self.hear_of_clone(host, number, step, result)? {
                continue;
            }
            let at = self.known.iter().position(|known| known.number == number);
            let at = at.ok_or_else(|| Failure(format!("nobody ordered {step:?} of {number}")))?;
            let phase = match step {
                SnapshotStep::Prepare => Phase::Preparing,
                SnapshotStep::Cut => Phase::Cutting,
                SnapshotStep::Drop => Phase::Dropping,
                SnapshotStep::Clone => return Err(Failure(format!("{number} is no clone"))),
            };
            if self.known[at].phase != phase {
                return Err(Failure(format!("{step:?} of {number} ended as {result:?}")));
            }
            match (step, result) {
                (SnapshotStep::Prepare, Ok(())) => self.known[at].phase = Phase::Prepared,
                // Where one is given up its addresses are not free at once.
                (SnapshotStep::Prepare, Err(SnapshotError::NoSpace | SnapshotError::Stretches)) => {
                    self.known.remove(at);
                    self.report.no_room += 1;
                }
                (SnapshotStep::Cut, Ok(())) => {
                    self.known[at].phase = Phase::Taken;
                    self.report.taken += 1;
                }
                (SnapshotStep::Drop, Err(SnapshotError::Needed)) if self.has_clones(at) => {
                    self.known[at].phase = Phase::Taken;
                }
                (SnapshotStep::Drop, Ok(())) if self.has_clones(at) => {
                    return Err(Failure(format!("snapshot {number} went, which has clones")));
                }
                (SnapshotStep::Drop, Ok(())) => {
                    self.known.remove(at);
                    self.report.dropped += 1;
                }
                _ => return Err(Failure(format!("{step:?} of {number} failed: {result:?}"))),
            }
        }
        Ok(heard)
    }

    /// A clean shutdown with requests in flight, and the mount after it.
    fn remount(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        self.shut_down(host, cuts)?;
        let (medium, now) = (host.sim.medium().clone(), host.sim.now());
        host.sim = self.mount(medium, now)?;
        self.check_snapshots(&mut host.sim)?;
        self.settle(&host.sim);
        host.read_back()
    }

    fn shut_down(&mut self, host: &mut Host, cuts: bool) -> Result<(), Failure> {
        host.sim.begin_shutdown();
        host.refusals_are_legal = true;
        while !matches!(host.sim.state(), State::Stopped(_)) {
            match host.sim.step(Instant(u64::MAX))? {
                Step::Idle => return Err(Failure("the shutdown neither goes on nor ends".into())),
                Step::Change if cuts => self.cut(host)?,
                _ => {}
            }
            self.collect(host)?;
            self.hear(host)?;
        }
        host.refusals_are_legal = false;
        if *host.sim.state() == State::Stopped(true) {
            host.model.shut_down();
        }
        self.known.retain(|known| known.phase != Phase::Preparing);
        Ok(())
    }

    /// Cuts the power here, with some of the fates of what is in flight.
    fn cut(&mut self, host: &Host) -> Result<(), Failure> {
        self.report.cuts += 1;
        let mut fates = Fates::new();
        for image_index in 0..self.options.images_per_cut {
            let mut image = host.sim.medium().clone();
            image.power_cut(&mut |of| fates.choose(of));
            let context = |Failure(why): Failure| {
                Failure(format!("cut at {} ns, image {image_index}: {why}", host.sim.now().0))
            };
            self.recover(image, &host.model, host.sim.now()).map_err(context)?;
            if !fates.go_on(self.options.images_per_cut, &mut self.random) {
                break;
            }
        }
        Ok(())
    }

    fn recover(&mut self, image: SimMedium, model: &Model, now: Instant) -> Result<(), Failure> {
        let mut sim = self.mount(image, now)?;
        let observed = self.check(&mut sim, model)?;
        if self.report.images.is_multiple_of(self.options.live_on_every) {
            let mut model = model.clone();
            model.settle(&observed);
            self.live_on(sim, model)?;
        }
        Ok(())
    }

    /// What a recovered device shows must be what may be there. Returns the volume's blocks.
    fn check(&mut self, sim: &mut Sim, model: &Model) -> Result<Vec<Option<u64>>, Failure> {
        self.report.images += 1;
        let observed = sim.read_all(self.logical_blocks)?;
        model.check_recovered(&observed).map_err(Failure)?;
        self.check_snapshots(sim)?;
        sim.verify()?;
        Ok(observed)
    }

    fn check_snapshots(&mut self, sim: &mut Sim) -> Result<(), Failure> {
        let found = sim.ftl().snapshots();
        for status in &found {
            let known = self.known.iter().find(|known| known.number == status.number);
            let may_be = |known: &&Known| {
                !matches!(known.phase, Phase::Preparing | Phase::Prepared)
                    && known.stretches == status.stretches
                    && status.taken
            };
            known.filter(may_be).ok_or_else(|| Failure(format!("there is {status:?}")))?;
        }
        for known in &self.known {
            let is_there = found.iter().any(|status| status.number == known.number);
            if is_there {
                known.read(sim)?;
            } else if known.phase == Phase::Taken {
                return Err(Failure(format!("snapshot {} is gone", known.number)));
            }
            if matches!(known.phase, Phase::Cutting | Phase::Dropping) {
                let count = if is_there {
                    &mut self.report.doubtful_there
                } else {
                    &mut self.report.doubtful_gone
                };
                *count += 1;
            }
        }
        self.check_clones(sim)
    }

    /// A mount has decided what was in doubt.
    fn settle(&mut self, sim: &Sim) {
        let found = sim.ftl().snapshots();
        self.known.retain(|known| found.iter().any(|status| status.number == known.number));
        self.known.iter_mut().for_each(|known| known.phase = Phase::Taken);
        self.settle_clones(sim);
        self.seen = None;
        self.held_max = u64::from(self.logical_blocks).max(sim.ftl().counter("blocks_mapped"));
    }

    /// A recovered device must keep what it showed, and still work, through some more power cuts.
    fn live_on(&mut self, sim: Sim, model: Model) -> Result<(), Failure> {
        self.report.lived_on += 1;
        let (known, held_max) = (self.known.clone(), self.held_max);
        let clones = self.clones.clone();
        let (fruitless, seen) = (std::mem::take(&mut self.fruitless), self.seen.take());
        self.settle(&sim);
        let mut host = Host::new(sim, model);
        host.full_is_legal = true;
        for life in 0..LIVES {
            let seed = self.random.next_u64();
            let mut generator = generator(seed, self.options.depth, self.logical_blocks);
            self.run(&mut host, &mut generator, 25, false)?;
            // The last operations are cut off.
            for _ in 0..self.options.depth {
                host.submit(generator.draw(), Hint::default());
            }
            self.act(&mut host, false)?;
            for _ in 0..self.random.below(60) {
                if host.sim.step(Instant(u64::MAX))? == Step::Idle {
                    break;
                }
                self.collect(&mut host)?;
                self.hear(&mut host)?;
            }
            let mut image = host.sim.medium().clone();
            image.power_cut_by_chance(&mut self.random);
            let mut sim = self.mount(image, host.sim.now())?;
            let context = |Failure(why)| Failure(format!("in life {life}: {why}"));
            let observed = self.check(&mut sim, &host.model).map_err(context)?;
            host.model.settle(&observed);
            self.settle(&sim);
            let model = host.model;
            host = Host::new(sim, model);
            host.full_is_legal = true;
        }
        self.give_all_up(&mut host)?;
        (self.known, self.fruitless, self.seen) = (known, fruitless, seen);
        (self.held_max, self.clones) = (held_max, clones);
        Ok(())
    }

    /// The medium fails as a whole while a snapshot is given up: what was under way is undone, and what is read then is
    /// what it was.
    fn fail(&mut self, host: &mut Host, generator: &mut Generator) -> Result<(), Failure> {
        if let Some(known) = self.known.iter_mut().find(|known| known.phase == Phase::Taken) {
            known.phase = Phase::Dropping;
            host.sim.order_snapshot(known.number, SnapshotOrder::Drop);
        }
        while self.is_ordered() {
            while host.sim.in_flight() < 2 * self.options.depth {
                host.submit(generator.draw(), Hint::default());
            }
            self.step(host, false)?;
        }
        for _ in 0..self.random.below(12) {
            host.sim.step(Instant(u64::MAX))?;
            self.collect(host)?;
        }
        host.sim.fail();
        host.refusals_are_legal = true;
        while host.sim.in_flight() > 0 {
            self.step(host, false)?;
        }
        host.read_back()?;
        self.read_snapshots(&mut host.sim)?;
        host.sim.verify_ftl()
    }

    fn read_snapshots(&mut self, sim: &mut Sim) -> Result<(), Failure> {
        let readable = self.known.iter().filter(|known| known.is_readable());
        for known in readable {
            known.read(sim)?;
        }
        Ok(())
    }

    /// Gives all snapshots up, one after the other: what only they held is free then.
    fn give_all_up(&mut self, host: &mut Host) -> Result<(), Failure> {
        while !(self.known.is_empty() && self.clones.is_empty()) {
            if self.give_clone_up(host)? {
                continue;
            }
            let free: Vec<usize> =
                (0..self.known.len()).filter(|&at| !self.has_clones(at)).collect();
            if free.is_empty() {
                return Err(Failure("all snapshots have clones, and those have snapshots".into()));
            }
            let at = free[self.random.below(free.len() as u64) as usize];
            if !self.is_ordered() {
                self.known[at].phase = Phase::Dropping;
                host.sim.order_snapshot(self.known[at].number, SnapshotOrder::Drop);
            }
            while self.is_ordered() {
                self.step(host, false)?;
            }
            self.read_snapshots(&mut host.sim)?;
        }
        while !host.sim.ftl().snapshots().is_empty() {
            let step = host.sim.step(Instant(u64::MAX))?;
            let found = host.sim.ftl().snapshots();
            if step == Step::Idle && !found.is_empty() {
                return Err(Failure(format!("what was given up never leaves: {found:?}")));
            }
        }
        host.sim.verify()?;
        let held = host.sim.ftl().counter("blocks_mapped");
        let mapped = (0..self.logical_blocks)
            .filter(|&lba| host.sim.ftl().mapped_run(Lba(lba), 1) == (true, 1));
        let mapped = mapped.count() as u64;
        if held != mapped || host.sim.ftl().counter("blocks_shadowed") > 0 {
            return Err(Failure(format!("{held} blocks are held, and {mapped} are of the volume")));
        }
        Ok(())
    }
}
