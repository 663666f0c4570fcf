//! Lays a figure out: title, legend, axes, plot, note, from top to bottom, so that nothing ever
//! covers data.

use super::axis::{Side, Span};
use super::drawing::{Drawing, Lettering, Stroke, shortened, text_width, wrapped};
use super::mark::{self, Look, Slots};
use super::theme::{Role, Theme};
use super::{Figure, Origin, ReportError, Series, labelled};

const WIDTH: f64 = 920.0;
const MARGIN: f64 = 24.0;
const PLOT_HEIGHT: f64 = 350.0;
const TITLE_SIZE: f64 = 20.0;
const LABEL_SIZE: f64 = 14.0;
const NOTE_SIZE: f64 = 12.5;
/// From a baseline of text to the next.
const ROW: f64 = 24.0;
/// A category's name takes at most so many lines.
const NAME_LINES_MAX: usize = 3;

/// The area with the data, and its axes.
#[derive(Debug)]
pub struct Plot<'a> {
    pub figure: &'a Figure,
    pub theme: Theme,
    pub y: Span,
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    x: Span,
}

impl Plot<'_> {
    /// Where a point lies, if both axes have a place for it.
    pub fn at(&self, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        let (x, y) = (self.x.place(x)?, self.y.place(y)?);
        Some((self.left + x * self.width, self.top + (1.0 - y) * self.height))
    }

    /// The height of the line on which bars stand.
    pub fn base(&self) -> f64 {
        self.top + (1.0 - self.y.base()) * self.height
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    fn lettering(&self, role: Role, size: f64, anchor: &'static str) -> Lettering {
        Lettering {
            colour: self.theme.colour(role),
            size,
            anchor,
            bold: false,
            halo: String::new(),
        }
    }
}

/// A figure as a standalone SVG file, on white.
pub fn svg(figure: &Figure) -> Result<String, ReportError> {
    figure.check()?;
    Ok(draw(figure, Theme::Light))
}

/// A checked figure as an SVG element.
pub fn draw(figure: &Figure, theme: Theme) -> String {
    let mut drawing = Drawing::default();
    let top = heading(figure, theme, &mut drawing);
    let (plot, slots) = plot(figure, theme, top);
    y_axis(&plot, &mut drawing);
    let below = x_axis(&plot, &mut drawing);
    let mut order: Vec<usize> = (0..figure.series.len()).collect();
    order.sort_by_key(|&index| rank(&figure.series[index]));
    let lost: usize =
        order.iter().map(|&index| mark::draw(&plot, &slots, index, &mut drawing)).sum();
    frame(&plot, &mut drawing);
    let height = notes(&plot, lost, below, &mut drawing);
    drawing.finish(WIDTH, height, &figure.title, &theme.colour(Role::Ground))
}

/// Later is drawn above.
fn rank(series: &Series) -> u32 {
    match series.origin {
        Origin::Bound => 0,
        Origin::Baseline => 1,
        Origin::Weir => 2,
        Origin::Paper => 3,
    }
}

/// Draws title and legend. Returns where they end.
fn heading(figure: &Figure, theme: Theme, drawing: &mut Drawing) -> f64 {
    let look = |role, size, bold| {
        let (colour, halo) = (theme.colour(role), String::new());
        Lettering { colour, size, anchor: "start", bold, halo }
    };
    let mut y = 12.0;
    // Bold letters are wider than the plain ones that lines are broken by.
    for line in wrapped(&figure.title, TITLE_SIZE * 1.08, WIDTH - 2.0 * MARGIN) {
        y += ROW;
        drawing.text((MARGIN, y), &look(Role::Ink, TITLE_SIZE, true), &line);
    }
    if figure.series.is_empty() {
        return y;
    }
    y += ROW + 4.0;
    let mut x = MARGIN;
    for (index, series) in figure.series.iter().enumerate() {
        let name = shortened(&legend_name(series), LABEL_SIZE, WIDTH - 2.0 * MARGIN - 60.0);
        let width = 28.0 + 8.0 + text_width(&name, LABEL_SIZE, false) + 22.0;
        if x > MARGIN && x + width - 22.0 > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + ROW);
        }
        Look::of(&figure.series, index, theme).sample(drawing, series.style, (x, y - 5.0));
        drawing.text((x + 36.0, y), &look(Role::Ink, LABEL_SIZE, false), &name);
        x += width;
    }
    y
}

