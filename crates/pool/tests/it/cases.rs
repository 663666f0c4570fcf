//! Openings of which the outcome is told here, step by step, without chance: answers come at once.

use crate::nodes::{Node, page};
use flash::{Instant, MILLISECOND, SECOND};
use pool::control::contract::{Change, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store};
use pool::control::keys;
use pool::control::ownership::OwnershipConfig;
use pool::control::registry::{Owned, Registry, Tail};
use pool::control::values::{
    BandRecord, ClearRecord, Degraded, FORMAT, NodeRecord, NodeState, PoolRecord, TailRecord,
    Value, VolumeRecord,
};
use pool::message::{Answer, Ask, BandHeader};
use pool::opening::{
    KnownBand, Opened, Opening, OpeningConfig, OpeningError, OpeningInput, OpeningOutput, Rejoin,
    RejoinOutput,
};
use pool::words::{
    BandName, BandShape, DomainId, Fenced, Generation, Members, NodeId, PoolId, VolumeId,
};

const VOLUME: VolumeId = VolumeId(1);
const SHAPE: BandShape = BandShape { pages: 4, slots_per_page: 1 };

struct Pool {
    now: u64,
    plane: Embedded,
    nodes: Vec<Node>,
    up: Vec<bool>,
}

fn name(band: u32, life: u64) -> BandName {
    BandName { volume: VOLUME, band, life }
}

fn members(ids: &[u32]) -> Members {
    Members::new(&ids.iter().map(|&id| NodeId(id)).collect::<Vec<_>>()).expect("different")
}

fn node_record(node: u32) -> NodeRecord {
    let (address, profile) = (String::new(), String::new());
    let (node, domain, state) = (NodeId(node), DomainId(node), NodeState::In);
    NodeRecord { node, domain, address, profile, state }
}

impl Pool {
    /// Of three nodes in as many domains, and a volume of two replicas.
    fn new() -> Self {
        let mut pool = Self {
            now: 0,
            plane: Embedded::create(PoolId(1), 1),
            nodes: vec![Node { list_max: 2, ..Node::default() }; 3],
            up: vec![true; 3],
        };
        let degraded = Degraded::Pause;
        let (name, replicas, shape) = ("disk".to_owned(), 2, SHAPE);
        let (volume, blocks, bands) = (VOLUME, 100, 8);
        let record = VolumeRecord {
            volume,
            name,
            blocks,
            replicas,
            shape,
            bands,
            degraded,
            ..VolumeRecord::default()
        };
        let of = PoolRecord { pool: PoolId(1), format: FORMAT };
        pool.put(keys::POOL.to_owned(), &of);
        pool.put(keys::volume(VOLUME), &record);
        (0..3).for_each(|node| pool.put(keys::node(NodeId(node)), &node_record(node)));
        // Of all lives that any of these tests knows of.
        pool.put(keys::tail(VOLUME), &TailRecord { life: 9, ..TailRecord::default() });
        pool
    }

    fn put<V: Value>(&mut self, key: String, value: &V) {
        let put = Change::Put { value: value.encode(&key), key, lease: None };
        self.plane(PlaneAskId(0), PlaneAsk::Commit { checks: Vec::new(), changes: vec![put] });
    }

    fn record(&mut self, name: BandName, ids: &[u32]) {
        let record = BandRecord { name, members: members(ids), ..BandRecord::default() };
        self.put(keys::band(name), &record);
    }

    fn plane(&mut self, id: PlaneAskId, ask: PlaneAsk) -> Option<PlaneAnswer> {
        let now = Instant(self.now);
        self.plane.handle(now, PlaneInput::Ask { client: 1, id, ask });
        let mut answer = None;
        while let Some(output) = self.plane.poll() {
            match output {
                PlaneOutput::Answer(told) => answer = Some(told.answer),
                PlaneOutput::Store(
                    Store::Append { sequence, .. } | Store::Replace { sequence, .. },
                ) => {
                    self.plane.handle(now, PlaneInput::Stored { sequence });
                }
            }
        }
        answer
    }

