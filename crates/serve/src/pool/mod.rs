//! The processes of a pool: the drivers of what crate `pool` decides.
//!
//! [`plane`] is the control plane and the way to it; [`link`] carries messages over sockets, [`reach`] keeps a link
//! to every node, [`node`] serves a drive, [`volume`] is a volume as what stands below an FTL.

mod block;
#[cfg(any(test, feature = "certs"))]
pub mod certs;
pub mod config;
pub mod controller;
mod doors;
mod drives;
mod error;
mod follower;
mod frames;
mod link;
pub mod node;
pub mod parts;
pub mod plane;
mod reach;
pub mod records;
pub mod room;
pub mod status;
pub mod tls;
pub mod volume;

pub use error::PoolError;
pub use link::{Echo, EchoCost, echo};

/// A number that nobody else has: of a pool, of a part of it for as long as it runs.
///
/// # Errors
/// What the system says.
pub fn drawn() -> Result<u128, PoolError> {
    crate::random::number().map_err(|error| PoolError::System { doing: "draw a number", error })
}
