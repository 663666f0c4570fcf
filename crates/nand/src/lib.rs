//! The emulated NAND device. It decides the outcome and the time of each command and enforces the
//! rules of the part; the driver keeps the content (in a [`Store`], or wherever) and moves the
//! bytes.
//!
//! Driving it: give commands to [`Nand::handle`], take outcomes from [`Nand::poll`] until it has
//! none, and call again at [`Nand::deadline`]. Content is stored when a program's outcome comes, not
//! before: after [`Nand::power_cut`] the driver stores what `Nand` says reads as programmed.
//!
//! ```
//! use flash::{Command, Instant, SlotId, SlotStatus, Tag};
//! use nand::{Faults, Layout, Nand, Outcome, Profile};
//!
//! let profile = Profile::builtin("slc").expect("a built-in profile");
//! let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 64 };
//! let mut nand = Nand::new(&profile, &layout, Faults::default()).expect("a sound layout");
//!
//! nand.handle(Instant(0), Command::Program { tag: Tag(1), slot: SlotId(0), count: 1 })
//!     .expect("legal");
//! let done = nand.deadline().expect("the data is coming in");
//! assert_eq!(nand.poll(done), None, "now the cells are programmed");
//! let done = nand.deadline().expect("a program runs");
//! assert_eq!(
//!     nand.poll(done),
//!     Some(Outcome::Program { tag: Tag(1), slot: SlotId(0), count: 1, result: Ok(()) })
//! );
//!
//! // A page is programmed once between erases, and pages in order.
//! let refused = nand.handle(done, Command::Program { tag: Tag(2), slot: SlotId(0), count: 1 });
//! assert!(refused.unwrap_err().to_string().contains("programmed already"));
//! ```
//!
//! Profiles are data ([`Profile::parse`]); a new device is one more file. What is not modelled:
//! the time of read and erase commands on the bus (they only delay), read retry, wear beyond the bit
//! error rate.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod cells;
mod chips;
mod config;
mod dies;
mod illegal;
mod keys;
mod nand;
mod profile;
mod record;
mod store;

pub use config::{Faults, Layout};
pub use illegal::Illegal;
pub use keys::{KeyError, KeyErrors, Keys, read_whole};
pub use nand::{Counters, Nand, Outcome};
pub use profile::{Profile, Rber};
pub use record::BlockRecord;
pub use store::Store;
