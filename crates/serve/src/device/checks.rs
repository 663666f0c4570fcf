//! Whether a device can be made as it is wanted: asked before there is anything of it.

use super::volumes::amount;
use super::{Device, DeviceError, DeviceOptions, plan};
use crate::volume::Split;
use flash::Geometry;
use ftl::Settings;

impl Device {
    /// Whether one can be made. Nothing is.
    ///
    /// # Errors
    /// Why not.
    pub fn check(options: &DeviceOptions, settings: &Settings) -> Result<(), DeviceError> {
        plan(options, &Split::new(options.shards as usize), settings).map(drop)
    }
}

/// Refuses settings that a shard of this geometry could not be formatted with.
pub fn settings_fit(
    settings: &Settings,
    geometry: &Geometry,
    shards: u32,
) -> Result<(), DeviceError> {
    let with =
        |bytes: u64| Settings { map_bytes: bytes.div_ceil(u64::from(shards)), ..settings.clone() };
    // With all of the map in DRAM nothing but the rest can be wrong.
    with(0).validate(geometry).map_err(DeviceError::Options)?;
    if with(settings.map_bytes).validate(geometry).is_ok() {
        return Ok(());
    }
    let least =
        (16..).map(|shift| 1 << shift).find(|&bytes| with(bytes).validate(geometry).is_ok());
    let example = amount(least.unwrap_or(0));
    Err(DeviceError::Options(format!(
        "ftl.map_memory = \"{}\": is too little for the map of this device, with what of it is to stay there (mapping = \
         \"page\"); \"0MiB\" is all of it; for example: map_memory = \"{example}\"",
        amount(settings.map_bytes)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    fn check(text: &str) -> Result<(), String> {
        let config = Config::parse(text, Path::new("/nowhere")).unwrap();
        Device::check(&config.device, &config.ftl).map_err(|error| error.to_string())
    }

    #[test]
    fn what_no_device_can_be_made_with_is_told_before_one_is() {
        let small = "[device]\ncapacity = \"64MiB\"\nprofile = \"instant\"\n";
        assert_eq!(check(small), Ok(()));
        let told = check(&format!("{small}[ftl]\nmap_memory = \"1KiB\"\n")).unwrap_err();
        assert!(
            told.contains("ftl.map_memory = \"1KiB\"") && told.contains("for example"),
            "{told}"
        );
        let example = told.rsplit('"').nth(1).unwrap();
        assert_eq!(check(&format!("{small}[ftl]\nmap_memory = \"{example}\"\n")), Ok(()));
        let many: String = (0..200)
            .map(|at| format!("[[volume]]\nname = \"{at:060}\"\nsize = \"4KiB\"\n"))
            .collect();
        assert!(check(&many).unwrap_err().contains("200 volumes"));
        let large = check("[device]\ncapacity = \"1PiB\"\n").unwrap_err();
        assert!(large.contains("1023TiB"), "{large}");
        let shards = check("[device]\ncapacity = \"20TiB\"\n").unwrap_err();
        assert!(shards.contains("shards = 2"), "{shards}");
        assert!(!Path::new("/nowhere").exists());
    }
}
