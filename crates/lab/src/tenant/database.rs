//! A database that keeps rows in pages and logs what it changes: InnoDB under TPC-C, PostgreSQL under
//! TPC-B (pgbench), SQLite under YCSB-A. They differ in figures ([`Config`]), not in kind:
//!
//! - *Connections* run transactions: a page that is not in the buffer pool is read; changed pages
//!   become dirty; the commit appends to the log and waits until that is durable.
//! - The *log writer* writes what has come since its last write, whoever it is from (group commit),
//!   from the start of the unit that the last write ended in, and flushes. The log is a ring.
//! - The *page cleaner* writes dirty pages, so that the log can be used again: the oldest ones while
//!   the log is too full (InnoDB's fuzzy checkpoints), or all of them once so much has been logged
//!   (PostgreSQL, SQLite). With a doublewrite buffer a batch of pages goes there first.
//!
//! Invariants: log is not reused while a page it describes is dirty; a connection waits instead.

use super::{Plan, Program, Step};
use crate::workload::{Generator, Pattern, Workload};
use flash::Random;
use std::collections::VecDeque;

/// Which rows of a table are touched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rows {
    /// Any, alike.
    Uniform,
    /// TPC-C's NURand(A) of so many rows of a warehouse (clause 2.1.6).
    NuRand {
        /// A.
        a: u64,
        /// Rows of each warehouse.
        rows: u64,
    },
    /// Scattered Zipf.
    Zipf {
        /// The exponent.
        theta: f64,
    },
    /// Inserted at the end, of each of so many parts; then from their start again.
    Append {
        /// Parts.
        parts: u64,
    },
    /// Inserted at the ends of another table not long ago.
    Recent {
        /// That table.
        of: usize,
    },
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Table {
    /// Its part of all data; the first page is its at least.
    pub share: f64,
    /// Bytes of a row.
    pub row_bytes: u64,
}

/// Rows that a transaction touches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Touch {
    /// Of which table.
    pub table: usize,
    /// Which.
    pub rows: Rows,
    /// How many; those of an insert lie in one page as a rule.
    pub count: u32,
    /// They are changed.
    pub changes: bool,
}

/// A kind of transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    /// How often, by weight.
    pub weight: f64,
    /// What it touches, in this order.
    pub touches: Vec<Touch>,
}

/// When the page cleaner writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Checkpoint {
    /// The pages that have been dirty for longest, so that at most this share of the log is needed.
    Fuzzy(f64),
    /// All dirty pages, in their order, whenever so many bytes have been logged.
    All(u64),
}

/// What a database is.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Bytes of all tables.
    pub data_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Transactions at a time.
    pub connections: u32,
    /// Pages that the buffer pool holds, as a share of all.
    pub pool: f64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Log is written from and to multiples of this.
    pub log_unit: u64,
    /// Logged for a change of a row.
    pub record_bytes: u64,
    /// The first change of a page after a checkpoint logs all of it.
    pub page_images: bool,
    /// Pages of the doublewrite buffer; 0: none.
    pub doublewrite_pages: u64,
    /// Pages that the cleaner writes at a time.
    pub batch_pages: usize,
    /// Undo log: bytes used in turn, 0: none; and bytes for a change of a row.
    pub undo: (u64, u64),
    /// When the cleaner writes.
    pub checkpoint: Checkpoint,
    /// Processor time of a transaction.
    pub think_ns: u64,
    /// Tables.
    pub tables: Vec<Table>,
    /// Transactions.
    pub mix: Vec<Transaction>,
}

const fn touch(table: usize, rows: Rows, count: u32, changes: bool) -> Touch {
    Touch { table, rows, count, changes }
}

