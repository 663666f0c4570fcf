//! The raw store alone: what it writes, what it makes of damage, and what it refuses.

mod full;

use crate::disks::{Disk, RawDisk, Stamp};
use flash::{BLOCK_BYTES, Instant, Pairing, SlotId};
use ftl::Core;
use ftl::raw::RawFormat;
use lab::device::{Manner, Small};
use lab::medium::Content;
use nand::Faults;
use pool::message::{BandHeader, Slot};
use pool::node::raw::format::{AppendHeader, Footer, LogSlot, Record};
use pool::node::raw::{OpenError, RawStoreSettings};
use pool::node::store::{Command, CommandId, Data, Done, End, Opening, StoreError};
use pool::words::{BandName, BandShape, Fenced, Generation, Members, NodeId, VolumeId};

const SMALL: Small = Small {
    manner: Manner::Nand(Pairing::None),
    units: 2,
    blocks_per_unit: 12,
    pages_per_block: 16,
    slots_per_page: 2,
    open_blocks_max: 0,
};
const SHAPE: BandShape = BandShape { pages: 4, slots_per_page: 3 };

/// A store and the time it is.
struct Bench {
    disk: RawDisk,
    now: Instant,
    next: u64,
}

fn format(small: Small, faults: Faults) -> Result<(RawDisk, Instant), String> {
    let medium = small.build(faults)?;
    let format = RawFormat { gang: 1, spare: 0.34, uuid: 7, label: Vec::new() };
    let settings = RawStoreSettings { volumes_max: 64, ..RawStoreSettings::default() };
    let mut now = Instant(0);
    let disk = RawDisk::format(medium, format, settings, &mut now)?;
    Ok((disk, now))
}

impl Bench {
    fn with(faults: Faults) -> Self {
        Self::of(SMALL, faults)
    }

    fn of(small: Small, faults: Faults) -> Self {
        let (disk, now) = format(small, faults).expect("it suits");
        let mut bench = Self { disk, now, next: 0 };
        assert_eq!(bench.run(fence(1, 1)), Ok(Done::Done));
        bench
    }

    fn new() -> Self {
        Self::with(Faults::default())
    }

    fn begin(&mut self, command: Command<Stamp>) -> CommandId {
        self.next += 1;
        self.disk.begin(self.now, CommandId(self.next), command);
        CommandId(self.next)
    }

    fn ends(&mut self) -> Vec<End<Stamp>> {
        let until = self.now + 60 * flash::SECOND;
        loop {
            let units = self.disk.store().units();
            assert!(self.now < until, "nothing ends: {}", units.explain());
            let ends = self.disk.advance(self.now);
            if !ends.is_empty() {
                return ends;
            }
            self.now = self.now.max(self.disk.deadline().expect("something is under way"));
        }
    }

    fn run(&mut self, command: Command<Stamp>) -> Result<Done<Stamp>, StoreError> {
        let id = self.begin(command);
        let mut ends = self.ends();
        assert_eq!((ends.len(), ends[0].id), (1, id));
        ends.remove(0).result
    }

    fn append(&mut self, number: u32, page: u32) -> Result<Done<Stamp>, StoreError> {
        self.run(append(number, page, SHAPE, false))
    }

    fn read(&mut self, number: u32, page: u32) -> Vec<Option<Slot<Stamp>>> {
        let (slot, count) = (page * SHAPE.slots_per_page, SHAPE.slots_per_page);
        let read = Command::Read { band: band(number), slot, count, urgent: false };
        match self.run(read) {
            Ok(Done::Slots(slots)) => slots,
            other => panic!("{other:?}"),
        }
    }

    fn assert_whole(&mut self, number: u32, page: u32) {
        let wanted: Vec<_> = slots(number, page, SHAPE).into_iter().map(Some).collect();
        assert_eq!(self.read(number, page), wanted, "band {number} page {page}");
    }

    fn restart(&mut self) -> Result<pool::node::store::Found, OpenError> {
        self.disk.remount(&mut self.now)
    }

