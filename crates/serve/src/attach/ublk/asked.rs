//! What a disk's request asks of the volume over NBD, and what its parameters promise of that.

use super::abi::{self, Descriptor, Parameters};
use crate::nbd::constants as nbd;
use client::wire::Export;

/// Bytes of a sector, in which Linux counts.
pub const SECTOR: u64 = 512;
/// Longest range of a discard or of zeroes in one request.
const RANGE_SECTORS_MAX: u32 = (1 << 31) / SECTOR as u32;
/// Sectors are the smallest request; a block of the volume is what is best written whole.
const SECTOR_SHIFT: u8 = 9;
const BLOCK_SHIFT: u8 = flash::BLOCK_BYTES.trailing_zeros() as u8;

/// A request over NBD.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Asked {
    /// What.
    pub command: u16,
    /// How.
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Asked {
    /// What a descriptor asks; `None` for what no volume does. Data is at most `io_bytes`.
    pub fn of(descriptor: &Descriptor, io_bytes: u32) -> Option<Self> {
        let Descriptor { operation, sectors, first, .. } = *descriptor;
        if operation as u8 == abi::FLUSH {
            // Of the whole disk, whatever else it says.
            return Some(Self { command: nbd::CMD_FLUSH, ..Self::default() });
        }
        let (offset, len) = (first.checked_mul(SECTOR)?, sectors.checked_mul(SECTOR as u32)?);
        let fua = if operation & abi::FUA != 0 { nbd::CMD_FLAG_FUA } else { 0 };
        let command = match operation as u8 {
            abi::READ => nbd::CMD_READ,
            abi::WRITE => nbd::CMD_WRITE,
            abi::DISCARD => nbd::CMD_TRIM,
            abi::WRITE_ZEROES => nbd::CMD_WRITE_ZEROES,
            _ => return None,
        };
        let keeps = command == nbd::CMD_WRITE_ZEROES && operation & abi::NO_UNMAP != 0;
        let no_hole = if keeps { nbd::CMD_FLAG_NO_HOLE } else { 0 };
        let fua = if command == nbd::CMD_READ { 0 } else { fua };
        let asked = Self { command, flags: fua | no_hole, offset, len };
        (asked.data_bytes() <= io_bytes).then_some(asked)
    }

    /// Bytes of its data, whichever way that goes.
    pub fn data_bytes(&self) -> u32 {
        if matches!(self.command, nbd::CMD_READ | nbd::CMD_WRITE) { self.len } else { 0 }
    }

    /// What the disk is told of its end: bytes, or an error of Linux, which NBD numbers the same.
    pub fn result(&self, error: u32) -> i32 {
        match i32::try_from(error) {
            Ok(0) => self.data_bytes() as i32,
            Ok(error @ 1..=MAX_ERRNO) => -error,
            _ => -libc::EIO,
        }
    }
}

const MAX_ERRNO: i32 = 4095;

/// What a disk of this export is like.
pub fn parameters(export: &Export, read_only: bool, io_bytes: u32) -> Parameters {
    let has = |flag: u16| export.flags & flag != 0;
    let attribute = |holds: bool, attribute: u32| if holds { attribute } else { 0 };
    let range = |flag: u16| if has(flag) { RANGE_SECTORS_MAX } else { 0 };
    Parameters {
        len: abi::PARAMETERS_WITHOUT_ZONES,
        types: abi::BASIC_AND_DISCARD,
        attributes: attribute(read_only || has(nbd::SEND_READ_ONLY), abi::READ_ONLY)
            | attribute(has(nbd::SEND_FLUSH), abi::VOLATILE_CACHE)
            | attribute(has(nbd::SEND_FUA), abi::HAS_FUA),
        shifts: [SECTOR_SHIFT, BLOCK_SHIFT, BLOCK_SHIFT, BLOCK_SHIFT],
        sectors_max: io_bytes / SECTOR as u32,
        sectors: export.size / SECTOR,
        discard_granularity: flash::BLOCK_BYTES as u32,
        discard_sectors_max: range(nbd::SEND_TRIM),
        zeroes_sectors_max: range(nbd::SEND_WRITE_ZEROES),
        discard_segments_max: 1,
        ..Parameters::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(operation: u32, first: u64, sectors: u32) -> Option<Asked> {
        Asked::of(&Descriptor::new(operation, first, sectors), 1 << 19)
    }

    #[test]
    fn each_request_of_a_disk_is_one_over_nbd() {
        let is = |command, flags| Some(Asked { command, flags, offset: 4096, len: 8192 });
        assert_eq!(asked(abi::READ.into(), 8, 16), is(nbd::CMD_READ, 0));
        assert_eq!(asked(u32::from(abi::WRITE) | abi::FUA, 8, 16), is(nbd::CMD_WRITE, 1));
        assert_eq!(asked(abi::DISCARD.into(), 8, 16), is(nbd::CMD_TRIM, 0));
        let zeroes = u32::from(abi::WRITE_ZEROES);
        assert_eq!(asked(zeroes, 8, 16), is(nbd::CMD_WRITE_ZEROES, 0));
        assert_eq!(asked(zeroes | abi::NO_UNMAP, 8, 16), is(nbd::CMD_WRITE_ZEROES, 2));
        let flush = Asked { command: nbd::CMD_FLUSH, ..Asked::default() };
        assert_eq!(asked(abi::FLUSH.into(), u64::MAX, 0), Some(flush), "as Linux says it");
        // What is none, or has more data than there is memory for.
        assert_eq!([asked(4, 0, 1), asked(abi::READ.into(), 0, 1025)], [None, None]);
        assert_eq!(asked(abi::READ.into(), u64::MAX, 1), None);
        assert_eq!(asked(abi::DISCARD.into(), 0, 1 << 20).map(|it| it.len), Some(1 << 29));
    }

    #[test]
    fn an_answer_is_bytes_or_an_error_of_linux() {
        let read = asked(abi::READ.into(), 0, 2).unwrap();
        assert_eq!((read.result(0), read.result(28)), (1024, -libc::ENOSPC));
        assert_eq!((read.result(1 << 20), read.result(u32::MAX)), (-libc::EIO, -libc::EIO));
        assert_eq!(asked(abi::DISCARD.into(), 0, 2).unwrap().result(0), 0);
    }

    #[test]
    fn a_disk_promises_what_its_export_does() {
        let all = nbd::SEND_FLUSH | nbd::SEND_FUA | nbd::SEND_TRIM | nbd::SEND_WRITE_ZEROES;
        let told =
            parameters(&Export { size: 1 << 20, flags: all, ..Export::default() }, false, 1 << 19);
        assert_eq!((told.sectors, told.sectors_max), (2048, 1024));
        assert_eq!(told.attributes, abi::VOLATILE_CACHE | abi::HAS_FUA);
        assert_eq!(told.discard_sectors_max, 1 << 22);
        let plain = parameters(&Export { size: 512, ..Export::default() }, true, 1 << 19);
        assert_eq!((plain.attributes, plain.zeroes_sectors_max), (abi::READ_ONLY, 0));
    }
}
