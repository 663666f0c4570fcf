//! How a volume of a pool is opened for a shard: it is taken over, then its FTL is mounted, all in real time.

use super::{Notice, VolumeBackend};
use crate::backend::{Backend, Opened as Started, Starter};
use crate::device::{Stretch, Table, Volume, encode_volumes};
use crate::pool::block::Block;
use crate::pool::plane::PlaneLink;
use crate::pool::reach::{Caller, Dialed, Reach};
use crate::pool::{config::PlaneConfig, tls};
use crate::runtime::ring::Ring;
use crate::runtime::shard::{AnyCore, Clock, CoreFormat, CoreSettings, Engine, Mailbox, Milestone};
use flash::{Instant, SECOND};
use ftl::{FormatOptions, MountError, MountReport, Settings};
use pool::control::contract::{PlaneAnswer, PlaneAskId};
use pool::control::ownership::OwnershipConfig;
use pool::control::values::VolumeRecord;
use pool::opening::{Opened, OpeningConfig};
use pool::repair::RepairConfig;
use pool::session::{Session, SessionConfig};
use pool::words::{BandShape, Generation};
use std::sync::Arc;

/// How often the log tells what an opening waits for.
const TELL_NS: u64 = 5 * SECOND;

/// A volume to be opened.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// The way to its control plane.
    pub plane: PlaneConfig,
    /// What it is.
    pub record: VolumeRecord,
    /// How its FTL works.
    pub settings: Settings,
    /// What this client calls itself, for people.
    pub client: String,
    /// Nodes that are away are not waited for: see `pool::opening`.
    pub go_on: bool,
    /// What repair and scrub may take.
    pub repairs: Repairs,
}

/// What repair and scrub of a volume may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repairs {
    /// Bytes a second of all copies together.
    pub bytes_per_s_max: u64,
    /// Copies at once.
    pub copies_max: u32,
    /// A node that is away so long is taken for lost.
    pub absence_ns: u64,
    /// Nodes may differ by this share of their room before bands move.
    pub spread_max: f64,
    /// Bytes a second that scrub reads, over all nodes; 0: never.
    pub scrub_bytes_per_s: u64,
}

impl Default for Repairs {
    fn default() -> Self {
        let of = RepairConfig::new(Generation(1), 2, BandShape::default());
        Self {
            bytes_per_s_max: of.bytes_per_s_max,
            copies_max: of.copies_max,
            absence_ns: of.absence_ns,
            spread_max: of.spread_max,
            scrub_bytes_per_s: of.scrub_bytes_per_s,
        }
    }
}

impl Repairs {
    fn set(&self, of: &mut RepairConfig) {
        of.bytes_per_s_max = self.bytes_per_s_max;
        of.copies_max = self.copies_max;
        of.absence_ns = self.absence_ns;
        of.spread_max = self.spread_max;
        of.scrub_bytes_per_s = self.scrub_bytes_per_s;
    }
}

/// What makes the engine of the volume. `mailbox` is the way to it.
pub fn starter(options: VolumeOptions, mailbox: Arc<Mailbox<Notice>>) -> Starter {
    Box::new(move |ring| {
        let clock = Clock::starting_at(Instant(0));
        let mut backend = backend(&options, mailbox)?;
        match take_over(&mut backend, ring, &clock) {
            Ok(opened) => mount(backend, &opened, &options, (ring, clock)),
            Err(reason) => {
                backend.reach.hang_up();
                backend.mailbox.wake();
                ring.free(backend);
                Err(reason)
            }
        }
    })
}

fn backend(
    options: &VolumeOptions,
    mailbox: Arc<Mailbox<Notice>>,
) -> Result<VolumeBackend, String> {
    let plane = &options.plane;
    let link = PlaneLink::connect(plane, hears(0, &mailbox)).map_err(|error| error.to_string())?;
    let post = Arc::clone(&mailbox);
    let dialed = move |dialed: Dialed| post.push(Notice::Dialed(dialed));
    let tls = Some((Arc::clone(&plane.identity.client), tls::server_name(plane.pool)));
    let owner = crate::pool::drawn().map_err(|error| error.to_string())?;
    let caller = Caller { pool: plane.pool, name: name(options, owner), tls };
    let session = session(Instant(0), options, owner);
    let reach = Reach::new(caller, Arc::new(dialed));
    let mut backend = VolumeBackend::new(options.clone(), session, (reach, link), mailbox);
    if options.go_on {
        backend.told(Instant(0), Notice::GoOn);
    }
    Ok(backend)
}