    /// The store's own slots on the medium that `decode` understands.
    fn slots_of<T>(&mut self, decode: impl Fn(&[u8]) -> Option<T>) -> Vec<T> {
        let medium = self.disk.medium_mut();
        let slots = (0..medium.geometry().slots() as u32).map(SlotId);
        let readable: Vec<SlotId> = slots.filter(|&slot| medium.is_readable(slot)).collect();
        let content = |slot| match medium.peek(slot) {
            Some((_, Content::Meta(bytes))) => decode(&bytes[..]),
            _ => None,
        };
        readable.into_iter().filter_map(content).collect()
    }

    /// Makes one page of the flash unreadable, of those that have a slot of the store's own which `is` wanted:
    /// false if there are fewer.
    fn rot_page(&mut self, which: u32, is: impl Fn(&[u8]) -> bool) -> bool {
        let medium = self.disk.medium_mut();
        let per_page = medium.geometry().slots_per_page;
        let wanted = |slot: u32| {
            medium.is_readable(SlotId(slot))
                && matches!(medium.peek(SlotId(slot)), Some((_, Content::Meta(it))) if is(&it[..]))
        };
        let slots = (0..medium.geometry().slots() as u32).filter(|&slot| wanted(slot));
        let pages: std::collections::BTreeSet<u32> = slots.map(|slot| slot / per_page).collect();
        let Some(&page) = pages.iter().nth(which as usize) else { return false };
        (0..per_page).for_each(|slot| medium.rot(SlotId(page * per_page + slot)));
        true
    }

    /// Damages the data of one slot of a page of band 1.
    fn spoil(&mut self, page: u32, at: usize) {
        let wanted = slots(1, page, SHAPE)[at].data.expect("it is no zeroes");
        let medium = self.disk.medium_mut();
        let stamped = medium.stamped_slots();
        let (slot, stamp) = *stamped.iter().find(|(_, it)| *it == wanted.0).expect("written");
        let (oob, _) = medium.peek(slot).expect("it was written");
        medium.damage(slot, oob, Content::Stamp(stamp + 1000));
    }

    /// Makes each page of the flash unreadable that has a slot of the store's own which `is` wanted; how many.
    fn rot(&mut self, is: impl Fn(&[u8]) -> bool) -> u32 {
        let medium = self.disk.medium_mut();
        let mut rotten = 0;
        for slot in (0..medium.geometry().slots() as u32).map(SlotId) {
            if medium.is_readable(slot)
                && let Some((_, Content::Meta(bytes))) = medium.peek(slot)
                && is(&bytes[..])
            {
                medium.rot(slot);
                rotten += 1;
            }
        }
        rotten
    }
}

fn band(number: u32) -> BandName {
    BandName { volume: VolumeId(1), band: number, life: 1 << 32 }
}

fn header(shape: BandShape) -> BandHeader {
    BandHeader { members: Members::new(&[NodeId(1)]).expect("one"), shape }
}

/// The last slot of a page is zeroes.
fn slots(number: u32, page: u32, shape: BandShape) -> Vec<Slot<Stamp>> {
    let slot = |at: u32| {
        let data = Stamp(u64::from(number * 1000 + page * 100 + at));
        let data = (at + 1 < shape.slots_per_page).then_some(data);
        let crc = data.map_or(flash::crc(&[0; BLOCK_BYTES]), |data| data.crc());
        Slot { oob: [at as u8; 32], crc, data }
    };
    (0..shape.slots_per_page).map(slot).collect()
}

fn append(number: u32, page: u32, shape: BandShape, hidden: bool) -> Command<Stamp> {
    let open = (page == 0).then(|| Opening { header: header(shape), hidden });
    let slots = slots(number, page, shape);
    Command::Append { band: band(number), generation: Generation(1), page, open, slots }
}

fn fence(volume: u32, generation: u64) -> Command<Stamp> {
    let to = Fenced { generation: Generation(generation), owner: 5 };
    Command::Fence { volume: VolumeId(volume), to }
}

fn seal(number: u32, pages: u32) -> Command<Stamp> {
    Command::Seal { band: band(number), generation: Generation(1), pages }
}