    /// Pages of a band, on one node.
    fn fill(&mut self, node: u32, name: BandName, pages: u32, sealed: bool) {
        let header = BandHeader { members: members(&[0, 1]), shape: SHAPE };
        let pages = (0..pages).map(|at| page(u64::from(at) + 1)).collect();
        let band = crate::nodes::Band { header, pages, sealed };
        self.nodes[node as usize].bands.insert(name, band);
    }

    /// A page that a node cannot read any more.
    fn damage(&mut self, node: u32, name: BandName, page: usize) {
        let band = self.nodes[node as usize].bands.get_mut(&name).expect("it was filled");
        band.pages[page][0].data = Some(0);
    }

    fn opening(&self, owner: u128) -> Opening<u64> {
        let config = OpeningConfig::new(PoolId(1), OwnershipConfig::new(VOLUME, owner));
        let mut opening = Opening::new(Instant(self.now), config);
        for node in (0..3).filter(|&node| self.up[node]) {
            let up = OpeningInput::Up { node: NodeId(node as u32), durable: node != 1 };
            opening.handle(Instant(self.now), up);
        }
        opening
    }

    /// Passes on all that is asked until time is over or the opening is.
    fn run(
        &mut self,
        opening: &mut Opening<u64>,
        until: u64,
    ) -> Option<Result<Opened, OpeningError>> {
        self.run_some(opening, until, usize::MAX)
    }

    /// The same, but no more than so many outputs: then the client goes.
    fn run_some(
        &mut self,
        opening: &mut Opening<u64>,
        until: u64,
        outputs: usize,
    ) -> Option<Result<Opened, OpeningError>> {
        let mut taken = 0;
        loop {
            while let Some(output) = opening.poll() {
                if taken == outputs {
                    return None;
                }
                taken += 1;
                let now = Instant(self.now);
                match output {
                    OpeningOutput::Plane { id, ask } => {
                        let answer = self.plane(id, ask).expect("the plane answers");
                        opening.handle(now, OpeningInput::Plane { id, answer: &answer });
                    }
                    OpeningOutput::Node { node, id, ask } => {
                        let answer = self.node(node, ask);
                        opening.handle(now, OpeningInput::Node { node, id, answer: &answer });
                    }
                    OpeningOutput::Connect(nodes) => assert_eq!(nodes.len(), 3),
                    OpeningOutput::Opened(opened) => return Some(Ok(*opened)),
                    OpeningOutput::Failed(error) => return Some(Err(error)),
                }
            }
            let at = opening.deadline(Instant(self.now)).filter(|at| at.0 <= until)?;
            self.now = at.0.max(self.now);
            opening.handle(Instant(self.now), OpeningInput::Deadline);
        }
    }

    fn node(&mut self, node: NodeId, ask: Ask<u64>) -> Answer<u64> {
        let source = match &ask {
            Ask::Copy { band, from, .. } => {
                self.nodes[from.nodes()[0].0 as usize].bands.get(band).cloned()
            }
            _ => None,
        };
        self.nodes[node.0 as usize].ask(ask, source)
    }

    fn open(&mut self) -> Opened {
        let owner = u128::from(self.now) + 77;
        let mut opening = self.opening(owner);
        let until = self.now + 20 * SECOND;
        self.run(&mut opening, until).expect("it ends").expect("it is opened")
    }
}

#[test]
fn an_empty_volume_opens_at_once() {
    let mut pool = Pool::new();
    let opened = pool.open();
    assert!(opened.bands.is_empty() && opened.complete && opened.away.is_empty());
    assert_eq!(pool.now, 0, "nobody need be waited for");
    // The second time its owner's lease is.
    pool.open();
    assert!((3 * SECOND..5 * SECOND).contains(&pool.now), "{}", pool.now);
}

#[test]
fn a_band_is_cut_at_the_shortest_member_and_stays_so() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(0, name(0, 5), 3, false);
    pool.fill(1, name(0, 5), 2, false);
    let opened = pool.open();
    let band = opened.band(0).expect("it has pages");
    assert_eq!((band.pages, &band.holders[..]), (2, &[NodeId(0), NodeId(1)][..]));
    // A third page on a member that was not asked does not come back.
    pool.fill(0, name(0, 5), 3, false);
    pool.up[1] = false;
    let opened = pool.open();
    assert_eq!(opened.band(0).map(|band| band.pages), Some(2));
}

