//! The socket of a part of a pool for whoever runs it: one line is asked, one line of JSON is answered. Who may connect
//! may do all, so only the owner of the process may.

use crate::pool::PoolError;
use crate::pool::node::{NodeStatus, Notice as NodeNotice};
use crate::pool::volume::{Notice, VolumeStatus, When};
use crate::runtime::shard::Mailbox;
use crate::sockets::{self, Access, SocketFile, Speaks};
use flash::MILLISECOND;
use pool::repair::{Apart, Round};
use pool::words::NodeId;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Longest question.
const LINE_BYTES_MAX: u64 = 256;
/// How long a question, and the part's answer, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// No drive is made slower than that.
const SLOW_MS_MAX: u64 = 10_000;

/// How worn a drive passes for, in percent of what it is made for, to try what is made of that; the wear that it
/// really has counts if it is more.
#[derive(Debug, Default)]
pub struct Worn(AtomicU32);

impl Worn {
    /// As a share of what it is made for.
    pub fn share(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed)) / 100.0
    }
}

type Answers = Box<dyn Fn(&str) -> Value + Send>;

/// Answers for a node: `status`, `slow MS`, and `wear PERCENT`, which goes to `worn`.
///
/// # Errors
/// Why nobody can listen there.
pub fn node(
    path: &Path,
    mailbox: Arc<Mailbox<NodeNotice>>,
    worn: Arc<Worn>,
) -> Result<SocketFile, PoolError> {
    listen(path, Box::new(move |line| of_node(line, &mailbox, &worn)))
}

/// Answers for the client of a volume: `status`, `go-on`, `scrub now|idle|never` and `spread PERCENT`.
///
/// # Errors
/// Why nobody can listen there.
pub fn volume(path: &Path, mailbox: Arc<Mailbox<Notice>>) -> Result<SocketFile, PoolError> {
    listen(path, Box::new(move |line| of_volume(line, &mailbox)))
}

/// Asks the part whose socket this is.
///
/// # Errors
/// It is not there, or does not do it, and why.
pub fn ask(path: &Path, line: &str) -> Result<Value, PoolError> {
    let failed = |reason: String| PoolError::File { path: path.into(), reason };
    let answer = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE * 2))?;
        // In one piece: who does not understand the first one may have hung up before the second.
        stream.write_all(format!("{line}\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let text = answer().map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
            failed(format!("it hung up ({error}): it ended just now, or is no part of a pool"))
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => failed(format!(
            "it does not answer within {} s: it is stopped, or has no time: look at its log, or start it again",
            2 * PATIENCE.as_secs()
        )),
        _ => failed(format!("nobody answers there: {error}: is this part of the pool running?")),
    })?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|_| failed("what answers there is no part of a pool".into()))?;
    match value.get("error").and_then(Value::as_str) {
        Some(error) => Err(failed(error.to_owned())),
        None => Ok(value),
    }
}

fn listen(path: &Path, answers: Answers) -> Result<SocketFile, PoolError> {
    let failed = |reason| PoolError::File { path: path.into(), reason };
    let asked = Speaks::WhenAsked("status\n");
    let (listener, file) = sockets::listen_unix(path, Access::OWNER, asked).map_err(failed)?;
    let listener = UnixListener::from(listener);
    crate::pool::doors::thread("handle", move || {
        for stream in listener.incoming().flatten() {
            // Who is gone meanwhile needs no answer.
            serve(&stream, &answers).ok();
        }
    })?;
    Ok(file)
}

fn serve(mut stream: &UnixStream, answers: &Answers) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    writeln!(stream, "{}", answers(line.trim()))
}

fn of_node(line: &str, mailbox: &Mailbox<NodeNotice>, worn: &Arc<Worn>) -> Value {
    if line == "status" {
        return asked(|answer| {
            let worn = Arc::clone(worn);
            let told = move |status| answer(node_json(&status, &worn));
            mailbox.push(NodeNotice::Status(Box::new(told)));
        });
    }
    match line.split_once(' ') {
        Some(("slow", ms)) => match ms.parse::<u64>() {
            Ok(ms @ 0..=SLOW_MS_MAX) => {
                mailbox.push(NodeNotice::Slow(ms * MILLISECOND));
                json!({ "slow_ms": ms })
            }
            _ => json!({ "error": format!("slow: 0 to {SLOW_MS_MAX} milliseconds") }),
        },
        Some(("wear", percent)) => match percent.parse::<u32>() {
            Ok(percent @ 0..=100) => {
                worn.0.store(percent, Ordering::Relaxed);
                json!({ "worn_percent": percent })
            }
            _ => json!({ "error": "wear: 0 to 100 percent of what the drive is made for" }),
        },
        _ => json!({ "error": "a node is asked for `status`, `slow MS` or `wear PERCENT`" }),
    }
}

fn of_volume(line: &str, mailbox: &Mailbox<Notice>) -> Value {
    match line {
        "status" => asked(|answer| {
            mailbox.push(Notice::Status(Box::new(move |status| answer(volume_json(&status)))));
        }),
        "go-on" => {
            mailbox.push(Notice::GoOn);
            json!({ "go_on": true })
        }
        _ => match line.split_once(' ') {
            Some(("scrub", when)) => scrub(when, mailbox),
            Some(("spread", percent)) => spread(percent, mailbox),
            _ => json!({
                "error": "the client of a volume is asked for `status`, `go-on`, `scrub now|idle|never`, or \
                          `spread PERCENT`"
            }),
        },
    }
}

