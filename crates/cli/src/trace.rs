//! `weir trace`: convert, measure and cut recorded block requests. Formats, what is read of each and
//! what the repairs do: docs/traces.md.

use crate::output::{Progress, print, print_json, table};
use crate::size::{bytes, count};
use crate::{End, Failure};
use hdrhistogram::Histogram;
use lab::trace::stat::Stat;
use lab::trace::{Format, Op, Options, Reader, Record, Repairs, WriteError, Writer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir trace stat pgbench.csv.gz\n  \
    weir trace convert web_0.csv.gz web_0.weir\n  \
    weir trace cut web_0.weir minute.weir --from 10s --to 70s")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Write a trace in another format
    Convert(ConvertArgs),
    /// Say what a trace does
    Stat(StatArgs),
    /// Write a part of a trace
    Cut(CutArgs),
}

/// How a trace is read; for every command that reads one.
#[derive(clap::Args, Clone)]
pub struct Reading {
    /// Format of the trace [default: found out]: weir, blktrace, fio, msr, systor, alibaba, tencent,
    /// cloudphysics, spc, blkparse, block-rq or mqsim
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse)]
    format: Option<Format>,
    /// Pass over malformed records and count them
    #[arg(long)]
    skip_bad: bool,
    /// Mend what is wrong, and count it: `time` moves a record that lies before the last one up to it
    #[arg(long, value_name = "WHAT", value_parser = ["time"])]
    repair: Vec<String>,
    /// Bytes of a sector, where the format counts in sectors
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = sector_bytes)]
    sector_bytes: u32,
    /// blkparse and blktrace: the action that makes a request, as D (issued) or Q (queued)
    #[arg(long, value_name = "LETTER", default_value_t = 'D')]
    action: char,
}

fn sector_bytes(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|bytes: &u32| bytes.is_power_of_two());
    number
        .filter(|bytes| (512..=4096).contains(bytes))
        .ok_or_else(|| "must be 512, 1024, 2048 or 4096".into())
}

impl Reading {
    /// As it was asked for, for a command line that repeats it.
    pub fn as_arguments(&self) -> String {
        let mut text = String::new();
        if let Some(format) = self.format {
            text.push_str(&format!(" --format {}", format.name()));
        }
        if self.skip_bad {
            text.push_str(" --skip-bad");
        }
        for what in &self.repair {
            text.push_str(&format!(" --repair {what}"));
        }
        if self.sector_bytes != 512 {
            text.push_str(&format!(" --sector-bytes {}", self.sector_bytes));
        }
        if self.action != 'D' {
            text.push_str(&format!(" --action {}", self.action));
        }
        text
    }

    /// The same for the library.
    pub fn options(&self) -> Options {
        Options {
            format: self.format,
            skip_bad: self.skip_bad,
            repair_time: self.repair.iter().any(|what| what == "time"),
            sector_bytes: self.sector_bytes,
            action: self.action,
        }
    }

    /// Opens a trace.
    pub fn open(&self, path: &Path) -> Result<Reader, Failure> {
        Reader::open(path, &self.options()).map_err(|error| error.to_string())
    }
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir trace convert web_0.csv.gz web_0.weir        MSR to Weir's own compact format\n  \
    weir trace convert disk.blkparse disk.iolog --to fio\n  \
    weir trace convert big.csv big.csv.zst --to alibaba --skip-bad --repair time\n\n\
    The format of OUT is what --to or its name says, else Weir's own. A name that ends in .gz or .zst is packed.")]
struct ConvertArgs {
    /// The trace; - is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Where it goes; - is standard output
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Short for --format
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse, conflicts_with = "format")]
    from: Option<Format>,
    /// Short for --output-format
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse,
        conflicts_with = "output_format")]
    to: Option<Format>,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    writing: Writing,
}

