//! Immutable files: pieces under an id that no other file has, and an entry that makes them a file. The entry is written when all
//! pieces are there, so a file is seen whole or not at all; a rename moves the entry and no byte of the file.
//!
//! Pieces go to the log without waiting; the entry's commit makes them durable with itself. Before the first piece a
//! note says that a file of this id is being written, and goes with the entry: what an early end leaves is
//! found by it when the store is opened.
//!
//! All that has one first component is in one slice, so that a rename is one batch. Paths that are being changed are taken for
//! that time; who comes for one of them meanwhile, for a folder above or anything below, is told so.

use super::engine::{Change, Each};
use super::key::{self, FilePath};
use super::{Refused, Service};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a piece of a file; the last one may be shorter.
pub const PIECE_BYTES: usize = 1 << 20;
/// Largest file: as many pieces as have numbers, less what nobody misses.
const FILE_BYTES_MAX: u64 = 1 << 50;
/// Files that a rename of a folder may move.
const MOVED_MAX: usize = 10_000;
const ENTRY_VERSION: u8 = 1;
const ENTRY_BYTES: usize = 1 + 8 + 8 + 8 + 4;

/// What is known of a complete file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    /// Which pieces are its.
    pub id: u64,
    /// Its bytes.
    pub bytes: u64,
    /// When it was completed, in seconds since 1970.
    pub modified: u64,
    /// CRC-32C of all of it.
    pub checksum: u32,
}

impl Entry {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![ENTRY_VERSION];
        for number in [self.id, self.bytes, self.modified] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ENTRY_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| {
            bytes[at..at + 8].iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let checksum = u32::from_le_bytes(bytes[25..].try_into().ok()?);
        let entry = Self { id: number(1), bytes: number(9), modified: number(17), checksum };
        (bytes[0] == ENTRY_VERSION).then_some(entry)
    }

    /// How many pieces it has.
    pub fn pieces(&self) -> u32 {
        self.bytes.div_ceil(PIECE_BYTES as u64) as u32
    }
}

/// What is below a folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct File {
    /// Its name in the folder; its whole path in a list of all.
    pub name: String,
    /// It is a folder.
    pub is_folder: bool,
    /// `None` for a folder, and for a file whose entry cannot be read.
    pub entry: Option<Entry>,
}

/// Paths that are being changed.
#[derive(Debug, Default)]
pub(super) struct Taken(Mutex<BTreeSet<FilePath>>);

/// Paths that nobody else changes until it is dropped.
struct Hold {
    taken: Arc<Taken>,
    paths: Vec<FilePath>,
}

impl Taken {
    fn take(self: &Arc<Self>, paths: &[&FilePath]) -> Result<Hold, Refused> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let meets = |path: &FilePath| {
            taken.iter().any(|other| other.is_within(path) || path.is_within(other))
        };
        if let Some(path) = paths.iter().find(|path| meets(path)) {
            return Err(Refused::Conflict(format!(
                "{path}: somebody else is changing it, or what is above or below it: try again when that has ended"
            )));
        }
        let paths: Vec<FilePath> = paths.iter().map(|path| (*path).clone()).collect();
        taken.extend(paths.iter().cloned());
        Ok(Hold { taken: Arc::clone(self), paths })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut taken = self.taken.0.lock().unwrap_or_else(PoisonError::into_inner);
        for path in &self.paths {
            taken.remove(path);
        }
    }
}

/// A file that is being written. Dropped before its end, it leaves nothing that anybody sees; [`Service::give_up`] also takes
/// back its room.
pub struct Upload {
    path: FilePath,
    slice: u32,
    id: u64,
    pieces: u32,
    bytes: u64,
    checksum: u32,
    _hold: Hold,
}

impl Service {
    /// Begins a file.
    pub fn begin_file(&self, path: &FilePath) -> Result<Upload, Refused> {
        self.admit(0)?;
        let hold = self.taken().take(&[path])?;
        self.must_be_free(path)?;
        let (slice, id) = (path.slice(self.slices()), self.new_id()?);
        let note = Change::Put { slice, key: key::upload(id), value: Vec::new() };
        self.write(&[&note])?;
        Ok(Upload { path: path.clone(), slice, id, pieces: 0, bytes: 0, checksum: 0, _hold: hold })
    }

    /// Appends the next piece: of [`PIECE_BYTES`], but for the last one.
    pub fn append(&self, upload: &mut Upload, piece: Vec<u8>) -> Result<(), Refused> {
        self.admit(piece.len())?;
        let begins = u64::from(upload.pieces) * PIECE_BYTES as u64;
        assert_eq!(upload.bytes, begins, "no piece follows one that is not full");
        assert!(!piece.is_empty() && piece.len() <= PIECE_BYTES, "a piece has its bytes");
        if upload.bytes + piece.len() as u64 > FILE_BYTES_MAX {
            return Err(Refused::TooLarge(format!("a file has at most {FILE_BYTES_MAX} bytes")));
        }
        upload.bytes += piece.len() as u64;
        upload.checksum = crc32c::crc32c_append(upload.checksum, &piece);
        let key = key::piece(upload.id, upload.pieces);
        upload.pieces += 1;
        self.write(&[&Change::Put { slice: upload.slice, key, value: piece }])
    }

