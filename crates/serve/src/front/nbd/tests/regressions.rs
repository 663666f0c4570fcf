//! One test per published bug of another NBD server, so that it is not ours too.

use flash::SECOND;

use super::client::*;
use super::*;

fn negotiating() -> Driver {
    let mut driver = Driver::new();
    driver.feed(&client_flags(3));
    driver
}

#[test]
fn nbdkit_cve_2019_14850_the_backend_is_not_opened_before_negotiation_ends() {
    let mut driver = negotiating();
    for bytes in [
        option(OPT_LIST, &[]),
        option(OPT_STRUCTURED_REPLY, &[]),
        option(OPT_INFO, &info_data("data", &[INFO_NAME])),
        set_context("data", &[CONTEXT_NAME]),
        option(OPT_LIST_META_CONTEXT, &context_data("data", &[])),
    ] {
        driver.feed(&bytes);
        assert!(driver.seen.is_empty() && driver.connection.export().is_none());
    }
    let go = go("data", &[]);
    let (last, start) = go.split_last().unwrap();
    driver.feed(start);
    assert!(driver.seen.is_empty());
    driver.feed(&[*last]);
    assert_eq!(driver.seen, [Seen::Opened(0)]);
}

#[test]
fn nbdkit_cve_2019_14851_commands_in_the_wrong_order_break_no_assertion() {
    // GO twice, options after GO, INFO of one and GO of another, contexts before structured replies.
    let mut driver = negotiating();
    driver.feed(&set_context("data", &[CONTEXT_NAME]));
    driver.feed(&option(OPT_INFO, &info_data("frozen", &[])));
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&go("none", &[]));
    driver.feed(&go("data", &[]));
    assert_eq!(driver.seen, [Seen::Opened(0)]);
    driver.feed(&go("data", &[INFO_NAME]));
    assert_eq!(driver.seen[1..], [Seen::Close(CloseReason::BadMagic)]);

    // A request before any option.
    let mut driver = negotiating();
    driver.feed(&request(0, CMD_READ, 1, 0, 4096));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::BadMagic)]);
}

#[test]
fn nbdkit_cve_2021_3716_plaintext_before_starttls_is_not_kept() {
    let start = || {
        let mut driver = Driver::with(exports(), TlsMode::Required, Limits::default());
        driver.feed(&client_flags(3));
        driver
    };
    // Injected behind STARTTLS, in the same packet: whole, and only its first byte.
    for injected in [option(OPT_STRUCTURED_REPLY, &[]), vec![b'I']] {
        let mut driver = start();
        let mut bytes = option(OPT_STARTTLS, &[]);
        bytes.extend(injected);
        driver.feed(&bytes);
        assert_eq!(driver.seen, [Seen::Close(CloseReason::PlaintextBeforeTls)]);
        assert!(driver.out.is_empty());
    }
    // Injected after it, and offered by a careless driver before TLS is up.
    let mut driver = start();
    driver.feed(&option(OPT_STARTTLS, &[]));
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    assert_eq!(driver.seen, [Seen::StartTls, Seen::Close(CloseReason::PlaintextBeforeTls)]);
    // Injected before it: refused, and not remembered after.
    let mut driver = start();
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&set_context("data", &[CONTEXT_NAME]));
    driver.feed(&option(OPT_STARTTLS, &[]));
    driver.connection.tls_started();
    driver.feed(&go("data", &[]));
    driver.out.clear();
    driver.feed(&request(0, CMD_READ, 1, 0, 4));
    let expected = [Reply::Simple { cookie: 1, error: 0, data: vec![0; 4] }];
    assert_eq!(replies(&driver.out, &[(1, 4)].into()), expected);
}

#[test]
fn qemu_cve_2017_7539_an_abort_in_negotiation_ends_it_cleanly() {
    for data in [&[][..], b"why", &[0; 9000]] {
        let mut driver = negotiating();
        driver.feed(&option(OPT_ABORT, data));
        assert_eq!(driver.seen, [Seen::Close(CloseReason::Aborted)]);
        let expected = [OptionReply { option: OPT_ABORT, code: REP_ACK, data: vec![] }];
        assert_eq!(option_replies(&driver.out), expected);
        // More from the client, or nothing ever again, is all the same.
        driver.feed(&option(OPT_ABORT, data));
        assert_eq!(driver.connection.deadline(), None);
    }
}

