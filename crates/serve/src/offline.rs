//! Devices without a server: making one, and looking into one. Time is virtual, so nothing waits
//! for emulated flash.

mod sweep;

pub use sweep::{Run, Sweep};

use crate::device::{
    self, Device, DeviceError, DeviceOptions, Growth, KeptOptions, Kind, Mode, Wish,
};
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::{DriverChoice, Ring};
#[cfg(test)]
use crate::runtime::shard::Finished;
use crate::runtime::shard::{Engine, Milestone, Origin, Piece, RawShape, ShardStatus, Work};
use crate::server::{run_until_milestone, start_engine, stop_engine, virtual_turn};
use crate::volume::Split;
use flash::{BLOCK_BYTES, Instant, RequestError};
use ftl::raw::RawUnits;
use ftl::{Ftl, Input, MountReport, Settings};
use std::path::Path;
use std::time::Duration;

const RING_ENTRIES: u32 = 64;

/// One shard of a device that is mounted without a server.
pub struct Offline {
    // Dropped first: what it has under way points into the engine.
    ring: Ring,
    engine: Engine,
    now: Instant,
    report: MountReport,
    device: std::rc::Rc<Device>,
}

/// Makes and formats a device, and closes it.
pub fn format(options: &DeviceOptions, settings: &Settings) -> Result<(), DeviceError> {
    if Device::exists(&options.kind) {
        let path = match &options.kind {
            Kind::Nand { path, .. } | Kind::File { path } => path.clone(),
            Kind::Memory { .. } => Default::default(),
        };
        return Err(DeviceError::Exists(path));
    }
    // Closed well at once: nothing is to be resumed.
    let options = &DeviceOptions { kept: KeptOptions::off(), ..options.clone() };
    let mut device = Device::create(options, settings)?;
    let settings = options.core_settings(settings);
    let media = std::mem::take(&mut device.media);
    let settings = settings.of_shard(media.len());
    let formats = std::mem::take(&mut device.formats);
    for (shard, (medium, format)) in media.into_iter().zip(formats).enumerate() {
        let failed = |reason| DeviceError::Mount { shard, reason };
        let mut ring = ring().map_err(failed)?;
        let started = start_engine(Box::new(medium), Some(format), settings.clone(), &mut ring);
        let (mut engine, mut now, _) = started.map_err(failed)?;
        let stopped = stop_engine(&mut engine, &mut ring, &mut now);
        ring.free(engine);
        stopped.map_err(failed)?;
    }
    device.commit()?;
    device.close()
}

/// Mounts a device, hands its shards to `look`, and, unless only reading, stops them cleanly.
pub fn with_device<T>(
    kind: &Kind,
    settings: &Settings,
    read_only: bool,
    look: impl FnOnce(&mut [Offline]) -> T,
) -> Result<T, DeviceError> {
    let mode = if read_only { Mode::ReadOnly } else { Mode::ReadWrite };
    let device = Device::open(kind, mode)?;
    if let (false, Some(why)) = (read_only, device.impaired().first()) {
        return Err(device::read_only(kind, why));
    }
    with_opened(device, settings, read_only, look)
}

/// Looks at a device whose fast tier may be at another place than it was last.
pub fn look_beside<T>(
    kind: &Kind,
    fast: Option<&Path>,
    settings: &Settings,
    look: impl FnOnce(&mut [Offline]) -> T,
) -> Result<T, DeviceError> {
    with_opened(Device::open_beside(kind, fast, Mode::ReadOnly)?, settings, true, look)
}

/// Opens a device. One that gets a fast tier by that is mounted to be looked at before: what its snapshots take in the map
/// has its place in the tier, too, and nobody else knows how much it is.
pub fn open(
    options: &DeviceOptions,
    settings: &Settings,
    mode: Mode,
) -> Result<Device, DeviceError> {
    let attaches = mode == Mode::ReadWrite && Device::lacks_fast(options);
    let shadow_blocks = match attaches {
        true => {
            let look = |shards: &mut [Offline]| {
                (shadow_blocks(shards), shards.iter().any(|shard| shard.report.may_grow))
            };
            let (shadow_blocks, may_grow) =
                with_device(&options.kind, &Settings::default(), true, look)?;
            if may_grow {
                // Behind a fast tier there is no room for more units.
                with_device(&options.kind, &Settings::default(), false, |_| ())?;
            }
            shadow_blocks
        }
        false => 0,
    };
    Device::open_as(options, (settings, shadow_blocks), mode)
}

