//! Figures that the command line, the benches and the tests ask for: write amplification against
//! theory, raw bandwidth against arithmetic, recovery time, usable capacity, and how fast the
//! simulator itself is. Each is measured on the production FTL; nothing here computes a result that
//! it could measure.

use crate::checker::counter;
use crate::device::nand_of;
use crate::device_file::{DeviceSpec, Scale};
use crate::driver::{Failure, REQUEST_BLOCKS_MAX, Sim, Step};
use crate::load::{self, Client, Pace, Window};
use crate::medium::{Buffers, SimMedium};
use crate::target::Target;
use crate::theory::{waf_d_choices, waf_fifo, waf_greedy};
use crate::workload::{Action, Arrival, Generator, Op, Workload};
use flash::{BlockId, Command, Hint, Instant, SlotData, SlotWrite, Tag};
use ftl::{FormatOptions, PolicyNames, Settings};
use nand::{Faults, Layout, Profile};

/// Host time; everything else here is virtual.
fn seconds_of<T>(run: impl FnOnce() -> T) -> (f64, T) {
    let begun = std::time::Instant::now();
    let result = run();
    (begun.elapsed().as_secs_f64(), result)
}

/// An FTL on `medium`, formatted and ready.
pub(crate) fn format(
    medium: SimMedium,
    logical_blocks: u32,
    settings: &Settings,
) -> Result<Sim, Failure> {
    let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
    let mut sim = Sim::format(medium, options, settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    Ok(sim)
}

/// Runs `operations` operations of a closed loop and waits for the last answer. Data is not
/// checked: that is the business of [`crate::soak`].
pub fn drive(sim: &mut Sim, generator: &mut Generator, operations: u64) -> Result<(), Failure> {
    let Arrival::Closed { depth } = generator.workload().arrival else {
        return Err(Failure("drive wants a closed loop, for example of depth 32".into()));
    };
    drive_ops(sim, depth, operations, || (generator.draw(), Hint::default()))
}

/// The same with operations and hints from anywhere.
pub fn drive_ops(
    sim: &mut Sim,
    depth: u32,
    operations: u64,
    mut draw: impl FnMut() -> (Op, Hint),
) -> Result<(), Failure> {
    let (mut submitted, mut stamps) = (0, Vec::new());
    while submitted < operations || sim.in_flight() > 0 {
        while submitted < operations && sim.in_flight() < depth {
            let (op, hint) = draw();
            submitted += 1;
            match op.action {
                Action::Read => sim.read(0, op.lba, op.blocks),
                Action::Trim { fua } => sim.trim(0, op.lba, op.blocks, fua),
                Action::Flush => sim.flush(0),
                Action::Write { fua, atomic } => {
                    stamps.clear();
                    let stamp = submitted << 32 | u64::from(op.lba);
                    stamps.extend((0..u64::from(op.blocks)).map(|i| stamp + i));
                    sim.write(0, op.lba, &stamps, (fua, atomic), hint);
                }
            }
        }
        if sim.step(Instant(u64::MAX))? == Step::Idle {
            return Err(sim.stuck());
        }
        while let Some(finished) = sim.take_finished() {
            if let Err(error) = finished.result {
                return Err(Failure(format!("{:?} failed: {error:?}", finished.request)));
            }
            sim.release(finished);
        }
    }
    Ok(())
}

/// Write amplification of one victim policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waf {
    /// Slots written for the host or relocated, by slots written for the host, in steady state.
    pub measured: f64,
    /// What mathematics says for `alpha`.
    pub theory: f64,
    /// Physical over logical capacity in slots that GC can use, measured in steady state.
    pub alpha: f64,
    /// All slots programmed (checkpoints and padding included) by slots written for the host.
    pub measured_all: f64,
}

const WAF_BANDS: u32 = 1024;

