//! What there is no room for below: a file system that is full refuses writes, which clients are told one by
//! one, and the owner by a warning in the log and in the status.

use super::Shard;
use crate::rated::Rated;
use flash::{Instant, SECOND};

/// What is programmed so long after a refusal was begun after it: others may have found room elsewhere.
const QUIET_NS: u64 = SECOND;

/// What a shard remembers of it.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// There is none.
    pub lacks: bool,
    /// When that was last found.
    refused_at: Option<Instant>,
    /// What was programmed by the last look within a second of that.
    programmed: u64,
    warnings: Rated,
    /// The log tells that there is none.
    told: bool,
}

/// A refusal so long ago is the reason of what failed now.
const RECENT_NS: u64 = 10 * SECOND;

impl Shard {
    /// Logs that there is no room below, at a bounded rate, and that there is room again.
    pub(super) fn log_room(&mut self, now: Instant) {
        let Some(refused_at) = self.engine.core.room_refused_at() else { return };
        if self.room.refused_at != Some(refused_at) {
            (self.room.refused_at, self.room.lacks) = (Some(refused_at), true);
            self.shared.note_room(self.me, Some(format!("{}: {NO_ROOM}", self.full_place())));
            self.warn_of_room(now);
        }
        if !self.room.lacks {
            return;
        }
        let programmed = self.engine.core.slots_programmed();
        if now < refused_at + QUIET_NS {
            self.room.programmed = programmed;
        } else if programmed > self.room.programmed {
            self.room.lacks = false;
            self.shared.note_room(self.me, None);
            if std::mem::take(&mut self.room.told) {
                let place = self.places_below();
                tracing::warn!(shard = self.me, "{place}: there is room again: writes are taken");
            }
        }
    }

    fn warn_of_room(&mut self, now: Instant) {
        if self.room.told {
            return;
        }
        if let Some(more) = self.room.warnings.admit(now) {
            self.room.told = true;
            let place = self.full_place();
            tracing::warn!(shard = self.me, more, "{place}: {NO_ROOM}");
        }
    }

    /// Logs why a stop did not make everything durable.
    pub(super) fn log_unclean_stop(&self, now: Instant) {
        // A page that found room in between does not make it enough.
        let since = Instant(now.0.saturating_sub(RECENT_NS));
        let refused = self.engine.core.room_refused_at().is_some_and(|at| at >= since);
        let (place, why) = match self.room.lacks || refused {
            true => (self.full_place(), NO_ROOM.into()),
            false => (self.places_below(), self.engine.core.say_failures()),
        };
        tracing::debug!(shard = self.me, "{}", self.engine.core.explain());
        tracing::error!(
            shard = self.me,
            "{place}: not everything could be made durable: {why}. What was acknowledged is safe as after a \
             crash; the next start recovers"
        );
    }

    /// Where there was no room: the file, or the device.
    fn full_place(&self) -> String {
        let file = self.engine.medium.full_file();
        file.map_or_else(|| self.places_below(), |file| file.display().to_string())
    }

    /// Where the bytes of the device lie.
    fn places_below(&self) -> String {
        let (device, fast) = &self.shared.places;
        match self.engine.medium.geometry().is_tiered() {
            true => format!("{device} (fast tier: {fast})"),
            false => device.clone(),
        }
    }
}

/// What is said while there is none, with the mend.
pub const NO_ROOM: &str = "the file system or disk below is full: writes that need room are refused, and \
                           reads go on; make room there, and writes are taken again";
