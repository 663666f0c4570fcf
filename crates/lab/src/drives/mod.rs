//! Real drives: what was published of them, and a conventional SSD of the lab that does the same.
//!
//! A [`Profile`] is latency by load at several shares of writes, as `devices/profiles/` has it of fifteen NVMe
//! drives. A [`Part`] is what of a device is measured, [`Rig`] measures the figures of
//! such a profile of it, and [`fit()`] looks for the constants of its file with which they agree.

mod fit;
mod part;
mod rig;

pub use fit::{FLASH_BYTES, Fitted, Tried, beside, fit};
pub use part::Part;
pub use pool::profile::{Curve, LoadPoint, PEAK_US, Peak, Profile, Quantile};
pub use rig::{Agreement, Beside, Rig, Share};