/// Measures the write amplification of `victim` under uniform random writes, with `op_percent` of
/// the logical capacity as over-provisioning and `slots_per_band` slots in a band.
pub fn waf(op_percent: f64, victim: &str, slots_per_band: u32) -> Result<Waf, Failure> {
    let policies =
        PolicyNames { victim: victim.into(), wear: "none".into(), ..PolicyNames::default() };
    let settings = Settings { policies, ..Settings::default() };
    let alpha = 1.0 + op_percent / 100.0;
    // The FTL needs some bands for itself; see how many, then give the rest the wanted share.
    let total = WAF_BANDS * slots_per_band;
    let (mut sim, mut generator) =
        waf_device((f64::from(total) * 0.97 / alpha) as u32, slots_per_band, &settings)?;
    drive(&mut sim, &mut generator, u64::from(total))?;
    let usable = slots_usable(&mut sim, &mut generator, u64::from(total) / 4)?;
    let logical_blocks = (usable / alpha) as u32;

    let (mut sim, mut generator) = waf_device(logical_blocks, slots_per_band, &settings)?;
    drive(&mut sim, &mut generator, 5 * u64::from(total))?;
    let before = WafCounters::of(&sim)?;
    let usable = slots_usable(&mut sim, &mut generator, 2 * u64::from(total))?;
    let after = WafCounters::of(&sim)?;
    let host = (after.host - before.host) as f64;
    let alpha = usable / f64::from(logical_blocks);
    Ok(Waf {
        measured: 1.0 + (after.relocated - before.relocated) as f64 / host,
        measured_all: (after.programmed - before.programmed) as f64 / host,
        theory: waf_theory(victim, alpha, slots_per_band).ok_or_else(|| {
            Failure(format!("no theory for {victim:?}; there is for fifo, greedy, d-choices:N"))
        })?,
        alpha,
    })
}

/// What mathematics says of a victim policy, if it says anything.
pub fn waf_theory(victim: &str, alpha: f64, slots_per_band: u32) -> Option<f64> {
    match victim.split_once(':') {
        None if victim == "fifo" => Some(waf_fifo(alpha)),
        None if victim == "greedy" => Some(waf_greedy(alpha, f64::from(slots_per_band))),
        Some(("d-choices", d)) => Some(waf_d_choices(alpha, slots_per_band, d.parse().ok()?)),
        _ => None,
    }
}

/// One unit, so that few bands are open; no delays, as only counts matter.
fn waf_device(
    logical_blocks: u32,
    slots_per_band: u32,
    settings: &Settings,
) -> Result<(Sim, Generator), Failure> {
    let layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: WAF_BANDS };
    let medium = nand_of("instant", &layout, Faults::default(), |profile| {
        profile.pages_per_block = slots_per_band;
    });
    let mut sim = format(medium.map_err(Failure)?, logical_blocks, settings)?;
    let workload =
        Workload { pattern: crate::workload::Pattern::Sequential, ..Workload::default() };
    let mut fill = Generator::new(workload, logical_blocks, 1).map_err(Failure)?;
    drive(&mut sim, &mut fill, u64::from(logical_blocks))?;
    let uniform = Generator::new(Workload::default(), logical_blocks, 2).map_err(Failure)?;
    Ok((sim, uniform))
}

/// What write amplification is made from, in slots since the FTL was mounted.
pub(crate) struct WafCounters {
    pub host: u64,
    pub relocated: u64,
    pub programmed: u64,
    /// Of those relocated, slots that found no band of their handle.
    pub fallbacks: u64,
}

impl WafCounters {
    pub fn of(sim: &Sim) -> Result<Self, Failure> {
        let status = sim.ftl().status();
        let get = |name: &str| {
            counter(&status, name).ok_or_else(|| Failure(format!("no counter is called {name}")))
        };
        Ok(Self {
            host: get("host_blocks_written")?,
            relocated: get("slots_relocated")?,
            programmed: get("slots_programmed")?,
            fallbacks: get("stream_fallbacks")?,
        })
    }
}

/// Runs `operations` more and returns the mean of the slots that took part in GC meanwhile: those
/// of full bands, and the appended ones of open bands.
fn slots_usable(sim: &mut Sim, generator: &mut Generator, operations: u64) -> Result<f64, Failure> {
    const SAMPLES: u64 = 200;
    let mut sum = 0;
    for _ in 0..SAMPLES {
        drive(sim, generator, operations / SAMPLES)?;
        let bands = sim.ftl().bands();
        let used = bands.iter().filter(|band| matches!(band.state, "full" | "open"));
        sum += used.map(|band| u64::from(band.slots_written)).sum::<u64>();
    }
    Ok(sum as f64 / SAMPLES as f64)
}

