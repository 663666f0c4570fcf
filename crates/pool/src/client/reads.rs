//! Reads on their way: from one member, from another when that one refuses, is unsound or late, and from two
//! at a time when the first takes longer than most do (*hedged*), within a budget.
//!
//! Invariants:
//! - a read ends once, with every slot that some member had sound, and of others what some member knew of them;
//! - a slot is called uncorrectable only when every member has said that it has not got it, and so has every node that
//!   is none any more and may have it all the same ([`Directory::doubtful`](super::Directory::doubtful)): for those that
//!   are away the read waits, and those that are all late are asked again, each time with more patience, up to
//!   [`Config::read_limit_ns_max`](super::Config::read_limit_ns_max);
//! - hedged reads are at most [`Hedging::budget_percent`] of all, beside a few that may come at once.

use super::choice::{Candidate, Choice};
use super::latency::Latencies;
use super::nodes::{ILL_BELOW, Mode, Nodes};
use crate::message::Slot;
use crate::words::{BandName, NodeId};
use flash::{Instant, MICROSECOND, Random, Tag};
use std::collections::BTreeMap;

/// When reads are sent twice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Hedging {
    /// After so many thousandths of reads would have been answered.
    pub after_permille: u32,
    /// Of all reads, at most; 0 for never.
    pub budget_percent: u32,
}

/// Hedges that may come at once.
const HEDGES_AT_ONCE: u32 = 16;

/// So often the patience with late members is doubled, if its bound lets it.
const ROUNDS_MAX: u32 = 20;

/// No read is hedged sooner, whatever the quantile.
const HEDGE_NS_MIN: u64 = 20 * MICROSECOND;

/// The hedging of that name: `none`, or `quantile` with its defaults.
///
/// # Errors
/// Says which there are.
pub fn hedging_by_name(name: &str) -> Result<Hedging, String> {
    match name {
        "none" => Ok(Hedging { after_permille: 1000, budget_percent: 0 }),
        "quantile" => Ok(Hedging { after_permille: 950, budget_percent: 5 }),
        _ => Err(format!("no hedging {name}: one of none, quantile")),
    }
}

/// How far a member has come with a read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Try {
    /// Asked, and late from then on.
    Asked(Instant),
    /// Asked, and late; may still answer.
    Late,
    /// It has not got what is missing.
    Lacks,
    /// Not before then.
    Busy(Instant),
}

/// How far each member that was asked has come, by node. They are few, and there is a read for every block that the
/// host reads: a short list costs less than a map.
#[derive(Clone, Debug, Default)]
struct Tries(Vec<(NodeId, Try)>);

impl Tries {
    fn find(&self, node: NodeId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&node, |&(of, _)| of)
    }

    fn get(&self, node: NodeId) -> Option<Try> {
        self.find(node).ok().map(|at| self.0[at].1)
    }

    fn insert(&mut self, node: NodeId, state: Try) {
        match self.find(node) {
            Ok(at) => self.0[at].1 = state,
            Err(at) => self.0.insert(at, (node, state)),
        }
    }

    fn remove(&mut self, node: NodeId) {
        if let Ok(at) = self.find(node) {
            self.0.remove(at);
        }
    }

    fn states(&self) -> impl Iterator<Item = Try> {
        self.0.iter().map(|&(_, state)| state)
    }
}

/// What a read wants.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Of the command.
    pub tag: Tag,
    /// Which life.
    pub name: BandName,
    /// First slot of the band.
    pub slot: u32,
    /// Slots.
    pub count: u32,
    /// Whoever waits for it waits now.
    pub urgent: bool,
}

/// A read under way.
#[derive(Clone, Debug)]
pub struct Read<D> {
    /// What it wants.
    pub wanted: Wanted,
    /// What it has so far, slot by slot: lost ones, too, until another member has them.
    pub got: Vec<Option<Slot<D>>>,
    tries: Tries,
    /// When to hedge, if it is still to be.
    hedge_at: Option<Instant>,
    /// How often all members that could be asked were late.
    rounds: u32,
    /// The timer that is set for it.
    pub timer: Option<Instant>,
}

