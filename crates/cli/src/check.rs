//! `weir check`: mounts a device without changing it, reads every logical block that holds data
//! through the FTL (so through every checksum), and compares the FTL's books. With `--quick` of the blocks a
//! sample alone.
//!
//! Exit status 0: clean. 1: damaged, and every damaged block was named. 2: could not be checked.

use crate::device::{DATA_DEFAULT, kind_of};
use crate::output::{Progress, print, print_json};
use crate::{End, Failure};
use flash::{BLOCK_BYTES, Lba};
use ftl::Core;
use serde_json::json;
use serve::RawShape;
use serve::device::{Device, Mode, Table};
use serve::offline::{Offline, Sweep, volumes_of, with_device};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir check --data weir-data\n  \
    weir check --data weir-data --json | jq .damaged\n  \
    weir check --data weir-data --quick\n      metadata, and about 256 MiB of the data\n\n\
    Exit status: 0 clean, 1 damaged, 2 could not be checked. Nothing is written. A damaged block \
    heals when it is written again.")]
pub struct Args {
    /// The folder of the device; or the disk or file it is on
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Read all metadata, and of the data a sample: about 256 MiB, another one each time
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A logical block that cannot be read.
struct Damage {
    volume: String,
    /// As the volume counts.
    block: u64,
    /// Why, in the FTL's words.
    error: String,
}

#[derive(Default)]
struct Findings {
    damaged: Vec<Damage>,
    blocks_read: u64,
    /// Of these, those that could not be.
    blocks_unread: u64,
    /// Those that hold something, in volumes or raw units: all of them are read, but for a sample.
    blocks_held: u64,
    blocks_mapped: u64,
    clean_shutdown: bool,
    /// Books of the FTL that do not agree, and a volume table that cannot be read.
    faults: Vec<String>,
    pages_torn: u64,
    slots_corrected: u64,
    /// Slots that no power cut explains, and blocks whose newest version is missing.
    slots_damaged: u64,
    blocks_lost: u64,
    blocks_refused: u64,
    /// Of these slots the first of each shard, and in words what that means.
    found: Vec<(usize, Vec<ftl::DamagedSlot>, String)>,
    /// By shard, where part of the checkpoint was lost.
    rebuilt: Vec<(usize, ftl::Rebuilt)>,
}

impl Findings {
    /// True if nothing is damaged. A rebuild tells of damage, unless a cut off format made it necessary.
    fn is_good(&self) -> bool {
        let gaps = self.rebuilt.iter().any(|(_, rebuilt)| rebuilt.is_damage());
        let missing = self.slots_damaged + self.blocks_lost + self.blocks_refused > 0;
        self.damaged.is_empty() && self.faults.is_empty() && !gaps && !missing
    }
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let data = std::path::absolute(&args.data).unwrap_or(args.data.clone());
    let kind = kind_of(&data);
    // Which shard has which block the device tells; it is closed again before it is mounted.
    let split = Device::open(&kind, Mode::ReadOnly).map_err(|error| error.to_string())?.split;
    let places = Places {
        device_block: &|shard, lba| split.device_block(shard, lba),
        shard_blocks: &|blocks| split.shard_blocks(blocks),
    };
    let settings = ftl::Settings::default();
    let findings =
        with_device(&kind, &settings, true, |shards| examine(shards, &places, args.quick))
            .map_err(|error| format!("{}: {error}", data.display()))?;
    let good = findings.is_good();
    if args.json {
        print_json(&as_json(&findings, good));
    } else {
        print(&as_text(&findings, good, &data.display().to_string()));
    }
    Ok(if good { End::Good } else { End::Bad })
}

/// Logical blocks of a shard that are put in order at once: 64 GiB, which takes 256 MiB of memory.
const PIECE_BLOCKS: u32 = 1 << 24;
/// Most logical blocks of a sample, of all shards.
const SAMPLE_BLOCKS: u64 = 1 << 16;

/// How the blocks of a device lie on its shards.
struct Places<'a> {
    /// Which block of the device a shard has as its own.
    device_block: &'a dyn Fn(usize, u32) -> u64,
    /// Blocks that each shard has of so many of the device.
    shard_blocks: &'a dyn Fn(u64) -> u64,
}

fn examine(shards: &mut [Offline], places: &Places<'_>, quick: bool) -> Findings {
    let mut findings = begin(shards);
    // Of how many runs one is read.
    let whole = match shards[0].raw() {
        Some(raw) => raw.written().map(|(_, block)| u64::from(block.blocks_written)).sum(),
        None => findings.blocks_mapped,
    };
    let of = if quick { whole.div_ceil(SAMPLE_BLOCKS).max(1) as usize } else { 1 };
    findings.blocks_held = whole;
    let mut progress = Progress::new("check");
    let mut reading = Reading { whole: whole / of as u64, of, progress: &mut progress };
    if let Some(shape) = shards[0].raw_shape() {
        examine_units(&mut shards[0], &shape, &mut reading, &mut findings);
    } else {
        examine_volumes(shards, places, &mut reading, &mut findings);
    }
    findings
}

