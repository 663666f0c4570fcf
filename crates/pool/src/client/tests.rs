//! The client as a whole, step by step: what goes to whom, and what ends when.

use super::*;
use crate::message::{BandEntry, BandHeader, Congestion, Refusal, ZEROES_CRC};
use crate::opening::{Opened, OpenedBand};
use crate::words::{Members, VolumeId};
use flash::{FastTier, Geometry, MILLISECOND, Pairing, SECOND};

const VOLUME: VolumeId = VolumeId(1);
const OURS: Generation = Generation(3);

fn geometry() -> Geometry {
    Geometry {
        units: 2,
        blocks_per_unit: 4,
        pages_per_block: 4,
        slots_per_page: 2,
        pairing: Pairing::None,
        durable_at_completion: true,
        suspend: false,
        queue_depth: 8,
        endurance: 1000,
        open_blocks_max: 0,
        fast: FastTier::NONE,
    }
}

struct Bench {
    remote: Remote<u8>,
    now: u64,
    durable: bool,
}

/// What the client wants of nodes, and what has ended.
#[derive(Default)]
struct Seen {
    asks: Vec<(NodeId, AskId, Ask<u8>)>,
    ended: Vec<End<u8>>,
    registered: Vec<Opening>,
    closed: Vec<Closed>,
    ends: Vec<(BandName, u32)>,
    unflushed: Vec<NodeId>,
    weights: Vec<UnitWeights>,
    fenced: Option<Over>,
}

/// Of lists in which all copies of a band are sealed alike.
fn opened(lists: &[(NodeId, BandEntry)], complete: bool) -> Opened {
    let mut opened = Opened { complete, ..Opened::default() };
    for (node, entry) in lists {
        match opened.bands.iter_mut().find(|band| band.name == entry.band) {
            Some(band) => band.holders.push(*node),
            None => {
                let holders = vec![*node];
                opened.bands.push(OpenedBand { name: entry.band, pages: entry.pages, holders });
            }
        }
    }
    opened
}

impl Bench {
    fn with(lists: &[(NodeId, BandEntry)], complete: bool, change: impl Fn(&mut Config)) -> Self {
        let mut config = Config::new(VOLUME, OURS, geometry(), 2);
        config.replica = "first".into();
        change(&mut config);
        let directory = Directory::of(8, &opened(lists, complete));
        let mut remote = Remote::new(config, directory).unwrap();
        for id in 1..=3 {
            let (node, domain) = (NodeId(id), DomainId(id));
            remote.handle(Instant(1), Input::Joined { node, domain });
        }
        Self { remote, now: 1, durable: true }
    }

    fn new() -> Self {
        let mut bench = Self::with(&[], true, |_| {});
        bench.lease(u64::MAX);
        (1..=3).for_each(|id| bench.up(id));
        bench
    }

    /// Over nodes that keep only what they flushed; the plane knows the first bands.
    fn volatile() -> Self {
        let mut bench =
            Self::with(&[], true, |config| config.geometry.durable_at_completion = false);
        bench.durable = false;
        bench.lease(u64::MAX);
        (1..=3).for_each(|id| bench.up(id));
        bench.register();
        bench
    }

    fn handle(&mut self, input: Input<u8>) {
        self.remote.handle(Instant(self.now), input);
    }

    fn up(&mut self, id: u32) {
        let durable = self.durable;
        self.handle(Input::Up(NodeFacts { node: NodeId(id), durable, ..NodeFacts::default() }));
    }

    fn lease(&mut self, until: u64) {
        self.handle(Input::Lease { until: Instant(until) });
    }

    fn seen(&mut self) -> Seen {
        let mut seen = Seen::default();
        while let Some(output) = self.remote.poll() {
            match output {
                Output::Ask { node, id, ask } => seen.asks.push((node, id, ask)),
                Output::Ended(end) => seen.ended.push(end),
                Output::Register(openings) => seen.registered.extend(openings),
                Output::Closed(closed) => seen.closed.push(closed),
                Output::Ends { name, pages } => seen.ends.push((name, pages)),
                Output::Weights(weights) => seen.weights.push(weights),
                Output::Fenced(over) => seen.fenced = Some(over),
                Output::Unflushed(node) => seen.unflushed.push(node),
                Output::Unused(_) | Output::Flushed(_) => {}
            }
        }
        seen
    }

