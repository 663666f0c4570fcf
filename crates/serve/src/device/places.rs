//! Where the parts of a device lie in a file or on a disk: behind the header and the generation the records and the
//! blocks of all shards in turn, and behind those, for each time that the device grew, the records and blocks of what
//! it grew by, likewise. So nothing of what was there ever moves.

use super::direct::Parts;
use crate::medium::{Extent, Place, RECORD_BYTES, page_bytes};
use flash::{BLOCK_BYTES, Geometry};

const SECTOR: u64 = BLOCK_BYTES as u64;
const BLOCKS_START_MULTIPLE: u64 = 4 << 20;

/// The place of each shard of a device of this geometry, and the end of the last.
pub fn places(geometry: &Geometry, parts: &Parts, generation: u64) -> (Vec<Place>, u64) {
    let stride = u64::from(geometry.pages_per_block) * page_bytes(geometry.slots_per_page);
    let place = Place { extents: Vec::new(), stride, generation };
    let mut places = vec![place; parts.shards as usize];
    let made_with = geometry.units - parts.added.iter().sum::<u32>();
    let (mut first, mut end) = (0, 2 * SECTOR);
    for units in std::iter::once(made_with).chain(parts.added.iter().copied()) {
        let blocks = units * geometry.blocks_per_unit;
        let records_bytes = (u64::from(blocks) * RECORD_BYTES as u64).next_multiple_of(SECTOR);
        let records_end = end + u64::from(parts.shards) * records_bytes;
        let blocks_start = records_end.next_multiple_of(BLOCKS_START_MULTIPLE);
        for (shard, place) in (0..).zip(&mut places) {
            let records_at = end + shard * records_bytes;
            let blocks_at = blocks_start + shard * u64::from(blocks) * stride;
            place.extents.push(Extent { first, blocks, records_at, blocks_at });
        }
        first += blocks;
        end = blocks_start + u64::from(parts.shards) * u64::from(blocks) * stride;
    }
    (places, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Shape;
    use crate::device::direct::Bands;
    use flash::BlockId;

    fn parts(units: u32, added: &[u32]) -> (Geometry, Parts) {
        let shape =
            Shape { channels: units, dies_per_channel: 1, blocks_per_plane: 10, logical_blocks: 9 };
        let parts = Parts {
            shards: 2,
            shape,
            bands: Bands::PLAIN,
            op_percent: 25,
            uuid: 1,
            fast: None,
            raw: None,
            added: added.to_vec(),
        };
        (parts.nand(None).unwrap().geometry(), parts)
    }

    #[test]
    fn what_is_there_stays_where_it_is_and_nothing_lies_on_another() {
        let (geometry, made) = parts(3, &[]);
        let (before, end) = places(&geometry, &made, 7);
        let (geometry, grown) = parts(3 + 2 + 300, &[2, 300]);
        let (after, end_grown) = places(&geometry, &grown, 7);
        let mut taken = vec![(0, 2 * SECTOR)];
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(after.extents[0], before.extents[0]);
            assert_eq!(after.extents.iter().map(|it| it.blocks).sum::<u32>(), geometry.blocks());
            for extent in &after.extents {
                let records = u64::from(extent.blocks) * RECORD_BYTES as u64;
                let blocks = u64::from(extent.blocks) * after.stride;
                taken.extend([(extent.records_at, records), (extent.blocks_at, blocks)]);
            }
            for block in [30, 31, 49, 50, 51].map(BlockId) {
                assert!(after.block_at(block) >= end, "{block:?} is new");
            }
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{taken:?}");
        assert_eq!(taken.last().map(|(at, bytes)| at + bytes), Some(end_grown));
    }
}
