//! NVMe over TCP as a host speaks it: the bytes of commands and PDUs, without digests, and a controller with one queue for
//! I/O. What is done on that queue is its user's.

use crate::{Address, Error, Stream};
use std::io::{self, Read, Write};

/// A submission queue entry.
pub type Entry = [u8; 64];
/// Bytes of a command's capsule before its data.
pub const CAPSULE_BYTES: usize = 72;
/// Bytes of the header of every other PDU that is sent or comes once both have agreed.
pub const HEAD_BYTES: usize = 24;

/// Kinds of PDUs: a command, with its data behind it or not.
pub const KIND_COMMAND: u8 = 4;
/// The end of a command.
pub const KIND_RESPONSE: u8 = 5;
/// Data that was asked for.
pub const KIND_DATA_OUT: u8 = 6;
/// Data of a command.
pub const KIND_DATA_IN: u8 = 7;
/// Data is asked for.
pub const KIND_READY: u8 = 9;
/// No more data of this command follows.
const FLAG_LAST: u8 = 1 << 2;

/// Commands: flush.
pub const FLUSH: u8 = 0x00;
/// Write.
pub const WRITE: u8 = 0x01;
/// Read.
pub const READ: u8 = 0x02;
/// Zone management send.
pub const ZONE_MANAGE: u8 = 0x79;
/// Zone management receive.
pub const ZONE_REPORT: u8 = 0x7a;
/// Zone append.
pub const ZONE_APPEND: u8 = 0x7d;
const GET_LOG: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const SET_FEATURES: u8 = 0x09;
const FABRICS: u8 = 0x7f;

/// Status: there is no such namespace.
pub const NAMESPACE: u16 = 0x00b;
const CONNECT_HOST: u16 = 0x184;
/// Of a status, what the code is beside hints.
pub const STATUS_CODE: u16 = 0x7ff;
/// In the result of a connect: the host has to authenticate.
const AUTHENTICATE: u64 = 0b11 << 16;

/// Command set of namespaces with zones.
pub const SET_ZONED: u8 = 2;
/// The name of every discovery service, which a server of ours has at each of its ports.
const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
const PAGE: usize = 4096;
const PORT_DEFAULT: u16 = 4420;
/// Addresses begin so.
pub const SCHEME: &str = "nvme://";

