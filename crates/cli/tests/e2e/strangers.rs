//! The server among strangers: crowds that take descriptors, floods, malformed requests, web pages and
//! other users. NBD goes on, the log stays short, and nobody without the right changes anything.

use crate::nbd;
use crate::python::python;
use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{is_root, pattern, said, weir};
use flash::Random;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

const BLOCK: usize = flash::BLOCK_BYTES;

/// The log of a server that strangers were at.
const LOG_BYTES_MAX: usize = 16 << 10;

/// A full round trip by an honest client.
fn assert_serves(server: &mut Server, seed: u64) {
    assert!(server.is_running(), "the server ended:\n{}", server.log());
    let mut client = server.connect();
    let data = pattern(seed, 8 * BLOCK);
    client.write(32 << 20, &data);
    client.flush();
    assert!(client.read(32 << 20, (8 * BLOCK) as u32) == data, "an honest client is served");
}

/// Status code and body of an answer to one request.
fn http(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).expect("the server takes a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server answers");
    let code = answer.get(9..12).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (code.unwrap_or_else(|| panic!("no HTTP: {answer:?}")), body.to_owned())
}

fn tcp(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.http()).expect("HTTP listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream
}

fn control(server: &Server) -> UnixStream {
    let stream = UnixStream::connect(server.control()).expect("the control socket is there");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    stream
}

fn request(method: &str, path: &str, head: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{head}\r\n")
}

#[test]
fn a_client_that_asks_for_lists_and_reads_none_ends_nothing_but_itself() {
    let scratch = Scratch::new("lists");
    let many = ["--raw", "--channels", "1024", "--dies-per-channel", "1", "--capacity", "256MiB"];
    let mut server =
        Server::start(&scratch, &[&many[..], &["--profile", "instant", "--memory"]].concat());
    let mut stream = nbd::dial(&server.socket()).expect("the server accepts");
    stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
    let lists = nbd::option_header(3, 0).repeat(31);
    // It may be that not all of them are taken.
    let _ = stream.write_all(&[&3u32.to_be_bytes()[..], &lists].concat());
    // Its time, which is 10 s, and a little more.
    std::thread::sleep(Duration::from_secs(12));
    assert!(server.is_running(), "the server ended:\n{}", server.log());
    let unit = nbd::Client::connect(&server.socket(), "unit/0").expect("others are served");
    assert!(unit.size > 0);
    server.terminate();
}

/// Lets this process have enough descriptors for a crowd.
fn raise_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable, and then readable.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    assert!(limit.rlim_max > 1500, "this test needs some descriptors of its own");
}

#[test]
fn a_crowd_that_takes_every_descriptor_of_http_takes_none_of_nbd_and_fills_no_log() {
    raise_files();
    let scratch = Scratch::new("crowds");
    let mut server = Server::start_with_files(&scratch, SMALL, 190);
    let mut honest = server.connect();
    let mut crowd = Vec::new();
    for number in 0..1100 {
        let mut stream = tcp(&server);
        // The server may hang up on it at once, to make room.
        let _ = stream.write_all(b"POST /policy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9");
        crowd.push(stream);
        if number % 100 == 99 {
            honest.write(0, &pattern(number, BLOCK));
            assert!(honest.read(0, BLOCK as u32) == pattern(number, BLOCK));
            assert_serves(&mut server, number);
        }
    }
    // HTTP itself goes on too, and the control socket.
    let status = request("GET", "/status", "Host: localhost\r\n");
    assert_eq!(http(tcp(&server), &status).0, 200);
    assert_eq!(http(control(&server), &status).0, 200);
    // A crowd at NBD is bounded too, and keeps out neither HTTP nor who is there.
    let strangers: Vec<_> = (0..300).filter_map(|_| nbd::dial(&server.socket()).ok()).collect();
    assert_eq!(http(tcp(&server), &status).0, 200);
    assert_eq!(http(control(&server), &status).0, 200);
    honest.write(0, &pattern(3, BLOCK));
    assert!(honest.read(0, BLOCK as u32) == pattern(3, BLOCK));
    drop((strangers, crowd));
    let deadline = Instant::now() + Duration::from_secs(20);
    while nbd::Client::connect(&server.socket(), "default").is_err() {
        assert!(Instant::now() < deadline, "the crowd has gone, and its places are not free");
    }
    assert_serves(&mut server, 1);
    let log = server.log();
    assert!(log.len() < LOG_BYTES_MAX, "{} bytes of log: {}", log.len(), &log[..2000]);
    assert!(log.contains("fewer clients than the config"), "it says what it did: {log}");
    server.terminate();
}

