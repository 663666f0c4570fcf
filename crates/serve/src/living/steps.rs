//! What a change of volumes takes, step by step. Pure: [`super`] carries the steps out, one after the other.
//!
//! A change is *recorded* first, in one piece; then it is *offered*, and the end of what was begun under the old offer is
//! awaited; then whoever asked is answered. What volumes have left goes in the background: it is trimmed piece by piece,
//! the trims are made durable, and only then it is recorded to be free. After a power cut whatever is still recorded to be
//! leaving is trimmed from its start.
//!
//! A snapshot is *prepared* and *cut* by the FTLs before it is recorded, and *dropped* by them after it is recorded to be gone.
//! One that they have and that is not recorded, as after a power cut between, is dropped. A clone likewise is made before it is
//! recorded, and dropped before what it had is trimmed: what is trimmed of a clone leaves marks.
//!
//! Invariants:
//! - what is offered was recorded before;
//! - what is recorded of a snapshot the FTLs have durably, and its shadow is nobody else's before they have given it back;
//! - nothing is recorded to be free before trims of all of it are durable, which began when no request to it went on;
//! - after a step that failed nothing is done any more: nobody knows what is recorded.

use crate::device::{Change, ChangeError, Shadow, Stretch, Table, TableLimits, encode_volumes};

/// Blocks that are trimmed at once: what others wait for meanwhile is short.
const TRIM_BLOCKS: u64 = 1 << 14;

/// What is to be done.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// Make this the device's label, durably.
    Record(Vec<u8>),
    /// Offer the volumes of this table and no others, and wait until nothing goes on that was begun before.
    Offer(Table),
    /// Trim these blocks of the device.
    Trim(Stretch),
    /// Make durable what was trimmed.
    Flush,
    /// Make room for a snapshot.
    Prepare(Shadow),
    /// Take it, on all shards between two requests, durably.
    Cut(Shadow),
    /// Make a clone, on all shards, durably.
    Clone(Shadow),
    /// Give the snapshot or clone of this number up, if there is any, and its room back.
    Drop(u32),
}

/// See the head of this file.
pub struct Living {
    table: Table,
    limits: TableLimits,
    /// Of a stripe on every shard.
    round: u64,
    /// Snapshots and clones that the FTLs have to give up, and the shadows of those, if they are known.
    dropping: Vec<(u32, Option<Vec<Stretch>>)>,
    change: Option<Pending>,
    clearing: Option<Clearing>,
    lost: bool,
}

/// How far a change is.
enum Pending {
    Preparing(Table, Shadow),
    Cutting(Table, Shadow),
    Cloning(Table, Shadow),
    Recording(Table),
    Offering,
}

/// How far it is with what volumes have left.
struct Clearing {
    stretches: Vec<Stretch>,
    /// So many of them, and of the next one so many blocks.
    trimmed: (usize, u64),
    durable: bool,
}

impl Clearing {
    /// What is trimmed next.
    fn next(&self) -> Option<Stretch> {
        let (index, inside) = self.trimmed;
        let stretch = self.stretches.get(index)?;
        let blocks = TRIM_BLOCKS.min(stretch.blocks - inside);
        Some(Stretch { first: stretch.first + inside, blocks })
    }

    fn advance(&mut self, by: Stretch) {
        let (index, inside) = self.trimmed;
        let whole = inside + by.blocks == self.stretches[index].blocks;
        self.trimmed = if whole { (index + 1, 0) } else { (index, inside + by.blocks) };
    }
}

impl Living {
    /// Of a device with this table, whose shards have a stripe each every `round` blocks.
    pub fn new(table: Table, limits: TableLimits, round: u64) -> Self {
        let (change, clearing, dropping) = (None, None, Vec::new());
        Self { table, limits, round, dropping, change, clearing, lost: false }
    }

