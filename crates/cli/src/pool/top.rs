//! `weir pool top`: the whole of a pool, every second: what `weir pool status` tells, and of parts whose sockets are
//! named what they do just now.

use super::{Part, failure};
use crate::output::table;
use crate::top::{Pace, grown};
use crate::{End, Failure};
use serde_json::{Value, json};
use serve::pool::config::PlaneConfig;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir pool top --config weir-pool/admin.toml weir-pool/node-*.sock weir-pool/client.sock\n  \
    weir pool top --config admin.toml --interval 5 --count 12\n  \
    weir pool top --config admin.toml --json | jq .status.controller.plan.peak\n\n\
    Weights and modes of nodes are the controller's and known everywhere; rates, latency and wear of a node are told \
    by its own socket, on the machine where it runs.")]
pub struct Args {
    /// Sockets of nodes and clients on this machine: `control` in their configs
    socket: Vec<PathBuf>,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    pace: Pace,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let plane = args.part.load()?.plane().map_err(failure)?;
    args.pace.watch(
        || look(&plane, &args.socket),
        |before, now, seconds| (as_json(before, now, seconds), as_text(before, now, seconds)),
    )?;
    Ok(End::Good)
}

/// What all say at one time.
struct Look {
    status: Value,
    /// By socket; why not, where nobody answers.
    parts: BTreeMap<PathBuf, Result<Value, String>>,
}

fn look(plane: &PlaneConfig, sockets: &[PathBuf]) -> Result<Look, Failure> {
    let status = serve::pool::status::status(plane).map_err(failure)?;
    let ask = |path: &PathBuf| {
        let answer = serve::pool::parts::ask(path, "status").map_err(|error| error.to_string());
        (path.clone(), answer)
    };
    Ok(Look { status, parts: sockets.iter().map(ask).collect() })
}

impl Look {
    fn part(&self, path: &PathBuf) -> Option<&Value> {
        self.parts.get(path)?.as_ref().ok()
    }

    /// The node that this socket is of.
    fn nodes(&self) -> impl Iterator<Item = (u64, &PathBuf)> {
        let of = |(path, part): (_, &Result<Value, String>)| {
            Some((part.as_ref().ok()?["node"].as_u64()?, path))
        };
        self.parts.iter().filter_map(of)
    }
}

fn as_json(before: &Look, now: &Look, seconds: f64) -> Value {
    let part = |(path, part): (&PathBuf, &Result<Value, String>)| {
        let told = match part {
            Err(error) => json!({ "error": error }),
            Ok(part) => {
                let of = |pointer| grown(before.part(path), part, pointer, seconds);
                let mut told = part.clone();
                if part.get("node").is_some() {
                    told["blocks_read_per_sec"] = json!(of("/blocks_read"));
                    told["blocks_written_per_sec"] = json!(of("/blocks_written"));
                } else {
                    told["asks_per_sec"] = json!(of("/counters/asks"));
                }
                told
            }
        };
        (path.display().to_string(), told)
    };
    let parts: serde_json::Map<String, Value> = now.parts.iter().map(part).collect();
    json!({ "status": now.status, "parts": parts })
}

fn as_text(before: &Look, now: &Look, seconds: f64) -> String {
    let mut status = now.status.clone();
    // The table below has all of it, and more.
    let nodes = std::mem::take(&mut status["nodes"]);
    let mut text = super::status::head_text(&status);
    text += &nodes_text(&nodes, before, now, seconds);
    text += &super::status::rest_text(&status);
    for (path, part) in &now.parts {
        match part {
            Ok(part) if part.get("node").is_none() => {
                let asks = grown(before.part(path), part, "/counters/asks", seconds);
                text += &format!("\n{}: {asks:.0} asks/s\n", path.display());
                text += &client_text(part);
            }
            Ok(_) => {}
            Err(error) => text += &format!("\n{error}\n"),
        }
    }
    text
}

