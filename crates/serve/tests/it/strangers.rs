//! Clients without any right and without manners. Whatever they do, each connection has one send at a
//! time, holds its memory no longer than it is there, and others are served.

use crate::client::{Client, FLUSH, READ, WRITE};
use crate::{Folder, MEMORY, config, config_with, http, pattern, start};
use flash::Random;
use serve::Server;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Names of many exports fill any socket.
const MANY: &str = "[device]\nkind = \"memory\"\nmode = \"raw\"\nprofile = \"instant\"\nchannels = 1024\n\
                    dies_per_channel = 1\ncapacity = \"256MiB\"";

/// The least that a test waits longer than the server's limit for a handshake, which is 2 s.
const LONGER: Duration = Duration::from_secs(3);

fn asked(server: &Server) -> (usize, usize) {
    let (sender, receiver) = mpsc::channel();
    server.control().status(0, serve::Wanted::default(), move |status| {
        sender.send((status.connections, status.buffer_bytes)).expect("the test waits");
    });
    receiver.recv().expect("the shard lives")
}

/// The clients go, and what was theirs with them.
fn assert_all_gone(server: &Server, what: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while asked(server) != (0, 0) {
        assert!(Instant::now() < deadline, "{what}: clients and bytes left: {:?}", asked(server));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut option = Vec::from(b"IHAVEOPT");
    option.extend(number.to_be_bytes());
    option.extend((data.len() as u32).to_be_bytes());
    option.extend(data);
    option
}

const LIST: u32 = 3;
const ABORT: u32 = 2;

fn lists(count: usize) -> Vec<u8> {
    [3u32.to_be_bytes().to_vec(), option(LIST, &[]).repeat(count)].concat()
}

#[test]
fn who_asks_for_lists_reads_none_and_lets_its_time_pass_ends_nothing_but_itself() {
    let folder = Folder::new();
    let server = start(&folder, MANY);
    let ends: [fn(&UnixStream); 3] = [
        |_| {},
        |stream| stream.shutdown(Shutdown::Write).unwrap(),
        |mut stream| {
            // It may be that the server takes no more.
            let _ = stream.write_all(&option(ABORT, &[]));
        },
    ];
    let mut streams = Vec::new();
    for end in ends {
        let mut stream = UnixStream::connect(folder.socket()).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = stream.write_all(&lists(31));
        end(&stream);
        streams.push(stream);
    }
    std::thread::sleep(LONGER);
    // They are still there, and still read nothing.
    assert_all_gone(&server, "lists unread");
    drop(streams);
    assert_eq!(Client::connect(&folder.socket(), "unit/0").unwrap().size % 4096, 0);
    server.shut_down().unwrap();
}

/// A connection ends by a reset rather than in order.
fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of_val(&linger) as libc::socklen_t;
    // SAFETY: the option's value is readable for its size.
    unsafe {
        let value = (&raw const linger).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, len);
    }
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn dial(folder: &Folder, port: u16, tcp: bool) -> Self {
        let short = Some(Duration::from_millis(30));
        match tcp {
            false => {
                let stream = UnixStream::connect(folder.socket()).expect("the server listens");
                stream.set_read_timeout(short).expect("a timeout");
                stream.set_write_timeout(short).expect("a timeout");
                Self::Unix(stream)
            }
            true => {
                let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
                stream.set_read_timeout(short).expect("a timeout");
                stream.set_write_timeout(short).expect("a timeout");
                Self::Tcp(stream)
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Unix(stream) => stream.write_all(bytes).is_ok(),
            Self::Tcp(stream) => stream.write_all(bytes).is_ok(),
        }
    }

    fn take(&mut self, bytes: usize) {
        let mut into = vec![0; bytes];
        let _ = match self {
            Self::Unix(stream) => stream.read(&mut into),
            Self::Tcp(stream) => stream.read(&mut into),
        };
    }

    fn half_close(&self) {
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

fn request(random: &mut Random) -> Vec<u8> {
    let command = [READ, READ, READ, WRITE, FLUSH, 99][random.below(6) as usize];
    let len = if command == FLUSH { 0 } else { 1 + random.below(1 << 20) as u32 };
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(0u16.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(random.next_u64().to_be_bytes());
    bytes.extend((random.below(24 << 20)).to_be_bytes());
    bytes.extend(len.to_be_bytes());
    if command == WRITE {
        // All of its data, or less.
        let sent = if random.chance(0.5) { len } else { random.below(len.into()) as u32 };
        bytes.resize(bytes.len() + sent as usize, 7);
    }
    bytes
}

/// One client that does what comes to its mind.
fn misbehave(folder: &Folder, port: u16, random: &mut Random) -> Option<Stream> {
    let mut stream = Stream::dial(folder, port, random.chance(0.5));
    let opens = random.chance(0.7);
    let hello = match opens {
        true => [3u32.to_be_bytes().to_vec(), option(1, b"data")].concat(),
        false => lists(random.below(40) as usize),
    };
    stream.send(&hello);
    for _ in 0..random.below(30) {
        let lives = match random.below(8) {
            0..5 if opens => stream.send(&request(random)),
            0..2 => stream.send(&option(LIST, &[])),
            5 => stream.send(&pattern(random.next_u64(), random.below(200) as usize)),
            _ => {
                stream.take(random.below(1 << 18) as usize);
                true
            }
        };
        if !lives {
            break;
        }
    }
    match random.below(4) {
        0 => stream.half_close(),
        1 => {
            if let Stream::Tcp(tcp) = stream {
                reset(tcp);
            }
            return None;
        }
        2 => return None,
        _ => {}
    }
    // It stays, and does nothing more.
    Some(stream)
}

#[test]
fn clients_that_do_anything_at_any_time_leave_nothing_behind_and_stop_nobody() {
    for (seed, shards) in [(1, 1), (2, 2)] {
        eprintln!("seed={seed}");
        let folder = Folder::new();
        let device = format!("{MEMORY}\nshards = {shards}\nchannels = {}", 4 * shards);
        let tcp = "tcp = \"127.0.0.1:0\"";
        let server = Server::start(&config_with(&folder.0, &device, tcp, "")).unwrap();
        let port = server.ready().nbd.iter().find_map(|uri| uri.strip_prefix("nbd://127.0.0.1:"));
        let port = port.unwrap().trim_end_matches('/').parse().unwrap();
        let random = &mut Random::new(seed);
        let mut honest = Client::connect(&folder.socket(), "data").unwrap();
        let mine = pattern(9, 64 << 10);
        honest.write(31 << 20, &mine).unwrap();
        let mut staying = Vec::new();
        for round in 0..150 {
            staying.extend(misbehave(&folder, port, random));
            if staying.len() > 40 {
                staying.remove(random.below(40) as usize);
            }
            if round % 10 == 0 {
                assert!(honest.read(31 << 20, 64 << 10).unwrap() == mine, "seed={seed}");
            }
        }
        drop(staying);
        honest.flush().unwrap();
        drop(honest);
        if shards == 1 {
            assert_all_gone(&server, "anything");
        }
        server.shut_down().unwrap();
    }
}

#[test]
fn a_crowd_that_holds_http_open_keeps_nobody_out_and_goes_in_time() {
    let folder = Folder::new();
    let few = "clients_max = 4\nhead_timeout = \"2s\"";
    let server = Server::start(&config_with(&folder.0, MEMORY, "", few)).unwrap();
    let address = server.ready().http.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
        crowd.push(stream);
        let (status, body) = http::over_tcp(address, "GET", "/status", "Host: localhost\r\n", b"");
        assert_eq!(status, 200, "{body}");
    }
    // One that drips: each byte comes in time, and the whole head does not.
    let begun = Instant::now();
    let mut dripping = TcpStream::connect(address).unwrap();
    dripping.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    dripping.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").unwrap();
    let ended = loop {
        let gone = match dripping.read(&mut [0; 512]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        if gone || dripping.write_all(b"x").is_err() {
            break begun.elapsed();
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "a dripping client stays");
    };
    assert!(ended >= Duration::from_secs(2), "ended after {ended:?}, before its time");
    for mut stream in crowd {
        // Hung up on, or told that it was too slow; not left waiting.
        let end = stream.read_to_end(&mut Vec::new());
        let waits = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!waits, "a client without a request stays");
    }
    server.shut_down().unwrap();
}

const PANIC: &str = "WEIR_TEST_PANIC";

#[test]
fn a_panic_of_a_shard_ends_the_process_at_once_and_says_so() {
    if std::env::var_os(PANIC).is_some() {
        // This is the child.
        let folder = Folder::new();
        let device = format!("{MEMORY}\nshards = 2\nchannels = 4");
        let server = Server::start(&config(&folder.0, &device)).unwrap();
        std::fs::remove_dir_all(&folder.0).unwrap();
        server.control().status(1, serve::Wanted::default(), |_| panic!("planted"));
        std::thread::sleep(Duration::from_secs(60));
        std::process::exit(0);
    }
    let test = "strangers::a_panic_of_a_shard_ends_the_process_at_once_and_says_so";
    let begun = Instant::now();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(PANIC, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success(), "{said}");
    assert!(said.contains("planted") && said.contains("Weir has a bug"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(40), "at once, not at the end of its sleep");
}
