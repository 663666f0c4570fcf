//! SDF's block layer: whole raw blocks by a 128-bit ID instead of a place. It decides where a block
//! goes and remembers where it went; the raw units below do the rest.
//!
//! The low half of an ID, its *number*, names the block: no two blocks have one number. The high half
//! is the owner's *key*, which is kept with the block and must be right to read or delete it. A number
//! has its block on lane `number % lanes`, so consecutive numbers go to the lanes in turn.
//!
//! A driver gives it what the host asks, carries out each [`Step`] as a request to the raw units, and
//! tells it with [`Ids::ended`] how that went. Steps name what must be durable before its end is told:
//! so a put, and a delete, that was answered is durable.
//!
//! Invariants:
//! - The ID of a block is its tag, programmed with each of its pages, so a mount finds every ID in the
//!   tags of the raw units. Nothing else is stored, and a block that is not whole is not found.
//! - A block is there from the answer to its put until it is asked to be deleted. A number is put again
//!   only after its delete was answered: two blocks of one number never exist, not even on flash.
//! - Raw blocks are never overwritten: a delete is an explicit erase, by `RawSettings::erase` at once
//!   ("now") or when the lane is idle ("background"). A put waits only if no raw block of its lane is
//!   erased and an erase of one is under way; else it is refused as full at once.
//! - What the owner of the raw units erases or writes beside this layer is believed to the units: each
//!   use of an ID looks at the tag of its raw block first.