fn put(into: &mut [u8], at: usize, bytes: &[u8]) {
    into[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A field.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// A field.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// A field.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// A command of this name, about a namespace unless that is 0.
pub fn entry(opcode: u8, id: u16, namespace: u32) -> Entry {
    let mut entry = [0; 64];
    (entry[0], entry[1]) = (opcode, 0x40);
    put(&mut entry, 2, &id.to_le_bytes());
    put(&mut entry, 4, &namespace.to_le_bytes());
    entry
}

/// The same with so many bytes of data: in its capsule, or on their own.
pub fn with_data(mut entry: Entry, bytes: u32, apart: bool) -> Entry {
    entry[39] = if apart { 0x5a } else { 0x01 };
    put(&mut entry, 32, &bytes.to_le_bytes());
    entry
}

/// The same with a word.
pub fn with_word(mut entry: Entry, number: usize, value: u32) -> Entry {
    put(&mut entry, number * 4, &value.to_le_bytes());
    entry
}

/// The same from a logical block on.
pub fn with_first(mut entry: Entry, block: u64) -> Entry {
    put(&mut entry, 40, &block.to_le_bytes());
    entry
}

/// The capsule of a command up to its data, of which so many bytes follow in it.
pub fn capsule(entry: &Entry, bytes: u32) -> [u8; CAPSULE_BYTES] {
    let mut capsule = [0; CAPSULE_BYTES];
    let offset = if bytes == 0 { 0 } else { CAPSULE_BYTES as u8 };
    put(&mut capsule, 0, &[KIND_COMMAND, 0, CAPSULE_BYTES as u8, offset]);
    put(&mut capsule, 4, &(CAPSULE_BYTES as u32 + bytes).to_le_bytes());
    put(&mut capsule, 8, entry);
    capsule
}

/// The header of data that was asked for by a PDU of [`KIND_READY`], whose header this is: all of it.
pub fn data_head(ready: &[u8; HEAD_BYTES]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    put(&mut head, 0, &[KIND_DATA_OUT, FLAG_LAST, HEAD_BYTES as u8, HEAD_BYTES as u8]);
    put(&mut head, 4, &(HEAD_BYTES as u32 + u32_at(ready, 16)).to_le_bytes());
    // Which command, which request for data, from where on, how much: as it was asked.
    put(&mut head, 8, &ready[8..20]);
    head
}

/// The address and the unit that a URI names: `nvme://HOST[:PORT]/unit/N`.
///
/// # Errors
/// What is wrong with it, with one that works.
pub fn parse(uri: &str) -> Result<(Address, u32), String> {
    let wrong = |why: &str| Err(format!("{uri}: {why}: for example nvme://127.0.0.1:4420/unit/0"));
    let Some(rest) = uri.strip_prefix(SCHEME) else { return wrong("is no address of NVMe/TCP") };
    let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
    let (host, port) = match host.rsplit_once(':') {
        // A colon within brackets belongs to the address.
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()),
        _ => (host, Some(PORT_DEFAULT)),
    };
    let Some(port) = port else { return wrong("the port is not a number") };
    if host.is_empty() {
        return wrong("has no host");
    }
    match unit(name) {
        Some(unit) => Ok((Address::Tcp(host.into(), port), unit)),
        None => wrong("names no raw unit, and those are what has zones"),
    }
}

/// The number of a unit, by its name.
pub fn unit(name: &str) -> Option<u32> {
    let number: u32 = name.strip_prefix("unit/")?.parse().ok()?;
    (name == format!("unit/{number}") && number < u32::MAX).then_some(number)
}

/// Who a host says it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Host {
    /// Its NQN.
    pub nqn: String,
    /// Its id.
    pub id: u128,
}

/// A namespace, as its controller tells of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Namespace {
    /// The same at every start.
    pub uuid: u128,
    /// Logical blocks.
    pub blocks: u64,
    /// Each has this power of two of bytes.
    pub block_shift: u8,
    /// Nothing may be written.
    pub read_only: bool,
    /// Its zones, if it has any.
    pub zones: Option<Zones>,
}

/// What is the same of all zones of a namespace.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Zones {
    /// Logical blocks from the start of one to that of the next.
    pub size: u64,
    /// That may be open at a time; 0: any number.
    pub open_max: u32,
    /// That may be active at a time; 0: any number.
    pub active_max: u32,
}

/// A controller: its admin queue, with which it ends.
pub struct Controller {
    stream: Stream,
    id: u16,
}

/// How a command has ended, if not well.
fn refused(what: &str, status: u16) -> Error {
    let message = match status & STATUS_CODE {
        CONNECT_HOST => {
            "this host may not connect: [nvme] hosts and nvme_hosts there say who may".into()
        }
        NAMESPACE => "there is no such unit, or this host may not see it".into(),
        status => format!("{what} ends with status {status:#x}"),
    };
    Error::Refused { code: (status & STATUS_CODE).into(), message }
}

/// A connection that has agreed on PDUs without digests.
fn open(dial: &dyn Fn() -> io::Result<Stream>) -> Result<Stream, Error> {
    let mut stream = dial()?;
    let mut request = [0; 128];
    (request[2], request[4]) = (128, 128);
    stream.write_all(&request)?;
    let mut response = [0; 128];
    stream.read_exact(&mut response)?;
    if response[0] != 1 || response[11] != 0 {
        return Err(Error::Protocol("the server does not speak NVMe/TCP as this host does".into()));
    }
    Ok(stream)
}

