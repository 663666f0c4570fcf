//! What holds for a ring holds for every driver: each test runs on all that this kernel grants.

use super::uring::Level;
use super::*;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// A ring of each driver, at each level.
fn rings(entries: u32) -> Vec<(String, Ring)> {
    let mut rings = vec![("threads".to_owned(), ring(entries, DriverChoice::Threads))];
    for level in Level::ALL {
        match Uring::at(level, entries) {
            Ok(driver) => {
                let mut ring = ring(entries, DriverChoice::Threads);
                ring.driver = Driver::Uring(Box::new(driver));
                rings.push((format!("{level:?}"), ring));
            }
            Err(refusal) => println!("SKIPPED here: io_uring {level:?}: {refusal}"),
        }
    }
    rings
}

fn ring(entries: u32, choice: DriverChoice) -> Ring {
    Ring::new(entries, choice).unwrap()
}

fn all(ring: &mut Ring) -> Vec<Done> {
    let mut done = Vec::new();
    while ring.under_way() > 0 {
        ring.enter(None, &mut done).unwrap();
    }
    done
}

fn message(iovec: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a message header of zeroes is one without content.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut *iovec, 1);
    message
}

fn iovec(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

#[test]
fn more_entries_than_the_ring_holds_all_complete() {
    for (name, mut ring) in rings(4) {
        let file = File::open("/dev/zero").unwrap();
        let mut bytes = [1u8; 100];
        for i in 0..100 {
            ring.read(i, file.as_raw_fd(), &raw mut bytes[i as usize], 1, 0);
        }
        let done = all(&mut ring);
        let mut seen: Vec<u32> = done.iter().map(|done| done.index).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>(), "{name}");
        assert!(done.iter().all(|done| done.result == 1 && done.owner == Owner::Medium), "{name}");
        assert!(done.iter().all(|done| done.bytes == 1), "{name}");
        assert!(bytes.iter().all(|&byte| byte == 0), "{name}");
    }
}

#[test]
fn enter_returns_when_its_time_is_over_and_not_long_before() {
    for (name, mut ring) in rings(4) {
        let mut done = Vec::new();
        ring.enter(Some(0), &mut done).unwrap();
        let begun = Instant::now();
        ring.enter(Some(20_000_000), &mut done).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(15), "{name}: {:?}", begun.elapsed());
        ring.look(1000, &mut done).unwrap();
        assert!(done.is_empty(), "{name}");
    }
}

