//! Devices in a plain file or on a block device: the header, and where each shard's part lies. The
//! layout is told in `medium/direct.rs`, that on a zoned device in `zoned.rs`. The header is sector 0,
//! numbers little-endian:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | `b"WEIRFILE"` |
//! | 8..12 | version, 2 |
//! | 12..16 | shards |
//! | 16..32 | uuid |
//! | 32..36 | units of each shard |
//! | 36..40 | blocks of each unit |
//! | 40..44 | program units of each block: 64, or what fits into a zone |
//! | 44..48 | logical blocks of each shard |
//! | 48..52 | OP in percent, as asked for; 0 with raw units |
//! | 52..56 | CRC-32C of the bytes before |
//!
//! With a fast tier the version is 3, with raw units 4, of one that has grown 5, and there is more:
//!
//! | bytes | holds |
//! |---|---|
//! | 64..68, 68..72 | length of the text, its CRC-32C |
//! | 72.. | the text: `fast`, or `raw`, of a folder's `device.toml`; or `added`, units of each shard for each time that it grew, and `fast` |
//!
//! While a device is being made, the header is `b"WEIRMAKE"` and zeroes. The generation is sector 1, and in
//! it at 512 the master of [`super::identity`]: all else of the device is in the same file.
//!
//! Invariant: what others keep on the file or disk is never overwritten unless it was thrown away
//! before ([`wipe`]); a disk that the system uses (mounted, swap, part of another) is not opened.

use super::identity::Mark;
use super::lock::Found;
use super::places::places;
use super::raw::RawNote;
use super::zoned::{self, EraseCounts, Head, Zoned};
use super::{
    DeviceError, FastNote, FastPart, Mode, RawOptions, Shape, Tier, described, identity, lock, raw,
};
use crate::files;
use crate::kept::{Kept, KeptShard};
use crate::medium::{
    DirectStore, Fence, SLOTS_PER_PAGE, SLOTS_PER_RAW_PAGE, Store, encode_generation,
};
use flash::{BLOCK_BYTES, Geometry, Oob, SlotId};
use nand::{BlockRecord, Faults, Nand, Profile};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

const MAGIC: &[u8; 8] = b"WEIRFILE";
/// In place of it while the device is being made.
const MAGIC_UNFINISHED: &[u8; 8] = b"WEIRMAKE";
const VERSION: u32 = 2;
const VERSION_FAST: u32 = 3;
const VERSION_RAW: u32 = 4;
const VERSION_GROWN: u32 = 5;
const TEXT_AT: usize = 64;
const TEXT_STARTS_AT: usize = TEXT_AT + 8;
const SECTOR: u64 = BLOCK_BYTES as u64;
const GENERATION_AT: u64 = SECTOR;
/// Program units of an erase block of 4 MiB; with raw units of as many data.
const PAGES_PER_BLOCK: u32 = 64;

/// What the blocks of a file or disk are like.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bands {
    /// Program units of each.
    pub pages: u32,
    /// Slots of each program unit.
    pub slots_per_page: u32,
    /// Most of a shard's that may be partly written at a time; 0 for no limit.
    pub open_blocks_max: u32,
}

impl Bands {
    /// Where any place can be overwritten.
    pub const PLAIN: Self =
        Self { pages: PAGES_PER_BLOCK, slots_per_page: SLOTS_PER_PAGE, open_blocks_max: 0 };

    /// The same with raw units.
    const PLAIN_RAW: Self = Self { slots_per_page: SLOTS_PER_RAW_PAGE, ..Self::PLAIN };

    /// Of what is at `path`, or will be, divided among so many shards.
    pub fn at(path: &Path, shards: u32, raw: bool) -> Result<Self, DeviceError> {
        let plain = if raw { Self::PLAIN_RAW } else { Self::PLAIN };
        let zoned = Zoned::at(path)?;
        zoned.map_or(Ok(plain), |zoned| zoned.bands(path, shards, plain.slots_per_page))
    }
}

/// Whether there is a zoned disk.
pub fn is_zoned(path: &Path) -> Result<bool, DeviceError> {
    Ok(Zoned::at(path)?.is_some())
}

