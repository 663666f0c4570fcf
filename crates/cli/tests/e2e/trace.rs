//! `weir trace` as people use it: convert between formats and packings, measure, cut; and what it
//! says of traces that are not sound. The recorded traces of the project's shared data are used
//! where they are, and their absence is told.

use crate::scratch::Scratch;
use crate::tools::{run, said, weir, weir_path};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A made-up trace in MSR's format: two disks, overwrites, a sequence.
pub fn msr_lines(requests: u64) -> String {
    let line = |i: u64| {
        let (op, offset) = match i % 4 {
            0 => ("Read", i * 7919 % 4096 * 4096),
            1 => ("Write", i % 64 * 4096),
            2 => ("Write", (1 << 20) + i / 4 % 2048 * 4096),
            _ => ("Read", (1 << 20) + i / 4 % 2048 * 4096),
        };
        let disk = u64::from(i % 10 == 9);
        format!("{},web,{disk},{op},{offset},4096,{}\n", 128_000_000_000_000_000 + i * 1000, 50 + i)
    };
    (0..requests).map(line).collect()
}

fn weir_run(args: &[&str]) -> String {
    run(weir_path().to_str().expect("the binary's path is UTF-8"), args)
}

fn stat(path: &str, more: &[&str]) -> Value {
    let args = [&["trace", "stat", path, "--json"], more].concat();
    serde_json::from_str(&weir_run(&args)).expect("JSON")
}

#[test]
fn a_trace_converts_to_every_format_and_back_and_stays_the_same() {
    let scratch = Scratch::new("trace-convert");
    let source = scratch.file("web.csv");
    fs::write(&source, msr_lines(2000)).unwrap();
    let before = stat(&source, &[]);
    assert_eq!(before["format"], "msr");
    assert_eq!(before["requests"], 2000);
    assert_eq!(before["duration_ns"], 1999 * 100_000);
    for (name, format) in [
        ("a.weir", "weir"),
        ("a.weir.gz", "weir"),
        ("a.weir.zst", "weir"),
        ("a.systor", "systor"),
        ("a.alibaba.gz", "alibaba"),
        ("a.spc", "spc"),
        ("a.iolog", "fio"),
        ("a.mqsim.zst", "mqsim"),
        ("a.cloudphysics", "cloudphysics"),
        ("a.block-rq", "block-rq"),
    ] {
        let converted = scratch.file(name);
        weir_run(&["trace", "convert", &source, &converted, "--to", format]);
        let after = stat(&converted, &[]);
        assert_eq!(after["format"], format);
        for same in ["requests", "duration_ns", "gap_ns"] {
            assert_eq!(after[same], before[same], "{same} as {format}");
        }
        assert_eq!(after["kinds"]["write"]["bytes"], before["kinds"]["write"]["bytes"]);
        // These know one volume only: the two disks lie over each other.
        if !["cloudphysics", "block-rq"].contains(&format) {
            assert_eq!(after["footprint"], before["footprint"], "{format}");
        }
    }
    let (plain, small) = (fs::metadata(&source).unwrap().len(), scratch.file("a.weir"));
    assert!(fs::metadata(&small).unwrap().len() * 5 < plain, "the compact format is compact");
}

#[test]
fn fio_replays_what_is_written_as_its_log() {
    let scratch = Scratch::new("trace-fio");
    let (source, log) = (scratch.file("web.csv"), scratch.file("web.iolog"));
    fs::write(&source, msr_lines(200)).unwrap();
    weir_run(&["trace", "convert", &source, &log]);
    let folder = scratch.path().to_str().unwrap();
    for volume in ["volume0", "volume1"] {
        fs::File::create(scratch.path().join(volume)).unwrap().set_len(32 << 20).unwrap();
    }
    let text = fs::read_to_string(&log).unwrap().replace(" volume", &format!(" {folder}/volume"));
    fs::write(&log, text).unwrap();
    let read_iolog = format!("--read_iolog={log}");
    let output =
        run("fio", &["--name=x", "--replay_no_stall=1", "--output-format=json", &read_iolog]);
    let json: Value = serde_json::from_str(&output[output.find('{').unwrap()..]).unwrap();
    let ios = |side: &str| json["jobs"][0][side]["total_ios"].as_u64().unwrap();
    assert_eq!((ios("read"), ios("write")), (100, 100), "{output}");
}

#[test]
fn what_fio_records_is_read() {
    let scratch = Scratch::new("trace-iolog");
    let (file, log) = (scratch.file("file"), scratch.file("log"));
    let (filename, write_iolog) = (format!("--filename={file}"), format!("--write_iolog={log}"));
    run(
        "fio",
        &["--name=x", "--size=1m", "--rw=randrw", "--bs=4k", "--fsync=16", &filename, &write_iolog],
    );
    let found = stat(&log, &[]);
    assert_eq!(found["format"], "fio");
    let kinds = &found["kinds"];
    let requests = |kind: &str| kinds[kind]["requests"].as_u64().unwrap();
    assert_eq!(requests("read") + requests("write"), 256, "{found}");
    assert!(requests("flush") > 0, "{found}");
}

