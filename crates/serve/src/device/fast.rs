//! The fast tier's part of a two-tier device: where it lies, what it says about itself, and whether it
//! belongs to the capacity tier beside it.
//!
//! In a folder (emulated): `fast.toml` (below), `lock` and `generation` as of a device, and for each
//! shard `shard-N/` with `data`, `oob` and `blocks`. In a file or on a disk, numbers little-endian:
//!
//! | bytes | holds |
//! |---|---|
//! | 0..8 | `b"WEIRFAST"` |
//! | 8..12, 12..16 | length of the text, its CRC-32C |
//! | 16.. | the text: what is `fast.toml` in a folder |
//! | 4096.. | generation: 12 bytes, as of a device; at 4608 the master |
//! | from 8192 | for each shard: records (16 bytes a block), to the next 4 KiB; OOBs (32 bytes a slot), those of each block to the next 4 KiB |
//! | from the next MiB | for each shard: slots |
//!
//! In a folder the files of the shards have marks as those of a device do ([`super::identity`]), with the
//! uuid of the fast tier.
//!
//! The capacity tier notes who its fast tier is ([`FastNote`]), and that part notes whose it is. Both
//! count the opens for writing, the fast tier first: so it is as far as the capacity tier, or one
//! ahead if the opening was cut off between the two; then its master says *opening*, and nothing was
//! written in that open. It says *open* only when the capacity tier counts the open, too.
//!
//! Invariants:
//! - every write here is durable when it completes: files are opened with `O_DIRECT` and `O_DSYNC`;
//! - nothing is overwritten that is not empty or thrown away before ([`wipe`]);
//! - the part says what it is before the capacity tier says that it has one.

use super::home::Home;
use super::identity::{Mark, Marked, SHARD_ROLES, State, shard_folder};
use super::lock::Found;
use super::summed::{self, Summed};
use super::{DeviceError, Kind, Mode, Tier, direct, identity, lock, zoned};
use crate::files;
use crate::kept::Kept;
use crate::medium::{Area, FastStore, RECORD_BYTES, gives_back, oob_sectors};
use flash::{BLOCK_BYTES, BlockId, FastTier, Geometry, OOB_BYTES, Oob, SlotId};
use nand::{BlockRecord, Nand, Profile};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What a fast tier is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct FastOptions {
    /// Where its bytes are.
    pub kind: Kind,
    /// Its size over all shards; `None`: a sixteenth of the capacity, or what it must have.
    pub bytes: Option<u64>,
    /// Its units over all shards, a multiple of them.
    pub units: u32,
}

/// What the capacity tier remembers of its fast tier.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FastNote {
    /// Of this fast tier: another one attached later has another.
    pub uuid: String,
    /// Each shard's.
    pub units: u32,
    /// Of each unit.
    pub blocks_per_unit: u32,
    /// Where it was last: the folder, file or disk.
    pub path: PathBuf,
}

impl FastNote {
    fn tier(&self) -> FastTier {
        FastTier { units: self.units, blocks_per_unit: self.blocks_per_unit }
    }

    /// For people, and for a config that repeats it.
    pub fn describe(&self, shards: u32) -> toml::Table {
        let mut table = toml::Table::new();
        table.insert("path".into(), self.path.display().to_string().into());
        table.insert("units".into(), i64::from(self.units * shards).into());
        table
    }
}

/// What the part says about itself, version 3; version 2 has the same keys, and its files no marks.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PartToml {
    version: u32,
    uuid: String,
    /// The uuid of the device that it is a part of.
    device: String,
    shards: u32,
    units: u32,
    blocks_per_unit: u32,
    pages_per_block: u32,
    slots_per_page: u32,
    /// Its device knows it. Until then there is nothing on it that anybody wants.
    finished: bool,
    /// Whose times it has, if it is emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<toml::Table>,
}

/// What a new part is to be.
pub struct NewPart<'a> {
    pub kind: &'a Kind,
    /// Of the device.
    pub device: u128,
    pub shards: u32,
    /// Of a shard of the two-tier device.
    pub geometry: Geometry,
}

