//! What links cost by themselves: messages of the sizes of a volume's go to threads that answer each at once, over
//! loopback. `weir bench pool` puts the cost beside that of a client and of nodes, which have the same links and do
//! something else besides.

use super::{Crypt, Link};
use crate::cpu::thread_ns;
use crate::pool::block::Block;
use crate::pool::tls::{Identity, server_name};
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::{Done, DriverChoice, Owner, Ring};
use crate::sockets;
use flash::{MILLISECOND, OOB_BYTES};
use pool::message::{Answer, Ask, AskId, Signals, Slot};
use pool::wire::Message;
use pool::words::{BandName, Generation, PoolId};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a turn waits for something to happen.
const WAIT_NS: u64 = 100 * MILLISECOND;

/// Entries of a ring.
const RING_ENTRIES: u32 = 256;

/// Who is silent for so long is not answered any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// What goes round.
#[derive(Clone, Copy, Debug)]
pub struct Echo {
    /// How many answer, each a thread with a link to it.
    pub nodes: usize,
    /// Messages without an answer, over all links.
    pub depth: usize,
    /// Each has so many slots of data.
    pub slots: u32,
    /// The answers have the data, as of reads; else the questions, as of appends.
    pub reads: bool,
    /// How long.
    pub time: Duration,
}

/// What it took.
#[derive(Clone, Copy, Debug)]
pub struct EchoCost {
    /// Messages a second.
    pub rate: f64,
    /// Processor time of who asks, of a message and its answer.
    pub asks_ns: f64,
    /// Of who answers.
    pub answers_ns: f64,
}

/// Has messages go round; with `identity` in TLS, each side with the certificate of the pool.
///
/// # Errors
/// What the system, or TLS, says.
pub fn echo(what: Echo, identity: Option<(&Identity, PoolId)>) -> Result<EchoCost, String> {
    let mut links = Vec::new();
    let mut nodes: Vec<JoinHandle<Result<u64, String>>> = Vec::new();
    for _ in 0..what.nodes {
        let (mine, theirs) = connected().map_err(failed)?;
        let (ask, answer) = match identity {
            None => (None, None),
            Some((identity, pool)) => {
                let ask = Crypt::connect(&identity.client, server_name(pool));
                let answer = Crypt::accept(&identity.server);
                (Some(ask.map_err(failed)?), Some(answer.map_err(failed)?))
            }
        };
        links.push(Link::new(mine, ask));
        let thread = std::thread::Builder::new().name("echo".into());
        let node = thread.spawn(move || answers(Link::new(theirs, answer), what));
        nodes.push(node.map_err(failed)?);
    }
    let asked = asks(links, what);
    let mut answered_ns = 0;
    for node in nodes {
        answered_ns += node.join().map_err(|_| "a thread of the echo panicked".to_owned())??;
    }
    let asked = asked?;
    let count = asked.count.max(1) as f64;
    Ok(EchoCost {
        rate: count / asked.seconds,
        asks_ns: asked.ns as f64 / count,
        answers_ns: answered_ns as f64 / count,
    })
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn connected() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mine = TcpStream::connect(listener.local_addr()?)?;
    let (theirs, _) = listener.accept()?;
    for stream in [&mine, &theirs] {
        sockets::prepare(stream, PATIENCE);
    }
    Ok((mine.into(), theirs.into()))
}

struct Asked {
    count: u64,
    ns: u64,
    seconds: f64,
}

/// The side of a client.
fn asks(links: Vec<Link>, what: Echo) -> Result<Asked, String> {
    let mut side = Side::new(links)?;
    let data = slots(what.slots);
    let ask = |link: &mut Link, id: u64| {
        let (band, generation) = (BandName::default(), Generation(1));
        let ask = if what.reads {
            Ask::Read { band, generation, slot: 0, count: what.slots, urgent: true }
        } else {
            Ask::Append { band, generation, page: 1, open: None, slots: data.clone() }
        };
        link.say(&Message::Ask { id: AskId(id), ask }).map_err(failed)
    };
    for at in 0..what.depth {
        ask(&mut side.links[at % what.nodes], at as u64)?;
    }
    let (begun, before) = (Instant::now(), thread_ns());
    let (mut count, mut waits) = (0, what.depth as u64);
    let mut heard = begun;
    while waits > 0 {
        let goes_on = begun.elapsed() < what.time;
        let before = count;
        side.turn(&mut |link, _| {
            count += 1;
            waits -= 1;
            if goes_on {
                waits += 1;
                ask(link, count)?;
            }
            Ok(())
        })?;
        if count > before {
            heard = Instant::now();
        } else if heard.elapsed() > PATIENCE || side.is_over() {
            return Err("the other side of the echo does not answer".into());
        }
    }
    Ok(Asked { count, ns: thread_ns() - before, seconds: begun.elapsed().as_secs_f64() })
}

