//! How nodes and clients tell the controller how they do. A thread of its own finds the controller in the control
//! plane and connects to it; where there is none, nothing is told and nobody waits.

use super::super::PoolError;
use super::super::config::PlaneConfig;
use super::super::doors::{self, Caller, runtime, thread};
use super::super::frames::{self, FrameError};
use super::super::plane::{PlaneCalls, PlaneLink};
use flash::Instant;
use pool::control::contract::{Kept, Part, PlaneAnswer, PlaneAskId};
use pool::control::follow::{Follow, FollowOutput};
use pool::control::keys;
use pool::control::values::{ControllerRecord, Value};
use pool::control::wire::{Message, Report};
use pool::controller::{Explained, NodeSeen, VolumeSeen};
use pool::profile::Profile;
use pool::words::{Members, NodeId, VolumeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Tells whichever controller is elected. The thread ends with the last clone.
#[derive(Clone)]
pub struct ReportLink {
    to: mpsc::Sender<Report>,
}

/// Reports that wait; newer ones come soon.
const WAITING_MAX: usize = 1024;
/// A controller that takes no report for so long is given up.
const SEND_WITHIN: Duration = Duration::from_secs(1);
/// Between two tries to connect.
const PATIENCE: Duration = Duration::from_millis(200);

impl ReportLink {
    /// Begins to look for the controller.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn new(plane: &PlaneLink, config: &PlaneConfig) -> Result<Self, PoolError> {
        let (to, reports) = mpsc::channel(WAITING_MAX);
        let (told, answers) = mpsc::unbounded_channel();
        let plane = plane.sharing(move |id, answer| {
            // The thread has ended.
            told.send((id, answer)).ok();
        });
        let reporter = Reporter {
            caller: config.caller(),
            plane,
            answers,
            reports,
            follow: Follow::new(Instant(0), Part::Controller, controller()),
            begun: std::time::Instant::now(),
            address: None,
            profiles: BTreeMap::new(),
        };
        let runtime = runtime()?;
        // It ends with the last clone of this.
        drop(thread("reports", move || runtime.block_on(reporter.run()))?);
        Ok(Self { to })
    }

    /// How a node does.
    pub fn report_node(&self, node: NodeId, seen: NodeSeen) {
        self.report(Report::Node { node, seen });
    }

    /// What the drive of a node can do, as it was measured: once is enough.
    pub fn report_profile(&self, node: NodeId, profile: &Profile) {
        self.report(Report::Profile { node, text: profile.to_text() });
    }

    /// How a volume does.
    pub fn report_volume(&self, volume: VolumeId, seen: VolumeSeen) {
        self.report(Report::Volume { volume, seen });
    }

    /// The blocks of a volume by who holds them: every few seconds is enough.
    pub fn report_held(&self, volume: VolumeId, groups: Vec<(Members, u64)>) {
        self.report(Report::Held { volume, groups });
    }

    fn report(&self, report: Report) {
        // Where nobody takes it there will be a newer one.
        self.to.try_send(report).ok();
    }
}

fn controller() -> (String, String) {
    (keys::CONTROLLER.to_owned(), format!("{}\0", keys::CONTROLLER))
}

/// The thread.
struct Reporter {
    caller: Caller,
    plane: PlaneLink,
    answers: mpsc::UnboundedReceiver<(PlaneAskId, PlaneAnswer)>,
    reports: mpsc::Receiver<Report>,
    follow: Follow,
    begun: std::time::Instant,
    address: Option<SocketAddr>,
    /// Every new controller hears them.
    profiles: BTreeMap<NodeId, Report>,
}

/// All links are gone.
struct Closed;

enum Happened {
    Report(Report),
    /// The connection ended.
    Ended,
    Else,
}

impl Reporter {
    async fn run(mut self) {
        loop {
            let ended = match self.address {
                None => self.wait(None).await.map(drop),
                Some(address) => self.report_to(address).await,
            };
            if ended.is_err() {
                return;
            }
        }
    }

    /// Reports until the controller is another one, or cannot be reached.
    async fn report_to(&mut self, address: SocketAddr) -> Result<(), Closed> {
        let caller = self.caller.clone();
        let (mut from, mut to) = match caller.dial(address, "weir pool controller").await {
            Ok((from, to, _)) => (from, to),
            Err(reason) => {
                tracing::debug!("no reports to the controller: {reason}");
                return self.pause().await;
            }
        };
        let profiles: Vec<Report> = self.profiles.values().cloned().collect();
        for report in profiles {
            if send(&mut to, report).await.is_err() {
                return self.pause().await;
            }
        }
        while self.address == Some(address) {
            let is_over = match self.wait(Some(&mut from)).await? {
                Happened::Report(report) => send(&mut to, report).await.is_err(),
                Happened::Ended => true,
                Happened::Else => false,
            };
            if is_over {
                // The record may name it for a while still, or it comes back.
                return self.pause().await;
            }
        }
        Ok(())
    }

