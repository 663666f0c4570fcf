//! What the client does about events: the parts decide, this carries it from one to the other.

use super::chores::What;
use super::directory::Entry;
use super::programs::Step;
use super::reads::{Next, Read, Wanted};
use super::timers::Timer;
use super::{End, Input, Output, Over, Purpose, Remote, SlotEnd};
use crate::message::{Answer, Ask, AskId, NodeFacts, Refusal, Signals, Slot, ZEROES_CRC};
use crate::words::{BandName, NodeId};
use flash::{
    BlockId, Command, Instant, MILLISECOND, MediumError, Payload, SECOND, SlotId, SlotStatus, Tag,
};

/// While somebody waits for an opening, nodes are looked at again after this, in retry times.
const WANTED_RETRIES: u64 = 5;

/// While a limit is on its way up, lanes are weighed again.
const WEIGH_NS: u64 = 50 * MILLISECOND;

/// A node that is full, or whose drive failed, takes no new bands for so many times as long as one that serves
/// reads now.
const FULL_SHY: u64 = 100;

/// A node that could not seal or free is asked again.
const CHORE_RETRY_NS: u64 = SECOND;

impl<D: Clone> Remote<D> {
    // Reads.

    pub(super) fn read(
        &mut self,
        tag: Tag,
        slot: SlotId,
        count: u32,
        into: Option<Payload>,
        urgent: bool,
    ) {
        let geometry = self.config.geometry;
        let block = geometry.block_of(slot);
        let first = slot.0 - geometry.slot(block, 0, 0).0;
        let page = geometry.page_in_block(slot);
        let here = |status| SlotEnd { status, slot: None };
        let (status, durable) = match self.directory.entry(block) {
            Entry::Held(held) if page < held.pages => {
                let name = held.name;
                let wanted = Wanted { tag, name, slot: first, count, urgent };
                let id = self.reads.begin(self.now, wanted);
                self.into.insert(id, into);
                self.drive_read(id);
                return;
            }
            Entry::Unsure => (SlotStatus::Uncorrectable, true),
            Entry::Held(_) | Entry::Unbound | Entry::Spent => (SlotStatus::Erased, false),
        };
        self.counters.reads_local += 1;
        let slots = Ok((0..count).map(|_| here(status)).collect());
        self.give_read(End::Read { tag, into, slots, durable });
    }

    /// Does what a read needs next.
    fn drive_read(&mut self, id: u64) {
        let now = self.now;
        let Some(wanted) = self.reads.get_mut(id).map(|read| read.wanted) else { return };
        let block = BlockId(wanted.name.band);
        for node in self.reads.late(now, id) {
            self.counters.late_reads += 1;
            self.weights_stale |= self.nodes.late(now, node);
        }
        let mut members: Vec<_> = self.directory.life(wanted.name).map_or_else(Vec::new, |held| {
            let nodes = held.nodes.iter().enumerate();
            nodes.map(|(at, &node)| (node, held.exact(at, now))).collect()
        });
        let nodes = &self.nodes;
        let vain = |&(node, _): &(NodeId, _)| !nodes.is_up(node) || self.reads.is_lacking(id, node);
        if members.iter().all(vain) {
            for node in self.directory.doubtful(wanted.name) {
                if members.iter().all(|&(other, _)| other != node) {
                    members.push((node, (None, false)));
                }
            }
        }
        for &(node, _) in &members {
            if self.nodes.get(node).is_none() {
                // It is no part of the pool any more, and never comes back with this.
                self.reads.lacks(id, node);
            }
        }
        match self.reads.next(now, id, &members, &mut self.nodes, &mut self.random) {
            Next::Ask(node) => {
                let ask = Ask::Read {
                    band: wanted.name,
                    generation: self.config.generation,
                    slot: wanted.slot,
                    count: wanted.count,
                    urgent: wanted.urgent,
                };
                self.parked.take(id);
                self.ask(node, Purpose::Read { id, block }, ask);
            }
            Next::Wait => {
                let nodes = members.iter().map(|&(node, _)| node);
                let full = nodes.filter(|&node| self.nodes.is_full(node)).collect();
                self.parked.park(id, full);
            }
            Next::End => return self.end_read(id),
        }
        self.set_read_timer(id);
    }

