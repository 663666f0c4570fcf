//! The codec against itself, against damage, and against its table.

use super::*;
use crate::message::{BandEntry, BandHeader, Congestion, Refusal};
use crate::words::{BandName, BandShape, Generation, Members, VolumeId};
use flash::Random;

fn name(random: &mut Random) -> BandName {
    let (volume, band) = (VolumeId(random.next_u64() as u32), random.next_u64() as u32);
    BandName { volume, band, life: random.next_u64() }
}

fn header(random: &mut Random) -> BandHeader {
    let nodes = [1, 2, 3, 4].map(|k| NodeId(k + random.below(1 << 20) as u32 * 4));
    let members = Members::new(&nodes[..1 + random.below(4) as usize]).expect("all different");
    let shape =
        BandShape { pages: random.next_u64() as u32, slots_per_page: random.below(65) as u32 };
    BandHeader { members, shape }
}

fn slot(random: &mut Random) -> Slot<u64> {
    let oob = std::array::from_fn(|_| random.below(256) as u8);
    let data = random.chance(0.7).then(|| random.next_u64());
    Slot { oob, crc: random.next_u64() as u32, data }
}

fn slots(random: &mut Random) -> Vec<Slot<u64>> {
    (0..random.below(5)).map(|_| slot(random)).collect()
}

fn ask(random: &mut Random) -> Ask<u64> {
    let (band, generation) = (name(random), Generation(random.next_u64()));
    let volume = band.volume;
    match random.below(8) {
        0 => Ask::Fence { volume, generation, owner: random.next_u64() },
        1 => {
            let open = random.chance(0.5).then(|| header(random));
            let page = random.next_u64() as u32;
            Ask::Append { band, generation, page, open, slots: slots(random) }
        }
        2 => {
            let (slot, count) = (random.next_u64() as u32, random.below(65) as u32);
            Ask::Read { band, generation, slot, count, urgent: random.chance(0.5) }
        }
        3 => Ask::Seal { band, generation, pages: random.next_u64() as u32 },
        4 => Ask::Free { band, generation },
        5 => Ask::Flush { volume, generation },
        6 => {
            let after = random.chance(0.5).then(|| name(random));
            Ask::List { volume, generation, after }
        }
        _ => {
            let (from, pages) = (header(random).members, random.next_u64() as u32);
            let (header, bytes_per_s_max) = (header(random), random.next_u64());
            Ask::Copy { band, generation, from, header, pages, bytes_per_s_max }
        }
    }
}

fn answer(random: &mut Random) -> Answer<u64> {
    match random.below(4) {
        0 => Answer::Done,
        1 => {
            let slots = slots(random).into_iter();
            Answer::Slots(slots.map(|slot| random.chance(0.8).then_some(slot)).collect())
        }
        2 => {
            let bands = (0..random.below(4)).map(|_| {
                let pages = random.next_u64() as u32;
                let sound = if random.chance(0.5) { pages } else { pages / 2 };
                BandEntry {
                    band: name(random),
                    header: header(random),
                    pages,
                    sealed: random.chance(0.5),
                    sound,
                    torn: random.chance(0.5),
                    loose: pages.min(random.below(12) as u32),
                }
            });
            Answer::Bands { bands: bands.collect(), more: random.chance(0.5) }
        }
        _ => Answer::Refused(refusal(random)),
    }
}

fn refusal(random: &mut Random) -> Refusal {
    match random.below(11) {
        0 => Refusal::Stale { highest: Generation(random.next_u64()) },
        1 => Refusal::NoBand,
        2 => Refusal::Sealed { pages: random.next_u64() as u32 },
        3 => Refusal::OutOfOrder { expected: random.next_u64() as u32 },
        4 => Refusal::Differs,
        5 => Refusal::Mode,
        6 => Refusal::Full,
        7 => Refusal::BandFailed,
        8 => Refusal::Failed,
        9 => Refusal::Invalid,
        _ => Refusal::Busy,
    }
}

