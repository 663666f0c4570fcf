//! All claims of a run as Markdown, to be kept beside a project's pages and compared line by line.

use super::index::Run;
use super::number::plain;
use super::text::{of_class, tally};
use super::{Claim, Class, Report, Value};
use std::fmt::Write;

/// Command and conditions, the verdicts of each class, and of each experiment a table of its claims with the
/// reasons below it.
pub fn claims_markdown(reports: &[Report], run: &Run) -> String {
    let mut out = format!("# Claims\n\n`{}`\n\n", run.command);
    for (name, value) in &run.conditions {
        let _ = writeln!(out, "- {name}: {value}");
    }
    out.push_str("\n| class | verdicts |\n|---|---|\n");
    let all: Vec<Claim> = reports.iter().flat_map(|report| report.claims.clone()).collect();
    for class in Class::ALL {
        let _ = writeln!(out, "| {} | {} |", class.name(), tally(&of_class(&all, class)));
    }
    let unsure = all.iter().filter(|claim| !claim.is_certain()).count();
    let _ = writeln!(out, "\nOf {} claims {unsure} have a question mark.", all.len());
    for report in reports.iter().filter(|report| !report.claims.is_empty()) {
        let _ = write!(out, "\n## {}\n\n| claim | class | said | measured |", report.name);
        out.push_str(" interval | verdict |\n|---|---|---|---|---|---|\n");
        report.claims.iter().for_each(|claim| row(claim, &mut out));
        let explained = report.claims.iter().filter_map(|claim| Some((claim, claim.reason()?)));
        for (number, (claim, reason)) in explained.enumerate() {
            let gap = if number == 0 { "\n" } else { "" };
            let _ = writeln!(out, "{gap}- `{}`: {}", claim.statement().id, on_one_line(reason));
        }
    }
    out
}

fn row(claim: &Claim, out: &mut String) {
    let statement = claim.statement();
    let interval = claim.interval().filter(|it| plain(it.low) != plain(it.high));
    let interval =
        interval.map_or_else(String::new, |it| Value::Range(it.low, it.high).to_string());
    let _ = writeln!(
        out,
        "| `{}` | {} | {} | {} | {interval} | {} |",
        statement.id,
        statement.class.name(),
        in_a_cell(&statement.in_words()),
        in_a_cell(&claim.measured().to_string()),
        claim.verdict_text().replace('?', " ?"),
    );
}

fn in_a_cell(text: &str) -> String {
    on_one_line(text).replace('|', "\\|")
}

fn on_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
