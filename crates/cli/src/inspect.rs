//! `weir inspect`: what a device is and how its flash is doing, from a mount that changes nothing.

use crate::device::{DATA_DEFAULT, kind_of};
use crate::output::{print, print_json, table};
use crate::size::{bytes, count};
use crate::{End, Failure};
use flash::{BLOCK_BYTES, Geometry};
use ftl::{BandStatus, MountReport};
use serde_json::{Map, Value, json};
use serve::device::{Kind, Stretch, blocks_of};
use serve::offline::{Offline, volumes_of, with_device};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir inspect --data weir-data\n  \
    weir inspect --data weir-data --json | jq '.shards[0].bands_by_state'\n  \
    weir inspect --data weir-data --bands    every band: state, valid slots, erases\n\n\
    The device must not be served meanwhile; ask a server with `weir status`.")]
pub struct Args {
    /// The folder of the device; or the disk or file it is on
    #[arg(long, value_name = "DIR", default_value = DATA_DEFAULT)]
    data: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List every band
    #[arg(long)]
    bands: bool,
}

/// Bars of the wear histogram.
const WEAR_BARS: u32 = 8;

pub fn run(args: &Args) -> Result<End, Failure> {
    let data = std::path::absolute(&args.data).unwrap_or(args.data.clone());
    let kind = kind_of(&data);
    let settings = ftl::Settings::default();
    let value = with_device(&kind, &settings, true, |shards| {
        device_json(&kind, &data, shards, args.bands || !args.json)
    })
    .map_err(|error| format!("{}: {error}", data.display()))?;
    if args.json {
        print_json(&value);
    } else {
        print(&device_text(&value, args.bands));
    }
    Ok(End::Good)
}

fn device_json(kind: &Kind, data: &Path, shards: &[Offline], bands: bool) -> Value {
    let first = shards[0].report();
    let table = volumes_of(shards).unwrap_or_default();
    let volumes: Vec<Value> = table
        .volumes
        .iter()
        .map(|volume| {
            json!({
                "name": volume.name,
                "number": volume.number,
                "first_block": volume.stretches[0].first,
                "stretches": volume.stretches.iter().map(stretch).collect::<Vec<_>>(),
                "size_bytes": volume.blocks() * BLOCK_BYTES as u64,
                "read_only": volume.read_only,
                "clone_of": table.origin_of(volume),
            })
        })
        .collect();
    let snapshots: Vec<Value> = table
        .snapshots
        .iter()
        .map(|snapshot| {
            json!({
                "name": table.name_of(snapshot),
                "number": snapshot.number,
                "stretches": snapshot.stretches.iter().map(stretch).collect::<Vec<_>>(),
                "size_bytes": snapshot.blocks() * BLOCK_BYTES as u64,
            })
        })
        .collect();
    let description: Option<toml::Table> =
        serve::files::read_text(&data.join("device.toml")).ok().and_then(|text| text.parse().ok());
    let profile = match kind {
        Kind::File { .. } => Value::from("file"),
        _ => description
            .as_ref()
            .and_then(|table| table.get("profile")?.get("name")?.as_str())
            .map_or(Value::Null, Value::from),
    };
    json!({
        "path": data.display().to_string(),
        "profile": profile,
        "uuid": format!("{:032x}", first.uuid),
        "volumes": volumes,
        "snapshots": snapshots,
        "leaving_bytes": blocks_of(&table.leaving) * BLOCK_BYTES as u64,
        "shards": shards.iter().map(|shard| shard_json(shard, bands)).collect::<Vec<_>>(),
    })
}

/// Where a part of a volume lies.
fn stretch(stretch: &Stretch) -> Value {
    json!({ "first_block": stretch.first, "blocks": stretch.blocks })
}

fn shard_json(shard: &Offline, with_bands: bool) -> Value {
    let (report, geometry) = (shard.report(), shard.geometry());
    let Some(ftl) = shard.ftl() else { return units_json(shard) };
    // A fast unit that is shorter than the others has no bands beyond its end.
    let mut bands = ftl.bands();
    bands.retain(|band| geometry.exists(band.block));
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for band in &bands {
        *states.entry(band.state).or_default() += 1;
    }
    let bad: Vec<u32> = bands.iter().filter(|band| band.bad).map(|band| band.block.0).collect();
    let checkpoint: Vec<u32> = ftl.checkpoint_bands().iter().map(|block| block.0).collect();
    let counters: Map<String, Value> =
        ftl.status().counters.iter().map(|(name, value)| ((*name).into(), json!(value))).collect();
    let mut value = json!({
        "geometry": geometry_json(&geometry),
        "raw_bytes": geometry.slots() * BLOCK_BYTES as u64,
        "logical_bytes": u64::from(report.logical_blocks) * BLOCK_BYTES as u64,
        "mapped_bytes": report.blocks_mapped * BLOCK_BYTES as u64,
        "map_bytes": ftl.map_bytes(),
        "generation": report.generation,
        "bands_by_state": states,
        "blocks_bad": bad,
        "checkpoint_bands": checkpoint,
        "wear": wear_json(&bands, geometry.endurance),
        "recovery": recovery_json(report),
        "counters": counters,
    });
    value["recovery"]["rebuilt"] = json!(report.rebuilt.map(|rebuilt| rebuilt.to_string()));
    if with_bands {
        value["bands"] = bands.iter().map(|band| band_json(band, &geometry)).collect();
    }
    value
}

