//! Negotiation: golden bytes, every option, every refusal.

use super::client::*;
use super::*;

fn codes(out: &[u8]) -> Vec<u32> {
    option_replies(out).iter().map(|reply| reply.code).collect()
}

fn after_flags(tls: TlsMode) -> Driver {
    let mut driver = Driver::with(exports(), tls, Limits::default());
    driver.feed(&client_flags(3));
    assert!(driver.out.is_empty() && driver.seen.is_empty());
    driver
}

#[test]
fn the_greeting_is_the_protocols() {
    let mut out = Vec::new();
    let _ =
        Connection::new(Instant(0), exports().into(), TlsMode::Off, Limits::default(), &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn golden_bytes_of_a_go() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
    assert_eq!(driver.out, b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x08\0\0\0\x01\0\0\0\0");
    driver.out.clear();
    // GO "data", two facts: name and description.
    driver.feed(b"IHAVEOPT\0\0\0\x07\0\0\0\x0e\0\0\0\x04data\0\x02\0\x01\0\x02");
    let head = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03";
    let mut expected: Vec<u8> = Vec::new();
    expected.extend(head);
    // EXPORT: 1 MiB; flags, flush, fua, trim, zeroes, df, multi-conn, cache, fast zero.
    expected.extend(b"\0\0\0\x0c\0\0\0\0\0\0\0\x10\0\0\x0d\xed");
    expected.extend(head);
    expected.extend(b"\0\0\0\x06\0\x01data");
    expected.extend(head);
    expected.extend(b"\0\0\0\x0b\0\x02the first");
    expected.extend(head);
    // BLOCK_SIZE: 1, 4096, 32 MiB.
    expected.extend(b"\0\0\0\x0e\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0");
    expected.extend(b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0");
    assert_eq!(driver.out, expected);
    assert_eq!(driver.seen, [Seen::Opened(0)]);
    assert_eq!(driver.connection.deadline(), None);
}

#[test]
fn export_name_answers_with_and_without_zeroes() {
    for (flags, padding) in [(1, 124), (3, 0), (0, 124)] {
        let mut driver = Driver::new();
        driver.feed(&client_flags(flags));
        driver.feed(&option(OPT_EXPORT_NAME, b"frozen"));
        // 64 KiB; read-only, no trim, no zeroes, and no DF without structured replies.
        let mut expected = b"\0\0\0\0\0\x01\0\0\x05\x0f".to_vec();
        expected.resize(10 + padding, 0);
        assert_eq!(driver.out, expected, "client flags {flags}");
        assert_eq!(driver.seen, [Seen::Opened(1)]);
    }
}

#[test]
fn the_empty_name_is_the_first_volume_that_there_was_or_nothing() {
    for bytes in [go("", &[]), option(OPT_EXPORT_NAME, b"")] {
        let mut driver = after_flags(TlsMode::Off);
        driver.feed(&bytes);
        assert_eq!(driver.seen, [Seen::Opened(0)]);
    }
    // A client that connects again after its volume was deleted must not write to another one.
    let later = Export { volume: 1, ..Export::new("later", 1 << 20) };
    for exports in [vec![], vec![later]] {
        let mut nothing = Driver::with(exports, TlsMode::Off, Limits::default());
        nothing.feed(&client_flags(3));
        nothing.feed(&go("", &[]));
        assert_eq!(codes(&nothing.out), [REP_ERR_UNKNOWN]);
    }
}

#[test]
fn an_unknown_export_is_an_error_for_go_and_the_end_for_export_name() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&go("none", &[]));
    driver.feed(&option(OPT_INFO, &info_data("none", &[])));
    assert_eq!(codes(&driver.out), [REP_ERR_UNKNOWN, REP_ERR_UNKNOWN]);
    assert!(driver.seen.is_empty());
    driver.out.clear();
    driver.feed(&option(OPT_EXPORT_NAME, b"none"));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::UnknownExport)]);
    assert!(driver.out.is_empty());
}

#[test]
fn list_names_every_export() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&option(OPT_LIST, &[]));
    let replies = option_replies(&driver.out);
    assert_eq!(replies.len(), 4);
    assert_eq!(replies[0].data, b"\0\0\0\x04datathe first");
    assert_eq!(replies[1].data, b"\0\0\0\x06frozen");
    assert_eq!(replies[3].code, REP_ACK);
    driver.out.clear();
    driver.feed(&option(OPT_LIST, b"x"));
    assert_eq!(codes(&driver.out), [REP_ERR_INVALID]);
}

