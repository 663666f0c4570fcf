//! etcd as the control plane of a pool: three members with mutual TLS, held to the same contract as Weir's own, while
//! members are killed. `WEIR_E2E_ETCD` names another binary than the `etcd` of the search path.

use crate::pool::{PATIENCE, certificates, config, free_address};
use crate::scratch::Scratch;
use crate::tools::{find, said, skipped, weir};
use pool::control::contract::{
    Change, Check, Kept, PlaneAnswer, PlaneAsk, PlaneAskId, PlaneRefusal,
};
use pool::control::suite::{self, UnderTest};
use serve::pool::config::{PartConfig, PlaneConfig};
use serve::pool::plane::{PlaneCalls, PlaneLink};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Changes have come to every watch after that.
const QUIET: Duration = Duration::from_millis(500);

/// Where etcd is, if it is anywhere.
pub fn binary() -> Option<PathBuf> {
    let named = std::env::var_os("WEIR_E2E_ETCD").map(PathBuf::from);
    let target = Path::new(env!("CARGO_BIN_EXE_weir")).ancestors().nth(2);
    let unpacked = target.map(|target| target.join("etcd/usr/bin/etcd"));
    named.or_else(|| find("etcd")).or(unpacked.filter(|path| path.exists()))
}

/// Gives `command` the arguments of a member of a cluster: its name, where clients and the other members reach it,
/// all members, and its heartbeat in milliseconds.
pub fn member(
    command: &mut Command,
    scratch: &Scratch,
    (name, client, peer): (&str, &str, &str),
    cluster: &str,
    heartbeat_ms: u32,
) {
    let certs = |file: &str| scratch.file(&format!("certs/{file}"));
    let election_ms = 10 * heartbeat_ms;
    command
        .args(["--name", name, "--data-dir", &scratch.file(name)])
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", cluster, "--initial-cluster-state", "new"])
        .args(["--cert-file", &certs("etcd.pem"), "--key-file", &certs("etcd.key")])
        .args(["--trusted-ca-file", &certs("authority.pem"), "--client-cert-auth"])
        .args(["--heartbeat-interval", &heartbeat_ms.to_string()])
        .args(["--election-timeout", &election_ms.to_string()]);
}

