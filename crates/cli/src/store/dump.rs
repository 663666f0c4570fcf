//! `weir store dump` and `load`: everything in a store as a stream of records, by names, so that another store, of
//! other slices or on other units, takes it.
//!
//! ```text
//!   weir-store-dump-1 NEWLINE, then records: kind (1 byte), two lengths (4 bytes each, little-endian), two strings of
//!   bytes, CRC-32C over all of the record before it (4 bytes)
//!   1 value: key, value      2 cell: path as in a URL, value      3 file: path, its size (8 bytes)
//!   4 bytes of that file: nothing, bytes      9 end: nothing, number of the records before (8 bytes)
//! ```

use super::{At, opened, told};
use crate::output::Progress;
use crate::status::array;
use crate::{End, Failure};
use client::Store;
use client::store::{Cell, Range};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::PathBuf;

const MAGIC: &[u8] = b"weir-store-dump-1\n";
const VALUE: u8 = 1;
const CELL: u8 = 2;
const FILE: u8 = 3;
const BYTES: u8 = 4;
const END: u8 = 9;
/// Longest string of a record.
const PART_BYTES_MAX: u32 = 16 << 20;
/// Bytes of a file in one record; the last one has less.
const PIECE_BYTES: usize = 1 << 20;
/// Values or cells that are loaded in one piece, and their bytes.
const LOADED_MAX: usize = 1000;
const LOADED_BYTES_MAX: usize = 8 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store dump > store.dump\n  \
    weir store dump | weir store load --data other-store\n\n\
    What is written meanwhile may be in it or not. Its end says how much it is, so half a dump is not taken for one. Of a \
    store that is served with --damaged it has what is left, tells what is missing, and ends with status 1.")]
pub struct DumpArgs {
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store dump > copy.dump\n  \
    weir store load copy.dump --go-on\n\n\
    Values and cells of the same names are overwritten; files never change, so one that is there already ends the load, \
    unless --go-on says that it stays.")]
pub struct LoadArgs {
    /// The dump [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Files that are there already stay as they are, as after a load that was broken off
    #[arg(long)]
    go_on: bool,
    #[command(flatten)]
    at: At,
}

/// Writes records.
struct Records<W> {
    into: W,
    count: u64,
}

impl<W: Write> Records<W> {
    fn begin(mut into: W) -> io::Result<Self> {
        into.write_all(MAGIC)?;
        Ok(Self { into, count: 0 })
    }

    fn put(&mut self, kind: u8, first: &[u8], second: &[u8]) -> io::Result<()> {
        let mut head = vec![kind];
        head.extend((first.len() as u32).to_le_bytes());
        head.extend((second.len() as u32).to_le_bytes());
        let mut checksum = 0;
        for part in [&head, first, second] {
            checksum = crc32c::crc32c_append(checksum, part);
            self.into.write_all(part)?;
        }
        self.count += 1;
        self.into.write_all(&checksum.to_le_bytes())
    }

    fn end(mut self) -> io::Result<()> {
        let count = self.count.to_le_bytes();
        self.put(END, &[], &count)?;
        self.into.flush()
    }
}

/// A file's bytes as records of one size, however they come; its head before the first of them.
struct FileBytes<'a, W> {
    records: &'a mut Records<W>,
    head: Option<(&'a str, u64)>,
    piece: Vec<u8>,
}

impl<W: Write> FileBytes<'_, W> {
    /// Writes what there is.
    fn put(&mut self) -> io::Result<()> {
        if let Some((path, size)) = self.head.take() {
            self.records.put(FILE, path.as_bytes(), &size.to_le_bytes())?;
        }
        if !self.piece.is_empty() {
            self.records.put(BYTES, &[], &self.piece)?;
        }
        self.piece.clear();
        Ok(())
    }
}

