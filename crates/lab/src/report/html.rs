//! A report as one self-contained page: styles and drawings inside, nothing fetched, no script.
//!
//! Invariant: text of the report reaches the page through [`escaped`] only, and the page forbids
//! whatever could be smuggled in: its content policy allows styles and nothing else.

use super::chart::draw;
use super::drawing::escaped;
use super::number::unit_name;
use super::text::{interval_value, of_class, tally};
use super::theme::{Theme, variables};
use super::{Claim, Class, Report, ReportError, Table, Value};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
/// What the page colours beside its figures: panel, and the verdicts.
const LIGHT: &str = "--panel:#f5f7f9;--good:#00755c;--better:#0067a3;--bad:#b83a00;--odd:#6b3fa5";
const DARK: &str = "--panel:#1d2126;--good:#2fc6a2;--better:#56b4e9;--bad:#ff8f4f;--odd:#b79bf0";

/// The report as a page.
pub fn html(report: &Report) -> Result<String, ReportError> {
    report.check()?;
    let mut out = head(&report.title);
    let _ = write!(
        out,
        "<body>\n<main>\n<h1>{}</h1>\n<p class=\"source\">{}</p>\n",
        escaped(&report.title),
        escaped(&report.source)
    );
    for paragraph in report.summary.split("\n\n").filter(|text| !text.trim().is_empty()) {
        let _ = writeln!(out, "<p>{}</p>", escaped(paragraph.trim()));
    }
    setting(report, &mut out);
    if !report.claims.is_empty() {
        for class in Class::ALL {
            claims(class, &[(None, of_class(&report.claims, class))], &mut out);
        }
    }
    if !report.figures.is_empty() {
        out.push_str("<h2>Figures</h2>\n");
    }
    for figure in &report.figures {
        let id = escaped(&figure.id);
        let _ = write!(out, "<figure id=\"{id}\">\n{}</figure>\n", draw(figure, Theme::Page));
    }
    if !report.tables.is_empty() {
        out.push_str("<h2>Tables</h2>\n");
    }
    report.tables.iter().for_each(|table_data| table(table_data, &mut out));
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2>\n<ul class=\"notes\">\n");
        for note in &report.notes {
            let _ = writeln!(out, "<li>{}</li>", escaped(note));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(out)
}

pub(super) fn head(title: &str) -> String {
    let (light, dark) = variables();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n:root{{{light}{LIGHT}}}\n\
         @media screen and (prefers-color-scheme:dark){{:root{{{dark}{DARK}}}}}\n{STYLE}</style>\n\
         </head>\n",
        escaped(title)
    )
}

/// What repeats the run: command, seed, scale, parameters.
fn setting(report: &Report, out: &mut String) {
    let fixed = [("seed", report.seed.to_string()), ("scale", report.scale.clone())];
    let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
    let all: Vec<(String, String)> = fixed.chain(report.parameters.iter().cloned()).collect();
    command_and_conditions(&report.command, &all, out);
}

pub(super) fn command_and_conditions(
    command: &str,
    conditions: &[(String, String)],
    out: &mut String,
) {
    let _ = write!(out, "<div class=\"command\">{}</div>\n<dl>\n", escaped(command));
    for (name, value) in conditions {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    }
    out.push_str("</dl>\n");
}

/// Claims of one class, in groups; a group that is of another page names that.
pub(super) fn claims(class: Class, groups: &[(Option<&Report>, Vec<&Claim>)], out: &mut String) {
    let all: Vec<&Claim> = groups.iter().flat_map(|(_, claims)| claims).copied().collect();
    if all.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h2>{}: {}</h2>", class.title(), tally(&all));
    out.push_str("<div class=\"wide\"><table>\n<thead><tr><th>claim</th>");
    let several = all.iter().any(|claim| claim.interval().is_some());
    out.push_str("<th class=\"number\">said</th><th class=\"number\">measured</th>");
    if several {
        out.push_str("<th class=\"number\">95 %</th>");
    }
    out.push_str("<th class=\"number\">baseline</th><th>unit</th><th>tolerance</th>");
    out.push_str("<th>verdict</th></tr></thead>\n");
    for (of, claims) in groups.iter().filter(|(_, claims)| !claims.is_empty()) {
        out.push_str("<tbody>\n");
        if let Some(of) = of {
            let (name, title) = (escaped(&of.name), escaped(&of.title));
            let _ = writeln!(
                out,
                "<tr><th class=\"group\" colspan=\"{}\"><a href=\"{name}.html\">{title}</a></th></tr>",
                columns(several)
            );
        }
        claims.iter().for_each(|one| claim(one, several, out));
        out.push_str("</tbody>\n");
    }
    out.push_str("</table></div>\n");
}

/// Columns of a table of claims, with or without an interval.
fn columns(several: bool) -> u32 {
    if several { 8 } else { 7 }
}

/// A row, and what is to be said of a verdict below it.
fn claim(claim: &Claim, several: bool, out: &mut String) {
    let statement = claim.statement();
    let baseline = claim.baseline().map_or_else(|| "–".to_owned(), Value::to_string);
    let name = claim.verdict().name();
    let interval = match several {
        true => format!("<td class=\"number\">{}</td>", interval_value(claim)),
        false => String::new(),
    };
    let explained = if claim.reason().is_some() { " class=\"explained\"" } else { "" };
    let _ = writeln!(
        out,
        "<tr{explained} id=\"claim-{id}\"><td><span class=\"id\">{id}</span><span class=\"of\">{}</span></td>\
         <td class=\"number\">{}</td><td class=\"number measured\">{}</td>{interval}\
         <td class=\"number\">{}</td><td>{}</td><td class=\"tolerance\">{}</td>\
         <td><span class=\"badge {name}\">{}</span></td></tr>",
        escaped(&statement.source),
        escaped(&statement.said.to_string()),
        escaped(&claim.measured().to_string()),
        escaped(&baseline),
        escaped(unit_name(&statement.unit)),
        escaped(&statement.tolerance.to_string()),
        claim.verdict_text().replace('-', " "),
        id = escaped(&statement.id),
    );
    if let Some(reason) = claim.reason() {
        let _ = writeln!(
            out,
            "<tr><td class=\"reason\" colspan=\"{}\">{}</td></tr>",
            columns(several),
            escaped(reason)
        );
    }
}

pub(super) fn table(table: &Table, out: &mut String) {
    let _ =
        write!(out, "<h3>{}</h3>\n<div class=\"wide\"><table>\n<thead><tr>", escaped(&table.title));
    let is_number = |at: usize| table.rows.iter().any(|row| !matches!(row[at], Value::Text(_)));
    let class = |at: usize| if is_number(at) { " class=\"number\"" } else { "" };
    for (at, column) in table.columns.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(at), escaped(&column.header()));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (at, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(at), escaped(&cell.to_string()));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
    if !table.note.is_empty() {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(&table.note));
    }
}
