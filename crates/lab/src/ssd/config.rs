//! What a [`Front`](super::Front) consists of. Rates of 0 are no cap, costs of 0 take no time.

use super::Placement;

/// The parts of a front; each does nothing by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FrontConfig {
    /// Between host and device.
    pub link: Link,
    /// What decides on each command: a drive's controller, or the host's driver.
    pub firmware: Firmware,
    /// DRAM that acknowledges writes.
    pub cache: Option<Cache>,
    /// The client sees one queue, not those of the units: a conventional drive.
    pub hides_units: bool,
    /// Inside, a write may not be cut: raw units that take whole raw blocks. Not with a cache.
    pub whole_writes: bool,
    /// A write command may say what its data belongs to; `None`: nobody listens.
    pub placement: Option<Placement>,
}

impl FrontConfig {
    /// It does nothing at all.
    pub fn is_transparent(&self) -> bool {
        *self == Self::default()
    }
}

/// The wire and the software on its host end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Link {
    /// Cap of data towards the host.
    pub read_bytes_per_s: f64,
    /// Cap of data towards the device.
    pub write_bytes_per_s: f64,
    /// One direction at a time (SATA), under the lower of the caps that are set.
    pub half_duplex: bool,
    /// From submission until the device begins to look at a command. Delays, occupies nothing.
    pub command_ns: u64,
    /// Commands that the device takes at once, further ones wait on the host; 0 for any number.
    pub queue_depth: u32,
}

/// A processor that every command passes.
#[derive(Clone, Debug, PartialEq)]
pub struct Firmware {
    /// Processors that take work from one queue.
    pub cores: u32,
    /// Of each command.
    pub command_ns: u64,
    /// What the costs below are about.
    pub page_bytes: u32,
    /// Of each page that a read touches in flash.
    pub read_page_ns: u64,
    /// Of each page written to flash: at once, or when it leaves the cache.
    pub write_page_ns: u64,
    /// Of each page that GC relocated.
    pub relocate_page_ns: u64,
    /// GC takes the processors for this much relocated data at a time, and nothing else runs
    /// meanwhile; 0 for as soon as it is noticed.
    pub relocate_burst_bytes: u64,
}

impl Default for Firmware {
    fn default() -> Self {
        Self {
            cores: 1,
            command_ns: 0,
            page_bytes: 8192,
            read_page_ns: 0,
            write_page_ns: 0,
            relocate_page_ns: 0,
            relocate_burst_bytes: 0,
        }
    }
}

impl Firmware {
    /// Pages that `bytes` from `offset` on touch.
    pub(super) fn pages(&self, offset: u64, bytes: u64) -> u64 {
        let page = u64::from(self.page_bytes);
        (offset + bytes).div_ceil(page) - offset / page
    }
}

/// A DRAM cache for writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cache {
    /// Data it holds.
    pub bytes: u64,
    /// Lines (at most 64 KiB each) on their way to flash at a time.
    pub drain_depth: u32,
    /// Lines leave together, once there are so many bytes of them: a drive that programs stripes; 0 for at once.
    /// What is left of a stripe leaves when somebody waits for it.
    pub gather_bytes: u64,
    /// A power cut loses nothing of it, so that a flush has nothing to wait for.
    pub power_safe: bool,
}
