//! `weir bench`: what Weir costs on this machine, each figure beside its goal. Every figure is
//! measured when it is asked for; a figure that cannot be measured has no value and is not met.

mod core_cost;
mod crash;
mod damage;
mod front;
mod latency;
mod map_cached;
mod markdown;
mod nbd;
pub mod policy_cost;
mod pool;
mod raw;
mod restart;
mod simulated;
mod store;
mod streams;
mod switching;
mod tier_file;
mod volume_limit;

use crate::output::{print, print_json};
use crate::{End, Failure};
use serde_json::{Value, json};
use serve::cpu::process_ns as cpu_ns;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir bench                      everything: hours, as some are of large devices\n  \
    weir bench all --quick          the same on smaller devices: half an hour\n  \
    weir bench waf-greedy-28 map-bytes\n                                    what these names begin\n  \
    weir bench pool                 what a pool costs: some 3 minutes\n  \
    weir bench all --json | jq '.[] | select(.met | not)'\n  \
    weir bench all --markdown > docs/figures.md\n\n\
    Names: ftl-{read,write,tier-write,tier-write-copy}-cpu, map-cached-{zipf,dram}-{5,1},\n  \
    map-cached-hit-cpu, stream-POLICY-ns, policy-DECISION-POLICY-ns, plugin-DECISION-MODULE-ns,\n  \
    switch-DECISION{,-saturated}-{p999,longest-ms}, switch-{cpu,drop}-us, map-bytes-per-block,\n  \
    usable-capacity, recovery-seconds-per-tib, restart-SIZE, restart-1tib (when named only),\n  \
    sim-memory-per-tib, sim-rate,\n  \
    waf-{fifo,greedy}-{7,10,28}, crash-images, damage-images, raw-{bandwidth,latency}-PROFILE,\n  \
    latency-cpu, nbd-{rand,seq}-{read,write}...-vs-{nbdkit,qemu-nbd}, tier-file-write-{qd1,qd32},\n  \
    front-nvme-rand-{read,write}, vhost-rand-{read,write}, volume-limit-p99, pool-{read,write}-cpu, pool-node-{read,write}-cpu, pool-{read,write}-vs-local,\n  \
    pool-take-over-1tib, pool-turn-{1000,10000}, store-gets-{CLIENTS}x{BATCH}, store-scan-{CLIENTS}x6, store-writes,\n  \
    store-get-p99-compaction, store-{waf,capacity,plugin-cpu}\n\n\
    The nbd figures need fio, nbdkit and qemu-nbd, those of vhost qemu-storage-daemon, those of latency, tier-file, pool and volume-limit fio, those of store the engine (`./x rocksdb`). Exit status 0 says that \
    it measured, not that \
    every goal is met.")]
pub struct Args {
    /// What to measure: names, or how they begin [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print JSON: [{"name", "value", "unit", "goal", "met", "note"}]
    #[arg(long)]
    json: bool,
    /// Print a page in Markdown: the figures, the date, the machine and the commit
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// Smaller and shorter; names say where that changes what is measured
    #[arg(long)]
    quick: bool,
}

/// One measured figure.
pub struct Figure {
    name: String,
    /// `None` if it could not be measured.
    value: Option<f64>,
    unit: &'static str,
    goal: Goal,
    /// What else there is to know, in a few words; why there is no value.
    note: String,
}

/// When a figure is good enough.
#[derive(Clone, Copy)]
pub enum Goal {
    /// Not above it.
    AtMost(f64),
    /// Not below it.
    AtLeast(f64),
    /// Not farther from it than so much, as a share of it.
    Near(f64, f64),
}

impl Goal {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
            Self::Near(wanted, share) => (value / wanted - 1.0).abs() <= share,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(bound) => format!("<= {}", short(bound)),
            Self::AtLeast(bound) => format!(">= {}", short(bound)),
            Self::Near(wanted, share) => format!("{} +- {} %", short(wanted), share * 100.0),
        }
    }
}

impl Figure {
    /// A figure that was measured.
    fn new(name: impl Into<String>, value: f64, unit: &'static str, goal: Goal) -> Self {
        Self { name: name.into(), value: Some(value), unit, goal, note: String::new() }
    }

    /// A figure that could not be measured. Says why on standard error too.
    fn missing(name: impl Into<String>, unit: &'static str, goal: Goal, why: &str) -> Self {
        let name = name.into();
        eprintln!("{name}: not measured: {why}");
        Self { name, value: None, unit, goal, note: why.into() }
    }

    fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    fn is_met(&self) -> bool {
        self.value.is_some_and(|value| self.goal.is_met(value))
    }

    fn as_json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "goal": self.goal.text(),
            "met": self.is_met(),
            "note": self.note,
        })
    }

    fn as_row(&self) -> String {
        let value = self.value.map_or("none".into(), short);
        let met = if self.is_met() { "met" } else { "MISSED" };
        let row = format!(
            "{:36} {value:>10} {:12} {:>16}  {met:6}  {}",
            self.name,
            self.unit,
            self.goal.text(),
            self.note
        );
        format!("{}\n", row.trim_end())
    }
}

/// A result, or the figure without one.
fn measured<E: std::fmt::Display>(
    name: &str,
    unit: &'static str,
    goal: Goal,
    result: Result<Figure, E>,
) -> Figure {
    result.unwrap_or_else(|why| Figure::missing(name, unit, goal, &why.to_string()))
}

