//! The control plane without etcd: a state machine over a log in one file, for one machine, for trying a pool and
//! for the lab. The contract is the same ([`super::contract`]), and one test suite holds both to it.
//!
//! The driver stores what [`PlaneOutput::Store`] says, in order, and says when it is durable; no answer leaves
//! before all that it rests on is. Where storing fails the driver must end: what it could not store may be in
//! the file or not, and nothing was answered.

use super::contract::{
    CHANGES_MAX, Change, Check, Kept, LeaseId, PlaneAnswer, PlaneAsk, PlaneAskId, PlaneRefusal,
    RANGE_MAX, commit_is_valid,
};
use super::lives::{LIVES_MAX, Life, PlaneFacts};
use super::log::{self, LogError, Record, is_of_before};
use super::mutant::Mutant;
use crate::words::PoolId;
use flash::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The plane.
pub struct Embedded {
    pool: PoolId,
    /// Starts of this plane, and the last of them.
    epoch: u64,
    lives: VecDeque<Life>,
    revision: u64,
    keys: BTreeMap<String, Entry>,
    leases: BTreeMap<LeaseId, Lease>,
    leases_next: u64,
    watches: BTreeMap<(u64, PlaneAskId), Watch>,
    /// The last revisions, for watches that begin behind the present.
    history: VecDeque<(u64, Vec<String>)>,
    /// The number of the last record, and of the last that is durable.
    written: u64,
    stored: u64,
    log_bytes: usize,
    live_bytes: usize,
    waiting: VecDeque<(u64, Told)>,
    outputs: VecDeque<PlaneOutput>,
    mutant: Option<Mutant>,
}

/// What happens to the plane.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PlaneInput {
    /// Somebody asks.
    Ask {
        /// Whose answer it is.
        client: u64,
        /// Pairs them.
        id: PlaneAskId,
        /// What is wanted.
        ask: PlaneAsk,
    },
    /// The connection of a client ended: its watches do, too. Its leases live on.
    Gone {
        /// Which.
        client: u64,
    },
    /// All records up to this one are durable.
    Stored {
        /// Of [`Store`].
        sequence: u64,
    },
    /// Time has passed.
    Deadline,
}

/// What the plane wants of its driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PlaneOutput {
    /// Tell a client.
    Answer(Told),
    /// Store, then say so.
    Store(Store),
}

/// An answer and whose it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Told {
    /// Who asked.
    pub client: u64,
    /// What it asked.
    pub id: PlaneAskId,
    /// What came of it.
    pub answer: PlaneAnswer,
}

/// What becomes of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Store {
    /// Append to the file and make it durable.
    Append {
        /// These.
        bytes: Vec<u8>,
        /// The record that they are.
        sequence: u64,
    },
    /// Write another file and put it in the place of this one, durably: as a whole or not at all.
    Replace {
        /// All of it.
        bytes: Vec<u8>,
        /// The last record in it.
        sequence: u64,
    },
}

/// What the driver knows of a log from elsewhere: its least revision, kept where a backup of the log is not.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Known {
    /// The log has come so far.
    pub revision: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    kept: Kept,
    lease: Option<LeaseId>,
}

#[derive(Clone, Debug)]
struct Lease {
    ttl_ns: u64,
    until: Instant,
    keys: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Watch {
    from: String,
    to: String,
}

impl Embedded {
    /// A new plane: its first output replaces whatever the file held. Its stamp is drawn for this start.
    pub fn create(pool: PoolId, stamp: u64) -> Self {
        let mut plane = Self::empty(pool);
        plane.begin(1, stamp);
        plane.compact();
        plane
    }