#[test]
fn info_describes_and_goes_on() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&option(OPT_INFO, &info_data("blocks", &[INFO_NAME, 77, INFO_NAME])));
    let replies = option_replies(&driver.out);
    let facts: Vec<u16> = replies
        .iter()
        .filter(|reply| reply.code == REP_INFO)
        .map(|reply| u16::from_be_bytes([reply.data[0], reply.data[1]]))
        .collect();
    assert_eq!(facts, [INFO_EXPORT, INFO_NAME, INFO_BLOCK_SIZE]);
    assert_eq!(&replies[2].data[2..6], 4096u32.to_be_bytes());
    assert_eq!(replies.last().unwrap().code, REP_ACK);
    assert!(driver.seen.is_empty());
    driver.feed(&go("blocks", &[]));
    assert_eq!(driver.seen, [Seen::Opened(2)]);
}

#[test]
fn unknown_options_are_unsupported_and_keep_the_stream_in_step() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&option(OPT_EXTENDED_HEADERS, &[]));
    driver.feed(&option(4, b"peek"));
    driver.feed(&option(0xffff_ffff, &[0; 8192]));
    driver.feed(&option(OPT_STARTTLS, &[]));
    let expected = [REP_ERR_UNSUP, REP_ERR_UNSUP, REP_ERR_UNSUP, REP_ERR_POLICY];
    assert_eq!(codes(&driver.out), expected);
    driver.feed(&go("data", &[]));
    assert_eq!(driver.seen, [Seen::Opened(0)]);
}

#[test]
fn contexts_need_structured_replies_and_count_for_their_export_only() {
    let status = request(0, CMD_BLOCK_STATUS, 1, 0, 4096);
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&set_context("data", &[CONTEXT_NAME]));
    assert_eq!(codes(&driver.out), [REP_ERR_INVALID]);
    for (chosen, queries, allowed) in [
        ("data", &[CONTEXT_NAME][..], true),
        ("", &["qemu:x", CONTEXT_NAME, CONTEXT_NAME], true),
        ("blocks", &[CONTEXT_NAME], false),
        ("data", &["base:"], false),
        ("data", &[], false),
    ] {
        let mut driver = after_flags(TlsMode::Off);
        driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
        driver.feed(&set_context(chosen, queries));
        driver.feed(&go("data", &[]));
        driver.out.clear();
        driver.feed(&status);
        let reply = &replies(&driver.out, &Default::default())[0];
        assert_eq!(matches!(reply, Reply::Extents { .. }), allowed, "{chosen} {queries:?}");
    }
}

#[test]
fn a_refused_choice_of_contexts_leaves_none() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&set_context("data", &[CONTEXT_NAME]));
    driver.feed(&set_context("none", &[CONTEXT_NAME]));
    driver.feed(&go("data", &[]));
    driver.out.clear();
    driver.feed(&request(0, CMD_BLOCK_STATUS, 1, 0, 4096));
    let reply = &replies(&driver.out, &Default::default())[0];
    assert!(matches!(reply, Reply::Error { error: 22, .. }), "{reply:?}");
}

#[test]
fn contexts_are_listed_by_name_by_namespace_and_all() {
    let cases = [(&[][..], 2), (&["base:"], 2), (&[CONTEXT_NAME], 2), (&["qemu:"], 1)];
    for (queries, count) in cases {
        let mut driver = after_flags(TlsMode::Off);
        driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
        driver.out.clear();
        driver.feed(&option(OPT_LIST_META_CONTEXT, &context_data("", queries)));
        let replies = option_replies(&driver.out);
        assert_eq!(replies.len(), count, "{queries:?}");
        if count == 2 {
            assert_eq!(replies[0].data, b"\0\0\0\0base:allocation");
        }
    }
}

#[test]
fn before_tls_everything_but_abort_is_refused() {
    let mut driver = after_flags(TlsMode::Required);
    driver.feed(&option(OPT_LIST, &[]));
    driver.feed(&go("data", &[]));
    driver.feed(&option(OPT_STRUCTURED_REPLY, &[]));
    driver.feed(&option(4711, b"?"));
    assert_eq!(codes(&driver.out), [REP_ERR_TLS_REQD; 4]);
    driver.out.clear();
    driver.feed(&option(OPT_ABORT, &[]));
    assert_eq!(codes(&driver.out), [REP_ACK]);
    assert_eq!(driver.seen, [Seen::Close(CloseReason::Aborted)]);
    let mut driver = after_flags(TlsMode::Required);
    driver.feed(&option(OPT_EXPORT_NAME, b"data"));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::TlsRequired)]);
}

