//! A pool of processes that is measured.

use super::super::nbd::{Folder, cpu_seconds};
use crate::pool::up::begin;
use crate::pool::up::made::{Drives, Layout, Made};
use crate::pool::up::parts::Parts;
use client::Place;
use serde_json::Value;
use serve::pool::config::{PartConfig, PlaneConfig};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Nodes, each with a drive.
pub const NODES: u32 = 4;
/// Copies of each block.
pub const REPLICAS: u8 = 2;

/// It ends, and its folder goes, when this is dropped.
pub struct Pool {
    parts: Parts,
    made: Made,
    folder: PathBuf,
    /// Behind the parts: they end first.
    _scratch: Folder,
}

/// What the client and its FTL have counted.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Messages to nodes.
    pub asks: f64,
    /// Pages that the FTL has programmed.
    pub programs: f64,
    /// Slots of them, padding with them.
    pub slots: f64,
    /// Of these, what GC has moved.
    pub relocated: f64,
    /// Blocks that hosts wrote.
    pub written: f64,
}

impl Pool {
    /// Starts one with a volume of so many bytes.
    pub fn start(bytes: u64) -> Result<Self, String> {
        let scratch = Folder::new();
        let folder = scratch.0.join("pool");
        let layout = Layout {
            nodes: NODES,
            ssds: 1,
            bytes,
            replicas: REPLICAS,
            drives: Drives::Memory { large_bands: true },
        };
        let made = Made::make_or_open(&folder, layout)?;
        let parts = Parts::new(&folder, Duration::ZERO)?;
        let mut pool = Self { parts, made, folder, _scratch: scratch };
        begin(&pool.made, &mut pool.parts)?;
        pool.open()?;
        Ok(pool)
    }

    /// Starts a client, and waits until it serves the volume.
    pub fn open(&mut self) -> Result<(), String> {
        self.parts.start("client", &["client"], &self.made.config("client")).map(drop)
    }

    /// Kills the client.
    pub fn kill_client(&mut self) {
        self.parts.kill("client");
    }

    /// Where the volume is served.
    pub fn uri(&self) -> String {
        let socket = self.folder.join("nbd.sock");
        format!("nbd+unix:///{}?socket={}", crate::pool::up::made::VOLUME, socket.display())
    }

    /// Where things may be put.
    pub fn scratch(&self) -> &Path {
        &self._scratch.0
    }

    /// Processor time that the client has used, in seconds.
    pub fn client_seconds(&self) -> Result<f64, String> {
        self.seconds("client")
    }

    /// And all nodes together.
    pub fn node_seconds(&self) -> Result<f64, String> {
        let nodes = self.made.nodes().iter();
        nodes.map(|node| self.seconds(&format!("node-{}", node.number))).sum()
    }

    fn seconds(&self, part: &str) -> Result<f64, String> {
        let process = self.parts.process(part);
        cpu_seconds(process.ok_or_else(|| format!("{part} does not run"))?)
    }

    /// What was counted so far.
    pub fn counts(&self) -> Result<Counts, String> {
        let asked = serve::pool::parts::ask(&self.folder.join("client.sock"), "status");
        let client = asked.map_err(|error| error.to_string())?["counters"].clone();
        let place = Place::Socket(self.folder.join("control.sock"));
        let ftl = crate::status::ask_status(&place)?["counters"].clone();
        let of = |counters: &Value, name: &str| {
            counters[name].as_f64().ok_or_else(|| format!("the client counts no {name}"))
        };
        Ok(Counts {
            asks: of(&client, "asks")?,
            programs: of(&client, "programs")?,
            slots: of(&ftl, "slots_programmed")?,
            relocated: of(&ftl, "slots_relocated")?,
            written: of(&ftl, "host_blocks_written")?,
        })
    }

    /// By what parts of this pool know each other.
    pub fn identity(&self) -> Result<PlaneConfig, String> {
        let config = PartConfig::load(&self.made.config("admin"));
        config.and_then(|config| config.plane()).map_err(|error| error.to_string())
    }
}
