//! The file of the log of Weir's own control plane, and its folder.
//!
//! Invariants: one process at a time has the folder. What was stored is durable. A log that is gone is not taken for
//! one that never was: whoever owns a volume would be forgotten. How far the log has come stands in the lock, too,
//! so that an older copy of the log alone is not taken for the newest one.

use super::super::{PoolError, drawn};
use crate::files;
use pool::control::embedded::{Embedded, Known, Store};
use pool::words::PoolId;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

/// The log of a plane.
pub struct LogFile {
    folder: PathBuf,
    path: PathBuf,
    /// Only missing until a new plane has stored its first snapshot.
    file: Option<File>,
    /// Bytes of it that are durable.
    length: u64,
    /// Held as long as this one is there. It holds how far the log has come ([`Reached`]).
    lock: File,
}

/// What the lock holds: a revision that the log has come to, and a checksum. It is written behind the log and not
/// waited for: a power cut may leave an older one, never one that the log lacks.
struct Reached;

/// Of a start of the plane: not 0, which stands for none.
fn stamp() -> Result<u64, PoolError> {
    Ok(drawn()? as u64 | 1)
}

impl Reached {
    const BYTES: usize = 12;

    fn encode(revision: u64) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&revision.to_le_bytes());
        let sum = flash::crc(&bytes[..8]);
        bytes[8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Nothing is known of a lock that holds something else: older versions left it empty.
    fn decode(bytes: &[u8; Self::BYTES]) -> Known {
        let (revision, sum) = bytes.split_first_chunk::<8>().expect("there are twelve");
        let sound = flash::crc(revision).to_le_bytes() == *sum;
        Known { revision: if sound { u64::from_le_bytes(*revision) } else { 0 } }
    }
}

const LOG: &str = "plane.log";
const NEW: &str = "plane.log.new";
const LOCK: &str = "plane.lock";

/// What a log is refused above: it holds at most four times what the plane has in memory.
const LOG_BYTES_MAX: u64 = 16 << 30;

impl LogFile {
    /// Opens the log in `folder`, or begins one; the plane it makes has something to store at once.
    ///
    /// # Errors
    /// The file that cannot be used, why, and what to do. Nothing was changed then, but for a torn tail that was
    /// cut off.
    pub fn open(
        folder: &Path,
        pool: PoolId,
        now: flash::Instant,
    ) -> Result<(Self, Embedded), PoolError> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
            failed(folder, &format!("cannot be made: {error}: choose another folder as plane.data"))
        })?;
        let path = folder.join(LOG);
        let lock_path = folder.join(LOCK);
        let was_there = lock_path.exists();
        let lock = lock(&lock_path)?;
        let mut log = Self { folder: folder.into(), path, file: None, length: 0, lock };
        let is_there = log.path.symlink_metadata().is_ok();
        match (is_there, was_there) {
            (true, _) => {
                let plane = log.read(pool, now)?;
                Ok((log, plane))
            }
            (false, false) => Ok((log, Embedded::create(pool, stamp()?))),
            (false, true) => Err(failed(
                &log.path,
                &format!(
                    "is gone, and with it who owns which volume: put back the newest copy; to begin a new pool \
                     instead, remove {}",
                    lock_path.display()
                ),
            )),
        }
    }

    fn read(&mut self, pool: PoolId, now: flash::Instant) -> Result<Embedded, PoolError> {
        let path = &self.path;
        let unread = |error: io::Error| failed(path, &format!("cannot be read: {error}"));
        let bytes = files::read(path, LOG_BYTES_MAX).map_err(unread)?;
        let mut reached = [0; Reached::BYTES];
        let known = match self.lock.read_exact_at(&mut reached, 0) {
            Ok(()) => Reached::decode(&reached),
            Err(_) => Known::default(),
        };
        let (plane, length) = Embedded::open(now, pool, &bytes, known, stamp()?)
            .map_err(|error| PoolError::Log { path: path.clone(), error })?;
        let file = files::open(path, OpenOptions::new().append(true)).map_err(unread)?;
        if length < bytes.len() {
            tracing::warn!(
                "{}: a torn tail of {} bytes is cut off: nobody was answered for it",
                path.display(),
                bytes.len() - length
            );
            file.set_len(length as u64).and_then(|()| file.sync_all()).map_err(|error| {
                failed(path, &format!("its torn tail cannot be cut off: {error}"))
            })?;
        }
        (self.file, self.length) = (Some(file), length as u64);
        Ok(plane)
    }

    /// Stores what a plane says, and returns when all of it is durable.
    ///
    /// # Errors
    /// It is not, and the plane must end.
    pub fn store(&mut self, store: Vec<Store>) -> Result<(), PoolError> {
        let mut appended = Vec::new();
        for part in store {
            match part {
                Store::Append { bytes, .. } => appended.extend(bytes),
                // A snapshot holds what was appended before it.
                Store::Replace { bytes, .. } => {
                    appended.clear();
                    self.replace(&bytes).map_err(|error| self.unwritten(&error))?;
                }
            }
        }
        match appended.is_empty() {
            true => Ok(()),
            false => self.append(&appended).map_err(|error| self.unwritten(&error)),
        }
    }

    /// All of the log up to this revision is stored.
    pub fn reached(&self, revision: u64) {
        if let Err(error) = self.lock.write_all_at(&Reached::encode(revision), 0) {
            // The log is what counts: without this an older copy of it is told by who was connected, and by nodes.
            tracing::warn!(%error, "{}: cannot be written", self.folder.join(LOCK).display());
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().expect("a plane begins with a snapshot");
        let written = file.write_all(bytes).and_then(|()| file.sync_data());
        match written {
            Ok(()) => self.length += bytes.len() as u64,
            // Nobody was answered for it. If this fails, the next start cuts it off.
            Err(_) => drop(file.set_len(self.length)),
        }
        written
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let new = self.folder.join(NEW);
        let mut file = files::create(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        File::open(&self.folder)?.sync_all()?;
        let file = files::open(&self.path, OpenOptions::new().append(true))?;
        (self.file, self.length) = (Some(file), bytes.len() as u64);
        Ok(())
    }

    fn unwritten(&self, error: &io::Error) -> PoolError {
        let mend = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "make room on its file system, then start this again"
            }
            _ => "see to its file system, then start this again",
        };
        failed(
            &self.path,
            &format!("cannot be written: {error}: {mend}; what was acknowledged is in it"),
        )
    }
}

