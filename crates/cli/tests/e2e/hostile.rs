//! Clients that break the protocol, vanish or come in crowds. Whatever they do, the server stays
//! up, bounded, and useful to the next honest client.

use crate::nbd::{self, Client, EINVAL, ENOSPC, FLAG_FUA, FLUSH, OPTION_GO, READ, TRIM, WRITE};
use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::pattern;
use flash::Random;
use std::io::{Read, Write};
use std::net::Shutdown;

const BLOCK: usize = flash::BLOCK_BYTES;

/// A full round trip by an honest client, on blocks of its own.
fn assert_serves(server: &mut Server, seed: u64) {
    assert!(server.is_running(), "the server ended:\n{}", server.log());
    let mut client = server.connect();
    let data = pattern(seed, 8 * BLOCK);
    client.write(32 << 20, &data);
    client.flush();
    assert!(client.read(32 << 20, (8 * BLOCK) as u32) == data, "an honest client is served");
}

#[test]
fn garbage_from_the_first_byte_on_is_survived() {
    let scratch = Scratch::new("garbage");
    let mut server = Server::start(&scratch, SMALL);
    let seed = 4_711;
    eprintln!("seed={seed}");
    let mut random = Random::new(seed);
    for round in 0..100 {
        let mut stream = nbd::dial(&server.socket()).expect("the server accepts");
        if random.chance(0.5) {
            nbd::greet(&mut stream).expect("the server greets");
        }
        let bytes = pattern(random.next_u64(), random.below(5_000) as usize);
        // The server may hang up before all of it is sent.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let end = stream.take(1 << 20).read_to_end(&mut answer);
        assert!(
            end.is_ok() || end.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset),
            "seed={seed} round={round}: the server neither answered nor hung up"
        );
    }
    assert_serves(&mut server, 1);
    server.terminate();
}

#[test]
fn a_handshake_cut_after_any_byte_is_survived() {
    let scratch = Scratch::new("halfway");
    let mut server = Server::start(&scratch, SMALL);
    let mut whole = 3u32.to_be_bytes().to_vec();
    let name = b"default";
    whole.extend(nbd::option_header(OPTION_GO, 4 + name.len() as u32 + 2));
    whole.extend((name.len() as u32).to_be_bytes());
    whole.extend(name);
    whole.extend([0, 0]);
    whole.extend(nbd::header(WRITE, 0, 1, 0, 4096));
    whole.extend([0xaa; 100]);
    for cut in 0..whole.len() {
        let mut stream = nbd::dial(&server.socket()).expect("the server accepts");
        stream.write_all(&whole[..cut]).expect("the server takes a valid prefix");
    }
    assert_serves(&mut server, 2);
    let first = server.connect().read(0, 4096);
    assert!(first.iter().all(|&byte| byte == 0), "half a write left no trace");
    server.terminate();
}

#[test]
fn absurd_lengths_are_refused_without_being_believed() {
    let scratch = Scratch::new("absurd");
    let mut server = Server::start(&scratch, SMALL);
    // An option that announces 4 GiB.
    let mut stream = nbd::dial(&server.socket()).expect("the server accepts");
    nbd::greet(&mut stream).expect("the server greets");
    let _ = stream.write_all(&nbd::option_header(OPTION_GO, u32::MAX));
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
    // A name longer than the option that holds it.
    let mut stream = nbd::dial(&server.socket()).expect("the server accepts");
    nbd::greet(&mut stream).expect("the server greets");
    let _ = nbd::send_option(&mut stream, OPTION_GO, &[0xff, 0xff, 0xff, 0xff, 0, 0]);
    let (kind, _) = nbd::read_option_reply(&mut stream).expect("an answer to a bad option");
    assert!(kind >= 1 << 31, "a name beyond its option is refused, not {kind:#x}");
    // A read of 4 GiB: an error, or the end of the connection.
    let mut client = server.connect();
    client.send(READ, 0, 0, u32::MAX, &[]).expect("sent");
    assert!(client.receive().map_or(true, |answer| answer.error != 0));
    // A write that announces 4 GiB and sends 1 MiB.
    let mut client = server.connect();
    let _ = client.send_raw(&nbd::header(WRITE, 0, 1, 0, u32::MAX));
    let _ = client.send_raw(&vec![1; 1 << 20]);
    drop(client);
    assert_serves(&mut server, 3);
    server.terminate();
}