/// Makes a device larger that nobody serves: see [`Wish`]. What it holds stays, and what comes belongs to no volume yet.
///
/// # Errors
/// It is not sound, is of a kind that does not grow, or has no room for what is wished.
pub fn grow(kind: &Kind, wish: Wish, settings: &Settings) -> Result<Growth, DeviceError> {
    Device::expect_to_grow(kind)?;
    let settings = Settings { map_bytes: 0, read_only: false, ..settings.clone() };
    let look = |shards: &mut [Offline]| shards[0].impaired().first().cloned();
    if let Some(why) = with_device(kind, &settings, true, look)? {
        return Err(device::read_only(kind, &why));
    }
    // It is mounted well, and a growth that was cut off is finished, before anything of it becomes longer.
    let shadow_blocks = with_device(kind, &settings, false, |shards| {
        prepare_volumes(shards).map(|()| shadow_blocks(shards))
    })??;
    let growth = Device::grow(kind, wish, (&settings, shadow_blocks))?;
    with_device(kind, &settings, false, |_| ())?;
    Ok(growth)
}

/// The volumes of a device, if its table is sound.
pub fn volumes_of(shards: &[Offline]) -> Option<device::Table> {
    device::volumes_of(&shards[0].report.label, device_blocks(shards))
}

fn device_blocks(shards: &[Offline]) -> u64 {
    Split::new(shards.len()).device_blocks(shards[0].report.logical_blocks)
}

/// Has the table of the volumes say of how large a device it is, before that becomes larger.
fn prepare_volumes(shards: &mut [Offline]) -> Result<(), DeviceError> {
    let failed = |reason: &str| DeviceError::Mount { shard: 0, reason: reason.into() };
    let table = volumes_of(shards).ok_or_else(|| failed("the volume table is damaged"))?;
    let Some(table) = table.before_growth(device_blocks(shards)) else { return Ok(()) };
    let full = "the names of volumes and snapshots leave no room in the volume table: delete or rename one of them";
    let label = device::encode_volumes(&table).ok_or_else(|| failed(full))?;
    shards[0].relabel(&label).map_err(|reason| failed(&reason))
}

/// Entries that the snapshots of a device have in the map of a shard.
fn shadow_blocks(shards: &mut [Offline]) -> u32 {
    shards.iter().filter_map(Offline::ftl).map(Ftl::shadow_blocks).max().unwrap_or(0)
}

/// Puts an empty fast tier before a device that has none.
pub fn attach_fast(options: &DeviceOptions, settings: &Settings) -> Result<(), DeviceError> {
    let options = DeviceOptions { kept: KeptOptions::off(), ..options.clone() };
    let device = open(&options, settings, Mode::ReadWrite)?;
    with_opened(device, settings, false, |_| ())
}

fn with_opened<T>(
    mut device: Device,
    settings: &Settings,
    read_only: bool,
    look: impl FnOnce(&mut [Offline]) -> T,
) -> Result<T, DeviceError> {
    let settings = device::core_settings(device.raw.as_ref(), settings).with_read_only(read_only);
    let settings = settings.with_blocks_min(device.logical_blocks());
    let media = std::mem::take(&mut device.media);
    let settings = settings.of_shard(media.len());
    let mut started = Vec::new();
    for (shard, medium) in media.into_iter().enumerate() {
        let failed = |reason| DeviceError::Mount { shard, reason };
        let mut ring = ring().map_err(failed)?;
        let (engine, now, report) =
            start_engine(Box::new(medium), None, settings.clone(), &mut ring).map_err(failed)?;
        started.push((ring, engine, now, report));
    }
    match device.contradicted(started.iter().map(|(.., report)| report)) {
        // Who only looks is told, and may look.
        Some(contradicted) if read_only => device.impair(contradicted.to_string()),
        Some(contradicted) => {
            started.into_iter().for_each(|(mut ring, engine, ..)| ring.free(engine));
            return Err(contradicted);
        }
        None => {}
    }
    let device = std::rc::Rc::new(device);
    let offline = |(ring, engine, now, report)| {
        let device = device.clone();
        Offline { ring, engine, now, report, device }
    };
    let mut shards: Vec<Offline> = started.into_iter().map(offline).collect();
    let result = look(&mut shards);
    for (shard, offline) in shards.iter_mut().enumerate().filter(|_| !read_only) {
        stop_engine(&mut offline.engine, &mut offline.ring, &mut offline.now)
            .map_err(|reason| DeviceError::Mount { shard, reason })?;
    }
    drop(shards);
    if let (false, Some(mut device)) = (read_only, std::rc::Rc::into_inner(device)) {
        device.close()?;
    }
    Ok(result)
}

fn ring() -> Result<Ring, String> {
    Ring::new(RING_ENTRIES, DriverChoice::Auto).map_err(|error| error.to_string())
}

impl Drop for Offline {
    fn drop(&mut self) {
        // The engine's memory is freed next: the kernel must hold none of it.
        if !self.ring.settle(Duration::MAX) {
            tracing::error!(
                "the kernel does not tell what it still does with this process's memory"
            );
            std::process::abort();
        }
    }
}

impl Offline {
    /// What the mount found.
    pub fn report(&self) -> &MountReport {
        &self.report
    }

    /// What of the device is lost, and why nothing may be written to it.
    pub fn impaired(&self) -> &[String] {
        self.device.impaired()
    }

