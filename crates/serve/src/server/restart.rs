//! How a device was opened: what a server tells of its start.

use super::Mounted;
use crate::backend::Source;
use crate::device::{Device, KeptCounts};
use std::fmt;
use std::time::Duration;

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

/// How what was mounted was opened, `took` after the start.
pub(super) fn restart(
    source: &Source,
    mounted: &[Mounted],
    took: Duration,
    impaired: Vec<String>,
) -> Restart {
    let device = source.device.as_ref();
    let cold = match device {
        Some(device) => device.cold().map(Into::into),
        None => Some("a volume of a pool has none".into()),
    };
    Restart {
        cold,
        took_ms: took.as_millis() as u64,
        kept_bytes: device.and_then(|device| device.kept().ok()).map_or(0, |(_, bytes)| bytes),
        counts: counts(mounted),
        impaired,
        dilation: device.map_or(1, Device::dilation),
    }
}

fn counts(mounted: &[Mounted]) -> KeptCounts {
    let sum = |count: fn(&KeptCounts) -> u64| -> u64 {
        mounted.iter().map(|mounted| count(&mounted.found.kept)).sum()
    };
    KeptCounts {
        reads_answered: sum(|counts| counts.reads_answered),
        reads_passed: sum(|counts| counts.reads_passed),
    }
}
