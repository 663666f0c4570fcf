//! The devices that tests run on: small ones with every manner a medium can have, and large ones
//! for measurements.

use crate::medium::SimMedium;
use flash::{FastTier, Geometry, MICROSECOND, Pairing};
use nand::{Faults, Layout, Nand, Profile};

/// A kind of small device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Manner {
    /// NAND; what was programmed stays, except pages that share cells with one being programmed.
    Nand(Pairing),
    /// A file: nothing stays that was not flushed.
    File,
    /// The same with records of how far each block was durable, as a folder of emulated flash has them.
    Folder,
    /// Such NAND behind a fast tier.
    Tiered {
        /// Of the NAND.
        pairing: Pairing,
        /// The fast tier.
        fast: FastTier,
    },
}

/// Shape and manners of a small device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Small {
    /// Its manners.
    pub manner: Manner,
    /// Independent units, those of a fast tier not counted.
    pub units: u32,
    /// Blocks of each.
    pub blocks_per_unit: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Slots of a page.
    pub slots_per_page: u32,
    /// Most blocks that may be partly programmed at a time, as zones; 0 for no bound.
    pub open_blocks_max: u32,
}

impl Manner {
    /// Nothing stays that was not flushed.
    pub fn forgets(self) -> bool {
        matches!(self, Self::File | Self::Folder)
    }

    /// It tells how far a block was durable.
    pub fn has_records(self) -> bool {
        self == Self::Folder
    }
}

impl Small {
    /// The device, empty. The same `faults` give the same device.
    pub fn build(&self, faults: Faults) -> Result<SimMedium, String> {
        match self.manner {
            Manner::File => Ok(SimMedium::file_with(self.of_file(), faults)),
            Manner::Folder => Ok(SimMedium::folder_with(self.of_file(), faults)),
            Manner::Nand(pairing) => {
                let nand = Nand::new(&self.profile(pairing)?, &self.layout(), faults)?;
                Ok(SimMedium::nand(nand))
            }
            Manner::Tiered { pairing, fast } => {
                let mut quick = Profile::builtin("optane").ok_or("the profile optane is gone")?;
                quick.erase_ns = MICROSECOND;
                let profile = self.profile(pairing)?;
                let nand = Nand::tiered(&profile, &self.layout(), &quick, fast, faults)?;
                Ok(SimMedium::nand(nand))
            }
        }
    }

    fn of_file(&self) -> Geometry {
        Geometry {
            units: self.units,
            blocks_per_unit: self.blocks_per_unit,
            pages_per_block: self.pages_per_block,
            slots_per_page: self.slots_per_page,
            pairing: Pairing::None,
            durable_at_completion: false,
            suspend: false,
            queue_depth: 4,
            endurance: 100_000,
            open_blocks_max: self.open_blocks_max,
            fast: FastTier::NONE,
        }
    }

    fn layout(&self) -> Layout {
        Layout { channels: self.units, dies_per_channel: 1, blocks_per_plane: self.blocks_per_unit }
    }

    /// SLC with quick cells and this shape. Times differ from each other, so that ends interleave.
    fn profile(&self, pairing: Pairing) -> Result<Profile, String> {
        let mut profile = Profile::builtin("slc").ok_or("the built-in profile slc is gone")?;
        let (name, bits) = match pairing {
            Pairing::None => ("none", 1),
            Pairing::Adjacent(bits) => ("adjacent", bits),
            Pairing::Staircase => ("staircase", 2),
        };
        profile.pairing = name.into();
        profile.bits_per_cell = bits;
        profile.pages_per_block = self.pages_per_block;
        profile.page_bytes = 4096;
        profile.planes = self.slots_per_page;
        profile.read_ns = vec![7 * MICROSECOND];
        profile.program_ns = vec![31 * MICROSECOND];
        profile.erase_ns = 83 * MICROSECOND;
        profile.bus_ns_per_byte = 0.1;
        profile.queue_depth = 2;
        profile.open_blocks_max = self.open_blocks_max;
        Ok(profile)
    }
}

/// Emulated NAND of a built-in profile, changed as `change` says.
pub fn nand_of(
    profile: &str,
    layout: &Layout,
    faults: Faults,
    change: impl FnOnce(&mut Profile),
) -> Result<SimMedium, String> {
    let names = Profile::builtin_names().join(", ");
    let mut profile = Profile::builtin(profile)
        .ok_or_else(|| format!("no device profile is called {profile:?}; there are {names}"))?;
    change(&mut profile);
    Ok(SimMedium::nand(Nand::new(&profile, layout, faults).map_err(|why| why.to_string())?))
}
