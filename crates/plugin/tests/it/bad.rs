//! Modules that are wrong are refused with the reason when they are loaded; those that go wrong
//! later are replaced, counted by how, and nothing is lost.

use crate::{assembled, stream, victim};
use flash::Instant;
use ftl::policy::stream::Shape;
use ftl::{Status, Switch};
use lab::crash::{CrashOptions, explore_seeds};
use lab::driver::Plant;
use lab::streams::StreamRun;
use plugin::{LoadError, MODULE_BYTES_MAX, Module};
use std::time::Instant as Clock;

const GOOD_PICK: &str = "i32.const 0";

fn count(status: &Status, name: &str) -> u64 {
    lab::checker::counter(status, name).unwrap_or_else(|| panic!("no counter is called {name}"))
}

fn refused(bytes: &[u8]) -> LoadError {
    Module::load("bad", bytes).expect_err("it is refused")
}

#[test]
fn what_is_no_module_or_too_large_is_refused_at_once() {
    assert_eq!(refused(b"#!/bin/sh"), LoadError::NotWasm);
    assert_eq!(refused(b""), LoadError::NotWasm);
    assert_eq!(refused(&[0; MODULE_BYTES_MAX + 1]), LoadError::TooLarge(MODULE_BYTES_MAX + 1));
    let whole = victim("", GOOD_PICK);
    Module::load("good", &whole).unwrap();
    for cut in [5, 8, whole.len() / 2, whole.len() - 1] {
        let error = refused(&whole[..cut]);
        let invalid = matches!(error, LoadError::Invalid(_) | LoadError::Exports(_));
        assert!(invalid, "cut at {cut}: {error}");
    }
    for name in ["", "Bad", "a b", "../x", &"x".repeat(33)] {
        assert!(matches!(Module::load(name, &whole), Err(LoadError::Name(_))), "{name}");
    }
}

#[test]
fn random_damage_to_a_module_is_refused_or_harmless() {
    let whole = victim("", GOOD_PICK);
    for seed in 0..300 {
        let mut random = flash::Random::new(seed);
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(4) {
            let at = 4 + random.below(bytes.len() as u64 - 4) as usize;
            bytes[at] = random.below(256) as u8;
        }
        // Either is fine: what matters is that it comes back.
        println!("seed={seed}: {:?}", Module::load("damaged", &bytes).map(|module| module.bytes()));
    }
}

#[test]
fn imports_are_refused_by_name() {
    let head = "(import \"env\" \"random\" (func (result i32)))";
    let error = refused(&victim(head, GOOD_PICK));
    assert_eq!(error, LoadError::Imports("env.random".into()));
    assert!(error.to_string().contains("may call nothing"), "{error}");
}

