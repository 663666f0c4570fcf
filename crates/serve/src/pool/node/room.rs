//! Room in the file system below a node's drive: that there is none is told in the log, once until there is room
//! again. Clients are refused one by one, and go to other nodes.

use super::drive::Drive;
use crate::backend::Backend;
use crate::rated::Rated;
use crate::runtime::shard::NO_ROOM;
use flash::{Instant, SECOND};

/// What is programmed so long after a refusal was begun after it: others may have found room elsewhere.
const QUIET_NS: u64 = SECOND;

/// What a node remembers of it.
#[derive(Debug)]
pub struct Room {
    /// Where the drive is.
    place: String,
    /// When there was none last.
    refused_at: Option<Instant>,
    lacks: bool,
    /// What was programmed by the last look within a second of that.
    programmed: u64,
    warnings: Rated,
    /// The log tells that there is none.
    told: bool,
}

impl Room {
    /// Of a drive that lies there.
    pub fn of(place: String) -> Self {
        let warnings = Rated::default();
        Self { place, refused_at: None, lacks: false, programmed: 0, warnings, told: false }
    }

    /// Logs that there is no room, at a bounded rate, and that there is room again.
    pub fn log(&mut self, now: Instant, drive: &Drive) {
        let units = drive.store().units();
        let Some(refused_at) = units.room_refused_at() else { return };
        if self.refused_at != Some(refused_at) {
            (self.refused_at, self.lacks) = (Some(refused_at), true);
            self.warn(now, drive);
        }
        if !self.lacks {
            return;
        }
        let programmed = units.slots_programmed();
        if now < refused_at + QUIET_NS {
            self.programmed = programmed;
        } else if programmed > self.programmed {
            self.lacks = false;
            if std::mem::take(&mut self.told) {
                tracing::warn!("{}: there is room again: writes are taken", self.place);
            }
        }
    }

    fn warn(&mut self, now: Instant, drive: &Drive) {
        if self.told {
            return;
        }
        if let Some(more) = self.warnings.admit(now) {
            self.told = true;
            let file = drive.medium().full_file();
            let place = file.map_or_else(|| self.place.clone(), |file| file.display().to_string());
            tracing::warn!(more, "{place}: {NO_ROOM}");
        }
    }
}
