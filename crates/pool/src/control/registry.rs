//! The bands of a volume that may be open, are in no checkpoint of the FTL, or lack a member: what its owner
//! writes into the control plane, in batches.
//!
//! - A band is registered, with its write set, before its first append. So who takes the volume over knows whose
//!   prefix counts, and of bands that it does not see that they must be somewhere.
//! - Before an append is acknowledged with fewer members than the write set has, the record says who lacks it.
//! - A record goes when a checkpoint covers the band *and* every member of its write set has the sealed band, or
//!   nothing of it, *and* as many nodes as the volume has replicas hold it. Else it stays with what is lacking,
//!   until that is mended. Hence a band without a record lies, sealed, on as many nodes in different domains as
//!   the volume has replicas: [`crate::opening`] rests on this.
//!   Where repair has to take a copy away before it can make another one the record comes back first.
//! - Each life has a record of its own. So a life that was freed, or found to have no pages, stays on record while a
//!   node may have some of it, whatever becomes of the band: it never comes back.
//! - "Sealed" and "freed" mean durably so: on a node that is not durable at completion, flushed.
//!
//! Where the plane is full, what makes a new key waits, and what changes or deletes one goes before it: that gives room
//! again. Per key the order stays.
//!
//! One commit is under way at a time and each checks two keys: that of the owner, so that it takes no effect when
//! another one owns the volume, and the *tail*, which it counts up itself: an answer that did not come is looked
//! up there, and a commit that was delayed on its way is void once it was tried again.

use super::contract::{
    CHANGES_MAX, Change, Check, Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId, PlaneRefusal,
};
use super::keys;
use super::mutant::Mutant;
use super::values::{BandRecord, ClearRecord, TailRecord, Value};
use crate::words::{BandName, DomainId, Generation, Members, NodeId, VolumeId};
use flash::{Instant, MILLISECOND, SECOND};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the owner of a volume has in the plane about bands.
#[derive(Clone, Debug)]
pub struct Registry {
    owned: Owned,
    replicas: usize,
    tail: Tail,
    /// As they will be when all edits are committed.
    records: BTreeMap<BandName, BandRecord>,
    edits: VecDeque<Edit>,
    in_flight: Option<InFlight>,
    /// The plane is full: what makes a new key is not tried before then.
    full_until: Option<Instant>,
    /// Not before then is the next commit made.
    commit_at: Instant,
    asks: u64,
    lost: bool,
    outputs: VecDeque<RegistryOutput>,
    mutant: Option<Mutant>,
}

/// Whose registry it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owned {
    /// Of which volume.
    pub volume: VolumeId,
    /// By which opening.
    pub generation: Generation,
    /// Of the owner's record.
    pub revision: u64,
}

/// What the plane's tail record says.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tail {
    /// Commits so far.
    pub sequence: u64,
    /// Of its key.
    pub revision: u64,
    /// The latest life that was ever registered, if that is known.
    pub life: Option<u64>,
}

#[derive(Clone, Debug)]
struct Edit {
    key: String,
    /// What it holds from then on.
    value: Option<Vec<u8>>,
    /// It is not there before.
    is_new: bool,
    told: RegistryOutput,
}

#[derive(Clone, Debug)]
struct InFlight {
    id: PlaneAskId,
    sent: Instant,
    /// The first so many edits are in the commit.
    edits: usize,
    /// The commit's outcome is being looked up.
    looking: bool,
}

/// What it has to say.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RegistryOutput {
    /// Ask the plane.
    Ask {
        /// Pairs the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// The band may be appended to.
    Registered(BandName),
    /// Appends may be acknowledged without the members that were said to lack it.
    Degraded(BandName),
    /// It is on record how many pages the band has.
    Decided(BandName),
    /// What was said of its end is on record; perhaps there is no record any more.
    Closed(BandName),
    /// It is on record that the volume needs nothing of this node.
    Cleared(NodeId),
    /// That is not on record any more: the node is asked again, and may be used.
    Uncleared(NodeId),
    /// The volume is another's: nothing here takes effect any more.
    Lost,
}

/// A change is refused, as too many wait. Nothing was changed: try again later.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Busy;

