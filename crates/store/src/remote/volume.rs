//! A volume over NBD, to which many writes may be on their way.

use super::PATIENCE;
use crate::api::{BLOCK_BYTES, Error, Volume};
use client::Stream;
use client::wire::{Connection, command};
use std::ops::Range;

/// Writes that are on their way at a time: enough that the server never waits for the next one.
const WRITES_MAX: usize = 16;

/// See the head of this file.
pub struct RemoteVolume {
    connection: Connection,
    uri: String,
    /// Writes without an answer: their numbers, and which blocks they are of.
    begun: Vec<(u64, Range<u64>)>,
    /// Why one of those failed, or one before them: whoever begins or ends writes later is told.
    failed: Option<Error>,
}

impl RemoteVolume {
    /// Connects.
    pub fn open(uri: &str) -> Result<Self, Error> {
        let (address, export) = client::parse(uri).map_err(Error::Usage)?;
        let failed = |error: client::Error| Error::Io(format!("the volume {uri}: {error}"));
        let stream = Stream::dial(&address).map_err(|error| failed(error.into()))?;
        stream.set_patience(Some(PATIENCE)).map_err(|error| failed(error.into()))?;
        let connection = Connection::open(stream, &export).map_err(failed)?;
        Ok(Self { connection, uri: uri.into(), begun: Vec::new(), failed: None })
    }

    fn told(&self, error: &client::Error) -> Error {
        Error::Io(format!("the volume {}: {error}", self.uri))
    }

    fn ask(&mut self, command: u16, block: u64, data: &[u8], into: &mut [u8]) -> Result<(), Error> {
        let length = (data.len() + into.len()) as u32;
        let asked =
            self.connection.request(command, block * BLOCK_BYTES as u64, length, data, into);
        asked.map_err(|error| self.told(&error))
    }

    /// Waits for one answer.
    fn wait_for_one(&mut self) {
        let failed = match self.connection.answer() {
            Ok((number, answer)) => {
                self.begun.retain(|(of, _)| *of != number);
                answer.err()
            }
            Err(error) => {
                self.begun.clear();
                Some(error)
            }
        };
        if let Some(error) = failed {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &client::Error) -> Error {
        let error = self.told(error);
        self.failed.get_or_insert(error).clone()
    }

    fn wait_for_all(&mut self) {
        while !self.begun.is_empty() {
            self.wait_for_one();
        }
    }
}

impl Volume for RemoteVolume {
    fn blocks(&self) -> u64 {
        self.connection.size / BLOCK_BYTES as u64
    }

    fn read(&mut self, block: u64, into: &mut [u8]) -> Result<(), Error> {
        // A write that failed is told to whoever ends them.
        self.wait_for_all();
        self.ask(command::READ, block, &[], into)
    }

    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        self.wait_for_all();
        self.ask(command::WRITE, block, bytes, &mut [])
    }

    fn begin_write(&mut self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        let blocks = block..block + (bytes.len() / BLOCK_BYTES) as u64;
        // The server has them in any order, so what is written again waits for what is there to be written first.
        let meets =
            |(_, other): &(u64, Range<u64>)| other.start < blocks.end && blocks.start < other.end;
        while self.begun.len() >= WRITES_MAX || self.begun.iter().any(meets) {
            self.wait_for_one();
        }
        self.failed.clone().map_or(Ok(()), Err)?;
        let begun = self.connection.begin_write(block * BLOCK_BYTES as u64, bytes);
        let number = begun.map_err(|error| self.fail(&error))?;
        self.begun.push((number, blocks));
        Ok(())
    }

