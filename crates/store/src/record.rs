//! The journal's records, and the state that they lead to. The journal is text: a record is a line of JSON, and a
//! line that has no end was never written. What happens to the state happens by [`State::apply`] alone, at once
//! and when the journal is read again.

use crate::api::Error;
use crate::tail::PAYLOAD;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Blocks of a chunk, which belongs to one small file. 64 KiB: a store has some dozens of small files, each of which
/// wastes half of one, and one record tells where 62 KiB of a log lie.
pub const CHUNK_BLOCKS: u64 = 16;

/// A change of what the store holds.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// A file of raw blocks is whole.
    Table {
        /// Its name.
        path: String,
        /// Its bytes.
        size: u64,
        /// Numbers of its blocks, in order.
        numbers: Vec<u64>,
        /// Seconds since 1970.
        modified: u64,
    },
    /// A small file is made, and open for writing.
    Small {
        /// Its name.
        path: String,
        /// What its blocks say.
        file: u64,
        /// Likewise.
        stamp: u64,
        /// Seconds since 1970.
        modified: u64,
    },
    /// A small file has more room.
    Extend {
        /// Which.
        file: u64,
        /// Chunks, in order.
        chunks: Vec<u32>,
    },
    /// A small file is written no more: its size is this.
    Seal {
        /// Which.
        file: u64,
        /// Its bytes.
        size: u64,
    },
    /// A small file is written again, behind so many bytes.
    Reopen {
        /// Which.
        file: u64,
        /// Bytes that stay.
        size: u64,
        /// What its blocks say from here on.
        stamp: u64,
    },
    /// A file has another name; what had that is gone.
    Rename {
        /// The name until now.
        from: String,
        /// From now on.
        to: String,
    },
    /// A file is gone.
    Delete {
        /// Its name.
        path: String,
    },
    /// A folder is made.
    Folder {
        /// Its name.
        path: String,
    },
    /// A folder is gone.
    Unfolder {
        /// Its name.
        path: String,
    },
    /// Numbers below this may be in use.
    Reserve {
        /// The first that is not.
        number: u64,
    },
    /// All that was before this record is one state.
    Whole {},
}

/// What has a name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file of raw blocks.
    Table(Table),
    /// A small file, by its number.
    Small(u64),
}

/// A file of raw blocks.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Table {
    /// Its bytes.
    pub size: u64,
    /// Numbers of its blocks, in order.
    pub numbers: Vec<u64>,
    /// Seconds since 1970.
    pub modified: u64,
}

/// A small file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Small {
    /// Where it lies.
    pub chunks: Vec<u32>,
    /// Of who writes it.
    pub stamp: u64,
    /// Bytes that are there whatever the blocks say.
    pub floor: u64,
    /// Nobody writes it: it has `floor` bytes.
    pub sealed: bool,
    /// Seconds since 1970.
    pub modified: u64,
}

/// What the store holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// By name.
    pub names: BTreeMap<String, Entry>,
    /// Small files, by number.
    pub smalls: BTreeMap<u64, Small>,
    /// Numbers below this may be in use.
    pub reserved: u64,
    /// Chunks that belong to nobody once the records so far are durable.
    pub freed: Vec<u32>,
    /// Numbers of blocks likewise.
    pub doomed: Vec<u64>,
}

