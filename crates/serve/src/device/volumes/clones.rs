//! Clones in the volume table: volumes that begin as a snapshot has its blocks, and take no flash but for what is changed
//! of them (see `ftl`, and ADR 0023). A clone is a volume as any other, which knows the number of its snapshot; that one
//! stays as long as it has clones.

use super::change::STRETCHES_MAX;
use super::{ChangeError, Limits, NUMBER_MAX, Shadow, Stretch, Table, Volume, blocks_of};

impl Table {
    /// The table with a clone of a snapshot, on a device of so many blocks, of which every `round` there is one of each
    /// shard. Each part of it, and where in the shadow of the snapshot that begins, on the same shard.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn with_clone(
        &self,
        (snapshot, name, uuid): (&str, &str, u128),
        (device_blocks, round): (u64, u64),
    ) -> Result<(Self, Shadow), ChangeError> {
        let Some(of) = self.snapshot(snapshot) else {
            // It says what there is, if this is not even a volume.
            self.find(snapshot)?;
            return Err(ChangeError::IsVolume(snapshot.into()));
        };
        self.is_new(name)?;
        if self.next_number > NUMBER_MAX {
            return Err(ChangeError::Full);
        }
        let parts = self.find_alike(&of.stretches, round, device_blocks)?;
        let mut next = Self { changed: true, ..self.clone() };
        let number = self.next_number;
        next.next_number += 1;
        next.volumes.push(Volume {
            number,
            name: name.to_owned(),
            uuid: Some(uuid),
            stretches: parts.iter().map(|(stretch, _)| *stretch).collect(),
            read_only: false,
            limits: Limits::default(),
            origin: Some(of.number),
        });
        match super::encode(&next) {
            Some(_) => Ok((next, Shadow { number, volume: number, parts })),
            None => Err(ChangeError::Full),
        }
    }

    /// The names of a snapshot's clones.
    pub fn clones_of(&self, snapshot: &super::Snapshot) -> Vec<String> {
        let of = self.volumes.iter().filter(|volume| volume.origin == Some(snapshot.number));
        of.map(|volume| volume.name.clone()).collect()
    }

    /// What a volume is a clone of, if it is one.
    pub fn origin_of(&self, volume: &Volume) -> Option<String> {
        let snapshot = self.snapshots.iter().find(|it| Some(it.number) == volume.origin)?;
        Some(self.name_of(snapshot))
    }

    /// Free blocks that could be a clone of these: each part on the shards of what it is a clone of, which begins at the
    /// block beside it.
    fn find_alike(
        &self,
        of: &[Stretch],
        round: u64,
        device_blocks: u64,
    ) -> Result<Vec<(Stretch, u64)>, ChangeError> {
        let mut free = self.free(device_blocks);
        let sum = blocks_of(&free);
        let wanted = blocks_of(of);
        if sum < wanted {
            let leaving = blocks_of(&self.leaving);
            return Err(ChangeError::Room { wanted, free: sum, leaving });
        }
        let mut parts = Vec::new();
        for stretch in of {
            let mut from = stretch.first;
            while from < stretch.end() && parts.len() < STRETCHES_MAX {
                let left = stretch.end() - from;
                let begin = |of: &Stretch| of.first + (from + round - of.first % round) % round;
                let room = |of: &Stretch| of.end().saturating_sub(begin(of));
                // The smallest that is enough, or the largest.
                let enough = free.iter().filter(|of| room(of) >= left).min_by_key(|of| of.blocks);
                let found = enough.or_else(|| free.iter().max_by_key(|of| room(of)));
                let Some(found) = found.copied().filter(|of| room(of) > 0) else {
                    return Err(ChangeError::Scattered);
                };
                let part = Stretch { first: begin(&found), blocks: room(&found).min(left) };
                parts.push((part, from));
                from += part.blocks;
                free.retain(|of| *of != found);
                let rest = [(found.first, part.first), (part.end(), found.end())];
                let rest = rest.map(|(first, end)| Stretch { first, blocks: end - first });
                free.extend(rest.into_iter().filter(|of| of.blocks > 0));
            }
            if from < stretch.end() {
                return Err(ChangeError::Scattered);
            }
        }
        Ok(parts)
    }

    /// What must hold of the clones of every table.
    pub(super) fn has_sound_clones(&self) -> bool {
        let is_there = |number: u32| self.snapshots.iter().any(|it| it.number == number);
        self.volumes.iter().all(|volume| {
            volume.origin.is_none_or(|origin| origin < volume.number && is_there(origin))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Change, TableLimits, decode, encode};
    use super::*;
    use crate::volume::{STRIPE_BLOCKS, Split};

    const DEVICE: u64 = 100 * STRIPE_BLOCKS;
    const ROUND: u64 = 2 * STRIPE_BLOCKS;

    /// A volume with a snapshot, and another one behind a gap that is not a whole round.
    fn table() -> Table {
        let stretch = |first, blocks| Stretch { first, blocks };
        let a = Volume::made(1, "a".into(), stretch(7, 10 * STRIPE_BLOCKS), false);
        let gap = 30 * STRIPE_BLOCKS + 5;
        let b = Volume::made(2, "b".into(), stretch(gap, 10 * STRIPE_BLOCKS), false);
        let table = Table::made(vec![a, b]);
        table.with_snapshot(("a", "x", 7), (DEVICE, ROUND), &[]).unwrap().0
    }

    fn clone(table: &Table, of: &str, name: &str) -> Result<(Table, Shadow), ChangeError> {
        table.with_clone((of, name, 9), (DEVICE, ROUND))
    }

    fn change(table: &Table, change: &Change) -> Result<Table, ChangeError> {
        table.with(change, TableLimits { device_blocks: DEVICE })
    }

    #[test]
    fn each_part_of_a_clone_is_on_the_shards_of_what_it_is_a_clone_of() {
        let (split, mut now) = (Split::new(2), table());
        let mut made = 0;
        let error = loop {
            let (next, shadow) = match clone(&now, "a@x", &format!("c{made}")) {
                Ok(both) => both,
                Err(error) => break error,
            };
            assert!(next.is_sound());
            assert_eq!(decode(&encode(&next).unwrap()), Some(next.clone()));
            let mut before = now.snapshots[0].stretches[0].first;
            for (part, address) in &shadow.parts {
                assert_eq!(*address, before, "in order, and whole");
                before += part.blocks;
                for shard in 0..2 {
                    let of = split.part_of(shard, *address, part.blocks).map(|(_, blocks)| blocks);
                    let own =
                        split.part_of(shard, part.first, part.blocks).map(|(_, blocks)| blocks);
                    assert_eq!(of, own);
                }
            }
            assert_eq!(before, now.snapshots[0].stretches[0].end());
            (now, made) = (next, made + 1);
        };
        assert!(made >= 6, "{made}");
        assert!(matches!(error, ChangeError::Room { .. } | ChangeError::Scattered), "{error}");
        assert!(now.volumes.iter().any(|volume| volume.stretches.len() > 1), "in pieces");
        assert_eq!(now.origin_of(&now.volumes[3]).as_deref(), Some("a@x"));
    }

    #[test]
    fn what_has_clones_stays_and_a_clone_does_not_shrink() {
        let (both, _) = clone(&table(), "a@x", "c").unwrap();
        let delete =
            |table: &Table, name: &str| change(table, &Change::Delete { name: name.into() });
        let told = delete(&both, "a@x").unwrap_err().to_string();
        assert!(told.contains("delete c before"), "{told}");
        let shrink = Change::Resize { name: "c".into(), blocks: 1, shrink: true };
        assert!(matches!(change(&both, &shrink), Err(ChangeError::IsClone(_))));
        let grown = Change::Resize { name: "c".into(), blocks: 11 * STRIPE_BLOCKS, shrink: false };
        assert!(change(&both, &grown).unwrap().is_sound());
        let rename = Change::Rename { from: "a".into(), to: "z".into(), uuid: 1 };
        let renamed = change(&both, &rename).unwrap();
        assert_eq!(renamed.origin_of(&renamed.volumes[2]).as_deref(), Some("z@x"));
        let gone = delete(&both, "c").unwrap();
        assert!(delete(&gone, "a@x").is_ok());
        assert!(matches!(clone(&both, "a@x", "b"), Err(ChangeError::Exists(_))));
        assert!(matches!(clone(&both, "a", "d"), Err(ChangeError::IsVolume(_))));
        assert!(matches!(clone(&both, "q@x", "d"), Err(ChangeError::Unknown(..))));
        assert!(matches!(clone(&both, "a@x", "d/e"), Err(ChangeError::Name(_))));
    }

    #[test]
    fn a_table_whose_clones_contradict_it_is_refused() {
        let (good, _) = clone(&table(), "a@x", "c").unwrap();
        let spoil = |origin: u32| {
            let mut table = good.clone();
            table.volumes[2].origin = Some(origin);
            decode(&encode(&table).unwrap())
        };
        assert_eq!(spoil(3), Some(good.clone()));
        assert_eq!((spoil(1), spoil(9)), (None, None), "of a volume, of nothing");
    }
}
