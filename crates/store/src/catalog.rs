//! Names, small files and the journal over one volume. It moves no raw blocks, but says which may be erased.
//!
//! Invariants:
//! - What [`Catalog::sync`] was told of before it returns is found again after a power cut at any later instant; what it
//!   was not is found as of some moment since, in the order of what was asked.
//! - A chunk or a raw block that a record gives up is used again, or erased, only when that record is durable.
//! - Nothing is acknowledged as durable once another process has taken the store.

use crate::api::{BLOCK_BYTES, Error, Volume};
use crate::journal::{self, Journal};
use crate::layout::{Layout, Owner};
use crate::path;
use crate::record::{self, CHUNK_BLOCKS, Entry, Record, Small, State, Table, chunks_of};
use crate::tail::{self, PAYLOAD, Tail};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the records that tell of a small file beside the one that makes it, at most: where it lies, and its end.
const MORE_RECORDS: usize = 192;
/// Chunks that a long file gets at a time.
const CHUNKS_AT_ONCE: usize = 8;

/// See the head of this file.
pub struct Catalog {
    volume: Box<dyn Volume>,
    layout: Layout,
    owner: Owner,
    state: State,
    journal: Journal,
    /// Bytes that the journal has at most when it is begun anew with the state as it is.
    anew: u64,
    free: BTreeSet<u32>,
    /// Small files that are being written.
    open: BTreeMap<u64, Tail>,
    /// Numbers of blocks that nothing durable needs.
    erasable: Vec<u64>,
    uniques: u32,
    /// Something was written since the last flush.
    unflushed: bool,
    /// Why nothing is changed any more.
    stopped: Option<Error>,
}

/// What one looks for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Found {
    /// A folder, or a file of which kind.
    pub entry: Entry,
    /// Bytes; none of a folder.
    pub size: u64,
    /// Seconds since 1970.
    pub modified: u64,
}

impl Catalog {
    /// Takes the store on `volume`, or makes one there. `nonce` is drawn for each opening.
    pub fn open(mut volume: Box<dyn Volume>, nonce: u64, block_bytes: u64) -> Result<Self, Error> {
        let layout = Layout::open(&mut *volume, nonce, block_bytes)?;
        let mut owner = Owner::take(&mut *volume, nonce, 0)?;
        let journal::Found { mut state, area, newest } = Journal::find(&mut *volume, &layout)?;
        if newest >= owner.unique(0) {
            // Who owned it is lost. What is written from now on has to be newer than what is there.
            owner = Owner::take(&mut *volume, nonce, (newest >> 32) as u32)?;
        }
        find_ends(&mut *volume, &layout, &mut state)?;
        let mut free: BTreeSet<u32> = (0..layout.chunks()).collect();
        for chunk in state.smalls.values().flat_map(|small| &small.chunks) {
            if !free.remove(chunk) {
                let what = format!("chunk {chunk} of the volume belongs to two files, or to none");
                return Err(Error::Damaged(what));
            }
        }
        (state.freed, state.doomed) = (Vec::new(), Vec::new());
        let stamp = owner.unique(0);
        let journal = Journal::begin(&mut *volume, &layout, 1 - area, stamp, &state)?;
        let mut catalog = Self {
            volume,
            layout,
            owner,
            state,
            anew: journal.bytes(),
            journal,
            free,
            open: BTreeMap::new(),
            erasable: Vec::new(),
            uniques: 1,
            unflushed: true,
            stopped: None,
        };
        catalog.sync()?;
        Ok(catalog)
    }

    /// High half of the IDs of this store's raw blocks.
    pub fn key(&self) -> u64 {
        self.layout.key
    }

    /// Every number that a file has a block of.
    pub fn numbers(&self) -> BTreeSet<u64> {
        self.tables().flat_map(|(_, table)| &table.numbers).copied().collect()
    }

    /// Bytes of a small file that is open for writing.
    pub fn written(&self, file: u64) -> u64 {
        self.open.get(&file).map_or(0, Tail::size)
    }

