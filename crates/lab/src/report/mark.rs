//! How a series looks, and its marks within a plot: bars, lines, steps, markers, error bars.
//!
//! Invariants: the source's marks are hollow and of a shape that no series of Weir or a baseline
//! has, and they are drawn last, so that they stay visible over ours; a series of a million points
//! gives a path of a few thousand.

use super::chart::Plot;
use super::drawing::{Drawing, Lettering, Stroke, polygon, polyline, text_width};
use super::number::{exponent_of, plain, short, ten_to, with_unit};
use super::theme::{Role, Theme};
use super::{Figure, Origin, Scale, Series, Style};
use std::collections::{BTreeMap, BTreeSet};

/// Share of a category's width that its bars take.
const GROUP_SHARE: f64 = 0.84;
/// Markers on a line with more points than this are spread out.
const MARKERS_MAX: usize = 40;
/// Series with more points than this are thinned to what can be told apart.
const POINTS_MAX: usize = 2000;
/// Size of the numbers above bars.
const BAR_LABEL_SIZE: f64 = 11.0;

/// Between the lines that fill the source's bars.
const HATCH_DISTANCE: f64 = 7.0;

/// Dashes of the source's lines.
const PAPER_DASH: &str = "4 3";
/// Dashes of bounds.
const BOUND_DASH: &str = "2 4";

/// Outline of a marker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Circle,
    /// Corners about the centre, for a radius of one.
    Corners(&'static [(f64, f64)]),
}

const DIAMOND: Shape = Shape::Corners(&[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]);
const DOWN: Shape = Shape::Corners(&[(0.0, 1.2), (1.15, -0.85), (-1.15, -0.85)]);
const STAR: Shape = Shape::Corners(&[
    (0.0, -1.4),
    (0.4, -0.4),
    (1.4, 0.0),
    (0.4, 0.4),
    (0.0, 1.4),
    (-0.4, 0.4),
    (-1.4, 0.0),
    (-0.4, -0.4),
]);
const SQUARE: Shape = Shape::Corners(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]);
const UP: Shape = Shape::Corners(&[(0.0, -1.2), (1.15, 0.85), (-1.15, 0.85)]);
const PENTAGON: Shape =
    Shape::Corners(&[(0.0, -1.1), (1.05, -0.34), (0.65, 0.89), (-0.65, 0.89), (-1.05, -0.34)]);
const HEXAGON: Shape = Shape::Corners(&[
    (1.1, 0.0),
    (0.55, 0.95),
    (-0.55, 0.95),
    (-1.1, 0.0),
    (-0.55, -0.95),
    (0.55, -0.95),
]);
const PLUS: Shape = Shape::Corners(&[
    (-0.4, -1.1),
    (0.4, -1.1),
    (0.4, -0.4),
    (1.1, -0.4),
    (1.1, 0.4),
    (0.4, 0.4),
    (0.4, 1.1),
    (-0.4, 1.1),
    (-0.4, 0.4),
    (-1.1, 0.4),
    (-1.1, -0.4),
    (-0.4, -0.4),
]);

/// How one series is told from the others.
#[derive(Clone, Debug)]
pub struct Look {
    colour: String,
    shape: Shape,
    hollow: bool,
    dash: &'static str,
    ground: String,
}

impl Look {
    /// The look of series `index`: by its origin, and by how many of that origin come before it.
    pub fn of(series: &[Series], index: usize, theme: Theme) -> Self {
        let origin = series[index].origin;
        let nth = series[..index].iter().filter(|other| other.origin == origin).count();
        let pick = |shapes: [Shape; 3]| shapes[nth % 3];
        // Once the colours have all been used, dashes tell the next round apart.
        let round = ["", "7 3", "2 3"][nth / 5 % 3];
        let (role, shape, hollow, dash) = match origin {
            Origin::Paper => (Role::Ink, pick([DIAMOND, DOWN, STAR]), true, PAPER_DASH),
            Origin::Weir => (Role::Weir(nth), pick([Shape::Circle, UP, PENTAGON]), false, round),
            Origin::Baseline => (Role::Baseline(nth), pick([SQUARE, PLUS, HEXAGON]), false, round),
            Origin::Bound => (Role::Bound(nth), SQUARE, true, BOUND_DASH),
        };
        let ground = theme.colour(Role::Ground);
        Self { colour: theme.colour(role), shape, hollow, dash, ground }
    }

