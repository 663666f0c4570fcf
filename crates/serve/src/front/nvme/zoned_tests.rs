//! A strict host of a zoned namespace.

use super::tests::{Host, blocks, connected_to, entry, with_sgl};
use super::*;
use crate::volume::{Failure, Request, ZoneWork};
use flash::{RequestError, ZoneError};
use ftl::raw::zones::{Zone, ZoneAction, ZoneState};

/// Four zones of 16 blocks of 8 KiB, of which 12 can be written.
const SHAPE: ZoneShape = ZoneShape { size: 16, capacity: 12, open_max: 2, active_max: 0 };

fn zoned(read_only: bool) -> (Host, Host) {
    let zoned = Namespace {
        number: 1,
        blocks: 64,
        block_shift: 13,
        zones: Some(SHAPE),
        handles: Handles::default(),
        atomic: Atomic::default(),
        read_only,
        uuid: uuid_of(7, "unit/0"),
        hosts: Vec::new(),
    };
    let namespaces = vec![zoned.clone(), Namespace { number: 2, ..zoned }];
    let subsystem =
        Subsystem::new("nqn.weir".into(), "7".into(), namespaces, Vec::new(), (SECOND, 1));
    connected_to(&Arc::new(subsystem), false)
}

fn request(io: &Host) -> (Ticket, Request) {
    let Some(&Event::Request(ticket, request)) = io.events.first() else {
        panic!("{:?}", io.events)
    };
    (ticket, request)
}

fn word(mut entry: [u8; 64], number: usize, value: u32) -> [u8; 64] {
    entry[number * 4..number * 4 + 4].copy_from_slice(&value.to_le_bytes());
    entry
}

#[test]
fn an_append_tells_where_its_data_went_and_writes_and_reads_stay_in_a_zone() {
    let (_admin, mut io) = zoned(false);
    let append = blocks(with_sgl(entry(zones::APPEND, 1, 2), 8192, false), 32, 1);
    io.command(&append, &[7; 8192]);
    let (ticket, asked) = request(&io);
    assert_eq!(asked.kind, Kind::Zone(ZoneWork::Append { fua: false }));
    assert_eq!((asked.volume, asked.offset, asked.len), (1, 32 * 8192, 8192));
    io.client.answer(ticket, Answer::Placed(37 * 8192), &mut io.out);
    io.client.finish(ticket);
    assert_eq!(io.completed(1), (0, 37));
    io.events.clear();
    io.command(&blocks(with_sgl(entry(command::READ, 2, 1), 16384, true), 14, 2), &[]);
    let (ticket, asked) = request(&io);
    assert_eq!((asked.kind, asked.offset), (Kind::Zone(ZoneWork::Read), 14 * 8192));
    assert!(io.client.answer(ticket, Answer::Done, &mut io.out), "its data follows");
    io.client.after_data(ticket, &mut std::iter::once(&[0; 16384][..]), &mut io.out);
    io.client.finish(ticket);
    assert_eq!(io.completed(2), (0, 0));
    io.events.clear();
    let fua = word(blocks(with_sgl(entry(command::WRITE, 3, 1), 8192, false), 0, 1), 12, 1 << 30);
    io.command(&fua, &[1; 8192]);
    let (ticket, asked) = request(&io);
    assert_eq!(asked.kind, Kind::Zone(ZoneWork::Write { fua: true }));
    let refused = RequestError::Zone(ZoneError::InvalidWrite);
    io.client.answer(ticket, Answer::Failed(Failure::Device(refused)), &mut io.out);
    io.client.finish(ticket);
    assert_eq!(io.completed(3).0 & 0x7ff, 0x1bc, "zone invalid write");
}

#[test]
fn what_no_zone_can_do_is_refused_before_it_is_asked_of_one() {
    let (_admin, mut io) = zoned(false);
    let boundary = Status::from(ZoneError::Boundary);
    let io_at = |opcode, first, count: u16| {
        blocks(with_sgl(entry(opcode, 1, 1), u32::from(count) * 8192, true), first, count)
    };
    let manage = |first, word13| word(blocks(entry(zones::MANAGE, 1, 1), first, 1), 13, word13);
    let report = |first, dwords, word13| {
        let report = with_sgl(entry(zones::REPORT, 1, 1), (dwords + 1) * 4, true);
        word(word(blocks(report, first, 1), 12, dwords), 13, word13)
    };
    for (command, status) in [
        (io_at(command::WRITE, 15, 2), boundary),
        (io_at(command::READ, 15, 2), boundary),
        (io_at(command::READ, 64, 1), Status::RANGE),
        (io_at(command::READ, 63, 2), Status::RANGE),
        (io_at(zones::APPEND, 1, 1), Status::FIELD),
        (io_at(command::COMPARE, 0, 1), Status::OPCODE),
        (io_at(command::WRITE_ZEROES, 0, 1), Status::OPCODE),
        (io_at(command::VERIFY, 0, 1), Status::OPCODE),
        (manage(1, 4), Status::FIELD),
        (manage(64, 4), Status::RANGE),
        (manage(0, 0), Status::FIELD),
        (manage(0, 6), Status::FIELD),
        (manage(0, 0x11), Status::FIELD),
        (report(64, 1023, 0), Status::RANGE),
        (report(0, 1023, 1), Status::FIELD),
        (report(0, 1023, 8 << 8), Status::FIELD),
        (report(0, 1 << 18, 0), Status::FIELD),
    ] {
        io.command(&command, &[]);
        assert_eq!(io.completed(1).0, status.0, "{command:?}");
        assert_eq!(io.events, [Event::Refused(Some(0))], "{command:?}");
        io.events.clear();
    }
    let mut trim = with_sgl(entry(command::TRIM, 6, 1), 16, false);
    trim[44] = 4;
    io.command(&trim, &[0; 16]);
    assert_eq!(io.completed(6).0, Status::OPCODE.0);
    let (_admin, mut io) = zoned(true);
    for command in [io_at(command::WRITE, 0, 1), io_at(zones::APPEND, 0, 1), manage(0, 4)] {
        io.command(&command, &[]);
        assert_eq!(io.completed(1).0, Status::PROTECTED.0);
    }
}

