//! The stores behind the same rules: what is programmed reads back, in whatever order the I/O
//! completes.

use super::*;
use crate::device::{Device, DeviceOptions, FastOptions, Kind, Mode, VolumeOptions};
use crate::runtime::ring::DriverChoice;
use flash::SlotData;
use nand::{Faults, Profile};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub(super) struct Rig {
    pub medium: Medium,
    views: Views,
    ring: Ring,
    now: Instant,
    next_tag: u32,
}

/// By tag.
pub(super) type Results = BTreeMap<u32, Result<(), MediumError>>;

/// What came back: tag and `None`, or for reads the status, OOB and first byte of each slot.
pub(super) type Slots = Vec<(SlotStatus, Oob, u32)>;

impl Rig {
    pub fn new(medium: Medium) -> Self {
        let (views, ring) =
            (Views::new(8, medium.lends()), Ring::new(16, DriverChoice::Auto).unwrap());
        Self { medium, views, ring, now: Instant(0), next_tag: 0 }
    }

    pub fn tag(&mut self) -> Tag {
        self.next_tag += 1;
        Tag(self.next_tag)
    }

    pub fn start(&mut self, command: Command, slots: &[SlotWrite]) {
        self.medium.start(self.now, command, slots, &mut self.views, &mut self.ring);
    }

    /// Until nothing is under way: results by tag, and what reads found.
    pub fn finish(&mut self) -> (Results, BTreeMap<u32, Slots>) {
        let (mut results, mut reads) = (BTreeMap::new(), BTreeMap::new());
        while self.medium.under_way() > 0 {
            self.step(&mut results, &mut reads);
        }
        (results, reads)
    }

    /// What has completed by now; then the next I/O, or if there is none, time goes on.
    pub fn step(&mut self, results: &mut Results, reads: &mut BTreeMap<u32, Slots>) {
        let Self { medium, views, ring, now, .. } = self;
        while medium.poll(*now, views, ring, &mut |done| match done {
            Completion::Read { tag, slots } => {
                results.insert(tag.0, slots.map(|_| ()));
                let slots = slots.unwrap_or_default().iter();
                let found = slots.map(|slot| (slot.status, slot.oob, slot.crc));
                reads.insert(tag.0, found.collect());
            }
            Completion::Program { tag, result }
            | Completion::Erase { tag, result }
            | Completion::Flush { tag, result } => {
                results.insert(tag.0, result);
            }
            Completion::Finish { tag } => {
                results.insert(tag.0, Ok(()));
            }
        }) {}
        if ring.under_way() > 0 {
            let mut done = Vec::new();
            ring.enter(None, &mut done).unwrap();
            for done in done {
                medium.io_done(*now, done, ring);
            }
        } else if let Some(at) = medium.deadline() {
            *now = at.max(*now);
        }
    }

    /// Ends as a killed process does: the I/O under way ends, and nobody hears of it.
    pub fn kill(mut self) {
        while self.ring.under_way() > 0 {
            self.ring.enter(None, &mut Vec::new()).unwrap();
        }
    }

    fn page(&self, stamp: u8) -> Vec<SlotWrite> {
        let slots = self.medium.geometry().slots_per_page;
        let bytes = Box::new([stamp; BLOCK_BYTES]);
        vec![SlotWrite { oob: [stamp; OOB_BYTES], data: SlotData::Meta(bytes) }; slots as usize]
    }
}

pub(super) fn options(kind: Kind) -> DeviceOptions {
    let volume = VolumeOptions { name: "v".into(), blocks: 2048, read_only: false };
    DeviceOptions {
        kind,
        volumes: vec![volume],
        blocks_min: 0,
        op_percent: 50,
        channels: 2,
        dies_per_channel: 1,
        shards: 1,
        faults: Faults::default(),
        raw: None,
        fast: None,
        kept: crate::kept::KeptOptions::off(),
        losses: Default::default(),
        injections: Default::default(),
        dilate: 1,
    }
}

pub(super) struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-medium-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn kinds(folder: &Path) -> [Kind; 3] {
    let profile = Profile::builtin("slc").unwrap();
    [
        Kind::Memory { profile: profile.clone() },
        Kind::Nand { path: folder.join("dev"), profile },
        Kind::File { path: folder.join("dev.img") },
    ]
}

fn create(kind: Kind) -> (Device, Rig) {
    let mut device = Device::create(&options(kind), &ftl::Settings::default()).unwrap();
    let rig = Rig::new(device.media.remove(0));
    (device, rig)
}

