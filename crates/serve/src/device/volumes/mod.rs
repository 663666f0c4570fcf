//! The volume table: which stretches of the device's logical blocks are which volume. It lies in the label that the
//! FTL keeps in its root records, and is replaced there as a whole ([`ftl::Input::Label`]): after a power cut there is
//! the table of before or that of after. Of several shards the first one's counts.
//!
//! Invariants:
//! - no block belongs to two volumes, nor to one and to what is *leaving*: blocks that a volume had and that may
//!   still hold its data. They are free once they are trimmed and the trim is durable;
//! - a volume has a number that no other ever had, so that nothing which was meant for one reaches another; snapshots are
//!   numbered with them;
//! - a snapshot lies in its shadow, blocks behind the last of the device, of which none belongs to two.

mod change;
mod clones;
mod format;
mod snapshots;

pub use change::{Change, ChangeError, Limits, TableLimits, amount, is_name, size as size_text};
pub use format::{decode, encode};
pub use snapshots::{JOINT, Shadow, Snapshot};

/// Longest name of a volume.
pub const NAME_BYTES_MAX: usize = 64;
/// The last number that a volume may have: NVMe hosts know it by that.
pub const NUMBER_MAX: u32 = 1 << 20;

/// Consecutive logical blocks of a device.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Stretch {
    /// The first.
    pub first: u64,
    /// How many, one at least.
    pub blocks: u64,
}

impl Stretch {
    /// The block behind the last.
    pub fn end(&self) -> u64 {
        self.first + self.blocks
    }
}

/// A volume of a device.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Volume {
    /// Which no other volume of the device has or had; from 1 on.
    pub number: u32,
    /// What clients ask for.
    pub name: String,
    /// By which NVMe hosts know it; of one that has none it follows from its name.
    pub uuid: Option<u128>,
    /// Where its blocks are, in their order.
    pub stretches: Vec<Stretch>,
    /// Refuses writes.
    pub read_only: bool,
    /// How much of it clients may ask.
    pub limits: Limits,
    /// The number of the snapshot that it is a clone of, if it is one.
    pub origin: Option<u32>,
}

impl Volume {
    /// A volume as it is made with a device: one stretch.
    pub fn made(number: u32, name: String, stretch: Stretch, read_only: bool) -> Self {
        let (uuid, limits, stretches) = (None, Limits::default(), vec![stretch]);
        Self { number, name, uuid, stretches, read_only, limits, origin: None }
    }

    /// Its logical blocks.
    pub fn blocks(&self) -> u64 {
        self.stretches.iter().map(|stretch| stretch.blocks).sum()
    }
}

/// See the head of this file.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Table {
    /// In the order of their numbers.
    pub volumes: Vec<Volume>,
    /// What volumes had that are gone, or smaller now.
    pub leaving: Vec<Stretch>,
    /// Snapshots of volumes, in the order of their numbers.
    pub snapshots: Vec<Snapshot>,
    /// Logical blocks of the device, behind which the shadows of its snapshots lie; 0: it has never grown while it had some.
    pub device_blocks: u64,
    /// The next volume's or snapshot's number.
    pub next_number: u32,
    /// It is not as the device was made any more.
    pub changed: bool,
}

impl Table {
    /// The table of a device that is made with these volumes.
    pub fn made(volumes: Vec<Volume>) -> Self {
        let next_number = volumes.len() as u32 + 1;
        Self { volumes, next_number, ..Self::default() }
    }

    /// All that is taken, in the order of the device.
    pub fn taken(&self) -> Vec<Stretch> {
        let volumes = self.volumes.iter().flat_map(|volume| &volume.stretches);
        let mut taken: Vec<Stretch> = volumes.chain(&self.leaving).copied().collect();
        taken.sort_unstable();
        taken
    }

    /// The block behind the last that is taken.
    pub fn end(&self) -> u64 {
        self.taken().last().map_or(0, Stretch::end)
    }

    /// Whose a block of the device is, and which of its volume's.
    pub fn volume_of(&self, block: u64) -> Option<(&Volume, u64)> {
        let mut volumes = self.volumes.iter();
        volumes.find_map(|volume| Some((volume, at_of(&volume.stretches, block)?)))
    }

    /// In which snapshot's shadow a block lies, and which of its volume's that is.
    pub fn snapshot_of(&self, block: u64) -> Option<(&Snapshot, u64)> {
        let mut snapshots = self.snapshots.iter();
        snapshots.find_map(|snapshot| Some((snapshot, at_of(&snapshot.stretches, block)?)))
    }

    /// What nobody has of a device of so many blocks.
    pub fn free(&self, device_blocks: u64) -> Vec<Stretch> {
        let (mut free, mut next) = (Vec::new(), 0);
        let end = Stretch { first: device_blocks, blocks: 0 };
        for stretch in self.taken().into_iter().chain([end]) {
            if stretch.first > next {
                free.push(Stretch { first: next, blocks: stretch.first - next });
            }
            next = next.max(stretch.end());
        }
        free
    }

    /// What must hold of every table.
    pub(crate) fn is_sound(&self) -> bool {
        let numbers = self.volumes.iter().map(|volume| volume.number);
        let names: std::collections::BTreeSet<_> =
            self.volumes.iter().map(|volume| &volume.name).collect();
        let in_order = numbers.clone().zip(numbers.clone().skip(1)).all(|(one, next)| one < next);
        let known = numbers.clone().all(|number| number > 0 && number < self.next_number);
        let taken = self.taken();
        let apart = taken.windows(2).all(|pair| pair[0].end() <= pair[1].first);
        let any = self.volumes.iter().all(|volume| !volume.stretches.is_empty());
        names.len() == self.volumes.len()
            && in_order
            && known
            && apart
            && any
            && self.has_sound_snapshots()
            && self.has_sound_clones()
    }
}

/// Which block of these stretches, in their order, is this one of the device.
fn at_of(stretches: &[Stretch], block: u64) -> Option<u64> {
    let mut before = 0;
    for stretch in stretches {
        if (stretch.first..stretch.end()).contains(&block) {
            return Some(before + block - stretch.first);
        }
        before += stretch.blocks;
    }
    None
}

/// The volumes of a device of so many blocks, by its label; `None` if that holds no table of such a device.
pub fn volumes_of(label: &[u8], device_blocks: u64) -> Option<Table> {
    decode(label)?.on_device_of(device_blocks)
}

/// Sum of the blocks of stretches.
pub fn blocks_of(stretches: &[Stretch]) -> u64 {
    stretches.iter().map(|stretch| stretch.blocks).sum()
}