#[test]
fn a_zone_is_managed_alone_or_with_all_others() {
    let (_admin, mut io) = zoned(false);
    for (word13, offset, action, all) in [
        (1, 16 * 8192, ZoneAction::Close, false),
        (2, 16 * 8192, ZoneAction::Finish, false),
        (3, 16 * 8192, ZoneAction::Open, false),
        (4 | 1 << 8, 16 * 8192, ZoneAction::Reset, true),
        (5, 16 * 8192, ZoneAction::Offline, false),
    ] {
        io.events.clear();
        io.command(&word(blocks(entry(zones::MANAGE, 4, 1), 16, 1), 13, word13), &[]);
        let (ticket, asked) = request(&io);
        assert_eq!(asked.kind, Kind::Zone(ZoneWork::Manage { action, all }));
        assert_eq!(asked.offset, offset);
        let refused = Failure::Device(RequestError::Zone(ZoneError::Transition));
        io.client.answer(ticket, Answer::Failed(refused), &mut io.out);
        io.client.finish(ticket);
        assert_eq!(io.completed(4).0 & 0x7ff, 0x1bf);
    }
}

#[test]
fn a_report_tells_as_many_zones_as_there_is_room_for() {
    let (_admin, mut io) = zoned(false);
    // Room for the header and one descriptor, and half of another.
    let report = with_sgl(entry(zones::REPORT, 5, 1), 160, true);
    let report = word(word(blocks(report, 32, 1), 12, 39), 13, 5 << 8 | 1 << 16);
    io.command(&report, &[]);
    let (ticket, asked) = request(&io);
    let state = Some(ZoneState::Full);
    assert_eq!(asked.kind, Kind::Zones { state, most: 1, partial: true });
    assert_eq!((asked.offset, asked.buffer_blocks()), (32 * 8192, 0));
    let zone = Zone { index: 3, state: ZoneState::Closed, written: 10, cut_short: false };
    io.client.answer(ticket, Answer::Zones(&[zone], 1), &mut io.out);
    io.client.finish(ticket);
    let page = io.out[24..24 + 160].to_vec();
    assert_eq!(io.completed(5), (0, 0));
    assert_eq!(pdu::u64_at(&page, 0), 1);
    assert_eq!(page[64..67], [2, 0x40, 0]);
    let (capacity, start, pointer) =
        (pdu::u64_at(&page, 72), pdu::u64_at(&page, 80), pdu::u64_at(&page, 88));
    assert_eq!((capacity, start, pointer), (12, 48, 48 + 5), "written is told in blocks of 4 KiB");
    assert!(page[128..].iter().all(|&byte| byte == 0));
}

#[test]
fn identify_tells_of_zones_what_linux_asks() {
    let (mut admin, _io) = zoned(false);
    let mut identify = |what: u8, set: u8, nsid: u32| {
        let mut identify = with_sgl(entry(command::IDENTIFY, 8, nsid), 4096, true);
        (identify[40], identify[47]) = (what, set);
        admin.command(&identify, &[]);
        let page = admin.out[24..].to_vec();
        (admin.completed(8).0, page)
    };
    let (_, page) = identify(0x00, 0, 1);
    assert_eq!([0, 8].map(|at| pdu::u64_at(&page, at)), [64, 48], "size and capacity");
    assert_eq!(page[130], 13);
    let (_, page) = identify(0x03, 0, 1);
    assert_eq!(page[20..25], [4, 1, 0, 0, 2], "the zoned command set");
    let (_, page) = identify(0x05, 2, 1);
    assert_eq!([4, 8].map(|at| pdu::u32_at(&page, at)), [u32::MAX, 1], "active and open zones");
    assert_eq!(pdu::u64_at(&page, 2816), 16, "the size of a zone");
    let (_, page) = identify(0x1c, 0, 0);
    assert_eq!(page[0], 0b101);
    let (_, page) = identify(0x07, 2, 1);
    assert_eq!(page[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    let (_, page) = identify(0x07, 0, 0);
    assert_eq!(page[..4], [0; 4], "none of these is of blocks");
    assert_eq!(identify(0x06, 2, 0).0, 0);
    for (what, set) in [(0x05, 0), (0x05, 1), (0x06, 3)] {
        assert_eq!(identify(what, set, 1).0, Status::COMMAND_SET.0);
    }
    let mut log = with_sgl(entry(command::GET_LOG, 8, 0), 4096, true);
    (log[40], log[42], log[43], log[59]) = (5, 0xff, 3, 2);
    admin.command(&log, &[]);
    let page = admin.out[24..].to_vec();
    assert_eq!(admin.completed(8).0, 0);
    let effects = |opcode: u8| page[1024 + usize::from(opcode) * 4];
    assert_eq!([zones::APPEND, zones::REPORT, command::TRIM].map(effects), [0b11, 1, 0]);
}