/// `Err` for a zoned disk: who owns raw units writes on where he stopped, in as many blocks as he likes.
pub fn expect_no_zones(path: &Path) -> Result<(), DeviceError> {
    if !is_zoned(path)? {
        return Ok(());
    }
    let reason = "is a zoned disk, which bounds how many raw blocks may be partly written, and raw units do not";
    Err(DeviceError::invalid(path, reason, "use mode = \"block\", or another disk for raw units"))
}

/// What the header tells.
#[derive(Clone)]
pub struct Parts {
    pub shards: u32,
    pub shape: Shape,
    pub bands: Bands,
    pub op_percent: u32,
    pub uuid: u128,
    /// Present if it has a fast tier.
    pub fast: Option<FastNote>,
    /// Present if it is a device of raw units.
    pub raw: Option<RawOptions>,
    /// Units of each shard that were added since, one number for each time.
    pub added: Vec<u32>,
}

/// What the header of a device tells that has grown.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct GrownNote {
    added: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fast: Option<FastNote>,
}

/// The rules of a file as those of flash without delays.
pub fn profile(bands: &Bands) -> Profile {
    let Bands { pages, slots_per_page, open_blocks_max } = bands;
    let text = format!(
        "name = \"file\"\npage_bytes = {}\noob_bytes = 512\npages_per_block = {pages}\n\
         open_blocks_max = {open_blocks_max}\nplanes = 1\nbits_per_cell = 1\n\
         pairing = \"none\"\nread_ns = [0]\nprogram_ns = [0]\n\
         erase_ns = 0\ncommand_ns = 0\nbus_ns_per_byte = 0.0\ncache_read = true\n\
         cache_program = true\npartial_read = true\nqueue_depth = 8\nendurance = 100_000\n\
         factory_bad_max = 0.0\necc_bits_per_kib = 8\n\
         [rber]\nepsilon = 0.0\nalpha = 0.0\nk = 1.0\nbeta = 0.0\nm = 1.0\nn = 1.0\ngamma = 0.0\n\
         p = 1.0\nq = 1.0\n",
        *slots_per_page as usize * BLOCK_BYTES
    );
    Profile::parse(&text).expect("a test parses this text")
}

/// True if a device was made here.
pub fn exists(path: &Path) -> bool {
    if let Ok(Some(zoned)) = Zoned::at(path) {
        return zoned.head(path).is_ok_and(|head| head.is_some_and(|h| h.header[..8] == *MAGIC));
    }
    let mut magic = [0; 8];
    let file = files::open_or_disk(path, OpenOptions::new().read(true), 0);
    file.and_then(|file| file.read_exact_at(&mut magic, 0)).is_ok() && magic == *MAGIC
}

/// True of a header of a device, or of one that is being made.
pub fn is_ours(header: &[u8]) -> bool {
    header.starts_with(MAGIC) || header.starts_with(MAGIC_UNFINISHED)
}

/// True of the header of a device that is being made.
pub fn is_unfinished(header: &[u8]) -> bool {
    header.starts_with(MAGIC_UNFINISHED)
}

/// The header of a device that is being made.
pub fn unfinished() -> [u8; BLOCK_BYTES] {
    let mut header = [0; BLOCK_BYTES];
    header[..8].copy_from_slice(MAGIC_UNFINISHED);
    header
}

/// Writes the records. They become a device by [`commit`].
pub fn create(path: &Path, parts: &Parts, master: &Mark) -> Result<File, DeviceError> {
    let file = open_alone(path, OpenOptions::new().write(true).create(true).truncate(false))?;
    if exists(path) {
        return Err(DeviceError::Exists(path.into()));
    }
    if let Some(what) = foreign(path, &file)? {
        return Err(DeviceError::Foreign { path: path.into(), what });
    }
    let nand = parts.nand(None)?;
    if let Some(zoned) = Zoned::at(path)? {
        let blocks = u64::from(nand.geometry().blocks()) * u64::from(parts.shards);
        zoned.check_size(path, blocks)?;
        zoned.begin(path, &file, master)?;
    } else {
        begin_plain(path, &file, (parts, master), &nand)?;
    }
    Ok(file)
}

