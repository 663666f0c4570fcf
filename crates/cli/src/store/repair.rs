//! `weir store repair`: makes small files of RocksDB anew that are not what was written, where other files have what they said.

use crate::output::{print, print_json};
use crate::rocksdb::{Parts, built};
use crate::{End, Failure};
use ::store::services::{Loaded, Mode, Opened};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Nobody waits for a read of this.
const READ_TIME: Duration = Duration::from_secs(120);
const CACHE_BYTES: u64 = 8 << 20;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store repair\n\n\
    For a store that `weir store serve` does not open as RocksDB's CURRENT or IDENTITY is damaged or gone: what these say, the MANIFEST \
    and the SSTs say too. Nothing is lost by it, and nothing else is changed. A damaged MANIFEST says what nothing else does: \
    `weir store serve --damaged=older` reads what SSTs and logs have, and `weir store dump` saves it.")]
pub struct Args {
    #[command(flatten)]
    parts: Parts,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The engine, if it is not beside this binary; `./x rocksdb` builds it
    #[arg(long, value_name = "FILE", env = "WEIR_STORE_ENGINE")]
    engine: Option<PathBuf>,
}

/// Makes them anew.
pub fn run(args: &Args) -> Result<End, Failure> {
    let how =
        Opened { mode: Mode::Used, cache_bytes: CACHE_BYTES, read_time: READ_TIME, sst_blocks: 1 };
    let addresses = args.parts.addresses()?;
    let engine = built(super::ENGINE, ("--engine", args.engine.as_deref()))?;
    let mended = Loaded::repair(&engine, &addresses, how).map_err(|why| why.to_string())?;
    if args.json {
        print_json(&json!({ "mended": mended }));
    } else if mended.is_empty() {
        print(
            "nothing to mend of the small files: if the store does not open, its message says what else is wrong\n",
        );
    } else {
        mended.iter().for_each(|what| print(&format!("mended: {what}\n")));
    }
    Ok(End::Good)
}
