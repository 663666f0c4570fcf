//! Clients of a [`Target`]: threads that read and write as an experiment says, and what they saw.
//!
//! A *client* is a group of like threads. A thread keeps `depth` I/Os in flight, or submits a whole
//! batch and waits for all of it, or (open loop) submits at drawn instants whatever is in flight.
//!
//! Invariants:
//! - An I/O counts in rates by the share of its time that lies within the measurement, so that long
//!   I/Os at its edges neither add to them nor are lost; latencies are those of I/Os submitted within.
//! - The same target, clients and seed give the same figures, to the bit: ties in time are broken
//!   by the order of scheduling.

mod gather;
mod seen;
mod slices;
mod thread;

pub use gather::Gather;
pub use seen::{Latency, Seen};
pub use slices::{Slice, Slices};

use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Target, TargetCounts};
use crate::workload::Pattern;
use flash::{Hint, Instant, Random};
use gather::Gathering;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use thread::Thread;

/// When a thread submits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Keeps this many in flight.
    Depth(u32),
    /// Submits this many, waits for all of them.
    Batch(u32),
    /// At exponentially distributed distances: I/Os a second of all threads together.
    Rate(f64),
}

/// The part of the address space that a thread uses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Place {
    /// All of it.
    #[default]
    Whole,
    /// Thread `i` stays on lane `i` modulo the lanes.
    Lane,
    /// Each thread has a share of its own.
    Share,
    /// Grain `i` lies on lane `i` modulo the lanes, as consecutive block IDs of SDF do.
    Interleaved,
    /// The same, and each thread has a share of its own.
    InterleavedShare,
}

/// A group of like threads.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// In tables.
    pub name: String,
    /// How many threads.
    pub threads: u32,
    /// When they submit.
    pub pace: Pace,
    /// Share of reads; the rest are writes.
    pub reads: f64,
    /// Bytes of each I/O, which also aligns it.
    pub bytes: u64,
    /// Writes smaller than an I/O of the target, which go down together.
    pub gather: Option<Gather>,
    /// Where.
    pub pattern: Pattern,
    /// Within what.
    pub place: Place,
    /// The space begins here, as a share of the target, in 0 to 1.
    pub from: f64,
    /// The first so much of the space is used, in 0 to 1.
    pub span: f64,
    /// Reads use the first half of the part, writes the second: what is read is not being written.
    pub apart: bool,
    /// An erase of the same place precedes each write, and its time counts.
    pub erase_first: bool,
    /// How long a thread pauses on average between the end of an I/O, or of a batch, and its next; how long
    /// each time is drawn, exponentially.
    pub think_ns: u64,
    /// Most bytes a second of all threads together; 0 for no cap.
    pub cap_bytes_per_s: f64,
    /// Ends after so many I/Os of each thread; 0 for never.
    pub ios_max: u64,
    /// What the client knows about its data.
    pub hint: Hint,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            name: "client".into(),
            threads: 1,
            pace: Pace::Depth(1),
            reads: 0.0,
            bytes: 4096,
            gather: None,
            pattern: Pattern::Uniform,
            place: Place::Whole,
            from: 0.0,
            span: 1.0,
            apart: false,
            erase_first: false,
            think_ns: 0,
            cap_bytes_per_s: 0.0,
            ios_max: 0,
            hint: Hint::default(),
        }
    }
}

impl Client {
    /// Bytes of each I/O to the target.
    fn io_bytes(&self) -> u64 {
        self.gather.map_or(self.bytes, |gather| gather.bytes)
    }

    /// Writes so many blocks once, in sequence.
    pub fn filling(blocks: u64) -> Self {
        Self {
            name: "fill".into(),
            pace: Pace::Depth(16),
            bytes: 64 << 10,
            pattern: Pattern::Sequential,
            ios_max: blocks / 16,
            ..Self::default()
        }
    }