/// Sizes the file and writes its records; first of all the header: a device that was made by half may
/// be made again.
fn begin_plain(
    path: &Path,
    file: &File,
    (parts, master): (&Parts, &Mark),
    nand: &Nand,
) -> Result<(), DeviceError> {
    let (places, bytes) = places(&nand.geometry(), parts, 0);
    let disk = disk_bytes(file, path)?;
    if let Some(found) = disk.filter(|&found| found < bytes) {
        return Err(too_small(path, (parts, &nand.geometry()), (found, bytes)));
    }
    file.write_all_at(&unfinished(), 0).map_err(DeviceError::io(path, "clear the header"))?;
    file.sync_all().map_err(DeviceError::io(path, "sync"))?;
    if disk.is_none() {
        file.set_len(bytes).map_err(DeviceError::io(path, "size"))?;
    }
    let failed = "write the records";
    for place in places {
        let at = place.extents[0].records_at;
        let records: Vec<u8> = nand.records().flat_map(|(_, record)| record.encode()).collect();
        file.write_all_at(&records, at).map_err(DeviceError::io(path, failed))?;
    }
    lock::write_generation(file, path, GENERATION_AT, master)
}

/// Says that a disk of so many bytes has too few, and what would fit.
fn too_small(
    path: &Path,
    (parts, geometry): (&Parts, &Geometry),
    (found, needed): (u64, u64),
) -> DeviceError {
    let Some(raw) = &parts.raw else {
        let reason = format!("has {found} bytes where the volumes and the OP need {needed}");
        let mend = "make the volumes (or device.capacity) smaller, or device.op_percent";
        return DeviceError::invalid(path, reason, mend);
    };
    let reason = format!("has {found} bytes where the raw units and their spare need {needed}");
    let place = places(geometry, parts, 0).0.swap_remove(0);
    let blocks_at = place.block_at(flash::BlockId(0));
    let room = found.saturating_sub(blocks_at) / place.stride / u64::from(geometry.units);
    DeviceError::invalid(path, reason, raw::mend_for(raw, geometry, room))
}

/// Throws away what is at `path`, whatever it is: clears where headers are, and says that a device may be made of it. Not if it is
/// in use.
pub fn wipe(path: &Path) -> Result<(), DeviceError> {
    let file = open_alone(path, OpenOptions::new().write(true))?;
    if let Some(zoned) = Zoned::at(path)? {
        return zoned.reset_all(path, &file);
    }
    let metadata = file.metadata().map_err(DeviceError::io(path, "examine"))?;
    let block_device = metadata.file_type().is_block_device();
    let bytes = if block_device { HEAD_BYTES } else { metadata.len().min(HEAD_BYTES) };
    let clear = |file: &File| {
        let mut head = vec![0; bytes as usize];
        if let Some(first) = head.first_chunk_mut() {
            *first = unfinished();
        }
        file.write_all_at(&head, 0)?;
        file.sync_all()
    };
    clear(&file).map_err(DeviceError::io(path, "clear the head"))
}

/// What is in a file or disk that may be wanted by somebody, in words; `None` if there is nothing. Where the head is empty, that
/// may be all that was lost of a device: then some of what is behind it is looked at.
pub fn foreign(path: &Path, file: &File) -> Result<Option<String>, DeviceError> {
    if let Some(zoned) = Zoned::at(path)? {
        return zoned.foreign(path);
    }
    let mut head = Vec::new();
    let read = file.take(HEAD_BYTES).read_to_end(&mut head);
    read.map_err(DeviceError::io(path, "read the head"))?;
    if head.starts_with(MAGIC_UNFINISHED) {
        return Ok(None);
    }
    if head.iter().all(|&byte| byte == 0) {
        let behind = data_behind(file).map_err(DeviceError::io(path, "look for data"))?;
        return Ok(behind.map(|at| {
            format!(
                "data from byte {at} on, and nothing before that: the head of what was here is lost"
            )
        }));
    }
    Ok(Some(signature(&head).unwrap_or("data that is not Weir's").into()))
}