    /// Makes it a file, which is durable and seen by all when this returns.
    pub fn finish(&self, upload: Upload, modified: u64) -> Result<Entry, Refused> {
        let Upload { id, bytes, checksum, slice, .. } = upload;
        let entry = Entry { id, bytes, modified, checksum };
        let put = Change::Put { slice, key: upload.path.key(), value: entry.encode() };
        let done = Change::Delete { slice, key: key::upload(id) };
        let committed = self.commit(vec![put, done]);
        if let Err(Refused::Full(_)) = &committed {
            // It is no file, so its pieces need not wait for the next opening, if there is room to say so.
            self.remove_upload(slice, id).ok();
        }
        committed.map(|()| entry)
    }

    /// Takes back what was written of a file that will not be one.
    pub fn give_up(&self, upload: &Upload) -> Result<(), Refused> {
        self.remove_upload(upload.slice, upload.id)
    }

    fn remove_upload(&self, slice: u32, id: u64) -> Result<(), Refused> {
        let pieces = Change::DeleteRange { slice, range: key::pieces(id) };
        self.write(&[&pieces, &Change::Delete { slice, key: key::upload(id) }])
    }

    /// Takes back what an early end has left; how many files that were. Only while nobody writes any.
    pub(super) fn clear_up(&self) -> Result<u64, Refused> {
        let mut count = 0;
        for slice in 0..self.slices() {
            let mut ids = Vec::new();
            let each: &mut Each<'_> = &mut |key, _| {
                ids.extend(key::upload_id(key));
                true
            };
            self.engine().scan(slice, &key::uploads(), each)?;
            count += ids.len() as u64;
            for id in ids {
                self.remove_upload(slice, id)?;
            }
        }
        Ok(count)
    }

    /// What is known of a file.
    pub fn entry(&self, path: &FilePath) -> Result<Entry, Refused> {
        let missing = || {
            let is_folder = self.has_files(path).unwrap_or(false);
            let what =
                if is_folder { "is a folder: a slash at its end lists it" } else { "no such file" };
            Refused::Missing(format!("{path}: {what}"))
        };
        self.find(path)?.ok_or_else(missing)
    }

    fn find(&self, path: &FilePath) -> Result<Option<Entry>, Refused> {
        let at = path.at(self.slices());
        let Some(bytes) = self.engine().get(at.slice, &at.key)? else { return Ok(None) };
        let unread = || Refused::Damaged(format!("{path}: its entry cannot be read"));
        Entry::decode(&bytes).ok_or_else(unread).map(Some)
    }

    /// If there is something below.
    fn has_files(&self, folder: &FilePath) -> Result<bool, Refused> {
        let mut found = false;
        let each: &mut Each<'_> = &mut |_, _| {
            found = true;
            false
        };
        self.engine().scan(folder.slice(self.slices()), &folder.below(), each)?;
        Ok(found)
    }

    /// Neither a file nor a folder is there, and nothing above is a file.
    fn must_be_free(&self, path: &FilePath) -> Result<(), Refused> {
        if self.find(path)?.is_some() {
            return Err(Refused::Conflict(format!(
                "{path}: is there already, and a file never changes: delete it first, or take another name"
            )));
        }
        if self.has_files(path)? {
            return Err(Refused::Conflict(format!("{path}: is a folder with files in it")));
        }
        for folder in path.folders() {
            if self.find(&folder)?.is_some() {
                return Err(Refused::Conflict(format!("{path}: {folder} is a file, not a folder")));
            }
        }
        Ok(())
    }

    /// A piece of a file.
    pub fn piece(&self, path: &FilePath, entry: &Entry, number: u32) -> Result<Vec<u8>, Refused> {
        let at = u64::from(number) * PIECE_BYTES as u64;
        let bytes = (entry.bytes - at).min(PIECE_BYTES as u64);
        let piece = self.engine().get(path.slice(self.slices()), &key::piece(entry.id, number))?;
        match piece {
            Some(piece) if piece.len() as u64 == bytes => Ok(piece),
            // It may have been deleted while it is read.
            _ if self.find(path)? != Some(*entry) => {
                Err(Refused::Missing(format!("{path}: was deleted or renamed meanwhile")))
            }
            _ => Err(Refused::Damaged(format!("{path}: bytes from {at} on are missing"))),
        }
    }

    /// Deletes a file.
    pub fn delete_file(&self, path: &FilePath) -> Result<(), Refused> {
        let _hold = self.taken().take(&[path])?;
        let entry = self.entry(path)?;
        let at = path.at(self.slices());
        let (slice, range) = (at.slice, key::pieces(entry.id));
        self.commit(vec![
            Change::Delete { slice, key: at.key },
            Change::DeleteRange { slice, range },
        ])
    }

    /// Gives a file, or a folder with all that is in it, another name in its slice: the first component stays.
    pub fn rename(&self, from: &FilePath, to: &FilePath) -> Result<u64, Refused> {
        let first = |path: &FilePath| path.child(0).map(|(name, _)| name.to_owned());
        if first(from) != first(to) {
            return Err(Refused::Usage(format!(
                "{from} to {to}: a rename keeps the first component of a path, which chooses its slice: write the \
                 file anew there, and delete this one"
            )));
        }
        if to.is_within(from) || from.is_within(to) {
            return Err(Refused::Usage(format!("{from} to {to}: one is within the other")));
        }
        let _hold = self.taken().take(&[from, to])?;
        self.must_be_free(to)?;
        let slice = from.slice(self.slices());
        let mut changes = Vec::new();
        let mut moved = |path: &FilePath, value: &[u8]| {
            let put = Change::Put { slice, key: path.moved(from, to).key(), value: value.to_vec() };
            changes.extend([put, Change::Delete { slice, key: path.key() }]);
            changes.len() / 2 <= MOVED_MAX
        };
        if let Some(entry) = self.find(from)? {
            moved(from, &entry.encode());
        } else {
            let each: &mut Each<'_> =
                &mut |key, value| FilePath::of(key).is_none_or(|path| moved(&path, value));
            self.engine().scan(slice, &from.below(), each)?;
        }
        match changes.len() / 2 {
            0 => Err(Refused::Missing(format!("{from}: no such file or folder"))),
            count if count > MOVED_MAX => Err(Refused::TooLarge(format!(
                "{from}: has more than the {MOVED_MAX} files that are renamed in one piece: rename the folders in it one \
                 by one"
            ))),
            count => self.commit(changes).map(|()| count as u64),
        }
    }

    /// What is in a folder, by name; without one, what is at the top. `behind` is the last name that is known already.
    pub fn list(
        &self,
        folder: Option<&FilePath>,
        behind: Option<&str>,
        count: usize,
    ) -> Result<(Vec<File>, bool), Refused> {
        let depth = folder.map_or(0, FilePath::depth);
        let within = folder.map_or_else(key::files, FilePath::below);
        let named = |name: &str| match folder {
            Some(folder) => Ok(folder.with(name)),
            None => FilePath::parse(name),
        };
        let mut range = within;
        if let Some(behind) = behind {
            range.from = named(behind)?.below().to;
        }
        let mut list = Vec::new();
        while list.len() < count {
            let Some((path, value)) = self.first_file(folder, &range)? else {
                return Ok((list, false));
            };
            let Some((name, is_folder)) = path.child(depth) else { return Ok((list, false)) };
            let entry = if is_folder { None } else { Entry::decode(&value) };
            range.from = named(name)?.below().to;
            list.push(File { name: name.into(), is_folder, entry });
        }
        let more = self.first_file(folder, &range)?.is_some();
        Ok((list, more))
    }

    fn first_file(
        &self,
        folder: Option<&FilePath>,
        range: &key::KeyRange,
    ) -> Result<Option<(FilePath, Vec<u8>)>, Refused> {
        let all = 0..self.slices();
        let slices = folder.map_or(all, |folder| {
            let slice = folder.slice(self.slices());
            slice..slice + 1
        });
        let mut first: Option<(Vec<u8>, Vec<u8>)> = None;
        for slice in slices {
            let each: &mut Each<'_> = &mut |key, value| {
                if first.as_ref().is_none_or(|(least, _)| key < least.as_slice()) {
                    first = Some((key.to_vec(), value.to_vec()));
                }
                false
            };
            self.engine().scan(slice, range, each)?;
        }
        Ok(first.and_then(|(key, value)| Some((FilePath::of(&key)?, value))))
    }

    /// Every file, by path, behind one.
    pub fn all_files(
        &self,
        behind: Option<&FilePath>,
        count: usize,
    ) -> Result<(Vec<File>, bool), Refused> {
        let mut range = key::files();
        if let Some(behind) = behind {
            range.from = key::after(&behind.key());
        }
        let bounds = super::Bounds { count, bytes: usize::MAX, values: true };
        let page = self.page(&range, bounds)?;
        let file = |(key, value): (Vec<u8>, Vec<u8>)| {
            let (name, entry) = (FilePath::of(&key)?.to_string(), Entry::decode(&value));
            Some(File { name, is_folder: false, entry })
        };
        Ok((page.pairs.into_iter().filter_map(file).collect(), page.next.is_some()))
    }
}
