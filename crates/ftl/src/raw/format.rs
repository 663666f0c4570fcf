//! What raw units keep on flash: 32 bytes beside each slot, and lane records. The tables in
//! docs/formats.md are the reference; the golden bytes below hold the two together.
//!
//! One checksum covers device, place, header and data of a slot, so that a slot is sound as a whole
//! or not at all, and sixteen bytes are left for the owner's tag.

use crate::api::MountError;
use crate::format::{sum_matches, u32_at, u64_at};
use flash::{BLOCK_BYTES, BlockId, Oob, SlotId, SlotRead, crc, crc_append};

/// Version of the on-flash format of raw units.
pub const RAW_VERSION: u16 = 1;

/// Most bytes of a raw device's label.
pub const RAW_LABEL_BYTES_MAX: usize = 1024;

const KIND_DATA: u8 = 16;
const KIND_RECORD: u8 = 17;
const FLAG_WHOLE: u8 = 1;
const FLAG_TAGGED: u8 = 2;

/// The out-of-band facts of a slot of a raw block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RawHeader {
    /// The raw block, counted within its lane.
    pub raw_block: u32,
    /// Names the write of the raw block since its erase; a later one has a larger number.
    pub sequence: u64,
    /// Nothing of the raw block counts before all of it is programmed.
    pub whole: bool,
    /// The owner's sixteen bytes.
    pub tag: Option<u128>,
}

/// Encodes `header` for a slot whose data has the CRC-32C `payload_crc`.
///
/// | bytes | what |
/// |---|---|
/// | 0..4 | CRC-32C of the device's uuid, bytes 4..32, the slot id (u32) and the data's CRC-32C (u32) |
/// | 4..8 | raw block within its lane |
/// | 8..14 | sequence |
/// | 14 | kind: 16 data, 17 lane record |
/// | 15 | bit 0: counts only when whole; bit 1: has a tag |
/// | 16..32 | tag |
pub fn encode_raw_header(header: &RawHeader, slot: SlotId, uuid_crc: u32, payload_crc: u32) -> Oob {
    let flags = if header.whole { FLAG_WHOLE } else { 0 } | header.tag.map_or(0, |_| FLAG_TAGGED);
    let word = header.sequence | u64::from(KIND_DATA) << 48 | u64::from(flags) << 56;
    seal(header.raw_block, word, header.tag.unwrap_or(0), slot, uuid_crc, payload_crc)
}

/// The header of a slot as read, if slot and data are sound, of this device and this very place.
pub fn decode_raw_header(
    oob: &Oob,
    slot: SlotId,
    uuid_crc: u32,
    data_crc: u32,
) -> Option<RawHeader> {
    let flags = oob[15];
    let sound = u32_at(oob, 0) == header_crc(oob, slot, uuid_crc, data_crc);
    if !sound || oob[14] != KIND_DATA || flags > FLAG_WHOLE | FLAG_TAGGED {
        return None;
    }
    let tag = u128::from(u64_at(oob, 16)) | u128::from(u64_at(oob, 24)) << 64;
    Some(RawHeader {
        raw_block: u32_at(oob, 4),
        sequence: u64_at(oob, 8) & crate::format::MASK_48,
        whole: flags & FLAG_WHOLE != 0,
        tag: (flags & FLAG_TAGGED != 0).then_some(tag),
    })
}

/// The header of a slot that a read returned; `None` unless it is sound.
pub(crate) fn header_of(read: &SlotRead<'_>, slot: SlotId, uuid_crc: u32) -> Option<RawHeader> {
    let readable = read.is_readable();
    decode_raw_header(&read.oob, slot, uuid_crc, read.crc).filter(|_| readable)
}

/// The OOB of slot `slot`, which belongs to record `number` of a lane, or pads it.
pub(crate) fn encode_record_oob(number: u64, slot: SlotId, uuid_crc: u32, data_crc: u32) -> Oob {
    seal(0, number | u64::from(KIND_RECORD) << 48, 0, slot, uuid_crc, data_crc)
}

/// The number of the record that a slot holds, if it is sound.
pub(crate) fn decode_record_oob(
    oob: &Oob,
    slot: SlotId,
    uuid_crc: u32,
    data_crc: u32,
) -> Option<u64> {
    let sound = u32_at(oob, 0) == header_crc(oob, slot, uuid_crc, data_crc);
    (sound && oob[14] == KIND_RECORD).then(|| u64_at(oob, 8) & crate::format::MASK_48)
}

/// Whether a slot holds something of the device, whatever that is.
pub(crate) fn is_sound(oob: &Oob, slot: SlotId, uuid_crc: u32, data_crc: u32) -> bool {
    u32_at(oob, 0) == header_crc(oob, slot, uuid_crc, data_crc)
}