/// Where there is data behind the head, as far as a look at what a file has memory for tells, and at whole MiB: the first ones and
/// others evenly spread. Bands begin at such, and those of a new device are filled from the first on.
fn data_behind(mut file: &File) -> io::Result<Option<u64>> {
    let end = io::Seek::seek(&mut file, io::SeekFrom::End(0))?;
    let mut block = [0; BLOCK_BYTES];
    let mut holds = |at: u64| {
        let there = (end - at).min(BLOCK_BYTES as u64) as usize;
        file.read_exact_at(&mut block[..there], at)?;
        Ok::<bool, io::Error>(block[..there].iter().any(|&byte| byte != 0))
    };
    let whole = end / HEAD_BYTES;
    let first = 1..whole.min(LOOKS);
    let spread = (0..LOOKS).map(|look| whole * look / LOOKS).filter(|&at| at >= LOOKS);
    let looks = first.chain(spread).map(|at| at * HEAD_BYTES);
    for at in stretches(file).into_iter().chain(looks).filter(|&at| at < end) {
        if holds(at)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Where the first stretches behind the head begin that a file has memory for; none where a file system does not tell.
fn stretches(file: &File) -> Vec<u64> {
    // SAFETY: no memory is involved.
    let seek = |at: u64, whence| unsafe { libc::lseek(file.as_raw_fd(), at as i64, whence) };
    let mut starts = Vec::new();
    let mut at = HEAD_BYTES;
    while (starts.len() as u64) < LOOKS {
        let Ok(start) = u64::try_from(seek(at, libc::SEEK_DATA)) else { break };
        starts.push(start);
        let Ok(end) = u64::try_from(seek(start, libc::SEEK_HOLE)) else { break };
        at = end;
    }
    starts
}

/// Whose the head of a file or disk says it is, if it is one of those that are known.
pub fn signature(head: &[u8]) -> Option<&'static str> {
    let known = SIGNATURES
        .iter()
        .find(|(at, bytes, _)| head.get(*at..).is_some_and(|from| from.starts_with(bytes)));
    known.map(|(.., name)| *name)
}

/// Blocks behind an empty head that are looked at, of each kind.
const LOOKS: u64 = 1024;

/// Longest stretch from the start in which a file system or partition table shows itself.
pub const HEAD_BYTES: u64 = 1 << 20;

/// Where others write who they are. What holds another within comes after it.
const SIGNATURES: [(usize, &[u8], &str); 12] = [
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an xfs file system"),
    (65_600, b"_BHRfS_M", "a btrfs file system"),
    (1024, b"\x10\x20\xf5\xf2", "an f2fs file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (32_769, b"CD001", "an ISO 9660 image"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "an encrypted (LUKS) volume"),
    (536, b"LVM2 001", "an LVM physical volume"),
    (0, b"QFI\xfb", "a qcow2 image"),
    (512, b"EFI PART", "a GPT partition table"),
    (510, b"\x55\xaa", "a boot sector: a FAT file system or a partition table"),
];

/// Writes the header: from now on there is a device.
pub fn commit(path: &Path, file: &File, made: &Parts) -> Result<(), DeviceError> {
    let header = encode(made)?;
    if let Some(zoned) = Zoned::at(path)? {
        return zoned.rewrite(path, &header);
    }
    file.write_all_at(&header, 0).map_err(DeviceError::io(path, "write the header"))?;
    file.sync_all().map_err(DeviceError::io(path, "sync"))
}

fn encode(made: &Parts) -> Result<[u8; BLOCK_BYTES], DeviceError> {
    let Parts { shards, shape, op_percent, uuid, ref fast, ref raw, ref added, .. } = *made;
    let grown = || GrownNote { added: added.clone(), fast: fast.clone() };
    let (version, text) = match (fast, raw) {
        _ if !added.is_empty() => (VERSION_GROWN, Some(toml::to_string(&grown()))),
        (None, None) => (VERSION, None),
        (Some(fast), _) => (VERSION_FAST, Some(toml::to_string(fast))),
        (None, Some(raw)) => (VERSION_RAW, Some(toml::to_string(&RawNote::new(raw)))),
    };
    let mut header = Vec::from(MAGIC);
    header.extend(version.to_le_bytes());
    header.extend(shards.to_le_bytes());
    header.extend(uuid.to_le_bytes());
    let op_percent = if raw.is_some() { 0 } else { op_percent };
    let Geometry { units, blocks_per_unit, pages_per_block, .. } = made.nand(None)?.geometry();
    for number in [units, blocks_per_unit, pages_per_block, shape.logical_blocks, op_percent] {
        header.extend(number.to_le_bytes());
    }
    header.extend(flash::crc(&header).to_le_bytes());
    header.resize(BLOCK_BYTES, 0);
    if let Some(text) = text {
        let text = text
            .ok()
            .filter(|text| text.len() <= BLOCK_BYTES - TEXT_STARTS_AT)
            .ok_or_else(|| DeviceError::Options("the path of the fast tier is too long".into()))?;
        header[TEXT_AT..TEXT_AT + 4].copy_from_slice(&(text.len() as u32).to_le_bytes());
        let sum = flash::crc(text.as_bytes());
        header[TEXT_AT + 4..TEXT_STARTS_AT].copy_from_slice(&sum.to_le_bytes());
        header[TEXT_STARTS_AT..TEXT_STARTS_AT + text.len()].copy_from_slice(text.as_bytes());
    }
    Ok(header.try_into().expect("it was sized"))
}

/// The text of a header that has one, if it is sound.
fn text_of<T: serde::de::DeserializeOwned>(header: &[u8; BLOCK_BYTES]) -> Option<T> {
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    let end = TEXT_STARTS_AT.checked_add(word(TEXT_AT) as usize)?;
    let text = header.get(TEXT_STARTS_AT..end)?;
    let sound = flash::crc(text) == word(TEXT_AT + 4);
    toml::from_str(std::str::from_utf8(text).ok().filter(|_| sound)?).ok()
}

impl Parts {
    /// The rules of a shard, with nothing written.
    pub fn nand(&self, tier: Option<&Tier>) -> Result<Nand, DeviceError> {
        self.shape.nand(&profile(&self.bands), &Faults::default(), 0, tier)
    }
}

/// What is at `path`, and the file, which nobody else has open then.
pub fn claim(path: &Path, mode: Mode) -> Result<(Parts, Found, File), DeviceError> {
    if !path.exists() {
        return Err(DeviceError::Missing(path.into()));
    }
    let file = open_alone(path, OpenOptions::new().write(mode == Mode::ReadWrite))?;
    let (parts, found) = (read_header(path, &file)?, found(path, &file)?);
    let mend = "restore it from a backup of the whole device; nothing was written";
    if let Some(reason) = cut_off(path, &file, &parts)? {
        return Err(DeviceError::invalid(path, reason, mend));
    }
    let Some(master) = found.master else { return Ok((parts, found, file)) };
    if master.uuid != parts.uuid {
        let reason = "the header and the generation are of two devices";
        return Err(DeviceError::invalid(path, reason, mend));
    }
    let tier = identity::tier_sum(parts.fast.as_ref().map(|fast| fast.uuid.as_str()));
    if !master.tiers.contains(&tier) {
        let reason = "the header is older than the generation: it tells of another fast tier";
        return Err(DeviceError::invalid(path, reason, mend));
    }
    Ok((parts, found, file))
}

/// What is said of a file or disk that ends before the device does.
fn cut_off(path: &Path, file: &File, parts: &Parts) -> Result<Option<String>, DeviceError> {
    if Zoned::at(path)?.is_some() {
        return Ok(None);
    }
    let (_, needed) = places(&parts.nand(None)?.geometry(), parts, 0);
    let length = || file.metadata().map(|it| it.len()).map_err(DeviceError::io(path, "size"));
    let found = disk_bytes(file, path)?.map_or_else(length, Ok)?;
    Ok((found < needed)
        .then(|| format!("has {found} bytes where the device needs {needed}: its end is cut off")))
}

/// Opens for writing so far.
fn found(path: &Path, file: &File) -> Result<Found, DeviceError> {
    match Zoned::at(path)? {
        Some(zoned) => {
            let Head { generation, master, .. } = zoned.newest(path)?;
            Ok(Found { generation, master })
        }
        None => lock::read_generation(file, path, GENERATION_AT),
    }
}

/// Writes the master and its generation.
pub fn write_master(path: &Path, file: &File, master: &Mark) -> Result<(), DeviceError> {
    match Zoned::at(path)? {
        Some(zoned) => zoned.write_master(path, master),
        None => lock::write_generation(file, path, GENERATION_AT, master),
    }
}

/// What the header of the device at `path` tells.
pub fn describe(path: &Path) -> Result<Parts, DeviceError> {
    let file = files::open_or_disk(path, OpenOptions::new().read(true), 0);
    let file = file.map_err(DeviceError::io(path, "open"))?;
    read_header(path, &file)
}

/// The same by the keys of a config's `[device]`.
pub fn description(path: &Path) -> Result<toml::Table, DeviceError> {
    let parts = describe(path)?;
    let numbers = [
        ("shards", Some(parts.shards)),
        ("channels", parts.shards.checked_mul(parts.shape.channels)),
        ("op_percent", parts.raw.is_none().then_some(parts.op_percent)),
    ];
    let fast = parts.fast.as_ref().map(|fast| fast.describe(parts.shards));
    let unfit = || DeviceError::invalid(path, "the table raw is no TOML", "report this");
    described("file", parts.raw.as_ref(), &numbers, fast).ok_or_else(unfit)
}

/// Opens for reading, and whatever else `options` say, what nobody else has open.
pub fn open_alone(path: &Path, options: &mut OpenOptions) -> Result<File, DeviceError> {
    options.read(true);
    let block_device = fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if block_device {
        // Only for block devices does O_EXCL without O_CREAT have a meaning: the kernel refuses one
        // that is mounted, swapped on, or part of another, and keeps it from becoming that.
        options.create(false);
    }
    let flags = if block_device { libc::O_EXCL } else { 0 };
    let file =
        files::open_or_disk(path, options, flags).map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) if block_device => DeviceError::Busy(path.into()),
            _ => DeviceError::io(path, "open")(error),
        })?;
    match lock::try_lock(&file).map_err(DeviceError::io(path, "lock"))? {
        true => Ok(file),
        false => Err(DeviceError::Locked { path: path.into(), pid: None }),
    }
}