impl Registry {
    /// Of the owner of a volume, with what the plane holds.
    pub fn new(owned: Owned, replicas: usize, tail: Tail, records: Vec<BandRecord>) -> Self {
        let records = records.into_iter().map(|record| (record.name, record)).collect();
        Self {
            owned,
            replicas,
            tail,
            records,
            edits: VecDeque::new(),
            in_flight: None,
            full_until: None,
            commit_at: Instant(0),
            asks: 0,
            lost: false,
            outputs: VecDeque::new(),
            mutant: None,
        }
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// A band is about to be opened on these members; it may be appended to once that is on record. An older
    /// life of it has been freed wherever its members can be reached.
    pub fn register(&mut self, now: Instant, name: BandName, members: Members) -> Result<(), Busy> {
        let later = self.records.range(name..=BandName { life: u64::MAX, ..name }).next();
        assert!(later.is_none(), "a life is not begun twice, and later than all before");
        let record = BandRecord { name, members, ..BandRecord::default() };
        if self.is_busy(true) {
            return Err(Busy);
        }
        self.tail.life = self.tail.life.max(Some(name.life));
        self.put(now, name, Some(record), RegistryOutput::Registered(name))
    }

    /// Members of an open band fail: appends are to go on without them.
    pub fn degrade(
        &mut self,
        now: Instant,
        name: BandName,
        lacking: &[NodeId],
    ) -> Result<(), Busy> {
        let record = self.open_record(name).without(lacking);
        assert!(record.sound().next().is_some(), "a band has a member that has all of it");
        self.put(now, name, Some(record), RegistryOutput::Degraded(name))
    }

    /// A band that may be open has so many pages, for ever.
    pub fn decide(&mut self, now: Instant, name: BandName, pages: u32) -> Result<(), Busy> {
        let record = BandRecord { sealed: Some(pages), ..self.open_record(name) };
        self.put(now, name, Some(record), RegistryOutput::Decided(name))
    }

    /// A checkpoint of the FTL knows the band, which is sealed at `pages` on `holders` for good. `rid` have
    /// nothing of it any more, or will never be asked again. Copies count by domain. The record goes, or tells from now on who lacks what.
    pub fn close(
        &mut self,
        now: Instant,
        name: BandName,
        pages: u32,
        (holders, rid): (&[(NodeId, DomainId)], &[NodeId]),
    ) -> Result<(), Busy> {
        let Some(&record) = self.records.get(&name) else {
            self.outputs.push_back(RegistryOutput::Closed(name));
            return Ok(());
        };
        let open: Vec<NodeId> = record.members.nodes().to_vec();
        let holds = |node: &NodeId| holders.iter().any(|(of, _)| of == node);
        let lacking = open.iter().filter(|node| !holds(node) && !rid.contains(node));
        let lacking: Vec<NodeId> = lacking.copied().collect();
        let domains: BTreeSet<DomainId> = holders.iter().map(|(_, domain)| *domain).collect();
        let whole = lacking.is_empty() && (pages == 0 || domains.len() >= self.replicas);
        let kept = BandRecord { sealed: Some(pages), covered: true, lacks: 0, ..record };
        let kept = (!whole).then(|| kept.without(&lacking));
        if kept == Some(record) {
            self.outputs.push_back(RegistryOutput::Closed(name));
            return Ok(());
        }
        self.put(now, name, kept, RegistryOutput::Closed(name))
    }

    /// The band is freed on these nodes. The record goes when no member of its write set has any of it.
    pub fn freed(&mut self, now: Instant, name: BandName, on: &[NodeId]) -> Result<(), Busy> {
        self.close(now, name, 0, (&[], on))
    }

    /// A life that is on record no more is over while some nodes are away, which may have it or an older one. So it is
    /// put on record again, as one of no pages, and what is on record of older ones goes: this one says as much.
    pub fn over(&mut self, now: Instant, name: BandName, members: Members) -> Result<(), Busy> {
        let older = self.records.range(BandName { life: 0, ..name }..name);
        let older: Vec<BandName> = older.map(|(name, _)| *name).collect();
        let record = BandRecord { name, members, sealed: Some(0), covered: true, lacks: 0 };
        self.put(now, name, Some(record), RegistryOutput::Closed(name))?;
        for name in older {
            // Where too much waits it goes when no node is away any more.
            let _ = self.put(now, name, None, RegistryOutput::Closed(name));
        }
        Ok(())
    }

    /// A life that is on record no more loses its copy on one of its members before there is another one: it comes back, as
    /// one that lacks it.
    pub fn recall(
        &mut self,
        now: Instant,
        name: BandName,
        pages: u32,
        (members, lacking): (Members, NodeId),
    ) -> Result<(), Busy> {
        let record = BandRecord { name, members, sealed: Some(pages), covered: true, lacks: 0 };
        self.put(now, name, Some(record.without(&[lacking])), RegistryOutput::Closed(name))
    }

    /// The volume needs nothing of what a node has, and nothing will ever be put there: openings need not ask it.
    /// Only for a node that is out, when repair has found that no band needs it.
    pub fn clear(&mut self, now: Instant, node: NodeId) -> Result<(), Busy> {
        let key = keys::clear(self.owned.volume, node);
        let value = ClearRecord { generation: self.owned.generation }.encode(&key);
        self.edit(
            now,
            Edit { key, value: Some(value), is_new: true, told: RegistryOutput::Cleared(node) },
        )
    }

    /// The node is in again: openings are to ask it. Nothing may be put there before that is on record.
    pub fn unclear(&mut self, now: Instant, node: NodeId) -> Result<(), Busy> {
        let key = keys::clear(self.owned.volume, node);
        self.edit(
            now,
            Edit { key, value: None, is_new: false, told: RegistryOutput::Uncleared(node) },
        )
    }

    /// The plane answered; answers for others are no matter.
    pub fn answered(&mut self, now: Instant, id: PlaneAskId, answer: &PlaneAnswer) {
        let Some(sent) = self.in_flight.take_if(|sent| sent.id == id) else { return };
        match (sent.looking, answer) {
            (false, PlaneAnswer::Committed { revision }) => self.committed(sent.edits, *revision),
            (false, PlaneAnswer::NotCommitted { found }) => self.not_committed(now, &sent, found),
            (true, PlaneAnswer::Value { kept, .. }) => {
                if !self.was_committed(kept.as_ref(), sent.edits) {
                    self.commit(now, sent.edits);
                }
            }
            (false, PlaneAnswer::Refused(PlaneRefusal::Full)) => {
                self.full_until = Some(now + FULL_NS);
                // What is committed next is something else: if this one takes effect after all, as it was tried
                // before and delayed, its number must not be taken for that of the next.
                self.tail.sequence += 1;
            }
            // Refused: what came of it is not known.
            _ => self.in_flight = Some(InFlight { sent: now, looking: true, ..sent }),
        }
        self.go_on(now);
    }

    /// Time has passed.
    pub fn elapsed(&mut self, now: Instant) {
        if let Some(sent) = self.in_flight.take_if(|sent| now >= sent.sent + ANSWER_NS_MAX) {
            self.look(now, sent.edits);
        }
        self.go_on(now);
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<RegistryOutput> {
        self.outputs.pop_front()
    }

    /// When to look at the time.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.in_flight {
            _ if self.lost => None,
            Some(sent) => Some(sent.sent + ANSWER_NS_MAX),
            None => self.next_at(),
        }
    }

