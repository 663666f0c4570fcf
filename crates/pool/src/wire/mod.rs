//! Every byte between clients and nodes: heads of [`Message`]s, each with the data of its slots behind it. The
//! codec touches no data: encoding gives a head and says whose data follow it, in order; decoding says how many
//! slots of 4 KiB follow, and the driver puts them where it wants them ([`Message::with_data`]).
//!
//! Invariants:
//! - A head has a checksum over all of it but the data, which have their own (`message::Slot::crc`).
//! - Nothing is allocated for a length before the length is held against its bound.
//! - There is one encoding of a message: what decodes is what would be encoded of it.
//!
//! The table of docs/formats.md is the reference; golden bytes in the tests hold the two together.

mod fields;
#[cfg(test)]
mod tests;

use crate::message::{Answer, Ask, AskId, NodeFacts, Signals, Slot};
use crate::words::{NodeId, PoolId};
use fields::{Reader, Writer};

/// Version of the protocol. Both sides must speak the same.
pub const WIRE_VERSION: u8 = 5;

/// Bytes before the body of a head.
pub const HEAD_BYTES: usize = 24;

/// Most bytes of the body of a head.
pub const BODY_BYTES_MAX: usize = 32 << 10;

/// Most bytes of the name that a client gives itself.
pub const NAME_BYTES_MAX: usize = 64;

/// Most bands that an answer names.
pub const LIST_MAX: usize = 512;

/// Most slots that follow a head.
pub const PAYLOAD_SLOTS_MAX: u32 = 64;

const MAGIC: [u8; 2] = *b"WP";

/// The first message on a connection, in both directions.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hello {
    /// The pool that both are of.
    pub pool: PoolId,
    /// The node that is meant, or that answers.
    pub node: NodeId,
    /// Who connects, in words; the node repeats it.
    pub name: String,
    /// What the node says of itself; nothing in what it is sent.
    pub facts: Option<NodeFacts>,
}

/// One message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Message<D> {
    /// Who is there.
    Hello(Hello),
    /// Something is wanted.
    Ask {
        /// Comes back with the answer.
        id: AskId,
        /// What.
        ask: Ask<D>,
    },
    /// Something was wanted.
    Answer {
        /// Of the ask.
        id: AskId,
        /// What came of it.
        answer: Answer<D>,
        /// How the node feels.
        signals: Signals,
    },
}

/// A message as it goes on the wire: the head, then 4 KiB of each of the payload, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Encoded<'a, D> {
    /// All but the data.
    pub head: Vec<u8>,
    /// What follows.
    pub payload: Vec<&'a D>,
}

/// What bytes from the wire come to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decoded {
    /// The head needs so many bytes, from its start; fewer were given.
    More(usize),
    /// A whole head.
    Message {
        /// Its data are numbered from 0, in the order in which they follow.
        message: Message<u32>,
        /// Bytes of the head.
        head_bytes: usize,
        /// Slots of 4 KiB that follow it.
        payload_slots: u32,
    },
}

/// Why bytes are no message, or a message does not fit the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WireError {
    /// Does not begin as a message does.
    Magic,
    /// Another version of the protocol.
    Version {
        /// That one.
        found: u8,
    },
    /// There is no such kind of message.
    Kind {
        /// The number that was there.
        found: u8,
    },
    /// Longer than its bound.
    TooLong {
        /// What is.
        what: &'static str,
        /// How long.
        found: u64,
        /// Its bound.
        max: u64,
    },
    /// The checksum does not fit: damaged on the way.
    Checksum,
    /// The body ends before all is said.
    Short {
        /// What is missing.
        what: &'static str,
    },
    /// The body goes on after all is said.
    Trailing {
        /// Bytes too many.
        bytes: usize,
    },
    /// A field holds what it may not.
    Field {
        /// Which.
        what: &'static str,
    },
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => {
                write!(f, "not a message of this protocol of a pool: is this the right port?")
            }
            Self::Version { found } => write!(
                f,
                "the other side speaks version {found} of the pool's protocol, this one {WIRE_VERSION}: run \
                 the same version of Weir on both"
            ),
            Self::Kind { found } => write!(f, "there is no message of kind {found}"),
            Self::TooLong { what, found, max } => {
                write!(f, "{what}: {found}, at most {max} are taken")
            }
            Self::Checksum => write!(f, "the checksum of the head does not fit: connect again"),
            Self::Short { what } => write!(f, "the message ends before {what}"),
            Self::Trailing { bytes } => write!(f, "{bytes} bytes too many in the message"),
            Self::Field { what } => write!(f, "{what} holds what it may not"),
        }
    }
}

impl std::error::Error for WireError {}

