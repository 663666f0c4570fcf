//! Rows are what happened between two looks, and no file ruins more than itself.

use super::*;
use crate::control::metrics::{shards, shards_of};
use crate::latency::Timed;
use crate::volume::{Kind, Request};
use flash::MICROSECOND;
use std::path::PathBuf;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("weir-history-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn row(at_unix_ms: u64) -> Row {
    let mut values = [None; COLUMNS.len()];
    values[0] = Some(at_unix_ms as f32 / 2.0);
    Row { at_unix_ms, values }
}

fn asked(status: &mut crate::ShardStatus, kind: Kind, us: u64) {
    let request = Request { volume: 0, kind, offset: 0, len: 8192 };
    let (asked, begun, done) = (flash::Instant(5), flash::Instant(5), flash::Instant(7));
    let (waited, spent) = (None, None);
    let timed = Timed { request, asked, begun, done, limited_ns: 0, failed: false, waited, spent };
    status.latencies.record(&timed, flash::Instant(5 + us * MICROSECOND));
}

fn value(row: &Row, name: &str) -> Option<f32> {
    row.values[COLUMNS.iter().position(|column| *column == name).unwrap()]
}

/// Two looks, 2 s apart, with what `between` does to the shards.
fn between(test: &str, between: impl FnOnce(&mut Vec<crate::ShardStatus>)) -> (Snapshot, Snapshot) {
    let mut shards = shards(test);
    (0..100).for_each(|_| asked(&mut shards[0], Kind::Read, 50_000));
    let before = Snapshot::of(&shards, 1000);
    between(&mut shards);
    let mut now = Snapshot::of(&shards, 3000);
    now.at = before.at + Duration::from_secs(2);
    (before, now)
}

#[test]
fn a_row_tells_of_the_requests_between_two_looks_and_not_of_earlier_ones() {
    let (before, now) = between("asked", |shards| {
        (0..10).for_each(|_| asked(&mut shards[0], Kind::Read, 100));
        (0..4).for_each(|_| asked(&mut shards[1], Kind::Read, 100));
    });
    let row = Row::between(&before, &now);
    assert_eq!(row.at_unix_ms, 3000);
    assert_eq!(value(&row, "read_per_sec"), Some(7.0));
    assert_eq!(value(&row, "read_bytes_per_sec"), Some(7.0 * 8192.0));
    let most = value(&row, "read_max_ns").unwrap();
    assert!((99e3..102e3).contains(&most), "{most}: the slow ones came before");
    assert_eq!(value(&row, "write_per_sec"), Some(0.0));
    assert_eq!(value(&row, "write_p99_ns"), None, "of nothing there is no percentile");
    let volumes = volumes(&before, &now);
    assert_eq!(volumes[&0].keys().collect::<Vec<_>>(), [&"read"]);
    assert_eq!(volumes[&0]["read"].per_sec, 7.0);
}

#[test]
fn what_was_programmed_for_each_reason_adds_up_to_all_that_was_programmed() {
    let (before, now) = between("reasons", |shards| {
        let crate::CoreStatus::Block(status) = &mut shards[0].core else { panic!("blocks") };
        for (name, value) in &mut status.counters {
            *value += match *name {
                "host_blocks_written" => 1000,
                "slots_programmed" => 2000,
                "slots_relocated" => 600,
                "slots_padded" => 30,
                "slots_checkpointed" => 70,
                "erases" => 3,
                _ => 0,
            };
        }
    });
    let row = Row::between(&before, &now);
    let sum: f32 = sample::REASONS.filter_map(|index| row.values[index]).sum();
    assert_eq!(Some(sum), value(&row, "programmed_bytes_per_sec"));
    assert_eq!(value(&row, "gc_bytes_per_sec"), Some(600.0 * 2048.0));
    assert_eq!(value(&row, "other_bytes_per_sec"), Some(300.0 * 2048.0));
    assert_eq!((value(&row, "waf"), value(&row, "erases_per_sec")), (Some(2.0), Some(1.5)));
    assert_eq!(value(&row, "fast_fill"), None, "there is no fast tier");
}

#[test]
fn a_ring_has_a_bound_and_stays_in_order_when_the_clock_is_set_back() {
    let mut ring = Ring::new(3, COARSE);
    (1..=5).for_each(|at| ring.push(row(at * 10)));
    assert_eq!(ring.columns(0).at_unix_ms, [30, 40, 50]);
    assert_eq!(ring.columns(40).at_unix_ms, [50]);
    assert_eq!(ring.columns(40).values["read_per_sec"], [Some(25.0)]);
    assert_eq!(ring.columns(50).at_unix_ms, [0; 0]);
    ring.push(row(35));
    assert_eq!(ring.columns(0).at_unix_ms, [30, 35]);
}

