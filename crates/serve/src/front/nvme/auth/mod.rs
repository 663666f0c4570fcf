//! DH-HMAC-CHAP: a host shows on each of its queues that it knows a secret, and may want the same of the controller, without
//! either saying what it is. A dialogue is a state machine without I/O: messages go in and out as the host sends and asks.
//!
//! Invariants:
//! - a queue counts as authenticated only when the answer was right, and, if the host wants the controller's too, when it
//!   has said that it found that right;
//! - what is out of order, cut off or lies ends a dialogue, and nothing but its failure follows.

#[cfg(any(test, feature = "dh"))]
mod groups;
#[cfg(not(any(test, feature = "dh")))]
#[path = "no_groups.rs"]
mod groups;
mod secret;

pub use groups::{Draw, Groups};
pub use secret::Secret;
#[cfg(test)]
pub use secret::text_of;

use super::pdu::{u16_at, u32_at};
use ring::{digest, hmac};
use std::collections::BTreeMap;

/// Longest message that is taken.
pub const MESSAGE_BYTES_MAX: u32 = 4096;
/// Bytes of a message before what varies.
const HEAD_BYTES: usize = 16;

/// The types of messages: those that all protocols of authentication share, and those of this one.
const COMMON: u8 = 0;
const CHAP: u8 = 1;
/// Messages.
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE1: u8 = 0xf0;
/// The protocol's number in a negotiation, and the bytes of what it says there.
const PROTOCOL: u8 = 0x01;
const DESCRIPTOR_BYTES: usize = 64;
/// Where in it the hashes and groups are.
const HASHES_AT: usize = 4;
const GROUPS_AT: usize = 34;
const LISTED_MAX: usize = 30;

/// Why a dialogue has failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failed {
    /// The secret is another.
    Secret = 0x01,
    /// None of the host's protocols is this one.
    Protocol = 0x02,
    /// It wants a secure channel besides, which there is not.
    Channel = 0x03,
    /// None of its hashes is known here.
    Hash = 0x04,
    /// None of its groups is.
    Group = 0x05,
    /// A message says what it cannot.
    Payload = 0x06,
    /// A message that is not its turn.
    Order = 0x07,
}

impl Failed {
    /// In words, for the log.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Secret => "its secret, or the one it expects of us, is another",
            Self::Protocol => "it does not speak DH-HMAC-CHAP",
            Self::Channel => "it wants a secure channel besides",
            Self::Hash => "no hash that it offers is known here",
            Self::Group => "no group that it offers is known here",
            Self::Payload => "it said what it cannot say",
            Self::Order => "it spoke out of turn",
        }
    }
}

/// A hash of the protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// The first of ours among these.
    fn choose(offered: &[u8]) -> Option<Self> {
        let known = [Self::Sha256, Self::Sha384, Self::Sha512];
        known.into_iter().find(|hash| offered.contains(&(*hash as u8)))
    }

    /// Bytes of what it makes.
    fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        let algorithm = match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes).as_ref().into()
    }

    fn key(self, key: &[u8]) -> hmac::Key {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, key)
    }

    /// Keyed.
    pub fn hmac(self, key: &[u8], bytes: &[u8]) -> Vec<u8> {
        hmac::sign(&self.key(key), bytes).as_ref().into()
    }
}

/// What a host has to know, and what it may want to be told.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostKeys {
    /// Its own.
    pub host: Secret,
    /// The controller's, as this host knows it.
    pub controller: Option<Secret>,
}

/// The secrets of all hosts that may come, by their names.
pub struct Keys {
    hosts: BTreeMap<String, HostKeys>,
    groups: Groups,
    draw: Draw,
}

impl Keys {
    /// Those of these hosts.
    pub fn new(hosts: BTreeMap<String, HostKeys>, draw: Draw) -> Self {
        Self { hosts, groups: Groups::default(), draw }
    }

    /// True if a host has a secret.
    pub fn knows(&self, host: &str) -> bool {
        self.hosts.contains_key(host)
    }
}

/// Whose dialogue it is.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// The host.
    pub host: &'a str,
    /// The subsystem.
    pub subsystem: &'a str,
}

/// What was agreed on, and what the host has to answer.
#[derive(Clone, Debug)]
struct Challenge {
    transaction: u16,
    hash: Hash,
    group: u8,
    number: u32,
    value: Vec<u8>,
}

/// How far a dialogue is.
#[derive(Debug, Default)]
enum Stage {
    /// Nothing was said.
    #[default]
    Silent,
    /// The host has offered what it can; the challenge is to be fetched.
    Offered(Box<Challenge>),
    /// It has the challenge.
    Challenged(Box<Challenge>),
    /// Its answer was right; that is to be fetched, with our own if it wants one.
    Right { transaction: u16, hash: Hash, ours: Option<Vec<u8>> },
    /// It looks at ours.
    Shown { transaction: u16 },
    /// All is well.
    Done,
    /// What is to be fetched is that it has failed.
    Failing(u16, Failed),
    /// And that was.
    Failed,
}

