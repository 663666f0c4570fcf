//! The devices that are damaged: every kind of medium, and every way the FTL keeps its map.

use super::kinds::SlotKind;
use crate::crash::CrashOptions;
use crate::device::Manner;
use flash::Pairing;
use nand::Faults;

/// A kind of device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shape {
    /// Flash whose pages have cells of their own.
    Slc,
    /// Flash whose pages share cells two by two, as far as three pages apart.
    Mlc,
    /// Flash whose pages share cells by three.
    Tlc,
    /// A file: it forgets what was not flushed.
    File,
    /// The same with records of how far each block was durable.
    Folder,
    /// A medium that bounds how many blocks are partly written.
    Zoned,
    /// A fast tier before flash.
    Tiered,
    /// But a part of the map in DRAM.
    PartOfMap,
    /// Likewise behind a fast tier.
    TieredPartOfMap,
    /// A map of several chunks, all of it in DRAM.
    Large,
    /// A map of several chunks, a part of it in DRAM.
    LargePartOfMap,
}

impl Shape {
    /// All of them; small ones come more than once.
    pub const ALL: [Self; 13] = [
        Self::Slc,
        Self::Mlc,
        Self::File,
        Self::Tiered,
        Self::PartOfMap,
        Self::Folder,
        Self::Tlc,
        Self::Zoned,
        Self::Mlc,
        Self::TieredPartOfMap,
        Self::Large,
        Self::LargePartOfMap,
        Self::Slc,
    ];

    /// That of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// The seed with this number of those that have this shape.
    pub fn seed(self, number: u64) -> u64 {
        let at = Self::ALL.iter().position(|&shape| shape == self).unwrap_or(0);
        number * Self::ALL.len() as u64 + at as u64
    }

    /// Operations of a part of its life.
    pub(super) fn operations(self) -> u32 {
        match self {
            Self::Large | Self::LargePartOfMap => 600,
            _ => 250,
        }
    }

    /// The kinds of slots that a device of any of these shapes has.
    pub const KINDS: [SlotKind; 16] = [
        SlotKind::Data,
        SlotKind::Copy,
        SlotKind::Superseded,
        SlotKind::Pad,
        SlotKind::Trim,
        SlotKind::Poison,
        SlotKind::Commit,
        SlotKind::Root,
        SlotKind::Map,
        SlotKind::BandTable,
        SlotKind::Parity,
        SlotKind::Footer,
        SlotKind::OldCheckpoint,
        SlotKind::FastData,
        SlotKind::FastOther,
        SlotKind::Blank,
    ];

    /// A device of this shape, and settings.
    pub fn options(self, seed: u64) -> CrashOptions {
        let mut options = match self {
            Self::Tiered | Self::TieredPartOfMap => CrashOptions::tiered_of_seed(seed),
            _ => CrashOptions::of_seed(seed),
        };
        let manner = match self {
            Self::Slc => Some(Manner::Nand(Pairing::None)),
            Self::Mlc => Some(Manner::Nand(Pairing::Staircase)),
            Self::Tlc => Some(Manner::Nand(Pairing::Adjacent(3))),
            Self::File | Self::Zoned => Some(Manner::File),
            Self::Folder => Some(Manner::Folder),
            Self::Tiered | Self::TieredPartOfMap => None,
            Self::PartOfMap | Self::Large | Self::LargePartOfMap => {
                let manners =
                    [Manner::Nand(Pairing::None), Manner::Nand(Pairing::Staircase), Manner::File];
                Some(manners[(seed / 12 % 3) as usize])
            }
        };
        options.device.manner = manner.unwrap_or(options.device.manner);
        // Room for what recovery keeps until the next checkpoint, and for a volume or two.
        options.device.blocks_per_unit += 2;
        options.fill = [0.4, 0.7, 0.9][(seed / 5 % 3) as usize];
        options.volumes = 1;
        options.settings.fast_shares = Vec::new();
        if self == Self::Zoned {
            options.device.open_blocks_max = 5 + (seed % 5) as u32;
        }
        if matches!(self, Self::Large | Self::LargePartOfMap) {
            options.device.blocks_per_unit = 48;
            options.device.pages_per_block = 16;
            options.device.slots_per_page = 2;
        }
        match self {
            Self::PartOfMap | Self::TieredPartOfMap => options.with_part_of_the_map(),
            Self::LargePartOfMap => {
                options.settings.map_piece_blocks = 64;
                if let Ok(medium) = options.device.build(Faults::default()) {
                    let piece = options.settings.map_piece_blocks;
                    options.settings.map_bytes = ftl::map_bytes_min(medium.geometry(), piece);
                }
                options
            }
            _ => options,
        }
    }
}