    /// The control plane keeps all that it is told.
    fn register(&mut self) -> Vec<Opening> {
        let openings = self.seen().registered;
        openings.iter().for_each(|opening| self.handle(Input::Registered(opening.name)));
        openings
    }

    /// Likewise until there is nothing to tell it.
    fn settle(&mut self) {
        while !self.register().is_empty() {}
    }

    fn program(&mut self, page: u32) {
        let slot = |data| Slot { oob: [0; 32], crc: 0, data: Some(data) };
        let first = geometry().slot(BlockId(0), page, 0);
        self.handle(Input::Program { tag: Tag(page), slot: first, slots: vec![slot(1), slot(2)] });
    }

    fn read(&mut self, slot: u32) {
        let (tag, slot, count) = (Tag(50), SlotId(slot), 1);
        self.handle(Input::Command(Command::Read { tag, slot, count, into: None, urgent: true }));
    }

    fn answer(&mut self, (node, id, _): &(NodeId, AskId, Ask<u8>), answer: Answer<u8>) {
        let (node, id) = (*node, *id);
        self.handle(Input::Answer { node, id, answer, signals: Signals::default() });
    }

    /// Programs pages, and has all nodes do all that they are asked.
    fn fill(&mut self, pages: std::ops::Range<u32>) -> Vec<End<u8>> {
        pages.for_each(|page| self.program(page));
        let mut ended = Vec::new();
        loop {
            let seen = self.seen();
            ended.extend(seen.ended);
            if seen.asks.is_empty() {
                return ended;
            }
            seen.asks.iter().for_each(|ask| self.answer(ask, Answer::Done));
        }
    }
}

fn good(tag: u32) -> End<u8> {
    End::Program { tag: Tag(tag), result: Ok(()) }
}

fn listed(node: u32, band: u32, pages: u32) -> (NodeId, BandEntry) {
    let members = Members::new(&[NodeId(1), NodeId(2)]).unwrap();
    let shape = crate::words::BandShape { pages: 4, slots_per_page: 2 };
    let name = BandName { volume: VOLUME, band, life: 1 << 32 | 5 };
    let header = BandHeader { members, shape };
    (NodeId(node), BandEntry::whole(name, header, pages, true))
}

#[test]
fn no_append_is_sent_before_the_control_plane_has_the_band() {
    let mut bench = Bench::new();
    bench.program(0);
    let seen = bench.seen();
    assert!(seen.asks.is_empty(), "{:?}", seen.asks);
    let opening = seen.registered.iter().find(|opening| opening.name.band == 0).unwrap();
    bench.handle(Input::Registered(opening.name));
    let nodes: Vec<NodeId> = bench.seen().asks.iter().map(|ask| ask.0).collect();
    assert_eq!(nodes, opening.members.nodes());
}

#[test]
fn a_band_that_is_full_is_sealed_and_the_next_erase_frees_it() {
    let mut bench = Bench::new();
    bench.register();
    assert_eq!(bench.fill(0..4), [good(0), good(1), good(2), good(3)]);
    let held = bench.remote.directory().held(BlockId(0)).unwrap();
    assert_eq!((held.pages, held.phase), (4, directory::Phase::Sealed));
    let name = held.name;
    bench.handle(Input::Command(Command::Erase { tag: Tag(9), block: BlockId(0) }));
    let seen = bench.seen();
    assert!(seen.ended.is_empty());
    for ask in &seen.asks {
        assert_eq!(ask.2, Ask::Free { band: name, generation: OURS });
        bench.answer(ask, Answer::Done);
    }
    let seen = bench.seen();
    assert_eq!(seen.ended, [End::Erase { tag: Tag(9), result: Ok(()) }]);
    assert_eq!((seen.closed.len(), seen.closed[0].nothing.len()), (1, 2));
    bench.handle(Input::Command(Command::Erase { tag: Tag(9), block: BlockId(0) }));
    let seen = bench.seen();
    assert_eq!(seen.ended, [End::Erase { tag: Tag(9), result: Ok(()) }], "free already");
    assert!(seen.asks.is_empty());
}

