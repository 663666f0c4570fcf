//! Append points: where data of one placement handle goes next. A handle fills one page at a time,
//! on the unit that the unit policy picks; the page is programmed when it is full, when somebody
//! waits for it to be durable, or when it has waited long enough.
//!
//! Invariants:
//! - the map points to a slot from the moment its page takes it; a read of a slot whose program has
//!   not ended waits for that, so nobody sees what a power cut could still undo;
//! - pages of a band end in order, whatever order the medium reports;
//! - a page that could not be programmed loses nothing: its slots are appended again elsewhere.

use crate::format::{Header, Kind, UNMAPPED, decode_header, encode_header};
use crate::log::by_unit::ByUnit;
use crate::policy::stream::Origin;
use crate::policy::{PageView, Purpose};
use crate::space::Grounds;
use crate::space::bands::BandState;
use crate::whole::Ftl;
use flash::{BlockId, Instant, MediumError, Pairing, SECOND, SlotData, SlotId, SlotWrite};
use std::collections::VecDeque;

/// No index.
pub(crate) const NONE: u32 = u32::MAX;

/// Pages that may wait on a unit before an append point looks elsewhere.
const APPENDS_WAITING_MAX: u32 = 4;

/// The same while reads have a service level: what waits longer can still go to another unit, and
/// who reads it meanwhile waits less.
const APPENDS_WAITING_MAX_SLO: u32 = 2;

/// The same where the address says which unit: who waits for a place there holds up all behind.
const APPENDS_WAITING_MAX_HOME: u32 = 64;

/// Who is told when a slot is programmed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Owner {
    #[default]
    Nobody,
    /// A host request, by index.
    Request(u32),
    /// A chunk of relocation buffers.
    Relocation(u32),
    /// A trim that was refused for want of space, and whose record goes on: what it says holds.
    RefusedTrim,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum PageState {
    #[default]
    Assembling,
    /// It waits on its unit, or runs there.
    OnUnit,
    Ended(Result<(), MediumError>),
}

/// A page from its first slot to the end of its program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    pub state: PageState,
    pub open: u32,
    /// The append point that it counts for while it is under way, see [`Point::under_way`].
    pub point: u32,
    pub slot: SlotId,
    pub index: u32,
    /// Slots that it takes: a page's, or on a fast unit what is left of one.
    pub room: u32,
    /// The first of its band.
    pub leads: bool,
    pub order: u64,
    pub opened_at: Instant,
    /// When its program was begun, and when it ended.
    pub ran: (Instant, Instant),
    pub slots: Vec<SlotWrite>,
    pub owners: Vec<Owner>,
    /// What the map said before each slot.
    pub previous: Vec<u32>,
    /// Reads that wait for the program, by `Ftl::reads` index.
    pub waiters: Vec<u32>,
}

impl Page {
    /// What is in it so far, each with where it lies: a header is sound there only.
    pub fn placed(&self) -> impl Iterator<Item = (SlotId, &SlotWrite)> {
        (self.slot.0..).map(SlotId).zip(&self.slots)
    }

    pub fn clear(&mut self) {
        self.slots.clear();
        self.owners.clear();
        self.previous.clear();
        self.waiters.clear();
    }
}

/// A band with room or with pages whose program has not ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenBand {
    pub live: bool,
    pub block: BlockId,
    /// Which append point fills it; `NONE` for a checkpoint's.
    pub point: u32,
    /// Pages allocated whose program has not ended, oldest first.
    pub outstanding: VecDeque<u32>,
    /// Programmed pages that a later program can still harm: last partner and order.
    pub at_risk: VecDeque<(u32, u64)>,
    /// Its first page is durable. Until then no other page of it is programmed: recovery looks
    /// into a band only if it finds the first page.
    pub header_durable: bool,
    /// The medium flush that will have made it so, once the first page is programmed.
    pub header_flush: Option<u64>,
    /// Its last pages were never programmed.
    pub cut: bool,
    /// How much it is wanted for more pages.
    pub weight: u16,
}

