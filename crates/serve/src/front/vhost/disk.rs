//! What a volume is to a guest: the features that are offered, and the space of its settings (virtio's block device).

use super::request::SECTOR_BYTES;

/// A volume, for a guest.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Disk {
    /// By which requests name it.
    pub volume: usize,
    /// Its size.
    pub bytes: u64,
    /// Nothing of it may be changed.
    pub read_only: bool,
    /// The guest knows no flush: what is answered is durable.
    pub write_through: bool,
    /// What people call it.
    pub name: String,
}

/// Bits of features.
pub mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEGMENTS_MAX: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const QUEUES: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const ZEROES: u64 = 1 << 14;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// There are features of the protocol, too.
    pub const PROTOCOL: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Rings of a guest. What names one has eight bits.
pub const QUEUES_MAX: u16 = 256;
/// Bytes of the name that a guest reads.
pub const NAME_BYTES: usize = 20;
/// Most bytes of one trim or of zeroes: whole blocks that 32 bits count.
pub const DISCARD_BYTES_MAX: u64 = (1 << 32) - flash::BLOCK_BYTES as u64;
/// Most segments of one request: with head and status as many as QEMU's smallest common ring has.
const SEGMENTS_MAX: u32 = 126;
/// Most bytes of one; all of them together stay below what a request may have.
const SEGMENT_BYTES_MAX: u32 = 256 << 10;
/// Sectors of a block, as a power of two, and as a number.
const BLOCK_EXPONENT: u8 = 3;
const BLOCK_SECTORS: u32 = 1 << BLOCK_EXPONENT;
const _: () = assert!(SECTOR_BYTES << BLOCK_EXPONENT == flash::BLOCK_BYTES as u64);

/// Bytes of the settings that a guest may ask for.
pub const SETTINGS_BYTES: usize = 256;

impl Disk {
    /// The features that are offered.
    pub fn features(&self) -> u64 {
        use feature::{
            BLOCK_SIZE, DISCARD, EVENT_INDEX, FLUSH, INDIRECT, PROTOCOL, QUEUES, READ_ONLY,
            SEGMENTS_MAX, SIZE_MAX, TOPOLOGY, VERSION_1, ZEROES,
        };
        let always = SIZE_MAX | SEGMENTS_MAX | BLOCK_SIZE | FLUSH | TOPOLOGY | QUEUES;
        let ring = INDIRECT | EVENT_INDEX | PROTOCOL | VERSION_1;
        always | ring | if self.read_only { READ_ONLY } else { DISCARD | ZEROES }
    }

    /// The settings, byte for byte.
    pub fn settings(&self) -> [u8; SETTINGS_BYTES] {
        let mut space = [0; SETTINGS_BYTES];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.bytes / SECTOR_BYTES).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        // Sectors are what programs that boot a machine know; that a block is more tells the topology.
        put(20, &(SECTOR_BYTES as u32).to_le_bytes());
        put(24, &[BLOCK_EXPONENT, 0]);
        put(26, &(BLOCK_SECTORS as u16).to_le_bytes());
        put(28, &BLOCK_SECTORS.to_le_bytes());
        // There is a cache that is written back, which a flush is for.
        put(32, &[1]);
        put(34, &QUEUES_MAX.to_le_bytes());
        let sectors = (DISCARD_BYTES_MAX / SECTOR_BYTES) as u32;
        // Of both, sectors and ranges at most; of a trim, what it should be a multiple of.
        put(36, &sectors.to_le_bytes());
        put(40, &1u32.to_le_bytes());
        put(44, &BLOCK_SECTORS.to_le_bytes());
        put(48, &sectors.to_le_bytes());
        put(52, &1u32.to_le_bytes());
        // Zeroes may give their room back.
        put(56, &[1]);
        space
    }

    /// By which a guest's system tells disks apart. A longer name ends with a sum of all of it.
    pub fn short_name(&self) -> [u8; NAME_BYTES] {
        let mut short = [0; NAME_BYTES];
        let name = self.name.as_bytes();
        if name.len() <= NAME_BYTES {
            short[..name.len()].copy_from_slice(name);
            return short;
        }
        let begin = &self.name[..self.name.floor_char_boundary(NAME_BYTES - 9)];
        let text = format!("{begin}-{:08x}", flash::crc(name));
        short[..text.len()].copy_from_slice(text.as_bytes());
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_tells_its_size_in_sectors_and_that_it_is_read_only() {
        let disk = Disk {
            volume: 0,
            bytes: 3 << 20,
            read_only: false,
            write_through: false,
            name: "data".into(),
        };
        assert_eq!(disk.settings()[..8], 6144u64.to_le_bytes());
        let fixed = Disk { read_only: true, ..disk.clone() };
        let changes = feature::DISCARD | feature::ZEROES;
        assert_eq!(disk.features() & (changes | feature::READ_ONLY), changes);
        assert_eq!(fixed.features() & (changes | feature::READ_ONLY), feature::READ_ONLY);
        assert!(u64::from(SEGMENTS_MAX) * u64::from(SEGMENT_BYTES_MAX) <= 32 << 20);
    }

    #[test]
    fn long_names_stay_apart() {
        let short = |name: &str| {
            Disk { name: name.into(), volume: 0, bytes: 0, read_only: false, write_through: false }
                .short_name()
        };
        assert_eq!(short("data"), *b"data\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(short("exactly-twenty-bytes"), *b"exactly-twenty-bytes");
        let (one, other) = (short("a-name-of-many-bytes-1"), short("a-name-of-many-bytes-2"));
        assert!(one != other && one.starts_with(b"a-name-of-m-"));
        let umlauts = short("ääääääääääääääääääääääää");
        assert!(std::str::from_utf8(&umlauts).is_ok());
    }
}