/// A dialogue on one queue.
#[derive(Debug, Default)]
pub struct Dialogue {
    stage: Stage,
    authenticated: bool,
}

/// What the host gets when it asks, and what comes of it.
#[derive(Debug, Eq, PartialEq)]
pub struct Told {
    /// The message.
    pub message: Vec<u8>,
    /// It tells that the host has failed, and why.
    pub failed: Option<Failed>,
}

impl Dialogue {
    /// The host has shown that it knows its secret.
    pub fn is_done(&self) -> bool {
        self.authenticated
    }

    /// The host says something. What is wrong with that it is told when it asks.
    pub fn hear(&mut self, message: &[u8], keys: &Keys, names: Names<'_>) {
        let transaction = if message.len() >= 6 { u16_at(message, 4) } else { 0 };
        let stage = std::mem::take(&mut self.stage);
        let heard = match (message.first_chunk::<2>(), stage) {
            // It may begin again, as some do from time to time.
            (Some([COMMON, NEGOTIATE]), Stage::Silent | Stage::Done) => {
                offered(message, keys).map(|challenge| Stage::Offered(Box::new(challenge)))
            }
            (Some([CHAP, REPLY]), Stage::Challenged(challenge)) => {
                replied(message, &challenge, keys, names)
            }
            (Some([CHAP, SUCCESS2]), Stage::Shown { transaction: of }) if of == transaction => {
                self.authenticated = true;
                Ok(Stage::Done)
            }
            (_, Stage::Failed) => return self.stage = Stage::Failed,
            (None, _) => Err(Failed::Payload),
            // Among them that it has found our answer wrong.
            (Some(_), Stage::Shown { .. }) => Err(Failed::Secret),
            (Some(_), _) => Err(Failed::Order),
        };
        self.stage = heard.unwrap_or_else(|failed| {
            self.authenticated = false;
            Stage::Failing(transaction, failed)
        });
    }

    /// The host asks what is said; at most so many bytes.
    pub fn tell(&mut self, bytes_max: usize, keys: &Keys) -> Told {
        let said = |message| Told { message, failed: None };
        let told = match std::mem::take(&mut self.stage) {
            Stage::Offered(challenge) => match message_of(&challenge, keys) {
                Some(message) => {
                    self.stage = Stage::Challenged(challenge);
                    said(message)
                }
                None => self.fail(challenge.transaction, Failed::Group),
            },
            Stage::Right { transaction, hash, ours } => {
                let message = success(transaction, hash, ours.as_deref());
                self.authenticated |= ours.is_none();
                self.stage = match ours {
                    Some(_) => Stage::Shown { transaction },
                    None => Stage::Done,
                };
                said(message)
            }
            Stage::Failing(transaction, failed) => self.fail(transaction, failed),
            _ => self.fail(0, Failed::Order),
        };
        match told.message.len() > bytes_max {
            true => self.fail(0, Failed::Payload),
            false => told,
        }
    }

    fn fail(&mut self, transaction: u16, failed: Failed) -> Told {
        (self.stage, self.authenticated) = (Stage::Failed, false);
        let mut message = head(COMMON, FAILURE1, transaction);
        // Always that authentication has failed, and why.
        message[6..8].copy_from_slice(&[1, failed as u8]);
        Told { message, failed: Some(failed) }
    }
}

fn head(kind: u8, message: u8, transaction: u16) -> Vec<u8> {
    let mut head = vec![0; HEAD_BYTES];
    head[..2].copy_from_slice(&[kind, message]);
    head[4..6].copy_from_slice(&transaction.to_le_bytes());
    head
}

/// What a negotiation comes to.
fn offered(message: &[u8], keys: &Keys) -> Result<Challenge, Failed> {
    let (head, descriptors) = message.split_at_checked(8).ok_or(Failed::Payload)?;
    let (channel, count) = (head[6], usize::from(head[7]));
    if channel != 0 {
        return Err(Failed::Channel);
    }
    let descriptors = descriptors.get(..count * DESCRIPTOR_BYTES).ok_or(Failed::Payload)?;
    let mut ours = descriptors.chunks_exact(DESCRIPTOR_BYTES);
    let offer = ours.find(|descriptor| descriptor[0] == PROTOCOL).ok_or(Failed::Protocol)?;
    let (hashes, groups) = (usize::from(offer[2]), usize::from(offer[3]));
    if hashes > LISTED_MAX || groups > LISTED_MAX {
        return Err(Failed::Payload);
    }
    let hash = Hash::choose(&offer[HASHES_AT..][..hashes]).ok_or(Failed::Hash)?;
    let group = Groups::choose(&offer[GROUPS_AT..][..groups]).ok_or(Failed::Group)?;
    let (mut value, mut number) = (vec![0; hash.len()], [0; 4]);
    if !(keys.draw)(&mut value) || !(keys.draw)(&mut number) {
        return Err(Failed::Payload);
    }
    // 0 says that there is none.
    let number = u32::from_le_bytes(number) | 1;
    Ok(Challenge { transaction: u16_at(message, 4), hash, group, number, value })
}

