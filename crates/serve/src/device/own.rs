//! What a device on files keeps of itself while it is open, and how an open for writing begins and ends.

use super::direct::{self, Opened};
use super::home::Home;
use super::identity::{self, Mark, Opener, State};
use super::lock::Found;
use super::zoned::{self, EraseCounts};
use super::{
    DeviceError, FastNote, FastOptions, FastPart, Kind, Mode, NewPart, RAW_WITHOUT_FAST,
    RawOptions, Shape, VOLATILE_FAST, fast, folder, tier,
};
use crate::kept::Kept;
use crate::medium::TAKE_OVER;
use ftl::Settings;
use nand::{Faults, Profile};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A device on files that nobody else has open.
pub(super) struct Own {
    pub path: PathBuf,
    pub what: Description,
    /// Where that is, if it is a folder that somebody may move.
    home: Option<Home>,
    /// Keeps other processes away.
    pub lock: File,
    /// Its generation and its master, as they were written last.
    pub found: Found,
    /// It is open for writing: [`Own::begin`].
    pub begun: bool,
}

pub(super) enum Description {
    Folder(Box<folder::Description>),
    File(direct::Parts),
}

impl Description {
    /// Present if it is a device of raw units.
    pub fn raw(&self) -> Option<&RawOptions> {
        match self {
            Self::Folder(own) => own.raw.as_ref(),
            Self::File(own) => own.raw.as_ref(),
        }
    }
}

/// What the media of a device are made from.
pub(super) struct Flash {
    pub shape: Shape,
    pub profile: Profile,
    pub faults: Faults,
    pub shards: u32,
}

impl Own {
    /// What its media are made from.
    pub fn flash(&self) -> Flash {
        let shape = self.shape();
        match &self.what {
            Description::Folder(own) => Flash {
                shape,
                profile: own.profile.clone(),
                faults: own.faults.clone(),
                shards: own.shards,
            },
            Description::File(own) => {
                let (profile, faults) = (direct::profile(&own.bands), Faults::default());
                Flash { shape, profile, faults, shards: own.shards }
            }
        }
    }

    pub fn shape(&self) -> Shape {
        match &self.what {
            Description::Folder(own) => own.shape,
            Description::File(own) => own.shape,
        }
    }

    /// A device that was made just now, with this master.
    pub fn new(
        path: &Path,
        what: Description,
        lock: File,
        master: &Mark,
    ) -> Result<Self, DeviceError> {
        let found = Found { generation: master.generation, master: Some(*master) };
        let home = matches!(what, Description::Folder(_)).then(|| Home::of(path)).transpose()?;
        Ok(Self { path: path.to_owned(), what, home, lock, found, begun: false })
    }

    /// What is there, kept from others.
    pub fn claim(kind: &Kind, mode: Mode) -> Result<Self, DeviceError> {
        match kind {
            Kind::Memory { .. } => {
                let reason = "a device in memory is gone with its process: it cannot be opened";
                Err(DeviceError::Options(reason.into()))
            }
            Kind::Nand { path, .. } => {
                let (description, found, lock) = folder::claim(path, mode)?;
                let what = Description::Folder(Box::new(description));
                let home = Some(Home::of(path)?);
                Ok(Self { path: path.clone(), what, home, lock, found, begun: false })
            }
            Kind::File { path } => {
                let (parts, found, lock) = direct::claim(path, mode)?;
                let what = Description::File(parts);
                Ok(Self { path: path.clone(), what, home: None, lock, found, begun: false })
            }
        }
    }

    /// What is wrong if its description is not as Weir has written it.
    pub fn edited(&self) -> Option<DeviceError> {
        match &self.what {
            Description::Folder(own) => own.edited.then(|| folder::edited(&self.path)),
            // Of these the checksum is part of the header.
            Description::File(_) => None,
        }
    }

    pub fn uuid(&self) -> u128 {
        match &self.what {
            Description::Folder(description) => description.uuid,
            Description::File(parts) => parts.uuid,
        }
    }

    /// Its folder, wherever that is now; none if it is in a file or on a disk, or its folder is gone.
    pub fn folder(&self) -> Option<PathBuf> {
        self.home.as_ref()?.now(&self.path).ok()
    }

    /// What it says of its fast tier.
    pub fn note(&self) -> Option<&FastNote> {
        match &self.what {
            Description::Folder(description) => description.fast.as_ref(),
            Description::File(parts) => parts.fast.as_ref(),
        }
    }

    /// Notes another fast tier, or none.
    pub fn note_fast(&mut self, note: Option<FastNote>) -> Result<(), DeviceError> {
        let sum = |note: Option<&FastNote>| identity::tier_sum(note.map(|note| note.uuid.as_str()));
        self.follow()?;
        let (before, after) = (sum(self.note()), sum(note.as_ref()));
        // The master knows both while the description may tell either.
        self.expect_tiers([before, after])?;
        match &mut self.what {
            Description::Folder(description) => description.fast = note,
            Description::File(parts) => parts.fast = note,
        }
        self.commit()?;
        self.expect_tiers([after, after])
    }

    fn expect_tiers(&mut self, tiers: [u32; 2]) -> Result<(), DeviceError> {
        match self.found.master {
            Some(master) if master.tiers != tiers => self.write_master(&Mark { tiers, ..master }),
            _ => Ok(()),
        }
    }

    /// Its folder may have been moved since it was opened.
    fn follow(&mut self) -> Result<(), DeviceError> {
        if let Some(home) = &self.home {
            self.path = home.now(&self.path)?;
        }
        Ok(())
    }