#[test]
fn a_member_that_goes_cuts_the_band_at_what_was_acknowledged() {
    let mut bench = Bench::new();
    let openings = bench.register();
    bench.fill(0..1);
    bench.program(1);
    let asks = bench.seen().asks;
    bench.answer(&asks[0], Answer::Done);
    let gone = asks[1].0;
    bench.handle(Input::Down { node: gone });
    let seen = bench.seen();
    let cut = End::Program { tag: Tag(1), result: Err(MediumError::Cut) };
    assert_eq!(seen.ended, std::slice::from_ref(&cut));
    let name = openings.iter().find(|opening| opening.name.band == 0).unwrap().name;
    let [(_, _, ask)] = &seen.asks[..] else { panic!("one seal: {:?}", seen.asks) };
    assert_eq!(*ask, Ask::Seal { band: name, generation: OURS, pages: 1 });
    // What the FTL sends there before it knows ends at once; the other member seals when it is back.
    bench.program(1);
    assert_eq!(bench.seen().ended, [cut]);
    bench.up(gone.0);
    let asks = bench.seen().asks;
    assert!(asks.iter().any(|(node, _, of)| *node == gone && of == ask), "{asks:?}");
}

#[test]
fn nothing_goes_on_with_too_few_nodes_until_it_is_recorded_that_it_may() {
    let mut bench = Bench::new();
    [2, 3].iter().for_each(|&id| bench.handle(Input::Down { node: NodeId(id) }));
    bench.program(0);
    bench.register();
    assert!(bench.seen().asks.is_empty());
    assert!(bench.remote.explain().contains("too few in different domains"));
    bench.handle(Input::Degraded(true));
    let openings = bench.register();
    assert_eq!(openings[0].members.nodes(), [NodeId(1)]);
    assert_eq!(bench.fill(0..0), [good(0)]);
    // When another one is there the band ends, so that repair makes its second copy, and the next one has two.
    bench.up(2);
    let seal = |(node, _, ask): &(NodeId, AskId, Ask<u8>)| {
        *node == NodeId(1) && matches!(ask, Ask::Seal { pages: 1, .. })
    };
    let seen = bench.seen();
    assert!(seen.asks.iter().any(seal), "{:?}", seen.asks);
    let openings = seen.registered;
    assert!(!openings.is_empty() && openings.iter().all(|of| of.members.nodes().len() == 2));
}

#[test]
fn a_node_whose_raw_blocks_are_too_small_is_left_alone_and_told() {
    let mut bench = Bench::new();
    bench.register();
    bench.program(0);
    let asks = bench.seen().asks;
    let (unfit, _, _) = asks[0];
    bench.answer(&asks[0], Answer::Refused(Refusal::Invalid));
    let told = bench.remote.explain();
    let line = format!("node {} refused the first page of 1 bands", unfit.0);
    assert!(told.contains(&line) && told.contains("--band"), "{told}");
    assert!(told.contains("takes no new bands for a while"), "{told}");
}

#[test]
fn one_stale_answer_ends_the_client_and_all_that_comes_after() {
    let mut bench = Bench::new();
    bench.register();
    bench.program(0);
    let asks = bench.seen().asks;
    let highest = Generation(4);
    bench.answer(&asks[0], Answer::Refused(Refusal::Stale { highest }));
    let seen = bench.seen();
    assert_eq!(seen.fenced, Some(Over::Stale { highest }));
    let gone = Err(MediumError::UnitGone);
    assert_eq!(seen.ended, [End::Program { tag: Tag(0), result: gone }]);
    bench.answer(&asks[1], Answer::Done);
    bench.program(1);
    bench.read(0);
    let ended = bench.seen().ended;
    assert_eq!(ended[0], End::Program { tag: Tag(1), result: gone });
    assert!(matches!(ended[1], End::Read { slots: Err(MediumError::UnitGone), .. }), "{ended:?}");
    assert_eq!(bench.remote.deadline(), None);
    assert!(bench.remote.explain().contains("newer owner"));
}

