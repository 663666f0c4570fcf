//! The numbers and structures of ublk, Linux's block devices in user space, as `linux/ublk_cmd.h` has them. Commands are
//! numbered as ioctls are, which Linux 6.4 and newer want.

use std::mem::{offset_of, size_of};

/// Where devices are made.
pub const CONTROL: &str = "/dev/ublk-control";

const fn command(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn reads(number: u32) -> u32 {
    command(2, number, size_of::<Control>())
}

const fn changes(number: u32) -> u32 {
    command(3, number, size_of::<Control>())
}

/// Tells what a device is.
pub const GET_INFO: u32 = reads(0x02);
/// Makes a device.
pub const ADD: u32 = changes(0x04);
/// Removes it.
pub const DELETE: u32 = changes(0x05);
/// Shows its disk.
pub const START: u32 = changes(0x06);
/// Takes the disk away.
pub const STOP: u32 = changes(0x07);
/// Says what the disk is like.
pub const SET_PARAMETERS: u32 = changes(0x08);
/// A new server comes for a device whose server has gone.
pub const BEGIN_RECOVERY: u32 = changes(0x10);
/// It is there.
pub const END_RECOVERY: u32 = changes(0x11);
/// Removes it, as soon as nobody has its disk open any more, and does not wait for that (Linux 6.9 and newer).
pub const DELETE_LATER: u32 = reads(0x14);
/// Tells what the driver can do.
pub const GET_FEATURES: u32 = reads(0x13);
/// The disk has another size (Linux 6.16 and newer).
pub const UPDATE_SIZE: u32 = changes(0x15);

/// Waits for a request.
pub const FETCH: u32 = command(3, 0x20, size_of::<Commit>());
/// Ends a request, and waits for the next one of its tag.
pub const COMMIT_AND_FETCH: u32 = command(3, 0x21, size_of::<Commit>());

/// The device outlives its server; and what the server had not answered is asked of the next one.
pub const RECOVERY: u64 = 1 << 3 | 1 << 4;
/// Commands are numbered as ioctls are.
pub const IOCTL_NUMBERS: u64 = 1 << 6;
/// Data of requests is copied by reads and writes of the device through which they come ([`data_at`]).
pub const USER_COPY: u64 = 1 << 7;
/// The disk has zones.
pub const ZONED: u64 = 1 << 8;
/// The driver knows [`UPDATE_SIZE`].
pub const CAN_RESIZE: u64 = 1 << 10;

/// Any number will do for a new device.
pub const ANY: u32 = u32::MAX;

/// Requests of a disk.
pub const READ: u8 = 0;
/// Write.
pub const WRITE: u8 = 1;
/// Flush.
pub const FLUSH: u8 = 2;
/// Discard.
pub const DISCARD: u8 = 3;
/// Write zeroes.
pub const WRITE_ZEROES: u8 = 5;
/// Open a zone.
pub const ZONE_OPEN: u8 = 10;
/// Close one.
pub const ZONE_CLOSE: u8 = 11;
/// Make one full.
pub const ZONE_FINISH: u8 = 12;
/// Write where its write pointer is, and tell where that was.
pub const ZONE_APPEND: u8 = 13;
/// Make all of them empty.
pub const ZONE_RESET_ALL: u8 = 14;
/// Make one empty.
pub const ZONE_RESET: u8 = 15;
/// Tell what zones are like, at most as many as the request has sectors: a [`ZONE_BYTES`] each.
pub const REPORT_ZONES: u8 = 18;
/// Bytes by which Linux is told of a zone (`struct blk_zone`).
pub const ZONE_BYTES: usize = 64;
/// Durable before the answer.
pub const FUA: u32 = 1 << 13;
/// Of zeroes: room for later writes is kept.
pub const NO_UNMAP: u32 = 1 << 15;

/// Attributes of a disk.
pub const READ_ONLY: u32 = 1 << 0;
/// It has a volatile cache.
pub const VOLATILE_CACHE: u32 = 1 << 2;
/// It knows durable writes.
pub const HAS_FUA: u32 = 1 << 3;
/// Which parameters are said: the basic ones, and those of discards.
pub const BASIC_AND_DISCARD: u32 = 0b11;
/// The basic ones, and those of zones.
pub const BASIC_AND_ZONES: u32 = 0b1001;
/// Bytes of the parameters up to those of discards, which every driver knows.
pub const PARAMETERS_WITHOUT_ZONES: u32 = 64;

/// Where the descriptors of the first queue are mapped; those of the next ones follow at [`queue_map_bytes`].
pub const DESCRIPTORS_AT: u64 = 0;
const QUEUE_DEPTH_MAX: usize = 4096;

/// Where the data of a request is read and written in the device through which it came.
pub fn data_at(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + (u64::from(queue) << 41) + (u64::from(tag) << 25)
}

/// Bytes between the descriptors of two queues.
pub fn queue_map_bytes(page: usize) -> usize {
    (QUEUE_DEPTH_MAX * size_of::<Descriptor>()).next_multiple_of(page)
}

/// A command to the control device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    /// Which device.
    pub device: u32,
    /// Which queue, if it is about one.
    pub queue: u16,
    /// Of what is at the address.
    pub len: u16,
    /// Of what goes with it, or comes back.
    pub address: u64,
    /// A word that goes with it.
    pub data: u64,
    /// Nothing.
    pub reserved: u64,
}
const _: () = assert!(size_of::<Control>() == 32);