#[test]
fn a_lone_block_costs_the_drive_two_slots_filled_up_to_a_page() {
    let mut bench = Bench::new();
    let programmed = |bench: &Bench| bench.disk.store().units().slots_programmed();
    let lone = BandShape { pages: 4, slots_per_page: 2 };
    let before = programmed(&bench);
    assert_eq!(bench.run(append(1, 0, lone, false)), Ok(Done::Done));
    assert_eq!(programmed(&bench) - before, 2);
    let before = programmed(&bench);
    assert_eq!(bench.append(2, 0), Ok(Done::Done));
    assert_eq!(programmed(&bench) - before, 4, "a header and two slots, in pages of two");
}

#[test]
fn a_band_that_does_not_fit_in_the_worst_case_is_refused_and_told_why() {
    let mut bench = Bench::new();
    // 32 slots: 7 pages of 4 and a footer of 2, twice, fit, 8 do not.
    let fits = |pages| bench.disk.store().fits(BandShape { pages, slots_per_page: 3 });
    assert_eq!(fits(7), Ok(()));
    let why = fits(8).expect_err("too large");
    assert!(why.contains("takes 36 slots") && why.contains("has 32") && why.contains('7'), "{why}");
    let large = BandShape { pages: 8, slots_per_page: 3 };
    assert_eq!(bench.run(append(1, 0, large, false)), Err(StoreError::Shape));
    assert_eq!(bench.append(1, 0), Ok(Done::Done), "nothing of it was begun");
}

#[test]
fn a_medium_whose_pages_share_cells_is_refused() {
    let small = Small { manner: Manner::Nand(Pairing::Staircase), ..SMALL };
    let why = format(small, Faults::default()).err().expect("pages share cells");
    assert!(why.contains("share cells"), "{why}");
}

#[test]
fn a_sealed_band_is_found_by_its_footer_and_without_it_by_its_headers() {
    for rotten in [false, true] {
        let mut bench = Bench::new();
        for page in 0..3 {
            assert_eq!(bench.append(1, page), Ok(Done::Done));
        }
        assert_eq!(bench.run(seal(1, 3)), Ok(Done::Done));
        assert!(bench.disk.stop(&mut bench.now));
        if rotten {
            assert!(bench.rot(|bytes| Footer::decode(bytes).is_some()) > 0);
        }
        let found = bench.restart().expect("sound");
        assert_eq!((found.bands.len(), found.bands[0].entry.pages), (1, 3));
        // Without its footer nothing says that it was sealed, and it takes no more.
        assert_eq!((found.bands[0].entry.sealed, found.bands[0].failed), (!rotten, rotten));
        for page in 0..3 {
            bench.assert_whole(1, page);
        }
    }
}

#[test]
fn a_damaged_header_takes_its_page_with_it_and_no_other() {
    let mut bench = Bench::new();
    for page in 0..4 {
        assert_eq!(bench.append(1, page), Ok(Done::Done));
    }
    assert!(bench.disk.stop(&mut bench.now));
    let second = |bytes: &[u8]| AppendHeader::decode(bytes).is_some_and(|it| it.page == 1);
    assert_eq!(bench.rot(second), 1);
    let found = bench.restart().expect("sound");
    assert_eq!((found.bands[0].entry.pages, found.bands[0].failed), (4, true));
    for page in [0, 2, 3] {
        bench.assert_whole(1, page);
    }
    assert_eq!(bench.read(1, 1), [const { None }; 3]);
    assert_eq!(bench.run(Command::Sum { band: band(1), page: 1 }), Ok(Done::Sum(None)));
    // What cannot be sealed by a footer is by the log.
    assert_eq!(bench.run(seal(1, 3)), Ok(Done::Done));
    assert!(bench.disk.stop(&mut bench.now));
    let found = bench.restart().expect("sound");
    assert_eq!((found.bands[0].entry.pages, found.bands[0].entry.sealed), (3, true));
    bench.assert_whole(1, 2);
}