    /// A number that no block of this store has, or had. That it was given away is durable before its block is put, so a
    /// block with a number beyond is one that this journal is too old to know.
    pub fn number(&mut self) -> Result<u64, Error> {
        let number = self.state.reserved;
        let next = number.checked_add(1);
        let next = next.ok_or_else(|| Error::Damaged("all numbers are given away".into()))?;
        self.note(Record::Reserve { number: next })?;
        self.sync()?;
        Ok(number)
    }

    /// All numbers that were given away are below.
    pub fn numbers_end(&self) -> u64 {
        self.state.reserved
    }

    /// Every file of raw blocks, by its path.
    pub fn tables(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.state.names.iter().filter_map(|(path, entry)| match entry {
            Entry::Table(table) => Some((path.as_str(), table)),
            _ => None,
        })
    }

    /// Nothing is changed any more: what is there is only read.
    pub fn freeze(&mut self) {
        let what = "the store is open to read what is left of it (--damaged): nothing is changed";
        self.stopped = Some(Error::Usage(what.into()));
    }

    /// No file will ever have these blocks.
    pub fn abandon(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.erasable.extend(numbers);
    }

    /// Something can be erased, now or after a sync.
    pub fn has_waste(&self) -> bool {
        !self.erasable.is_empty() || !self.state.doomed.is_empty()
    }

