//! Switching policies while the FTL runs, and replacing those that break.
//!
//! Invariants:
//! - a switch is complete when the call returns: the next decision is the new policy's;
//! - a switch that is refused has changed nothing;
//! - every switch is kept in a bounded list, with who asked for it or why it was necessary.

use crate::map::volumes::Mapping;
use crate::policy::stream::{Shape, StreamPolicy};
use crate::policy::{Chosen, DECISIONS, Fault, FaultKind, PolicyNames};
use crate::whole::Ftl;
use flash::Instant;
use std::collections::VecDeque;

/// Switches that are remembered.
const SWITCHES_MAX: usize = 32;

/// A policy to be put in charge.
#[derive(Debug)]
pub struct Switch<'a> {
    /// When: an FTL with nothing to do does not know how late it is.
    pub now: Instant,
    /// "victim", "wear", "erase", "unit", "profile", "stream" for all volumes, "stream/N" for the Nth of
    /// [`crate::config::Settings::volumes`], "mapping" for all, or "mapping/N" for the Nth of
    /// [`crate::config::Settings::map_volumes`].
    pub decision: &'a str,
    /// What it is called from now on.
    pub name: &'a str,
    /// Who asks, for the record.
    pub by: &'a str,
    /// The policy: one, for "stream" one for each of [`Ftl::stream_shapes`], for "mapping" none.
    pub chosen: Vec<Chosen>,
}

/// A switch that took place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyChange {
    /// When.
    pub at: Instant,
    /// What is decided.
    pub decision: String,
    /// Who decided it until then.
    pub from: String,
    /// Who does since.
    pub to: String,
    /// Who asked for it, or how `from` broke.
    pub why: String,
}

/// What is known of switches.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    recent: VecDeque<PolicyChange>,
    /// A policy that may break is in charge of something.
    pub watched: bool,
    /// What is left to do of switches of mappings.
    pub mapping: Mapping,
}

impl Switches {
    pub fn recent(&self) -> Vec<PolicyChange> {
        self.recent.iter().cloned().collect()
    }

    pub fn note(&mut self, change: PolicyChange) {
        if self.recent.len() == SWITCHES_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(change);
    }
}

impl Ftl {
    /// Puts the built-in policy `name` in charge of `decision`, see [`Switch`]. Drain
    /// [`Ftl::poll`] after it.
    ///
    /// # Errors
    /// An unknown decision, name or parameter: says what there is.
    pub fn set_policy(&mut self, decision: &str, name: &str) -> Result<(), String> {
        let shapes = self.stream_shapes(decision)?;
        let kind = decision.split('/').next().unwrap_or(decision);
        let chosen = shapes.iter().map(|&shape| Chosen::by_name(kind, name, shape));
        let chosen = chosen.collect::<Result<_, _>>()?;
        let by = "the program";
        self.switch_policy(Switch { now: self.now, decision, name, by, chosen })?;
        if kind == MAPPING {
            return Ok(());
        }
        // The end of a mount makes stream policies anew, by what the settings say.
        match self.stream_index(decision)? {
            Some(index) => self.settings.volumes[index].stream = name.into(),
            None => *self.settings.policies.of_mut(kind) = name.into(),
        }
        if decision == "stream" {
            self.settings.volumes.iter_mut().for_each(|volume| volume.stream = name.into());
        }
        Ok(())
    }

    /// Puts a stream policy of the caller's own in charge of all that has none by
    /// [`crate::config::Settings::volumes`]. Not before the mount has ended, which makes those of the
    /// settings.
    pub fn set_stream_policy(&mut self, policy: Box<dyn StreamPolicy>) {
        let last = self.streams.volumes() - 1;
        let name = policy.name();
        self.put_stream(last, name, policy);
        self.counters.policy_switches += 1;
        self.switches.watched = true;
    }

    /// Puts policies in charge that were made elsewhere. Drain [`Ftl::poll`] after it. Returns those
    /// that were in charge: to drop one may take long, as to make one.
    ///
    /// # Errors
    /// No such decision, or not as many policies of that kind as it has: nothing has changed.
    pub fn switch_policy(&mut self, switch: Switch<'_>) -> Result<Vec<Chosen>, String> {
        let Switch { now, decision, name, by, chosen } = switch;
        let wanted = self.stream_shapes(decision)?.len();
        let kind = decision.split('/').next().unwrap_or(decision);
        if chosen.len() != wanted || chosen.iter().any(|one| one.decision() != kind) {
            return Err(format!(
                "{decision} is decided by {wanted} policies of that kind, not by {chosen:?}"
            ));
        }
        if kind == MAPPING {
            let from = self.put_mapping(&Switch { now, decision, name, by, chosen })?;
            self.now = self.now.max(now);
            self.note_switch(decision, from, name, by);
            return Ok(Vec::new());
        }
        let first = self.stream_index(decision)?.unwrap_or(0);
        self.now = self.now.max(now);
        let mut before = Vec::new();
        let mut from = String::new();
        for (index, one) in (first..).zip(chosen) {
            if let Chosen::Stream(policy) = one {
                join(&mut from, self.streams.name(index));
                before.push(Chosen::Stream(self.put_stream(index, name, policy)));
            } else {
                self.policies.names.of(kind).clone_into(&mut from);
                before.push(self.policies.put(name, one));
            }
        }
        self.switches.watched = true;
        self.note_switch(decision, from, name, by);
        match kind {
            "profile" => self.profile_chosen(by),
            _ => self.note_named(kind),
        }
        Ok(before)
    }

