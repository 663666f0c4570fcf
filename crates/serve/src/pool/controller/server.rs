//! The process: one thread plans, another one has all connections, a third the link to the plane.

use super::super::PoolError;
use super::super::config::{ControllerSection, PartConfig};
use super::super::doors::{self, Doors, runtime, thread};
use super::super::frames::{self, FrameError};
use super::super::plane::PlaneLink;
use super::plans::Plans;
use flash::Instant;
use pool::control::contract::{PlaneAnswer, PlaneAskId};
use pool::control::wire::{Hello, Message, Report};
use pool::controller::Explained;
use pool::words::PoolId;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// A controller, or a candidate, until it is dropped.
pub struct ControllerServer {
    address: SocketAddr,
    stop: Vec<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

/// Reports that wait.
const EVENTS_MAX: usize = 1024;

enum Event {
    Reported(Report),
    Explain(oneshot::Sender<Explained>),
}

impl ControllerServer {
    /// Listens, and stands for election.
    ///
    /// # Errors
    /// The place, why not, and what to do.
    pub fn start(config: &PartConfig) -> Result<Self, PoolError> {
        let plane = config.plane()?;
        let Some(section) = &config.controller else {
            return Err(PoolError::Plane {
                place: "[controller]".to_owned(),
                reason: "is missing in the config: say where it listens, for example \
                         listen = \"10.0.0.1:7401\""
                    .to_owned(),
            });
        };
        let (net_runtime, core_runtime) = (runtime()?, runtime()?);
        let (listener, bound) = doors::listen(&net_runtime, section.listen)?;
        let (told, answers) = mpsc::unbounded_channel();
        let link = PlaneLink::connect(&plane, move |id, answer| {
            // The planner has ended.
            told.send((id, answer)).ok();
        })?;
        let plans = plans(section, bound)?;
        let (to, events) = mpsc::channel(EVENTS_MAX);
        let (stop_core, core_stopped) = oneshot::channel();
        let (stop_net, net_stopped) = oneshot::channel();
        let core = thread("controller", move || {
            core_runtime.block_on(async {
                tokio::select! {
                    () = plan(plans, link, answers, events) => {}
                    _ = core_stopped => {}
                }
            });
        })?;
        let doors = Doors {
            pool: config.pool,
            identity: plane.identity,
            what: "the controller",
            clients_max: section.clients_max,
        };
        let pool = config.pool;
        let net = thread("controller-net", move || {
            net_runtime.block_on(async {
                let serve = move |_, from, out| serve(pool, from, out, to.clone());
                tokio::select! {
                    () = doors.open(listener, serve) => {}
                    _ = net_stopped => {}
                }
            });
        })?;
        Ok(Self { address: bound, stop: vec![stop_core, stop_net], threads: vec![core, net] })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Plans until the process ends.
    pub fn join(mut self) {
        for thread in self.threads.drain(..) {
            thread.join().expect("the controller's threads do not panic");
        }
    }
}

impl Drop for ControllerServer {
    fn drop(&mut self) {
        for stop in self.stop.drain(..) {
            // It may have ended by itself.
            stop.send(()).ok();
        }
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

/// Plans until a signal. `ready` hears where reports go.
///
/// # Errors
/// As [`ControllerServer::start`].
pub fn run(config: &PartConfig, ready: impl FnOnce(SocketAddr)) -> Result<(), PoolError> {
    crate::signals::end_the_process()
        .map_err(|error| PoolError::System { doing: "wait for signals", error })?;
    let server = ControllerServer::start(config)?;
    ready(server.address());
    server.join();
    Ok(())
}

fn plans(section: &ControllerSection, bound: SocketAddr) -> Result<Plans, PoolError> {
    let mut address = section.address;
    if address.port() == 0 {
        address.set_port(bound.port());
    }
    let me = super::super::drawn()?;
    let who = (me, &*address.to_string(), section.lease_ns);
    Plans::new(Instant(0), who, section.settings.clone()).map_err(|error| PoolError::Plane {
        place: "[controller]".to_owned(),
        reason: error.to_string(),
    })
}

/// The planner.
async fn plan(
    mut plans: Plans,
    link: PlaneLink,
    mut answers: mpsc::UnboundedReceiver<(PlaneAskId, PlaneAnswer)>,
    mut events: mpsc::Receiver<Event>,
) {
    let begun = std::time::Instant::now();
    let now = || Instant(begun.elapsed().as_nanos() as u64);
    loop {
        plans.elapsed(now());
        while let Some((id, ask)) = plans.poll(now()) {
            link.ask(id, ask);
        }
        let wait = Duration::from_nanos(plans.deadline(now()).0.saturating_sub(now().0));
        let happened = timeout(wait, async {
            tokio::select! {
                Some((id, answer)) = answers.recv() => plans.answered(now(), id, &answer),
                Some(event) = events.recv() => match event {
                    Event::Reported(report) => plans.reported(now(), report),
                    Event::Explain(to) => {
                        // Who asked may be gone.
                        to.send(plans.explain().clone()).ok();
                    }
                },
            }
        });
        // Late is what it waits for, too.
        happened.await.ok();
    }
}

/// One connection: reports, and perhaps a question.
async fn serve(
    pool: PoolId,
    mut from: doors::From,
    mut to: doors::To,
    events: mpsc::Sender<Event>,
) -> Result<(), FrameError> {
    let hello = Hello { pool, name: "controller".to_owned(), plane: None };
    frames::send(&mut to, &Message::Hello(hello)).await?;
    let tell = async |event| events.send(event).await.map_err(|_| FrameError::Ended);
    loop {
        match from.next().await? {
            Message::Report(report) => tell(Event::Reported(report)).await?,
            Message::Explain => {
                let (asked, answer) = oneshot::channel();
                tell(Event::Explain(asked)).await?;
                let explained = answer.await.map_err(|_| FrameError::Ended)?;
                frames::send(&mut to, &Message::Explained(explained)).await?;
            }
            _ => return Err(FrameError::Ended),
        }
    }
}