/// An open band that was put aside, and its unit: they are looked for by unit, for every page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aside {
    /// By `Ftl::opens` index.
    pub open: u32,
    pub unit: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub purpose: Purpose,
    /// Open band with room on each unit, by `Ftl::opens` index.
    pub open: ByUnit,
    /// Bands with room that were put aside for others on their units, see `Ftl::set_unit_weights`.
    pub aside: Vec<Aside>,
    /// The page being filled.
    pub page: u32,
    /// Pages of its bands that wait for their program or whose program runs.
    pub under_way: u32,
    /// Slots that went to units so far.
    pub slots: u64,
    pub last_unit: u32,
    /// No stream goes here any more: what is open is for others to fill.
    pub idle: bool,
    /// For what stays on the fast tier when its band is reclaimed.
    pub keeps: bool,
    /// The policy and the handle that its bands are filled by, see `streams`.
    pub origin: (u32, Origin),
    /// No unit had room for a page at this `Ftl::room_key`, and whether a dirty band was to blame.
    no_room: Option<(u64, bool)>,
}

impl Point {
    pub fn new(purpose: Purpose, units: u32) -> Self {
        Self {
            purpose,
            open: ByUnit::new(units),
            aside: Vec::new(),
            page: NONE,
            under_way: 0,
            slots: 0,
            last_unit: 0,
            idle: false,
            keeps: false,
            origin: (0, Origin::Unknown),
            no_room: None,
        }
    }

    /// The bands with room that it has, by `Ftl::opens` index, but for those put aside.
    pub fn bands(&self) -> impl Iterator<Item = u32> {
        self.open.iter()
    }

    pub fn has_open(&self) -> bool {
        !self.aside.is_empty() || self.open.count() > 0
    }
}

/// What goes into one slot.
#[derive(Clone, Debug)]
pub(crate) struct Append {
    pub kind: Kind,
    pub lba: u32,
    pub sequence: u64,
    pub payload_crc: u32,
    pub argument: u32,
    pub group: (u8, u8),
    pub data: SlotData,
    pub owner: Owner,
}

/// Where an append went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    pub slot: SlotId,
    pub order: u64,
    pub page: u32,
}

/// What a unit has for a page.
enum Room {
    Here,
    /// Room, but its queue is full.
    Later,
    None,
}

impl Ftl {
    /// The page that takes the next slot of `point`, if any can be had now.
    pub(crate) fn page_of(&mut self, point: usize, grounds: Grounds) -> Option<u32> {
        if self.points[point].page == NONE && !self.adopt_page(point) {
            self.points[point].page = self.open_page(point, grounds)?;
        }
        Some(self.points[point].page)
    }

    /// Pages that may wait on a unit.
    pub(crate) fn appends_max(&self) -> u32 {
        if self.settings.read_slo_ns > 0 {
            return APPENDS_WAITING_MAX_SLO;
        }
        // Beside those at the medium one waits, and one comes.
        APPENDS_WAITING_MAX.max(self.units.programs_max() + 2)
    }

    /// The same for pages of `purpose`. While the host waits, relocations leave it a place in each
    /// queue: they come first in every other respect, and its pages are what releases the bands
    /// they have emptied.
    pub(crate) fn appends_max_of(&self, purpose: Purpose) -> u32 {
        let leaves = purpose == Purpose::Relocate && self.someone_waits_for_gc();
        self.appends_max() - u32::from(leaves)
    }

