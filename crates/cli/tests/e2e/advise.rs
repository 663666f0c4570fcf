//! `weir advise` as people use it: on a made-up trace and on the recorded ones of the
//! repository; and what it says of what it cannot advise on.

use crate::scratch::Scratch;
use crate::tools::{run, said, weir, weir_path};
use crate::trace::{msr_lines, recorded};
use serde_json::Value;
use std::fs;

fn advised(args: &[&str]) -> String {
    run(weir_path().to_str().expect("the binary's path is UTF-8"), &[&["advise"], args].concat())
}

fn refused(args: &[&str], parts: &[&str]) {
    let output = weir(&[&["advise"], args].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?} says {part:?}: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn trace(scratch: &Scratch) -> String {
    let path = scratch.file("web.csv");
    fs::write(&path, msr_lines(8000)).unwrap();
    path
}

#[test]
fn an_advice_is_the_same_each_time_as_text_as_json_and_as_a_page() {
    let scratch = Scratch::new("advise");
    let (trace, page) = (trace(&scratch), scratch.file("advice.html"));
    // At its own rate the trace is too much for the drive, and there would be no latencies.
    let what = ["--device", "slc", "--op", "10,28", "--gc", "cost-benefit", "--load", "0.25x"];
    let args = [&[&*trace], &what[..]].concat();
    let json = |more: &[&str]| {
        let text = advised(&[&args[..], &["--json"], more].concat());
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let first = json(&["--report", &page]);
    // Two disks: their data is told apart by hint, too.
    let rows = first["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 14, "seven stream policies, two over-provisionings");
    assert!(rows.iter().any(|row| row["stream"] == "hint:handles=2"));
    for row in rows {
        assert!(row["waf"].as_f64().unwrap() >= 1.0, "{row}");
        assert_eq!((&row["failure"], &row["steady"]), (&Value::Null, &true.into()), "{row}");
        // It writes a little less than the 16 MiB of the device, so a round is it twice.
        assert_eq!(row["reads"]["requests"], 8000);
        assert!(row["writes"]["p999_ns"].as_u64() >= row["writes"]["p99_ns"].as_u64());
    }
    assert_eq!(first["oracle"].as_array().unwrap().len(), 2);
    let chosen = &first["choice"];
    assert!(chosen["why"].as_str().unwrap().contains(chosen["stream"].as_str().unwrap()));
    assert_eq!(json(&["--threads", "1"]), first, "the same, to the last digit");
    let html = fs::read_to_string(&page).unwrap();
    for part in ["<svg", "id=\"waf\"", "id=\"waf-by-op\"", "oracle", "weir advise"] {
        assert!(html.contains(part), "{part}");
    }
    let text = advised(&[&args[..], &["--streams", "none,sfr:handles=4,decay=1MiB"]].concat());
    for part in
        ["=>", "sfr:handles=4,decay=1MiB", "oracle", "Choose streams =", "fitted to the trace"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_cannot_be_advised_on_is_refused_with_place_and_mend() {
    let scratch = Scratch::new("advise-refused");
    let trace = trace(&scratch);
    let file = |name: &str, text: &str| {
        let path = scratch.file(name);
        fs::write(&path, text).unwrap();
        path
    };
    let with = |device: &'static str| ["--device", device];
    refused(&[&[&*trace][..], &with("plc")].concat(), &["plc", "gen3", "tlc"]);
    refused(&[&[&*trace][..], &with("sdf")].concat(), &["raw units", "tssd"]);
    refused(&[&trace, "--device", "slc", "--gc", "oldest"], &["--gc", "oldest", "cost-benefit"]);
    refused(&[&trace, "--device", "slc", "--streams", "sfrr"], &["--streams", "sepbit, midas"]);
    refused(
        &[&trace, "--device", "slc", "--streams", "sfr:handles=12"],
        &["13", "--budget-handles"],
    );
    refused(&[&trace, "--device", "slc", "--op", "1"], &["3 to 400"]);
    refused(&[&trace, "--device", "slc", "--capacity", "much"], &["--capacity", "480GiB"]);
    refused(&[&trace, "--device", "slc", "--capacity", "1MiB"], &["touches", "--capacity"]);
    refused(&[&trace, "--device", "intel-320", "--capacity", "9TiB"], &["intel-320", "in full"]);
    refused(&[&trace, "--device", "slc", "--format", "csv"], &["csv", "msr"]);
    refused(&["/no/such/trace", "--device", "slc"], &["/no/such/trace", "cannot be opened"]);
    let reads = file("reads.block-rq", "0.0,R,0,8,x\n0.1,R,8,8,x\n");
    refused(&[&reads, "--device", "slc"], &["reads.block-rq", "none of its 2", "weir replay"]);
    let empty = file("empty.block-rq", "# nothing\n");
    refused(
        &[&empty, "--device", "slc", "--format", "block-rq"],
        &["empty.block-rq", "no request"],
    );
    let bad = file("bad.block-rq", "0.0,W,0,8,x\n0.1,W,zero,8,x\n");
    refused(&[&bad, "--device", "slc"], &["bad.block-rq", "line 2", "zero"]);
    refused(
        &[&trace, "--device", "slc", "--report", "/no/such/folder/x.html"],
        &["/no/such", "another path"],
    );
    let small = "name = \"mine\"\nkind = \"ssd\"\nprofile = \"slc\"\n[layout]\nchannels = 1\n\
                 dies_per_channel = 1\nblocks_per_plane = 32\n[ftl]\nover_provisioning = 0.3\n";
    refused(&[&trace, "--device", &file("mine.toml", small)], &["mine", "offers", "--sample 1/"]);
}

/// Hot and cold writes with flushes among them, as the kernel's block_rq events tell them.
fn flushing() -> String {
    let mut random = flash::Random::new(5);
    let mut line = |at: u64| {
        let (op, sector, sectors) = match at % 8 {
            0 => ("W", random.below(4096) * 8, 8),
            6 => ("FF", 0, 0),
            7 => ("R", random.below(4096) * 8, 8),
            _ => ("W", random.below(1024) * 8, 8),
        };
        format!("{:.6},{op},{sector},{sectors},x\n", at as f64 * 5e-4)
    };
    (0..16_000).map(&mut line).collect()
}

/// What padding costs GC is part of a replay; an advice that adds the padding to a GC measured without
/// told 4.58 where a replay like these found 5.96.
#[test]
fn an_advice_says_what_a_replay_of_the_drive_measures() {
    let scratch = Scratch::new("advise-replay");
    let trace = scratch.file("flushing.block-rq");
    fs::write(&trace, flushing()).unwrap();
    let shape = ["--device", "slc", "--channels", "2", "--dies-per-channel", "1"];
    let what = ["--streams", "none,midas", "--gc", "cost-benefit", "--op", "7,28"];
    let how = ["--capacity", "16MiB", "--qd", "16", "--json"];
    let text = advised(&[&[&*trace], &shape[..], &what, &how].concat());
    let advice: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(advice["whole"], true, "the trace touches all of the drive: {advice}");
    let rows = advice["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let config = scratch.file("weir.toml");
        let text = format!(
            "[device]\nprofile = \"slc\"\nchannels = 2\ndies_per_channel = 1\nop_percent = {}\n\
             [ftl.policy]\nvictim = {}\nstream = {}\n[[volume]]\nname = \"a\"\nsize = \"16MiB\"\n",
            row["op_percent"].as_f64().unwrap(),
            row["victim"],
            row["stream"],
        );
        fs::write(&config, text).unwrap();
        let replay = ["replay", &trace, "--config", &config, "--precondition", "trace"];
        let how = ["--fit", "pack", "--qd", "16", "--json", "-"];
        let found = run(weir_path().to_str().unwrap(), &[&replay[..], &how].concat());
        let found: Value = serde_json::from_str(&found).expect("JSON");
        let measured = found["device"]["waf"].as_f64().unwrap();
        let advised = row["waf"].as_f64().unwrap();
        assert!((advised / measured - 1.0).abs() < 0.03, "{measured} measured, advised {row}");
        assert!(row["overhead"].as_f64().unwrap() > 0.01, "flushes pad pages: {row}");
    }
    let waf = |row: usize| rows[row]["waf"].as_f64().unwrap();
    assert!(waf(0) > 1.5 * waf(2), "over-provisioning tells: {rows:?}");
}

/// Of the first block of this kind behind a heading of a page.
fn block<'a>(page: &'a str, heading: &str, kind: &str) -> &'a str {
    let (_, behind) = page.split_once(&format!("\n{heading}\n")).expect("the heading is there");
    let (_, block) = behind.split_once(&format!("```{kind}\n")).expect("it has such a block");
    block.split_once("```").expect("the block ends").0
}

/// Virtual time and a seed: what the page shows is what whoever tries it sees, to the letter.
#[test]
fn the_example_of_the_page_prints_what_the_page_shows() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = fs::read_to_string(format!("{root}/docs/advise.md")).unwrap();
    let command = block(&page, "## An example", "sh").trim();
    let args: Vec<String> = (command.split_whitespace().skip(1))
        .map(|arg| if arg.starts_with("traces/") { format!("{root}/{arg}") } else { arg.into() })
        .collect();
    assert!(command.starts_with("weir advise traces/"), "{command}");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let told = run(weir_path().to_str().unwrap(), &args).replace(&format!("{root}/"), "");
    let shown = block(&page, "## An example", "text");
    for (number, (told, shown)) in (1..).zip(told.lines().zip(shown.lines())) {
        assert_eq!(told, shown, "line {number} of the example in docs/advise.md");
    }
    assert_eq!(told.lines().count(), shown.lines().count());
}

#[test]
fn a_drive_that_cannot_carry_a_trace_is_told_in_a_headline_and_wear_is_of_the_drive_named() {
    let scratch = Scratch::new("advise-overload");
    let trace = trace(&scratch);
    let args = [&*trace, "--device", "slc", "--op", "28", "--gc", "greedy", "--streams", "none"];
    let json = |more: &[&str]| {
        let text = advised(&[&args[..], &["--json"], more].concat());
        serde_json::from_str::<Value>(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    let carried = json(&[]);
    assert_eq!((&carried["headline"], &carried["drives_needed"]), (&Value::Null, &Value::Null));
    let row = &carried["rows"][0];
    let of = |value: &Value| value.as_f64().unwrap();
    assert!(of(&row["drive_flash_bytes"]) > f64::from(u32::MAX) * 256.0, "1 TiB: {row}");
    let written = of(&carried["endurance"]) * of(&row["drive_flash_bytes"]) / of(&row["waf"]);
    assert!((of(&row["tbw_bytes"]) / written - 1.0).abs() < 1e-9, "{row}");
    let years = written / of(&carried["write_bytes_per_s"]) / (365.25 * 86_400.0);
    assert!((of(&row["years"]) / years - 1.0).abs() < 1e-9, "{row}");
    let by_reason = row["waf_by_reason"].as_object().unwrap().values().map(of).sum::<f64>();
    assert!((by_reason / of(&row["waf"]) - 1.0).abs() < 1e-9, "{row}");

    let over = json(&["--load", "1000x"]);
    let needed = of(&over["drives_needed"]);
    let headline = over["headline"].as_str().unwrap();
    assert!(needed > 1.0 && headline.contains("cannot carry this trace; it needs"), "{headline}");
    assert_eq!(over["rows"][0]["reads"], Value::Null, "its latencies tell nothing");
    let text = advised(&[&args[..], &["--load", "1000x"]].concat());
    assert!(text.starts_with(&format!("slc (ftl): {headline}\n")), "{text}");
    assert!(!text.contains("read mean") && text.contains("DWPD"), "{text}");
}

/// A fortieth of the address space: the whole traces take minutes.
#[test]
fn recorded_traces_are_advised_on() {
    for path in &recorded() {
        let path = path.to_str().unwrap();
        let text = advised(&[
            path,
            "--device",
            "intel-320",
            "--op",
            "15",
            "--gc",
            "cost-benefit",
            "--streams",
            "none,sepbit",
            "--sample",
            "1/40",
            "--overwrites",
            "1",
            "--json",
        ]);
        let advice: Value = serde_json::from_str(&text).expect("JSON");
        let rows = advice["rows"].as_array().unwrap();
        let oracle = advice["oracle"][0]["waf"].as_f64().unwrap();
        for row in rows {
            assert_eq!(row["failure"], Value::Null, "{path}: {row}");
            assert!(row["waf_by_gc"].as_f64().unwrap() >= oracle * 0.99, "{path}: {row}");
        }
    }
}
