//! A hypervisor and its guest in one, strict and small: it shares a file of memory, says what it is told to over the
//! socket, and drives rings of virtio-blk in that memory. It believes nothing of what comes back.

use std::io::{ErrorKind, Read};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::Duration;

/// Messages, by number.
pub const GET_FEATURES: u32 = 1;
pub const SET_FEATURES: u32 = 2;
pub const SET_OWNER: u32 = 3;
pub const RESET_OWNER: u32 = 4;
pub const SET_MEM_TABLE: u32 = 5;
pub const SET_VRING_NUM: u32 = 8;
pub const SET_VRING_ADDR: u32 = 9;
pub const SET_VRING_BASE: u32 = 10;
pub const GET_VRING_BASE: u32 = 11;
pub const SET_VRING_KICK: u32 = 12;
pub const SET_VRING_CALL: u32 = 13;
pub const SET_VRING_ERR: u32 = 14;
pub const GET_PROTOCOL_FEATURES: u32 = 15;
pub const SET_PROTOCOL_FEATURES: u32 = 16;
pub const GET_QUEUE_NUM: u32 = 17;
pub const SET_VRING_ENABLE: u32 = 18;
pub const SET_BACKEND_REQ_FD: u32 = 21;
pub const GET_CONFIG: u32 = 24;
pub const GET_INFLIGHT_FD: u32 = 31;
pub const SET_INFLIGHT_FD: u32 = 32;

/// Features.
pub const READ_ONLY: u64 = 1 << 5;
pub const FLUSH: u64 = 1 << 9;
pub const INDIRECT: u64 = 1 << 28;
pub const EVENT_INDEX: u64 = 1 << 29;
pub const PROTOCOL: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;

/// Kinds of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const SYNC: u32 = 4;
pub const NAME: u32 = 8;
pub const DISCARD: u32 = 11;
pub const ZEROES: u32 = 13;

/// The memory: where the guest has it, where the hypervisor says that it has it, and how much.
pub const GUEST: u64 = 0x4000_0000;
pub const USER: u64 = 0x7f00_0000_0000;
pub const BYTES: u64 = 16 << 20;
/// Entries of a ring, and bytes from one to the next.
pub const ENTRIES: u16 = 64;
const RING: u64 = 0x4000;
/// In a ring: what is available, and what came back.
pub const AVAILABLE: u64 = 0x1000;
pub const USED: u64 = 0x2000;
/// Behind all rings: buffers, from there on.
pub const BUFFERS: u64 = 1 << 20;

const NEXT: u16 = 1;
const WRITABLE: u16 = 2;

/// A part of a chain: where the guest has it, how long it is, and whether the device writes to it.
pub type Part = (u64, u32, bool);

/// A file in memory, mapped.
pub struct Shared {
    pub file: OwnedFd,
    start: NonNull<u8>,
    bytes: u64,
}

// SAFETY: it owns its mapping.
unsafe impl Send for Shared {}

