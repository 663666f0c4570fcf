//! A pool of real processes that is really broken: each part on a machine of its own in a network that leads nowhere
//! else, a load whose every answer is held against what it may be, and faults drawn from a seed: paths cut for both or
//! in one direction, a client killed or paused while another one takes the volume over, nodes and the control plane
//! killed, a link made slow. After each storm all is mended, and every block is read.
//!
//! `WEIR_E2E_CHAOS=50 cargo test -p cli --test e2e chaos_loses -- --ignored` has so many storms; `WEIR_E2E_SEED` names
//! the seed.

mod checker;
mod load;
mod net;

use crate::etcd;
use crate::pool::{PATIENCE, certificates, config};
use crate::refuse;
use crate::scratch::Scratch;
use crate::tools::{output, said, skipped, weir_path};
use flash::Random;
use load::{Load, Serving};
use net::Network;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The volume.
pub const VOLUME: &str = "data";
const BLOCKS: u64 = 8192;
const NODES: usize = 4;
const FAULTS_OF_A_STORM: u32 = 6;

/// A part as a process. Killed when it is dropped.
struct Part {
    child: Child,
    ready: Arc<AtomicBool>,
}

impl Part {
    fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved. The child was not waited for, so that its number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Relaxed)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What the control plane is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Planes {
    Own,
    Etcd,
}

impl Planes {
    /// Its machines.
    fn machines(self) -> &'static [&'static str] {
        match self {
            Self::Own => &["p1"],
            Self::Etcd => &["e1", "e2", "e3"],
        }
    }
}

/// The machines with what runs on them.
struct Pool {
    planes: Planes,
    network: Network,
    scratch: Scratch,
    configs: BTreeMap<String, String>,
    parts: BTreeMap<String, Part>,
    admin: String,
}

fn kind(machine: &str) -> &'static str {
    match machine.as_bytes()[0] {
        b'n' => "node",
        b'c' => "client",
        b'k' => "controller",
        b'e' => "etcd",
        _ => "plane",
    }
}

impl Pool {
    /// `None` where the machine lacks what it takes, which is told.
    fn new(name: &str, planes: Planes) -> Option<Self> {
        if planes == Planes::Etcd && etcd::binary().is_none() {
            skipped(name, "there is no etcd: `./x setup` fetches it, WEIR_E2E_ETCD names one");
            return None;
        }
        let nodes = (1..=NODES).map(|at| format!("n{at}"));
        let machines = planes.machines().iter().chain(&["k1", "c1", "c2"]);
        let machines: Vec<String> = machines.map(|&name| name.to_owned()).chain(nodes).collect();
        let network = match Network::new(&machines) {
            Ok(network) => network,
            Err(why) => {
                skipped(name, &why);
                return None;
            }
        };
        let scratch = Scratch::new(name);
        let names = machines.iter().map(String::as_str).chain(["admin", "etcd"]);
        let id = certificates(&scratch, "certs", &names.collect::<Vec<_>>());
        let at = |machine: &&str| format!("\"https://{}:2379\"", network.address(machine));
        let plane = match planes {
            Planes::Own => {
                let address = network.address("p1");
                format!("[plane]\naddress = \"{address}:7400\"\ndata = \"plane\"\n")
            }
            Planes::Etcd => {
                let urls: Vec<String> = planes.machines().iter().map(at).collect();
                format!("[plane]\netcd = [{}]\n", urls.join(", "))
            }
        };
        let mut configs = BTreeMap::new();
        for machine in machines.iter().filter(|machine| kind(machine) != "etcd") {
            let more = plane.clone() + &own_section(machine, &network.address(machine));
            let path = config(&scratch, (&id, "certs", machine), &more);
            configs.insert(machine.clone(), path);
        }
        let admin = config(&scratch, (&id, "certs", "admin"), &plane);
        let parts = BTreeMap::new();
        let mut pool = Self { planes, network, scratch, configs, parts, admin };
        pool.start_all();
        Some(pool)
    }

    fn start_all(&mut self) {
        for machine in self.planes.machines() {
            self.start(machine);
        }
        match self.planes {
            Planes::Own => self.wait_for("p1"),
            Planes::Etcd => self.found(),
        }
        for at in 1..=NODES {
            let (node, machine) = (at.to_string(), format!("n{at}"));
            let address = format!("{}:7402", self.network.address(&machine));
            self.done(&["join", &node, "--domain", &node, "--address", &address]);
            self.start(&machine);
        }
        let size = format!("{}KiB", BLOCKS * flash::BLOCK_BYTES as u64 / 1024);
        self.done(&["volume", "create", VOLUME, "--size", &size, "--band", "1740KiB"]);
        self.start("k1");
        self.start("c1");
    }

