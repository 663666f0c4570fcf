//! The volumes of a server: what is offered, and who changes them.

use super::Control;
use crate::config::Config;
use crate::device::{Table, Volume};
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
) -> VolumesControl {
    let Some((table, device_blocks, device)) = ground else {
        let reason = "a device of raw units has no volumes: its units are what they are";
        return VolumesControl::fixed(reason, Table::default(), 0);
    };
    let fixed = |reason: &str| VolumesControl::fixed(reason, table.clone(), device_blocks);
    if !of_machine {
        return fixed("a volume of a pool is changed in the pool: `weir pool volume --help`");
    }
    if config.ftl.read_only {
        return fixed(
            "the device is served read-only: `weir status` tells why, if nobody has wanted that",
        );
    }
    VolumesControl::start(shared, Ground { table, device_blocks, device, config: config.clone() })
}
