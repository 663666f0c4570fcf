//! Tests of the pool's parts over emulated media and models.

mod disks;
mod node;
mod raw;
