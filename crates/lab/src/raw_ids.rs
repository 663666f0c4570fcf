//! A host of SDF's ID layer that knows what it may find: it puts, reads and deletes blocks of a few
//! numbers, so that lanes fill up, numbers come again and puts wait for erases, and holds every answer
//! against a plain map from number to stamp.
//!
//! Invariants watched:
//! - A put that was answered is there after any power cut, whole; one that was not is there whole or
//!   not at all. A delete that was answered stays; one that was not has happened or not.
//! - No read returns anything but what was put last under that very ID.
//! - A put is refused as full only if as many blocks of its lane are there, or on their way, as the
//!   lane has raw blocks.

use crate::driver::{Failure, Finished, Sim};
use crate::raw_crash::{CrashHost, RawCrashOptions};
use flash::{Hint, Lba, Random};
use ftl::raw::RawUnits;
use ftl::raw::ids::{Id, IdError, Ids, Step};
use std::collections::{BTreeMap, BTreeSet};

/// What is being done to a number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Change {
    Put(u64),
    Delete,
}

/// What is known of a number.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Known {
    /// The stamp of what was put and not deleted.
    stamp: Option<u64>,
    /// Without an answer.
    change: Option<Change>,
}

/// What the numbers may hold.
#[derive(Clone, Debug, Default)]
pub struct IdModel {
    numbers: BTreeMap<u64, Known>,
    /// Counts puts: each has stamps of its own.
    puts: u64,
}

/// What went through the host so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct IdHostCounts {
    /// Blocks put.
    pub puts: u64,
    /// Of those: waited for an erase.
    pub waited: u64,
    /// Blocks deleted.
    pub deletes: u64,
    /// Reads.
    pub reads: u64,
    /// Puts refused because the lane was full.
    pub full: u64,
    /// Refused for another reason, as they had to be.
    pub refused: u64,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Put(u64),
    /// First block, blocks, and the stamp that the number held.
    Get(u32, u32, Option<u64>),
    Delete,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    id: Id,
    asked: Asked,
    /// What the answer must be, if it can only be one.
    due: Option<Result<(), IdError>>,
}

/// See the head of this file.
pub struct IdHost {
    sim: Sim<RawUnits>,
    ids: Ids,
    model: IdModel,
    pending: BTreeMap<u64, Pending>,
    /// What a read brought, until its answer.
    read: BTreeMap<u64, Vec<u64>>,
    tokens: u64,
    /// What went through so far.
    pub counts: IdHostCounts,
    promised: bool,
    /// The first wrong answer to what was asked last.
    failure: Option<Failure>,
}

/// Stamps of two puts differ in every block.
const STAMPS_APART: u64 = 1 << 16;

/// The key of each number.
fn id_of(number: u64) -> Id {
    Id::new(number.wrapping_mul(7) + 1, number)
}

impl IdHost {
    fn numbers(&self) -> u64 {
        let lanes = self.sim.ftl().lanes();
        u64::from(lanes.lanes) * (u64::from(lanes.raw_blocks) + 2)
    }

    fn known(&self, number: u64) -> Known {
        self.model.numbers.get(&number).copied().unwrap_or_default()
    }

    fn ask(&mut self, id: Id, asked: Asked, due: Option<Result<(), IdError>>) -> u64 {
        self.tokens += 1;
        self.pending.insert(self.tokens, Pending { id, asked, due });
        self.tokens
    }

    fn put(&mut self, number: u64) {
        let (id, known) = (id_of(number), self.known(number));
        let due = match known {
            Known { change: Some(_), .. } => Some(IdError::Busy),
            Known { stamp: Some(_), .. } => Some(IdError::Exists { key: id.key() }),
            _ => None,
        };
        self.model.puts += 1;
        let stamp = self.model.puts * STAMPS_APART;
        if due.is_none() {
            let change = Some(Change::Put(stamp));
            self.model.numbers.insert(number, Known { stamp: None, change });
        }
        let token = self.ask(id, Asked::Put(stamp), due.map(Err));
        self.ids.put(self.sim.ftl(), token, id);
    }

    fn due_of_existing(&self, id: Id) -> Option<IdError> {
        match self.known(id.number()) {
            Known { change: Some(Change::Put(_)), .. } | Known { stamp: None, .. } => {
                Some(IdError::Unknown)
            }
            _ if id != id_of(id.number()) => Some(IdError::OtherKey),
            Known { change: Some(Change::Delete), .. } => Some(IdError::Busy),
            Known { stamp: Some(_), change: None } => None,
        }
    }

