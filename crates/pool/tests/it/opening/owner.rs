//! A client that owns the volume, in the fewest words: it registers bands, appends pages to their members, seals,
//! frees and writes checkpoints, as chance has it.

use super::world::{BANDS, REPLICAS, SHAPE, VOLUME};
use crate::nodes::page;
use flash::{Instant, MILLISECOND, Random};
use pool::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::ownership::{Ownership, OwnershipInput, OwnershipOutput};
use pool::control::registry::{Registry, RegistryOutput};
use pool::message::{Answer, Ask, AskId, BandHeader, Refusal};
use pool::opening::Opened;
use pool::words::{BandName, DomainId, Generation, Members, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub enum Said {
    Plane { id: PlaneAskId, ask: PlaneAsk },
    Node { node: NodeId, id: AskId, ask: Ask<u64> },
    Acknowledged { name: BandName, page: u32 },
    Degraded,
    Freed { name: BandName },
    Over,
}

pub struct Owner {
    pub generation: Generation,
    ownership: Ownership,
    registry: Registry,
    bands: BTreeMap<u32, Band>,
    nodes: Vec<(NodeId, DomainId)>,
    /// Nodes that were reachable from the beginning on: others are left alone.
    up: BTreeSet<NodeId>,
    lives: u64,
    asks: u64,
    asked: BTreeMap<AskId, (NodeId, BandName, Kind)>,
    act_at: Instant,
    outputs: VecDeque<Said>,
}

struct Band {
    name: BandName,
    members: Vec<NodeId>,
    lacking: Vec<NodeId>,
    state: State,
    /// Acknowledged pages.
    pages: u32,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum State {
    Registering,
    Open,
    /// These members do not have the page yet.
    Appending(Vec<NodeId>),
    /// A member is away: the plane is told that it lacks the page.
    Degrading(Vec<NodeId>),
    Sealed {
        holders: Vec<NodeId>,
        waiting: usize,
    },
    Freed {
        on: Vec<NodeId>,
        waiting: usize,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Append,
    Seal,
    Free,
}

impl Owner {
    pub fn new(
        now: Instant,
        ownership: Ownership,
        registry: Registry,
        opened: &Opened,
        up: BTreeSet<NodeId>,
    ) -> Self {
        let sealed = |band: &pool::opening::OpenedBand| Band {
            name: band.name,
            members: band.holders.clone(),
            lacking: Vec::new(),
            state: State::Sealed { holders: band.holders.clone(), waiting: 0 },
            pages: band.pages,
        };
        let bands = opened.bands.iter().map(|band| (band.name.band, sealed(band))).collect();
        let nodes = opened.nodes.iter().map(|node| (node.node, node.domain)).collect();
        let up = up.into_iter().filter(|node| !opened.away.contains(node)).collect();
        let generation = ownership.generation().expect("it is owned");
        let (asked, outputs) = (BTreeMap::new(), VecDeque::new());
        let (lives, asks, act_at) = (0, 1 << 40, now);
        Self {
            generation,
            ownership,
            registry,
            bands,
            nodes,
            up,
            lives,
            asks,
            asked,
            act_at,
            outputs,
        }
    }

    pub fn readable_until(&self) -> Option<Instant> {
        self.ownership.readable_until()
    }

    pub fn poll(&mut self) -> Option<Said> {
        self.outputs.pop_front()
    }

    pub fn deadline(&self) -> Option<Instant> {
        let all = [self.ownership.deadline(), self.registry.deadline(), Some(self.act_at)];
        all.into_iter().flatten().min()
    }

    pub fn plane(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        self.ownership.handle(now, OwnershipInput::Plane { id, answer });
        self.registry.answered(now, id, answer);
        self.hear();
    }

    pub fn elapsed(&mut self, now: Instant, random: &mut Random) {
        self.ownership.handle(now, OwnershipInput::Deadline);
        self.registry.elapsed(now);
        if now >= self.act_at {
            self.act_at = now + random.below(40 * MILLISECOND) + MILLISECOND;
            self.act(now, random);
        }
        self.hear();
    }

    fn hear(&mut self) {
        while let Some(output) = self.ownership.poll() {
            match output {
                OwnershipOutput::Ask { id, ask } => self.outputs.push_back(Said::Plane { id, ask }),
                OwnershipOutput::Lost { .. } => self.outputs.push_back(Said::Over),
                OwnershipOutput::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
        while let Some(output) = self.registry.poll() {
            match output {
                RegistryOutput::Ask { id, ask } => self.outputs.push_back(Said::Plane { id, ask }),
                RegistryOutput::Registered(name) => {
                    let band = self.bands.get_mut(&name.band).filter(|band| band.name == name);
                    if let Some(band) = band.filter(|band| band.state == State::Registering) {
                        band.state = State::Open;
                    }
                }
                RegistryOutput::Degraded(name) => self.degraded(name),
                RegistryOutput::Lost => self.outputs.push_back(Said::Over),
                _ => {}
            }
        }
    }

    fn degraded(&mut self, name: BandName) {
        let Some(band) = self.bands.get_mut(&name.band).filter(|band| band.name == name) else {
            return;
        };
        let State::Degrading(lacking) = band.state.clone() else { return };
        band.lacking.extend(lacking);
        band.pages += 1;
        band.state = State::Open;
        let page = band.pages - 1;
        self.outputs.push_back(Said::Degraded);
        self.outputs.push_back(Said::Acknowledged { name, page });
    }

    pub fn node(&mut self, now: Instant, node: NodeId, id: AskId, answer: &Answer<u64>) {
        let Some((_, name, kind)) = self.asked.remove(&id) else { return };
        if let Answer::Refused(Refusal::Stale { highest }) = answer {
            self.ownership.handle(now, OwnershipInput::Stale { highest: *highest });
            return self.hear();
        }
        let done = *answer == Answer::Done;
        let Some(band) = self.bands.get_mut(&name.band).filter(|band| band.name == name) else {
            return;
        };
        match (&mut band.state, kind) {
            (State::Appending(waiting), Kind::Append) if done => {
                waiting.retain(|of| *of != node);
                if waiting.is_empty() {
                    band.pages += 1;
                    band.state = State::Open;
                    let page = band.pages - 1;
                    self.outputs.push_back(Said::Acknowledged { name, page });
                }
            }
            (State::Sealed { holders, waiting }, Kind::Seal) => {
                *waiting -= 1;
                holders.extend(done.then_some(node));
            }
            (State::Freed { on, waiting }, Kind::Free) => {
                *waiting -= 1;
                on.extend(done.then_some(node));
            }
            _ => {}
        }
    }

    /// What was asked of the node is not answered any more.
    pub fn down(&mut self, _now: Instant, node: NodeId) {
        self.up.remove(&node);
        let lost: Vec<_> =
            self.asked.iter().filter(|(_, (of, ..))| *of == node).map(|(id, _)| *id).collect();
        for id in lost {
            let (_, name, kind) = self.asked.remove(&id).expect("it is there");
            let band = self.bands.get_mut(&name.band).filter(|band| band.name == name);
            match (band.map(|band| &mut band.state), kind) {
                (Some(State::Sealed { waiting, .. }), Kind::Seal)
                | (Some(State::Freed { waiting, .. }), Kind::Free) => *waiting -= 1,
                _ => {}
            }
        }
    }

    fn ask(&mut self, node: NodeId, name: BandName, kind: Kind, ask: Ask<u64>) {
        let id = AskId(self.asks);
        self.asks += 1;
        self.asked.insert(id, (node, name, kind));
        self.outputs.push_back(Said::Node { node, id, ask });
    }

    fn act(&mut self, now: Instant, random: &mut Random) {
        let at = random.below(u64::from(BANDS)) as u32;
        let state = self.bands.get(&at).map(|band| band.state.clone());
        match state {
            None => self.register(now, at, random),
            Some(State::Open) if self.bands[&at].pages == SHAPE.pages || random.chance(0.1) => {
                self.seal(at);
            }
            Some(State::Open) => self.append(at, random),
            Some(State::Appending(waiting)) => {
                let away = waiting.iter().all(|node| !self.up.contains(node));
                let (name, lacking) = (self.bands[&at].name, &self.bands[&at].lacking);
                let left = self.bands[&at].members.len() - lacking.len() - waiting.len();
                if away && left > 0 && random.chance(0.7) {
                    self.registry.degrade(now, name, &waiting).expect("not busy");
                    self.bands.get_mut(&at).expect("it is there").state = State::Degrading(waiting);
                } else if away {
                    self.seal(at);
                }
            }
            Some(State::Sealed { holders, waiting: 0 }) => {
                let band = &self.bands[&at];
                // A checkpoint covers it; later it is freed.
                if random.chance(0.3) || holders.is_empty() {
                    self.free(at);
                } else {
                    let domain = |node: &NodeId| self.nodes.iter().find(|(of, _)| of == node);
                    let holders: Vec<_> = holders.iter().filter_map(domain).copied().collect();
                    self.registry
                        .close(now, band.name, band.pages, (&holders, &[]))
                        .expect("not busy");
                }
            }
            Some(State::Freed { on, waiting: 0 }) => {
                self.registry.freed(now, self.bands[&at].name, &on).expect("not busy");
                self.bands.remove(&at);
            }
            _ => {}
        }
    }

    fn register(&mut self, now: Instant, band: u32, random: &mut Random) {
        let mut members: Vec<NodeId> = Vec::new();
        let mut domains = Vec::new();
        let first = random.below(self.nodes.len() as u64) as usize;
        for at in 0..self.nodes.len() {
            let (node, domain) = self.nodes[(first + at) % self.nodes.len()];
            let fits = self.up.contains(&node) && !domains.contains(&domain);
            if members.len() < REPLICAS && fits {
                members.push(node);
                domains.push(domain);
            }
        }
        if members.len() < REPLICAS {
            return;
        }
        self.lives += 1;
        let name = BandName { volume: VOLUME, band, life: self.generation.0 << 32 | self.lives };
        let of = Members::new(&members).expect("different");
        self.registry.register(now, name, of).expect("not busy");
        let (lacking, state) = (Vec::new(), State::Registering);
        self.bands.insert(band, Band { name, members, lacking, state, pages: 0 });
    }

    fn append(&mut self, at: u32, random: &mut Random) {
        let band = self.bands.get_mut(&at).expect("it is open");
        let name = band.name;
        let members = Members::new(&band.members).expect("different");
        let open = (band.pages == 0).then_some(BandHeader { members, shape: SHAPE });
        let to: Vec<NodeId> =
            band.members.iter().filter(|node| !band.lacking.contains(node)).copied().collect();
        band.state = State::Appending(to.clone());
        let (page_at, slots) = (band.pages, page(random.next_u64() | 1));
        for node in to {
            let (generation, slots) = (self.generation, slots.clone());
            let ask = Ask::Append { band: name, generation, page: page_at, open, slots };
            self.ask(node, name, Kind::Append, ask);
        }
    }

    /// Ends a band after what was acknowledged.
    fn seal(&mut self, at: u32) {
        let band = self.bands.get_mut(&at).expect("it is open");
        let (name, pages) = (band.name, band.pages);
        let to: Vec<NodeId> =
            band.members.iter().filter(|node| self.up.contains(node)).copied().collect();
        band.state = State::Sealed { holders: Vec::new(), waiting: to.len() };
        for node in to {
            let ask = Ask::Seal { band: name, generation: self.generation, pages };
            self.ask(node, name, Kind::Seal, ask);
        }
    }

    fn free(&mut self, at: u32) {
        let band = self.bands.get_mut(&at).expect("it is sealed");
        let name = band.name;
        let to: Vec<NodeId> =
            band.members.iter().filter(|node| self.up.contains(node)).copied().collect();
        band.state = State::Freed { on: Vec::new(), waiting: to.len() };
        self.outputs.push_back(Said::Freed { name });
        for node in to {
            let ask = Ask::Free { band: name, generation: self.generation };
            self.ask(node, name, Kind::Free, ask);
        }
    }
}
