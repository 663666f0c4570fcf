//! What a client of the lab sees of a device: bytes in, bytes out, and when. The FTL on raw flash,
//! raw units, and a conventional SSD (the same FTL as firmware behind a link) are all targets, so one
//! workload runs on each and is measured the same way.
//!
//! Invariants:
//! - Time never goes back: `now` of every call is at least that of the last.
//! - Every submitted I/O ends exactly once, within [`Target::advance`] or [`Target::submit`].
//! - The same calls give the same ends at the same instants, to the bit.

use crate::driver::{Failure, Sim};
use crate::medium::{Medium, SimMedium};
use crate::ssd::{FdpStatistics, Placement};
use flash::{BLOCK_BYTES, Hint, Instant, Lba, RequestError};
use ftl::raw::{RawUnits, WriteUnit};
use ftl::{Core, Ftl};
use std::collections::VecDeque;

/// What an I/O does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IoKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Trims; on raw units, erases.
    Erase,
    /// Makes durable what was acknowledged; offset and size are 0.
    Flush,
}

/// One I/O of a client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Io {
    /// What it does.
    pub kind: IoKind,
    /// First byte.
    pub offset: u64,
    /// Bytes. A target moves whole blocks: it widens an I/O that is not.
    pub bytes: u64,
    /// What the client knows about the data.
    pub hint: Hint,
}

impl Io {
    /// Whether it names bytes, and only such as a target of so many has; a flush names none.
    pub fn is_within(&self, bytes: u64) -> bool {
        let empty = self.bytes == 0 && self.kind != IoKind::Flush;
        !empty && self.offset.checked_add(self.bytes).is_some_and(|end| end <= bytes)
    }
}

/// The end of an I/O.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Done {
    /// What the client gave at submission.
    pub token: u64,
    /// Done, or why not.
    pub result: Result<(), RequestError>,
    /// When.
    pub at: Instant,
}

/// What a target did since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TargetCounts {
    /// Bytes that clients wrote to the flash translation layer.
    pub bytes_written: u64,
    /// Bytes programmed, into either tier.
    pub bytes_programmed: u64,
    /// Of those, into a fast tier.
    pub bytes_programmed_fast: u64,
    /// Bytes of those that GC, wear moves or a scrub copied.
    pub bytes_relocated: u64,
    /// Blocks of flash erased.
    pub erases: u64,
    /// Programs and erases suspended for a read.
    pub suspensions: u64,
}

impl TargetCounts {
    /// What was done since `before` was taken.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            bytes_written: self.bytes_written - before.bytes_written,
            bytes_programmed: self.bytes_programmed - before.bytes_programmed,
            bytes_programmed_fast: self.bytes_programmed_fast - before.bytes_programmed_fast,
            bytes_relocated: self.bytes_relocated - before.bytes_relocated,
            erases: self.erases - before.erases,
            suspensions: self.suspensions - before.suspensions,
        }
    }

    /// Bytes programmed for any reason, by bytes written; by one where nothing was written.
    pub fn waf(&self) -> f64 {
        self.bytes_programmed as f64 / self.bytes_written.max(1) as f64
    }
}

/// How the I/Os of clients have to lie. A target of blocks widens what does not; raw units refuse it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rules {
    /// Reads begin and end at multiples of this.
    pub read_bytes: u64,
    /// Writes, likewise.
    pub write_bytes: u64,
    /// Erases, likewise, and a place is erased before it is written again. 0: nobody has to erase.
    pub erase_bytes: u64,
}

impl Default for Rules {
    fn default() -> Self {
        let block = BLOCK_BYTES as u64;
        Self { read_bytes: block, write_bytes: block, erase_bytes: 0 }
    }
}

