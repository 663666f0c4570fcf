//! Repair of a directory of sealed bands over a few nodes: nodes fail and come back, are drained and given up, copies
//! rot, bands are freed meanwhile. Watched at every step: a band that the volume needs never has fewer whole copies
//! than faults explain, no copy is freed that another did not take the place of, and in the end all is well.

use crate::nodes::{Band, Node, page};
use flash::{Instant, MILLISECOND, Random, SECOND};
use pool::control::mutant::Mutant;
use pool::control::values::NodeState;
use pool::message::{Answer, Ask, AskId, BandHeader, Refusal};
use pool::repair::{
    Directory, NodeView, Progress, Repair, RepairConfig, RepairInput, RepairOutput, SealedBand,
};
use pool::words::{BandName, BandShape, DomainId, Generation, Members, NodeId, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const SEEDS: u64 = 100;
const NODES: u32 = 6;
const REPLICAS: usize = 2;
const BANDS: u32 = 40;
const SHAPE: BandShape = BandShape { pages: 4, slots_per_page: 1 };
const GENERATION: Generation = Generation(5);

/// What the client knows.
#[derive(Default)]
struct Known {
    bands: BTreeMap<u32, SealedBand>,
    /// Of them, those that take more pages.
    open: BTreeSet<u32>,
    /// Lives that the control plane has as ones that lack a copy.
    on_record: BTreeSet<BandName>,
}

impl Known {
    fn sealed(&self) -> impl Iterator<Item = BandName> {
        let sealed = self.bands.iter().filter(|(band, _)| !self.open.contains(band));
        sealed.map(|(_, band)| band.name)
    }
}

impl Directory for Known {
    fn next(&self, after: Option<u32>) -> Option<SealedBand> {
        let from = after.map_or(0, |after| after + 1);
        let mut sealed = self.bands.range(from..).filter(|(band, _)| !self.open.contains(band));
        sealed.next().map(|(_, band)| band.clone())
    }

    fn band(&self, band: u32) -> Option<SealedBand> {
        self.bands.get(&band).filter(|_| !self.open.contains(&band)).cloned()
    }

    fn next_written(&self, after: Option<u32>) -> Option<SealedBand> {
        let from = after.map_or(0, |after| after + 1);
        self.bands.range(from..).next().map(|(_, band)| band.clone())
    }

    fn written(&self, band: u32) -> Option<SealedBand> {
        self.bands.get(&band).cloned()
    }

    fn is_over(&self, name: BandName) -> bool {
        self.bands.get(&name.band).is_none_or(|band| band.name != name)
    }

    fn is_on_record(&self, name: BandName) -> bool {
        self.on_record.contains(&name)
    }

    fn may_have_more(&self, _: NodeId) -> bool {
        false
    }
}

struct World {
    now: u64,
    random: Random,
    repair: Repair<u64>,
    known: Known,
    nodes: Vec<Node>,
    views: Vec<NodeView>,
    up: Vec<bool>,
    /// Counts connections that began and ended.
    links: Vec<u64>,
    /// Answers and asks on their way, by time.
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    wake_at: u64,
    lives: u64,
    /// Copies of which this page cannot be read.
    rotten: BTreeMap<(NodeId, BandName), u32>,
    /// Damaged copies that went before there was another one.
    places: u64,
    clear: BTreeSet<NodeId>,
    /// Copies may be sound and unlike.
    takes_unlike: bool,
    /// Whoever wrote a band writes it elsewhere when he is told that nobody has all of it; of which he was told.
    rewrites: bool,
    not_whole: BTreeSet<BandName>,
    copies: u64,
    frees: u64,
    damaged: u64,
    /// The most that went over the network in a second, in copies.
    copied_at: Vec<u64>,
}

enum Event {
    Ask(NodeId, u64, AskId, Ask<u64>),
    Answer(NodeId, u64, AskId, Answer<u64>),
    Wake,
    Chaos,
    Rewrite(BandName),
}

fn domain(node: u32) -> DomainId {
    DomainId(node / 2)
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> Self {
        Self::of(seed, (0..NODES).collect(), mutant)
    }

    /// Only these nodes take copies.
    fn of(seed: u64, takes: Vec<u32>, mutant: Option<Mutant>) -> Self {
        let mut config = RepairConfig::new(GENERATION, REPLICAS as u8, SHAPE);
        (config.absence_ns, config.copies_max) = (2 * SECOND, 3);
        config.bytes_per_s_max = 40 * 4 * 4096;
        config.scrub_bytes_per_s = 50 * 4096;
        let mut repair = Repair::new(config);
        if let Some(mutant) = mutant {
            repair.plant(mutant);
        }
        let view = |node| NodeView {
            node: NodeId(node),
            domain: domain(node),
            state: NodeState::In,
            durable: node != 1,
            bands: 2 * BANDS,
            bands_used: 0,
            want: f64::from(u8::from(takes.contains(&node))),
        };
        let mut world = Self {
            now: 0,
            random: Random::new(seed),
            repair,
            known: Known::default(),
            nodes: vec![Node { list_max: 100, ..Node::default() }; NODES as usize],
            views: (0..NODES).map(view).collect(),
            up: vec![true; NODES as usize],
            links: vec![0; NODES as usize],
            events: BTreeMap::new(),
            sequence: 0,
            wake_at: 0,
            lives: 0,
            rotten: BTreeMap::new(),
            places: 0,
            clear: BTreeSet::new(),
            takes_unlike: false,
            rewrites: true,
            not_whole: BTreeSet::new(),
            copies: 0,
            frees: 0,
            damaged: 0,
            copied_at: Vec::new(),
        };
        for band in 0..BANDS {
            world.write(band);
        }
        world.count();
        (0..NODES).for_each(|node| world.tell(RepairInput::Up(NodeId(node))));
        world.tell(RepairInput::Idle(true));
        world
    }

    /// A band is written to two nodes of different domains, more often to the first ones, and sealed.
    fn write(&mut self, band: u32) {
        let mut nodes: Vec<u32> = Vec::new();
        for _ in 0..100 {
            let node =
                self.random.below(u64::from(NODES)).min(self.random.below(u64::from(NODES))) as u32;
            let takes = self.views[node as usize].want > 0.0 && self.up[node as usize];
            let fits = nodes.iter().all(|of| domain(*of) != domain(node)) && takes;
            if fits && self.views[node as usize].state == NodeState::In && nodes.len() < REPLICAS {
                nodes.push(node);
            }
        }
        if nodes.len() < REPLICAS {
            return;
        }
        self.lives += 1;
        let name = BandName { volume: VolumeId(1), band, life: self.lives };
        let holders: Vec<NodeId> = nodes.iter().map(|&node| NodeId(node)).collect();
        let members = Members::new(&holders).expect("different");
        let header = BandHeader { members, shape: SHAPE };
        let pages: Vec<_> =
            (0..SHAPE.pages).map(|at| page(self.lives << 8 | u64::from(at) | 1)).collect();
        for node in &holders {
            let band = Band { header, pages: pages.clone(), sealed: true };
            self.nodes[node.0 as usize].bands.insert(name, band);
        }
        self.known.bands.insert(band, SealedBand { name, pages: SHAPE.pages, holders });
    }

    fn count(&mut self) {
        for view in &mut self.views {
            view.bands_used = self.nodes[view.node.0 as usize].bands.len() as u32;
        }
        let views = self.views.clone();
        self.tell(RepairInput::Nodes(views));
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + after_ns, self.sequence), event);
    }

    fn tell(&mut self, input: RepairInput<'_, u64>) {
        let now = Instant(self.now);
        self.repair.handle(now, input, &self.known);
        while let Some(output) = self.repair.poll() {
            self.take(output);
        }
        self.watch();
        if let Some(at) = self.repair.deadline(now) {
            self.wake_at = at.0.max(self.now + 1000);
            self.at(self.wake_at - self.now, Event::Wake);
        }
    }

    fn take(&mut self, output: RepairOutput<u64>) {
        match output {
            RepairOutput::Node { node, id, ask } => {
                if let Ask::Free { band, .. } = &ask {
                    self.places +=
                        u64::from(self.check_free(node, *band, |state| state == NodeState::In));
                }
                let slow = u64::from(matches!(ask, Ask::Copy { .. })) * 70 * MILLISECOND;
                let delay = slow + self.random.below(5 * MILLISECOND);
                let link = self.links[node.0 as usize];
                self.at(delay, Event::Ask(node, link, id, ask));
            }
            RepairOutput::Joined(name, node) => {
                self.copies += 1;
                self.copied_at.push(self.now);
                let band = self.known.bands.get_mut(&name.band).expect("it is needed");
                assert_eq!(band.name, name);
                assert!(!band.holders.contains(&node), "{node:?} has {name:?} already");
                band.holders.push(node);
            }
            RepairOutput::Left(name, node) => self.forget(name, node),
            RepairOutput::Damaged(name, node) => {
                self.damaged += 1;
                assert!(self.rotten.contains_key(&(node, name)), "{name:?} on {node:?} is sound");
                // An open band ends where it is.
                self.known.open.remove(&name.band);
                self.forget(name, node);
            }
            RepairOutput::Freed(..) => self.frees += 1,
            RepairOutput::Recall(name, node) => {
                assert!(!self.known.bands[&name.band].holders.contains(&node), "{node:?} has it");
                self.known.on_record.insert(name);
            }
            RepairOutput::Unlike(name, nodes) => {
                assert!(self.takes_unlike, "{name:?} is unlike on {nodes:?}");
            }
            RepairOutput::NotWhole(name) => {
                let holders = &self.known.bands[&name.band].holders;
                let is_rotten = |node: &NodeId| self.rotten.contains_key(&(*node, name));
                assert!(holders.iter().all(is_rotten), "{name:?} is whole on one of {holders:?}");
                self.not_whole.insert(name);
                if self.rewrites {
                    self.at(SECOND, Event::Rewrite(name));
                }
            }
            RepairOutput::Clear(node) => {
                let held = self.known.bands.values().any(|band| band.holders.contains(&node));
                assert!(!held, "{node:?} still has what is needed");
                // An opening waits for one domain less then.
                for name in self.known.sealed().filter(|name| !self.known.on_record.contains(name))
                {
                    let beside = self.domains_beside(node, name, NodeState::counts);
                    assert!(
                        beside.len() >= REPLICAS,
                        "{node:?} is clear, {name:?} is in {beside:?}"
                    );
                }
                self.clear.insert(node);
            }
            RepairOutput::Stale(highest) => panic!("{highest:?} is nobody's"),
        }
    }

    fn forget(&mut self, name: BandName, node: NodeId) {
        if let Some(band) = self.known.bands.get_mut(&name.band).filter(|band| band.name == name) {
            band.holders.retain(|of| *of != node);
        }
    }

    /// Every holder that the directory names has the band, and of each page there is a copy that faults did not take.
    fn watch(&self) {
        for band in self.known.bands.values() {
            for node in &band.holders {
                let copy = self.nodes[node.0 as usize].bands.get(&band.name);
                let whole =
                    copy.is_some_and(|copy| copy.sealed && copy.pages.len() as u32 == band.pages);
                assert!(whole, "{node:?} does not have {band:?}");
            }
            let held = |node: u32| self.nodes[node as usize].bands.contains_key(&band.name);
            let rotten = |node: u32| self.rotten.get(&(NodeId(node), band.name)).copied();
            for page in 0..band.pages {
                let some = (0..NODES).any(|node| held(node) && rotten(node) != Some(page));
                assert!(some, "no copy is left of page {page} of {band:?}");
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Wake if self.now < self.wake_at => {}
            Event::Wake => self.tell(RepairInput::Deadline),
            Event::Ask(node, link, id, ask) => {
                // What a connection asked that has ended is not done after the next one began.
                if self.links[node.0 as usize] != link {
                    return;
                }
                if let Ask::Free { band, .. } = &ask {
                    // Nodes may have been told to go since it was asked.
                    self.check_free(node, *band, NodeState::counts);
                }
                if let Ask::Free { band, .. } = &ask {
                    self.rotten.remove(&(node, *band));
                }
                let source = match &ask {
                    Ask::Copy { band, from, .. } => {
                        let is_sound = |of: &&NodeId| {
                            self.up[of.0 as usize] && !self.rotten.contains_key(&(**of, *band))
                        };
                        let from = from.nodes().iter().find(is_sound);
                        from.and_then(|from| self.nodes[from.0 as usize].bands.get(band)).cloned()
                    }
                    _ => None,
                };
                let answer = self.nodes[node.0 as usize].ask(ask, source);
                let delay = self.random.below(5 * MILLISECOND);
                self.at(delay, Event::Answer(node, link, id, answer));
            }
            Event::Answer(node, link, id, answer) => {
                if self.links[node.0 as usize] == link {
                    self.tell(RepairInput::Node { node, id, answer: &answer });
                }
            }
            Event::Chaos => self.chaos(),
            Event::Rewrite(name) => {
                if self.known.bands.get(&name.band).is_some_and(|band| band.name == name) {
                    self.overwrite(name.band);
                }
            }
        }
    }

    /// A copy goes only if there are as many others, sound, in different domains, on nodes that stay. One that is damaged
    /// may make place for the next one, where somebody has all of it and whoever opens the volume next knows of it: true.
    fn check_free(&self, node: NodeId, name: BandName, stays: impl Fn(NodeState) -> bool) -> bool {
        let needed = self.known.bands.get(&name.band).filter(|band| band.name == name);
        let Some(band) = needed else { return false };
        if !self.nodes[node.0 as usize].bands.contains_key(&name) {
            return false;
        }
        let is_rotten = |of: NodeId| self.rotten.contains_key(&(of, name));
        let is_sound = band.holders.iter().any(|of| *of != node && !is_rotten(*of));
        if is_rotten(node) && is_sound && self.known.on_record.contains(&name) {
            return true;
        }
        let domains = self.domains_beside(node, name, stays);
        assert!(
            domains.len() >= REPLICAS,
            "{name:?} is freed on {node:?}, others are in {domains:?}"
        );
        false
    }

    /// Where the band is sealed beside this node.
    fn domains_beside(
        &self,
        node: NodeId,
        name: BandName,
        stays: impl Fn(NodeState) -> bool,
    ) -> BTreeSet<DomainId> {
        let others = (0..NODES).filter(|&other| {
            let has = self.nodes[other as usize].bands.get(&name).is_some_and(|copy| copy.sealed);
            has && NodeId(other) != node && stays(self.views[other as usize].state)
        });
        others.map(domain).collect()
    }

    fn chaos(&mut self) {
        let node = self.random.below(u64::from(NODES)) as u32;
        let band = self.random.below(u64::from(BANDS)) as u32;
        match self.random.below(12) {
            0 if self.up.iter().all(|up| *up) => self.turn(node),
            1 if !self.is_narrow() => self.state(node, NodeState::Draining),
            2 if !self.up[node as usize] && !self.is_narrow() => self.state(node, NodeState::Out),
            3 => {
                let page = self.random.below(u64::from(SHAPE.pages)) as u32;
                self.rot(node, band, page);
            }
            6 if self.is_narrow() => self.rot_both(band),
            4 | 5 => self.overwrite(band),
            _ => {}
        }
        for node in 0..NODES {
            if !self.up[node as usize] && self.random.chance(0.1) {
                self.turn(node);
            }
        }
        let next = self.random.below(SECOND) + MILLISECOND;
        self.at(next, Event::Chaos);
    }

    /// A node goes, or is back: then its copies are held against the directory.
    fn turn(&mut self, node: u32) {
        self.links[node as usize] += 1;
        let up = &mut self.up[node as usize];
        *up = !*up;
        let node = NodeId(node);
        if !*up {
            return self.tell(RepairInput::Down(node));
        }
        if self.views[node.0 as usize].state == NodeState::Out {
            self.state(node.0, NodeState::In);
        }
        let names: Vec<BandName> = self.nodes[node.0 as usize].bands.keys().copied().collect();
        let mut garbage = Vec::new();
        for name in names {
            match self.known.bands.get_mut(&name.band).filter(|band| band.name == name) {
                Some(_) if self.rotten.contains_key(&(node, name)) => garbage.push((true, name)),
                Some(band) if !band.holders.contains(&node) => band.holders.push(node),
                Some(_) => {}
                None => garbage.push((false, name)),
            }
        }
        for (bad, name) in garbage {
            self.forget(name, node);
            self.tell(if bad {
                RepairInput::Bad(node, name)
            } else {
                RepairInput::Garbage(node, name)
            });
        }
        self.tell(RepairInput::Up(node));
    }

    /// Of three domains one at most is to be emptied.
    fn state(&mut self, node: u32, state: NodeState) {
        let others = |view: &&NodeView| view.state != NodeState::In && view.node.0 != node;
        if state != NodeState::In && self.views.iter().filter(others).count() > 0 {
            return;
        }
        self.views[node as usize].state = state;
        if state == NodeState::In {
            self.clear.remove(&NodeId(node));
        }
        self.count();
    }

    /// There are only as many nodes as copies.
    fn is_narrow(&self) -> bool {
        self.views.iter().filter(|view| view.want > 0.0).count() == REPLICAS
    }

    /// One copy of a band of which there are others cannot be read any more.
    fn rot(&mut self, node: u32, band: u32, page: u32) {
        let Some(known) = self.known.bands.get(&band) else { return };
        let (name, node) = (known.name, NodeId(node));
        let sound =
            |of: &&NodeId| !self.rotten.contains_key(&(**of, name)) && self.up[of.0 as usize];
        if known.holders.iter().filter(sound).count() < 2 || !known.holders.contains(&node) {
            return;
        }
        self.spoil(node, name, page);
    }

    /// Both copies of a band are damaged, each of them elsewhere: one must not go for the other.
    fn rot_both(&mut self, band: u32) {
        let Some(known) = self.known.bands.get(&band).cloned() else { return };
        let fits = |node: &NodeId| {
            self.up[node.0 as usize] && !self.rotten.contains_key(&(*node, known.name))
        };
        if known.holders.len() < REPLICAS || !known.holders.iter().all(fits) {
            return;
        }
        for (node, page) in known.holders.into_iter().zip([2, 1]) {
            self.spoil(node, known.name, page);
        }
    }

    /// What is not `Some` cannot be read: the node says so of a stamp of zero.
    fn spoil(&mut self, node: NodeId, name: BandName, page: u32) {
        let copy = self.nodes[node.0 as usize].bands.get_mut(&name).expect("a holder has it");
        copy.pages[page as usize][0].data = Some(0);
        self.rotten.insert((node, name), page);
    }

    /// The band is freed where it can be, and begun anew.
    fn overwrite(&mut self, band: u32) {
        let Some(old) = self.known.bands.remove(&band) else { return self.write(band) };
        for node in 0..NODES {
            if self.up[node as usize] {
                self.nodes[node as usize].bands.remove(&old.name);
            }
        }
        self.write(band);
        self.tell(RepairInput::Look(band));
    }

    fn run(&mut self, until: u64) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > until {
                self.events.insert((at, 0), event);
                self.now = until;
                return;
            }
            self.now = at;
            self.happen(event);
        }
    }

    /// Everything is there, and nothing fails any more.
    fn calm(&mut self) {
        self.events.retain(|_, event| !matches!(event, Event::Chaos));
        for node in 0..NODES {
            if !self.up[node as usize] {
                self.turn(node);
            }
        }
        self.count();
        let until = self.now + 60 * SECOND;
        self.run(until);
    }

    fn settled(&self) {
        let progress = self.repair.progress(Instant(self.now));
        assert_eq!(
            (progress.lacking, progress.draining, progress.copying, progress.away),
            (0, 0, 0, 0),
            "{progress:?}"
        );
        assert!(progress.is_counted, "{progress:?}");
        for band in self.known.bands.values() {
            let stay = |node: &&NodeId| self.views[node.0 as usize].state == NodeState::In;
            let domains: BTreeSet<DomainId> =
                band.holders.iter().filter(stay).map(|node| domain(node.0)).collect();
            assert!(domains.len() >= REPLICAS, "{band:?} lacks a copy");
            assert_eq!(band.holders.len(), REPLICAS, "{band:?} has too many");
        }
        for node in 0..NODES {
            for name in self.nodes[node as usize].bands.keys() {
                let band = self.known.bands.get(&name.band).filter(|band| band.name == *name);
                let held = band.is_some_and(|band| band.holders.contains(&NodeId(node)));
                assert!(held, "{name:?} is left on node {node}");
            }
        }
        for view in self.views.iter().filter(|view| view.state != NodeState::In) {
            assert!(self.clear.contains(&view.node), "{view:?} was emptied and nobody said so");
        }
    }
}

