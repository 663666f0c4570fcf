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
        text += &volumes_text(&volumes);
    }
    for volume in &volumes {
        let lacking = volume["bands_lacking"].as_u64().unwrap_or(0);
        if lacking > 0 {
            text += &format!("  {}: {lacking} bands lack a copy\n", word(&volume["name"]));
        }
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
                             "degraded": "pause", "owner": owner, "bands_lacking": 2 });
        let mut status = json!({ "pool": "ab", "plane": "1.2.3.4:5", "nodes": [node],
                                 "volumes": [volume], "controller": null });
        let text = as_text(&status);
        for part in
            ["replaced by 7", "1 TiB", "none since generation 4", "2 bands lack", "none is elected"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        status["controller"] = json!({ "address": "a:1", "error": "a:1: does not answer" });
        assert!(as_text(&status).contains("controller: a:1: does not answer"));
        status["controller"] = json!({ "address": "a:1", "plan": { "text": "policy solver" } });
        assert!(as_text(&status).contains("controller a:1: policy solver"));
    }
}
