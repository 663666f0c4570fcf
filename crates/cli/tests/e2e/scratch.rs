//! A directory that one test owns. It goes away with the test, and stays when the test fails: its
//! logs and device files are the evidence.

use crate::tools::run;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new, empty directory. The name is short because a Unix socket's path must fit 107 bytes.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory given to `weir --data`.
    pub fn data(&self) -> PathBuf {
        self.path.join("data")
    }

    /// Where servers of the devices in it keep memory, unless they were told another place.
    pub fn kept(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let uuids = entries.filter_map(|entry| uuid_of(&entry.path()));
        // SAFETY: no memory is involved.
        let user = unsafe { libc::geteuid() };
        uuids.map(|uuid| PathBuf::from(format!("/dev/shm/weir-{user}-{uuid}"))).collect()
    }

    /// A path inside, as a string for a command line.
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("scratch paths are UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A killed server leaves it, for the next one.
        for kept in self.kept() {
            let _ = fs::remove_file(kept);
        }
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// A file system in memory. It goes away when the test ends, however it ends.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Makes one at `path`, with these options. It takes root.
    pub fn new(path: &Path, options: &str) -> Self {
        fs::create_dir_all(path).expect("a folder to mount at");
        let shown = path.to_str().expect("scratch paths are UTF-8");
        run("mount", &["-t", "tmpfs", "-o", options, "tmpfs", shown]);
        Self(path.to_owned())
    }

    /// Changes its options.
    pub fn remount(&self, options: &str) {
        let shown = self.0.to_str().expect("scratch paths are UTF-8");
        run("mount", &["-o", &format!("remount,{options}"), shown]);
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        std::process::Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

/// The uuid of the device in this folder or file.
fn uuid_of(path: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(path.join("device.toml")) {
        let line = text.lines().find_map(|line| line.strip_prefix("uuid = "))?;
        return Some(line.trim_matches('"').to_owned());
    }
    let mut head = [0; 32];
    fs::File::open(path).ok()?.read_exact_at(&mut head, 0).ok()?;
    let uuid = u128::from_le_bytes(head[16..].try_into().ok()?);
    (head[..8] == *b"WEIRFILE").then(|| format!("{uuid:032x}"))
}
