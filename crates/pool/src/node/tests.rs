//! One rule of the node each, over a store in memory.

use super::congestion::ExpectedTail;
use super::copying::{ATTEMPTS_MAX, PATIENCE_NS, READS_MAX, STALL_NS};
use super::memory::{MemoryFaults, MemorySettings, MemoryStore};
use super::store::slots_are_sound;
use super::*;
use crate::message::{BandEntry, Congestion, Slot};
use crate::words::{BandShape, Members};
use flash::{MICROSECOND, Random, SECOND};

const SHAPE: BandShape = BandShape { pages: 4, slots_per_page: 2 };
const HERE: NodeId = NodeId(1);
const THERE: NodeId = NodeId(2);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Stamp(u64);

impl Data for Stamp {
    fn crc(&self) -> u32 {
        flash::crc(&self.0.to_le_bytes())
    }
}

/// A node over a store in memory, in virtual time.
pub(super) struct Rig {
    pub(super) node: Node<Stamp>,
    pub(super) store: MemoryStore<Stamp>,
    now: Instant,
    next: u64,
    answers: Vec<(AskId, Answer<Stamp>, Signals)>,
    asked: Vec<(NodeId, AskId, Ask<Stamp>)>,
}

impl Rig {
    pub(super) fn new(node: NodeId, settings: MemorySettings, bounds: NodeSettings) -> Self {
        let store = MemoryStore::new(settings, 1);
        let now = Instant(0);
        let expectation = Box::new(|_| ExpectedTail::default());
        let node = Node::new(now, node, bounds, store.found(), expectation);
        Self { node, store, now, next: 0, answers: Vec::new(), asked: Vec::new() }
    }

    pub(super) fn plain() -> Self {
        Self::new(HERE, MemorySettings::default(), NodeSettings::default())
    }

    pub(super) fn give(&mut self, input: Input<Stamp>) {
        self.node.handle(self.now, input);
        while let Some(output) = self.node.poll() {
            match output {
                Output::Answer { id, answer, signals, .. } => {
                    self.answers.push((id, answer, signals));
                }
                Output::Command { id, command } => self.store.begin(self.now, id, command, None),
                Output::Ask { to, id, ask } => self.asked.push((to, id, ask)),
            }
        }
    }

    pub(super) fn send(&mut self, peer: u64, ask: Ask<Stamp>) -> AskId {
        self.next += 1;
        let id = AskId(self.next);
        self.give(Input::Ask { peer: PeerId(peer), id, ask });
        id
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.store.deadline().into_iter().chain(self.node.deadline()).min()
    }

    /// Does what is due next.
    pub(super) fn step(&mut self) {
        self.now = self.now.max(self.due().expect("something is under way"));
        match self.store.poll(self.now) {
            Some(end) => self.give(Input::Ended(end)),
            None => self.give(Input::Deadline),
        }
    }

    pub(super) fn answer_of(&self, id: AskId) -> Option<Answer<Stamp>> {
        self.answers.iter().find(|(it, ..)| *it == id).map(|(_, answer, _)| answer.clone())
    }

    pub(super) fn wait(&mut self, id: AskId) -> Answer<Stamp> {
        loop {
            if let Some(answer) = self.answer_of(id) {
                return answer;
            }
            self.step();
        }
    }

    pub(super) fn ask(&mut self, ask: Ask<Stamp>) -> Answer<Stamp> {
        let id = self.send(0, ask);
        self.wait(id)
    }

    /// The power is cut and comes back.
    pub(super) fn cut(&mut self) {
        self.store.power_cut(&mut Random::new(3));
        let expectation = Box::new(|_| ExpectedTail::default());
        let found = self.store.found();
        self.node = Node::new(self.now, HERE, NodeSettings::default(), found, expectation);
        self.answers.clear();
        self.asked.clear();
    }
}

pub(super) fn band(number: u32) -> BandName {
    BandName { volume: VolumeId(1), band: number, life: 1 << 32 }
}

fn header() -> BandHeader {
    BandHeader { members: Members::new(&[HERE, THERE]).expect("two different"), shape: SHAPE }
}

