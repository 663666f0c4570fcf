//! Replies: golden bytes, and the promise that their size is the truth.

use std::collections::BTreeMap;

use flash::{Random, RequestError};

use super::client::*;
use super::*;
use crate::nbd::Error;

/// The request that `bytes` make on the export "data".
fn accept(structured: bool, bytes: &[u8]) -> Request {
    let mut driver = Driver::opened("data", structured);
    driver.hold = Some(Vec::new());
    driver.feed(bytes);
    driver.hold.unwrap().pop().expect("one request")
}

fn parse(out: &[u8]) -> Vec<Reply> {
    replies(out, &BTreeMap::new())
}

#[test]
fn golden_bytes_of_replies() {
    let read = request(0, CMD_READ, 0x0102_0304_0506_0708, 0x1000, 0x2000);
    let mut out = Vec::new();
    accept(false, &read).reply_data(&mut out);
    assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");

    out.clear();
    accept(true, &read).reply_data(&mut out);
    let expected = b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\x20\x08\
                     \0\0\0\0\0\0\x10\0";
    assert_eq!(out, expected);

    out.clear();
    accept(true, &read).reply_error_at(&mut out, Error::Io, "bad", 0x1800);
    let expected = b"\x66\x8e\x33\xef\0\x01\x80\x02\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x11\
                     \0\0\0\x05\0\x03bad\0\0\0\0\0\0\x18\0";
    assert_eq!(out, expected);

    out.clear();
    let status = request(0, CMD_BLOCK_STATUS, 1, 0, 0x2000);
    let hole = Extent { len: 4096, hole: true, zero: true };
    let data = Extent { len: 4096, hole: false, zero: false };
    accept(true, &status).reply_extents(&mut out, &[hole, data]);
    let expected = b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x01\0\0\0\x14\
                     \0\0\0\x01\0\0\x10\0\0\0\0\x03\0\0\x10\0\0\0\0\0";
    assert_eq!(out, expected);
}

#[test]
fn errors_are_simple_or_carry_a_bounded_message() {
    let flush = request(0, CMD_FLUSH, 5, 0, 0);
    let mut out = Vec::new();
    accept(false, &flush).reply_error(&mut out, Error::Io, "unseen");
    assert_eq!(parse(&out), [Reply::Simple { cookie: 5, error: 5, data: vec![] }]);

    out.clear();
    accept(true, &flush).reply_error(&mut out, Error::Io, &"é".repeat(9999));
    let [Reply::Error { message, error: 5, offset: None, .. }] = &parse(&out)[..] else {
        panic!("{out:?}")
    };
    assert_eq!(message.len(), MESSAGE_BYTES_MAX);

    for (error, number) in [
        (RequestError::OutOfRange, 22),
        (RequestError::NoSpace, 28),
        (RequestError::Unreadable, 5),
        (RequestError::Failed, 5),
        (RequestError::ShuttingDown, 108),
        (RequestError::NotErased, 22),
        (RequestError::ProgramFailed, 5),
    ] {
        out.clear();
        accept(false, &flush).reply_failed(&mut out, error);
        assert_eq!(parse(&out), [Reply::Simple { cookie: 5, error: number, data: vec![] }]);
    }
}

#[test]
fn an_error_offset_outside_the_request_is_not_told() {
    let read = request(0, CMD_READ, 5, 4096, 4096);
    for (offset, told) in [(4095, None), (4096, Some(4096)), (8191, Some(8191)), (8192, None)] {
        let mut out = Vec::new();
        accept(true, &read).reply_error_at(&mut out, Error::Io, "", offset);
        let [Reply::Error { offset: found, .. }] = parse(&out)[..] else { panic!("{out:?}") };
        assert_eq!(found, told);
    }
    let mut out = Vec::new();
    accept(true, &request(0, CMD_FLUSH, 5, 0, 0)).reply_error_at(&mut out, Error::Io, "", 0);
    assert!(matches!(parse(&out)[..], [Reply::Error { offset: None, .. }]));
}

