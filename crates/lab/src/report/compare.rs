//! Two runs of an experiment beside each other: every figure of the table of all points with its difference,
//! and how sure that is.

use super::chart::draw;
use super::drawing::escaped;
use super::html::{head, table};
use super::text::table_text;
use super::theme::Theme;
use super::{Column, Interval, MEASURED, PLUS_MINUS, Report, ReportError, Table, Value};
use serde::Serialize;
use std::fmt::Write;

/// Student's t for 95 % of both sides, by degrees of freedom from 1 on.
const STUDENT_T: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];
/// From ten degrees of freedom on, to the safe side.
const STUDENT_T_MANY: f64 = 2.228;

/// Student's t for 95 % of both sides.
pub fn student_t(freedom: usize) -> f64 {
    STUDENT_T.get(freedom.max(1) - 1).copied().unwrap_or(STUDENT_T_MANY)
}

/// A run, and what to call it.
#[derive(Clone, Debug)]
pub struct Side<'a> {
    /// Such as the name of its file.
    pub label: String,
    /// What it found.
    pub report: &'a Report,
}

/// A metric at a point that both have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The case, and the values of the sweeps.
    pub at: Vec<String>,
    /// The metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Of the first run.
    pub a: f64,
    /// Of the second.
    pub b: f64,
    /// Second - first, as a share of the first; none where that is zero.
    pub share: Option<f64>,
    /// In which b - a lies at 95 %; none of one seed.
    pub interval: Option<Interval>,
    /// Zero is not in the interval. Not known of one seed.
    pub significant: Option<bool>,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    a: &'a Side<'a>,
    b: &'a Side<'a>,
    /// In the order of the first run's table.
    pub differences: Vec<Difference>,
    /// What stands in the way of a comparison, in sentences.
    notes: Vec<String>,
}

impl<'a> Comparison<'a> {
    /// Compares what both have measured.
    ///
    /// # Errors
    /// They are of different experiments, or have nothing in common.
    pub fn new(a: &'a Side<'a>, b: &'a Side<'a>) -> Result<Self, ReportError> {
        let name = |side: &Side<'_>| format!("{} is of {}", side.label, side.report.name);
        if a.report.name != b.report.name {
            let why = format!("{} and {}: give two runs of one experiment", name(a), name(b));
            return Err(ReportError::Comparison { why });
        }
        let (points_a, points_b) = (points(a.report), points(b.report));
        let mut differences = Vec::new();
        let mut alone = 0;
        for one in &points_a {
            match points_b.iter().find(|two| two.at == one.at && two.metric == one.metric) {
                Some(two) => differences.push(difference(one, two)),
                None => alone += 1,
            }
        }
        if differences.is_empty() {
            let why = format!("{} and {} have no point in common", a.label, b.label);
            return Err(ReportError::Comparison { why });
        }
        let mut notes = Vec::new();
        alone += points_b.len() - differences.len();
        if alone > 0 {
            notes.push(format!("{alone} figures are of one run only and left out."));
        }
        for (what, of) in [
            ("scale", [&a.report.scale, &b.report.scale].map(String::clone)),
            ("seed", [a, b].map(|side| side.report.seed.to_string())),
            ("number of seeds", [a, b].map(|side| side.report.seeds.to_string())),
        ] {
            if of[0] != of[1] {
                notes.push(format!("The runs differ in their {what}: {} and {}.", of[0], of[1]));
            }
        }
        if differences.iter().all(|difference| difference.significant.is_none()) {
            notes.push(
                "Nothing is marked: one of them has one seed only; run both with --seeds 5.".into(),
            );
        }
        Ok(Self { a, b, differences, notes })
    }

    /// What is marked, of all.
    fn tally(&self) -> String {
        let marked = self.differences.iter().filter(|it| it.significant == Some(true)).count();
        format!("{marked} of {} differences are significant", self.differences.len())
    }

    fn table(&self) -> Table {
        let column = |label: &str, unit: &str| Column { label: label.into(), unit: unit.into() };
        let places = self.differences.iter().map(|difference| difference.at.len()).max();
        let source = self.a.report.tables.iter().find(|table| table.title == MEASURED);
        let names = source.into_iter().flat_map(|table| &table.columns).take(places.unwrap_or(0));
        let mut columns: Vec<Column> = names.cloned().collect();
        columns.extend(["metric", "unit"].map(|label| column(label, "")));
        columns.extend([column("A", ""), column("B", ""), column("B - A", "%")]);
        columns.extend([column("at least", "%"), column("at most", "%"), column("", "")]);
        let text = |text: &str| Value::Text(text.to_owned());
        let rows = self.differences.iter().map(|it| {
            let mut row: Vec<Value> = it.at.iter().map(|cell| text(cell)).collect();
            row.extend([
                text(&it.metric),
                text(&it.unit),
                Value::Number(it.a),
                Value::Number(it.b),
            ]);
            let percent = |value: Option<f64>| {
                let value = value.filter(|value| value.is_finite());
                value.map_or_else(|| text(""), |value| Value::Number(100.0 * value))
            };
            row.push(percent(it.share));
            let bound =
                |of: fn(&Interval) -> f64| it.interval.as_ref().map(|found| of(found) / it.a.abs());
            row.push(percent(bound(|interval| interval.low)));
            row.push(percent(bound(|interval| interval.high)));
            row.push(text(match it.significant {
                Some(true) => "significant",
                Some(false) => "",
                None => "one seed",
            }));
            row
        });
        let note = "A difference is significant where its interval at 95 % (Welch's, over the seeds) does not have \
                    zero in it: of a hundred that are none, five are marked.";
        Table { title: "Differences".into(), columns, rows: rows.collect(), note: note.into() }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n\n", self.a.report.title);
        for (name, side) in [("A", self.a), ("B", self.b)] {
            let _ = writeln!(out, "{name}  {}: {}", side.label, side.report.command);
        }
        let _ = write!(out, "\n{}\n{}\n", table_text(&self.table()), self.tally());
        self.notes.iter().for_each(|note| out.push_str(&format!("Note: {note}\n")));
        out
    }

