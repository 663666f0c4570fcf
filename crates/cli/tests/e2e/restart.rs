//! Kept memory: a server that was killed resumes from it, and from nothing that is not of its device as
//! the device is now. What it does under load, `kill` tests.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::weir;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

const BLOCK: u64 = flash::BLOCK_BYTES as u64;
const BLOCKS: u64 = 16_384;

/// A device of 64 MiB, and how its server keeps memory.
fn config(scratch: &Scratch, name: &str, device: &str) -> String {
    let text = format!(
        "[device]\nprofile = \"instant\"\ncapacity = \"64MiB\"\nshards = 2\n{device}\n\
         [[volume]]\nname = \"default\"\nsize = \"64MiB\"\n"
    );
    let path = scratch.file(name);
    fs::write(&path, text).expect("a config");
    path
}

fn start(scratch: &Scratch, config: &str) -> Server {
    Server::start(scratch, &["--config", config])
}

/// What the status tells of the start.
fn restart(scratch: &Scratch) -> Value {
    let data = scratch.data();
    let status = weir(&["status", "--json", "--data", data.to_str().expect("UTF-8")]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    status["restart"].clone()
}

fn why(scratch: &Scratch) -> String {
    restart(scratch)["why_not"].as_str().expect("it did not resume").to_owned()
}

/// The file of the device's kept memory.
fn kept(scratch: &Scratch) -> PathBuf {
    let found = scratch.kept();
    assert_eq!(found.len(), 1, "one device");
    found[0].clone()
}

fn fill(server: &Server, stamp: u8) {
    let mut client = server.connect();
    for first in (0..BLOCKS).step_by(64) {
        client.write(first * BLOCK, &vec![stamp; 64 * BLOCK as usize]);
    }
}

fn assert_filled(server: &Server, stamp: u8) {
    let mut client = server.connect();
    for first in (0..BLOCKS).step_by(64) {
        let data = client.read(first * BLOCK, 64 * BLOCK as u32);
        assert!(data.iter().all(|&byte| byte == stamp), "blocks from {first}");
    }
}

#[test]
fn a_server_that_was_killed_resumes_and_one_that_was_ended_gives_the_memory_back() {
    let scratch = Scratch::new("resume");
    let config = config(&scratch, "weir.toml", "");
    let mut server = start(&scratch, &config);
    assert!(why(&scratch).contains("the device is new"));
    for stamp in 1..=3 {
        fill(&server, stamp);
        server.kill();
        server = start(&scratch, &config);
        let restart = restart(&scratch);
        assert_eq!(restart["resumed"], true, "{restart}");
        assert!(restart["mount_reads_answered"].as_u64() > Some(0), "{restart}");
        assert!(
            restart["text"]
                .as_str()
                .is_some_and(|text| text.contains("resumed from kept memory in"))
        );
        assert_filled(&server, stamp);
    }
    let path = kept(&scratch);
    assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    server.terminate();
    assert!(!path.exists(), "it is given back");
    let server = start(&scratch, &config);
    assert!(why(&scratch).contains("a clean shutdown"), "{}", why(&scratch));
    assert_filled(&server, 3);
    server.terminate();
}

#[test]
fn memory_from_before_the_device_was_opened_without_it_is_refused() {
    let scratch = Scratch::new("stale");
    let keeping = config(&scratch, "keeping.toml", "");
    let without = config(&scratch, "without.toml", "kept_memory = \"off\"");
    let mut server = start(&scratch, &keeping);
    fill(&server, 1);
    server.kill();
    let path = kept(&scratch);
    let old = fs::read(&path).expect("kept memory");
    let mut server = start(&scratch, &without);
    assert!(why(&scratch).contains("is off"));
    for stamp in 2..=4 {
        fill(&server, stamp);
    }
    server.kill();
    fs::write(&path, &old).expect("the old memory comes back");
    let mut server = start(&scratch, &keeping);
    assert!(why(&scratch).contains("opened without this kept memory since"), "{}", why(&scratch));
    assert_filled(&server, 4);
    // From here on it is the device's again; but not as it was two kills ago.
    server.kill();
    let mut server = start(&scratch, &keeping);
    assert_eq!(restart(&scratch)["resumed"], true);
    fill(&server, 5);
    server.kill();
    fs::write(&path, &old).expect("the old memory comes back");
    let server = start(&scratch, &keeping);
    assert!(why(&scratch).contains("opened without this kept memory since"));
    assert_filled(&server, 5);
    server.terminate();
}

#[test]
fn memory_that_cannot_be_used_is_named_and_the_device_is_served_all_the_same() {
    let scratch = Scratch::new("unusable");
    let own = scratch.file("own");
    let at = |name: &str, place: &str| config(&scratch, name, &format!("kept_memory = {place:?}"));
    let here = at("here.toml", &own);
    let mut server = start(&scratch, &here);
    fill(&server, 1);
    server.kill();
    // Of another device, whose file it is told to use.
    let other = Scratch::new("unusable2");
    let config_other = config(&other, "weir.toml", &format!("kept_memory = {own:?}"));
    let mut second = start(&other, &config_other);
    second.kill();
    let mut server = start(&scratch, &here);
    assert!(why(&scratch).contains("another device"), "{}", why(&scratch));
    assert_filled(&server, 1);
    server.kill();
    // Written by others, perhaps.
    fs::set_permissions(&own, fs::Permissions::from_mode(0o666)).expect("its mode");
    let mut server = start(&scratch, &here);
    assert!(why(&scratch).contains("mode 666"), "{}", why(&scratch));
    assert_filled(&server, 1);
    server.kill();
    for (name, place, reason) in [
        ("nowhere.toml", "/nowhere/kept", "cannot be made"),
        ("full.toml", "/dev/full", "not a plain file"),
    ] {
        let mut server = start(&scratch, &at(name, place));
        assert!(why(&scratch).contains(reason), "{}", why(&scratch));
        assert_filled(&server, 1);
        server.kill();
    }
    let few = config(&scratch, "few.toml", "kept_memory_max = \"8KiB\"");
    let server = start(&scratch, &few);
    assert!(why(&scratch).contains("kept_memory_max"), "{}", why(&scratch));
    assert_filled(&server, 1);
    server.terminate();
}

#[test]
fn an_older_copy_of_the_device_is_not_taken_for_the_one_that_memory_is_of() {
    let scratch = Scratch::new("oldcopy");
    let config = config(&scratch, "weir.toml", "");
    let mut server = start(&scratch, &config);
    fill(&server, 1);
    server.connect().flush();
    // As the machine's owner would save and bring back the files of one server's life.
    let shards = [scratch.data().join("shard-0"), scratch.data().join("shard-1")];
    let files: Vec<PathBuf> = shards
        .iter()
        .flat_map(|shard| ["data", "oob", "blocks"].map(|name| shard.join(name)))
        .collect();
    server.kill();
    let saved: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("a file")).collect();
    let generation = fs::read(scratch.data().join("generation")).expect("the generation");
    let mut server = start(&scratch, &config);
    fill(&server, 2);
    server.kill();
    let generation_now = fs::read(scratch.data().join("generation")).expect("the generation");
    assert_ne!(generation, generation_now);
    for (file, bytes) in files.iter().zip(&saved) {
        fs::write(file, bytes).expect("the copy comes back");
    }
    fs::write(scratch.data().join("generation"), generation).expect("the copy comes back");
    let server = start(&scratch, &config);
    let why = why(&scratch);
    assert!(why.contains("its generation is 1, and 2 in kept memory"), "{why}");
    assert_filled(&server, 1);
    server.terminate();
}
