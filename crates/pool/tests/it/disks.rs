//! A node's store and what is below it, driven in virtual time: the one in memory, and the one on raw units over
//! the lab's media.

use flash::{
    Command as Medium, Completion, Instant, Payload, Random, SlotData, SlotId, SlotWrite, Tag,
};
use ftl::Input;
use ftl::raw::RawFormat;
use lab::medium::{Buffers, Content, SimMedium, stamp_crc};
use pool::node::memory::{MemorySettings, MemoryStore};
use pool::node::raw::format::{Footer, LogSlot};
use pool::node::raw::{Given, OpenError, Output, Piece, RawStore, RawStoreSettings, Wants};
use pool::node::store::{Command, CommandId, Data, End, Found};
use pool::words::{BandName, VolumeId};
use std::collections::BTreeMap;

/// What stands for 4 KiB.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stamp(pub u64);

impl Data for Stamp {
    fn crc(&self) -> u32 {
        stamp_crc(self.0)
    }
}

/// A store in virtual time.
pub trait Disk {
    fn begin(&mut self, now: Instant, id: CommandId, command: Command<Stamp>);
    /// Does the next thing that is due by `now`, if anything is; what has ended by then.
    fn advance(&mut self, now: Instant) -> Vec<End<Stamp>>;
    fn deadline(&self) -> Option<Instant>;
    /// Cuts the power.
    fn cut(&mut self, random: &mut Random);
    /// Begins again, until it is ready.
    fn mount(&mut self, now: &mut Instant) -> Found;
    /// Begins again, and does a few steps.
    fn mount_in_part(&mut self, now: &mut Instant, random: &mut Random);
    /// Makes something unreadable that is there twice; whether there was anything.
    fn rot(&mut self, random: &mut Random) -> bool;
}

impl Disk for MemoryStore<Stamp> {
    fn begin(&mut self, now: Instant, id: CommandId, command: Command<Stamp>) {
        MemoryStore::begin(self, now, id, command, None);
    }

    fn advance(&mut self, now: Instant) -> Vec<End<Stamp>> {
        self.poll(now).into_iter().collect()
    }

    fn deadline(&self) -> Option<Instant> {
        MemoryStore::deadline(self)
    }

    fn cut(&mut self, random: &mut Random) {
        self.power_cut(random);
    }

    fn mount(&mut self, _: &mut Instant) -> Found {
        self.found()
    }

    fn mount_in_part(&mut self, _: &mut Instant, _: &mut Random) {}

    fn rot(&mut self, _: &mut Random) -> bool {
        false
    }
}

pub fn memory(settings: MemorySettings, seed: u64) -> MemoryStore<Stamp> {
    MemoryStore::new(settings, seed)
}

/// The raw store and its medium.
pub struct RawDisk {
    store: RawStore<Stamp>,
    settings: RawStoreSettings,
    medium: SimMedium,
    buffers: Buffers,
    reading: BTreeMap<Tag, Payload>,
    ends: Vec<End<Stamp>>,
    ready: Option<Result<Box<Found>, OpenError>>,
    stopped: Option<bool>,
}

/// Buffers of the medium: what is programmed next, and what was just read.
const PROGRAMMED: u32 = 0;
const READ: u32 = 1;

/// What a completion of a read has for each slot: whether it is readable, and its bytes.
type ReadSlots = Vec<(bool, Option<Vec<u8>>)>;

impl RawDisk {
    /// A medium, made a store.
    pub fn format(
        medium: SimMedium,
        format: RawFormat,
        settings: RawStoreSettings,
        now: &mut Instant,
    ) -> Result<Self, String> {
        let (geometry, health) = (*medium.geometry(), medium.health());
        let store = RawStore::format(geometry, &health, format, settings.clone())?;
        let mut disk = Self::of(store, settings, medium);
        disk.run_until_ready(now).map_err(|error| error.to_string())?;
        Ok(disk)
    }

