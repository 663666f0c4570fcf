//! Weir's NBD server against nbdkit (memory) and qemu-nbd (a file in memory): the same fio job on
//! each in turn, in many short rounds whose order rotates. Each volume is written twice before: one
//! pass leaves the memory behind Weir's over-provisioning untouched, and for the kernel to clear a
//! page costs more than a write. The figure is the median over the rounds of Weir's rate by the
//! peer's in the same round, so that what else the machine does meets both alike; wall clock. The
//! note tells the processor time that each server took for a request, which depends less on who
//! else is there.

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
pub(super) const VOLUME_MIB: u64 = 1024;

/// A fio job.
pub(super) struct Job {
    pub name: &'static str,
    pub rw: &'static str,
    pub block: &'static str,
    pub depth: u32,
}

pub(super) const JOBS: [Job; 6] = [
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
        let rounds = rounds(job, &mut servers, request.quick, &mut progress);
        for (index, peer) in SERVERS.iter().enumerate().skip(1) {
            let name = figure_name(job, peer);
            if request.wants(&name) {
                let figure = compare(&rounds, index);
                let failed = |why: String| Figure::missing(&name, UNIT, GOAL, &why);
                let figure =
                    figure.map(|(ratio, note)| Figure::new(&name, ratio, UNIT, GOAL).note(note));
                (request.sink)(figure.unwrap_or_else(failed));
            }
        }
    }
}

fn figure_name(job: &Job, peer: &str) -> String {
    format!("{}-vs-{peer}", job.name)
}

/// What a server did in one round.
#[derive(Clone, Copy)]
pub(super) struct Round {
    /// Requests per second.
    rate: f64,
    /// Processor time of the server for a request.
    pub cpu_us: f64,
}

/// The rounds of each server, or why it has none.
type Rounds = Vec<Result<Vec<Round>, String>>;

fn rounds(
    job: &Job,
    servers: &mut [Result<Server, String>],
    quick: bool,
    progress: &mut Progress,
) -> Rounds {
    let (rounds, seconds) = if quick { (3, 1) } else { (15, 1) };
    let mut found: Rounds = servers
        .iter()
        .map(|server| server.as_ref().map(|_| Vec::new()).map_err(Clone::clone))
        .collect();
    for round in 0..rounds {
        for turn in 0..servers.len() {
            // Who comes first changes, so that nobody always has the warmer machine.
            let index = (turn + round) % servers.len();
            progress.tell(&format!("{} on {}, round {}", job.name, SERVERS[index], round + 1));
            let (Ok(server), Ok(list)) = (&servers[index], &mut found[index]) else { continue };
            match server.round(job, seconds) {
                Ok(round) => list.push(round),
                Err(why) => found[index] = Err(why),
            }
        }
    }
    found
}

/// Weir's median ratio to the peer of this index, and what is behind it.
fn compare(rounds: &Rounds, peer: usize) -> Result<(f64, String), String> {
    let (weir, theirs) = (rounds[0].as_ref()?, rounds[peer].as_ref()?);
    let ratios = weir.iter().zip(theirs).map(|(weir, theirs)| weir.rate / theirs.rate);
    let middle = |rounds: &[Round], of: fn(&Round) -> f64| {
        median(rounds.iter().map(of).collect()).unwrap_or(0.0)
    };
    let rate = |rounds| middle(rounds, |round| round.rate);
    let cpu = |rounds| middle(rounds, |round| round.cpu_us);
    let note = format!(
        "{:.0} against {:.0} requests/s; {:.1} against {:.1} us of processor a request",
        rate(weir),
        rate(theirs),
        cpu(weir),
        cpu(theirs)
    );
    let ratio = median(ratios.collect()).ok_or("nothing was measured")?;
    Ok((ratio, note))
}

/// Runs fio on a server and returns requests per second. Without `seconds` it goes over the volume
/// once.
pub(super) fn fio(uri: &str, job: &Job, seconds: Option<u32>) -> Result<f64, String> {
    fio_on(&["--ioengine=nbd".into(), format!("--uri={uri}")], job, VOLUME_MIB, seconds)
}