    fn line(&self) -> Stroke {
        let width = if self.hollow { 1.6 } else { 2.4 };
        Stroke { colour: self.colour.clone(), width, dash: self.dash }
    }

    fn marker(&self, drawing: &mut Drawing, (x, y): (f64, f64), title: &str) {
        // Hollow ones are larger, so that one of ours at the same place shows inside.
        let (radius, fill, stroke) = match self.hollow {
            true => (6.2, "none", Stroke::solid(self.colour.clone(), 2.0)),
            false => (5.0, self.colour.as_str(), Stroke::solid(self.ground.clone(), 1.0)),
        };
        match self.shape {
            Shape::Circle => drawing.circle((x, y), radius, fill, &stroke, title),
            Shape::Corners(corners) => {
                let corners: Vec<(f64, f64)> =
                    corners.iter().map(|(dx, dy)| (x + radius * dx, y + radius * dy)).collect();
                drawing.path(&polygon(&corners), fill, Some(&stroke), title);
            }
        }
    }

    /// A bar between two corners. The source's are hatched, bounds only outlined.
    fn bar(&self, drawing: &mut Drawing, from: (f64, f64), to: (f64, f64), title: &str) {
        let outline = polygon(&[from, (to.0, from.1), to, (from.0, to.1)]);
        if !self.hollow {
            drawing.path(&outline, &self.colour, None, title);
            return;
        }
        if self.dash == PAPER_DASH {
            let lines = hatches(from, to);
            let data: String =
                lines.into_iter().map(|(start, end)| polyline(&[start, end])).collect();
            drawing.path(&data, "none", Some(&Stroke::solid(self.colour.clone(), 0.9)), "");
        }
        let stroke = Stroke::solid(self.colour.clone(), 1.6);
        // A fill that cannot be seen, so that a pointer finds the inside too.
        drawing.path(&outline, "transparent", Some(&stroke), title);
    }

    /// The sample in the legend, 28 wide, centred on `y`.
    pub fn sample(&self, drawing: &mut Drawing, style: Style, (x, y): (f64, f64)) {
        match style {
            Style::Bars => self.bar(drawing, (x + 7.0, y - 7.0), (x + 21.0, y + 7.0), ""),
            Style::Points => self.marker(drawing, (x + 14.0, y), ""),
            Style::Line | Style::Steps => {
                drawing.line((x, y), (x + 28.0, y), &self.line());
                if !self.is_bound() {
                    self.marker(drawing, (x + 14.0, y), "");
                }
            }
        }
    }

    fn is_bound(&self) -> bool {
        self.dash == BOUND_DASH
    }
}

/// Diagonal lines inside a rectangle.
fn hatches(one: (f64, f64), other: (f64, f64)) -> Vec<((f64, f64), (f64, f64))> {
    let (left, right) = (one.0.min(other.0), one.0.max(other.0));
    let (top, bottom) = (one.1.min(other.1), one.1.max(other.1));
    let count = ((right - left + bottom - top) / HATCH_DISTANCE) as usize;
    // Line n goes up and right: x + y is the same at all of its points.
    let lines = (1..=count).map(|nth| {
        let sum = left + top + HATCH_DISTANCE * nth as f64;
        let start_x = left.max(sum - bottom);
        let end_x = right.min(sum - top);
        ((start_x, sum - start_x), (end_x, sum - end_x))
    });
    lines.filter(|(start, end)| end.0 > start.0).collect()
}

/// Where the bars of a figure go.
#[derive(Debug)]
pub struct Slots {
    /// Which series have one, in order.
    series: Vec<usize>,
    /// Width of one bar.
    width: f64,
}

