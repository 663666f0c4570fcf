//! What an experiment hands to a reader: parameters, figures, tables and claims, as text for a
//! terminal, as one self-contained HTML page, and as an SVG and a PNG file for each figure.
//!
//! A [`Report`] is data, whatever made it; it goes through JSON unchanged. The renderers are pure
//! functions of it.
//!
//! Invariants:
//! - The same report gives the same bytes on any machine: no date, no order but the report's own,
//!   fixed rules for numbers ([`number`]), fonts from a crate.
//! - Every number in a rendered report is finite: [`Report::check`] comes first.
//! - Text of a report is text: nothing in it becomes markup or an escape sequence.

mod axis;
mod chart;
mod claim;
mod compare;
mod drawing;
mod files;
mod html;
mod index;
mod listing;
mod mark;
pub(crate) mod number;
#[cfg_attr(not(feature = "png"), path = "no_png.rs")]
mod png;
mod text;
mod theme;

#[cfg(test)]
mod tests;

pub use chart::svg;
pub use claim::{
    BadClaim, Claim, Class, Goal, Interval, Statement, Tolerance, Value, Verdict, judge,
};
pub use compare::{Comparison, Difference, Side, student_t};
pub use files::{write, write_index};
pub use html::html;
pub use index::Run;
pub use listing::claims_markdown;
pub use png::{BUILT_IN as PNG_BUILT_IN, png};
pub use text::{claims_text, tallies, text};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Numbers beyond this (or, if not zero, this close to it) are a mistake rather than a measurement.
const MAGNITUDE_MAX: f64 = 1e100;

/// Title of the table of all points.
pub const MEASURED: &str = "Measured";
/// Label of a column with half of the intervals of the column before it.
pub const PLUS_MINUS: &str = "±";

fn one() -> u64 {
    1
}

/// What one run of an experiment found.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The experiment's name: lower-case letters, digits and dashes, for it names files.
    pub name: String,
    /// One line.
    pub title: String,
    /// What was found, in a few sentences. An empty line parts paragraphs.
    pub summary: String,
    /// Paper and section that the experiment comes from.
    pub source: String,
    /// The exact line that repeats the run.
    pub command: String,
    /// Seed of all randomness.
    pub seed: u64,
    /// So many seeds, from that one on.
    #[serde(default = "one")]
    pub seeds: u64,
    /// `small`, `full`, or what the experiment calls it.
    pub scale: String,
    /// Names and values, in the order to show.
    pub parameters: Vec<(String, String)>,
    /// Plots.
    pub figures: Vec<Figure>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Claims, with verdicts.
    pub claims: Vec<Claim>,
    /// What a careful reader must know: deviations, limits.
    pub notes: Vec<String>,
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Lower-case letters, digits and dashes, unique in the report: it names the files.
    pub id: String,
    /// One line.
    pub title: String,
    /// The axis along the bottom.
    pub x: Axis,
    /// The axis up the left side.
    pub y: Axis,
    /// What is plotted.
    pub series: Vec<Series>,
    /// Stands below the plot; may be empty.
    pub note: String,
}

/// One axis of a plot.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What is measured.
    pub label: String,
    /// Its unit, with or without a prefix: `s`, `us`, `GB/s`, `KiB`, `%`; empty if there is none.
    pub unit: String,
    /// How values are laid out.
    pub scale: Scale,
    /// Names instead of numbers, on an x axis: a point's x is the index of its category.
    pub categories: Option<Vec<String>>,
}

/// How values are laid out on an axis.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// In proportion.
    Linear,
    /// By the logarithm. Values that are not above zero have no place, and the plot says so.
    Log,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Who measured.
    pub origin: Origin,
    /// How the points are drawn.
    pub style: Style,
    /// x and y, in the axes' units.
    pub points: Vec<(f64, f64)>,
    /// For each point the lowest and highest y, in the axis's unit.
    pub error_bars: Option<Vec<(f64, f64)>>,
}

/// Who measured a series. A reader tells origins apart by colour, shape and fill.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The source.
    Paper,
    /// Weir.
    Weir,
    /// What Weir is compared with, measured the same way.
    Baseline,
    /// What physics allows.
    Bound,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Joined by straight lines.
    Line,
    /// Markers alone.
    Points,
    /// Bars from zero.
    Bars,
    /// Level until the next point: a distribution.
    Steps,
}

/// A table.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// One line.
    pub title: String,
    /// Headers.
    pub columns: Vec<Column>,
    /// As many cells each as there are columns.
    pub rows: Vec<Vec<Value>>,
    /// Stands below the table; may be empty.
    pub note: String,
}

/// Header of a table's column.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// What stands in it.
    pub label: String,
    /// In which unit; empty if there is none.
    pub unit: String,
}

impl Column {
    /// Label and unit, as the header shows them.
    fn header(&self) -> String {
        labelled(&self.label, &self.unit)
    }
}

/// A label with its unit behind it.
fn labelled(label: &str, unit: &str) -> String {
    match (label, number::unit_name(unit)) {
        (label, "") => label.to_owned(),
        ("", unit) => unit.to_owned(),
        (label, unit) => format!("{label} ({unit})"),
    }
}

