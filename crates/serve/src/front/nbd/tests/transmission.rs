//! Requests: what passes, what is refused with which error, and what the limits hold back.

use std::collections::BTreeMap;

use super::client::*;
use super::*;

/// The errors answered to `bytes`, 0 for success; requires that the connection stays open.
fn errors(driver: &mut Driver, bytes: &[u8]) -> Vec<u32> {
    driver.out.clear();
    driver.refused = 0;
    driver.feed(bytes);
    assert!(driver.is_open(), "{:?}", driver.seen);
    let errors: Vec<u32> = replies(&driver.out, &BTreeMap::new())
        .iter()
        .map(|reply| match reply {
            Reply::Simple { error, .. } | Reply::Error { error, .. } => *error,
            _ => 0,
        })
        .collect();
    // The driver's own disk fails nothing, so each error is a refusal, and each is told once.
    assert_eq!(driver.refused, errors.iter().filter(|&&error| error != 0).count());
    errors
}

#[test]
fn a_session_reads_what_it_wrote() {
    for structured in [false, true] {
        let mut driver = Driver::opened("data", structured);
        driver.feed(&write(1, 4090, b"hello"));
        driver.feed(&request(CMD_FLAG_FUA, CMD_READ, 2, 4088, 8));
        driver.feed(&request(0, CMD_FLUSH, 3, 0, 0));
        driver.feed(&request(0, CMD_TRIM, 4, 4090, 2));
        driver.feed(&request(0, CMD_READ, 5, 4088, 8));
        let replies = replies(&driver.out, &BTreeMap::from([(2, 8), (5, 8)]));
        let data: Vec<&[u8]> = replies
            .iter()
            .filter_map(|reply| match reply {
                Reply::Data { data, done: true, offset: 4088, .. } => Some(&data[..]),
                Reply::Simple { data, error: 0, .. } if !data.is_empty() => Some(&data[..]),
                _ => None,
            })
            .collect();
        assert_eq!(data, [b"\0\0hello\0", b"\0\0\0\0llo\0"], "structured: {structured}");
        assert_eq!(replies.len(), 5);
        assert_eq!(driver.connection.in_flight(), (0, 0));
    }
}

#[test]
fn kinds_carry_their_flags() {
    let mut driver = Driver::opened("data", true);
    let zeroes = CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO;
    for (flags, command, kind) in [
        (0, CMD_READ, Kind::Read { df: false }),
        (CMD_FLAG_DF, CMD_READ, Kind::Read { df: true }),
        (CMD_FLAG_FUA, CMD_READ, Kind::Read { df: false }),
        (CMD_FLAG_FUA, CMD_TRIM, Kind::Trim { fua: true }),
        (zeroes, CMD_WRITE_ZEROES, Kind::WriteZeroes { fua: true, no_hole: true, fast: true }),
        (CMD_FLAG_FUA, CMD_CACHE, Kind::Cache),
        (CMD_FLAG_REQ_ONE, CMD_BLOCK_STATUS, Kind::BlockStatus { req_one: true }),
    ] {
        driver.seen.clear();
        driver.feed(&request(flags, command, 9, 512, 1024));
        assert_eq!(driver.seen, [Seen::Request { cookie: 9, kind, offset: 512, len: 1024 }]);
    }
    driver.seen.clear();
    driver.feed(&request(CMD_FLAG_FUA, CMD_WRITE, 9, 0, 1));
    driver.feed(b"x");
    let kind = Kind::Write { fua: true };
    assert_eq!(driver.seen, [Seen::Request { cookie: 9, kind, offset: 0, len: 1 }]);
}

