//! What a hypervisor says over its socket, message by message, and what comes of it: rings that shards serve.
//!
//! Invariants:
//! - a ring is with a shard exactly while all is known that it needs, and it is enabled; what it lies in is not changed
//!   meanwhile;
//! - what was not offered is not taken, and what is out of order ends the session, with the reason. The rings end
//!   with it, once nothing of them is in flight.

use super::channel::Lost;
use super::disk::{Disk, QUEUES_MAX, SETTINGS_BYTES, feature};
use super::event::Event;
use super::inflight::{Extent, Inflight, Track};
use super::mapping::BadMapping;
use super::memory::{BadMemory, Memory};
use super::message::{Eventful, Message, encode, number};
use super::ring::{Broken, ENTRIES_MAX, Places, Ring};
use super::{Reins, VhostQueue, Ways};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// Bits of the protocol's features.
mod protocol {
    pub const QUEUES: u64 = 1 << 0;
    pub const REPLIES: u64 = 1 << 3;
    pub const CHANNEL: u64 = 1 << 5;
    pub const SETTINGS: u64 = 1 << 9;
    pub const INFLIGHT: u64 = 1 << 12;
    /// What is offered.
    pub const ALL: u64 = QUEUES | REPLIES | CHANNEL | SETTINGS | INFLIGHT;
}

/// How often it is looked whether the server has ended while a shard does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Why a session ends.
#[derive(Debug)]
pub enum Fault {
    /// What came is no message that is known.
    Lost(Lost),
    /// The guest's memory.
    Memory(BadMemory),
    /// The memory for what is in flight.
    Inflight(BadMapping),
    /// That has no room for what it says, or more than can be.
    Extent(Extent),
    /// A message brings so many descriptors, and should bring others.
    Files {
        /// It does.
        has: usize,
        /// It should.
        needs: usize,
    },
    /// A descriptor is no eventfd.
    NoEvent,
    /// There is no such ring.
    Queue(u32),
    /// No ring has so many entries.
    Entries(u32),
    /// It goes on where no entry can be.
    Base(u32),
    /// Features that were not offered.
    Features(u64),
    /// The same, of the protocol.
    Protocol(u64),
    /// It comes when it must not.
    Order(&'static str),
    /// A ring does not lie in the guest's memory as it must.
    Ring(u16),
    /// A ring contradicts itself from the start.
    Broken(u16, Broken),
    /// Settings that there are not.
    Settings,
    /// There are as many clients as there may be.
    Full(usize),
    /// The system.
    System(&'static str, io::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(Lost::Message(bad)) => bad.fmt(f),
            Self::Lost(Lost::Files) => f.write_str("a message brings too many descriptors"),
            Self::Lost(Lost::System(error)) => write!(f, "its socket: {error}"),
            Self::Memory(bad) => bad.fmt(f),
            Self::Inflight(bad) => write!(f, "the file of what is in flight {bad}"),
            Self::Extent(Extent { bytes, queues, entries, .. }) => write!(
                f,
                "{bytes} bytes for what is in flight of {queues} rings of {entries} entries do not fit"
            ),
            Self::Files { has, needs } => {
                write!(f, "a message brings {has} descriptors, and should bring {needs}")
            }
            Self::NoEvent => f.write_str("a descriptor is no eventfd"),
            Self::Queue(queue) => write!(f, "ring {queue}: there are {QUEUES_MAX} at most"),
            Self::Entries(entries) => {
                write!(f, "{entries} entries: a ring has a power of two, {ENTRIES_MAX} at most")
            }
            Self::Base(base) => write!(f, "a ring cannot go on at entry {base}"),
            Self::Features(bits) => write!(f, "features {bits:#x} were not offered"),
            Self::Protocol(bits) => {
                write!(f, "features {bits:#x} of the protocol were not offered")
            }
            Self::Order(what) => f.write_str(what),
            Self::Ring(queue) => write!(f, "ring {queue} does not lie in the guest's memory"),
            Self::Broken(queue, broken) => write!(f, "ring {queue}: {broken}"),
            Self::Settings => {
                f.write_str("it asks for settings that there are not, or changes them")
            }
            Self::Full(most) => {
                write!(
                    f,
                    "there are {most} clients already (`[nbd] clients_max`), and each ring is one"
                )
            }
            Self::System(doing, error) => write!(f, "cannot {doing}: {error}"),
        }
    }
}

