//! `weir format`: makes a device. Refuses one that is there, or somebody else's file system, unless
//! forced; and one that is served or mounted, always.

use crate::device::{self, Described, RawShape, Request, Shape};
use crate::output::print;
use crate::{End, Failure};
use serve::Config;
use serve::device::{Device, Kind, Mode};
use serve::offline::with_device;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir format --data weir-data --capacity 32GiB --profile tlc\n  \
    weir format --config weir.toml        as [device] and [[volume]] say\n  \
    weir format --raw --gang 2 --read-granule 8KiB\n                                        \
    raw units of two dies each instead of a volume: clients write and erase\n  \
    weir format --data weir-data --force  throw away what is there\n  \
    weir format --data /dev/sdx --capacity 32GiB\n                                        \
    a disk, zoned or not, with direct I/O; --force if it holds something\n                                        \
    else\n  \
    weir format --data weir-data --attach-fast --fast /dev/nvme0n1 --fast-capacity 8GiB\n                                        \
    a fast tier before the device that is there\n\n\
    `weir serve` formats by itself when there is no device.")]
pub struct Args {
    /// The folder of the device, or a disk or file to take whole [default: weir-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// A config file in TOML (docs/config.md tells every key); options here win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Throw away the device that is there, or whatever a disk or file holds
    #[arg(long)]
    force: bool,
    /// Put an empty fast tier (--fast, or [device.fast] of the config) before the device that is
    /// there; with --force, also where another fast tier is, whose data is lost
    #[arg(long)]
    attach_fast: bool,
    #[command(flatten)]
    shape: Shape,
    #[command(flatten)]
    raw: RawShape,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let Described { config, data } = device::describe(&Request {
        config: args.config.as_deref(),
        data: args.data.as_deref(),
        shape: Some(&args.shape),
        raw: Some(&args.raw),
        writes: true,
        fresh: !args.attach_fast,
        ..Request::default()
    })?;
    let kind = &config.device.kind;
    if matches!(kind, Kind::Memory { .. }) {
        return Err("device.kind = \"memory\": a device in memory cannot be formatted ahead of \
                    its use: `weir serve` makes it; for example: kind = \"nand\""
            .into());
    }
    if args.attach_fast {
        return attach_fast(args, &config, &data);
    }
    if args.force {
        if let Some(fast) = &config.device.fast {
            Device::wipe_fast(fast).map_err(|error| error.to_string())?;
        }
        remove(&data, kind)?;
    } else if Device::exists(kind) {
        return Err(format!(
            "{}: there is a device here already: choose another one with --data, or throw it away \
             with --force",
            data.display()
        ));
    }
    serve::offline::format(&config.device, &config.ftl).map_err(|error| error.to_string())?;
    if config.device.raw.is_some() {
        return formatted_raw(&data, kind);
    }
    let volumes = config.device.volumes.iter().map(|volume| {
        let bytes = volume.blocks * flash::BLOCK_BYTES as u64;
        format!("{} of {}", volume.name, crate::size::bytes(bytes))
    });
    let volumes: Vec<String> = volumes.collect();
    print(&format!(
        "formatted {}: {}\nserve it: weir serve --data {}\n",
        data.display(),
        volumes.join(", "),
        data.display()
    ));
    Ok(End::Good)
}

/// Puts a fast tier before a device that is there.
fn attach_fast(args: &Args, config: &Config, data: &Path) -> Result<End, Failure> {
    let shown = data.display();
    let kind = &config.device.kind;
    let Some(fast) = &config.device.fast else {
        return Err(
            "--attach-fast: say where it is, with --fast PATH or [device.fast] path in the \
                    config"
                .into(),
        );
    };
    if !Device::exists(kind) {
        return Err(format!(
            "{shown}: no device here: make one, with its fast tier, by `weir format`"
        ));
    }
    let made = Device::description(kind).map_err(|error| error.to_string())?;
    if let Some(there) = made.get("fast").and_then(|fast| fast.get("path")) {
        return Err(format!(
            "{shown}: has a fast tier already, at {there}: detach it first: `weir ctl fast detach`"
        ));
    }
    if args.force {
        Device::wipe_fast(fast).map_err(|error| error.to_string())?;
    }
    let attached = serve::offline::attach_fast(&config.device, &config.ftl);
    attached.map_err(|error| error.to_string())?;
    print(&format!(
        "the device in {shown} has a fast tier now\nserve it: weir serve --data {shown}\n"
    ));
    Ok(End::Good)
}

/// Tells what raw units the device came to, by mounting it to look.
fn formatted_raw(data: &Path, kind: &Kind) -> Result<End, Failure> {
    let settings = ftl::Settings::default();
    let shape = with_device(kind, &settings, true, |shards| shards[0].raw_shape());
    let shape = shape.map_err(|error| error.to_string())?;
    let shape = shape.ok_or("the device was not made with raw units: this is a bug in Weir")?;
    print(&format!(
        "formatted {}: {}\nserve it: weir serve --data {}\n",
        data.display(),
        crate::serve::raw_text(&shape),
        data.display()
    ));
    Ok(End::Good)
}

/// Takes away the device at `data`, and nothing else that lies there; or what is on a file or disk,
/// whatever it is.
fn remove(data: &Path, kind: &Kind) -> Result<(), Failure> {
    Device::forget_kept(kind);
    if let Kind::File { path } = kind {
        return match path.exists() {
            true => Device::wipe(path).map_err(|error| error.to_string()),
            false => Ok(()),
        };
    }
    if !Device::exists(kind) {
        return Ok(());
    }
    let failed = |path: &Path, error: std::io::Error| {
        format!("{}: cannot be removed: {error}: remove it yourself", path.display())
    };
    // Opening takes the lock: a device in use is not pulled from under its server. One that is too
    // damaged to be opened may go.
    if let Err(error @ serve::device::DeviceError::Locked { .. }) =
        Device::open(kind, Mode::ReadOnly)
    {
        return Err(error.to_string());
    }
    // Without its description it is no device any more, whatever comes of the rest. Before it goes what a
    // device without a description is told by.
    for name in ["generation", "device.toml", "growing"] {
        let file = data.join(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(&file, error));
            }
            _ => {}
        }
    }
    let entries = fs::read_dir(data).map_err(|error| failed(data, error))?;
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("shard-")) {
            fs::remove_dir_all(entry.path()).map_err(|error| failed(&entry.path(), error))?;
        }
    }
    Ok(())
}
