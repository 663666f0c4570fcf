//! How the control plane is asked, whatever keeps it: etcd or [`super::embedded`].
//!
//! - A key is a short text, a value a few bytes. A change of either raises the *revision* of the plane by one, and
//!   each key remembers the revision that it was last put at; a key that is not there has revision 0.
//! - A commit compares revisions of keys and, if all fit, changes several keys at once. What is answered as
//!   committed is durable, and every answer after it shows it (linearizable).
//! - A commit that is refused as [`PlaneRefusal::Unavailable`], or never answered, may have happened or happen
//!   later. So whoever commits names a revision that its own commit changes, and looks before it tries again.
//! - Keys put under a lease go when it ends: it was revoked or not kept alive in time. A plane that starts anew
//!   gives every lease its whole time again.

use std::fmt;

/// Pairs an answer with what was asked, for one client of the plane. The upper 8 bits say which part of that
/// client asked ([`PlaneAskId::of_part`]).
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct PlaneAskId(pub u64);

/// The parts of a client that ask the plane, each with numbers of its own.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Part {
    /// [`super::ownership`].
    Ownership = 1,
    /// [`super::registry`].
    Registry = 2,
    /// [`crate::opening`].
    Opening = 3,
    /// [`super::election`].
    Election = 4,
    /// [`super::follow`], of nodes.
    Nodes = 5,
    /// [`super::follow::WeightsFeed`].
    Weights = 6,
    /// [`super::follow`], of the controller.
    Controller = 7,
    /// [`crate::session`].
    Session = 8,
    /// [`super::deletions`].
    Deletions = 9,
}

impl PlaneAskId {
    /// The `number`th ask of a part.
    pub fn of_part(part: Part, number: u64) -> Self {
        Self((part as u64) << 56 | number)
    }
}

/// A lease of the plane.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct LeaseId(pub u64);

/// What a key holds.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Kept {
    /// The bytes ([`super::values`]).
    pub value: Vec<u8>,
    /// When they were put.
    pub revision: u64,
}

/// The key was last put at this revision; 0: it is not there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Check {
    /// Which.
    pub key: String,
    /// As the caller last saw it.
    pub revision: u64,
}

/// One change of a commit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// The key holds `value` from now on.
    Put {
        /// Which.
        key: String,
        /// Its bytes.
        value: Vec<u8>,
        /// It goes when this ends.
        lease: Option<LeaseId>,
    },
    /// The key is gone, if it was there.
    Delete {
        /// Which.
        key: String,
    },
}

impl Change {
    /// Which key changes.
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Something that is wanted of the plane.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PlaneAsk {
    /// What does a key hold?
    Get {
        /// Which.
        key: String,
    },
    /// The keys `from..to`, in order.
    Range {
        /// The first, if it is there.
        from: String,
        /// Behind the last.
        to: String,
        /// At most so many; at most [`RANGE_MAX`].
        limit: u32,
    },
    /// Change keys, if all checks hold. Without changes: do the checks hold now?
    Commit {
        /// All of these, at once with the changes.
        checks: Vec<Check>,
        /// Different keys.
        changes: Vec<Change>,
    },
    /// Tell of every change of the keys `from..to` behind a revision, until [`PlaneAsk::Unwatch`].
    Watch {
        /// The first.
        from: String,
        /// Behind the last.
        to: String,
        /// Changes of this revision are known.
        since: u64,
    },
    /// No more of it.
    Unwatch {
        /// The ask that began it.
        watch: PlaneAskId,
    },
    /// Give out a lease.
    Grant {
        /// It ends so long after it was last kept alive.
        ttl_ns: u64,
    },
    /// The holder lives.
    Keep {
        /// Of which lease.
        lease: LeaseId,
    },
    /// The lease ends now.
    Revoke {
        /// Which.
        lease: LeaseId,
    },
}

/// The answer to a [`PlaneAsk`], or one more change for a watch.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum PlaneAnswer {
    /// Of a get.
    Value {
        /// `None`: the key is not there.
        kept: Option<Kept>,
        /// Of the plane.
        revision: u64,
    },
    /// Of a range.
    Values {
        /// In the order of keys.
        kept: Vec<(String, Kept)>,
        /// There are more: ask again behind the last.
        more: bool,
        /// Of the plane.
        revision: u64,
    },
    /// Of a commit whose checks held; the revision of what it put.
    Committed {
        /// Of the plane, after it.
        revision: u64,
    },
    /// Of a commit of which a check did not hold: nothing was changed.
    NotCommitted {
        /// What the checked keys hold, in the order of the checks.
        found: Vec<Option<Kept>>,
    },
    /// Of a watch: changes follow, each an answer to the same ask.
    Watching,
    /// For a watch: one revision.
    Changed {
        /// What the keys hold now.
        changes: Vec<(String, Option<Kept>)>,
        /// Of the plane, after it.
        revision: u64,
    },
    /// Of a watch, or in its midst: changes since then are not known any more. Read the keys, then watch anew.
    Forgotten,
    /// Of a grant or a keep.
    Lease {
        /// Which.
        lease: LeaseId,
        /// Its time, from when it was asked at the earliest.
        ttl_ns: u64,
    },
    /// Of a keep, a revoke, or a commit that puts under a lease: that lease has ended.
    NoLease,
    /// Of an unwatch or a revoke.
    Done,
    /// Not done, or not known whether.
    Refused(PlaneRefusal),
}

/// Why the plane did not do what it was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlaneRefusal {
    /// A key or value too long, too many checks or changes, or a key twice.
    Invalid,
    /// The plane keeps no more.
    Full,
    /// The plane cannot be reached, or did not say in time. A commit may have happened.
    Unavailable,
}

impl fmt::Display for PlaneRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "the control plane takes no such request",
            Self::Full => "the control plane is full: remove nodes or volumes that are not used",
            Self::Unavailable => "the control plane cannot be reached",
        })
    }
}

/// Most bytes of a key.
pub const KEY_BYTES_MAX: usize = 96;
/// Most bytes of a value: weights of some 4,000 nodes.
pub const VALUE_BYTES_MAX: usize = 128 << 10;
/// Most checks, and most changes, of a commit: etcd's own default.
pub const CHANGES_MAX: usize = 128;
/// Most keys of one answer.
pub const RANGE_MAX: u32 = 1024;

/// Whether a commit is within its bounds.
pub fn commit_is_valid(checks: &[Check], changes: &[Change]) -> bool {
    let fits = |key: &str| !key.is_empty() && key.len() <= KEY_BYTES_MAX;
    let twice = (1..changes.len())
        .any(|at| changes[..at].iter().any(|other| other.key() == changes[at].key()));
    let small = |change: &Change| match change {
        Change::Put { value, .. } => value.len() <= VALUE_BYTES_MAX,
        Change::Delete { .. } => true,
    };
    checks.len() <= CHANGES_MAX
        && changes.len() <= CHANGES_MAX
        && checks.iter().all(|check| fits(&check.key))
        && changes.iter().all(|change| fits(change.key()) && small(change))
        && !twice
}
