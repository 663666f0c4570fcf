//! Snapshots in the volume table: what each is called, and where its shadow lies (see `ftl`, and ADR 0021).
//!
//! A snapshot `NAME` of a volume is called `VOLUME@NAME`, by the name that the volume has now. It goes by the blocks that the
//! volume had: the volume may get another name or size, and loses nothing of the snapshot by it. It may not be deleted, as
//! its snapshots would have no name any more.

use super::{ChangeError, NAME_BYTES_MAX, NUMBER_MAX, Stretch, Table, Volume, is_name};
use crate::volume::STRIPE_BLOCKS;
use std::collections::BTreeSet;

/// Between the name of a volume and that of its snapshot.
pub const JOINT: char = '@';

/// A snapshot of a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Snapshot {
    /// Which no other snapshot or volume of the device has or had.
    pub number: u32,
    /// The number of its volume.
    pub volume: u32,
    /// What it is called, behind the name of the volume.
    pub name: String,
    /// By which NVMe hosts know it.
    pub uuid: u128,
    /// Its shadow, in the order of the volume's blocks at that time: behind the last block of the device.
    pub stretches: Vec<Stretch>,
}

impl Snapshot {
    /// Its logical blocks.
    pub fn blocks(&self) -> u64 {
        super::blocks_of(&self.stretches)
    }
}

/// What a snapshot is to be of: a volume's blocks, and its shadow. Of a clone: its own blocks, and what they are a clone
/// of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Shadow {
    /// The number of the snapshot, or of the clone.
    pub number: u32,
    /// The number of the volume.
    pub volume: u32,
    /// Blocks of the volume, and the first of as many of the shadow.
    pub parts: Vec<(Stretch, u64)>,
}

impl Table {
    /// What a snapshot is called whole; of one that is in the table.
    pub fn name_of(&self, snapshot: &Snapshot) -> String {
        let volume = self.volumes.iter().find(|volume| volume.number == snapshot.volume);
        let volume = volume.map_or("", |volume| volume.name.as_str());
        format!("{volume}{JOINT}{}", snapshot.name)
    }

