//! Dies that share a *chip* (a package with one set of control lines, MQSim's): only one of its units works at
//! a time, from its first cycle on the bus to its last; and channels on which a command waits until the
//! bus is idle, so that data that leaves goes before all new work.
//!
//! Units of a chip are those that differ by a multiple of the number of chips, so that consecutive units
//! lie on different channels, then on different chips (MQSim's order CWDP). Of what waits in a chip reads go
//! first, urgent ones before others, then what was suspended, then programs and erases as they came.

use crate::dies::{Dies, Job, Stage};
use flash::Command;

/// What a chip does next, the least first: its class, then when it came.
type Rank = (u8, u64);

impl Dies {
    /// Begins what the chip of `unit` may do now.
    pub(crate) fn start_chip(&mut self, unit: usize, now: u64) {
        let chips = self.capacity_units() / self.manners.chip_units as usize;
        let mut next: Option<(Rank, usize, usize)> = None;
        let mut running = None;
        for unit in (unit % chips..self.capacity_units()).step_by(chips) {
            for (index, job) in self.jobs_of(unit).iter().enumerate() {
                match job.stage {
                    Stage::In | Stage::Out | Stage::Suspending => return,
                    Stage::Array => running = Some((unit, index)),
                    Stage::Waiting if index > 0 && !job.overtakes => {}
                    Stage::Waiting | Stage::Loaded | Stage::Suspended => {
                        let rank = (class(job), job.arrived);
                        if next.is_none_or(|(least, ..)| rank < least) {
                            next = Some((rank, unit, index));
                        }
                    }
                }
            }
        }
        let Some((_, unit, index)) = next else { return };
        match running {
            Some((other, at)) if is_urgent(&self.jobs_of(unit)[index]) => {
                self.suspend(other, at, now);
            }
            Some(_) => {}
            None => self.begin(unit, index, now),
        }
    }

    /// The chip is idle: this job is next, as soon as its command can be given.
    fn begin(&mut self, unit: usize, index: usize, now: u64) {
        let job = &self.jobs_of(unit)[index];
        let (stage, is_program) =
            (job.stage, matches!(job.judged.command, Command::Program { .. }));
        let idle_at = self.bus_free_at(unit);
        if stage == Stage::Waiting && self.manners.commands_wait && idle_at > now {
            self.wake_at(unit, index, idle_at);
        } else if stage == Stage::Waiting && is_program {
            self.use_bus(unit, index, Stage::In, now);
        } else {
            self.use_array(unit, index, now);
        }
    }
}

fn is_urgent(job: &Job) -> bool {
    matches!(job.judged.command, Command::Read { urgent: true, .. })
}

fn class(job: &Job) -> u8 {
    match (job.stage, &job.judged.command) {
        (Stage::Loaded, _) => 0,
        (_, Command::Read { urgent: true, .. }) => 1,
        (_, Command::Read { .. }) => 2,
        (Stage::Suspended, _) => 3,
        _ => 4,
    }
}