    fn set_read_timer(&mut self, id: u64) {
        let at = self.reads.deadline(self.now, id);
        let Some(read) = self.reads.get_mut(id) else { return };
        self.timers.move_to(&mut read.timer, at, Timer::Read(id));
    }

    fn end_read(&mut self, id: u64) {
        self.parked.take(id);
        let into = self.into.remove(&id).flatten();
        let Some(Read { wanted, got, timer, .. }) = self.reads.end(id) else { return };
        if let Some(at) = timer {
            self.timers.clear(at, Timer::Read(id));
        }
        let mut lost = 0;
        let of = |slot: Option<Slot<D>>| match slot {
            Some(slot) if slot.is_lost() => {
                lost += 1;
                // Zeroes, which are not what the FTL's header speaks of: it tells by that whose block is damaged.
                let slot = Slot { crc: ZEROES_CRC, ..slot };
                SlotEnd { status: SlotStatus::Ok, slot: Some(slot) }
            }
            Some(slot) => SlotEnd { status: SlotStatus::Ok, slot: Some(slot) },
            None => {
                lost += 1;
                SlotEnd { status: SlotStatus::Uncorrectable, slot: None }
            }
        };
        let slots: Vec<SlotEnd<D>> = got.into_iter().map(of).collect();
        self.counters.slots_lost += lost;
        let durable = self.config.geometry.durable_at_completion;
        self.give_read(End::Read { tag: wanted.tag, into, slots: Ok(slots), durable });
    }

    /// Gives a read that has ended, while the lease holds.
    fn give_read(&mut self, end: End<D>) {
        if self.now < self.lease_until && self.held.is_empty() {
            self.ended(end);
        } else {
            self.held.push_back(end);
        }
    }

    pub(super) fn renewed(&mut self, until: Instant) {
        self.lease_until = self.lease_until.max(until);
        if self.now < self.lease_until {
            while let Some(end) = self.held.pop_front() {
                self.ended(end);
            }
        }
    }

    // Programs.

    /// Sends members of an open band what they lack, and looks after it in time.
    pub(super) fn send_pages(&mut self, block: BlockId) {
        let now = self.now;
        loop {
            let nodes = &self.nodes;
            let Some((node, name, page, ask)) =
                self.programs.next(now, block, |node| nodes.has_room(node))
            else {
                break;
            };
            self.ask(node, Purpose::Append { name, page }, ask);
        }
        if self.programs.is_stalled(block, now) {
            self.stalled.insert(block);
        } else {
            self.stalled.remove(&block);
        }
        let Some(at) = self.programs.deadline(now, block) else {
            if let Some(old) = self.band_timers.remove(&block) {
                self.timers.clear(old, Timer::Band(block));
            }
            return;
        };
        if self.band_timers.get(&block).is_none_or(|&set| set > at) {
            if let Some(old) = self.band_timers.insert(block, at) {
                self.timers.clear(old, Timer::Band(block));
            }
            self.timers.set(at, Timer::Band(block));
        }
    }