const VERSION: u32 = 3;
/// Without marks.
const VERSION_BARE: u32 = 2;
const FILE_NAME: &str = "fast.toml";
const MAGIC: &[u8; 8] = b"WEIRFAST";
const SECTOR: u64 = BLOCK_BYTES as u64;
const TEXT_AT: usize = 16;
const AREAS_AT: u64 = 2 * SECTOR;

/// A part that is open.
pub struct FastPart {
    path: PathBuf,
    /// Where that is, if it is a folder that somebody may move.
    home: Option<Home>,
    /// Its generation, and where.
    generation_file: File,
    generation_at: u64,
    found: Found,
    uuid: u128,
    marked: Vec<Marked>,
    /// The shape and the times of the fast units.
    pub tier: Tier,
    part: PartToml,
    /// In a file or on a disk, not in a folder.
    in_file: bool,
    mode: Mode,
    /// Keeps other processes away.
    _lock: File,
}

/// The place of a fast tier, whatever is there.
pub fn path_of(kind: &Kind) -> Option<&Path> {
    match kind {
        Kind::Memory { .. } => None,
        Kind::Nand { path, .. } | Kind::File { path } => Some(path),
    }
}

/// True if a fast tier was made here.
pub fn exists(path: &Path) -> bool {
    if path.is_dir() {
        return path.join(FILE_NAME).exists();
    }
    let mut magic = [0; 8];
    let file = files::open_or_disk(path, File::options().read(true), 0);
    file.and_then(|file| file.read_exact_at(&mut magic, 0)).is_ok() && magic == *MAGIC
}

impl NewPart<'_> {
    /// Makes it, for a capacity tier with this master: a part that is not finished.
    pub fn create(&self, master: &Mark) -> Result<FastNote, DeviceError> {
        let uuid = super::random_uuid()?;
        let path = path_of(self.kind).expect("the caller refuses memory");
        let path = std::path::absolute(path).map_err(DeviceError::io(path, "find"))?;
        let master = Mark { uuid, tiers: [0; 2], ..*master };
        let uuid = format!("{uuid:032x}");
        let Geometry { pages_per_block, slots_per_page, fast, .. } = self.geometry;
        let profile = match self.kind {
            Kind::Nand { profile, .. } => toml::Table::try_from(profile).ok(),
            Kind::Memory { .. } | Kind::File { .. } => None,
        };
        let part = PartToml {
            version: VERSION,
            uuid: uuid.clone(),
            device: format!("{:032x}", self.device),
            shards: self.shards,
            units: fast.units,
            blocks_per_unit: fast.blocks_per_unit,
            pages_per_block,
            slots_per_page,
            finished: false,
            profile,
        };
        create(self, &master, &part)?;
        Ok(FastNote { uuid, units: fast.units, blocks_per_unit: fast.blocks_per_unit, path })
    }
}

/// Makes the files. What is cut off says that it is a part which is not finished, or nothing: it is made anew.
fn create(new: &NewPart<'_>, master: &Mark, part: &PartToml) -> Result<(), DeviceError> {
    let local = new.geometry.fast_alone();
    let mut records: Vec<u8> =
        (0..local.blocks()).flat_map(|_| BlockRecord::FRESH.encode()).collect();
    records.resize(record_bytes(&local) as usize, 0);
    match new.kind {
        Kind::Memory { .. } => Ok(()),
        Kind::Nand { path, .. } => {
            refuse_taken(path, new.device)?;
            fs::create_dir_all(path).map_err(DeviceError::io(path, "make the folder"))?;
            let _lock = lock::acquire(path, Mode::ReadWrite)?;
            describe(path, part)?;
            for shard in 0..new.shards {
                let folder = shard_folder(path, shard);
                fs::create_dir_all(&folder).map_err(DeviceError::io(&folder, "make the folder"))?;
                for (name, bytes) in [("data", local.slots() * SECTOR), ("oob", oob_bytes(&local))]
                {
                    let file = folder.join(name);
                    let made =
                        files::create(&file).map_err(DeviceError::io(&file, "make the file"))?;
                    gives_back(&made).map_err(DeviceError::io(&file, "make the file"))?;
                    write_zeroes(&made, 0..bytes).map_err(DeviceError::io(&file, "fill"))?;
                    made.sync_all().map_err(DeviceError::io(&file, "fill"))?;
                }
                let file = folder.join("blocks");
                files::write(&file, &records)
                    .map_err(DeviceError::io(&file, "write the records"))?;
            }
            for (marked, _) in marked(path, new.shards, sizes(&local)) {
                marked.write(master)?;
            }
            let file = path.join("generation");
            files::write(&file, &Found::encode(master)).map_err(DeviceError::io(&file, "write"))
        }
        Kind::File { path } => {
            create_in_file(path, new, master, &local, &records)?;
            describe(path, part)
        }
    }
}