#[test]
fn a_band_that_was_open_is_completed_on_another_node() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(0, name(0, 5), 2, false);
    pool.up[1] = false;
    let opened = pool.open();
    let band = opened.band(0).expect("it has pages");
    assert_eq!((band.pages, &band.holders[..]), (2, &[NodeId(0), NodeId(2)][..]));
    assert_eq!(opened.away, [NodeId(1)]);
}

/// It was cut at the first page that one copy had damaged, for all others, too.
#[test]
fn a_damaged_copy_cuts_no_other_one_and_is_none() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(0, name(0, 5), 4, false);
    pool.fill(1, name(0, 5), 3, false);
    pool.damage(0, name(0, 5), 1);
    let opened = pool.open();
    let band = opened.band(0).expect("it has pages");
    assert_eq!((band.pages, &band.holders[..]), (3, &[NodeId(1), NodeId(2)][..]));
    assert_eq!(opened.bad, [(NodeId(0), name(0, 5))]);
    // What is damaged behind the end does not matter.
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(0, name(0, 5), 4, false);
    pool.fill(1, name(0, 5), 3, false);
    pool.damage(0, name(0, 5), 3);
    assert_eq!(pool.open().bad, []);
}

#[test]
fn a_damaged_copy_stands_for_a_band_only_if_nobody_can_come_who_may_have_a_better_one() {
    for sealed in [false, true] {
        let mut pool = Pool::new();
        pool.record(name(4, 5), &[0, 1]);
        pool.fill(0, name(4, 5), 4, sealed);
        pool.damage(0, name(4, 5), 1);
        pool.up[1] = false;
        let mut opening = pool.opening(1);
        assert_eq!(pool.run(&mut opening, 30 * SECOND), None);
        let said = opening.explain(Instant(pool.now));
        assert!(said.contains("of band 4, one of nodes 0, 1"), "{said}");
        let out = NodeRecord { state: NodeState::Out, ..node_record(1) };
        pool.put(keys::node(NodeId(1)), &out);
        let opened = pool.open();
        let band = opened.band(4).expect("some of it is there");
        assert_eq!((band.pages, &band.holders[..]), (4, &[NodeId(0)][..]));
        assert_eq!(opened.bad, [(NodeId(0), name(4, 5))], "it is made anew from others, too");
        assert!(pool.nodes[0].bands[&name(4, 5)].sealed);
    }
}

#[test]
fn of_sealed_copies_of_which_nothing_is_on_record_a_damaged_one_is_none() {
    let mut pool = Pool::new();
    (0..2).for_each(|node| pool.fill(node, name(2, 5), 4, true));
    pool.damage(1, name(2, 5), 0);
    let opened = pool.open();
    assert_eq!(opened.band(2).map(|band| band.holders.clone()), Some(vec![NodeId(0)]));
    assert_eq!(opened.bad, [(NodeId(1), name(2, 5))]);
    pool.damage(0, name(2, 5), 3);
    let opened = pool.open();
    assert_eq!(opened.band(2).map(|band| band.holders.clone()), Some(vec![NodeId(0)]), "the best");
    assert_eq!(opened.bad.len(), 2);
}

#[test]
fn a_band_of_which_no_member_can_be_asked_is_waited_for_by_name() {
    let mut pool = Pool::new();
    pool.record(name(4, 5), &[0, 1]);
    pool.fill(0, name(4, 5), 2, false);
    pool.fill(1, name(4, 5), 2, false);
    (pool.up[0], pool.up[1]) = (false, false);
    let mut opening = pool.opening(1);
    assert_eq!(pool.run(&mut opening, 30 * SECOND), None);
    let said = opening.explain(Instant(30 * SECOND));
    assert!(said.contains("of band 4, one of nodes 0, 1"), "{said}");
    // One of them is enough.
    opening.handle(Instant(30 * SECOND), OpeningInput::Up { node: NodeId(1), durable: true });
    let opened = pool.run(&mut opening, 40 * SECOND).expect("it ends").expect("it is opened");
    assert_eq!(opened.band(4).map(|band| band.pages), Some(2));
}

