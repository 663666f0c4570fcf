//! What a device shows, a volume or a raw unit: where its server is, and how it is connected to.

use crate::nbd::constants::{SEND_FLUSH, SEND_FUA, SEND_READ_ONLY};
use client::nvme::{self, Controller, Host};
use client::wire::{self, Export};
use client::{Address, Error, Stream};
use std::fs;
use std::io;
use std::time::Duration;

/// How long a server may take to say what a volume is.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long to wait before a server that does not answer is tried again.
const AGAIN: Duration = Duration::from_millis(300);
/// Commands on a queue of NVMe at a time: as many as a queue of a disk has requests, and never more.
pub const COMMANDS: u16 = 64;

/// Which volume of which server, or which raw unit.
#[derive(Clone, Debug)]
pub struct Target {
    address: Address,
    door: Door,
    /// Which volume of which device it is, once that is known: a name can become another volume's, and a server that comes
    /// back can have another device.
    pub identity: String,
}

/// By what its server is asked.
#[derive(Clone, Debug)]
enum Door {
    /// NBD, for a volume.
    Nbd(String),
    /// NVMe over TCP, for a unit with zones.
    Nvme(u32, Host),
}

/// A connection to a target. Of NVMe it is a queue for I/O, of a controller that is there as long as its admin queue.
pub struct Connection {
    /// On which requests go.
    pub stream: Stream,
    _admin: Option<Stream>,
}

/// What a target is, as its server tells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Shown {
    /// Its size, what can be done with it (flags of NBD), and which it is.
    pub export: Export,
    /// Its zones, if it is a raw unit.
    pub zones: Option<Zones>,
}

/// The zones of a raw unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Zones {
    /// The number of its namespace.
    pub namespace: u32,
    /// A block has this power of two of bytes.
    pub block_shift: u8,
    /// Blocks from the start of one to that of the next, a power of two.
    pub size: u64,
    /// That may be open at a time; 0: any number.
    pub open_max: u32,
    /// That may be active at a time; 0: any number.
    pub active_max: u32,
}

