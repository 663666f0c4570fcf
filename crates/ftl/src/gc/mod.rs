//! Making space: which band is emptied, what is moved, and for which other reasons.

pub(crate) mod on_request;
pub(crate) mod pacing;
pub(crate) mod poison;
pub(crate) mod reclaim;
