//! Kept memory of a device: whose it is, and how it comes and goes with the opens.

use super::own::Flash;
use super::{Description, Device, DeviceError, FastPart, Kind, Mode, Own, direct, folder};
use crate::kept::{Identity, Kept, KeptOptions, KeptPlace, frames_wanted, newer};
use ftl::Settings;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

impl Own {
    /// Opens its kept memory, or says why there is none.
    pub(super) fn open_kept(
        &self,
        fast: Option<&FastPart>,
        (options, settings): (&KeptOptions, &Settings),
        mode: Mode,
    ) -> Result<Kept, String> {
        if mode == Mode::ReadOnly {
            return Err("the device is only looked at".into());
        }
        let identity = self.kept_identity(fast)?;
        if let KeptPlace::At(path) = &options.place {
            let folders = [Some(self.path.as_path()), fast.map(FastPart::path)];
            is_outside(path, folders.into_iter().flatten())?;
        }
        let frames = frames_wanted(&identity.geometry, self.shape().logical_blocks, settings);
        Kept::open(options, identity, frames)
    }

    /// Why it must be an older copy of what kept memory tells of, if it must. A disk may have lost what it
    /// had in a cache of its own; of files nothing explains it.
    pub(super) fn is_older_than_kept(
        &self,
        fast: Option<&FastPart>,
        options: &KeptOptions,
    ) -> Option<String> {
        let identity = self.kept_identity(fast).ok()?;
        let geometry = identity.geometry;
        let why = newer(options, &identity, |shard, slot| {
            if geometry.is_fast(geometry.block_of(slot)) {
                return fast?.slot_of(shard, &geometry, slot).ok();
            }
            let tier = fast.map(|fast| &fast.tier);
            match &self.what {
                Description::Folder(own) => {
                    folder::slot_of(&self.path, (own, tier), shard, slot).ok()
                }
                Description::File(parts) => {
                    let of = (parts, self.found.generation);
                    direct::slot_of(&self.path, &self.lock, of, tier, (shard, slot)).ok()?
                }
            }
        })?;
        Some(format!("{}: {why}", self.path.display()))
    }

    /// What kept memory must be of.
    fn kept_identity(&self, fast: Option<&FastPart>) -> Result<Identity, String> {
        let shown = |error: DeviceError| error.to_string();
        let Flash { shape, profile, faults, shards } = self.flash();
        if self.what.raw().is_some() {
            return Err("raw units have none: their mount reads little".into());
        }
        let tier = fast.map(|fast| &fast.tier);
        let nand = shape.nand(&profile, &faults, 0, tier).map_err(shown)?;
        Ok(Identity {
            uuid: self.uuid(),
            generation: self.found.generation,
            inode: self.inode().map_err(|error| format!("{}: {error}", self.path.display()))?,
            shards,
            geometry: nand.geometry(),
        })
    }

    /// Which file or disk its bytes lie in.
    fn inode(&self) -> std::io::Result<[u64; 2]> {
        let metadata = match &self.what {
            Description::Folder(_) => fs::metadata(self.path.join("shard-0").join("data"))?,
            Description::File(_) => self.lock.metadata()?,
        };
        Ok(match metadata.file_type().is_block_device() {
            true => [metadata.rdev(), 0],
            false => [metadata.dev(), metadata.ino()],
        })
    }
}

/// `Err` if `path` lies in a folder of the device: what is made or removed there is the device's own.
fn is_outside<'a>(path: &Path, folders: impl Iterator<Item = &'a Path>) -> Result<(), String> {
    let beside = path.parent().and_then(|parent| parent.canonicalize().ok());
    let Some(beside) = beside else { return Ok(()) };
    for folder in folders {
        if folder.is_dir() && folder.canonicalize().is_ok_and(|folder| beside.starts_with(folder)) {
            return Err(format!(
                "{} lies in the device's folder {}: name a place outside",
                path.display(),
                folder.display()
            ));
        }
    }
    Ok(())
}

impl Device {
    /// Makes kept memory for a device that was made just now.
    pub(super) fn keep_new(&mut self, options: &KeptOptions, settings: &Settings) {
        let Some(own) = &self.own else { return };
        self.kept = own.open_kept(self.fast.as_ref(), (options, settings), Mode::ReadWrite);
        if let Ok(kept) = &mut self.kept {
            kept.cold = Some("the device is new".into());
        }
    }

    /// Where its kept memory is and how many bytes it takes; or why it has none.
    pub fn kept(&self) -> Result<(&std::path::Path, u64), &str> {
        self.kept.as_ref().map(|kept| (kept.path(), kept.bytes())).map_err(String::as_str)
    }

    /// Why this open had to look for everything on the medium; `None`: it resumed.
    pub fn cold(&self) -> Option<&str> {
        match &self.kept {
            Ok(kept) => kept.cold.as_deref(),
            Err(why) => Some(why),
        }
    }

    /// Gives back what a killed server has kept of the device that is about to be thrown away.
    pub fn forget_kept(kind: &Kind) {
        let uuid = match kind {
            Kind::Memory { .. } => None,
            Kind::Nand { path, .. } => folder::read_description(path).ok().map(|own| own.uuid),
            Kind::File { path } => direct::describe(path).ok().map(|own| own.uuid),
        };
        if let Some(path) = uuid.and_then(|uuid| KeptOptions::default().path(uuid)) {
            // Mostly there is none.
            fs::remove_file(path).ok();
        }
    }

    /// The device was closed well: its files say so, what was kept of it is given back, and zones are
    /// told how often they were erased.
    ///
    /// # Errors
    /// Its files do not say so, or nobody finds them any more. What is durable in them is so all the same.
    pub fn close(&mut self) -> Result<(), DeviceError> {
        let ended = match &mut self.own {
            Some(own) => own.end(self.fast.as_mut(), self.erase_counts.as_ref()),
            None => Ok(()),
        };
        self.discard_kept();
        ended
    }

    /// Nothing is kept of this open any more: an older copy that is put back now is believed.
    pub(crate) fn discard_kept(&mut self) {
        if let Ok(kept) = std::mem::replace(&mut self.kept, Err("the device is closed".into())) {
            kept.discard();
        }
    }
}
