//! One thread that writes: whatever came while the last batch was made durable is the next batch, so that many puts share one
//! sync of the log. An answer is given when its batch is durable.
//!
//! Once a write failed for another reason than room, nothing is written any more: what the engine has on its way is
//! unknown, and only opening the store anew tells.

use super::Refused;
use super::engine::{Change, Engine};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

/// Bytes of one batch, if it has more than one commit.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// Called with what became of a commit.
pub type Answer = Box<dyn FnOnce(Result<(), Refused>) + Send>;

struct Waiting {
    changes: Vec<Change>,
    answer: Answer,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Commits that are durable.
    pub commits: u64,
    /// Batches that they were written in, each with a sync.
    pub batches: u64,
    /// Bytes of the keys and values that were written, pieces of files that wait for their commit too.
    pub bytes: u64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    counts: Counts,
    stopped: Option<Refused>,
    closing: bool,
}

/// Called once, when nothing can be written any more.
type Stopped = Box<dyn FnOnce(&Refused) + Send>;

struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    stopped: Mutex<Option<Stopped>>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed: if that is for good, nothing is written any more.
    fn failed(&self, why: &Refused) {
        if matches!(why, Refused::Full(_) | Refused::Usage(_)) {
            return;
        }
        self.queue().stopped.get_or_insert_with(|| why.clone());
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stopped) = stopped {
            stopped(why);
        }
    }

    /// The commits of the next batch; `None` at the end.
    fn next(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.queue();
        while queue.waiting.is_empty() {
            if queue.closing {
                return None;
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while let Some(first) = queue.waiting.front() {
            bytes += first.changes.iter().map(Change::bytes).sum::<usize>();
            if !batch.is_empty() && bytes > BATCH_BYTES_MAX {
                break;
            }
            batch.extend(queue.waiting.pop_front());
        }
        Some(batch)
    }
}

/// Writes for all. Dropped, it ends when all is written.
pub struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Writes to `engine`. `stopped` is called once, when nothing can be written any more.
    pub fn start(
        engine: Arc<dyn Engine>,
        stopped: impl FnOnce(&Refused) + Send + 'static,
    ) -> std::io::Result<Self> {
        let stopped: Mutex<Option<Stopped>> = Mutex::new(Some(Box::new(stopped)));
        let (queue, more) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { queue, more, stopped });
        let ours = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("store-commit".into())
            .spawn(move || run(&*engine, &ours))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has the changes made, all or none; `answer` hears when they are durable.
    pub fn submit(&self, changes: Vec<Change>, answer: Answer) {
        let mut queue = self.shared.queue();
        if let Some(why) = queue.stopped.clone() {
            drop(queue);
            return answer(Err(why));
        }
        queue.waiting.push_back(Waiting { changes, answer });
        self.shared.more.notify_one();
    }

    /// The same, and waits for it.
    pub fn commit(&self, changes: Vec<Change>) -> Result<(), Refused> {
        let (send, answer) = mpsc::channel();
        self.submit(changes, Box::new(move |result| drop(send.send(result))));
        let ended = || Refused::Failed("the store is ending: nothing was written".into());
        answer.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Tells of a write past this that was done.
    pub fn written(&self, changes: &[&Change]) {
        self.shared.queue().counts.bytes += payload_bytes(changes);
    }

    /// Tells of a write past this that failed.
    pub fn failed(&self, why: &Refused) {
        self.shared.failed(why);
    }

    /// Why nothing is written any more.
    pub fn stopped(&self) -> Option<Refused> {
        self.shared.queue().stopped.clone()
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.shared.queue().counts
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.queue().closing = true;
        self.shared.more.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn payload_bytes(changes: &[&Change]) -> u64 {
    changes.iter().map(|change| change.payload_bytes() as u64).sum()
}

fn run(engine: &dyn Engine, shared: &Shared) {
    while let Some(batch) = shared.next() {
        // Others queue while it is written: they are the next batch.
        write(engine, shared, batch);
    }
}

fn write(engine: &dyn Engine, shared: &Shared, batch: Vec<Waiting>) {
    let changes: Vec<&Change> = batch.iter().flat_map(|waiting| &waiting.changes).collect();
    let stopped = shared.queue().stopped.clone();
    let result = match stopped {
        Some(why) => Err(why),
        None => engine.write(&changes, true),
    };
    match &result {
        Ok(()) => {
            let mut queue = shared.queue();
            queue.counts.commits += batch.len() as u64;
            queue.counts.batches += 1;
            queue.counts.bytes += payload_bytes(&changes);
        }
        Err(Refused::Full(_)) if batch.len() > 1 => {
            // There may be room for one after the other.
            return batch.into_iter().for_each(|one| write(engine, shared, vec![one]));
        }
        Err(why) => shared.failed(why),
    }
    for waiting in batch {
        (waiting.answer)(result.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Memory;
    use super::*;
    use std::sync::Barrier;

    fn put(key: u32) -> Vec<Change> {
        vec![Change::Put { slice: 0, key: key.to_be_bytes().into(), value: vec![7] }]
    }

    #[test]
    fn commits_that_wait_share_a_sync_and_each_is_durable_when_it_is_answered() {
        let engine = Arc::new(Memory::new(1));
        let committer = Committer::start(Arc::clone(&engine) as Arc<dyn Engine>, |_| ()).unwrap();
        // The first answer holds the thread, while the others come.
        let (held, first) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (hold, begun) = (Arc::clone(&held), Arc::clone(&first));
        committer.submit(
            put(0),
            Box::new(move |result| {
                assert_eq!(result, Ok(()));
                begun.wait();
                hold.wait();
            }),
        );
        first.wait();
        let (send, answers) = mpsc::channel();
        for key in 1..=100 {
            let (send, engine) = (send.clone(), Arc::clone(&engine));
            let answer = move |result| {
                let there = engine.cut().get(0, &u32::to_be_bytes(key));
                send.send((result, there.unwrap().is_some())).unwrap();
            };
            committer.submit(put(key), Box::new(answer));
        }
        held.wait();
        drop(send);
        assert!(answers.iter().take(100).all(|answer| answer == (Ok(()), true)));
        assert_eq!((engine.syncs(), committer.counts().commits), (2, 101));
        assert_eq!(committer.counts().batches, 2);
        assert_eq!(committer.counts().bytes, 101 * 5, "four bytes of a key, one of its value");
    }

    #[test]
    fn a_batch_has_a_bound_and_a_larger_commit_goes_alone() {
        let engine = Arc::new(Memory::new(1));
        let (queue, more) = (Mutex::default(), Condvar::new());
        let shared = Shared { queue, more, stopped: Mutex::default() };
        let large =
            |bytes| vec![Change::Put { slice: 0, key: b"a".to_vec(), value: vec![0; bytes] }];
        for bytes in [BATCH_BYTES_MAX + 1, BATCH_BYTES_MAX / 2, BATCH_BYTES_MAX / 2, 1] {
            let waiting = Waiting { changes: large(bytes), answer: Box::new(|_| ()) };
            shared.queue().waiting.push_back(waiting);
        }
        shared.queue().closing = true;
        let taken: Vec<usize> = std::iter::from_fn(|| shared.next()).map(|it| it.len()).collect();
        assert_eq!(taken, [1, 1, 2]);
        drop(engine);
    }

    #[test]
    fn after_a_failure_nothing_is_written_but_a_lack_of_room_may_end() {
        let engine = Arc::new(Memory::new(1));
        let (send, told) = mpsc::channel();
        let stopped = move |why: &Refused| send.send(why.clone()).unwrap();
        let committer = Committer::start(Arc::clone(&engine) as Arc<dyn Engine>, stopped).unwrap();
        engine.fail(Some(Refused::Full("no room".into())));
        assert_eq!(committer.commit(put(1)), Err(Refused::Full("no room".into())));
        engine.fail(None);
        assert_eq!(committer.commit(put(1)), Ok(()));
        let failed = Refused::Failed("the volume is gone".into());
        engine.fail(Some(failed.clone()));
        assert_eq!(committer.commit(put(2)), Err(failed.clone()));
        engine.fail(None);
        assert_eq!(committer.commit(put(3)), Err(failed.clone()), "it stays so");
        assert_eq!((told.recv(), committer.stopped()), (Ok(failed.clone()), Some(failed)));
        assert_eq!(engine.keys(), 1);
    }
}
