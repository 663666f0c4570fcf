//! What clients may ask of a volume, all of them together over all shards: a number of requests and of bytes a second,
//! as token buckets whose tokens are time. Pure, but for the atomic numbers that shards share.
//!
//! A bucket is the instant at which all that was asked would be paid for at the limit's pace. A request gets its place
//! when it comes: the instant at which that is no farther away than the burst, and adds what it asks. So what is begun
//! over any time is at most the limit and one burst, and one request for each shard that comes at the very instant of
//! another; and who has to wait knows from the beginning how long. Who leaves gives back what was added for it.

use super::{Kind, Request};
use crate::device::Limits;
use flash::{MILLISECOND, SECOND};
use std::sync::atomic::{AtomicU64, Ordering};

/// The limits of a volume, and how far they are used up.
#[derive(Debug)]
pub struct Limiter {
    limits: Limits,
    requests: Bucket,
    bytes: Bucket,
    /// How often somebody has left the line, so that others can move up.
    left: AtomicU64,
}

/// One limit.
#[derive(Debug)]
struct Bucket {
    /// Of what, a second; 0 for no limit.
    per_sec: u64,
    burst_ns: u64,
    /// When all that was asked is paid for.
    paid_at: AtomicU64,
}

impl Bucket {
    fn new(per_sec: u64, burst_ns: u64) -> Self {
        Self { per_sec, burst_ns, paid_at: AtomicU64::new(0) }
    }

    /// When something may be asked, if that is not now.
    fn opens_at(&self, now_ns: u64) -> u64 {
        match self.per_sec {
            0 => now_ns,
            _ => self.paid_at.load(Ordering::Relaxed).saturating_sub(self.burst_ns).max(now_ns),
        }
    }

    /// What `count` takes of the time that there is.
    fn cost_ns(&self, count: u64) -> u64 {
        if self.per_sec == 0 {
            return 0;
        }
        let cost = u128::from(count) * u128::from(SECOND) / u128::from(self.per_sec);
        u64::try_from(cost).unwrap_or(u64::MAX / 2)
    }

    fn take(&self, at_ns: u64, count: u64) {
        let cost_ns = self.cost_ns(count);
        let paid = |paid_at: u64| Some(paid_at.max(at_ns).saturating_add(cost_ns));
        // It never fails, as there always is a next value.
        self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid).ok();
    }

    fn give_back(&self, count: u64) {
        let cost_ns = self.cost_ns(count);
        let paid = |paid_at: u64| Some(paid_at.saturating_sub(cost_ns));
        self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid).ok();
    }
}

impl Limiter {
    /// A limiter, if anything is limited.
    pub fn of(limits: Limits) -> Option<Self> {
        let burst_ms = if limits.burst_ms > 0 { limits.burst_ms } else { Limits::BURST_MS };
        let bucket = |per_sec| Bucket::new(per_sec, burst_ms * MILLISECOND);
        let (requests, bytes) = (bucket(limits.iops), bucket(limits.bytes_per_sec));
        let left = AtomicU64::new(0);
        (!limits.is_none()).then_some(Self { limits, requests, bytes, left })
    }

    /// What it keeps.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The place of a request that is asked for at `now_ns`, of any clock that all shards have: when it may be begun.
    pub fn place(&self, now_ns: u64, request: &Request) -> u64 {
        let at = self.requests.opens_at(now_ns).max(self.bytes.opens_at(now_ns));
        self.requests.take(at, 1);
        self.bytes.take(at, bytes_of(request));
        at
    }

    /// Somebody who has a place will not begin this request.
    pub fn leave(&self, request: &Request) {
        self.requests.give_back(1);
        self.bytes.give_back(bytes_of(request));
    }