fn lock(path: &Path) -> Result<File, PoolError> {
    let mut options = OpenOptions::new();
    let file = files::open(path, options.read(true).write(true).create(true)).map_err(|error| {
        failed(path, &format!("cannot be made: {error}: choose another folder as plane.data"))
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(failed(path, "is held by another control plane: stop it, or choose another folder"))
        }
        Err(std::fs::TryLockError::Error(error)) => {
            Err(failed(path, &format!("cannot be locked: {error}: choose a local file system")))
        }
    }
}

fn failed(path: &Path, reason: &str) -> PoolError {
    PoolError::File { path: path.into(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Instant;
    use pool::control::contract::{Change, PlaneAsk, PlaneAskId};
    use pool::control::embedded::{PlaneInput, PlaneOutput};

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-plane-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        path
    }

    fn settle(plane: &mut Embedded, log: &mut LogFile) -> Result<(), PoolError> {
        while let Some(output) = plane.poll() {
            let PlaneOutput::Store(store) = output else { continue };
            let (Store::Append { sequence, .. } | Store::Replace { sequence, .. }) = store;
            log.store(vec![store])?;
            plane.handle(Instant(0), PlaneInput::Stored { sequence });
        }
        Ok(())
    }

    fn commit(plane: &mut Embedded, bytes: usize) {
        let change = Change::Put { key: "a".into(), value: vec![1; bytes], lease: None };
        let ask = PlaneAsk::Commit { checks: vec![], changes: vec![change] };
        plane.handle(Instant(0), PlaneInput::Ask { client: 1, id: PlaneAskId(1), ask });
    }

    fn open(folder: &Path, pool: u128) -> Result<(LogFile, Embedded), String> {
        LogFile::open(folder, PoolId(pool), Instant(0)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_has_one_plane_its_own_pool_and_no_log_that_went_missing() {
        let folder = folder("folder");
        let (mut log, mut plane) = open(&folder, 1).expect("a new one");
        settle(&mut plane, &mut log).expect("there is room");
        let text = open(&folder, 1).err().expect("it is held");
        assert!(text.contains("another control plane"), "{text}");
        drop(log);
        let text = open(&folder, 2).err().expect("another pool's");
        assert!(text.contains("belongs to pool") && text.contains("plane.log"), "{text}");
        let path = folder.join(LOG);
        let mut newer = std::fs::read(&path).unwrap();
        let sound = newer.clone();
        newer[4] = 9;
        let sum = flash::crc(&newer[..24]).to_le_bytes();
        newer[24..28].copy_from_slice(&sum);
        std::fs::write(&path, &newer).unwrap();
        let text = open(&folder, 1).err().expect("of a later version");
        assert!(text.contains("newer version"), "{text}");
        std::fs::remove_file(&path).unwrap();
        let text = open(&folder, 1).err().expect("it is gone");
        assert!(text.contains("is gone") && text.contains("plane.lock"), "{text}");
        std::fs::write(&path, &sound).unwrap();
        open(&folder, 1).expect("it is back");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_older_copy_of_the_log_is_refused_where_the_lock_tells_of_more() {
        let folder = folder("older");
        let (mut log, mut plane) = open(&folder, 1).expect("a new one");
        commit(&mut plane, 10);
        settle(&mut plane, &mut log).expect("there is room");
        log.reached(plane.revision());
        let (path, older) = (folder.join(LOG), std::fs::read(folder.join(LOG)).unwrap());
        commit(&mut plane, 10);
        settle(&mut plane, &mut log).expect("there is room");
        log.reached(plane.revision());
        drop(log);
        let newest = std::fs::read(&path).unwrap();
        std::fs::write(&path, &older).unwrap();
        let text = open(&folder, 1).err().expect("it lacks a change");
        assert!(text.contains("plane.log") && text.contains("revision"), "{text}");
        std::fs::write(&path, &newest).unwrap();
        open(&folder, 1).expect("the newest one");
        // A lock of an older version tells nothing.
        std::fs::write(folder.join(LOCK), []).unwrap();
        std::fs::write(&path, &older).unwrap();
        open(&folder, 1).expect("nobody here knows better");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_torn_tail_is_cut_off_and_what_came_before_it_is_there() {
        let folder = folder("torn");
        let (mut log, mut plane) = open(&folder, 1).expect("a new one");
        commit(&mut plane, 10);
        settle(&mut plane, &mut log).expect("there is room");
        drop(log);
        let path = folder.join(LOG);
        let sound = std::fs::read(&path).unwrap();
        commit(&mut plane, 10);
        let Some(PlaneOutput::Store(Store::Append { bytes, .. })) = plane.poll() else {
            panic!("a commit is stored")
        };
        for cut in [1, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&path, [&sound[..], &bytes[..cut]].concat()).unwrap();
            let (log, plane) = open(&folder, 1).unwrap_or_else(|error| panic!("{cut}: {error}"));
            assert_eq!((plane.revision(), log.length), (1, sound.len() as u64), "cut={cut}");
            assert_eq!(std::fs::read(&path).unwrap(), sound, "cut={cut}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