/// Which slots of a read came with what was written.
fn are_sound(found: &[Option<Slot<Stamp>>]) -> Vec<bool> {
    found.iter().map(|slot| slot.as_ref().is_some_and(|slot| !slot.is_lost())).collect()
}

#[test]
fn damaged_data_is_never_returned() {
    let mut bench = Bench::new();
    assert_eq!(bench.append(1, 0), Ok(Done::Done));
    let medium = bench.disk.medium_mut();
    let stamped = medium.stamped_slots();
    let (slot, stamp) = stamped[stamped.len() - 1];
    let (oob, _) = medium.peek(slot).expect("it was written");
    medium.damage(slot, oob, Content::Stamp(stamp + 1));
    let found = bench.read(1, 0);
    assert_eq!(are_sound(&found), [true, false, true]);
    // Whose it was is told all the same: it stood elsewhere.
    let written = slots(1, 0, SHAPE)[1].clone();
    assert_eq!(found[1], Some(Slot { data: None, ..written }));
}

/// What was sound in it was lost with it, though the other copy may have lost other slots.
#[test]
fn a_last_page_of_which_a_slot_is_damaged_is_there_for_what_is_sound_of_it() {
    // Pages of the flash are those of the band: where a program is not durable when it ends a part of one says nothing.
    let mut bench =
        Bench::of(Small { manner: Manner::File, slots_per_page: 4, ..SMALL }, Faults::default());
    for page in 0..4 {
        assert_eq!(bench.append(1, page), Ok(Done::Done));
    }
    bench.spoil(2, 1);
    bench.spoil(3, 0);
    let entry = bench.restart().expect("sound").bands[0].entry;
    assert_eq!((entry.pages, entry.sound, entry.torn, entry.loose), (4, 2, true, 2));
    assert_eq!(are_sound(&bench.read(1, 2)), [true, false, true]);
    bench.assert_whole(1, 1);
    // Somebody found that all of it counts, with what others have.
    assert_eq!(bench.run(seal(1, 4)), Ok(Done::Done));
    assert!(bench.disk.stop(&mut bench.now));
    let entry = bench.restart().expect("sound").bands[0].entry;
    assert_eq!((entry.pages, entry.sound, entry.sealed, entry.torn), (4, 2, true, false));
    assert_eq!(are_sound(&bench.read(1, 3)), [false, true, true]);
}

/// What is behind it says that it was written.
#[test]
fn a_page_that_is_damaged_before_a_sound_one_is_not_at_the_end() {
    let mut bench =
        Bench::of(Small { manner: Manner::File, slots_per_page: 4, ..SMALL }, Faults::default());
    for page in 0..4 {
        assert_eq!(bench.append(1, page), Ok(Done::Done));
    }
    bench.spoil(1, 0);
    let entry = bench.restart().expect("sound").bands[0].entry;
    assert_eq!((entry.pages, entry.sound, entry.torn, entry.loose), (4, 1, false, 0));
}

#[test]
fn a_clean_stop_lets_an_open_band_go_on() {
    let mut bench = Bench::new();
    assert_eq!((bench.append(1, 0), bench.append(1, 1)), (Ok(Done::Done), Ok(Done::Done)));
    assert!(bench.disk.stop(&mut bench.now));
    let found = bench.restart().expect("sound");
    assert_eq!((found.bands[0].failed, found.bands[0].entry.pages), (false, 2));
    assert_eq!(bench.append(1, 2), Ok(Done::Done));
    bench.assert_whole(1, 0);
    bench.assert_whole(1, 2);
}

#[test]
fn a_copy_without_its_seal_is_gone_after_a_stop() {
    let mut bench = Bench::new();
    for number in [1, 2] {
        assert_eq!(bench.run(append(number, 0, SHAPE, true)), Ok(Done::Done));
    }
    assert_eq!(bench.run(seal(2, 1)), Ok(Done::Done));
    assert!(bench.disk.stop(&mut bench.now));
    let found = bench.restart().expect("sound");
    assert_eq!(found.bands.iter().map(|it| it.entry.band).collect::<Vec<_>>(), [band(2)]);
}

