//! A figure as pixels, at twice its size, with fonts that come with the program.
//!
//! Invariant: no font, locale or file of the machine is looked at.

use super::{Figure, ReportError, svg};
use resvg::{tiny_skia, usvg};

/// Whether this build draws PNG (the feature `png`).
pub const BUILT_IN: bool = true;

/// Pixels of the picture for one of the drawing: sharp on a projector.
const SCALE: f32 = 2.0;

/// The PNG file of a figure, on white.
pub fn png(figure: &Figure) -> Result<Vec<u8>, ReportError> {
    let drawing = svg(figure)?;
    let refused = |reason: String| ReportError::Raster { figure: figure.id.clone(), reason };
    let mut options = usvg::Options { font_family: "Noto Sans".to_owned(), ..Default::default() };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(notosans::REGULAR_TTF.to_vec());
    fonts.load_font_data(notosans::BOLD_TTF.to_vec());
    fonts.set_sans_serif_family("Noto Sans");
    let tree = usvg::Tree::from_str(&drawing, &options).map_err(|e| refused(e.to_string()))?;
    let size = tree.size().to_int_size().scale_by(SCALE);
    let size = size.ok_or_else(|| refused("it has no size".to_owned()))?;
    let mut pixels = tiny_skia::Pixmap::new(size.width(), size.height())
        .ok_or_else(|| refused(format!("{} × {} pixels", size.width(), size.height())))?;
    let transform = tiny_skia::Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, transform, &mut pixels.as_mut());
    pixels.encode_png().map_err(|error| refused(error.to_string()))
}
