//! `weir check`: mounts a device without changing it, reads every logical block that holds data
//! through the FTL (so through every checksum), and compares the FTL's books.
//!
//! Exit status 0: clean. 1: damaged, and every damaged block was named. 2: could not be checked.

use crate::device::{DATA_DEFAULT, kind_of};
use crate::output::{Progress, print, print_json};
use crate::{End, Failure};
use flash::{BLOCK_BYTES, Lba};
use ftl::Core;
use serde_json::json;
use serve::RawShape;
use serve::device::{Device, Mode, Volume, decode_volumes};
use serve::offline::{Offline, with_device};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir check --data weir-data\n  \
    weir check --data weir-data --json | jq .damaged\n\n\
    Exit status: 0 clean, 1 damaged, 2 could not be checked. Nothing is written. A damaged block \
    heals when it is written again.")]
pub struct Args {
    /// The folder of the device; or the disk or file it is on
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
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
    let place = |first: u64, blocks: u64| {
        let run = split.run(first, blocks);
        (run.shard, run.lba, run.blocks)
    };
    let settings = ftl::Settings::default();
    let findings = with_device(&kind, &settings, true, |shards| examine(shards, &place))
        .map_err(|error| format!("{}: {error}", data.display()))?;
    let good = findings.is_good();
    if args.json {
        print_json(&as_json(&findings, good));
    } else {
        print(&as_text(&findings, good, &data.display().to_string()));
    }
    Ok(if good { End::Good } else { End::Bad })
}

/// Reads at most this many logical blocks at a time.
const RUN_BLOCKS: u64 = 64;

fn examine(shards: &mut [Offline], place: &dyn Fn(u64, u64) -> (usize, u32, u32)) -> Findings {
    let mut findings = begin(shards);
    if let Some(shape) = shards[0].raw_shape() {
        examine_units(&mut shards[0], &shape, &mut findings);
    } else {
        examine_volumes(shards, place, &mut findings);
    }
    findings
}

fn begin(shards: &[Offline]) -> Findings {
    Findings {
        damaged: Vec::new(),
        blocks_read: 0,
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
fn examine_units(shard: &mut Offline, shape: &RawShape, findings: &mut Findings) {
    let Some(raw) = shard.raw() else { return };
    let written: Vec<(Lba, u32)> =
        raw.written().map(|(lba, block)| (lba, block.blocks_written)).collect();
    if let Err(reason) = raw.verify() {
        findings.faults.push(format!("the books of the raw units disagree: {reason}"));
    }
    let mut progress = Progress::new("check");
    let blocks_per_unit = shape.lanes.lane_slots();
    let granule = shape.granule_bytes / BLOCK_BYTES as u32;
    for (done, &(first, blocks)) in (0..).zip(&written) {
        progress.at(done, written.len() as u64);
        let unit = first.0 / blocks_per_unit;
        let place = Volume {
            name: format!("unit/{unit}"),
            first_block: u64::from(unit * blocks_per_unit),
            blocks: blocks_per_unit.into(),
            read_only: true,
        };
        for at in (first.0..first.0 + blocks).step_by(RUN_BLOCKS as usize) {
            let run = (first.0 + blocks - at).min(RUN_BLOCKS as u32);
            let within = u64::from(at) - place.first_block;
            read_run(shard, &place, (within, at, run), granule, findings);
        }
    }
    if let Some(raw) = shard.raw() {
        findings.slots_corrected += raw.counter("slots_corrected");
    }
}

fn examine_volumes(
    shards: &mut [Offline],
    place: &dyn Fn(u64, u64) -> (usize, u32, u32),
    findings: &mut Findings,
) {
    let report = shards[0].report();
    let volumes = decode_volumes(&report.label).unwrap_or_else(|| {
        findings.faults.push("the volume table is damaged".into());
        Vec::new()
    });
    let mut progress = Progress::new("check");
    let whole = volumes.iter().map(|volume| volume.blocks).sum();
    let mut before = 0;
    for volume in &volumes {
        let mut at = 0;
        while at < volume.blocks {
            progress.at(before + at, whole);
            let (shard, lba, blocks) =
                place(volume.first_block + at, (volume.blocks - at).min(RUN_BLOCKS));
            let Some(ftl) = shards[shard].ftl() else { return };
            let (mapped, blocks) = ftl.mapped_run(Lba(lba), blocks);
            if mapped {
                read_run(&mut shards[shard], volume, (at, lba, blocks), 1, findings);
            }
            at += u64::from(blocks);
        }
        before += volume.blocks;
    }
    for (index, ftl) in shards.iter().filter_map(Offline::ftl).enumerate() {
        if let Err(reason) = ftl.verify() {
            findings.faults.push(format!("shard {index}: the FTL's books disagree: {reason}"));
        }
        findings.slots_corrected += ftl.counter("slots_corrected");
    }
}

fn read_run(
    shard: &mut Offline,
    volume: &Volume,
    (at, lba, blocks): (u64, u32, u32),
    granule: u32,
    findings: &mut Findings,
) {
    findings.blocks_read += u64::from(blocks);
    if shard.read(lba, blocks).is_ok() {
        return;
    }
    for offset in (0..blocks).step_by(granule as usize) {
        if let Err(error) = shard.read(lba + offset, granule) {
            findings.damaged.push(Damage {
                volume: volume.name.clone(),
                block: at + u64::from(offset),
                error: format!("{error:?}").to_lowercase(),
            });
        }
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
        "blocks_read": findings.blocks_read,
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
    let shutdown = if findings.clean_shutdown { "clean" } else { "dirty" };
    text.push_str(&format!(
        "{place}: {verdict}\n  {} logical blocks read and verified; last shutdown {shutdown}; {} \
         torn pages, {} slots corrected\n",
        crate::size::count(findings.blocks_read),
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
