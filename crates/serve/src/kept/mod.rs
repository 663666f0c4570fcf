//! Kept memory: what a mount would have to look for on the medium, in memory that outlives the process.
//! A server that was killed, or died, resumes with it at once; one whose machine went down cannot.
//!
//! It is a cache of the medium and nothing else ([`shard`]): the mount after a crash is the mount there
//! always is, only that some of its reads, and the search for write pointers, are answered from here.
//! Without it, or with a part of it, the same is found more slowly. What must not happen is that it
//! answers for a medium that has changed since. So it is believed only if
//! - it was left by this start of the machine (boot id), for this device (uuid, and the very file or
//!   disk), of this shape, by a build with this layout;
//! - nobody has opened the device for writing since: each such open counts up the generation on the
//!   medium, which must be the one that kept memory has noted;
//! - the page that was programmed last is on the medium: a disk that lost its volatile cache does not have
//!   it.
//!
//! A device that has less than was kept of it is an older copy that was put back, and is not written to
//! ([`newer`]).
//!
//! The head of the file, numbers little-endian; then the shards, each from a multiple of 4 KiB on:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | `WEIRKEPT` |
//! | 8..12 | version, 2 |
//! | 12..16 | CRC-32C of bytes 16..128 |
//! | 16..32 | uuid of the device |
//! | 32..48 | boot id |
//! | 48..56 | generation of the open that it belongs to |
//! | 56..64, 64..72 | device number and inode of the medium's file; of a disk its own number, and 0 |
//! | 72..76 | shards |
//! | 76..100 | units, blocks per unit, pages per block, slots per page, fast units, blocks of these |
//! | 100..104 | frames of each shard |
//!
//! Of a file that the config names, only an empty one or one that begins with that name of its own is taken:
//! anything else is somebody's.
//!
//! Invariant: the generation is noted here only after the medium has it, so that kept memory is never
//! ahead: a crash between the two costs the memory, no data.

mod region;
mod shard;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub use shard::Flaw;
use shard::Witness;
pub use shard::{KeptCounts, KeptShard};

use flash::{Geometry, Oob, SlotId};
use ftl::Settings;
use region::{KeptFile, MAGIC, Part};
use std::path::{Path, PathBuf};

/// Where kept memory is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum KeptPlace {
    /// A file in memory, named after the user and the device.
    #[default]
    Auto,
    /// Nowhere: every start is as one after a power loss.
    Off,
    /// This file.
    At(PathBuf),
}

/// What is asked of kept memory; chosen at each start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct KeptOptions {
    /// Where it is.
    pub place: KeptPlace,
    /// Most bytes of it; `None`: what a restart can need.
    pub bytes_max: Option<u64>,
}

impl KeptOptions {
    /// For whoever opens a device once and closes it.
    pub fn off() -> Self {
        Self { place: KeptPlace::Off, bytes_max: None }
    }

    /// The file for the device of this uuid.
    pub fn path(&self, uuid: u128) -> Option<PathBuf> {
        match &self.place {
            KeptPlace::Auto => {
                // SAFETY: no memory is involved.
                let user = unsafe { libc::geteuid() };
                Some(Path::new(MEMORY).join(format!("weir-{user}-{uuid:032x}")))
            }
            KeptPlace::Off => None,
            KeptPlace::At(path) => Some(path.clone()),
        }
    }
}

/// Where Linux has a file system in memory.
const MEMORY: &str = "/dev/shm";

/// What kept memory must be of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Identity {
    /// The device's; that of shard `i` is this one with `i` as exclusive or.
    pub uuid: u128,
    /// Opens for writing so far, as the medium says.
    pub generation: u64,
    /// Device number and inode of what the medium lies in.
    pub inode: [u64; 2],
    /// Shards.
    pub shards: u32,
    /// The shape of each.
    pub geometry: Geometry,
}

