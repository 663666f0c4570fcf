//! A profile follows the load on a running device, leaves alone what somebody named, and loses nothing.

use flash::Instant;
use ftl::{FormatOptions, PolicyNames, Settings};
use lab::Sim;
use lab::figures::drive;
use lab::workload::{Arrival, Generator, Workload};
use nand::{Faults, Layout};

const LOGICAL: u32 = 8192;

fn device(settings: Settings) -> Sim {
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 32 };
    let medium = lab::device::nand_of("instant", &layout, Faults::default(), |_| {}).unwrap();
    let options = FormatOptions { logical_blocks: LOGICAL, uuid: 1, label: Vec::new() };
    let mut sim = Sim::format(medium, options, settings, Instant(0)).unwrap();
    sim.run_until_ready().unwrap();
    sim
}

fn load(sim: &mut Sim, reads: f64, blocks: u32, operations: u64) {
    let workload = Workload {
        reads,
        sizes: vec![(blocks, 1.0)],
        arrival: Arrival::Closed { depth: 8 },
        ..Workload::default()
    };
    let mut generator = Generator::new(workload, LOGICAL, 3).unwrap();
    drive(sim, &mut generator, operations).unwrap();
}

fn with_profile(profile: &str) -> Settings {
    let policies = PolicyNames { profile: profile.into(), ..PolicyNames::default() };
    Settings { policies, ..Settings::default() }
}

fn names(sim: &Sim) -> (String, String, String) {
    let names = sim.ftl().status().policies;
    (names.victim, names.erase, names.unit)
}

#[test]
fn auto_follows_the_load_and_says_why() {
    let mut sim = device(with_profile("auto"));
    load(&mut sim, 0.0, 1, 200_000);
    assert_eq!(names(&sim).0, "cost-benefit");
    let switches = sim.ftl().status().switches;
    assert!(
        switches
            .iter()
            .any(|change| change.why == "profile small-writes, auto: 0 % reads, writes of 4.0 KiB"),
        "{switches:?}"
    );
    load(&mut sim, 0.95, 1, 300_000);
    assert_eq!(names(&sim), ("greedy".into(), "read-first".into(), "weighted-queue".into()));
    load(&mut sim, 0.5, 16, 100_000);
    assert_eq!(names(&sim).0, "cost-benefit");
    sim.ftl().verify().unwrap();
    // Three loads, three changes, three decisions at most each.
    assert!(sim.ftl().status().switches.len() <= 9);
}

#[test]
fn what_somebody_named_is_left_alone_until_a_profile_is_chosen_anew() {
    let policies = PolicyNames { unit: "round-robin".into(), ..with_profile("auto").policies };
    let mut sim = device(Settings { policies, ..Settings::default() });
    sim.ftl_mut().set_policy("victim", "fifo").unwrap();
    load(&mut sim, 0.0, 1, 200_000);
    assert_eq!(names(&sim), ("fifo".into(), "idle".into(), "round-robin".into()));
    sim.ftl_mut().set_policy("profile", "mixed").unwrap();
    let all = ("cost-benefit".into(), "read-first".into(), "weighted-queue".into());
    assert_eq!(names(&sim), all, "at once");
    load(&mut sim, 0.0, 1, 200_000);
    assert_eq!(names(&sim), all, "a fixed profile stays");
    let error = sim.ftl_mut().set_policy("profile", "reads").unwrap_err();
    assert!(error.contains("none, auto, read-mostly, mixed, small-writes"), "{error}");
}

#[test]
fn without_a_profile_nothing_changes() {
    let mut sim = device(with_profile("none"));
    let before = names(&sim);
    load(&mut sim, 0.0, 1, 200_000);
    assert_eq!(names(&sim), before);
    assert!(sim.ftl().status().switches.is_empty());
}
