//! Which format a file has: binary ones by their magic, texts by which format reads most of the
//! first lines. Where formats fit equally well, a hint in the file's name decides, then the order
//! of [`Format::ALL`].

use super::{Context, Format, blktrace, weir};
use std::path::Path;

/// As many lines are tried.
const LINES_MAX: usize = 50;

/// The format of a file of this name that begins so, or `None` if none fits.
pub(super) fn detect(path: &Path, head: &[u8], whole: bool) -> Option<Format> {
    if head.starts_with(&weir::MAGIC) {
        return Some(Format::Weir);
    }
    if blktrace::is_magic(head) {
        return Some(Format::Blktrace);
    }
    let text = String::from_utf8_lossy(head);
    let mut lines: Vec<&str> = text.lines().take(LINES_MAX).collect();
    // The last line of a part may be cut off.
    if !whole && lines.len() < LINES_MAX {
        lines.pop();
    }
    lines.retain(|line| !line.trim().is_empty());
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase());
    let name = name.unwrap_or_default();
    let mut best = (0, false, None);
    for format in Format::ALL {
        let Some(records) = records(format, &lines) else { continue };
        let named = name.contains(format.name());
        if (records, named) > (best.0, best.1) {
            best = (records, named, Some(format));
        }
    }
    best.2
}

/// How many of the lines the format reads as records.
fn records(format: Format, lines: &[&str]) -> Option<usize> {
    let text = format.text()?;
    // Whatever action the reader will choose: a dump of one that is not there has a format too.
    let count = |action| {
        let mut context = Context::new(512, action);
        let records =
            lines.iter().filter(|line| matches!((text.parse)(line, &mut context), Ok(Some(_))));
        records.count()
    };
    if format == Format::Blkparse {
        return Some(count('D') + count('Q') + count('C'));
    }
    Some(count('D'))
}

#[cfg(test)]
mod tests {
    use super::detect;
    use crate::trace::Format;
    use crate::trace::tests::SAMPLES;
    use std::path::Path;

    fn of(text: &str) -> Option<Format> {
        detect(Path::new("trace"), text.as_bytes(), true)
    }

    #[test]
    fn every_text_format_is_told_from_the_others() {
        for (format, text) in SAMPLES {
            assert_eq!(of(text), Some(format), "{text}");
        }
    }

    #[test]
    fn nothing_fits_nonsense_and_a_few_bad_lines_do_not_matter() {
        assert_eq!(of(""), None);
        assert_eq!(of("hello, world\n"), None);
        assert_eq!(of("77000 4 8 16 0\nnonsense\n78000 4 8 16 0\n"), Some(Format::Mqsim));
    }
}