/// Opens for direct I/O. Behind a fast tier nothing waits for a flush: there each write is durable.
pub fn open_direct(path: &Path, writable: bool, behind_fast: bool) -> Result<File, DeviceError> {
    let flags = libc::O_DIRECT | if behind_fast { libc::O_DSYNC } else { 0 };
    let mut options = OpenOptions::new();
    options.read(true).write(writable);
    files::open_or_disk(path, &mut options, flags)
        .map_err(DeviceError::io(path, "open for direct I/O"))
}

/// Bytes of a disk; `None` of a file, which is as long as it is made.
pub fn disk_bytes(file: &File, path: &Path) -> Result<Option<u64>, DeviceError> {
    if !is_block_device(file, path)? {
        return Ok(None);
    }
    let mut reader = file;
    let end = io::Seek::seek(&mut reader, io::SeekFrom::End(0));
    end.map(Some).map_err(DeviceError::io(path, "size"))
}

pub fn is_block_device(file: &File, path: &Path) -> Result<bool, DeviceError> {
    let metadata = file.metadata().map_err(DeviceError::io(path, "examine"))?;
    Ok(metadata.file_type().is_block_device())
}

fn read_header(path: &Path, file: &File) -> Result<Parts, DeviceError> {
    let mend = "restore it from a backup, or format the device anew";
    let mut header = [0; BLOCK_BYTES];
    let zoned = Zoned::at(path)?;
    match &zoned {
        Some(zoned) => header = zoned.head(path)?.map_or(header, |head| head.header),
        None => match file.read_exact_at(&mut header, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                let len = file.metadata().map_err(DeviceError::io(path, "examine"))?.len();
                let mend = format!(
                    "see `weir format`; it has {len} bytes: if it held one, it was cut short, and what it was is to \
                         be put back"
                );
                return Err(DeviceError::invalid(path, "holds no device of Weir", mend));
            }
            read => read.map_err(DeviceError::io(path, "read the header"))?,
        },
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    if header[..8] != *MAGIC {
        return Err(DeviceError::invalid(path, "holds no device of Weir", "see `weir format`"));
    }
    if !(VERSION..=VERSION_GROWN).contains(&word(8)) {
        let reason = format!("version {}: this build reads {VERSION} to {VERSION_GROWN}", word(8));
        return Err(DeviceError::invalid(path, reason, "use the build that made the device"));
    }
    if word(52) != flash::crc(&header[..52]) || word(12) == 0 {
        return Err(DeviceError::invalid(path, "the header is damaged", mend));
    }
    let plain = if word(8) == VERSION_RAW { Bands::PLAIN_RAW } else { Bands::PLAIN };
    let of_zones = |zoned: Zoned| zoned.bands(path, word(12), plain.slots_per_page);
    let bands = zoned.map_or(Ok(plain), of_zones)?;
    if word(40) != bands.pages {
        let reason = format!(
            "was made of blocks of {} program units, and has room for {} in each now",
            word(40),
            bands.pages
        );
        return Err(DeviceError::invalid(path, reason, mend));
    }
    let shape = Shape {
        channels: word(32),
        dies_per_channel: 1,
        blocks_per_plane: word(36),
        logical_blocks: word(44),
    };
    let uuid = u128::from_le_bytes(std::array::from_fn(|i| header[16 + i]));
    let damaged = |of: &str| {
        let reason = format!("what the header says of {of} is damaged");
        DeviceError::invalid(path, reason, mend)
    };
    let (mut fast, mut raw, mut added) = (None, None, Vec::new());
    match word(8) {
        VERSION_FAST => {
            fast = Some(text_of(&header).ok_or_else(|| damaged("the fast tier"))?);
        }
        VERSION_GROWN => {
            let note: Option<GrownNote> = text_of(&header);
            let note = note.filter(|note| is_sound(&note.added, shape.channels));
            GrownNote { added, fast } = note.ok_or_else(|| damaged("its growth"))?;
        }
        VERSION_RAW => {
            let note: Option<RawNote> = text_of(&header);
            let options = note.and_then(|note| note.options(shape.logical_blocks).ok());
            raw = Some(options.ok_or_else(|| damaged("the raw units"))?);
        }
        _ => {}
    }
    Ok(Parts { shards: word(12), shape, bands, op_percent: word(48), uuid, fast, raw, added })
}

