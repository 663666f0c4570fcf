//! What streams gain, on the FTL itself; and that a bad stream policy costs nothing but order.

use crate::{THREADS, passed, seeds};
use flash::Random;
use ftl::policy::stream::{Handles, MoveView, Shape, StreamPolicy, WriteView, by_name};
use lab::crash::{CrashOptions, explore_seeds};
use lab::driver::Plant;
use lab::streams::{Change, ChangeKind, Changes, Rounds, StreamDevice, StreamRun, StreamWaf};
use lab::theory::waf_two_classes;
use lab::workload::Pattern;

fn measured(run: &StreamRun, stream: &str) -> StreamWaf {
    let waf = run.measure(stream).unwrap_or_else(|failure| panic!("{stream}: {failure}"));
    println!("{stream}: {waf:?}");
    waf
}

#[test]
fn hints_separate_hot_from_cold_as_well_as_mathematics_allows() {
    let (fraction, share) = (0.2, 0.8);
    let pattern = Pattern::HotCold { fraction, share };
    let run = StreamRun { bands: 1024, overwrites: 8.0, pattern, ..StreamRun::default() };
    let waf = measured(&run.scaled(4), "hint:handles=2");
    // Bands of 128 blocks: by chance some empty earlier than the mathematics of large ones says.
    let optimum = waf_two_classes(waf.alpha, fraction, share);
    let error = waf.waf / optimum - 1.0;
    println!("{error:+.4} off the optimum of {optimum:.3}");
    assert!(error.abs() < 0.05, "{waf:?}: {error:+.4} off the optimum of {optimum:.3}");
    assert!(waf.waf_all >= waf.waf, "{waf:?}");
}

#[test]
fn detectors_gain_under_skew_and_the_oracle_gains_most() {
    let pattern = Pattern::ZipfLocal { theta: 1.0 };
    let run = StreamRun { bands: 512, overwrites: 5.0, pattern, ..StreamRun::default() }.scaled(8);
    let none = measured(&run, "none").waf;
    let (sfr, sepbit) = (measured(&run, "sfr:chunk=128KiB").waf, measured(&run, "sepbit").waf);
    let oracle = measured(&run, "oracle").waf;
    assert!(sfr < none && sepbit < none, "none {none:.3}, sfr {sfr:.3}, sepbit {sepbit:.3}");
    assert!(1.0 <= oracle && oracle < sfr.min(sepbit), "oracle {oracle:.3}");
    // The same seed, the same run.
    assert_eq!(measured(&run, "sepbit").waf, sepbit);
}

#[test]
fn gc_that_mixes_what_it_moves_with_new_data_pays_for_it_under_skew() {
    let pattern = Pattern::ZipfLocal { theta: 1.0 };
    let run = StreamRun { bands: 512, overwrites: 5.0, pattern, ..StreamRun::default() }.scaled(8);
    let (apart, mixed) = (measured(&run, "none").waf, measured(&run, "none:moved=0").waf);
    // A simulation of the same load without the FTL around it gives 3.60 and 8.64.
    assert!(mixed > 1.5 * apart, "apart {apart:.3}, mixed {mixed:.3}");
}

/// Names handles that do not exist, and never the same for long.
struct Nonsense(u8);

impl StreamPolicy for Nonsense {
    fn name(&self) -> &'static str {
        "nonsense"
    }

    fn handles(&self) -> Handles {
        Handles { host: 3, moved: 200 }
    }

    fn place_write(&mut self, _: &WriteView) -> u8 {
        self.0 = self.0.wrapping_add(37);
        self.0
    }

    fn place_move(&mut self, _: &MoveView) -> u8 {
        self.0 = self.0.wrapping_mul(5).wrapping_add(1);
        self.0
    }
}

#[test]
fn a_stream_policy_that_answers_nonsense_loses_nothing_in_any_power_cut() {
    let test = "a_stream_policy_that_answers_nonsense_loses_nothing_in_any_power_cut";
    let options = |seed| {
        let plant = Plant::new(|ftl| ftl.set_stream_policy(Box::new(Nonsense(0))));
        CrashOptions { plant, images_per_cut: 16, ..CrashOptions::of_seed(seed) }
    };
    let report = passed(test, explore_seeds(seeds(0..12), THREADS, options));
    assert!(report.images > 0, "{report:?}");
}

#[test]
fn gc_that_mixes_what_it_moves_with_new_data_loses_nothing_in_any_power_cut() {
    let test = "gc_that_mixes_what_it_moves_with_new_data_loses_nothing_in_any_power_cut";
    let options = |seed| {
        let mixed = || by_name("none:moved=0", Shape { blocks: 1, handles: 1 });
        let plant = Plant::new(move |ftl| ftl.set_stream_policy(mixed().expect("it exists")));
        CrashOptions { plant, images_per_cut: 16, ..CrashOptions::of_seed(seed) }
    };
    let report = passed(test, explore_seeds(seeds(0..12), THREADS, options));
    assert!(report.images > 0, "{report:?}");
}

#[test]
fn a_load_ends_between_two_rounds_when_a_part_costs_what_it_did_a_round_before() {
    let (logical_blocks, length) = (16_384_u32, 6 * 16_384_u32);
    let mut random = Random::new(3);
    let change = |lba: u32| Change { lba, blocks: 1, kind: ChangeKind::Write, handle: 0 };
    let list =
        (0..length).map(|_| change(random.below(u64::from(logical_blocks)) as u32)).collect();
    let fill_handles = vec![0; logical_blocks as usize];
    let changes = Changes { logical_blocks, fill_handles, list };
    let device = StreamDevice {
        slots_per_band: 32,
        op_percent: 10.0,
        victim: "greedy".into(),
        checkpoint_slots: 0,
        seed: 1,
    };
    let each = u64::from(length);
    let measured = |rounds| device.measure(&changes, "none", rounds, &mut |_| {}).unwrap();
    // Without a warm-up the first round is not steady.
    let early = measured(Rounds { warm: 0, each, parts: 6, least: 1, most: 6 });
    let late = measured(Rounds { warm: 0, each, parts: 1, least: 4, most: 4 });
    println!("{:?} against {:?}", early.rounds, late.rounds);
    assert!(early.steady && early.rounds.len() == 2, "a round and a part: {early:?}");
    assert_eq!(early.rounds.last(), Some(&early.waf));
    assert!((early.waf / late.waf - 1.0).abs() < 0.01, "{} against {}", early.waf, late.waf);
    assert_eq!(late.rounds.len(), 4);
}
