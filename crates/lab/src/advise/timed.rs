//! Latencies of a trace on the emulated device: its own channels, dies, times, firmware and cache, the
//! blocks of its flash made shorter so that a small device has as many bands as a large one.
//!
//! An erase is made shorter by as much, so that a byte erased takes its time. Bands that are open,
//! and the reserve of the FTL, are next to nothing on a real device and much of a small one: the
//! device gets them on top of its over-provisioning.

use super::recorded::Recorded;
use crate::device_file::{DeviceSpec, Flash, FtlChoice, Inside, Scale};
use crate::driver::Failure;
use crate::load::Latency;
use crate::replay::precondition::{Precondition, precondition};
use crate::replay::{Fit, LaneOptions, Lanes, Pace, Part, run_until};
use crate::target::Target;
use crate::trace::{Op, Record, TraceError};
use flash::{BLOCK_BYTES, Geometry, Health};
use ftl::Settings;
use ftl::policy::stream;
use nand::{Faults, Layout, Nand, Profile};

/// Blocks of each unit, if they can be made short enough.
const BLOCKS_PER_UNIT: u32 = 512;
/// Pages of the shortest block.
const PAGES_MIN: u32 = 6;
/// Requests of the timed pass; of a longer trace the last ones.
pub const REQUESTS_MAX: usize = 300_000;
/// Requests in flight while the device is aged.
const DEPTH: u32 = 64;
/// Requests in flight that the open loop may pile up.
const IN_FLIGHT_MAX: u32 = 16384;
/// A device keeps up if it takes no longer than the trace, times this, and
const BEHIND_MAX: f64 = 1.02;
/// this much.
const BEHIND_NS: f64 = 100e6;

/// What the timed pass saw.
#[derive(Clone, Debug)]
pub struct Timed {
    /// From when each read was due.
    pub reads: Latency,
    /// The same of writes; one with FUA ends with its flush.
    pub writes: Latency,
    /// It took no longer than the trace says, or hardly: the device keeps up with it.
    pub keeps_up: bool,
    /// Slots programmed beyond the host's and GC's, by slots written: padding and checkpoints.
    pub overhead: f64,
    /// Slots written for the host or relocated in this pass, by slots written for the host.
    pub waf: f64,
    /// Bytes written by the host in a second of media time.
    pub bytes_per_s: f64,
}

/// A device with policies and over-provisioning of its own.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// The stream policy, with parameters.
    pub stream: &'a str,
    /// The victim policy.
    pub victim: &'a str,
    /// Physical above logical capacity, in percent.
    pub op_percent: f64,
    /// Of policies that draw.
    pub seed: u64,
}

/// The device of these choices for `bytes`.
pub fn device(
    spec: &DeviceSpec,
    choice: Choice<'_>,
    bytes: u64,
) -> Result<Box<dyn Target>, String> {
    let Inside::Ftl(flash, ftl) = &spec.inside else {
        return Err(format!("device {:?} has no FTL of its own", spec.name));
    };
    let mut settings = ftl.settings.clone();
    settings.policies.stream = choice.stream.into();
    settings.policies.victim = choice.victim.into();
    let units = flash.layout.channels * flash.layout.dies_per_channel;
    let logical = bytes / BLOCK_BYTES as u64;
    let physical = logical as f64 * (1.0 + choice.op_percent / 100.0);
    let profile = shortened(&flash.profile, physical / f64::from(units));
    let geometry = geometry_of(&profile, units)?;
    let (blocks, slots) = blocks_for(&geometry, physical, &settings)?;
    let mut layout = flash.layout.clone();
    // As much flash as before, in shorter blocks: so a cache shrinks as the capacity does.
    let full = u64::from(layout.blocks_per_plane) * u64::from(flash.profile.pages_per_block);
    layout.blocks_per_plane =
        u32::try_from(full / u64::from(profile.pages_per_block)).unwrap_or(u32::MAX).max(blocks);
    // Half a block more, as it is cut to whole ones.
    let utilization = (logical as f64 + 0.5) / slots as f64;
    let ftl = FtlChoice { utilization, settings };
    let inside = Inside::Ftl(Flash { profile, layout, fast: None }, Box::new(ftl));
    let spec = DeviceSpec { inside, ..spec.clone() };
    spec.build(Scale::BlocksPerPlane(blocks), &Faults::default(), choice.seed)
}

/// Blocks of each unit, and slots of all, of which `physical` are left beside what a small device
/// would not have: open bands, and what the FTL keeps for itself.
fn blocks_for(
    geometry: &Geometry,
    physical: f64,
    settings: &Settings,
) -> Result<(u32, u64), String> {
    let shape = stream::Shape { blocks: 1, handles: settings.handles };
    let handles = stream::by_name(&settings.policies.stream, shape)?.handles();
    // Open bands are half full on average.
    let open = u64::from(handles.host + handles.moved) * u64::from(geometry.units) / 2;
    let slots_per_unit = geometry.units * geometry.slots_per_block();
    let least = (physical / f64::from(slots_per_unit)) as u32 + 1;
    for blocks_per_unit in least..least.saturating_mul(16).saturating_add(1024) {
        let geometry = Geometry { blocks_per_unit, ..*geometry };
        let most = ftl::logical_blocks_max(&geometry, &Health::default(), settings);
        let own = geometry.slots().saturating_sub(u64::from(most));
        let spare = own + open * u64::from(geometry.slots_per_block());
        if most > 0 && geometry.slots() as f64 >= physical + spare as f64 {
            return Ok((blocks_per_unit, geometry.slots()));
        }
    }
    Err("its flash cannot be made small enough: use a trace that touches more".into())
}