#[test]
fn reads_are_given_only_while_the_lease_holds_and_refused_when_it_is_lost() {
    let lists = [listed(1, 1, 2), listed(2, 1, 2)];
    let mut bench = Bench::with(&lists, true, |_| {});
    (1..=3).for_each(|id| bench.up(id));
    bench.lease(10);
    bench.seen();
    bench.now = 9;
    bench.read(0);
    assert_eq!(bench.seen().ended.len(), 1, "answered here");
    bench.now = 10;
    bench.read(8);
    let asks = bench.seen().asks;
    let slot = Slot { oob: [7; 32], crc: 1, data: Some(3) };
    bench.answer(&asks[0], Answer::Slots(vec![Some(slot.clone())]));
    assert!(bench.seen().ended.is_empty(), "the lease is over");
    bench.lease(20);
    let ended = bench.seen().ended;
    let [End::Read { slots: Ok(slots), durable: true, .. }] = &ended[..] else {
        panic!("{ended:?}")
    };
    assert_eq!(slots[..], [SlotEnd { status: SlotStatus::Ok, slot: Some(slot) }]);
    bench.now = 20;
    bench.read(0);
    bench.handle(Input::LeaseLost);
    let seen = bench.seen();
    assert_eq!(seen.fenced, Some(Over::LeaseLost));
    assert!(matches!(seen.ended[..], [End::Read { slots: Err(_), .. }]), "{:?}", seen.ended);
}

#[test]
fn what_may_be_on_nodes_that_nobody_reached_is_not_called_erased() {
    for (complete, status) in [(true, SlotStatus::Erased), (false, SlotStatus::Uncorrectable)] {
        let mut bench = Bench::with(&[], complete, |_| {});
        bench.lease(u64::MAX);
        bench.read(0);
        let ended = bench.seen().ended;
        let [End::Read { slots: Ok(slots), .. }] = &ended[..] else { panic!("{ended:?}") };
        assert_eq!(slots[0].status, status);
    }
}

#[test]
fn a_read_waits_for_a_member_that_is_away_and_gives_up_one_that_never_comes_back() {
    let mut bench = Bench::with(&[listed(1, 1, 2), listed(2, 1, 2)], true, |_| {});
    bench.lease(u64::MAX);
    bench.up(1);
    bench.read(8);
    let asks = bench.seen().asks;
    bench.answer(&asks[0], Answer::Slots(vec![None]));
    assert!(bench.seen().ended.is_empty(), "the other may have it");
    bench.handle(Input::Removed { node: NodeId(2) });
    let ended = bench.seen().ended;
    let [End::Read { slots: Ok(slots), .. }] = &ended[..] else { panic!("{ended:?}") };
    assert_eq!(slots[0].status, SlotStatus::Uncorrectable);
    assert_eq!(bench.remote.counters().slots_lost, 1);
}

/// The FTL would not know whose it was, and refuse all blocks that it may have been.
#[test]
fn of_a_slot_whose_data_nobody_has_the_ftl_is_told_its_header_and_what_does_not_fit_it() {
    let mut bench = Bench::with(&[listed(1, 1, 2), listed(2, 1, 2)], true, |_| {});
    bench.lease(u64::MAX);
    (1..=2).for_each(|id| bench.up(id));
    bench.read(8);
    for _ in 0..2 {
        let asks = bench.seen().asks;
        bench
            .answer(&asks[0], Answer::Slots(vec![Some(Slot { oob: [7; 32], crc: 1, data: None })]));
    }
    let ended = bench.seen().ended;
    let [End::Read { slots: Ok(slots), .. }] = &ended[..] else { panic!("{ended:?}") };
    let told = Slot { oob: [7; 32], crc: ZEROES_CRC, data: None };
    assert_eq!(slots[..], [SlotEnd { status: SlotStatus::Ok, slot: Some(told) }]);
    assert_eq!(bench.remote.counters().slots_lost, 1);
}

/// What a read of the first slot comes to while its only member that is up has it unsound.
fn read_unsound(bench: &mut Bench, block: u32) {
    bench.read(block * 8);
    let asks = bench.seen().asks;
    let [ask] = &asks[..] else { panic!("one member is up: {asks:?}") };
    bench.answer(ask, Answer::Slots(vec![None]));
    assert!(bench.seen().ended.is_empty(), "who is away may have it");
}

fn status(bench: &mut Bench) -> SlotStatus {
    let ended = bench.seen().ended;
    let [End::Read { slots: Ok(slots), .. }] = &ended[..] else { panic!("{ended:?}") };
    slots[0].status
}