#[test]
fn a_cut_takes_what_it_says() {
    let scratch = Scratch::new("trace-cut");
    let source = scratch.file("web.csv");
    fs::write(&source, msr_lines(2000)).unwrap();
    let cut = |name: &str, args: &[&str]| {
        let out = scratch.file(name);
        weir_run(&[&["trace", "cut", &source, &out], args].concat());
        stat(&out, &[])
    };
    let part = cut("time.weir", &["--from", "50ms", "--to", "100ms"]);
    assert_eq!((&part["requests"], &part["duration_ns"]), (&500.into(), &(499 * 100_000).into()));
    assert_eq!(cut("first.weir", &["--first", "7"])["requests"], 7);
    assert_eq!(cut("volume.weir", &["--volume", "web.1"])["requests"], 200);
    assert_eq!(cut("number.weir", &["--volume", "1"])["requests"], 200);
    let sample = cut("sample.weir", &["--sample", "1/3"]);
    let count = sample["requests"].as_u64().unwrap();
    assert!(count > 0 && count < 2000, "{count}");
    assert_eq!(cut("again.weir", &["--sample", "1/3"])["footprint"], sample["footprint"]);
}

#[test]
fn unsound_traces_are_told_with_their_line_or_mended_on_request() {
    let scratch = Scratch::new("trace-bad");
    let source = scratch.file("bad.csv");
    let lines = msr_lines(10);
    let mut lines: Vec<&str> = lines.lines().collect();
    lines[4] = "128000000000003000,web,0,Scribble,0,4096,1";
    lines.swap(7, 8);
    fs::write(&source, lines.join("\n")).unwrap();
    let refused = |args: &[&str], parts: &[&str]| {
        let output = weir(args);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{args:?} says {part:?}: {text}");
        }
        assert!(!text.contains("panicked"), "{text}");
    };
    refused(&["trace", "stat", &source], &["bad.csv: line 5: ", "Scribble", "R or W"]);
    refused(&["trace", "stat", &source, "--skip-bad", "--repair", "space"], &["--repair"]);
    let mended = stat(&source, &["--skip-bad", "--repair", "time"]);
    assert_eq!(mended["requests"], 9);
    assert_eq!(mended["repairs"]["skipped"], 1);
    assert_eq!(mended["repairs"]["times_moved"], 1);
    let skipped = stat(&source, &["--skip-bad"]);
    assert_eq!((&skipped["requests"], &skipped["repairs"]["skipped"]), (&8.into(), &2.into()));

    refused(&["trace", "stat", "/no/such/trace"], &["/no/such/trace", "cannot be opened"]);
    refused(&["trace", "stat", &source, "--format", "csv"], &["csv", "msr"]);
    let text = scratch.file("text");
    fs::write(&text, "once upon a time\n").unwrap();
    refused(&["trace", "stat", &text], &["once upon a time", "--format"]);
    refused(&["trace", "convert", &source, &text], &["is there already", "--overwrite"]);
    let out = scratch.file("out.weir");
    refused(&["trace", "convert", &source, &out], &["line 5"]);
    assert!(!Path::new(&out).exists(), "half a trace is none");
    assert!(!Path::new(&format!("{out}.partial")).exists());
    refused(&["trace", "convert", &source, &out, "--to", "blkparse"], &["read and not written"]);
}

#[test]
fn what_a_format_cannot_hold_is_left_out_only_on_request() {
    let scratch = Scratch::new("trace-unfit");
    let (source, out) = (scratch.file("rq.csv"), scratch.file("rq.spc"));
    fs::write(&source, "0.0,W,0,8,x\n0.1,FF,0,0,x\n0.2,D,0,8,x\n0.3,R,0,8,x\n").unwrap();
    let refused = weir(&["trace", "convert", &source, &out, "--to", "spc"]);
    assert!(said(&refused).contains("--drop-unfit"), "{}", said(&refused));
    let kept = weir(&["trace", "convert", &source, &out, "--to", "spc", "--drop-unfit"]);
    assert!(kept.status.success() && said(&kept).contains("2 left out"), "{}", said(&kept));
    assert_eq!(stat(&out, &[])["requests"], 2);
}

/// The recorded traces of the repository.
pub fn recorded() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let entries = fs::read_dir(&folder).expect("traces/ is part of the repository");
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.retain(|path| path.extension().is_some_and(|extension| extension == "zst"));
    assert!(found.len() >= 3, "{}: {found:?}", folder.display());
    found.sort();
    found
}

#[test]
fn recorded_traces_are_read_whole_and_survive_a_conversion() {
    let scratch = Scratch::new("trace-recorded");
    for path in recorded() {
        let path = path.to_str().unwrap();
        let before = stat(path, &[]);
        assert_eq!(before["repairs"]["skipped"], 0, "{path}");
        assert!(before["requests"].as_u64().unwrap() > 6000, "{path}");
        let converted = scratch.file("x.weir");
        weir_run(&["trace", "convert", path, &converted, "--overwrite"]);
        let mut after = stat(&converted, &[]);
        for own in ["trace", "format", "repairs"] {
            after[own] = before[own].clone();
        }
        assert_eq!(after, before);
    }
}
