//! The controller's own rules, whatever the policy.

use super::*;

fn controller(settings: Settings) -> Controller {
    Controller::new(Instant(0), settings).expect("settings are sound")
}

fn join(controller: &mut Controller, now: Instant, node: u32, domain: u32, profile: &str) {
    let profile = Profile::builtin(profile).expect("it is known");
    let input = Input::Node { node: NodeId(node), domain: DomainId(domain), profile };
    controller.handle(now, input).expect("it is whole");
}

/// Just before the next plan.
fn before(controller: &Controller) -> Instant {
    Instant(controller.deadline().0 - 1)
}

fn last(controller: &mut Controller) -> Option<Weights> {
    let mut last = None;
    while let Some(Output::Weights(weights)) = controller.poll() {
        last = Some(weights);
    }
    last
}

#[test]
fn settings_that_make_no_sense_are_refused_with_what_would() {
    let refused = |settings: Settings, says: &str| {
        let why = Controller::new(Instant(0), settings).expect_err(says).to_string();
        assert!(why.contains(says), "{why}");
    };
    let plain = Settings::default;
    refused(Settings { policy: "best".into(), ..plain() }, "segregated, ring, solver");
    refused(Settings { replicas: 5, ..plain() }, "replicas = 5: 1 to 4");
    refused(Settings { damping: f64::NAN, ..plain() }, "damping = NaN");
    refused(Settings { slot_ns: 0, ..plain() }, "slot_ns = 0");
    for (name, _) in policy::POLICIES {
        controller(Settings { policy: name.into(), ..plain() });
    }
}

#[test]
fn a_plan_is_made_every_period_and_later_ones_are_later() {
    let mut it = controller(Settings { election: 7, ..Settings::default() });
    join(&mut it, Instant(0), 1, 1, "sdm000024c8d");
    assert!(last(&mut it).is_none());
    assert_eq!(it.deadline(), Instant(100 * MILLISECOND));
    it.handle(it.deadline(), Input::Deadline).expect("nothing is new");
    let first = last(&mut it).expect("it is time");
    assert_eq!((first.turn, first.valid_ns), ((7, 1), SECOND));
    it.handle(it.deadline(), Input::Deadline).expect("nothing is new");
    assert_eq!(last(&mut it).expect("it is time").turn, (7, 2));
}

#[test]
fn too_few_domains_are_told_and_all_nodes_take_writes() {
    let mut it = controller(Settings::default());
    for node in 0..3 {
        join(&mut it, Instant(0), node, 9, "sdm000024c8d");
    }
    it.handle(Instant(SECOND / 10), Input::Deadline).expect("nothing is new");
    let weights = last(&mut it).expect("it is time");
    assert!(weights.nodes.iter().all(|node| node.write > 0.3), "{weights:?}");
    assert!(it.explain().limits.contains(&Limit::Domains(1)));
    assert!(it.explain().to_string().contains("fewer than replicas"));
}

#[test]
fn a_node_without_a_profile_is_told_with_what_to_do_and_its_domain_counts() {
    let mut it = controller(Settings::default());
    join(&mut it, Instant(0), 1, 1, "sdm000024c8d");
    for (node, domain) in [(2, 2), (3, 3)] {
        let input = Input::Unknown { node: NodeId(node), domain: DomainId(domain) };
        it.handle(Instant(0), input).expect("no profile");
    }
    let told = |it: &mut Controller, nodes: &[u32]| {
        let now = before(it);
        for &node in nodes {
            let room = Some(Room { bands: 200, used: node, pages: 136 });
            let seen = NodeSeen { room, ..NodeSeen::default() };
            it.handle(now, Input::NodeSeen(NodeId(node), seen)).expect("known");
        }
        it.handle(it.deadline(), Input::Deadline).expect("nothing is new");
        it.explain().clone()
    };
    assert_eq!(told(&mut it, &[1]).limits, [], "the others may still tell of their drives");
    let explained = told(&mut it, &[1, 2, 3]);
    let unknown = [2, 3].map(|node| Limit::Unknown(NodeId(node)));
    assert_eq!(explained.limits, unknown, "and three domains have drives");
    let rooms: Vec<u32> = explained.rooms.iter().map(|(_, room)| room.used).collect();
    assert_eq!(rooms, [1, 2, 3]);
    let text = explained.to_string();
    assert!(text.contains("node 2 has no profile to plan by; node 3 has no"), "{text}");
    assert_eq!(text.matches("`weir profile`").count(), 1, "what to do is said once: {text}");
    assert!(unknown[0].to_string().contains("`weir profile`"), "{}", unknown[0]);
    // The third one says nothing any more, and the second one has a profile.
    join(&mut it, Instant(0), 2, 2, "sdm000024c8d");
    for _ in 0..11 {
        told(&mut it, &[1, 2]);
    }
    assert_eq!(told(&mut it, &[1, 2]).limits, [Limit::Gone(NodeId(3))]);
    for node in [2, 3] {
        it.handle(Instant(0), Input::Removed(NodeId(node))).expect("no profile");
    }
    let explained = told(&mut it, &[1]);
    assert_eq!(explained.limits, [Limit::Domains(1)]);
    assert_eq!(explained.rooms.len(), 1);
}

#[test]
fn a_node_is_full_before_its_last_raw_block_is_taken() {
    let mut it = controller(Settings { replicas: 1, ..Settings::default() });
    for node in 1..4 {
        join(&mut it, Instant(0), node, node, "sdm000024c8d");
    }
    let now = before(&it);
    for (node, bands, used) in [(1, 0, 0), (2, 1000, 979), (3, 1000, 980)] {
        let seen = NodeSeen { room: Some(Room { bands, used, pages: 136 }), ..NodeSeen::default() };
        it.handle(now, Input::NodeSeen(NodeId(node), seen)).expect("known");
    }
    it.handle(it.deadline(), Input::Deadline).expect("nothing is new");
    assert_eq!(it.explain().limits, [Limit::Full { node: NodeId(3), bands: 1000, used: 980 }]);
    let text = it.explain().to_string();
    assert!(text.contains("node 3 is full: 980 of 1000 raw blocks hold bands: let more"), "{text}");
}

