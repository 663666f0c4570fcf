//! What is in flight, in memory that outlives this process: the hypervisor holds it, and gives it back to the next
//! server, which does again what this one has not finished. So a server that is killed loses no request.
//!
//! For each ring it has a head and an entry for each descriptor, as the vhost-user document lays them out:
//!
//! ```text
//! head    features u64 · version u16 · entries u16 · head of the last batch u16 · index of what was put back u16
//! entry   in flight u8 · 5 bytes of nothing · next of the batch u16 · counter u64
//! ```
//!
//! Invariants:
//! - a chain is noted before anything is done for it, and forgotten after it was put back; where a process ends between
//!   the two steps of putting back, the index tells which chain that was;
//! - what is found there may be anything: it is believed as far as a ring can be so.

use super::mapping::{BadMapping, Mapping, shared_file};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
/// Of the layout above.
const VERSION: u16 = 1;
/// Where what belongs to one ring begins: apart, for the sake of caches.
const ALIGN: u64 = 64;

/// What is told of such memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Bytes of it.
    pub bytes: u64,
    /// Where in its file it begins.
    pub offset: u64,
    /// For so many rings.
    pub queues: u16,
    /// Of so many entries at most.
    pub entries: u16,
}

impl Extent {
    /// What so many rings need.
    pub fn of(queues: u16, entries: u16) -> Self {
        let bytes = u64::from(queues) * Self::queue_bytes(entries);
        Self { bytes, offset: 0, queues, entries }
    }

    fn queue_bytes(entries: u16) -> u64 {
        ((HEAD_BYTES + usize::from(entries) * ENTRY_BYTES) as u64).next_multiple_of(ALIGN)
    }

    /// True if there is room for what it says.
    pub fn is_whole(&self) -> bool {
        self.queues > 0
            && self.entries > 0
            && Self::of(self.queues, self.entries).bytes <= self.bytes
    }
}

/// The memory for all rings of a guest.
pub struct Inflight {
    mapping: Mapping,
    extent: Extent,
}

impl Inflight {
    /// New memory of so much, and the file that it is in.
    pub fn make(extent: Extent) -> io::Result<OwnedFd> {
        shared_file(c"weir-inflight", extent.bytes)
    }

    /// What a hypervisor has kept.
    pub fn map(file: &OwnedFd, extent: Extent) -> Result<Self, BadMapping> {
        assert!(extent.is_whole(), "the extent was checked");
        let mapping = Mapping::of(file, extent.offset, extent.bytes)?;
        Ok(Self { mapping, extent })
    }

    /// The part of one ring, if it has one, and room for as many entries.
    pub fn of_queue(self: &Arc<Self>, queue: u16, entries: u16) -> Option<Track> {
        if queue >= self.extent.queues || entries > self.extent.entries {
            return None;
        }
        let at = u64::from(queue) * Extent::queue_bytes(self.extent.entries);
        // SAFETY: within the mapping, which has room for all (`is_whole`).
        let start = unsafe { self.mapping.start().add(at as usize) };
        Some(Track { memory: Arc::clone(self), start, entries, counter: 0 })
    }
}

/// What is in flight of one ring.
pub struct Track {
    memory: Arc<Inflight>,
    start: NonNull<u8>,
    entries: u16,
    /// The order in which chains were taken.
    counter: u64,
}

// SAFETY: the pointer leads to the memory that it holds, which is copied word by word.
unsafe impl Send for Track {}

impl Track {
    /// Takes over what is there, of a ring that has put back as many as `used` tells. Returns the chains that are to be
    /// done again, in the order in which they were taken.
    pub fn resume(&mut self, used: u16) -> Vec<u16> {
        if self.word(at::VERSION) != VERSION || self.word(at::ENTRIES) != self.entries {
            // Nobody has used it yet, or for a ring of another size, which is no more.
            for entry in 0..self.entries {
                self.set_in_flight(entry, false);
            }
            self.set_word(at::ENTRIES, self.entries);
            self.set_word(at::LAST, 0);
            self.set_word(at::USED, used);
            self.barrier();
            self.set_word(at::VERSION, VERSION);
            return Vec::new();
        }
        // It ended after the ring said that one is back, and before that was noted here.
        if self.word(at::USED) != used {
            let last = self.word(at::LAST);
            if last < self.entries {
                self.set_in_flight(last, false);
            }
            self.barrier();
            self.set_word(at::USED, used);
        }
        let there = (0..self.entries).filter(|&head| self.is_in_flight(head));
        let mut again: Vec<(u64, u16)> = there.map(|head| (self.counter_of(head), head)).collect();
        again.sort_unstable();
        self.counter = again.last().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        again.into_iter().map(|(_, head)| head).collect()
    }

