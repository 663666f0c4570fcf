//! The smallest guest that there can be: one ring of virtio-blk over vhost-user, requests of one block, as many under way
//! as the other clients have. It is a hypervisor and a driver in one, and waits by its eventfd as a guest waits for an
//! interrupt. A block that is not the one that was written there is an error.

use super::pump::{BLOCK, DEPTH, content, wrong};
use std::io::{Error, Read, Result};
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::{Duration, Instant};

/// The memory: where the guest has it, where the hypervisor would, and its bytes.
const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7f00_0000_0000;
const BYTES: usize = 1 << 20;
/// Entries of the ring, three for each request; and where its parts are.
const ENTRIES: u16 = 128;
const AVAILABLE: usize = 0x1000;
const USED: usize = 0x2000;
/// Each request has a place of its own: its data, which lies as a page does, then its head and its status.
const PLACES: usize = 0x4000;
const PLACE_BYTES: usize = 0x2000;
const HEAD: usize = 0x1000;
const STATUS: usize = 0x1010;
const _: () = assert!(DEPTH * 3 <= ENTRIES);
const _: () = assert!(PLACES + DEPTH as usize * PLACE_BYTES <= BYTES);

/// How long an answer may take.
const PATIENCE_MS: i32 = 20_000;

const FEATURES: u64 = 1 << 30 | 1 << 32 | 1 << 9;
/// Of the protocol: answers to every message.
const REPLIES: u64 = 1 << 3;

/// See the head of this file.
pub struct Guest {
    socket: UnixStream,
    memory: NonNull<u8>,
    file: OwnedFd,
    kick: OwnedFd,
    call: OwnedFd,
    blocks: u64,
    available: u16,
    seen: u16,
    random: u64,
}