impl Slots {
    /// The slots of a figure in a plot of this width, where `place` gives an x its pixel.
    pub fn new(figure: &Figure, width: f64, place: impl Fn(f64) -> Option<f64>) -> Self {
        let has_bars = figure.series.iter().any(|series| series.style == Style::Bars);
        let categories = figure.x.categories.as_ref().map(Vec::len);
        // Beside bars of categories, points take a place of their own: nothing covers anything.
        let takes_one = |style: Style| {
            style == Style::Bars || style == Style::Points && categories.is_some() && has_bars
        };
        let series: Vec<usize> =
            (0..figure.series.len()).filter(|&at| takes_one(figure.series[at].style)).collect();
        let room = match categories {
            Some(count) => width / count.max(1) as f64,
            None => nearest(figure, &series, place).clamp(1.0, 70.0),
        };
        // A lone bar would be a wall.
        let bar = (room * GROUP_SHARE / series.len().max(1) as f64).min(90.0);
        Self { series, width: bar }
    }

    /// Whether every bar has room for a number above it.
    pub fn fit_labels(&self) -> bool {
        !self.series.is_empty() && self.width >= text_width("0.888", BAR_LABEL_SIZE, true) + 2.0
    }

    /// How far right of the centre series `index` stands.
    fn offset(&self, index: usize) -> f64 {
        let slot = self.series.iter().position(|&at| at == index);
        slot.map_or(0.0, |slot| (slot as f64 + 0.5 - self.series.len() as f64 / 2.0) * self.width)
    }
}

/// How far bars at numbers reach beyond the outer ones' centres: half of what two share.
pub fn bar_edges(figure: &Figure) -> Vec<f64> {
    let bars = figure.series.iter().filter(|series| series.style == Style::Bars);
    let mut xs: Vec<f64> = bars.flat_map(|series| &series.points).map(|&(x, _)| x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let (true, [first, .., last]) = (figure.x.scale == Scale::Linear, &xs[..]) else {
        return Vec::new();
    };
    let gap = xs.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
    vec![first - gap / 2.0, last + gap / 2.0]
}

/// The smallest distance between two bars' centres.
fn nearest(figure: &Figure, series: &[usize], place: impl Fn(f64) -> Option<f64>) -> f64 {
    let points = series.iter().flat_map(|&at| &figure.series[at].points);
    let mut centres: Vec<f64> = points.filter_map(|&(x, _)| place(x)).collect();
    centres.sort_by(f64::total_cmp);
    let gaps = centres.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0.01);
    gaps.fold(f64::INFINITY, f64::min)
}

/// Draws series `index`. Returns how many of its points have no place.
pub fn draw(plot: &Plot<'_>, slots: &Slots, index: usize, drawing: &mut Drawing) -> usize {
    let series = &plot.figure.series[index];
    let look = Look::of(&plot.figure.series, index, plot.theme);
    let offset = slots.offset(index);
    let place = |point: (f64, f64)| plot.at(point).map(|(x, y)| (x + offset, y));
    let placed: Vec<Option<(f64, f64)>> = series.points.iter().map(|&point| place(point)).collect();
    if is_band(series) {
        band(plot, series, &look, drawing);
    }
    match series.style {
        Style::Bars => bars(plot, slots, index, &look, &placed, drawing),
        Style::Points => (),
        Style::Line | Style::Steps => lines(plot, series, &look, &placed, drawing),
    }
    if !is_band(series) {
        error_bars(plot, series, &look, &placed, drawing);
    }
    let is_marked = match series.style {
        Style::Bars => false,
        Style::Points => true,
        Style::Line | Style::Steps => !look.is_bound(),
    };
    if is_marked {
        markers(plot, series, &look, &placed, drawing);
    }
    placed.iter().filter(|place| place.is_none()).count()
}

fn bars(
    plot: &Plot<'_>,
    slots: &Slots,
    index: usize,
    look: &Look,
    placed: &[Option<(f64, f64)>],
    drawing: &mut Drawing,
) {
    let series = &plot.figure.series[index];
    let half = (slots.width / 2.0 - 1.0).max(0.5);
    let base = plot.base();
    for (at, (x, y)) in tallest(placed, base) {
        let title = title(plot.figure, series, at);
        look.bar(drawing, (x - half, base), (x + half, y), &title);
        if slots.fit_labels() {
            let upper = series.error_bars.as_ref().and_then(|bars| {
                plot.at((series.points[at].0, bars[at].1)).map(|(_, upper)| upper)
            });
            let down = y > base;
            let edge = if down { y + 14.0 } else { upper.unwrap_or(y).min(y) - 5.0 };
            let look = Lettering {
                colour: plot.theme.colour(Role::Ink),
                size: BAR_LABEL_SIZE,
                anchor: "middle",
                bold: series.origin == Origin::Weir,
                halo: plot.theme.colour(Role::Ground),
            };
            drawing.text((x, edge), &look, &bar_label(plot, series.points[at].1));
        }
    }
}