    fn end_writes(&mut self) -> Result<(), Error> {
        self.wait_for_all();
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn trim(&mut self, block: u64, blocks: u64) -> Result<(), Error> {
        self.wait_for_all();
        let (offset, length) = (block * BLOCK_BYTES as u64, (blocks * BLOCK_BYTES as u64) as u32);
        let trimmed = self.connection.request(command::TRIM, offset, length, &[], &mut []);
        trimmed.map_err(|error| self.told(&error))
    }

    fn flush(&mut self) -> Result<(), Error> {
        // A server makes durable what it has answered.
        self.end_writes()?;
        self.ask(command::FLUSH, 0, &[], &mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    const HEAD: usize = 28;
    const BLOCK: [u8; BLOCK_BYTES] = [7; BLOCK_BYTES];

    /// The server's side of a connection.
    struct Server(UnixStream);

    impl Server {
        fn greets(mut stream: UnixStream) -> Self {
            let greeting = [&b"NBDMAGICIHAVEOPT"[..], &3_u16.to_be_bytes()].concat();
            stream.write_all(&greeting).unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            let mut server = Self(stream);
            assert_eq!(server.option(), 8, "structured replies");
            server.reply(8, 1, &[]);
            assert_eq!(server.option(), 7, "the export");
            let info = [&[0; 2][..], &(64 * BLOCK_BYTES as u64).to_be_bytes(), &[0, 1]].concat();
            server.reply(7, 3, &info);
            server.reply(7, 1, &[]);
            server
        }

        fn option(&mut self) -> u8 {
            let mut head = [0; 16];
            self.0.read_exact(&mut head).unwrap();
            let mut data = vec![0; usize::from(head[15])];
            self.0.read_exact(&mut data).unwrap();
            head[11]
        }

        fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
            let head = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
            let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
            self.0.write_all(&[&magic[..], &head, data].concat()).unwrap();
        }

        /// Its command, its number, and its first block.
        fn request(&mut self) -> (u8, u8, u8) {
            let mut head = [0; HEAD];
            self.0.read_exact(&mut head).unwrap();
            if head[7] == command::WRITE as u8 {
                self.0.read_exact(&mut [0; BLOCK_BYTES]).unwrap();
            }
            (head[7], head[15], head[22] >> 4)
        }

        fn answers(&mut self, number: u8, code: u8) {
            let magic = 0x6744_6698_u32.to_be_bytes();
            let rest = [0, 0, 0, code, 0, 0, 0, 0, 0, 0, 0, number];
            self.0.write_all(&[&magic[..], &rest].concat()).unwrap();
        }
    }

    /// A volume of a server that does so.
    fn served(
        name: &str,
        serves: impl FnOnce(&mut Server) + Send + 'static,
    ) -> (RemoteVolume, thread::JoinHandle<()>) {
        let path = std::env::temp_dir().join(format!("weir-volume-{}-{name}", std::process::id()));
        std::fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).unwrap();
        let serve = move || serves(&mut Server::greets(listener.accept().unwrap().0));
        let server = thread::spawn(serve);
        let volume = RemoteVolume::open(&format!("nbd+unix:///?socket={}", path.display()));
        std::fs::remove_file(&path).unwrap();
        (volume.unwrap(), server)
    }

    #[test]
    fn writes_are_under_way_side_by_side_but_for_those_that_meet_and_a_flush_comes_behind_them() {
        let (mut volume, server) = served("order", |server| {
            let asked = [server.request(), server.request(), server.request()];
            assert_eq!(asked, [(1, 1, 0), (1, 2, 2), (1, 3, 1)], "none was answered before");
            server.0.set_nonblocking(true).unwrap();
            assert!(server.0.read(&mut [0; 1]).is_err(), "block 2 is written a second time");
            server.0.set_nonblocking(false).unwrap();
            [3, 1, 2].iter().for_each(|&number| server.answers(number, 0));
            assert_eq!(server.request(), (1, 4, 2));
            server.answers(4, 0);
            assert_eq!(server.request(), (3, 5, 0), "the flush");
            server.answers(5, 0);
        });
        for block in [0, 2, 1, 2] {
            volume.begin_write(block, &BLOCK).unwrap();
        }
        assert_eq!(volume.flush(), Ok(()));
        server.join().unwrap();
    }

    #[test]
    fn a_write_that_failed_is_told_to_all_that_comes_behind_it_but_to_reads() {
        let (mut volume, server) = served("refused", |server| {
            let asked = [server.request(), server.request()];
            assert_eq!(asked, [(1, 1, 0), (1, 2, 1)]);
            server.answers(1, 5);
            server.answers(2, 0);
            assert_eq!(server.request(), (0, 3, 0), "a read");
            server.answers(3, 0);
            server.0.write_all(&BLOCK).unwrap();
        });
        volume.begin_write(0, &BLOCK).unwrap();
        volume.begin_write(1, &BLOCK).unwrap();
        let mut block = [0; BLOCK_BYTES];
        assert_eq!((volume.read(0, &mut block), block), (Ok(()), BLOCK));
        let failed = volume.end_writes();
        assert!(failed.is_err());
        assert_eq!(volume.begin_write(2, &BLOCK), failed);
        assert_eq!(volume.flush(), failed, "and nothing is asked of the server");
        server.join().unwrap();
    }

    #[test]
    fn a_server_that_ends_leaves_no_write_that_was_begun_without_an_error() {
        let (mut volume, server) = served("ended", |server| {
            server.request();
            server.answers(1, 0);
        });
        volume.begin_write(0, &BLOCK).unwrap();
        assert_eq!(volume.end_writes(), Ok(()));
        server.join().unwrap();
        // The kernel may still take it.
        volume.begin_write(0, &BLOCK).ok();
        assert!(volume.begin_write(0, &BLOCK).is_err());
        assert!(volume.read(0, &mut [0; BLOCK_BYTES]).is_err() && volume.flush().is_err());
    }
}
