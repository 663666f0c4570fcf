//! A host that is strict, and one that lies: everything by bytes, in pieces of any size.

use super::*;
use crate::volume::Failure;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host";

pub struct Host {
    pub client: NvmeClient,
    pub out: Vec<u8>,
    pub events: Vec<Event>,
    digests: bool,
}

pub fn subsystem(hosts: &[&str]) -> Arc<Subsystem> {
    let handles = Handles { count: 4, first: 1, apart: true };
    let (block_shift, zones, hosts_of) = (12, None, Vec::new());
    let (uuid, read_only) = (uuid_of(7, "v"), false);
    let namespace = Namespace {
        number: 1,
        blocks: 256,
        block_shift,
        zones,
        handles,
        atomic: Atomic { blocks: 4, border_every: 256, border_first: 5 },
        read_only,
        uuid,
        hosts: hosts_of,
    };
    let read_only = Namespace { number: 2, read_only: true, ..namespace.clone() };
    let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
    let namespaces = vec![namespace, read_only];
    let subsystem = Subsystem::new("nqn.weir".into(), "7".into(), namespaces, hosts, (SECOND, 1));
    Arc::new(subsystem.with_placement(1 << 20))
}

pub fn entry(opcode: u8, id: u16, nsid: u32) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[0], entry[1]) = (opcode, 0x40);
    entry[2..4].copy_from_slice(&id.to_le_bytes());
    entry[4..8].copy_from_slice(&nsid.to_le_bytes());
    entry
}

pub fn with_sgl(mut entry: [u8; 64], len: u32, apart: bool) -> [u8; 64] {
    entry[32..36].copy_from_slice(&len.to_le_bytes());
    entry[39] = if apart { 0x5a } else { 0x01 };
    entry
}

pub fn blocks(mut entry: [u8; 64], first: u64, count: u16) -> [u8; 64] {
    entry[40..48].copy_from_slice(&first.to_le_bytes());
    entry[48..50].copy_from_slice(&(count - 1).to_le_bytes());
    entry
}

impl Host {
    fn new(subsystem: &Arc<Subsystem>, digests: bool) -> Self {
        let client = NvmeClient::new(Instant(0), Arc::clone(subsystem), None);
        let mut host = Self { client, out: Vec::new(), events: Vec::new(), digests: false };
        let mut request = vec![0; 128];
        (request[2], request[4]) = (128, 128);
        request[11] = if digests { 3 } else { 0 };
        host.send(&request);
        assert_eq!((host.out.len(), host.out[0], host.out[11]), (128, pdu::IC_RESP, request[11]));
        host.out.clear();
        host.digests = digests;
        host
    }

    /// Sends bytes one by one where `receive` takes them; the driver's payload is taken at once.
    fn send(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let left = self.client.payload_left() as usize;
            if left > 0 {
                let taken = left.min(rest.len());
                let payload = &rest[..taken];
                self.client.payload_received(taken);
                rest = &rest[taken..];
                if self.client.payload_left() == 0 {
                    let ended = self.client.payload_ended(&mut std::iter::once(payload));
                    if ended == Payload::Whole {
                        self.events.push(Event::Whole(Ticket(u32::MAX)));
                    }
                }
                continue;
            }
            let piece = &rest[..rest.len().min(1 + rest.len() % 7)];
            let received = self.client.receive(Instant(1), piece, &mut self.out);
            assert!(received.consumed > 0 && received.consumed <= piece.len());
            rest = &rest[received.consumed..];
            self.events.extend(received.event);
            while let Some(event) = self.client.resume() {
                self.events.push(event);
            }
        }
    }

    fn pdu(&mut self, kind: u8, flags: u8, body: &[u8], data: &[u8]) -> Vec<u8> {
        let head = 8 + body.len() + if self.digests { 4 } else { 0 };
        let tail = if self.digests && !data.is_empty() { 4 } else { 0 };
        let mut flags = flags;
        if self.digests {
            flags |= if data.is_empty() { 1 } else { 3 };
        }
        let offset = if data.is_empty() { 0 } else { head as u8 };
        let mut bytes = vec![kind, flags, 8 + body.len() as u8, offset];
        bytes.extend(((head + data.len() + tail) as u32).to_le_bytes());
        bytes.extend(body);
        if self.digests {
            bytes.extend(flash::crc(&bytes).to_le_bytes());
        }
        bytes.extend(data);
        if tail > 0 {
            bytes.extend(flash::crc(data).to_le_bytes());
        }
        bytes
    }

    pub fn command(&mut self, entry: &[u8; 64], data: &[u8]) {
        let pdu = self.pdu(pdu::CAPSULE_CMD, 0, entry, data);
        self.send(&pdu);
    }

    /// The status of the completion that `out` ends with, and its result.
    pub fn completed(&mut self, id: u16) -> (u16, u64) {
        let tail = if self.digests { 4 } else { 0 };
        let at = self.out.len() - tail - 16;
        let completion = &self.out[at..at + 16];
        assert_eq!(self.out[at - 8], pdu::CAPSULE_RESP);
        assert_eq!(pdu::u16_at(completion, 12), id);
        let found = (pdu::u16_at(completion, 14) >> 1, pdu::u64_at(completion, 0));
        self.out.clear();
        found
    }

    fn connect(&mut self, queue: u16, controller: u16, nqn: &str) -> (u16, u64) {
        let mut entry = with_sgl(entry(command::FABRICS, 9, 0), 1024, false);
        entry[4] = fabrics::CONNECT;
        entry[42..44].copy_from_slice(&queue.to_le_bytes());
        entry[44] = 31;
        entry[48..52].copy_from_slice(&5000u32.to_le_bytes());
        let mut data = vec![0; 1024];
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        data[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
        data[512..512 + HOST.len()].copy_from_slice(HOST.as_bytes());
        self.command(&entry, &data);
        self.completed(9)
    }

    fn set_property(&mut self, value: u64) -> u16 {
        let mut entry = entry(command::FABRICS, 3, 0);
        (entry[4], entry[44]) = (fabrics::PROPERTY_SET, 0x14);
        entry[48..56].copy_from_slice(&value.to_le_bytes());
        self.command(&entry, &[]);
        self.completed(3).0
    }

    fn ended_by(&self, status: u16) {
        assert_eq!(self.events.last(), Some(&Event::Close));
        assert_eq!((self.out[0], pdu::u16_at(&self.out, 8)), (pdu::C2H_TERM, status));
    }
}

