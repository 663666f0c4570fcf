//! The way to the nodes of a pool: one link to each whose address is known, made anew after a while when it
//! breaks.
//!
//! Invariants: a node is up from its [`Reached::Up`] to its [`Reached::Down`], and nothing of a link comes after its
//! end; answers of two links of a node never mix.

use super::block::Block;
use super::link::{Crypt, Link};
use crate::runtime::ring::Ring;
use crate::sockets;
use flash::{Instant, MILLISECOND, SECOND, Slab};
use pool::message::{Answer, Ask, AskId, NodeFacts, Signals};
use pool::wire::{Hello, Message};
use pool::words::{NodeId, PoolId};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Links of this side are told from those that were accepted by this bit of their index in the ring.
pub const OURS: u32 = 1 << 31;

/// How long a connection may take to be made, and to be greeted on.
const DIAL_NS: u64 = 2 * SECOND;
/// After a link that broke, or could not be made, the next is tried: at first, and at most.
const AGAIN_NS: u64 = 50 * MILLISECOND;
const AGAIN_NS_MAX: u64 = 2 * SECOND;
/// A node that has answered none of what it was asked for so long is as good as gone.
const ANSWER_NS: u64 = 5 * SECOND;
/// Connections that are made at a time.
const DIALS_MAX: usize = 16;
/// A node whose host does not answer the kernel for so long is gone.
const SILENT: Duration = Duration::from_secs(5);

/// Who connects, and how.
#[derive(Clone)]
pub struct Caller {
    /// The pool.
    pub pool: PoolId,
    /// What it calls itself, for people.
    pub name: String,
    /// TLS, and the name that nodes have in their certificates; `None`: the pool has none.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

/// A connection that was made, or why not.
pub struct Dialed {
    node: NodeId,
    attempt: u64,
    socket: io::Result<OwnedFd>,
}

/// What [`Reach::poll`] tells.
#[derive(Debug)]
pub enum Reached {
    /// A link was made.
    Up(NodeFacts),
    /// What a node that is up says of itself by now.
    Facts(NodeFacts),
    /// It is gone, and why.
    Down(NodeId, String),
    /// A node answers.
    Answer {
        /// Which.
        node: NodeId,
        /// What was asked.
        id: AskId,
        /// The answer.
        answer: Answer<Block>,
        /// How the node feels.
        signals: Signals,
    },
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Not connected; the next try is due then.
    Idle(Instant),
    Dialing,
    /// Connected, on this link, and not greeted by then.
    Greeting(u32, Instant),
    Up(u32),
}

struct Target {
    address: String,
    state: State,
    /// Of the next try.
    pause_ns: u64,
    attempt: u64,
    /// Why it is not up.
    trouble: String,
}

struct Ours {
    link: Link,
    node: NodeId,
    dirty: bool,
    /// Asks without an answer, but for copies, which take as long as they may.
    asked: u64,
    copies: BTreeSet<AskId>,
    /// Since when none of them was answered.
    silent_since: Instant,
}

impl Ours {
    fn is_silent(&self, now: Instant) -> bool {
        self.asked > 0 && self.silent_since + ANSWER_NS <= now
    }
}

/// See the head of this file.
pub struct Reach {
    caller: Caller,
    dialed: Arc<dyn Fn(Dialed) + Send + Sync>,
    targets: BTreeMap<NodeId, Target>,
    links: Slab<Ours>,
    /// Links with something to send, or to listen to.
    stirred: Vec<u32>,
    /// Before it no link is to be made or given up.
    due: Instant,
    dials: usize,
    attempts: u64,
    events: VecDeque<Reached>,
}

impl Reach {
    /// Nobody is known. `dialed` is called on other threads, and brings its argument to [`Reach::dialed`].
    pub fn new(caller: Caller, dialed: Arc<dyn Fn(Dialed) + Send + Sync>) -> Self {
        Self {
            caller,
            dialed,
            targets: BTreeMap::new(),
            links: Slab::default(),
            stirred: Vec::new(),
            due: Instant(0),
            dials: 0,
            attempts: 0,
            events: VecDeque::new(),
        }
    }

    /// From now on `node` is there; `None`: it is to be forgotten.
    pub fn set_address(&mut self, now: Instant, node: NodeId, address: Option<String>) {
        match (self.targets.get_mut(&node), address) {
            (Some(target), Some(address)) if target.address == address => {}
            (known, address) => {
                if known.is_some() {
                    self.end(now, node, "its address has changed".into());
                    self.targets.remove(&node);
                }
                if let Some(address) = address {
                    let (state, trouble) = (State::Idle(now), "not tried yet".into());
                    let target = Target { address, state, pause_ns: AGAIN_NS, attempt: 0, trouble };
                    self.targets.insert(node, target);
                    self.due = now;
                }
            }
        }
    }

    /// Nodes of which the address is known: whether they are up, or what the trouble is.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, Option<&str>)> {
        self.targets.iter().map(|(node, target)| {
            let up = matches!(target.state, State::Up(_));
            (*node, (!up).then_some(target.trouble.as_str()))
        })
    }

