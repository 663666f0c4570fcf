//! Tables that are on their way when their writer has closed them.

use super::{BLOCKS, World, bytes, contents, open, reason, write};
use crate::store::Seen;
use crate::{Error, Store, Writer};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const LONG: u64 = 70_000;

type Waiter = Box<dyn FnOnce(&Arc<Store>) + Send>;

fn late_store() -> (World, Arc<Store>) {
    let world = World::new(1, BLOCKS);
    world.lock().puts_at_once = 3;
    let store = open(&world, 1).unwrap();
    store.create_folder("/db").and_then(|()| store.create_folder("/other")).unwrap();
    (world, store)
}

/// Writes a table and closes it, as RocksDB does.
fn closed(store: &Arc<Store>, path: &str) -> Result<(), Error> {
    let mut writer = store.writer(path, false)?;
    writer.append(&bytes(LONG))?;
    writer.sync()?;
    assert_eq!(writer.size(), LONG);
    writer.close()
}

/// The same by a thread that has ended.
fn closed_elsewhere(store: &Arc<Store>, path: &'static str) {
    let store = Arc::clone(store);
    thread::spawn(move || closed(&store, path).unwrap()).join().unwrap();
}

#[test]
fn who_syncs_a_folder_does_not_wait_for_what_another_thread_is_at() {
    let (world, store) = late_store();
    world.lock().puts_held = Some(0);
    let (closes, ends) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            closed(&store, "/db/1.sst").unwrap();
            closes.wait();
            ends.wait();
        });
        closes.wait();
        let mut manifest = store.writer("/db/MANIFEST-1", false).unwrap();
        store.sync_folder("/db").unwrap();
        manifest.append(b"another table").unwrap();
        assert!(store.late.bytes("/db/1.sst").is_some(), "it is still on its way");
        ends.wait();
        other.join().unwrap();
        // Whoever joined it goes on with its work.
        let waiting = scope.spawn(|| store.sync_folder("/db").unwrap());
        thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        world.lock().puts_held = None;
    });
    assert!(contents(&store, "/db/1.sst") == bytes(LONG));
}

#[test]
fn a_table_that_is_on_its_way_is_waited_for_by_all_who_need_it_and_by_nobody_else() {
    let (world, store) = late_store();
    world.lock().puts_held = Some(0);
    closed_elsewhere(&store, "/db/1.sst");
    let seen = store.look("/db/1.sst").unwrap();
    assert_eq!((seen.folder, seen.size), (false, LONG));
    // As files of other file systems have names while they are written.
    assert_eq!(store.children("/db").unwrap(), ["1.sst"]);
    // The log of a database goes on, and so does another one beside it.
    let mut log = store.writer("/db/1.log", false).unwrap();
    log.append(b"some").and_then(|()| log.sync()).unwrap();
    store.sync_folder("/other").unwrap();
    let mut manifest = store.writer("/db/MANIFEST-1", false).unwrap();
    let waiters: [Waiter; 4] = [
        Box::new(|store| assert!(contents(store, "/db/1.sst") == bytes(LONG))),
        Box::new(|store| assert_eq!(store.find("/db/1.sst").unwrap().size, LONG)),
        Box::new(|store| store.sync_folder("/db").unwrap()),
        Box::new(move |_| manifest.append(b"1.sst").unwrap()),
    ];
    let waiting = waiters.map(|wait| {
        let store = Arc::clone(&store);
        thread::spawn(move || wait(&store))
    });
    thread::sleep(Duration::from_millis(50));
    assert!(waiting.iter().all(|thread| !thread.is_finished()), "somebody has not waited");
    world.lock().puts_held = None;
    waiting.into_iter().for_each(|thread| thread.join().unwrap());
    let Seen { size, .. } = store.look("/db/1.sst").unwrap();
    assert_eq!(size, LONG);
    assert!(store.children("/db").unwrap().contains(&"1.sst".into()));
}

