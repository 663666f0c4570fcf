//! What a build without the feature `png` has instead of pixels: an error that says so.

use super::{Figure, ReportError};

/// Whether this build draws PNG (the feature `png`).
pub const BUILT_IN: bool = false;

/// Says that this build draws none.
pub fn png(figure: &Figure) -> Result<Vec<u8>, ReportError> {
    let reason = "this build of weir draws no PNG: `./x weir` makes one that does, and so does \
                  `cargo build --release -p cli`";
    Err(ReportError::Raster { figure: figure.id.clone(), reason: reason.to_owned() })
}
