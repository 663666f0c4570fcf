//! Why a volume is not opened, and what to do about it.

use crate::control::ownership::OwnershipError;
use crate::control::values::{FORMAT, ValueError};
use crate::words::{BandName, Generation, NodeId, PoolId};
use std::fmt;

/// Why a volume was not opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OpeningError {
    /// The control plane is another pool's, or none's.
    Pool(Option<PoolId>),
    /// The control plane is kept in a format that this version does not know.
    Format(u16),
    /// The pool has no such volume.
    NoVolume,
    /// The volume is being deleted: some of what is on record of it is gone.
    Deleted,
    /// A key of the plane holds something else.
    Value {
        /// Which.
        key: String,
        /// What.
        error: ValueError,
    },
    /// Its owner cannot be told, or changed.
    Ownership(OwnershipError),
    /// Another one has opened it meanwhile.
    Overtaken {
        /// As which generation.
        by: Generation,
    },
    /// A node has heard of a generation that the plane knows nothing of.
    PlaneOld {
        /// Which node.
        node: NodeId,
        /// Which generation.
        highest: Generation,
    },
    /// A node has a band that was begun later than all that the plane knows of.
    PlaneBehind {
        /// Which node.
        node: NodeId,
        /// Which life of which band.
        band: BandName,
    },
}

impl fmt::Display for OpeningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(None) => {
                f.write_str("the control plane holds no pool: name the right one, or make the pool")
            }
            Self::Pool(Some(pool)) => {
                write!(f, "the control plane is that of pool {:032x}: name this pool's", pool.0)
            }
            Self::Format(format) => {
                write!(
                    f,
                    "the control plane has format {format}, this version knows {FORMAT}: update it"
                )
            }
            Self::NoVolume => f.write_str("there is no such volume: list them, or create it"),
            Self::Deleted => f.write_str(
                "the volume is being deleted: `weir pool volume delete` ends what was begun",
            ),
            Self::Value { key, error } => write!(f, "key {key} of the control plane {error}"),
            Self::Ownership(error) => error.fmt(f),
            Self::Overtaken { by } => write!(
                f,
                "another client has opened the volume as generation {}: end one of the two",
                by.0
            ),
            Self::PlaneOld { node, highest } => write!(
                f,
                "node {} has served generation {}, of which the control plane knows nothing: it was \
                 wiped or restored from an old backup. Restore its newest state; no band was changed. If this is its \
                 newest state, and an older one was used meanwhile, try again: each try comes one generation nearer, and \
                 bands that were begun by the other are still refused",
                node.0, highest.0
            ),
            Self::PlaneBehind { node, band } => write!(
                f,
                "node {} has life {:x} of band {}, of which the control plane knows nothing: it was restored from \
                 an older backup. Restore its newest state; no band was changed. If this is its newest state, somebody else \
                 wrote to a volume of this number while an older one was used, and whoever needs nothing of either deletes it \
                 (`weir pool volume delete NAME --force`) and creates it again",
                node.0, band.life, band.band
            ),
        }
    }
}
