//! The folder of an emulated device:
//!
//! | file | holds |
//! |---|---|
//! | `device.toml` | what the device is, for people too; written last, so a folder with it is whole |
//! | `making` | is there until the device is made |
//! | `growing` | is there while it is made larger: of which open that is, and the `device.toml` to come |
//! | `lock` | locked by the server that has it open, its process id; or shared by those that only look |
//! | `generation` | 8 bytes little-endian and their CRC-32C: opens for writing so far; at 512 the master |
//! | `history.json` | no part of the device: what its servers did in the last day ([`crate::control`]) |
//! | `shard-N/data` | sparse: slot `i` at `i * 4096` |
//! | `shard-N/oob` | sparse: the OOB of slot `i` at `i * 32` |
//! | `shard-N/blocks` | `nand::BlockRecord` of block `i` at `i * 16` |
//!
//! Behind what each of the last three holds, from the next 4 KiB on, is its mark ([`super::identity`]).
//! Folders of version 1 have no marks; the first open for writing makes them of version 2.

use super::direct::Opened;
use super::identity::{self, Mark, Marked, SHARD_ROLES, State, shard_folder};
use super::lock::Found;
use super::raw::RawNote;
use super::summed::{self, Summed};
use super::{DeviceError, FastNote, FastPart, Mode, RawOptions, Shape, Tier, described, lock};
use crate::files;
use crate::kept::{Kept, KeptShard};
use crate::medium::{Fence, FileStore, RECORD_BYTES, Store, encode_generation, gives_back};
use flash::{BLOCK_BYTES, BlockId, Geometry, OOB_BYTES, Oob, SlotId};
use nand::{BlockRecord, Faults, Nand, Profile};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What a folder holds.
#[derive(Clone)]
pub struct Description {
    pub uuid: u128,
    pub shards: u32,
    pub shape: Shape,
    pub profile: Profile,
    pub faults: Faults,
    /// As asked for; unknown of devices made before it was kept.
    pub op_percent: Option<u32>,
    /// Present if it is a device of raw units.
    pub raw: Option<RawOptions>,
    /// Present if it has a fast tier.
    pub fast: Option<FastNote>,
    /// Its files have marks: version 2.
    pub bound: bool,
    /// It is not as Weir has written it.
    pub edited: bool,
}

/// `device.toml`, version 2; version 1 has the same keys.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct DeviceToml {
    version: u32,
    uuid: String,
    shards: u32,
    /// Each shard's.
    logical_blocks: u32,
    /// As asked for. Nothing depends on it; it tells a config that asks for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    op_percent: Option<u32>,
    /// Present if it is a device of raw units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw: Option<RawNote>,
    /// Present if the device has a fast tier, without which it is not whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fast: Option<FastNote>,
    layout: LayoutToml,
    faults: FaultsToml,
    /// As in a profile file.
    profile: toml::Table,
}

/// Each shard's.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct LayoutToml {
    channels: u32,
    dies_per_channel: u32,
    blocks_per_plane: u32,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct FaultsToml {
    /// As text: TOML's integers are signed.
    seed: String,
    factory_bad: f64,
    program_fail: f64,
    erase_fail: f64,
    correctable: f64,
    uncorrectable: f64,
    wear_errors: bool,
}

const VERSION: u32 = 2;
/// Without marks.
const VERSION_BARE: u32 = 1;
const FILE_NAME: &str = "device.toml";
/// As a config may ask for.
const OP_PERCENT: std::ops::RangeInclusive<u32> = 1..=1000;
/// Is there while a device is made larger, and holds its description to come.
const GROWING: &str = "growing";
/// Is there while a device is being made: then what is beside it is nobody's yet.
const MAKING: &str = "making";

/// True if a device was made here.
pub fn exists(path: &Path) -> bool {
    path.join(FILE_NAME).exists()
}

