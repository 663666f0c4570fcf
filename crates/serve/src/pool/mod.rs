//! The processes of a pool: the drivers of what crate `pool` decides.
//!
//! [`plane`] is the control plane and the way to it; [`link`] carries messages over sockets, [`reach`] keeps a link
//! to every node, [`node`] serves a drive, [`volume`] is a volume as what stands below an FTL.

mod block;
#[cfg(any(test, feature = "certs"))]
pub mod certs;
pub mod config;
mod error;
mod frames;
mod link;
pub mod node;
pub mod plane;
mod reach;
pub mod tls;
pub mod volume;

pub use error::PoolError;
