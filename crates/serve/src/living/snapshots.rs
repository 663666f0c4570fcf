//! How the thread of the volumes has the shards take snapshots, make clones of them, and give both up.

use super::{Keeper, LOOK_AGAIN, Taken, sends};
use crate::device::Shadow;
use crate::runtime::shard::{Message, SnapshotAsk, SnapshotWork};
use ftl::{ShadowStretch, SnapshotError};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long the changes that go on may take while others of their volume are held back.
const HOLD_TIME: Duration = Duration::from_secs(5);

/// The end of an order, on all shards.
pub enum Ended {
    /// As it should.
    Good,
    /// It was refused, for this reason.
    Refused(String),
    /// A shard does not answer: it has ended.
    Lost,
}

impl Keeper {
    /// Has room made for a snapshot.
    pub(super) fn prepare(&self, shadow: &Shadow) -> Ended {
        let orders =
            self.parts_of(shadow).map(|(shard, part)| (shard, SnapshotWork::Prepare(part)));
        self.order(shadow.number, orders.collect())
    }

    /// Has a clone made. A shard needs not wait for another: what it is made of stays as it is.
    pub(super) fn make_clone(&self, parts: &Shadow) -> Ended {
        let orders = self.parts_of(parts).map(|(shard, part)| (shard, SnapshotWork::Clone(part)));
        self.order(parts.number, orders.collect())
    }

    /// Has a snapshot taken, on all shards between two requests.
    pub(super) fn cut(&self, shadow: &Shadow) -> Ended {
        let held = self.hold(shadow.volume as usize - 1);
        let (sender, cut) = mpsc::channel();
        let ends = held.then(|| {
            let orders = self.parts_of(shadow).map(|(shard, _)| {
                let send = sends(sender.clone());
                (shard, SnapshotWork::Cut(Box::new(move || send(()))))
            });
            self.send(shadow.number, orders.collect())
        });
        drop(sender);
        if let Some((count, _)) = &ends {
            // A shard that refuses says nothing here, but that it has ended.
            (0..*count).all(|_| self.wait(&cut).is_some());
        }
        for mailbox in &self.shared.mailboxes {
            mailbox.push(Message::Snapshots(SnapshotAsk::GoOn));
        }
        match ends {
            Some(ends) => self.await_ends(ends),
            None => Ended::Refused(format!(
                "what was being written to the volume did not end within {} s: try again",
                HOLD_TIME.as_secs()
            )),
        }
    }

    /// Has a snapshot given up, if there still is one of this number.
    pub(super) fn give_up(&self, number: u32) -> Taken {
        let all =
            (0..self.shared.mailboxes.len()).map(|shard| (shard, SnapshotWork::Drop)).collect();
        // A shard that has none of this number refuses, or one that gives it up already.
        match (self.order(number, all), self.held_by(number)) {
            (Ended::Lost, _) | (_, None) => Taken::Ended,
            (_, Some(false)) => Taken::Done,
            // Its room is being given back.
            (_, Some(true)) => Taken::Later,
        }
    }

    /// Whether a shard still has a snapshot of this number; `None`: one does not answer.
    fn held_by(&self, number: u32) -> Option<bool> {
        let mut found = false;
        for mailbox in &self.shared.mailboxes {
            let (sender, receiver) = mpsc::channel();
            mailbox.push(Message::Snapshots(SnapshotAsk::Tell(sends(sender))));
            found |= self.wait(&receiver)?.iter().any(|snapshot| snapshot.number == number);
        }
        Some(found)
    }

    /// What of a snapshot each shard has that has any of it.
    fn parts_of<'a>(
        &'a self,
        shadow: &'a Shadow,
    ) -> impl Iterator<Item = (usize, Vec<ShadowStretch>)> + 'a {
        let split = self.shared.split;
        (0..self.shared.mailboxes.len()).filter_map(move |shard| {
            let of_shard = shadow.parts.iter().filter_map(|&(of, first)| {
                let (lba, blocks) = split.part_of(shard, of.first, of.blocks)?;
                let (shadow, _) = split.part_of(shard, first, of.blocks)?;
                Some(ShadowStretch { first: lba, blocks, shadow })
            });
            let part: Vec<ShadowStretch> = of_shard.collect();
            (!part.is_empty()).then_some((shard, part))
        })
    }

    /// Holds back what would change a volume. False if it takes too long until what goes on has ended.
    fn hold(&self, volume: usize) -> bool {
        let (sender, receiver) = mpsc::channel();
        for mailbox in &self.shared.mailboxes {
            let answer = sends(sender.clone());
            mailbox.push(Message::Snapshots(SnapshotAsk::Hold { volume, answer }));
        }
        drop(sender);
        let begun = Instant::now();
        let mut left = self.shared.mailboxes.len();
        while left > 0 && begun.elapsed() < HOLD_TIME {
            match receiver.recv_timeout(LOOK_AGAIN) {
                Ok(true) => left -= 1,
                Err(RecvTimeoutError::Timeout) if !self.is_over() => {}
                _ => return false,
            }
        }
        left == 0
    }

    fn order(&self, number: u32, orders: Vec<(usize, SnapshotWork)>) -> Ended {
        self.await_ends(self.send(number, orders))
    }

    /// Gives orders; their ends, of which there will be so many.
    fn send(
        &self,
        number: u32,
        orders: Vec<(usize, SnapshotWork)>,
    ) -> (usize, mpsc::Receiver<Result<(), SnapshotError>>) {
        let (sender, receiver) = mpsc::channel();
        let count = orders.len();
        for (shard, order) in orders {
            let answer = sends(sender.clone());
            let ask = SnapshotAsk::Order { number, order, answer };
            self.shared.mailboxes[shard].push(Message::Snapshots(ask));
        }
        (count, receiver)
    }

    fn await_ends(
        &self,
        (count, ends): (usize, mpsc::Receiver<Result<(), SnapshotError>>),
    ) -> Ended {
        // All of them, so that none goes on behind what follows.
        let ends: Vec<_> = (0..count).map(|_| self.wait(&ends)).collect();
        let mut refused = None;
        for end in ends {
            match end {
                None => return Ended::Lost,
                Some(Ok(())) => {}
                Some(Err(error)) => refused = Some(error),
            }
        }
        refused.map_or(Ended::Good, |error| Ended::Refused(error.to_string()))
    }
}
