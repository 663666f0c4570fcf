//! The codec against itself, against damage, and against its table.

use super::*;
use crate::control::contract::{Change, Check, Kept, LeaseId, PlaneRefusal};
use crate::control::lives::Life;
use crate::controller::solver::Demand;
use crate::controller::{Limit, Redundancy, Room};
use flash::Random;

fn key(random: &mut Random) -> String {
    let length = random.below(KEY_BYTES_MAX as u64 / 3);
    (0..length).map(|_| ["a", "/", "€"][random.below(3) as usize]).collect()
}

fn kept(random: &mut Random) -> Kept {
    let value = (0..random.below(40)).map(|_| random.below(256) as u8).collect();
    Kept { value, revision: random.next_u64() }
}

fn maybe(random: &mut Random) -> Option<Kept> {
    random.chance(0.6).then(|| kept(random))
}

fn change(random: &mut Random) -> Change {
    let key = key(random);
    if random.chance(0.3) {
        return Change::Delete { key };
    }
    let lease = random.chance(0.5).then(|| LeaseId(random.next_u64() | 1));
    Change::Put { key, value: kept(random).value, lease }
}

fn ask(random: &mut Random) -> PlaneAsk {
    match random.below(8) {
        0 => PlaneAsk::Get { key: key(random) },
        1 => {
            let (from, to) = (key(random), key(random));
            PlaneAsk::Range { from, to, limit: random.next_u64() as u32 }
        }
        2 => {
            let check = |random: &mut Random| Check { key: key(random), revision: 7 };
            let checks = (0..random.below(4)).map(|_| check(random)).collect();
            let changes = (0..random.below(4)).map(|_| change(random)).collect();
            PlaneAsk::Commit { checks, changes }
        }
        3 => PlaneAsk::Watch { from: key(random), to: key(random), since: random.next_u64() },
        4 => PlaneAsk::Unwatch { watch: PlaneAskId(random.next_u64()) },
        5 => PlaneAsk::Grant { ttl_ns: random.next_u64() },
        6 => PlaneAsk::Keep { lease: LeaseId(random.next_u64()) },
        _ => PlaneAsk::Revoke { lease: LeaseId(random.next_u64()) },
    }
}

fn answer(random: &mut Random) -> PlaneAnswer {
    let revision = random.next_u64();
    match random.below(11) {
        0 => PlaneAnswer::Value { kept: maybe(random), revision },
        1 => {
            let kept = (0..random.below(4)).map(|_| (key(random), kept(random))).collect();
            PlaneAnswer::Values { kept, more: random.chance(0.5), revision }
        }
        2 => PlaneAnswer::Committed { revision },
        3 => {
            let found = (0..random.below(4)).map(|_| maybe(random)).collect();
            PlaneAnswer::NotCommitted { found }
        }
        4 => PlaneAnswer::Watching,
        5 => {
            let changes = (0..random.below(4)).map(|_| (key(random), maybe(random))).collect();
            PlaneAnswer::Changed { changes, revision }
        }
        6 => PlaneAnswer::Forgotten,
        7 => PlaneAnswer::Lease { lease: LeaseId(revision), ttl_ns: random.next_u64() },
        8 => PlaneAnswer::NoLease,
        9 => PlaneAnswer::Done,
        _ => {
            let all = [PlaneRefusal::Invalid, PlaneRefusal::Full, PlaneRefusal::Unavailable];
            PlaneAnswer::Refused(all[random.below(3) as usize])
        }
    }
}

fn number(random: &mut Random) -> f64 {
    random.below(1 << 40) as f64 / 1024.0
}

fn room(random: &mut Random) -> Room {
    let mut one = || random.next_u64() as u32;
    Room { bands: one(), used: one(), pages: one() }
}

fn redundancy(random: &mut Random) -> Redundancy {
    let [lacking, stuck, draining, spreading, away, bytes_left] =
        [(); 6].map(|()| random.next_u64());
    let left_ns = random.chance(0.5).then(|| random.next_u64());
    Redundancy { lacking, stuck, draining, spreading, away, bytes_left, left_ns }
}

