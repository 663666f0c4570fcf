//! A store that is open: its engine, who writes to it, and whether there is room.

use super::commit::{Answer, Committer, Counts};
use super::engine::{Change, Engine, OWN};
use super::files::Taken;
use super::{Loaded, Refused};
use crate::remote::Room;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Slices of a store for which nobody said how many.
pub const SLICES_DEFAULT: u32 = 8;
/// Most slices: each has a memtable of a raw block, and more when it is written quickly.
pub const SLICES_MAX: u32 = 64;

const FORMAT_VERSION: u32 = 1;
const HEAD: &[u8] = b"store";
/// Ids of files of one opening.
const IDS_MAX: u64 = 1 << 32;
/// SSTs that compaction and memtables may need room for at a time, beside two raw blocks of each slice.
const KEPT_SSTS: u64 = 16;
/// SSTs that a compaction may make at a time, as the engine bounds it, and some for what is put meanwhile.
const COMPACTION_SSTS: u64 = 10;
/// No more of the units is kept for them than the part of this number.
const KEPT_PART: u64 = 4;
const ROOM_UNKNOWN: u64 = u64::MAX;

/// What the store says of itself.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Head {
    version: u32,
    slices: u32,
    /// Openings so far: the high half of the ids of files.
    openings: u32,
}

/// The services of a store. All of it may be called by many threads.
pub struct Service {
    engine: Arc<dyn Engine>,
    committer: Committer,
    taken: Arc<Taken>,
    openings: u32,
    ids: AtomicU64,
    /// Raw blocks that are free.
    free_blocks: AtomicU64,
    kept_blocks: AtomicU64,
    /// Bytes that were taken since that was asked.
    taken_bytes: AtomicU64,
    /// What the units said last of their room, or why they did not.
    units: Mutex<Result<Room, String>>,
    /// Bytes that logs may still take.
    look: OnceLock<Look>,
    cleared: u64,
}

/// Asks the units for their room; `Err` says why they do not answer.
pub type Look = Box<dyn Fn() -> Result<Room, String> + Send + Sync>;

/// How a slice does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub struct SliceStatus {
    /// Its number.
    pub slice: u32,
    /// Keys in it, as RocksDB estimates.
    pub keys: u64,
    /// SSTs.
    pub tables: u64,
    /// Bytes of its SSTs.
    pub table_bytes: u64,
    /// Raw blocks that these fill, each the last one of its SST in part.
    pub raw_blocks: u64,
    /// Bytes of its memtables.
    pub memory_bytes: u64,
    /// Bytes that compaction has still to write anew, as RocksDB estimates.
    pub compaction_bytes: u64,
}

fn unanswered(why: &str) -> String {
    format!("the units do not answer: {why}")
}

fn head(engine: &dyn Engine) -> Result<Option<Head>, Refused> {
    let Some(bytes) = engine.get(OWN, HEAD)? else { return Ok(None) };
    let unread = |error: serde_json::Error| {
        Refused::Damaged(format!("what the store says of itself cannot be read: {error}"))
    };
    let head: Head = serde_json::from_slice(&bytes).map_err(unread)?;
    if head.version != FORMAT_VERSION {
        return Err(Refused::Usage(format!(
            "the store has format {}, and this weir knows {FORMAT_VERSION}: use the weir that made it, or \
             `weir store dump` of that one and `weir store load` of this one",
            head.version
        )));
    }
    Ok(Some(head))
}

/// Gives the engine the slices that the store was made with, or, if it is new, as many as are wanted.
fn prepare(engine: &mut Loaded, wanted: Option<u32>) -> Result<(), Refused> {
    match (head(engine)?, wanted) {
        (Some(head), Some(wanted)) if head.slices != wanted => Err(Refused::Usage(format!(
            "the store was made with {} slices, not {wanted}: leave --slices away; to change it, `weir store dump` and \
             `weir store load` into another one",
            head.slices
        ))),
        (Some(head), _) if head.slices != engine.slices() => Err(Refused::Damaged(format!(
            "the store was made with {} slices, and the database has {}",
            head.slices,
            engine.slices()
        ))),
        (Some(_), _) => Ok(()),
        (None, wanted) => engine.grow(wanted.unwrap_or(SLICES_DEFAULT)),
    }
}

impl Service {
    /// Opens the store on RocksDB; makes one with `slices` if it is new. `stopped` is called once, when nothing can be
    /// written any more.
    pub fn open(
        mut engine: Loaded,
        slices: Option<u32>,
        stopped: impl FnOnce(&Refused) + Send + 'static,
    ) -> Result<Self, Refused> {
        if !engine.is_only_read() {
            prepare(&mut engine, slices)?;
        } else if let Ok(Some(head)) = head(&engine) {
            // A database that was put together from SSTs has as many as a store may have.
            engine.shrink(head.slices);
        }
        Self::on(Arc::new(engine), stopped)
    }