    /// What keeps changes from being made, in words, if anything does.
    pub fn trouble(&self) -> Option<String> {
        let waiting = self.edits.iter().filter(|edit| edit.is_new).count();
        self.full_until.map(|_| {
            format!(
                "the control plane is full: {waiting} bands wait to be registered, and writes with them, until records \
                 of others go: bring back nodes that are away, or give them up, or delete volumes that are not used"
            )
        })
    }

    /// All records, as they will be once nothing waits.
    pub fn records(&self) -> impl Iterator<Item = &BandRecord> {
        self.records.values()
    }

    /// Whether this life is later than all that were ever registered, so that the plane has lost what it knew.
    pub fn is_unheard(&self, life: u64) -> bool {
        self.tail.life.is_some_and(|latest| life > latest)
    }

    /// The record of a life of a band.
    pub fn record(&self, name: BandName) -> Option<&BandRecord> {
        self.records.get(&name)
    }

    /// The record of the newest life of a band that has one.
    pub fn newest(&self, band: u32) -> Option<&BandRecord> {
        let of = |life| BandName { volume: self.owned.volume, band, life };
        self.records.range(of(0)..=of(u64::MAX)).next_back().map(|(_, record)| record)
    }

    /// Whether all that it has to say was taken.
    pub fn is_told(&self) -> bool {
        self.outputs.is_empty()
    }

