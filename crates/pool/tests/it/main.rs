//! The pool's state machines against models that are obviously right, with seeds.

mod client;
