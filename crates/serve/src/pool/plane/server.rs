//! Weir's own control plane as a process: one thread has the plane and its log, another one all connections.
//!
//! Invariants: no answer leaves before what it rests on is durable. What a client may have waiting is bounded, in
//! messages and in bytes; one that does not take its answers is cut off, and so is nobody else. Where the log cannot
//! be written the plane ends: what was acknowledged is in it.

use super::super::PoolError;
use super::super::config::{PartConfig, PlaneAt};
use super::super::frames::{self, FrameError, LARGE_AT_A_TIME, Messages};
use super::super::tls;
use super::log::LogFile;
use crate::sockets;
use flash::Instant;
use pool::control::contract::{Change, Check, PlaneAnswer, PlaneAsk, PlaneAskId};
use pool::control::embedded::{Embedded, PlaneInput, PlaneOutput, Store, Told};
use pool::control::keys;
use pool::control::values::{FORMAT, PoolRecord, Value};
use pool::control::wire::{Hello, Message, PlaneFacts, shorten};
use pool::words::PoolId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

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
        let acceptor = TlsAcceptor::from(tls::load(&config.identity)?.server);
        let (log, plane) = LogFile::open(&config.plane.data, config.pool, clock())?;
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let (stop, stopped) = oneshot::channel();
        let mut core = Core { plane, log, clients: BTreeMap::new(), joined: Vec::new(), clock };
        core.begin(config.pool)?;
        let (net_runtime, core_runtime) = (runtime()?, runtime()?);
        let listener = net_runtime
            .block_on(TcpListener::bind(address))
            .map_err(|error| PoolError::Listen { address, error })?;
        let address =
            listener.local_addr().map_err(|error| PoolError::Listen { address, error })?;
        let doors = Doors {
            pool: config.pool,
            acceptor,
            clients: Arc::new(Semaphore::new(config.plane.clients_max)),
            large: Arc::new(Semaphore::new(LARGE_AT_A_TIME)),
            to,
        };
        let core = thread("plane", move || core_runtime.block_on(core.run(events)))?;
        let net = thread("plane-net", move || {
            net_runtime.block_on(async {
                tokio::select! {
                    () = doors.open(listener) => {}
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
        // Without connections there are no events, and the core ends, too.
        for thread in [self.net.take().map(|net| net.join().is_ok())] {
            assert!(thread.unwrap_or(true) || std::thread::panicking(), "the net does not panic");
        }
        if let Some(core) = self.core.take() {
            core.join().ok();
        }
    }
}

/// Asks that wait for the plane, of all clients.
const EVENTS_MAX: usize = 1024;
/// Bytes of answers that wait for one client: a largest one, and as much again.
const OUT_BYTES_MAX: usize = 40 << 20;
/// From the first packet to the hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// A client that does not answer the kernel for so long is gone.
const PATIENCE: Duration = Duration::from_secs(10);

fn runtime() -> Result<tokio::runtime::Runtime, PoolError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| PoolError::System { doing: "start a runtime of the plane", error })
}

fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, PoolError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(|error| PoolError::System { doing: "start a thread", error })
}

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
            self.plane.handle(Instant(self.now()), PlaneInput::Stored { sequence });
        }
        let facts = PlaneFacts { revision: self.plane.revision(), epoch: self.plane.epoch() };
        for (client, out) in std::mem::take(&mut self.joined) {
            let pool = self.plane.pool();
            let hello = Hello { pool, name: "plane".to_owned(), plane: Some(facts) };
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

/// Lets clients in.
struct Doors {
    pool: PoolId,
    acceptor: TlsAcceptor,
    clients: Arc<Semaphore>,
    large: Arc<Semaphore>,
    to: mpsc::Sender<Event>,
}

impl Doors {
    async fn open(self, listener: TcpListener) {
        let doors = Arc::new(self);
        let mut tasks = tokio::task::JoinSet::new();
        for client in 1.. {
            while tasks.try_join_next().is_some() {}
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: others give some back.
                    tracing::warn!(%error, "the control plane cannot accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&doors.clients).try_acquire_owned() else {
                tracing::warn!("the control plane has as many clients as plane.clients_max allows");
                continue;
            };
            let doors = Arc::clone(&doors);
            tasks.spawn(async move {
                if let Err(error) = doors.serve(client, stream).await {
                    tracing::debug!(client, "a client of the control plane: {error}");
                }
                // The core may have ended; then nobody wants to know.
                doors.to.send(Event::Gone { client }).await.ok();
                drop(permit);
            });
        }
    }

    async fn serve(&self, client: u64, stream: TcpStream) -> Result<(), FrameError> {
        sockets::prepare(&stream, PATIENCE);
        let begun = timeout(HELLO_WITHIN, async {
            let stream = self.acceptor.accept(stream).await?;
            let (read, write) = tokio::io::split(stream);
            let mut messages = Messages::new(read, Arc::clone(&self.large));
            match messages.next().await? {
                Message::Hello(hello) if hello.pool == self.pool => Ok((messages, write)),
                _ => Err(FrameError::Ended),
            }
        });
        let (messages, write) = begun.await.map_err(|_| FrameError::Slow)??;
        let (to, bytes) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let out = Outbox { to, waiting: Arc::clone(&waiting) };
        self.event(Event::Joined { client, out }).await?;
        tokio::select! {
            ended = self.read(client, messages) => ended,
            ended = write_answers(write, bytes, &waiting) => ended,
        }
    }

    async fn read(
        &self,
        client: u64,
        mut from: Messages<impl AsyncRead + Unpin>,
    ) -> Result<(), FrameError> {
        loop {
            match from.next().await? {
                Message::Ask { id, ask } => self.event(Event::Asked { client, id, ask }).await?,
                _ => return Err(FrameError::Ended),
            }
        }
    }

    async fn event(&self, event: Event) -> Result<(), FrameError> {
        self.to.send(event).await.map_err(|_| FrameError::Ended)
    }
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
    // The core cut this client off.
    frames::end(to).await;
    Err(FrameError::Ended)
}