    fn note_switch(&mut self, decision: &str, from: String, to: &str, by: &str) {
        self.counters.policy_switches += 1;
        let (decision, to, why) = (decision.into(), to.into(), by.into());
        self.switches.note(PolicyChange { at: self.now, decision, from, to, why });
    }

    /// Whether `name` could be put in charge of `decision`, as far as that can be told before it is made,
    /// and what it is made for: see [`Ftl::stream_shapes`].
    ///
    /// # Errors
    /// No such decision, or why not.
    pub fn check_switch(&self, decision: &str, name: &str) -> Result<Vec<Shape>, String> {
        if is_mapping(decision) {
            self.check_mapping(decision, name)?;
        }
        self.stream_shapes(decision)
    }

    /// What the policies of `decision` are made for: one entry for each that it needs. Only a stream
    /// policy looks at it.
    ///
    /// # Errors
    /// No such decision.
    pub fn stream_shapes(&self, decision: &str) -> Result<Vec<Shape>, String> {
        if is_mapping(decision) {
            return self.mapping_volumes(decision).map(|_| Vec::new());
        }
        let volumes = match self.stream_index(decision)? {
            Some(index) => index..index + 1,
            None if decision == "stream" => 0..self.streams.volumes(),
            None => return Ok(vec![Shape { blocks: 1, handles: self.settings.handles }]),
        };
        Ok(volumes.filter_map(|index| self.shape_of_volume(index)).collect())
    }

    /// Which volume "stream/N" means; `None` for a decision about the whole device.
    fn stream_index(&self, decision: &str) -> Result<Option<usize>, String> {
        match decision.split_once('/') {
            Some(("stream", text)) => {
                let index = text.parse().map_err(|_| format!("{text:?} is no volume's number"))?;
                if index < self.settings.volumes.len() {
                    return Ok(Some(index));
                }
                Err(format!(
                    "volume {index} has no stream policy of its own: {} have; switch \"stream\" \
                     for the whole device, or say `streams` for a volume in the config",
                    self.settings.volumes.len()
                ))
            }
            None if DECISIONS.contains(&decision) => Ok(None),
            _ => Err(crate::policy::unknown_decision(decision)),
        }
    }

    /// Policies that broke and were replaced so far.
    pub fn policies_broken(&self) -> u64 {
        let counters = &self.counters;
        counters.policies_trapped
            + counters.policies_out_of_time
            + counters.policies_out_of_memory
            + counters.policies_out_of_range
    }

    /// The last switch of a policy.
    pub fn last_switch(&self) -> Option<&PolicyChange> {
        self.switches.recent.back()
    }

    /// Puts the defaults in place of policies that broke.
    pub(crate) fn replace_broken(&mut self) {
        let faults = [
            ("victim", self.policies.victim.fault()),
            ("wear", self.policies.wear.fault()),
            ("erase", self.policies.erase.fault()),
            ("unit", self.policies.unit.fault()),
        ];
        for (decision, fault) in faults {
            if let Some(fault) = fault {
                self.replace_one(decision, None, fault);
            }
        }
        for index in 0..self.streams.volumes() {
            if let Some(fault) = self.streams.fault(index) {
                self.replace_one("stream", Some(index), fault);
            }
        }
    }

    fn replace_one(&mut self, decision: &'static str, volume: Option<usize>, fault: Fault) {
        let defaults = PolicyNames::default();
        let to = defaults.of(decision);
        let shape = volume.and_then(|index| self.shape_of_volume(index));
        let shape = shape.unwrap_or(Shape { blocks: 1, handles: 1 });
        let chosen = Chosen::by_name(decision, to, shape).expect("the default exists");
        let from = match (chosen, volume) {
            (Chosen::Stream(policy), Some(index)) => {
                let from = self.streams.name(index).to_owned();
                self.put_stream(index, to, policy);
                from
            }
            (chosen, _) => {
                let from = self.policies.names.of(decision).to_owned();
                self.policies.put(to, chosen);
                from
            }
        };
        *match fault.kind {
            FaultKind::Trapped => &mut self.counters.policies_trapped,
            FaultKind::OutOfTime => &mut self.counters.policies_out_of_time,
            FaultKind::OutOfMemory => &mut self.counters.policies_out_of_memory,
            FaultKind::OutOfRange => &mut self.counters.policies_out_of_range,
        } += 1;
        let own = volume.filter(|&index| index < self.settings.volumes.len());
        let decision = own.map_or(decision.into(), |index| format!("{decision}/{index}"));
        let why = format!("it broke: {}", fault.reason);
        let at = self.now;
        self.switches.note(PolicyChange { at, decision, from, to: to.into(), why });
    }
}

/// The decision that no policy makes.
const MAPPING: &str = "mapping";

fn is_mapping(decision: &str) -> bool {
    decision.split('/').next() == Some(MAPPING)
}

/// Adds `name` to a list in words, once.
pub(crate) fn join(list: &mut String, name: &str) {
    if list.split(", ").any(|other| other == name) {
        return;
    }
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push_str(name);
}
