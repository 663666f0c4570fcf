//! A ring against a plain model: a guest that frames its requests in every way, right and wrong; and a server that ends
//! at any step.

use super::inflight::{Extent, Inflight};
use super::ring::tests::{AVAILABLE, DESCRIPTORS, Driver, PLACES, USED};
use super::*;
use crate::volume::Failure;
use flash::{Random, RequestError};
use std::os::fd::OwnedFd;
use std::sync::mpsc;

const ENTRIES: u16 = 16;
const SECTORS: u64 = 64;
const BYTES: u64 = SECTORS * 512;
/// Where a guest has what a request is made of: beside the ring, 1 KiB for each descriptor.
const BUFFERS: u64 = 0x8000;

fn disk(write_through: bool) -> Disk {
    Disk { volume: 5, bytes: BYTES, read_only: false, write_through, name: "disk".into() }
}

struct Served {
    queue: VhostQueue,
    ways: Ways,
    stop: Arc<AtomicBool>,
    ended: mpsc::Receiver<u16>,
}

/// What a session does to have a ring served.
fn serve(
    driver: &Driver,
    by_index: bool,
    base: u16,
    inflight: Option<(&OwnedFd, Extent)>,
) -> Served {
    let mut ring = driver.ring(by_index);
    let track = inflight.map(|(file, extent)| {
        let memory = Arc::new(Inflight::map(file, extent).unwrap());
        memory.of_queue(0, ENTRIES).unwrap()
    });
    let resumed = session::resume(track, &mut ring, base).unwrap();
    let event = || Arc::new(Event::new().unwrap());
    let ways = Ways { call: event(), broken: event() };
    let (stop, (sender, ended)) = (Arc::<AtomicBool>::default(), mpsc::channel());
    let reins = Reins { stop: Arc::clone(&stop), ended: sender };
    let queue = VhostQueue::new(disk(false), (0, ring), resumed, ways.clone(), reins);
    Served { queue, ways, stop, ended }
}

/// What a shard does with a request: answers it from `volume`.
fn carry_out(queue: &mut VhostQueue, volume: &mut [u8], ticket: Ticket, request: volume::Request) {
    let volume::Request { kind, offset, len, volume: number } = request;
    assert_eq!(number, 5);
    assert!(offset + u64::from(len) <= BYTES, "it lies within its volume");
    let range = offset as usize..offset as usize + len as usize;
    let mut answer = Answer::Done;
    match kind {
        Kind::Write { .. } => {
            let cut = range.len() / 3;
            let mut data = vec![0; range.len()];
            let (first, second) = data.split_at_mut(cut);
            if queue.bring(ticket, first) && queue.bring(ticket, second) {
                volume[range].copy_from_slice(&data);
            } else {
                answer = Answer::Failed(Failure::Spoilt);
            }
        }
        Kind::Zeroes { .. } | Kind::Trim { .. } => volume[range].fill(0),
        Kind::Read => {
            assert!(queue.answer(ticket, answer, &mut Vec::new()));
            let data = &volume[range];
            let (first, second) = data.split_at(data.len() / 2);
            queue.after_data(ticket, &mut [first, second].into_iter(), &mut Vec::new());
            return queue.finish(ticket);
        }
        _ => assert_eq!((offset, len), (0, 0)),
    }
    assert!(!queue.answer(ticket, answer, &mut Vec::new()));
    queue.finish(ticket);
}

/// A chain as a guest lays it out, and what must become of it.
struct Laid {
    head: u16,
    /// The status, if there is a place for one; and where that is.
    status: Option<(u64, u8)>,
    /// What is read, and where it must lie.
    read: Vec<(u64, Vec<u8>)>,
}

