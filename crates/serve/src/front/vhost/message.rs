//! The messages of vhost-user: bytes in, what they mean out, and back. Every integer travels little-endian, as the
//! machines do that share memory with us; nothing here knows what a message does.

use super::inflight::Extent;
use super::memory::{REGIONS_MAX, Region};
use super::ring::Places;
use std::fmt;

/// Bytes before a message: what it is, flags, bytes that follow.
pub const HEAD_BYTES: usize = 12;
/// Most bytes that follow; the longest that is known has 330.
pub const BODY_BYTES_MAX: usize = 4096;

/// Flags of a head: the version, that it is an answer, and that one is wanted.
const VERSION: u32 = 1;
const VERSION_BITS: u32 = 3;
const IS_REPLY: u32 = 1 << 2;
const WANTS_REPLY: u32 = 1 << 3;

/// A head.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    /// What the message is, by its number.
    pub request: u32,
    /// It is to be answered, whatever it is.
    pub wants_reply: bool,
    /// Bytes that follow.
    pub bytes: usize,
}

/// Why bytes are no message that is known here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadMessage {
    /// Of another version, or an answer to nothing.
    Flags(u32),
    /// It would be too long.
    Long(u32),
    /// Nobody was told that it may be sent.
    Unknown(u32),
    /// It has not as many bytes as it must.
    Size {
        /// What it is.
        request: u32,
        /// Bytes that it has.
        bytes: usize,
    },
}

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flags(flags) => write!(f, "a message has flags {flags:#x}, which are not known"),
            Self::Long(bytes) => write!(f, "a message has {bytes} bytes, which is too long"),
            Self::Unknown(request) => {
                write!(f, "message {request} is not known, and was not offered")
            }
            Self::Size { request, bytes } => {
                write!(f, "message {request} has {bytes} bytes, which does not fit")
            }
        }
    }
}

/// What a hypervisor says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message {
    /// Which features are there?
    Features,
    /// These are used.
    UseFeatures(u64),
    /// From now on it is in charge.
    Own,
    /// All rings stop.
    Reset,
    /// The guest's memory, a descriptor for each region.
    Memory(Vec<Region>),
    /// A ring has so many entries.
    Entries(u32, u32),
    /// It lies there.
    Places(u32, Places),
    /// It goes on at this entry.
    Base(u32, u32),
    /// Stop it, and tell where it goes on.
    Stop(u32),
    /// How the guest tells that there is something; a descriptor, unless it does not.
    Kick(Eventful),
    /// How it is told.
    Call(Eventful),
    /// How it is told that a ring is broken.
    Broken(Eventful),
    /// Which features of the protocol are there?
    Protocol,
    /// These are used.
    UseProtocol(u64),
    /// How many rings?
    Queues,
    /// A ring may be used, or not.
    Enable(u32, bool),
    /// A descriptor of a socket by which it is told that settings have changed.
    Channel,
    /// So many bytes of the settings, from there on.
    Settings {
        /// The first.
        offset: u32,
        /// How many.
        bytes: u32,
    },
    /// Settings are to be changed.
    ChangeSettings,
    /// Memory for what is in flight of so many rings.
    MakeInflight(Extent),
    /// What was in flight, a descriptor.
    UseInflight(Extent),
}

/// Of a message that brings an event: which ring, and whether it brings one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Eventful {
    /// The ring.
    pub queue: u32,
    /// There is a descriptor.
    pub has_one: bool,
}

/// Numbers of messages.
pub mod number {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    /// On the other channel: settings have changed.
    pub const CONFIG_CHANGE: u32 = 2;
}

impl Head {
    /// What the first bytes of a message say.
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, BadMessage> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        let (request, flags) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let bytes = u32::from_le_bytes([i, j, k, l]);
        if flags & VERSION_BITS != VERSION || flags & !(VERSION_BITS | WANTS_REPLY) != 0 {
            return Err(BadMessage::Flags(flags));
        }
        if bytes as usize > BODY_BYTES_MAX {
            return Err(BadMessage::Long(bytes));
        }
        let wants_reply = flags & WANTS_REPLY != 0;
        Ok(Self { request, wants_reply, bytes: bytes as usize })
    }
}

