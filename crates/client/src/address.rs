//! Where a server is, and the stream to it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const PORT_DEFAULT: u16 = 10809;

/// Where a server is: `nbd+unix:///EXPORT?socket=PATH` or `nbd://HOST[:PORT]/EXPORT`.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    /// A socket in the file system.
    Unix(String),
    /// A host and a port.
    Tcp(String, u16),
}

/// The address and the export that a URI names; `Err` says what is wrong with it, and shows one that
/// works.
pub fn parse(uri: &str) -> Result<(Address, String), String> {
    let wrong = |why: &str| {
        Err(format!(
            "{uri}: {why}: for example nbd+unix:///default?socket=weir-data/nbd.sock or \
             nbd://127.0.0.1:10809/default"
        ))
    };
    if let Some(rest) = uri.strip_prefix("nbd+unix:///") {
        let Some((export, query)) = rest.split_once('?') else {
            return wrong("has no ?socket=PATH");
        };
        let mut pairs = query.split('&');
        return match pairs.find_map(|pair| pair.strip_prefix("socket=")) {
            Some(path) if !path.is_empty() => Ok((Address::Unix(path.into()), export.into())),
            _ => wrong("has no ?socket=PATH"),
        };
    }
    let Some(rest) = uri.strip_prefix("nbd://") else {
        return wrong("only nbd+unix:// and nbd:// are spoken");
    };
    let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
    let address = match host.rsplit_once(':') {
        // A colon within brackets belongs to the address.
        Some((host, port)) if !port.contains(']') => match port.parse() {
            Ok(port) => Address::Tcp(host.into(), port),
            Err(_) => return wrong("the port is not a number"),
        },
        _ => Address::Tcp(host.into(), PORT_DEFAULT),
    };
    match &address {
        Address::Tcp(host, _) if host.is_empty() => wrong("has no host"),
        _ => Ok((address, export.into())),
    }
}

/// A connection to an [`Address`].
pub enum Stream {
    /// Over a socket in the file system.
    Unix(UnixStream),
    /// Over TCP.
    Tcp(TcpStream),
}

impl Stream {
    /// Connects.
    pub fn dial(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Address::Tcp(host, port) => {
                let stream = TcpStream::connect((host.trim_matches(['[', ']']), *port))?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        })
    }

    /// The same connection, for another thread.
    pub fn again(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }

    /// How long a read may take.
    pub fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(patience),
            Self::Tcp(stream) => stream.set_read_timeout(patience),
        }
    }

    /// The socket.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }

    /// Ends the connection for the thread that reads from it too.
    pub fn close(&self) {
        match self {
            Self::Unix(stream) => stream.shutdown(std::net::Shutdown::Both).ok(),
            Self::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both).ok(),
        };
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(into),
            Self::Tcp(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, parse};

    #[test]
    fn addresses_are_read_and_wrong_ones_told() {
        let unix = Address::Unix("a/nbd.sock".into());
        assert_eq!(parse("nbd+unix:///x?socket=a/nbd.sock"), Ok((unix, "x".into())));
        let tcp = |host: &str, port| Address::Tcp(host.into(), port);
        assert_eq!(parse("nbd://h/x"), Ok((tcp("h", 10809), "x".into())));
        assert_eq!(parse("nbd://[::1]:99"), Ok((tcp("[::1]", 99), String::new())));
        assert_eq!(parse("nbd://h/unit/7"), Ok((tcp("h", 10809), "unit/7".into())));
        for wrong in ["nbd+unix:///x", "nbds://h/x", "nbd:///x", "nbd://h:p/x", "nbd+unix:///x?s=1"]
        {
            assert!(parse(wrong).unwrap_err().contains("for example"), "{wrong}");
        }
    }
}
