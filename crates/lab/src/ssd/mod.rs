//! What stands between a client and flash, as [`Target`]s around other targets: [`Front`] is the
//! link, the firmware and the DRAM cache of a drive, [`Indirection`] a map coarser than a block, [`Array`] several drives as one, [`Detector`]
//! what a host driver puts before a drive that takes streams. A conventional SSD is a [`Front`]
//! around our own FTL; so are a multi-stream and an FDP SSD, which listen to [`Placement`].

mod array;
mod cache;
mod config;
mod detector;
mod front;
mod indirection;
mod placement;
pub(crate) mod serial;

pub use array::Array;
pub use config::{Cache, Firmware, FrontConfig, Link};
pub use detector::Detector;
pub use front::Front;
pub use indirection::{Indirection, IndirectionConfig};
pub use placement::{FdpStatistics, Interface, Placement};

use crate::driver::Failure;
use crate::target::{Done, Io, Rules, Target, TargetCounts};
use flash::Instant;

impl<T: Target + ?Sized> Target for Box<T> {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }
    fn flash_bytes(&self) -> u64 {
        (**self).flash_bytes()
    }
    fn rules(&self) -> Rules {
        (**self).rules()
    }
    fn lanes(&self) -> u32 {
        (**self).lanes()
    }
    fn now(&self) -> Instant {
        (**self).now()
    }
    fn foresee(&self, ios: &[Io]) {
        (**self).foresee(ios);
    }
    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        (**self).submit(now, token, io)
    }
    fn deadline(&self) -> Option<Instant> {
        (**self).deadline()
    }
    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        (**self).advance(now)
    }
    fn take_done(&mut self) -> Option<Done> {
        (**self).take_done()
    }
    fn counts(&self) -> TargetCounts {
        (**self).counts()
    }
    fn counter(&self, name: &str) -> u64 {
        (**self).counter(name)
    }
    fn erase_count_max(&self) -> u32 {
        (**self).erase_count_max()
    }
    fn queue_at(&self, offset: u64) -> u32 {
        (**self).queue_at(offset)
    }
    fn placement(&self) -> Option<Placement> {
        (**self).placement()
    }
    fn fdp(&self) -> Option<FdpStatistics> {
        (**self).fdp()
    }

    fn bound(&self, reads: f64, writes: f64, waf: f64) -> Option<f64> {
        (**self).bound(reads, writes, waf)
    }
}

#[cfg(test)]
mod tests;
