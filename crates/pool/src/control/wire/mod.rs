//! Every byte between the parts of a pool and its control plane and controller: asks and answers of
//! [`super::contract`], and what nodes and clients report to the controller. Over any ordered stream of bytes, in
//! both directions.
//!
//! Invariants:
//! - A message has a checksum over all of it.
//! - Nothing is allocated for a length before the length is held against its bound.
//! - There is one encoding of a message: what decodes is what would be encoded of it.
//!
//! The table of docs/formats.md is the reference; golden bytes in the tests hold the two together.

mod fields;
#[cfg(test)]
mod tests;

use super::codec::{Reader, Writer};
use super::contract::{
    CHANGES_MAX, KEY_BYTES_MAX, PlaneAnswer, PlaneAsk, PlaneAskId, RANGE_MAX, VALUE_BYTES_MAX,
    commit_is_valid,
};
use super::lives::PlaneFacts;
use crate::controller::{Explained, NodeSeen, VolumeSeen};
use crate::wire::{WIRE_VERSION, WireError};
use crate::words::{Members, NodeId, PoolId, VolumeId};

/// Bytes before the body of a message.
pub const HEAD_BYTES: usize = 20;

/// Most bytes of a body: those of a commit that is as large as it may be.
pub const BODY_BYTES_MAX: usize =
    2 * CHANGES_MAX * (KEY_BYTES_MAX + ENTRY_BYTES) + CHANGES_MAX * VALUE_BYTES_MAX + ENTRY_BYTES;

/// What an entry has beside its key and its value, at most.
const ENTRY_BYTES: usize = 32;

/// Most bytes of the name that a part gives itself.
pub const NAME_BYTES_MAX: usize = 64;

/// Most bytes of the text of a profile.
pub const PROFILE_BYTES_MAX: usize = 256 << 10;

/// Most sets of members of one report.
pub const GROUPS_MAX: usize = 1 << 16;

/// Most bytes of the name of a policy, and most limits, that are told.
const POLICY_BYTES_MAX: usize = 64;
const LIMITS_MAX: usize = 1 << 12;
/// Most nodes, and most volumes, that are told of.
const TOLD_MAX: usize = 1 << 16;

const MAGIC: [u8; 2] = *b"WC";

/// The first message on a connection, in both directions.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Hello {
    /// The pool that both are of.
    pub pool: PoolId,
    /// Who connects or answers, in words.
    pub name: String,
    /// How far the plane has come, in what it sends; nothing else has this.
    pub plane: Option<PlaneFacts>,
}

/// What a node or a client tells the controller.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// How a node does.
    Node {
        /// Which.
        node: NodeId,
        /// In the last period.
        seen: NodeSeen,
    },
    /// What the drive of a node can do, as it was measured there.
    Profile {
        /// Which.
        node: NodeId,
        /// As [`crate::profile::Profile::parse`] reads it.
        text: String,
    },
    /// How a volume does.
    Volume {
        /// Which.
        volume: VolumeId,
        /// In the last period.
        seen: VolumeSeen,
    },
    /// Blocks of a volume by who holds them.
    Held {
        /// Which.
        volume: VolumeId,
        /// At most [`GROUPS_MAX`].
        groups: Vec<(Members, u64)>,
    },
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Who is there.
    Hello(Hello),
    /// Something is wanted of the plane.
    Ask {
        /// Comes back with the answer.
        id: PlaneAskId,
        /// What.
        ask: PlaneAsk,
    },
    /// Something was wanted of it.
    Answer {
        /// Of the ask.
        id: PlaneAskId,
        /// What came of it.
        answer: PlaneAnswer,
    },
    /// For the controller. It answers nothing.
    Report(Report),
    /// Why is the plan as it is?
    Explain,
    /// As the controller sees it.
    Explained(Explained),
}

/// What bytes from the wire come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// The message needs so many bytes, from its start; fewer were given.
    More(usize),
    /// A whole message.
    Message {
        /// It.
        message: Message,
        /// Its bytes.
        bytes: usize,
    },
}

