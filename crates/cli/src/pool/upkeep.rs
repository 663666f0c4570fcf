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
    weir pool scrub client.sock now --wait   all copies are read and compared now; ends when all were, and what was\n                                           \
    found is repaired; with an error where it cannot be\n  \
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
/// What came to nothing is tried again every 5 seconds; what lacks a copy for so long without a new try that goes on
/// cannot be copied.
const STUCK: Duration = Duration::from_secs(20);
/// The walk over all bands that a change begins takes so long at least.
const BEGIN: Duration = Duration::from_secs(2);

pub fn scrub(args: &Scrub) -> Result<End, Failure> {
    if args.told.wait && !matches!(args.when, Some(When::Now)) {
        return Err("--wait: only a round that is begun now has an end: say `now`".into());
    }
    let before = ask(&args.socket, "status")?;
    let mut round = None;
    if let Some(when) = args.when.and_then(|when| when.to_possible_value()) {
        let told = ask(&args.socket, &format!("scrub {}", when.get_name()))?;
        round = told["round"].as_u64();
    }
    let Some(number) = round.filter(|_| args.told.wait) else {
        return args.told.tell("scrub", &args.socket, |_| true).map(|_| End::Good);
    };
    wait(args, &Round { number, before })
}

/// Waits until a round is whole and all is repaired that it found, and says what that was.
fn wait(args: &Scrub, round: &Round) -> Result<End, Failure> {
    let socket = &args.socket;
    let failed = |why: String| format!("{}: {why}", socket.display());
    let mut progress = Progress::new("scrub");
    let (mut last, mut since) = (None, Instant::now());
    let status = loop {
        let status = ask(socket, "status")?;
        let moves = ["copied", "copying", "bands_damaged", "bands_lacking", "scrub_rounds"]
            .map(|key| count(&status, key));
        if last != Some(moves) {
            (last, since) = (Some(moves), Instant::now());
        }
        match round.stand(&status, since.elapsed()) {
            Stand::Goes => {}
            Stand::Over => break status,
            Stand::Lost(why) => return Err(failed(why.into())),
        }
        progress.tell(&repair_lines(&status));
        std::thread::sleep(LOOK);
    };
    progress.clear();
    match args.told.json {
        true => print_json(&status),
        false => print(&format!("{}{}", round.text(&status), repair_text(&status))),
    }
    let troubles = round.troubles(&status);
    if troubles.is_empty() { Ok(End::Good) } else { Err(failed(troubles.join("; "))) }
}

/// A round of scrub that somebody waits for.
struct Round {
    number: u64,
    /// What the client said before it was told to begin it.
    before: Value,
}

/// How far it has come.
#[derive(Debug, PartialEq)]
enum Stand {
    Goes,
    /// It is whole, and all is repaired or cannot be.
    Over,
    /// It will not become whole.
    Lost(&'static str),
}

impl Round {
    /// By what the client says, of which nothing has changed for `still`.
    fn stand(&self, status: &Value, still: Duration) -> Stand {
        if status["generation"] != self.before["generation"] {
            return Stand::Lost("the volume was opened anew meanwhile: say it again");
        }
        if count(status, "scrub_rounds") < self.number {
            let goes = status["scrub"] == "now";
            let lost = Stand::Lost("scrub was told otherwise before the round was whole");
            return if goes { Stand::Goes } else { lost };
        }
        let is_stuck = count(status, "copying") == 0 && still >= STUCK;
        let is_mended = count(status, "scrub_rounds_mended") >= self.number;
        if is_mended || is_stuck { Stand::Over } else { Stand::Goes }
    }

    fn text(&self, status: &Value) -> String {
        let copied = count(status, "copied").saturating_sub(count(&self.before, "copied"));
        format!(
            "  found {} damaged copies and {} bands with unlike copies; {copied} bands were copied\n",
            found(status, "copies_damaged"),
            found(status, "bands_unlike"),
        )
    }

