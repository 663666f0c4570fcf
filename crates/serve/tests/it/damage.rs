//! Files of devices that were damaged behind the server's back: every block reads as it was written or as
//! an error, nothing panics or hangs, and looking changes nothing. A seed decides all.

use crate::{FILE, FOLDER, Folder, config, pattern};
use flash::{BLOCK_BYTES, Random, RequestError};
use serve::Config;
use serve::offline::{Offline, format, with_device};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Images of each kind of device.
const IMAGES: u64 = 60;

/// Logical blocks that are written, and as many that are not.
const BLOCKS: u32 = 300;

/// What happens to a file.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Harm {
    /// One bit flips.
    Flip,
    Zero,
    Noise,
    /// Bytes of the same device at an earlier time.
    Stale,
    /// The whole file as it was at an earlier time.
    StaleFile,
    /// Bytes of the same place of another device.
    Foreign,
    /// The whole file of another device.
    ForeignFile,
    /// Bytes of another place of the file.
    Moved,
    Truncated,
    Missing,
}

const HARMS: [Harm; 10] = [
    Harm::Flip,
    Harm::Zero,
    Harm::Noise,
    Harm::Stale,
    Harm::StaleFile,
    Harm::Foreign,
    Harm::ForeignFile,
    Harm::Moved,
    Harm::Truncated,
    Harm::Missing,
];

/// A device that was stopped, what its blocks hold, how it was earlier, and another one.
struct Device {
    folder: Folder,
    config: Config,
    /// By shard and block: what was written.
    written: Vec<Vec<Option<u64>>>,
    earlier: Folder,
    other: Folder,
    /// It was not stopped, but lost its power.
    crashed: bool,
}

fn content(version: u64, lba: u32) -> Vec<u8> {
    pattern(version << 32 | u64::from(lba), BLOCK_BYTES)
}

/// What was written last before a crash nobody can vouch for. So blocks that nobody looks at come last.
fn write_what_may_be_lost(shards: &mut [Offline]) {
    for shard in shards {
        for lba in 2 * BLOCKS..2 * BLOCKS + 64 {
            shard.write(lba, &content(1, lba)).unwrap();
            shard.flush().unwrap();
        }
    }
}

/// Writes some blocks of every shard, whose versions begin at `version`.
fn write(shards: &mut [Offline], written: &mut [Vec<Option<u64>>], version: u64, every: usize) {
    for (shard, written) in shards.iter_mut().zip(written) {
        for lba in (0..BLOCKS).step_by(every) {
            let version = version + u64::from(lba % 7);
            shard.write(lba, &content(version, lba)).unwrap();
            written[lba as usize] = Some(version);
        }
        shard.flush().unwrap();
    }
}

impl Device {
    fn new(device: &str, crashed: bool) -> Self {
        let other = Folder::new();
        let of_other = config(&other.0, device);
        format(&of_other.device, &of_other.ftl).unwrap();
        let mut written = vec![vec![None; 2 * BLOCKS as usize]; of_other.device.shards as usize];
        with_device(&of_other.device.kind, &of_other.ftl, false, |shards| {
            write(shards, &mut written.clone(), 1000, 1);
            write(shards, &mut written.clone(), 2000, 2);
        })
        .unwrap();
        let (folder, earlier) = (Folder::new(), Folder::new());
        let config = config(&folder.0, device);
        format(&config.device, &config.ftl).unwrap();
        with_device(&config.device.kind, &config.ftl, false, |shards| {
            write(shards, &mut written, 10, 1);
        })
        .unwrap();
        copy_tree(&folder.0, &earlier.0);
        let left = Folder::new();
        with_device(&config.device.kind, &config.ftl, false, |shards| {
            write(shards, &mut written, 20, 3);
            if crashed {
                // An earlier moment of the same open, and then the one at which the power goes.
                copy_tree(&folder.0, &earlier.0);
                write(shards, &mut written, 30, 5);
                write_what_may_be_lost(shards);
                copy_tree(&folder.0, &left.0);
            }
        })
        .unwrap();
        if crashed {
            copy_tree(&left.0, &folder.0);
        }
        Self { folder, config, written, earlier, other, crashed }
    }

