//! A node as a process: one drive of a pool, served to clients and other nodes over TCP. Any device of the server
//! will do that can be raw units (`device.mode = "raw"`).

mod drive;
mod guests;
pub mod label;
mod room;
mod server;
mod slowed;
#[cfg(test)]
pub(in crate::pool) mod tests;

pub use server::{Blocks, NodeEnd, NodeStatus, Notice};

use super::drives;
use super::reach::{Caller, Dialed, Reach};
use crate::device::{Age, Device, DeviceError, DeviceOptions, Mode};
use crate::medium::Medium;
use crate::panics;
use crate::runtime::ring::{DriverChoice, Ring};
use crate::runtime::shard::{Clock, CoreFormat, Mailbox};
use crate::server::ServeError;
use crate::sockets;
use drive::Drive;
use ftl::Settings;
use ftl::raw::RawFormat;
use guests::Guests;
use pool::node::congestion::Expectation;
use pool::node::raw::RawStoreSettings;
use pool::node::store::Found;
use pool::node::{Node, NodeSettings};
use pool::words::NodeId;
use room::Below;
use rustls::ServerConfig;
use server::NodeServer;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Entries of a node's ring.
const RING_ENTRIES: u32 = 256;

/// What a node is started with.
pub struct NodeOptions {
    /// Who it is.
    pub node: NodeId,
    /// How it calls others, and of which pool it is.
    pub caller: Caller,
    /// TLS of those who call it.
    pub tls: Option<Arc<ServerConfig>>,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Guests at a time.
    pub guests_max: usize,
    /// Its drive, made if it is not there.
    pub device: DeviceOptions,
    /// Of the store on it.
    pub store: RawStoreSettings,
    /// Bounds.
    pub settings: NodeSettings,
    /// What the profile of its drive promises.
    pub expectation: Expectation,
    /// The way to the kernel.
    pub driver: DriverChoice,
}

/// A node that serves.
pub struct RunningNode {
    /// Where it listens.
    pub address: SocketAddr,
    /// What its drive held.
    pub found: Found,
    mailbox: Arc<Mailbox<Notice>>,
    thread: Option<JoinHandle<Result<(), NodeEnd>>>,
    device: Device,
}

type Opened = Result<Found, String>;

/// Opens the drive, or makes it, and serves it, if `may_serve` does not say otherwise of that drive.
///
/// # Errors
/// Why not.
pub fn start<E: From<ServeError>>(
    options: NodeOptions,
    may_serve: impl FnOnce(&Device) -> Result<(), E>,
) -> Result<RunningNode, E> {
    let (running, go) = open(options)?;
    may_serve(&running.device)?;
    // The thread waits for this since its drive is open.
    go.send(()).ok();
    Ok(running)
}

/// Opens the drive, or makes it. It is served once its thread is sent something.
fn open(options: NodeOptions) -> Result<(RunningNode, mpsc::Sender<()>), ServeError> {
    let (listener, address) = sockets::listen_tcp(options.listen).map_err(|error| {
        let address = options.listen.to_string();
        ServeError::Listen { address, reason: format!("cannot listen: {error}") }
    })?;
    let mut device = open_or_make(&options.device)
        .map_err(|error| drives::without_backups(error, options.node))?;
    let medium = device.media.pop().expect("raw units have one shard");
    let format = device.formats.pop().map(|format| match format {
        CoreFormat::Raw(format) => {
            RawFormat { label: label::encode(options.caller.pool, options.node), ..format }
        }
        CoreFormat::Block(_) => unreachable!("the device is one of raw units"),
    });
    let system = |doing| move |error| ServeError::System { doing, error };
    let mailbox = Arc::new(Mailbox::new().map_err(system("make an eventfd"))?);
    let (tell, opened) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    let mine = Arc::clone(&mailbox);
    let place = device.places().0;
    let below = Below::new(place.clone());
    let thread = std::thread::Builder::new()
        .name(format!("node-{}", options.node.0))
        .spawn(move || {
            panics::end_the_process();
            node_thread(options, (medium, format, below), (listener, mine), &tell, &may_go)
        })
        .map_err(system("start a thread"))?;
    let failed = |reason| ServeError::Device(DeviceError::Options(format!("{place}: {reason}")));
    let found = opened.recv().unwrap_or_else(|_| Err("its thread is gone".into()));
    let found = found.map_err(failed)?;
    device.commit()?;
    Ok((RunningNode { address, found, mailbox, thread: Some(thread), device }, go))
}

