//! A queue of a ublk device: a thread with a ring takes the requests of the disk, asks the volume's server for them over
//! a connection of its own, and answers them.
//!
//! Invariants:
//! - a request is answered once, and its memory is the driver's from then on;
//! - of a server that goes away nothing is lost: what it had not answered is asked of the next one, in the order in which
//!   it came. Only where the volume is gone for good, or the device is being taken away and the server is not there or
//!   silent, do requests fail;
//! - the memory that the ring reads or fills stays until that has ended.

use super::abi::{self, Commit, Descriptor};
use super::asked::Asked;
use super::link::{Heard, Link, Memory, Slot};
use crate::attach::target::Target;
use crate::front::vhost::Event;
use crate::runtime::buffer::Buffer;
use client::Stream;
use flash::BLOCK_BYTES;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

/// Of NBD: the server is stopping, so that another one will have to be asked.
const ESHUTDOWN: u32 = 108;

/// By which the device's keeper leads its queues.
#[derive(Debug)]
pub struct Reins {
    /// The device is being taken away: who waits for a server that is not there need not.
    leaving: AtomicBool,
    /// Nor who waits for one that is there and silent.
    gives_up: AtomicBool,
    /// Answers of the server so far.
    pub heard: AtomicU64,
    /// Tells the queue to look.
    bell: Event,
}

impl Reins {
    /// The device is to stay.
    pub fn new(bell: Event) -> Self {
        let (leaving, gives_up) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { leaving, gives_up, heard: AtomicU64::new(0), bell }
    }

    /// The device is being taken away.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.bell.signal();
    }

    /// The server is not waited for, whatever it does.
    pub fn give_up(&self) {
        self.gives_up.store(true, Ordering::Release);
        self.bell.signal();
    }

    /// Whether it is not.
    pub fn gave_up(&self) -> bool {
        self.gives_up.load(Ordering::Acquire)
    }
}

/// What a queue serves.
pub struct Setup {
    /// Through which requests come.
    pub device: Arc<File>,
    /// Which queue it is.
    pub number: u16,
    /// Requests at a time.
    pub depth: u16,
    /// Most bytes of a request's data.
    pub io_bytes: u32,
    /// The volume.
    pub target: Target,
    /// A connection to it.
    pub stream: Stream,
    /// By which it is led.
    pub reins: Arc<Reins>,
}

/// What an operation of the ring was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Operation {
    Fetch(u16),
    Send,
    Receive,
    Bell,
}

impl Operation {
    fn to_word(self) -> u64 {
        match self {
            Self::Fetch(tag) => tag.into(),
            Self::Send => 1 << 32,
            Self::Receive => 2 << 32,
            Self::Bell => 3 << 32,
        }
    }

    fn of(word: u64) -> Self {
        match word >> 32 {
            0 => Self::Fetch(word as u16),
            1 => Self::Send,
            2 => Self::Receive,
            _ => Self::Bell,
        }
    }
}

/// How the connection is.
enum State {
    Up(Stream),
    /// It broke; the ring may still use its memory.
    Ending {
        _socket: Stream,
    },
    /// Somebody is connecting anew.
    Down,
    /// There is no such volume any more.
    Gone,
}

/// The descriptors of a queue's requests, which the driver writes.
struct Descriptors {
    start: *mut libc::c_void,
    bytes: usize,
}

