//! A stream detector in the host's driver, before a drive that takes streams: AutoStream. The same
//! [`StreamPolicy`] that places data in the host FTL classifies each write command, by one look at
//! its first block, and its answer goes along as the command's placement identifier.
//!
//! What a driver does not see, the policy does not learn: which bands the drive reclaims, and what
//! its GC moves. SFR and Multi-Q need neither. SepBIT's lifetime of class 0 stays unknown, so that it
//! tells first writes from overwrites, and no more. Time is the number of blocks written; the age of
//! what is overwritten is kept exactly, for a policy that wants it.

use super::{FdpStatistics, Placement};
use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Rules, Target, TargetCounts};
use flash::{BLOCK_BYTES, Hint, Instant};
use ftl::policy::stream::{self, Handles, Shape, StreamPolicy, WriteView};

/// See the head of this file.
pub struct Detector<T> {
    drive: T,
    placement: Placement,
    policy: Box<dyn StreamPolicy>,
    handles: Handles,
    /// Blocks written so far.
    now: u64,
    /// When each block was written, from 1, if the policy looks at ages.
    written_at: Vec<u64>,
}

impl<T: Target> Detector<T> {
    /// Puts the stream policy of this name before `drive`. `Err` if there is none of that name, or
    /// the drive takes no streams.
    pub fn new(drive: T, stream: &str) -> Result<Self, String> {
        let placement = drive.placement().ok_or_else(|| {
            format!("streams = {stream:?}: the drive takes none; give it [placement] handles = 8")
        })?;
        let blocks = u32::try_from(drive.bytes() / BLOCK_BYTES as u64).unwrap_or(u32::MAX);
        let policy = stream::by_name(stream, Shape { blocks, handles: placement.handles })?;
        let handles = Handles { host: policy.handles().host.min(placement.handles), moved: 1 };
        let written_at = if policy.uses_age() { vec![0; blocks as usize] } else { Vec::new() };
        Ok(Self { drive, placement, policy, handles, now: 0, written_at })
    }

    /// The identifier of a write. The policy hears of every block: it counts, and knows where a
    /// sequential write would go on.
    fn identifier(&mut self, io: &Io) -> u8 {
        let first = (io.offset / BLOCK_BYTES as u64) as u32;
        let end = (io.offset + io.bytes).div_ceil(BLOCK_BYTES as u64) as u32;
        let mut stream = 0;
        for lba in first..end {
            self.now += 1;
            let written = self.written_at.get_mut(lba as usize);
            let before = written.map_or(0, |at| std::mem::replace(at, self.now));
            let view = WriteView {
                lba,
                continues: lba > first,
                hint: io.hint,
                now: self.now,
                age: (before > 0).then(|| self.now - before),
                handles: self.handles,
            };
            let answer = self.policy.place_write(&view);
            if lba == first {
                stream = if answer < self.handles.host { answer } else { 0 };
            }
        }
        stream + self.placement.base()
    }

    fn trim(&mut self, io: &Io) {
        let first = (io.offset / BLOCK_BYTES as u64) as u32;
        let end = (io.offset + io.bytes).div_ceil(BLOCK_BYTES as u64) as u32;
        self.policy.trimmed(first, end - first);
        for lba in first as usize..(end as usize).min(self.written_at.len()) {
            self.written_at[lba] = 0;
        }
    }
}

impl<T: Target> Target for Detector<T> {
    fn bytes(&self) -> u64 {
        self.drive.bytes()
    }

    fn flash_bytes(&self) -> u64 {
        self.drive.flash_bytes()
    }

    fn rules(&self) -> Rules {
        self.drive.rules()
    }

    fn lanes(&self) -> u32 {
        self.drive.lanes()
    }

    fn now(&self) -> Instant {
        self.drive.now()
    }

    fn foresee(&self, ios: &[Io]) {
        self.drive.foresee(ios);
    }

    fn submit(&mut self, now: Instant, token: u64, mut io: Io) -> Result<(), Failure> {
        let fits = io.offset.checked_add(io.bytes).is_some_and(|end| end <= self.bytes());
        match io.kind {
            IoKind::Write if fits => {
                io.hint = Hint { handle: self.identifier(&io), ..Hint::default() };
            }
            IoKind::Erase if fits => self.trim(&io),
            _ => {}
        }
        self.drive.submit(now, token, io)
    }

    fn deadline(&self) -> Option<Instant> {
        self.drive.deadline()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.drive.advance(now)
    }

    fn take_done(&mut self) -> Option<Done> {
        self.drive.take_done()
    }

    fn counts(&self) -> TargetCounts {
        self.drive.counts()
    }

    fn counter(&self, name: &str) -> u64 {
        match name {
            "detector_bytes" => self.policy.memory_bytes(),
            _ => self.drive.counter(name),
        }
    }

    fn erase_count_max(&self) -> u32 {
        self.drive.erase_count_max()
    }

    fn queue_at(&self, offset: u64) -> u32 {
        self.drive.queue_at(offset)
    }

    fn placement(&self) -> Option<Placement> {
        Some(self.placement)
    }

    fn fdp(&self) -> Option<FdpStatistics> {
        self.drive.fdp()
    }
}