/// Runs fio on what `place` says.
pub(super) fn fio_on(
    place: &[String],
    job: &Job,
    size_mib: u64,
    seconds: Option<u32>,
) -> Result<f64, String> {
    let mut command = Command::new("fio");
    command.args(["--name=weir-bench", "--randrepeat=1", "--norandommap"]).args(place);
    command.arg(format!("--rw={}", job.rw)).arg(format!("--size={size_mib}m"));
    command.arg(format!("--bs={}", job.block)).arg(format!("--iodepth={}", job.depth));
    if let Some(seconds) = seconds {
        command.arg("--time_based").arg(format!("--runtime={seconds}"));
    }
    let uri = place.join(" ");
    let (value, said) = fio_says(command).map_err(|why| format!("{uri}: {why}"))?;
    let side = if job.rw.ends_with("read") { "read" } else { "write" };
    value["jobs"][0][side]["iops"]
        .as_f64()
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| format!("fio measured nothing on {uri}: {said}"))
}

/// Runs fio with these jobs: what it found, and what it said beside.
pub(super) fn fio_says(mut command: Command) -> Result<(Value, String), String> {
    command.arg("--output-format=json").stdin(Stdio::null());
    let output =
        command.output().map_err(|error| format!("fio cannot be started: {error}: install fio"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if !output.status.success() {
        return Err(format!("fio failed: {} {said}", text.trim()));
    }
    // fio may say something before the JSON begins.
    let json = text.find('{').map_or("", |at| &text[at..]);
    match serde_json::from_str(json) {
        Ok(value) => Ok((value, said)),
        Err(error) => Err(format!("fio's answer cannot be read: {error}: {said}")),
    }
}

/// A folder that goes away at the end.
pub(super) struct Folder(pub PathBuf);

impl Folder {
    /// In memory.
    pub fn new() -> Self {
        let shm = Path::new("/dev/shm");
        Self::at(if shm.is_dir() { shm.into() } else { std::env::temp_dir() })
    }

    /// In `base`.
    pub fn at(base: PathBuf) -> Self {
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

/// Processor time that a process has used, in seconds.
pub(super) fn cpu_seconds(process: u32) -> Result<f64, String> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    // Behind the name, which may hold anything but is in parentheses: field 3 and on.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|ticks| ticks.parse().ok()).collect();
    // SAFETY: no memory is involved.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    match ticks[..] {
        [user, system] => Ok((user + system) / ticks_per_second),
        _ => Err(format!("{path}: the processor times are not there")),
    }
}

/// A server that runs, until it is dropped.
pub(super) struct Server {
    pub child: Child,
    pub uri: String,
}

impl Server {
    pub(super) fn round(&self, job: &Job, seconds: u32) -> Result<Round, String> {
        let before = cpu_seconds(self.child.id())?;
        let rate = fio(&self.uri, job, Some(seconds))?;
        let used = cpu_seconds(self.child.id())? - before;
        Ok(Round { rate, cpu_us: used * 1e6 / (rate * f64::from(seconds)) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It is our child and not reaped, so the id is its own; killed, as nothing must remain.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Starts a server and writes its volume twice, so that every read finds data and no write finds
/// memory that was never used.
pub(super) fn start(name: &str, folder: &Path, progress: &mut Progress) -> Result<Server, String> {
    progress.tell(&format!("filling {name}"));
    let socket = folder.join(format!("{name}.sock"));
    let command = match name {
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
    let server = serve(name, command, &socket)?;
    let fill = Job { name: "fill", rw: "write", block: "1m", depth: 4 };
    for _ in 0..2 {
        fio(&server.uri, &fill, None)?;
    }
    Ok(server)
}

/// Runs the command of a server until it accepts clients.
pub(super) fn serve(name: &str, mut command: Command, socket: &Path) -> Result<Server, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command
        .spawn()
        .map_err(|error| format!("{name} cannot be started: {error}: install {name}"))?;
    let stdout = child.stdout.take();
    let export = if name == "weir" { "default" } else { "" };
    let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
    let mut server = Server { child, uri };
    if let (Some(stdout), true) = (stdout, name == "weir") {
        let ready = BufReader::new(stdout).lines().map_while(Result::ok);
        ready
            .take_while(|line| !line.starts_with("ready"))
            .for_each(|line| tracing::debug!("{line}"));
    }
    wait_for(name, socket, &mut server.child)?;
    Ok(server)
}

pub(super) fn weir(folder: &Path, socket: &Path) -> Result<Command, String> {
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
