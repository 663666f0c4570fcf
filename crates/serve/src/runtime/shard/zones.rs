//! Raw units as zones: from what a host asks of a zone to a piece, and what it is told of all.
//!
//! A host counts the bytes of a unit in zones of a power of two (`Lanes::zone_slots`), the raw units in raw
//! blocks: here one becomes the other. Raw units have one shard, so what is asked here is answered here.

use super::{Shard, Work};
use crate::runtime::buffer::View;
use crate::volume::{Answer, BLOCK, Kind, Request, ZONE_PAD_BLOCKS, ZoneWork};
use flash::{Lba, RequestError};
use ftl::raw::zones::{Zone, ZoneAction};

impl Shard {
    /// Sends what a request asks of a zone, or of each that it concerns.
    pub(super) fn send_zone(&mut self, index: u32, work: ZoneWork) {
        let request = self.requests[index].request();
        let first = self.first_block(request.volume);
        let Some(lanes) = self.engine.core.raw().map(|raw| raw.lanes()) else {
            self.requests[index].fail(RequestError::OutOfRange);
            return;
        };
        let (number, inside) = self.inside(request.offset);
        let ZoneWork::Manage { action, all } = work else {
            let blocks = request.covered_blocks();
            let (lba, view) = (first + number * lanes.slots, self.zone_view(index, blocks, false));
            return self.send_to(index, self.me, Work::Zone { work, inside }, lba, blocks, view);
        };
        let view = match action {
            ZoneAction::Finish => self.zone_view(index, ZONE_PAD_BLOCKS, true),
            _ => View::NONE,
        };
        let numbers = if all { 0..lanes.raw_blocks } else { number..number + 1 };
        for lba in numbers.map(|number| first + number * lanes.slots) {
            if !all || self.engine.zone_concerns(Lba(lba), action) {
                let work = Work::Zone { work, inside: 0 };
                self.send_to(index, self.me, work, lba, lanes.slots, view);
            }
        }
    }

    /// The first blocks of the memory of a request, of zeroes if they are to be.
    fn zone_view(&mut self, index: u32, blocks: u32, zeroes: bool) -> View {
        let Some(data) = self.requests[index].data_mut() else { return View::NONE };
        if zeroes {
            data.clear();
        }
        data.view(0, blocks)
    }

    /// The first block of a unit.
    fn first_block(&self, volume: usize) -> u32 {
        self.offered.get(volume).map_or(0, |unit| unit.first_block() as u32)
    }

    /// Which zone of its unit a byte lies in, and how many blocks from its start.
    fn inside(&self, offset: u64) -> (u32, u32) {
        let stride = self.engine.core.raw().map_or(1, |raw| raw.lanes().zone_slots());
        let block = offset / BLOCK;
        ((block / u64::from(stride)) as u32, (block % u64::from(stride)) as u32)
    }

    /// The byte of its unit at which a host finds what went to `lba`.
    pub(super) fn place_of(&self, volume: usize, lba: u32) -> u64 {
        let Some(lanes) = self.engine.core.raw().map(|raw| raw.lanes()) else { return 0 };
        let block = lba - self.first_block(volume);
        let zone = u64::from(block / lanes.slots) * u64::from(lanes.zone_slots());
        (zone + u64::from(block % lanes.slots)) * BLOCK
    }

    /// Tells how zones are.
    pub(super) fn answer_zones(&mut self, index: u32) {
        let Request { volume, offset, kind, .. } = self.requests[index].request();
        let Kind::Zones { state, most, partial } = kind else {
            unreachable!("zones were asked for")
        };
        let (number, _) = self.inside(offset);
        let first = self.first_block(volume);
        let zones = self.engine.zones_from(Lba(first), number);
        let wanted = zones.filter(|zone| state.is_none_or(|state| state == zone.state));
        let (mut told, mut count): (Vec<Zone>, u64) = (Vec::new(), 0);
        for zone in wanted {
            if told.len() < most as usize {
                told.push(zone);
            } else if partial {
                break;
            }
            count += 1;
        }
        self.answer_now(index, Answer::Zones(&told, count));
    }
}
