//! A store for many threads: names and small files behind one lock, and beside it the files of raw blocks, whose data
//! no lock stands before.
//!
//! A *table* (an SST) is written once ([`crate::writer`]): whole raw blocks as they fill up, the last one padded, and a record
//! that names them, which makes it a file. Where raw blocks are put side by side, its writer does not wait for the last of them
//! ([`Late`]). Its deletion is a record, and when that is durable its blocks are erased by a
//! thread of their own.

use crate::api::{Error, Piece, RawBlocks, Volume};
use crate::catalog::{Catalog, Found};
use crate::late::{Late, Whose};
use crate::layout::Layout;
use crate::path;
use crate::record::{Entry, Table};
use crate::writer::{TableWriter, Writer};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime};

/// Numbers that are tried for a block when those before are taken: other stores may use the same units.
const TAKEN_MAX: u32 = 1000;

/// As much of a table is asked for at a time by who reads in the background.
const STEP_BYTES: usize = 256 << 10;

/// See the head of this file.
pub struct Store {
    catalog: Mutex<Catalog>,
    pub(crate) late: Late,
    pub(crate) blocks: Box<dyn RawBlocks>,
    key: u64,
    put: AtomicU64,
    filled: AtomicU64,
    erased: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    /// Held while blocks are erased, so that who waits for room waits for what is under way.
    erasing: Mutex<()>,
    /// Wakes whoever erases.
    waste: Mutex<Sender<()>>,
    /// Numbers that files have, and whose blocks were not on the units when the store was opened.
    missing: BTreeSet<u64>,
    /// Blocks that were there then, and are newer than all that the journal knew.
    newer: u64,
    /// Numbers of blocks that were there then, and that no file has.
    orphans: Mutex<Vec<u64>>,
}

/// How a store is opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Opening {
    /// One may be made beside raw blocks of others.
    pub new: bool,
    /// To read what is left of it: nothing is changed.
    pub damaged: bool,
}

/// What is known of a path before what is on its way there has arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seen {
    /// It is a folder.
    pub folder: bool,
    /// Bytes of a file.
    pub size: u64,
    /// Seconds since 1970.
    pub modified: u64,
}

/// A file of which raw blocks are missing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missing {
    /// The file.
    pub path: String,
    /// One of its blocks that are not there.
    pub id: u128,
}

/// What was done since a store was opened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Raw blocks that were written.
    pub raw_blocks_put: u64,
    /// Bytes of tables in these; the rest of the last one of each table is none's.
    pub table_bytes_put: u64,
    /// Raw blocks that were erased.
    pub raw_blocks_erased: u64,
    /// Reads of raw blocks.
    pub reads: u64,
    /// Bytes that were wanted of them.
    pub read_bytes: u64,
}

/// What erases in the background, until its store is gone.
pub struct Eraser {
    store: Weak<Store>,
    waste: Receiver<()>,
}

impl Eraser {
    /// Erases what there is to erase whenever there is something. `told` hears of what fails, which is tried
    /// again with the next.
    pub fn run(self, told: impl Fn(Error)) {
        while self.waste.recv().is_ok() {
            while self.waste.try_recv().is_ok() {}
            let Some(store) = self.store.upgrade() else { return };
            if let Err(error) = store.erase() {
                told(error);
            }
        }
    }
}