/// Lays out a random request from descriptor `first` on, and does to `model` what it asks.
fn lay_out(driver: &Driver, random: &mut Random, first: u16, model: &mut [u8]) -> Laid {
    let kind = [0, 0, 0, 1, 1, 1, 4, 8, 11, 13, 7][random.below(11) as usize];
    let sector = random.below(SECTORS + 2);
    let sectors = 1 + random.below(3);
    let bytes = sectors * 512 - if random.chance(0.05) { 1 } else { 0 };
    let mut read_by_device = u32::to_le_bytes(kind).to_vec();
    read_by_device.extend([0; 4]);
    read_by_device.extend(sector.to_le_bytes());
    let mut room = 0;
    match kind {
        0 => room = bytes,
        1 => read_by_device.extend((0..bytes).map(|_| random.next_u64() as u8)),
        8 => room = 20,
        11 | 13 => {
            read_by_device.extend(sector.to_le_bytes());
            read_by_device.extend((sectors as u32).to_le_bytes());
            read_by_device.extend([0; 4]);
        }
        _ => {}
    }
    let within = sector * 512 + bytes <= BYTES && bytes.is_multiple_of(512);
    let has_status = !random.chance(0.05);
    let (pieces, places) = cut(driver, random, first, (&read_by_device, room, has_status));
    let bad = random.chance(0.1);
    describe(driver, random, first, &pieces, bad);
    let range = sector as usize * 512..(sector * 512 + bytes) as usize;
    let mut laid =
        Laid { head: first, status: places.last().copied().map(|at| (at, 1)), read: Vec::new() };
    if bad || !has_status {
        // Of a chain that is none, nothing can be trusted; its status stays as it was.
        laid.status = laid.status.filter(|_| has_status).map(|(at, _)| (at, 0xee));
        return laid;
    }
    let mut status = 0;
    match kind {
        0 if within => {
            laid.read =
                places.iter().copied().zip(model[range].iter().map(|&byte| vec![byte])).collect();
        }
        1 if within => model[range].copy_from_slice(&read_by_device[16..]),
        11 | 13 if sector + sectors <= SECTORS => {
            model[sector as usize * 512..][..sectors as usize * 512].fill(0);
        }
        4 => {}
        8 => {
            let mut name = b"disk".to_vec();
            name.resize(20, 0);
            laid.read =
                places.iter().copied().zip(name.into_iter().map(|byte| vec![byte])).collect();
        }
        7 => status = 2,
        _ => status = 1,
    }
    laid.status = laid.status.map(|(at, _)| (at, status));
    laid
}

/// Cuts what the device reads and writes into pieces; and where each byte that it writes is to be, the status last.
fn cut(
    driver: &Driver,
    random: &mut Random,
    first: u16,
    (read, room, has_status): (&[u8], u64, bool),
) -> (Vec<Piece>, Vec<u64>) {
    let mut at = BUFFERS + u64::from(first) * 0x400;
    let (mut pieces, mut places) = (Vec::new(), Vec::new());
    let mut rest = read;
    while !rest.is_empty() {
        // At most two pieces, so that any chain has its descriptors.
        let len = if pieces.is_empty() && random.chance(0.5) {
            1 + random.below(rest.len() as u64)
        } else {
            rest.len() as u64
        };
        let (now, later) = rest.split_at(len as usize);
        assert!(driver.memory.write(at, now));
        pieces.push(Piece { address: at, bytes: len as u32, writable: false });
        (rest, at) = (later, at + len + random.below(3));
    }
    let mut left = room + u64::from(has_status);
    let whole = pieces.len() + 1;
    while left > 0 {
        let len =
            if pieces.len() < whole && random.chance(0.5) { 1 + random.below(left) } else { left };
        pieces.push(Piece { address: at, bytes: len as u32, writable: true });
        places.extend(at..at + len);
        (left, at) = (left - len, at + len + random.below(3));
    }
    for &place in &places {
        assert!(driver.memory.write(place, &[0xee]));
    }
    (pieces, places)
}

/// Writes the descriptors of a chain: in the ring, or in a table of its own; a bad one goes nowhere or comes back.
fn describe(driver: &Driver, random: &mut Random, first: u16, pieces: &[Piece], bad: bool) {
    let table = 0x2000 + u64::from(first) * 0x80;
    let indirect = random.chance(0.5);
    let (at, from) = if indirect { (table, 0) } else { (DESCRIPTORS, first) };
    let count = pieces.len() as u16;
    for (number, piece) in pieces.iter().enumerate() {
        let (index, last) = (from + number as u16, number as u16 + 1 == count);
        let mut flags = u16::from(!last) | if piece.writable { 2 } else { 0 };
        let (mut next, mut place) = (index + 1, (piece.address, piece.bytes));
        if bad && last {
            match random.below(3) {
                0 => (flags, next) = (flags | 1, from),
                1 => (flags, next) = (flags | 1, 999),
                _ => place = (0x1_0000 - 1, piece.bytes + 1),
            }
        }
        driver.describe(at, index, place, flags, next);
    }
    if indirect {
        driver.describe(DESCRIPTORS, first, (table, u32::from(count) * 16), 4, 0);
    }
}

