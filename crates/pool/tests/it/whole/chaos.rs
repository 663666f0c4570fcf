//! What goes wrong, how it is mended, and what must hold when all has come to rest.

use super::losing::Course;
use super::server::Server;
use super::world::{REPLICAS, SERVERS, World};
use flash::{Instant, MILLISECOND};
use pool::client::directory::{Held, Phase};
use pool::control::values::NodeState;
use pool::message::BandEntry;
use pool::words::{DomainId, NodeId};
use std::collections::BTreeSet;

/// As the volume grows lanes are added to the three that it has.
const LANES_MAX: u32 = 6;

impl World {
    pub(super) fn chaos(&mut self) {
        if self.is_calm {
            return self.interrupt();
        }
        let machines = self.clients.iter().filter_map(|client| client.machine.as_ref());
        let remotes = machines.filter_map(|machine| machine.session.client());
        let late = remotes.map(|remote| remote.counters().late_flushes).sum();
        self.model.late_flushes = self.model.late_flushes.max(late);
        let next = self.random.below(2 * self.chaos_ns) + MILLISECOND;
        self.chaos_after(next);
        let server = self.random.below(SERVERS as u64) as usize;
        let client = self.random.below(self.clients.len() as u64) as usize;
        let runs = self.clients[client].machine.is_some();
        match self.random.below(if self.is_pressed { 30 } else { 26 }) {
            0..=2 if !runs => self.begin(client),
            3 => self.end(client),
            4 if runs => self.stop(client),
            5 | 6 if runs => self.clients[client].paused = true,
            7 | 8 if self.servers[server].is_up() && self.down() < 2 => self.kill_server(server),
            9..=12 if runs => self.disconnect(client, server),
            13 => (0..SERVERS).for_each(|server| self.disconnect(client, server)),
            14 => self.slow[server] = 1 + self.random.below(30),
            15 => self.crash_plane(),
            16 => {
                let for_ns = self.random.below(800) * MILLISECOND;
                self.part_from_plane(for_ns);
            }
            17..=19 if self.is_narrow => self.rot(server),
            17 | 18 => self.drain(server),
            19 => self.replace(server),
            20 => self.will_not_flush = Some(server),
            21 | 22 => self.will_not_flush = None,
            // It stalls: nothing of it comes in time, and its connections stay.
            23 => self.slow[server] = 300 + self.random.below(1000),
            24 => self.grow(),
            26..=29 => {
                self.stopped_until[server] = self.now + self.random.below(1500) * MILLISECOND
            }
            _ => {}
        }
        self.mend();
        if self.clients.iter().all(|client| client.machine.is_none()) {
            self.begin(client);
        }
    }

    fn down(&self) -> usize {
        self.servers.iter().filter(|server| !server.is_up()).count()
    }

