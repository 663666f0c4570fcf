//! Which device this is, and where it is in its opens: what others note of it, to know it again.

use super::identity::State;
use super::own::Own;
use super::{Device, DeviceError, Kind, Mode};

/// See the head of this file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Age {
    /// Of the device.
    pub uuid: u128,
    /// Times that it was opened for writing.
    pub opens: u64,
    /// It was stopped well, and not written to since.
    pub is_closed: bool,
}

impl Own {
    fn age(&self) -> Age {
        let is_closed = self.found.master.is_some_and(|master| master.state == State::Closed);
        Age { uuid: self.uuid(), opens: self.found.generation, is_closed }
    }
}

impl Device {
    /// That of the device that is there, which is not opened; `None` if there is none, or it is in memory.
    ///
    /// # Errors
    /// It cannot be read, is in use, or its files do not belong together.
    pub fn age_at(kind: &Kind) -> Result<Option<Age>, DeviceError> {
        if matches!(kind, Kind::Memory { .. }) || !Self::exists(kind) {
            return Ok(None);
        }
        Ok(Some(Own::claim(kind, Mode::ReadOnly)?.age()))
    }

    /// That of this device; `None` if it is in memory.
    pub fn age(&self) -> Option<Age> {
        self.own.as_ref().map(Own::age)
    }
}
