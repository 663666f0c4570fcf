//! Programs on their way to all members of their band.
//!
//! Invariants:
//! - a program ends well only when every member of the band has its page and all before it, durably if the
//!   node is durable at completion; pages of a band end in order;
//! - a member that refuses, fails, goes, or is late where others could do better, ends all programs of the band under way as cut; the band
//!   then ends, on all members, after exactly the pages that ended well;
//! - while no page of a band has ended well, another opening takes its place instead, a few times: nobody
//!   above need know;
//! - what goes to a member goes in order, each page once, except after a refusal that asks for more time.

use super::lanes::Opening;
use crate::control::mutant::Mutant;
use crate::message::{Ask, BandHeader, Refusal, Slot};
use crate::words::{BandName, BandShape, Generation, NodeId};
use flash::{BlockId, Instant, Tag};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How often a band without a page that ended well gets another opening before its programs are cut.
const OPENINGS_MAX: u32 = 4;

/// A page under way.
#[derive(Clone, Debug)]
struct Page<D> {
    tag: Tag,
    slots: Vec<Slot<D>>,
    /// Members that do not have it yet.
    left: Vec<NodeId>,
    /// Late from here on; none while the band has no opening.
    late_at: Instant,
}

#[derive(Clone, Debug)]
struct Member {
    node: NodeId,
    /// The next page that it is sent.
    next: u32,
    not_before: Instant,
}

/// A band that takes pages.
#[derive(Clone, Debug)]
struct Band<D> {
    /// None while it waits for an opening.
    name: Option<BandName>,
    members: Vec<Member>,
    header: BandHeader,
    pages: VecDeque<Page<D>>,
    /// Pages that have ended well.
    done: u32,
    openings: u32,
}

/// What the client is to do about a band.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Nothing more.
    None,
    /// These programs ended well; the band has so many pages, and is full or not.
    Grew {
        /// In order.
        done: Vec<Tag>,
        /// That count now.
        pages: u32,
        /// It takes no more.
        full: bool,
    },
    /// The band takes no more: these programs are cut.
    Cut {
        /// Its life, if it has one.
        name: Option<BandName>,
        /// Of it.
        nodes: Vec<NodeId>,
        /// Pages that count.
        pages: u32,
        /// In order.
        tags: Vec<Tag>,
    },
    /// The band has lost its opening without a page in it, and waits for another.
    Again {
        /// The life that is over.
        name: BandName,
        /// Who may have something of it.
        nodes: Vec<NodeId>,
    },
}

/// What a refusal means for a member.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Meaning {
    /// From this page on, later.
    Later(u32),
    Fails,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Programs<D> {
    bands: BTreeMap<BlockId, Band<D>>,
    /// Of them, those that wait for an opening.
    unbound: BTreeSet<BlockId>,
    shape: BandShape,
    generation: Generation,
    limit_ns: u64,
    mutant: Option<Mutant>,
}

impl<D: Clone> Programs<D> {
    /// None yet. A page is late after `limit_ns`.
    pub fn new(shape: BandShape, generation: Generation, limit_ns: u64) -> Self {
        let (bands, unbound, mutant) = (BTreeMap::new(), BTreeSet::new(), None);
        Self { bands, unbound, shape, generation, limit_ns, mutant }
    }

    /// See [`super::Remote::plant`].
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// A program of the next page of a block: the first one begins a band.
    pub fn add(&mut self, now: Instant, block: BlockId, page: u32, tag: Tag, slots: Vec<Slot<D>>) {
        if !self.bands.contains_key(&block) {
            self.unbound.insert(block);
        }
        let band = self.bands.entry(block).or_insert(Band {
            name: None,
            members: Vec::new(),
            header: BandHeader::default(),
            pages: VecDeque::new(),
            done: 0,
            openings: 0,
        });
        let next = band.done + band.pages.len() as u32;
        assert_eq!(page, next, "pages of a block are programmed in order");
        let left = band.members.iter().map(|member| member.node).collect();
        band.pages.push_back(Page { tag, slots, left, late_at: now + self.limit_ns });
    }

    /// Whether the block takes pages, or waits to.
    pub fn has(&self, block: BlockId) -> bool {
        self.bands.contains_key(&block)
    }

    /// Whether it does so in this life.
    pub fn is_of(&self, block: BlockId, name: BandName) -> bool {
        self.bands.get(&block).is_some_and(|band| band.name == Some(name))
    }

    /// Whether programs of the block are under way.
    pub fn is_busy(&self, block: BlockId) -> bool {
        self.bands.get(&block).is_some_and(|band| !band.pages.is_empty())
    }

    /// The block takes no more pages, and nobody need know: it is erased.
    pub fn abandon(&mut self, block: BlockId) {
        self.bands.remove(&block);
        self.unbound.remove(&block);
    }