    fn of(store: RawStore<Stamp>, settings: RawStoreSettings, medium: SimMedium) -> Self {
        let mut buffers = Buffers::new(medium.geometry().slots_per_page, 0);
        assert_eq!((buffers.add(), buffers.add()), (PROGRAMMED, READ));
        let (reading, ends) = (BTreeMap::new(), Vec::new());
        Self { store, settings, medium, buffers, reading, ends, ready: None, stopped: None }
    }

    pub fn run_until_ready(&mut self, now: &mut Instant) -> Result<Found, OpenError> {
        loop {
            self.drain(*now);
            if let Some(ready) = self.ready.take() {
                return ready.map(|found| *found);
            }
            *now = self.deadline().expect("a mount goes on").max(*now);
            self.step(*now);
        }
    }

    /// Mounts what the medium holds.
    pub fn remount(&mut self, now: &mut Instant) -> Result<Found, OpenError> {
        self.begin_mount();
        self.run_until_ready(now)
    }

    fn begin_mount(&mut self) {
        let (geometry, health) = (*self.medium.geometry(), self.medium.health());
        self.store = RawStore::mount(geometry, &health, self.settings.clone()).expect("it suits");
        self.reading.clear();
        self.ends.clear();
        self.ready = None;
    }

    /// Lets the medium end what it has begun, and tells nobody.
    pub fn abandon(&mut self, now: &mut Instant) {
        while let Some(at) = self.medium.deadline() {
            *now = at.max(*now);
            self.medium.deliver(*now, &mut self.buffers, |_| {});
        }
    }

    /// Shuts the units down cleanly.
    pub fn stop(&mut self, now: &mut Instant) -> bool {
        self.store.handle(*now, Input::Shutdown);
        self.stopped = None;
        loop {
            self.drain(*now);
            if let Some(durable) = self.stopped {
                return durable;
            }
            *now = self.deadline().expect("a shutdown goes on").max(*now);
            self.step(*now);
        }
    }

    pub fn store(&self) -> &RawStore<Stamp> {
        &self.store
    }

    pub fn medium_mut(&mut self) -> &mut SimMedium {
        &mut self.medium
    }

    fn drain(&mut self, now: Instant) {
        while let Some(output) = self.store.poll() {
            match output {
                Output::Medium(command) => self.start(now, command),
                Output::Ready(result) => self.ready = Some(result),
                Output::Ended(end) => self.ends.push(end),
                Output::Stopped(durable) => self.stopped = Some(durable),
            }
        }
    }

    fn start(&mut self, now: Instant, mut command: Medium) {
        let mut slots = Vec::new();
        match &mut command {
            Medium::Program { tag, .. } => {
                let writes = self.store.program(*tag).to_vec();
                for (at, write) in (0..).zip(writes) {
                    slots.push(self.slot_write(at, write));
                }
            }
            Medium::Read { tag, into: Some(into), .. } => {
                self.reading.insert(*tag, *into);
                *into = Payload { buffer: READ, index: 0 };
            }
            _ => {}
        }
        self.medium.start(now, command, &slots, &self.buffers).expect("a legal command");
    }

    fn slot_write(&mut self, at: u32, write: SlotWrite) -> SlotWrite {
        let SlotData::Payload(payload) = write.data else { return write };
        let data = match self.store.piece(payload) {
            Piece::Bytes(bytes) => SlotData::Meta(Box::new(*bytes)),
            Piece::Zeroes => SlotData::Empty,
            Piece::Data(Stamp(stamp)) => {
                let stamp = *stamp;
                self.buffers.host_mut(PROGRAMMED, at + 1)[at as usize] = stamp;
                SlotData::Payload(Payload { buffer: PROGRAMMED, index: at })
            }
        };
        SlotWrite { data, ..write }
    }

