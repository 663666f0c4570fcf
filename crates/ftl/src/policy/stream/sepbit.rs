//! SepBIT (FAST'22): blocks by the time at which they will probably be invalidated.

use super::params::Params;
use super::{Handles, MoveView, Origin, StreamPolicy, WriteView};

/// A block whose predecessor lived shorter than ℓ goes to class 0, any other to class 1. What GC
/// moves from class 0 goes to class 2; the rest by its age, below 4 ℓ, below 16 ℓ and above, to 3,
/// 4 and 5. ℓ is the mean lifetime of the last 16 bands of class 0.
///
/// The published design remembers the recent writes in a queue with a map. Here the age of what is
/// overwritten comes from the band that it lies in ([`WriteView::age`]), and the age of what moves
/// from the sequence that lies beside it on flash: no table at all. The price: the first is the mean
/// of a band. A band of class 0 is filled in a small part of ℓ, and what GC has moved is older than ℓ
/// as a rule, so few blocks come out on the other side of ℓ.
pub struct SepBit {
    near: u64,
    far: u64,
    /// Lifetimes of the last bands of class 0, the oldest at `next`.
    lifetimes: Vec<u64>,
    window: usize,
    next: usize,
    /// ℓ
    threshold: u64,
}

/// Host classes 0 and 1.
const HOST: u8 = 2;
/// Classes 2 to 5.
const MOVED: u8 = 4;

impl SepBit {
    pub(super) fn new(params: &mut Params<'_>) -> Result<Self, String> {
        let window = params.number("window", (1, 1024), 16)? as usize;
        let near = params.number("near", (1, 1 << 20), 4)?;
        let far = params.number("far", (near, 1 << 20), 16.max(near))?;
        let lifetimes = Vec::with_capacity(window);
        Ok(Self { near, far, lifetimes, window, next: 0, threshold: u64::MAX })
    }
}

impl StreamPolicy for SepBit {
    fn name(&self) -> &'static str {
        "sepbit"
    }

    fn handles(&self) -> Handles {
        Handles { host: HOST, moved: MOVED }
    }

    fn uses_age(&self) -> bool {
        true
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let short = write.age.is_some_and(|age| age < self.threshold);
        u8::from(!short).min(write.handles.host - 1)
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        let class = match moved.from {
            Origin::Host(0) => 0,
            _ if moved.age < self.threshold.saturating_mul(self.near) => 1,
            _ if moved.age < self.threshold.saturating_mul(self.far) => 2,
            _ => 3,
        };
        class.min(moved.handles.moved - 1)
    }

    fn reclaimed(&mut self, from: Origin, lifetime: u64) {
        if from != Origin::Host(0) {
            return;
        }
        if self.lifetimes.len() < self.window {
            self.lifetimes.push(lifetime);
        } else {
            self.lifetimes[self.next] = lifetime;
            self.next = (self.next + 1) % self.window;
        }
        if self.lifetimes.len() == self.window {
            self.threshold = self.lifetimes.iter().sum::<u64>() / self.window as u64;
        }
    }

    fn memory_bytes(&self) -> u64 {
        (self.lifetimes.capacity() * size_of::<u64>()) as u64
    }
}
