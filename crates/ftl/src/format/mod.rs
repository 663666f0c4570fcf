//! The on-flash format: every byte that Weir keeps beside and instead of host data. The tables in
//! docs/formats.md are the reference; tests there and here hold the two together.
//!
//! Parse at the edge: a decoder returns `None` or an error for bytes that are not sound, whatever
//! they are, and never panics.

mod snapshots;

pub use snapshots::{CloneRecord, SNAPSHOT_BYTES_MAX, ShadowStretch, SnapshotRecord};

use flash::{BLOCK_BYTES, BlockId, Geometry, Oob, SlotId, crc, crc_append};

/// Most bytes of a label.
pub const LABEL_BYTES_MAX: usize = 3072;

/// Version of the on-flash format, as long as there is no clone ([`VERSION_CLONES`]). 5: root records have snapshots, and the map has their shadows. 4: the band table says which life of a band the checkpoint knows, see
/// [`BandNote`]. 3: slots say how far all was durable and vouch for earlier ones, see
/// [`Voucher`], and checkpoints have parity. 2: root records and footers lie in two places, and a root record holds what a rebuild
/// without a footer needs.
pub const VERSION: u16 = 5;

/// Checkpoints have pages of parity from this version on.
const VERSION_PARITY: u16 = 3;

/// The band table has an entry of 8 bytes for each band from this version on; before, a bit.
const VERSION_LIVES: u16 = 4;

/// Root records have snapshots from this version on.
const VERSION_SNAPSHOTS: u16 = 5;

/// Root records have clones in this version, and are of [`VERSION`] when there is none: an older build that mounted a
/// device with clones would take their blocks for empty ones.
pub(crate) const VERSION_CLONES: u16 = 6;

/// The oldest version that is still mounted. The first checkpoint after that is of [`VERSION`].
pub const VERSION_OLDEST: u16 = 2;

/// A record of a version that this build does not read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnknownVersion {
    /// The version that the record names.
    pub found: u16,
}

/// Map entries of one map chunk.
pub(crate) const CHUNK_ENTRIES: usize = BLOCK_BYTES / 4;

/// Bytes of an entry of the band table, and its bit that says that the band is open.
const NOTE_BYTES: usize = 8;
const NOTE_OPEN: u64 = 1 << 63;

/// What a checkpoint says of a band.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct BandNote {
    /// Pages can still go to it.
    pub open: bool,
    /// The order of its first page: it names the band's life since its last erase. 0: it holds nothing, or that
    /// is not known.
    pub first_order: u64,
}

impl BandNote {
    pub fn encode(self) -> [u8; NOTE_BYTES] {
        let open = if self.open { NOTE_OPEN } else { 0 };
        (self.first_order & MASK_48 | open).to_le_bytes()
    }

    fn decode(bytes: &[u8]) -> Self {
        let word = u64_at(bytes, 0);
        Self { open: word & NOTE_OPEN != 0, first_order: word & MASK_48 }
    }
}

/// A map entry of a logical block without data.
pub(crate) const UNMAPPED: u32 = u32::MAX;

/// A map entry of a logical block whose data was lost: reads fail until it is written.
pub(crate) const POISONED: u32 = u32::MAX - 1;

/// An entry of a shadow whose block had no data when the snapshot was taken. (One that is [`UNMAPPED`] says that the
/// block has not changed since.) Of a clone: a block that was trimmed. (One that is [`UNMAPPED`] is as its snapshot has
/// it.)
pub(crate) const NOTHING: u32 = u32::MAX - 2;

/// An entry of a shadow: the block, of a clone, was as the snapshot of the clone has it.
pub(crate) const INHERITED: u32 = u32::MAX - 3;