    /// What is wrong with what the device shows; nothing if it cannot be opened. The second is true if
    /// everything was read without an error.
    fn look(&self) -> (Vec<String>, bool) {
        let mut wrong = Vec::new();
        let mut whole = true;
        let opened = with_device(&self.config.device.kind, &self.config.ftl, true, |shards| {
            for (index, shard) in shards.iter_mut().enumerate() {
                for (lba, &version) in (0..).zip(&self.written[index]) {
                    match shard.read(lba, 1) {
                        Ok(bytes) => {
                            let right = version.map_or(vec![0; BLOCK_BYTES], |it| content(it, lba));
                            if bytes != right {
                                wrong.push(format!("shard {index}, block {lba}"));
                            }
                        }
                        Err(RequestError::Unreadable | RequestError::Failed) => whole = false,
                        Err(error) => wrong.push(format!("block {lba} fails with {error:?}")),
                    }
                }
            }
        });
        (wrong, whole && opened.is_ok())
    }
}

fn copy_tree(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(&file);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(from.join(&file), target).unwrap();
    }
}

/// The files below `root`, which are not sockets or locks.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() && path.extension().is_none_or(|it| it != "lock") {
                found.push(path.strip_prefix(root).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    found
}

/// Bytes of a file at an offset, as many as there are.
fn bytes_at(path: &Path, at: u64, len: usize) -> Vec<u8> {
    let Ok(file) = fs::File::open(path) else { return Vec::new() };
    let mut bytes = vec![0; len];
    let read = file.read_at(&mut bytes, at).unwrap_or(0);
    bytes.truncate(read);
    bytes
}

/// A place in the file with something in it, if one is found soon.
fn place(path: &Path, len: u64, size: usize, random: &mut Random) -> u64 {
    let room = len.saturating_sub(size as u64) + 1;
    let mut at = 0;
    for _ in 0..200 {
        at = random.below(room);
        if size >= 512 {
            at -= at % 512;
        }
        if bytes_at(path, at, size).iter().any(|&byte| byte != 0) {
            break;
        }
    }
    at
}

