//! What a config or the command line says about the making of a device, compared with the device
//! that is there. A device knows what it was made with, so nothing of `[device]` need be repeated;
//! what is repeated must be true, else somebody believes in a device that does not exist.

use crate::Failure;
use crate::device::{RawShape, Shape};
use nand::Profile;
use serve::device::{Device, Kind};
use std::path::Path;
use toml::{Table, Value};

/// Who says what about the device.
pub struct Claims<'a> {
    /// The config file, if any, with the command line laid over it.
    pub table: &'a Table,
    pub file: Option<&'a Path>,
    pub shape: Option<&'a Shape>,
    pub raw: Option<&'a RawShape>,
    /// Paths in the config are relative to this folder.
    pub base: &'a Path,
}

/// `Err` if the device at `data` was made with something else than is claimed.
pub fn refuse(claims: &Claims<'_>, kind: &Kind, data: &Path) -> Result<(), Failure> {
    let Ok(made) = Device::description(kind) else {
        // Opening it tells better what is wrong.
        return Ok(());
    };
    let Some(claimed) = claims.table.get("device").and_then(Value::as_table) else {
        return Ok(());
    };
    let mut found = Vec::new();
    for (key, value) in claimed {
        match (made.get(key), value) {
            (Some(Value::Table(made)), Value::Table(faults)) if key == "faults" => {
                for (key, value) in faults {
                    let unlike = made.get(key).filter(|made| !same(made, value));
                    found.extend(unlike.map(|made| (format!("faults.{key}"), value, shown(made))));
                }
            }
            (Some(made), Value::String(name)) if key == "profile" => {
                found.extend(
                    other_profile(made, name, claims.base).map(|m| (key.clone(), value, m)),
                );
            }
            // It may move, and come and go: opening it tells what is wrong.
            (Some(_), _) if key == "fast" => {}
            (Some(made), value) if !same(made, value) => {
                found.push((key.clone(), value, shown(made)));
            }
            _ => {}
        }
    }
    for (key, ..) in &mut found {
        key.insert_str(0, "device.");
    }
    let tables = (made.get("raw"), claims.table.get("raw"));
    if let (Some(Value::Table(made)), Some(Value::Table(raw))) = tables {
        // The other keys may change at every start.
        for key in ["gang", "spare"] {
            if let (Some(made), Some(value)) = (made.get(key), raw.get(key))
                && !same(made, value)
            {
                found.push((format!("raw.{key}"), value, shown(made)));
            }
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> =
        found.iter().map(|(key, value, made)| line(claims, key, value, made, data)).collect();
    Err(lines.join("\n"))
}

/// The place, what is claimed there, what is true, and the mend.
fn line(claims: &Claims<'_>, key: &str, value: &Value, made: &str, data: &Path) -> String {
    let data = data.display();
    let raw = claims.raw.and_then(|raw| raw_option(raw, key));
    if let Some(option) = claims.shape.and_then(|shape| option(shape, key)).or(raw) {
        return format!(
            "{data}: {option}{}: the device there was made with {made}: leave the option out, or \
             format another device with --data",
            if option == "--raw" { String::new() } else { format!(" {}", plain(value)) }
        );
    }
    let file = claims.file.map_or("the config".into(), |file| file.display().to_string());
    format!(
        "{file}: {key} = {value}: the device in {data} was made with {made}: take the key \
         out of the file (the device knows it), or name another device.path for another device"
    )
}

/// The option that set a key, if one did.
fn option(shape: &Shape, key: &str) -> Option<&'static str> {
    match key {
        "device.profile" => shape.profile.as_ref().map(|_| "--profile"),
        "device.channels" => shape.channels.map(|_| "--channels"),
        "device.dies_per_channel" => shape.dies_per_channel.map(|_| "--dies-per-channel"),
        "device.shards" => shape.shards.map(|_| "--shards"),
        "device.op_percent" => shape.op_percent.map(|_| "--op-percent"),
        _ => None,
    }
}

/// The same for raw units.
fn raw_option(raw: &RawShape, key: &str) -> Option<&'static str> {
    match key {
        "device.mode" => raw.raw.then_some("--raw"),
        "raw.gang" => raw.gang.map(|_| "--gang"),
        "raw.spare" => raw.spare.map(|_| "--spare"),
        _ => None,
    }
}

/// The name of the profile that a device was made with, if it is not the one that `name` means.
fn other_profile(made: &Value, name: &str, base: &Path) -> Option<String> {
    let made = Profile::parse(&made.as_table()?.to_string()).ok()?;
    let claimed = match name.ends_with(".toml") {
        // What cannot be read is told by the config's own check.
        true => Profile::parse(&serve::files::read_text(&base.join(name)).ok()?).ok()?,
        false => Profile::builtin(name)?,
    };
    if made == claimed {
        return None;
    }
    if made.name == claimed.name {
        return Some(format!("another version of the profile {:?}", made.name));
    }
    Some(plain(&made.name.into()))
}

fn same(made: &Value, claimed: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|n| n as f64));
    match (number(made), number(claimed)) {
        (Some(made), Some(claimed)) => made == claimed,
        _ => made == claimed,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Table(table) => table.get("name").map_or("another".into(), plain),
        value => plain(value),
    }
}

/// A value as on a command line.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