/// Repair takes a damaged copy away where the next one is to be, and is cut off: whoever has the band is one node only.
#[test]
fn a_band_whose_damaged_copy_made_place_is_waited_for_while_the_node_with_the_other_is_away() {
    let mut pool = Pool::new();
    let band = name(4, 5);
    pool.fill(0, band, 2, true);
    let owned = Owned { volume: VOLUME, generation: Generation(1), revision: 1 };
    let mut registry = Registry::new(owned, 2, Tail::default(), Vec::new());
    registry.recall(Instant(0), band, 2, (members(&[0, 1]), NodeId(1))).expect("not busy");
    let record = *registry.record(band).expect("it is there from now on");
    pool.put(keys::band(band), &record);
    pool.up[0] = false;
    let mut opening = pool.opening(1);
    assert_eq!(pool.run(&mut opening, 30 * SECOND), None);
    let said = opening.explain(Instant(30 * SECOND));
    assert!(said.contains("of band 4, one of nodes 0"), "{said}");
    opening.handle(Instant(30 * SECOND), OpeningInput::Up { node: NodeId(0), durable: true });
    let opened = pool.run(&mut opening, 40 * SECOND).expect("it ends").expect("it is opened");
    assert_eq!(opened.band(4).map(|band| band.holders.clone()), Some(vec![NodeId(0)]));
}

#[test]
fn the_owner_may_say_not_to_wait_and_then_nothing_is_taken_for_empty() {
    let mut pool = Pool::new();
    pool.record(name(4, 5), &[0, 1]);
    (pool.up[0], pool.up[1]) = (false, false);
    let mut opening = pool.opening(1);
    assert_eq!(pool.run(&mut opening, 3 * SECOND), None);
    opening.handle(Instant(pool.now), OpeningInput::GoOn);
    let opened = pool.run(&mut opening, 10 * SECOND).expect("it ends").expect("it is opened");
    assert_eq!(opened.refused, [name(4, 5)]);
    assert!(!opened.complete);
}

#[test]
fn nodes_that_may_hold_all_copies_are_waited_for_unless_they_are_clear() {
    let mut pool = Pool::new();
    (pool.up[0], pool.up[1]) = (false, false);
    let mut opening = pool.opening(1);
    assert_eq!(pool.run(&mut opening, 30 * SECOND), None);
    let said = opening.explain(Instant(pool.now));
    assert!(said.contains("nodes 0, 1: together"), "{said}");
    pool.put(keys::clear(VOLUME, NodeId(0)), &ClearRecord { generation: Generation(1) });
    let out = NodeRecord { state: NodeState::Out, ..node_record(0) };
    pool.put(keys::node(NodeId(0)), &out);
    let opened = pool.open();
    assert!(opened.complete);
    assert_eq!(opened.clear, [NodeId(0)]);
}

#[test]
fn an_opening_that_waits_hears_where_nodes_are_now_and_which_were_given_up() {
    let mut pool = Pool::new();
    (pool.up[0], pool.up[1]) = (false, false);
    let mut opening = pool.opening(1);
    assert_eq!(pool.run(&mut opening, 3 * SECOND), None);
    assert!(opening.waits_for_nodes() && opening.poll().is_none());
    let known: Vec<NodeRecord> = (0..3).map(node_record).collect();
    opening.handle(Instant(pool.now), OpeningInput::Nodes(&known));
    assert_eq!(opening.poll(), None, "nothing of it is new");
    let moved = NodeRecord { address: "elsewhere:1".to_owned(), ..node_record(0) };
    let out = NodeRecord { state: NodeState::Out, ..node_record(1) };
    let nodes = [moved.clone(), out.clone(), node_record(2)];
    opening.handle(Instant(pool.now), OpeningInput::Nodes(&nodes));
    let Some(OpeningOutput::Connect(told)) = opening.poll() else { panic!("where they are") };
    assert!(told.contains(&moved) && told.contains(&out));
    let said = opening.explain(Instant(pool.now));
    assert!(said.contains("nodes 1 were given up: client.go_on"), "{said}");
}

