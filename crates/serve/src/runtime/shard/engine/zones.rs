//! What is done with zones, at the instant it is given to the core: [`Zones`] gives leave, and nothing comes
//! between.

use super::{Engine, Piece, Work};
use crate::volume::ZoneWork;
use flash::{
    Hint, Instant, Lba, Operation, Payload, Reply, Request, RequestError, RequestId, Spent,
};
use ftl::Input;
use ftl::raw::zones::{Zone, ZoneAction, ZoneStep};

/// What goes to the core: first block, how many, and what to do.
type Issued = (u32, u32, Operation);

impl Engine {
    /// True if an action on all zones is for this one, too.
    pub fn zone_concerns(&self, zone: Lba, action: ZoneAction) -> bool {
        match (&self.zones, self.core.raw()) {
            (Some(zones), Some(units)) => zones.concerns(units, zone, action),
            _ => false,
        }
    }

    /// The zones of the unit that `lba` is of, from number `first` on.
    pub fn zones_from(&self, lba: Lba, first: u32) -> impl Iterator<Item = Zone> {
        let both = self.zones.as_ref().zip(self.core.raw());
        both.into_iter().flat_map(move |(zones, units)| {
            zones.report(units, lba.0 / units.lanes().lane_slots(), first)
        })
    }

    /// Gives a piece of a zone to the core, or ends it.
    pub(super) fn issue_zone(&mut self, now: Instant, index: u32, work: ZoneWork, inside: u32) {
        match self.admit_zone(index, work, inside) {
            Ok(Some((lba, blocks, operation))) => {
                self.sums.clear();
                if let Operation::Write { .. } = operation {
                    let view = self.active[index].piece.view;
                    self.sums.extend((0..blocks).map(|i| flash::crc(view.block(i))));
                }
                let id = RequestId::from(index);
                let request = Request { id, lba: Lba(lba), blocks, operation };
                self.core.handle(now, Input::Request { request, checksums: &self.sums });
            }
            ended => {
                let (id, result, spent) = (index.into(), ended.map(|_| ()), Spent::default());
                self.replies.push_back(Reply { id, result, spent });
            }
        }
    }

    fn admit_zone(
        &mut self,
        index: u32,
        work: ZoneWork,
        inside: u32,
    ) -> Result<Option<Issued>, RequestError> {
        let Piece { lba, blocks, view, .. } = self.active[index].piece;
        let (Some(zones), Some(units)) = (&mut self.zones, self.core.raw()) else {
            return Err(RequestError::OutOfRange);
        };
        let zone = Lba(lba);
        let write =
            |fua| Operation::Write { buffer: index, fua, atomic: false, hint: Hint::default() };
        Ok(match work {
            ZoneWork::Read => {
                let there = zones.readable(units, zone, inside, blocks)?;
                for block in there..blocks {
                    self.views.lend_zeroes(Payload { buffer: index, index: block });
                }
                (there > 0).then_some((lba + inside, there, Operation::Read { buffer: index }))
            }
            ZoneWork::Write { fua } => {
                zones.write(units, zone, inside, blocks)?;
                Some((lba + inside, blocks, write(fua)))
            }
            ZoneWork::Append { fua } => {
                let at = lba + zones.append(units, zone, blocks)?;
                self.active[index].placed = Some(at);
                Some((at, blocks, write(fua)))
            }
            ZoneWork::Manage { action, .. } => match zones.act(units, zone, action)? {
                ZoneStep::Done => None,
                ZoneStep::Erase => Some((lba, blocks, Operation::Trim { fua: false })),
                ZoneStep::Pad(at, left) => Some((lba + at, left.min(view.blocks()), write(false))),
            },
        })
    }

    /// A piece has ended. True if it is of a zone that is being finished, and goes on.
    pub(super) fn pads_on(&mut self, index: u32, result: Result<(), RequestError>) -> bool {
        let Piece { work, lba, blocks, .. } = self.active[index].piece;
        let (Some(zones), Some(units)) = (&mut self.zones, self.core.raw()) else { return false };
        let Work::Zone { work: ZoneWork::Manage { action: ZoneAction::Finish, .. }, .. } = work
        else {
            return false;
        };
        match result {
            Ok(()) => zones.act(units, Lba(lba), ZoneAction::Finish) != Ok(ZoneStep::Done),
            Err(_) => {
                zones.forget(units, Lba(lba), blocks);
                false
            }
        }
    }
}
