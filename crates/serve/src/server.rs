//! A server: the shards' threads, their listeners, and how they start and stop.
//!
//! Each shard's thread makes its own ring and engine, mounts without pacing, and reports; only
//! when all have mounted do clients get in. Dropping a [`Server`] shuts it down.

mod checks;
pub(crate) mod hosts;
mod restart;
mod unpaced;
mod volumes;

pub use checks::check;
pub use restart::Restart;
use restart::restart;
pub(crate) use unpaced::{run_until_milestone, start_engine, stop_engine, virtual_turn};

use crate::backend::{Source, Starter};
use crate::compiler::Compiler;
use crate::config::Config;
use crate::control;
use crate::descriptors::Clients;
use crate::device::{Device, DeviceError, KeptCounts, Kind, Mode, Volume};
use crate::doors::{Doors, clients_max};
use crate::exports::{self, Offered};
use crate::fast::FastControl;
use crate::guests::{Bells, GuestDoor, Guests};
use crate::living::VolumesControl;
use crate::nbd;
use crate::panics;
use crate::policies::{self, Plugins};
use crate::runtime::ring::{DriverChoice, DriverReport, NoDriver, Ring};
use crate::runtime::shard::{
    Beat, Entrance, IdList, IdRequest, Mailbox, Message, PolicySwitch, RawShape, Shard, ShardError,
    ShardStatus, Shared, UnitBlocks, Wanted,
};
use crate::sockets::SocketFile;
use crate::tls::{self, TlsError};
use crate::vestibule::Vestibule;
use ftl::MountReport;
use ftl::policy::stream::Shape;
use ftl::raw::ids::IdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Entries of a shard's ring.
const RING_ENTRIES: u32 = 256;

