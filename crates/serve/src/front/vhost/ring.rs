//! A ring of virtio (a split virtqueue) in a guest's memory, as the device sees it: requests are taken in the order in
//! which they became available, each a chain of pieces of the guest's memory, and are put back in any order.
//!
//! Invariants:
//! - what the guest writes is looked at once, word by word, and never believed: a chain ends after as many pieces as
//!   there can be, and lies in the guest's memory;
//! - a chain is the guest's again by [`Ring::put`], once; a guest that makes one available a second time before that
//!   has broken the ring.

use super::memory::Memory;
use super::request::Piece;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

/// Most entries of a ring.
pub const ENTRIES_MAX: u16 = 1024;

/// Bytes of a descriptor: address, length, flags, the next one.
const DESCRIPTOR_BYTES: u64 = 16;
/// There is another piece.
const NEXT: u16 = 1;
/// The device writes to this one.
const WRITABLE: u16 = 2;
/// The piece holds descriptors.
const INDIRECT: u16 = 4;
/// In the flags of either side: it need not be told.
const UNTOLD: u16 = 1;

/// Where a ring is, as the hypervisor counts addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Places {
    /// The table of descriptors.
    pub descriptors: u64,
    /// What the guest makes available.
    pub available: u64,
    /// What the device puts back.
    pub used: u64,
}

/// Why a ring cannot be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Broken {
    /// More became available than there is room for.
    Jumped {
        /// From this entry.
        from: u16,
        /// To that one.
        to: u16,
    },
    /// No such descriptor.
    Head(u16),
    /// A chain became available that is in flight.
    Twice(u16),
    /// The memory that it lies in was taken away.
    Spoilt,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Jumped { from, to } => {
                write!(f, "more became available than it holds: from entry {from} to {to}")
            }
            Self::Head(head) => write!(f, "it has no descriptor {head}"),
            Self::Twice(head) => write!(f, "descriptor {head} became available while in flight"),
            Self::Spoilt => f.write_str("the file of its memory was made shorter"),
        }
    }
}

/// What is wrong with a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadChain {
    /// It has more pieces than the ring entries: it goes round, perhaps.
    Long,
    /// It goes on at a descriptor that is not there.
    Next,
    /// What is to be read comes behind what is to be written.
    Order,
    /// A piece is not the guest's memory.
    Outside {
        /// Where it begins.
        address: u64,
        /// How long it is.
        bytes: u32,
    },
    /// A table of descriptors that is none, in another one, or with something behind it.
    Table,
}

impl fmt::Display for BadChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Long => f.write_str("a chain of descriptors has no end"),
            Self::Next => f.write_str("a chain goes on at a descriptor that is not there"),
            Self::Order => f.write_str("a chain has what is read behind what is written"),
            Self::Outside { address, bytes } => {
                write!(f, "{bytes} bytes at {address:#x} are not the guest's memory")
            }
            Self::Table => f.write_str("a table of descriptors is none"),
        }
    }
}

/// See the head of this file.
pub struct Ring {
    memory: Arc<Memory>,
    entries: u16,
    descriptors: NonNull<u8>,
    available: NonNull<u8>,
    used: NonNull<u8>,
    /// Both sides tell by an index when they want to hear.
    by_index: bool,
    /// The guest was asked to tell of the next one.
    asleep: bool,
    /// What is taken next, and where the next is put, counting on for ever.
    next: u16,
    used_next: u16,
    /// Where the latter was when the guest was told last.
    told: u16,
    /// By head.
    in_flight: Vec<bool>,
}

