//! Runs seeds on several threads. Each seed is a simulation of its own, so threads change nothing
//! but the time it takes; the failure reported is that of the smallest failing seed found.

use crate::driver::Failure;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A failure and the seed that repeats it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SeedFailure {
    /// Repeats it.
    pub seed: u64,
    /// What went wrong.
    pub failure: Failure,
}

impl std::fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.failure)
    }
}

impl std::error::Error for SeedFailure {}

/// Runs `run` for every seed and returns the results in the order of the seeds. A panic (a broken
/// invariant of the code under test) counts as a failure. After a failure no new seed is begun.
pub fn for_each_seed<T: Send>(
    seeds: std::ops::Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, SeedFailure> {
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let result = guarded(|| run(seed));
                    if result.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    results.lock().expect("no run panics here").push((seed, result));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("every thread has ended");
    results.sort_by_key(|(seed, _)| *seed);
    results
        .into_iter()
        .map(|(seed, result)| result.map_err(|failure| SeedFailure { seed, failure }))
        .collect()
}

/// Runs `run`; a panic becomes a failure that says what was asserted.
pub fn guarded<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = (payload.downcast_ref::<&str>().map(|text| (*text).to_string()))
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without words".into());
        Err(Failure(format!("broken invariant: {text}")))
    })
}

#[cfg(test)]
mod tests {
    use super::for_each_seed;
    use crate::driver::Failure;

    #[test]
    fn results_come_in_the_order_of_the_seeds() {
        let results = for_each_seed(3..40, 3, |seed| Ok(seed * 2)).expect("none fails");
        assert_eq!(results, (3..40).map(|seed| seed * 2).collect::<Vec<_>>());
    }

    #[test]
    fn a_failure_and_a_panic_name_their_seed() {
        let refuse = |seed| if seed == 7 { Err(Failure("no".into())) } else { Ok(()) };
        assert_eq!(for_each_seed(0..20, 1, refuse).expect_err("7 fails").seed, 7);
        let panic = |seed: u64| {
            assert!(seed != 5, "five is right out");
            Ok(())
        };
        let failed = for_each_seed(0..20, 1, panic).expect_err("5 panics");
        assert_eq!(failed.seed, 5);
        assert!(failed.to_string().contains("five is right out"), "{failed}");
    }
}
