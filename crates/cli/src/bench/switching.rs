//! What a switch of policies costs requests: in virtual time what the device does after it, and processor
//! time of the thread that serves.

use super::{Figure, Goal, Request, cpu_ns, measured};
use crate::bench::policy_cost::MODULES;
use flash::SECOND;
use ftl::policy::stream::Shape;
use ftl::policy::{Chosen, catalogue};
use lab::switching::{SwitchRun, SwitchSeen, cost};
use plugin::Module;

/// Each decision to another policy and back.
const SWITCHES: [(&str, &str); 10] = [
    ("stream", "sepbit"),
    ("stream", "none"),
    ("victim", "cost-benefit"),
    ("victim", "greedy"),
    ("unit", "weighted-queue"),
    ("unit", "shortest-queue"),
    ("erase", "idle"),
    ("erase", "read-first"),
    ("wear", "dynamic"),
    ("wear", "static"),
];

/// Between two switches.
const EVERY_NS: u64 = 50_000_000;

pub fn switches(request: &mut Request<'_>) {
    latencies(request);
    processor_time(request);
    drops(request);
}

/// Full load with switches against the same without.
fn latencies(request: &mut Request<'_>) {
    let names = ["switch-read-p999", "switch-write-p999", "switch-longest-ms"];
    if !names.iter().any(|name| request.wants(name)) {
        return;
    }
    let measure_ns = if request.quick { 10 * SECOND } else { 60 * SECOND };
    let still = SwitchRun { measure_ns, ..SwitchRun::default() };
    let every = SwitchRun { every_ns: EVERY_NS, switches: SWITCHES.to_vec(), ..still.clone() };
    let both = still.measure().and_then(|still| Ok((still, every.measure()?)));
    let both = both.map_err(|failure| failure.to_string());
    let p999 = |name: &'static str, of: fn(&SwitchSeen) -> f64| {
        let goal = Goal::AtMost(1.1);
        let figure = both.as_ref().map(|(still, switched)| {
            Figure::new(name, of(switched) / of(still), "x", goal).note(format!(
                "{:.2} ms with {} switches, {:.2} without; no I/O failed",
                of(switched),
                switched.switches,
                of(still)
            ))
        });
        measured(name, "x", goal, figure)
    };
    let longest = |seen: &SwitchSeen| {
        let seen = &seen.seen;
        seen.reads.max_ns().max(seen.writes.max_ns()) as f64 / 1e6
    };
    let goal = Goal::AtMost(1.0);
    let figure = both.as_ref().map(|(still, switched)| {
        let beside = switched.beside.max_ns() as f64 / 1e6;
        let more = (beside - longest(still)).max(0.0);
        Figure::new(names[2], more, "ms", goal).note(format!(
            "the longest I/O that saw a switch, {beside:.1} ms, beyond the longest of all without, \
             {:.1} ms",
            longest(still)
        ))
    });
    let figures = [
        p999(names[0], |seen| seen.seen.reads.quantile_ns(0.999) as f64 / 1e6),
        p999(names[1], |seen| seen.seen.writes.quantile_ns(0.999) as f64 / 1e6),
        measured(names[2], "ms", goal, figure),
    ];
    for figure in figures {
        if request.wants(&figure.name) {
            (request.sink)(figure);
        }
    }
}

/// What the thread that serves a shard spends on a switch.
fn processor_time(request: &mut Request<'_>) {
    let (name, goal) = ("switch-cpu-us", Goal::AtMost(1000.0));
    if !request.wants(name) {
        return;
    }
    let tib = if request.quick { 1.0 / 16.0 } else { 1.0 };
    let entries = catalogue::CATALOGUE.iter().filter(|entry| entry.decision != "replica");
    let all: Vec<_> = entries.map(|entry| (entry.decision, entry.name)).collect();
    let figure = cost(tib, &all, cpu_ns).map(|ns| {
        Figure::new(name, ns as f64 / 1e3, "us", goal)
            .note(format!("the dearest of {} switches, on {tib} TiB", all.len()))
    });
    (request.sink)(measured(name, "us", goal, figure));
}

/// What it takes to drop a policy: one that broke is dropped by the thread that serves.
fn drops(request: &mut Request<'_>) {
    let (name, goal) = ("switch-drop-us", Goal::AtMost(1000.0));
    if !request.wants(name) {
        return;
    }
    let figure = dearest_drop().map(|(ns, which)| {
        Figure::new(name, ns as f64 / 1e3, "us", goal)
            .note(format!("a policy of the module {which}, the dearest of {}", MODULES.len()))
    });
    (request.sink)(measured(name, "us", goal, figure));
}

fn dearest_drop() -> Result<(u64, &'static str), String> {
    const TIMES: u32 = 5;
    let shape = Shape { blocks: super::streams::BLOCKS, handles: 8 };
    let mut dearest = (0, "");
    for (name, code) in MODULES {
        let module = Module::load(name, code).map_err(|error| error.to_string())?;
        let decision = module.kinds()[0].decision();
        let mut least = u64::MAX;
        for _ in 0..TIMES {
            let mut chosen = module.make(decision, shape)?;
            if let Chosen::Stream(policy) = &mut chosen {
                // Its memory is there once it was used.
                super::streams::cost(&mut **policy, 1);
            }
            let begun = cpu_ns();
            drop(chosen);
            least = least.min(cpu_ns() - begun);
        }
        if least > dearest.0 {
            dearest = (least, name);
        }
    }
    Ok(dearest)
}
