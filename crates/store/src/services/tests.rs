//! The services against models, over the engine in memory, with power cuts.

use super::key::{Cell, FilePath};
use super::*;
use crate::remote::{Room, UnitRoom};
use std::collections::BTreeMap;
use std::sync::Arc;

fn open(engine: &Arc<Memory>) -> Service {
    Service::on(Arc::clone(engine) as Arc<dyn Engine>, |_| ()).expect("memory opens")
}

/// What one unit with so much room says.
fn room(free: u32, all: u32) -> Result<Room, String> {
    let unit = UnitRoom { raw_blocks_free: free, raw_blocks: all, ..UnitRoom::default() };
    Ok(Room { units: vec![unit] })
}

fn path(text: &str) -> FilePath {
    FilePath::parse(text).expect("a path")
}

const BOUNDS: Bounds = Bounds { count: 1000, bytes: 1 << 20, values: true };

fn write_file(service: &Service, name: &str, bytes: &[u8]) -> Result<Entry, Refused> {
    let mut upload = service.begin_file(&path(name))?;
    for piece in bytes.chunks(PIECE_BYTES) {
        service.append(&mut upload, piece.to_vec())?;
    }
    service.finish(upload, 7)
}

fn read_file(service: &Service, name: &str) -> Result<Vec<u8>, Refused> {
    let (path, mut all) = (path(name), Vec::new());
    let entry = service.entry(&path)?;
    for number in 0..entry.pieces() {
        all.extend(service.piece(&path, &entry, number)?);
    }
    Ok(all)
}

fn names(list: &[File]) -> Vec<&str> {
    list.iter().map(|file| &*file.name).collect()
}

#[test]
fn values_are_what_a_map_has_whatever_is_put_and_deleted() {
    let engine = Arc::new(Memory::new(4));
    let service = open(&engine);
    let (mut model, mut seed) = (BTreeMap::new(), 1_u64);
    for _ in 0..500 {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let key = format!("{:x}", seed >> 57).into_bytes();
        if (seed >> 40).is_multiple_of(3) {
            model.remove(&key);
            service.commit(vec![service.delete_value(&key).unwrap()]).unwrap();
        } else {
            let value = seed.to_le_bytes().to_vec();
            model.insert(key.clone(), value.clone());
            service.commit(vec![service.put_value(&key, value).unwrap()]).unwrap();
        }
        assert_eq!(service.value(&key).unwrap().as_ref(), model.get(&key));
    }
    let all = service.values(&[], (None, None), None, BOUNDS).unwrap();
    assert_eq!(all.pairs, model.clone().into_iter().collect::<Vec<_>>());
    let some = service.values(b"1", (Some(b"13"), Some(b"1a")), None, BOUNDS).unwrap();
    let range = model.range(b"13".to_vec()..b"1a".to_vec());
    assert_eq!(some.pairs, range.map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>());
    // What was committed outlives a power cut.
    let after = open(&Arc::new(engine.cut()));
    assert_eq!(after.values(&[], (None, None), None, BOUNDS).unwrap().pairs, all.pairs);
    let large = service.put_value(b"k", vec![0; VALUE_BYTES_MAX + 1]);
    assert!(matches!(large, Err(Refused::TooLarge(_))));
}