/// An admin queue and an I/O queue of one controller.
fn connected(digests: bool) -> (Host, Host) {
    connected_to(&subsystem(&[]), digests)
}

/// The same, of a subsystem.
pub fn connected_to(subsystem: &Arc<Subsystem>, digests: bool) -> (Host, Host) {
    let mut admin = Host::new(subsystem, digests);
    assert_eq!(admin.connect(0, 0xffff, "nqn.weir"), (0, 1));
    assert_eq!(admin.set_property(0x46_0001), 0);
    let mut features = entry(command::SET_FEATURES, 5, 0);
    (features[40], features[44], features[46]) = (7, 200, 1);
    admin.command(&features, &[]);
    assert_eq!(admin.completed(5), (0, 0x1_0001));
    let mut io = Host::new(subsystem, digests);
    assert_eq!(io.connect(1, 1, "nqn.weir"), (0, 1));
    io.events.clear();
    (admin, io)
}

#[test]
fn a_write_comes_in_its_capsule_or_when_it_is_asked_for_with_digests_and_without() {
    for digests in [false, true] {
        let (_admin, mut io) = connected(digests);
        let write = blocks(with_sgl(entry(command::WRITE, 1, 1), 4096, false), 3, 1);
        io.command(&write, &[7; 4096]);
        let [Event::Request(ticket, request), Event::Whole(_)] = io.events[..] else {
            panic!("{:?}", io.events)
        };
        assert_eq!((request.volume, request.offset, request.len), (0, 3 * 4096, 4096));
        io.client.answer(ticket, Answer::Done, &mut io.out);
        io.client.finish(ticket);
        assert_eq!(io.completed(1), (0, 0));
        io.events.clear();
        io.command(&blocks(with_sgl(entry(command::WRITE, 2, 1), 16384, true), 0, 4), &[]);
        let [Event::Request(ticket, _)] = io.events[..] else { panic!("{:?}", io.events) };
        assert!(io.client.asks_for_data(ticket, &mut io.out) && io.client.awaits_data());
        assert_eq!((io.out[0], pdu::u32_at(&io.out, 16)), (pdu::R2T, 16384));
        for (at, last) in [(0u32, 0), (8192, pdu::FLAG_LAST)] {
            let mut body = [0; 16];
            (body[0], body[2]) = (2, ticket.0 as u8);
            body[4..8].copy_from_slice(&at.to_le_bytes());
            body[8..12].copy_from_slice(&8192u32.to_le_bytes());
            let data = io.pdu(pdu::H2C_DATA, last, &body, &[9; 8192]);
            io.send(&data);
        }
        assert!(matches!(io.events[1..], [Event::Data(_), Event::Data(_), Event::Whole(_)]));
        assert!(!io.client.awaits_data());
        let failed = Answer::Failed(Failure::Differs);
        io.client.answer(ticket, failed, &mut io.out);
        io.client.finish(ticket);
        assert_eq!(io.completed(2).0, Status::DIFFERS.0);
        assert_eq!((io.client.bytes, io.client.outstanding), (0, 0));
    }
}