    /// What is not well, and what to do about it.
    fn troubles(&self, status: &Value) -> Vec<String> {
        let mut troubles = Vec::new();
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                troubles.push(format!("{count} {what}"));
            }
        };
        tell(
            found(status, "copies_unread"),
            "copies were not read, as their nodes are away or too busy: `weir pool ask` of this socket tells who is not \
             reached; say it again when they are back",
        );
        tell(
            found(status, "bands_unsound"),
            "bands have data that no node which is there has sound: bring back the nodes that are away and say it again; \
             what nobody has fails to be read until it is written anew",
        );
        tell(
            found(status, "bands_unlike"),
            "bands have copies that are sound and unlike: the log of the client names them and their nodes; give up the \
             node that is wrong (`weir pool replace NODE --by none`)",
        );
        if count(status, "scrub_rounds_mended") < self.number {
            tell(
                count(status, "bands_lacking").max(count(status, "bands_damaged")),
                "bands lack a copy that cannot be made: no sound one is there, or one that is unlike a damaged one (the log of the \
                 client tells), or too few nodes of different domains with \
                 room: bring nodes back, or let another one join, and say it again",
            );
        }
        troubles
    }
}

fn count(status: &Value, key: &str) -> u64 {
    status["repair"][key].as_u64().unwrap_or(0)
}

fn found(status: &Value, key: &str) -> u64 {
    status["repair"]["scrub_found"][key].as_u64().unwrap_or(0)
}

fn repair_lines(status: &Value) -> String {
    let lines: Vec<String> =
        repair_text(status).lines().map(|line| line.trim().to_owned()).collect();
    lines.join("; ")
}

pub fn rebalance(args: &Rebalance) -> Result<End, Failure> {
    ask(&args.socket, &format!("spread {}", args.within))?;
    let begun = Instant::now();
    let (mut last, mut since) = (None, begun);
    let is_done = |status: &Value| {
        let moves = ["copied", "copying", "bands_spreading"].map(|key| count(status, key));
        if last != Some(moves) {
            (last, since) = (Some(moves), Instant::now());
        }
        let is_over = count(status, "bands_spreading") == 0 || since.elapsed() >= STUCK;
        begun.elapsed() > BEGIN && count(status, "copying") == 0 && is_over
    };
    let status = args.told.tell("rebalance", &args.socket, is_done)?;
    match missed(&status, f64::from(args.within)).filter(|_| args.told.wait) {
        Some(why) => Err(format!("{}: {why}", args.socket.display())),
        None => Ok(End::Good),
    }
}

/// By how much nodes that are to be filled alike still differ, if that is more than was asked for, and why.
fn missed(status: &Value, within: f64) -> Option<String> {
    let apart = &status["repair"]["apart"];
    let percent = apart["percent"].as_f64()?;
    // As near as whole bands come.
    if percent <= within.max(apart["band_percent"].as_f64()?) + 0.01 {
        return None;
    }
    let node = |of: &Value| {
        format!("node {} has {} of {} bands", of["node"], of["bands_used"], of["bands"])
    };
    let lacking = count(status, "bands_lacking") + count(status, "bands_draining");
    let why = match (lacking, count(status, "bands_spreading")) {
        (1.., _) => {
            "bands that lack a copy, or leave a node that is drained, go first and wait for nodes with room"
        }
        (0, 1..) => "copies fail, or nodes take none now: the logs of the nodes tell",
        (0, 0) => {
            "no other band of this volume may move: they still take writes, or their other copy is in the domain \
                   of the node with room; bands of other volumes move by their own clients"
        }
    };
    let (fullest, emptiest) = (node(&apart["fullest"]), node(&apart["emptiest"]));
    Some(format!(
        "nodes still differ by {percent:.0} % of their room: {fullest}, {emptiest}. {why}"
    ))
}