fn nodes_text(nodes: &Value, before: &Look, now: &Look, seconds: f64) -> String {
    let sockets: BTreeMap<u64, &PathBuf> = now.nodes().collect();
    let heads = [
        "  node",
        "domain",
        "state",
        "mode",
        "reads %",
        "writes %",
        "blocks read/s",
        "written/s",
        "p99 us",
        "asks",
        "bands",
        "worn %",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let weights = now.status["weights"]["nodes"].as_array().cloned().unwrap_or_default();
    let sum = |key: &str| weights.iter().filter_map(|of| of[key].as_f64()).sum::<f64>();
    let (reads, writes) = (sum("read"), sum("write"));
    for node in nodes.as_array().into_iter().flatten() {
        let number = node["node"].as_u64().unwrap_or_default();
        let weight = weights.iter().find(|of| of["node"] == node["node"]);
        let share = |key: &str, all: f64| {
            let of = weight.and_then(|of| of[key].as_f64()).filter(|_| all > 0.0);
            of.map_or("-".to_owned(), |of| format!("{:.1}", of * 100.0 / all))
        };
        let mode = weight.and_then(|of| of["mode"].as_str()).unwrap_or("-");
        let word = |key: &str| node[key].as_str().unwrap_or_default().to_owned();
        let mut row = vec![
            format!("  {number}"),
            node["domain"].to_string(),
            word("state"),
            mode.to_owned(),
            share("read", reads),
            share("write", writes),
        ];
        let path = sockets.get(&number).copied();
        match path.and_then(|path| Some((path, now.part(path)?))) {
            None => {
                row.extend(["-"; 4].map(str::to_owned));
                // Of nodes elsewhere the controller knows this much.
                row.extend([super::records::room_text(node), "-".to_owned()]);
            }
            Some((path, part)) => {
                let rate = |pointer| grown(before.part(path), part, pointer, seconds);
                let number = |key: &str| part[key].as_f64().unwrap_or_default();
                row.extend([
                    format!("{:.0}", rate("/blocks_read")),
                    format!("{:.0}", rate("/blocks_written")),
                    format!("{:.0}", number("tail_us")),
                    format!("{:.0}", number("asks")),
                    format!("{} of {}", part["bands_used"], part["bands"]),
                    format!("{:.1}", number("worn_percent")),
                ]);
            }
        }
        rows.push(row);
    }
    table(&rows)
}

/// What the client of a volume does, and repairs.
pub fn client_text(part: &Value) -> String {
    let explains = part["explains"].as_str().unwrap_or_default();
    let mut text: String = explains
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| format!("  {line}\n"))
        .collect();
    let gone = part["nodes"].as_array().into_iter().flatten().filter(|of| of["up"] == false);
    for node in gone {
        let why = node["why"].as_str().unwrap_or_default();
        text += &format!("  node {} is not reached: {why}\n", node["node"]);
    }
    text + &repair_text(part)
}

/// What is copied, and how far scrub is: a line each.
pub fn repair_text(part: &Value) -> String {
    let repair = &part["repair"];
    if repair.is_null() {
        return "  the volume is not open yet\n".into();
    }
    let count = |key: &str| repair[key].as_u64().unwrap_or(0);
    let mut text = format!(
        "  bands: {} lack a copy, {} to be drained, {} to be spread ({} of all these find no room, or nothing to copy from); \
         {} being copied, {} copied",
        count("bands_lacking"),
        count("bands_draining"),
        count("bands_spreading"),
        count("bands_stuck"),
        count("copying"),
        count("copied")
    );
    if let Some(seconds) = repair["seconds_left"].as_f64() {
        text +=
            &format!("; {} left, about {seconds:.0} s", crate::size::bytes(count("bytes_left")));
    }
    let found = |key: &str| repair["scrub_found"][key].as_u64().unwrap_or(0);
    text += &format!(
        "\n  scrub ({}): {} pages compared, {} whole rounds",
        part["scrub"].as_str().unwrap_or_default(),
        count("pages_scrubbed"),
        count("scrub_rounds")
    );
    if count("scrub_rounds") > 0 {
        text += &format!(
            "; the last one found {} damaged copies and {} bands with unlike copies",
            found("copies_damaged"),
            found("bands_unlike")
        );
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(reads: u64, asks: u64) -> Look {
        let node = |number: u64| json!({ "node": number, "domain": 1, "state": "in", "address": "a:1", "profile": "own" });
        let weights = [(1, 300), (2, 100)]
            .map(|(node, read)| json!({ "node": node, "mode": "reads", "read": read, "write": 0 }));
        let status = json!({
            "pool": "ab", "plane": "1.2.3.4:5", "nodes": [node(1), node(2)], "volumes": [],
            "controller": null, "weights": { "nodes": weights },
        });
        let of_node = json!({
            "node": 1, "blocks_read": reads, "blocks_written": 0, "tail_us": 250.0, "asks": 3,
            "bands_used": 5, "bands": 9, "worn_percent": 12.5,
        });
        let of_client = json!({
            "generation": 2, "explains": "serves", "counters": { "asks": asks }, "scrub": "idle",
            "nodes": [{ "node": 2, "up": false, "why": "refused" }],
            "repair": { "bands_lacking": 4, "seconds_left": 7.0, "bytes_left": 1u64 << 20 },
        });
        let gone = Err("x.sock: nobody answers there".to_owned());
        let parts = [("n.sock", Ok(of_node)), ("c.sock", Ok(of_client)), ("x.sock", gone)];
        Look { status, parts: parts.map(|(path, part)| (path.into(), part)).into() }
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks_and_shares_are_of_all_nodes() {
        let (before, now) = (look(1000, 10), look(3000, 50));
        let text = as_text(&before, &now, 2.0);
        let row = text.lines().find(|line| line.starts_with("  1 ")).expect("node 1");
        let words: Vec<&str> = row.split_whitespace().collect();
        let wanted = "1 1 in reads 75.0 - 1000 0 250 3 5 of 9 12.5";
        assert_eq!(words.join(" "), wanted, "{text}");
        let row = text.lines().find(|line| line.starts_with("  2 ")).expect("node 2");
        assert!(row.contains("25.0") && row.trim_end().ends_with('-'), "{text}");
        for part in
            ["20 asks/s", "node 2 is not reached: refused", "4 lack", "about 7 s", "nobody answers"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = as_json(&before, &now, 2.0);
        assert_eq!(json["parts"]["n.sock"]["blocks_read_per_sec"], 1000.0);
        assert_eq!(json["parts"]["c.sock"]["asks_per_sec"], 20.0);
        assert!(json["parts"]["x.sock"]["error"].is_string());
    }
}