    fn step(&mut self, block: BlockId, step: Step) {
        match step {
            Step::None => {}
            Step::Grew { done, pages, full } => {
                self.directory.grow(block, pages);
                for tag in done {
                    self.counters.programs += 1;
                    self.ended(End::Program { tag, result: Ok(()) });
                }
                if full {
                    self.directory.close(block);
                    if let Some(held) = self.directory.held(block) {
                        let (name, nodes) = (held.name, held.nodes.clone());
                        self.chores.seal(name, &nodes, pages);
                    }
                    self.weights_stale = true;
                }
            }
            Step::Cut { name, nodes, pages, tags } => {
                self.counters.cuts += 1;
                self.directory.close(block);
                match name {
                    Some(name) if pages > 0 => self.chores.seal(name, &nodes, pages),
                    Some(name) => self.chores.free(name, &nodes, None),
                    None => {}
                }
                for tag in tags {
                    self.counters.programs_cut += 1;
                    self.ended(End::Program { tag, result: Err(MediumError::Cut) });
                }
                self.weights_stale = true;
            }
            Step::Again { name, nodes } => {
                self.counters.openings_again += 1;
                self.directory.close(block);
                self.chores.free(name, &nodes, None);
                self.weights_stale = true;
            }
        }
        self.send_pages(block);
    }

    /// Gives openings to bands that wait for one.
    fn bind(&mut self) {
        for block in self.programs.waiting() {
            let Some(opening) = self.lanes.take(self.now, block, &mut self.nodes) else { continue };
            self.directory.open(opening.name, opening.members.nodes());
            self.programs.bind(self.now, &opening);
            self.weights_stale = true;
            self.send_pages(block);
        }
        if !self.weights_stale && !self.lanes.is_changed() {
            return;
        }
        let mut unused = Vec::new();
        let batch = self.lanes.refill(self.now, &mut self.nodes, &mut self.random, &mut unused);
        if !unused.is_empty() {
            self.counters.openings_unused += unused.len() as u64;
            self.outputs.push_back(Output::Unused(unused));
        }
        if !batch.is_empty() {
            self.counters.registrations += 1;
            self.outputs.push_back(Output::Register(batch));
        }
    }

    // Nodes.

    pub(super) fn up(&mut self, facts: NodeFacts) {
        if self.nodes.is_up(facts.node) {
            // A connection took the place of one whose end nobody noticed.
            self.down(facts.node);
        }
        if self.nodes.up(facts) {
            self.break_alone(facts.node);
            self.directory.listed(facts.node);
            self.end_short();
            self.weights_stale = true;
            self.chores.stir();
            self.unpark();
        }
    }

    /// Open bands with fewer members than bands have that are opened now end, so that repair sees to them: one that is
    /// seldom written to would have one copy for as long as it is open.
    fn end_short(&mut self) {
        let open = self.programs.open();
        let members = open.filter(|(_, nodes)| !nodes.is_empty());
        let members: Vec<(BlockId, usize)> =
            members.map(|(block, nodes)| (block, nodes.len())).collect();
        for (block, members) in members {
            if self.lanes.is_short(self.now, members, &mut self.nodes) {
                self.fail(block);
            }
        }
    }

    /// Those of nodes that leave end where enough others take bands, so that repair moves them, too.
    fn end_leaving(&mut self) {
        let leaving: Vec<NodeId> = self.nodes.leaving().collect();
        let open: Vec<BlockId> =
            leaving.iter().flat_map(|node| self.programs.blocks_of(*node)).collect();
        if !open.is_empty() && self.lanes.can_do_without(self.now, &leaving, &mut self.nodes) {
            open.into_iter().for_each(|block| self.fail(block));
        }
    }

    /// The band takes no more pages, or gets another opening.
    fn fail(&mut self, block: BlockId) {
        let step = self.programs.fail(block);
        self.step(block, step);
    }

    pub(super) fn down(&mut self, node: NodeId) {
        let purposes = self.nodes.down(node);
        self.lost(node, purposes);
    }

    pub(super) fn removed(&mut self, node: NodeId) {
        let purposes = self.nodes.remove(node);
        self.lost(node, purposes);
        self.break_alone(node);
        self.directory.listed(node);
        self.chores.forget(node);
        self.unpark();
    }

