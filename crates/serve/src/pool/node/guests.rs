//! Who connects to a node: clients, and other nodes that copy from it.
//!
//! Invariants: a guest says who he is before he asks; a peer of the node is named once, and nobody's answer goes to
//! another; a guest who takes nothing is not listened to; of those who call themselves the same the last one is
//! served, and nothing that an earlier one has asked is begun any more.

use crate::pool::block::Block;
use crate::pool::link::{Crypt, Link};
use crate::rated::Rated;
use crate::runtime::ring::Ring;
use crate::sockets;
use flash::{Instant, SECOND, Slab};
use pool::message::{Answer, Ask, AskId, NodeFacts, Signals};
use pool::node::PeerId;
use pool::wire::{Hello, Message};
use pool::words::PoolId;
use rustls::ServerConfig;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// From the connection to the greeting.
const GREETING_NS: u64 = 5 * SECOND;
/// A guest with so many bytes not taken is not listened to until he takes them.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// A guest whose host does not answer the kernel for so long is gone.
const SILENT: Duration = Duration::from_secs(10);

/// What a guest wants of the node.
#[derive(Debug)]
pub enum Wanted {
    /// Something.
    Ask {
        /// Who.
        peer: PeerId,
        /// Comes back with the answer.
        id: AskId,
        /// What.
        ask: Ask<Block>,
    },
    /// Nothing any more: he is gone.
    Gone(PeerId),
}

struct Guest {
    link: Link,
    peer: PeerId,
    /// He has said who he is; until then, when he must have.
    name: Result<String, Instant>,
    over: bool,
    dirty: bool,
}

/// See the head of this file.
pub struct Guests {
    pool: PoolId,
    tls: Option<Arc<ServerConfig>>,
    max: usize,
    guests: Slab<Guest>,
    of_peer: BTreeMap<PeerId, u32>,
    peers: u64,
    wanted: VecDeque<Wanted>,
    /// Guests with something to send, or to listen to.
    stirred: Vec<u32>,
    /// Guests that have not said who they are.
    unnamed: BTreeSet<u32>,
    told: Rated,
}

impl Guests {
    /// Nobody is there; at most `max` may be at a time.
    pub fn new(pool: PoolId, tls: Option<Arc<ServerConfig>>, max: usize) -> Self {
        Self {
            pool,
            tls,
            max,
            guests: Slab::default(),
            of_peer: BTreeMap::new(),
            peers: 0,
            wanted: VecDeque::new(),
            stirred: Vec::new(),
            unnamed: BTreeSet::new(),
            told: Rated::default(),
        }
    }

