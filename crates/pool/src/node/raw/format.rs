//! Every byte that the raw store keeps beside the data: three kinds of slots of 4096 bytes, each with a checksum
//! of its own. The tables of docs/formats.md are the reference. A decoder returns `None` for bytes that are not
//! sound, whatever they are.

use crate::message::{BandHeader, Slot};
use crate::node::store::{PAGE_SLOTS_MAX, is_sound, page_sum};
use crate::words::{
    BandName, BandShape, Fenced, Generation, MEMBERS_MAX, Members, NodeId, VolumeId,
};
use flash::{BLOCK_BYTES, OOB_BYTES, Oob};

/// Version of the format.
pub const POOL_VERSION: u16 = 2;

/// One slot of the store's own.
pub type Block = Box<[u8; BLOCK_BYTES]>;

const MAGIC: [u8; 8] = *b"WeirBand";
const KIND_APPEND: u8 = 1;
const KIND_FOOTER: u8 = 2;
const KIND_LOG: u8 = 3;
const CRC_AT: usize = BLOCK_BYTES - 4;
/// Where the header of a band stands in slots of bands.
const HEADER_AT: usize = 60;
/// Where what there is many of begins.
const LIST_AT: usize = 128;

const SLOT_BYTES: usize = OOB_BYTES + 4;
const ENTRY_BYTES: usize = 16;
const RECORD_BYTES: usize = 28;

/// Pages that one slot of a footer tells of.
pub const FOOTER_ENTRIES: usize = (CRC_AT - LIST_AT) / ENTRY_BYTES;
/// Records of one slot of the log.
pub const LOG_RECORDS: usize = (CRC_AT - LIST_AT) / RECORD_BYTES;
const _: () = assert!(LIST_AT + PAGE_SLOTS_MAX as usize * SLOT_BYTES <= CRC_AT);
const _: () = assert!(HEADER_AT + 12 + 4 * MEMBERS_MAX <= LIST_AT);
const _: () = assert!(FOOTER_ENTRIES == 247 && LOG_RECORDS == 141);

/// The slot before the data of an append.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AppendHeader {
    /// Whose page.
    pub band: BandName,
    /// Which.
    pub page: u32,
    /// Of who wrote it.
    pub generation: Generation,
    /// The band counts only when it is sealed.
    pub hidden: bool,
    /// What is said of the band.
    pub header: BandHeader,
    /// Where this slot lies in its raw block.
    pub place: u32,
    /// Bit `i`: slot `i` is zeroes and not stored.
    pub zeroes: u64,
    /// See [`page_sum`].
    pub sum: u32,
    /// Of each slot its OOB and the checksum of its data.
    pub slots: Vec<(Oob, u32)>,
}

/// Where a page is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Entry {
    /// The slot of its header in the raw block; [`LOST`] if that is damaged.
    pub place: u32,
    /// See [`page_sum`].
    pub sum: u32,
    /// As in [`AppendHeader`].
    pub zeroes: u64,
}

/// The place of a page that was there and cannot be found.
pub const LOST: u32 = u32::MAX;

/// A slot of what a seal writes behind the last page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Footer {
    /// Which band is sealed.
    pub band: BandName,
    /// At so many pages.
    pub pages: u32,
    /// By whom.
    pub generation: Generation,
    /// What is said of the band.
    pub header: BandHeader,
    /// Which of the slots of the footer this is.
    pub index: u32,
    /// How many there are.
    pub count: u32,
    /// Of which of the two copies this is: 0 or 1.
    pub copy: u32,
    /// Where the first slot of the copy lies in the raw block.
    pub place: u32,
    /// Pages from `index * FOOTER_ENTRIES` on.
    pub entries: Vec<Entry>,
}

/// What the log says of the seal of a band.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sealed {
    /// It has so many.
    pub pages: u32,
    /// Not all of them are sound: whoever opens the store reads them through.
    pub damaged: bool,
}

/// What the log keeps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Record {
    /// Who may use the volume.
    Fence(VolumeId, Fenced),
    /// The volume is deleted, and nothing of it is here.
    Forget(VolumeId),
    /// The band is sealed at so many pages, and its raw block cannot say so.
    Seal(BandName, Sealed),
    /// What the log said of the seal of the band counts no more: it is about to be freed.
    Unseal(BandName),
}

