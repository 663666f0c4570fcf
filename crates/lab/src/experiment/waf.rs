//! A case that is about write amplification alone: a list of writes under a stream policy on the
//! production FTL, on flash that takes no time ([`crate::streams`]).

use super::file::pattern;
use crate::driver::Failure;
use crate::streams::StreamRun;
use crate::theory;
use crate::workload::Pattern;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WafFile {
    stream: String,
    bands: u32,
    slots: u32,
    op: f64,
    overwrites: f64,
    pattern: String,
    #[serde(default = "victim")]
    victim: String,
}

fn victim() -> String {
    StreamRun::default().victim
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WafCase {
    pub stream: String,
    pub run: StreamRun,
    pub traces: Vec<PathBuf>,
}

impl WafFile {
    pub fn case(self) -> Result<WafCase, String> {
        let wrong = |key: &str, value: &dyn std::fmt::Display, mend: &str| {
            Err(format!("waf.{key} = {value}: {mend}"))
        };
        if !(16..=1 << 20).contains(&self.bands) {
            return wrong("bands", &self.bands, "16 to 1048576, for example 1024");
        }
        if !(16..=4096).contains(&self.slots) {
            return wrong("slots", &self.slots, "16 to 4096 blocks of 4 KiB, for example 128");
        }
        if !(1.0..=1000.0).contains(&self.op) {
            return wrong("op", &self.op, "over-provisioning of 1 to 1000 %, for example 10");
        }
        if !(1.0..=1000.0).contains(&self.overwrites) {
            return wrong("overwrites", &self.overwrites, "1 to 1000, for example 8");
        }
        let run = StreamRun {
            bands: self.bands,
            slots_per_band: self.slots,
            op_percent: self.op,
            overwrites: self.overwrites,
            pattern: pattern(&self.pattern).map_err(|why| format!("waf: {why}"))?,
            victim: self.victim,
            ..StreamRun::default()
        };
        Ok(WafCase { stream: self.stream, run, traces: Vec::new() })
    }
}

impl WafCase {
    /// Measures it.
    pub fn measure(&self, seed: u64) -> Result<BTreeMap<String, f64>, Failure> {
        let run = StreamRun { seed, ..self.run.clone() };
        let waf = run.measure(&self.stream)?;
        let mut values = BTreeMap::from([
            ("waf".to_owned(), waf.waf),
            ("waf_all".to_owned(), waf.waf_all),
            ("alpha".to_owned(), waf.alpha),
            ("handles".to_owned(), f64::from(waf.handles)),
        ]);
        let optimum = match run.pattern {
            Pattern::HotCold { fraction, share } => {
                Some(theory::waf_two_classes(waf.alpha, fraction, share))
            }
            Pattern::Uniform => Some(theory::waf_fifo(waf.alpha)),
            _ => None,
        };
        if let Some(optimum) = optimum {
            values.insert("optimum".to_owned(), optimum);
            values.insert("over_optimum".to_owned(), 100.0 * (waf.waf / optimum - 1.0));
        }
        Ok(values)
    }
}
