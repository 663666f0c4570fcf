//! The lab: the FTL and emulated media on virtual time, without a single real device or clock.
//!
//! - [`Sim`] drives one [`ftl::Ftl`] on one [`medium::SimMedium`]; a logical block is an 8-byte
//!   stamp, so terabytes fit in memory and millions of operations take seconds.
//! - [`workload`] draws operations, [`model`] knows what each may return, [`host::Host`] puts the
//!   two together.
//! - [`target`] is what a client sees of a device: one workload runs on the FTL, on raw units, on a
//!   conventional SSD.
//! - [`load`] has the clients of such a target, and what they saw.
//! - [`trace`] reads recorded requests in many formats, [`replay`] gives them to a target.
//! - [`crash`] cuts the power after every step, [`soak`] runs millions of operations with faults;
//!   both from a seed that repeats any failure.
//! - [`raw_crash`] does the same to raw units, with [`raw_host`] and [`raw_ids`] as the hosts.
//! - [`damage`] damages any kind of slot in any way at any moment, and holds what is read against the model.
//! - [`figures`] measures, and [`theory`] says what should come out.
//! - [`pool`] has nodes, clients and controllers of pools, with a network and drives like real ones.
//! - [`tenant`] has programs that read and write as database servers do, several on a device.
//! - [`experiment`] runs a figure or table of a paper from a file and judges its claims.
//! - [`drives`] has published profiles of real drives, and measures and fits a device beside one.
//! - [`fit`] looks for the constants that bring a device closest to what was measured of it.
//! - [`advise`] tells a user, from a trace, which streams, GC policy and over-provisioning pay.
//! - [`report`] shows what an experiment found: text, HTML, SVG, PNG, and verdicts on claims.
//!
//! What runs here is the production FTL: a result of the lab is a result of Weir.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod advise;
pub mod caching;
pub mod checker;
pub mod crash;
pub mod damage;
pub mod device;
pub mod device_file;
pub mod driver;
pub mod drives;
pub mod experiment;
pub mod failing;
pub mod figures;
pub mod file;
pub mod fit;
pub mod host;
pub mod load;
pub mod lost_map;
pub mod mail;
pub mod map_reads;
pub mod medium;
pub mod missed;
pub mod model;
mod packed;
pub mod parallel;
pub mod pool;
pub mod raw_crash;
pub mod raw_host;
pub mod raw_ids;
pub mod replay;
pub mod replicated;
pub mod report;
pub mod rot;
pub mod snapshots;
pub mod soak;
pub mod ssd;
pub mod streams;
pub mod switching;
pub mod tail;
pub mod target;
pub mod tenant;
pub mod theory;
pub mod trace;
pub mod workload;
pub mod worn;

pub use driver::{Failure, Finished, Sim, State, Step};