impl Store {
    /// Takes the store on this volume and these raw blocks, or makes one if the volume was never written. Blocks
    /// of it that no file has, which a crash left, are erased once the engine has found what it needs. `nonce` is drawn for
    /// each opening.
    pub fn open(
        mut volume: Box<dyn Volume>,
        blocks: Box<dyn RawBlocks>,
        nonce: u64,
        how: Opening,
    ) -> Result<(Arc<Self>, Eraser), Error> {
        let listed = blocks.list()?;
        if how.damaged && Layout::is_none(&mut *volume)? {
            return Err(Error::Usage(
                "the first block of the small volume is blank, so nothing is left of a store that could be read: restore \
                 that block from a copy, or name the volume that the store is on"
                    .into(),
            ));
        }
        if !how.new {
            is_no_mistake(&mut *volume, &listed)?;
        }
        let mut catalog = Catalog::open(volume, nonce, blocks.block_bytes())?;
        let key = catalog.key();
        let ours = listed.iter().filter(|&&id| (id >> 64) as u64 == key).map(|&id| id as u64);
        let there: BTreeSet<u64> = ours.collect();
        let wanted = catalog.numbers();
        if !wanted.is_empty() && wanted.is_disjoint(&there) && !how.damaged {
            return Err(Error::Foreign(format!(
                "none of the {} raw blocks that the files of the store lie in is on these units: they are not \
                 the device that it was written to, or have lost everything, so nothing is erased: start the \
                 server of that device there, or one of a whole copy of it",
                wanted.len()
            )));
        }
        let end = catalog.numbers_end();
        let newer = there.range(end..).count() as u64;
        if newer > 0 && !how.damaged {
            return Err(Error::Damaged(format!(
                "the small volume was set back, or lost its journal: the units hold {newer} raw blocks of its store from number {end} on, \
                 which are newer than all that its journal knows, so nothing is erased: restore the volume as it was \
                 last"
            )));
        }
        if blocks.has_two_doors() && !how.damaged {
            see_one_device(&mut catalog, &*blocks, &listed)?;
        }
        let missing: BTreeSet<u64> = wanted.difference(&there).copied().collect();
        let orphans = Mutex::new(there.difference(&wanted).copied().collect());
        if how.damaged {
            catalog.freeze();
        }
        let (sender, waste) = channel();
        let store = Arc::new(Self {
            catalog: Mutex::new(catalog),
            late: Late::default(),
            blocks,
            key,
            put: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            erased: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            erasing: Mutex::new(()),
            waste: Mutex::new(sender),
            missing,
            newer,
            orphans,
        });
        let eraser = Eraser { store: Arc::downgrade(&store), waste };
        Ok((store, eraser))
    }

    /// The files of which raw blocks were missing when the store was opened.
    pub fn missing(&self) -> Vec<Missing> {
        let catalog = self.catalog();
        let missing = catalog.tables().filter_map(|(path, table)| {
            let number = table.numbers.iter().find(|number| self.missing.contains(number))?;
            Some(Missing { path: path.into(), id: self.id(*number) })
        });
        missing.collect()
    }

    /// The engine has read of its files all that it needs to go on. What an earlier end left on the units is nobody's
    /// then; not while files miss blocks: the units may be an older copy, which has what it has of another day.
    pub(crate) fn settle(&self, catalog: &mut Catalog) {
        if self.missing.is_empty() {
            let mut orphans = self.orphans.lock().expect("no holder panics");
            catalog.abandon(orphans.drain(..));
        }
    }

    /// What is at `path`.
    pub fn find(&self, path: &str) -> Result<Found, Error> {
        let path = path::clean(path)?;
        self.late.wait(&path)?;
        self.catalog().find(&path)
    }

    /// The same without a wait for a table that is on its way.
    pub fn look(&self, path: &str) -> Result<Seen, Error> {
        let path = path::clean(path)?;
        if let Some(size) = self.late.bytes(&path) {
            return Ok(Seen { folder: false, size, modified: now() });
        }
        let Found { entry, size, modified } = self.find(&path)?;
        Ok(Seen { folder: entry == Entry::Folder, size, modified })
    }

    /// The names in a folder, with those of tables that are on their way, as files have names while they are written, and of
    /// those that failed, which are there to be deleted. It waits for nothing: RocksDB asks with its lock held.
    pub fn children(&self, folder: &str) -> Result<Vec<String>, Error> {
        let folder = path::clean(folder)?;
        // First, as what arrives meanwhile is in the catalog then.
        let late = self.late.below(&folder);
        let mut names = self.catalog().children(&folder)?;
        for path in late {
            let name = path.rsplit('/').next().unwrap_or_default();
            if path::parent(&path) == Some(&*folder) && names.iter().all(|there| there != name) {
                names.push(name.into());
            }
        }
        Ok(names)
    }

    /// Makes a folder, and those that it is in.
    pub fn create_folder(&self, path: &str) -> Result<(), Error> {
        self.catalog().create_folder(&path::clean(path)?)
    }

    /// Removes an empty folder.
    pub fn delete_folder(&self, path: &str) -> Result<(), Error> {
        let path = path::clean(path)?;
        let failed = self.late.failed(&path, Whose::All);
        self.catalog().delete_folder(&path)?;
        failed.iter().for_each(|(path, _)| self.late.forget(path));
        Ok(())
    }

