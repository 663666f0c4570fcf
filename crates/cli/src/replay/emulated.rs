//! A replay in virtual time: against a whole device of the lab, or against the production FTL on
//! emulated flash. What differs is how the target is made.

use super::Plan;
use super::report::{Clock, Device, Outcome};
use crate::Failure;
use crate::device::{Request, describe};
use crate::output::Progress;
use crate::size::bytes;
use lab::Sim;
use lab::advise::{Choice, Drive};
use lab::device_file::DeviceSpec;
use lab::medium::SimMedium;
use lab::replay::precondition::{
    Precondition, Preconditioned, ROUNDS_MAX, precondition, precondition_by_trace,
};
use lab::replay::{Fit, Programmed, Wearing, run};
use lab::target::{SimTarget, Target};
use nand::Faults;
use serve::device::Kind;

/// Requests in flight that an open loop may pile up.
const IN_FLIGHT_MAX: u32 = 16384;
/// Without --capacity, a device is not made larger.
const CAPACITY_MAX: u64 = 64 << 30;
/// What a drive that is told by its flash alone offers, where it is about wear: as `weir advise` has it.
const CAPACITY_NAMED: u64 = 1 << 40;
/// Nor smaller: of a device with few bands, GC has little choice.
const CAPACITY_MIN: u64 = 1 << 30;

/// Nor a whole device with fewer blocks on a plane: it would have none to spare for GC.
const BLOCKS_MIN: u32 = 64;

pub fn replay(plan: &Plan<'_>) -> Result<Outcome, Failure> {
    let Emulated { mut target, description, flash } = device(plan)?;
    let fit = plan.fit(target.bytes())?;
    let checked = fit.check_writes(&mut plan.args.reading.open(&plan.args.trace)?, target.rules());
    checked.map_err(|error| format!("{}: {error}", plan.args.trace.display()))?;
    let preconditioned = prepare(plan, &mut *target, &fit)?;
    let (before, programmed) = (Counters::of(&*target), Programmed::of(&*target));
    let mut lanes = plan.lanes(IN_FLIGHT_MAX, plan.args.pacing.rounds);
    let mut progress = Progress::new("replaying");
    let whole = plan.requests();
    let result = run(&mut *target, &mut lanes, &fit, &mut |done| progress.at(done, whole));
    drop(progress);
    let (tally, elapsed_ns) = result.map_err(|error| error.to_string())?;
    let by_reason = Programmed::of(&*target).since(&programmed);
    let mut device = Counters::of(&*target).since(&before, &*target, preconditioned);
    device.by_reason = by_reason;
    device.wearing = flash.zip(device.waf).map(|(flash, waf)| Wearing { waf, ..flash });
    Ok(Outcome {
        clock: Clock::Media,
        against: description,
        capacity: target.bytes(),
        elapsed_ns,
        late_after_ns: 0,
        tally,
        device: Some(device),
    })
}

/// The device, formatted, and what it is.
struct Emulated {
    target: Box<dyn Target>,
    description: String,
    /// The drive as it is named, whose flash wears; the emulated one may be smaller.
    flash: Option<Wearing>,
}

fn device(plan: &Plan<'_>) -> Result<Emulated, Failure> {
    match plan.args.device.as_deref().map(crate::devices::device_file) {
        Some(spec) => match spec? {
            Some(spec) => whole_device(plan, &spec),
            None => flash_device(plan),
        },
        None => flash_device(plan),
    }
}