/// What a session needs of the server.
pub trait Host {
    /// Has a shard serve a ring, which is kicked so.
    ///
    /// # Errors
    /// There are clients enough.
    fn start(&mut self, queue: VhostQueue, kick: Event) -> Result<(), Fault>;

    /// The server has ended: no shard answers any more.
    fn has_ended(&self) -> bool;
}

/// What is answered to a message.
#[derive(Debug, Default)]
pub struct Reply {
    /// The answer.
    pub body: Vec<u8>,
    /// What goes with it.
    pub file: Option<OwnedFd>,
}

impl Reply {
    /// A number.
    pub fn number(number: u64) -> Self {
        Self { body: number.to_le_bytes().to_vec(), file: None }
    }
}

/// A ring that a shard has.
struct Running {
    stop: Arc<AtomicBool>,
    ended: Receiver<u16>,
}

struct Queue {
    entries: Option<u16>,
    places: Option<Places>,
    base: u16,
    kick: Option<Event>,
    ways: Ways,
    enabled: bool,
    running: Option<Running>,
}

impl Queue {
    fn new() -> Result<Self, Fault> {
        let event = || Event::new().map(Arc::new).map_err(no_event);
        let ways = Ways { call: event()?, broken: event()? };
        let (entries, places, kick, running) = (None, None, None, None);
        Ok(Self { entries, places, base: 0, kick, ways, enabled: false, running })
    }

    /// What changes must not be with a shard.
    fn at_rest(&mut self) -> Result<&mut Self, Fault> {
        match self.running {
            Some(_) => Err(Fault::Order("a ring is changed while it runs")),
            None => Ok(self),
        }
    }

    /// It starts again only when it is told anew where it is.
    fn forget(&mut self) {
        (self.places, self.kick) = (None, None);
    }

    /// Ends it, and waits until nothing of it is in flight.
    fn stop(&mut self, host: &dyn Host) {
        let Some(Running { stop, ended }) = self.running.take() else { return };
        stop.store(true, Ordering::Release);
        self.kick.iter().for_each(Event::signal);
        loop {
            match ended.recv_timeout(LOOK_AGAIN) {
                Ok(base) => self.base = base,
                Err(RecvTimeoutError::Timeout) if !host.has_ended() => continue,
                Err(_) => {}
            }
            return;
        }
    }
}

fn no_event(error: io::Error) -> Fault {
    Fault::System("make an eventfd", error)
}

/// See the head of this file.
pub struct Session {
    disk: Disk,
    features: Option<u64>,
    protocol: u64,
    memory: Option<Arc<Memory>>,
    inflight: Option<Arc<Inflight>>,
    queues: Vec<Queue>,
    channel: Option<OwnedFd>,
}

impl Session {
    /// Nothing was said yet of this disk.
    pub fn new(disk: Disk) -> Self {
        let (memory, inflight, queues, channel) = (None, None, Vec::new(), None);
        Self { disk, features: None, protocol: 0, memory, inflight, queues, channel }
    }

    /// What it is about.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Every message may be answered, if that is wanted.
    pub fn replies(&self) -> bool {
        self.protocol & protocol::REPLIES != 0
    }

    /// Does what a message says. The answer, if it has one of its own.
    ///
    /// # Errors
    /// The session is over.
    pub fn handle(
        &mut self,
        message: Message,
        files: Vec<OwnedFd>,
        host: &mut dyn Host,
    ) -> Result<Option<Reply>, Fault> {
        let needs = files_of(&message);
        if files.len() != needs {
            return Err(Fault::Files { has: files.len(), needs });
        }
        let mut files = files.into_iter();
        let mut reply = None;
        match message {
            Message::Features => reply = Some(Reply::number(self.disk.features())),
            Message::Protocol => reply = Some(Reply::number(protocol::ALL)),
            Message::Queues => reply = Some(Reply::number(QUEUES_MAX.into())),
            Message::Own => {}
            Message::UseFeatures(bits) => self.use_features(bits, host)?,
            Message::UseProtocol(bits) => {
                let unknown = bits & !protocol::ALL;
                if unknown != 0 {
                    return Err(Fault::Protocol(unknown));
                }
                self.protocol = bits;
            }
            Message::Reset => {
                self.stop(host);
                self.queues.iter_mut().for_each(Queue::forget);
            }
            Message::Memory(regions) => {
                // Rings go on in what is told now.
                self.stop(host);
                let files: Vec<OwnedFd> = files.collect();
                let memory = Memory::map(&regions, &files).map_err(Fault::Memory)?;
                self.memory = Some(Arc::new(memory));
            }
            Message::MakeInflight(extent) => reply = Some(make_inflight(extent)?),
            Message::UseInflight(extent) => self.use_inflight(extent, files.next())?,
            Message::Settings { offset, bytes } => reply = Some(self.settings(offset, bytes)?),
            Message::ChangeSettings => return Err(Fault::Settings),
            Message::Channel => self.channel = files.next(),
            Message::Stop(number) => {
                let queue = self.queue(number)?;
                queue.stop(host);
                queue.forget();
                let body = [number, queue.base.into()].map(u32::to_le_bytes).concat();
                reply = Some(Reply { body, file: None });
            }
            of_queue => self.change(of_queue, files.next(), host)?,
        }
        self.settle(host)?;
        Ok(reply)
    }