impl Descriptors {
    fn map(device: &File, queue: u16, depth: u16) -> io::Result<Self> {
        // SAFETY: it only asks.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (usize::from(depth) * size_of::<Descriptor>()).next_multiple_of(page);
        let offset = abi::DESCRIPTORS_AT + u64::from(queue) * abi::queue_map_bytes(page) as u64;
        let (access, kind) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
        let fd = device.as_raw_fd();
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, kind, fd, offset as libc::off_t)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, bytes })
    }

    /// That of a request which the driver has just handed over.
    fn of(&self, tag: u16) -> Descriptor {
        // SAFETY: the driver has as many as the queue has tags, and changes this one only when it is answered.
        unsafe { self.start.cast::<Descriptor>().add(tag.into()).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used by nobody any more.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// See the head of this file.
struct Queue {
    ring: IoUring,
    device: Arc<File>,
    number: u16,
    io_bytes: u32,
    target: Target,
    reins: Arc<Reins>,
    descriptors: Descriptors,
    memory: Memory,
    slots: Vec<Slot>,
    came: u64,
    link: Link,
    state: State,
    sending: bool,
    receiving: bool,
    connected: (Sender<Option<Stream>>, Receiver<Option<Stream>>),
    /// What the memory is in.
    _buffer: Buffer,
}

/// Serves a queue until the driver wants nothing any more. `waits` is called when it waits for every tag.
///
/// # Errors
/// What the system refuses.
pub fn serve(setup: Setup, waits: impl FnOnce()) -> io::Result<()> {
    let mut queue = Queue::new(setup)?;
    for tag in 0..queue.slots.len() as u16 {
        queue.fetch(abi::FETCH, tag, 0)?;
    }
    queue.listen()?;
    queue.ring.submit()?;
    waits();
    queue.run()
}

impl Queue {
    fn new(setup: Setup) -> io::Result<Self> {
        let Setup { device, number, depth, io_bytes, target, stream, reins } = setup;
        let blocks = usize::from(depth) * io_bytes as usize / BLOCK_BYTES;
        let buffer = Buffer::new(blocks as u32);
        let memory = Memory { start: buffer.address(0).as_ptr(), io_bytes };
        // A place for each tag, and for what else is under way.
        let ring = IoUring::new((u32::from(depth) + 8).next_power_of_two())?;
        Ok(Self {
            ring,
            descriptors: Descriptors::map(&device, number, depth)?,
            device,
            number,
            io_bytes,
            target,
            reins,
            memory,
            slots: vec![Slot::default(); depth.into()],
            came: 0,
            link: Link::new(depth, memory),
            state: State::Up(stream),
            sending: false,
            receiving: false,
            connected: mpsc::channel(),
            _buffer: buffer,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.exchange()?;
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            let done: Vec<cqueue::Entry> = self.ring.completion().collect();
            for done in done {
                self.completed(Operation::of(done.user_data()), done.result())?;
            }
            self.settle()?;
            if self.is_over() && !self.sending && !self.receiving {
                return Ok(());
            }
        }
    }

    fn push(&mut self, entry: &squeue::Entry, operation: Operation) -> io::Result<()> {
        let entry = entry.clone().user_data(operation.to_word());
        loop {
            // SAFETY: what an operation uses lives in this queue, which waits for its end (head of this file).
            if unsafe { self.ring.submission().push(&entry) }.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    /// Waits for the next request of a tag, and ends the last one, if there was one.
    fn fetch(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let address = self.memory.of(tag) as u64;
        let commit = Commit { queue: self.number, tag, result, address };
        let device = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd16::new(device, command).cmd(commit.bytes()).build();
        self.push(&entry, Operation::Fetch(tag))
    }

    fn listen(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.reins.bell.as_raw_fd());
        let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push(&entry, Operation::Bell)
    }

    /// Begins to send and to receive, where that is not under way.
    fn exchange(&mut self) -> io::Result<()> {
        let State::Up(stream) = &self.state else { return Ok(()) };
        let socket = types::Fd(stream.as_fd().as_raw_fd());
        if !self.sending
            && let Some(message) = self.link.outgoing()
        {
            let flags = libc::MSG_NOSIGNAL as u32;
            let entry = opcode::SendMsg::new(socket, message).flags(flags).build();
            self.push(&entry, Operation::Send)?;
            self.sending = true;
        }
        if !self.receiving {
            let (into, bytes) = self.link.incoming(&self.slots);
            let entry = opcode::Recv::new(socket, into, bytes).build();
            self.push(&entry, Operation::Receive)?;
            self.receiving = true;
        }
        Ok(())
    }

    fn completed(&mut self, operation: Operation, result: i32) -> io::Result<()> {
        match operation {
            Operation::Fetch(tag) if result < 0 => {
                self.slots[usize::from(tag)].gone = true;
                Ok(())
            }
            Operation::Fetch(tag) => self.begin(tag),
            Operation::Bell => {
                self.reins.bell.clear();
                self.listen()
            }
            Operation::Send => {
                self.sending = false;
                match usize::try_from(result) {
                    Ok(bytes) => self.link.sent(bytes),
                    Err(_) => self.break_off(),
                }
                Ok(())
            }
            Operation::Receive => {
                self.receiving = false;
                match u32::try_from(result) {
                    Ok(bytes @ 1..) if matches!(self.state, State::Up(_)) => self.heard(bytes),
                    _ => {
                        self.break_off();
                        Ok(())
                    }
                }
            }
        }
    }

    /// A request has come.
    fn begin(&mut self, tag: u16) -> io::Result<()> {
        let Some(asked) = Asked::of(&self.descriptors.of(tag), self.io_bytes) else {
            return self.fetch(abi::COMMIT_AND_FETCH, tag, -libc::EOPNOTSUPP);
        };
        self.came += 1;
        let slot = &mut self.slots[usize::from(tag)];
        (slot.asked, slot.came) = (Some(asked), self.came);
        if let State::Up(_) = self.state {
            self.link.ask(tag, slot);
        }
        Ok(())
    }

    fn heard(&mut self, bytes: u32) -> io::Result<()> {
        self.link.received(bytes, &self.slots);
        while let Some(heard) = self.link.hear(&self.slots) {
            match heard {
                Heard::Done(_, ESHUTDOWN) | Heard::Nonsense => {
                    self.break_off();
                    return Ok(());
                }
                Heard::Done(tag, error) => {
                    self.reins.heard.fetch_add(1, Ordering::Relaxed);
                    self.end(tag, |asked| asked.result(error))?;
                }
            }
        }
        Ok(())
    }

    /// Answers the request of a tag.
    fn end(&mut self, tag: u16, result: impl FnOnce(&Asked) -> i32) -> io::Result<()> {
        let Some(asked) = self.slots[usize::from(tag)].asked.take() else { return Ok(()) };
        self.fetch(abi::COMMIT_AND_FETCH, tag, result(&asked))
    }

    /// The driver wants nothing any more.
    fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| slot.gone)
    }

    /// The connection is of no use any more.
    fn break_off(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Down) {
            State::Up(stream) => {
                stream.close();
                let (queue, waiting) = (self.number, self.waiting().len());
                if !self.is_over() && !self.reins.gave_up() {
                    tracing::warn!(
                        queue,
                        waiting,
                        "the server is gone: requests wait until it is back"
                    );
                }
                State::Ending { _socket: stream }
            }
            state => state,
        };
    }

    /// Goes on to the next connection, and fails what need not wait for it.
    fn settle(&mut self) -> io::Result<()> {
        if self.is_over() {
            // Who is asked nothing more need not be listened to.
            if let State::Up(stream) = &self.state {
                stream.close();
            }
            return Ok(());
        }
        if matches!(self.state, State::Up(_)) && self.reins.gave_up() {
            tracing::error!("the server is silent: requests fail, as the device is taken away");
            self.break_off();
        }
        if matches!(self.state, State::Ending { .. }) && !self.sending && !self.receiving {
            self.state = State::Down;
            self.connect_again();
        }
        if let Ok(connected) = self.connected.1.try_recv() {
            self.link.reset();
            match connected {
                Some(stream) => {
                    self.state = State::Up(stream);
                    let queue = self.number;
                    tracing::warn!(queue, "the server is back: requests go on");
                    for tag in self.waiting() {
                        self.link.ask(tag, &mut self.slots[usize::from(tag)]);
                    }
                }
                None => self.state = State::Gone,
            }
        }
        let leaving = self.reins.leaving.load(Ordering::Acquire);
        let fails =
            matches!(self.state, State::Gone) || leaving && matches!(self.state, State::Down);
        if fails {
            for tag in self.waiting() {
                self.end(tag, |_| -libc::EIO)?;
            }
        }
        Ok(())
    }

    /// Tags whose requests are not answered, in the order in which they came.
    fn waiting(&self) -> Vec<u16> {
        let slots = self.slots.iter().enumerate();
        let mut waiting: Vec<(u64, u16)> = slots
            .filter(|(_, slot)| slot.asked.is_some())
            .map(|(tag, slot)| (slot.came, tag as u16))
            .collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, tag)| tag).collect()
    }

    /// Connects anew, apart: a server that is not there may take long not to answer.
    fn connect_again(&self) {
        let (target, reins, sender) =
            (self.target.clone(), Arc::clone(&self.reins), self.connected.0.clone());
        let connect = move || {
            let gives_up = || reins.leaving.load(Ordering::Acquire);
            match target.connect_again(&gives_up) {
                Some((stream, _)) => sender.send(Some(stream)).ok(),
                None if gives_up() => None,
                None => {
                    tracing::error!("the server has no such volume any more: requests fail");
                    sender.send(None).ok()
                }
            };
            reins.bell.signal();
        };
        let spawned = std::thread::Builder::new().name("connect".into()).spawn(connect);
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread can be started to connect anew: requests fail");
            self.connected.0.send(None).ok();
            self.reins.bell.signal();
        }
    }
}