    /// A command of who looks after the pool, from the controller's machine.
    fn done(&self, args: &[&str]) {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
    }

    fn command(&self, args: &[&str]) -> Output {
        let mut command = self.network.command("k1", &program());
        let output = command.arg("pool").args(args).args(["--config", &self.admin]).output();
        output.expect("nsenter starts")
    }

    /// Founds the pool in etcd, as soon as its members have found each other.
    fn found(&self) {
        etcd::found_by(|| self.command(&["found"]), || self.log("e1"));
    }

    fn start(&mut self, machine: &str) {
        let path = self.scratch.file(&format!("{machine}.log"));
        let log = OpenOptions::new().create(true).append(true).open(path).expect("a log");
        let mut command = match kind(machine) {
            "etcd" => self.member(machine),
            what => {
                let mut command = self.network.command(machine, &program());
                refuse::as_told(&mut command);
                command.args(["pool", what, "--config", &self.configs[machine]]);
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // SAFETY: the call is safe between fork and exec. No part outlives the test.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let mut child = command.spawn().expect("nsenter starts");
        let ready = Arc::new(AtomicBool::new(false));
        let (out, tells) = (child.stdout.take().expect("a pipe"), Arc::clone(&ready));
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if line.starts_with("ready") {
                    tells.store(true, Relaxed);
                }
            }
        });
        self.parts.insert(machine.to_owned(), Part { child, ready });
    }

    /// A member of the cluster. What it says goes where its log goes.
    fn member(&self, machine: &str) -> Command {
        let url = |scheme: &str, of: &str, port: u16| {
            format!("{scheme}://{}:{port}", self.network.address(of))
        };
        let all = self.planes.machines().iter().map(|of| format!("{of}={}", url("http", of, 2380)));
        let cluster = all.collect::<Vec<_>>().join(",");
        let (client, peer) = (url("https", machine, 2379), url("http", machine, 2380));
        let binary = etcd::binary().expect("it was there");
        let mut command = self.network.command(machine, binary.to_str().expect("a path of text"));
        etcd::member(&mut command, &self.scratch, (machine, &client, &peer), &cluster, 100);
        command
    }

    fn wait_for(&self, machine: &str) {
        let begun = Instant::now();
        while !self.parts[machine].is_ready() {
            assert!(begun.elapsed() < PATIENCE, "{machine} is not ready: {}", self.log(machine));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn log(&self, machine: &str) -> String {
        let text = fs::read_to_string(self.scratch.file(&format!("{machine}.log")));
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(8).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn ended(&mut self, machine: &str) -> bool {
        self.parts
            .get_mut(machine)
            .is_none_or(|part| part.child.try_wait().expect("ours").is_some())
    }
}

fn program() -> String {
    weir_path().to_str().expect("a path of text").to_owned()
}

fn own_section(machine: &str, address: &str) -> String {
    let number = &machine[1..];
    match kind(machine) {
        "node" => format!(
            "[node]\nid = {number}\nlisten = \"{address}:7402\"\ncontrol = \"{machine}.sock\"\n[device]\nmode = \
             \"raw\"\nkind = \"nand\"\nprofile = \"instant\"\npath = \"drive-{number}\"\nchannels = 4\n\
             dies_per_channel = 1\ncapacity = \"256MiB\"\n[raw]\ngang = 2\n"
        ),
        "client" => format!(
            "[client]\nvolume = \"{VOLUME}\"\nname = \"{machine}\"\ncontrol = \"{machine}.sock\"\n[nbd]\n\
             unix = \"{machine}.nbd\"\n[http]\naddress = \"127.0.0.1:0\"\n[control]\nunix = \"{machine}.ctl\"\n"
        ),
        "controller" => format!("[controller]\nlisten = \"{address}:7401\"\n"),
        _ => String::new(),
    }
}

/// What is to be undone.
enum Mend {
    Path(String, String),
    Start(String),
    /// A client, which waits until another one serves.
    Continue(String),
    /// A node.
    Resume(String),
    Slow(String),
}

struct Chaos {
    pool: Pool,
    load: Load,
    random: Random,
    /// Which client was started last, and if its volume was already told of.
    client: &'static str,
    told: bool,
    term: u64,
    mends: Vec<(Instant, Mend)>,
    counts: BTreeMap<&'static str, u64>,
}

impl Chaos {
    fn new(pool: Pool, seed: u64) -> Self {
        let load = Load::start(seed, 2, BLOCKS);
        let (random, counts) = (Random::new(seed), BTreeMap::new());
        Self { pool, load, random, client: "c1", told: false, term: 0, mends: Vec::new(), counts }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Looks after everything for a while.
    fn watch(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.look();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn look(&mut self) {
        let now = Instant::now();
        // Who was paused goes on once the other one serves: then it has to find out that it has lost the volume.
        let waits =
            |mend: &Mend| matches!(mend, Mend::Continue(who) if who != self.client) && !self.told;
        let mends = std::mem::take(&mut self.mends).into_iter();
        let (due, later): (Vec<_>, Vec<_>) =
            mends.partition(|(at, mend)| *at <= now && !waits(mend));
        self.mends = later;
        due.into_iter().for_each(|(_, mend)| self.mend(mend));
        if !self.told && self.pool.parts[self.client].is_ready() {
            self.told = true;
            self.term += 1;
            let socket = self.pool.scratch.path().join(format!("{}.nbd", self.client));
            self.load.shared.serve(Serving { term: self.term, socket });
        }
        if self.pool.ended(self.client) {
            self.count("client started again");
            self.serve_on(self.client);
        }
    }

    fn serve_on(&mut self, client: &'static str) {
        self.mends.retain(|(_, mend)| !matches!(mend, Mend::Continue(who) if who == client));
        self.pool.start(client);
        (self.client, self.told) = (client, false);
    }

    fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Path(from, to) => self.pool.network.mend(&from, &to),
            Mend::Start(machine) => self.pool.start(&machine),
            Mend::Continue(machine) | Mend::Resume(machine) => {
                if !self.pool.ended(&machine) {
                    self.pool.parts[&machine].signal(libc::SIGCONT);
                }
            }
            Mend::Slow(machine) => drop(self.pool.network.slow(&machine, None)),
        }
    }

    fn later(&mut self, ms: u64, mend: Mend) {
        self.mends.push((Instant::now() + Duration::from_millis(ms), mend));
    }

    fn cut(&mut self, from: &str, to: &str, ms: u64) {
        self.pool.network.cut(from, to);
        self.later(ms, Mend::Path(from.into(), to.into()));
    }

    fn other(&self) -> &'static str {
        if self.client == "c1" { "c2" } else { "c1" }
    }

    fn fault(&mut self) {
        let ms = 500 + self.random.below(5_000);
        let node = format!("n{}", 1 + self.random.below(NODES as u64));
        match self.random.below(12) {
            0 => self.part_halves(ms),
            1 => {
                self.cut(self.client, &node, ms);
                self.cut(&node, self.client, ms);
                self.count("partitions");
            }
            2 => {
                let (from, to) = if self.random.chance(0.5) {
                    (self.client, &*node)
                } else {
                    (&*node, self.client)
                };
                self.cut(from, to, ms);
                self.count("partitions");
            }
            3 => {
                for plane in self.pool.planes.machines() {
                    self.cut(self.client, plane, ms);
                    self.cut(plane, self.client, ms);
                }
                self.count("partitions");
            }
            4 | 10 => self.kill(&node, ms),
            5 => {
                let planes = self.pool.planes.machines();
                let at = self.random.below(planes.len() as u64) as usize;
                self.kill(planes[at], ms.min(2_000));
            }
            6 => {
                self.pool.parts.remove(self.client);
                self.count("client kills");
                let next = if self.random.chance(0.5) { self.client } else { self.other() };
                self.serve_on(next);
            }
            7 => self.pause_client(ms),
            8 => self.pause_and_take_over(ms),
            11 => self.stall(&node, ms.min(6_000)),
            _ => {
                if self.pool.network.slow(&node, Some(4_000)) {
                    self.later(ms, Mend::Slow(node));
                    self.count("slow links");
                }
            }
        }
    }

    /// Two nodes see neither the others nor the client.
    fn part_halves(&mut self, ms: u64) {
        for here in ["n1", "n2"] {
            for there in ["n3", "n4", self.client] {
                self.cut(here, there, ms);
                self.cut(there, here, ms);
            }
        }
        self.count("partitions");
    }

    fn kill(&mut self, machine: &str, ms: u64) {
        if self.pool.parts.remove(machine).is_some() {
            let planes = self.pool.planes.machines().iter();
            let plane = planes.zip(["plane kills 1", "plane kills 2", "plane kills 3"]);
            let plane = plane.into_iter().find(|(name, _)| **name == machine);
            self.count(plane.map_or("node kills", |(_, what)| what));
            self.later(ms, Mend::Start(machine.into()));
        }
    }

    /// Its connections stay, and nothing of it comes.
    fn stall(&mut self, node: &str, ms: u64) {
        if !self.pool.ended(node) {
            self.pool.parts[node].signal(libc::SIGSTOP);
            self.count("node stalls");
            self.later(ms, Mend::Resume(node.into()));
        }
    }

    fn pause_client(&mut self, ms: u64) {
        if !self.pool.ended(self.client) {
            self.pool.parts[self.client].signal(libc::SIGSTOP);
            self.count("client pauses");
            self.later(ms, Mend::Continue(self.client.into()));
        }
    }

    /// The other client is started while this one is paused, which goes on once the volume is lost to it.
    fn pause_and_take_over(&mut self, ms: u64) {
        self.pause_client(5_000 + ms);
        let next = self.other();
        self.serve_on(next);
        self.count("take-overs");
    }

    /// If the client that has lost the volume has ended by itself, as it should.
    fn others_ended(&mut self, seed: u64) -> bool {
        let other = self.other();
        let Some(part) = self.pool.parts.get_mut(other) else { return true };
        let Some(status) = part.child.try_wait().expect("ours") else { return false };
        let log = self.pool.log(other);
        assert_eq!(status.code(), Some(2), "seed={seed}: {other} ended otherwise: {log}");
        assert!(!log.contains("panicked at"), "seed={seed}: {other}: {log}");
        self.pool.parts.remove(other);
        self.count("ended for another");
        true
    }

    /// Everything is mended, the volume goes on, and all of it is read.
    fn calm(&mut self, seed: u64) {
        let now = Instant::now();
        self.mends.iter_mut().for_each(|(at, _)| *at = now);
        let begun = Instant::now();
        while !self.told || self.pool.ended(self.client) {
            self.look();
            let log = || self.pool.log(self.client);
            assert!(begun.elapsed() < PATIENCE, "seed={seed}: nobody serves: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        while !self.mends.is_empty() || !self.others_ended(seed) {
            self.look();
            let log = || self.pool.log(self.other());
            assert!(begun.elapsed() < 2 * PATIENCE, "seed={seed}: it goes on: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        let checked = self.load.check(PATIENCE);
        let wrong = self.load.shared.wrong();
        assert!(wrong.is_empty(), "seed={seed}: {}", wrong.join("\n"));
        if let Err(late) = checked {
            let ask = self.pool.scratch.file(&format!("{}.sock", self.client));
            let says = output(&program(), &["pool", "ask", &ask]);
            panic!("seed={seed}: {late}: {}\n{}", said(&says), self.pool.log(self.client));
        }
    }
}

#[test]
#[ignore = "a soak: CONTRIBUTING.md says how it is run"]
fn chaos_loses_nothing_that_a_volume_of_a_pool_acknowledged() {
    survive("chaos", Planes::Own);
}

#[test]
#[ignore = "a soak: CONTRIBUTING.md says how it is run"]
fn chaos_loses_nothing_either_where_three_members_of_etcd_are_the_plane() {
    survive("chaos-etcd", Planes::Etcd);
}

fn survive(name: &str, planes: Planes) {
    let number = |name: &str, unless: u64| {
        let told = std::env::var(name).ok();
        told.map_or(unless, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let (storms, seed) = (number("WEIR_E2E_CHAOS", 2), number("WEIR_E2E_SEED", 16));
    eprintln!("seed={seed}");
    let Some(pool) = Pool::new(name, planes) else { return };
    let mut chaos = Chaos::new(pool, seed);
    chaos.calm(seed);
    for storm in 1..=storms {
        for _ in 0..FAULTS_OF_A_STORM {
            chaos.fault();
            let ms = 300 + chaos.random.below(1_500);
            chaos.watch(Duration::from_millis(ms));
        }
        chaos.calm(seed);
        eprintln!("storm {storm} of {storms}: {:?}", chaos.counts);
    }
    let done = &chaos.load.shared.done;
    eprintln!(
        "seed={seed}: {:?}; {} writes and {} reads answered, {} refused, {} acknowledged late, {} probes of clients \
         that had lost the volume, {} blocks checked",
        chaos.counts,
        done.writes.load(Relaxed),
        done.reads.load(Relaxed),
        done.refused.load(Relaxed),
        done.late.load(Relaxed),
        done.probes.load(Relaxed),
        done.checked.load(Relaxed)
    );
    assert!(
        done.writes.load(Relaxed) > 0 && done.reads.load(Relaxed) > 0,
        "a load that does nothing"
    );
}