    /// What a node was asked will not be answered.
    fn lost(&mut self, node: NodeId, purposes: Vec<Purpose>) {
        let mut reads = Vec::new();
        for purpose in purposes {
            match purpose {
                Purpose::Read { id, .. } => {
                    self.reads.lost(id, node);
                    reads.push(id);
                }
                Purpose::Chore { name, what } => self.chores.again(node, name, what, self.now),
                // Its bands are failed below, and flushes are told.
                Purpose::Append { .. } | Purpose::Flush { .. } => {}
            }
        }
        self.unflushed(node, true);
        self.chores.stir();
        self.weights_stale = true;
        reads.into_iter().for_each(|id| self.drive_read(id));
    }

    /// What a node has not flushed is lost there, as far as anybody knows; and it fails its open bands. With `hopes` it
    /// may turn out to have all of it when it is back, which counts where there is no other copy.
    fn unflushed(&mut self, node: NodeId, hopes: bool) {
        self.programs.blocks_of(node).into_iter().for_each(|block| self.fail(block));
        for name in self.flushes.down(node) {
            self.counters.unflushed_lost += 1;
            let Some(pages) = self.directory.life(name).map(|held| held.pages) else { continue };
            if self.directory.remove(name, node) {
                self.directory.miss(name, node);
                // Its seal may be under way still: what it has of the band by then is told when it is back.
                self.flushes.hold(name);
                self.outputs.push_back(Output::Ends { name, pages });
            } else if hopes {
                self.flushes.wait_for(name);
            } else {
                self.flushes.break_all();
            }
        }
    }

    /// A node is back and has told of all that it has whole, or never comes back: what only it could have had by now is
    /// lost.
    fn break_alone(&mut self, node: NodeId) {
        let was_its = |name: BandName| {
            self.directory.life(name).is_some_and(|held| held.nodes.contains(&node))
        };
        if self.flushes.alone().any(was_its) {
            self.flushes.break_all();
        }
    }

    /// What the node has not flushed does not count, until it is taken in anew.
    fn give_up(&mut self, node: NodeId) {
        self.unflushed(node, false);
        self.outputs.push_back(Output::Unflushed(node));
    }

    /// Gives up nodes that keep the first flush from ending, where that takes the last copy of nothing.
    fn look_after_flush(&mut self) {
        let limit_ns = self.config.flush_limit_ns;
        if self.flushes.late_at(limit_ns).is_none_or(|at| at > self.now) {
            return;
        }
        let late = self.flushes.waits_for();
        let others = self.lanes.can_do_without(self.now, &late, &mut self.nodes);
        let spared = |name: BandName| {
            self.directory.life(name).is_none_or(|held| {
                held.nodes.iter().any(|node| !late.contains(node) && self.nodes.is_up(*node))
            })
        };
        let can_go = |node: &NodeId| others && self.flushes.unflushed(*node).all(spared);
        let gone: Vec<NodeId> = late.iter().copied().filter(can_go).collect();
        for &node in &gone {
            self.counters.late_flushes += 1;
            self.nodes.late(self.now, node);
            self.give_up(node);
        }
        if gone.len() < late.len() {
            self.flushes.wait_on(self.now);
        }
    }

    fn set_flush_timer(&mut self) {
        let at = self.flushes.late_at(self.config.flush_limit_ns);
        self.timers.move_to(&mut self.flush_timer, at, Timer::Flushes);
    }

    pub(super) fn copied(&mut self, band: BandName, node: NodeId) {
        if self.chores.frees(node, band) {
            // The node is asked to free it, or will be: that cannot be taken back.
            return;
        }
        if self.directory.add(band, node) {
            self.flushes.found(band);
            self.unpark();
        } else {
            // It was freed, or opened again, while the copy was made.
            self.chores.add(node, band, What::Free);
        }
    }

