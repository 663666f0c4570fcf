//! Tenants of a device: programs that read and write as a database server does, each in a part of
//! the address space of its own. What a tenant does next depends on what has ended: a commit waits
//! for its log, a page for its doublewrite, a new file for the end of a compaction.
//!
//! A [`Program`] is a set of *actors* (connections, a log writer, a page cleaner, a compactor). An
//! actor works through the [`Step`]s that the program planned for it; when it has none left, the
//! program plans anew, and an actor without a plan sleeps until another's plan wakes it. Programs
//! hold no clock: periodic work hangs on bytes, so that a faster device does more of the same.
//!
//! Invariants:
//! - an actor plans only when all of its I/Os have ended;
//! - a program touches nothing outside of its part;
//! - the same target, programs and seeds give the same I/Os at the same instants, to the bit;
//! - what a stop interrupts goes on at the next [`Tenants::run`], on the same device.

pub mod database;
mod extents;
pub mod lsm;
mod parts;
mod profile;
mod recorded;
mod ring;

pub use parts::{Kind, Part, ReadTrace, parts};
pub use profile::{Figures, Profile};
pub use recorded::{Recorded, Request, requests};

use crate::driver::Failure;
use crate::load::{Seen, Window};
use crate::target::{Done, Io, IoKind, Target};
use flash::{Hint, Instant, Slab};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What an actor does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Submits an I/O, by its place in the tenant's part, and goes on.
    Submit(IoKind, u64, u64),
    /// Waits until all of the actor's I/Os have ended.
    Wait,
    /// Computes.
    Think(u64),
    /// A transaction of the actor is done; the next one begins.
    Done,
}

/// What a program decides for an actor.
#[derive(Debug, Default)]
pub struct Plan {
    steps: VecDeque<Step>,
    woken: Vec<u32>,
}

impl Plan {
    /// Adds a step.
    pub fn step(&mut self, step: Step) {
        self.steps.push_back(step);
    }

    /// Adds a read.
    pub fn read(&mut self, offset: u64, bytes: u64) {
        self.step(Step::Submit(IoKind::Read, offset, bytes));
    }

    /// Adds a write.
    pub fn write(&mut self, offset: u64, bytes: u64) {
        self.step(Step::Submit(IoKind::Write, offset, bytes));
    }

    /// Adds a trim.
    pub fn trim(&mut self, offset: u64, bytes: u64) {
        self.step(Step::Submit(IoKind::Erase, offset, bytes));
    }

    /// Waits for the actor's I/Os.
    pub fn wait(&mut self) {
        self.step(Step::Wait);
    }

    /// Waits for the actor's I/Os and makes them durable.
    pub fn sync(&mut self) {
        self.wait();
        self.step(Step::Submit(IoKind::Flush, 0, 0));
        self.wait();
    }

    /// An actor that sleeps plans anew; one that does not, does so anyway.
    pub fn wake(&mut self, actor: u32) {
        self.woken.push(actor);
    }
}

/// See the head of this file.
pub trait Program: Send {
    /// How many actors it has; they are numbered from 0.
    fn actors(&self) -> u32;
    /// What is there before the actors begin: places and sizes, written in this order.
    fn files(&self) -> Vec<(u64, u64)>;
    /// `actor` has done everything planned for it.
    fn plan(&mut self, actor: u32, plan: &mut Plan) -> Result<(), String>;
}

/// A program and its part of the device.
pub struct Tenant {
    name: String,
    /// First byte of its part.
    base: u64,
    program: Box<dyn Program>,
    actors: Vec<Actor>,
    profile: Option<Profile>,
}

#[derive(Default)]
struct Actor {
    steps: VecDeque<Step>,
    in_flight: u32,
    thinks: bool,
    /// Nothing planned: sleeps.
    asleep: bool,
    /// Its transaction began.
    began: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    tenant: u32,
    actor: u32,
    kind: IoKind,
    bytes: u64,
    submitted: u64,
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Until {
    /// Its window is over.
    Time(Window),
    /// So many bytes have been written to the target.
    Written(u64),
}

/// All tenants of a device.
pub struct Tenants {
    tenants: Vec<Tenant>,
    flights: Slab<Flight>,
    ready: VecDeque<(u32, u32)>,
    timers: BinaryHeap<Reverse<(u64, u64, u32, u32)>>,
    timer_last: u64,
    plan: Plan,
}

impl Tenant {
    /// A tenant whose part begins at `base`. With `profiled`, what it does is kept.
    pub fn new(name: &str, base: u64, program: Box<dyn Program>, profiled: bool) -> Self {
        let actors = (0..program.actors()).map(|_| Actor::default()).collect();
        let profile = profiled.then(Profile::default);
        Self { name: name.into(), base, program, actors, profile }
    }