#[test]
fn ranges_beyond_the_export_are_refused() {
    let size = 1u64 << 20;
    for structured in [false, true] {
        let mut driver = Driver::opened("data", structured);
        for (command, error) in [
            (CMD_READ, 22),
            (CMD_TRIM, 22),
            (CMD_CACHE, 22),
            (CMD_WRITE_ZEROES, 28),
            (CMD_BLOCK_STATUS, 22),
        ] {
            for (offset, len) in [
                (size, 1),
                (size - 1, 2),
                (0, 0),
                (5, 0),
                (u64::MAX, 1),
                (u64::MAX - 0xffff_fffe, 0xffff_ffff),
                (0, u32::MAX),
            ] {
                let expected = if len == 0 { 22 } else { error };
                let bytes = request(0, command, 1, offset, len);
                assert_eq!(errors(&mut driver, &bytes), [expected], "{command} {offset} {len}");
            }
        }
        assert_eq!(errors(&mut driver, &write(1, size - 1, b"xy")), [28]);
        assert_eq!(errors(&mut driver, &write(1, u64::MAX, b"x")), [28]);
        assert_eq!(errors(&mut driver, &write(1, 0, b"")), [22]);
        assert!(driver.seen.is_empty(), "the driver saw none of it");
        // The stream is still in step.
        assert_eq!(errors(&mut driver, &write(2, size - 1, b"z")), [0]);
        assert_eq!(driver.disk.last(), Some(&b'z'));
    }
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let mut driver = Driver::opened("frozen", false);
    let mut bytes = write(1, 0, &[7; 5000]);
    bytes.extend(request(0, CMD_TRIM, 2, 0, 4096));
    bytes.extend(request(0, CMD_WRITE_ZEROES, 3, 0, 4096));
    bytes.extend(request(0, CMD_FLUSH, 4, 0, 0));
    assert_eq!(errors(&mut driver, &bytes), [1, 1, 1, 0]);
    assert!(driver.disk.iter().all(|&byte| byte == 0));
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    let mut driver = Driver::opened("data", false);
    assert_eq!(errors(&mut driver, &request(0, 8, 1, 0, 4096)), [22]);
    assert_eq!(errors(&mut driver, &request(0, 0xffff, 1, 0, u32::MAX)), [22]);
    assert_eq!(errors(&mut driver, &request(1 << 5, CMD_READ, 1, 0, 1)), [22]);
    assert_eq!(errors(&mut driver, &request(CMD_FLAG_DF, CMD_READ, 1, 0, 1)), [22]);
    assert_eq!(errors(&mut driver, &request(CMD_FLAG_NO_HOLE, CMD_TRIM, 1, 0, 1)), [22]);
    assert_eq!(errors(&mut driver, &request(0, CMD_BLOCK_STATUS, 1, 0, 1)), [22]);
    assert_eq!(errors(&mut driver, &request(0, CMD_FLUSH, 1, 0, 1)), [22]);
    // The payload of a write with unknown flags is not taken for a request.
    let mut bytes = request(0x8000, CMD_WRITE, 1, 0, 28);
    bytes.extend(request(0, CMD_FLUSH, 2, 0, 0));
    assert_eq!(errors(&mut driver, &bytes), [22]);
}

#[test]
fn requests_are_multiples_of_the_minimum_block() {
    let mut driver = Driver::opened("blocks", false);
    assert_eq!(errors(&mut driver, &write(1, 512, &[1; 4096])), [22]);
    assert_eq!(errors(&mut driver, &write(1, 4096, &[1; 512])), [22]);
    assert_eq!(errors(&mut driver, &write(1, 4096, &[1; 4096])), [0]);
}

#[test]
fn a_read_longer_than_a_payload_is_refused() {
    let mut exports = exports();
    exports[0].size_bytes = 1 << 40;
    exports[0].block_max = 1 << 20;
    let mut driver = Driver::with(exports, TlsMode::Off, Limits::default());
    driver.feed(&client_flags(3));
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&go("data", &[]));
    let long = (1 << 20) + 1;
    assert_eq!(errors(&mut driver, &request(0, CMD_READ, 1, 0, long)), [22]);
    assert_eq!(errors(&mut driver, &request(CMD_FLAG_DF, CMD_READ, 1, 0, long)), [75]);
    // No data moves for these: any length in the export will do.
    assert_eq!(errors(&mut driver, &request(0, CMD_TRIM, 1, 0, u32::MAX)), [0]);
    driver.feed(&request(0, CMD_WRITE, 1, 0, long));
    assert_eq!(driver.seen.last(), Some(&Seen::Close(CloseReason::WriteTooLong(long))));
}

