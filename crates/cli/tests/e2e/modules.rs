//! Modules of users, compiled while clients are served: one at a time, in a process apart that is
//! bounded, and never for long.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{pattern, said, weir};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

const BLOCK: usize = flash::BLOCK_BYTES;

/// Those loaded at once.
const CROWD: usize = 24;

/// Memory of the server beside what it has without modules, and of a compiler.
const SERVER_KIB_MAX: u64 = 256 << 10;
const COMPILER_KIB_MAX: u64 = 1 << 20;

/// A victim module with more beside.
fn module(more: &str) -> Vec<u8> {
    let text = format!(
        "(module {more} (memory (export \"memory\") 16)
            (func (export \"weir_abi\") (result i32) i32.const 1)
            (func (export \"victim_room\") (param i32 i32) (result i32) i32.const 1024)
            (func (export \"victim_pick\") (param i32 i32 i64) (result i32) i32.const 0))"
    );
    wat::parse_str(text).expect("a module")
}

/// A module that takes its compiler as long as the limits allow.
fn heavy() -> Vec<u8> {
    let sum = format!(
        "(func (param i32) (result i32) {} {})",
        "local.get 0 i32.load ".repeat(10_000),
        "i32.add ".repeat(9_999)
    );
    module(&sum.repeat(4))
}

/// Loads a module into the server of `scratch`; what was said, and whether it was taken.
fn load(scratch: &Scratch, file: &str, name: &str) -> (bool, String) {
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let output = weir(&["ctl", "--data", data, "policy", "load", file, "--name", name]);
    (output.status.success(), said(&output))
}

/// The processes that the server has started and that live, with the kilobytes they have.
fn children(server: u32) -> Vec<(PathBuf, u64)> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let of = |path: &PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let number = |key: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        (number("PPid:")? == u64::from(server)).then(|| number("VmRSS:")).flatten()
    };
    processes.filter_map(|path| of(&path).map(|kib| (path, kib))).collect()
}

fn peak_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server's status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

/// The niceness of a process.
fn nice(path: &Path) -> Option<i64> {
    let stat = fs::read_to_string(path.join("stat")).ok()?;
    // Behind the name, which may hold anything, this is the seventeenth.
    stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
}

#[test]
fn a_crowd_of_modules_is_compiled_one_at_a_time_while_clients_are_served() {
    let scratch = Scratch::new("crowdwasm");
    let server = Server::start(&scratch, SMALL);
    let file = scratch.file("heavy.wasm");
    fs::write(&file, heavy()).expect("a file");
    let before = peak_kib(server.pid());
    let (mut most, mut compiler_kib, mut nicest) = (0, 0, i64::MAX);
    let mut client = server.connect();
    let mut slowest = std::time::Duration::ZERO;
    let image = pattern(3, 8 * BLOCK);
    let answers: Vec<(bool, String)> = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..CROWD)
            .map(|index| {
                let (scratch, file) = (&scratch, &file);
                scope.spawn(move || load(scratch, file, &format!("m{index}")))
            })
            .collect();
        while !loads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let begun = Instant::now();
            client.write(0, &image);
            assert!(client.read(0, image.len() as u32) == image, "clients are served meanwhile");
            slowest = slowest.max(begun.elapsed());
            let children = children(server.pid());
            most = most.max(children.len());
            for (path, kib) in &children {
                compiler_kib = compiler_kib.max(*kib);
                nicest = nicest.min(nice(path).unwrap_or(i64::MAX));
            }
        }
        loads.into_iter().map(|load| load.join().expect("it answers")).collect()
    });
    let grown = peak_kib(server.pid()) - before;
    let taken = answers.iter().filter(|(taken, _)| *taken).count();
    println!(
        "{taken} of {CROWD} taken; server +{grown} KiB, compiler {compiler_kib} KiB; slowest write \
         and read beside {slowest:?}"
    );
    assert!(taken >= 1, "{answers:?}");
    for (_, text) in answers.iter().filter(|(taken, _)| !taken) {
        assert!(text.contains("try again"), "{text}");
    }
    assert!(most <= 1, "{most} compilers at once");
    assert!(grown <= SERVER_KIB_MAX && compiler_kib <= COMPILER_KIB_MAX);
    assert!(nicest == i64::MAX || nicest == 0 || nicest == 19, "niceness {nicest}");
    // Who was told to try again is taken then.
    assert!(load(&scratch, &file, "late").0);
    server.terminate();
}

#[test]
fn a_module_that_cannot_be_compiled_is_refused_with_the_reason_and_nothing_else_happens() {
    let scratch = Scratch::new("badwasm");
    let server = Server::start(&scratch, SMALL);
    let nest = module(&format!("(func {}{})", "block ".repeat(20_000), "end ".repeat(20_000)));
    let start = module("(start $s) (func $s (loop $l (br $l)))");
    let cut = &heavy()[..100_000];
    for (name, bytes, word) in [
        ("nest", &nest[..], "blocks within another"),
        ("start", &start[..], "in the time it has"),
        ("cut", cut, "not valid"),
        ("text", &b"#!/bin/sh"[..], "not WebAssembly"),
    ] {
        let file = scratch.file(name);
        fs::write(&file, bytes).expect("a file");
        let (taken, text) = load(&scratch, &file, name);
        assert!(!taken && text.contains(word), "{name}: {text}");
        assert_eq!(children(server.pid()), [], "{name}: no compiler is left");
    }
    let good = scratch.file("good.wasm");
    fs::write(&good, module("")).expect("a file");
    assert!(load(&scratch, &good, "good").0, "and the next one is taken");
    server.terminate();
}