#[test]
fn the_log_keeps_every_fence_over_many_of_its_raw_blocks() {
    let mut bench = Bench::new();
    for round in 2..=100 {
        assert_eq!(bench.run(fence(round as u32 % 64, round)), Ok(Done::Done));
        if round % 7 == 0 {
            bench.disk.cut(&mut flash::Random::new(round));
            let found = bench.restart().expect("sound");
            for before in round.saturating_sub(63).max(2)..=round {
                let least = found.fences.get(&VolumeId(before as u32 % 64)).map(|to| to.generation);
                assert_eq!(least, Some(Generation(before)), "after {round}");
            }
        }
    }
}

#[test]
fn a_store_whose_log_is_damaged_or_gone_is_not_opened() {
    for gone in [false, true] {
        let mut bench = Bench::new();
        for round in 2..5 {
            assert_eq!(bench.run(fence(1, round)), Ok(Done::Done));
        }
        assert_eq!(bench.append(1, 0), Ok(Done::Done));
        if gone {
            bench.disk.cut(&mut flash::Random::new(0));
        } else {
            assert!(bench.disk.stop(&mut bench.now));
        }
        let one = |log: LogSlot| {
            log.records
                == [Record::Fence(VolumeId(1), Fenced { generation: Generation(3), owner: 5 })]
        };
        let rotten = bench.rot(|bytes| LogSlot::decode(bytes).is_some_and(|log| gone || one(log)));
        assert!(rotten > 0, "something was damaged");
        assert_eq!(bench.restart().err(), Some(OpenError::Log), "a fence could be lost");
    }
}

#[test]
fn a_program_that_fails_ends_its_band_and_takes_nothing_from_it() {
    let mut failed = 0;
    for seed in 0..60 {
        let faults = Faults { seed, program_fail: 0.06, ..Faults::default() };
        let Ok((disk, now)) = format(SMALL, faults) else { continue };
        let mut bench = Bench { disk, now, next: 0 };
        if bench.run(fence(1, 1)).is_err() {
            continue;
        }
        for page in 0..4 {
            match bench.append(1, page) {
                Ok(_) => continue,
                Err(error) => assert_eq!(error, StoreError::BandFailed, "seed={seed}"),
            }
            failed += 1;
            if page == 0 {
                assert_eq!(bench.run(seal(1, 0)), Err(StoreError::NoBand), "seed={seed}");
                break;
            }
            (0..page).for_each(|page| bench.assert_whole(1, page));
            assert_eq!(bench.run(seal(1, page)), Ok(Done::Done), "seed={seed}");
            bench.disk.cut(&mut flash::Random::new(seed));
            let found = bench.restart().expect("sound");
            let entry = found.bands[0].entry;
            assert_eq!((entry.pages, entry.sealed), (page, true), "seed={seed}");
            (0..page).for_each(|page| bench.assert_whole(1, page));
            break;
        }
    }
    assert!(failed > 5, "{failed} appends failed");
}

#[test]
fn an_answer_tells_when_the_unit_erases() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        assert_eq!(bench.append(number, 0), Ok(Done::Done));
    }
    let read = Command::Read { band: band(3), slot: 0, count: 1, urgent: false };
    bench.begin(read.clone());
    let quiet = bench.ends().remove(0).sensed;
    assert_eq!((quiet.unit_stirs, quiet.unit_queue), (false, Some(0)));
    // The first and the third band are on the same of two units.
    let read = bench.begin(read);
    bench.begin(Command::Free { band: band(1) });
    let first = bench.ends().remove(0);
    assert_eq!(first.id, read, "it was asked first");
    assert!(first.sensed.unit_stirs);
}

/// A band of one page that the power cut while it was open, and whose seal therefore is in the log.
fn sealed_by_the_log(bench: &mut Bench, number: u32) {
    assert_eq!(bench.append(number, 0), Ok(Done::Done));
    bench.disk.cut(&mut flash::Random::new(u64::from(number)));
    let found = bench.restart().expect("sound");
    assert!(found.bands.iter().any(|it| it.entry.band == band(number) && it.failed));
    assert_eq!(bench.run(seal(number, 1)), Ok(Done::Done));
}

