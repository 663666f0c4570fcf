//! Lines of a text, one at a time, of bounded length.

use std::io::{self, BufRead, BufReader, Read};

/// Longest line: no format has one near it.
pub(super) const LINE_BYTES_MAX: usize = 4096;

/// What comes next in a text.
pub(super) enum Line<'a> {
    /// A line without its end.
    Whole(&'a str),
    /// A line that is too long to be one: its beginning.
    TooLong(&'a str),
    /// The text is over.
    End,
}

/// Reads lines. Bytes that are not UTF-8 are shown as the replacement character.
pub(super) struct Lines {
    bytes: BufReader<Box<dyn Read + Send>>,
    held: Vec<u8>,
    text: String,
    /// The line that was read last, from 1.
    pub(super) number: u64,
}

impl Lines {
    pub(super) fn new(bytes: Box<dyn Read + Send>) -> Self {
        let (held, text) = (Vec::new(), String::new());
        Self { bytes: BufReader::new(bytes), held, text, number: 0 }
    }

    pub(super) fn next(&mut self) -> io::Result<Line<'_>> {
        self.held.clear();
        let most = LINE_BYTES_MAX as u64 + 1;
        self.bytes.by_ref().take(most).read_until(b'\n', &mut self.held)?;
        if self.held.is_empty() {
            return Ok(Line::End);
        }
        self.number += 1;
        let ended = self.held.last() == Some(&b'\n');
        let too_long = !ended && self.held.len() > LINE_BYTES_MAX;
        if too_long {
            self.skip_line()?;
        }
        while matches!(self.held.last(), Some(b'\n' | b'\r')) {
            self.held.pop();
        }
        let text = match std::str::from_utf8(&self.held) {
            Ok(text) => text,
            Err(_) => {
                self.text = String::from_utf8_lossy(&self.held).into_owned();
                &self.text
            }
        };
        Ok(if too_long { Line::TooLong(text) } else { Line::Whole(text) })
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let buffer = self.bytes.fill_buf()?;
            if buffer.is_empty() {
                return Ok(());
            }
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let consumed = end.map_or(buffer.len(), |end| end + 1);
            self.bytes.consume(consumed);
            if end.is_some() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE_BYTES_MAX, Line, Lines};
    use std::io::Cursor;

    #[test]
    fn lines_are_counted_and_a_long_one_is_skipped_whole() {
        let long = "x".repeat(3 * LINE_BYTES_MAX);
        let text = format!("a\r\n{long}\n\nlast");
        let mut lines = Lines::new(Box::new(Cursor::new(text.into_bytes())));
        assert!(matches!(lines.next(), Ok(Line::Whole("a"))));
        assert!(matches!(lines.next(), Ok(Line::TooLong(_))));
        assert!(matches!(lines.next(), Ok(Line::Whole(""))));
        assert!(matches!(lines.next(), Ok(Line::Whole("last"))));
        assert!(matches!(lines.next(), Ok(Line::End)));
        assert_eq!(lines.number, 4);
    }

    #[test]
    fn bytes_that_are_not_text_are_shown() {
        let mut lines = Lines::new(Box::new(Cursor::new(vec![b'a', 0xff, b'\n'])));
        assert!(matches!(lines.next(), Ok(Line::Whole("a\u{fffd}"))));
    }
}