#[test]
fn rows_older_than_the_span_of_a_ring_go_however_few_they_are() {
    let span_ms = 3 * COARSE.as_millis() as u64;
    let mut ring = Ring::new(3, COARSE);
    ring.push(row(1000));
    ring.push(row(1000 + span_ms));
    assert_eq!(ring.columns(0).at_unix_ms, [1000, 1000 + span_ms]);
    ring.push(row(1001 + span_ms));
    assert_eq!(ring.columns(0).at_unix_ms, [1000 + span_ms, 1001 + span_ms]);
    // The next server looks at the clock before it has a row of its own.
    let folder = Folder::new("age");
    file::write(&folder.0, 7, &ring.columns(0)).unwrap();
    let history = History::default();
    history.load(&folder.0, 7);
    assert_eq!(history.kept().coarse.rows.len(), 0, "they are of 1970");
}

#[test]
fn rows_of_raw_units_tell_nothing_of_what_only_an_ftl_has() {
    let text = "[device]\nmode = \"raw\"\nprofile = \"instant\"\ncapacity = \"64MiB\"\n";
    let shards = shards_of("history-raw", text, |_| {});
    let (before, mut now) = (Snapshot::of(&shards, 1000), Snapshot::of(&shards, 3000));
    now.at = before.at + Duration::from_secs(2);
    let row = Row::between(&before, &now);
    for name in ["waf", "gc_bytes_per_sec", "host_bytes_per_sec", "victims_per_sec", "bands_free"] {
        assert_eq!(value(&row, name), None, "{name}");
    }
    assert_eq!(value(&row, "erases_per_sec"), Some(0.0));
}

#[test]
fn a_coarse_row_spans_a_minute_of_fine_ones() {
    let history = History::default();
    let mut recorder = Recorder::new(Duration::from_secs(60));
    let begun = std::time::Instant::now();
    let mut shards = shards("coarse");
    for step in 0..=65 {
        (0..step)
            .for_each(|_| asked(&mut shards[0], Kind::Write { fua: false, handle: None }, 100));
        let mut look = Snapshot::of(&shards, step * 2000);
        look.at = begun + Duration::from_secs(2 * step);
        recorder.note(&history, look);
    }
    let kept = history.kept();
    assert_eq!(kept.fine.rows.len(), 65);
    let coarse = kept.coarse.columns(0);
    assert_eq!(coarse.at_unix_ms, [60_000, 120_000]);
    let sum = |steps: std::ops::RangeInclusive<u64>| steps.sum::<u64>() as f32 / 60.0;
    assert_eq!(coarse.values["write_per_sec"], [Some(sum(1..=30)), Some(sum(31..=60))]);
}

#[test]
fn the_file_gives_back_what_was_written_and_a_bad_one_begins_anew() {
    let folder = Folder::new("file");
    assert_eq!(file::read(&folder.0, 7), Ok(Vec::new()), "there is none yet");
    let mut ring = Ring::new(9, COARSE);
    (1..=4).for_each(|at| ring.push(row(at)));
    file::write(&folder.0, 7, &ring.columns(0)).unwrap();
    assert_eq!(file::read(&folder.0, 7).unwrap(), Vec::from(ring.rows));
    let whole = std::fs::read_to_string(file::path(&folder.0)).unwrap();
    let refused = |text: &str, said: &str| {
        std::fs::write(file::path(&folder.0), text).unwrap();
        let why = file::read(&folder.0, 7).unwrap_err();
        assert!(why.contains(said), "{said}: {why}");
        let history = History::default();
        history.load(&folder.0, 7);
        assert_eq!(history.kept().coarse.rows.len(), 0, "{said}");
    };
    refused(&whole[..whole.len() / 2], "not all of one");
    refused("", "no history");
    refused("{\"version\":1}", "missing field");
    refused(&whole.replace("\"version\":1", "\"version\":2"), "version 2");
    refused(&whole.replace("\"at_unix_ms\":[1,", "\"at_unix_ms\":["), "but not so many");
    refused(&whole.replace("0000000000000007", "0000000000000008"), "another device");
    refused(&" ".repeat(2 << 20), "larger");
    std::fs::remove_file(file::path(&folder.0)).unwrap();
    std::os::unix::fs::symlink("/dev/zero", file::path(&folder.0)).unwrap();
    assert!(file::read(&folder.0, 7).is_err());
}

#[test]
fn since_is_a_number_or_not_there() {
    assert_eq!((since(""), since("since=17")), (Ok(0), Ok(17)));
    for bad in ["since=", "since=-1", "since=1.5", "until=3", "since=1&since=2"] {
        assert!(since(bad).is_err(), "{bad}");
    }
}
