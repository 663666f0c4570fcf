//! Weir's own control plane as a process: one thread has the plane and its log, another one all connections.
//!
//! Invariants: no answer leaves before what it rests on is durable. What a client may have waiting is bounded, in
//! messages and in bytes; one that does not take its answers is cut off, and so is nobody else. Where the log cannot
//! be written the plane ends: what was acknowledged is in it.

use super::super::PoolError;
use super::super::config::{PartConfig, PlaneAt};
use super::super::doors::{self, Doors, runtime, thread};
use super::super::frames::FrameError;
use super::super::tls;
use super::log::LogFile;
use flash::Instant;
use pool::control::contract::{Change, Check, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store, Told};
use pool::control::keys;
use pool::control::values::{FORMAT, PoolRecord, Value};
use pool::control::wire::{Hello, Message, shorten};
use pool::words::PoolId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// What the time is: a test may be in a hurry.
pub(super) type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// A plane that serves, until it is dropped or fails.
pub struct PlaneServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    core: Option<JoinHandle<Result<(), PoolError>>>,
    net: Option<JoinHandle<()>>,
}

impl PlaneServer {
    /// Opens the log, or begins one, and listens.
    ///
    /// # Errors
    /// The place, why not, and what to do.
    pub fn start(config: &PartConfig) -> Result<Self, PoolError> {
        let begun = std::time::Instant::now();
        Self::start_by(config, Arc::new(move || Instant(begun.elapsed().as_nanos() as u64)))
    }

