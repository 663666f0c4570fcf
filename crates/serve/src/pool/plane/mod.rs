//! The control plane as processes see it: [`PlaneLink`] asks it, wherever it is, and [`server`] is Weir's own.

mod calls;
mod embedded;
mod link;
mod log;
pub mod server;
#[cfg(test)]
pub(super) mod tests;

pub use calls::{CommitEnd, PlaneCalls};
pub use link::PlaneLink;
