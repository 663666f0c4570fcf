//! What all connections of a server share: the namespaces, who may come, and the controllers there are.
//! It is looked at when a host connects or leaves, when it sets a property, and when volumes come or go; never for I/O.

use super::auth::Keys;
use super::fdp::{Handles, Placement};
use super::health::Healths;
use super::status::Status;
use super::zones::ZoneShape;
use crate::rated::Rated;
use flash::Slab;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The name of every discovery service.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NQN.
pub const NQN_BYTES_MAX: usize = 223;
/// Controllers of a server at a time.
const CONTROLLERS_MAX: usize = 1024;
/// I/O queues of a controller.
pub const QUEUES_MAX: u16 = 128;
/// Commands of a queue.
pub const QUEUE_ENTRIES_MAX: u16 = 1024;

/// A volume as hosts see it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Namespace {
    /// By which hosts name it: one that has gone does not come back for another.
    pub number: u32,
    /// Blocks, as its host counts.
    pub blocks: u64,
    /// A block has this power of two of bytes.
    pub block_shift: u8,
    /// It is a zoned one.
    pub zones: Option<ZoneShape>,
    /// What a write may name; none if it is zoned.
    pub handles: Handles,
    /// What of its writes is whole or not there after a power cut.
    pub atomic: Atomic,
    /// Nothing may be written.
    pub read_only: bool,
    /// The same at every start.
    pub uuid: u128,
    /// Who may see it; empty: whoever may connect.
    pub hosts: Vec<String>,
}

/// Up to how many blocks a write is seen whole or not at all, by those that read meanwhile and after a power cut.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Atomic {
    /// So many; up to 1: no more than a block is.
    pub blocks: u16,
    /// Unless it lies on both sides of a border, of which there is one every so many blocks; 0: there is none.
    pub border_every: u16,
    /// The block of the first border.
    pub border_first: u16,
}

impl Namespace {
    /// The number of its command set.
    pub fn command_set(&self) -> u8 {
        if self.zones.is_some() { COMMAND_SET_ZONED } else { COMMAND_SET_NVM }
    }
}

/// The namespaces that there are, in the order of their numbers.
pub type Namespaces = Arc<[Namespace]>;

/// The one of a number, if the host may see it.
pub fn find<'a>(namespaces: &'a [Namespace], number: u32, host: &str) -> Option<&'a Namespace> {
    let at = namespaces.binary_search_by_key(&number, |namespace| namespace.number).ok()?;
    let hosts = &namespaces[at].hosts;
    (hosts.is_empty() || hosts.iter().any(|admitted| admitted == host)).then(|| &namespaces[at])
}

/// Of namespaces of logical blocks.
pub const COMMAND_SET_NVM: u8 = 0;
/// Of zoned namespaces.
pub const COMMAND_SET_ZONED: u8 = 2;

/// The uuid of a volume, by its device's and its name: version 8 of those that are made up.
pub fn uuid_of(device: u128, volume: &str) -> u128 {
    // FNV-1a.
    let hash = device
        .to_le_bytes()
        .iter()
        .chain(volume.as_bytes())
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128, |hash, &byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_013b)
        });
    hash & !(0xf << 76) & !(0b11 << 62) | 8 << 76 | 0b10 << 62
}

/// The name of a subsystem that has no other.
pub fn nqn_of(device: u128) -> String {
    let hex = format!("{:032x}", uuid_of(device, ""));
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("nqn.2014-08.org.nvmexpress:uuid:{}", parts.join("-"))
}

/// See the head of this file.
pub struct Subsystem {
    /// Its name.
    pub nqn: String,
    /// The device's.
    pub serial: String,
    /// One a volume.
    namespaces: RwLock<Namespaces>,
    /// Who may connect; empty: whoever can.
    pub hosts: Vec<String>,
    /// From connection to its Connect.
    pub handshake_ns: u64,
    /// Where hosts connect for I/O.
    pub port: AtomicU16,
    /// How the device is.
    pub healths: Healths,
    /// What is told of the placement of data, unless all namespaces are zoned.
    pub placement: Option<Placement>,
    /// What hosts have to know, if they have to authenticate.
    pub keys: Option<Keys>,
    /// What is logged of hosts that did not, that may not connect, that break the protocol, and whose data was damaged on
    /// its way.
    pub unauthenticated: Rated,
    pub refused: Rated,
    pub broken: Rated,
    pub spoilt: Rated,
    controllers: Mutex<Slab<Arc<Controller>>>,
}

/// Who a host says it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Host {
    /// Its name.
    pub nqn: String,
    /// Its id.
    pub id: [u8; 16],
}

/// What a host talks to over one admin queue and many I/O queues.
pub struct Controller {
    /// Its number.
    pub id: u16,
    /// Whose.
    pub host: Host,
    /// Of the discovery service.
    pub discovery: bool,
    /// Its admin queue is connected.
    pub alive: AtomicBool,
    /// Property CC.
    pub configuration: AtomicU32,
    /// How often it was reset or shut down: queues of before are nobody's.
    pub resets: AtomicU32,
    /// I/O queues that the host was granted.
    pub granted: AtomicU32,
    /// The host tries again after the delay that it is told, and not at once.
    pub delays: AtomicBool,
    /// I/O queues that are connected, a bit each.
    connected: [AtomicU64; 3],
}

const ENABLE: u32 = 1;
const SHUTDOWN: u32 = 3 << 14;

impl Controller {
    /// Property CSTS.
    pub fn state(&self) -> u32 {
        let configuration = self.configuration.load(Ordering::Acquire);
        let ready = configuration & ENABLE;
        ready | if configuration & SHUTDOWN != 0 { 2 << 2 } else { 0 }
    }