/// Whether a map entry names a slot.
#[inline]
pub(crate) fn is_slot(entry: u32) -> bool {
    entry < INHERITED
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Kind {
    /// A logical block.
    Data = 1,
    /// Nothing: fills a page that had to be programmed.
    Pad = 2,
    /// `argument` blocks from `lba` were trimmed.
    Trim = 3,
    /// The data of `lba` was lost.
    Poison = 4,
    /// The atomic group with this sequence, from `lba` on, is programmed whole. `argument` holds the
    /// low 32 bits of the order of its first page.
    Commit = 5,
    /// Root record; `lba` is the band's position in its checkpoint.
    Root = 6,
    /// Map chunk number `lba`.
    Map = 7,
    /// Open bits of bands, slot number `lba`.
    BandTable = 8,
    /// End of a checkpoint: it counts from here on.
    Footer = 9,
    /// What the slots of a run of content pages come to, taken together bit by bit (XOR), slot number
    /// `lba` of such: one of them that is lost follows from it.
    Parity = 10,
}

impl Kind {
    /// Recovery reads the bytes of such a slot; of any other its header says all.
    pub fn is_of_checkpoint(self) -> bool {
        use Kind::{BandTable, Footer, Map, Parity, Root};
        matches!(self, Root | Map | BandTable | Footer | Parity)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::{BandTable, Commit, Data, Footer, Map, Pad, Parity, Poison, Root, Trim};
        [Data, Pad, Trim, Poison, Commit, Root, Map, BandTable, Footer, Parity]
            .into_iter()
            .find(|&kind| kind as u8 == byte)
    }
}

/// The out-of-band facts of a slot. 32 bytes on flash.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// What the slot holds.
    pub kind: Kind,
    /// The logical block, or what [`Kind`] says.
    pub lba: u32,
    /// Version of the logical block: a later write has a larger one, a relocated copy the same.
    pub sequence: u64,
    /// Order of the page that holds the slot.
    pub order: u64,
    /// CRC-32C of the slot's 4096 bytes.
    pub payload_crc: u32,
    /// What [`Kind`] says, else 0.
    pub argument: u32,
    /// Index in its atomic group, and the group's last index; both 0 for a lone block.
    pub group: (u8, u8),
    /// When the slot was filled every version with a sequence below this was durable; 0 if it does
    /// not say. Rounded down where there is no room for all of it.
    pub watermark: u64,
    /// What it says of an earlier slot, if there is room for it ([`Header::may_vouch`]).
    pub vouches: Option<Voucher>,
}

/// What a slot says of an earlier one on another page: a version, or a record, of this sequence was
/// programmed there. Recovery misses it if neither it nor anything newer of the block is found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Voucher {
    /// The logical block, or the first one that the record is about.
    pub lba: u32,
    /// Of the version or record.
    pub sequence: u64,
    /// A record that says something of more than one block: a trim or a commit.
    pub record: bool,
}

/// How far back a data slot can vouch, in sequences.
const VOUCHES_BACK_MAX: u64 = 0x7fff;

/// Set beside the distance if the voucher is for a record.
const VOUCHES_RECORD: u16 = 0x8000;

impl Header {
    /// Whether there is room for `voucher`: in padding always, beside a lone block if it is of a
    /// sequence shortly before its own.
    pub fn may_vouch(kind: Kind, group: (u8, u8), sequence: u64, voucher: &Voucher) -> bool {
        let back = sequence.wrapping_sub(voucher.sequence);
        let beside = kind == Kind::Data && group == (0, 0) && voucher.lba < u32::MAX;
        kind == Kind::Pad || beside && (1..=VOUCHES_BACK_MAX).contains(&back)
    }
}

/// How far below its own sequence a slot's watermark is, in one byte: 0 says nothing, else up to
/// seven exactly, and beyond that four bits of the distance, rounded up.
fn watermark_code(sequence: u64, watermark: u64) -> u8 {
    if watermark == 0 || watermark > sequence {
        return 0;
    }
    let distance = sequence - watermark;
    if distance < 8 {
        return 1 + distance as u8;
    }
    let shift = 60 - distance.leading_zeros();
    let rounded = ((distance - 1) >> shift) + 1;
    let code = 1 + 8 * (u64::from(shift) + 1) + (rounded - 8);
    u8::try_from(code).unwrap_or(0)
}

/// The distance that a code stands for.
fn watermark_distance(code: u8) -> u64 {
    let code = u64::from(code) - 1;
    if code < 8 { code } else { (8 + code % 8) << (code / 8 - 1) }
}

