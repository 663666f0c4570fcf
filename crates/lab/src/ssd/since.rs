//! A target whose time begins later than the client's: formatting a device takes virtual time, and
//! who uses it wants to begin at 0.

use crate::driver::Failure;
use crate::target::{Done, Io, Target, TargetCounts};
use flash::Instant;

/// `target`, seen by a clock that shows 0 when the target's own shows `origin`.
pub struct Since<T> {
    target: T,
    origin: Instant,
}

impl<T: Target> Since<T> {
    /// Nothing was asked of `target` after `origin`.
    pub fn new(target: T, origin: Instant) -> Self {
        Self { target, origin }
    }

    fn inside(&self, outside: Instant) -> Instant {
        outside + self.origin.0
    }

    fn outside(&self, inside: Instant) -> Instant {
        Instant(inside - self.origin)
    }
}

impl<T: Target> Target for Since<T> {
    fn bytes(&self) -> u64 {
        self.target.bytes()
    }
    fn lanes(&self) -> u32 {
        self.target.lanes()
    }
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.target.submit(self.inside(now), token, io)
    }
    fn deadline(&self) -> Option<Instant> {
        self.target.deadline().map(|at| self.outside(at))
    }
    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        self.target.advance(self.inside(now))
    }
    fn take_done(&mut self) -> Option<Done> {
        let done = self.target.take_done()?;
        Some(Done { at: self.outside(done.at), ..done })
    }
    fn counts(&self) -> TargetCounts {
        self.target.counts()
    }
    fn queue_at(&self, offset: u64) -> u32 {
        self.target.queue_at(offset)
    }
}
