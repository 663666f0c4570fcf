//! `weir volume`: the volumes of a running server: lists, makes, deletes, renames them, takes snapshots and clones, and gives them other
//! sizes and limits, over its control socket.

use crate::output::{print, print_json, table};
use crate::served::{self, Served};
use crate::status::array;
use crate::{End, Failure};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a change may take: a volume that is made may wait for another to be trimmed.
const PATIENCE: Duration = Duration::from_secs(75);

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir volume list\n  \
    weir volume create data --size 4GiB\n  \
    weir volume resize data 8GiB\n  \
    weir volume limit data --iops 5000 --bandwidth 200MiB\n  \
    weir volume snapshot data monday\n  \
    weir volume clone data@monday trial\n  \
    weir volume rename data old\n  \
    weir volume delete old@monday\n\n\
    A change is durable and in force when the command returns. A volume takes no flash before something is written \
    to it; its size is taken from the device's blocks that belong to no volume.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    served: Served,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the volumes, and the room that is left
    #[command(after_help = "Examples:\n  \
        weir volume list\n  \
        weir volume list --json | jq '.volumes[].name'")]
    List,
    /// Make a volume
    ///
    /// NBD clients find it under its name at once, and NVMe hosts as another namespace, of which an event tells them.
    #[command(after_help = "Examples:\n  \
        weir volume create data --size 4GiB\n  \
        weir volume create gold --size 512MiB --read-only")]
    Create {
        /// Its name: at most 64 bytes, no / and no ?
        name: String,
        /// Its size, a multiple of 4 KiB, e.g. 4GiB
        #[arg(long, value_name = "SIZE")]
        size: String,
        /// It refuses writes
        #[arg(long)]
        read_only: bool,
    },
    /// Delete a volume with all its data, or a snapshot
    ///
    /// Its clients are hung up on. Its blocks are trimmed in the background, also after a restart, and no volume gets
    /// them before that. A volume that has snapshots stays until they are deleted, and a snapshot that has clones until those
    /// are.
    #[command(after_help = "Examples:\n  \
        weir volume delete old\n  \
        weir volume delete data@monday")]
    Delete {
        /// Which: a volume, or VOLUME@NAME
        name: String,
    },
    /// Take a snapshot of a volume: what it holds now, to be read as VOLUME@NAME
    ///
    /// All that was acknowledged before is in it, and no part of a request that was not. It costs nothing but room for
    /// what the volume changes afterwards. It is served as a volume is, read-only.
    #[command(after_help = "Examples:\n  \
        weir volume snapshot data monday\n  \
        nbdcopy 'nbd+unix:///data@monday?socket=weir-data/nbd.sock' backup.img")]
    Snapshot {
        /// Of which volume
        volume: String,
        /// What it is called behind the @: at most 64 bytes, no @, / and no ?
        name: String,
    },
    /// Make a volume that begins as a snapshot is
    ///
    /// It takes no flash before something is written to it, and of the device's free blocks as many as the snapshot has. What
    /// is written to it is in no other volume; what is not is read from the snapshot, which stays as long as it has clones. A
    /// clone has snapshots of its own, can be renamed, grown and limited, and is deleted as a volume is.
    #[command(after_help = "Examples:\n  \
        weir volume clone gold@v1 guest-7")]
    Clone {
        /// Of which snapshot: VOLUME@NAME
        snapshot: String,
        /// What the volume is called: at most 64 bytes, no / and no ?
        name: String,
    },
    /// List the snapshots, and the room that only they take
    #[command(after_help = "Examples:\n  \
        weir volume snapshots\n  \
        weir volume snapshots data")]
    Snapshots {
        /// Of this volume alone
        volume: Option<String>,
    },
    /// Give a volume another size
    ///
    /// NVMe hosts are told by an event; NBD clients see the new size when they connect again. What is asked beyond the
    /// end is refused at once.
    #[command(after_help = "Examples:\n  \
        weir volume resize data 8GiB\n  \
        weir volume resize data 1GiB --shrink   what is behind the first GiB is lost")]
    Resize {
        /// Which
        name: String,
        /// Its size from now on, a multiple of 4 KiB
        size: String,
        /// It may be smaller than it was: all data behind the new end is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Give a volume another name
    ///
    /// Clients that are connected stay so; NVMe hosts know it by its number and uuid, which it keeps.
    #[command(after_help = "Examples:\n  \
        weir volume rename data archive")]
    Rename {
        /// What it is called
        name: String,
        /// What it is to be called
        to: String,
    },
    /// Limit what the clients of a volume may ask, all of them together; without options nothing is limited
    #[command(after_help = "Examples:\n  \
        weir volume limit data --iops 5000\n  \
        weir volume limit data --bandwidth 200MiB --burst 1s\n  \
        weir volume limit data                  lifts all limits")]
    Limit {
        /// Which
        name: String,
        /// Requests a second
        #[arg(long, value_name = "N")]
        iops: Option<u64>,
        /// Bytes a second that are read, written or filled with zeroes, e.g. 200MiB
        #[arg(long, value_name = "SIZE")]
        bandwidth: Option<String>,
        /// What was not asked for so long may be asked at once: 1ms to 60s [default: 100ms]
        #[arg(long, value_name = "TIME")]
        burst: Option<String>,
    },
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let place = args.served.place()?;
    let (method, path, body) = asked(&args.command)?;
    let value = served::ask(&place, (method, &path), body.as_bytes(), PATIENCE)?;
    if args.served.json {
        print_json(&value);
    } else {
        print(&told(&args.command, &value));
    }
    Ok(End::Good)
}

