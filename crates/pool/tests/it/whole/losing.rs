//! More is lost than copies make up for: two drives of different domains at once. Somebody says to go on without them
//! and to show what was found. What the host reads then was written at some time, or it is told that it cannot be
//! read; what it writes anew is there; and when all of it is, nobody waits for the lost drives any more.

use super::world::{SERVERS, World};
use flash::{MILLISECOND, SECOND};
use pool::words::NodeId;

/// So often a machine that salvages is interrupted.
const INTERRUPTIONS_MAX: u32 = 4;

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Course {
    /// Nothing was lost for good.
    #[default]
    Whole,
    /// A machine reads what is left, and writes all anew.
    Salvaged,
    /// One that was not told to go on waits for what was lost, unless all is written anew by now.
    Waits,
    /// One that was not told to go on has the volume.
    Anew,
    /// Too little was left.
    Gone,
}

impl World {
    /// Ends all machines and loses two drives.
    pub(super) fn lose(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].machine.is_some() {
                self.end(client);
            }
        }
        let domain = |world: &Self, server: usize| world.states[&world.servers[server].id].0;
        let first = self.random.below(SERVERS as u64) as usize;
        let others = (0..SERVERS).filter(|&other| domain(self, other) != domain(self, first));
        let others: Vec<usize> = others.collect();
        let second = others[self.random.below(others.len() as u64) as usize];
        for server in [first, second] {
            self.lost.push(self.servers[server].id);
            self.replace_server(server);
        }
        self.model.lost();
        self.salvage();
    }

    fn salvage(&mut self) {
        self.course = Course::Salvaged;
        self.begin(0);
        let next = self.random.below(2 * SECOND) + MILLISECOND;
        self.chaos_after(next);
    }

    /// The machine that salvages ends anywhere.
    pub(super) fn interrupt(&mut self) {
        match self.course {
            Course::Waits => {
                self.end(0);
                self.salvage();
            }
            Course::Salvaged if self.interruptions < INTERRUPTIONS_MAX => {
                self.interruptions += 1;
                self.end(0);
                if self.random.chance(0.5) {
                    return self.salvage();
                }
                self.course = Course::Waits;
                self.begin(0);
                let next = self.random.below(SECOND) + MILLISECOND;
                self.chaos_after(next);
            }
            _ => {}
        }
    }

    /// All that was to be done is done, and the machine that did it has all copies: what comes next, if anything does.
    pub(super) fn goes_on_after(&mut self, client: usize) -> bool {
        let blocks = self.clients[client].machine.as_ref().map_or(0, |machine| machine.blocks());
        let now = self.time_of(client);
        let Some(machine) = &mut self.clients[client].machine else { return false };
        if machine.rewritten.get_or_insert(0) != &blocks {
            return true;
        }
        if !std::mem::replace(&mut machine.is_sure, true) {
            machine.audit = Some(0);
            return true;
        }
        let said = machine.session.explain(now);
        let needs =
            |node: &NodeId| !said.contains(&format!("needed any more of node {}\n", node.0));
        if !self.lost.iter().any(needs) {
            self.end(client);
            self.course = Course::Anew;
            self.begin(1);
        }
        true
    }
}
