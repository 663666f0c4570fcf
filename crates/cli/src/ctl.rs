//! `weir ctl`: changes a running server over its control socket: its policies (what there are, what is in
//! force, which one shall decide, modules of the user's own), and whether it has a fast tier.

use crate::output::{Progress, print, print_json, table};
use crate::served::{self, Served};
use crate::status::{ago, array};
use crate::{End, Failure};
use client::Place;
use ftl::policy::DECISIONS;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;

/// How long a switch or a load may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at how far a detach is.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir ctl policy list                           what can decide, with parameters\n  \
    weir ctl policy show                           what does, and what was switched last\n  \
    weir ctl policy set all victim=cost-benefit    a decision of the whole device\n  \
    weir ctl policy set data stream=sfr:handles=8  the streams of one volume\n  \
    weir ctl policy set data mapping=page          its map stays in DRAM (mapping=cached: may leave)\n  \
    weir ctl policy load mine.wasm --name mine     a policy of your own (`weir plugin new`)\n  \
    weir ctl policy set all victim=wasm:mine\n  \
    weir ctl fast detach                           empty the fast tier and do without it\n\n\
    A switch is immediate and lasts until the server stops; the config file says what it begins \
    with. docs/policies.md tells every policy.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    served: Served,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Which policy decides what
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  \
        weir ctl policy show\n  \
        weir ctl policy set all victim=cost-benefit")]
    Policy(Policy),
    /// The fast tier
    #[command(subcommand)]
    #[command(after_help = "Examples:\n  \
        weir ctl fast detach")]
    Fast(Fast),
}

#[derive(clap::Subcommand)]
enum Fast {
    /// Empty the fast tier, then run without it; clients are served meanwhile
    ///
    /// What it holds goes to the capacity tier, where writes go from now on. When nothing is left, the
    /// device notes that it has no fast tier any more, and the folder, file or disk is free. To put one
    /// before it again: `weir format --attach-fast`, or [device.fast] in the config, at the next start.
    #[command(after_help = "Examples:\n  \
        weir ctl fast detach            returns when the tier is empty and forgotten\n  \
        weir ctl fast detach --no-wait  `weir status` tells how far it is")]
    Detach {
        /// Only begin, and do not wait for the end: `weir status` tells how far it is
        #[arg(long)]
        no_wait: bool,
    },
}

#[derive(clap::Subcommand)]
enum Policy {
    /// List what can decide
    #[command(after_help = "Examples:\n  \
        weir ctl policy list\n  \
        weir ctl policy list --json | jq '.decisions[].decision'")]
    List,
    /// Show what decides now, and the last switches
    #[command(after_help = "Examples:\n  \
        weir ctl policy show\n  \
        weir ctl policy show --data /var/lib/weir --json")]
    Show,
    /// Put a policy in charge, at once
    #[command(after_help = "Examples:\n  \
        weir ctl policy set all victim=cost-benefit\n  \
        weir ctl policy set data stream=sfr:handles=8")]
    Set {
        /// The volume, or `all` for the whole device; only streams and mapping are decided by volume
        volume: String,
        /// The decision and the policy, such as victim=greedy or stream=sfr:handles=8
        #[arg(value_name = "KIND=NAME[:PARAMS]")]
        policy: String,
    },
    /// Load a WebAssembly module, until the server stops
    #[command(after_help = "Examples:\n  \
        weir ctl policy load mine.wasm\n  \
        weir ctl policy load mine.wasm --name mine")]
    Load {
        /// The module
        #[arg(value_name = "FILE.wasm")]
        file: PathBuf,
        /// What its policies are called, behind `wasm:` [default: the name of the file]
        #[arg(long)]
        name: Option<String>,
    },
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let place = &args.served.place()?;
    let command = match &args.command {
        Command::Policy(command) => command,
        Command::Fast(Fast::Detach { no_wait }) => {
            return detach(place, !no_wait, args.served.json);
        }
    };
    let (value, text) = match command {
        Policy::List => {
            let value = ask(place, "GET", "/policy", b"")?;
            let text = list(&value);
            (value, text)
        }
        Policy::Show => {
            let value = ask(place, "GET", "/status", b"")?;
            let text = show(&value);
            (value["shards"].clone(), text)
        }
        Policy::Set { volume, policy } => {
            let wanted = wanted(volume, policy)?;
            let value = ask(place, "POST", "/policy", wanted.to_string().as_bytes())?;
            let text = format!(
                "{} is decided by {} from now on\n",
                value["decision"].as_str().unwrap_or_default(),
                value["name"].as_str().unwrap_or_default()
            );
            (value, text)
        }
        Policy::Load { file, name } => {
            let bytes = serve::policies::read_module(file)?;
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or("module");
            let name = name.clone().unwrap_or_else(|| stem.replace('_', "-"));
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                return Err(format!(
                    "--name {name}: must be of the characters a-z, 0-9 and -, for example mine"
                ));
            }
            let value = ask(place, "PUT", &format!("/plugins/{name}"), &bytes)
                .map_err(|why| format!("{}: {why}", file.display()))?;
            let text = format!("loaded: {}\n", plugin_line(&value));
            (value, text)
        }
    };
    if args.served.json {
        print_json(&value);
    } else {
        print(&text);
    }
    Ok(End::Good)
}