#[test]
fn rows_are_read_whole_by_family_and_in_ranges() {
    let service = open(&Arc::new(Memory::new(5)));
    let cell = |table: &str, row: u32, family: &str, column: &str| Cell {
        table: table.into(),
        row: format!("{row:03}").into(),
        family: family.into(),
        column: column.into(),
    };
    for row in 0..40 {
        let cells = [("a", "x"), ("a", "y"), ("b", "")];
        let puts = cells.map(|(family, column)| {
            service.put_cell(&cell("t", row, family, column), vec![row as u8]).unwrap()
        });
        service.commit(puts.into()).unwrap();
    }
    service.commit(vec![service.put_cell(&cell("u", 1, "a", "x"), vec![9]).unwrap()]).unwrap();
    let (row, more) = service.row((b"t", b"007"), None, BOUNDS).unwrap();
    assert_eq!((row.len(), more), (3, None));
    let (row, _) = service.row((b"t", b"007"), Some(b"b"), BOUNDS).unwrap();
    assert_eq!(row, [(cell("t", 7, "b", ""), vec![7])]);
    // In pages, of one family.
    let (mut all, mut behind) = (Vec::new(), None);
    loop {
        let rows = (Some(&b"010"[..]), Some(&b"020"[..]));
        let bounds = Bounds { count: 3, ..BOUNDS };
        let from = (behind.as_ref(), Some(&b"a"[..]));
        let (cells, more) = service.cells(Some(b"t"), rows, from, bounds).unwrap();
        assert!(cells.len() <= 3);
        all.extend(cells);
        behind = more;
        if behind.is_none() {
            break;
        }
    }
    let expected = (10..20).flat_map(|row| ["x", "y"].map(|column| cell("t", row, "a", column)));
    assert_eq!(
        all.into_iter().map(|(cell, _)| cell).collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
    service.commit(vec![service.delete_row(b"t", b"007").unwrap()]).unwrap();
    assert_eq!(service.row((b"t", b"007"), None, BOUNDS).unwrap().0, []);
    assert_eq!(service.row((b"t", b"008"), None, BOUNDS).unwrap().0.len(), 3);
    let (all, _) = service.cells(None, (None, None), (None, None), BOUNDS).unwrap();
    assert_eq!(all.len(), 39 * 3 + 1);
}

#[test]
fn a_file_is_seen_whole_or_not_at_all_and_what_ended_early_goes_when_the_store_is_opened() {
    let engine = Arc::new(Memory::new(3));
    let service = open(&engine);
    let bytes: Vec<u8> = (0..PIECE_BYTES * 2 + 5).map(|at| (at % 251) as u8).collect();
    write_file(&service, "a/b/one", &bytes).unwrap();
    write_file(&service, "a/empty", &[]).unwrap();
    let mut upload = service.begin_file(&path("a/b/two")).unwrap();
    service.append(&mut upload, vec![1; PIECE_BYTES]).unwrap();
    assert!(matches!(service.entry(&path("a/b/two")), Err(Refused::Missing(_))));
    // A put makes it durable on its way, but nobody sees it.
    service.commit(vec![service.put_value(b"k", vec![1]).unwrap()]).unwrap();
    let engine = Arc::new(engine.cut());
    let after = open(&engine);
    assert_eq!(after.cleared(), 1);
    assert_eq!(after.loose_keys(), 3, "pieces of the one file that is there");
    assert_eq!(read_file(&after, "a/b/one").unwrap(), bytes);
    assert_eq!(read_file(&after, "a/empty").unwrap(), [0_u8; 0]);
    assert!(matches!(after.entry(&path("a/b/two")), Err(Refused::Missing(_))));
    // Who gives up leaves nothing either.
    let mut upload = after.begin_file(&path("a/b/two")).unwrap();
    after.append(&mut upload, vec![1; 9]).unwrap();
    after.give_up(&upload).unwrap();
    drop(upload);
    after.delete_file(&path("a/b/one")).unwrap();
    assert_eq!(after.loose_keys(), 0);
    write_file(&after, "a/b/two", b"two").unwrap();
    let scrubbed = after.scrub(&mut |_| true).unwrap();
    assert_eq!((scrubbed.files, scrubbed.file_bytes, scrubbed.damaged), (2, 3, 0));
}

#[test]
fn folders_are_listed_and_nothing_is_a_file_and_a_folder() {
    let service = open(&Arc::new(Memory::new(3)));
    for name in ["a/x", "a/b/one", "a/b/two", "a/b.c", "a/c/d/e", "q", "z/last"] {
        write_file(&service, name, b"1").unwrap();
    }
    let (list, more) = service.list(Some(&path("a")), None, 10).unwrap();
    assert_eq!((names(&list), more), (vec!["b", "b.c", "c", "x"], false));
    assert_eq!(list.iter().filter(|file| file.is_folder).count(), 2);
    let (list, more) = service.list(Some(&path("a")), Some("b"), 2).unwrap();
    assert_eq!((names(&list), more), (vec!["b.c", "c"], true));
    let (list, more) = service.list(None, None, 2).unwrap();
    assert_eq!((names(&list), more), (vec!["a", "q"], true));
    assert_eq!(names(&service.list(None, Some("q"), 2).unwrap().0), ["z"]);
    let (all, more) = service.all_files(Some(&path("a/b/one")), 3).unwrap();
    assert_eq!((names(&all), more), (vec!["a/b/two", "a/b.c", "a/c/d/e"], true));
    for taken in ["a/x", "a", "a/b", "a/x/y", "q/r/s"] {
        let refused = write_file(&service, taken, b"2");
        assert!(matches!(refused, Err(Refused::Conflict(_))), "{taken}: {refused:?}");
    }
    let refused = service.entry(&path("a/b")).unwrap_err().to_string();
    assert!(refused.contains("is a folder"), "{refused}");
}

#[test]
fn a_rename_moves_a_file_or_a_folder_within_its_slice_and_over_nothing() {
    let engine = Arc::new(Memory::new(3));
    let service = open(&engine);
    for name in ["a/b/one", "a/b/c/two", "a/x"] {
        write_file(&service, name, name.as_bytes()).unwrap();
    }
    assert_eq!(service.rename(&path("a/x"), &path("a/new/y")), Ok(1));
    assert_eq!(service.rename(&path("a/b"), &path("a/d")), Ok(2));
    assert_eq!(read_file(&service, "a/d/c/two").unwrap(), b"a/b/c/two");
    assert_eq!(read_file(&service, "a/new/y").unwrap(), b"a/x");
    let after = open(&Arc::new(engine.cut()));
    assert_eq!(names(&after.all_files(None, 9).unwrap().0), ["a/d/c/two", "a/d/one", "a/new/y"]);
    for (from, to) in [("a/d", "q/d"), ("a/d", "a/d/e"), ("a/d/one", "a/d")] {
        assert!(
            matches!(service.rename(&path(from), &path(to)), Err(Refused::Usage(_))),
            "{from} {to}"
        );
    }
    for (from, to) in [("a/d/one", "a/new/y"), ("a/d/one", "a/new"), ("a/d", "a/new/y/z")] {
        let refused = service.rename(&path(from), &path(to));
        assert!(matches!(refused, Err(Refused::Conflict(_))), "{from} {to}: {refused:?}");
    }
    assert!(matches!(service.rename(&path("a/none"), &path("a/e")), Err(Refused::Missing(_))));
}

#[test]
fn a_path_that_is_being_changed_is_nobody_elses() {
    let service = open(&Arc::new(Memory::new(3)));
    write_file(&service, "a/other", b"1").unwrap();
    let upload = service.begin_file(&path("a/b/c")).unwrap();
    for meets in ["a/b/c", "a/b", "a/b/c/d"] {
        let refused = write_file(&service, meets, b"2");
        assert!(matches!(refused, Err(Refused::Conflict(_))), "{meets}: {refused:?}");
    }
    let refused = service.rename(&path("a/other"), &path("a/b/c"));
    assert!(matches!(refused, Err(Refused::Conflict(_))), "{refused:?}");
    write_file(&service, "a/b/d", b"3").unwrap();
    service.finish(upload, 1).unwrap();
    assert!(service.rename(&path("a/b/c"), &path("a/b/e")).is_ok());
}

#[test]
fn without_room_nothing_new_is_taken_and_deleting_goes_on() {
    let service = open(&Arc::new(Memory::new(2)));
    service.set_room(room(50, 1000));
    service.commit(vec![service.put_value(b"k", vec![1]).unwrap()]).unwrap();
    write_file(&service, "f", b"1").unwrap();
    let mut upload = service.begin_file(&path("g")).unwrap();
    service.set_room(room(19, 1000));
    assert_eq!(service.room(), Some((19, 20)));
    let refused = service.put_value(b"k", vec![2]).unwrap_err();
    assert!(
        matches!(&refused, Refused::Full(text) if text.contains("weir store compact")),
        "{refused}"
    );
    assert!(matches!(service.begin_file(&path("h")), Err(Refused::Full(_))));
    assert!(matches!(service.append(&mut upload, vec![1]), Err(Refused::Full(_))));
    service.commit(vec![service.delete_value(b"k").unwrap()]).unwrap();
    service.delete_file(&path("f")).unwrap();
    // What was taken since the units were asked counts, before they are asked again.
    service.set_room(room(22, 1000));
    let large = || service.put_value(b"k", vec![0; VALUE_BYTES_MAX]);
    let taken = (0..100).take_while(|_| large().is_ok()).count();
    assert!(
        (4..12).contains(&taken),
        "{taken} MiB for two raw blocks of 8 MiB, and compaction of as much"
    );
    // A small device is not all kept, and one that says nothing is not taken for full.
    service.set_room(room(5, 16));
    assert!(service.put_value(b"k", vec![2]).is_ok());
    service.set_room(Err("nobody is there".into()));
    assert!(service.put_value(b"k", vec![2]).is_ok() && service.room().is_none());
}

#[test]
fn a_store_is_ready_while_puts_are_taken_and_says_what_keeps_it_from_that() {
    let engine = Arc::new(Memory::new(2));
    let service = open(&engine);
    let not_ready = || service.ready().err().map_or(String::new(), |why| why.to_string());
    assert_eq!(not_ready(), "", "nobody said anything of its room");
    service.set_room(room(20, 1000));
    assert_eq!(not_ready(), "");
    service.set_room(room(19, 1000));
    assert!(not_ready().contains("19 raw blocks are free"), "{}", not_ready());
    assert!(service.put_value(b"k", vec![1]).is_err());
    let gone = UnitRoom { unit: 3, blocks_bad: 9, gone: true, ..UnitRoom::default() };
    service.set_room(Ok(Room { units: vec![gone] }));
    assert!(not_ready().contains("unit 3 writes nothing more (9 blocks"), "{}", not_ready());
    assert!(service.put_value(b"k", vec![1]).is_err());
    service.set_room(Err("the door is shut".into()));
    assert!(not_ready().contains("the units do not answer: the door is shut"), "{}", not_ready());
    service.set_room(room(100, 1000));
    engine.fail(Some(Refused::Failed("the small volume is gone".into())));
    let put = vec![service.put_value(b"k", vec![1]).expect("there is room")];
    assert!(service.commit(put).is_err());
    assert!(not_ready().contains("nothing can be written: the small volume"), "{}", not_ready());
}

#[test]
fn a_scrub_of_units_that_do_not_answer_ends_and_calls_nothing_damaged() {
    let engine = Arc::new(Memory::new(2));
    let service = open(&engine);
    write_file(&service, "f", b"1").unwrap();
    let answers = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let ours = Arc::clone(&answers);
    service.set_look(Box::new(move || match ours.load(std::sync::atomic::Ordering::Relaxed) {
        true => room(50, 1000),
        false => Err("nobody is there".into()),
    }));
    engine.fail_reads(Some(Refused::Failed("a read failed".into())));
    let damaged = service.scrub(&mut |_| true).expect("the units answer");
    assert_eq!(damaged.damaged, 1, "{damaged:?}");
    answers.store(false, std::sync::atomic::Ordering::Relaxed);
    let ended = service.scrub(&mut |_| true).expect_err("nobody is there");
    assert!(ended.to_string().contains("do not answer: nobody is there"), "{ended}");
}

#[test]
fn a_piece_of_a_file_that_cannot_be_written_stops_the_store_as_a_put_does() {
    let engine = Arc::new(Memory::new(2));
    let (send, told) = std::sync::mpsc::channel();
    let stopped = move |why: &Refused| send.send(why.clone()).unwrap();
    let service = Service::on(Arc::clone(&engine) as Arc<dyn Engine>, stopped).unwrap();
    let mut upload = service.begin_file(&path("f")).unwrap();
    let gone = Refused::Failed("the units are gone".into());
    engine.fail(Some(gone.clone()));
    assert_eq!(service.append(&mut upload, vec![1]), Err(gone.clone()));
    engine.fail(None);
    assert_eq!((told.recv(), service.stopped()), (Ok(gone.clone()), Some(gone.clone())));
    assert_eq!(service.finish(upload, 1), Err(gone.clone()));
    assert_eq!(service.begin_file(&path("g")).map(drop), Err(gone));
}

#[test]
fn bytes_that_are_not_those_written_are_found_by_a_scrub() {
    let engine = Arc::new(Memory::new(1));
    let service = open(&engine);
    let entry = write_file(&service, "a/good", b"good")
        .and_then(|_| write_file(&service, "a/bad", b"1234"));
    let put = |key: Vec<u8>, value: &[u8]| {
        engine.write(&[&Change::Put { slice: 0, key, value: value.into() }], true).unwrap();
    };
    put(key::piece(entry.unwrap().id, 0), b"1235");
    let scrubbed = service.scrub(&mut |_| true).unwrap();
    assert_eq!((scrubbed.files, scrubbed.damaged), (2, 1));
    assert!(scrubbed.damages[0].starts_with("file a/bad: its bytes"), "{scrubbed:?}");
    put(path("a/bad").key(), b"nonsense");
    let scrubbed = service.scrub(&mut |_| true).unwrap();
    assert!(scrubbed.damages[0].starts_with("file a/bad: its entry"), "{scrubbed:?}");
    assert!(matches!(service.entry(&path("a/bad")), Err(Refused::Damaged(_))));
}

#[test]
fn a_store_of_another_format_is_refused() {
    let engine = Arc::new(Memory::new(1));
    let value = br#"{"version":2,"slices":1,"openings":1}"#.to_vec();
    engine.write(&[&Change::Put { slice: OWN, key: b"store".into(), value }], true).unwrap();
    let refused = Service::on(engine, |_| ()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("format 2") && refused.contains("weir store dump"), "{refused}");
}
