//! A queue of a ublk device: a thread with a ring takes the requests of the disk, asks the volume's server for them over
//! a connection of its own, and answers them.
//!
//! Invariants:
//! - a request is answered once, and its memory is the driver's from then on;
//! - of a server that goes away nothing is lost: what it had not answered is asked of the next one, in the order in which
//!   it came. Only where the volume is gone for good, or the device is being taken away and the server is not there or
//!   silent, or where a request must not be carried out twice ([`Wire::ask_again`]), do requests fail;
//! - the memory that the ring reads or fills stays until that has ended.

use super::abi::{self, Commit, Descriptor};
use super::wire::{Heard, Memory, Slot, Wire};
use crate::attach::target::{Connection, Target};
use crate::front::vhost::Event;
use crate::runtime::buffer::Buffer;
use flash::BLOCK_BYTES;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

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
    pub connection: Connection,
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
    Up(Connection),
    /// It broke; the ring may still use its memory.
    Ending {
        _socket: Connection,
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
struct Queue<W: Wire> {
    ring: IoUring,
    device: Arc<File>,
    number: u16,
    target: Target,
    reins: Arc<Reins>,
    descriptors: Descriptors,
    slots: Vec<Slot<W::Asked>>,
    came: u64,
    link: W,
    state: State,
    sending: bool,
    receiving: bool,
    connected: (Sender<Option<Connection>>, Receiver<Option<Connection>>),
    /// What the memory is in.
    _buffer: Buffer,
}

/// Serves a queue until the driver wants nothing any more, by what `speaks` makes of the memory of its tags. `waits` is called
/// when it waits for every tag.
///
/// # Errors
/// What the system refuses.
pub fn serve<W: Wire>(
    setup: Setup,
    speaks: impl FnOnce(Memory) -> W,
    waits: impl FnOnce(),
) -> io::Result<()> {
    let mut queue = Queue::new(setup, speaks)?;
    for tag in 0..queue.slots.len() as u16 {
        queue.fetch(abi::FETCH, tag, 0)?;
    }
    queue.listen()?;
    queue.ring.submit()?;
    waits();
    queue.run()
}

impl<W: Wire> Queue<W> {
    fn new(setup: Setup, speaks: impl FnOnce(Memory) -> W) -> io::Result<Self> {
        let Setup { device, number, depth, io_bytes, target, connection, reins } = setup;
        let blocks = usize::from(depth) * io_bytes as usize / BLOCK_BYTES;
        let buffer = Buffer::new(blocks as u32);
        // A place for each tag, and for what else is under way.
        let ring = IoUring::new((u32::from(depth) + 8).next_power_of_two())?;
        Ok(Self {
            ring,
            descriptors: Descriptors::map(&device, number, depth)?,
            device,
            number,
            target,
            reins,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            came: 0,
            link: speaks(Memory { start: buffer.address(0).as_ptr(), io_bytes }),
            state: State::Up(connection),
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
        let address = self.link.address(tag);
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
        let State::Up(Connection { stream, .. }) = &self.state else { return Ok(()) };
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
        let Some(asked) = self.link.understand(&self.descriptors.of(tag)) else {
            return self.fetch(abi::COMMIT_AND_FETCH, tag, -libc::EOPNOTSUPP);
        };
        if let Err(error) = self.link.take(tag, &asked) {
            tracing::error!(%error, "a request fails before it is asked");
            return self.fetch(abi::COMMIT_AND_FETCH, tag, -libc::EIO);
        }
        self.came += 1;
        let slot = &mut self.slots[usize::from(tag)];
        (slot.asked, slot.came, slot.sent) = (Some(asked), self.came, false);
        if let State::Up(_) = self.state {
            slot.sent = true;
            self.link.ask(tag, &asked);
        }
        Ok(())
    }

    fn heard(&mut self, bytes: u32) -> io::Result<()> {
        self.link.received(bytes, &self.slots);
        while let Some(heard) = self.link.hear(&self.slots) {
            match heard {
                Heard::Leaves | Heard::Nonsense => {
                    self.break_off();
                    return Ok(());
                }
                Heard::Done(tag, result) => {
                    self.reins.heard.fetch_add(1, Ordering::Relaxed);
                    self.end(tag, result)?;
                }
            }
        }
        Ok(())
    }

    /// Answers the request of a tag.
    fn end(&mut self, tag: u16, result: i32) -> io::Result<()> {
        match self.slots[usize::from(tag)].asked.take() {
            Some(_) => self.fetch(abi::COMMIT_AND_FETCH, tag, result),
            None => Ok(()),
        }
    }

    /// The driver wants nothing any more.
    fn is_over(&self) -> bool {
        self.slots.iter().all(|slot| slot.gone)
    }

    /// The connection is of no use any more.
    fn break_off(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Down) {
            State::Up(connection) => {
                connection.stream.close();
                let (queue, waiting) = (self.number, self.waiting().len());
                if !self.is_over() && !self.reins.gave_up() {
                    tracing::warn!(
                        queue,
                        waiting,
                        "the server is gone: requests wait until it is back"
                    );
                }
                State::Ending { _socket: connection }
            }
            state => state,
        };
    }

    /// Goes on to the next connection, and fails what need not wait for it.
    fn settle(&mut self) -> io::Result<()> {
        if self.is_over() {
            // Who is asked nothing more need not be listened to.
            if let State::Up(connection) = &self.state {
                connection.stream.close();
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
                Some(connection) => {
                    self.state = State::Up(connection);
                    let queue = self.number;
                    tracing::warn!(queue, "the server is back: requests go on");
                    self.ask_all()?;
                }
                None => self.state = State::Gone,
            }
        }
        let leaving = self.reins.leaving.load(Ordering::Acquire);
        let fails =
            matches!(self.state, State::Gone) || leaving && matches!(self.state, State::Down);
        if fails {
            for tag in self.waiting() {
                self.end(tag, -libc::EIO)?;
            }
        }
        Ok(())
    }

    /// Asks a new connection for all that is not answered.
    fn ask_all(&mut self) -> io::Result<()> {
        for tag in self.waiting() {
            let slot = &mut self.slots[usize::from(tag)];
            let again = std::mem::replace(&mut slot.sent, true);
            match slot.asked {
                Some(_) if again => {
                    if let Err(result) = self.link.ask_again(tag, &self.slots[usize::from(tag)]) {
                        self.end(tag, result)?;
                    }
                }
                Some(asked) => self.link.ask(tag, &asked),
                None => {}
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
                Some(connection) => sender.send(Some(connection)).ok(),
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
