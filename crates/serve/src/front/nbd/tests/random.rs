//! Random streams: any split gives the same session, and no garbage panics or takes more than its
//! share (the driver in `mod.rs` watches the limits after every call).

use flash::Random;

use super::client::*;
use super::*;

/// A session of random options and requests, mostly valid.
fn session(random: &mut Random) -> Vec<u8> {
    let mut bytes = client_flags(3);
    let names = ["data", "frozen", "blocks", "", "none"];
    let mut name = || names[random.below(names.len() as u64) as usize];
    let (first, second) = (name(), name());
    let mut options = vec![
        option(OPT_LIST, &[]),
        option(OPT_STRUCTURED_REPLY, &[]),
        set_context(first, &[CONTEXT_NAME]),
        option(OPT_INFO, &info_data(second, &[INFO_NAME, INFO_DESCRIPTION])),
        option(random.next_u64() as u32, &vec![7; random.below(9000) as usize]),
        option(OPT_LIST_META_CONTEXT, &context_data(second, &["base:"])),
    ];
    options.truncate(random.below(7) as usize);
    bytes.extend(options.concat());
    let chosen = if random.chance(0.9) { "data" } else { first };
    bytes.extend(if random.chance(0.8) {
        go(chosen, &[INFO_BLOCK_SIZE])
    } else {
        option(OPT_EXPORT_NAME, chosen.as_bytes())
    });
    for cookie in 0..random.below(60) {
        let offset = random.below((1 << 20) + 5000);
        let len = random.below(6000) as u32;
        let command = random.below(9) as u16;
        let flags = if random.chance(0.8) { 0 } else { 1 << random.below(16) };
        if command == CMD_DISC && random.chance(0.95) {
            continue;
        }
        bytes.extend(request(flags, command, cookie, offset, len));
        if command == CMD_WRITE {
            bytes.extend((0..len).map(|_| random.next_u64() as u8));
        }
    }
    bytes
}

/// Offers `bytes` in pieces of at most `piece_max`.
fn feed_in_pieces(driver: &mut Driver, bytes: &[u8], random: &mut Random, piece_max: u64) {
    let (mut start, mut end) = (0, 0);
    while start < bytes.len() && driver.is_open() {
        end = bytes.len().min(end.max(start) + 1 + random.below(piece_max) as usize);
        while start < end && driver.is_open() {
            let consumed = driver.step(&bytes[start..end]);
            start += consumed;
            if consumed == 0 {
                driver.out.clear();
            }
        }
    }
}

#[test]
fn byte_at_a_time_equals_any_pieces_equals_bulk() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let bytes = session(&mut random);
        let limits = Limits { unsent_bytes: usize::MAX, ..Limits::default() };
        let runs = [1, 7, 5000].map(|piece_max| {
            let mut driver = Driver::with(exports(), TlsMode::Off, limits);
            feed_in_pieces(&mut driver, &bytes, &mut random, piece_max);
            driver
        });
        let mut bulk = Driver::with(exports(), TlsMode::Off, limits);
        bulk.feed(&bytes);
        for run in &runs {
            assert!(run.seen == bulk.seen, "seed {seed}: events differ");
            assert!(run.out == bulk.out, "seed {seed}: replies differ");
            assert!(run.disk == bulk.disk, "seed {seed}: disks differ");
        }
    }
}

#[test]
fn garbage_never_panics_and_takes_no_more_than_its_share() {
    for seed in 0..3000 {
        let mut random = Random::new(seed ^ 0xbad);
        let tls = if random.chance(0.1) { TlsMode::Required } else { TlsMode::Off };
        let small = Limits {
            option_bytes: 64,
            payload_bytes: 4096,
            requests: 2,
            bytes_in_flight: 8192,
            unsent_bytes: 300,
            ..Limits::default()
        };
        let limits = if random.chance(0.5) { small } else { Limits::default() };
        let mut driver = Driver::with(exports(), tls, limits);
        let mut bytes = match random.below(3) {
            0 => Vec::new(),
            1 => client_flags(3),
            _ => session(&mut random),
        };
        for _ in 0..random.below(12) {
            if bytes.is_empty() {
                break;
            }
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.next_u64() as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random.next_u64() as u8),
            }
        }
        bytes.extend((0..random.below(500)).map(|_| random.next_u64() as u8));
        feed_in_pieces(&mut driver, &bytes, &mut random, 1 + (seed % 2) * 3000);
        if driver.seen.last() == Some(&Seen::StartTls) {
            driver.connection.tls_started();
        }
    }
}

#[test]
fn a_random_request_decodes_to_what_was_encoded() {
    use crate::nbd::transmission::Header;
    let mut random = Random::new(11);
    for _ in 0..10_000 {
        let (flags, command) = (random.next_u64() as u16, random.next_u64() as u16);
        let (cookie, offset) = (random.next_u64(), random.next_u64());
        let len = random.next_u64() as u32;
        let bytes = request(flags, command, cookie, offset, len);
        let expected = Header { flags, command, cookie, offset, len };
        assert_eq!(Header::decode(bytes[..].try_into().unwrap()), Some(expected));
    }
}