#[test]
fn a_read_waits_for_a_node_that_went_unflushed_and_may_be_back_with_what_the_others_have_unsound() {
    for comes_back in [true, false] {
        let mut bench = Bench::volatile();
        bench.fill(0..1);
        let held = bench.remote.directory().held(BlockId(0)).unwrap();
        let (band, gone, other) = (held.name, held.nodes[1], held.nodes[0]);
        let third = (1..=3).map(NodeId).find(|id| ![gone, other].contains(id)).unwrap();
        bench.handle(Input::Down { node: third });
        bench.handle(Input::Down { node: gone });
        assert_eq!(bench.remote.directory().held(BlockId(0)).unwrap().nodes, [other]);
        bench.seen();
        read_unsound(&mut bench, 0);
        if comes_back {
            // It was listed, and has it.
            bench.handle(Input::Copied { band, node: gone });
        }
        bench.up(gone.0);
        let reads = bench.seen();
        let slot = Slot { oob: [7; 32], crc: 1, data: Some(3) };
        match reads.asks.iter().find(|ask| matches!(ask.2, Ask::Read { .. })) {
            Some(ask) => bench.answer(ask, Answer::Slots(vec![Some(slot)])),
            None => bench.remote.outputs.extend(reads.ended.into_iter().map(Output::Ended)),
        }
        let wanted = if comes_back { SlotStatus::Ok } else { SlotStatus::Uncorrectable };
        assert_eq!(status(&mut bench), wanted);
    }
}

#[test]
fn a_read_waits_for_nodes_that_were_away_at_the_opening_where_bands_lack_copies() {
    for (replicas, complete) in [(2, true), (1, true), (2, false)] {
        let mut found = opened(&[listed(1, 1, 2)], complete);
        (found.volume.replicas, found.away) = (replicas, vec![NodeId(2)]);
        let mut bench = Bench::with(&[], true, |_| {});
        bench.remote.directory = Directory::of(8, &found);
        bench.lease(u64::MAX);
        bench.up(1);
        if (replicas, complete) == (2, true) {
            read_unsound(&mut bench, 1);
            bench.handle(Input::Removed { node: NodeId(2) });
        } else {
            bench.read(8);
            let asks = bench.seen().asks;
            bench.answer(&asks[0], Answer::Slots(vec![None]));
        }
        assert_eq!(status(&mut bench), SlotStatus::Uncorrectable, "nobody else may have it");
    }
}

#[test]
fn a_copy_that_is_damaged_in_part_is_read_where_nobody_else_has_it() {
    let lists = [listed(1, 1, 2), listed(2, 1, 2)];
    let mut bench = Bench::with(&lists, true, |_| {});
    bench.lease(u64::MAX);
    (1..=2).for_each(|id| bench.up(id));
    bench.seen();
    bench.handle(Input::Damaged { band: lists[0].1.band, node: NodeId(1) });
    let slot = || Some(Slot { oob: [7; 32], crc: 1, data: Some(3) });
    bench.read(8);
    let asks = bench.seen().asks;
    assert_eq!(asks[0].0, NodeId(2), "the other one first");
    bench.answer(&asks[0], Answer::Slots(vec![None]));
    let asks = bench.seen().asks;
    assert_eq!(asks[0].0, NodeId(1));
    bench.answer(&asks[0], Answer::Slots(vec![slot()]));
    assert_eq!(status(&mut bench), SlotStatus::Ok);
    bench.handle(Input::Down { node: NodeId(2) });
    bench.read(9);
    let asks = bench.seen().asks;
    assert_eq!(asks[0].0, NodeId(1), "the other one is away");
    bench.answer(&asks[0], Answer::Slots(vec![None]));
    assert!(bench.seen().ended.is_empty(), "and is waited for");
}

