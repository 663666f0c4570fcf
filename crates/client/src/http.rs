//! A GET of the server's API.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);
/// A status is far below it; more is no answer of Weir's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The body of a GET. HTTP/1.0, so that the answer ends with the connection. `Err` says what to do.
pub fn get(address: SocketAddr, path: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| {
        format!("http://{address}{path}: {error}: is `weir serve` running there, with HTTP?")
    };
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).map_err(failed)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| format!("http://{address}{path}: no HTTP: is it Weir?"))?;
    match head.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => {
            let line = head.lines().next().unwrap_or_default();
            Err(format!("http://{address}{path}: {line}: {body}: try again in a moment"))
        }
    }
}
