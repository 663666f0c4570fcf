//! The volume that a device shows: where its server is, and a thread that goes on asking for it.

use client::wire::{self, Export};
use client::{Address, Error, Stream};
use std::time::Duration;

/// How long a server may take to say what a volume is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait before a server that does not answer is tried again.
const AGAIN: Duration = Duration::from_millis(300);

/// Which volume of which server.
#[derive(Clone, Debug)]
pub struct Target {
    address: Address,
    volume: String,
}

impl Target {
    /// The one that a URI names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(uri: &str) -> Result<Self, String> {
        let (address, volume) = client::parse(uri)?;
        Ok(Self { address, volume })
    }

    fn greet(&self) -> Result<Stream, Error> {
        let stream = Stream::dial(&self.address)?;
        stream.set_patience(Some(HANDSHAKE))?;
        Ok(stream)
    }

    /// Connects to it.
    ///
    /// # Errors
    /// Nobody answers, or why the server refuses.
    pub fn connect(&self) -> Result<(Stream, Export), Error> {
        let mut stream = self.greet()?;
        let export = wire::choose(&mut stream, &self.volume)?;
        stream.set_patience(None)?;
        Ok((stream, export))
    }

    /// Asks what it is.
    ///
    /// # Errors
    /// As for [`Target::connect`].
    pub fn look(&self) -> Result<Export, Error> {
        wire::look(&mut self.greet()?, &self.volume)
    }

    /// Connects to it, however long that takes; `None` if the server has no such volume any more, or when `gives_up`
    /// says so.
    pub fn connect_again(&self, gives_up: &dyn Fn() -> bool) -> Option<(Stream, Export)> {
        while !gives_up() {
            match self.connect() {
                Ok(found) => return Some(found),
                Err(Error::Refused { code: wire::REP_ERR_UNKNOWN, .. }) => return None,
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
        None
    }
}
