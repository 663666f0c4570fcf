//! Tenants of a case, as the experiment file says them, and the traces they need.

use super::client::Duration;
use super::file::Case;
use crate::tenant::{Kind, Part};
use serde::Deserialize;
use std::path::{Path, PathBuf};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantFile {
    name: String,
    kind: String,
    #[serde(default = "one")]
    share: f64,
    #[serde(default)]
    depth: u32,
    think: Option<Duration>,
    #[serde(default)]
    trims: bool,
    trace: Option<PathBuf>,
    #[serde(default)]
    profile: bool,
}

fn one() -> f64 {
    1.0
}

impl TenantFile {
    pub fn part(self) -> Result<Part, String> {
        let place = format!("tenant {:?}", self.name);
        let kind = match (self.kind.as_str(), &self.trace) {
            ("mysql", None) => Kind::Mysql,
            ("cassandra", None) => Kind::Cassandra { trims: self.trims },
            ("postgresql", None) => Kind::Postgresql,
            ("sqlite", None) => Kind::Sqlite,
            ("log", None) => Kind::Log,
            ("recorded", Some(trace)) => Kind::Recorded(trace.clone()),
            ("recorded", None) => return Err(format!("{place}: trace = \"FILE\" is missing")),
            ("mysql" | "cassandra" | "postgresql" | "sqlite" | "log", Some(_)) => {
                return Err(format!("{place}: only a tenant of kind \"recorded\" has a trace"));
            }
            (other, _) => {
                return Err(format!(
                    "{place}: kind = {other:?}: one of \"mysql\", \"cassandra\", \
                     \"postgresql\", \"sqlite\", \"log\", \"recorded\""
                ));
            }
        };
        if self.trims && !matches!(kind, Kind::Cassandra { .. }) {
            return Err(format!("{place}: trims: only Cassandra deletes files"));
        }
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(format!("{place}: share = {}: above 0 and at most 1", self.share));
        }
        if self.depth > 10_000 {
            return Err(format!("{place}: depth = {}: at most 10000", self.depth));
        }
        Ok(Part {
            name: self.name,
            kind,
            share: self.share,
            depth: self.depth,
            think_ns: self.think.map(|think| think.0),
            profiled: self.profile,
        })
    }
}

/// What is missing of the traces of a case, and what mends it.
pub(super) fn missing_traces(case: &Case) -> Option<String> {
    let recorded = case.tenants.iter().filter_map(|tenant| match &tenant.kind {
        Kind::Recorded(path) => Some(path),
        _ => None,
    });
    let listed = case.waf.iter().flat_map(|waf| &waf.traces);
    recorded.chain(listed).find_map(|path| missing(path))
}

fn missing(path: &Path) -> Option<String> {
    (!path.is_file()).then(|| {
        format!(
            "trace {}: there is no such file from here; run it where the traces are, or say where: \
             --set traces=FOLDER of weir lab run",
            path.display()
        )
    })
}
