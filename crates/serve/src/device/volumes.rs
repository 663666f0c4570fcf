//! The volume table: which stretch of the device's logical blocks is which volume. It is written
//! once, at the format, into the label that the FTL keeps in its root record.
//!
//! | bytes | holds (numbers little-endian) |
//! |---|---|
//! | 0..4 | `b"WVOL"` |
//! | 4..6 | version, 1 |
//! | 6..8 | number of volumes |
//! | then, for each | length of the name (1), name (UTF-8), first block (8), blocks (8), flags (1): bit 0 read-only |
//! | last 4 | CRC-32C of all before |

/// A volume of a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Volume {
    /// What clients ask for.
    pub name: String,
    /// Its first logical block on the device.
    pub first_block: u64,
    /// Its logical blocks.
    pub blocks: u64,
    /// Refuses writes.
    pub read_only: bool,
}

const MAGIC: &[u8; 4] = b"WVOL";
const VERSION: u16 = 1;

/// Longest name of a volume.
pub const NAME_BYTES_MAX: usize = 64;

/// The table as bytes; `None` if it does not fit into a label.
pub fn encode(volumes: &[Volume]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(volumes.len()).ok()?.to_le_bytes());
    for volume in volumes {
        if volume.name.len() > NAME_BYTES_MAX {
            return None;
        }
        bytes.push(volume.name.len() as u8);
        bytes.extend_from_slice(volume.name.as_bytes());
        bytes.extend_from_slice(&volume.first_block.to_le_bytes());
        bytes.extend_from_slice(&volume.blocks.to_le_bytes());
        bytes.push(u8::from(volume.read_only));
    }
    let crc = flash::crc(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    (bytes.len() <= ftl::LABEL_BYTES_MAX).then_some(bytes)
}

/// The table in a label; `None` if the label holds none that is sound.
pub fn decode(label: &[u8]) -> Option<Vec<Volume>> {
    let (body, crc) = label.split_last_chunk::<4>()?;
    if flash::crc(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at_checked(len)?;
        rest = left;
        Some(taken)
    };
    if take(2)? != VERSION.to_le_bytes() {
        return None;
    }
    let count = u16::from_le_bytes(take(2)?.try_into().ok()?);
    let mut volumes = Vec::new();
    for _ in 0..count {
        let len = usize::from(take(1)?[0]);
        let name = String::from_utf8(take(len)?.to_vec()).ok()?;
        let first_block = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let blocks = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let read_only = match take(1)?[0] {
            0 => false,
            1 => true,
            _ => return None,
        };
        volumes.push(Volume { name, first_block, blocks, read_only });
    }
    rest.is_empty().then_some(volumes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<Volume> {
        let volume = |name: &str, first_block, blocks, read_only| Volume {
            name: name.into(),
            first_block,
            blocks,
            read_only,
        };
        vec![volume("data", 0, 1000, false), volume("gold", 1000, 24, true)]
    }

    #[test]
    fn a_table_comes_back_as_it_was() {
        let bytes = encode(&table()).unwrap();
        assert_eq!(decode(&bytes), Some(table()));
    }

    #[test]
    fn no_damaged_or_cut_table_is_taken_for_one() {
        let bytes = encode(&table()).unwrap();
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
    }

    #[test]
    fn a_table_that_exceeds_the_label_is_refused() {
        let volume = Volume { name: "x".repeat(64), first_block: 0, blocks: 1, read_only: false };
        assert_eq!(encode(&vec![volume; 100]), None);
    }
}