/// What to do about a read.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Ask this node.
    Ask(NodeId),
    /// Wait: for an answer, or for a member that is away or busy.
    Wait,
    /// It has ended.
    End,
}

/// See the head of this file.
pub struct Reads<D> {
    reads: BTreeMap<u64, Read<D>>,
    next: u64,
    latencies: Latencies,
    hedging: Hedging,
    choice: Choice,
    limit_ns: u64,
    limit_ns_max: u64,
    /// Hedges that may be begun, in hundredths.
    credit: u32,
    /// Reads that were hedged.
    pub hedges: u64,
    /// Members asked after another had refused, failed or was late.
    pub retries: u64,
    /// Slots that a member should have had sound.
    pub unsound: u64,
}

impl<D> Reads<D> {
    /// None yet. A member is late after the first limit, and after up to the second where all are.
    pub fn new(choice: Choice, hedging: Hedging, (limit_ns, limit_ns_max): (u64, u64)) -> Self {
        Self {
            reads: BTreeMap::new(),
            next: 0,
            latencies: Latencies::default(),
            hedging,
            choice,
            limit_ns,
            limit_ns_max,
            credit: 0,
            hedges: 0,
            retries: 0,
            unsound: 0,
        }
    }

    /// One more read. Its number.
    pub fn begin(&mut self, now: Instant, wanted: Wanted) -> u64 {
        self.credit = (self.credit + self.hedging.budget_percent).min(HEDGES_AT_ONCE * 100);
        let after = match self.hedging.budget_percent {
            0 => None,
            _ => self.latencies.quantile(self.hedging.after_permille),
        };
        let hedge_at = after.map(|ns| now + ns.max(HEDGE_NS_MIN));
        let got = (0..wanted.count).map(|_| None).collect();
        self.next += 1;
        let read = Read { wanted, got, tries: Tries::default(), hedge_at, rounds: 0, timer: None };
        self.reads.insert(self.next, read);
        self.next
    }