    /// Numbers of the blocks that may be erased; each is told once.
    pub fn take_erasable(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.erasable)
    }

    /// What is at `path`.
    pub fn find(&self, path: &str) -> Result<Found, Error> {
        let folder = Found { entry: Entry::Folder, size: 0, modified: 0 };
        if path == "/" {
            return Ok(folder);
        }
        let entry = self.state.names.get(path).ok_or_else(|| Error::NotFound(path.into()))?;
        let (size, modified) = match entry {
            Entry::Folder => return Ok(folder),
            Entry::Table(table) => (table.size, table.modified),
            Entry::Small(file) => {
                let small = self.small(*file)?;
                (self.size_of(*file, small), small.modified)
            }
        };
        Ok(Found { entry: entry.clone(), size, modified })
    }

    /// The names in a folder, without those in its folders.
    pub fn children(&self, folder: &str) -> Result<Vec<String>, Error> {
        match self.find(folder)?.entry {
            Entry::Folder => {}
            _ => return Err(Error::Unfit(format!("{folder}: is a file, not a folder"))),
        }
        let skip = if folder == "/" { 1 } else { folder.len() + 1 };
        let names = self.state.below(folder).map(|path| &path[skip..]);
        Ok(names.filter(|name| !name.contains('/')).map(Into::into).collect())
    }

    /// Makes a folder, and those that it is in.
    pub fn create_folder(&mut self, path: &str) -> Result<(), Error> {
        match self.find(path) {
            Ok(Found { entry: Entry::Folder, .. }) => return Ok(()),
            Ok(_) => return Err(Error::Unfit(format!("{path}: is a file, not a folder"))),
            Err(_) => {}
        }
        if let Some(parent) = path::parent(path) {
            let parent = parent.to_owned();
            self.create_folder(&parent)?;
        }
        self.note(Record::Folder { path: path.into() })
    }

    /// Removes a folder with nothing in it.
    pub fn delete_folder(&mut self, path: &str) -> Result<(), Error> {
        if !self.children(path)?.is_empty() || path == "/" {
            return Err(Error::Unfit(format!("{path}: is not empty, or the root")));
        }
        self.note(Record::Unfolder { path: path.into() })
    }

    /// Gives a file or folder another name; a file that has it is gone.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let what = self.find(from)?.entry;
        self.check_parent(to)?;
        if from == to {
            return Ok(());
        }
        let unfit = match (&what, self.find(to).ok().map(|found| found.entry)) {
            (Entry::Folder, Some(Entry::Folder)) => !self.children(to)?.is_empty(),
            (Entry::Folder, None) => to.starts_with(&format!("{from}/")),
            (Entry::Folder, Some(_)) | (_, Some(Entry::Folder)) => true,
            _ => false,
        };
        if unfit || from == "/" {
            return Err(Error::Unfit(format!(
                "{from}: cannot become {to}: that is something else"
            )));
        }
        self.note(Record::Rename { from: from.into(), to: to.into() })
    }

    /// Removes a file.
    pub fn delete(&mut self, path: &str) -> Result<(), Error> {
        if self.find(path)?.entry == Entry::Folder {
            return Err(Error::Unfit(format!("{path}: is a folder, not a file")));
        }
        self.note(Record::Delete { path: path.into() })
    }

    /// A file of raw blocks is there from now on, instead of what had its name.
    pub fn set_table(&mut self, path: &str, table: Table) -> Result<(), Error> {
        self.check_file(path)?;
        let Table { size, numbers, modified } = table;
        self.note(Record::Table { path: path.into(), size, numbers, modified })
    }

    /// Makes an empty small file, instead of what had its name, and opens it for writing.
    pub fn create(&mut self, path: &str, modified: u64) -> Result<u64, Error> {
        self.check_file(path)?;
        let (file, stamp) = (self.unique()?, self.unique()?);
        self.note(Record::Small { path: path.into(), file, stamp, modified })?;
        self.open.insert(file, Tail::new(file, stamp, 0, Vec::new()));
        Ok(file)
    }

    /// Opens a small file for writing behind its first `size` bytes; behind all if that is `None`.
    pub fn reopen(&mut self, file: u64, size: Option<u64>) -> Result<(), Error> {
        if self.open.contains_key(&file) {
            self.close(file)?;
        }
        let whole = self.small(file)?.floor;
        let size = size.unwrap_or(whole);
        if size > whole {
            let what = format!("{size} bytes: the file has {whole}, and is not made longer so");
            return Err(Error::Usage(what));
        }
        let mut last = vec![0; (size % PAYLOAD as u64) as usize];
        let read = self.read(file, size - last.len() as u64, &mut last)?;
        assert_eq!(read, last.len(), "within the file");
        let stamp = self.unique()?;
        self.note(Record::Reopen { file, size, stamp })?;
        // Before the last block is written again: without this record its new stamp would be a stranger's.
        self.sync()?;
        self.open.insert(file, Tail::new(file, stamp, size, last));
        Ok(())
    }

    /// Appends to a small file. Whole blocks are sent to the volume, the rest stays here until [`Catalog::push`].
    pub fn append(&mut self, file: u64, bytes: &[u8]) -> Result<(), Error> {
        self.ready()?;
        let tail = self.open.get(&file).ok_or_else(unopened)?;
        let size = tail.size() + bytes.len() as u64;
        self.extend(file, size)?;
        let tail = self.open.get_mut(&file).ok_or_else(unopened)?;
        tail.append(bytes);
        if tail.has_whole() { self.write(file, false) } else { Ok(()) }
    }

    /// All that was appended is in the volume when this returns: it outlives this process.
    pub fn push(&mut self, file: u64) -> Result<(), Error> {
        self.ready()?;
        self.write(file, true)?;
        self.end_writes()
    }

    /// Ends the writing of a small file.
    pub fn close(&mut self, file: u64) -> Result<(), Error> {
        if !self.state.smalls.contains_key(&file) {
            // It was deleted meanwhile, and nothing is left to write.
            self.open.remove(&file);
            return self.ready();
        }
        self.push(file)?;
        // A size on record is believed, so what it counts must be as durable as the record.
        self.sync()?;
        let size = self.open.get(&file).ok_or_else(unopened)?.size();
        self.note(Record::Seal { file, size })?;
        self.open.remove(&file);
        Ok(())
    }

    /// Fills `into` with what a small file has at `offset`; how much that is.
    pub fn read(&mut self, file: u64, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let small = self.state.smalls.get(&file).ok_or_else(gone)?;
        let size = self.size_of(file, small);
        let wanted = (size.saturating_sub(offset)).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let (index, skip) = ((at / PAYLOAD as u64) as u32, (at % PAYLOAD as u64) as usize);
            let rest = &mut into[done..wanted];
            done += match self.open.get(&file).filter(|tail| index >= tail.index()) {
                Some(tail) => copy(tail.last(), skip, rest),
                None => read_blocks(&mut *self.volume, &self.layout, (file, small), at, rest)?,
            };
        }
        Ok(wanted)
    }

    /// All that was pushed, and every change of names, is durable when this returns.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.ready()?;
        if !self.unflushed {
            return Ok(());
        }
        let flushed = self.volume.flush();
        self.stopping(flushed)?;
        let owned = self.owner.is_still(&mut *self.volume);
        if !self.stopping(owned)? {
            let what = "another process has taken the store since this one opened it: nothing more is \
                        written by this one";
            self.stopped = Some(Error::Owned(what.into()));
            return self.ready();
        }
        self.journal.flushed();
        self.open.values_mut().for_each(Tail::flushed);
        self.unflushed = false;
        self.free.extend(self.state.freed.drain(..));
        self.erasable.append(&mut self.state.doomed);
        let vouched = self.vouch();
        self.stopping(vouched)?;
        self.end_writes()
    }

    /// Has somebody vouch for what is durable now, of the journal and of each file that is being written.
    fn vouch(&mut self) -> Result<(), Error> {
        let (volume, layout) = (&mut *self.volume, &self.layout);
        self.journal.vouch(volume, layout)?;
        for (file, tail) in &mut self.open {
            if let Some(small) = self.state.smalls.get(file) {
                tail.vouch(volume, |index| place(layout, small, index))?;
            }
        }
        Ok(())
    }

    /// Bytes of the volume that small files may still take.
    pub fn free_bytes(&self) -> u64 {
        self.free.len() as u64 * CHUNK_BLOCKS * PAYLOAD as u64
    }

    fn ready(&self) -> Result<(), Error> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    /// A failed write or flush ends all changes: what the volume holds then is known to the next opening only.
    fn stopping<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            let what =
                format!("the store stopped when its small volume failed: {error}: open it again");
            self.stopped.get_or_insert(Error::Io(what));
        }
        result
    }

    /// Makes a change, and puts it into the volume.
    fn note(&mut self, record: Record) -> Result<(), Error> {
        self.begin_note(record)?;
        self.end_writes()
    }

    /// Makes a change, which is on its way to the volume when this returns.
    fn begin_note(&mut self, record: Record) -> Result<(), Error> {
        self.ready()?;
        let line = record::line(&record);
        if !self.journal.fits(&self.layout, line.len()) {
            self.compact()?;
        }
        let grows = !matches!(
            record,
            Record::Delete { .. } | Record::Unfolder { .. } | Record::Seal { .. }
        );
        let more = if grows { self.grows_by(&record, line.len()) } else { 0 };
        let fits = self.journal.fits(&self.layout, line.len());
        if !fits || grows && self.is_crowded(more)? {
            return Err(journal::full(&self.layout));
        }
        self.state.apply(&record)?;
        self.anew += more;
        self.unflushed = true;
        let written = self.journal.append(&mut *self.volume, &self.layout, &line);
        self.stopping(written)
    }

    /// Bytes by which what the state is told by grows at most with a record.
    fn grows_by(&self, record: &Record, line: usize) -> u64 {
        let beside = match record {
            // The names within a folder have records of their own.
            Record::Rename { from, to } => {
                let longer = to.len().saturating_sub(from.len());
                self.state.below(from).count() * longer
            }
            Record::Small { .. } | Record::Reopen { .. } => MORE_RECORDS,
            _ => 0,
        };
        (line + beside) as u64
    }

    /// With so many bytes more, what is left when the journal is written anew fills most of it: no opening must find
    /// that it does not fit.
    fn is_crowded(&mut self, more: u64) -> Result<bool, Error> {
        let is_crowded = |catalog: &Self| {
            let bytes = catalog.journal.bytes().max(catalog.anew + more);
            journal::is_crowded(&catalog.layout, bytes)
        };
        if is_crowded(self) {
            self.compact()?;
        }
        Ok(is_crowded(self))
    }

    fn compact(&mut self) -> Result<(), Error> {
        let stamp = self.unique()?;
        let area = self.journal.other_area();
        let begun = Journal::begin(&mut *self.volume, &self.layout, area, stamp, &self.state);
        if let Err(Error::Full(_)) = &begun {
            return begun.map(drop);
        }
        self.unflushed = true;
        let mut journal = self.stopping(begun)?;
        self.sync()?;
        journal.flushed();
        self.anew = journal.bytes();
        self.journal = journal;
        Ok(())
    }

    fn unique(&mut self) -> Result<u64, Error> {
        self.uniques = self.uniques.checked_add(1).ok_or_else(|| {
            Error::Usage("this opening made 4,294,967,295 files: open the store again".into())
        })?;
        Ok(self.owner.unique(self.uniques))
    }

    fn small(&self, file: u64) -> Result<&Small, Error> {
        self.state.smalls.get(&file).ok_or_else(gone)
    }

    fn size_of(&self, file: u64, small: &Small) -> u64 {
        self.open.get(&file).map_or(small.floor, Tail::size)
    }

    /// A file may have this name.
    fn check_file(&self, path: &str) -> Result<(), Error> {
        match self.find(path) {
            Ok(Found { entry: Entry::Folder, .. }) => {
                Err(Error::Unfit(format!("{path}: is a folder, not a file")))
            }
            _ => self.check_parent(path),
        }
    }

    fn check_parent(&self, path: &str) -> Result<(), Error> {
        let parent = path::parent(path).unwrap_or("/");
        match self.find(parent)?.entry {
            Entry::Folder => Ok(()),
            _ => Err(Error::Unfit(format!("{parent}: is a file, not a folder"))),
        }
    }

    /// Gives a small file room for so many bytes, and for a block behind them that vouches for the last.
    fn extend(&mut self, file: u64, size: u64) -> Result<(), Error> {
        let has = self.small(file)?.chunks.len();
        let (needed, wanted) = (chunks_of(size).max(has), chunks_of(size + PAYLOAD as u64));
        if wanted <= has {
            return Ok(());
        }
        // A long file goes on for a while; what it leaves is free when it is closed.
        let ahead = if has < CHUNKS_AT_ONCE { 0 } else { CHUNKS_AT_ONCE };
        if self.free.len() < needed - has && !self.state.freed.is_empty() {
            self.sync()?;
        }
        if self.free.len() < needed - has {
            return Err(Error::Full(format!(
                "the small volume of the store is full: all its {} MiB hold logs and manifests: delete \
                 some, or make the store on a larger volume",
                (u64::from(self.layout.chunks()) * CHUNK_BLOCKS * BLOCK_BYTES as u64) >> 20
            )));
        }
        let count = (wanted - has + ahead).min(self.free.len());
        if count == 0 {
            return Ok(());
        }
        let chunks: Vec<u32> = self.free.iter().take(count).copied().collect();
        // Before it is in the volume nobody is told that what lies there is.
        self.begin_note(Record::Extend { file, chunks: chunks.clone() })?;
        for chunk in &chunks {
            self.free.remove(chunk);
        }
        Ok(())
    }

    /// All that was begun is in the volume when this returns.
    fn end_writes(&mut self) -> Result<(), Error> {
        let ended = self.volume.end_writes();
        self.stopping(ended)
    }

    fn write(&mut self, file: u64, all: bool) -> Result<(), Error> {
        let small = self.state.smalls.get(&file).ok_or_else(gone)?;
        let tail = self.open.get_mut(&file).ok_or_else(unopened)?;
        self.unflushed = true;
        let written = tail.write(&mut *self.volume, all, |index| place(&self.layout, small, index));
        self.stopping(written)
    }
}

