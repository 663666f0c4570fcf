//! The commands beside `serve`: check, inspect and status.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{pattern, run, said, weir};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;

const BLOCK: usize = flash::BLOCK_BYTES;
/// Of NBD's transmission flags: the export is read-only.
const FLAG_READ_ONLY: u16 = 1 << 1;

#[test]
fn a_clean_device_checks_clean_and_a_flipped_bit_is_found() {
    let scratch = Scratch::new("check");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    let image = pattern(7, 256 * BLOCK);
    client.write(0, &image);
    client.flush();
    server.terminate();

    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    assert!(said(&check).contains("clean"), "{}", said(&check));

    let victim = 100;
    let path = scratch.data().join("shard-0/data");
    let at = position(&path, &image[victim * BLOCK..][..64]).expect("the block is on the device");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at + 1000).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at + 1000).unwrap();
    drop(file);

    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(1), "{}", said(&check));
    let text = said(&check);
    assert!(text.contains(&victim.to_string()), "the message names block {victim}: {text}");

    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    let at = |lba: usize| (lba * BLOCK) as u64;
    assert!(client.try_read(at(victim), BLOCK as u32).is_err(), "damage is an error, not data");
    assert!(client.read(at(victim + 1), BLOCK as u32) == image[(victim + 1) * BLOCK..][..BLOCK]);
    client.write(at(victim), &image[victim * BLOCK..][..BLOCK]);
    assert!(client.read(0, image.len() as u32) == image, "writing heals");
    server.terminate();
    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(0), "healed: {}", said(&check));
}

#[test]
fn blocks_that_are_bad_from_the_start_are_told_whether_the_device_was_written_or_not() {
    let scratch = Scratch::new("factory-bad");
    let (config, data) = (scratch.file("weir.toml"), scratch.file("data"));
    let text = "[device]\nprofile = \"instant\"\ncapacity = \"64MiB\"\n[device.faults]\nfactory_bad = 0.2\n";
    fs::write(&config, text).expect("a config");
    let made = weir(&["format", "--config", &config, "--data", &data]);
    assert!(made.status.success(), "{}", said(&made));
    let bad = || {
        let inspect = weir(&["inspect", "--data", &data, "--json"]);
        let told: Value = serde_json::from_slice(&inspect.stdout).expect("JSON");
        told["shards"][0]["blocks_bad"].as_array().expect("a list").clone()
    };
    let at_first = bad();
    assert!(!at_first.is_empty());
    Server::start(&scratch, &["--data", &data]).terminate();
    assert_eq!(bad(), at_first);
}

/// Parity makes up for a part of the map that is lost, not for all of it. What is found from the bands
/// may be older than what was written last, so nobody gets it who has not asked.
#[test]
fn blocks_that_may_be_old_are_refused_until_their_owner_asks_for_them() {
    let scratch = Scratch::new("salvage");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    let image = pattern(8, 256 * BLOCK);
    client.write(0, &image);
    client.flush();
    server.terminate();
    damage_maps(&scratch.data().join("shard-0"));

    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(1), "{}", said(&check));
    assert!(said(&check).contains("--salvage"), "the way out is named: {}", said(&check));

    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    for lba in [0, 100, 255, 1000] {
        let read = client.try_read((lba * BLOCK) as u64, BLOCK as u32);
        assert!(read.is_err(), "nobody knows whether block {lba} is as it was found");
    }
    assert!(client.try_write(0, &image[..BLOCK]).is_err(), "looking changes nothing");
    let told = "clients are told that nothing can be written, and nothing is unflushed";
    assert!(client.flags & FLAG_READ_ONLY != 0, "{told}: {:#x}", client.flags);
    client.flush();
    let status = said(&weir(&["status", "--data", data]));
    assert!(status.contains("--salvage"), "the warning names the way out: {status}");
    server.terminate();

    let server = Server::start(&scratch, &[SMALL, &["--salvage"]].concat());
    let mut client = server.connect();
    assert!(client.read(0, image.len() as u32) == image, "nothing newer was lost");
    client.write(0, &image[BLOCK..][..BLOCK]);
    client.flush();
    server.terminate();

    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(0), "the map is whole again: {}", said(&check));
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    assert!(client.read(0, BLOCK as u32) == image[BLOCK..][..BLOCK]);
    assert!(client.read(BLOCK as u64, 255 * BLOCK as u32) == image[BLOCK..]);
    server.terminate();
}

#[test]
fn a_damaged_record_of_a_block_is_named_and_all_that_is_sound_is_served() {
    let scratch = Scratch::new("record");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let mut server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    let image = pattern(9, 256 * BLOCK);
    client.write(0, &image);
    client.flush();
    server.kill();

    // Of every block that is written: the lowest bit of how many pages are.
    let path = scratch.data().join("shard-0/blocks");
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let records = fs::read(&path).unwrap();
    let written = |at: &usize| records[*at..at + 16] != [0; 16];
    let blocks = records.len() / 4096 * 4096;
    for at in (0..blocks).step_by(16).filter(written) {
        file.write_all_at(&[records[at + 4] ^ 1], at as u64 + 4).unwrap();
    }
    drop(file);

    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(1), "{}", said(&check));
    assert!(said(&check).contains("shard-0/blocks is damaged"), "{}", said(&check));
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    assert!(client.read(0, image.len() as u32) == image, "no page is hidden");
    assert!(client.try_write(0, &image[..BLOCK]).is_err(), "looking changes nothing");
    assert!(client.flags & FLAG_READ_ONLY != 0, "{:#x}", client.flags);
    client.flush();
    server.terminate();
}