impl Guest {
    /// A guest of the disk of so many blocks that is served there.
    pub fn connect(path: &Path, blocks: u64) -> Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        let file = memory_file()?;
        let memory = map(&file)?;
        let (kick, call) = (event()?, event()?);
        let (available, seen, random) = (0, 0, 0x9e37_79b9_7f4a_7c15);
        let guest = Self { socket, memory, file, kick, call, blocks, available, seen, random };
        guest.begin()?;
        Ok(guest)
    }

    /// Says all that a hypervisor says.
    fn begin(&self) -> Result<()> {
        let words =
            |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let pair = |value: u32| [0, value].map(u32::to_le_bytes).concat();
        self.say(1, &[], None)?;
        self.answer()?;
        self.say(15, &[], None)?;
        self.answer()?;
        self.say(16, &words(&[REPLIES]), None)?;
        self.acked(3, &[], None)?;
        self.acked(2, &words(&[FEATURES]), None)?;
        self.acked(5, &words(&[1, GUEST, BYTES as u64, USER, 0]), Some(&self.file))?;
        for index in 0..DEPTH {
            self.describe(index);
        }
        let (available, used) = (USER + AVAILABLE as u64, USER + USED as u64);
        self.acked(13, &words(&[0]), Some(&self.call))?;
        self.acked(8, &pair(ENTRIES.into()), None)?;
        self.acked(10, &pair(0), None)?;
        self.acked(9, &words(&[0, USER, used, available, 0]), None)?;
        self.acked(12, &words(&[0]), Some(&self.kick))?;
        self.acked(18, &pair(1), None)
    }

    /// The three descriptors of a request; that of its data is told by each request.
    fn describe(&self, id: u16) {
        let place = GUEST + (PLACES + usize::from(id) * PLACE_BYTES) as u64;
        self.descriptor(id * 3, place + HEAD as u64, 16, 1);
        self.descriptor(id * 3 + 2, place + STATUS as u64, 1, 2);
    }

    fn descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16) {
        let mut entry = address.to_le_bytes().to_vec();
        entry.extend(bytes.to_le_bytes());
        entry.extend(flags.to_le_bytes());
        entry.extend((index + 1).to_le_bytes());
        self.put(usize::from(index) * 16, &entry);
    }

    /// Writes every block once.
    pub fn fill(&mut self) -> Result<()> {
        let mut blocks = 0..self.blocks;
        self.go(false, |_| blocks.next()).map(drop)
    }

    /// Reads or writes anywhere for so long; how many times.
    pub fn run(&mut self, reads: bool, time: Duration) -> Result<u64> {
        let (until, blocks) = (Instant::now() + time, self.blocks);
        self.go(reads, |random| {
            // Xorshift.
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            (Instant::now() < until).then(|| *random % blocks)
        })
    }

    /// Keeps requests under way at the blocks that `place` names, until it names none.
    fn go(&mut self, reads: bool, mut place: impl FnMut(&mut u64) -> Option<u64>) -> Result<u64> {
        let mut under_way = [None; DEPTH as usize];
        for (id, slot) in (0..).zip(&mut under_way) {
            *slot = place(&mut self.random);
            if let Some(block) = *slot {
                self.push(reads, id, block);
            }
        }
        let mut done = 0;
        while under_way.iter().any(Option::is_some) {
            self.offer();
            while self.word(USED + 2).load(Ordering::Acquire) == self.seen {
                self.wait()?;
            }
            while self.word(USED + 2).load(Ordering::Acquire) != self.seen {
                let at = USED + 4 + 8 * usize::from(self.seen % ENTRIES);
                let id = self.word(at).load(Ordering::Relaxed) / 3;
                self.seen = self.seen.wrapping_add(1);
                let slot = under_way.get_mut(usize::from(id));
                let slot = slot.ok_or_else(|| wrong("an answer to nothing"))?;
                let block = slot.take().ok_or_else(|| wrong("an answer to nothing"))?;
                self.check(reads, id, block)?;
                done += 1;
                *slot = place(&mut self.random);
                if let Some(block) = *slot {
                    self.push(reads, id, block);
                }
            }
        }
        Ok(done)
    }

    /// Puts a request into the ring; it is available by [`Guest::offer`].
    fn push(&mut self, reads: bool, id: u16, block: u64) {
        let place = PLACES + usize::from(id) * PLACE_BYTES;
        let mut head = [0; 16];
        head[0] = u8::from(!reads);
        head[8..].copy_from_slice(&(block * (BLOCK as u64 / 512)).to_le_bytes());
        self.put(place + HEAD, &head);
        self.put(place + STATUS, &[0xee]);
        if !reads {
            self.put(place, &content(block));
        }
        let flags = if reads { 3 } else { 1 };
        self.descriptor(id * 3 + 1, GUEST + place as u64, BLOCK as u32, flags);
        let entry = AVAILABLE + 4 + 2 * usize::from(self.available % ENTRIES);
        self.word(entry).store(id * 3, Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    fn offer(&self) {
        self.word(AVAILABLE + 2).store(self.available, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.word(USED).load(Ordering::Relaxed) & 1 == 0 {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight readable bytes.
            unsafe { libc::write(self.kick.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// Waits until it is told of an answer.
    fn wait(&self) -> Result<()> {
        let fd = self.call.as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut count = [0u8; 8];
        // SAFETY: both are valid for the calls. What was taken meanwhile is looked for by the caller.
        let polled = unsafe {
            let polled = libc::poll(&raw mut poll, 1, PATIENCE_MS);
            libc::read(fd, count.as_mut_ptr().cast(), 8);
            polled
        };
        match polled {
            0 => Err(wrong("the server answers nothing")),
            polled if polled < 0 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn check(&self, reads: bool, id: u16, block: u64) -> Result<()> {
        let place = PLACES + usize::from(id) * PLACE_BYTES;
        let mut status = [0];
        self.get(place + STATUS, &mut status);
        if status != [0] {
            return Err(wrong(format!("block {block} ended with {}", status[0])));
        }
        let mut found = [0; BLOCK];
        if reads {
            self.get(place, &mut found);
        }
        match !reads || found == content(block) {
            true => Ok(()),
            false => Err(wrong(format!("block {block} holds something else"))),
        }
    }

    fn acked(&self, request: u32, body: &[u8], file: Option<&OwnedFd>) -> Result<()> {
        self.send(request, 1 << 3, body, file)?;
        match self.answer()? {
            0 => Ok(()),
            other => Err(wrong(format!("message {request} ended with {other}"))),
        }
    }

    fn say(&self, request: u32, body: &[u8], file: Option<&OwnedFd>) -> Result<()> {
        self.send(request, 0, body, file)
    }

    /// The number that answers a message.
    fn answer(&self) -> Result<u64> {
        let (mut head, mut body) = ([0; 12], [0; 8]);
        (&self.socket).read_exact(&mut head)?;
        (&self.socket).read_exact(&mut body)?;
        Ok(u64::from_le_bytes(body))
    }

    fn send(&self, request: u32, flag: u32, body: &[u8], file: Option<&OwnedFd>) -> Result<()> {
        let mut bytes = [request, 1 | flag, body.len() as u32].map(u32::to_le_bytes).concat();
        bytes.extend_from_slice(body);
        let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut room = [0u64; 4];
        // SAFETY: a header of zeroes is one; all that it points to is valid for its length.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
            if let Some(file) = file {
                let len = size_of::<libc::c_int>() as u32;
                message.msg_control = room.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(len) as _;
                let head = libc::CMSG_FIRSTHDR(&raw const message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(len) as _;
                libc::CMSG_DATA(head).cast::<libc::c_int>().write_unaligned(file.as_raw_fd());
            }
            libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        };
        if sent as usize == bytes.len() { Ok(()) } else { Err(Error::last_os_error()) }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= BYTES, "within the memory");
        // SAFETY: within the mapping, asserted above.
        unsafe {
            let to = self.memory.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn get(&self, at: usize, into: &mut [u8]) {
        assert!(at + into.len() <= BYTES, "within the memory");
        // SAFETY: as above.
        unsafe {
            let from = self.memory.as_ptr().add(at);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
    }

    fn word(&self, at: usize) -> &AtomicU16 {
        assert!(at + 2 <= BYTES && at.is_multiple_of(2), "within the memory");
        // SAFETY: within the mapping, and aligned.
        unsafe { AtomicU16::from_ptr(self.memory.as_ptr().add(at).cast()) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody has it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), BYTES) };
    }
}

fn memory_file() -> Result<OwnedFd> {
    // SAFETY: the name is a text; the descriptor is new and nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"weir-bench".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: no memory is involved.
    let done = unsafe { libc::ftruncate(file.as_raw_fd(), BYTES as libc::off_t) };
    if done == 0 { Ok(file) } else { Err(Error::last_os_error()) }
}

fn map(file: &OwnedFd) -> Result<NonNull<u8>> {
    let (access, any) = (libc::PROT_READ | libc::PROT_WRITE, std::ptr::null_mut());
    // SAFETY: a new mapping, wherever the kernel likes.
    let start = unsafe { libc::mmap(any, BYTES, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    match NonNull::new(start.cast()) {
        Some(memory) if start != libc::MAP_FAILED => Ok(memory),
        _ => Err(Error::last_os_error()),
    }
}

fn event() -> Result<OwnedFd> {
    // SAFETY: no memory is involved; the descriptor is new and nobody else's.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 { Err(Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}
