//! How far repair has come, for people.

use super::{Apart, Repair, Round};
use flash::{Instant, SECOND};

/// How far repair has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bands with too few copies.
    pub lacking: u64,
    /// Bands on nodes that are drained.
    pub draining: u64,
    /// Bands that move to spread.
    pub spreading: u64,
    /// Of the lacking ones, those of which no copy can be reached, or for which no node has room.
    pub stuck: u64,
    /// Copies under way, and those that are about to be made in the place of a damaged one.
    pub copying: u64,
    /// Copies made.
    pub copied: u64,
    /// Bytes that are still to be copied.
    pub bytes_left: u64,
    /// How long that takes at the pace of now; `None` if nothing goes on.
    pub left_ns: Option<u64>,
    /// Pages that scrub compared, and whole rounds.
    pub scrubbed: (u64, u64),
    /// What its last whole round found, and what the one under way has so far.
    pub found: (Round, Round),
    /// Bands with a damaged copy that it found, and which has not been replaced yet.
    pub damaged: u64,
    /// All is repaired that its rounds up to this one found, and whatever else lacked a copy.
    pub mended_rounds: u64,
    /// How far nodes are from being filled alike.
    pub apart: Option<Apart>,
    /// Nodes that are away, but not for long enough to copy what they have.
    pub away: u64,
    /// All bands were looked at since the volume was opened; else the numbers of bands are too small.
    pub is_counted: bool,
}

impl<D> Repair<D> {
    /// How far it has come.
    pub fn progress(&self, now: Instant) -> Progress {
        let tally = self.scan.last;
        let bytes_left = tally.pages * self.page_bytes();
        let elapsed = self.copied.since.map_or(0, |since| now - since);
        let pace = match elapsed {
            0..SECOND => self.config.bytes_per_s_max,
            _ => (u128::from(self.copied.bytes) * u128::from(SECOND) / u128::from(elapsed)) as u64,
        };
        let left_ns = u128::from(bytes_left) * u128::from(SECOND) / u128::from(pace.max(1));
        Progress {
            lacking: tally.lacking,
            draining: tally.draining,
            spreading: tally.spreading,
            stuck: tally.stuck,
            copying: (self.jobs.len() + self.places.len()) as u64,
            copied: self.copied.bands,
            bytes_left,
            left_ns: (!self.jobs.is_empty()).then(|| u64::try_from(left_ns).unwrap_or(u64::MAX)),
            scrubbed: (self.scrub.pages_done, self.scrub.rounds_done),
            found: (self.scrub.last, self.scrub.round),
            damaged: self.damaged.len() as u64,
            mended_rounds: self.scan.mended,
            apart: self.nodes.apart(),
            away: self.nodes.away(),
            is_counted: self.scan.is_counted,
        }
    }
}
