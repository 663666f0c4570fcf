//! What the writes of a volume wait for, and where they could go: looked at again and again while the volume is
//! used, for who wonders why they are late.

use super::cluster::Seen;
use super::medium::PoolMedium;
use crate::driver::Sim;
use flash::{Instant, Operation};
use ftl::Ftl;
use std::collections::BTreeMap;
use std::fmt;

/// Of so many writes in flight it is told at each look what they wait for: to ask of all of thousands takes long.
const WRITES_MAX: usize = 32;

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct WaitsSeen {
    every_ns: u64,
    next: Instant,
    looks: u64,
    /// Sums over all looks.
    writes: u64,
    lanes_wanted: u64,
    bands_wanted: u64,
    bands_free: u64,
    /// Writes that were asked about, and how many waited for each.
    asked: u64,
    by_name: BTreeMap<&'static str, u64>,
    /// What drives were given, by node: sums over periods, and in how many the tail was above the limit.
    drives: Vec<DriveSeen>,
}

/// Of one drive.
#[derive(Clone, Copy, Debug, Default)]
struct DriveSeen {
    periods: u64,
    reads: u64,
    writes: u64,
    tail_ns: u64,
    tail_ns_max: u64,
}

impl WaitsSeen {
    /// Looks so often, from `now` on.
    pub fn new(now: Instant, every_ns: u64) -> Self {
        Self { every_ns, next: now + every_ns, ..Self::default() }
    }

    /// What drives were given in a period.
    pub fn see(&mut self, seen: &[Seen]) {
        self.drives.resize(seen.len(), DriveSeen::default());
        for (drive, seen) in self.drives.iter_mut().zip(seen) {
            drive.periods += 1;
            drive.reads += seen.reads;
            drive.writes += seen.writes;
            drive.tail_ns += seen.tail_ns;
            drive.tail_ns_max = drive.tail_ns_max.max(seen.tail_ns);
        }
    }

    /// When to look next.
    pub fn deadline(&self) -> Instant {
        self.next
    }

    /// Looks, if it is time.
    pub fn look(&mut self, now: Instant, sim: &Sim<Ftl, PoolMedium>) {
        if now < self.next {
            return;
        }
        self.next = now + self.every_ns;
        self.looks += 1;
        let (lanes, bands) = sim.medium().remote().places_wanted();
        self.lanes_wanted += lanes as u64;
        self.bands_wanted += bands as u64;
        self.bands_free += sim.ftl().counter("bands_free");
        let is_write = |operation| matches!(operation, Operation::Write { .. });
        let writes: Vec<_> = sim.requests().filter(|request| is_write(request.operation)).collect();
        self.writes += writes.len() as u64;
        let look = sim.ftl().look();
        for request in writes.iter().step_by(writes.len().div_ceil(WRITES_MAX).max(1)) {
            let waits = look.waits_for(request.id);
            self.asked += 1;
            *self.by_name.entry(waits.name()).or_default() += 1;
        }
    }
}

impl fmt::Display for WaitsSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = |sum: u64| sum as f64 / self.looks.max(1) as f64;
        write!(
            f,
            "{:.0} writes in flight, {:.1} open bands and {:.1} lanes wanted, {:.0} bands free; writes wait for",
            mean(self.writes),
            mean(self.bands_wanted),
            mean(self.lanes_wanted),
            mean(self.bands_free)
        )?;
        let mut names: Vec<_> = self.by_name.iter().collect();
        names.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        for (name, &count) in names {
            write!(f, " {name} {:.0} %", 100.0 * count as f64 / self.asked.max(1) as f64)?;
        }
        for (node, drive) in self.drives.iter().enumerate() {
            let of = |sum: u64| sum / drive.periods.max(1);
            let (reads, writes) = (of(drive.reads), of(drive.writes));
            let (tail, most) = (of(drive.tail_ns) / 1000, drive.tail_ns_max / 1000);
            write!(
                f,
                "\n  drive {node}: {reads} reads and {writes} writes a period, tail {tail} us, {most} at most"
            )?;
        }
        Ok(())
    }
}
