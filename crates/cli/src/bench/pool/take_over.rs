//! How long a volume is away when its client is killed and another one opens it: from the kill until the other one
//! serves. That grows with what is mapped, so it is measured for volumes of several sizes, each wholly written. The figure
//! is what the line through all kills says of 1 TiB, plus twice its standard error there: kills that differ by more
//! than sizes do show nothing of a larger volume, and the figure is then a large one.

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
    let kills = sizes.iter().map(|size| take_over(*size, &mut progress));
    let kills: Result<Vec<Vec<(f64, f64)>>, String> = kills.collect();
    (request.sink)(measured(NAME, UNIT, GOAL, kills.map(|kills| figure(&kills))));
}

/// By size, the kills: MiB and seconds.
fn figure(sizes: &[Vec<(f64, f64)>]) -> Figure {
    let line = Line::through(&sizes.concat());
    let each = sizes.iter().map(|kills| {
        let seconds = median(kills.iter().map(|kill| kill.1).collect());
        format!("{:.2} at {:.0} MiB", seconds.unwrap_or(0.0), kills[0].0)
    });
    let most = line.fixed + (line.slope + 2.0 * line.slope_error) * TIB_MIB;
    let ms_a_gib = |slope: f64| slope * 1024.0 * 1e3;
    Figure::new(NAME, most, UNIT, GOAL).note(format!(
        "at most, not measured at that size: {:.2} s, of which 3 are the lease, and {:.1} +- {:.1} ms a GiB; medians {}",
        line.fixed,
        ms_a_gib(line.slope),
        2.0 * ms_a_gib(line.slope_error),
        each.collect::<Vec<_>>().join(", ")
    ))
}

/// The line through points, by least squares.
struct Line {
    /// Its value at 0.
    fixed: f64,
    slope: f64,
    /// Its standard error.
    slope_error: f64,
}

impl Line {
    fn through(points: &[(f64, f64)]) -> Self {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|at| at.0), mean(|at| at.1));
        let along: f64 = points.iter().map(|at| (at.0 - x) * (at.1 - y)).sum();
        let spread: f64 = points.iter().map(|at| (at.0 - x) * (at.0 - x)).sum();
        let slope = along / spread;
        let fixed = y - slope * x;
        let off = |at: &(f64, f64)| at.1 - fixed - slope * at.0;
        let off: f64 = points.iter().map(|at| off(at) * off(at)).sum();
        Self { fixed, slope, slope_error: (off / (count - 2.0) / spread).sqrt() }
    }
}

/// The kills of a volume of this size.
fn take_over(mib: u64, progress: &mut Progress) -> Result<Vec<(f64, f64)>, String> {
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
        took.push((mib as f64, begun.elapsed().as_secs_f64()));
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::{Line, figure};

    #[test]
    fn the_line_through_points_says_what_a_tebibyte_takes() {
        let line = Line::through(&[(512.0, 3.5), (1024.0, 4.0), (2048.0, 5.0)]);
        assert!((line.fixed - 3.0).abs() < 1e-9 && (line.slope - 1.0 / 1024.0).abs() < 1e-12);
        assert!(line.slope_error < 1e-9);
        let exact = figure(&[vec![(512.0, 3.0), (512.0, 3.0)], vec![(1024.0, 3.0)]]);
        assert!((exact.value.expect("measured") - 3.0).abs() < 1e-6 && exact.is_met());
    }

    #[test]
    fn kills_that_differ_more_than_sizes_do_not_meet_the_goal() {
        let noisy = figure(&[vec![(512.0, 3.5), (512.0, 3.8)], vec![(1024.0, 3.9), (1024.0, 3.4)]]);
        assert!(!noisy.is_met(), "{}", noisy.note);
    }
}