#[test]
fn a_slowed_clock_makes_all_that_flash_does_as_many_times_longer() {
    let folder = Scratch::new("dilated");
    let took = |times: u32, kind: Kind| {
        let options = DeviceOptions { dilate: times, ..options(kind) };
        let device = Device::create(&options, &ftl::Settings::default()).unwrap();
        let mut rig = Rig::new(device.dilate(times).media.remove(0));
        let geometry = *rig.medium.geometry();
        let slot = geometry.slot(geometry.block(0, 0), 0, 0);
        let (page, count) = (rig.page(1), geometry.slots_per_page);
        let program = Command::Program { tag: rig.tag(), slot, count };
        rig.start(program, &page);
        assert!(rig.finish().0.values().all(Result::is_ok));
        let programmed = rig.now.0;
        let tag = rig.tag();
        rig.start(Command::Read { tag, slot, count, into: None, urgent: false }, &[]);
        assert!(rig.finish().0.values().all(Result::is_ok));
        (programmed, rig.now.0 - programmed)
    };
    let profile = || Profile::builtin("slc").unwrap();
    let (program, read) = took(1, Kind::Memory { profile: profile() });
    assert!(program > 0 && read > 0);
    for times in [2, 7, 1000] {
        let slowed = (program * u64::from(times), read * u64::from(times));
        assert_eq!(took(times, Kind::Memory { profile: profile() }), slowed);
        let path = folder.0.join(times.to_string());
        assert_eq!(took(times, Kind::Nand { path, profile: profile() }), slowed);
    }
}

#[test]
fn every_store_gives_back_what_was_programmed_and_nothing_after_an_erase() {
    let folder = Scratch::new("conformance");
    for kind in kinds(&folder.0) {
        let (_device, mut rig) = create(kind.clone());
        let geometry = *rig.medium.geometry();
        let block = geometry.block(1, 2);
        let slot = |page| geometry.slot(block, page, 0);
        // All at once: the medium keeps them in order.
        let (program, second) = (rig.tag(), rig.tag());
        let (first_page, second_page) = (rig.page(1), rig.page(2));
        rig.start(
            Command::Program { tag: program, slot: slot(0), count: first_page.len() as u32 },
            &first_page,
        );
        rig.start(
            Command::Program { tag: second, slot: slot(1), count: second_page.len() as u32 },
            &second_page,
        );
        let (results, _) = rig.finish();
        assert!(results.values().all(Result::is_ok), "{kind:?}");
        let read = |rig: &mut Rig, page| {
            let (tag, count) = (rig.tag(), geometry.slots_per_page);
            let command = Command::Read { tag, slot: slot(page), count, into: None, urgent: false };
            rig.start(command, &[]);
            rig.finish().1.remove(&tag.0).unwrap()
        };
        for (page, stamp) in [(0, 1u8), (1, 2)] {
            for (status, oob, crc) in read(&mut rig, page) {
                assert_eq!(status, SlotStatus::Ok, "{kind:?}");
                assert_eq!(oob, [stamp; OOB_BYTES]);
                assert_eq!(crc, flash::crc(&[stamp; BLOCK_BYTES]));
            }
        }
        assert!(read(&mut rig, 2).iter().all(|slot| slot.0 == SlotStatus::Erased));
        let (erase, again) = (rig.tag(), rig.tag());
        let third_page = rig.page(3);
        rig.start(Command::Erase { tag: erase, block }, &[]);
        rig.start(
            Command::Program { tag: again, slot: slot(0), count: third_page.len() as u32 },
            &third_page,
        );
        assert!(rig.finish().0.values().all(Result::is_ok));
        assert!(read(&mut rig, 0).iter().all(|slot| slot.1 == [3; OOB_BYTES]));
        assert!(read(&mut rig, 1).iter().all(|slot| slot.0 == SlotStatus::Erased));
        assert_eq!(rig.medium.health().erase_counts[block.0 as usize], 1);
    }
}

