//! The same data on several targets: a write goes to all, a read to the one that a replica policy
//! picks from their queues. How TSSD's applications read, and what it is worth.
//!
//! Invariants: a write ends when its last copy has, a read when its one copy has; all copies have the
//! same time.

use crate::driver::Failure;
use crate::target::{Done, Io, IoKind, Rules, Target, TargetCounts};
use flash::{Instant, RequestError};
use ftl::policy::replica::{ReplicaPolicy, ReplicaView};
use std::collections::VecDeque;

/// See the head of this file.
pub struct Replicated {
    copies: Vec<Box<dyn Target>>,
    policy: Box<dyn ReplicaPolicy>,
    views: Vec<ReplicaView>,
    /// By index: I/Os in flight; the copies get the index as their token.
    open: Vec<Open>,
    open_free: Vec<u32>,
    in_flight: Vec<u32>,
    done: VecDeque<Done>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    token: u64,
    copies_left: u32,
    result: Result<(), RequestError>,
}

impl Replicated {
    /// `copies` are alike and at least one.
    pub fn new(copies: Vec<Box<dyn Target>>, policy: Box<dyn ReplicaPolicy>) -> Self {
        assert!(!copies.is_empty(), "data lies somewhere");
        let (views, in_flight) = (Vec::with_capacity(copies.len()), vec![0; copies.len()]);
        Self {
            copies,
            policy,
            views,
            open: Vec::new(),
            open_free: Vec::new(),
            in_flight,
            done: VecDeque::new(),
        }
    }

    fn open(&mut self, token: u64, copies: u32) -> u64 {
        let open = Open { token, copies_left: copies, result: Ok(()) };
        let index = self.open_free.pop().unwrap_or_else(|| {
            self.open.push(open);
            (self.open.len() - 1) as u32
        });
        self.open[index as usize] = open;
        u64::from(index)
    }

    fn pick(&mut self, offset: u64) -> usize {
        self.views.clear();
        self.views.extend(self.copies.iter().zip(&self.in_flight).map(|(copy, &in_flight)| {
            ReplicaView { unit_queue: copy.queue_at(offset), device_queue: in_flight }
        }));
        self.policy.pick(&self.views).min(self.copies.len() - 1)
    }

    fn collect(&mut self) {
        for copy in 0..self.copies.len() {
            while let Some(Done { token, result, at }) = self.copies[copy].take_done() {
                self.in_flight[copy] -= 1;
                let open = &mut self.open[token as usize];
                open.copies_left -= 1;
                open.result = open.result.and(result);
                if open.copies_left == 0 {
                    self.done.push_back(Done { token: open.token, result: open.result, at });
                    self.open_free.push(token as u32);
                }
            }
        }
    }
}

impl Target for Replicated {
    fn bytes(&self) -> u64 {
        self.copies.iter().map(|copy| copy.bytes()).min().unwrap_or(0)
    }

    fn flash_bytes(&self) -> u64 {
        self.copies.iter().map(|copy| copy.flash_bytes()).sum()
    }

    fn rules(&self) -> Rules {
        self.copies[0].rules()
    }

    fn lanes(&self) -> u32 {
        self.copies[0].lanes()
    }

    fn now(&self) -> Instant {
        self.copies.iter().map(|copy| copy.now()).max().unwrap_or(Instant(0))
    }

    fn submit(&mut self, now: Instant, token: u64, io: Io) -> Result<(), Failure> {
        self.advance(now)?;
        if io.kind == IoKind::Read {
            let copy = self.pick(io.offset);
            let open = self.open(token, 1);
            self.in_flight[copy] += 1;
            self.copies[copy].submit(now, open, io)?;
        } else {
            let open = self.open(token, self.copies.len() as u32);
            for (copy, in_flight) in self.copies.iter_mut().zip(&mut self.in_flight) {
                *in_flight += 1;
                copy.submit(now, open, io)?;
            }
        }
        self.collect();
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.copies.iter().filter_map(|copy| copy.deadline()).min()
    }

    fn advance(&mut self, now: Instant) -> Result<(), Failure> {
        for copy in &mut self.copies {
            copy.advance(now)?;
        }
        self.collect();
        Ok(())
    }

    fn take_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn counts(&self) -> TargetCounts {
        let mut sum = TargetCounts::default();
        for counts in self.copies.iter().map(|copy| copy.counts()) {
            sum.bytes_written += counts.bytes_written;
            sum.bytes_programmed += counts.bytes_programmed;
            sum.erases += counts.erases;
            sum.suspensions += counts.suspensions;
        }
        sum
    }

    fn counter(&self, name: &str) -> u64 {
        self.copies.iter().map(|copy| copy.counter(name)).sum()
    }

    fn erase_count_max(&self) -> u32 {
        self.copies.iter().map(|copy| copy.erase_count_max()).max().unwrap_or(0)
    }

    fn queue_at(&self, offset: u64) -> u32 {
        self.copies.iter().map(|copy| copy.queue_at(offset)).min().unwrap_or(0)
    }
}