    /// Asks a node; false if it is not up.
    pub fn ask(&mut self, now: Instant, node: NodeId, id: AskId, ask: Ask<Block>) -> bool {
        let Some(&State::Up(index)) = self.targets.get(&node).map(|target| &target.state) else {
            return false;
        };
        let ours = &mut self.links[index];
        if matches!(ask, Ask::Copy { .. }) {
            ours.copies.insert(id);
        } else {
            if ours.asked == 0 {
                ours.silent_since = now;
                self.due = self.due.min(now + ANSWER_NS);
            }
            ours.asked += 1;
        }
        let said = ours.link.say(&Message::Ask { id, ask });
        said.expect("what is asked is within the bounds of the wire");
        self.stir(index);
        true
    }

    /// Greets all that are up once more: each says how full it is by now.
    pub fn greet(&mut self) {
        let up = self.targets.iter().filter_map(|(node, target)| match target.state {
            State::Up(index) => Some((*node, index)),
            _ => None,
        });
        for (node, index) in up.collect::<Vec<_>>() {
            let Caller { pool, name, .. } = self.caller.clone();
            let hello = Hello { pool, node, name, facts: None };
            self.links[index].link.say(&Message::Hello(hello)).expect("a name is short");
            self.stir(index);
        }
    }

    /// The next turn looks at the link.
    fn stir(&mut self, index: u32) {
        if !std::mem::replace(&mut self.links[index].dirty, true) {
            self.stirred.push(index);
        }
    }

    /// A thread has made a connection, or not.
    pub fn dialed(&mut self, now: Instant, Dialed { node, attempt, socket }: Dialed) {
        self.dials -= 1;
        self.due = now;
        let Some(target) = self.targets.get_mut(&node).filter(|it| it.attempt == attempt) else {
            return;
        };
        let crypt = match &self.caller.tls {
            None => Ok(None),
            Some((config, name)) => Crypt::connect(config, name.clone()).map(Some),
        };
        let linked = socket
            .map_err(|error| error.to_string())
            .and_then(|socket| Ok(Link::new(socket, crypt.map_err(|error| error.to_string())?)));
        match linked {
            Ok(mut link) => {
                let Caller { pool, name, .. } = self.caller.clone();
                let hello = Hello { pool, node, name, facts: None };
                self.due = now;
                link.say(&Message::Hello(hello)).expect("a name is short");
                let index = self.links.insert(Ours {
                    link,
                    node,
                    dirty: true,
                    asked: 0,
                    copies: BTreeSet::new(),
                    silent_since: now,
                });
                self.stirred.push(index);
                target.state = State::Greeting(index, now + DIAL_NS);
            }
            Err(trouble) => {
                target.trouble = trouble;
                target.state = State::Idle(now + target.pause_ns);
                target.pause_ns = (target.pause_ns * 2).min(AGAIN_NS_MAX);
            }
        }
    }