fn seal(raw_block: u32, word: u64, tag: u128, slot: SlotId, uuid_crc: u32, data_crc: u32) -> Oob {
    let mut oob = [0; 32];
    oob[4..8].copy_from_slice(&raw_block.to_le_bytes());
    oob[8..16].copy_from_slice(&word.to_le_bytes());
    oob[16..32].copy_from_slice(&tag.to_le_bytes());
    let crc = header_crc(&oob, slot, uuid_crc, data_crc);
    oob[0..4].copy_from_slice(&crc.to_le_bytes());
    oob
}

fn header_crc(oob: &Oob, slot: SlotId, uuid_crc: u32, data_crc: u32) -> u32 {
    let mut covered = [0; 36];
    covered[..28].copy_from_slice(&oob[4..]);
    covered[28..32].copy_from_slice(&slot.0.to_le_bytes());
    covered[32..].copy_from_slice(&data_crc.to_le_bytes());
    crc_append(uuid_crc, &covered)
}

/// All that recovery must know of a lane beside what lies in its blocks. Every record repeats the
/// whole of it, so that the newest sound one is enough.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LaneRecord {
    /// As formatted.
    pub uuid: u128,
    /// Units, blocks per unit, pages per block, slots per page.
    pub shape: [u32; 4],
    /// Units of a lane.
    pub gang: u32,
    /// Raw blocks of a lane.
    pub raw_blocks: u32,
    /// Which lane.
    pub lane: u32,
    /// Counts the records of the lane.
    pub number: u64,
    /// No sequence at or above this was in use when the record was made.
    pub sequence_next: u64,
    /// Mounts since the format.
    pub generation: u64,
    /// The format was complete.
    pub formatted: bool,
    /// Made by a clean shutdown: nothing was programmed or erased after it.
    pub clean: bool,
    /// The owner's bytes.
    pub label: Vec<u8>,
    /// Blocks whose content counts no more if it has this sequence.
    pub dead: Vec<(BlockId, u64)>,
    /// Raw blocks that hold something and are not whole. Where `names_all` is off: if `clean`, some of
    /// those that may be written on.
    pub open: Vec<Named>,
    /// `open` names all of them: a raw block whose sequence is below `sequence_next`, and which is neither
    /// named nor dead, was whole when the record was made.
    pub names_all: bool,
    /// By raw block the mark of its sequence, see [`mark_of`]; 0 if it was erased. Empty where there is no
    /// room for that.
    pub marks: Vec<u16>,
    /// Bytes of a mark: 1 or 2, or 0 if there are none.
    pub mark_bytes: u8,
}

/// A raw block that is named by a lane record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Named {
    /// Counted within the lane.
    pub raw_block: u32,
    /// That may be read.
    pub pages: u32,
    /// What more there is to know of it.
    pub state: NamedState,
}

/// What a lane record says of a raw block that is not whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NamedState {
    /// After a clean shutdown it may be written on.
    Open,
    /// It must be erased before it is written, or was being written.
    Torn,
    /// Likewise, and blocks of it are lost: their pages cannot be read.
    Lost,
}

// An older version compares the pages with those that it finds, so that these bits say "torn" to it.
const NAMED_TORN: u32 = 1 << 31;
const NAMED_LOST: u32 = 1 << 30;

impl Named {
    fn word(self) -> u32 {
        self.pages
            | match self.state {
                NamedState::Open => 0,
                NamedState::Torn => NAMED_TORN,
                NamedState::Lost => NAMED_TORN | NAMED_LOST,
            }
    }

    fn of_words(raw_block: u32, word: u32) -> Self {
        let state = match (word & NAMED_TORN != 0, word & NAMED_LOST != 0) {
            (false, false) => NamedState::Open,
            (true, true) => NamedState::Lost,
            _ => NamedState::Torn,
        };
        Self { raw_block, pages: word & !(NAMED_TORN | NAMED_LOST), state }
    }
}

/// What tells one write of a raw block from those before and after it, in so many bytes; never 0.
pub(crate) fn mark_of(sequence: u64, bytes: u8) -> u16 {
    let marks = (1u64 << (8 * bytes)) - 1;
    (1 + sequence % marks) as u16
}

const FLAG_FORMATTED: u8 = 1;
const FLAG_CLEAN: u8 = 2;
const FLAG_NAMES_ALL: u8 = 4;
const MAGIC: &[u8; 8] = b"WeirRawU";
const LABEL_AT: usize = 96;