#[test]
fn a_disconnect_and_bad_magic_end_the_connection_for_good() {
    let mut driver = Driver::opened("data", false);
    driver.feed(&request(0, CMD_DISC, 1, 0, 0));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::Disconnected)]);
    driver.seen.clear();
    driver.feed(&request(0, CMD_READ, 2, 0, 1));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::Disconnected)]);
    assert!(driver.out.is_empty());

    let mut driver = Driver::opened("data", false);
    let mut bytes = request(0, CMD_READ, 1, 0, 1);
    bytes[0] ^= 1;
    driver.feed(&bytes);
    assert_eq!(driver.seen, [Seen::Close(CloseReason::BadMagic)]);
}

#[test]
fn back_pressure_starts_at_the_number_of_requests() {
    let mut driver = Driver::opened("data", false);
    driver.hold = Some(Vec::new());
    let bytes: Vec<u8> =
        (0..200).flat_map(|cookie| request(0, CMD_READ, cookie, 0, 4096)).collect();
    driver.feed(&bytes);
    assert_eq!(driver.connection.in_flight(), (128, 128 * 4096));
    assert!(!driver.connection.accepts_more(0));
    assert_eq!(driver.step(&bytes), 0);
    let request = driver.hold.as_mut().unwrap().pop().unwrap();
    request.reply_error(&mut driver.out, crate::nbd::Error::Io, "");
    driver.connection.finish(request);
    assert!(driver.connection.accepts_more(0));
    assert_eq!(driver.step(&bytes), REQUEST_HEADER_BYTES);
    assert!(!driver.connection.accepts_more(0));
}

#[test]
fn bytes_in_flight_never_exceed_their_limit() {
    let limits =
        Limits { payload_bytes: 64 << 10, bytes_in_flight: 200 << 10, ..Limits::default() };
    let mut driver = Driver::opened_with("data", false, limits);
    driver.hold = Some(Vec::new());
    let read = request(0, CMD_READ, 1, 0, 64 << 10);
    let mut count = 0;
    while driver.step(&read) > 0 {
        count += 1;
    }
    // A fourth would be 256 KiB; the check of the bound is in the driver.
    assert_eq!(count, 3);
    assert_eq!(driver.connection.in_flight(), (3, 192 << 10));
}

#[test]
fn the_payload_of_an_accepted_write_is_taken_under_back_pressure() {
    let limits = Limits { requests: 1, ..Limits::default() };
    let mut driver = Driver::opened_with("data", false, limits);
    driver.feed(&request(0, CMD_WRITE, 1, 0, 4));
    assert!(!driver.connection.accepts_more(0));
    assert_eq!(driver.connection.payload_left(), 4);
    driver.feed(b"ab");
    assert_eq!(driver.connection.payload_left(), 2);
    driver.feed(b"cd");
    assert_eq!(&driver.disk[..4], b"abcd");
    assert!(driver.connection.accepts_more(0));
}

#[test]
fn refusals_do_not_pile_up_behind_a_client_that_does_not_read() {
    let limits = Limits { unsent_bytes: 1000, ..Limits::default() };
    let mut driver = Driver::opened_with("data", true, limits);
    let bad: Vec<u8> = (0..1000).flat_map(|cookie| request(0, 99, cookie, 0, 0)).collect();
    driver.feed(&bad);
    assert!(driver.out.len() < 1000 + 100, "{} bytes", driver.out.len());
    assert_eq!(driver.step(&bad), 0);
}

#[test]
#[should_panic(expected = "take the payload")]
fn receiving_before_the_payload_is_taken_is_a_broken_driver() {
    let mut driver = Driver::opened("data", false);
    driver.feed(&request(0, CMD_WRITE, 1, 0, 4));
    let _ = driver.connection.receive(Instant(1), b"x", &mut driver.out);
}
