//! An engine in memory: for tests of the services, and of what stands above them. It counts what is made durable, and fails
//! when it is told to.

use super::engine::{Change, Each, Engine, Table};
use super::key::KeyRange;
use super::{OWN, Refused};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

type Slice = BTreeMap<Vec<u8>, Vec<u8>>;

/// The engine. Power cuts leave what was durable.
#[derive(Debug, Default)]
pub struct Memory {
    slices: u32,
    state: Mutex<State>,
    released: Condvar,
    waiting: AtomicUsize,
    syncs: AtomicU64,
    scanned: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    now: BTreeMap<u32, Slice>,
    durable: BTreeMap<u32, Slice>,
    fails: Option<Refused>,
    reads_fail: Option<Refused>,
    /// Whoever reads one of these waits.
    held: BTreeSet<(u32, Vec<u8>)>,
}

impl Memory {
    /// An empty one.
    pub fn new(slices: u32) -> Self {
        Self { slices, ..Self::default() }
    }

    /// How often something was made durable.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Pairs that ranges were read of.
    pub fn scanned(&self) -> u64 {
        self.scanned.load(Ordering::Relaxed)
    }

    /// Every write is refused so from now on; with `None` none is.
    pub fn fail(&self, with: Option<Refused>) {
        self.state().fails = with;
    }

    /// Every read of a value is refused so from now on; with `None` none is. Ranges are read all the same.
    pub fn fail_reads(&self, with: Option<Refused>) {
        self.state().reads_fail = with;
    }

    /// Reads of what is there now wait, as for a unit that does not answer, until [`Memory::release`]. What is put from now on
    /// is in memory.
    pub fn hold(&self) {
        let state = &mut *self.state();
        let keys =
            state.now.iter().flat_map(|(slice, keys)| keys.keys().map(|key| (*slice, key.clone())));
        state.held = keys.collect();
    }

    /// Reads that wait so.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// See [`Memory::hold`].
    pub fn release(&self) {
        self.state().held.clear();
        self.released.notify_all();
    }

    /// What a power cut leaves.
    pub fn cut(&self) -> Self {
        let durable = self.state().durable.clone();
        let state = State { now: durable.clone(), durable, ..State::default() };
        Self { slices: self.slices, state: Mutex::new(state), ..Self::default() }
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        self.state().now.values().map(BTreeMap::len).sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, slice: u32) -> Result<(), Refused> {
        let known = slice < self.slices || slice == OWN;
        known.then_some(()).ok_or_else(|| Refused::Usage(format!("no slice {slice}")))
    }
}

impl Engine for Memory {
    fn slices(&self) -> u32 {
        self.slices
    }

    fn block_bytes(&self) -> u64 {
        8 << 20
    }

    fn write(&self, changes: &[&Change], durable: bool) -> Result<(), Refused> {
        let mut state = self.state();
        if let Some(refused) = &state.fails {
            return Err(refused.clone());
        }
        for change in changes {
            match change {
                Change::Put { slice, key, value } => {
                    self.check(*slice)?;
                    state.held.remove(&(*slice, key.clone()));
                    state.now.entry(*slice).or_default().insert(key.clone(), value.clone());
                }
                Change::Delete { slice, key } => {
                    self.check(*slice)?;
                    state.now.entry(*slice).or_default().remove(key);
                }
                Change::DeleteRange { slice, range } => {
                    self.check(*slice)?;
                    state.now.entry(*slice).or_default().retain(|key, _| !range.has(key));
                }
            }
        }
        if durable {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            state.durable = state.now.clone();
        }
        Ok(())
    }

    fn get(&self, slice: u32, key: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        self.check(slice)?;
        let of = (slice, key.to_vec());
        let held = |state: &mut State| state.held.contains(&of);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.released.wait_while(self.state(), held);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        match &state.reads_fail {
            Some(refused) => Err(refused.clone()),
            None => Ok(state.now.get(&slice).and_then(|keys| keys.get(key)).cloned()),
        }
    }

    fn get_in_memory(&self, slice: u32, key: &[u8]) -> Result<Option<Option<Vec<u8>>>, Refused> {
        if self.state().held.contains(&(slice, key.to_vec())) {
            return Ok(None);
        }
        self.get(slice, key).map(Some)
    }

    fn scan(&self, slice: u32, range: &KeyRange, each: &mut Each<'_>) -> Result<(), Refused> {
        self.check(slice)?;
        let keys = self.state().now.get(&slice).cloned().unwrap_or_default();
        for (key, value) in keys.iter().filter(|(key, _)| range.has(key)) {
            self.scanned.fetch_add(1, Ordering::Relaxed);
            if !each(key, value) {
                break;
            }
        }
        Ok(())
    }

    fn property(&self, _: u32, _: &str) -> u64 {
        0
    }

    fn tables(&self) -> Vec<Table> {
        Vec::new()
    }

    fn verify(&self, _: &str) -> Result<(), Refused> {
        Ok(())
    }

    fn compact(&self, slice: u32) -> Result<(), Refused> {
        self.check(slice)
    }
}