fn create_in_file(
    path: &Path,
    new: &NewPart<'_>,
    master: &Mark,
    local: &Geometry,
    records: &[u8],
) -> Result<(), DeviceError> {
    refuse_taken(path, new.device)?;
    if zoned::Zoned::at(path)?.is_some() {
        let reason = "is zoned: a fast tier writes the same place again and again";
        return Err(DeviceError::invalid(path, reason, "use it as capacity, behind another disk"));
    }
    let mut options = OpenOptions::new();
    let file = direct::open_alone(path, options.write(true).create(true).truncate(false))?;
    if exists(path) {
        // Never finished: made anew.
        file.write_all_at(&direct::unfinished(), 0).map_err(DeviceError::io(path, "clear it"))?;
    }
    if let Some(what) = direct::foreign(path, &file)? {
        return Err(DeviceError::Foreign { path: path.into(), what });
    }
    let (places, bytes) = places(local, new.shards);
    let is_disk = direct::is_block_device(&file, path)?;
    if is_disk {
        let end = std::io::Seek::seek(&mut &file, std::io::SeekFrom::End(0));
        let found = end.map_err(DeviceError::io(path, "size"))?;
        if found < bytes {
            let reason = format!("has {found} bytes where the fast tier needs {bytes}");
            return Err(DeviceError::invalid(path, reason, "make device.fast.capacity smaller"));
        }
    } else {
        file.set_len(0).map_err(DeviceError::io(path, "size"))?;
        // Taken from the file system now, so that it cannot be short of it later.
        // SAFETY: no memory is involved.
        let code = unsafe {
            use std::os::fd::AsRawFd;
            libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t)
        };
        if code != 0 {
            let error = std::io::Error::from_raw_os_error(code);
            return Err(DeviceError::io(path, "reserve the space of the fast tier")(error));
        }
    }
    // A disk has room for its slots, and of what was there before only OOBs matter.
    let zeroes = AREAS_AT..if is_disk { places[0].data } else { bytes };
    write_zeroes(&file, zeroes).map_err(DeviceError::io(path, "fill"))?;
    for place in places {
        let failed = "write the records";
        file.write_all_at(records, place.blocks).map_err(DeviceError::io(path, failed))?;
    }
    file.sync_all().map_err(DeviceError::io(path, "fill"))?;
    lock::write_generation(&file, path, SECTOR, master)
}

