//! Writes smaller than what the flash takes: an application keeps them until they fill an I/O, or the first
//! of them has waited long enough, and all of them end when that I/O does.
//!
//! Invariant: every write that came is in exactly one place: what its thread keeps, or an I/O in flight.

use super::thread::Thread;
use super::{Client, Pace};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How a client gathers its writes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Gather {
    /// Bytes of an I/O, into which as many writes go as find room.
    pub bytes: u64,
    /// The first of them waits no longer for the others.
    pub wait_ns: u64,
}

impl Gather {
    /// `Err` says which field of the client does not go with it, and what would.
    pub(super) fn validate(self, client: &Client) -> Result<(), String> {
        let wrong = |field: &str, value: &dyn std::fmt::Display, mend: &str| {
            Err(format!("client {:?}: {field} = {value}: {mend}", client.name))
        };
        if self.bytes < client.bytes {
            return wrong("gather", &self.bytes, "at least the bytes of a write, such as \"4KiB\"");
        }
        if self.wait_ns == 0 {
            return wrong("gather_wait", &0, "above 0, for example \"1ms\"");
        }
        if !matches!(client.pace, Pace::Rate(_)) || client.cap_bytes_per_s > 0.0 {
            return wrong(
                "gather",
                &self.bytes,
                "only of writes that come at a rate, without a cap",
            );
        }
        if client.reads > 0.0 || client.erase_first {
            return wrong("gather", &self.bytes, "only of writes: reads = 0 and no erase_first");
        }
        Ok(())
    }
}

/// What all threads have gathered.
pub(super) struct Gathering {
    /// By thread: when each write came that its next I/O will hold.
    kept: Vec<Vec<u64>>,
    /// By thread: how many find room in an I/O; 0 of a thread that does not gather.
    room: Vec<usize>,
    /// By thread: I/Os so far.
    rounds: Vec<u64>,
    /// By flight: when each of its writes came.
    flying: Vec<Vec<u64>>,
    /// (until, round, thread): how long a first write waits.
    waits: BinaryHeap<Reverse<(u64, u64, u32)>>,
}

impl Gathering {
    pub fn new(clients: &[Client], threads: &[Thread]) -> Self {
        let room = |thread: &Thread| {
            let client = &clients[thread.client as usize];
            client.gather.map_or(0, |gather| (gather.bytes / client.bytes) as usize)
        };
        Self {
            kept: vec![Vec::new(); threads.len()],
            room: threads.iter().map(room).collect(),
            rounds: vec![0; threads.len()],
            flying: Vec::new(),
            waits: BinaryHeap::new(),
        }
    }

    /// A thread has a write, and the first that it keeps waits so long. True if an I/O is full.
    pub fn add(&mut self, now: u64, thread: u32, gather: Gather) -> bool {
        let index = thread as usize;
        if self.kept[index].is_empty() {
            self.waits.push(Reverse((now + gather.wait_ns, self.rounds[index], thread)));
        }
        self.kept[index].push(now);
        self.kept[index].len() >= self.room[index]
    }

    /// When the next thread has waited long enough, or did without.
    pub fn deadline(&self) -> Option<u64> {
        self.waits.peek().map(|&Reverse((at, ..))| at)
    }

    /// A thread that has waited long enough by now.
    pub fn waited(&mut self, now: u64) -> Option<u32> {
        while let Some(&Reverse((at, round, thread))) = self.waits.peek() {
            if at > now {
                return None;
            }
            self.waits.pop();
            if round == self.rounds[thread as usize] {
                return Some(thread);
            }
        }
        None
    }

    /// What the thread keeps is on its way as this flight.
    pub fn fly(&mut self, thread: u32, flight: usize) {
        if self.room[thread as usize] == 0 {
            return;
        }
        if self.flying.len() <= flight {
            self.flying.resize(flight + 1, Vec::new());
        }
        self.rounds[thread as usize] += 1;
        self.flying[flight] = std::mem::take(&mut self.kept[thread as usize]);
    }

    /// When the writes of a flight that ended came; `None` if it is no gathered one.
    pub fn land(&mut self, thread: u32, flight: usize) -> Option<Vec<u64>> {
        (self.room[thread as usize] > 0).then(|| std::mem::take(&mut self.flying[flight]))
    }

    /// When the writes of a flight came, which came as a whole at `submitted` if it is no gathered one.
    pub fn came(&self, thread: u32, flight: usize, submitted: u64) -> Vec<u64> {
        match self.room[thread as usize] {
            0 => vec![submitted],
            _ => self.flying[flight].clone(),
        }
    }

    /// When the writes came that a thread keeps.
    pub fn kept(&self, thread: u32) -> &[u64] {
        &self.kept[thread as usize]
    }
}