    /// What is said of one ring.
    fn change(
        &mut self,
        message: Message,
        file: Option<OwnedFd>,
        host: &mut dyn Host,
    ) -> Result<(), Fault> {
        match message {
            Message::Entries(number, entries) => {
                let fits = u16::try_from(entries)
                    .ok()
                    .filter(|&entries| entries.is_power_of_two() && entries <= ENTRIES_MAX);
                let entries = fits.ok_or(Fault::Entries(entries))?;
                self.queue(number)?.at_rest()?.entries = Some(entries);
            }
            Message::Places(number, places) => {
                self.queue(number)?.at_rest()?.places = Some(places);
            }
            Message::Base(number, base) => {
                let fits = u16::try_from(base).map_err(|_| Fault::Base(base))?;
                self.queue(number)?.at_rest()?.base = fits;
            }
            Message::Kick(Eventful { queue, .. }) => {
                let none = Fault::Order("a ring has no eventfd by which it is kicked");
                let kick = Event::of(file.ok_or(none)?).ok_or(Fault::NoEvent)?;
                let queue = self.queue(queue)?;
                queue.stop(host);
                queue.kick = Some(kick);
            }
            Message::Call(Eventful { queue, .. }) => told(&self.queue(queue)?.ways.call, file)?,
            Message::Broken(Eventful { queue, .. }) => told(&self.queue(queue)?.ways.broken, file)?,
            Message::Enable(number, on) => {
                let queue = self.queue(number)?;
                if !on {
                    queue.stop(host);
                }
                queue.enabled = on;
            }
            _ => unreachable!("all that is not about one ring is dealt with by the caller"),
        }
        Ok(())
    }

    fn use_features(&mut self, bits: u64, host: &dyn Host) -> Result<(), Fault> {
        let unknown = bits & !self.disk.features();
        if unknown != 0 {
            return Err(Fault::Features(unknown));
        }
        if self.features != Some(bits) {
            // Rings go on with what is used now.
            self.stop(host);
        }
        self.features = Some(bits);
        // Who does not flush believes that what was answered is safe.
        self.disk.write_through = bits & feature::FLUSH == 0;
        Ok(())
    }

    fn use_inflight(&mut self, extent: Extent, file: Option<OwnedFd>) -> Result<(), Fault> {
        if self.queues.iter().any(|queue| queue.running.is_some()) {
            return Err(Fault::Order("what was in flight comes while rings run"));
        }
        let file = file.filter(|_| extent.is_whole()).ok_or(Fault::Extent(extent))?;
        let inflight = Inflight::map(&file, extent).map_err(Fault::Inflight)?;
        self.inflight = Some(Arc::new(inflight));
        Ok(())
    }

    fn settings(&self, offset: u32, bytes: u32) -> Result<Reply, Fault> {
        let (from, len) = (offset as usize, bytes as usize);
        let end = from.checked_add(len).filter(|&end| end <= SETTINGS_BYTES);
        let end = end.ok_or(Fault::Settings)?;
        let mut body = [offset, bytes, 0].map(u32::to_le_bytes).concat();
        body.extend_from_slice(&self.disk.settings()[from..end]);
        Ok(Reply { body, file: None })
    }

    fn queue(&mut self, number: u32) -> Result<&mut Queue, Fault> {
        if number >= u32::from(QUEUES_MAX) {
            return Err(Fault::Queue(number));
        }
        while self.queues.len() <= number as usize {
            self.queues.push(Queue::new()?);
        }
        Ok(&mut self.queues[number as usize])
    }