    /// The snapshot that is called so, if one is.
    pub fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| self.name_of(snapshot) == name)
    }

    /// The names of a volume's snapshots.
    pub fn snapshots_of(&self, volume: &Volume) -> Vec<String> {
        let of = self.snapshots.iter().filter(|snapshot| snapshot.volume == volume.number);
        of.map(|snapshot| self.name_of(snapshot)).collect()
    }

    /// The table with another snapshot, whose shadow lies where neither one of the table's nor any of `kept` is: on a device
    /// of so many blocks, of which every `round` there is one of each shard.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn with_snapshot(
        &self,
        (volume, name, uuid): (&str, &str, u128),
        (device_blocks, round): (u64, u64),
        kept: &[Stretch],
    ) -> Result<(Self, Shadow), ChangeError> {
        if self.snapshot(volume).is_some() {
            return Err(ChangeError::IsSnapshot(volume.into()));
        }
        let of = &self.volumes[self.find(volume)?];
        if name.is_empty() || !is_name(name) || name.contains(JOINT) {
            return Err(ChangeError::SnapshotName(name.into()));
        }
        self.is_nobodys(&format!("{volume}{JOINT}{name}"))?;
        if self.next_number > NUMBER_MAX {
            return Err(ChangeError::Full);
        }
        let mut taken: Vec<Stretch> = self.shadows().chain(kept.iter().copied()).collect();
        let (mut parts, mut stretches) = (Vec::new(), Vec::new());
        for &stretch in &of.stretches {
            let first = place(stretch, device_blocks, round, &taken);
            if first + stretch.blocks > u64::from(u32::MAX) / STRIPE_BLOCKS * round {
                let reason =
                    "all addresses that the device has for snapshots are taken: delete one";
                return Err(ChangeError::NoSnapshot(reason.into()));
            }
            let shadow = Stretch { first, blocks: stretch.blocks };
            taken.push(shadow);
            parts.push((stretch, first));
            stretches.push(shadow);
        }
        let mut next = Self { changed: true, ..self.clone() };
        let (number, of) = (self.next_number, of.number);
        next.next_number += 1;
        let name = name.to_owned();
        next.snapshots.push(Snapshot { number, volume: of, name, uuid, stretches });
        match super::encode(&next) {
            Some(_) => Ok((next, Shadow { number, volume: of, parts })),
            None => Err(ChangeError::Full),
        }
    }

    /// All blocks of shadows.
    fn shadows(&self) -> impl Iterator<Item = Stretch> {
        self.snapshots.iter().flat_map(|snapshot| &snapshot.stretches).copied()
    }

    /// Behind this block of the device there are shadows only.
    pub fn shadows_begin(&self) -> Option<u64> {
        self.shadows().map(|stretch| stretch.first).min()
    }

    /// The same for a device of so many blocks: where it has grown since this was written, all shadows lie farther behind.
    /// `None` if this is not the table of such a device.
    pub fn on_device_of(mut self, device_blocks: u64) -> Option<Self> {
        if self.device_blocks > 0 {
            let by = device_blocks.checked_sub(self.device_blocks)?;
            for stretch in self.snapshots.iter_mut().flat_map(|it| &mut it.stretches) {
                stretch.first = stretch.first.checked_add(by)?;
                stretch.first.checked_add(stretch.blocks)?;
            }
            self.device_blocks = device_blocks;
        }
        let is_behind = self.shadows_begin().is_none_or(|first| first >= device_blocks);
        (is_behind && self.end() <= device_blocks).then_some(self)
    }

    /// What a device that is to grow has to have in its label, if that is another table: shadows are where they are by the
    /// blocks that it has now.
    pub fn before_growth(&self, device_blocks: u64) -> Option<Self> {
        let says = self.snapshots.is_empty() || self.device_blocks > 0;
        (!says).then(|| Self { device_blocks, ..self.clone() })
    }

    /// What must hold of the snapshots of every table.
    pub(super) fn has_sound_snapshots(&self) -> bool {
        let numbers = self.snapshots.iter().map(|snapshot| snapshot.number);
        let in_order = numbers.clone().zip(numbers.clone().skip(1)).all(|(one, next)| one < next);
        let own = |number: u32| self.volumes.iter().any(|volume| volume.number == number);
        let known =
            numbers.clone().all(|number| number > 0 && number < self.next_number && !own(number));
        let has_volume = self.snapshots.iter().all(|snapshot| own(snapshot.volume));
        let volumes = self.volumes.iter().map(|volume| volume.name.clone());
        let names: BTreeSet<String> =
            self.snapshots.iter().map(|snapshot| self.name_of(snapshot)).chain(volumes).collect();
        let unlike = names.len() == self.snapshots.len() + self.volumes.len();
        let mut shadows: Vec<Stretch> = self.shadows().collect();
        shadows.sort_unstable();
        let apart = shadows.windows(2).all(|pair| pair[0].end() <= pair[1].first);
        let behind = self.shadows_begin().is_none_or(|first| first >= self.end());
        let any = self.snapshots.iter().all(|snapshot| {
            !snapshot.stretches.is_empty()
                && snapshot.name.len() <= NAME_BYTES_MAX
                && !snapshot.name.contains(JOINT)
        });
        in_order && known && has_volume && unlike && apart && behind && any
    }
}

/// The lowest place of a shadow behind the device where nothing is: so that each block of it is on the shard of its block of
/// the volume.
fn place(of: Stretch, device_blocks: u64, round: u64, taken: &[Stretch]) -> u64 {
    let from = |least: u64| least + (of.first % round + round - least % round) % round;
    let mut first = from(device_blocks);
    let conflict = |first: u64| {
        taken.iter().find(|other| other.first < first + of.blocks && first < other.end())
    };
    while let Some(other) = conflict(first) {
        first = from(other.end());
    }
    first
}