/// Writes zeroes. In a file they also make the room of the bytes to come: a durable write to where
/// the file system has never written would wait for its journal.
fn write_zeroes(file: &File, range: std::ops::Range<u64>) -> std::io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).min(zeroes.len() as u64) as usize;
        file.write_all_at(&zeroes[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

/// Says what the part is.
fn describe(path: &Path, part: &PartToml) -> Result<(), DeviceError> {
    let text = toml::to_string(part)
        .map_err(|e| DeviceError::Options(format!("the fast tier cannot be described: {e}")))?;
    if path.is_dir() {
        let text = format!("# A fast tier of Weir. Not to be edited.\n{text}");
        return super::folder::write_whole(path, FILE_NAME, &summed::with_sum(text));
    }
    let mut sector = vec![0; BLOCK_BYTES];
    sector[..8].copy_from_slice(MAGIC);
    sector[8..12].copy_from_slice(&(text.len() as u32).to_le_bytes());
    sector[12..16].copy_from_slice(&flash::crc(text.as_bytes()).to_le_bytes());
    sector[TEXT_AT..TEXT_AT + text.len()].copy_from_slice(text.as_bytes());
    let failed = "write the header";
    let file = files::open_or_disk(path, OpenOptions::new().write(true), 0);
    let file = file.map_err(DeviceError::io(path, failed))?;
    file.write_all_at(&sector, 0).map_err(DeviceError::io(path, failed))?;
    file.sync_all().map_err(DeviceError::io(path, failed))
}

/// Throws away the fast tier at `path`, whosever it is. Not if it is in use.
pub fn wipe(path: &Path) -> Result<(), DeviceError> {
    if path.is_dir() {
        if !exists(path) {
            return Ok(());
        }
        let _lock = lock::acquire(path, Mode::ReadWrite)?;
        let remove = |name: &str| super::folder::remove(&path.join(name));
        // In this order: what is left of a wipe that was cut off can be wiped.
        remove("generation")?;
        return remove(FILE_NAME);
    }
    if path.exists() { direct::wipe(path) } else { Ok(()) }
}

/// `Err` if there is a fast tier that may be needed, or that of another device.
fn refuse_taken(path: &Path, device: u128) -> Result<(), DeviceError> {
    if super::folder::exists(path) || direct::exists(path) {
        let reason = "holds a device of its own: it cannot be the fast tier of another";
        return Err(DeviceError::invalid(path, reason, "name another device.fast.path"));
    }
    if !exists(path) {
        if path.is_dir() && path.join("generation").exists() {
            let reason = "holds the files of a fast tier without its fast.toml";
            let mend =
                "restore that file from a backup; or, if nothing here is needed, remove the folder";
            return Err(DeviceError::invalid(path, reason, mend));
        }
        return Ok(());
    }
    let part = read_part(path)?;
    if !part.finished {
        return Ok(());
    }
    if part.device != format!("{device:032x}") {
        return Err(of_another(path));
    }
    let reason = "was the fast tier of this device, which runs without one now";
    let mend = "take [device.fast] out of the config; or attach it anew, empty, with `weir format \
                --attach-fast --force`";
    Err(DeviceError::invalid(path, reason, mend))
}

fn of_another(path: &Path) -> DeviceError {
    let reason = "is the fast tier of another device";
    let mend = "name the one of this device in device.fast.path; to make this one anew, and lose \
                what only it holds of that device: `weir format --attach-fast --force`";
    DeviceError::invalid(path, reason, mend)
}

/// Where the areas of a shard begin in a file.
struct Places {
    blocks: u64,
    oob: u64,
    data: u64,
}

/// Bytes of the records of one shard.
fn record_bytes(local: &Geometry) -> u64 {
    (u64::from(local.blocks()) * RECORD_BYTES as u64).next_multiple_of(SECTOR)
}

/// Bytes of the OOBs of one shard.
fn oob_bytes(local: &Geometry) -> u64 {
    u64::from(local.blocks()) * u64::from(oob_sectors(local)) * SECTOR
}

/// What the files of a shard hold, in a folder.
fn sizes(local: &Geometry) -> [u64; 3] {
    [local.slots() * SECTOR, oob_bytes(local), record_bytes(local)]
}

/// The files of a folder that have marks, and how much each holds without.
fn marked(path: &Path, shards: u32, sizes: [u64; 3]) -> Vec<(Marked, u64)> {
    let of_shard = |shard| {
        let folder = shard_folder(path, shard);
        let files = SHARD_ROLES.into_iter().zip(sizes);
        files.map(move |(role, bytes)| (Marked::new(&folder, role, shard, bytes), bytes))
    };
    (0..shards).flat_map(of_shard).collect()
}

/// The areas of every shard, and the end of the last.
fn places(local: &Geometry, shards: u32) -> (Vec<Places>, u64) {
    let records = record_bytes(local);
    let (oobs, data) = (oob_bytes(local), local.slots() * SECTOR);
    let shards = u64::from(shards);
    let data_at = (AREAS_AT + shards * (records + oobs)).next_multiple_of(1 << 20);
    let place = |shard: u64| {
        let blocks = AREAS_AT + shard * (records + oobs);
        Places { blocks, oob: blocks + records, data: data_at + shard * data }
    };
    ((0..shards).map(place).collect(), data_at + shards * data)
}

fn read_part(path: &Path) -> Result<PartToml, DeviceError> {
    const MEND: &str = "restore it from a backup: what was not destaged lies only here";
    let damaged = |reason: String| {
        DeviceError::invalid(path, format!("the description of the fast tier {reason}"), MEND)
    };
    let text = if path.is_dir() {
        let file = path.join(FILE_NAME);
        files::read_text(&file).map_err(DeviceError::of_own(&file, "read", MEND))?
    } else {
        let mut sector = [0; BLOCK_BYTES];
        let file = files::open_or_disk(path, File::options().read(true), 0);
        let file = file.map_err(DeviceError::io(path, "open"))?;
        let read = file.read_exact_at(&mut sector, 0);
        read.map_err(DeviceError::io(path, "read the header of the fast tier"))?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| sector[at + i]));
        if sector[..8] != *MAGIC {
            let mend = "name the file or disk of the fast tier in device.fast.path";
            return Err(DeviceError::invalid(path, "holds no fast tier of Weir", mend));
        }
        let text = sector.get(TEXT_AT..TEXT_AT + word(8) as usize);
        let text = text.filter(|text| flash::crc(text) == word(12));
        let text = text.ok_or_else(|| damaged("has a wrong checksum".into()))?;
        String::from_utf8_lossy(text).into_owned()
    };
    let table: toml::Table = text.parse().map_err(|_| damaged("is no TOML".into()))?;
    match table.get("version").and_then(toml::Value::as_integer) {
        // Those of the version before were all written without a checksum.
        Some(version) if version == i64::from(VERSION) && summed::of(&text) == Summed::Wrong => {
            return Err(damaged(
                "was changed since Weir has written it (its last line is not its checksum)".into(),
            ));
        }
        Some(version) if [VERSION_BARE, VERSION].map(i64::from).contains(&version) => {}
        version => {
            let found = version.map_or("none".into(), |version| version.to_string());
            let reason = format!(
                "fast tier of version {found}: this build reads version {VERSION} and before"
            );
            let mend = "use the build of Weir that made it, or one after it";
            return Err(DeviceError::invalid(path, reason, mend));
        }
    }
    table.try_into().map_err(|e: toml::de::Error| damaged(format!("is wrong: {}", e.message())))
}