/// The name, with the origin behind it unless it says so itself.
pub fn legend_name(series: &Series) -> String {
    let origin = match series.origin {
        Origin::Paper => "paper",
        Origin::Weir => "Weir",
        Origin::Baseline => "baseline",
        Origin::Bound => "bound",
    };
    if series.name.to_lowercase().contains(&origin.to_lowercase()) {
        return series.name.clone();
    }
    labelled(&series.name, origin)
}

/// Sizes the plot and its axes.
fn plot(figure: &Figure, theme: Theme, heading_end: f64) -> (Plot<'_>, Slots) {
    let points = || figure.series.iter().flat_map(|series| &series.points);
    let mut xs: Vec<f64> = points().map(|&(x, _)| x).collect();
    xs.extend(mark::bar_edges(figure));
    let bars = figure.series.iter().filter_map(|series| series.error_bars.as_ref()).flatten();
    let mut ys: Vec<f64> = points().map(|&(_, y)| y).collect();
    ys.extend(bars.flat_map(|&(low, high)| [low, high]));

    let x = Span::new(&figure.x, &xs, Side::Bottom);
    // Bars need to know the width before the labels of the y axis are known: take the usual one.
    let usual = WIDTH - 2.0 * MARGIN - 60.0;
    let slots = |width: f64| Slots::new(figure, width, |value| Some(x.place(value)? * width));
    let headroom = if slots(usual).fit_labels() { 0.06 } else { 0.0 };
    let y = Span::new(&figure.y, &ys, Side::Left { headroom });
    let widths = y.ticks.iter().map(|tick| text_width(&tick.label, LABEL_SIZE, false));
    let left = MARGIN + widths.fold(20.0, f64::max) + 13.0;
    let width = WIDTH - MARGIN - 6.0 - left;
    let slots = slots(width);
    let top = heading_end + ROW + 20.0;
    (Plot { figure, theme, x, y, left, top, width, height: PLOT_HEIGHT }, slots)
}

fn y_axis(plot: &Plot<'_>, drawing: &mut Drawing) {
    let grid = Stroke::solid(plot.theme.colour(Role::Grid), 1.0);
    let minor = Stroke::solid(plot.theme.colour(Role::Muted), 1.0);
    let label = plot.lettering(Role::Muted, LABEL_SIZE, "end");
    for tick in &plot.y.ticks {
        let Some(place) = plot.y.place(tick.value) else { continue };
        let y = plot.top + (1.0 - place) * plot.height;
        if tick.label.is_empty() {
            drawing.line((plot.left - 4.0, y), (plot.left, y), &minor);
        } else {
            drawing.line((plot.left, y), (plot.left + plot.width, y), &grid);
            drawing.text((plot.left - 12.0, y + 5.0), &label, &tick.label);
        }
    }
    let text = labelled(&plot.figure.y.label, &plot.y.unit);
    let text = shortened(&text, LABEL_SIZE, WIDTH - 2.0 * MARGIN);
    let look = plot.lettering(Role::Muted, LABEL_SIZE, "start");
    drawing.text((MARGIN, plot.top - 16.0), &look, &text);
}

/// Draws what stands below the plot. Returns where it ends.
fn x_axis(plot: &Plot<'_>, drawing: &mut Drawing) -> f64 {
    let below = match &plot.figure.x.categories {
        Some(categories) => category_names(plot, categories, drawing),
        None => x_ticks(plot, drawing),
    };
    let unit = if plot.figure.x.categories.is_some() { &plot.figure.x.unit } else { &plot.x.unit };
    let text = labelled(&plot.figure.x.label, unit);
    if text.is_empty() {
        return below;
    }
    let look = plot.lettering(Role::Muted, LABEL_SIZE, "middle");
    let text = shortened(&text, LABEL_SIZE, plot.width);
    drawing.text((plot.left + plot.width / 2.0, below + ROW), &look, &text);
    below + ROW
}