fn report(random: &mut Random) -> Report {
    let of = random.next_u64() as u32;
    let (node, volume) = (NodeId(of), VolumeId(of));
    match random.below(4) {
        0 => {
            let [reads, writes, rejected, tail_us, wear] = [(); 5].map(|()| number(random));
            let room = random.chance(0.7).then(|| room(random));
            Report::Node { node, seen: NodeSeen { reads, writes, rejected, tail_us, wear, room } }
        }
        1 => Report::Profile { node, text: key(random) },
        2 => {
            let [reads, writes, waf] = [(); 3].map(|()| number(random));
            let redundancy = random.chance(0.7).then(|| redundancy(random));
            Report::Volume { volume, seen: VolumeSeen { reads, writes, waf, redundancy } }
        }
        _ => {
            let group = |random: &mut Random| {
                let nodes = [1, 2, 3, 4].map(|k| NodeId(k + random.below(1 << 20) as u32 * 4));
                let members = &nodes[..1 + random.below(4) as usize];
                (Members::new(members).expect("all different"), random.next_u64())
            };
            Report::Held { volume, groups: (0..random.below(4)).map(|_| group(random)).collect() }
        }
    }
}

fn limit(random: &mut Random) -> Limit {
    let (node, value) = (NodeId(random.next_u64() as u32), number(random));
    match random.below(9) {
        0 => Limit::Demand(value),
        1 => Limit::Domains(random.below(9) as usize),
        2 => Limit::Gone(node),
        3 => Limit::Slow(node, value),
        4 => Limit::Worn(node, value),
        5 => Limit::Rejected(value),
        6 => Limit::Useless(node),
        7 => Limit::Unknown(node),
        _ => Limit::Full { node, bands: random.next_u64() as u32, used: random.next_u64() as u32 },
    }
}

fn message(random: &mut Random) -> Message {
    let id = PlaneAskId(random.next_u64());
    match random.below(8) {
        0 => {
            let plane = random.chance(0.5).then(|| {
                let life = |at| Life { stamp: id.0 ^ at, revision: at };
                PlaneFacts { revision: id.0, lives: (0..random.below(33)).map(life).collect() }
            });
            Message::Hello(Hello { pool: PoolId(u128::MAX - 4), name: "a node €".into(), plane })
        }
        1 | 2 => Message::Ask { id, ask: ask(random) },
        3 | 4 => Message::Answer { id, answer: answer(random) },
        5 => Message::Report(report(random)),
        6 => Message::Explain,
        _ => {
            let [reads, writes, peak, cost, bound, reads_off, stuck] =
                [(); 7].map(|()| number(random));
            let limits = (0..random.below(4)).map(|_| limit(random)).collect();
            let (demand, policy) = (Demand { reads, writes }, "solver".to_owned());
            let modes = [1, 2, random.below(100) as usize];
            let volume =
                |random: &mut Random| (VolumeId(random.next_u64() as u32), redundancy(random));
            let explained = Explained {
                policy,
                demand,
                peak,
                cost,
                bound,
                modes,
                reads_off,
                stuck,
                limits,
                rooms: (0..random.below(4) as u32)
                    .map(|node| (NodeId(node), room(random)))
                    .collect(),
                redundancy: (0..random.below(4)).map(|_| volume(random)).collect(),
            };
            Message::Explained(explained)
        }
    }
}

#[test]
fn what_is_encoded_is_decoded_and_more_behind_it_is_left_alone() {
    for seed in 0..3000 {
        let message = message(&mut Random::new(seed));
        let mut bytes = message.encode().unwrap_or_else(|error| panic!("seed={seed}: {error}"));
        let length = bytes.len();
        bytes.extend(b"WC and more");
        let decoded = decode(&bytes).unwrap_or_else(|error| panic!("seed={seed}: {error}"));
        assert_eq!(decoded, Decoded::Message { message, bytes: length }, "seed={seed}");
    }
}

