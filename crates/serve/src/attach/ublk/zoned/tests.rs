//! A queue that asks a server which says what it likes, in pieces of any size.

use super::*;
use std::path::PathBuf;

const IO_BYTES: u32 = 64 << 10;
const BLOCK: u32 = 4096;
const ZONES: Zones =
    Zones { namespace: 1, block_shift: 12, size: 1024, open_max: 0, active_max: 0 };

struct Queue {
    memory: Vec<u8>,
    slots: Vec<Slot<Asked>>,
    link: Link,
    /// Where the driver would hand data over.
    device: Arc<File>,
    appends: PathBuf,
}

impl Drop for Queue {
    fn drop(&mut self) {
        std::fs::remove_file(&self.appends).ok();
    }
}

/// Of a device that another process may have served before.
fn queue(name: &str, was_there: bool) -> Queue {
    let file = |what: &str| {
        std::env::temp_dir().join(format!("weir-zoned-{what}-{name}-{}", std::process::id()))
    };
    let (path, appends) = (file("device"), file("appends"));
    let device = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let device = Arc::new(device.unwrap());
    std::fs::remove_file(path).unwrap();
    // The driver has data of each request.
    device.set_len(abi::data_at(0, 4)).unwrap();
    let noted = Arc::new(Mutex::new(Appends::open(&appends, was_there).unwrap()));
    let place =
        Place { device: Arc::clone(&device), queue: 0, depth: 4, appends: noted, was_there };
    let mut memory = vec![0; 4 * IO_BYTES as usize];
    let start = Memory { start: memory.as_mut_ptr(), io_bytes: IO_BYTES };
    let link = Link::new(ZONES, start, place);
    Queue { memory, slots: (0..4).map(|_| Slot::default()).collect(), link, device, appends }
}

impl Queue {
    /// A request comes, from a block on.
    fn comes(&mut self, tag: u16, operation: u8, first: u64, blocks: u32) -> io::Result<()> {
        let descriptor = Descriptor::new(operation.into(), first * 8, blocks * 8);
        let asked = self.link.understand(&descriptor).unwrap();
        self.link.take(tag, &asked)?;
        self.slots[usize::from(tag)].asked = Some(asked);
        self.link.ask(tag, &asked);
        Ok(())
    }

    /// Takes all that is to be sent, `most` bytes at a time.
    fn sent(&mut self, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(message) = self.link.outgoing() {
            // SAFETY: the link's own, which points to its heads and our memory.
            let parts =
                unsafe { std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
            let mut left = most;
            for part in parts {
                let bytes = part.iov_len.min(left);
                // SAFETY: as above.
                all.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(part.iov_base.cast::<u8>(), bytes)
                });
                left -= bytes;
            }
            self.link.sent(most - left);
        }
        all
    }

    /// The opcode of the one command that is to be sent.
    fn opcode(&mut self) -> u8 {
        let sent = self.sent(1 << 20);
        assert_eq!((sent[0], sent.len()), (4, u32_at(&sent, 4) as usize));
        sent[8]
    }

    /// Brings bytes, `most` at a time; what was heard.
    fn bring(&mut self, bytes: &[u8], most: usize) -> Vec<Heard> {
        let (mut rest, mut heard) = (bytes, Vec::new());
        while !rest.is_empty() {
            let (into, room) = self.link.incoming(&self.slots);
            let taken = rest.len().min(most).min(room as usize);
            // SAFETY: there is so much room.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), into, taken) };
            rest = &rest[taken..];
            self.link.received(taken as u32, &self.slots);
            while let Some(one) = self.link.hear(&self.slots) {
                heard.push(one);
                match one {
                    Heard::Done(tag, _) => self.slots[usize::from(tag)].asked = None,
                    _ => return heard,
                }
            }
        }
        heard
    }

    fn ends(&mut self, tag: u16, status: u16) -> Vec<Heard> {
        self.bring(&response(tag, 0, status), 7)
    }

    /// The server has gone, and another is asked for a request.
    fn again(&mut self, tag: u16) -> Result<(), i32> {
        self.link.reset();
        self.link.ask_again(tag, &self.slots[usize::from(tag)])
    }
}

