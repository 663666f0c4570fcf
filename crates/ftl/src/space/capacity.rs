//! How much a medium can hold, and how many blocks a device is made with, so that over-provisioning means
//! the same wherever one is made: by the server, and by the lab for a device that stands for it.

use crate::config::{Settings, handles_wanted};
use crate::format::CheckpointLayout;
use crate::space::RESERVE_BANDS;
use flash::{Geometry, Health};

/// Units of fewer blocks have none to erase while others are filled.
const BLOCKS_PER_UNIT_MIN: u32 = 4;
/// Tries: each adds a sixteenth.
const TRIES: u32 = 64;

/// Most logical blocks that a medium of this shape and health can offer: what remains after bad
/// blocks, two checkpoints, the append points and what GC must never be without.
pub fn logical_blocks_max(geometry: &Geometry, health: &Health, settings: &Settings) -> u32 {
    logical_blocks_beside(geometry, health, settings, 0)
}

/// The same where snapshots have so many entries in the map beside them.
pub fn logical_blocks_beside(
    geometry: &Geometry,
    health: &Health,
    settings: &Settings,
    shadow_blocks: u32,
) -> u32 {
    let gone = health.units_gone.iter().filter(|&&unit| !geometry.is_fast_unit(unit)).count();
    let gone = gone as u32 * geometry.blocks_per_unit;
    let bad = health.bad_blocks.iter().filter(|&&block| !geometry.is_fast(block)).count() as u32;
    let good = geometry.capacity_blocks().saturating_sub(bad + gone);
    logical_blocks_of(geometry, good, OpenBands::of(settings), shadow_blocks)
}

/// What settings ask to be open at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenBands {
    handles: u32,
    /// Units that each handle stripes over, 0 for all.
    stripe_units: u32,
}

impl OpenBands {
    /// One for what the host writes and one for what is moved: no settings ask for fewer.
    pub const LEAST: Self = Self { handles: 2, stripe_units: 1 };

    pub fn of(settings: &Settings) -> Self {
        // A handle needs one open band; the others of its stripe may be missing when space is tight.
        let handles = handles_wanted(settings, |policy| policy.handles_least())
            .unwrap_or(u32::from(settings.handles) + 1);
        Self { handles, stripe_units: settings.stripe_units }
    }
}

/// The same where so many blocks of the capacity tier are good, and the map has entries of shadows beside.
pub(crate) fn logical_blocks_of(
    geometry: &Geometry,
    good: u32,
    open: OpenBands,
    shadow_blocks: u32,
) -> u32 {
    let stripe = match open.stripe_units {
        0 => geometry.units - geometry.fast.units,
        units => units,
    };
    let open = open.handles + stripe.min(good / 256);
    let slots = geometry.slots_per_block();
    let mut logical = good.saturating_sub(RESERVE_BANDS + open + 2).saturating_mul(slots);
    // The checkpoint's size depends on the answer.
    for _ in 0..4 {
        let entries = logical.max(1).saturating_add(shadow_blocks);
        let Some(layout) = CheckpointLayout::new(geometry, entries) else { return 0 };
        let taken = RESERVE_BANDS + open + 2 * layout.bands;
        logical = good.saturating_sub(taken).saturating_mul(slots);
    }
    // An entry of a shadow has an address as a block has.
    logical.min(u32::MAX - shadow_blocks)
}

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
