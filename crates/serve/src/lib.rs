//! The real-time driver of Weir: shards over io_uring or threads, media on memory and files, the NBD server,
//! and the HTTP API.
//!
//! A [`Config`] describes a server whole; [`run`] serves until a signal, [`Server`] serves as long
//! as it is held. [`offline`] makes devices and looks into them without serving.
#![warn(missing_docs)]

mod buffer;
pub mod compiler;
pub mod config;
mod data;
mod descriptors;
pub mod device;
mod doors;
mod exports;
mod fast;
#[cfg(test)]
mod faults_tests;
pub mod files;
mod frames;
mod http;
mod kept;
mod medium;
pub mod nbd;
pub mod offline;
mod panics;
pub mod policies;
mod rated;
mod ring;
pub mod server;
mod shard;
mod signals;
mod sockets;
pub mod tls;

pub use config::Config;
pub use fast::Detach;
pub use http::{raw_shape_json, units_json};
pub use ring::{DriverChoice, DriverReport};
pub use server::{Control, Ready, Restart, ServeError, Server};
pub use shard::{CoreStatus, RawShape, RawStatus, ShardStatus};
pub use signals::run;
