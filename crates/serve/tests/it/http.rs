//! One HTTP request over either door.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// `head` are whole header lines. Status and body of the answer.
pub fn over_tcp(
    address: SocketAddr,
    method: &str,
    path: &str,
    head: &str,
    body: &[u8],
) -> (u16, String) {
    let stream = TcpStream::connect(address).expect("HTTP listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    ask(stream, method, path, head, body)
}

/// The same over a socket in the file system.
pub fn over_unix(
    socket: &Path,
    method: &str,
    path: &str,
    head: &str,
    body: &[u8],
) -> (u16, String) {
    let stream = UnixStream::connect(socket).expect("the control socket is there");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    ask(stream, method, path, head, body)
}

fn ask(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    head: &str,
    body: &[u8],
) -> (u16, String) {
    let len = match body.len() {
        0 => String::new(),
        len => format!("Content-Length: {len}\r\n"),
    };
    let head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{len}{head}\r\n");
    // A server that refuses early takes no body.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let end = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.get(9..12).and_then(|code| code.parse().ok());
    let status = status.unwrap_or_else(|| panic!("{method} {path}: {end:?}: {answer:?}"));
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.into()))
}