/// An idle socket took the place of a client until its handshake was too late, so a handful of them kept everybody out.
#[test]
fn sockets_that_never_finish_their_handshake_keep_no_client_out() {
    let scratch = Scratch::new("halfopen");
    let config = scratch.file("weir.toml");
    std::fs::write(&config, "[nbd]\nclients_max = 4\n").unwrap();
    let socket = scratch.file("data/nbd.sock");
    let doors = ["--config", &config, "--tcp", "127.0.0.1:0", "--socket", &socket];
    let server = Server::start(&scratch, &[SMALL, &doors].concat());
    let address = ("127.0.0.1", server.tcp_port());
    let idle: Vec<_> =
        (0..200).map(|_| TcpStream::connect(address).expect("NBD listens")).collect();
    let uri = server.uri();
    for _ in 0..8 {
        python(&uri, "assert len(h.pread(B, 0)) == B");
    }
    // The oldest were hung up on, and the youngest are still there, as they may be.
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).expect("a socket");
        // It was greeted.
        let _ = stream.read(&mut [0; 64]);
        stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    assert!(!is_open(&idle[0]) && !is_open(&idle[100]), "{}", server.log());
    assert!(is_open(&idle[199]), "{}", server.log());
    let told = server.log().matches("do not finish their handshake").count();
    assert!((1..=3).contains(&told), "once every five seconds: {}", server.log());
    // Clients count as before.
    let mut clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    assert!(nbd::Client::connect(&server.socket(), "default").is_err(), "a fifth one is refused");
    clients[0].write(0, &pattern(1, BLOCK));
    assert!(clients[0].read(0, BLOCK as u32) == pattern(1, BLOCK));
    drop((clients, idle));
    server.terminate();
}