/// Makes the files. They become a device by [`commit`].
pub fn create(path: &Path, device: &Description, master: &Mark) -> Result<File, DeviceError> {
    fs::create_dir_all(path).map_err(DeviceError::io(path, "make the folder"))?;
    let lock = lock::acquire(path, Mode::ReadWrite)?;
    if exists(path) {
        return Err(DeviceError::Exists(path.into()));
    }
    if !is_nobodys(path)? {
        return Err(undescribed(path));
    }
    // Before another device is named that is being made: what this one was of is gone.
    remove(&path.join("generation"))?;
    write_whole(path, MAKING, &making_text(master))?;
    for shard in 0..device.shards {
        let folder = shard_folder(path, shard);
        fs::create_dir_all(&folder).map_err(DeviceError::io(&folder, "make the folder"))?;
        let nand = device.shape.nand(&device.profile, &device.faults, shard, None)?;
        for (name, bytes) in file_sizes(&nand.geometry()) {
            let file = folder.join(name);
            let made = files::create(&file).map_err(DeviceError::io(&file, "make the file"))?;
            made.set_len(bytes).map_err(DeviceError::io(&file, "size the file"))?;
            gives_back(&made).map_err(DeviceError::io(&file, "make the file"))?;
        }
        let records: Vec<u8> = nand.records().flat_map(|(_, record)| record.encode()).collect();
        let file = folder.join("blocks");
        files::write(&file, &records).map_err(DeviceError::io(&file, "write the records"))?;
    }
    let file = path.join("generation");
    files::write(&file, &Found::encode(master)).map_err(DeviceError::io(&file, "write"))?;
    for (marked, _) in marked(path, device)? {
        marked.write(master)?;
    }
    Ok(lock)
}

fn undescribed(path: &Path) -> DeviceError {
    let reason = "holds the files of a device without its device.toml, which tells what they are";
    let mend = "restore that file from a backup; or, if nothing here is needed, remove the folder";
    DeviceError::invalid(path, reason, mend)
}

/// What stands in a folder while the device of this master is being made in it.
fn making_text(master: &Mark) -> String {
    format!("The device {:032x} is being made in this folder.\n", master.uuid)
}

/// Whether nothing in a folder without a description is wanted: there is nothing, or a device that was being
/// made when that was cut off. One that was made and then lost its description is no such, whatever else
/// lies there.
fn is_nobodys(path: &Path) -> Result<bool, DeviceError> {
    let (making, generation) = (path.join(MAKING), path.join("generation"));
    let text = match files::read(&making, files::TEXT_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(!generation.exists() && !shard_folder(path, 0).exists());
        }
        Err(error) => return Err(DeviceError::io(&making, "read")(error)),
    };
    let most = files::TEXT_BYTES_MAX;
    let found = match files::read(&generation, most) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(DeviceError::io(&generation, "read")(error)),
    };
    // A power loss while it was being made may have left nothing of what was written here.
    let Some(found) = Found::decode(&found) else { return Ok(found.iter().all(|&byte| byte == 0)) };
    let before = found.before(0);
    let opened = before.generation > 1 || before.generation == 1 && before.state == State::Closed;
    Ok(!opened && text == making_text(&before).as_bytes())
}

/// What is at `path`, where its opens are counted, and the lock that keeps others away. Every file of
/// it is the device's own, and of one time.
pub fn claim(path: &Path, mode: Mode) -> Result<(Description, Found, File), DeviceError> {
    if !exists(path) {
        return Err(match is_nobodys(path) {
            Ok(false) => undescribed(path),
            _ => DeviceError::Missing(path.into()),
        });
    }
    let lock = lock::acquire(path, mode)?;
    let making = path.join(MAKING);
    if making.is_dir() {
        let reason = "is a folder, where Weir has a file while a device is being made";
        return Err(DeviceError::invalid(&making, reason, "remove it"));
    }
    let mut device = read_description(path)?;
    if let Some(larger) = growing(path, &device)? {
        if mode == Mode::ReadOnly {
            let reason = "tells of a growth of the device that was cut off";
            let mend = "`weir grow`, or a start of its server, goes on with it; nothing is lost";
            return Err(DeviceError::invalid(&path.join(GROWING), reason, mend));
        }
        if !device.edited {
            finish_growth(path, &device, &larger)?;
            device = larger;
        }
    }
    // Who only looks is told, and may look.
    if device.edited && mode == Mode::ReadWrite {
        return Err(edited(path));
    }
    let found = check(path, &device)?;
    Ok((device, found, lock))
}

