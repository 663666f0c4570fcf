//! What a client saw over time: the measurement in slices of one length.

use super::Latency;

/// What ended within a slice.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Latencies of reads, to two digits.
    pub reads: Latency,
    /// The same of writes.
    pub writes: Latency,
    /// Bytes of successful reads.
    pub bytes_read: u64,
    /// Bytes of successful writes.
    pub bytes_written: u64,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Slices {
    begin_ns: u64,
    /// How long each is.
    pub each_ns: u64,
    /// In the order of time.
    pub list: Vec<Slice>,
}

impl Slices {
    /// So many slices from `begin_ns` on, up to `end_ns`.
    pub fn new(count: u32, begin_ns: u64, end_ns: u64) -> Self {
        let each_ns = (end_ns - begin_ns).div_ceil(u64::from(count)).max(1);
        let slice = Slice {
            reads: Latency::coarse(),
            writes: Latency::coarse(),
            bytes_read: 0,
            bytes_written: 0,
        };
        Self { begin_ns, each_ns, list: vec![slice; count as usize] }
    }

    /// When the slice begins.
    pub fn begin_of(&self, slice: usize) -> u64 {
        self.begin_ns.saturating_add(self.each_ns.saturating_mul(slice as u64))
    }

    /// An I/O ended.
    pub(super) fn add(&mut self, at_ns: u64, is_read: bool, bytes: u64, latency_ns: u64) {
        let Some(since) = at_ns.checked_sub(self.begin_ns) else { return };
        let Some(slice) = self.list.get_mut((since / self.each_ns) as usize) else { return };
        let (latency, total) = match is_read {
            true => (&mut slice.reads, &mut slice.bytes_read),
            false => (&mut slice.writes, &mut slice.bytes_written),
        };
        latency.add(latency_ns);
        *total += bytes;
    }

    /// Adds what another client saw in the same slices.
    pub(super) fn merge(&mut self, other: &Self) {
        for (own, other) in self.list.iter_mut().zip(&other.list) {
            own.reads.merge(&other.reads);
            own.writes.merge(&other.writes);
            own.bytes_read += other.bytes_read;
            own.bytes_written += other.bytes_written;
        }
    }
}
