//! What a server offers: exports, checked once before any client sees them.

use std::fmt;

use super::Limits;
use super::constants::STRING_BYTES_MAX;

/// A volume under the name by which NBD clients ask for it. The first of a server is also the
/// default one, which clients get that ask for no name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Export {
    /// What clients ask for.
    pub name: String,
    /// Size; a multiple of `block_min`.
    pub size_bytes: u64,
    /// Refuse everything that changes data.
    pub read_only: bool,
    /// For people; may be empty.
    pub description: String,
    /// Offsets and lengths are multiples of this. 1: the driver does read-modify-write.
    pub block_min: u32,
    /// What performs well.
    pub block_preferred: u32,
    /// Longest read or write; [`Limits::payload_bytes`] may lower it further.
    pub block_max: u32,
    /// What its requests are about, for the driver.
    pub volume: usize,
    /// Write zeroes is offered. Raw units have none: what is not written cannot be read.
    pub zeroes: bool,
}

impl Export {
    /// A writable export with blocks of 1 byte to 32 MiB, 4 KiB preferred.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            size_bytes,
            read_only: false,
            description: String::new(),
            block_min: 1,
            block_preferred: 4096,
            block_max: 32 << 20,
            volume: 0,
            zeroes: true,
        }
    }

    /// Checks what the protocol demands of an export.
    ///
    /// # Errors
    /// The first demand it does not meet.
    pub fn check(&self) -> Result<(), BadExport> {
        if self.name.len() > STRING_BYTES_MAX || self.description.len() > STRING_BYTES_MAX {
            return Err(BadExport::StringTooLong);
        }
        if self.name.contains('\0') || self.description.contains('\0') {
            return Err(BadExport::StringHoldsNul);
        }
        let (min, preferred, max) = (self.block_min, self.block_preferred, self.block_max);
        let powers = min.is_power_of_two() && preferred.is_power_of_two();
        if !powers || min > 65_536 || preferred < min.max(512) || preferred > 32 << 20 {
            return Err(BadExport::BlockSize);
        }
        if max < preferred || max % min != 0 {
            return Err(BadExport::BlockSize);
        }
        if !self.size_bytes.is_multiple_of(u64::from(min))
            || i64::try_from(self.size_bytes).is_err()
        {
            return Err(BadExport::Size);
        }
        Ok(())
    }

    /// Longest read or write of this export under `limits`.
    pub fn payload_bytes_max(&self, limits: &Limits) -> u32 {
        let max = self.block_max.min(limits.payload_bytes);
        max - max % self.block_min
    }
}

/// Why an export cannot be offered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadExport {
    /// Name or description exceeds 4096 bytes.
    StringTooLong,
    /// Name or description holds a NUL.
    StringHoldsNul,
    /// The three block sizes are not as the protocol demands.
    BlockSize,
    /// Not a multiple of `block_min`, or beyond 2⁶³ - 1.
    Size,
}

impl fmt::Display for BadExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StringTooLong => "name and description take at most 4096 bytes: shorten them",
            Self::StringHoldsNul => "name and description must not hold a NUL character",
            Self::BlockSize => {
                "block_min must be a power of two up to 65536, block_preferred a power of two from \
                 max(512, block_min) to 32 MiB, block_max a multiple of block_min from \
                 block_preferred up"
            }
            Self::Size => "size_bytes must be a multiple of block_min below 2^63",
        })
    }
}

impl std::error::Error for BadExport {}