/// Where a block of a small file lies.
fn place(layout: &Layout, small: &Small, index: u32) -> Option<u64> {
    let chunk = small.chunks.get(index as usize / CHUNK_BLOCKS as usize)?;
    Some(layout.chunk_block(*chunk) + u64::from(index) % CHUNK_BLOCKS)
}

/// Finds how far the files are written that somebody wrote when the store was left.
fn find_ends(volume: &mut dyn Volume, layout: &Layout, state: &mut State) -> Result<(), Error> {
    for (&file, small) in state.smalls.iter_mut().filter(|(_, small)| !small.sealed) {
        small.floor = find_end(volume, layout, (file, small))?;
        small.sealed = true;
        let needed = chunks_of(small.floor).min(small.chunks.len());
        small.chunks.truncate(needed);
    }
    Ok(())
}

/// Where a file ends. If a block vouches for more than is there, it is where its last block ends: whoever reads the file meets
/// what is missing, or is an older copy.
fn find_end(
    volume: &mut dyn Volume,
    layout: &Layout,
    (file, small): (u64, &Small),
) -> Result<u64, Error> {
    let mut block = [0; BLOCK_BYTES];
    let (mut there, mut goes_on) = (small.floor, true);
    let (mut vouched, mut last) = (0, 0);
    let mut index = (small.floor / PAYLOAD as u64) as u32;
    while let Some(at) = place(layout, small, index) {
        volume.read(at, &mut block)?;
        let ours = tail::decode(&block).filter(|(head, _)| head.is(file, small.stamp, index));
        goes_on &= ours.is_some();
        if let Some((head, payload)) = ours {
            let end = tail::start(index) + payload.len() as u64;
            there = if goes_on { there.max(end) } else { there };
            // One without payload is no block of the file.
            last = last.max(if payload.is_empty() { head.durable } else { end });
            vouched = vouched.max(head.durable);
            goes_on &= payload.len() == PAYLOAD;
        }
        index += 1;
    }
    Ok(if vouched > there { last.max(vouched) } else { there })
}