/// Encodes `header` for the slot at `slot` of device `uuid_crc` (see [`uuid_crc`]).
///
/// | bytes | what |
/// |---|---|
/// | 0..4 | CRC-32C of the device's uuid, bytes 4..32 and the slot id (u32 LE) |
/// | 4..8 | payload CRC |
/// | 8..14 | sequence |
/// | 14 | kind |
/// | 15 | watermark, as a distance from the sequence; in padding bit 0: vouches, bit 1: for a record |
/// | 16..22 | order |
/// | 22, 23 | group index, group's last index |
/// | 24..28 | lba |
/// | 28..32 | argument |
///
/// A lone block that vouches has the other's lba plus one as its argument, and in place of the group
/// how far back its sequence is, bit 15 set for a record. Padding that does has the other's sequence
/// and lba as its own; bytes 28..32 and 22..24 hold all of its watermark.
pub fn encode_header(header: &Header, slot: SlotId, uuid_crc: u32) -> Oob {
    let (mut sequence, mut lba, mut argument) = (header.sequence, header.lba, header.argument);
    let mut group = u16::from_le_bytes([header.group.0, header.group.1]);
    let mark = if header.kind == Kind::Pad {
        argument = header.watermark as u32;
        group = (header.watermark >> 32) as u16;
        header.vouches.map_or(0, |voucher| {
            (sequence, lba) = (voucher.sequence, voucher.lba);
            1 | u8::from(voucher.record) << 1
        })
    } else {
        if let Some(voucher) = header.vouches {
            debug_assert!(Header::may_vouch(header.kind, header.group, sequence, &voucher));
            argument = voucher.lba.wrapping_add(1);
            group = sequence.wrapping_sub(voucher.sequence) as u16;
            group |= if voucher.record { VOUCHES_RECORD } else { 0 };
        }
        watermark_code(sequence, header.watermark)
    };
    let mut oob = [0; 32];
    oob[4..8].copy_from_slice(&header.payload_crc.to_le_bytes());
    oob[8..16].copy_from_slice(&sequence.to_le_bytes());
    oob[14] = header.kind as u8;
    oob[15] = mark;
    oob[16..24].copy_from_slice(&header.order.to_le_bytes());
    oob[22..24].copy_from_slice(&group.to_le_bytes());
    oob[24..28].copy_from_slice(&lba.to_le_bytes());
    oob[28..32].copy_from_slice(&argument.to_le_bytes());
    let crc = header_crc(&oob, slot, uuid_crc);
    oob[0..4].copy_from_slice(&crc.to_le_bytes());
    oob
}

/// The checksum of the data that is said beside it, if what is there is sound.
pub(crate) fn payload_crc_of(oob: &Oob) -> u32 {
    u32_at(oob, 4)
}

/// The header in `oob`, if it is sound, of this device and of this very slot.
pub fn decode_header(oob: &Oob, slot: SlotId, uuid_crc: u32) -> Option<Header> {
    if u32_at(oob, 0) != header_crc(oob, slot, uuid_crc) {
        return None;
    }
    let kind = Kind::from_byte(oob[14])?;
    let plain = Header {
        kind,
        lba: u32_at(oob, 24),
        sequence: u64_at(oob, 8) & MASK_48,
        order: u64_at(oob, 16) & MASK_48,
        payload_crc: u32_at(oob, 4),
        argument: u32_at(oob, 28),
        group: (oob[22], oob[23]),
        watermark: 0,
        vouches: None,
    };
    Some(match kind {
        Kind::Pad => decode_padding(plain, oob[15]),
        Kind::Data | Kind::Trim | Kind::Poison | Kind::Commit => decode_versioned(plain, oob[15]),
        Kind::Root | Kind::Map | Kind::BandTable | Kind::Footer | Kind::Parity => plain,
    })
}

/// Padding as read, with what it says of others told apart.
fn decode_padding(read: Header, mark: u8) -> Header {
    let high = u64::from(read.group.0) | u64::from(read.group.1) << 8;
    let Header { lba, sequence, argument, .. } = read;
    let vouches = (mark & 1 != 0).then_some(Voucher { lba, sequence, record: mark & 2 != 0 });
    let watermark = u64::from(argument) | high << 32;
    Header { lba: 0, sequence: 0, argument: 0, group: (0, 0), watermark, vouches, ..read }
}

/// The same of what has a sequence of its own.
fn decode_versioned(read: Header, mark: u8) -> Header {
    let watermark = match mark {
        0 => 0,
        code => read.sequence.saturating_sub(watermark_distance(code)),
    };
    if read.kind != Kind::Data || read.argument == 0 {
        return Header { watermark, ..read };
    }
    let beside = u16::from_le_bytes([read.group.0, read.group.1]);
    let back = u64::from(beside & !VOUCHES_RECORD);
    let vouches = (1..=read.sequence).contains(&back).then_some(Voucher {
        lba: read.argument - 1,
        sequence: read.sequence.wrapping_sub(back),
        record: beside & VOUCHES_RECORD != 0,
    });
    Header { argument: 0, group: (0, 0), watermark, vouches, ..read }
}

/// Of an OOB of our own: its kind, the last index of its atomic group, and what vouches for it; `None`
/// if nobody needs to. Without a look at the checksum: it has just been made.
pub(crate) fn vouched_by(oob: &Oob) -> Option<(Kind, u8, Voucher)> {
    let kind = match Kind::from_byte(oob[14]) {
        Some(kind @ (Kind::Data | Kind::Trim | Kind::Poison | Kind::Commit)) => kind,
        _ => return None,
    };
    let beside = kind == Kind::Data && u32_at(oob, 28) != 0;
    let group_last = if beside { 0 } else { oob[23] };
    let (lba, sequence) = (u32_at(oob, 24), u64_at(oob, 8) & MASK_48);
    Some((kind, group_last, Voucher { lba, sequence, record: false }))
}