impl Told {
    fn tell(
        &self,
        what: &str,
        socket: &Path,
        mut is_done: impl FnMut(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let mut status = ask(socket, "status")?;
        if status["generation"].is_null() && status["explains"].is_null() {
            return Err(format!(
                "{}: this is no client, which looks after its volume's copies: name the socket of one",
                socket.display()
            ));
        }
        if status["repair"].is_null() {
            return Err(format!("{}: the volume is not open yet: try again", socket.display()));
        }
        let mut progress = Progress::new(what);
        while self.wait && !is_done(&status) {
            progress.tell(&repair_lines(&status));
            std::thread::sleep(LOOK);
            status = ask(socket, "status")?;
        }
        progress.clear();
        match self.json {
            true => print_json(&status),
            false => print(&repair_text(&status)),
        }
        Ok(status)
    }
}

fn ask(socket: &Path, line: &str) -> Result<Value, Failure> {
    serve::pool::parts::ask(socket, line).map_err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOT_LONG: Duration = Duration::from_secs(1);

    fn status(rounds: u64, mended: u64) -> Value {
        let found = json!({
            "copies_damaged": 2, "bands_unsound": 0, "bands_unlike": 0, "copies_unread": 0,
        });
        json!({ "generation": 3, "scrub": "now", "repair": {
            "scrub_rounds": rounds, "scrub_rounds_mended": mended, "scrub_found": found, "copied": 7, "copying": 0,
            "bands_lacking": 0, "bands_damaged": 0,
        }})
    }

    fn round() -> Round {
        let mut before = status(4, 4);
        before["repair"]["copied"] = json!(5);
        Round { number: 5, before }
    }

    #[test]
    fn a_round_is_over_when_it_is_whole_and_what_it_found_is_repaired_or_cannot_be() {
        let stand = |status: &Value, still| round().stand(status, still);
        assert_eq!(stand(&status(4, 4), STUCK), Stand::Goes, "a slow one is not stuck");
        assert_eq!(stand(&status(5, 4), NOT_LONG), Stand::Goes, "nobody knows yet what lacks");
        assert_eq!(stand(&status(5, 5), NOT_LONG), Stand::Over);
        let mut stuck = status(5, 4);
        stuck["repair"]["copying"] = json!(1);
        assert_eq!(stand(&stuck, STUCK), Stand::Goes, "a slow copy is one");
        stuck["repair"]["copying"] = json!(0);
        assert_eq!(stand(&stuck, STUCK), Stand::Over);
    }

    #[test]
    fn a_round_that_will_not_become_whole_is_not_waited_for() {
        let mut told = status(4, 4);
        told["scrub"] = json!("never");
        assert!(matches!(round().stand(&told, NOT_LONG), Stand::Lost(_)));
        told["repair"]["scrub_rounds"] = json!(5);
        assert_eq!(round().stand(&told, NOT_LONG), Stand::Goes, "it is whole, and repair goes on");
        let mut anew = status(5, 5);
        anew["generation"] = json!(4);
        assert!(matches!(round().stand(&anew, NOT_LONG), Stand::Lost(_)));
    }

    #[test]
    fn bands_that_were_spread_less_than_was_asked_for_are_an_error_that_says_why() {
        let apart = |percent: f64, band_percent: f64| {
            let node =
                |node: u32, used: u32| json!({ "node": node, "bands_used": used, "bands": 60 });
            let mut status = status(5, 5);
            status["repair"]["apart"] = json!({
                "percent": percent, "band_percent": band_percent, "fullest": node(2, 60), "emptiest": node(4, 23),
            });
            status
        };
        assert_eq!(missed(&apart(1.9, 0.1), 2.0), None);
        assert_eq!(missed(&apart(3.3, 3.34), 2.0), None, "bands are whole");
        let mut far = apart(61.7, 3.3);
        let why = missed(&far, 2.0).expect("it is far");
        assert!(why.contains("62 %") && why.contains("node 4 has 23 of 60 bands"), "{why}");
        assert!(why.contains("in the domain"), "{why}");
        far["repair"]["bands_lacking"] = json!(1);
        assert!(missed(&far, 2.0).is_some_and(|why| why.contains("go first")));
    }

    #[test]
    fn what_was_found_is_told_and_what_cannot_be_repaired_is_an_error_with_a_way_out() {
        let well = status(5, 5);
        let text = "  found 2 damaged copies and 0 bands with unlike copies; 2 bands were copied\n";
        assert_eq!((round().text(&well).as_str(), round().troubles(&well)), (text, vec![]));
        for (key, part) in [
            ("copies_unread", "3 copies were not read"),
            ("bands_unsound", "3 bands have data that no node"),
            ("bands_unlike", "replace NODE"),
        ] {
            let mut bad = status(5, 5);
            bad["repair"]["scrub_found"][key] = json!(3);
            let troubles = round().troubles(&bad);
            assert!(troubles.len() == 1 && troubles[0].contains(part), "{troubles:?}");
        }
        let mut stuck = status(5, 4);
        stuck["repair"]["bands_lacking"] = json!(1);
        let troubles = round().troubles(&stuck);
        assert!(troubles.len() == 1 && troubles[0].contains("another one join"), "{troubles:?}");
    }
}