impl<W: Write> Write for FileBytes<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        if self.piece.len() == PIECE_BYTES {
            self.put()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all of a store.
pub fn dump(args: &DumpArgs) -> Result<End, Failure> {
    let store = args.at.store()?;
    let out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let failed = |error: io::Error| format!("standard output cannot be written: {error}");
    let mut progress = Progress::new("dump");
    let mut records = Records::begin(out).map_err(failed)?;
    let mut from = None::<Vec<u8>>;
    loop {
        let range = Range { from: from.as_deref(), ..Range::default() };
        let (pairs, next) = store.scan(&range).map_err(told)?;
        for (key, value) in pairs {
            records.put(VALUE, &key, &value).map_err(failed)?;
        }
        progress.tell(&format!("{} values", records.count));
        from = next;
        if from.is_none() {
            break;
        }
    }
    let mut behind = None;
    loop {
        let (cells, next) =
            store.cells(None, &Range::default(), (behind.as_ref(), None)).map_err(told)?;
        for (cell, value) in cells {
            records.put(CELL, cell.path().as_bytes(), &value).map_err(failed)?;
        }
        progress.tell(&format!("{} values and cells", records.count));
        behind = next;
        if behind.is_none() {
            break;
        }
    }
    let status = store.status().map_err(told)?;
    let is_only_read = status["only_read"] == true;
    let left_out = dump_files(&store, &mut records, is_only_read, &mut progress)?;
    records.end().map_err(failed)?;
    progress.clear();
    Ok(if is_only_read { what_is_not_in_it(&status, &left_out) } else { End::Good })
}

/// Tells what a dump of what is left has not.
fn what_is_not_in_it(status: &serde_json::Value, left_out: &[String]) -> End {
    let missing = array(&status["missing"]);
    for what in missing.iter().filter_map(serde_json::Value::as_str) {
        say_error(&format!("MISSING: {what}"));
    }
    for file in left_out {
        say_error(&format!("LEFT OUT: file {file}: not all of it is there"));
    }
    if missing.is_empty() && left_out.is_empty() { End::Good } else { End::Bad }
}

fn say_error(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}

fn dump_files<W: Write>(
    store: &Store,
    records: &mut Records<W>,
    is_only_read: bool,
    progress: &mut Progress,
) -> Result<Vec<String>, Failure> {
    let (mut behind, mut left_out) = (None::<String>, Vec::new());
    loop {
        let page = store.all_files(behind.as_deref()).map_err(told)?;
        for file in &page.files {
            // A file is whole in a dump, so one of which something is missing is read before anything of it is in.
            if is_only_read && store.file(&file.name, &mut io::sink()).is_err() {
                left_out.push(file.name.clone());
                continue;
            }
            let Some(size) = file.bytes else {
                return Err(format!("{}: its entry is damaged: delete it first", file.name));
            };
            progress.tell(&format!("{} records, at {}", records.count, file.name));
            let head = Some((&*file.name, size));
            let mut bytes = FileBytes { records, head, piece: Vec::new() };
            // One that was deleted meanwhile is not in the dump.
            if store.file(&file.name, &mut bytes).map_err(told)? {
                bytes
                    .put()
                    .map_err(|error| format!("standard output cannot be written: {error}"))?;
            }
        }
        behind = page.next;
        if behind.is_none() {
            return Ok(left_out);
        }
    }
}

/// A record that was read.
struct Record {
    kind: u8,
    first: Vec<u8>,
    second: Vec<u8>,
}

/// Reads records.
struct Dump<R> {
    from: R,
    count: u64,
    /// So many of them are in the store, the first ones.
    loaded: u64,
    name: String,
}

impl<R: Read> Dump<R> {
    fn begin(mut from: R, name: String) -> Result<Self, Failure> {
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Ok(()) if magic == MAGIC => Ok(Self { from, count: 0, loaded: 0, name }),
            Ok(()) => Err(format!("{name}: is no dump of a store, or of a newer weir")),
            Err(error) => Err(format!("{name}: is no dump of a store: {error}")),
        }
    }