/// Whether the OOB claims a root record. Before the uuid is known nothing more can be said.
pub(crate) fn may_be_root(oob: &Oob) -> bool {
    oob[14] == Kind::Root as u8
}

/// What [`encode_header`] and [`decode_header`] want to know of a device's uuid.
pub fn uuid_crc(uuid: u128) -> u32 {
    crc(&uuid.to_le_bytes())
}

fn header_crc(oob: &Oob, slot: SlotId, uuid_crc: u32) -> u32 {
    let mut covered = Covered([0; 32]);
    covered.0[..28].copy_from_slice(&oob[4..]);
    covered.0[28..].copy_from_slice(&slot.0.to_le_bytes());
    crc_append(uuid_crc, &covered.0)
}

/// Four words: what is not aligned to them is summed byte by byte at both ends.
#[repr(align(8))]
struct Covered([u8; 32]);

/// CRC-32C of 4096 zero bytes: the payload CRC of every slot without data.
pub(crate) fn empty_crc() -> u32 {
    crc(&[0; BLOCK_BYTES])
}

/// Describes the device and the checkpoint that its band belongs to. Fills the first slot of the
/// first two pages of every checkpoint band: one of them may rot.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Root {
    /// Of the format.
    pub version: u16,
    /// As formatted.
    pub uuid: u128,
    /// Names the checkpoint: the first order that it does not cover.
    pub checkpoint: u64,
    /// Bands of the checkpoint.
    pub bands: u32,
    /// This band's position among them.
    pub position: u32,
    /// Units, blocks per unit, pages per block, slots per page; fast units, blocks of each of these.
    pub shape: [u32; 6],
    /// Logical blocks of the device.
    pub logical_blocks: u32,
    /// As in the footer.
    pub sequence_begun: u64,
    /// As in the footer.
    pub generation: u64,
    /// The owner's bytes.
    pub label: Vec<u8>,
    /// Entries of the map above those of the logical blocks.
    pub shadow_blocks: u32,
    /// Oldest first.
    pub snapshots: Vec<SnapshotRecord>,
    /// The clones of snapshots.
    pub clones: Vec<CloneRecord>,
}

const ROOT_MAGIC: &[u8; 8] = b"WeirRoot";
const FOOTER_MAGIC: &[u8; 8] = b"WeirFoot";
const ROOT_LABEL_AT: usize = 80;
/// The first four words of the shape, and the others, which are 0 on a device of one kind.
const ROOT_SHAPE_AT: usize = 48;
const ROOT_FAST_AT: usize = ROOT_LABEL_AT + LABEL_BYTES_MAX;
/// Entries of shadows, bytes of the snapshots, and these.
const ROOT_SHADOW_AT: usize = ROOT_FAST_AT + 8;
const ROOT_SNAPSHOTS_AT: usize = ROOT_SHADOW_AT + 8;
const _: () = assert!(ROOT_SNAPSHOTS_AT + SNAPSHOT_BYTES_MAX <= BLOCK_BYTES - 4);

/// The shape of a medium of one kind, as raw units repeat it.
pub(crate) fn shape(geometry: &Geometry) -> [u32; 4] {
    [geometry.units, geometry.blocks_per_unit, geometry.pages_per_block, geometry.slots_per_page]
}

/// The shape that a root record repeats.
pub(crate) fn root_shape(geometry: &Geometry) -> [u32; 6] {
    let [units, blocks, pages, slots] = shape(geometry);
    [units, blocks, pages, slots, geometry.fast.units, geometry.fast.blocks_per_unit]
}

/// Where word `index` of the shape lies in a root record.
fn shape_at(index: usize) -> usize {
    if index < 4 { ROOT_SHAPE_AT + 4 * index } else { ROOT_FAST_AT + 4 * (index - 4) }
}