/// How a trace is written.
#[derive(clap::Args, Clone)]
struct Writing {
    /// Format to write [default: the one OUT's name tells, else weir]: weir, fio, msr, systor,
    /// alibaba, tencent, cloudphysics, spc, block-rq or mqsim
    #[arg(long, value_name = "FORMAT", value_parser = Format::parse)]
    output_format: Option<Format>,
    /// Leave out records that the format cannot hold, such as trims, and count them
    #[arg(long)]
    drop_unfit: bool,
    /// Replace OUT if it is there
    #[arg(long)]
    overwrite: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir trace stat pgbench.csv.gz\n  \
    weir trace stat disk.blkparse --action Q --json | jq .footprint\n\n\
    Blocks are of 4 KiB. A request is sequential if it begins where the last one of its kind and \
    volume ended. A block's life goes from a write to its overwrite or trim.")]
struct StatArgs {
    /// The trace; - is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// So many volumes are shown, those with the most requests first
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir trace cut web_0.csv.gz minute.weir --from 10s --to 70s\n  \
    weir trace cut web_0.csv.gz first.weir --first 100000             the first requests\n  \
    weir trace cut disks.csv.gz tenth.weir --volume 3 --sample 1/10   a tenth of volume 3\n\n\
    A sample takes whole regions of 1 MiB, chosen by their address, so that overwrites and \
    sequences within a region stay what they are; flushes stay all.")]
struct CutArgs {
    /// The trace; - is standard input
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Where the part goes; - is standard output
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Only what was issued from this time on, such as 10s
    #[arg(long, value_name = "TIME", value_parser = duration)]
    from: Option<u64>,
    /// Only what was issued before this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    to: Option<u64>,
    /// Only so many requests
    #[arg(long, value_name = "N")]
    first: Option<u64>,
    /// Only this volume, by number or name; may be given more than once
    #[arg(long, value_name = "VOLUME")]
    volume: Vec<String>,
    /// Only a share of the address space, such as 1/10
    #[arg(long, value_name = "1/N", value_parser = share)]
    sample: Option<u64>,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    writing: Writing,
}

/// A time on the command line, in nanoseconds.
pub fn duration(text: &str) -> Result<u64, String> {
    flash::quantity::duration_ns(text)
        .ok_or_else(|| "must be a number with ns, us, ms, s, min, h or d, for example 10s".into())
}

/// A share on the command line, as its N.
pub fn share(text: &str) -> Result<u64, String> {
    let part = text.strip_prefix("1/").and_then(|part| part.parse().ok());
    part.filter(|&part| part > 0).ok_or_else(|| "must be 1/N, for example 1/10".into())
}

pub fn run(args: &Args) -> Result<End, Failure> {
    match &args.what {
        What::Convert(args) => {
            let (mut reading, mut writing) = (args.reading.clone(), args.writing.clone());
            reading.format = args.from.or(reading.format);
            writing.output_format = args.to.or(writing.output_format);
            copy(&args.input, &args.output, &reading, &writing, |_, _| Take::It)
        }
        What::Stat(args) => stat(args),
        What::Cut(args) => {
            let mut taken = 0;
            let take = |reader: &Reader, record: &Record| {
                let take = args.take(reader, record, taken);
                taken += u64::from(take == Take::It);
                take
            };
            copy(&args.input, &args.output, &args.reading, &args.writing, take)
        }
    }
}

/// What becomes of a record.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Take {
    It,
    Not,
    /// Nor any after it.
    NoMore,
}

impl CutArgs {
    fn take(&self, reader: &Reader, record: &Record, taken: u64) -> Take {
        let over = self.to.is_some_and(|to| record.time_ns >= to)
            || self.first.is_some_and(|first| taken >= first);
        if over {
            return Take::NoMore;
        }
        let named = |volume: &String| {
            *volume == record.volume.to_string()
                || reader.volume_name(record.volume) == Some(volume.as_str())
        };
        let wanted = self.from.is_none_or(|from| record.time_ns >= from)
            && (self.volume.is_empty() || self.volume.iter().any(named))
            && self.sample.is_none_or(|share| record.is_sampled(share));
        if wanted { Take::It } else { Take::Not }
    }
}

fn copy(
    input: &Path,
    output: &Path,
    reading: &Reading,
    writing: &Writing,
    mut take: impl FnMut(&Reader, &Record) -> Take,
) -> Result<End, Failure> {
    let format = writing.output_format.unwrap_or_else(|| format_of_name(output));
    if output.exists() && output != Path::new("-") && !writing.overwrite {
        return Err(format!(
            "{}: is there already: give another name, or --overwrite to replace it",
            output.display()
        ));
    }
    if output != Path::new("-") && output.metadata().is_ok_and(|found| !found.is_file()) {
        return Err(format!(
            "{}: is no plain file, which is all that may be replaced: give another name, or - for standard \
             output",
            output.display()
        ));
    }
    let mut reader = reading.open(input)?;
    let mut writer = Writer::create(output, format).map_err(|error| error.to_string())?;
    let mut progress = Progress::new(format!("{}", input.display()));
    let (mut read, mut written, mut dropped) = (0u64, 0u64, 0u64);
    while let Some(record) = reader.next() {
        let record = record.map_err(|error| error.to_string())?;
        read += 1;
        if read.is_multiple_of(4096) {
            let (done, whole) = reader.progress();
            progress.at(done, whole);
        }
        match take(&reader, &record) {
            Take::It => {}
            Take::Not => continue,
            Take::NoMore => break,
        }
        match writer.write(&record) {
            Ok(()) => written += 1,
            Err(WriteError::Unfit { .. }) if writing.drop_unfit => dropped += 1,
            Err(error) => return Err(error.to_string()),
        }
    }
    drop(progress);
    writer.finish().map_err(|error| error.to_string())?;
    let dropped = match dropped {
        0 => String::new(),
        _ => format!(", {} left out that {} cannot hold", count(dropped), format.name()),
    };
    eprintln!(
        "{} ({}): {} requests read, {} written as {}{dropped}",
        input.display(),
        reader.format().name(),
        count(read),
        count(written),
        format.name()
    );
    tell_repairs(reader.repairs());
    Ok(End::Good)
}

/// The format that a file's name tells, or Weir's own.
fn format_of_name(path: &Path) -> Format {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let told = Format::ALL.into_iter().find(|format| name.ends_with(format.name()));
    match name.rsplit('.').next() {
        Some("iolog") => Format::Fio,
        _ => told.unwrap_or(Format::Weir),
    }
}

/// Says on standard error what had to be mended.
pub fn tell_repairs(repairs: &Repairs) {
    if let Some(first) = &repairs.first_skipped {
        eprintln!("{} malformed records skipped, the first: {first}", count(repairs.skipped));
    }
    if repairs.times_moved > 0 {
        eprintln!("{} records went back in time and were moved up", count(repairs.times_moved));
    }
}

/// The same for scripts.
pub fn repairs_json(repairs: &Repairs) -> Value {
    json!({
        "skipped": repairs.skipped,
        "first_skipped": repairs.first_skipped,
        "times_moved": repairs.times_moved,
    })
}

fn stat(args: &StatArgs) -> Result<End, Failure> {
    let mut reader = args.reading.open(&args.input)?;
    let mut progress = Progress::new(format!("{}", args.input.display()));
    let mut stat = Stat::default();
    while let Some(record) = reader.next() {
        stat.add(&record.map_err(|error| error.to_string())?);
        if stat.requests().is_multiple_of(4096) {
            let (done, whole) = reader.progress();
            progress.at(done, whole);
        }
    }
    drop(progress);
    if args.json {
        print_json(&stat_json(&stat, &reader, args));
        return Ok(End::Good);
    }
    if stat.requests() == 0 {
        print("no requests\n");
    } else {
        print(&stat_text(&stat, &reader, args));
    }
    tell_repairs(reader.repairs());
    Ok(End::Good)
}

fn share_of(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", share_of(part, whole) * 100.0)
}

/// Of so many in so many nanoseconds, how many a second.
fn rate(count: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { count as f64 * 1e9 / ns as f64 }
}

/// Volumes, the busiest first.
fn volumes(stat: &Stat, reader: &Reader, top: usize) -> Vec<(String, lab::trace::stat::Volume)> {
    let mut volumes: Vec<_> = stat.volumes().iter().collect();
    volumes.sort_by_key(|(number, volume)| (std::cmp::Reverse(volume.requests), **number));
    let name = |number: u32| match reader.volume_name(number) {
        Some(name) => name.to_owned(),
        None => number.to_string(),
    };
    volumes.into_iter().take(top).map(|(number, volume)| (name(*number), *volume)).collect()
}

fn stat_text(stat: &Stat, reader: &Reader, args: &StatArgs) -> String {
    let mut text = format!(
        "{}: {}, {} requests in {:.3} s\n\n",
        args.input.display(),
        reader.format().name(),
        count(stat.requests()),
        stat.duration_ns() as f64 / 1e9
    );
    text.push_str(&kinds_text(stat));
    let peak = stat.peak();
    let moved = stat.kind(Op::Read).bytes + stat.kind(Op::Write).bytes;
    let gaps = stat.gaps();
    text.push_str(&format!(
        "\nrate      {:.1} requests/s, {}/s; busiest second {} requests, {}\n\
         gaps      median {}, 99 % {}, longest {}\n",
        rate(stat.requests(), stat.duration_ns()),
        bytes(rate(moved, stat.duration_ns()) as u64),
        count(peak.requests),
        bytes(peak.bytes),
        ns_text(gaps.value_at_quantile(0.5)),
        ns_text(gaps.value_at_quantile(0.99)),
        ns_text(gaps.max()),
    ));
    text.push_str(&footprint_text(stat));
    if stat.fua() > 0 {
        text.push_str(&format!("FUA       {} requests\n", count(stat.fua())));
    }
    let shown = volumes(stat, reader, args.top);
    text.push_str(&format!("\n{} volumes\n", count(stat.volumes().len() as u64)));
    let row = |cells: [String; 5]| cells.to_vec();
    let mut rows =
        vec![row(["volume", "requests", "read", "written", "ends at"].map(String::from))];
    rows.extend(shown.into_iter().map(|(name, volume)| {
        let lab::trace::stat::Volume { requests, bytes_read, bytes_written, end } = volume;
        row([name, count(requests), bytes(bytes_read), bytes(bytes_written), bytes(end)])
    }));
    text.push_str(&table(&rows));
    text
}

fn kinds_text(stat: &Stat) -> String {
    let head = ["", "requests", "share", "bytes", "mean", "median", "largest", "sequential", "odd"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for op in Op::ALL {
        let kind = stat.kind(op);
        if kind.requests == 0 {
            continue;
        }
        let mut row = vec![
            op.name().to_owned(),
            count(kind.requests),
            percent(kind.requests, stat.requests()),
        ];
        if op != Op::Flush {
            row.extend([
                bytes(kind.bytes),
                bytes(kind.bytes / kind.requests),
                bytes(median(&kind.sizes)),
                bytes(kind.size_max),
                percent(kind.sequential, kind.requests),
                percent(kind.unaligned, kind.requests),
            ]);
        }
        rows.push(row);
    }
    table(&rows)
}

/// The median size: the histogram tells the upper end of a class, and sizes are its lower end.
fn median(sizes: &Histogram<u64>) -> u64 {
    sizes.lowest_equivalent(sizes.value_at_quantile(0.5))
}

fn footprint_text(stat: &Stat) -> String {
    let found = stat.footprint();
    let size = |blocks: u64| bytes(blocks * flash::BLOCK_BYTES as u64);
    let mut text = format!(
        "blocks    {} touched: {} read, {} written; {} hold data at the end\n\
         writes    {:.1} % are overwrites; each written block is written {:.2} times\n",
        size(found.blocks),
        size(found.blocks_read),
        size(found.blocks_written),
        size(found.alive),
        share_of(found.overwrites, found.writes) * 100.0,
        found.writes as f64 / found.blocks_written.max(1) as f64,
    );
    let lives = stat.lifetimes();
    if !lives.is_empty() {
        text.push_str(&format!(
            "lives     {} ended, median {}, 90 % {}, 99 % {}\n",
            count(lives.len()),
            ns_text(lives.value_at_quantile(0.5) * 1_000_000),
            ns_text(lives.value_at_quantile(0.9) * 1_000_000),
            ns_text(lives.value_at_quantile(0.99) * 1_000_000),
        ));
    }
    text
}

/// A time as people read it.
pub fn ns_text(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn stat_json(stat: &Stat, reader: &Reader, args: &StatArgs) -> Value {
    let mut kinds = serde_json::Map::new();
    for op in Op::ALL {
        let kind = stat.kind(op);
        let sizes: Vec<Value> = (0..64)
            .map(|bit| (1u64 << bit, kind.sizes.count_between(1 << bit, (1 << bit) * 2 - 1)))
            .take_while(|(from, _)| *from <= kind.size_max)
            .filter(|(_, requests)| *requests > 0)
            .map(|(from, requests)| json!({ "from": from, "requests": requests }))
            .collect();
        let value = json!({
            "requests": kind.requests,
            "bytes": kind.bytes,
            "sequential": kind.sequential,
            "unaligned": kind.unaligned,
            "sizes": sizes,
            "size_median": median(&kind.sizes),
            "size_max": kind.size_max,
            "response_ns": (!kind.responses.is_empty()).then(|| quantiles(&kind.responses)),
        });
        kinds.insert(op.name().into(), value);
    }
    let found = stat.footprint();
    let volumes = volumes(stat, reader, args.top);
    json!({
        "trace": args.input.display().to_string(),
        "format": reader.format().name(),
        "repairs": repairs_json(reader.repairs()),
        "requests": stat.requests(),
        "duration_ns": stat.duration_ns(),
        "kinds": kinds,
        "fua": stat.fua(),
        "rates": {
            "requests_per_s": rate(stat.requests(), stat.duration_ns()),
            "bytes_per_s":
                rate(stat.kind(Op::Read).bytes + stat.kind(Op::Write).bytes, stat.duration_ns()),
            "requests_per_s_max": stat.peak().requests,
            "bytes_per_s_max": stat.peak().bytes,
        },
        "gap_ns": quantiles(stat.gaps()),
        "footprint": {
            "blocks": found.blocks,
            "blocks_read": found.blocks_read,
            "blocks_written": found.blocks_written,
            "blocks_alive": found.alive,
            "block_writes": found.writes,
            "overwrites": found.overwrites,
            "trims": found.trims,
        },
        "lifetime_ms": quantiles(stat.lifetimes()),
        "volumes": stat.volumes().len(),
        "top_volumes": volumes.into_iter().map(|(name, volume)| json!({
            "volume": name,
            "requests": volume.requests,
            "bytes_read": volume.bytes_read,
            "bytes_written": volume.bytes_written,
            "end": volume.end,
        })).collect::<Vec<_>>(),
    })
}

fn quantiles(histogram: &Histogram<u64>) -> Value {
    json!({
        "count": histogram.len(),
        "mean": histogram.mean(),
        "p50": histogram.value_at_quantile(0.5),
        "p90": histogram.value_at_quantile(0.9),
        "p99": histogram.value_at_quantile(0.99),
        "max": histogram.max(),
    })
}

#[cfg(test)]
mod tests {
    use super::{format_of_name, ns_text, sector_bytes, share};
    use lab::trace::Format;
    use std::path::Path;

    #[test]
    fn a_name_tells_the_format() {
        assert_eq!(format_of_name(Path::new("a/web.msr.gz")), Format::Msr);
        assert_eq!(format_of_name(Path::new("x.iolog")), Format::Fio);
        assert_eq!(format_of_name(Path::new("x.csv.zst")), Format::Weir);
        assert_eq!(format_of_name(Path::new("-")), Format::Weir);
    }

    #[test]
    fn values_on_the_command_line_are_checked() {
        assert_eq!(share("1/10"), Ok(10));
        assert!(share("2/10").is_err() && share("1/0").is_err());
        assert_eq!(sector_bytes("4096"), Ok(4096));
        assert!(sector_bytes("520").is_err() && sector_bytes("8192").is_err());
    }

    #[test]
    fn times_are_short() {
        assert_eq!(ns_text(999), "999 ns");
        assert_eq!(ns_text(1_500_000), "1.50 ms");
        assert_eq!(ns_text(90_000_000_000), "90.00 s");
    }
}