    /// Gives a file another name, or a folder.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (from, to) = (path::clean(from)?, path::clean(to)?);
        let folder = self.find(&from)?.entry == Entry::Folder;
        if folder {
            self.late.wait_below(&from, Whose::All)?;
        }
        // What failed there is replaced.
        self.late.wait(&to).ok();
        let mut catalog = self.catalog();
        if !folder && path::is_table(&from) != path::is_table(&to) {
            return Err(Error::Unfit(format!(
                "{from}: cannot become {to}: one lies in raw blocks and one on the small volume"
            )));
        }
        catalog.rename(&from, &to)?;
        self.late.forget(&to);
        if path::says_what_is_current(&to) {
            self.settle(&mut catalog);
        }
        self.wake_for(&catalog);
        Ok(())
    }

    /// Removes a file. Its blocks are erased when that is durable.
    pub fn delete(&self, path: &str) -> Result<(), Error> {
        let path = path::clean(path)?;
        let failed = self.late.wait(&path).is_err();
        let mut catalog = self.catalog();
        match catalog.delete(&path) {
            Err(Error::NotFound(_)) if failed => {}
            deleted => deleted?,
        }
        self.late.forget(&path);
        if path::is_table(&path) {
            self.settle(&mut catalog);
        }
        self.wake_for(&catalog);
        Ok(())
    }

    /// Every change of names so far is durable when this returns, and every table whose writing has ended is there. `Err` if one
    /// is not, until it is deleted or written anew.
    pub fn sync(&self) -> Result<(), Error> {
        self.sync_after(self.late.wait_below("/", Whose::All))
    }

    /// The same for the tables of a folder, and of its folders, that this thread wrote, or one that has ended. Whoever names a table
    /// wrote it, joined who did, or was told that it was synced; it does not wait for those of other jobs.
    pub fn sync_folder(&self, folder: &str) -> Result<(), Error> {
        self.sync_after(self.late.wait_below(&path::clean(folder)?, Whose::Own))
    }

    fn sync_after(&self, arrived: Result<(), Error>) -> Result<(), Error> {
        self.sync_names()?;
        arrived
    }

    /// The same without tables that are on their way.
    pub(crate) fn sync_names(&self) -> Result<(), Error> {
        let mut catalog = self.catalog();
        catalog.sync()?;
        self.wake_for(&catalog);
        Ok(())
    }

    /// A small file keeps its first `size` bytes.
    pub fn truncate(&self, path: &str, size: u64) -> Result<(), Error> {
        let path = path::clean(path)?;
        self.late.wait(&path)?;
        let mut catalog = self.catalog();
        match catalog.find(&path)? {
            found if found.size == size => Ok(()),
            Found { entry: Entry::Small(file), .. } => {
                catalog.reopen(file, Some(size))?;
                catalog.close(file)
            }
            _ => Err(Error::Unfit(format!("{path}: what lies in raw blocks is written once"))),
        }
    }

    /// Makes an empty file, instead of what had its name, for writing; or with `go_on` opens what is there.
    pub fn writer(self: &Arc<Self>, path: &str, go_on: bool) -> Result<Writer, Error> {
        let path = path::clean(path)?;
        if path::is_table(&path) {
            // What failed there is written anew, and told until then.
            self.late.wait(&path).ok();
            if go_on && self.catalog().find(&path).is_ok() {
                let what = format!("{path}: what lies in raw blocks is written once");
                return Err(Error::Unfit(what));
            }
            return Ok(Writer::Table(TableWriter::new(Arc::clone(self), path)));
        }
        let mut catalog = self.catalog();
        let file = match catalog.find(&path) {
            Ok(Found { entry: Entry::Small(file), .. }) if go_on => {
                catalog.reopen(file, None)?;
                file
            }
            _ => catalog.create(&path, now())?,
        };
        self.wake_for(&catalog);
        let names_tables = path::parent(&path).filter(|_| path::names_tables(&path));
        let store = Arc::clone(self);
        Ok(Writer::Small { store, file, tables_of: names_tables.map(Into::into) })
    }

    /// Opens a file to read it.
    pub fn reader(self: &Arc<Self>, path: &str) -> Result<Reader, Error> {
        let path = path::clean(path)?;
        match self.find(&path)?.entry {
            Entry::Folder => Err(Error::Unfit(format!("{path}: is a folder, not a file"))),
            Entry::Small(file) => Ok(Reader::Small { store: Arc::clone(self), file }),
            Entry::Table(table) => Ok(Reader::Table { store: Arc::clone(self), table }),
        }
    }

    /// Erases the blocks that nobody needs; how many that were.
    pub fn erase(&self) -> Result<u64, Error> {
        let _one_at_a_time = self.erasing.lock().expect("no holder panics");
        let numbers = {
            let mut catalog = self.catalog();
            catalog.sync()?;
            catalog.take_erasable()
        };
        for (done, &number) in numbers.iter().enumerate() {
            if let Err(error) = self.blocks.delete(self.id(number)) {
                self.catalog().abandon(numbers[done..].iter().copied());
                return Err(error);
            }
            self.erased.fetch_add(1, Ordering::Relaxed);
        }
        Ok(numbers.len() as u64)
    }

    /// What was done since it was opened.
    pub fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            raw_blocks_put: of(&self.put),
            table_bytes_put: of(&self.filled),
            raw_blocks_erased: of(&self.erased),
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
        }
    }

    /// Raw blocks of it that were newer, when it was opened, than all that its small volume knew: that was set back.
    pub fn newer(&self) -> u64 {
        self.newer
    }

    /// High half of the IDs of its raw blocks, which no other store has.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Bytes of a raw block.
    pub fn block_bytes(&self) -> u64 {
        self.blocks.block_bytes()
    }

    /// Units that numbers of raw blocks take turns on.
    pub fn units(&self) -> u32 {
        self.blocks.units()
    }

    /// Bytes that small files may still take.
    pub fn free_small_bytes(&self) -> u64 {
        self.catalog().free_bytes()
    }

    pub(crate) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().expect("no holder panics")
    }

    fn id(&self, number: u64) -> u128 {
        u128::from(self.key) << 64 | u128::from(number)
    }

    pub(crate) fn wake_for(&self, catalog: &Catalog) {
        if catalog.has_waste() {
            self.wake();
        }
    }

    fn wake(&self) {
        // Without an eraser nobody hears it: then whoever needs room erases.
        self.waste.lock().expect("no holder panics").send(()).ok();
    }

    /// Writes a raw block under the next number that is free, on the next unit that has room.
    pub(crate) fn put(&self, bytes: &[u8], filled: usize) -> Result<u64, Error> {
        let (mut taken, mut full) = (0, 0);
        loop {
            let erased = self.erased.load(Ordering::Relaxed);
            let number = self.catalog().number()?;
            match self.blocks.put(self.id(number), bytes) {
                Ok(()) => {
                    self.put.fetch_add(1, Ordering::Relaxed);
                    self.filled.fetch_add(filled as u64, Ordering::Relaxed);
                    return Ok(number);
                }
                Err(Error::Taken(_)) if taken < TAKEN_MAX => taken += 1,
                Err(Error::UnitFull(why)) => {
                    full += 1;
                    if full % self.blocks.units() == 0 {
                        self.settle(&mut self.catalog());
                        self.erase()?;
                        if self.erased.load(Ordering::Relaxed) == erased {
                            let known = self.blocks.why_full();
                            let unknown = || format!("every unit is full, or fails: {why}");
                            return Err(Error::Full(known.unwrap_or_else(unknown)));
                        }
                    }
                }
                Err(error) => {
                    // It may be there all the same.
                    self.catalog().abandon([number]);
                    return Err(error);
                }
            }
        }
    }

    /// Reads parts of a table, from all the units that they lie on at a time.
    fn read_table(&self, table: &Table, wanted: &mut [Wanted<'_>], patience: Option<Duration>) {
        let (mut pieces, mut owners) = (Vec::with_capacity(wanted.len()), Vec::new());
        let mut results = Vec::with_capacity(wanted.len());
        for (owner, one) in wanted.iter_mut().enumerate() {
            let there = table.size.saturating_sub(one.offset).min(one.into.len() as u64) as usize;
            let cut = self.cut(table, one.offset, &mut one.into[..there], &mut pieces);
            owners.resize(pieces.len(), owner);
            results.push(cut.map(|()| there));
        }
        self.reads.fetch_add(pieces.len() as u64, Ordering::Relaxed);
        let bytes: usize = pieces.iter().map(|piece| piece.into.len()).sum();
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        for (read, owner) in self.blocks.read(&mut pieces, patience).into_iter().zip(owners) {
            if let Err(error) = read {
                results[owner] = Err(error);
            }
        }
        for (one, result) in wanted.iter_mut().zip(results) {
            one.read = result;
        }
    }

    /// Reads a part for somebody in the background, as a compaction does: of much of it a little at a time. A unit reads in the
    /// order of what it is asked, so whoever gets a value from there waits for a step, and not for all of the part.
    fn read_in_steps(&self, table: &Table, wanted: &mut Wanted<'_>) -> Result<usize, Error> {
        let mut done = 0;
        for into in wanted.into.chunks_mut(STEP_BYTES) {
            let mut step = [Wanted::new(wanted.offset + done as u64, into)];
            self.read_table(table, &mut step, None);
            let [Wanted { read, .. }] = step;
            done += read?;
        }
        Ok(done)
    }

    /// Appends the pieces of raw blocks that a part of a table lies in.
    fn cut<'a>(
        &self,
        table: &Table,
        mut offset: u64,
        mut into: &'a mut [u8],
        pieces: &mut Vec<Piece<'a>>,
    ) -> Result<(), Error> {
        let block_bytes = self.blocks.block_bytes();
        while !into.is_empty() {
            let within = offset % block_bytes;
            let count = into.len().min((block_bytes - within) as usize);
            let number = table.numbers.get((offset / block_bytes) as usize).ok_or_else(|| {
                Error::Damaged(format!("a file of {} bytes has too few raw blocks", table.size))
            })?;
            let (now, rest) = into.split_at_mut(count);
            pieces.push(Piece { id: self.id(*number), offset: within, into: now });
            (into, offset) = (rest, offset + count as u64);
        }
        Ok(())
    }
}

