//! Kept memory: a server that was killed resumes from it, and from nothing that is not of its device as
//! the device is now. What it does under load, `kill` tests.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{said, weir};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

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
    fill_first(server, BLOCKS, stamp);
}

fn fill_first(server: &Server, blocks: u64, stamp: u8) {
    let mut client = server.connect();
    for first in (0..blocks).step_by(64) {
        client.write(first * BLOCK, &vec![stamp; 64 * BLOCK as usize]);
    }
}

fn assert_filled(server: &Server, stamp: u8) {
    assert_first_filled(server, BLOCKS, stamp);
}

fn assert_first_filled(server: &Server, blocks: u64, stamp: u8) {
    let mut client = server.connect();
    for first in (0..blocks).step_by(64) {
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
    let device = scratch.data();
    for (name, path) in [
        ("precious", scratch.path().join("precious")),
        ("lock", device.join("lock")),
        ("description", device.join("device.toml")),
        ("oobs", device.join("shard-0/oob")),
        ("new", device.join("new")),
    ] {
        if name == "precious" {
            fs::write(&path, "precious").expect("a file");
        }
        if path.exists() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        }
        let server = start(&scratch, &at(&format!("{name}.toml"), path.to_str().expect("UTF-8")));
        let reason = why(&scratch);
        let wanted = ["something else than kept memory", "device's folder"];
        assert!(wanted.iter().any(|wanted| reason.contains(wanted)), "{reason}");
        assert_filled(&server, 1);
        server.terminate();
        assert_eq!(path.exists(), name != "new", "{name}");
    }
    assert_eq!(fs::read(scratch.path().join("precious")).expect("it is there"), b"precious");
    let few = config(&scratch, "few.toml", "kept_memory_max = \"8KiB\"");
    let server = start(&scratch, &few);
    assert!(why(&scratch).contains("kept_memory_max"), "{}", why(&scratch));
    assert_filled(&server, 1);
    server.terminate();
}

/// Every file below a path, or the file that it is.
fn files_below(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.flat_map(|entry| files_below(&entry.path())).collect()
}

/// What a device holds.
fn copy_of(device: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = files_below(device).into_iter().filter(|file| !file.ends_with("lock"));
    files.map(|file| (file.clone(), fs::read(&file).expect("a file"))).collect()
}

#[test]
fn an_older_copy_of_a_device_is_only_read_while_memory_tells_of_more() {
    let (in_place, in_new_files, one_life_before) = ((true, true), (true, false), (false, true));
    let fast = "[device.fast]\npath = FAST\ncapacity = \"48MiB\"\n";
    let two_tiers = format!("profile = \"instant\"\n{fast}");
    let kinds = [
        (
            ("folder", "data", "profile = \"instant\"\nshards = 2\n"),
            &[in_place, in_new_files, one_life_before][..],
        ),
        (("file", "device.img", "kind = \"file\"\nchannels = 2\n"), &[in_place]),
        (("fast", "data", &*two_tiers), &[one_life_before]),
    ];
    for (kind, cases) in kinds {
        for &case in cases {
            put_an_older_copy_back(kind, case);
        }
    }
}

/// Saved in the life that goes on, or one life before; put back into the same files, or into new ones.
fn put_an_older_copy_back(
    (kind, device, keys): (&str, &str, &str),
    (same_life, same_files): (bool, bool),
) {
    println!("{kind}, of the same life: {same_life}, into the same files: {same_files}");
    let scratch = Scratch::new(&format!("older{kind}"));
    let device = scratch.path().join(device);
    let (socket, path) = (scratch.data().join("nbd.sock"), scratch.file("weir.toml"));
    fs::create_dir_all(scratch.data()).expect("a folder");
    let keys = keys.replace("FAST", &format!("{:?}", scratch.file("fast")));
    let text = format!(
        "[device]\npath = {device:?}\n{keys}[nbd]\nunix = {socket:?}\n\
         [[volume]]\nname = \"default\"\nsize = \"64MiB\"\n"
    );
    fs::write(&path, text).expect("a config");
    let data = device.to_str().expect("UTF-8");
    let args = ["--config", &*path, "--data", data];
    let mut server = Server::start(&scratch, &args);
    fill(&server, 1);
    server.connect().flush();
    if !same_life {
        server.kill();
    }
    let mut saved = copy_of(&device);
    if kind == "fast" {
        saved.extend(copy_of(&scratch.path().join("fast")));
    }
    if !same_life {
        server = Server::start(&scratch, &args);
    }
    fill(&server, 2);
    server.connect().flush();
    server.kill();
    for (file, bytes) in &saved {
        if !same_files {
            fs::remove_file(file).expect("it goes");
        }
        fs::write(file, bytes).expect("the copy comes back");
    }
    let kept = kept(&scratch);
    let place = kept.to_str().expect("UTF-8");
    let checked = weir(&["check", "--data", data]);
    let text = said(&checked);
    assert_eq!(checked.status.code(), Some(1), "{text}");
    assert!(text.contains("is an older copy") && text.contains(place), "{text}");
    // It stays so until somebody decides.
    for _ in 0..2 {
        let server = Server::start(&scratch, &args);
        let log = server.log();
        assert!(log.contains("READ-ONLY") && log.contains(place), "{log}");
        if !same_life {
            assert_filled(&server, 1);
        }
        server.terminate();
    }
    fs::remove_file(&kept).expect("it goes");
    if same_life {
        // Saved from under a server, it need not be whole.
        return;
    }
    let server = Server::start(&scratch, &args);
    fill(&server, 3);
    assert_filled(&server, 3);
    server.terminate();
    let checked = weir(&["check", "--data", data]);
    assert!(checked.status.success(), "{}", said(&checked));
}

