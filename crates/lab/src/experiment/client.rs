//! The clients of an experiment file: groups of like threads, as people write them.

use crate::load::{Client, Gather, Pace, Place};
use crate::workload::Pattern;
use flash::{Hint, quantity};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientFile {
    name: Option<String>,
    #[serde(default = "one")]
    pub threads: u32,
    depth: Option<u32>,
    batch: Option<u32>,
    rate: Option<f64>,
    /// Multiplies `rate`.
    #[serde(default = "one_f64")]
    load: f64,
    #[serde(default)]
    reads: f64,
    bytes: Bytes,
    /// Writes go down together in I/Os of this size, such as "4KiB".
    gather: Option<Bytes>,
    #[serde(default)]
    gather_wait: Duration,
    #[serde(default = "uniform")]
    pattern: String,
    #[serde(default = "whole")]
    place: String,
    #[serde(default)]
    from: f64,
    #[serde(default = "one_f64")]
    span: f64,
    #[serde(default)]
    apart: bool,
    #[serde(default)]
    erase_first: bool,
    /// Pause on average, such as "10ms".
    #[serde(default)]
    think: Duration,
    /// Bytes a second, such as "44MB".
    cap: Option<Bytes>,
    #[serde(default)]
    handle: u8,
    pub times: Option<f64>,
    #[serde(default)]
    pub steady: bool,
}

fn one() -> u32 {
    1
}
fn one_f64() -> f64 {
    1.0
}
fn uniform() -> String {
    "uniform".into()
}
fn whole() -> String {
    "whole".into()
}

/// Bytes in quotes.
#[derive(Clone, Copy)]
struct Bytes(u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = || serde::de::Error::custom(format!("{text:?} is not a size such as \"8KiB\""));
        quantity::bytes(&text).map(Self).ok_or_else(wrong)
    }
}

/// Nanoseconds in quotes.
#[derive(Clone, Copy, Default)]
pub(super) struct Duration(pub u64);

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong =
            || serde::de::Error::custom(format!("{text:?} is not a duration such as \"2s\""));
        quantity::duration_ns(&text).map(Self).ok_or_else(wrong)
    }
}

impl ClientFile {
    pub fn client(self, number: usize) -> Result<Client, String> {
        let name = self.name.unwrap_or_else(|| format!("client {}", number + 1));
        let pace = match (self.depth, self.batch, self.rate) {
            (depth, None, None) => Pace::Depth(depth.unwrap_or(1)),
            (None, Some(batch), None) => Pace::Batch(batch),
            (None, None, Some(rate)) => Pace::Rate(rate * self.load),
            _ => return Err(format!("client {name:?}: give one of depth, batch and rate")),
        };
        let wait_ns = self.gather_wait.0;
        let client = Client {
            threads: self.threads,
            pace,
            reads: self.reads,
            bytes: self.bytes.0,
            gather: self.gather.map(|bytes| Gather { bytes: bytes.0, wait_ns }),
            pattern: pattern(&self.pattern).map_err(|why| format!("client {name:?}: {why}"))?,
            place: place(&self.place).map_err(|why| format!("client {name:?}: {why}"))?,
            from: self.from,
            span: self.span,
            apart: self.apart,
            erase_first: self.erase_first,
            think_ns: self.think.0,
            cap_bytes_per_s: self.cap.map_or(0.0, |cap| cap.0 as f64),
            ios_max: 0,
            hint: Hint { handle: self.handle, ..Hint::default() },
            name,
        };
        client.validate()?;
        Ok(client)
    }
}

pub(super) fn pattern(text: &str) -> Result<Pattern, String> {
    let wrong = || {
        format!(
            "pattern = {text:?}: one of \"uniform\", \"sequential\", \"zipf:0.99\", \
             \"zipf-local:0.99\", \"hot-cold:0.2:0.8\""
        )
    };
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default();
    let numbers = parts.map(|part| part.parse::<f64>().map_err(|_| wrong()));
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    match (kind, numbers.as_slice()) {
        ("uniform", []) => Ok(Pattern::Uniform),
        ("sequential", []) => Ok(Pattern::Sequential),
        ("zipf", &[theta]) => Ok(Pattern::Zipf { theta }),
        ("zipf-local", &[theta]) => Ok(Pattern::ZipfLocal { theta }),
        ("hot-cold", &[fraction, share]) => Ok(Pattern::HotCold { fraction, share }),
        _ => Err(wrong()),
    }
}

fn place(text: &str) -> Result<Place, String> {
    Ok(match text {
        "whole" => Place::Whole,
        "lane" => Place::Lane,
        "share" => Place::Share,
        "interleaved" => Place::Interleaved,
        "interleaved-share" => Place::InterleavedShare,
        _ => {
            return Err(format!(
                "place = {text:?}: one of \"whole\", \"lane\", \"share\", \"interleaved\", \
                 \"interleaved-share\""
            ));
        }
    })
}

/// The clients of a measurement; a variable may say that a point needs none of one.
pub(super) fn clients(files: Vec<ClientFile>) -> Result<Vec<Client>, String> {
    let mut clients = Vec::new();
    for (number, file) in files.into_iter().enumerate() {
        if file.times.is_some() || file.steady {
            return Err(
                "times and steady belong into case.prepare: a client of a measurement runs \
                        until its time is over"
                    .into(),
            );
        }
        if file.threads > 0 {
            clients.push(file.client(number)?);
        }
    }
    Ok(clients)
}
