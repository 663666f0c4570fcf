//! When to erase: an erase blocks its unit for milliseconds.

use super::{ErasePolicy, EraseView};

/// As soon as a band is empty: what a drive without any care does.
#[derive(Clone, Copy, Debug)]
pub struct Eager;

impl ErasePolicy for Eager {
    fn name(&self) -> &'static str {
        "eager"
    }

    fn erase_now(&mut self, _: &EraseView) -> bool {
        true
    }
}

/// When the unit had nothing to do for `idle_ns`.
#[derive(Clone, Copy, Debug)]
pub struct Idle;

impl ErasePolicy for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn erase_now(&mut self, view: &EraseView) -> bool {
        view.reads_waiting == 0
            && view.appends_waiting == 0
            && view.now - view.quiet_since >= view.idle_ns
    }
}

/// Never on a unit where a host read waits (TSSD's rule): the read would wait for the erase.
#[derive(Clone, Copy, Debug)]
pub struct ReadFirst;

impl ErasePolicy for ReadFirst {
    fn name(&self) -> &'static str {
        "read-first"
    }

    fn erase_now(&mut self, view: &EraseView) -> bool {
        view.reads_waiting == 0
    }
}

/// Only when the application asks, for it knows its own load (TSSD's erase at the application's
/// time).
#[derive(Clone, Copy, Debug)]
pub struct Asked;

impl ErasePolicy for Asked {
    fn name(&self) -> &'static str {
        "asked"
    }

    fn erase_now(&mut self, view: &EraseView) -> bool {
        view.asked > 0
    }

    fn waits_for_time(&self) -> bool {
        false
    }
}
