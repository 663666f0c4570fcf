//! How quick a disk of a guest is beside QEMU's own: 4 KiB at random, 32 under way on one ring, on Weir with flash in memory and
//! on a file in memory that `qemu-storage-daemon` exports, in turns, by the same guest. The figure is the ratio of requests
//! a second, the median over the rounds.

use super::guest::Guest;
use super::{Cost, Folder, Running, VOLUME_MIB, cpu_seconds, failed, middle};
use crate::bench::{Figure, Goal, Request, median};
use crate::output::Progress;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const UNIT: &str = "x";
const GOAL: Goal = Goal::AtLeast(2.0);

/// How a figure is called, and whether it reads.
const JOBS: [(&str, bool); 2] = [("vhost-rand-read", true), ("vhost-rand-write", false)];

/// How long a server may take until its socket is there.
const PATIENCE: Duration = Duration::from_secs(20);

pub fn beside_qemu(request: &mut Request<'_>) {
    let wanted: Vec<_> = JOBS.into_iter().filter(|(name, _)| request.wants(name)).collect();
    let folder = Folder::new();
    let mut progress = Progress::new("vhost");
    progress.tell("filling the volumes");
    let mut servers = Server::weir(&folder.0).and_then(|weir| Ok((weir, Server::qemu(&folder.0)?)));
    for (name, reads) in wanted {
        let measured = match &mut servers {
            Ok(servers) => measure(servers, name, reads, request.quick, &mut progress),
            Err(why) => Err(why.clone()),
        };
        let figure = measured.unwrap_or_else(|why| Figure::missing(name, UNIT, GOAL, &why));
        (request.sink)(figure);
    }
}

fn measure(
    (weir, qemu): &mut (Server, Server),
    name: &str,
    reads: bool,
    quick: bool,
    progress: &mut Progress,
) -> Result<Figure, String> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..if quick { 3 } else { 9 } {
        progress.tell(&format!("{name}, round {}", round + 1));
        ours.push(weir.once(reads)?);
        theirs.push(qemu.once(reads)?);
    }
    let ratios = ours.iter().zip(&theirs).map(|(ours, theirs)| ours.rate / theirs.rate).collect();
    let ratio = median(ratios).ok_or("nothing was measured")?;
    let (ours, theirs) = (middle(&ours)?, middle(&theirs)?);
    let note = format!(
        "{:.0} against {:.0} requests/s; {:.1} against {:.1} us of processor a request",
        ours.rate, theirs.rate, ours.cpu_us, theirs.cpu_us
    );
    Ok(Figure::new(name, ratio, UNIT, GOAL).note(note))
}

/// A server whose disk is written, and its guest.
struct Server {
    process: Running,
    guest: Guest,
}

impl Server {
    fn weir(folder: &Path) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
        let mut command = Command::new(program);
        command.args(["serve", "--memory", "--profile", "instant", "--http", "none", "--data"]);
        command.arg(folder).arg("--capacity").arg(format!("{VOLUME_MIB}MiB"));
        command.arg("--vhost").arg(folder.join("weir.vhost"));
        Self::start(command, &folder.join("weir.vhost"))
    }

    fn qemu(folder: &Path) -> Result<Self, String> {
        let (file, socket) = (folder.join("disk"), folder.join("qemu.vhost"));
        let made = std::fs::File::create(&file).and_then(|made| made.set_len(VOLUME_MIB << 20));
        made.map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = Command::new("qemu-storage-daemon");
        let disk = format!("driver=file,node-name=disk,filename={}", file.display());
        let export = format!(
            "type=vhost-user-blk,id=disk,node-name=disk,writable=on,addr.type=unix,addr.path={}",
            socket.display()
        );
        command.arg("--blockdev").arg(disk).arg("--export").arg(export);
        Self::start(command, &socket)
    }

    /// Starts a server, waits for its socket, and writes the disk: the second time, no memory is new to it.
    fn start(mut command: Command, socket: &Path) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let shown = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| format!("{shown} cannot start: {error}"))?;
        let process = Running(child);
        let blocks = (VOLUME_MIB << 20) / super::pump::BLOCK as u64;
        let begun = Instant::now();
        let mut guest = loop {
            match Guest::connect(socket, blocks) {
                Ok(guest) => break guest,
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(format!("{shown}: {error}"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        guest.fill().and_then(|()| guest.fill()).map_err(failed)?;
        Ok(Self { process, guest })
    }

    fn once(&mut self, reads: bool) -> Result<Cost, String> {
        let process = self.process.0.id();
        let (before, begun) = (cpu_seconds(process)?, Instant::now());
        let operations = self.guest.run(reads, Duration::from_secs(1)).map_err(failed)? as f64;
        let rate = operations / begun.elapsed().as_secs_f64();
        Ok(Cost { rate, cpu_us: (cpu_seconds(process)? - before) * 1e6 / operations })
    }
}