/// What the mount did, as far as an FTL and raw units have it in common.
fn recovery_json(report: &MountReport) -> Value {
    json!({
        "clean": report.clean,
        "bands_probed": report.bands_probed,
        "bands_scanned": report.bands_scanned,
        "slots_replayed": report.slots_replayed,
        "pages_torn": report.pages_torn,
        "blocks_mapped": report.blocks_mapped,
    })
}

/// A shard of raw units.
fn units_json(shard: &Offline) -> Value {
    let (report, geometry) = (shard.report(), shard.geometry());
    let state = shard.state();
    let counters = state.core.counters().iter();
    let counters: Map<String, Value> =
        counters.map(|(name, value)| ((*name).into(), json!(value))).collect();
    json!({
        "geometry": geometry_json(&geometry),
        "raw_bytes": geometry.slots() * BLOCK_BYTES as u64,
        "logical_bytes": u64::from(report.logical_blocks) * BLOCK_BYTES as u64,
        "generation": report.generation,
        "raw": shard.raw_shape().map(|shape| serve::raw_shape_json(&shape)),
        "units": serve::units_json(&state),
        "recovery": recovery_json(report),
        "counters": counters,
    })
}

fn geometry_json(geometry: &Geometry) -> Value {
    json!({
        "units": geometry.units,
        "blocks_per_unit": geometry.blocks_per_unit,
        "pages_per_block": geometry.pages_per_block,
        "slots_per_page": geometry.slots_per_page,
        "pairing": format!("{:?}", geometry.pairing).to_lowercase(),
        "durable_at_completion": geometry.durable_at_completion,
        "suspend": geometry.suspend,
        "queue_depth": geometry.queue_depth,
        "endurance": geometry.endurance,
    })
}

/// Erase counts of the usable bands.
fn wear_json(bands: &[BandStatus], endurance: u32) -> Value {
    let counts: Vec<u32> =
        bands.iter().filter(|band| band.state != "retired").map(|band| band.erase_count).collect();
    let min = counts.iter().copied().min().unwrap_or(0);
    let max = counts.iter().copied().max().unwrap_or(0);
    let sum: u64 = counts.iter().map(|&count| u64::from(count)).sum();
    let mean = sum as f64 / counts.len().max(1) as f64;
    json!({
        "min": min,
        "mean": (mean * 100.0).round() / 100.0,
        "max": max,
        "endurance": endurance,
        "histogram": histogram(&counts)
            .into_iter()
            .map(|(from, to, bands)| json!({ "from": from, "to": to, "bands": bands }))
            .collect::<Vec<_>>(),
    })
}

/// How many counts lie in each of a few ranges of equal width: (from, to, how many).
fn histogram(counts: &[u32]) -> Vec<(u32, u32, u64)> {
    let (Some(&min), Some(&max)) = (counts.iter().min(), counts.iter().max()) else {
        return Vec::new();
    };
    let width = (max - min + 1).div_ceil(WEAR_BARS);
    let bars = (max - min + 1).div_ceil(width);
    let mut histogram: Vec<(u32, u32, u64)> = (0..bars)
        .map(|bar| (min + bar * width, (min + bar * width + width - 1).min(max), 0))
        .collect();
    for count in counts {
        histogram[((count - min) / width) as usize].2 += 1;
    }
    histogram
}

fn band_json(band: &BandStatus, geometry: &Geometry) -> Value {
    json!({
        "block": band.block.0,
        "unit": geometry.unit_of(band.block),
        "state": band.state,
        "slots_valid": band.slots_valid,
        "slots_written": band.slots_written,
        "erase_count": band.erase_count,
    })
}

/// The same for people, from the JSON, so that the two never tell different things.
fn device_text(device: &Value, with_bands: bool) -> String {
    let mut text = format!(
        "{}\n  profile {}, uuid {}\n",
        shown(&device["path"]),
        shown(&device["profile"]),
        shown(&device["uuid"])
    );
    for volume in array(&device["volumes"]) {
        let mut mode = String::new();
        if volume["read_only"] == true {
            mode.push_str(", read only");
        }
        if let Some(of) = volume["clone_of"].as_str() {
            mode.push_str(&format!(", a clone of {of}"));
        }
        let size = bytes(number(&volume["size_bytes"]));
        text.push_str(&format!("  volume {}: {size}{mode}\n", shown(&volume["name"])));
    }
    for snapshot in array(&device["snapshots"]) {
        let size = bytes(number(&snapshot["size_bytes"]));
        text.push_str(&format!("  snapshot {}: {size}\n", shown(&snapshot["name"])));
    }
    let leaving = number(&device["leaving_bytes"]);
    if leaving > 0 {
        text.push_str(&format!("  of volumes that are gone: {} to be trimmed\n", bytes(leaving)));
    }
    for (index, shard) in array(&device["shards"]).iter().enumerate() {
        if shard["raw"].is_object() {
            text.push_str(&units_text(shard));
            continue;
        }
        text.push_str(&shard_text(index, shard));
        if with_bands {
            text.push_str(&bands_text(shard));
        }
    }
    text
}

