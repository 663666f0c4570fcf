//! `weir pool status`: what the control plane and the controller know.

use super::records::{nodes_text, volumes_text};
use super::{Asks, failure};
use crate::output::{print, print_json};
use crate::{End, Failure};
use serde_json::Value;

pub fn run(asks: &Asks) -> Result<End, Failure> {
    let plane = asks.part.load()?.plane().map_err(failure)?;
    let status = serve::pool::status::status(&plane).map_err(failure)?;
    match asks.json {
        true => print_json(&status),
        false => print(&as_text(&status)),
    }
    Ok(End::Good)
}

fn as_text(status: &Value) -> String {
    let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
    let mut text = head_text(status);
    text += &format!("\nnodes: {}\n", nodes.len());
    if !nodes.is_empty() {
        text += &nodes_text(&nodes);
    }
    text + &rest_text(status)
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Which pool it is.
pub fn head_text(status: &Value) -> String {
    format!("pool {}, control plane {}\n", word(&status["pool"]), word(&status["plane"]))
}

/// Volumes and the controller.
pub fn rest_text(status: &Value) -> String {
    let volumes = status["volumes"].as_array().cloned().unwrap_or_default();
    let mut text = format!("\nvolumes: {}\n", volumes.len());
    if !volumes.is_empty() {
        text += &volumes_text(&volumes, true);
    }
    for volume in &volumes {
        text +=
            &format!("  {}: {}\n", word(&volume["name"]), redundancy_text(&volume["redundancy"]));
    }
    let controller = &status["controller"];
    text += &match (&controller["address"], &controller["plan"]["text"], &controller["error"]) {
        (Value::String(address), Value::String(plan), _) => {
            format!("\ncontroller {address}: {plan}\n")
        }
        (_, _, Value::String(error)) => format!("\ncontroller: {error}\n"),
        _ => "\ncontroller: none is elected: all nodes are equal and serve both\n".to_owned(),
    };
    text
}

/// Whether all bands of a volume have their copies, and what is done about it.
fn redundancy_text(of: &Value) -> String {
    if of.is_null() {
        return "its copies are unknown: no client tells, or there is no controller to tell"
            .to_owned();
    }
    let count = |key: &str| of[key].as_u64().unwrap_or(0);
    let mut text = match count("bands_lacking") {
        0 => "all bands have their copies".to_owned(),
        1 => "1 band lacks a copy".to_owned(),
        lacking => format!("{lacking} bands lack a copy"),
    };
    let away = count("nodes_away");
    if away > 0 {
        let nodes = if away == 1 { "node is" } else { "nodes are" };
        text += &format!(" ({away} {nodes} away for a short while, and counted as if there)");
    }
    for (key, does) in [
        ("bands_draining", "to leave nodes that are drained"),
        ("bands_spreading", "to move to nodes that have more room"),
        ("bands_stuck", "of these wait for room, or for a node"),
    ] {
        if count(key) > 0 {
            text += &format!(", {} {does}", count(key));
        }
    }
    if count("bytes_left") > 0 {
        text += &format!(", {} to copy", crate::size::bytes(count("bytes_left")));
    }
    if let Some(seconds) = of["seconds_left"].as_f64() {
        text += &format!(", done in {seconds:.0} s");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_text_tells_nodes_owners_and_why_there_is_no_plan() {
        let node = json!({ "node": 3, "domain": 1, "state": "replaced", "replaced_by": 7,
                           "address": "10.0.0.1:1", "profile": "own" });
        let owner = json!({ "generation": 4, "released": true });
        let volume = json!({ "name": "data", "bytes": 1u64 << 40, "replicas": 2, "bands": 9,
                             "degraded": "pause", "owner": owner, "redundancy": null });
        let mut status = json!({ "pool": "ab", "plane": "1.2.3.4:5", "nodes": [node],
                                 "volumes": [volume], "controller": null });
        let text = as_text(&status);
        for part in [
            "replaced by 7",
            "1 TiB",
            "none since generation 4",
            "data: its copies are unknown",
            "none is elected",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let listed = volumes_text(&[json!({ "name": "data", "degraded": "pause" })], false);
        assert!(
            listed.contains("pause") && !listed.contains("owner"),
            "nobody was asked: {listed}"
        );
        status["controller"] = json!({ "address": "a:1", "error": "a:1: does not answer" });
        assert!(as_text(&status).contains("controller: a:1: does not answer"));
        status["controller"] = json!({ "address": "a:1", "plan": { "text": "policy solver" } });
        assert!(as_text(&status).contains("controller a:1: policy solver"));
    }

    #[test]
    fn the_text_tells_what_copies_bands_lack_and_what_room_nodes_have() {
        let all = json!({ "bands_lacking": 0, "bytes_left": 0, "seconds_left": null });
        assert_eq!(redundancy_text(&all), "all bands have their copies");
        let lacking = json!({ "bands_lacking": 12, "bands_stuck": 0, "bytes_left": 31u64 << 30,
                              "seconds_left": 40.2 });
        assert_eq!(redundancy_text(&lacking), "12 bands lack a copy, 31 GiB to copy, done in 40 s");
        let moves = json!({ "bands_lacking": 1, "bands_stuck": 1, "bands_draining": 2,
                            "bands_spreading": 3, "nodes_away": 4 });
        let text = redundancy_text(&moves);
        for part in [
            "1 band lacks a copy (4 nodes are away",
            "1 of these wait",
            "2 to leave nodes",
            "3 to move",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let node = |number: u32, room| {
            json!({ "node": number, "domain": 1, "state": "in",
                                               "address": "a:1", "profile": "own", "room": room })
        };
        let known = json!({ "bands": 200, "bands_used": 198 });
        let status = json!({ "pool": "ab", "plane": "1.2.3.4:5", "volumes": [],
                             "nodes": [node(1, known), node(2, Value::Null)] });
        let text = as_text(&status);
        let words = |start: &str| {
            let row = text.lines().find(|line| line.starts_with(start)).expect("a row");
            row.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words("  node"), "node domain state address profile room");
        assert_eq!(words("  1"), "1 1 in a:1 own 198 of 200");
        assert_eq!(words("  2"), "2 1 in a:1 own -");
    }
}