/// Carries a command out that brings back so many bytes of data at most. Its data, and the result of its completion.
fn ask(
    stream: &mut Stream,
    (what, entry): (&str, &Entry),
    data: &[u8],
    most: usize,
) -> Result<(Vec<u8>, u64), Error> {
    let odd = |what: &str| Err(Error::Protocol(format!("the server answers with {what}")));
    stream.write_all(&[&capsule(entry, data.len() as u32), data].concat())?;
    let mut answer = Vec::new();
    loop {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head)?;
        let left = (u32_at(&head, 4) as usize).saturating_sub(HEAD_BYTES);
        match head[0] {
            KIND_RESPONSE if left == 0 => {
                let status = u16_at(&head, 22) >> 1;
                return if status == 0 {
                    Ok((answer, u64_at(&head, 8)))
                } else {
                    Err(refused(what, status))
                };
            }
            KIND_DATA_IN if head[3] == HEAD_BYTES as u8 && answer.len() + left <= most => {
                let from = answer.len();
                answer.resize(from + left, 0);
                stream.read_exact(&mut answer[from..])?;
            }
            KIND_DATA_IN => return odd("more data than it was asked for"),
            kind => return odd(&format!("a PDU of type {kind}")),
        }
    }
}

fn connect(
    stream: &mut Stream,
    (host, subsystem): (&Host, &str),
    (queue, entries, controller): (u16, u16, u16),
) -> Result<u16, Error> {
    let mut connect = with_data(entry(FABRICS, 0, 1), 1024, false);
    put(&mut connect, 42, &queue.to_le_bytes());
    put(&mut connect, 44, &entries.to_le_bytes());
    let mut data = [0; 1024];
    put(&mut data, 0, &host.id.to_be_bytes());
    put(&mut data, 16, &controller.to_le_bytes());
    for (at, name) in [(256, subsystem), (512, &host.nqn)] {
        let bytes = name.as_bytes();
        // A NUL ends it.
        if bytes.len() > 223 {
            return Err(Error::Usage(format!("{name}: no NQN is longer than 223 bytes")));
        }
        put(&mut data, at, bytes);
    }
    let (_, result) = ask(stream, ("connect", &connect), &data, 0)?;
    if result & AUTHENTICATE != 0 {
        return Err(Error::Protocol(
            "hosts have to authenticate there ([nvme] keys_file), which this program cannot: use the kernel's initiator \
             (`nvme connect --dhchap-secret`), or serve without keys_file where only this machine connects"
                .into(),
        ));
    }
    Ok(result as u16)
}

impl Controller {
    /// A controller of the subsystem at a place, whatever its name, that is ready; `dial` connects to the place.
    ///
    /// # Errors
    /// Nobody answers, or why the server refuses.
    pub fn discover(
        dial: &dyn Fn() -> io::Result<Stream>,
        host: &Host,
    ) -> Result<(Self, String), Error> {
        let mut discovery = Self::open(dial, host, DISCOVERY)?;
        // Two entries of 1 KiB: how many there are, and the first of them.
        let log = with_word(with_data(entry(GET_LOG, 3, 0), 2048, true), 10, 511 << 16 | 0x70);
        let (log, _) = ask(&mut discovery.stream, ("the discovery log", &log), &[], 2048)?;
        let name = log.get(1024 + 256..1024 + 512).unwrap_or_default();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let nqn = String::from_utf8_lossy(name).into_owned();
        if log.len() < 2048 || u64_at(&log, 8) == 0 || nqn.is_empty() {
            return Err(refused("discovery", CONNECT_HOST));
        }
        Ok((Self::open(dial, host, &nqn)?, nqn))
    }

    /// A controller of a subsystem that is ready, and grants one queue for I/O.
    ///
    /// # Errors
    /// Nobody answers, or why the server refuses.
    pub fn open(
        dial: &dyn Fn() -> io::Result<Stream>,
        host: &Host,
        subsystem: &str,
    ) -> Result<Self, Error> {
        let mut stream = open(dial)?;
        let id = connect(&mut stream, (host, subsystem), (0, 31, u16::MAX))?;
        // All command sets, the sizes of entries, and go.
        let mut enable = entry(FABRICS, 1, 0);
        enable[44] = 0x14;
        put(&mut enable, 48, &0x46_0061u64.to_le_bytes());
        ask(&mut stream, ("enabling", &enable), &[], 0)?;
        if subsystem != DISCOVERY {
            let queues = with_word(entry(SET_FEATURES, 2, 0), 10, 7);
            ask(&mut stream, ("asking for a queue", &queues), &[], 0)?;
        }
        Ok(Self { stream, id })
    }