    fn open_page(&mut self, point: usize, grounds: Grounds) -> Option<u32> {
        let units = self.units_for(self.points[point].purpose);
        let page = PageView {
            last: self.points[point].last_unit,
            // Copies are vouched for by nobody.
            apart: self.geometry.pairing == Pairing::None
                && self.points[point].purpose == Purpose::Host,
            index: self.lba_next / self.geometry.slots_per_page,
            units: units.len() as u32,
            costs: self.units.costs(),
        };
        if let Some(home) = self.policies.unit.home(&page) {
            let home = units.start + home;
            match self.room_at(point, home, grounds) {
                Room::Here => return self.open_page_at(point, home, grounds),
                Room::Later => return None,
                Room::None => self.counters.static_fallbacks += 1,
            }
        }
        if let Some(unit) = self.unfinished(point) {
            return self.open_page_at(point, unit, grounds);
        }
        if let Some((_, unit)) = self.laggard().filter(|&(lagging, _)| lagging == point) {
            return self.open_page_at(point, unit, grounds);
        }
        let key = self.room_key(grounds);
        if let Some((at, dirty)) = self.points[point].no_room
            && key == Some(at)
        {
            self.units.clean_wanted |= dirty;
            return None;
        }
        self.list_units(point, grounds);
        self.units.clean_wanted |= self.views.dirty;
        let Some(&first) = self.views.list.first() else {
            self.want_opening(point);
            self.points[point].no_room = key.map(|key| (key, self.views.dirty));
            return None;
        };
        let list = &self.views.list;
        let index = if self.on_fast(point) {
            crate::policy::spread(list, &page)
        } else {
            self.policies.unit.pick(list, &page)
        };
        let view = list.get(index).copied().unwrap_or_else(|| {
            self.counters.policy_invalid += 1;
            first
        });
        self.open_page_at(point, view.unit, grounds)
    }

    /// The next page of `point` on a unit where it has a band open, or that has one that was left or a
    /// clean one.
    fn open_page_at(&mut self, point: usize, unit: u32, grounds: Grounds) -> Option<u32> {
        let own = self.points[point].open[unit as usize] != NONE;
        if !own && !self.take_from_aside(unit, point, grounds) && !self.adopt_band(unit, point) {
            let open = self.open_band(unit, self.points[point].purpose)?;
            self.opens[open].point = point as u32;
            self.points[point].open.put(unit as usize, open);
            self.note_opened(self.opens[open].block, point);
        }
        self.points[point].last_unit = unit;
        let open = self.points[point].open[unit as usize];
        let page = self.allocate_page(open);
        if self.is_written_full(self.opens[open].block) {
            self.points[point].open.put(unit as usize, NONE);
            self.views.of = None;
        }
        Some(page)
    }

    /// Whether `unit`, and no other, can take a page of `point`.
    fn room_at(&mut self, point: usize, unit: u32, grounds: Grounds) -> Room {
        let state = &self.units[unit as usize];
        let usual = !grounds.is_record() && !self.host.atomic_placing;
        if state.gone || !usual || self.now < self.no_space_until {
            return Room::None;
        }
        let own = &self.points[point];
        let open = own.open[unit as usize] != NONE
            || self.may_adopt(own) && self.who_left(unit as usize).is_some();
        let clean = !self.bands.clean(unit).is_empty();
        let widens = clean && self.may_widen(&self.points[point], grounds);
        if !open && !widens {
            self.units.clean_wanted |= !clean && !self.bands.dirty(unit).is_empty();
            return Room::None;
        }
        // A queue moves on by itself; its end counts as a change of room.
        let full = state.appends_waiting() >= APPENDS_WAITING_MAX_HOME;
        if full { Room::Later } else { Room::Here }
    }

    /// Changes whenever a unit may have got room for a page; `None` while room is given out by
    /// other rules than usual.
    pub(crate) fn room_key(&self, grounds: Grounds) -> Option<u64> {
        let usual = grounds == Grounds::Usual && !self.host.atomic_placing;
        (usual && self.now >= self.no_space_until).then_some(self.bands.moves + self.room_changes)
    }