/// Band 7 is on nodes 0 and 1, of which the second is drained; the third takes a copy.
fn drained() -> (Repair<u64>, Known) {
    on_all_but_the_last(&[NodeState::In, NodeState::Draining, NodeState::In])
}

/// Of durable nodes in domains of their own.
fn views(states: &[NodeState]) -> Vec<NodeView> {
    let view = |node: u32, state| NodeView {
        node: NodeId(node),
        domain: DomainId(node),
        state,
        durable: true,
        bands: 100,
        bands_used: 0,
        want: 1.0,
    };
    (0..).zip(states).map(|(node, state)| view(node, *state)).collect()
}

/// Band 7 is on all nodes but the last one, which has room.
fn on_all_but_the_last(states: &[NodeState]) -> (Repair<u64>, Known) {
    let replicas = states.len() as u8 - 1;
    let config = RepairConfig::new(GENERATION, replicas, SHAPE);
    let (mut repair, mut known) = (Repair::<u64>::new(config), Known::default());
    let name = BandName { volume: VolumeId(1), band: 7, life: 9 };
    let holders = (0..u32::from(replicas)).map(NodeId).collect();
    repair.handle(Instant(1), RepairInput::Nodes(views(states)), &known);
    while repair.poll().is_some() {}
    for node in 0..states.len() as u32 {
        repair.handle(Instant(1), RepairInput::Up(NodeId(node)), &known);
        while repair.poll().is_some() {}
    }
    known.bands.insert(7, SealedBand { name, pages: 4, holders });
    repair.handle(Instant(1), RepairInput::Look(7), &known);
    (repair, known)
}