#[test]
fn the_seal_of_a_band_that_was_freed_is_not_that_of_a_copy_of_the_same_life() {
    for cut in [false, true] {
        let mut bench = Bench::new();
        sealed_by_the_log(&mut bench, 1);
        assert_eq!(bench.run(Command::Free { band: band(1) }), Ok(Done::Done));
        if cut {
            bench.disk.cut(&mut flash::Random::new(9));
            assert!(bench.restart().expect("sound").bands.is_empty());
        }
        assert_eq!(bench.run(append(1, 0, SHAPE, true)), Ok(Done::Done));
        bench.disk.cut(&mut flash::Random::new(8));
        let found = bench.restart().expect("sound");
        assert_eq!(found.bands, [], "half a copy is nobody's");
    }
}

#[test]
fn the_seals_of_bands_that_are_gone_leave_the_log() {
    let mut bench = Bench::new();
    for number in 0..40 {
        sealed_by_the_log(&mut bench, number);
        assert_eq!(bench.run(Command::Free { band: band(number) }), Ok(Done::Done));
    }
    bench.disk.cut(&mut flash::Random::new(9));
    bench.restart().expect("sound");
    (2..60).for_each(|round| assert_eq!(bench.run(fence(1, round)), Ok(Done::Done)));
    let logs: Vec<LogSlot> = bench.slots_of(LogSlot::decode);
    let last = logs.iter().map(|log| log.number).max().expect("there is a log");
    let seals = logs.iter().filter(|log| log.number == last).flat_map(|log| &log.records);
    assert_eq!(seals.filter(|record| matches!(record, Record::Seal(..))).count(), 0);
}

#[test]
fn one_unreadable_page_of_the_log_costs_no_fence() {
    for stopped in [false, true] {
        for which in 0.. {
            let mut bench = Bench::new();
            for round in 2..30 {
                assert_eq!(bench.run(fence(round % 8, round.into())), Ok(Done::Done));
            }
            if stopped {
                assert!(bench.disk.stop(&mut bench.now));
            } else {
                bench.disk.cut(&mut flash::Random::new(3));
            }
            if !bench.rot_page(which, |bytes| LogSlot::decode(bytes).is_some()) {
                assert!(which > 1, "a log has more than one page");
                break;
            }
            let found = bench.restart().expect("each page is there twice");
            for round in 22..30 {
                let least = found.fences.get(&VolumeId(round % 8)).map(|to| to.generation);
                assert_eq!(least, Some(Generation(round.into())), "page {which}, {stopped}");
            }
        }
    }
}

