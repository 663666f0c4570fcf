//! Kept memory over real stores: whatever a kill leaves behind, a medium with kept memory says what the
//! same medium says without.

use super::tests::{Rig, Scratch, options};
use super::*;
use crate::device::{Device, DeviceOptions, FastOptions, KeptOptions, KeptPlace, Kind, Mode};
use crate::kept::Flaw;
use flash::{Random, SlotData};
use ftl::format::{Header, Kind as SlotKind, encode_header};
use nand::{BlockRecord, Profile};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A device with kept memory, on and after every kill the same files.
struct Lives {
    options: DeviceOptions,
    random: Random,
    order: u64,
    flaw: Option<Flaw>,
}

/// What reads of a mount found: status, OOB and checksum of every slot.
type Found = Vec<(SlotStatus, Oob, u32)>;

impl Lives {
    fn new(kind: Kind, fast: Option<Kind>, kept: &Path, seed: u64) -> Self {
        let place = KeptPlace::At(kept.into());
        let fast = fast.map(|kind| FastOptions { kind, bytes: None, units: 1 });
        let kept = KeptOptions { place, bytes_max: None };
        let options = DeviceOptions { kept, fast, ..options(kind) };
        Self { options, random: Random::new(seed), order: 1, flaw: None }
    }

    fn open(&self) -> (Device, Rig) {
        let mut device =
            Device::open_as(&self.options, (&ftl::Settings::default(), 0), Mode::ReadWrite)
                .unwrap();
        let mut medium = device.media.remove(0);
        medium.kept.iter_mut().for_each(|kept| kept.flaw = self.flaw);
        (device, Rig::new(medium))
    }

