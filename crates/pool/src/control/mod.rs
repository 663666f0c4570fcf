//! The control plane: the few facts of a pool that all must agree on, and who may change them.
//!
//! What it holds is in [`keys`] (where) and [`values`] (what): the pool, its nodes, its volumes with their owners,
//! the bands of a volume that may be open or lack a member, the controller and its weights. Never anything per
//! block, and no list of sealed bands. [`contract`] is how it is asked: keys with revisions, changed by
//! compare-and-swap of several at once. etcd gives that, and so does [`embedded`], a state machine over a log
//! that is written by the driver.
//!
//! Above the contract, without I/O as all of the pool:
//! - [`ownership`]: one client owns a volume; it knows for sure until when, and when no more.
//! - [`registry`]: the bands that may be open are known before they are appended to.
//! - [`election`]: one controller at a time, whose weights go when it goes.
//! - [`follow`]: what keys hold, kept up with; the weights in force.
//!
//! [`wire`] is every byte between the plane and whoever asks it over a network.
//!
//! All of them are fed every answer of the plane and take what they asked for ([`contract::PlaneAskId`] says
//! whose it is). An ask that is not answered in time is asked anew: everything here may be done twice, because
//! each commit names the revisions that it was made for.

mod codec;
pub mod contract;
pub mod deletions;
pub mod election;
pub mod embedded;
pub mod follow;
pub mod keys;
pub mod lives;
mod log;
pub mod mutant;
pub mod ownership;
pub mod registry;
pub mod suite;
pub mod values;
pub mod wire;

pub use log::LogError;