    pub(super) fn damaged(&mut self, band: BandName, node: NodeId) {
        let block = BlockId(band.band);
        if self.programs.is_of(block, band) {
            let mut step = self.programs.fail(block);
            if let Step::Cut { nodes, .. } = &mut step {
                // Its copy is none: nobody is to count it for its seal.
                nodes.retain(|&other| other != node);
            }
            self.step(block, step);
        }
        self.directory.distrust(band, node);
        self.unpark();
    }

    /// Reads that wait for a member may find one.
    fn unpark(&mut self) {
        self.parked.all().into_iter().for_each(|id| self.drive_read(id));
    }

    /// This node has room: for as many of those that wait for it as it takes.
    fn unpark_at(&mut self, node: NodeId) {
        while self.nodes.has_room(node) {
            let Some(id) = self.parked.next_at(node) else { return };
            self.drive_read(id);
        }
    }

    // Answers.

    pub(super) fn answer(&mut self, node: NodeId, id: AskId, answer: Answer<D>, signals: Signals) {
        let was_full = !self.nodes.has_room(node);
        let Some((asked, fell)) = self.nodes.answered(self.now, node, id, signals) else { return };
        self.weights_stale |= fell;
        if let Answer::Refused(Refusal::Stale { highest }) = answer {
            return self.end_all(Over::Stale { highest });
        }
        match asked.purpose {
            Purpose::Append { name, page } => {
                self.directory.heard(BlockId(name.band), node, self.now, signals);
                self.appended(node, name, page, &answer);
            }
            Purpose::Read { id, block } => {
                self.directory.heard(block, node, self.now, signals);
                self.answered_read(node, id, self.now - asked.at, answer);
            }
            Purpose::Chore { name, what } => self.chore_done(node, name, what, &answer),
            Purpose::Flush { number } => match answer {
                Answer::Done => {
                    self.flushes.done(self.now, node, number);
                    self.outputs.push_back(Output::Flushed(node));
                }
                Answer::Refused(Refusal::Busy) => {
                    self.timers.set(self.now + self.config.retry_ns, Timer::Flush(node));
                }
                // What it has not flushed it may never.
                _ => self.give_up(node),
            },
        }
        if was_full {
            let stalled: Vec<BlockId> = self.stalled.iter().copied().collect();
            stalled.into_iter().for_each(|block| self.send_pages(block));
            self.unpark_at(node);
        }
        if self.chores.count(node) > 0 {
            self.send_chores(node);
        }
    }

    fn appended(&mut self, node: NodeId, name: BandName, page: u32, answer: &Answer<D>) {
        let step = match *answer {
            Answer::Done => {
                if !self.nodes.is_durable(node) {
                    self.flushes.wrote(node, name);
                }
                self.programs.done(name, node, page)
            }
            Answer::Refused(why) => {
                self.counters.appends_refused += 1;
                self.counters.busy += u64::from(why == Refusal::Busy);
                let shy_ns = match why {
                    Refusal::Mode => self.config.shy_ns,
                    // That does not change soon.
                    Refusal::Full | Refusal::Failed => FULL_SHY * self.config.shy_ns,
                    // Its raw blocks are too small for such a band, most likely.
                    Refusal::Invalid if page == 0 => {
                        self.nodes.note_unfit(node);
                        FULL_SHY * self.config.shy_ns
                    }
                    _ => 0,
                };
                self.nodes.shy(node, self.now + shy_ns);
                let retry = self.config.retry_ns;
                self.programs.refused(self.now, name, node, page, why, retry)
            }
            Answer::Slots(_) | Answer::Bands { .. } => {
                // It speaks of something else: not to be trusted with this band.
                self.programs.refused(self.now, name, node, page, Refusal::Invalid, 0)
            }
        };
        self.step(BlockId(name.band), step);
    }

    fn answered_read(&mut self, node: NodeId, id: u64, took_ns: u64, answer: Answer<D>) {
        match answer {
            Answer::Slots(slots) => self.reads.slots(id, node, took_ns, slots),
            Answer::Refused(Refusal::Busy) => {
                self.counters.busy += 1;
                self.reads.busy(id, node, self.now + self.config.retry_ns);
            }
            _ => {
                self.counters.reads_refused += 1;
                self.reads.lacks(id, node);
            }
        }
        self.drive_read(id);
    }

