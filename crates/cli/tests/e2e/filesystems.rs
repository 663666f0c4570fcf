//! ext4 and xfs of the running kernel on a Weir volume: `nbdfuse` shows the volume as a file, a
//! loop device makes it a disk. A real tree of files is copied in, and must be whole after the
//! server was restarted or killed.
//!
//! Needs root and `/dev/fuse`; where these are missing the tests step aside and are told of.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{output, root_and, run};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// xfs wants 300 MiB at least.
const ARGS: &[&str] = &["--profile", "instant", "--capacity", "1GiB"];
const ARGS_ON_TWO_SHARDS: &[&str] =
    &["--profile", "instant", "--capacity", "1GiB", "--shards", "2"];
/// Most of a tree that is copied: what fits the volume and the suite's time.
const TREE_MIB_MAX: u64 = 300;

#[test]
fn ext4_keeps_a_tree_of_files_over_a_restart() {
    keeps_a_tree("ext4", ARGS, EXT4, Server::terminate);
}

#[test]
fn ext4_keeps_a_tree_of_files_over_a_kill_of_two_shards() {
    keeps_a_tree("ext4two", ARGS_ON_TWO_SHARDS, EXT4, |mut server| server.kill());
}

#[test]
fn xfs_keeps_a_tree_of_files_over_a_kill() {
    keeps_a_tree("xfs", ARGS, XFS, |mut server| server.kill());
}

/// How to make a file system, and how to check it.
type Tools = (&'static [&'static str], &'static [&'static str]);
const EXT4: Tools = (&["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]);
const XFS: Tools = (&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]);

/// Copies a tree into a new file system, unmounts, stops the server with `stop`, and compares.
fn keeps_a_tree(kind: &str, args: &[&str], (make, check): Tools, stop: fn(Server)) {
    if !root_and(&format!("{kind} on a volume"), "/dev/fuse") {
        return;
    }
    let scratch = Scratch::new(kind);
    let source = tree();
    let expected = hashes(&source);
    assert!(expected.lines().count() > 20, "{source} holds a tree worth copying");

    let server = Server::start(&scratch, args);
    let mut disk = Disk::attach(&scratch, &server);
    run(make[0], &[&make[1..], &[&disk.device]].concat());
    disk.mount(&scratch);
    let inside = scratch.file("mount/tree");
    run("cp", &["-a", &source, &inside]);
    assert!(hashes(&inside) == expected, "{kind}: the copy is whole before the restart");
    disk.detach();
    stop(server);

    let server = Server::start(&scratch, args);
    let mut disk = Disk::attach(&scratch, &server);
    run(check[0], &[&check[1..], &[&disk.device]].concat());
    disk.mount(&scratch);
    assert!(hashes(&inside) == expected, "{kind}: the copy is whole after the restart");
    // Deleting and trimming must give space back, not take the rest along.
    run("sh", &["-c", &format!("cp -a '{inside}' '{inside}.2' && rm -r '{inside}'")]);
    run("fstrim", &[&scratch.file("mount")]);
    assert!(hashes(&scratch.file("mount/tree.2")) == expected, "{kind}: whole after fstrim");
    disk.detach();
    server.terminate();
}

/// A tree of real files that is not too large: Rust's documentation, or Debian's.
fn tree() -> String {
    let sysroot = output("rustc", &["--print", "sysroot"]);
    let rust = String::from_utf8_lossy(&sysroot.stdout).trim().to_owned() + "/share/doc";
    for path in [rust.as_str(), "/usr/share/doc"] {
        if !Path::new(path).is_dir() {
            continue;
        }
        let size = run("du", &["-s", "-BM", "--apparent-size", path]);
        let mib: u64 = size.split('M').next().and_then(|n| n.parse().ok()).expect("du's figure");
        if (1..=TREE_MIB_MAX).contains(&mib) {
            return path.to_owned();
        }
    }
    "/usr/share/common-licenses".to_owned()
}

/// The SHA-256 of every file below a directory, in a fixed order.
fn hashes(directory: &str) -> String {
    let script =
        format!("cd '{directory}' && find . -type f -print0 | sort -z | xargs -0 sha256sum");
    run("sh", &["-c", &script])
}

/// The volume as a loop device. Taken down in order, also when a test fails.
struct Disk {
    fuse: Child,
    fuse_directory: String,
    device: String,
    mounted: Option<String>,
    attached: bool,
}

impl Disk {
    fn attach(scratch: &Scratch, server: &Server) -> Self {
        let directory = scratch.file("fuse");
        std::fs::create_dir_all(&directory).expect("a directory to mount on");
        let file = format!("{directory}/disk");
        let fuse = Command::new("nbdfuse")
            .args([&file, &server.uri()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdfuse starts: `./x test` installs it");
        let mut disk = Self {
            fuse,
            fuse_directory: directory,
            device: String::new(),
            mounted: None,
            attached: true,
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !Path::new(&file).exists() {
            assert!(Instant::now() < deadline, "nbdfuse shows no disk");
            assert!(disk.fuse.try_wait().expect("a child").is_none(), "nbdfuse ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        // Two tests may be told the same free device by `losetup -f`: the loser asks again.
        for _ in 0..20 {
            let made = output("losetup", &["-f", "--show", &file]);
            if made.status.success() {
                disk.device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
                return disk;
            }
        }
        panic!("no loop device could be had");
    }

    fn mount(&mut self, scratch: &Scratch) {
        let directory = scratch.file("mount");
        std::fs::create_dir_all(&directory).expect("a directory to mount on");
        run("mount", &[&self.device, &directory]);
        self.mounted = Some(directory);
    }

    fn detach(mut self) {
        if let Some(directory) = self.mounted.take() {
            run("umount", &[&directory]);
        }
        run("losetup", &["-d", &self.device]);
        run("fusermount3", &["-u", &self.fuse_directory]);
        self.attached = false;
        assert!(self.fuse.wait().expect("nbdfuse ends").success(), "nbdfuse ended well");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !self.attached {
            return;
        }
        // A test failed: leave nothing mounted, whatever each step says.
        let attempt = |program: &str, args: &[&str]| {
            let _ = Command::new(program).args(args).stderr(Stdio::null()).status();
        };
        if let Some(directory) = &self.mounted {
            attempt("umount", &["-l", directory]);
        }
        if !self.device.is_empty() {
            attempt("losetup", &["-d", &self.device]);
        }
        attempt("fusermount3", &["-u", "-z", &self.fuse_directory]);
        let _ = self.fuse.kill();
        let _ = self.fuse.wait();
    }
}
