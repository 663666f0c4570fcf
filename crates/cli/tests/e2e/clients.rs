//! The tools that people point at an NBD server: libnbd's, QEMU's and fio.

use crate::scratch::Scratch;
use crate::server::{SMALL, SMALL_ON_TWO_SHARDS, Server};
use crate::tools::{pattern, run};
use serde_json::Value;
use std::fs;

const MIB: usize = 1 << 20;

#[test]
fn nbdinfo_sees_the_volume_and_what_it_can_do() {
    let scratch = Scratch::new("info");
    let server = Server::start(&scratch, SMALL);
    let info: Value = serde_json::from_str(&run("nbdinfo", &["--json", &server.uri()])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"].as_u64(), Some(64 << 20), "{info}");
    for can in ["multi_conn", "flush", "fua", "trim", "zero"] {
        assert_eq!(export[format!("can_{can}")], Value::Bool(true), "can_{can}: {info}");
    }
    // Has flags, flush, FUA, trim, write zeroes, multi-conn: the bits that libnbd turned into words.
    let flags = server.connect().flags;
    assert_eq!(flags & 0b1_0110_1101, 0b1_0110_1101, "flags {flags:#b}");
    assert_eq!(export["is_read_only"], Value::Bool(false), "{info}");
    let list = run("nbdinfo", &["--list", &server.uri()]);
    assert!(list.contains("export=\"default\""), "{list}");
    server.terminate();
}

#[test]
fn nbdinfo_maps_data_and_holes() {
    let scratch = Scratch::new("map");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    client.write(MIB as u64, &pattern(1, MIB));
    client.flush();
    let map = run("nbdinfo", &["--map", &server.uri()]);
    let rows: Vec<Vec<&str>> = map.lines().map(|row| row.split_whitespace().collect()).collect();
    let found: Vec<(&str, &str, &str)> = rows.iter().map(|r| (r[0], r[1], r[3])).collect();
    let mib = MIB.to_string();
    let end = (2 * MIB).to_string();
    let rest = (62 * MIB).to_string();
    let hole = "hole,zero";
    assert_eq!(found, [("0", &*mib, hole), (&*mib, &*mib, "data"), (&*end, &*rest, hole)], "{map}");
    server.terminate();
}

#[test]
fn nbdcopy_brings_an_image_there_and_back() {
    let scratch = Scratch::new("copy");
    let server = Server::start(&scratch, SMALL);
    let (image, back) = (scratch.file("image"), scratch.file("back"));
    // Data, a hole, data: a copy must keep the zeroes of the hole.
    let mut bytes = pattern(2, 64 * MIB);
    bytes[20 * MIB..30 * MIB].fill(0);
    fs::write(&image, &bytes).unwrap();
    run("nbdcopy", &["--flush", &image, &server.uri()]);
    run("nbdcopy", &[&server.uri(), &back]);
    assert!(fs::read(&back).unwrap() == bytes, "the image came back unchanged");
    server.terminate();
    let server = Server::start(&scratch, SMALL);
    run("nbdcopy", &[&server.uri(), &back]);
    assert!(fs::read(&back).unwrap() == bytes, "and also after a restart");
    server.terminate();
}

#[test]
fn qemu_img_converts_there_and_back_and_finds_no_difference() {
    let scratch = Scratch::new("qemu");
    let server = Server::start(&scratch, SMALL);
    let (image, back, uri) = (scratch.file("image"), scratch.file("back"), server.uri());
    fs::write(&image, pattern(3, 64 * MIB)).unwrap();
    let info: Value =
        serde_json::from_str(&run("qemu-img", &["info", "--output=json", "-f", "raw", &uri]))
            .unwrap();
    assert_eq!(info["virtual-size"].as_u64(), Some(64 << 20), "{info}");
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &back]);
    assert!(fs::read(&image).unwrap() == fs::read(&back).unwrap(), "the image came back unchanged");
    server.terminate();
}

/// fio writes a checksum into every block and reads it back, at once and after a restart.
fn fio_verifies(name: &str, args: &[&str], pattern: &str, block_bytes: &str, depth: u32) {
    let scratch = Scratch::new(name);
    let depth = format!("--iodepth={depth}");
    let job = |uri: &str, more: &[&str]| {
        let (uri, rw) = (format!("--uri={uri}"), format!("--rw={pattern}"));
        let bs = format!("--bs={block_bytes}");
        let mut args = vec!["--name=e2e", "--ioengine=nbd", &uri, &rw, &bs, &depth];
        args.extend(["--size=48m", "--verify=crc32c", "--verify_fatal=1", "--randseed=7"]);
        args.extend(["--randrepeat=1", "--verify_state_save=0", "--output-format=terse"]);
        args.extend(more);
        run("fio", &args);
    };
    let server = Server::start(&scratch, args);
    job(&server.uri(), &["--do_verify=1", "--end_fsync=1"]);
    server.terminate();
    let server = Server::start(&scratch, args);
    job(&server.uri(), &["--verify_only=1"]);
    server.terminate();
}

#[test]
fn fio_verifies_small_random_writes_also_after_a_restart() {
    fio_verifies("fio4k", SMALL, "randwrite", "4k", 32);
}

#[test]
fn fio_verifies_writes_that_cross_the_stripes_of_two_shards() {
    fio_verifies("fio2s", SMALL_ON_TWO_SHARDS, "randwrite", "24k", 32);
}

#[test]
fn fio_verifies_large_sequential_writes_also_after_a_restart() {
    fio_verifies("fio1m", SMALL, "write", "1m", 8);
}

#[test]
fn fio_verifies_odd_sizes_that_share_logical_blocks() {
    fio_verifies("fio6k", SMALL, "randwrite", "6k", 16);
}

#[test]
fn fio_overwrites_the_whole_volume_several_times() {
    let scratch = Scratch::new("fioloop");
    let server = Server::start(&scratch, SMALL);
    let uri = format!("--uri={}", server.uri());
    let mut args = vec!["--name=e2e", "--ioengine=nbd", &*uri, "--rw=randwrite", "--bs=4k"];
    args.extend(["--size=64m", "--io_size=320m", "--iodepth=32", "--norandommap"]);
    args.extend(["--randseed=9", "--output-format=terse"]);
    run("fio", &args);
    // GC has moved much by now; the last word is a pass that checks every block.
    let mut args = vec!["--name=e2e", "--ioengine=nbd", &*uri, "--rw=randwrite", "--bs=4k"];
    args.extend(["--size=64m", "--iodepth=32", "--verify=crc32c", "--do_verify=1"]);
    args.extend(["--verify_fatal=1", "--verify_state_save=0", "--output-format=terse"]);
    run("fio", &args);
    server.terminate();
}
