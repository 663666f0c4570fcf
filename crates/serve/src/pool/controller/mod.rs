//! The controller as a process, and those who tell it how they do: [`ControllerServer`] stands for election, hears
//! reports and publishes weights in the control plane; [`ReportLink`] reports to whichever one is elected.
//!
//! Nothing rests on it: without a controller weights expire, and clients and nodes do what is safe.

mod plans;
mod reports;
mod server;
#[cfg(test)]
mod tests;

pub use plans::OWN_PROFILE;
pub use reports::{Asked, ReportLink, asked, explained};
pub use server::{ControllerServer, run};
