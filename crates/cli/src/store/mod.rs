//! `weir store`: values, tables and files over RocksDB on raw units: serves them, and is a client of what is served.

mod dump;
mod files;
mod repair;
mod serve;
mod tables;
mod values;
mod work;

use crate::output::print;
use crate::status::PlaceArgs;
use crate::{End, Failure};
use client::Store;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// The folder of a store unless told otherwise.
const DATA_DEFAULT: &str = "weir-store";
/// What `./x rocksdb` makes.
const ENGINE: &str = "libweir_store.so";
/// Largest value, as the service has it.
const VALUE_BYTES_MAX: u64 = ::store::services::VALUE_BYTES_MAX as u64;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store put user:7 --value Ada\n  \
    weir store get user:7\n  \
    weir store table put links example.org to www.example.com --value anchor\n  \
    weir store file put web.csv.gz traces/2026/web.csv.gz\n  \
    weir store status\n  \
    weir store dump > store.dump\n\n\
    `weir store serve --help` tells what it needs. A put, a delete and a rename are durable when they return. The same \
    over HTTP, and from Rust (`client::Store`): docs/store.md.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Serve a store; makes it first if it is not there
    Serve(serve::Args),
    /// How a store does: what is in each slice, and what room is left
    Status(work::StatusArgs),
    /// Read everything in a store and tell what is damaged
    Scrub(work::ScrubArgs),
    /// Write a store anew without what was deleted, which makes room of it
    Compact(work::CompactArgs),
    /// Make damaged small files of RocksDB anew, of a store that nobody serves
    Repair(repair::Args),
    /// Put a value: of an option, a file, or standard input
    Put(values::PutArgs),
    /// Print a value as it is
    Get(values::GetArgs),
    /// Delete values
    Delete(values::DeleteArgs),
    /// List values in the order of their keys
    Scan(values::ScanArgs),
    /// Cells of tables, by row, family and column
    Table(tables::Args),
    /// Immutable files, by path
    File(files::Args),
    /// Write all that is in a store to standard output
    Dump(dump::DumpArgs),
    /// Put what a dump has into a store
    Load(dump::LoadArgs),
}

/// Serves a store, or does what is asked of one.
pub fn run(args: &Args) -> Result<End, Failure> {
    match &args.command {
        Command::Serve(args) => serve::run(args),
        Command::Status(args) => work::status(args),
        Command::Scrub(args) => work::scrub(args),
        Command::Compact(args) => work::compact(args),
        Command::Repair(args) => repair::run(args),
        Command::Put(args) => values::put(args),
        Command::Get(args) => values::get(args),
        Command::Delete(args) => values::delete(args),
        Command::Scan(args) => values::scan(args),
        Command::Table(args) => tables::run(args),
        Command::File(args) => files::run(args),
        Command::Dump(args) => dump::dump(args),
        Command::Load(args) => dump::load(args),
    }
}

/// Which store.
#[derive(clap::Args)]
struct At {
    /// The folder that `weir store serve` was given
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
}

impl At {
    fn store(&self) -> Result<Store, Failure> {
        if self.place.is_named() {
            return self.place.find(&self.data).map(Store::at);
        }
        let control = crate::device::control_of(&self.data);
        if !crate::device::is_socket(&control) {
            return Err(format!(
                "{}: no store is served there: start `weir store serve --data {0}`, or name its control socket with \
                 --control",
                self.data.display()
            ));
        }
        Ok(Store::at(control.as_path()))
    }
}

/// What a value is.
#[derive(clap::Args)]
struct Value {
    /// The value itself
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    value: Option<String>,
    /// The file that holds it [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Value {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        let (name, bytes) = match (&self.value, &self.file) {
            (Some(text), _) => return Ok(text.clone().into()),
            (None, Some(file)) => (file.display().to_string(), read(&mut opened(file)?)),
            (None, None) => {
                if std::io::stdin().is_terminal() {
                    return Err(
                        "the value: say it with --value, name a file, or send it to standard input"
                            .into(),
                    );
                }
                ("standard input".into(), read(&mut std::io::stdin().lock()))
            }
        };
        let bytes = bytes.map_err(|error| format!("{name}: {error}"))?;
        if bytes.len() as u64 > VALUE_BYTES_MAX {
            return Err(format!(
                "{name}: more than the {VALUE_BYTES_MAX} bytes that a value may have: `weir store file put` takes larger ones"
            ));
        }
        Ok(bytes)
    }
}

/// At most one byte more than a value may have: then it is too large, however large it is.
fn read(from: &mut dyn Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(VALUE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn opened(file: &Path) -> Result<std::fs::File, Failure> {
    serve_file(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn serve_file(file: &Path) -> std::io::Result<std::fs::File> {
    ::serve::files::open(file, std::fs::File::options().read(true))
}

/// Any bytes to standard output.
fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(|error| format!("standard output cannot be written: {error}"))
}

/// There is no such thing: status 1.
fn missing(what: &str) -> End {
    writeln!(std::io::stderr(), "{what}: there is none").ok();
    End::Bad
}

/// Bytes on a line, for people.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => text.into(),
        _ => bytes.escape_ascii().to_string(),
    }
}

/// A line of names and a value.
fn print_line(names: &[&[u8]], value: &[u8]) {
    let names: Vec<String> = names.iter().map(|name| shown(name)).collect();
    print(&format!("{}\t{}\n", names.join("\t"), shown(value)));
}

fn told(error: client::Error) -> Failure {
    match error {
        client::Error::Refused { message, .. } => message,
        client::Error::Io(error) => error.to_string().replace("`weir serve`", "`weir store serve`"),
        other => other.to_string(),
    }
}
