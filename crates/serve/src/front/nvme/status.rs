//! How a command ends: completion status, as it is told in bits 15:1 of a completion's last word.

use crate::volume::Failure;
use flash::{RequestError, SECOND, ZoneError};

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
    /// It is not done now, for no fault of anybody's.
    pub const INTERRUPTED: Self = Self(0x21);
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
    /// The host has to authenticate before.
    pub const AUTHENTICATION: Self = never(1, 0x91);
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

/// After how many seconds a host may be told to try again: what the controller says of itself (CRDT1 to 3). A host tries
/// five times again, as Linux does, unless it is told otherwise; so a few of these must make any time.
pub const DELAYS_S: [u64; 3] = [10, 30, 120];
/// The last of these times a host is told a time that is long enough rather than one that is not too long.
const TRIES: u32 = 5;

/// To be tried again in time for its place, `wait_ns` from now; so often was it tried `before`. A host that does not go by
/// delays is told none.
pub fn later(wait_ns: u64, before: u32, delays: bool) -> Status {
    if !delays {
        return Status::INTERRUPTED;
    }
    let index = delay(wait_ns, before) as u16;
    Status(Status::INTERRUPTED.0 | (index + 1) << RETRY_DELAY_SHIFT)
}

/// Which of the delays that is.
fn delay(wait_ns: u64, before: u32) -> usize {
    let ends_after = DELAYS_S.iter().position(|delay_s| delay_s * SECOND >= wait_ns);
    match ends_after {
        None => DELAYS_S.len() - 1,
        Some(index) if before + 1 >= TRIES => index,
        // Not too late: the rest it waits here, or is told once more.
        Some(index) => index.saturating_sub(1),
    }
}

/// When a host comes again that is told so; `None` if that was the last time that it tries.
pub fn comes_back_ns(wait_ns: u64, before: u32) -> Option<u64> {
    (before < TRIES).then(|| DELAYS_S[delay(wait_ns, before)] * SECOND)
}

/// Which of the delays a host is told.
const RETRY_DELAY_SHIFT: u16 = 11;

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
            Failure::Later { .. } => Self::INTERRUPTED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a host is told to come again that waits ten seconds here, and how much too late it is in the end.
    fn told(mut wait_s: i64) -> (u32, i64) {
        let mut before = 0;
        while wait_s > 10 {
            let status = later(wait_s as u64 * SECOND, before, true);
            assert_eq!((status.0 & 0x7ff, status.0 & DO_NOT_RETRY), (0x21, 0));
            wait_s -= DELAYS_S[usize::from(status.0 >> RETRY_DELAY_SHIFT & 0b11) - 1] as i64;
            before += 1;
        }
        (before, wait_s.min(0))
    }

    #[test]
    fn a_host_that_tries_five_times_again_comes_to_its_place_and_not_much_too_late() {
        for wait_s in 0..600 {
            let (times, late_s) = told(wait_s);
            assert!(times <= TRIES, "{wait_s} s: told {times} times");
            assert!(late_s >= -120 && (late_s == 0 || times == TRIES), "{wait_s} s: {late_s}");
        }
        // What fits is met.
        assert_eq!([told(11), told(39), told(70), told(128)], [(1, 0), (1, 0), (2, 0), (1, 0)]);
        assert_eq!(later(60 * SECOND, 0, false), Status::INTERRUPTED);
        assert_eq!(comes_back_ns(60 * SECOND, 0), Some(30 * SECOND));
        assert_eq!(
            (comes_back_ns(60 * SECOND, 4), comes_back_ns(0, 5)),
            (Some(120 * SECOND), None)
        );
    }
}
