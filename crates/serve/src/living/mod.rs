//! Volumes that live: they are made, deleted, renamed, and get other sizes and limits while the device is served.
//!
//! One thread takes the changes one after the other, as [`steps`] says: it has the first shard keep the table in its
//! label, tells NVMe's subsystem, those who speak with hypervisors, and all shards what is offered from then on, and has the shards trim what volumes have
//! left, in the background and again after a restart.

mod snapshots;
mod steps;

use crate::config::Config;
use crate::device::{Change, ChangeError, Table, TableLimits, blocks_of};
use crate::exports;
use crate::front::nvme;
use crate::panics;
use crate::runtime::shard::{Message, Shared, SnapshotAsk, Work};
use crate::server::hosts;
use crate::volume::STRIPE_BLOCKS;
use flash::RequestError;
use snapshots::Ended;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use steps::{Living, Step};

/// How long a change may take before whoever asked is told that it goes on.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long a shard may take to tell of its snapshots.
const TELL_TIME: Duration = Duration::from_secs(2);
/// How often it is looked whether the server has ended while a shard does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why volumes are not changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Refused {
    /// This change cannot be.
    Change(ChangeError),
    /// None can, for this reason.
    Never(String),
    /// Nobody knows whether it was made.
    Unknown(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Change(error) => error.fmt(f),
            Self::Never(reason) | Self::Unknown(reason) => f.write_str(reason),
        }
    }
}

/// The volumes, and what room there is.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// The volumes.
    pub table: Table,
    /// Logical blocks of the device.
    pub device_blocks: u64,
    /// Of them, those that belong to nobody.
    pub free_blocks: u64,
}

type Answer = Box<dyn FnOnce(Result<(), Refused>) + Send>;

enum Ask {
    Change(Change, Answer),
    Grown(u64),
    End,
}

/// The way to the thread.
pub struct VolumesControl {
    /// Why there is nobody, or who changes them.
    asks: Result<Mutex<Sender<Ask>>, String>,
    /// Why they are changed by nobody but him.
    refusal: Option<String>,
    shown: Arc<Mutex<Shown>>,
    /// Whose volumes they are.
    device: u128,
    ended: Arc<AtomicBool>,
    /// Of the shards, if there are volumes.
    shared: Option<Arc<Shared>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What volumes live on.
pub struct Ground {
    /// As it is recorded.
    pub table: Table,
    /// Logical blocks of the device.
    pub device_blocks: u64,
    /// Whose.
    pub device: u128,
    /// What is done for volumes.
    pub config: Config,
    /// The numbers of the snapshots that shards have.
    pub found: Vec<u32>,
}

impl VolumesControl {
    /// Of a server whose volumes stay as they are, for a reason.
    pub fn fixed(
        reason: &str,
        (table, device_blocks): (Table, u64),
        shared: Option<&Arc<Shared>>,
    ) -> Self {
        let free_blocks = blocks_of(&table.free(device_blocks));
        Self {
            asks: Err(reason.into()),
            refusal: None,
            shown: Arc::new(Mutex::new(Shown { table, device_blocks, free_blocks })),
            device: 0,
            ended: Arc::default(),
            shared: shared.map(Arc::clone),
            thread: Mutex::default(),
        }
    }

    /// Begins to take changes, and to trim what volumes have left before.
    pub fn start(shared: &Arc<Shared>, ground: Ground) -> Self {
        let (asks, asked) = mpsc::channel();
        let (shown, ended) = (Arc::<Mutex<Shown>>::default(), Arc::<AtomicBool>::default());
        let Ground { table, device_blocks, device, config, found } = ground;
        let round = STRIPE_BLOCKS * shared.mailboxes.len() as u64;
        let living = Living::new(table, TableLimits { device_blocks }, round);
        let keeper = Keeper {
            living: living.with_found(found.into_iter()),
            refusal: None,
            device_blocks,
            device,
            config,
            shared: Arc::clone(shared),
            shown: Arc::clone(&shown),
            ended: Arc::clone(&ended),
            asked,
        };
        keeper.show();
        let thread = std::thread::Builder::new().name("volumes".into()).spawn(move || {
            panics::end_the_process();
            keeper.run();
        });
        let shared = Some(Arc::clone(shared));
        let (asks, thread) = match thread {
            Ok(thread) => (Ok(Mutex::new(asks)), Mutex::new(Some(thread))),
            Err(error) => {
                (Err(format!("no thread can be started for it: {error}")), Mutex::default())
            }
        };
        Self { asks, refusal: None, shown, device, ended, shared, thread }
    }

