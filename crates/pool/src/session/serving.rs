//! A volume that was opened: carries what one part says to the others, until it is given back or lost.

mod erases;
mod members;
mod rejoins;
mod seals;

use super::members::{Members, Read};
use super::standing::{Standing, Step};
use super::view::{View, known};
use super::{Input, Note, Output, Part, SessionConfig};
use crate::client::{self, Closed, Directory, End, Over, Remote};
use crate::control::mutant::Mutant;
use crate::control::ownership::{Ownership, OwnershipInput, OwnershipOutput};
use crate::control::registry::{Busy, Registry, RegistryOutput};
use crate::control::values::{BandRecord, Degraded, NodeRecord, NodeState};
use crate::message::{Answer, AskId, NodeFacts, Signals};
use crate::opening::{KnownBand, Opened, Rejoin};
use crate::repair::{Progress, Repair, RepairInput, RepairOutput};
use crate::words::{BandName, DomainId, Generation, Members as Nodes, NodeId, VolumeId};
use flash::{BlockId, Command, Instant, MediumError, SECOND, Tag};
use seals::{SETTLES, Seals};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the head of this file.
pub(super) struct Serving<D> {
    now: Instant,
    volume: VolumeId,
    generation: Generation,
    /// By which nodes know this opening.
    owner: u64,
    /// Copies that a band should have.
    replicas: usize,
    bands: u32,
    /// It was told that the volume has more by now.
    is_outgrown: bool,
    /// The FTL takes what is answered for durable: nodes that are not get no bands.
    only_durable: bool,
    ownership: Ownership,
    registry: Registry,
    remote: Remote<D>,
    repair: Repair<D>,
    members: Members,
    records: BTreeMap<NodeId, NodeRecord>,
    links: BTreeMap<NodeId, Link<D>>,
    /// What nodes last said of themselves.
    facts: BTreeMap<NodeId, NodeFacts>,
    /// When repair is told what they have said since.
    views_at: Option<Instant>,
    /// Nodes that the next opening does not ask.
    clear: BTreeSet<NodeId>,
    /// Those of which that is not on record yet: nothing may be put there any more.
    clearing: BTreeSet<NodeId>,
    /// Clear ones that are in again and were emptied: the next opening is to ask them, once that is on record.
    emptied: BTreeSet<NodeId>,
    standing: Standing,
    /// What the registry was too busy for.
    edits: VecDeque<Edit>,
    busy: BTreeSet<BandName>,
    overs: BTreeMap<BandName, Nodes>,
    /// Erases that wait until the control plane has kept that the life is over.
    erases: BTreeMap<BandName, Command>,
    /// Erases of lives that repair is copying, until it is known whether the target has them.
    copied: BTreeMap<BandName, Command>,
    /// Erases at the nodes: of which life, and who had it.
    erasing: BTreeMap<Tag, (BandName, Vec<NodeId>)>,
    /// Their ends, where the control plane is to keep first that a node still has the life.
    ends: BTreeMap<BandName, End<D>>,
    /// What the opening found to be freed, until it is.
    garbage: BTreeSet<(NodeId, BandName)>,
    seals: Seals,
    rejoins: u64,
    /// Nodes that would not flush: when the last time, and how long they waited then.
    distrusted: BTreeMap<NodeId, (Instant, u64)>,
    fenced: bool,
    releasing: bool,
    released: bool,
    mutant: Option<Mutant>,
    outputs: VecDeque<Output<D>>,
}

/// A connection to a node.
struct Link<D> {
    facts: NodeFacts,
    /// Asks of client and repair that it has not answered.
    asked: u32,
    stage: Stage<D>,
}

enum Stage<D> {
    /// It is not taken in before then.
    Waits(Instant),
    Rejoins(Box<Rejoin<D>>, u64),
    Joined,
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Register(client::Opening),
    Clear(NodeId),
    Unclear(NodeId),
}