    fn chore_done(&mut self, node: NodeId, name: BandName, what: What, answer: &Answer<D>) {
        match *answer {
            Answer::Done => self.chore_well_done(node, name, what),
            Answer::Refused(Refusal::Sealed { pages }) if what == What::Seal(pages) => {
                self.chore_well_done(node, name, what);
            }
            Answer::Refused(Refusal::NoBand | Refusal::Invalid | Refusal::Sealed { .. }) => {
                // It has nothing of it, less than it had said, or another end.
                self.chores.gave_up(node, name, what);
                self.directory.remove(name, node);
            }
            Answer::Refused(Refusal::Busy) => {
                self.chore_again(node, name, what, self.config.retry_ns);
            }
            _ => self.chore_again(node, name, what, CHORE_RETRY_NS),
        }
    }

    fn chore_well_done(&mut self, node: NodeId, name: BandName, what: What) {
        self.chores.done(node, name, what);
        if !self.nodes.is_durable(node) {
            self.flushes.changed(node);
        }
        if matches!(what, What::Free) {
            self.directory.remove(name, node);
        }
    }

    fn chore_again(&mut self, node: NodeId, name: BandName, what: What, after_ns: u64) {
        let at = self.now + after_ns;
        self.chores.again(node, name, what, at);
        self.timers.set(at, Timer::Chores);
    }

    // What follows from any of them.

    /// Timers that are due.
    pub(super) fn fire(&mut self) {
        while self.over.is_none()
            && let Some(timer) = self.timers.pop(self.now)
        {
            match timer {
                Timer::Band(block) => {
                    self.band_timers.remove(&block);
                    self.look_after(block);
                }
                Timer::Read(id) => {
                    if let Some(read) = self.reads.get_mut(id) {
                        read.timer = None;
                    }
                    self.drive_read(id);
                }
                Timer::Flush(node) if self.nodes.has_room(node) => self.ask_flush(node),
                Timer::Flush(node) if self.nodes.is_up(node) => {
                    self.timers.set(self.now + self.config.retry_ns, Timer::Flush(node));
                }
                // What it had not flushed is dealt with.
                Timer::Flush(_) => {}
                Timer::Flushes => {
                    self.flush_timer = None;
                    self.look_after_flush();
                }
                Timer::Chores => self.chores.stir(),
                Timer::Nodes => {
                    self.nodes_timer = None;
                    self.weights_stale = true;
                }
            }
        }
    }

    /// Cuts a band that a member is late with, if others could take its place.
    fn look_after(&mut self, block: BlockId) {
        let late = self.programs.late(self.now, block);
        for &node in &late {
            self.counters.late_programs += 1;
            self.weights_stale |= self.nodes.late(self.now, node);
        }
        if late.is_empty() || !self.lanes.can_do_without(self.now, &late, &mut self.nodes) {
            if !late.is_empty() {
                self.programs.wait_on(self.now, block);
            }
            self.send_pages(block);
            return;
        }
        for &node in &late {
            self.nodes.shy(node, self.now + self.config.shy_ns);
        }
        self.fail(block);
    }

    pub(super) fn pump(&mut self) {
        self.weights_stale |= self.nodes.expire(self.now);
        if self.weights_stale {
            self.end_leaving();
        }
        self.bind();
        if self.chores.is_stirred() {
            for node in self.chores.nodes() {
                self.send_chores(node);
            }
            let settled = self.chores.settle(self.now, &self.nodes);
            self.outputs.extend(settled.closed.into_iter().map(Output::Closed));
            for (tag, block) in settled.tags.into_iter().zip(settled.erases) {
                self.erased(tag, block);
            }
        }
        while let Some((tag, well)) = self.flushes.ended() {
            let result = if well { Ok(()) } else { Err(MediumError::FlushFailed) };
            self.ended(End::Flush { tag, result });
        }
        self.set_flush_timer();
        if std::mem::take(&mut self.weights_stale) {
            self.weigh();
        }
        self.set_nodes_timer();
    }