#[test]
fn a_read_is_answered_by_its_data_and_a_completion() {
    for digests in [false, true] {
        let (_admin, mut io) = connected(digests);
        io.command(&blocks(with_sgl(entry(command::READ, 4, 1), 8192, true), 255, 1), &[]);
        assert_eq!(io.completed(4).0, Status::SGL_LENGTH.0);
        assert_eq!(std::mem::take(&mut io.events), [Event::Refused(Some(0))]);
        io.command(&blocks(with_sgl(entry(command::READ, 4, 1), 8192, true), 254, 2), &[]);
        let [Event::Request(ticket, _)] = io.events[..] else { panic!("{:?}", io.events) };
        assert!(io.client.answer(ticket, Answer::Done, &mut io.out));
        let header = io.out.len();
        assert_eq!(pdu::u32_at(&io.out, 4) as usize, header + 8192 + if digests { 4 } else { 0 });
        let data = [5; 8192];
        io.client.after_data(ticket, &mut std::iter::once(&data[..]), &mut io.out);
        if digests {
            assert_eq!(pdu::u32_at(&io.out, header), flash::crc(&data));
        }
        io.client.finish(ticket);
        assert_eq!(io.completed(4).0, 0);
    }
}

#[test]
fn what_is_not_right_is_refused_and_the_queue_goes_on() {
    let (_admin, mut io) = connected(true);
    let write =
        |nsid, first| blocks(with_sgl(entry(command::WRITE, 1, nsid), 4096, false), first, 1);
    for (command, status) in [
        (write(3, 0), Status::NAMESPACE),
        (write(0, 0), Status::NAMESPACE),
        (write(2, 0), Status::PROTECTED),
        (write(1, 256), Status::RANGE),
        (write(1, u64::MAX), Status::RANGE),
        (with_sgl(write(1, 0), 8192, false), Status::SGL_LENGTH),
        (with_sgl(write(1, 0), 4096, true), Status::SGL_LENGTH),
        (with_sgl(entry(0x77, 1, 1), 4096, false), Status::OPCODE),
    ] {
        io.command(&command, &[1; 4096]);
        assert_eq!(io.completed(1).0, status.0, "{command:?}");
        // Counted for the volume that it names, if there is one.
        let volume = (pdu::u32_at(&command, 4) as usize).checked_sub(1).filter(|&at| at < 2);
        assert_eq!(io.events, [Event::Refused(volume)], "{command:?}");
        io.events.clear();
    }
    // Damaged on its way.
    let mut spoilt = io.pdu(pdu::CAPSULE_CMD, 0, &write(1, 0), &[1; 4096]);
    spoilt[2000] ^= 1;
    io.send(&spoilt);
    assert!(matches!(io.events[..], [Event::Request(..), Event::Spoilt(_)]), "{:?}", io.events);
}

#[test]
fn a_trim_that_brings_a_whole_page_for_its_one_range_is_done() {
    for digests in [false, true] {
        let (_admin, mut io) = connected(digests);
        let mut trim = with_sgl(entry(command::TRIM, 6, 1), 4096, false);
        trim[44] = 4;
        let mut page = [0xff; 4096];
        page[..16].fill(0);
        page[4] = 8;
        io.command(&trim, &page);
        let [Event::Request(ticket, request)] = io.events[..] else { panic!("{:?}", io.events) };
        assert_eq!((request.offset, request.len), (0, 32768));
        io.client.answer(ticket, Answer::Done, &mut io.out);
        assert_eq!(io.completed(6).0, 0);
        // Shorter than its ranges it is refused.
        (trim[32], trim[33], trim[40]) = (16, 0, 1);
        io.command(&trim, &page[..16]);
        assert_eq!(io.completed(6).0, Status::SGL_LENGTH.0);
    }
}

#[test]
fn a_trim_of_more_than_one_request_can_name_goes_out_in_parts() {
    let (_admin, mut io) = connected(false);
    let whole = Namespace { blocks: 1 << 40, ..io.client.namespaces[0].clone() };
    io.client.namespaces = vec![whole].into();
    let mut trim = with_sgl(entry(command::TRIM, 6, 1), 16, false);
    trim[44] = 4;
    let mut range = [0; 16];
    range[4..8].fill(0xff);
    io.command(&trim, &range);
    let (mut end, mut parts) = (0, 0);
    while let Some(event) = io.events.pop() {
        let Event::Request(ticket, request) = event else { panic!("{event:?}") };
        (end, parts) = (end.max(request.offset + u64::from(request.len)), parts + 1);
        assert!(io.out.is_empty(), "its completion comes last");
        io.client.answer(ticket, Answer::Done, &mut io.out);
        io.client.finish(ticket);
        io.events.extend(io.client.resume());
    }
    assert_eq!((end, parts), (0xffff_ffff * 4096, 4097));
    assert_eq!(io.completed(6).0, 0);
}