    /// The plane whose log this is. The driver cuts the file to the length that comes beside it: what is behind
    /// is a torn tail, which was never answered for. The stamp is drawn for this start.
    pub fn open(
        now: Instant,
        pool: PoolId,
        bytes: &[u8],
        known: Known,
        stamp: u64,
    ) -> Result<(Self, usize), LogError> {
        let (records, next, length) = log::read(pool, bytes)?;
        let mut plane = Self::empty(pool);
        (plane.written, plane.stored) = (next - 1, next - 1);
        plane.log_bytes = length;
        for record in records {
            plane.replay(now, record);
        }
        if plane.revision < known.revision {
            return Err(LogError::Old { revision: plane.revision, known: known.revision });
        }
        let epoch = plane.epoch + 1;
        plane.begin(epoch, stamp);
        plane.append(&Record::Opened { epoch, stamp });
        if is_of_before(bytes) {
            plane.compact();
        }
        Ok((plane, length))
    }

    fn begin(&mut self, epoch: u64, stamp: u64) {
        self.epoch = epoch;
        self.add_life(Life { stamp, revision: self.revision });
    }

    fn add_life(&mut self, life: Life) {
        self.lives.push_back(life);
        if self.lives.len() > LIVES_MAX {
            self.lives.pop_front();
        }
    }

    /// Behaves wrongly in one way, to see whether the tests notice. Without the feature `mutants` it does
    /// nothing.
    pub fn plant(&mut self, mutant: Mutant) {
        self.mutant = Some(mutant);
    }

    /// Something happened.
    pub fn handle(&mut self, now: Instant, input: PlaneInput) {
        match input {
            PlaneInput::Ask { client, id, ask } => {
                self.end_leases(now);
                if let Some(answer) = self.ask(now, client, id, ask) {
                    self.tell(Told { client, id, answer });
                }
            }
            PlaneInput::Gone { client } => self.watches.retain(|(of, _), _| *of != client),
            PlaneInput::Stored { sequence } => {
                self.stored = self.stored.max(sequence.min(self.written));
                self.release();
            }
            PlaneInput::Deadline => self.end_leases(now),
        }
        if self.log_bytes > LOG_BYTES_LEAST.max(4 * self.live_bytes) {
            self.compact();
        }
    }

    /// What to do next.
    pub fn poll(&mut self) -> Option<PlaneOutput> {
        self.outputs.pop_front()
    }

    /// When a lease ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.until).min()
    }

    /// Which pool it is of.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Changes so far.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// What it says of itself.
    pub fn facts(&self) -> PlaneFacts {
        PlaneFacts { revision: self.revision, lives: self.lives.iter().copied().collect() }
    }

    /// Starts so far.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Bytes of the log, and of what a snapshot of the plane would have: what compaction goes by.
    pub fn bytes(&self) -> (usize, usize) {
        (self.log_bytes, self.live_bytes)
    }

    fn empty(pool: PoolId) -> Self {
        Self {
            pool,
            epoch: 0,
            lives: VecDeque::new(),
            revision: 0,
            keys: BTreeMap::new(),
            leases: BTreeMap::new(),
            leases_next: 1,
            watches: BTreeMap::new(),
            history: VecDeque::new(),
            written: 0,
            stored: 0,
            log_bytes: 0,
            live_bytes: 0,
            waiting: VecDeque::new(),
            outputs: VecDeque::new(),
            mutant: None,
        }
    }

