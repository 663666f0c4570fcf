//! How much a volume's clients notice of another volume that is flooded, if that one has limits: the 99th percentile of
//! reads at a steady pace, alone and beside the flood, in rounds whose order changes. The note tells what it would be
//! without limits. In memory, so that the processors are what they share.

use super::nbd::{Folder, Server, fio_says, serve, weir};
use super::{Figure, Goal, Request, median};
use crate::output::Progress;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const NAME: &str = "volume-limit-p99";
const UNIT: &str = "%";
const GOAL: Goal = Goal::AtMost(10.0);
/// Requests a second that the flooded volume may have.
const LIMIT: u32 = 500;
/// Reads a second of its neighbour.
const PACE: u32 = 2000;

/// What goes on beside the neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Beside {
    Nothing,
    Limited,
    Flood,
}

pub fn figures(request: &mut Request<'_>) {
    let (rounds, seconds) = if request.quick { (3, 2) } else { (9, 5) };
    let figure = measure(rounds, seconds);
    (request.sink)(figure.unwrap_or_else(|why| Figure::missing(NAME, UNIT, GOAL, &why)));
}

fn measure(rounds: usize, seconds: u32) -> Result<Figure, String> {
    let mut progress = Progress::new(NAME);
    let folder = Folder::new();
    let socket = folder.0.join("weir.sock");
    let server = serve("weir", weir(&folder.0, &socket)?, &socket)?;
    let control = folder.0.join("control.sock");
    volume(&control, &["resize", "default", "256MiB", "--shrink"])?;
    volume(&control, &["create", "flooded", "--size", "512MiB"])?;
    let (neighbour, flooded) = (server.uri.clone(), server.uri.replace("/default?", "/flooded?"));
    fill(&neighbour, 256)?;
    let mut p99: [Vec<f64>; 3] = Default::default();
    for round in 0..rounds {
        let kinds = [Beside::Nothing, Beside::Limited, Beside::Flood];
        for turn in 0..kinds.len() {
            let kind = (turn + round) % kinds.len();
            progress.tell(&format!("round {} of {rounds}: {:?}", round + 1, kinds[kind]));
            let limit = if kinds[kind] == Beside::Limited { LIMIT.to_string() } else { "0".into() };
            volume(&control, &["limit", "flooded", "--iops", &limit])?;
            let flood = match kinds[kind] {
                Beside::Nothing => None,
                _ => Some(Flood::start(&flooded)?),
            };
            p99[kind].push(read_p99_us(&neighbour, seconds)?);
            drop(flood);
        }
    }
    drop::<Server>(server);
    // Round by round, so that what else the machine does meets both alike.
    let ratios = p99[1].iter().zip(&p99[0]).map(|(beside, alone)| (beside / alone - 1.0) * 100.0);
    let more = median(ratios.collect()).ok_or("nothing was measured")?;
    let of = |kind: usize| median(p99[kind].clone()).unwrap_or(0.0);
    let note = format!(
        "p99 of {PACE} reads a second: {:.0} us alone, {:.0} us beside a volume that is flooded and limited to {LIMIT} \
         requests a second, {:.0} us without a limit",
        of(0),
        of(1),
        of(2)
    );
    Ok(Figure::new(NAME, more, UNIT, GOAL).note(note))
}

/// `weir volume` of this very program.
fn volume(control: &Path, args: &[&str]) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
    let mut command = Command::new(program);
    command.arg("volume").args(args).arg("--control").arg(control).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("weir cannot be started: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(said()) }
}

fn fio(uri: &str, args: &[&str]) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=weir-bench", "--ioengine=nbd", "--norandommap"]);
    command.arg(format!("--uri={uri}")).args(args).stdin(Stdio::null());
    command
}

fn fill(uri: &str, mib: u64) -> Result<(), String> {
    fio_says(fio(uri, &["--rw=write", "--bs=1m", "--iodepth=4", &format!("--size={mib}m")]))
        .map(drop)
}

fn read_p99_us(uri: &str, seconds: u32) -> Result<f64, String> {
    let (pace, runtime) = (format!("--rate_iops={PACE}"), format!("--runtime={seconds}"));
    let job = ["--rw=randread", "--bs=4k", "--iodepth=1", "--size=256m", "--time_based"];
    let (value, said) = fio_says(fio(uri, &[&job[..], &[&pace, &runtime]].concat()))?;
    let ns = value["jobs"][0]["read"]["clat_ns"]["percentile"]["99.000000"].as_f64();
    ns.map(|ns| ns / 1000.0).ok_or_else(|| format!("fio tells no percentiles: {said}"))
}

/// A client that asks for as much as it gets, until it is dropped.
struct Flood(Child);

impl Flood {
    fn start(uri: &str) -> Result<Self, String> {
        let job = ["--rw=randrw", "--bs=4k", "--iodepth=64", "--size=512m", "--time_based"];
        let mut command = fio(uri, &[&job[..], &["--runtime=3600"]].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self).map_err(|error| format!("fio cannot be started: {error}"))
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // It is our child and not reaped, so the id is its own; fio ends its job by SIGTERM.
        // SAFETY: no memory is involved.
        unsafe { libc::kill(self.0.id() as libc::pid_t, libc::SIGTERM) };
        self.0.wait().ok();
    }
}