#[test]
fn a_damaged_copy_ends_an_open_band_where_it_is_and_the_other_members_seal_it() {
    let mut bench = Bench::new();
    bench.register();
    bench.fill(0..2);
    bench.program(2);
    bench.seen();
    let held = bench.remote.directory().held(BlockId(0)).unwrap();
    let (band, bad, other) = (held.name, held.nodes[0], held.nodes[1]);
    bench.handle(Input::Damaged { band, node: bad });
    let seen = bench.seen();
    assert_eq!(seen.ended, [End::Program { tag: Tag(2), result: Err(MediumError::Cut) }]);
    let seals: Vec<_> = seen.asks.iter().filter(|ask| matches!(ask.2, Ask::Seal { .. })).collect();
    let [(node, _, ask)] = seals[..] else { panic!("{seals:?}") };
    assert_eq!((*node, ask), (other, &Ask::Seal { band, generation: OURS, pages: 2 }));
    bench.answer(seals[0], Answer::Done);
    let closed = Closed { name: band, pages: 2, sealed: vec![other], nothing: vec![] };
    assert_eq!(bench.seen().closed, [closed]);
    let held = bench.remote.directory().held(BlockId(0)).unwrap();
    assert_eq!((held.phase, &held.nodes[..]), (directory::Phase::Sealed, &[other][..]));
}

#[test]
fn open_bands_weigh_as_their_members_do_and_a_plan_that_is_over_is_forgotten() {
    let mut bench = Bench::new();
    let openings = bench.register();
    bench.fill(0..1);
    let member = openings.iter().find(|opening| opening.name.band == 0).unwrap().members.nodes()[0];
    let share = crate::controller::weights::NodeWeights {
        node: member,
        mode: Mode::Reads,
        read: 1.0,
        write: 1.0,
    };
    let until = Instant(100 * MILLISECOND);
    bench.handle(Input::Plan(Plan { shares: vec![share], until }));
    bench.settle();
    assert_eq!(bench.remote.weights.open, [(BlockId(0), 1)], "until there are others");
    bench.now = bench.remote.deadline().unwrap().0;
    bench.handle(Input::Deadline);
    assert_eq!(bench.remote.weights.open, [(BlockId(0), 0)]);
    assert_eq!(bench.remote.weights.next, [64, 64], "another band would lie elsewhere");
    assert_eq!(bench.remote.deadline(), Some(until));
    bench.now = until.0;
    bench.handle(Input::Deadline);
    bench.settle();
    assert_eq!(bench.remote.weights.open, [(BlockId(0), 64)]);
    bench.program(1);
    let (node, id, _) = bench.seen().asks[0].clone();
    let signals = Signals { congestion: Congestion::Congested, ..Signals::default() };
    bench.handle(Input::Answer { node, id, answer: Answer::Done, signals });
    assert!(bench.seen().weights.is_empty(), "it may be a burst");
    bench.now += crate::client::congestion::LASTS_NS;
    bench.program(2);
    let asks = bench.seen().asks;
    let (_, id, _) = asks.iter().find(|(to, ..)| *to == node).cloned().unwrap();
    bench.handle(Input::Answer { node, id, answer: Answer::Done, signals });
    let targets = bench.remote.nodes.write_targets(Instant(bench.now));
    assert!(targets.contains(&(node, 0.5)), "{targets:?}");
    assert!(bench.remote.halvings().contains(&(node, 1)));
}

#[test]
fn a_lane_is_not_wanted_while_the_plane_lacks_the_opening_of_its_next_band() {
    let mut bench = Bench::new();
    let openings = bench.seen().registered;
    assert_eq!(bench.remote.weights.next, [0, 0]);
    let tell = |bench: &mut Bench, lane: u32| {
        let of_lane = openings.iter().filter(|opening| opening.name.band / 4 == lane);
        of_lane.for_each(|opening| bench.handle(Input::Registered(opening.name)));
    };
    tell(&mut bench, 1);
    assert_eq!(bench.remote.weights.next, [0, 64]);
    bench.program(0);
    assert_eq!(bench.remote.weights.open, [(BlockId(0), 0)], "a page waits there already");
    tell(&mut bench, 0);
    assert_eq!(bench.remote.weights.open, [(BlockId(0), 64)]);
    assert!(bench.remote.weights.next.iter().all(|&next| next >= 64));
}