#[test]
fn files_bring_the_state_of_each_block_back() {
    let folder = Scratch::new("reopen");
    for kind in kinds(&folder.0).into_iter().skip(1) {
        let (mut device, mut rig) = create(kind.clone());
        let geometry = *rig.medium.geometry();
        let slot = |block, page| geometry.slot(BlockId(block), page, 0);
        for (block, pages) in [(0, 3), (1, 1), (2, geometry.pages_per_block)] {
            for page in 0..pages {
                let (tag, content) = (rig.tag(), rig.page(page as u8 | 1));
                rig.start(
                    Command::Program { tag, slot: slot(block, page), count: content.len() as u32 },
                    &content,
                );
                rig.finish();
            }
        }
        let (erase, flush) = (rig.tag(), rig.tag());
        rig.start(Command::Erase { tag: erase, block: BlockId(1) }, &[]);
        rig.finish();
        rig.start(Command::Flush { tag: flush }, &[]);
        assert!(rig.finish().0.values().all(Result::is_ok));
        device.commit().unwrap();
        drop((device, rig));
        let device = Device::open(&kind, Mode::ReadWrite).unwrap();
        let nand = &device.media[0].nand;
        let found = [0, 1, 2, 3].map(|block| nand.record(BlockId(block)));
        let pointers = found.map(|record| record.write_pointer);
        assert_eq!(pointers, [3, 0, geometry.pages_per_block, 0], "{kind:?}");
        assert_eq!(found.map(|record| record.erase_count), [0, 1, 0, 0], "{kind:?}");
    }
}

/// Footers of a checkpoint that was given up would count as written.
#[test]
fn an_erase_that_is_killed_makes_no_page_written_that_was_not() {
    let folder = Scratch::new("killed-erase");
    let mut pointers = BTreeMap::new();
    for (steps, kind) in (0..8).flat_map(|steps| {
        let folder = folder.0.join(steps.to_string());
        std::fs::create_dir(&folder).unwrap();
        kinds(&folder).into_iter().skip(1).map(move |kind| (steps, kind))
    }) {
        let (mut device, mut rig) = create(kind.clone());
        let geometry = *rig.medium.geometry();
        let slot = |page| geometry.slot(BlockId(0), page, 0);
        for page in 0..3 {
            let (tag, content) = (rig.tag(), rig.page(page as u8 | 1));
            let count = content.len() as u32;
            rig.start(Command::Program { tag, slot: slot(page), count }, &content);
            rig.finish();
        }
        let flush = rig.tag();
        rig.start(Command::Flush { tag: flush }, &[]);
        rig.finish();
        device.commit().unwrap();
        let tag = rig.tag();
        rig.start(Command::Erase { tag, block: BlockId(0) }, &[]);
        for _ in 0..steps {
            rig.step(&mut Results::new(), &mut BTreeMap::new());
        }
        rig.kill();
        drop(device);
        let device = Device::open(&kind, Mode::ReadWrite).unwrap();
        let record = device.media[0].nand.record(BlockId(0));
        assert!(record.write_pointer <= 3, "{kind:?}, {steps} steps: {record:?}");
        *pointers.entry((record.write_pointer, record.erase_count)).or_insert(0) += 1;
    }
    assert!(pointers.contains_key(&(3, 0)) && pointers.contains_key(&(0, 1)), "{pointers:?}");
}

/// As after a power loss of the host: the record says more than the other files hold.
#[test]
fn a_page_whose_oob_never_got_to_the_disk_reads_as_torn() {
    let folder = Scratch::new("torn");
    let kind = kinds(&folder.0)[1].clone();
    let (mut device, mut rig) = create(kind.clone());
    let slot = rig.medium.geometry().slot(BlockId(0), 0, 0);
    let (tag, content) = (rig.tag(), rig.page(5));
    rig.start(Command::Program { tag, slot, count: content.len() as u32 }, &content);
    rig.finish();
    device.commit().unwrap();
    drop((device, rig));
    let oob = std::fs::File::options().write(true).open(folder.0.join("dev/shard-0/oob")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&oob, &[0; 32], 0).unwrap();
    let mut device = Device::open(&kind, Mode::ReadWrite).unwrap();
    let mut rig = Rig::new(device.media.remove(0));
    let tag = rig.tag();
    rig.start(Command::Read { tag, slot, count: 1, into: None, urgent: false }, &[]);
    let (_, reads) = rig.finish();
    assert_eq!(reads[&tag.0][0].0, SlotStatus::Uncorrectable);
}