/// Checks what the guest sees of a chain that came back.
fn check(driver: &Driver, laid: &Laid, written: u32, seed: u64) {
    if let Some((at, status)) = laid.status {
        let mut found = [0];
        assert!(driver.memory.read(at, &mut found));
        assert_eq!(found, [status], "seed={seed}");
        let data = laid.read.len() as u32;
        assert_eq!(written, if status == 0xee { 0 } else { data + 1 }, "seed={seed}");
    }
    for (at, bytes) in &laid.read {
        let mut found = [0];
        assert!(driver.memory.read(*at, &mut found));
        assert!(found == bytes[..], "seed={seed}");
    }
}

/// Makes a flush available, of descriptor `head` and a table.
fn offer_flush(driver: &mut Driver, head: u16) {
    let table = 0x2000 + u64::from(head) * 0x80;
    let at = BUFFERS + u64::from(head) * 0x400;
    assert!(driver.memory.write(at, &[&[4][..], &[0; 15]].concat()));
    driver.describe(table, 0, (at, 16), 1, 1);
    driver.describe(table, 1, (at + 16, 1), 2, 0);
    driver.describe(DESCRIPTORS, head, (table, 32), 4, 0);
    driver.offer(head);
}

#[test]
fn every_chain_comes_back_once_with_what_a_plain_model_says() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let mut driver = Driver::new(ENTRIES);
        let mut served = serve(&driver, seed % 2 == 0, 0, None);
        let (mut volume, mut model) = (vec![0u8; BYTES as usize], vec![0u8; BYTES as usize]);
        for _ in 0..200 {
            // Up to three at a time, at places of their own, which are answered in order.
            let mut laid: Vec<Laid> = Vec::new();
            for place in 0..=random.below(3) {
                laid.push(lay_out(&driver, &mut random, place as u16 * 5, &mut model));
                driver.offer(place as u16 * 5);
            }
            while let Some(event) = served.queue.resume() {
                match event {
                    Happening::Request(ticket, request) => {
                        carry_out(&mut served.queue, &mut volume, ticket, request);
                    }
                    Happening::Refused(volume) => assert_eq!(volume, Some(5)),
                    Happening::Answered => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(served.queue.deliver());
            for laid in &laid {
                let (head, written) = driver.reap().unwrap_or_else(|| panic!("seed={seed}"));
                assert_eq!(head, laid.head, "seed={seed}");
                check(&driver, laid, written, seed);
            }
            assert!(driver.reap().is_none() && volume == model, "seed={seed}");
            assert_eq!(served.queue.in_flight(), 0);
        }
        assert!(served.ways.call.clear() && !served.ways.broken.clear());
    }
}

#[test]
fn a_server_that_ends_at_any_step_leaves_nothing_undone_and_does_nothing_twice() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut driver = Driver::new(ENTRIES);
        let extent = Extent::of(1, ENTRIES);
        let file = Inflight::make(extent).unwrap();
        let mut served = serve(&driver, true, 0, Some((&file, extent)));
        let mut flights: Vec<(Ticket, volume::Request)> = Vec::new();
        let (mut free, mut there): (Vec<u16>, Vec<u16>) = ((0..ENTRIES).collect(), Vec::new());
        let mut volume = vec![0u8; BYTES as usize];
        for _ in 0..300 {
            match random.below(8) {
                0..3 if !free.is_empty() => {
                    let head = free.swap_remove(random.below(free.len() as u64) as usize);
                    offer_flush(&mut driver, head);
                    there.push(head);
                }
                3..5 => match served.queue.resume() {
                    Some(Happening::Request(ticket, request)) => flights.push((ticket, request)),
                    None => {}
                    other => panic!("{other:?}"),
                },
                5..7 if !flights.is_empty() => {
                    let one = flights.swap_remove(random.below(flights.len() as u64) as usize);
                    carry_out(&mut served.queue, &mut volume, one.0, one.1);
                }
                7 if random.chance(0.3) => {
                    // The next one is told where the ring is by what was put back, as QEMU does.
                    let base = driver.word(USED + 2);
                    flights.clear();
                    served = serve(&driver, true, base, Some((&file, extent)));
                    assert!(served.ways.call.clear(), "the guest looks again");
                }
                _ => {}
            }
            while let Some((head, written)) = driver.reap() {
                let at = there.iter().position(|&one| one == head);
                there.swap_remove(at.unwrap_or_else(|| panic!("twice: seed={seed}")));
                assert_eq!(written, 1);
                free.push(head);
            }
        }
        while let Some(event) = served.queue.resume() {
            let Happening::Request(ticket, request) = event else { panic!("{event:?}") };
            flights.push((ticket, request));
        }
        for (ticket, request) in flights {
            carry_out(&mut served.queue, &mut volume, ticket, request);
        }
        let back = std::iter::from_fn(|| driver.reap()).map(|(head, _)| head);
        let mut back: Vec<u16> = back.collect();
        there.sort_unstable();
        back.sort_unstable();
        assert_eq!(there, back, "seed={seed}");
    }
}