// SAFETY: the pointers lead to the memory that it holds, which any thread may copy from and to.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring of `entries` (a power of two); `None` if it does not lie in the memory as it must. It goes on where the
    /// guest sees that it is.
    pub fn new(memory: Arc<Memory>, entries: u16, places: Places, by_index: bool) -> Option<Self> {
        assert!(entries.is_power_of_two() && entries <= ENTRIES_MAX, "the size was checked");
        let part = |user: u64, align: usize, bytes: u64| {
            let found = memory.of_hypervisor(user, bytes);
            found.filter(|place| place.addr().get().is_multiple_of(align))
        };
        let count = u64::from(entries);
        let descriptors = part(places.descriptors, 16, DESCRIPTOR_BYTES * count)?;
        // Flags, index, the entries, and the index by which it is told.
        let available = part(places.available, 2, 6 + 2 * count)?;
        let used = part(places.used, 4, 6 + 8 * count)?;
        let in_flight = vec![false; usize::from(entries)];
        let (next, used_next, told, asleep) = (0, 0, 0, true);
        let mut ring = Self {
            memory,
            entries,
            descriptors,
            available,
            used,
            by_index,
            asleep,
            next,
            used_next,
            told,
            in_flight,
        };
        ring.used_next = ring.used_index().load(Ordering::Acquire);
        (ring.next, ring.told) = (ring.used_next, ring.used_next);
        Some(ring)
    }

    /// Goes on with this entry of what is available.
    pub fn go_on_at(&mut self, next: u16) {
        self.next = next;
    }

    /// The entry that is taken next.
    pub fn next(&self) -> u16 {
        self.next
    }

    /// Where the next one is put.
    pub fn used_next(&self) -> u16 {
        self.used_next
    }

    /// Its entries.
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// The memory that it lies in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The head of the next chain, if one is available.
    pub fn take(&mut self) -> Result<Option<u16>, Broken> {
        if self.memory.is_spoilt() {
            return Err(Broken::Spoilt);
        }
        let index = self.available_index().load(Ordering::Acquire);
        let waiting = index.wrapping_sub(self.next);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.entries {
            return Err(Broken::Jumped { from: self.next, to: index });
        }
        let entry = 4 + 2 * usize::from(self.next % self.entries);
        let head = u16::from_le(self.word(self.available, entry).load(Ordering::Relaxed));
        self.claim(head)?;
        self.next = self.next.wrapping_add(1);
        if std::mem::replace(&mut self.asleep, false) {
            self.wake();
        }
        Ok(Some(head))
    }

    /// A chain is in flight: one that was just taken, or was before a restart.
    pub fn claim(&mut self, head: u16) -> Result<(), Broken> {
        let in_flight = self.in_flight.get_mut(usize::from(head)).ok_or(Broken::Head(head))?;
        match std::mem::replace(in_flight, true) {
            true => Err(Broken::Twice(head)),
            false => Ok(()),
        }
    }

    /// The pieces of a chain, appended to `into`.
    pub fn chain(&self, head: u16, into: &mut Vec<Piece>) -> Result<(), BadChain> {
        let mut next = Some(head);
        let mut seen = 0;
        while let Some(index) = next {
            if seen == self.entries {
                return Err(BadChain::Long);
            }
            seen += 1;
            if index >= self.entries {
                return Err(BadChain::Next);
            }
            let at = usize::from(index) * DESCRIPTOR_BYTES as usize;
            // SAFETY: a descriptor of the table, which has `entries`; copied, as the guest may change it.
            let bytes: [u8; 16] =
                unsafe { self.descriptors.add(at).cast::<[u8; 16]>().as_ptr().read_volatile() };
            let descriptor = Descriptor::decode(bytes);
            if descriptor.flags & INDIRECT == 0 {
                self.add(&descriptor, into)?;
                next = (descriptor.flags & NEXT != 0).then_some(descriptor.next);
                continue;
            }
            // Pieces may come before it, nothing may come behind.
            if descriptor.flags & NEXT != 0 {
                return Err(BadChain::Table);
            }
            return self.table(&descriptor, into);
        }
        Ok(())
    }

    /// The pieces of a chain in a table that lies elsewhere.
    fn table(&self, table: &Descriptor, into: &mut Vec<Piece>) -> Result<(), BadChain> {
        let Descriptor { address, bytes, .. } = *table;
        let count = u64::from(bytes) / DESCRIPTOR_BYTES;
        let is_whole = u64::from(bytes).is_multiple_of(DESCRIPTOR_BYTES);
        if count == 0 || !is_whole || count > u64::from(ENTRIES_MAX) {
            return Err(BadChain::Table);
        }
        let (mut index, mut seen) = (0u16, 0);
        loop {
            if seen == count {
                return Err(BadChain::Long);
            }
            seen += 1;
            if u64::from(index) >= count {
                return Err(BadChain::Next);
            }
            let outside = BadChain::Outside { address, bytes };
            let at = address.checked_add(u64::from(index) * DESCRIPTOR_BYTES).ok_or(outside)?;
            let mut found = [0; 16];
            if !self.memory.read(at, &mut found) {
                return Err(outside);
            }
            let descriptor = Descriptor::decode(found);
            if descriptor.flags & INDIRECT != 0 {
                return Err(BadChain::Table);
            }
            self.add(&descriptor, into)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    fn add(&self, descriptor: &Descriptor, into: &mut Vec<Piece>) -> Result<(), BadChain> {
        let Descriptor { address, bytes, flags, .. } = *descriptor;
        let writable = flags & WRITABLE != 0;
        if !writable && into.last().is_some_and(|last: &Piece| last.writable) {
            return Err(BadChain::Order);
        }
        if !self.memory.covers(address, u64::from(bytes)) {
            return Err(BadChain::Outside { address, bytes });
        }
        into.push(Piece { address, bytes, writable });
        Ok(())
    }

    /// Gives a chain back, to which so many bytes were written. The guest may see it from now on.
    pub fn put(&mut self, head: u16, written: u32) {
        assert!(self.in_flight[usize::from(head)], "only what was taken is put back");
        self.in_flight[usize::from(head)] = false;
        let at = 4 + 8 * usize::from(self.used_next % self.entries);
        let entry = u64::from(head).to_le() | (u64::from(written) << 32).to_le();
        // SAFETY: an entry of what is put back; it is aligned to four bytes only.
        unsafe { self.used.add(at).cast::<u64>().as_ptr().write_unaligned(entry) };
        self.used_next = self.used_next.wrapping_add(1);
        self.used_index().store(self.used_next, Ordering::Release);
    }

    /// What was put back since the last call is to be told to the guest.
    pub fn must_tell(&mut self) -> bool {
        if self.told == self.used_next {
            return false;
        }
        // What was put back is seen before it is looked whether the guest wants to hear of it.
        fence(Ordering::SeqCst);
        let told = std::mem::replace(&mut self.told, self.used_next);
        if !self.by_index {
            let flags = u16::from_le(self.word(self.available, 0).load(Ordering::Relaxed));
            return flags & UNTOLD == 0;
        }
        let wanted = self.word(self.available, 4 + 2 * usize::from(self.entries));
        let wanted = u16::from_le(wanted.load(Ordering::Relaxed));
        is_past(wanted, self.used_next, told)
    }

    /// The guest is to tell when more becomes available. True if nothing is.
    pub fn sleep(&mut self) -> bool {
        if self.by_index {
            let at = 4 + 8 * usize::from(self.entries);
            self.word(self.used, at).store(self.next.to_le(), Ordering::Relaxed);
        } else {
            self.word(self.used, 0).store(0, Ordering::Relaxed);
        }
        self.asleep = true;
        // The guest sees that before it is looked once more.
        fence(Ordering::SeqCst);
        self.available_index().load(Ordering::Acquire) == self.next
    }

    /// The guest need not tell: it is looked by itself what becomes available.
    fn wake(&mut self) {
        // By the index it is told where that is passed, which is behind already.
        if !self.by_index {
            self.word(self.used, 0).store(UNTOLD.to_le(), Ordering::Relaxed);
        }
    }

    fn available_index(&self) -> Index<'_> {
        Index(self.word(self.available, 2))
    }

    fn used_index(&self) -> Index<'_> {
        Index(self.word(self.used, 2))
    }

    /// A word of a part of the ring, which has as many bytes (`new` saw to it).
    fn word(&self, part: NonNull<u8>, at: usize) -> &AtomicU16 {
        // SAFETY: within the part, which is aligned as words are, and shared by atomics only.
        unsafe { AtomicU16::from_ptr(part.add(at).cast::<u16>().as_ptr()) }
    }
}