impl Shared {
    pub fn new(bytes: u64) -> Self {
        // SAFETY: the name is a text; the descriptor is new and nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            assert_eq!(libc::ftruncate(fd, bytes as i64), 0);
            OwnedFd::from_raw_fd(fd)
        };
        Self::map(file, bytes)
    }

    pub fn map(file: OwnedFd, bytes: u64) -> Self {
        let (access, any) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
        let (kind, fd) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(any, bytes as usize, access, kind, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { file, start: NonNull::new(start.cast()).unwrap(), bytes }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.bytes);
        // SAFETY: within the mapping.
        unsafe {
            let to = self.start.as_ptr().add(at as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        assert!(at + len as u64 <= self.bytes);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping.
        unsafe {
            let from = self.start.as_ptr().add(at as usize);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    pub fn word(&self, at: u64) -> &AtomicU16 {
        assert!(at + 2 <= self.bytes && at.is_multiple_of(2));
        // SAFETY: within the mapping, and aligned.
        unsafe { AtomicU16::from_ptr(self.start.as_ptr().add(at as usize).cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped with this length.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes as usize) };
    }
}

pub fn eventfd() -> OwnedFd {
    // SAFETY: no memory is involved; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

pub fn signal(event: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: eight readable bytes.
    unsafe { libc::write(event.as_raw_fd(), one.as_ptr().cast(), 8) };
}

/// Takes a signal away. True if one was there within so many milliseconds.
pub fn signalled(event: &OwnedFd, within_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd: event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: both are valid for the calls.
    unsafe {
        loop {
            match libc::poll(&raw mut poll, 1, within_ms) {
                1 => break,
                -1 if std::io::Error::last_os_error().kind() == ErrorKind::Interrupted => {}
                _ => return false,
            }
        }
        let mut count = [0u8; 8];
        libc::read(event.as_raw_fd(), count.as_mut_ptr().cast(), 8) == 8
    }
}

/// The socket, message by message.
pub struct Wire {
    pub stream: UnixStream,
}

impl Wire {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream }
    }

    pub fn send(&self, request: u32, body: &[u8], files: &[&OwnedFd]) {
        self.send_flagged(request, 1, body, files);
    }

    pub fn send_flagged(&self, request: u32, flags: u32, body: &[u8], files: &[&OwnedFd]) {
        let mut bytes = [request, flags, body.len() as u32].map(u32::to_le_bytes).concat();
        bytes.extend(body);
        send_with(&self.stream, &bytes, files);
    }

    /// Sends it, and has it answered: 0 for well.
    pub fn acked(&self, request: u32, body: &[u8], files: &[&OwnedFd]) {
        self.send_flagged(request, 9, body, files);
        let (answered, body, _) = self.receive().expect("an answer");
        assert_eq!((answered, u64_of(&body)), (request, 0));
    }

    pub fn ask(&self, request: u32, body: &[u8]) -> Vec<u8> {
        self.send(request, body, &[]);
        let (answered, body, _) = self.receive().expect("an answer");
        assert_eq!(answered, request);
        body
    }

    /// The next message; `None` if the server has hung up.
    pub fn receive(&self) -> Option<(u32, Vec<u8>, Option<OwnedFd>)> {
        let (mut head, mut room) = ([0u8; 12], [0u64; 8]);
        let mut vector = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
        // SAFETY: a header of zeroes is one; all it points to is writable for its length, and a descriptor that comes is
        // new and ours.
        let (read, file) = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
            message.msg_control = room.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&room) as _;
            let flags = libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC;
            // Other tests of the process have signals sent to it.
            let read = loop {
                let read = libc::recvmsg(self.stream.as_raw_fd(), &raw mut message, flags);
                let error = std::io::Error::last_os_error();
                if read >= 0 || error.kind() != ErrorKind::Interrupted {
                    break read;
                }
            };
            let control = libc::CMSG_FIRSTHDR(&raw const message);
            let file = (read > 0 && !control.is_null()).then(|| {
                OwnedFd::from_raw_fd(libc::CMSG_DATA(control).cast::<i32>().read_unaligned())
            });
            (read, file)
        };
        if read <= 0 {
            let error = std::io::Error::last_os_error();
            assert!(read == 0 || error.kind() == ErrorKind::ConnectionReset, "{error}");
            return None;
        }
        assert_eq!(read, 12);
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; word(8) as usize];
        (&self.stream).read_exact(&mut body).unwrap();
        Some((word(0), body, file))
    }
}

fn send_with(stream: &UnixStream, bytes: &[u8], files: &[&OwnedFd]) {
    let mut vector =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = [0u64; 64];
    // SAFETY: as in `receive`, and there is room for all descriptors.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        if !files.is_empty() {
            let len = (files.len() * size_of::<i32>()) as u32;
            message.msg_control = room.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(len) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(len) as _;
            for (at, file) in files.iter().enumerate() {
                libc::CMSG_DATA(head).cast::<i32>().add(at).write_unaligned(file.as_raw_fd());
            }
        }
        libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    // A server that has hung up takes nothing.
    assert!(sent < 0 || sent as usize == bytes.len());
}

pub fn u64_of(body: &[u8]) -> u64 {
    u64::from_le_bytes(body[..8].try_into().unwrap())
}