    /// A read under way.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Read<D>> {
        self.reads.get_mut(&id)
    }

    /// What to do about a read whose band is on `members`, each with the queue of its unit and whether GC
    /// stirs there.
    pub fn next<P>(
        &mut self,
        now: Instant,
        id: u64,
        members: &[(NodeId, (Option<u32>, bool))],
        nodes: &mut Nodes<P>,
        random: &mut Random,
    ) -> Next {
        let Some(read) = self.reads.get_mut(&id) else { return Next::Wait };
        if read.got.iter().all(is_there) {
            return Next::End;
        }
        for (_, state) in &mut read.tries.0 {
            if matches!(*state, Try::Asked(late_at) if late_at <= now) {
                *state = Try::Late;
            }
        }
        let lacks = |&(node, _): &(NodeId, _)| read.tries.get(node) == Some(Try::Lacks);
        if members.iter().all(lacks) {
            return Next::End;
        }
        let waits = read.tries.states().any(|state| matches!(state, Try::Asked(_)));
        let hedges = waits && self.credit >= 100 && read.hedge_at.is_some_and(|at| at <= now);
        if waits && !hedges {
            return Next::Wait;
        }
        // Who writes now would be late with a hedged read, and with what it writes; not as late as one that is ill.
        let asked = |(_, state): &&(NodeId, Try)| matches!(state, Try::Asked(_));
        let mut asked = read.tries.0.iter().filter(asked);
        let spares = hedges && asked.any(|&(node, _)| nodes.ill(now, node).is_none());
        let free: Vec<_> = members
            .iter()
            .filter(|&&(node, _)| {
                let is_free = match read.tries.get(node) {
                    None => true,
                    Some(Try::Busy(until)) => until <= now,
                    Some(_) => false,
                };
                let is_spared = spares && nodes.mode(node) == Mode::Writes;
                // One that is ill would answer after whoever was asked first.
                let is_vain = hedges && nodes.ill(now, node).is_some();
                is_free && !is_spared && !is_vain && nodes.has_room(node)
            })
            .copied()
            .collect();
        let Some(node) = pick(now, &free, nodes, &mut self.choice, random) else {
            let is_late = |state: Try| state == Try::Late;
            let is_busy = |state: Try| matches!(state, Try::Busy(_));
            let goes_on = waits || read.tries.states().any(is_busy);
            if goes_on || !read.tries.states().any(is_late) {
                return Next::Wait;
            }
            read.tries.0.retain(|&(_, state)| !is_late(state));
            read.rounds += 1;
            return self.next(now, id, members, nodes, random);
        };
        if hedges {
            (read.hedge_at, self.credit) = (None, self.credit - 100);
            self.hedges += 1;
        } else {
            self.retries += u64::from(!read.tries.0.is_empty());
        }
        let patience = self.limit_ns.saturating_mul(1 << read.rounds.min(ROUNDS_MAX));
        let patience_max = self.limit_ns_max.max(self.limit_ns);
        read.tries.insert(node, Try::Asked(now + patience.min(patience_max)));
        Next::Ask(node)
    }

    /// A member gives what it has.
    pub fn slots(&mut self, id: u64, node: NodeId, took_ns: u64, slots: Vec<Option<Slot<D>>>) {
        self.latencies.add(took_ns);
        let Some(read) = self.reads.get_mut(&id) else { return };
        let right = slots.len() == read.got.len();
        if right {
            for (got, slot) in read.got.iter_mut().zip(slots) {
                self.unsound += u64::from(!is_there(&slot));
                if !is_there(got) && slot.is_some() {
                    *got = slot;
                }
            }
        }
        // Also if it was whole: then the read ends before this counts.
        read.tries.insert(node, Try::Lacks);
    }

    /// A member has not got it, as far as it goes.
    pub fn lacks(&mut self, id: u64, node: NodeId) {
        if let Some(read) = self.reads.get_mut(&id) {
            read.tries.insert(node, Try::Lacks);
        }
    }

    /// Whether a member has said that it has not got what is missing.
    pub fn is_lacking(&self, id: u64, node: NodeId) -> bool {
        let read = self.reads.get(&id);
        read.is_some_and(|read| read.tries.get(node) == Some(Try::Lacks))
    }

    /// A member wants to be asked later.
    pub fn busy(&mut self, id: u64, node: NodeId, until: Instant) {
        if let Some(read) = self.reads.get_mut(&id) {
            read.tries.insert(node, Try::Busy(until));
        }
    }

    /// The connection to a member is gone: it may be asked again when it is back.
    pub fn lost(&mut self, id: u64, node: NodeId) {
        if let Some(read) = self.reads.get_mut(&id) {
            read.tries.remove(node);
        }
    }

    /// When to look after a read again.
    pub fn deadline(&self, now: Instant, id: u64) -> Option<Instant> {
        let read = self.reads.get(&id)?;
        let tries = read.tries.states().filter_map(|state| match state {
            Try::Asked(at) | Try::Busy(at) => Some(at),
            Try::Late | Try::Lacks => None,
        });
        // One that cannot be paid for is not looked after again.
        let hedge = read.hedge_at.filter(|_| self.credit >= 100);
        tries.chain(hedge).filter(|&at| at > now).min()
    }

    /// Who is late with a read.
    pub fn late(&self, now: Instant, id: u64) -> Vec<NodeId> {
        let Some(read) = self.reads.get(&id) else { return Vec::new() };
        let late = |state: Try| matches!(state, Try::Asked(at) if at <= now);
        let late = read.tries.0.iter().filter(|&&(_, state)| late(state));
        late.map(|&(node, _)| node).collect()
    }

    /// The read has ended.
    pub fn end(&mut self, id: u64) -> Option<Read<D>> {
        self.reads.remove(&id)
    }

    /// All reads under way.
    pub fn ids(&self) -> Vec<u64> {
        self.reads.keys().copied().collect()
    }

    /// Reads under way.
    pub fn count(&self) -> usize {
        self.reads.len()
    }

    /// How long all but so few thousandths take, if enough are known.
    pub fn quantile(&self, permille: u32) -> Option<u64> {
        self.latencies.quantile(permille)
    }
}

