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
}

/// Blocks read at a time.
const READ_BLOCKS: u64 = 64;

impl Journal {
    /// The newest whole state on the volume.
    pub fn find(volume: &mut dyn Volume, layout: &Layout) -> Result<Found, Error> {
        let mut newest: Option<(u64, Found)> = None;
        for area in 0..2 {
            let (stamp, text) = read_area(volume, layout, area)?;
            if newest.as_ref().is_some_and(|(newest, _)| *newest > stamp) {
                continue;
            }
            if let Some(state) = record::replay(&text)? {
                newest = Some((stamp, Found { state, area }));
            }
        }
        Ok(newest.map_or(Found { state: State::default(), area: 1 }, |(_, found)| found))
    }

    /// Writes a state to `area`, which nothing is needed of. The journal goes on there once that is durable.
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

    /// So full that only what makes room is still written.
    pub fn is_crowded(&self, layout: &Layout) -> bool {
        self.tail.blocks_with(0) > layout.area_blocks / 4 * 3
    }

    /// Appends a record that fits. It is in the volume when this returns.
    pub fn append(
        &mut self,
        volume: &mut dyn Volume,
        layout: &Layout,
        line: &[u8],
    ) -> Result<(), Error> {
        self.tail.append(line);
        self.tail.write(volume, true, |index| layout.journal_block(self.area, index))
    }
}

/// Why a record is refused.
pub fn full(layout: &Layout) -> Error {
    Error::Full(format!(
        "the journal of the store is full of names: its small volume has room for {} KiB of them: \
         delete files, or make the store on a larger volume",
        layout.area_blocks * 4
    ))
}

/// The stamp and the text of an area, as far as blocks follow on each other.
fn read_area(volume: &mut dyn Volume, layout: &Layout, area: u64) -> Result<(u64, Vec<u8>), Error> {
    let (mut stamp, mut text) = (0, Vec::new());
    let mut blocks = vec![0; READ_BLOCKS as usize * BLOCK_BYTES];
    let mut index = 0;
    while let Some(at) = layout.journal_block(area, index) {
        let count = READ_BLOCKS.min(layout.area_blocks - u64::from(index)) as usize;
        let blocks = &mut blocks[..count * BLOCK_BYTES];
        volume.read(at, blocks)?;
        for block in blocks.chunks(BLOCK_BYTES) {
            let Some((head, payload)) = tail::decode(block) else { return Ok((stamp, text)) };
            if index == 0 {
                stamp = head.stamp;
            }
            let follows = head.file == JOURNAL && head.index == index && head.stamp == stamp;
            if !follows {
                return Ok((stamp, text));
            }
            text.extend_from_slice(payload);
            if payload.len() < PAYLOAD {
                return Ok((stamp, text));
            }
            index += 1;
        }
    }
    Ok((stamp, text))
}
