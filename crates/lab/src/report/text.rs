//! A report for a terminal: aligned tables, with units in their headers.
//!
//! Invariant: no control character of a report reaches the terminal.

use super::chart::legend_name;
use super::number::{plain, unit_name};
use super::{Claim, Class, Column, Figure, Report, ReportError, Table, Value, Verdict, labelled};
use std::fmt::Write;

/// A figure with more different x than this is told by its size only.
const FIGURE_ROWS_MAX: usize = 24;
/// Where text of several sentences is broken.
const LINE_CHARACTERS: usize = 100;

/// The report as text.
pub fn text(report: &Report) -> Result<String, ReportError> {
    report.check()?;
    let mut out = String::new();
    let _ = writeln!(out, "{}\n{}\n", clean(&report.title), clean(&report.source));
    for paragraph in report.summary.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let _ = writeln!(out, "{}\n", wrapped(paragraph));
    }
    let mut rows = vec![
        ("command".to_owned(), report.command.clone()),
        ("seed".to_owned(), report.seed.to_string()),
        ("scale".to_owned(), report.scale.clone()),
    ];
    rows.extend(report.parameters.iter().cloned());
    let width = rows.iter().map(|(name, _)| clean(name).chars().count()).max().unwrap_or(0);
    for (name, value) in rows {
        let _ = writeln!(out, "{:width$}  {}", clean(&name), clean(&value));
    }
    for table in &report.tables {
        let _ = write!(out, "\n{}", table_text(table));
    }
    for figure in &report.figures {
        let _ = write!(out, "\n{}", figure_text(figure));
    }
    if !report.claims.is_empty() {
        let _ = write!(out, "\n{}", claims_text(&report.claims));
    }
    for note in &report.notes {
        let _ = write!(out, "\nNote: {}\n", wrapped(note));
    }
    Ok(out)
}

/// Claims by class, each a table with the reasons below it.
pub fn claims_text(claims: &[Claim]) -> String {
    let of_class = Class::ALL.iter().map(|class| class_text(*class, &of_class(claims, *class)));
    of_class.collect::<Vec<String>>().join("\n").trim_start().to_owned()
}

/// Those of a class.
pub fn of_class(claims: &[Claim], class: Class) -> Vec<&Claim> {
    claims.iter().filter(|claim| claim.statement().class == class).collect()
}

fn class_text(class: Class, claims: &[&Claim]) -> String {
    if claims.is_empty() {
        return String::new();
    }
    let several = claims.iter().any(|claim| claim.interval().is_some());
    let names = ["claim", "source", "said", "measured"].into_iter();
    let names = names.chain(several.then_some("95 %"));
    let names = names.chain(["baseline", "unit", "tolerance", "verdict"]);
    let columns = names.map(|label| Column { label: label.to_owned(), unit: String::new() });
    let rows = claims.iter().map(|claim| {
        let statement = claim.statement();
        let mut row = vec![
            Value::Text(statement.id.clone()),
            Value::Text(statement.source.clone()),
            statement.said.clone(),
            claim.measured().clone(),
        ];
        row.extend(several.then(|| interval_value(claim)));
        row.extend([
            claim.baseline().cloned().unwrap_or_else(|| Value::Text("-".to_owned())),
            Value::Text(unit_name(&statement.unit).to_owned()),
            Value::Text(statement.tolerance.to_string()),
            Value::Text(claim.verdict_text()),
        ]);
        row
    });
    let title = format!("{}: {}", class.title(), tally(claims));
    let rows = rows.collect();
    let mut out =
        table_text(&Table { title, columns: columns.collect(), rows, note: String::new() });
    for claim in claims {
        if let Some(reason) = claim.reason() {
            let id = &claim.statement().id;
            let told = format!("{id}, {}: {reason}", claim.verdict_text());
            let _ = writeln!(out, "{}", wrapped(&told));
        }
    }
    out
}

/// The interval of a claim for a table.
pub fn interval_value(claim: &Claim) -> Value {
    let interval = claim.interval();
    interval.map_or_else(|| Value::Text("-".into()), |it| Value::Range(it.low, it.high))
}

