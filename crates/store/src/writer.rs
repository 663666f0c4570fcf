//! Files that are being written.

use crate::api::Error;
use crate::late::Whose;
use crate::record::{Entry, Table};
use crate::store::{Store, now};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A file that is being written.
pub enum Writer {
    /// In raw blocks.
    Table(TableWriter),
    /// In raw blocks, the last of which are on their way.
    Late(LateTable),
    /// On the small volume.
    Small {
        /// Of this store.
        store: Arc<Store>,
        /// Its number.
        file: u64,
        /// The folder whose tables it names: those of whoever appends are there before it says so.
        tables_of: Option<String>,
    },
}

impl Writer {
    /// Appends.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Self::Table(table) => table.append(bytes),
            Self::Late(_) if bytes.is_empty() => Ok(()),
            Self::Late(late) => {
                let mut table = late.back()?;
                let appended = table.append(bytes);
                *self = Self::Table(table);
                appended
            }
            Self::Small { store, file, tables_of } => {
                if let Some(folder) = tables_of {
                    store.late.wait_below(folder, Whose::Own)?;
                }
                store.catalog().append(*file, bytes)
            }
        }
    }

    /// What was appended to a small file outlives this process when this returns. A table is there when it is
    /// synced or closed.
    pub fn push(&mut self) -> Result<(), Error> {
        match self {
            Self::Table(_) | Self::Late(_) => Ok(()),
            Self::Small { store, file, .. } => store.catalog().push(*file),
        }
    }

    /// What was appended to a small file is durable when this returns. So is a table where raw blocks are put one by one; where
    /// they are put side by side it is when [`Store::sync`] has returned after this.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.push()?;
        match self {
            Self::Table(table) if table.store.blocks.puts_at_once() <= 1 => {
                table.finish()?;
                table.store.sync_names()
            }
            Self::Table(_) | Self::Late(_) => self.set_out(),
            Self::Small { store, .. } => store.sync_names(),
        }
    }

    /// Ends the writing. A table may be on its way then, as after [`Writer::sync`].
    pub fn close(&mut self) -> Result<(), Error> {
        match self {
            Self::Table(table) if table.store.blocks.puts_at_once() <= 1 => table.finish(),
            Self::Table(_) | Self::Late(_) => self.set_out(),
            Self::Small { store, file, .. } => store.catalog().close(*file),
        }
    }

    /// Bytes so far.
    pub fn size(&self) -> u64 {
        match self {
            Self::Table(table) => table.size(),
            Self::Late(late) => late.size,
            Self::Small { store, file, .. } => store.catalog().written(*file),
        }
    }

    /// A table goes on its way, if it is not yet.
    fn set_out(&mut self) -> Result<(), Error> {
        let Self::Table(table) = self else { return Ok(()) };
        if table.finished {
            return Ok(());
        }
        table.failed.clone().map_or(Ok(()), Err)?;
        let placeholder = TableWriter::new(Arc::clone(&table.store), table.path.clone());
        match std::mem::replace(table, placeholder).set_out() {
            Ok(late) => *self = Self::Late(late),
            Err(error) => return table.count(Err(error)),
        }
        Ok(())
    }
}

/// A table that is on its way.
pub struct LateTable {
    size: u64,
    /// Brings it back.
    thread: Option<JoinHandle<(TableWriter, Result<(), Error>)>>,
}

impl LateTable {
    /// Waits until it has arrived.
    fn back(&mut self) -> Result<TableWriter, Error> {
        let panicked = || Error::Io("the writing of it panicked".into());
        let thread = self.thread.take().ok_or_else(panicked)?;
        let (table, ended) = thread.join().map_err(|_| panicked())?;
        ended.map(|()| table)
    }
}

/// A table that is being written.
pub struct TableWriter {
    store: Arc<Store>,
    path: String,
    /// Of whole blocks.
    numbers: Vec<u64>,
    /// Of whole blocks after these, which are on their way.
    puts: VecDeque<JoinHandle<Result<u64, Error>>>,
    /// A block is missing: it never becomes a file.
    failed: Option<Error>,
    /// What is on record: of the numbers above, the first ones and the one of the last block.
    recorded: Option<Table>,
    /// What is in no whole block yet.
    buffer: Vec<u8>,
    /// The file is on record with all of this.
    finished: bool,
}

impl TableWriter {
    pub(crate) fn new(store: Arc<Store>, path: String) -> Self {
        Self {
            store,
            path,
            numbers: Vec::new(),
            puts: VecDeque::new(),
            failed: None,
            recorded: None,
            buffer: Vec::new(),
            finished: false,
        }
    }

