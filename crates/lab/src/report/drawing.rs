//! Writes SVG: elements with numbers by fixed rules, and text that stays text.
//!
//! Invariant: whatever a caller passes as text or title is escaped here and nowhere else.

use super::number::coordinate;
use skrifa::MetadataProvider;
use skrifa::instance::{LocationRef, Size};
use std::fmt::Write;

/// Fonts to ask for: the bundled one first, then its likes.
pub const FONT_FAMILY: &str = "Noto Sans, Inter, Helvetica Neue, Arial, sans-serif";

/// Text for markup: no character of it is syntax, and none is forbidden in XML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// How wide the bundled font sets a text, in pixels.
pub fn text_width(text: &str, size: f64, bold: bool) -> f64 {
    let data = if bold { notosans::BOLD_TTF } else { notosans::REGULAR_TTF };
    // A character that the font lacks is set by another font: take it for a wide one.
    let fallback = |text: &str| text.chars().count() as f64 * size;
    let Ok(font) = skrifa::FontRef::new(data) else { return fallback(text) };
    let metrics = font.glyph_metrics(Size::new(size as f32), LocationRef::default());
    let characters = font.charmap();
    let widths = text.chars().map(|c| {
        let advance = characters.map(c).and_then(|glyph| metrics.advance_width(glyph));
        advance.map_or(size, f64::from)
    });
    widths.sum()
}

/// A text cut to a width, with an ellipsis where something is missing.
pub fn shortened(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size, false) <= width {
        return text.to_owned();
    }
    let mut kept: String = text.chars().take(200).collect();
    while !kept.is_empty() && text_width(&kept, size, false) + size > width {
        kept.pop();
    }
    format!("{}…", kept.trim_end())
}

/// Lines of at most `width`, broken between words.
pub fn wrapped(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), size, false) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// How a stroke looks.
#[derive(Clone, Debug)]
pub struct Stroke {
    /// Its colour.
    pub colour: String,
    /// Its width.
    pub width: f64,
    /// Lengths of dashes and gaps; empty for a line without gaps.
    pub dash: &'static str,
}

impl Stroke {
    /// A line without gaps.
    pub fn solid(colour: String, width: f64) -> Self {
        Self { colour, width, dash: "" }
    }

    fn attributes(&self) -> String {
        let mut out =
            format!(r#" stroke="{}" stroke-width="{}""#, self.colour, coordinate(self.width));
        if !self.dash.is_empty() {
            let _ = write!(out, r#" stroke-dasharray="{}""#, self.dash);
        }
        out
    }
}

/// How a text looks.
#[derive(Clone, Debug)]
pub struct Lettering {
    /// Its colour.
    pub colour: String,
    /// Its size.
    pub size: f64,
    /// `start`, `middle` or `end`.
    pub anchor: &'static str,
    /// Whether it is bold.
    pub bold: bool,
    /// Colour around the letters, where lines may run below them; empty for none.
    pub halo: String,
}

/// An SVG in the making.
#[derive(Debug, Default)]
pub struct Drawing {
    body: String,
}

impl Drawing {
    /// The whole file.
    pub fn finish(self, width: f64, height: f64, label: &str, ground: &str) -> String {
        let (width, height) = (coordinate(width), coordinate(height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\" \
             font-family=\"{FONT_FAMILY}\">\n<rect width=\"{width}\" height=\"{height}\" \
             fill=\"{ground}\"/>\n{}</svg>\n",
            escaped(label),
            self.body
        )
    }

    /// A straight line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &Stroke) {
        self.path(&polyline(&[from, to]), "none", Some(stroke), "");
    }

    /// A path: `data` as [`polyline`] makes it. The title is what a pointer over it shows.
    pub fn path(&mut self, data: &str, fill: &str, stroke: Option<&Stroke>, title: &str) {
        let stroke = stroke.map_or_else(String::new, Stroke::attributes);
        let open = format!(r#"<path d="{data}" fill="{fill}"{stroke} stroke-linejoin="round""#);
        self.element(&open, "path", title);
    }

    /// A filled area through which what is behind it shows.
    pub fn area(&mut self, data: &str, fill: &str) {
        self.element(&format!(r#"<path d="{data}" fill="{fill}" fill-opacity="0.18""#), "path", "");
    }

    /// A circle.
    pub fn circle(
        &mut self,
        (x, y): (f64, f64),
        radius: f64,
        fill: &str,
        stroke: &Stroke,
        title: &str,
    ) {
        let (x, y, radius) = (coordinate(x), coordinate(y), coordinate(radius));
        let stroke = stroke.attributes();
        let open = format!(r#"<circle cx="{x}" cy="{y}" r="{radius}" fill="{fill}"{stroke}"#);
        self.element(&open, "circle", title);
    }

    /// A line of text.
    pub fn text(&mut self, at: (f64, f64), look: &Lettering, text: &str) {
        self.turned_text(at, 0.0, look, text, "");
    }

    /// A line of text, turned by so many degrees about its anchor.
    pub fn turned_text(
        &mut self,
        (x, y): (f64, f64),
        degrees: f64,
        look: &Lettering,
        text: &str,
        title: &str,
    ) {
        let (x, y) = (coordinate(x), coordinate(y));
        let weight = if look.bold { r#" font-weight="700""# } else { "" };
        let halo = match look.halo.as_str() {
            "" => String::new(),
            colour => format!(r#" stroke="{colour}" stroke-width="3" paint-order="stroke""#),
        };
        let turn = match coordinate(degrees).as_str() {
            "0" => String::new(),
            degrees => format!(r#" transform="rotate({degrees} {x} {y})""#),
        };
        let title = titled(title);
        let _ = writeln!(
            self.body,
            r#"<text x="{x}" y="{y}" font-size="{}" text-anchor="{}" fill="{}"{weight}{halo}{turn}>{}{title}</text>"#,
            coordinate(look.size),
            look.anchor,
            look.colour,
            escaped(text),
        );
    }

    fn element(&mut self, open: &str, name: &str, title: &str) {
        let _ = match titled(title).as_str() {
            "" => writeln!(self.body, "{open}/>"),
            title => writeln!(self.body, "{open}>{title}</{name}>"),
        };
    }
}

fn titled(title: &str) -> String {
    if title.is_empty() { String::new() } else { format!("<title>{}</title>", escaped(title)) }
}

/// Path data of straight lines through all points.
pub fn polyline(points: &[(f64, f64)]) -> String {
    let mut data = String::new();
    for (index, &(x, y)) in points.iter().enumerate() {
        let letter = if index == 0 { 'M' } else { 'L' };
        let _ = write!(data, "{letter}{} {}", coordinate(x), coordinate(y));
    }
    data
}

/// Path data of a closed outline.
pub fn polygon(points: &[(f64, f64)]) -> String {
    polyline(points) + "Z"
}