#[test]
fn a_trim_of_many_ranges_is_one_command() {
    let (_admin, mut io) = connected(false);
    let mut trim = with_sgl(entry(command::TRIM, 6, 1), 32, false);
    (trim[40], trim[44]) = (1, 4);
    let mut ranges = [0; 32];
    (ranges[4], ranges[20], ranges[24]) = (8, 1, 255);
    io.command(&trim, &ranges);
    let [Event::Request(one, a), Event::Request(two, b)] = io.events[..] else {
        panic!("{:?}", io.events)
    };
    assert_eq!((a.offset, a.len, b.offset, b.len), (0, 32768, 255 * 4096, 4096));
    io.client.answer(one, Answer::Done, &mut io.out);
    assert!(io.out.is_empty());
    io.client.answer(two, Answer::Done, &mut io.out);
    assert_eq!(io.completed(6).0, 0);
}

#[test]
fn who_breaks_the_protocol_is_told_why_and_ends() {
    let (_admin, mut io) = connected(false);
    let data = io.pdu(pdu::H2C_DATA, 0, &[0; 16], &[1; 8]);
    io.send(&data);
    io.ended_by(1);
    let (_admin, mut io) = connected(true);
    let mut damaged = io.pdu(pdu::CAPSULE_CMD, 0, &entry(command::FLUSH, 1, 1), &[]);
    damaged[20] ^= 1;
    io.send(&damaged);
    io.ended_by(3);
    let mut early = Host::new(&subsystem(&[]), false);
    early.command(&entry(command::FLUSH, 1, 1), &[]);
    assert_eq!(early.completed(1).0, Status::SEQUENCE.0);
    let (_admin, mut io) = connected(false);
    for id in 0..33 {
        io.command(&entry(command::FLUSH, id, 1), &[]);
    }
    io.ended_by(2);
}

#[test]
fn a_reset_ends_the_queues_of_before() {
    let (mut admin, mut io) = connected(false);
    for value in [0x46_0000, 0x46_0001] {
        assert_eq!(admin.set_property(value), 0);
    }
    // The host takes for granted that nothing of this queue reaches a volume any more.
    io.command(&entry(command::FLUSH, 7, 1), &[]);
    assert_eq!((io.events.last(), io.out.len()), (Some(&Event::Close), 0));
    let subsystem = Arc::clone(&admin.client.subsystem);
    assert_eq!(Host::new(&subsystem, false).connect(2, 1, "nqn.weir").0, 0);
    // A silent host of the discovery service is kept as long as the standard says, and no longer.
    let mut discovery = Host::new(&subsystem, false);
    assert_eq!(discovery.connect(0, 0xffff, subsystem::DISCOVERY_NQN).0, 0);
    discovery.client.features.keep_alive_ns = 0;
    discovery.client.rearm(Instant(1));
    assert!(discovery.client.expire(Instant(119 * SECOND)).is_none());
    assert!(discovery.client.expire(Instant(121 * SECOND)).is_some());
}

#[test]
fn a_shutdown_ends_the_queues_of_before_and_lets_none_in() {
    let (mut admin, mut io) = connected(false);
    assert_eq!(admin.set_property(0x46_4001), 0);
    io.command(&blocks(with_sgl(entry(command::READ, 7, 1), 4096, true), 0, 1), &[]);
    assert_eq!((io.events.last(), io.out.len()), (Some(&Event::Close), 0));
    let subsystem = Arc::clone(&admin.client.subsystem);
    let refused = Host::new(&subsystem, false).connect(2, 1, "nqn.weir").0;
    assert_eq!(refused, Status::SEQUENCE.0);
}