    /// Opens the store of any engine, with the slices that it has.
    pub fn on(
        engine: Arc<dyn Engine>,
        stopped: impl FnOnce(&Refused) + Send + 'static,
    ) -> Result<Self, Refused> {
        let slices = engine.slices();
        let new = Head { version: FORMAT_VERSION, slices, openings: 0 };
        let mut head = match head(&*engine) {
            // It may be what is missing.
            Err(_) if engine.is_only_read() => new,
            head => head?.unwrap_or(new),
        };
        let is_only_read = engine.is_only_read();
        if !is_only_read {
            head.openings = head.openings.checked_add(1).ok_or_else(|| {
                Refused::Usage(
                    "the store was opened four thousand million times: dump and load it".into(),
                )
            })?;
            let value =
                serde_json::to_vec(&head).map_err(|error| Refused::Failed(error.to_string()))?;
            engine.write(&[&Change::Put { slice: OWN, key: HEAD.into(), value }], true)?;
        }
        let committer = Committer::start(Arc::clone(&engine), stopped)
            .map_err(|error| Refused::Failed(format!("a thread cannot be started: {error}")))?;
        let mut service = Self {
            engine,
            committer,
            taken: Arc::default(),
            openings: head.openings,
            ids: AtomicU64::new(0),
            free_blocks: AtomicU64::new(ROOM_UNKNOWN),
            kept_blocks: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            units: Mutex::new(Ok(Room::default())),
            look: OnceLock::new(),
            cleared: 0,
        };
        if is_only_read {
            return Ok(service);
        }
        service.cleared = match service.clear_up() {
            // They can wait for the next opening: nobody sees them.
            Err(Refused::Full(_)) => 0,
            cleared => cleared?,
        };
        Ok(service)
    }

    /// The engine.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// How many slices there are.
    pub fn slices(&self) -> u32 {
        self.engine.slices()
    }

    /// Files whose writing ended early before this opening; they are gone.
    pub fn cleared(&self) -> u64 {
        self.cleared
    }

    pub(super) fn taken(&self) -> &Arc<Taken> {
        &self.taken
    }

    pub(super) fn new_id(&self) -> Result<u64, Refused> {
        match self.ids.fetch_add(1, Ordering::Relaxed) {
            id if id < IDS_MAX => Ok(u64::from(self.openings) << 32 | id),
            _ => Err(Refused::Failed(
                "too many files since the store was opened: start it again".into(),
            )),
        }
    }

    /// Has the changes made, all or none; `answer` hears when they are durable.
    pub fn submit(&self, changes: Vec<Change>, answer: Answer) {
        if let Err(why) = self.takes_changes() {
            return answer(Err(why));
        }
        self.committer.submit(changes, answer);
    }

    /// The same, and waits for it.
    pub fn commit(&self, changes: Vec<Change>) -> Result<(), Refused> {
        self.takes_changes()?;
        self.committer.commit(changes)
    }

    /// Makes changes that the next commit makes durable.
    pub(super) fn write(&self, changes: &[&Change]) -> Result<(), Refused> {
        self.takes_changes()?;
        if let Some(why) = self.stopped() {
            return Err(why);
        }
        self.engine.write(changes, false).inspect_err(|why| self.committer.failed(why))?;
        self.committer.written(changes);
        Ok(())
    }

    fn takes_changes(&self) -> Result<(), Refused> {
        match self.engine.is_only_read() {
            true => Err(Refused::Unready(
                "the store is open to read what is left of it (--damaged): nothing is changed: dump it, and load \
                 that into another one"
                    .into(),
            )),
            false => Ok(()),
        }
    }

    /// Fails with what there is if a slice is not.
    pub fn has_slice(&self, slice: u32) -> Result<(), Refused> {
        let last = self.slices().saturating_sub(1);
        let why =
            || Refused::Usage(format!("slice {slice}: this store has the slices 0 to {last}"));
        (slice <= last).then_some(()).ok_or_else(why)
    }

    /// Writes a slice anew, without what was deleted in it, which takes room before it gives some.
    pub fn compact(&self, slice: u32) -> Result<(), Refused> {
        self.takes_changes()?;
        self.look();
        if let Some((free, kept)) = self.room() {
            let needed = (COMPACTION_SSTS * self.sst_blocks()).min(kept / 2);
            if free < needed {
                return Err(Refused::Full(format!(
                    "slice {slice} is not compacted: that takes up to {needed} raw blocks before it gives any, and {free} \
                     are free: ask again when what was deleted is erased, or move some of it to another device (`weir \
                     store dump`)"
                )));
            }
        }
        self.engine.compact(slice)
    }

    fn sst_blocks(&self) -> u64 {
        self.engine.sst_blocks().into()
    }

    /// Why nothing is written any more.
    pub fn stopped(&self) -> Option<Refused> {
        self.committer.stopped()
    }

    /// What was committed.
    pub fn counts(&self) -> Counts {
        self.committer.counts()
    }

    /// Says how the units are asked for their room; who serves does [`Service::look`] now and then.
    pub fn set_look(&self, look: Look) {
        // A second one would say the same.
        self.look.set(look).ok();
    }