/// Whether a device of so many units can have been made with some and grown by these.
fn is_sound(added: &[u32], units: u32) -> bool {
    let sum: u64 = added.iter().map(|&units| u64::from(units)).sum();
    !added.contains(&0) && sum < u64::from(units)
}

/// Opens the parts of a device that is claimed, and with [`Mode::ReadWrite`] marked as of this
/// generation.
pub fn open(
    path: &Path,
    file: &File,
    (parts, generation): (&Parts, u64),
    fast: Option<&FastPart>,
    (mode, mut kept): (Mode, Option<&mut Kept>),
) -> Result<Opened, DeviceError> {
    if let Some(zoned) = Zoned::at(path)? {
        return zoned::open(path, (&zoned, file), parts, fast, (mode, kept));
    }
    let writable = mode == Mode::ReadWrite;
    let mut media = Vec::new();
    let tier = fast.map(|fast| &fast.tier);
    let geometry = parts.nand(tier)?.geometry().without_fast();
    for (index, place) in (0..).zip(places(&geometry, parts, generation).0) {
        let nand = parts.nand(tier)?;
        let direct = open_direct(path, writable, tier.is_some())?;
        let clone = file.try_clone().map_err(DeviceError::io(path, "open"))?;
        let expected = encode_generation(generation);
        let fence = Fence { file: clone, at: GENERATION_AT, expected };
        let store = DirectStore::open(direct, &geometry, place, &fence)
            .map_err(DeviceError::io(path, "read the records"))?;
        if let Some(kept) = &mut kept {
            kept.compare(index, false, |slot| {
                let record = store.stored_record(geometry.block_of(slot))?;
                store.oob_of(slot, record.erase_count).ok()
            });
            let behind = kept.shard(index).map(|kept| is_behind(kept, &geometry, &store));
            let behind = behind.transpose().map_err(DeviceError::io(path, "look for pages"))?;
            if behind == Some(true) {
                kept.distrust(
                    "the device has pages that kept memory does not know: it is a copy from before",
                );
            }
        }
        media.push((nand, store));
    }
    let (mut blocks, mut records) = (0, 0);
    for (index, (nand, store)) in (0..).zip(&mut media) {
        let kept = kept.as_mut().and_then(|kept| kept.shard(index));
        let found = restore(path, nand, store, kept)?;
        (blocks, records) = (blocks + found.unreadable, records + found.damaged);
    }
    let stores = media.into_iter().map(|(nand, store)| (nand, Store::Direct(store))).collect();
    let records = (records > 0).then(|| {
        format!(
            "the records of so many blocks are damaged: {records}. Their pages tell what they hold; copy what can \
             be read to a new device"
        )
    });
    Ok(Opened { stores, erase_counts: None, unreadable: unreadable(blocks).or(records) })
}