#[test]
fn qemu_2_10_names_over_256_bytes_smash_no_stack() {
    for len in [255, 256, 257, 1024, 4095, 4096] {
        let name = "n".repeat(len);
        let mut driver = negotiating();
        driver.feed(&option(OPT_INFO, &info_data(&name, &[])));
        assert_eq!(option_replies(&driver.out)[0].code, REP_ERR_UNKNOWN, "{len}");
        let mut found = Driver::with(vec![Export::new(&*name, 0)], TlsMode::Off, Limits::default());
        found.feed(&client_flags(3));
        found.feed(&option(OPT_EXPORT_NAME, name.as_bytes()));
        assert_eq!(found.seen, [Seen::Opened(0)]);
    }
    let mut driver = negotiating();
    driver.feed(&go(&"n".repeat(4097), &[]));
    assert_eq!(option_replies(&driver.out)[0].code, REP_ERR_TOO_BIG);
    driver.feed(&option(OPT_EXPORT_NAME, &[b'n'; 4097]));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::UnknownExport)]);
}

#[test]
fn qemu_cve_2020_10761_an_error_about_a_long_name_stays_within_the_string_limit() {
    // option_reply() asserts the limit and UTF-8; each of these grows when escaped or cut.
    for name in ["n".repeat(4096), "\u{1}".repeat(4096), "\u{10ffff}".repeat(1024)] {
        let mut driver = negotiating();
        driver.feed(&go(&name, &[]));
        driver.feed(&option(OPT_INFO, &info_data(&name, &[])));
        driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
        driver.feed(&set_context(&name, &[CONTEXT_NAME]));
        let replies = option_replies(&driver.out);
        assert_eq!(replies.len(), 4);
        assert!(replies.iter().all(|reply| reply.data.len() <= MESSAGE_BYTES_MAX));
    }
}

#[test]
fn qemu_cve_2024_7409_a_client_that_never_finishes_negotiating_is_dropped() {
    let mut driver = negotiating();
    let deadline = driver.connection.deadline().expect("negotiation has one");
    assert_eq!(deadline, Instant(10 * SECOND));
    // Slow progress does not move the deadline.
    driver.feed(&option(OPT_LIST, &[]));
    driver.feed(&option_header(OPT_GO, 100));
    assert_eq!(driver.connection.deadline(), Some(deadline));
    assert_eq!(driver.connection.expire(Instant(deadline.0 - 1)), None);
    assert_eq!(driver.connection.expire(deadline), Some(CloseReason::HandshakeTimeout));
    assert_eq!(driver.connection.deadline(), None);
    let received = driver.connection.receive(deadline, b"x", &mut driver.out);
    assert_eq!(received.event, Some(Event::Close(CloseReason::HandshakeTimeout)));

    // Also when the driver's timer is late, and while TLS is coming up.
    let mut driver = Driver::with(exports(), TlsMode::Required, Limits::default());
    driver.feed(&client_flags(3));
    driver.feed(&option(OPT_STARTTLS, &[]));
    assert_eq!(driver.connection.deadline(), Some(deadline));
    driver.connection.tls_started();
    let received = driver.connection.receive(deadline, &go("data", &[]), &mut driver.out);
    assert_eq!(received.event, Some(Event::Close(CloseReason::HandshakeTimeout)));

    // Who has chosen an export may be idle for ever.
    let mut driver = Driver::opened("data", false);
    assert_eq!(driver.connection.expire(Instant(u64::MAX)), None);
}

#[test]
fn nbd_server_cve_2022_26495_a_name_of_2_to_the_32_minus_1_bytes_overflows_nothing() {
    for option in [OPT_EXPORT_NAME, OPT_GO, OPT_LIST, 4711] {
        let mut driver = negotiating();
        driver.feed(&option_header(option, u32::MAX));
        assert_eq!(driver.seen, [Seen::Close(CloseReason::OptionTooLong(u32::MAX))]);
        assert_eq!(driver.connection.held_bytes(), 0);
    }
    let mut driver = negotiating();
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.out.clear();
    for name_len in [u32::MAX, u32::MAX - 3, u32::MAX - 5, 0x8000_0000, 9] {
        for option in [OPT_INFO, OPT_GO, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT] {
            let mut data = name_len.to_be_bytes().to_vec();
            data.extend(b"data\0\0\0\0");
            driver.out.clear();
            driver.feed(&client::option(option, &data));
            assert_eq!(option_replies(&driver.out)[0].code, REP_ERR_INVALID, "{name_len:#x}");
        }
    }
    assert!(driver.seen.is_empty());
}