/// A slot of the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogSlot {
    /// Counts the raw blocks that the log has had.
    pub number: u64,
    /// Where this slot lies in its raw block.
    pub place: u32,
    /// Slots of the summary that the raw block begins with.
    pub summary: u32,
    /// What happened, in order.
    pub records: Vec<Record>,
}

impl AppendHeader {
    /// Of a page of `band`.
    pub fn new<D>(
        (band, page, generation): (BandName, u32, Generation),
        header: BandHeader,
        hidden: bool,
        place: u32,
        slots: &[Slot<D>],
    ) -> Self {
        let zero = |(at, slot): (usize, &Slot<D>)| u64::from(slot.data.is_none()) << at;
        Self {
            band,
            page,
            generation,
            hidden,
            header,
            place,
            zeroes: slots.iter().enumerate().map(zero).fold(0, |all, one| all | one),
            sum: page_sum(slots),
            slots: slots.iter().map(|slot| (slot.oob, slot.crc)).collect(),
        }
    }

    /// Its 4096 bytes.
    pub fn encode(&self) -> Block {
        let mut block = begin(KIND_APPEND, u8::from(self.hidden));
        put_band(&mut block, self.band, self.page, self.generation);
        put(&mut block, 40, &self.zeroes.to_le_bytes());
        put(&mut block, 48, &self.sum.to_le_bytes());
        put(&mut block, 52, &self.place.to_le_bytes());
        put(&mut block, 56, &(self.slots.len() as u32).to_le_bytes());
        put_header(&mut block, &self.header);
        for (at, (oob, crc)) in self.slots.iter().enumerate() {
            put(&mut block, LIST_AT + at * SLOT_BYTES, oob);
            put(&mut block, LIST_AT + at * SLOT_BYTES + OOB_BYTES, &crc.to_le_bytes());
        }
        finish(block)
    }

    /// Of 4096 bytes, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = check(bytes, KIND_APPEND)?;
        let (band, page, generation) = band_of(bytes);
        let count = u32_at(bytes, 56);
        let header = header_of(bytes)?;
        let zeroes = u64_at(bytes, 40);
        let beyond = count < u64::BITS && zeroes >> count != 0;
        if flags > 1 || beyond || count != header.shape.slots_per_page {
            return None;
        }
        let slots = (0..count as usize).map(|at| {
            let at = LIST_AT + at * SLOT_BYTES;
            (std::array::from_fn(|i| bytes[at + i]), u32_at(bytes, at + OOB_BYTES))
        });
        Some(Self {
            band,
            page,
            generation,
            hidden: flags == 1,
            header,
            place: u32_at(bytes, 52),
            zeroes,
            sum: u32_at(bytes, 48),
            slots: slots.collect(),
        })
    }

    /// What an index knows of it.
    pub fn entry(&self) -> Entry {
        Entry { place: self.place, sum: self.sum, zeroes: self.zeroes }
    }

    /// Slots that are stored behind it.
    pub fn stored(&self) -> u32 {
        self.slots.len() as u32 - self.zeroes.count_ones()
    }
}

impl Footer {
    /// A copy of the footer of a band of which `entries` are all pages: each slot of it.
    pub fn of(
        (band, generation): (BandName, Generation),
        header: BandHeader,
        (copy, place): (u32, u32),
        entries: &[Entry],
    ) -> Vec<Self> {
        let pages = entries.len() as u32;
        let count = footer_slots(pages);
        let footer = |index: u32| {
            let from = index as usize * FOOTER_ENTRIES;
            let to = entries.len().min(from + FOOTER_ENTRIES);
            let entries = entries[from..to].to_vec();
            Self { band, pages, generation, header, index, count, copy, place, entries }
        };
        (0..count).map(footer).collect()
    }