/// Whether who waits for a folder is answered while a table is on its way that set out after it began to wait.
fn is_answered_before_what_set_out_later(pause: Duration) -> bool {
    let (world, store) = late_store();
    world.lock().puts_held = Some(0);
    closed_elsewhere(&store, "/db/1.sst");
    while world.lock().puts_waited < 3 {
        thread::yield_now();
    }
    let one = Arc::clone(&store);
    let waiting = thread::spawn(move || one.sync_folder("/db").unwrap());
    thread::sleep(pause);
    closed(&store, "/db/2.sst").unwrap();
    assert!(!waiting.is_finished());
    // Numbers from here on are those of the second.
    world.lock().puts_held = Some(3);
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(10));
        if waiting.is_finished() {
            assert_eq!(store.look("/db/2.sst").unwrap().size, LONG);
            assert_eq!(world.lock().raw.len(), 3, "the second is on its way");
            break;
        }
    }
    let answered = waiting.is_finished();
    world.lock().puts_held = None;
    waiting.join().unwrap();
    store.sync().unwrap();
    answered
}

#[test]
fn who_waits_for_a_folder_does_not_wait_for_what_sets_out_meanwhile() {
    // Nothing tells when the thread has begun to wait: on a busy machine it takes a while.
    let pauses = [20, 200, 2000, 20_000].map(Duration::from_millis);
    assert!(pauses.into_iter().any(is_answered_before_what_set_out_later));
}

#[test]
fn what_failed_late_is_told_until_it_is_given_up() {
    let (world, store) = late_store();
    write(&store, "/db/1.sst", b"one").unwrap();
    for path in ["/db/2.sst", "/db/1.sst"] {
        world.lock().puts_held = Some(0);
        closed(&store, path).unwrap();
        world.lock().fail_puts = 3;
        world.lock().puts_held = None;
        for _ in 0..2 {
            assert!(reason(store.sync()).contains("no power"), "it is told again");
            assert!(reason(store.sync_folder("/db")).contains("no power"));
            assert!(reason(store.reader(path)).contains("no power"));
            assert!(store.look(path).is_err());
        }
        store.sync_folder("/other").unwrap();
        let mut manifest = store.writer("/db/MANIFEST-1", false).unwrap();
        assert!(reason(manifest.append(path.as_bytes())).contains("no power"));
        // RocksDB deletes what it finds and does not know.
        let name = path.rsplit('/').next().unwrap().to_owned();
        assert!(store.children("/db").unwrap().contains(&name));
        store.delete(path).unwrap();
        assert!(!store.children("/db").unwrap().contains(&name));
        store.sync().unwrap();
        manifest.append(b"it goes on").unwrap();
        world.lock().fail_puts = 0;
    }
    store.erase().unwrap();
    assert!(world.lock().raw.is_empty(), "nothing is left of them");
    write(&store, "/db/2.sst", b"two").unwrap();
    assert!(contents(&store, "/db/2.sst") == b"two");
}

#[test]
fn a_table_that_was_synced_is_written_on() {
    let (world, store) = late_store();
    let mut writer = store.writer("/db/1.sst", false).unwrap();
    for part in 1..=3 {
        writer.append(&bytes(LONG)).unwrap();
        writer.sync().unwrap();
        store.sync().unwrap();
        assert!(contents(&store, "/db/1.sst") == bytes(LONG).repeat(part));
    }
    writer.close().unwrap();
    writer.close().unwrap();
    assert!(matches!(writer, Writer::Late(_)));
    store.sync().unwrap();
    store.erase().unwrap();
    assert_eq!(world.lock().raw.len() as u64, (3 * LONG).div_ceil(super::RAW_BYTES));
}

#[test]
fn so_many_blocks_are_on_their_way_and_the_next_table_waits() {
    let (world, store) = late_store();
    world.lock().puts_held = Some(0);
    // Three blocks each, of which twelve may be.
    for table in 0..4 {
        closed(&store, &format!("/db/{table}.sst")).unwrap();
    }
    let more = Arc::clone(&store);
    let waiting = thread::spawn(move || closed(&more, "/db/4.sst").unwrap());
    thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    world.lock().puts_held = None;
    waiting.join().unwrap();
    store.sync().unwrap();
    for table in 0..5 {
        assert!(contents(&store, &format!("/db/{table}.sst")) == bytes(LONG));
    }
}