/// No walk counts what is under way, and an opening waits for no node that is clear: it did without what such a node had
/// and only one other one, which was away.
#[test]
fn a_node_is_not_clear_before_what_it_had_is_copied() {
    let (mut repair, mut known) = on_all_but_the_last(&[NodeState::In; 3]);
    // Whoever opened the volume did not hear of it what it has.
    known.bands.get_mut(&7).expect("it is there").holders = vec![NodeId(0)];
    let given_up = views(&[NodeState::In, NodeState::Out, NodeState::In]);
    repair.handle(Instant(1), RepairInput::Nodes(given_up), &known);
    let Some(RepairOutput::Node { node, id, ask: Ask::Copy { .. } }) = repair.poll() else {
        panic!("a copy is asked for");
    };
    let mut now = Instant(2);
    for _ in 0..3 {
        repair.handle(now, RepairInput::Up(NodeId(2)), &known);
        assert_eq!(repair.poll(), None, "the copy is not there yet");
        now = now + SECOND;
    }
    repair.handle(now, RepairInput::Node { node, id, answer: &Answer::Done }, &known);
    assert_eq!(repair.poll(), Some(RepairOutput::Joined(known.bands[&7].name, node)));
    known.bands.get_mut(&7).expect("it is there").holders.push(node);
    repair.handle(now, RepairInput::Up(NodeId(2)), &known);
    assert_eq!(repair.poll(), Some(RepairOutput::Clear(NodeId(1))));
}

