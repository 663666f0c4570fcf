//! The pool: one volume over many unlike drives on many machines (Sandook, NSDI 2026), made of Weir's own
//! parts. Nothing here does I/O: the server and the lab drive the same state machines.
//!
//! A *node* serves one drive. A *band* of a volume lies, slot for slot the same, on a few nodes, its
//! *members*: it is appended to in whole pages, sealed, and from then on never changes until it is freed. The
//! client of a volume is the FTL (`ftl::Ftl`) over a medium that is remote: its block `b` is the band `b`, a
//! program goes to all members and ends when it is durable on each, a read to one of them, an erase frees the
//! band. So GC, streams, checkpoints and recovery are the FTL's, and there is no second one
//! (docs/adr/0015-the-pool-is-the-ftl-over-remote-bands.md).
//!
//! - [`words`] names things, [`message`] is what clients and nodes tell each other, [`wire`] every byte of it.
//! - [`client`] is the medium under a volume's FTL: what a driver puts where a device would be.
//! - [`node`] serves one drive, on a store: it keeps bands for the clients of volumes.
//! - [`profile`] is what a drive can do, [`controller`] plans by it where reads and writes go.
//! - [`control`] is what all must agree on: membership, owners, bands that may be open, the controller.
//! - [`opening`] takes a volume over: fences its last owner, and finds which bands lie where and how far.
//! - [`repair`] makes copies that are lacking, empties nodes, spreads bands and compares copies.
//! - [`room`] tells whether nodes can hold volumes that are to be made.
//! - [`session`] is all of that for one client of one volume: what a driver drives.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod client;
pub mod control;
pub mod controller;
pub mod message;
pub mod node;
pub mod opening;
pub mod profile;
pub mod repair;
pub mod room;
pub mod session;
pub mod volume;
pub mod wire;
pub mod words;