impl Config {
    /// MySQL's InnoDB under TPC-C. Row sizes, rows of a warehouse, the mix and NURand are those of the
    /// standard (clauses 1.2, 2.1.6, 5.2.3); page, doublewrite buffer and log are InnoDB's.
    pub fn innodb_tpcc(data_bytes: u64) -> Self {
        // Warehouse and district, stock, customer, order line, order and new order, history.
        let sizes =
            [(0.001, 128), (0.446, 306), (0.287, 655), (0.233, 54), (0.012, 32), (0.021, 46)];
        let item = Rows::NuRand { a: 8191, rows: 100_000 };
        let person = Rows::NuRand { a: 1023, rows: 30_000 };
        let append = Rows::Append { parts: 10 };
        let recent = |of| Rows::Recent { of };
        let mix = vec![
            Transaction {
                weight: 45.0,
                touches: vec![
                    touch(0, Rows::Uniform, 1, true),
                    touch(2, person, 1, false),
                    touch(1, item, 10, true),
                    touch(3, append, 10, true),
                    touch(4, append, 2, true),
                ],
            },
            Transaction {
                weight: 43.0,
                touches: vec![
                    touch(0, Rows::Uniform, 2, true),
                    touch(2, person, 1, true),
                    touch(5, append, 1, true),
                ],
            },
            Transaction {
                weight: 4.0,
                touches: vec![touch(2, person, 1, false), touch(3, recent(3), 1, false)],
            },
            Transaction {
                weight: 4.0,
                touches: vec![
                    touch(4, recent(4), 10, true),
                    touch(3, recent(3), 10, true),
                    touch(2, person, 10, true),
                ],
            },
            Transaction {
                weight: 4.0,
                touches: vec![touch(3, recent(3), 10, false), touch(1, item, 200, false)],
            },
        ];
        Self {
            data_bytes,
            page_bytes: 16 << 10,
            connections: 30,
            pool: 0.5,
            log_bytes: (data_bytes / 16).max(8 << 20).next_multiple_of(1 << 20),
            log_unit: 4096,
            record_bytes: 400,
            page_images: false,
            doublewrite_pages: 128,
            batch_pages: 64,
            undo: ((data_bytes / 64).max(1 << 20).next_multiple_of(1 << 20), 200),
            checkpoint: Checkpoint::Fuzzy(0.75),
            think_ns: 200_000,
            tables: sizes.map(|(share, row_bytes)| Table { share, row_bytes }).into(),
            mix,
        }
    }

    /// The same, as large as fits into so many bytes.
    pub fn innodb_tpcc_in(bytes: u64) -> Self {
        // Log and undo log have fixed shares of the data, in whole MiB, and there are 2 MiB more.
        let data = bytes.saturating_sub(6 << 20) as f64 / (1.0 + 1.0 / 16.0 + 1.0 / 64.0);
        Self::innodb_tpcc(data as u64 / (1 << 20) * (1 << 20))
    }

    /// PostgreSQL under pgbench's TPC-B, as it was recorded: 60 branches (900 MB), 8 connections, a
    /// log of 256 MiB. The kernel's page cache holds all data.
    pub fn postgresql_tpcb() -> Self {
        let tables = [(0.9985, 128), (0.0001, 128), (0.0014, 64)];
        Self {
            data_bytes: 900 << 20,
            page_bytes: 8 << 10,
            connections: 8,
            pool: 1.0,
            log_bytes: 256 << 20,
            log_unit: 8 << 10,
            record_bytes: 130,
            page_images: true,
            doublewrite_pages: 0,
            batch_pages: 32,
            undo: (0, 0),
            checkpoint: Checkpoint::All(134 << 20),
            think_ns: 300_000,
            tables: tables.map(|(share, row_bytes)| Table { share, row_bytes }).into(),
            mix: vec![Transaction {
                weight: 1.0,
                touches: vec![
                    touch(0, Rows::Uniform, 1, true),
                    touch(1, Rows::Uniform, 2, true),
                    touch(2, Rows::Append { parts: 1 }, 1, true),
                ],
            }],
        }
    }

