//! The promises of the FTL, on small simulated devices: after any power cut, under any policy, with
//! failing flash. A failure prints the seed and the line that repeats it.

mod crash;
mod damage;
mod determinism;
mod differential;
mod failing;
mod figures;
mod growth;
mod mail;
mod map;
mod model;
#[cfg(feature = "mutants")]
mod mutants;
mod policies;
mod pool;
mod profile;
mod raw;
mod raw_zones;
mod references;
mod said;
mod scrub;
mod snapshots;
mod streams;
mod tail;
mod tier;
mod zones;

use flash::Pairing;
use ftl::PolicyNames;
use lab::device::Manner;
use lab::parallel::SeedFailure;

/// Two tests run at a time on a small machine; each uses this many threads.
const THREADS: usize = 2;

/// Devices of one tier, by what a power cut leaves of them.
const MANNERS: [Manner; 4] = [
    Manner::Nand(Pairing::None),
    Manner::Nand(Pairing::Staircase),
    Manner::Nand(Pairing::Adjacent(2)),
    Manner::File,
];

/// The seeds of a test, or the one of `LAB_SEED`.
fn seeds(range: std::ops::Range<u64>) -> std::ops::Range<u64> {
    match std::env::var("LAB_SEED").ok().and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => range,
    }
}

/// Ends the test with what repeats the failure.
fn passed<T>(test: &str, result: Result<T, SeedFailure>) -> T {
    result.unwrap_or_else(|SeedFailure { seed, failure }| {
        panic!("seed {seed}: {failure}\nrepeat: LAB_SEED={seed} cargo test -p lab {test}")
    })
}

/// Policies that follow from the seed, in ever other combinations.
fn policies_of_seed(seed: u64) -> PolicyNames {
    let pick =
        |names: &[&str], every: u64| names[(seed / every) as usize % names.len()].to_string();
    PolicyNames {
        victim: pick(ftl::policy::VICTIMS, 1),
        wear: pick(ftl::policy::WEARS, 4),
        erase: pick(ftl::policy::ERASES, 5),
        unit: pick(ftl::policy::UNITS, 2),
        stream: pick(ftl::policy::stream::STREAMS, 3),
        ..PolicyNames::default()
    }
}