/// Reads from `at` on, at most to the end of its chunk; how many bytes that were.
fn read_blocks(
    volume: &mut dyn Volume,
    layout: &Layout,
    (file, small): (u64, &Small),
    at: u64,
    into: &mut [u8],
) -> Result<usize, Error> {
    let (index, skip) = ((at / PAYLOAD as u64) as u32, (at % PAYLOAD as u64) as usize);
    let damaged = |index: u32| {
        Error::Damaged(format!(
            "block {index} of small file {file:x} is not what was written there"
        ))
    };
    let first = place(layout, small, index).ok_or_else(|| damaged(index))?;
    let left = CHUNK_BLOCKS - u64::from(index) % CHUNK_BLOCKS;
    let count = ((skip + into.len()).div_ceil(PAYLOAD) as u64).min(left) as usize;
    let mut blocks = vec![0; count * BLOCK_BYTES];
    volume.read(first, &mut blocks)?;
    let mut done = 0;
    for (block, index) in blocks.chunks(BLOCK_BYTES).zip(index..) {
        let skip = if done == 0 { skip } else { 0 };
        let (head, payload) = tail::decode(block).ok_or_else(|| damaged(index))?;
        let wanted = (PAYLOAD - skip).min(into.len() - done);
        if head.file != file || head.index != index || payload.len() < skip + wanted {
            return Err(damaged(index));
        }
        done += copy(payload, skip, &mut into[done..]);
    }
    Ok(done)
}

fn copy(payload: &[u8], skip: usize, into: &mut [u8]) -> usize {
    let count = payload.len().saturating_sub(skip).min(into.len());
    into[..count].copy_from_slice(&payload[skip..skip + count]);
    count
}

fn gone() -> Error {
    Error::NotFound("a small file that was deleted while it was open".into())
}

fn unopened() -> Error {
    Error::Usage("a small file that is not open for writing".into())
}
