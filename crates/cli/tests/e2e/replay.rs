//! `weir replay`: on emulated flash in virtual time, and by the wall clock on a running `weir serve`
//! and on a file.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{run, said, weir, weir_path};
use crate::trace::{msr_lines, recorded};
use serde_json::Value;
use std::fs;

fn replay(args: &[&str]) -> Value {
    let args = [&["replay"], args, &["--json", "-"]].concat();
    let text = run(weir_path().to_str().expect("the binary's path is UTF-8"), &args);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn refused(args: &[&str], parts: &[&str]) {
    let output = weir(&[&["replay"], args].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?} says {part:?}: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn trace(scratch: &Scratch, requests: u64) -> String {
    let path = scratch.file("web.csv");
    fs::write(&path, msr_lines(requests)).unwrap();
    path
}

#[test]
fn an_emulated_replay_is_the_same_each_time_and_says_what_it_did() {
    let scratch = Scratch::new("replay-emulated");
    let trace = trace(&scratch, 4000);
    let args = [&*trace, "--device", "slc", "--capacity", "64MiB", "--precondition", "fill"];
    let first = replay(&args);
    assert_eq!(first["clock"], "media");
    assert_eq!((&first["errors"], &first["late"]), (&0.into(), &0.into()));
    assert_eq!(first["kinds"]["read"]["requests"], 2000);
    assert_eq!(first["kinds"]["write"]["requests"], 2000);
    let elapsed = first["elapsed_ns"].as_u64().unwrap();
    assert!(elapsed >= 3999 * 100_000, "an open loop lasts as long as its trace: {elapsed}");
    assert_eq!(first["device"]["bytes_written"], 2000 * 4096);
    assert!(first["device"]["waf"].as_f64().unwrap() >= 1.0, "{first}");
    let read = &first["kinds"]["read"]["latency"];
    let ns = |name: &str| read[name].as_f64().unwrap();
    assert!(
        ns("mean_ns") > 10_000.0 && ns("p50_ns") <= ns("p99_ns") && ns("p99_ns") <= ns("max_ns")
    );
    assert_eq!(replay(&args), first, "the same, to the last digit");

    let slower = replay(&[&args[..], &["--load", "0.5x"]].concat());
    let twice = slower["elapsed_ns"].as_u64().unwrap() as f64 / elapsed as f64;
    assert!((1.9..2.1).contains(&twice), "half the load takes twice as long: {twice}");
    let twice = replay(&[&args[..], &["--loop", "2"]].concat());
    assert_eq!(twice["kinds"]["read"]["requests"], 4000);
    let closed = replay(&[&args[..], &["--qd", "16"]].concat());
    assert!(closed["elapsed_ns"].as_u64().unwrap() < elapsed, "{closed}");
}

#[test]
fn a_drive_that_cannot_carry_a_trace_is_told_in_a_headline_without_latencies() {
    let scratch = Scratch::new("replay-overload");
    let trace = trace(&scratch, 20_000);
    let args = [&*trace, "--device", "slc", "--capacity", "64MiB", "--precondition", "fill"];
    let found = replay(&[&args[..], &["--load", "1000x"]].concat());
    // Two seconds of trace in two milliseconds.
    let needed = found["drives_needed"].as_f64().unwrap();
    let elapsed = found["elapsed_ns"].as_f64().unwrap();
    assert!((needed / (elapsed / 2e6) - 1.0).abs() < 0.01, "{needed} drives, {elapsed} ns");
    assert_eq!(found["kinds"]["read"]["latency"], Value::Null, "it tells nothing of the drive");
    let weir = weir_path();
    let text =
        |more: &[&str]| run(weir.to_str().unwrap(), &[&["replay"], &args[..], more].concat());
    let told = text(&["--load", "1000x"]);
    let headline = "this drive cannot carry this trace; it needs ";
    assert!(told.starts_with(headline) && !told.contains("p99.9"), "{told}");

    let found = replay(&args);
    assert_eq!((&found["headline"], &found["drives_needed"]), (&Value::Null, &Value::Null));
    let (device, of) = (&found["device"], |value: &Value| value.as_f64().unwrap());
    let by_reason = device["waf_by_reason"].as_object().unwrap().values().map(of).sum::<f64>();
    assert!((by_reason / of(&device["waf"]) - 1.0).abs() < 1e-6, "{device}");
    let wear = &device["wear"];
    let written = of(&wear["endurance"]) * of(&wear["flash_bytes"]) / of(&device["waf"]);
    assert!((of(&wear["tbw_bytes"]) / written - 1.0).abs() < 1e-6, "{wear}");
    assert_eq!(wear["offered_bytes"], 64 << 20);
    // 40 MB in two seconds, by the size of the drive, a day.
    let asked = 10_000.0 * 4096.0 / 2.0 * 86_400.0 / f64::from(64 << 20);
    assert!((of(&wear["dwpd_of_trace"]) / asked - 1.0).abs() < 0.01, "{wear}, not {asked}");
    let told = text(&[]);
    for part in ["p99.9", "WAF       host 1.000", "TB written", "times its size a day"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // A whole device is as large as its file says, however small the one is that was measured.
    let whole = replay(&[&trace, "--device", "intel-320"]);
    assert!(of(&whole["device"]["wear"]["flash_bytes"]) > 1e11, "{whole}");
    assert!(of(&whole["capacity"]) < 1e10, "{whole}");
}

#[test]
fn whole_devices_of_the_lab_are_replayed_on_like_profiles() {
    let scratch = Scratch::new("replay-devices");
    let trace = trace(&scratch, 1000);
    for device in ["tssd", "gen3", "intel-320", "ts8-2-x11"] {
        let found = replay(&[&trace, "--device", device, "--capacity", "64MiB"]);
        assert_eq!(
            (&found["errors"], &found["kinds"]["read"]["requests"]),
            (&0.into(), &500.into())
        );
        let against = found["against"].as_str().unwrap();
        assert!(against.contains(device), "{against}");
        assert!(found["device"]["counters"]["erases"].is_u64(), "{found}");
    }
    let file = scratch.file("mine.toml");
    let text = "name = \"mine\"\nkind = \"ssd\"\nprofile = \"slc\"\n[layout]\nchannels = 2\n\
                dies_per_channel = 1\nblocks_per_plane = 512\n[ftl]\nover_provisioning = 0.3\n";
    fs::write(&file, text).unwrap();
    let found =
        replay(&[&trace, "--device", &file, "--capacity", "64MiB", "--precondition", "fill"]);
    assert!(found["against"].as_str().unwrap().starts_with("device mine (ssd)"), "{found}");
    refused(&[&trace, "--device", &file, "--capacity", "1TiB"], &["mine", "in full", "--capacity"]);
    refused(&[&trace, "--device", "gen3", "--channels", "2"], &["--channels", "gen3"]);
    refused(&[&trace, "--device", "sdf"], &["line 2", "8388608", "gen3 or tssd"]);
    refused(&[&trace, "--device", "sdf", "--precondition", "random"], &["use fill"]);
    refused(&[&trace, "--device", "sdf", "--precondition", "trace"], &["no GC", "use fill"]);
    refused(&[&trace, "--device", "gen4"], &["gen4", "gen3", "mlc-25nm"]);
}

#[test]
fn threads_and_the_write_cap_shape_an_emulated_replay() {
    let scratch = Scratch::new("replay-threads");
    let trace = trace(&scratch, 4000);
    let threads = [&*trace, "--device", "slc", "--read-threads", "8", "--write-threads"];
    let reads = replay(&[&threads[..], &["0"]].concat());
    assert_eq!(reads["kinds"]["write"]["requests"], 0);
    assert_eq!(reads["kinds"]["read"]["requests"], 2000);
    let capped = replay(&[&threads[..], &["4", "--write-cap", "16MB/s"]].concat());
    // 2000 writes of 4096 bytes at 16 MB/s take half a second.
    let seconds = capped["elapsed_ns"].as_f64().unwrap() / 1e9;
    assert!((0.49..0.7).contains(&seconds), "{seconds} s");
}

#[test]
fn a_config_makes_the_emulated_device_and_a_steady_state_is_found() {
    let scratch = Scratch::new("replay-config");
    let trace = trace(&scratch, 1000);
    let config = scratch.file("weir.toml");
    let text = "[device]\nprofile = \"slc\"\nchannels = 2\ndies_per_channel = 1\nop_percent = 25\n\
                [[volume]]\nname = \"a\"\nsize = \"64MiB\"\n";
    fs::write(&config, text).unwrap();
    let found = replay(&[&trace, "--config", &config, "--precondition", "random", "--seed", "5"]);
    assert_eq!(found["capacity"], 64 << 20);
    assert_eq!(found["device"]["steady"], true, "{found}");
    assert!(found["device"]["precondition_waf"].as_array().unwrap().len() >= 2);
    assert_eq!(found["seed"], 5);
    let found = replay(&[&trace, "--config", &config, "--precondition", "trace"]);
    assert_eq!(
        (&found["device"]["steady"], &found["options"]["precondition"]),
        (&true.into(), &"trace".into())
    );
    let reads = ["--read-threads", "4", "--write-threads", "0"];
    let config = ["--config", &*config, "--precondition", "trace"];
    refused(&[&[&*trace], &config[..], &reads].concat(), &["nothing of", "use fill"]);
    assert!(!scratch.path().join("weir-data").exists(), "nothing is made on disk");
}

#[test]
fn a_trace_that_does_not_fit_is_refused_with_its_line_or_laid_out_as_told() {
    let scratch = Scratch::new("replay-fit");
    let trace = scratch.file("far.csv");
    fs::write(&trace, "0,W,0,4096,0\n0,W,1099511627776,4096,5\n0,R,0,4096,9\n").unwrap();
    refused(&[&trace, "--device", "tlc"], &["--capacity", "--fit"]);
    let small = [&*trace, "--device", "tlc", "--capacity", "64MiB"];
    refused(&small, &["far.csv: line 2: ", "--fit pack, wrap or scale"]);
    for fit in ["wrap", "scale", "pack"] {
        let found = replay(&[&small[..], &["--fit", fit]].concat());
        assert_eq!((&found["errors"], &found["moved"]), (&0.into(), &1.into()), "{fit}: {found}");
    }
    refused(&[&trace], &["--device", "--target"]);
    refused(&[&trace, "--device", "no-such-flash", "--capacity", "64MiB"], &["no-such-flash"]);
    refused(&[&trace, "--device", "tlc", "--load", "fast"], &["3x"]);
    let empty = scratch.file("empty.blkparse");
    fs::write(&empty, "8,0 3 11 0.009507758 697 Q WS 8 + 8 [x]\n").unwrap();
    refused(&[&empty, "--device", "tlc"], &["no request", "--action"]);
}

#[test]
fn a_running_server_is_replayed_on_only_when_its_data_may_go() {
    let scratch = Scratch::new("replay-nbd");
    let server = Server::start(&scratch, SMALL);
    let trace = trace(&scratch, 4000);
    let uri = server.uri();
    refused(&[&trace, "--target", &uri], &["2000 writes", "--overwrite", "--write-threads 0"]);
    let reads = replay(&[&trace, "--target", &uri, "--read-threads", "4", "--write-threads", "0"]);
    assert_eq!((&reads["clock"], &reads["errors"]), (&"host".into(), &0.into()));
    assert_eq!(reads["kinds"]["read"]["requests"], 2000);
    let mut client = server.connect();
    assert!(client.read(0, 64 * 4096).iter().all(|&byte| byte == 0), "nothing was written");

    let all = replay(&[&trace, "--target", &uri, "--overwrite", "--load", "0.5x"]);
    assert_eq!((&all["errors"], &all["kinds"]["write"]["requests"]), (&0.into(), &2000.into()));
    assert!(all["elapsed_ns"].as_u64().unwrap() >= 2 * 3999 * 100_000, "by the clock: {all}");
    assert!(all["device"].is_null(), "{all}");
    assert!(client.read(0, 64 * 4096).iter().any(|&byte| byte != 0), "something was written");
    let closed = replay(&[&trace, "--target", &uri, "--overwrite", "--qd", "16"]);
    assert_eq!(closed["kinds"]["read"]["requests"], 2000);

    let rich = scratch.file("rq.csv");
    fs::write(&rich, "0.0,WFS,0,8,x\n0.001,FF,0,0,x\n0.002,D,0,2048,x\n0.003,R,0,3,x\n").unwrap();
    let rich = replay(&[&rich, "--target", &uri, "--overwrite"]);
    assert_eq!(rich["errors"], 0, "{rich}");
    for kind in ["write", "flush", "trim", "read"] {
        assert_eq!(rich["kinds"][kind]["requests"], 1, "{rich}");
    }
    drop(client);
    server.terminate();
    refused(&[&trace, "--target", &uri, "--overwrite"], &["is the server running"]);
    refused(&[&trace, "--target", "nbd+unix:///x", "--overwrite"], &["socket=PATH"]);
}

#[test]
fn a_file_is_replayed_on_only_when_its_data_may_go() {
    let scratch = Scratch::new("replay-file");
    let trace = trace(&scratch, 1000);
    let file = scratch.file("disk");
    fs::write(&file, vec![7; 40 << 20]).unwrap();
    refused(&[&trace, "--target", &file], &["disk", "--overwrite"]);
    let reads = [&*trace, "--target", &file, "--read-threads", "2", "--write-threads", "0"];
    let found = replay(&[&reads[..], &["--buffered"]].concat());
    assert_eq!((&found["errors"], &found["kinds"]["write"]["requests"]), (&0.into(), &0.into()));
    assert!(fs::read(&file).unwrap().iter().all(|&byte| byte == 7), "untouched");
    let found = replay(&[&trace, "--target", &file, "--overwrite", "--qd", "4", "--buffered"]);
    assert_eq!((&found["errors"], &found["kinds"]["write"]["requests"]), (&0.into(), &500.into()));
    assert!(fs::read(&file).unwrap().iter().any(|&byte| byte != 7), "written");
    let direct = weir(&["replay", &trace, "--target", &file, "--overwrite", "--qd", "4"]);
    let text = said(&direct);
    assert!(direct.status.success() || text.contains("--buffered"), "{text}");
    refused(&[&trace, "--target", "/no/such/disk", "--overwrite"], &["/no/such/disk"]);
}

#[test]
fn recorded_traces_replay_whole_on_emulated_flash() {
    for path in recorded() {
        let path = path.to_str().unwrap();
        let found =
            replay(&[path, "--device", "tlc", "--fit", "pack", "--load", "2x", "--repair", "time"]);
        assert_eq!(found["errors"], 0, "{path}: {found}");
        let requests = ["read", "write", "trim", "flush"]
            .map(|kind| found["kinds"][kind]["requests"].as_u64().unwrap());
        assert_eq!(requests.iter().sum::<u64>(), found["trace_requests"], "{path}");
    }
}
