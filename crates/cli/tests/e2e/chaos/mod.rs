//! A pool of real processes that is really broken: each part on a machine of its own in a network that leads nowhere
//! else, a load whose every answer is held against what it may be, and faults drawn from a seed: paths cut for both or
//! in one direction, a client killed or paused while another one takes the volume over, nodes and the control plane
//! killed, a link made slow. After each storm all is mended, and every block is read.
//!
//! `WEIR_E2E_CHAOS=50 ./x e2e chaos` has so many storms; `WEIR_E2E_SEED` names the seed.

mod checker;
mod load;
mod net;

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
use std::process::{Child, Stdio};
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

/// The machines with what runs on them.
struct Pool {
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
        _ => "plane",
    }
}

impl Pool {
    fn new(name: &str) -> Option<Self> {
        let nodes = (1..=NODES).map(|at| format!("n{at}"));
        let machines = ["p1", "k1", "c1", "c2"].map(str::to_owned).into_iter().chain(nodes);
        let machines: Vec<String> = machines.collect();
        let network = match Network::new(&machines) {
            Ok(network) => network,
            Err(why) => {
                skipped(name, &why);
                return None;
            }
        };
        let scratch = Scratch::new(name);
        let names: Vec<&str> = machines.iter().map(String::as_str).chain(["admin"]).collect();
        let id = certificates(&scratch, "certs", &names);
        let plane =
            format!("[plane]\naddress = \"{}:7400\"\ndata = \"plane\"\n", network.address("p1"));
        let mut configs = BTreeMap::new();
        for machine in &machines {
            let more = plane.clone() + &own_section(machine, &network.address(machine));
            let path = config(&scratch, (&id, "certs", machine), &more);
            configs.insert(machine.clone(), path);
        }
        let admin = config(&scratch, (&id, "certs", "admin"), &plane);
        let mut pool = Self { network, scratch, configs, parts: BTreeMap::new(), admin };
        pool.start_all();
        Some(pool)
    }

    fn start_all(&mut self) {
        self.start("p1");
        self.wait_for("p1");
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
        let mut command = self.network.command("k1", weir_path().to_str().expect("a path of text"));
        let output = command.arg("pool").args(args).args(["--config", &self.admin]).output();
        let output = output.expect("weir starts");
        assert!(output.status.success(), "{args:?}: {}", said(&output));
    }

    fn start(&mut self, machine: &str) {
        let path = self.scratch.file(&format!("{machine}.log"));
        let log = OpenOptions::new().create(true).append(true).open(path).expect("a log");
        let mut command =
            self.network.command(machine, weir_path().to_str().expect("a path of text"));
        refuse::as_told(&mut command);
        command.args(["pool", kind(machine), "--config", &self.configs[machine]]);
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
    Continue(String),
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
        let (due, later) =
            std::mem::take(&mut self.mends).into_iter().partition(|(at, _)| *at <= now);
        self.mends = later;
        let due: Vec<(Instant, Mend)> = due;
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
            Mend::Continue(machine) => {
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
        match self.random.below(10) {
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
                self.cut(self.client, "p1", ms);
                self.cut("p1", self.client, ms);
                self.count("partitions");
            }
            4 => self.kill(&node, ms),
            5 => {
                self.kill("p1", ms.min(2_000));
            }
            6 => {
                self.pool.parts.remove(self.client);
                self.count("client kills");
                let next = if self.random.chance(0.5) { self.client } else { self.other() };
                self.serve_on(next);
            }
            7 => self.pause_client(ms),
            8 => self.pause_and_take_over(ms),
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
            self.count(if machine == "p1" { "plane kills" } else { "node kills" });
            self.later(ms, Mend::Start(machine.into()));
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

    /// Everything is mended, the volume goes on, and all of it is read.
    fn calm(&mut self, seed: u64) {
        let mends = std::mem::take(&mut self.mends);
        mends.into_iter().for_each(|(_, mend)| self.mend(mend));
        let begun = Instant::now();
        while !self.told || self.pool.ended(self.client) {
            self.look();
            let log = || self.pool.log(self.client);
            assert!(begun.elapsed() < PATIENCE, "seed={seed}: nobody serves: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        let checked = self.load.check(PATIENCE);
        let wrong = self.load.shared.wrong();
        assert!(wrong.is_empty(), "seed={seed}: {}", wrong.join("\n"));
        if let Err(late) = checked {
            let ask = self.pool.scratch.file(&format!("{}.sock", self.client));
            let says = output(weir_path().to_str().expect("text"), &["pool", "ask", &ask]);
            panic!("seed={seed}: {late}: {}\n{}", said(&says), self.pool.log(self.client));
        }
    }
}

#[test]
fn chaos_loses_nothing_that_a_volume_of_a_pool_acknowledged() {
    let number = |name: &str, unless: u64| {
        let told = std::env::var(name).ok();
        told.map_or(unless, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let (storms, seed) = (number("WEIR_E2E_CHAOS", 2), number("WEIR_E2E_SEED", 16));
    eprintln!("seed={seed}");
    let Some(pool) = Pool::new("chaos") else { return };
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
