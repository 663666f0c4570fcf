//! Threads that read and write files for one shard, where no io_uring does.
//!
//! Invariants:
//! - what is handed in is done once and told once, in no order; as with a ring, who needs an order
//!   waits for the first before he asks for the second;
//! - the queue holds what the medium has under way, which the queues of its units bound;
//! - no wake-up is lost: an end is told under the lock, and who tells the first since they were taken
//!   writes the eventfd;
//! - after `drop` no thread takes another job; what hangs in the kernel then touches only memory that, by
//!   the invariant of `super`, is never freed.

use super::{Done, Entry, Operation};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most threads of a shard: the three syncs of a flush leave five for reads and writes.
const THREADS_MAX: usize = 8;

/// Longest wait for what hangs in the kernel when all ends, after [`super::Ring::settle`] has waited.
const FAREWELL: Duration = Duration::from_secs(2);

/// The stack of a thread, which calls one system call.
const STACK_BYTES: usize = 128 << 10;

/// See the head of this file.
pub struct Workers {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

struct Desk {
    state: Mutex<State>,
    work: Condvar,
    /// Somebody has ended.
    ends: Condvar,
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    /// Jobs that threads are at.
    running: usize,
    finished: Vec<Done>,
    stop: bool,
}

struct Job(Entry);

// SAFETY: by the invariant of `super` the memory that the entry points to is valid, and nobody else
// touches it, until its completion was seen.
unsafe impl Send for Job {}

impl Workers {
    /// No threads yet: they come with the work.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        let (state, work, ends) = (Mutex::default(), Condvar::new(), Condvar::new());
        Ok(Self { desk: Arc::new(Desk { state, work, ends, event }), threads: Vec::new() })
    }

    /// Readable when something has finished.
    pub fn event_fd(&self) -> RawFd {
        self.desk.event.as_raw_fd()
    }

    /// Has an operation on a file done.
    pub fn hand(&mut self, entry: Entry) {
        let mut state = self.desk.lock();
        state.jobs.push_back(Job(entry));
        let short = state.jobs.len() > state.idle;
        drop(state);
        self.desk.work.notify_one();
        if short && self.threads.len() < THREADS_MAX {
            self.hire();
        }
    }

    /// One thread more. Where the system grants none at all, the shard does the work itself.
    fn hire(&mut self) {
        let desk = Arc::clone(&self.desk);
        let builder = std::thread::Builder::new().name("files".into()).stack_size(STACK_BYTES);
        // A job that no thread ends would be waited for for ever.
        let serve = move || {
            crate::panics::end_the_process();
            desk.serve(true);
        };
        match builder.spawn(serve) {
            Ok(thread) => self.threads.push(thread),
            Err(_) if self.threads.is_empty() => self.desk.serve(false),
            Err(_) => {}
        }
    }

    /// What has finished since the last time.
    pub fn take_finished(&mut self, done: &mut Vec<Done>) {
        let mut count = [0u8; super::EVENT_BYTES];
        let fd = self.desk.event.as_raw_fd();
        // Before the lock: who finishes something after it writes again.
        // SAFETY: eight writable bytes. It does not block; that nothing is there is no matter.
        unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
        done.append(&mut self.desk.lock().finished);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        state.stop = true;
        state.jobs.clear();
        self.desk.work.notify_all();
        let waited = self.desk.ends.wait_timeout_while(state, FAREWELL, |state| state.running > 0);
        let running = waited.unwrap_or_else(PoisonError::into_inner).0.running;
        if running > 0 {
            // Nobody waits for them: what they may still write to was not freed, as the ring had not
            // settled. The process ends without them.
            tracing::error!(running, "reads or writes of a file hang in the kernel");
            return;
        }
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does jobs until there are none and, if it is to `wait`, no more will come.
    fn serve(&self, wait: bool) {
        let mut state = self.lock();
        loop {
            let Some(Job(entry)) = state.jobs.pop_front() else {
                if !wait || state.stop {
                    return;
                }
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            state.running += 1;
            drop(state);
            let result = perform(&entry.operation);
            state = self.lock();
            state.running -= 1;
            state.finished.push(Done::of(entry.data, result));
            if state.finished.len() == 1 {
                self.wake();
            }
            if state.stop {
                self.ends.notify_all();
            }
        }
    }

    fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight readable bytes. A full counter is readable already.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// Does it, and waits for its end. Negative is an error number.
fn perform(operation: &Operation) -> i32 {
    super::uninterrupted(|| match *operation {
        // SAFETY, of all: by the invariant of `super` the memory is valid for as long as the call.
        Operation::Read { fd, bytes, len, offset } => unsafe {
            libc::pread(fd, bytes.cast(), len as usize, offset as libc::off_t)
        },
        Operation::Write { fd, bytes, len, offset } => unsafe {
            libc::pwrite(fd, bytes.cast(), len as usize, offset as libc::off_t)
        },
        Operation::SyncData { fd } => unsafe { libc::fdatasync(fd) as isize },
        Operation::Punch { fd, offset, len } => unsafe {
            let (offset, len) = (offset as libc::off_t, len as libc::off_t);
            libc::fallocate(fd, super::PUNCH, offset, len) as isize
        },
        Operation::Await { .. }
        | Operation::ReadEvent { .. }
        | Operation::Accept { .. }
        | Operation::Receive { .. }
        | Operation::Send { .. } => unreachable!("sockets and events are polled: {operation:?}"),
    })
}
