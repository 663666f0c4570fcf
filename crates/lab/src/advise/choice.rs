//! What to choose, and why.
//!
//! For each over-provisioning the combination that programs least; of those that program the same,
//! within [`SAME`], the one with the smallest detector, then the first. Of the over-provisionings the
//! least that lasts as long as wanted, or the one that lasts longest if none does.

use super::{Advice, Row};
use std::fmt::Write;

/// Write amplifications that differ by less are the same.
const SAME: f64 = 0.01;
/// Overhead from which on it is worth a word.
const FLUSHED: f64 = 0.2;
/// Latencies that differ by more are told.
const SLOWER: f64 = 1.1;

/// What to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Advised {
    /// Index of the row; `None` if the device failed under all of them.
    pub row: Option<usize>,
    /// Why, in sentences with the figures.
    pub why: String,
}

/// Chooses a combination that lasts `years`, if one does.
pub fn choose(advice: &Advice, years: f64) -> Advised {
    let op = |&index: &usize| advice.rows[index].op_percent;
    let bounds = advice.bounds.iter();
    let mut best: Vec<usize> = bounds.filter_map(|b| best_at(advice, b.op_percent)).collect();
    best.sort_by(|a, b| op(a).total_cmp(&op(b)));
    let lasts = best.iter().copied().find(|&index| advice.rows[index].years >= years);
    let longest = |&a: &usize, &b: &usize| advice.rows[a].years.total_cmp(&advice.rows[b].years);
    let row = lasts.or_else(|| best.iter().copied().max_by(longest));
    let why = match row {
        Some(row) => why(advice, row, &best, (years, lasts.is_some())),
        None => "Choose none of these: the device failed under every combination.".into(),
    };
    Advised { row, why }
}

/// The row that programs least at this over-provisioning.
fn best_at(advice: &Advice, op_percent: f64) -> Option<usize> {
    let alike = |row: &Row| row.op_percent == op_percent && row.timed.is_ok();
    let rows = || advice.rows.iter().enumerate().filter(move |(_, row)| alike(row));
    let least = rows().map(|(_, row)| row.waf()).fold(f64::INFINITY, f64::min);
    let same = rows().filter(|(_, row)| row.waf() <= least * (1.0 + SAME));
    same.min_by_key(|(index, row)| (row.memory_per_tib, *index)).map(|(index, _)| index)
}

/// The same device without streams: with the victim policy that suits that best.
fn without_streams(advice: &Advice, op_percent: f64) -> Option<&Row> {
    let rows = advice.rows.iter();
    let none =
        rows.filter(|row| row.op_percent == op_percent && is_plain(row) && row.timed.is_ok());
    none.min_by(|a, b| a.waf().total_cmp(&b.waf()))
}

fn is_plain(row: &Row) -> bool {
    row.stream.starts_with("none")
}

fn why(advice: &Advice, index: usize, best: &[usize], (years, lasts): (f64, bool)) -> String {
    let row = &advice.rows[index];
    let mut text = format!(
        "Choose streams = {:?} with victim = {:?} and {} % of over-provisioning: ",
        row.stream, row.victim, row.op_percent
    );
    let (by_gc, overhead) =
        row.timed.as_ref().map_or((1.0, 0.0), |timed| (timed.waf_by_gc(), timed.overhead()));
    let _ = write!(text, "write amplification {:.2}", row.waf());
    if overhead >= 0.005 {
        let _ = write!(text, " ({by_gc:.2} by GC, {overhead:.2} by padding and checkpoints)");
    }
    let _ = write!(text, ", and the flash lasts {}", span(row.years));
    let plain = is_plain(row);
    match without_streams(advice, row.op_percent).filter(|_| !plain) {
        Some(none) => {
            let _ = write!(
                text,
                "; without streams at best {:.2} and {}",
                none.waf(),
                span(none.years)
            );
            text.push_str(&slower(row, none, advice.behind));
        }
        None if plain => {
            text.push_str("; no stream policy that was tried programs noticeably less");
        }
        None => {}
    }
    text.push('.');
    if overhead > by_gc - 1.0 && overhead > FLUSHED {
        text.push_str(
            " More is written because of flushes and half-filled pages than by GC: a device whose cache \
             survives a power cut would save most of that (--plp).",
        );
    }
    if let (Some(bound), Some(distance)) = (advice.bound_of(row), advice.distance(row)) {
        let _ = write!(
            text,
            " With perfect knowledge of death times GC would bring it to {:.2}: this choice is {:.0} % \
             above that.",
            bound.waf.waf,
            distance * 100.0
        );
    }
    text.push_str(&against_others(advice, index, best, (years, lasts)));
    text
}

/// The choice of over-provisioning, if there is one.
fn against_others(
    advice: &Advice,
    index: usize,
    best: &[usize],
    (years, lasts): (f64, bool),
) -> String {
    let others = best.iter().filter(|&&other| other != index).map(|&other| &advice.rows[other]);
    let others: Vec<String> = others
        .map(|row| format!("{} % gives {:.2} and {}", row.op_percent, row.waf(), span(row.years)))
        .collect();
    let rule = match (others.is_empty(), lasts) {
        (true, _) => return String::new(),
        (false, true) => format!("it is the least over-provisioning that lasts {}", span(years)),
        (false, false) => format!("none lasts {}, and it lasts longest", span(years)),
    };
    format!(" Of the over-provisionings, {rule}: {}.", others.join(", "))
}

/// What the choice costs in latency, if it does; of an overloaded drive latencies tell nothing.
fn slower(row: &Row, none: &Row, overloaded: bool) -> String {
    let mut text = String::new();
    let (Ok(chosen), Ok(other), false) = (&row.timed, &none.timed, overloaded) else { return text };
    for (what, chosen, other) in
        [("reads", &chosen.reads, &other.reads), ("writes", &chosen.writes, &other.writes)]
    {
        let (chosen, other) = (chosen.quantile_ns(0.999), other.quantile_ns(0.999));
        let ratio = chosen as f64 / (other as f64).max(1.0);
        if !(1.0 / SLOWER..=SLOWER).contains(&ratio) {
            let word = if ratio > 1.0 { "slower" } else { "faster" };
            let _ = write!(
                text,
                ", and p99.9 of {what} is {word}, {:.2} ms instead of {:.2}",
                chosen as f64 / 1e6,
                other as f64 / 1e6
            );
        }
    }
    text
}

/// Years as people read them.
pub fn span(years: f64) -> String {
    match years {
        y if y >= 100.0 => format!("{y:.0} years"),
        y if y >= 1.0 => format!("{y:.1} years"),
        y if y * 365.25 >= 1.0 => format!("{:.1} days", y * 365.25),
        y => format!("{:.1} hours", y * 365.25 * 24.0),
    }
}