/// The request that a command is.
fn asked(command: &Command) -> Result<(&'static str, String, String), Failure> {
    let at = |name: &str| format!("/volumes/{}", crate::serve::percent_encode(name, b"-._~"));
    Ok(match command {
        Command::List | Command::Snapshots { .. } => ("GET", "/volumes".into(), String::new()),
        Command::Snapshot { volume, name } => {
            ("POST", at(volume) + "/snapshots", json!({ "name": name }).to_string())
        }
        Command::Clone { snapshot, name } => {
            ("POST", at(snapshot) + "/clones", json!({ "name": name }).to_string())
        }
        Command::Create { name, size, read_only } => {
            let size = crate::size::bytes_of("--size", size)?;
            let body = json!({ "name": name, "size_bytes": size, "read_only": read_only });
            ("POST", "/volumes".into(), body.to_string())
        }
        Command::Delete { name } => ("DELETE", at(name), String::new()),
        Command::Resize { name, size, shrink } => {
            let body =
                json!({ "size_bytes": crate::size::bytes_of("SIZE", size)?, "shrink": shrink });
            ("PATCH", at(name), body.to_string())
        }
        Command::Rename { name, to } => ("PATCH", at(name), json!({ "name": to }).to_string()),
        Command::Limit { name, iops, bandwidth, burst } => {
            let bandwidth =
                bandwidth.as_deref().map(|text| crate::size::bytes_of("--bandwidth", text));
            let burst = burst.as_deref().map(milliseconds_of).transpose()?;
            let limits = json!({
                "iops": iops.unwrap_or(0),
                "bytes_per_sec": bandwidth.transpose()?.unwrap_or(0),
                "burst_ms": burst.unwrap_or(0),
            });
            ("PATCH", at(name), json!({ "limits": limits }).to_string())
        }
    })
}

fn milliseconds_of(text: &str) -> Result<u64, Failure> {
    let ns = flash::quantity::duration_ns(text);
    let ms = ns.map(|ns| ns / flash::MILLISECOND).filter(|&ms| ms > 0);
    ms.ok_or_else(|| format!("--burst {text}: must be a time from 1ms to 60s: for example 100ms"))
}