impl<D: Clone> Serving<D> {
    pub fn new(
        now: Instant,
        config: &SessionConfig,
        (ownership, registry, members): (Ownership, Registry, Members),
        opened: &Opened,
        up: BTreeMap<NodeId, NodeFacts>,
    ) -> Result<Self, String> {
        let generation = ownership.generation().expect("it is owned");
        let (mut of_client, mut of_repair) = (config.client.clone(), config.repair);
        (of_client.generation, of_repair.generation) = (generation, generation);
        let (bands, volume) = (of_client.geometry.blocks(), of_client.volume);
        let only_durable = of_client.geometry.durable_at_completion;
        let remote = Remote::new(of_client, Directory::of(bands, opened))?;
        let nodes = opened.nodes.iter().map(|record| (record.node, record.clone()));
        let mut serving = Self {
            now,
            volume,
            generation,
            owner: config.opening.ownership.number(),
            replicas: opened.volume.replicas.into(),
            bands,
            is_outgrown: false,
            only_durable,
            ownership,
            registry,
            remote,
            repair: Repair::new(of_repair),
            members,
            records: nodes.collect(),
            links: BTreeMap::new(),
            facts: up.clone(),
            views_at: None,
            clear: opened.clear.iter().copied().collect(),
            clearing: BTreeSet::new(),
            emptied: BTreeSet::new(),
            standing: Standing::default(),
            edits: VecDeque::new(),
            busy: BTreeSet::new(),
            overs: BTreeMap::new(),
            erases: BTreeMap::new(),
            copied: BTreeMap::new(),
            erasing: BTreeMap::new(),
            ends: BTreeMap::new(),
            garbage: opened.garbage.iter().copied().collect(),
            seals: Seals::default(),
            rejoins: 0,
            distrusted: BTreeMap::new(),
            fenced: false,
            releasing: false,
            released: false,
            mutant: None,
            outputs: VecDeque::new(),
        };
        serving.begin(opened, up);
        Ok(serving)
    }

    pub fn plant(&mut self, mutant: Mutant) {
        self.ownership.plant(mutant);
        self.registry.plant(mutant);
        self.repair.plant(mutant);
        self.remote.plant(mutant);
        self.mutant = Some(mutant);
    }