#[test]
fn sparse_replies_are_for_clients_that_can_take_them() {
    assert!(accept(false, &request(0, CMD_READ, 1, 0, 8)).reply_sparse().is_none());
    assert!(accept(true, &request(CMD_FLAG_DF, CMD_READ, 1, 0, 8)).reply_sparse().is_none());
    let mut reply = accept(true, &request(0, CMD_READ, 1, 8, 24)).reply_sparse().unwrap();
    let mut out = Vec::new();
    reply.hole(&mut out, 8);
    reply.data(&mut out, 12);
    out.extend(b"twelve bytes");
    assert_eq!(reply.left(), 4);
    reply.fail(&mut out, Error::Io, "lost");
    let expected = [
        Reply::Hole { cookie: 1, done: false, offset: 8, len: 8 },
        Reply::Data { cookie: 1, done: false, offset: 16, data: b"twelve bytes".into() },
        Reply::Error { cookie: 1, error: 5, message: "lost".into(), offset: None },
    ];
    assert_eq!(parse(&out), expected);
}

#[test]
#[should_panic(expected = "chunks stay within the request")]
fn a_chunk_beyond_the_request_is_a_broken_driver() {
    let mut reply = accept(true, &request(0, CMD_READ, 1, 0, 8)).reply_sparse().unwrap();
    reply.hole(&mut Vec::new(), 9);
}

#[test]
fn extents_are_merged_and_end_with_the_request() {
    let extents = |len: u32, flags: u16, extents: &[(u64, bool)]| {
        let status = request(flags, CMD_BLOCK_STATUS, 1, 0, len);
        let extents: Vec<Extent> =
            extents.iter().map(|&(len, hole)| Extent { len, hole, zero: hole }).collect();
        let mut out = Vec::new();
        accept(true, &status).reply_extents(&mut out, &extents);
        let [Reply::Extents { context: CONTEXT_ID, extents, .. }] = &parse(&out)[..] else {
            panic!("{out:?}")
        };
        extents.clone()
    };
    assert_eq!(
        extents(100, 0, &[(40, true), (20, true), (0, false), (90, false)]),
        [(60, 3), (40, 0)]
    );
    assert_eq!(extents(100, 0, &[(u64::MAX, true)]), [(100, 3)]);
    assert_eq!(extents(100, 0, &[(30, true)]), [(30, 3)]);
    assert_eq!(extents(100, 0, &[]), [(100, 0)]);
    assert_eq!(extents(100, 0, &[(0, true)]), [(100, 0)]);
    let one = CMD_FLAG_REQ_ONE;
    assert_eq!(extents(100, one, &[(30, true), (10, true), (60, false)]), [(40, 3)]);
    let many: Vec<(u64, bool)> = (0..5000).map(|index| (1, index % 2 == 0)).collect();
    assert_eq!(extents(100_000, 0, &many).len(), EXTENTS_MAX);
}

#[test]
fn what_a_random_reply_encodes_is_what_a_client_decodes() {
    let seed = 0x4e42_0001;
    let mut random = Random::new(seed);
    for round in 0..500 {
        let len = 1 + random.below(1 << 16) as u32;
        let offset = random.below((1 << 20) - u64::from(len));
        let request = accept(true, &request(0, CMD_READ, round, offset, len));
        let mut reply = request.reply_sparse().unwrap();
        let (mut out, mut expected) = (Vec::new(), vec![1u8; len as usize]);
        while reply.left() > 0 {
            let start = (len - reply.left()) as usize;
            let part = 1 + random.below(u64::from(reply.left())) as usize;
            let byte = if random.chance(0.5) { 0 } else { random.next_u64() as u8 };
            expected[start..start + part].fill(byte);
            if byte == 0 {
                reply.hole(&mut out, part as u32);
            } else {
                reply.data(&mut out, part as u32);
                out.extend(&expected[start..start + part]);
            }
        }
        let chunks = parse(&out);
        let mut found = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            let (at, done) = match chunk {
                Reply::Data { offset, done, data, .. } => {
                    found.extend(data);
                    (offset + data.len() as u64, done)
                }
                Reply::Hole { offset, done, len, .. } => {
                    found.resize(found.len() + *len as usize, 0);
                    (offset + u64::from(*len), done)
                }
                other => panic!("seed {seed:#x} round {round}: {other:?}"),
            };
            assert_eq!(at, offset + found.len() as u64, "seed {seed:#x} round {round}");
            assert_eq!(*done, index + 1 == chunks.len(), "seed {seed:#x} round {round}");
        }
        assert!(found == expected, "seed {seed:#x} round {round}");
    }
}