/// The directory takes no fifth holder: the copy was freed and made again without end.
#[test]
fn a_node_of_a_band_with_as_many_copies_as_there_can_be_is_drained() {
    let mut states = [NodeState::In; 5];
    states[3] = NodeState::Draining;
    let (mut repair, known) = on_all_but_the_last(&states);
    let Some(RepairOutput::Node { node, id, ask: Ask::Copy { .. } }) = repair.poll() else {
        panic!("a copy is asked for");
    };
    assert_eq!((node, repair.poll()), (NodeId(4), None));
    repair.handle(Instant(2), RepairInput::Node { node, id, answer: &Answer::Done }, &known);
    let name = known.bands[&7].name;
    assert_eq!(repair.poll(), Some(RepairOutput::Left(name, NodeId(3))));
    let freed = repair.poll();
    assert!(
        matches!(freed, Some(RepairOutput::Node { node: NodeId(3), ask: Ask::Free { .. }, .. })),
        "{freed:?}"
    );
    assert_eq!(repair.poll(), Some(RepairOutput::Joined(name, NodeId(4))));
}

/// A copy goes from node to node: the target may still reach a source that the client does not, and if nobody heard what
/// came of it, a copy would lie there that nobody knows of, and come back when its band has a later life.
#[test]
fn a_copy_whose_source_goes_is_heard_out() {
    let (mut repair, mut known) = drained();
    let outputs: Vec<_> = std::iter::from_fn(|| repair.poll()).collect();
    let [RepairOutput::Node { node, id, ask: Ask::Copy { band, from, .. } }] = outputs[..] else {
        panic!("one copy is asked for: {outputs:?}");
    };
    repair.handle(Instant(2), RepairInput::Down(from.nodes()[0]), &known);
    assert!(repair.poll().is_none() && repair.is_copying(band));
    // It is freed meanwhile, so that the copy is one too many.
    known.bands.clear();
    repair.handle(Instant(3), RepairInput::Node { node, id, answer: &Answer::Done }, &known);
    let freed = repair.poll().expect("it is freed there");
    assert!(
        matches!(freed, RepairOutput::Node { node: at, ask: Ask::Free { band: of, .. }, .. } if (at, of) == (node, band)),
        "{freed:?}"
    );
}