/// Opens what a part has its bytes in: a file of its own in a folder, or the file or disk that was named.
fn open_part(
    in_folder: bool,
    path: &Path,
    (options, flags): (&mut OpenOptions, i32),
) -> std::io::Result<File> {
    match in_folder {
        true => files::open_with(path, options, flags),
        false => files::open_or_disk(path, options, flags),
    }
}

/// The file with the generation of the part at `path`, and where in it.
fn generation_file(path: &Path, mode: Mode) -> Result<(File, u64), DeviceError> {
    let (file, at) =
        if path.is_dir() { (path.join("generation"), 0) } else { (path.to_owned(), SECTOR) };
    let mut options = File::options();
    options.read(true).write(mode == Mode::ReadWrite);
    let opened = open_part(path.is_dir(), &file, (&mut options, 0));
    Ok((opened.map_err(DeviceError::of_own(&file, "open", identity::PUT_BACK))?, at))
}

impl FastPart {
    /// Opens the fast tier that `note` tells of, at `path`. Nothing changes yet.
    pub fn open(
        note: &FastNote,
        path: &Path,
        (data, device): (&Path, u128),
        mode: Mode,
    ) -> Result<Self, DeviceError> {
        if !exists(path) {
            let reason = format!(
                "the fast tier of the device in {} is not here, and what was written last lies \
                 only on it",
                data.display()
            );
            let mend = "bring it back; or, if it has moved, name its place in device.fast.path";
            return Err(DeviceError::invalid(path, reason, mend));
        }
        let in_file = !path.is_dir();
        let mut options = OpenOptions::new();
        let lock = match in_file {
            true => direct::open_alone(path, options.write(mode == Mode::ReadWrite))?,
            false => lock::acquire(path, mode)?,
        };
        let part = read_part(path)?;
        if part.device != format!("{device:032x}") {
            return Err(of_another(path));
        }
        if part.uuid != note.uuid {
            let reason = format!(
                "was the fast tier of the device in {} once: it has another one since, last at {}",
                data.display(),
                note.path.display()
            );
            return Err(DeviceError::invalid(path, reason, "name that one in device.fast.path"));
        }
        let profile = match &part.profile {
            None => direct::profile(&direct::Bands::PLAIN),
            Some(table) => Profile::parse(&table.to_string()).map_err(|e| {
                DeviceError::invalid(path, e.to_string(), "restore fast.toml from a backup")
            })?,
        };
        let (generation_file, generation_at) = generation_file(path, mode)?;
        let found = lock::read_generation(&generation_file, path, generation_at)?;
        let uuid = u128::from_str_radix(&part.uuid, 16).map_err(|_| {
            let reason = format!("uuid = {:?}: must be 32 hex digits", part.uuid);
            DeviceError::invalid(path, reason, "restore fast.toml from a backup")
        })?;
        let mut part = Self {
            path: path.to_owned(),
            home: (!in_file).then(|| Home::of(path)).transpose()?,
            generation_file,
            generation_at,
            found,
            uuid,
            marked: Vec::new(),
            tier: Tier { fast: note.tier(), profile },
            part,
            in_file,
            mode,
            _lock: lock,
        };
        part.check_files()?;
        Ok(part)
    }