#[test]
fn what_a_client_tells_of_copies_is_kept_for_as_long_as_it_may_be_true() {
    let mut it = controller(Settings::default());
    let lacking = Redundancy { lacking: 12, ..Redundancy::default() };
    let tell = |it: &mut Controller, volume: u32, redundancy| {
        let seen = VolumeSeen { redundancy, ..VolumeSeen::default() };
        it.handle(before(it), Input::VolumeSeen(VolumeId(volume), seen)).expect("no node");
        it.handle(it.deadline(), Input::Deadline).expect("nothing is new");
    };
    tell(&mut it, 2, None);
    tell(&mut it, 1, Some(lacking));
    let told = |it: &Controller| it.explain().redundancy.clone();
    assert_eq!(told(&it), [(VolumeId(1), lacking)], "the other has not counted");
    for _ in 0..49 {
        tell(&mut it, 2, Some(lacking));
    }
    assert_eq!(told(&it).len(), 2);
    tell(&mut it, 2, Some(lacking));
    assert_eq!(told(&it), [(VolumeId(2), lacking)], "the first one is silent");
    assert_eq!(it.volumes.len(), 1, "and forgotten");
}

#[test]
fn drives_of_one_profile_are_one_kind_until_one_of_them_is_slower() {
    let mut it = controller(Settings::default());
    let kinds = |it: &Controller| it.nodes.iter().map(|node| node.kind).collect::<Vec<_>>();
    for (node, name) in [(1, "sdm000024c8d"), (2, "s39wna0kc01659"), (3, "sdm000024c8d")] {
        join(&mut it, Instant(0), node, node, name);
    }
    assert_eq!(kinds(&it), [0, 1, 0]);
    let mut now = Instant(0);
    while it.nodes[0].watch.slowness() == 1.0 {
        now = it.deadline();
        let seen = NodeSeen { reads: 1e4, writes: 1e3, tail_us: 50_000.0, ..NodeSeen::default() };
        it.handle(now, Input::NodeSeen(NodeId(1), seen)).expect("known");
        it.handle(now, Input::Deadline).expect("nothing is new");
        assert!(now < Instant(60 * SECOND), "it is far slower than its profile says");
    }
    assert_eq!(kinds(&it), [2, 1, 0], "a kind of its own");
    join(&mut it, now, 4, 4, "sdm000024c8d");
    assert_eq!(kinds(&it), [2, 1, 0, 0], "a fresh one is like the one that is as its profile says");
    it.handle(now, Input::Removed(NodeId(2))).expect("no node");
    join(&mut it, now, 5, 5, "s39wna0kc01659");
    assert_eq!(kinds(&it), [2, 0, 0, 1], "the place of one of which there was none any more");
    assert_eq!(it.fleet.shapes.len(), 3);
}

#[test]
fn a_demand_beyond_the_peak_is_told_as_such() {
    let mut it = controller(Settings::default());
    for node in 0..4 {
        join(&mut it, Instant(0), node, node, "s39wna0kc01659");
    }
    let seen = VolumeSeen { reads: 2e7, writes: 1e6, waf: 1.0, redundancy: None };
    it.handle(Instant(1), Input::VolumeSeen(VolumeId(1), seen)).expect("no node");
    it.handle(it.deadline(), Input::Deadline).expect("nothing is new");
    let explained = it.explain();
    assert!(matches!(explained.limits[0], Limit::Demand(part) if part < 0.3), "{explained}");
    assert!(explained.to_string().contains("% of the demand"), "{explained}");
}

#[test]
fn a_worn_drive_gets_fewer_writes_than_its_like() {
    let mut it = controller(Settings::default());
    for node in 0..6 {
        join(&mut it, Instant(0), node, node, "sdm000024c8d");
    }
    let (mut worn, mut other) = (0.0, 0.0);
    let mut now = Instant(0);
    for _ in 0..100 {
        now = it.deadline();
        for node in 0..6 {
            let wear = if node == 2 { 0.97 } else { 0.2 };
            let seen = NodeSeen { wear, ..NodeSeen::default() };
            it.handle(now, Input::NodeSeen(NodeId(node), seen)).expect("known");
        }
        let seen = VolumeSeen { reads: 1e6, writes: 6e5, waf: 1.1, redundancy: None };
        it.handle(now, Input::VolumeSeen(VolumeId(1), seen)).expect("no node");
        if let Some(weights) = last(&mut it) {
            worn += weights.nodes[2].write;
            other += weights.nodes[3].write;
        }
    }
    assert!(now > Instant(SECOND) && worn < 0.5 * other, "{worn} {other}");
    assert!(it.explain().to_string().contains("node 2 has used 97 % of its endurance"));
}

#[test]
fn a_profile_that_cannot_be_planned_with_leaves_a_node_as_it_was() {
    let mut it = controller(Settings::default());
    join(&mut it, Instant(0), 1, 1, "sdm000024c8d");
    let mut profile = Profile::builtin("s39wna0kc01659").expect("it is known");
    profile.curves.remove(0);
    let input = Input::Node { node: NodeId(1), domain: DomainId(1), profile };
    let why = it.handle(Instant(1), input).expect_err("reads alone are missing").to_string();
    assert!(why.contains("at 0 % of writes"), "{why}");
    assert_eq!(it.nodes[0].profile.name, "sdm000024c8d");
}