#[test]
fn missing_exports_and_other_versions_are_refused_by_name() {
    let cases = [
        ("(module)", "memory"),
        ("(module (memory (export \"memory\") 1))", "weir_abi()"),
        (
            "(module (memory (export \"memory\") 1)
                (func (export \"weir_abi\") (result i32) i32.const 1)
                (func (export \"stream_start\") (param i32) (result i32) i32.const 0x101))",
            "stream_write(i32, i32, i32, i32, i64, i64)",
        ),
        (
            "(module (memory (export \"memory\") 1)
                (func (export \"weir_abi\") (result i32) i32.const 2)
                (func (export \"erase_now\") (param i32 i32 i64 i64 i32 i32) (result i32)
                    i32.const 1))",
            "version 2",
        ),
    ];
    for (text, said) in cases {
        let error = refused(&assembled(text)).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_module_that_breaks_on_a_view_is_refused_with_the_reason() {
    let counter = "(global $calls (mut i32) (i32.const 0))";
    let cases = [
        (victim("", "local.get $len"), "of 1"),
        (victim("", "i32.const -1"), "picked band -1"),
        (victim("", "unreachable"), "trapped"),
        (victim("", "(i32.div_u (local.get $len) (i32.const 0))"), "divide by zero"),
        (victim("", "(i32.load (i32.const 0x7fffff00))"), "out of bounds"),
        (victim("", "(loop $l (br $l)) i32.const 0"), "in the time it has"),
        (victim("", "(drop (memory.grow (i32.const 1))) i32.const 0"), "while it decided"),
        (
            victim("", "(memory.fill (i32.const 0) (i32.const 0) (i32.const 0xf0000)) i32.const 0"),
            "in the time it has",
        ),
        (
            victim(
                counter,
                "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                 (i32.rem_u (global.get $calls) (local.get $len))",
            ),
            "for the same view",
        ),
        (victim("(start $s) (func $s (loop $l (br $l)))", GOOD_PICK), "in the time it has"),
        (stream("", "(i32.and (local.get $handles) (i32.const 0xff))"), "chose handle"),
        (stream("", "(loop $l (br $l)) i32.const 0"), "in the time it has"),
        (
            victim(
                "(func $deep (param i32) (call $deep (local.get 0)) (call $deep (local.get 0)))",
                "(call $deep (i32.const 0)) i32.const 0",
            ),
            "call stack exhausted",
        ),
    ];
    for (bytes, said) in cases {
        let error = refused(&bytes).to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn memory_beyond_the_bound_is_refused_when_the_module_begins() {
    let text = "(module (memory (export \"memory\") 200)
        (func (export \"weir_abi\") (result i32) i32.const 1)
        (func (export \"erase_now\") (param i32 i32 i64 i64 i32 i32) (result i32) i32.const 1))";
    let error = refused(&assembled(text)).to_string();
    assert!(error.contains("may have 4194304"), "{error}");
    let greedy = "(module (memory (export \"memory\") 1)
        (func (export \"weir_abi\") (result i32) i32.const 1)
        (func (export \"stream_start\") (param i32) (result i32)
            (drop (memory.grow (i32.const 100))) i32.const 0x101)
        (func (export \"stream_write\") (param i32 i32 i32 i32 i64 i64) (result i32) i32.const 0))";
    let error = refused(&assembled(greedy)).to_string();
    assert!(error.contains("bytes of memory and may have"), "{error}");
}

/// Goes wrong after so many calls: well behind what the check asks.
fn late(call: i64, wrong: &str) -> (String, String) {
    let head = "(global $calls (mut i64) (i64.const 0))".to_owned();
    let body = format!(
        "(global.set $calls (i64.add (global.get $calls) (i64.const 1)))
         (if (i64.gt_u (global.get $calls) (i64.const {call})) (then {wrong}))
         i32.const 0"
    );
    (head, body)
}

const WRONGS: [(&str, &str); 4] = [
    ("(loop $l (br $l))", "policies_out_of_time"),
    ("unreachable", "policies_trapped"),
    ("(drop (memory.grow (i32.const 1)))", "policies_out_of_memory"),
    ("(return (i32.const 77))", "policies_out_of_range"),
];

#[test]
fn a_stream_policy_that_goes_wrong_is_counted_by_how_and_replaced() {
    let run = StreamRun { bands: 64, overwrites: 3.0, ..StreamRun::default() }.scaled(8);
    for (wrong, counted) in WRONGS {
        let (head, body) = late(5000, wrong);
        let module = Module::load("late", &stream(&head, &body)).unwrap();
        let (waf, status) = run
            .measure_and_look("none", |ftl| {
                let shapes = ftl.stream_shapes("stream")?;
                let chosen = shapes.iter().map(|&shape| module.make("stream", shape));
                let chosen = chosen.collect::<Result<_, _>>()?;
                let (now, by) = (Instant(0), "the test");
                let switch = Switch { now, decision: "stream", name: "wasm:late", by, chosen };
                ftl.switch_policy(switch).map(drop)
            })
            .unwrap();
        assert!(waf.waf > 1.0, "{waf:?}");
        assert_eq!(count(&status, counted), 1, "{wrong}");
        assert_eq!(status.policies.stream, "none");
        let [first, last] = &status.switches[..] else { panic!("{:?}", status.switches) };
        assert_eq!((&*first.from, &*first.to, &*first.why), ("none", "wasm:late", "the test"));
        assert_eq!((&*last.from, &*last.to), ("wasm:late", "none"));
        assert!(last.why.starts_with("it broke: "), "{last:?}");
    }
}

#[test]
fn a_victim_policy_that_goes_wrong_loses_nothing_in_any_power_cut() {
    for (seed, (wrong, _)) in (0..).zip(WRONGS) {
        // A check never sees a device so old; its answer depends on the view alone.
        let body = format!(
            "(if (i64.lt_u (local.get $now) (i64.const 1000000)) (then {wrong})) i32.const 0"
        );
        let module = Module::load("late", &victim("", &body)).unwrap();
        let options = |seed| {
            let module = module.clone();
            let plant = Plant::new(move |ftl| {
                let shape = Shape { blocks: 1, handles: 1 };
                let chosen = vec![module.make("victim", shape).unwrap()];
                let (now, by) = (Instant(0), "the test");
                let switch = Switch { now, decision: "victim", name: "wasm:late", by, chosen };
                ftl.switch_policy(switch).unwrap();
            });
            CrashOptions { plant, images_per_cut: 4, ..CrashOptions::of_seed(seed) }
        };
        let report = explore_seeds(seed * 10..seed * 10 + 2, 2, options);
        assert!(report.is_ok(), "seed={seed} {wrong}: {report:?}");
    }
}

#[test]
fn no_call_takes_longer_than_its_fuel_allows() {
    // Every kind of instruction that does much for little: none may hold a shard up.
    let wrongs = [
        "(loop $l (br $l))",
        "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 4000)) (br $l))",
        "(loop $l (memory.copy (i32.const 0) (i32.const 9000) (i32.const 4000)) (br $l))",
        "(loop $l (drop (i64.div_u (i64.const 99999999) (local.get $now))) (br $l))",
    ];
    for wrong in wrongs {
        let body = format!(
            "(if (i64.lt_u (local.get $now) (i64.const 1000000)) (then {wrong})) i32.const 0"
        );
        let module = Module::load("slow", &victim("", &body)).unwrap();
        let run = StreamRun { bands: 64, overwrites: 2.0, ..StreamRun::default() }.scaled(8);
        let begun = Clock::now();
        let (_, status) = run
            .measure_and_look("none", |ftl| {
                let chosen = vec![module.make("victim", Shape { blocks: 1, handles: 1 })?];
                let (now, by) = (Instant(0), "the test");
                let switch = Switch { now, decision: "victim", name: "wasm:slow", by, chosen };
                ftl.switch_policy(switch).map(drop)
            })
            .unwrap();
        assert_eq!(count(&status, "policies_out_of_time"), 1, "{wrong}");
        // A bound that only a call without end would miss.
        assert!(begun.elapsed().as_secs() < 60, "{wrong}");
    }
}