    /// The same, where what people want of them is refused for a reason.
    pub fn refusing(self, reason: &str) -> Self {
        Self { refusal: Some(reason.into()), ..self }
    }

    /// The volumes as they are now; none of them if they are none of a device's.
    pub fn shown(&self) -> Shown {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Blocks of flash that only snapshots hold, by the number of the snapshot. Blocks.
    pub fn held_blocks(&self) -> BTreeMap<u32, u64> {
        let mut held = BTreeMap::new();
        for mailbox in self.shared.iter().flat_map(|shared| &shared.mailboxes) {
            let (sender, receiver) = mpsc::channel();
            mailbox.push(Message::Snapshots(SnapshotAsk::Tell(sends(sender))));
            // A server that is stopping tells nothing.
            for snapshot in receiver.recv_timeout(TELL_TIME).into_iter().flatten() {
                *held.entry(snapshot.number).or_default() += snapshot.blocks_held;
            }
        }
        held
    }

    /// By which NVMe hosts know a volume to be.
    ///
    /// # Errors
    /// The system draws no number.
    pub fn new_uuid(&self, name: &str) -> std::io::Result<u128> {
        Ok(nvme::uuid_of(crate::random::number()?, name))
    }

    /// By which NVMe hosts know a volume that was made with the device.
    pub fn uuid_by_name(&self, name: &str) -> u128 {
        nvme::uuid_of(self.device, name)
    }

    /// Why nothing can be changed, if that is so.
    pub fn fixed_because(&self) -> Option<&str> {
        let nobody = self.asks.as_ref().err();
        self.refusal.as_ref().or(nobody).map(String::as_str)
    }

    /// The device, whose one volume has all of it, has so many logical blocks by now. That is offered soon.
    pub fn grown(&self, device_blocks: u64) {
        if let Ok(asks) = &self.asks {
            // It may have ended by itself.
            asks.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .send(Ask::Grown(device_blocks))
                .ok();
        }
    }

    /// Changes a volume; when it returns the change is durable and in force. Blocks.
    ///
    /// # Errors
    /// Why not.
    pub fn change(&self, change: Change) -> Result<(), Refused> {
        if let Some(reason) = self.fixed_because() {
            return Err(Refused::Never(reason.into()));
        }
        let asks = self.asks.as_ref().map_err(|reason| Refused::Never(reason.clone()))?;
        let (sender, receiver) = mpsc::channel();
        let answer = sends(sender);
        let asked = Ask::Change(change, answer);
        let ended =
            || Refused::Unknown("the server is stopping: look again at its next start".into());
        asks.lock().unwrap_or_else(PoisonError::into_inner).send(asked).map_err(|_| ended())?;
        match receiver.recv_timeout(ANSWER_TIME) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
            Err(RecvTimeoutError::Timeout) => {
                let why = self.shared.as_ref().and_then(|shared| shared.lacks_room());
                let why = why.map_or_else(String::new, |why| format!(" ({why})"));
                Err(Refused::Unknown(format!(
                    "after {} s it is not done, and goes on{why}: `weir volume list` tells when it is",
                    ANSWER_TIME.as_secs()
                )))
            }
        }
    }