/// Why a server cannot start or had to stop.
#[derive(Debug)]
pub enum ServeError {
    /// The device.
    Device(DeviceError),
    /// A socket.
    Listen {
        /// Its address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// Certificate or key.
    Tls(TlsError),
    /// The system.
    System {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// Volumes of the config and of the device differ.
    Volumes(String),
    /// A module of the config, or a policy of it.
    Plugin(String),
    /// Another server has opened the device.
    Lost(String),
    /// The device's files do not say that it was stopped well.
    NotClosed(DeviceError),
    /// The system allows too few open files.
    Descriptors(String),
    /// A shard has no way to the kernel.
    Driver {
        /// Which.
        shard: usize,
        /// What is missing.
        error: NoDriver,
    },
    /// A shard's thread failed.
    Shard {
        /// Which.
        shard: usize,
        /// How.
        reason: String,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Listen { address, reason } => write!(f, "{address}: {reason}"),
            Self::Tls(error) => error.fmt(f),
            Self::NotClosed(error) => {
                write!(f, "the device could not be marked as stopped well: {error}")
            }
            Self::System { doing, error } => write!(f, "cannot {doing}: {error}"),
            Self::Volumes(reason)
            | Self::Plugin(reason)
            | Self::Lost(reason)
            | Self::Descriptors(reason) => f.write_str(reason),
            Self::Driver { shard, error } => write!(f, "shard {shard} cannot start: {error}"),
            Self::Shard { shard, reason } => write!(f, "shard {shard} failed: {reason}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<DeviceError> for ServeError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<TlsError> for ServeError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error)
    }
}

/// A running server.
pub struct Server {
    shared: Arc<Shared>,
    living: Arc<VolumesControl>,
    settled: Arc<[u32]>,
    plugins: Arc<Plugins>,
    threads: Vec<JoinHandle<Result<(), ShardError>>>,
    http: Option<control::Http>,
    ready: Ready,
    /// Who serves hypervisors.
    guests: Guests,
    /// Removed at the end.
    sockets: Vec<SocketFile>,
    fast: Arc<FastControl>,
    history: Arc<control::History>,
}

/// What clients need to know.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Where NBD clients connect, without the export's name, one per listener.
    pub nbd: Vec<String>,
    /// Where NVMe hosts connect, and by which name: the service with volumes, then discovery alone.
    pub nvme: Option<(String, Vec<SocketAddr>)>,
    /// Where hypervisors find a volume as a disk of a guest (vhost-user): its name, and the socket.
    pub vhost: Vec<(String, PathBuf)>,
    /// Where the HTTP API is.
    pub http: Option<SocketAddr>,
    /// The socket for whoever changes the server.
    pub control: Option<PathBuf>,
    /// What is exported.
    pub volumes: Vec<Volume>,
    /// The shape of raw units, if they are exported.
    pub raw: Option<RawShape>,
    /// What each shard's mount found.
    pub mounts: Vec<MountReport>,
    /// How the device was opened.
    pub restart: Restart,
}

impl Server {
    /// Opens (or makes) the device, mounts it, and serves it.
    pub fn start(config: &Config) -> Result<Self, ServeError> {
        Self::start_from(config, |config| {
            let device = open_or_make(config)?;
            let config = to_be_read(config, &device.places().0, device.impaired());
            let settings = config.device.core_settings(&config.ftl);
            let settings = settings.with_read_only(config.ftl.read_only);
            let settings = settings.with_blocks_min(device.logical_blocks());
            let source = Source::of_device(device, &settings);
            Ok((config, source))
        })
    }

    /// Serves what `open` opens, with the config that it says.
    pub(crate) fn start_from(
        config: &Config,
        open: impl FnOnce(&Config) -> Result<(Config, Source), ServeError>,
    ) -> Result<Self, ServeError> {
        let begun = std::time::Instant::now();
        let tls = config.nbd.tls.as_ref().map(tls::load).transpose()?;
        // What may be refused comes first: no device is touched for a server that cannot serve it.
        let mut doors = Doors::bind(config)?;
        checks::before_opening(config)?;
        let plugins = load_plugins(config)?;
        let rules = control::Rules::of(config.http.as_ref())?;
        let (opened, mut source) = open(config)?;
        let config = &opened;
        let mounted = mount_before(&mut source, &doors, tls.is_some(), config.driver)?;
        source.commit(mounted.iter().map(|mounted| &mounted.found.report))?;
        let refused = refused(&mounted, config);
        let mut config = to_be_read(config, &source.places.0, &refused);
        let impaired = [source.impaired(), &refused].concat();
        let restart = restart(&source, &mounted, begun.elapsed(), impaired);
        tracing::info!("{restart}");
        log_drivers(&mounted);
        let mounted_with = config.ftl.clone();
        let (offered, table) = exports::offer(&mounted[0].found, source.split, &mut config)?;
        let config = &config;
        let (volumes, raw) = (offered.volumes.clone(), mounted[0].found.raw);
        let clients = clients_max(config)?;
        let port = doors.nvme_addresses.first().map_or(0, SocketAddr::port);
        let uuid = mounted[0].found.report.uuid;
        let flash = (raw.as_ref(), mounted[0].found.band_blocks);
        let subsystem = hosts::subsystem(config, &offered, (uuid, port, mounted.len()), flash)?;
        let mut shared = share(config, &source, offered, tls, (mounted.len(), clients))?;
        shared.nbd_doors = doors.nbd.len() as u32;
        shared.nvme = subsystem;
        shared.guests = Bells::new(doors.guests.len())?;
        let shared = Arc::new(shared);
        let blocks = source.split.device_blocks(mounted[0].found.report.logical_blocks);
        let ground = table.map(|table| (table, blocks, uuid));
        let settled = volumes::settled(config, &volumes, &mounted_with);
        let mounts = mounted.iter().map(|mounted| mounted.found.report.clone()).collect();
        let found: Vec<_> = mounted.iter().map(|mounted| mounted.found.snapshots.clone()).collect();
        let threads = set_going(mounted, &shared, doors.listeners());
        let living = volumes::living(&shared, config, (ground, source.device.is_some()), &found);
        let mut server = Self {
            ready: Ready {
                nbd: doors.nbd_addresses,
                nvme: shared.nvme.as_ref().map(|nvme| (nvme.nqn.clone(), doors.nvme_addresses)),
                vhost: config.guests.iter().map(|g| (g.volume.clone(), g.path.clone())).collect(),
                http: doors.http.tcp.as_ref().map(|(_, address)| *address),
                control: config.control.as_ref().map(|control| control.path.clone()),
                volumes,
                raw,
                mounts,
                restart,
            },
            shared,
            living: Arc::new(living),
            settled,
            plugins: Arc::new(plugins),
            threads,
            http: None,
            guests: Guests::default(),
            sockets: doors.files,
            fast: Arc::new(FastControl::new(source.device)),
            history: Arc::default(),
        };
        server.choose(&config.chosen)?;
        server.let_in(doors.guests, (doors.http, rules, clients))?;
        Ok(server)
    }

    /// Begins to serve hypervisors, and HTTP.
    fn let_in(
        &mut self,
        guests: Vec<GuestDoor>,
        (http, rules, clients): (control::Listeners, control::Rules, Clients),
    ) -> Result<(), ServeError> {
        self.guests = Guests::start(guests, &self.shared)?;
        self.http = Some(control::Http::start(http, rules, clients, self.control())?);
        Ok(())
    }

    /// Puts those policies in charge that are made of modules of the config.
    fn choose(&self, chosen: &[(String, String)]) -> Result<(), ServeError> {
        for (decision, name) in chosen {
            let switched = policies::switch(&self.control(), decision, name, "the config");
            switched.map_err(|error| ServeError::Plugin(error.to_string()))?;
        }
        Ok(())
    }

    /// What clients need to know.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// A handle to ask for status and to switch policies.
    pub fn control(&self) -> Control {
        Control {
            shared: Arc::clone(&self.shared),
            living: Arc::clone(&self.living),
            settled: Arc::clone(&self.settled),
            raw: self.ready.raw,
            plugins: Arc::clone(&self.plugins),
            fast: Arc::clone(&self.fast),
            history: Arc::clone(&self.history),
            doors: (self.ready.nbd.as_slice().into(), self.ready.nvme_address()),
            restart: Arc::new(self.ready.restart.clone()),
        }
    }

    /// Finishes what is in flight, makes everything durable and ends.
    pub fn shut_down(mut self) -> Result<(), ServeError> {
        self.control().shut_down();
        self.join()
    }

    /// Waits until the server has ended.
    pub fn join(&mut self) -> Result<(), ServeError> {
        let mut result = Ok(());
        for (shard, thread) in std::mem::take(&mut self.threads).into_iter().enumerate() {
            let reason = match thread.join() {
                Ok(Ok(())) => continue,
                Ok(Err(ShardError::Ring(driver, error))) => format!("{driver}: {error}"),
                Ok(Err(ShardError::NotDurable)) => {
                    "not everything could be made durable: see the log".into()
                }
                Ok(Err(ShardError::Lost(lost))) => {
                    result = Err(ServeError::Lost(lost.to_string()));
                    continue;
                }
                Err(_) => "it panicked: this is a bug in Weir".into(),
            };
            result = Err(ServeError::Shard { shard, reason });
        }
        self.http = None;
        self.guests.end();
        self.living.end();
        if result.is_ok() {
            result = self.fast.closed().map_err(ServeError::NotClosed);
        }
        self.sockets.clear();
        result
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.control().shut_down();
            if let Err(error) = self.join() {
                tracing::error!(%error, "the server did not end well");
            }
        }
    }
}

/// Asks a running server.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    living: Arc<VolumesControl>,
    settled: Arc<[u32]>,
    raw: Option<RawShape>,
    plugins: Arc<Plugins>,
    fast: Arc<FastControl>,
    history: Arc<control::History>,
    /// Where NBD clients connect.
    doors: (Arc<[String]>, Option<SocketAddr>),
    restart: Arc<Restart>,
}