/// As after a power cut that took pages of it, where there are only so many nodes. Before it goes another one was read.
#[test]
fn a_copy_that_is_none_makes_place_where_nobody_else_could_take_one_that_is() {
    let (mut repair, known) = drained();
    let mut now = Instant(1);
    let (mut asked, mut read, mut outputs) = (Vec::new(), Vec::new(), VecDeque::new());
    while asked.len() < 3 {
        assert!(now < Instant(60 * SECOND), "only {asked:?}");
        outputs.extend(std::iter::from_fn(|| repair.poll()));
        let Some(output) = outputs.pop_front() else {
            now = repair.deadline(now).map_or(now, |at| at.max(now + MILLISECOND));
            repair.handle(now, RepairInput::Deadline, &known);
            continue;
        };
        let RepairOutput::Node { node, id, ask } = output else { continue };
        let answer = match ask {
            Ask::Copy { .. } if asked.is_empty() => Answer::Refused(Refusal::Differs),
            Ask::Read { slot, .. } => {
                read.push((node, slot));
                Answer::Slots(page(u64::from(slot) + 1).into_iter().map(Some).collect())
            }
            _ => Answer::Done,
        };
        if matches!(ask, Ask::Free { .. }) {
            let both = |slot| [(NodeId(0), slot), (NodeId(2), slot)];
            assert_eq!(read, (0..4).flat_map(both).collect::<Vec<_>>());
        }
        if !matches!(ask, Ask::Read { .. }) {
            asked.push((node, matches!(ask, Ask::Copy { .. })));
        }
        repair.handle(now, RepairInput::Node { node, id, answer: &answer }, &known);
    }
    assert_eq!(asked, [(NodeId(2), true), (NodeId(2), false), (NodeId(2), true)]);
}

