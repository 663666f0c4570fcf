//! Reads of the plane what an opening needs, key after key. The volume is ours already, so no older owner changes
//! any of it meanwhile.

use super::{OpeningConfig, OpeningError};
use crate::control::contract::{Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId, RANGE_MAX};
use crate::control::keys;
use crate::control::ownership::OwnershipConfig;
use crate::control::registry::{Owned, Tail};
use crate::control::values::{
    BandRecord, ClearRecord, FORMAT, NodeRecord, OwnerRecord, PoolRecord, TailRecord, Value,
    VolumeRecord,
};
use crate::words::{Generation, NodeId, PoolId, VolumeId};
use flash::{Instant, MILLISECOND};
use std::collections::BTreeSet;

/// What was read.
pub(super) struct Read {
    pub owned: Owned,
    pub volume: VolumeRecord,
    pub tail: Tail,
    pub nodes: Vec<NodeRecord>,
    pub clear: BTreeSet<NodeId>,
    pub bands: Vec<BandRecord>,
}

/// A walk over keys of the plane.
pub(super) struct Reading {
    read: Read,
    step: Step,
    /// Where the next part of a range begins.
    from: Option<String>,
    in_flight: Option<(PlaneAskId, Instant)>,
    ask_at: Instant,
    answer_ns_max: u64,
    asks: u64,
    output: Option<(PlaneAskId, PlaneAsk)>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Pool {
        pool: PoolId,
    },
    Volume,
    Tail,
    Nodes,
    Clear,
    Bands,
    /// A node has heard of a higher generation: has the plane?
    Owner {
        node: NodeId,
        highest: Generation,
    },
}

impl Reading {
    /// Reads all.
    pub fn new(now: Instant, owned: Owned, config: OpeningConfig) -> Self {
        Self::at(now, owned, config.ownership, Step::Pool { pool: config.pool })
    }

    /// Looks whose the volume is, as `node` has heard of a generation above ours.
    pub fn of_owner(
        now: Instant,
        generation: Generation,
        (node, highest): (NodeId, Generation),
        config: OwnershipConfig,
    ) -> Self {
        let owned = Owned { volume: config.volume, generation, revision: 0 };
        let mut reading = Self::at(now, owned, config, Step::Owner { node, highest });
        // Beside those of the first walk, whose answers may still come.
        reading.asks = 1 << 32;
        reading
    }

    fn at(now: Instant, owned: Owned, config: OwnershipConfig, step: Step) -> Self {
        let read = Read {
            owned,
            volume: VolumeRecord::default(),
            // Nothing was registered, if there is no record.
            tail: Tail { life: Some(0), ..Tail::default() },
            nodes: Vec::new(),
            clear: BTreeSet::new(),
            bands: Vec::new(),
        };
        let answer_ns_max = config.answer_ns_max;
        Self {
            read,
            step,
            from: None,
            in_flight: None,
            ask_at: now,
            answer_ns_max,
            asks: 0,
            output: None,
        }
    }

    pub fn elapsed(&mut self, now: Instant) {
        if self.in_flight.is_some_and(|(_, sent)| now >= sent + self.answer_ns_max) {
            self.in_flight = None;
        }
        if self.in_flight.is_none() && now >= self.ask_at {
            let id = PlaneAskId::of_part(Part::Opening, self.asks);
            self.asks += 1;
            self.in_flight = Some((id, now));
            self.output = Some((id, self.ask()));
        }
    }

    pub fn poll(&mut self) -> Option<(PlaneAskId, PlaneAsk)> {
        self.output.take()
    }

    pub fn deadline(&self) -> Option<Instant> {
        Some(self.in_flight.map_or(self.ask_at, |(_, sent)| sent + self.answer_ns_max))
    }

    /// All of it, once it is there.
    pub fn answered(
        &mut self,
        now: Instant,
        id: PlaneAskId,
        answer: &PlaneAnswer,
    ) -> Result<Option<Box<Read>>, OpeningError> {
        if self.in_flight.take_if(|(asked, _)| *asked == id).is_none() {
            return Ok(None);
        }
        self.ask_at = now;
        match answer {
            PlaneAnswer::Value { kept, .. } => self.value(kept.as_ref())?,
            PlaneAnswer::Values { kept, more, .. } => {
                for (key, kept) in kept {
                    self.one_of(key, kept)?;
                }
                let last = kept.last().filter(|_| *more);
                // The next key after this one is this one with anything behind it.
                self.from = last.map(|(key, _)| format!("{key}\0"));
                if self.from.is_none() {
                    self.step = match self.step {
                        Step::Nodes => Step::Clear,
                        Step::Clear => Step::Bands,
                        _ => return Ok(Some(self.take())),
                    };
                }
            }
            _ => self.ask_at = now + RETRY_NS,
        }
        Ok(None)
    }

