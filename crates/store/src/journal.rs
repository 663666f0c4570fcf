//! The journal: records one after the other in one of two areas. When an area is full, all that there is goes to
//! the other one, and is used from the moment at which it is durable as a whole.

use crate::api::{BLOCK_BYTES, Error, Volume};
use crate::layout::{JOURNAL, Layout};
use crate::record::{self, State};
use crate::tail::{self, PAYLOAD, Tail};

/// The end of the journal.
pub struct Journal {
    area: u64,
    tail: Tail,
}

/// What was found on a volume.
pub struct Found {
    /// The state; an empty one if there was none.
    pub state: State,
    /// The area that it lies in.
    pub area: u64,
    /// The newest stamp of any block.
    pub newest: u64,
}

/// Blocks read at a time.
const READ_BLOCKS: u64 = 64;

impl Journal {
    /// The newest whole state on the volume.
    ///
    /// # Errors
    /// A block of it is missing or bent for which a later one vouches, or that no cut leaves so: nothing can be said
    /// of what the store holds then.
    pub fn find(volume: &mut dyn Volume, layout: &Layout) -> Result<Found, Error> {
        let areas = [read_area(volume, layout, 0)?, read_area(volume, layout, 1)?];
        let mut found = Found {
            state: State::default(),
            area: 1,
            newest: areas.iter().map(Area::newest).max().unwrap_or(0),
        };
        let mut whole = None;
        for (at, area) in (0..).zip(&areas) {
            if whole.is_some_and(|stamp| stamp > area.stamp()) {
                continue;
            }
            if let Some(state) = record::replay(&area.text)? {
                whole = Some(area.stamp());
                (found.state, found.area) = (state, at);
            }
        }
        // The area in use is the newest that is whole, or that a block vouches for.
        let vouched = areas.iter().flat_map(Area::vouched).max();
        let in_use = vouched.map(|(stamp, _)| stamp).into_iter().chain(whole).max();
        for (at, area) in (0..).zip(&areas) {
            if let Some(index) = in_use.and_then(|stamp| area.missing(stamp, layout)) {
                let block = layout.journal_block(at, index).unwrap_or(0);
                return Err(Error::Damaged(format!(
                    "the journal of the store is damaged at block {block} of its small volume: which files \
                     there are is not known, so nothing is changed, and nothing erased: restore that \
                     volume from a copy"
                )));
            }
        }
        Ok(found)
    }

    /// Begins to write a state to `area`, which nothing is needed of. The journal goes on there once that is durable.
    pub fn begin(
        volume: &mut dyn Volume,
        layout: &Layout,
        area: u64,
        stamp: u64,
        state: &State,
    ) -> Result<Self, Error> {
        let mut tail = Tail::new(JOURNAL, stamp, 0, Vec::new());
        for record in state.records() {
            tail.append(&record::line(&record));
        }
        if tail.blocks_with(0) > layout.area_blocks {
            return Err(full(layout));
        }
        tail.write(volume, true, |index| layout.journal_block(area, index))?;
        Ok(Self { area, tail })
    }

    /// The area that it is not in.
    pub fn other_area(&self) -> u64 {
        1 - self.area
    }

    /// A record of so many bytes fits behind what there is.
    pub fn fits(&self, layout: &Layout, bytes: usize) -> bool {
        self.tail.blocks_with(bytes) <= layout.area_blocks
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.tail.size()
    }

    /// Appends a record that fits. It is on its way to the volume when this returns.
    pub fn append(
        &mut self,
        volume: &mut dyn Volume,
        layout: &Layout,
        line: &[u8],
    ) -> Result<(), Error> {
        self.tail.append(line);
        self.tail.write(volume, true, |index| layout.journal_block(self.area, index))
    }

    /// All that was appended is durable.
    pub fn flushed(&mut self) {
        self.tail.flushed();
    }

    /// Begins to say behind the last block that it was there.
    pub fn vouch(&mut self, volume: &mut dyn Volume, layout: &Layout) -> Result<(), Error> {
        self.tail.vouch(volume, |index| layout.journal_block(self.area, index))
    }
}

