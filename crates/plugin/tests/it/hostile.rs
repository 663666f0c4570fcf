//! Modules that are valid, and made to cost whoever compiles them: refused in no time, or compiled
//! within a bound. Each is a few hundred kilobytes at most, as a server takes them.

use crate::{assembled, victim};
use plugin::{LoadError, MODULE_BYTES_MAX, Module};
use std::time::Instant as Clock;

const PICK: &str = "i32.const 0";

/// A victim module with `more` functions, tables or data beside its own.
fn with(more: &str) -> Vec<u8> {
    victim(more, PICK)
}

fn times(text: &str, count: usize) -> String {
    text.repeat(count)
}

/// What is refused before it is compiled, and by which word.
fn costly() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let nest = |begin: &str, end: &str, deep| {
        with(&format!("(func {}{})", times(begin, deep), times(end, deep)))
    };
    let func = |body: &str| with(&format!("(func {body})"));
    let locals = times("i32 ", 50_000);
    let carried = format!(
        "(local {}) {}",
        times("i32 ", 900),
        times("block local.get 0 br_if 0 i32.const 1 local.set 0 end ", 2_000)
    );
    let one_param = times("i32 ", 65);
    vec![
        ("a nest of blocks", nest("block ", "end ", 20_000), "blocks within another"),
        ("a nest of loops", nest("loop ", "end ", 20_000), "blocks within another"),
        ("a nest of ifs", nest("i32.const 1 if ", "else nop end ", 8_000), "blocks within another"),
        (
            "a huge br_table",
            func(&format!("i32.const 0 br_table {}", times("0 ", 60_000))),
            "targets of br_table",
        ),
        ("many locals", func(&format!("(local {locals})")), "locals in one function"),
        (
            "many functions with many locals",
            with(&times(&format!("(func (local {}))", times("i32 ", 900)), 60)),
            "locals in all functions",
        ),
        ("locals carried over blocks", func(&carried), "locals times branches"),
        ("many functions", with(&times("(func)", 20_000)), "functions"),
        ("many types", with(&many_types(3_000)), "types"),
        (
            "a long list of parameters",
            with(&format!("(type (func (param {one_param})))")),
            "parameters",
        ),
        ("many globals", with(&times("(global i32 (i32.const 0))", 5_000)), "globals"),
        ("much data in pieces", with(&times("(data (i32.const 0) \"a\")", 5_000)), "data segments"),
        ("a large memory", assembled("(module (memory (export \"memory\") 65536))"), "pages"),
        ("a large table", with("(table 4000000000 funcref)"), "entries of a table"),
        ("a long function", func(&times("nop ", 70_000)), "bytes in one function"),
    ]
}

fn many_types(count: u32) -> String {
    // Each is another: the binary counts of ten parameters.
    let type_of = |n: u32| {
        let params: String =
            (0..12).map(|bit| if n >> bit & 1 == 0 { "i32 " } else { "i64 " }).collect();
        format!("(type (func (param {params})))")
    };
    (0..count).map(type_of).collect()
}

#[test]
fn what_costs_its_compiler_much_is_refused_before_it_is_compiled() {
    for (name, bytes, word) in costly() {
        assert!(bytes.len() <= MODULE_BYTES_MAX, "{name}: {} bytes", bytes.len());
        let begun = Clock::now();
        let error = Module::load("costly", &bytes).expect_err(name);
        let took = begun.elapsed();
        println!("{name}: {} bytes, refused in {took:?}: {error}", bytes.len());
        assert!(matches!(error, LoadError::Invalid(_)), "{name}: {error}");
        assert!(error.to_string().contains(word), "{name}: {error}");
        // One pass over it: a bound that only a compiler would miss.
        assert!(took.as_secs() < 5, "{name}: {took:?}");
    }
}

#[test]
fn what_the_bounds_allow_is_compiled_within_a_bound() {
    // Just below the bounds, as many of it as fit.
    let nest = format!("(func {}{})", times("block ", 290), times("end ", 290));
    let carried = format!(
        "(func (param i32) (local {}) {})",
        times("i32 ", 190),
        times("block local.get 0 br_if 0 i32.const 1 local.set 9 end ", 1_000)
    );
    let long = format!("(func (param i32) (result i32) local.get 0 {})", times("i32.eqz ", 60_000));
    let table = format!("(func (param i32) block local.get 0 br_table {} end)", times("0 ", 6_000));
    let sum = format!(
        "(func (param i32) (result i32) {} {})",
        times("local.get 0 i32.load ", 10_000),
        times("i32.add ", 9_999)
    );
    let cases = [
        ("nests", times(&nest, 220)),
        ("locals carried over blocks", times(&carried, 16)),
        ("long functions", times(&long, 4)),
        ("tables of branches", times(&table, 3)),
        ("a deep stack", times(&sum, 4)),
        ("functions", times("(func)", 1_900)),
    ];
    for (name, more) in cases {
        let bytes = with(&more);
        assert!(bytes.len() <= MODULE_BYTES_MAX, "{name}: {} bytes", bytes.len());
        let begun = Clock::now();
        let loaded = Module::load("within", &bytes);
        let took = begun.elapsed();
        println!("{name}: {} bytes, {took:?}: {loaded:?}", bytes.len());
        assert!(loaded.is_ok(), "{name}: {loaded:?}");
        // By far more than it takes: the server has a bound of its own.
        assert!(took.as_secs() < 100, "{name}: {took:?}");
    }
}

#[test]
fn a_module_that_was_compiled_elsewhere_is_the_same_here() {
    let bytes = with("");
    let module = Module::load("there", &bytes).unwrap();
    let artifact = module.artifact().unwrap();
    // SAFETY: it is what was just made.
    #[allow(unsafe_code)]
    let here = unsafe { Module::of_artifact("there", bytes.len(), &artifact) }.unwrap();
    assert_eq!(format!("{here:?}"), format!("{module:?}"));
    let shape = ftl::policy::stream::Shape { blocks: 1, handles: 1 };
    assert!(here.make("victim", shape).is_ok());
}
