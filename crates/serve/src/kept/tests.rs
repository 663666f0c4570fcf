//! What is believed of kept memory and what not.

use super::*;
use flash::{BlockId, OOB_BYTES, Random};
use ftl::format::{Header, Kind, encode_header, uuid_crc};
use std::os::unix::fs::PermissionsExt;

const UUID: u128 = 0x77;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-kept-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn options(&self) -> KeptOptions {
        KeptOptions { place: KeptPlace::At(self.0.join("kept")), bytes_max: None }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn geometry() -> Geometry {
    let profile = nand::Profile::builtin("slc").unwrap();
    let layout = nand::Layout { channels: 2, dies_per_channel: 1, blocks_per_plane: 8 };
    nand::Nand::new(&profile, &layout, nand::Faults::default()).unwrap().geometry()
}

fn identity() -> Identity {
    Identity { uuid: UUID, generation: 7, inode: [1, 2], shards: 1, geometry: geometry() }
}

fn open(options: &KeptOptions, identity: Identity) -> Result<Kept, String> {
    Kept::open(options, identity, 2)
}

/// OOBs of a page of slots as the FTL makes them.
fn oobs(first: SlotId, order: u64) -> Vec<u8> {
    let oob = |i: u32| {
        let header = Header {
            kind: Kind::Data,
            lba: i,
            sequence: order,
            order,
            payload_crc: 9,
            argument: 0,
            group: (0, 0),
            watermark: 0,
            vouches: None,
        };
        encode_header(&header, SlotId(first.0 + i), uuid_crc(UUID))
    };
    (0..geometry().slots_per_page).flat_map(oob).collect()
}

/// Memory in which pages of block 3 are programmed.
fn filled(options: &KeptOptions, pages: u32) {
    let mut kept = open(options, identity()).unwrap();
    let mut shard = kept.take_shard(0).unwrap();
    shard.erased(BlockId(3), 5);
    for page in 0..pages {
        let slot = geometry().slot(BlockId(3), page, 0);
        shard.begin_program(BlockId(3));
        shard.programmed(slot, 5, &oobs(slot, 1 + u64::from(page)));
    }
}

fn answers(shard: &mut KeptShard, block: u32, page: u32, erase_count: u32) -> bool {
    let slot = geometry().slot(BlockId(block), page, 0);
    shard.answer(slot, geometry().slots_per_page, erase_count, &mut Vec::new())
}

#[test]
fn what_was_programmed_is_answered_after_a_crash_and_nothing_else() {
    let scratch = Scratch::new("answers");
    filled(&scratch.options(), 2);
    let mut kept = open(&scratch.options(), identity()).unwrap();
    assert_eq!(kept.cold, None);
    let mut shard = kept.take_shard(0).unwrap();
    shard.begin_mount();
    assert!(answers(&mut shard, 3, 0, 5) && answers(&mut shard, 3, 1, 5));
    assert!(answers(&mut shard, 3, 2, 5), "it is known to be erased");
    assert!(!answers(&mut shard, 3, 0, 6), "the medium has erased it since");
    assert!(!answers(&mut shard, 4, 0, 0), "nothing is known of it");
    shard.end_mount();
    assert!(!answers(&mut shard, 3, 0, 5), "the mount is over");
}

#[test]
fn memory_of_anything_else_is_refused_and_says_why() {
    let scratch = Scratch::new("refuses");
    let other = geometry();
    let smaller = Geometry { blocks_per_unit: other.blocks_per_unit - 1, ..other };
    for (identity, why) in [
        (Identity { uuid: 1, ..identity() }, "another device"),
        (Identity { generation: 8, ..identity() }, "generation is 8, and 7 in kept memory"),
        (Identity { inode: [1, 3], ..identity() }, "another file or disk"),
        (Identity { geometry: smaller, ..identity() }, "another shape"),
    ] {
        filled(&scratch.options(), 1);
        let mut kept = open(&scratch.options(), identity.clone()).unwrap();
        let cold = kept.cold.clone().unwrap_or_else(|| panic!("{identity:?} was believed"));
        assert!(cold.contains(why), "{cold}");
        let mut shard = kept.take_shard(0).unwrap();
        shard.begin_mount();
        assert!(!answers(&mut shard, 3, 0, 5), "{why}");
        drop((kept, shard));
        std::fs::remove_file(scratch.0.join("kept")).unwrap();
    }
}

#[test]
fn memory_of_another_start_of_the_machine_is_refused() {
    let scratch = Scratch::new("boot");
    filled(&scratch.options(), 1);
    let mut kept = open(&scratch.options(), identity()).unwrap();
    kept.write_head(&[1; 16], 7);
    drop(kept);
    let kept = open(&scratch.options(), identity()).unwrap();
    assert!(kept.cold.is_some_and(|why| why.contains("before the machine was started")));
}

#[test]
fn memory_that_others_may_write_is_not_looked_into() {
    let scratch = Scratch::new("mode");
    filled(&scratch.options(), 1);
    let path = scratch.0.join("kept");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o622)).unwrap();
    let why = open(&scratch.options(), identity()).err().expect("it is refused");
    assert!(why.contains("mode 622") && why.contains("remove it"), "{why}");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
    assert!(open(&scratch.options(), identity()).is_err(), "a link is not followed");
}

