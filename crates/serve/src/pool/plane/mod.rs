//! The control plane as processes see it: [`PlaneLink`] asks it, wherever it is, and [`server`] is Weir's own.

mod calls;
mod embedded;
mod etcd;
mod gateway;
mod link;
mod log;
pub mod server;
#[cfg(test)]
pub(in crate::pool) mod tests;

pub use calls::{CommitEnd, PlaneCalls};
pub use etcd::found;
pub use link::PlaneLink;