/// A part of a file that is wanted.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Where in the file.
    pub offset: u64,
    /// What is filled with it.
    pub into: &'a mut [u8],
    /// How much of it there was: less at the end of the file.
    pub read: Result<usize, Error>,
}

impl<'a> Wanted<'a> {
    /// What is at `offset` of a file, as far as `into` has room.
    pub fn new(offset: u64, into: &'a mut [u8]) -> Self {
        Self { offset, into, read: Ok(0) }
    }
}

/// A file that is being read.
pub enum Reader {
    /// In raw blocks.
    Table {
        /// Of this store.
        store: Arc<Store>,
        /// What it is.
        table: Table,
    },
    /// On the small volume.
    Small {
        /// Of this store.
        store: Arc<Store>,
        /// Its number.
        file: u64,
    },
}

impl Reader {
    /// Fills `into` with what is at `offset`; less at the end of the file. How much that is.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize, Error> {
        let mut wanted = [Wanted::new(offset, into)];
        self.read_many(&mut wanted, None);
        let [Wanted { read, .. }] = wanted;
        read
    }

    /// Reads many parts at a time: from a table with one request to each of the units that they lie on, before any answer
    /// is waited for. Who gives a patience is told when units do not answer for so long.
    pub fn read_many(&self, wanted: &mut [Wanted<'_>], patience: Option<Duration>) {
        match self {
            Self::Table { store, table } => match wanted {
                [one] if patience.is_none() => one.read = store.read_in_steps(table, one),
                _ => store.read_table(table, wanted, patience),
            },
            Self::Small { store, file } => {
                let mut catalog = store.catalog();
                for one in wanted {
                    one.read = catalog.read(*file, one.offset, one.into);
                }
            }
        }
    }

    /// What no other file of the store has: a table's first number, a small file's own.
    pub fn unique(&self) -> u64 {
        match self {
            Self::Table { table, .. } => table.numbers.first().copied().unwrap_or_default(),
            Self::Small { file, .. } => *file,
        }
    }
}