fn response(tag: u16, result: u64, status: u16) -> Vec<u8> {
    let mut bytes = vec![5, 0, 24, 0, 24, 0, 0, 0];
    bytes.extend(result.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(tag.to_le_bytes());
    bytes.extend((status << 1).to_le_bytes());
    bytes
}

/// Data of a command, or a request for it.
fn about(kind: u8, tag: u16, offset: u32, data: u32) -> Vec<u8> {
    let mut bytes = vec![kind, 4, 24, if kind == 7 { 24 } else { 0 }];
    bytes.extend((24 + if kind == 7 { data } else { 0 }).to_le_bytes());
    bytes.extend(tag.to_le_bytes());
    bytes.extend([0; 2]);
    bytes.extend(offset.to_le_bytes());
    bytes.extend(data.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

/// Data of a command that reports one zone, from block 0 on.
fn report(tag: u16, state: u8, pointer: u64) -> Vec<u8> {
    let mut bytes = about(7, tag, 0, 128);
    let mut page = [0; 128];
    (page[0], page[64], page[65]) = (1, 2, state << 4);
    page[72..80].copy_from_slice(&768u64.to_le_bytes());
    page[88..96].copy_from_slice(&pointer.to_le_bytes());
    bytes.extend(page);
    bytes
}

const DONE: Heard = Heard::Done(0, BLOCK as i32);

#[test]
fn data_goes_in_the_capsule_or_when_it_is_asked_for() {
    for most in [1, 7, 100, 1 << 20] {
        let mut queue = queue("sent", false);
        queue.device.write_all_at(&[9; 3 * BLOCK as usize], abi::data_at(0, 1)).unwrap();
        queue.comes(0, abi::READ, 5, 2).unwrap();
        queue.comes(1, abi::WRITE, 5, 1).unwrap();
        let sent = queue.sent(most);
        assert_eq!(sent.len(), 2 * 72 + BLOCK as usize);
        assert_eq!((sent[8], sent[72 + 8]), (nvme::READ, nvme::WRITE));
        assert!(sent[2 * 72..].iter().all(|&byte| byte == 9), "{most}");
        assert_eq!(queue.ends(1, 0), [Heard::Done(1, BLOCK as i32)]);
        queue.comes(1, abi::WRITE, 6, 3).unwrap();
        assert_eq!(queue.sent(most).len(), 72);
        assert_eq!(queue.bring(&about(9, 1, 0, 3 * BLOCK), most), []);
        let sent = queue.sent(most);
        assert_eq!((sent[0], sent.len()), (6, 24 + 3 * BLOCK as usize));
        assert!(sent[24..].iter().all(|&byte| byte == 9), "{most}");
    }
}

#[test]
fn what_is_read_is_handed_over_whole_and_an_append_says_where_it_is() {
    for most in [1, 17, 5000, 1 << 20] {
        let mut queue = queue("read", false);
        queue.comes(0, abi::READ, 0, 16).unwrap();
        queue.comes(1, abi::ZONE_APPEND, 1024, 1).unwrap();
        let half = 8 * BLOCK as usize;
        let data: Vec<u8> = (0..2 * half).map(|at| (at / 3) as u8).collect();
        let mut bytes = [about(7, 0, 0, half as u32), data[..half].to_vec()].concat();
        bytes.extend(response(1, 1030, 0));
        bytes.extend([about(7, 0, half as u32, half as u32), data[half..].to_vec()].concat());
        bytes.extend(response(0, 0, 0));
        let heard = queue.bring(&bytes, most);
        assert_eq!(heard, [Heard::Done(1, BLOCK as i32), Heard::Done(0, 16 * BLOCK as i32)]);
        assert_eq!([1, 1, 0].map(|tag| queue.link.address(tag)), [1030 * 8, 0, 0], "{most}");
        let mut read = vec![0; 2 * half];
        queue.device.read_exact_at(&mut read, abi::data_at(0, 0)).unwrap();
        assert!(read == data, "{most}");
        assert!(queue.memory.len() > 2 * half);
    }
}

#[test]
fn a_server_that_says_what_nobody_asked_is_not_believed() {
    let long = |tag, offset, data: u32| [about(7, tag, offset, data), vec![0; 64]].concat();
    for odd in [
        response(3, 0, 0),
        response(9, 0, 0),
        // A read without its data.
        response(0, 0, 0),
        long(0, 2 * BLOCK, 1),
        long(0, u32::MAX, 2),
        long(0, 0, 0),
        long(1, 0, BLOCK),
        about(9, 0, 0, 2 * BLOCK),
        about(9, 1, 0, BLOCK),
        about(3, 0, 0, 0),
        vec![0xff; 24],
    ] {
        let mut queue = queue("odd", false);
        queue.comes(0, abi::READ, 0, 2).unwrap();
        queue.comes(1, abi::WRITE, 0, 1).unwrap();
        assert_eq!(queue.bring(&odd, 100), [Heard::Nonsense], "{odd:?}");
    }
}

#[test]
fn a_write_that_a_server_before_has_carried_out_is_done_once() {
    // Asked again: it was not carried out.
    let mut queue = queue("again", false);
    queue.comes(0, abi::WRITE, 4, 1).unwrap();
    queue.sent(1 << 20);
    queue.again(0).unwrap();
    assert_eq!(queue.opcode(), nvme::WRITE);
    assert_eq!(queue.ends(0, 0), [DONE]);
    // It was: its zone refuses it, and its pointer is behind it.
    for (status, state, pointer, heard) in [
        (asked::INVALID_WRITE, 2, 6, DONE),
        (asked::INVALID_WRITE, 2, 7, Heard::Done(0, -libc::EIO)),
        (asked::ZONE_IS_FULL, 0xe, u64::MAX, Heard::Done(0, -libc::EIO)),
    ] {
        queue.comes(0, abi::WRITE, 5, 1).unwrap();
        queue.sent(1 << 20);
        queue.again(0).unwrap();
        assert_eq!(queue.opcode(), nvme::WRITE);
        assert_eq!(queue.ends(0, status), []);
        assert_eq!(queue.opcode(), nvme::ZONE_REPORT);
        let told = [report(0, state, pointer), response(0, 0, 0)].concat();
        assert_eq!(queue.bring(&told, 11), [heard]);
    }
    // It still is, for the connection before: its data is taken anew, as the report lies where it was.
    queue.device.write_all_at(&[9; BLOCK as usize], abi::data_at(0, 0)).unwrap();
    queue.comes(0, abi::WRITE, 5, 1).unwrap();
    queue.sent(1 << 20);
    queue.again(0).unwrap();
    queue.sent(1 << 20);
    assert_eq!(queue.ends(0, asked::INVALID_WRITE), []);
    assert_eq!(queue.opcode(), nvme::ZONE_REPORT);
    assert_eq!(queue.bring(&[report(0, 2, 5), response(0, 0, 0)].concat(), 64), []);
    let sent = queue.sent(1 << 20);
    assert_eq!(sent[8], nvme::WRITE);
    assert!(sent[72..].iter().all(|&byte| byte == 9));
    assert_eq!(queue.ends(0, 0), [DONE]);
    // One that nobody was asked for before is refused as it is.
    queue.comes(0, abi::WRITE, 5, 1).unwrap();
    assert_eq!(queue.ends(0, asked::INVALID_WRITE), [Heard::Done(0, -libc::EIO)]);
}

#[test]
fn a_durable_write_that_was_carried_out_is_flushed_before_it_is_answered() {
    let mut queue = queue("fua", false);
    let descriptor = Descriptor::new(u32::from(abi::WRITE) | abi::FUA, 0, 8);
    let asked = queue.link.understand(&descriptor).unwrap();
    queue.link.take(0, &asked).unwrap();
    queue.slots[0].asked = Some(asked);
    queue.again(0).unwrap();
    queue.sent(1 << 20);
    assert_eq!(queue.ends(0, asked::INVALID_WRITE), []);
    assert_eq!(queue.opcode(), nvme::ZONE_REPORT);
    assert_eq!(queue.bring(&[report(0, 2, 1), response(0, 0, 0)].concat(), 64), []);
    assert_eq!(queue.opcode(), nvme::FLUSH);
    assert_eq!(queue.ends(0, 0), [DONE]);
}

#[test]
fn an_append_that_a_server_was_asked_for_is_not_asked_again() {
    let mut queue = queue("append", false);
    queue.comes(0, abi::ZONE_APPEND, 0, 1).unwrap();
    queue.comes(1, abi::READ, 0, 1).unwrap();
    assert_eq!(queue.again(0), Err(-libc::EIO));
    queue.slots[0].asked = None;
    assert_eq!(queue.again(1), Ok(()));
    assert_eq!(queue.opcode(), nvme::READ);
    // What was failed is no process's any more.
    queue.comes(0, abi::ZONE_APPEND, 0, 1).unwrap();
    assert_eq!(queue.ends(0, asked::INTERRUPTED | 1 << 11), [], "to be tried again");
}

#[test]
fn what_a_process_before_was_asked_is_done_once_by_the_next_one() {
    let mut first = queue("process", false);
    first.comes(0, abi::ZONE_APPEND, 0, 1).unwrap();
    first.comes(1, abi::ZONE_APPEND, 1024, 1).unwrap();
    first.ends(1, 0);
    first.comes(2, abi::WRITE, 2048, 1).unwrap();
    let mut next = queue("process", true);
    assert!(next.comes(2, abi::ZONE_APPEND, 0, 1).is_err(), "the tag may be another one");
    next.comes(2, abi::ZONE_APPEND, 0, 1).unwrap();
    next.comes(1, abi::ZONE_APPEND, 1024, 1).unwrap();
    // The first write of each zone may be one that was carried out.
    next.comes(0, abi::WRITE, 2048, 1).unwrap();
    assert_eq!(next.ends(0, asked::INVALID_WRITE), []);
    next.sent(1 << 20);
    let mut told = report(0, 2, 2049);
    told[24 + 80..24 + 88].copy_from_slice(&2048u64.to_le_bytes());
    assert_eq!(next.bring(&[told, response(0, 0, 0)].concat(), 64), [DONE]);
    next.comes(0, abi::WRITE, 2049, 1).unwrap();
    assert_eq!(next.ends(0, asked::INVALID_WRITE), [Heard::Done(0, -libc::EIO)]);
}