    /// `Err` if a file is not its own, or of another time than the others.
    fn check_files(&mut self) -> Result<(), DeviceError> {
        let (bound, master) = (self.part.version == VERSION, self.found.before(self.uuid));
        let mend = "put back the file of this fast tier that was last in use; nothing was written";
        if bound && (self.found.master.is_none() || master.uuid != self.uuid) {
            let reason = match self.found.master {
                None => "the mark beside the generation of the fast tier is damaged",
                Some(_) => "holds the generation of another fast tier",
            };
            return Err(DeviceError::invalid(&self.path, reason, mend));
        }
        if !self.in_file {
            identity::expect_own_folders(&self.path, self.part.shards)?;
        }
        let files = self.files();
        let settled = identity::settle(&files, &master, bound)?;
        if settled != master {
            self.found = Found { generation: settled.generation, master: Some(settled) };
        }
        self.marked = files.into_iter().map(|(marked, _)| marked).collect();
        Ok(())
    }

    /// Its files that have marks, and how much each holds without.
    fn files(&self) -> Vec<(Marked, u64)> {
        if self.in_file {
            return Vec::new();
        }
        let of = &self.part;
        let slots = u64::from(of.pages_per_block) * u64::from(of.slots_per_page);
        let blocks = u64::from(of.units) * u64::from(of.blocks_per_unit);
        let sizes = [
            blocks * slots * SECTOR,
            blocks * (slots * OOB_BYTES as u64).next_multiple_of(SECTOR),
            (blocks * RECORD_BYTES as u64).next_multiple_of(SECTOR),
        ];
        marked(&self.path, of.shards, sizes)
    }

    /// Its folder may have been moved since it was opened.
    fn follow(&mut self) -> Result<(), DeviceError> {
        if let Some(home) = &self.home {
            self.path = home.now(&self.path)?;
            self.marked = self.files().into_iter().map(|(marked, _)| marked).collect();
        }
        Ok(())
    }