/// The side of a node, until the other one hangs up; the processor time that it took.
fn answers(link: Link, what: Echo) -> Result<u64, String> {
    let mut side = Side::new(vec![link])?;
    let data: Vec<_> = slots(what.slots).into_iter().map(Some).collect();
    let before = thread_ns();
    while !side.is_over() {
        side.turn(&mut |link, message| {
            let Message::Ask { id, .. } = message else { return Err("not asked".into()) };
            let answer = if what.reads { Answer::Slots(data.clone()) } else { Answer::Done };
            let signals = Signals::default();
            link.say(&Message::Answer { id, answer, signals }).map_err(failed)
        })?;
    }
    Ok(thread_ns() - before)
}

fn slots(count: u32) -> Vec<Slot<Block>> {
    let blocks = Block::all_of(Buffer::new(count)).into_iter();
    blocks
        .map(|block| {
            let crc = pool::node::store::Data::crc(&block);
            Slot { oob: [0; OOB_BYTES], crc, data: Some(block) }
        })
        .collect()
}

/// What becomes of a message that a link brought.
type Heard<'a> = dyn FnMut(&mut Link, Message<Block>) -> Result<(), String> + 'a;

/// What one thread has of it.
struct Side {
    links: Vec<Link>,
    ring: Ring,
    done: Vec<Done>,
    gone: usize,
}

impl Side {
    fn new(links: Vec<Link>) -> Result<Self, String> {
        let ring = Ring::new(RING_ENTRIES, DriverChoice::Auto).map_err(failed)?;
        Ok(Self { links, ring, done: Vec::new(), gone: 0 })
    }

    fn is_over(&self) -> bool {
        self.gone > 0
    }

    /// One send and one receive of each link, and what has come of those before.
    fn turn(&mut self, heard: &mut Heard<'_>) -> Result<(), String> {
        for (index, link) in (0..).zip(&mut self.links) {
            link.send(index, &mut self.ring);
            link.receive(index, &mut self.ring);
        }
        let mut done = std::mem::take(&mut self.done);
        self.ring.enter(Some(WAIT_NS), &mut done).map_err(failed)?;
        for Done { owner, index, result, .. } in done.drain(..) {
            let link = &mut self.links[index as usize];
            let goes_on = match owner {
                Owner::LinkSend => link.sent(index, result, &mut self.ring),
                _ => link.received(result).map_err(failed)?,
            };
            self.gone += usize::from(!goes_on);
            while let Some(message) = link.next().map_err(failed)? {
                heard(link, message)?;
            }
        }
        self.done = done;
        Ok(())
    }
}

impl Drop for Side {
    /// The kernel lets go of the memory of the links first.
    fn drop(&mut self) {
        self.links.iter_mut().for_each(Link::hang_up);
        self.ring.free(std::mem::take(&mut self.links));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::certs;
    use crate::pool::tls;

    #[test]
    fn messages_go_round_with_and_without_tls_and_their_data_are_paid_for() {
        let pool = PoolId(7);
        let folder = certs::Scratch::new("echo", pool, &["a"]);
        let identity = tls::load(&folder.files("a"), pool).expect("sound");
        let cost = |slots, reads, identity| {
            let time = Duration::from_millis(100);
            echo(Echo { nodes: 2, depth: 8, slots, reads, time }, identity).expect("it goes round")
        };
        for identity in [None, Some((&identity, pool))] {
            for reads in [true, false] {
                let (few, many) = (cost(1, reads, identity), cost(32, reads, identity));
                assert!(few.rate > 0.0 && few.answers_ns > 0.0, "{few:?}");
                assert!(many.asks_ns > few.asks_ns, "{few:?} {many:?}");
            }
        }
    }
}
