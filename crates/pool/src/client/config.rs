//! What a client is made with.

use super::choice::{Choice, WEIGHTED, choice_by_name};
use super::reads::{Hedging, hedging_by_name};
use crate::words::{BandShape, Generation, MEMBERS_MAX, VolumeId};
use flash::{Geometry, MILLISECOND, Pairing, SECOND};

/// Most slots of a page that one append carries.
const SLOTS_MAX: u32 = 64;

/// See the head of this file. [`Config::new`] gives the defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The volume.
    pub volume: VolumeId,
    /// Of this opening of it.
    pub generation: Generation,
    /// What the FTL is told that the medium is: its units are lanes, its blocks bands.
    pub geometry: Geometry,
    /// Nodes that hold each band: 1 to 4.
    pub replicas: u32,
    /// A member that has not answered an append for so long is late, and the band is cut.
    pub program_limit_ns: u64,
    /// A member that has not answered a read for so long is late, and another is asked.
    pub read_limit_ns: u64,
    /// Where all members are late with a read they are asked again, and late after twice as long each time, up to
    /// this.
    pub read_limit_ns_max: u64,
    /// A node that has not flushed for so long while all others have is given up until it answers.
    pub flush_limit_ns: u64,
    /// An erase waits so long for nodes that are there.
    pub erase_limit_ns: u64,
    /// After a node was busy it is asked again.
    pub retry_ns: u64,
    /// A node that refused to begin a band is not asked to again for so long.
    pub shy_ns: u64,
    /// Most asks that a node has not answered.
    pub asks_max: u32,
    /// Openings kept ahead for each lane, so that no append waits for the control plane.
    pub openings_ahead: u32,
    /// Which replica a read goes to: `weighted`, or one of the FTL's replica policies.
    pub replica: String,
    /// When reads are sent twice: `none` or `quantile`.
    pub hedging: String,
    /// Nodes that say that they are congested get less.
    pub congestion: bool,
    /// Of all that is left to chance.
    pub seed: u64,
}

impl Config {
    /// With defaults for all that can have them.
    pub fn new(
        volume: VolumeId,
        generation: Generation,
        geometry: Geometry,
        replicas: u32,
    ) -> Self {
        Self {
            volume,
            generation,
            geometry,
            replicas,
            program_limit_ns: 50 * MILLISECOND,
            read_limit_ns: 20 * MILLISECOND,
            read_limit_ns_max: SECOND,
            flush_limit_ns: 250 * MILLISECOND,
            erase_limit_ns: SECOND,
            retry_ns: MILLISECOND,
            shy_ns: 10 * MILLISECOND,
            asks_max: 1024,
            openings_ahead: 2,
            replica: WEIGHTED.into(),
            hedging: "quantile".into(),
            congestion: true,
            seed: 1,
        }
    }

    /// What all bands of the volume are made of.
    pub fn shape(&self) -> BandShape {
        let Geometry { pages_per_block: pages, slots_per_page, .. } = self.geometry;
        BandShape { pages, slots_per_page }
    }

    /// The policies that it names.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub(super) fn check(&self) -> Result<(Choice, Hedging), String> {
        let Geometry { slots_per_page, pairing, fast, .. } = self.geometry;
        if self.replicas == 0 || self.replicas as usize > MEMBERS_MAX {
            return Err(format!("replicas = {}: must be 1 to {MEMBERS_MAX}", self.replicas));
        }
        if slots_per_page > SLOTS_MAX {
            return Err(format!(
                "a page of {slots_per_page} slots: an append carries at most {SLOTS_MAX}"
            ));
        }
        if self.generation.0 == 0 || self.generation.0 > u64::from(u32::MAX) {
            let generation = self.generation.0;
            return Err(format!("generation {generation}: must be 1 to {}", u32::MAX));
        }
        if pairing != Pairing::None || fast.units > 0 {
            return Err(
                "pages of a pool share no cells, and it has no fast tier of its own: give \
                        the geometry neither"
                    .into(),
            );
        }
        let positive = [
            ("program_limit_ns", self.program_limit_ns),
            ("read_limit_ns", self.read_limit_ns),
            ("read_limit_ns_max", self.read_limit_ns_max),
            ("flush_limit_ns", self.flush_limit_ns),
            ("erase_limit_ns", self.erase_limit_ns),
            ("retry_ns", self.retry_ns),
            ("shy_ns", self.shy_ns),
            ("asks_max", self.asks_max.into()),
            ("openings_ahead", self.openings_ahead.into()),
        ];
        if let Some((name, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(format!("{name} = 0: must be at least 1"));
        }
        Ok((choice_by_name(&self.replica)?, hedging_by_name(&self.hedging)?))
    }
}