#[test]
fn too_few_descriptors_for_any_client_are_told_at_the_start() {
    let scratch = Scratch::new("fewfiles");
    let data = scratch.data();
    let weir = crate::tools::weir_path();
    let command = format!(
        "ulimit -n 30; exec {} serve --profile instant --capacity 64MiB --http 127.0.0.1:0 --data {}",
        weir.display(),
        data.display()
    );
    let refused = crate::tools::output("sh", &["-c", &command]);
    let text = said(&refused);
    assert!(!refused.status.success() && text.contains("ulimit -n"), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// What clients say, for strangers to change.
const REQUESTS: &[&str] = &[
    "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\n",
    "POST /policy HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 36\r\n\r\n\
     {\"decision\":\"victim\",\"name\":\"greedy\"}",
    "PUT /plugins/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n\0asm\r\n0\r\n\r\n",
    "DELETE /blocks/000000000000b10c0000000000000001 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "GET /blocks?limit=3&after=0 HTTP/1.1\r\nHost: localhost\r\nRange: bytes=0-1\r\n\r\n",
    "OPTIONS /fast/detach HTTP/1.1\r\nHost: localhost\r\nOrigin: http://x\r\n\r\n",
];

fn malformed(random: &mut Random) -> Vec<u8> {
    let mut bytes = REQUESTS[random.below(REQUESTS.len() as u64) as usize].as_bytes().to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 => drop(bytes.splice(at..at, pattern(random.next_u64(), random.below(300) as usize))),
            3 => drop(bytes.splice(at..at, b"\r\n".repeat(random.below(3) as usize))),
            4 => bytes.extend_from_within(..at),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    bytes
}

/// Says it all, says that this was all, and takes what comes until the server hangs up.
fn converse(mut stream: impl Read + Write, end: impl FnOnce(), bytes: &[u8]) -> bool {
    // The server may hang up before all of it is sent.
    let _ = stream.write_all(bytes);
    end();
    let ended = stream.take(1 << 22).read_to_end(&mut Vec::new());
    !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn five_thousand_malformed_requests_are_answered_or_hung_up_on() {
    let scratch = Scratch::new("malformed");
    // With an address there is a socket only if that is said too.
    let socket = scratch.file("data/nbd.sock");
    let both = ["--tcp", "127.0.0.1:0", "--socket", &socket];
    let mut server = Server::start(&scratch, &[SMALL, &both].concat());
    let (seed, port) = (77, server.tcp_port());
    eprintln!("seed={seed}");
    let mut random = Random::new(seed);
    let mut honest = server.connect();
    honest.write(0, &pattern(1, BLOCK));
    for round in 0..5_400 {
        let done = match round % 3 {
            0 => {
                let stream = tcp(&server);
                let other = stream.try_clone().expect("a descriptor");
                let end = move || drop(other.shutdown(Shutdown::Write));
                converse(stream, end, &malformed(&mut random))
            }
            1 => {
                let stream = control(&server);
                let other = stream.try_clone().expect("a descriptor");
                let end = move || drop(other.shutdown(Shutdown::Write));
                // Whatever comes of it may be let in here: it must be no sound request for a change.
                let bytes = malformed(&mut random);
                converse(stream, end, &bytes)
            }
            _ => {
                let stream = TcpStream::connect(("127.0.0.1", port)).expect("NBD listens");
                stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
                let other = stream.try_clone().expect("a descriptor");
                let end = move || drop(other.shutdown(Shutdown::Write));
                let mut bytes = 3u32.to_be_bytes().to_vec();
                for _ in 0..random.below(4) {
                    let option = random.below(12) as u32;
                    let len = random.below(40) as usize;
                    bytes.extend(nbd::option_header(option, len as u32));
                    bytes.extend(pattern(random.next_u64(), len));
                }
                bytes.extend(pattern(random.next_u64(), random.below(100) as usize));
                converse(stream, end, &bytes)
            }
        };
        assert!(done, "seed={seed} round={round}: the server neither answered nor hung up");
        if round % 500 == 0 {
            assert!(honest.read(0, BLOCK as u32) == pattern(1, BLOCK), "seed={seed} round={round}");
        }
    }
    assert_serves(&mut server, 1);
    let log = server.log();
    assert!(log.len() < LOG_BYTES_MAX, "{} bytes of log: {}", log.len(), &log[..2000]);
    server.terminate();
}

#[test]
fn neither_a_web_page_nor_another_user_controls_the_server() {
    let scratch = Scratch::new("pages");
    let data = scratch.data();
    let token = scratch.file("token");
    let config = scratch.file("weir.toml");
    std::fs::write(&config, format!("[http]\ntoken_file = {token:?}\n")).unwrap();
    let server = Server::start(&scratch, &[SMALL, &["--config", &config]].concat());
    let body = "Content-Type: application/json\r\nContent-Length: 2\r\n";
    for (head, code) in [
        ("Host: localhost\r\nOrigin: http://evil.example\r\n", 403),
        ("Host: evil.example\r\n", 403),
        ("Host: localhost\r\n", 401),
    ] {
        for (method, path) in
            [("POST", "/fast/detach"), ("POST", "/policy"), ("DELETE", "/blocks/1")]
        {
            let asked = format!("{}{{}}", request(method, path, &format!("{head}{body}")));
            assert_eq!(http(tcp(&server), &asked).0, code, "{method} {path} {head}");
        }
    }
    // The command has the right by the socket, or by the token.
    let mut set = vec!["ctl", "policy", "set", "all", "victim=fifo"];
    let by_socket = weir(&[&set[..], &["--data", data.to_str().unwrap()]].concat());
    assert!(by_socket.status.success(), "{}", said(&by_socket));
    let address = server.http().to_string();
    set.extend(["--http", &address]);
    let without = weir(&set);
    assert!(said(&without).contains("token"), "{}", said(&without));
    assert_eq!(without.status.code(), Some(2));
    set.extend(["--token-file", &token]);
    let with = weir(&set);
    assert!(with.status.success(), "{}", said(&with));
    let shown = weir(&["ctl", "policy", "show", "--http", &address]);
    assert!(said(&shown).contains("fifo"), "looking needs nothing: {}", said(&shown));

    // Both sockets and the token are their owner's.
    for path in [server.control(), server.socket(), token.into()] {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    if is_root() {
        let connect = "import socket, sys\nfor path in sys.argv[1:]:\n    \
                       socket.socket(socket.AF_UNIX).connect(path)";
        let paths = [server.control(), server.socket()];
        let as_root = Command::new("python3").args(["-c", connect]).args(&paths).output().unwrap();
        assert!(as_root.status.success(), "{}", said(&as_root));
        for path in &paths {
            let mut other = Command::new("python3");
            let other = other.args(["-c", connect]).arg(path).current_dir("/").uid(65_534);
            let refused = other.gid(65_534).output().unwrap();
            assert!(said(&refused).contains("PermissionError"), "{}", said(&refused));
        }
    }
    server.terminate();
}

#[test]
fn other_machines_get_in_only_where_that_is_said() {
    let scratch = Scratch::new("beyond");
    let data = scratch.data();
    let data = data.to_str().unwrap();
    let base = [&["serve", "--data", data][..], SMALL].concat();
    for (more, mend) in [
        (["--tcp", "0.0.0.0:0", "--http", "none"], "--tcp-plain"),
        (["--tcp", "127.0.0.1:0", "--http", "0.0.0.0:0"], "--http-remote"),
    ] {
        let refused = weir(&[&base[..], &more].concat());
        let text = said(&refused);
        assert!(!refused.status.success() && text.contains(mend), "{more:?}: {text}");
    }
    assert!(!scratch.data().join("shard-0").exists(), "nothing was made on the way");
    let socket = scratch.file("data/nbd.sock");
    let open = ["--tcp", "0.0.0.0:0", "--tcp-plain", "--socket", &socket];
    let mut server = Server::start(&scratch, &[SMALL, &open].concat());
    assert!(TcpStream::connect(("127.0.0.1", server.tcp_port())).is_ok());
    assert_serves(&mut server, 1);
    server.terminate();
}
