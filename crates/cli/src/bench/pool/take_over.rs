//! How long a volume is away when its client is killed and another one opens it: from the kill until the other one
//! serves. That grows with what is mapped, so it is measured for volumes of several sizes, each wholly written, and the
//! line through them says what it would be at 1 TiB.

use super::super::nbd::{Job, fio_on};
use super::super::{Figure, Goal, Request, measured, median};
use super::running::Pool;
use crate::output::Progress;
use std::time::Instant;

const NAME: &str = "pool-take-over-1tib";
const UNIT: &str = "s";
const GOAL: Goal = Goal::AtMost(10.0);
/// Of volumes, in MiB.
const SIZES: [u64; 3] = [512, 2048, 4096];
const SIZES_QUICK: [u64; 2] = [256, 512];
const KILLS: usize = 5;
const TIB_MIB: f64 = 1_048_576.0;

pub fn figures(request: &mut Request<'_>) {
    if !request.wants(NAME) {
        return;
    }
    let sizes: &[u64] = if request.quick { &SIZES_QUICK } else { &SIZES };
    let mut progress = Progress::new("pool");
    let took = sizes.iter().map(|size| Ok((*size as f64, take_over(*size, &mut progress)?)));
    let took: Result<Vec<(f64, f64)>, String> = took.collect();
    (request.sink)(measured(NAME, UNIT, GOAL, took.map(|took| figure(&took))));
}

fn figure(took: &[(f64, f64)]) -> Figure {
    let (fixed, slope) = line(took);
    let each: Vec<String> =
        took.iter().map(|(mib, seconds)| format!("{seconds:.2} at {mib:.0} MiB")).collect();
    Figure::new(NAME, fixed + slope * TIB_MIB, UNIT, GOAL).note(format!(
        "not measured at that size: {fixed:.2} s, of which 3 are the lease, and {:.1} ms a GiB, from {}",
        slope * 1024.0 * 1e3,
        each.join(", ")
    ))
}

/// The line through points, by least squares: its value at 0 and its slope.
fn line(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|at| at.0), mean(|at| at.1));
    let along: f64 = points.iter().map(|at| (at.0 - x) * (at.1 - y)).sum();
    let spread: f64 = points.iter().map(|at| (at.0 - x) * (at.0 - x)).sum();
    let slope = along / spread;
    (y - slope * x, slope)
}

/// The median of some kills, in seconds.
fn take_over(mib: u64, progress: &mut Progress) -> Result<f64, String> {
    progress.tell(&format!("take-over, {mib} MiB: filling"));
    let mut pool = Pool::start(mib << 20)?;
    let place = ["--ioengine=nbd".to_owned(), format!("--uri={}", pool.uri())];
    fio_on(&place, &Job { name: "fill", rw: "write", block: "1m", depth: 4 }, mib, None)?;
    let mut took = Vec::new();
    for kill in 1..=KILLS {
        progress.tell(&format!("take-over, {mib} MiB: kill {kill}"));
        let some = Job { name: "some", rw: "randwrite", block: "4k", depth: 32 };
        fio_on(&place, &some, mib, Some(1))?;
        pool.kill_client();
        let begun = Instant::now();
        pool.open()?;
        took.push(begun.elapsed().as_secs_f64());
    }
    median(took).ok_or_else(|| "nothing was measured".into())
}

#[cfg(test)]
mod tests {
    use super::{figure, line};

    #[test]
    fn the_line_through_points_says_what_a_tebibyte_takes() {
        let (fixed, slope) = line(&[(512.0, 3.5), (1024.0, 4.0), (2048.0, 5.0)]);
        assert!((fixed - 3.0).abs() < 1e-9 && (slope - 1.0 / 1024.0).abs() < 1e-12);
        let figure = figure(&[(512.0, 3.0), (1024.0, 3.0)]);
        assert_eq!((figure.value, figure.is_met()), (Some(3.0), true));
    }
}
