//! Connections to units for reads alone: many reads are asked with one send, and answered in whatever order the unit has
//! them. A reply here tells no reason; who wants it asks once more.

use super::places::At;
use client::wire::{command, header, negotiate_simple, simple_reply};
use client::{Address, Error, Stream};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::time::Duration;

/// What is received at once, if there is as much: the heads and data of many short reads.
const BUFFER_BYTES: usize = 128 << 10;
/// Reads that are asked of a unit at a time.
pub const READS_MAX: usize = 64;
/// Bytes of one read: a server takes 32 MiB, the granules around them included.
pub const READ_BYTES_MAX: usize = 16 << 20;

/// Whole granules of a unit, and where in them what is wanted begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span {
    offset: u64,
    length: u32,
    skip: u32,
}

impl Span {
    /// Around `count` bytes at `at`.
    pub fn around(at: u64, count: usize, granule: u64) -> Self {
        assert!(count <= READ_BYTES_MAX, "cut before");
        let offset = at - at % granule;
        let end = (at + count as u64).next_multiple_of(granule);
        Self { offset, length: (end - offset) as u32, skip: (at - offset) as u32 }
    }

    /// First byte, and how many.
    pub fn range(self) -> (u64, usize) {
        (self.offset, self.length as usize)
    }
}

/// A read of a unit.
pub struct Asked<'a> {
    /// The block that it is of.
    pub id: u128,
    /// Where that lies.
    pub at: At,
    /// Where on the unit.
    pub span: Span,
    /// What is filled.
    pub into: &'a mut [u8],
    /// Whose it is.
    pub index: usize,
    /// What the unit answered: 0, or NBD's number of an error.
    pub answer: Option<u32>,
}

/// See the head of this file.
pub struct Flight {
    stream: BufReader<Stream>,
    unit: u32,
    cookie: u64,
    requests: Vec<u8>,
    patience: Duration,
}

impl Flight {
    /// Connects to a unit, whose answers may take so long.
    pub fn open(address: &Address, unit: u32, patience: Duration) -> io::Result<Self> {
        let mut stream = Stream::dial(address)?;
        stream.set_patience(Some(patience))?;
        negotiate_simple(&mut stream, &format!("unit/{unit}"))?;
        let stream = BufReader::with_capacity(BUFFER_BYTES, stream);
        Ok(Self { stream, unit, cookie: 0, requests: Vec::new(), patience })
    }

    /// From now on answers may take so long.
    pub fn set_patience(&mut self, patience: Duration) -> io::Result<()> {
        if self.patience != patience {
            self.stream.get_ref().set_patience(Some(patience))?;
            self.patience = patience;
        }
        Ok(())
    }

    /// Its unit.
    pub fn unit(&self) -> u32 {
        self.unit
    }