/// What a slot of a shard has as its OOB, and the erase count of its block; `None` on a disk, where less may
/// be there than was written.
pub fn slot_of(
    path: &Path,
    file: &File,
    (parts, generation): (&Parts, u64),
    tier: Option<&Tier>,
    (shard, slot): (u32, SlotId),
) -> Result<Option<(Oob, u32)>, DeviceError> {
    if is_block_device(file, path)? {
        return Ok(None);
    }
    let geometry = parts.nand(tier)?.geometry().without_fast();
    let place = places(&geometry, parts, generation).0.swap_remove(shard as usize);
    let failed = "look for a page";
    let clone = file.try_clone().map_err(DeviceError::io(path, failed))?;
    let fence = Fence { file: clone, at: GENERATION_AT, expected: encode_generation(generation) };
    let direct = open_direct(path, false, tier.is_some())?;
    let store = DirectStore::open(direct, &geometry, place, &fence);
    let store = store.map_err(DeviceError::io(path, failed))?;
    let Some(record) = store.stored_record(geometry.block_of(slot)) else { return Ok(None) };
    let oob = store.oob_of(slot, record.erase_count).map_err(DeviceError::io(path, failed))?;
    Ok(Some((oob, record.erase_count)))
}

/// The parts of a device that is open.
pub struct Opened {
    pub stores: Vec<(Nand, Store)>,
    /// On zones: to be kept when it is closed.
    pub erase_counts: Option<EraseCounts>,
    /// What could not be read of it, or is damaged, if that is anything: nothing must be written then.
    pub unreadable: Option<String>,
}