/// Fails if a store would be made on an empty volume while the units hold something: who lost the volume of a store
/// would get an empty one, and put new things there. Likewise if the store on it lost its label.
fn is_no_mistake(volume: &mut dyn Volume, listed: &[u128]) -> Result<(), Error> {
    if Layout::was_one(volume)? {
        let what = "the first block of the small volume is blank, and a store was there: restore that block from a copy; \
                    or, if a new, empty store is meant, say so: --new";
        return Err(Error::Usage(what.into()));
    }
    if listed.is_empty() || !Layout::is_none(volume)? {
        return Ok(());
    }
    let owners: BTreeSet<u128> = listed.iter().map(|id| id >> 64).collect();
    Err(Error::Usage(format!(
        "the small volume holds no store, and the units hold {} raw blocks, of {} owners: if one of those is this store, \
         name its own small volume; if a new store is meant beside them, say so: --new",
        listed.len(),
        owners.len()
    )))
}

/// Sees that what is put is what is read, by some block that is there, or by one that is put for it: nothing is
/// acknowledged before.
fn see_one_device(
    catalog: &mut Catalog,
    blocks: &dyn RawBlocks,
    listed: &[u128],
) -> Result<(), Error> {
    if let Some(&id) = listed.first() {
        return blocks.check(id);
    }
    let id = u128::from(catalog.key()) << 64 | u128::from(catalog.number()?);
    match blocks.put(id, &vec![0; blocks.block_bytes() as usize]) {
        Ok(()) => blocks.delete(id),
        // The first block that is put will tell.
        Err(Error::UnitFull(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
