//! Writes a trace: Weir's own format or a text, packed as the name of the file says. A file appears
//! under its name only when it is complete.

use super::{Context, Format, Record, weir};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Why a trace cannot be written.
#[derive(Debug)]
pub enum WriteError {
    /// The file cannot be made or written.
    File {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// The format is only read.
    ReadOnly {
        /// The format.
        format: Format,
    },
    /// The format cannot hold a record.
    Unfit {
        /// The format.
        format: Format,
        /// The record.
        record: Record,
        /// What is in the way.
        reason: String,
    },
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => {
                write!(f, "{path}: cannot be written: {error}: give another path")
            }
            Self::ReadOnly { format } => {
                let names = Format::ALL.into_iter().filter(|format| Writer::can_write(*format));
                let names: Vec<&str> = names.map(Format::name).collect();
                write!(
                    f,
                    "{} is read and not written: choose one of {} with --output-format",
                    format.name(),
                    names.join(", ")
                )
            }
            Self::Unfit { format, record, reason } => write!(
                f,
                "the {} of {} bytes at {} after {} ns cannot be written as {}: it {reason}: choose \
                 another format, or --drop-unfit to leave such records out",
                record.op.name(),
                record.length,
                record.offset,
                record.time_ns,
                format.name()
            ),
        }
    }
}

impl std::error::Error for WriteError {}

/// Writes records to a file.
pub struct Writer {
    path: PathBuf,
    partial: Partial,
    format: Format,
    context: Context,
    sink: Sink,
    written: u64,
}

/// Where a file is written until it is complete; `None` for standard output. What is not completed
/// goes away.
struct Partial(Option<PathBuf>);

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}

enum Sink {
    Text(Packer),
    Weir(Box<weir::Encoder<Packer>>),
}

/// A compressor or none.
enum Packer {
    Plain(BufWriter<Box<dyn Write + Send>>),
    Gzip(Box<GzEncoder<BufWriter<Box<dyn Write + Send>>>>),
    Zstd(Box<zstd::Encoder<'static, BufWriter<Box<dyn Write + Send>>>>),
}

const ZSTD_LEVEL: i32 = 3;

impl Writer {
    /// True if the format is written too.
    pub fn can_write(format: Format) -> bool {
        match format.text() {
            Some(text) => text.print.is_some(),
            None => format == Format::Weir,
        }
    }

    /// Begins a file; "-" is standard output. A name that ends in .gz or .zst is packed so.
    pub fn create(path: &Path, format: Format) -> Result<Self, WriteError> {
        if !Self::can_write(format) {
            return Err(WriteError::ReadOnly { format });
        }
        let failed = |error| WriteError::File { path: path.display().to_string(), error };
        let (partial, out): (_, Box<dyn Write + Send>) = if path == Path::new("-") {
            (Partial(None), Box::new(io::stdout()))
        } else {
            let mut partial = path.as_os_str().to_owned();
            partial.push(".partial");
            let partial = PathBuf::from(partial);
            let file = File::create(&partial).map_err(failed)?;
            (Partial(Some(partial)), Box::new(file))
        };
        let mut packer = Packer::new(BufWriter::new(out), path).map_err(failed)?;
        let sink = match format.text() {
            Some(text) => {
                if let Some(header) = text.header {
                    writeln!(packer, "{header}").map_err(failed)?;
                }
                Sink::Text(packer)
            }
            None => Sink::Weir(Box::new(weir::Encoder::new(packer).map_err(failed)?)),
        };
        let context = Context::new(512, 'D');
        Ok(Self { path: path.into(), partial, format, context, sink, written: 0 })
    }

    /// Writes a record. Records come in the order of time.
    pub fn write(&mut self, record: &Record) -> Result<(), WriteError> {
        let result = match &mut self.sink {
            Sink::Weir(encoder) => encoder.write(record),
            Sink::Text(packer) => {
                let print = self.format.text().and_then(|text| text.print);
                let print = print.expect("only formats that are written get here");
                let unfit =
                    |reason| WriteError::Unfit { format: self.format, record: *record, reason };
                let line = print(record, &mut self.context).map_err(unfit)?;
                writeln!(packer, "{line}")
            }
        };
        self.written += 1;
        result.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> WriteError {
        WriteError::File { path: self.path.display().to_string(), error }
    }

    /// Completes the file. Returns how many records it has.
    pub fn finish(self) -> Result<u64, WriteError> {
        let Self { path, mut partial, sink, written, .. } = self;
        let finish = || {
            let packer = match sink {
                Sink::Text(packer) => packer,
                Sink::Weir(encoder) => encoder.finish()?,
            };
            packer.finish()?;
            if let Some(partial) = partial.0.take() {
                std::fs::rename(partial, &path)?;
            }
            Ok(written)
        };
        finish().map_err(|error| WriteError::File { path: path.display().to_string(), error })
    }
}

impl Packer {
    fn new(out: BufWriter<Box<dyn Write + Send>>, path: &Path) -> io::Result<Self> {
        Ok(match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Self::Gzip(Box::new(GzEncoder::new(out, Compression::default()))),
            Some("zst") => Self::Zstd(Box::new(zstd::Encoder::new(out, ZSTD_LEVEL)?)),
            _ => Self::Plain(out),
        })
    }

    fn finish(self) -> io::Result<()> {
        let mut out = match self {
            Self::Plain(out) => out,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
        };
        out.flush()
    }
}

impl Write for Packer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
            Self::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Gzip(out) => out.flush(),
            Self::Zstd(out) => out.flush(),
        }
    }
}