    /// The same, whose FTLs have the snapshots of these numbers. Those that are not recorded are given up.
    pub fn with_found(mut self, found: impl Iterator<Item = u32>) -> Self {
        for number in found {
            let is_recorded = held(&self.table).any(|(known, _)| known == number);
            let is_told = self.dropping.iter().any(|(known, _)| *known == number);
            if !is_recorded && !is_told {
                self.dropping.push((number, None));
                // Its number is in use until then.
                self.table.next_number = self.table.next_number.max(number + 1);
            }
        }
        self
    }

    /// The table of a device of so many blocks which are all of its one volume; none if it is not so, or is that already.
    pub fn grown(&self, device_blocks: u64) -> Option<Table> {
        let mut next = self.table.clone();
        let [volume] = &mut next.volumes[..] else { return None };
        let [stretch] = &mut volume.stretches[..] else { return None };
        let had_all = stretch.first == 0 && stretch.blocks == self.limits.device_blocks;
        let is_larger = device_blocks > stretch.blocks;
        stretch.blocks = device_blocks;
        (had_all && is_larger).then_some(next)
    }

    /// The table is another one from now on, as somebody else has recorded.
    pub fn take_over(&mut self, table: Table, limits: TableLimits) {
        (self.table, self.limits) = (table, limits);
    }

    /// Snapshots, or clones, that are given up and of which nobody knows where they lie: others wait for their end.
    pub fn awaits_drops(&self) -> bool {
        self.dropping.iter().any(|(_, shadow)| shadow.is_none())
    }

    /// As it is recorded, as far as is known.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Blocks that belong to nobody.
    pub fn free_blocks(&self) -> u64 {
        crate::device::blocks_of(&self.table.free(self.limits.device_blocks))
    }

    /// A step has failed: nothing is changed any more.
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Begins a change, of which there is one at a time.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn begin(&mut self, change: &Change) -> Result<(), ChangeError> {
        assert!(self.change.is_none(), "one change at a time");
        self.change = Some(match change {
            Change::Snapshot { volume, name, uuid } => {
                let kept = self.dropping.iter().filter_map(|(_, shadow)| shadow.clone());
                let kept: Vec<Stretch> = kept.flatten().collect();
                let ground = (self.limits.device_blocks, self.round);
                let (next, shadow) =
                    self.table.with_snapshot((volume, name, *uuid), ground, &kept)?;
                Pending::Preparing(next, shadow)
            }
            Change::Clone { of, name, uuid } => {
                let ground = (self.limits.device_blocks, self.round);
                let (next, parts) = self.table.with_clone((of, name, *uuid), ground)?;
                Pending::Cloning(next, parts)
            }
            change => Pending::Recording(self.table.with(change, self.limits)?),
        });
        Ok(())
    }

    /// The step, which prepares or cuts a snapshot, or makes a clone, was refused: it is given up, and the table stays as it
    /// is.
    pub fn refused(&mut self) {
        let (next, number) = match self.change.take() {
            Some(Pending::Preparing(next, shadow) | Pending::Cutting(next, shadow)) => {
                (next, shadow.number)
            }
            Some(Pending::Cloning(next, parts)) => {
                // Some shards may have it: nobody else gets these blocks before they are trimmed.
                self.table.leaving.extend(parts.parts.iter().map(|(stretch, _)| *stretch));
                (next, parts.number)
            }
            change => {
                self.change = change;
                return;
            }
        };
        self.table.next_number = next.next_number;
        let own = held(&next).filter(|(known, _)| *known == number);
        self.dropping.extend(own.map(|(number, shadow)| (number, Some(shadow.to_vec()))));
    }