/// An index of a ring, which travels little-endian.
struct Index<'a>(&'a AtomicU16);

impl Index<'_> {
    fn load(&self, order: Ordering) -> u16 {
        u16::from_le(self.0.load(order))
    }

    fn store(&self, value: u16, order: Ordering) {
        self.0.store(value.to_le(), order);
    }
}

/// True if `wanted` lies in what went from `before` to `now`.
fn is_past(wanted: u16, now: u16, before: u16) -> bool {
    now.wrapping_sub(wanted).wrapping_sub(1) < now.wrapping_sub(before)
}

struct Descriptor {
    address: u64,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn decode(bytes: [u8; 16]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = bytes;
        Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            bytes: u32::from_le_bytes([i, j, k, l]),
            flags: u16::from_le_bytes([m, n]),
            next: u16::from_le_bytes([o, p]),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::memory::tests::memory;
    use super::*;

    /// The guest's side of a ring whose parts lie at fixed places of 64 KiB of memory at 0.
    pub struct Driver {
        pub memory: Arc<Memory>,
        pub entries: u16,
        pub available: u16,
        pub seen: u16,
    }

    pub const DESCRIPTORS: u64 = 0x1000;
    pub const AVAILABLE: u64 = 0x5000;
    pub const USED: u64 = 0x6000;
    pub const PLACES: Places = Places {
        descriptors: (1 << 40) + DESCRIPTORS,
        available: (1 << 40) + AVAILABLE,
        used: (1 << 40) + USED,
    };

    impl Driver {
        pub fn new(entries: u16) -> Self {
            let memory = Arc::new(memory(&[(0, 0x10000)]));
            Self { memory, entries, available: 0, seen: 0 }
        }

        pub fn ring(&self, by_index: bool) -> Ring {
            Ring::new(Arc::clone(&self.memory), self.entries, PLACES, by_index).unwrap()
        }

        pub fn describe(
            &self,
            at: u64,
            index: u16,
            (address, bytes): (u64, u32),
            flags: u16,
            next: u16,
        ) {
            let mut entry = address.to_le_bytes().to_vec();
            entry.extend(bytes.to_le_bytes());
            entry.extend(flags.to_le_bytes());
            entry.extend(next.to_le_bytes());
            assert!(self.memory.write(at + 16 * u64::from(index), &entry));
        }

        pub fn offer(&mut self, head: u16) {
            let at = AVAILABLE + 4 + 2 * u64::from(self.available % self.entries);
            assert!(self.memory.write(at, &head.to_le_bytes()));
            self.available = self.available.wrapping_add(1);
            assert!(self.memory.write(AVAILABLE + 2, &self.available.to_le_bytes()));
        }

        pub fn word(&self, at: u64) -> u16 {
            let mut bytes = [0; 2];
            assert!(self.memory.read(at, &mut bytes));
            u16::from_le_bytes(bytes)
        }

        /// The next that came back: head and bytes.
        pub fn reap(&mut self) -> Option<(u16, u32)> {
            if self.word(USED + 2) == self.seen {
                return None;
            }
            let mut entry = [0; 8];
            let at = USED + 4 + 8 * u64::from(self.seen % self.entries);
            assert!(self.memory.read(at, &mut entry));
            self.seen = self.seen.wrapping_add(1);
            let [a, b, _, _, c, d, e, f] = entry;
            Some((u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f])))
        }
    }

    #[test]
    fn chains_come_in_order_and_go_back_in_any_over_the_wrap_of_all_indices() {
        let mut driver = Driver::new(4);
        let mut ring = driver.ring(true);
        for head in 0..4 {
            driver.describe(DESCRIPTORS, head, (0x8000 + u64::from(head), 16), 0, 0);
        }
        for round in 0..40_000u32 {
            let order = [[0, 1], [1, 0], [2, 3], [3, 1]][round as usize % 4];
            order.into_iter().for_each(|head| driver.offer(head));
            let taken = [ring.take().unwrap(), ring.take().unwrap(), ring.take().unwrap()];
            assert_eq!(taken, [Some(order[0]), Some(order[1]), None]);
            ring.put(order[1], round);
            ring.put(order[0], 7);
            assert_eq!(driver.reap(), Some((order[1], round)));
            assert_eq!((driver.reap(), driver.reap()), (Some((order[0], 7)), None));
        }
        assert_eq!(ring.next(), ring.used_next());
    }

    #[test]
    fn a_guest_is_told_of_what_it_wants_to_hear_and_tells_when_it_is_wanted() {
        for by_index in [false, true] {
            let mut driver = Driver::new(8);
            let mut ring = driver.ring(by_index);
            (0..8).for_each(|head| driver.describe(DESCRIPTORS, head, (0x8000, 16), 0, 0));
            assert!(ring.sleep() && !ring.must_tell());
            driver.offer(0);
            assert!(!ring.sleep(), "one is there");
            (1..4).for_each(|head| driver.offer(head));
            let taken: Vec<u16> = std::iter::from_fn(|| ring.take().unwrap()).collect();
            assert_eq!(taken, [0, 1, 2, 3]);
            assert_eq!(driver.word(USED), u16::from(!by_index), "it need not tell");
            // It wants to hear of the second that comes back, or, without an index, of all or none.
            assert!(driver.memory.write(AVAILABLE + 4 + 16, &1u16.to_le_bytes()));
            ring.put(0, 0);
            assert_eq!(ring.must_tell(), !by_index);
            ring.put(1, 0);
            assert!(ring.must_tell() && !ring.must_tell());
            assert!(driver.memory.write(AVAILABLE, &1u16.to_le_bytes()));
            ring.put(2, 0);
            assert!(!ring.must_tell());
            assert!(ring.sleep());
            assert_eq!(driver.word(USED), 0);
            assert_eq!(driver.word(USED + 4 + 64), if by_index { 4 } else { 0 });
        }
    }

    #[test]
    fn rings_that_are_none_are_refused_and_broken_ones_are_found() {
        let mut driver = Driver::new(4);
        let with =
            |places: Places| Ring::new(Arc::clone(&driver.memory), 4, places, true).is_some();
        assert!(with(PLACES));
        for wrong in [
            Places { descriptors: PLACES.descriptors + 8, ..PLACES },
            Places { available: PLACES.available + 1, ..PLACES },
            Places { used: PLACES.used + 2, ..PLACES },
            Places { used: (1 << 40) + 0xfff0, ..PLACES },
            Places { descriptors: DESCRIPTORS, ..PLACES },
        ] {
            assert!(!with(wrong), "{wrong:?}");
        }
        let mut ring = driver.ring(true);
        driver.offer(4);
        assert_eq!(ring.take(), Err(Broken::Head(4)));
        let mut ring = driver.ring(true);
        ring.go_on_at(driver.available);
        driver.offer(1);
        driver.offer(1);
        assert_eq!(ring.take(), Ok(Some(1)));
        assert_eq!(ring.take(), Err(Broken::Twice(1)));
        ring.go_on_at(driver.available.wrapping_sub(5));
        let (from, to) = (driver.available.wrapping_sub(5), driver.available);
        assert_eq!(ring.take(), Err(Broken::Jumped { from, to }));
    }

    #[test]
    fn chains_that_loop_lie_outside_or_go_back_are_refused() {
        let driver = Driver::new(4);
        let ring = driver.ring(true);
        let walk = |head| {
            let mut pieces = Vec::new();
            ring.chain(head, &mut pieces).map(|()| pieces)
        };
        let piece = (0x8000, 16);
        driver.describe(DESCRIPTORS, 0, piece, NEXT, 1);
        driver.describe(DESCRIPTORS, 1, piece, NEXT | WRITABLE, 2);
        driver.describe(DESCRIPTORS, 2, piece, WRITABLE, 9);
        assert_eq!(walk(0).unwrap().len(), 3);
        driver.describe(DESCRIPTORS, 2, piece, NEXT | WRITABLE, 1);
        assert_eq!(walk(0), Err(BadChain::Long));
        driver.describe(DESCRIPTORS, 2, piece, NEXT | WRITABLE, 4);
        assert_eq!(walk(0), Err(BadChain::Next));
        driver.describe(DESCRIPTORS, 2, piece, 0, 0);
        assert_eq!(walk(0), Err(BadChain::Order));
        driver.describe(DESCRIPTORS, 2, (0xfff8, 16), WRITABLE, 0);
        assert_eq!(walk(0), Err(BadChain::Outside { address: 0xfff8, bytes: 16 }));

        let table = 0x9000;
        driver.describe(DESCRIPTORS, 3, (table, 32), INDIRECT, 0);
        driver.describe(table, 0, piece, NEXT, 1);
        driver.describe(table, 1, piece, WRITABLE, 0);
        assert_eq!(walk(3).unwrap().len(), 2);
        for (index, flags, next, wrong) in [
            (1, NEXT | WRITABLE, 1, BadChain::Long),
            (1, INDIRECT, 0, BadChain::Table),
            (0, NEXT, 2, BadChain::Next),
        ] {
            driver.describe(table, index, piece, flags, next);
            assert_eq!(walk(3), Err(wrong));
        }
        for (bytes, flags) in
            [(0, INDIRECT), (17, INDIRECT), (1025 * 16, INDIRECT), (32, INDIRECT | NEXT)]
        {
            driver.describe(DESCRIPTORS, 3, (table, bytes), flags, 0);
            assert_eq!(walk(3), Err(BadChain::Table), "{bytes} {flags}");
        }
        driver.describe(DESCRIPTORS, 3, (0x2_0000, 32), INDIRECT, 0);
        assert_eq!(walk(3), Err(BadChain::Outside { address: 0x2_0000, bytes: 32 }));
        driver.describe(DESCRIPTORS, 3, (u64::MAX - 7, 32), INDIRECT, 0);
        assert!(matches!(walk(3), Err(BadChain::Outside { .. })));
    }
}
