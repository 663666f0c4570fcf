//! The volumes of a server: what is offered, and who changes them.

use super::Control;
use crate::config::Config;
use crate::device::{Stretch, Table, Volume};
use crate::exports::Offered;
use crate::living::{Ground, VolumesControl};
use crate::nbd;
use crate::runtime::shard::Shared;
use ftl::Settings;
use std::sync::Arc;

impl Control {
    /// What is exported now.
    pub fn exports(&self) -> Arc<[nbd::Export]> {
        Arc::clone(&self.shared.offered().exports)
    }

    /// What is offered now.
    pub(crate) fn offered(&self) -> Arc<Offered> {
        self.shared.offered()
    }

    /// The volumes that the FTL was told of at the start, in its order, by the names that they have now; of one that is
    /// gone none.
    pub fn settled(&self) -> Vec<String> {
        let offered = self.shared.offered();
        let name = |number: &u32| {
            let found = offered.volumes.iter().find(|volume| volume.number == *number);
            found.map_or_else(String::new, |volume| volume.name.clone())
        };
        self.settled.iter().map(name).collect()
    }

    /// The volumes, and who changes them.
    pub fn volumes(&self) -> &Arc<VolumesControl> {
        &self.living
    }
}

/// The numbers of the volumes that the FTL has settings of, in its order. None if it was mounted with those of a config
/// that does not know where they are.
pub fn settled(config: &Config, volumes: &[Volume], mounted_with: &Settings) -> Arc<[u32]> {
    if config.ftl != *mounted_with {
        return Arc::default();
    }
    let number = |name: &String| volumes.iter().find(|volume| volume.name == *name);
    let options = config.device.volumes.iter();
    options.filter_map(|options| Some(number(&options.name)?.number)).collect()
}

/// Who changes the volumes, if they can be.
pub fn living(
    shared: &Arc<Shared>,
    config: &Config,
    (ground, of_machine): (Option<(Table, u64, u128)>, bool),
    snapshots: &[Vec<u32>],
) -> VolumesControl {
    let Some((table, device_blocks, device)) = ground else {
        let reason = "a device of raw units has no volumes: its units are what they are";
        return VolumesControl::fixed(reason, (Table::default(), 0), None);
    };
    tell_missing(shared, &table, snapshots);
    let fixed =
        |reason: &str| VolumesControl::fixed(reason, (table.clone(), device_blocks), Some(shared));
    if config.ftl.read_only && of_machine {
        return fixed(
            "the device is served read-only: `weir status` tells why, if nobody has wanted that",
        );
    }
    let found = snapshots.iter().flatten().copied().collect();
    let config = config.clone();
    let living =
        VolumesControl::start(shared, Ground { table, device_blocks, device, config, found });
    if of_machine {
        return living;
    }
    living.refusing("a volume of a pool is changed in the pool: `weir pool volume --help`")
}

/// Tells of snapshots and clones that are recorded, and of which a shard does not have its part.
fn tell_missing(shared: &Shared, table: &Table, found: &[Vec<u32>]) {
    let missing = |number: u32, stretches: &[Stretch]| -> Vec<usize> {
        let is_part =
            |shard: usize, of: &Stretch| shared.split.part_of(shard, of.first, of.blocks).is_some();
        let has_part = |shard: usize| stretches.iter().any(|of| is_part(shard, of));
        let lacks = |&shard: &usize| has_part(shard) && !found[shard].contains(&number);
        (0..found.len()).filter(lacks).collect()
    };
    for clone in table.volumes.iter().filter(|volume| volume.origin.is_some()) {
        for shard in missing(clone.number, &clone.stretches) {
            let (name, of) = (&clone.name, table.origin_of(clone).unwrap_or_default());
            tracing::error!(
                shard,
                "the volume {name} is not whole: what it has of {of} is lost there, and reads as zeroes; copy what is \
                 wanted of it, and clone {of} again"
            );
        }
    }
    for snapshot in &table.snapshots {
        for shard in missing(snapshot.number, &snapshot.stretches) {
            let name = table.name_of(snapshot);
            tracing::error!(
                shard,
                "the snapshot {name} is not whole: its part there is lost, and reads as errors; `weir volume delete \
                 {name}` gives it up"
            );
        }
    }
}
