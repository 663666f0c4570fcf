//! The advice as a [`Report`]: a page with plots of write amplification and latency.

use super::{Advice, Choice, Row};
use crate::load::Latency;
use crate::report::{Axis, Column, Figure, Origin, Report, Scale, Series, Style, Table, Value};

/// The advice on `trace`, as `command` got it with `seed`.
pub fn report(advice: &Advice, choice: &Choice, trace: &str, command: &str, seed: u64) -> Report {
    let chosen = &advice.rows[choice.row];
    let mut figures =
        vec![waf_by_combination(advice, chosen), latency_by_combination(advice, chosen)];
    if advice.bounds.len() > 1 {
        figures.push(waf_by_op(advice, chosen));
    }
    Report {
        name: "advise".into(),
        title: format!("What pays on {} for {trace}", advice.device),
        summary: format!("{}\n\n{}", choice.why, said(advice)),
        source: trace.into(),
        command: command.into(),
        seed,
        scale: if advice.facts.sample > 1 {
            format!("1/{} of the address space", advice.facts.sample)
        } else {
            "the whole trace".into()
        },
        parameters: Vec::new(),
        figures,
        tables: vec![table(advice)],
        claims: Vec::new(),
        notes: how(advice),
    }
}

/// What was done with the trace, in sentences.
fn said(advice: &Advice) -> String {
    how(advice).first().cloned().unwrap_or_default()
}

/// How it was measured: one sentence for each thing that a reader must know.
pub fn how(advice: &Advice) -> Vec<String> {
    let facts = &advice.facts;
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let sample = match facts.sample {
        1 => String::new(),
        share => format!(
            " One in {share} regions of 1 MiB was taken, chosen by address; rates and lifetimes are of all."
        ),
    };
    let mut notes = vec![format!(
        "The device is fitted to the trace: {} volumes of {} in all touch {} in extents of 1 MiB, which \
         lie packed on a device of {}, filled before anything is measured.{sample}",
        facts.volumes,
        mib(facts.span_bytes),
        mib(facts.touched_bytes),
        mib(facts.logical_bytes),
    )];
    let rounds = advice.rows.iter().map(|row| row.waf.rounds.len());
    let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    let unsteady: Vec<String> =
        advice.rows.iter().filter(|row| !row.waf.steady).map(name_and_op).collect();
    notes.push(format!(
        "WAF by GC is measured on flash that takes no time, bands of {} blocks, the trace's writes and trims \
         in a loop: {least} to {most} rounds, each at least the capacity, until two agree within 2 %; the last counts.{}",
        advice.slots_per_band,
        if unsteady.is_empty() {
            " All came to a steady state.".to_string()
        } else {
            format!(" NOT in steady state: {}.", unsteady.join("; "))
        }
    ));
    notes.push(format!(
        "Latencies and overhead (padding, checkpoints) are measured on the device itself, with its times, filled and \
         then aged by writes of its capacity: the last {} requests by their timestamps, {} as \
         recorded, from when each was due.",
        advice.timed_requests,
        if advice.load == 1.0 { "as fast".into() } else { format!("{} times as fast", advice.load) },
    ));
    notes.push(
        "The oracle sorts by the true death times into 12 classes, victims by cost-benefit. Lifetime is \
         endurance x flash / (write rate x (WAF + overhead))."
            .into(),
    );
    if facts.wipes > 0 {
        notes.push(format!(
            "{} trims of more than a tenth of the space were left out: a new file system comes once, \
             not in every round.",
            facts.wipes
        ));
    }
    if facts.cut {
        notes.push(format!("Only the first {} requests were read.", facts.requests));
    }
    notes
}

fn name_and_op(row: &Row) -> String {
    format!("{} at {} %", row.name(), row.op_percent)
}

fn axis(label: &str, unit: &str, scale: Scale, categories: Option<Vec<String>>) -> Axis {
    Axis { label: label.into(), unit: unit.into(), scale, categories }
}

fn series(name: &str, origin: Origin, style: Style, points: Vec<(f64, f64)>) -> Series {
    Series { name: name.into(), origin, style, points, error_bars: None }
}

/// The rows that share the over-provisioning of the choice.
fn alike<'a>(advice: &'a Advice, chosen: &'a Row) -> impl Iterator<Item = &'a Row> {
    advice.rows.iter().filter(|row| row.op_percent == chosen.op_percent)
}

fn names(advice: &Advice, chosen: &Row) -> Option<Vec<String>> {
    Some(alike(advice, chosen).map(Row::name).collect())
}

fn points(rows: impl Iterator<Item = f64>) -> Vec<(f64, f64)> {
    rows.enumerate().map(|(index, value)| (index as f64, value)).collect()
}