fn slots(stamp: u64) -> Vec<Slot<Stamp>> {
    let data = Stamp(stamp);
    let zeroes = flash::crc(&[0; flash::BLOCK_BYTES]);
    vec![
        Slot { oob: [1; 32], crc: data.crc(), data: Some(data) },
        Slot { oob: [2; 32], crc: zeroes, data: None },
    ]
}

pub(super) fn append(number: u32, page: u32, generation: u64) -> Ask<Stamp> {
    let open = (page == 0).then_some(header());
    let slots = slots(u64::from(number * 100 + page));
    Ask::Append { band: band(number), generation: Generation(generation), page, open, slots }
}

pub(super) fn seal(number: u32, pages: u32, generation: u64) -> Ask<Stamp> {
    Ask::Seal { band: band(number), generation: Generation(generation), pages }
}

fn read(number: u32, slot: u32, count: u32, generation: u64) -> Ask<Stamp> {
    let generation = Generation(generation);
    Ask::Read { band: band(number), generation, slot, count, urgent: false }
}

fn free(number: u32, generation: u64) -> Ask<Stamp> {
    Ask::Free { band: band(number), generation: Generation(generation) }
}

pub(super) fn fence(generation: u64) -> Ask<Stamp> {
    Ask::Fence { volume: VolumeId(1), generation: Generation(generation), owner: 0 }
}

fn list(generation: u64, after: Option<BandName>) -> Ask<Stamp> {
    Ask::List { volume: VolumeId(1), generation: Generation(generation), after }
}

fn copy(number: u32, pages: u32, bytes_per_s_max: u64) -> Ask<Stamp> {
    let (band, generation) = (band(number), Generation(1));
    let from = Members::new(&[THERE]).unwrap();
    Ask::Copy { band, generation, from, header: header(), pages, bytes_per_s_max }
}

pub(super) fn refused(refusal: Refusal) -> Answer<Stamp> {
    Answer::Refused(refusal)
}

