//! Weir's own control plane over TCP with mutual TLS: the contract, a server that is killed, strangers.

use super::super::PoolError;
use super::super::certs::Scratch;
use super::super::config::{PartConfig, PlaneAt, PlaneConfig, PlaneSection};
use super::super::doors::{From, To, runtime};
use super::super::frames;
use super::server::PlaneServer;
use super::{CommitEnd, PlaneCalls, PlaneLink};
use flash::{MILLISECOND, SECOND};
use pool::control::contract::{
    Change, Check, Kept, Part, PlaneAnswer, PlaneAsk, PlaneAskId, PlaneRefusal, VALUE_BYTES_MAX,
};
use pool::control::keys;
use pool::control::suite::{self, UnderTest};
use pool::control::values::{PoolRecord, Value};
use pool::control::wire::{HEAD_BYTES, Hello, Message};
use pool::words::PoolId;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

const POOL: PoolId = PoolId(0xabc);
/// Nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that is killed and started at the same place, whose clock may be set forward.
pub(in crate::pool) struct Served {
    pub config: PartConfig,
    ahead_ns: Arc<AtomicU64>,
    begun: Instant,
    server: Option<PlaneServer>,
    scratch: Scratch,
}

impl Served {
    pub fn new(name: &str) -> Self {
        let scratch = Scratch::new(&format!("plane-{name}"), POOL, &["plane", "client", "node"]);
        // A free port, which the system does not give to anybody else so soon.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
        let at = PlaneAt::Embedded(free.local_addr().expect("it has one"));
        drop(free);
        let config = PartConfig {
            pool: POOL,
            identity: scratch.files("plane"),
            plane: PlaneSection {
                at,
                timeout_ns: 2 * SECOND,
                listen: None,
                data: scratch.folder().join("data"),
                clients_max: 8,
            },
            controller: None,
        };
        let begun = Instant::now();
        let mut served = Self { config, ahead_ns: Arc::default(), begun, server: None, scratch };
        served.start();
        served
    }

    pub fn start(&mut self) {
        let (begun, ahead) = (self.begun, Arc::clone(&self.ahead_ns));
        let clock = move || {
            flash::Instant(begun.elapsed().as_nanos() as u64 + ahead.load(Ordering::Relaxed))
        };
        let server = PlaneServer::start_by(&self.config, Arc::new(clock));
        self.server = Some(server.expect("the port is free, and the log sound"));
    }

    pub fn kill(&mut self) {
        self.server = None;
    }

    pub fn client(&self) -> PlaneConfig {
        let identity = self.scratch.files("client");
        PartConfig { identity, ..self.config.clone() }.plane().expect("sound certificates")
    }

    pub fn node(&self) -> PlaneConfig {
        let identity = self.scratch.files("node");
        PartConfig { identity, ..self.config.clone() }.plane().expect("sound certificates")
    }

    pub fn folder(&self) -> &Path {
        self.scratch.folder()
    }
}

/// A link whose answers are waited for.
pub(in crate::pool) struct Linked {
    pub link: PlaneLink,
    answers: Receiver<(PlaneAskId, PlaneAnswer)>,
    asked: u64,
}

impl Linked {
    pub fn new(config: &PlaneConfig) -> Self {
        let (to, answers) = channel();
        let tell = move |id, answer| drop(to.send((id, answer)));
        Self { link: PlaneLink::connect(config, tell).expect("a thread"), answers, asked: 0 }
    }

    pub fn begin(&mut self, ask: PlaneAsk) -> PlaneAskId {
        self.asked += 1;
        let id = PlaneAskId::of_part(Part::Opening, self.asked);
        self.link.ask(id, ask);
        id
    }

    pub fn next(&self) -> (PlaneAskId, PlaneAnswer) {
        self.answers.recv_timeout(PATIENCE).expect("every ask is answered")
    }

    /// The answer to an ask; what comes for others goes to `others`.
    pub fn answer(&mut self, ask: PlaneAsk, others: &mut Vec<PlaneAnswer>) -> PlaneAnswer {
        let id = self.begin(ask);
        loop {
            match self.next() {
                (of, answer) if of == id => return answer,
                (_, answer) => others.push(answer),
            }
        }
    }