    /// SQLite in WAL mode with full synchronization under YCSB-A (half reads, half updates, Zipf
    /// 0.99), as it was recorded: one connection, records of 1 KiB, a checkpoint every 1000 pages.
    pub fn sqlite_ycsba() -> Self {
        let touches = |changes| vec![touch(0, Rows::Zipf { theta: 0.99 }, 1, changes)];
        Self {
            data_bytes: 396 << 20,
            page_bytes: 4 << 10,
            connections: 1,
            pool: 1.0,
            log_bytes: 4096 << 10,
            log_unit: 4096,
            record_bytes: 4096 + 24,
            page_images: false,
            doublewrite_pages: 0,
            batch_pages: 1,
            undo: (0, 0),
            checkpoint: Checkpoint::All(1000 * (4096 + 24)),
            think_ns: 50_000,
            tables: vec![Table { share: 1.0, row_bytes: 1100 }],
            mix: vec![
                Transaction { weight: 1.0, touches: touches(false) },
                Transaction { weight: 1.0, touches: touches(true) },
            ],
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        let doublewrite = (self.doublewrite_pages * self.page_bytes).next_multiple_of(1 << 20);
        self.log_bytes + doublewrite + self.undo.0 + self.data_bytes
    }
}

/// Where a table is, in pages.
#[derive(Clone, Copy, Debug)]
struct Span {
    first: u64,
    pages: u64,
    rows_per_page: u64,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Phase {
    #[default]
    Begin,
    /// To log so many bytes.
    Commit(u64),
    /// Until log up to here is durable.
    Durable(u64),
}

/// See the head of this file.
pub struct Database {
    config: Config,
    random: Random,
    spans: Vec<Span>,
    zipf: Option<Generator>,
    /// Rows inserted so far, by table and part.
    inserted: Vec<Vec<u64>>,
    pool: Pool,
    /// First bytes of log, doublewrite buffer, undo log and data.
    places: [u64; 4],
    phases: Vec<Phase>,
    undo_written: u64,
    log: Log,
    cleaner: Cleaner,
}

/// Positions are bytes logged since the beginning.
#[derive(Default)]
struct Log {
    end: u64,
    durable: u64,
    /// On its way to the device.
    writing: Option<u64>,
    /// Connections that found it full.
    waiting: Vec<u32>,
}

#[derive(Default)]
struct Cleaner {
    /// Pages by the log position that made them dirty.
    dirty: VecDeque<(u32, u64)>,
    /// Of a checkpoint that writes all, in the order of their places.
    chosen: VecDeque<u32>,
    /// Log below this is not needed.
    tail: u64,
    /// What `tail` becomes with the end of the checkpoint.
    tail_next: u64,
    /// Where the last checkpoint began.
    began: u64,
    busy: bool,
}

impl Database {
    /// A database whose files begin at 0 of its part.
    pub fn new(config: Config, seed: u64) -> Result<Self, String> {
        let pages_all = config.data_bytes / config.page_bytes;
        let (mut first, mut spans) = (0, Vec::new());
        for table in &config.tables {
            let pages = ((pages_all as f64 * table.share) as u64).clamp(1, pages_all);
            spans.push(Span { first, pages, rows_per_page: config.page_bytes / table.row_bytes });
            first += pages;
        }
        // Of the tables' shares, roundings are left: they belong to the largest.
        let undo_pages = config.undo.0 / config.page_bytes;
        let pages = pages_all.max(first) + undo_pages;
        if pages > u64::from(u32::MAX) / 2 || pages_all < 64 {
            return Err(format!("{} bytes of data: 64 pages to 2^31", config.data_bytes));
        }
        let zipf = config.mix.iter().flat_map(|kind| &kind.touches).find_map(|touch| {
            let Rows::Zipf { theta } = touch.rows else { return None };
            let span = spans[touch.table];
            let rows = (span.pages * span.rows_per_page) as u32;
            let workload = Workload { pattern: Pattern::Zipf { theta }, ..Workload::default() };
            Some(Generator::new(workload, rows, seed ^ 0x5a))
        });
        let frames = ((pages_all as f64 * config.pool) as u64).max(32) + undo_pages;
        let doublewrite = (config.doublewrite_pages * config.page_bytes).next_multiple_of(1 << 20);
        let places = [
            0,
            config.log_bytes,
            config.log_bytes + doublewrite,
            config.log_bytes + doublewrite + config.undo.0,
        ];
        Ok(Self {
            random: Random::new(seed),
            zipf: zipf.transpose()?,
            inserted: config.tables.iter().map(|_| Vec::new()).collect(),
            pool: Pool::new(pages as u32, frames as u32),
            phases: vec![Phase::default(); config.connections as usize],
            spans,
            places,
            undo_written: 0,
            log: Log::default(),
            cleaner: Cleaner::default(),
            config,
        })
    }

    fn log_writer(&self) -> u32 {
        self.config.connections
    }

    fn page_cleaner(&self) -> u32 {
        self.config.connections + 1
    }

    /// First byte of a page; undo pages are numbered behind those of the tables.
    fn place(&self, page: u32) -> u64 {
        let undo_pages = (self.config.undo.0 / self.config.page_bytes) as u32;
        let data_pages = self.pool.pages() - undo_pages;
        match page.checked_sub(data_pages) {
            Some(undo) => self.places[2] + u64::from(undo) * self.config.page_bytes,
            None => self.places[3] + u64::from(page) * self.config.page_bytes,
        }
    }

