//! `weir pool scrub` and `weir pool rebalance`: what the client of a volume does with its copies, as somebody says.

use super::failure;
use super::top::repair_text;
use crate::output::{Progress, print, print_json};
use crate::{End, Failure};
use clap::ValueEnum;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir pool scrub client.sock              how far it is\n  \
    weir pool scrub client.sock now --wait   all copies are read and compared now; ends when all were\n  \
    weir pool scrub client.sock never        not at all, until the client ends or is told otherwise\n\n\
    By itself it goes on while the host wants nothing, a round a day. `client.scrub_rate` is how fast.")]
pub struct Scrub {
    /// The socket of the client of the volume: `control` in its config
    socket: PathBuf,
    /// When copies are read and compared from now on
    when: Option<When>,
    #[command(flatten)]
    told: Told,
}

#[derive(Clone, Copy, ValueEnum)]
enum When {
    /// A round begins now, whatever the host does
    Now,
    /// While the host wants nothing
    Idle,
    /// Not at all
    Never,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir pool rebalance client.sock                    until nodes differ by 2 % of their room\n  \
    weir pool rebalance client.sock --within 10        as it is by itself\n\n\
    A volume spreads its bands by itself where nodes differ by more than `client.spread` (10 %), as when a new one has \
    joined. This asks for more, until the client ends. It is as fast as `client.repair_rate`.")]
pub struct Rebalance {
    /// The socket of the client of the volume: `control` in its config
    socket: PathBuf,
    /// Nodes may differ by so much of their room
    #[arg(long, value_name = "PERCENT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    within: u32,
    #[command(flatten)]
    told: Told,
}

/// What is shown.
#[derive(clap::Args)]
struct Told {
    /// Wait until it is done
    #[arg(long)]
    wait: bool,
    /// Print JSON: what `weir pool ask` prints
    #[arg(long)]
    json: bool,
}

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// The walk over all bands that a change begins takes so long at least.
const BEGIN: Duration = Duration::from_secs(2);

pub fn scrub(args: &Scrub) -> Result<End, Failure> {
    if args.told.wait && !matches!(args.when, Some(When::Now)) {
        return Err("--wait: only a round that is begun now has an end: say `now`".into());
    }
    let rounds = |status: &Value| status["repair"]["scrub_rounds"].as_u64();
    let before = rounds(&ask(&args.socket, "status")?);
    if let Some(when) = args.when.and_then(|when| when.to_possible_value()) {
        ask(&args.socket, &format!("scrub {}", when.get_name()))?;
    }
    let is_done = |status: &Value| rounds(status) > before;
    args.told.tell("scrub", &args.socket, is_done)
}

pub fn rebalance(args: &Rebalance) -> Result<End, Failure> {
    ask(&args.socket, &format!("spread {}", args.within))?;
    let begun = Instant::now();
    let is_done = |status: &Value| {
        let none = |key: &str| status["repair"][key] == 0;
        begun.elapsed() > BEGIN && none("bands_spreading") && none("copying")
    };
    args.told.tell("rebalance", &args.socket, is_done)
}

impl Told {
    fn tell(
        &self,
        what: &str,
        socket: &Path,
        is_done: impl Fn(&Value) -> bool,
    ) -> Result<End, Failure> {
        let mut status = ask(socket, "status")?;
        if status["repair"].is_null() {
            return Err(format!("{}: the volume is not open yet: try again", socket.display()));
        }
        let mut progress = Progress::new(what);
        while self.wait && !is_done(&status) {
            let lines: Vec<String> =
                repair_text(&status).lines().map(|line| line.trim().to_owned()).collect();
            progress.tell(&lines.join("; "));
            std::thread::sleep(LOOK);
            status = ask(socket, "status")?;
        }
        progress.clear();
        match self.json {
            true => print_json(&status),
            false => print(&repair_text(&status)),
        }
        Ok(End::Good)
    }
}

fn ask(socket: &Path, line: &str) -> Result<Value, Failure> {
    serve::pool::parts::ask(socket, line).map_err(failure)
}