    /// Guests that have said who they are.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.guests.iter().filter_map(|(_, guest)| guest.name.as_deref().ok())
    }

    /// Somebody has connected.
    pub fn welcome(&mut self, now: Instant, socket: OwnedFd) {
        if self.guests.len() >= self.max {
            if let Some(more) = self.told.admit(now) {
                tracing::warn!(max = self.max, more, "a guest too many was refused");
            }
            return;
        }
        sockets::prepare(&socket, SILENT);
        let crypt = match self.tls.as_ref().map(Crypt::accept).transpose() {
            Ok(crypt) => crypt,
            Err(error) => return tracing::warn!(%error, "TLS of a guest cannot begin"),
        };
        self.peers += 1;
        let (link, peer) = (Link::new(socket, crypt), PeerId(self.peers));
        let name = Err(now + GREETING_NS);
        let index = self.guests.insert(Guest { link, peer, name, over: false, dirty: true });
        self.stirred.push(index);
        self.unnamed.insert(index);
        self.of_peer.insert(peer, index);
    }

    /// A receive has completed. `facts` are what the node says of itself.
    pub fn received(&mut self, now: Instant, index: u32, result: i32, facts: NodeFacts) {
        Self::stir(&mut self.stirred, &mut self.guests[index], index);
        match self.guests[index].link.received(result) {
            Ok(true) => {}
            Ok(false) => return self.end(now, index, None),
            Err(error) => return self.end(now, index, Some(error.to_string())),
        }
        loop {
            if self.guests[index].over {
                // What he still says is begun no more.
                return;
            }
            match self.guests[index].link.next() {
                Ok(None) => return,
                Err(error) => return self.end(now, index, Some(error.to_string())),
                Ok(Some(message)) => {
                    if let Err(trouble) = self.take(now, index, message, facts) {
                        return self.end(now, index, Some(trouble));
                    }
                }
            }
        }
    }

    fn take(
        &mut self,
        now: Instant,
        index: u32,
        message: Message<Block>,
        facts: NodeFacts,
    ) -> Result<(), String> {
        let guest = &mut self.guests[index];
        match message {
            Message::Hello(Hello { pool, node, name, .. }) if guest.name.is_err() => {
                // He learns from it whom he has reached, if it is not whom he meant.
                let own = Hello {
                    pool: self.pool,
                    node: facts.node,
                    name: name.clone(),
                    facts: Some(facts),
                };
                guest.link.say(&Message::Hello(own)).map_err(|error| error.to_string())?;
                if pool != self.pool {
                    return Err(format!("{name:?} is of pool {:032x}, this node is not", pool.0));
                }
                if node != facts.node {
                    return Err(format!("{name:?} means node {}, this is another", node.0));
                }
                guest.name = Ok(name.clone());
                self.unnamed.remove(&index);
                let peer = guest.peer;
                let same = |(_, other): &(u32, &Guest)| {
                    other.peer != peer && !other.over && other.name.as_ref() == Ok(&name)
                };
                let same: Vec<(u32, PeerId)> = self
                    .guests
                    .iter()
                    .filter(same)
                    .map(|(other, guest)| (other, guest.peer))
                    .collect();
                for (other, of) in same {
                    // The last to connect is served, whoever greets last.
                    self.end(now, if of < peer { other } else { index }, None);
                }
                Ok(())
            }
            // He greets once more to hear how full the node is by now.
            Message::Hello(Hello { pool, node, name, .. })
                if (pool, node) == (self.pool, facts.node) && guest.name.as_ref() == Ok(&name) =>
            {
                let own = Hello { pool, node, name, facts: Some(facts) };
                guest.link.say(&Message::Hello(own)).map_err(|error| error.to_string())
            }
            Message::Ask { id, ask } if guest.name.is_ok() => {
                self.wanted.push_back(Wanted::Ask { peer: guest.peer, id, ask });
                Ok(())
            }
            _ => Err("a guest says what none says at that time".into()),
        }
    }

    /// A send has completed.
    pub fn sent(&mut self, now: Instant, index: u32, result: i32, ring: &mut Ring) {
        Self::stir(&mut self.stirred, &mut self.guests[index], index);
        if !self.guests[index].link.sent(index, result, ring) {
            self.end(now, index, None);
        }
    }

    /// What they want, in the order of each.
    pub fn poll(&mut self) -> Option<Wanted> {
        self.wanted.pop_front()
    }

    /// Tells a guest; nobody, if he is gone.
    pub fn answer(&mut self, peer: PeerId, id: AskId, answer: Answer<Block>, signals: Signals) {
        let Some(&index) = self.of_peer.get(&peer) else { return };
        let guest = &mut self.guests[index];
        let said = guest.link.say(&Message::Answer { id, answer, signals });
        said.expect("what a node answers is within the bounds of the wire");
        Self::stir(&mut self.stirred, guest, index);
    }

    /// The next turn looks at him.
    fn stir(stirred: &mut Vec<u32>, guest: &mut Guest, index: u32) {
        if !std::mem::replace(&mut guest.dirty, true) {
            stirred.push(index);
        }
    }

    fn end(&mut self, now: Instant, index: u32, trouble: Option<String>) {
        let guest = &mut self.guests[index];
        if std::mem::replace(&mut guest.over, true) {
            return;
        }
        self.of_peer.remove(&guest.peer);
        self.unnamed.remove(&index);
        self.wanted.push_back(Wanted::Gone(guest.peer));
        Self::stir(&mut self.stirred, guest, index);
        if let Some(trouble) = trouble
            && let Some(more) = self.told.admit(now)
        {
            tracing::warn!(%trouble, more, "a guest was sent away");
        }
    }

    /// Sends everybody away.
    pub fn close(&mut self, now: Instant) {
        let all: Vec<u32> = self.guests.iter().map(|(index, _)| index).collect();
        all.into_iter().for_each(|index| self.end(now, index, None));
    }

    /// Ends all that is under way, at once.
    pub fn hang_up(&mut self) {
        let all: Vec<u32> = self.guests.iter().map(|(index, _)| index).collect();
        all.into_iter().for_each(|index| self.guests[index].link.hang_up());
    }

    /// Sends what there is to say, listens on, and forgets who is gone.
    pub fn turn(&mut self, now: Instant, ring: &mut Ring) {
        let late = |index: &&u32| self.guests[**index].name.as_ref().is_err_and(|at| *at <= now);
        let late: Vec<u32> = self.unnamed.iter().filter(late).copied().collect();
        for index in late {
            self.end(now, index, Some("a guest did not say who he is".into()));
        }
        while let Some(index) = self.stirred.pop() {
            let guest = &mut self.guests[index];
            guest.dirty = false;
            // A last word, why he is sent away, goes out first.
            guest.link.send(index, ring);
            if guest.over {
                if !guest.link.is_sending() {
                    guest.link.hang_up();
                }
                if guest.link.is_idle() {
                    self.guests.remove(index);
                }
            } else if guest.link.unsent_bytes() < UNSENT_BYTES_MAX {
                guest.link.receive(index, ring);
            }
        }
    }

    /// When to call [`Guests::turn`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let until = |index: &u32| self.guests[*index].name.as_ref().err().copied();
        self.unnamed.iter().filter_map(until).min()
    }
}
