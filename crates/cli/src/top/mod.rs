//! `weir top`: a running server, every second: what it moves, what GC and destage do, and which units
//! are busy. On a terminal a screen with keys ([`screen`]); elsewhere, and where so many looks or JSON were asked for, text.
//! All from the status that `weir status` shows, by what its counters grew.

mod board;
mod screen;
mod view;

#[cfg(test)]
mod screen_tests;

use crate::output::{table, try_print};
use crate::size::bytes;
use crate::status::{PlaceArgs, array, ask_status, fast_text, is_raw};
use crate::{End, Failure};
use client::Place;
use flash::BLOCK_BYTES;
use serde_json::{Value, json};
use std::io::{ErrorKind, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Units that are shown, the busiest first.
const UNITS_SHOWN: usize = 16;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir top                               the server of ./weir-data; on a terminal `?` tells the keys, `q` ends it\n  \
    weir top --interval 5 --count 12       twelve times, every five seconds\n  \
    weir top --json | jq .write_bytes_per_sec")]
pub struct Args {
    /// The folder of the device that is served
    #[arg(long, value_name = "DIR", default_value = crate::device::DATA_DEFAULT)]
    data: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    pace: Pace,
}

/// How often something is shown.
#[derive(clap::Args)]
pub struct Pace {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    interval: f64,
    /// End after so many looks; 0 goes on until it is interrupted
    #[arg(long, value_name = "N", default_value_t = 0)]
    count: u64,
    /// Print one line of JSON for each look
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let place = args.place.find(&args.data)?;
    args.pace.check()?;
    if args.pace.count == 0 && !args.pace.json && std::io::stdout().is_terminal() {
        return screen::run(&place, Duration::from_secs_f64(args.pace.interval));
    }
    args.pace.watch(
        || ask_status(&place),
        |before, now, seconds| (rates(before, now, seconds), as_text(before, now, seconds, &place)),
    )?;
    Ok(End::Good)
}

impl Pace {
    fn check(&self) -> Result<(), Failure> {
        let bounds = 0.05..=3600.0;
        let refusal = || format!("--interval {}: must be 0.05 to 3600 seconds", self.interval);
        bounds.contains(&self.interval).then_some(()).ok_or_else(refusal)
    }

    /// Shows what `tell` makes of each look, the one before it, and the seconds between them: as JSON and as text.
    pub fn watch<T>(
        &self,
        mut look: impl FnMut() -> Result<T, Failure>,
        tell: impl Fn(&T, &T, f64) -> (Value, String),
    ) -> Result<(), Failure> {
        self.check()?;
        let dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let clear = if std::io::stdout().is_terminal() && !dumb { "\x1b[H\x1b[2J" } else { "" };
        let mut before = (Instant::now(), look()?);
        let mut looks = 0;
        while self.count == 0 || looks < self.count {
            std::thread::sleep(Duration::from_secs_f64(self.interval));
            let now = (Instant::now(), look()?);
            let (value, text) = tell(&before.1, &now.1, (now.0 - before.0).as_secs_f64());
            let text = if self.json { format!("{value}\n") } else { format!("{clear}{text}") };
            match try_print(&text) {
                // Nobody reads it any more.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                told => told.map_err(|error| format!("standard output: {error}"))?,
            }
            (before, looks) = (now, looks + 1);
        }
        Ok(())
    }
}

/// What a counter grew by a second. A process that was started anew counts from 0; of one that was not there before
/// nothing is known.
pub fn grown(before: Option<&Value>, now: &Value, pointer: &str, seconds: f64) -> f64 {
    let count = |of: &Value| of.pointer(pointer).and_then(Value::as_u64);
    let counts = before.and_then(count).zip(count(now));
    counts.map_or(0.0, |(before, now)| now.saturating_sub(before) as f64 / seconds)
}

fn rates(before: &Value, now: &Value, seconds: f64) -> Value {
    let per_sec = |name: &str| grown(Some(before), now, &format!("/counters/{name}"), seconds);
    let bytes_of = |name: &str| (per_sec(name) * BLOCK_BYTES as f64) as u64;
    let written = per_sec("host_blocks_written");
    let waf = (written > 0.0).then(|| per_sec("slots_programmed") / written);
    let asked = |op: &str| {
        let count = format!("/latency/requests/{op}/count");
        // An operation that came for the first time was not there before.
        let first = json!({ "latency": { "requests": { op: { "count": 0 } } } });
        let before = if before.pointer(&count).is_some() { before } else { &first };
        grown(Some(before), now, &count, seconds)
    };
    json!({
        "reads_per_sec": asked("read"),
        "writes_per_sec": asked("write"),
        "flushes_per_sec": asked("flush"),
        "read_bytes_per_sec": bytes_of("host_blocks_read"),
        "write_bytes_per_sec": bytes_of("host_blocks_written"),
        "programmed_bytes_per_sec": bytes_of("slots_programmed"),
        "relocated_bytes_per_sec": bytes_of("slots_relocated"),
        "destaged_bytes_per_sec": bytes_of("slots_destaged"),
        "erases_per_sec": per_sec("erases"),
        "waf": waf,
        "fast": now["fast"],
    })
}

fn as_text(before: &Value, now: &Value, seconds: f64, place: &Place) -> String {
    let value = rates(before, now, seconds);
    let rate = |key: &str| format!("{}/s", bytes(value[key].as_u64().unwrap_or(0)));
    let asked = |key: &str| format!("{:.0}/s", value[key].as_f64().unwrap_or(0.0));
    let phases: Vec<&str> =
        array(&now["shards"]).iter().filter_map(|shard| shard["phase"].as_str()).collect();
    let waf = value["waf"].as_f64().map_or("no writes".into(), |waf| format!("{waf:.3}"));
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    let mut text = format!("Weir at {place}: {}\n", phases.join(", "));
    text.push_str(&table(&[
        row("reads", asked("reads_per_sec")),
        row("writes", asked("writes_per_sec")),
        row("flushes", asked("flushes_per_sec")),
        row("read", rate("read_bytes_per_sec")),
        row("written", rate("write_bytes_per_sec")),
        row("programmed", rate("programmed_bytes_per_sec")),
        row("erases", format!("{:.1}/s", value["erases_per_sec"].as_f64().unwrap_or(0.0))),
    ]));
    // Raw units move nothing by themselves.
    if !is_raw(now) {
        let relocated = rate("relocated_bytes_per_sec");
        text.push_str(&table(&[row("relocated by GC", relocated), row("WAF now", waf)]));
    }
    text.push_str(&crate::latency::text(now));
    text.push_str(&fast_text(&now["fast"]));
    text.push_str(&units(before, now, seconds));
    text
}

/// The busiest units.
fn units(before: &Value, now: &Value, seconds: f64) -> String {
    let mut list = Vec::new();
    for (shard, state) in array(&now["shards"]).iter().enumerate() {
        for (unit, state) in array(&state["units"]).iter().enumerate() {
            let was = before["shards"][shard]["units"][unit]["busy_ns"].as_u64().unwrap_or(0);
            let busy = state["busy_ns"].as_u64().unwrap_or(0).saturating_sub(was);
            list.push((busy as f64 / 1e9 / seconds, shard, unit, state));
        }
    }
    let all = list.len();
    // Of equally busy ones the first comes first.
    list.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let heads = ["  unit", "busy", "queued", "last reason"].map(str::to_owned).to_vec();
    let rows = list.iter().take(UNITS_SHOWN).map(|(busy, shard, unit, state)| {
        let count = |key: &str| state[key].as_u64().unwrap_or(0);
        let queued = count("reads_queued") + count("appends_queued") + count("writes_queued");
        let gone = if state["gone"] == true { " GONE" } else { "" };
        vec![
            format!("  {shard}.{unit}{gone}"),
            format!("{:.0} %", busy.min(1.0) * 100.0),
            queued.to_string(),
            state["last_reason"].as_str().unwrap_or_default().to_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    let rest = all.saturating_sub(UNITS_SHOWN);
    let more = if rest > 0 { format!("  and {rest} units that do less\n") } else { String::new() };
    format!("{}{more}", table(&rows))
}

#[cfg(test)]
mod tests {
    use super::rates;
    use serde_json::json;

    #[test]
    fn rates_are_what_the_counters_grew_by_a_second() {
        let status = |written: u64, programmed: u64| json!({ "counters": { "host_blocks_written": written, "slots_programmed": programmed } });
        let value = rates(&status(100, 200), &status(1124, 3272), 2.0);
        assert_eq!(value["write_bytes_per_sec"], 512 * 4096);
        assert_eq!(value["waf"], 3.0);
        assert_eq!(value["read_bytes_per_sec"], 0);
        let idle = rates(&status(1, 1), &status(1, 1), 1.0);
        assert!(idle["waf"].is_null(), "{idle}");
        let asked = |n: u64| json!({ "latency": { "requests": { "read": { "count": n } } } });
        assert_eq!(rates(&asked(10), &asked(30), 2.0)["reads_per_sec"], 10.0);
        assert_eq!(rates(&json!({}), &asked(30), 2.0)["reads_per_sec"], 15.0, "the first ones");
    }
}
