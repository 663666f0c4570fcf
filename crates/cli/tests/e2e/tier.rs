//! A device with a fast tier: on whatever media, through kills, while the tier is taken away, and when it
//! is not the one that it should be.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{pattern, run, said, weir};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Longest that something which takes a moment may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A config with a fast tier, and the paths it names.
struct Setup {
    scratch: Scratch,
    config: String,
    fast: PathBuf,
}

impl Setup {
    fn new(name: &str, device: &str, fast: &str) -> Self {
        let scratch = Scratch::new(name);
        let path = scratch.path().join("fast");
        let setup = Self { config: scratch.file("weir.toml"), fast: path, scratch };
        setup.write(device, Some(fast));
        setup
    }

    /// The config, with a fast tier or without.
    fn write(&self, device: &str, fast: Option<&str>) {
        let fast = fast.map_or(String::new(), |keys| {
            format!("fast = {{ path = \"{}\", {keys} }}\n", self.fast.display())
        });
        let text = format!("[device]\ncapacity = \"64MiB\"\n{device}\n{fast}");
        fs::write(&self.config, text).expect("a config");
    }

    fn start(&self) -> Server {
        Server::start(&self.scratch, &["--config", &self.config])
    }

    fn data(&self) -> String {
        self.scratch.file("data")
    }

    /// `weir ARGS --data` of this device.
    fn weir(&self, args: &[&str]) -> std::process::Output {
        let data = self.data();
        let mut all = args.to_vec();
        all.extend(["--data", &data]);
        weir(&all)
    }