impl Target {
    /// The one that a URI names.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(uri: &str) -> Result<Self, String> {
        let (address, door) = if uri.starts_with("nvme:") {
            let (address, unit) = nvme::parse(uri)?;
            (address, Door::Nvme(unit, host()))
        } else {
            let (address, volume) = client::parse(uri)?;
            (address, Door::Nbd(volume))
        };
        Ok(Self { address, door, identity: String::new() })
    }

    /// It is a raw unit, of which only its zones can be written.
    pub fn is_zoned(&self) -> bool {
        matches!(self.door, Door::Nvme(..))
    }

    fn greet(&self) -> io::Result<Stream> {
        let stream = Stream::dial(&self.address)?;
        stream.set_patience(Some(HANDSHAKE))?;
        Ok(stream)
    }

    /// Connects to it.
    ///
    /// # Errors
    /// Nobody answers, or why the server refuses.
    pub fn connect(&self) -> Result<(Connection, Shown), Error> {
        let (stream, admin, shown) = match &self.door {
            Door::Nbd(volume) => {
                let mut stream = self.greet()?;
                let export = wire::choose(&mut stream, volume)?;
                (stream, None, Shown { export, zones: None })
            }
            Door::Nvme(unit, host) => {
                let (controller, nqn, shown) = self.controller(*unit, host)?;
                let stream = controller.queue(&|| self.greet(), (host, &nqn), COMMANDS)?;
                (stream, Some(controller.into_stream()), shown)
            }
        };
        let shown = self.own(shown)?;
        stream.set_patience(None)?;
        Ok((Connection { stream, _admin: admin }, shown))
    }

    /// Asks what it is.
    ///
    /// # Errors
    /// As for [`Target::connect`].
    pub fn look(&self) -> Result<Shown, Error> {
        self.own(match &self.door {
            Door::Nbd(volume) => {
                let mut stream = self.greet()?;
                Shown { export: wire::look(&mut stream, volume)?, zones: None }
            }
            Door::Nvme(unit, host) => self.controller(*unit, host)?.2,
        })
    }

    /// A controller of its server, and what that says of a unit.
    fn controller(&self, unit: u32, host: &Host) -> Result<(Controller, String, Shown), Error> {
        let (mut controller, nqn) = Controller::discover(&|| self.greet(), host)?;
        // A server of raw units has a namespace for each, in their order.
        let number = unit + 1;
        let namespace = controller.namespace(number).map_err(|error| match error {
            Error::Refused { code, message } if code == u32::from(nvme::NAMESPACE) => {
                Error::Refused { code: wire::REP_ERR_UNKNOWN, message }
            }
            error => error,
        })?;
        let shown = zoned(unit, &namespace).map_err(Error::Protocol)?;
        Ok((controller, nqn, shown))
    }

    /// Refuses an export that is another volume than the one that is attached.
    fn own(&self, shown: Shown) -> Result<Shown, Error> {
        let device = |text: &str| {
            text.split(' ').find(|word| word.starts_with("device=")).map(str::to_owned)
        };
        let (ours, theirs) = (&self.identity, &shown.export.description);
        if ours.is_empty() || ours == theirs {
            return Ok(shown);
        }
        if device(ours) == device(theirs) {
            let volume = if let Door::Nbd(volume) = &self.door { volume } else { "it" };
            let message = format!("{volume} is another volume now");
            return Err(Error::Refused { code: wire::REP_ERR_UNKNOWN, message });
        }
        Err(Error::Protocol(format!(
            "another device is served there ({theirs}) than the one that was attached ({ours}): start its own server \
             there, or detach"
        )))
    }

    /// Connects to it, however long that takes; `None` if the server has no such volume any more, or when `gives_up`
    /// says so.
    pub fn connect_again(&self, gives_up: &dyn Fn() -> bool) -> Option<Connection> {
        while !gives_up() {
            match self.connect() {
                Ok((connection, _)) => return Some(connection),
                Err(Error::Refused { code: wire::REP_ERR_UNKNOWN, .. }) => return None,
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
        None
    }
}

/// What a namespace of a unit is as a disk.
fn zoned(unit: u32, namespace: &nvme::Namespace) -> Result<Shown, String> {
    let Some(zones) = namespace.zones else {
        return Err(format!(
            "the server there has no raw units with zones: what would be unit/{unit} is a block volume: attach that by its name \
             (`weir attach NAME`) or by its NBD address"
        ));
    };
    let (size, shift) = (zones.size, namespace.block_shift);
    // What follows counts in shifts, and has a zone's bytes in a word.
    let countable = size.is_power_of_two() && (9..=20).contains(&shift) && size <= 1 << 40 >> shift;
    if !countable || !namespace.blocks.is_multiple_of(size) || namespace.blocks >= 1 << 63 >> shift
    {
        return Err(format!("unit/{unit} has zones that Linux cannot count: {namespace:?}"));
    }
    let nbd = SEND_FLUSH | SEND_FUA | if namespace.read_only { SEND_READ_ONLY } else { 0 };
    let description = format!("volume={unit} device={:032x}", namespace.uuid);
    let export = Export { size: namespace.blocks << shift, flags: nbd, description };
    Ok(Shown {
        export,
        zones: Some(Zones {
            namespace: unit + 1,
            block_shift: shift,
            size,
            open_max: zones.open_max,
            active_max: zones.active_max,
        }),
    })
}

/// This machine as a host of NVMe: as its other tools say, if it has said anything to them, or by its own number.
fn host() -> Host {
    let said = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let number = |text: &str| u128::from_str_radix(&text.replace('-', ""), 16).ok();
    let machine = said("/etc/machine-id").and_then(|text| number(&text)).unwrap_or(1);
    let id = said("/etc/nvme/hostid").and_then(|text| number(&text)).unwrap_or(machine);
    let nqn = said("/etc/nvme/hostnqn").filter(|text| text.starts_with("nqn."));
    let hex = format!("{machine:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    let nqn = nqn.unwrap_or_else(|| format!("nqn.2014-08.org.nvmexpress:uuid:{parts}"));
    Host { nqn, id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_another_volumes_and_a_server_of_another_device_are_not_taken_for_it() {
        let mut target = Target::parse("nbd://h/a").unwrap();
        let export = |text: &str| Shown {
            export: Export { description: text.into(), ..Export::default() },
            zones: None,
        };
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

    #[test]
    fn a_unit_with_zones_is_a_disk_and_a_block_volume_is_told_to_be_one() {
        let zones = nvme::Zones { size: 1024, open_max: 2, active_max: 3 };
        let zones = Some(zones);
        let namespace =
            nvme::Namespace { uuid: 7, blocks: 4096, block_shift: 12, read_only: false, zones };
        let shown = zoned(1, &namespace).unwrap();
        assert_eq!((shown.export.size, shown.export.flags & SEND_READ_ONLY), (16 << 20, 0));
        assert_eq!(shown.export.description, format!("volume=1 device={:032x}", 7));
        let told = shown.zones.unwrap();
        assert_eq!((told.namespace, told.size, told.open_max, told.active_max), (2, 1024, 2, 3));
        let read_only = nvme::Namespace { read_only: true, ..namespace };
        assert_ne!(zoned(1, &read_only).unwrap().export.flags & SEND_READ_ONLY, 0);
        let volume = nvme::Namespace { zones: None, ..namespace };
        assert!(zoned(1, &volume).unwrap_err().contains("block volume"));
        for odd in [
            nvme::Namespace { blocks: 4097, ..namespace },
            nvme::Namespace { block_shift: 200, ..namespace },
            nvme::Namespace { zones: Some(nvme::Zones::default()), ..namespace },
        ] {
            assert!(zoned(1, &odd).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn an_address_of_nvme_is_a_units() {
        assert!(Target::parse("nvme://127.0.0.1:4420/unit/3").unwrap().is_zoned());
        assert!(!Target::parse("nbd://h/unit/3").unwrap().is_zoned());
        assert!(Target::parse("nvme://h/data").unwrap_err().contains("for example"));
        assert!(host().nqn.starts_with("nqn."));
    }
}