#[test]
fn a_file_of_anything_else_is_left_as_it_is_and_an_empty_one_is_taken() {
    let scratch = Scratch::new("precious");
    let path = scratch.0.join("kept");
    for precious in [&b"p"[..], b"WEIRKEP", b"WEIRKEPS and more", &[0; 4096]] {
        std::fs::write(&path, precious).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let why = open(&scratch.options(), identity()).err().expect("it is somebody's");
        assert!(why.contains("something else than kept memory"), "{why}");
        assert_eq!(std::fs::read(&path).unwrap(), precious);
    }
    std::fs::File::options().write(true).truncate(true).open(&path).unwrap();
    let mut kept = open(&scratch.options(), identity()).unwrap();
    kept.distrust("of which nothing is left but its mark");
    drop(kept);
    assert!(
        open(&scratch.options(), identity())
            .unwrap()
            .cold
            .is_some_and(|why| why.contains("damaged"))
    );
}

#[test]
fn memory_in_use_truncated_or_without_room_is_an_error_with_a_name() {
    let scratch = Scratch::new("room");
    let first = open(&scratch.options(), identity()).unwrap();
    let why = open(&scratch.options(), identity()).err().expect("it is locked");
    assert!(why.contains("in use by another server"), "{why}");
    drop(first);
    let file = std::fs::File::options().write(true).open(scratch.0.join("kept")).unwrap();
    file.set_len(100).unwrap();
    let kept = open(&scratch.options(), identity()).unwrap();
    assert!(kept.cold.is_some_and(|why| why.contains("another size")));
    let nowhere = KeptOptions { place: KeptPlace::At("/nowhere/kept".into()), bytes_max: None };
    let why = open(&nowhere, identity()).err().expect("there is no such folder");
    assert!(why.contains("/nowhere/kept cannot be made"), "{why}");
    let few = KeptOptions { bytes_max: Some(4096), ..scratch.options() };
    let why = open(&few, identity()).err().expect("too few bytes");
    assert!(why.contains("kept_memory_max"), "{why}");
    let off = KeptOptions::off();
    assert_eq!(open(&off, identity()).err().as_deref(), Some("device.kept_memory is off"));
}