    fn delete(&mut self, number: u64) {
        let id = id_of(number);
        let due = self.due_of_existing(id);
        if due.is_none() {
            let stamp = self.known(number).stamp;
            self.model.numbers.insert(number, Known { stamp, change: Some(Change::Delete) });
        }
        let token = self.ask(id, Asked::Delete, due.map(Err));
        self.ids.delete(self.sim.ftl(), token, id);
    }

    fn get(&mut self, id: Id, first: u32, blocks: u32) {
        let due = self.due_of_existing(id).map(Err);
        let asked = Asked::Get(first, blocks, self.known(id.number()).stamp);
        let token = self.ask(id, asked, due);
        self.ids.get(self.sim.ftl(), token, id, first, blocks);
    }

    /// Carries out what the layer wants next, until it waits.
    fn carry_out(&mut self) -> Result<(), Failure> {
        while let Some(step) = self.ids.poll() {
            match step {
                Step::Write { token, id, lba, blocks } => {
                    let Some(Pending { asked: Asked::Put(stamp), .. }) = self.pending.get(&token)
                    else {
                        return Err(Failure(format!("{step:?}, but no such put was asked")));
                    };
                    let stamps: Vec<u64> = (0..u64::from(blocks)).map(|at| stamp + at).collect();
                    self.sim.ftl_mut().tag(lba, id.0);
                    self.sim.write(token, lba.0, &stamps, (true, false), Hint::default());
                }
                Step::Read { token, lba, blocks } => self.sim.read(token, lba.0, blocks),
                Step::Erase { token, lba, blocks } => self.sim.trim(token, lba.0, blocks, true),
                Step::Reply { token, result } => self.judge(token, result)?,
            }
        }
        Ok(())
    }

    fn ended(&mut self, finished: Finished) {
        if matches!(finished.request.operation, flash::Operation::Read { .. }) {
            let stamps = self.sim.stamps(&finished).to_vec();
            self.read.insert(finished.token, stamps);
        }
        self.ids.ended(self.sim.ftl(), finished.token, finished.result);
        self.sim.release(finished);
    }

    fn judge(&mut self, token: u64, result: Result<(), IdError>) -> Result<(), Failure> {
        let Some(Pending { id, asked, due }) = self.pending.remove(&token) else {
            return Err(Failure(format!("an answer to {token}, which was not asked")));
        };
        let wrong = |what: &str| Err(Failure(format!("{asked:?} of {id}: {result:?}, {what}")));
        if due.is_some_and(|due| due != result) {
            return wrong(&format!("but {due:?} is due"));
        }
        if due.is_some() {
            self.counts.refused += 1;
            return Ok(());
        }
        match (asked, result) {
            (Asked::Put(stamp), Ok(())) => {
                self.model.numbers.insert(id.number(), Known { stamp: Some(stamp), change: None });
                self.counts.puts += 1;
                self.counts.waited = self.ids.counts().puts_waited;
                self.promised = true;
            }
            (Asked::Put(_), Err(IdError::Full { lane, raw_blocks, .. })) => {
                self.model.numbers.remove(&id.number());
                self.counts.full += 1;
                let taken =
                    self.model.numbers.keys().filter(|&&it| self.ids.lane_of(id_of(it)) == lane);
                if (taken.count() as u32) < raw_blocks {
                    return wrong("but there is room");
                }
            }
            (Asked::Delete, Ok(())) => {
                self.model.numbers.remove(&id.number());
                self.counts.deletes += 1;
                self.promised = true;
            }
            (Asked::Get(first, blocks, held), Ok(())) => {
                self.counts.reads += 1;
                let stamp = held.unwrap_or_default() + u64::from(first);
                let right: Vec<u64> = (0..u64::from(blocks)).map(|at| stamp + at).collect();
                let read = self.read.remove(&token).unwrap_or_default();
                if read != right {
                    return wrong(&format!("but it read {read:x?}, not {right:x?}"));
                }
            }
            // A delete that came after it has won.
            (Asked::Get(.., held), Err(IdError::Unknown | IdError::Busy))
                if self.known(id.number()) != (Known { stamp: held, change: None }) =>
            {
                self.read.remove(&token);
                self.counts.refused += 1;
            }
            _ => return wrong("which nothing explains"),
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.collect()?;
        while !self.pending.is_empty() {
            self.sim.run_until_answered()?;
            self.collect()?;
        }
        Ok(())
    }
}

impl CrashHost for IdHost {
    type Model = IdModel;
    /// The stamp of each number that is there.
    type Seen = BTreeMap<u64, u64>;

    fn attach(sim: Sim<RawUnits>, model: IdModel, _: &RawCrashOptions) -> Self {
        let ids = Ids::mounted(sim.ftl()).expect("the options ask for whole blocks");
        Self {
            sim,
            ids,
            model,
            pending: BTreeMap::new(),
            read: BTreeMap::new(),
            tokens: 0,
            counts: IdHostCounts::default(),
            promised: false,
            failure: None,
        }
    }