    fn fast_status(&self) -> Value {
        let output = self.weir(&["status", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        status["fast"].clone()
    }

    /// Why the server does not start.
    fn refusal(&self) -> String {
        let config = &self.config;
        let output = self.weir(&["serve", "--http", "none", "--config", config]);
        assert_eq!(output.status.code(), Some(2), "must be refused: {}", said(&output));
        said(&output)
    }
}

const INSTANT: &str = "profile = \"instant\"";
const EMULATED: &str = "profile = \"instant\", capacity = \"24MiB\"";

fn fio(uri: &str, more: &[&str]) {
    let uri = format!("--uri={uri}");
    let mut args = vec!["--name=e2e", "--ioengine=nbd", &uri, "--rw=randwrite", "--bs=12k"];
    args.extend(["--size=48m", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"]);
    args.extend(["--randseed=7", "--randrepeat=1", "--verify_state_save=0"]);
    args.push("--output-format=terse");
    args.extend(more);
    run("fio", &args);
}

#[test]
fn fio_verifies_what_it_wrote_on_every_mix_of_media_also_after_a_kill() {
    let file = "kind = \"file\"";
    let fast_file = "kind = \"file\", capacity = \"64MiB\"";
    for (name, device, fast) in [
        ("tier-nn", "profile = \"slc\"", EMULATED),
        ("tier-nf", "profile = \"instant\"\nshards = 2", fast_file),
        ("tier-fn", file, "kind = \"nand\", profile = \"optane\", capacity = \"64MiB\""),
        ("tier-ff", "kind = \"file\"\nshards = 2", fast_file),
    ] {
        let setup = Setup::new(name, device, fast);
        let mut server = setup.start();
        let socket = socket_of(&server, device);
        let uri = format!("nbd+unix:///default?socket={}", socket.display());
        fio(&uri, &["--do_verify=1"]);
        server.kill();
        let server = setup.start();
        fio(&uri, &["--verify_only=1"]);
        server.terminate();
        let check = setup.weir(&["check"]);
        assert_eq!(check.status.code(), Some(0), "{name}: {}", said(&check));
    }
}

/// Where a server of a device in a file has its socket: beside the file.
fn socket_of(server: &Server, device: &str) -> PathBuf {
    let socket = server.socket();
    match device.contains("\"file\"") {
        true => socket.parent().expect("a folder").with_extension("sock"),
        false => socket,
    }
}

#[test]
fn a_fast_tier_is_detached_under_load_and_attached_again_with_nothing_lost() {
    let setup = Setup::new("detach", INSTANT, EMULATED);
    let server = setup.start();
    let uri = server.uri();
    fio(&uri, &["--do_verify=0"]);
    let before = setup.fast_status();
    assert_eq!(before["state"], "serving", "{before}");
    assert!(before["bytes_valid"].as_u64() > Some(0), "{before}");
    // The same blocks with the same content once more, while the tier leaves.
    let load = std::thread::spawn(move || fio(&uri, &["--do_verify=1"]));
    let detached = setup.weir(&["ctl", "fast", "detach"]);
    assert!(detached.status.success(), "{}", said(&detached));
    assert!(said(&detached).contains(setup.fast.to_str().unwrap()), "{}", said(&detached));
    load.join().expect("fio found what it wrote");
    assert_eq!(setup.fast_status()["state"], "detached");
    // Again: there is none.
    let again = setup.weir(&["ctl", "fast", "detach"]);
    assert!(said(&again).contains("no fast tier"), "{}", said(&again));
    let uri = server.uri();
    fio(&uri, &["--verify_only=1"]);
    server.terminate();

    // The config still names it: told what to do, and nothing is attached behind one's back.
    let text = setup.refusal();
    assert!(text.contains("take [device.fast] out") && text.contains("--attach-fast"), "{text}");
    setup.write(INSTANT, None);
    fs::rename(&setup.fast, setup.fast.with_extension("away")).expect("it is free");
    let server = setup.start();
    assert!(setup.fast_status().is_null());
    fio(&uri, &["--verify_only=1"]);
    server.terminate();

    // A fast tier where nothing is: the next start puts it before the device.
    setup.write(INSTANT, Some(EMULATED));
    let server = setup.start();
    assert_eq!(setup.fast_status()["state"], "serving");
    fio(&uri, &["--verify_only=1"]);
    fio(&uri, &["--do_verify=1"]);
    server.terminate();

    // Now it belongs to the device, whatever the config says.
    setup.write(INSTANT, None);
    let server = setup.start();
    assert_eq!(setup.fast_status()["state"], "serving");
    fio(&uri, &["--verify_only=1"]);
    server.terminate();
}

#[test]
fn a_fast_tier_that_is_missing_foreign_old_or_too_small_is_refused_with_the_mend() {
    let setup = Setup::new("wrong", INSTANT, EMULATED);
    let other = Setup::new("wrong2", INSTANT, EMULATED);
    for one in [&setup, &other] {
        let server = one.start();
        server.connect().write(0, &pattern(1, MIB));
        server.terminate();
    }
    let aside = setup.fast.with_extension("aside");
    let copy = |from: &PathBuf, to: &PathBuf| {
        let _ = fs::remove_dir_all(to);
        run("cp", &["-r", from.to_str().unwrap(), to.to_str().unwrap()]);
    };
    copy(&setup.fast, &aside);
    // Missing.
    fs::remove_dir_all(&setup.fast).unwrap();
    let text = setup.refusal();
    assert!(text.contains("is not here") && text.contains("bring it back"), "{text}");
    assert!(text.contains(setup.fast.to_str().unwrap()), "{text}");
    // Another device's.
    copy(&other.fast, &setup.fast);
    let text = setup.refusal();
    assert!(text.contains("fast tier of another device"), "{text}");
    // Back, and in use: now the copy is older than the device.
    copy(&aside, &setup.fast);
    let server = setup.start();
    assert!(server.connect().read(0, MIB as u32) == pattern(1, MIB), "it is all there");
    server.connect().write(0, &pattern(2, MIB));
    server.terminate();
    let good = setup.fast.with_extension("good");
    copy(&setup.fast, &good);
    copy(&aside, &setup.fast);
    let text = setup.refusal();
    assert!(text.contains("older than the capacity tier"), "{text}");
    // Of another format.
    copy(&good, &setup.fast);
    let about = setup.fast.join("fast.toml");
    let text = fs::read_to_string(&about).unwrap();
    fs::write(&about, text.replace("version = 3", "version = 9")).unwrap();
    let text = setup.refusal();
    assert!(text.contains("version 9") && text.contains("reads version 3"), "{text}");
    // None of these has done any harm; and it may move.
    let moved = setup.scratch.path().join("moved");
    copy(&good, &moved);
    fs::remove_dir_all(&setup.fast).unwrap();
    let moved = moved.to_str().unwrap();
    let server = Server::start(&setup.scratch, &["--fast", moved]);
    assert!(server.connect().read(0, MIB as u32) == pattern(2, MIB), "it is all there");
    server.terminate();

    // Too small for the map and the open blocks.
    let small = Scratch::new("wrong3");
    let (data, fast) = (small.file("data"), small.file("fast"));
    let mut args = vec!["format", "--data", &data, "--capacity", "1GiB", "--fast", &fast];
    args.extend(["--fast-capacity", "1MiB"]);
    let text = said(&weir(&args));
    assert!(text.contains("device.fast.capacity") && text.contains("for example"), "{text}");
}

/// Writes until the server says that it does not any more.
fn write_until_refused(server: &Server) {
    let (mut client, begun) = (server.connect(), Instant::now());
    let mut at = 0;
    while client.try_write((at % 48 * MIB) as u64, &pattern(9, MIB)).is_ok() {
        assert!(begun.elapsed() < PATIENCE, "writes go on without a tier:\n{}", server.log());
        at += 1;
    }
}

#[test]
fn a_server_that_loses_a_tier_reads_what_it_can_and_says_which_and_what_to_do() {
    for (key, tier) in [("fast_gone", "fast tier"), ("capacity_gone", "capacity tier")] {
        let setup = Setup::new(key, INSTANT, EMULATED);
        let server = setup.start();
        let mut client = server.connect();
        client.write(0, &pattern(5, 24 * MIB));
        client.write(32 * MIB as u64, &pattern(6, 4 * MIB));
        drop(client);
        server.terminate();
        setup.write(&format!("{INSTANT}\nfaults = {{ {key} = \"1s\" }}"), Some(EMULATED));
        let server = setup.start();
        write_until_refused(&server);
        let status = setup.fast_status();
        assert_eq!(status["state"], "lost", "{status}");
        assert!(status["reason"].as_str().unwrap().contains(tier), "{status}");
        let text = said(&setup.weir(&["status"]));
        assert!(text.contains(tier) && text.contains("bring the tier back"), "{text}");
        let log = server.log();
        let place = if key == "fast_gone" { setup.fast.clone() } else { setup.data().into() };
        assert!(log.contains(place.to_str().unwrap()) && log.contains("start the server"), "{log}");
        let mut client = server.connect();
        let blocks = (0..28 * MIB as u64).step_by(4096);
        let readable = blocks.filter(|&at| client.try_read(at, 4096).is_ok()).count();
        assert!(readable > 0, "part of it lies on the other tier");
        drop(client);
        drop(server);
        // The tier is back.
        setup.write(INSTANT, Some(EMULATED));
        let server = setup.start();
        let data = server.connect().read(32 * MIB as u64, 4 * MIB as u32);
        let whole = [pattern(6, 4 * MIB), pattern(9, MIB).repeat(4)];
        let blocks = |bytes: &[u8]| bytes.chunks(4096).map(Vec::from).collect::<Vec<_>>();
        for (at, found) in blocks(&data).into_iter().enumerate() {
            let legal = whole.iter().any(|whole| blocks(whole)[at] == found);
            assert!(legal, "block {at} is as before or as written last");
        }
        server.terminate();
    }
}
