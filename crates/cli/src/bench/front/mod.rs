//! What a request costs the server by its front end: 4 KiB at random over the loopback, 32 under way on one connection,
//! by NVMe over TCP and by NBD in turns, from clients that do the same. The figure is the processor time of the server
//! for an operation, the median over the rounds, which depends less than a rate on what else the machine does; NBD's is
//! the goal beside it.

mod client;
mod guest;
mod host;
mod pump;
mod vhost;

pub use vhost::beside_qemu;

use super::nbd::{Folder, cpu_seconds};
use super::{Figure, Goal, Request, median};
use crate::output::Progress;
use ::client::Stream;
use client::NbdClient;
use host::Host;
use pump::{Pump, Wire};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const UNIT: &str = "us";
const VOLUME_MIB: u64 = 256;

/// How a figure is called, and whether it reads.
const JOBS: [(&str, bool); 2] = [("front-nvme-rand-read", true), ("front-nvme-rand-write", false)];

pub fn nvme_beside_nbd(request: &mut Request<'_>) {
    let wanted: Vec<_> = JOBS.into_iter().filter(|(name, _)| request.wants(name)).collect();
    let folder = Folder::new();
    let mut progress = Progress::new("front");
    let mut server = Server::start(&folder, &mut progress);
    for (name, reads) in wanted {
        let measured = match &mut server {
            Ok(server) => measure(server, name, reads, request.quick, &mut progress),
            Err(why) => Err(why.clone()),
        };
        let figure = measured.map(|(ours, theirs)| {
            let note = format!(
                "{:.0} requests/s; by NBD {:.1} us a request, {:.0} requests/s",
                ours.rate, theirs.cpu_us, theirs.rate
            );
            Figure::new(name, ours.cpu_us, UNIT, Goal::AtMost(theirs.cpu_us)).note(note)
        });
        let missing = |why: String| Figure::missing(name, UNIT, Goal::AtMost(0.0), &why);
        (request.sink)(figure.unwrap_or_else(missing));
    }
}

/// What a front end took.
struct Cost {
    rate: f64,
    cpu_us: f64,
}

/// NVMe's cost, and NBD's.
fn measure(
    server: &mut Server,
    name: &str,
    reads: bool,
    quick: bool,
    progress: &mut Progress,
) -> Result<(Cost, Cost), String> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let process = server.process.0.id();
    for round in 0..if quick { 3 } else { 9 } {
        progress.tell(&format!("{name}, round {}", round + 1));
        ours.push(once(&mut server.nvme, reads, process)?);
        theirs.push(once(&mut server.nbd, reads, process)?);
    }
    Ok((middle(&ours)?, middle(&theirs)?))
}

fn once<S: Read + Write, W: Wire>(
    pump: &mut Pump<S, W>,
    reads: bool,
    process: u32,
) -> Result<Cost, String> {
    let (before, begun) = (cpu_seconds(process)?, Instant::now());
    let operations = pump.run(reads, Duration::from_secs(1)).map_err(failed)? as f64;
    let rate = operations / begun.elapsed().as_secs_f64();
    Ok(Cost { rate, cpu_us: (cpu_seconds(process)? - before) * 1e6 / operations })
}

fn middle(costs: &[Cost]) -> Result<Cost, String> {
    let of = |of: fn(&Cost) -> f64| median(costs.iter().map(of).collect());
    let both = of(|cost| cost.rate).zip(of(|cost| cost.cpu_us));
    let (rate, cpu_us) = both.ok_or("nothing was measured")?;
    Ok(Cost { rate, cpu_us })
}

fn failed(error: std::io::Error) -> String {
    format!("a front end: {error}")
}

/// A process that ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It is our child and not reaped, so the id is its own.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A server whose volume is written, and who asks for its blocks.
struct Server {
    process: Running,
    nvme: Pump<TcpStream, Host>,
    nbd: Pump<Stream, NbdClient>,
}

impl Server {
    fn start(folder: &Folder, progress: &mut Progress) -> Result<Self, String> {
        progress.tell("filling the volume");
        let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
        let mut command = Command::new(program);
        command.args(["serve", "--memory", "--profile", "instant", "--http", "none"]);
        command.args(["--tcp", "127.0.0.1:0", "--nvme", "127.0.0.1:0", "--nvme-discovery", "none"]);
        command.arg("--data").arg(&folder.0);
        command.arg("--capacity").arg(format!("{VOLUME_MIB}MiB"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("weir cannot start: {error}"))?;
        let mut process = Running(child);
        let mut told = Vec::new();
        if let Some(stdout) = process.0.stdout.take() {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            told.extend(lines.take_while(|line| !line.starts_with("ready")));
        }
        let line = |first: &str| told.iter().find(|line| line.starts_with(first));
        let word = |first: &str, number: usize| line(first)?.split_whitespace().nth(number);
        let (Some(nbd), Some(address), Some(nqn)) =
            (word("nbd", 1), word("nvme", 1), word("nvme", 2))
        else {
            return Err(format!("weir did not say where it listens: {}", told.join(" ")));
        };
        let blocks = (VOLUME_MIB << 20) / pump::BLOCK as u64;
        let (queue, host) = Host::connect(address, nqn).map_err(failed)?;
        let (stream, client) = NbdClient::connect(nbd).map_err(failed)?;
        let mut nvme = Pump::new(queue, host, blocks);
        // The second time, no memory is new to the server.
        nvme.fill().map_err(failed)?;
        nvme.fill().map_err(failed)?;
        Ok(Self { process, nvme, nbd: Pump::new(stream, client, blocks) })
    }
}
