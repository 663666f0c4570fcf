//! What recovery looks at where the first slot of a block says nothing.
//!
//! A damaged first slot must not take a raw block or lane records with it, so the rest of its page is asked,
//! the page after it, and the last one, until one of them says what the block holds. A block that is really
//! erased costs one read: where also the second page reads as erased, nothing more is asked.

use super::RawUnits;
use super::format::{LaneRecord, RawHeader, decode_raw_header, header_of};
use super::mount::{Mount, Probe, Stage};
use flash::{BlockId, SlotId, SlotRead, SlotStatus};

/// What a block says of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub header: RawHeader,
    /// The page that says so, where the first slot says nothing.
    pub looked: Option<u32>,
}

impl RawUnits {
    /// Takes the headers that the probes found, and asks for more where they found none.
    pub(super) fn look(&self, mount: &mut Mount) {
        mount.stage = Stage::Look;
        for block in (0..self.geometry.blocks()).map(BlockId) {
            let slot = self.geometry.slot(block, 0, 0);
            let of_records = mount
                .records_found
                .iter()
                .any(|(other, record)| *other == block && self.is_record_of(block, record));
            match mount.probes[block.0 as usize] {
                _ if of_records => {}
                Probe::Skipped => {}
                Probe::Erased => self.look_at(mount, block, 1),
                Probe::Unreadable => self.look_at(mount, block, self.first_look()),
                Probe::Read(oob, crc) => match decode_raw_header(&oob, slot, self.uuid_crc, crc) {
                    Some(header) => self.find(mount, block, header, None),
                    None => self.look_at(mount, block, self.first_look()),
                },
            }
        }
    }

    /// Whether `record` is of this device, and of the lane that `block` is of.
    pub(super) fn is_record_of(&self, block: BlockId, record: &LaneRecord) -> bool {
        record.uuid == self.uuid && record.lane == self.lanes.lane_of(self.geometry.unit_of(block))
    }

    /// The first page has been read whole if it has but one slot.
    fn first_look(&self) -> u32 {
        u32::from(self.geometry.slots_per_page == 1)
    }

    fn look_at(&self, mount: &mut Mount, block: BlockId, page: u32) {
        if page < self.geometry.pages_per_block {
            let unit = self.geometry.unit_of(block) as usize;
            let job = (self.geometry.slot(block, page, 0), self.geometry.slots_per_page);
            mount.jobs[unit].push_back(job);
        }
    }

    fn find(&self, mount: &mut Mount, block: BlockId, header: RawHeader, looked: Option<u32>) {
        mount.found[block.0 as usize] = Some(Found { header, looked });
        let newest = &mut mount.newest[self.geometry.unit_of(block) as usize];
        *newest = (*newest).max(header.sequence);
    }

    /// Takes a page that was looked at, and asks for the next if it says nothing.
    pub(super) fn take_look(&self, mount: &mut Mount, slot: SlotId, slots: &[SlotRead<'_>]) {
        let (block, page) = (self.geometry.block_of(slot), self.geometry.page_in_block(slot));
        let mut slots = (slot.0..).map(SlotId).zip(slots);
        let found = slots.clone().find_map(|(slot, read)| header_of(read, slot, self.uuid_crc));
        let record = slots.clone().find_map(|(_, read)| record_of(read));
        let last = self.geometry.pages_per_block - 1;
        match found {
            _ if record.is_some() => mount.records_found.extend(record.map(|it| (block, it))),
            Some(header) => self.find(mount, block, header, Some(page)),
            None if page == 0 => self.look_at(mount, block, 1),
            None if page == last || slots.all(|(_, read)| read.status == SlotStatus::Erased) => {}
            None => self.look_at(mount, block, last),
        }
    }
}

/// The lane record in a slot, if there is a sound one.
fn record_of(read: &SlotRead<'_>) -> Option<LaneRecord> {
    let bytes = read.bytes.filter(|_| read.is_readable())?;
    LaneRecord::decode(bytes)?.ok()
}