impl Identity {
    /// The head of kept memory with so many frames, of this start of the machine.
    fn head(&self, frames: u32, boot: &[u8; 16], generation: u64) -> [u8; SUMMED.end] {
        let Self { uuid, inode, shards, geometry, .. } = self;
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(uuid.to_le_bytes());
        bytes.extend(boot);
        bytes.extend(generation.to_le_bytes());
        bytes.extend(inode.iter().flat_map(|number| number.to_le_bytes()));
        let Geometry { units, blocks_per_unit, pages_per_block, slots_per_page, fast, .. } =
            *geometry;
        let shape = [units, blocks_per_unit, pages_per_block, slots_per_page];
        let fast = [fast.units, fast.blocks_per_unit];
        for number in [*shards].into_iter().chain(shape).chain(fast).chain([frames]) {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(SUMMED.end, 0);
        let crc = flash::crc(&bytes[SUMMED]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes.try_into().expect("resized to this length")
    }
}

/// The kept memory of an open device.
pub struct Kept {
    head: Part,
    /// Each shard's, until its medium takes it.
    shards: Vec<Option<KeptShard>>,
    identity: Identity,
    frames: u32,
    /// Why what was there, if anything, is of no use; `None`: it is.
    pub cold: Option<String>,
}

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4096;
const SUMMED: std::ops::Range<usize> = 16..128;
const GENERATION_AT: usize = 48;
const FRAMES_AT: usize = 100;

impl Kept {
    /// Opens what an earlier server has left of the device, or makes it empty.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(options: &KeptOptions, identity: Identity, frames: u32) -> Result<Self, String> {
        let Some(path) = options.path(identity.uuid) else {
            return Err("device.kept_memory is off".into());
        };
        let frames = frames_within(options.bytes_max, &identity, frames)?;
        let boot = boot_id()?;
        let bytes = bytes(&identity, frames);
        let found = KeptFile::open(&path)?;
        if let (KeptPlace::At(_), Some(file)) = (&options.place, &found) {
            file.is_kept_memory()?;
        }
        let (file, cold) = match found {
            Some(file) if file.bytes().is_ok_and(|found| found == bytes) => (file, None),
            Some(file) => (file, Some("kept memory has another size than this device's".into())),
            None => {
                let why = "there is no kept memory: a first start, or one after a clean shutdown or a \
                           restart of the machine";
                (KeptFile::create(&path)?, Some(why.into()))
            }
        };
        let parts = cut(file, bytes, &identity, frames, cold.is_some()).inspect_err(|_| {
            // What is not whole is of no use to anybody, and takes room.
            std::fs::remove_file(&path).ok();
        })?;
        let mut parts = parts.into_iter();
        let head = parts.next().expect("the head is cut off first");
        let mut kept = Self { head, shards: Vec::new(), identity, frames, cold };
        if kept.cold.is_none() {
            kept.cold = kept.refuse(&boot);
        }
        let trusted = kept.cold.is_none();
        for (index, part) in (0..).zip(parts) {
            let uuid_crc = ftl::format::uuid_crc(kept.identity.uuid ^ index);
            let geometry = &kept.identity.geometry;
            let mut shard = KeptShard::new(part, geometry, frames, uuid_crc, trusted);
            if !trusted {
                shard.clear();
            }
            kept.shards.push(Some(shard));
        }
        if !trusted {
            kept.write_head(&boot, kept.identity.generation);
        }
        Ok(kept)
    }

    /// What is wrong with the head; `None`: nothing.
    fn refuse(&self, boot: &[u8; 16]) -> Option<String> {
        let found = &self.head.bytes()[..SUMMED.end];
        let wanted = self.head_bytes(boot, self.identity.generation);
        let same = |range: std::ops::Range<usize>| found[range.clone()] == wanted[range];
        if !same(0..8) || word(found, 12) != flash::crc(&found[SUMMED]) {
            return Some("kept memory is damaged".into());
        }
        if !same(8..12) {
            let version = word(found, 8);
            return Some(format!("kept memory of version {version}: this build reads {VERSION}"));
        }
        if !same(16..32) {
            return Some("kept memory is of another device".into());
        }
        if !same(32..48) {
            return Some("kept memory is from before the machine was started".into());
        }
        if !same(56..72) {
            return Some("the device lies in another file or disk than kept memory is of".into());
        }
        if !same(72..SUMMED.end) {
            return Some("kept memory is of another shape than the device".into());
        }
        if !same(GENERATION_AT..GENERATION_AT + 8) {
            return Some(format!(
                "the device was opened without this kept memory since: its generation is {}, and {} in \
                 kept memory",
                self.identity.generation,
                long(found, GENERATION_AT)
            ));
        }
        None
    }

    fn head_bytes(&self, boot: &[u8; 16], generation: u64) -> [u8; SUMMED.end] {
        self.identity.head(self.frames, boot, generation)
    }

    fn write_head(&mut self, boot: &[u8; 16], generation: u64) {
        let bytes = self.head_bytes(boot, generation);
        self.head.bytes_mut()[..SUMMED.end].copy_from_slice(&bytes);
    }

    /// The medium has this generation now: kept memory belongs to this open.
    pub fn adopt(&mut self, generation: u64) {
        let boot = self.head.bytes()[32..48].try_into().expect("16 bytes");
        self.write_head(&boot, generation);
    }

    /// What an earlier server left is not what the medium holds.
    pub fn distrust(&mut self, why: &str) {
        self.cold.get_or_insert_with(|| why.into());
        self.head.bytes_mut()[MAGIC.len()..].fill(0);
        self.shards.iter_mut().flatten().for_each(KeptShard::clear);
    }

    /// Compares the page of a tier that was programmed last with what `on_medium` finds there.
    pub fn compare(
        &mut self,
        shard: u32,
        fast: bool,
        on_medium: impl FnOnce(SlotId) -> Option<Oob>,
    ) {
        match self.shard(shard).map_or(Witness::None, |shard| shard.witness(fast)) {
            Witness::Slot(slot, oob) if on_medium(slot) != Some(oob) => self.distrust(
                "the page that was programmed last is not on the medium: it lost its cache, or kept memory \
                 is a copy from before",
            ),
            Witness::Damaged => self.distrust("kept memory is damaged"),
            Witness::None | Witness::Slot(..) => {}
        }
    }

    /// The memory of a shard.
    pub fn shard(&mut self, index: u32) -> Option<&mut KeptShard> {
        self.shards.get_mut(index as usize)?.as_mut()
    }

    /// The memory of a shard, for its medium.
    pub fn take_shard(&mut self, index: u32) -> Option<KeptShard> {
        self.shards.get_mut(index as usize)?.take()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.head.path()
    }

    /// How much it is.
    pub fn bytes(&self) -> u64 {
        bytes(&self.identity, self.frames)
    }

    /// The device was closed well, and another start finds all it needs on the medium.
    pub fn discard(&self) {
        if let Err(error) = std::fs::remove_file(self.path()) {
            tracing::warn!(%error, "{}: kept memory cannot be given back", self.path().display());
        }
    }
}

/// Why the device must be an older copy of what was kept of it, if it must: kept memory knows of a later open,
/// or of a slot that is not there. `on_medium` tells what a shard holds in a slot, and the erase count of
/// its block, where nothing but a copy explains that less is there. Nothing is changed.
pub fn newer(
    options: &KeptOptions,
    identity: &Identity,
    mut on_medium: impl FnMut(u32, SlotId) -> Option<(Oob, u32)>,
) -> Option<String> {
    let path = options.path(identity.uuid)?;
    let boot = boot_id().ok()?;
    // What is in use, or not ours, tells nothing.
    let file = KeptFile::open(&path).ok()??;
    let mut head = [0; SUMMED.end];
    file.read_at(&mut head, 0).ok()?;
    let (frames, noted) = (word(&head, FRAMES_AT), long(&head, GENERATION_AT));
    // Where it lies is no matter: who puts a copy back may make new files.
    let inode = [56, 64].map(|at| long(&head, at));
    let identity = Identity { inode, ..identity.clone() };
    let wanted = identity.head(frames, &boot, noted);
    let is_sound = word(&head, 12) == flash::crc(&head[SUMMED]);
    let is_of_it = [0..12, 16..48].into_iter().all(|range| head[range.clone()] == wanted[range]);
    if !is_sound || !is_of_it {
        return None;
    }
    let mend = format!(
        "put back what was last in use; or, to go on from this copy, remove {}",
        path.display()
    );
    if noted != identity.generation {
        let found = identity.generation;
        return (noted > found).then(|| {
            format!(
                "is an older copy: it was opened {found} times, and {noted} times as was kept since this \
                 machine was started; {mend}"
            )
        });
    }
    // It may have become larger, or got a fast tier, without having been opened since.
    if head != wanted || file.bytes().ok()? != bytes(&identity, frames) {
        return None;
    }
    let parts = cut(file, bytes(&identity, frames), &identity, frames, false).ok()?;
    for (index, part) in (0..).zip(parts.into_iter().skip(1)) {
        let uuid_crc = ftl::format::uuid_crc(identity.uuid ^ u128::from(index));
        let shard = KeptShard::new(part, &identity.geometry, frames, uuid_crc, true);
        for fast in [false, true] {
            let Witness::Slot(slot, oob) = shard.witness(fast) else { continue };
            if on_medium(index, slot).is_some_and(|found| shard.is_newer((slot, oob), found)) {
                return Some(format!(
                    "is an older copy: the slot that was programmed last in shard {index}, as was kept \
                     since this machine was started, is not there; {mend}"
                ));
            }
        }
    }
    None
}

fn cut(
    file: KeptFile,
    bytes: u64,
    identity: &Identity,
    frames: u32,
    empty: bool,
) -> Result<Vec<Part>, String> {
    let shard = shard::shard_bytes(&identity.geometry, frames) as usize;
    let lengths: Vec<usize> =
        [HEAD_BYTES].into_iter().chain((0..identity.shards).map(|_| shard)).collect();
    Ok(file.map(bytes, empty)?.cut(&lengths))
}

fn bytes(identity: &Identity, frames: u32) -> u64 {
    let shard = shard::shard_bytes(&identity.geometry, frames);
    HEAD_BYTES as u64 + u64::from(identity.shards) * shard
}

/// Frames of a shard: enough for what a replay reads, that is the blocks which are opened from one
/// checkpoint to the next, and those that are open then.
pub fn frames_wanted(geometry: &Geometry, logical_blocks: u32, settings: &Settings) -> u32 {
    let slots = ftl::checkpoint_slots(geometry, logical_blocks, settings);
    // A checkpoint takes its time, in which the host goes on.
    let bands = (slots + slots / 8).div_ceil(u64::from(geometry.slots_per_block()));
    let open = geometry.units * (u32::from(settings.handles) + 2);
    u32::try_from(bands + u64::from(open)).unwrap_or(u32::MAX).min(geometry.blocks())
}

fn frames_within(max: Option<u64>, identity: &Identity, frames: u32) -> Result<u32, String> {
    let Some(max) = max else { return Ok(frames) };
    let least = bytes(identity, 0);
    if max < least {
        return Err(format!(
            "device.kept_memory_max is {max} bytes, and {least} are the least for this device"
        ));
    }
    let frame = shard::frame_bytes(&identity.geometry) as u64;
    // The rest of the last 4 KiB of each shard is not worth a frame.
    let fits = ((max - least) / u64::from(identity.shards) / frame) as u32;
    let mut frames = frames.min(fits);
    while frames > 0 && bytes(identity, frames) > max {
        frames -= 1;
    }
    Ok(frames)
}

/// Which start of the machine this is.
pub(crate) fn boot_id() -> Result<[u8; 16], String> {
    const FILE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}"))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| format!("{FILE} holds no id"))?;
    Ok(number.to_le_bytes())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}