#[test]
fn files_are_written_read_synced_and_punched() {
    for (name, mut ring) in rings(8) {
        let path = std::env::temp_dir().join(format!("weir-ring-{}-{name}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(&path).unwrap();
        let fd = file.as_raw_fd();
        let written = vec![7u8; 8192];
        ring.write(1, fd, written.as_ptr(), written.len(), 4096);
        assert_eq!(all(&mut ring)[0].result, 8192, "{name}");
        ring.punch(2, fd, 4096, 4096);
        ring.sync_data(3, fd);
        assert!(all(&mut ring).iter().all(|done| done.result == 0), "{name}");
        let mut read = vec![1u8; 8192];
        ring.read(4, fd, read.as_mut_ptr(), read.len(), 4096);
        // Beyond the end there is less than was asked for, or nothing.
        let mut beyond = vec![1u8; 8192];
        ring.read(5, fd, beyond.as_mut_ptr(), beyond.len(), 8192);
        let mut done = all(&mut ring);
        done.sort_by_key(|done| done.index);
        assert_eq!((done[0].result, done[1].result), (8192, 4096), "{name}");
        assert!(read[..4096].iter().all(|&byte| byte == 0), "{name}");
        assert!(read[4096..] == written[4096..] && beyond[..4096] == written[4096..], "{name}");
    }
}

#[test]
fn a_descriptor_that_is_none_is_an_error_of_the_operation() {
    for (name, mut ring) in rings(8) {
        let mut bytes = [0u8; EVENT_BYTES];
        let mut piece = iovec(&mut bytes);
        let mut header = message(&mut piece);
        let mut event = [0u8; EVENT_BYTES];
        let mut block = [0u8; 16];
        ring.read(1, -1, block.as_mut_ptr(), block.len(), 0);
        ring.read_event(2, -1, event.as_mut_ptr());
        ring.receive(3, -1, &raw mut header);
        ring.accept(4, -1);
        ring.sync_data(5, -1);
        let done = all(&mut ring);
        assert_eq!(done.len(), 5, "{name}");
        assert!(done.iter().all(|done| done.result == -libc::EBADF), "{name}: {done:?}");
    }
}

#[test]
fn clients_come_and_talk_in_both_directions_at_once() {
    for (name, mut ring) in rings(8) {
        let path = std::env::temp_dir().join(format!("weir-sock-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        for round in 0..3u8 {
            ring.accept(9, listener.as_raw_fd());
            let mut done = Vec::new();
            ring.enter(Some(1_000_000), &mut done).unwrap();
            assert!(done.is_empty(), "{name}: nobody is there yet");
            let mut client = UnixStream::connect(&path).unwrap();
            let accepted = all(&mut ring);
            assert_eq!((accepted[0].owner, accepted[0].index), (Owner::Accept, 9), "{name}");
            // SAFETY: the kernel made this descriptor for us. Closed each round, it has the same
            // number again.
            let socket = unsafe { OwnedFd::from_raw_fd(accepted[0].result) };
            let (mut hello, mut room) = (vec![round; 1 << 20], [0u8; 64]);
            let (mut out, mut into) = (iovec(&mut hello), iovec(&mut room));
            let (outgoing, mut incoming) = (message(&mut out), message(&mut into));
            ring.receive(1, socket.as_raw_fd(), &raw mut incoming);
            ring.send(2, socket.as_raw_fd(), &raw const outgoing);
            // More than the socket holds, while nothing comes in.
            let reader = std::thread::spawn(move || {
                let mut first = vec![0; 4096];
                client.read_exact(&mut first).unwrap();
                client.write_all(&[round; 5]).unwrap();
                client.shutdown(std::net::Shutdown::Write).unwrap();
                let mut rest = Vec::new();
                client.read_to_end(&mut rest).unwrap();
                first.len() + rest.len()
            });
            let done = all(&mut ring);
            let received = done.iter().find(|done| done.owner == Owner::Receive).unwrap();
            let sent = done.iter().find(|done| done.owner == Owner::Send).unwrap();
            assert_eq!((received.result, &room[..5]), (5, &[round; 5][..]), "{name}");
            assert!(sent.result > 0, "{name}: {sent:?}");
            ring.receive(1, socket.as_raw_fd(), &raw mut incoming);
            assert_eq!(all(&mut ring)[0].result, 0, "{name}: the client says no more");
            drop(socket);
            assert_eq!(reader.join().unwrap(), sent.result as usize, "{name}");
        }
        // A listener that is shut wakes who waits at it.
        ring.accept(9, listener.as_raw_fd());
        let mut done = Vec::new();
        ring.enter(Some(0), &mut done).unwrap();
        // SAFETY: no memory is involved.
        unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
        assert!(all(&mut ring)[0].result < 0, "{name}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_hang_up_ends_what_waits_on_a_socket() {
    for (name, mut ring) in rings(8) {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut room = [0u8; 64];
        let mut into = iovec(&mut room);
        let mut incoming = message(&mut into);
        ring.receive(1, ours.as_raw_fd(), &raw mut incoming);
        let mut done = Vec::new();
        ring.enter(Some(0), &mut done).unwrap();
        assert!(done.is_empty(), "{name}");
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(all(&mut ring)[0].result, 0, "{name}");
    }
}

#[test]
fn no_wake_up_is_lost_however_threads_and_files_race() {
    for (name, mut ring) in rings(8) {
        const WAKES: u64 = 300;
        // SAFETY: a new descriptor, which is ours.
        let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        let taken = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (fd, seen) = (event.as_raw_fd(), taken.clone());
        // One at a time: each is awaited, so that one that is lost is missed.
        let waker = std::thread::spawn(move || {
            for wake in 0..WAKES {
                let one = 1u64.to_ne_bytes();
                // SAFETY: eight readable bytes.
                unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
                let begun = Instant::now();
                while seen.load(std::sync::atomic::Ordering::Acquire) <= wake {
                    assert!(begun.elapsed() < Duration::from_secs(20), "wake-up {wake} was lost");
                    std::thread::yield_now();
                }
            }
        });
        let file = File::open("/dev/zero").unwrap();
        let (mut count, mut byte) = ([0u8; EVENT_BYTES], [0u8; 8]);
        let mut done = Vec::new();
        let (mut wakes, mut reads, mut reading) = (0, 0, 0u32);
        ring.wake(fd, count.as_mut_ptr());
        while wakes < WAKES {
            while reading < byte.len() as u32 {
                ring.read(reading, file.as_raw_fd(), &raw mut byte[reading as usize], 1, 0);
                reading += 1;
            }
            // The long wait is the test: who waits for it has missed something.
            ring.enter(Some(10 * flash::SECOND), &mut done).unwrap();
            for done in done.drain(..) {
                match done.owner {
                    Owner::Wake => {
                        assert_eq!(done.result, EVENT_BYTES as i32, "{name}");
                        wakes += u64::from_ne_bytes(count);
                        taken.store(wakes, std::sync::atomic::Ordering::Release);
                        if wakes < WAKES {
                            ring.wake(fd, count.as_mut_ptr());
                        }
                    }
                    _ => reads += 1,
                }
            }
            if reads == reading {
                (reads, reading) = (0, 0);
            }
        }
        waker.join().unwrap_or_else(|_| panic!("{name}"));
        assert!(ring.settle(Duration::from_secs(20)), "{name}");
    }
}

#[test]
fn a_ring_that_is_dropped_lets_go_of_the_memory_it_was_given() {
    for _ in 0..50 {
        let mut ring = ring(8, DriverChoice::Threads);
        let file = File::open("/dev/zero").unwrap();
        let mut bytes = vec![1u8; 64 << 10];
        for index in 0..64 {
            let piece = &mut bytes[index as usize * 1024..][..1024];
            ring.read(index, file.as_raw_fd(), piece.as_mut_ptr(), piece.len(), 0);
        }
        ring.enter(Some(0), &mut Vec::new()).unwrap();
        drop(ring);
        bytes.fill(9);
        std::thread::yield_now();
        assert!(bytes.iter().all(|&byte| byte == 9), "a thread wrote after the end");
    }
}

#[test]
fn a_ring_says_which_driver_it_has() {
    let threads = ring(8, DriverChoice::Threads);
    assert_eq!(threads.report().name, "threads");
    assert!(!threads.report().lesser, "it is what was asked for");
    for name in DriverChoice::NAMES {
        assert!(DriverChoice::by_name(name).is_some(), "{name}");
    }
    let report = ring(8, DriverChoice::Auto).report().clone();
    assert_eq!(report.name == "io_uring", Uring::new(8).is_ok(), "{report}");
}