#[cfg(test)]
mod tests {
    use super::super::{Change, TableLimits, decode, encode};
    use super::*;
    use crate::volume::Split;

    const DEVICE: u64 = 16384;

    fn table() -> Table {
        let volume = |number, name: &str, first, blocks| {
            Volume::made(number, name.into(), Stretch { first, blocks }, false)
        };
        let mut table = Table::made(vec![volume(1, "a", 0, 3000), volume(2, "b@c", 3000, 1000)]);
        table.volumes[0].stretches.push(Stretch { first: 5000, blocks: 700 });
        table
    }

    fn take(table: &Table, volume: &str, name: &str) -> Result<(Table, Shadow), ChangeError> {
        table.with_snapshot((volume, name, 7), (DEVICE, STRIPE_BLOCKS * 2), &[])
    }

    fn change(table: &Table, change: Change) -> Result<Table, ChangeError> {
        table.with(&change, TableLimits { device_blocks: DEVICE })
    }

    #[test]
    fn a_shadow_is_apart_from_all_others_and_on_the_shards_of_its_volume() {
        let (mut now, mut seen) = (table(), Vec::new());
        let split = Split::new(2);
        for at in 0..8 {
            let volume = ["a", "b@c"][at % 2];
            let (next, shadow) = take(&now, volume, &at.to_string()).unwrap();
            assert!(next.is_sound());
            assert_eq!(decode(&encode(&next).unwrap()), Some(next.clone()));
            for (stretch, first) in &shadow.parts {
                assert!(*first >= DEVICE);
                for shard in 0..2 {
                    let of = split.part_of(shard, stretch.first, stretch.blocks);
                    let there = split.part_of(shard, *first, stretch.blocks);
                    assert_eq!(of.map(|(_, blocks)| blocks), there.map(|(_, blocks)| blocks));
                }
                seen.push(Stretch { first: *first, blocks: stretch.blocks });
            }
            now = next;
        }
        seen.sort_unstable();
        assert!(seen.windows(2).all(|pair| pair[0].end() <= pair[1].first));
        // The lowest place is taken again, unless its blocks are still being given back.
        let first = now.snapshots[0].stretches.clone();
        let now = change(&now, Change::Delete { name: "a@0".into() }).unwrap();
        let round = STRIPE_BLOCKS * 2;
        let (_, again) = now.with_snapshot(("a", "x", 7), (DEVICE, round), &[]).unwrap();
        assert_eq!(again.parts[0].1, first[0].first);
        let (_, other) = now.with_snapshot(("a", "x", 7), (DEVICE, round), &first).unwrap();
        assert!(first.iter().all(|kept| {
            other.parts.iter().all(|(of, at)| *at >= kept.end() || at + of.blocks <= kept.first)
        }));
    }