/// True if these are the bytes of a lane record, sound or not.
pub(crate) fn is_lane_record(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

impl LaneRecord {
    /// Dead blocks that a record with a label of `label_bytes` can name, if nothing is open.
    pub fn dead_max(label_bytes: usize) -> usize {
        (BLOCK_BYTES - 4 - LABEL_AT - label_bytes) / 12
    }

    /// Open raw blocks that there is room for beside the dead ones.
    pub fn open_max(&self) -> usize {
        (BLOCK_BYTES - 4 - LABEL_AT - self.label.len() - 12 * self.dead.len()) / 8
    }

    /// Bytes that a mark of each raw block may have beside what else there is; 0 if there is no room.
    pub fn mark_bytes_max(&self) -> u8 {
        let used = self.label.len() + 12 * self.dead.len() + 8 * self.open.len();
        let room = BLOCK_BYTES - 4 - LABEL_AT - used;
        (room / (self.raw_blocks as usize).max(1)).min(2) as u8
    }

    /// The 4096 bytes of the record; see docs/formats.md.
    ///
    /// # Panics
    /// If label, dead and open blocks do not fit: the caller keeps to the limits above.
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        assert!(self.label.len() <= RAW_LABEL_BYTES_MAX, "the label fits the record");
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&RAW_VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.label.len() as u16).to_le_bytes());
        for (set, flag) in [
            (self.formatted, FLAG_FORMATTED),
            (self.clean, FLAG_CLEAN),
            (self.names_all, FLAG_NAMES_ALL),
        ] {
            bytes[12] |= if set { flag } else { 0 };
        }
        bytes[13] = self.mark_bytes;
        bytes[16..32].copy_from_slice(&self.uuid.to_le_bytes());
        let words = self.shape.into_iter().chain([self.gang, self.raw_blocks, self.lane]);
        for (at, value) in (32..).step_by(4).zip(words) {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[64..72].copy_from_slice(&self.number.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.sequence_next.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.generation.to_le_bytes());
        bytes[88..92].copy_from_slice(&(self.dead.len() as u32).to_le_bytes());
        bytes[92..96].copy_from_slice(&(self.open.len() as u32).to_le_bytes());
        let mut at = LABEL_AT + self.label.len();
        bytes[LABEL_AT..at].copy_from_slice(&self.label);
        for &(block, sequence) in &self.dead {
            bytes[at..at + 4].copy_from_slice(&block.0.to_le_bytes());
            bytes[at + 4..at + 12].copy_from_slice(&sequence.to_le_bytes());
            at += 12;
        }
        for named in &self.open {
            bytes[at..at + 4].copy_from_slice(&named.raw_block.to_le_bytes());
            bytes[at + 4..at + 8].copy_from_slice(&named.word().to_le_bytes());
            at += 8;
        }
        let width = usize::from(self.mark_bytes);
        for mark in &self.marks {
            bytes[at..at + width].copy_from_slice(&mark.to_le_bytes()[..width]);
            at += width;
        }
        assert!(at <= BLOCK_BYTES - 4, "the marks fit the record");
        let sum = crc(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are no lane record or damaged; an error for another version.
    pub fn decode(bytes: &[u8]) -> Option<Result<Self, MountError>> {
        if bytes.len() != BLOCK_BYTES || !is_lane_record(bytes) || !sum_matches(bytes) {
            return None;
        }
        let found = u16::from_le_bytes([bytes[8], bytes[9]]);
        if found != RAW_VERSION {
            return Some(Err(MountError::Version { found }));
        }
        let label_bytes = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
        let (dead, open) = (u32_at(bytes, 88) as usize, u32_at(bytes, 92) as usize);
        let room = BLOCK_BYTES - 4 - LABEL_AT;
        let raw_blocks = u32_at(bytes, 52) as usize;
        let mark_bytes = if bytes[13] <= 2 { bytes[13] } else { 0 };
        let width = usize::from(mark_bytes);
        if label_bytes > RAW_LABEL_BYTES_MAX
            || dead > room / 12
            || open > room / 8
            || label_bytes + 12 * dead + 8 * open > room
            || width > 0 && raw_blocks > (room - label_bytes - 12 * dead - 8 * open) / width
        {
            return None;
        }
        let dead_at = LABEL_AT + label_bytes;
        let open_at = dead_at + 12 * dead;
        let marks_at = open_at + 8 * open;
        let marks =
            bytes[marks_at..].chunks(width.max(1)).take(if width > 0 { raw_blocks } else { 0 });
        Some(Ok(Self {
            uuid: u128::from(u64_at(bytes, 16)) | u128::from(u64_at(bytes, 24)) << 64,
            shape: std::array::from_fn(|i| u32_at(bytes, 32 + 4 * i)),
            gang: u32_at(bytes, 48),
            raw_blocks: u32_at(bytes, 52),
            lane: u32_at(bytes, 56),
            number: u64_at(bytes, 64),
            sequence_next: u64_at(bytes, 72),
            generation: u64_at(bytes, 80),
            formatted: bytes[12] & FLAG_FORMATTED != 0,
            clean: bytes[12] & FLAG_CLEAN != 0,
            names_all: bytes[12] & FLAG_NAMES_ALL != 0,
            marks: marks
                .map(|mark| mark.iter().rev().fold(0, |all, &it| all << 8 | u16::from(it)))
                .collect(),
            mark_bytes,
            label: bytes[LABEL_AT..dead_at].to_vec(),
            dead: (dead_at..open_at)
                .step_by(12)
                .map(|at| (BlockId(u32_at(bytes, at)), u64_at(bytes, at + 4)))
                .collect(),
            open: (0..open)
                .map(|i| open_at + 8 * i)
                .map(|at| Named::of_words(u32_at(bytes, at), u32_at(bytes, at + 4)))
                .collect(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RawHeader {
        RawHeader {
            raw_block: 0x0403_0201,
            sequence: 0x0000_a1a2_a3a4_a5a6,
            whole: true,
            tag: Some(0x1f1e_1d1c_1b1a_1918_1716_1514_1312_1110),
        }
    }

    #[test]
    fn format_v1_raw_header_bytes() {
        let oob = encode_raw_header(&header(), SlotId(77), crate::format::uuid_crc(5), 99);
        assert_eq!(oob[4..8], [1, 2, 3, 4]);
        assert_eq!(oob[8..16], [0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 16, 3]);
        assert_eq!(oob[16..20], [0x10, 0x11, 0x12, 0x13]);
        assert_eq!(oob[28..32], [0x1c, 0x1d, 0x1e, 0x1f]);
        let uuid_crc = crate::format::uuid_crc(5);
        assert_eq!(decode_raw_header(&oob, SlotId(77), uuid_crc, 99), Some(header()));
    }

    #[test]
    fn a_raw_header_is_refused_elsewhere_with_other_data_and_after_any_bit_flip() {
        let uuid_crc = crate::format::uuid_crc(5);
        let oob = encode_raw_header(&header(), SlotId(77), uuid_crc, 99);
        assert_eq!(decode_raw_header(&oob, SlotId(78), uuid_crc, 99), None);
        assert_eq!(decode_raw_header(&oob, SlotId(77), uuid_crc, 98), None);
        assert_eq!(decode_raw_header(&oob, SlotId(77), uuid_crc ^ 1, 99), None);
        assert_eq!(decode_record_oob(&oob, SlotId(77), uuid_crc, 99), None);
        for bit in 0..256 {
            let mut flipped = oob;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_raw_header(&flipped, SlotId(77), uuid_crc, 99), None, "bit {bit}");
        }
    }

    #[test]
    fn marks_tell_writes_apart_are_never_nought_and_take_the_room_that_is_left() {
        assert!((0..70_000).all(|sequence| mark_of(sequence, 1) != 0 && mark_of(sequence, 2) != 0));
        assert_ne!(mark_of(7, 1), mark_of(8, 1));
        let record = |raw_blocks| LaneRecord { raw_blocks, ..LaneRecord::default() };
        assert_eq!(record(1998).mark_bytes_max(), 2);
        assert_eq!(record(1999).mark_bytes_max(), 1);
        assert_eq!(record(3997).mark_bytes_max(), 0);
    }

    #[test]
    fn a_lane_record_survives_its_encoding_and_notices_damage() {
        let mut record = LaneRecord {
            uuid: 1 << 100 | 7,
            shape: [1, 2, 3, 4],
            gang: 2,
            raw_blocks: 9,
            lane: 5,
            number: 6,
            sequence_next: 7,
            generation: 8,
            formatted: true,
            clean: true,
            label: vec![3; RAW_LABEL_BYTES_MAX],
            dead: vec![(BlockId(4), 5); 3],
            open: Vec::new(),
            names_all: true,
            marks: vec![0xab, 0, 0xffff, 0x1234, 1, 2, 3, 4, 5],
            mark_bytes: 2,
        };
        let named = |state| Named { raw_block: 1, pages: 2, state };
        record.open = vec![named(NamedState::Torn); record.open_max() - 3];
        record.open[1] = named(NamedState::Lost);
        record.open[2] = named(NamedState::Open);
        let mut bytes = record.encode();
        assert_eq!(LaneRecord::decode(&bytes[..]), Some(Ok(record)));
        bytes[1000] ^= 1;
        assert_eq!(LaneRecord::decode(&bytes[..]), None);
    }
}