/// What came of a command, for people, from the JSON.
fn told(command: &Command, value: &Value) -> String {
    let size = || crate::size::bytes(number(&value["volume"]["size_bytes"]));
    match command {
        Command::List => list(value),
        Command::Snapshot { volume, name } => format!("{volume}@{name}: taken, {}\n", size()),
        Command::Clone { snapshot, name } => {
            format!("{name}: made of {snapshot}, {}\n", size())
        }
        Command::Snapshots { volume } => snapshots(value, volume.as_deref()),
        Command::Create { name, .. } => format!("{name}: made, {}\n", size()),
        Command::Delete { name } => format!("{name}: deleted\n"),
        Command::Resize { name, .. } => format!("{name}: {} from now on\n", size()),
        Command::Rename { name, to } => format!("{name}: called {to} from now on\n"),
        Command::Limit { name, .. } => {
            format!("{name}: {} from now on\n", limits(&value["volume"]["limits"]))
        }
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// The limits of a volume in words.
fn limits(limits: &Value) -> String {
    let (iops, bandwidth) = (number(&limits["iops"]), number(&limits["bytes_per_sec"]));
    let mut parts = Vec::new();
    if iops > 0 {
        parts.push(format!("{iops} requests a second"));
    }
    if bandwidth > 0 {
        parts.push(format!("{} a second", crate::size::bytes(bandwidth)));
    }
    let burst = number(&limits["burst_ms"]);
    if burst > 0 {
        let shown = if burst.is_multiple_of(1000) {
            format!("{} s", burst / 1000)
        } else {
            format!("{burst} ms")
        };
        parts.push(format!("bursts of {shown}"));
    }
    if parts.is_empty() { "no limits".into() } else { parts.join(", ") }
}

/// The snapshots of a volume, or all.
fn snapshots(value: &Value, of: Option<&str>) -> String {
    let mut rows = vec![["snapshot", "size", "number", "room"].map(String::from).to_vec()];
    let wanted = |snapshot: &&Value| of.is_none_or(|of| snapshot["volume"] == of);
    for snapshot in array(&value["snapshots"]).iter().filter(wanted) {
        rows.push(vec![
            snapshot["name"].as_str().unwrap_or_default().into(),
            crate::size::bytes(number(&snapshot["size_bytes"])),
            number(&snapshot["number"]).to_string(),
            snapshot["held_bytes"].as_u64().map_or("?".into(), crate::size::bytes),
        ]);
    }
    if rows.len() > 1 { table(&rows) } else { "there are no snapshots\n".into() }
}

fn list(value: &Value) -> String {
    let mut rows = vec![["volume", "size", "number", "mode", "limits"].map(String::from).to_vec()];
    for volume in array(&value["volumes"]) {
        let mode = if volume["read_only"] == true { "read only" } else { "" };
        let mode = match volume["clone_of"].as_str() {
            Some(of) => format!("{mode} clone of {of}").trim().to_owned(),
            None => mode.to_owned(),
        };
        rows.push(vec![
            volume["name"].as_str().unwrap_or_default().into(),
            crate::size::bytes(number(&volume["size_bytes"])),
            number(&volume["number"]).to_string(),
            mode,
            limits(&volume["limits"]),
        ]);
    }
    for snapshot in array(&value["snapshots"]) {
        rows.push(vec![
            snapshot["name"].as_str().unwrap_or_default().into(),
            crate::size::bytes(number(&snapshot["size_bytes"])),
            number(&snapshot["number"]).to_string(),
            "snapshot".into(),
            String::new(),
        ]);
    }
    let mut text = table(&rows);
    let free = crate::size::bytes(number(&value["free_bytes"]));
    text.push_str(&format!(
        "{free} of {} belong to no volume",
        crate::size::bytes(number(&value["device_bytes"]))
    ));
    let leaving = number(&value["leaving_bytes"]);
    if leaving > 0 {
        text.push_str(&format!(", {} more are being trimmed", crate::size::bytes(leaving)));
    }
    text.push('\n');
    if let Some(reason) = value["fixed"].as_str() {
        text.push_str(&format!("none can be changed: {reason}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_goes_into_the_path_as_it_is_and_what_is_no_size_is_refused() {
        let delete = Command::Delete { name: "a b%".into() };
        assert_eq!(asked(&delete).unwrap().1, "/volumes/a%20b%25");
        let resize = Command::Resize { name: "a".into(), size: "much".into(), shrink: false };
        assert!(asked(&resize).unwrap_err().contains("8GiB"));
        let limit = |burst: &str| Command::Limit {
            name: "a".into(),
            iops: Some(5),
            bandwidth: None,
            burst: Some(burst.into()),
        };
        assert!(asked(&limit("1ns")).unwrap_err().contains("100ms"));
        assert!(asked(&limit("1s")).unwrap().2.contains("\"burst_ms\":1000"));
    }

    #[test]
    fn snapshots_are_told_with_the_room_that_only_they_take() {
        let snapshot = |name: &str, volume: &str, held: Value| json!({ "name": name, "volume": volume, "number": 7, "size_bytes": 1 << 30, "held_bytes": held });
        let all = [snapshot("a@x", "a", json!(4096)), snapshot("b@y", "b", Value::Null)];
        let value = json!({ "volumes": [], "snapshots": all, "device_bytes": 0, "free_bytes": 0 });
        let text = snapshots(&value, None);
        assert!(text.contains("a@x       1 GiB  7       4 KiB\n") && text.contains("?"), "{text}");
        assert!(!snapshots(&value, Some("b")).contains("a@x"));
        assert_eq!(snapshots(&value, Some("c")), "there are no snapshots\n");
        assert!(list(&value).contains("snapshot"));
        let take = Command::Snapshot { volume: "a b".into(), name: "x".into() };
        let (method, path, body) = asked(&take).unwrap();
        assert_eq!(
            (method, &path[..], &body[..]),
            ("POST", "/volumes/a%20b/snapshots", r#"{"name":"x"}"#)
        );
        let clone = Command::Clone { snapshot: "a@x".into(), name: "c".into() };
        assert_eq!(asked(&clone).unwrap().1, "/volumes/a%40x/clones");
    }

    #[test]
    fn a_list_tells_what_room_is_left() {
        let volume = json!({
            "name": "data", "number": 3, "size_bytes": 1 << 30, "read_only": true,
            "limits": { "iops": 5, "bytes_per_sec": 1 << 20, "burst_ms": 0 },
        });
        let clone = json!({
            "name": "c", "number": 4, "size_bytes": 1 << 30, "read_only": false, "clone_of": "data@x",
            "limits": { "iops": 0, "bytes_per_sec": 0, "burst_ms": 0 },
        });
        let value = json!({
            "volumes": [volume, clone], "device_bytes": 4u64 << 30, "free_bytes": 2u64 << 30, "leaving_bytes": 1 << 30,
            "fixed": null,
        });
        let text = list(&value);
        for wanted in [
            "data",
            "1 GiB",
            "read only ",
            "  clone of data@x  ",
            "5 requests a second, 1 MiB a second",
        ] {
            assert!(text.contains(wanted), "{text}");
        }
        assert!(
            text.ends_with("2 GiB of 4 GiB belong to no volume, 1 GiB more are being trimmed\n"),
            "{text}"
        );
    }
}