/// `Err` if a file is not the device's own, or of another time than the others.
fn check(path: &Path, device: &Description) -> Result<Found, DeviceError> {
    let file = path.join("generation");
    let opened = files::open(&file, File::options().read(true));
    let opened = opened.map_err(DeviceError::of_own(&file, "open", identity::PUT_BACK))?;
    let found = lock::read_generation(&opened, &file, 0)?;
    let mend = "put back the file of this device that was last in use; nothing was written";
    if device.bound && found.master.is_none() {
        let reason = "the mark that tells whose it is, at byte 512, is damaged";
        return Err(DeviceError::invalid(&file, reason, mend));
    }
    identity::expect_own_folders(path, device.shards)?;
    let master = found.before(device.uuid);
    if master.uuid != device.uuid {
        let reason = format!(
            "is of another device (its uuid is {:032x}, and {:032x} in device.toml)",
            master.uuid, device.uuid
        );
        return Err(DeviceError::invalid(&file, reason, mend));
    }
    let settled = identity::settle(&marked(path, device)?, &master, device.bound)?;
    let found = match settled == master {
        true => found,
        false => Found { generation: settled.generation, master: Some(settled) },
    };
    let tier = identity::tier_sum(device.fast.as_ref().map(|fast| fast.uuid.as_str()));
    if device.bound && !master.tiers.contains(&tier) {
        let file = path.join(FILE_NAME);
        let reason = "is an older copy: it tells of another fast tier than the device has now";
        return Err(DeviceError::invalid(&file, reason, mend));
    }
    Ok(found)
}

/// The files that have marks, and how much each holds without.
fn marked(path: &Path, device: &Description) -> Result<Vec<(Marked, u64)>, DeviceError> {
    let nand = device.shape.nand(&device.profile, &device.faults, 0, None)?;
    let sizes = file_sizes(&nand.geometry());
    let of_shard = |shard| {
        let folder = shard_folder(path, shard);
        let files = SHARD_ROLES.into_iter().zip(sizes);
        files.map(move |(role, (_, bytes))| (Marked::new(&folder, role, shard, bytes), bytes))
    };
    Ok((0..device.shards).flat_map(of_shard).collect())
}

/// Marks every file, the generation last. Before it nothing else is written.
pub fn mark(path: &Path, device: &mut Description, master: &Mark) -> Result<(), DeviceError> {
    mark_files(path, device, &master.ahead())?;
    write_master(path, master)?;
    if exists(path) {
        forget_making(path)?;
    }
    if !std::mem::replace(&mut device.bound, true) {
        tracing::info!("{}: its files are marked now; older builds refuse it", path.display());
        commit(path, device)?;
    }
    Ok(())
}

/// Marks every file but the generation.
pub fn mark_files(path: &Path, device: &Description, master: &Mark) -> Result<(), DeviceError> {
    marked(path, device)?.iter().try_for_each(|(marked, _)| marked.write(master))
}

/// Writes the generation and the master beside it.
pub fn write_master(path: &Path, master: &Mark) -> Result<(), DeviceError> {
    let file = path.join("generation");
    let opened = files::open(&file, File::options().write(true));
    lock::write_generation(&opened.map_err(DeviceError::io(&file, "open"))?, &file, 0, master)
}

