//! Tables whose writing has ended, and whose last blocks are still on their way: whoever wrote one goes on with the next
//! meanwhile, so that several units write for one thread.
//!
//! Invariants:
//! - whoever wants what is at a path waits for what is on its way there; that it is there, and how long, is told at once;
//! - who waits for a folder waits for what is on its way then, and not for what others send on its way meanwhile; of that, if it likes,
//!   only for what its own thread sent or one that has ended, whose work somebody goes on with;
//! - a table that failed is told to everyone who asks for it, or for all, until its path is given up or written anew.

use crate::api::Error;
use crate::path;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};

thread_local! {
    /// As long as its thread.
    static THREAD: Arc<()> = Arc::new(());
}

/// Whose tables are waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Whose {
    /// Everybody's.
    All,
    /// Those of this thread, and of threads that have ended.
    Own,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Late {
    tables: Mutex<Tables>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Tables {
    states: BTreeMap<String, State>,
    /// Tables that have set out so far.
    set_out: u64,
}

#[derive(Debug)]
enum State {
    /// It was the how manieth to set out, has so many bytes, set out with so many blocks, and a thread sent it that may have
    /// ended.
    OnItsWay {
        number: u64,
        bytes: u64,
        blocks: usize,
        by: Weak<()>,
    },
    Failed(Error),
}

impl State {
    fn blocks(&self) -> usize {
        match self {
            Self::OnItsWay { blocks, .. } => *blocks,
            Self::Failed(_) => 0,
        }
    }

    fn is_on_its_way(&self) -> bool {
        matches!(self, Self::OnItsWay { .. })
    }

    fn is_on_its_way_before(&self, end: u64, whose: Whose) -> bool {
        match self {
            Self::OnItsWay { number, by, .. } => {
                *number < end && (whose == Whose::All || is_own(by))
            }
            Self::Failed(_) => false,
        }
    }
}

fn is_own(by: &Weak<()>) -> bool {
    by.upgrade().is_none_or(|by| THREAD.with(|own| Arc::ptr_eq(own, &by)))
}

/// A table that is on its way, and has failed unless it is told how it ended.
#[derive(Debug)]
pub(crate) struct OnItsWay<'a> {
    late: &'a Late,
    path: String,
    result: Result<(), Error>,
}

impl OnItsWay<'_> {
    pub fn end(mut self, result: Result<(), Error>) {
        self.result = result;
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut tables = self.late.lock();
        let result = std::mem::replace(&mut self.result, Ok(()));
        match result {
            Ok(()) => tables.states.remove(&self.path),
            Err(error) => {
                tables.states.insert(std::mem::take(&mut self.path), State::Failed(error))
            }
        };
        self.late.ended.notify_all();
    }
}

impl Late {
    /// A table of so many bytes sets out with so many blocks, once no other does at its path and at most `blocks_max` are on
    /// their way with it. What failed there before is forgotten. It is on its way until [`Late::arriving`].
    pub fn set_out(&self, path: &str, (bytes, blocks): (u64, usize), blocks_max: usize) {
        let mut tables = self.lock();
        loop {
            let sum: usize = tables.states.values().map(State::blocks).sum();
            let here = tables.states.get(path).is_some_and(State::is_on_its_way);
            if !here && (sum == 0 || sum + blocks <= blocks_max) {
                break;
            }
            tables = self.ended.wait(tables).expect("no holder panics");
        }
        let number = tables.set_out;
        tables.set_out += 1;
        let by = THREAD.with(Arc::downgrade);
        tables.states.insert(path.into(), State::OnItsWay { number, bytes, blocks, by });
    }

    /// Of one that has set out: held until it has arrived.
    pub fn arriving(&self, path: &str) -> OnItsWay<'_> {
        let result = Err(Error::Io(format!("{path}: the writing of it panicked")));
        OnItsWay { late: self, path: path.into(), result }
    }

    /// Waits for what is on its way to a path. `Err` if it failed.
    pub fn wait(&self, path: &str) -> Result<(), Error> {
        let is_there = |tables: &Tables| tables.states.get(path).is_some_and(State::is_on_its_way);
        let tables = self.waited(self.lock(), is_there);
        match tables.states.get(path) {
            Some(State::Failed(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Waits for those that are on their way now to a folder and its folders. `Err` if one failed, whoever sent it.
    pub fn wait_below(&self, folder: &str, whose: Whose) -> Result<(), Error> {
        self.failed(folder, whose).into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Waits in the same way; those that failed.
    pub fn failed(&self, folder: &str, whose: Whose) -> Vec<(String, Error)> {
        let within = |path: &str| path::is_below(path, folder);
        let tables = self.lock();
        let end = tables.set_out;
        let is_there = |(path, state): (&String, &State)| {
            state.is_on_its_way_before(end, whose) && within(path)
        };
        let tables = self.waited(tables, |tables| tables.states.iter().any(is_there));
        let failed = tables.states.iter().filter_map(|(path, state)| match state {
            State::Failed(error) if within(path) => Some((path.clone(), error.clone())),
            _ => None,
        });
        failed.collect()
    }

    /// What is on its way now to a folder and its folders, and what failed there.
    pub fn below(&self, folder: &str) -> Vec<String> {
        let tables = self.lock();
        let paths = tables.states.keys().filter(|path| path::is_below(path, folder));
        paths.cloned().collect()
    }

    /// Nobody needs to hear any more of what failed there.
    pub fn forget(&self, path: &str) {
        let states = &mut self.lock().states;
        if let Some(State::Failed(_)) = states.get(path) {
            states.remove(path);
        }
    }

    /// Bytes that the table has which is on its way to a path.
    pub fn bytes(&self, path: &str) -> Option<u64> {
        match self.lock().states.get(path) {
            Some(State::OnItsWay { bytes, .. }) => Some(*bytes),
            _ => None,
        }
    }

    fn waited<'a>(
        &'a self,
        tables: MutexGuard<'a, Tables>,
        is_there: impl Fn(&Tables) -> bool,
    ) -> MutexGuard<'a, Tables> {
        let waited = self.ended.wait_while(tables, |tables| is_there(tables));
        waited.expect("no holder panics")
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().expect("no holder panics")
    }
}