#[test]
fn a_full_disk_is_no_bad_block() {
    let folder = Scratch::new("full");
    let kind = kinds(&folder.0)[1].clone();
    let (mut device, rig) = create(kind.clone());
    device.commit().unwrap();
    drop((device, rig));
    let mut device = Device::open(&kind, Mode::ReadWrite).unwrap();
    let medium = device.media.remove(0);
    let (nand, geometry) = (medium.nand.clone(), *medium.geometry());
    drop(medium);
    let generation = std::fs::File::open(folder.0.join("dev/generation")).unwrap();
    let mut expected = [0; GENERATION_BYTES];
    std::os::unix::fs::FileExt::read_exact_at(&generation, &mut expected, 0).unwrap();
    let fence = Fence { file: generation, at: 0, expected };
    let store =
        FileStore::open(&folder.0.join("dev/shard-0"), &geometry, (true, false), fence, Vec::new());
    let mut store = store.unwrap();
    store.replace_data(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let mut rig = Rig::new(Medium::new(nand, Store::File(store), false));
    let (tag, content) = (rig.tag(), rig.page(5));
    rig.start(Command::Program { tag, slot: SlotId(0), count: content.len() as u32 }, &content);
    let (results, _) = rig.finish();
    assert_eq!(results[&tag.0], Err(MediumError::NoSpace));
    assert!(rig.medium.health().bad_blocks.is_empty());
}

/// A two-tier device with its fast tier at `fast`.
fn tiered(folder: &Path, fast: Kind) -> DeviceOptions {
    let fast = FastOptions { kind: fast, bytes: None, units: 2 };
    DeviceOptions { fast: Some(fast), ..options(Kind::File { path: folder.join("slow.img") }) }
}

/// Programs slots `slots` of a fast block, each with its number as the content: at most a page, or
/// what is left of one, at a time.
fn program_fast(rig: &mut Rig, first: SlotId, slots: std::ops::Range<u32>) {
    let per_page = rig.medium.geometry().slots_per_page;
    let mut next = slots.start;
    while next < slots.end {
        let end = slots.end.min((next / per_page + 1) * per_page);
        let page = (next..end).map(|slot| {
            let bytes = Box::new([slot as u8; BLOCK_BYTES]);
            SlotWrite { oob: [slot as u8 | 0x80; OOB_BYTES], data: SlotData::Meta(bytes) }
        });
        let (tag, page) = (rig.tag(), page.collect::<Vec<_>>());
        let slot = SlotId(first.0 + next);
        rig.start(Command::Program { tag, slot, count: page.len() as u32 }, &page);
        assert_eq!(rig.finish().0[&tag.0], Ok(()));
        next = end;
    }
}

/// Reads slots `slots` and expects what [`program_fast`] wrote.
fn expect_fast(rig: &mut Rig, first: SlotId, slots: std::ops::Range<u32>) {
    for slot in slots {
        let tag = rig.tag();
        let at = SlotId(first.0 + slot);
        rig.start(Command::Read { tag, slot: at, count: 1, into: None, urgent: false }, &[]);
        let found = rig.finish().1.remove(&tag.0).unwrap()[0];
        let content = flash::crc(&[slot as u8; BLOCK_BYTES]);
        assert_eq!(found, (SlotStatus::Ok, [slot as u8 | 0x80; OOB_BYTES], content), "slot {slot}");
    }
}

#[test]
fn a_fast_tier_goes_on_in_the_middle_of_an_oob_sector_and_over_its_end() {
    let profile = Profile::builtin("slc").unwrap();
    for name in ["fast.img", "fast"] {
        let folder = Scratch::new(&format!("begun-{name}"));
        let path = folder.0.join(name);
        let fast = match name {
            "fast" => Kind::Nand { path: path.clone(), profile: profile.clone() },
            _ => Kind::File { path: path.clone() },
        };
        let options = tiered(&folder.0, fast);
        let mut device = Device::create(&options, &ftl::Settings::default()).unwrap();
        let mut rig = Rig::new(device.media.remove(0));
        let geometry = *rig.medium.geometry();
        let block = geometry.block(geometry.capacity_units() + 1, 2);
        let first = geometry.slot(block, 0, 0);
        // 128 OOBs to a sector.
        for slots in [0..3, 3..60, 60..126] {
            program_fast(&mut rig, first, slots);
        }
        device.commit().unwrap();
        for (end, next) in [(126, 126..131), (131, 131..140)] {
            drop((device, rig));
            device = Device::open(&options.kind, Mode::ReadWrite).unwrap();
            rig = Rig::new(device.media.remove(0));
            assert_eq!(rig.medium.nand.record(block).write_pointer, end);
            program_fast(&mut rig, first, next.clone());
            expect_fast(&mut rig, first, 0..next.end);
        }
        // The sectors of its neighbour are its own.
        let neighbour = geometry.slot(BlockId(block.0 + 1), 0, 0);
        program_fast(&mut rig, neighbour, 0..2);
        let tag = rig.tag();
        rig.start(Command::Erase { tag, block }, &[]);
        assert_eq!(rig.finish().0[&tag.0], Ok(()));
        program_fast(&mut rig, first, 0..1);
        drop((device, rig));
        device = Device::open(&options.kind, Mode::ReadWrite).unwrap();
        rig = Rig::new(device.media.remove(0));
        assert_eq!(rig.medium.nand.record(block).write_pointer, 1);
        assert_eq!(rig.medium.nand.record(block).erase_count, 1);
        expect_fast(&mut rig, first, 0..1);
        expect_fast(&mut rig, neighbour, 0..2);
    }
}

/// A store of zones of 4 MiB with 3 that can be written, on a plain file of that size: which takes the
/// pages, and refuses resets.
fn zones_in_a_file(path: &Path) -> Rig {
    let profile = Profile {
        page_bytes: BLOCK_BYTES as u32,
        planes: SLOTS_PER_PAGE,
        pages_per_block: 48,
        open_blocks_max: 3,
        ..Profile::builtin("instant").unwrap()
    };
    let layout = nand::Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 8 };
    let rules = nand::Nand::new(&profile, &layout, Faults::default()).unwrap();
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(path).unwrap();
    // The generation, for who looks at it.
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; GENERATION_BYTES], 0).unwrap();
    let place = Place::of_zones(4096, 4 << 20, 9);
    let fence = Fence { file: file.try_clone().unwrap(), at: 0, expected: [0; GENERATION_BYTES] };
    let counts = (5..13).map(Into::into).collect();
    let store = DirectStore::open_zoned(file, &rules.geometry(), place, &fence, (counts, 0));
    Rig::new(Medium::new(rules, Store::Direct(store.unwrap()), false))
}

