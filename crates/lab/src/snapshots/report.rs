//! What explorations of snapshots covered.

/// What an exploration covered.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SnapshotReport {
    /// Moments at which the power was cut.
    pub cuts: u64,
    /// Images that were recovered and read whole.
    pub images: u64,
    /// Of these, those that lived on, and were cut again and again.
    pub lived_on: u64,
    /// Snapshots that were taken, and that were given up, durably.
    pub taken: u64,
    /// See above.
    pub dropped: u64,
    /// Clones that were made, and that were given up.
    pub cloned: u64,
    /// See above.
    pub clones_dropped: u64,
    /// Snapshots that were not acknowledged, or were being given up, and that a recovery found, or did not.
    pub doubtful_there: u64,
    /// See above.
    pub doubtful_gone: u64,
    /// Blocks that snapshots were read for.
    pub blocks_read: u64,
    /// Writes that were refused because snapshots held too much.
    pub refused: u64,
    /// Snapshots for which there was no room.
    pub no_room: u64,
}

impl SnapshotReport {
    /// Adds what another exploration covered.
    pub fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.images += other.images;
        self.lived_on += other.lived_on;
        self.taken += other.taken;
        self.dropped += other.dropped;
        self.cloned += other.cloned;
        self.clones_dropped += other.clones_dropped;
        self.doubtful_there += other.doubtful_there;
        self.doubtful_gone += other.doubtful_gone;
        self.blocks_read += other.blocks_read;
        self.refused += other.refused;
        self.no_room += other.no_room;
    }
}

/// What rotted of a device with snapshots, and what came of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SnapshotRotReport {
    /// Single pages of the checkpoint that rotted without a trace.
    pub single: u64,
    /// Images of which more rotted than parity makes up for.
    pub many: u64,
    /// Blocks of snapshots that could not be read then.
    pub unreadable: u64,
}