fn file_sizes(geometry: &Geometry) -> [(&'static str, u64); 3] {
    [
        ("data", geometry.slots() * BLOCK_BYTES as u64),
        ("oob", geometry.slots() * OOB_BYTES as u64),
        ("blocks", u64::from(geometry.blocks()) * RECORD_BYTES as u64),
    ]
}

/// Writes `device.toml`: from now on there is a device.
pub fn commit(path: &Path, device: &Description) -> Result<(), DeviceError> {
    write_whole(path, FILE_NAME, &text_of(path, device)?)?;
    forget_making(path)
}

/// What `device.toml` says of it.
fn text_of(path: &Path, device: &Description) -> Result<String, DeviceError> {
    let Shape { channels, dies_per_channel, blocks_per_plane, logical_blocks } = device.shape;
    let Faults { factory_bad, program_fail, erase_fail, correctable, uncorrectable, .. } =
        device.faults;
    let file = path.join(FILE_NAME);
    let profile = toml::Table::try_from(&device.profile).map_err(|e| {
        DeviceError::invalid(&file, format!("the profile is not TOML: {e}"), "report this")
    })?;
    let described = DeviceToml {
        version: if device.bound { VERSION } else { VERSION_BARE },
        uuid: format!("{:032x}", device.uuid),
        shards: device.shards,
        logical_blocks,
        op_percent: device.op_percent,
        raw: device.raw.as_ref().map(RawNote::new),
        fast: device.fast.clone(),
        layout: LayoutToml { channels, dies_per_channel, blocks_per_plane },
        faults: FaultsToml {
            seed: device.faults.seed.to_string(),
            factory_bad,
            program_fail,
            erase_fail,
            correctable,
            uncorrectable,
            wear_errors: device.faults.wear_errors,
        },
        profile,
    };
    let text = toml::to_string(&described).map_err(|e| {
        DeviceError::invalid(&file, format!("cannot be written as TOML: {e}"), "report this")
    })?;
    let text = format!("# A device of Weir. Made by `weir format`; not to be edited.\n{text}");
    Ok(summed::with_sum(text))
}

/// Makes the files of the device long enough for a larger one, and describes that. From the first step on whoever
/// opens it for writing goes on with this.
pub fn grow(path: &Path, device: &Description, larger: &Description) -> Result<(), DeviceError> {
    let master = read_master(path, device)?;
    write_whole(path, GROWING, &growing_text(path, larger, &master)?)?;
    finish_growth(path, device, larger)
}

/// Whether a growth of the device was cut off.
pub fn is_growing(path: &Path) -> bool {
    path.join(GROWING).exists()
}

/// What stands in `growing` while the device of this master is made into this one. Nobody opens it for writing before that
/// is done.
fn growing_text(path: &Path, larger: &Description, master: &Mark) -> Result<String, DeviceError> {
    let Mark { generation, open_id, .. } = master;
    let of = format!(
        "# The device is made larger after open {generation}, whose id is {open_id:016x}.\n"
    );
    Ok(of + &text_of(path, larger)?)
}

/// Where the device is in its opens.
fn read_master(path: &Path, device: &Description) -> Result<Mark, DeviceError> {
    let file = path.join("generation");
    let opened = files::open(&file, File::options().read(true));
    let opened = opened.map_err(DeviceError::of_own(&file, "open", identity::PUT_BACK))?;
    Ok(lock::read_generation(&opened, &file, 0)?.before(device.uuid))
}

/// The larger device that this one is being made into, if it is.
fn growing(path: &Path, device: &Description) -> Result<Option<Description>, DeviceError> {
    if !is_growing(path) {
        return Ok(None);
    }
    let file = path.join(GROWING);
    // Its checksum is of the description alone, which is why that is compared as a text.
    let larger = read_description_in(path, GROWING)?;
    let text = files::read_text(&file).map_err(DeviceError::io(&file, "read"))?;
    let Shape { channels, logical_blocks, .. } = larger.shape;
    let shape = Shape { channels, logical_blocks, ..device.shape };
    let same = Description { shape, ..device.clone() };
    let is_less = channels < device.shape.channels || logical_blocks < device.shape.logical_blocks;
    let refused = |reason, mend| Err(DeviceError::invalid(&file, reason, mend));
    if is_less || !text.ends_with(&text_of(path, &same)?) {
        let reason =
            "tells of a growth that is not this device's, or is not as Weir has written it";
        return refused(reason, "restore the whole device from a backup; nothing was written");
    }
    if text != growing_text(path, &same, &read_master(path, device)?)? {
        let reason =
            "tells of a growth of the device at another time, as beside a copy that was put back";
        return refused(
            reason,
            "remove it, if the device beside it is what is wanted; nothing was written",
        );
    }
    Ok(Some(same))
}

fn finish_growth(
    path: &Path,
    device: &Description,
    larger: &Description,
) -> Result<(), DeviceError> {
    // The last step may be all that is missing.
    if device.shape.channels < larger.shape.channels {
        let master = read_master(path, device)?;
        // Some files may be longer already; all are this device's and of one time, or nothing is written.
        let both = marked(path, device)?.into_iter().zip(marked(path, larger)?);
        let now = both.map(|((before, bare), (after, _))| Ok((before.growing(after)?, bare)));
        let now = now.collect::<Result<Vec<_>, DeviceError>>()?;
        let master = identity::settle(&now, &master, true)?;
        for shard in 0..device.shards {
            extend(&shard_folder(path, shard), (device, larger), shard, &master)?;
        }
        commit(path, larger)?;
    }
    remove(&path.join(GROWING))
}

/// Makes the files of a shard long enough for a larger device. May be done again, as long as nothing else is.
fn extend(
    folder: &Path,
    (device, larger): (&Description, &Description),
    shard: u32,
    master: &Mark,
) -> Result<(), DeviceError> {
    let nand =
        |device: &Description| device.shape.nand(&device.profile, &device.faults, shard, None);
    let (before, after) = (nand(device)?.geometry(), nand(larger)?);
    let sizes = file_sizes(&before).into_iter().zip(file_sizes(&after.geometry()));
    for (role, ((name, old), (_, new))) in SHARD_ROLES.into_iter().zip(sizes) {
        let path = folder.join(name);
        let failed = "make it longer";
        let file = files::open(&path, File::options().write(true));
        let file = file.map_err(DeviceError::io(&path, failed))?;
        let longer = || {
            file.set_len(identity::with_mark(new))?;
            file.sync_all()
        };
        longer().map_err(DeviceError::io(&path, failed))?;
        Marked::new(folder, role, shard, new).write(master)?;
        let cleared = || {
            let [mark_at, new_at] = [old, new].map(|bytes| bytes.next_multiple_of(4096));
            if mark_at < new_at {
                // Where the mark was is room for slots now.
                let mark = vec![0; (identity::with_mark(old) - mark_at) as usize];
                file.write_all_at(&mark, mark_at)?;
            }
            if name == "blocks" {
                let records = after.records().skip(before.blocks() as usize);
                let records: Vec<u8> = records.flat_map(|(_, record)| record.encode()).collect();
                file.write_all_at(&records, old)?;
            }
            file.sync_all()
        };
        cleared().map_err(DeviceError::io(&path, failed))?;
    }
    Ok(())
}

fn forget_making(path: &Path) -> Result<(), DeviceError> {
    remove(&path.join(MAKING))
}

/// Removes a file, if it is there.
pub fn remove(file: &Path) -> Result<(), DeviceError> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DeviceError::io(file, "remove")(error))
        }
        _ => Ok(()),
    }
}