/// What is read, and how far that is.
struct Reading<'a> {
    /// Blocks that are read, of all shards.
    whole: u64,
    /// Of so many runs one.
    of: usize,
    progress: &'a mut Progress,
}

impl Reading<'_> {
    /// Reads a sweep, or a sample of it. `name` tells of a block of the shard whose it is, and as which.
    fn read(
        &mut self,
        shard: &mut Offline,
        sweep: Sweep,
        granule: u32,
        name: &dyn Fn(u32) -> (String, u64),
        findings: &mut Findings,
    ) {
        let sweep = if self.of > 1 { sweep.sample(drawn(), self.of) } else { sweep };
        let mut failed = Vec::new();
        shard.read_all(&sweep, |run, result| {
            findings.blocks_read += u64::from(run.blocks);
            self.progress.at(findings.blocks_read, self.whole);
            if result.is_err() {
                failed.push(run);
            }
        });
        // Which of their blocks it is.
        for run in failed {
            for lba in (run.lba..run.lba + run.blocks).step_by(granule as usize) {
                if let Err(error) = shard.read(lba, granule) {
                    findings.blocks_unread += u64::from(granule);
                    let (volume, block) = name(lba);
                    let error = format!("{error:?}").to_lowercase();
                    findings.damaged.push(Damage { volume, block, error });
                }
            }
        }
        // What was read in the order of the medium is told in that of the volumes.
        findings.damaged.sort_by(|a, b| (&a.volume, a.block).cmp(&(&b.volume, b.block)));
    }
}

/// Another number each time: samples differ, so that in time all is read.
fn drawn() -> usize {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as usize)
}

fn begin(shards: &[Offline]) -> Findings {
    Findings {
        damaged: Vec::new(),
        blocks_read: 0,
        blocks_unread: 0,
        blocks_held: 0,
        blocks_mapped: shards.iter().map(|shard| shard.report().blocks_mapped).sum(),
        clean_shutdown: shards.iter().all(|shard| shard.report().clean),
        faults: shards[0].impaired().to_vec(),
        pages_torn: shards.iter().map(|shard| shard.report().pages_torn).sum(),
        slots_corrected: 0,
        slots_damaged: shards.iter().map(|shard| shard.report().slots_damaged).sum(),
        blocks_lost: shards.iter().map(|shard| shard.report().blocks_lost).sum(),
        blocks_refused: shards.iter().map(|shard| shard.report().blocks_refused).sum(),
        found: shards
            .iter()
            .enumerate()
            .filter_map(|(index, shard)| {
                let report = shard.report();
                Some((index, report.damaged.clone(), report.damage()?))
            })
            .collect(),
        rebuilt: shards
            .iter()
            .enumerate()
            .filter_map(|(index, shard)| Some((index, shard.report().rebuilt?)))
            .collect(),
    }
}

/// Reads what is written of each raw block, and compares the books of the raw units.
fn examine_units(
    shard: &mut Offline,
    shape: &RawShape,
    reading: &mut Reading<'_>,
    findings: &mut Findings,
) {
    let Some(raw) = shard.raw() else { return };
    let written: Vec<(Lba, u32)> =
        raw.written().map(|(lba, block)| (lba, block.blocks_written)).collect();
    if let Err(reason) = raw.verify() {
        findings.faults.push(format!("the books of the raw units disagree: {reason}"));
    }
    let blocks_per_unit = shape.lanes.lane_slots();
    let granule = shape.granule_bytes / BLOCK_BYTES as u32;
    let name =
        |lba: u32| (format!("unit/{}", lba / blocks_per_unit), u64::from(lba % blocks_per_unit));
    reading.read(shard, Sweep::of_raw_blocks(&written, blocks_per_unit), granule, &name, findings);
    if let Some(raw) = shard.raw() {
        findings.slots_corrected += raw.counter("slots_corrected");
    }
}

fn examine_volumes(
    shards: &mut [Offline],
    places: &Places<'_>,
    reading: &mut Reading<'_>,
    findings: &mut Findings,
) {
    let table = volumes_of(shards).unwrap_or_else(|| {
        findings.faults.push("the volume table is damaged".into());
        Table::default()
    });
    let end = table.end();
    let end = u32::try_from((places.shard_blocks)(end)).unwrap_or(u32::MAX);
    for (index, shard) in shards.iter_mut().enumerate() {
        let name = |lba: u32| named(&table, (places.device_block)(index, lba));
        for first in (0..end).step_by(PIECE_BLOCKS as usize) {
            let sweep = shard.sweep_of(first..end.min(first.saturating_add(PIECE_BLOCKS)));
            reading.read(shard, sweep, 1, &name, findings);
        }
        let sweep = shard.sweep_of_snapshots();
        reading.read(shard, sweep, 1, &name, findings);
    }
    for (index, ftl) in shards.iter().filter_map(Offline::ftl).enumerate() {
        if let Err(reason) = ftl.verify() {
            findings.faults.push(format!("shard {index}: the FTL's books disagree: {reason}"));
        }
        findings.slots_corrected += ftl.counter("slots_corrected");
    }
}

