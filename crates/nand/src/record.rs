//! The state of one erase block: what a driver must keep to restart an emulated device.
//!
//! Which pages read erased, intact or uncorrectable follows from the record alone, save pages
//! damaged one by one (`Nand::damaged_pages`).

/// The state of a block (of every plane together).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockRecord {
    /// Erases so far.
    pub erase_count: u32,
    /// The next page to program: those before it are programmed, it and those after it erased.
    pub write_pointer: u32,
    /// Pages from this one to the write pointer are uncorrectable.
    pub damaged_from: u32,
    /// Bit `i` set: page `write_pointer - 1 - i` is uncorrectable.
    pub damaged_tail: u8,
    /// Takes no program and no erase any more, since the factory or since a failure.
    pub bad: bool,
    /// A power cut interrupted a program or erase of it: takes nothing but an erase.
    pub needs_erase: bool,
    /// An interrupted erase has left the first page reading erased.
    pub first_erased: bool,
    /// How far the block was durable when the record was made, see [`BlockRecord::pages_durable`]; a
    /// driver's business: [`crate::Nand`] forgets it.
    pub unsure: u8,
}

impl Default for BlockRecord {
    /// Fresh from the factory: erased.
    fn default() -> Self {
        Self::FRESH
    }
}

impl BlockRecord {
    /// Fresh from the factory: erased.
    pub const FRESH: Self = Self {
        erase_count: 0,
        write_pointer: 0,
        damaged_from: u32::MAX,
        damaged_tail: 0,
        bad: false,
        needs_erase: false,
        first_erased: false,
        unsure: 0,
    };

    /// The largest `unsure`.
    const UNSURE_MAX: u8 = 15;

    /// Bytes of an encoded record.
    pub const BYTES: usize = 16;

    /// The record as bytes, numbers little-endian:
    ///
    /// | bytes | holds |
    /// |---|---|
    /// | 0..4 | `erase_count` |
    /// | 4..8 | `write_pointer` |
    /// | 8..12 | `damaged_from`; all ones if no page is |
    /// | 12 | `damaged_tail` |
    /// | 13 | bit 0 `bad`, bit 1 `needs_erase`, bit 2 `first_erased`, bits 3 to 6 `unsure`; bit 7 is 0 |
    /// | 14..16 | low half of the CRC-32C of the bytes before, 1 if that is 0; 0 in records of older versions |
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.erase_count.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.write_pointer.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.damaged_from.to_le_bytes());
        bytes[12] = self.damaged_tail;
        bytes[13] = u8::from(self.bad)
            | u8::from(self.needs_erase) << 1
            | u8::from(self.first_erased) << 2
            | self.unsure << 3;
        let sum = Self::sum(&bytes);
        bytes[14..].copy_from_slice(&sum);
        bytes
    }

    fn sum(bytes: &[u8; Self::BYTES]) -> [u8; 2] {
        let crc = flash::crc(&bytes[..14]) as u16;
        crc.max(1).to_le_bytes()
    }

    /// The record that [`BlockRecord::encode`], or an older version of it, made these bytes of; `None` if
    /// neither can have.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let is_sound = bytes[14..] == [0, 0] || bytes[14..] == Self::sum(bytes);
        if bytes[13] >= 1 << 7 || !is_sound {
            return None;
        }
        if *bytes == [0; Self::BYTES] {
            // Never written. In a file with holes these are the records of new blocks.
            return Some(Self::FRESH);
        }
        Some(Self {
            erase_count: word(0),
            write_pointer: word(4),
            damaged_from: word(8),
            damaged_tail: bytes[12],
            bad: bytes[13] & 1 != 0,
            needs_erase: bytes[13] & 2 != 0,
            first_erased: bytes[13] & 4 != 0,
            unsure: bytes[13] >> 3,
        })
    }

    /// The same, made when so many pages were durable. What is rounded is rounded down.
    pub fn with_durable(self, pages: u32) -> Self {
        let unsure = match self.write_pointer.saturating_sub(pages) {
            0 => 1,
            behind => 2 + behind.next_power_of_two().ilog2() as u8,
        };
        Self { unsure: if pages == 0 || unsure > Self::UNSURE_MAX { 0 } else { unsure }, ..self }
    }

    /// Pages from the first on that were durable when the record was made: all if `unsure` is 1, all but the
    /// last `1 << (unsure - 2)` if it is more; 0 if it does not tell.
    pub fn pages_durable(&self) -> u32 {
        match self.unsure {
            0 => 0,
            1 => self.write_pointer,
            bits => self.write_pointer.saturating_sub(1 << (bits - 2)),
        }
    }

    /// A page reads erased.
    pub(crate) fn is_erased(&self, page: u32) -> bool {
        page >= self.write_pointer || (page == 0 && self.first_erased)
    }

    /// A page that does not read erased cannot be read.
    pub(crate) fn is_damaged(&self, page: u32) -> bool {
        let back = self.write_pointer.wrapping_sub(page + 1);
        page >= self.damaged_from || (back < 8 && self.damaged_tail >> back & 1 == 1)
    }

    /// One more page is programmed.
    pub(crate) fn advance(&mut self) {
        self.write_pointer += 1;
        // The tail counts back from the write pointer.
        self.damaged_tail <<= 1;
    }

    /// The record after one more erase.
    pub(crate) fn erased(&self) -> Self {
        Self { erase_count: self.erase_count.saturating_add(1), ..Self::default() }
    }

    /// Marks one of the last eight programmed pages uncorrectable.
    pub(crate) fn damage_tail(&mut self, page: u32) {
        let back = self.write_pointer - 1 - page;
        assert!(back < 8, "no pairing reaches back farther than eight pages");
        self.damaged_tail |= 1 << back;
    }

    /// Marks every page uncorrectable, also those that were erased, except the first `kept`.
    pub(crate) fn damage_from(&mut self, kept: u32, pages_per_block: u32) {
        // The tail counts back from the write pointer, which moves.
        let first_lost = (0..kept).find(|&page| self.is_damaged(page) && !self.is_erased(page));
        self.first_erased |= kept > 0 && self.write_pointer == 0;
        self.damaged_from = first_lost.unwrap_or(kept);
        self.damaged_tail = 0;
        self.write_pointer = pages_per_block;
    }
}

