//! Requests to the server's HTTP API, one connection each: over its control socket, where who may connect
//! may do all; or over TCP, where only a token gives the right to more than looking.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// A status is far below it, and so is the largest block; more is no answer of Weir's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
const HEAD_BYTES_MAX: usize = 64 << 10;
/// What is sent or received at a time.
const PIECE_BYTES: usize = 256 << 10;
/// Nobody knows whether such an answer is whole.
const NO_LENGTH: &str = "the answer has no length that can be read: is it Weir?";

/// Where a server's HTTP API is.
///
/// ```
/// use client::http::Place;
///
/// let control: Place = "weir-data/control.sock".parse()?;
/// assert_eq!(control, Place::Socket("weir-data/control.sock".into()));
/// let tcp: Place = "127.0.0.1:8420".parse()?;
/// assert_eq!(tcp.with_token("secret").to_string(), "http://127.0.0.1:8420");
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// Its control socket.
    Socket(PathBuf),
    /// An address, and the token of who may do more than look.
    Tcp {
        /// Where.
        address: SocketAddr,
        /// What the server's token file holds.
        token: Option<String>,
    },
}

impl Place {
    /// Shows this token, over TCP.
    pub fn with_token(self, shown: &str) -> Self {
        match self {
            Self::Socket(path) => Self::Socket(path),
            Self::Tcp { address, .. } => Self::Tcp { address, token: Some(shown.trim().into()) },
        }
    }
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp { address, token: None }
    }
}

impl From<&Path> for Place {
    fn from(path: &Path) -> Self {
        Self::Socket(path.into())
    }
}

/// An address with a port, with or without `http://`; anything else is the path of a socket.
impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let address = text.trim_start_matches("http://").trim_end_matches('/');
        Ok(address.parse::<SocketAddr>().map_or_else(|_| Self::Socket(text.into()), Self::from))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Tcp { address, .. } => write!(f, "http://{address}"),
        }
    }
}

/// A connection.
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn dial(place: &Place, patience: Duration) -> io::Result<Self> {
        let patience = Some(patience);
        Ok(match place {
            Place::Socket(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)?;
                Self::Unix(stream)
            }
            Place::Tcp { address, .. } => {
                let stream = TcpStream::connect_timeout(address, CONNECT_PATIENCE)?;
                stream.set_read_timeout(patience)?;
                stream.set_write_timeout(patience)?;
                Self::Tcp(stream)
            }
        })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.write_all(bytes),
            Self::Tcp(stream) => stream.write_all(bytes),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Self::Unix(stream) => stream.read(into),
                Self::Tcp(stream) => stream.read(into),
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn receive(self, answer: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.take(ANSWER_BYTES_MAX).read_to_end(answer),
            Self::Tcp(stream) => stream.take(ANSWER_BYTES_MAX).read_to_end(answer),
        }
    }
}

/// What a server answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Answer {
    /// 200 and so on.
    pub status: u16,
    /// The first line, for people.
    pub line: String,
    /// All lines of the head.
    head: String,
    /// Bytes of the body, as the head announces them.
    announced: Option<usize>,
    /// What follows the head.
    pub body: Vec<u8>,
}

impl Answer {
    /// Whether the announced body is there; `None` if no length is announced that can be read.
    fn is_whole(&self) -> Option<bool> {
        self.announced.map(|announced| self.body.len() >= announced)
    }

    /// What the head says under a name.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

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
    place: &Place,
    (method, path): (&str, &str),
    head: &str,
    body: &[u8],
    patience: Duration,
) -> Result<Answer, String> {
    let failed = |error| failed(place, path, patience, error);
    let mut stream = Stream::dial(place, patience).map_err(failed)?;
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let request = request_head(place, (method, path), &format!("{length}{head}"));
    // A server that refuses early may take no more: its answer says why.
    let sent = stream.send(request.as_bytes()).and_then(|()| stream.send(body));
    receive(stream, place, path, patience, sent)
}

/// The same with a body of `length` bytes that comes from `body`, piece by piece.
pub fn upload(
    place: &Place,
    (method, path): (&str, &str),
    (body, length): (&mut dyn Read, u64),
    patience: Duration,
) -> Result<Answer, String> {
    let failed = |error| failed(place, path, patience, error);
    let mut stream = Stream::dial(place, patience).map_err(failed)?;
    let head = request_head(place, (method, path), &format!("Content-Length: {length}\r\n"));
    stream.send(head.as_bytes()).map_err(failed)?;
    let (mut left, mut piece) = (length, vec![0; PIECE_BYTES]);
    let mut sent = Ok(());
    while left > 0 && sent.is_ok() {
        let room = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = match body.read(&mut piece[..room]) {
            Ok(count) if count > 0 => count,
            Ok(_) => return Err(format!("{path}: what is sent ends {left} bytes too early")),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(format!("{path}: what is sent cannot be read: {error}")),
        };
        left -= count as u64;
        sent = stream.send(&piece[..count]);
    }
    receive(stream, place, path, patience, sent)
}