    /// Whether all that was wanted is on record.
    pub fn is_idle(&self) -> bool {
        self.edits.is_empty() && self.in_flight.is_none()
    }

    fn open_record(&self, name: BandName) -> BandRecord {
        let record = *self.records.get(&name).expect("only a registered band is open");
        assert!(record.sealed.is_none(), "a band that was decided is not open");
        record
    }

    fn put(
        &mut self,
        now: Instant,
        name: BandName,
        record: Option<BandRecord>,
        told: RegistryOutput,
    ) -> Result<(), Busy> {
        let key = keys::band(name);
        let value = record.map(|record| record.encode(&key));
        let is_new = record.is_some() && !self.records.contains_key(&name);
        self.edit(now, Edit { key, value, is_new, told })?;
        match record {
            Some(record) => drop(self.records.insert(name, record)),
            None => drop(self.records.remove(&name)),
        }
        Ok(())
    }

    fn edit(&mut self, now: Instant, edit: Edit) -> Result<(), Busy> {
        if self.is_busy(edit.is_new) {
            return Err(Busy);
        }
        self.edits.push_back(edit);
        self.go_on(now);
        Ok(())
    }

    /// Whether too much waits for one more edit. Those that give room are not held up by those that want it.
    fn is_busy(&self, is_new: bool) -> bool {
        let wants_room = || self.edits.iter().filter(|edit| edit.is_new).count() >= EDITS_MAX / 2;
        self.edits.len() >= EDITS_MAX || (is_new && self.full_until.is_some() && wants_room())
    }

    fn go_on(&mut self, now: Instant) {
        if self.in_flight.is_some() || self.lost {
            return;
        }
        if self.full_until.is_some() {
            self.put_off_new();
        }
        if self.next_at().is_some_and(|at| now >= at) {
            let edits = self.batch();
            self.commit(now, edits);
        }
    }

    /// When the next commit is made.
    fn next_at(&self) -> Option<Instant> {
        let first = self.edits.front()?;
        let room_at = self.full_until.filter(|_| first.is_new).unwrap_or(self.commit_at);
        Some(room_at.max(self.commit_at))
    }

    /// What makes a new key, and what follows for the same key, goes behind all else.
    fn put_off_new(&mut self) {
        let mut waits = BTreeSet::new();
        let (mut first, mut then) = (VecDeque::new(), VecDeque::new());
        for edit in self.edits.drain(..) {
            if edit.is_new || waits.contains(&edit.key) {
                waits.insert(edit.key.clone());
                then.push_back(edit);
            } else {
                first.push_back(edit);
            }
        }
        first.append(&mut then);
        self.edits = first;
    }

    /// The first edits, as many as one commit may change, each of another key. Where the plane is full those of new
    /// keys go alone.
    fn batch(&self) -> usize {
        let first_is_new = self.edits.front().is_some_and(|edit| edit.is_new);
        let is_full = self.full_until.is_some() && !first_is_new;
        let mut keys = Vec::new();
        for edit in self.edits.iter().take(CHANGES_MAX - 1) {
            if keys.contains(&&edit.key) || (is_full && edit.is_new) {
                break;
            }
            keys.push(&edit.key);
        }
        keys.len()
    }

    fn commit(&mut self, now: Instant, edits: usize) {
        let volume = self.owned.volume;
        let (owner, tail) = (keys::owner(volume), keys::tail(volume));
        let generation = self.owned.generation;
        let next = TailRecord {
            generation,
            sequence: self.tail.sequence + 1,
            life: self.tail.life.unwrap_or(0),
        };
        let mut changes =
            vec![Change::Put { value: next.encode(&tail), key: tail.clone(), lease: None }];
        changes.extend(self.edits.iter().take(edits).map(|edit| {
            let key = edit.key.clone();
            match &edit.value {
                Some(value) => Change::Put { key, value: value.clone(), lease: None },
                None => Change::Delete { key },
            }
        }));
        let mut checks = vec![
            Check { key: owner, revision: self.owned.revision },
            Check { key: tail, revision: self.tail.revision },
        ];
        if Mutant::StaleGenerationAccepted.is(self.mutant) {
            checks.clear();
        }
        self.ask(now, PlaneAsk::Commit { checks, changes }, edits, false);
        self.commit_at = now + COMMIT_NS_LEAST;
    }