impl State {
    /// Changes the state. `Err` if the record does not follow from the ones before; then nothing changed.
    pub fn apply(&mut self, record: &Record) -> Result<(), Error> {
        match record {
            Record::Table { path, size, numbers, modified } => {
                let table = Table { size: *size, numbers: numbers.clone(), modified: *modified };
                self.put_table(path, table);
            }
            Record::Small { path, file, stamp, modified } => {
                let small = Small {
                    chunks: Vec::new(),
                    stamp: *stamp,
                    floor: 0,
                    sealed: false,
                    modified: *modified,
                };
                self.smalls.insert(*file, small);
                let old = self.names.insert(path.clone(), Entry::Small(*file));
                self.release(old);
            }
            Record::Extend { file, chunks } => self.small(*file)?.chunks.extend(chunks),
            Record::Seal { file, size } => {
                let small = self.small(*file)?;
                (small.floor, small.sealed) = (*size, true);
                let needed = chunks_of(*size).min(small.chunks.len());
                let beyond = small.chunks.split_off(needed);
                self.freed.extend(beyond);
            }
            Record::Reopen { file, size, stamp } => {
                let small = self.small(*file)?;
                (small.floor, small.sealed, small.stamp) = (*size, false, *stamp);
            }
            Record::Rename { from, to } => self.rename(from, to)?,
            Record::Delete { path } | Record::Unfolder { path } => {
                let old = self.names.remove(path).ok_or_else(|| strange(path))?;
                self.release(Some(old));
            }
            Record::Folder { path } => drop(self.names.insert(path.clone(), Entry::Folder)),
            Record::Reserve { number } => self.reserved = self.reserved.max(*number),
            Record::Whole {} => {}
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let entry = self.names.remove(from).ok_or_else(|| strange(from))?;
        if entry == Entry::Folder {
            let inside: Vec<String> = self.below(from).cloned().collect();
            for path in inside {
                let Some(entry) = self.names.remove(&path) else { continue };
                let path = format!("{to}{}", &path[from.len()..]);
                self.names.insert(path, entry);
            }
        }
        let old = self.names.insert(to.into(), entry);
        self.release(old);
        Ok(())
    }

    /// The names within a folder, however deep.
    pub fn below(&self, folder: &str) -> impl Iterator<Item = &String> {
        let prefix = format!("{}/", folder.trim_end_matches('/'));
        let end = prefix.clone();
        let names = self.names.range(prefix..).map(|(path, _)| path);
        names.take_while(move |path| path.starts_with(&end))
    }

    /// The file of this name is these blocks from now on; those of its old ones that are not among them go.
    fn put_table(&mut self, path: &str, table: Table) {
        let kept = table.numbers.clone();
        let old = self.names.insert(path.into(), Entry::Table(table));
        match old {
            Some(Entry::Table(old)) => {
                self.doomed.extend(old.numbers.iter().filter(|number| !kept.contains(number)));
            }
            old => self.release(old),
        }
    }

    fn small(&mut self, file: u64) -> Result<&mut Small, Error> {
        self.smalls.get_mut(&file).ok_or_else(|| strange(&format!("small file {file:x}")))
    }

    fn release(&mut self, old: Option<Entry>) {
        match old {
            Some(Entry::Table(table)) => self.doomed.extend(table.numbers),
            Some(Entry::Small(file)) => {
                let small = self.smalls.remove(&file);
                self.freed.extend(small.into_iter().flat_map(|small| small.chunks));
            }
            Some(Entry::Folder) | None => {}
        }
    }

    /// The records that lead to this state, from nothing.
    pub fn records(&self) -> Vec<Record> {
        let mut records = vec![Record::Reserve { number: self.reserved }];
        for (path, entry) in &self.names {
            let path = path.clone();
            match entry {
                Entry::Folder => records.push(Record::Folder { path }),
                Entry::Table(Table { size, numbers, modified }) => records.push(Record::Table {
                    path,
                    size: *size,
                    numbers: numbers.clone(),
                    modified: *modified,
                }),
                Entry::Small(file) => {
                    let Some(small) = self.smalls.get(file) else { continue };
                    let (file, stamp, modified) = (*file, small.stamp, small.modified);
                    records.push(Record::Small { path, file, stamp, modified });
                    records.push(Record::Extend { file, chunks: small.chunks.clone() });
                    let size = small.floor;
                    records.push(match small.sealed {
                        true => Record::Seal { file, size },
                        false => Record::Reopen { file, size, stamp },
                    });
                }
            }
        }
        records.push(Record::Whole {});
        records
    }
}

/// Chunks that so many bytes of a small file take.
pub fn chunks_of(bytes: u64) -> usize {
    bytes.div_ceil(PAYLOAD as u64 * CHUNK_BLOCKS) as usize
}

fn strange(what: &str) -> Error {
    Error::Damaged(format!("the journal tells of {what}, which is not there"))
}

/// A record as a line.
pub fn line(record: &Record) -> Vec<u8> {
    let mut line =
        serde_json::to_vec(record).expect("a record is JSON: it has no map and no float");
    line.push(b'\n');
    line
}

/// The state that the lines of a journal lead to; `None` if they are not one whole state.
pub fn replay(text: &[u8]) -> Result<Option<State>, Error> {
    let mut state = State::default();
    let mut whole = false;
    let end = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    for line in text[..end].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let record: Record = serde_json::from_slice(line).map_err(|error| {
            let line = String::from_utf8_lossy(line);
            Error::Damaged(format!(
                "the journal has a line that is none of its own: {line}: {error}"
            ))
        })?;
        state.apply(&record)?;
        whole |= record == Record::Whole {};
    }
    Ok(whole.then_some(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_what_its_own_records_lead_to() {
        let mut state = State::default();
        let path = |text: &str| text.to_owned();
        for record in [
            Record::Folder { path: path("/db") },
            Record::Reserve { number: 256 },
            Record::Table { path: path("/db/1.sst"), size: 9, numbers: vec![4, 5], modified: 1 },
            Record::Small { path: path("/db/a"), file: 3, stamp: 7, modified: 2 },
            Record::Extend { file: 3, chunks: vec![1, 2] },
            Record::Seal { file: 3, size: 70_000 },
            Record::Folder { path: path("/db/c") },
            Record::Folder { path: path("/db/c/d") },
            Record::Rename { from: path("/db/c"), to: path("/e") },
            Record::Small { path: path("/db/b"), file: 4, stamp: 8, modified: 2 },
            Record::Extend { file: 4, chunks: vec![9] },
            Record::Rename { from: path("/db/a"), to: path("/db/b") },
            Record::Table { path: path("/db/1.sst"), size: 9, numbers: vec![4, 6], modified: 1 },
        ] {
            state.apply(&record).unwrap();
        }
        assert_eq!((&state.freed[..], &state.doomed[..]), (&[9][..], &[5][..]));
        let folders = ["/db", "/e", "/e/d"];
        assert!(folders.iter().all(|&path| state.names[path] == Entry::Folder));
        let text: Vec<u8> = state.records().iter().flat_map(line).collect();
        (state.freed, state.doomed) = (Vec::new(), Vec::new());
        assert_eq!(replay(&text), Ok(Some(state)));
        assert_eq!(replay(&text[..text.len() - 2]), Ok(None), "the end is missing");
        assert!(replay(b"{\"delete\":{\"path\":\"/x\"}}\n").is_err());
        assert!(replay(b"letter\n").is_err());
        assert_eq!(replay(b""), Ok(None));
    }
}
