//! A node that comes, or comes back, while the volume is in use: it is fenced and listed before anything there
//! counts, and each copy is held against what the volume's owner knows by then.

use super::decide::{Worth, worth};
use super::peers::{Came, Peers, Task};
use crate::control::values::{BandRecord, NodeRecord};
use crate::message::{Answer, Ask, AskId, BandEntry, Refusal};
use crate::words::{BandName, Fenced, NodeId, VolumeId};
use flash::Instant;
use std::collections::VecDeque;

/// What the owner of a volume knows of a band.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KnownBand {
    /// It is open and appended to in this life.
    Open(BandName),
    /// It is sealed, in this life, with so many pages.
    Sealed(BandName, u32),
    /// It is empty, for sure.
    Empty,
    /// It was not found when the volume was opened, as nodes were away.
    Unknown,
}

/// A node that is taken in, for payloads of kind `D`.
pub struct Rejoin<D> {
    node: NodeId,
    peers: Peers,
    durable: bool,
    judged: bool,
    /// Copies whose seal, or flush, is under way, and what they are then.
    sealing: Vec<(BandName, u32)>,
    freeing: Vec<BandName>,
    flushing: bool,
    over: bool,
    outputs: VecDeque<RejoinOutput<D>>,
}

/// What is to be done, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub enum RejoinOutput<D> {
    /// Ask the node.
    Node {
        /// Pairs the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// The node has all of this band, sealed: it may be read there. Of a band that was unknown this is news.
    Holds(BandName, u32),
    /// Nothing is left of this life on the node.
    Rid(BandName),
    /// The copy is none; it may go when the band has enough of them. Until then it may have what others lack.
    Bad(BandName),
    /// The copy is not sealed and nothing is on record of it: it is left alone.
    Stray(BandName),
    /// The node has no older lives of bands any more, and all else was told.
    Joined,
    /// The node would not be fenced or listed, for this reason.
    Failed(Refusal),
}

impl<D> Rejoin<D> {
    /// Begins with a node that can be reached.
    pub fn new(now: Instant, volume: VolumeId, by: Fenced, of: NodeRecord, durable: bool) -> Self {
        let node = of.node;
        let mut peers = Peers::new(volume, by);
        peers.add(of, false);
        peers.up(node, durable);
        let (judged, flushing, over) = (false, false, false);
        let (sealing, freeing, outputs) = (Vec::new(), Vec::new(), VecDeque::new());
        let mut rejoin =
            Self { node, peers, durable, judged, sealing, freeing, flushing, over, outputs };
        rejoin.ask(now);
        rejoin
    }

    /// The node answered. `known` tells what the owner knows of a band now, and what is on
    /// record of this life of it.
    pub fn answered(
        &mut self,
        now: Instant,
        id: AskId,
        answer: &Answer<D>,
        known: &dyn Fn(BandName) -> (KnownBand, Option<BandRecord>),
    ) {
        match self.peers.answered(now, self.node, id, answer) {
            Came::Nothing => {}
            Came::Listed => self.judge(known),
            Came::Refused(Task::Seal { name, .. }, _) => {
                self.sealing.retain(|(of, _)| *of != name);
                self.outputs.push_back(RejoinOutput::Bad(name));
            }
            Came::Refused(Task::Free { name }, _) => self.freeing.retain(|of| *of != name),
            Came::Refused(Task::Copy { .. }, _) => {}
            Came::Refused(_, refusal) => self.fail(refusal),
            Came::Stale(highest) => self.fail(Refusal::Stale { highest }),
        }
        self.ask(now);
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        self.ask(now);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<RejoinOutput<D>> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        self.peers.deadline(now)
    }

    fn fail(&mut self, refusal: Refusal) {
        if !std::mem::replace(&mut self.over, true) {
            self.outputs.push_back(RejoinOutput::Failed(refusal));
        }
    }

    fn judge(&mut self, known: &dyn Fn(BandName) -> (KnownBand, Option<BandRecord>)) {
        self.judged = true;
        let entries: Vec<BandEntry> =
            self.peers.listed().flat_map(|(_, peer)| peer.entries().copied()).collect();
        // Of several lives of an unknown band only the newest can be one that is needed.
        for (at, entry) in entries.iter().enumerate() {
            let newer = entries.get(at + 1).is_some_and(|next| next.band.band == entry.band.band);
            let (known, record) = known(entry.band);
            self.judge_one(entry, newer, known, record.as_ref());
        }
    }

    fn judge_one(
        &mut self,
        entry: &BandEntry,
        newer: bool,
        known: KnownBand,
        record: Option<&BandRecord>,
    ) {
        let name = entry.band;
        match known {
            KnownBand::Open(of) | KnownBand::Sealed(of, _) if name.life < of.life => {
                self.free(name);
            }
            KnownBand::Sealed(of, pages) if of == name => match worth(pages, entry) {
                Worth::Whole => self.holds(name, pages),
                Worth::Seal => {
                    self.sealing.push((name, pages));
                    self.peers.push(self.node, Task::Seal { name, pages });
                }
                Worth::Free => self.free(name),
                Worth::Part | Worth::Bad => self.outputs.push_back(RejoinOutput::Bad(name)),
            },
            // It fell out of a band that goes on without it; whether it has all of it is told by its seal.
            KnownBand::Open(of) if of == name => self.outputs.push_back(RejoinOutput::Bad(name)),
            KnownBand::Empty => self.free(name),
            KnownBand::Unknown if record.is_none() && newer => self.free(name),
            // Of a band on record nothing is shown to an FTL that was mounted without it: the next opening does.
            KnownBand::Unknown if record.is_none() && entry.sealed => {
                self.holds(name, entry.pages);
            }
            _ => self.outputs.push_back(RejoinOutput::Stray(name)),
        }
    }

    /// What lies there sealed may not be durable, until it is flushed.
    fn holds(&mut self, name: BandName, pages: u32) {
        if self.durable {
            self.outputs.push_back(RejoinOutput::Holds(name, pages));
        } else {
            self.sealing.push((name, pages));
        }
    }

    fn free(&mut self, name: BandName) {
        self.freeing.push(name);
        self.peers.push(self.node, Task::Free { name });
    }

    fn ask(&mut self, now: Instant) {
        if self.over {
            return;
        }
        if self.judged && self.peers.are_idle() {
            if !self.flushing && !self.peers.unflushed().is_empty() {
                self.flushing = true;
                self.peers.push(self.node, Task::Flush);
            } else {
                for (name, pages) in self.sealing.drain(..) {
                    self.outputs.push_back(RejoinOutput::Holds(name, pages));
                }
                self.outputs.extend(self.freeing.drain(..).map(RejoinOutput::Rid));
                self.over = true;
                self.outputs.push_back(RejoinOutput::Joined);
            }
        }
        while let Some((_, id, ask)) = self.peers.poll(now) {
            self.outputs.push_back(RejoinOutput::Node { id, ask });
        }
    }
}