fn open_or_make(options: &DeviceOptions) -> Result<Device, DeviceError> {
    if options.raw.is_none() {
        let reason = "device.mode: a node's drive is one of raw units: say mode = \"raw\"";
        return Err(DeviceError::Options(reason.into()));
    }
    let settings = Settings::default();
    if !Device::exists(&options.kind) {
        return Ok(Device::create(options, &settings)?.dilate(options.dilate));
    }
    let device = Device::open_as(options, (&settings, 0), Mode::ReadWrite)?;
    device.expect_mode(options)?;
    if let Some(why) = device.impaired().first() {
        let place = device.places().0;
        return Err(DeviceError::Options(format!(
            "{place}: nothing may be written to it, and a node writes who is fenced: {why}"
        )));
    }
    Ok(device.dilate(options.dilate))
}

fn node_thread(
    options: NodeOptions,
    (medium, format, below): (Medium, Option<RawFormat>, Below),
    (listener, mailbox): (OwnedFd, Arc<Mailbox<Notice>>),
    tell: &mpsc::Sender<Opened>,
    may_go: &mpsc::Receiver<()>,
) -> Result<(), NodeEnd> {
    let NodeOptions { node, caller, tls, guests_max, store, settings, expectation, driver, .. } =
        options;
    let mut ring = match Ring::new(RING_ENTRIES, driver) {
        Ok(ring) => ring,
        Err(error) => {
            // Nobody listening means that the node has given up already.
            tell.send(Err(error.to_string())).ok();
            return Ok(());
        }
    };
    let opened = Drive::open(medium, format, store, &mut ring);
    let (drive, found, now) = match opened {
        Ok((drive, found, now)) => match label::check(drive.store().label(), caller.pool, node) {
            Ok(()) => (drive, found, now),
            Err(reason) => {
                ring.free(drive);
                tell.send(Err(reason)).ok();
                return Ok(());
            }
        },
        Err(reason) => {
            tell.send(Err(reason)).ok();
            return Ok(());
        }
    };
    tell.send(Ok(found.clone())).ok();
    if may_go.recv().is_err() {
        ring.free(drive);
        return Ok(());
    }
    let node = Node::new(now, node, settings, found, expectation);
    let guests = Guests::new(caller.pool, tls, guests_max);
    let post = Arc::clone(&mailbox);
    let dialed = move |dialed: Dialed| post.push(Notice::Dialed(dialed));
    let reach = Reach::new(caller, Arc::new(dialed));
    let clock = Clock::starting_at(now);
    NodeServer::new((node, drive, below, clock), (guests, reach), ring, (listener, mailbox)).run()
}

/// How a node does; `None` if it does not say so in time.
pub fn status(mailbox: &Mailbox<Notice>, within: Duration) -> Option<NodeStatus> {
    let (send, answer) = mpsc::channel();
    mailbox.push(Notice::Status(Box::new(move |status| drop(send.send(status)))));
    answer.recv_timeout(within).ok()
}

impl RunningNode {
    /// Tells its thread something.
    pub fn tell(&self, notice: Notice) {
        self.mailbox.push(notice);
    }

    /// The way to its thread.
    pub fn mailbox(&self) -> Arc<Mailbox<Notice>> {
        Arc::clone(&self.mailbox)
    }

    /// How it does; `None` if it does not say.
    pub fn status(&self) -> Option<NodeStatus> {
        status(&self.mailbox, Duration::from_secs(5))
    }

    /// Waits until it has ended, and closes the device: where that is in its opens then.
    ///
    /// # Errors
    /// Why it ended before it was told to, or what is not durable.
    pub fn join(mut self) -> Result<Option<Age>, ServeError> {
        let Some(thread) = self.thread.take() else { return Ok(None) };
        let failed = |reason: String| ServeError::Shard { shard: 0, reason };
        match thread.join() {
            Ok(Ok(())) => {
                self.device.close().map_err(ServeError::NotClosed)?;
                Ok(self.device.age())
            }
            Ok(Err(NodeEnd::Lost(lost))) => Err(ServeError::Lost(lost.to_string())),
            Ok(Err(NodeEnd::NotDurable)) => {
                Err(failed("not everything could be made durable: see the log".into()))
            }
            Ok(Err(NodeEnd::Ring(driver, error))) => Err(failed(format!("{driver}: {error}"))),
            Err(_) => Err(failed("it panicked: this is a bug in Weir".into())),
        }
    }

    /// Stops it: what it has begun ends, and is durable.
    ///
    /// # Errors
    /// As [`RunningNode::join`].
    pub fn stop(self) -> Result<(), ServeError> {
        self.tell(Notice::Stop);
        self.join().map(drop)
    }
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.mailbox.push(Notice::Stop);
        }
    }
}