/// All bars, or of very many the tallest on each pixel: the others stand behind it.
fn tallest(placed: &[Option<(f64, f64)>], base: f64) -> Vec<(usize, (f64, f64))> {
    let all = placed.iter().enumerate().filter_map(|(at, place)| Some((at, (*place)?)));
    if placed.len() <= POINTS_MAX {
        return all.collect();
    }
    let mut columns: BTreeMap<i64, (usize, (f64, f64))> = BTreeMap::new();
    for bar in all {
        let tallest = columns.entry(libm::round(bar.1.0) as i64).or_insert(bar);
        if (bar.1.1 - base).abs() > (tallest.1.1 - base).abs() {
            *tallest = bar;
        }
    }
    columns.into_values().collect()
}

/// A bar's value in the unit of the axis's labels: three digits, or all of a whole number where
/// every bar is one.
fn bar_label(plot: &Plot<'_>, value: f64) -> String {
    let shown = |value: f64| value * ten_to(-plot.y.power);
    let is_whole = |value: f64| (shown(value) - libm::round(shown(value))).abs() < 1e-9;
    let bars = plot.figure.series.iter().filter(|series| series.style == Style::Bars);
    let all_whole = bars.flat_map(|series| &series.points).all(|&(_, y)| is_whole(y));
    let (shown, exponent) = (shown(value), exponent_of(shown(value)));
    match usize::try_from(2 - exponent) {
        _ if shown == 0.0 => "0".to_owned(),
        _ if !(-3..4).contains(&exponent) => short(shown, ""),
        Ok(decimals) if !all_whole => format!("{shown:.decimals$}"),
        _ => format!("{shown:.0}"),
    }
}

fn lines(
    plot: &Plot<'_>,
    series: &Series,
    look: &Look,
    placed: &[Option<(f64, f64)>],
    drawing: &mut Drawing,
) {
    // A bound of one point holds everywhere.
    if let ([Some((_, y))], true) = (placed, look.is_bound()) {
        let title = title(plot.figure, series, 0);
        let ends = [(plot.left, *y), (plot.left + plot.width, *y)];
        drawing.path(&polyline(&ends), "none", Some(&look.line()), &title);
        return;
    }
    // A point without a place interrupts the line: joining over it would invent a value.
    for run in placed.split(Option::is_none) {
        let mut points: Vec<(f64, f64)> = run.iter().copied().flatten().collect();
        if series.style == Style::Steps {
            points = steps(&points);
        }
        if points.len() > 1 {
            let data = polyline(&thinned(&points));
            drawing.path(&data, "none", Some(&look.line()), &series.name);
        }
    }
}

fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut out = Vec::with_capacity(2 * points.len());
    for &(x, y) in points {
        if let Some(&(_, before)) = out.last() {
            out.push((x, before));
        }
        out.push((x, y));
    }
    out
}

/// The first, highest, lowest and last point of every half pixel, if there are very many.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let column = |point: &(f64, f64)| libm::floor(point.0 * 2.0);
    let mut out = Vec::new();
    for run in points.chunk_by(|one, other| column(one) == column(other)) {
        let by_height = |&one: &usize, &other: &usize| run[one].1.total_cmp(&run[other].1);
        let highest = (0..run.len()).min_by(by_height).unwrap_or(0);
        let lowest = (0..run.len()).max_by(by_height).unwrap_or(0);
        let mut kept = [0, highest, lowest, run.len() - 1].to_vec();
        kept.sort_unstable();
        kept.dedup();
        out.extend(kept.into_iter().map(|at| run[at]));
    }
    out
}

fn markers(
    plot: &Plot<'_>,
    series: &Series,
    look: &Look,
    placed: &[Option<(f64, f64)>],
    drawing: &mut Drawing,
) {
    for (at, place) in marked(series.style, placed) {
        look.marker(drawing, place, &title(plot.figure, series, at));
    }
}