    /// Waits until there is a connection, or none.
    pub fn wait(&self, connected: bool) {
        let begun = Instant::now();
        while self.link.trouble().is_none() != connected {
            assert!(begun.elapsed() < PATIENCE, "{:?}", self.link.trouble());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

struct OverTcp {
    served: Served,
    linked: Linked,
    watched: Vec<PlaneAnswer>,
}

impl UnderTest for OverTcp {
    fn ask(&mut self, ask: PlaneAsk) -> PlaneAnswer {
        self.linked.answer(ask, &mut self.watched)
    }

    fn watch(&mut self, from: String, to: String, since: u64) {
        self.linked.begin(PlaneAsk::Watch { from, to, since });
    }

    fn watched(&mut self) -> Vec<PlaneAnswer> {
        // Answers come in order: what was told before this one is there.
        self.ask(PlaneAsk::Get { key: "a".to_owned() });
        std::mem::take(&mut self.watched)
    }

    fn pass(&mut self, ns: u64) {
        self.served.ahead_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn restart(&mut self) {
        self.served.kill();
        self.linked.wait(false);
        self.served.start();
        self.linked.wait(true);
    }
}

#[test]
fn the_plane_over_tcp_keeps_the_contract_though_it_is_killed() {
    let served = Served::new("contract");
    let linked = Linked::new(&served.client());
    suite::hold(&mut OverTcp { served, linked, watched: Vec::new() });
}

fn put(key: &str, value: u8) -> Vec<Change> {
    vec![Change::Put { key: key.to_owned(), value: vec![value], lease: None }]
}

#[test]
fn what_was_under_way_when_the_plane_died_is_answered_and_what_it_acknowledged_is_there() {
    let mut served = Served::new("killed");
    let mut linked = Linked::new(&served.client());
    linked.wait(true);
    let watch = linked.begin(PlaneAsk::Watch { from: "k".into(), to: "l".into(), since: 0 });
    assert_eq!(linked.next(), (watch, PlaneAnswer::Watching));
    let (mut acknowledged, mut ends) = (0, 0);
    for round in 1..=20 {
        // Many at once, and the end in their midst.
        let ids: Vec<_> = (0..50u8)
            .map(|value| {
                let (checks, changes) = (Vec::new(), put(&format!("k{round}"), value));
                linked.begin(PlaneAsk::Commit { checks, changes })
            })
            .collect();
        let mut last = None;
        for at in 0..ids.len() {
            if at == round {
                served.kill();
            }
            let (id, answer) = loop {
                match linked.next() {
                    (id, PlaneAnswer::Changed { .. } | PlaneAnswer::Watching) if id == watch => {}
                    (id, PlaneAnswer::Forgotten) if id == watch => ends += 1,
                    other => break other,
                }
            };
            match answer {
                PlaneAnswer::Committed { revision } => last = Some((id, revision)),
                PlaneAnswer::Refused(PlaneRefusal::Unavailable) => {}
                other => panic!("round={round} at={at}: {other:?}"),
            }
        }
        served.start();
        linked.wait(true);
        let mut others = Vec::new();
        let answer = linked.answer(PlaneAsk::Get { key: format!("k{round}") }, &mut others);
        ends += others.iter().filter(|answer| **answer == PlaneAnswer::Forgotten).count();
        let PlaneAnswer::Value { kept, .. } = answer else { panic!("{answer:?}") };
        if let Some((id, revision)) = last {
            let value = ids.iter().position(|of| *of == id).expect("asked") as u8;
            let Kept { value: found, revision: at } = kept.expect("it was acknowledged");
            // Later ones may have happened without an answer.
            assert!(at >= revision && found[0] >= value, "round={round}: {found:?} at {at}");
            acknowledged += 1;
        }
    }
    assert!(acknowledged > 10, "{acknowledged} rounds had an answer");
    assert_eq!(ends, 1, "a watch ends with its connection, once");
}

#[test]
fn a_new_plane_says_which_pool_it_is_of_and_commands_ask_it() {
    let served = Served::new("calls");
    let mut calls = PlaneCalls::connect(&served.client()).expect("a thread");
    let kept = calls.get(keys::POOL.to_owned()).expect("it answers").expect("it is there");
    assert_eq!(PoolRecord::decode(keys::POOL, &kept.value).map(|of| of.pool), Ok(POOL));
    let check = || vec![Check { key: "x".into(), revision: 0 }];
    let done = calls.commit(check(), put("x", 1)).expect("it answers");
    let CommitEnd::Committed(revision) = done else { panic!("{done:?}") };
    let kept = Some(Kept { value: vec![1], revision });
    assert_eq!(calls.commit(check(), put("x", 2)).unwrap(), CommitEnd::Not(vec![kept]));
    for at in 0..3 {
        calls.commit(Vec::new(), put(&format!("y{at}"), at)).expect("it answers");
    }
    let all = calls.range(("y".into(), "z".into())).expect("it answers");
    assert_eq!(all.len(), 3);
}

#[test]
fn where_nobody_answers_an_ask_ends_within_its_time_and_the_reason_is_told() {
    let mut served = Served::new("nobody");
    served.kill();
    served.config.plane.timeout_ns = 200 * MILLISECOND;
    let begun = Instant::now();
    let mut calls = PlaneCalls::connect(&served.client()).expect("a thread");
    let error = calls.get("a".to_owned()).expect_err("nobody is there").to_string();
    assert!(error.contains("weir pool plane") && error.contains("127.0.0.1"), "{error}");
    assert!(begun.elapsed() < PATIENCE);
}

/// What the plane had is there again, instead of what it has, and it is started with that.
fn put_back(served: &mut Served, kept: &std::path::Path) {
    served.kill();
    let data = &served.config.plane.data;
    std::fs::remove_dir_all(data).expect("it is ours");
    std::fs::rename(kept, data).expect("it is ours");
    served.start();
}

#[test]
fn a_plane_that_lost_what_it_had_is_not_believed() {
    let mut served = Served::new("wiped");
    let mut linked = Linked::new(&served.client());
    let commit = || PlaneAsk::Commit { checks: Vec::new(), changes: put("a", 1) };
    let mut others = Vec::new();
    assert!(matches!(linked.answer(commit(), &mut others), PlaneAnswer::Committed { .. }));
    served.kill();
    let data = served.config.plane.data.clone();
    let aside = served.folder().join("aside");
    std::fs::rename(&data, &aside).expect("it is ours");
    served.start();
    let refused = PlaneAnswer::Refused(PlaneRefusal::Unavailable);
    assert_eq!(linked.answer(commit(), &mut others), refused);
    let trouble = linked.link.trouble().expect("it is refused");
    assert!(trouble.contains("was wiped"), "{trouble}");
    put_back(&mut served, &aside);
    linked.wait(true);
    assert!(matches!(linked.answer(commit(), &mut others), PlaneAnswer::Committed { .. }));
}

#[test]
fn an_old_copy_of_a_plane_is_not_believed_either_when_it_has_gone_on_farther() {
    let mut served = Served::new("forked");
    let mut linked = Linked::new(&served.client());
    let commit = || PlaneAsk::Commit { checks: Vec::new(), changes: put("a", 1) };
    let mut others = Vec::new();
    assert!(matches!(linked.answer(commit(), &mut others), PlaneAnswer::Committed { .. }));
    served.kill();
    let data = served.config.plane.data.clone();
    let [copy, newest] = ["copy", "newest"].map(|name| served.folder().join(name));
    std::fs::create_dir(&copy).expect("it is ours");
    for entry in std::fs::read_dir(&data).expect("it is ours").flatten() {
        std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("it is ours");
    }
    served.start();
    linked.wait(true);
    assert!(matches!(linked.answer(commit(), &mut others), PlaneAnswer::Committed { .. }));
    served.kill();
    std::fs::rename(&data, &newest).expect("it is ours");
    std::fs::rename(&copy, &data).expect("it is ours");
    served.start();
    let mut calls = PlaneCalls::connect(&served.client()).expect("a thread");
    for at in 0..10 {
        calls.commit(Vec::new(), put("b", at)).expect("who knows of nothing newer is served");
    }
    let refused = PlaneAnswer::Refused(PlaneRefusal::Unavailable);
    assert_eq!(linked.answer(commit(), &mut others), refused);
    let trouble = linked.link.trouble().expect("it is refused");
    assert!(trouble.contains("an old copy was put back"), "{trouble}");
    put_back(&mut served, &newest);
    linked.wait(true);
    assert!(matches!(linked.answer(commit(), &mut others), PlaneAnswer::Committed { .. }));
}

#[test]
fn handles_share_a_connection_and_each_hears_its_own_answers_only() {
    let served = Served::new("handles");
    let mut linked = Linked::new(&served.client());
    let (to, answers) = channel();
    let other = linked.link.sharing(move |id, answer| drop(to.send((id, answer))));
    // The same number in both.
    let id = linked.begin(PlaneAsk::Watch { from: "a".into(), to: "b".into(), since: 1 });
    other.ask(id, PlaneAsk::Watch { from: "b".into(), to: "c".into(), since: 1 });
    assert_eq!(linked.next(), (id, PlaneAnswer::Watching));
    assert_eq!(answers.recv_timeout(PATIENCE), Ok((id, PlaneAnswer::Watching)));
    let mut watched = Vec::new();
    let commit = |key: &str| PlaneAsk::Commit { checks: Vec::new(), changes: put(key, 1) };
    linked.answer(commit("b1"), &mut watched);
    assert!(watched.is_empty());
    let told = answers.recv_timeout(PATIENCE).expect("its watch is told");
    assert!(matches!(told.1, PlaneAnswer::Changed { .. }), "{told:?}");
    other.ask(PlaneAskId(9), PlaneAsk::Unwatch { watch: id });
    assert_eq!(answers.recv_timeout(PATIENCE), Ok((PlaneAskId(9), PlaneAnswer::Done)));
    linked.answer(commit("b1"), &mut watched);
    linked.answer(commit("a1"), &mut watched);
    linked.answer(PlaneAsk::Get { key: "a".into() }, &mut watched);
    assert_eq!(watched.len(), 1, "the other handle's end did not end this one: {watched:?}");
    assert!(answers.try_recv().is_err());
}

#[test]
fn a_second_plane_in_the_same_folder_or_at_the_same_address_says_why_it_cannot() {
    let served = Served::new("second");
    let error = PlaneServer::start(&served.config).err().expect("it is held").to_string();
    assert!(error.contains("held by another control plane"), "{error}");
    let mut config = served.config.clone();
    config.plane.data = served.folder().join("other");
    let error = PlaneServer::start(&config).err().expect("the port is taken");
    assert!(matches!(error, PoolError::Listen { .. }), "{error}");
}

/// Has a runtime do something with a connection of its own.
fn by_hand<T>(served: &Served, what: impl AsyncFnOnce(From, To) -> T) -> T {
    let PlaneAt::Embedded(address) = served.config.plane.at else { unreachable!("it is ours") };
    let caller = served.client().caller();
    runtime().expect("a runtime").block_on(async {
        let (from, to, hello) = caller.dial(address, "a plane").await.expect("it is there");
        assert!(hello.plane.is_some());
        what(from, to).await
    })
}

#[test]
fn a_client_that_takes_no_answers_is_cut_off_and_others_are_served() {
    let served = Served::new("greedy");
    let mut linked = Linked::new(&served.client());
    let value = vec![1; VALUE_BYTES_MAX];
    let change = Change::Put { key: "large".into(), value, lease: None };
    let commit = PlaneAsk::Commit { checks: Vec::new(), changes: vec![change] };
    let done = linked.answer(commit, &mut Vec::new());
    assert!(matches!(done, PlaneAnswer::Committed { .. }), "{done:?}");
    by_hand(&served, async |_from, mut to| {
        // Sockets take some, then the server keeps what is bounded; at last it ends the connection.
        let begun = Instant::now();
        for number in 0.. {
            let ask = PlaneAsk::Get { key: "large".into() };
            let message = Message::Ask { id: PlaneAskId(number), ask };
            if frames::send(&mut to, &message).await.is_err() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "answers to {number} wait for one that takes none");
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    });
    let get = linked.answer(PlaneAsk::Get { key: "large".into() }, &mut Vec::new());
    assert!(matches!(get, PlaneAnswer::Value { kept: Some(_), .. }), "others are served");
    assert_eq!(linked.link.trouble(), None);
}

#[test]
fn nonsense_ends_the_connection_it_came_by_and_no_other() {
    let served = Served::new("nonsense");
    let mut linked = Linked::new(&served.client());
    linked.wait(true);
    let whole = Message::Ask { id: PlaneAskId(1), ask: PlaneAsk::Get { key: "a".into() } };
    let whole = whole.encode().expect("it fits");
    let mut damaged = whole.clone();
    damaged[HEAD_BYTES] ^= 1;
    let mut endless = whole.clone();
    endless[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let hello = Message::Hello(Hello::default()).encode().expect("it fits");
    let cases = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), damaged, endless, hello];
    for (at, bytes) in cases.into_iter().enumerate() {
        by_hand(&served, async |mut from, mut to| {
            to.write_all(&bytes).await.expect("it listens");
            to.flush().await.expect("it listens");
            let ended = tokio::time::timeout(PATIENCE, from.next()).await.expect("in time");
            assert!(ended.is_err(), "case {at}: {ended:?}");
        });
    }
    let get = linked.answer(PlaneAsk::Get { key: "a".into() }, &mut Vec::new());
    assert!(matches!(get, PlaneAnswer::Value { .. }), "{get:?}");
    assert_eq!(linked.link.trouble(), None);
}

#[test]
fn connections_that_never_greet_keep_nobody_out() {
    let served = Served::new("silent");
    let PlaneAt::Embedded(address) = served.config.plane.at else { unreachable!("it is ours") };
    // Many more than there may be clients, and than may be about to greet.
    let connect = |_| std::net::TcpStream::connect(address).expect("it listens");
    let silent: Vec<_> = (0..200).map(connect).collect();
    by_hand(&served, async |_, _| ());
    drop(silent);
}

#[test]
fn more_clients_than_may_come_are_sent_away_until_one_goes() {
    let served = Served::new("many");
    let mut links: Vec<Linked> = (0..8).map(|_| Linked::new(&served.client())).collect();
    links.iter().for_each(|link| link.wait(true));
    let late = Linked::new(&served.client());
    std::thread::sleep(Duration::from_millis(100));
    assert!(late.link.trouble().is_some(), "there is no room");
    links.pop();
    late.wait(true);
}