/// The challenge as it is sent; `None` if its group cannot be had.
fn message_of(challenge: &Challenge, keys: &Keys) -> Option<Vec<u8>> {
    let Challenge { transaction, hash, group, number, value } = challenge;
    let public = keys.groups.public(*group, keys.draw)?;
    let mut message = head(CHAP, CHALLENGE, *transaction);
    message[6] = hash.len() as u8;
    message[8..10].copy_from_slice(&[*hash as u8, *group]);
    message[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
    message[12..16].copy_from_slice(&number.to_le_bytes());
    message.extend(value);
    message.extend(public);
    Some(message)
}

/// What the host's answer comes to.
fn replied(
    message: &[u8],
    challenge: &Challenge,
    keys: &Keys,
    names: Names<'_>,
) -> Result<Stage, Failed> {
    let Challenge { transaction, hash, group, number, value } = challenge;
    let (head, rest) = message.split_at_checked(HEAD_BYTES).ok_or(Failed::Payload)?;
    let (len, wants_ours) = (usize::from(head[6]), head[8]);
    let theirs_len = usize::from(u16_at(head, 10));
    let whole = len == hash.len() && rest.len() >= 2 * len + theirs_len && wants_ours < 2;
    if !whole || u16_at(message, 4) != *transaction {
        return Err(Failed::Payload);
    }
    let (answer, rest) = rest.split_at(len);
    let (their_value, theirs) = (&rest[..len], &rest[len..len + theirs_len]);
    // Before anything that takes long.
    let known = keys.hosts.get(names.host).ok_or(Failed::Secret)?;
    let session = match (*group, theirs_len) {
        (0, 0) => None,
        (0, _) => return Err(Failed::Payload),
        (group, _) => {
            let secret = keys.groups.shared(group, theirs, keys.draw).ok_or(Failed::Payload)?;
            Some(hash.digest(&secret))
        }
    };
    let tied = |value: &[u8]| match &session {
        Some(key) => hash.hmac(key, value),
        None => value.to_vec(),
    };
    let ends = Ends { transaction: *transaction, names };
    let (key, asked) = (hash.key(known.host.bytes()), ends.host(&tied(value), *number));
    // It takes as long for every wrong answer.
    hmac::verify(&key, &asked, answer).map_err(|_| Failed::Secret)?;
    let ours = match (wants_ours, &known.controller) {
        (0, _) => None,
        // It wants what it does not get.
        (_, None) => return Err(Failed::Secret),
        (_, Some(secret)) => {
            let asked = ends.controller(&tied(their_value), u32_at(head, 12));
            Some(hash.hmac(secret.bytes(), &asked))
        }
    };
    Ok(Stage::Right { transaction: *transaction, hash: *hash, ours })
}

fn success(transaction: u16, hash: Hash, ours: Option<&[u8]>) -> Vec<u8> {
    let mut message = head(CHAP, SUCCESS1, transaction);
    // Also where no answer follows: Linux looks at it.
    message[6] = hash.len() as u8;
    if let Some(ours) = ours {
        message[8] = 1;
        message.extend(ours);
    }
    message
}

/// What the answers of both ends are made of, beside a secret and a challenge.
struct Ends<'a> {
    transaction: u16,
    names: Names<'a>,
}

impl Ends<'_> {
    /// What the host signs.
    fn host(&self, challenge: &[u8], number: u32) -> Vec<u8> {
        let Names { host, subsystem } = self.names;
        self.signed((challenge, number), "HostHost", [host, subsystem])
    }

    /// What the controller does.
    fn controller(&self, challenge: &[u8], number: u32) -> Vec<u8> {
        let Names { host, subsystem } = self.names;
        self.signed((challenge, number), "Controller", [subsystem, host])
    }

    fn signed(
        &self,
        (challenge, number): (&[u8], u32),
        end: &str,
        [first, second]: [&str; 2],
    ) -> Vec<u8> {
        let mut bytes = challenge.to_vec();
        bytes.extend(number.to_le_bytes());
        bytes.extend(self.transaction.to_le_bytes());
        // No secure channel.
        bytes.push(0);
        bytes.extend(end.as_bytes());
        bytes.extend(first.as_bytes());
        bytes.push(0);
        bytes.extend(second.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests;
