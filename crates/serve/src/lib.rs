//! The real-time driver of Weir: shards over io_uring or threads, media on memory and files, the NBD server,
//! and the HTTP API.
//!
//! A [`Config`] describes a server whole; [`run`] serves until a signal, [`Server`] serves as long
//! as it is held. [`offline`] makes devices and looks into them without serving.
#![warn(missing_docs)]

pub mod attach;
mod backend;
mod base64;
pub mod compiler;
pub mod config;
mod control;
pub mod cpu;
mod descriptors;
pub mod device;
mod doors;
mod exports;
mod fast;
#[cfg(test)]
mod faults_tests;
pub mod files;
mod front;
mod guests;
mod kept;
mod latency;
pub mod living;
mod medium;
mod notify;
pub mod offline;
mod panics;
pub mod policies;
pub mod pool;
pub mod probe;
mod pulse;
mod random;
mod rated;
mod runtime;
pub mod server;
mod signals;
mod sockets;
pub mod store;
pub mod tls;
mod vestibule;
mod volume;

pub use config::Config;
pub use control::{raw_shape_json, units_json};
pub use fast::Detach;
pub use front::nbd;
pub use front::nvme::hostile as nvme_hostile;
pub use front::vhost::hostile as vhost_hostile;
pub use latency::recording_ns;
pub use runtime::ring::{DriverChoice, DriverReport};
pub use runtime::shard::{CoreStatus, RawShape, RawStatus, ShardStatus, Wanted};
pub use server::{Control, Ready, Restart, ServeError, Server, check};
pub use signals::run;
