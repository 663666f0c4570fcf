//! A device fails as a whole: one of its flushes does, or nothing may be written to it any more. This
//! happens at any step of its life, format, mount, detach and shutdown included. What is held then:
//!
//! - every request that is queued, in flight, or waiting for whatever ends, within a bound of media time;
//! - nothing is handed to the medium from then on that would change it;
//! - what was acknowledged is read as it was, and nothing but reads is accepted;
//! - a detach and a shutdown end, and say that they could not do it;
//! - of what the medium then holds, whatever it makes of its volatile state, the next mount finds all
//!   that was promised.

use crate::crash::{CrashOptions, generator};
use crate::driver::{Failure, Sim, State, Step};
use crate::host::Host;
use crate::model::Model;
use crate::workload::{Action, Generator, Op, fast_shares};
use flash::{Hint, Instant, Random, SECOND};
use ftl::FormatOptions;

/// When it fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// The flush of this number, counted from 1 at the format.
    Flush(u64),
    /// Before this step of the driver, counted from the format.
    Step(u64),
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FailReport {
    /// It failed: the run was long enough.
    pub failed: bool,
    /// That was before it was ready.
    pub before_ready: bool,
    /// Requests that were in flight.
    pub in_flight: u32,
    /// It was shutting down.
    pub stopping: bool,
    /// Steps of the whole run.
    pub steps: u64,
}

/// Most media time that a request, a detach or a stop may take from then on.
const BOUND_NS: u64 = SECOND;

/// Images of the medium that are mounted after the failure.
const IMAGES: u32 = 4;

struct Run<'a> {
    options: &'a CrashOptions,
    when: When,
    logical_blocks: u32,
    random: Random,
    report: FailReport,
}

/// Runs one seed up to the failure and beyond it.
pub fn fail_at(seed: u64, options: &CrashOptions, when: When) -> Result<FailReport, Failure> {
    let mut options = options.clone();
    if let When::Flush(number) = when {
        options.faults.flushes_failing = vec![number];
    }
    let medium = options.device.build(options.faults.clone()).map_err(Failure)?;
    let geometry = *medium.geometry();
    let max = ftl::logical_blocks_max(&geometry, &medium.health(), &options.settings);
    let logical_blocks = (f64::from(max) * options.fill) as u32;
    options.settings.fast_shares = fast_shares(logical_blocks, options.volumes);
    let uuid = u128::from(seed) << 64 | 9;
    let format = FormatOptions { logical_blocks, uuid, label: Vec::new() };
    let sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    let model = Model::new(logical_blocks, geometry.keeps_every_acknowledged_write());
    let mut host = Host::new(sim, model);
    let mut run = Run {
        options: &options,
        when,
        logical_blocks,
        random: Random::new(seed),
        report: FailReport::default(),
    };
    let mut generator = generator(seed, options.depth, logical_blocks).among(options.volumes);
    run.live(&mut host, &mut generator)?;
    Ok(run.report)
}

/// What a run on a disk that fills up came to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FullReport {
    /// Requests that were told that there is no space.
    pub refused: u64,
    /// The stop on the full disk could make all durable.
    pub clean: bool,
}

/// Longest that a request may take while the disk below is full.
const FULL_BOUND_NS: u64 = 3 * SECOND;

