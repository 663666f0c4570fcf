//! Policies switched on a live device: built in, of WebAssembly, and of WebAssembly that goes wrong.
//! Whatever decides, no request is lost or fails, and what was written is read back.

use crate::scratch::Scratch;
use crate::server::{SMALL, SMALL_ON_TWO_SHARDS, Server};
use crate::tools::{run, said, weir};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Output;

/// A module of plugins/, as it is checked in.
fn shipped(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.join(format!("../../plugins/{name}/{name}.wasm")).to_str().expect("UTF-8").to_owned()
}

/// Writes a module, given as text, into a file.
fn assembled(scratch: &Scratch, name: &str, text: &str) -> String {
    let path = scratch.file(&format!("{name}.wasm"));
    std::fs::write(&path, wat::parse_str(text).expect("a module")).unwrap();
    path
}

/// A victim policy that does `wrong` on any device younger than those it is tried on.
fn late_victim(wrong: &str) -> String {
    format!(
        "(module (memory (export \"memory\") 64)
            (func (export \"weir_abi\") (result i32) i32.const 1)
            (func (export \"victim_room\") (param i32 i32) (result i32) i32.const 1024)
            (func (export \"victim_pick\") (param i32 i32 i64) (result i32)
                (if (i64.lt_u (local.get 2) (i64.const 100000000)) (then {wrong})) i32.const 0))"
    )
}

/// A stream policy that does `wrong` after more blocks than it is tried on.
fn late_stream(wrong: &str) -> String {
    format!(
        "(module (memory (export \"memory\") 1) (global $calls (mut i32) (i32.const 0))
            (func (export \"weir_abi\") (result i32) i32.const 1)
            (func (export \"stream_start\") (param i32) (result i32) i32.const 0x104)
            (func (export \"stream_write\") (param i32 i32 i32 i32 i64 i64) (result i32)
                (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                (if (i32.gt_u (global.get $calls) (i32.const 4500)) (then {wrong}))
                (i32.rem_u (local.get 0) (i32.and (local.get 3) (i32.const 0xff)))))"
    )
}

fn ctl(server: &Server, args: &[&str]) -> Output {
    let control = server.control();
    let control = control.to_str().expect("UTF-8");
    weir(&[&["ctl", "--control", control, "policy"], args].concat())
}

fn done(server: &Server, args: &[&str]) -> String {
    let output = ctl(server, args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(server: &Server, args: &[&str], parts: &[&str]) {
    let output = ctl(server, args);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{args:?} says {part:?}: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn status(server: &Server) -> Value {
    let address = server.http().to_string();
    let output = weir(&["status", "--json", "--http", &address]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Overwrites all of the volume at random, so that GC must choose, with a checksum in every block, and
/// reads it back, again and again.
fn load(uri: &str, loops: u32) {
    let (uri, loops) = (format!("--uri={uri}"), format!("--loops={loops}"));
    let args = ["--name=e2e", "--ioengine=nbd", &uri, &loops, "--rw=randwrite", "--bs=4k"];
    let more =
        ["--size=64m", "--iodepth=32", "--verify=crc32c", "--verify_fatal=1", "--norandommap"];
    let rest = ["--do_verify=1", "--verify_state_save=0", "--output-format=terse"];
    run("fio", &[&args[..], &more, &rest].concat());
}

/// How often each policy has its turn while fio runs.
const ROUNDS: usize = 3;

/// What broke was replaced, and the status says by what, for whom and why.
fn replacements_are_told(server: &Server, victims: bool) {
    let now = status(server);
    for shard in now["shards"].as_array().unwrap() {
        let policies = &shard["policies"];
        assert!(!victims || policies["victim"] == "greedy", "{policies}");
        assert_eq!(policies["stream"], "none");
        assert_eq!(policies["unit"], "wasm:least-work");
        let changes = shard["policy_switches"].as_array().unwrap();
        let of = |to: &str| changes.iter().rfind(|change| change["to"] == to).expect("it is told");
        let asked = of("wasm:nonsense");
        assert!(asked["why"].as_str().unwrap().contains("weir ctl"), "{asked}");
        let replaced = of("none");
        assert_eq!(replaced["from"], "wasm:nonsense");
        let why = replaced["why"].as_str().unwrap();
        assert!(why.starts_with("it broke: it chose handle 99 of "), "{why}");
    }
}

fn switch_under_load(name: &str, args: &[&str], shards: u64) {
    let scratch = Scratch::new(name);
    let server = Server::start(&scratch, args);
    let trap = assembled(&scratch, "trap", &late_victim("unreachable"));
    let endless = assembled(&scratch, "endless", &late_stream("(loop $l (br $l))"));
    let nonsense = assembled(&scratch, "nonsense", &late_stream("(return (i32.const 99))"));
    for name in ["greedy", "sfr", "least-work", "even-wear", "quiet-erase"] {
        done(&server, &["load", &shipped(name)]);
    }
    for (name, file) in [("trap", &trap), ("endless", &endless), ("nonsense", &nonsense)] {
        done(&server, &["load", file, "--name", name]);
    }
    let wanted = [
        ("all", "victim=wasm:greedy"),
        ("default", "stream=wasm:sfr"),
        ("all", "unit=wasm:least-work"),
        ("all", "victim=wasm:trap"),
        ("default", "stream=sepbit"),
        ("all", "erase=wasm:quiet-erase"),
        ("all", "stream=wasm:endless"),
        ("all", "wear=wasm:even-wear"),
        ("all", "victim=cost-benefit"),
        ("default", "stream=wasm:nonsense"),
        ("all", "erase=eager"),
        ("all", "victim=d-choices:4"),
    ];
    let uri = server.uri();
    std::thread::scope(|scope| {
        let fio = scope.spawn(|| load(&uri, 8));
        for (volume, policy) in wanted.iter().cycle().take(ROUNDS * wanted.len()) {
            done(&server, &["set", volume, policy]);
        }
        fio.join().expect("fio found what it had written");
    });
    let broken = |name: &str| -> u64 { server.counters(name).iter().sum() };
    // What is in charge last goes wrong as soon as it is used long enough.
    for policy in ["victim=wasm:trap", "stream=wasm:endless"] {
        done(&server, &["set", "all", policy]);
    }
    load(&uri, 3);
    done(&server, &["set", "all", "stream=wasm:nonsense"]);
    load(&uri, 3);
    // Two shards of this size have bands enough to need no victim.
    let victims = shards == 1;
    assert!(!victims || broken("policies_trapped") > 0, "it was asked for a victim");
    assert!(broken("policies_out_of_time") >= shards && broken("policies_out_of_range") >= shards);
    assert_eq!(broken("policies_out_of_memory"), 0);
    assert_eq!(broken("host_errors"), 0, "no request failed");
    replacements_are_told(&server, victims);
    let text = done(&server, &["show"]);
    assert!(text.contains("it broke: it chose handle 99 of "), "{text}");
    assert!(server.log().contains("a policy was replaced"), "{}", server.log());
    server.terminate();
}

#[test]
fn switching_policies_under_load_loses_and_fails_nothing_whatever_they_do() {
    switch_under_load("policies", SMALL, 1);
}

#[test]
fn policies_are_switched_on_all_shards() {
    switch_under_load("policies2", SMALL_ON_TWO_SHARDS, 2);
}

#[test]
fn what_cannot_be_a_policy_is_refused_with_what_can() {
    let scratch = Scratch::new("policies-bad");
    let server = Server::start(&scratch, SMALL);
    for (args, parts) in [
        (
            &["set", "all", "victim=gredy"][..],
            &["gredy", "greedy, cost-benefit, age-adaptive, d-choices, fifo"][..],
        ),
        (&["set", "all", "victim=d-choices:0"], &["from 1 to 1024"]),
        (&["set", "all", "colour=page"], &["colour", "victim, wear, erase, unit, stream"]),
        (&["set", "all", "mapping=flat"], &["flat", "page, cached"]),
        (&["set", "all", "mapping=cached"], &["map_memory"]),
        (&["set", "default", "victim=greedy"], &["set all victim=greedy"]),
        (&["set", "other", "stream=sfr"], &["other", "there are default"]),
        (&["set", "all", "stream=sfr:handles=99"], &["from 1 to 16"]),
        (&["set", "all", "stream=wasm:mine"], &["mine", "loaded are none", "policy load"]),
        (&["set", "all", "greedy"], &["KIND=NAME"]),
        (&["load", "/nonexistent.wasm"], &["/nonexistent.wasm"]),
    ] {
        refused(&server, args, parts);
    }
    let load = |name: &str, bytes: &[u8], said: &str| {
        let path = scratch.file(name);
        std::fs::write(&path, bytes).unwrap();
        refused(&server, &["load", &path, "--name", "bad"], &[&path, said]);
    };
    let module = |text: &str| wat::parse_str(text).unwrap();
    load("text", b"#!/bin/sh\n", "not WebAssembly");
    load("empty", b"", "not WebAssembly");
    load("large", &vec![0; 300 << 10], "at most 262144");
    load("import", &module("(module (import \"env\" \"time\" (func)))"), "env.time");
    load("lacks", &module("(module (memory (export \"memory\") 1))"), "weir_abi");
    let endless = late_victim("").replace("i32.const 0))", "(loop $l (br $l)) i32.const 0))");
    load("endless", &module(&endless), "in the time it has");
    let outside = late_victim("").replace("i32.const 0))", "i32.const -7))");
    load("outside", &module(&outside), "picked band -7");
    done(&server, &["load", &shipped("greedy")]);
    refused(&server, &["set", "all", "stream=wasm:greedy"], &["wasm:greedy decides victim"]);
    refused(&server, &["set", "all", "stream=wasm:sfr"], &["loaded are greedy"]);
    let list = done(&server, &["list"]);
    for word in ["d-choices", ":N = 10 (1 to 1024)", "wasm:greedy", "sepbit"] {
        assert!(list.contains(word), "{word}: {list}");
    }
    assert_eq!(status(&server)["shards"][0]["policy_switches"], Value::Array(Vec::new()));
    server.terminate();
}

#[test]
fn the_config_names_modules_and_what_they_decide() {
    let scratch = Scratch::new("policies-config");
    let config = scratch.file("weir.toml");
    let data = scratch.data();
    let text = |stream: &str| {
        format!(
            "[device]\npath = {data:?}\nprofile = \"instant\"\n\
             [nbd]\nunix = \"data/nbd.sock\"\n\
             [[plugin]]\nname = \"mine\"\nfile = {:?}\n\
             [[plugin]]\nname = \"hot\"\nfile = {:?}\n\
             [[volume]]\nname = \"default\"\nsize = \"32MiB\"\n\
             [[volume]]\nname = \"other\"\nsize = \"32MiB\"\nstreams = {stream:?}\n\
             [ftl.policy]\nvictim = \"wasm:mine\"\n",
            shipped("greedy"),
            shipped("sfr"),
        )
    };
    std::fs::write(&config, text("wasm:hot")).unwrap();
    let server = Server::start(&scratch, &["--config", &config]);
    let found = status(&server);
    let shard = &found["shards"][0];
    assert_eq!(shard["policies"]["victim"], "wasm:mine");
    let streams: Vec<&Value> =
        shard["streams"].as_array().unwrap().iter().map(|one| &one["stream"]).collect();
    assert_eq!(streams, ["none", "wasm:hot", "none"]);
    assert_eq!(shard["policy_switches"][0]["why"], "the config");
    // What a run loads and switches ends with it; what the config says does not.
    done(&server, &["load", &shipped("greedy"), "--name", "later"]);
    done(&server, &["set", "all", "victim=wasm:later"]);
    server.terminate();
    let server = Server::start(&scratch, &["--config", &config]);
    assert_eq!(status(&server)["shards"][0]["policies"]["victim"], "wasm:mine");
    refused(&server, &["set", "all", "victim=wasm:later"], &["loaded are hot, mine"]);
    server.terminate();
    std::fs::write(&config, text("wasm:cold")).unwrap();
    let output = weir(&["serve", "--config", &config]);
    let text = said(&output);
    assert!(!output.status.success() && text.contains("there are mine, hot"), "{text}");
}

#[test]
fn a_new_plugin_is_a_crate_and_a_module_is_tried_beside_the_built_in_policies() {
    let scratch = Scratch::new("plugin");
    for kind in ["victim", "stream", "unit", "wear", "erase"] {
        let folder = scratch.file(kind);
        run(
            crate::tools::weir_path().to_str().expect("UTF-8"),
            &["plugin", "new", "mine", "--kind", kind, "--into", &folder],
        );
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        assert!(read("Cargo.toml").contains("name = \"mine\""));
        assert!(read("src/lib.rs").contains("extern \"C\" fn weir_abi()"));
        assert!(read(".cargo/config.toml").contains("wasm32-unknown-unknown"));
        assert!(read("README.md").contains(&format!("{kind}=wasm:mine")));
        // The decision is tried on this machine, with no other target and no network.
        let tested = std::process::Command::new("cargo")
            .args(["test", "--offline", "--quiet"])
            .current_dir(&folder)
            .env("CARGO_TARGET_DIR", scratch.file("target"))
            .env_remove("RUSTFLAGS")
            .output()
            .expect("cargo starts");
        assert!(tested.status.success(), "{kind}: {}", said(&tested));
    }
    let again = weir(&["plugin", "new", "mine", "--into", &scratch.file("victim")]);
    assert!(said(&again).contains("is there already"), "{}", said(&again));
    let tried = |file: &str, more: &[&str]| -> Value {
        let output = weir(&[&["plugin", "test", file, "--json"], more].concat());
        assert!(output.status.success(), "{file}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let waf = |found: &Value, policy: &str| -> f64 {
        let policies = found["decisions"][0]["policies"].as_array().expect("policies");
        let row = policies.iter().find(|row| row["policy"] == policy);
        row.and_then(|row| row["waf"].as_f64()).unwrap_or_else(|| panic!("{policy}: {found}"))
    };
    let greedy = tried(&shipped("greedy"), &["--zipf", "0"]);
    assert_eq!(waf(&greedy, "yours"), waf(&greedy, "greedy"), "the same decisions");
    assert!(waf(&greedy, "fifo") > waf(&greedy, "yours"), "{greedy}");
    assert!(greedy["costs"][0]["ns"].as_f64().unwrap() > 0.0);
    let trace = scratch.file("web.csv");
    std::fs::write(&trace, crate::trace::msr_lines(4000)).unwrap();
    let sfr = tried(&shipped("sfr"), &["--trace", &trace]);
    assert_eq!(waf(&sfr, "yours"), waf(&sfr, "sfr"), "the same decisions");
    let broken = assembled(&scratch, "broken", &late_stream("unreachable"));
    let output = weir(&["plugin", "test", &broken]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "it broke: {text}");
    assert!(text.contains("REPLACED: it broke: it trapped"), "{text}");
}