    /// The page of a row, and whether it is a new one that nobody has to read.
    fn pick(&mut self, touch: &Touch) -> (u32, bool) {
        let span = self.spans[touch.table];
        let rows = span.pages * span.rows_per_page;
        let row = match touch.rows {
            Rows::Uniform => self.random.below(rows),
            Rows::NuRand { a, rows: of_warehouse } => {
                let warehouse = self.random.below((rows / of_warehouse).max(1)) * of_warehouse;
                let (low, high) = (self.random.below(a + 1), self.random.below(of_warehouse));
                (warehouse + (low | high) % of_warehouse) % rows
            }
            Rows::Zipf { .. } => {
                u64::from(self.zipf.as_mut().expect("made with the database").draw().lba)
            }
            Rows::Append { parts } => return self.insert(touch, parts),
            Rows::Recent { of } => self.recent(of),
        };
        ((span.first + row / span.rows_per_page) as u32, false)
    }

    /// Inserts rows at the end of a part.
    fn insert(&mut self, touch: &Touch, parts: u64) -> (u32, bool) {
        let span = self.spans[touch.table];
        let parts = parts.min(span.pages);
        let part = self.random.below(parts);
        let inserted = &mut self.inserted[touch.table];
        inserted.resize(parts as usize, 0);
        let before = inserted[part as usize];
        let after = before + u64::from(touch.count);
        inserted[part as usize] = after;
        let pages = span.pages / parts;
        let page = after / span.rows_per_page;
        let is_new = page > before / span.rows_per_page;
        ((span.first + part * pages + page % pages) as u32, is_new)
    }

    /// A row inserted not long ago.
    fn recent(&mut self, of: usize) -> u64 {
        let span = self.spans[of];
        let inserted = &self.inserted[of];
        if inserted.is_empty() {
            return self.random.below(span.pages * span.rows_per_page);
        }
        let parts = inserted.len() as u64;
        let part = self.random.below(parts);
        let pages = span.pages / parts;
        let page = inserted[part as usize] / span.rows_per_page + pages;
        let page = (page - self.random.below(pages.min(3))) % pages;
        (part * pages + page) * span.rows_per_page
    }

    /// A transaction up to its commit.
    fn begin(&mut self, connection: u32, plan: &mut Plan) {
        let total: f64 = self.config.mix.iter().map(|kind| kind.weight).sum();
        let mut drawn = self.random.fraction() * total;
        let last = self.config.mix.len() - 1;
        let kind = self.config.mix.iter().position(|kind| {
            drawn -= kind.weight;
            drawn < 0.0
        });
        let touches = self.config.mix[kind.unwrap_or(last)].touches.clone();
        let mut logged = 0;
        for touch in touches {
            let inserts = matches!(touch.rows, Rows::Append { .. });
            for _ in 0..if inserts { 1 } else { touch.count } {
                let (page, is_new) = self.pick(&touch);
                self.touch(page, is_new, plan);
                if touch.changes {
                    let rows = if inserts { u64::from(touch.count) } else { 1 };
                    logged += self.change(page) + rows * self.config.record_bytes;
                    logged += self.note_undo(rows, plan);
                }
            }
        }
        plan.step(Step::Think(self.config.think_ns));
        if logged == 0 {
            plan.step(Step::Done);
        } else {
            self.phases[connection as usize] = Phase::Commit(logged);
        }
    }

    /// The page is in the pool from here on.
    fn touch(&mut self, page: u32, is_new: bool, plan: &mut Plan) {
        let Some(evicted) = self.pool.touch(page) else { return };
        if let Some(dirty) = evicted.filter(|&page| self.pool.take_dirty(page)) {
            // InnoDB's single page flush: the connection has to do it itself.
            if self.config.doublewrite_pages > 0 {
                plan.write(self.places[1], self.config.page_bytes);
                plan.sync();
            }
            plan.write(self.place(dirty), self.config.page_bytes);
            plan.wait();
        }
        if !is_new {
            plan.read(self.place(page), self.config.page_bytes);
            plan.wait();
        }
    }

    /// The page is dirty; what that logs beside the record.
    fn change(&mut self, page: u32) -> u64 {
        if self.pool.make_dirty(page) {
            self.cleaner.dirty.push_back((page, self.log.end));
        }
        let first = self.config.page_images && self.pool.note_image(page);
        if first { self.config.page_bytes } else { 0 }
    }

