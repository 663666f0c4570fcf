//! Lays the addresses of a trace onto a device. The volumes of the trace lie one behind the other, in
//! the order of their numbers, each from a whole extent of 1 MiB on; what that makes larger than the
//! device is refused, or moved in whole extents, so that what lies together in an extent stays so.

use super::ReplayError;
use crate::report::number::bytes_apart;
use crate::target::Rules;
use crate::trace::{ADDRESS_MAX, Op, Place, Reader, Record, Repairs, TraceError};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What moves as a whole.
pub const EXTENT_BYTES: u64 = 1 << 20;

/// What becomes of addresses beyond the end of the device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FitKind {
    /// Refuses the trace.
    Refuse,
    /// Begins anew at the start of the device.
    Wrap,
    /// Shrinks all addresses alike, if the trace is larger than the device.
    Scale,
    /// Lays only the extents that the trace touches onto the device, in their order.
    Pack,
}

/// What a first reading of a trace finds.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Requests.
    pub requests: u64,
    /// Writes and trims.
    pub changes: u64,
    /// Bytes of its writes.
    pub bytes_written: u64,
    /// From the first to the last.
    pub duration_ns: u64,
    /// What had to be mended.
    pub repairs: Repairs,
    /// By volume: where its last request ends, and where in the file that stands.
    volumes: BTreeMap<u32, (u64, Option<Place>)>,
    /// Volume and number of the extents that are touched.
    extents: BTreeSet<(u32, u64)>,
}

impl Survey {
    /// Reads a trace to its end. `progress` is called now and then.
    pub fn read(
        reader: &mut Reader,
        kind: FitKind,
        progress: &mut dyn FnMut(&Reader),
    ) -> Result<Self, TraceError> {
        let mut survey = Self::default();
        while let Some(record) = reader.next() {
            survey.add(&record?, Some(reader.place()), kind);
            if survey.requests.is_multiple_of(4096) {
                progress(reader);
            }
        }
        survey.repairs = reader.repairs().clone();
        Ok(survey)
    }

    /// Counts one more record, which stands at `place` of its file.
    pub fn add(&mut self, record: &Record, place: Option<Place>, kind: FitKind) {
        self.requests += 1;
        self.changes += u64::from(matches!(record.op, Op::Write | Op::Trim));
        self.bytes_written += if record.op == Op::Write { record.length } else { 0 };
        self.duration_ns = record.time_ns;
        let (end, at) = self.volumes.entry(record.volume).or_default();
        if record.end() > *end {
            (*end, *at) = (record.end(), place);
        }
        // A trim that nothing else touches makes no extent worth a place on the device.
        if kind == FitKind::Pack && matches!(record.op, Op::Read | Op::Write) {
            let extents = record.offset / EXTENT_BYTES..record.end().div_ceil(EXTENT_BYTES);
            self.extents.extend(extents.map(|extent| (record.volume, extent)));
        }
    }

    /// Volumes.
    pub fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// The time of one round: one mean gap beyond the last request.
    pub fn period_ns(&self) -> u64 {
        self.duration_ns + self.duration_ns / self.requests.saturating_sub(1).max(1)
    }

    /// How many times the trace makes one round, which writes the capacity; `None` if it writes nothing.
    pub fn passes_of_round(&self, capacity: u64) -> Option<u64> {
        (self.bytes_written > 0).then(|| capacity.div_ceil(self.bytes_written).max(1))
    }

    /// Bytes of a device that holds the trace without moving anything but what `kind` packs.
    pub fn span_bytes(&self, kind: FitKind) -> u64 {
        if kind == FitKind::Pack {
            return self.extents.len() as u64 * EXTENT_BYTES;
        }
        let ends = self.volumes.values().map(|(end, _)| end.next_multiple_of(EXTENT_BYTES));
        ends.fold(0, u64::saturating_add)
    }
}

