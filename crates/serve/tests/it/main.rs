//! The server end to end: NBD over sockets in a folder of each test's own, on devices in memory
//! and in files.

mod client;
mod damage;
mod devices;
mod doors;
mod fencing;
mod front_ends;
mod guest;
mod http;
mod identity;
mod nbd_requests;
mod slow;
mod strangers;
mod tls;
mod vhost;

use serve::{Config, Server};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    #[expect(clippy::new_without_default, reason = "a test's own, made on purpose")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("nbd.sock")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The sections that all tests share, after what `device` says.
pub fn config(folder: &Path, device: &str) -> Config {
    config_with(folder, device, "", "")
}

/// The same with more keys for NBD and for HTTP.
pub fn config_with(folder: &Path, device: &str, nbd: &str, http: &str) -> Config {
    let text = format!(
        "{device}\n[nbd]\nunix = \"nbd.sock\"\nbuffers = \"64MiB\"\n\
         handshake_timeout = \"2s\"\n{nbd}\n[http]\naddress = \"127.0.0.1:0\"\n{http}\n"
    );
    Config::parse(&text, folder).unwrap_or_else(|errors| panic!("{errors}"))
}

pub const MEMORY: &str = "[device]\nkind = \"memory\"\ncapacity = \"32MiB\"\nop_percent = 50";
/// Servers that are dropped here would leave kept memory behind.
pub const FOLDER: &str = "[device]\nkind = \"nand\"\nkept_memory = \"off\"\n\
                          profile = \"instant\"\npath = \"dev\"\n\
                          capacity = \"16MiB\"\nop_percent = 50\nchannels = 2";
pub const FILE: &str = "[device]\nkind = \"file\"\nkept_memory = \"off\"\n\
                        path = \"dev.img\"\ncapacity = \"64MiB\"\nop_percent = 50";

pub fn start(folder: &Folder, device: &str) -> Server {
    Server::start(&config(&folder.0, device)).unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes that tell what was written last.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = flash::Random::new(seed);
    (0..len).map(|_| random.next_u64() as u8).collect()
}