    /// Some have left: whoever waits, on any shard, may get a nearer place.
    pub fn tell_left(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was told.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

/// True if a request counts: it asks something of the flash.
pub fn is_limited(kind: Kind) -> bool {
    !matches!(kind, Kind::Cache | Kind::Extents | Kind::Zones { .. })
}

/// What of the bytes is limited: those that are moved, or filled with zeroes.
fn bytes_of(request: &Request) -> u64 {
    match request.kind {
        kind if kind.reads() || kind.takes_data() => request.len.into(),
        Kind::Zeroes { no_hole: true, .. } => request.len.into(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(iops: u64, bytes_per_sec: u64, burst_ms: u64) -> Limiter {
        Limiter::of(Limits { iops, bytes_per_sec, burst_ms }).unwrap()
    }

    fn read(len: u32) -> Request {
        Request { volume: 0, kind: Kind::Read, offset: 0, len }
    }

    /// Requests that are begun up to `end_ns` if somebody always wants one.
    fn admitted(limiter: &Limiter, request: &Request, end_ns: u64) -> u64 {
        let (mut now_ns, mut count) = (0, 0);
        while now_ns < end_ns {
            let at = limiter.place(now_ns, request);
            assert!(at >= now_ns, "time goes on");
            (now_ns, count) = (at, count + 1);
        }
        count
    }

    #[test]
    fn over_a_time_as_much_is_admitted_as_the_limit_says_and_one_burst() {
        let requests = admitted(&limiter(1000, 0, 100), &read(4096), 10 * SECOND);
        assert!((10_000..=10_101).contains(&requests), "{requests}");
        let bytes = admitted(&limiter(0, 1 << 20, 1), &read(65_536), 10 * SECOND) * 65_536;
        assert!((10 << 20..=(10 << 20) + 2 * 65_536).contains(&bytes), "{bytes}");
        let both = admitted(&limiter(10, 1 << 30, 1), &read(4096), 10 * SECOND);
        assert!((100..=102).contains(&both), "the narrower one counts: {both}");
    }

    #[test]
    fn what_was_not_asked_may_be_asked_at_once_up_to_the_burst_and_no_more() {
        let limiter = limiter(1000, 0, 50);
        let at_once = |now_ns: u64| {
            (0..).take_while(|_| limiter.place(now_ns, &read(4096)) == now_ns).count()
        };
        assert_eq!(at_once(SECOND), 51);
        // The one that was not at once has its place a millisecond later, so that it is not one of these.
        assert_eq!(at_once(SECOND + 10 * MILLISECOND), 9);
        assert_eq!(at_once(3600 * SECOND), 51, "an hour is worth no more");
    }

    #[test]
    fn a_request_larger_than_the_burst_goes_and_is_paid_for_afterwards() {
        let limiter = limiter(0, 1 << 20, 1);
        assert_eq!(limiter.place(0, &read(32 << 20)), 0);
        let at = limiter.place(1, &read(512));
        assert_eq!(at / SECOND, 31, "32 s less a millisecond");
        assert!(limiter.place(at, &read(512)) < at + MILLISECOND);
    }

    #[test]
    fn places_follow_each_other_at_the_pace_of_the_limit_and_what_leaves_makes_room() {
        let limiter = limiter(10, 0, 1);
        let places: Vec<u64> = (0..5).map(|_| limiter.place(0, &read(4096))).collect();
        let paced: Vec<u64> = (0..5).map(|at| at * 100 * MILLISECOND).collect();
        let early = MILLISECOND; // One burst.
        assert_eq!(places[0], 0);
        assert!(places.iter().zip(&paced).skip(1).all(|(at, paced)| at + early == *paced));
        limiter.leave(&read(4096));
        limiter.leave(&read(4096));
        assert_eq!(limiter.place(0, &read(4096)), places[3]);
    }

    #[test]
    fn what_waits_for_one_limit_is_counted_by_the_other_when_it_begins() {
        let limiter = limiter(1, 1 << 20, 1);
        assert_eq!(limiter.place(0, &read(512)), 0);
        let large = limiter.place(0, &read(8 << 20));
        assert_eq!(large, SECOND - MILLISECOND);
        // Its bytes are paid for from then on, not from when it came.
        assert_eq!(limiter.place(2 * SECOND, &read(512)), large + 8 * SECOND - MILLISECOND);
    }

    #[test]
    fn what_moves_no_bytes_is_one_request() {
        let request = |kind| Request { volume: 0, kind, offset: 0, len: 1 << 30 };
        let zeroes = |no_hole| Kind::Zeroes { fua: false, no_hole, fast: false };
        assert_eq!(bytes_of(&request(Kind::Trim { fua: false })), 0);
        assert_eq!(bytes_of(&request(zeroes(false))), 0);
        assert_eq!(bytes_of(&request(zeroes(true))), 1 << 30);
        assert!(is_limited(Kind::Flush) && !is_limited(Kind::Extents));
        assert!(Limiter::of(Limits { burst_ms: 5, ..Limits::default() }).is_none());
    }
}