    fn reattach(&mut self, sim: Sim<RawUnits>, options: &RawCrashOptions) {
        let (model, counts) = (self.model.clone(), self.counts);
        *self = Self::attach(sim, model, options);
        self.counts = counts;
    }

    fn sim(&mut self) -> &mut Sim<RawUnits> {
        &mut self.sim
    }

    fn model(&mut self) -> &mut IdModel {
        &mut self.model
    }

    fn submit_any(&mut self, random: &mut Random) {
        let number = random.below(self.numbers());
        let slots = self.sim.ftl().lanes().slots;
        let Known { stamp, change } = self.known(number);
        match random.below(12) {
            0 => self.put(number),
            1 => self.delete(number),
            2 => self.get(Id::new(!0, number), 0, 1),
            3..=5 => {
                let first = random.below(u64::from(slots)) as u32;
                let blocks = 1 + random.below(u64::from(slots - first)) as u32;
                self.get(id_of(number), first, blocks);
            }
            // A few of the many that are asked of a number while something is done to it.
            6 if change.is_some() => self.delete(number),
            _ if stamp.is_some() && change.is_none() && random.chance(0.6) => self.delete(number),
            _ => self.put(number),
        }
        // What is refused at once is judged by what is known now.
        self.failure = self.failure.take().or(self.carry_out().err());
    }

    fn in_flight(&self) -> u32 {
        self.pending.len() as u32
    }

    fn collect(&mut self) -> Result<bool, Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.carry_out()?;
        while let Some(finished) = self.sim.take_finished() {
            self.ended(finished);
            self.carry_out()?;
        }
        Ok(std::mem::take(&mut self.promised))
    }

    fn read_back(&mut self) -> Result<(), Failure> {
        self.drain()?;
        let slots = self.sim.ftl().lanes().slots;
        for number in 0..self.numbers() {
            self.get(id_of(number), 0, slots);
            self.drain()?;
        }
        let listed = self.ids.list(self.sim.ftl(), None, usize::MAX);
        let listed: BTreeSet<u64> = listed.iter().map(|block| block.id.number()).collect();
        let known: BTreeSet<u64> = self.model.numbers.keys().copied().collect();
        match listed == known {
            true => Ok(()),
            false => Err(Failure(format!("listed are {listed:?}, put were {known:?}"))),
        }
    }

    /// What was answered is durable already.
    fn shut_down(&mut self, _: &RawCrashOptions) {}

    fn observe(sim: &mut Sim<RawUnits>) -> Result<(Self::Seen, u64), Failure> {
        let slots = sim.ftl().lanes().slots;
        let ids = Ids::mounted(sim.ftl()).map_err(|error| Failure(error.to_string()))?;
        let lanes = sim.ftl().lanes();
        let mut seen = BTreeMap::new();
        for block in ids.list(sim.ftl(), None, usize::MAX) {
            if block.id != id_of(block.id.number()) || block.lane != ids.lane_of(block.id) {
                return Err(Failure(format!("{block:?} was never put so")));
            }
            let lba = Lba((block.lane * lanes.raw_blocks + block.raw_block) * slots);
            sim.read(0, lba.0, slots);
            sim.run_until_answered()?;
            let finished = sim.take_finished().expect("it was answered");
            let stamps = sim.stamps(&finished).to_vec();
            sim.release(finished);
            if finished.result.is_err() || (0..).zip(&stamps).any(|(at, &it)| it != stamps[0] + at)
            {
                let result = finished.result;
                return Err(Failure(format!("{block:?} reads {result:?}: {stamps:x?}")));
            }
            seen.insert(block.id.number(), stamps[0]);
        }
        let blocks = seen.len() as u64 * u64::from(slots);
        Ok((seen, blocks))
    }

    fn check(model: &IdModel, seen: &Self::Seen) -> Result<(), String> {
        let numbers: BTreeSet<&u64> = model.numbers.keys().chain(seen.keys()).collect();
        for number in numbers {
            let known = model.numbers.get(number).copied().unwrap_or_default();
            let found = seen.get(number).copied();
            let changed = match known.change {
                Some(Change::Put(stamp)) => found == Some(stamp),
                Some(Change::Delete) => found.is_none(),
                None => false,
            };
            if found != known.stamp && !changed {
                return Err(format!("number {number} holds {found:x?}, but is {known:x?}"));
            }
        }
        Ok(())
    }

    fn settle(model: &mut IdModel, seen: &Self::Seen) {
        let known = |&stamp: &u64| Known { stamp: Some(stamp), change: None };
        model.numbers = seen.iter().map(|(&number, stamp)| (number, known(stamp))).collect();
    }
}
