//! What is to be done around a volume that has grown while it was served: its front ends are told, and policies that were
//! switched meanwhile are in charge again, as the core was made anew with those of the config.

use crate::Control;
use crate::policies;
use crate::runtime::shard::CoreStatus;
use ftl::policy::{DECISIONS, PolicyNames};

/// Looks at a volume again and again.
#[derive(Default)]
pub struct Growth {
    /// As they were when it was looked at last.
    policies: Option<PolicyNames>,
}

impl Growth {
    /// Sees to it if the volume has grown since the last look.
    pub fn look(&mut self, control: &Control, status: &CoreStatus) {
        let CoreStatus::Block(of) = status else { return };
        if !matches!(of.phase, "running" | "read-only") {
            return;
        }
        let (blocks, shown) = (status.counter("logical_blocks"), control.volumes().shown());
        if blocks > shown.device_blocks {
            if let Some(before) = &self.policies {
                put_back(control, before, &of.policies);
            }
            control.volumes().grown(blocks);
            return;
        }
        self.policies = Some(of.policies.clone());
    }
}

fn put_back(control: &Control, before: &PolicyNames, now: &PolicyNames) {
    let other = |decision: &&&str| before.of(decision) != now.of(decision);
    // A profile chooses for others, so it comes before they are chosen.
    let (profile, others): (Vec<&str>, Vec<&str>) =
        DECISIONS.iter().filter(other).partition(|decision| **decision == "profile");
    for decision in profile.into_iter().chain(others) {
        let name = before.of(decision);
        if let Err(error) = policies::switch(control, decision, name, "the volume has grown") {
            tracing::warn!(decision, name, %error, "a policy is not in charge again: switch it");
        }
    }
}