/// Of what it has nothing is on record: a life that was freed and overwritten while it was clear would come back.
#[test]
fn a_node_that_is_in_again_stays_clear_until_whoever_serves_the_volume_has_emptied_it() {
    let mut pool = Pool::new();
    let key = keys::clear(VOLUME, NodeId(0));
    pool.put(key.clone(), &ClearRecord { generation: Generation(1) });
    pool.fill(0, name(2, 5), 4, true);
    let opened = pool.open();
    assert_eq!(opened.clear, [NodeId(0)]);
    assert!(opened.complete && opened.band(2).is_none());
    let asked = pool.plane(PlaneAskId(0), PlaneAsk::Get { key });
    assert!(matches!(asked, Some(PlaneAnswer::Value { kept: Some(_), .. })), "{asked:?}");
}

#[test]
fn a_life_that_was_never_begun_when_its_members_were_found_clear_keeps_nobody_waiting() {
    let mut pool = Pool::new();
    pool.record(name(4, 5), &[0, 1]);
    for node in [0, 1] {
        pool.put(keys::clear(VOLUME, NodeId(node)), &ClearRecord { generation: Generation(1) });
    }
    assert!(pool.open().band(4).is_none());
}

#[test]
fn a_node_that_refuses_a_fence_is_asked_again_after_a_pause() {
    let mut pool = Pool::new();
    pool.nodes[0].fences_refused = 2;
    let opened = pool.open();
    assert!(opened.away.is_empty(), "{opened:?}");
    assert!(pool.now >= 300 * MILLISECOND && pool.now < SECOND, "{}", pool.now);
}

#[test]
fn a_node_whose_list_does_not_go_on_is_not_taken_for_listed() {
    let mut pool = Pool::new();
    pool.nodes[0].list_max = 0;
    let opened = pool.open();
    assert_eq!(opened.away, [NodeId(0)]);
}

#[test]
fn a_band_whose_member_repair_has_emptied_is_as_long_as_the_copy_that_it_made() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(1, name(0, 5), 3, true);
    pool.fill(2, name(0, 5), 3, true);
    pool.up[1] = false;
    let opened = pool.open();
    assert_eq!(opened.band(0).map(|band| band.pages), Some(3));
}

#[test]
fn a_member_that_has_nothing_says_nothing_while_those_that_may_have_it_whole_are_away() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(1, name(0, 5), 3, true);
    pool.fill(2, name(0, 5), 3, true);
    (pool.up[1], pool.up[2]) = (false, false);
    let mut opening = pool.opening(1);
    assert_eq!(pool.run(&mut opening, 3 * SECOND), None);
    opening.handle(Instant(pool.now), OpeningInput::GoOn);
    let opened = pool.run(&mut opening, 10 * SECOND).expect("it ends").expect("it is opened");
    assert_eq!(opened.refused, [name(0, 5)]);
    (pool.up[1], pool.up[2]) = (true, true);
    let opened = pool.open();
    assert_eq!(opened.band(0).map(|band| band.pages), Some(3), "nothing was decided meanwhile");
}

#[test]
fn what_lies_on_a_node_that_is_not_durable_is_flushed_before_it_counts() {
    let mut pool = Pool::new();
    pool.fill(0, name(2, 5), 4, true);
    pool.fill(1, name(2, 5), 4, true);
    pool.open();
    assert_eq!(pool.nodes.iter().map(|node| node.flushes).collect::<Vec<_>>(), [0, 1, 0]);
}

#[test]
fn after_a_node_has_heard_of_a_higher_generation_nothing_is_changed_any_more() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(0, name(0, 5), 3, false);
    pool.fill(1, name(0, 5), 3, false);
    pool.nodes[2].fences.insert(VOLUME, Generation(9));
    let mut opening = pool.opening(1);
    let failed = pool.run(&mut opening, 10 * SECOND).expect("it ends");
    assert!(matches!(failed, Err(OpeningError::PlaneOld { .. })), "{failed:?}");
    assert!(pool.nodes.iter().flat_map(|node| node.bands.values()).all(|band| !band.sealed));
}

#[test]
fn older_lives_are_garbage_and_what_is_sealed_without_a_record_is_there() {
    let mut pool = Pool::new();
    pool.fill(0, name(2, 5), 4, true);
    pool.fill(2, name(2, 5), 4, true);
    pool.fill(1, name(2, 4), 3, true);
    pool.fill(1, name(3, 4), 3, false);
    let opened = pool.open();
    assert_eq!(opened.band(2).map(|band| (band.name, band.holders.len())), Some((name(2, 5), 2)));
    assert_eq!(opened.garbage, [(NodeId(1), name(2, 4))]);
    assert_eq!(opened.strays, [(NodeId(1), name(3, 4))]);
    assert!(opened.refused.is_empty(), "all nodes were asked: nothing that is needed is missing");
}