    /// Asks the units for their room, and the engine to go on if it found none before.
    pub fn look(&self) {
        if let Some(look) = self.look.get() {
            self.set_room(look());
        }
        if self.units().is_ok() {
            // Why it does not is told by `ready`.
            self.engine.takes_writes(true).ok();
        }
    }

    /// Tells what room the units have, or why they do not say.
    pub fn set_room(&self, room: Result<Room, String>) {
        let (free, all) = room.as_ref().map_or((ROOM_UNKNOWN, 0), |room| (room.free(), room.all()));
        *self.units() = room;
        let most = KEPT_SSTS * self.sst_blocks() + 2 * u64::from(self.slices());
        let kept = most.min(all / KEPT_PART);
        self.kept_blocks.store(kept, Ordering::Relaxed);
        self.taken_bytes.store(0, Ordering::Relaxed);
        self.free_blocks.store(free, Ordering::Relaxed);
    }

    /// What room each unit has, or why that is not known.
    pub fn units(&self) -> MutexGuard<'_, Result<Room, String>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raw blocks that are free, and how many of these are kept for compaction; `None` if that is not known.
    pub fn room(&self) -> Option<(u64, u64)> {
        let free = self.free_blocks.load(Ordering::Relaxed);
        (free != ROOM_UNKNOWN).then(|| (free, self.kept_blocks.load(Ordering::Relaxed)))
    }

    /// If little more is left than what is kept, so that it should be asked often.
    pub fn is_nearly_full(&self) -> bool {
        self.room().is_some_and(|(free, kept)| free < 3 * kept)
    }

    /// What is new is refused while compaction may need what is free: so there is always a way back, by deleting.
    pub(super) fn admit(&self, bytes: usize) -> Result<(), Refused> {
        self.has_room_after(self.taken_bytes.fetch_add(bytes as u64, Ordering::Relaxed))
    }

    /// Whether a put is taken after so many bytes since the units were asked.
    fn has_room_after(&self, taken: u64) -> Result<(), Refused> {
        // Once as it comes, and once more for what compaction makes of it meanwhile.
        let since = (2 * taken).div_ceil(self.engine.block_bytes());
        match self.room() {
            Some((free, kept)) if free < kept + since || free == 0 => Err(self.full(free, kept)),
            _ => Ok(()),
        }
    }

    fn full(&self, free: u64, kept: u64) -> Refused {
        let units = self.units();
        let failed = units.as_ref().ok().and_then(Room::failed);
        let failed = failed.map_or(String::new(), |failed| format!("{failed}; "));
        Refused::Full(format!(
            "the units are full: {failed}{free} raw blocks are free, and {kept} are kept for compaction: delete \
             something and have it made room of (`weir store compact`)"
        ))
    }

    /// Fails with the reason while puts are refused, or would fail.
    pub fn ready(&self) -> Result<(), Refused> {
        if let Some(why) = self.stopped() {
            return Err(Refused::Failed(format!("nothing can be written: {why}")));
        }
        self.takes_changes()?;
        if let Err(why) = &*self.units() {
            return Err(Refused::Unready(unanswered(why)));
        }
        self.engine.takes_writes(false)?;
        self.has_room_after(self.taken_bytes.load(Ordering::Relaxed))
    }

    /// What failed is no damage if the units do not even answer: then this fails with the reason.
    pub(super) fn reach(&self) -> Result<(), Refused> {
        self.look();
        match &*self.units() {
            Ok(_) => Ok(()),
            Err(why) => Err(Refused::Unready(unanswered(why))),
        }
    }

    /// The SSTs that are missing, where that is known, and what is lost with each.
    pub fn missing(&self) -> Vec<String> {
        let tables = self.engine.tables();
        let missing = tables.iter().filter_map(|table| {
            let why = Refused::Damaged(table.damage.clone()?);
            Some(super::scrub::damage(table, &why))
        });
        missing.collect()
    }

    /// How each slice does.
    pub fn status(&self) -> Vec<SliceStatus> {
        // A log that could not be read whole is listed among the SSTs, and has no keys.
        let mut counts = vec![(0, 0, 0); self.slices() as usize];
        for table in self.engine.tables().iter().filter(|table| !table.largest.is_empty()) {
            if let Some((tables, bytes, raw_blocks)) = counts.get_mut(table.slice as usize) {
                *tables += 1;
                *bytes += table.bytes;
                *raw_blocks += table.bytes.div_ceil(self.engine.block_bytes());
            }
        }
        let status = |(slice, (tables, table_bytes, raw_blocks))| {
            let number = |name: &str| self.engine.property(slice, &format!("rocksdb.{name}"));
            SliceStatus {
                slice,
                keys: number("estimate-num-keys"),
                tables,
                table_bytes,
                raw_blocks,
                memory_bytes: number("cur-size-all-mem-tables"),
                compaction_bytes: number("estimate-pending-compaction-bytes"),
            }
        };
        (0..).zip(counts).map(status).collect()
    }
}