#[test]
fn a_late_member_is_replaced_where_others_could_do_better_and_waited_for_where_not() {
    for others in [true, false] {
        let mut bench = Bench::new();
        let openings = bench.register();
        bench.fill(0..1);
        let members = openings.iter().find(|opening| opening.name.band == 0).unwrap().members;
        let third = (1..=3).map(NodeId).find(|&id| !members.has(id)).unwrap();
        if !others {
            bench.handle(Input::Down { node: third });
        }
        bench.program(1);
        let asks = bench.seen().asks;
        bench.answer(&asks[0], Answer::Done);
        bench.now = bench.remote.deadline().unwrap().0.max(bench.now + SECOND / 20);
        bench.handle(Input::Deadline);
        let ended = bench.seen().ended;
        if others {
            assert_eq!(ended, [End::Program { tag: Tag(1), result: Err(MediumError::Cut) }]);
        } else {
            assert_eq!(ended, []);
            bench.answer(&asks[1], Answer::Done);
            assert_eq!(bench.seen().ended, [good(1)]);
        }
        assert!(bench.remote.counters().late_programs > 0);
    }
}

#[test]
fn a_flush_asks_who_was_written_to() {
    let mut bench = Bench::volatile();
    bench.fill(0..1);
    let flush = Input::Command(Command::Flush { tag: Tag(8) });
    bench.handle(flush.clone());
    let seen = bench.seen();
    assert_eq!((seen.asks.len(), seen.ended.len()), (2, 0));
    seen.asks.iter().for_each(|ask| bench.answer(ask, Answer::Done));
    assert_eq!(bench.seen().ended, [End::Flush { tag: Tag(8), result: Ok(()) }]);
}

#[test]
fn a_flush_waits_for_the_last_copy_of_a_band_and_fails_only_when_that_is_gone() {
    for comes_back in ["whole", "elsewhere", "with less", "never"] {
        let mut bench = Bench::volatile();
        bench.fill(0..2);
        let held = bench.remote.directory().held(BlockId(0)).unwrap().clone();
        bench.handle(Input::Down { node: held.nodes[0] });
        assert_eq!(bench.remote.directory().held(BlockId(0)).unwrap().nodes, [held.nodes[1]]);
        bench.handle(Input::EndKept(held.name));
        bench.handle(Input::Down { node: held.nodes[1] });
        bench.handle(Input::Command(Command::Flush { tag: Tag(8) }));
        assert_eq!(bench.seen().ended, [], "it may be there when it is back");
        assert!(bench.remote.explain().contains("the last copies of 1 bands"));
        let (band, last) = (held.name, held.nodes[1]);
        match comes_back {
            "whole" => bench.handle(Input::Copied { band, node: last }),
            "elsewhere" => bench.handle(Input::Copied { band, node: held.nodes[0] }),
            "with less" => bench.handle(Input::Dropped { band, node: last }),
            _ => bench.handle(Input::Removed { node: last }),
        }
        bench.up(last.0);
        let result = match comes_back {
            "whole" | "elsewhere" => Ok(()),
            _ => Err(MediumError::FlushFailed),
        };
        assert_eq!(bench.seen().ended, [End::Flush { tag: Tag(8), result }], "{comes_back}");
    }
}

#[test]
fn a_flush_waits_until_it_is_on_record_where_a_band_ends_that_lost_an_unflushed_member() {
    let mut bench = Bench::volatile();
    bench.fill(0..2);
    let held = bench.remote.directory().held(BlockId(0)).unwrap().clone();
    bench.handle(Input::Down { node: held.nodes[0] });
    assert_eq!(bench.seen().ends, [(held.name, 2)]);
    bench.handle(Input::Command(Command::Flush { tag: Tag(8) }));
    let asks = bench.seen().asks;
    asks.iter().for_each(|ask| bench.answer(ask, Answer::Done));
    assert_eq!(bench.seen().ended, [], "the next opening may see the other member alone");
    bench.handle(Input::EndKept(held.name));
    assert_eq!(bench.seen().ended, [End::Flush { tag: Tag(8), result: Ok(()) }]);
}

#[test]
fn a_node_that_would_not_flush_is_told_so_that_its_seals_do_not_count() {
    let mut bench = Bench::volatile();
    bench.fill(0..1);
    bench.handle(Input::Command(Command::Flush { tag: Tag(8) }));
    let asks = bench.seen().asks;
    bench.answer(&asks[0], Answer::Refused(Refusal::Busy));
    assert_eq!(bench.seen().unflushed, [], "it will");
    bench.answer(&asks[1], Answer::Refused(Refusal::Failed));
    assert_eq!(bench.seen().unflushed, [asks[1].0]);
}