/// Writes a file of `folder` whole or not at all, also if the power goes.
pub fn write_whole(folder: &Path, name: &str, text: &str) -> Result<(), DeviceError> {
    let (file, new) = (folder.join(name), folder.join(format!("{name}.new")));
    let failed = "write the description";
    files::write(&new, text.as_bytes()).map_err(DeviceError::io(&new, failed))?;
    let sync = |path: &Path| File::open(path).and_then(|file| file.sync_all());
    sync(&new).map_err(DeviceError::io(&new, failed))?;
    fs::rename(&new, &file).map_err(DeviceError::io(&file, failed))?;
    sync(folder).map_err(DeviceError::io(folder, failed))
}

/// The device's description by the keys of a config's `[device]`.
pub fn describe(path: &Path) -> Result<toml::Table, DeviceError> {
    let device = read_description(path)?;
    let file = path.join(FILE_NAME);
    let unfit =
        |what: &str| DeviceError::invalid(&file, format!("{what} is no TOML"), "report this");
    let numbers = [
        ("shards", Some(device.shards)),
        ("channels", device.shards.checked_mul(device.shape.channels)),
        ("dies_per_channel", Some(device.shape.dies_per_channel)),
        ("op_percent", device.op_percent),
    ];
    let fast = device.fast.as_ref().map(|fast| fast.describe(device.shards));
    let table = described("nand", device.raw.as_ref(), &numbers, fast);
    let mut table = table.ok_or_else(|| unfit("the table raw"))?;
    let profile = toml::Value::try_from(&device.profile).map_err(|_| unfit("the profile"))?;
    table.insert("profile".into(), profile);
    let Faults { seed, factory_bad, program_fail, erase_fail, correctable, uncorrectable, .. } =
        device.faults;
    let mut faults = toml::Table::new();
    let seed = i64::try_from(seed).map_err(|_| unfit("the seed"))?;
    faults.insert("seed".into(), seed.into());
    for (key, fraction) in [
        ("factory_bad", factory_bad),
        ("program_fail", program_fail),
        ("erase_fail", erase_fail),
        ("correctable", correctable),
        ("uncorrectable", uncorrectable),
    ] {
        faults.insert(key.into(), fraction.into());
    }
    faults.insert("wear_errors".into(), device.faults.wear_errors.into());
    table.insert("faults".into(), faults.into());
    Ok(table)
}