    fn ask(
        &mut self,
        now: Instant,
        client: u64,
        id: PlaneAskId,
        ask: PlaneAsk,
    ) -> Option<PlaneAnswer> {
        Some(match ask {
            PlaneAsk::Get { key } => {
                let kept = self.keys.get(&key).map(|entry| entry.kept.clone());
                PlaneAnswer::Value { kept, revision: self.revision }
            }
            PlaneAsk::Range { from, to, limit } => self.range(&from, &to, limit),
            PlaneAsk::Commit { checks, changes } => self.commit(&checks, changes),
            PlaneAsk::Watch { from, to, since } => {
                self.watch(client, id, from, to, since);
                return None;
            }
            PlaneAsk::Unwatch { watch } => {
                self.watches.remove(&(client, watch));
                PlaneAnswer::Done
            }
            PlaneAsk::Grant { ttl_ns } => self.grant(now, ttl_ns),
            PlaneAsk::Keep { lease } => match self.leases.get_mut(&lease) {
                Some(kept) => {
                    kept.until = now + kept.ttl_ns;
                    PlaneAnswer::Lease { lease, ttl_ns: kept.ttl_ns }
                }
                None => PlaneAnswer::NoLease,
            },
            PlaneAsk::Revoke { lease } if self.leases.contains_key(&lease) => {
                self.end_lease(lease);
                PlaneAnswer::Done
            }
            PlaneAsk::Revoke { .. } => PlaneAnswer::NoLease,
        })
    }

    fn range(&self, from: &str, to: &str, limit: u32) -> PlaneAnswer {
        let limit = limit.clamp(1, RANGE_MAX) as usize;
        let mut kept = Vec::new();
        // A range that ends before it begins is empty; the map would panic at it.
        let found = (from < to).then(|| self.keys.range(from.to_owned()..to.to_owned()));
        let mut found = found.into_iter().flatten();
        kept.extend(
            found.by_ref().take(limit).map(|(key, entry)| (key.clone(), entry.kept.clone())),
        );
        PlaneAnswer::Values { kept, more: found.next().is_some(), revision: self.revision }
    }

    fn commit(&mut self, checks: &[Check], changes: Vec<Change>) -> PlaneAnswer {
        if !commit_is_valid(checks, &changes) {
            return PlaneAnswer::Refused(PlaneRefusal::Invalid);
        }
        let found: Vec<Option<Kept>> = checks
            .iter()
            .map(|check| self.keys.get(&check.key).map(|entry| entry.kept.clone()))
            .collect();
        let fits = |(check, found): (&Check, &Option<Kept>)| {
            found.as_ref().map_or(0, |kept| kept.revision) == check.revision
        };
        if !checks.iter().zip(&found).all(fits) {
            return PlaneAnswer::NotCommitted { found };
        }
        if changes.is_empty() {
            return PlaneAnswer::Committed { revision: self.revision };
        }
        let leased = |change: &Change| match change {
            Change::Put { lease: Some(lease), .. } => self.leases.contains_key(lease),
            _ => true,
        };
        if !changes.iter().all(leased) {
            return PlaneAnswer::NoLease;
        }
        if self.has_no_room_for(&changes) {
            return PlaneAnswer::Refused(PlaneRefusal::Full);
        }
        let record = Record::Commit { revision: self.revision + 1, changes };
        self.append(&record);
        let Record::Commit { revision, changes } = record else { unreachable!("made just now") };
        self.change(revision, changes);
        PlaneAnswer::Committed { revision }
    }

    /// Whether there would be too many keys. Some are kept for what people do to get out of that: only bands, of which
    /// there are many, have to leave them alone. What leaves no more keys than there were is always done.
    fn has_no_room_for(&self, changes: &[Change]) -> bool {
        if self.keys.len() + changes.len() <= KEYS_MAX {
            return false;
        }
        let is_there = |change: &&Change| self.keys.contains_key(change.key());
        let puts = |change: &&Change| matches!(change, Change::Put { .. });
        let new: Vec<&Change> = changes.iter().filter(puts).filter(|it| !is_there(it)).collect();
        let gone = changes.iter().filter(|it| !puts(it) && is_there(it)).count();
        let is_band = |change: &&&Change| change.key().contains("/band/");
        let spare = if new.iter().any(|it| is_band(&it)) { 0 } else { KEYS_SPARE };
        new.len() > gone && self.keys.len() + new.len() - gone > KEYS_MAX + spare
    }