/// See the head of this file.
pub trait Target {
    /// Bytes that clients may address.
    fn bytes(&self) -> u64;
    /// Bytes of all its flash, bad blocks included.
    fn flash_bytes(&self) -> u64;
    /// How I/Os have to lie.
    fn rules(&self) -> Rules {
        Rules::default()
    }
    /// Equal parts of the address space that are lanes of their own; 1 unless the target shows its
    /// units.
    fn lanes(&self) -> u32 {
        1
    }
    /// How far its time has come: the least `now` it takes.
    fn now(&self) -> Instant;
    /// These I/Os are about to come: what they will need may be brought into the processor's cache,
    /// all at once, where each by itself would wait for memory. Changes nothing else.
    fn foresee(&self, _ios: &[Io]) {}
    /// Takes an I/O.
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure>;
    /// When something happens next, if nobody submits; `None` if never.
    fn deadline(&self) -> Option<Instant>;
    /// Everything that is due by `now` happens.
    fn advance(&mut self, now: Instant) -> Result<(), Failure>;
    /// The next I/O that has ended, in the order of the ends.
    fn take_done(&mut self) -> Option<Done>;
    /// What it did so far.
    fn counts(&self) -> TargetCounts;
    /// One counter of what owns the flash, by its name; 0 if it has none of that name. Of several
    /// devices their sum.
    fn counter(&self, name: &str) -> u64;
    /// Erases of the block that was erased most.
    fn erase_count_max(&self) -> u32;
    /// I/Os waiting for or running on the lane (unit, die or disk) that serves a read of `offset`
    /// now: what TSSD shows its applications.
    fn queue_at(&self, offset: u64) -> u32;
    /// What the identifiers of its write commands mean; `None` if it has no use for them.
    fn placement(&self) -> Option<Placement> {
        None
    }
    /// The statistics of an FDP drive.
    fn fdp(&self) -> Option<FdpStatistics> {
        None
    }

    /// How many reads and writes a second together no plan of a pool could exceed, in this proportion and at this
    /// write amplification; `None` if it is no pool.
    fn bound(&self, _reads: f64, _writes: f64, _waf: f64) -> Option<f64> {
        None
    }
}

/// The FTL on its medium, as a [`Target`].
pub struct SimTarget<C: Core = Ftl, M: Medium = SimMedium> {
    sim: Sim<C, M>,
    /// By index: I/Os in flight; a request's token is the index of its I/O.
    open: Vec<Open>,
    open_free: Vec<u32>,
    done: VecDeque<Done>,
    rules: Rules,
    /// Memory of a write's stamps: the addresses, see `packed`.
    stamps: Vec<u64>,
}

/// An I/O, which may be several requests.
#[derive(Clone, Copy, Debug)]
struct Open {
    token: u64,
    requests_left: u32,
    result: Result<(), RequestError>,
}

/// Raw units on their medium: lane `k` begins at `k` times the bytes of a lane, an erase is a trim of
/// whole raw blocks, and of an I/O over several raw blocks each is a request.
pub type RawTarget = SimTarget<RawUnits>;

impl<M: Medium> SimTarget<Ftl, M> {
    /// `sim` is ready: it was formatted or mounted.
    pub fn new(sim: Sim<Ftl, M>) -> Self {
        Self::with_rules(sim, Rules::default())
    }
}

impl RawTarget {
    /// `sim` is ready: it was formatted or mounted.
    pub fn raw(sim: Sim<RawUnits>) -> Self {
        let (settings, block) = (sim.settings(), BLOCK_BYTES as u64);
        let raw_block = u64::from(sim.ftl().lanes().slots) * block;
        let rules = Rules {
            read_bytes: u64::from(settings.read_granule) * block,
            write_bytes: match settings.write {
                WriteUnit::Block => raw_block,
                WriteUnit::Page => u64::from(sim.medium().geometry().slots_per_page) * block,
            },
            erase_bytes: raw_block,
        };
        Self::with_rules(sim, rules)
    }
}

impl<C: Core, M: Medium> SimTarget<C, M> {
    fn with_rules(sim: Sim<C, M>, rules: Rules) -> Self {
        Self {
            sim,
            open: Vec::new(),
            open_free: Vec::new(),
            done: VecDeque::new(),
            rules,
            stamps: Vec::new(),
        }
    }

