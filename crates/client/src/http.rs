//! Requests to the server's HTTP API, one connection each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A status is far below it, and so is the largest block; more is no answer of Weir's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What a server answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// 200 and so on.
    pub status: u16,
    /// The first line, for people.
    pub line: String,
    /// What follows the head.
    pub body: Vec<u8>,
}

impl Answer {
    /// The server's reason for a refusal: what it says as JSON, else the body as it is.
    pub fn reason(&self) -> String {
        let reason = serde_json::from_slice::<serde_json::Value>(&self.body).ok();
        let reason = reason.and_then(|value| Some(value.get("error")?.as_str()?.to_owned()));
        reason.unwrap_or_else(|| String::from_utf8_lossy(&self.body).into_owned())
    }
}

/// One request: `head` are whole header lines, each with its end. HTTP/1.0, so that the answer ends
/// with the connection. `Err` says what to do.
pub fn request(
    address: SocketAddr,
    (method, path): (&str, &str),
    head: &str,
    body: &[u8],
    patience: Duration,
) -> Result<Answer, String> {
    let failed = |error: std::io::Error| {
        format!("http://{address}{path}: {error}: is `weir serve` running there, with HTTP?")
    };
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_PATIENCE).map_err(failed)?;
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    stream.set_write_timeout(Some(patience)).map_err(failed)?;
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n{length}{head}\r\n"
    );
    // A server that refuses early may take no more: its answer says why.
    let sent = stream.write_all(request.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let received = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer);
    if answer.is_empty() {
        sent.and(received.map(|_| ())).map_err(failed)?;
    } else {
        received.map_err(failed)?;
    }
    parse(answer).ok_or_else(|| format!("http://{address}{path}: no HTTP: is it Weir?"))
}

fn parse(mut answer: Vec<u8>) -> Option<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let body = answer.split_off(end + 4);
    let head = String::from_utf8_lossy(&answer);
    let line = head.lines().next()?.to_owned();
    let status = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(Answer { status, line, body })
}

/// The body of a GET that is answered with 200. `Err` says what to do.
pub fn get(address: SocketAddr, path: &str) -> Result<String, String> {
    let answer = request(address, ("GET", path), "", &[], CONNECT_PATIENCE)?;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    match answer.status {
        200 => Ok(body),
        _ => Err(format!("http://{address}{path}: {}: {body}: try again in a moment", answer.line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body_of_any_bytes() {
        let bytes = b"HTTP/1.0 206 Partial Content\r\na: b\r\n\r\n\xff\r\n\r\n".to_vec();
        let answer = parse(bytes).unwrap();
        assert_eq!((answer.status, &answer.body[..]), (206, &b"\xff\r\n\r\n"[..]));
        for bad in [&b""[..], b"HTTP/1.0 200 OK\r\n", b"hello\r\n\r\n"] {
            assert_eq!(parse(bad.to_vec()), None);
        }
    }

    #[test]
    fn a_refusal_tells_its_reason_with_or_without_json() {
        let answer = |body: &str| Answer { status: 404, line: String::new(), body: body.into() };
        assert_eq!(answer("{\"error\":\"no such block\"}").reason(), "no such block");
        assert_eq!(answer("gone").reason(), "gone");
    }
}
