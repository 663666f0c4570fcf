//! A case that is about write amplification alone: a list of writes and trims under a stream policy
//! on the production FTL, on flash that takes no time ([`crate::streams`]). The list is drawn from a
//! pattern, or recorded: one trace, or several as tenants of one device, a request of each in turn.

use super::client::pattern;
use crate::driver::{Failure, REQUEST_BLOCKS_MAX};
use crate::streams::{Change, ChangeKind, Changes, Rounds, StreamDevice, StreamRun, StreamWaf};
use crate::target::IoKind;
use crate::tenant::{self, Request};
use crate::theory;
use crate::workload::Pattern;
use flash::{BLOCK_BYTES, Random};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WafFile {
    stream: String,
    /// Of the volume; a recorded one is as large as what it touches.
    #[serde(default)]
    bands: u32,
    slots: u32,
    op: f64,
    #[serde(default)]
    overwrites: f64,
    pattern: Option<String>,
    #[serde(default)]
    traces: String,
    #[serde(default)]
    files: Vec<PathBuf>,
    /// How often a recorded list is gone through before it is measured, and while it is.
    #[serde(default)]
    warm: f64,
    #[serde(default)]
    measured: f64,
    #[serde(default = "victim")]
    victim: String,
}

fn victim() -> String {
    StreamRun::default().victim
}

/// Where the list comes from.
#[derive(Clone, Debug, PartialEq)]
enum Source {
    Pattern(Pattern),
    /// So many classes of one size, each written so many times as often as the next.
    Classes(u32, f64),
    Traces {
        warm: f64,
        measured: f64,
    },
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WafCase {
    stream: String,
    run: StreamRun,
    source: Source,
    pub traces: Vec<PathBuf>,
}

impl WafFile {
    pub fn case(self) -> Result<WafCase, String> {
        let wrong = |key: &str, value: &dyn std::fmt::Display, mend: &str| {
            Err(format!("waf.{key} = {value}: {mend}"))
        };
        if !(16..=4096).contains(&self.slots) {
            return wrong("slots", &self.slots, "16 to 4096 blocks of 4 KiB, for example 128");
        }
        if !(1.0..=1000.0).contains(&self.op) {
            return wrong("op", &self.op, "over-provisioning of 1 to 1000 %, for example 10");
        }
        let mut pattern_of_run = Pattern::Uniform;
        let source = match (&self.pattern, self.files.is_empty()) {
            (None, false) => {
                for (key, value) in [("warm", self.warm), ("measured", self.measured)] {
                    if !(value > 0.0 && value <= 100.0) {
                        return wrong(key, &value, "above 0 and at most 100 rounds, such as 1.0");
                    }
                }
                Source::Traces { warm: self.warm, measured: self.measured }
            }
            (Some(text), true) => {
                if !(16..=1 << 20).contains(&self.bands) {
                    return wrong("bands", &self.bands, "16 to 1048576, for example 1024");
                }
                if !(1.0..=1000.0).contains(&self.overwrites) {
                    return wrong("overwrites", &self.overwrites, "1 to 1000, for example 8");
                }
                match classes(text)? {
                    Some((count, ratio)) => Source::Classes(count, ratio),
                    None => {
                        let found = pattern(text).map_err(|why| format!("waf: {why}"))?;
                        pattern_of_run = found;
                        Source::Pattern(found)
                    }
                }
            }
            _ => return Err("waf: give a pattern, or files of traces, and not both".into()),
        };
        let run = StreamRun {
            bands: self.bands,
            slots_per_band: self.slots,
            op_percent: self.op,
            overwrites: self.overwrites,
            pattern: pattern_of_run,
            victim: self.victim,
            ..StreamRun::default()
        };
        let folder = PathBuf::from(self.traces);
        let traces = self.files.iter().map(|file| folder.join(file)).collect();
        Ok(WafCase { stream: self.stream, run, source, traces })
    }
}

/// `classes:8:2`: how many, and the ratio from one to the next.
fn classes(text: &str) -> Result<Option<(u32, f64)>, String> {
    let Some(rest) = text.strip_prefix("classes:") else { return Ok(None) };
    let parsed = rest
        .split_once(':')
        .and_then(|(count, ratio)| Some((count.parse::<u32>().ok()?, ratio.parse::<f64>().ok()?)));
    let legal = parsed
        .filter(|&(count, ratio)| (2..=16).contains(&count) && (1.0..=100.0).contains(&ratio));
    let wrong = || {
        format!("waf.pattern = {text:?}: 2 to 16 classes and a ratio of 1 to 100: \"classes:8:2\"")
    };
    legal.map(Some).ok_or_else(wrong)
}

/// Shares of the data and of the writes.
fn shares(count: u32, ratio: f64) -> Vec<(f64, f64)> {
    let weights: Vec<f64> = (0..count).map(|class| libm::pow(ratio, -f64::from(class))).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (1.0 / f64::from(count), weight / sum)).collect()
}

impl WafCase {
    /// Every seed gives the same: the list is recorded, and no policy draws.
    pub fn draws_nothing(&self) -> bool {
        matches!(self.source, Source::Traces { .. }) && !draws(&self.run.victim)
    }

