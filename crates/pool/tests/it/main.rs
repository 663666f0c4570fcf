//! Tests of the pool's parts together, by seeds.

mod controller;