impl Root {
    /// The 4096 bytes of the record; see docs/formats.md.
    ///
    /// # Panics
    /// If the label is longer than [`LABEL_BYTES_MAX`], which `Ftl::format` refuses, or the snapshots than
    /// [`SNAPSHOT_BYTES_MAX`], which who takes one does.
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        assert!(self.label.len() <= LABEL_BYTES_MAX, "the label fits the root record");
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        bytes[0..8].copy_from_slice(ROOT_MAGIC);
        bytes[8..10].copy_from_slice(&self.version.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.label.len() as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.logical_blocks.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.checkpoint.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.bands.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.position.to_le_bytes());
        for (index, value) in self.shape.into_iter().enumerate() {
            let at = shape_at(index);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[64..72].copy_from_slice(&self.sequence_begun.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.generation.to_le_bytes());
        bytes[ROOT_LABEL_AT..ROOT_LABEL_AT + self.label.len()].copy_from_slice(&self.label);
        let snapshots = snapshots::encode(&self.snapshots, &self.clones);
        assert!(snapshots.len() <= SNAPSHOT_BYTES_MAX, "the snapshots fit the root record");
        let at = ROOT_SHADOW_AT;
        bytes[at..at + 4].copy_from_slice(&self.shadow_blocks.to_le_bytes());
        bytes[at + 4..at + 6].copy_from_slice(&(snapshots.len() as u16).to_le_bytes());
        bytes[ROOT_SNAPSHOTS_AT..ROOT_SNAPSHOTS_AT + snapshots.len()].copy_from_slice(&snapshots);
        let sum = crc(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are no root record at all or damaged; an error for another version.
    pub fn decode(bytes: &[u8]) -> Option<Result<Self, UnknownVersion>> {
        if bytes.len() != BLOCK_BYTES || &bytes[0..8] != ROOT_MAGIC || !sum_matches(bytes) {
            return None;
        }
        let found = u16::from_le_bytes([bytes[8], bytes[9]]);
        if !(VERSION_OLDEST..=VERSION_CLONES).contains(&found) {
            return Some(Err(UnknownVersion { found }));
        }
        let label_len = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
        if label_len > LABEL_BYTES_MAX {
            return None;
        }
        let (shadow_blocks, (snapshots, clones)) = if found >= VERSION_SNAPSHOTS {
            let at = ROOT_SHADOW_AT + 4;
            let length = usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
            let table = bytes[ROOT_SNAPSHOTS_AT..BLOCK_BYTES - 4].get(..length)?;
            (u32_at(bytes, ROOT_SHADOW_AT), snapshots::decode(table)?)
        } else {
            (0, (Vec::new(), Vec::new()))
        };
        Some(Ok(Self {
            version: found,
            logical_blocks: u32_at(bytes, 12),
            uuid: u128::from(u64_at(bytes, 16)) | u128::from(u64_at(bytes, 24)) << 64,
            checkpoint: u64_at(bytes, 32),
            bands: u32_at(bytes, 40),
            position: u32_at(bytes, 44),
            shape: std::array::from_fn(|i| u32_at(bytes, shape_at(i))),
            sequence_begun: u64_at(bytes, 64),
            generation: u64_at(bytes, 72),
            label: bytes[ROOT_LABEL_AT..ROOT_LABEL_AT + label_len].to_vec(),
            shadow_blocks,
            snapshots,
            clones,
        }))
    }
}

/// Ends a checkpoint.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Footer {
    /// As in the root records.
    pub checkpoint: u64,
    /// No sequence at or above this was in use when the footer was written.
    pub sequence_next: u64,
    /// No sequence at or above this was in use when the checkpoint was begun: atomic groups below
    /// are decided.
    pub sequence_begun: u64,
    /// No order at or above this was in use when the footer was written.
    pub order_next: u64,
    /// Mounts since the format.
    pub generation: u64,
    /// Written by a clean shutdown: nothing was appended or erased after it.
    pub clean: bool,
}

impl Footer {
    /// The 4096 bytes of the record; see docs/formats.md.
    pub fn encode(&self) -> Box<[u8; BLOCK_BYTES]> {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        bytes[0..8].copy_from_slice(FOOTER_MAGIC);
        bytes[8..16].copy_from_slice(&self.checkpoint.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence_next.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.order_next.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40] = u8::from(self.clean);
        bytes[48..56].copy_from_slice(&self.sequence_begun.to_le_bytes());
        let sum = crc(&bytes[..BLOCK_BYTES - 4]);
        bytes[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are not a sound footer.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != BLOCK_BYTES
            || &bytes[0..8] != FOOTER_MAGIC
            || !sum_matches(bytes)
            || bytes[40] > 1
        {
            return None;
        }
        Some(Self {
            checkpoint: u64_at(bytes, 8),
            sequence_next: u64_at(bytes, 16),
            order_next: u64_at(bytes, 24),
            generation: u64_at(bytes, 32),
            clean: bytes[40] == 1,
            sequence_begun: u64_at(bytes, 48),
        })
    }
}

/// Pages at the start of a checkpoint band that hold its root record.
pub(crate) const ROOT_PAGES: u32 = 2;

/// Where the parts of a checkpoint lie. A function of the device's shape alone, so that recovery
/// finds every part without a directory.
///
/// The first [`ROOT_PAGES`] pages of each checkpoint band hold its root record. Content page `j`
/// (map chunks, then the band table) is page `ROOT_PAGES + j / bands` of the band at position
/// `j % bands`, so that a checkpoint is written and read by all units at once. Each band is padded
/// until its content shares cells with no later page; the footer follows in the band at position 0,
/// and its copy one page later in the last band.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct CheckpointLayout {
    pub chunks: u32,
    pub table_slots: u32,
    /// The band table has a [`BandNote`] for each band, not only a bit.
    has_lives: bool,
    /// Pages with chunks and parts of the band table.
    pub content_pages: u32,
    /// So many of them make a run, which a page of parity follows; 0: no parity.
    run_pages: u32,
    /// With those of parity.
    pub pages: u32,
    pub bands: u32,
    pub footer_page: u32,
}

/// Content pages for each page of parity.
const RUN_PAGES: u32 = 16;

impl CheckpointLayout {
    /// `None` if a block has too few pages for any checkpoint.
    pub fn new(geometry: &Geometry, logical_blocks: u32) -> Option<Self> {
        Self::of_version(geometry, logical_blocks, VERSION)
    }

