//! Small writes acknowledged from a fast tier in a file, each durable, against what the file system
//! itself takes: fio's own durable direct writes to a file beside it, at the same depth. In rounds
//! whose order changes; the median of the ratios, wall clock, on the disk of the temporary folder.

use super::nbd::{Folder, Job, fio_on, serve};
use super::{Figure, Goal, Request, median};
use crate::output::Progress;
use std::fs;
use std::process::Command;

const GOAL: Goal = Goal::AtLeast(1.0);
const UNIT: &str = "x";
const SIZE_MIB: u64 = 256;

const JOBS: [Job; 2] = [
    Job { name: "tier-file-write-qd1", rw: "randwrite", block: "4k", depth: 1 },
    Job { name: "tier-file-write-qd32", rw: "randwrite", block: "4k", depth: 32 },
];

pub fn against_file_system(request: &mut Request<'_>) {
    let mut progress = Progress::new("tier-file");
    for job in &JOBS {
        if !request.wants(job.name) {
            continue;
        }
        progress.tell(job.name);
        let figure = compare(job, if request.quick { 3 } else { 9 });
        let figure =
            figure.map(|(ratio, note)| Figure::new(job.name, ratio, UNIT, GOAL).note(note));
        let failed = |why: String| Figure::missing(job.name, UNIT, GOAL, &why);
        (request.sink)(figure.unwrap_or_else(failed));
    }
}

fn compare(job: &Job, rounds: u32) -> Result<(f64, String), String> {
    let folder = Folder::at(std::env::temp_dir());
    let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
    let socket = folder.0.join("weir.sock");
    let config = folder.0.join("weir.toml");
    let (slow, fast) = (folder.0.join("weir.img"), folder.0.join("fast.img"));
    let text = format!(
        "[device]\nkind = \"file\"\npath = {slow:?}\ncapacity = \"2GiB\"\n\
         fast = {{ kind = \"file\", path = {fast:?}, capacity = \"1GiB\" }}\n"
    );
    fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
    let mut command = Command::new(program);
    command.args(["serve", "--http", "none", "--config"]).arg(&config);
    command.arg("--socket").arg(&socket);
    let server = serve("weir", command, &socket)?;
    let weir = ["--ioengine=nbd".into(), format!("--uri={}", server.uri)];
    let beside = format!("--filename={}", folder.0.join("beside").display());
    let durable = ["--direct=1", "--sync=dsync", "--overwrite=1"].map(String::from);
    let file = [&["--ioengine=io_uring".into(), beside], &durable[..]].concat();
    let mut ratios = Vec::new();
    let mut rates = [Vec::new(), Vec::new()];
    // The first round makes the file, and fills what nobody has written yet.
    for round in 0..=rounds {
        let mut rate = [0.0; 2];
        for turn in [round % 2, (round + 1) % 2] {
            let place: &[String] = if turn == 0 { &weir } else { &file };
            rate[turn as usize] = fio_on(place, job, SIZE_MIB, Some(1))?;
        }
        if round > 0 {
            ratios.push(rate[0] / rate[1]);
            rates.iter_mut().zip(rate).for_each(|(rates, rate)| rates.push(rate));
        }
    }
    let [ours, theirs] = rates.map(|rates| median(rates).unwrap_or(0.0));
    let note = format!("{ours:.0} against {theirs:.0} durable writes of 4 KiB a second");
    Ok((median(ratios).ok_or("nothing was measured")?, note))
}