    /// Gives those rings to shards that can run and do not.
    fn settle(&mut self, host: &mut dyn Host) -> Result<(), Fault> {
        let (Some(features), Some(memory)) = (self.features, &self.memory) else { return Ok(()) };
        for (number, queue) in self.queues.iter_mut().enumerate() {
            let enabled = queue.enabled || features & feature::PROTOCOL == 0;
            let (Some(entries), Some(places), Some(kick), None, true) =
                (queue.entries, queue.places, &queue.kick, &queue.running, enabled)
            else {
                continue;
            };
            let number = number as u16;
            let by_index = features & feature::EVENT_INDEX != 0;
            let ring = Ring::new(Arc::clone(memory), entries, places, by_index);
            let mut ring = ring.ok_or(Fault::Ring(number))?;
            let track = self.inflight.as_ref().and_then(|memory| memory.of_queue(number, entries));
            let (track, again) = resume(track, &mut ring, queue.base)
                .map_err(|broken| Fault::Broken(number, broken))?;
            let kick = kick.try_clone().map_err(no_event)?;
            let (stop, (sender, ended)) = (Arc::<AtomicBool>::default(), mpsc::channel());
            let reins = Reins { stop: Arc::clone(&stop), ended: sender };
            let (disk, ways) = (self.disk.clone(), queue.ways.clone());
            host.start(VhostQueue::new(disk, (number, ring), (track, again), ways, reins), kick)?;
            queue.running = Some(Running { stop, ended });
        }
        Ok(())
    }

    /// Ends all rings, and waits until nothing of them is in flight. They may go on later.
    pub fn stop(&mut self, host: &dyn Host) {
        // All at once: each may have to wait for the flash.
        for queue in &self.queues {
            if let Some(running) = &queue.running {
                running.stop.store(true, Ordering::Release);
                queue.kick.iter().for_each(Event::signal);
            }
        }
        self.queues.iter_mut().for_each(|queue| queue.stop(host));
    }

    /// The disk has another size. The message for the hypervisor, if it listens, and by which socket.
    pub fn resized(&mut self, bytes: u64) -> Option<(&OwnedFd, Vec<u8>)> {
        self.disk.bytes = bytes;
        let channel = self.channel.as_ref()?;
        Some((channel, encode(number::CONFIG_CHANGE, false, &[])))
    }
}

/// How many descriptors a message must bring.
fn files_of(message: &Message) -> usize {
    match message {
        Message::Memory(regions) => regions.len(),
        Message::Kick(event) | Message::Call(event) | Message::Broken(event) => {
            usize::from(event.has_one)
        }
        Message::Channel | Message::UseInflight(_) => 1,
        _ => 0,
    }
}

/// From now on somebody is told by this one, or nobody is.
fn told(way: &Event, file: Option<OwnedFd>) -> Result<(), Fault> {
    let event = match file {
        Some(file) => Event::of(file).ok_or(Fault::NoEvent)?,
        None => Event::new().map_err(no_event)?,
    };
    way.become_as(&event).map_err(no_event)
}

fn make_inflight(wanted: Extent) -> Result<Reply, Fault> {
    let Extent { queues, entries, .. } = wanted;
    if !(1..=QUEUES_MAX).contains(&queues) || !(1..=ENTRIES_MAX).contains(&entries) {
        return Err(Fault::Extent(wanted));
    }
    let extent = Extent::of(queues, entries);
    let file = Inflight::make(extent);
    let file = file.map_err(|error| Fault::System("make memory for what is in flight", error))?;
    let mut body = [extent.bytes, extent.offset].map(u64::to_le_bytes).concat();
    body.extend([queues, entries].map(u16::to_le_bytes).concat());
    // The structure is aligned.
    body.extend([0; 4]);
    Ok(Reply { body, file: Some(file) })
}

pub(super) type Resumed = (Option<Track>, Vec<u16>);

/// Takes over what was in flight of a ring. It goes on behind that: all that was taken is back, or still in flight.
pub(super) fn resume(track: Option<Track>, ring: &mut Ring, base: u16) -> Result<Resumed, Broken> {
    ring.go_on_at(base);
    let Some(mut track) = track else { return Ok((None, Vec::new())) };
    let again = track.resume(ring.used_next());
    for &head in &again {
        ring.claim(head)?;
    }
    if !again.is_empty() {
        ring.go_on_at(ring.used_next().wrapping_add(again.len() as u16));
    }
    Ok((Some(track), again))
}
