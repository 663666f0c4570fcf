//! What all shards of a server know.

use super::{Beat, Bounds, Entrance, Mailbox, Message};
use crate::device::Losses;
use crate::exports::Offered;
use crate::front::{nbd, nvme};
use crate::guests::Bells;
use crate::medium::Injections;
use crate::volume::Split;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// See the head of this file.
pub struct Shared {
    /// Which shard holds what.
    pub split: Split,
    /// Where the clock of volumes' limits begins.
    pub limits_since: std::time::Instant,
    /// What is offered as it was said last; each shard has its own, which it was told.
    pub offered: RwLock<Arc<Offered>>,
    /// Present if clients must use TLS.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Present if NVMe hosts are let in.
    pub nvme: Option<Arc<nvme::Subsystem>>,
    /// By which those are told who serve hypervisors of guests.
    pub guests: Bells,
    /// Listeners before this one are for NBD, the rest for NVMe.
    pub nbd_doors: u32,
    /// Bounds of one client.
    pub limits: nbd::Limits,
    /// Bytes of request buffers that one shard may have out.
    pub buffer_bytes_max: usize,
    /// How long a shard may look for work before it sleeps.
    pub busy_poll_ns: u64,
    /// What vanishes, for tests.
    pub losses: Losses,
    /// What goes wrong below, for tests.
    pub injections: Injections,
    /// How long things may take.
    pub bounds: Bounds,
    /// Where the device and its fast tier are, for the log.
    pub places: (String, String),
    /// How long the peer of a TCP connection may be silent for the kernel; 0: for ever.
    pub tcp_patience: Duration,
    /// Clients of all shards, and who would be one.
    pub entrance: Arc<Entrance>,
    /// The way to each shard.
    pub mailboxes: Vec<Mailbox>,
    /// Shards that have drained.
    pub drained: AtomicUsize,
    /// Whether each is in a turn.
    pub beats: Vec<Beat>,
    /// Of each shard that lacks room below: where, and what to do.
    pub lacking: Mutex<BTreeMap<usize, String>>,
}

impl Shared {
    /// What is offered.
    pub fn offered(&self) -> Arc<Offered> {
        Arc::clone(&self.offered.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A shard lacks room below, or does so no more.
    pub(super) fn note_room(&self, shard: usize, lacks: Option<String>) {
        let mut lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        match lacks {
            Some(why) => lacking.insert(shard, why),
            None => lacking.remove(&shard),
        };
    }

    /// Why nothing that needs room can be made durable, if that is so.
    pub fn lacks_room(&self) -> Option<String> {
        let lacking = self.lacking.lock().unwrap_or_else(PoisonError::into_inner);
        lacking.values().next().cloned()
    }

    /// A shard has failed: the others stop without waiting for what it owes them.
    pub fn fail(&self) {
        self.drained.fetch_add(FAILED, Ordering::AcqRel);
        for mailbox in &self.mailboxes {
            mailbox.push(Message::Shutdown);
            mailbox.wake();
        }
    }
}

/// In `Shared::drained`: more than there can be shards.
pub(super) const FAILED: usize = 1 << 32;