/// The verdicts of each class, a line each.
pub fn tallies(claims: &[&Claim]) -> String {
    let mut out = String::new();
    for class in Class::ALL {
        let of_class = claims.iter().copied().filter(|claim| claim.statement().class == class);
        let of_class: Vec<&Claim> = of_class.collect();
        if !of_class.is_empty() {
            let _ = writeln!(out, "{}: {}", class.title(), tally(&of_class));
        }
    }
    out
}

/// How many claims have which verdict: `3 reproduced, 1 missed`.
pub fn tally(claims: &[&Claim]) -> String {
    let count = |verdict| claims.iter().filter(|claim| claim.verdict() == verdict).count();
    let counts = Verdict::ALL.map(|verdict| (count(verdict), verdict));
    let told = counts.iter().filter(|(count, _)| *count > 0);
    let told: Vec<String> =
        told.map(|(count, verdict)| format!("{count} {}", verdict.name())).collect();
    told.join(", ")
}

/// A table with a rule below its header; numbers stand right, texts left.
pub(super) fn table_text(table: &Table) -> String {
    let header: Vec<String> = table.columns.iter().map(|column| clean(&column.header())).collect();
    let rows: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(|cell| clean(&cell.to_string())).collect())
        .collect();
    let is_number = |at: usize| {
        table.rows.iter().any(|row| matches!(row[at], Value::Number(_) | Value::Range(..)))
    };
    let width = |at: usize| {
        let cells = rows.iter().map(|row| &row[at]).chain([&header[at]]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |cells: &[String]| {
        let padded = cells.iter().enumerate().map(|(at, cell)| match is_number(at) {
            true => format!("{cell:>width$}", width = width(at)),
            false => format!("{cell:<width$}", width = width(at)),
        });
        let padded: Vec<String> = padded.collect();
        padded.join("  ").trim_end().to_owned()
    };
    let rule: Vec<String> = (0..header.len()).map(|at| "-".repeat(width(at))).collect();
    let mut out = format!("{}\n{}\n{}\n", clean(&table.title), line(&header), rule.join("  "));
    for row in &rows {
        let _ = writeln!(out, "{}", line(row));
    }
    if !table.note.is_empty() {
        let _ = writeln!(out, "{}", wrapped(&table.note));
    }
    out
}

/// A figure's points as a table, if there are few enough x.
fn figure_text(figure: &Figure) -> String {
    let points = figure.series.iter().flat_map(|series| &series.points);
    let mut xs: Vec<f64> = points.map(|&(x, _)| x).collect();
    let count = xs.len();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let title = format!("{}: {}", figure.title, labelled(&figure.y.label, &figure.y.unit));
    if xs.len() > FIGURE_ROWS_MAX || xs.is_empty() {
        return format!("{}: {count} points in figure {}\n", clean(&title), figure.id);
    }
    let first = Column { label: figure.x.label.clone(), unit: figure.x.unit.clone() };
    let others = figure.series.iter().map(|series| {
        let error = if series.error_bars.is_some() { " (low–high)" } else { "" };
        Column { label: format!("{}{error}", legend_name(series)), unit: String::new() }
    });
    let columns = std::iter::once(first).chain(others).collect();
    let rows = xs.iter().map(|&x| {
        let name = figure.x.categories.as_ref().and_then(|names| names.get(x as usize));
        let first = name.map_or(Value::Number(x), |name| Value::Text(name.clone()));
        let others = figure.series.iter().map(|series| {
            let at = series.points.iter().position(|point| point.0 == x);
            at.map_or(Value::Text(String::new()), |at| cell(series, at))
        });
        std::iter::once(first).chain(others).collect()
    });
    let rows = rows.collect();
    table_text(&Table { title, columns, rows, note: figure.note.clone() })
}

fn cell(series: &super::Series, at: usize) -> Value {
    let y = series.points[at].1;
    match &series.error_bars {
        Some(bars) => {
            Value::Text(format!("{} ({}–{})", plain(y), plain(bars[at].0), plain(bars[at].1)))
        }
        None => Value::Number(y),
    }
}

/// Text without what a terminal would obey, on one line.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let word = clean(word);
        let length = word.chars().count();
        if column > 0 && column + 1 + length > LINE_CHARACTERS {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += length;
    }
    out
}
