//! A client of NBD that does the same, with simple replies.

use super::pump::{BLOCK, Wire, content, wrong};
use client::wire::{command, header, negotiate_simple, simple_reply};
use client::{Stream, parse};
use std::io::Result;

/// Bytes of a reply before its data.
const REPLY_BYTES: usize = 16;

/// See the head of this file.
pub struct NbdClient;

impl NbdClient {
    /// A client of the export that the URI names.
    pub fn connect(uri: &str) -> Result<(Stream, Self)> {
        let (address, export) = parse(uri).map_err(wrong)?;
        let mut stream = Stream::dial(&address)?;
        negotiate_simple(&mut stream, &export)?;
        Ok((stream, Self))
    }
}

impl Wire for NbdClient {
    fn push(&self, out: &mut Vec<u8>, reads: bool, id: u16, block: u64) {
        let kind = if reads { command::READ } else { command::WRITE };
        out.extend(header(kind, 0, id.into(), block * BLOCK as u64, BLOCK as u32));
        if !reads {
            out.extend_from_slice(&content(block));
        }
    }

    fn take(
        &self,
        bytes: &[u8],
        reads: bool,
        block: &dyn Fn(u16) -> Option<u64>,
    ) -> Result<Option<(usize, Option<u16>)>> {
        let len = REPLY_BYTES + if reads { BLOCK } else { 0 };
        let (Some(head), true) = (bytes.first_chunk(), bytes.len() >= len) else {
            return Ok(None);
        };
        let (error, cookie) = simple_reply(head).map_err(wrong)?;
        let id = cookie as u16;
        let Some(block) = block(id).filter(|_| error == 0) else {
            return Err(wrong(format!("request {cookie} ended with {error}")));
        };
        match !reads || bytes[REPLY_BYTES..len] == content(block) {
            true => Ok(Some((len, Some(id)))),
            false => Err(wrong(format!("block {block} holds something else"))),
        }
    }
}