/// Why a trace does not fit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FitError {
    /// A request lies beyond the end.
    Beyond {
        /// Where it stands in the file.
        place: Option<Place>,
        /// Its volume.
        volume: u32,
        /// Where it ends on the device.
        end: u64,
        /// The device's size.
        capacity: u64,
    },
    /// Even packed it is too large.
    TooLarge {
        /// Bytes of the touched extents.
        bytes: u64,
        /// The device's size.
        capacity: u64,
    },
    /// Raw units take no such write.
    Unaligned {
        /// Where it stands in the file.
        place: Option<Place>,
        /// Where it begins on the device.
        offset: u64,
        /// How long it is there.
        bytes: u64,
        /// What writes are multiples of.
        unit: u64,
    },
    /// The device has not one extent.
    DeviceTooSmall {
        /// Its size.
        capacity: u64,
    },
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beyond { place, volume, end, capacity } => {
                if let Some(place) = place {
                    write!(f, "{place}: ")?;
                }
                let (end, capacity) = bytes_apart(*end, *capacity);
                write!(
                    f,
                    "the request on volume {volume} ends at {end}, and the device has \
                     {capacity}: use a larger device, or --fit pack, wrap or scale"
                )
            }
            Self::TooLarge { bytes, capacity } => {
                let (bytes, capacity) = bytes_apart(*bytes, *capacity);
                write!(
                    f,
                    "the trace touches {bytes}, and the device has {capacity}: use a larger \
                     device, or --fit wrap or scale"
                )
            }
            Self::Unaligned { place, offset, bytes, unit } => {
                if let Some(place) = place {
                    write!(f, "{place}: ")?;
                }
                write!(
                    f,
                    "a write of {bytes} bytes at byte {offset} of the device, whose raw units take \
                     only writes of whole, aligned units of {unit} bytes: use a trace of such \
                     writes, or a device with an FTL, such as gen3 or tssd"
                )
            }
            Self::DeviceTooSmall { capacity } => {
                let (capacity, least) = bytes_apart(*capacity, EXTENT_BYTES);
                write!(f, "the device has {capacity}: it needs at least {least}")
            }
        }
    }
}

impl std::error::Error for FitError {}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Fit {
    /// Where each volume begins.
    bases: BTreeMap<u32, u64>,
    capacity: u64,
    place: Placing,
}

#[derive(Clone, Debug)]
enum Placing {
    /// Where it is.
    Same,
    /// Modulo so many extents.
    Modulo(u64),
    /// Times the first by the second, in extents.
    Ratio(u64, u64),
    /// By rank among these.
    Rank(Vec<u64>),
}

impl Fit {
    /// Lays the surveyed trace onto `capacity` bytes.
    pub fn new(survey: &Survey, kind: FitKind, capacity: u64) -> Result<Self, FitError> {
        let mut bases = BTreeMap::new();
        let mut span = 0u64;
        for (&volume, &(end, place)) in &survey.volumes {
            bases.insert(volume, span);
            let end = span + end;
            if kind == FitKind::Refuse && end > capacity || end > ADDRESS_MAX {
                return Err(FitError::Beyond { place, volume, end, capacity });
            }
            span = end.next_multiple_of(EXTENT_BYTES);
        }
        let room = capacity / EXTENT_BYTES;
        if room == 0 && kind != FitKind::Refuse {
            return Err(FitError::DeviceTooSmall { capacity });
        }
        let extents = span / EXTENT_BYTES;
        let place = match kind {
            FitKind::Refuse => Placing::Same,
            FitKind::Wrap => Placing::Modulo(room),
            FitKind::Scale if extents <= room => Placing::Same,
            FitKind::Scale => Placing::Ratio(room, extents),
            FitKind::Pack => {
                let at = |&(volume, extent): &(u32, u64)| bases[&volume] / EXTENT_BYTES + extent;
                let touched: Vec<u64> = survey.extents.iter().map(at).collect();
                if touched.len() as u64 > room {
                    let bytes = touched.len() as u64 * EXTENT_BYTES;
                    return Err(FitError::TooLarge { bytes, capacity });
                }
                Placing::Rank(touched)
            }
        };
        Ok(Self { bases, capacity, place })
    }