    fn uuid_crc(&self) -> u32 {
        let uuid = match &self.options.kind {
            Kind::File { path } => {
                let mut bytes = [0; 16];
                std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, 16).unwrap();
                u128::from_le_bytes(bytes)
            }
            Kind::Nand { path, .. } => {
                let text = std::fs::read_to_string(path.join("device.toml")).unwrap();
                let table: toml::Table = text.parse().unwrap();
                u128::from_str_radix(table["uuid"].as_str().unwrap(), 16).unwrap()
            }
            Kind::Memory { .. } => unreachable!("nothing is kept of memory"),
        };
        ftl::format::uuid_crc(uuid)
    }

    /// A page of sound slots of the host, or of a checkpoint.
    fn page(&mut self, first: SlotId, count: u32, uuid_crc: u32) -> Vec<SlotWrite> {
        self.order += 1;
        let kind = if self.random.chance(0.1) { SlotKind::Map } else { SlotKind::Data };
        let slot = |i: u32| {
            let bytes = Box::new([self.order as u8; BLOCK_BYTES]);
            let header = Header {
                kind,
                lba: i,
                sequence: self.order,
                order: self.order,
                payload_crc: flash::crc(&bytes[..]),
                argument: 0,
                group: (0, 0),
                watermark: 0,
                vouches: None,
            };
            let oob = encode_header(&header, SlotId(first.0 + i), uuid_crc);
            SlotWrite { oob, data: SlotData::Meta(bytes) }
        };
        (0..count).map(slot).collect()
    }

    /// Programs and erases at random, and is killed between any two completions.
    fn live(&mut self, mut rig: Rig) {
        let geometry = *rig.medium.geometry();
        let uuid_crc = self.uuid_crc();
        // Few blocks, so that each has many lives; some of every tier.
        let slow = geometry.capacity_units();
        let blocks: Vec<BlockId> = (0..geometry.units)
            .flat_map(|unit| (0..2).map(move |index| (unit, index)))
            .map(|(unit, index)| geometry.block(unit, index))
            .filter(|&block| geometry.exists(block))
            .collect();
        let mut busy = vec![0u32; blocks.len()];
        let mut tags: BTreeMap<u32, usize> = BTreeMap::new();
        let mut programs: BTreeMap<u32, (SlotId, u32)> = BTreeMap::new();
        let mut left = 1 + self.random.below(120);
        loop {
            let at = self.random.below(blocks.len() as u64) as usize;
            let block = blocks[at];
            let record = rig.medium.nand.record(block);
            let fast = geometry.unit_of(block) >= slow;
            let room = if fast { geometry.slots_per_block() } else { geometry.pages_per_block };
            let blocked = record.bad || record.needs_erase;
            let of_unit = |at: &usize| geometry.unit_of(blocks[*at]) == geometry.unit_of(block);
            let queued: u32 = (0..blocks.len()).filter(of_unit).map(|at| busy[at]).sum();
            let takes = queued < geometry.queue_depth;
            if takes && busy[at] == 0 && (blocked || self.random.chance(0.15)) {
                let tag = rig.tag();
                tags.insert(tag.0, at);
                busy[at] += 1;
                rig.start(Command::Erase { tag, block }, &[]);
            } else if takes && busy[at] < 2 && !blocked && record.write_pointer < room {
                let wp = record.write_pointer;
                let per_page = geometry.slots_per_page;
                let (index, count) = match fast {
                    true => (wp, 1 + self.random.below((per_page - wp % per_page).into()) as u32),
                    false => (wp * per_page, per_page),
                };
                let slot = SlotId(block.0 * geometry.slots_per_block() + index);
                let tag = rig.tag();
                let page = self.page(slot, count, uuid_crc);
                tags.insert(tag.0, at);
                programs.insert(tag.0, (slot, count));
                busy[at] += 1;
                rig.start(Command::Program { tag, slot, count }, &page);
            }
            for _ in 0..self.random.below(4) {
                let mut results = BTreeMap::new();
                rig.step(&mut results, &mut BTreeMap::new());
                for at in results.keys().filter_map(|tag| tags.remove(tag)) {
                    busy[at] -= 1;
                }
                programs.retain(|tag, _| !results.contains_key(tag));
                left -= 1;
                if left == 0 {
                    rig.kill();
                    self.tear(&geometry, programs.into_values());
                    return;
                }
            }
        }
    }

    /// Of what was being programmed in the files of a folder, and has no record yet, a part may be missing.
    fn tear(&mut self, geometry: &Geometry, programs: impl Iterator<Item = (SlotId, u32)>) {
        let Kind::Nand { path, .. } = &self.options.kind else { return };
        let folder = path.join("shard-0");
        let records = std::fs::read(folder.join("blocks")).unwrap();
        for (slot, count) in programs {
            let block = geometry.block_of(slot);
            if geometry.is_fast(block) {
                continue;
            }
            let at = block.0 as usize * BlockRecord::BYTES;
            let record = records[at..at + BlockRecord::BYTES].try_into().unwrap();
            let record = BlockRecord::decode(record).unwrap();
            let (file, bytes) = match self.random.below(3) {
                0 => ("data", BLOCK_BYTES),
                1 => ("oob", OOB_BYTES),
                _ => continue,
            };
            if geometry.page_in_block(slot) >= record.write_pointer {
                let file = std::fs::File::options().write(true).open(folder.join(file)).unwrap();
                let zeroes = vec![0; count as usize * bytes];
                file.write_all_at(&zeroes, u64::from(slot.0) * bytes as u64).unwrap();
            }
        }
    }

    /// How `rig` reads every page, as a mount does.
    fn reads(rig: &mut Rig) -> Found {
        let geometry = *rig.medium.geometry();
        let mut found = Found::new();
        for block in (0..geometry.blocks()).map(BlockId).filter(|&block| geometry.exists(block)) {
            for page in 0..geometry.pages_per_block {
                let (tag, slot) = (rig.tag(), geometry.slot(block, page, 0));
                let count = geometry.slots_per_page;
                let command = Command::Read { tag, slot, count, into: None, urgent: false };
                rig.start(command, &[]);
                let (_, mut reads) = rig.finish();
                found.extend(reads.remove(&tag.0).unwrap_or_default());
            }
        }
        found
    }

    /// Opens what a kill left, with kept memory and without: what they say must be the same, but for
    /// what no reader looks at. `Err` tells the difference.
    fn compare(&self, resumed: &mut u32) -> Result<Rig, String> {
        // Looked at first, as that counts no open.
        let looked = Device::open(&self.options.kind, Mode::ReadOnly).unwrap();
        let records: Vec<_> = looked.media[0].nand.records().collect();
        drop(looked);
        let (device, mut rig) = self.open();
        if let Some(why) = device.cold() {
            return Err(format!("cold: {why}"));
        }
        *resumed += 1;
        for (&(block, plain), (_, kept)) in records.iter().zip(rig.medium.nand.records()) {
            if plain != kept {
                return Err(format!("{block:?}: {kept:?} with kept memory, {plain:?} without"));
            }
        }
        rig.medium.begin_mount();
        // The second time with what the first has learned.
        let first = Self::reads(&mut rig);
        let kept = Self::reads(&mut rig);
        let counts = rig.medium.end_mount();
        let plain = Self::reads(&mut rig);
        assert!(counts.reads_answered > 0, "nothing was answered: nothing was tested");
        let twice = first.iter().chain(&kept);
        for (at, (kept, plain)) in twice.zip(plain.iter().chain(&plain)).enumerate() {
            let erased = kept.0 == SlotStatus::Erased && plain.0 == SlotStatus::Erased;
            if kept != plain && !erased {
                return Err(format!("slot {at}: {kept:?} with kept memory, {plain:?} without"));
            }
        }
        drop(device);
        Ok(rig)
    }
}