    /// Opens a clean band of `unit`.
    pub(crate) fn open_band(&mut self, unit: u32, purpose: Purpose) -> Option<u32> {
        let clean = self.bands.clean(unit);
        if clean.is_empty() {
            return None;
        }
        let mut erase_counts = std::mem::take(&mut self.erase_counts);
        erase_counts.clear();
        erase_counts.extend(clean.iter().map(|&block| self.bands[block].erase_count));
        let index = self.policies.wear.pick_free(&erase_counts, purpose);
        self.erase_counts = erase_counts;
        let block = clean.get(index).copied().unwrap_or_else(|| {
            self.counters.policy_invalid += 1;
            clean[0]
        });
        let state =
            if purpose == Purpose::Checkpoint { BandState::Checkpoint } else { BandState::Open };
        self.bands.set_state(block, state);
        let band = &mut self.bands[block];
        (band.found, band.blank) = (false, false);
        (band.slots_written, band.slots_done) = (0, 0);
        (band.first_order, band.hold_order) = (0, 0);
        (band.invalid_order, band.vital_order) = (0, 0);
        let open = self.opens.take();
        let entry = &mut self.opens[open];
        assert!(entry.outstanding.is_empty() && entry.at_risk.is_empty(), "a closed band is empty");
        (entry.live, entry.block, entry.point) = (true, block, NONE);
        entry.header_durable = self.geometry.durable_at_completion;
        (entry.header_flush, entry.cut) = (None, false);
        entry.weight = self.units[unit as usize].weight;
        self.note_open(block, purpose);
        self.counters.bands_opened += 1;
        self.counters.bands_opened_host += u64::from(purpose == Purpose::Host);
        Some(open)
    }

    /// The next page of an open band; on a fast unit, what is left of it.
    pub(crate) fn allocate_page(&mut self, open: u32) -> u32 {
        let block = self.opens[open].block;
        let vital = !self.tells_vital() || self.geometry.is_fast(block);
        let order = self.durable.open(open, vital, self.sequence_next);
        let slots_per_page = self.geometry.slots_per_page;
        let band = &mut self.bands[block];
        let written = band.slots_written;
        let index = written / slots_per_page;
        assert!(index < self.geometry.pages_per_block, "a full band refuses append");
        let room = (index + 1) * slots_per_page - written;
        band.slots_written += room;
        if written == 0 {
            band.first_order = order;
        }
        let page = self.pages.take();
        let entry = &mut self.pages[page];
        assert!(entry.slots.is_empty() && entry.waiters.is_empty(), "a free page is empty");
        entry.state = PageState::Assembling;
        (entry.open, entry.point) = (open, NONE);
        entry.slot = SlotId(self.geometry.slot(block, 0, 0).0 + written);
        (entry.index, entry.room, entry.leads) = (index, room, written == 0);
        entry.order = order;
        entry.opened_at = self.now;
        self.opens[open].outstanding.push_back(page);
        page
    }

    /// Puts one slot into an assembling page and says where it is.
    pub(crate) fn put(&mut self, page: u32, append: Append) -> SlotId {
        let (watermark, vouches) = self.told_of_others(page, &append);
        let entry = &mut self.pages[page];
        let slot = SlotId(entry.slot.0 + entry.slots.len() as u32);
        let header = Header {
            kind: append.kind,
            lba: append.lba,
            sequence: append.sequence,
            order: entry.order,
            payload_crc: append.payload_crc,
            argument: append.argument,
            group: append.group,
            watermark,
            vouches,
        };
        let oob = encode_header(&header, slot, self.uuid_crc);
        entry.slots.push(SlotWrite { oob, data: append.data });
        entry.owners.push(append.owner);
        entry.previous.push(UNMAPPED);
        slot
    }