/// Whether a slot is there with its data.
fn is_there<D>(slot: &Option<Slot<D>>) -> bool {
    slot.as_ref().is_some_and(|slot| !slot.is_lost())
}

/// One of the members that can be asked now. Those whose nodes are to write only where there are no others.
fn pick<P>(
    now: Instant,
    free: &[(NodeId, (Option<u32>, bool))],
    nodes: &mut Nodes<P>,
    choice: &mut Choice,
    random: &mut Random,
) -> Option<NodeId> {
    let writes = |&(node, _): &(NodeId, _)| nodes.mode(node) == Mode::Writes;
    let (writers, readers): (Vec<_>, Vec<_>) = free.iter().copied().partition(writes);
    // Who writes is spared while a reader is well; of those that are ill the best gets its part, to tell when it is.
    let ill = |&(node, _): &(NodeId, _)| nodes.ill(now, node).unwrap_or(1.0);
    let best = readers.iter().map(ill).fold(0.0, f64::max);
    let reads = best >= ILL_BELOW || best > 0.0 && random.fraction() < best;
    let serving = if reads || writers.is_empty() { readers } else { writers };
    if serving.is_empty() {
        return None;
    }
    let mut candidates = Vec::with_capacity(serving.len());
    for &(node, (unit_queue, stirs)) in &serving {
        let weight = nodes.read_weight(now, node);
        let (asked, queue) = nodes.get(node).map_or((0, 0), |of| (of.asked, of.queue));
        candidates.push(Candidate { weight, asked, queue, unit_queue, stirs });
    }
    Some(serving[choice.pick(&candidates, random)].0)
}

#[cfg(test)]
mod tests {
    use super::super::choice::choice_by_name;
    use super::super::congestion::WINDOW_NS;
    use super::super::nodes::Plan;
    use super::*;
    use crate::controller::weights::NodeWeights;
    use crate::message::NodeFacts;
    use crate::words::DomainId;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const BOTH: [(NodeId, (Option<u32>, bool)); 2] = [(A, (None, false)), (B, (None, false))];

    struct Bench {
        reads: Reads<u8>,
        nodes: Nodes<()>,
        random: Random,
    }

    impl Bench {
        /// The first member is asked first.
        fn new(hedging: &str) -> Self {
            let mut nodes = Nodes::new(9, true);
            for node in [A, B] {
                nodes.join(node, DomainId(node.0));
                nodes.up(NodeFacts { node, ..NodeFacts::default() });
            }
            let hedging = hedging_by_name(hedging).unwrap();
            let reads = Reads::new(choice_by_name("first").unwrap(), hedging, (1000, 4000));
            Self { reads, nodes, random: Random::new(1) }
        }

        fn begin(&mut self, now: u64, count: u32) -> u64 {
            let wanted =
                Wanted { tag: Tag(1), name: BandName::default(), slot: 0, count, urgent: false };
            self.reads.begin(Instant(now), wanted)
        }

        fn next(&mut self, now: u64, id: u64) -> Next {
            self.reads.next(Instant(now), id, &BOTH, &mut self.nodes, &mut self.random)
        }
    }

    fn slot(value: u8) -> Option<Slot<u8>> {
        Some(Slot { oob: [0; 32], crc: 0, data: Some(value) })
    }

