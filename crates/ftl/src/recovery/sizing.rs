//! How many blocks a device is made with, so that over-provisioning means the same wherever one is made:
//! by the server, and by the lab for a device that stands for it.

use crate::config::Settings;
use crate::recovery::mount::logical_blocks_max;
use flash::{Geometry, Health};

/// Units of fewer blocks have none to erase while others are filled.
const BLOCKS_PER_UNIT_MIN: u32 = 4;
/// Tries: each adds a sixteenth.
const TRIES: u32 = 64;

/// Blocks of each unit with which a device of this shape keeps `slots` for data and over-provisioning, if
/// any number does. What the FTL needs for itself comes on top, so that on a small device it does not
/// eat the whole over-provisioning; the FTL says how much. `health` tells which blocks of so many are bad.
///
/// # Errors
/// What `health` says.
pub fn blocks_per_unit_for<E>(
    geometry: &Geometry,
    slots: u64,
    settings: &Settings,
    mut health: impl FnMut(&Geometry) -> Result<Health, E>,
) -> Result<Option<u32>, E> {
    let per_row = u64::from(geometry.units) * u64::from(geometry.slots_per_block());
    let least = u32::try_from(slots.div_ceil(per_row)).unwrap_or(u32::MAX);
    let mut blocks_per_unit = least.max(BLOCKS_PER_UNIT_MIN);
    for _ in 0..TRIES {
        let geometry = Geometry { blocks_per_unit, ..*geometry };
        let health = health(&geometry)?;
        if u64::from(logical_blocks_max(&geometry, &health, settings)) >= slots {
            return Ok(Some(blocks_per_unit));
        }
        blocks_per_unit = (blocks_per_unit + blocks_per_unit / 16).saturating_add(1);
    }
    Ok(None)
}