    /// All of a device of `capacity` bytes as it is, for records that were made for it.
    pub fn whole(capacity: u64) -> Self {
        Self { bases: BTreeMap::from([(0, 0)]), capacity, place: Placing::Same }
    }

    /// Reads the trace once more if the device does not take every write, and refuses the first one
    /// that it would not take.
    pub fn check_writes(&self, reader: &mut Reader, rules: Rules) -> Result<(), ReplayError> {
        let unit = rules.write_bytes;
        if rules.erase_bytes == 0 {
            return Ok(());
        }
        let mut pieces = Vec::new();
        while let Some(record) = reader.next() {
            let record = record?;
            if record.op != Op::Write {
                continue;
            }
            self.pieces(&record, &mut pieces);
            for &(offset, bytes) in &pieces {
                if !offset.is_multiple_of(unit) || !bytes.is_multiple_of(unit) {
                    let place = Some(reader.place());
                    return Err(FitError::Unaligned { place, offset, bytes, unit }.into());
                }
            }
        }
        Ok(())
    }

    /// The device's size.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The ranges (first byte, bytes) of the device that a record means; true if that is not where
    /// the trace has it. Neighbours are joined.
    pub fn pieces(&self, record: &Record, pieces: &mut Vec<(u64, u64)>) -> bool {
        pieces.clear();
        let base = self.bases.get(&record.volume).copied().unwrap_or(0);
        let (at, end) = (base + record.offset, base + record.end());
        if let Placing::Same = self.place {
            if end > at {
                pieces.push((at, end - at));
            }
            return false;
        }
        let extents = at / EXTENT_BYTES..end.div_ceil(EXTENT_BYTES);
        let mut moved = false;
        // What a device has room for is few; a trim may cover far more.
        let count = extents.end - extents.start;
        match &self.place {
            Placing::Modulo(room) if count > *room => {
                pieces.push((0, room * EXTENT_BYTES));
                return true;
            }
            Placing::Ratio(room, _) if count > *room => {
                let first = self.extent(extents.start).unwrap_or(0);
                let last = self.extent(extents.end - 1).unwrap_or(0);
                pieces.push((first * EXTENT_BYTES, (last + 1 - first) * EXTENT_BYTES));
                return true;
            }
            Placing::Rank(touched) => {
                let from = touched.partition_point(|&extent| extent < extents.start);
                for &extent in touched[from..].iter().take_while(|&&e| e < extents.end) {
                    moved |= self.piece(extent, at, end, pieces);
                }
                return moved;
            }
            _ => {}
        }
        for extent in extents {
            moved |= self.piece(extent, at, end, pieces);
        }
        moved
    }

    /// Adds what lies in one extent; true if that is moved.
    fn piece(&self, extent: u64, at: u64, end: u64, pieces: &mut Vec<(u64, u64)>) -> bool {
        let start = extent * EXTENT_BYTES;
        let (first, last) = (at.max(start), end.min(start + EXTENT_BYTES));
        let Some(placed) = self.extent(extent) else { return false };
        let to = placed * EXTENT_BYTES + (first - start);
        match pieces.last_mut() {
            Some((begin, length)) if *begin + *length == to => *length += last - first,
            _ => pieces.push((to, last - first)),
        }
        placed != extent
    }

    /// Where an extent lies on the device; `None` for one that only trims touch.
    fn extent(&self, extent: u64) -> Option<u64> {
        match &self.place {
            Placing::Same => Some(extent),
            Placing::Modulo(room) => Some(extent % room),
            Placing::Ratio(room, extents) => {
                Some((u128::from(extent) * u128::from(*room) / u128::from(*extents)) as u64)
            }
            Placing::Rank(touched) => touched.binary_search(&extent).ok().map(|rank| rank as u64),
        }
    }
}