/// How fast the simulator is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimRate {
    /// Host operations.
    pub operations: u64,
    /// Processor time they took.
    pub seconds: f64,
    /// Virtual time they took.
    pub virtual_seconds: f64,
    /// Slots programmed by slots written.
    pub waf: f64,
}

impl SimRate {
    /// Host operations by second of processor time.
    pub fn operations_per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }
}

/// Measures the simulator with random writes and reads, GC included, on a device of this profile.
/// `cpu_ns` tells the processor time that this process has used: the wall clock would measure its
/// neighbours.
pub fn sim_rate(
    profile: &str,
    reads: f64,
    operations: u64,
    cpu_ns: fn() -> u64,
) -> Result<SimRate, Failure> {
    let layout = Layout { channels: 4, dies_per_channel: 2, blocks_per_plane: 64 };
    let medium = nand_of(profile, &layout, Faults::default(), |_| {}).map_err(Failure)?;
    let settings = Settings::default();
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let logical_blocks = (f64::from(max) * 0.8) as u32;
    let mut sim = format(medium, logical_blocks, &settings)?;
    let workload =
        Workload { reads, arrival: Arrival::Closed { depth: 64 }, ..Workload::default() };
    let fill = Workload {
        pattern: crate::workload::Pattern::Sequential,
        arrival: Arrival::Closed { depth: 64 },
        ..Workload::default()
    };
    let mut fill = Generator::new(fill, logical_blocks, 1).map_err(Failure)?;
    drive(&mut sim, &mut fill, u64::from(logical_blocks))?;
    let mut generator = Generator::new(workload, logical_blocks, 2).map_err(Failure)?;
    drive(&mut sim, &mut generator, u64::from(logical_blocks) / 2)?;
    let (before, begun, cpu_begun) = (WafCounters::of(&sim)?, sim.now(), cpu_ns());
    drive(&mut sim, &mut generator, operations)?;
    let seconds = (cpu_ns() - cpu_begun) as f64 / 1e9;
    let after = WafCounters::of(&sim)?;
    let host = (after.host - before.host).max(1) as f64;
    Ok(SimRate {
        operations,
        seconds,
        virtual_seconds: (sim.now() - begun) as f64 / 1e9,
        waf: (after.programmed - before.programmed) as f64 / host,
    })
}

/// How a device file's device is used by [`device_rate`] and [`device_in_use`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceLoad {
    /// Of the built-in device file.
    pub device: &'static str,
    /// Keys of the file to change, as TOML.
    pub changes: &'static str,
    /// The device's size, in blocks of each plane.
    pub blocks_per_plane: u32,
    /// Bytes of each I/O.
    pub bytes: u64,
    /// Share of reads.
    pub reads: f64,
    /// I/Os in flight.
    pub depth: u32,
    /// I/Os before the measurement, beside one sequential pass.
    pub warmup: u64,
    /// I/Os measured.
    pub operations: u64,
}

impl DeviceLoad {
    fn client(&self, ios_max: u64) -> Client {
        Client {
            reads: self.reads,
            bytes: self.bytes,
            pace: Pace::Depth(self.depth),
            ios_max,
            ..Client::default()
        }
    }
}

/// A load's device as experiments build it, filled and warmed up.
pub fn device_in_use(load: &DeviceLoad) -> Result<Box<dyn Target>, Failure> {
    let changes =
        load.changes.parse().map_err(|why| Failure(format!("{}: {why}", load.changes)))?;
    let spec = DeviceSpec::builtin_with(load.device, &changes).map_err(Failure)?;
    let scale = Scale::BlocksPerPlane(load.blocks_per_plane);
    let mut target = spec.build(scale, &Faults::default(), 1).map_err(Failure)?;
    let fill = Client { pace: Pace::Depth(64), ..Client::filling(target.bytes() >> 12) };
    load::run(&mut *target, &[fill], Window::WHENEVER, 1)?;
    if load.warmup > 0 {
        load::run(&mut *target, &[load.client(load.warmup)], Window::WHENEVER, 2)?;
    }
    Ok(target)
}