    /// Changes keys, which the log has already, and tells watches.
    fn change(&mut self, revision: u64, changes: Vec<Change>) {
        let mut touched = Vec::with_capacity(changes.len());
        for change in changes {
            touched.push(change.key().to_owned());
            match change {
                Change::Put { key, value, lease } => {
                    self.put(key, Entry { kept: Kept { value, revision }, lease });
                }
                Change::Delete { key } => self.remove(&key),
            }
        }
        self.revision = revision;
        self.tell_watches(revision, &touched);
        self.history.push_back((revision, touched));
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
    }

    fn put(&mut self, key: String, entry: Entry) {
        self.remove(&key);
        self.live_bytes += key.len() + entry.kept.value.len() + RECORD_OVERHEAD;
        if let Some(lease) = entry.lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.insert(key.clone());
        }
        self.keys.insert(key, entry);
    }

    fn remove(&mut self, key: &str) {
        let Some(entry) = self.keys.remove(key) else { return };
        self.live_bytes -= key.len() + entry.kept.value.len() + RECORD_OVERHEAD;
        if let Some(lease) = entry.lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.remove(key);
        }
    }

    fn watch(&mut self, client: u64, id: PlaneAskId, from: String, to: String, since: u64) {
        let oldest = self.history.front().map_or(self.revision, |(revision, _)| revision - 1);
        if since < oldest || since > self.revision || self.watches.len() >= WATCHES_MAX {
            self.tell(Told { client, id, answer: PlaneAnswer::Forgotten });
            return;
        }
        self.tell(Told { client, id, answer: PlaneAnswer::Watching });
        // What the keys hold now stands for what happened to them since: a watcher wants the state.
        let behind = self.history.iter().filter(|(revision, _)| *revision > since);
        let touched: BTreeSet<String> = behind.flat_map(|(_, keys)| keys.iter().cloned()).collect();
        let watch = Watch { from, to };
        let touched: Vec<String> = touched.into_iter().collect();
        if let Some(answer) = self.changed(&watch, self.revision, &touched) {
            self.tell(Told { client, id, answer });
        }
        self.watches.insert((client, id), watch);
    }

    fn tell_watches(&mut self, revision: u64, touched: &[String]) {
        let all: Vec<_> = self.watches.iter().map(|(of, watch)| (*of, watch.clone())).collect();
        for ((client, id), watch) in all {
            if let Some(answer) = self.changed(&watch, revision, touched) {
                self.tell(Told { client, id, answer });
            }
        }
    }

    fn changed(&self, watch: &Watch, revision: u64, touched: &[String]) -> Option<PlaneAnswer> {
        let within = touched.iter().filter(|key| **key >= watch.from && **key < watch.to);
        let now = |key: &String| self.keys.get(key).map(|entry| entry.kept.clone());
        let changes: Vec<_> = within.map(|key| (key.clone(), now(key))).collect();
        (!changes.is_empty()).then_some(PlaneAnswer::Changed { changes, revision })
    }

    fn grant(&mut self, now: Instant, ttl_ns: u64) -> PlaneAnswer {
        if ttl_ns == 0 {
            return PlaneAnswer::Refused(PlaneRefusal::Invalid);
        }
        if self.leases.len() >= LEASES_MAX {
            return PlaneAnswer::Refused(PlaneRefusal::Full);
        }
        let lease = LeaseId(self.leases_next);
        self.append(&Record::Lease { lease, ttl_ns });
        self.give(now, lease, ttl_ns);
        PlaneAnswer::Lease { lease, ttl_ns }
    }

    fn give(&mut self, now: Instant, lease: LeaseId, ttl_ns: u64) {
        let until = now + ttl_ns;
        self.leases.insert(lease, Lease { ttl_ns, until, keys: BTreeSet::new() });
        self.leases_next = self.leases_next.max(lease.0 + 1);
    }

    fn end_leases(&mut self, now: Instant) {
        let ended: Vec<LeaseId> =
            self.leases.iter().filter(|(_, of)| of.until <= now).map(|(lease, _)| *lease).collect();
        for lease in ended {
            self.end_lease(lease);
        }
    }

    fn end_lease(&mut self, lease: LeaseId) {
        self.append(&Record::Ended { lease, revision: self.revision + 1 });
        self.drop_lease(lease, self.revision + 1);
    }

    fn drop_lease(&mut self, lease: LeaseId, revision: u64) {
        let Some(ended) = self.leases.remove(&lease) else { return };
        let gone = ended.keys.into_iter().map(|key| Change::Delete { key }).collect();
        self.change(revision, gone);
    }

    fn replay(&mut self, now: Instant, record: Record) {
        match record {
            Record::Snapshot { revision, epoch, leases_next, .. } => {
                (self.revision, self.epoch, self.leases_next) = (revision, epoch, leases_next);
            }
            Record::Key { key, value, revision, lease } => {
                self.put(key, Entry { kept: Kept { value, revision }, lease });
            }
            // The plane was away: how long is not known, so each lease has all its time again.
            Record::Lease { lease, ttl_ns } => self.give(now, lease, ttl_ns),
            // Of before there were stamps: nobody knows that life.
            Record::Opened { epoch, stamp: 0 } => self.epoch = epoch,
            Record::Opened { epoch, stamp } => self.begin(epoch, stamp),
            Record::Life(life) => self.add_life(life),
            Record::Commit { revision, changes } => self.change(revision, changes),
            Record::Ended { lease, revision } => self.drop_lease(lease, revision),
        }
        // Watches of this life begin at what it knows; earlier changes are told by reading.
        self.history.clear();
    }

    fn append(&mut self, record: &Record) {
        self.written += 1;
        let mut bytes = Vec::new();
        log::write(&mut bytes, self.written, self.stored, record);
        self.log_bytes += bytes.len();
        self.outputs.push_back(PlaneOutput::Store(Store::Append { bytes, sequence: self.written }));
    }

    /// Replaces the log by what the plane holds.
    fn compact(&mut self) {
        let leases = self.leases.iter();
        let leases = leases.map(|(&lease, of)| Record::Lease { lease, ttl_ns: of.ttl_ns });
        let keys = self.keys.iter().map(|(key, entry)| {
            let Kept { value, revision } = entry.kept.clone();
            Record::Key { key: key.clone(), value, revision, lease: entry.lease }
        });
        let lives = self.lives.iter().map(|&life| Record::Life(life));
        let records: Vec<Record> = lives.chain(leases).chain(keys).collect();
        let first = Record::Snapshot {
            revision: self.revision,
            epoch: self.epoch,
            leases_next: self.leases_next,
            records: records.len() as u32,
        };
        let mut bytes = log::head(self.pool);
        for record in std::iter::once(&first).chain(&records) {
            self.written += 1;
            // A snapshot is durable as a whole, so that a gap within it is damage by itself.
            log::write(&mut bytes, self.written, 0, record);
        }
        self.log_bytes = bytes.len();
        self.outputs
            .push_back(PlaneOutput::Store(Store::Replace { bytes, sequence: self.written }));
    }

    fn tell(&mut self, told: Told) {
        self.waiting.push_back((self.written, told));
        self.release();
    }

    fn release(&mut self) {
        let early = Mutant::AnswerBeforeStored.is(self.mutant);
        while let Some((needs, _)) = self.waiting.front() {
            if *needs > self.stored && !early {
                break;
            }
            let (_, told) = self.waiting.pop_front().expect("looked at just now");
            self.outputs.push_back(PlaneOutput::Answer(told));
        }
    }
}

