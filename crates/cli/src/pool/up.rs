//! `weir pool up`: a whole pool on one machine, each part a process of its own, for trying what it does. Everything is
//! in one folder; a second `up` there goes on with what the first one left.

pub mod made;
pub mod parts;

use super::failure;
use crate::output::{print, say};
use crate::{End, Failure};
use made::{Drives, Layout, Made};
use parts::Parts;
use pool::words::NodeId;
use serve::pool::config::PartConfig;
use serve::pool::plane::PlaneCalls;
use serve::pool::records;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir pool up                           4 machines with 2 drives each, a volume of 256 MiB, 2 copies\n  \
    weir pool up --dir /mnt/ssd/pool       the drives are plain files there, not emulated flash\n  \
    weir pool kill 3                       in another terminal: a drive's process dies, and is back in a while\n  \
    weir pool slow 2 50                    its answers come 50 ms later; 0 ends it\n  \
    weir pool wear 1 90                    its drive passes for nearly worn out\n  \
    weir pool status --config weir-pool/admin.toml\n\n\
    Ctrl-C ends all of it cleanly. `rm -r weir-pool` removes it.")]
pub struct Args {
    /// Where all of it goes
    #[arg(long, value_name = "DIR", default_value = "weir-pool")]
    data: PathBuf,
    /// Machines: what fails together
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=32))]
    nodes: u32,
    /// Drives of each, all unlike
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    ssds: u32,
    /// Size of the volume
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: String,
    /// Copies of each block
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    replicas: u8,
    /// Drives in memory that take no time, and forget all at the end
    #[arg(long, conflicts_with_all = ["dir", "disk"])]
    memory: bool,
    /// Drives are plain files in this folder, not emulated flash: as fast and as durable as what it lies on
    #[arg(long, value_name = "DIR", conflicts_with = "disk")]
    dir: Option<PathBuf>,
    /// Drives are these disks or files, one each, which must hold nothing
    #[arg(long, value_name = "PATH", num_args = 1..)]
    disk: Vec<PathBuf>,
    /// A drive whose process has ended is started again after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    restart_after: u64,
}

#[derive(clap::Args)]
pub struct Kill {
    /// The number of the node
    node: u32,
    /// The folder of `weir pool up`
    #[arg(long, value_name = "DIR", default_value = "weir-pool")]
    data: PathBuf,
}

#[derive(clap::Args)]
pub struct Slow {
    /// The number of the node
    node: u32,
    /// Milliseconds that its answers come later; 0: none
    ms: u64,
    /// The folder of `weir pool up`
    #[arg(long, value_name = "DIR", default_value = "weir-pool")]
    data: PathBuf,
}

#[derive(clap::Args)]
pub struct Wear {
    /// The number of the node
    node: u32,
    /// How much of what its drive is made for passes for used up; 0: what really is
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    percent: u32,
    /// The folder of `weir pool up`
    #[arg(long, value_name = "DIR", default_value = "weir-pool")]
    data: PathBuf,
}

/// A drive of `pool up` is one shard, which numbers its slots with 32 bits; those beside the blocks leave a little.
const DRIVE_BYTES_MAX: u64 = 16 << 40;

pub fn up(args: &Args) -> Result<End, Failure> {
    if args.nodes < u32::from(args.replicas) {
        return Err(format!(
            "--replicas {}: each copy lies on another machine, and there are {}: use --nodes {} or fewer copies",
            args.replicas, args.nodes, args.replicas
        ));
    }
    let bytes = super::records::bytes("--size", &args.size)?;
    let layout = Layout {
        nodes: args.nodes,
        ssds: args.ssds,
        bytes,
        replicas: args.replicas,
        drives: drives(args)?,
    };
    if layout.drive_bytes() >= DRIVE_BYTES_MAX {
        return Err(format!(
            "--size {}: each of {} drives would have {}, and fewer than {} is what one can have: take a smaller \
             volume or more drives",
            args.size,
            args.nodes * args.ssds,
            crate::size::bytes(layout.drive_bytes()),
            crate::size::bytes(DRIVE_BYTES_MAX)
        ));
    }
    let made = Made::make_or_open(&args.data, layout)?;
    Parts::heed_signals();
    let mut parts = Parts::new(&args.data, Duration::from_secs(args.restart_after))?;
    let begun = begin(&made, &mut parts)
        .and_then(|()| parts.start("client", &["client"], &made.config("client")));
    match begun {
        Ok(told) => say(&text(&made, args, &told)),
        // Whatever it came to then.
        Err(_) if Parts::is_told() => {}
        Err(why) => return Err(why),
    }
    parts.watch();
    Ok(End::Good)
}