impl<D> Message<D> {
    /// The bytes of a message.
    ///
    /// # Errors
    /// It is longer than the wire allows: a name, a list, a page.
    pub fn encode(&self) -> Result<Encoded<'_, D>, WireError> {
        let mut writer = Writer::default();
        let id = match self {
            Self::Hello(hello) => {
                writer.hello(hello)?;
                AskId(0)
            }
            Self::Ask { id, ask } => {
                writer.ask(ask)?;
                *id
            }
            Self::Answer { id, answer, signals } => {
                writer.answer(answer, *signals)?;
                *id
            }
        };
        let Writer { kind, body, payload } = writer;
        within("bytes of a message's head", body.len() as u64, BODY_BYTES_MAX as u64)?;
        let mut head = Vec::with_capacity(HEAD_BYTES + body.len());
        head.extend(MAGIC);
        head.extend([WIRE_VERSION, kind]);
        head.extend((body.len() as u32).to_le_bytes());
        head.extend([0; 4]);
        head.extend((payload.len() as u32).to_le_bytes());
        head.extend(id.0.to_le_bytes());
        head.extend(body);
        let sum = head_sum(&head);
        head[8..12].copy_from_slice(&sum.to_le_bytes());
        Ok(Encoded { head, payload })
    }

    /// The same message, with the data that `of` makes of its data, in the order in which they follow the head.
    pub fn with_data<E>(self, mut of: impl FnMut(D) -> E) -> Message<E> {
        let mut slot = |Slot { oob, crc, data }| Slot { oob, crc, data: data.map(&mut of) };
        match self {
            Self::Hello(hello) => Message::Hello(hello),
            Self::Ask { id, ask } => {
                let ask = match ask {
                    Ask::Append { band, generation, page, open, slots } => {
                        let slots = slots.into_iter().map(slot).collect();
                        Ask::Append { band, generation, page, open, slots }
                    }
                    Ask::Fence { volume, generation, owner } => {
                        Ask::Fence { volume, generation, owner }
                    }
                    Ask::Read { band, generation, slot, count, urgent } => {
                        Ask::Read { band, generation, slot, count, urgent }
                    }
                    Ask::Seal { band, generation, pages } => Ask::Seal { band, generation, pages },
                    Ask::Free { band, generation } => Ask::Free { band, generation },
                    Ask::Flush { volume, generation } => Ask::Flush { volume, generation },
                    Ask::List { volume, generation, after } => {
                        Ask::List { volume, generation, after }
                    }
                    Ask::Copy { band, generation, from, header, pages, bytes_per_s_max } => {
                        Ask::Copy { band, generation, from, header, pages, bytes_per_s_max }
                    }
                };
                Message::Ask { id, ask }
            }
            Self::Answer { id, answer, signals } => {
                let answer = match answer {
                    Answer::Slots(slots) => {
                        let slots = slots.into_iter().map(|it| it.map(&mut slot)).collect();
                        Answer::Slots(slots)
                    }
                    Answer::Done => Answer::Done,
                    Answer::Bands { bands, more } => Answer::Bands { bands, more },
                    Answer::Refused(refusal) => Answer::Refused(refusal),
                };
                Message::Answer { id, answer, signals }
            }
        }
    }
}

/// The message that `bytes` begin with.
///
/// # Errors
/// They are none, whatever comes behind them: says what is wrong. The connection is of no use any more.
pub fn decode(bytes: &[u8]) -> Result<Decoded, WireError> {
    let begun = bytes.len().min(MAGIC.len());
    if bytes[..begun] != MAGIC[..begun] {
        return Err(WireError::Magic);
    }
    if let Some(&found) = bytes.get(2).filter(|&&found| found != WIRE_VERSION) {
        return Err(WireError::Version { found });
    }
    if bytes.len() < HEAD_BYTES {
        return Ok(Decoded::More(HEAD_BYTES));
    }
    let body_bytes = u32_at(bytes, 4);
    within("bytes of a message's head", body_bytes.into(), BODY_BYTES_MAX as u64)?;
    let payload_slots = u32_at(bytes, 12);
    within("slots behind a message", payload_slots.into(), PAYLOAD_SLOTS_MAX.into())?;
    let head_bytes = HEAD_BYTES + body_bytes as usize;
    let Some(head) = bytes.get(..head_bytes) else { return Ok(Decoded::More(head_bytes)) };
    if head_sum(head) != u32_at(head, 8) {
        return Err(WireError::Checksum);
    }
    let id = u64::from_le_bytes(std::array::from_fn(|at| head[16 + at]));
    let mut reader = Reader::new(&head[HEAD_BYTES..]);
    let message = reader.message(head[3], AskId(id))?;
    reader.end()?;
    if reader.payload_slots() != payload_slots {
        return Err(WireError::Field { what: "the number of slots behind a message" });
    }
    Ok(Decoded::Message { message, head_bytes, payload_slots })
}

fn head_sum(head: &[u8]) -> u32 {
    let sum = flash::crc_append(0, &head[..8]);
    flash::crc_append(sum, &head[12..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn within(what: &'static str, found: u64, max: u64) -> Result<(), WireError> {
    if found > max {
        return Err(WireError::TooLong { what, found, max });
    }
    Ok(())
}
