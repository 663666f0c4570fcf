//! The client's side of the wire, written from the protocol and not from our encoder.

use std::collections::BTreeMap;

use crate::nbd::constants::*;

pub(super) fn client_flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().into()
}

/// An option header that claims `len` bytes of data.
pub(super) fn option_header(option: u32, len: u32) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

pub(super) fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = option_header(option, data.len() as u32);
    bytes.extend(data);
    bytes
}

pub(super) fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text);
    bytes
}

/// The data of INFO and GO.
pub(super) fn info_data(name: &str, facts: &[u16]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend((facts.len() as u16).to_be_bytes());
    data.extend(facts.iter().flat_map(|fact| fact.to_be_bytes()));
    data
}

pub(super) fn go(name: &str, facts: &[u16]) -> Vec<u8> {
    option(OPT_GO, &info_data(name, facts))
}

pub(super) fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query.as_bytes())));
    data
}

pub(super) fn set_context(name: &str, queries: &[&str]) -> Vec<u8> {
    option(OPT_SET_META_CONTEXT, &context_data(name, queries))
}

pub(super) fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

pub(super) fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = request(0, CMD_WRITE, cookie, offset, data.len() as u32);
    bytes.extend(data);
    bytes
}

/// Splits the first `count` bytes off.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, rest) = bytes.split_at(count);
    *bytes = rest;
    head
}

fn number(bytes: &mut &[u8], count: usize) -> u64 {
    take(bytes, count).iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte))
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct OptionReply {
    pub(super) option: u32,
    pub(super) code: u32,
    pub(super) data: Vec<u8>,
}

/// Takes one option reply off the front.
pub(super) fn option_reply(bytes: &mut &[u8]) -> OptionReply {
    assert_eq!(number(bytes, 8), OPTION_REPLY_MAGIC);
    let (option, code) = (number(bytes, 4) as u32, number(bytes, 4) as u32);
    let len = number(bytes, 4) as usize;
    let data = take(bytes, len).to_vec();
    if code >> 31 == 1 {
        assert!(data.len() <= STRING_BYTES_MAX, "an error message of {} bytes", data.len());
        assert!(std::str::from_utf8(&data).is_ok());
    }
    OptionReply { option, code, data }
}

/// All of `bytes` as option replies.
pub(super) fn option_replies(mut bytes: &[u8]) -> Vec<OptionReply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        replies.push(option_reply(&mut bytes));
    }
    replies
}

/// One simple reply or one chunk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Reply {
    Simple { cookie: u64, error: u32, data: Vec<u8> },
    None { cookie: u64 },
    Data { cookie: u64, done: bool, offset: u64, data: Vec<u8> },
    Hole { cookie: u64, done: bool, offset: u64, len: u32 },
    Extents { cookie: u64, context: u32, extents: Vec<(u32, u32)> },
    Error { cookie: u64, error: u32, message: String, offset: Option<u64> },
}

/// All of `bytes` as replies. `reads` has the lengths of the reads, which simple replies leave out.
pub(super) fn replies(mut bytes: &[u8], reads: &BTreeMap<u64, u32>) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        replies.push(match number(&mut bytes, 4) as u32 {
            SIMPLE_REPLY_MAGIC => {
                let error = number(&mut bytes, 4) as u32;
                let cookie = number(&mut bytes, 8);
                let len = if error == 0 { reads.get(&cookie).copied().unwrap_or(0) } else { 0 };
                Reply::Simple { cookie, error, data: take(&mut bytes, len as usize).to_vec() }
            }
            STRUCTURED_REPLY_MAGIC => chunk(&mut bytes),
            other => panic!("{other:#x} starts no reply"),
        });
    }
    replies
}

fn chunk(bytes: &mut &[u8]) -> Reply {
    let flags = number(bytes, 2) as u16;
    let kind = number(bytes, 2) as u16;
    let cookie = number(bytes, 8);
    let len = number(bytes, 4) as usize;
    let mut body = take(bytes, len);
    let done = flags & 1 == 1;
    assert_eq!(flags & !1, 0, "unknown chunk flags");
    let body = &mut body;
    let reply = match kind {
        CHUNK_NONE => Reply::None { cookie },
        CHUNK_OFFSET_DATA => {
            let offset = number(body, 8);
            assert!(!body.is_empty());
            Reply::Data { cookie, done, offset, data: std::mem::take(body).to_vec() }
        }
        CHUNK_OFFSET_HOLE => {
            let offset = number(body, 8);
            Reply::Hole { cookie, done, offset, len: number(body, 4) as u32 }
        }
        CHUNK_BLOCK_STATUS => {
            let context = number(body, 4) as u32;
            let mut extents = Vec::new();
            while !body.is_empty() {
                extents.push((number(body, 4) as u32, number(body, 4) as u32));
            }
            assert!(!extents.is_empty() && extents.iter().all(|&(len, _)| len > 0));
            Reply::Extents { cookie, context, extents }
        }
        CHUNK_ERROR | CHUNK_ERROR_OFFSET => {
            let error = number(body, 4) as u32;
            assert_ne!(error, 0);
            let message_len = number(body, 2) as usize;
            assert!(message_len <= STRING_BYTES_MAX);
            let message = String::from_utf8(take(body, message_len).to_vec()).unwrap();
            let offset = (kind == CHUNK_ERROR_OFFSET).then(|| number(body, 8));
            Reply::Error { cookie, error, message, offset }
        }
        other => panic!("unknown chunk {other}"),
    };
    assert!(body.is_empty(), "the chunk is longer than its fields");
    assert!(done || matches!(reply, Reply::Data { .. } | Reply::Hole { .. }));
    reply
}
