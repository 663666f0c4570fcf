//! Real drives: what was published of them, and a conventional SSD of the lab that does the same.
//!
//! A [`Profile`] is latency by load at several shares of writes, as `devices/profiles/` has it of fifteen NVMe
//! drives. A [`Part`] is what of a device is measured, [`Rig`] measures the figures of
//! such a profile of it, and [`fit()`] looks for the constants of its file with which they agree.
//!
//! A profile of a drive of one's own is measured at [`Arrivals`], at the loads that a [`Sweep`] asks for.

mod arrivals;
mod fit;
mod part;
mod rig;
mod sweep;

pub use arrivals::{Arrival, Arrivals};
pub use fit::{FLASH_BYTES, Fitted, Tried, beside, fit};
pub use part::Part;
pub use pool::profile::{Curve, LoadPoint, PEAK_US, Peak, Profile, Quantile, raw};
pub use rig::{Agreement, Beside, Rig, Share};
pub use sweep::{Limit, Plan, Seen, Sweep, TRIES_MOST};