#[test]
fn bad_requests_get_an_error_and_the_connection_lives_on() {
    let scratch = Scratch::new("bad");
    let server = Server::start(&scratch, SMALL);
    let mut client = server.connect();
    let end = client.size;
    assert_eq!(client.try_read(end, 4096), Err(EINVAL), "a read past the end");
    assert_eq!(client.try_read(u64::MAX - 4095, 4096), Err(EINVAL), "a read that wraps");
    assert_eq!(client.try_write(end, &[1; 4096]), Err(ENOSPC), "a write past the end");
    assert_eq!(client.try_write(end - 2048, &[1; 4096]), Err(ENOSPC), "a write across the end");
    let trim = client.errno_of(TRIM, 0, end, 4096);
    assert!(trim == EINVAL || trim == ENOSPC, "a trim past the end: {trim}");
    assert_eq!(client.errno_of(99, 0, 0, 0), EINVAL, "an unknown command");
    assert_eq!(client.errno_of(READ, 0x8000, 0, 4096), EINVAL, "an unknown flag");
    assert_eq!(client.errno_of(FLUSH, 0, 0, 0), 0, "and an honest request still works");
    assert_eq!(client.errno_of(TRIM, FLAG_FUA, 0, 4096), 0);
    let unknown = Client::connect(&server.socket(), "no-such-volume").err();
    assert!(unknown.is_some(), "a volume that does not exist is refused");
    server.terminate();
}

#[test]
fn a_bad_request_magic_ends_only_that_connection() {
    let scratch = Scratch::new("magic");
    let mut server = Server::start(&scratch, SMALL);
    let mut honest = server.connect();
    let mut client = server.connect();
    client.send_raw(&[0x55; 28]).expect("sent");
    assert!(client.receive().is_err(), "the server hangs up: the stream has lost its place");
    honest.write(0, &pattern(5, BLOCK));
    assert!(honest.read(0, BLOCK as u32) == pattern(5, BLOCK), "others are not disturbed");
    assert_serves(&mut server, 4);
    server.terminate();
}

#[test]
fn a_client_that_vanishes_mid_write_changes_nothing() {
    let scratch = Scratch::new("vanish");
    let mut server = Server::start(&scratch, SMALL);
    let before = pattern(6, 64 * BLOCK);
    server.connect().write(0, &before);
    for sent in [0, 1, 100, BLOCK - 1, BLOCK, 5 * BLOCK + 3, 64 * BLOCK - 1] {
        let mut client = server.connect();
        client.send_raw(&nbd::header(WRITE, 0, 9, 0, 64 * BLOCK as u32)).expect("sent");
        client.send_raw(&vec![0xee; sent]).expect("sent");
        drop(client);
        let now = server.connect().read(0, 64 * BLOCK as u32);
        assert!(now == before, "{sent} bytes of an unfinished write left a trace");
    }
    // And one that never takes its answers: the server must not wait for it.
    let mut deaf = server.connect();
    for _ in 0..64 {
        if deaf.send(READ, 0, 0, 1 << 20, &[]).is_err() {
            break;
        }
    }
    assert_serves(&mut server, 5);
    drop(deaf);
    assert_serves(&mut server, 6);
    server.terminate();
}

#[test]
fn a_crowd_of_connections_is_served_or_refused_but_never_hangs() {
    let scratch = Scratch::new("crowd");
    let mut server = Server::start(&scratch, SMALL);
    let crowd: Vec<_> = (0..101).map(|_| nbd::dial(&server.socket()).expect("accepted")).collect();
    let mut greeted = 0;
    for mut stream in crowd {
        // Held open to its end by `stream`: each gets a greeting or a clear hang-up.
        let mut first = [0; 8];
        match stream.read_exact(&mut first) {
            Ok(()) => greeted += 1,
            Err(error) => assert!(
                error.kind() != std::io::ErrorKind::WouldBlock,
                "a connection got neither a greeting nor a refusal"
            ),
        }
    }
    println!("{greeted} of 101 connections were greeted");
    assert!(greeted >= 16, "a fair number of connections is served at once, not {greeted}");
    assert_serves(&mut server, 7);
    server.terminate();
}