/// As [`sim_rate`], on a device as experiments build it: random I/Os of one client through the
/// device's link and firmware, on a device that was filled.
pub fn device_rate(load: &DeviceLoad, cpu_ns: fn() -> u64) -> Result<SimRate, Failure> {
    let mut target = device_in_use(load)?;
    let (before, begun, cpu_begun) = (target.counts(), target.now(), cpu_ns());
    load::run(&mut *target, &[load.client(load.operations)], Window::WHENEVER, 3)?;
    let seconds = (cpu_ns() - cpu_begun) as f64 / 1e9;
    let after = target.counts();
    let written = (after.bytes_written - before.bytes_written).max(1) as f64;
    Ok(SimRate {
        operations: load.operations,
        seconds,
        virtual_seconds: (target.now() - begun) as f64 / 1e9,
        waf: (after.bytes_programmed - before.bytes_programmed) as f64 / written,
    })
}

/// How long recovery takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// Capacity of the device.
    pub capacity_bytes: u64,
    /// Logical blocks that it offers; the report says how many are mapped.
    pub logical_blocks: u32,
    /// Virtual time from power-on to ready.
    pub virtual_ns: u64,
    /// Host time of the same.
    pub seconds: f64,
    /// What it did.
    pub report: ftl::MountReport,
}

/// Most blocks that a measurement fills: the lab keeps some 50 bytes of each, and the map and two
/// checkpoints beside them.
const MAPPED_MAX: u64 = 1 << 26;

/// Fills a TLC device of `tib` TiB as far as memory allows (256 GiB: about 6 GiB of memory with the
/// map of 1 TiB), overwrites some of it at random, cuts the power and measures the recovery.
pub fn recovery(tib: f64) -> Result<Recovery, Failure> {
    let profile = Profile::builtin("tlc").ok_or_else(|| Failure("no profile tlc".into()))?;
    let (channels, dies_per_channel) = (16, 4);
    let block_bytes =
        u64::from(profile.page_bytes) * u64::from(profile.planes * profile.pages_per_block);
    let blocks = tib * (1u64 << 40) as f64 / f64::from(channels * dies_per_channel);
    let blocks_per_plane = ((blocks / block_bytes as f64) as u32).max(16);
    let layout = Layout { channels, dies_per_channel, blocks_per_plane };
    let medium = nand_of("tlc", &layout, Faults::default(), |_| {}).map_err(Failure)?;
    let capacity_bytes = medium.geometry().slots() * 4096;
    let settings = Settings::default();
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let logical_blocks = (f64::from(max) * 0.93) as u32;
    let mut sim = format(medium, logical_blocks, &settings)?;
    let mapped = u64::from(logical_blocks).min(MAPPED_MAX) as u32;
    let fill = Workload {
        pattern: crate::workload::Pattern::Sequential,
        sizes: vec![(REQUEST_BLOCKS_MAX, 1.0)],
        arrival: Arrival::Closed { depth: 64 },
        ..Workload::default()
    };
    let mut fill = Generator::new(fill, mapped, 2).map_err(Failure)?;
    drive(&mut sim, &mut fill, u64::from(mapped / REQUEST_BLOCKS_MAX))?;
    let workload = Workload {
        sizes: vec![(8, 1.0)],
        arrival: Arrival::Closed { depth: 256 },
        ..Workload::default()
    };
    let mut generator = Generator::new(workload, mapped, 3).map_err(Failure)?;
    drive(&mut sim, &mut generator, u64::from(mapped) / 32 / 8)?;
    let now = sim.now();
    let mut medium = sim.into_medium();
    medium.power_cut(&mut |_| 0);
    let mut sim = Sim::mount(medium, settings, now)?;
    let (seconds, report) = seconds_of(|| sim.run_until_ready().cloned());
    let virtual_ns = sim.now() - now;
    Ok(Recovery { capacity_bytes, logical_blocks, virtual_ns, seconds, report: report? })
}

