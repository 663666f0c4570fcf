//! How many crash images are recovered and verified without one wrong block. A failure is not met,
//! whatever the count, and tells its seed.

use super::{Figure, Goal, Request, cores};
use crate::output::Progress;
use lab::crash::{CrashOptions, CrashReport, explore_seeds};
use std::time::Instant;

/// Seeds explored between two looks at the count.
const SEEDS_PER_BATCH: u64 = 64;

pub fn images(request: &mut Request<'_>) {
    let (name, wanted) =
        if request.quick { ("crash-images-quick", 250_000) } else { ("crash-images", 10_000_000) };
    let goal = Goal::AtLeast(wanted as f64);
    let threads = cores();
    let (mut total, mut next) = (CrashReport::default(), 1);
    let begun = Instant::now();
    let mut progress = Progress::new(name);
    while total.images < wanted {
        // The seed draws the manner of the medium too: all four come up in every batch.
        let seeds = next..next + SEEDS_PER_BATCH;
        next = seeds.end;
        match explore_seeds(seeds, threads, CrashOptions::of_seed) {
            Ok(report) => total.add(&report),
            Err(failure) => {
                drop(progress);
                let again = format!("{failure}; again: weir lab sim --seed {}", failure.seed);
                (request.sink)(Figure::missing(name, "images", goal, &again));
                return;
            }
        }
        progress.at(total.images, wanted);
    }
    drop(progress);
    let seconds = begun.elapsed().as_secs_f64();
    (request.sink)(Figure::new(name, total.images as f64, "images", goal).note(format!(
        "seeds 1 to {}, {} power cuts, {} recoveries cut again, {} lived on; {:.0} images/s on \
         {threads} threads",
        next - 1,
        total.cuts,
        total.recuts,
        total.lived_on,
        total.images as f64 / seconds
    )));
}
