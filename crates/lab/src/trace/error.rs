//! What is wrong with a trace, and where.

use std::fmt;
use std::io;

/// Where in a trace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// A line of a text, from 1.
    Line(u64),
    /// A byte of a binary file, after decompression, from 0.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Why a trace cannot be read.
#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be opened.
    Open {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// The file cannot be read on, or decompressed.
    Read {
        /// The file.
        path: String,
        /// Up to where it could be read.
        place: Place,
        /// Why.
        error: io::Error,
    },
    /// No format fits.
    Unknown {
        /// The file.
        path: String,
        /// How it begins.
        text: String,
    },
    /// A record is malformed, or contradicts the ones before.
    Bad {
        /// The file.
        path: String,
        /// Where.
        place: Place,
        /// What is wrong and what mends it.
        reason: String,
        /// The line, cut; empty in binary formats.
        text: String,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { path, error } => {
                write!(f, "{path}: cannot be opened: {error}: give the path of a trace")
            }
            Self::Read { path, place, error } => write!(
                f,
                "{path}: {place}: cannot be read on: {error}: get the file again, it may be cut off"
            ),
            Self::Unknown { path, text } if text.is_empty() => {
                write!(f, "{path}: is empty, or begins with an empty line: give a trace")
            }
            Self::Unknown { path, text } => write!(
                f,
                "{path}: no trace format fits a file that begins with {text:?}: name it with \
                 --format, one of {}",
                super::Format::ALL.map(super::Format::name).join(", ")
            ),
            Self::Bad { path, place, reason, text } if text.is_empty() => {
                write!(f, "{path}: {place}: {reason}")
            }
            Self::Bad { path, place, reason, text } => {
                write!(f, "{path}: {place}: {reason}: {text:?}")
            }
        }
    }
}

impl std::error::Error for TraceError {}

/// Most characters of a line that an error repeats.
const TEXT_CHARACTERS_MAX: usize = 120;

/// A line as an error repeats it.
pub(super) fn cut(line: &str) -> String {
    match line.char_indices().nth(TEXT_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.into(),
    }
}