fn bands_of(answer: Answer<Stamp>) -> Vec<BandEntry> {
    match answer {
        Answer::Bands { bands, .. } => bands,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_append_may_be_asked_again_and_only_the_next_page_is_taken() {
    let mut rig = Rig::plain();
    assert_eq!(rig.ask(append(1, 1, 1)), refused(Refusal::NoBand));
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    assert_eq!(rig.ask(append(1, 2, 1)), refused(Refusal::OutOfOrder { expected: 1 }));
    assert_eq!(rig.ask(append(1, 1, 1)), Answer::Done);
    let mut other = append(1, 1, 1);
    if let Ask::Append { slots, .. } = &mut other {
        slots[1].oob = [9; 32];
    }
    assert_eq!(rig.ask(other), refused(Refusal::Differs));
    let (first, second) = (rig.send(0, append(1, 2, 1)), rig.send(0, append(1, 3, 1)));
    assert_eq!(rig.ask(append(1, 2, 1)), refused(Refusal::Busy), "it is on its way");
    assert_eq!((rig.wait(first), rig.wait(second)), (Answer::Done, Answer::Done));
    assert_eq!(rig.ask(append(1, 4, 1)), refused(Refusal::Invalid), "beyond the shape");
    let found = rig.ask(read(1, 2, 2, 1));
    assert_eq!(found, Answer::Slots(slots(101).into_iter().map(Some).collect()));
}

#[test]
fn what_is_asked_wrongly_is_refused_and_changes_nothing() {
    let mut rig = Rig::plain();
    let mut damaged = append(1, 0, 1);
    if let Ask::Append { slots, .. } = &mut damaged {
        slots[0].crc ^= 1;
    }
    assert_eq!(rig.ask(damaged), refused(Refusal::Invalid));
    let mut of_others = append(1, 0, 1);
    if let Ask::Append { open, .. } = &mut of_others {
        let members = Members::new(&[THERE]).expect("one");
        *open = Some(BandHeader { members, shape: SHAPE });
    }
    assert_eq!(rig.ask(of_others), refused(Refusal::Invalid));
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    for (slot, count) in [(0, 0), (1, 2), (2, 1), (u32::MAX, 1), (0, u32::MAX)] {
        assert_eq!(rig.ask(read(1, slot, count, 1)), refused(Refusal::Invalid), "{slot} {count}");
    }
    assert_eq!(rig.ask(seal(1, 2, 1)), refused(Refusal::Invalid));
    let none = Ask::Fence { volume: NO_VOLUME, generation: Generation(1), owner: 0 };
    assert_eq!(rig.ask(none), refused(Refusal::Invalid));
    assert_eq!(rig.node.facts().bands_used, 1);
}

#[test]
fn a_seal_forgets_the_rest_and_survives_a_power_cut() {
    let mut rig = Rig::plain();
    for page in 0..3 {
        assert_eq!(rig.ask(append(1, page, 1)), Answer::Done);
    }
    let last = rig.send(0, append(1, 3, 1));
    assert_eq!(rig.ask(seal(1, 2, 1)), Answer::Done, "it waits for what is on its way");
    assert_eq!(rig.wait(last), Answer::Done);
    rig.cut();
    let entry = BandEntry::whole(band(1), header(), 2, true);
    assert_eq!(bands_of(rig.ask(list(1, None))), [entry]);
    assert_eq!(rig.ask(read(1, 4, 1, 1)), refused(Refusal::Invalid));
    assert_eq!(rig.ask(seal(1, 2, 1)), Answer::Done);
    assert_eq!(rig.ask(seal(1, 1, 1)), refused(Refusal::Sealed { pages: 2 }));
    assert_eq!(rig.ask(append(1, 1, 1)), Answer::Done, "the same as is there");
    assert_eq!(rig.ask(append(1, 2, 1)), refused(Refusal::Sealed { pages: 2 }));
    assert_eq!((rig.ask(free(1, 1)), rig.ask(free(1, 1))), (Answer::Done, Answer::Done));
    assert_eq!(rig.ask(read(1, 0, 1, 1)), refused(Refusal::NoBand));
}

#[test]
fn a_lower_generation_neither_changes_nor_sees_anything_also_after_a_power_cut() {
    let mut rig = Rig::plain();
    assert_eq!(rig.ask(append(1, 0, 3)), Answer::Done);
    assert_eq!(rig.ask(fence(5)), Answer::Done);
    rig.cut();
    let stale = refused(Refusal::Stale { highest: Generation(5) });
    let flush = Ask::Flush { volume: VolumeId(1), generation: Generation(4) };
    let asks = [
        append(1, 1, 3),
        append(2, 0, 4),
        seal(1, 1, 4),
        read(1, 0, 1, 3),
        list(4, None),
        fence(4),
        free(1, 4),
        flush,
    ];
    for ask in asks {
        assert_eq!(rig.ask(ask.clone()), stale, "{ask:?}");
    }
    assert_eq!(rig.ask(fence(5)), Answer::Done);
    let found = bands_of(rig.ask(list(5, None)));
    assert_eq!(found.iter().map(|entry| entry.pages).collect::<Vec<_>>(), [1]);
    // A higher one that never fenced is a fence as well.
    assert!(matches!(rig.ask(read(1, 0, 1, 7)), Answer::Slots(_)));
    assert_eq!(rig.ask(read(1, 0, 1, 5)), refused(Refusal::Stale { highest: Generation(7) }));
}

#[test]
fn a_fence_is_answered_when_it_is_durable_and_nothing_older_is_under_way() {
    let slow = MemorySettings { write_ns: 500 * MICROSECOND, ..MemorySettings::default() };
    let mut rig = Rig::new(HERE, slow, NodeSettings::default());
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    let old = rig.send(0, append(1, 1, 1));
    let fence = rig.send(0, fence(2));
    let late = rig.send(0, append(1, 2, 1));
    assert_eq!(rig.store.found().fences[&VolumeId(1)].generation, Generation(1));
    assert_eq!(rig.wait(fence), Answer::Done);
    assert_eq!(rig.answer_of(old), Some(Answer::Done), "it ended before");
    assert_eq!(rig.store.found().fences[&VolumeId(1)].generation, Generation(2));
    assert_eq!(rig.wait(late), refused(Refusal::Stale { highest: Generation(2) }));
}

#[test]
fn of_one_generation_only_the_opening_that_fenced_first_is_let_in_also_after_a_power_cut() {
    let by = |generation, owner| {
        let (volume, generation) = (VolumeId(1), Generation(generation));
        Ask::Fence { volume, generation, owner }
    };
    let stale = refused(Refusal::Stale { highest: Generation(2) });
    let mut rig = Rig::plain();
    // Heard of in an ask that says nothing of its owner, as nodes among each other do.
    assert_eq!(rig.ask(append(1, 0, 2)), Answer::Done);
    assert_eq!(rig.ask(by(2, 7)), Answer::Done);
    assert_eq!(rig.ask(by(2, 7)), Answer::Done, "it came again");
    assert_eq!(rig.ask(by(2, 8)), stale);
    rig.cut();
    assert_eq!(rig.ask(by(2, 6)), stale, "it was durable before it was answered");
    assert_eq!(rig.ask(append(2, 0, 2)), Answer::Done, "the owner goes on");
    assert_eq!(rig.ask(by(3, 8)), Answer::Done);
}

#[test]
fn in_the_mode_for_reads_no_band_is_opened_once_its_grace_is_over() {
    let mut rig = Rig::plain();
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    rig.give(Input::Mode(Mode::Reads));
    assert_eq!(rig.ask(append(2, 0, 1)), Answer::Done, "clients have not heard of it");
    rig.now = rig.now + MODE_GRACE_NS;
    assert_eq!(rig.ask(append(3, 0, 1)), refused(Refusal::Mode));
    assert_eq!(rig.ask(append(1, 1, 1)), Answer::Done);
    rig.give(Input::Mode(Mode::Mixed));
    assert_eq!(rig.ask(append(3, 0, 1)), Answer::Done);
}

#[test]
fn more_asks_than_are_allowed_are_refused_as_busy() {
    let bounds = NodeSettings { asks_per_peer_max: 2, asks_max: 3, ..NodeSettings::default() };
    let mut rig = Rig::new(HERE, MemorySettings::default(), bounds);
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    let asks: Vec<AskId> = [0, 0, 0, 5, 6].map(|peer| rig.send(peer, read(1, 0, 1, 1))).into();
    let busy = |rig: &Rig, at: usize| rig.answer_of(asks[at]) == Some(refused(Refusal::Busy));
    assert_eq!([0, 1, 2, 3, 4].map(|at| busy(&rig, at)), [false, false, true, false, true]);
    for at in [0, 1, 3] {
        assert!(matches!(rig.wait(asks[at]), Answer::Slots(_)));
    }
    assert_eq!(rig.node.asks(), 0);
}

#[test]
fn bands_volumes_and_lists_are_bounded() {
    let settings = MemorySettings { bands_max: 3, ..MemorySettings::default() };
    let bounds = NodeSettings { volumes_max: 1, list_max: 2, ..NodeSettings::default() };
    let mut rig = Rig::new(HERE, settings, bounds);
    for number in 1..=3 {
        assert_eq!(rig.ask(append(number, 0, 1)), Answer::Done);
    }
    assert_eq!(rig.ask(append(4, 0, 1)), refused(Refusal::Full));
    let other = Ask::Fence { volume: VolumeId(2), generation: Generation(1), owner: 0 };
    assert_eq!(rig.ask(other), refused(Refusal::Full));
    let Answer::Bands { bands, more } = rig.ask(list(1, None)) else { panic!("no list") };
    assert_eq!((bands.len(), more), (2, true));
    let Answer::Bands { bands, more } = rig.ask(list(1, Some(band(2)))) else { panic!("no list") };
    assert_eq!((bands[0].band, bands.len(), more), (band(3), 1, false));
    let facts =
        NodeFacts { node: HERE, durable: true, bands: 3, bands_used: 3, band_pages: u32::MAX };
    assert_eq!(rig.node.facts(), facts);
}

#[test]
fn a_band_that_failed_keeps_what_it_had_and_a_drive_that_failed_is_still_read() {
    let faults = MemoryFaults { fails_at: 4, ..MemoryFaults::default() };
    let settings = MemorySettings { faults, ..MemorySettings::default() };
    let mut rig = Rig::new(HERE, settings, NodeSettings::default());
    // The fence is the first command.
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    assert_eq!(rig.ask(append(1, 1, 1)), Answer::Done);
    assert_eq!(rig.ask(append(1, 2, 1)), refused(Refusal::Failed));
    assert!(rig.node.has_failed());
    assert_eq!(rig.ask(append(1, 2, 1)), refused(Refusal::BandFailed));
    assert_eq!(rig.ask(append(2, 0, 1)), refused(Refusal::Failed));
    assert_eq!(rig.ask(fence(2)), refused(Refusal::Failed));
    assert!(matches!(rig.ask(read(1, 2, 1, 2)), Answer::Slots(_)), "a new owner may read");
}

#[test]
fn signals_tell_of_the_queue_and_of_congestion() {
    let slow = MemorySettings { read_ns: 4 * MILLISECOND, ..MemorySettings::default() };
    let mut rig = Rig::new(HERE, slow, NodeSettings::default());
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    for _ in 0..8 {
        let (first, second) = (rig.send(0, read(1, 0, 1, 1)), rig.send(0, read(1, 0, 1, 1)));
        rig.wait(first);
        rig.wait(second);
    }
    let (_, _, signals) = rig.answers[rig.answers.len() - 2];
    assert_eq!((signals.queue, signals.congestion), (1, Congestion::Congested));
}

/// The other node with a sealed band, and what this one asks of it.
fn source(pages: u32) -> Rig {
    let mut there = Rig::new(THERE, MemorySettings::default(), NodeSettings::default());
    for page in 0..pages {
        assert_eq!(there.ask(append(1, page, 1)), Answer::Done);
    }
    assert_eq!(there.ask(seal(1, pages, 1)), Answer::Done);
    there
}

/// Lets `here` copy from `there` until the ask `id` is answered; `change` may spoil what is answered.
fn run_copy(
    here: &mut Rig,
    there: &mut Rig,
    id: AskId,
    mut change: impl FnMut(&mut Answer<Stamp>),
) -> Answer<Stamp> {
    run_copy_from(here, there, id, |to, _, answer| {
        assert_eq!(to, THERE);
        change(answer);
    })
}

/// The same, where `here` asks several that have what `there` has; `change` is told who is asked for which slot.
fn run_copy_from(
    here: &mut Rig,
    there: &mut Rig,
    id: AskId,
    mut change: impl FnMut(NodeId, u32, &mut Answer<Stamp>),
) -> Answer<Stamp> {
    loop {
        assert!(here.asked.len() <= READS_MAX);
        if let Some(answer) = here.answer_of(id) {
            return answer;
        }
        if here.asked.is_empty() {
            here.step();
            continue;
        }
        let (to, id, ask) = here.asked.remove(0);
        let Ask::Read { slot, .. } = ask else { panic!("a copy is made of reads: {ask:?}") };
        let mut answer = there.ask(ask);
        change(to, slot, &mut answer);
        here.give(Input::Answer { from: to, id, answer });
    }
}

#[test]
fn a_copy_is_whole_checked_and_no_faster_than_allowed() {
    let (mut here, mut there) = (Rig::plain(), source(4));
    let page_bytes = 2 * flash::BLOCK_BYTES as u64;
    let id = here.send(0, copy(1, 4, 10 * page_bytes));
    assert_eq!(here.ask(copy(1, 4, 1)), refused(Refusal::Busy));
    assert_eq!(here.ask(read(1, 0, 1, 1)), refused(Refusal::NoBand), "not before it is whole");
    assert_eq!(bands_of(here.ask(list(1, None))), []);
    assert_eq!(run_copy(&mut here, &mut there, id, |_| {}), Answer::Done);
    assert!(here.now >= Instant(3 * SECOND / 10), "four pages at ten a second: {:?}", here.now);
    for page in 0..4 {
        let found = here.ask(read(1, page * 2, 2, 1));
        let wanted = slots(u64::from(100 + page)).into_iter().map(Some).collect();
        assert_eq!(found, Answer::Slots(wanted));
    }
    assert_eq!(here.ask(copy(1, 4, 1)), Answer::Done, "it is there");
    assert_eq!(here.ask(copy(1, 3, 1)), refused(Refusal::Differs));
    here.cut();
    assert!(bands_of(here.ask(list(1, None)))[0].sealed);
}

#[test]
fn a_copy_that_cannot_be_whole_leaves_nothing() {
    let (mut here, mut there) = (Rig::plain(), source(4));
    let mut reads = 0;
    let id = here.send(0, copy(1, 4, u64::MAX));
    let spoil = |answer: &mut Answer<Stamp>| {
        if let Answer::Slots(slots) = answer
            && let Some(slot) = &mut slots[0]
            && slot.data == Some(Stamp(102))
        {
            reads += 1;
            slot.data = Some(Stamp(0));
        }
    };
    assert_eq!(run_copy(&mut here, &mut there, id, spoil), refused(Refusal::Invalid));
    assert_eq!(reads, ATTEMPTS_MAX);
    assert_eq!((here.node.facts().bands_used, here.store.found().bands.len()), (0, 0));
    let id = here.send(0, copy(7, 4, u64::MAX));
    assert_eq!(run_copy(&mut here, &mut there, id, |_| {}), refused(Refusal::NoBand));
    assert_eq!(there.ask(fence(9)), Answer::Done);
    let id = here.send(0, copy(1, 4, u64::MAX));
    let stale = refused(Refusal::Stale { highest: Generation(9) });
    assert_eq!(run_copy(&mut here, &mut there, id, |_| {}), stale);
    for wrong in [copy(1, 5, 1), copy(1, 0, 1), copy(1, 4, 0)] {
        assert_eq!(here.ask(wrong), refused(Refusal::Invalid));
    }
}

/// Two copies that are damaged at different places are one that is sound.
#[test]
fn what_one_node_cannot_read_of_a_band_the_next_one_is_asked_for() {
    let copied = |lost_by_both: bool| {
        let (mut here, mut there) = (Rig::plain(), source(4));
        let mut ask = copy(1, 4, u64::MAX);
        if let Ask::Copy { from, .. } = &mut ask {
            *from = Members::new(&[THERE, NodeId(8)]).unwrap();
        }
        let (id, mut asked) = (here.send(0, ask), Vec::new());
        let answer = run_copy_from(&mut here, &mut there, id, |to, slot, answer| {
            asked.push((to, slot / 2));
            let Answer::Slots(slots) = answer else { return };
            // Each slot of page 1 at another node, and page 2 at the second one only.
            match (slot / 2, to == THERE) {
                (1, first) => slots[usize::from(first)] = None,
                (2, true) => *answer = refused(Refusal::NoBand),
                (3, _) if lost_by_both => slots[0] = None,
                _ => {}
            }
        });
        (here, answer, asked)
    };
    let (mut here, answer, asked) = copied(false);
    assert_eq!(answer, Answer::Done);
    for page in 0..4 {
        let wanted = slots(u64::from(100 + page)).into_iter().map(Some).collect();
        assert_eq!(here.ask(read(1, page * 2, 2, 1)), Answer::Slots(wanted));
    }
    let of_next: Vec<u32> =
        asked.iter().filter(|(to, _)| *to != THERE).map(|(_, page)| *page).collect();
    assert_eq!(of_next, [1, 2], "only what the first one lacks");
    let (here, answer, asked) = copied(true);
    assert_eq!(answer, refused(Refusal::Invalid));
    let last = asked.iter().filter(|(_, page)| *page == 3).count() as u32;
    assert_eq!(last, 2 * ATTEMPTS_MAX);
    assert_eq!(here.node.facts().bands_used, 0);
}

#[test]
fn a_copy_from_a_node_that_says_nothing_ends() {
    let mut here = Rig::plain();
    let id = here.send(0, copy(1, 4, u64::MAX));
    assert_eq!(here.wait(id), refused(Refusal::Busy));
    assert!(here.now >= Instant(u64::from(ATTEMPTS_MAX) * PATIENCE_NS), "{:?}", here.now);
    assert_eq!(here.node.facts().bands_used, 0);
}

#[test]
fn a_power_cut_in_the_middle_of_a_copy_leaves_nothing_of_it() {
    for steps in 0..12 {
        let (mut here, mut there) = (Rig::plain(), source(4));
        let id = here.send(0, copy(1, 4, 1 << 20));
        for _ in 0..steps {
            if here.answer_of(id).is_some() {
                break;
            }
            match here.asked.is_empty() {
                true => here.step(),
                false => {
                    let (_, id, ask) = here.asked.remove(0);
                    let answer = there.ask(ask);
                    here.give(Input::Answer { from: THERE, id, answer });
                }
            }
        }
        here.cut();
        for entry in bands_of(here.ask(list(1, None))) {
            assert!(entry.sealed && entry.pages == 4, "after {steps} steps: {entry:?}");
        }
    }
}

#[test]
fn a_fence_stops_a_copy_of_an_older_owner() {
    let mut here = Rig::plain();
    let id = here.send(0, copy(1, 4, u64::MAX));
    while here.asked.is_empty() {
        here.step();
    }
    let before = here.now;
    assert_eq!(here.ask(fence(2)), Answer::Done);
    assert!(here.now - before < PATIENCE_NS, "it does not wait for the other node");
    assert_eq!(here.wait(id), refused(Refusal::Stale { highest: Generation(2) }));
    assert_eq!(here.node.facts().bands_used, 0);
}

#[test]
fn the_slots_of_an_append_are_held_against_their_checksums() {
    let mut page = slots(1);
    assert!(slots_are_sound(&page));
    page[1].crc = 0;
    assert!(!slots_are_sound(&page), "zeroes have a checksum, too");
}

#[test]
fn a_copy_that_gets_no_page_for_long_makes_room_for_another() {
    let bounds = NodeSettings { copies_max: 1, ..NodeSettings::default() };
    let mut here = Rig::new(HERE, MemorySettings::default(), bounds);
    let mut there = source(4);
    // A page would take hours at this rate.
    let id = here.send(0, copy(1, 4, 1));
    assert_eq!(run_copy(&mut here, &mut there, id, |_| {}), refused(Refusal::Busy));
    assert!(here.now <= Instant(2 * STALL_NS), "{:?}", here.now);
    assert_eq!((here.node.facts().bands_used, here.store.found().bands.len()), (0, 0));
    let id = here.send(0, copy(1, 4, u64::MAX));
    assert_eq!(run_copy(&mut here, &mut there, id, |_| {}), Answer::Done);
}

#[test]
fn the_bytes_of_all_asks_are_bounded() {
    let bounds = NodeSettings { bytes_max: 3 * 4096, ..NodeSettings::default() };
    let mut rig = Rig::new(HERE, MemorySettings::default(), bounds);
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    let reads = [2, 1, 1].map(|count| rig.send(0, read(1, 0, count, 1)));
    assert_eq!(rig.answer_of(reads[1]), None, "two and one are three");
    assert_eq!(rig.answer_of(reads[2]), Some(refused(Refusal::Busy)));
    assert_eq!(rig.ask(list(1, None)), rig.ask(list(1, None)), "what moves nothing is let in");
    assert!(matches!(rig.wait(reads[0]), Answer::Slots(_)));
    assert!(matches!(rig.ask(read(1, 0, 2, 1)), Answer::Slots(_)), "there is room again");
    // One that is larger than all of it is alone.
    let bounds = NodeSettings { bytes_max: 0, ..NodeSettings::default() };
    let mut rig = Rig::new(HERE, MemorySettings::default(), bounds);
    assert_eq!(rig.ask(append(1, 0, 1)), Answer::Done);
    assert_eq!(rig.ask(read(1, 0, u32::MAX, 1)), refused(Refusal::Invalid), "and none overflows");
}