    /// Something happens: a report, or the plane says where the controller is.
    async fn wait(&mut self, from: Option<&mut doors::From>) -> Result<Happened, Closed> {
        self.go_on();
        let now = self.now();
        let wait =
            self.follow.deadline().map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
        let ended = async {
            match from {
                // It says nothing: what comes is the end.
                Some(from) => drop(from.next().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            report = self.reports.recv() => {
                let report = report.ok_or(Closed)?;
                if let Report::Profile { node, .. } = &report {
                    self.profiles.insert(*node, report.clone());
                }
                return Ok(Happened::Report(report));
            }
            Some((id, answer)) = self.answers.recv() => {
                let now = self.now();
                self.follow.answered(now, id, &answer);
            }
            () = ended => return Ok(Happened::Ended),
            () = sleep(wait.unwrap_or(Duration::from_secs(3600))) => {}
        }
        self.go_on();
        Ok(Happened::Else)
    }

    fn go_on(&mut self) {
        let now = self.now();
        self.follow.elapsed(now);
        while let Some(output) = self.follow.poll() {
            match output {
                FollowOutput::Ask { id, ask } => self.plane.ask(id, ask),
                FollowOutput::All(all) => self.heard(all.first().map(|(_, kept)| kept)),
                FollowOutput::Changed(changes) => {
                    self.heard(changes.last().and_then(|(_, kept)| kept.as_ref()));
                }
            }
        }
    }

    fn heard(&mut self, kept: Option<&Kept>) {
        let record = kept.map(|kept| ControllerRecord::decode(keys::CONTROLLER, &kept.value));
        self.address = match record {
            Some(Ok(record)) => record.address.parse().ok(),
            Some(Err(error)) => {
                tracing::warn!("the record of the controller {error}");
                None
            }
            None => None,
        };
    }

    /// Waits a little, and takes what comes meanwhile; what is to be told grows old and is not told.
    async fn pause(&mut self) -> Result<(), Closed> {
        let until = std::time::Instant::now() + PATIENCE;
        while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
            if let Ok(ended) = timeout(left, self.wait(None)).await {
                ended?;
            }
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        Instant(self.begun.elapsed().as_nanos() as u64)
    }
}

async fn send(to: &mut doors::To, report: Report) -> Result<(), FrameError> {
    let message = Message::Report(report);
    timeout(SEND_WITHIN, frames::send(to, &message)).await.map_err(|_| FrameError::Slow)?
}

/// Asks the controller at `address` why its plan is as it is, and waits for the answer.
///
/// # Errors
/// Nobody answers there.
pub fn explained(config: &PlaneConfig, address: SocketAddr) -> Result<Explained, PoolError> {
    let failed = |reason| PoolError::Plane { place: "the controller".to_owned(), reason };
    let caller = config.caller();
    let asked = async {
        let (mut from, mut to, _) = caller.dial(address, "weir pool controller").await?;
        let answer = async {
            frames::send(&mut to, &Message::Explain).await?;
            from.next().await
        };
        match timeout(Duration::from_nanos(config.timeout_ns), answer).await {
            Ok(Ok(Message::Explained(explained))) => Ok(explained),
            Ok(Ok(_)) => Err(format!("{address}: gives an answer to something else")),
            Ok(Err(error)) => Err(format!("{address}: {error}")),
            Err(_) => Err(format!("{address}: does not answer in time")),
        }
    };
    runtime()?.block_on(asked).map_err(failed)
}

/// What came of asking whoever the control plane names as the controller.
#[derive(Debug)]
pub enum Asked {
    /// It listens there, and says this.
    Told(String, Box<Explained>),
    /// It should listen there, and does not answer: why.
    Silent(String, String),
    /// Its record cannot be read: why.
    Unsound(String),
}

impl Asked {
    /// What it says.
    pub fn explained(&self) -> Option<&Explained> {
        match self {
            Self::Told(_, explained) => Some(explained),
            _ => None,
        }
    }
}

/// Asks the elected controller why its plan is as it is; nothing if none is elected.
///
/// # Errors
/// The plane cannot be asked who it is.
pub fn asked(config: &PlaneConfig, calls: &mut PlaneCalls) -> Result<Option<Asked>, PoolError> {
    let Some(kept) = calls.get(keys::CONTROLLER.to_owned())? else { return Ok(None) };
    let record = match ControllerRecord::decode(keys::CONTROLLER, &kept.value) {
        Ok(record) => record,
        Err(error) => return Ok(Some(Asked::Unsound(format!("{} {error}", keys::CONTROLLER)))),
    };
    let told = match record.address.parse() {
        Ok(address) => explained(config, address).map_err(|error| error.to_string()),
        Err(_) => Err(format!("{:?} is no address", record.address)),
    };
    Ok(Some(match told {
        Ok(explained) => Asked::Told(record.address, Box::new(explained)),
        Err(error) => Asked::Silent(record.address, error),
    }))
}