#[test]
fn hosts_that_may_not_come_and_queues_that_may_not_be_are_refused() {
    let closed = subsystem(&["nqn.another"]);
    assert_eq!(Host::new(&closed, false).connect(0, 0xffff, "nqn.weir").0, Status::CONNECT_HOST.0);
    let open = subsystem(&[HOST]);
    let wrong = Status::CONNECT_PARAMETER.0;
    // It is told that the name of the subsystem is wrong, which is in the data.
    assert_eq!(Host::new(&open, false).connect(0, 0xffff, "nqn.other"), (wrong, 1 << 16 | 256));
    assert_eq!(Host::new(&open, false).connect(1, 1, "nqn.weir").0, wrong);
    let (mut admin, mut io) = connected(false);
    assert_eq!(io.connect(1, 1, "nqn.weir").0, Status::SEQUENCE.0);
    let join = |controller, queue| {
        Host::new(&admin.client.subsystem, false).connect(queue, controller, "nqn.weir").0
    };
    assert_eq!(
        [join(1, 1), join(1, 3), join(2, 2), join(1, 2)],
        [Status::SEQUENCE.0, wrong, wrong, 0]
    );
    // A silent host: its controller ends, and with it its I/O queues.
    assert!(admin.client.expire(Instant(4 * SECOND)).is_none());
    assert!(admin.client.expire(Instant(6 * SECOND)).is_some());
    admin.events.clear();
    drop(admin);
    assert!(io.client.expire(Instant(9 * SECOND)).is_some());
}

/// The numbers that a log or list of namespaces begins with.
fn numbers(page: &[u8]) -> Vec<u32> {
    let words = page.chunks_exact(4).map(|word| pdu::u32_at(word, 0));
    words.take_while(|&number| number > 0).collect()
}

/// The answer of a page to an admin command, and what of it is told.
fn page(admin: &mut Host, entry: [u8; 64]) -> Vec<u8> {
    admin.command(&with_sgl(entry, 4096, true), &[]);
    assert_eq!(admin.out[0], pdu::C2H_DATA);
    let page = admin.out[24..24 + 4096].to_vec();
    assert_eq!(admin.completed(pdu::u16_at(&entry, 2)).0, 0);
    page
}

fn changed_log(admin: &mut Host, retains: bool) -> Vec<u32> {
    let mut log = entry(command::GET_LOG, 8, 0);
    (log[40], log[41], log[42], log[43]) = (0x04, if retains { 0x80 } else { 0 }, 0xff, 3);
    numbers(&page(admin, log))
}

#[test]
fn a_host_is_told_once_of_namespaces_that_come_go_or_change_and_reads_which() {
    let subsystem = subsystem(&[]);
    let (mut admin, mut io) = connected_to(&subsystem, false);
    let change = |hosts: &mut [&mut Host], change: &dyn Fn(&mut Vec<Namespace>)| {
        let mut namespaces = subsystem.namespaces().to_vec();
        change(&mut namespaces);
        subsystem.set_namespaces(namespaces);
        for host in hosts {
            assert!(host.client.offered(&Offered::default(), &mut host.out));
        }
    };
    let mut controller = entry(command::IDENTIFY, 7, 0);
    controller[40] = 1;
    let identified = page(&mut admin, controller);
    assert_eq!(pdu::u32_at(&identified, 92), 1 << 8, "it says that it tells");
    let added = Namespace { number: 40, ..subsystem.namespaces()[0].clone() };
    let add = |namespaces: &mut Vec<Namespace>| namespaces.push(added.clone());
    // Nobody wants to know yet, but it is not forgotten.
    let mut wait = entry(command::AWAIT_EVENT, 21, 0);
    admin.command(&wait, &[]);
    change(&mut [&mut admin, &mut io], &add);
    assert!(admin.out.is_empty() && io.out.is_empty());
    let mut feature = entry(command::SET_FEATURES, 5, 0);
    (feature[40], feature[45]) = (0x0b, 1);
    admin.command(&feature, &[]);
    assert_eq!(admin.completed(5), (0, 0));
    wait[2] = 22;
    admin.command(&wait, &[]);
    assert_eq!(admin.completed(21), (0, 0x04_00_02));
    // Once is enough until it has read the log.
    change(&mut [&mut admin, &mut io], &|namespaces| namespaces[0].blocks = 512);
    assert!(admin.out.is_empty());
    assert_eq!(changed_log(&mut admin, true), [1, 40]);
    assert_eq!(changed_log(&mut admin, false), [1, 40]);
    assert_eq!(changed_log(&mut admin, false), [0; 0]);
    let mut list = entry(command::IDENTIFY, 7, 0);
    list[40] = 2;
    assert_eq!(numbers(&page(&mut admin, list)), [1, 2, 40]);
    // An I/O queue goes by what there is.
    io.command(&blocks(with_sgl(entry(command::READ, 3, 1), 4096, true), 300, 1), &[]);
    assert!(matches!(io.events[..], [Event::Request(..)]), "{:?}", io.events);
    io.command(&blocks(with_sgl(entry(command::READ, 4, 40), 4096, true), 0, 1), &[]);
    let Some(Event::Request(_, request)) = io.events.last() else { panic!("{:?}", io.events) };
    assert_eq!(request.volume, 39);
    change(&mut [&mut admin, &mut io], &|namespaces| {
        namespaces.remove(2);
    });
    assert_eq!(admin.completed(22), (0, 0x04_00_02));
    assert_eq!(changed_log(&mut admin, false), [40]);
    io.command(&blocks(with_sgl(entry(command::READ, 5, 40), 4096, true), 0, 1), &[]);
    assert_eq!(io.completed(5).0, Status::NAMESPACE.0);
}