#[test]
fn bytes_that_were_flipped_are_never_an_answer() {
    let scratch = Scratch::new("flips");
    for seed in 1..=60 {
        std::fs::remove_file(scratch.0.join("kept")).ok();
        filled(&scratch.options(), 3);
        let mut random = Random::new(seed);
        let path = scratch.0.join("kept");
        let mut bytes = std::fs::read(&path).unwrap();
        // Half of them where something is.
        let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
        for _ in 0..1 + random.below(40) {
            let any = random.below(bytes.len() as u64) as usize;
            let at = if random.chance(0.5) {
                used[random.below(used.len() as u64) as usize]
            } else {
                any
            };
            bytes[at] ^= 1 << random.below(8);
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut kept = match open(&scratch.options(), identity()) {
            Ok(kept) => kept,
            Err(why) => {
                assert_ne!(bytes[..8], *MAGIC, "seed={seed}: {why}");
                continue;
            }
        };
        let mut shard = kept.take_shard(0).unwrap();
        shard.begin_mount();
        for block in 0..geometry().blocks() {
            for page in 0..geometry().pages_per_block {
                let slot = geometry().slot(BlockId(block), page, 0);
                let mut found = Vec::new();
                let count = geometry().slots_per_page;
                if shard.answer(slot, count, 5, &mut found) {
                    let expected = match (block, page) {
                        (3, 0..3) => oobs(slot, 1 + u64::from(page)),
                        (3, _) => vec![0; count as usize * 32],
                        _ => panic!("seed={seed}: block {block} was never told of"),
                    };
                    assert_eq!(found.concat(), expected, "seed={seed} page={page}");
                }
            }
        }
    }
}

#[test]
fn a_frame_shows_nothing_of_an_earlier_life_of_its_block() {
    let scratch = Scratch::new("frame");
    let mut kept = Kept::open(&scratch.options(), identity(), 1).unwrap();
    let mut shard = kept.take_shard(0).unwrap();
    let slot = |page| geometry().slot(BlockId(3), page, 0);
    for (erase_count, pages) in [(1, 2), (2, 1)] {
        shard.begin_erase(BlockId(3));
        shard.erased(BlockId(3), erase_count);
        for page in 0..pages {
            shard.begin_program(BlockId(3));
            shard.programmed(
                slot(page),
                erase_count,
                &oobs(slot(page), 10 * u64::from(erase_count)),
            );
        }
    }
    drop((kept, shard));
    let mut kept = Kept::open(&scratch.options(), identity(), 1).unwrap();
    let mut shard = kept.take_shard(0).unwrap();
    // A program was under way, and the medium has it.
    shard.found(BlockId(3), 2, 2 * geometry().slots_per_page);
    shard.begin_mount();
    assert!(answers(&mut shard, 3, 0, 2));
    assert!(!answers(&mut shard, 3, 1, 2), "only the medium knows the second page");
}

#[test]
fn the_slot_programmed_last_is_compared_with_the_medium_whatever_is_under_way_in_its_block() {
    let scratch = Scratch::new("witness");
    let slot = geometry().slot(BlockId(3), 1, 0);
    let sound: Oob = oobs(slot, 2)[..OOB_BYTES].try_into().unwrap();
    let other: Oob = oobs(slot, 3)[..OOB_BYTES].try_into().unwrap();
    for (under_way, on_medium, believed) in [
        (false, Some(sound), true),
        (true, Some(sound), true),
        (true, Some(other), false),
        (true, None, false),
    ] {
        std::fs::remove_file(scratch.0.join("kept")).ok();
        filled(&scratch.options(), 2);
        let mut kept = open(&scratch.options(), identity()).unwrap();
        if under_way {
            kept.shard(0).unwrap().begin_program(BlockId(3));
        }
        kept.compare(0, false, |asked| (asked == slot).then_some(on_medium).flatten());
        assert_eq!(kept.cold.is_none(), believed, "{:?}", kept.cold);
        let mut shard = kept.take_shard(0).unwrap();
        shard.begin_mount();
        assert_eq!(answers(&mut shard, 3, 0, 5), believed && !under_way);
    }
}

#[test]
fn a_slot_that_an_erase_takes_is_not_looked_for_and_one_that_was_torn_is_not_believed() {
    let scratch = Scratch::new("erased");
    filled(&scratch.options(), 2);
    let mut kept = open(&scratch.options(), identity()).unwrap();
    kept.shard(0).unwrap().begin_erase(BlockId(2));
    assert!(matches!(kept.shard(0).unwrap().witness(false), Witness::Slot(..)));
    kept.shard(0).unwrap().begin_erase(BlockId(3));
    kept.compare(0, false, |_| None);
    assert_eq!(kept.cold, None);
    drop(kept);
    std::fs::remove_file(scratch.0.join("kept")).unwrap();
    filled(&scratch.options(), 2);
    let path = scratch.0.join("kept");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096 + 4] += 1;
    std::fs::write(&path, bytes).unwrap();
    let mut kept = open(&scratch.options(), identity()).unwrap();
    kept.compare(0, false, |_| panic!("there is nothing to ask for"));
    assert_eq!(kept.cold.as_deref(), Some("kept memory is damaged"));
}
