//! What a switch of policies costs requests: in virtual time what the device does after it, and processor
//! time of the thread that serves.

use super::{Figure, Goal, Request, cpu_ns, measured};
use crate::bench::policy_cost::MODULES;
use flash::SECOND;
use ftl::policy::stream::Shape;
use ftl::policy::{Chosen, catalogue};
use lab::load::Latency;
use lab::switching::{SwitchRun, SwitchSeen, cost};
use plugin::Module;

/// Each decision, another policy for it, and the default.
const DECISIONS: [(&str, &str, &str); 5] = [
    ("stream", "sepbit", "none"),
    ("victim", "cost-benefit", "greedy"),
    ("unit", "weighted-queue", "shortest-queue"),
    ("erase", "eager", "read-first"),
    ("wear", "dynamic", "static"),
];

/// Between two switches: to the other policy, then to the default nine times.
const EVERY_NS: u64 = 50_000_000;
const TURNS: usize = 10;

pub fn switches(request: &mut Request<'_>) {
    latencies(request);
    processor_time(request);
    drops(request);
}

/// Full load with switches against the same without.
fn latencies(request: &mut Request<'_>) {
    let names = |decision| ["p999", "longest-ms"].map(|what| format!("switch-{decision}-{what}"));
    let wanted = |decision| names(decision).iter().any(|name| request.wants(name));
    let decisions: Vec<_> = DECISIONS.into_iter().filter(|of| wanted(of.0)).collect();
    if decisions.is_empty() {
        return;
    }
    let measure_ns = if request.quick { 10 * SECOND } else { 60 * SECOND };
    let still = SwitchRun { measure_ns, ..SwitchRun::default() };
    let before = still.measure().map_err(|failure| failure.to_string());
    for (decision, other, default) in decisions {
        let mut switches = vec![(decision, default); TURNS];
        switches[0].1 = other;
        let run = SwitchRun { every_ns: EVERY_NS, switches, ..still.clone() };
        let both = before
            .clone()
            .and_then(|before| Ok((before, run.measure().map_err(|failure| failure.to_string())?)));
        let [p999, longest] = names(decision);
        let (near, short) = (Goal::AtMost(1.1), Goal::AtMost(1.0));
        let figures = match both {
            Ok((before, after)) => {
                [p999_of(&before, &after, p999, near), longest_of(&before, &after, longest, short)]
            }
            Err(why) => [
                Figure::missing(p999, "x", near, &why),
                Figure::missing(longest, "ms", short, &why),
            ],
        };
        for figure in figures {
            if request.wants(&figure.name) {
                (request.sink)(figure);
            }
        }
    }
}

/// The 99.9th percentile of reads or writes, whichever got worse.
fn p999_of(before: &SwitchSeen, after: &SwitchSeen, name: String, goal: Goal) -> Figure {
    let ms = |latency: &Latency| latency.quantile_ns(0.999) as f64 / 1e6;
    let reads = ms(&after.seen.reads) / ms(&before.seen.reads);
    let writes = ms(&after.seen.writes) / ms(&before.seen.writes);
    Figure::new(name, reads.max(writes), "x", goal).note(format!(
        "{} switches; reads {:.2} ms, {:.2} without; writes {:.2} ms, {:.2} without",
        after.switches,
        ms(&after.seen.reads),
        ms(&before.seen.reads),
        ms(&after.seen.writes),
        ms(&before.seen.writes)
    ))
}

/// How much longer the longest I/O that saw a switch took than the longest without.
fn longest_of(before: &SwitchSeen, after: &SwitchSeen, name: String, goal: Goal) -> Figure {
    let longest = before.seen.reads.max_ns().max(before.seen.writes.max_ns()) as f64 / 1e6;
    let beside = after.beside.max_ns() as f64 / 1e6;
    Figure::new(name, (beside - longest).max(0.0), "ms", goal)
        .note(format!("{beside:.2} ms beside a switch, {longest:.2} ms without any"))
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