    fn write_master(&mut self, master: &Mark) -> Result<(), DeviceError> {
        match &self.what {
            Description::Folder(_) => folder::write_master(&self.path, master)?,
            Description::File(_) => direct::write_master(&self.path, &self.lock, master)?,
        }
        self.found = Found { generation: master.generation, master: Some(*master) };
        Ok(())
    }

    /// From here on the device is this process's to write: it is told so to all of its files, and to
    /// whoever may have it open elsewhere.
    pub fn begin(&mut self, mut fast: Option<&mut FastPart>) -> Result<(), DeviceError> {
        let before = self.found.before(self.uuid());
        let opener = Opener::new(&self.lock);
        let master = before.next(opener)?.beside(self.note());
        if let Some(fast) = &mut fast {
            fast.begin(&master)?;
        }
        if let Description::Folder(description) = &mut self.what {
            folder::mark(&self.path, description, &master)?;
            self.found = Found { generation: master.generation, master: Some(master) };
        } else {
            self.write_master(&master)?;
        }
        if let Some(fast) = fast {
            fast.opened()?;
        }
        if let Description::Folder(description) = &self.what {
            folder::mark_files(&self.path, description, &master)?;
        }
        self.begun = true;
        if before.state != State::Closed && !before.opener.is_gone(&opener) {
            tracing::info!(
                "{}: was not stopped well, and not by a process that had this lock: waiting {} ms for \
                 a server elsewhere to find that it lost the device",
                self.path.display(),
                TAKE_OVER.as_millis()
            );
            // What it still writes must not come after what is read here.
            std::thread::sleep(TAKE_OVER);
        }
        Ok(())
    }

    /// All is durable, and nothing more is written: the files say so.
    pub fn end(
        &mut self,
        fast: Option<&mut FastPart>,
        counts: Option<&EraseCounts>,
    ) -> Result<(), DeviceError> {
        let Some(master) = self.found.master.filter(|_| std::mem::take(&mut self.begun)) else {
            return Ok(());
        };
        self.follow()?;
        if let Some(fast) = fast {
            fast.close()?;
        }
        if let Some(counts) = counts {
            zoned::keep_counts(&self.path, counts)?;
        }
        let master = Mark { state: State::Closed, ..master };
        if let Description::Folder(description) = &mut self.what {
            folder::mark(&self.path, description, &master)?;
            self.found.master = Some(master);
            return Ok(());
        }
        self.write_master(&master)
    }

    /// Opens what the shards' media are over.
    pub fn open(
        &self,
        fast: Option<&FastPart>,
        (mode, kept): (Mode, Option<&mut Kept>),
    ) -> Result<Opened, DeviceError> {
        let generation = self.found.generation;
        match &self.what {
            Description::Folder(description) => {
                let of = (description.as_ref(), generation);
                folder::open(&self.path, of, fast, (mode, kept))
            }
            Description::File(parts) => {
                direct::open(&self.path, &self.lock, (parts, generation), fast, (mode, kept))
            }
        }
    }

    /// What is damaged of it so that nothing must be written, before anything is. `Err` if it cannot be opened
    /// for what its files hold.
    pub fn examine(&self, fast: Option<&FastPart>) -> Result<Option<String>, DeviceError> {
        if let Some(fast) = fast {
            fast.check_age(&self.found)?;
        }
        match &self.what {
            Description::Folder(description) => folder::examine(&self.path, description),
            // There it takes a look at the pages, which the open does.
            Description::File(_) => Ok(None),
        }
    }

    pub fn commit(&self) -> Result<(), DeviceError> {
        match &self.what {
            Description::Folder(description) => folder::commit(&self.path, description),
            Description::File(parts) => direct::commit(&self.path, &self.lock, parts),
        }
    }

    /// Opens its fast tier, if it has one, where it was last or at `place`.
    pub fn open_fast(
        &mut self,
        place: Option<&Path>,
        mode: Mode,
    ) -> Result<Option<FastPart>, DeviceError> {
        let Some(note) = self.note().cloned() else { return Ok(None) };
        let place = place.unwrap_or(&note.path).to_owned();
        let mut part = FastPart::open(&note, &place, (&self.path, self.uuid()), mode)?;
        part.check_age(&self.found)?;
        if mode == Mode::ReadWrite {
            part.finish()?;
            if place != note.path {
                self.note_fast(Some(FastNote { path: place, ..note }))?;
            }
        }
        Ok(Some(part))
    }

    /// Makes an empty fast tier and notes it. The next mount begins to use it. In the map of a shard there may be entries of
    /// snapshots, beside those of its logical blocks.
    pub fn attach(
        &mut self,
        options: &FastOptions,
        settings: &Settings,
        shadow_blocks: u32,
    ) -> Result<(), DeviceError> {
        let Flash { shape, profile, faults, shards } = self.flash();
        if self.what.raw().is_some() {
            return Err(DeviceError::Options(RAW_WITHOUT_FAST.into()));
        }
        let Some(path) = fast::path_of(&options.kind) else {
            return Err(DeviceError::Options(VOLATILE_FAST.into()));
        };
        let geometry = shape.nand(&profile, &faults, 0, None)?.geometry();
        let entries = shape.logical_blocks.saturating_add(shadow_blocks);
        let tier = tier(options, &geometry, (shards, entries), settings)?;
        let geometry = shape.nand(&profile, &faults, 0, Some(&tier))?.geometry();
        let device = self.uuid();
        let new = NewPart { kind: &options.kind, device, shards, geometry };
        let note = new.create(&self.found.before(device))?;
        let text = "the device has none yet, so an empty fast tier is attached";
        tracing::info!(fast = %path.display(), device = %self.path.display(), "{text}");
        self.note_fast(Some(note))
    }
}
