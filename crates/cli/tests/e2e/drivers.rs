//! Where io_uring is refused, as in many containers and on older kernels, the same server runs on
//! threads: slower, and it says so. The calls are refused by a real filter.

use crate::refuse::{Refused, refuse};
use crate::scratch::Scratch;
use crate::server::{SMALL, SMALL_ON_TWO_SHARDS, Server};
use crate::tools::{pattern, said, weir, weir_path};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output, Stdio};

const BLOCK: usize = flash::BLOCK_BYTES;

/// Ways in which systems refuse, and what is said of it.
const REFUSALS: [(&[Refused], &str); 5] = [
    (&[(libc::SYS_io_uring_setup, libc::ENOSYS)], "seccomp profile hides it"),
    (&[(libc::SYS_io_uring_setup, libc::EPERM)], "io_uring_setup"),
    (&[(libc::SYS_io_uring_setup, libc::ENOMEM)], "ulimit -l"),
    (&[(libc::SYS_io_uring_register, libc::EPERM)], "io_uring_register"),
    (&[(libc::SYS_io_uring_enter, libc::EPERM)], "io_uring_enter"),
];

/// Runs a `weir` command to its end on a system that refuses `calls`.
fn refused(calls: &[Refused], args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(weir_path()).args(args).stdin(Stdio::null());
    refuse(&mut command, calls);
    command.output().expect("timeout starts")
}

fn status(scratch: &Scratch) -> Value {
    let data = scratch.data();
    let status = weir(&["status", "--json", "--data", data.to_str().expect("UTF-8")]);
    serde_json::from_slice(&status.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&status)))
}

#[test]
fn a_system_that_refuses_io_uring_is_served_by_threads_and_told_so() {
    for (index, (calls, why)) in REFUSALS.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("refused{index}"));
        let args = if index == 0 { SMALL_ON_TWO_SHARDS } else { SMALL };
        let image = pattern(index as u64, 64 * BLOCK);
        let mut server = Server::start_where(&scratch, args, calls);
        let mut client = server.connect();
        for at in 0..8 {
            client.write(at * image.len() as u64, &image);
        }
        client.flush();
        for shard in status(&scratch)["shards"].as_array().expect("shards") {
            assert_eq!(shard["driver"], "threads", "{calls:?}");
            let told = shard["driver_why"].as_str().expect("a reason");
            assert!(told.contains(why), "{calls:?}: {told}");
        }
        let log = server.log();
        assert!(log.contains("the server uses threads") && log.contains(why), "{calls:?}: {log}");
        server.kill();
        let data = scratch.data();
        let data = data.to_str().expect("UTF-8");
        for command in ["check", "inspect"] {
            let output = refused(calls, &[command, "--data", data]);
            assert!(output.status.success(), "{command}: {}", said(&output));
        }
        let server = Server::start_where(&scratch, args, calls);
        let mut client = server.connect();
        for at in 0..8 {
            let read = client.read(at * image.len() as u64, image.len() as u32);
            assert!(read == image, "{calls:?}: what was flushed is there");
        }
        drop(client);
        server.terminate();
    }
}

#[test]
fn a_device_is_made_without_io_uring_too() {
    let scratch = Scratch::new("refusedformat");
    let file = scratch.file("device.img");
    for kind in [&["--data", &file, "--capacity", "64MiB"][..], &[]] {
        let data = scratch.file("folder");
        let folder = ["--data", &data, "--profile", "instant", "--capacity", "64MiB"];
        let args = if kind.is_empty() { &folder[..] } else { kind };
        if args[1] == file {
            fs::write(&file, b"").expect("a file");
        }
        let made = refused(REFUSALS[1].0, &[&["format"], args].concat());
        assert!(made.status.success(), "{args:?}: {}", said(&made));
        let checked = weir(&["check", "--data", args[1]]);
        assert!(checked.status.success(), "{args:?}: {}", said(&checked));
    }
}

#[test]
fn without_any_driver_nothing_is_touched_and_the_mend_is_said() {
    let scratch = Scratch::new("nodriver");
    let (data, config) = (scratch.data(), scratch.file("weir.toml"));
    let data = data.to_str().expect("UTF-8");
    let args = ["serve", "--http", "none", "--config", &config, "--data", data];
    let setup = (libc::SYS_io_uring_setup, libc::EPERM);
    let cases: [(&str, &[Refused], &[&str]); 3] = [
        ("io_uring", &[setup], &["runtime.driver", "io_uring_setup", "\"auto\""]),
        ("auto", &[setup, (libc::SYS_epoll_create1, libc::EPERM)], &["epoll", "io_uring_setup"]),
        ("threads", &[(libc::SYS_eventfd2, libc::EMFILE)], &["eventfd", "ulimit -n"]),
    ];
    for (driver, calls, words) in cases {
        fs::write(&config, format!("[runtime]\ndriver = {driver:?}\n")).expect("a config");
        let output = refused(calls, &args);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{driver}: {text}");
        for word in words {
            assert!(text.contains(word), "{driver}: the message says {word:?}: {text}");
        }
        assert!(!text.contains("bug in Weir") && !text.contains("panicked"), "{driver}: {text}");
        assert!(!scratch.data().join("device.toml").exists(), "{driver}: no device was made");
        assert!(!scratch.data().join("shard-0").exists(), "{driver}: nor a part of one");
    }
}

#[test]
fn a_driver_that_the_config_names_is_the_one_that_is_used() {
    let scratch = Scratch::new("driver");
    let config = scratch.file("weir.toml");
    fs::write(&config, "[runtime]\ndriver = \"threads\"\n").expect("a config");
    let server = Server::start(&scratch, &["--memory", "--capacity", "16MiB", "--config", &config]);
    let address = server.http().to_string();
    let status = weir(&["status", "--http", &address]);
    assert!(said(&status).contains("driver: threads, as the config says"), "{}", said(&status));
    assert!(!server.log().contains("the server uses"), "what was asked for is no warning");
    server.terminate();
}