    #[test]
    fn what_one_member_has_not_got_sound_comes_from_the_other() {
        let mut bench = Bench::new("none");
        let id = bench.begin(0, 2);
        assert_eq!(bench.next(0, id), Next::Ask(A));
        assert_eq!(bench.next(0, id), Next::Wait);
        bench.reads.slots(id, A, 10, vec![slot(1), None]);
        assert_eq!(bench.next(1, id), Next::Ask(B));
        bench.reads.slots(id, B, 10, vec![None, slot(2)]);
        assert_eq!(bench.next(2, id), Next::End);
        assert_eq!(bench.reads.end(id).unwrap().got, [slot(1), slot(2)]);
        assert_eq!((bench.reads.unsound, bench.reads.retries), (2, 1));
    }

    #[test]
    fn what_is_known_of_a_lost_slot_stands_until_a_member_has_it() {
        let lost = |of| Some(Slot { oob: [of; 32], crc: 9, data: None });
        // What the second member says, and what it comes to.
        for (second, got) in [(slot(2), slot(2)), (None, lost(1)), (lost(3), lost(3))] {
            let mut bench = Bench::new("none");
            let id = bench.begin(0, 1);
            assert_eq!(bench.next(0, id), Next::Ask(A));
            bench.reads.slots(id, A, 10, vec![lost(1)]);
            assert_eq!(bench.next(1, id), Next::Ask(B), "it may have the data");
            bench.reads.slots(id, B, 10, vec![second]);
            assert_eq!(bench.next(2, id), Next::End);
            assert_eq!(bench.reads.end(id).unwrap().got, [got]);
        }
    }

    #[test]
    fn a_slot_is_given_up_only_when_every_member_has_said_that_it_lacks_it() {
        let mut bench = Bench::new("none");
        let id = bench.begin(0, 1);
        assert_eq!(bench.next(0, id), Next::Ask(A));
        bench.reads.lacks(id, A);
        bench.nodes.down(B);
        assert_eq!(bench.next(1, id), Next::Wait, "the other is away");
        bench.nodes.up(NodeFacts { node: B, ..NodeFacts::default() });
        assert_eq!(bench.next(2, id), Next::Ask(B));
        bench.nodes.down(B);
        bench.reads.lost(id, B);
        assert_eq!(bench.next(3, id), Next::Wait);
        bench.nodes.up(NodeFacts { node: B, ..NodeFacts::default() });
        assert_eq!(bench.next(4, id), Next::Ask(B));
        bench.reads.slots(id, B, 10, vec![None]);
        assert_eq!(bench.next(5, id), Next::End);
        assert_eq!(bench.reads.end(id).unwrap().got, [None]);
    }

    #[test]
    fn who_is_late_or_busy_is_passed_over_and_a_late_answer_still_counts() {
        let mut bench = Bench::new("none");
        let id = bench.begin(0, 1);
        assert_eq!(bench.next(0, id), Next::Ask(A));
        assert_eq!(bench.reads.deadline(Instant(0), id), Some(Instant(1000)));
        assert_eq!(bench.reads.late(Instant(1000), id), [A]);
        assert_eq!(bench.next(1000, id), Next::Ask(B));
        bench.reads.busy(id, B, Instant(1500));
        assert_eq!(bench.next(1400, id), Next::Wait);
        assert_eq!(bench.next(1500, id), Next::Ask(B));
        bench.reads.slots(id, A, 10, vec![slot(1)]);
        assert_eq!(bench.next(1501, id), Next::End);
    }

    #[test]
    fn where_all_members_are_late_they_are_asked_again_with_more_patience_up_to_a_bound() {
        let mut bench = Bench::new("none");
        let id = bench.begin(0, 1);
        let (mut now, mut asked) = (0, Vec::new());
        for _ in 0..8 {
            let Next::Ask(node) = bench.next(now, id) else { panic!("it goes on") };
            let at = bench.reads.deadline(Instant(now), id).unwrap().0;
            asked.push((node, at - now));
            now = at;
        }
        let rounds = [1000, 2000, 4000, 4000].map(|ns| [(A, ns), (B, ns)]);
        assert_eq!(asked, rounds.concat());
        bench.reads.lacks(id, A);
        assert_eq!(bench.next(now, id), Next::Ask(B), "the one that has not said that it lacks it");
    }