    fn next(&mut self) -> Result<Record, Failure> {
        let (name, number, loaded) = (&self.name, self.count + 1, self.loaded);
        let so_far = || format!("the first {loaded} records are loaded, and no more");
        let cut = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => format!(
                "{name}: is cut off in record {number}: {}: get all of it, and load it again",
                so_far()
            ),
            _ => format!("{name}: {error}: {}", so_far()),
        };
        let mut head = [0; 9];
        self.from.read_exact(&mut head).map_err(cut)?;
        let length =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let lengths = [length(1), length(5)];
        let damaged = || format!("{name}: record {number} is damaged: {}: get it anew", so_far());
        if lengths.iter().any(|&length| length > PART_BYTES_MAX) {
            return Err(damaged());
        }
        let [mut first, mut second] = lengths.map(|length| vec![0; length as usize]);
        self.from.read_exact(&mut first).map_err(cut)?;
        self.from.read_exact(&mut second).map_err(cut)?;
        let mut checksum = [0; 4];
        self.from.read_exact(&mut checksum).map_err(cut)?;
        let parts = [&head[..], &first, &second];
        let computed = parts.into_iter().fold(0, crc32c::crc32c_append);
        if computed != u32::from_le_bytes(checksum) {
            return Err(damaged());
        }
        self.count += 1;
        Ok(Record { kind: head[0], first, second })
    }
}

impl<R: Read> Dump<R> {
    /// Nothing may follow the last record: it would not be loaded.
    fn expect_end(&mut self) -> Result<(), Failure> {
        let name = &self.name;
        match self.from.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(format!(
                "{name}: the dump is loaded, but more follows its end: if that is another dump, load it by itself"
            )),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }
}

/// The bytes of a file, out of records.
struct Rest<'a, R> {
    dump: &'a mut Dump<R>,
    left: u64,
    piece: Vec<u8>,
    at: usize,
    failed: Option<Failure>,
}

impl<R: Read> Rest<'_, R> {
    /// The next bytes, if there are any left.
    fn fill(&mut self) -> Result<bool, Failure> {
        while self.at == self.piece.len() && self.left > 0 {
            let record = self.dump.next()?;
            if record.kind != BYTES || record.second.len() as u64 > self.left {
                return Err(format!(
                    "{}: record {} is not a part of the file before it",
                    self.dump.name, self.dump.count
                ));
            }
            self.left -= record.second.len() as u64;
            (self.piece, self.at) = (record.second, 0);
        }
        Ok(self.at < self.piece.len())
    }
}

