//! What there is no room for below: a file system that is full refuses writes, which clients are told one by
//! one, and the owner by a warning in the log and in the status.

use super::Shard;
use crate::rated::Rated;
use flash::{Instant, SECOND};

/// What is programmed so long after a refusal was begun after it: others may have found room elsewhere.
const QUIET_NS: u64 = SECOND;

/// What is remembered of it, by a shard or the node of a pool.
#[derive(Debug, Default)]
pub struct Room {
    /// There is none.
    pub(super) lacks: bool,
    /// When that was last found.
    refused_at: Option<Instant>,
    /// What was programmed by the last look within a second of that.
    programmed: u64,
    warnings: Rated,
    /// The log tells that there is none.
    told: bool,
}

/// What a look at it has found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RoomFound {
    /// There was none just now. The log is to tell so with the number of warnings that it left out, unless it has told.
    Refused(Option<u64>),
    /// There is room again, and whether the log had told that there was none.
    Again(bool),
}

impl Room {
    /// Looks when something was last refused, and how much was programmed by now.
    pub fn look(
        &mut self,
        now: Instant,
        refused_at: Instant,
        programmed: u64,
    ) -> Option<RoomFound> {
        let is_new = self.refused_at != Some(refused_at);
        if is_new {
            (self.refused_at, self.lacks) = (Some(refused_at), true);
        }
        if !self.lacks {
            return None;
        }
        if now < refused_at + QUIET_NS {
            self.programmed = programmed;
        } else if !is_new && programmed > self.programmed {
            self.lacks = false;
            return Some(RoomFound::Again(std::mem::take(&mut self.told)));
        }
        is_new.then(|| RoomFound::Refused(self.warning(now)))
    }

    fn warning(&mut self, now: Instant) -> Option<u64> {
        let left_out = if self.told { None } else { self.warnings.admit(now) };
        self.told |= left_out.is_some();
        left_out
    }
}

/// A refusal so long ago is the reason of what failed now.
const RECENT_NS: u64 = 10 * SECOND;

impl Shard {
    /// Logs that there is no room below, at a bounded rate, and that there is room again.
    pub(super) fn log_room(&mut self, now: Instant) {
        let core = &self.engine.core;
        let Some(refused_at) = core.room_refused_at() else { return };
        match self.room.look(now, refused_at, core.slots_programmed()) {
            Some(RoomFound::Refused(warning)) => {
                let place = self.full_place();
                self.shared.note_room(self.me, Some(format!("{place}: {NO_ROOM}")));
                if let Some(more) = warning {
                    tracing::warn!(shard = self.me, more, "{place}: {NO_ROOM}");
                }
            }
            Some(RoomFound::Again(told)) => {
                self.shared.note_room(self.me, None);
                if told {
                    let place = self.places_below();
                    tracing::warn!(shard = self.me, "{place}: {ROOM_AGAIN}");
                }
            }
            None => {}
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

/// What is said when there is room again.
pub const ROOM_AGAIN: &str = "there is room again: writes are taken";