fn x_ticks(plot: &Plot<'_>, drawing: &mut Drawing) -> f64 {
    let grid = Stroke::solid(plot.theme.colour(Role::Grid), 1.0);
    let axis = Stroke::solid(plot.theme.colour(Role::Muted), 1.0);
    let look = plot.lettering(Role::Muted, LABEL_SIZE, "middle");
    let bottom = plot.bottom();
    let mut free = 0.0;
    for tick in &plot.x.ticks {
        let Some(place) = plot.x.place(tick.value) else { continue };
        let x = plot.left + place * plot.width;
        if tick.label.is_empty() {
            drawing.line((x, bottom), (x, bottom + 3.0), &axis);
            continue;
        }
        drawing.line((x, plot.top), (x, bottom), &grid);
        drawing.line((x, bottom), (x, bottom + 5.0), &axis);
        let half = text_width(&tick.label, LABEL_SIZE, false) / 2.0;
        // A label that would touch the one before it, or leave the picture, is left out.
        if x - half >= free && x + half <= WIDTH - 4.0 {
            drawing.text((x, bottom + 22.0), &look, &tick.label);
            free = x + half + 10.0;
        }
    }
    bottom + 22.0
}

/// Names below their categories: in lines if they fit, else turned.
fn category_names(plot: &Plot<'_>, categories: &[String], drawing: &mut Drawing) -> f64 {
    let room = plot.width / categories.len().max(1) as f64;
    let look = plot.lettering(Role::Ink, LABEL_SIZE, "middle");
    let lines: Vec<Vec<String>> =
        categories.iter().map(|name| wrapped(name, LABEL_SIZE, room - 8.0)).collect();
    let fits = |lines: &Vec<String>| {
        lines.len() <= NAME_LINES_MAX
            && lines.iter().all(|line| text_width(line, LABEL_SIZE, false) <= room - 4.0)
    };
    let centre = |index: usize| plot.left + (index as f64 + 0.5) * room;
    if lines.iter().all(fits) {
        for (index, lines) in lines.iter().enumerate() {
            for (row, line) in lines.iter().enumerate() {
                let y = plot.bottom() + 22.0 + row as f64 * 18.0;
                drawing.text((centre(index), y), &look, line);
            }
        }
        let rows = lines.iter().map(Vec::len).max().unwrap_or(0).max(1);
        return plot.bottom() + 22.0 + (rows - 1) as f64 * 18.0;
    }
    let look = plot.lettering(Role::Ink, NOTE_SIZE, "end");
    // Turned names need their height in width; where there are more, every n-th stands for all.
    let stride = (18.0 / room).max(1.0) as usize + usize::from(room < 18.0);
    let mut longest: f64 = 0.0;
    for (index, name) in categories.iter().enumerate().step_by(stride) {
        // The first ones lean towards the left edge: no longer than what is there.
        let width = ((centre(index) - 4.0) / 0.82).min(190.0);
        let short = shortened(name, NOTE_SIZE, width);
        longest = longest.max(text_width(&short, NOTE_SIZE, false));
        let at = (centre(index) + 4.0, plot.bottom() + 16.0);
        drawing.turned_text(at, -35.0, &look, &short, name);
    }
    plot.bottom() + 16.0 + longest * 0.574
}

/// The axes' own lines, above grid and bars.
fn frame(plot: &Plot<'_>, drawing: &mut Drawing) {
    let stroke = Stroke::solid(plot.theme.colour(Role::Muted), 1.2);
    let base = plot.base();
    drawing.line((plot.left, base), (plot.left + plot.width, base), &stroke);
    if base < plot.bottom() {
        let pale = Stroke::solid(plot.theme.colour(Role::Grid), 1.0);
        drawing.line((plot.left, plot.bottom()), (plot.left + plot.width, plot.bottom()), &pale);
    }
    if plot.figure.series.iter().all(|series| series.points.is_empty()) {
        let look = plot.lettering(Role::Muted, TITLE_SIZE, "middle");
        let centre = (plot.left + plot.width / 2.0, plot.top + plot.height / 2.0);
        drawing.text(centre, &look, "no data");
    }
}

/// Draws the note, and what has no place in the plot. Returns the height of the picture.
fn notes(plot: &Plot<'_>, lost: usize, mut y: f64, drawing: &mut Drawing) -> f64 {
    let look = plot.lettering(Role::Muted, NOTE_SIZE, "start");
    let mut paragraphs = vec![plot.figure.note.clone()];
    if lost > 0 {
        let points = if lost == 1 { "1 point is" } else { &format!("{lost} points are") };
        paragraphs.push(format!(
            "{points} not above zero: no place on a logarithmic axis, and not shown."
        ));
    }
    let lines = paragraphs.iter().flat_map(|text| wrapped(text, NOTE_SIZE, WIDTH - 2.0 * MARGIN));
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        y += 8.0;
    }
    for line in lines {
        y += 18.0;
        drawing.text((MARGIN, y), &look, &line);
    }
    y + 18.0
}