/// A whole device as its file says, as large as wanted.
fn whole_device(plan: &Plan<'_>, spec: &DeviceSpec) -> Result<Emulated, Failure> {
    let shape = &plan.args.shape;
    let fixed = [
        ("channels", shape.dies.channels),
        ("dies-per-channel", shape.dies.dies_per_channel),
        ("op-percent", shape.op_percent),
    ];
    if let Some((option, _)) = fixed.iter().find(|(_, value)| value.is_some()) {
        return Err(format!(
            "--{option}: the device {:?} says this itself: leave it out, or change a copy of its file",
            spec.name
        ));
    }
    let to_steady = match plan.args.precondition {
        Precondition::None | Precondition::Fill => None,
        Precondition::Random => Some("random"),
        Precondition::Trace => Some("trace"),
    };
    if let Some(how) = to_steady.filter(|_| spec.kind() == "raw") {
        return Err(format!(
            "--precondition {how}: raw units have no GC and so no steady state: use fill"
        ));
    }
    let (wanted, blocks_min) = match &shape.capacity {
        Some(text) => {
            let wanted = flash::quantity::bytes(text);
            let wrong = || format!("--capacity {text}: must be a size, for example 8GiB");
            (wanted.ok_or_else(wrong)?, 1)
        }
        None => (span_of_trace(plan)?.max(CAPACITY_MIN), BLOCKS_MIN),
    };
    let scale = spec.scale_for(wanted, blocks_min).map_err(|why| {
        format!("{why}: give a smaller --capacity, and --fit pack, wrap or scale")
    })?;
    let target = spec.build(scale, &Faults::default(), plan.args.seed)?;
    let description = format!(
        "device {} ({}), {} of flash for {}",
        spec.name,
        spec.kind(),
        bytes(target.flash_bytes()),
        bytes(target.bytes()),
    );
    let flash = spec.endurance().map(|endurance| match shape.capacity {
        // So much of it was asked for.
        Some(_) => (target.flash_bytes(), target.bytes(), endurance),
        None => {
            let figures = spec.figures();
            (figures.raw_bytes as u64, figures.usable_bytes as u64, endurance)
        }
    });
    Ok(Emulated { target, description, flash: flash.map(wearing) })
}

/// Flash, what it offers, and its endurance.
fn wearing((flash_bytes, offered_bytes, endurance): (u64, u64, u32)) -> Wearing {
    Wearing { flash_bytes, offered_bytes, endurance, waf: 1.0 }
}

/// An FTL on flash of this kind, and nothing else.
fn flash_device(plan: &Plan<'_>) -> Result<Emulated, Failure> {
    let args = plan.args;
    let capacity = match (&args.shape.capacity, &args.config) {
        (Some(capacity), _) => Some(capacity.clone()),
        (None, Some(_)) => None,
        (None, None) => Some(crate::size::config_text(span_of_trace(plan)?.max(CAPACITY_MIN))),
    };
    let shape = crate::device::Shape {
        capacity,
        profile: args.device.clone(),
        channels: args.shape.dies.channels,
        dies_per_channel: args.shape.dies.dies_per_channel,
        shards: None,
        op_percent: args.shape.op_percent,
        fast: None,
        fast_capacity: None,
    };
    let request = Request {
        config: args.config.as_deref(),
        shape: Some(&shape),
        http: Some("none"),
        fresh: true,
        ..Request::default()
    };
    let config = describe(&request)?.config;
    let simulated = config.device.simulated(&config.ftl).map_err(|error| error.to_string())?;
    let (nand, mut format) = simulated;
    // The same device each time: a server draws it.
    format.uuid = 1;
    let geometry = nand.geometry();
    let (profile, endurance) = match &config.device.kind {
        Kind::Memory { profile } | Kind::Nand { profile, .. } => {
            (profile.name.clone(), Some(profile.endurance))
        }
        Kind::File { path } => (path.display().to_string(), None),
    };
    let description = format!(
        "emulated {profile}, {} channels of {} dies, {} of flash for {}",
        config.device.channels,
        config.device.dies_per_channel,
        bytes(geometry.slots() * flash::BLOCK_BYTES as u64),
        bytes(u64::from(format.logical_blocks) * flash::BLOCK_BYTES as u64),
    );
    let offered = u64::from(format.logical_blocks) * flash::BLOCK_BYTES as u64;
    let flash_bytes = geometry.slots() * flash::BLOCK_BYTES as u64;
    // A device that is as large as the trace needs stands for one of a size that people have.
    let is_named = args.shape.capacity.is_some() || args.config.is_some();
    let named = match &config.device.kind {
        Kind::Memory { profile } | Kind::Nand { profile, .. } if !is_named => {
            let dies = (config.device.channels, config.device.dies_per_channel);
            let policies = &config.ftl.policies;
            let choice = Choice {
                stream: &policies.stream,
                victim: &policies.victim,
                op_percent: config.device.op_percent.into(),
                seed: args.seed,
            };
            let drive = Drive::of_flash(profile.clone(), dies, Some(CAPACITY_NAMED));
            (drive.sized(choice, CAPACITY_NAMED)?.flash_bytes(), CAPACITY_NAMED)
        }
        _ => (flash_bytes, offered),
    };
    let flash = endurance.map(|endurance| wearing((named.0, named.1, endurance)));
    let sim = Sim::format(SimMedium::nand(nand), format, config.ftl, flash::Instant(0));
    let mut sim = sim.map_err(|failure| failure.to_string())?;
    sim.run_until_ready().map_err(|failure| failure.to_string())?;
    Ok(Emulated { target: Box::new(SimTarget::new(sim)), description, flash })
}

