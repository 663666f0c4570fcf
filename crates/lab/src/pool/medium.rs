//! A volume of a pool as a medium of [`crate::Sim`]: the client of the crate `pool`, and the cluster behind it.
//!
//! Invariant: the cluster may be shared by several clients, so its time may be ahead of a client's, but never
//! beyond what any of them has still to do: who drives several steps the one whose deadline is first.

use super::cluster::{Cluster, Reached};
use super::network::Peer;
use crate::medium::{
    Buffers, Content, DoneCounts, Ended, Medium, content, slot_read, without_data,
};
use flash::{
    BLOCK_BYTES, Command, Completion, Geometry, Health, Instant, MILLISECOND, SlotRead, SlotWrite,
};
use ftl::policy::UnitWeights;
use pool::client::{Config, Directory, End, Input, Opening, Output, Plan, Remote};
use pool::message::Slot;
use pool::words::BandName;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// A transaction of the control plane, unless another time is set.
pub const PLANE_NS: u64 = 2 * MILLISECOND;

/// See the head of this file.
pub struct PoolMedium {
    remote: Remote<Content>,
    cluster: Rc<RefCell<Cluster>>,
    peer: Peer,
    geometry: Geometry,
    plane_ns: u64,
    empty_crc: u32,
    done: DoneCounts,
    ends: VecDeque<End<Content>>,
    /// What the control plane is about to have, in order.
    registering: VecDeque<(Instant, BandName)>,
    /// Weights that the FTL was not given yet.
    weights: Option<UnitWeights>,
    fenced: bool,
}

impl PoolMedium {
    /// A client of `cluster` for a volume that was just made: nothing of it is anywhere. Its lease never ends.
    ///
    /// # Errors
    /// What of the config is wrong.
    pub fn new(cluster: Rc<RefCell<Cluster>>, config: Config) -> Result<Self, String> {
        let geometry = config.geometry;
        let mut remote = Remote::new(config, Directory::empty(geometry.blocks()))?;
        for (node, domain) in cluster.borrow().nodes() {
            remote.handle(Instant(0), Input::Joined { node, domain });
        }
        remote.handle(Instant(0), Input::Lease { until: Instant(u64::MAX) });
        let peer = cluster.borrow_mut().add_client();
        let mut medium = Self {
            remote,
            cluster,
            peer,
            geometry,
            plane_ns: PLANE_NS,
            empty_crc: flash::crc(&[0; BLOCK_BYTES]),
            done: DoneCounts::default(),
            ends: VecDeque::new(),
            registering: VecDeque::new(),
            weights: None,
            fenced: false,
        };
        medium.run(Instant(0));
        Ok(medium)
    }

    /// A transaction of the control plane takes so long from now on.
    pub fn set_plane_ns(&mut self, ns: u64) {
        self.plane_ns = ns;
    }

    /// The client, for counters and explanations.
    pub fn remote(&self) -> &Remote<Content> {
        &self.remote
    }

    /// The client's name on the network.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The controller's weights and modes.
    pub fn plan(&mut self, now: Instant, plan: Plan) {
        self.handle(now, Input::Plan(plan));
    }

    /// Whether [`PoolMedium::take_weights`] has something.
    pub fn has_weights(&self) -> bool {
        self.weights.is_some()
    }

    /// Weights for `ftl::Ftl::set_unit_weights`, if they changed.
    pub fn take_weights(&mut self) -> Option<UnitWeights> {
        self.weights.take()
    }

