//! `weir profile`: measuring a file and an NBD export, what it refuses to overwrite, an interruption, published
//! files. Nothing here depends on how fast the machine is: where it is too busy to tell, loads are marked.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{said, weir, weir_path};
use lab::drives::Profile;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const QUICK: &[&str] = &["--seconds", "0.05", "--points", "8", "--json"];

/// An empty file of 16 MiB.
fn disk(scratch: &Scratch) -> String {
    let path = scratch.file("disk.img");
    fs::write(&path, vec![0; 16 << 20]).unwrap();
    path
}

fn refused(args: &[&str], parts: &[&str]) {
    let output = weir(&[&["profile"], args].concat());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?} says {part:?}: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

/// Measures, and checks the file against what was told of it.
fn measured(args: &[&str], out: &str) -> Value {
    let output = weir(&[&["profile"], args, QUICK, &["--out", out]].concat());
    let told = said(&output);
    let value: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {told}"));
    let mut drives = 0;
    for share in value["shares"].as_array().unwrap() {
        let loads = share["loads"].as_array().unwrap();
        // On a busy machine the first load may be the last one that is tried.
        assert!((1..=8).contains(&loads.len()) && share["is_whole"] == true, "{told}");
        // A load of which nothing ended in the time that counts is no point of a curve.
        let is_known =
            |load: &&Value| load["is_the_drives"] == true && load["iops"].as_f64() > Some(0.0);
        let of_share = loads.iter().filter(is_known).count();
        drives += of_share;
        for load in loads {
            let us = |name: &str| load[name].as_f64().unwrap_or(f64::INFINITY);
            let rising = ["p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p9999_us"].map(us);
            assert!(rising.is_sorted(), "{load}");
            assert!(load["asked_iops"].as_f64().unwrap() > 0.0, "{load}");
        }
        assert_eq!(
            read(out)
                .and_then(|profile| {
                    let curve = profile.curve(share["writes_percent"].as_f64().unwrap())?;
                    Some(curve.points.len())
                })
                .unwrap_or(0),
            of_share,
            "the profile has what is the drive's and nothing else: {told}"
        );
    }
    assert_eq!(output.status.code(), Some(if drives > 0 { 0 } else { 1 }), "{told}");
    for (count, remark) in
        [("loads_left_out", "are marked"), ("loads_unanswered", "the drive ended nothing")]
    {
        assert_eq!(value[count].as_u64().unwrap() > 0, told.contains(remark), "{told}");
    }
    value
}

fn read(path: &str) -> Option<Profile> {
    let text = fs::read_to_string(path).ok()?;
    Some(Profile::parse(path, &text).unwrap_or_else(|error| panic!("{error}:\n{text}")))
}

#[test]
fn a_file_is_overwritten_and_measured_and_its_profile_is_read_back() {
    let scratch = Scratch::new("profile-file");
    let (disk, out) = (disk(&scratch), scratch.file("p.csv"));
    let value = measured(&[&disk, "--writes", "100,0", "--yes"], &out);
    let shares: Vec<f64> = value["shares"]
        .as_array()
        .unwrap()
        .iter()
        .map(|share| share["writes_percent"].as_f64().unwrap())
        .collect();
    assert_eq!(shares, [0.0, 100.0]);
    assert!(value["generator_iops"].as_f64().unwrap() > 1000.0, "{value}");
    let bytes = fs::read(&disk).unwrap();
    assert_eq!(bytes.len(), 16 << 20);
    assert!(bytes.chunks(4096).all(|block| block.starts_with(b"WEIRLOAD")), "all was written");
    if value["out"].is_string() {
        let shown = weir(&["profile", "--show", &out, "--json"]);
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
        assert_eq!(shown["shares"], value["peaks"]["shares"]);
        refused(&[&disk, "--yes", "--out", &out], &["p.csv", "is there already"]);
    }
    // What it left there may be overwritten again, and reads leave it as it is.
    measured(&[&disk, "--writes", "100", "--no-fill", "--yes"], &scratch.file("again.csv"));
    let before = fs::read(&disk).unwrap();
    measured(&[&disk, "--read-only"], &scratch.file("reads.csv"));
    assert!(fs::read(&disk).unwrap() == before, "reads change nothing");
}

#[test]
fn what_must_not_be_overwritten_is_named_and_left_alone() {
    let scratch = Scratch::new("profile-refusals");
    let disk = disk(&scratch);
    let out = scratch.file("p.csv");
    let all = |device: &str, parts: &[&str]| refused(&[device, "--yes", "--out", &out], parts);
    refused(&[&disk, "--out", &out], &["disk.img", "--yes", "--read-only"]);
    refused(&[&disk, "--yes", "--out", "p.txt"], &["p.txt", ".csv"]);
    all(&scratch.file("none"), &["none", "is not there", "fallocate"]);
    refused(&[&scratch.file("none"), "--out", &out], &["none", "is not there", "fallocate"]);
    all(scratch.path().to_str().unwrap(), &["neither a plain file nor a disk"]);
    let formatted = weir(&["format", "--config", &config(&scratch)]);
    assert!(formatted.status.success(), "{}", said(&formatted));
    let device = scratch.file("device");
    let before = fs::read(&device).unwrap();
    all(&device, &["device", "holds a device of Weir's", "dd if=/dev/zero"]);
    assert!(fs::read(&device).unwrap() == before, "nothing was written");
    let thesis = scratch.file("thesis");
    fs::write(&thesis, "all that I know".repeat(200_000)).unwrap();
    all(&thesis, &["thesis", "data of somebody's"]);
    assert!(fs::read_to_string(&thesis).unwrap().starts_with("all that I know"));
    assert!(!fs::exists(&out).unwrap() && !fs::exists(scratch.file("p.csv.new")).unwrap());
}