    /// The FTL and its medium.
    pub fn sim(&self) -> &Sim<C, M> {
        &self.sim
    }

    /// The FTL and its medium, for a shutdown.
    pub fn into_sim(self) -> Sim<C, M> {
        self.sim
    }

    /// The FTL and its medium, for a policy switch.
    pub fn sim_mut(&mut self) -> &mut Sim<C, M> {
        &mut self.sim
    }

    fn open(&mut self, token: u64, requests: u32) -> u64 {
        let open = Open { token, requests_left: requests, result: Ok(()) };
        let index = self.open_free.pop().unwrap_or_else(|| {
            self.open.push(open);
            (self.open.len() - 1) as u32
        });
        self.open[index as usize] = open;
        u64::from(index)
    }

    fn write(&mut self, token: u64, lba: u32, blocks: u32, hint: Hint) {
        self.stamps.clear();
        self.stamps.extend(u64::from(lba)..u64::from(lba) + u64::from(blocks));
        self.sim.write(token, lba, &self.stamps, (false, false), hint);
    }

    fn collect(&mut self) {
        while let Some(finished) = self.sim.take_finished() {
            let index = finished.token as usize;
            let open = &mut self.open[index];
            open.requests_left -= 1;
            open.result = open.result.and(finished.result);
            if open.requests_left == 0 {
                let Open { token, result, .. } = *open;
                self.done.push_back(Done { token, result, at: finished.finished });
                self.open_free.push(index as u32);
            }
            self.sim.release(finished);
        }
    }
}

/// Blocks of an I/O that are looked at ahead; the rest lies behind them more often than not.
const FORESEEN_BLOCKS_MAX: u32 = 4;

/// The whole blocks that `io` touches: the first and how many.
fn whole_blocks(io: &Io) -> (u32, u32) {
    let first = io.offset / BLOCK_BYTES as u64;
    let end = (io.offset + io.bytes).div_ceil(BLOCK_BYTES as u64);
    (first as u32, (end - first) as u32)
}

impl<C: Core, M: Medium> Target for SimTarget<C, M> {
    fn bytes(&self) -> u64 {
        self.sim.ftl().counter("logical_blocks") * BLOCK_BYTES as u64
    }

    fn flash_bytes(&self) -> u64 {
        self.sim.medium().geometry().slots() * BLOCK_BYTES as u64
    }

    fn rules(&self) -> Rules {
        self.rules
    }

    fn lanes(&self) -> u32 {
        self.sim.ftl().lane_count()
    }

    fn now(&self) -> Instant {
        self.sim.now()
    }

    fn foresee(&self, ios: &[Io]) {
        // The map of all first: where a block lies is known from there.
        for io in ios {
            std::hint::black_box(self.sim.ftl().slot_of(Lba(whole_blocks(io).0)));
        }
        for io in ios.iter().filter(|io| io.kind == IoKind::Read) {
            let (first, blocks) = whole_blocks(io);
            let end = first.saturating_add(blocks.min(FORESEEN_BLOCKS_MAX));
            (first..end).for_each(|lba| self.sim.warm(lba));
        }
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        let (first, blocks) = whole_blocks(&io);
        if io.kind == IoKind::Flush {
            let open = self.open(token, 1);
            self.sim.flush(open);
            return self.advance(now);
        }
        let most = self.sim.request_blocks_max();
        let open = self.open(token, blocks.div_ceil(most));
        for lba in (first..first + blocks).step_by(most as usize) {
            let count = most.min(first + blocks - lba);
            match io.kind {
                IoKind::Read => self.sim.read(open, lba, count),
                IoKind::Write => self.write(open, lba, count, io.hint),
                IoKind::Erase => self.sim.trim(open, lba, count, false),
                IoKind::Flush => unreachable!("handled above"),
            }
        }
        self.advance(now)
    }

