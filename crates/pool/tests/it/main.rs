//! The parts of the pool against obvious models, under faults of a seed.

mod cases;
mod control;
mod nodes;
mod opening;
mod repair;