/// Brings the answers of the control plane to one of the openings of a client.
pub(super) fn hears(
    opening: u64,
    mailbox: &Arc<Mailbox<Notice>>,
) -> impl Fn(PlaneAskId, PlaneAnswer) + Send + Sync + 'static {
    let post = Arc::clone(mailbox);
    move |id, answer| post.push(Notice::Plane(opening, id, answer))
}

/// What a client calls itself at nodes. No other one, and no other opening of this one, does: see `node/guests.rs`.
pub(super) fn name(options: &VolumeOptions, owner: u128) -> String {
    format!("{} {:016x}", options.client, owner as u64)
}

/// A session that begins to take the volume over.
pub(super) fn session(now: Instant, options: &VolumeOptions, owner: u128) -> Session<Block> {
    let VolumeOptions { plane, record, .. } = options;
    let opening = OpeningConfig::new(plane.pool, OwnershipConfig::new(record.volume, owner));
    let mut config = SessionConfig::new(opening, pool::volume::geometry(record));
    config.client.seed = owner as u64;
    options.repairs.set(&mut config.repair);
    Session::new(now, config)
}

/// What the FTL is mounted with.
pub(super) fn settings(options: &VolumeOptions) -> Result<CoreSettings, String> {
    let settings = CoreSettings::Block(Box::new(options.settings.clone()));
    Ok(settings.with_blocks_min(blocks_of(&options.record)?))
}

/// Waits until the volume is ours, however long that takes.
fn take_over(
    backend: &mut VolumeBackend,
    ring: &mut Ring,
    clock: &Clock,
) -> Result<Box<Opened>, String> {
    let mut done = Vec::new();
    let mut tell_at = clock.now() + TELL_NS;
    // What it was made with has something to say.
    while let Some(output) = backend.session.poll() {
        backend.carry_out(clock.now(), output);
    }
    loop {
        let now = clock.now();
        backend.run(now, ring);
        if let Some(opened) = backend.opened.take() {
            return opened.map_err(|error| error.to_string());
        }
        if now >= tell_at {
            tell_at = now + TELL_NS;
            let plane = backend.plane.trouble();
            tracing::warn!(waits = backend.explain(), plane, "the volume is not open yet");
        }
        let next = backend.deadline().unwrap_or(tell_at).min(tell_at);
        let wait_ns = next - clock.now();
        enter(ring, wait_ns, &mut done)?;
        done.drain(..).for_each(|done| backend.io_done(clock.now(), done, ring));
    }
}

fn enter(
    ring: &mut Ring,
    wait_ns: u64,
    done: &mut Vec<crate::runtime::ring::Done>,
) -> Result<(), String> {
    ring.enter(Some(wait_ns), done).map_err(|error| format!("{}: {error}", ring.report().name))
}

/// Mounts the FTL, or formats it where the volume was never used.
fn mount(
    backend: VolumeBackend,
    opened: &Opened,
    options: &VolumeOptions,
    (ring, clock): (&mut Ring, Clock),
) -> Result<Started, String> {
    let is_whole = opened.refused.is_empty() && opened.complete;
    let is_new = opened.bands.is_empty() && is_whole;
    let lacks = |error: String| {
        if is_whole { error } else { without(opened, &error, options.settings.salvage) }
    };
    let mut medium: Box<dyn Backend> = Box::new(backend);
    let mut format = is_new;
    loop {
        medium.begin_mount();
        let mut engine = engine(medium, format, options, (ring, &clock))?;
        let error = match run_until_ready(&mut engine, ring, &clock) {
            Ok(Ok(report)) => match as_recorded(report, &options.record) {
                Ok(report) if is_whole || refused(&report) == 0 => {
                    return Ok((engine, clock, report));
                }
                Ok(report) => lacks(format!(
                    "of {} blocks nobody knows whether they were written later",
                    refused(&report)
                )),
                Err(error) => error,
            },
            Ok(Err(MountError::NotFormatted))
                if !format
                    && is_whole
                    && !engine.medium.lost_slots()
                    && !options.settings.read_only =>
            {
                // A format that was cut off has left bands, and nothing that anybody was promised.
                (medium, format) = (engine.medium, true);
                continue;
            }
            Ok(Err(MountError::NotFormatted)) if !is_whole => {
                lacks("what its recovery begins with is nowhere else".into())
            }
            Ok(Err(error)) => lacks(error.to_string()),
            Err(error) => error,
        };
        engine.medium.end(&mut || clock.now(), ring);
        ring.free(engine);
        return Err(error);
    }
}

