//! Weir's NBD server against nbdkit (memory) and qemu-nbd (a file in memory): the same fio job on
//! each in turn, in an order that rotates, each volume written once before. The figure is Weir's
//! median rate by the peer's; wall clock.

use super::{Figure, Goal, Request, median};
use crate::output::Progress;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const GOAL: Goal = Goal::AtLeast(1.0);
const UNIT: &str = "x";
const VOLUME_MIB: u64 = 1024;

/// A fio job.
struct Job {
    name: &'static str,
    rw: &'static str,
    block: &'static str,
    depth: u32,
}

const JOBS: [Job; 6] = [
    Job { name: "nbd-rand-read-qd1", rw: "randread", block: "4k", depth: 1 },
    Job { name: "nbd-rand-read-qd32", rw: "randread", block: "4k", depth: 32 },
    Job { name: "nbd-rand-write-qd1", rw: "randwrite", block: "4k", depth: 1 },
    Job { name: "nbd-rand-write-qd32", rw: "randwrite", block: "4k", depth: 32 },
    Job { name: "nbd-seq-read", rw: "read", block: "128k", depth: 16 },
    Job { name: "nbd-seq-write", rw: "write", block: "128k", depth: 16 },
];

/// Weir comes first.
const SERVERS: [&str; 3] = ["weir", "nbdkit", "qemu-nbd"];

pub fn against_peers(request: &mut Request<'_>) {
    let jobs: Vec<&Job> = JOBS
        .iter()
        .filter(|job| SERVERS[1..].iter().any(|peer| request.wants(&figure_name(job, peer))))
        .collect();
    let folder = Folder::new();
    let mut progress = Progress::new("nbd");
    let mut servers: Vec<Result<Server, String>> =
        SERVERS.iter().map(|name| start(name, &folder.0, &mut progress)).collect();
    for job in jobs {
        let rates = rates(job, &mut servers, request.quick, &mut progress);
        for (index, peer) in SERVERS.iter().enumerate().skip(1) {
            let name = figure_name(job, peer);
            if !request.wants(&name) {
                continue;
            }
            let figure = match (&rates[0], &rates[index]) {
                (Ok(weir), Ok(theirs)) => Figure::new(name, weir / theirs, UNIT, GOAL)
                    .note(format!("{weir:.0} against {theirs:.0} requests/s")),
                (Err(why), _) | (_, Err(why)) => Figure::missing(name, UNIT, GOAL, why),
            };
            (request.sink)(figure);
        }
    }
}

fn figure_name(job: &Job, peer: &str) -> String {
    format!("{}-vs-{peer}", job.name)
}

/// Each server's median rate in requests per second.
fn rates(
    job: &Job,
    servers: &mut [Result<Server, String>],
    quick: bool,
    progress: &mut Progress,
) -> Vec<Result<f64, String>> {
    let (rounds, seconds) = if quick { (1, 2) } else { (3, 5) };
    let mut found: Vec<Result<Vec<f64>, String>> = servers
        .iter()
        .map(|server| server.as_ref().map(|_| Vec::new()).map_err(Clone::clone))
        .collect();
    for round in 0..rounds {
        for turn in 0..servers.len() {
            // Who comes first changes, so that nobody always has the warmer machine.
            let index = (turn + round) % servers.len();
            progress.tell(&format!("{} on {}", job.name, SERVERS[index]));
            let (Ok(server), Ok(rates)) = (&servers[index], &mut found[index]) else { continue };
            match fio(&server.uri, job, Some(seconds)) {
                Ok(rate) => rates.push(rate),
                Err(why) => found[index] = Err(why),
            }
        }
    }
    let middle = |rates: Vec<f64>| median(rates).ok_or_else(|| "nothing was measured".into());
    found.into_iter().map(|rates| rates.and_then(middle)).collect()
}