    fn look(&mut self, now: Instant, edits: usize) {
        let key = keys::tail(self.owned.volume);
        self.ask(now, PlaneAsk::Get { key }, edits, true);
    }

    fn ask(&mut self, now: Instant, ask: PlaneAsk, edits: usize, looking: bool) {
        let id = PlaneAskId::of_part(Part::Registry, self.asks);
        self.asks += 1;
        self.in_flight = Some(InFlight { id, sent: now, edits, looking });
        self.outputs.push_back(RegistryOutput::Ask { id, ask });
    }

    fn committed(&mut self, edits: usize, revision: u64) {
        if self.edits.iter().take(edits).any(|edit| edit.is_new) {
            self.full_until = None;
        }
        self.tail = Tail { sequence: self.tail.sequence + 1, revision, ..self.tail };
        for edit in self.edits.drain(..edits) {
            self.outputs.push_back(edit.told);
        }
    }

    /// A check did not hold: another one owns the volume, or this commit had been made already.
    fn not_committed(&mut self, now: Instant, sent: &InFlight, found: &[Option<Kept>]) {
        let [owner, tail] = found else { return self.lose() };
        if owner.as_ref().map_or(0, |kept| kept.revision) != self.owned.revision {
            return self.lose();
        }
        if !self.was_committed(tail.as_ref(), sent.edits) {
            self.commit(now, sent.edits);
        }
    }

    /// Takes a commit for done if the tail shows it.
    fn was_committed(&mut self, tail: Option<&Kept>, edits: usize) -> bool {
        let key = keys::tail(self.owned.volume);
        let Some(kept) = tail.filter(|kept| kept.revision != self.tail.revision) else {
            return false;
        };
        let ours = (self.owned.generation, self.tail.sequence + 1);
        let found = TailRecord::decode(&key, &kept.value);
        if found.map(|found| (found.generation, found.sequence)) == Ok(ours) {
            self.committed(edits, kept.revision);
        } else {
            self.lose();
        }
        true
    }

    fn lose(&mut self) {
        if !self.lost {
            self.lost = true;
            self.outputs.push_back(RegistryOutput::Lost);
        }
    }
}

