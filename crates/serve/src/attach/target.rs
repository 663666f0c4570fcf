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
    /// Which volume of which device it is, once that is known: a name can become another volume's, and a server that comes
    /// back can have another device.
    pub identity: String,
}

impl Target {
    /// The one that a URI names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(uri: &str) -> Result<Self, String> {
        let (address, volume) = client::parse(uri)?;
        Ok(Self { address, volume, identity: String::new() })
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
        let export = self.own(wire::choose(&mut stream, &self.volume)?)?;
        stream.set_patience(None)?;
        Ok((stream, export))
    }

    /// Asks what it is.
    ///
    /// # Errors
    /// As for [`Target::connect`].
    pub fn look(&self) -> Result<Export, Error> {
        self.own(wire::look(&mut self.greet()?, &self.volume)?)
    }

    /// Refuses an export that is another volume than the one that is attached.
    fn own(&self, export: Export) -> Result<Export, Error> {
        let device = |text: &str| {
            text.split(' ').find(|word| word.starts_with("device=")).map(str::to_owned)
        };
        let (ours, theirs) = (&self.identity, &export.description);
        if ours.is_empty() || ours == theirs {
            return Ok(export);
        }
        if device(ours) == device(theirs) {
            let message = format!("{} is another volume now", self.volume);
            return Err(Error::Refused { code: wire::REP_ERR_UNKNOWN, message });
        }
        Err(Error::Protocol(format!(
            "another device is served there ({theirs}) than the one that was attached ({ours}): start its own server \
             there, or detach"
        )))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_another_volumes_and_a_server_of_another_device_are_not_taken_for_it() {
        let mut target = Target::parse("nbd://h/a").unwrap();
        let export = |text: &str| Export { description: text.into(), ..Export::default() };
        assert!(target.own(export("volume=1 device=7")).is_ok(), "nothing is known yet");
        target.identity = "volume=1 device=7".into();
        assert!(target.own(export("volume=1 device=7")).is_ok());
        let other = target.own(export("volume=2 device=7"));
        assert!(matches!(other, Err(Error::Refused { code: wire::REP_ERR_UNKNOWN, .. })));
        for elsewhere in ["volume=1 device=8", ""] {
            let told = target.own(export(elsewhere)).unwrap_err().to_string();
            assert!(told.contains("another device"), "{told}");
        }
    }
}