#[test]
fn a_life_that_was_dropped_stays_on_record_until_nothing_is_left_of_it() {
    let mut pool = Pool::new();
    pool.record(name(0, 5), &[0, 1]);
    pool.fill(1, name(0, 5), 1, true);
    pool.up[1] = false;
    assert_eq!(pool.open().band(0), None, "node 0 has nothing of it");
    pool.up[1] = true;
    assert_eq!(pool.open().band(0), None);
    assert!(pool.nodes[1].bands.is_empty(), "it was freed");
}

#[test]
fn a_plane_that_is_older_than_the_nodes_is_refused() {
    let mut pool = Pool::new();
    pool.nodes[2].fences.insert(VOLUME, Generation(9));
    let mut opening = pool.opening(1);
    let failed = pool.run(&mut opening, SECOND).expect("it ends").expect_err("it is refused");
    assert_eq!(failed, OpeningError::PlaneOld { node: NodeId(2), highest: Generation(9) });
    assert!(failed.to_string().contains("restored from an old backup"));
}

#[test]
fn a_plane_that_does_not_know_of_a_life_that_a_node_has_is_refused_though_it_is_of_this_generation()
{
    let mut pool = Pool::new();
    pool.fill(2, name(3, 10), 2, true);
    let mut opening = pool.opening(1);
    let failed = pool.run(&mut opening, SECOND).expect("it ends").expect_err("it is refused");
    assert_eq!(failed, OpeningError::PlaneBehind { node: NodeId(2), band: name(3, 10) });
    assert!(failed.to_string().contains("restored from an older backup"), "{failed}");
    assert!(pool.nodes[2].bands[&name(3, 10)].pages.len() == 2, "nothing was changed");
    // A record that was kept before lives were tells nothing.
    pool.put(keys::tail(VOLUME), &TailRecord::default());
    pool.open();
}

#[test]
fn a_volume_that_is_being_deleted_is_not_opened() {
    let mut pool = Pool::new();
    let kept = pool.plane(PlaneAskId(0), PlaneAsk::Get { key: keys::volume(VOLUME) });
    let Some(PlaneAnswer::Value { kept: Some(kept), .. }) = kept else { panic!("it is there") };
    let record = VolumeRecord::decode(&keys::volume(VOLUME), &kept.value).expect("sound");
    pool.put(keys::volume(VOLUME), &VolumeRecord { is_deleted: true, ..record });
    let mut opening = pool.opening(1);
    let failed = pool.run(&mut opening, SECOND).expect("it ends").expect_err("it is refused");
    assert_eq!(failed, OpeningError::Deleted);
}

#[test]
fn the_control_plane_of_another_pool_or_format_is_refused() {
    let mut pool = Pool::new();
    let config = OpeningConfig::new(PoolId(2), OwnershipConfig::new(VOLUME, 1));
    let mut opening = Opening::new(Instant(0), config);
    let failed = pool.run(&mut opening, SECOND);
    assert_eq!(failed, Some(Err(OpeningError::Pool(Some(PoolId(1))))));
    pool.put(keys::POOL.to_owned(), &PoolRecord { pool: PoolId(1), format: FORMAT + 1 });
    let mut opening = pool.opening(2);
    assert_eq!(pool.run(&mut opening, 9 * SECOND), Some(Err(OpeningError::Format(FORMAT + 1))));
}

#[test]
fn a_volume_that_is_not_there_or_whose_key_is_damaged_is_refused_by_name() {
    let mut pool = Pool::new();
    let config = OpeningConfig::new(PoolId(1), OwnershipConfig::new(VolumeId(9), 1));
    let mut opening = Opening::new(Instant(0), config);
    assert_eq!(pool.run(&mut opening, SECOND), Some(Err(OpeningError::NoVolume)));
    let key = keys::node(NodeId(1));
    let put = Change::Put { key: key.clone(), value: vec![2, 1, 0, 0, 0, 0], lease: None };
    pool.plane(PlaneAskId(0), PlaneAsk::Commit { checks: Vec::new(), changes: vec![put] });
    let mut opening = pool.opening(1);
    let failed = pool.run(&mut opening, SECOND).expect("it ends").expect_err("it is refused");
    assert!(failed.to_string().contains(&format!("key {key} ")), "{failed}");
}