    /// Appends to `point`, which has a page. The map does not know of it yet.
    pub(crate) fn append(&mut self, point: usize, append: Append) -> Appended {
        let page = self.points[point].page;
        assert_ne!(page, NONE, "who appends has asked for a page");
        let appended = self.append_to(page, append);
        if self.pages[page].slots.len() as u32 == self.pages[page].room {
            self.points[point].page = NONE;
            self.queue_page(page);
        }
        appended
    }

    /// Appends to a page that has room.
    pub(crate) fn append_to(&mut self, page: u32, append: Append) -> Appended {
        let order = self.pages[page].order;
        let block = self.opens[self.pages[page].open].block;
        if self.tells_vital() && !self.geometry.is_fast(block) && append.is_vital() {
            self.durable.make_vital(order);
        }
        let band = &mut self.bands[block];
        // Where any page may look torn, what it says of others that no checkpoint has is needed until one has them.
        let vouches = !self.geometry.durable_at_completion && !self.geometry.is_fast(block);
        if append.needed_by_recovery() || vouches {
            band.hold_order = order;
        }
        if append.kind == Kind::Data {
            band.filling.add(append.sequence);
        }
        self.counters.slots_since_checkpoint += 1;
        let slot = self.put(page, append);
        Appended { slot, order, page }
    }

    /// Programs the page that `point` is filling: padded, or on a fast unit as far as it is filled.
    pub(crate) fn seal(&mut self, point: usize) {
        let page = std::mem::replace(&mut self.points[point].page, NONE);
        if page == NONE {
            return;
        }
        if self.on_fast(point) {
            self.cut_page(point, page);
        } else {
            self.pad(page);
        }
        self.queue_page(page);
    }

    /// The page of a fast unit that `point` was filling ends here; the next one begins behind it.
    fn cut_page(&mut self, point: usize, page: u32) {
        let entry = &mut self.pages[page];
        let left = entry.room - entry.slots.len() as u32;
        if left == entry.room {
            // Opened for something that went elsewhere.
            self.pad(page);
            return;
        }
        entry.room -= left;
        let open = entry.open;
        let block = self.opens[open].block;
        self.bands[block].slots_written -= left;
        if left > 0 {
            // The band may have looked full.
            self.points[point].open.put(self.geometry.unit_of(block) as usize, open);
            self.views.of = None;
            self.room_changes += 1;
        }
    }

    pub(crate) fn queue_page(&mut self, page: u32) {
        let entry = &mut self.pages[page];
        entry.state = PageState::OnUnit;
        entry.point = self.opens[entry.open].point;
        if let Some(point) = self.points.get_mut(entry.point as usize) {
            point.under_way += 1;
            point.slots += entry.slots.len() as u64;
        }
        let unit = self.bands.unit_of_slot(entry.slot);
        // A band that was left may be for others to fill now.
        self.room_changes += u64::from(self.streams.bands_left);
        self.units.queue_program(unit, page);
        let appends_max = match self.views.of {
            Some((point, _)) => self.appends_max_of(self.points[point].purpose),
            None => 0,
        };
        self.views.page_queued(unit, appends_max);
        self.dispatch(unit);
    }

    pub(crate) fn complete_program(&mut self, page: u32, result: Result<(), MediumError>) {
        let entry = &mut self.pages[page];
        let open = entry.open;
        let block = self.opens[open].block;
        let unit = self.geometry.unit_of(block);
        entry.state = PageState::Ended(result);
        // One less, because a relocation leaves a place to the host.
        let appends_max = self.appends_max() - 1;
        let state = &self.units[unit as usize];
        self.room_changes += u64::from(state.appends_waiting() >= appends_max);
        self.pages[page].ran = (self.units.program_ended(unit, page, self.now), self.now);
        match result {
            Err(MediumError::NoSpace) => self.note_no_space(),
            Err(_) => {}
            Ok(()) => {
                self.no_space_tries = 0;
                // Perhaps not for all of a checkpoint: it costs one try a second at most to know.
                self.checkpoint.rest_until(self.now + SECOND);
            }
        }
        if let Err(error) = result {
            self.bands[block].blank |= error == MediumError::NoSpace && self.pages[page].leads;
            self.stop_appending(open, error);
        }
        self.end_front(open);
        self.close_if_done(open);
        self.dispatch(unit);
        if self.units[unit as usize].appends_waiting() == 0 || self.commits_often() {
            self.seal_overdue();
        }
    }