fn waf_by_combination(advice: &Advice, chosen: &Row) -> Figure {
    let waf = points(alike(advice, chosen).map(|row| row.waf.waf));
    let bound = advice.bound_of(chosen).map_or(1.0, |bound| bound.waf.waf);
    let oracle = waf.iter().map(|&(x, _)| (x, bound)).collect();
    Figure {
        id: "waf".into(),
        title: format!("Write amplification by GC, {} % of over-provisioning", chosen.op_percent),
        x: axis("", "", Scale::Linear, names(advice, chosen)),
        y: axis("WAF", "", Scale::Linear, None),
        series: vec![
            series("combination", Origin::Weir, Style::Bars, waf),
            series("oracle", Origin::Bound, Style::Line, oracle),
        ],
        note: String::new(),
    }
}

fn latency_by_combination(advice: &Advice, chosen: &Row) -> Figure {
    type Of = fn(&Row) -> f64;
    let lines: [(&str, Origin, Of); 4] = [
        ("reads, p99.9", Origin::Weir, |row| row.timed.reads.quantile_ns(0.999) as f64 / 1e9),
        ("reads, mean", Origin::Bound, |row| row.timed.reads.mean_ns() / 1e9),
        ("writes, p99.9", Origin::Paper, |row| row.timed.writes.quantile_ns(0.999) as f64 / 1e9),
        ("writes, mean", Origin::Baseline, |row| row.timed.writes.mean_ns() / 1e9),
    ];
    let seen = |of: &Of| alike(advice, chosen).all(|row| of(row) > 0.0);
    let series = lines.iter().filter(|(_, _, of)| seen(of)).map(|&(name, origin, of)| {
        series(name, origin, Style::Points, points(alike(advice, chosen).map(of)))
    });
    Figure {
        id: "latency".into(),
        title: format!("Latency, {} % of over-provisioning", chosen.op_percent),
        x: axis("", "", Scale::Linear, names(advice, chosen)),
        y: axis("latency", "s", Scale::Log, None),
        series: series.collect(),
        note: String::new(),
    }
}

fn waf_by_op(advice: &Advice, chosen: &Row) -> Figure {
    let of = |matches: &dyn Fn(&Row) -> bool| {
        let rows = advice.rows.iter().filter(|row| matches(row));
        let mut points: Vec<_> = rows.map(|row| (row.op_percent, row.waf.waf)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let mut oracle: Vec<_> =
        advice.bounds.iter().map(|bound| (bound.op_percent, bound.waf.waf)).collect();
    oracle.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut lines = vec![series("oracle", Origin::Bound, Style::Line, oracle)];
    let same = |row: &Row| row.stream == chosen.stream && row.victim == chosen.victim;
    lines.push(series(&chosen.name(), Origin::Weir, Style::Line, of(&same)));
    let none = |row: &Row| row.stream.starts_with("none") && row.victim == chosen.victim;
    if !chosen.stream.starts_with("none") && advice.rows.iter().any(none) {
        let name = format!("none, {}", chosen.victim);
        lines.push(series(&name, Origin::Baseline, Style::Line, of(&none)));
    }
    Figure {
        id: "waf-by-op".into(),
        title: "Write amplification by GC against over-provisioning".into(),
        x: axis("over-provisioning", "%", Scale::Linear, None),
        y: axis("WAF", "", Scale::Linear, None),
        series: lines,
        note: String::new(),
    }
}

fn table(advice: &Advice) -> Table {
    let column = |label: &str, unit: &str| Column { label: label.into(), unit: unit.into() };
    let milliseconds = |latency: &Latency, ns: f64| match latency.count() {
        0 => Value::Text("none".into()),
        _ => Value::Number(ns / 1e6),
    };
    let row = |row: &Row| {
        let (reads, writes) = (&row.timed.reads, &row.timed.writes);
        vec![
            Value::Number(row.op_percent),
            Value::Text(row.stream.clone()),
            Value::Text(row.victim.clone()),
            Value::Number(row.waf.waf),
            Value::Number(advice.distance(row).unwrap_or(0.0) * 100.0),
            Value::Number(row.timed.overhead),
            Value::Number(row.years),
            milliseconds(reads, reads.mean_ns()),
            milliseconds(reads, reads.quantile_ns(0.99) as f64),
            milliseconds(reads, reads.quantile_ns(0.999) as f64),
            milliseconds(writes, writes.mean_ns()),
            milliseconds(writes, writes.quantile_ns(0.99) as f64),
            milliseconds(writes, writes.quantile_ns(0.999) as f64),
            Value::Number(row.memory_per_tib as f64 / f64::from(1 << 20)),
        ]
    };
    Table {
        title: "Every combination".into(),
        columns: vec![
            column("OP", "%"),
            column("streams", ""),
            column("victim", ""),
            column("WAF", ""),
            column("above the oracle", "%"),
            column("overhead", ""),
            column("lifetime", "years"),
            column("read mean", "ms"),
            column("read p99", "ms"),
            column("read p99.9", "ms"),
            column("write mean", "ms"),
            column("write p99", "ms"),
            column("write p99.9", "ms"),
            column("detector for 1 TiB", "MiB"),
        ],
        rows: advice.rows.iter().map(row).collect(),
        note: String::new(),
    }
}