/// Begins to detach the fast tier; with `wait`, tells how it goes until it has ended.
fn detach(place: &Place, wait: bool, as_json: bool) -> Result<End, Failure> {
    let mut fast = ask(place, "POST", "/fast/detach", b"{}")?;
    let mut progress = Progress::new("detach");
    let whole = fast["bytes_valid"].as_u64().unwrap_or(0);
    while wait && fast["state"] == "draining" {
        std::thread::sleep(LOOK_AGAIN);
        fast = ask(place, "GET", "/fast", b"")?;
        let left = fast["bytes_valid"].as_u64().unwrap_or(0);
        progress.at(whole.saturating_sub(left), whole.max(1));
    }
    drop(progress);
    if fast["state"] == "failed" {
        return Err(format!("the fast tier stays: {}", text_of(&fast, "reason")));
    }
    if as_json {
        print_json(&fast);
    } else if fast["state"] == "draining" {
        print("the fast tier is being emptied: see `weir status`\n");
    } else {
        let place = fast["path"].as_str().unwrap_or("memory");
        print(&format!(
            "detached: nothing needs the fast tier in {place} any more\n\
             take [device.fast] (or --fast) out of what the server is started with\n"
        ));
    }
    Ok(End::Good)
}

/// The body of the request for a switch.
fn wanted(volume: &str, policy: &str) -> Result<Value, Failure> {
    let Some((kind, name)) = policy.split_once('=') else {
        return Err(format!("{policy}: must be KIND=NAME, for example victim=greedy"));
    };
    let decision = match (volume, kind) {
        ("all", _) => kind.to_owned(),
        (_, "stream" | "mapping") => format!("{kind}/{volume}"),
        _ => {
            return Err(format!(
                "{volume}: {kind} is decided for the whole device, not by volume: weir ctl policy \
                 set all {policy}"
            ));
        }
    };
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    let by = user.map_or_else(|_| "weir ctl".into(), |user| format!("weir ctl of {user}"));
    Ok(json!({ "decision": decision, "name": name, "by": by }))
}

fn ask(place: &Place, method: &str, path: &str, body: &[u8]) -> Result<Value, Failure> {
    served::ask(place, (method, path), body, PATIENCE)
}

