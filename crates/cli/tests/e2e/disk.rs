//! A real disk below: a loop device, by direct I/O, as people would give Weir a partition. What it
//! held before is not overwritten by accident, and a mounted one is not touched at all.
//!
//! Needs root and loop devices; where these are missing the tests step aside and are told of.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{output, pattern, root_and, run, said, weir};
use std::fs;
use std::path::PathBuf;

const MIB: usize = 1 << 20;
const DISK_MIB: usize = 512;

#[test]
fn a_disk_is_formatted_served_killed_and_checked() {
    let Some(disk) = Disk::new("disk") else { return };
    let scratch = &disk.scratch;
    let path = disk.path.to_str().expect("UTF-8");
    let said_by_format = weir(&["format", "--data", path, "--capacity", "128MiB", "--shards", "2"]);
    assert!(said_by_format.status.success(), "{}", said(&said_by_format));
    let config = disk.config("shards = 2\n");
    let args = ["--config", &*config, "--data", path];
    let server = Server::start(scratch, &args);
    let uri = format!("--uri=nbd+unix:///default?socket={}", scratch.file("data/nbd.sock"));
    let fio = |more: &[&str]| {
        let mut job = vec!["--name=e2e", "--ioengine=nbd", &*uri, "--rw=randwrite", "--bs=12k"];
        job.extend(["--size=96m", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1"]);
        job.extend(["--randseed=11", "--verify_state_save=0", "--output-format=terse"]);
        job.extend(more);
        run("fio", &job);
    };
    fio(&["--do_verify=1", "--end_fsync=1"]);
    // In the background of the kill: writes to where fio did not.
    let mut server = server;
    let mut client = server.connect();
    for at in (100 * MIB..120 * MIB).step_by(MIB) {
        client.write(at as u64, &pattern(at as u64, MIB));
    }
    for _ in 0..16 {
        let data = pattern(5, MIB);
        client.send(crate::nbd::WRITE, 0, 120 << 20, MIB as u32, &data).expect("it was sent");
    }
    server.kill();
    let check = weir(&["check", "--data", path]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    assert!(said(&check).contains("last shutdown dirty"), "{}", said(&check));
    let server = Server::start(scratch, &args);
    fio(&["--verify_only=1"]);
    let mut client = server.connect();
    for at in (100 * MIB..120 * MIB).step_by(MIB) {
        assert!(client.read(at as u64, MIB as u32) == pattern(at as u64, MIB), "MiB at {at}");
    }
    // While it is served nobody else gets it: not the kernel, not another Weir.
    assert!(!output("mkfs.ext4", &["-q", "-F", path]).status.success(), "mkfs saw it in use");
    let second = weir(&["check", "--data", path]);
    assert!(said(&second).contains("in use"), "{}", said(&second));
    server.terminate();
    let check = weir(&["check", "--data", path]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    assert!(said(&check).contains("last shutdown clean"), "{}", said(&check));
}

#[test]
fn raw_units_on_a_disk_survive_a_kill_and_a_disk_too_small_says_what_fits() {
    let Some(disk) = Disk::new("rawdisk") else { return };
    let path = disk.path.to_str().expect("UTF-8");
    let config = crate::raw::config_of(&disk.scratch, path);
    let large = ["format", "--config", &config, "--data", path, "--capacity", "4GiB"];
    let refused = weir(&large);
    let text = said(&refused);
    assert!(!refused.status.success(), "{text}");
    let example = text.split("capacity = \"").nth(1).and_then(|rest| rest.split('"').next());
    let example = example.unwrap_or_else(|| panic!("it says what would fit: {text}"));
    let fits = ["format", "--config", &config, "--data", path, "--capacity", example];
    let made = weir(&fits);
    assert!(made.status.success(), "{}", said(&made));
    run("blkdiscard", &[path]);
    crate::raw::survive_a_kill_at(&disk.scratch, path);
}

#[test]
fn a_disk_with_a_file_system_is_refused_unless_forced_and_a_mounted_one_always() {
    let Some(disk) = Disk::new("foreign") else { return };
    let path = disk.path.to_str().expect("UTF-8");
    run("mkfs.ext4", &["-q", "-F", path]);
    let config = disk.config("");
    for args in [
        vec!["format", "--data", path, "--capacity", "64MiB"],
        vec!["serve", "--http", "127.0.0.1:0", "--config", &config, "--data", path],
    ] {
        let refused = weir(&args);
        let text = said(&refused);
        assert!(!refused.status.success(), "{args:?}: {text}");
        for word in [path, "ext4", "--force"] {
            assert!(text.contains(word), "{args:?}: the message names {word:?}: {text}");
        }
    }
    run("fsck.ext4", &["-f", "-n", path]);

    let mount = disk.scratch.file("mount");
    fs::create_dir_all(&mount).unwrap();
    run("mount", &[path, &mount]);
    let forced = weir(&["format", "--data", path, "--capacity", "64MiB", "--force"]);
    run("umount", &[&mount]);
    assert!(!forced.status.success(), "a mounted disk is not for the taking: {}", said(&forced));
    let text = said(&forced);
    assert!(text.contains("mounted") && text.contains(path), "{text}");
    run("fsck.ext4", &["-f", "-n", path]);

    let forced = weir(&["format", "--data", path, "--capacity", "64MiB", "--force"]);
    assert!(forced.status.success(), "{}", said(&forced));
    let check = weir(&["check", "--data", path]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    // And it is a device now, which is not thrown away by accident either.
    let again = weir(&["format", "--data", path, "--capacity", "64MiB"]);
    assert!(said(&again).contains("--force"), "{}", said(&again));
}

/// A loop device over a sparse file, detached at the end.
struct Disk {
    path: PathBuf,
    scratch: Scratch,
}

impl Disk {
    fn new(name: &str) -> Option<Self> {
        if !root_and(&format!("a real disk below ({name})"), "/dev/loop-control") {
            return None;
        }
        let scratch = Scratch::new(name);
        let file = scratch.file("disk.img");
        let made = fs::File::create(&file).and_then(|f| f.set_len((DISK_MIB * MIB) as u64));
        made.expect("a sparse file");
        fs::create_dir_all(scratch.data()).expect("a folder for the socket");
        // Two tests may be told the same free device by `losetup -f`: the loser asks again.
        for _ in 0..20 {
            let made = output("losetup", &["-f", "--show", &file]);
            if made.status.success() {
                let path = String::from_utf8_lossy(&made.stdout).trim().into();
                return Some(Self { path, scratch });
            }
        }
        panic!("no loop device could be had");
    }

    /// A config that serves the disk with its socket where [`Server`] looks for it.
    fn config(&self, device: &str) -> String {
        let config = self.scratch.file("weir.toml");
        let text = format!(
            "[device]\nkind = \"file\"\npath = {:?}\n{device}[nbd]\nunix = \"data/nbd.sock\"\n",
            self.path
        );
        fs::write(&config, text).unwrap();
        config
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = output("losetup", &["-d", &self.path.to_string_lossy()]);
    }
}
