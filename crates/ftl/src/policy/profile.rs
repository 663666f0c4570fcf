//! Profiles: sets of policies for a kind of load. `auto` tells the kind from what the host does, and
//! changes its mind only when the load has clearly changed: each bound has two values, one to come and
//! one to leave, and two windows in a row must agree.

use super::{plain, split, unknown};

/// Names of the profiles; `none` leaves every decision to the policy that was named for it.
pub const PROFILES: &[&str] = &["none", "auto", "read-mostly", "mixed", "small-writes"];

/// Requests of a window below which it says nothing.
const REQUESTS_MIN: u64 = 1000;

/// Reads of 100 requests from which a load is read-mostly.
const READ_MOSTLY_PERCENT: u64 = 80;

/// Reads of 100 requests up to which a load of small writes is one.
const SMALL_WRITES_READS_PERCENT: u64 = 50;

/// Blocks of a write, on average, up to which it is small: 16 KiB.
const SMALL_WRITE_BLOCKS: u64 = 4;

/// How far a load may go beyond a bound before it is left: percent of the requests, and blocks.
const MARGIN_PERCENT: u64 = 10;
const MARGIN_BLOCKS: u64 = 4;

/// A kind of load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Load {
    /// Nearly all requests are reads: what counts is that they wait for nothing.
    ReadMostly,
    /// Neither of the others.
    Mixed,
    /// Mostly writes, and small ones: what counts is what GC costs them.
    SmallWrites,
}

/// What the host asked for in a window.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Seen {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Blocks of the writes.
    pub blocks_written: u64,
}

/// A profile in force.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Profile {
    automatic: bool,
    load: Option<Load>,
    /// What the last window said, if that was something else.
    candidate: Option<Load>,
}

impl Load {
    /// Its name as a profile.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadMostly => "read-mostly",
            Self::Mixed => "mixed",
            Self::SmallWrites => "small-writes",
        }
    }

    /// Decisions and policies that serve it; measured by the experiment `profiles`.
    pub fn policies(self) -> [(&'static str, &'static str); 3] {
        match self {
            Self::ReadMostly => {
                [("victim", "greedy"), ("erase", "read-first"), ("unit", "weighted-queue")]
            }
            Self::Mixed => {
                [("victim", "cost-benefit"), ("erase", "read-first"), ("unit", "weighted-queue")]
            }
            Self::SmallWrites => {
                [("victim", "cost-benefit"), ("erase", "idle"), ("unit", "shortest-queue")]
            }
        }
    }

    /// The kind of what was seen, where `current` is left only if it is left clearly.
    fn of(seen: &Seen, current: Option<Self>) -> Self {
        let margin = |load, margin| if current == Some(load) { margin } else { 0 };
        let reads_percent = 100 * seen.reads / (seen.reads + seen.writes).max(1);
        if reads_percent + margin(Self::ReadMostly, MARGIN_PERCENT) >= READ_MOSTLY_PERCENT {
            return Self::ReadMostly;
        }
        let reads_most = SMALL_WRITES_READS_PERCENT + margin(Self::SmallWrites, MARGIN_PERCENT);
        let blocks_most = SMALL_WRITE_BLOCKS + margin(Self::SmallWrites, MARGIN_BLOCKS);
        let small = seen.blocks_written <= blocks_most * seen.writes;
        if reads_percent <= reads_most && small { Self::SmallWrites } else { Self::Mixed }
    }
}

impl Seen {
    /// Enough to conclude something from it.
    pub fn is_telling(&self) -> bool {
        self.reads + self.writes >= REQUESTS_MIN
    }
}

impl Profile {
    /// The profile of this name.
    ///
    /// # Errors
    /// There is none: says which there are.
    pub fn by_name(name: &str) -> Result<Self, String> {
        let (base, number) = split(name);
        let load = match base {
            "none" | "auto" => None,
            "read-mostly" => Some(Load::ReadMostly),
            "mixed" => Some(Load::Mixed),
            "small-writes" => Some(Load::SmallWrites),
            _ => return Err(unknown("profile", name, PROFILES)),
        };
        plain(name, number, Self { automatic: base == "auto", load, candidate: None })
    }

    /// Whether it looks at the load.
    pub fn is_automatic(&self) -> bool {
        self.automatic
    }

    /// The load that it serves now; `None` if none, or none was seen yet.
    pub fn load(&self) -> Option<Load> {
        self.load
    }

    /// Takes what was seen in a window; the load to serve from now on, if that is another one.
    pub fn observe(&mut self, seen: &Seen) -> Option<Load> {
        if !self.automatic || !seen.is_telling() {
            return None;
        }
        let load = Load::of(seen, self.load);
        if self.load == Some(load) {
            self.candidate = None;
            return None;
        }
        if self.candidate.replace(load) != Some(load) {
            return None;
        }
        (self.load, self.candidate) = (Some(load), None);
        Some(load)
    }
}

#[cfg(test)]
mod tests {
    use super::{Load, PROFILES, Profile, Seen};

    fn seen(reads: u64, writes: u64, blocks: u64) -> Seen {
        Seen { reads, writes, blocks_written: writes * blocks }
    }

    #[test]
    fn a_load_is_told_by_its_share_of_reads_and_the_size_of_its_writes() {
        for (reads, writes, blocks, load) in [
            (9500, 500, 8, Load::ReadMostly),
            (8000, 2000, 64, Load::ReadMostly),
            (7900, 2100, 1, Load::Mixed),
            (5000, 5000, 4, Load::SmallWrites),
            (5000, 5000, 5, Load::Mixed),
            (0, 10_000, 1, Load::SmallWrites),
            (0, 10_000, 128, Load::Mixed),
        ] {
            let mut profile = Profile::by_name("auto").unwrap();
            assert_eq!(profile.observe(&seen(reads, writes, blocks)), None, "one window is none");
            assert_eq!(profile.observe(&seen(reads, writes, blocks)), Some(load));
            assert_eq!(profile.observe(&seen(reads, writes, blocks)), None, "it is in force");
            assert_eq!(profile.load(), Some(load));
        }
    }

    #[test]
    fn a_load_at_a_bound_never_swings() {
        let mut profile = Profile::by_name("auto").unwrap();
        let mut changes = 0;
        for window in 0..1000 {
            // 78 to 82 % reads, in every order that a counter gives.
            let reads = 7800 + window * 7919 % 400;
            changes += u32::from(profile.observe(&seen(reads, 10_000 - reads, 1)).is_some());
        }
        assert!(changes <= 2, "{changes} changes");
    }

    #[test]
    fn a_window_of_few_requests_and_a_fixed_profile_conclude_nothing() {
        let mut profile = Profile::by_name("auto").unwrap();
        assert!((0..9).all(|_| profile.observe(&seen(900, 0, 0)).is_none()));
        let mut profile = Profile::by_name("mixed").unwrap();
        assert!((0..9).all(|_| profile.observe(&seen(9000, 0, 0)).is_none()));
        assert_eq!(profile.load(), Some(Load::Mixed));
    }

    #[test]
    fn every_profile_has_a_name_and_no_parameter() {
        for name in PROFILES {
            let profile = Profile::by_name(name).unwrap();
            assert!(profile.load().is_none_or(|load| load.name() == *name));
        }
        assert!(Profile::by_name("mixed:3").unwrap_err().contains("takes no parameter"));
        assert!(Profile::by_name("readmostly").unwrap_err().contains("none, auto, read-mostly"));
    }
}