    /// Bands that wait for an opening.
    pub fn waiting(&self) -> Vec<BlockId> {
        self.unbound.iter().copied().collect()
    }

    /// Whether a band waits for an opening.
    pub fn is_unbound(&self, block: BlockId) -> bool {
        self.unbound.contains(&block)
    }

    /// All that take pages, each with its members: none while it waits for an opening.
    pub fn open(&self) -> impl Iterator<Item = (BlockId, &[NodeId])> {
        self.bands.iter().map(|(&block, band)| {
            let members = band.name.map_or(&[][..], |_| band.header.members.nodes());
            (block, members)
        })
    }

    /// Those of which this node is a member.
    pub fn blocks_of(&self, node: NodeId) -> Vec<BlockId> {
        let has = |band: &Band<D>| band.members.iter().any(|member| member.node == node);
        let of = self.bands.iter().filter(|(_, band)| has(band));
        of.map(|(&block, _)| block).collect()
    }

    /// Whether a member has not been sent all, though it may be asked.
    pub fn is_stalled(&self, block: BlockId, now: Instant) -> bool {
        self.bands.get(&block).is_some_and(|band| {
            let end = band.done + band.pages.len() as u32;
            band.members.iter().any(|member| member.next < end && member.not_before <= now)
        })
    }

    /// The nodes of an open band.
    pub fn nodes(&self, block: BlockId) -> Vec<NodeId> {
        let band = self.bands.get(&block);
        band.map_or_else(Vec::new, |band| band.members.iter().map(|member| member.node).collect())
    }

    /// Gives a band that waits an opening.
    pub fn bind(&mut self, now: Instant, opening: &Opening) {
        let name = opening.name;
        self.unbound.remove(&BlockId(name.band));
        let band = self.bands.get_mut(&BlockId(name.band)).expect("it waits for an opening");
        assert!(band.name.is_none() && band.done == 0, "a band is bound once in its life");
        band.name = Some(name);
        band.header = BandHeader { members: opening.members, shape: self.shape };
        let nodes = opening.members.nodes();
        band.members =
            nodes.iter().map(|&node| Member { node, next: 0, not_before: Instant(0) }).collect();
        band.openings += 1;
        for page in &mut band.pages {
            (page.left, page.late_at) = (nodes.to_vec(), now + self.limit_ns);
        }
    }

    /// What a member of the block is to be sent next: whom, of which life, which page, and the ask. Again
    /// until `None`.
    pub fn next(
        &mut self,
        now: Instant,
        block: BlockId,
        has_room: impl Fn(NodeId) -> bool,
    ) -> Option<(NodeId, BandName, u32, Ask<D>)> {
        let band = self.bands.get_mut(&block)?;
        let (name, end) = (band.name?, band.done + band.pages.len() as u32);
        // What was sent before a refusal may have got there all the same.
        let done = band.done;
        let ready = |member: &&mut Member| {
            member.next.max(done) < end && member.not_before <= now && has_room(member.node)
        };
        let member = band.members.iter_mut().find(ready)?;
        let page = member.next.max(done);
        member.next = page + 1;
        let slots = band.pages[(page - band.done) as usize].slots.clone();
        let open = (page == 0).then_some(band.header);
        let ask = Ask::Append { band: name, generation: self.generation, page, open, slots };
        Some((member.node, name, page, ask))
    }

    /// A member has a page.
    pub fn done(&mut self, name: BandName, node: NodeId, page: u32) -> Step {
        let enough = usize::from(Mutant::ReplyBeforeLastReplica.is(self.mutant));
        let Some(band) = self.band_of(name) else { return Step::None };
        let Some(at) = page.checked_sub(band.done) else { return Step::None };
        let Some(entry) = band.pages.get_mut(at as usize) else { return Step::None };
        entry.left.retain(|&other| other != node);
        let mut done = Vec::new();
        while band.pages.front().is_some_and(|page| page.left.len() <= enough) {
            done.extend(band.pages.pop_front().map(|page| page.tag));
            band.done += 1;
        }
        if done.is_empty() {
            return Step::None;
        }
        let pages = band.done;
        let full = pages == self.shape.pages;
        if full {
            self.bands.remove(&BlockId(name.band));
        }
        Step::Grew { done, pages, full }
    }

    /// A member refuses a page.
    pub fn refused(
        &mut self,
        now: Instant,
        name: BandName,
        node: NodeId,
        page: u32,
        why: Refusal,
        retry_ns: u64,
    ) -> Step {
        let Some(band) = self.band_of(name) else { return Step::None };
        let has_it = page < band.done
            || band
                .pages
                .get((page - band.done) as usize)
                .is_some_and(|of| !of.left.contains(&node));
        if has_it {
            // Sent twice, and done by the other.
            return Step::None;
        }
        match meaning(why, page, band.done) {
            Meaning::Later(from) => {
                if let Some(member) = band.members.iter_mut().find(|member| member.node == node) {
                    member.next = member.next.min(from);
                    member.not_before = now + retry_ns;
                }
                Step::None
            }
            Meaning::Fails => self.fail(BlockId(name.band)),
        }
    }

