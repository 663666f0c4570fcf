//! `weir status`: asks a running server over its control socket, or over HTTP. Where these are, the
//! folder of its device tells (`control.sock`, `http-address`), as long as the device is locked; what was
//! left by a server that died is not believed.

use crate::device::{DATA_DEFAULT, is_socket};
use crate::output::{print, print_json, table};
use crate::serve::ADDRESS_FILE;
use crate::size::{bytes, count};
use crate::{End, Failure};
use client::Place;
use ftl::policy::DECISIONS;
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

/// Where the service of a package has its control socket (packaging/weir.toml).
const SERVICE_CONTROL: &str = "/run/weir/control.sock";

/// Switches of policies that are shown; `weir ctl policy show` tells more.
const SWITCHES_SHOWN: usize = 3;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir status                            the server of ./weir-data; else the machine's service\n  \
    weir status --http 127.0.0.1:8420      one of which only the address is known\n  \
    weir status --json | jq .waf\n\n\
    The same, and more, is at http://ADDR/status, /metrics and, as a page, at /.")]
pub struct Args {
    /// The folder of the device that is served
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let place = args.place.find(&args.data)?;
    let status = ask_status(&place)?;
    if args.json {
        print_json(&status);
    } else {
        print(&as_text(&status, &place));
    }
    Ok(End::Good)
}

/// All that the server tells of its state.
pub fn ask_status(place: &Place) -> Result<Value, Failure> {
    let body = client::http::get(place, "/status")?;
    serde_json::from_str(&body)
        .map_err(|error| format!("{place}/status: no JSON: {error}: is it Weir?"))
}

/// Where a server is, for those who do not go by its folder.
#[derive(clap::Args)]
pub struct PlaceArgs {
    /// The server's control socket, instead of looking into the folder
    #[arg(long, value_name = "PATH", global = true, conflicts_with = "http")]
    control: Option<PathBuf>,
    /// Where the server's HTTP is; to change anything there, --token-file is needed
    #[arg(long, value_name = "ADDR", global = true)]
    http: Option<String>,
    /// The file that holds the server's token (`http.token_file` of its config)
    #[arg(long, value_name = "FILE", global = true, requires = "http")]
    token_file: Option<PathBuf>,
}

impl PlaceArgs {
    /// If the server was named here.
    pub fn is_named(&self) -> bool {
        self.control.is_some() || self.http.is_some()
    }

    /// Where the server is: as said, else where the device in `data` is served.
    pub fn find(&self, data: &Path) -> Result<Place, Failure> {
        if let Some(control) = &self.control {
            if control.exists() && !is_socket(control) {
                return Err(format!(
                    "--control {}: is no socket: name the server's control socket, such as {}",
                    control.display(),
                    crate::device::control_of(control).display()
                ));
            }
            return Ok(Place::Socket(control.clone()));
        }
        let Some(text) = &self.http else { return place_in(data) };
        let Ok(place @ Place::Tcp { .. }) = text.parse() else {
            return Err(format!(
                "--http {text}: must be an IP address and a port, e.g. 127.0.0.1:8420"
            ));
        };
        let Some(file) = &self.token_file else { return Ok(place) };
        let token = serve::files::read_named_text(file).map_err(|error| {
            format!("--token-file {}: {error}: name the server's http.token_file", file.display())
        })?;
        Ok(place.with_token(&token))
    }
}

