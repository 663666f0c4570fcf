//! Reads a trace: whatever the format, one checked [`Record`] after the other.

use super::error::cut;
use super::lines::{LINE_BYTES_MAX, Line, Lines};
use super::source::{self, Progress, Source};
use super::{
    ADDRESS_MAX, Context, Format, LENGTH_MAX, Op, Place, Reason, Record, Text, TraceError,
    blktrace, detect, weir,
};
use crate::report::number::{bytes, bytes_apart};
use std::io::{self, Read};
use std::path::Path;

/// How a trace is read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Options {
    /// The format; `None` finds it out.
    pub format: Option<Format>,
    /// Pass over records that are malformed, and count them.
    pub skip_bad: bool,
    /// Let a record whose time lies before the one before take that one's time, and count it.
    pub repair_time: bool,
    /// Bytes of a sector, for formats that count in sectors: a power of two from 512 to 4096.
    pub sector_bytes: u32,
    /// The action of blktrace that makes a record: 'Q' queued, 'D' issued to the driver, and so on.
    pub action: char,
}

impl Default for Options {
    fn default() -> Self {
        Self { format: None, skip_bad: false, repair_time: false, sector_bytes: 512, action: 'D' }
    }
}

/// What had to be mended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Repairs {
    /// Malformed records that were passed over.
    pub skipped: u64,
    /// The first of them.
    pub first_skipped: Option<String>,
    /// Records that went back in time and were moved up.
    pub times_moved: u64,
}

/// See the head of [`super`].
pub struct Reader {
    path: String,
    format: Format,
    options: Options,
    context: Context,
    decoder: Decoder,
    progress: Progress,
    repairs: Repairs,
    /// Time of the first record in the file, and of the one before.
    times: Option<(u64, u64)>,
    ended: bool,
}

enum Decoder {
    Text(&'static Text, Lines),
    Weir(weir::Decoder),
    Blktrace(blktrace::Decoder),
}

/// What a decoder finds next.
pub(super) enum Found {
    /// A record; its time is as it stands in the file.
    Record(Record),
    /// Something malformed, with its text.
    Bad(Reason, String),
    /// The end.
    End,
}

impl Reader {
    /// Opens a file, packed or not; "-" is standard input.
    pub fn open(path: &Path, options: &Options) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let source = source::open(path);
        let source = source.map_err(|error| TraceError::Open { path: name.clone(), error })?;
        Self::new(name, path, source, options)
    }

    /// Reads `bytes`, packed or not, which errors call `name`.
    pub fn from_read(
        name: &str,
        bytes: impl Read + Send + 'static,
        options: &Options,
    ) -> Result<Self, TraceError> {
        let source = source::unpack(Box::new(bytes), 0);
        let source = source.map_err(|error| TraceError::Open { path: name.into(), error })?;
        Self::new(name.into(), Path::new(name), source, options)
    }

    fn new(
        name: String,
        path: &Path,
        source: Source,
        options: &Options,
    ) -> Result<Self, TraceError> {
        let Source { bytes, head, progress } = source;
        let whole = (head.len() as u64) < source::HEAD_BYTES;
        let format = options.format.or_else(|| detect::detect(path, &head, whole));
        let Some(format) = format else {
            let text = cut(String::from_utf8_lossy(&head).lines().next().unwrap_or_default());
            return Err(TraceError::Unknown { path: name, text });
        };
        let decoder = match (format, format.text()) {
            (_, Some(text)) => Decoder::Text(text, Lines::new(bytes)),
            (Format::Blktrace, None) => Decoder::Blktrace(blktrace::Decoder::new(bytes)),
            (_, None) => Decoder::Weir(weir::Decoder::new(bytes)),
        };
        Ok(Self {
            path: name,
            format,
            options: options.clone(),
            context: Context::new(options.sector_bytes, options.action),
            decoder,
            progress,
            repairs: Repairs::default(),
            times: None,
            ended: false,
        })
    }