fn shard_text(index: usize, shard: &Value) -> String {
    let geometry = &shard["geometry"];
    let recovery = &shard["recovery"];
    let wear = &shard["wear"];
    let list = |blocks: &Value| {
        let blocks: Vec<String> = array(blocks).iter().take(16).map(shown).collect();
        if blocks.is_empty() { "none".into() } else { blocks.join(" ") }
    };
    let states: Vec<String> = shard["bands_by_state"]
        .as_object()
        .map(|states| states.iter().map(|(state, bands)| format!("{bands} {state}")).collect())
        .unwrap_or_default();
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    let mut rows = vec![
        row("raw", bytes(number(&shard["raw_bytes"]))),
        row("logical", bytes(number(&shard["logical_bytes"]))),
        row("mapped", bytes(number(&shard["mapped_bytes"]))),
        row(
            "geometry",
            format!(
                "{} units of {} blocks of {} pages of {} slots",
                geometry["units"],
                geometry["blocks_per_unit"],
                geometry["pages_per_block"],
                geometry["slots_per_page"]
            ),
        ),
        row("bands", states.join(", ")),
        row(
            "bad blocks",
            format!("{}: {}", array(&shard["blocks_bad"]).len(), list(&shard["blocks_bad"])),
        ),
        row("checkpoint in", list(&shard["checkpoint_bands"])),
        row(
            "mounts",
            format!(
                "{}; last shutdown {}",
                shard["generation"],
                if recovery["clean"] == true { "clean" } else { "dirty" }
            ),
        ),
        row("recovery", recovery_text(recovery)),
        row(
            "erases",
            format!(
                "min {}, mean {}, max {} of {}",
                wear["min"],
                wear["mean"],
                wear["max"],
                count(number(&wear["endurance"]))
            ),
        ),
    ];
    let rebuilt = recovery["rebuilt"].as_str();
    rows.extend(rebuilt.map(|text| row("rebuilt", text.into())));
    for bar in array(&wear["histogram"]) {
        rows.push(row(
            "",
            format!("{} to {}: {} bands", bar["from"], bar["to"], count(number(&bar["bands"]))),
        ));
    }
    format!("shard {index}\n{}", table(&rows))
}

fn units_text(shard: &Value) -> String {
    let recovery = &shard["recovery"];
    let row = |name: &str, value: String| vec![format!("  {name}"), value];
    let offered = number(&shard["logical_bytes"]);
    let share = 100.0 * offered as f64 / number(&shard["raw_bytes"]).max(1) as f64;
    let shutdown = if recovery["clean"] == true { "clean" } else { "dirty" };
    let rows = [
        row("flash", bytes(number(&shard["raw_bytes"]))),
        row("offered", format!("{}, {share:.1} % of it", bytes(offered))),
        row("raw units", crate::units::shape(&shard["raw"])),
        row("mounts", format!("{}; last shutdown {shutdown}", shard["generation"])),
        row("recovery", recovery_text(recovery)),
    ];
    format!("{}{}", table(&rows), crate::units::text(array(&shard["units"])))
}

fn recovery_text(recovery: &Value) -> String {
    format!(
        "{} bands probed, {} scanned, {} slots replayed, {} torn pages",
        recovery["bands_probed"],
        recovery["bands_scanned"],
        recovery["slots_replayed"],
        recovery["pages_torn"]
    )
}

fn bands_text(shard: &Value) -> String {
    let heads = ["  block", "unit", "state", "valid", "written", "erases"];
    let keys = ["block", "unit", "state", "slots_valid", "slots_written", "erase_count"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for band in array(&shard["bands"]) {
        let mut row: Vec<String> = keys.iter().map(|key| shown(&band[key])).collect();
        row[0].insert_str(0, "  ");
        rows.push(row);
    }
    table(&rows)
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A value without the quotes of JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "unknown".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::histogram;

    #[test]
    fn a_histogram_counts_every_band_once() {
        assert_eq!(histogram(&[]), []);
        assert_eq!(histogram(&[7, 7]), [(7, 7, 2)]);
        let counts: Vec<u32> = (0..100).collect();
        let bars = histogram(&counts);
        assert_eq!(bars.iter().map(|bar| bar.2).sum::<u64>(), 100);
        assert_eq!((bars[0].0, bars[bars.len() - 1].1), (0, 99));
        assert!(bars.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
    }
}
