//! A policy made outside the FTL and handed over ready, and how it may break. It is made elsewhere
//! because that can take long: tables of a large volume, a module to instantiate.

use super::profile::Profile;
use super::{ErasePolicy, UnitPolicy, VictimPolicy, WearPolicy, stream};
use super::{erase_by_name, unit_by_name, unknown_decision, victim_by_name, wear_by_name};

/// A policy for one decision.
pub enum Chosen {
    /// Which band to reclaim.
    Victim(Box<dyn VictimPolicy>),
    /// Which free band to open.
    Wear(Box<dyn WearPolicy>),
    /// When to erase.
    Erase(Box<dyn ErasePolicy>),
    /// Which unit takes a page.
    Unit(Box<dyn UnitPolicy>),
    /// Which data lives together.
    Stream(Box<dyn stream::StreamPolicy>),
    /// Which set of policies serves the load.
    Profile(Profile),
}

impl Chosen {
    /// The built-in policy `name` for `decision`; a stream policy is made for `shape`.
    ///
    /// # Errors
    /// An unknown decision, name or parameter: says what there is.
    pub fn by_name(decision: &str, name: &str, shape: stream::Shape) -> Result<Self, String> {
        Ok(match decision {
            "victim" => Self::Victim(victim_by_name(name)?),
            "wear" => Self::Wear(wear_by_name(name)?),
            "erase" => Self::Erase(erase_by_name(name)?),
            "unit" => Self::Unit(unit_by_name(name)?),
            "profile" => Self::Profile(Profile::by_name(name)?),
            "stream" => Self::Stream(stream::by_name(name, shape)?),
            _ => return Err(unknown_decision(decision)),
        })
    }

    /// The decision that it is for: one of [`super::DECISIONS`].
    pub fn decision(&self) -> &'static str {
        match self {
            Self::Victim(_) => "victim",
            Self::Wear(_) => "wear",
            Self::Erase(_) => "erase",
            Self::Unit(_) => "unit",
            Self::Stream(_) => "stream",
            Self::Profile(_) => "profile",
        }
    }
}

impl std::fmt::Debug for Chosen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Chosen({})", self.decision())
    }
}

/// Why a policy can decide no more. It is replaced by the default.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Fault {
    /// What it is counted as.
    pub kind: FaultKind,
    /// In words.
    pub reason: String,
}

/// What faults are counted as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FaultKind {
    /// It did what no program may: divided by zero, left its memory, gave up.
    Trapped,
    /// It had not decided when its time was over.
    OutOfTime,
    /// It wanted more memory than it may have, or at the wrong time.
    OutOfMemory,
    /// Its answer was none of those that are possible.
    OutOfRange,
}