    /// I/O may come.
    pub fn is_ready(&self) -> bool {
        self.alive.load(Ordering::Acquire) && self.state() == 1
    }

    /// Takes property CC. A host that resets a controller counts on it that nothing of its I/O queues reaches the volumes
    /// any more.
    pub fn configure(&self, value: u32) {
        let before = self.configuration.swap(value, Ordering::AcqRel);
        let ends = |configuration: u32| configuration & (ENABLE | SHUTDOWN) != ENABLE;
        if ends(value) && !ends(before) {
            self.resets.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Seat {
    /// Its controller is there, and is as it was when this queue was connected.
    pub fn is_current(&self) -> bool {
        let controller = &self.controller;
        let same = self.queue == 0 || controller.resets.load(Ordering::Acquire) == self.resets;
        controller.alive.load(Ordering::Acquire) && same
    }
}

/// A queue's place at its controller, which ends with its connection.
pub struct Seat {
    subsystem: Arc<Subsystem>,
    /// At which.
    pub controller: Arc<Controller>,
    /// Which queue; 0 is the admin queue.
    pub queue: u16,
    /// The controller's resets when it was connected.
    resets: u32,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.queue > 0 {
            let (word, bit) = (usize::from(self.queue) / 64, 1 << (self.queue % 64));
            self.controller.connected[word].fetch_and(!bit, Ordering::AcqRel);
            return;
        }
        self.controller.alive.store(false, Ordering::Release);
        self.subsystem.lock().remove(u32::from(self.controller.id) - 1);
    }
}

impl Subsystem {
    /// A subsystem without controllers, of so many shards.
    pub fn new(
        nqn: String,
        serial: String,
        namespaces: Vec<Namespace>,
        hosts: Vec<String>,
        (handshake_ns, shards): (u64, usize),
    ) -> Self {
        let (port, controllers) = (AtomicU16::new(0), Mutex::default());
        let healths = Healths::new(shards);
        let (placement, keys) = (None, None);
        let namespaces = RwLock::new(namespaces.into());
        Self {
            nqn,
            serial,
            namespaces,
            hosts,
            handshake_ns,
            port,
            healths,
            placement,
            keys,
            unauthenticated: Rated::default(),
            refused: Rated::default(),
            broken: Rated::default(),
            spoilt: Rated::default(),
            controllers,
        }
    }

    /// The same, whose hosts have to authenticate.
    pub fn with_keys(self, keys: Keys) -> Self {
        Self { keys: Some(keys), ..self }
    }

    /// The same, whose hosts place data in bands of so many bytes.
    pub fn with_placement(self, unit_bytes: u64) -> Self {
        Self { placement: Some(Placement::new(unit_bytes)), ..self }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Slab<Arc<Controller>>> {
        self.controllers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the host may connect.
    pub fn admits(&self, host: &str) -> bool {
        let listed = self.hosts.is_empty() || self.hosts.iter().any(|admitted| admitted == host);
        // One without a secret could not authenticate.
        listed && self.keys.as_ref().is_none_or(|keys| keys.knows(host))
    }

    /// The namespaces that there are now.
    pub fn namespaces(&self) -> Namespaces {
        Arc::clone(&self.namespaces.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Others, which each connection learns of from its shard ([`crate::front::Front::offered`]).
    pub fn set_namespaces(&self, namespaces: Vec<Namespace>) {
        *self.namespaces.write().unwrap_or_else(PoisonError::into_inner) = namespaces.into();
    }

    /// A new controller, for its admin queue.
    ///
    /// # Errors
    /// There are too many.
    pub fn open(self: &Arc<Self>, host: Host, discovery: bool) -> Result<Seat, Status> {
        let mut controllers = self.lock();
        if controllers.len() >= CONTROLLERS_MAX {
            return Err(Status::CONNECT_BUSY);
        }
        let controller = |id| Controller {
            id,
            host: host.clone(),
            discovery,
            alive: AtomicBool::new(true),
            configuration: AtomicU32::new(0),
            resets: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            delays: AtomicBool::new(false),
            connected: Default::default(),
        };
        let index = controllers.insert(Arc::new(controller(0)));
        let controller = Arc::new(controller(index as u16 + 1));
        controllers[index] = Arc::clone(&controller);
        Ok(Seat { subsystem: Arc::clone(self), controller, queue: 0, resets: 0 })
    }

    /// The place of an I/O queue at a controller that is there.
    ///
    /// # Errors
    /// It is not there or not the host's, or the queue is not granted, or is connected already.
    pub fn join(self: &Arc<Self>, host: &Host, id: u16, queue: u16) -> Result<Seat, Status> {
        let index = u32::from(id).checked_sub(1).ok_or(Status::CONNECT_PARAMETER)?;
        let found = self.lock().get(index).cloned();
        let controller = found.ok_or(Status::CONNECT_PARAMETER)?;
        if controller.host != *host || controller.discovery {
            return Err(Status::CONNECT_PARAMETER);
        }
        let resets = controller.resets.load(Ordering::Acquire);
        if !controller.is_ready() {
            return Err(Status::SEQUENCE);
        }
        if u32::from(queue) > controller.granted.load(Ordering::Acquire) {
            return Err(Status::CONNECT_PARAMETER);
        }
        let (word, bit) = (usize::from(queue) / 64, 1 << (queue % 64));
        if controller.connected[word].fetch_or(bit, Ordering::AcqRel) & bit != 0 {
            return Err(Status::SEQUENCE);
        }
        Ok(Seat { subsystem: Arc::clone(self), controller, queue, resets })
    }
}
