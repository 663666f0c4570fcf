//! The devices of an experiment: those that come with Weir, and those of files of a user's own.

use super::file::{At, DeviceChoice};
use super::{Experiment, ExperimentError, Scale};
use crate::device_file::{DeviceSpec, Read};
use std::collections::BTreeMap;
use toml::Table;

/// The keys of each device, by the name that the experiment has for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices(BTreeMap<String, Table>);

impl Devices {
    /// The device of a case.
    pub fn spec(&self, choice: &DeviceChoice) -> Result<DeviceSpec, String> {
        let name = &choice.name;
        let table = self.0.get(name).ok_or_else(|| format!("device {name:?} was not read"))?;
        DeviceSpec::of_table(table.clone(), &choice.set)
    }
}

impl Experiment {
    /// Reads the devices that the cases name with these variables; `read` gives the texts of files. A device that is
    /// wrong is told of before anything runs.
    ///
    /// # Errors
    /// No such device, or its file cannot be read, or is wrong.
    pub fn load_devices(
        &mut self,
        set: &[(String, String)],
        read: Read<'_>,
    ) -> Result<(), ExperimentError> {
        let mut checked: Vec<DeviceChoice> = Vec::new();
        let points: Vec<(Scale, At)> = [Scale::Small, Scale::Full]
            .iter()
            .flat_map(|&scale| self.points().into_iter().map(move |at| (scale, at)))
            .collect();
        for number in 0..self.cases() {
            for (scale, at) in &points {
                let case = self.case(number, *scale, set, at)?;
                if case.waf.is_some() || checked.contains(&case.device) {
                    continue;
                }
                let place = format!("experiment {}, case {:?}", self.name, case.name);
                let name = &case.device.name;
                let wrong =
                    |why: String| ExperimentError(format!("{place}: device {name:?}: {why}"));
                if !self.devices.0.contains_key(name) {
                    let table = DeviceSpec::whole_table(name, read).map_err(wrong)?;
                    if name.ends_with(".toml") {
                        self.sum ^= flash::crc(table.to_string().as_bytes());
                    }
                    self.devices.0.insert(name.clone(), table);
                }
                self.devices.spec(&case.device).map_err(wrong)?;
                checked.push(case.device);
            }
        }
        Ok(())
    }
}