/// The disk below a file is full for a while, in which requests go on; then there is room, and all is as
/// before; then it is full again, and stays so or not: a stop ends. Every request ends within a bound, and
/// nothing counts as damaged.
pub fn fill_up(seed: u64, options: &CrashOptions) -> Result<FullReport, Failure> {
    let medium = options.device.build(options.faults.clone()).map_err(Failure)?;
    let geometry = *medium.geometry();
    let max = ftl::logical_blocks_max(&geometry, &medium.health(), &options.settings);
    let logical_blocks = (f64::from(max) * options.fill) as u32;
    let format = FormatOptions { logical_blocks, uuid: u128::from(seed) + 1, label: Vec::new() };
    let mut sim = Sim::format(medium, format, options.settings.clone(), Instant(0))?;
    sim.run_until_ready()?;
    let model = Model::new(logical_blocks, geometry.keeps_every_acknowledged_write());
    let mut host = Host::new(sim, model);
    let mut generator = generator(seed, options.depth, logical_blocks);
    host.sim.set_patience(FULL_BOUND_NS);
    for full in [false, true, false, true] {
        host.full_is_legal = true;
        let now = host.sim.now();
        let until = if full { Instant(u64::MAX) } else { now };
        host.sim.medium_mut().fill(now, until);
        if !full {
            // Room again: what was held back goes on by itself.
            host.sim.run_until_idle(now + SECOND)?;
            host.full_is_legal = false;
        }
        // After a crash on a full disk, too.
        if full && seed.is_multiple_of(3) {
            let mut medium = host.sim.medium().clone();
            let mut random = Random::new(seed);
            medium.power_cut_by_chance(&mut random);
            host.sim = Sim::mount(medium, options.settings.clone(), now)?;
            host.sim.run_until_ready()?;
            host.sim.set_patience(FULL_BOUND_NS);
            let observed = host.sim.read_all(logical_blocks)?;
            host.model.check_recovered(&observed).map_err(Failure)?;
            host.model.settle(&observed);
        }
        let mut submitted = 0;
        while submitted < options.operations_before + 40 || host.sim.in_flight() > 0 {
            while submitted < options.operations_before + 40 && host.sim.in_flight() < options.depth
            {
                host.submit(generator.draw(), Hint::default());
                submitted += 1;
            }
            if host.sim.step(Instant(u64::MAX))? == Step::Idle && host.sim.in_flight() > 0 {
                return Err(host.sim.stuck());
            }
            host.collect()?;
        }
        host.read_back()?;
    }
    let refused = host.counts.no_space;
    if seed.is_multiple_of(2) {
        // Right after it had none.
        host.sim.medium_mut().fill(Instant(0), Instant(0));
        host.sim.run_until_idle(host.sim.now() + SECOND)?;
    }
    let clean = stop_within_bound(&mut host.sim)?;
    if clean {
        let (medium, now) = (host.sim.medium().clone(), host.sim.now());
        let mut sim = Sim::mount(medium, options.settings.clone(), now)?;
        if let Some(damage) = sim.run_until_ready()?.damage() {
            return Err(Failure(format!("what a full disk refused is called damage: {damage}")));
        }
    }
    Ok(FullReport { refused, clean })
}

/// Stops a device whose disk may be full; true if all could be made durable.
fn stop_within_bound(sim: &mut Sim) -> Result<bool, Failure> {
    sim.begin_shutdown();
    let until = sim.now() + FULL_BOUND_NS;
    while !matches!(sim.state(), State::Stopped(_)) {
        if sim.step(until)? == Step::Idle {
            let state = sim.ftl().explain();
            return Err(Failure(format!("a stop on a full disk does not end: {state}")));
        }
    }
    Ok(*sim.state() == State::Stopped(true))
}

