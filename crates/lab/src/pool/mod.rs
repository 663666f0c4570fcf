//! Pools in virtual time: the nodes, the clients and the controller of the crate `pool` with a network between
//! them, over drives that do what published profiles say.
//!
//! - [`network`] carries messages, late, or not at all where a line is cut.
//! - [`drive`] says how long a request takes on a drive of which a profile is known.
//! - [`cluster`] is all nodes, [`medium`] a volume's client: a medium of [`crate::Sim`].
//! - [`volume`] is a volume with a controller beside it: a [`crate::target::Target`]. [`waits`] tells what its writes
//!   wait for.

pub mod cluster;
pub mod drive;
pub mod medium;
pub mod network;
pub mod volume;
pub mod waits;
