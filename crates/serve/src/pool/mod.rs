//! The processes of a pool: what drives the state machines of the crate `pool` over sockets, threads and files.

#[cfg(any(test, feature = "certs"))]
pub mod certs;
pub mod config;
pub mod controller;
mod doors;
mod error;
mod frames;
pub mod plane;
pub mod tls;

pub use error::PoolError;