    /// The shards have ended.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        if let Ok(asks) = &self.asks {
            // It may have ended by itself.
            asks.lock().unwrap_or_else(PoisonError::into_inner).send(Ask::End).ok();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            thread.join().ok();
        }
    }
}

/// What the thread has.
struct Keeper {
    living: Living,
    /// Why a snapshot was refused.
    refusal: Option<String>,
    device_blocks: u64,
    device: u128,
    config: Config,
    shared: Arc<Shared>,
    shown: Arc<Mutex<Shown>>,
    ended: Arc<AtomicBool>,
    asked: Receiver<Ask>,
}

/// What came of a step.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Taken {
    Done,
    /// It cannot be now, as there is no room or something goes on. Nothing has changed.
    Later,
    /// It cannot be at all.
    Refused,
    /// Nobody knows how far it came.
    Lost,
    /// The same, as a shard has ended: with the server, or for a reason that it has told.
    Ended,
}

impl Keeper {
    fn run(mut self) {
        let mut taken = Taken::Done;
        loop {
            let busy = self.living.step().is_some();
            let ask = match (busy, taken) {
                (true, Taken::Later) => {
                    self.asked.recv_timeout(LOOK_AGAIN).map_err(|error| match error {
                        RecvTimeoutError::Timeout => TryRecvError::Empty,
                        RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                    })
                }
                (true, _) => self.asked.try_recv(),
                (false, _) => self.asked.recv().map_err(|_| TryRecvError::Disconnected),
            };
            match ask {
                Ok(Ask::Change(change, answer)) => answer(self.change(&change)),
                Ok(Ask::Grown(device_blocks)) => self.grow(device_blocks),
                Ok(Ask::End) | Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => taken = self.take_step(),
            }
        }
    }

    /// Offers the one volume of a device that has grown: how large that is, somebody else keeps.
    fn grow(&mut self, device_blocks: u64) {
        let Some(table) = self.living.grown(device_blocks) else { return };
        if self.offer(&table) != Taken::Done {
            return;
        }
        self.living.take_over(table, TableLimits { device_blocks });
        self.device_blocks = device_blocks;
        self.show();
        tracing::info!(device_blocks, "the volume is offered as it has grown");
    }

    fn change(&mut self, change: &Change) -> Result<(), Refused> {
        if self.living.is_lost() {
            return Err(Refused::Never(
                "a change before could not be recorded, and nobody knows which volumes there are at the next start: \
                 start the server again"
                    .into(),
            ));
        }
        self.keeps_hosts(change)?;
        self.begin(change).map_err(Refused::Change)?;
        self.heed(change);
        while self.living.is_changing() {
            self.take_step();
        }
        if let Some(reason) = self.refusal.take() {
            return Err(Refused::Change(ChangeError::NoSnapshot(reason)));
        }
        if self.living.is_lost() {
            let why = self.shared.lacks_room().unwrap_or_else(|| {
                "the device does not take the change, or the server is stopping; see the log".into()
            });
            return Err(Refused::Unknown(format!(
                "{why}: the next start of the server tells whether the change was made"
            )));
        }
        self.follow(change);
        tracing::info!(?change, "volumes have changed");
        Ok(())
    }

