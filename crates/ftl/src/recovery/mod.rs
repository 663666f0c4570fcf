//! What bounds recovery and does it: checkpoints, mount, replay, damage, rebuild.

pub(crate) mod checkpoint;
pub(crate) mod counting;
pub(crate) mod mending;
pub(crate) mod missing;
pub(crate) mod mount;
pub(crate) mod rebuild;
pub(crate) mod replay;
