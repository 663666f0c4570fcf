//! The parts of a pool that serve data, as processes: a node with its drive, and a client that serves a volume by the
//! front ends of the server.

mod config;
mod growth;
mod handle;

pub use config::{NodeConfig, VolumeConfig};
pub use handle::ask;

use super::PoolError;
use super::config::PlaneConfig;
use super::controller::ReportLink;
use super::follower::{Heard, follow};
use super::node::{self, NodeOptions, NodeStatus, Notice as NodeNotice};
use super::plane::{PlaneCalls, PlaneLink};
use super::reach::Caller;
use super::volume::{self, Notice, VolumeOptions, VolumeStatus};
use super::{drives, records, tls};
use crate::backend::Source;
use crate::device::VolumeOptions as Exported;
use crate::runtime::shard::{Mailbox, Wanted};
use crate::server::{Ready, ServeError, Server};
use crate::signals::Stopper;
use crate::vestibule::Waits;
use crate::volume::Split;
use flash::SECOND;
use growth::Growth;
use pool::control::values::{NodeRecord, NodeState, VolumeRecord};
use pool::controller::weights::Weights;
use pool::controller::{NodeSeen, Redundancy, Room, VolumeSeen};
use pool::node::NodeSettings;
use pool::node::congestion::{Expectation, ExpectedTail, Load};
use pool::node::raw::RawStoreSettings;
use pool::profile::{LoadModel, Profile, Slo};
use pool::words::{Mode, NodeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Who does not say how it does for so long is reported on the next time.
const STATUS_WITHIN: Duration = Duration::from_secs(1);

/// What a node may take to stop.
const STOP_NS: u64 = 60 * SECOND;

/// Serves a node until a signal. `ready` hears where it listens.
///
/// # Errors
/// Why it cannot, or had to end.
pub fn run_node(config: &NodeConfig, ready: impl FnOnce(SocketAddr)) -> Result<(), PoolError> {
    let stopper = Stopper::new(STOP_NS)?;
    let plane = config.part.plane()?;
    let link = PlaneLink::connect(&plane, |_, _| ())?;
    let tls = (Arc::clone(&plane.identity.client), tls::server_name(plane.pool));
    let name = format!("node {}", config.node.0);
    let mut calls = PlaneCalls::connect(&plane)?;
    let mut known = drives::look(&mut calls, config.node, &config.server.device.kind)?;
    let options = NodeOptions {
        node: config.node,
        caller: Caller { pool: plane.pool, name, tls: Some(tls) },
        tls: Some(Arc::clone(&plane.identity.server)),
        listen: config.listen,
        guests_max: config.guests_max,
        device: config.server.device.clone(),
        store: RawStoreSettings::default(),
        settings: NodeSettings::default(),
        expectation: expectation(config.profile.as_ref())?,
        driver: config.server.driver,
    };
    let running = node::start(options, |device| known.note(&mut calls, device.age()))?;
    let reports = ReportLink::new(&link, &plane)?;
    if let Some(profile) = &config.profile {
        reports.report_profile(config.node, profile);
    }
    let (me, hears, reports_by) = (config.node, running.mailbox(), running.mailbox());
    let mut given_up = GivenUp::default();
    let hear = move |heard| match heard {
        Heard::Nodes(nodes) => {
            if let Some(told) = given_up.look(me, &nodes) {
                tracing::warn!("{told}");
            }
            let counts = nodes.into_iter().filter(|record| record.state.counts());
            let addresses = counts.map(|record| (record.node, record.address)).collect();
            hears.push(NodeNotice::Addresses(addresses));
        }
        Heard::Weights(weights) => {
            hears.push(NodeNotice::Mode(mode_of(&weights, me), weights.valid_ns))
        }
        Heard::Deleted(deleted) => hears.push(NodeNotice::Deleted(deleted)),
    };
    let worn = Arc::new(handle::Worn::default());
    let (mut before, passes_for) = (None, Arc::clone(&worn));
    let report = move |reports: &ReportLink| {
        let Some(status) = node::status(&reports_by, STATUS_WITHIN) else { return Vec::new() };
        let mut seen = seen(&status, &mut before);
        seen.wear = seen.wear.max(passes_for.share());
        reports.report_node(me, seen);
        status.volumes
    };
    follow(&link, reports, hear, report)?;
    let _control = match &config.control {
        Some(path) => Some(handle::node(path, running.mailbox(), worn)?),
        None => None,
    };
    let stops = running.mailbox();
    stopper.stops(move || stops.push(NodeNotice::Stop));
    ready(running.address);
    let age = running.join()?;
    // If that is not noted, the next start takes it for one that was killed.
    if let Err(error) = known.note(&mut calls, age) {
        tracing::info!(%error, "the control plane does not know that the node was stopped well");
    }
    Ok(())
}

/// Whether the log of a node tells that its pool has given it up.
#[derive(Default)]
struct GivenUp {
    told: bool,
}

impl GivenUp {
    /// What to tell now that the records of nodes are these.
    fn look(&mut self, me: NodeId, nodes: &[NodeRecord]) -> Option<String> {
        let record = nodes.iter().find(|record| record.node == me)?;
        let is_out = !record.state.counts();
        let was_told = std::mem::replace(&mut self.told, is_out);
        if !is_out || was_told {
            return None;
        }
        let by = match record.state {
            NodeState::ReplacedBy(other) => format!(", and node {} has its place", other.0),
            _ => String::new(),
        };
        Some(format!(
            "the pool has given node {} up (`weir pool replace`){by}: what is on its drive counts no more, and no volume \
             writes to it. To have the drive used again, stop this node, format the drive and let it join under a new number (`node.id`, a \
             certificate of that number by `weir pool certs`, then `weir pool join`)",
            me.0
        ))
    }
}

fn mode_of(weights: &Weights, node: NodeId) -> Mode {
    weights.nodes.iter().find(|of| of.node == node).map_or(Mode::Mixed, |of| of.mode)
}

/// What the profile of a drive promises at a load; without one only what is slow for any drive is congestion.
fn expectation(profile: Option<&Profile>) -> Result<Expectation, PoolError> {
    let Some(profile) = profile else { return Ok(Box::new(|_| ExpectedTail::default())) };
    let model = LoadModel::new(profile, Slo::default(), 1.0).map_err(|error| PoolError::File {
        path: profile.name.clone().into(),
        reason: error.to_string(),
    })?;
    Ok(Box::new(move |load: Load| {
        let ns = (model.expected(load.reads_per_s, load.writes_per_s) * 1e3) as u64;
        ExpectedTail { read_ns: ns, write_ns: ns }
    }))
}

/// What the controller hears of a node: what it did since `before`.
fn seen(status: &NodeStatus, before: &mut Option<(std::time::Instant, node::Blocks)>) -> NodeSeen {
    let now = std::time::Instant::now();
    let (at, done) = before.replace((now, status.done)).unwrap_or((now, status.done));
    let elapsed = (now - at).as_secs_f64().max(1e-3);
    let a_second = |new: u64, old: u64| new.saturating_sub(old) as f64 / elapsed;
    NodeSeen {
        reads: a_second(status.done.reads, done.reads),
        writes: a_second(status.done.writes, done.writes),
        rejected: 0.0,
        tail_us: status.tail_ns as f64 / 1e3,
        wear: status.worn(),
        room: Some(Room {
            bands: status.facts.bands,
            used: status.facts.bands_used,
            pages: status.facts.band_pages,
        }),
    }
}

/// Serves a volume until a signal.
///
/// # Errors
/// Why it cannot, or had to end.
pub fn run_volume(config: &VolumeConfig, ready: impl FnOnce(&Ready)) -> Result<(), PoolError> {
    let plane = config.part.plane()?;
    let stopper = Stopper::new(config.server.bounds.stop_ns)?;
    let link = PlaneLink::connect(&plane, |_, _| ())?;
    let reports = ReportLink::new(&link, &plane)?;
    let record = records::volume(&mut PlaneCalls::connect(&plane)?, &config.volume)?.record;
    let mailbox =
        Mailbox::new().map_err(|error| PoolError::System { doing: "make an eventfd", error })?;
    let mailbox = Arc::new(mailbox);
    // It is there while the volume is opened, to be asked what it waits for and told not to.
    let _control = config.control.as_ref().and_then(|path| {
        let listens = handle::volume(path, Arc::clone(&mailbox));
        listens.inspect_err(|error| tracing::warn!("{error}")).ok()
    });
    let mut served = serve_volume(config, plane, &record, &mailbox)?;
    let control = served.control();
    stopper.stops(move || control.shut_down());
    let hears = Arc::clone(&mailbox);
    let hear = move |heard| {
        if let Heard::Weights(weights) = heard {
            hears.push(Notice::Weights(weights));
        }
    };
    let mut reporter = VolumeReporter::new(record.volume, served.control(), Arc::clone(&mailbox));
    let report = move |reports: &ReportLink| {
        reporter.report(reports);
        // It is the session's to see that its own volume is deleted.
        Vec::new()
    };
    follow(&link, reports, hear, report)?;
    ready(served.ready());
    crate::notify::ready(served.ready(), served.control());
    Ok(served.join()?)
}

/// The server of a volume, by the front ends that its config says.
fn serve_volume(
    config: &VolumeConfig,
    plane: PlaneConfig,
    record: &VolumeRecord,
    mailbox: &Arc<Mailbox<Notice>>,
) -> Result<Server, ServeError> {
    let mut server = config.server.clone();
    let VolumeRecord { name, blocks, .. } = record.clone();
    let place = format!("volume {name} of pool {:032x}", plane.pool.0);
    server.device.volumes = vec![Exported { name, blocks, read_only: false }];
    server.ftl.relocation_blocks =
        server.ftl.relocation_blocks.max(pool::volume::settings().relocation_blocks);
    let options = VolumeOptions {
        plane,
        record: record.clone(),
        settings: server.ftl.clone(),
        client: config.name.clone(),
        go_on: config.go_on,
        repairs: config.repairs,
    };
    let source = Source {
        starters: vec![volume::starter(options, Arc::clone(mailbox))],
        split: Split::new(1),
        places: (place, String::new()),
        device: None,
        waits: Some(waits(record.name.clone(), mailbox)),
    };
    Server::start_from(&server, |config| Ok((config.clone(), source)))
}

/// What a client hears of a volume that is not open yet.
fn waits(name: String, mailbox: &Arc<Mailbox<Notice>>) -> Waits {
    let mailbox = Arc::clone(mailbox);
    Box::new(move || {
        let (send, answer) = mpsc::channel();
        // Whoever asked may not have waited for it.
        mailbox.push(Notice::Status(Box::new(move |status: VolumeStatus| drop(send.send(status)))));
        let waits = match answer.recv_timeout(STATUS_WITHIN) {
            Ok(status) => status.explains,
            Err(_) => "its client does not say what it waits for".into(),
        };
        format!("volume {name} is not open yet: {waits}")
    })
}

/// Tells the controller how a volume does, and its front ends if it has grown.
struct VolumeReporter {
    volume: pool::words::VolumeId,
    control: crate::Control,
    mailbox: Arc<Mailbox<Notice>>,
    at: std::time::Instant,
    before: BTreeMap<&'static str, u64>,
    growth: Growth,
}

impl VolumeReporter {
    fn new(
        volume: pool::words::VolumeId,
        control: crate::Control,
        mailbox: Arc<Mailbox<Notice>>,
    ) -> Self {
        let (at, before) = (std::time::Instant::now(), BTreeMap::new());
        Self { volume, control, mailbox, at, before, growth: Growth::default() }
    }

    fn report(&mut self, reports: &ReportLink) {
        let (send, answer) = mpsc::channel();
        self.control.status(0, Wanted::default(), move |status| drop(send.send(status)));
        let Ok(status) = answer.recv_timeout(STATUS_WITHIN) else { return };
        self.growth.look(&self.control, &status.core);
        let counters: BTreeMap<&'static str, u64> =
            status.core.counters().iter().copied().collect();
        let elapsed = self.at.elapsed().as_secs_f64().max(1e-3);
        let since = |name: &str| {
            let of = |all: &BTreeMap<&'static str, u64>| all.get(name).copied().unwrap_or(0);
            of(&counters).saturating_sub(of(&self.before)) as f64
        };
        let (reads, writes) = (since("host_blocks_read"), since("host_blocks_written"));
        let programmed = since("slots_programmed");
        let waf = if writes > 0.0 { (programmed / writes).max(1.0) } else { 1.0 };
        let progress = volume::repair(&self.mailbox, STATUS_WITHIN);
        let redundancy = progress.and_then(|progress| Redundancy::of(&progress));
        let (reads, writes) = (reads / elapsed, writes / elapsed);
        let seen = VolumeSeen { reads, writes, waf, redundancy };
        reports.report_volume(self.volume, seen);
        (self.at, self.before) = (std::time::Instant::now(), counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_once_that_it_was_given_up_and_what_to_do() {
        let record =
            |node, state| NodeRecord { node: NodeId(node), state, ..NodeRecord::default() };
        let mut given_up = GivenUp::default();
        let mut look =
            |state| given_up.look(NodeId(2), &[record(1, NodeState::Out), record(2, state)]);
        assert_eq!((look(NodeState::In), look(NodeState::Draining)), (None, None));
        let told = look(NodeState::Out).expect("it is told");
        assert!(told.contains("given node 2 up") && told.contains("weir pool join"), "{told}");
        assert_eq!(look(NodeState::Out), None);
        assert_eq!(look(NodeState::In), None);
        let told = look(NodeState::ReplacedBy(NodeId(7))).expect("it is told again");
        assert!(told.contains("node 7 has its place"), "{told}");
        assert_eq!(given_up.look(NodeId(9), &[]), None);
    }
}
