//! Weir's host FTL: it decides where data goes, when flash is erased and what survives a power cut,
//! and does no I/O of its own.
//!
//! # Driving contract
//! 1. [`Ftl::format`] or [`Ftl::mount`], then drain [`Ftl::poll`]; go on with 2 until
//!    [`Output::Ready`].
//! 2. Give events to [`Ftl::handle`]: a host request, a medium's completion, a deadline. Give those
//!    that are there at one instant together: what each makes possible is looked at once for all.
//!    Then drain `poll` until `None` and do what it says, in order. When an [`Output::Command`] is a
//!    program, [`Ftl::program`] has its slots until its completion.
//! 3. If nothing happens before [`Ftl::deadline`], give [`Input::Deadline`] then.
//! 4. [`Input::Shutdown`] ends with [`Output::Stopped`].
//!
//! Time only goes forward. The same events at the same instants give the same outputs.
//!
//! # Where to look
//! Each folder is a part, and knows only what stands below it (`cargo xtask tidy` holds the order of
//! ARCHITECTURE.md): `whole` takes events and moves on what can move; `host` has requests, `tier` what a
//! fast tier holds, `gc` makes space, `recovery` bounds recovery and does it, `log` fills pages and knows
//! what survives, `map` tells where each block lies, `space` has bands and units and whose turn it is,
//! `policy` holds every decision that can be chosen, `format` every byte on flash. [`raw`] is the other core:
//! the same flash without mapping, for a host that places and erases itself.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod api;
mod config;
pub mod format;
mod gc;
mod host;
mod log;
mod map;
mod mutant;
pub mod policy;
pub mod raw;
mod recovery;
mod slab;
mod space;
mod tier;
mod whole;

pub use api::{
    ATOMIC_BLOCKS_MAX, Ahead, By, Core, DamagedSlot, Input, MountError, MountReport, Output,
    Rebuilt, SnapshotError, SnapshotOrder, SnapshotStatus, SnapshotStep, Waits,
};
pub use config::{FastShare, FormatOptions, MapVolume, Settings, StreamVolume};
pub use format::{LABEL_BYTES_MAX, SNAPSHOT_BYTES_MAX, ShadowStretch, VERSION};
pub use host::waiting::Look;
pub use log::streams::StreamStatus;
pub use map::map_bytes_min;
pub use map::volumes::{MAPPINGS, MapStatus};
pub use mutant::Mutant;
pub use policy::PolicyNames;
pub use recovery::checkpoint::checkpoint_slots;
pub use space::capacity::{blocks_per_unit_for, logical_blocks_beside, logical_blocks_max};
pub use tier::destage::{TierStatus, fast_blocks_min};
pub use tier::detach::LostTier;
pub use whole::Ftl;
pub use whole::status::{BandStatus, BusyMark, Status, UnitQueue, UnitStatus};
pub use whole::switch::{PolicyChange, Switch};