/// A node that is asked for more copies than it makes at a time says that it is busy: the others wait for it a moment
/// and not as long as what came to nothing.
#[test]
fn a_copy_for_which_a_node_has_no_room_now_is_soon_asked_for_again() {
    let (mut repair, known) = drained();
    let mut now = Instant(1);
    let mut asked = Vec::new();
    while asked.len() < 4 {
        assert!(now < Instant(SECOND), "asked only at {asked:?}");
        let outputs: Vec<_> = std::iter::from_fn(|| repair.poll()).collect();
        for output in outputs {
            let RepairOutput::Node { node, id, ask: Ask::Copy { .. } } = output else { continue };
            asked.push(now);
            let answer = &Answer::Refused(Refusal::Busy);
            repair.handle(now, RepairInput::Node { node, id, answer }, &known);
        }
        now = repair.deadline(now).expect("a copy is lacking").max(now + 1000);
        repair.handle(now, RepairInput::Deadline, &known);
    }
    assert!(asked.windows(2).all(|two| two[1] - two[0] >= 10 * MILLISECOND), "{asked:?}");
}

#[test]
fn whatever_fails_no_last_copy_goes_and_all_bands_are_whole_again() {
    let (mut copies, mut frees, mut damaged, mut places) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut world = World::of(seed, takes(seed), None);
        world.at(0, Event::Chaos);
        world.run(60 * SECOND);
        world.calm();
        world.settled();
        copies += world.copies;
        frees += world.frees;
        damaged += world.damaged;
        places += world.places;
    }
    println!(
        "{copies} copies, {frees} frees, {damaged} damaged copies found, {places} replaced where they were"
    );
    assert!(copies > 20 * SEEDS && frees > 20 * SEEDS && damaged > SEEDS / 2 && places > SEEDS / 4);
}

/// In some seeds there are only as many nodes as copies, of which one is not durable at completion.
fn takes(seed: u64) -> Vec<u32> {
    if seed % 4 == 3 { vec![1, 2] } else { (0..NODES).collect() }
}

/// A world of two nodes, and a band of it.
fn narrow() -> (World, BandName, [NodeId; 2]) {
    let world = World::of(3, vec![1, 2], None);
    let name = world.known.bands[&0].name;
    (world, name, [NodeId(1), NodeId(2)])
}

fn scrub_for(world: &mut World, ns: u64) -> Progress {
    world.tell(RepairInput::Scrub);
    world.run(world.now + ns);
    world.repair.progress(Instant(world.now))
}