    /// A member of the band fails: it takes no more pages, or gets another opening.
    pub fn fail(&mut self, block: BlockId) -> Step {
        let Some(band) = self.bands.get_mut(&block) else { return Step::None };
        let nodes: Vec<NodeId> = band.members.iter().map(|member| member.node).collect();
        if let Some(name) = band.name
            && band.done == 0
            && band.openings < OPENINGS_MAX
        {
            (band.name, band.members) = (None, Vec::new());
            self.unbound.insert(block);
            return Step::Again { name, nodes };
        }
        self.unbound.remove(&block);
        let band = self.bands.remove(&block).expect("found above");
        let tags = band.pages.iter().map(|page| page.tag).collect();
        Step::Cut { name: band.name, nodes, pages: band.done, tags }
    }

    /// Who is late with the block's oldest page, if anybody is.
    pub fn late(&self, now: Instant, block: BlockId) -> Vec<NodeId> {
        let Some(band) = self.bands.get(&block).filter(|band| band.name.is_some()) else {
            return Vec::new();
        };
        let oldest = band.pages.front().filter(|page| page.late_at <= now);
        oldest.map_or_else(Vec::new, |page| page.left.clone())
    }

    /// Nobody could do better than who is late with the block: its pages under way get as long again.
    pub fn wait_on(&mut self, now: Instant, block: BlockId) {
        if let Some(band) = self.bands.get_mut(&block) {
            let late_at = now + self.limit_ns;
            band.pages.iter_mut().for_each(|page| page.late_at = late_at);
        }
    }

    /// When to look after the block again.
    pub fn deadline(&self, now: Instant, block: BlockId) -> Option<Instant> {
        let band = self.bands.get(&block).filter(|band| band.name.is_some())?;
        let late_at = band.pages.front()?.late_at;
        let again = band.members.iter().map(|member| member.not_before).filter(|&at| at > now);
        Some(again.fold(late_at, Instant::min))
    }

    /// All programs under way, in no order that matters: nothing of them ends well any more.
    pub fn end(&mut self) -> Vec<Tag> {
        self.unbound.clear();
        let bands = std::mem::take(&mut self.bands).into_values();
        bands.flat_map(|band| band.pages.into_iter().map(|page| page.tag)).collect()
    }

    /// Programs under way.
    pub fn count(&self) -> usize {
        self.bands.values().map(|band| band.pages.len()).sum()
    }

    fn band_of(&mut self, name: BandName) -> Option<&mut Band<D>> {
        self.bands.get_mut(&BlockId(name.band)).filter(|band| band.name == Some(name))
    }
}

