//! What is measured: a disk or file by direct I/O, or an NBD export. One lane of the generator has one.

use crate::Failure;
use crate::replay::live::{Event, Io, Live};
use crate::replay::nbd::Nbd;
use lab::trace::Op;
use serve::probe::{Drive, Requests};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// The end of a request.
#[derive(Debug)]
pub struct Ended {
    /// The slot that it was given.
    pub slot: u32,
    /// On the target's clock.
    pub at_ns: u64,
    /// Why it failed.
    pub error: Option<String>,
}

/// Something that answers requests, and the clock that they are measured by.
pub trait Target {
    /// The time.
    fn now_ns(&mut self) -> u64;
    /// True if one more request may be under way.
    fn has_room(&self) -> bool;
    /// Hands a request for so many blocks over; the slot that names it until it ends.
    fn submit(&mut self, is_write: bool, first: u64, blocks: u32) -> Result<u32, Failure>;
    /// Appends what has ended, and waits up to so long for the first end.
    fn wait(&mut self, wait_ns: u64, ended: &mut Vec<Ended>) -> Result<(), Failure>;
    /// How long it waited with nothing else to do.
    fn idle_ns(&self) -> u64;
}

/// A disk or file.
pub struct Direct {
    requests: Requests,
    begun: Instant,
    ended: Vec<serve::probe::Ended>,
}

impl Direct {
    /// So many requests at a time, of so many blocks each at most.
    pub fn new(drive: &Drive, slots: u32, blocks_each: u32, seed: u64) -> Result<Self, Failure> {
        let requests = Requests::new(drive, slots, blocks_each, seed)?;
        Ok(Self { requests, begun: Instant::now(), ended: Vec::new() })
    }

    /// What carries the requests, in words.
    pub fn driver(&self) -> String {
        self.requests.driver().to_string()
    }
}

impl Target for Direct {
    fn now_ns(&mut self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn has_room(&self) -> bool {
        self.requests.has_room()
    }

    fn submit(&mut self, is_write: bool, first: u64, blocks: u32) -> Result<u32, Failure> {
        Ok(self.requests.submit(is_write, first, blocks))
    }

    fn wait(&mut self, wait_ns: u64, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        self.requests
            .wait(Duration::from_nanos(wait_ns), &mut self.ended)
            .map_err(|error| format!("the ring broke: {error}"))?;
        let at_ns = self.begun.elapsed().as_nanos() as u64;
        ended.extend(self.ended.drain(..).map(|done| {
            let error = done.result.err().map(|error| error.to_string());
            Ended { slot: done.slot, at_ns, error }
        }));
        Ok(())
    }

    fn idle_ns(&self) -> u64 {
        self.requests.idle().as_nanos() as u64
    }
}

/// An NBD export.
pub struct Export {
    nbd: Nbd,
    begun: Instant,
    free: Vec<u32>,
    idle: Duration,
}

impl Export {
    /// Connects, for so many requests at a time.
    pub fn connect(uri: &str, slots: u32, write: bool) -> Result<Self, Failure> {
        let mut nbd = Nbd::connect(uri, write)?;
        serve::probe::mark(nbd.payload_mut());
        let free = (0..slots).rev().collect();
        Ok(Self { nbd, begun: Instant::now(), free, idle: Duration::ZERO })
    }
}

impl Target for Export {
    fn now_ns(&mut self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn submit(&mut self, is_write: bool, first: u64, blocks: u32) -> Result<u32, Failure> {
        let slot = self.free.pop().expect("who submits has asked for room");
        let op = if is_write { Op::Write } else { Op::Read };
        let block = flash::BLOCK_BYTES as u64;
        let (offset, length) = (first * block, u64::from(blocks) * block);
        self.nbd.submit(Io { token: u64::from(slot), op, fua: false, offset, length })?;
        Ok(slot)
    }

    fn wait(&mut self, wait_ns: u64, ended: &mut Vec<Ended>) -> Result<(), Failure> {
        let mut wait = Duration::from_nanos(wait_ns);
        loop {
            let begun = Instant::now();
            let event = self.nbd.events().recv_timeout(wait);
            if !wait.is_zero() {
                self.idle += begun.elapsed();
            }
            wait = Duration::ZERO;
            match event {
                Ok(Event::Answer(answer)) => {
                    let slot = answer.token as u32;
                    self.free.push(slot);
                    let at_ns = answer.at.saturating_duration_since(self.begun).as_nanos() as u64;
                    ended.push(Ended { slot, at_ns, error: answer.error });
                }
                Ok(Event::Lost(why)) => return Err(why),
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => return Err("its thread has ended".into()),
            }
        }
    }

    fn idle_ns(&self) -> u64 {
        self.idle.as_nanos() as u64
    }
}