/// A block of the device, as its volume knows it.
fn named(table: &Table, block: u64) -> (String, u64) {
    if let Some((volume, at)) = table.volume_of(block) {
        return (volume.name.clone(), at);
    }
    match table.snapshot_of(block) {
        Some((snapshot, at)) => (table.name_of(snapshot), at),
        None => ("(none)".into(), block),
    }
}

fn as_json(findings: &Findings, good: bool) -> serde_json::Value {
    let damaged: Vec<_> = findings
        .damaged
        .iter()
        .map(|damage| {
            json!({
                "volume": damage.volume,
                "block": damage.block,
                "offset_bytes": damage.block * BLOCK_BYTES as u64,
                "error": damage.error,
            })
        })
        .collect();
    json!({
        "clean": good,
        "blocks_mapped": findings.blocks_mapped,
        "blocks_held": findings.blocks_held,
        "blocks_read": findings.blocks_read,
        "whole": findings.blocks_read >= findings.blocks_held,
        "blocks_verified": findings.blocks_read - findings.blocks_unread,
        "damaged": damaged,
        "faults": findings.faults,
        "clean_shutdown": findings.clean_shutdown,
        "pages_torn": findings.pages_torn,
        "slots_corrected": findings.slots_corrected,
        "slots_damaged": findings.slots_damaged,
        "blocks_lost": findings.blocks_lost,
        "blocks_refused": findings.blocks_refused,
        "damaged_slots": findings.found.iter().flat_map(|(shard, slots, _)| {
            slots.iter().map(move |slot| json!({
                "shard": shard,
                "unit": slot.unit,
                "block": slot.block,
                "page": slot.page,
                "slot": slot.slot,
            }))
        }).collect::<Vec<_>>(),
        "rebuilt": findings.rebuilt.iter().map(|(shard, rebuilt)| json!({
            "shard": shard,
            "chunks": rebuilt.chunks,
            "blocks_refused": rebuilt.blocks_refused,
            "pages_lost": rebuilt.pages_lost,
            "of_cut_format": rebuilt.of_cut_format,
        })).collect::<Vec<_>>(),
    })
}

fn as_text(findings: &Findings, good: bool, place: &str) -> String {
    let mut text = String::new();
    for damage in &findings.damaged {
        text.push_str(&format!(
            "volume {}, logical block {} (bytes {} on): {}\n",
            damage.volume,
            damage.block,
            damage.block * BLOCK_BYTES as u64,
            damage.error
        ));
    }
    for fault in &findings.faults {
        text.push_str(&format!("{fault}\n"));
    }
    for (shard, slots, what) in &findings.found {
        for slot in slots {
            text.push_str(&format!("shard {shard}, {slot}: damaged\n"));
        }
        text.push_str(&format!("shard {shard}: {what}\n"));
    }
    for (shard, rebuilt) in &findings.rebuilt {
        text.push_str(&format!("shard {shard}: {rebuilt}\n"));
    }
    let verdict = if good {
        "clean".into()
    } else {
        format!(
            "DAMAGED: {} blocks cannot be read, {} slots damaged, {} other faults",
            findings.damaged.len(),
            findings.slots_damaged,
            findings.faults.len()
        )
    };
    let left = findings.blocks_held.saturating_sub(findings.blocks_read);
    let left = if left > 0 {
        format!(
            "; {} of {} NOT READ",
            crate::size::count(left),
            crate::size::count(findings.blocks_held)
        )
    } else {
        String::new()
    };
    let shutdown = if findings.clean_shutdown { "clean" } else { "dirty" };
    text.push_str(&format!(
        "{place}: {verdict}\n  {} logical blocks read and verified{left}; last shutdown {shutdown}; {} \
         torn pages, {} slots corrected\n",
        crate::size::count(findings.blocks_read - findings.blocks_unread),
        findings.pages_torn,
        findings.slots_corrected,
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftl::Rebuilt;

    #[test]
    fn a_rebuild_is_damage_unless_the_format_was_cut_off_and_nothing_was_lost() {
        let good =
            |rebuilt| Findings { rebuilt: vec![(0, rebuilt)], ..Findings::default() }.is_good();
        let cut = Rebuilt { chunks: 3, of_cut_format: true, ..Rebuilt::default() };
        assert!(Findings::default().is_good() && good(cut));
        assert!(!good(Rebuilt { of_cut_format: false, ..cut }));
        assert!(!good(Rebuilt { pages_lost: 1, ..cut }));
        assert!(!good(Rebuilt { blocks_refused: 1, ..cut }));
    }
}