fn meaning(why: Refusal, page: u32, done: u32) -> Meaning {
    match why {
        Refusal::Busy => Meaning::Later(page),
        // A page before it was refused for a while.
        Refusal::OutOfOrder { expected } if (done..page).contains(&expected) => {
            Meaning::Later(expected)
        }
        _ => Meaning::Fails,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Members, VolumeId};

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const BLOCK: BlockId = BlockId(3);
    const NAME: BandName = BandName { volume: VolumeId(1), band: 3, life: 8 };

    fn bound(pages: u32) -> Programs<u8> {
        let mut programs =
            Programs::new(BandShape { pages: 3, slots_per_page: 1 }, Generation(1), 100);
        (0..pages).for_each(|page| add(&mut programs, page));
        bind(&mut programs, NAME.life);
        programs
    }

    fn add(programs: &mut Programs<u8>, page: u32) {
        let slot = Slot { oob: [0; 32], crc: page, data: Some(page as u8) };
        programs.add(Instant(0), BLOCK, page, Tag(page), vec![slot]);
    }

    fn bind(programs: &mut Programs<u8>, life: u64) {
        let name = BandName { life, ..NAME };
        let opening = Opening { name, members: Members::new(&[A, B]).unwrap() };
        programs.bind(Instant(0), &opening);
    }

    fn sent(programs: &mut Programs<u8>, now: u64) -> Vec<(NodeId, u32)> {
        let next =
            || programs.next(Instant(now), BLOCK, |_| true).map(|(node, _, page, _)| (node, page));
        std::iter::from_fn(next).collect()
    }

    fn grew(done: &[u32], pages: u32, full: bool) -> Step {
        Step::Grew { done: done.iter().map(|&tag| Tag(tag)).collect(), pages, full }
    }

    #[test]
    fn a_program_ends_when_every_member_has_it_and_all_before_it() {
        let mut programs = bound(2);
        assert_eq!(sent(&mut programs, 0), [(A, 0), (A, 1), (B, 0), (B, 1)]);
        assert_eq!(programs.done(NAME, A, 1), Step::None);
        assert_eq!(programs.done(NAME, B, 1), Step::None, "page 0 is missing");
        assert_eq!(programs.done(NAME, A, 0), Step::None);
        assert_eq!(programs.done(NAME, A, 0), Step::None, "the same member");
        assert_eq!(programs.done(NAME, B, 0), grew(&[0, 1], 2, false));
        add(&mut programs, 2);
        sent(&mut programs, 0);
        programs.done(NAME, A, 2);
        assert_eq!(programs.done(NAME, B, 2), grew(&[2], 3, true));
        assert!(!programs.has(BLOCK));
    }

    #[test]
    fn a_page_that_was_refused_late_and_is_there_is_not_sent_again() {
        let mut programs = bound(2);
        sent(&mut programs, 0);
        programs.refused(Instant(1), NAME, B, 1, Refusal::Busy, 10);
        assert_eq!(sent(&mut programs, 11), [(B, 1)]);
        // Of the first time it was sent.
        programs.refused(Instant(12), NAME, B, 1, Refusal::Busy, 10);
        for (node, page) in [(A, 0), (B, 0), (A, 1), (B, 1)] {
            programs.done(NAME, node, page);
        }
        assert_eq!(sent(&mut programs, 22), [], "all that was given is there");
        add(&mut programs, 2);
        assert_eq!(sent(&mut programs, 22), [(A, 2), (B, 2)]);
    }

    #[test]
    fn the_header_goes_with_the_first_page_only() {
        let mut programs = bound(2);
        for wanted in [true, false] {
            let Some((.., Ask::Append { open, .. })) =
                programs.next(Instant(0), BLOCK, |node| node == A)
            else {
                panic!("an append")
            };
            assert_eq!(open.is_some(), wanted);
        }
    }

    #[test]
    fn a_busy_node_is_sent_the_page_and_all_behind_it_again() {
        let mut programs = bound(2);
        sent(&mut programs, 0);
        let refused = programs.refused(Instant(1), NAME, B, 0, Refusal::Busy, 10);
        assert_eq!(refused, Step::None);
        let order = Refusal::OutOfOrder { expected: 0 };
        assert_eq!(programs.refused(Instant(1), NAME, B, 1, order, 10), Step::None);
        assert_eq!(programs.deadline(Instant(1), BLOCK), Some(Instant(11)));
        assert_eq!(sent(&mut programs, 5), []);
        assert_eq!(sent(&mut programs, 11), [(B, 0), (B, 1)]);
    }

    #[test]
    fn after_a_page_that_ended_well_a_member_that_fails_cuts_the_band_at_it() {
        let mut programs = bound(3);
        sent(&mut programs, 0);
        programs.done(NAME, A, 0);
        programs.done(NAME, B, 0);
        programs.done(NAME, A, 1);
        let cut = programs.refused(Instant(1), NAME, B, 1, Refusal::BandFailed, 10);
        let tags = vec![Tag(1), Tag(2)];
        assert_eq!(cut, Step::Cut { name: Some(NAME), nodes: vec![A, B], pages: 1, tags });
        assert_eq!(programs.done(NAME, B, 1), Step::None, "too late");
    }

    #[test]
    fn before_that_the_band_gets_another_opening_and_all_is_sent_again() {
        let mut programs = bound(2);
        sent(&mut programs, 0);
        programs.done(NAME, A, 0);
        for life in 9..12 {
            let name = BandName { life: life - 1, ..NAME };
            let step = programs.refused(Instant(1), name, B, 0, Refusal::Mode, 10);
            assert_eq!(step, Step::Again { name, nodes: vec![A, B] });
            assert_eq!(programs.waiting(), [BLOCK]);
            assert_eq!(sent(&mut programs, 20), []);
            bind(&mut programs, life);
            assert_eq!(sent(&mut programs, 20).len(), 4);
            assert_eq!(programs.done(name, A, 0), Step::None, "of the life before");
        }
        let last = programs.fail(BLOCK);
        assert!(
            matches!(last, Step::Cut { pages: 0, ref tags, .. } if tags.len() == 2),
            "{last:?}"
        );
    }

    #[test]
    fn who_does_not_answer_in_time_is_named() {
        let mut programs = bound(1);
        sent(&mut programs, 0);
        programs.done(NAME, A, 0);
        assert_eq!(programs.late(Instant(99), BLOCK), []);
        assert_eq!(programs.late(Instant(100), BLOCK), [B]);
        assert_eq!(programs.deadline(Instant(0), BLOCK), Some(Instant(100)));
        programs.wait_on(Instant(110), BLOCK);
        assert_eq!(programs.late(Instant(209), BLOCK), []);
        assert_eq!(programs.late(Instant(210), BLOCK), [B]);
    }
}
