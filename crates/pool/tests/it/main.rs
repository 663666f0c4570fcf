//! Tests of the parts of the pool together, by seeds: beside obviously right models, and over emulated media.

mod cases;
mod client;
mod control;
mod controller;
mod disks;
mod node;
mod nodes;
mod opening;
mod plane;
mod raw;
mod repair;
mod whole;
