//! How a command ends: completion status, as it is told in bits 15:1 of a completion's last word.

use crate::volume::Failure;
use flash::{RequestError, ZoneError};

/// Status code and type, with the bit that says that to try again is no use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Status(pub u16);

const DO_NOT_RETRY: u16 = 1 << 14;

const fn never(kind: u16, code: u16) -> Status {
    Status(kind << 8 | code | DO_NOT_RETRY)
}

impl Status {
    /// As it should.
    pub const SUCCESS: Self = Self(0);
    /// No such command.
    pub const OPCODE: Self = never(0, 0x01);
    /// A field says what it must not.
    pub const FIELD: Self = never(0, 0x02);
    /// The device has failed.
    pub const INTERNAL: Self = Self(0x06);
    /// The host has asked for its end.
    pub const ABORTED: Self = Self(0x07);
    /// No such namespace.
    pub const NAMESPACE: Self = never(0, 0x0b);
    /// Not now: connect comes first.
    pub const SEQUENCE: Self = never(0, 0x0c);
    /// The length of the data is not that of the command.
    pub const SGL_LENGTH: Self = never(0, 0x0f);
    /// A descriptor of another kind.
    pub const SGL_KIND: Self = never(0, 0x11);
    /// Data that is not at the start of its place in the capsule.
    pub const SGL_OFFSET: Self = never(0, 0x16);
    /// The namespace may be read only.
    pub const PROTECTED: Self = never(0, 0x20);
    /// The data's digest is not that of the data.
    pub const TRANSPORT: Self = Self(0x22);
    /// Beyond the end.
    pub const RANGE: Self = never(0, 0x80);
    /// No room.
    pub const CAPACITY: Self = never(0, 0x81);
    /// Another format of connect.
    pub const CONNECT_FORMAT: Self = never(1, 0x80);
    /// No place for another controller or queue.
    pub const CONNECT_BUSY: Self = Self(1 << 8 | 0x81);
    /// A parameter of connect is wrong.
    pub const CONNECT_PARAMETER: Self = never(1, 0x82);
    /// This host may not connect.
    pub const CONNECT_HOST: Self = never(1, 0x84);
    /// No such log page.
    pub const LOG_PAGE: Self = never(1, 0x09);
    /// A command set that there is not, or not of this namespace.
    pub const COMMAND_SET: Self = never(1, 0x2c);
    /// More events are awaited than may be.
    pub const EVENTS: Self = never(1, 0x05);
    /// Such a feature cannot be set.
    pub const FEATURE: Self = never(1, 0x0e);
    /// The blocks are not those of the host.
    pub const DIFFERS: Self = never(2, 0x85);
    /// What is there cannot be read.
    pub const UNREADABLE: Self = never(2, 0x81);
    /// What was to be written cannot be.
    pub const WRITE_FAULT: Self = Self(2 << 8 | 0x80);
    /// Another path may do it.
    pub const PATH: Self = Self(3 << 8);
}

impl From<ZoneError> for Status {
    fn from(error: ZoneError) -> Self {
        never(
            1,
            match error {
                ZoneError::Boundary => 0xb8,
                ZoneError::Full => 0xb9,
                ZoneError::ReadOnly => 0xba,
                ZoneError::Offline => 0xbb,
                ZoneError::InvalidWrite => 0xbc,
                ZoneError::TooManyActive => 0xbd,
                ZoneError::TooManyOpen => 0xbe,
                ZoneError::Transition => 0xbf,
            },
        )
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Device(error) => match error {
                RequestError::OutOfRange => Self::RANGE,
                RequestError::NoSpace => Self::CAPACITY,
                RequestError::Unreadable => Self::UNREADABLE,
                RequestError::ProgramFailed => Self::WRITE_FAULT,
                RequestError::ShuttingDown => Self::PATH,
                RequestError::Misaligned
                | RequestError::NotErased
                | RequestError::OutOfOrder
                | RequestError::NotWritten => Self::FIELD,
                RequestError::Failed | RequestError::Busy | RequestError::AtRisk => Self::INTERNAL,
                RequestError::Zone(error) => error.into(),
            },
            Failure::Slow => Self::FIELD,
            Failure::Moved => Self::PATH,
            Failure::Gone => Self::NAMESPACE,
            Failure::Differs => Self::DIFFERS,
            Failure::Spoilt => Self::TRANSPORT,
        }
    }
}
