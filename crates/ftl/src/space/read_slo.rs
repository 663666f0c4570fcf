//! The read service level: a host read shall not wait longer than `Settings::read_slo_ns` for a
//! program, an erase or a step of GC. TSSD gave its applications this guarantee; here it is a rule
//! of the unit scheduler, and what breaks it is counted with its reason.
//!
//! A read that comes to a busy unit waits for what runs there and, without suspension, nothing
//! shortens that. So the means are to begin less, not more at once, and at a better time:
//! - while host reads come to a unit, one command of ours at a time, and only when no host read
//!   runs there, unless ours has waited too long ([`Scheduler::work_allowed`]);
//! - an erase begins when the wait it may cause fits, or the medium suspends, or no read came for
//!   long, or space demands it, which is counted ([`Scheduler::erase_fits`]);
//! - GC starts earlier and takes small steps, the more of them the shorter space is, so that
//!   neither programs nor writes come in bursts.
//!
//! How long commands take is learned from those that ran alone on their unit; before the first one,
//! the assumption is that they are slow.

use crate::policy::Costs;
use crate::space::scheduler::{ReadOp, Scheduler, Unit};
use flash::{Instant, MICROSECOND, MILLISECOND};

/// What a command does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Job {
    Read,
    Program,
    Erase,
}

/// What was in the way of a host read when it was queued, or what became of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Way {
    /// Other reads, or nothing.
    #[default]
    Reads,
    Program,
    Erase,
    /// A program or erase, which was suspended.
    Suspended,
    /// The program of the very slot.
    InFlight,
}

impl Way {
    pub fn of(unit: &Unit) -> Self {
        if unit.erases_running > 0 {
            Self::Erase
        } else if unit.programs_running > 0 {
            Self::Program
        } else {
            Self::Reads
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Reads => "waited for other reads",
            Self::Program => "waited for a program",
            Self::Erase => "waited for an erase",
            Self::Suspended => "suspended a program or an erase",
            Self::InFlight => "waited until its block was programmed",
        }
    }
}

/// How long commands take on this medium.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learned {
    costs: Costs,
    /// By kind: one was seen, the rest is no assumption.
    seen: [bool; 3],
}

impl Default for Learned {
    fn default() -> Self {
        let costs = Costs {
            read_ns: 200 * MICROSECOND,
            program_ns: 3 * MILLISECOND,
            erase_ns: 10 * MILLISECOND,
        };
        Self { costs, seen: [false; 3] }
    }
}

impl Learned {
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// A command took `ns`. Estimates rise quickly and fall slowly: to promise too little is safe.
    pub fn add(&mut self, kind: Job, ns: u64) {
        let estimate = match kind {
            Job::Read => &mut self.costs.read_ns,
            Job::Program => &mut self.costs.program_ns,
            Job::Erase => &mut self.costs.erase_ns,
        };
        if !std::mem::replace(&mut self.seen[kind as usize], true) {
            *estimate = ns + ns / 4;
        } else if ns > *estimate {
            *estimate += (ns - *estimate).div_ceil(4);
        } else {
            *estimate -= (*estimate - ns).div_ceil(32);
        }
    }
}

impl Scheduler {
    /// How many programs the unit may have at once now; 0 if nothing of ours is to be begun.
    pub(super) fn work_allowed(&mut self, unit: u32, now: Instant) -> u32 {
        let slo = self.read_slo_ns;
        // On a fast unit no command takes long.
        if slo == 0 || self.geometry.is_fast_unit(unit) || !self.reads_recent(unit, now) {
            return self.programs_max();
        }
        let patience_ns = 4 * self.learned.costs().program_ns;
        let state = &mut self.units[unit as usize];
        if state.running > state.reads_running {
            return 0;
        }
        let waits = !state.programs.is_empty() || !state.reads_low.is_empty();
        if state.reads_running > 0 && waits {
            let since = *state.held_since.get_or_insert(now);
            if now - since < patience_ns {
                return 0;
            }
        }
        state.held_since = None;
        1
    }

    /// Whether a host read came to the unit not long ago: another one may come any time.
    fn reads_recent(&self, unit: u32, now: Instant) -> bool {
        let window_ns = self.read_slo_ns.max(4 * self.learned.costs().program_ns);
        let last = self.units[unit as usize].read_last;
        last.is_some_and(|last| now - last < window_ns)
    }

    /// Whether a host read that comes during an erase of `unit` would still be in time.
    pub(super) fn erase_fits(&self, unit: u32, now: Instant) -> bool {
        let slo = self.read_slo_ns;
        slo == 0
            || self.geometry.suspend
            || self.erase_wait_ns() <= slo
            || !self.reads_recent(unit, now)
    }

    /// What a read may wait for an erase or a program, itself included.
    fn erase_wait_ns(&self) -> u64 {
        let costs = self.learned.costs();
        costs.erase_ns + costs.read_ns
    }

    fn program_wait_ns(&self) -> u64 {
        let costs = self.learned.costs();
        costs.program_ns + costs.read_ns
    }

    /// Counts a host read of `unit` if it took longer than the service level.
    pub(crate) fn note_slow(&mut self, unit: u32, op: &ReadOp, now: Instant) {
        let slo = self.read_slo_ns;
        if slo == 0 || now - op.since <= slo {
            return;
        }
        let state = &mut self.units[unit as usize];
        state.reads_over_slo += 1;
        state.slow_reason = op.way.name();
        self.counts.over_slo[op.way as usize] += 1;
    }

    /// What a read may wait for at most.
    pub(crate) fn set_read_slo(&mut self, ns: u64) {
        self.read_slo_ns = ns;
    }

    pub(crate) fn costs(&self) -> Costs {
        self.learned.costs()
    }

    /// What of the service level this medium cannot give, with what it could.
    pub(crate) fn slo_warnings(&self) -> Vec<String> {
        let slo = self.read_slo_ns;
        if slo == 0 || self.geometry.suspend {
            return Vec::new();
        }
        let costs = [
            (Job::Program, "program", self.program_wait_ns()),
            (Job::Erase, "erase", self.erase_wait_ns()),
        ];
        // What is only assumed is no ground for a warning.
        let seen = costs.iter().filter(|cost| self.learned.seen[cost.0 as usize]);
        seen.filter(|(.., wait_ns)| *wait_ns > slo).map(|(_, what, wait_ns)| {
            format!(
                "read_slo_ns = {slo}: on this medium a read may wait {wait_ns} ns for one {what}, \
                 which cannot be suspended; {} ns and more can be kept",
                costs[1].2.max(costs[0].2)
            )
        })
        .collect()
    }
}