#[test]
fn a_ring_ends_when_it_is_told_to_and_says_where_it_would_have_gone_on() {
    let mut driver = Driver::new(ENTRIES);
    let Served { mut queue, stop, ended, .. } = serve(&driver, true, 0, None);
    offer_flush(&mut driver, 0);
    offer_flush(&mut driver, 5);
    assert!(matches!(queue.resume(), Some(Happening::Request(..))));
    stop.store(true, Ordering::Release);
    assert_eq!(queue.resume(), Some(Happening::Close));
    assert_eq!(queue.resume(), None);
    drop(queue);
    assert_eq!(ended.recv(), Ok(1), "the second is not taken");

    let Served { mut queue, .. } = serve(&driver, true, 1, None);
    queue.shut_down();
    assert_eq!(queue.resume(), None, "a server that stops takes nothing more");
}

#[test]
fn a_ring_that_contradicts_itself_is_told_to_be_broken_once_and_looked_at_no_more() {
    let mut driver = Driver::new(ENTRIES);
    let mut served = serve(&driver, true, 0, None);
    driver.offer(ENTRIES);
    assert_eq!(served.queue.resume(), None);
    assert!(served.ways.broken.clear());
    driver.offer(0);
    assert_eq!(served.queue.resume(), None);
    assert!(!served.ways.broken.clear());
    served.stop.store(true, Ordering::Release);
    assert_eq!(served.queue.resume(), Some(Happening::Close), "it can be ended all the same");
}

#[test]
fn a_guest_whose_answers_are_new_requests_does_not_keep_others_waiting() {
    let driver = Driver::new(ENTRIES);
    // What comes back is what becomes available, and one is always ahead.
    let places = super::ring::Places { used: PLACES.available, ..PLACES };
    assert!(driver.memory.write(AVAILABLE + 2, &1u16.to_le_bytes()));
    let mut ring = Ring::new(Arc::clone(&driver.memory), ENTRIES, places, false).unwrap();
    ring.go_on_at(0);
    for head in 0..ENTRIES {
        driver.describe(DESCRIPTORS, head, (BUFFERS, 16), 0, 0);
    }
    let event = || Arc::new(Event::new().unwrap());
    let (ways, (ended, _waits)) = (Ways { call: event(), broken: event() }, mpsc::channel());
    let reins = Reins { stop: Arc::default(), ended };
    let mut queue = VhostQueue::new(disk(false), (0, ring), (None, Vec::new()), ways, reins);
    for _ in 0..3 {
        let mut taken = 0;
        while !queue.is_sated() {
            assert_eq!(queue.resume(), Some(Happening::Refused(Some(5))));
            taken += 1;
        }
        assert_eq!(taken, ENTRIES);
        assert!(queue.deliver());
    }
}

#[test]
fn a_failure_of_the_volume_is_one_of_the_request() {
    let mut driver = Driver::new(ENTRIES);
    let mut served = serve(&driver, false, 0, None);
    let at = BUFFERS;
    assert!(driver.memory.write(at, &[0; 16]));
    driver.describe(DESCRIPTORS, 0, (at, 16), 1, 1);
    driver.describe(DESCRIPTORS, 1, (at + 16, 513), 2, 0);
    driver.offer(0);
    let Some(Happening::Request(ticket, _)) = served.queue.resume() else { panic!("no request") };
    let failed = Answer::Failed(Failure::Device(RequestError::Unreadable));
    assert!(!served.queue.answer(ticket, failed, &mut Vec::new()));
    served.queue.finish(ticket);
    assert_eq!(driver.reap(), Some((0, 1)));
    let mut status = [9];
    assert!(driver.memory.read(at + 16 + 512, &mut status));
    assert_eq!(status, [1]);
}
