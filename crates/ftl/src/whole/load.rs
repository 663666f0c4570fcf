//! Puts the policies of a profile in charge, see [`crate::policy::profile`].
//!
//! Invariants:
//! - a decision that somebody named a policy for is his: a profile leaves it alone until a profile is
//!   chosen anew;
//! - what a profile changes is recorded as any switch is, with the load that was seen.

use crate::policy::profile::{Load, Seen};
use crate::policy::stream::Shape;
use crate::policy::{Chosen, PolicyNames};
use crate::whole::Ftl;
use crate::whole::switch::PolicyChange;
use flash::MILLISECOND;

/// Events between two looks at the load, less one: a small request is two or three.
const WINDOW_MASK: u64 = (1 << 14) - 1;

/// The read service level of read-mostly loads, where the settings say none.
const READ_MOSTLY_SLO_NS: u64 = 5 * MILLISECOND;

/// What a profile has to know beside itself.
#[derive(Debug, Default)]
pub(crate) struct Profiled {
    /// Decisions that are not the profile's.
    named: Vec<&'static str>,
    /// As the settings say.
    read_slo_ns: u64,
    /// All that was seen when the window began.
    seen: Seen,
}

impl Ftl {
    /// What the settings say becomes the ground that profiles work on.
    pub(crate) fn set_up_profile(&mut self) {
        let defaults = PolicyNames::default();
        let names = &self.settings.policies;
        let decisions = Load::Mixed.policies().map(|(decision, _)| decision);
        let named = decisions.into_iter().filter(|of| names.of(of) != defaults.of(of)).collect();
        let read_slo_ns = self.settings.read_slo_ns;
        self.profiled = Profiled { named, read_slo_ns, seen: Seen::default() };
        self.serve_load("the settings");
    }

    /// A policy was named for `decision` by somebody else than the profile.
    pub(crate) fn note_named(&mut self, decision: &str) {
        let of_profiles = Load::Mixed.policies().map(|(known, _)| known);
        let known = of_profiles.into_iter().find(|&known| known == decision);
        self.profiled.named.extend(known.filter(|known| !self.profiled.named.contains(known)));
    }

    /// A profile was chosen: everything is its own from now on.
    pub(crate) fn profile_chosen(&mut self, by: &str) {
        self.profiled.named.clear();
        self.profiled.seen = self.seen();
        self.serve_load(by);
    }

    /// Looks at the load once in a while, if the profile wants that.
    #[inline]
    pub(crate) fn observe_load(&mut self) {
        if self.events & WINDOW_MASK == 0 && self.policies.profile.is_automatic() {
            self.end_window();
        }
    }

    fn end_window(&mut self) {
        let (before, now) = (self.profiled.seen, self.seen());
        let window = Seen {
            reads: now.reads - before.reads,
            writes: now.writes - before.writes,
            blocks_written: now.blocks_written - before.blocks_written,
        };
        // Large requests are many events each: the window goes on until it holds enough of them.
        if !window.is_telling() {
            return;
        }
        self.profiled.seen = now;
        if self.policies.profile.observe(&window).is_some() {
            let percent = 100 * window.reads / (window.reads + window.writes).max(1);
            let blocks = window.blocks_written as f64 / window.writes.max(1) as f64;
            let kib = blocks * (flash::BLOCK_BYTES / 1024) as f64;
            self.serve_load(&format!("auto: {percent} % reads, writes of {kib:.1} KiB"));
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            reads: self.counters.host_reads,
            writes: self.counters.host_writes,
            blocks_written: self.counters.host_blocks_written,
        }
    }

    /// Puts what the profile wants in charge.
    fn serve_load(&mut self, why: &str) {
        let load = self.policies.profile.load();
        if let Some(load) = load {
            self.put_policies_of(load, why);
        }
        self.settings.read_slo_ns = match (self.profiled.read_slo_ns, load) {
            (0, Some(Load::ReadMostly)) => READ_MOSTLY_SLO_NS,
            (asked, _) => asked,
        };
        self.units.set_read_slo(self.settings.read_slo_ns);
        // Who found no room asks again: a service level bounds the queues.
        self.room_changes += 1;
        self.stirred = true;
    }

    fn put_policies_of(&mut self, load: Load, why: &str) {
        for (decision, to) in load.policies() {
            let from = self.policies.names.of(decision).to_owned();
            if from == to || self.profiled.named.contains(&decision) {
                continue;
            }
            let chosen = Chosen::by_name(decision, to, Shape { blocks: 1, handles: 1 });
            self.policies.put(to, chosen.expect("a profile names policies that there are"));
            self.counters.policy_switches += 1;
            self.switches.note(PolicyChange {
                at: self.now,
                decision: decision.into(),
                from,
                to: to.into(),
                why: format!("profile {}, {why}", load.name()),
            });
        }
    }
}