/// A number with three or four digits that mean something.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2}e6", value / 1e6),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".into(),
        _ => format!("{value:.3}"),
    }
}

/// What was asked for.
pub struct Request<'a> {
    names: &'a [String],
    quick: bool,
    /// Takes each figure as it comes.
    sink: &'a mut dyn FnMut(Figure),
}

impl Request<'_> {
    /// True if the figure is wanted.
    fn wants(&self, figure: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == "all" || begins(figure, name))
    }

    /// True if a figure whose name begins with `group` may be wanted.
    fn wants_any(&self, group: &str) -> bool {
        self.wants(group) || self.names.iter().any(|name| begins(name, group))
    }
}

/// True if `name` is `start`, or goes on after it with a hyphen.
fn begins(name: &str, start: &str) -> bool {
    name.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

type Group = fn(&mut Request<'_>);

/// How the names of a group's figures begin, and what measures them. Those that take time come first, so
/// that only for them the machine must be quiet; from `raw` on are figures that no other work changes.
const GROUPS: [(&str, Group); 27] = [
    ("map-bytes-per-block", core_cost::map_bytes),
    ("ftl-read-cpu", core_cost::read_cpu),
    ("ftl-write-cpu", core_cost::write_cpu),
    ("ftl-tier-write-cpu", core_cost::tier_cpu),
    ("ftl-tier-write-copy-cpu", core_cost::tier_copy_cpu),
    ("map-cached", map_cached::figures),
    ("stream", streams::policies),
    ("policy", policy_cost::built_in),
    ("plugin", policy_cost::modules),
    ("switch", switching::switches),
    ("sim-rate", simulated::sim_rate),
    ("recovery-seconds-per-tib", simulated::recovery),
    ("restart", restart::after_kills),
    ("latency-cpu", latency::recording),
    ("nbd", nbd::against_peers),
    ("front", front::nvme_beside_nbd),
    ("vhost", front::beside_qemu),
    ("volume-limit", volume_limit::figures),
    ("pool", pool::figures),
    ("tier-file", tier_file::against_file_system),
    ("store", store::figures),
    ("raw", raw::identities),
    ("sim-memory-per-tib", simulated::memory),
    ("waf", simulated::waf),
    ("usable-capacity", simulated::usable_capacity),
    ("crash-images", crash::images),
    ("damage-images", damage::images),
];

pub fn run(args: &Args) -> Result<End, Failure> {
    let known = |name: &&String| {
        *name == "all" || GROUPS.iter().any(|(group, _)| begins(name, group) || begins(group, name))
    };
    if let Some(unknown) = args.names.iter().find(|name| !known(name)) {
        let names = GROUPS.map(|(group, _)| group).join(", ");
        return Err(format!(
            "bench {unknown}: there is no such figure: there are {names}, and all"
        ));
    }
    let mut figures = Vec::new();
    let mut sink = |figure: Figure| {
        if args.markdown {
            if figures.is_empty() {
                print(&markdown::head(&markdown::Place::here(&args.names, args.quick)));
            }
            print(&markdown::row(&figure));
        } else if !args.json {
            print(&figure.as_row());
        }
        figures.push(figure);
    };
    for (group, measure) in GROUPS {
        let mut request = Request { names: &args.names, quick: args.quick, sink: &mut sink };
        if request.wants_any(group) {
            measure(&mut request);
        }
    }
    if figures.is_empty() {
        return Err(format!(
            "bench {}: there is no such figure: `weir bench --help` names all",
            args.names.join(" ")
        ));
    }
    if args.markdown {
        print(&markdown::end(&figures));
    } else if args.json {
        print_json(&figures.iter().map(Figure::as_json).collect());
    } else {
        print(&format!("{}\n", goals_met(&figures)));
    }
    Ok(End::Good)
}

fn goals_met(figures: &[Figure]) -> String {
    let met = figures.iter().filter(|figure| figure.is_met()).count();
    format!("{met} of {} goals met", figures.len())
}

/// Processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that this process has allocated and not given back.
fn allocated_bytes() -> usize {
    // SAFETY: it only reads the allocator's counts.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::{Figure, Goal, begins, median, short};

    #[test]
    fn a_goal_is_met_at_its_bound_and_never_without_a_value() {
        assert!(Goal::AtMost(5.0).is_met(5.0) && !Goal::AtMost(5.0).is_met(5.1));
        assert!(Goal::AtLeast(5.0).is_met(5.0) && !Goal::AtLeast(5.0).is_met(4.9));
        assert!(Goal::Near(2.0, 0.03).is_met(1.95) && !Goal::Near(2.0, 0.03).is_met(2.07));
        let figure = Figure::missing("x", "ns", Goal::AtMost(1.0), "no reason");
        assert!(!figure.is_met());
        let json = figure.as_json();
        assert_eq!((json["value"].is_null(), json["met"].as_bool()), (true, Some(false)));
    }

    #[test]
    fn names_are_chosen_by_how_they_begin() {
        assert!(begins("waf-fifo-7", "waf") && begins("waf-fifo-7", "waf-fifo"));
        assert!(begins("waf", "waf") && !begins("waffle", "waf") && !begins("waf", "waf-fifo"));
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [1.25e6, 7.817, 98.53, 243.2, 0.0].map(short);
        assert_eq!(numbers, ["1.25e6", "7.817", "98.5", "243", "0"]);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
    }
}