    fn send_chores(&mut self, node: NodeId) {
        while self.nodes.has_room(node)
            && let Some((name, what, ask)) =
                self.chores.next(self.now, node, self.config.generation)
        {
            self.ask(node, Purpose::Chore { name, what }, ask);
        }
    }

    pub(super) fn ask_flush(&mut self, node: NodeId) {
        let ask = Ask::Flush { volume: self.config.volume, generation: self.config.generation };
        if let Some(number) = self.flushes.number(node) {
            self.ask(node, Purpose::Flush { number }, ask);
        }
    }

    fn ask(&mut self, node: NodeId, purpose: Purpose, ask: Ask<D>) {
        let id = self.nodes.ask(self.now, node, purpose);
        self.counters.asks += 1;
        self.outputs.push_back(Output::Ask { node, id, ask });
    }

    fn set_nodes_timer(&mut self) {
        let retry = WANTED_RETRIES * self.config.retry_ns;
        let wanted = self.lanes.is_wanted().then_some(self.now + retry);
        let rises = self.nodes.recovers(self.now).then_some(self.now + WEIGH_NS);
        let plan = self.nodes.plan_until();
        let lingers = self.nodes.lingers_until(self.now);
        let times = wanted.into_iter().chain(rises).chain(lingers).chain(plan);
        let Some(at) = times.min() else { return };
        if self.nodes_timer.is_none_or(|set| set > at) {
            if let Some(old) = self.nodes_timer.replace(at) {
                self.timers.clear(old, Timer::Nodes);
            }
            self.timers.set(at, Timer::Nodes);
        }
    }

    // The end.

    /// Everything under way ends with an error, and nothing is asked any more.
    pub(super) fn end_all(&mut self, over: Over) {
        self.over = Some(over);
        self.outputs.push_back(Output::Fenced(over));
        let gone = MediumError::UnitGone;
        for tag in self.programs.end() {
            self.ended(End::Program { tag, result: Err(gone) });
        }
        for id in self.reads.ids() {
            if let Some(Read { wanted, .. }) = self.reads.end(id) {
                let into = self.into.remove(&id).flatten();
                self.ended(End::Read { tag: wanted.tag, into, slots: Err(gone), durable: false });
            }
        }
        while let Some(end) = self.held.pop_front() {
            let End::Read { tag, into, .. } = end else { continue };
            self.ended(End::Read { tag, into, slots: Err(gone), durable: false });
        }
        for tag in self.chores.erases() {
            self.ended(End::Erase { tag, result: Err(gone) });
        }
        for tag in self.flushes.end() {
            self.ended(End::Flush { tag, result: Err(MediumError::FlushFailed) });
        }
        self.timers = super::timers::Timers::default();
    }

    /// The client is over: a command ends as soon as it comes.
    pub(super) fn end_at_once(&mut self, input: &Input<D>) {
        let gone = MediumError::UnitGone;
        let end = match *input {
            Input::Program { tag, .. } => End::Program { tag, result: Err(gone) },
            Input::Command(Command::Read { tag, into, .. }) => {
                End::Read { tag, into, slots: Err(gone), durable: false }
            }
            Input::Command(Command::Erase { tag, .. }) => End::Erase { tag, result: Err(gone) },
            Input::Command(Command::Finish { tag, .. }) => End::Finish { tag },
            Input::Command(Command::Flush { tag }) => {
                End::Flush { tag, result: Err(MediumError::FlushFailed) }
            }
            _ => return,
        };
        self.ended(end);
    }
}