    /// A receive of a link has completed.
    pub fn received(&mut self, now: Instant, index: u32, result: i32) {
        let index = index & !OURS;
        self.stir(index);
        let ours = &mut self.links[index];
        let node = ours.node;
        let mut trouble = match ours.link.received(result) {
            Ok(true) => None,
            Ok(false) => Some("it has closed the connection".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        while trouble.is_none() {
            match self.links[index].link.next() {
                Ok(Some(message)) => trouble = self.take(now, node, index, message).err(),
                Ok(None) => return,
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        if let Some(trouble) = trouble.filter(|_| self.is_current(node, index)) {
            self.end(now, node, trouble);
        }
    }

    fn is_current(&self, node: NodeId, index: u32) -> bool {
        let state = self.targets.get(&node).map(|target| target.state);
        matches!(state, Some(State::Up(at) | State::Greeting(at, _)) if at == index)
    }

    fn take(
        &mut self,
        now: Instant,
        node: NodeId,
        index: u32,
        message: Message<Block>,
    ) -> Result<(), String> {
        if !self.is_current(node, index) {
            return Err("it is over".into());
        }
        let target = self.targets.get_mut(&node).expect("it is current");
        match (target.state, message) {
            (State::Greeting(..), Message::Hello(hello)) => {
                if hello.pool != self.caller.pool {
                    return Err(format!(
                        "the node at {} is of pool {:032x}, this one is {:032x}: correct the address of node {} \
                         in the pool",
                        target.address, hello.pool.0, self.caller.pool.0, node.0
                    ));
                }
                let says = hello.facts.map(|facts| facts.node);
                if hello.node != node || says.is_some_and(|says| says != node) {
                    return Err(format!(
                        "at {} is node {}, not node {}: correct `node.listen` in their configs, or tell the pool where \
                         node {} is (`weir pool join {} --address ADDRESS`)",
                        target.address, hello.node.0, node.0, node.0, node.0
                    ));
                }
                let facts = hello.facts.ok_or("it does not say what it is")?;
                target.state = State::Up(index);
                target.pause_ns = AGAIN_NS;
                self.events.push_back(Reached::Up(facts));
                Ok(())
            }
            (State::Up(_), Message::Hello(Hello { facts: Some(facts), .. }))
                if facts.node == node =>
            {
                self.events.push_back(Reached::Facts(facts));
                Ok(())
            }
            (State::Up(_), Message::Answer { id, answer, signals }) => {
                let ours = &mut self.links[index];
                if !ours.copies.remove(&id) {
                    ours.asked = ours.asked.saturating_sub(1);
                    ours.silent_since = now;
                }
                self.events.push_back(Reached::Answer { node, id, answer, signals });
                Ok(())
            }
            _ => Err("it says what no node says at that time".into()),
        }
    }

    /// A send of a link has completed.
    pub fn sent(&mut self, now: Instant, index: u32, result: i32, ring: &mut Ring) {
        let at = index & !OURS;
        let node = self.links[at].node;
        if !self.links[at].link.sent(index, result, ring) && self.is_current(node, at) {
            self.end(now, node, "it takes nothing any more".into());
        }
        self.stir(at);
    }

    /// The link of a node is over.
    fn end(&mut self, now: Instant, node: NodeId, trouble: String) {
        let Some(target) = self.targets.get_mut(&node) else { return };
        if let State::Up(index) | State::Greeting(index, _) = target.state {
            self.links[index].link.hang_up();
            self.stir(index);
        }
        self.due = now;
        let target = self.targets.get_mut(&node).expect("looked above");
        if let State::Up(_) = target.state {
            self.events.push_back(Reached::Down(node, trouble.clone()));
        }
        target.trouble = trouble;
        target.attempt = 0;
        target.state = State::Idle(now + target.pause_ns);
        target.pause_ns = (target.pause_ns * 2).min(AGAIN_NS_MAX);
    }

    /// This side calls itself so on links that are made from now on.
    pub fn call(&mut self, name: String) {
        self.caller.name = name;
    }

    /// Forgets everybody.
    pub fn close(&mut self, now: Instant) {
        for node in self.targets.keys().copied().collect::<Vec<_>>() {
            self.end(now, node, "this side ends".into());
        }
        self.targets.clear();
    }

    /// Ends all that is under way, at once.
    pub fn hang_up(&mut self) {
        let all: Vec<u32> = self.links.iter().map(|(index, _)| index).collect();
        all.into_iter().for_each(|index| self.links[index].link.hang_up());
    }

    /// Makes links that are due, and has what was said sent.
    pub fn turn(&mut self, now: Instant, ring: &mut Ring) {
        if self.due <= now {
            self.look(now);
        }
        while let Some(index) = self.stirred.pop() {
            let ours = &mut self.links[index];
            ours.dirty = false;
            ours.link.send(index | OURS, ring);
            ours.link.receive(index | OURS, ring);
            if !self.is_current(self.links[index].node, index) && self.links[index].link.is_idle() {
                self.links.remove(index);
            }
        }
    }

    fn look(&mut self, now: Instant) {
        let mut late = Vec::new();
        for (&node, target) in &mut self.targets {
            match target.state {
                State::Idle(at) if at <= now && self.dials < DIALS_MAX => {
                    self.attempts += 1;
                    self.dials += 1;
                    (target.state, target.attempt) = (State::Dialing, self.attempts);
                    dial(node, self.attempts, &target.address, &self.dialed);
                }
                State::Greeting(_, until) if until <= now => {
                    late.push((node, "it does not greet in time"));
                }
                State::Up(index) if self.links[index].is_silent(now) => {
                    late.push((node, "it has answered nothing for seconds"));
                }
                _ => {}
            }
        }
        for (node, why) in late {
            self.end(now, node, why.into());
        }
        let due = |target: &Target| match target.state {
            State::Idle(at) if self.dials < DIALS_MAX => Some(at),
            State::Greeting(_, until) => Some(until),
            State::Up(index) => {
                let ours = &self.links[index];
                (ours.asked > 0).then_some(ours.silent_since + ANSWER_NS)
            }
            _ => None,
        };
        self.due = self.targets.values().filter_map(due).min().unwrap_or(Instant(u64::MAX));
    }

    /// What has happened, in order.
    pub fn poll(&mut self) -> Option<Reached> {
        self.events.pop_front()
    }

    /// When to call [`Reach::turn`] if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.stirred.is_empty() || !self.events.is_empty() {
            return Some(Instant(0));
        }
        Some(self.due).filter(|due| *due < Instant(u64::MAX))
    }
}

/// Connects on a thread of its own: names may have to be looked up, and hosts may be away.
fn dial(node: NodeId, attempt: u64, address: &str, dialed: &Arc<dyn Fn(Dialed) + Send + Sync>) {
    let (address, tell) = (address.to_owned(), Arc::clone(dialed));
    let begun = std::thread::Builder::new().name("dial".into()).spawn({
        let tell = Arc::clone(&tell);
        move || tell(Dialed { node, attempt, socket: connect(&address) })
    });
    if let Err(error) = begun {
        tell(Dialed { node, attempt, socket: Err(error) });
    }
}

/// Connects to the first address behind a name that answers.
pub fn connect(address: &str) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, Duration::from_nanos(DIAL_NS)) {
            Ok(stream) => {
                sockets::prepare(&stream, SILENT);
                return Ok(stream.into());
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