/// Where the server of the device in `data` is.
pub fn place_in(data: &Path) -> Result<Place, Failure> {
    let shown = data.display();
    if !data.exists() {
        // Nobody said which, and none was made here: the machine's own service is meant.
        if data == Path::new(DATA_DEFAULT) && is_socket(Path::new(SERVICE_CONTROL)) {
            return Ok(Place::Socket(SERVICE_CONTROL.into()));
        }
        return Err(format!(
            "{shown}: no such folder: name the device's with --data, or the server's control socket \
             with --control"
        ));
    }
    // A device in memory has no lock; then only asking can tell.
    let unserved = serve::files::open(&data.join("lock"), File::options().read(true))
        .is_ok_and(|lock| !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
    let control = crate::device::control_of(data);
    if is_socket(&control) && !unserved {
        return Ok(Place::Socket(control));
    }
    let address = data.join(ADDRESS_FILE);
    match serve::files::read_text(&address) {
        Ok(text) if !unserved => match text.trim().parse() {
            Ok(place @ Place::Tcp { .. }) => Ok(place),
            _ => Err(format!(
                "{}: holds no address: name the server's with --http",
                address.display()
            )),
        },
        _ => Err(format!(
            "{shown}: nobody serves this device, or its control socket is elsewhere: start `weir \
             serve --data {shown}`, or name the socket with --control"
        )),
    }
}

/// Whether these are raw units: they have neither volumes nor GC.
pub fn is_raw(status: &Value) -> bool {
    array(&status["shards"]).iter().any(|shard| shard["mode"] == "raw")
}

fn as_text(status: &Value, place: &Place) -> String {
    let counter = |name: &str| count(status["counters"][name].as_u64().unwrap_or(0));
    let version = status["version"].as_str().unwrap_or("unknown");
    let mut text = format!("Weir {version} at {place}\n");
    let raw = is_raw(status);
    // Units have a table of their own.
    let volumes = if raw { &[] } else { array(&status["volumes"]) };
    for volume in volumes {
        let name = volume["name"].as_str().unwrap_or_default();
        let size = bytes(volume["size_bytes"].as_u64().unwrap_or(0));
        let mode = if volume["read_only"] == true { ", read only" } else { "" };
        text.push_str(&format!("  volume {name}: {size}{mode}\n"));
    }
    for why in array(&status["restart"]["impaired"]).iter().filter_map(Value::as_str) {
        text.push_str(&format!("  WARNING: served READ-ONLY: {why}\n"));
    }
    if let Some(times) = status["restart"]["dilate"].as_u64().filter(|times| *times > 1) {
        text.push_str(&format!(
            "  its flash is {times} times as slow as it is: so are times and rates here\n"
        ));
    }
    text.push_str(&driver_text(array(&status["shards"])));
    text.push_str(&crate::latency::text(status));
    text.push_str(&crate::latency::slow_text(status));
    if let Some(refused) = status["latency"]["refused"].as_u64().filter(|refused| *refused > 0) {
        text.push_str(&format!(
            "  {refused} requests refused by their protocol: the device never saw them\n"
        ));
    }
    if let Some(raw) = array(&status["shards"]).iter().find(|shard| shard["mode"] == "raw") {
        text.push_str(&raw_text(raw, status["waf"].as_f64()));
        return text;
    }
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    text.push_str(&table(&[
        row(
            "blocks mapped",
            format!("{} of {}", counter("blocks_mapped"), counter("logical_blocks")),
        ),
        row("blocks read", counter("host_blocks_read")),
        row("blocks written", counter("host_blocks_written")),
        row("blocks trimmed", counter("host_blocks_trimmed")),
        row("WAF since start", waf_text(status)),
        row("slots relocated", counter("slots_relocated")),
        row("erases", counter("erases")),
        row("bands free", counter("bands_free")),
        row("bands retired", counter("bands_retired")),
        row("slots corrected", counter("slots_corrected")),
        row("errors to hosts", counter("host_errors")),
    ]));
    if let Some(restart) = status["restart"]["text"].as_str() {
        text.push_str(&format!("  start: {restart}\n"));
    }
    text.push_str(&fast_text(&status["fast"]));
    for (index, shard) in array(&status["shards"]).iter().enumerate() {
        text.push_str(&shard_text(index, shard));
    }
    text
}

/// The write amplification, and what it is made of.
fn waf_text(status: &Value) -> String {
    let Some(waf) = status["waf"].as_f64() else { return "no writes yet".into() };
    let counter = |name: &str| status["counters"][name].as_f64().unwrap_or(0.0);
    let written = counter("host_blocks_written").max(1.0);
    // What left the fast tier, and what stayed there, was relocated, too.
    let relocated = counter("slots_relocated") - counter("slots_destaged") - counter("slots_kept");
    let parts = [
        ("the host", counter("host_blocks_written")),
        ("GC", relocated),
        ("destage", counter("slots_destaged")),
        ("kept on the fast tier", counter("slots_kept")),
        ("padding", counter("slots_padded")),
        ("checkpoints", counter("slots_checkpointed")),
    ];
    let told = parts.iter().map(|&(name, slots)| (name, slots / written));
    let told: Vec<(&str, f64)> = told.collect();
    let other = waf - told.iter().map(|part| part.1).sum::<f64>();
    let told = told.into_iter().chain([("records and what is under way", other)]);
    let shown = told.filter(|part| part.1 >= 0.0005);
    let shown: Vec<String> = shown.map(|(name, part)| format!("{name} {part:.3}")).collect();
    format!("{waf:.3} ({})", shown.join(", "))
}

/// The way to the kernel; once, if all shards have the same.
fn driver_text(shards: &[Value]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for shard in shards {
        let word = |key: &str| shard[key].as_str().unwrap_or("unknown");
        let line = format!("  driver: {}, {}\n", word("driver"), word("driver_why"));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.concat()
}

fn warnings_text(shard: &Value) -> String {
    let line = |warning: &Value| format!("  warning: {}\n", warning.as_str().unwrap_or_default());
    array(&shard["warnings"]).iter().map(line).collect()
}

fn raw_text(shard: &Value, waf: Option<f64>) -> String {
    let counter = |name: &str| count(shard["counters"][name].as_u64().unwrap_or(0));
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    let fenced = if shard["fenced"] == true { ", FENCED by another server" } else { "" };
    let mut text = format!(
        "raw units: {}{fenced}; {} clients, {} requests\n  {}\n",
        shard["phase"].as_str().unwrap_or("unknown"),
        shard["connections"],
        shard["requests"],
        crate::units::shape(&shard["raw"]),
    );
    text.push_str(&warnings_text(shard));
    text.push_str(&table(&[
        row("blocks read", counter("host_blocks_read")),
        row("blocks written", counter("host_blocks_written")),
        row("blocks erased", counter("host_blocks_trimmed")),
        row("WAF since start", waf.map_or("no writes yet".into(), |waf| format!("{waf:.3}"))),
        row("erases", counter("erases")),
        row("slots corrected", counter("slots_corrected")),
        row("errors to hosts", counter("host_errors")),
    ]));
    text.push_str(&crate::units::text(array(&shard["units"])));
    text
}

/// The fast tier, if the device has one.
pub fn fast_text(fast: &Value) -> String {
    let Some(state) = fast["state"].as_str() else { return String::new() };
    let place = fast["path"].as_str().unwrap_or("memory");
    let reason = fast["reason"].as_str().map(|reason| format!(": {reason}")).unwrap_or_default();
    let mut text = format!("fast tier in {place}: {state}{reason}\n");
    let mend = match state {
        "lost" => {
            "  nothing is written any more, and what can be read is read; bring the tier back, then \
             start the server again\n"
        }
        "draining" => "  its data goes to the capacity tier, where writes go from now on\n",
        "detached" => {
            "  nothing needs it any more: take [device.fast] out of what the server is started with\n"
        }
        _ => "",
    };
    text.push_str(mend);
    if state == "detached" {
        return text;
    }
    let number = |key: &str| fast[key].as_u64().unwrap_or(0);
    let share = |key: &str| {
        fast[key].as_f64().map_or("none yet".into(), |share| format!("{:.1} %", share * 100.0))
    };
    let waf =
        |key: &str| fast[key].as_f64().map_or("no writes yet".into(), |waf| format!("{waf:.3}"));
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    text.push_str(&table(&[
        row("fill", format!("{} of {}", share("fill"), bytes(number("bytes")))),
        row("valid data", bytes(number("bytes_valid"))),
        row(
            "destage",
            format!(
                "{}/s, {} since start",
                bytes(number("destage_bytes_per_sec")),
                bytes(number("bytes_destaged"))
            ),
        ),
        row("reads from it", share("read_hit_share")),
        row("writes overwritten there", share("write_drop_share")),
        row("bands free", fast["bands_free"].to_string()),
        row("writes it had no room for", count(number("requests_spilled"))),
        row("WAF fast, capacity", format!("{}, {}", waf("waf"), waf("waf_capacity"))),
    ]));
    text
}

/// The stream policies of the volumes that have their own, then that of the rest.
fn streams(all: &[Value]) -> String {
    let one = |stream: &Value| {
        let short = if stream["handles_short"] == true { ", short of bands" } else { "" };
        format!(
            "{} ({} + {} handles{short})",
            stream["stream"].as_str().unwrap_or("unknown"),
            stream["handles_host"],
            stream["handles_moved"],
        )
    };
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn shard_text(index: usize, shard: &Value) -> String {
    let policies = DECISIONS.iter().map(|&decision| {
        let name = shard["policies"][decision].as_str().unwrap_or("unknown");
        let streams = (decision == "stream").then(|| streams(array(&shard["streams"])));
        format!("{decision} {}", streams.as_deref().unwrap_or(name))
    });
    let policies: Vec<String> = policies.collect();
    let fenced = if shard["fenced"] == true { ", FENCED by another server" } else { "" };
    let mut text = format!(
        "shard {index}: {}{fenced}; {} clients, {} requests; {}\n",
        shard["phase"].as_str().unwrap_or("unknown"),
        shard["connections"],
        shard["requests"],
        policies.join(", "),
    );
    text.push_str(&warnings_text(shard));
    let mut rows = vec![
        ["  unit", "queued", "busy s", "free", "retired", "valid", "erases", "last reason"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (unit, state) in array(&shard["units"]).iter().enumerate() {
        let queued = state["reads_queued"].as_u64().unwrap_or(0)
            + state["appends_queued"].as_u64().unwrap_or(0);
        let gone = if state["gone"] == true { " GONE" } else { "" };
        let fast = if state["tier"] == "fast" { " fast" } else { "" };
        rows.push(vec![
            format!("  {unit}{fast}{gone}"),
            queued.to_string(),
            format!("{:.1}", state["busy_ns"].as_f64().unwrap_or(0.0) / 1e9),
            state["bands_free"].to_string(),
            state["bands_retired"].to_string(),
            count(state["slots_valid"].as_u64().unwrap_or(0)),
            format!("{} to {}", state["erase_count_min"], state["erase_count_max"]),
            state["last_reason"].as_str().unwrap_or_default().to_owned(),
        ]);
    }
    text.push_str(&table(&rows));
    let switches = array(&shard["policy_switches"]);
    for change in switches.iter().rev().take(SWITCHES_SHOWN) {
        text.push_str(&format!("  policy: {}\n", crate::ctl::change_line(change)));
    }
    text
}

/// A time span for people.
pub fn ago(ns: u64) -> String {
    match ns / 1_000_000_000 {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

pub fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
