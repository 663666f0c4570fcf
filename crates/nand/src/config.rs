//! What the owner of an emulated device chooses beside its profile: how many dies, and what goes
//! wrong with them.

use flash::Instant;
use serde::Serialize;

/// How many dies, and how large.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layout {
    /// Buses that work at the same time.
    pub channels: u32,
    /// Dies that share a bus. Unit `u` is a die of channel `u % channels`.
    pub dies_per_channel: u32,
    /// Erase blocks of each plane of each die.
    pub blocks_per_plane: u32,
}

/// What goes wrong. The default is: nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Everything below is drawn from it.
    pub seed: u64,
    /// Share of each plane's blocks that are bad from the factory, 0 to 0.5.
    pub factory_bad: f64,
    /// Probability that a program fails and its block becomes bad.
    pub program_fail: f64,
    /// Programs that fail and make their block bad, counted from 1.
    pub programs_failing: Vec<u64>,
    /// Probability that a program is cut short ([`MediumError::Cut`](flash::MediumError::Cut)): its page is
    /// there or not, and its block takes nothing but an erase.
    pub program_cut: f64,
    /// Probability that an erase fails and its block becomes bad.
    pub erase_fail: f64,
    /// Probability that a flush fails. NAND keeps what was programmed; what fails is whatever lies
    /// between it and who asked.
    pub flush_fail: f64,
    /// Flushes that fail, counted from 1.
    pub flushes_failing: Vec<u64>,
    /// Probability that a read comes back corrected.
    pub correctable: f64,
    /// Probability that a read finds its page uncorrectable; it stays so until the erase.
    pub uncorrectable: f64,
    /// A unit that stops answering, and when.
    pub dead_unit: Option<(u32, Instant)>,
    /// Bit errors follow the profile's error model: wear, retention and read disturb.
    pub wear_errors: bool,
}

impl Faults {
    pub(crate) fn validate(&self, units: u32) -> Result<(), String> {
        let probabilities = [
            ("factory_bad", self.factory_bad, 0.5),
            ("program_fail", self.program_fail, 1.0),
            ("program_cut", self.program_cut, 1.0),
            ("erase_fail", self.erase_fail, 1.0),
            ("flush_fail", self.flush_fail, 1.0),
            ("correctable", self.correctable, 1.0),
            ("uncorrectable", self.uncorrectable, 1.0),
        ];
        for (name, value, max) in probabilities {
            if !(0.0..=max).contains(&value) {
                return Err(format!("{name} = {value}: must be 0 to {max}, for example 0.001"));
            }
        }
        match self.dead_unit {
            Some((unit, _)) if unit >= units => {
                Err(format!("dead_unit = {unit}: the device has units 0 to {}", units - 1))
            }
            _ => Ok(()),
        }
    }
}