#[test]
fn a_host_hears_nothing_of_namespaces_that_it_may_not_see() {
    let subsystem = subsystem(&[]);
    let (mut admin, _io) = connected_to(&subsystem, false);
    let mut feature = entry(command::SET_FEATURES, 5, 0);
    (feature[40], feature[45]) = (0x0b, 1);
    admin.command(&feature, &[]);
    assert_eq!(admin.completed(5), (0, 0));
    admin.command(&entry(command::AWAIT_EVENT, 21, 0), &[]);
    let mut namespaces = subsystem.namespaces().to_vec();
    let hosts = vec!["nqn.other".into()];
    namespaces.push(Namespace { number: 3, hosts, ..namespaces[0].clone() });
    subsystem.set_namespaces(namespaces);
    admin.client.offered(&Offered::default(), &mut admin.out);
    assert!(admin.out.is_empty());
    assert_eq!(changed_log(&mut admin, false), [0; 0]);
}

/// Tells how the host behaves; `first` is the first byte of that.
fn set_behavior(host: &mut Host, first: u8, len: u32) -> u16 {
    let mut feature = with_sgl(entry(command::SET_FEATURES, 6, 0), len, false);
    feature[40] = command::HOST_BEHAVIOR;
    let mut data = vec![0; len as usize];
    data[0] = first;
    host.command(&feature, &data);
    host.completed(6).0
}

#[test]
fn a_command_that_the_limits_of_its_volume_let_in_much_later_is_to_be_tried_again_then() {
    let (mut admin, mut io) = connected(false);
    let mut identify = entry(command::IDENTIFY, 7, 0);
    identify[40] = 1;
    let controller = page(&mut admin, identify);
    assert_eq!(controller[128..134], [100, 0, 44, 1, 176, 4], "10, 30 and 120 s");
    let later = Answer::Failed(Failure::Later { wait_ns: 70 * SECOND, before: 0 });
    let read = blocks(with_sgl(entry(command::READ, 4, 1), 8192, true), 0, 2);
    let put_off = |io: &mut Host| {
        io.command(&read, &[]);
        let Some(Event::Request(ticket, _)) = io.events.pop() else { panic!("{:?}", io.events) };
        assert!(!io.client.answer(ticket, later, &mut io.out));
        io.client.finish(ticket);
        io.completed(4).0
    };
    // As long as the host has not said that it goes by delays, it would come at once.
    assert_eq!(io.client.patience(), Patience::Returns { at_once: true });
    assert_eq!(put_off(&mut io), Status::INTERRUPTED.0);
    assert_eq!(set_behavior(&mut admin, 2, 512), Status::FIELD.0);
    assert_eq!(set_behavior(&mut admin, 1, 256), Status::SGL_LENGTH.0);
    assert_eq!(set_behavior(&mut admin, 1, 512), 0);
    assert_eq!(io.client.patience(), Patience::Returns { at_once: false });
    // The second of its delays.
    assert_eq!(put_off(&mut io), Status::INTERRUPTED.0 | 2 << 11);
    let mut feature = with_sgl(entry(command::GET_FEATURES, 8, 0), 4096, true);
    feature[40] = command::HOST_BEHAVIOR;
    admin.command(&feature, &[]);
    assert_eq!((admin.out[0], admin.out[24]), (pdu::C2H_DATA, 1));
    assert_eq!(admin.completed(8).0, 0);
    // On a queue for I/O its number is that of a trim, here one of so many ranges.
    let mut trim = with_sgl(entry(command::TRIM, 6, 1), 23 * 16, false);
    (trim[40], trim[44]) = (command::HOST_BEHAVIOR, 4);
    let mut ranges = [0; 23 * 16];
    ranges[4] = 1;
    io.command(&trim, &ranges);
    assert!(matches!(io.events[..], [Event::Request(..)]), "{:?}", io.events);
}

#[test]
fn a_namespace_tells_up_to_what_size_its_writes_are_atomic_and_where_they_are_not() {
    let (mut admin, _io) = connected(false);
    let told = page(&mut admin, entry(command::IDENTIFY, 7, 1));
    assert_eq!(told[24] & 0b10, 0b10, "it speaks for itself");
    assert_eq!(told[34..38], [3, 0, 3, 0], "four blocks, one less each");
    assert_eq!(told[40..46], [255, 0, 5, 0, 255, 0], "every 256 blocks from the fifth on");
}