fn text_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list(value: &Value) -> String {
    let mut rows =
        vec![["decision", "policy", "parameters", "what it does"].map(String::from).to_vec()];
    for decision in array(&value["decisions"]) {
        for policy in array(&decision["policies"]) {
            let cells =
                [("decision", decision), ("name", policy), ("params", policy), ("about", policy)];
            rows.push(cells.map(|(key, from)| text_of(from, key).to_owned()).to_vec());
        }
    }
    let mut text = table(&rows);
    for plugin in array(&value["plugins"]) {
        text.push_str(&format!("module {}\n", plugin_line(plugin)));
    }
    text
}

fn plugin_line(plugin: &Value) -> String {
    let decisions: Vec<&str> =
        array(&plugin["decisions"]).iter().filter_map(Value::as_str).collect();
    format!(
        "{} decides {} as {} ({} bytes)",
        text_of(plugin, "name"),
        decisions.join(" and "),
        text_of(plugin, "policy"),
        plugin["bytes"],
    )
}

fn show(status: &Value) -> String {
    let mut text = String::new();
    for (index, shard) in array(&status["shards"]).iter().enumerate() {
        text.push_str(&format!("shard {index}\n"));
        let mut rows = Vec::new();
        // Streams are decided by volume, below.
        for decision in DECISIONS.iter().filter(|&&decision| decision != "stream") {
            let name = text_of(&shard["policies"], decision).to_owned();
            rows.push(vec![format!("  {decision}"), name]);
        }
        let streams = array(&shard["streams"]);
        let volumes = array(&status["volumes"]);
        for (at, stream) in streams.iter().enumerate() {
            let rest = if streams.len() > 1 { "stream of the rest" } else { "stream" };
            let own = (streams.len() > 1).then(|| volumes.get(at)).flatten();
            let place =
                own.map_or(rest.into(), |volume| format!("stream of {}", text_of(volume, "name")));
            let handles =
                format!("({} + {} handles)", stream["handles_host"], stream["handles_moved"]);
            rows.push(vec![
                format!("  {place}"),
                format!("{} {handles}", text_of(stream, "stream")),
            ]);
        }
        for (at, mapping) in array(&shard["mappings"]).iter().enumerate() {
            let own = volumes.get(at).map_or("the device", |volume| text_of(volume, "name"));
            let to_come = mapping["blocks_to_come"].as_u64().unwrap_or(0);
            let rest = match to_come {
                0 => String::new(),
                blocks => format!(" ({blocks} of {} blocks to come)", mapping["blocks"]),
            };
            let name = text_of(mapping, "mapping");
            rows.push(vec![format!("  mapping of {own}"), format!("{name}{rest}")]);
        }
        text.push_str(&table(&rows));
        let switches = array(&shard["policy_switches"]);
        if !switches.is_empty() {
            text.push_str("  switches, the last one first:\n");
        }
        for change in switches.iter().rev() {
            text.push_str(&format!("    {}\n", change_line(change)));
        }
    }
    text
}

/// A switch in one line.
pub fn change_line(change: &Value) -> String {
    format!(
        "{} ago {} from {} to {}: {}",
        ago(change["ago_ns"].as_u64().unwrap_or(0)),
        text_of(change, "decision"),
        text_of(change, "from"),
        text_of(change, "to"),
        text_of(change, "why"),
    )
}

#[cfg(test)]
mod tests {
    use super::wanted;

    #[test]
    fn a_volume_may_only_choose_its_streams_and_its_mapping() {
        let body = wanted("data", "stream=sfr:handles=8").unwrap();
        assert_eq!(
            (&body["decision"], &body["name"]),
            (&"stream/data".into(), &"sfr:handles=8".into())
        );
        assert_eq!(wanted("data", "mapping=page").unwrap()["decision"], "mapping/data");
        assert_eq!(wanted("all", "victim=greedy").unwrap()["decision"], "victim");
        assert!(wanted("data", "victim=greedy").unwrap_err().contains("set all victim=greedy"));
        assert!(wanted("all", "greedy").unwrap_err().contains("KIND=NAME"));
    }
}