pub fn u32s(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn u64s(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The guest's side of a ring.
pub struct Queue {
    pub number: u16,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub broken: OwnedFd,
    /// Made available, and seen to come back.
    pub available: u16,
    pub seen: u16,
    /// The next descriptor to use.
    next: u16,
}

impl Queue {
    pub fn at(&self) -> u64 {
        u64::from(self.number) * RING
    }
}

/// A guest with its hypervisor.
pub struct Guest {
    pub wire: Wire,
    pub memory: Shared,
    pub queues: Vec<Queue>,
    pub features: u64,
    pub offered: u64,
    /// What is in flight: its file, and what was told of it.
    pub inflight: Option<(OwnedFd, Vec<u8>)>,
    /// Where it is told that settings have changed.
    pub channel: UnixStream,
}

impl Guest {
    /// As QEMU begins: with everything that is offered.
    pub fn connect(path: &Path, queues: u16) -> Self {
        Self::connect_with(path, queues, u64::MAX)
    }

    /// With no more features than these.
    pub fn connect_with(path: &Path, queues: u16, features: u64) -> Self {
        let (memory, queues) = (Shared::new(BYTES), Self::rings(queues));
        let mut guest = Self {
            wire: Wire::connect(path),
            memory,
            queues,
            features,
            offered: 0,
            inflight: None,
            channel: UnixStream::pair().unwrap().0,
        };
        guest.greet();
        guest.tell_memory();
        (0..guest.queues.len()).for_each(|queue| guest.start(queue));
        guest
    }

    /// So many rings of which nobody knows.
    pub fn rings(count: u16) -> Vec<Queue> {
        let queue = |number| {
            let (kick, call, broken) = (eventfd(), eventfd(), eventfd());
            Queue { number, kick, call, broken, available: 0, seen: 0, next: 0 }
        };
        (0..count).map(queue).collect()
    }

    /// Connects again, with the memory and the rings as they are.
    pub fn reconnect(&mut self, path: &Path) {
        self.wire = Wire::connect(path);
        self.greet();
        self.tell_memory();
        for queue in 0..self.queues.len() {
            // Where QEMU believes that it goes on: behind what came back.
            let at = self.queues[queue].at();
            let base = self.memory.word(at + USED + 2).load(Ordering::Acquire);
            self.start_at(queue, base);
        }
    }

    pub fn greet(&mut self) {
        self.offered = u64_of(&self.wire.ask(GET_FEATURES, &[]));
        let protocol = u64_of(&self.wire.ask(GET_PROTOCOL_FEATURES, &[]));
        self.wire.send(SET_PROTOCOL_FEATURES, &u64s(&[protocol]), &[]);
        assert!(u64_of(&self.wire.ask(GET_QUEUE_NUM, &[])) >= self.queues.len() as u64);
        self.wire.acked(SET_OWNER, &[], &[]);
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        self.wire.acked(SET_BACKEND_REQ_FD, &[], &[&theirs.into()]);
        self.channel = ours;
        if self.inflight.is_none() {
            let mut wanted = vec![0; 16];
            wanted.extend((self.queues.len().max(1) as u16).to_le_bytes());
            wanted.extend(ENTRIES.to_le_bytes());
            self.wire.send(GET_INFLIGHT_FD, &wanted, &[]);
            let (_, body, file) = self.wire.receive().expect("memory");
            assert_eq!(body.len(), 24);
            self.inflight = Some((file.expect("a file"), body));
        }
        let (file, body) = self.inflight.as_ref().unwrap();
        self.wire.acked(SET_INFLIGHT_FD, body, &[file]);
        self.features &= self.offered;
        self.wire.acked(SET_FEATURES, &u64s(&[self.features]), &[]);
    }

    pub fn tell_memory(&self) {
        let table = u64s(&[1, GUEST, BYTES, USER, 0]);
        self.wire.acked(SET_MEM_TABLE, &table, &[&self.memory.file]);
    }

    pub fn start(&self, queue: usize) {
        self.start_at(queue, self.queues[queue].available);
    }

    pub fn start_at(&self, queue: usize, base: u16) {
        let Queue { number, kick, call, broken, .. } = &self.queues[queue];
        let (at, number) = (USER + self.queues[queue].at(), u32::from(*number));
        let wire = &self.wire;
        wire.acked(SET_VRING_CALL, &u64s(&[number.into()]), &[call]);
        wire.acked(SET_VRING_ERR, &u64s(&[number.into()]), &[broken]);
        wire.acked(SET_VRING_NUM, &u32s(&[number, ENTRIES.into()]), &[]);
        wire.acked(SET_VRING_BASE, &u32s(&[number, base.into()]), &[]);
        let places = [u32s(&[number, 0]), u64s(&[at, at + USED, at + AVAILABLE, 0])].concat();
        wire.acked(SET_VRING_ADDR, &places, &[]);
        wire.acked(SET_VRING_KICK, &u64s(&[number.into()]), &[kick]);
        wire.acked(SET_VRING_ENABLE, &u32s(&[number, 1]), &[]);
    }

    /// Ends a ring: where it would go on.
    pub fn stop(&self, queue: u32) -> u32 {
        let body = self.wire.ask(GET_VRING_BASE, &u32s(&[queue, 0]));
        assert_eq!(body[..4], queue.to_le_bytes());
        u32::from_le_bytes(body[4..8].try_into().unwrap())
    }

    pub fn settings(&self) -> Vec<u8> {
        let body = self.wire.ask(GET_CONFIG, &[u32s(&[0, 60, 0]), vec![0; 60]].concat());
        body[12..].to_vec()
    }

    /// Writes a descriptor, of the ring or of a table.
    pub fn describe(&self, table: u64, index: u16, (address, len, _): Part, flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.put(table + 16 * u64::from(index), &bytes);
    }

    /// Makes a chain of these parts available, and kicks. Its head.
    pub fn submit(&mut self, queue: usize, parts: &[Part]) -> u16 {
        let head = self.lay_out(queue, parts);
        self.offer(queue, head);
        head
    }

    pub fn lay_out(&mut self, queue: usize, parts: &[Part]) -> u16 {
        let (at, count) = (self.queues[queue].at(), parts.len() as u16);
        if self.queues[queue].next + count > ENTRIES {
            self.queues[queue].next = 0;
        }
        let head = self.queues[queue].next;
        self.queues[queue].next += count;
        for (number, &part) in parts.iter().enumerate() {
            let (index, last) = (head + number as u16, number + 1 == parts.len());
            let flags = if last { 0 } else { NEXT } | if part.2 { WRITABLE } else { 0 };
            self.describe(at, index, part, flags, index + 1);
        }
        head
    }

    /// Makes a chain available, and kicks.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let queue = &mut self.queues[queue];
        let entry = queue.at() + AVAILABLE + 4 + 2 * u64::from(queue.available % ENTRIES);
        self.memory.put(entry, &head.to_le_bytes());
        queue.available = queue.available.wrapping_add(1);
        let index = self.memory.word(queue.at() + AVAILABLE + 2);
        index.store(queue.available, Ordering::Release);
        fence(Ordering::SeqCst);
        signal(&queue.kick);
    }

    /// The next that comes back: head and bytes written.
    pub fn wait(&mut self, queue: usize) -> (u16, u32) {
        self.wait_for(queue, 20_000).expect("an answer in time")
    }

    pub fn wait_for(&mut self, queue: usize, within_ms: i32) -> Option<(u16, u32)> {
        let queue = &mut self.queues[queue];
        let used = queue.at() + USED;
        // It wants to hear of the next one.
        let event = queue.at() + AVAILABLE + 4 + 2 * u64::from(ENTRIES);
        self.memory.word(event).store(queue.seen, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while self.memory.word(used + 2).load(Ordering::Acquire) == queue.seen {
            if !signalled(&queue.call, within_ms) {
                return None;
            }
        }
        let entry = self.memory.get(used + 4 + 8 * u64::from(queue.seen % ENTRIES), 8);
        queue.seen = queue.seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        Some((word(0) as u16, word(4)))
    }

    /// A request as Linux lays it out: a head, data, a status. The status, and what was read.
    pub fn request(
        &mut self,
        queue: usize,
        (kind, sector): (u32, u64),
        data: &[u8],
        room: usize,
    ) -> (u8, Vec<u8>) {
        let at = BUFFERS + (queue as u64) * (4 << 20);
        let parts = self.parts(at, (kind, sector), data, room);
        let head = self.submit(queue, &parts);
        let (came, written) = self.wait(queue);
        assert_eq!(came, head);
        let (place, status) = self.status_of(&parts);
        assert!(written <= room as u32 + 1 && (status != 0 || written == room as u32 + 1));
        (status, self.memory.get(place - room as u64, room))
    }

    /// Lays the parts of a request out at a place of the memory.
    pub fn parts(
        &self,
        at: u64,
        (kind, sector): (u32, u64),
        data: &[u8],
        room: usize,
    ) -> Vec<Part> {
        let head = [kind.to_le_bytes().to_vec(), vec![0; 4], sector.to_le_bytes().to_vec()];
        self.memory.put(at, &head.concat());
        self.memory.put(at + 16, data);
        let (from, into) = (at + 16, at + 16 + data.len() as u64);
        self.memory.put(into + room as u64, &[0xee]);
        let mut parts = vec![(GUEST + at, 16, false)];
        // In two parts, of which the first is odd.
        for (from, len, writable) in [(from, data.len(), false), (into, room, true)] {
            let first = (len / 2 + 1).min(len);
            for (at, len) in [(from, first), (from + first as u64, len - first)] {
                parts.extend((len > 0).then_some((GUEST + at, len as u32, writable)));
            }
        }
        parts.push((GUEST + into + room as u64, 1, true));
        parts
    }

    /// Where the status of such a request is, and what it is.
    pub fn status_of(&self, parts: &[Part]) -> (u64, u8) {
        let place = parts.last().unwrap().0 - GUEST;
        (place, self.memory.get(place, 1)[0])
    }

    pub fn read(&mut self, queue: usize, sector: u64, len: usize) -> Vec<u8> {
        let (status, data) = self.request(queue, (IN, sector), &[], len);
        assert_eq!(status, 0);
        data
    }

    pub fn write(&mut self, queue: usize, sector: u64, data: &[u8]) {
        assert_eq!(self.request(queue, (OUT, sector), data, 0).0, 0);
    }

    pub fn sync(&mut self, queue: usize) {
        assert_eq!(self.request(queue, (SYNC, 0), &[], 0).0, 0);
    }

    /// Trims, or fills with zeroes.
    pub fn range(
        &mut self,
        queue: usize,
        kind: u32,
        (sector, sectors): (u64, u32),
        flags: u32,
    ) -> u8 {
        let range = [sector.to_le_bytes().to_vec(), u32s(&[sectors, flags])].concat();
        self.request(queue, (kind, 0), &range, 0).0
    }
}