/// Most keys: some 100 volumes with all bands of a busy moment.
const KEYS_MAX: usize = 1 << 18;
/// Beyond these, so many for all but bands.
const KEYS_SPARE: usize = 1 << 12;
/// Most leases: controllers that were elected, and those that want to be.
const LEASES_MAX: usize = 1 << 12;
const WATCHES_MAX: usize = 1 << 12;
const HISTORY_MAX: usize = 1 << 10;
/// A log shorter than this is not worth compacting.
const LOG_BYTES_LEAST: usize = 1 << 20;
/// What a key costs in a snapshot beside its bytes.
const RECORD_OVERHEAD: usize = 49;
const _: () = assert!(CHANGES_MAX < KEYS_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(plane: &mut Embedded, key: &str, value: u8) {
        let key = key.to_owned();
        let changes = vec![Change::Put { key, value: vec![value; 64], lease: None }];
        let ask = PlaneAsk::Commit { checks: Vec::new(), changes };
        plane.handle(Instant(0), PlaneInput::Ask { client: 1, id: PlaneAskId(9), ask });
    }

    /// Stores what is wanted in `file`, says so, and returns what was told.
    fn drive(plane: &mut Embedded, file: &mut Vec<u8>) -> Vec<PlaneAnswer> {
        let mut told = Vec::new();
        while let Some(output) = plane.poll() {
            let sequence = match output {
                PlaneOutput::Answer(answer) => {
                    told.push(answer.answer);
                    continue;
                }
                PlaneOutput::Store(Store::Append { bytes, sequence }) => {
                    file.extend(bytes);
                    sequence
                }
                PlaneOutput::Store(Store::Replace { bytes, sequence }) => {
                    *file = bytes;
                    sequence
                }
            };
            plane.handle(Instant(0), PlaneInput::Stored { sequence });
        }
        told
    }

    #[test]
    fn nothing_is_answered_before_it_is_stored() {
        let mut plane = Embedded::create(PoolId(1), 1);
        let mut file = Vec::new();
        drive(&mut plane, &mut file);
        commit(&mut plane, "a", 1);
        let Some(PlaneOutput::Store(Store::Append { sequence, .. })) = plane.poll() else {
            panic!("a commit is stored first");
        };
        let ask = PlaneAsk::Get { key: "a".to_owned() };
        plane.handle(Instant(0), PlaneInput::Ask { client: 2, id: PlaneAskId(1), ask });
        assert_eq!(plane.poll(), None, "neither the commit nor what it shows");
        plane.handle(Instant(0), PlaneInput::Stored { sequence });
        assert!(matches!(plane.poll(), Some(PlaneOutput::Answer(told)) if told.client == 1));
        assert!(matches!(plane.poll(), Some(PlaneOutput::Answer(told)) if told.client == 2));
    }

    #[test]
    fn a_full_plane_takes_no_more_bands_but_what_people_do_to_get_out_of_it() {
        let mut plane = Embedded::create(PoolId(1), 1);
        let mut file = Vec::new();
        let mut ask = |changes: Vec<Change>| {
            let ask = PlaneAsk::Commit { checks: Vec::new(), changes };
            plane.handle(Instant(0), PlaneInput::Ask { client: 1, id: PlaneAskId(9), ask });
            file.clear();
            drive(&mut plane, &mut file).pop().expect("it is answered")
        };
        let put = |key: String| Change::Put { key, value: vec![1], lease: None };
        let band = |at: usize| format!("volume/1/band/{at:08x}");
        let full = PlaneAnswer::Refused(PlaneRefusal::Full);
        for at in (0..KEYS_MAX).step_by(CHANGES_MAX) {
            let changes = (at..at + CHANGES_MAX).map(|at| put(band(at))).collect();
            assert!(matches!(ask(changes), PlaneAnswer::Committed { .. }), "{at}");
        }
        assert_eq!(ask(vec![put(band(KEYS_MAX))]), full);
        let is_done = |answer: PlaneAnswer| matches!(answer, PlaneAnswer::Committed { .. });
        assert!(is_done(ask(vec![put(band(7))])), "it is there");
        assert!(is_done(ask(vec![put("node/1".into())])), "another node may be what helps");
        let key = band(0);
        assert!(is_done(ask(vec![put(band(KEYS_MAX)), Change::Delete { key }])), "one for one");
        let gone = (1..4).map(|at| Change::Delete { key: band(at) }).collect();
        assert!(is_done(ask(gone)));
        assert!(is_done(ask(vec![put(band(KEYS_MAX + 1))])), "there is room again");
    }

    #[test]
    fn a_log_that_grows_is_compacted_and_means_the_same() {
        let mut plane = Embedded::create(PoolId(1), 1);
        let mut file = Vec::new();
        for round in 0..20_000u32 {
            commit(&mut plane, if round % 2 == 0 { "a" } else { "b" }, round as u8);
            assert_eq!(drive(&mut plane, &mut file).len(), 1);
            assert_eq!(file.len(), plane.bytes().0);
            assert!(file.len() < LOG_BYTES_LEAST + 1024, "{} bytes after {round}", file.len());
        }
        let known = Known { revision: 20_000 };
        let (opened, length) =
            Embedded::open(Instant(0), PoolId(1), &file, known, 2).expect("sound");
        assert_eq!(length, file.len());
        assert_eq!(opened.revision(), 20_000);
        let shown = |plane: &Embedded| plane.range("", "z", 10);
        assert_eq!(shown(&opened), shown(&plane));
        assert_eq!((plane.epoch(), opened.epoch()), (1, 2));
        let lives = [Life { stamp: 1, revision: 0 }, Life { stamp: 2, revision: 20_000 }];
        assert_eq!(opened.facts(), PlaneFacts { revision: 20_000, lives: lives.to_vec() });
    }

    #[test]
    fn a_log_of_version_1_becomes_one_of_version_2_and_only_the_last_lives_are_remembered() {
        let mut file = log::head(PoolId(1));
        file[4] = 1;
        let sum = flash::crc(&file[..24]).to_le_bytes();
        file[24..28].copy_from_slice(&sum);
        let first = Record::Snapshot { revision: 5, epoch: 1, leases_next: 1, records: 0 };
        for (at, record) in (1..).zip([first, Record::Opened { epoch: 2, stamp: 0 }]) {
            log::write(&mut file, at, 0, &record);
        }
        let mut open = |stamp| {
            let known = Known::default();
            let (mut plane, length) =
                Embedded::open(Instant(0), PoolId(1), &file, known, stamp).expect("sound");
            file.truncate(length);
            drive(&mut plane, &mut file);
            (plane.epoch(), plane.facts(), file[4])
        };
        let facts = |lives: &[u64]| {
            let life = |&stamp: &u64| Life { stamp, revision: 5 };
            PlaneFacts { revision: 5, lives: lives.iter().map(life).collect() }
        };
        assert_eq!(open(7), (3, facts(&[7]), 2));
        assert_eq!(open(8), (4, facts(&[7, 8]), 2));
        let stamps: Vec<u64> = (100..100 + LIVES_MAX as u64).collect();
        let last = stamps.iter().map(|&stamp| open(stamp)).last().expect("some");
        assert_eq!(last, (4 + LIVES_MAX as u64, facts(&stamps), 2));
    }

    #[test]
    fn an_old_copy_of_a_log_is_refused_where_a_later_revision_is_known() {
        let mut plane = Embedded::create(PoolId(1), 1);
        let mut file = Vec::new();
        commit(&mut plane, "a", 1);
        drive(&mut plane, &mut file);
        let backup = file.clone();
        commit(&mut plane, "a", 2);
        drive(&mut plane, &mut file);
        let known = Known { revision: plane.revision() };
        assert!(Embedded::open(Instant(0), PoolId(1), &file, known, 2).is_ok());
        let refused = Embedded::open(Instant(0), PoolId(1), &backup, known, 2).err();
        assert_eq!(refused, Some(LogError::Old { revision: 1, known: 2 }));
    }
}
