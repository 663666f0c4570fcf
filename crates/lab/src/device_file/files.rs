//! A device by its name, whatever that names: a device that comes with Weir, a kind of flash, or a file of
//! either, which may name a file of its flash in turn.

use super::{DeviceSpec, builtin_table, merge};
use nand::Profile;
use std::path::Path;
use toml::{Table, Value};

/// Gives the text of the file with that name, or says why it cannot be read.
pub type Read<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Of flash that is told alone: what `weir serve` has unless told otherwise, with blocks to be scaled.
const OF_FLASH: &str = "name = \"flash\"
kind = \"ftl\"
[ftl]
over_provisioning = 0.25
[layout]
channels = 4
dies_per_channel = 2
blocks_per_plane = 1024
";

impl DeviceSpec {
    /// The keys of what `name` names, in a table that names no further file.
    pub fn whole_table(name: &str, read: Read<'_>) -> Result<Table, String> {
        if !name.ends_with(".toml") {
            return built_in(name);
        }
        let parsed = |name: &str| -> Result<Table, String> {
            let text = read(name)?;
            let table = text.parse().map_err(|error: toml::de::Error| error.to_string());
            table.map_err(|why| format!("{name}: not TOML: {}", why.trim_end()))
        };
        let mut table = parsed(name)?;
        let of_device =
            ["kind", "like", "layout", "ftl", "raw", "array", "pool", "firmware", "link"];
        if !of_device.iter().any(|key| table.contains_key(*key)) {
            // Its own errors are about a profile and not about a device.
            Profile::parse(&table.to_string()).map_err(|why| format!("{name}: {why}"))?;
            return Ok(of_flash(Value::Table(table)));
        }
        let beside = |flash: &str| {
            let folder = Path::new(name).parent().unwrap_or(Path::new(""));
            folder.join(flash).to_string_lossy().into_owned()
        };
        let own = |place: &mut Table| -> Result<(), String> {
            if let Some(Value::String(flash)) = place.get("profile")
                && flash.ends_with(".toml")
            {
                let flash = beside(flash);
                let keys = parsed(&flash).map_err(|why| format!("{name}: profile: {why}"))?;
                Profile::parse(&keys.to_string()).map_err(|why| format!("{flash}: {why}"))?;
                place.insert("profile".into(), Value::Table(keys));
            }
            Ok(())
        };
        own(&mut table)?;
        if let Some(Value::Table(fast)) = table.get_mut("fast") {
            own(fast)?;
        }
        Ok(table)
    }

    /// The device of a [`Self::whole_table`], with some of its keys set to other values.
    pub fn of_table(mut table: Table, set: &Table) -> Result<Self, String> {
        merge(&mut table, set);
        Self::parse(&table.to_string()).map_err(|error| error.to_string())
    }
}

fn of_flash(profile: Value) -> Table {
    let mut table: Table = OF_FLASH.parse().expect("it is TOML");
    if let Some(name) = profile.get("name").cloned().or_else(|| profile.as_str().map(Value::from)) {
        table.insert("name".into(), name);
    }
    table.insert("profile".into(), profile);
    table
}

fn built_in(name: &str) -> Result<Table, String> {
    let flash = || Profile::builtin(name).map(|_| of_flash(Value::from(name)));
    builtin_table(name).or_else(flash).ok_or_else(|| {
        format!(
            "no device or flash is called {name:?}; there are the devices {}, the flash profiles {}, or name a \
             file: my-ssd.toml",
            DeviceSpec::names().join(", "),
            Profile::builtin_names().join(", ")
        )
    })
}
