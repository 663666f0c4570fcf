//! What can be damaged, how, and when; and the matrix that counts which of it was tried.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::ops::Range;

/// What a slot is to the device that it lies on.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SlotKind {
    /// The version of a logical block that the map points to.
    Data,
    /// The same, put there by GC: its sequence is older than that of what lies around it.
    Copy,
    /// A version that was overwritten or trimmed, or that GC has copied.
    Superseded,
    /// Padding.
    Pad,
    /// A trim record.
    Trim,
    /// The record of a block that was lost.
    Poison,
    /// The record that an atomic write is whole.
    Commit,
    /// Of the checkpoint that recovery goes by: root records.
    Root,
    /// Likewise: map chunks.
    Map,
    /// Likewise: the band table.
    BandTable,
    /// Likewise: what makes up for one of these two. Nobody looks at it before it is needed.
    Parity,
    /// Likewise: its end, and the copy of that.
    Footer,
    /// Whatever belongs to an older checkpoint.
    OldCheckpoint,
    /// On a fast unit: the version that the map points to.
    FastData,
    /// On a fast unit: anything else.
    FastOther,
    /// The page behind the last one that a block has.
    Blank,
    /// A slot of a raw block.
    RawData,
    /// A lane record.
    LaneRecord,
}

impl SlotKind {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Data,
        Self::Copy,
        Self::Superseded,
        Self::Pad,
        Self::Trim,
        Self::Poison,
        Self::Commit,
        Self::Root,
        Self::Map,
        Self::BandTable,
        Self::Parity,
        Self::Footer,
        Self::OldCheckpoint,
        Self::FastData,
        Self::FastOther,
        Self::Blank,
        Self::RawData,
        Self::LaneRecord,
    ];

    /// Whether it is part of the checkpoint that recovery goes by.
    pub fn is_of_checkpoint(self) -> bool {
        matches!(self, Self::Root | Self::Map | Self::BandTable | Self::Footer)
    }

    fn is_raw(self) -> bool {
        matches!(self, Self::RawData | Self::LaneRecord)
    }
}

/// A field of the bytes beside a slot: see docs/formats.md.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Field {
    /// The checksum of device, place and header.
    Sum,
    /// The checksum of the data.
    DataSum,
    /// The version.
    Sequence,
    /// The kind.
    Kind,
    /// The byte that is 0.
    Reserved,
    /// The page's order.
    Order,
    /// Index and size of the atomic group.
    Group,
    /// The logical block.
    Lba,
    /// The argument.
    Argument,
}

impl Field {
    const ALL: [Self; 9] = [
        Self::Sum,
        Self::DataSum,
        Self::Sequence,
        Self::Kind,
        Self::Reserved,
        Self::Order,
        Self::Group,
        Self::Lba,
        Self::Argument,
    ];

    /// Its bytes.
    pub fn bytes(self) -> Range<usize> {
        match self {
            Self::Sum => 0..4,
            Self::DataSum => 4..8,
            Self::Sequence => 8..14,
            Self::Kind => 14..15,
            Self::Reserved => 15..16,
            Self::Order => 16..22,
            Self::Group => 22..24,
            Self::Lba => 24..28,
            Self::Argument => 28..32,
        }
    }
}

/// What happens to slots.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Harm {
    /// One bit of the data flips.
    Data,
    /// One bit of a field beside it flips.
    Oob(Field),
    /// Data and OOB are zeroes.
    Zeroed,
    /// Data and OOB are noise.
    Scrambled,
    /// It reads as erased.
    Erased,
    /// It holds what it once held: erase and program since never happened.
    Stale,
    /// It holds what another slot of the device holds, sound in every way but for its place.
    Moved,
    /// It holds what that very slot of another device holds.
    Foreign,
    /// It holds what that very slot of a clone of the device holds, which went its own way since.
    Cloned,
    /// It holds another logical block with a header that is right for this place.
    Readdressed,
    /// It cannot be read.
    Unreadable,
    /// The medium takes the block for shorter than it is.
    PointerSmall,
    /// The medium takes the block for longer than it is.
    PointerLarge,
    /// What the medium keeps of the block is out of date.
    PointerStale,
    /// The block's erases are counted wrongly.
    EraseCount,
}