impl Control {
    /// Begins the shutdown.
    pub fn shut_down(&self) {
        for mailbox in &self.shared.mailboxes {
            mailbox.push(Message::Shutdown);
        }
    }

    /// Shards of the server.
    pub fn shards(&self) -> usize {
        self.shared.mailboxes.len()
    }

    /// For each shard, the count of its turns.
    pub fn beats(&self) -> Vec<u64> {
        self.shared.beats.iter().map(Beat::count).collect()
    }

    /// Asks a shard for its state; `answer` runs on the shard's thread.
    pub fn status(
        &self,
        shard: usize,
        wanted: Wanted,
        answer: impl FnOnce(ShardStatus) + Send + 'static,
    ) {
        self.shared.mailboxes[shard].push(Message::Status(wanted, Box::new(answer)));
    }

    /// Asks for the raw blocks of a unit that hold something; `answer` runs on the shard's thread and
    /// gets `None` if there is no such unit.
    pub fn raw_blocks(&self, unit: u32, answer: impl FnOnce(Option<UnitBlocks>) + Send + 'static) {
        self.shared.mailboxes[0].push(Message::RawBlocks { unit, answer: Box::new(answer) });
    }

    /// The shape of raw units, if they are served.
    pub fn raw(&self) -> Option<RawShape> {
        self.raw
    }