/// Lives of a device until a difference is found.
fn live_and_compare(
    kind: Kind,
    fast: Option<Kind>,
    seed: u64,
    flaw: Option<Flaw>,
) -> Result<(), String> {
    let folder =
        Scratch::new(&format!("kept-{seed}-{}", flaw.map_or("none".into(), |f| format!("{f:?}"))));
    let kind = match kind {
        Kind::Nand { profile, .. } => Kind::Nand { path: folder.0.join("dev"), profile },
        _ => Kind::File { path: folder.0.join("dev.img") },
    };
    let fast = fast.map(|_| Kind::File { path: folder.0.join("fast.img") });
    let mut lives = Lives::new(kind, fast, &folder.0.join("kept"), seed);
    let mut device = Device::create(&lives.options, &ftl::Settings::default()).unwrap();
    device.commit().unwrap();
    let mut medium = device.media.remove(0);
    medium.kept.as_mut().expect("kept memory").flaw = flaw;
    let mut rig = Rig::new(medium);
    drop(device);
    lives.flaw = flaw;
    let mut resumed = 0;
    for life in 0..6 {
        lives.live(rig);
        let context = |why| format!("seed={seed} life={life}: {why}");
        rig = lives.compare(&mut resumed).map_err(context)?;
    }
    Ok(())
}

fn nand() -> Kind {
    Kind::Nand { path: Default::default(), profile: Profile::builtin("slc").unwrap() }
}

fn file() -> Kind {
    Kind::File { path: Default::default() }
}

#[test]
fn after_a_kill_at_any_completion_kept_memory_says_what_the_medium_says() {
    for seed in 1..=4 {
        for (kind, fast) in [(nand(), None), (file(), None), (nand(), Some(file()))] {
            live_and_compare(kind, fast, seed, None).unwrap();
        }
    }
}

#[test]
fn each_seeded_bug_of_kept_memory_is_found() {
    for flaw in [Flaw::EraseUnsaid, Flaw::ProgramUnsaid, Flaw::TornLearned] {
        // Of a file nothing is torn here.
        let kinds = [nand(), if flaw == Flaw::TornLearned { nand() } else { file() }];
        let mut kinds = kinds.into_iter().cycle();
        let found = (1..=20)
            .any(|seed| live_and_compare(kinds.next().unwrap(), None, seed, Some(flaw)).is_err());
        assert!(found, "{flaw:?} was not found with seeds 1 to 20");
    }
}