fn message(random: &mut Random) -> Message<u64> {
    let id = AskId(random.next_u64());
    match random.below(5) {
        0 => {
            let letters = ["a", "b", "€"];
            let length = random.below(20);
            let name = (0..length).map(|_| letters[random.below(3) as usize]).collect();
            let node = NodeId(random.next_u64() as u32);
            let facts = random.chance(0.5).then(|| NodeFacts {
                node,
                durable: random.chance(0.5),
                bands: random.next_u64() as u32,
                bands_used: random.next_u64() as u32,
                band_pages: random.next_u64() as u32,
            });
            let pool = PoolId(u128::from(random.next_u64()) << 64 | u128::from(random.next_u64()));
            Message::Hello(Hello { pool, node, name, facts })
        }
        1 | 2 => Message::Ask { id, ask: ask(random) },
        _ => {
            let states = [
                Congestion::None,
                Congestion::Clearing,
                Congestion::Settled,
                Congestion::Congested,
            ];
            let signals = Signals {
                congestion: states[random.below(4) as usize],
                queue: random.next_u64() as u16,
                unit_queue: random.chance(0.5).then(|| random.next_u64() as u16),
                unit_stirs: random.chance(0.5),
            };
            Message::Answer { id, answer: answer(random), signals }
        }
    }
}

/// Decodes a head that must be whole, with the data that it was encoded with.
fn decoded(encoded: &Encoded<'_, u64>) -> Message<u64> {
    match decode(&encoded.head) {
        Ok(Decoded::Message { message, head_bytes, payload_slots }) => {
            assert_eq!(head_bytes, encoded.head.len());
            assert_eq!(payload_slots as usize, encoded.payload.len());
            message.with_data(|at| *encoded.payload[at as usize])
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_encoded_is_decoded_and_more_behind_it_is_left_alone() {
    for seed in 0..3000 {
        let message = message(&mut Random::new(seed));
        let encoded = message.encode().unwrap_or_else(|error| panic!("seed={seed}: {error}"));
        assert_eq!(decoded(&encoded), message, "seed={seed}");
        let longer = [&encoded.head[..], b"WP and more"].concat();
        assert_eq!(decode(&longer), decode(&encoded.head), "seed={seed}");
    }
}

#[test]
fn a_part_of_a_message_asks_for_more_and_never_for_too_much() {
    for seed in 0..300 {
        let message = message(&mut Random::new(seed));
        let head = message.encode().expect("it fits").head;
        for length in 0..head.len() {
            let more = decode(&head[..length]);
            let wanted = if length < HEAD_BYTES { HEAD_BYTES } else { head.len() };
            assert_eq!(more, Ok(Decoded::More(wanted)), "seed={seed} length={length}");
        }
    }
}

#[test]
fn no_change_of_one_byte_is_taken_for_a_message() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let head = message(&mut random).encode().expect("it fits").head;
        for at in 0..head.len() {
            let mut changed = head.clone();
            changed[at] ^= 1 << random.below(8);
            match decode(&changed) {
                Err(_) | Ok(Decoded::More(_)) => {}
                Ok(found) => panic!("seed={seed} byte={at}: {found:?}"),
            }
        }
    }
}

#[test]
fn what_is_too_long_is_refused_before_anything_is_allocated_for_it() {
    let long = Hello { name: "n".repeat(NAME_BYTES_MAX + 1), ..Hello::default() };
    let long = Message::<u64>::Hello(long);
    let encoded = long.encode();
    assert!(matches!(encoded, Err(WireError::TooLong { found: 65, max: 64, .. })), "{encoded:?}");
    let bands = [BandEntry::whole(BandName::default(), BandHeader::default(), 0, false)];
    let bands = Answer::Bands { bands: bands.repeat(LIST_MAX + 1), more: false };
    let (id, signals) = (AskId(1), Signals::default());
    let message = Message::<u64>::Answer { id, answer: bands, signals };
    assert!(matches!(message.encode(), Err(WireError::TooLong { .. })));
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(b"WP\x05\x10");
    head[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(decode(&head), Err(WireError::TooLong { .. })));
    head[4..8].fill(0);
    head[12..16].copy_from_slice(&65u32.to_le_bytes());
    assert!(matches!(decode(&head), Err(WireError::TooLong { found: 65, .. })));
}

#[test]
fn what_is_no_message_says_so() {
    assert_eq!(decode(b"GET / HTTP"), Err(WireError::Magic));
    assert_eq!(decode(b"WP\x06"), Err(WireError::Version { found: 6 }));
    let mut head = Message::<u64>::Hello(Hello::default()).encode().expect("it fits").head;
    head[3] = 77;
    let sum = head_sum(&head);
    head[8..12].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode(&head), Err(WireError::Kind { found: 77 }));
    let said = WireError::Version { found: 6 }.to_string();
    assert!(said.contains('6') && said.contains('5') && said.contains("same version"), "{said}");
}

