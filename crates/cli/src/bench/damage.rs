//! How many images with damage are read without one wrong block. A failure is not met, whatever the
//! count; the run goes on, so that all of them are told, each with its seed. A round of all cases that
//! misses one is not met either.

use super::{Figure, Goal, Request, cores};
use crate::output::Progress;
use lab::damage::{DamageReport, RAW_KINDS, Shape};
use lab::parallel::for_each_seed;
use std::time::Instant;

/// Seeds explored between two looks at the count: every kind of device, several times.
const SEEDS_PER_BATCH: u64 = 48;

pub fn images(request: &mut Request<'_>) {
    let (name, wanted) =
        if request.quick { ("damage-images-quick", 50_000) } else { ("damage-images", 1_000_000) };
    let goal = Goal::AtLeast(wanted as f64);
    let threads = cores();
    let (mut total, mut next, mut failed) = (DamageReport::default(), 0, Vec::new());
    let begun = Instant::now();
    let mut progress = Progress::new(name);
    while total.matrix.total().images < wanted {
        let seeds = next..next + SEEDS_PER_BATCH;
        next = seeds.end;
        let one = |seed| Ok(crate::lab::damage_with_failures(seed));
        let reports = for_each_seed(seeds.clone(), threads, one);
        for (seed, (report, failures)) in seeds.zip(reports.expect("no seed ends it")) {
            total.add(&report);
            for failure in failures {
                eprintln!("seed {seed}: {failure}; again: weir lab sim --seed {seed}");
                failed.push(seed);
            }
        }
        progress.at(total.matrix.total().images, wanted);
    }
    drop(progress);
    if !failed.is_empty() {
        let all = total.matrix.total().images;
        let why = format!("{} of {all} images fail, of the seeds {failed:?}", failed.len());
        (request.sink)(Figure::missing(name, "images", goal, &why));
        return;
    }
    let mut missing = total.matrix.missing(&Shape::KINDS, true);
    missing.extend(total.matrix.missing(&RAW_KINDS, false));
    if !missing.is_empty() {
        let why = format!("never tried: {missing:?}");
        (request.sink)(Figure::missing(name, "images", goal, &why));
        return;
    }
    if let Some(why) = total.beyond_known() {
        (request.sink)(Figure::missing(name, "images", goal, &why));
        return;
    }
    eprint!("{}", total.as_text());
    let (seconds, all) = (begun.elapsed().as_secs_f64(), total.matrix.total());
    (request.sink)(Figure::new(name, all.images as f64, "images", goal).note(format!(
        "seeds 0 to {}: an error in {}, told by the report {}, not mounted {}, {} failed as is known; \
         {:.0} images/s on {threads} threads",
        next - 1,
        all.errors,
        all.told,
        all.refused,
        total.known.values().sum::<u64>(),
        all.images as f64 / seconds
    )));
}