/// Founds a pool by `found`, as soon as the members have found each other; `log` tells why they have not.
pub fn found_by(found: impl Fn() -> Output, log: impl Fn() -> String) {
    let begun = Instant::now();
    loop {
        let found = found();
        if found.status.success() {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{}: {}", said(&found), log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

struct Member {
    name: String,
    client: String,
    peer: String,
    child: Option<Child>,
}

/// A cluster on this machine; it goes with the test.
struct Cluster {
    binary: PathBuf,
    members: Vec<Member>,
    scratch: Scratch,
    admin: String,
}

impl Cluster {
    /// Three members in which a pool is founded; `None` where there is no etcd.
    fn new(name: &str) -> Option<Self> {
        let Some(binary) = binary() else {
            skipped(name, "there is no etcd: `./x setup` fetches it, WEIR_E2E_ETCD names one");
            return None;
        };
        let scratch = Scratch::new(name);
        let id = certificates(&scratch, "certs", &["etcd", "admin"]);
        let members = (1..=3).map(|at| Member {
            name: format!("m{at}"),
            client: format!("https://{}", free_address()),
            peer: format!("http://{}", free_address()),
            child: None,
        });
        let members: Vec<Member> = members.collect();
        let urls: Vec<String> = members.iter().map(|of| format!("{:?}", of.client)).collect();
        let plane = format!("[plane]\netcd = [{}]\n", urls.join(", "));
        let admin = config(&scratch, (&id, "certs", "admin"), &plane);
        let mut cluster = Self { binary, members, scratch, admin };
        (0..3).for_each(|at| cluster.start(at));
        let log = || fs::read_to_string(cluster.scratch.file("m1.log")).unwrap_or_default();
        found_by(|| weir(&["pool", "found", "--config", &cluster.admin]), log);
        Some(cluster)
    }

    fn start(&mut self, at: usize) {
        let peers = |of: &Member| format!("{}={}", of.name, of.peer);
        let cluster: Vec<String> = self.members.iter().map(peers).collect();
        let Member { name, client, peer, .. } = &self.members[at];
        let log = File::create(self.scratch.file(&format!("{name}.log"))).expect("a scratch file");
        let mut command = Command::new(&self.binary);
        member(&mut command, &self.scratch, (name, client, peer), &cluster.join(","), 50);
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("etcd starts");
        self.members[at].child = Some(child);
    }

    fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.members[at].child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it ends");
        }
    }

    fn plane(&self) -> PlaneConfig {
        let config = PartConfig::load(Path::new(&self.admin)).and_then(|config| config.plane());
        config.expect("a sound config")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        (0..3).for_each(|at| self.kill(at));
    }
}

struct OverEtcd {
    cluster: Cluster,
    link: PlaneLink,
    answers: Receiver<(PlaneAskId, PlaneAnswer)>,
    asked: u64,
    watched: Vec<PlaneAnswer>,
}

impl OverEtcd {
    fn new(cluster: Cluster) -> Self {
        let (to, answers) = channel();
        let tell = move |id, answer| drop(to.send((id, answer)));
        let link = PlaneLink::connect(&cluster.plane(), tell).expect("a thread");
        let plane = Self { cluster, link, answers, asked: 0, watched: Vec::new() };
        plane.wait(true);
        plane
    }

    fn begin(&mut self, ask: PlaneAsk) -> PlaneAskId {
        self.asked += 1;
        self.link.ask(PlaneAskId(self.asked), ask);
        PlaneAskId(self.asked)
    }

    fn wait(&self, connected: bool) {
        let begun = Instant::now();
        while self.link.trouble().is_none() != connected {
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.link.trouble());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl UnderTest for OverEtcd {
    fn ask(&mut self, ask: PlaneAsk) -> PlaneAnswer {
        let id = self.begin(ask);
        loop {
            match self.answers.recv_timeout(PATIENCE).expect("every ask is answered") {
                (of, answer) if of == id => return answer,
                (_, answer) => self.watched.push(answer),
            }
        }
    }

    fn watch(&mut self, from: String, to: String, since: u64) {
        self.begin(PlaneAsk::Watch { from, to, since });
        // The answers of etcd come by another way than changes do.
        let (_, answer) = self.answers.recv_timeout(PATIENCE).expect("it is answered");
        self.watched.push(answer);
    }

    fn watched(&mut self) -> Vec<PlaneAnswer> {
        loop {
            match self.answers.recv_timeout(QUIET) {
                Ok((_, answer)) => self.watched.push(answer),
                Err(RecvTimeoutError::Timeout) => return std::mem::take(&mut self.watched),
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn pass(&mut self, ns: u64) {
        std::thread::sleep(Duration::from_nanos(ns));
    }

    fn restart(&mut self) {
        (0..3).for_each(|at| self.cluster.kill(at));
        self.wait(false);
        (0..3).for_each(|at| self.cluster.start(at));
        self.wait(true);
    }
}

#[test]
fn etcd_keeps_the_contract_of_the_plane_though_it_is_killed() {
    if let Some(cluster) = Cluster::new("etcd") {
        suite::hold(&mut OverEtcd::new(cluster));
    }
}

#[test]
fn while_two_of_three_members_live_what_etcd_acknowledged_is_there_and_a_wiped_one_is_refused() {
    let Some(cluster) = Cluster::new("etcd-kills") else { return };
    let mut plane = OverEtcd::new(cluster);
    let key = || "counter".to_owned();
    let (mut acknowledged, mut seen) = (0, Kept::default());
    for round in 0..6 {
        plane.cluster.kill(round % 3);
        let goal = acknowledged + 20;
        let begun = Instant::now();
        while acknowledged < goal {
            assert!(begun.elapsed() < PATIENCE, "round={round}: {:?}", plane.link.trouble());
            // What was not answered may have happened: so it looks first, as every client of a plane does.
            match plane.ask(PlaneAsk::Get { key: key() }) {
                PlaneAnswer::Value { kept, .. } => {
                    let now = kept.unwrap_or_default();
                    assert!(now.revision >= seen.revision, "round={round}: {seen:?}, then {now:?}");
                    seen = now;
                }
                PlaneAnswer::Refused(PlaneRefusal::Unavailable) => continue,
                other => panic!("round={round}: {other:?}"),
            }
            let value = (acknowledged as u64 + 1).to_le_bytes().to_vec();
            let checks = vec![Check { key: key(), revision: seen.revision }];
            let changes = vec![Change::Put { key: key(), value: value.clone(), lease: None }];
            match plane.ask(PlaneAsk::Commit { checks, changes }) {
                PlaneAnswer::Committed { revision } => {
                    seen = Kept { value, revision };
                    acknowledged += 1;
                }
                PlaneAnswer::Refused(PlaneRefusal::Unavailable) => {}
                other => panic!("round={round}: {other:?}"),
            }
        }
        plane.cluster.start(round % 3);
    }
    let refused = plane.cluster.wiped();
    assert!(refused.contains("not founded"), "{refused}");
    // Founded anew it calls itself by the same numbers; whoever knew the first one does not believe it.
    let found = weir(&["pool", "found", "--config", &plane.cluster.admin]);
    assert!(found.status.success(), "{}", said(&found));
    let begun = Instant::now();
    loop {
        let trouble = plane.link.trouble().expect("it must not connect");
        if trouble.contains("was wiped") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{trouble}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Cluster {
    /// Starts all members with nothing, and says what a command is told.
    fn wiped(&mut self) -> String {
        for at in 0..3 {
            self.kill(at);
            std::fs::remove_dir_all(self.scratch.file(&self.members[at].name)).expect("ours");
            self.start(at);
        }
        let begun = Instant::now();
        loop {
            let mut calls = PlaneCalls::connect(&self.plane()).expect("a thread");
            let told = calls.get("pool".to_owned()).expect_err("nothing is there").to_string();
            if told.contains("founded") {
                return told;
            }
            assert!(begun.elapsed() < PATIENCE, "{told}");
        }
    }
}