    /// Ends the pages of an open band that have ended at the medium, in order.
    pub(crate) fn end_front(&mut self, open: u32) {
        while let Some(&first) = self.opens[open].outstanding.front() {
            let PageState::Ended(result) = self.pages[first].state else { break };
            self.opens[open].outstanding.pop_front();
            if let Some(point) = self.points.get_mut(self.pages[first].point as usize) {
                point.under_way -= 1;
            }
            match result {
                Ok(()) => self.end_page(open, first),
                Err(error) => self.fail_page(first, error),
            }
        }
    }

    /// The page is programmed.
    fn end_page(&mut self, open: u32, page: u32) {
        let (block, index, order, leads) = {
            let entry = &self.pages[page];
            (self.opens[open].block, entry.index, entry.order, entry.leads)
        };
        let slots = self.note_ended(page);
        if leads && !self.opens[open].header_durable {
            self.opens[open].header_flush = Some(self.flush_number_after_now());
            self.want_flush();
        }
        self.counters.slots_programmed += u64::from(slots);
        if self.geometry.is_fast(block) {
            self.counters.slots_programmed_fast += u64::from(slots);
        }
        if self.opens[open].point == NONE {
            self.checkpoint_page_ended(page, Ok(()));
        } else {
            self.settle(open, index, order);
            self.note_to_vouch(page);
        }
        let ran = self.pages[page].ran;
        for index in 0..self.pages[page].owners.len() {
            let owner = self.pages[page].owners[index];
            if let Owner::Request(request) = owner {
                self.host.requests[request].ran = ran;
            }
            self.tell(owner);
        }
        for index in 0..self.pages[page].waiters.len() {
            self.queue_read(self.pages[page].waiters[index]);
        }
        self.pages[page].clear();
        self.pages.give(page);
    }

    /// The program of `page` has ended, well or not. Returns how many slots it has.
    pub(crate) fn note_ended(&mut self, page: u32) -> u32 {
        let entry = &self.pages[page];
        let block = self.opens[entry.open].block;
        let end = entry.slot.0 + entry.room - self.geometry.slot(block, 0, 0).0;
        self.bands[block].slots_done = end;
        self.flush.covers_all = false;
        entry.room
    }

    /// Releases the orders that the program of page `index` made safe.
    fn settle(&mut self, open: u32, index: u32, order: u64) {
        let pages = self.geometry.pages_per_block;
        let pairing = self.geometry.pairing_of(self.opens[open].block);
        let partner = pairing.last_partner(index, pages);
        let risk_ignored = self.is_mutant(crate::mutant::Mutant::ForgetPairing);
        if partner > index && !risk_ignored {
            self.opens[open].at_risk.push_back((partner, order));
        } else {
            self.release(order);
        }
        while let Some(&(partner, order)) = self.opens[open].at_risk.front() {
            if partner > index {
                break;
            }
            self.opens[open].at_risk.pop_front();
            self.release(order);
        }
    }

    pub(crate) fn tell(&mut self, owner: Owner) {
        match owner {
            Owner::Nobody => {}
            Owner::Request(request) => self.part_ended(request),
            Owner::Relocation(chunk) => self.give_relocation(chunk),
            Owner::RefusedTrim => self.host.trims_running -= 1,
        }
    }

    pub(crate) fn own_header(&self, slot: SlotId, write: &SlotWrite) -> Header {
        decode_header(&write.oob, slot, self.uuid_crc).expect("our own header is sound")
    }