/// The geometry of this flash, with one block for each unit.
fn geometry_of(profile: &Profile, units: u32) -> Result<Geometry, String> {
    let layout = Layout { channels: units, dies_per_channel: 1, blocks_per_plane: 1 };
    let nand = Nand::new(profile, &layout, Faults::default()).map_err(|why| why.to_string())?;
    Ok(nand.geometry())
}

/// The flash with blocks so short that `slots` of a unit make many.
fn shortened(profile: &Profile, slots: f64) -> Profile {
    let slots_per_page = f64::from(profile.planes * profile.page_bytes / BLOCK_BYTES as u32);
    let wanted = (slots / slots_per_page / f64::from(BLOCKS_PER_UNIT)) as u32;
    // Whole wordlines, and an even number of them for any page order.
    let step = (2 * profile.bits_per_cell).max(2);
    let pages = (wanted.max(PAGES_MIN).div_ceil(step) * step).min(profile.pages_per_block);
    let erase_ns = profile.erase_ns * u64::from(pages) / u64::from(profile.pages_per_block);
    Profile { pages_per_block: pages, erase_ns, ..profile.clone() }
}

/// When the requests of the timed pass go out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Playing {
    /// When the trace says, so many times as fast.
    Timestamps(f64),
    /// So many in flight.
    Depth(u32),
}

/// A timed pass.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// How it is played.
    pub playing: Playing,
    /// Ends as soon as it is clear that the device cannot keep up.
    pub gives_up: bool,
    /// Of the fill.
    pub seed: u64,
}

/// Fills the device, ages it by the changes of the trace, and plays the trace. `progress` is told
/// how many requests were done since it was told last.
pub fn measure(
    target: &mut dyn Target,
    trace: &Recorded,
    pass: Pass,
    progress: &mut dyn FnMut(u64),
) -> Result<Timed, Failure> {
    let Pass { playing, gives_up, seed } = pass;
    let failed = |error: crate::replay::ReplayError| Failure(error.to_string());
    precondition(target, Precondition::Fill, seed, &mut |_| {}).map_err(failed)?;
    let mut play = |records: &mut dyn Iterator<Item = Record>,
                    (pace, end_ns): (Pace, u64),
                    tell: &mut dyn FnMut(u64)| {
        let records = records.map(Ok::<_, TraceError>);
        let options = LaneOptions { part: Part::All, pace, write_cap: None };
        let mut lanes = Lanes::new(vec![(options, Box::new(records))]);
        let before = target.counts();
        let fit = Fit::whole(target.bytes());
        let (tally, took_ns) = run_until(end_ns, target, &mut lanes, &fit, tell).map_err(failed)?;
        match &tally.first_error {
            Some(error) => Err(Failure(error.clone())),
            None => Ok((tally, took_ns, before, target.counts())),
        }
    };
    play(&mut aging(trace).copied(), (Pace::Depth(DEPTH), u64::MAX), &mut |_| {})?;
    let last = &trace.requests[trace.requests.len().saturating_sub(REQUESTS_MAX)..];
    let from = last.first().map_or(0, |record| record.time_ns);
    let mut records =
        last.iter().map(|record| Record { time_ns: record.time_ns - from, ..*record });
    let span_ns = last.last().map_or(0, |record| record.time_ns - from) as f64;
    let (pace, behind_ns) = match playing {
        Playing::Timestamps(load) => {
            let pace = Pace::Timestamps { load, in_flight_max: IN_FLIGHT_MAX };
            (pace, (span_ns / load * BEHIND_MAX + BEHIND_NS) as u64)
        }
        Playing::Depth(depth) => (Pace::Depth(depth), u64::MAX),
    };
    let end_ns = if gives_up { behind_ns } else { u64::MAX };
    let mut told = 0;
    let mut tell = |done: u64| progress(done - std::mem::replace(&mut told, done));
    let (tally, took_ns, before, after) = play(&mut records, (pace, end_ns), &mut tell)?;
    let host = (after.bytes_written - before.bytes_written).max(1) as f64;
    let moved = (after.bytes_relocated - before.bytes_relocated) as f64;
    let programmed = (after.bytes_programmed - before.bytes_programmed) as f64;
    Ok(Timed {
        reads: tally.kind(Op::Read).latency.clone(),
        writes: tally.kind(Op::Write).latency.clone(),
        keeps_up: took_ns <= behind_ns,
        overhead: (programmed - host - moved).max(0.0) / host,
        waf: 1.0 + moved / host,
        bytes_per_s: host * 1e9 / took_ns.max(1) as f64,
    })
}

/// Writes and trims, up to the first request of the timed pass and as many as write the device once.
fn aging(trace: &Recorded) -> impl Iterator<Item = &Record> {
    let count = trace.requests.len();
    let end = count.saturating_sub(REQUESTS_MAX);
    let changes = |record: &Record| matches!(record.op, Op::Write | Op::Trim);
    let at = move |back: usize| &trace.requests[(end + count - 1 - back % count) % count];
    let (mut back, mut bytes) = (0, 0);
    while bytes < trace.bytes() {
        let record = at(back);
        bytes += if record.op == Op::Write { record.length } else { 0 };
        back += 1;
    }
    (0..back).rev().map(at).filter(move |&record| changes(record))
}