fn span_of_trace(plan: &Plan<'_>) -> Result<u64, Failure> {
    let span = plan.survey.span_bytes(plan.args.fit);
    if span > CAPACITY_MAX {
        return Err(format!(
            "{}: spans {}: give the device a --capacity, and --fit pack, wrap or scale if that is \
             less",
            plan.args.trace.display(),
            bytes(span)
        ));
    }
    Ok(span)
}

fn prepare(plan: &Plan<'_>, target: &mut dyn Target, fit: &Fit) -> Result<Preconditioned, Failure> {
    let wanted = plan.args.precondition;
    let mut progress = Progress::new(match wanted {
        Precondition::Random | Precondition::Trace => "preconditioning, round after round",
        Precondition::None | Precondition::Fill => "preconditioning",
    });
    let found = if wanted == Precondition::Trace {
        let passes = passes_of_round(plan, target.bytes())?;
        let whole = plan.survey.requests * passes;
        let tell = &mut |done| progress.at(done, whole);
        let round = &mut || plan.lanes(IN_FLIGHT_MAX, passes);
        precondition_by_trace(target, fit, 1..=ROUNDS_MAX, round, tell)
    } else {
        let tell = &mut |share: f64| progress.at((share * 1000.0) as u64, 1000);
        precondition(target, wanted, plan.args.seed, tell)
    };
    drop(progress);
    let found = found.map_err(|error| error.to_string())?;
    if !found.steady {
        eprintln!(
            "no steady state within {} overwrites (write amplification {:?}): the figures are of a \
             device that still changes",
            found.rounds.len(),
            found.rounds
        );
    }
    Ok(found)
}

fn passes_of_round(plan: &Plan<'_>, capacity: u64) -> Result<u64, Failure> {
    let passes = plan.survey.passes_of_round(capacity).filter(|_| plan.args.pacing.writes());
    passes.ok_or_else(|| {
        format!(
            "--precondition trace: nothing of {} is written, so no device comes to a steady state: use \
             fill",
            plan.args.trace.display()
        )
    })
}

/// Counters of the FTL and its medium.
struct Counters {
    values: Vec<(&'static str, u64)>,
    bytes_written: u64,
    bytes_programmed: u64,
}

/// What the report tells, by the FTL's names.
const TOLD: [&str; 9] = [
    "erases",
    "erases_forced",
    "victims",
    "slots_relocated",
    "slots_padded",
    "wear_moves",
    "refreshes",
    "checkpoints",
    "writes_throttled",
];

impl Counters {
    fn of(target: &dyn Target) -> Self {
        let counts = target.counts();
        let mut values: Vec<_> = TOLD.iter().map(|&name| (name, target.counter(name))).collect();
        values.push(("suspensions", counts.suspensions));
        let lab::target::TargetCounts { bytes_written, bytes_programmed, .. } = counts;
        Self { values, bytes_written, bytes_programmed }
    }

    fn since(&self, before: &Self, target: &dyn Target, preconditioned: Preconditioned) -> Device {
        let written = self.bytes_written - before.bytes_written;
        let programmed = self.bytes_programmed - before.bytes_programmed;
        Device {
            preconditioned,
            bytes_written: written,
            bytes_programmed: programmed,
            waf: (written > 0).then(|| programmed as f64 / written as f64),
            counters: (self.values.iter().zip(&before.values))
                .map(|(now, before)| (now.0, now.1 - before.1))
                .collect(),
            by_reason: None,
            wearing: None,
            bands_free: target.counter("bands_free"),
            erase_count_max: target.erase_count_max(),
        }
    }
}