    /// Begins a change, if need be once what volumes have left is trimmed.
    fn begin(&mut self, change: &Change) -> Result<(), ChangeError> {
        // Where these lie is not known, nor which blocks may not be cloned.
        let waits = !matches!(change, Change::Limit { .. } | Change::Rename { .. });
        while waits && self.living.awaits_drops() && !self.living.is_lost() {
            if self.take_step() == Taken::Later {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        loop {
            match self.living.begin(change) {
                Err(ChangeError::Room { wanted, free, leaving })
                    if leaving > 0 && free + leaving >= wanted && !self.living.is_lost() =>
                {
                    if self.take_step() == Taken::Later {
                        std::thread::sleep(LOOK_AGAIN);
                    }
                }
                begun => return begun,
            }
        }
    }

    /// A volume is not renamed to a name of which the config says that other hosts may see it, and not cloned to one that more
    /// may see.
    fn keeps_hosts(&self, change: &Change) -> Result<(), Refused> {
        let hosts = |name: &String| self.config.nvme.as_ref()?.volume_hosts.get(name);
        let table = self.living.table();
        if let Change::Clone { of, name, .. } = change
            && let Some(snapshot) = table.snapshot(of)
            && let Some(from) = table.volumes.iter().find(|it| it.number == snapshot.volume)
            && let Some(may_see) = hosts(&from.name)
            && hosts(name) != Some(may_see)
        {
            let from = &from.name;
            return Err(Refused::Never(format!(
                "{from:?} has nvme_hosts in the config, and every host may use a volume that has none: say the same of {name:?} \
                 there, in a [[volume]] of that name, and start the server again before"
            )));
        }
        let Change::Rename { from, to, .. } = change else { return Ok(()) };
        let is_there = table.volumes.iter().any(|volume| volume.name == *from);
        match (hosts(from), hosts(to)) {
            (before, after) if before == after || !is_there => Ok(()),
            (Some(_), _) => Err(Refused::Never(format!(
                "{from:?} has nvme_hosts in the config, by its name: say the same of {to:?} there, and start the \
                 server again before"
            ))),
            (None, _) => Err(Refused::Never(format!(
                "{to:?} has nvme_hosts in the config, and every host may use {from:?}: those that do would lose it; \
                 choose another name, or take nvme_hosts of {to:?} out and start the server again before"
            ))),
        }
    }

    /// What is said now counts more than what the config has said.
    fn heed(&mut self, change: &Change) {
        let Change::Limit { name, .. } = change else { return };
        for wish in self.config.wishes.iter_mut().filter(|wish| wish.name == *name) {
            wish.limits = None;
        }
    }

    /// The settings that go by a volume's name go with it.
    fn follow(&mut self, change: &Change) {
        let (from, to) = match change {
            Change::Rename { from, to, .. } => (from, to.clone()),
            Change::Delete { name } => (name, String::new()),
            _ => return,
        };
        for volume in self.config.device.volumes.iter_mut().filter(|volume| volume.name == *from) {
            volume.name.clone_from(&to);
        }
    }

    fn take_step(&mut self) -> Taken {
        let Some(step) = self.living.step() else { return Taken::Done };
        let taken = self.carry_out(step);
        match taken {
            Taken::Later => return taken,
            Taken::Refused => self.living.refused(),
            Taken::Done | Taken::Lost | Taken::Ended => self.living.done(taken == Taken::Done),
        }
        if self.living.is_lost() && taken == Taken::Lost {
            let why = self.shared.lacks_room();
            let why = why.as_deref().unwrap_or("the device does not take it");
            tracing::error!("volumes cannot be changed any more: {why}");
        }
        self.show();
        taken
    }

    fn carry_out(&mut self, step: Step) -> Taken {
        match step {
            Step::Record(bytes) => {
                let (sender, receiver) = mpsc::channel();
                let answer = sends(sender);
                self.shared.mailboxes[0].push(Message::Label { bytes, answer });
                match self.wait(&receiver) {
                    Some(true) => Taken::Done,
                    Some(false) => Taken::Lost,
                    None => Taken::Ended,
                }
            }
            Step::Offer(table) => self.offer(&table),
            Step::Trim(stretch) => {
                let split = self.shared.split;
                let parts = (0..self.shared.mailboxes.len()).filter_map(|shard| {
                    let (lba, blocks) = split.part_of(shard, stretch.first, stretch.blocks)?;
                    Some((shard, (lba, blocks), Work::Trim { fua: false }))
                });
                match self.clear(parts.collect()) {
                    // With a small part of the map in DRAM it may have to wait for a checkpoint.
                    Err(Some(RequestError::NoSpace)) => Taken::Later,
                    cleared => Self::cleared(cleared),
                }
            }
            Step::Flush => {
                let shards = 0..self.shared.mailboxes.len();
                Self::cleared(
                    self.clear(shards.map(|shard| (shard, (0, 0), Work::Flush)).collect()),
                )
            }
            Step::Prepare(shadow) => {
                let ended = self.prepare(&shadow);
                self.taken(ended)
            }
            Step::Cut(shadow) => {
                let ended = self.cut(&shadow);
                self.taken(ended)
            }
            Step::Clone(parts) => {
                let ended = self.make_clone(&parts);
                self.taken(ended)
            }
            Step::Drop(number) => self.give_up(number),
        }
    }

    /// What came of a step of a snapshot.
    fn taken(&mut self, ended: Ended) -> Taken {
        match ended {
            Ended::Good => Taken::Done,
            Ended::Lost => Taken::Ended,
            Ended::Refused(reason) => {
                self.refusal = Some(reason);
                Taken::Refused
            }
        }
    }

    /// Has parts of shards trimmed or flushed.
    ///
    /// # Errors
    /// Why one of them was not; none if its shard has ended.
    fn clear(&self, parts: Vec<(usize, (u32, u32), Work)>) -> Result<(), Option<RequestError>> {
        let (sender, receiver) = mpsc::channel::<Result<(), RequestError>>();
        let count = parts.len();
        for (shard, (lba, blocks), work) in parts {
            let sender = sender.clone();
            let answer = sends(sender);
            self.shared.mailboxes[shard].push(Message::Clear { work, lba, blocks, answer });
        }
        drop(sender);
        // All of them, so that none goes on behind what follows.
        let answers: Vec<_> = (0..count).map(|_| self.wait(&receiver)).collect();
        answers.into_iter().try_for_each(|answer| answer.ok_or(None)?.map_err(Some))
    }

    fn cleared(cleared: Result<(), Option<RequestError>>) -> Taken {
        match cleared {
            Ok(()) => Taken::Done,
            Err(None | Some(RequestError::ShuttingDown)) => Taken::Ended,
            Err(Some(_)) => Taken::Lost,
        }
    }

    fn offer(&self, table: &Table) -> Taken {
        let before = self.shared.offered();
        let offered = match exports::volumes(table, &self.config, (&before, self.device)) {
            Ok(offered) => Arc::new(offered),
            Err(error) => {
                tracing::error!(%error, "volumes cannot be offered");
                return Taken::Lost;
            }
        };
        if let Some(subsystem) = &self.shared.nvme {
            subsystem.set_namespaces(hosts::namespaces(&self.config, self.device, &offered));
        }
        *self.shared.offered.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&offered);
        let (sender, receiver) = mpsc::channel();
        for mailbox in &self.shared.mailboxes {
            let (offered, sender) = (Arc::clone(&offered), sender.clone());
            let send = sends(sender);
            let answer = Box::new(move || send(()));
            mailbox.push(Message::Offer { offered, answer });
        }
        drop(sender);
        let taken = (0..self.shared.mailboxes.len()).all(|_| self.wait(&receiver).is_some());
        // A guest that is told of more room uses it at once: the shards know of it.
        self.shared.guests.ring();
        if taken { Taken::Done } else { Taken::Ended }
    }

    /// What a shard answers; `None` if it has ended.
    fn wait<T>(&self, answers: &Receiver<T>) -> Option<T> {
        loop {
            match answers.recv_timeout(LOOK_AGAIN) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if self.is_over() => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The shards have ended.
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn show(&self) {
        let table = self.living.table().clone();
        let (device_blocks, free_blocks) = (self.device_blocks, self.living.free_blocks());
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) =
            Shown { table, device_blocks, free_blocks };
    }
}

/// Sends what it gets to whom waits for it, if anybody still does.
fn sends<T: Send + 'static>(to: Sender<T>) -> Box<dyn FnOnce(T) + Send> {
    Box::new(move |answer| {
        to.send(answer).ok();
    })
}