/// A raw rate of the medium, in bytes of virtual second: measured, and by arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RawRates {
    /// Programs of whole program units: measured and by arithmetic.
    pub program: (f64, f64),
    /// Reads of whole program units.
    pub read: (f64, f64),
    /// Erases.
    pub erase: (f64, f64),
}

/// Measures the raw bandwidth of a medium: every unit busy, no FTL.
pub fn raw_rates(profile: &str, layout: &Layout) -> Result<RawRates, Failure> {
    let known = Profile::builtin(profile)
        .ok_or_else(|| Failure(format!("no device profile is called {profile:?}")))?;
    let medium = nand_of(profile, layout, Faults::default(), |_| {}).map_err(Failure)?;
    let geometry = *medium.geometry();
    let pages = geometry.pages_per_block;
    let page_bytes = f64::from(geometry.slots_per_page) * 4096.0;
    let mut raw = Raw { medium, now: Instant(0), slots: geometry.slots_per_page };
    let page_of =
        |unit: u32, step: u32| geometry.slot(geometry.block(unit, step / pages), step % pages, 0);
    let steps = pages.max(64).min(pages * geometry.blocks_per_unit);
    let total = f64::from(steps * geometry.units) * page_bytes;
    let programmed = raw.run(steps, |unit, step| Command::Program {
        tag: Tag(unit),
        slot: page_of(unit, step),
        count: geometry.slots_per_page,
    })?;
    let read = raw.run(steps, |unit, step| Command::Read {
        tag: Tag(unit),
        slot: page_of(unit, step),
        count: geometry.slots_per_page,
        into: None,
        urgent: false,
    })?;
    let blocks = geometry.blocks_per_unit;
    let erased = raw.run(blocks, |unit, step| Command::Erase {
        tag: Tag(unit),
        block: BlockId(unit * geometry.blocks_per_unit + step),
    })?;
    let capacity = geometry.slots() as f64 * 4096.0;
    Ok(RawRates {
        program: (total / programmed, known.raw_program_bandwidth(layout)),
        read: (total / read, known.raw_read_bandwidth(layout)),
        erase: (capacity / erased, known.raw_erase_bandwidth(layout)),
    })
}

/// A medium without an FTL.
struct Raw {
    medium: SimMedium,
    now: Instant,
    slots: u32,
}

impl Raw {
    /// Gives each unit `steps` commands, as many at once as it takes; returns virtual seconds.
    fn run(&mut self, steps: u32, command: impl Fn(u32, u32) -> Command) -> Result<f64, Failure> {
        let geometry = *self.medium.geometry();
        let mut given = vec![0; geometry.units as usize];
        let mut running = vec![0; geometry.units as usize];
        let empty = SlotWrite { oob: [0; 32], data: SlotData::Empty };
        let content = vec![empty; self.slots as usize];
        let mut buffers = Buffers::new(1, 0);
        let begun = self.now;
        loop {
            for unit in 0..geometry.units as usize {
                while running[unit] < geometry.queue_depth && given[unit] < steps {
                    let command = command(unit as u32, given[unit]);
                    self.medium.start(self.now, command, &content, &buffers).map_err(Failure)?;
                    given[unit] += 1;
                    running[unit] += 1;
                }
            }
            let mut ended = Vec::new();
            while self
                .medium
                .deliver(self.now, &mut buffers, |completion| ended.push(unit_of(&completion)))
                .is_some()
            {}
            ended.iter().for_each(|&unit| running[unit] -= 1);
            if ended.is_empty() {
                let Some(next) = self.medium.deadline() else { break };
                self.now = next;
            }
        }
        Ok((self.now - begun) as f64 / 1e9)
    }
}

/// The raw runs name each command after its unit.
fn unit_of(completion: &flash::Completion<'_>) -> usize {
    use flash::Completion::{Erase, Finish, Flush, Program, Read};
    match completion {
        Read { tag, .. }
        | Program { tag, .. }
        | Erase { tag, .. }
        | Finish { tag }
        | Flush { tag, .. } => tag.0 as usize,
    }
}
