//! What can be wrong with a config beyond its own text, asked before a device is made or opened for it; and what of it is
//! of no effect, which is told.

use super::{RING_ENTRIES, ServeError, hosts};
use crate::config::Config;
use crate::device::{Device, Kind};
use crate::runtime::ring::Ring;

/// Refuses a config that no server can serve, as far as that can be known without opening a device. Nothing is made.
///
/// # Errors
/// What is wrong.
pub fn check(config: &Config) -> Result<(), ServeError> {
    hosts::check(config)?;
    let in_memory = matches!(config.device.kind, Kind::Memory { .. });
    let is_made = in_memory || !Device::exists(&config.device.kind) && !config.ftl.read_only;
    if is_made { Ok(Device::check(&config.device, &config.ftl)?) } else { Ok(()) }
}

/// The same for any device, which is opened next, and whether the kernel has the driver. Tells in the log what is said
/// in the config and does nothing.
pub(super) fn before_opening(config: &Config) -> Result<(), ServeError> {
    let tried = Ring::new(RING_ENTRIES, config.driver);
    tried.map(drop).map_err(|error| ServeError::Driver { shard: 0, error })?;
    hosts::check(config)?;
    ineffective(config).iter().for_each(|what| tracing::warn!("{what}"));
    Ok(())
}

fn ineffective(config: &Config) -> Vec<String> {
    let pages = config.wishes.iter().filter(|wish| wish.page && config.ftl.map_bytes == 0);
    let mut all: Vec<String> = pages
        .map(|wish| {
            format!(
                "[[volume]] {:?}: mapping = \"page\" has no effect without map_memory in [ftl]: all of the map is in \
                 DRAM anyway",
                wish.name
            )
        })
        .collect();
    all.extend(hosts::strangers(config));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_does_nothing_is_told() {
        let volume = "[[volume]]\nname = \"a\"\nsize = \"64MiB\"\nmapping = \"page\"\n";
        let told = |text: &str| ineffective(&Config::parse(text, Path::new(".")).unwrap());
        let alone = told(volume);
        assert!(alone.len() == 1 && alone[0].contains("map_memory"), "{alone:?}");
        assert_eq!(told(&format!("{volume}[ftl]\nmap_memory = \"1MiB\"\n")), [""; 0]);
    }
}