/// A GET whose body, if it is answered with 200, goes to `into` as it comes; another answer's is returned.
pub fn download(
    place: &Place,
    path: &str,
    into: &mut dyn Write,
    patience: Duration,
) -> Result<Answer, String> {
    let failed = |error| failed(place, path, patience, error);
    let mut stream = Stream::dial(place, patience).map_err(failed)?;
    let head = request_head(place, ("GET", path), "");
    stream.send(head.as_bytes()).map_err(failed)?;
    let mut begun = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    let mut answer = loop {
        let count = stream.read(&mut piece).map_err(failed)?;
        begun.extend_from_slice(&piece[..count]);
        if let Some(answer) = parse(&begun) {
            break answer;
        }
        if count == 0 || begun.len() > HEAD_BYTES_MAX {
            return Err(format!("{place}{path}: no HTTP: is it Weir?"));
        }
    };
    if answer.status != 200 {
        stream.receive(&mut answer.body).map_err(failed)?;
        return Ok(answer);
    }
    let Some(announced) = answer.announced else {
        return Err(format!("{place}{path}: {NO_LENGTH}"));
    };
    let mut left = announced as u64;
    let mut bytes = std::mem::take(&mut answer.body);
    loop {
        left = left.saturating_sub(bytes.len() as u64);
        into.write_all(&bytes).map_err(|error| format!("{path}: cannot be written: {error}"))?;
        if left == 0 {
            return Ok(answer);
        }
        let count = stream.read(&mut piece).map_err(failed)?;
        if count == 0 {
            return Err(format!(
                "{place}{path}: the answer was cut off, {left} bytes before its end: ask again"
            ));
        }
        bytes.clear();
        bytes.extend_from_slice(&piece[..count]);
    }
}

/// What is wrong, and the mend.
fn failed(place: &Place, path: &str, patience: Duration, error: io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "are you its user, or in its group?",
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            return format!(
                "{place}{path}: no answer within {} s: the server is stopped, or stuck",
                patience.as_secs()
            );
        }
        _ => "is `weir serve` running there, with HTTP?",
    };
    format!("{place}{path}: {error}: {hint}")
}

/// The head of a request: `head` are whole header lines, each with its end.
fn request_head(place: &Place, (method, path): (&str, &str), head: &str) -> String {
    let (host, token) = match place {
        Place::Socket(_) => ("weir".into(), None),
        Place::Tcp { address, token } => (address.to_string(), token.as_ref()),
    };
    let token = token.map_or(String::new(), |token| format!("Authorization: Bearer {token}\r\n"));
    format!("{method} {path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n{token}{head}\r\n")
}

/// The answer to what was sent.
fn receive(
    stream: Stream,
    place: &Place,
    path: &str,
    patience: Duration,
    sent: io::Result<()>,
) -> Result<Answer, String> {
    let failed = |error| failed(place, path, patience, error);
    let mut answer = Vec::new();
    let received = stream.receive(&mut answer);
    if answer.is_empty() {
        return Err(match sent.and(received.map(drop)) {
            Err(error) => failed(error),
            Ok(()) => format!("{place}{path}: no answer: is it Weir?"),
        });
    }
    // A server that takes no more may cut the connection behind its answer: what is whole counts.
    let answer = parse(&answer).ok_or_else(|| format!("{place}{path}: no HTTP: is it Weir?"))?;
    match (answer.is_whole(), received) {
        (Some(true), _) => Ok(answer),
        (_, Err(error)) => Err(failed(error)),
        (Some(false), Ok(_)) => Err(format!("{place}{path}: the answer was cut off: ask again")),
        (None, Ok(_)) if answer.field("content-length").is_some() => {
            Err(format!("{place}{path}: {NO_LENGTH}"))
        }
        // It goes to the end of the connection, as HTTP/1.0 allows; Weir's own answers tell their length.
        (None, Ok(_)) => Ok(answer),
    }
}

fn parse(answer: &[u8]) -> Option<Answer> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let (head, body) = answer.split_at(end);
    let head = String::from_utf8_lossy(head).into_owned();
    let line = head.lines().next()?.to_owned();
    let status = line.split_whitespace().nth(1)?.parse().ok()?;
    let answer = Answer { status, line, head, announced: None, body: body.to_vec() };
    let announced = answer.field("content-length").and_then(|bytes| bytes.parse().ok());
    Some(Answer { announced, ..answer })
}

/// The body of a GET that is answered with 200. `Err` says what to do.
pub fn get(place: &Place, path: &str) -> Result<String, String> {
    let answer = request(place, ("GET", path), "", &[], CONNECT_PATIENCE)?;
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    match answer.status {
        200 => Ok(body),
        _ => Err(format!("{place}{path}: {}: {body}: try again in a moment", answer.line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body_of_any_bytes() {
        let bytes = b"HTTP/1.0 206 Partial Content\r\na: b\r\n\r\n\xff\r\n\r\n".to_vec();
        let answer = parse(&bytes).unwrap();
        assert_eq!((answer.status, &answer.body[..]), (206, &b"\xff\r\n\r\n"[..]));
        assert_eq!(answer.is_whole(), None);
        let cut = parse(b"HTTP/1.0 200 OK\r\ncontent-LENGTH: 3\r\n\r\nab").unwrap();
        assert_eq!((cut.field("Content-Length"), cut.field("other")), (Some("3"), None));
        assert_eq!(cut.is_whole(), Some(false));
        let strange = parse(b"HTTP/1.0 200 OK\r\ncontent-length: many\r\n\r\nab").unwrap();
        assert_eq!(strange.is_whole(), None);
        for bad in [&b""[..], b"HTTP/1.0 200 OK\r\n", b"hello\r\n\r\n"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn a_refusal_tells_its_reason_with_or_without_json() {
        let answer =
            |body: &str| parse(format!("HTTP/1.0 404 Not Found\r\n\r\n{body}").as_bytes()).unwrap();
        assert_eq!(answer("{\"error\":\"no such block\"}").reason(), "no such block");
        assert_eq!(answer("gone").reason(), "gone");
    }
}