    fn note_undo(&mut self, rows: u64, plan: &mut Plan) -> u64 {
        let (bytes, record) = self.config.undo;
        if bytes == 0 {
            return 0;
        }
        let pages = bytes / self.config.page_bytes;
        let before = self.undo_written / self.config.page_bytes;
        self.undo_written += rows * record;
        let page = self.undo_written / self.config.page_bytes;
        let number = (u64::from(self.pool.pages()) - pages + page % pages) as u32;
        self.touch(number, page > before, plan);
        self.change(number) + rows * record
    }

    fn commit(&mut self, connection: u32, bytes: u64, plan: &mut Plan) {
        let needed = self.log.end + bytes - self.cleaner.tail;
        if needed > self.config.log_bytes && self.cleaner.tail < self.log.end {
            self.log.waiting.push(connection);
            plan.wake(self.page_cleaner());
            return;
        }
        self.log.end += bytes;
        self.phases[connection as usize] = Phase::Durable(self.log.end);
        plan.wake(self.log_writer());
        if self.cleaning_is_due() {
            plan.wake(self.page_cleaner());
        }
    }

    fn write_log(&mut self, plan: &mut Plan) {
        if let Some(end) = self.log.writing.take() {
            self.log.durable = end;
            for connection in 0..self.config.connections {
                if matches!(self.phases[connection as usize], Phase::Durable(at) if at <= end) {
                    plan.wake(connection);
                }
            }
        }
        if self.log.end == self.log.durable {
            return;
        }
        self.log.writing = Some(self.log.end);
        let unit = self.config.log_unit;
        let (mut at, end) = (self.log.durable / unit * unit, self.log.end.next_multiple_of(unit));
        while at < end {
            let from = at % self.config.log_bytes;
            let bytes = (end - at).min(self.config.log_bytes - from);
            plan.write(self.places[0] + from, bytes);
            at += bytes;
        }
        plan.sync();
    }

    fn cleaning_is_due(&self) -> bool {
        match self.config.checkpoint {
            Checkpoint::Fuzzy(share) => {
                let oldest = self.cleaner.dirty.front().map_or(self.log.end, |&(_, at)| at);
                let aged = (self.log.end - oldest) as f64 > self.config.log_bytes as f64 * share;
                aged || self.cleaner.dirty.len() as f64 > f64::from(self.pool.frames()) * 0.5
            }
            Checkpoint::All(bytes) => {
                !self.cleaner.chosen.is_empty() || self.log.end - self.cleaner.began >= bytes
            }
        }
    }

    fn clean(&mut self, plan: &mut Plan) {
        if std::mem::replace(&mut self.cleaner.busy, false) {
            self.end_batch(plan);
        }
        let is_short = !self.log.waiting.is_empty();
        let pages = match self.config.checkpoint {
            _ if !is_short && !self.cleaning_is_due() => Vec::new(),
            Checkpoint::Fuzzy(_) => self.oldest_pages(),
            Checkpoint::All(_) => self.next_pages(),
        };
        if pages.is_empty() {
            self.cleaner.tail = self.tail_without_batch();
            self.log.waiting.drain(..).for_each(|connection| plan.wake(connection));
            return;
        }
        self.cleaner.busy = true;
        let page_bytes = self.config.page_bytes;
        if self.config.doublewrite_pages > 0 {
            plan.write(self.places[1], pages.len() as u64 * page_bytes);
            plan.sync();
        }
        for page in pages {
            plan.write(self.place(page), page_bytes);
        }
        if self.config.batch_pages > 1 || self.cleaner.chosen.is_empty() {
            plan.sync();
        }
    }

    /// The log position below which nothing is needed, if no page is on its way.
    fn tail_without_batch(&self) -> u64 {
        match self.config.checkpoint {
            Checkpoint::Fuzzy(_) => self.cleaner.dirty.front().map_or(self.log.end, |&(_, at)| at),
            Checkpoint::All(_) => self.cleaner.tail,
        }
    }

    fn end_batch(&mut self, plan: &mut Plan) {
        if let Checkpoint::All(_) = self.config.checkpoint
            && self.cleaner.chosen.is_empty()
        {
            self.cleaner.tail = self.cleaner.tail_next;
        }
        if let Checkpoint::Fuzzy(_) = self.config.checkpoint {
            self.cleaner.tail = self.tail_without_batch();
        }
        self.log.waiting.drain(..).for_each(|connection| plan.wake(connection));
    }

    fn oldest_pages(&mut self) -> Vec<u32> {
        let mut pages = Vec::new();
        while pages.len() < self.config.batch_pages
            && let Some((page, _)) = self.cleaner.dirty.pop_front()
        {
            // A page that was written to make room is not dirty, or is listed again.
            if self.pool.take_dirty(page) {
                pages.push(page);
            }
        }
        pages
    }