    /// A change is under way.
    pub fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// What is to be done next, if anything is: the same until [`Living::done`].
    pub fn step(&mut self) -> Option<Step> {
        if self.lost {
            return None;
        }
        match &self.change {
            Some(Pending::Preparing(_, shadow)) => return Some(Step::Prepare(shadow.clone())),
            Some(Pending::Cutting(_, shadow)) => return Some(Step::Cut(shadow.clone())),
            Some(Pending::Cloning(_, parts)) => return Some(Step::Clone(parts.clone())),
            Some(Pending::Recording(table)) => return Some(record(table)),
            Some(Pending::Offering) => return Some(Step::Offer(self.table.clone())),
            None => {}
        }
        if self.clearing.is_none() {
            if let Some((number, _)) = self.dropping.first() {
                return Some(Step::Drop(*number));
            }
            if !self.table.leaving.is_empty() {
                let stretches = self.table.leaving.clone();
                self.clearing = Some(Clearing { stretches, trimmed: (0, 0), durable: false });
            }
        }
        let clearing = self.clearing.as_ref()?;
        Some(match clearing.next() {
            Some(stretch) => Step::Trim(stretch),
            None if !clearing.durable => Step::Flush,
            None => record(&self.table.without(&clearing.stretches)),
        })
    }

    /// The step was taken, or it failed.
    pub fn done(&mut self, good: bool) {
        if !good {
            (self.lost, self.change, self.clearing) = (true, None, None);
            return;
        }
        match self.change.take() {
            Some(Pending::Preparing(table, shadow)) => {
                self.change = Some(Pending::Cutting(table, shadow));
                return;
            }
            Some(Pending::Cutting(table, _) | Pending::Cloning(table, _)) => {
                self.change = Some(Pending::Recording(table));
                return;
            }
            Some(Pending::Recording(table)) => {
                let stays = |number: u32| held(&table).any(|(of, _)| of == number);
                let gone = held(&self.table).filter(|(number, _)| !stays(*number));
                let gone = gone.map(|(number, shadow)| (number, Some(shadow.to_vec())));
                self.dropping.extend(gone);
                self.table = table;
                self.change = Some(Pending::Offering);
                return;
            }
            Some(Pending::Offering) => return,
            None => {}
        }
        let Some(clearing) = &mut self.clearing else {
            self.dropping.remove(0);
            return;
        };
        match clearing.next() {
            Some(stretch) => clearing.advance(stretch),
            None if !clearing.durable => clearing.durable = true,
            None => {
                self.table = self.table.without(&clearing.stretches);
                self.clearing = None;
            }
        }
    }
}

/// What of a table the FTLs know by number: snapshots with their shadows, and clones, which have none.
fn held(table: &Table) -> impl Iterator<Item = (u32, &[Stretch])> {
    let snapshots = table.snapshots.iter().map(|it| (it.number, &it.stretches[..]));
    let clones = table.volumes.iter().filter(|volume| volume.origin.is_some());
    snapshots.chain(clones.map(|clone| (clone.number, &[][..])))
}

