//! The `weir` command: one file per subcommand, each a function from its arguments to an [`End`].
//!
//! Invariants: a failure is one paragraph on standard error that begins with `error:` and names the
//! place and the mend; `--json` puts one JSON value on standard output and nothing else; progress
//! goes to standard error.

mod advise;
mod attach;
mod bench;
mod check;
#[cfg(test)]
mod command_line;
mod contradiction;
mod ctl;
mod device;
mod devices;
mod experiments;
mod features;
mod fit;
mod format;
mod grow;
mod inspect;
mod lab;
mod latency;
mod logging;
mod manual;
mod output;
mod plugin;
mod pool;
mod profile;
mod replay;
mod rocksdb;
mod serve;
mod served;
mod size;
mod status;
mod stop;
mod store;
mod top;
mod trace;
mod units;
mod volume;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Weir owns flash and serves it as block devices.
#[derive(Parser)]
#[command(
    name = "weir",
    version,
    long_version = features::VERSION,
    after_help = "Examples:\n  \
        weir serve                    a device of 8 GiB in ./weir-data, made if it is not there\n  \
        weir serve --memory           the same in memory, without delays\n  \
        weir status --data weir-data  what a running server does\n  \
        weir check --data weir-data   read everything on a device that is not served\n\n\
        `weir COMMAND --help` tells more, with examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// How much to log on standard error: error, warn, info, debug, trace or off
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        default_value = "warn",
        env = "WEIR_LOG",
        display_order = 900
    )]
    log: tracing_subscriber::filter::LevelFilter,
    /// In which form: text (lines for people), json (an object in each line), journald (entries of systemd's journal)
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        env = "WEIR_LOG_FORMAT",
        value_parser = logging::format,
        display_order = 901
    )]
    log_format: logging::LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a device to NBD clients; makes it first if it is not there
    Serve(serve::Args),
    /// Make a new device
    Format(format::Args),
    /// Make a device larger that is not served: more channels, or a longer file or disk
    Grow(grow::Args),
    /// Read and verify everything on a device that is not served
    Check(check::Args),
    /// Show what a device is and the state of its flash, without changing it
    Inspect(inspect::Args),
    /// Ask a running server how it is doing
    Status(status::Args),
    /// Watch a running server: throughput, GC, destage and the busiest units, every second
    Top(top::Args),
    /// Change a running server: switch its policies, load ones of your own, detach its fast tier
    Ctl(ctl::Args),
    /// The volumes of a running server: list, create, delete, resize, rename, limit
    Volume(volume::Args),
    /// Make a volume, or a raw unit, a disk of this machine: /dev/ublkbN, or /dev/nbdN
    Attach(attach::Args),
    /// Take such a disk away
    Detach(attach::DetachArgs),
    /// Write and try policies of your own, as WebAssembly
    Plugin(plugin::Args),
    /// A pool: one volume over many unlike drives on many machines
    Pool(pool::Args),
    /// Measure Weir on this machine
    Bench(bench::Args),
    /// The simulator: the FTL in virtual time, with power cuts and faults
    Lab(lab::Args),
    /// Convert, measure and cut recorded block requests
    Trace(trace::Args),
    /// Replay a trace on an emulated device in virtual time, or on something real
    Replay(replay::Args),
    /// Start a program with RocksDB on raw units, unchanged
    Rocksdb(rocksdb::Args),
    /// Values, tables and files on raw units, over RocksDB: serve them, and use what is served
    Store(store::Args),
    /// What a server calls itself as, to compile a module apart
    #[command(name = ::serve::compiler::COMMAND, hide = true)]
    CompileModule {
        /// What its policies are called
        name: String,
    },
    /// Measure how late a drive answers at which load, for pools and `weir lab fit`
    Profile(profile::Args),
    /// Say which streams, GC policy and over-provisioning pay for a trace
    Advise(advise::Args),
    /// Print what a shell needs to complete weir's commands and options
    Completions(manual::CompletionsArgs),
    /// Write the man pages: one for each command
    #[command(hide = true)]
    Manual(manual::ManualArgs),
}

/// How a command ended if it did not fail.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    /// As hoped.
    Good,
    /// It did its work and told of something bad: exit status 1, without an error message.
    Bad,
}

/// One paragraph for people: the place, what is wrong, the mend.
type Failure = String;

fn main() -> ExitCode {
    // A write beyond the size that files may have here (`ulimit -f`) is an error with a place, not the end.
    // SAFETY: no memory is involved, and no other thread is there yet.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let cli = Cli::parse();
    if let Command::CompileModule { name } = &cli.command {
        // It has its own words for what is wrong, and its bounds from the first moment on.
        return ::serve::compiler::child(name);
    }
    logging::begin(cli.log, cli.log_format);
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Grow(args) => grow::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Volume(args) => volume::run(&args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => attach::detach(&args),
        Command::Plugin(args) => plugin::run(&args),
        Command::Pool(args) => pool::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Rocksdb(args) => rocksdb::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
        Command::Manual(args) => manual::write(&args, Cli::command()),
        Command::CompileModule { .. } => Ok(End::Good),
    };
    match result {
        Ok(End::Good) => ExitCode::SUCCESS,
        Ok(End::Bad) => ExitCode::FAILURE,
        Err(failure) => {
            // A terminal that is gone takes it no more.
            writeln!(std::io::stderr(), "error: {failure}").ok();
            ExitCode::from(2)
        }
    }
}
