//! What it costs to always record how long requests take: the processor time of recording one, against that which
//! the server takes for a small read from memory, which is the least that a request costs. In rounds, one after the
//! other; the median of the shares.

use super::nbd::{Folder, JOBS, VOLUME_MIB, start};
use super::{Figure, Goal, Request, median};
use crate::output::Progress;

const NAME: &str = "latency-cpu";
const GOAL: Goal = Goal::AtMost(1.0);
const UNIT: &str = "%";

pub fn recording(request: &mut Request<'_>) {
    let rounds = if request.quick { 3 } else { 9 };
    let figure = measure(rounds).unwrap_or_else(|why| Figure::missing(NAME, UNIT, GOAL, &why));
    (request.sink)(figure);
}

fn measure(rounds: usize) -> Result<Figure, String> {
    let mut progress = Progress::new(NAME);
    let folder = Folder::new();
    let server = start("weir", &folder.0, &mut progress)?;
    let job = JOBS.iter().find(|job| job.name == "nbd-rand-read-qd32").ok_or("no such job")?;
    let mut measured = Vec::new();
    for round in 0..rounds {
        progress.tell(&format!("round {} of {rounds}", round + 1));
        let recording_ns = serve::recording_ns(1_000_000);
        measured.push((recording_ns, server.round(job, 1)?.cpu_us * 1e3));
    }
    let middle = |of: fn(&(f64, f64)) -> f64| median(measured.iter().map(of).collect());
    let share = middle(|(recording, request)| recording / request * 100.0);
    let share = share.ok_or("nothing was measured")?;
    let (recording, request) = (middle(|it| it.0).unwrap_or(0.0), middle(|it| it.1).unwrap_or(0.0));
    let note = format!(
        "{recording:.0} of {request:.0} ns of processor a request: 4 KiB reads of {VOLUME_MIB} MiB in memory, \
         32 at a time"
    );
    Ok(Figure::new(NAME, share, UNIT, GOAL).note(note))
}