#[test]
fn a_node_that_does_not_flush_in_time_is_given_up_where_others_have_what_it_has_and_can_do_better()
{
    for (others, answers) in [(true, 1), (true, 0), (false, 1)] {
        let mut bench = Bench::volatile();
        bench.fill(0..1);
        let held = bench.remote.directory().held(BlockId(0)).unwrap().clone();
        let third = (1..=3).map(NodeId).find(|id| !held.nodes.contains(id)).unwrap();
        if !others {
            bench.handle(Input::Down { node: third });
        }
        bench.handle(Input::Command(Command::Flush { tag: Tag(8) }));
        let asks = bench.seen().asks;
        asks.iter().take(answers).for_each(|ask| bench.answer(ask, Answer::Done));
        bench.now += SECOND / 4 - 1;
        bench.handle(Input::Deadline);
        assert_eq!(bench.seen().unflushed, [], "it may still be in time");
        bench.now += 1;
        bench.handle(Input::Deadline);
        let seen = bench.seen();
        if others && answers == 1 {
            assert_eq!((seen.unflushed, seen.ends), (vec![asks[1].0], vec![(held.name, 1)]));
            bench.handle(Input::EndKept(held.name));
        } else {
            assert_eq!((seen.unflushed, seen.ended), (vec![], vec![]), "both may be needed");
            asks.iter().skip(answers).for_each(|ask| bench.answer(ask, Answer::Done));
        }
        assert_eq!(bench.seen().ended, [End::Flush { tag: Tag(8), result: Ok(()) }]);
        assert_eq!(bench.remote.counters().late_flushes, u64::from(others && answers == 1));
    }
}

#[test]
fn a_config_that_makes_no_sense_is_refused_with_what_would() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::new(VOLUME, OURS, geometry(), 2);
        change(&mut config);
        Remote::<u8>::new(config, Directory::empty(8)).err().expect("it makes no sense")
    };
    assert!(refused(|config| config.replicas = 5).contains("must be 1 to 4"));
    assert!(refused(|config| config.geometry.slots_per_page = 65).contains("at most 64"));
    assert!(refused(|config| config.generation = Generation(1 << 32)).contains("must be 1 to"));
    assert!(refused(|config| config.geometry.pairing = Pairing::Staircase).contains("no cells"));
    assert!(refused(|config| config.asks_max = 0).contains("asks_max = 0: must be at least 1"));
    assert!(refused(|config| config.hedging = "often".into()).contains("one of none, quantile"));
}

#[test]
fn no_new_life_begins_where_an_older_one_may_lie_on_nodes_that_nobody_reached() {
    for (complete, begins) in [(true, true), (false, false)] {
        let mut bench = Bench::with(&[], complete, |_| {});
        bench.lease(u64::MAX);
        (1..=3).for_each(|id| bench.up(id));
        assert_eq!(!bench.register().is_empty(), begins, "complete: {complete}");
    }
}

#[test]
fn a_copy_that_is_to_be_freed_does_not_count_again() {
    let lists = [1, 2, 4, 5].map(|node| listed(node, 1, 2));
    let mut bench = Bench::with(&lists, true, |_| {});
    bench.lease(u64::MAX);
    (1..=3).for_each(|id| bench.up(id));
    let (band, more) = (lists[0].1.band, NodeId(3));
    let nodes = |bench: &Bench| bench.remote.directory().held(BlockId(1)).unwrap().nodes.clone();
    bench.handle(Input::Copied { band, node: more });
    assert_eq!(nodes(&bench).len(), 4, "it has as many as can be named");
    bench.handle(Input::Dropped { band, node: NodeId(5) });
    bench.handle(Input::Copied { band, node: more });
    assert!(!nodes(&bench).contains(&more), "it is being freed there");
    let asks = bench.seen().asks;
    let free = asks.iter().find(|(node, _, ask)| *node == more && matches!(ask, Ask::Free { .. }));
    bench.answer(free.expect("it is to be freed"), Answer::Done);
    bench.handle(Input::Copied { band, node: more });
    assert!(nodes(&bench).contains(&more), "copied anew, it counts");
}
