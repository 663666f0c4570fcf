//! What may happen below a device in a folder: the disk is full, or may only be read; the folder is moved
//! away; a link lies where a file of it was; somebody has edited what tells what it is.

use crate::refuse;
use crate::scratch::{Scratch, Tmpfs};
use crate::server::{SMALL, Server};
use crate::tools::{pattern, root_and, said, weir, weir_path};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const BLOCK: usize = flash::BLOCK_BYTES;
const MIB: usize = 1 << 20;
/// Of NBD's transmission flags: the export is read-only.
const FLAG_READ_ONLY: u16 = 1 << 1;
const ENOSPC: u32 = 28;

/// Writes until there is no room for it.
fn fill(client: &mut crate::nbd::Client, from_mib: usize) {
    let refused = (from_mib..224).find_map(|mib| {
        let at = (mib * MIB) as u64;
        client.try_write(at, &pattern(mib as u64, MIB)).err()
    });
    assert_eq!(refused, Some(ENOSPC), "48 MiB do not hold 224");
}

#[test]
fn a_full_disk_below_is_warned_of_in_the_log_and_the_status_until_there_is_room_again() {
    if !root_and("a full disk is warned of", "/proc/mounts") {
        return;
    }
    let scratch = Scratch::new("full");
    let mounted = Tmpfs::new(&scratch.data(), "size=48m");
    let data = scratch.file("data");
    let server = Server::start(&scratch, &["--profile", "instant", "--capacity", "256MiB"]);
    let status = || said(&weir(&["status", "--data", &data]));
    let told = |text: &str| server.log().matches(text).count();
    let (full, again) = ("file system or disk below is full", "there is room again");
    let mut client = server.connect();
    client.write(0, &pattern(1, MIB));
    assert!(!status().contains(full), "{}", status());
    fill(&mut client, 1);
    assert_eq!((told(full), told(again)), (1, 0), "{}", server.log());
    assert!(told(&format!("shard-0/data: the {full}")) == 1, "{}", server.log());
    assert!(status().contains(full), "{}", status());
    assert!(client.read(0, MIB as u32) == pattern(1, MIB));
    // Whoever wants nothing wears nothing: tries of a checkpoint, each of which erases, become rare.
    let aborted = || server.counters("checkpoints_aborted").iter().sum::<u64>();
    std::thread::sleep(Duration::from_millis(1600));
    let before = aborted();
    std::thread::sleep(Duration::from_secs(3));
    assert!(aborted() <= before + 3, "{before} and then {}", aborted());

    mounted.remount("size=256m");
    // What is written later than that was begun after the refusal.
    std::thread::sleep(Duration::from_millis(1200));
    client.write(0, &pattern(2, MIB));
    client.flush();
    assert_eq!((told(full), told(again)), (1, 1), "{}", server.log());
    assert!(!status().contains(full), "{}", status());

    mounted.remount("size=64m");
    fill(&mut client, 48);
    // The last checkpoint finds no room, and the log says so.
    let log = scratch.path().join("serve.log");
    let (ended, _) = server.stop(libc::SIGTERM, Duration::from_secs(40));
    let log = fs::read_to_string(log).unwrap();
    let unclean = log.contains("not everything could be made durable");
    assert_eq!(ended.code() == Some(2), unclean, "{log}");
    mounted.remount("size=256m");
    let checked = weir(&["check", "--data", &data]);
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn a_server_that_finds_its_disk_full_is_read_only_and_says_so_to_everybody() {
    if !root_and("a server on a full disk", "/proc/mounts") {
        return;
    }
    let scratch = Scratch::new("fullro");
    let mounted = Tmpfs::new(&scratch.data(), "size=64m");
    let data = scratch.file("data");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    client.write(0, &pattern(1, MIB));
    client.flush();
    server.terminate();
    // The first open of a folder without marks writes its description anew.
    let description = scratch.data().join("device.toml");
    let text = fs::read_to_string(&description).unwrap();
    fs::write(&description, text.replace("version = 2", "version = 1")).unwrap();
    let filled = fs::write(scratch.data().join("filler"), vec![7; 64 * MIB]);
    assert!(filled.is_err(), "64 MiB do not fit");

    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    assert!(client.flags & FLAG_READ_ONLY != 0, "{:#x}", client.flags);
    assert!(client.read(0, MIB as u32) == pattern(1, MIB));
    client.flush();
    let control = server.control();
    let status = weir(&["status", "--control", control.to_str().unwrap()]);
    assert!(said(&status).contains("served READ-ONLY"), "{}", said(&status));
    assert!(server.log().contains("READ-ONLY"), "{}", server.log());
    server.terminate();
    fs::remove_file(scratch.data().join("filler")).unwrap();
    let checked = weir(&["check", "--data", &data]);
    assert!(checked.status.success(), "{}", said(&checked));
    drop(mounted);
}

#[test]
fn a_device_on_a_read_only_file_system_is_checked_looked_at_and_served() {
    if !root_and("a read-only file system", "/proc/mounts") {
        return;
    }
    let scratch = Scratch::new("rofs");
    let mounted = Tmpfs::new(&scratch.data(), "size=256m");
    let data = scratch.file("data");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    client.write(0, &pattern(1, MIB));
    client.flush();
    server.terminate();
    let config = scratch.file("weir.toml");
    fs::write(&config, "[ftl]\nread_only = true\n").unwrap();
    let (socket, control) = (scratch.file("nbd.sock"), scratch.file("control.sock"));
    let doors = ["--config", &config, "--socket", &socket, "--control", &control];
    let looks_well = || {
        for command in ["check", "inspect"] {
            let output = weir(&[command, "--data", &data]);
            assert_eq!(output.status.code(), Some(0), "{command}: {}", said(&output));
        }
        weir(&["check", "--data", &data])
    };
    let no_lock = "no lock can be made";
    for has_lock in [true, false] {
        if !has_lock {
            fs::remove_file(scratch.data().join("lock")).unwrap();
        }
        mounted.remount("ro");
        assert_eq!(said(&looks_well()).contains(no_lock), !has_lock);
        let server = Server::start(&scratch, &[SMALL, &doors].concat());
        let mut client = crate::nbd::Client::connect(Path::new(&socket), "default").unwrap();
        assert!(client.flags & FLAG_READ_ONLY != 0, "{:#x}", client.flags);
        assert!(client.read(0, MIB as u32) == pattern(1, MIB));
        assert!(client.try_write(0, &pattern(2, BLOCK)).is_err());
        client.flush();
        // Those that only look do not keep each other away.
        looks_well();
        assert_eq!(server.log().contains(no_lock), !has_lock, "{}", server.log());
        server.terminate();
        mounted.remount("rw");
    }
    // Without leave to write, a server on such a file system tells what would help.
    mounted.remount("ro");
    let refused = weir(&[&["serve", "--data", &data, "--http", "none"], &doors[2..]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("read_only = true"), "{}", said(&refused));
    mounted.remount("rw");
}

#[test]
fn who_looks_keeps_servers_away_and_a_server_those_who_look() {
    let scratch = Scratch::new("shared");
    let data = scratch.file("data");
    Server::start(&scratch, SMALL).terminate();
    let config = scratch.file("weir.toml");
    fs::write(&config, "[ftl]\nread_only = true\n").unwrap();
    let reader = Server::start(&scratch, &[SMALL, &["--config", &config]].concat());
    let refused =
        weir(&["serve", "--data", &data, "--http", "none", "--socket", &scratch.file("s")]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(weir(&["check", "--data", &data]).status.success());
    reader.terminate();
    let server = Server::start(&scratch, SMALL);
    let refused = weir(&["check", "--data", &data]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains(&format!("in use by process {}", server.pid())));
    server.terminate();
}

#[test]
fn a_folder_that_is_moved_under_its_server_is_closed_well_where_it_is_then() {
    let scratch = Scratch::new("moved");
    let fast = scratch.path().join("fast");
    let tiers = ["--fast", fast.to_str().unwrap(), "--fast-capacity", "16MiB"];
    let args = [SMALL, &tiers].concat();
    let server = Server::start(&scratch, &args);
    let mut client = server.connect();
    client.write(0, &pattern(1, MIB));
    client.flush();
    let moved = |path: &Path| path.with_extension("moved");
    for folder in [&scratch.data(), &fast] {
        fs::rename(folder, moved(folder)).unwrap();
        // What takes its place is somebody else's.
        fs::create_dir_all(folder.join("shard-0")).unwrap();
        fs::write(folder.join("shard-0/data"), vec![9; MIB]).unwrap();
        fs::write(folder.join("generation"), vec![9; 2048]).unwrap();
    }
    client.write(MIB as u64, &pattern(2, MIB));
    client.flush();
    let (status, _) = server.stop(libc::SIGTERM, Duration::from_secs(30));
    let log = fs::read_to_string(scratch.path().join("serve.log")).unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("was moved to"), "{log}");
    for folder in [&scratch.data(), &fast] {
        assert_eq!(fs::read(folder.join("generation")).unwrap(), vec![9; 2048]);
        assert_eq!(fs::read(folder.join("shard-0/data")).unwrap(), vec![9; MIB]);
        // The master's state: closed well.
        assert_eq!(fs::read(moved(folder).join("generation")).unwrap()[512 + 48], 2);
        fs::remove_dir_all(folder).unwrap();
        fs::rename(moved(folder), folder).unwrap();
    }
    let checked = weir(&["check", "--data", &scratch.file("data")]);
    assert_eq!(checked.status.code(), Some(0), "{}", said(&checked));
    assert!(said(&checked).contains("last shutdown clean"), "{}", said(&checked));
    let server = Server::start(&scratch, &args);
    let mut client = server.connect();
    assert!(client.read(0, MIB as u32) == pattern(1, MIB));
    assert!(client.read(MIB as u64, MIB as u32) == pattern(2, MIB));
    server.terminate();
}

#[test]
fn a_folder_that_is_removed_under_its_server_is_not_said_to_be_closed_well() {
    let scratch = Scratch::new("removed");
    let server = Server::start(&scratch, SMALL);
    server.connect().write(0, &pattern(1, MIB));
    fs::remove_dir_all(scratch.data()).unwrap();
    let (status, _) = server.stop(libc::SIGTERM, Duration::from_secs(30));
    let log = fs::read_to_string(scratch.path().join("serve.log")).unwrap();
    assert_eq!(status.code(), Some(2), "{log}");
    assert!(log.contains("was removed while it was open"), "{log}");
}

#[test]
fn a_link_in_place_of_a_file_of_a_device_is_refused_and_what_it_leads_to_stays() {
    let scratch = Scratch::new("links");
    let fast = scratch.file("fast");
    let args = [SMALL, &["--fast", &fast, "--fast-capacity", "16MiB"]].concat();
    Server::start(&scratch, &args).terminate();
    let data = scratch.file("data");
    let serve = || weir(&["serve", "--data", &data, "--http", "none"]);
    for folder in ["data", "fast"] {
        for name in ["lock", "generation", "shard-0/data", "shard-0/oob", "shard-0/blocks"] {
            let path = scratch.path().join(folder).join(name);
            let precious = scratch.path().join("precious");
            let before = fs::read(&path).expect("every tier has every file");
            fs::rename(&path, &precious).unwrap();
            symlink(&precious, &path).unwrap();
            let refused = serve();
            assert_eq!(refused.status.code(), Some(2), "{folder}/{name}: {}", said(&refused));
            assert!(said(&refused).contains("a link"), "{folder}/{name}: {}", said(&refused));
            assert!(fs::read(&precious).unwrap() == before, "{folder}/{name} was written through");
            fs::remove_file(&path).unwrap();
            fs::rename(&precious, &path).unwrap();
        }
    }
    // Those that are written whole beside the old one, or anew at each start.
    let precious = scratch.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, scratch.data().join("http-address")).unwrap();
    let server = Server::start(&scratch, &args);
    server.connect().write(0, &pattern(1, MIB));
    server.terminate();
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    let checked = weir(&["check", "--data", &data]);
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn an_edited_description_is_told_by_check_and_refused_by_a_server() {
    let scratch = Scratch::new("edited");
    let data = scratch.file("data");
    let server = Server::start(&scratch, SMALL);
    server.connect().write(0, &pattern(1, MIB));
    server.terminate();
    let description = scratch.data().join("device.toml");
    let sound = fs::read_to_string(&description).unwrap();
    let (unsummed, _) = sound.split_once("# crc32c ").expect("its last line is a checksum");
    let number = |key: &str| {
        let line = sound.lines().find(|line| line.starts_with(key)).expect("it is there");
        line.to_owned()
    };
    let (blocks, op) = (number("logical_blocks = "), number("op_percent = "));
    let with = |text: &str, line: &str, now: &str| text.replace(line, now);
    // What is said of each, and whether a device made before there were checksums is told, too.
    for (text, reason) in [
        (with(&sound, &blocks, "logical_blocks = 16000"), "checksum"),
        (with(&sound, &op, "op_percent = 24"), "checksum"),
        (with(unsummed, &blocks, "logical_blocks = 16000"), "logical_blocks = 16000"),
        (with(unsummed, &blocks, "logical_blocks = 17000"), "logical_blocks = 17000"),
    ] {
        fs::write(&description, &text).unwrap();
        for (command, code) in [("check", 1), ("serve", 2)] {
            let http: &[&str] = if command == "serve" { &["--http", "none"] } else { &[] };
            let output = weir(&[&[command, "--data", &data], http].concat());
            let told = said(&output);
            assert_eq!(output.status.code(), Some(code), "{command}: {text}\n{told}");
            let whole = ["device.toml", reason, "restore the file"];
            assert!(whole.iter().all(|part| told.contains(part)), "{command}: {told}");
        }
    }
    for wrong in ["op_percent = 0", "op_percent = 1001"] {
        fs::write(&description, with(unsummed, &op, wrong)).unwrap();
        let output = weir(&["check", "--data", &data]);
        assert!(!output.status.success() && said(&output).contains(wrong), "{}", said(&output));
    }
    for right in [&sound, unsummed] {
        fs::write(&description, right).unwrap();
        let output = weir(&["check", "--data", &data]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    let server = Server::start(&scratch, SMALL);
    assert!(server.connect().read(0, MIB as u32) == pattern(1, MIB));
    server.terminate();
}

#[test]
fn a_file_system_that_takes_no_room_back_is_refused_before_anything_is_on_it() {
    let scratch = Scratch::new("holes");
    let data = scratch.file("data");
    let without_holes = |args: &[&str]| {
        let mut command = Command::new(weir_path());
        refuse::refuse(command.args(args), &[(libc::SYS_fallocate, libc::EOPNOTSUPP)]);
        command.output().expect("weir starts")
    };
    let new = ["format", "--data", &data, "--profile", "instant", "--capacity", "64MiB"];
    let told = "takes no room back from files";
    let refused = without_holes(&new);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains(told), "{}", said(&refused));
    // What it left is nobody's, and a device that was moved there is refused, too.
    let made = weir(&new);
    assert_eq!(made.status.code(), Some(0), "{}", said(&made));
    let refused = without_holes(&["serve", "--data", &data]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains(told), "{}", said(&refused));
    let check = weir(&["check", "--data", &data]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
}