impl Harm {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Data];
        all.extend(Field::ALL.map(Self::Oob));
        all.extend([
            Self::Zeroed,
            Self::Scrambled,
            Self::Erased,
            Self::Stale,
            Self::Moved,
            Self::Foreign,
            Self::Cloned,
            Self::Readdressed,
            Self::Unreadable,
            Self::PointerSmall,
            Self::PointerLarge,
            Self::PointerStale,
            Self::EraseCount,
        ]);
        all
    }

    /// It is done to what the medium keeps of a block, not to slots.
    pub fn is_of_record(self) -> bool {
        matches!(
            self,
            Self::PointerSmall | Self::PointerLarge | Self::PointerStale | Self::EraseCount
        )
    }

    /// It is done to one slot only.
    pub fn is_of_one_slot(self) -> bool {
        matches!(self, Self::Data | Self::Oob(_) | Self::Readdressed)
    }

    /// Whether there is such a thing. The reasons are the comments.
    pub fn applies(self, kind: SlotKind, moment: Moment) -> bool {
        let served = moment == Moment::Served;
        match self {
            // Who serves has read the records of blocks; they are written, and not read again.
            _ if self.is_of_record() && served => false,
            // Only a map in use knows that it is not the block it points to: a mount that reads such
            // a header has no reason not to believe it.
            Self::Readdressed => kind == SlotKind::Data && served,
            // Of a page that was never programmed there are no bits to flip and nothing to lose.
            _ if kind == SlotKind::Blank => {
                !served
                    && matches!(
                        self,
                        Self::Zeroed
                            | Self::Scrambled
                            | Self::Stale
                            | Self::Moved
                            | Self::Foreign
                            | Self::Cloned
                            | Self::Unreadable
                    )
            }
            // The band that such a record lies in is full as good as always.
            Self::PointerLarge if kind == SlotKind::Poison => false,
            // The OOB of raw units has other fields; these bytes are one of them or another.
            Self::Oob(Field::DataSum | Field::Group | Field::Lba) if kind.is_raw() => false,
            _ => true,
        }
    }
}

/// When it happens.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Moment {
    /// After a clean stop.
    Stopped,
    /// After a power cut.
    Cut,
    /// After either, and the recovery from it is cut off as well.
    Recovery,
    /// While the host is served.
    Served,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Stopped, Self::Cut, Self::Recovery, Self::Served];
}

/// Several things at once.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Combination {
    /// A map chunk, and a band with data.
    MapAndBand,
    /// A map chunk, and a slot with data.
    MapAndData,
    /// One bit beside every map chunk, and noise beside all slots of a band with data.
    MapsAndBandOob,
    /// Every root record of the checkpoint.
    Roots,
    /// Both footers of the checkpoint.
    Footers,
    /// Both footers, and a map chunk.
    FootersAndMap,
    /// A root record, and a slot with data.
    RootAndData,
    /// The band table, and a slot with data.
    TableAndData,
    /// Records of trims and commits, each of them.
    Records,
    /// A few slots with data.
    ManyData,
    /// A map chunk unreadable, and one slot with data copied over another.
    MapAndMoved,
    /// What was programmed last in a band reads as erased.
    Tail,
    /// What was programmed last in all bands reads as erased, where records tell how far they were durable:
    /// a file as it was at an earlier moment.
    Tails,
}

impl Combination {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::MapAndBand,
        Self::MapAndData,
        Self::MapsAndBandOob,
        Self::Roots,
        Self::Footers,
        Self::FootersAndMap,
        Self::RootAndData,
        Self::TableAndData,
        Self::Records,
        Self::ManyData,
        Self::MapAndMoved,
        Self::Tail,
        Self::Tails,
    ];
}