    fn take(&mut self) -> Box<Read> {
        let mut taken = Self::at(
            Instant(0),
            self.read.owned,
            OwnershipConfig::new(self.read.owned.volume, 0),
            Step::Volume,
        );
        std::mem::swap(&mut taken.read, &mut self.read);
        Box::new(taken.read)
    }

    fn ask(&self) -> PlaneAsk {
        let volume: VolumeId = self.read.owned.volume;
        let range = |(from, to): (String, String)| {
            let from = self.from.clone().unwrap_or(from);
            PlaneAsk::Range { from, to, limit: RANGE_MAX }
        };
        match self.step {
            Step::Pool { .. } => PlaneAsk::Get { key: keys::POOL.to_owned() },
            Step::Volume => PlaneAsk::Get { key: keys::volume(volume) },
            Step::Tail => PlaneAsk::Get { key: keys::tail(volume) },
            Step::Nodes => range(keys::nodes()),
            Step::Clear => range(keys::clears(volume)),
            Step::Bands => range(keys::bands(volume)),
            Step::Owner { .. } => PlaneAsk::Get { key: keys::owner(volume) },
        }
    }

    fn value(&mut self, kept: Option<&Kept>) -> Result<(), OpeningError> {
        let volume = self.read.owned.volume;
        match self.step {
            Step::Pool { pool } => {
                let kept = kept.ok_or(OpeningError::Pool(None))?;
                let found: PoolRecord = decode(keys::POOL, kept)?;
                if found.pool != pool {
                    return Err(OpeningError::Pool(Some(found.pool)));
                }
                if found.format != FORMAT {
                    return Err(OpeningError::Format(found.format));
                }
                self.step = Step::Volume;
            }
            Step::Volume => {
                let kept = kept.ok_or(OpeningError::NoVolume)?;
                self.read.volume = decode(&keys::volume(volume), kept)?;
                if self.read.volume.is_deleted {
                    return Err(OpeningError::Deleted);
                }
                self.step = Step::Tail;
            }
            Step::Tail => {
                if let Some(kept) = kept {
                    let record: TailRecord = decode(&keys::tail(volume), kept)?;
                    let TailRecord { sequence, life, .. } = record;
                    let life = Some(life).filter(|life| *life > 0);
                    self.read.tail = Tail { sequence, revision: kept.revision, life };
                }
                self.step = Step::Nodes;
            }
            Step::Owner { node, highest } => {
                let key = keys::owner(volume);
                let owner = kept.map(|kept| decode::<OwnerRecord>(&key, kept)).transpose()?;
                let by = owner.map_or(Generation(0), |owner| owner.generation);
                return Err(if by > self.read.owned.generation {
                    OpeningError::Overtaken { by }
                } else {
                    OpeningError::PlaneOld { node, highest }
                });
            }
            Step::Nodes | Step::Clear | Step::Bands => {}
        }
        Ok(())
    }

    fn one_of(&mut self, key: &str, kept: &Kept) -> Result<(), OpeningError> {
        match self.step {
            Step::Nodes => self.read.nodes.push(decode(key, kept)?),
            Step::Clear => {
                decode::<ClearRecord>(key, kept)?;
                let hex = key.rsplit('/').next().unwrap_or_default();
                self.read.clear.extend(u32::from_str_radix(hex, 16).ok().map(NodeId));
            }
            Step::Bands => self.read.bands.push(decode(key, kept)?),
            Step::Pool { .. } | Step::Volume | Step::Tail | Step::Owner { .. } => {}
        }
        Ok(())
    }
}

fn decode<V: Value>(key: &str, kept: &Kept) -> Result<V, OpeningError> {
    V::decode(key, &kept.value).map_err(|error| OpeningError::Value { key: key.to_owned(), error })
}

/// After an ask that came to nothing.
const RETRY_NS: u64 = 100 * MILLISECOND;