/// Kept memory of an earlier moment of the same life is not believed, however little came after it.
#[test]
fn memory_of_an_earlier_moment_is_not_believed() {
    let mut refused = 0;
    let fast = "[device.fast]\npath = \"data/fast\"\ncapacity = \"48MiB\"\n";
    for keys in ["", fast] {
        for (before, after) in [(0, 1), (1, 1), (50, 100), (700, 9)] {
            let scratch = Scratch::new("moment");
            let path = config(&scratch, "weir.toml", keys);
            let mut server = start(&scratch, &path);
            let write = |server: &Server, count: u64, stamp: u8| {
                let mut client = server.connect();
                for block in 0..count {
                    client.write(block * 13 % 1024 * BLOCK, &[stamp; BLOCK as usize]);
                }
                client.flush();
            };
            write(&server, before, 1);
            let kept = kept(&scratch);
            let old = fs::read(&kept).expect("kept memory");
            write(&server, after, 2);
            server.kill();
            fs::write(&kept, &old).expect("the old memory comes back");
            let server = start(&scratch, &path);
            // The copy may be of a moment when the server programmed a block for itself. Then it says nothing
            // of that block, and if all that came later went there, it says nothing false.
            if let Some(why) = restart(&scratch)["why_not"].as_str() {
                assert!(why.contains("a copy from before"), "{keys:?} {before} {after}: {why}");
                refused += 1;
            }
            let mut client = server.connect();
            for block in 0..before.max(after) {
                let data = client.read(block * 13 % 1024 * BLOCK, BLOCK as u32);
                let stamp = if block < after { 2 } else { 1 };
                assert_eq!(data, [stamp; BLOCK as usize], "{keys:?} {before} {after}: {block}");
            }
            server.terminate();
        }
    }
    assert!(refused >= 4, "of eight copies only {refused} were refused");
}

/// Files of one moment beside files of another are refused by name, the generation among the older ones
/// or not; where nothing but the generation is older, all else tells that it is.
#[test]
fn older_files_beside_newer_ones_are_refused_though_the_generation_is_one_of_them() {
    let all_of =
        |shard: &str| ["data", "oob", "blocks"].map(|file| format!("{shard}/{file}")).to_vec();
    let of = |files: &[&str]| files.iter().map(|&file| file.to_owned()).collect::<Vec<_>>();
    let two = "shards = 2\n";
    let tiered = "[device.fast]\npath = \"data/fast\"\ncapacity = \"48MiB\"\n";
    let both = ["generation", "fast/generation"];
    for (keys, older, whole) in [
        ("", of(&["generation"]), true),
        ("", of(&["generation", "shard-0/data", "shard-0/oob"]), false),
        ("", of(&["generation", "shard-0/blocks"]), false),
        (two, [of(&["generation"]), all_of("shard-1")].concat(), false),
        (two, [of(&["generation"]), all_of("shard-0")].concat(), false),
        (tiered, of(&both), true),
        (tiered, of(&both[1..]), true),
        (tiered, [of(&both), all_of("fast/shard-0")].concat(), false),
        (tiered, [of(&both), all_of("shard-0")].concat(), false),
        (tiered, of(&[both[0], both[1], "fast/shard-0/oob"]), false),
        (tiered, [of(&both[1..]), all_of("fast/shard-0")].concat(), false),
    ] {
        let scratch = Scratch::new("mixed");
        let path = scratch.file("weir.toml");
        let text = format!(
            "[device]\nprofile = \"instant\"\n{keys}[[volume]]\nname = \"default\"\nsize = \"64MiB\"\n"
        );
        fs::write(&path, text).expect("a config");
        let server = start(&scratch, &path);
        fill_first(&server, 2048, 1);
        server.terminate();
        let saved: Vec<(PathBuf, Vec<u8>)> = older
            .iter()
            .map(|file| scratch.data().join(file))
            .map(|path| (path.clone(), fs::read(&path).expect("a file of the device")))
            .collect();
        let mut server = start(&scratch, &path);
        fill_first(&server, 2048, 2);
        server.connect().flush();
        server.kill();
        scratch.kept().iter().for_each(|file| fs::remove_file(file).expect("it goes"));
        for (file, bytes) in &saved {
            fs::write(file, bytes).expect("the copy comes back");
        }
        let data = scratch.data();
        let checked = weir(&["check", "--data", data.to_str().expect("UTF-8")]);
        let text = said(&checked);
        if whole {
            assert!(checked.status.success(), "{older:?}: {text}");
            let server = start(&scratch, &path);
            assert_first_filled(&server, 2048, 2);
            server.terminate();
        } else {
            assert_eq!(checked.status.code(), Some(2), "{older:?}: {text}");
            assert!(text.contains("newer than") || text.contains("older"), "{older:?}: {text}");
            assert!(Server::start_or_refuse(&scratch, &["--config", &path]).is_none(), "{older:?}");
        }
    }
}
