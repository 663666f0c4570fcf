//! How far the blocks of a raw block were written, and what is damaged before that.
//!
//! The last page of each block is read. If it was not written, the end is searched: by halves where a
//! program is durable when it ends, else page by page to the last one of which a slot is sound. There a power cut leaves out
//! any slot that was not flushed, and damage any other, and nothing tells which it was: so what is sound stays, behind a page
//! that is not and in one that is in part, as it may have been flushed.
//! By halves a page that is missing is the end only if the one after it is missing, too: pages are
//! programmed in order, so that what lies before a sound page was written, and is damaged. A page of which
//! a slot can be read, right or wrong, was written as well: a program that a power cut has stopped leaves
//! none.
//!
//! What the lane's record says goes before all that: after a clean stop the pages are those that it names,
//! and what was whole when any record was made is whole.

use super::format::header_of;
use super::mount::{Mount, Probe, Stage};
use super::{Lanes, NONE, RawUnits};
use crate::mutant::Mutant;
use flash::{BlockId, SlotId, SlotRead, SlotStatus};

/// What is asked of a block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    /// The last page of those that the record tells of, only to see whether it is damaged.
    Told,
    Last,
    /// The block was whole, and its last page is missing: a sound second one says that no erase was
    /// interrupted, which leaves at most the first or all but that.
    Second,
    Next,
    /// The page after one that is missing.
    Beyond,
}

/// The search for the end of what was written in a block: pages up to `low` were written, those from
/// `high` on were not.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    raw: u32,
    member: u32,
    low: u32,
    high: u32,
    /// It was written whole.
    whole: bool,
    /// The first page that was missing, where the search goes on behind it, or of which only some slots are sound.
    gap: Option<u32>,
    /// The last page that says nothing of this write, and is not blank.
    torn: Option<u32>,
    asked: Asked,
}

/// What a page says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Page {
    Sound,
    /// Written, and not all of it is sound.
    Damaged,
    /// Some of its slots are sound, and what became of the others nothing tells.
    Part,
    /// Not written, or torn by a power cut, or damaged so that it looks like that.
    Missing,
}

impl Lanes {
    /// Pages that `member` has of the first `pages` of a raw block.
    pub(super) fn pages_of(&self, member: u32, pages: u32) -> u32 {
        (pages + self.gang - 1 - member) / self.gang
    }
}

impl RawUnits {
    /// Asks for the last page of every block that counts.
    pub(super) fn search_ends(&mut self, mount: &mut Mount) {
        mount.stage = Stage::Ends;
        mount.pages = vec![0; self.map.len()];
        mount.gaps = vec![None; self.map.len()];
        mount.torn = vec![false; self.map.len()];
        for (at, &block) in self.map.iter().enumerate() {
            if block == NONE {
                continue;
            }
            let (raw, member) = (at as u32 / self.lanes.gang, at as u32 % self.lanes.gang);
            let block = BlockId(block);
            self.note_first(mount, block);
            let pages_per_block = self.geometry.pages_per_block;
            let mut end = End {
                raw,
                member,
                low: 0,
                high: pages_per_block,
                whole: false,
                gap: None,
                torn: None,
                asked: Asked::Last,
            };
            let mut page = pages_per_block - 1;
            if let Some(pages) = self.told(mount, raw) {
                let pages = self.lanes.pages_of(member, pages);
                if pages == 0 {
                    continue;
                }
                (page, end.asked) = (pages - 1, Asked::Told);
            } else if self.geometry.durable_at_completion {
                let found = mount.found[block.0 as usize].expect("it counts for its header");
                let found = found.looked.unwrap_or(0);
                let least = self.lanes.pages_of(member, self.pages_least(mount, raw, block));
                end.whole = least == pages_per_block;
                end.low = if end.whole { found + 1 } else { least.max(found + 1) };
            }
            mount.ends.insert(block, end);
            let unit = self.geometry.unit_of(block) as usize;
            let job = (self.geometry.slot(block, page, 0), self.geometry.slots_per_page);
            mount.jobs[unit].push_back(job);
        }
    }

    /// The first slot said nothing, and a later page says that it should have.
    fn note_first(&self, mount: &mut Mount, block: BlockId) {
        let found = mount.found[block.0 as usize];
        let Some(page) = found.and_then(|found| found.looked) else { return };
        let pages = self.geometry.pages_per_block;
        let lane = self.lanes.lane_of(self.geometry.unit_of(block)) as usize;
        // By an erase that was interrupted or is not durable, or by a page that shares cells with it.
        let explained = matches!(mount.probes[block.0 as usize], Probe::Erased)
            || !self.geometry.durable_at_completion
            || page > 0 && page < self.geometry.pairing.last_partner(0, pages);
        if mount.clean[lane] || !explained {
            mount.report.note_damaged(&self.geometry, self.geometry.slot(block, 0, 0));
        }
    }

    /// Pages that a raw block had for certain, by the block that it has on one unit.
    fn pages_least(&self, mount: &Mount, raw: u32, block: BlockId) -> u32 {
        let header = mount.found[block.0 as usize].expect("it counts for its header").header;
        // A unit takes up whole raw blocks one after the other.
        let later = mount.newest[self.geometry.unit_of(block) as usize] > header.sequence;
        if header.whole && later {
            return self.lanes.pages;
        }
        let (lane, index) = (self.lane_of_raw(raw), raw % self.lanes.raw_blocks);
        let Some((record, _)) = &mount.records[lane as usize] else { return 0 };
        if !record.names_all || header.sequence >= record.sequence_next {
            return 0;
        }
        let named = record.open.iter().find(|named| named.raw_block == index);
        named.map_or(self.lanes.pages, |named| named.pages.min(self.lanes.pages))
    }

