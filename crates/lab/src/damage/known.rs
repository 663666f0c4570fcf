//! Classes of failures that are known and not mended yet, each with its reason. Whatever is not of one of
//! them ends a run, and so do panics, hangs, and blocks that read as another block or another device's.

use super::kinds::{Moment, SlotKind};
use std::collections::BTreeMap;

/// A failure.
pub struct Failed<'a> {
    /// When the damage was done.
    pub moment: Moment,
    /// What the damaged slots were.
    pub touched: &'a [SlotKind],
    /// What is wrong.
    pub why: &'a str,
}

impl Failed<'_> {
    /// A block shows an older version, or zeroes.
    fn is_stale(&self) -> bool {
        let own = !self.why.contains("which is not this block's");
        self.why.contains("reads as") && own || self.why.contains("torn apart")
    }

    fn touches_checkpoint(&self) -> bool {
        self.touched.iter().any(|kind| kind.is_of_checkpoint())
    }
}

/// A class of failures.
pub struct Known {
    /// What is wrong.
    pub reason: &'static str,
    /// More of so many images than this are another failure, which the class would hide.
    pub of_100_000_max: u64,
    /// Whether a failure is of this class.
    pub holds: fn(&Failed<'_>) -> bool,
}

/// Fewer images tell nothing of how often a class of failures is met.
const IMAGES_MIN: u64 = 1000;

/// The classes that `count` images of one matrix met more often than they may.
pub fn beyond(known: &BTreeMap<&'static str, u64>, count: u64) -> Option<String> {
    let classes = KNOWN.iter().chain(KNOWN_OF_RAW);
    let mut over = classes.filter_map(|class| {
        let met = known.get(class.reason).copied().unwrap_or(0);
        let most = class.of_100_000_max * count / 100_000;
        (count >= IMAGES_MIN && met > most).then_some((met, most, class.reason))
    });
    over.next().map(|(met, most, reason)| {
        format!("{met} of {count} images, where at most {most} are known to fail so: {reason}")
    })
}

/// Of block devices.
pub const KNOWN: &[Known] = &[
    Known {
        reason: "a checkpoint that reads as one which a power cut has stopped is gone by, and records that it \
                 had covered may be gone",
        of_100_000_max: 300,
        holds: |failed| failed.is_stale() && failed.touches_checkpoint(),
    },
    Known {
        reason: "what was written in the last moments before a power cut is vouched for by nobody yet, and \
                 is taken for torn where it is damaged",
        of_100_000_max: 900,
        holds: |failed| failed.is_stale() && failed.moment != Moment::Stopped,
    },
    Known {
        reason: "on a file a page of an earlier life that comes back behind the end of a band counts again",
        of_100_000_max: 20,
        holds: |failed| failed.is_stale() && failed.touched.contains(&SlotKind::Blank),
    },
    Known {
        reason: "a first root record that reads as erased, or as what was there before, hides the second \
                 one: an older checkpoint is gone by, and nobody says so",
        of_100_000_max: 200,
        holds: |failed| {
            failed.why.contains("nobody says so") && failed.touched.contains(&SlotKind::Root)
        },
    },
];

/// Of raw units.
pub const KNOWN_OF_RAW: &[Known] = &[Known {
    reason: "after a power cut a page that was written last and looks torn, or a block that cannot be read \
             at all and looks half erased, reads as not written: nothing on flash tells them from damage",
    of_100_000_max: 9_000,
    holds: |failed| {
        let cut = matches!(failed.moment, Moment::Cut | Moment::Recovery);
        cut && failed.touched == [SlotKind::RawData] && failed.why.contains("reads as zeroes")
    },
}];
