//! How a device was opened: what a server tells of its start.

use crate::device::KeptCounts;
use std::fmt;

/// How a device was opened, and how long that took.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Restart {
    /// Why it was not resumed from kept memory; `None`: it was.
    pub cold: Option<String>,
    /// From the start of the server until all shards had mounted.
    pub took_ms: u64,
    /// Kept memory of this server, in bytes; 0 if it has none.
    pub kept_bytes: u64,
    /// Reads of the mount, and of them those answered from kept memory.
    pub counts: KeptCounts,
    /// Why the device is served to be read only, and what of it is lost; none if it is whole.
    pub impaired: Vec<String>,
    /// How many times slower than the world the emulated flash lives.
    pub dilation: u32,
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cold, took_ms, counts, dilation, .. } = self;
        if *dilation > 1 {
            write!(f, "with flash {dilation} times as slow as it is, ")?;
        }
        match cold {
            None => {
                let KeptCounts { reads_answered, reads_passed } = counts;
                let reads = reads_answered + reads_passed;
                write!(f, "resumed from kept memory in {took_ms} ms")?;
                write!(f, " ({reads_answered} of {reads} reads answered)")
            }
            Some(why) => write!(f, "mounted in {took_ms} ms without kept memory: {why}"),
        }
    }
}
