//! The embedded plane is held to the contract, and to a model of a few lines while it is cut off at any point of
//! what it stores.

use flash::{Instant, Random, SECOND};
use pool::control::contract::{Change, Check, LeaseId, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::embedded::{Embedded, Known, PlaneInput, PlaneOutput, Store};
use pool::control::suite::{self, UnderTest};
use pool::words::PoolId;
use std::collections::BTreeMap;

const POOL: PoolId = PoolId(0xabc);

/// A plane and the file that it stores in.
struct OnFile {
    plane: Embedded,
    file: Vec<u8>,
    now: u64,
    asks: u64,
    watched: Vec<PlaneAnswer>,
}

impl OnFile {
    fn new() -> Self {
        let plane = Embedded::create(POOL, 1);
        let mut on_file = Self { plane, file: Vec::new(), now: 0, asks: 1, watched: Vec::new() };
        on_file.drive(usize::MAX);
        on_file
    }

    /// Stores what is wanted, but no more than so many bytes: then the machine goes. `None`: it did.
    fn drive(&mut self, mut bytes_left: usize) -> Option<Vec<PlaneAnswer>> {
        let mut told = Vec::new();
        while let Some(output) = self.plane.poll() {
            let sequence = match output {
                PlaneOutput::Answer(of) if of.id == PlaneAskId(0) => {
                    self.watched.push(of.answer);
                    continue;
                }
                PlaneOutput::Answer(of) => {
                    told.push(of.answer);
                    continue;
                }
                PlaneOutput::Store(Store::Append { bytes, sequence }) => {
                    if bytes.len() > bytes_left {
                        self.file.extend(&bytes[..bytes_left]);
                        return None;
                    }
                    bytes_left -= bytes.len();
                    self.file.extend(bytes);
                    sequence
                }
                PlaneOutput::Store(Store::Replace { bytes, sequence }) => {
                    self.file = bytes;
                    sequence
                }
            };
            self.plane.handle(Instant(self.now), PlaneInput::Stored { sequence });
        }
        Some(told)
    }

    fn send(&mut self, ask: PlaneAsk) {
        let id = PlaneAskId(self.asks);
        self.asks += 1;
        self.plane.handle(Instant(self.now), PlaneInput::Ask { client: 1, id, ask });
    }

    fn open(&mut self) {
        let known = Known { revision: 0 };
        let opened = Embedded::open(Instant(self.now), POOL, &self.file, known, 2);
        let (plane, length) = opened.expect("what was stored is sound");
        self.file.truncate(length);
        self.plane = plane;
        self.drive(usize::MAX);
    }
}

impl UnderTest for OnFile {
    fn ask(&mut self, ask: PlaneAsk) -> PlaneAnswer {
        self.send(ask);
        let told = self.drive(usize::MAX).expect("nothing ends it");
        assert_eq!(told.len(), 1, "one answer to one ask: {told:?}");
        told.into_iter().next().expect("one")
    }

    fn watch(&mut self, from: String, to: String, since: u64) {
        let ask = PlaneAsk::Watch { from, to, since };
        self.plane.handle(Instant(self.now), PlaneInput::Ask { client: 1, id: PlaneAskId(0), ask });
        self.drive(usize::MAX);
    }

    fn watched(&mut self) -> Vec<PlaneAnswer> {
        std::mem::take(&mut self.watched)
    }

    fn pass(&mut self, ns: u64) {
        let until = self.now + ns;
        while let Some(at) = self.plane.deadline().filter(|at| at.0 <= until) {
            self.now = at.0;
            self.plane.handle(at, PlaneInput::Deadline);
            self.drive(usize::MAX);
        }
        self.now = until;
    }

    fn restart(&mut self) {
        self.open();
    }
}

#[test]
fn the_embedded_plane_keeps_the_contract() {
    suite::hold(&mut OnFile::new());
}

type Keys = BTreeMap<String, Vec<u8>>;

fn apply(keys: &mut Keys, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put { key, value, .. } => drop(keys.insert(key.clone(), value.clone())),
            Change::Delete { key } => drop(keys.remove(key)),
        }
    }
}

fn shown(plane: &mut OnFile) -> Keys {
    let ask = PlaneAsk::Range { from: "k".to_owned(), to: "l".to_owned(), limit: 1000 };
    let PlaneAnswer::Values { kept, more: false, .. } = plane.ask(ask) else {
        panic!("all keys fit into one answer");
    };
    kept.into_iter().map(|(key, kept)| (key, kept.value)).collect()
}

/// Random commits; now and then the machine goes while one is stored, at any byte of it.
fn run(seed: u64) {
    let (mut random, mut plane, mut keys) = (Random::new(seed), OnFile::new(), Keys::new());
    for step in 0..300 {
        let key = |random: &mut Random| format!("k{}", random.below(8));
        let mut changes = Vec::new();
        for _ in 0..=random.below(3) {
            let key = key(&mut random);
            let size = random.below(200) as usize;
            let value = vec![random.next_u64() as u8; size];
            if changes.iter().any(|change: &Change| change.key() == key) {
                continue;
            }
            changes.push(if random.chance(0.7) {
                Change::Put { key, value, lease: None::<LeaseId> }
            } else {
                Change::Delete { key }
            });
        }
        let checked = key(&mut random);
        let stale = random.chance(0.2);
        let PlaneAnswer::Value { kept, .. } = plane.ask(PlaneAsk::Get { key: checked.clone() })
        else {
            panic!("a get is answered with a value");
        };
        let revision = kept.map_or(0, |kept| kept.revision) + u64::from(stale);
        let checks = vec![Check { key: checked, revision }];
        plane.send(PlaneAsk::Commit { checks, changes: changes.clone() });
        let cut = if random.chance(0.1) { random.below(400) as usize } else { usize::MAX };
        match plane.drive(cut).as_deref() {
            Some([PlaneAnswer::Committed { .. }]) if !stale => apply(&mut keys, &changes),
            Some([PlaneAnswer::NotCommitted { .. }]) if stale => {}
            Some(other) => panic!("seed {seed} step {step}: {other:?}"),
            None => plane.open(),
        }
        assert_eq!(shown(&mut plane), keys, "seed {seed} step {step}");
    }
}

#[test]
fn whatever_was_answered_is_there_and_nothing_else_wherever_the_log_is_cut() {
    for seed in 0..200 {
        run(seed);
    }
}

#[test]
fn a_lease_outlives_a_restart_but_not_its_time() {
    let mut plane = OnFile::new();
    let PlaneAnswer::Lease { lease, .. } = plane.ask(PlaneAsk::Grant { ttl_ns: SECOND }) else {
        panic!("a lease is granted");
    };
    let put = Change::Put { key: "k".to_owned(), value: vec![1], lease: Some(lease) };
    plane.ask(PlaneAsk::Commit { checks: Vec::new(), changes: vec![put] });
    for _ in 0..3 {
        plane.now += SECOND - 1;
        plane.open();
    }
    assert_eq!(shown(&mut plane).len(), 1);
    plane.pass(SECOND);
    assert_eq!(shown(&mut plane).len(), 0);
    plane.open();
    assert_eq!(shown(&mut plane).len(), 0, "its end is in the log");
}