    /// `Err` names the field, its value, what is wrong and a value that works.
    pub fn validate(&self) -> Result<(), String> {
        let wrong = |field: &str, value: &dyn std::fmt::Display, mend: &str| {
            Err(format!("client {:?}: {field} = {value}: {mend}", self.name))
        };
        if self.threads == 0 || self.threads > 100_000 {
            return wrong("threads", &self.threads, "1 to 100000, for example 44");
        }
        match self.pace {
            Pace::Depth(0) => return wrong("depth", &0, "at least 1"),
            Pace::Batch(0) => return wrong("batch", &0, "at least 1"),
            Pace::Rate(rate) if !(rate > 0.0 && rate < 1e12) => {
                return wrong("rate", &rate, "I/Os a second above 0, for example 22005");
            }
            _ => {}
        }
        if !(0.0..=1.0).contains(&self.reads) {
            return wrong("reads", &self.reads, "a share lies in 0 to 1, for example 0.5");
        }
        if !(self.span > 0.0 && self.span <= 1.0) {
            return wrong("span", &self.span, "above 0 and at most 1, for example 0.5");
        }
        if !(self.from >= 0.0 && self.from + self.span <= 1.0 + 1e-9) {
            return wrong("from", &self.from, "0 to 1, with span at most 1, for example 0.5");
        }
        if self.from > 0.0 && !matches!(self.place, Place::Whole | Place::Share) {
            return wrong("from", &self.from, "only with place = \"whole\" or \"share\"");
        }
        if self.bytes == 0 {
            return wrong("bytes", &0, "at least 1, for example \"4KiB\"");
        }
        if let Some(gather) = self.gather {
            gather.validate(self)?;
        }
        let thinks_alone = match self.pace {
            Pace::Depth(depth) => depth == 1 && self.cap_bytes_per_s == 0.0,
            Pace::Batch(_) => self.cap_bytes_per_s == 0.0,
            Pace::Rate(_) => false,
        };
        if self.think_ns > 0 && !thinks_alone {
            let think = format!("{} ns", self.think_ns);
            return wrong("think", &think, "only with depth = 1 or a batch, and without a cap");
        }
        if self.cap_bytes_per_s < 0.0 || self.cap_bytes_per_s.is_nan() {
            return wrong("cap", &self.cap_bytes_per_s, "bytes a second, or 0 for none");
        }
        Ok(())
    }
}

/// How long, from the target's time on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window {
    /// Not counted.
    pub warmup_ns: u64,
    /// Counted.
    pub measure_ns: u64,
}

impl Window {
    /// All of it, until every client has ended.
    pub const WHENEVER: Self = Self { warmup_ns: 0, measure_ns: u64::MAX / 2 };
}

/// An I/O in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    thread: u32,
    submitted: u64,
    bytes: u64,
    offset: u64,
    kind: FlightKind,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum FlightKind {
    #[default]
    Read,
    Write,
    /// A write of the same place follows.
    EraseFirst,
}

/// Everything of a run but the target.
struct Run<'a> {
    clients: &'a [Client],
    threads: Vec<Thread>,
    /// When a client may submit again under its cap.
    cap_at: Vec<f64>,
    seen: Vec<Seen>,
    flights: Vec<Flight>,
    flights_free: Vec<u32>,
    gathering: Gathering,
    /// (time, number, thread): submissions to come.
    timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    timer_last: u64,
    random: Random,
    counted_from: u64,
    end: u64,
}

/// Runs `clients` on `target` and says what each saw, in their order. What is in flight when time is
/// up still ends, uncounted, so that the target can be used again.
pub fn run(
    target: &mut dyn Target,
    clients: &[Client],
    window: Window,
    seed: u64,
) -> Result<Vec<Seen>, Failure> {
    run_sliced(target, clients, window, 0, seed).map(|(seen, _)| seen)
}