impl<R: Read> Read for Rest<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.fill() {
            Ok(true) => {}
            Ok(false) => return Ok(0),
            Err(why) => {
                self.failed = Some(why.clone());
                return Err(io::Error::other(why));
            }
        }
        let count = into.len().min(self.piece.len() - self.at);
        into[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// What is loaded in one piece.
#[derive(Default)]
struct Batch {
    values: Vec<(Vec<u8>, Vec<u8>)>,
    cells: Vec<(Cell, Vec<u8>)>,
    bytes: usize,
}

impl Batch {
    fn write(&mut self, store: &Store) -> Result<(), Failure> {
        if !self.values.is_empty() {
            let values = self.values.iter().map(|(key, value)| (&key[..], Some(&value[..])));
            store.write(values).map_err(told)?;
        }
        if !self.cells.is_empty() {
            let cells = self.cells.iter().map(|(cell, value)| (cell, Some(&value[..])));
            store.write_cells(cells).map_err(told)?;
        }
        *self = Self::default();
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.values.len() + self.cells.len() >= LOADED_MAX || self.bytes >= LOADED_BYTES_MAX
    }
}

/// Puts what a dump has into a store.
pub fn load(args: &LoadArgs) -> Result<End, Failure> {
    let store = args.at.store()?;
    let (from, name): (Box<dyn Read>, String) = match &args.file {
        Some(file) => (Box::new(opened(file)?), file.display().to_string()),
        None => (Box::new(io::stdin().lock()), "standard input".into()),
    };
    let mut dump = Dump::begin(BufReader::with_capacity(1 << 20, from), name)?;
    let mut progress = Progress::new("load");
    let (mut batch, mut kept) = (Batch::default(), 0);
    loop {
        let Record { kind, first, second } = dump.next()?;
        progress.tell(&format!("{} records", dump.count));
        let strange = || format!("{}: record {} cannot be understood", dump.name, dump.count);
        match kind {
            VALUE => {
                batch.bytes += first.len() + second.len();
                batch.values.push((first, second));
            }
            CELL => {
                let path = String::from_utf8(first).map_err(|_| strange())?;
                batch.bytes += path.len() + second.len();
                batch.cells.push((Cell::of_path(&path).ok_or_else(strange)?, second));
            }
            FILE => {
                let path = String::from_utf8(first).map_err(|_| strange())?;
                let size = <[u8; 8]>::try_from(&second[..]).map_err(|_| strange())?;
                batch.write(&store)?;
                dump.loaded = dump.count - 1;
                kept += load_file(&store, &mut dump, &path, u64::from_le_bytes(size), args.go_on)?;
            }
            END => {
                let before = dump.count - 1;
                if second != before.to_le_bytes() {
                    return Err(format!(
                        "{}: has {before} records, which is not what its end says",
                        dump.name
                    ));
                }
                batch.write(&store)?;
                dump.expect_end()?;
                break;
            }
            _ => return Err(strange()),
        }
        if kind == FILE {
            dump.loaded = dump.count;
        }
        if batch.is_full() {
            batch.write(&store)?;
            dump.loaded = dump.count;
        }
    }
    progress.clear();
    if kept > 0 {
        eprintln!("{kept} files were there already and stay as they were");
    }
    Ok(End::Good)
}

/// Loads a file; 1 if it was there already and may stay.
fn load_file<R: Read>(
    store: &Store,
    dump: &mut Dump<R>,
    path: &str,
    size: u64,
    go_on: bool,
) -> Result<u64, Failure> {
    let mut rest = Rest { dump, left: size, piece: Vec::new(), at: 0, failed: None };
    match store.put_file(path, &mut rest, size) {
        Ok(()) => Ok(0),
        Err(error) => {
            if let Some(why) = rest.failed {
                return Err(why);
            }
            // It may also be that another is being uploaded there, or that a folder or file is in its way.
            let is_there = matches!(error, client::Error::Refused { code: 409, .. })
                && store.file(path, &mut io::sink()).map_err(told)?;
            if !is_there || !go_on {
                let mend = if is_there { "; or --go-on, and it stays" } else { "" };
                return Err(format!("{}{mend}", told(error)));
            }
            while rest.fill()? {
                rest.at = rest.piece.len();
            }
            Ok(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut all = Vec::new();
        let mut records = Records::begin(&mut all).unwrap();
        records.put(VALUE, b"key", b"value").unwrap();
        let head = Some(("a/b", 5));
        let mut file = FileBytes { records: &mut records, head, piece: Vec::new() };
        file.write_all(b"abc").unwrap();
        file.put().unwrap();
        file.write_all(b"de").unwrap();
        file.put().unwrap();
        records.end().unwrap();
        all
    }

    fn kinds(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut dump = Dump::begin(bytes, "test".into())?;
        let mut kinds = Vec::new();
        loop {
            let record = dump.next()?;
            kinds.push(record.kind);
            if record.kind == END {
                assert_eq!(record.second, (dump.count - 1).to_le_bytes());
                return Ok(kinds);
            }
        }
    }

    #[test]
    fn a_dump_comes_back_and_every_cut_and_every_flipped_bit_is_found() {
        let all = sample();
        assert_eq!(kinds(&all), Ok(vec![VALUE, FILE, BYTES, BYTES, END]));
        for cut in 0..all.len() {
            let why = kinds(&all[..cut]).unwrap_err();
            let told = why.contains("cut off") && why.contains("the first 0 records are loaded");
            assert!(told || why.contains("no dump"), "{cut}: {why}");
        }
        for bit in 0..all.len() * 8 {
            let mut flipped = all.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(kinds(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_file_is_read_out_of_its_records_and_no_further() {
        let all = sample();
        let mut dump = Dump::begin(&all[..], "test".into()).unwrap();
        dump.next().unwrap();
        dump.next().unwrap();
        let mut rest = Rest { dump: &mut dump, left: 5, piece: Vec::new(), at: 0, failed: None };
        let mut bytes = Vec::new();
        rest.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"abcde");
        assert_eq!(dump.next().unwrap().kind, END);
        // A size that does not fit its records.
        let mut dump = Dump::begin(&all[..], "test".into()).unwrap();
        dump.next().unwrap();
        dump.next().unwrap();
        let mut rest = Rest { dump: &mut dump, left: 6, piece: Vec::new(), at: 0, failed: None };
        assert!(rest.read_to_end(&mut bytes).is_err() && rest.failed.is_some());
    }
}