/// Flips a bit of every slot that holds a part of the map: docs/formats.md tells which do.
fn damage_maps(shard: &std::path::Path) {
    let (oob_bytes, kind_at, kind_map) = (32, 14, 7);
    let oobs = fs::read(shard.join("oob")).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(shard.join("data")).unwrap();
    let mut damaged = 0;
    for (slot, oob) in (0u64..).zip(oobs.chunks_exact(oob_bytes)) {
        if oob[kind_at] == kind_map {
            let (mut byte, at) = ([0], slot * BLOCK as u64 + 77);
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 4], at).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 1, "{damaged} slots hold the map");
}

#[test]
fn inspect_and_status_print_json() {
    let scratch = Scratch::new("json");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let server = Server::start(&scratch, SMALL);
    server.connect().write(0, &pattern(8, 16 * BLOCK));
    let status = weir(&["status", "--data", data, "--json"]);
    assert!(status.status.success(), "{}", said(&status));
    parse(&status.stdout, "status");
    server.terminate();
    let inspect = weir(&["inspect", "--data", data, "--json"]);
    assert!(inspect.status.success(), "{}", said(&inspect));
    parse(&inspect.stdout, "inspect");
    let status = weir(&["status", "--data", data, "--json"]);
    assert!(!status.status.success(), "nobody serves any more: {}", said(&status));
    assert!(!said(&status).contains("panicked at"), "{}", said(&status));
}

#[test]
fn a_quick_check_reads_a_sample_and_says_what_it_did_not_read() {
    let scratch = Scratch::new("quick");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let server = Server::start(&scratch, &["--profile", "instant", "--capacity", "640MiB"]);
    let mut client = server.connect();
    let (chunk, blocks) = (4 << 20, 150_000);
    for at in (0..blocks * BLOCK).step_by(chunk) {
        client.write(at as u64, &pattern(at as u64, chunk.min(blocks * BLOCK - at)));
    }
    server.terminate();
    let count = |value: &Value, key: &str| value[key].as_u64().unwrap() as usize;
    for (args, share) in [(&["--quick"][..], 3), (&[][..], 1)] {
        let check = weir(&[&["check", "--data", data, "--json"], args].concat());
        assert_eq!(check.status.code(), Some(0), "{}", said(&check));
        let value: Value = serde_json::from_slice(&check.stdout).unwrap();
        assert_eq!(count(&value, "blocks_held"), blocks);
        let read = count(&value, "blocks_read");
        assert!(read.abs_diff(blocks / share) < blocks / 20, "{args:?}: {read}");
    }
    let check = said(&weir(&["check", "--data", data, "--quick"]));
    assert!(check.contains("of 150 000 NOT READ"), "{check}");
}

#[test]
fn commands_on_a_directory_that_is_no_device_fail_and_say_so() {
    let scratch = Scratch::new("nodevice");
    for command in ["check", "inspect"] {
        let result = weir(&[command, "--data", &scratch.file("nothing-here")]);
        let text = said(&result);
        assert!(!result.status.success(), "{command}: {text}");
        assert!(text.contains("nothing-here"), "{command} names the directory: {text}");
        assert!(!text.contains("panicked at"), "{command}: {text}");
    }
}

fn parse(bytes: &[u8], command: &str) {
    let value: Value = serde_json::from_slice(bytes)
        .unwrap_or_else(|e| panic!("{command}: {e}\n{}", String::from_utf8_lossy(bytes)));
    assert!(value.is_object(), "{command} prints one object: {value}");
}

/// Where `needle` stands in a file.
fn position(path: &std::path::Path, needle: &[u8]) -> Option<u64> {
    let bytes = fs::read(path).expect("the device's file");
    // The pattern's first bytes are rare: look for them before comparing the rest.
    let head = u64::from_le_bytes(needle[..8].try_into().expect("eight bytes"));
    let found = bytes.windows(8).position(|w| w == head.to_le_bytes())?;
    assert!(bytes[found..].starts_with(needle), "only one place begins like this");
    Some(found as u64)
}

/// Devices of 8 MiB that the last build of format 3 left, in one case killed: each block was written, every
/// third again, and every seventh trimmed.
#[test]
fn a_device_of_the_format_before_this_one_is_served_and_written_on() {
    let expected = |block: u64| match block {
        block if block % 7 == 0 => 0,
        block if block % 3 == 0 => block % 13 + 201,
        block => block % 251 + 1,
    };
    for left in ["stopped", "killed"] {
        let scratch = Scratch::new(&format!("three{left}"));
        let archive = format!("{}/tests/e2e/version-3/{left}.tar.xz", env!("CARGO_MANIFEST_DIR"));
        run("tar", &["-xJf", &archive, "-C", &scratch.file("")]);
        let data = scratch.data();
        let data = data.to_str().expect("UTF-8");
        let check = weir(&["check", "--data", data]);
        assert_eq!(check.status.code(), Some(0), "{left}: {}", said(&check));
        for life in 0..2 {
            let server = Server::start(&scratch, &["--data", data]);
            let mut client = server.connect();
            for block in 0..2048 {
                let bytes = client.read(block * BLOCK as u64, BLOCK as u32);
                let expected = if block == 5 && life > 0 { 255 } else { expected(block) };
                assert!(bytes.iter().all(|&it| u64::from(it) == expected), "{left}, block {block}");
            }
            client.write(5 * BLOCK as u64, &[255; BLOCK]);
            client.flush();
            server.terminate();
        }
        let check = weir(&["check", "--data", data]);
        assert_eq!(check.status.code(), Some(0), "{left}: {}", said(&check));
    }
}
