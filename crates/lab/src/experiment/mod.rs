//! Experiments: a figure or table of a paper as a file, run on production code in virtual time.
//!
//! An experiment has *cases* (a device, how it is prepared, its clients), *sweeps* (variables that
//! take several values: a case has a point for each combination), figures, and claims: what the
//! source said, with a tolerance. [`run()`] measures, [`report()`] judges and draws.
//!
//! Invariants:
//! - The same file, scale, settings and seed give the same report, byte for byte.
//! - A figure of a claim comes from a metric that was measured; nothing else can set it.
//! - Every case is measured by the same clients and the same clock: a baseline like Weir itself.

mod builtin;
mod client;
mod curves;
mod devices;
mod file;
pub mod fit;
mod kept;
mod keys;
mod metric;
mod report;
mod run;
mod seeds;
mod select;
mod tenants;
mod waf;

pub use builtin::{builtin, builtin_names};
pub use curves::Curve;
pub use file::{At, Experiment, Scale};
pub use kept::{Kept, Row};
pub use metric::metric_unit;
pub use report::report;
pub use run::{CaseResult, Measures, Options, PointResult, Progress, Results, Told, run, run_all};
pub use select::text_of;

/// Why an experiment cannot be read or run: names the place and what is wrong.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ExperimentError(pub String);

impl std::fmt::Display for ExperimentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ExperimentError {}

#[cfg(test)]
mod tests;
