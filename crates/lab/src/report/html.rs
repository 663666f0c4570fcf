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
            claims(class, &of_class(&report.claims, class), &mut out);
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

/// All claims and all figures of `reports` as one page; each is named with the page that has the rest.
pub fn html_of_all(reports: &[Report]) -> Result<String, ReportError> {
    let mut out = head("Every claim and every figure");
    out.push_str("<body>\n<main>\n<h1>Every claim and every figure</h1>\n<ul class=\"notes\">\n");
    for report in reports {
        report.check()?;
        let (name, title) = (escaped(&report.name), escaped(&report.title));
        let source = escaped(&report.source);
        let _ = writeln!(
            out,
            "<li><a href=\"{name}.html\">{title}</a><span class=\"of\">{source}</span></li>"
        );
    }
    out.push_str("</ul>\n");
    let all: Vec<&Claim> = reports.iter().flat_map(|report| &report.claims).collect();
    for class in Class::ALL {
        let of_class = all.iter().copied().filter(|claim| claim.statement().class == class);
        claims(class, &of_class.collect::<Vec<_>>(), &mut out);
    }
    for report in reports.iter().filter(|report| !report.figures.is_empty()) {
        let _ = writeln!(out, "<h2>{}</h2>", escaped(&report.title));
        let _ = writeln!(out, "<div class=\"command\">{}</div>", escaped(&report.command));
        for figure in &report.figures {
            let _ = write!(out, "<figure>\n{}</figure>\n", draw(figure, Theme::Page));
        }
    }
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(out)
}

fn head(title: &str) -> String {
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
    let _ = write!(out, "<div class=\"command\">{}</div>\n<dl>\n", escaped(&report.command));
    let fixed = [("seed", report.seed.to_string()), ("scale", report.scale.clone())];
    let fixed = fixed.iter().map(|(name, value)| (*name, value));
    let parameters = report.parameters.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in fixed.chain(parameters) {
        let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escaped(name), escaped(value));
    }
    out.push_str("</dl>\n");
}

fn claims(class: Class, claims: &[&Claim], out: &mut String) {
    if claims.is_empty() {
        return;
    }
    let _ = writeln!(out, "<h2>{}: {}</h2>", class.title(), tally(claims));
    out.push_str("<div class=\"wide\"><table>\n<thead><tr><th>claim</th>");
    let several = claims.iter().any(|claim| claim.interval().is_some());
    out.push_str("<th class=\"number\">said</th><th class=\"number\">measured</th>");
    if several {
        out.push_str("<th class=\"number\">95 %</th>");
    }
    out.push_str("<th class=\"number\">baseline</th><th>unit</th><th>tolerance</th>");
    out.push_str("<th>verdict</th></tr></thead>\n<tbody>\n");
    for claim in claims {
        let statement = claim.statement();
        let baseline = claim.baseline().map_or_else(|| "–".to_owned(), Value::to_string);
        let name = claim.verdict().name();
        let interval = match several {
            true => format!("<td class=\"number\">{}</td>", interval_value(claim)),
            false => String::new(),
        };
        let _ = write!(
            out,
            "<tr><td><span class=\"id\">{}</span><span class=\"of\">{}</span></td>\
             <td class=\"number\">{}</td><td class=\"number measured\">{}</td>{interval}\
             <td class=\"number\">{}</td><td>{}</td><td>{}</td>\
             <td><span class=\"badge {name}\">{}</span>",
            escaped(&statement.id),
            escaped(&statement.source),
            escaped(&statement.said.to_string()),
            escaped(&claim.measured().to_string()),
            escaped(&baseline),
            escaped(unit_name(&statement.unit)),
            escaped(&statement.tolerance.to_string()),
            claim.verdict_text().replace('-', " "),
        );
        if let Some(reason) = claim.reason() {
            let _ = write!(out, "<span class=\"reason\">{}</span>", escaped(reason));
        }
        out.push_str("</td></tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn table(table: &Table, out: &mut String) {
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
