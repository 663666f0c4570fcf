//! Profiles for people and for programs: peaks of one that is there, and all of one that was just measured.

use super::session::{Measured, Share, Wishes};
use crate::output::table;
use crate::size::count;
use lab::drives::{Curve, Limit, PEAK_US, Profile, Quantile, Seen};
use serde_json::{Value, json};

/// What a share of writes carries, as a table shows it.
fn peak_text(curve: &Curve, quantile: Quantile) -> String {
    match curve.peak(quantile) {
        Some(peak) if peak.is_bounded => count(peak.iops as u64),
        Some(peak) => format!("{} or more", count(peak.iops as u64)),
        None => "none".into(),
    }
}

/// The peaks of a profile.
pub fn peaks_text(profile: &Profile) -> String {
    let head =
        ["writes", "loads", "P90 < 1 ms", "P99 < 1 ms", "least load", "its P50", "P90", "P99"];
    let mut rows = vec![head.map(String::from).to_vec()];
    rows.extend(profile.curves.iter().map(|curve| {
        let least = curve.unloaded();
        let us = |us: f64| format!("{us:.0} us");
        vec![
            format!("{} %", curve.writes_percent),
            curve.points.len().to_string(),
            peak_text(curve, Quantile::P90),
            peak_text(curve, Quantile::P99),
            count(least.iops as u64),
            us(least.p50),
            us(least.p90),
            us(least.p99),
        ]
    }));
    table(&rows)
}

/// The same for programs.
pub fn peaks_json(profile: &Profile) -> Value {
    let peak = |curve: &Curve, quantile| {
        let peak = curve.peak(quantile);
        json!({
            "iops": peak.map(|peak| peak.iops),
            "is_bounded": peak.map(|peak| peak.is_bounded),
        })
    };
    let shares = profile.curves.iter().map(|curve| {
        let least = curve.unloaded();
        json!({
            "writes_percent": curve.writes_percent,
            "loads": curve.points.len(),
            "peak_p90": peak(curve, Quantile::P90),
            "peak_p99": peak(curve, Quantile::P99),
            "least_iops": least.iops,
            "least_p50_us": least.p50,
            "least_p90_us": least.p90,
            "least_p99_us": least.p99,
        })
    });
    json!({ "name": profile.name, "service_level_us": PEAK_US, "shares": shares.collect::<Value>() })
}

/// All that was measured, without the peaks.
pub fn measured_text(measured: &Measured) -> String {
    let head = ["writes", "asked", "done", "lost", "mean", "p50", "p90", "p95", "p99", "p99.9"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for share in &measured.shares {
        rows.extend(share.sweep.seen().iter().map(|seen| row(share, seen)));
    }
    format!("microseconds from the instant that a request was due\n{}", table(&rows))
}

fn row(share: &Share, seen: &Seen) -> Vec<String> {
    let us = |us: f64| if us.is_finite() { format!("{us:.0}") } else { "-".into() };
    let Seen { point, .. } = seen;
    let mut row = vec![
        format!("{} %", share.writes_percent),
        count(seen.offered as u64),
        count(point.iops as u64),
        count(point.lost as u64),
    ];
    row.extend([seen.mean, point.p50, point.p90, seen.p95, point.p99, point.p999].map(us));
    if seen.limit == Limit::Generator {
        row.push("the generator's limit, not the drive's".into());
    }
    row
}

/// What whoever uses the profile has to know, a line each.
pub fn remarks(measured: &Measured, wishes: &Wishes) -> Vec<String> {
    let mut remarks = vec![format!(
        "the generator asks for {} a second of memory, with {} thread{} ({}); seed {}",
        count(measured.generator_most as u64),
        measured.lanes,
        if measured.lanes == 1 { "" } else { "s" },
        measured.driver,
        wishes.seed
    )];
    match measured.left_out() {
        0 => {}
        left_out => remarks.push(format!(
            "{left_out} loads are marked: the generator, not the drive, was the limit, and they are not in the \
             profile; measure on a machine that is idle, or has more processors, to know them"
        )),
    }
    match measured.unanswered() {
        0 => {}
        unanswered => remarks.push(format!(
            "of {unanswered} loads the drive ended nothing in the time that counts, and they are not in the profile: measure \
             longer, with more than --seconds {}",
            wishes.seconds
        )),
    }
    if measured.interrupted {
        remarks.push(interrupted(measured, wishes));
    }
    let has = |percent: f64| measured.shares.iter().any(|share| share.writes_percent == percent);
    if !(has(0.0) && has(100.0)) {
        remarks.push(
            "a pool needs reads alone and writes alone (0 and 100 % of writes), which are not both there".into(),
        );
    }
    remarks
}

/// What an interruption left out.
fn interrupted(measured: &Measured, wishes: &Wishes) -> String {
    let known =
        |percent: &f64| measured.shares.iter().any(|share| share.writes_percent == *percent);
    let percent = |percent: &f64| format!("{percent} %");
    let missing = wishes.shares.iter().filter(|share| !known(share));
    let missing: Vec<String> = missing.map(percent).collect();
    let cut = measured.shares.iter().filter(|share| !share.is_whole).map(|share| {
        let loads = share.sweep.seen().len();
        format!("{} % of writes has only {loads} of {} loads", share.writes_percent, wishes.loads)
    });
    let mut parts: Vec<String> = cut.collect();
    if !missing.is_empty() {
        parts.push(format!("nothing was measured at {} of writes", missing.join(", ")));
    }
    format!("interrupted: {}", parts.join("; "))
}

/// All that was measured, for programs.
pub fn measured_json(measured: &Measured, wishes: &Wishes, profile: &Profile) -> Value {
    let shares = measured.shares.iter().map(|share| {
        let loads = share.sweep.seen().iter().map(load_json);
        json!({
            "writes_percent": share.writes_percent,
            "is_whole": share.is_whole,
            "loads": loads.collect::<Value>(),
        })
    });
    json!({
        "generator_iops": measured.generator_most,
        "generator_threads": measured.lanes,
        "driver": measured.driver,
        "seed": wishes.seed,
        "seconds": wishes.seconds,
        "overwritten_first": wishes.fill,
        "interrupted": measured.interrupted,
        "loads_left_out": measured.left_out(),
        "loads_unanswered": measured.unanswered(),
        "peaks": peaks_json(profile),
        "shares": shares.collect::<Value>(),
    })
}

fn load_json(seen: &Seen) -> Value {
    // JSON has no infinity: who did not end has no latency.
    let us = |us: f64| us.is_finite().then_some(us);
    let Seen { point, .. } = seen;
    json!({
        "asked_iops": seen.offered,
        "iops": point.iops,
        "lost": point.lost,
        "mean_us": seen.mean,
        "p50_us": us(point.p50),
        "p90_us": us(point.p90),
        "p95_us": us(seen.p95),
        "p99_us": us(point.p99),
        "p999_us": us(point.p999),
        "p9999_us": us(point.p9999),
        "generator_late_p90_us": seen.late_p90,
        "is_the_drives": seen.limit == Limit::Drive,
        "tries": seen.tries,
    })
}