pub fn read_description(path: &Path) -> Result<Description, DeviceError> {
    read_description_in(path, FILE_NAME)
}

fn read_description_in(path: &Path, name: &str) -> Result<Description, DeviceError> {
    const MEND: &str = "restore the file from a backup; the data beside it may be intact";
    let file = path.join(name);
    let text = files::read_text(&file).map_err(DeviceError::of_own(&file, "read", MEND))?;
    let invalid = |reason: String| DeviceError::invalid(&file, reason, MEND);
    let table: toml::Table =
        text.parse().map_err(|e: toml::de::Error| invalid(format!("not TOML: {}", e.message())))?;
    // First of all: another version may have other keys.
    let version = table.get("version").and_then(toml::Value::as_integer);
    let bound = version == Some(i64::from(VERSION));
    match version {
        Some(version) if bound || version == i64::from(VERSION_BARE) => {}
        Some(version) => {
            let reason =
                format!("version = {version}: this build reads version {VERSION} and before");
            let mend = "use the build of Weir that made the device, or one after it";
            return Err(DeviceError::invalid(&file, reason, mend));
        }
        None => return Err(invalid("has no version".into())),
    }
    let described: DeviceToml =
        table.try_into().map_err(|e: toml::de::Error| invalid(e.message().to_string()))?;
    let profile = toml::to_string(&described.profile).map_err(|e| invalid(e.to_string()))?;
    let profile = Profile::parse(&profile).map_err(|e| invalid(e.to_string()))?;
    let uuid = u128::from_str_radix(&described.uuid, 16)
        .map_err(|_| invalid(format!("uuid = {:?}: must be 32 hex digits", described.uuid)))?;
    let FaultsToml { seed, factory_bad, program_fail, erase_fail, correctable, .. } =
        described.faults;
    let seed = seed.parse().map_err(|_| invalid(format!("seed = {seed:?}: not a number")))?;
    let LayoutToml { channels, dies_per_channel, blocks_per_plane } = described.layout;
    if described.shards == 0 || described.shards > 256 {
        return Err(invalid(format!("shards = {}: must be 1 to 256", described.shards)));
    }
    let shape = Shape {
        channels,
        dies_per_channel,
        blocks_per_plane,
        logical_blocks: described.logical_blocks,
    };
    let faults = Faults {
        seed,
        factory_bad,
        program_fail,
        erase_fail,
        correctable,
        uncorrectable: described.faults.uncorrectable,
        wear_errors: described.faults.wear_errors,
        ..Faults::default()
    };
    let op_percent = described.op_percent;
    if let Some(wrong) = op_percent.filter(|op_percent| !OP_PERCENT.contains(op_percent)) {
        let (min, max) = (OP_PERCENT.start(), OP_PERCENT.end());
        return Err(invalid(format!("op_percent = {wrong}: must be {min} to {max}")));
    }
    // Those of version 1 were all written without.
    let edited = bound && summed::of(&text) == Summed::Wrong;
    let raw = described.raw.map(|raw| raw.options(described.logical_blocks));
    let raw = raw.transpose().map_err(invalid)?;
    let (shards, fast) = (described.shards, described.fast);
    Ok(Description { uuid, shards, shape, profile, faults, op_percent, raw, fast, bound, edited })
}

