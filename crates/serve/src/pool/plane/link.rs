//! A link to the control plane, whatever keeps it. A thread of its own connects, and connects again with patience
//! that grows; it never asks anything by itself. Whoever asks hears within the timeout: what was under way when a
//! connection broke, and what takes too long, is answered as unavailable, and a watch as forgotten.
//!
//! Handles share one connection. Each has its own numbers of asks: on the wire they have the link's.

use super::super::PoolError;
use super::super::config::{PlaneAt, PlaneConfig};
use super::{embedded, etcd};
use pool::control::contract::{PlaneAnswer, PlaneAsk, PlaneAskId, PlaneRefusal};
use pool::control::lives::{PlaneFacts, Seen};
use pool::control::wire::ask_is_valid;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

/// Who is told what came of an ask. It is called by the link's thread, and must not wait.
type Tell = Arc<dyn Fn(PlaneAskId, PlaneAnswer) + Send + Sync>;

/// A handle of a link to the control plane. The connection ends with the last one.
#[derive(Clone)]
pub struct PlaneLink {
    handle: Arc<Handle>,
}

struct Handle {
    number: u64,
    shared: Arc<Shared>,
    tell: Tell,
}

struct Shared {
    to: mpsc::UnboundedSender<Command>,
    handles: AtomicU64,
    /// Why there is no connection.
    trouble: Arc<Mutex<Option<String>>>,
}

enum Command {
    Ask {
        handle: u64,
        id: PlaneAskId,
        ask: PlaneAsk,
        tell: Tell,
        at: Instant,
    },
    /// A handle is gone, and its watches with it.
    Gone {
        handle: u64,
    },
}

impl PlaneLink {
    /// Begins to connect. `tell` hears every answer.
    ///
    /// # Errors
    /// The system has no thread for it. That nobody answers there is no error: it may come.
    pub fn connect(
        config: &PlaneConfig,
        tell: impl Fn(PlaneAskId, PlaneAnswer) + Send + Sync + 'static,
    ) -> Result<Self, PoolError> {
        Self::begin(config, tell, true)
    }

    /// As [`PlaneLink::connect`]; where `is_logged` is not set, troubles are told to who asks for them only.
    pub(super) fn begin(
        config: &PlaneConfig,
        tell: impl Fn(PlaneAskId, PlaneAnswer) + Send + Sync + 'static,
        is_logged: bool,
    ) -> Result<Self, PoolError> {
        let system = |doing| move |error| PoolError::System { doing, error };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("start the runtime of a link to the control plane"))?;
        let (to, commands) = mpsc::unbounded_channel();
        let trouble = Arc::new(Mutex::new(Some(format!("{} does not answer", config.at))));
        let state = State::new(config.clone(), commands, Arc::clone(&trouble), is_logged);
        std::thread::Builder::new()
            .name("plane-link".into())
            .spawn(move || runtime.block_on(state.run()))
            .map_err(system("start a thread"))?;
        let shared = Arc::new(Shared { to, handles: AtomicU64::new(1), trouble });
        Ok(Self { handle: Arc::new(Handle { number: 0, shared, tell: Arc::new(tell) }) })
    }

    /// Another handle of the same connection, whose answers go elsewhere.
    pub fn sharing(&self, tell: impl Fn(PlaneAskId, PlaneAnswer) + Send + Sync + 'static) -> Self {
        let shared = Arc::clone(&self.handle.shared);
        let number = shared.handles.fetch_add(1, Ordering::Relaxed);
        Self { handle: Arc::new(Handle { number, shared, tell: Arc::new(tell) }) }
    }

    /// Asks; never waits.
    pub fn ask(&self, id: PlaneAskId, ask: PlaneAsk) {
        let Handle { number, shared, tell } = &*self.handle;
        let tell = Arc::clone(tell);
        let command = Command::Ask { handle: *number, id, ask, tell, at: Instant::now() };
        if shared.to.send(command).is_err() {
            // Only a panic of the link's thread ends it before its handles.
            (self.handle.tell)(id, UNAVAILABLE);
        }
    }

    /// Why there is no connection; `None` if there is one.
    pub fn trouble(&self) -> Option<String> {
        self.handle.shared.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Without the thread there is nothing to end.
        self.shared.to.send(Command::Gone { handle: self.number }).ok();
    }
}

/// A connection that stands.
pub(super) struct Session {
    /// Takes asks, by the numbers of the link.
    pub asks: mpsc::Sender<(u64, PlaneAsk)>,
    /// Gives answers.
    pub answers: mpsc::UnboundedReceiver<(u64, PlaneAnswer)>,
    /// To be polled; ends with why the connection did.
    pub driver: Pin<Box<dyn Future<Output = String> + Send>>,
    /// How far the plane has come.
    pub facts: PlaneFacts,
}

