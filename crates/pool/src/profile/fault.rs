//! What can be wrong with a profile, where, and what would be right.

use std::fmt;

/// A profile that cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileError {
    /// The profile or file.
    pub source: String,
    /// The line, from 1; 0 where it is the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub fault: Fault,
}

impl ProfileError {
    pub(super) fn new(source: &str, line: usize, fault: Fault) -> Self {
        Self { source: source.to_owned(), line, fault }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The first line is not the header.
    Header {
        /// It is this.
        found: String,
        /// And should be this.
        expected: &'static str,
    },
    /// A line has too many or too few fields.
    Fields {
        /// So many.
        found: usize,
        /// Instead of.
        expected: usize,
        /// Which are these.
        header: &'static str,
    },
    /// Not a number from 0 on.
    NotANumber {
        /// Of this field.
        field: &'static str,
        /// But this.
        text: String,
    },
    /// Infinite, where only a latency may be.
    Infinite {
        /// This field.
        field: &'static str,
    },
    /// A load of nothing.
    NoLoad,
    /// More than 100 %.
    ShareBeyond {
        /// So many percent of writes.
        found: f64,
    },
    /// The lines are not sorted by share of writes.
    ShareFell {
        /// A line had this share.
        before: f64,
        /// And the next a smaller one.
        found: f64,
    },
    /// A higher quantile is below a lower one.
    QuantilesFall {
        /// From the median up.
        quantiles: [f64; 5],
    },
    /// No load at all.
    Empty,
    /// The last line has no end.
    CutOff,
    /// Lines of two drives.
    OtherDevice {
        /// A line is of this one.
        found: String,
        /// The first was of this one.
        expected: String,
    },
    /// The name of a published file does not say its share of writes.
    NoShare,
    /// Two files of one share.
    ShareTwice {
        /// Percent of writes.
        writes_percent: f64,
    },
    /// Reads alone or writes alone were not measured.
    ShareMissing {
        /// Percent of writes.
        writes_percent: f64,
    },
    /// A damping or a slowness that is none.
    Scale {
        /// It is this.
        found: f64,
    },
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "profile {:?}", self.source)?;
        if self.line > 0 {
            write!(f, ", line {}", self.line)?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for ProfileError {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { found, expected } => {
                write!(f, "it begins with {found:?}, not with {expected:?}")
            }
            Self::Fields { found, expected, header } => {
                write!(f, "{found} fields instead of the {expected} of {header:?}")
            }
            Self::NotANumber { field, text } => {
                write!(f, "{field} = {text:?}: a number from 0 on, such as 75")
            }
            Self::Infinite { field } => {
                write!(
                    f,
                    "{field} is infinite: only a latency may be, where too few requests ended"
                )
            }
            Self::NoLoad => write!(f, "a load of 0: above 0, such as 26258; leave the line out"),
            Self::ShareBeyond { found } => write!(f, "writes = {found}: at most 100 %"),
            Self::ShareFell { before, found } => {
                write!(f, "{found} % of writes after {before} %: sort the lines by share")
            }
            Self::QuantilesFall { quantiles } => {
                write!(
                    f,
                    "{quantiles:?} us: from the median up quantiles never fall; measure again"
                )
            }
            Self::Empty => write!(f, "no line follows the header: measure the drive first"),
            Self::CutOff => write!(
                f,
                "the last line has no end, as if the file had been cut off: copy or measure it again, or, if it \
                 is whole, end that line"
            ),
            Self::OtherDevice { found, expected } => {
                write!(
                    f,
                    "a line of drive {found:?} among those of {expected:?}: one drive a profile"
                )
            }
            Self::NoShare => write!(
                f,
                "the name says no share of writes: it ends in _100r.csv for reads alone, in _NNNw.csv \
                 for NN.N % of writes"
            ),
            Self::ShareTwice { writes_percent } => {
                write!(f, "{writes_percent} % of writes came in another file already: keep one")
            }
            Self::ShareMissing { writes_percent } => {
                write!(f, "nothing was measured at {writes_percent} % of writes, which is needed")
            }
            Self::Scale { found } => {
                write!(f, "a scale of {found}: above 0 and at most 10000, such as 0.95")
            }
        }
    }
}