/// Runs fio and returns requests per second. Without `seconds` it goes over the volume once.
fn fio(uri: &str, job: &Job, seconds: Option<u32>) -> Result<f64, String> {
    let mut command = Command::new("fio");
    command.args(["--name=weir-bench", "--ioengine=nbd", "--randrepeat=1", "--norandommap"]);
    command.arg(format!("--uri={uri}")).arg(format!("--rw={}", job.rw));
    command.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    command.arg(format!("--size={VOLUME_MIB}m"));
    if let Some(seconds) = seconds {
        command.arg("--time_based").arg(format!("--runtime={seconds}"));
    }
    command.args(["--output-format=json"]).stdin(Stdio::null());
    let output =
        command.output().map_err(|error| format!("fio cannot be started: {error}: install fio"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        return Err(format!("fio failed on {uri}: {} {}", text.trim(), said()));
    }
    // fio may say something before the JSON begins.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let value: Value = serde_json::from_str(json)
        .map_err(|error| format!("fio's answer cannot be read: {error}: {}", said()))?;
    let side = if job.rw.ends_with("read") { "read" } else { "write" };
    value["jobs"][0][side]["iops"]
        .as_f64()
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| format!("fio measured nothing on {uri}: {}", said()))
}

/// A folder in memory that goes away at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.into() } else { std::env::temp_dir() };
        let path = base.join(format!("weir-bench-{}", std::process::id()));
        // If it cannot be made, each server says so.
        fs::create_dir_all(&path).ok();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A server that runs, until it is dropped.
struct Server {
    child: Child,
    uri: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is our child and not reaped, so the id is its own; killed, as nothing must remain.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Starts a server and writes its volume once, so that every read finds data.
fn start(name: &str, folder: &Path, progress: &mut Progress) -> Result<Server, String> {
    progress.tell(&format!("filling {name}"));
    let socket = folder.join(format!("{name}.sock"));
    let socket_text = socket.display();
    let mut command = match name {
        "weir" => weir(folder, &socket)?,
        "nbdkit" => {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
            command.arg("memory").arg(format!("{VOLUME_MIB}M"));
            command
        }
        _ => {
            let image = folder.join("image");
            let made = File::create(&image).and_then(|file| file.set_len(VOLUME_MIB << 20));
            made.map_err(|error| format!("{}: cannot be made: {error}", image.display()))?;
            let mut command = Command::new("qemu-nbd");
            command.args(["--format=raw", "--persistent", "--shared=8", "--socket"]);
            command.arg(&socket).arg(&image);
            command
        }
    };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{name} cannot be started: {error}: install {name}"))?;
    let stdout = child.stdout.take();
    let export = if name == "weir" { "default" } else { "" };
    let uri = format!("nbd+unix:///{export}?socket={socket_text}");
    let mut server = Server { child, uri };
    if let (Some(stdout), true) = (stdout, name == "weir") {
        let ready = BufReader::new(stdout).lines().map_while(Result::ok);
        ready
            .take_while(|line| !line.starts_with("ready"))
            .for_each(|line| tracing::debug!("{line}"));
    }
    wait_for(name, &socket, &mut server.child)?;
    let fill = Job { name: "fill", rw: "write", block: "1m", depth: 4 };
    fio(&server.uri, &fill, None)?;
    Ok(server)
}

fn weir(folder: &Path, socket: &Path) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
    let mut command = Command::new(program);
    command.args(["serve", "--memory", "--profile", "instant", "--http", "none", "--data"]);
    command.arg(folder).arg("--socket").arg(socket).args(["--capacity", "1GiB"]);
    Ok(command)
}

/// Until the server accepts clients.
fn wait_for(name: &str, socket: &Path, child: &mut Child) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        let ended = child.try_wait().ok().flatten();
        if let Some(status) = ended {
            return Err(format!("{name} ended at once ({status})"));
        }
        if Instant::now() > deadline {
            return Err(format!("{name} does not listen at {}", socket.display()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