    /// Its queue for I/O, for so many commands at a time.
    ///
    /// # Errors
    /// Why there is none.
    pub fn queue(
        &self,
        dial: &dyn Fn() -> io::Result<Stream>,
        names: (&Host, &str),
        commands: u16,
    ) -> Result<Stream, Error> {
        let mut stream = open(dial)?;
        connect(&mut stream, names, (1, commands, self.id))?;
        Ok(stream)
    }

    /// Tells of a namespace.
    ///
    /// # Errors
    /// There is none of this number, or this host may not see it.
    pub fn namespace(&mut self, number: u32) -> Result<Namespace, Error> {
        let mut identify = |what: u32, set: u8| {
            let identify = with_data(entry(IDENTIFY, 4, number), PAGE as u32, true);
            let identify = with_word(with_word(identify, 10, what), 11, u32::from(set) << 24);
            let (page, _) = ask(&mut self.stream, ("identify", &identify), &[], PAGE)?;
            match page.len() {
                PAGE => Ok(page),
                len => Err(Error::Protocol(format!("identify brings {len} bytes"))),
            }
        };
        let descriptors = identify(0x03, 0)?;
        let (page, mut namespace) = (identify(0x00, 0)?, Namespace::default());
        namespace.blocks = u64_at(&page, 0);
        let format = usize::from(page[26] & 0xf);
        namespace.block_shift = page[130 + 4 * format];
        namespace.read_only = page[99] & 1 != 0;
        let mut rest = &descriptors[..];
        while let [kind, len, _, _, value @ ..] = rest
            && *kind != 0
        {
            let Some((value, after)) = value.split_at_checked((*len).into()) else { break };
            match (kind, value) {
                (3, uuid) => {
                    namespace.uuid = u128::from_be_bytes(uuid.try_into().unwrap_or_default())
                }
                (4, [SET_ZONED]) => namespace.zones = Some(Zones::default()),
                _ => {}
            }
            rest = after;
        }
        if let Some(zones) = &mut namespace.zones {
            let page = identify(0x05, SET_ZONED)?;
            // One less than there may be; all ones: any number.
            zones.active_max = u32_at(&page, 4).wrapping_add(1);
            zones.open_max = u32_at(&page, 8).wrapping_add(1);
            zones.size = u64_at(&page, 2816 + 16 * format);
        }
        Ok(namespace)
    }

    /// The connection of its admin queue.
    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_a_unit() {
        let at = |host: &str, port| Address::Tcp(host.into(), port);
        assert_eq!(parse("nvme://h/unit/7"), Ok((at("h", 4420), 7)));
        assert_eq!(parse("nvme://[::1]:99/unit/0"), Ok((at("[::1]", 99), 0)));
        for wrong in [
            "nvme://h",
            "nvme://h/data",
            "nvme://h/unit/07",
            "nvme:///unit/0",
            "nvme://h:p/unit/0",
            "nbd://h/a",
        ] {
            assert!(parse(wrong).unwrap_err().contains("for example nvme://"), "{wrong}");
        }
    }

    #[test]
    fn what_is_asked_has_the_bytes_of_the_specification() {
        let command =
            with_word(with_first(with_data(entry(WRITE, 0x201, 3), 4096, false), 5), 12, 6);
        assert_eq!(command[..8], [1, 0x40, 1, 2, 3, 0, 0, 0]);
        assert_eq!((command[33], command[39], command[40], command[48]), (16, 1, 5, 6));
        let capsule = capsule(&command, 4096);
        assert_eq!(capsule[..8], [4, 0, 72, 72, 72, 16, 0, 0]);
        assert_eq!(capsule[8..], command);
        let mut ready = [0; HEAD_BYTES];
        ready[8..20].copy_from_slice(&[1, 0, 2, 0, 0, 0, 0, 0, 0, 32, 0, 0]);
        let head = data_head(&ready);
        assert_eq!(head[..8], [6, 4, 24, 24, 24, 32, 0, 0]);
        assert_eq!(head[8..20], ready[8..20]);
    }
}