/// What is said of a description that is not as Weir has written it.
pub fn edited(path: &Path) -> DeviceError {
    let reason = "was changed since Weir has written it: its last line is not its checksum";
    let mend =
        "restore the file from a backup; or, if what it says now is right, take out that line";
    DeviceError::invalid(&path.join(FILE_NAME), reason, mend)
}

/// What is said if the flash was formatted for another number of logical blocks than its description tells.
pub fn contradicted(path: &Path, described: u32, found: u32) -> DeviceError {
    let reason = format!("logical_blocks = {described}: but each shard was formatted with {found}");
    let mend = format!(
        "restore the file from a backup; or say logical_blocks = {found} there, and take out the last \
         line if that is a checksum"
    );
    DeviceError::invalid(&path.join(FILE_NAME), reason, mend)
}

/// What is damaged of the records of blocks, before anything is written: of a device that has such nothing
/// is. `Err` if they cannot be what the files hold.
pub fn examine(path: &Path, device: &Description) -> Result<Option<String>, DeviceError> {
    let mut damaged = Vec::new();
    for shard in 0..device.shards {
        let found = restore(&shard_folder(path, shard), device, shard, None)?.damaged;
        damaged.extend(found.into_iter().map(|block| (shard, block)));
    }
    Ok(damaged_records(&damaged))
}

/// Opens the files of a device that is claimed, and with [`Mode::ReadWrite`] marked as of this
/// generation.
pub fn open(
    path: &Path,
    (device, generation): (&Description, u64),
    fast: Option<&FastPart>,
    (mode, mut kept): (Mode, Option<&mut Kept>),
) -> Result<Opened, DeviceError> {
    let writable = mode == Mode::ReadWrite;
    let file = path.join("generation");
    let generation_file = files::open(&file, File::options().read(true));
    let generation_file = generation_file.map_err(DeviceError::io(&file, "open"))?;
    let tier = fast.map(|fast| &fast.tier);
    let shards = (0..device.shards)
        .map(|shard| restore(&shard_folder(path, shard), device, shard, tier))
        .collect::<Result<Vec<_>, _>>()?;
    let mut media = Vec::new();
    for (shard, restored) in (0..).zip(shards) {
        let Restored { mut nand, durable, .. } = restored;
        let folder = shard_folder(path, shard);
        let clone = generation_file.try_clone().map_err(DeviceError::io(&file, "open"))?;
        let fence = Fence { file: clone, at: 0, expected: encode_generation(generation) };
        let geometry = nand.geometry().without_fast();
        // Behind a fast tier nothing waits for a flush.
        let how = (writable, fast.is_some());
        let store = FileStore::open(&folder, &geometry, how, fence, durable)
            .map_err(DeviceError::io(&folder, "open the files"))?;
        if let Some(kept) = &mut kept {
            kept.compare(shard, false, |slot| store.oob_of(slot).ok());
        }
        let of_shard = kept.as_mut().and_then(|kept| kept.shard(shard)).map(|kept| &*kept);
        let failed = "look behind the write pointers";
        find_beyond(&mut nand, &store, of_shard).map_err(DeviceError::io(&folder, failed))?;
        if let Some(kept) = &mut kept
            && kept.shard(shard).is_some_and(|kept| !agrees(kept, &nand))
        {
            kept.distrust(
                "kept memory tells of other pages than the device has: it is a copy from before",
            );
            find_beyond(&mut nand, &store, None).map_err(DeviceError::io(&folder, failed))?;
        }
        media.push((nand, store));
    }
    let stores = media.into_iter().map(|(nand, store)| (nand, Store::File(store))).collect();
    Ok(Opened { stores, erase_counts: None, unreadable: None })
}

