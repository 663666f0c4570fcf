//! What goes wrong below emulated flash, drawn by a seed: commands that take long, I/O that fails, flushes
//! that fail, writes that are lost or go astray, reads that bring something else or come back changed.
//! For tests of the server as a whole; what the flash itself does wrong is in [`nand::Faults`].
//!
//! Invariant: nothing is told to the emulated flash's rules or to kept memory that is not told without
//! faults; so all of it must be found by what the core reads.

use flash::{Geometry, Instant, Random, SlotId};

/// How often, and how. The default is: never.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Injections {
    /// Everything below is drawn from it.
    pub seed: u64,
    /// Share of commands that take longer.
    pub slow: f64,
    /// By so much at most.
    pub slow_ns: u64,
    /// Share of flushes that fail.
    pub flush_fail: f64,
    /// Share of I/O for programs and erases that fails.
    pub io_error: f64,
    /// Share of programs of which nothing gets to the files, and nobody says so.
    pub lost_writes: f64,
    /// Share of programs that go to another page.
    pub stray_writes: f64,
    /// Share of reads that bring what is elsewhere.
    pub stray_reads: f64,
    /// Share of reads that come back with a flipped bit.
    pub flipped_reads: f64,
}

impl Injections {
    /// False if nothing ever goes wrong.
    pub fn any(&self) -> bool {
        let Self { slow, flush_fail, io_error, .. } = *self;
        slow + flush_fail + io_error > 0.0 || self.lies()
    }

    /// True if what is written may not be what is read, and nobody says so.
    pub fn lies(&self) -> bool {
        self.lost_writes + self.stray_writes + self.stray_reads + self.flipped_reads > 0.0
    }
}

/// Draws what goes wrong next.
pub(super) struct Injector {
    injections: Injections,
    random: Random,
    /// Jobs whose emulated time has come, and that are held back until then.
    held: Vec<(Instant, u32)>,
}

/// What becomes of a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Fate {
    /// It goes where it should.
    Right,
    /// Nowhere.
    Lost,
    /// Here.
    Astray(SlotId),
}

impl Injector {
    /// Of shard number `shard`.
    pub fn new(injections: Injections, shard: usize) -> Self {
        let random = Random::new(injections.seed ^ (shard as u64) << 32);
        Self { injections, random, held: Vec::new() }
    }

    fn draw(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.random.chance(chance)
    }

    /// True if `job`, which could be done now, is held back.
    pub fn holds(&mut self, now: Instant, job: u32) -> bool {
        let held = self.draw(self.injections.slow);
        if held {
            let wait_ns = self.random.below(self.injections.slow_ns.max(1));
            self.held.push((now + wait_ns, job));
        }
        held
    }

    /// The next job that is held back no longer.
    pub fn release(&mut self, now: Instant) -> Option<u32> {
        let due = self.held.iter().position(|&(at, _)| at <= now)?;
        Some(self.held.swap_remove(due).1)
    }

    /// When the next one is.
    pub fn deadline(&self) -> Option<Instant> {
        self.held.iter().map(|&(at, _)| at).min()
    }

    pub fn fails_flush(&mut self) -> bool {
        self.draw(self.injections.flush_fail)
    }

    pub fn fails_io(&mut self) -> bool {
        self.draw(self.injections.io_error)
    }

    /// Where the program of a page goes.
    pub fn program(&mut self, slot: SlotId, geometry: &Geometry) -> Fate {
        if self.draw(self.injections.lost_writes) {
            return Fate::Lost;
        }
        if self.draw(self.injections.stray_writes) {
            return Fate::Astray(self.elsewhere(slot, geometry));
        }
        Fate::Right
    }

    /// Where a read of slots of one page reads.
    pub fn read(&mut self, slot: SlotId, geometry: &Geometry) -> SlotId {
        if self.draw(self.injections.stray_reads) { self.elsewhere(slot, geometry) } else { slot }
    }

    /// The same place of another page, of the same kind of unit.
    fn elsewhere(&mut self, slot: SlotId, geometry: &Geometry) -> SlotId {
        let per_page = geometry.slots_per_page;
        let pages = geometry.capacity_blocks() * geometry.pages_per_block;
        let page = self.random.below(u64::from(pages)) as u32;
        SlotId(page * per_page + slot.0 % per_page)
    }

    /// Flips a bit of what was read, or does not.
    pub fn flip(&mut self, bytes: &mut [u8]) {
        if self.draw(self.injections.flipped_reads) {
            let bit = self.random.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