    /// As `version` of the format has it.
    pub fn of_version(geometry: &Geometry, logical_blocks: u32, version: u16) -> Option<Self> {
        let run_pages = if version >= VERSION_PARITY { RUN_PAGES } else { 0 };
        let has_lives = version >= VERSION_LIVES;
        let chunks = logical_blocks.div_ceil(CHUNK_ENTRIES as u32);
        let bands_per_slot = if has_lives { BLOCK_BYTES / NOTE_BYTES } else { BLOCK_BYTES * 8 };
        let table_slots = geometry.blocks().div_ceil(bands_per_slot as u32);
        let content_pages = (chunks + table_slots).div_ceil(geometry.slots_per_page);
        let parity = if run_pages > 0 { content_pages.div_ceil(run_pages) } else { 0 };
        let pages = content_pages + parity;
        let per_block = geometry.pages_per_block;
        let footer_page =
            |rows: u32| geometry.pairing.closure(rows + ROOT_PAGES - 1, per_block) + 1;
        let rows_max = (1..per_block.saturating_sub(ROOT_PAGES))
            .rev()
            .find(|&rows| footer_page(rows) + 1 < per_block)?;
        let bands = pages.div_ceil(rows_max);
        let rows = pages.div_ceil(bands);
        let footer_page = footer_page(rows);
        Some(Self {
            chunks,
            table_slots,
            has_lives,
            content_pages,
            run_pages,
            pages,
            bands,
            footer_page,
        })
    }

    /// Slots of content.
    pub fn slots(&self) -> u32 {
        self.chunks + self.table_slots
    }

    /// What the band `table` says of `block`; nothing beyond its end.
    pub fn note_of(&self, table: &[u8], block: BlockId) -> BandNote {
        let index = block.0 as usize;
        if self.has_lives {
            let bytes = table.get(index * NOTE_BYTES..(index + 1) * NOTE_BYTES);
            return bytes.map(BandNote::decode).unwrap_or_default();
        }
        let byte = table.get(index / 8).copied().unwrap_or(0);
        BandNote { open: byte & 1 << (index % 8) != 0, first_order: 0 }
    }

    pub fn has_parity(&self) -> bool {
        self.run_pages > 0
    }

    /// The page of the checkpoint that is content page `index`.
    pub fn page_of_content(&self, index: u32) -> u32 {
        index + index.checked_div(self.run_pages).unwrap_or(0)
    }

    /// Content pages before page `page` of the checkpoint.
    pub fn content_before(&self, page: u32) -> u32 {
        if self.has_parity() { page - page / (self.run_pages + 1) } else { page }
    }

    /// Whether page `page` of the checkpoint is one of parity.
    pub fn is_parity(&self, page: u32) -> bool {
        let whole = self.run_pages + 1;
        self.has_parity() && (page % whole == self.run_pages || page + 1 == self.pages)
    }

    /// The run that content page `index` belongs to.
    pub fn run_of(&self, index: u32) -> u32 {
        index.checked_div(self.run_pages).unwrap_or(0)
    }

    /// The pages of run `run`, the last of which is parity.
    pub fn pages_of_run(&self, run: u32) -> std::ops::Range<u32> {
        let whole = self.run_pages + 1;
        run * whole..((run + 1) * whole).min(self.pages)
    }