    /// Its 4096 bytes.
    pub fn encode(&self) -> Block {
        let mut block = begin(KIND_FOOTER, 0);
        put_band(&mut block, self.band, self.pages, self.generation);
        put(&mut block, 40, &self.index.to_le_bytes());
        put(&mut block, 44, &self.count.to_le_bytes());
        put(&mut block, 48, &self.copy.to_le_bytes());
        put(&mut block, 52, &self.place.to_le_bytes());
        put_header(&mut block, &self.header);
        for (at, entry) in self.entries.iter().enumerate() {
            let at = LIST_AT + at * ENTRY_BYTES;
            put(&mut block, at, &entry.place.to_le_bytes());
            put(&mut block, at + 4, &entry.sum.to_le_bytes());
            put(&mut block, at + 8, &entry.zeroes.to_le_bytes());
        }
        finish(block)
    }

    /// Of 4096 bytes, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = check(bytes, KIND_FOOTER)?;
        let (band, pages, generation) = band_of(bytes);
        let (index, count) = (u32_at(bytes, 40), u32_at(bytes, 44));
        let (header, copy) = (header_of(bytes)?, u32_at(bytes, 48));
        let fits = pages <= header.shape.pages && count == footer_slots(pages) && index < count;
        if flags != 0 || !fits || copy > 1 {
            return None;
        }
        let left = pages as usize - index as usize * FOOTER_ENTRIES;
        let entries = (0..left.min(FOOTER_ENTRIES)).map(|at| {
            let at = LIST_AT + at * ENTRY_BYTES;
            let (place, sum) = (u32_at(bytes, at), u32_at(bytes, at + 4));
            Entry { place, sum, zeroes: u64_at(bytes, at + 8) }
        });
        let (place, entries) = (u32_at(bytes, 52), entries.collect());
        Some(Self { band, pages, generation, header, index, count, copy, place, entries })
    }
}

/// Slots of the footer of so many pages.
pub fn footer_slots(pages: u32) -> u32 {
    pages.div_ceil(FOOTER_ENTRIES as u32).max(1)
}

impl LogSlot {
    /// Its 4096 bytes.
    pub fn encode(&self) -> Block {
        let mut block = begin(KIND_LOG, 0);
        put(&mut block, 12, &self.number.to_le_bytes());
        put(&mut block, 20, &self.place.to_le_bytes());
        put(&mut block, 24, &self.summary.to_le_bytes());
        put(&mut block, 28, &(self.records.len() as u32).to_le_bytes());
        for (at, record) in self.records.iter().enumerate() {
            let at = LIST_AT + at * RECORD_BYTES;
            match *record {
                Record::Fence(volume, Fenced { generation, owner }) => {
                    block[at] = 1;
                    put(&mut block, at + 4, &volume.0.to_le_bytes());
                    put(&mut block, at + 8, &owner.to_le_bytes());
                    put(&mut block, at + 20, &generation.0.to_le_bytes());
                }
                Record::Forget(volume) => {
                    block[at] = 4;
                    put(&mut block, at + 4, &volume.0.to_le_bytes());
                }
                Record::Seal(band, Sealed { pages, damaged }) => {
                    (block[at], block[at + 1]) = (2, u8::from(damaged));
                    put_name(&mut block, at + 4, band);
                    put(&mut block, at + 20, &pages.to_le_bytes());
                }
                Record::Unseal(band) => {
                    block[at] = 3;
                    put_name(&mut block, at + 4, band);
                }
            }
        }
        finish(block)
    }

    /// Of 4096 bytes, if they are one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let flags = check(bytes, KIND_LOG)?;
        let count = u32_at(bytes, 28) as usize;
        if flags != 0 || count > LOG_RECORDS {
            return None;
        }
        let record = |at: usize| {
            let at = LIST_AT + at * RECORD_BYTES;
            match bytes[at] {
                1 => {
                    let volume = VolumeId(u32_at(bytes, at + 4));
                    let generation = Generation(u64_at(bytes, at + 20));
                    Some(Record::Fence(volume, Fenced { generation, owner: u64_at(bytes, at + 8) }))
                }
                2 => {
                    let (pages, damaged) = (u32_at(bytes, at + 20), bytes[at + 1] == 1);
                    Some(Record::Seal(name_at(bytes, at + 4), Sealed { pages, damaged }))
                }
                3 => Some(Record::Unseal(name_at(bytes, at + 4))),
                4 => Some(Record::Forget(VolumeId(u32_at(bytes, at + 4)))),
                _ => None,
            }
        };
        Some(Self {
            number: u64_at(bytes, 12),
            place: u32_at(bytes, 20),
            summary: u32_at(bytes, 24),
            records: (0..count).map(record).collect::<Option<_>>()?,
        })
    }
}