/// A table with fewer stretches than one that fits the label fits it too.
fn record(table: &Table) -> Step {
    Step::Record(encode_volumes(table).expect("a table that was checked fits the label"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Volume, decode_volumes};
    use flash::Random;
    use std::collections::BTreeMap;

    const DEVICE: TableLimits = TableLimits { device_blocks: 300_000 };
    /// The blocks of the device that are looked at.
    const GRAIN: u64 = 1000;

    /// A device: its label, and whose data its blocks hold, as it is and as it is durable; and the snapshots that its
    /// FTLs have, by number, with their shadows, and whether they are taken.
    #[derive(Clone, Default)]
    struct Device {
        label: Vec<u8>,
        data: BTreeMap<u64, u32>,
        durable: BTreeMap<u64, u32>,
        offered: Table,
        snapshots: BTreeMap<u32, (Vec<Stretch>, bool)>,
        /// The clones that they have, by number.
        clones: BTreeMap<u32, Vec<Stretch>>,
    }

    impl Device {
        fn take(&mut self, step: Step) {
            match step {
                Step::Record(label) => {
                    assert!(decode_volumes(&label).is_some());
                    self.label = label;
                }
                Step::Offer(table) => self.offered = table,
                Step::Trim(stretch) => {
                    let all = self.offered.volumes.iter().flat_map(|volume| &volume.stretches);
                    let mut others =
                        all.filter(|of| of.first < stretch.end() && stretch.first < of.end());
                    assert_eq!(others.next(), None, "blocks of a volume are trimmed");
                    let mut clones = self.clones.values().flatten();
                    let is_apart =
                        clones.all(|of| of.end() <= stretch.first || stretch.end() <= of.first);
                    assert!(is_apart, "blocks of a clone are trimmed before it is given up");
                    self.data.retain(|&block, _| block < stretch.first || block >= stretch.end());
                }
                Step::Flush => self.durable = self.data.clone(),
                Step::Prepare(shadow) => {
                    let shadows = shadow.parts.iter();
                    let shadows = shadows
                        .map(|&(of, first)| Stretch { first, blocks: of.blocks })
                        .collect::<Vec<_>>();
                    let others = self.snapshots.values().flat_map(|(others, _)| others);
                    for other in others.copied() {
                        assert!(
                            shadows
                                .iter()
                                .all(|of| of.end() <= other.first || other.end() <= of.first),
                            "two shadows have a block"
                        );
                    }
                    let before = self.snapshots.insert(shadow.number, (shadows, false));
                    assert_eq!(before, None, "two snapshots have a number");
                }
                Step::Cut(shadow) => {
                    let found = self.snapshots.get_mut(&shadow.number).expect("it was prepared");
                    assert!(!std::mem::replace(&mut found.1, true), "it is taken once");
                }
                Step::Clone(parts) => {
                    for (part, address) in &parts.parts {
                        let of = Stretch { first: *address, blocks: part.blocks };
                        let holds = |(shadow, taken): &(Vec<Stretch>, bool)| {
                            let inside =
                                |it: &Stretch| it.first <= of.first && of.end() <= it.end();
                            *taken && shadow.iter().any(inside)
                        };
                        assert!(self.snapshots.values().any(holds), "a clone of nothing");
                        let range = part.first..part.end();
                        assert_eq!(self.data.range(range.clone()).next(), None, "it holds data");
                        assert_eq!(self.durable.range(range).next(), None, "it holds data");
                    }
                    let stretches = parts.parts.iter().map(|(stretch, _)| *stretch).collect();
                    let before = self.clones.insert(parts.number, stretches);
                    assert_eq!(before, None, "two clones have a number");
                }
                Step::Drop(number) if self.clones.contains_key(&number) => {
                    let offered = self.offered.volumes.iter();
                    assert!(offered.clone().all(|of| of.number != number), "it is still offered");
                    self.clones.remove(&number);
                }
                Step::Drop(number) => {
                    let offered = self.offered.snapshots.iter();
                    assert!(offered.clone().all(|of| of.number != number), "it is still offered");
                    self.snapshots.remove(&number);
                }
            }
        }

        /// Clients write all of the volumes, of which some is durable.
        fn write(&mut self, random: &mut Random) {
            for volume in &self.offered.volumes {
                for block in blocks(volume) {
                    self.data.insert(block, volume.number);
                    if random.chance(0.5) {
                        self.durable.insert(block, volume.number);
                    }
                }
            }
        }

        /// Nothing but what belongs to a volume, or may still hold something, does.
        fn check(&self, data: &BTreeMap<u64, u32>) {
            let table = decode_volumes(&self.label).unwrap();
            let leaves =
                |block: u64| table.leaving.iter().any(|of| (of.first..of.end()).contains(&block));
            for (&block, &number) in data {
                let owner = table.volume_of(block).map(|(volume, _)| volume.number);
                assert!(
                    owner == Some(number) || owner.is_none() && leaves(block),
                    "block {block} of volume {number} is {owner:?}'s"
                );
            }
            let sum = crate::device::blocks_of(&table.taken())
                + crate::device::blocks_of(&table.free(DEVICE.device_blocks));
            assert_eq!(sum, DEVICE.device_blocks, "room is lost");
            for snapshot in &table.snapshots {
                let found = self.snapshots.get(&snapshot.number);
                assert_eq!(found, Some(&(snapshot.stretches.clone(), true)), "it is recorded");
            }
            for volume in table.volumes.iter().filter(|volume| volume.origin.is_some()) {
                let found = self.clones.get(&volume.number).expect("it is recorded");
                let within = |of: &Stretch| {
                    let mut own = volume.stretches.iter();
                    own.any(|it| it.first <= of.first && of.end() <= it.end())
                };
                assert!(found.iter().all(within), "it has its blocks");
            }
        }
    }

    fn blocks(volume: &Volume) -> impl Iterator<Item = u64> {
        volume
            .stretches
            .iter()
            .flat_map(|stretch| (stretch.first..stretch.end()).step_by(GRAIN as usize))
    }

    fn drawn(random: &mut Random) -> Change {
        let name = |random: &mut Random| format!("v{}", random.below(6));
        let size = |random: &mut Random| GRAIN * (1 + random.below(120));
        match random.below(12) {
            9 | 10 => Change::Clone {
                of: format!("{}@s{}", name(random), random.below(3)),
                name: name(random),
                uuid: 8,
            },
            11 => Change::Delete { name: name(random) },
            6 | 7 => Change::Snapshot {
                volume: name(random),
                name: format!("s{}", random.below(3)),
                uuid: 5,
            },
            8 => Change::Delete { name: format!("{}@s{}", name(random), random.below(3)) },
            0 | 1 => Change::Create {
                name: name(random),
                blocks: size(random),
                uuid: u128::from(random.next_u64()),
                read_only: false,
            },
            2 => Change::Delete { name: name(random) },
            3 | 4 => Change::Resize {
                name: name(random),
                blocks: size(random),
                shrink: random.chance(0.7),
            },
            _ => Change::Rename { from: name(random), to: name(random), uuid: 9 },
        }
    }

    /// What is seen of a table.
    fn seen(label: &[u8]) -> Vec<(u32, String, u64)> {
        let table = decode_volumes(label).unwrap();
        let volumes = table.volumes.iter().map(|of| (of.number, of.name.clone(), of.blocks()));
        let snapshots =
            table.snapshots.iter().map(|of| (of.number, table.name_of(of), of.blocks()));
        volumes.chain(snapshots).collect()
    }

    /// What will be seen after a change that was begun.
    fn seen_after(living: &Living) -> Vec<(u32, String, u64)> {
        match &living.change {
            Some(
                Pending::Preparing(next, _)
                | Pending::Cutting(next, _)
                | Pending::Cloning(next, _)
                | Pending::Recording(next),
            ) => seen(&encode_volumes(next).unwrap()),
            _ => panic!("no change was begun"),
        }
    }

    fn living(table: Table) -> Living {
        Living::new(table, DEVICE, 512)
    }

    /// From a power cut on: what was durable, and what of the rest the cut has spared.
    fn restart(device: &mut Device, random: &mut Random) -> Living {
        device.check(&device.durable);
        let durable = device.durable.clone();
        // A trim that was not made durable may have been or not.
        device.data.retain(|_, _| random.chance(0.5));
        device.data.extend(durable);
        device.durable = device.data.clone();
        let table = decode_volumes(&device.label).unwrap();
        device.offered = table.clone();
        // What is only prepared no restart knows of.
        device.snapshots.retain(|_, (_, taken)| *taken);
        device.check(&device.data);
        let found = device.snapshots.keys().chain(device.clones.keys());
        living(table).with_found(found.copied())
    }

    #[test]
    fn a_cut_after_any_step_leaves_each_change_undone_or_done_and_no_old_data_nor_lost_room() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let label = encode_volumes(&Table::made(Vec::new())).unwrap();
            let mut device = Device { label, ..Device::default() };
            let mut living = living(Table::made(Vec::new()));
            for _ in 0..60 {
                let before = seen(&device.label);
                let change = drawn(&mut random);
                while living.awaits_drops() {
                    device.take(living.step().unwrap());
                    living.done(true);
                }
                let begun = living.begin(&change).is_ok();
                let after = if begun { seen_after(&living) } else { before.clone() };
                let (mut answered, mut refused) = (!begun, false);
                for _ in 0..random.below(20) {
                    let Some(step) = living.step() else { break };
                    if matches!(step, Step::Prepare(_) | Step::Cut(_) | Step::Clone(_))
                        && random.chance(0.1)
                    {
                        // It is answered with a refusal; a clone some shards may have.
                        if matches!(step, Step::Clone(_)) && random.chance(0.5) {
                            device.take(step);
                        }
                        living.refused();
                        refused = true;
                        assert!(!living.is_changing() && seen(&device.label) == before);
                        continue;
                    }
                    device.take(step);
                    living.done(true);
                    answered |= !living.is_changing();
                    device.check(&device.data);
                    let now = seen(&device.label);
                    let is_as_it_was = now == before && (!answered || refused);
                    assert!(now == after || is_as_it_was, "seed {seed}: {change:?}");
                    if random.chance(0.3) {
                        device.write(&mut random);
                    }
                    if random.chance(0.05) {
                        living = restart(&mut device, &mut random);
                        break;
                    }
                }
                // The next change begins when this one is answered.
                while living.is_changing() {
                    device.take(living.step().unwrap());
                    living.done(true);
                }
            }
            while let Some(step) = living.step() {
                device.take(step);
                living.done(true);
            }
            assert_eq!(living.table().leaving, [], "seed {seed}: all that was left is trimmed");
            let recorded = living.table().snapshots.iter().map(|snapshot| snapshot.number);
            assert!(recorded.eq(device.snapshots.keys().copied()), "seed {seed}: all are dropped");
            let clones = living.table().volumes.iter().filter(|volume| volume.origin.is_some());
            let clones = clones.map(|volume| volume.number);
            assert!(clones.eq(device.clones.keys().copied()), "seed {seed}: all are dropped");
            device.check(&device.data);
            device.check(&device.durable);
        }
    }

    #[test]
    fn after_a_step_that_failed_nothing_is_done_any_more() {
        let mut living = living(Table::made(Vec::new()));
        let change = Change::Create { name: "a".into(), blocks: 5, uuid: 1, read_only: false };
        living.begin(&change).unwrap();
        assert!(matches!(living.step(), Some(Step::Record(_))));
        living.done(false);
        assert!(living.is_lost() && living.step().is_none() && !living.is_changing());
    }

    #[test]
    fn a_large_volume_is_trimmed_piece_by_piece_and_changes_come_between() {
        let made = Volume::made(1, "a".into(), Stretch { first: 0, blocks: 100_000 }, false);
        let mut living = living(Table::made(vec![made]));
        living.begin(&Change::Delete { name: "a".into() }).unwrap();
        let mut trimmed = 0;
        let mut steps = Vec::new();
        while let Some(step) = living.step() {
            if let Step::Trim(stretch) = &step {
                assert_eq!(stretch.first, trimmed);
                trimmed = stretch.end();
                if trimmed == 2 * TRIM_BLOCKS {
                    let name = "b".into();
                    let change = Change::Create { name, blocks: 1, uuid: 1, read_only: false };
                    living.done(true);
                    living.begin(&change).unwrap();
                    continue;
                }
            }
            steps.push(std::mem::discriminant(&step));
            living.done(true);
        }
        let record = std::mem::discriminant(&Step::Record(Vec::new()));
        assert_eq!((trimmed, steps.iter().filter(|&&step| step == record).count()), (100_000, 3));
        assert_eq!(
            living.table().free(DEVICE.device_blocks).len(),
            2,
            "b lies behind what is free now"
        );
    }
}