use super::{RawUnits, WriteUnit};
use flash::{Lba, RequestError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

/// Names a block: see the head of this file. Written as 32 hex digits.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Id(pub u128);

impl Id {
    /// Of a key and a number.
    pub fn new(key: u64, number: u64) -> Self {
        Self(u128::from(key) << 64 | u128::from(number))
    }

    /// The low half: names the block.
    pub fn number(self) -> u64 {
        self.0 as u64
    }

    /// The high half: the owner's.
    pub fn key(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        value.map(Self).ok_or(IdError::BadId)
    }
}

/// Why an ID is not put, read or deleted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IdError {
    /// No 32 hex digits.
    BadId,
    /// Writes of these units fill pages, not raw blocks.
    PageWrites,
    /// The units are served to be read only.
    ReadOnly,
    /// The number is taken, by a block of this key.
    Exists {
        /// Of the block that is there.
        key: u64,
    },
    /// A put or a delete of the number is under way.
    Busy,
    /// No such block.
    Unknown,
    /// The number is that of a block with another key.
    OtherKey,
    /// A put is of exactly so many bytes.
    WrongSize {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// A read starts and ends at multiples of the granule, within the block.
    BadRange {
        /// Bytes of a granule.
        granule_bytes: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// Every raw block of the lane is taken, and none is being erased.
    Full {
        /// The lane.
        lane: u32,
        /// All lanes.
        lanes: u32,
        /// Raw blocks of one.
        raw_blocks: u32,
    },
    /// The raw units refused, or the medium failed.
    Units(RequestError),
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadId => write!(
                f,
                "an ID is 32 hex digits, key then number, for example \
                 00000000000000070000000000000001"
            ),
            Self::PageWrites => write!(
                f,
                "these raw units are written by pages: IDs name whole raw blocks: serve them with \
                 raw.write = \"block\""
            ),
            Self::ReadOnly => {
                write!(f, "the units are read-only: serve them without read_only to change them")
            }
            Self::Exists { key } => write!(
                f,
                "the number is taken, by a block with the key {key:016x}: blocks are written once: \
                 delete that one first, or take another number"
            ),
            Self::Busy => {
                write!(
                    f,
                    "a put or delete of this number is under way: ask again when it has ended"
                )
            }
            Self::Unknown => write!(f, "no such block: GET /blocks lists those there are"),
            Self::OtherKey => write!(
                f,
                "the block of this number has another key (the first 16 digits): GET /blocks tells it"
            ),
            Self::WrongSize { block_bytes } => {
                write!(f, "a block is exactly {block_bytes} bytes: pad what is shorter")
            }
            Self::BadRange { granule_bytes, block_bytes } => write!(
                f,
                "a read starts and ends at multiples of {granule_bytes} bytes, within the \
                 {block_bytes} bytes of a block: read more and drop what is not wanted"
            ),
            Self::Full { lane, lanes, raw_blocks } => write!(
                f,
                "unit {lane} is full: each of its {raw_blocks} raw blocks is taken: delete a block \
                 whose number leaves {lane} when divided by {lanes}"
            ),
            Self::Units(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for IdError {}

/// What the driver does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Tag the raw block at `lba` with `id` and write the put's data to it, with FUA.
    Write {
        /// Of the put.
        token: u64,
        /// The tag.
        id: Id,
        /// First logical block.
        lba: Lba,
        /// How many.
        blocks: u32,
    },
    /// Read these logical blocks.
    Read {
        /// Of the get.
        token: u64,
        /// First logical block.
        lba: Lba,
        /// How many.
        blocks: u32,
    },
    /// Trim the raw block at `lba`, with FUA.
    Erase {
        /// Of the delete.
        token: u64,
        /// First logical block.
        lba: Lba,
        /// How many.
        blocks: u32,
    },
    /// Answer the host.
    Reply {
        /// What it asked.
        token: u64,
        /// How that ended.
        result: Result<(), IdError>,
    },
}

/// A block and where it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Placed {
    /// Its ID.
    pub id: Id,
    /// The lane.
    pub lane: u32,
    /// The raw block within that.
    pub raw_block: u32,
}

/// What was asked and how it went, since the mount.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct IdCounts {
    /// Blocks written.
    pub puts: u64,
    /// Puts that waited for an erase.
    pub puts_waited: u64,
    /// Reads.
    pub gets: u64,
    /// Blocks deleted.
    pub deletes: u64,
    /// Refused or failed.
    pub errors: u64,
}

/// How far a block is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum At {
    /// Its put waits for an erase.
    Waiting,
    /// Its put is at this raw block, counted over the device.
    Putting(u32),
    Here(u32),
    Deleting(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    at: At,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verb {
    Put,
    Get,
    Delete,
}

/// What is kept of a lane.
#[derive(Clone, Debug, Default)]
struct LaneIds {
    /// Where the search for an erased raw block goes on.
    next: u32,
    /// Raw blocks of puts under way: the units may not have heard of them yet.
    taken: BTreeSet<u32>,
    /// Deletes under way.
    deletes: u32,
    /// Tokens of puts that wait for one of those, in order.
    waiting: VecDeque<u64>,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Ids {
    /// By number.
    blocks: BTreeMap<u64, Entry>,
    /// By token.
    asked: BTreeMap<u64, (Id, Verb)>,
    lanes: Vec<LaneIds>,
    steps: VecDeque<Step>,
    counts: IdCounts,
}

impl Ids {
    /// The IDs on units that are mounted.
    ///
    /// # Errors
    /// The units are written by pages.
    pub fn mounted(units: &RawUnits) -> Result<Self, IdError> {
        if units.settings.write != WriteUnit::Block {
            return Err(IdError::PageWrites);
        }
        let shape = units.lanes();
        let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
        let mut blocks = BTreeMap::new();
        for (lba, block) in units.written().filter(|(_, block)| block.state == "full") {
            let Some(id) = block.tag.map(Id) else { continue };
            // Two of a number are none of ours; the later write is what its owner knows of.
            let sequence = newest.entry(id.number()).or_default();
            if block.sequence > *sequence {
                *sequence = block.sequence;
                let at = At::Here(lba.0 / shape.slots);
                blocks.insert(id.number(), Entry { key: id.key(), at });
            }
        }
        Ok(Self {
            blocks,
            asked: BTreeMap::new(),
            lanes: vec![LaneIds::default(); shape.lanes as usize],
            steps: VecDeque::new(),
            counts: IdCounts::default(),
        })
    }

    /// The host wants to write the block `id`. `token` names what it asked, once at a time.
    pub fn put(&mut self, units: &RawUnits, token: u64, id: Id) {
        self.ask(token, id, Verb::Put);
        let taken = match self.look(units, id.number()) {
            _ if units.settings.read_only => Some(IdError::ReadOnly),
            None => None,
            Some(Entry { key, at: At::Here(_) }) => Some(IdError::Exists { key }),
            Some(_) => Some(IdError::Busy),
        };
        if let Some(error) = taken {
            return self.reply(token, Err(error));
        }
        self.blocks.insert(id.number(), Entry { key: id.key(), at: At::Waiting });
        self.lane_mut(id).waiting.push_back(token);
        let lane = self.lane_of(id);
        self.place_waiting(units, lane);
        if self.blocks.get(&id.number()).is_some_and(|entry| entry.at == At::Waiting) {
            self.counts.puts_waited += 1;
        }
    }

    /// The host wants `blocks` logical blocks from `first` of the block `id`.
    pub fn get(&mut self, units: &RawUnits, token: u64, id: Id, first: u32, blocks: u32) {
        self.ask(token, id, Verb::Get);
        let (slots, granule) = (units.lanes().slots, units.settings.read_granule);
        let end = first.checked_add(blocks).filter(|&end| blocks > 0 && end <= slots);
        let aligned = first.is_multiple_of(granule) && blocks.is_multiple_of(granule);
        if end.is_none() || !aligned {
            return self.reply(token, Err(bad_range(units)));
        }
        match self.find(units, id) {
            Ok(raw) => {
                let lba = Lba(raw * slots + first);
                self.steps.push_back(Step::Read { token, lba, blocks });
            }
            Err(error) => self.reply(token, Err(error)),
        }
    }

    /// The host wants the block `id` gone.
    pub fn delete(&mut self, units: &RawUnits, token: u64, id: Id) {
        self.ask(token, id, Verb::Delete);
        let found = match self.find(units, id) {
            Ok(_) if units.settings.read_only => Err(IdError::ReadOnly),
            found => found,
        };
        let raw = match found {
            Ok(raw) => raw,
            Err(error) => return self.reply(token, Err(error)),
        };
        self.set(id, At::Deleting(raw));
        self.lane_mut(id).deletes += 1;
        let blocks = units.lanes().slots;
        self.steps.push_back(Step::Erase { token, lba: Lba(raw * blocks), blocks });
    }

    /// The request of a step ended.
    ///
    /// # Panics
    /// If no step of this token is under way.
    pub fn ended(&mut self, units: &RawUnits, token: u64, result: Result<(), RequestError>) {
        let (id, verb) = *self.asked.get(&token).expect("a step ends once");
        let at = self.blocks.get(&id.number()).map(|entry| entry.at);
        match (verb, at) {
            (Verb::Put, Some(At::Putting(raw))) => {
                self.lane_mut(id).taken.remove(&raw);
                match result {
                    Ok(()) => self.set(id, At::Here(raw)),
                    Err(_) => drop(self.blocks.remove(&id.number())),
                }
            }
            (Verb::Delete, Some(At::Deleting(raw))) => {
                self.lane_mut(id).deletes -= 1;
                match result {
                    Ok(()) => drop(self.blocks.remove(&id.number())),
                    // Whether it is still whole, the next look at its tag tells.
                    Err(_) => self.set(id, At::Here(raw)),
                }
            }
            (Verb::Put | Verb::Delete, at) => unreachable!("{verb:?} of {id} ended at {at:?}"),
            (Verb::Get, _) => {}
        }
        let gone = verb == Verb::Get && result == Err(RequestError::NotWritten);
        let error = |error| if gone { IdError::Unknown } else { IdError::Units(error) };
        self.reply(token, result.map_err(error));
        let lane = self.lane_of(id);
        self.place_waiting(units, lane);
    }

    /// What to do next; `None` until something is asked or ends.
    pub fn poll(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }

    /// At most `count` blocks that are there, by number, of those after `after`.
    pub fn list(&self, units: &RawUnits, after: Option<u64>, count: usize) -> Vec<Placed> {
        let from = match after {
            None => std::ops::Bound::Unbounded,
            Some(number) => std::ops::Bound::Excluded(number),
        };
        let raw_blocks = units.lanes().raw_blocks;
        let blocks = self.blocks.range((from, std::ops::Bound::Unbounded));
        let placed = blocks.filter_map(|(&number, entry)| {
            let At::Here(raw) = entry.at else { return None };
            let id = Id::new(entry.key, number);
            let (lane, raw_block) = (raw / raw_blocks, raw % raw_blocks);
            holds(units, raw, id).then_some(Placed { id, lane, raw_block })
        });
        placed.take(count).collect()
    }

    /// What was asked and how it went.
    pub fn counts(&self) -> IdCounts {
        self.counts
    }

    /// The lane that holds the block of an ID.
    pub fn lane_of(&self, id: Id) -> u32 {
        (id.number() % self.lanes.len() as u64) as u32
    }

    fn ask(&mut self, token: u64, id: Id, verb: Verb) {
        let before = self.asked.insert(token, (id, verb));
        assert!(before.is_none(), "token {token} is in use");
    }

    fn reply(&mut self, token: u64, result: Result<(), IdError>) {
        let (_, verb) = self.asked.remove(&token).expect("what is asked is answered once");
        *match (result, verb) {
            (Err(_), _) => &mut self.counts.errors,
            (Ok(()), Verb::Put) => &mut self.counts.puts,
            (Ok(()), Verb::Get) => &mut self.counts.gets,
            (Ok(()), Verb::Delete) => &mut self.counts.deletes,
        } += 1;
        self.steps.push_back(Step::Reply { token, result });
    }

    fn lane_mut(&mut self, id: Id) -> &mut LaneIds {
        let lane = self.lane_of(id);
        &mut self.lanes[lane as usize]
    }

    fn set(&mut self, id: Id, at: At) {
        self.blocks.insert(id.number(), Entry { key: id.key(), at });
    }

    /// What is known of a number. Forgets a block that somebody erased beside this layer.
    fn look(&mut self, units: &RawUnits, number: u64) -> Option<Entry> {
        let entry = *self.blocks.get(&number)?;
        if let At::Here(raw) = entry.at
            && !holds(units, raw, Id::new(entry.key, number))
        {
            self.blocks.remove(&number);
            return None;
        }
        Some(entry)
    }

    /// The raw block that holds `id`.
    fn find(&mut self, units: &RawUnits, id: Id) -> Result<u32, IdError> {
        match self.look(units, id.number()) {
            None | Some(Entry { at: At::Waiting | At::Putting(_), .. }) => Err(IdError::Unknown),
            Some(Entry { key, .. }) if key != id.key() => Err(IdError::OtherKey),
            // Not unknown: until the delete is durable, a power cut would bring it back.
            Some(Entry { at: At::Deleting(_), .. }) => Err(IdError::Busy),
            Some(Entry { at: At::Here(raw), .. }) => Ok(raw),
        }
    }

    /// Places the puts that wait on `lane`, in order, as far as there are erased raw blocks. If none
    /// can come any more, refuses the rest.
    fn place_waiting(&mut self, units: &RawUnits, lane: u32) {
        while let Some(&token) = self.lanes[lane as usize].waiting.front() {
            let (id, _) = self.asked[&token];
            let Some(raw) = self.take_erased(units, lane) else {
                if self.lanes[lane as usize].deletes > 0 {
                    return;
                }
                self.lanes[lane as usize].waiting.pop_front();
                self.blocks.remove(&id.number());
                self.reply(token, Err(full(units, lane)));
                continue;
            };
            self.lanes[lane as usize].waiting.pop_front();
            self.set(id, At::Putting(raw));
            let blocks = units.lanes().slots;
            self.steps.push_back(Step::Write { token, id, lba: Lba(raw * blocks), blocks });
        }
    }

    /// Takes an erased raw block of `lane`, counted over the device. Looks at each at most once: that
    /// is little beside writing one.
    fn take_erased(&mut self, units: &RawUnits, lane: u32) -> Option<u32> {
        let shape = units.lanes();
        let entry = &mut self.lanes[lane as usize];
        for step in 0..shape.raw_blocks {
            let index = (entry.next + step) % shape.raw_blocks;
            let raw = lane * shape.raw_blocks + index;
            let block = units.raw_block(Lba(raw * shape.slots));
            let erased = block.is_some_and(|block| block.state == "erased");
            if erased && entry.taken.insert(raw) {
                entry.next = index + 1;
                return Some(raw);
            }
        }
        None
    }
}

/// True if the raw block is whole and has the tag `id`.
fn holds(units: &RawUnits, raw: u32, id: Id) -> bool {
    let block = units.raw_block(Lba(raw * units.lanes().slots));
    block.is_some_and(|block| block.state == "full" && block.tag == Some(id.0))
}

fn full(units: &RawUnits, lane: u32) -> IdError {
    let shape = units.lanes();
    IdError::Full { lane, lanes: shape.lanes, raw_blocks: shape.raw_blocks }
}

fn bad_range(units: &RawUnits) -> IdError {
    let bytes = |blocks: u32| u64::from(blocks) * flash::BLOCK_BYTES as u64;
    IdError::BadRange {
        granule_bytes: bytes(units.settings.read_granule),
        block_bytes: bytes(units.lanes().slots),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_32_hex_digits_of_which_the_last_16_are_its_number() {
        let id = Id::new(0xb10c, 0x1f);
        assert_eq!(id.to_string(), "000000000000b10c000000000000001f");
        assert_eq!("000000000000B10C000000000000001F".parse(), Ok(id));
        assert_eq!((id.key(), id.number()), (0xb10c, 0x1f));
        let long = "0".repeat(33);
        for bad in [
            "",
            "1f",
            "+0000000000000000000000000000001",
            "g0000000000000000000000000000001",
            &long,
        ] {
            assert_eq!(bad.parse::<Id>(), Err(IdError::BadId), "{bad}");
        }
    }
}