/// Likewise, over time as well: in so many slices of the measurement, with what the target had done at the
/// beginning of each and at the end of the last. Without slices it is what [`run`] does.
pub fn run_sliced(
    target: &mut dyn Target,
    clients: &[Client],
    window: Window,
    slices: u32,
    seed: u64,
) -> Result<(Vec<Seen>, Vec<TargetCounts>), Failure> {
    let mut run = Run::new(target, clients, window, seed).map_err(Failure)?;
    let mut counts = Vec::new();
    let slices = (slices > 0).then(|| Slices::new(slices, run.counted_from, run.end));
    run.seen.iter_mut().for_each(|seen| seen.slices.clone_from(&slices));
    run.start(target)?;
    let mut last = run.end;
    loop {
        let timer = run.timers.peek().map(|&Reverse((at, ..))| at);
        let event = target.deadline().map(|at| at.0);
        let gathered = run.gathering.deadline();
        let Some(next) = timer.into_iter().chain(event).chain(gathered).min() else { break };
        if next > run.end {
            break;
        }
        if let Some(slices) = &slices {
            while counts.len() <= slices.list.len() && slices.begin_of(counts.len()) <= next {
                counts.push(target.counts());
            }
        }
        target.advance(Instant(next))?;
        let mut any_ended = false;
        while let Some(done) = target.take_done() {
            run.ended(target, next, done)?;
            any_ended = true;
        }
        run.fire(target, next)?;
        run.gathered_long_enough(target, next)?;
        if any_ended && run.all_ended() {
            last = next;
            break;
        }
    }
    for client in 0..clients.len() {
        let waits = run.waits(client, last);
        run.seen[client].close(last.saturating_sub(run.counted_from), &waits);
    }
    if let Some(slices) = &slices {
        counts.resize_with(slices.list.len() + 1, || target.counts());
    }
    run.drain(target)?;
    Ok((run.seen, counts))
}

