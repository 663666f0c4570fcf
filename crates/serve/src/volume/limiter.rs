//! What clients may ask of a volume, all of them together over all shards: a number of requests and of bytes a second,
//! as token buckets whose tokens are time. Pure, but for the atomic numbers that shards share.
//!
//! A bucket is the instant at which all that was asked would be paid for at the limit's pace. Who finds that it is
//! farther away than the burst waits until it is not; else what is asked is added. So what is asked over any time is
//! at most the limit and one burst, and one request for each shard that comes at the very instant of another.

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

    fn take(&self, now_ns: u64, count: u64) {
        if self.per_sec == 0 {
            return;
        }
        let cost = u128::from(count) * u128::from(SECOND) / u128::from(self.per_sec);
        let cost_ns = u64::try_from(cost).unwrap_or(u64::MAX / 2);
        let paid = |paid_at: u64| Some(paid_at.max(now_ns).saturating_add(cost_ns));
        // It never fails, as there always is a next value.
        self.paid_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, paid).ok();
    }
}

impl Limiter {
    /// A limiter, if anything is limited.
    pub fn of(limits: Limits) -> Option<Self> {
        let burst_ms = if limits.burst_ms > 0 { limits.burst_ms } else { Limits::BURST_MS };
        let bucket = |per_sec| Bucket::new(per_sec, burst_ms * MILLISECOND);
        let (requests, bytes) = (bucket(limits.iops), bucket(limits.bytes_per_sec));
        (!limits.is_none()).then_some(Self { limits, requests, bytes })
    }

    /// What it keeps.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// A request is asked for at `now_ns`, of any clock that all shards have.
    ///
    /// # Errors
    /// Not before this instant: try again then.
    pub fn admit(&self, now_ns: u64, request: &Request) -> Result<(), u64> {
        let at = self.requests.opens_at(now_ns).max(self.bytes.opens_at(now_ns));
        if at > now_ns {
            return Err(at);
        }
        self.requests.take(now_ns, 1);
        self.bytes.take(now_ns, bytes_of(request));
        Ok(())
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

    /// Requests that are admitted up to `end_ns` if somebody always wants one.
    fn admitted(limiter: &Limiter, request: &Request, end_ns: u64) -> u64 {
        let (mut now_ns, mut count) = (0, 0);
        while now_ns < end_ns {
            match limiter.admit(now_ns, request) {
                Ok(()) => count += 1,
                Err(at) => {
                    assert!(at > now_ns, "time goes on");
                    now_ns = at;
                }
            }
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
        let at_once =
            |now_ns: u64| (0..).take_while(|_| limiter.admit(now_ns, &read(4096)).is_ok()).count();
        assert_eq!(at_once(SECOND), 51);
        assert_eq!(at_once(SECOND + 10 * MILLISECOND), 10);
        assert_eq!(at_once(3600 * SECOND), 51, "an hour is worth no more");
    }

    #[test]
    fn a_request_larger_than_the_burst_goes_and_is_paid_for_afterwards() {
        let limiter = limiter(0, 1 << 20, 1);
        assert_eq!(limiter.admit(0, &read(32 << 20)), Ok(()));
        let at = limiter.admit(1, &read(512)).unwrap_err();
        assert_eq!(at / SECOND, 31, "32 s less a millisecond");
        assert_eq!(limiter.admit(at, &read(512)), Ok(()));
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