    fn deadline(&self) -> Option<Instant> {
        self.sim.deadline()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.sim.run_until_idle(now)?;
        self.collect();
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn counts(&self) -> TargetCounts {
        let (ftl, done) = (self.sim.ftl(), self.sim.medium().done());
        TargetCounts {
            bytes_written: ftl.counter("host_blocks_written") * BLOCK_BYTES as u64,
            bytes_programmed: done.slots_programmed * BLOCK_BYTES as u64,
            bytes_programmed_fast: ftl.counter("fast_slots_programmed") * BLOCK_BYTES as u64,
            bytes_relocated: ftl.counter("slots_relocated") * BLOCK_BYTES as u64,
            erases: done.erases,
            suspensions: self.sim.medium().suspensions(),
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.sim.ftl().counter(name)
    }

    fn erase_count_max(&self) -> u32 {
        self.sim.medium().health().erase_counts.into_iter().max().unwrap_or(0)
    }

    fn queue_at(&self, offset: u64) -> u32 {
        self.sim.ftl().queue_at(Lba((offset / BLOCK_BYTES as u64) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::{Io, IoKind, SimTarget, Target, whole_blocks};
    use crate::device::nand_of;
    use crate::driver::Sim;
    use flash::{Hint, Instant};
    use ftl::{FormatOptions, Settings};
    use nand::{Faults, Layout};

    fn io(kind: IoKind, offset: u64, bytes: u64) -> Io {
        Io { kind, offset, bytes, hint: Hint::default() }
    }

    fn target() -> SimTarget {
        let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 16 };
        let medium = nand_of("mlc-25nm", &layout, Faults::default(), |_| {}).expect("built-in");
        let options = FormatOptions { logical_blocks: 8192, uuid: 1, label: Vec::new() };
        let mut sim =
            Sim::format(medium, options, Settings::default(), Instant(0)).expect("fits the medium");
        sim.run_until_ready().expect("formats");
        SimTarget::new(sim)
    }

    #[test]
    fn an_io_is_widened_to_whole_blocks() {
        assert_eq!(whole_blocks(&io(IoKind::Read, 4095, 2)), (0, 2));
        assert_eq!(whole_blocks(&io(IoKind::Read, 8192, 147)), (2, 1));
    }

    #[test]
    fn foreseeing_changes_nothing_even_what_never_comes_or_lies_beyond_the_device() {
        let run = |foresees: bool| {
            let mut target = target();
            for token in 0..200 {
                let kind = if token % 3 == 0 { IoKind::Write } else { IoKind::Read };
                let io = io(kind, token * 7 % 60 * 8192, 8192);
                if foresees {
                    let beyond = Io { offset: 1 << 45, ..io };
                    target.foresee(&[io, beyond, Io { kind: IoKind::Read, ..beyond }]);
                }
                target.submit(target.now(), token, io).expect("takes it");
                let next = target.deadline().expect("something is in flight");
                target.advance(next).expect("no failure");
            }
            (target.now(), target.sim().trace_hash())
        };
        assert_eq!(run(true), run(false));
    }

    #[test]
    fn every_io_ends_once_and_a_large_one_as_a_whole() {
        let mut target = target();
        let start = target.sim().now();
        target.submit(start, 7, io(IoKind::Write, 0, 8 << 20)).expect("takes it");
        target.submit(start, 8, io(IoKind::Read, 0, 4096)).expect("takes it");
        target.submit(start, 9, io(IoKind::Flush, 0, 0)).expect("takes it");
        let mut tokens = Vec::new();
        while tokens.len() < 3 {
            let next = target.deadline().expect("something is in flight");
            target.advance(next).expect("no failure");
            while let Some(done) = target.take_done() {
                assert_eq!(done.result, Ok(()));
                assert!(done.at <= next);
                tokens.push(done.token);
            }
        }
        tokens.sort_unstable();
        assert_eq!(tokens, [7, 8, 9]);
        assert_eq!(target.counts().bytes_written, 8 << 20);
    }
}