    /// Keeps another label, durably.
    fn relabel(&mut self, label: &[u8]) -> Result<(), String> {
        self.engine.core.handle(self.now, Input::Label(label));
        match run_until_milestone(&mut self.engine, &mut self.ring, &mut self.now)? {
            Milestone::Labelled(true) => Ok(()),
            _ => Err("the volume table could not be written".into()),
        }
    }

    /// The FTL, to ask what it knows; `None` for raw units.
    pub fn ftl(&self) -> Option<&Ftl> {
        self.engine.core.ftl()
    }

    /// The raw units, to ask what they know; `None` for the FTL.
    pub fn raw(&self) -> Option<&RawUnits> {
        self.engine.core.raw()
    }

    /// The shape of raw units.
    pub fn raw_shape(&self) -> Option<RawShape> {
        self.engine.raw_shape()
    }

    /// The state, as a server would tell it.
    pub fn state(&self) -> ShardStatus {
        ShardStatus {
            core: self.engine.status(),
            connections: 0,
            requests: 0,
            requests_limited: 0,
            requests_put_off: 0,
            buffer_bytes: 0,
            wear: Vec::new(),
            moved_bytes_per_sec: Vec::new(),
            wear_fast: Vec::new(),
            fenced: false,
            lacks_room: false,
            slow_requests: 0,
            destage_bytes_per_sec: 0,
            driver: self.ring.report().clone(),
            now: Instant(0),
            latencies: Default::default(),
            slow: Vec::new(),
        }
    }

    /// Shape of the medium.
    pub fn geometry(&self) -> flash::Geometry {
        *self.engine.medium.geometry()
    }

    /// Reads `blocks` logical blocks. The bytes are verified by their checksums.
    pub fn read(&mut self, lba: u32, blocks: u32) -> Result<Vec<u8>, RequestError> {
        let buffer = Buffer::new(blocks);
        self.execute(Work::Read, lba, &buffer)?;
        Ok(buffer.bytes().to_vec())
    }

    /// Writes whole logical blocks.
    ///
    /// # Panics
    /// If `bytes` are not whole blocks, or none.
    pub fn write(&mut self, lba: u32, bytes: &[u8]) -> Result<(), RequestError> {
        assert_eq!(bytes.len() % BLOCK_BYTES, 0, "whole logical blocks");
        let mut buffer = Buffer::new((bytes.len() / BLOCK_BYTES) as u32);
        buffer.bytes_mut().copy_from_slice(bytes);
        self.execute(Work::Write { fua: false, handle: 0, atomic: false }, lba, &buffer)
    }

    /// Executes pieces that all come at once, whose view is of the first buffer for a read and of the second for a
    /// write, and looks meanwhile at those that are older than `old_ns`. How long each took, and what became of it.
    #[cfg(test)]
    pub(crate) fn play(
        &mut self,
        pieces: &[(Work, u32, u32)],
        buffers: [&Buffer; 2],
        old_ns: u64,
    ) -> Vec<(u64, Finished)> {
        let begun = self.now;
        self.engine.note_time(begun);
        for (request, &(work, lba, blocks)) in (0..).zip(pieces) {
            let view = buffers[usize::from(work != Work::Read)].view(0, blocks);
            let origin = Origin { shard: 0, request };
            self.engine.submit(Piece { origin, work, lba, blocks, view });
        }
        let (mut ended, mut finished) = (Vec::new(), Vec::new());
        while ended.len() < pieces.len() {
            let at = self.now;
            self.engine.note_time(at);
            virtual_turn(&mut self.engine, &mut self.ring, &mut self.now).expect("it goes on");
            self.engine.take_finished(&mut finished);
            ended.extend(finished.drain(..).map(|finished| (at - begun, finished)));
            self.engine.look_at_old(at, old_ns);
            let due = self.engine.look_at_old_due().unwrap_or(self.now);
            self.now = self.now.min(due.max(at));
        }
        ended
    }

    /// Makes durable what was written.
    pub fn flush(&mut self) -> Result<(), RequestError> {
        let nothing = Buffer::new(1);
        self.execute(Work::Flush, 0, &nothing)
    }

    fn execute(&mut self, work: Work, lba: u32, buffer: &Buffer) -> Result<(), RequestError> {
        let blocks = if work == Work::Flush { 0 } else { buffer.blocks() };
        let origin = Origin { shard: 0, request: 0 };
        let view = buffer.view(0, blocks);
        self.engine.submit(Piece { origin, work, lba, blocks, view });
        let mut finished = Vec::new();
        while finished.is_empty() {
            let turned = virtual_turn(&mut self.engine, &mut self.ring, &mut self.now);
            // The ring is gone: what was asked for cannot be known any more.
            turned.map_err(|_| RequestError::Failed)?;
            self.engine.take_finished(&mut finished);
        }
        finished[0].result
    }
}