/// Asks that are under way at a time; more are refused.
pub(super) const ASKS_MAX: usize = 4096;

const UNAVAILABLE: PlaneAnswer = PlaneAnswer::Refused(PlaneRefusal::Unavailable);

/// Between two tries to connect.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

struct Pending {
    handle: u64,
    id: PlaneAskId,
    tell: Tell,
    /// Watches that stand have none.
    until: Option<Instant>,
    is_watch: bool,
}

/// The link's thread.
struct State {
    config: PlaneConfig,
    commands: mpsc::UnboundedReceiver<Command>,
    trouble: Arc<Mutex<Option<String>>>,
    is_logged: bool,
    timeout: Duration,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Asks that no connection has taken yet; some may have been given up meanwhile.
    unsent: VecDeque<(u64, PlaneAsk)>,
    /// What was heard of the plane last.
    known: Seen,
}

/// All handles are gone.
struct Closed;

impl State {
    fn new(
        config: PlaneConfig,
        commands: mpsc::UnboundedReceiver<Command>,
        trouble: Arc<Mutex<Option<String>>>,
        is_logged: bool,
    ) -> Self {
        let timeout = Duration::from_nanos(config.timeout_ns);
        Self {
            config,
            commands,
            trouble,
            is_logged,
            timeout,
            pending: BTreeMap::new(),
            next: 1,
            unsent: VecDeque::new(),
            known: Seen::default(),
        }
    }

    async fn run(mut self) {
        let (mut patience, mut tries) = (PATIENCE.0, 0);
        loop {
            let config = self.config.clone();
            let connected = self.meanwhile(connect(&config, tries)).await;
            tries += 1;
            let trouble = match connected {
                Err(Closed) => return,
                Ok(Err(trouble)) => trouble,
                Ok(Ok(session)) => match self.went_back(&session.facts) {
                    Some(trouble) => trouble,
                    None => {
                        patience = PATIENCE.0;
                        self.note(None);
                        match self.serve(session).await {
                            Err(Closed) => return,
                            Ok(trouble) => trouble,
                        }
                    }
                },
            };
            self.note(Some(trouble));
            self.forsake();
            if self.meanwhile(tokio::time::sleep(patience)).await.is_err() {
                return;
            }
            patience = (patience * 2).min(PATIENCE.1);
        }
    }

    /// Takes asks and gives up those that are late, until something is done.
    async fn meanwhile<T>(&mut self, of: impl Future<Output = T>) -> Result<T, Closed> {
        let mut of = std::pin::pin!(of);
        loop {
            let late = self.late();
            tokio::select! {
                done = &mut of => return Ok(done),
                command = self.commands.recv() => self.take(command.ok_or(Closed)?),
                () = sleep_until(late.into()) => self.expire(),
            }
        }
    }

