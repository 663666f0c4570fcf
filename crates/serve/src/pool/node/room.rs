//! Room in the file system below a node's drive: that there is none is told in the log, once until there is room
//! again. Clients are refused one by one, and go to other nodes.

use super::drive::Drive;
use crate::backend::Backend;
use crate::runtime::shard::{NO_ROOM, ROOM_AGAIN, Room, RoomFound};
use flash::Instant;

/// What a node remembers of it.
#[derive(Debug)]
pub struct Below {
    /// Where the drive is.
    place: String,
    room: Room,
}

impl Below {
    /// Of a drive that lies there.
    pub fn new(place: String) -> Self {
        Self { place, room: Room::default() }
    }

    /// Logs that there is no room, at a bounded rate, and that there is room again.
    pub fn log(&mut self, now: Instant, drive: &Drive) {
        let units = drive.store().units();
        let Some(refused_at) = units.room_refused_at() else { return };
        match self.room.look(now, refused_at, units.slots_programmed()) {
            Some(RoomFound::Refused(Some(more))) => {
                let file = drive.medium().full_file();
                let place =
                    file.map_or_else(|| self.place.clone(), |file| file.display().to_string());
                tracing::warn!(more, "{place}: {NO_ROOM}");
            }
            Some(RoomFound::Again(true)) => tracing::warn!("{}: {ROOM_AGAIN}", self.place),
            _ => {}
        }
    }
}
