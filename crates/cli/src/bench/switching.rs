//! What a switch of policies costs requests: in virtual time what the device does after it, and processor
//! time of the thread that serves.

use super::{Figure, Goal, Request, cpu_ns, measured};
use crate::bench::policy_cost::MODULES;
use flash::SECOND;
use ftl::policy::stream::Shape;
use ftl::policy::{self, Chosen, catalogue};
use lab::load::{Latency, Pace, Seen};
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

/// Between two switches, to the other policy and back in turn. Most I/Os take much less, so that the
/// longest of those that saw a switch and of those that saw none can be compared.
const EVERY_NS: u64 = 500_000_000;

/// Of what the device can take: a load that leaves GC time to keep up, and one that does not.
const LOADS: [(&str, f64); 2] = [("", 0.85), ("-saturated", 1.0)];

pub fn switches(request: &mut Request<'_>) {
    for (suffix, share) in LOADS {
        latencies(request, suffix, share);
    }
    processor_time(request);
    drops(request);
}

/// The same load with switches, and without under either policy: where the other policy by itself is
/// the slower one, the switch is not to blame.
struct Compared {
    one: SwitchSeen,
    other: SwitchSeen,
    both: SwitchSeen,
}

fn latencies(request: &mut Request<'_>, suffix: &str, share: f64) {
    let names =
        |decision| ["p999", "longest-ms"].map(|what| format!("switch-{decision}{suffix}-{what}"));
    let wanted = |decision| names(decision).iter().any(|name| request.wants(name));
    let decisions: Vec<_> = DECISIONS.into_iter().filter(|of| wanted(of.0)).collect();
    if decisions.is_empty() {
        return;
    }
    let told = |failure: lab::driver::Failure| failure.to_string();
    let still = still(request.quick, share).map_err(told);
    for (decision, other, default) in decisions {
        let seen = still.clone().and_then(|(run, one)| {
            let steady = SwitchRun { steady: Some((decision, other)), ..run.clone() };
            let switches = vec![(decision, other), (decision, default)];
            let both = SwitchRun { every_ns: EVERY_NS, switches, ..run };
            let (other, both) = (steady.measure().map_err(told)?, both.measure().map_err(told)?);
            Ok(Compared { one, other, both })
        });
        let [p999, longest] = names(decision);
        let (near, short) = (Goal::AtMost(1.1), Goal::AtMost(1.0));
        let figures = match &seen {
            Ok(seen) => [p999_of(seen, p999, near), longest_of(seen, longest, short)],
            Err(why) => {
                [Figure::missing(p999, "x", near, why), Figure::missing(longest, "ms", short, why)]
            }
        };
        for figure in figures {
            if request.wants(&figure.name) {
                (request.sink)(figure);
            }
        }
    }
}

/// The run without a switch at this share of what the device can take, and what it saw.
fn still(quick: bool, share: f64) -> Result<(SwitchRun, SwitchSeen), lab::driver::Failure> {
    let measure_ns = if quick { 10 * SECOND } else { 60 * SECOND };
    let mut run = SwitchRun { measure_ns, ..SwitchRun::default() };
    if share < 1.0 && !quick {
        run.layout.blocks_per_plane *= 2;
    }
    let full = run.measure()?;
    if share >= 1.0 {
        return Ok((run, full));
    }
    let ios = full.seen.per_second(full.seen.reads_done + full.seen.writes_done);
    run.pace = Pace::Rate(share * ios);
    let seen = run.measure()?;
    Ok((run, seen))
}

/// The 99.9th percentile of reads or writes, whichever got worse.
fn p999_of(compared: &Compared, name: String, goal: Goal) -> Figure {
    let Compared { one, other, both } = compared;
    let ms = |latency: &Latency| latency.quantile_ns(0.999) as f64 / 1e6;
    let of = |pick: fn(&Seen) -> &Latency| [both, one, other].map(|seen| ms(pick(&seen.seen)));
    let (reads, writes) = (of(|seen| &seen.reads), of(|seen| &seen.writes));
    let ratio = |[both, one, other]: [f64; 3]| both / one.max(other);
    let told = |[both, one, other]: [f64; 3]| format!("{both:.2} ms ({one:.2}, {other:.2})");
    let per_second = both.seen.per_second(both.seen.reads_done + both.seen.writes_done);
    Figure::new(name, ratio(reads).max(ratio(writes)), "x", goal).note(format!(
        "{} switches, {per_second:.0} I/Os a second; reads {}, writes {}; in brackets without a switch, \
         under either policy",
        both.switches,
        told(reads),
        told(writes)
    ))
}

/// How much longer the longest I/O that saw a switch took than the longest that saw none, in this run
/// or in those without.
fn longest_of(compared: &Compared, name: String, goal: Goal) -> Figure {
    let Compared { one, other, both } = compared;
    let ms = |latency: &Latency| latency.max_ns() as f64 / 1e6;
    let still = |seen: &SwitchSeen| ms(&seen.seen.reads).max(ms(&seen.seen.writes));
    let (beside, apart) = (ms(&both.beside), ms(&both.apart));
    let (one, other) = (still(one), still(other));
    let longest = apart.max(one).max(other);
    Figure::new(name, (beside - longest).max(0.0), "ms", goal).note(format!(
        "{beside:.2} ms beside a switch, {apart:.2} ms between them, {one:.2} and {other:.2} ms without \
         any, under either policy"
    ))
}

/// What the thread that serves a shard spends on a switch.
fn processor_time(request: &mut Request<'_>) {
    let (name, goal) = ("switch-cpu-us", Goal::AtMost(1000.0));
    if !request.wants(name) {
        return;
    }
    let tib = if request.quick { 1.0 / 16.0 } else { 1.0 };
    let is_made = |entry: &&catalogue::Entry| policy::DECISIONS.contains(&entry.decision);
    let entries = catalogue::CATALOGUE.iter().filter(is_made);
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
                super::streams::cost(&mut **policy, 1, super::streams::BATCH);
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