fn scrub(when: &str, mailbox: &Mailbox<Notice>) -> Value {
    let all = [When::Now, When::Idle, When::Never];
    match all.into_iter().find(|of| of.name() == when) {
        Some(of) => {
            let name = of.name();
            asked(|answer| {
                let told = move |round: Result<Option<u64>, &str>| match round {
                    Ok(None) => answer(json!({ "scrub": name })),
                    Ok(Some(round)) => answer(json!({ "scrub": name, "round": round })),
                    Err(why) => answer(json!({ "error": why })),
                };
                mailbox.push(Notice::Scrub(of, Box::new(told)));
            })
        }
        None => json!({ "error": "scrub: now, idle or never" }),
    }
}

fn spread(percent: &str, mailbox: &Mailbox<Notice>) -> Value {
    match percent.parse::<u32>() {
        Ok(percent @ 1..=100) => {
            mailbox.push(Notice::Spread(f64::from(percent) / 100.0));
            json!({ "spread_percent": percent })
        }
        _ => json!({ "error": "spread: 1 to 100 percent of a node's room" }),
    }
}

fn asked(ask: impl FnOnce(Box<dyn FnOnce(Value) + Send>)) -> Value {
    let (send, answer) = mpsc::channel();
    ask(Box::new(move |value| drop(send.send(value))));
    let late = || json!({ "error": "it does not say how it does: is it stopping?" });
    answer.recv_timeout(PATIENCE).unwrap_or_else(|_| late())
}

fn node_json(status: &NodeStatus, worn: &Worn) -> Value {
    let (least, mean, most) = status.wear;
    let unreached = status.unreached.iter();
    json!({
        "node": status.facts.node.0,
        "durable": status.facts.durable,
        "bands": status.facts.bands,
        "bands_used": status.facts.bands_used,
        "failed": status.failed,
        "guests": status.guests,
        "asks": status.asks,
        "reads_per_s": status.load.reads_per_s,
        "writes_per_s": status.load.writes_per_s,
        "blocks_read": status.done.reads,
        "blocks_written": status.done.writes,
        "tail_us": status.tail_ns as f64 / 1e3,
        "erase_count": { "least": least, "mean": mean, "most": most },
        "endurance": status.endurance,
        "worn_percent": 100.0 * status.worn().max(worn.share()),
        "slow_ms": status.slow_ns / MILLISECOND,
        "unreached": unreached
            .map(|(node, why)| json!({ "node": node.0, "why": why }))
            .collect::<Vec<_>>(),
    })
}

/// What a round of scrub found.
fn round_json(round: Round) -> Value {
    json!({
        "copies_damaged": round.damaged,
        "bands_unsound": round.unsound,
        "bands_unlike": round.unlike,
        "copies_unread": round.unread,
    })
}

/// The fullest node and the emptiest.
fn apart_json(apart: &Apart) -> Value {
    let node = |(node, (bands_used, bands)): (NodeId, (u32, u32))| json!({ "node": node.0, "bands_used": bands_used, "bands": bands });
    json!({
        "percent": 100.0 * apart.share,
        "band_percent": 100.0 * apart.step,
        "fullest": node(apart.fullest),
        "emptiest": node(apart.emptiest),
    })
}

fn volume_json(status: &VolumeStatus) -> Value {
    let nodes = status.nodes.iter();
    let mut value = json!({
        "generation": status.generation.map(|generation| generation.0),
        "explains": status.explains,
        "records": status.records,
        "scrub": status.scrub.name(),
        "nodes": nodes
            .map(|(node, why)| json!({ "node": node.0, "up": why.is_none(), "why": why }))
            .collect::<Vec<_>>(),
    });
    if let Some(progress) = status.repair {
        value["repair"] = json!({
            "bands_lacking": progress.lacking,
            "bands_draining": progress.draining,
            "bands_spreading": progress.spreading,
            "bands_stuck": progress.stuck,
            "copying": progress.copying,
            "copied": progress.copied,
            "bytes_left": progress.bytes_left,
            "seconds_left": progress.left_ns.map(|ns| ns as f64 / 1e9),
            "pages_scrubbed": progress.scrubbed.0,
            "scrub_rounds": progress.scrubbed.1,
            "scrub_found": round_json(progress.found.0),
            "scrub_finds": round_json(progress.found.1),
            "bands_damaged": progress.damaged,
            "scrub_rounds_mended": progress.mended_rounds,
            "apart": progress.apart.map(|apart| apart_json(&apart)),
        });
    }
    if let Some(counters) = status.counters {
        value["counters"] = json!({
            "asks": counters.asks,
            "programs": counters.programs,
            "programs_cut": counters.programs_cut,
            "appends_late": counters.late_programs,
            "flushes_late": counters.late_flushes,
            "appends_refused": counters.appends_refused,
            "busy": counters.busy,
            "reads_late": counters.late_reads,
            "slots_lost": counters.slots_lost,
            "reads_retried": counters.retries,
            "reads_hedged": counters.hedges,
        });
    }
    value
}
