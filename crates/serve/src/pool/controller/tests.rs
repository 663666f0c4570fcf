//! Controllers over a real plane: one is elected, hears reports, publishes, and is replaced.

use super::super::config::{ControllerSection, PartConfig};
use super::super::plane::tests::{Linked, Served};
use super::super::plane::{CommitEnd, PlaneCalls};
use super::*;
use flash::{Instant, SECOND};
use pool::control::contract::Change;
use pool::control::follow::{FeedOutput, WeightsFeed};
use pool::control::keys;
use pool::control::values::{ControllerRecord, NodeRecord, NodeState, Value};
use pool::controller::weights::Weights;
use pool::controller::{Limit, NodeSeen, Redundancy, Room, Settings, VolumeSeen};
use pool::profile::Profile;
use pool::words::{DomainId, Members, NodeId, VolumeId};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

fn candidate(served: &Served) -> ControllerServer {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let settings = Settings::default();
    let section =
        ControllerSection { listen, address: listen, lease_ns: SECOND, settings, clients_max: 8 };
    let config = PartConfig { controller: Some(section), ..served.config.clone() };
    ControllerServer::start(&config).expect("a port and threads")
}

fn put_node(calls: &mut PlaneCalls, node: u32, profile: &str, state: NodeState) {
    let record = NodeRecord {
        node: NodeId(node),
        domain: DomainId(node),
        address: "127.0.0.1:1".to_owned(),
        profile: profile.to_owned(),
        state,
    };
    let key = keys::node(NodeId(node));
    let value = record.encode(&key);
    let put = vec![Change::Put { key, value, lease: None }];
    assert!(matches!(calls.commit(Vec::new(), put), Ok(CommitEnd::Committed(_))));
}