    /// A chain was taken: it is noted before it is begun.
    pub fn taken(&mut self, head: u16) {
        self.set_counter(head, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.barrier();
        self.set_in_flight(head, true);
        self.barrier();
    }

    /// A chain is about to be put back.
    pub fn putting(&mut self, head: u16) {
        self.set_word(at::LAST, head);
        self.barrier();
    }

    /// It was, and the ring has put back as many as `used` tells.
    pub fn put(&mut self, head: u16, used: u16) {
        self.barrier();
        self.set_in_flight(head, false);
        self.barrier();
        self.set_word(at::USED, used);
    }

    /// Its memory was taken away.
    pub fn is_spoilt(&self) -> bool {
        self.memory.mapping.is_spoilt()
    }

    /// Another process sees what was written in this order, and none ends in between another.
    fn barrier(&self) {
        fence(Ordering::SeqCst);
    }

    fn is_in_flight(&self, head: u16) -> bool {
        // SAFETY: the first byte of an entry; the same below.
        unsafe { self.entry(head).as_ptr().read_volatile() == 1 }
    }

    fn set_in_flight(&self, head: u16, is: bool) {
        unsafe { self.entry(head).as_ptr().write_volatile(u8::from(is)) }
    }

    fn counter_of(&self, head: u16) -> u64 {
        unsafe { self.entry(head).add(8).cast::<u64>().as_ptr().read_unaligned() }
    }

    fn set_counter(&self, head: u16, counter: u64) {
        unsafe { self.entry(head).add(8).cast::<u64>().as_ptr().write_unaligned(counter) }
    }

    /// An entry, which lies within the part of the ring.
    fn entry(&self, head: u16) -> NonNull<u8> {
        assert!(head < self.entries, "descriptor {head} of {}", self.entries);
        // SAFETY: in bounds, asserted above.
        unsafe { self.start.add(HEAD_BYTES + usize::from(head) * ENTRY_BYTES) }
    }

    fn word(&self, at: usize) -> u16 {
        // SAFETY: within the head; where it begins is the hypervisor's choice, so perhaps not aligned.
        unsafe { self.start.add(at).cast::<u16>().as_ptr().read_unaligned() }
    }

    fn set_word(&self, at: usize, value: u16) {
        // SAFETY: as above.
        unsafe { self.start.add(at).cast::<u16>().as_ptr().write_unaligned(value) }
    }
}

/// Where the words of the head are.
mod at {
    pub const VERSION: usize = 8;
    pub const ENTRIES: usize = 10;
    pub const LAST: usize = 12;
    pub const USED: usize = 14;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a ring does, step by step, of which each may be the last.
    #[derive(Clone, Copy)]
    enum Step {
        Taken(u16),
        Putting(u16),
        /// The ring itself says so.
        Back,
        Put(u16),
    }

    #[test]
    fn whenever_a_process_ends_the_next_one_knows_what_was_not_put_back_and_in_which_order() {
        use Step::{Back, Put, Putting, Taken};
        let steps = [
            Taken(5),
            Taken(2),
            Taken(7),
            Putting(2),
            Back,
            Put(2),
            Taken(2),
            Putting(5),
            Back,
            Put(5),
            Putting(2),
            Back,
            Put(2),
            Putting(7),
            Back,
            Put(7),
            Taken(5),
        ];
        for ends_after in 0..=steps.len() {
            let extent = Extent::of(2, 8);
            let file = Inflight::make(extent).unwrap();
            let open = || Arc::new(Inflight::map(&file, extent).unwrap()).of_queue(1, 8).unwrap();
            let (mut track, mut used, mut there) = (open(), 65_534u16, Vec::new());
            assert!(track.resume(used).is_empty());
            for step in &steps[..ends_after] {
                match *step {
                    Taken(head) => {
                        track.taken(head);
                        there.push(head);
                    }
                    Putting(head) => track.putting(head),
                    Back => used = used.wrapping_add(1),
                    Put(head) => track.put(head, used),
                }
                if let Back = step {
                    // The guest has it from here on.
                    let last = track.word(at::LAST);
                    there.retain(|&head| head != last);
                }
            }
            drop(track);
            let mut track = open();
            assert_eq!(track.resume(used), there, "after {ends_after} steps");
            assert_eq!(open().resume(used), there, "to look changes nothing");
            // What is taken from now on comes behind all of that.
            if !there.contains(&0) {
                track.taken(0);
                there.push(0);
                assert_eq!(open().resume(used), there);
            }
        }
    }

    #[test]
    fn rings_have_their_own_parts_and_what_is_nonsense_is_not_believed() {
        let extent = Extent::of(3, 16);
        let file = Inflight::make(extent).unwrap();
        let inflight = Arc::new(Inflight::map(&file, extent).unwrap());
        let mut tracks: Vec<Track> =
            (0..3).map(|queue| inflight.of_queue(queue, 16).unwrap()).collect();
        assert!(inflight.of_queue(3, 16).is_none() && inflight.of_queue(0, 32).is_none());
        for track in &mut tracks {
            track.resume(0);
        }
        tracks[1].taken(15);
        assert_eq!([0, 1, 2].map(|queue| tracks[queue].resume(0).len()), [0, 1, 0]);
        tracks[0].taken(3);
        // The last one put back is no descriptor, and as many were put back as nobody has noted.
        tracks[0].set_word(at::LAST, 900);
        assert_eq!(tracks[0].resume(77), [3]);
        // A ring of another size begins anew.
        let mut smaller = inflight.of_queue(0, 8).unwrap();
        assert!(smaller.resume(5).is_empty());
        for extent in [Extent { queues: 0, ..extent }, Extent { entries: 20, ..extent }] {
            assert!(!extent.is_whole(), "{extent:?}");
        }
        assert!(
            Extent { bytes: u64::MAX, queues: u16::MAX, entries: u16::MAX, offset: 0 }.is_whole()
        );
    }
}