    /// Asks and answers over a connection, until it breaks.
    async fn serve(&mut self, session: Session) -> Result<String, Closed> {
        let Session { asks, mut answers, mut driver, facts } = session;
        self.known = Seen::of(&facts);
        loop {
            self.send(&asks);
            let late = self.late();
            tokio::select! {
                // What was answered before the end is told before it.
                biased;
                Some((number, answer)) = answers.recv() => self.answered(number, answer),
                trouble = &mut driver => return Ok(trouble),
                command = self.commands.recv() => self.take(command.ok_or(Closed)?),
                () = sleep_until(late.into()) => self.expire(),
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Ask { handle, id, ask, tell, at } => self.begin(handle, id, ask, tell, at),
            Command::Gone { handle } => {
                let of = |pending: &Pending| pending.handle == handle;
                let gone: Vec<u64> =
                    self.pending.iter().filter(|(_, it)| of(it)).map(|(at, _)| *at).collect();
                for number in gone {
                    let ended = self.pending.remove(&number);
                    if ended.is_some_and(|ended| ended.is_watch) {
                        self.end_watch(number);
                    }
                }
            }
        }
    }

    fn begin(&mut self, handle: u64, id: PlaneAskId, ask: PlaneAsk, tell: Tell, at: Instant) {
        if !ask_is_valid(&ask) {
            return tell(id, PlaneAnswer::Refused(PlaneRefusal::Invalid));
        }
        if let PlaneAsk::Unwatch { watch } = ask {
            let is_it = |it: &Pending| it.is_watch && it.handle == handle && it.id == watch;
            let found = self.pending.iter().find(|(_, it)| is_it(it)).map(|(at, _)| *at);
            if let Some(number) = found {
                self.pending.remove(&number);
                self.end_watch(number);
            }
            return tell(id, PlaneAnswer::Done);
        }
        if self.pending.len() >= ASKS_MAX {
            return tell(id, UNAVAILABLE);
        }
        let is_watch = matches!(ask, PlaneAsk::Watch { .. });
        let number = self.number();
        let until = Some(at + self.timeout);
        self.pending.insert(number, Pending { handle, id, tell, until, is_watch });
        self.unsent.push_back((number, ask));
    }

    /// Nobody listens to a watch any more; what comes of ending it is no matter.
    fn end_watch(&mut self, number: u64) {
        let ask = PlaneAsk::Unwatch { watch: PlaneAskId(number) };
        let unsent = self.unsent.len();
        self.unsent.retain(|(of, _)| *of != number);
        // One that no connection has heard of is ended by that.
        if self.unsent.len() == unsent {
            let end = self.number();
            self.unsent.push_back((end, ask));
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn send(&mut self, asks: &mpsc::Sender<(u64, PlaneAsk)>) {
        while let Some((number, ask)) = self.unsent.pop_front() {
            let is_end = matches!(ask, PlaneAsk::Unwatch { .. });
            // Given up while it waited for a connection.
            if !is_end && !self.pending.contains_key(&number) {
                continue;
            }
            // A connection that takes no more is stuck: it is given up by its own timeouts.
            if asks.try_send((number, ask)).is_err()
                && let Some(pending) = self.pending.remove(&number)
            {
                pending.fail();
            }
        }
    }

    fn answered(&mut self, number: u64, answer: PlaneAnswer) {
        self.known.revision = self.known.revision.max(revision(&answer));
        let Some(pending) = self.pending.get_mut(&number) else { return };
        if pending.is_watch && matches!(answer, PlaneAnswer::Watching | PlaneAnswer::Changed { .. })
        {
            pending.until = None;
            return (pending.tell)(pending.id, answer);
        }
        let pending = self.pending.remove(&number).expect("looked at just now");
        (pending.tell)(pending.id, answer);
    }

    /// When the next ask is late; while there is none, later than anybody waits.
    fn late(&self) -> Instant {
        let first = self.pending.values().filter_map(|pending| pending.until).min();
        first.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let is_late = |pending: &Pending| pending.until.is_some_and(|until| until <= now);
        let late: Vec<u64> =
            self.pending.iter().filter(|(_, it)| is_late(it)).map(|(at, _)| *at).collect();
        for number in late {
            let pending = self.pending.remove(&number).expect("found just now");
            if pending.is_watch {
                self.end_watch(number);
            }
            pending.fail();
        }
    }

    /// The connection is gone: so is all that was under way there. What it has not taken waits for the next one.
    fn forsake(&mut self) {
        self.unsent.retain(|(_, ask)| !matches!(ask, PlaneAsk::Unwatch { .. }));
        let waits: Vec<u64> = self.unsent.iter().map(|(number, _)| *number).collect();
        let under_way: Vec<u64> =
            self.pending.keys().filter(|number| !waits.contains(number)).copied().collect();
        for number in under_way {
            self.pending.remove(&number).expect("listed just now").fail();
        }
    }

    /// What a plane that has lost something says of itself must not be believed: owners would come back.
    fn went_back(&self, facts: &PlaneFacts) -> Option<String> {
        (!facts.has(self.known)).then(|| {
            format!(
                "{}: the control plane is at revision {}, and lacks what it had at {}: it was wiped, or an old copy was \
                 put back; put back the newest one, or, if that is lost, start this part again",
                self.config.at, facts.revision, self.known.revision
            )
        })
    }

    fn note(&self, trouble: Option<String>) {
        let mut noted = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*noted, &trouble) {
            _ if !self.is_logged => {}
            (Some(_), None) => tracing::info!("connected to the control plane"),
            (before, Some(trouble)) if before.as_ref() != Some(trouble) => {
                tracing::warn!("no connection to the control plane: {trouble}");
            }
            _ => {}
        }
        *noted = trouble;
    }
}

impl Pending {
    fn fail(self) {
        let answer = if self.is_watch { PlaneAnswer::Forgotten } else { UNAVAILABLE };
        (self.tell)(self.id, answer);
    }
}

/// The revision that an answer shows, which the plane has for good.
fn revision(answer: &PlaneAnswer) -> u64 {
    match answer {
        PlaneAnswer::Value { revision, .. }
        | PlaneAnswer::Values { revision, .. }
        | PlaneAnswer::Committed { revision }
        | PlaneAnswer::Changed { revision, .. } => *revision,
        _ => 0,
    }
}

async fn connect(config: &PlaneConfig, tries: usize) -> Result<Session, String> {
    match &config.at {
        PlaneAt::Embedded(address) => embedded::connect(*address, config).await,
        // One member after the other: where one cannot do its work, the next one may.
        PlaneAt::Etcd(members) => etcd::connect(&members[tries % members.len()], config).await,
    }
}