    /// A serves reads and B writes, and A has not answered for long.
    fn of_an_ill_reader() -> Bench {
        let mut bench = Bench::new("none");
        let share = |node, mode| NodeWeights { node, mode, read: 1.0, write: 1.0 };
        let shares = vec![share(A, Mode::Reads), share(B, Mode::Writes)];
        bench.nodes.plan(Instant(0), &Plan { shares, until: Instant(u64::MAX) });
        for at in 1..20 {
            bench.nodes.late(Instant(at * WINDOW_NS), A);
        }
        bench
    }

    #[test]
    fn a_reader_that_is_ill_spares_nobody_who_writes_and_gets_a_little_to_tell_when_it_is_well() {
        let mut bench = of_an_ill_reader();
        let now = 20 * WINDOW_NS;
        let mut of_writer = 0;
        for _ in 0..20_000 {
            let id = bench.begin(now, 1);
            of_writer += u32::from(bench.next(now, id) == Next::Ask(B));
        }
        assert!((19_900..20_000).contains(&of_writer), "{of_writer}");
        // A while after it was heard of last it is taken to be well.
        let id = bench.begin(now + 100 * WINDOW_NS, 1);
        assert_eq!(bench.next(now + 100 * WINDOW_NS, id), Next::Ask(A));
    }

    #[test]
    fn no_read_is_hedged_with_who_is_ill() {
        for ill in [None, Some(B)] {
            let mut bench = Bench::new("quantile");
            bench.reads.limit_ns = 100 * WINDOW_NS;
            let mut now = 0;
            for _ in 0..200 {
                let id = bench.begin(now, 1);
                assert_eq!(bench.next(now, id), Next::Ask(A));
                bench.reads.slots(id, A, 100_000, vec![slot(1)]);
                bench.reads.end(id);
                now += WINDOW_NS;
                ill.map(|node| bench.nodes.late(Instant(now), node));
            }
            let id = bench.begin(now, 1);
            assert_eq!(bench.next(now, id), Next::Ask(A));
            let hedged = if ill.is_none() { Next::Ask(B) } else { Next::Wait };
            assert_eq!(bench.next(now + WINDOW_NS, id), hedged);
        }
    }

    #[test]
    fn slow_reads_are_hedged_and_no_more_than_the_budget_says() {
        let mut bench = Bench::new("quantile");
        let mut hedged = 0;
        for round in 0..2000u64 {
            let now = round * 10_000_000;
            let id = bench.begin(now, 1);
            assert_eq!(bench.next(now, id), Next::Ask(A));
            // The first hundred are quick, the rest slow.
            if round < 100 {
                bench.reads.slots(id, A, 100_000, vec![slot(1)]);
            } else {
                let at = bench.reads.deadline(Instant(now), id).unwrap();
                // Not late yet, but hedged where that can be paid for.
                hedged += u64::from(at.0 < now + 1000 && bench.next(at.0, id) == Next::Ask(B));
                bench.reads.slots(id, B, 100_000, vec![slot(1)]);
            }
            assert_eq!(bench.next(now + 999, id), Next::End);
            bench.reads.end(id);
        }
        assert_eq!(hedged, 0, "nothing is hedged before the least time");
        let mut bench = Bench::new("quantile");
        bench.reads.limit_ns = 1_000_000_000;
        for round in 0..2000u64 {
            let now = round * 10_000_000;
            let id = bench.begin(now, 1);
            assert_eq!(bench.next(now, id), Next::Ask(A));
            if round >= 100 {
                let at = bench.reads.deadline(Instant(now), id).unwrap();
                hedged += u64::from(bench.next(at.0, id) == Next::Ask(B) && at.0 < now + 1_000_000);
            }
            bench.reads.slots(id, A, 100_000, vec![slot(1)]);
            bench.reads.end(id);
        }
        assert_eq!(bench.reads.hedges, hedged);
        // Five in a hundred, those of the hundred before them included.
        assert!((90..=100).contains(&hedged), "{hedged}");
    }
}