#[test]
fn zones_lie_where_their_stride_says_and_are_read_only_where_they_are_written() {
    let folder = Scratch::new("zones");
    let mut rig = zones_in_a_file(&folder.0.join("disk"));
    let geometry = *rig.medium.geometry();
    let (slot, page) = (geometry.slot(BlockId(1), 0, 0), rig.page(7));
    let (tag, count) = (rig.tag(), SLOTS_PER_PAGE);
    rig.start(Command::Program { tag, slot, count }, &page);
    assert_eq!(rig.finish().0[&tag.0], Ok(()));
    let bytes = std::fs::read(folder.0.join("disk")).unwrap();
    let at = 4096 + (4 << 20);
    assert_eq!(bytes.len(), at + page_bytes(SLOTS_PER_PAGE) as usize);
    assert_eq!(&bytes[at..at + 4], b"WPU1");
    // Behind the end of the file a read would fail.
    let nothing = geometry.slot(BlockId(1), 1, 0);
    for (slot, status) in [(slot, SlotStatus::Ok), (nothing, SlotStatus::Erased)] {
        let tag = rig.tag();
        rig.start(Command::Read { tag, slot, count, into: None, urgent: false }, &[]);
        let (results, reads) = rig.finish();
        assert_eq!(results[&tag.0], Ok(()));
        assert!(reads[&tag.0].iter().all(|slot| slot.0 == status), "{status:?}");
    }
}

#[test]
fn a_zone_that_cannot_be_reset_is_a_block_that_failed_and_a_finish_ends_all_the_same() {
    let folder = Scratch::new("zones-refused");
    let mut rig = zones_in_a_file(&folder.0.join("disk"));
    let block = BlockId(2);
    let (slot, page) = (rig.medium.geometry().slot(block, 0, 0), rig.page(1));
    let [program, finish, erase] = [(); 3].map(|()| rig.tag());
    rig.start(Command::Program { tag: program, slot, count: SLOTS_PER_PAGE }, &page);
    rig.start(Command::Finish { tag: finish, block }, &[]);
    rig.start(Command::Erase { tag: erase, block }, &[]);
    let (results, _) = rig.finish();
    let wanted = [Ok(()), Ok(()), Err(MediumError::BlockFailed)];
    assert_eq!([program, finish, erase].map(|tag| results[&tag.0]), wanted);
}