    /// Bytes of request buffers that the server may have out.
    pub fn buffer_bytes_max(&self) -> usize {
        self.shared.buffer_bytes_max
    }

    /// Asks for a block by its ID.
    pub fn id(&self, request: IdRequest) {
        self.shared.mailboxes[0].push(Message::Id(request));
    }

    /// Asks for at most `count` blocks after a number; `answer` runs on the shard's thread.
    pub fn list_ids(
        &self,
        after: Option<u64>,
        count: usize,
        answer: impl FnOnce(Result<IdList, IdError>) + Send + 'static,
    ) {
        let answer = Box::new(answer);
        self.shared.mailboxes[0].push(Message::IdList { after, count, answer });
    }

    /// The modules that policies may be made of.
    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// Asks a shard what the policies of a decision are made for, and whether the one called `name` can
    /// be; `answer` runs on its thread.
    pub fn shapes(
        &self,
        shard: usize,
        decision: &str,
        name: &str,
        answer: impl FnOnce(Result<Vec<Shape>, String>) + Send + 'static,
    ) {
        let (decision, name, answer) = (decision.into(), name.into(), Box::new(answer));
        self.shared.mailboxes[shard].push(Message::Shapes { decision, name, answer });
    }

    /// How the device was opened.
    pub fn restart(&self) -> &Restart {
        &self.restart
    }

    /// What the server did in the last hour and day.
    pub(crate) fn history(&self) -> &control::History {
        &self.history
    }

    /// Where the device is and who it is, if it has a folder that may be written.
    pub(crate) fn folder(&self) -> Option<(PathBuf, u128)> {
        self.fast.folder()
    }

    /// Where NBD clients connect, as in [`Ready::nbd`], and NVMe hosts.
    pub(crate) fn doors(&self) -> &(Arc<[String]>, Option<SocketAddr>) {
        &self.doors
    }

    /// What is known of the fast tier.
    pub fn fast(&self) -> &Arc<FastControl> {
        &self.fast
    }

    /// Tells every shard something.
    pub(crate) fn tell_all(&self, message: impl Fn() -> Message) {
        for mailbox in &self.shared.mailboxes {
            mailbox.push(message());
        }
    }

    /// Puts policies in charge on one shard.
    pub fn switch(&self, shard: usize, switch: PolicySwitch) {
        self.shared.mailboxes[shard].push(Message::Policy(switch));
    }
}

fn open_or_make(config: &Config) -> Result<Device, DeviceError> {
    let in_memory = matches!(config.device.kind, Kind::Memory { .. });
    // To make one would be to write: what is to be looked at must be there.
    if !Device::exists(&config.device.kind) && (in_memory || !config.ftl.read_only) {
        let device = Device::create(&config.device, &config.ftl)?;
        return Ok(device.dilate(config.device.dilate));
    }
    let mode = if config.ftl.read_only { Mode::ReadOnly } else { Mode::ReadWrite };
    let device = crate::offline::open(&config.device, &config.ftl, mode)?;
    device.expect_mode(&config.device)?;
    Ok(device.dilate(config.device.dilate))
}

/// The config, and that nothing is written where nothing may be, for these reasons.
fn to_be_read(config: &Config, place: &str, impaired: &[String]) -> Config {
    let mut config = config.clone();
    for why in impaired {
        tracing::warn!("{place}: READ-ONLY: {why}");
        config.ftl.read_only = true;
    }
    config
}

