//! What a client saw: latencies, bytes, errors.

use super::Slices;
use flash::RequestError;
use hdrhistogram::Histogram;

/// Latencies of one kind of I/O, in nanoseconds, to three digits.
#[derive(Clone, Debug)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum_ns: u128,
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new(3).expect("three digits are legal");
        Self { histogram, sum_ns: 0 }
    }
}

impl Latency {
    /// To two digits, in a tenth of the memory.
    pub fn coarse() -> Self {
        Self { histogram: Histogram::new(2).expect("two digits are legal"), sum_ns: 0 }
    }

    /// Adds one.
    pub fn add(&mut self, ns: u64) {
        self.histogram.record(ns.max(1)).expect("it resizes itself");
        self.sum_ns += u128::from(ns);
    }

    /// Adds all of another.
    pub fn join(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("it resizes itself");
        self.sum_ns += other.sum_ns;
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Exact mean; 0 of none.
    pub fn mean_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum_ns as f64 / self.count() as f64 }
    }

    /// The latency that this share of the I/Os does not exceed.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.histogram.value_at_quantile(share)
    }

    /// The longest.
    pub fn max_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.histogram.max() }
    }

    /// The shortest.
    pub fn min_ns(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.histogram.min() }
    }

    /// Standard deviation.
    pub fn deviation_ns(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.histogram.stdev() }
    }

    /// Share of the I/Os that took longer than `limit_ns`.
    pub fn share_over(&self, limit_ns: u64) -> f64 {
        if self.count() == 0 {
            return 0.0;
        }
        let over = self.count() - self.histogram.count_between(0, limit_ns);
        over as f64 / self.count() as f64
    }

    /// Adds those of another.
    pub fn merge(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("it resizes itself");
        self.sum_ns += other.sum_ns;
    }
}

/// What a client saw within the measurement.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Of reads.
    pub reads: Latency,
    /// Of writes; with `erase_first` the erase is part of it.
    pub writes: Latency,
    /// Of whole batches.
    pub batches: Latency,
    /// Of transactions.
    pub transactions: Latency,
    /// Bytes of successful reads, each by its share within the measurement.
    pub bytes_read: f64,
    /// Bytes of successful writes, likewise.
    pub bytes_written: f64,
    /// Successful reads, likewise.
    pub reads_done: f64,
    /// Successful writes, likewise.
    pub writes_done: f64,
    /// I/Os that failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<RequestError>,
    /// How long was measured.
    pub measured_ns: u64,
    /// How long those waited that had no end when time was up: neither a stall nor a queue that only
    /// grows must hide behind the end of the measurement.
    pub unfinished: Latency,
    /// What ended when, where that is wanted.
    pub slices: Option<Slices>,
}

impl Seen {
    pub(crate) fn add(
        &mut self,
        is_read: bool,
        bytes: u64,
        share: f64,
        latency_ns: Option<u64>,
        result: Result<(), RequestError>,
    ) {
        if let Err(error) = result {
            self.errors += 1;
            self.first_error.get_or_insert(error);
            return;
        }
        let (latency, total, ios) = if is_read {
            (&mut self.reads, &mut self.bytes_read, &mut self.reads_done)
        } else {
            (&mut self.writes, &mut self.bytes_written, &mut self.writes_done)
        };
        if let Some(ns) = latency_ns {
            latency.add(ns);
        }
        *ios += share;
        *total += share * bytes as f64;
    }

    pub(crate) fn close(&mut self, measured_ns: u64, waits: &[u64]) {
        self.measured_ns = measured_ns;
        waits.iter().for_each(|&wait| self.unfinished.add(wait));
    }

    /// Adds what another client saw in the same time.
    pub fn merge(&mut self, other: &Self) {
        self.reads.merge(&other.reads);
        self.writes.merge(&other.writes);
        self.batches.merge(&other.batches);
        self.transactions.merge(&other.transactions);
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.reads_done += other.reads_done;
        self.writes_done += other.writes_done;
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self.measured_ns = self.measured_ns.max(other.measured_ns);
        self.unfinished.merge(&other.unfinished);
        match (&mut self.slices, &other.slices) {
            (Some(own), Some(other)) => own.merge(other),
            (None, Some(other)) => self.slices = Some(other.clone()),
            (_, None) => {}
        }
    }

    /// Latencies of all I/Os, those without an end as long as they have waited.
    pub fn ios(&self) -> Latency {
        let mut ios = self.reads.clone();
        ios.merge(&self.writes);
        ios.merge(&self.unfinished);
        ios
    }

    /// Of `count` things in the measured time, how many a second.
    pub fn per_second(&self, count: f64) -> f64 {
        if self.measured_ns == 0 { 0.0 } else { count * 1e9 / self.measured_ns as f64 }
    }
}