    /// `Err` if the fast tier and the capacity tier that counts its opens so are not of one age.
    pub fn check_age(&self, capacity: &Found) -> Result<(), DeviceError> {
        let (found, own) = (self.found.generation, capacity.generation);
        let masters = self.found.master.zip(capacity.master);
        let older = masters.is_some_and(|(mine, own)| {
            found == own.generation && own.state == State::Closed && mine.state != State::Closed
        });
        if found < own || older {
            let reason = format!(
                "the fast tier is older than the capacity tier (opened {found} times, that one \
                 {own} times): a copy or backup from before, without what was written since"
            );
            let mend = "bring back the fast tier that was last in use, or older copies of both \
                        from one time";
            return Err(DeviceError::invalid(&self.path, reason, mend));
        }
        let ahead = masters.is_none_or(|(mine, _)| mine.state == State::Opening);
        if found > own + 1 || (found == own + 1 && !ahead) {
            let reason = format!(
                "the capacity tier is older than the fast tier (opened {own} times, this one \
                 {found} times): a copy or backup from before"
            );
            let mend = "bring back the capacity tier that was last in use, or older copies of \
                        both from one time";
            return Err(DeviceError::invalid(&self.path, reason, mend));
        }
        let known = |mark: &Mark| mark.state != State::Opening;
        if let Some((mine, own)) = masters.filter(|(mine, own)| known(mine) && known(own))
            && mine.open_id != own.open_id
        {
            let reason = format!(
                "the fast tier and the capacity tier went different ways at open {found}: one of them \
                 is of another copy of the device"
            );
            let mend = "bring back the two that were last in use together, or older copies of both \
                        from one time";
            return Err(DeviceError::invalid(&self.path, reason, mend));
        }
        Ok(())
    }

    /// The capacity tier is about to count this open, of which that is the master.
    pub fn begin(&mut self, master: &Mark) -> Result<(), DeviceError> {
        let mine = Mark { uuid: self.uuid, tiers: [0; 2], ..*master };
        self.mark_files(&mine.ahead())?;
        self.write_master(&mine.ahead())?;
        if std::mem::replace(&mut self.part.version, VERSION) != VERSION {
            describe(&self.path, &self.part)?;
        }
        Ok(())
    }

    /// The capacity tier counts this open.
    pub fn opened(&mut self) -> Result<(), DeviceError> {
        let mine = Mark { state: State::Open, ..self.found.before(self.uuid) };
        self.write_master(&mine)?;
        self.mark_files(&mine)
    }

    fn mark_files(&self, master: &Mark) -> Result<(), DeviceError> {
        self.marked.iter().try_for_each(|marked| marked.write(master))
    }

    /// All of it is durable, and nothing more is written.
    pub fn close(&mut self) -> Result<(), DeviceError> {
        self.follow()?;
        let mine = Mark { state: State::Closed, ..self.found.before(self.uuid) };
        self.mark_files(&mine)?;
        self.write_master(&mine)
    }

    fn write_master(&mut self, master: &Mark) -> Result<(), DeviceError> {
        self.found = Found { generation: master.generation, master: Some(*master) };
        lock::write_generation(&self.generation_file, &self.path, self.generation_at, master)
    }

    /// Its device knows it.
    pub fn finish(&mut self) -> Result<(), DeviceError> {
        if !std::mem::replace(&mut self.part.finished, true) {
            describe(&self.path, &self.part)?;
        }
        Ok(())
    }

    /// The store of a shard, and into `nand` what its blocks are like.
    pub fn store(
        &self,
        shard: u32,
        nand: &mut Nand,
        mut kept: Option<&mut Kept>,
    ) -> Result<FastStore, DeviceError> {
        let geometry = nand.geometry();
        let local = geometry.fast_alone();
        let [slots, oobs, records] = self.areas(shard, &local)?;
        if let Some(kept) = &mut kept {
            kept.compare(shard, true, |slot| {
                FastStore::oob_in(&oobs, &local, geometry.slot_in_fast_alone(slot)).ok()
            });
        }
        let of_shard = kept.as_mut().and_then(|kept| kept.shard(shard));
        let known = |own, record: &[u8; RECORD_BYTES]| {
            let erase_count = BlockRecord::decode(record)?.erase_count;
            of_shard.as_ref()?.slots_written(geometry.block_of_fast_alone(own), erase_count)
        };
        let store = FastStore::open([slots, oobs, records], &local, known);
        let failed = "read the records and OOBs of the fast tier";
        let store = store.map_err(DeviceError::io(&self.path, failed))?;
        let agrees = |block| {
            let slots = known(block, &store.stored_record(block));
            slots.is_none_or(|slots| slots == store.slots_written(block))
        };
        if !(0..local.blocks()).map(BlockId).all(agrees)
            && let Some(kept) = &mut kept
        {
            kept.distrust(
                "the fast tier has slots that kept memory does not know: it is a copy from before",
            );
        }
        self.restore(&store, nand, &local)?;
        Ok(store)
    }