/// Why shards that could be written are mounted to be read only: what damage left of them is told in full
/// by the warnings of each.
fn refused(mounted: &[Mounted], config: &Config) -> Vec<String> {
    let shards: Vec<_> =
        (0..mounted.len()).filter(|&shard| mounted[shard].found.read_only).collect();
    let told = config.ftl.read_only || shards.is_empty();
    let name = |shard: &usize| format!("shard {shard}");
    let names: Vec<_> = shards.iter().map(name).collect();
    let why = || format!("damage left blocks that are refused in {}", names.join(", "));
    (!told).then(why).into_iter().collect()
}

type Go = (Arc<Shared>, Vec<OwnedFd>);

/// What a shard's mount found.
pub(crate) struct Found {
    /// Its way to the kernel.
    pub driver: DriverReport,
    pub report: MountReport,
    /// What kept memory did for it.
    pub kept: KeptCounts,
    /// The shape of raw units, if these are.
    pub raw: Option<RawShape>,
    /// Nothing may be written, whoever wants that so.
    pub read_only: bool,
    /// Logical blocks of a band.
    pub band_blocks: u32,
    /// The numbers of its snapshots.
    pub snapshots: Vec<u32>,
}

/// A shard that has mounted and waits to serve.
struct Mounted {
    found: Found,
    go: mpsc::Sender<Go>,
    thread: JoinHandle<Result<(), ShardError>>,
}

/// Lets the shards serve: the first accepts clients of the listeners.
fn set_going(
    mounted: Vec<Mounted>,
    shared: &Arc<Shared>,
    mut listeners: Vec<OwnedFd>,
) -> Vec<JoinHandle<Result<(), ShardError>>> {
    let set_going = |mounted: Mounted| {
        // The thread waits for this since it has mounted; if it is gone, `join` tells why.
        mounted.go.send((Arc::clone(shared), std::mem::take(&mut listeners))).ok();
        mounted.thread
    };
    mounted.into_iter().map(set_going).collect()
}

/// Mounts what is opened. Whoever comes while that waits for long is told so.
fn mount_before(
    source: &mut Source,
    doors: &Doors,
    has_tls: bool,
    driver: DriverChoice,
) -> Result<Vec<Mounted>, ServeError> {
    let vestibule = source.waits.take().map(|waits| Vestibule::open(&doors.nbd, has_tls, waits));
    let doing = "let NBD clients hear what the volume waits for";
    let vestibule = vestibule.transpose().map_err(|error| ServeError::System { doing, error })?;
    let mounted = mount_all(std::mem::take(&mut source.starters), driver);
    drop(vestibule);
    mounted
}

fn mount_all(starters: Vec<Starter>, driver: DriverChoice) -> Result<Vec<Mounted>, ServeError> {
    let mut starting = Vec::new();
    for (shard, starter) in starters.into_iter().enumerate() {
        let (report_sender, report) = mpsc::channel();
        let (go, go_receiver) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("shard-{shard}"))
            .spawn(move || {
                panics::end_the_process();
                let ring = match Ring::new(RING_ENTRIES, driver) {
                    Ok(ring) => ring,
                    Err(error) => {
                        // Nobody listening means that the server has given up already.
                        report_sender.send(Err(MountFailure::Driver(error))).ok();
                        return Ok(());
                    }
                };
                shard_thread((shard, ring), starter, report_sender, go_receiver)
            })
            .map_err(|error| ServeError::System { doing: "start a thread", error })?;
        starting.push((report, go, thread));
    }
    let mut mounted = Vec::new();
    for (shard, (report, go, thread)) in starting.into_iter().enumerate() {
        match report.recv() {
            Ok(Ok(found)) => {
                if let Some(what) = found.report.damage() {
                    tracing::warn!(shard, "{what}");
                }
                match &found.report.rebuilt {
                    Some(rebuilt) if rebuilt.is_damage() => tracing::warn!(shard, "{rebuilt}"),
                    Some(rebuilt) => tracing::info!(shard, "{rebuilt}"),
                    None => {}
                }
                mounted.push(Mounted { found, go, thread });
            }
            Ok(Err(MountFailure::Device(reason))) => {
                return Err(DeviceError::Mount { shard, reason }.into());
            }
            Ok(Err(MountFailure::Driver(error))) => {
                return Err(ServeError::Driver { shard, error });
            }
            Err(_) => {
                let reason = "it panicked while mounting: this is a bug in Weir".into();
                return Err(ServeError::Shard { shard, reason });
            }
        }
    }
    Ok(mounted)
}