/// The body behind the fixed 24 bytes, in hex; the checksum is a part of what is fixed.
fn golden(message: &Message<u64>) -> String {
    let head = message.encode().expect("it fits").head;
    head.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_bytes_of_each_kind_are_those_of_the_table() {
    let (id, signals) = (AskId(5), Signals::default());
    let band = BandName { volume: VolumeId(1), band: 2, life: 3 };
    let (volume, generation) = (band.volume, Generation(4));
    let members = Members::new(&[NodeId(6), NodeId(7)]).expect("two different");
    let header = BandHeader { members, shape: BandShape { pages: 8, slots_per_page: 2 } };
    let slots = vec![
        Slot { oob: [0xaa; 32], crc: 9, data: Some(1) },
        Slot { oob: [0xbb; 32], crc: 10, data: None },
    ];
    let entry = BandEntry { band, header, pages: 3, sealed: true, sound: 2, torn: false, loose: 1 };
    let facts =
        NodeFacts { node: NodeId(1), durable: true, bands: 16, bands_used: 2, band_pages: 136 };
    let hello = Hello { pool: PoolId(3), node: NodeId(1), name: "me".into(), facts: Some(facts) };
    let open = Some(header);
    let asks = [
        Ask::Fence { volume, generation, owner: 6 },
        Ask::Append { band, generation, page: 0, open, slots: slots.clone() },
        Ask::Read { band, generation, slot: 11, count: 1, urgent: true },
        Ask::Seal { band, generation, pages: 3 },
        Ask::Free { band, generation },
        Ask::Flush { volume, generation },
        Ask::List { volume, generation, after: Some(band) },
        Ask::Copy { band, generation, from: members, header, pages: 3, bytes_per_s_max: 1 << 20 },
    ];
    let stirring = Signals {
        congestion: Congestion::Congested,
        queue: 12,
        unit_queue: Some(13),
        unit_stirs: true,
    };
    let answers = [
        (Answer::Done, stirring),
        (Answer::Slots(vec![Some(slots[0].clone()), None]), signals),
        (Answer::Bands { bands: vec![entry], more: true }, signals),
        (Answer::Refused(Refusal::Stale { highest: generation }), signals),
    ];
    let mut messages = vec![Message::Hello(hello)];
    messages.extend(asks.map(|ask| Message::Ask { id, ask }));
    messages.extend(answers.map(|(answer, signals)| Message::Answer { id, answer, signals }));
    let found: Vec<String> = messages.iter().map(golden).collect();
    let golden = include_str!("golden.txt");
    assert_eq!(found, golden.lines().collect::<Vec<_>>(), "{}", found.join("\n"));
}

#[test]
fn a_list_does_not_tell_of_more_sound_pages_than_there_are() {
    let whole = BandEntry::whole(BandName::default(), BandHeader::default(), 3, true);
    let entry = BandEntry { sound: 4, ..whole };
    let answer = Answer::Bands { bands: vec![entry], more: false };
    let (id, signals) = (AskId(1), Signals::default());
    let head = Message::<u64>::Answer { id, answer, signals }.encode().expect("it fits").head;
    assert_eq!(decode(&head), Err(WireError::Field { what: "the pages that are sound" }));
}