    /// Slots, OOBs and records of a shard.
    fn areas(&self, shard: u32, local: &Geometry) -> Result<[Area; 3], DeviceError> {
        let areas = if self.in_file {
            let (places, bytes) = places(local, self.part.shards);
            let place = &places[shard as usize];
            self.check_size(&self.path, bytes)?;
            [place.data, place.oob, place.blocks].map(|at| (self.path.clone(), at))
        } else {
            let folder = shard_folder(&self.path, shard);
            let files = SHARD_ROLES.map(|role| folder.join(role.name()));
            for (file, bytes) in files.iter().zip(sizes(local)) {
                self.check_size(file, bytes)?;
            }
            files.map(|file| (file, 0))
        };
        let [slots, oobs, records] = areas.map(|(file, at)| self.open_area(&file, at));
        Ok([slots?, oobs?, records?])
    }

    /// What a slot of a shard has as its OOB, and the erase count of its block.
    pub fn slot_of(
        &self,
        shard: u32,
        geometry: &Geometry,
        slot: SlotId,
    ) -> Result<(Oob, u32), DeviceError> {
        let (local, slot) = (geometry.fast_alone(), geometry.slot_in_fast_alone(slot));
        let [_, oobs, records] = self.areas(shard, &local)?;
        let found = FastStore::oob_in(&oobs, &local, slot).and_then(|oob| {
            Ok((oob, FastStore::record_in(&records, &local, local.block_of(slot))?))
        });
        let (oob, record) = found.map_err(DeviceError::io(&self.path, "look for a slot"))?;
        Ok((oob, BlockRecord::decode(&record).map_or(0, |record| record.erase_count)))
    }

    fn open_area(&self, file: &Path, at: u64) -> Result<Area, DeviceError> {
        let mut options = File::options();
        let writable = self.mode == Mode::ReadWrite;
        options.read(true).write(writable);
        let flags = libc::O_DIRECT | libc::O_DSYNC;
        let opened = open_part(!self.in_file, file, (&mut options, flags));
        let file = opened.map_err(DeviceError::io(file, "open for direct I/O"))?;
        Ok(Area { file, at })
    }

    fn check_size(&self, file: &Path, bytes: u64) -> Result<(), DeviceError> {
        let opened = files::open_or_disk(file, File::options().read(true), 0);
        let mut opened = opened.map_err(DeviceError::io(file, "open"))?;
        let end = std::io::Seek::seek(&mut opened, std::io::SeekFrom::End(0));
        let found = end.map_err(DeviceError::io(file, "size"))?;
        if found < bytes {
            let reason = format!("has {found} bytes where the fast tier needs {bytes}");
            let mend = "restore it from a backup: what was not destaged lies only here";
            return Err(DeviceError::invalid(file, reason, mend));
        }
        Ok(())
    }

    fn restore(
        &self,
        store: &FastStore,
        nand: &mut Nand,
        local: &Geometry,
    ) -> Result<(), DeviceError> {
        let geometry = nand.geometry();
        for own in (0..local.blocks()).map(BlockId) {
            let Some(mut record) = BlockRecord::decode(&store.stored_record(own)) else {
                let reason = format!("the record of block {} of the fast tier is damaged", own.0);
                let mend = "restore it from a backup";
                return Err(DeviceError::invalid(&self.path, reason, mend));
            };
            record.write_pointer = store.slots_written(own);
            nand.restore(geometry.block_of_fast_alone(own), record);
        }
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