impl Control {
    /// About a device.
    pub fn of(device: u32) -> Self {
        Self { device, queue: u16::MAX, ..Self::default() }
    }

    /// The part of a submission that is the command's.
    pub fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// A device.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    /// Its queues.
    pub queues: u16,
    /// Requests of each at a time.
    pub depth: u16,
    /// How it is.
    pub state: u16,
    /// Nothing.
    pub pad: u16,
    /// Most bytes of a request's data.
    pub io_bytes: u32,
    /// Its number.
    pub device: u32,
    /// The process that serves it.
    pub server: i32,
    /// Nothing.
    pub pad_too: u32,
    /// What it can do.
    pub flags: u64,
    /// Nothing.
    pub reserved: [u64; 4],
}
const _: () = assert!(size_of::<Info>() == 64 && offset_of!(Info, flags) == 24);

/// What a disk is like.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Parameters {
    /// Of all this.
    pub len: u32,
    /// Which parts of it are said.
    pub types: u32,
    /// Attributes.
    pub attributes: u32,
    /// Powers of two: what a request is a multiple of, what is best written whole, the best and the least request.
    pub shifts: [u8; 4],
    /// Of a request.
    pub sectors_max: u32,
    /// Requests do not cross multiples of this.
    pub chunk_sectors: u32,
    /// Of the disk.
    pub sectors: u64,
    /// Requests' memory does not cross multiples of this.
    pub boundary: u64,
    /// Where discards begin to be whole.
    pub discard_alignment: u32,
    /// What they are multiples of.
    pub discard_granularity: u32,
    /// Of a discard.
    pub discard_sectors_max: u32,
    /// Of a write of zeroes.
    pub zeroes_sectors_max: u32,
    /// Ranges of a discard.
    pub discard_segments_max: u16,
    /// Nothing.
    pub reserved: u16,
    /// The device's numbers, which the driver says.
    pub numbers: [u32; 4],
    /// Zones that may be open at a time; 0: any number.
    pub zones_open_max: u32,
    /// Zones that may be active at a time; 0: any number.
    pub zones_active_max: u32,
    /// Of an append.
    pub append_sectors_max: u32,
    /// Nothing.
    pub reserved_too: [u32; 5],
    /// Nothing.
    pub pad: u32,
}
const _: () = assert!(size_of::<Parameters>() == 112);
const _: () = assert!(offset_of!(Parameters, discard_alignment) == 40);
const _: () = assert!(offset_of!(Parameters, zones_open_max) == 76);

/// A request, as the driver tells it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// What to do, and flags from bit 8 on.
    pub operation: u32,
    /// How many sectors.
    pub sectors: u32,
    /// The first one.
    pub first: u64,
    address: u64,
}
const _: () = assert!(size_of::<Descriptor>() == 24);

/// The end of a request, and where the data of the next one of its tag goes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Of which queue.
    pub queue: u16,
    /// Which request.
    pub tag: u16,
    /// Bytes, or an error that is negative.
    pub result: i32,
    /// Of the memory; of an append that has ended the sector where its data is.
    pub address: u64,
}
const _: () = assert!(size_of::<Commit>() == 16);

impl Commit {
    /// The part of a submission that is the command's.
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

impl Descriptor {
    #[cfg(test)]
    pub fn new(operation: u32, first: u64, sectors: u32) -> Self {
        Self { operation, sectors, first, address: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernels_header() {
        assert_eq!([GET_INFO, ADD, UPDATE_SIZE], [0x8020_7502, 0xc020_7504, 0xc020_7515]);
        assert_eq!(DELETE_LATER, 0x8020_7514);
        assert_eq!([FETCH, COMMIT_AND_FETCH], [0xc010_7520, 0xc010_7521]);
        assert_eq!((data_at(0, 0), data_at(1, 2)), (0x8000_0000, 0x200_8400_0000));
        assert_eq!((queue_map_bytes(4096), queue_map_bytes(65536)), (98_304, 131_072));
        let command = Control { len: 2, address: 3, data: 4, ..Control::of(1) };
        assert_eq!(command.bytes()[..6], [1, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(command.bytes()[16], 4);
        let commit = Commit { queue: 1, tag: 2, result: -5, address: 6 };
        assert_eq!(commit.bytes()[..5], [1, 0, 2, 0, 0xfb]);
    }
}
