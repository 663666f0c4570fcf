//! The controller of a pool.

pub mod solver;
