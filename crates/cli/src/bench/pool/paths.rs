//! Reads and writes of 4 KiB, 32 at a time: on a pool, on the same volume in one process, and as mere messages over
//! links, in rounds one after the other. Processor time is what the system has counted for whole processes, so all
//! that they do is in it: the NBD front end, the FTL, TLS, and what the kernel does for their sockets. The socket
//! cost is that of messages of the same sizes over the same kind of link, as many under way.

use super::super::nbd::{Job, Server, VOLUME_MIB, cpu_seconds, fio, serve, weir};
use super::super::{Figure, Goal, Request, median};
use super::running::{Counts, NODES, Pool, REPLICAS};
use crate::output::Progress;
use serve::pool::config::PlaneConfig;
use serve::pool::{Echo, EchoCost, echo};
use std::time::Duration;

const READS: Job = Job { name: "pool-read", rw: "randread", block: "4k", depth: 32 };
/// In sequence: what GC moves would else be counted for writes.
const WRITES: Job = Job { name: "pool-write", rw: "write", block: "4k", depth: 32 };

const UNIT: &str = "us";
const ROUNDS: usize = 3;
/// Slots of a page of a volume.
const SLOTS_MAX: f64 = pool::volume::PAGE_SLOTS as f64;

/// What is measured of a job: names and goals of the client's figure, the nodes', and the rate's.
struct Case {
    job: &'static Job,
    client: (&'static str, f64),
    nodes: (&'static str, f64),
    rate: (&'static str, Goal),
}

const CASES: [Case; 2] = [
    Case {
        job: &READS,
        client: ("pool-read-cpu", 2.0),
        nodes: ("pool-node-read-cpu", 2.0),
        rate: ("pool-read-vs-local", Goal::AtLeast(1.0)),
    },
    Case {
        job: &WRITES,
        client: ("pool-write-cpu", 4.0),
        nodes: ("pool-node-write-cpu", 2.0),
        // Each write goes to two nodes here, and to none there.
        rate: ("pool-write-vs-local", Goal::AtLeast(0.5)),
    },
];

impl Case {
    fn names(&self) -> [(&'static str, &'static str, Goal); 3] {
        [
            (self.client.0, UNIT, Goal::AtMost(self.client.1)),
            (self.nodes.0, UNIT, Goal::AtMost(self.nodes.1)),
            (self.rate.0, "x", self.rate.1),
        ]
    }
}

pub fn figures(request: &mut Request<'_>) {
    let wanted = |case: &&Case| case.names().iter().any(|(name, ..)| request.wants(name));
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        return;
    }
    let mut progress = Progress::new("pool");
    let mut pair = Pair::start(&mut progress);
    for case in cases {
        let rounds = match &mut pair {
            Ok(pair) => pair.rounds(case.job, request.quick, &mut progress),
            Err(why) => Err(why.clone()),
        };
        let figures = match &rounds {
            Ok(rounds) => of_rounds(case, rounds),
            Err(why) => {
                case.names().map(|(name, unit, goal)| Figure::missing(name, unit, goal, why))
            }
        };
        for figure in figures {
            if request.wants(&figure.name) {
                (request.sink)(figure);
            }
        }
    }
}

/// One round. Times are us of a request of a host, but those of nodes and links: of a message.
#[derive(Clone, Copy, Debug)]
struct Round {
    rate: f64,
    local_rate: f64,
    client_us: f64,
    local_us: f64,
    node_us: f64,
    /// Messages for a request.
    messages: f64,
    /// Slots that were programmed for one that a host wrote, and of those what GC has moved; 0 for reads.
    waf: f64,
    moved: f64,
    tls: EchoCost,
    plain: EchoCost,
}

/// The pool, and the same volume in one process.
struct Pair {
    pool: Pool,
    local: Server,
    identity: PlaneConfig,
}

impl Pair {
    fn start(progress: &mut Progress) -> Result<Self, String> {
        progress.tell("starting a pool");
        let pool = Pool::start(VOLUME_MIB << 20)?;
        let socket = pool.scratch().join("local.sock");
        let local = serve("weir", weir(&pool.scratch().join("local"), &socket)?, &socket)?;
        let identity = pool.identity()?;
        let pair = Self { pool, local, identity };
        let fill = Job { name: "fill", rw: "write", block: "1m", depth: 4 };
        for uri in [pair.pool.uri(), pair.local.uri.clone()] {
            progress.tell("filling");
            // Twice: no write then finds memory that was never used.
            fio(&uri, &fill, None)?;
            fio(&uri, &fill, None)?;
        }
        Ok(pair)
    }

    fn rounds(
        &self,
        job: &Job,
        quick: bool,
        progress: &mut Progress,
    ) -> Result<Vec<Round>, String> {
        let seconds = if quick { 1 } else { 4 };
        let round = |at: usize| {
            progress.tell(&format!("{}, round {} of {ROUNDS}", job.name, at + 1));
            self.round(job, seconds, at.is_multiple_of(2))
        };
        (0..ROUNDS).map(round).collect()
    }

    fn round(&self, job: &Job, seconds: u32, pool_first: bool) -> Result<Round, String> {
        let mut local = if pool_first { None } else { Some(self.local(job, seconds)?) };
        let before = (self.pool.counts()?, self.pool.client_seconds()?, self.pool.node_seconds()?);
        let rate = fio(&self.pool.uri(), job, Some(seconds))?;
        let after = (self.pool.counts()?, self.pool.client_seconds()?, self.pool.node_seconds()?);
        let (local_rate, local_us) = match local.take() {
            Some(local) => local,
            None => self.local(job, seconds)?,
        };
        let requests = rate * f64::from(seconds);
        let reads = job.rw.ends_with("read");
        let grown = |of: fn(&Counts) -> f64| of(&after.0) - of(&before.0);
        let (programs, slots) = (grown(|of| of.programs), grown(|of| of.slots));
        let (written, relocated) = (grown(|of| of.written).max(1.0), grown(|of| of.relocated));
        let (messages, page_slots) = if reads {
            (grown(|of| of.asks), 1.0)
        } else {
            // Padding is not sent.
            (programs * f64::from(REPLICAS), (written + relocated) / programs.max(1.0))
        };
        let (waf, moved) = if reads { (0.0, 0.0) } else { (slots / written, relocated / written) };
        let messages = messages.max(1.0);
        let what = Echo {
            nodes: NODES as usize,
            // What is under way of a host's 32 requests.
            depth: ((32.0 * messages / requests).round() as usize).clamp(NODES as usize, 64),
            slots: page_slots.round().clamp(1.0, SLOTS_MAX) as u32,
            reads,
            time: Duration::from_millis(if seconds == 1 { 300 } else { 1000 }),
        };
        let identity = (&self.identity.identity, self.identity.pool);
        Ok(Round {
            rate,
            local_rate,
            client_us: (after.1 - before.1) * 1e6 / requests,
            local_us,
            node_us: (after.2 - before.2) * 1e6 / messages,
            messages: messages / requests,
            waf,
            moved,
            tls: echo(what, Some(identity))?,
            plain: echo(what, None)?,
        })
    }

    /// The rate of the other server, and its processor time for a request.
    fn local(&self, job: &Job, seconds: u32) -> Result<(f64, f64), String> {
        let process = self.local.child.id();
        let before = cpu_seconds(process)?;
        let rate = fio(&self.local.uri, job, Some(seconds))?;
        let used = cpu_seconds(process)? - before;
        Ok((rate, used * 1e6 / (rate * f64::from(seconds))))
    }
}

fn of_rounds(case: &Case, rounds: &[Round]) -> [Figure; 3] {
    let middle = |of: &dyn Fn(&Round) -> f64| {
        median(rounds.iter().map(of).collect()).expect("there are rounds")
    };
    let spread = |of: &dyn Fn(&Round) -> f64| {
        let all = || rounds.iter().map(of);
        let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
        format!("{least:.2} to {most:.2} in {} rounds", rounds.len())
    };
    let [client, nodes, rate] = case.names();
    let figure = |(name, unit, goal): (&str, _, _), value| Figure::new(name, value, unit, goal);
    let of_client = |round: &Round| round.client_us;
    let links = |cost: fn(&Round) -> EchoCost| {
        middle(&move |round| cost(round).asks_ns / 1e3 * round.messages)
    };
    let waf = middle(&|round| round.waf);
    let told = format!(
        "{}; links alone {:.1} (without TLS {:.1}); in one process {:.1}; {:.2} messages a request{}",
        spread(&of_client),
        links(|round| round.tls),
        links(|round| round.plain),
        middle(&|round| round.local_us),
        middle(&|round| round.messages),
        if waf > 0.0 {
            let moved = middle(&|round| round.moved);
            format!(", WAF {waf:.2}, of which GC moves {moved:.2} and the rest is padding")
        } else {
            String::new()
        }
    );
    let of_nodes = |round: &Round| round.node_us - round.tls.answers_ns / 1e3;
    let told_of_nodes = format!(
        "{}, of a message, beyond the {:.1} of its link (without TLS {:.1})",
        spread(&of_nodes),
        middle(&|round| round.tls.answers_ns / 1e3),
        middle(&|round| round.plain.answers_ns / 1e3)
    );
    let ratio = |round: &Round| round.rate / round.local_rate;
    let told_of_rates = format!(
        "{}: {:.0} against {:.0} requests/s on {} processors",
        spread(&ratio),
        middle(&|round| round.rate),
        middle(&|round| round.local_rate),
        super::super::cores()
    );
    [
        figure(client, middle(&of_client)).note(told),
        figure(nodes, middle(&of_nodes)).note(told_of_nodes),
        figure(rate, middle(&ratio)).note(told_of_rates),
    ]
}