#[test]
fn what_waits_for_limits_holds_no_memory_back_from_others() {
    let (_admin, mut io) = connected(false);
    let large = |id| blocks(with_sgl(entry(command::READ, id, 1), 1 << 20, true), 0, 256);
    for id in 0..9 {
        io.command(&large(id), &[]);
    }
    assert_eq!(io.events.len(), 8, "the queue's part of the memory");
    let tickets: Vec<Ticket> = io
        .events
        .drain(..)
        .map(|event| match event {
            Event::Request(ticket, _) => ticket,
            other => panic!("{other:?}"),
        })
        .collect();
    for &ticket in &tickets {
        io.client.waits(ticket, true);
    }
    assert!(matches!(io.client.resume(), Some(Event::Request(..))));
    assert_eq!(io.client.bytes, 1 << 20);
    io.client.waits(tickets[0], false);
    assert_eq!(io.client.bytes, 2 << 20);
    for ticket in tickets {
        io.client.answer(ticket, Answer::Failed(Failure::Gone), &mut io.out);
        io.client.finish(ticket);
    }
    assert_eq!(io.client.bytes, 1 << 20);
}

#[test]
fn the_ranges_of_a_trim_count_once() {
    let (_admin, mut io) = connected(false);
    let mut trim = with_sgl(entry(command::TRIM, 6, 1), 32, false);
    (trim[40], trim[44]) = (1, 4);
    let mut ranges = [0; 32];
    (ranges[4], ranges[20]) = (8, 1);
    io.command(&trim, &ranges);
    let [Event::Request(one, _), Event::Request(two, _)] = io.events[..] else {
        panic!("{:?}", io.events)
    };
    assert!(!io.client.is_part(one) && io.client.is_part(two));
}

/// A subsystem whose one host has to authenticate; its secret is 32 bytes of zeroes.
fn guarded() -> Arc<Subsystem> {
    let secret = Secret::parse(&auth::text_of(&[0; 32], "00"), HOST).unwrap();
    let keys = HostKeys { host: secret, controller: None };
    let draw = |bytes: &mut [u8]| {
        bytes.fill(0x5a);
        true
    };
    let subsystem = Arc::into_inner(subsystem(&[])).unwrap();
    Arc::new(subsystem.with_keys(Keys::new([(HOST.to_owned(), keys)].into(), draw)))
}

/// A command of authentication about so many bytes.
fn authentication(kind: u8, bytes: u32, apart: bool) -> [u8; 64] {
    let mut entry = with_sgl(entry(command::FABRICS, 7, 0), bytes, apart);
    entry[4] = kind;
    entry[41..44].copy_from_slice(&[1, 1, 0xe9]);
    entry[44..48].copy_from_slice(&bytes.to_le_bytes());
    entry
}

impl Host {
    fn say(&mut self, message: &[u8]) -> u16 {
        let send = authentication(fabrics::AUTHENTICATION_SEND, message.len() as u32, false);
        self.command(&send, message);
        self.completed(7).0
    }

    fn ask(&mut self) -> Vec<u8> {
        self.command(&authentication(fabrics::AUTHENTICATION_RECEIVE, 512, true), &[]);
        assert_eq!(self.out[0], pdu::C2H_DATA);
        let from = if self.digests { 28 } else { 24 };
        let message = self.out[from..from + 512].to_vec();
        assert_eq!(self.completed(7).0, 0);
        message
    }

    /// All of a dialogue, by SHA-256 without a group, with a key of `byte`s.
    fn authenticate(&mut self, byte: u8) -> Vec<u8> {
        let mut offer = vec![0; 72];
        (offer[4], offer[7], offer[8], offer[10], offer[11], offer[12]) = (9, 1, 1, 1, 1, 1);
        assert_eq!(self.say(&offer), 0);
        let challenge = self.ask();
        assert_eq!(challenge[..2], [1, 1]);
        // The challenge and its number, the transaction, no channel, and who answers whom.
        let mut signed = challenge[16..48].to_vec();
        signed.extend(&challenge[12..16]);
        signed.extend([9, 0, 0]);
        signed.extend(b"HostHost");
        signed.extend(HOST.as_bytes());
        signed.extend(b"\0nqn.weir");
        let mut reply = vec![0; 16];
        (reply[0], reply[1], reply[4], reply[6]) = (1, 2, 9, 32);
        reply.extend(auth::Hash::Sha256.hmac(&[byte; 32], &signed));
        reply.extend([0; 32]);
        assert_eq!(self.say(&reply), 0);
        self.ask()
    }
}