    /// The format that is read.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What had to be mended so far.
    pub fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    /// What the recording calls a volume, if it has names for them.
    pub fn volume_name(&self, volume: u32) -> Option<&str> {
        self.context.names.names.get(volume as usize).map(String::as_str)
    }

    /// Bytes of the file read so far, and all there are (0 if that is not known).
    pub fn progress(&self) -> (u64, u64) {
        self.progress.at()
    }

    /// Where the last record stood.
    pub fn place(&self) -> Place {
        match &self.decoder {
            Decoder::Text(_, lines) => Place::Line(lines.number),
            Decoder::Weir(decoder) => Place::Byte(decoder.at()),
            Decoder::Blktrace(decoder) => Place::Byte(decoder.at()),
        }
    }

    /// An error at the last record, for a caller who finds one in it.
    pub fn bad(&self, reason: impl Into<String>) -> TraceError {
        self.error(reason.into(), String::new())
    }

    fn error(&self, reason: Reason, text: String) -> TraceError {
        TraceError::Bad { path: self.path.clone(), place: self.place(), reason, text }
    }

    fn find(&mut self) -> io::Result<Found> {
        match &mut self.decoder {
            Decoder::Text(text, lines) => find_line(text, lines, &mut self.context),
            Decoder::Weir(decoder) => decoder.find(),
            Decoder::Blktrace(decoder) => decoder.find(&mut self.context),
        }
    }

    /// Checks a record and gives it the time since the first one.
    fn accept(&mut self, mut record: Record) -> Result<Record, Reason> {
        check(&mut record)?;
        let (first, last) = *self.times.get_or_insert((record.time_ns, record.time_ns));
        if record.time_ns < last {
            if !self.options.repair_time {
                return Err(format!(
                    "time runs backwards by {} ns: --repair time moves such records up to the one \
                     before",
                    last - record.time_ns
                ));
            }
            record.time_ns = last;
            self.repairs.times_moved += 1;
        }
        self.times = Some((first, record.time_ns));
        record.time_ns -= first;
        Ok(record)
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let found = self.find().map_err(|error| TraceError::Read {
                path: self.path.clone(),
                place: self.place(),
                error,
            })?;
            let (reason, text) = match found {
                Found::End => return Ok(None),
                Found::Bad(reason, text) => (reason, text),
                Found::Record(record) => match self.accept(record) {
                    Ok(record) => return Ok(Some(record)),
                    Err(reason) => (reason, String::new()),
                },
            };
            let error = self.error(reason, cut(&text));
            if !self.options.skip_bad {
                return Err(error);
            }
            self.repairs.skipped += 1;
            self.repairs.first_skipped.get_or_insert_with(|| error.to_string());
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.next_record();
        self.ended = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

fn find_line(text: &Text, lines: &mut Lines, context: &mut Context) -> io::Result<Found> {
    loop {
        match lines.next()? {
            Line::End => return Ok(Found::End),
            Line::TooLong(line) => {
                let reason = format!("is longer than {LINE_BYTES_MAX} bytes");
                return Ok(Found::Bad(reason, line.into()));
            }
            Line::Whole(line) if line.trim().is_empty() || line.starts_with('#') => {}
            Line::Whole(line) => match (text.parse)(line, context) {
                Ok(Some(record)) => return Ok(Found::Record(record)),
                Ok(None) => {}
                Err(reason) => return Ok(Found::Bad(reason, line.into())),
            },
        }
    }
}

/// What no record may be.
pub(super) fn check(record: &mut Record) -> Result<(), Reason> {
    let length = record.length;
    match record.op {
        Op::Flush => (record.offset, record.length) = (0, 0),
        op if length == 0 => return Err(format!("is a {} of no bytes", op.name())),
        Op::Read | Op::Write if length > LENGTH_MAX => {
            let (length, most) = bytes_apart(length, LENGTH_MAX);
            return Err(format!("has {length}: no request is longer than {most}"));
        }
        _ => {}
    }
    let end = record.offset.checked_add(record.length);
    if end.is_none_or(|end| end > ADDRESS_MAX) {
        return Err(format!("begins at {}: beyond any device", bytes(record.offset)));
    }
    Ok(())
}