    /// Measures it.
    pub fn measure(&self, seed: u64) -> Result<BTreeMap<String, f64>, Failure> {
        let run = StreamRun { seed, ..self.run.clone() };
        let waf = match &self.source {
            Source::Pattern(_) => run.measure(&self.stream)?,
            Source::Classes(count, ratio) => {
                let changes = self.classes_list(*count, *ratio, seed);
                self.measure_list(&changes, 0.5, 0.5, seed)?
            }
            Source::Traces { warm, measured } => {
                self.measure_list(&self.recorded()?, *warm, *measured, seed)?
            }
        };
        let mut values = BTreeMap::from([
            ("waf".to_owned(), waf.waf),
            ("waf_all".to_owned(), waf.waf_all),
            ("alpha".to_owned(), waf.alpha),
            ("handles".to_owned(), f64::from(waf.handles)),
        ]);
        let optimum = match self.source {
            Source::Pattern(Pattern::HotCold { fraction, share }) => {
                Some(theory::waf_two_classes(waf.alpha, fraction, share))
            }
            Source::Pattern(Pattern::Uniform) => Some(theory::waf_fifo(waf.alpha)),
            Source::Classes(count, ratio) => {
                Some(theory::waf_classes(waf.alpha, &shares(count, ratio)))
            }
            _ => None,
        };
        if let Some(optimum) = optimum {
            values.insert("optimum".to_owned(), optimum);
            values.insert("over_optimum".to_owned(), 100.0 * (waf.waf / optimum - 1.0));
        }
        Ok(values)
    }

    fn measure_list(
        &self,
        changes: &Changes,
        warm: f64,
        measured: f64,
        seed: u64,
    ) -> Result<StreamWaf, Failure> {
        let device = StreamDevice {
            slots_per_band: self.run.slots_per_band,
            op_percent: self.run.op_percent,
            victim: self.run.victim.clone(),
            checkpoint_slots: 0,
            seed,
        };
        let times = |rounds: f64| ((changes.list.len() as f64 * rounds) as u64).max(1);
        let (warm, each) = (times(warm), times(measured));
        let rounds = Rounds { warm, each, parts: 1, least: 1, most: 1 };
        device.measure(changes, &self.stream, rounds, &mut |_| {})
    }

    /// The class of each write is its hint.
    fn classes_list(&self, count: u32, ratio: f64, seed: u64) -> Changes {
        let logical_blocks = self.run.logical_blocks();
        let blocks = logical_blocks / count;
        let shares = shares(count, ratio);
        let mut random = Random::new(seed);
        let draw = |_| {
            let mut drawn = random.fraction();
            let class = shares.iter().position(|&(_, share)| {
                drawn -= share;
                drawn < 0.0
            });
            let class = class.map_or(count - 1, |class| class as u32);
            let lba = class * blocks + random.below(u64::from(blocks)) as u32;
            Change { lba, blocks: 1, kind: ChangeKind::Write, handle: class as u8 }
        };
        let writes = (f64::from(logical_blocks) * self.run.overwrites) as usize;
        let list = (0..writes).map(draw).collect();
        let fill_handles = (0..blocks * count).map(|lba| (lba / blocks) as u8).collect();
        Changes { logical_blocks: blocks * count, fill_handles, list }
    }

    /// A request of each trace in turn, the shorter ones again from their start, until the longest has
    /// ended.
    fn recorded(&self) -> Result<Changes, Failure> {
        let block = BLOCK_BYTES as u64;
        let (mut lists, mut base) = (Vec::new(), 0u64);
        for (number, path) in (0..).zip(&self.traces) {
            let (requests, bytes) = tenant::requests(path).map_err(Failure)?;
            let changes = |request: &Request| changes_of(request, base, number);
            lists.push(requests.iter().map(changes).collect::<Vec<_>>());
            base += bytes / block;
        }
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let turns =
            (0..longest).flat_map(|at| lists.iter().map(move |list| &list[at % list.len()]));
        let list = turns.flatten().copied().collect();
        let logical_blocks = u32::try_from(base)
            .map_err(|_| Failure(format!("traces of {base} blocks: too many for one device")))?;
        Ok(Changes { logical_blocks, fill_handles: vec![0; logical_blocks as usize], list })
    }
}

/// What a request changes, `base` blocks further on.
fn changes_of(&(kind, offset, bytes): &Request, base: u64, handle: u8) -> Vec<Change> {
    let block = BLOCK_BYTES as u64;
    let kind = match kind {
        IoKind::Write => ChangeKind::Write,
        IoKind::Erase => ChangeKind::Trim,
        IoKind::Read | IoKind::Flush => return Vec::new(),
    };
    let (first, end) = (base + offset / block, base + (offset + bytes) / block);
    let step = REQUEST_BLOCKS_MAX as usize;
    let change = |lba: u64| {
        let blocks = (end - lba).min(u64::from(REQUEST_BLOCKS_MAX)) as u16;
        Change { lba: lba as u32, blocks, kind, handle }
    };
    (first..end).step_by(step).map(change).collect()
}

/// Whether a victim policy draws what it looks at.
fn draws(victim: &str) -> bool {
    victim.starts_with("d-choices") || victim.starts_with("age-adaptive")
}