    /// Something happened. True if the volume was given back.
    pub fn handle(
        &mut self,
        now: Instant,
        input: Input<'_, D>,
        outputs: &mut VecDeque<Output<D>>,
    ) -> bool {
        self.now = self.now.max(now);
        self.take(input);
        self.elapsed();
        self.pump();
        outputs.append(&mut self.outputs);
        self.released
    }

    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        if self.fenced {
            return self.remote.deadline();
        }
        let links = self.links.values().filter_map(|link| match &link.stage {
            Stage::Waits(at) => Some(*at).filter(|at| *at > now),
            Stage::Rejoins(rejoin, _) => rejoin.deadline(now),
            Stage::Joined => None,
        });
        let parts = [
            self.ownership.deadline(),
            self.registry.deadline(),
            self.remote.deadline(),
            self.repair.deadline(now),
            Some(self.members.deadline()),
            self.views_at,
        ];
        parts.into_iter().flatten().chain(links).min()
    }

    pub fn readable_until(&self) -> Option<Instant> {
        self.ownership.readable_until().filter(|_| !self.fenced)
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn remote(&self) -> &Remote<D> {
        &self.remote
    }

    pub fn progress(&self, now: Instant) -> Progress {
        let of_sealed = self.repair.progress(now);
        // Repair sees those that are sealed for good.
        let others = self.remote.open_lacking() + self.seals.count();
        Progress { lacking: of_sealed.lacking + others, ..of_sealed }
    }

    pub fn scrub_rounds(&self) -> u64 {
        self.repair.scrub_rounds()
    }

    pub fn records(&self) -> impl Iterator<Item = &BandRecord> {
        self.registry.records()
    }

    pub fn explain(&self, now: Instant) -> String {
        let mut text = format!("{}\n{}", self.ownership.explain(now), self.remote.explain());
        text.push_str(&format!(
            "{} lives of bands on record, {} erases wait for it\n",
            self.registry.records().count(),
            self.erases.len()
        ));
        let unsure = self.remote.directory().unsure();
        if unsure > 0 {
            text.push_str(&format!(
                "{unsure} bands may be on nodes that were not there when the volume was opened, and are not used anew yet\n"
            ));
        }
        for node in &self.clear {
            text.push_str(&format!("nothing is needed any more of node {}\n", node.0));
        }
        for (node, link) in &self.links {
            match &link.stage {
                Stage::Joined => {}
                Stage::Rejoins(..) => {
                    text.push_str(&format!("node {} is fenced and listed\n", node.0));
                }
                Stage::Waits(_) => text.push_str(&format!(
                    "node {} waits: it refused, or the control plane does not know it yet\n",
                    node.0
                )),
            }
        }
        if let Some(trouble) = self.registry.trouble() {
            text.push_str(&format!("{trouble}\n"));
        }
        if let Some(wrong) = self.members.wrong() {
            text.push_str(&format!("the nodes of the control plane are not read: {wrong}\n"));
        }
        text
    }

    /// What the opening found is told to all parts.
    fn begin(&mut self, opened: &Opened, up: BTreeMap<NodeId, NodeFacts>) {
        let now = self.now;
        let lease = client::Input::Lease { until: opened.lease_until };
        self.remote.handle(now, lease);
        self.outputs.push_back(Output::Lease { until: opened.lease_until });
        let degraded = opened.volume.degraded == Degraded::GoOn;
        self.remote.handle(now, client::Input::Degraded(degraded));
        for record in self.registry.records() {
            let name = record.name;
            let band = opened.band(name.band).filter(|band| band.name == name);
            let rid = opened.rid.iter().filter(|(_, of)| *of == name).map(|(node, _)| *node);
            let rid: Vec<NodeId> = rid.collect();
            match band {
                Some(band) => self.standing.found(record, band.pages, &band.holders, &rid),
                // Nobody who could be asked has all of it: the next opening may find more.
                None if opened.refused.contains(&name) => {}
                None => self.standing.found(record, 0, &[], &rid),
            }
        }
        let nodes: Vec<(NodeId, NodeState)> =
            self.records.values().map(|record| (record.node, record.state)).collect();
        for (node, state) in nodes {
            self.empty_again(node, state);
            self.tell(node);
        }
        self.views();
        for &(node, name) in &opened.garbage {
            self.repair(RepairInput::Garbage(node, name));
        }
        for &(node, name) in &opened.bad {
            self.repair(RepairInput::Bad(node, name));
        }
        for (node, facts) in up {
            let was_asked = !opened.away.contains(&node) && !self.clear.contains(&node);
            if was_asked && self.records.contains_key(&node) {
                self.links.insert(node, Link { facts, asked: 0, stage: Stage::Joined });
                self.joined(node);
            } else {
                self.links.insert(node, Link { facts, asked: 0, stage: Stage::Waits(now) });
            }
        }
    }

    fn take(&mut self, input: Input<'_, D>) {
        let now = self.now;
        match input {
            Input::Plane { id, answer } => {
                self.ownership.handle(now, OwnershipInput::Plane { id, answer });
                self.registry.answered(now, id, answer);
                match self.members.answered(now, id, answer) {
                    Some(Read::Nodes(nodes)) => self.nodes(nodes),
                    Some(Read::Volume(volume)) => {
                        let degraded = volume.degraded == Degraded::GoOn;
                        self.remote.handle(now, client::Input::Degraded(degraded));
                        if volume.bands > self.bands && !self.is_outgrown {
                            self.is_outgrown = true;
                            self.outputs.push_back(Output::Grown(Box::new(volume)));
                        }
                    }
                    None => {}
                }
            }
            Input::Up(facts) => self.up(facts),
            Input::Down { node } => self.down(node),
            Input::Answer { node, id, answer, signals } => self.answer(node, id, answer, signals),
            Input::Command(Command::Erase { tag, block }) => self.erase(tag, block),
            Input::Command(command) => self.remote.handle(now, client::Input::Command(command)),
            Input::Program { tag, slot, slots } => {
                self.remote.handle(now, client::Input::Program { tag, slot, slots });
            }
            Input::Checkpoints(checkpoints) => self.standing.checkpoints(checkpoints),
            Input::Plan(plan) => self.remote.handle(now, client::Input::Plan(plan)),
            Input::Facts(facts) => self.heard(facts),
            Input::Idle(idle) => self.repair(RepairInput::Idle(idle)),
            Input::Scrub => self.repair(RepairInput::Scrub),
            Input::Spread(share) => self.spread(share),
            Input::Release => {
                self.releasing = true;
                self.ownership.handle(now, OwnershipInput::Release);
            }
            Input::GoOn | Input::Deadline => {}
        }
    }

    // Nodes.

    fn answer(&mut self, node: NodeId, id: AskId, answer: Answer<D>, signals: Signals) {
        let now = self.now;
        match Part::of(id) {
            (Part::Client, id) => {
                self.answered(node);
                self.remote.handle(now, client::Input::Answer { node, id, answer, signals });
            }
            (Part::Repair, id) => {
                self.answered(node);
                self.repair(RepairInput::Node { node, id, answer: &answer });
            }
            (Part::Rejoin, AskId(id)) => {
                let Some(link) = self.links.get_mut(&node) else { return };
                let Stage::Rejoins(rejoin, number) = &mut link.stage else { return };
                if *number == id >> 32 {
                    let (directory, registry) = (self.remote.directory(), &self.registry);
                    let bands = self.bands;
                    let is_clear = self.clear.contains(&node);
                    let of = |name| match is_clear {
                        true => (KnownBand::Empty, None),
                        false => known(directory, registry, bands, name),
                    };
                    rejoin.answered(now, AskId(id & 0xffff_ffff), &answer, &of);
                }
            }
            // Of a node that came too late for the opening: it is fenced and listed anew.
            (Part::Opening, _) => {}
        }
    }

    // What follows.

    fn elapsed(&mut self) {
        let now = self.now;
        if self.fenced {
            return self.remote.handle(now, client::Input::Deadline);
        }
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if is_due(self.ownership.deadline()) {
            self.ownership.handle(now, OwnershipInput::Deadline);
        }
        if is_due(self.registry.deadline()) {
            self.registry.elapsed(now);
        }
        if is_due(self.remote.deadline()) {
            self.remote.handle(now, client::Input::Deadline);
        }
        if is_due(self.views_at) {
            self.views();
        }
        if is_due(self.repair.deadline(now)) {
            self.repair(RepairInput::Deadline);
        }
        if let Some((id, ask)) = self.members.elapsed(now) {
            self.outputs.push_back(Output::Plane { id, ask });
        }
        for link in self.links.values_mut() {
            if let Stage::Rejoins(rejoin, _) = &mut link.stage {
                rejoin.elapsed(now);
            }
        }
        self.admit();
    }

    fn pump(&mut self) {
        loop {
            let mut some = false;
            while let Some(output) = self.ownership.poll() {
                (some, _) = (true, self.of_ownership(output));
            }
            while let Some(output) = self.remote.poll() {
                (some, _) = (true, self.of_remote(output));
            }
            if self.fenced {
                if !some {
                    return;
                }
                continue;
            }
            while let Some(output) = self.registry.poll() {
                (some, _) = (true, self.of_registry(output));
            }
            some |= self.of_rejoins();
            self.edit();
            while let Some(name) = self.standing.next() {
                self.settle(name);
            }
            some |= self.settle_seals();
            if !some && self.registry.is_told() {
                return;
            }
        }
    }

    fn of_ownership(&mut self, output: OwnershipOutput) {
        let now = self.now;
        match output {
            OwnershipOutput::Ask { id, ask } => self.outputs.push_back(Output::Plane { id, ask }),
            OwnershipOutput::Held { until } => {
                self.remote.handle(now, client::Input::Lease { until });
                self.outputs.push_back(Output::Lease { until });
                if self.releasing {
                    // What became of the last try was not known.
                    self.ownership.handle(now, OwnershipInput::Release);
                }
            }
            OwnershipOutput::LeaseEnded | OwnershipOutput::Raised { .. } => {}
            OwnershipOutput::Lost { .. } | OwnershipOutput::Failed(_) => {
                self.remote.handle(now, client::Input::LeaseLost);
                if self.releasing {
                    self.release();
                }
            }
            OwnershipOutput::Released => self.release(),
        }
    }

    fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            self.outputs.push_back(Output::Released);
        }
    }

    fn of_remote(&mut self, output: client::Output<D>) {
        let output = match output {
            client::Output::Ask { node, id, ask } => {
                self.asked(node);
                Output::Ask { node, id: Part::Client.id(id), ask }
            }
            client::Output::Ended(End::Flush { tag: SETTLES, result }) => {
                return self.settled(result.is_ok());
            }
            client::Output::Ended(end) => return self.ended(end),
            client::Output::Register(openings) => {
                return self.edits.extend(openings.into_iter().map(Edit::Register));
            }
            client::Output::Unused(openings) => {
                for opening in openings {
                    self.unused(&opening);
                }
                return;
            }
            client::Output::Closed(closed) => return self.closed(&closed),
            client::Output::Ends { name, pages } => {
                self.standing.ends(name, pages);
                self.settle(name);
                return self.end_kept(name);
            }
            client::Output::Unflushed(node) => return self.distrust(node),
            client::Output::Flushed(_) => {
                return self.seals.take_postponed().into_iter().for_each(|name| self.settle(name));
            }
            client::Output::Weights(weights) => Output::Weights(weights),
            client::Output::Fenced(over) => {
                self.fenced = true;
                if let Over::Stale { highest } = over {
                    self.ownership.handle(self.now, OwnershipInput::Stale { highest });
                }
                return self.end_all(over);
            }
        };
        self.outputs.push_back(output);
    }

    /// The client is over: what waits here ends there.
    fn end_all(&mut self, over: Over) {
        self.outputs.push_back(Output::Fenced(over));
        let waiting = std::mem::take(&mut self.copied).into_values();
        for command in waiting.chain(std::mem::take(&mut self.erases).into_values()) {
            self.remote.handle(self.now, client::Input::Command(command));
        }
        for mut end in std::mem::take(&mut self.ends).into_values() {
            if let End::Erase { result, .. } = &mut end {
                *result = Err(MediumError::UnitGone);
            }
            self.outputs.push_back(Output::Ended(end));
        }
    }

    /// An opening that was never used: nobody has anything of it.
    fn unused(&mut self, opening: &client::Opening) {
        let name = opening.name;
        let waits = |edit: &Edit| matches!(edit, Edit::Register(of) if of.name == name);
        if self.edits.iter().any(waits) {
            // Nor has the control plane.
            return self.edits.retain(|edit| !waits(edit));
        }
        self.standing.unused(name, opening.members.nodes());
    }

    fn closed(&mut self, closed: &Closed) {
        let Closed { name, pages, sealed, nothing } = closed;
        if *pages == 0 && self.registry.record(*name).is_none() {
            let erased = self.erasing.values().find(|(of, _)| of == name);
            let left = erased.filter(|(_, nodes)| nodes.iter().any(|node| !nothing.contains(node)));
            if let Some((_, nodes)) = left.cloned() {
                self.over(*name, &nodes);
            }
        }
        let facts = &self.facts;
        let is_durable = |node| facts.get(&node).is_some_and(|facts: &NodeFacts| facts.durable);
        self.standing.closed(*name, *pages, (sealed, nothing), is_durable);
        self.sealed(closed);
        self.settle(*name);
    }

    fn of_registry(&mut self, output: RegistryOutput) {
        match output {
            RegistryOutput::Ask { id, ask } => self.outputs.push_back(Output::Plane { id, ask }),
            RegistryOutput::Registered(name) => {
                self.remote.handle(self.now, client::Input::Registered(name));
            }
            RegistryOutput::Decided(name) | RegistryOutput::Closed(name) => {
                self.standing.kept(name);
                self.end_kept(name);
            }
            RegistryOutput::Degraded(_) => {}
            RegistryOutput::Cleared(node) => {
                self.clearing.remove(&node);
                self.clear.insert(node);
                self.outputs.push_back(Output::Noted(Note::Clear(node)));
                if let Some(state) = self.records.get(&node).map(|record| record.state) {
                    self.empty_again(node, state);
                }
                self.tell(node);
                self.standing.stir();
            }
            RegistryOutput::Uncleared(node) => {
                self.clear.remove(&node);
                self.emptied.remove(&node);
                if let Some(link) = self.links.get_mut(&node) {
                    link.stage = Stage::Waits(self.now);
                }
                self.tell(node);
                self.views();
                self.admit();
            }
            // The next renewal tells whose the volume is.
            RegistryOutput::Lost => self.ownership.look(self.now),
        }
    }

    // Repair.

    fn repair(&mut self, input: RepairInput<'_, D>) {
        if self.fenced {
            return;
        }
        let coming = |(_, link): &(&NodeId, &Link<D>)| !matches!(link.stage, Stage::Joined);
        let coming: Vec<NodeId> = self.links.iter().filter(coming).map(|(node, _)| *node).collect();
        let view = View {
            directory: self.remote.directory(),
            registry: &self.registry,
            standing: &self.standing,
            bands: self.bands,
            coming: &coming,
            mutant: self.mutant,
        };
        self.repair.handle(self.now, input, &view);
        while let Some(output) = self.repair.poll() {
            self.of_repair(output);
        }
        self.erase_copied();
    }

    fn of_repair(&mut self, output: RepairOutput<D>) {
        match output {
            RepairOutput::Node { node, id, ask } => {
                self.asked(node);
                self.outputs.push_back(Output::Ask { node, id: Part::Repair.id(id), ask });
            }
            RepairOutput::Joined(band, node) => self.take_copy(band, node),
            RepairOutput::Left(name, node) => self.forget_copy(name, node),
            RepairOutput::Freed(name, node) => {
                self.standing.rid(name, node);
                if self.garbage.remove(&(node, name)) && self.garbage.is_empty() {
                    self.standing.stir();
                }
            }
            RepairOutput::Recall(name, node) => self.recall(name, node),
            RepairOutput::Damaged(name, node) => {
                self.distrust_copy(name, node);
                self.tell_end(name);
                self.outputs.push_back(Output::Noted(Note::Damaged(name, node)));
            }
            RepairOutput::Unlike(name, nodes) => {
                self.outputs.push_back(Output::Noted(Note::Unlike(name, nodes)));
            }
            RepairOutput::NotWhole(name) => {
                if self.remote.directory().life(name).is_some() {
                    self.outputs.push_back(Output::Refresh(BlockId(name.band)));
                }
            }
            RepairOutput::Clear(node) => {
                self.clearing.insert(node);
                self.edits.push_back(Edit::Clear(node));
            }
            RepairOutput::Stale(highest) => {
                self.ownership.handle(self.now, OwnershipInput::Stale { highest });
            }
        }
    }

    /// Where a life ends goes on record now, if that is still open: repair waits for it.
    fn tell_end(&mut self, name: BandName) {
        let Some(pages) = self.remote.directory().life(name).map(|held| held.pages) else { return };
        if self.registry.record(name).is_some_and(|record| record.sealed.is_none()) {
            self.standing.ends(name, pages);
            self.settle(name);
        }
    }

    // The record.

    fn edit(&mut self) {
        let now = self.now;
        while let Some(edit) = self.edits.front().copied() {
            let done: Result<(), Busy> = match edit {
                Edit::Register(of) => self.registry.register(now, of.name, of.members),
                Edit::Clear(node) => self.registry.clear(now, node),
                Edit::Unclear(node) => self.registry.unclear(now, node),
            };
            if done.is_err() {
                break;
            }
            self.edits.pop_front();
        }
        for name in std::mem::take(&mut self.busy) {
            self.settle(name);
        }
        for (name, members) in std::mem::take(&mut self.overs) {
            self.over(name, members.nodes());
        }
    }

    /// Brings a record as far as it can come.
    fn settle(&mut self, name: BandName) {
        let Some(record) = self.registry.record(name).copied() else {
            return self.end_kept(name);
        };
        let links = &self.links;
        let records = &self.records;
        let is_in = |node| records.get(&node).is_some_and(|of| of.state == NodeState::In);
        let is_here = |node| {
            let link = links.get(&node);
            is_in(node) && link.is_some_and(|link| matches!(link.stage, Stage::Joined))
        };
        let (all_listed, clear) = (self.all_listed(), &self.clear);
        let step = self.standing.step(&record, all_listed, is_here, |node| clear.contains(&node));
        let done = match step {
            Step::None => return,
            Step::Decide(pages) if pages > 0 && !self.remote.is_durable(name) => {
                return self.seals.postpone(name);
            }
            Step::Decide(pages) => self.registry.decide(self.now, name, pages),
            Step::Close { pages, holders, rid } => {
                let domain = |node: &NodeId| {
                    let of = records.get(node).filter(|of| of.state.counts())?;
                    Some((*node, of.domain))
                };
                let holders: Vec<(NodeId, DomainId)> = holders.iter().filter_map(domain).collect();
                let rid = if Mutant::ClosedUnsealed.is(self.mutant) {
                    record.members.nodes().to_vec()
                } else {
                    rid
                };
                self.registry.close(self.now, name, pages, (&holders, &rid))
            }
        };
        match done {
            Ok(()) => self.standing.changes(name),
            Err(Busy) => drop(self.busy.insert(name)),
        }
    }
}

/// A node that would not be fenced or listed is asked again after this.
const REJOIN_NS: u64 = SECOND;