#[test]
fn a_message_that_is_cut_asks_for_more_and_one_that_is_changed_is_refused() {
    for seed in 0..200 {
        let random = &mut Random::new(seed);
        let bytes = message(random).encode().expect("it fits");
        for cut in 0..bytes.len() {
            match decode(&bytes[..cut]) {
                Ok(Decoded::More(wanted)) => assert!(wanted > cut && wanted <= bytes.len()),
                other => panic!("seed={seed} cut={cut}: {other:?}"),
            }
        }
        let mut changed = bytes.clone();
        let at = random.below(bytes.len() as u64) as usize;
        changed[at] ^= 1 << random.below(8);
        // A length that grew asks for what never comes; the rest is seen at once.
        match decode(&changed) {
            Err(_) => {}
            Ok(Decoded::More(wanted)) => assert!((4..8).contains(&at) && wanted > bytes.len()),
            other => panic!("seed={seed} at={at}: {other:?}"),
        }
    }
}

#[test]
fn bytes_of_messages_stay_as_they_are() {
    let hex = |message: &Message| {
        let bytes = message.encode().expect("it fits");
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let plane = Some(PlaneFacts { revision: 5, lives: vec![Life { stamp: 2, revision: 3 }] });
    let hello = Message::Hello(Hello { pool: PoolId(1), name: "a".into(), plane });
    let lease = Some(LeaseId(9));
    let changes = vec![
        Change::Put { key: "k".into(), value: vec![7], lease },
        Change::Delete { key: "d".into() },
    ];
    let checks = vec![Check { key: "k".into(), revision: 3 }];
    let ask = Message::Ask { id: PlaneAskId(4), ask: PlaneAsk::Commit { checks, changes } };
    let kept = Some(Kept { value: vec![8], revision: 6 });
    let answer = PlaneAnswer::NotCommitted { found: vec![kept, None] };
    let answer = Message::Answer { id: PlaneAskId(4), answer };
    let redundancy = Some(Redundancy { lacking: 3, left_ns: Some(4), ..Redundancy::default() });
    let seen = VolumeSeen { reads: 1.0, writes: 2.0, waf: 1.5, redundancy };
    let report = Message::Report(Report::Volume { volume: VolumeId(7), seen });
    assert_eq!([hex(&hello), hex(&ask), hex(&answer), hex(&report)], GOLDEN);
}

/// Head, then body: docs/formats.md has the tables.
const GOLDEN: [&str; 4] = [
    concat!(
        "574305013200000070fe5b4c0000000000000000",
        "0100000000000000000000000000000001000000610105000000000000000100000002000000000000000300000000000000",
    ),
    concat!(
        "574305042e0000000e30c4c10400000000000000",
        "01000000010000006b030000000000000002000000010000006b0101000000070900000000000000010000006400",
    ),
    concat!("5743051313000000422c03930400000000000000", "02000000010600000000000000010000000800",),
    concat!(
        "57430522560000005a7639d30000000000000000",
        "07000000000000000000f03f0000000000000040000000000000f83f010300000000000000000000000000000000",
        "00000000000000000000000000000000000000000000000000000000000000010400000000000000",
    ),
];

#[test]
fn an_answer_that_is_too_long_is_shortened_to_what_fits_and_says_that_there_is_more() {
    let value = vec![1; VALUE_BYTES_MAX];
    let entry = |at: usize| (format!("{at:04}"), Kept { value: value.clone(), revision: 1 });
    let kept: Vec<_> = (0..200).map(entry).collect();
    let mut answer = PlaneAnswer::Values { kept, more: false, revision: 1 };
    let id = PlaneAskId(1);
    assert!(Message::Answer { id, answer: answer.clone() }.encode().is_err());
    shorten(&mut answer);
    let PlaneAnswer::Values { kept, more, .. } = &answer else { unreachable!("as before") };
    assert!(*more && kept.len() > 100, "{} fit", kept.len());
    assert!(Message::Answer { id, answer }.encode().is_ok());
}

#[test]
fn the_largest_commit_that_is_allowed_fits() {
    let key = |at: usize| format!("{at:0width$}", width = KEY_BYTES_MAX);
    let put =
        |at| Change::Put { key: key(at), value: vec![0; VALUE_BYTES_MAX], lease: Some(LeaseId(1)) };
    let checks = (0..CHANGES_MAX).map(|at| Check { key: key(at), revision: 1 }).collect();
    let changes = (0..CHANGES_MAX).map(put).collect();
    let ask = PlaneAsk::Commit { checks, changes };
    assert!(ask_is_valid(&ask));
    assert!(Message::Ask { id: PlaneAskId(1), ask }.encode().is_ok());
}
