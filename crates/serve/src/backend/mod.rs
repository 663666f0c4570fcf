//! What stands below the core of a shard: emulated flash, files and disks of this machine
//! ([`crate::medium::Medium`]), or a volume of a pool ([`crate::pool::volume`]).
//!
//! Invariants: every command that was started completes, once; memory that a command reads to or writes from is not
//! touched after its completion.

mod source;

pub use source::{Opened, Source, Starter};

use crate::kept::KeptCounts;
use crate::medium::{Injections, Lost, Watch};
use crate::runtime::buffer::Views;
use crate::runtime::ring::{Done, Ring};
use crate::runtime::shard::CoreSettings;
use flash::{BlockId, Command, Completion, Geometry, Health, Instant, SlotId, SlotWrite};
use ftl::policy::UnitWeights;
use std::path::Path;

/// Executes the commands of one core. See the head of this file.
pub trait Backend {
    /// The shape, as the core is to see it.
    fn geometry(&self) -> &Geometry;

    /// Wear and bad blocks.
    fn health(&self) -> Health;

    /// True if what is read may be lent and what is programmed handed over, block by block; else requests come in
    /// runs.
    fn lends(&self) -> bool {
        false
    }

    /// Starts a command. `slots` are those of a program.
    fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        views: &mut Views,
        ring: &mut Ring,
    );

    /// Hands the next completion to `take`; false if there is none by now.
    fn poll(
        &mut self,
        now: Instant,
        views: &mut Views,
        ring: &mut Ring,
        take: &mut dyn FnMut(Completion<'_>),
    ) -> bool;

    /// An I/O operation has completed.
    fn io_done(&mut self, now: Instant, done: Done, ring: &mut Ring);

    /// When to call `poll` again if no I/O completes before. `None`: only I/O is awaited.
    fn deadline(&self) -> Option<Instant>;

    /// Why what is below is no more this server's, if it is not.
    fn lost(&self) -> Option<Lost>;

    /// True once it is not.
    fn fenced(&self) -> bool {
        self.lost().is_some()
    }

    /// What tells if another server has the device, if somebody must look.
    fn watch(&mut self) -> Option<&mut Watch> {
        None
    }

    /// Looks whether the device is still this server's, when that is due.
    fn look(&mut self, ring: &mut Ring) {
        if let Some(watch) = self.watch()
            && watch.due_in().is_zero()
        {
            watch.look(ring);
        }
    }

    /// When the next look is due.
    fn look_due(&mut self, now: Instant) -> Option<Instant> {
        let watch = self.watch()?;
        Some(now + u64::try_from(watch.due_in().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether what the core says of the data by itself, without asking here, may be told to a client now: whether
    /// it is known that nobody else has changed them. If not, it is told later, or never.
    fn vouches(&self, _now: Instant) -> bool {
        true
    }

    /// New weights for the core, if there are any since the last call.
    fn take_weights(&mut self) -> Option<UnitWeights> {
        None
    }

    /// The next block that cannot be mended here: what of it is sound should be written anew elsewhere. Each is named once,
    /// and again while it is so.
    fn take_refresh(&mut self) -> Option<BlockId> {
        None
    }

    /// It has another shape from its next opening on: the core is to be stopped, and made anew over that.
    fn is_outgrown(&self) -> bool {
        false
    }

    /// The core has stopped: begins to open what is below anew.
    fn reopen(&mut self, _now: Instant) {}

    /// What the next core is mounted with, once what is below was opened anew. Told once.
    fn reopened(&mut self) -> Option<CoreSettings> {
        None
    }

    /// The next core cannot be had, for this reason.
    fn unmounted(&mut self, _reason: &str) {}

    /// The core writes nothing any more. True if it is of no use then: it is to end, as the next one recovers.
    fn ends_failed(&mut self) -> bool {
        false
    }

    /// What it waits for, in words, if it knows.
    fn explain(&self) -> String {
        String::new()
    }

    /// If too little of what is below can be reached to write anything: what, and why not. A stop that waits for it does so in
    /// vain.
    fn cut_off(&self) -> Option<String> {
        None
    }

    /// The file for which there was no room when something was refused last, if that is known.
    fn full_file(&self) -> Option<&Path> {
        None
    }

    /// Whether something that was read could not be, wherever it lies.
    fn lost_slots(&self) -> bool {
        false
    }

    /// The FTL has written so many whole checkpoints.
    fn checkpoints(&mut self, _now: Instant, _count: u64) {}

    /// The core has stopped: gives back what others wait for. `now` tells the time.
    fn end(&mut self, _now: &mut dyn FnMut() -> Instant, _ring: &mut Ring) {}

    /// So many slots will be read soon: a wish that may be granted ahead, and that changes nothing.
    fn will_read(&self, _first: SlotId, _slots: u32) {}

    /// A mount begins.
    fn begin_mount(&mut self) {}

    /// The mount has ended; what kept memory did for it.
    fn end_mount(&mut self) -> KeptCounts {
        KeptCounts::default()
    }

    /// Emulates the loss of a tier: its units stop answering at `at`.
    fn lose(&mut self, _at: Instant, _fast: bool) {}

    /// Things go wrong from now on, as a test wants it; this is shard number `shard`.
    fn inject(&mut self, _injections: Injections, _shard: usize) {}

    /// Lets go of the fast units, which hold nothing any more and are not addressed again.
    fn drop_fast(&mut self) {}

    /// Programs of emulated flash that failed.
    #[cfg(test)]
    fn program_failures(&self) -> u64 {
        0
    }
}
