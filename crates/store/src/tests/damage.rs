//! The small volume damaged behind the store's back: it is told, and nothing is lost for it.

use super::{BLOCKS, World, bytes, contents, open, opened, reason, write};
use crate::layout::JOURNAL;
use crate::tail::{PAYLOAD, decode};
use crate::{BLOCK_BYTES, Error, Opening};

/// The blocks of the journal's areas in a volume of [`BLOCKS`].
const AREAS: std::ops::Range<u64> = 2..2 + 2 * 64;

/// A store of many names, the last of which were made after the journal was synced, and what they are.
fn made() -> (World, Vec<String>) {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let mut names = Vec::new();
    for count in 0..150 {
        let name = format!("/{count:050}.sst");
        write(&store, &name, name.as_bytes()).unwrap();
        names.push(name);
    }
    world.settle();
    (world, names)
}

/// The store opens with all that was in it, or says what is damaged; nothing is erased either way.
fn is_whole_or_told(world: &World, names: &[String], what: &str) -> bool {
    let raw = world.lock().raw.len();
    let whole = match open(world, 9) {
        Ok(store) => {
            for name in names {
                assert!(contents(&store, name) == name.as_bytes(), "{what}: {name}");
            }
            store.erase().unwrap();
            true
        }
        Err(error) => {
            assert!(matches!(error, Error::Damaged(_)), "{what}: {error}");
            false
        }
    };
    assert_eq!(world.lock().raw.len(), raw, "{what}: nothing is erased");
    whole
}

#[test]
fn a_damaged_block_anywhere_in_the_journal_is_told_and_costs_nothing() {
    let (world, names) = made();
    let mut told = 0;
    for block in AREAS.filter(|&block| world.block(block).is_some_and(|it| it != [0; BLOCK_BYTES]))
    {
        for byte in [0, 40, 2000] {
            let bent = world.copy();
            bent.bend(block, byte);
            told += u32::from(!is_whole_or_told(&bent, &names, &format!("{block} bent at {byte}")));
        }
        // The block behind it says that it was there; nothing does of the last one.
        let goes_on = world.block(block + 1).as_ref().and_then(|next| decode(next)).is_some();
        if goes_on {
            let blank = world.copy();
            blank.put(block, [0; BLOCK_BYTES]);
            told += u32::from(!is_whole_or_told(&blank, &names, &format!("{block} blank")));
        }
    }
    assert!(told > 8, "the journal has some blocks: {told}");
}

#[test]
fn who_owned_the_store_may_be_lost_and_it_goes_on_counting() {
    for lost in [true, false] {
        let (world, names) = made();
        for nonce in 2..5 {
            drop(open(&world, nonce).unwrap());
        }
        world.restart();
        match lost {
            true => world.put(1, [0; BLOCK_BYTES]),
            false => world.bend(1, 9),
        }
        for _ in 0..3 {
            assert!(is_whole_or_told(&world, &names, "the owner is lost"));
        }
    }
}

#[test]
fn a_store_is_made_anew_where_the_label_of_an_old_one_was_blanked() {
    let (world, names) = made();
    world.put(0, [0; BLOCK_BYTES]);
    let store = open(&world, 5).unwrap();
    assert!(store.children("/").unwrap().is_empty());
    write(&store, &names[0], b"new").unwrap();
    drop(store);
    let store = open(&world, 6).unwrap();
    assert!(contents(&store, &names[0]) == b"new");
    assert_eq!(store.children("/").unwrap().len(), 1);
}

#[test]
fn a_store_without_tables_that_lost_its_label_is_not_taken_for_none() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let mut writer = store.writer("/1.log", false).unwrap();
    writer.append(b"some").and_then(|()| writer.close()).unwrap();
    drop((writer, store));
    world.restart();
    world.put(0, [0; BLOCK_BYTES]);
    let told = reason(opened(&world, 2, Opening::default()).map(drop));
    assert!(told.contains("--new"), "{told}");
    assert!(open(&world, 3).unwrap().children("/").unwrap().is_empty());
}

#[test]
fn what_is_left_of_a_store_without_a_label_is_nothing_and_no_store_is_made_for_it() {
    let (world, _) = made();
    for block in [0, 1] {
        world.put(block, [0; BLOCK_BYTES]);
        for new in [true, false] {
            let how = Opening { new, damaged: true };
            let told = reason(opened(&world, 2, how).map(drop));
            assert!(told.contains("restore that block"), "{told}");
        }
    }
    let blank = World::new(2, BLOCKS);
    let told = reason(opened(&blank, 2, Opening { new: false, damaged: true }).map(drop));
    assert!(told.contains("name the volume"), "{told}");
}

#[test]
fn damage_within_a_log_that_was_being_written_is_told_and_not_taken_for_its_end() {
    let world = World::new(1, BLOCKS);
    let store = open(&world, 1).unwrap();
    let mut writer = store.writer("/1.log", false).unwrap();
    let piece = bytes(3 * PAYLOAD as u64 / 2);
    for _ in 0..6 {
        writer.append(&piece).unwrap();
        writer.sync().unwrap();
    }
    // A killed process seals nothing.
    let _killed = std::mem::ManuallyDrop::new(writer);
    drop(store);
    world.restart();
    let whole = piece.repeat(6);
    assert!(contents(&open(&world.copy(), 2).unwrap(), "/1.log") == whole);
    let is_log =
        |block: &[u8; BLOCK_BYTES]| decode(block).is_some_and(|(head, _)| head.file > JOURNAL + 2);
    let blocks: Vec<u64> =
        (AREAS.end..BLOCKS).filter(|&at| world.block(at).as_ref().is_some_and(is_log)).collect();
    // The last one has nothing, and vouches for those before it.
    assert_eq!(blocks.len(), 10);
    for (index, &block) in blocks.iter().enumerate().take(9) {
        let bent = world.copy();
        bent.bend(block, 500);
        let store = open(&bent, 2).unwrap();
        let reader = store.reader("/1.log").unwrap();
        let before = index * PAYLOAD;
        let mut found = vec![0; before];
        assert_eq!(reader.read(0, &mut found), Ok(before));
        assert!(found == whole[..before]);
        let told = reason(reader.read(before as u64, &mut [0; 9]));
        assert!(told.contains("not what was written there"), "{index}: {told}");
    }
}

#[test]
fn a_store_that_is_full_of_names_opens_and_takes_deletions() {
    // Empty logs are told by more bytes when the journal is begun anew than while they are made.
    for kind in ["sst", "log"] {
        let world = World::new(1, BLOCKS);
        let store = open(&world, 1).unwrap();
        store.create_folder("/f").unwrap();
        let mut names = Vec::new();
        let full = loop {
            let name = format!("/f/{}.{kind}", names.len());
            let made = match kind {
                "sst" => write(&store, &name, b"some"),
                _ => store.writer(&name, false).and_then(|mut writer| writer.close()),
            };
            match made {
                Ok(()) => names.push(name),
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::Full(_)), "{full}");
        let longer = format!("/{}", "f".repeat(200));
        assert!(matches!(store.rename("/f", &longer), Err(Error::Full(_))));
        drop(store);
        for nonce in 2..6 {
            let store = open(&world, nonce).unwrap();
            let name = names.pop().expect("there are more");
            assert_eq!(contents(&store, &name).is_empty(), kind == "log");
            store.delete(&name).unwrap();
            store.sync().unwrap();
        }
        let store = open(&world, 9).unwrap();
        names.drain(100..).for_each(|name| store.delete(&name).unwrap());
        write(&store, "/new.sst", b"more").unwrap();
    }
}