#[test]
fn each_queue_does_nothing_before_its_host_has_authenticated() {
    let subsystem = guarded();
    let mut admin = Host::new(&subsystem, true);
    assert_eq!(admin.connect(0, 0xffff, "nqn.weir"), (0, 1 | fabrics::AUTHENTICATE));
    assert_eq!(admin.set_property(0x46_0001), Status::AUTHENTICATION.0);
    admin.command(&entry(command::KEEP_ALIVE, 5, 0), &[]);
    assert_eq!(admin.completed(5).0, Status::AUTHENTICATION.0);
    assert_eq!(admin.authenticate(0)[..2], [1, 3]);
    assert_eq!(admin.set_property(0x46_0001), 0);
    let mut features = entry(command::SET_FEATURES, 5, 0);
    features[40] = 7;
    admin.command(&features, &[]);
    assert_eq!(admin.completed(5).0, 0);
    let mut io = Host::new(&subsystem, false);
    assert_eq!(io.connect(1, 1, "nqn.weir"), (0, 1 | fabrics::AUTHENTICATE));
    let read = blocks(with_sgl(entry(command::READ, 4, 1), 4096, true), 0, 1);
    io.events.clear();
    io.command(&read, &[]);
    assert_eq!(io.completed(4).0, Status::AUTHENTICATION.0);
    assert_eq!(io.authenticate(0)[..2], [1, 3]);
    io.events.clear();
    io.command(&read, &[]);
    assert!(matches!(io.events[..], [Event::Request(..)]), "{:?}", io.events);
}

#[test]
fn a_host_that_does_not_know_its_secret_is_hung_up_on_in_any_case() {
    let subsystem = guarded();
    let mut wrong = Host::new(&subsystem, false);
    wrong.connect(0, 0xffff, "nqn.weir");
    let told = wrong.authenticate(1);
    assert_eq!((told[0], told[1], told[7]), (0, 0xf0, 1));
    assert_eq!(wrong.events.last(), Some(&Event::Close));
    // One that says nothing has as long as it had to connect.
    let mut silent = Host::new(&subsystem, false);
    silent.connect(0, 0xffff, "nqn.weir");
    assert!(silent.client.expire(Instant(SECOND / 2)).is_none());
    let why = silent.client.expire(Instant(2 * SECOND)).unwrap();
    assert!(why.contains("authenticate"), "{why}");
    // What is no message, or not said so.
    let mut odd = Host::new(&subsystem, false);
    odd.connect(0, 0xffff, "nqn.weir");
    for at in [41, 42, 43] {
        let mut send = authentication(fabrics::AUTHENTICATION_SEND, 8, false);
        send[at] ^= 1;
        odd.command(&send, &[0; 8]);
        assert_eq!(odd.completed(7).0, Status::FIELD.0);
    }
    let long = authentication(fabrics::AUTHENTICATION_RECEIVE, 4097, true);
    odd.command(&long, &[]);
    assert_eq!(odd.completed(7).0, Status::FIELD.0);
    let mut unlike = authentication(fabrics::AUTHENTICATION_RECEIVE, 512, true);
    unlike[44] = 1;
    odd.command(&unlike, &[]);
    assert_eq!(odd.completed(7).0, Status::SGL_LENGTH.0);
    // A stranger does not even connect; discovery needs nothing.
    assert!(!subsystem.admits("nqn.stranger") && subsystem.admits(HOST));
    let mut discovery = Host::new(&subsystem, false);
    assert_eq!(discovery.connect(0, 0xffff, subsystem::DISCOVERY_NQN), (0, 4));
    assert_eq!(discovery.set_property(1), 0);
    // Where nobody has to, nobody can.
    let (mut admin, _io) = connected(false);
    assert_eq!(admin.say(&[0; 8]), Status::OPCODE.0);
}

#[test]
fn a_host_that_authenticates_by_any_pieces_of_bytes_keeps_the_contract() {
    let admin = include_bytes!("../../../../../fuzz/corpus/nvme/seed-authenticates-admin");
    let io = include_bytes!("../../../../../fuzz/corpus/nvme/seed-authenticates-io");
    for seed in [&admin[..], &io[..]] {
        for pieces in [0, 1, 30, 255] {
            let mut input = seed.to_vec();
            input[1] = pieces;
            hostile::run(&input);
            for end in (2..input.len()).step_by(7) {
                hostile::run(&input[..end]);
            }
            // Damaged anywhere.
            for at in (2..input.len()).step_by(5) {
                let mut damaged = input.clone();
                damaged[at] ^= 0x41;
                hostile::run(&damaged);
            }
        }
    }
}
