//! The mode of the device, and what raw units are made from.

use super::VOLUME_BYTES_DEFAULT;
use super::section::{ConfigError, Section};
use crate::device::{RawOptions, raw};
use flash::BLOCK_BYTES;
use ftl::raw::RawSettings;

/// The section `[raw]`.
pub struct RawSection {
    /// There is one.
    pub given: bool,
    /// With the capacity still to be told.
    pub options: RawOptions,
}

/// Reads `[raw]`. Whether it counts, `device.mode` tells.
pub fn section(root: &mut Section<'_>) -> RawSection {
    let given = root.has("raw");
    let mut section = root.section("raw");
    let mut settings = RawSettings::default();
    let gang = section.integer("gang", 1, 4096, "1").unwrap_or(1) as u32;
    if let Some(write) = section.choice("write", &["block", "page"]) {
        settings.write = raw::write_of(&write).unwrap_or_default();
    }
    if let Some(erase) = section.choice("erase", &["now", "background"]) {
        settings.erase = raw::erase_of(&erase).unwrap_or_default();
    }
    let spare = section.fraction("spare", 0.9, "0.01");
    if let Some(bytes) = section.size("read_granule", "\"8KiB\"") {
        let block = BLOCK_BYTES as u64;
        if bytes.is_power_of_two() && (block..=65_536).contains(&bytes) {
            settings.read_granule = (bytes / block) as u32;
        } else {
            let reason = "must be 4KiB, 8KiB, 16KiB, 32KiB or 64KiB, and no more than a page";
            section.refuse_written("read_granule", reason, "\"8KiB\"");
        }
    }
    // 0 says no more than nothing does.
    let mut bound = |key| section.integer(key, 0, 1 << 20, "14").filter(|zones| *zones > 0);
    let (open, active) = (bound("zones_open_max"), bound("zones_active_max"));
    // A zone that is open is active.
    settings.zones_open_max = open.or(active).unwrap_or(0) as u32;
    settings.zones_active_max = active.unwrap_or(0) as u32;
    if let (Some(open), Some(active)) = (open, active)
        && open > active
    {
        let reason = "is more than zones_active_max: a zone that is open is active, too";
        section.refuse("zones_open_max", &open.to_string(), reason, &active.to_string());
    }
    section.finish(&[
        "gang",
        "write",
        "erase",
        "spare",
        "read_granule",
        "zones_open_max",
        "zones_active_max",
    ]);
    let blocks = VOLUME_BYTES_DEFAULT / BLOCK_BYTES as u64;
    RawSection { given, options: RawOptions { gang, spare, blocks, settings } }
}

/// What the device is to be by its `mode`: raw units, or `None` for block mode. What has no meaning
/// in that mode is refused.
pub fn options(
    device: &mut Section<'_>,
    raw: RawSection,
    capacity: Option<u64>,
    volumes: usize,
) -> Option<RawOptions> {
    let mode = device.choice("mode", &["block", "raw"]).unwrap_or("block".into());
    if mode == "block" {
        if raw.given {
            let reason = "is there, but device.mode is \"block\": leave the section out, or say \
                          mode = \"raw\"";
            device.errors.push(error("[raw]", reason, "[device]\nmode = \"raw\""));
        }
        return None;
    }
    if volumes > 0 {
        let reason = "has no meaning with device.mode = \"raw\": each unit is an export, unit/0, \
                      unit/1 and so on; say how much they have together by device.capacity";
        device.errors.push(error("[[volume]]", reason, "[device]\ncapacity = \"8GiB\""));
    }
    if let Some(value) = device.remove("op_percent") {
        let reason = "has no meaning with mode = \"raw\": raw units keep back raw.spare";
        device.refuse("op_percent", &value.to_string(), reason, "25\nmode = \"block\"");
    }
    let blocks = capacity.map_or(raw.options.blocks, |bytes| bytes / BLOCK_BYTES as u64).max(1);
    Some(RawOptions { blocks, ..raw.options })
}

/// Refuses what raw units cannot have of the rest of `[device]`.
pub fn check(device: &mut Section<'_>, shards: u32) {
    if shards != 1 {
        let reason = "must be 1 with mode = \"raw\": raw units are served by one thread";
        device.refuse("shards", &shards.to_string(), reason, "1");
    }
}

fn error(key: &str, reason: &str, example: &str) -> ConfigError {
    ConfigError {
        key: key.into(),
        value: String::new(),
        reason: reason.into(),
        example: example.into(),
    }
}
