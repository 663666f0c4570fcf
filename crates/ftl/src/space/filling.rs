//! What the stream policies are told of a band: by whom and when it was filled.

use crate::policy::stream::Origin;

/// How a band was filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filling {
    /// Of which policy, by the number of its volume.
    pub policy: u32,
    pub origin: Origin,
    /// When it was opened, as a sequence.
    pub opened_at: u64,
    /// With what was kept on the fast tier when its band was reclaimed.
    pub kept: bool,
    /// Of the data in it: the sum of the sequences and the count.
    pub sequences: u64,
    pub slots: u32,
}

impl Default for Filling {
    fn default() -> Self {
        Self {
            policy: 0,
            origin: Origin::Unknown,
            opened_at: 0,
            kept: false,
            sequences: 0,
            slots: 0,
        }
    }
}

impl Filling {
    /// One more slot of data with this sequence.
    #[inline]
    pub fn add(&mut self, sequence: u64) {
        self.sequences += sequence;
        self.slots += 1;
    }

    /// All that recovery knows of a band: the sequence of its first slot.
    pub fn recovered(sequence: u64) -> Self {
        Self { opened_at: sequence, sequences: sequence, slots: 1, ..Self::default() }
    }

    /// When its data was written, on average.
    pub fn written_at(&self) -> u64 {
        self.sequences / u64::from(self.slots.max(1))
    }
}
