//! Reads everything that a store holds and says what is not sound: every SST by the checksums of its blocks, then every file
//! by that of all its bytes.

#[cfg(test)]
use super::engine::Each;
use super::engine::{OWN, Table};
use super::files::Entry;
use super::key::{self, Cell, FilePath};
use super::{Refused, Service};
use serde::Serialize;

/// Damages that are told in words; the others are counted.
const TOLD_MAX: usize = 100;
/// Bytes of a key that are shown.
const SHOWN_BYTES: usize = 60;

/// What was read so far, and what of it is damaged.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Scrubbed {
    /// SSTs that were read, and how many there were at the beginning.
    pub tables: u64,
    /// How many SSTs there were.
    pub tables_all: u64,
    /// Bytes of those.
    pub table_bytes: u64,
    /// Files that were read.
    pub files: u64,
    /// Bytes of those.
    pub file_bytes: u64,
    /// How many SSTs and files are damaged.
    pub damaged: u64,
    /// Where, and what it means.
    pub damages: Vec<String>,
}

impl Scrubbed {
    fn note(&mut self, damage: String) {
        self.damaged += 1;
        if self.damages.len() < TOLD_MAX {
            self.damages.push(damage);
        }
    }
}

impl Service {
    /// Reads everything. `told` hears how far it is, and ends it by `false`.
    ///
    /// # Errors
    /// It cannot go on. What is damaged is no error of this.
    pub fn scrub(&self, told: &mut dyn FnMut(&Scrubbed) -> bool) -> Result<Scrubbed, Refused> {
        let tables = self.engine().tables();
        let mut done = Scrubbed { tables_all: tables.len() as u64, ..Scrubbed::default() };
        for table in tables {
            if !told(&done) {
                return Ok(done);
            }
            match self.engine().verify(&table.name) {
                Ok(()) => {}
                Err(why) => {
                    self.reach()?;
                    done.note(damage(&table, &why));
                }
            }
            done.tables += 1;
            done.table_bytes += table.bytes;
        }
        let mut behind = None;
        loop {
            let (files, more) = self.all_files(behind.as_ref(), 100)?;
            for file in &files {
                if !told(&done) {
                    return Ok(done);
                }
                let path = FilePath::parse(&file.name)?;
                match file.entry {
                    Some(entry) => self.scrub_file(&path, &entry, &mut done)?,
                    None => done.note(format!("file {path}: its entry cannot be read")),
                }
                behind = Some(path);
            }
            if !more || files.is_empty() {
                return Ok(done);
            }
        }
    }

    fn scrub_file(
        &self,
        path: &FilePath,
        entry: &Entry,
        done: &mut Scrubbed,
    ) -> Result<(), Refused> {
        let mut checksum = 0;
        for number in 0..entry.pieces() {
            match self.piece(path, entry, number) {
                Ok(piece) => checksum = crc32c::crc32c_append(checksum, &piece),
                // Deleted meanwhile.
                Err(Refused::Missing(_)) => return Ok(()),
                Err(why) => {
                    self.reach()?;
                    done.note(format!("file {path}: {why}"));
                    return Ok(());
                }
            }
        }
        if checksum != entry.checksum {
            done.note(format!("file {path}: its bytes are not those that were written"));
        }
        done.files += 1;
        done.file_bytes += entry.bytes;
        Ok(())
    }

    /// Bytes of files that are being written or whose entry is gone: nothing refers to them. For tests.
    #[cfg(test)]
    pub(super) fn loose_keys(&self) -> usize {
        let mut count = 0;
        for slice in 0..self.slices() {
            let each: &mut Each<'_> = &mut |key, _| {
                count += usize::from(key.starts_with(b"c") || key.starts_with(b"u"));
                true
            };
            let all = key::KeyRange { from: b"c".to_vec(), to: b"z".to_vec() };
            self.engine().scan(slice, &all, each).expect("memory does not fail");
        }
        count
    }
}

pub(super) fn damage(table: &Table, why: &Refused) -> String {
    let Table { slice, name, smallest, largest, .. } = table;
    if largest.is_empty() {
        let what = if name.ends_with(".log") { ", a log" } else { "" };
        return format!("{name}{what}: {why}: what was written last may be missing, of any key");
    }
    let slice = match *slice {
        OWN => "the store's own slice".into(),
        number => format!("slice {number}"),
    };
    format!(
        "{slice}: {name}, which has {} to {}: {why}: what is read from there is refused; other keys are sound",
        shown(smallest),
        shown(largest)
    )
}

/// A key of the engine as people know it.
fn shown(key: &[u8]) -> String {
    let text = |bytes: &[u8]| -> String {
        let bytes = &bytes[..bytes.len().min(SHOWN_BYTES)];
        bytes.escape_ascii().to_string()
    };
    if let Some(name) = key::value_name(key) {
        return format!("key {}", text(name));
    }
    if let Some(cell) = Cell::of(key) {
        return format!("table {} row {}", text(&cell.table), text(&cell.row));
    }
    match FilePath::of(key) {
        Some(path) => format!("file {}", text(path.to_string().as_bytes())),
        None => "bytes of files".into(),
    }
}