/// Blocks whose reads would fail, and with them all writes, as they may be older than what was written last.
fn refused(report: &MountReport) -> u64 {
    report.blocks_refused + report.rebuilt.as_ref().map_or(0, |rebuilt| rebuilt.blocks_refused)
}

/// Why a volume that was opened without waiting for nodes that are away cannot be used, and what to do.
fn without(opened: &Opened, error: &str, salvages: bool) -> String {
    let away: Vec<String> = opened.away.iter().map(|node| node.0.to_string()).collect();
    let gone_for_good = match salvages {
        true => "Too little is left for --salvage: if they are gone for good, so is the volume",
        false => {
            "If they are gone for good, `weir pool client --salvage` has what was found shown, which may be older than \
             what was written last, where enough of it was found"
        }
    };
    format!(
        "without nodes {}, which are away, the volume cannot be used: {error}. Bring them back and start the client again: \
         where it is not told to go on (`client.go_on`) it waits for them. {gone_for_good}",
        away.join(", ")
    )
}

/// The engine over what was taken over; what is below goes as it should if there can be none.
fn engine(
    mut medium: Box<dyn Backend>,
    format: bool,
    options: &VolumeOptions,
    (ring, clock): (&mut Ring, &Clock),
) -> Result<Engine, String> {
    let (geometry, health) = (*medium.geometry(), medium.health());
    let settings = settings(options)?;
    let format = format.then(|| format_of(options).map(CoreFormat::Block)).transpose();
    let core =
        format.and_then(|format| AnyCore::start(geometry, &health, format, settings.clone()));
    match core {
        Ok(core) => Ok(Engine::new(core, medium, &settings)),
        Err(error) => {
            medium.end(&mut || clock.now(), ring);
            ring.free(medium);
            Err(error)
        }
    }
}

/// Goes on until the mount or format has ended.
fn run_until_ready(
    engine: &mut Engine,
    ring: &mut Ring,
    clock: &Clock,
) -> Result<Result<MountReport, MountError>, String> {
    let mut done = Vec::new();
    let mut tell_at = clock.now() + TELL_NS;
    loop {
        let now = clock.now();
        if now >= tell_at {
            tell_at = now + TELL_NS;
            let waits = engine.medium.explain();
            tracing::warn!(waits, "the volume is not mounted yet");
        }
        engine.note_time(now);
        engine.turn(now, ring);
        if let Some(lost) = engine.medium.lost() {
            return Err(lost.to_string());
        }
        match engine.milestone() {
            Some(Milestone::Ready(result)) => return Ok(result),
            Some(_) => return Err("the FTL stopped before it was ready".into()),
            None => {}
        }
        let next = engine.deadline().unwrap_or(tell_at).min(tell_at);
        enter(ring, next - clock.now(), &mut done)?;
        done.drain(..).for_each(|done| engine.io_done(clock.now(), done, ring));
    }
}

fn format_of(options: &VolumeOptions) -> Result<FormatOptions, String> {
    let record = &options.record;
    let uuid = options.plane.pool.0 ^ u128::from(record.volume.0);
    Ok(FormatOptions { logical_blocks: blocks_of(record)?, uuid, label: label_of(record)? })
}

fn blocks_of(record: &VolumeRecord) -> Result<u32, String> {
    u32::try_from(record.blocks).map_err(|_| "a volume has at most 16 TiB".to_owned())
}

/// The table of the one volume that this is.
fn label_of(record: &VolumeRecord) -> Result<Vec<u8>, String> {
    let whole = Stretch { first: 0, blocks: record.blocks };
    let table = Table::made(vec![Volume::made(1, record.name.clone(), whole, false)]);
    encode_volumes(&table).ok_or_else(|| "the name of the volume is too long".to_owned())
}

/// What was mounted, as the record of the volume has it: what a volume of a pool is called and how large it is stands
/// there, and in the label only as it was when it was made.
fn as_recorded(mut report: MountReport, record: &VolumeRecord) -> Result<MountReport, String> {
    if u64::from(report.logical_blocks) < record.blocks {
        return Err(format!(
            "the volume has {} blocks of 4 KiB, and its record tells of {}: leave `ftl.map_memory` and `ftl.read_only` out \
             of the config of its client for this start, in which it grows",
            report.logical_blocks, record.blocks
        ));
    }
    report.label = label_of(record)?;
    Ok(report)
}
