//! What a change of volumes takes, step by step. Pure: [`super`] carries the steps out, one after the other.
//!
//! A change is *recorded* first, in one piece; then it is *offered*, and the end of what was begun under the old offer is
//! awaited; then whoever asked is answered. What volumes have left goes in the background: it is trimmed piece by piece,
//! the trims are made durable, and only then it is recorded to be free. After a power cut whatever is still recorded to be
//! leaving is trimmed from its start.
//!
//! Invariants:
//! - what is offered was recorded before;
//! - nothing is recorded to be free before trims of all of it are durable, which began when no request to it went on;
//! - after a step that failed nothing is done any more: nobody knows what is recorded.

use crate::device::{Change, ChangeError, Stretch, Table, TableLimits, encode_volumes};

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
}

/// See the head of this file.
pub struct Living {
    table: Table,
    limits: TableLimits,
    change: Option<Pending>,
    clearing: Option<Clearing>,
    lost: bool,
}

/// How far a change is.
enum Pending {
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
    /// Of a device with this table.
    pub fn new(table: Table, limits: TableLimits) -> Self {
        Self { table, limits, change: None, clearing: None, lost: false }
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
        self.change = Some(Pending::Recording(self.table.with(change, self.limits)?));
        Ok(())
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
            Some(Pending::Recording(table)) => return Some(record(table)),
            Some(Pending::Offering) => return Some(Step::Offer(self.table.clone())),
            None => {}
        }
        if self.clearing.is_none() && !self.table.leaving.is_empty() {
            let stretches = self.table.leaving.clone();
            self.clearing = Some(Clearing { stretches, trimmed: (0, 0), durable: false });
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
            Some(Pending::Recording(table)) => {
                self.table = table;
                self.change = Some(Pending::Offering);
                return;
            }
            Some(Pending::Offering) => return,
            None => {}
        }
        let Some(clearing) = &mut self.clearing else { return };
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

    /// A device: its label, and whose data its blocks hold, as it is and as it is durable.
    #[derive(Clone)]
    struct Device {
        label: Vec<u8>,
        data: BTreeMap<u64, u32>,
        durable: BTreeMap<u64, u32>,
        offered: Table,
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
                    self.data.retain(|&block, _| block < stretch.first || block >= stretch.end());
                }
                Step::Flush => self.durable = self.data.clone(),
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
        match random.below(6) {
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
        table.volumes.iter().map(|of| (of.number, of.name.clone(), of.blocks())).collect()
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
        device.check(&device.data);
        Living::new(table, DEVICE)
    }

    #[test]
    fn a_cut_after_any_step_leaves_each_change_undone_or_done_and_no_old_data_nor_lost_room() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut device = Device {
                label: encode_volumes(&Table::made(Vec::new())).unwrap(),
                data: BTreeMap::new(),
                durable: BTreeMap::new(),
                offered: Table::default(),
            };
            let mut living = Living::new(Table::made(Vec::new()), DEVICE);
            for _ in 0..60 {
                let before = seen(&device.label);
                let change = drawn(&mut random);
                let begun = living.begin(&change).is_ok();
                let after = match begun {
                    true => seen(
                        &encode_volumes(&living.table().with(&change, DEVICE).unwrap()).unwrap(),
                    ),
                    false => before.clone(),
                };
                let mut answered = !begun;
                for _ in 0..random.below(20) {
                    let Some(step) = living.step() else { break };
                    device.take(step);
                    living.done(true);
                    answered |= !living.is_changing();
                    device.check(&device.data);
                    let now = seen(&device.label);
                    assert!(now == after || now == before && !answered, "seed {seed}: {change:?}");
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
            device.check(&device.data);
            device.check(&device.durable);
        }
    }

    #[test]
    fn after_a_step_that_failed_nothing_is_done_any_more() {
        let mut living = Living::new(Table::made(Vec::new()), DEVICE);
        let change = Change::Create { name: "a".into(), blocks: 5, uuid: 1, read_only: false };
        living.begin(&change).unwrap();
        assert!(matches!(living.step(), Some(Step::Record(_))));
        living.done(false);
        assert!(living.is_lost() && living.step().is_none() && !living.is_changing());
    }

    #[test]
    fn a_large_volume_is_trimmed_piece_by_piece_and_changes_come_between() {
        let made = Volume::made(1, "a".into(), Stretch { first: 0, blocks: 100_000 }, false);
        let mut living = Living::new(Table::made(vec![made]), DEVICE);
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