#[test]
fn a_store_whose_log_is_gone_is_not_opened_as_an_empty_one() {
    for stopped in [false, true] {
        let mut bench = Bench::new();
        assert_eq!(bench.run(fence(1, 7)), Ok(Done::Done));
        if stopped {
            assert!(bench.disk.stop(&mut bench.now));
        } else {
            bench.disk.cut(&mut flash::Random::new(0));
        }
        assert!(bench.rot(|bytes| LogSlot::decode(bytes).is_some()) > 0);
        assert_eq!(bench.restart().err(), Some(OpenError::Log), "generation 7 is not known");
        bench.disk.cut(&mut flash::Random::new(1));
        assert_eq!(bench.restart().err(), Some(OpenError::Log), "and nothing was changed");
    }
}
#[test]
fn one_die_that_goes_takes_its_bands_and_not_the_node() {
    let mut bench = Bench::new();
    for number in 1..=4 {
        assert_eq!(bench.append(number, 0), Ok(Done::Done));
    }
    bench.disk.medium_mut().kill_unit(0);
    let mut refused = 0;
    for number in 1..=4 {
        match bench.run(Command::Free { band: band(number) }) {
            Ok(Done::Done) => {}
            other => {
                assert_eq!(other, Err(StoreError::BandFailed), "only the band is concerned");
                // It stays to be freed, and nothing of it is shown.
                assert_eq!(bench.read(number, 0), [const { None }; 3]);
                let again = bench.run(Command::Free { band: band(number) });
                assert_eq!(again, Err(StoreError::BandFailed));
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "some bands were on the die");
    assert_eq!(bench.run(fence(1, 2)), Ok(Done::Done));
    for number in 5..=7 {
        assert_eq!(bench.append(number, 0), Ok(Done::Done));
        bench.assert_whole(number, 0);
    }
    bench.disk.cut(&mut flash::Random::new(1));
    let found = bench.restart().expect("the log has a copy on the other die");
    assert_eq!(found.fences[&VolumeId(1)].generation, Generation(2));
    assert_eq!(bench.run(fence(1, 3)), Ok(Done::Done));
}
#[test]
fn one_unreadable_page_costs_no_seal() {
    let with_footer = |bytes: &[u8]| Footer::decode(bytes).is_some();
    for (hidden, cut) in [(false, false), (true, false), (false, true), (true, true)] {
        for which in 0.. {
            let mut bench = Bench::new();
            for page in 0..3 {
                assert_eq!(bench.run(append(1, page, SHAPE, hidden)), Ok(Done::Done));
            }
            assert_eq!(bench.run(seal(1, 2)), Ok(Done::Done));
            if cut {
                bench.disk.cut(&mut flash::Random::new(5));
            } else {
                assert!(bench.disk.stop(&mut bench.now));
            }
            if !bench.rot_page(which, with_footer) {
                assert!(which > 1, "a footer has more than one page");
                break;
            }
            let found = bench.restart().expect("sound");
            let entry = found.bands.first().expect("it was sealed").entry;
            assert_eq!((entry.sealed, entry.pages), (true, 2), "hidden {hidden}, page {which}");
            (0..2).for_each(|page| bench.assert_whole(1, page));
        }
    }
}

#[test]
fn programs_that_are_cut_short_cost_the_units_no_block() {
    let mut cut = 0;
    for seed in 0..20 {
        let faults = Faults { seed, program_cut: 0.02, ..Faults::default() };
        let Ok((disk, now)) = format(SMALL, faults) else { continue };
        let mut bench = Bench { disk, now, next: 0 };
        if bench.run(fence(1, 1)).is_err() {
            continue;
        }
        for number in 0..40 {
            let ends = [0, 1, 2].map(|page| bench.append(number, page).is_err());
            cut += u32::from(ends.contains(&true));
            assert_eq!(bench.run(Command::Free { band: band(number) }), Ok(Done::Done));
        }
        let units = bench.disk.store().units();
        let bad: u32 = (0..units.lanes().lanes).map(|at| units.lane_status(at).blocks_bad).sum();
        assert_eq!(bad, 0, "seed={seed}: what was cut short is as good as any after its erase");
    }
    assert!(cut > 50, "{cut} bands were cut short");
}

#[test]
fn a_volume_that_is_forgotten_has_no_fence_after_any_number_of_mounts() {
    let mut bench = Bench::new();
    assert_eq!(bench.append(1, 0), Ok(Done::Done));
    assert_eq!(bench.run(fence(2, 6)), Ok(Done::Done));
    assert_eq!(bench.run(Command::Free { band: band(1) }), Ok(Done::Done));
    assert_eq!(bench.run(Command::Forget { volume: VolumeId(1) }), Ok(Done::Done));
    for seed in 0..3 {
        bench.disk.cut(&mut flash::Random::new(seed));
        let found = bench.restart().expect("sound");
        assert!(found.bands.is_empty(), "{found:?}");
        assert_eq!(found.fences.keys().copied().collect::<Vec<_>>(), [VolumeId(2)]);
    }
    assert_eq!(bench.run(fence(1, 1)), Ok(Done::Done), "and may be fenced anew");
    bench.disk.cut(&mut flash::Random::new(3));
    let found = bench.restart().expect("sound");
    assert_eq!(found.fences[&VolumeId(1)].generation, Generation(1));
}