impl<'a> Run<'a> {
    fn new(
        target: &dyn Target,
        clients: &'a [Client],
        window: Window,
        seed: u64,
    ) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let mut threads: Vec<Thread> = Vec::new();
        for (index, client) in (0..).zip(clients) {
            client.validate()?;
            for number in 0..client.threads {
                let seed = random.next_u64();
                threads.push(Thread::new(client, index, number, target, seed)?);
            }
        }
        let counted_from = target.now().0 + window.warmup_ns;
        Ok(Self {
            clients,
            gathering: Gathering::new(clients, &threads),
            threads,
            cap_at: vec![target.now().0 as f64; clients.len()],
            seen: clients.iter().map(|_| Seen::default()).collect(),
            flights: Vec::new(),
            flights_free: Vec::new(),
            timers: BinaryHeap::new(),
            timer_last: 0,
            random,
            counted_from,
            end: counted_from.saturating_add(window.measure_ns),
        })
    }

    fn start(&mut self, target: &mut dyn Target) -> Result<(), Failure> {
        let now = target.now().0;
        for thread in 0..self.threads.len() as u32 {
            self.threads[thread as usize].batch_began = now;
            match self.client_of(thread).pace {
                Pace::Depth(count) | Pace::Batch(count) => {
                    for _ in 0..count {
                        self.next(target, now, thread)?;
                    }
                }
                Pace::Rate(_) => self.schedule_arrival(now, thread),
            }
        }
        Ok(())
    }

    fn client_of(&self, thread: u32) -> &'a Client {
        &self.clients[self.threads[thread as usize].client as usize]
    }

    fn all_ended(&self) -> bool {
        self.threads.iter().all(Thread::has_ended)
    }

    /// Lets what is in flight end.
    fn drain(&mut self, target: &mut dyn Target) -> Result<(), Failure> {
        while self.flights_free.len() < self.flights.len() {
            let left = self.flights.len() - self.flights_free.len();
            let next = target.deadline();
            target.advance(next.ok_or_else(|| Failure(format!("{left} I/Os never ended")))?)?;
            while let Some(done) = target.take_done() {
                let flight = self.flights[done.token as usize];
                self.flights_free.push(done.token as u32);
                // A write whose erase was still running never began.
                if flight.kind != FlightKind::EraseFirst {
                    self.count_all(&flight, done, false);
                }
            }
        }
        Ok(())
    }

    /// How long the I/Os that are still in flight have waited, of those that would have counted.
    fn waits(&self, client: usize, until: u64) -> Vec<u64> {
        let free: BTreeSet<u32> = self.flights_free.iter().copied().collect();
        let is_own = |thread: u32| self.threads[thread as usize].client as usize == client;
        let flights = (0..).zip(&self.flights);
        let flights =
            flights.filter(|(index, flight)| !free.contains(index) && is_own(flight.thread));
        let flying = flights.flat_map(|(index, flight)| {
            self.gathering.came(flight.thread, index as usize, flight.submitted)
        });
        let threads = (0..self.threads.len() as u32).filter(|&thread| is_own(thread));
        let kept = threads.flat_map(|thread| self.gathering.kept(thread).iter().copied());
        flying
            .chain(kept)
            .filter(|&came| came >= self.counted_from)
            .map(|came| until.saturating_sub(came))
            .collect()
    }

    fn timer(&mut self, at: u64, thread: u32) {
        self.timer_last += 1;
        self.timers.push(Reverse((at, self.timer_last, thread)));
    }

    fn schedule_arrival(&mut self, now: u64, thread: u32) {
        let client = self.client_of(thread);
        let Pace::Rate(rate) = client.pace else { return };
        if self.threads[thread as usize].has_submitted_all() {
            return;
        }
        let mean_ns = 1e9 * f64::from(client.threads) / rate;
        let gap = -libm::log(1.0 - self.random.fraction()) * mean_ns;
        self.timer(now + gap as u64, thread);
    }

    /// The thread's next I/O, or its next batch, once it has paused.
    fn go_on(&mut self, target: &mut dyn Target, now: u64, thread: u32) -> Result<(), Failure> {
        let client = self.client_of(thread);
        if client.think_ns > 0 && !self.threads[thread as usize].has_submitted_all() {
            let pause = -libm::log(1.0 - self.random.fraction()) * client.think_ns as f64;
            self.timer(now + pause as u64, thread);
            return Ok(());
        }
        self.submit_round(target, now, thread)
    }

    fn submit_round(
        &mut self,
        target: &mut dyn Target,
        now: u64,
        thread: u32,
    ) -> Result<(), Failure> {
        let count = match self.client_of(thread).pace {
            Pace::Batch(count) => count,
            Pace::Depth(_) | Pace::Rate(_) => 1,
        };
        self.threads[thread as usize].batch_began = now;
        for _ in 0..count {
            self.next(target, now, thread)?;
        }
        Ok(())
    }

    /// Submits the thread's next I/O, or later if its client's cap says so.
    fn next(&mut self, target: &mut dyn Target, now: u64, thread: u32) -> Result<(), Failure> {
        let client = self.client_of(thread);
        if self.threads[thread as usize].has_submitted_all() {
            return Ok(());
        }
        if let Some(gather) = client.gather {
            let is_full = self.gathering.add(now, thread, gather);
            return if is_full { self.send(target, now, thread) } else { Ok(()) };
        }
        if client.cap_bytes_per_s > 0.0 {
            let at = &mut self.cap_at[self.threads[thread as usize].client as usize];
            let start = at.max(now as f64);
            *at = start + client.bytes as f64 / client.cap_bytes_per_s * 1e9;
            if start as u64 > now {
                self.threads[thread as usize].delayed += 1;
                self.timer(start as u64, thread);
                return Ok(());
            }
        }
        self.send(target, now, thread)
    }

    /// Draws the thread's next I/O and submits it.
    fn send(&mut self, target: &mut dyn Target, now: u64, thread: u32) -> Result<(), Failure> {
        let client = self.client_of(thread);
        let Io { kind, offset, bytes, .. } = self.threads[thread as usize].draw(target);
        let kind = match (kind, client.erase_first) {
            (IoKind::Read, _) => FlightKind::Read,
            (_, true) => FlightKind::EraseFirst,
            (_, false) => FlightKind::Write,
        };
        self.submit(target, now, Flight { thread, submitted: now, bytes, offset, kind })
    }

    fn submit(&mut self, target: &mut dyn Target, now: u64, flight: Flight) -> Result<(), Failure> {
        let token = self.flights_free.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            (self.flights.len() - 1) as u32
        });
        self.flights[token as usize] = flight;
        self.gathering.fly(flight.thread, token as usize);
        let kind = match flight.kind {
            FlightKind::Read => IoKind::Read,
            FlightKind::Write => IoKind::Write,
            FlightKind::EraseFirst => IoKind::Erase,
        };
        let hint = self.client_of(flight.thread).hint;
        let io = Io { kind, offset: flight.offset, bytes: flight.bytes, hint };
        target.submit(Instant(now), u64::from(token), io)
    }

    /// Adds a flight, or the writes that were gathered into it.
    fn count_all(&mut self, flight: &Flight, done: Done, with_latency: bool) {
        match self.gathering.land(flight.thread, done.token as usize) {
            None => self.count(flight, done, with_latency),
            Some(came) => {
                let bytes = self.client_of(flight.thread).bytes;
                for submitted in came {
                    self.count(&Flight { submitted, bytes, ..*flight }, done, with_latency);
                }
            }
        }
    }

    /// Adds what lies within the measurement.
    fn count(&mut self, flight: &Flight, done: Done, with_latency: bool) {
        let (begun, ended) = (flight.submitted, done.at.0);
        let within = ended.min(self.end).saturating_sub(begun.max(self.counted_from));
        let share = match ended - begun {
            0 if (self.counted_from..=self.end).contains(&ended) => 1.0,
            0 => 0.0,
            latency => within as f64 / latency as f64,
        };
        if share == 0.0 {
            return;
        }
        let latency = (with_latency && begun >= self.counted_from).then_some(ended - begun);
        let client = self.threads[flight.thread as usize].client as usize;
        let is_read = flight.kind == FlightKind::Read;
        if let (Some(slices), true) = (&mut self.seen[client].slices, done.result.is_ok()) {
            slices.add(ended, is_read, flight.bytes, ended - begun);
        }
        self.seen[client].add(is_read, flight.bytes, share, latency, done.result);
    }

    fn ended(&mut self, target: &mut dyn Target, now: u64, done: Done) -> Result<(), Failure> {
        let flight = self.flights[done.token as usize];
        self.flights_free.push(done.token as u32);
        if flight.kind == FlightKind::EraseFirst && done.result.is_ok() {
            return self.submit(target, now, Flight { kind: FlightKind::Write, ..flight });
        }
        let thread = &mut self.threads[flight.thread as usize];
        thread.ended += 1;
        let client = thread.client as usize;
        self.count_all(&flight, done, true);
        match self.clients[client].pace {
            Pace::Depth(_) => self.go_on(target, now, flight.thread),
            Pace::Rate(_) => Ok(()),
            Pace::Batch(count) => {
                let thread = &mut self.threads[flight.thread as usize];
                thread.batch_ended += 1;
                if thread.batch_ended < count {
                    return Ok(());
                }
                thread.batch_ended = 0;
                let began = thread.batch_began;
                if began >= self.counted_from {
                    self.seen[client].batches.add(now - began);
                }
                self.go_on(target, now, flight.thread)
            }
        }
    }

    /// Submits what was gathered, though it fills no I/O, where the first write has waited long enough.
    fn gathered_long_enough(&mut self, target: &mut dyn Target, now: u64) -> Result<(), Failure> {
        while let Some(thread) = self.gathering.waited(now) {
            self.send(target, now, thread)?;
        }
        Ok(())
    }

    /// Submits what timers are due for.
    fn fire(&mut self, target: &mut dyn Target, now: u64) -> Result<(), Failure> {
        while let Some(&Reverse((at, _, thread))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let state = &mut self.threads[thread as usize];
            if state.delayed > 0 {
                state.delayed -= 1;
                self.send(target, now, thread)?;
            } else {
                self.schedule_arrival(now, thread);
                self.submit_round(target, now, thread)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