#[test]
fn nbd_server_cve_2022_26496_info_and_go_whose_counts_lie_are_invalid() {
    let mut wrong = Vec::new();
    for facts in [1u16, 2, 0x7fff, 0xffff] {
        let mut data = string(b"data");
        data.extend(facts.to_be_bytes());
        wrong.push(data); // more facts than there are
    }
    let mut long = info_data("data", &[INFO_NAME]);
    long.push(0); // more data than the facts
    wrong.push(long);
    wrong.push(vec![]);
    wrong.push(vec![0; 3]);
    wrong.push(string(b"data")); // no count
    for data in wrong {
        for code in [OPT_INFO, OPT_GO] {
            let mut driver = negotiating();
            driver.feed(&option(code, &data));
            assert_eq!(option_replies(&driver.out)[0].code, REP_ERR_INVALID, "{data:?}");
            assert!(driver.seen.is_empty());
        }
    }
    // As many facts as fit are fine, and each is told once.
    let mut driver = negotiating();
    driver.feed(&go("data", &[INFO_DESCRIPTION; 4000]));
    assert_eq!(option_replies(&driver.out).len(), 4);
    // Query counts that lie, likewise.
    let mut driver = negotiating();
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.out.clear();
    let mut data = string(b"data");
    data.extend(u32::MAX.to_be_bytes());
    data.extend([0; 4000]);
    driver.feed(&option(OPT_SET_META_CONTEXT, &data));
    assert_eq!(option_replies(&driver.out)[0].code, REP_ERR_INVALID);
}

#[test]
fn nbd_server_cve_2013_7441_a_client_that_leaves_in_negotiation_harms_nobody() {
    let mut bytes = client_flags(3);
    bytes.extend(option(OPT_LIST, &[]));
    bytes.extend(go("data", &[]));
    for end in 0..bytes.len() {
        let mut driver = Driver::new();
        driver.feed(&bytes[..end]);
        assert!(driver.is_open());
    }
}

#[test]
fn nbd_issue_135_a_reply_size_never_overflows() {
    // An export so large that ranges near 4 GiB and near 2^63 are inside it.
    let export = Export::new("huge", i64::MAX as u64);
    let mut driver = Driver::with(vec![export], TlsMode::Off, Limits::default());
    driver.feed(&client_flags(3));
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&go("huge", &[]));
    driver.seen.clear();
    let last = i64::MAX as u64;
    for (offset, len) in [
        (0, u32::MAX),
        (0, u32::MAX - 7),
        (0, (32 << 20) + 1),
        (last - 1, 2),
        (u64::MAX, u32::MAX),
        (u64::MAX - 4095, 4096),
    ] {
        driver.out.clear();
        driver.feed(&request(0, CMD_READ, 1, offset, len));
        let reply = &replies(&driver.out, &Default::default())[0];
        assert!(matches!(reply, Reply::Error { error: 22, .. }), "{offset} {len} {reply:?}");
    }
    assert!(driver.seen.is_empty());
    // The longest read that is possible announces exactly its data and the offset.
    driver.hold = Some(vec![]);
    driver.feed(&request(0, CMD_READ, 1, last - (32 << 20), 32 << 20));
    driver.out.clear();
    let read = driver.hold.as_mut().unwrap().pop().unwrap();
    read.reply_data(&mut driver.out);
    assert_eq!(driver.out[16..20], ((32u32 << 20) + 8).to_be_bytes());
}

#[test]
fn duplicated_cookies_confuse_only_the_client() {
    let mut driver = Driver::opened("data", false);
    driver.hold = Some(vec![]);
    for offset in 0..5 {
        driver.feed(&request(0, CMD_READ, 42, offset * 4096, 4096));
    }
    assert_eq!(driver.connection.in_flight(), (5, 5 * 4096));
    for request in driver.hold.take().unwrap() {
        request.reply_error(&mut driver.out, crate::nbd::Error::Io, "");
        driver.connection.finish(request);
    }
    assert_eq!(driver.connection.in_flight(), (0, 0));
}
