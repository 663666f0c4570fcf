//! `weir store serve`: opens the store on its two servers, makes it if it is not there, and serves it until SIGTERM, SIGINT or
//! SIGHUP. The line that begins with `ready` is the last one printed.

use crate::output::say;
use crate::rocksdb::{Parts, built};
use crate::serve::ADDRESS_FILE;
use crate::{End, Failure};
use ::serve::config::HttpConfig;
use ::serve::store::{StoreConfig, StoreError, StoreReady, run as serve_store};
use ::store::services::{Mode, Opened, SLICES_DEFAULT, SLICES_MAX};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const CLIENTS_MAX: usize = 256;
const SST_BLOCKS_MAX: u32 = 16;
const HEAD_TIMEOUT_NS: u64 = 20 * flash::SECOND;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir serve --raw --gang 2 --channels 4 --erase background --data weir-units\n  \
    weir serve --capacity 1GiB --data weir-small --http none\n  \
    weir store serve\n  \
    weir store serve --slices 16 --cache 1GiB --http none\n\n\
    The two servers go on beside it: SSTs are raw blocks by ID on the units; RocksDB's logs lie on the small volume. `./x \
    rocksdb` builds the engine, for Debian's RocksDB. It ends with status 0 on SIGTERM, SIGHUP or Ctrl-C, and with 2 when \
    nothing can be written any more, as when one of the two has ended: what was acknowledged is there when all are started \
    again.")]
pub struct Args {
    #[command(flatten)]
    parts: Parts,
    /// The folder for the store's control socket
    #[arg(long, value_name = "DIR", default_value = super::DATA_DEFAULT)]
    data: PathBuf,
    /// Slices of a new store, which it keeps: parts of the keys with an LSM tree each [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SLICES_MAX)))]
    slices: Option<u32>,
    /// Memory for what is read of SSTs; memtables take up to six raw blocks a slice beside it, and up to twelve with more than 24 units
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    cache: String,
    /// Raw blocks of an SST that compaction makes, at most: with 1 the blocks are seven eighths full, with 4 up to 97 %, but so many
    /// times more of them are kept free for compaction. It may change at every start
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(SST_BLOCKS_MAX)))]
    sst_blocks: u32,
    /// How long the units may take to answer a read that somebody waits for; after that it is answered with 503
    #[arg(long, value_name = "TIME", default_value = "10s")]
    read_time: String,
    /// Make a store on an empty small volume though the units hold raw blocks of others
    #[arg(long)]
    new: bool,
    /// Open a store that misses raw blocks, to read what is left: nothing is written or erased. `sure` is what is known to be
    /// what was written last, `older` also what may be older
    #[arg(long, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "sure", conflicts_with = "new")]
    damaged: Option<Left>,
    /// Where HTTP listens beside the control socket: everybody who reaches it may see the state; `none` for nowhere
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8421")]
    http: String,
    /// Let that be an address which other machines reach: a token passes in the clear there
    #[arg(long)]
    http_remote: bool,
    /// Holds the token of those who may read and write over --http; made if it is not there
    #[arg(long, value_name = "FILE")]
    http_token_file: Option<PathBuf>,
    /// The engine, if it is not beside this binary; `./x rocksdb` builds it
    #[arg(long, value_name = "FILE", env = "WEIR_STORE_ENGINE")]
    engine: Option<PathBuf>,
}

/// What is read of a store that misses raw blocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
enum Left {
    Sure,
    Older,
}

/// Serves it.
pub fn run(args: &Args) -> Result<End, Failure> {
    const { assert!(SLICES_DEFAULT == 8, "the help says so") };
    let data = &args.data;
    let control = crate::device::control_of(data);
    let opened = Opened {
        mode: match (args.damaged, args.new) {
            (Some(Left::Sure), _) => Mode::Left,
            (Some(Left::Older), _) => Mode::LeftOlder,
            (None, true) => Mode::New,
            (None, false) => Mode::Used,
        },
        cache_bytes: cache_bytes(&args.cache)?,
        read_time: read_time(&args.read_time)?,
        sst_blocks: args.sst_blocks,
    };
    let config = StoreConfig {
        opened,
        http: http(args)?,
        addresses: args.parts.addresses()?,
        // After what was said, so that what is wrong in it is told first.
        engine: built(super::ENGINE, ("--engine", args.engine.as_deref()))?,
        slices: args.slices,
        control: control.clone(),
    };
    fs::create_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
    let address_file = data.join(ADDRESS_FILE);
    let result = serve_store(&config, |ready| {
        let address = ready.http.map(|address| format!("{address}\n"));
        let noted = match address {
            Some(address) => ::serve::files::write(&address_file, address.as_bytes()),
            // What a server before us left there is not ours.
            None => fs::remove_file(&address_file).or(Ok(())),
        };
        if let Err(error) = noted {
            tracing::warn!(%error, "{}", address_file.display());
        }
        say(&greeting(ready, &control));
    });
    fs::remove_file(&address_file).ok();
    match result {
        Ok(()) => Ok(End::Good),
        Err(error @ StoreError::Server(_)) => {
            let text = error.to_string();
            let mend = if text.contains("http://") { ", or --http none" } else { "" };
            Err(format!("{text}{mend}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn cache_bytes(text: &str) -> Result<u64, Failure> {
    let bytes = flash::quantity::bytes(text).filter(|bytes| *bytes >= 1 << 20);
    bytes.ok_or_else(|| {
        format!("--cache {text}: must be a size of at least 1MiB: for example 512MiB")
    })
}

fn read_time(text: &str) -> Result<Duration, Failure> {
    let time = flash::quantity::duration_ns(text).filter(|&ns| ns >= flash::MILLISECOND);
    time.map(Duration::from_nanos).ok_or_else(|| {
        format!("--read-time {text}: must be a time of at least 1ms: for example 10s")
    })
}

fn http(args: &Args) -> Result<Option<HttpConfig>, Failure> {
    if args.http == "none" {
        return match &args.http_token_file {
            None => Ok(None),
            Some(file) => Err(format!(
                "--http-token-file {}: a token is shown over --http, and there is none",
                file.display()
            )),
        };
    }
    let text = &args.http;
    let address: SocketAddr = text.parse().map_err(|_| {
        format!("--http {text}: must be an IP address and a port, e.g. 127.0.0.1:8421, or none")
    })?;
    if !args.http_remote && !address.ip().to_canonical().is_loopback() {
        return Err(format!(
            "--http {text}: is reached from other machines: the state would be told to everybody there, and a token would \
             pass in the clear: add --http-remote if that is meant"
        ));
    }
    Ok(Some(HttpConfig {
        address,
        hosts: Vec::new(),
        token_file: args.http_token_file.clone(),
        clients_max: CLIENTS_MAX,
        head_timeout_ns: HEAD_TIMEOUT_NS,
    }))
}

fn greeting(ready: &StoreReady, control: &Path) -> String {
    let control = control.display();
    let mut text = format!("a store of {} slices: try `weir store put`, or\n", ready.slices);
    text += &format!("  curl --unix-socket {control} -T FILE http://weir/kv/KEY\n");
    if ready.only_read {
        text += "  it is open to read what is left: `weir store status` tells what is missing\n";
    }
    if ready.cleared > 0 {
        text += &format!("  {} files whose writing was cut off are gone\n", ready.cleared);
    }
    let http = ready.http.map_or(String::new(), |address| format!(" http://{address}"));
    text + &format!("ready {control}{http}\n")
}