    /// Band position and page there of page `index` of the checkpoint.
    pub fn place(&self, index: u32) -> (u32, u32) {
        (index % self.bands, ROOT_PAGES + index / self.bands)
    }

    /// The page of the checkpoint that lies there.
    pub fn page_at(&self, position: u32, page: u32) -> u32 {
        page.saturating_sub(ROOT_PAGES) * self.bands + position
    }

    /// Band position and page of the footer, and of its copy.
    pub fn footers(&self) -> [(u32, u32); 2] {
        [(0, self.footer_page), (self.bands - 1, self.footer_page + 1)]
    }
}

pub(crate) fn sum_matches(bytes: &[u8]) -> bool {
    u32_at(bytes, BLOCK_BYTES - 4) == crc(&bytes[..BLOCK_BYTES - 4])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Sequences and orders have 48 bits: at a million a second they last nine years. The FTL refuses
/// writes at their end.
pub(crate) const MASK_48: u64 = (1 << 48) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            kind: Kind::Trim,
            lba: 0x0403_0201,
            sequence: 0x0000_a1a2_a3a4_a5a6,
            order: 0x0000_b1b2_b3b4_b5b6,
            payload_crc: 0x0807_0605,
            argument: 0x1413_1211,
            group: (3, 9),
            watermark: 0,
            vouches: None,
        }
    }

    #[test]
    fn format_v3_header_bytes() {
        let read_back = |header: &Header| {
            let oob = encode_header(header, SlotId(77), uuid_crc(5));
            assert_eq!(decode_header(&oob, SlotId(77), uuid_crc(5)), Some(*header));
            oob
        };
        let oob = read_back(&header());
        assert_eq!(oob[4..8], [5, 6, 7, 8]);
        assert_eq!(oob[8..16], [0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 3, 0]);
        assert_eq!(oob[16..24], [0xb6, 0xb5, 0xb4, 0xb3, 0xb2, 0xb1, 3, 9]);
        assert_eq!(oob[24..32], [1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14]);

        // A lone block: that 36 below was durable, and a trim 0x1234 before it was there.
        let sequence = header().sequence;
        let of_trim = Voucher { lba: 6, sequence: sequence - 0x1234, record: true };
        let lone = Header {
            kind: Kind::Data,
            argument: 0,
            group: (0, 0),
            watermark: sequence - 36,
            vouches: Some(of_trim),
            ..header()
        };
        let oob = read_back(&lone);
        assert_eq!(oob[8..16], [0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 1, 26]);
        assert_eq!(oob[16..24], [0xb6, 0xb5, 0xb4, 0xb3, 0xb2, 0xb1, 0x34, 0x92]);
        assert_eq!(oob[24..32], [1, 2, 3, 4, 7, 0, 0, 0]);

        // Padding has room for all of it.
        let of_block = Voucher { lba: 0x0403_0201, sequence, record: false };
        let pad = Header {
            kind: Kind::Pad,
            lba: 0,
            sequence: 0,
            watermark: 0x0000_c1c2_c3c4_c5c6,
            vouches: Some(of_block),
            ..lone
        };
        let oob = read_back(&pad);
        assert_eq!(oob[8..16], [0xa6, 0xa5, 0xa4, 0xa3, 0xa2, 0xa1, 2, 1]);
        assert_eq!(oob[16..24], [0xb6, 0xb5, 0xb4, 0xb3, 0xb2, 0xb1, 0xc2, 0xc1]);
        assert_eq!(oob[24..32], [1, 2, 3, 4, 0xc6, 0xc5, 0xc4, 0xc3]);
    }

    #[test]
    fn a_watermark_is_rounded_down_by_an_eighth_of_its_distance_at_most() {
        let sequence = 1 << 40;
        for distance in (0..3000).chain((12..39).map(|bits| (1 << bits) - 7)) {
            let written = Header {
                kind: Kind::Poison,
                sequence,
                watermark: sequence - distance,
                argument: 0,
                group: (0, 0),
                ..header()
            };
            let oob = encode_header(&written, SlotId(1), 2);
            let read = decode_header(&oob, SlotId(1), 2).expect("it is sound");
            let lost = written.watermark.checked_sub(read.watermark).expect("it never rises");
            let told = read.watermark > 0;
            assert!(if told { 8 * lost <= distance } else { distance > 1 << 33 }, "{distance}");
        }
        for ahead in [1, 1000] {
            let watermark = sequence + ahead;
            let written = Header { kind: Kind::Data, sequence, watermark, ..header() };
            let oob = encode_header(&written, SlotId(1), 2);
            assert_eq!(decode_header(&oob, SlotId(1), 2).map(|read| read.watermark), Some(0));
        }
    }

    #[test]
    fn a_header_is_refused_elsewhere_on_another_device_and_after_any_bit_flip() {
        let oob = encode_header(&header(), SlotId(77), uuid_crc(5));
        assert_eq!(decode_header(&oob, SlotId(78), uuid_crc(5)), None);
        assert_eq!(decode_header(&oob, SlotId(77), uuid_crc(6)), None);
        for bit in 0..256 {
            let mut flipped = oob;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_header(&flipped, SlotId(77), uuid_crc(5)), None, "bit {bit}");
        }
    }

    #[test]
    fn root_and_footer_survive_their_encoding_and_notice_damage() {
        let root = Root {
            version: VERSION,
            uuid: 1 << 100 | 7,
            checkpoint: 9,
            bands: 3,
            position: 2,
            shape: [1, 2, 3, 4, 5, 6],
            logical_blocks: 1000,
            sequence_begun: 6,
            generation: 7,
            label: b"volumes".to_vec(),
            shadow_blocks: 2000,
            snapshots: vec![SnapshotRecord {
                number: 1,
                cut: 5,
                leaving: false,
                stretches: vec![ShadowStretch { first: 3, blocks: 4, shadow: 1000 }],
            }],
            clones: vec![],
        };
        let mut bytes = root.encode();
        assert_eq!(Root::decode(&bytes[..]), Some(Ok(root.clone())));
        let cloned = CloneRecord {
            number: 2,
            cut: 6,
            stretches: vec![ShadowStretch { first: 9, blocks: 4, shadow: 1000 }],
        };
        let with_clone = Root { version: VERSION_CLONES, clones: vec![cloned], ..root.clone() };
        assert_eq!(Root::decode(&with_clone.encode()[..]), Some(Ok(with_clone)));
        let before = Root { version: 4, shadow_blocks: 0, snapshots: vec![], ..root };
        assert_eq!(Root::decode(&before.encode()[..]), Some(Ok(before)), "of before snapshots");
        bytes[100] ^= 1;
        assert_eq!(Root::decode(&bytes[..]), None);
        let footer = Footer {
            checkpoint: 1,
            sequence_next: 2,
            sequence_begun: 5,
            order_next: 3,
            generation: 4,
            clean: true,
        };
        let mut bytes = footer.encode();
        assert_eq!(Footer::decode(&bytes[..]), Some(footer));
        bytes[4000] = 1;
        assert_eq!(Footer::decode(&bytes[..]), None);
    }

    #[test]
    fn format_v4_band_table_bytes() {
        let note = BandNote { open: true, first_order: 0x0000_c1c2_c3c4_c5c6 };
        let bytes = note.encode();
        assert_eq!(bytes, [0xc6, 0xc5, 0xc4, 0xc3, 0xc2, 0xc1, 0, 0x80]);
        let geometry = Geometry {
            units: 4,
            blocks_per_unit: 1024,
            pages_per_block: 32,
            slots_per_page: 2,
            pairing: flash::Pairing::None,
            durable_at_completion: true,
            suspend: false,
            queue_depth: 1,
            endurance: 1,
            open_blocks_max: 0,
            fast: flash::FastTier::NONE,
        };
        let of = |version| CheckpointLayout::of_version(&geometry, 1000, version).unwrap();
        let mut table = vec![0; 16];
        table.extend(bytes);
        assert_eq!(of(4).note_of(&table, BlockId(2)), note);
        assert_eq!(of(4).note_of(&table, BlockId(1)), BandNote::default());
        assert_eq!(of(4).note_of(&table, BlockId(3)), BandNote::default(), "beyond its end");
        let open = |block| of(3).note_of(&[0, 4], BlockId(block)).open;
        assert!(open(10) && !open(9) && !open(16), "before version 4 it has bits");
        assert_eq!((of(3).table_slots, of(4).table_slots), (1, 8));
        assert!(!of(2).has_parity() && of(3).has_parity() && of(4).has_parity());
    }

    #[test]
    fn an_older_and_a_newer_version_are_named() {
        let root = Root {
            version: VERSION,
            uuid: 1,
            checkpoint: 1,
            bands: 1,
            position: 0,
            shape: [1; 6],
            logical_blocks: 1,
            sequence_begun: 1,
            generation: 1,
            label: vec![],
            shadow_blocks: 0,
            snapshots: vec![],
            clones: vec![],
        };
        for found in [1, 9] {
            let mut bytes = root.encode();
            bytes[8] = found as u8;
            let sum = crc(&bytes[..BLOCK_BYTES - 4]);
            bytes[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Root::decode(&bytes[..]), Some(Err(UnknownVersion { found })));
        }
    }
}
