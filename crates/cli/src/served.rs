//! A running server that a command looks at or changes over its HTTP: where it is, and one request to it.

use crate::Failure;
use crate::status::PlaceArgs;
use client::http::{Answer, Place, request};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Which server, and how its answer is told.
#[derive(clap::Args)]
pub struct Served {
    /// The folder of the device that is served
    #[arg(long, value_name = "DIR", default_value = crate::device::DATA_DEFAULT, global = true)]
    data: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

impl Served {
    /// Where it is.
    pub fn place(&self) -> Result<Place, Failure> {
        self.place.find(&self.data)
    }
}

/// One request; a refusal is an error with the server's reason. What is posted, or patched, is JSON.
pub fn ask(
    place: &Place,
    (method, path): (&str, &str),
    body: &[u8],
    patience: Duration,
) -> Result<Value, Failure> {
    let is_json = ["POST", "PATCH"].contains(&method);
    let head = if is_json { "Content-Type: application/json\r\n" } else { "" };
    let answer: Answer = request(place, (method, path), head, body, patience)?;
    match answer.status {
        200 => serde_json::from_slice(&answer.body)
            .map_err(|error| format!("{place}{path}: no JSON: {error}: is it Weir?")),
        _ => Err(answer.reason()),
    }
}