#[test]
fn tls_starts_once_and_then_all_options_work() {
    let mut driver = after_flags(TlsMode::Required);
    driver.feed(&option(OPT_STARTTLS, &[]));
    assert_eq!(codes(&driver.out), [REP_ACK]);
    assert_eq!(driver.seen, [Seen::StartTls]);
    driver.connection.tls_started();
    driver.feed(&option(OPT_STARTTLS, &[]));
    assert_eq!(codes(&driver.out), [REP_ACK, REP_ERR_INVALID]);
    driver.feed(&go("data", &[]));
    assert_eq!(driver.seen, [Seen::StartTls, Seen::Opened(0)]);
}

#[test]
fn unknown_client_flags_and_bad_magic_end_the_connection() {
    for flags in [4, 0x8000_0000] {
        let mut driver = Driver::new();
        driver.feed(&client_flags(flags));
        assert_eq!(driver.seen, [Seen::Close(CloseReason::UnknownClientFlags(flags))]);
    }
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(b"IHAVEOPS\0\0\0\x03\0\0\0\0");
    assert_eq!(driver.seen, [Seen::Close(CloseReason::BadMagic)]);
}

#[test]
fn options_are_counted() {
    let mut driver = after_flags(TlsMode::Off);
    for _ in 0..32 {
        driver.feed(&option(OPT_LIST, &[]));
    }
    assert!(driver.seen.is_empty());
    driver.feed(&option(OPT_LIST, &[]));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::TooManyOptions)]);
}

#[test]
fn a_long_option_is_read_through_and_refused() {
    let mut driver = after_flags(TlsMode::Off);
    driver.feed(&option(OPT_GO, &vec![b'x'; 8193]));
    driver.feed(&option(99, &vec![b'x'; DRAIN_BYTES_MAX as usize]));
    assert_eq!(codes(&driver.out), [REP_ERR_TOO_BIG; 2]);
    assert!(driver.seen.is_empty());
    let len = DRAIN_BYTES_MAX + 1;
    driver.feed(&option_header(OPT_GO, len));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::OptionTooLong(len))]);
}

#[test]
fn a_stopping_server_refuses_options_and_requests() {
    let mut driver = after_flags(TlsMode::Off);
    driver.connection.shut_down();
    driver.feed(&go("data", &[]));
    assert_eq!(codes(&driver.out), [REP_ERR_SHUTDOWN]);
    driver.feed(&option(OPT_EXPORT_NAME, b"data"));
    assert_eq!(driver.seen, [Seen::Close(CloseReason::ShuttingDown)]);

    let mut driver = Driver::opened("data", false);
    driver.connection.shut_down();
    driver.feed(&write(7, 0, b"abc"));
    let expected = [Reply::Simple { cookie: 7, error: 108, data: vec![] }];
    assert_eq!(replies(&driver.out, &Default::default()), expected);
}

#[test]
fn unsent_replies_stop_the_negotiation() {
    let limits = Limits { unsent_bytes: 100, ..Limits::default() };
    let mut driver = Driver::with(exports(), TlsMode::Off, limits);
    driver.feed(&client_flags(3));
    assert_eq!(driver.step(&option(OPT_LIST, &[])), OPTION_HEADER_BYTES);
    assert!(!driver.connection.accepts_more(driver.out.len()));
    assert_eq!(driver.step(&option(OPT_LIST, &[])), 0);
    driver.out.clear();
    assert_eq!(driver.step(&option(OPT_LIST, &[])), OPTION_HEADER_BYTES);
}

#[test]
fn an_export_the_protocol_cannot_express_is_refused() {
    use crate::nbd::BadExport;
    let good = Export::new("x", 1 << 20);
    assert_eq!(good.check(), Ok(()));
    let check = |change: fn(&mut Export)| {
        let mut export = good.clone();
        change(&mut export);
        export.check()
    };
    assert_eq!(check(|export| export.name = "x".repeat(4097)), Err(BadExport::StringTooLong));
    assert_eq!(check(|export| export.name = "a\0b".into()), Err(BadExport::StringHoldsNul));
    assert_eq!(check(|export| export.block_min = 3), Err(BadExport::BlockSize));
    assert_eq!(check(|export| export.block_min = 0), Err(BadExport::BlockSize));
    assert_eq!(check(|export| export.block_preferred = 256), Err(BadExport::BlockSize));
    assert_eq!(check(|export| export.block_max = 2048), Err(BadExport::BlockSize));
    assert_eq!(check(|export| export.size_bytes = u64::MAX), Err(BadExport::Size));
}