/// Says which way to the kernel the shards have got; once, if all have the same.
fn log_drivers(mounted: &[Mounted]) {
    let mut told: Vec<&DriverReport> = Vec::new();
    for driver in mounted.iter().map(|mounted| &mounted.found.driver) {
        if told.contains(&driver) {
            continue;
        }
        told.push(driver);
        match driver.lesser {
            true => tracing::warn!("the server uses {driver}"),
            false => tracing::info!("the server uses {driver}"),
        }
    }
}

/// Why a shard could not mount.
enum MountFailure {
    Driver(NoDriver),
    Device(String),
}

fn shard_thread(
    (shard, mut ring): (usize, Ring),
    starter: Starter,
    report: mpsc::Sender<Result<Found, MountFailure>>,
    go: mpsc::Receiver<Go>,
) -> Result<(), ShardError> {
    let (mut engine, clock, mounted) = match starter(&mut ring) {
        Ok(started) => started,
        Err(reason) => {
            // Nobody listening means that the server has given up already.
            report.send(Err(MountFailure::Device(reason))).ok();
            return Ok(());
        }
    };
    let kept = engine.medium.end_mount();
    let (raw, driver) = (engine.raw_shape(), ring.report().clone());
    let read_only = engine.core.is_read_only();
    let band_blocks = engine.medium.geometry().slots_per_block();
    let snapshots = engine.core.snapshots();
    let found = Found { driver, report: mounted, kept, raw, read_only, band_blocks, snapshots };
    report.send(Ok(found)).ok();
    let Ok((shared, listeners)) = go.recv() else {
        // No word: another shard could not mount, or the volumes do not fit.
        ring.free(engine);
        return Ok(());
    };
    let mut alarm = Alarm { shared: Arc::clone(&shared), armed: true };
    let shard = Shard::new(shard, shared, ring, engine, clock, listeners);
    let result = shard.run();
    alarm.armed = result.is_err();
    result
}

/// Ends the other shards when this one fails by an error: they cannot serve without it. (A panic ends the
/// process.)
struct Alarm {
    shared: Arc<Shared>,
    armed: bool,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if self.armed {
            self.shared.fail();
        }
    }
}

fn load_plugins(config: &Config) -> Result<Plugins, ServeError> {
    let plugins = Plugins::new(Compiler::new(config.compiler.clone()));
    for plugin in &config.plugins {
        plugins.load_file(plugin).map_err(ServeError::Plugin)?;
    }
    Ok(plugins)
}

fn share(
    config: &Config,
    source: &Source,
    offered: Offered,
    tls: Option<Arc<rustls::ServerConfig>>,
    (shards, clients): (usize, Clients),
) -> Result<Shared, ServeError> {
    let mut mailboxes = Vec::new();
    for _ in 0..shards {
        let mailbox = Mailbox::new();
        mailboxes
            .push(mailbox.map_err(|error| ServeError::System { doing: "make an eventfd", error })?);
    }
    Ok(Shared {
        split: source.split,
        offered: RwLock::new(Arc::new(offered)),
        limits_since: std::time::Instant::now(),
        lacking: Mutex::default(),
        tls,
        nvme: None,
        guests: Bells::default(),
        nbd_doors: 0,
        limits: nbd::Limits { handshake_ns: config.nbd.handshake_ns, ..nbd::Limits::default() },
        buffer_bytes_max: config.nbd.buffer_bytes_max,
        busy_poll_ns: busy_poll_ns(config, shards),
        losses: config.device.losses,
        injections: config.device.injections,
        bounds: config.bounds,
        places: source.places.clone(),
        entrance: Arc::new(Entrance::new(clients.nbd, clients.newcomers)),
        tcp_patience: Duration::from_nanos(config.nbd.tcp_timeout_ns),
        mailboxes,
        drained: AtomicUsize::new(0),
        beats: (0..shards).map(|_| Beat::default()).collect(),
    })
}

/// A shard may look for work awake only where its clients have a processor beside the shards'.
fn busy_poll_ns(config: &Config, shards: usize) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if processors > shards { config.nbd.busy_poll_ns } else { 0 }
}
