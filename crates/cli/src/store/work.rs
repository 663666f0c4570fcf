//! `weir store status`, `scrub` and `compact`: what the whole store is asked.

use super::{At, told};
use crate::output::{Progress, print, print_json, table};
use crate::size::{bytes, count};
use crate::status::array;
use crate::{End, Failure};
use serde_json::Value;
use std::time::Duration;

/// How often a scrub is asked how far it is.
const ASK_EVERY: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store status\n  \
    weir store status --json | jq .slices\n\n\
    The flash below, and its WAF, `weir status --data weir-units` tells.")]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store scrub\n  \
    weir store scrub --json\n\n\
    Every SST is read and its checksums compared, then every file. It ends with status 1 if something is damaged. The \
    store is served meanwhile.")]
pub struct ScrubArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store compact\n  \
    weir store compact --slice 3\n\n\
    RocksDB does it by itself where it pays; this is for room that is needed now. It takes some raw blocks before it gives \
    any, and is refused while there are not so many. The store is served meanwhile.")]
pub struct CompactArgs {
    /// Only this slice, as `weir store status` numbers them [default: one after the other]
    #[arg(long, value_name = "N")]
    slice: Option<u32>,
    #[command(flatten)]
    at: At,
}

/// How it does.
pub fn status(args: &StatusArgs) -> Result<End, Failure> {
    let status = args.at.store()?.status().map_err(told)?;
    if status["mode"] != "store" {
        return Err("what answers there is no store: `weir status` tells of a device".into());
    }
    match args.json {
        true => print_json(&status),
        false => print(&as_text(&status)),
    }
    Ok(if status["stopped"].is_null() { End::Good } else { End::Bad })
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn as_text(status: &Value) -> String {
    let mut text = String::new();
    if let Some(why) = status["stopped"].as_str() {
        text += &format!("STOPPED: nothing can be written: {why}\n");
    }
    let (commits, batches) = (number(&status["commits"]), number(&status["batches"]));
    let each = if batches > 0 { commits as f64 / batches as f64 } else { 0.0 };
    text += &format!("keys        about {}\n", count(number(&status["keys"])));
    text += &format!(
        "SSTs        {} in {} raw blocks, and {} in memory; {} to compact\n",
        bytes(number(&status["table_bytes"])),
        count(number(&status["raw_blocks"])),
        bytes(number(&status["memory_bytes"])),
        bytes(number(&status["compaction_bytes"]))
    );
    text +=
        &format!("commits     {} in {} syncs, {each:.1} a sync\n", count(commits), count(batches));
    let (written, room) = (&status["written"], &status["room"]);
    text += &format!(
        "written     {} of keys and values since the start: {} of log, {} of SSTs in {} raw blocks\n",
        bytes(number(&written["bytes"])),
        bytes(number(&written["log_bytes"])),
        bytes(number(&written["table_bytes"])),
        count(number(&written["raw_blocks"])),
    );
    match room.is_null() {
        true => {
            let why = status["units_why"].as_str().unwrap_or("a reason is not told");
            text += &format!("room        NOT KNOWN: the units do not answer: {why}\n");
        }
        false => {
            let (free, kept) = (number(&room["raw_blocks_free"]), number(&room["raw_blocks_kept"]));
            let block = number(&room["raw_block_bytes"]);
            text += &format!(
                "room        {} raw blocks of {} are free ({}); {kept} are kept for compaction\n",
                count(free),
                bytes(block),
                bytes(free * block)
            );
        }
    }
    for what in array(&status["missing"]).iter().filter_map(Value::as_str) {
        text += &format!("MISSING     {what}\n");
    }
    if let Some(failed) = status["units_failed"].as_str() {
        text += &format!("FAILED      {failed}\n");
    }
    if let (Some(why), true) = (status["not_ready"].as_str(), status["stopped"].is_null()) {
        text += &format!("NOT READY   {why}\n");
    }
    let mut rows = vec![["slice", "keys", "SSTs", "bytes", "in memory"].map(String::from).to_vec()];
    for slice in array(&status["slices"]) {
        rows.push(vec![
            number(&slice["slice"]).to_string(),
            count(number(&slice["keys"])),
            number(&slice["tables"]).to_string(),
            bytes(number(&slice["table_bytes"])),
            bytes(number(&slice["memory_bytes"])),
        ]);
    }
    text + &table(&rows)
}

/// Reads everything.
pub fn scrub(args: &ScrubArgs) -> Result<End, Failure> {
    let store = args.at.store()?;
    store.scrub().map_err(told)?;
    let mut progress = Progress::new("scrub");
    let done = loop {
        let done = store.scrubbed().map_err(told)?;
        if done["running"] != true {
            break done;
        }
        progress.tell(&format!(
            "{} of {} SSTs, {} files",
            number(&done["tables"]),
            number(&done["tables_all"]),
            number(&done["files"])
        ));
        std::thread::sleep(ASK_EVERY);
    };
    progress.clear();
    let damaged = number(&done["damaged"]);
    let failed = done["failed"].as_str();
    if args.json {
        print_json(&done);
    } else {
        let damages = array(&done["damages"]);
        let lines =
            damages.iter().filter_map(Value::as_str).map(|line| format!("DAMAGED: {line}\n"));
        let mut text: String = lines.collect();
        if damaged > damages.len() as u64 {
            text += &format!("... and {} more\n", damaged - damages.len() as u64);
        }
        let verdict = match (damaged, failed) {
            (0, None) => "all sound".into(),
            (0, Some(_)) => "sound so far".into(),
            _ => format!("{damaged} DAMAGED"),
        };
        text += &format!(
            "{} SSTs ({}) and {} files ({}): {verdict}\n",
            number(&done["tables"]),
            bytes(number(&done["table_bytes"])),
            number(&done["files"]),
            bytes(number(&done["file_bytes"]))
        );
        print(&text);
    }
    if let Some(why) = failed {
        return Err(format!("the scrub ended before its end: {why}"));
    }
    Ok(if damaged == 0 { End::Good } else { End::Bad })
}

/// Writes it anew.
pub fn compact(args: &CompactArgs) -> Result<End, Failure> {
    let store = args.at.store()?;
    let compacted = match args.slice {
        Some(slice) => store.compact_slice(slice),
        None => store.compact(),
    };
    compacted.map_err(told)?;
    Ok(End::Good)
}