impl Report {
    /// Whether every part fits the others and can be drawn. Each renderer asks first.
    pub fn check(&self) -> Result<(), ReportError> {
        check_id("the report", &self.name)?;
        for (index, figure) in self.figures.iter().enumerate() {
            figure.check()?;
            if self.figures[..index].iter().any(|other| other.id == figure.id) {
                return Err(ReportError::TwoFigures { id: figure.id.clone() });
            }
        }
        self.tables.iter().try_for_each(Table::check)
    }
}

impl Figure {
    /// Whether the figure can be drawn.
    pub fn check(&self) -> Result<(), ReportError> {
        check_id("a figure", &self.id)?;
        let place = |what: &str| format!("figure {}, {what}", self.id);
        if self.y.categories.is_some() {
            return Err(ReportError::YCategories { place: place("y axis") });
        }
        for series in &self.series {
            let place = |at: usize| place(&format!("series {}, point {at}", series.name));
            let bars = series.error_bars.as_deref();
            if bars.is_some_and(|bars| bars.len() != series.points.len()) {
                return Err(ReportError::ErrorBars { place: place(series.points.len()) });
            }
            for (at, &(x, y)) in series.points.iter().enumerate() {
                let (low, high) = bars.map_or((y, y), |bars| bars[at]);
                for value in [x, y, low, high] {
                    check_number(|| place(at), value)?;
                }
                if !(low..=high).contains(&y) {
                    return Err(ReportError::ErrorBars { place: place(at) });
                }
                let count = self.x.categories.as_ref().map(Vec::len);
                if count.is_some_and(|count| libm::floor(x) != x || x < 0.0 || x >= count as f64) {
                    return Err(ReportError::Category { place: place(at) });
                }
            }
        }
        Ok(())
    }
}

impl Table {
    fn check(&self) -> Result<(), ReportError> {
        for (at, row) in self.rows.iter().enumerate() {
            let place = || format!("table {}, row {at}", self.title);
            if row.len() != self.columns.len() {
                let (cells, columns) = (row.len(), self.columns.len());
                return Err(ReportError::Row { place: place(), cells, columns });
            }
            if !row.iter().all(Value::is_finite) {
                return Err(ReportError::Number { place: place(), value: f64::NAN });
            }
        }
        Ok(())
    }
}

fn check_id(what: &'static str, id: &str) -> Result<(), ReportError> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if id.is_empty() || id.len() > 80 || !id.chars().all(fits) {
        return Err(ReportError::Name { what, name: id.to_owned() });
    }
    Ok(())
}

fn check_number(place: impl Fn() -> String, value: f64) -> Result<(), ReportError> {
    let tiny = value != 0.0 && value.abs() < 1.0 / MAGNITUDE_MAX;
    if !value.is_finite() || value.abs() > MAGNITUDE_MAX || tiny {
        return Err(ReportError::Number { place: place(), value });
    }
    Ok(())
}

/// Why a report cannot be rendered or written.
#[derive(Debug)]
pub enum ReportError {
    /// A value that has no place on an axis: give the experiment's run another look.
    Number {
        /// Where it stands.
        place: String,
        /// What it is.
        value: f64,
    },
    /// A name that cannot name a file.
    Name {
        /// Whose name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two figures of one id would share their files.
    TwoFigures {
        /// The id.
        id: String,
    },
    /// Only an x axis has categories.
    YCategories {
        /// Where.
        place: String,
    },
    /// An x that is not the index of a category.
    Category {
        /// Where.
        place: String,
    },
    /// Error bars that are not one for each point, or not around it.
    ErrorBars {
        /// Where.
        place: String,
    },
    /// A row that does not fit the header.
    Row {
        /// Where.
        place: String,
        /// Cells in it.
        cells: usize,
        /// Cells there should be.
        columns: usize,
    },
    /// Two reports that are not of one thing.
    Comparison {
        /// What they are.
        why: String,
    },
    /// The rasterizer refused a figure: it is too large to be a picture.
    Raster {
        /// Which figure.
        figure: String,
        /// What it said.
        reason: String,
    },
    /// A file could not be written.
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { place, value } => write!(
                f,
                "{place}: a value ({value:e}) is not finite or beyond {MAGNITUDE_MAX:e} either \
                 way: leave the point out or mend what measured it"
            ),
            Self::Name { what, name } => write!(
                f,
                "the name of {what} names files, so it is made of a-z, 0-9 and -, not {name:?}"
            ),
            Self::TwoFigures { id } => write!(f, "two figures are called {id}: rename one"),
            Self::YCategories { place } => write!(f, "{place}: categories go on the x axis"),
            Self::Category { place } => {
                write!(f, "{place}: x must be the index of a category, counted from 0")
            }
            Self::ErrorBars { place } => {
                write!(f, "{place}: error bars are one low and high for each point, around its y")
            }
            Self::Row { place, cells, columns } => {
                write!(f, "{place}: {cells} cells under {columns} headers: make them as many")
            }
            Self::Comparison { why } => f.write_str(why),
            Self::Raster { figure, reason } => write!(f, "figure {figure}: no PNG of it: {reason}"),
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ReportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { error, .. } => Some(error),
            _ => None,
        }
    }
}
