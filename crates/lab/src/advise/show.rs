//! The advice as a [`Report`]: a page with plots of write amplification and latency.

use super::{Advice, Advised, Playing, Row, Timed};
use crate::load::Latency;
use crate::replay::ByReason;
use crate::report::{Axis, Column, Figure, Origin, Report, Scale, Series, Style, Table, Value};
use flash::BLOCK_BYTES;

/// The advice on `trace`, as `command` got it with `seed`.
pub fn report(advice: &Advice, choice: &Advised, trace: &str, command: &str, seed: u64) -> Report {
    let chosen = &advice.rows[choice.row.unwrap_or(0)];
    let mut figures = vec![waf_by_combination(advice, chosen)];
    if !advice.behind {
        figures.push(latency_by_combination(advice, chosen));
    }
    if advice.bounds.len() > 1 {
        figures.push(waf_by_op(advice, chosen));
    }
    Report {
        name: "advise".into(),
        title: format!("What pays on {} for {trace}", advice.device),
        summary: [advice.headline(chosen), Some(choice.why.clone()), Some(said(advice))]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join("\n\n"),
        source: trace.into(),
        command: command.into(),
        seed,
        seeds: 1,
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
        "The device is fitted to the trace: {} volume(s) of {} in all touch {} in extents of 1 MiB, which \
         lie packed on a device of {}, filled before anything is measured.{sample}",
        facts.volumes,
        mib(facts.span_bytes),
        mib(facts.touched_bytes),
        mib(facts.logical_bytes),
    )];
    notes.push(drives(advice));
    notes.push(measured(advice));
    for row in &advice.rows {
        if let Err(why) = &row.timed {
            notes.push(format!("{} FAILED on the device: {why}.", name_and_op(row)));
        }
        if !advice.behind && row.timed.as_ref().is_ok_and(|timed| !timed.keeps_up) {
            notes.push(format!("{} does not keep up with the timestamps.", name_and_op(row)));
        }
    }
    notes.push(
        "The oracle sorts by the true death times into 12 classes or 5, what is better; victims by \
         cost-benefit. It is a bound: its flash takes no time, and nothing is flushed."
            .into(),
    );
    notes.push(worn(advice));
    if facts.wipes > 0 {
        notes.push(format!(
            "Trims of more than a tenth of the space were left out, {} in all: a new file system comes \
             once, not in every round.",
            facts.wipes
        ));
    }
    if facts.cut {
        notes.push(format!("Only the first {} requests were read.", facts.requests));
    }
    notes
}

/// What lifetimes are of.
fn worn(advice: &Advice) -> String {
    let rate = match advice.behind {
        false => "the rate of the trace",
        true => "the rate of the trace, shared out over as many drives as it needs",
    };
    format!(
        "Lifetime, TBW and DWPD are of the flash of the drive as it is named, not of what was measured: TBW is \
         endurance x flash / WAF, DWPD that as whole writes of the drive a day, and lifetime TBW / {rate}."
    )
}

/// What the drive is at each over-provisioning, and what was measured for it.
fn drives(advice: &Advice) -> String {
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let of = |bound: &super::Bound| {
        let row = advice.rows.iter().find(|row| row.op_percent == bound.op_percent)?;
        let (offered, drive) = (gib(row.drive.logical_blocks * BLOCK_BYTES as u64), &row.drive);
        let geometry = &drive.geometry;
        Some(format!(
            "{} % makes {:.3} GiB of flash for {offered:.3} GiB ({} units of {} blocks of {} KiB)",
            row.op_percent,
            gib(drive.flash_bytes()),
            geometry.units,
            geometry.blocks_per_unit,
            geometry.slots_per_block() * (BLOCK_BYTES as u32 / 1024),
        ))
    };
    let all: Vec<String> = advice.bounds.iter().filter_map(of).collect();
    let stands = if advice.whole {
        "It was measured as it is."
    } else {
        "Measured was a device that stands for it, of blocks so short that it has as many of them, or 512 \
         on each unit, and with as much flash for GC by logical block."
    };
    format!("The drive: {}. {stands}", all.join("; "))
}

/// How all was measured, and whether it was steady.
fn measured(advice: &Advice) -> String {
    let timed = || advice.rows.iter().filter_map(|row| Some((row, row.timed.as_ref().ok()?)));
    let rounds = timed().map(|(_, timed)| timed.before.rounds.len());
    let (least, most) = (rounds.clone().min().unwrap_or(0), rounds.max().unwrap_or(0));
    let unsteady: Vec<String> = timed()
        .filter(|(_, timed)| !timed.before.steady)
        .map(|(row, _)| name_and_op(row))
        .collect();
    let steady = if unsteady.is_empty() {
        "All came to a steady state.".to_string()
    } else {
        format!("NOT in steady state: {}.", unsteady.join("; "))
    };
    format!(
        "Write amplification and latencies are of the same requests, as `weir replay --precondition trace` \
         measures them: the device was filled, then {least} to {most} rounds of the trace, with flushes and \
         reads, until two cost the same within 2 %, then a round of {} requests {}. {steady}",
        advice.timed_requests,
        played(advice),
    )
}