    /// What was broken mends itself after a while.
    fn mend(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].paused && self.random.chance(0.2) {
                self.clients[client].paused = false;
                self.run_client(client);
            }
            for server in 0..SERVERS {
                if self.clients[client].links[server].is_multiple_of(2) && self.random.chance(0.4) {
                    self.reconnect(client, server);
                }
            }
        }
        for server in 0..SERVERS {
            if !self.servers[server].is_up() && self.random.chance(0.2) {
                self.start_server(server);
            }
            if self.random.chance(0.1) {
                self.slow[server] = 1;
            }
        }
        let states: Vec<_> = self.states.iter().map(|(node, of)| (*node, *of)).collect();
        for (node, (domain, state)) in states {
            if state == NodeState::Draining && self.random.chance(0.1) {
                self.set(node, domain, NodeState::In);
            }
        }
    }

    /// Somebody has the volume grow, in some seeds and a few times.
    fn grow(&mut self) {
        if self.grows && self.lanes < LANES_MAX {
            self.lanes += 1;
            self.put_volume();
        }
    }

    fn stop(&mut self, client: usize) {
        let now = self.time_of(client);
        if let Some(machine) = &mut self.clients[client].machine {
            machine.stop(now, &mut self.interned);
        }
        self.run_client(client);
    }

    /// A copy of which there is a sound one beside cannot be read any more, in part.
    fn rot(&mut self, server: usize) {
        // Of several only the last to open knows what is where.
        let mut running = self.clients.iter().filter_map(|client| client.machine.as_ref());
        let (Some(machine), None) = (running.next(), running.next()) else { return };
        let Some(remote) = machine.session.client().filter(|_| machine.is_ready) else { return };
        let node = self.servers[server].id;
        let servers = &self.servers;
        let is_sound = |held: &&Held| {
            let is_rotten = |of: &Server| of.rotten.iter().any(|(name, _)| *name == held.name);
            held.phase == Phase::Sealed && !servers.iter().any(is_rotten)
        };
        let bands = remote.directory().bands().filter(is_sound);
        let bands: Vec<_> = bands
            .filter(|held| held.nodes.contains(&node) && held.nodes.len() >= usize::from(REPLICAS))
            .map(|held| (held.name, held.pages))
            .collect();
        let Some(&(name, pages)) = bands.get(self.random.below(bands.len().max(1) as u64) as usize)
        else {
            return;
        };
        let page = self.random.below(u64::from(pages)) as u32;
        self.servers[server].rotten.insert((name, page));
        self.rotten += 1;
    }

    fn drain(&mut self, server: usize) {
        let node = self.servers[server].id;
        let others =
            self.states.iter().filter(|(of, (_, state))| **of != node && *state == NodeState::In);
        let domains: BTreeSet<DomainId> = others.map(|(_, (domain, _))| *domain).collect();
        let (domain, state) = self.states[&node];
        if state == NodeState::In && domains.len() > usize::from(REPLICAS) {
            self.set(node, domain, NodeState::Draining);
        }
    }

    /// Loses a drive, if no band needs it that is nowhere else.
    fn replace(&mut self, server: usize) {
        let node = self.servers[server].id;
        let was_replaced = self.servers.iter().any(|server| server.id.0 >= SERVERS as u32);
        let mut running = self.clients.iter().filter(|client| client.machine.is_some());
        let (Some(client), None) = (running.next(), running.next()) else { return };
        // One that is paused puts bands there before it hears that the node is gone, and may end before it takes them
        // off the record.
        let Some(machine) = client.machine.as_ref().filter(|_| !client.paused) else { return };
        let Some(remote) = machine.session.client().filter(|_| machine.is_ready) else { return };
        let is_needed = remote.directory().bands().any(|held| {
            held.nodes.contains(&node) && held.nodes.iter().all(|of| *of == node || !self.has(*of))
        });
        // Of one that it alone was to have nobody else can say that it was not begun, if the machine ends now.
        let is_on_record = machine.session.records().any(|record| {
            record.sealed.is_none() && record.sound().all(|of| of == node || !self.has(of))
        });
        let is_needed = is_needed || is_on_record;
        let (_, state) = self.states[&node];
        if !was_replaced && !is_needed && state == NodeState::In && !machine.is_stopping() {
            self.replace_server(server);
        }
    }

    fn has(&self, node: NodeId) -> bool {
        self.servers.iter().any(|server| server.id == node)
    }

    pub(super) fn calm_down(&mut self) {
        self.is_calm = true;
        self.will_not_flush = None;
        self.part_from_plane(0);
        if self.grows {
            // A control plane that went down with the last growth has not kept it, and nobody was told that it had.
            self.put_volume();
        }
        for server in 0..SERVERS {
            self.slow[server] = 1;
            self.stopped_until[server] = 0;
            if !self.servers[server].is_up() {
                self.start_server(server);
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].paused {
                self.clients[client].paused = false;
                self.run_client(client);
            }
        }
        if self.loses {
            self.lose();
        } else if self.clients.iter().all(|client| client.machine.is_none()) {
            self.begin(0);
        }
        for client in 0..self.clients.len() {
            (0..SERVERS).for_each(|server| self.reconnect(client, server));
        }
    }

    /// Whether one machine has read all blocks, and nothing is left to be done.
    pub(super) fn is_at_rest(&mut self) -> bool {
        let mut running = 0..self.clients.len();
        let Some(client) = running.find(|&client| self.clients[client].machine.is_some()) else {
            // The one that was stopping has stopped.
            self.begin(0);
            return false;
        };
        if running.any(|client| self.clients[client].machine.is_some()) {
            return false;
        }
        let now = self.time_of(client);
        let machine = self.clients[client].machine.as_mut().expect("it runs");
        if !machine.is_ready {
            return false;
        }
        let blocks = machine.blocks();
        let audit = machine.audit.get_or_insert(0);
        if *audit < blocks || !machine.is_idle() {
            return false;
        }
        // Asks of a server that was slow may still be on their way.
        let said = machine.session.explain(now);
        // One that is not in, and of which nothing is needed, is not taken in and never told.
        let is_in = |line: &str| {
            let mut those = self.states.iter().filter(|(_, (_, state))| *state == NodeState::In);
            those.any(|(node, _)| line.starts_with(&format!("node {} ", node.0)))
        };
        let is_told = |line: &str| {
            line.contains(" 0 seals and frees to be told")
                || line.contains(": away,") && !is_in(line)
        };
        if !said.lines().filter(|line| line.contains("to be told")).all(is_told) {
            return false;
        }
        let left = machine.session.repair(now).expect("it is open");
        let is_mended = !self.is_narrow || left.mended_rounds > 0;
        if !is_mended || left.lacking + left.draining + left.copying > 0 || self.lacking().is_some()
        {
            return false;
        }
        if !self.is_drained() {
            return false;
        }
        match self.course {
            Course::Whole | Course::Anew | Course::Gone => true,
            Course::Salvaged => !self.goes_on_after(client),
            Course::Waits => false,
        }
    }

    /// A band that does not lie, whole, in as many domains as it should.
    pub(super) fn lacking(&self) -> Option<String> {
        let machine = self.clients.iter().find_map(|client| client.machine.as_ref())?;
        let directory = machine.session.client()?.directory();
        for held in directory.bands().filter(|held| held.phase == Phase::Sealed) {
            let counts = |node: &&NodeId| self.states[*node].1.counts() && self.has(**node);
            let domains: BTreeSet<DomainId> =
                held.nodes.iter().filter(counts).map(|node| self.states[node].0).collect();
            if domains.len() < usize::from(REPLICAS) {
                return Some(format!("{held:?}"));
            }
        }
        None
    }

    /// Whether the last machine knows of no band of a node that is drained, where enough others can take it.
    fn is_drained(&self) -> bool {
        let machine = self.clients.iter().find_map(|client| client.machine.as_ref());
        let remote = machine.and_then(|machine| machine.session.client()).expect("it is open");
        let takes = |(node, (_, state)): &(&NodeId, &(DomainId, NodeState))| {
            *state == NodeState::In && self.has(**node)
        };
        let domains: BTreeSet<DomainId> =
            self.states.iter().filter(takes).map(|(_, (domain, _))| *domain).collect();
        let drains = |node: &NodeId| self.states[node].1 == NodeState::Draining;
        let has_left = remote.directory().bands().any(|held| held.nodes.iter().any(drains));
        domains.len() < usize::from(REPLICAS) || !has_left
    }

    /// What the last machine thinks is where is there.
    pub(super) fn check_copies(&mut self) {
        let machine = self.clients.iter().find_map(|client| client.machine.as_ref());
        let remote = machine.and_then(|machine| machine.session.client()).expect("it is open");
        let sealed = remote.directory().bands().filter(|held| held.phase == Phase::Sealed);
        let sealed: Vec<_> = sealed.cloned().collect();
        for server in 0..SERVERS {
            let node = self.servers[server].id;
            let mut random = flash::Random::new(1);
            self.servers[server].kill(&mut random);
            let found = self.servers[server].look(self.now);
            for held in sealed.iter().filter(|held| held.nodes.contains(&node)) {
                let entry = found.iter().find(|entry| entry.band == held.name);
                if self.kinds[server].is_volatile() && entry.is_none_or(|entry| !entry.sealed) {
                    // What it was not told to flush it has not, and others of this kind may lose the same.
                    continue;
                }
                let has =
                    |entry: &BandEntry| (entry.pages, entry.sound) == (held.pages, held.pages);
                assert!(entry.is_some_and(has), "{node:?} has {entry:?} of {held:?}");
            }
        }
        let may_fail = self.is_volatile() || self.is_pressed;
        assert!(self.model.failures == 0 || may_fail, "a request failed without a cause");
    }

    pub(super) fn time_of(&self, client: usize) -> Instant {
        self.clients[client].time(self.now)
    }
}