/// What is said of so many blocks with pages that cannot be read.
pub fn unreadable(blocks: u32) -> Option<String> {
    let text = "the disk cannot read pages of so many blocks, which may hold data";
    (blocks > 0).then(|| format!("{text}: {blocks}"))
}

/// True if a block goes on behind the end that kept memory tells of it. Whoever goes on with a device fills
/// the blocks first that are partly written.
fn is_behind(kept: &KeptShard, geometry: &Geometry, store: &DirectStore) -> std::io::Result<bool> {
    let mut ends = Vec::new();
    for block in (0..geometry.blocks()).map(flash::BlockId) {
        let Some(BlockRecord { erase_count, .. }) = store.stored_record(block) else { continue };
        let slots = kept.slots_written(block, erase_count).unwrap_or(0);
        if slots > 0 && slots < geometry.slots_per_block() {
            ends.push((block, erase_count, slots / geometry.slots_per_page));
        }
    }
    store.any_is_sound(&ends)
}

/// What is wrong with blocks of a shard: of so many the disk cannot read pages, and of so many the record
/// is damaged.
struct Wrong {
    unreadable: u32,
    damaged: u32,
}

fn restore(
    path: &Path,
    nand: &mut Nand,
    store: &DirectStore,
    kept: Option<&mut KeptShard>,
) -> Result<Wrong, DeviceError> {
    let slots_per_page = nand.geometry().slots_per_page;
    let (mut damaged, mut looked_for) = (0, Vec::new());
    for block in (0..nand.geometry().capacity_blocks()).map(flash::BlockId) {
        let mut record = match store.stored_record(block) {
            Some(record) => record,
            None => {
                damaged += 1;
                let erase_count = store.erase_count_of(block);
                let erase_count = erase_count.map_err(DeviceError::io(path, "look for pages"))?;
                BlockRecord { erase_count, ..BlockRecord::FRESH }
            }
        };
        let known = kept.as_ref().and_then(|kept| kept.slots_written(block, record.erase_count));
        match known.filter(|_| !record.bad) {
            Some(slots) => record.write_pointer = slots / slots_per_page,
            None if !record.bad => looked_for.push((block, record.erase_count)),
            None => {}
        }
        nand.restore(block, record);
    }
    let found = store.write_pointers(&looked_for);
    let found = found.map_err(DeviceError::io(path, "look for pages"))?;
    let mut unreadable = 0;
    for (&(block, _), written) in looked_for.iter().zip(found) {
        unreadable += u32::from(written.unreadable);
        nand.restore(block, BlockRecord { write_pointer: written.pages, ..nand.record(block) });
    }
    Ok(Wrong { unreadable, damaged })
}