    pub(super) fn start_by(config: &PartConfig, clock: Clock) -> Result<Self, PoolError> {
        let PlaneAt::Embedded(address) = config.plane.at else {
            return Err(PoolError::Plane {
                place: "plane.etcd".to_owned(),
                reason: "etcd is this pool's control plane: nothing else is to be served"
                    .to_owned(),
            });
        };
        let address = config.plane.listen.unwrap_or(address);
        let identity = tls::load(&config.identity, config.pool)?;
        let (log, plane) = LogFile::open(&config.plane.data, config.pool, clock())?;
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let (stop, stopped) = oneshot::channel();
        let mut core = Core { plane, log, clients: BTreeMap::new(), joined: Vec::new(), clock };
        core.begin(config.pool)?;
        let (net_runtime, core_runtime) = (runtime()?, runtime()?);
        let (listener, address) = doors::listen(&net_runtime, address)?;
        let (pool, clients_max) = (config.pool, config.plane.clients_max);
        let doors = Doors { pool, identity, what: "the control plane", clients_max };
        let core = thread("plane", move || core_runtime.block_on(core.run(events)))?;
        let net = thread("plane-net", move || {
            net_runtime.block_on(async {
                tokio::select! {
                    () = doors.open(listener, move |client, from, out| serve(client, from, out, to.clone())) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), core: Some(core), net: Some(net) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until it fails.
    ///
    /// # Errors
    /// Why it failed.
    pub fn join(mut self) -> Result<(), PoolError> {
        let core = self.core.take().expect("taken once");
        core.join().expect("the plane's thread does not panic")
    }
}

impl Drop for PlaneServer {
    /// As sudden as the end of the process, and as harmless.
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            stop.send(()).ok();
        }
        if let Some(net) = self.net.take() {
            net.join().ok();
        }
        // Without connections there are no events, and it has ended, too.
        if let Some(core) = self.core.take() {
            core.join().ok();
        }
    }
}

/// Serves until a signal. `ready` hears where.
///
/// # Errors
/// As [`PlaneServer::start`], or why it failed later.
pub fn run(config: &PartConfig, ready: impl FnOnce(SocketAddr)) -> Result<(), PoolError> {
    crate::signals::end_the_process()
        .map_err(|error| PoolError::System { doing: "wait for signals", error })?;
    let server = PlaneServer::start(config)?;
    ready(server.address());
    server.join()
}

/// Asks that wait for the plane, of all clients.
const EVENTS_MAX: usize = 1024;
/// Bytes of answers that wait for one client: a largest one, and as much again.
const OUT_BYTES_MAX: usize = 40 << 20;

/// What happens at a connection.
enum Event {
    Joined { client: u64, out: Outbox },
    Asked { client: u64, id: PlaneAskId, ask: PlaneAsk },
    Gone { client: u64 },
}

/// Takes bytes for a client. Without one, its connection ends.
struct Outbox {
    to: mpsc::UnboundedSender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    /// The connection ends when this goes, whatever is still to be written.
    _alive: oneshot::Sender<()>,
}

impl Outbox {
    /// `false`: the client takes too little, or is gone.
    fn put(&self, message: &Message) -> bool {
        let bytes = match message.encode() {
            Ok(bytes) => bytes,
            // More changed at once than a message can tell: whoever watches looks anew.
            Err(_) => return false,
        };
        let waiting = self.waiting.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        waiting <= OUT_BYTES_MAX && self.to.send(bytes).is_ok()
    }
}

/// The thread that has the plane.
struct Core {
    plane: Embedded,
    log: LogFile,
    clients: BTreeMap<u64, Outbox>,
    /// They hear how far the plane has come when all of that is durable.
    joined: Vec<(u64, Outbox)>,
    clock: Clock,
}

impl Core {
    /// Stores that the plane was started, and in a new one which pool it is.
    fn begin(&mut self, pool: PoolId) -> Result<(), PoolError> {
        let key = keys::POOL.to_owned();
        let value = PoolRecord { pool, format: FORMAT }.encode(&key);
        let checks = vec![Check { key: key.clone(), revision: 0 }];
        let changes = vec![Change::Put { key, value, lease: None }];
        let ask = PlaneAsk::Commit { checks, changes };
        // Nobody has this number, and it does not matter whether the key was there.
        let own = PlaneInput::Ask { client: 0, id: PlaneAskId(0), ask };
        self.plane.handle((self.clock)(), own);
        self.settle()
    }

    async fn run(mut self, mut events: mpsc::Receiver<Event>) -> Result<(), PoolError> {
        loop {
            let wait = self.plane.deadline().map_or(u64::MAX, |at| at.0.saturating_sub(self.now()));
            let wait = Duration::from_nanos(wait.min(3600 * flash::SECOND));
            let first = match timeout(wait, events.recv()).await {
                Ok(Some(event)) => Some(event),
                Ok(None) => return Ok(()),
                Err(_) => None,
            };
            self.plane.handle(Instant(self.now()), PlaneInput::Deadline);
            let more = std::iter::from_fn(|| events.try_recv().ok());
            // One write of the log for all that waits.
            let batch: Vec<Event> = first.into_iter().chain(more.take(BATCH_MAX)).collect();
            for event in batch {
                self.take(event);
            }
            self.settle()?;
        }
    }

    fn now(&self) -> u64 {
        (self.clock)().0
    }

    fn take(&mut self, event: Event) {
        let now = Instant(self.now());
        match event {
            Event::Joined { client, out } => self.joined.push((client, out)),
            Event::Asked { client, id, ask } => {
                self.plane.handle(now, PlaneInput::Ask { client, id, ask });
            }
            Event::Gone { client } => {
                self.clients.remove(&client);
                self.joined.retain(|(of, _)| *of != client);
                self.plane.handle(now, PlaneInput::Gone { client });
            }
        }
    }

    /// Stores and tells until the plane has nothing more to say.
    fn settle(&mut self) -> Result<(), PoolError> {
        loop {
            let (mut stores, mut last) = (Vec::new(), None);
            while let Some(output) = self.plane.poll() {
                match output {
                    PlaneOutput::Answer(told) => self.tell(told),
                    PlaneOutput::Store(store) => {
                        let (Store::Append { sequence, .. } | Store::Replace { sequence, .. }) =
                            &store;
                        last = Some(*sequence);
                        stores.push(store);
                    }
                }
            }
            let Some(sequence) = last else { break };
            self.log.store(stores)?;
            self.log.reached(self.plane.revision());
            self.plane.handle(Instant(self.now()), PlaneInput::Stored { sequence });
        }
        for (client, out) in std::mem::take(&mut self.joined) {
            let pool = self.plane.pool();
            let hello = Hello { pool, name: "plane".to_owned(), plane: Some(self.plane.facts()) };
            if out.put(&Message::Hello(hello)) {
                self.clients.insert(client, out);
            }
        }
        Ok(())
    }

    fn tell(&mut self, told: Told) {
        let Told { client, id, mut answer } = told;
        let Some(out) = self.clients.get(&client) else { return };
        if let PlaneAnswer::Values { .. } = answer {
            shorten(&mut answer);
        }
        if !out.put(&Message::Answer { id, answer }) {
            tracing::warn!(client, "a client of the control plane takes too little: it is cut off");
            self.clients.remove(&client);
        }
    }
}

/// Events that share one write of the log.
const BATCH_MAX: usize = 256;

/// Serves one connection.
async fn serve(
    client: u64,
    from: doors::From,
    to: doors::To,
    events: mpsc::Sender<Event>,
) -> Result<(), FrameError> {
    let (out, bytes) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let (alive, cut_off) = oneshot::channel();
    let out = Outbox { to: out, waiting: Arc::clone(&waiting), _alive: alive };
    tell(&events, Event::Joined { client, out }).await?;
    let ended = tokio::select! {
        ended = read(client, from, &events) => ended,
        ended = write_answers(to, bytes, &waiting) => ended,
        _ = cut_off => Err(FrameError::Ended),
    };
    tell(&events, Event::Gone { client }).await?;
    ended
}

async fn read(
    client: u64,
    mut from: doors::From,
    events: &mpsc::Sender<Event>,
) -> Result<(), FrameError> {
    loop {
        match from.next().await? {
            Message::Ask { id, ask } => tell(events, Event::Asked { client, id, ask }).await?,
            _ => return Err(FrameError::Ended),
        }
    }
}

async fn tell(events: &mpsc::Sender<Event>, event: Event) -> Result<(), FrameError> {
    // The plane has ended, and all connections do.
    events.send(event).await.map_err(|_| FrameError::Ended)
}

async fn write_answers(
    mut to: impl AsyncWrite + Unpin,
    mut from: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: &AtomicUsize,
) -> Result<(), FrameError> {
    while let Some(bytes) = from.recv().await {
        to.write_all(&bytes).await?;
        waiting.fetch_sub(bytes.len(), Ordering::Relaxed);
        if from.is_empty() {
            to.flush().await?;
        }
    }
    // The plane cut this client off.
    Err(FrameError::Ended)
}
