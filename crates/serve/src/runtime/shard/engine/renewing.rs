//! A core that is made anew, over a medium that has another shape from its next opening on: the volume of a pool that
//! has grown. What comes meanwhile is held, and begun when the next core is there; clients notice a pause.
//!
//! Invariants:
//! - the old core has ended all, durably, before what is below it is given back: else what was acknowledged and not
//!   made durable might be gone, and the clients would go on;
//! - nothing is asked of a core between the two.

use super::{AnyCore, Engine, Milestone, Piece};
use flash::{Instant, Lba, SECOND};
use ftl::{Input, MountError, MountReport};
use std::collections::VecDeque;

/// What is under way may take so long; if it does, it is tried again later.
const DRAIN_NS: u64 = 5 * SECOND;
const AGAIN_NS: u64 = 30 * SECOND;

/// See the head of this file.
#[derive(Default)]
pub(super) struct Renewing {
    stage: Stage,
    /// With when they came.
    held: VecDeque<(Instant, Piece)>,
    /// Not before then.
    not_before: Option<Instant>,
    /// The server stops: there is no other core any more.
    stops: bool,
    /// The core has to be told once it is mounted.
    stop_due: bool,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    /// There is a core, and it works.
    #[default]
    No,
    /// What was begun is to end, until then.
    Draining(Instant),
    /// The core makes everything durable.
    Stopping,
    /// What is below is opened.
    Opening,
    /// The next core mounts, and has to have so many logical blocks.
    Mounting(u32),
}

impl Engine {
    /// Holds a piece, if none is begun now.
    pub(super) fn hold(&mut self, piece: Piece) -> Option<Piece> {
        if self.renewing.stage == Stage::No {
            return Some(piece);
        }
        self.renewing.held.push_back((self.now, piece));
        None
    }

    /// Goes on with what is under way, or begins it if the medium wants it.
    pub(super) fn renew(&mut self, now: Instant) {
        match self.renewing.stage {
            Stage::No if self.renewing.stops => {
                if std::mem::take(&mut self.renewing.stop_due) {
                    self.core.handle(now, Input::Shutdown);
                }
            }
            Stage::No => {
                let due = self.renewing.not_before.is_none_or(|at| now >= at);
                if due && self.is_to_be_renewed() {
                    tracing::info!("the volume has grown: it is opened anew, and requests wait");
                    self.renewing.stage = Stage::Draining(now + DRAIN_NS);
                    self.renew(now);
                }
            }
            Stage::Draining(_) if self.has_ended_all() => {
                self.renewing.stage = Stage::Stopping;
                self.core.handle(now, Input::Shutdown);
            }
            Stage::Draining(until) if now >= until => {
                tracing::warn!("requests take long: the volume is opened anew later");
                self.renewing.not_before = Some(now + AGAIN_NS);
                self.go_on();
            }
            Stage::Draining(_) | Stage::Stopping | Stage::Mounting(_) => {}
            Stage::Opening => {
                let Some(settings) = self.medium.reopened() else { return };
                let blocks = settings.blocks_min();
                self.medium.begin_mount();
                let (geometry, health) = (*self.medium.geometry(), self.medium.health());
                match AnyCore::start(geometry, &health, None, settings) {
                    Ok(core) => {
                        self.core = core;
                        self.renewing.stage = Stage::Mounting(blocks);
                    }
                    Err(reason) => self.medium.unmounted(&reason),
                }
            }
        }
    }

    fn is_to_be_renewed(&self) -> bool {
        self.medium.is_outgrown() && !self.core.has_failed() && !self.medium.fenced()
    }

    fn has_ended_all(&self) -> bool {
        let told = self.unvouched.is_empty() && self.held.is_empty() && self.finished.is_empty();
        told && self.active.is_empty() && self.parked.is_empty()
    }

    /// The core has stopped, with everything durable or not. Returns whether that is for others to know.
    pub(super) fn stopped(&mut self, now: Instant, durable: bool) -> bool {
        if self.renewing.stage != Stage::Stopping || self.renewing.stops || !durable {
            return true;
        }
        self.medium.reopen(now);
        self.renewing.stage = Stage::Opening;
        false
    }

    /// The core has mounted, or not.
    pub(super) fn mounted(&mut self, result: &Result<MountReport, MountError>) {
        let Stage::Mounting(blocks) = self.renewing.stage else { return };
        match result {
            Ok(report) if report.logical_blocks >= blocks => {
                tracing::info!(blocks = report.logical_blocks, "the volume is open again");
                self.go_on();
            }
            Ok(report) => {
                let found = report.logical_blocks;
                self.medium.unmounted(&format!("it has {found} blocks and not {blocks}"));
            }
            Err(error) => self.medium.unmounted(&error.to_string()),
        }
    }

    fn go_on(&mut self) {
        self.renewing.stage = Stage::No;
        for (came, piece) in std::mem::take(&mut self.renewing.held) {
            self.take(came, piece);
        }
    }

    /// Whether `lba` holds data, and how many of at most `blocks` blocks from there are alike. While no core is
    /// there that knows, all may.
    pub fn mapped_run(&self, lba: Lba, blocks: u32) -> (bool, u32) {
        match self.renewing.stage {
            Stage::Opening | Stage::Mounting(_) => (true, blocks),
            _ => self.core.mapped_run(lba, blocks),
        }
    }

    /// The core is to finish what was accepted, make everything durable and stop.
    pub fn shut_down(&mut self, now: Instant) {
        self.renewing.stops = true;
        match self.renewing.stage {
            Stage::No | Stage::Draining(_) => self.core.handle(now, Input::Shutdown),
            Stage::Stopping => {}
            Stage::Mounting(_) => self.renewing.stop_due = true,
            // There is none, and the last one made everything durable.
            Stage::Opening => self.milestones.push_back(Milestone::Stopped(true)),
        }
    }

    /// When to look again.
    pub(super) fn renewing_deadline(&self) -> Option<Instant> {
        match self.renewing.stage {
            Stage::Draining(until) => Some(until),
            Stage::No if self.renewing.stop_due => Some(Instant(0)),
            Stage::No if !self.renewing.stops && self.is_to_be_renewed() => {
                Some(self.renewing.not_before.unwrap_or(Instant(0)))
            }
            _ => None,
        }
    }
}