/// A config of a device in a file.
fn config(scratch: &Scratch) -> String {
    let path = scratch.file("weir.toml");
    fs::write(&path, "[device]\nkind = \"file\"\npath = \"device\"\n[[volume]]\nname = \"v\"\nsize = \"64MiB\"\n").unwrap();
    path
}

#[test]
fn who_interrupts_is_told_what_is_missing_and_what_is_kept_is_a_profile() {
    let scratch = Scratch::new("profile-stop");
    let (disk, out) = (disk(&scratch), scratch.file("p.csv"));
    let args = [
        "profile",
        &disk,
        "--writes",
        "0,100",
        "--seconds",
        "20",
        "--yes",
        "--json",
        "--out",
        &out,
    ];
    let child =
        Command::new(weir_path()).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("it starts");
    let begun = Instant::now();
    // Once it overwrites, a signal is a wish.
    while fs::read(&disk).unwrap()[0] == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was written");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Where tests run in the background SIGINT is ignored, and stays so in a child.
    // SAFETY: no memory is involved; the child is ours and was not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let output = child.wait_with_output().expect("it ends");
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["interrupted"], true, "{told}");
    assert!(told.contains("nothing was measured at") && told.contains("100 % of writes"), "{told}");
    let kept = read(&out).map_or(0, |profile| profile.curves.len());
    assert!(kept < 2, "the second share was never begun");
    assert!(!fs::exists(scratch.file("p.csv.new")).unwrap());
}

#[test]
fn an_export_is_measured_like_a_drive() {
    let scratch = Scratch::new("profile-nbd");
    let server = Server::start(&scratch, SMALL);
    let uri = server.uri();
    measured(&[&uri, "--read-only"], &scratch.file("reads.csv"));
    measured(&[&uri, "--writes", "50", "--yes"], &scratch.file("mixed.csv"));
    let mut client = server.connect();
    for block in [0, 1, 16383] {
        assert!(client.read(block * 4096, 4096).starts_with(b"WEIRLOAD"), "block {block}");
    }
    client.write(0, &[7; 4096]);
    refused(&[&uri, "--yes", "--out", &scratch.file("x.csv")], &["data of somebody's", "zeroes"]);
    drop(client);
    server.terminate();
    refused(&[&uri, "--read-only", "--out", &scratch.file("x.csv")], &["is the server running"]);
}

const HEAD: &str = "SerialNumber,Distribution,Target,Actual,Dropped,NeverSent,Median,90th,99th,99.9th,99.99th,Start,StartTsc\n";

#[test]
fn published_files_become_a_profile_and_what_is_wrong_is_told_with_its_place() {
    let scratch = Scratch::new("profile-import");
    let write = |name: &str, lines: &str| {
        let path = scratch.file(name);
        fs::write(&path, format!("{HEAD}{lines}")).unwrap();
        path
    };
    let reads = write(
        "S1_100r.csv",
        "S1,constant,1000,1000,0,3,70,80,90,100,110,17,97\nS1,constant,9000,8000,0,3,170,1280,1300,1400,1500,17,97\n",
    );
    let writes = write("S1_1000w.csv", "S1,constant,500,500,0,3,20,30,2000,2000,2000,17,97\n");
    let out = scratch.file("s1.csv");
    let made = weir(&["profile", "--import", &reads, &writes, "--out", &out, "--json"]);
    let value: Value =
        serde_json::from_slice(&made.stdout).unwrap_or_else(|_| panic!("{}", said(&made)));
    assert_eq!(value["name"], "s1");
    assert_eq!(value["shares"][0]["peak_p90"]["iops"], 1000.0);
    assert_eq!(value["shares"][0]["peak_p90"]["is_bounded"], true);
    assert!(value["shares"][1]["peak_p99"]["iops"].is_null(), "{value}");
    assert!(said(&made).contains("10 % of writes was not measured"), "{}", said(&made));
    let shown = said(&weir(&["profile", "--show", &out]));
    assert!(shown.contains("500 or more") && shown.contains("none"), "{shown}");
    let shown = said(&weir(&["profile", "--show", "sdm000024c8d"]));
    assert!(shown.contains("100 %"), "{shown}");

    let other = write(
        "S2_100r.csv",
        "S1,constant,1000,1000,0,3,70,80,90,100,110,17,97\nS2,constant,2000,2000,0,3,70,80,90,100,110,17,97\n",
    );
    let x = scratch.file("x.csv");
    refused(&["--import", &other, &writes, "--out", &x], &["S2_100r.csv", "line 3", "\"S2\""]);
    refused(&["--import", &scratch.file("none_100r.csv"), "--out", &x], &["none_100r.csv"]);
    let text = fs::read_to_string(&out).unwrap();
    fs::write(&x, &text[..text.len() - 1]).unwrap();
    refused(&["--show", &x], &["x.csv", "line 4", "cut off"]);
    refused(&["--show", "nobody"], &["nobody", "sdm000024c8d"]);
}