impl Run<'_> {
    /// The device's life: a format, operations, a remount, operations, a detach, operations, the end.
    fn live(&mut self, host: &mut Host, generator: &mut Generator) -> Result<(), Failure> {
        while *host.sim.state() == State::Starting {
            if self.step(host)? {
                return self.end_before_ready(host);
            }
        }
        host.sim.run_until_ready()?;
        if self.work(host, generator, false)? || self.remount(host)? {
            return Ok(());
        }
        if self.work(host, generator, self.options.detach)? {
            return Ok(());
        }
        self.shut_down(host).map(|_| ())
    }

    /// One step, or the failure. True when the device has failed.
    fn step(&mut self, host: &mut Host) -> Result<bool, Failure> {
        self.report.steps += 1;
        if self.when == When::Step(self.report.steps) {
            host.sim.fail();
            self.report.failed = true;
            return Ok(true);
        }
        let step = host.sim.step(Instant(u64::MAX))?;
        if step == Step::Idle && (host.sim.in_flight() > 0 || *host.sim.state() == State::Starting)
        {
            return Err(host.sim.stuck());
        }
        let refused = matches!(host.sim.state(), State::Refused(_));
        self.report.failed = refused || host.sim.ftl().counter("medium_failures") > 0;
        host.refusals_are_legal |= self.report.failed;
        host.collect()?;
        Ok(self.report.failed)
    }

    /// A format that fails says so, and leaves no device or an empty one.
    fn end_before_ready(&mut self, host: &mut Host) -> Result<(), Failure> {
        self.report.before_ready = true;
        let until = host.sim.now() + BOUND_NS;
        while *host.sim.state() == State::Starting {
            if host.sim.step(until)? == Step::Idle {
                return Err(Failure("a format that failed does not end".into()));
            }
        }
        match host.sim.state() {
            State::Refused(_) => Ok(()),
            other => Err(Failure(format!("a format that failed ended as {other:?}"))),
        }
    }

    /// True if the device failed, and what followed was as it must be.
    fn work(
        &mut self,
        host: &mut Host,
        generator: &mut Generator,
        detach: bool,
    ) -> Result<bool, Failure> {
        if detach {
            host.sim.begin_detach();
        }
        let operations = self.options.operations_before + self.options.operations;
        let mut submitted = 0;
        while submitted < operations || host.sim.in_flight() > 0 {
            while submitted < operations && host.sim.in_flight() < self.options.depth {
                let handle = self.random.below(2) as u8;
                host.submit(generator.draw(), Hint { handle, ..Hint::default() });
                submitted += 1;
            }
            if self.step(host)? {
                return self.after(host, detach).map(|()| true);
            }
        }
        while detach && host.sim.detached().is_none() {
            if self.step(host)? {
                return self.after(host, true).map(|()| true);
            }
        }
        Ok(false)
    }

    fn shut_down(&mut self, host: &mut Host) -> Result<bool, Failure> {
        host.sim.begin_shutdown();
        self.report.stopping = true;
        while !matches!(host.sim.state(), State::Stopped(_)) {
            if self.step(host)? {
                return self.after(host, false).map(|()| true);
            }
        }
        self.report.stopping = false;
        host.model.shut_down();
        Ok(false)
    }

    /// A clean remount; the flushes of the new mount are those that the medium counts on.
    fn remount(&mut self, host: &mut Host) -> Result<bool, Failure> {
        if self.shut_down(host)? {
            return Ok(true);
        }
        let medium = host.sim.medium().clone();
        host.sim = Sim::mount(medium, self.options.settings.clone(), host.sim.now())?;
        while *host.sim.state() == State::Starting {
            if self.step(host)? {
                self.end_before_ready(host)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The device has failed just now.
    fn after(&mut self, host: &mut Host, detaching: bool) -> Result<(), Failure> {
        self.report.in_flight = host.sim.in_flight();
        host.refusals_are_legal = true;
        host.sim.set_patience(BOUND_NS);
        host.drain()?;
        host.sim.run_until_idle(host.sim.now() + BOUND_NS)?;
        if detaching && host.sim.detached().is_none() {
            return Err(Failure("a detach under way was not answered".into()));
        }
        let done = host.sim.medium().done();
        if !matches!(host.sim.state(), State::Stopped(_)) {
            self.refuses_writes(host)?;
            host.read_back()?;
            host.sim.begin_shutdown();
        }
        let until = host.sim.now() + BOUND_NS;
        while !matches!(host.sim.state(), State::Stopped(_)) {
            if host.sim.step(until)? == Step::Idle {
                let state = host.sim.ftl().explain();
                return Err(Failure(format!("the stop after a failure does not end: {state}")));
            }
        }
        if *host.sim.state() != State::Stopped(false) {
            return Err(Failure("a device that failed says that all is durable".into()));
        }
        if host.sim.medium().done() != done {
            return Err(Failure("the medium was changed after it had failed".into()));
        }
        self.recover(host)
    }

    fn refuses_writes(&mut self, host: &mut Host) -> Result<(), Failure> {
        let before = host.counts;
        let write = |fua| Action::Write { fua, atomic: false };
        for action in [write(false), write(true), Action::Trim { fua: false }, Action::Flush] {
            host.submit(Op { action, lba: 0, blocks: 1 }, Hint::default());
        }
        host.drain()?;
        if host.counts.refused != before.refused + 4 {
            return Err(Failure(format!("a device that failed took writes: {:?}", host.counts)));
        }
        Ok(())
    }

    /// Power goes, and whatever it makes of what is volatile, a mount finds what was promised.
    fn recover(&mut self, host: &Host) -> Result<(), Failure> {
        for _ in 0..IMAGES {
            let mut image = host.sim.medium().clone();
            image.power_cut_by_chance(&mut self.random);
            let settings = self.options.settings.clone();
            let mut sim = Sim::mount(image, settings, host.sim.now())?;
            sim.run_until_ready()?;
            let observed = sim.read_all(self.logical_blocks)?;
            host.model.check_recovered(&observed).map_err(Failure)?;
        }
        Ok(())
    }
}