#[cfg(test)]
mod tests {
    use super::BlockRecord;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_gives_back_what_encode_took(
            words: [u32; 3], tail: u8, bad: bool, needs_erase: bool, first_erased: bool,
            unsure in 0..16u8,
        ) {
            let record = BlockRecord {
                erase_count: words[0],
                write_pointer: words[1],
                damaged_from: words[2],
                damaged_tail: tail,
                bad,
                needs_erase,
                first_erased,
                unsure,
            };
            prop_assert_eq!(BlockRecord::decode(&record.encode()), Some(record));
        }

        #[test]
        fn decode_takes_the_records_of_older_versions(head: [u8; 14]) {
            let mut bytes = [0; 16];
            bytes[..14].copy_from_slice(&head);
            if let Some(record) = BlockRecord::decode(&bytes).filter(|_| head != [0; 14]) {
                prop_assert_eq!(&record.encode()[..14], &head);
            }
        }

        #[test]
        fn a_record_never_tells_more_durable_than_there_was(
            pages in 0..70_000u32, behind in 0..70_000u32,
        ) {
            let record = BlockRecord { write_pointer: pages + behind, ..BlockRecord::FRESH };
            let told = record.with_durable(pages).pages_durable();
            prop_assert!(told <= pages);
            prop_assert!(pages == 0 || behind > 1 << 13 || told + behind >= pages, "{} of {}", told, pages);
        }

        #[test]
        fn a_flipped_bit_is_found(pages: u32, erase_count: u32, bit in 0..128usize) {
            let record = BlockRecord { erase_count, write_pointer: pages, ..BlockRecord::FRESH };
            let mut bytes = record.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // All of the sum may be one bit.
            prop_assert!(bytes[14..] == [0, 0] || BlockRecord::decode(&bytes).is_none());
        }
    }

    #[test]
    fn the_encoding_is_the_documented_one() {
        let record = BlockRecord {
            erase_count: 0x0403_0201,
            write_pointer: 5,
            needs_erase: true,
            damaged_tail: 9,
            ..BlockRecord::default()
        };
        let bytes = [1, 2, 3, 4, 5, 0, 0, 0, 255, 255, 255, 255, 9, 2];
        assert_eq!(record.encode()[..14], bytes);
        assert_eq!(record.encode()[14..], (flash::crc(&bytes) as u16).to_le_bytes());
        assert_eq!(BlockRecord::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128, 0, 0]), None);
    }
}