#[test]
fn an_opening_that_is_overtaken_says_by_whom() {
    let mut pool = Pool::new();
    pool.up = vec![false; 3];
    let mut first = pool.opening(1);
    assert_eq!(pool.run(&mut first, SECOND), None);
    pool.up = vec![true; 3];
    pool.open();
    let until = pool.now + 3 * SECOND;
    let failed = pool.run(&mut first, until);
    assert_eq!(failed, Some(Err(OpeningError::Overtaken { by: Generation(2) })));
}

fn rejoined(
    pool: &mut Pool,
    node: u32,
    known: &dyn Fn(BandName) -> (KnownBand, Option<BandRecord>),
) -> Vec<RejoinOutput<u64>> {
    let durable = false;
    let by = Fenced { generation: Generation(6), owner: 1 };
    let mut rejoin = Rejoin::new(Instant(0), VOLUME, by, node_record(node), durable);
    let mut said = Vec::new();
    while let Some(output) = rejoin.poll() {
        let RejoinOutput::Node { id, ask } = output else {
            said.push(output);
            continue;
        };
        let answer = pool.node(NodeId(node), ask);
        rejoin.answered(Instant(MILLISECOND), id, &answer, known);
    }
    said
}

#[test]
fn a_node_that_is_back_is_held_against_what_is_known_by_then() {
    let mut pool = Pool::new();
    pool.fill(0, name(1, 5), 4, true); // as it should be
    pool.fill(0, name(2, 5), 3, false); // it missed the seal
    pool.fill(0, name(3, 5), 1, false); // it missed pages, too
    pool.fill(0, name(4, 4), 4, true); // an older life
    pool.fill(0, name(5, 5), 4, true); // freed since
    pool.fill(0, name(6, 4), 4, true); // not known before, of two lives
    pool.fill(0, name(6, 5), 4, true);
    pool.fill(0, name(7, 5), 2, false); // on record as open, and not decided
    pool.fill(0, name(8, 5), 4, true); // damaged
    pool.damage(0, name(8, 5), 3);
    let record =
        BandRecord { name: name(7, 5), members: members(&[0, 1]), ..BandRecord::default() };
    let said = rejoined(&mut pool, 0, &|of| match of.band {
        1 => (KnownBand::Sealed(name(1, 5), 4), None),
        2 => (KnownBand::Sealed(name(2, 5), 2), None),
        3 => (KnownBand::Sealed(name(3, 5), 2), None),
        4 => (KnownBand::Open(name(4, 6)), None),
        5 => (KnownBand::Empty, None),
        6 => (KnownBand::Unknown, None),
        8 => (KnownBand::Sealed(name(8, 5), 4), None),
        _ => (KnownBand::Unknown, Some(record)),
    });
    assert_eq!(
        said,
        [
            RejoinOutput::Bad(name(3, 5)),
            RejoinOutput::Stray(name(7, 5)),
            RejoinOutput::Bad(name(8, 5)),
            // Flushed, as the node is not durable at completion.
            RejoinOutput::Holds(name(1, 5), 4),
            RejoinOutput::Holds(name(2, 5), 2),
            RejoinOutput::Holds(name(6, 5), 4),
            RejoinOutput::Rid(name(4, 4)),
            RejoinOutput::Rid(name(5, 5)),
            RejoinOutput::Rid(name(6, 4)),
            RejoinOutput::Joined,
        ]
    );
    let left: Vec<u32> = pool.nodes[0].bands.keys().map(|name| name.band).collect();
    assert_eq!(left, [1, 2, 3, 6, 7, 8]);
    assert_eq!(pool.nodes[0].bands[&name(2, 5)].pages.len(), 2, "what was beyond is forgotten");
}

