//! The fast tier: what is destaged and what stays, and how a tier comes and goes.

pub(crate) mod destage;
pub(crate) mod detach;
