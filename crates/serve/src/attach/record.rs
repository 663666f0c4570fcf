//! What is noted of each device that is attached, so that it is found again: by who detaches it, and by the next process
//! that serves it. A file each, which its process holds locked; one that nobody holds is of a process that has gone.

use super::AttachError;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the records are, of devices that go with the machine's start as they do.
pub const FOLDER: &str = "/run/weir-attached";
const ENDING: &str = ".json";
/// Longer than a look at a record takes.
const GLANCE: Duration = Duration::from_millis(200);

/// How a volume is attached.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// By the ublk driver.
    Ublk,
    /// By the kernel's NBD client.
    Nbd,
}

/// A device that is attached.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Record {
    /// By which people name it.
    pub name: String,
    /// Where the volume is served.
    pub uri: String,
    /// Which volume of which device that is, as its server says; empty if it says nothing.
    #[serde(default)]
    pub identity: String,
    /// How.
    pub way: Way,
    /// The number of the device.
    pub number: u32,
    /// Its node.
    pub device: PathBuf,
    /// Another name of the node, which stays the same.
    pub link: PathBuf,
    /// The process that serves it.
    pub pid: u32,
}

/// The record of a name, which is ours as long as this lives.
pub struct Held {
    file: File,
    path: PathBuf,
    /// What a process that has gone has left there.
    pub before: Option<Record>,
}

/// A name as a file's: what could mean something else is told by its number, as udev does.
pub fn file_name(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' | b'+' | b':' | b'=' | b'@' => {
                text.push(byte.into());
            }
            b'.' if !text.is_empty() => text.push('.'),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// The name that a file has, which [`file_name`] made of it; `None` if it did not.
pub fn name_of(file: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), file.bytes());
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        if rest.next()? != b'x' {
            return None;
        }
        let digits = [rest.next()?, rest.next()?];
        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn path_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(file_name(name) + ENDING)
}

/// Where the appends of a disk with zones are noted that are under way.
pub fn appends(folder: &Path, name: &str) -> PathBuf {
    path_of(folder, name).with_extension("appends")
}

/// Takes the record of a name.
///
/// # Errors
/// Another process has it, or what the system refuses.
pub fn hold(folder: &Path, name: &str) -> Result<Held, AttachError> {
    let path = path_of(folder, name);
    fs::create_dir_all(folder).map_err(AttachError::system(folder, "make the folder"))?;
    let begun = Instant::now();
    loop {
        let options = &mut File::options();
        let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = opened.map_err(AttachError::system(&path, "open it"))?;
        match file.try_lock() {
            Ok(()) => {}
            // Who lists them looks at it for a moment.
            Err(TryLockError::WouldBlock) if begun.elapsed() < GLANCE => {
                std::thread::sleep(GLANCE / 10);
                continue;
            }
            Err(TryLockError::WouldBlock) => {
                return Err(AttachError::Attached(Box::new(read(&mut file)), name.into()));
            }
            Err(TryLockError::Error(error)) => {
                return Err(AttachError::system(&path, "lock it")(error));
            }
        }
        // Whoever had it may have removed it meanwhile.
        if file.metadata().is_ok_and(|found| found.nlink() > 0) {
            let before = read(&mut file);
            return Ok(Held { file, path, before });
        }
    }
}

fn read(file: &mut File) -> Option<Record> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

impl Held {
    /// Notes what is attached.
    pub fn note(&mut self, record: &Record) -> std::io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(serde_json::to_string(record)?.as_bytes())
    }

    /// Nothing is attached any more.
    pub fn remove(self) {
        // It is locked, so that nobody takes it for another's before it is gone; but where somebody has removed it,
        // another may have its name.
        let is = |found: fs::Metadata| (found.dev(), found.ino());
        let ours = self.file.metadata().map(is).ok();
        if ours.is_some() && ours == self.path.symlink_metadata().map(is).ok() {
            fs::remove_file(self.path.with_extension("appends")).ok();
            fs::remove_file(&self.path).ok();
        }
    }
}

/// Removes the record of a name if it is damaged and nobody's.
pub fn forget(folder: &Path, name: &str) {
    if path_of(folder, name).exists()
        && let Ok(held) = hold(folder, name)
        && held.before.is_none()
    {
        held.remove();
    }
}

/// A device that is attached, and whether somebody serves it.
pub struct Found {
    /// What is noted.
    pub record: Record,
    /// A process holds it.
    pub served: bool,
    /// The record is gone, or damaged: what stands here was found by the device.
    pub lost: bool,
}

/// All devices that are attached, by their names.
pub fn all(folder: &Path) -> Vec<Found> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<Found> = entries
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(ENDING))
        .filter_map(|entry| {
            let mut file = File::open(entry.path()).ok()?;
            let served = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
            Some(Found { record: read(&mut file)?, served, lost: false })
        })
        .collect();
    found.sort_by(|a, b| a.record.name.cmp(&b.record.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            uri: "nbd://h/a".into(),
            identity: "volume=1 device=7".into(),
            way: Way::Ublk,
            number: 3,
            device: "/dev/ublkb3".into(),
            link: "/dev/disk/by-id/weir-a".into(),
            pid: 7,
        }
    }

    #[test]
    fn a_record_is_one_processs_and_outlives_it_until_it_is_removed() {
        let folder = std::env::temp_dir().join(format!("weir-attached-{}", std::process::id()));
        let mut held = hold(&folder, "a/b").unwrap();
        assert_eq!(held.before, None);
        held.note(&record("a/b")).unwrap();
        assert!(all(&folder)[0].served);
        let again = hold(&folder, "a/b").err().unwrap().to_string();
        assert!(again.contains("/dev/ublkb3"), "{again}");
        drop(held);
        let found = all(&folder);
        assert_eq!((found.len(), found[0].served), (1, false));
        let held = hold(&folder, "a/b").unwrap();
        assert_eq!(held.before, Some(record("a/b")));
        // Somebody has removed it, and another has the name by now.
        fs::remove_file(path_of(&folder, "a/b")).unwrap();
        let mut other = hold(&folder, "a/b").unwrap();
        other.note(&record("a/b")).unwrap();
        held.remove();
        assert_eq!(all(&folder).len(), 1);
        other.remove();
        assert!(all(&folder).is_empty());
        fs::write(path_of(&folder, "a"), "{").unwrap();
        forget(&folder, "a");
        assert!(!path_of(&folder, "a").exists(), "a damaged record is nobody's");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_name_that_is_no_files_is_told_by_numbers() {
        assert_eq!(file_name("unit/7"), "unit\\x2f7");
        assert_eq!(file_name("..a b"), "\\x2e.a\\x20b");
        assert_eq!(file_name("data-1_x.img"), "data-1_x.img");
        for name in ["unit/7", "..a b", "ä\n", "a\\x"] {
            assert_eq!(name_of(&file_name(name)).as_deref(), Some(name));
        }
        assert_eq!((name_of("\\x2"), name_of("\\n"), name_of("\\xff")), (None, None, None));
    }
}