    /// In tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it did, from the writing of its files on.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }
}

impl Tenants {
    /// All tenants of a device; their parts lie apart.
    pub fn new(tenants: Vec<Tenant>) -> Self {
        Self {
            tenants,
            flights: Slab::default(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            timer_last: 0,
            plan: Plan::default(),
        }
    }

    /// The tenants, in their order.
    pub fn list(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Writes what is there before anything begins.
    pub fn fill(&mut self, target: &mut dyn Target) -> Result<(), Failure> {
        const AT_ONCE: u64 = 256 << 10;
        for tenant in &mut self.tenants {
            for (offset, bytes) in tenant.program.files() {
                let mut next = offset;
                while next < offset + bytes {
                    let now = target.now();
                    let count = AT_ONCE.min(offset + bytes - next);
                    let io = Io {
                        kind: IoKind::Write,
                        offset: tenant.base + next,
                        bytes: count,
                        hint: Hint::default(),
                    };
                    if let Some(profile) = &mut tenant.profile {
                        profile.add(IoKind::Write, next, count);
                    }
                    target.submit(now, 0, io)?;
                    next += count;
                    let done = end_of_one(target)?;
                    done.result.map_err(|error| {
                        Failure(format!("tenant {:?}: its files: {error:?}", tenant.name))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Lets all tenants work, and says what each saw of the window.
    pub fn run(&mut self, target: &mut dyn Target, until: Until) -> Result<Vec<Seen>, Failure> {
        let start = target.now().0;
        let (from, end, written) = match until {
            Until::Time(window) => {
                let from = start + window.warmup_ns;
                (from, from.saturating_add(window.measure_ns), u64::MAX)
            }
            Until::Written(bytes) => {
                (start, u64::MAX, target.counts().bytes_written.saturating_add(bytes))
            }
        };
        let mut run = Run { from, end, seen: vec![Seen::default(); self.tenants.len()] };
        for tenant in 0..self.tenants.len() {
            for actor in 0..self.tenants[tenant].actors.len() {
                let state = &mut self.tenants[tenant].actors[actor];
                (state.asleep, state.began) = (false, start);
                self.ready.push_back((tenant as u32, actor as u32));
            }
        }
        let mut steps = 0u32;
        loop {
            let now = target.now().0;
            self.work(target, now, &mut run)?;
            // Asking costs more than a step does.
            steps = steps.wrapping_add(1);
            let asks = written < u64::MAX && steps.is_multiple_of(64);
            if asks && target.counts().bytes_written >= written {
                break;
            }
            let timer = self.timers.peek().map(|&Reverse((at, ..))| at);
            let next = timer.into_iter().chain(target.deadline().map(|at| at.0)).min();
            let next = next.ok_or_else(|| Failure(self.stuck()))?;
            if next > end {
                break;
            }
            target.advance(Instant(next))?;
            self.collect(target, &mut run)?;
            self.fire(next);
        }
        let last = target.now().0.min(end).max(from);
        run.seen.iter_mut().for_each(|seen| seen.close(last - from, &[]));
        self.settle(target, &mut run)?;
        Ok(run.seen)
    }

    /// What is in flight ends, nothing more is begun. The rest of each plan waits for the next run.
    fn settle(&mut self, target: &mut dyn Target, run: &mut Run) -> Result<(), Failure> {
        while !self.flights.is_empty() {
            let next = target.deadline().ok_or_else(|| Failure(self.stuck()))?;
            target.advance(next)?;
            self.collect(target, run)?;
        }
        self.ready.clear();
        self.timers.clear();
        for actor in self.tenants.iter_mut().flat_map(|tenant| &mut tenant.actors) {
            actor.thinks = false;
        }
        Ok(())
    }

    fn stuck(&self) -> String {
        let names: Vec<&str> = self.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        format!("tenants {}: all actors sleep and nothing is due", names.join(", "))
    }

    /// Every actor that can, goes on.
    fn work(&mut self, target: &mut dyn Target, now: u64, run: &mut Run) -> Result<(), Failure> {
        while let Some((tenant, actor)) = self.ready.pop_front() {
            self.go_on(target, now, (tenant, actor), run)?;
        }
        Ok(())
    }

    fn go_on(
        &mut self,
        target: &mut dyn Target,
        now: u64,
        (tenant, index): (u32, u32),
        run: &mut Run,
    ) -> Result<(), Failure> {
        loop {
            let owner = &mut self.tenants[tenant as usize];
            let actor = &mut owner.actors[index as usize];
            if actor.thinks {
                return Ok(());
            }
            let Some(&step) = actor.steps.front() else {
                if actor.in_flight > 0 || !self.replan(tenant, index)? {
                    return Ok(());
                }
                continue;
            };
            match step {
                Step::Wait if actor.in_flight > 0 => return Ok(()),
                Step::Wait => {}
                Step::Think(ns) => {
                    actor.thinks = true;
                    actor.steps.pop_front();
                    self.timer_last += 1;
                    self.timers.push(Reverse((now + ns, self.timer_last, tenant, index)));
                    return Ok(());
                }
                Step::Done => {
                    let latency = now - std::mem::replace(&mut actor.began, now);
                    if now >= run.from && now <= run.end {
                        run.seen[tenant as usize].transactions.add(latency);
                    }
                }
                Step::Submit(kind, offset, bytes) => {
                    actor.in_flight += 1;
                    if let Some(profile) = &mut owner.profile {
                        profile.add(kind, offset, bytes);
                    }
                    let offset = if kind == IoKind::Flush { 0 } else { owner.base + offset };
                    let io = Io { kind, offset, bytes, hint: Hint::default() };
                    let flight = Flight { tenant, actor: index, kind, bytes, submitted: now };
                    let token = self.flights.insert(flight);
                    target.submit(Instant(now), u64::from(token), io)?;
                }
            }
            self.tenants[tenant as usize].actors[index as usize].steps.pop_front();
        }
    }

    /// The program plans for an actor that has done everything; false if it sleeps now.
    fn replan(&mut self, tenant: u32, index: u32) -> Result<bool, Failure> {
        let owner = &mut self.tenants[tenant as usize];
        let actor = &mut owner.actors[index as usize];
        std::mem::swap(&mut actor.steps, &mut self.plan.steps);
        let planned = owner.program.plan(index, &mut self.plan);
        planned.map_err(|why| Failure(format!("tenant {:?}: {why}", owner.name)))?;
        let actor = &mut owner.actors[index as usize];
        std::mem::swap(&mut actor.steps, &mut self.plan.steps);
        actor.asleep = actor.steps.is_empty();
        let works = !actor.asleep;
        for woken in self.plan.woken.drain(..) {
            let actor = &mut owner.actors[woken as usize];
            if actor.asleep && woken != index {
                actor.asleep = false;
                self.ready.push_back((tenant, woken));
            }
        }
        Ok(works)
    }

    fn collect(&mut self, target: &mut dyn Target, run: &mut Run) -> Result<(), Failure> {
        while let Some(Done { token, result, at }) = target.take_done() {
            let flight = self.flights.remove(token as u32);
            let Flight { tenant, actor, kind, bytes, submitted } = flight;
            let owner = &mut self.tenants[tenant as usize];
            result.map_err(|error| {
                Failure(format!("tenant {:?}: a {kind:?} of {bytes} bytes: {error:?}", owner.name))
            })?;
            owner.actors[actor as usize].in_flight -= 1;
            if owner.actors[actor as usize].in_flight == 0 {
                self.ready.push_back((tenant, actor));
            }
            if at.0 < run.from || at.0 > run.end || matches!(kind, IoKind::Erase | IoKind::Flush) {
                continue;
            }
            let seen = &mut run.seen[tenant as usize];
            seen.add(kind == IoKind::Read, bytes, 1.0, Some(at.0 - submitted), Ok(()));
        }
        Ok(())
    }

    fn fire(&mut self, now: u64) {
        while let Some(&Reverse((at, _, tenant, actor))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            self.tenants[tenant as usize].actors[actor as usize].thinks = false;
            self.ready.push_back((tenant, actor));
        }
    }
}

/// What one run counts.
struct Run {
    from: u64,
    end: u64,
    seen: Vec<Seen>,
}

/// The end of the only I/O that is in flight.
fn end_of_one(target: &mut dyn Target) -> Result<Done, Failure> {
    loop {
        if let Some(done) = target.take_done() {
            return Ok(done);
        }
        let next = target.deadline().ok_or_else(|| Failure("an I/O never ended".into()))?;
        target.advance(next)?;
    }
}

#[cfg(test)]
mod tests;