/// Who is the controller, once it is another one than `before`.
fn elected(calls: &mut PlaneCalls, before: Option<u128>) -> ControllerRecord {
    let begun = std::time::Instant::now();
    loop {
        let kept = calls.get(keys::CONTROLLER.to_owned()).expect("the plane answers");
        let record = kept.map(|kept| ControllerRecord::decode(keys::CONTROLLER, &kept.value));
        match record {
            Some(record) if record.as_ref().is_ok_and(|it| Some(it.controller) != before) => {
                return record.expect("sound");
            }
            _ => assert!(begun.elapsed() < PATIENCE, "nobody is elected"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Weights as a client hears them.
struct Heard {
    linked: Linked,
    feed: WeightsFeed,
}

impl Heard {
    fn new(served: &Served) -> Self {
        let linked = Linked::new(&served.client());
        Self { linked, feed: WeightsFeed::new(Instant(0)) }
    }

    /// The first weights that fit.
    fn until(&mut self, what: &str, fits: impl Fn(&Weights) -> bool) -> Weights {
        let begun = std::time::Instant::now();
        loop {
            while let Some(output) = self.feed.poll() {
                match output {
                    FeedOutput::Ask { id, ask } => self.linked.link.ask(id, ask),
                    FeedOutput::Weights(weights) if fits(&weights) => return weights,
                    FeedOutput::Weights(_) => {}
                    FeedOutput::Unsound(error) => panic!("{error}"),
                }
            }
            assert!(begun.elapsed() < PATIENCE, "no weights {what}");
            let (id, answer) = self.linked.next();
            self.feed.answered(Instant(0), id, &answer);
        }
    }
}

/// The third node tells of its room until the controller says that it has no profile.
fn tell_without_profile(served: &Served, reports: &ReportLink, address: SocketAddr) {
    let room = Room { bands: 200, used: 12, pages: 136 };
    let begun = std::time::Instant::now();
    loop {
        reports.report_node(NodeId(3), NodeSeen { room: Some(room), ..NodeSeen::default() });
        let explained = explained(&served.client(), address).expect("it answers");
        if explained.limits.contains(&Limit::Unknown(NodeId(3))) {
            assert_eq!(explained.rooms, [(NodeId(3), room)]);
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{explained:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_elected_controller_hears_nodes_and_clients_and_is_replaced_when_it_is_gone() {
    let served = Served::new("controller");
    let mut calls = PlaneCalls::connect(&served.client()).expect("a thread");
    let fast = "sdm000024c8d";
    put_node(&mut calls, 1, fast, NodeState::In);
    put_node(&mut calls, 2, fast, NodeState::In);
    put_node(&mut calls, 3, "own", NodeState::In);
    put_node(&mut calls, 4, fast, NodeState::Out);
    let first = candidate(&served);
    let before = elected(&mut calls, None);
    assert_eq!(before.address, first.address().to_string());
    let second = candidate(&served);
    let mut heard = Heard::new(&served);
    let weights = heard.until("of two", |weights| weights.nodes.len() == 2);
    assert!(weights.nodes.iter().all(|it| it.node.0 < 3), "known profiles, and not given up");

    // The third one is there, and then says what its drive can do.
    let linked = Linked::new(&served.client());
    let reports = ReportLink::new(&linked.link, &served.client()).expect("a thread");
    tell_without_profile(&served, &reports, first.address());
    reports.report_profile(NodeId(3), &Profile::builtin(fast).expect("published"));
    heard.until("of three", |weights| weights.nodes.len() == 3);
    let tell = || {
        let seen = NodeSeen { reads: 1e5, writes: 1e4, tail_us: 200.0, ..NodeSeen::default() };
        (1..4).for_each(|node| reports.report_node(NodeId(node), seen));
        let redundancy = Some(Redundancy { lacking: 12, ..Redundancy::default() });
        let seen = VolumeSeen { reads: 3e5, writes: 3e4, waf: 1.0, redundancy };
        reports.report_volume(VolumeId(1), seen);
        let pair = Members::new(&[NodeId(1), NodeId(2)]).expect("different");
        reports.report_held(VolumeId(1), vec![(pair, 100)]);
    };
    let config = served.client();
    let until_heard = |address: SocketAddr| {
        let begun = std::time::Instant::now();
        loop {
            tell();
            let explained = explained(&config, address).expect("it answers");
            if explained.demand.reads >= 2.9e5 && explained.peak > 0.0 {
                return explained;
            }
            assert!(begun.elapsed() < PATIENCE, "{explained:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let explained = until_heard(first.address());
    assert_eq!(explained.policy, "solver");
    assert!(explained.bound > 0.0 && explained.gap() < 0.05, "{explained}");
    let is_wrong = |limit: &Limit| matches!(limit, Limit::Gone(_) | Limit::Unknown(_));
    assert!(!explained.limits.iter().any(is_wrong), "{explained}");
    let told: Vec<_> = explained.redundancy.iter().map(|(of, told)| (of.0, told.lacking)).collect();
    assert_eq!(told, [(1, 12)]);

    drop(first);
    let after = elected(&mut calls, Some(before.controller));
    assert_eq!(after.address, second.address().to_string());
    heard.until("of the second", |weights| weights.nodes.len() == 3);
    until_heard(second.address());
    // A node that is given up gets nothing.
    put_node(&mut calls, 2, fast, NodeState::Out);
    heard.until("without the second node", |weights| {
        weights.nodes.iter().map(|it| it.node.0).eq([1, 3])
    });
}

#[test]
fn without_a_controller_reports_go_nowhere_and_nobody_waits() {
    let mut served = Served::new("no-controller");
    let linked = Linked::new(&served.client());
    let reports = ReportLink::new(&linked.link, &served.client()).expect("a thread");
    let begun = std::time::Instant::now();
    for round in 0..10_000 {
        if round == 5000 {
            served.kill();
        }
        reports.report_node(NodeId(1), NodeSeen::default());
    }
    assert!(begun.elapsed() < PATIENCE);
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let error = explained(&served.client(), nowhere).expect_err("nobody is there").to_string();
    assert!(error.contains("weir pool controller"), "{error}");
}