/// A message of ours: an answer, or a word of our own that wants none.
pub fn encode(request: u32, is_reply: bool, body: &[u8]) -> Vec<u8> {
    let flags = VERSION | if is_reply { IS_REPLY } else { 0 };
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    for word in [request, flags, body.len() as u32] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

impl Message {
    /// What a message says.
    pub fn decode(request: u32, body: &[u8]) -> Result<Self, BadMessage> {
        let wrong = BadMessage::Size { request, bytes: body.len() };
        let mut fields = Fields(body);
        let message = fields.message(request).ok_or(wrong)??;
        // What follows is a mistake, but for what a structure has at its end to be aligned.
        let spare =
            if matches!(message, Self::MakeInflight(_) | Self::UseInflight(_)) { 4 } else { 0 };
        if fields.0.len() > spare
            && !matches!(message, Self::ChangeSettings | Self::Settings { .. })
        {
            return Err(wrong);
        }
        Ok(message)
    }
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn event(&mut self) -> Option<Eventful> {
        let value = self.u64()?;
        Some(Eventful { queue: (value & 0xff) as u32, has_one: value & 0x100 == 0 })
    }

    fn extent(&mut self) -> Option<Extent> {
        let (bytes, offset) = (self.u64()?, self.u64()?);
        Some(Extent { bytes, offset, queues: self.u16()?, entries: self.u16()? })
    }

    /// The regions of a table that says how many it has.
    fn regions(&mut self) -> Option<Vec<Region>> {
        let (count, _nothing) = (self.u32()? as usize, self.u32()?);
        // A table of more is refused by its count.
        let count = count.min(REGIONS_MAX + 1);
        let mut regions = Vec::with_capacity(count);
        for _ in 0..count {
            let (guest, bytes, user) = (self.u64()?, self.u64()?, self.u64()?);
            regions.push(Region { guest, bytes, user, offset: self.u64()? });
        }
        if count > REGIONS_MAX {
            self.0 = &[];
        }
        Some(regions)
    }

    /// `None`: it is too short.
    fn message(&mut self, request: u32) -> Option<Result<Message, BadMessage>> {
        Some(Ok(match request {
            number::GET_FEATURES => Message::Features,
            number::SET_FEATURES => Message::UseFeatures(self.u64()?),
            number::SET_OWNER => Message::Own,
            number::RESET_OWNER | number::RESET_DEVICE => Message::Reset,
            number::SET_MEM_TABLE => Message::Memory(self.regions()?),
            number::SET_VRING_NUM => Message::Entries(self.u32()?, self.u32()?),
            number::SET_VRING_ADDR => {
                let (queue, _flags) = (self.u32()?, self.u32()?);
                let (descriptors, used) = (self.u64()?, self.u64()?);
                let (available, _log) = (self.u64()?, self.u64()?);
                Message::Places(queue, Places { descriptors, available, used })
            }
            number::SET_VRING_BASE => Message::Base(self.u32()?, self.u32()?),
            number::GET_VRING_BASE => {
                let (queue, _nothing) = (self.u32()?, self.u32()?);
                Message::Stop(queue)
            }
            number::SET_VRING_KICK => Message::Kick(self.event()?),
            number::SET_VRING_CALL => Message::Call(self.event()?),
            number::SET_VRING_ERR => Message::Broken(self.event()?),
            number::GET_PROTOCOL_FEATURES => Message::Protocol,
            number::SET_PROTOCOL_FEATURES => Message::UseProtocol(self.u64()?),
            number::GET_QUEUE_NUM => Message::Queues,
            number::SET_VRING_ENABLE => Message::Enable(self.u32()?, self.u32()? != 0),
            number::SET_BACKEND_REQ_FD => Message::Channel,
            number::GET_CONFIG => {
                let (offset, bytes, _flags) = (self.u32()?, self.u32()?, self.u32()?);
                Message::Settings { offset, bytes }
            }
            number::SET_CONFIG => Message::ChangeSettings,
            number::GET_INFLIGHT_FD => Message::MakeInflight(self.extent()?),
            number::SET_INFLIGHT_FD => Message::UseInflight(self.extent()?),
            unknown => return Some(Err(BadMessage::Unknown(unknown))),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_messages_are_what_they_say_or_refused() {
        let head = |request: u32, flags: u32, bytes: u32| {
            let words = [request, flags, bytes].map(u32::to_le_bytes);
            Head::decode(words.concat().as_slice().try_into().unwrap())
        };
        assert_eq!(head(5, 9, 40), Ok(Head { request: 5, wants_reply: true, bytes: 40 }));
        for flags in [0, 2, 3, 5, 17] {
            assert_eq!(head(5, flags, 0), Err(BadMessage::Flags(flags)));
        }
        assert_eq!(head(5, 1, 4097), Err(BadMessage::Long(4097)));
        let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let region = Region { guest: 2, bytes: 3, user: 4, offset: 5 };
        let table = words(&[1, 2, 3, 4, 5]);
        assert_eq!(
            Message::decode(number::SET_MEM_TABLE, &table),
            Ok(Message::Memory(vec![region]))
        );
        let many = words(&[&[200][..], &[1; 36]].concat());
        let counted = Message::decode(number::SET_MEM_TABLE, &many);
        assert!(matches!(counted, Ok(Message::Memory(regions)) if regions.len() == 9));
        let extent = Extent { bytes: 7, offset: 8, queues: 2, entries: 64 };
        let bytes = [words(&[7, 8]), vec![2, 0, 64, 0]].concat();
        for bytes in [bytes.clone(), [bytes, vec![0; 4]].concat()] {
            let decoded = Message::decode(number::SET_INFLIGHT_FD, &bytes);
            assert_eq!(decoded, Ok(Message::UseInflight(extent)));
        }
        let event = |value| Message::decode(number::SET_VRING_KICK, &words(&[value]));
        assert_eq!(event(3), Ok(Message::Kick(Eventful { queue: 3, has_one: true })));
        assert_eq!(event(0x103), Ok(Message::Kick(Eventful { queue: 3, has_one: false })));
    }

    #[test]
    fn no_bytes_make_it_panic_and_each_message_has_one_length() {
        let mut random = flash::Random::new(1);
        for request in 0..60 {
            for len in 0..200 {
                let body: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
                let first = Message::decode(request, &body);
                if request < 1 || matches!(request, 6 | 7 | 19 | 20 | 22 | 23 | 26..31 | 33 | 35..)
                {
                    assert_eq!(first, Err(BadMessage::Unknown(request)));
                }
                let lens = match request {
                    number::SET_FEATURES | number::SET_VRING_ENABLE => 8..9,
                    number::SET_VRING_ADDR => 40..41,
                    number::GET_INFLIGHT_FD => 20..25,
                    number::GET_QUEUE_NUM => 0..1,
                    _ => continue,
                };
                assert_eq!(first.is_ok(), lens.contains(&len), "{request} of {len}: {first:?}");
            }
        }
    }
}