    fn size(&self) -> u64 {
        let blocks = (self.numbers.len() + self.puts.len()) as u64;
        blocks * self.store.blocks.block_bytes() + self.buffer.len() as u64
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        let block_bytes = self.store.blocks.block_bytes() as usize;
        self.finished &= bytes.is_empty();
        while !bytes.is_empty() {
            if self.buffer.capacity() == 0 {
                self.buffer.reserve_exact(block_bytes);
            }
            let room = (block_bytes - self.buffer.len()).min(bytes.len());
            let (now, rest) = bytes.split_at(room);
            self.buffer.extend_from_slice(now);
            bytes = rest;
            if self.buffer.len() == block_bytes {
                self.put_whole()?;
            }
        }
        Ok(())
    }

    /// Sends the block that is full on its way.
    fn put_whole(&mut self) -> Result<(), Error> {
        let block = std::mem::take(&mut self.buffer);
        let at_once = self.store.blocks.puts_at_once();
        if at_once <= 1 {
            let put = self.store.put(&block, block.len());
            return self.count(put);
        }
        while self.puts.len() >= at_once {
            self.wait_for_one()?;
        }
        let store = Arc::clone(&self.store);
        match thread::Builder::new().spawn(move || store.put(&block, block.len())) {
            Ok(put) => self.puts.push_back(put),
            Err(error) => return self.count(Err(Error::Io(format!("no thread: {error}")))),
        }
        Ok(())
    }

    /// The oldest block that is on its way arrives.
    fn wait_for_one(&mut self) -> Result<(), Error> {
        let Some(put) = self.puts.pop_front() else { return Ok(()) };
        let put =
            put.join().unwrap_or_else(|_| Err(Error::Io("the writing of it panicked".into())));
        self.count(put)
    }

    fn count(&mut self, put: Result<u64, Error>) -> Result<(), Error> {
        match (put, &self.failed) {
            (Ok(number), None) => self.numbers.push(number),
            // Behind a hole it is of no use.
            (Ok(number), Some(_)) => self.store.catalog().abandon([number]),
            (Err(error), None) => self.failed = Some(error),
            (Err(_), Some(_)) => {}
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Finishes it in a thread of its own.
    fn set_out(mut self) -> Result<LateTable, Error> {
        let size = self.size();
        let blocks = self.puts.len() + usize::from(!self.buffer.is_empty());
        self.store.late.set_out(&self.path, (size, blocks), self.store.blocks.late_puts_max());
        let (of, path) = (Arc::clone(&self.store), self.path.clone());
        let thread = thread::Builder::new().spawn(move || {
            let store = Arc::clone(&self.store);
            let arriving = store.late.arriving(&self.path);
            let ended = self.finish();
            if ended.is_err() {
                self.give_up();
            }
            arriving.end(ended.clone());
            (self, ended)
        });
        let thread = thread.map_err(|error| {
            let error = Error::Io(format!("no thread: {error}"));
            of.late.arriving(&path).end(Err(error.clone()));
            error
        })?;
        Ok(LateTable { size, thread: Some(thread) })
    }

    /// Writes the last block, padded, and the record that makes it all a file. More may be appended: then that
    /// block is written once more under another number, and this one is erased.
    fn finish(&mut self) -> Result<(), Error> {
        if self.finished {
            return Ok(());
        }
        if let Some(ours) = &self.recorded {
            let there = self.store.catalog().find(&self.path)?.entry;
            if there != Entry::Table(ours.clone()) {
                let what = format!("{}: became another file while it was written", self.path);
                return Err(Error::Unfit(what));
            }
        }
        self.failed.clone().map_or(Ok(()), Err)?;
        let size = self.size();
        let mut last = None;
        if !self.buffer.is_empty() {
            let bytes = self.buffer.len();
            self.buffer.resize(self.store.blocks.block_bytes() as usize, 0);
            let put = self.store.put(&self.buffer, bytes);
            self.buffer.truncate(bytes);
            last = Some(put?);
        }
        while !self.puts.is_empty() {
            if let Err(error) = self.wait_for_one() {
                self.store.catalog().abandon(last);
                return Err(error);
            }
        }
        let numbers = self.numbers.iter().copied().chain(last).collect();
        let table = Table { size, numbers, modified: now() };
        let mut catalog = self.store.catalog();
        if let Err(error) = catalog.set_table(&self.path, table.clone()) {
            catalog.abandon(last);
            return Err(error);
        }
        self.store.settle(&mut catalog);
        self.store.wake_for(&catalog);
        self.recorded = Some(table);
        self.finished = true;
        Ok(())
    }

    /// What was put and no record names is erased.
    fn give_up(&mut self) {
        while !self.puts.is_empty() {
            self.wait_for_one().ok();
        }
        let recorded = self.recorded.as_ref().map_or(&[][..], |table| &table.numbers);
        let of_none = |number: &u64| !recorded.contains(number);
        let waste: Vec<u64> =
            std::mem::take(&mut self.numbers).into_iter().filter(of_none).collect();
        if !waste.is_empty() {
            let mut catalog = self.store.catalog();
            catalog.abandon(waste);
            self.store.wake_for(&catalog);
        }
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        self.give_up();
    }
}