/// Which points get a marker: all, unless there are so many that they would hide each other.
fn marked(style: Style, placed: &[Option<(f64, f64)>]) -> Vec<(usize, (f64, f64))> {
    let all = placed.iter().enumerate().filter_map(|(at, place)| Some((at, (*place)?)));
    let mut all: Vec<(usize, (f64, f64))> = all.collect();
    let distance =
        |one: (f64, f64), other: (f64, f64)| (one.0 - other.0).abs() + (one.1 - other.1).abs();
    match style {
        // On a long line markers only tell it from others: some ten, evenly along the way.
        Style::Line | Style::Steps if all.len() > MARKERS_MAX => {
            let way = |pair: &[(usize, (f64, f64))]| distance(pair[0].1, pair[1].1);
            let apart = all.windows(2).map(way).sum::<f64>() / 10.0;
            let (mut gone, mut last) = (apart, all[0].1);
            all.retain(|&(_, place)| {
                gone += distance(last, place);
                last = place;
                let is_due = gone >= apart;
                gone = if is_due { 0.0 } else { gone };
                is_due
            });
        }
        _ if all.len() > POINTS_MAX => {
            // Cells of half a marker.
            let along = |pixels: f64| libm::round(pixels / 5.0) as i64;
            let cell = |place: (f64, f64)| (along(place.0), along(place.1));
            let mut seen = BTreeSet::new();
            all.retain(|&(_, place)| seen.insert(cell(place)));
        }
        _ => (),
    }
    all
}

/// More error bars on a line than this are a band.
const ERROR_BARS_MAX: usize = 24;

fn is_band(series: &Series) -> bool {
    let bars = series.error_bars.as_ref().map_or(0, Vec::len);
    series.style == Style::Line && bars > ERROR_BARS_MAX
}

fn band(plot: &Plot<'_>, series: &Series, look: &Look, drawing: &mut Drawing) {
    let Some(bars) = &series.error_bars else { return };
    let bottom = plot.top + plot.height;
    let edge = |of: fn(&(f64, f64)) -> f64| {
        let ends = series.points.iter().zip(bars).filter_map(move |(&(x, y), bar)| {
            let (at, _) = plot.at((x, y))?;
            Some((at, plot.at((x, of(bar))).map_or(bottom, |(_, y)| y)))
        });
        ends.collect::<Vec<_>>()
    };
    let (upper, lower) = (edge(|bar| bar.1), edge(|bar| bar.0));
    let outline: Vec<(f64, f64)> = upper.into_iter().chain(lower.into_iter().rev()).collect();
    drawing.area(&polygon(&outline), &look.colour);
}

fn error_bars(
    plot: &Plot<'_>,
    series: &Series,
    look: &Look,
    placed: &[Option<(f64, f64)>],
    drawing: &mut Drawing,
) {
    let Some(bars) = &series.error_bars else { return };
    // On a bar of the same colour only ink is seen.
    let colour = match series.style {
        Style::Bars => plot.theme.colour(Role::Ink),
        _ => look.colour.clone(),
    };
    let stroke = Stroke::solid(colour, 1.5);
    for (at, place) in placed.iter().enumerate() {
        let Some((x, _)) = *place else { continue };
        let end = |value| plot.at((series.points[at].0, value)).map(|(_, y)| y);
        let bottom = plot.top + plot.height;
        let (low, high) = (end(bars[at].0).unwrap_or(bottom), end(bars[at].1).unwrap_or(bottom));
        drawing.line((x, low), (x, high), &stroke);
        for y in [low, high] {
            drawing.line((x - 4.5, y), (x + 4.5, y), &stroke);
        }
    }
}

/// What a pointer over a mark shows.
fn title(figure: &Figure, series: &Series, at: usize) -> String {
    let (x, y) = series.points[at];
    let x_value = match &figure.x.categories {
        Some(categories) => categories.get(x as usize).cloned().unwrap_or_default(),
        None => with_unit(x, &figure.x.unit),
    };
    let x_label = &figure.x.label;
    let mut text = format!(
        "{}\n{x_label}: {x_value}\n{}: {}",
        series.name,
        figure.y.label,
        with_unit(y, &figure.y.unit)
    );
    if let Some(bars) = &series.error_bars {
        let (low, high) = bars[at];
        text.push_str(&format!(" ({} to {})", plain(low), plain(high)));
    }
    text
}
