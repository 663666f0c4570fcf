//! Why a device programmed what it did: the write amplification of a replay, by reason; and how long its
//! flash lasts under that.

use crate::target::{Target, TargetCounts};
use flash::BLOCK_BYTES;

/// What a device has programmed since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Programmed {
    counts: TargetCounts,
    upkeep: u64,
    padded: u64,
    checkpointed: u64,
}

/// Slots programmed by slots written for the host, by reason; their sum is the write amplification.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByReason {
    /// What the host wrote: 1, or less where a part of it never came to the flash in the time that is looked at.
    pub host: f64,
    /// Valid data that GC moved to have space.
    pub gc: f64,
    /// Valid data in bands that wear levelling and refresh emptied.
    pub upkeep: f64,
    /// What fills pages that flushes, FUA or a wait close before they are full.
    pub padding: f64,
    /// The map and what else recovery needs.
    pub checkpoints: f64,
    /// The rest: what was appended anew after a failure, say.
    pub other: f64,
}

impl Programmed {
    /// As it is now.
    pub fn of(target: &dyn Target) -> Self {
        let bytes = |name| target.counter(name) * BLOCK_BYTES as u64;
        Self {
            counts: target.counts(),
            upkeep: bytes("slots_upkeep"),
            padded: bytes("slots_padded"),
            checkpointed: bytes("slots_checkpointed"),
        }
    }

    /// Write amplification by reason since `before`; `None` if the host wrote nothing.
    pub fn since(&self, before: &Self) -> Option<ByReason> {
        let counts = self.counts.since(&before.counts);
        if counts.bytes_written == 0 {
            return None;
        }
        let host = counts.bytes_written as f64;
        let share = |bytes: u64| bytes as f64 / host;
        let relocated = share(counts.bytes_relocated);
        // Of what was valid when a band was taken some may have been overwritten before it was moved.
        let upkeep = share(self.upkeep - before.upkeep).min(relocated);
        let padding = share(self.padded - before.padded);
        let checkpoints = share(self.checkpointed - before.checkpointed);
        let all = share(counts.bytes_programmed);
        let host = (all - relocated - padding - checkpoints).clamp(0.0, 1.0);
        Some(ByReason {
            host,
            gc: relocated - upkeep,
            upkeep,
            padding,
            checkpoints,
            other: (all - host - relocated - padding - checkpoints).max(0.0),
        })
    }
}

impl ByReason {
    /// Names for people, and for JSON, with the values.
    pub fn parts(&self) -> [(&'static str, &'static str, f64); 6] {
        [
            ("host", "host", self.host),
            ("GC", "gc", self.gc),
            ("wear levelling and refresh", "upkeep", self.upkeep),
            ("padding", "padding", self.padding),
            ("checkpoints", "checkpoints", self.checkpoints),
            ("other", "other", self.other),
        ]
    }

    /// In words, without what is nothing.
    pub fn text(&self) -> String {
        let some = self.parts().into_iter().filter(|(.., value)| *value >= 0.0005);
        let some = some.map(|(name, _, value)| format!("{name} {value:.3}"));
        some.collect::<Vec<_>>().join(", ")
    }
}

/// A drive whose flash wears.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wearing {
    /// Bytes of flash.
    pub flash_bytes: u64,
    /// Bytes that it offers.
    pub offered_bytes: u64,
    /// Erases of a block that the flash is made for.
    pub endurance: u32,
    /// Write amplification.
    pub waf: f64,
}

const YEAR_DAYS: f64 = 365.25;
const DAY_S: f64 = 86400.0;

impl Wearing {
    /// Bytes that a host can write until every block has had its erases.
    pub fn bytes_written_max(&self) -> f64 {
        f64::from(self.endurance) * self.flash_bytes as f64 / self.waf.max(f64::MIN_POSITIVE)
    }

    /// How often a day it can be written over if it shall last for so many years.
    pub fn writes_per_day(&self, years: f64) -> f64 {
        self.bytes_written_max() / (self.offered_bytes.max(1) as f64 * years * YEAR_DAYS)
    }

    /// How often a day it is written over by so many bytes a second.
    pub fn asked_per_day(&self, bytes_per_s: f64) -> f64 {
        bytes_per_s * DAY_S / self.offered_bytes.max(1) as f64
    }

    /// How many years it lasts under so many bytes a second.
    pub fn years(&self, bytes_per_s: f64) -> f64 {
        self.bytes_written_max() / (bytes_per_s * DAY_S * YEAR_DAYS).max(f64::MIN_POSITIVE)
    }
}

/// How much longer than asked a device may take that still keeps up, and
const BEHIND_MAX: f64 = 1.02;
/// how much time beyond that.
const BEHIND_NS: f64 = 100e6;

/// The longest that a device may take for what should take `wanted_ns`, if it keeps up.
pub fn behind_after_ns(wanted_ns: f64) -> u64 {
    (wanted_ns * BEHIND_MAX + BEHIND_NS) as u64
}

/// The headline of a drive that takes so many times as long as it should.
pub fn overloaded(times: f64) -> String {
    // Upwards: with a hundredth less it could not. One that took longer in the end only needs a little more, too.
    let drives = (libm::ceil(times * 10.0) / 10.0).max(1.1);
    format!(
        "this drive cannot carry this trace; it needs {drives:.1} of them; latencies are left out"
    )
}

/// A wait from which on a drive is told to have fallen behind for a while.
const FALLEN_BEHIND_NS: u64 = 1_000_000_000;

/// The headline of a drive that keeps up on the whole, but not always.
pub fn fell_behind(longest_ns: u64) -> Option<String> {
    (longest_ns >= FALLEN_BEHIND_NS).then(|| {
        let seconds = longest_ns as f64 / 1e9;
        format!(
            "this drive carries this trace on average, but falls behind for a while: at worst a request waits {seconds:.1} s"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{ByReason, Wearing, behind_after_ns, fell_behind, overloaded};

    #[test]
    fn endurance_is_of_the_flash_and_what_is_asked_of_what_is_offered() {
        let drive = Wearing {
            flash_bytes: 1_200_000_000_000,
            offered_bytes: 1_000_000_000_000,
            endurance: 3000,
            waf: 2.0,
        };
        // 1.2 TB, 3000 times, half of it the host's: 1.8 PB.
        assert_eq!(drive.bytes_written_max(), 1.8e15);
        assert!((drive.writes_per_day(5.0) - 1800.0 / (5.0 * 365.25)).abs() < 1e-9);
        assert!((drive.asked_per_day(1e12 / 86400.0) - 1.0).abs() < 1e-9);
        assert!((drive.years(1e12 / 86400.0) - 1800.0 / 365.25).abs() < 1e-9);
    }

    #[test]
    fn an_overloaded_drive_is_told_with_how_many_would_do() {
        assert!(overloaded(3.02).contains("it needs 3.1 of them"));
        assert!(overloaded(0.99).contains("it needs 1.1 of them"));
        assert!(fell_behind(2_000_000_000).is_some_and(|text| text.ends_with("waits 2.0 s")));
        assert_eq!(fell_behind(900_000_000), None);
        assert_eq!(behind_after_ns(1e9), 1_120_000_000);
    }

    #[test]
    fn reasons_that_are_nothing_are_left_out() {
        let by = ByReason { host: 1.0, gc: 0.5, padding: 0.0001, ..ByReason::default() };
        assert_eq!(by.text(), "host 1.000, GC 0.500");
    }
}
