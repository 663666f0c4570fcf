//! What follows from a device file by arithmetic.

use super::{DeviceSpec, Inside};

/// Bytes and bytes per second of a device at full size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceFigures {
    /// Independent units that the FTL or the host sees.
    pub units: u64,
    /// Flash.
    pub raw_bytes: f64,
    /// What clients may address, if no block is bad.
    pub usable_bytes: f64,
    /// Reads of whole program units that the flash cannot exceed.
    pub flash_read: f64,
    /// Programs that the flash cannot exceed.
    pub flash_program: f64,
    /// Erases.
    pub flash_erase: f64,
    /// Reads that flash, link and firmware together cannot exceed.
    pub read_max: f64,
    /// Writes without any relocation.
    pub write_max: f64,
    /// DRAM.
    pub cache_bytes: f64,
}

impl DeviceSpec {
    /// Erases of a block that its flash is made for; `None` of a pool, whose drives may be unlike.
    pub fn endurance(&self) -> Option<u32> {
        match &self.inside {
            Inside::Ftl(flash, _) | Inside::Raw(flash, _) => Some(flash.profile.endurance),
            Inside::Pool(_) => None,
            Inside::Array(members) => members.member.endurance(),
        }
    }

    /// See [`DeviceFigures`].
    pub fn figures(&self) -> DeviceFigures {
        let inside = match &self.inside {
            Inside::Ftl(flash, choice) => flash_figures(flash, choice.utilization, 1),
            Inside::Raw(flash, choice) => flash_figures(flash, 1.0 - choice.spare, choice.gang),
            Inside::Pool(choice) => pool_figures(choice),
            Inside::Array(members) => members.member.figures().times(f64::from(members.count)),
        };
        let (link, firmware) = (&self.front.link, &self.front.firmware);
        let cap = |rate: f64| if rate > 0.0 { rate } else { f64::INFINITY };
        let pages = |ns: u64| {
            let page = f64::from(firmware.page_bytes) * f64::from(firmware.cores);
            if ns == 0 { f64::INFINITY } else { page * 1e9 / ns as f64 }
        };
        let min = |a: f64, b: f64, c: f64| a.min(b).min(c);
        DeviceFigures {
            read_max: min(
                inside.read_max,
                cap(link.read_bytes_per_s),
                pages(firmware.read_page_ns),
            ),
            write_max: min(
                inside.write_max,
                cap(link.write_bytes_per_s),
                pages(firmware.write_page_ns),
            ),
            cache_bytes: inside.cache_bytes
                + self.front.cache.as_ref().map_or(0.0, |cache| cache.bytes as f64),
            ..inside
        }
    }
}

fn flash_figures(flash: &super::Flash, utilization: f64, gang: u32) -> DeviceFigures {
    let (profile, layout) = (&flash.profile, &flash.layout);
    let dies = u64::from(layout.channels) * u64::from(layout.dies_per_channel);
    let block = u64::from(profile.page_bytes) * u64::from(profile.pages_per_block);
    let blocks = dies * u64::from(profile.planes) * u64::from(layout.blocks_per_plane);
    let raw_bytes = (blocks * block) as f64;
    let (read, program) =
        (profile.raw_read_bandwidth(layout), profile.raw_program_bandwidth(layout));
    DeviceFigures {
        units: dies / u64::from(gang),
        raw_bytes,
        usable_bytes: raw_bytes * utilization,
        flash_read: read,
        flash_program: program,
        flash_erase: profile.raw_erase_bandwidth(layout),
        read_max: read,
        write_max: program,
        cache_bytes: 0.0,
    }
}

/// By the profiles of its drives: reads alone, and writes alone with their copies.
fn pool_figures(choice: &super::PoolChoice) -> DeviceFigures {
    let (raw_bytes, usable_bytes) = choice.bytes();
    let (reads, writes) = choice.peaks();
    let block = flash::BLOCK_BYTES as f64;
    DeviceFigures {
        units: u64::from(choice.lanes),
        raw_bytes,
        usable_bytes,
        flash_read: reads * block,
        flash_program: writes * block,
        flash_erase: f64::INFINITY,
        read_max: reads * block,
        write_max: writes * block / f64::from(choice.controller.replicas),
        cache_bytes: 0.0,
    }
}

impl DeviceFigures {
    fn times(self, count: f64) -> Self {
        Self {
            units: (self.units as f64 * count) as u64,
            raw_bytes: self.raw_bytes * count,
            usable_bytes: self.usable_bytes * count,
            flash_read: self.flash_read * count,
            flash_program: self.flash_program * count,
            flash_erase: self.flash_erase * count,
            read_max: self.read_max * count,
            write_max: self.write_max * count,
            cache_bytes: self.cache_bytes * count,
        }
    }
}