    #[test]
    fn names_are_apart_and_snapshots_stay_as_they_are() {
        let (table, _) = take(&table(), "a", "monday").unwrap();
        assert_eq!(table.name_of(&table.snapshots[0]), "a@monday");
        for name in ["", "x@y", "a/b", "a\nb", &"x".repeat(65)] {
            assert!(matches!(take(&table, "a", name), Err(ChangeError::SnapshotName(_))), "{name}");
        }
        assert!(matches!(take(&table, "a", "monday"), Err(ChangeError::Exists(_))));
        assert!(matches!(take(&table, "a@monday", "x"), Err(ChangeError::IsSnapshot(_))));
        assert!(matches!(take(&table, "nosuch", "x"), Err(ChangeError::Unknown(..))));
        let rename = |from: &str, to: &str| {
            change(&table, Change::Rename { from: from.into(), to: to.into(), uuid: 1 })
        };
        assert!(matches!(rename("b@c", "a@monday"), Err(ChangeError::Exists(_))));
        assert!(matches!(rename("a@monday", "x"), Err(ChangeError::IsSnapshot(_))));
        let renamed = rename("a", "z").unwrap();
        assert_eq!(renamed.name_of(&renamed.snapshots[0]), "z@monday");
        // A volume takes no name that a snapshot gets by it.
        assert!(take(&table, "a", "c").is_ok());
        assert!(matches!(take(&rename("a", "b").unwrap(), "b", "c"), Err(ChangeError::Exists(_))));
        let (both, _) = take(&table, "a", "c").unwrap();
        let to_b = Change::Rename { from: "a".into(), to: "b".into(), uuid: 1 };
        assert!(matches!(change(&both, to_b), Err(ChangeError::Exists(_))));
        let resize = Change::Resize { name: "a@monday".into(), blocks: 1, shrink: true };
        assert!(matches!(change(&table, resize), Err(ChangeError::IsSnapshot(_))));
        let told = change(&table, Change::Delete { name: "a".into() }).unwrap_err().to_string();
        assert!(told.contains("a@monday"), "{told}");
        let gone = change(&table, Change::Delete { name: "a@monday".into() }).unwrap();
        assert_eq!((gone.snapshots.len(), gone.leaving.len()), (0, 0));
        assert!(change(&gone, Change::Delete { name: "a".into() }).is_ok());
        let shrunk = Change::Resize { name: "a".into(), blocks: 100, shrink: true };
        let shrunk = change(&table, shrunk).unwrap();
        assert_eq!(shrunk.snapshots, table.snapshots);
    }

    #[test]
    fn shadows_go_with_the_end_of_a_device_that_grows() {
        let (old, _) = take(&table(), "a", "x").unwrap();
        assert_eq!(old.clone().on_device_of(DEVICE), Some(old.clone()));
        assert_eq!(old.clone().on_device_of(DEVICE + 512), None, "it does not say where they are");
        let ready = old.before_growth(DEVICE).unwrap();
        assert_eq!(ready.before_growth(DEVICE), None);
        assert_eq!(table().before_growth(DEVICE), None, "there are none");
        let ready = decode(&encode(&ready).unwrap()).unwrap();
        assert_eq!(ready.clone().on_device_of(DEVICE), Some(ready.clone()));
        assert_eq!(ready.clone().on_device_of(DEVICE - 512), None);
        assert_eq!(ready.clone().on_device_of(u64::MAX), None);
        let grown = ready.on_device_of(DEVICE + 512).unwrap();
        let places = |table: &Table| table.shadows().map(|it| it.first).collect::<Vec<_>>();
        let farther: Vec<u64> = places(&old).iter().map(|first| first + 512).collect();
        assert_eq!(places(&grown), farther);
        assert_eq!(decode(&encode(&grown).unwrap()), Some(grown.clone()));
        let gone = change(&grown, Change::Delete { name: "a@x".into() }).unwrap();
        assert_eq!((gone.device_blocks, decode(&encode(&gone).unwrap())), (0, Some(gone)));
    }

    #[test]
    fn a_table_whose_snapshots_contradict_it_is_refused() {
        let (good, _) = take(&table(), "a", "x").unwrap();
        let (good, _) = take(&good, "b@c", "x").unwrap();
        let spoil = |spoil: fn(&mut Table)| {
            let mut table = good.clone();
            spoil(&mut table);
            decode(&encode(&table).unwrap())
        };
        assert!(spoil(|_| ()).is_some());
        assert_eq!(spoil(|table| table.snapshots[0].volume = 9), None);
        assert_eq!(spoil(|table| table.snapshots[0].number = 1), None);
        assert_eq!(spoil(|table| table.snapshots[1].number = 3), None);
        assert_eq!(spoil(|table| table.snapshots[0].stretches[0].first = 10), None);
        assert_eq!(spoil(|table| table.snapshots[0].stretches.clear()), None);
        let twice = |table: &mut Table| {
            table.snapshots[1].stretches = table.snapshots[0].stretches.clone();
        };
        assert_eq!(spoil(twice), None, "two have a block");
    }
}