    fn next_pages(&mut self) -> Vec<u32> {
        if self.cleaner.chosen.is_empty() {
            let mut pages: Vec<u32> = self.cleaner.dirty.drain(..).map(|(page, _)| page).collect();
            pages.sort_unstable();
            pages.dedup();
            self.cleaner.chosen = pages.into();
            (self.cleaner.began, self.cleaner.tail_next) = (self.log.end, self.log.end);
            self.pool.forget_images();
        }
        let mut pages = Vec::new();
        while pages.len() < self.config.batch_pages
            && let Some(page) = self.cleaner.chosen.pop_front()
        {
            if self.pool.take_dirty(page) {
                pages.push(page);
            }
        }
        pages
    }
}

impl Program for Database {
    fn actors(&self) -> u32 {
        self.config.connections + 2
    }

    fn files(&self) -> Vec<(u64, u64)> {
        vec![(self.places[0], self.config.bytes())]
    }

    fn plan(&mut self, actor: u32, plan: &mut Plan) -> Result<(), String> {
        if actor == self.log_writer() {
            self.write_log(plan);
            return Ok(());
        }
        if actor == self.page_cleaner() {
            self.clean(plan);
            return Ok(());
        }
        match self.phases[actor as usize] {
            Phase::Begin => self.begin(actor, plan),
            Phase::Commit(bytes) => self.commit(actor, bytes, plan),
            Phase::Durable(at) if at <= self.log.durable => {
                self.phases[actor as usize] = Phase::Begin;
                plan.step(Step::Done);
            }
            Phase::Durable(_) => {}
        }
        Ok(())
    }
}

/// The buffer pool: which pages are in memory, by the clock algorithm, and which are dirty.
struct Pool {
    frame_of: Vec<u32>,
    page_in: Vec<u32>,
    touched: Vec<bool>,
    hand: u32,
    dirty: Vec<bool>,
    imaged: Vec<bool>,
}

const NONE: u32 = u32::MAX;

impl Pool {
    fn new(pages: u32, frames: u32) -> Self {
        Self {
            frame_of: vec![NONE; pages as usize],
            page_in: Vec::new(),
            touched: vec![false; frames.min(pages) as usize],
            hand: 0,
            dirty: vec![false; pages as usize],
            imaged: vec![false; pages as usize],
        }
    }

    fn pages(&self) -> u32 {
        self.frame_of.len() as u32
    }

    fn frames(&self) -> u32 {
        self.touched.len() as u32
    }

    /// `None` if the page was there; else what had to go for it, if anything had.
    fn touch(&mut self, page: u32) -> Option<Option<u32>> {
        let frame = self.frame_of[page as usize];
        if frame != NONE {
            self.touched[frame as usize] = true;
            return None;
        }
        if self.page_in.len() < self.touched.len() {
            self.frame_of[page as usize] = self.page_in.len() as u32;
            self.page_in.push(page);
            return Some(None);
        }
        let frame = self.victim();
        let evicted = std::mem::replace(&mut self.page_in[frame as usize], page);
        self.frame_of[evicted as usize] = NONE;
        self.frame_of[page as usize] = frame;
        self.touched[frame as usize] = true;
        Some(Some(evicted))
    }

    /// The next frame that was not touched since the hand last passed; a clean one if there is one
    /// in two rounds.
    fn victim(&mut self) -> u32 {
        let frames = self.frames();
        for looked in 0..3 * frames {
            let frame = self.hand;
            self.hand = (self.hand + 1) % frames;
            let page = self.page_in[frame as usize];
            let was_touched = std::mem::replace(&mut self.touched[frame as usize], false);
            if !was_touched && (looked >= 2 * frames || !self.dirty[page as usize]) {
                return frame;
            }
        }
        self.hand
    }

    /// True if the page was clean.
    fn make_dirty(&mut self, page: u32) -> bool {
        !std::mem::replace(&mut self.dirty[page as usize], true)
    }

    /// True if the page was dirty: it is being written.
    fn take_dirty(&mut self, page: u32) -> bool {
        std::mem::replace(&mut self.dirty[page as usize], false)
    }

    /// True for the first change since the checkpoint.
    fn note_image(&mut self, page: u32) -> bool {
        !std::mem::replace(&mut self.imaged[page as usize], true)
    }

    fn forget_images(&mut self) {
        self.imaged.fill(false);
    }
}