/// Edits that wait: a band is 8 MiB, so this is 32 GiB of bands ahead of the plane.
const EDITS_MAX: usize = 4096;
/// A commit each so often at most: a few a second for a volume, whatever it opens.
const COMMIT_NS_LEAST: u64 = 50 * MILLISECOND;
/// An answer that is later than this is looked up.
const ANSWER_NS_MAX: u64 = 400 * MILLISECOND;
/// A plane that was full is asked for room again after this.
const FULL_NS: u64 = SECOND;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store};
    use crate::control::values::OwnerRecord;
    use crate::words::PoolId;

    const VOLUME: VolumeId = VolumeId(1);
    const OWNED: Owned = Owned { volume: VOLUME, generation: Generation(1), revision: 1 };

    fn name(band: u32, count: u64) -> BandName {
        BandName { volume: VOLUME, band, life: 1 << 32 | count }
    }

    fn nodes(ids: &[u32]) -> Vec<NodeId> {
        ids.iter().map(|&id| NodeId(id)).collect()
    }

    fn held(ids: &[u32]) -> Vec<(NodeId, DomainId)> {
        ids.iter().map(|&id| (NodeId(id), DomainId(id / 3))).collect()
    }

    fn members(ids: &[u32]) -> Members {
        Members::new(&nodes(ids)).expect("different")
    }

    fn answer(plane: &mut Embedded, id: PlaneAskId, ask: PlaneAsk) -> PlaneAnswer {
        plane.handle(Instant(0), PlaneInput::Ask { client: 1, id, ask });
        let mut answer = None;
        while let Some(output) = plane.poll() {
            match output {
                PlaneOutput::Answer(told) => answer = Some(told.answer),
                PlaneOutput::Store(
                    Store::Append { sequence, .. } | Store::Replace { sequence, .. },
                ) => {
                    plane.handle(Instant(0), PlaneInput::Stored { sequence });
                }
            }
        }
        answer.expect("answered")
    }

    fn own(plane: &mut Embedded, generation: u64) {
        let key = keys::owner(VOLUME);
        let record = OwnerRecord { generation: Generation(generation), ..OwnerRecord::default() };
        let put = Change::Put { value: record.encode(&key), key, lease: None };
        answer(plane, PlaneAskId(0), PlaneAsk::Commit { checks: Vec::new(), changes: vec![put] });
    }

    fn plane() -> Embedded {
        let mut plane = Embedded::create(PoolId(1), 1);
        own(&mut plane, 1);
        plane
    }

    fn drive(
        at: &mut Instant,
        plane: &mut Embedded,
        registry: &mut Registry,
    ) -> Vec<RegistryOutput> {
        drive_until(at, registry, Instant(u64::MAX), |id, ask| answer(plane, id, ask))
    }

    /// Until nothing is left to do by then; `answer` is the plane.
    fn drive_until(
        at: &mut Instant,
        registry: &mut Registry,
        until: Instant,
        mut answer: impl FnMut(PlaneAskId, PlaneAsk) -> PlaneAnswer,
    ) -> Vec<RegistryOutput> {
        let mut said = Vec::new();
        loop {
            while let Some(output) = registry.poll() {
                let RegistryOutput::Ask { id, ask } = output else {
                    said.push(output);
                    continue;
                };
                let answer = answer(id, ask);
                registry.answered(*at, id, &answer);
            }
            let Some(next) = registry.deadline().filter(|next| *next <= until) else { return said };
            *at = next.max(*at);
            registry.elapsed(*at);
        }
    }

    fn kept(plane: &mut Embedded) -> Vec<BandRecord> {
        let (from, to) = keys::bands(VOLUME);
        let ask = PlaneAsk::Range { from, to, limit: RANGE };
        let PlaneAnswer::Values { kept, .. } = answer(plane, PlaneAskId(0), ask) else {
            panic!("a range is answered with values");
        };
        kept.iter()
            .map(|(key, kept)| BandRecord::decode(key, &kept.value).expect("sound"))
            .collect()
    }

    const RANGE: u32 = 1000;

    #[test]
    fn what_is_registered_goes_in_few_commits_and_is_told_when_it_is_on_record() {
        let mut plane = plane();
        let mut registry = Registry::new(OWNED, 2, Tail::default(), Vec::new());
        for band in 0..500 {
            registry.register(Instant(0), name(band, 1), members(&[1, 2])).expect("not busy");
        }
        let mut at = Instant(0);
        let said = drive(&mut at, &mut plane, &mut registry);
        assert_eq!(said.len(), 500);
        assert_eq!(kept(&mut plane).len(), 500);
        // The first commit left with the first band, the others had as many as fit.
        assert_eq!(plane.revision(), 1 + 1 + 499u64.div_ceil(CHANGES_MAX as u64 - 1));
        assert!(registry.is_idle() && registry.records().count() == 500);
    }

    #[test]
    fn a_record_stays_until_all_members_are_whole_or_rid_of_the_band() {
        let (mut plane, mut at) = (plane(), Instant(0));
        let mut registry = Registry::new(OWNED, 2, Tail::default(), Vec::new());
        for band in 0..4 {
            registry.register(at, name(band, 1), members(&[1, 2])).expect("not busy");
        }
        drive(&mut at, &mut plane, &mut registry);
        let [one, two] = [nodes(&[1]), nodes(&[2])];
        registry.close(at, name(0, 1), 8, (&held(&[1, 2, 3]), &[])).expect("not busy");
        registry.close(at, name(1, 1), 8, (&held(&[1]), &[])).expect("not busy");
        registry.freed(at, name(2, 1), &one).expect("not busy");
        registry.close(at, name(3, 1), 8, (&held(&[1, 2]), &[])).expect("not busy");
        drive(&mut at, &mut plane, &mut registry);
        let found: Vec<_> =
            kept(&mut plane).iter().map(|r| (r.name.band, r.sealed, r.lacks)).collect();
        let lacking = 0b10;
        assert_eq!(found, [(1, Some(8), lacking), (2, Some(0), lacking), (3, Some(8), 0)]);
        registry.close(at, name(1, 1), 8, (&held(&[1, 3]), &two)).expect("not busy");
        registry.freed(at, name(2, 1), &nodes(&[1, 2])).expect("not busy");
        registry.close(at, name(3, 1), 8, (&held(&[1, 3]), &two)).expect("not busy");
        drive(&mut at, &mut plane, &mut registry);
        assert_eq!(kept(&mut plane), []);
    }

    #[test]
    fn a_commit_whose_answer_is_lost_is_made_once() {
        let (mut plane, mut at) = (plane(), Instant(0));
        let mut registry = Registry::new(OWNED, 2, Tail::default(), Vec::new());
        registry.register(at, name(0, 1), members(&[1, 2])).expect("not busy");
        let Some(RegistryOutput::Ask { id, ask }) = registry.poll() else { panic!("it asks") };
        // Done, but the answer is lost.
        answer(&mut plane, id, ask.clone());
        let said = drive(&mut at, &mut plane, &mut registry);
        assert_eq!(said, [RegistryOutput::Registered(name(0, 1))]);
        assert_eq!(plane.revision(), 2, "looked up, not made again");
        // Not done, but delayed: it is made again, and void when it comes.
        registry.degrade(at, name(0, 1), &nodes(&[2])).expect("not busy");
        let Some(RegistryOutput::Ask { ask, .. }) = registry.poll() else { panic!("it asks") };
        let said = drive(&mut at, &mut plane, &mut registry);
        assert_eq!(said, [RegistryOutput::Degraded(name(0, 1))]);
        registry.freed(at, name(0, 1), &nodes(&[1, 2])).expect("not busy");
        drive(&mut at, &mut plane, &mut registry);
        assert!(matches!(answer(&mut plane, PlaneAskId(1), ask), PlaneAnswer::NotCommitted { .. }));
        assert_eq!(kept(&mut plane), []);
    }

    #[test]
    fn a_full_plane_gets_room_again_as_what_needs_none_goes_before_what_waits_for_it() {
        let (mut plane, mut at) = (plane(), Instant(0));
        let mut registry = Registry::new(OWNED, 2, Tail::default(), Vec::new());
        for band in 0..3 {
            registry.register(at, name(band, 1), members(&[1, 2])).expect("not busy");
        }
        drive(&mut at, &mut plane, &mut registry);
        // No more than three from now on.
        let mut full_plane = |id, ask| {
            let there = kept(&mut plane);
            let is_new = |change: &Change| match change {
                Change::Put { key, .. } if key.contains("/band/") => {
                    !there.iter().any(|record| keys::band(record.name) == *key)
                }
                _ => false,
            };
            let full = matches!(&ask, PlaneAsk::Commit { changes, .. }
                if there.len() >= 3 && changes.iter().any(is_new));
            match full {
                true => PlaneAnswer::Refused(PlaneRefusal::Full),
                false => answer(&mut plane, id, ask),
            }
        };
        registry.register(at, name(7, 1), members(&[1, 2])).expect("not busy");
        let until = at + 3 * SECOND;
        assert_eq!(drive_until(&mut at, &mut registry, until, &mut full_plane), []);
        let text = registry.trouble().expect("it waits");
        assert!(text.contains("is full: 1 bands wait"), "{text}");
        let mut until = at;
        for band in 0..3 {
            registry.freed(at, name(band, 1), &nodes(&[1, 2])).expect("not busy");
            until = until + 3 * SECOND;
        }
        let said = drive_until(&mut at, &mut registry, until, &mut full_plane);
        assert_eq!(said.last(), Some(&RegistryOutput::Registered(name(7, 1))));
        assert_eq!((said.len(), registry.trouble()), (4, None));
        assert_eq!(kept(&mut plane).len(), 1);
    }

    #[test]
    fn after_another_one_owns_the_volume_nothing_takes_effect() {
        let (mut plane, mut at) = (plane(), Instant(0));
        let mut registry = Registry::new(OWNED, 2, Tail::default(), Vec::new());
        own(&mut plane, 2);
        registry.register(at, name(0, 1), members(&[1, 2])).expect("not busy");
        assert_eq!(drive(&mut at, &mut plane, &mut registry), [RegistryOutput::Lost]);
        assert_eq!(kept(&mut plane), []);
        registry.register(at, name(1, 1), members(&[1, 2])).expect("not busy");
        assert_eq!(drive(&mut at, &mut plane, &mut registry), []);
    }
}
