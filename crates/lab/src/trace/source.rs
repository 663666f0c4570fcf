//! The bytes of a trace, whatever they are packed in: a file is looked into, and gzip or zstd is
//! taken off. Counts what was read of the file itself, for a progress bar.

use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many bytes of a file were read so far, and how many there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    read: Arc<AtomicU64>,
    whole: u64,
}

impl Progress {
    pub(super) fn at(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.whole)
    }
}

/// Decompressed bytes and how they begin.
pub(super) struct Source {
    pub(super) bytes: Box<dyn Read + Send>,
    pub(super) head: Vec<u8>,
    pub(super) progress: Progress,
}

/// As much of the beginning as detection looks at.
pub(super) const HEAD_BYTES: u64 = 16 << 10;
const BUFFER_BYTES: usize = 64 << 10;

/// Opens a file; "-" is standard input.
pub(super) fn open(path: &Path) -> io::Result<Source> {
    if path == Path::new("-") {
        return unpack(Box::new(io::stdin()), 0);
    }
    let file = File::open(path)?;
    let whole = file.metadata()?.len();
    unpack(Box::new(file), whole)
}

/// Takes compression off `bytes`, of which there are `whole`.
pub(super) fn unpack(bytes: Box<dyn Read + Send>, whole: u64) -> io::Result<Source> {
    let progress = Progress { read: Arc::default(), whole };
    let counted = Counted { bytes, read: Arc::clone(&progress.read) };
    let (magic, bytes) = peek(counted, 4)?;
    let bytes: Box<dyn Read + Send> = match magic[..] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::new(bytes))),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::Decoder::new(bytes)?),
        _ => Box::new(bytes),
    };
    let (head, bytes) = peek(bytes, HEAD_BYTES)?;
    Ok(Source { bytes: Box::new(BufReader::with_capacity(BUFFER_BYTES, bytes)), head, progress })
}

/// The first bytes, and all of them again.
fn peek<R: Read>(mut bytes: R, most: u64) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::new();
    bytes.by_ref().take(most).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head).chain(bytes)))
}

struct Counted {
    bytes: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(into)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