    /// Takes a page of a block whose end is searched, and asks for the next.
    pub(super) fn narrow(&self, mount: &mut Mount, slot: SlotId, slots: &[SlotRead<'_>]) {
        let (block, page) = (self.geometry.block_of(slot), self.geometry.page_in_block(slot));
        let mut end = mount.ends.remove(&block).expect("its end is searched");
        let found = self.judge_page(&end, slot, slots);
        if found == Page::Damaged || end.asked == Asked::Told && found != Page::Sound {
            mount.report.note_damaged(&self.geometry, slot);
        }
        if found == Page::Missing && slots.iter().any(|read| self.is_torn(read)) {
            end.torn = end.torn.max(Some(page));
        }
        let next = match end.asked {
            Asked::Told => None,
            _ => self.next_page(mount, &mut end, (block, page), found),
        };
        let Some(next) = next else {
            let at = (end.raw * self.lanes.gang + end.member) as usize;
            (mount.pages[at], mount.gaps[at]) = (end.low, end.gap.filter(|gap| *gap < end.low));
            mount.torn[at] = end.torn.is_some_and(|page| page >= end.low);
            return;
        };
        mount.report.bands_scanned += u32::from(page + 1 == self.geometry.pages_per_block);
        mount.ends.insert(block, end);
        let unit = self.geometry.unit_of(block) as usize;
        let job = (self.geometry.slot(block, next, 0), self.geometry.slots_per_page);
        mount.jobs[unit].push_front(job);
    }

    fn judge_page(&self, end: &End, slot: SlotId, slots: &[SlotRead<'_>]) -> Page {
        let index = end.raw % self.lanes.raw_blocks;
        let sequence = self.raw[end.raw as usize].sequence;
        let sound = |(slot, read): (SlotId, &SlotRead<'_>)| {
            let header = header_of(read, slot, self.uuid_crc);
            header.is_some_and(|it| it.raw_block == index && it.sequence == sequence)
        };
        let slots_by_id = || (slot.0..).map(SlotId).zip(slots);
        if self.is_mutant(Mutant::RawTrustFirstPage)
            || !slots.is_empty() && slots_by_id().all(sound)
        {
            return Page::Sound;
        }
        let written = self.geometry.durable_at_completion
            && slots.iter().any(SlotRead::is_readable)
            || slots.iter().any(|read| read.durable);
        // A write that counts only when whole has no page that counts in part.
        let in_parts = self.raw[end.raw as usize].pages_taken != 1;
        match written {
            true => Page::Damaged,
            false if in_parts && slots_by_id().any(sound) => Page::Part,
            false => Page::Missing,
        }
    }

    /// Whether a slot that is not sound says that something was written. What nothing was written to is unreadable as well
    /// where a program is not durable when it ends: only the medium's own notes could tell, and these may be lost.
    fn is_torn(&self, read: &SlotRead<'_>) -> bool {
        match self.geometry.durable_at_completion {
            true => read.status != SlotStatus::Erased,
            false => read.is_readable(),
        }
    }

    /// The page to ask after `page`; `None` when `low` is the end.
    fn next_page(
        &self,
        mount: &mut Mount,
        end: &mut End,
        (block, page): (BlockId, u32),
        found: Page,
    ) -> Option<u32> {
        let (durable, pages) = (self.geometry.durable_at_completion, self.geometry.pages_per_block);
        let written = found != Page::Missing;
        if found == Page::Part {
            end.gap = Some(end.gap.map_or(page, |gap| gap.min(page)));
        }
        match end.asked {
            Asked::Told => return None,
            Asked::Second if written => {
                mount.report.note_damaged(&self.geometry, self.geometry.slot(block, pages - 1, 0));
                end.low = pages;
                return None;
            }
            Asked::Beyond if written => {
                if self.geometry.pairing.last_partner(end.high, pages) <= page {
                    let damaged = self.geometry.slot(block, end.high, 0);
                    mount.report.note_damaged(&self.geometry, damaged);
                }
                (end.low, end.high) = (page + 1, pages - 1);
            }
            Asked::Beyond => return None,
            _ if written => end.low = page + 1,
            Asked::Last if end.whole && page > 1 => {
                (end.high, end.asked) = (page, Asked::Second);
                return Some(1);
            }
            Asked::Second | Asked::Last | Asked::Next => end.high = end.high.min(page),
        }
        // A write that counts only when whole is not searched: it is not whole.
        if self.raw[end.raw as usize].pages_taken == 1 && end.low < pages {
            end.low = 0;
            return None;
        }
        if !durable {
            if !written && end.asked == Asked::Next {
                end.gap.get_or_insert(page);
            }
            end.asked = Asked::Next;
            let next = if page + 1 == pages { end.low } else { page + 1 };
            return (next < pages - 1 && end.low < pages).then_some(next);
        }
        if end.low < end.high {
            end.asked = Asked::Next;
            return Some(end.low.midpoint(end.high));
        }
        end.asked = Asked::Beyond;
        (end.high + 1 < pages - 1).then_some(end.high + 1)
    }
}