#[test]
fn a_volume_of_a_tebibyte_is_opened() {
    let mut pool = Pool::new();
    pool.nodes.iter_mut().for_each(|node| node.list_max = 1000);
    // Two of three nodes each, and the last thousand bands in no checkpoint yet.
    for band in 0..131_072 {
        let (first, second) = (band % 3, (band + 1) % 3);
        pool.fill(first, name(band, 5), 1, true);
        pool.fill(second, name(band, 5), 1, band < 131_000);
        if band >= 130_000 {
            pool.record(name(band, 5), &[first, second]);
        }
    }
    let opened = pool.open();
    assert_eq!(opened.bands.len(), 131_072);
    assert!(opened.bands.iter().all(|band| band.holders.len() == 2));
}

/// Bands of every kind: to be cut, completed, dropped, sealed by their owner, degraded, without a record, freed.
fn of_every_kind() -> Pool {
    let mut pool = Pool::new();
    for (band, on) in [(0, [0, 1]), (1, [1, 2]), (2, [2, 0]), (3, [0, 1]), (4, [0, 1]), (5, [1, 2])]
    {
        pool.record(name(band, 5), &on);
    }
    pool.fill(0, name(0, 5), 3, false);
    pool.fill(1, name(0, 5), 2, false);
    pool.fill(1, name(1, 5), 1, false);
    pool.fill(2, name(1, 5), 1, false);
    pool.fill(2, name(2, 5), 1, false);
    pool.fill(0, name(3, 5), 2, true);
    pool.fill(1, name(3, 5), 4, false);
    let record =
        BandRecord { name: name(4, 5), members: members(&[0, 1]), ..BandRecord::default() };
    pool.put(keys::band(name(4, 5)), &record.without(&[NodeId(1)]));
    pool.fill(0, name(4, 5), 4, false);
    pool.fill(1, name(4, 5), 1, false);
    pool.fill(1, name(5, 4), 4, true);
    pool.fill(0, name(6, 5), 4, true);
    pool.fill(2, name(6, 5), 4, true);
    pool
}

fn lengths(opened: &Opened) -> Vec<(u32, u32)> {
    opened.bands.iter().map(|band| (band.name.band, band.pages)).collect()
}

#[test]
fn an_opening_that_ends_after_any_ask_is_begun_anew_by_another_and_finds_the_same() {
    let expected = [(0, 2), (1, 1), (3, 2), (4, 4), (6, 4)];
    // Of band 2 one member has nothing, which may be damage, and the other one has a page.
    let all = [(0, 2), (1, 1), (2, 1), (3, 2), (4, 4), (6, 4)];
    assert_eq!(lengths(&of_every_kind().open()), all);
    let mut ended = 0;
    for asks in 0.. {
        // With all nodes, and with one of them away before or after.
        for (before, after) in
            [(3, 3), (0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2), (0, 2), (1, 0)]
        {
            let mut pool = of_every_kind();
            pool.up = (0..3).map(|node| node != before).collect();
            let mut first = pool.opening(1);
            if pool.run_some(&mut first, 20 * SECOND, asks).is_some() {
                ended += 1;
            }
            pool.up = (0..3).map(|node| node != after).collect();
            let mut second = pool.opening(2);
            let until = pool.now + 20 * SECOND;
            let Some(found) = pool.run(&mut second, until) else {
                // Band 4 has one member with all of it, band 3 may have one that was ended. Node 2 alone has a page of
                // band 2: once that is on record it is waited for until it was copied.
                let waits_for = |node| second.explain(Instant(until)).contains(node);
                assert!(
                    after == 0 || after == 2 && waits_for("of band 2, one of nodes 2"),
                    "after {asks} asks without {before} and {after}: {}",
                    second.explain(Instant(until))
                );
                continue;
            };
            let found = lengths(&found.expect("it is opened"));
            pool.up = vec![true; 3];
            let last = lengths(&pool.open());
            assert_eq!(last, found, "after {asks} asks without {before}, then without {after}");
            // What a band is cut to depends on who is there when it is decided, but never on more.
            for (band, least) in expected {
                let pages = found.iter().find(|(of, _)| *of == band).map(|(_, pages)| *pages);
                assert!(pages >= Some(least), "band {band} has {pages:?} after {asks} asks");
            }
        }
        // Without node 0 the first one waits for ever: it alone has all of band 4.
        if ended >= 7 {
            assert!(asks > 25, "an opening asks more than {asks} times");
            return;
        }
        ended = 0;
    }
}