/// Whether an ask is within its bounds: others do not go over the wire, and are to be answered with
/// [`super::contract::PlaneRefusal::Invalid`] where they are made.
pub fn ask_is_valid(ask: &PlaneAsk) -> bool {
    // The first key behind another one is longer than it by a byte.
    let fits = |key: &String| key.len() <= KEY_BYTES_MAX + 1;
    match ask {
        PlaneAsk::Get { key } => fits(key),
        PlaneAsk::Range { from, to, .. } | PlaneAsk::Watch { from, to, .. } => {
            fits(from) && fits(to)
        }
        PlaneAsk::Commit { checks, changes } => commit_is_valid(checks, changes),
        PlaneAsk::Unwatch { .. }
        | PlaneAsk::Grant { .. }
        | PlaneAsk::Keep { .. }
        | PlaneAsk::Revoke { .. } => true,
    }
}

/// Leaves out of an answer to a range what does not fit a message: it is asked for again, behind the last.
pub fn shorten(answer: &mut PlaneAnswer) {
    let PlaneAnswer::Values { kept, more, .. } = answer else { return };
    let mut bytes = ENTRY_BYTES;
    let fits = kept.iter().take_while(|(key, kept)| {
        bytes += key.len() + kept.value.len() + ENTRY_BYTES;
        bytes <= BODY_BYTES_MAX
    });
    let count = fits.count();
    *more |= count < kept.len();
    kept.truncate(count);
}

impl Message {
    /// The bytes of a message.
    ///
    /// # Errors
    /// It is longer than the wire allows.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut to = Writer::default();
        to.bytes.extend(MAGIC);
        to.bytes.extend([WIRE_VERSION, fields::kind(self)]);
        to.bytes.extend([0; 8]);
        to.u64(match self {
            Self::Ask { id, .. } | Self::Answer { id, .. } => id.0,
            _ => 0,
        });
        fields::write(&mut to, self)?;
        let body = to.bytes.len() - HEAD_BYTES;
        within("bytes of a message", body, BODY_BYTES_MAX)?;
        to.bytes[4..8].copy_from_slice(&(body as u32).to_le_bytes());
        let sum = sum(&to.bytes);
        to.bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        Ok(to.bytes)
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
    let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
        return Ok(Decoded::More(HEAD_BYTES));
    };
    let mut from = Reader { bytes: &head[4..] };
    let fields = (from.u32(), from.u32(), from.u64());
    let (Some(body), Some(told), Some(id)) = fields else { unreachable!("16 bytes were left") };
    within("bytes of a message", body as usize, BODY_BYTES_MAX)?;
    let length = HEAD_BYTES + body as usize;
    let Some(whole) = bytes.get(..length) else { return Ok(Decoded::More(length)) };
    if sum(whole) != told {
        return Err(WireError::Checksum);
    }
    let mut from = Reader { bytes: &whole[HEAD_BYTES..] };
    let message = fields::read(&mut from, head[3], id)?;
    match from.bytes.len() {
        0 => Ok(Decoded::Message { message, bytes: length }),
        bytes => Err(WireError::Trailing { bytes }),
    }
}

/// CRC-32C of all but its own four bytes.
fn sum(message: &[u8]) -> u32 {
    flash::crc_append(flash::crc(&message[..8]), &message[12..])
}

fn within(what: &'static str, found: usize, max: usize) -> Result<(), WireError> {
    if found > max {
        return Err(WireError::TooLong { what, found: found as u64, max: max as u64 });
    }
    Ok(())
}

const _: () = assert!(RANGE_MAX as usize * (KEY_BYTES_MAX + ENTRY_BYTES) < BODY_BYTES_MAX);
const _: () = assert!(TOLD_MAX * (12 + 61) + LIMITS_MAX * 13 < BODY_BYTES_MAX);
const _: () = assert!(GROUPS_MAX * 25 + ENTRY_BYTES < BODY_BYTES_MAX);
