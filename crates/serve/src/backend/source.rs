//! What a server serves, opened: for each shard what makes its engine, and what is known of the whole.

use super::Backend;
use crate::device::{Device, DeviceError};
use crate::medium::Medium;
use crate::runtime::ring::Ring;
use crate::runtime::shard::{Clock, CoreFormat, CoreSettings, Engine};
use crate::server::start_engine;
use crate::vestibule::Waits;
use crate::volume::Split;
use ftl::MountReport;

/// An engine that has mounted, and the time that it goes by.
pub type Opened = (Engine, Clock, MountReport);

/// Makes the engine of a shard, on its thread.
pub type Starter = Box<dyn FnOnce(&mut Ring) -> Result<Opened, String> + Send>;

/// See the head of this file.
pub struct Source {
    /// One a shard.
    pub starters: Vec<Starter>,
    /// Which block is whose.
    pub split: Split,
    /// Where it is, and where its fast tier is, for people.
    pub places: (String, String),
    /// The device of this machine, unless it is a volume of a pool.
    pub device: Option<Device>,
    /// What the opening waits for, where it may wait for long.
    pub waits: Option<Waits>,
}

impl Source {
    /// An open device, whose cores are mounted with `settings`.
    pub fn of_device(mut device: Device, settings: &CoreSettings) -> Self {
        let media = std::mem::take(&mut device.media);
        let mut formats = std::mem::take(&mut device.formats).into_iter();
        let settings = settings.clone().of_shard(media.len());
        let starter = |medium| of_medium(medium, formats.next(), settings.clone());
        Self {
            starters: media.into_iter().map(starter).collect(),
            split: device.split,
            places: device.places(),
            device: Some(device),
            waits: None,
        }
    }

    /// Why nothing may be written, in words; none if it may.
    pub fn impaired(&self) -> &[String] {
        self.device.as_ref().map_or(&[], Device::impaired)
    }

    /// All have mounted: what was made is a device from now on.
    ///
    /// # Errors
    /// The device is not what its shards say.
    pub fn commit<'a>(
        &mut self,
        found: impl Iterator<Item = &'a MountReport>,
    ) -> Result<(), DeviceError> {
        let Some(device) = &mut self.device else { return Ok(()) };
        if let Some(contradicted) = device.contradicted(found) {
            device.discard_kept();
            return Err(contradicted);
        }
        device.commit()
    }
}

fn of_medium(medium: Medium, format: Option<CoreFormat>, settings: CoreSettings) -> Starter {
    Box::new(move |ring| {
        let medium: Box<dyn Backend> = Box::new(medium);
        let (engine, now, report) = start_engine(medium, format, settings, ring)?;
        Ok((engine, Clock::starting_at(now), report))
    })
}
