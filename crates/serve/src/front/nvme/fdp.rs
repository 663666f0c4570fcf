//! Flexible data placement: a write names a placement handle of its namespace, which is one of the volume's. Here
//! are the bytes that tell a host of handles, of what was written, and of names that were none.
//!
//! A reclaim unit is a band: what is erased as one. Handles of all volumes are reclaim unit handles of the one
//! endurance group that the device is, in the order of the namespaces.

use super::admin::put;
use super::command::Command;
use super::health::Health;
use super::status::Status;
use super::subsystem::Namespace;
use flash::BLOCK_BYTES;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The one endurance group.
pub const GROUP: u16 = 1;
/// Directive type of data placement.
pub const DIRECTIVE: u8 = 2;
/// Events that are kept.
const EVENTS_MAX: usize = 63;
/// Event of a host: a write named a placement handle that its namespace has not.
const EVENT_INVALID_HANDLE: u8 = 3;
/// Type of a reclaim unit handle: what GC moves of its data may lie beside other data.
const INITIALLY_ISOLATED: u8 = 1;
/// The same: it stays apart.
const PERSISTENTLY_ISOLATED: u8 = 2;

/// The placement handles of a namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Handles {
    /// How many, one at least.
    pub count: u8,
    /// The volume's handle that the namespace's first one is; the others follow, modulo `count`.
    pub first: u8,
    /// What GC moves of one stays apart from the others'.
    pub apart: bool,
}

impl Handles {
    /// The volume's handle of a placement identifier; of one that is none, that of the first.
    pub fn of(&self, identifier: u16) -> (u8, bool) {
        let known = identifier < u16::from(self.count);
        let index = if known { identifier as u8 } else { 0 };
        ((self.first + index) % self.count.max(1), known)
    }
}

/// What is told of placement, and what happened to it.
#[derive(Default)]
pub struct Placement {
    /// Bytes of a band.
    pub unit_bytes: u64,
    events: Mutex<VecDeque<[u8; 64]>>,
}

impl Placement {
    /// Of a device whose bands have so many bytes.
    pub fn new(unit_bytes: u64) -> Self {
        Self { unit_bytes, ..Self::default() }
    }

    /// A write named a handle that its namespace has not; it went to the first.
    pub fn note_invalid(&self, nsid: u32, identifier: u16) {
        let mut event = [0; 64];
        // Placement identifier and namespace are valid; there is no clock to tell the time by.
        put(&mut event, 0, &[EVENT_INVALID_HANDLE, 0b11]);
        put(&mut event, 2, &identifier.to_le_bytes());
        put(&mut event, 12, &nsid.to_le_bytes());
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push_back(event);
        if events.len() > EVENTS_MAX {
            events.pop_front();
        }
    }

    /// The events of hosts, or those of the controller, of which there are none.
    pub fn events_log(&self, of_hosts: bool) -> Vec<u8> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let told = events.iter().filter(|_| of_hosts);
        let mut log = vec![0; 64];
        put(&mut log, 0, &(told.clone().count() as u32).to_le_bytes());
        log.extend(told.flatten());
        log.resize(64 * (EVENTS_MAX + 1), 0);
        log
    }
}

/// Feature: what events are kept, a descriptor of two bytes each.
pub const EVENTS: [u8; 2] = [EVENT_INVALID_HANDLE, 1];

/// Handles of all namespaces, in their order: of which, and what the namespace has.
fn all(namespaces: &[Namespace]) -> impl Iterator<Item = Handles> {
    namespaces.iter().flat_map(|namespace| {
        let handles = namespace.handles;
        (0..handles.count).map(move |_| handles)
    })
}

/// Handles of the namespaces before this one.
fn first_of(namespaces: &[Namespace], index: usize) -> u16 {
    all(&namespaces[..index]).count() as u16
}

/// Log page: the one configuration.
pub fn configurations_log(placement: &Placement, namespaces: &[Namespace]) -> Vec<u8> {
    let handles: Vec<Handles> = all(namespaces).collect();
    let bytes = 64 + 4 * handles.len();
    let mut log = vec![0; 16 + bytes];
    put(&mut log, 4, &((16 + bytes) as u32).to_le_bytes());
    let it = &mut log[16..];
    put(it, 0, &(bytes as u16).to_le_bytes());
    // Valid; identifiers name no reclaim group, as there is one.
    it[2] = 1 << 7;
    put(it, 4, &1u32.to_le_bytes());
    put(it, 8, &(handles.len() as u16).to_le_bytes());
    let most = namespaces.iter().map(|namespace| namespace.handles.count).max().unwrap_or(1);
    // One less than there may be.
    put(it, 10, &u16::from(most.saturating_sub(1)).to_le_bytes());
    put(it, 12, &(namespaces.len() as u32).to_le_bytes());
    put(it, 16, &placement.unit_bytes.to_le_bytes());
    for (handles, into) in handles.iter().zip(it[64..].chunks_exact_mut(4)) {
        into[0] = if handles.apart { PERSISTENTLY_ISOLATED } else { INITIALLY_ISOLATED };
    }
    log
}

/// Log page: all handles are of hosts.
pub fn usage_log(namespaces: &[Namespace]) -> Vec<u8> {
    let count = all(namespaces).count();
    let mut log = vec![0; 8 + 8 * count];
    put(&mut log, 0, &(count as u16).to_le_bytes());
    log[8..].chunks_exact_mut(8).for_each(|usage| usage[0] = 1);
    log
}

/// Log page: bytes that hosts have written, bytes that went to flash for whatever reason, bytes erased.
pub fn statistics_log(health: &Health) -> Vec<u8> {
    let mut log = vec![0; 64];
    let bytes = |blocks: u64| (u128::from(blocks) * BLOCK_BYTES as u128).to_le_bytes();
    put(&mut log, 0, &bytes(health.blocks_written));
    put(&mut log, 16, &bytes(health.blocks_programmed));
    put(&mut log, 32, &bytes(health.blocks_erased));
    log
}

/// I/O management receive: the handles of a namespace.
///
/// # Errors
/// Something else is asked for.
pub fn status_of(
    namespaces: &[Namespace],
    namespace: &Namespace,
    command: &Command,
) -> Result<Vec<u8>, Status> {
    if command.word(10) as u8 != 1 {
        return Err(Status::FIELD);
    }
    let before = namespaces.partition_point(|other| other.number < namespace.number);
    let (first, count) = (first_of(namespaces, before), namespace.handles.count);
    let mut page = vec![0; 16 + 32 * usize::from(count)];
    put(&mut page, 14, &u16::from(count).to_le_bytes());
    for (number, into) in (0..).zip(page[16..].chunks_exact_mut(32)) {
        put(into, 0, &u16::to_le_bytes(number));
        put(into, 2, &(first + number).to_le_bytes());
        // What is left of its band is not told: a handle fills bands of many units in turn.
    }
    Ok(page)
}

/// The handle that a write names, if it names one.
///
/// # Errors
/// Another directive.
pub fn named(command: &Command) -> Result<Option<u16>, Status> {
    match (command.word(12) >> 20 & 0xf) as u8 {
        0 => Ok(None),
        DIRECTIVE => Ok(Some((command.word(13) >> 16) as u16)),
        _ => Err(Status::FIELD),
    }
}