/// When the requests went out.
fn played(advice: &Advice) -> String {
    match (advice.playing, advice.behind) {
        (Playing::Timestamps(1.0), _) => "by their timestamps, from when each was due".to_string(),
        (Playing::Timestamps(load), _) => {
            format!("by their timestamps, {load} times as fast, from when each was due")
        }
        (Playing::Depth(depth), false) => format!("in a closed loop, {depth} in flight"),
        (Playing::Depth(depth), true) => format!(
            "in a closed loop, {depth} in flight, because the device cannot keep up with the timestamps"
        ),
    }
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
    // A device that failed has no bar.
    let waf = |row: &Row| row.timed.as_ref().map_or(0.0, |timed| timed.waf);
    let waf = points(alike(advice, chosen).map(waf));
    let bound = advice.bound_of(chosen).map_or(1.0, |bound| bound.waf.waf);
    let oracle = waf.iter().map(|&(x, _)| (x, bound)).collect();
    Figure {
        id: "waf".into(),
        title: format!("Write amplification, {} % of over-provisioning", chosen.op_percent),
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
    type Of = fn(&Timed) -> f64;
    let lines: [(&str, Of); 4] = [
        ("reads, p99.9", |timed| timed.reads.quantile_ns(0.999) as f64 / 1e9),
        ("reads, mean", |timed| timed.reads.mean_ns() / 1e9),
        ("writes, p99.9", |timed| timed.writes.quantile_ns(0.999) as f64 / 1e9),
        ("writes, mean", |timed| timed.writes.mean_ns() / 1e9),
    ];
    let points = |of: Of| {
        let of = |row: &Row| row.timed.as_ref().map_or(0.0, of);
        let points = alike(advice, chosen).map(of).enumerate().filter(|&(_, value)| value > 0.0);
        points.map(|(index, value)| (index as f64, value)).collect::<Vec<_>>()
    };
    let series = lines
        .iter()
        .map(|&(name, of)| series(name, Origin::Weir, Style::Points, points(of)))
        .filter(|series| !series.points.is_empty());
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
        let rows = advice.rows.iter().filter(|row| matches(row) && row.timed.is_ok());
        let mut points: Vec<_> = rows.map(|row| (row.op_percent, row.waf())).collect();
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
        title: "Write amplification against over-provisioning".into(),
        x: axis("over-provisioning", "%", Scale::Linear, None),
        y: axis("WAF", "", Scale::Linear, None),
        series: lines,
        note: String::new(),
    }
}

fn table(advice: &Advice) -> Table {
    let column = |label: &str, unit: &str| Column { label: label.into(), unit: unit.into() };
    let mut columns = vec![
        column("OP", "%"),
        column("streams", ""),
        column("victim", ""),
        column("WAF", ""),
        column("by GC", ""),
        column("above the oracle", "%"),
    ];
    columns.extend(ByReason::default().parts().map(|(name, ..)| column(name, "")));
    columns.extend([column("lifetime", "years"), column("TBW", "TB")]);
    if !advice.behind {
        for name in
            ["read mean", "read p99", "read p99.9", "write mean", "write p99", "write p99.9"]
        {
            columns.push(column(name, "ms"));
        }
    }
    columns.push(column("detector for 1 TiB", "MiB"));
    let measured = columns.len() - 4;
    let row = |row: &Row| {
        let mut cells = vec![
            Value::Number(row.op_percent),
            Value::Text(row.stream.clone()),
            Value::Text(row.victim.clone()),
        ];
        match &row.timed {
            Ok(timed) => {
                let above = advice.distance(row).unwrap_or(0.0) * 100.0;
                cells.extend([timed.waf, timed.waf_by_gc(), above].map(Value::Number));
                cells.extend(timed.by_reason.parts().map(|(.., value)| Value::Number(value)));
                let written = row.wearing(advice.endurance).bytes_written_max() / 1e12;
                cells.extend([row.years, written].map(Value::Number));
                if !advice.behind {
                    cells.extend(milliseconds(&timed.reads));
                    cells.extend(milliseconds(&timed.writes));
                }
            }
            Err(_) => cells.extend((0..measured).map(|_| Value::Text("failed".into()))),
        }
        cells.push(Value::Number(row.memory_per_tib as f64 / f64::from(1 << 20)));
        cells
    };
    let rows = advice.rows.iter().map(row).collect();
    Table { title: "Every combination".into(), columns, rows, note: String::new() }
}

/// Mean, p99 and p99.9.
fn milliseconds(latency: &Latency) -> [Value; 3] {
    if latency.count() == 0 {
        return [(); 3].map(|()| Value::Text("none".into()));
    }
    let quantile = |share| latency.quantile_ns(share) as f64;
    [latency.mean_ns(), quantile(0.99), quantile(0.999)].map(|ns| Value::Number(ns / 1e6))
}