fn begin(kind: u8, flags: u8) -> Block {
    let mut block = Box::new([0; BLOCK_BYTES]);
    put(&mut block, 0, &MAGIC);
    put(&mut block, 8, &POOL_VERSION.to_le_bytes());
    block[10] = kind;
    block[11] = flags;
    block
}

fn finish(mut block: Block) -> Block {
    let sum = flash::crc(&block[..CRC_AT]);
    put(&mut block, CRC_AT, &sum.to_le_bytes());
    block
}

/// The flags of a slot of this kind, if it is sound.
fn check(bytes: &[u8], kind: u8) -> Option<u8> {
    let sound = bytes.len() == BLOCK_BYTES
        && bytes[..8] == MAGIC
        && bytes[8..10] == POOL_VERSION.to_le_bytes()
        && bytes[10] == kind
        && flash::crc(&bytes[..CRC_AT]) == u32_at(bytes, CRC_AT);
    sound.then(|| bytes[11])
}

fn put(block: &mut [u8; BLOCK_BYTES], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put_name(block: &mut [u8; BLOCK_BYTES], at: usize, name: BandName) {
    put(block, at, &name.volume.0.to_le_bytes());
    put(block, at + 4, &name.band.to_le_bytes());
    put(block, at + 8, &name.life.to_le_bytes());
}

fn name_at(bytes: &[u8], at: usize) -> BandName {
    let (volume, band) = (VolumeId(u32_at(bytes, at)), u32_at(bytes, at + 4));
    BandName { volume, band, life: u64_at(bytes, at + 8) }
}

fn put_band(block: &mut [u8; BLOCK_BYTES], name: BandName, pages: u32, generation: Generation) {
    put_name(block, 12, name);
    put(block, 28, &pages.to_le_bytes());
    put(block, 32, &generation.0.to_le_bytes());
}

fn band_of(bytes: &[u8]) -> (BandName, u32, Generation) {
    (name_at(bytes, 12), u32_at(bytes, 28), Generation(u64_at(bytes, 32)))
}

fn put_header(block: &mut [u8; BLOCK_BYTES], header: &BandHeader) {
    let nodes = header.members.nodes();
    put(block, HEADER_AT, &header.shape.pages.to_le_bytes());
    put(block, HEADER_AT + 4, &header.shape.slots_per_page.to_le_bytes());
    block[HEADER_AT + 8] = nodes.len() as u8;
    for (at, node) in nodes.iter().enumerate() {
        put(block, HEADER_AT + 12 + 4 * at, &node.0.to_le_bytes());
    }
}

fn header_of(bytes: &[u8]) -> Option<BandHeader> {
    let count = usize::from(bytes[HEADER_AT + 8]);
    if count > MEMBERS_MAX {
        return None;
    }
    let node = |at: usize| NodeId(u32_at(bytes, HEADER_AT + 12 + 4 * at));
    let nodes: [NodeId; MEMBERS_MAX] = std::array::from_fn(node);
    let shape =
        BandShape { pages: u32_at(bytes, HEADER_AT), slots_per_page: u32_at(bytes, HEADER_AT + 4) };
    // What a node lets nobody open is no band: whoever counts its slots must not be led astray.
    if !is_sound(shape) {
        return None;
    }
    Some(BandHeader { members: Members::new(&nodes[..count])?, shape })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;

    fn header() -> BandHeader {
        let members = Members::new(&[NodeId(6), NodeId(7)]).expect("two different");
        BandHeader { members, shape: BandShape { pages: 600, slots_per_page: 3 } }
    }

    fn append() -> AppendHeader {
        let band = BandName { volume: VolumeId(1), band: 2, life: 3 };
        let slot = |crc, data| Slot { oob: [crc as u8; 32], crc, data };
        let slots = [slot(1, Some(())), slot(2, None), slot(3, Some(()))];
        AppendHeader::new((band, 4, Generation(5)), header(), true, 9, &slots)
    }

    fn footers() -> Vec<Footer> {
        let mut random = Random::new(1);
        let entry = |place| Entry { place, sum: random.next_u64() as u32, zeroes: 5 };
        let entries: Vec<Entry> = (0..600).map(entry).collect();
        Footer::of((append().band, Generation(8)), header(), (1, 2400), &entries)
    }

    fn log() -> LogSlot {
        let seal = Record::Seal(append().band, Sealed { pages: 77, damaged: false });
        let unseal = Record::Unseal(BandName { life: 4, ..append().band });
        let records = vec![
            Record::Fence(VolumeId(3), Fenced { generation: Generation(1 << 40), owner: 1 << 60 }),
            seal,
            unseal,
        ];
        LogSlot { number: 2, place: 3, summary: 1, records }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(AppendHeader::decode(&append().encode()[..]), Some(append()));
        assert_eq!((append().zeroes, append().stored()), (2, 2));
        let footers = footers();
        assert_eq!(footers.iter().map(|it| it.entries.len()).collect::<Vec<_>>(), [247, 247, 106]);
        for footer in footers {
            assert_eq!(Footer::decode(&footer.encode()[..]), Some(footer));
        }
        assert_eq!(LogSlot::decode(&log().encode()[..]), Some(log()));
        let damaged = Record::Seal(append().band, Sealed { pages: 77, damaged: true });
        let damaged = LogSlot { records: vec![damaged], ..log() };
        assert_eq!(LogSlot::decode(&damaged.encode()[..]), Some(damaged));
        assert_eq!(footer_slots(0), 1, "a band may be sealed without a page");
    }

    #[test]
    fn no_change_of_a_byte_and_no_part_of_a_slot_is_sound() {
        let mut random = Random::new(3);
        for block in [append().encode(), footers()[2].encode(), log().encode()] {
            for at in 0..BLOCK_BYTES {
                let mut changed = block.clone();
                changed[at] ^= 1 << random.below(8);
                let found = (
                    AppendHeader::decode(&changed[..]),
                    Footer::decode(&changed[..]),
                    LogSlot::decode(&changed[..]),
                );
                assert_eq!(found, (None, None, None), "byte {at}");
                assert_eq!(LogSlot::decode(&block[..at]), None);
                assert_eq!(AppendHeader::decode(&block[..at]), None);
                assert_eq!(Footer::decode(&block[..at]), None);
            }
        }
    }

    #[test]
    fn a_shape_that_no_band_can_have_is_not_sound() {
        let shape = |pages, slots_per_page| BandShape { pages, slots_per_page };
        let shapes =
            [shape(0, 3), shape(600, 0), shape(600, 65), shape(u32::MAX, 2), shape(599, 3)];
        for shape in shapes {
            let header = BandHeader { shape, ..header() };
            let footer = Footer { header, ..footers().remove(0) };
            assert_eq!(Footer::decode(&footer.encode()[..]), None, "{shape:?}");
        }
        let none = BandHeader { shape: shape(600, 0), ..header() };
        let append = AppendHeader { header: none, slots: Vec::new(), zeroes: 0, ..append() };
        assert_eq!(AppendHeader::decode(&append.encode()[..]), None, "a read divides by its slots");
    }

    #[test]
    fn a_fence_that_is_forgotten_reads_back() {
        let records = vec![Record::Forget(VolumeId(4)), Record::Forget(VolumeId(u32::MAX - 1))];
        let slot = LogSlot { records, ..log() };
        assert_eq!(LogSlot::decode(&slot.encode()[..]), Some(slot));
    }

    #[test]
    fn the_bytes_are_those_of_the_table() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let found: Vec<String> = [append().encode(), footers()[2].encode(), log().encode()]
            .iter()
            .map(|block| format!("{} {}", hex(&block[..212]), hex(&block[CRC_AT..])))
            .collect();
        let golden: Vec<&str> = include_str!("golden.txt").lines().collect();
        assert_eq!(found, golden, "{}", found.join("\n"));
    }
}