/// What a file held, to be put back.
enum Undo {
    Bytes(u64, Vec<u8>),
    File(Vec<u8>),
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// Damages a file of the device. `None` if it reads as before.
fn damage(device: &Device, name: &Path, harm: Harm, random: &mut Random) -> Option<Undo> {
    let path = device.folder.0.join(name);
    let len = fs::metadata(&path).unwrap().len();
    if len == 0 {
        return None;
    }
    let sizes = [1, 16, 32, 512, 4096, 4096, 65_536, 1 << 20];
    let mut size = sizes[random.below(sizes.len() as u64) as usize].min(len as usize);
    if harm == Harm::Stale {
        // Nearly the whole of a file as it was is an older device, and nothing beside tells of a newer one.
        size = size.min(65_536);
    }
    let at = place(&path, len, size, random);
    let before = bytes_at(&path, at, size);
    let after = match harm {
        Harm::Flip => {
            let mut bytes = before.clone();
            bytes[random.below(size as u64) as usize] ^= 1 << random.below(8);
            bytes
        }
        Harm::Zero => vec![0; size],
        Harm::Noise => (0..size).map(|_| random.next_u64() as u8).collect(),
        Harm::Stale => bytes_at(&device.earlier.0.join(name), at, size),
        Harm::Foreign => bytes_at(&device.other.0.join(name), at, size),
        Harm::Moved => {
            let from = place(&path, len, size, random);
            bytes_at(&path, from, size)
        }
        // A plain file is the whole device: another's is another device.
        Harm::StaleFile | Harm::ForeignFile if name == Path::new("dev.img") => return None,
        // All that was written since lies in it, and nothing beside tells of that.
        Harm::StaleFile if device.crashed && name == Path::new("fast") => return None,
        Harm::StaleFile | Harm::ForeignFile => {
            let root = if harm == Harm::StaleFile { &device.earlier } else { &device.other };
            let whole = fs::read(&path).unwrap();
            let other = fs::read(root.0.join(name)).ok().filter(|other| *other != whole)?;
            fs::write(&path, other).unwrap();
            return Some(Undo::File(whole));
        }
        Harm::Truncated | Harm::Missing => {
            let whole = fs::read(&path).unwrap();
            if harm == Harm::Missing {
                fs::remove_file(&path).unwrap();
            } else {
                let file = fs::File::options().write(true).open(&path).unwrap();
                file.set_len(random.below(len)).unwrap();
            }
            return Some(Undo::File(whole));
        }
    };
    overwrite(&path, at, &after);
    (after != before).then_some(Undo::Bytes(at, before))
}

fn undo(path: &Path, what: &Undo) {
    match what {
        Undo::Bytes(at, bytes) => overwrite(path, *at, bytes),
        Undo::File(bytes) => fs::write(path, bytes).unwrap(),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Damages the files of one kind of device in turn, in every way in turn.
fn survive(test: &str, device: &str, crashed: bool) {
    let device = Device::new(device, crashed);
    assert_eq!(device.look(), (Vec::new(), true), "{test}: before any damage");
    let names = files(&device.folder.0);
    let images = number("DAMAGE_IMAGES").unwrap_or(IMAGES).max((names.len() * HARMS.len()) as u64);
    let mut tried: BTreeMap<(PathBuf, Harm), [u64; 2]> = BTreeMap::new();
    let mut failures = Vec::new();
    for image in 0..images {
        if number("DAMAGE_IMAGE").is_some_and(|only| only != image) {
            continue;
        }
        let mut random = Random::new(image ^ 0xf11e);
        let name = &names[image as usize % names.len()];
        let harm = HARMS[image as usize / names.len() % HARMS.len()];
        let Some(before) = damage(&device, name, harm, &mut random) else { continue };
        let looked = catch_unwind(AssertUnwindSafe(|| device.look()));
        undo(&device.folder.0.join(name), &before);
        let (wrong, whole) = looked.unwrap_or_else(|_| (vec!["it panics".into()], false));
        let count = tried.entry((name.clone(), harm)).or_default();
        count[0] += 1;
        count[1] += u64::from(!whole);
        if let Some(first) = wrong.first() {
            let (name, more) = (name.display(), wrong.len());
            failures.push(format!("image {image}, {harm:?} of {name}: {first}, {more} in all"));
        }
    }
    for ((name, harm), [images, errors]) in &tried {
        println!("{test}: {} {harm:?}: {images} images, {errors} with errors", name.display());
    }
    assert!(
        failures.is_empty(),
        "repeat: DAMAGE_IMAGE=N cargo test -p serve {test}\n{failures:#?}"
    );
    assert_eq!(device.look(), (Vec::new(), true), "{test}: looking has changed something");
}

#[test]
fn damaged_files_of_emulated_flash_show_nothing_wrong() {
    survive("damaged_files_of_emulated_flash_show_nothing_wrong", FOLDER, false);
}

#[test]
fn a_damaged_plain_file_shows_nothing_wrong() {
    survive("a_damaged_plain_file_shows_nothing_wrong", FILE, false);
}

#[test]
fn damaged_files_of_two_shards_show_nothing_wrong() {
    let device = format!("{FOLDER}\nshards = 2");
    survive("damaged_files_of_two_shards_show_nothing_wrong", &device, false);
}

fn with_fast_tier() -> String {
    format!("{FOLDER}\nfast = {{ path = \"fast\", kind = \"file\", capacity = \"64MiB\" }}")
}

#[test]
fn damaged_files_of_a_fast_tier_show_nothing_wrong() {
    survive("damaged_files_of_a_fast_tier_show_nothing_wrong", &with_fast_tier(), false);
}

#[test]
fn files_that_are_damaged_after_a_crash_show_nothing_wrong() {
    let test = "files_that_are_damaged_after_a_crash_show_nothing_wrong";
    survive(test, FOLDER, true);
    survive(test, FILE, true);
    survive(test, &with_fast_tier(), true);
}