    /// Somebody else owns the volume: the FTL gets `Input::Fail`.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    fn handle(&mut self, now: Instant, input: Input<Content>) {
        self.remote.handle(now, input);
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Instant) {
        while let Some(output) = self.remote.poll() {
            match output {
                Output::Ask { node, id, ask } => {
                    self.cluster.borrow_mut().ask(now, self.peer, node, id, ask);
                }
                Output::Ended(end) => self.ends.push_back(end),
                Output::Register(openings) => {
                    let at = now + self.plane_ns;
                    let names = openings.into_iter().map(|Opening { name, .. }| (at, name));
                    self.registering.extend(names);
                }
                // The plane of a simulation that opens no volume anew has no use for these.
                Output::Unused(_)
                | Output::Closed(_)
                | Output::Ends { .. }
                | Output::Unflushed(_)
                | Output::Flushed(_) => {}
                Output::Weights(weights) => self.weights = Some(weights),
                Output::Fenced(_) => self.fenced = true,
            }
        }
    }

    /// All that is due by `now`, at the cluster and here.
    fn run(&mut self, now: Instant) {
        self.cluster.borrow_mut().advance(now);
        loop {
            let reached = self.cluster.borrow_mut().take(self.peer);
            let Some(reached) = reached else { break };
            let input = match reached {
                Reached::Up(facts) => Input::Up(facts),
                Reached::Down(node) => Input::Down { node },
                Reached::Answer(node, id, answer, signals) => {
                    Input::Answer { node, id, answer, signals }
                }
            };
            self.handle(now, input);
        }
        while let Some(&(at, name)) = self.registering.front()
            && at <= now
        {
            self.registering.pop_front();
            self.handle(now, Input::Registered(name));
        }
        if self.remote.deadline().is_some_and(|at| at <= now) {
            self.handle(now, Input::Deadline);
        }
    }

    fn give(
        &self,
        end: End<Content>,
        buffers: &mut Buffers,
        sink: impl FnOnce(Completion<'_>),
    ) -> Ended {
        match end {
            End::Read { tag, into, slots, durable } => {
                let slots = match slots {
                    Ok(slots) => slots,
                    Err(error) => {
                        sink(Completion::Read { tag, slots: Err(error) });
                        return Ended::Read;
                    }
                };
                let mut contents = Vec::with_capacity(slots.len());
                for (i, end) in (0..).zip(slots) {
                    let held = end.slot.map(|slot| (slot.oob, slot.data.unwrap_or_default()));
                    if let (Some((_, content)), Some(into)) = (&held, into) {
                        buffers.fill(into, i, content);
                    }
                    contents.push((end.status, held));
                }
                let reads = contents.iter().map(|(status, held)| {
                    let read = match held {
                        Some((oob, content)) => {
                            slot_read(*oob, &Cow::Borrowed(content), *status, self.empty_crc)
                        }
                        None => without_data(*status),
                    };
                    SlotRead { durable, ..read }
                });
                let reads: Vec<SlotRead<'_>> = reads.collect();
                sink(Completion::Read { tag, slots: Ok(&reads) });
                return Ended::Read;
            }
            End::Program { tag, result } => sink(Completion::Program { tag, result }),
            End::Erase { tag, result } => sink(Completion::Erase { tag, result }),
            End::Finish { tag } => sink(Completion::Finish { tag }),
            End::Flush { tag, result } => sink(Completion::Flush { tag, result }),
        }
        Ended::Change
    }
}

impl Medium for PoolMedium {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn done(&self) -> DoneCounts {
        self.done
    }

    fn suspensions(&self) -> u64 {
        0
    }

    fn health(&self) -> Health {
        Health { erase_counts: vec![0; self.geometry.blocks() as usize], ..Health::default() }
    }

    fn deadline(&self) -> Option<Instant> {
        if !self.ends.is_empty() || self.cluster.borrow().has_reached(self.peer) {
            return Some(Instant(0));
        }
        let registered = self.registering.front().map(|&(at, _)| at);
        let own = self.remote.deadline().into_iter().chain(registered);
        own.chain(self.cluster.borrow().deadline()).min()
    }

    fn start(
        &mut self,
        now: Instant,
        command: Command,
        slots: &[SlotWrite],
        buffers: &Buffers,
    ) -> Result<(), String> {
        let input = match command {
            Command::Program { tag, slot, .. } => {
                let slots = slots.iter().map(|write| self.slot(write, buffers)).collect();
                Input::Program { tag, slot, slots }
            }
            other => Input::Command(other),
        };
        self.handle(now, input);
        Ok(())
    }

    fn deliver(
        &mut self,
        now: Instant,
        buffers: &mut Buffers,
        sink: impl FnOnce(Completion<'_>),
    ) -> Option<Ended> {
        if self.ends.is_empty() {
            self.run(now);
        }
        let end = self.ends.pop_front()?;
        match &end {
            End::Program { result: Ok(()), .. } => {
                self.done.slots_programmed += u64::from(self.geometry.slots_per_page);
            }
            End::Erase { result: Ok(()), .. } => self.done.erases += 1,
            _ => {}
        }
        Some(self.give(end, buffers, sink))
    }
}

impl PoolMedium {
    fn slot(&self, write: &SlotWrite, buffers: &Buffers) -> Slot<Content> {
        let data = Some(content(write, buffers)).filter(|content| *content != Content::Empty);
        let crc = data.as_ref().map_or(self.empty_crc, pool::node::store::Data::crc);
        Slot { oob: write.oob, crc, data }
    }
}