    /// Ends one command of the medium, or gives a deadline.
    fn step(&mut self, now: Instant) {
        let store = &mut self.store;
        let mut read: Option<(Tag, ReadSlots)> = None;
        let ended = self.medium.deliver(now, &mut self.buffers, |completion| {
            if let Completion::Read { tag, slots: Ok(slots) } = &completion {
                let slots = slots.iter().map(|it| (it.is_readable(), it.bytes.map(<[u8]>::to_vec)));
                read = Some((*tag, slots.collect()));
            }
            store.handle(now, Input::Completion(completion));
        });
        if let Some((tag, slots)) = read
            && let Some(into) = self.reading.remove(&tag)
        {
            self.give(into, slots);
        } else if ended.is_none() && self.store.deadline().is_some_and(|at| at <= now) {
            self.store.handle(now, Input::Deadline);
        }
        self.drain(now);
    }

    fn give(&mut self, into: Payload, slots: ReadSlots) {
        for (at, (readable, bytes)) in (0..).zip(slots) {
            let payload = Payload { index: into.index + at, ..into };
            let stamp = self.buffers.host(READ, at + 1)[at as usize];
            let bytes = bytes.and_then(|bytes| <[u8; 4096]>::try_from(&bytes[..]).ok());
            match (self.store.wants(payload), &bytes) {
                (_, _) if !readable => {}
                (Wants::Bytes, Some(bytes)) => self.store.give(payload, Given::Bytes(bytes)),
                (Wants::Bytes, None) => {}
                (Wants::Data, _) => self.store.give(payload, Given::Data(Stamp(stamp))),
            }
        }
    }
}

impl Disk for RawDisk {
    fn begin(&mut self, now: Instant, id: CommandId, command: Command<Stamp>) {
        self.store.begin(now, id, command);
        self.drain(now);
    }

    fn advance(&mut self, now: Instant) -> Vec<End<Stamp>> {
        self.drain(now);
        if self.ends.is_empty() && self.deadline().is_some_and(|at| at <= now) {
            self.step(now);
        }
        std::mem::take(&mut self.ends)
    }

    fn deadline(&self) -> Option<Instant> {
        self.medium.deadline().into_iter().chain(self.store.deadline()).min()
    }

    fn cut(&mut self, random: &mut Random) {
        self.medium.power_cut(&mut |fates| random.below(u64::from(fates)) as u32);
    }

    fn mount(&mut self, now: &mut Instant) -> Found {
        self.remount(now).expect("what was cut off is recovered")
    }

    fn rot(&mut self, random: &mut Random) -> bool {
        let medium = &mut self.medium;
        let per_page = medium.geometry().slots_per_page;
        // What a page says, without which of two it is.
        let mut pages: BTreeMap<(u64, BandName, u32), Vec<u32>> = BTreeMap::new();
        for slot in (0..medium.geometry().slots() as u32).map(SlotId) {
            let Some((_, Content::Meta(bytes))) = medium.peek(slot) else { continue };
            if !medium.is_readable(slot) {
                continue;
            }
            let nobody = BandName { volume: VolumeId(0), band: 0, life: 0 };
            let footer = Footer::decode(&bytes[..]).map(|it| (u64::MAX, it.band, it.index));
            let log = LogSlot::decode(&bytes[..]).map(|it| (it.number, nobody, it.place));
            if let Some(key) = footer.or(log) {
                pages.entry(key).or_default().push(slot.0 / per_page);
            }
        }
        pages.values_mut().for_each(Vec::dedup);
        let twice: Vec<&Vec<u32>> = pages.values().filter(|pages| pages.len() > 1).collect();
        if twice.is_empty() {
            return false;
        }
        let page = twice[random.below(twice.len() as u64) as usize];
        let page = page[random.below(page.len() as u64) as usize];
        (0..per_page).for_each(|slot| medium.rot(SlotId(page * per_page + slot)));
        true
    }

    fn mount_in_part(&mut self, now: &mut Instant, random: &mut Random) {
        self.begin_mount();
        self.drain(*now);
        for _ in 0..random.below(120) {
            let Some(at) = self.deadline() else { return };
            *now = at.max(*now);
            self.step(*now);
        }
    }
}