/// As near as whole bands come, and then it ends. Where a domain bars the emptiest node a band moves to one between, and
/// another one from there, so it is more than one move for each band that a node has too many.
#[test]
fn bands_are_spread_until_nodes_differ_by_a_band_and_no_further() {
    let mut world = World::new(5, None);
    let used =
        |world: &World| world.nodes.iter().map(|node| node.bands.len() as i64).collect::<Vec<_>>();
    let before = used(&world);
    let all: i64 = before.iter().sum();
    let too_many: i64 = before.iter().map(|used| (used - all / i64::from(NODES)).max(0)).sum();
    assert!(too_many > 10, "{before:?}");
    world.tell(RepairInput::Spread(0.001));
    for _ in 0..60 {
        world.run(world.now + SECOND);
        world.count();
    }
    let after = used(&world);
    let apart = after.iter().max().expect("nodes") - after.iter().min().expect("nodes");
    assert!(apart <= 1, "{after:?}");
    let progress = world.repair.progress(Instant(world.now));
    assert_eq!((progress.spreading, progress.copying), (0, 0), "{progress:?}");
    let copies = world.copies as i64;
    assert!(copies <= 2 * too_many, "{copies} for {too_many} too many: {before:?}, {after:?}");
}

/// No other node can have it: the damaged one makes place.
#[test]
fn a_damaged_copy_is_made_anew_where_it_was_if_no_other_node_can_take_it() {
    let (mut world, name, [first, second]) = narrow();
    world.rot(first.0, 0, 3);
    let progress = scrub_for(&mut world, 30 * SECOND);
    assert_eq!((progress.lacking, progress.damaged, progress.stuck), (0, 0, 0), "{progress:?}");
    assert!(progress.mended_rounds > 0, "{progress:?}");
    let holders: BTreeSet<NodeId> = world.known.bands[&0].holders.iter().copied().collect();
    assert_eq!(holders, BTreeSet::from([first, second]));
    assert_eq!((world.rotten.len(), world.places, world.copies), (0, 1, 1), "{name:?}");
}

/// Also where the node is full of what it has: the copy that goes gives the room for the one that comes.
#[test]
fn a_damaged_copy_on_a_full_node_gives_the_room_for_the_next_one() {
    let (mut world, _, [first, _]) = narrow();
    world.views.iter_mut().for_each(|view| view.bands = BANDS);
    world.count();
    world.rot(first.0, 0, 0);
    let progress = scrub_for(&mut world, 30 * SECOND);
    assert!(progress.mended_rounds > 0 && progress.damaged == 0, "{progress:?}");
}

/// Each has what the other one lacks.
#[test]
fn two_copies_that_are_damaged_at_different_places_both_stay() {
    let (mut world, name, [first, second]) = narrow();
    world.rewrites = false;
    world.spoil(first, name, 1);
    world.spoil(second, name, 2);
    let progress = scrub_for(&mut world, 100 * SECOND);
    assert!(progress.damaged > 0 && progress.mended_rounds == 0, "{progress:?}");
    assert_eq!((progress.found.0.unsound, world.places), (0, 0), "no page is gone: {progress:?}");
    assert_eq!(world.rotten.len(), 2);
    // Until whoever wrote the band does what it was told.
    assert_eq!(world.not_whole, BTreeSet::from([name]));
    world.rewrites = true;
    let progress = scrub_for(&mut world, 100 * SECOND);
    assert!(progress.damaged == 0 && progress.mended_rounds > 0, "{progress:?}");
}

/// Nobody has it: that is told, and of what is left nothing is given up.
#[test]
fn a_page_that_is_damaged_in_both_copies_is_told_as_one_that_nobody_has() {
    let (mut world, name, [first, second]) = narrow();
    world.rewrites = false;
    world.spoil(first, name, 1);
    world.spoil(second, name, 1);
    world.spoil(second, name, 2);
    let progress = scrub_for(&mut world, 100 * SECOND);
    assert_eq!((progress.found.0.unsound, world.places), (1, 0), "{progress:?}");
    assert_eq!((world.rotten.len(), world.not_whole), (2, BTreeSet::from([name])));
}

/// What the damaged one has may be right, and the sound one be of old.
#[test]
fn a_damaged_copy_that_is_unlike_the_sound_one_stays() {
    let (mut world, name, [first, second]) = narrow();
    world.spoil(first, name, 1);
    let progress = scrub_for(&mut world, SECOND);
    assert_eq!(progress.damaged, 1, "{progress:?}");
    world.takes_unlike = true;
    let copy = world.nodes[second.0 as usize].bands.get_mut(&name).expect("it has it");
    copy.pages[3] = page(0x77);
    let progress = scrub_for(&mut world, 100 * SECOND);
    assert!(progress.damaged > 0 && progress.mended_rounds == 0, "{progress:?}");
    assert_eq!((world.places, world.rotten.len()), (0, 1));
}

