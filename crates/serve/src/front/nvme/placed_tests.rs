//! A strict host that places its data.

use super::tests::{Host, blocks, connected_to, entry, subsystem, with_sgl};
use super::*;

fn placed(mut entry: [u8; 64], kind: u8, identifier: u16) -> [u8; 64] {
    entry[50] |= kind << 4;
    entry[54..56].copy_from_slice(&identifier.to_le_bytes());
    entry
}

fn log(admin: &mut Host, page: u8, specific: u8, group: u16, bytes: u32) -> (u16, Vec<u8>) {
    let mut log = with_sgl(entry(command::GET_LOG, 8, 0), bytes, true);
    (log[40], log[41]) = (page, specific);
    log[42..44].copy_from_slice(&((bytes / 4 - 1) as u16).to_le_bytes());
    log[46..48].copy_from_slice(&group.to_le_bytes());
    admin.command(&log, &[]);
    let page = admin.out[24..].to_vec();
    (admin.completed(8).0, page)
}

#[test]
fn a_write_goes_to_the_placement_handle_that_it_names_and_else_to_that_of_its_volume() {
    let (mut admin, mut io) = connected_to(&subsystem(&[]), false);
    let write = blocks(with_sgl(entry(command::WRITE, 1, 1), 4096, false), 0, 1);
    // The namespace has four handles, of which the first is number 1 of the volume.
    for (command, handle) in [
        (write, None),
        (placed(write, 2, 0), Some(1)),
        (placed(write, 2, 2), Some(3)),
        (placed(write, 2, 3), Some(0)),
        (placed(write, 2, 4), Some(1)),
    ] {
        io.events.clear();
        io.command(&command, &[7; 4096]);
        let Some(&Event::Request(ticket, request)) = io.events.first() else {
            panic!("{:?}", io.events)
        };
        assert_eq!(request.kind, Kind::Write { fua: false, handle });
        io.client.answer(ticket, Answer::Done, &mut io.out);
        io.client.finish(ticket);
        assert_eq!(io.completed(1), (0, 0));
    }
    io.command(&placed(write, 1, 0), &[7; 4096]);
    assert_eq!(io.completed(1).0, Status::FIELD.0, "streams are another directive");
    // The name that was none is an event, for whoever asks for those of hosts.
    let (status, events) = log(&mut admin, 0x23, 1, 1, 128);
    assert_eq!((status, events[0], events[64], events[66]), (0, 1, 3, 4));
    let (_, events) = log(&mut admin, 0x23, 0, 1, 128);
    assert_eq!(events[0], 0);
}

#[test]
fn handles_are_told_by_configuration_usage_and_status() {
    let (mut admin, mut io) = connected_to(&subsystem(&[]), false);
    let (status, log_page) = log(&mut admin, 0x20, 0, 1, 128);
    assert_eq!((status, pdu::u32_at(&log_page, 4)), (0, 16 + 64 + 8 * 4));
    let it = &log_page[16..];
    assert_eq!((it[2], pdu::u32_at(it, 4)), (0x80, 1), "valid, one reclaim group");
    assert_eq!((pdu::u16_at(it, 8), pdu::u16_at(it, 10)), (8, 3), "handles, and those of one");
    assert_eq!((pdu::u64_at(it, 16), it[64]), (1 << 20, 2), "bytes of a band, kept apart");
    let (_, usage) = log(&mut admin, 0x21, 0, 1, 72);
    assert_eq!((usage[0], usage[8], usage[64]), (8, 1, 1));
    assert_eq!(log(&mut admin, 0x22, 0, 1, 64).0, 0);
    assert_eq!(log(&mut admin, 0x20, 0, 2, 64).0, Status::FIELD.0, "another endurance group");
    let mut receive = with_sgl(entry(command::MANAGE_RECEIVE, 4, 2), 16 + 4 * 32, true);
    (receive[40], receive[44]) = (1, 4 + 4 * 8 - 1);
    io.command(&receive, &[]);
    let page = io.out[24..].to_vec();
    assert_eq!(io.completed(4), (0, 0));
    // The second namespace's handles come behind those of the first.
    assert_eq!((page[14], page[16], page[18], page[48], page[50]), (4, 0, 4, 1, 5));
    receive[40] = 2;
    io.command(&receive, &[]);
    assert_eq!(io.completed(4).0, Status::FIELD.0);
    let mut feature = entry(command::GET_FEATURES, 5, 0);
    (feature[40], feature[44]) = (0x1d, 1);
    admin.command(&feature, &[]);
    assert_eq!(admin.completed(5), (0, 1));
    feature[0] = command::SET_FEATURES;
    admin.command(&feature, &[]);
    assert_eq!(admin.completed(5).0, Status::FEATURE.0, "it is on, and stays so");
    let mut directives = with_sgl(entry(command::DIRECTIVE_RECEIVE, 6, 1), 4096, true);
    directives[44] = 1;
    admin.command(&directives, &[]);
    assert_eq!((admin.out[24], admin.out[24 + 32]), (0b101, 0b101));
    assert_eq!(admin.completed(6).0, 0);
}
