//! `weir grow`: makes a device larger that is not served. What it holds stays where it is.

use crate::device::{self, Described, Request};
use crate::output::print;
use crate::size;
use crate::{End, Failure};
use flash::BLOCK_BYTES;
use serve::device::{DeviceError, Growth, Wish};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("wish").required(true).args(["capacity", "channels"]))]
#[command(after_help = "Examples:\n  \
    weir grow --data weir-data --channels 8\n                                        \
    so many channels, and the capacity that comes with them\n  \
    weir grow --data weir-data --capacity 64GiB\n                                        \
    as many channels as that takes, with the over-provisioning that\n                                        \
    the device has\n  \
    weir grow --data /dev/vg/weir --capacity 2TiB\n                                        \
    a disk or file: behind what is there; make a disk larger first\n\n\
    What comes belongs to no volume yet: give it to one that is there (`weir volume resize`), or make\n\
    another (`weir volume create`). Cut off at any instant, it is done again, or the next start of the\n\
    server goes on with it.")]
pub struct Args {
    /// The folder of the device, or its disk or file [default: weir-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A config file in TOML (docs/config.md tells every key); options here win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What it is to hold, all volumes together, e.g. 64GiB
    #[arg(long, value_name = "SIZE")]
    capacity: Option<String>,
    /// Buses that it is to have, over all shards; of a file or disk, units
    #[arg(long, value_name = "N")]
    channels: Option<u32>,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let Described { config, data } = device::describe(&Request {
        config: args.config.as_deref(),
        data: args.data.as_deref(),
        writes: true,
        ..Request::default()
    })?;
    let wish = match (&args.capacity, args.channels) {
        (Some(size), _) => {
            let bytes = size::bytes_of("--capacity", size)?;
            if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
                return Err(format!(
                    "--capacity {size}: must be a multiple of 4KiB; for example 64GiB"
                ));
            }
            Wish::Blocks(bytes / BLOCK_BYTES as u64)
        }
        (None, channels) => Wish::Channels(channels.unwrap_or(0)),
    };
    let grown = serve::offline::grow(&config.device.kind, wish, &config.ftl);
    let Growth { channels, blocks } = grown.map_err(|error| match error {
        DeviceError::Io { .. } | DeviceError::Mount { .. } => format!(
            "{error}; nothing is lost: once that is mended (is there room where it lies?), say `weir grow` again, \
             which goes on"
        ),
        error => error.to_string(),
    })?;
    let (shown, bytes) = (data.display(), |blocks: u64| size::bytes(blocks * BLOCK_BYTES as u64));
    let (before, after) = (bytes(blocks.0), bytes(blocks.1));
    if channels.0 == channels.1 {
        print(&format!("{shown} has {} channels and {after} already\n", channels.0));
        return Ok(End::Good);
    }
    print(&format!(
        "{shown} has {} channels now ({} before), and {after} ({before} before)\n\
         serve it: weir serve --data {shown}\n",
        channels.1, channels.0
    ));
    Ok(End::Good)
}