/// What a round that is begun now finds is repaired before it is told that all is, whatever was compared before.
#[test]
fn a_round_of_scrub_finds_what_is_damaged_when_it_begins_also_in_open_bands_and_says_when_it_is_repaired()
 {
    let mut world = World::new(1, None);
    let bytes = u64::from(BANDS * SHAPE.pages) * REPLICAS as u64 * 4096;
    let round_ns = bytes * SECOND / (50 * 4096);
    // Half of a round.
    world.run(round_ns / 2);
    let open = BANDS - 1;
    world.known.open.insert(open);
    let rotten = [0, open].map(|band| {
        let node = world.known.bands[&band].holders[0];
        world.rot(node.0, band, 1);
        (node, world.known.bands[&band].name)
    });
    assert_eq!(world.rotten, BTreeMap::from(rotten.map(|of| (of, 1))));
    world.tell(RepairInput::Scrub);
    let progress = |world: &World| world.repair.progress(Instant(world.now));
    while progress(&world).scrubbed.1 == 0 {
        world.run(world.now + 10 * MILLISECOND);
    }
    assert!(world.now > round_ns + round_ns / 3, "it has read all of them since it began");
    assert_eq!((world.damaged, progress(&world).found.0.damaged), (2, 2));
    while progress(&world).mended_rounds == 0 {
        assert!(world.now < 4 * round_ns, "{:?}", progress(&world));
        world.run(world.now + 10 * MILLISECOND);
    }
    assert_eq!((world.copies >= 2, progress(&world).damaged), (true, 0));
    for (node, name) in rotten {
        let holders = &world.known.bands[&name.band].holders;
        let domains: BTreeSet<DomainId> = holders.iter().map(|node| domain(node.0)).collect();
        assert!(!holders.contains(&node) && domains.len() == REPLICAS, "{name:?} on {holders:?}");
    }
}

/// Where there is no third domain for the copy nothing says that all is repaired.
#[test]
fn a_damaged_copy_that_cannot_be_replaced_is_not_called_repaired() {
    let mut world = World::new(2, None);
    let band = &world.known.bands[&0];
    let (node, other) = (band.holders[0], band.holders[1]);
    for away in (0..NODES).map(NodeId).filter(|of| ![node, other].contains(of)) {
        (world.up[away.0 as usize], world.links[away.0 as usize]) = (false, 1);
        world.tell(RepairInput::Down(away));
    }
    world.rot(node.0, 0, 1);
    // Nor may it be made where it is, as this node takes no copies any more.
    world.views[node.0 as usize].want = 0.0;
    world.count();
    world.tell(RepairInput::Scrub);
    world.run(30 * SECOND);
    let progress = world.repair.progress(Instant(world.now));
    assert!(progress.scrubbed.1 > 0 && progress.damaged > 0, "{progress:?}");
    assert!(progress.stuck > 0 && progress.mended_rounds == 0, "{progress:?}");
}

#[test]
fn copies_keep_to_their_rate_and_the_fewest_come_first() {
    let mut world = World::new(1, None);
    world.run(SECOND);
    // Both nodes of a domain are lost.
    for node in [0, 1] {
        (world.up[node], world.links[node]) = (false, 1);
        world.tell(RepairInput::Down(NodeId(node as u32)));
    }
    let before = world.copied_at.len();
    world.run(2 * SECOND);
    assert_eq!(world.copied_at.len(), before, "nodes may be away for 2 s");
    let progress = world.repair.progress(Instant(world.now));
    assert_eq!((progress.lacking, progress.away), (0, 2), "{progress:?}");
    world.run(3 * SECOND + 200 * MILLISECOND);
    let progress = world.repair.progress(Instant(world.now));
    assert!(
        progress.lacking > 0
            && progress.away == 0
            && progress.copying == 3
            && progress.left_ns.is_some(),
        "{progress:?}"
    );
    world.run(20 * SECOND);
    let copies = &world.copied_at[before..];
    assert!(copies.len() > 10, "{copies:?}");
    let most = copies
        .iter()
        .map(|from| copies.iter().filter(|at| *at - from.min(at) < SECOND && *at >= from).count());
    assert!(most.max() <= Some(43), "three at a time, of 70 ms and more");
    let lacking = world.known.bands.values().filter(|band| {
        let here = band.holders.iter().filter(|node| node.0 > 1);
        here.map(|node| domain(node.0)).collect::<BTreeSet<_>>().len() < REPLICAS
    });
    assert_eq!(lacking.count(), 0);
}

#[cfg(feature = "mutants")]
mod mutants {
    use super::*;

    #[test]
    fn every_planted_bug_of_repair_is_found() {
        std::panic::set_hook(Box::new(|_| {}));
        let mut missed = Vec::new();
        for &mutant in Mutant::REPAIR {
            let found = (0..SEEDS).find(|&seed| {
                std::panic::catch_unwind(|| {
                    let mut world = World::of(seed, takes(seed), Some(mutant));
                    world.at(0, Event::Chaos);
                    world.run(60 * SECOND);
                    world.calm();
                    world.settled();
                })
                .is_err()
            });
            println!("{mutant:?}: found by seed {found:?}");
            missed.extend(found.is_none().then_some(mutant));
        }
        let _ = std::panic::take_hook();
        assert!(missed.is_empty(), "not found: {missed:?}");
    }
}
