//! A plain NBD client: fixed newstyle, EXPORT_NAME, simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub struct Client<S = UnixStream> {
    pub stream: S,
    pub size: u64,
    pub flags: u16,
    cookie: u64,
}

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const ZEROES: u16 = 6;

impl Client<UnixStream> {
    pub fn connect(socket: &Path, export: &str) -> std::io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20)))?;
        Self::negotiate(stream, export)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn negotiate(mut stream: S, export: &str) -> std::io::Result<Self> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3u32.to_be_bytes())?;
        Self::choose(stream, export)
    }

    /// Asks for the export, after the flags.
    pub fn choose(mut stream: S, export: &str) -> std::io::Result<Self> {
        let mut option = Vec::from(b"IHAVEOPT");
        option.extend(1u32.to_be_bytes());
        option.extend((export.len() as u32).to_be_bytes());
        option.extend(export.as_bytes());
        stream.write_all(&option)?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        let size = u64::from_be_bytes(answer[..8].try_into().unwrap());
        let flags = u16::from_be_bytes(answer[8..].try_into().unwrap());
        Ok(Self { stream, size, flags, cookie: 0 })
    }

    /// Sends a request without waiting for its reply.
    pub fn send(&mut self, command: u16, offset: u64, len: u32) -> std::io::Result<u64> {
        self.cookie += 1;
        let mut header = Vec::with_capacity(28);
        header.extend(0x2560_9513u32.to_be_bytes());
        header.extend(0u16.to_be_bytes());
        header.extend(command.to_be_bytes());
        header.extend(self.cookie.to_be_bytes());
        header.extend(offset.to_be_bytes());
        header.extend(len.to_be_bytes());
        self.stream.write_all(&header)?;
        Ok(self.cookie)
    }

    /// The next reply: cookie and error.
    pub fn reply(&mut self) -> std::io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        Ok((u64::from_be_bytes(reply[8..].try_into().unwrap()), error))
    }

    fn done(&mut self, cookie: u64) -> Result<(), u32> {
        let (answered, error) = self.reply().expect("a reply");
        assert_eq!(answered, cookie);
        if error == 0 { Ok(()) } else { Err(error) }
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
        let cookie = self.send(READ, offset, len as u32).expect("sent");
        self.done(cookie)?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the data");
        Ok(bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), u32> {
        let cookie = self.send(WRITE, offset, bytes.len() as u32).expect("sent");
        self.stream.write_all(bytes).expect("sent");
        self.done(cookie)
    }

    /// Writes to a server that may be gone; `Ok` is the error of the reply, 0 for none.
    pub fn try_write(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<u32> {
        self.send(WRITE, offset, bytes.len() as u32)?;
        self.stream.write_all(bytes)?;
        Ok(self.reply()?.1)
    }

    /// The same of any other request without data.
    pub fn try_simple(&mut self, command: u16, offset: u64, len: u32) -> std::io::Result<u32> {
        self.send(command, offset, len)?;
        Ok(self.reply()?.1)
    }

    pub fn simple(&mut self, command: u16, offset: u64, len: u32) -> Result<(), u32> {
        let cookie = self.send(command, offset, len).expect("sent");
        self.done(cookie)
    }

    pub fn flush(&mut self) -> Result<(), u32> {
        self.simple(FLUSH, 0, 0)
    }
}