    /// As a page, with the figures side by side.
    ///
    /// # Errors
    /// A report that cannot be drawn.
    pub fn html(&self) -> Result<String, ReportError> {
        self.a.report.check()?;
        self.b.report.check()?;
        let title = format!("{}: two runs", self.a.report.title);
        let mut out = head(&title);
        let _ = write!(out, "<body>\n<main>\n<h1>{}</h1>\n<dl>\n", escaped(&title));
        for (name, side) in [("A", self.a), ("B", self.b)] {
            let _ = writeln!(
                out,
                "<div><dt>{name}: {}</dt><dd>{}</dd></div>",
                escaped(&side.label),
                escaped(&side.report.command)
            );
        }
        let _ = write!(out, "</dl>\n<p>{}.</p>\n", escaped(&self.tally()));
        for note in &self.notes {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(note));
        }
        table(&self.table(), &mut out);
        out.push_str("<h2>Figures</h2>\n");
        for figure in &self.a.report.figures {
            let Some(other) = self.b.report.figures.iter().find(|it| it.id == figure.id) else {
                continue;
            };
            out.push_str("<div class=\"pair\">\n");
            for (name, figure) in [("A", figure), ("B", other)] {
                let mut figure = figure.clone();
                figure.title = format!("{name}: {}", figure.title);
                let _ = write!(out, "<figure>\n{}</figure>\n", draw(&figure, Theme::Page));
            }
            out.push_str("</div>\n");
        }
        out.push_str("</main>\n</body>\n</html>\n");
        Ok(out)
    }
}

/// A figure of the table of all points.
struct Point {
    at: Vec<String>,
    metric: String,
    unit: String,
    mean: f64,
    /// Half of its interval, and of how many seeds.
    half: Option<(f64, u64)>,
}

fn points(report: &Report) -> Vec<Point> {
    let Some(table) = report.tables.iter().find(|table| table.title == MEASURED) else {
        return Vec::new();
    };
    let number = |row: &[Value], at: usize| match row.get(at) {
        Some(Value::Number(number)) => Some(*number),
        _ => None,
    };
    let is_metric = |at: &usize| table.rows.iter().any(|row| number(row, *at).is_some());
    let first = (0..table.columns.len()).find(is_metric).unwrap_or(table.columns.len());
    let mut points = Vec::new();
    for row in &table.rows {
        for at in first..table.columns.len() {
            let (column, mean) = (&table.columns[at], number(row, at));
            let Some(mean) = mean.filter(|_| column.label != PLUS_MINUS) else { continue };
            let has_half = table.columns.get(at + 1).is_some_and(|next| next.label == PLUS_MINUS);
            let half = number(row, at + 1).filter(|_| has_half);
            points.push(Point {
                at: row[..first].iter().map(Value::to_string).collect(),
                metric: column.label.clone(),
                unit: column.unit.clone(),
                mean,
                half: half.map(|half| (half, report.seeds)),
            });
        }
    }
    points
}

fn difference(one: &Point, two: &Point) -> Difference {
    let between = two.mean - one.mean;
    let interval = one.half.zip(two.half).map(|(one, two)| {
        let half = welch(one, two);
        let seeds = one.1.min(two.1) as u32;
        Interval { low: between - half, high: between + half, seeds }
    });
    Difference {
        at: one.at.clone(),
        metric: one.metric.clone(),
        unit: one.unit.clone(),
        a: one.mean,
        b: two.mean,
        share: (one.mean != 0.0).then(|| between / one.mean.abs()),
        significant: interval.as_ref().map(|it| it.low > 0.0 || it.high < 0.0),
        interval,
    }
}

/// Half of the interval of a difference, by Welch: the two may spread differently.
fn welch(one: (f64, u64), two: (f64, u64)) -> f64 {
    let error = |(half, seeds): (f64, u64)| half / student_t((seeds.max(2) - 1) as usize);
    let freedom = |(_, seeds): (f64, u64)| (seeds.max(2) - 1) as f64;
    let (a, b) = (error(one) * error(one), error(two) * error(two));
    if a + b == 0.0 {
        return 0.0;
    }
    let together = (a + b) * (a + b) / (a * a / freedom(one) + b * b / freedom(two));
    student_t(together as usize) * (a + b).sqrt()
}

#[cfg(test)]
mod tests {
    use super::{student_t, welch};

    #[test]
    fn the_interval_of_a_difference_is_welchs() {
        // Five values each, standard errors of 1: sqrt(2), at eight degrees of freedom.
        let half = student_t(4);
        assert!((welch((half, 5), (half, 5)) - 2.306 * 2f64.sqrt()).abs() < 1e-9);
        // One that does not spread leaves the other's.
        assert!((welch((half, 5), (0.0, 5)) - half).abs() < 1e-9);
        assert_eq!(welch((0.0, 5), (0.0, 5)), 0.0);
    }
}