/// With so many bytes an area is so full that only what makes room is still written.
pub fn is_crowded(layout: &Layout, bytes: u64) -> bool {
    bytes.div_ceil(PAYLOAD as u64) > layout.area_blocks / 4 * 3
}

/// Why a record is refused.
pub fn full(layout: &Layout) -> Error {
    Error::Full(format!(
        "the journal of the store is full of names: its small volume has room for {} KiB of them: \
         delete files, or make the store on a larger volume",
        layout.area_blocks * 4
    ))
}

/// A block of an area.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Seen {
    /// It was never written, or is another's.
    Blank,
    /// A block of the journal with this stamp, which vouches for so many bytes before it.
    Ours { stamp: u64, durable: u64 },
    /// No block that this store ever wrote.
    Bent,
}

/// What lies in an area.
struct Area {
    blocks: Vec<Seen>,
    /// That of the blocks that follow on each other from the first on.
    text: Vec<u8>,
}

impl Area {
    /// That of its first block.
    fn stamp(&self) -> u64 {
        match self.blocks.first() {
            Some(&Seen::Ours { stamp, .. }) => stamp,
            _ => 0,
        }
    }

    fn ours(&self) -> impl Iterator<Item = (u64, u64)> {
        self.blocks.iter().filter_map(|seen| match *seen {
            Seen::Ours { stamp, durable } => Some((stamp, durable)),
            _ => None,
        })
    }

    fn newest(&self) -> u64 {
        self.ours().map(|(stamp, _)| stamp).max().unwrap_or(0)
    }

    /// The newest stamp that a block vouches for anything of, and for how many bytes.
    fn vouched(&self) -> Option<(u64, u64)> {
        self.ours().filter(|&(_, durable)| durable > 0).max()
    }

    /// The first block that should be there if the area is in use with this stamp, and is not, or is an older copy.
    fn missing(&self, in_use: u64, layout: &Layout) -> Option<u32> {
        let is_in_use = self.stamp() == in_use;
        let there = if is_in_use { self.text.len() as u64 } else { 0 };
        let end = (there / PAYLOAD as u64) as u32;
        let vouched = self.vouched().filter(|&(stamp, _)| stamp == in_use);
        if vouched.is_some_and(|(_, durable)| durable > there) {
            return Some(end);
        }
        // A block is all old or all new: where it goes on, there is what was there before, or a block. It goes on behind a full
        // block only.
        let is_full = is_in_use && tail::start(end) == there;
        let next = self.blocks.get(end as usize);
        (layout.is_blank() && is_full && next == Some(&Seen::Bent)).then_some(end)
    }
}

fn read_area(volume: &mut dyn Volume, layout: &Layout, number: u64) -> Result<Area, Error> {
    let mut area = Area { blocks: Vec::new(), text: Vec::new() };
    let mut bytes = vec![0; READ_BLOCKS as usize * BLOCK_BYTES];
    let mut goes_on = true;
    while let Some(at) = layout.journal_block(number, area.blocks.len() as u32) {
        let left = layout.area_blocks - area.blocks.len() as u64;
        let bytes = &mut bytes[..READ_BLOCKS.min(left) as usize * BLOCK_BYTES];
        volume.read(at, bytes)?;
        for block in bytes.chunks(BLOCK_BYTES) {
            let index = area.blocks.len() as u32;
            let decoded = tail::decode(block);
            let seen = match &decoded {
                Some((head, _)) if head.is(JOURNAL, head.stamp, index) => {
                    Seen::Ours { stamp: head.stamp, durable: head.durable }
                }
                Some(_) => Seen::Blank,
                None if block.iter().all(|&byte| byte == 0) => Seen::Blank,
                None => Seen::Bent,
            };
            area.blocks.push(seen);
            let follows = matches!(seen, Seen::Ours { stamp, .. } if stamp == area.stamp());
            goes_on &= follows;
            if let (true, Some((_, payload))) = (goes_on, decoded) {
                area.text.extend_from_slice(payload);
                goes_on = payload.len() == PAYLOAD;
            }
        }
    }
    Ok(area)
}
