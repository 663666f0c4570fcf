//! A directory that one test owns. It goes away with the test, and stays when the test fails: its
//! logs and device files are the evidence.

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

    /// A path inside, as a string for a command line.
    pub fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("scratch paths are UTF-8").to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.path.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