/// What a slot of a shard has as its OOB, and the erase count of its block.
pub fn slot_of(
    path: &Path,
    (device, tier): (&Description, Option<&Tier>),
    shard: u32,
    slot: SlotId,
) -> Result<(Oob, u32), DeviceError> {
    let folder = shard_folder(path, shard);
    let nand = restore(&folder, device, shard, tier)?.nand;
    let file = folder.join("oob");
    let opened = files::open(&file, File::options().read(true));
    let mut oob = [0; OOB_BYTES];
    let read = opened
        .and_then(|opened| opened.read_exact_at(&mut oob, u64::from(slot.0) * OOB_BYTES as u64));
    read.map_err(DeviceError::io(&file, "read"))?;
    Ok((oob, nand.record(nand.geometry().block_of(slot)).erase_count))
}

/// Takes for programmed what is found behind write pointers: after a kill or a power loss it may be there
/// without its record, and the core tells what is sound of it. Where kept memory says that a record is all
/// there is, nothing is looked for.
fn find_beyond(
    nand: &mut Nand,
    store: &FileStore,
    kept: Option<&KeptShard>,
) -> std::io::Result<()> {
    let geometry = nand.geometry();
    for block in (0..geometry.capacity_blocks()).map(BlockId) {
        let record = nand.record(block);
        let slots = kept.and_then(|kept| kept.slots_written(block, record.erase_count));
        let all = record.write_pointer == geometry.pages_per_block;
        if all || slots == Some(record.write_pointer * geometry.slots_per_page) {
            continue;
        }
        let write_pointer = store.pages_found(block, record.write_pointer)?;
        if write_pointer > record.write_pointer {
            nand.restore(block, BlockRecord { write_pointer, ..record });
        }
    }
    Ok(())
}

/// What is said of blocks, with their shards, whose records are damaged.
fn damaged_records(blocks: &[(u32, u32)]) -> Option<String> {
    let (shard, block) = blocks.first()?;
    let others = match blocks.len() - 1 {
        0 => String::new(),
        others => format!(", and of {others} more"),
    };
    Some(format!(
        "the record of block {block} in shard-{shard}/blocks is damaged{others}: all of the block is taken for \
         written. Restore the file from a backup, or copy what can be read to a new device"
    ))
}

/// True if what kept memory has settled of the capacity tier is what the records tell.
fn agrees(kept: &KeptShard, nand: &Nand) -> bool {
    let geometry = nand.geometry();
    (0..geometry.capacity_blocks()).map(BlockId).all(|block| {
        let record = nand.record(block);
        let slots = kept.slots_written(block, record.erase_count);
        slots.is_none_or(|slots| slots == record.write_pointer * geometry.slots_per_page)
    })
}

/// The state of a shard that its records tell.
struct Restored {
    nand: Nand,
    /// By block: pages that are durable for certain.
    durable: Vec<u32>,
    /// Blocks whose records are damaged: any of their pages may be written.
    damaged: Vec<u32>,
}

fn restore(
    folder: &Path,
    device: &Description,
    shard: u32,
    tier: Option<&Tier>,
) -> Result<Restored, DeviceError> {
    let mut nand = device.shape.nand(&device.profile, &device.faults, shard, tier)?;
    let geometry = nand.geometry().without_fast();
    let file = folder.join("blocks");
    let most = identity::with_mark(u64::from(geometry.blocks()) * RECORD_BYTES as u64);
    let records = files::read(&file, most).map_err(DeviceError::io(&file, "read"))?;
    let records = records.as_chunks::<RECORD_BYTES>().0.iter();
    let whole = BlockRecord { write_pointer: geometry.pages_per_block, ..BlockRecord::FRESH };
    let (mut damaged, mut durable) = (Vec::new(), Vec::new());
    for (index, bytes) in (0..geometry.blocks()).zip(records) {
        let record = BlockRecord::decode(bytes)
            .filter(|record| record.write_pointer <= geometry.pages_per_block);
        damaged.extend(record.is_none().then_some(index));
        durable.push(record.map_or(0, |record| record.pages_durable()));
        nand.restore(BlockId(index), record.unwrap_or(whole));
    }
    Ok(Restored { nand, durable, damaged })
}