/// Starts all parts but the client, and has the pool know them and the volume.
pub fn begin(made: &Made, parts: &mut Parts) -> Result<(), Failure> {
    parts.start("plane", &["plane"], &made.config("plane"))?;
    let admin = PartConfig::load(&made.config("admin")).map_err(failure)?;
    let mut calls = admin.plane().and_then(|plane| PlaneCalls::connect(&plane)).map_err(failure)?;
    let known = records::nodes(&mut calls).map_err(failure)?;
    for node in made.nodes() {
        parts.start(&format!("node-{}", node.number), &["node"], &made.config_of(node.number))?;
        // What somebody has made of it since is left as it is.
        let number = NodeId(node.number);
        if known.iter().all(|found| found.record.node != number) {
            records::join(&mut calls, number, node.joining()).map_err(failure)?;
        }
    }
    let volumes = records::volumes(&mut calls).map_err(failure)?;
    if volumes.iter().all(|found| found.record.name != made::VOLUME) {
        records::create(&mut calls, &made.wanted()).map_err(failure)?;
    }
    parts.start("controller", &["controller"], &made.config("controller"))?;
    Ok(())
}

/// What the drives are; files and disks from the first node's on.
fn drives(args: &Args) -> Result<Drives, Failure> {
    let count = args.nodes * args.ssds;
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    if args.memory {
        return Ok(Drives::Memory { large_bands: false });
    }
    if let Some(folder) = &args.dir {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("--dir {}: {error}", folder.display()))?;
        let folder = absolute(folder)?;
        let paths = (1..=count).map(|number| folder.join(format!("drive-{number}")));
        return Ok(Drives::At(paths.collect()));
    }
    if args.disk.is_empty() {
        return Ok(Drives::Emulated);
    }
    if args.disk.len() as u32 != count {
        return Err(format!(
            "--disk: {} drives for {} machines with {} each: name {count}, or say other --nodes and --ssds",
            args.disk.len(),
            args.nodes,
            args.ssds
        ));
    }
    let paths = args.disk.iter().map(|path| absolute(path));
    paths.collect::<Result<_, _>>().map(Drives::At)
}

fn text(made: &Made, args: &Args, told: &str) -> String {
    let data = args.data.display();
    let mut text = format!(
        "a pool of {} machines with {} drives each, all processes of this machine, in {data}\n",
        args.nodes, args.ssds
    );
    for node in made.nodes() {
        text.push_str(&format!(
            "  node {:<3} domain {:<3} {}\n",
            node.number, node.domain, node.what
        ));
    }
    text.push('\n');
    let more = format!(
        "\nand what it survives:\n  weir pool kill 1 --data {data}\n  weir pool slow 2 50 --data {data}\n  \
         weir pool status --config {data}/admin.toml\n  weir pool ask {data}/client.sock\n"
    );
    match told.rfind("ready ") {
        Some(at) => format!("{text}{}{more}\n{}", &told[..at], &told[at..]),
        None => text + told + &more,
    }
}

pub fn kill(args: &Kill) -> Result<End, Failure> {
    let name = format!("node-{}", args.node);
    let pid = parts::pid(&args.data, &name)?;
    // SAFETY: no memory is involved. The process was started by `weir pool up`.
    if unsafe { libc::kill(pid, libc::SIGKILL) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(format!("{name} (process {pid}) cannot be killed: {error}"));
    }
    print(&format!(
        "{name} (process {pid}) was killed; `weir pool up` starts it again in a while\n"
    ));
    Ok(End::Good)
}

pub fn slow(args: &Slow) -> Result<End, Failure> {
    tell(&args.data, args.node, &format!("slow {}", args.ms))?;
    print(&format!("answers of node {} come {} ms later from now on\n", args.node, args.ms));
    Ok(End::Good)
}

pub fn wear(args: &Wear) -> Result<End, Failure> {
    tell(&args.data, args.node, &format!("wear {}", args.percent))?;
    print(&format!(
        "the drive of node {} passes for worn by {} % from now on: so the controller is told\n",
        args.node, args.percent
    ));
    Ok(End::Good)
}

/// Tells a node something by its socket.
fn tell(data: &Path, node: u32, what: &str) -> Result<(), Failure> {
    let socket = data.join(format!("node-{node}.sock"));
    serve::pool::parts::ask(&socket, what).map(drop).map_err(failure)
}
