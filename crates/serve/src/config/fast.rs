//! `[device.fast]`: the fast tier before the device. `fast = "path"` is short for its path alone.

use super::Wish;
use super::section::Section;
use crate::device::{FastOptions, Kind};
use ftl::FastShare;
use std::path::{Path, PathBuf};

const KEYS: &[&str] = &["kind", "path", "profile", "capacity", "units"];
/// Fast units of each shard.
const UNITS_PER_SHARD: u64 = 2;

/// The fast tier of a device of this kind at `data`, if there shall be one.
pub fn section(
    device: &mut Section<'_>,
    kind: &str,
    data: &Path,
    base: &Path,
    shards: u32,
) -> Option<FastOptions> {
    if !device.has("fast") {
        return None;
    }
    device.table_of_text("fast", "path");
    let mut section = device.section("fast");
    let path = section.text("path", "\"weir-fast\"").map(|path| base.join(path));
    let path = path.unwrap_or_else(|| beside(data));
    let kind = section.choice("kind", &["nand", "file", "memory"]).unwrap_or_else(|| {
        let file = path.exists() && !path.is_dir();
        if kind == "memory" {
            "memory".into()
        } else if file {
            "file".into()
        } else {
            "nand".into()
        }
    });
    if kind == "file"
        && let Some(value) = section.remove("profile")
    {
        let reason = "has no effect: kind = \"file\" emulates nothing; leave it out";
        section.refuse("profile", &value.to_string(), reason, "\"optane\"\nkind = \"nand\"");
    }
    let named = section.text("profile", "\"optane\"").unwrap_or("optane".into());
    let profile = super::profile(&mut section, Some(&named), &kind, base);
    let bytes = section.size("capacity", "\"1GiB\"");
    if bytes == Some(0) {
        section.refuse("capacity", "0 bytes", "must not be empty", "\"1GiB\"");
    }
    let shards = u64::from(shards);
    let units = section.integer("units", 1, 256, "2").unwrap_or(UNITS_PER_SHARD * shards);
    if !units.is_multiple_of(shards) {
        let reason = format!("must be a multiple of shards = {shards}");
        section.refuse("units", &units.to_string(), reason, &(2 * shards).to_string());
    }
    section.finish(KEYS);
    let kind = match (kind.as_str(), profile) {
        ("file", _) => Kind::File { path },
        ("memory", Some(profile)) => Kind::Memory { profile },
        (_, Some(profile)) => Kind::Nand { path, profile },
        (_, None) => return None,
    };
    Some(FastOptions { kind, bytes, units: units as u32 })
}

/// The volumes as a shard counts its blocks, each with its share of the fast tier, if there is more
/// than one: then no volume takes another's latency. What is beyond the first few shares what is left.
pub fn shares(volumes: &[((u32, u32), &Wish)]) -> Vec<FastShare> {
    if volumes.len() < 2 {
        return Vec::new();
    }
    let shares = volumes.iter().map(|&((first, blocks), wish)| FastShare {
        first,
        blocks,
        weight: wish.share,
    });
    shares.take(SHARES_MAX).collect()
}

/// Most volumes with a share of their own.
const SHARES_MAX: usize = 63;

/// Where a fast tier is unless told otherwise: beside the device.
fn beside(data: &Path) -> PathBuf {
    let mut name = data.file_name().unwrap_or_default().to_owned();
    name.push("-fast");
    data.with_file_name(name)
}
