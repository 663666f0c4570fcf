//! A file or block device as the target of a replay: direct I/O by a number of threads, each one
//! request at a time.
//!
//! Direct I/O moves whole blocks of 4 KiB: a request that is not of whole blocks is widened, a write
//! too. What is written are random bytes.

use super::live::{Answer, Event, Io, Live};
use crate::Failure;
use flash::{BLOCK_BYTES, Random};
use lab::trace::Op;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// See the head of this file.
pub struct Direct {
    capacity: u64,
    /// `None` when it ends: then the threads do.
    jobs: Option<Sender<Io>>,
    events: Receiver<Event>,
    threads: Vec<JoinHandle<()>>,
}

/// Longest I/O in one piece; a longer one is done piece by piece.
const PIECE_BYTES: usize = 1 << 20;
const BLOCK: u64 = BLOCK_BYTES as u64;

impl Direct {
    /// Opens it, for writing only if that is meant.
    pub fn open(path: &Path, write: bool, buffered: bool, threads: u32) -> Result<Self, Failure> {
        let flags = if buffered { 0 } else { libc::O_DIRECT };
        let file = OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
        let mut file = file.map_err(|error| {
            let direct = !buffered && error.raw_os_error() == Some(libc::EINVAL);
            let mend = if direct {
                "this file system has no direct I/O: try --buffered"
            } else {
                "give an existing file or block device, or an nbd:// or nbd+unix:// address"
            };
            format!("{}: cannot be opened: {error}: {mend}", path.display())
        })?;
        let size = file.seek(SeekFrom::End(0)).map_err(|error| {
            format!("{}: its size cannot be told: {error}: use a file or disk", path.display())
        })?;
        let file = Arc::new(file);
        let (jobs, waiting) = channel();
        let (sender, events) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let worker = |number| {
            let (file, waiting, sender) = (Arc::clone(&file), Arc::clone(&waiting), sender.clone());
            std::thread::spawn(move || work(&file, &waiting, &sender, number))
        };
        let threads = (0..threads.max(1)).map(worker).collect();
        // Whole blocks, as the last I/O may be widened.
        Ok(Self { capacity: size / BLOCK * BLOCK, jobs: Some(jobs), events, threads })
    }
}

impl Live for Direct {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn longest(&self, _: Op) -> u64 {
        u64::MAX
    }

    fn submit(&mut self, io: Io) -> Result<(), Failure> {
        let jobs = self.jobs.as_ref().expect("open until it is dropped");
        jobs.send(io).map_err(|_| "its threads have ended".to_string())
    }

    fn events(&self) -> &Receiver<Event> {
        &self.events
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn work(file: &File, waiting: &Mutex<Receiver<Io>>, sender: &Sender<Event>, number: u32) {
    let mut buffers = Buffers::new(u64::from(number));
    loop {
        let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(io) = job else { return };
        let error = execute(file, &io, &mut buffers).err().map(|error| error.to_string());
        let event = Event::Answer(Answer { token: io.token, at: Instant::now(), error });
        if sender.send(event).is_err() {
            return;
        }
    }
}

/// Memory of one thread, at whole blocks as direct I/O wants it.
struct Buffers {
    memory: Vec<u8>,
    /// Where whole blocks begin: one piece to read into, one to write from.
    at: usize,
}

impl Buffers {
    fn new(seed: u64) -> Self {
        let mut memory = vec![0; 2 * PIECE_BYTES + BLOCK_BYTES];
        let at = memory.as_ptr().align_offset(BLOCK_BYTES);
        let mut random = Random::new(seed);
        for word in memory[at + PIECE_BYTES..].chunks_exact_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes());
        }
        Self { memory, at }
    }

    fn read(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.memory[self.at..self.at + bytes]
    }

    fn write(&self, bytes: usize) -> &[u8] {
        &self.memory[self.at + PIECE_BYTES..self.at + PIECE_BYTES + bytes]
    }
}

fn execute(file: &File, io: &Io, buffers: &mut Buffers) -> io::Result<()> {
    let first = io.offset / BLOCK * BLOCK;
    let end = (io.offset + io.length).div_ceil(BLOCK) * BLOCK;
    match io.op {
        Op::Flush => return file.sync_data(),
        Op::Trim => return punch(file, io.offset.div_ceil(BLOCK) * BLOCK, io.offset + io.length),
        Op::Read | Op::Write => {}
    }
    let mut at = first;
    while at < end {
        let bytes = ((end - at) as usize).min(PIECE_BYTES);
        match io.op {
            Op::Read => file.read_exact_at(buffers.read(bytes), at)?,
            _ => file.write_all_at(buffers.write(bytes), at)?,
        }
        at += bytes as u64;
    }
    if io.fua { file.sync_data() } else { Ok(()) }
}

/// Gives the whole blocks of a range back.
fn punch(file: &File, first: u64, end: u64) -> io::Result<()> {
    let end = end / BLOCK * BLOCK;
    if end <= first {
        return Ok(());
    }
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: no pointer is passed; the descriptor is open as long as `file` is.
    let result =
        unsafe { libc::fallocate(file.as_raw_fd(), mode, first as i64, (end - first) as i64) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
