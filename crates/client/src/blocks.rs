//! Blocks by ID: whole raw blocks that the server places on its units.

use crate::Error;
use crate::http::{self, Place};
use serde::Deserialize;
use std::time::Duration;

/// How long the server may take: a put may wait for an erase.
const PATIENCE: Duration = Duration::from_secs(180);

/// The blocks of a server of raw units. An ID is 128 bits: the low half is the block's number, which no
/// other block has, and chooses its unit (`number % units`, so consecutive numbers take turns); the
/// high half is a key of the owner's, kept with it.
///
/// ```no_run
/// let control = std::path::Path::new("weir-data/control.sock");
/// let blocks = client::Blocks::open(control)?;
/// let id = 7 << 64 | 1;
/// blocks.put(id, &vec![42; blocks.block_bytes() as usize])?;
/// let mut granule = vec![0; blocks.granule_bytes() as usize];
/// blocks.get(id, 0, &mut granule)?;
/// blocks.delete(id)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Blocks {
    place: Place,
    block_bytes: u64,
    granule_bytes: u64,
}

/// A block that is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Block {
    /// Its ID.
    pub id: u128,
    /// The unit that holds it.
    pub unit: u32,
    /// The raw block within that.
    pub raw_block: u32,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    unit: u32,
    raw_block: u32,
}

#[derive(Deserialize)]
struct List {
    blocks: Vec<Listed>,
    next: Option<String>,
    block_bytes: u64,
    granule_bytes: u64,
}

impl Blocks {
    /// The blocks of the server whose HTTP API is at `place`: its control socket, or an address with the
    /// token ([`Place::with_token`]).
    pub fn open(place: impl Into<Place>) -> Result<Self, Error> {
        let mut blocks = Self { place: place.into(), block_bytes: 0, granule_bytes: 0 };
        let list = blocks.page("/blocks?limit=1", PATIENCE)?;
        (blocks.block_bytes, blocks.granule_bytes) = (list.block_bytes, list.granule_bytes);
        Ok(blocks)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Reads start and end at multiples of this.
    pub fn granule_bytes(&self) -> u64 {
        self.granule_bytes
    }

    /// Writes a block: durable when this returns. `bytes` is a whole block, and its number is free.
    pub fn put(&self, id: u128, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 != self.block_bytes {
            let (wrong, right) = (bytes.len(), self.block_bytes);
            return Err(Error::Usage(format!("{wrong} bytes: a block is exactly {right} bytes")));
        }
        self.ask("PUT", &path(id), "", bytes).map(|_| ())
    }

    /// Fills `into` with what the block holds at `offset`: whole granules.
    pub fn get(&self, id: u128, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if into.is_empty() {
            return Ok(());
        }
        let Some(last) = offset.checked_add(into.len() as u64 - 1) else {
            return Err(Error::Usage(format!("offset {offset}: beyond any block")));
        };
        let range = format!("Range: bytes={offset}-{last}\r\n");
        let body = self.ask("GET", &path(id), &range, &[])?;
        if body.len() != into.len() {
            // A range that goes on beyond the block is cut there.
            let (wanted, came) = (into.len(), body.len());
            return Err(Error::Usage(format!("{wanted} bytes at {offset}: the block has {came}")));
        }
        into.copy_from_slice(&body);
        Ok(())
    }

    /// Erases a block: it stays deleted when this returns.
    pub fn delete(&self, id: u128) -> Result<(), Error> {
        self.ask("DELETE", &path(id), "", &[]).map(|_| ())
    }

    /// Where the block of this number is; `None` if there is none.
    pub fn find(&self, number: u64) -> Result<Option<Block>, Error> {
        self.find_within(number, PATIENCE)
    }

    /// The same of a server that has so much time to answer.
    pub fn find_within(&self, number: u64, patience: Duration) -> Result<Option<Block>, Error> {
        let after = number
            .checked_sub(1)
            .map_or(String::new(), |before| format!("&after={:032x}", u128::from(before)));
        let page = self.page(&format!("/blocks?limit=1{after}"), patience)?;
        let block = page.blocks.into_iter().next().map(block_of).transpose()?;
        Ok(block.filter(|block| block.id as u64 == number))
    }

    /// Every block, by number.
    pub fn list(&self) -> Result<Vec<Block>, Error> {
        let mut blocks = Vec::new();
        let mut after = String::new();
        loop {
            let page = self.page(&format!("/blocks?limit=10000{after}"), PATIENCE)?;
            for listed in page.blocks {
                blocks.push(block_of(listed)?);
            }
            match page.next {
                Some(next) => after = format!("&after={next}"),
                None => return Ok(blocks),
            }
        }
    }

    fn page(&self, path: &str, patience: Duration) -> Result<List, Error> {
        let body = self.ask_within(("GET", path), "", &[], patience)?;
        serde_json::from_slice(&body)
            .map_err(|error| Error::Protocol(format!("{}{path}: {error}", self.place)))
    }

    fn ask(&self, method: &str, path: &str, head: &str, body: &[u8]) -> Result<Vec<u8>, Error> {
        self.ask_within((method, path), head, body, PATIENCE)
    }

    fn ask_within(
        &self,
        what: (&str, &str),
        head: &str,
        body: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>, Error> {
        let answer = http::request(&self.place, what, head, body, patience)
            .map_err(|error| Error::Io(std::io::Error::other(error)))?;
        match answer.status {
            200..=299 => Ok(answer.body),
            code => Err(Error::Refused { code: code.into(), message: answer.reason() }),
        }
    }
}

fn block_of(listed: Listed) -> Result<Block, Error> {
    let Listed { id, unit, raw_block } = listed;
    let id = u128::from_str_radix(&id, 16)
        .map_err(|_| Error::Protocol(format!("the server lists the ID {id}")))?;
    Ok(Block { id, unit, raw_block })
}

fn path(id: u128) -> String {
    format!("/blocks/{id:032x}")
}
