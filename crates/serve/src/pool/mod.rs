//! The processes of a pool: the drivers of what crate `pool` decides.
//!
//! [`link`] carries messages over sockets, [`node`] serves a drive.

mod block;
mod link;
pub mod node;
mod reach;