/// What was done to an image.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Case {
    /// To a slot, or what lies around it.
    One(SlotKind, Harm),
    /// To several.
    Several(Combination),
}

/// What came of the images of one case and moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Images.
    pub images: u64,
    /// Of them: a block could not be read that could before.
    pub errors: u64,
    /// Of them: the report said that the device is damaged.
    pub told: u64,
    /// Of them: could not be mounted.
    pub refused: u64,
}

/// Which cases were tried how often.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Matrix {
    cells: BTreeMap<(Moment, Case), Tally>,
}

impl Matrix {
    /// Counts an image.
    pub fn count(&mut self, moment: Moment, case: Case, tally: Tally) {
        let cell = self.cells.entry((moment, case)).or_default();
        cell.images += tally.images;
        cell.errors += tally.errors;
        cell.told += tally.told;
        cell.refused += tally.refused;
    }

    /// Adds what others tried.
    pub fn add(&mut self, other: &Self) {
        other.cells.iter().for_each(|(&(moment, case), &tally)| self.count(moment, case, tally));
    }

    /// All images.
    pub fn total(&self) -> Tally {
        let mut total = Self::default();
        let any = (Moment::Stopped, Case::Several(Combination::Roots));
        self.cells.values().for_each(|&tally| total.count(any.0, any.1, tally));
        total.cells.get(&any).copied().unwrap_or_default()
    }

    /// Whether a case was tried at a moment.
    pub fn has(&self, moment: Moment, case: Case) -> bool {
        self.cells.contains_key(&(moment, case))
    }

    /// The cases of `kinds` that apply and were not tried.
    pub fn missing(&self, kinds: &[SlotKind], combinations: bool) -> Vec<(Moment, Case)> {
        let mut missing = Vec::new();
        for moment in Moment::ALL {
            for &kind in kinds {
                let harms = Harm::all().into_iter().filter(|harm| harm.applies(kind, moment));
                missing.extend(harms.map(|harm| (moment, Case::One(kind, harm))));
            }
            let several = Combination::ALL.into_iter().filter(|_| combinations);
            missing.extend(several.map(|combination| (moment, Case::Several(combination))));
        }
        missing.retain(|&(moment, case)| !self.has(moment, case));
        missing
    }

    /// A table for each moment: images of each kind of slot and kind of damage.
    pub fn as_text(&self) -> String {
        let mut text = String::new();
        let harms = Harm::all();
        for moment in Moment::ALL {
            let _ = write!(text, "{moment:?}, images: damage of\n{:13}", "");
            for harm in &harms {
                let _ = write!(text, " {:>7}", short(harm));
            }
            text.push('\n');
            for kind in SlotKind::ALL {
                let _ = write!(text, "{:13}", format!("{kind:?}"));
                for &harm in &harms {
                    let cell = self.cells.get(&(moment, Case::One(kind, harm)));
                    let count = cell.map_or("-".into(), |cell| cell.images.to_string());
                    let _ = write!(text, " {count:>7}");
                }
                text.push('\n');
            }
            for combination in Combination::ALL {
                let cell = self.cells.get(&(moment, Case::Several(combination)));
                let cell = cell.copied().unwrap_or_default();
                let name = format!("{combination:?}");
                let _ = writeln!(
                    text,
                    "{name:15} {:>6}, errors in {}, told {}, refused {}",
                    cell.images, cell.errors, cell.told, cell.refused
                );
            }
        }
        let total = self.total();
        let _ = writeln!(
            text,
            "{} images: errors in {}, told by the report {}, refused {}",
            total.images, total.errors, total.told, total.refused
        );
        text
    }
}

/// At most seven letters.
fn short(harm: &Harm) -> String {
    let name = match harm {
        Harm::Oob(field) => format!("o{field:?}"),
        Harm::PointerSmall => "wpSmall".into(),
        Harm::PointerLarge => "wpLarge".into(),
        Harm::PointerStale => "wpStale".into(),
        other => format!("{other:?}"),
    };
    name.chars().take(7).collect()
}