    /// `point` if it has a page, else, if `any`, one that has. What is not for the fast tier never
    /// goes there.
    pub(crate) fn point_or_any(
        &mut self,
        point: usize,
        any: bool,
        grounds: Grounds,
    ) -> Option<usize> {
        if self.page_of(point, grounds).is_some() {
            return Some(point);
        }
        let fast = self.on_fast(point);
        (0..self.points.len()).find(|&other| {
            any && (fast || !self.on_fast(other)) && self.page_of(other, grounds).is_some()
        })
    }

    /// Whether no page can be allocated in `block` any more.
    fn is_written_full(&self, block: BlockId) -> bool {
        self.bands[block].slots_written == self.geometry.slots_per_block()
    }

    /// Pages allocated in `block`.
    pub(crate) fn pages_written(&self, block: BlockId) -> u32 {
        self.bands[block].slots_written.div_ceil(self.geometry.slots_per_page)
    }

    /// Gives up an open band whose pages have all ended and that takes no more.
    pub(crate) fn close_if_done(&mut self, open: u32) {
        let block = self.opens[open].block;
        let full = self.is_written_full(block);
        if !full || !self.opens[open].outstanding.is_empty() || self.opens[open].point == NONE {
            return;
        }
        // What is programmed shares cells with nothing that is still to come.
        while self.opens[open].cut
            && let Some((_, order)) = self.opens[open].at_risk.pop_front()
        {
            self.release(order);
        }
        assert!(self.opens[open].at_risk.is_empty(), "a full band has no page at risk");
        self.give_open(open);
        let unit = self.geometry.unit_of(block);
        if self.units[unit as usize].gone {
            self.bands.set_state(block, BandState::Retired);
        } else {
            let empty = self.bands[block].slots_valid == 0;
            let state = if empty { BandState::Draining } else { BandState::Full };
            self.bands.set_state(block, state);
            self.restore_failing(block);
            self.drain_check = true;
        }
    }

    /// Appends padding until page `target` of an open band is on its way.
    pub(crate) fn pad_to(&mut self, open: u32, target: u32) {
        let block = self.opens[open].block;
        // The page being filled comes first: pages are programmed in order.
        if let Some(point) = self.points.get(self.opens[open].point as usize)
            && point.page != NONE
            && self.pages[point.page].open == open
            && self.pages[point.page].index <= target
        {
            self.seal(self.opens[open].point as usize);
        }
        while self.bands[block].slots_written < (target + 1) * self.geometry.slots_per_page {
            let page = self.allocate_page(open);
            self.pad(page);
            if self.opens[open].point == NONE {
                self.checkpoint_page_begun(page);
            }
            self.counters.pages_padded += 1;
            self.queue_page(page);
        }
        let unit = self.geometry.unit_of(block) as usize;
        if self.is_written_full(block) {
            self.room_changes += 1;
            self.take_from_points(open, unit);
        }
    }

    /// No append point has this open band of `unit` any more.
    pub(crate) fn take_from_points(&mut self, open: u32, unit: usize) {
        for point in &mut self.points {
            if point.open[unit] == open {
                point.open.put(unit, NONE);
            }
            point.aside.retain(|aside| aside.open != open);
        }
    }
}

impl Append {
    /// A slot without data.
    pub fn record(
        kind: Kind,
        lba: u32,
        sequence: u64,
        argument: u32,
        empty_crc: u32,
        owner: Owner,
    ) -> Self {
        Self {
            kind,
            lba,
            sequence,
            payload_crc: empty_crc,
            argument,
            group: (0, 0),
            data: SlotData::Empty,
            owner,
        }
    }

    /// More than a copy of what is still there.
    fn is_vital(&self) -> bool {
        self.kind != Kind::Data || !matches!(self.owner, Owner::Relocation(_))
    }

    fn needed_by_recovery(&self) -> bool {
        matches!(self.kind, Kind::Trim | Kind::Poison | Kind::Commit)
    }
}