    /// Asks for all of them, at most [`READS_MAX`].
    pub fn send(&mut self, reads: &[Asked<'_>]) -> io::Result<()> {
        assert!(reads.len() <= READS_MAX, "so that they fit the socket while nobody reads answers");
        self.requests.clear();
        for Asked { span, .. } in reads {
            self.cookie += 1;
            let head = header(command::READ, 0, self.cookie, span.offset, span.length);
            self.requests.extend(head);
        }
        self.stream.get_mut().write_all(&self.requests)
    }

    /// Waits for the answers to those that were sent last.
    pub fn receive(&mut self, reads: &mut [Asked<'_>]) -> Result<(), Error> {
        reads.iter_mut().for_each(|read| read.answer = None);
        let first = self.cookie + 1 - reads.len() as u64;
        for _ in 0..reads.len() {
            let mut head = [0; 16];
            self.stream.read_exact(&mut head)?;
            let (code, cookie) = simple_reply(&head).map_err(Error::Protocol)?;
            let index = cookie.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            let read = index.and_then(|index| reads.get_mut(index));
            let read = read.filter(|read| read.answer.is_none()).ok_or_else(|| {
                Error::Protocol(format!("the server answered read {cookie}, which was not asked"))
            })?;
            if code == 0 {
                self.fill(read)?;
            }
            read.answer = Some(code);
        }
        Ok(())
    }

    fn fill(&mut self, read: &mut Asked<'_>) -> io::Result<()> {
        let (skip, length) = (read.span.skip as usize, read.span.length as usize);
        self.pass(skip)?;
        self.stream.read_exact(read.into)?;
        self.pass(length - skip - read.into.len())
    }

    /// Leaves out bytes that nobody wants.
    fn pass(&mut self, mut count: usize) -> io::Result<()> {
        while count > 0 {
            let there = self.stream.fill_buf()?.len();
            if there == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let now = there.min(count);
            self.stream.consume(now);
            count -= now;
        }
        Ok(())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // A server that has gone already needs no farewell.
        self.stream.get_mut().write_all(&header(command::DISCONNECT, 0, 0, 0, 0)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    #[test]
    fn a_span_has_the_whole_granules_around_what_is_wanted() {
        for (at, count, granule, range, skip) in [
            (0, 4096, 4096, (0, 4096), 0),
            (1, 1, 4096, (0, 4096), 1),
            (4095, 2, 4096, (0, 8192), 4095),
            (8192, 8192, 8192, (8192, 8192), 0),
            (8191, 8194, 8192, (0, 24_576), 8191),
        ] {
            let span = Span::around(at, count, granule);
            assert_eq!((span.range(), span.skip), (range, skip), "{at} {count} {granule}");
        }
    }

    fn asked(into: &mut [u8], at: u64) -> Asked<'_> {
        let span = Span::around(at, into.len(), 16);
        let place = At { unit: 3, raw_block: 0 };
        Asked { id: 1, at: place, span, into, index: 0, answer: None }
    }

    fn simple(code: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
        let head = [&0x6744_6698_u32.to_be_bytes()[..], &code.to_be_bytes(), &cookie.to_be_bytes()];
        [head.concat().as_slice(), data].concat()
    }

    /// A connection to a server that answers three reads so.
    fn served(name: &str, answers: Vec<u8>) -> (Flight, thread::JoinHandle<Vec<u8>>) {
        let path = std::env::temp_dir().join(format!("weir-flight-{}-{name}", std::process::id()));
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).unwrap();
        let serve = move || {
            let (mut stream, _): (UnixStream, _) = listener.accept().unwrap();
            let greeting = [&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat();
            stream.write_all(&greeting).unwrap();
            // Flags, and the option with the name of an export.
            let mut option = [0; 4 + 16 + 6];
            stream.read_exact(&mut option).unwrap();
            stream
                .write_all(&[&1024_u64.to_be_bytes()[..], &1_u16.to_be_bytes()].concat())
                .unwrap();
            let mut requests = vec![0; 3 * 28];
            stream.read_exact(&mut requests).unwrap();
            stream.write_all(&answers).unwrap();
            requests
        };
        let server = thread::spawn(serve);
        let address = Address::Unix(path.to_str().unwrap().into());
        let flight = Flight::open(&address, 3, Duration::from_secs(10)).unwrap();
        std::fs::remove_file(&path).unwrap();
        (flight, server)
    }

    #[test]
    fn answers_come_in_any_order_and_one_that_failed_says_so() {
        let bytes = |from: u8| (from..from + 32).collect::<Vec<u8>>();
        let answers =
            [simple(0, 3, &bytes(100)), simple(5, 1, &[]), simple(0, 2, &bytes(0)[..16])].concat();
        let (mut flight, server) = served("order", answers);
        let (mut one, mut two, mut three) = ([0; 16], [0; 3], [0; 10]);
        let mut reads = [asked(&mut one, 0), asked(&mut two, 17), asked(&mut three, 40)];
        flight.send(&reads).unwrap();
        flight.receive(&mut reads).unwrap();
        assert_eq!(reads.each_ref().map(|read| read.answer), [Some(5), Some(0), Some(0)]);
        assert_eq!((two, three[0], three[9]), ([1, 2, 3], 108, 117));
        let requests = server.join().unwrap();
        assert_eq!(requests[..28], header(command::READ, 0, 1, 0, 16));
        assert_eq!(requests[56..], header(command::READ, 0, 3, 32, 32));
    }

    #[test]
    fn what_was_not_asked_and_what_is_cut_off_is_an_error() {
        for (name, answers, told) in [
            ("twice", [simple(0, 1, &[0; 16]), simple(0, 1, &[0; 16])].concat(), "not asked"),
            ("later", simple(0, 4, &[]), "not asked"),
            ("zero", simple(0, 0, &[]), "not asked"),
            ("letter", vec![b'a'; 16], "where a reply was due"),
            ("cut", simple(0, 1, &[0; 7]), "connection broke"),
        ] {
            let (mut flight, server) = served(name, answers);
            let (mut one, mut two, mut three) = ([0; 16], [0; 3], [0; 10]);
            let mut reads = [asked(&mut one, 0), asked(&mut two, 17), asked(&mut three, 40)];
            flight.send(&reads).unwrap();
            server.join().unwrap();
            let error = flight.receive(&mut reads).unwrap_err().to_string();
            assert!(error.contains(told), "{name}: {error}");
        }
    }
}
