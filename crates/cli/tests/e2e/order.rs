//! What a start does, and in which order: it takes its addresses before it touches a device, and one
//! that fails leaves nothing behind. What lies in a device's folder under the name of a file is opened
//! only if it is one.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{said, weir};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything below a folder: its kind, its bytes, and when it was last changed.
fn listing(folder: &Path) -> BTreeMap<PathBuf, (u32, u64, i64, i64)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let (path, metadata) = (entry.path(), entry.metadata().expect("metadata"));
            if metadata.is_dir() {
                folders.push(path.clone());
            }
            let (mode, bytes) = (metadata.mode(), metadata.len());
            all.insert(path, (mode, bytes, metadata.mtime(), metadata.mtime_nsec()));
        }
    }
    all
}

/// The same without the lock, which is taken to read what volumes a device has, and the times of the
/// folder that it is in.
fn device_in(scratch: &Scratch) -> BTreeMap<PathBuf, (u32, u64, i64, i64)> {
    let mut all = listing(scratch.path());
    all.remove(&scratch.path().join("data/lock"));
    if let Some(folder) = all.get_mut(&scratch.path().join("data")) {
        (folder.2, folder.3) = (0, 0);
    }
    all
}

#[test]
fn a_start_whose_address_is_taken_makes_and_changes_nothing() {
    let scratch = Scratch::new("order");
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = other.local_addr().expect("an address").to_string();
    let path = scratch.file("taken.sock");
    // Silent, but alive.
    let _holder = UnixListener::bind(&path).expect("a socket");
    let no_socket = scratch.file("no.sock");
    fs::write(&no_socket, "precious").expect("a file");
    let data = scratch.file("data");
    let cases: [&[&str]; 5] = [
        &["--http", &taken],
        &["--tcp", &taken, "--http", "none"],
        &["--socket", &path, "--http", "none"],
        &["--socket", &no_socket, "--http", "none"],
        &["--tcp", &taken, "--http", &taken],
    ];
    for made in [false, true] {
        if made {
            Server::start(&scratch, SMALL).terminate();
        }
        for case in cases {
            for fast in [false, true] {
                let tier = scratch.file("fast");
                let mut args = vec!["serve", "--data", &data];
                if !made {
                    args.extend(SMALL);
                }
                if fast {
                    args.extend(["--fast", &tier]);
                }
                args.extend(case);
                let before = device_in(&scratch);
                let refused = weir(&args);
                let text = said(&refused);
                assert_eq!(refused.status.code(), Some(2), "{args:?}: {text}");
                assert!(text.contains("choose another"), "{args:?}: the mend: {text}");
                let after = device_in(&scratch);
                assert_eq!(before, after, "made={made} {args:?}");
            }
        }
    }
    assert_eq!(fs::read(&no_socket).expect("it is there"), b"precious");
    let checked = weir(&["check", "--data", &data]);
    assert!(checked.status.success(), "{}", said(&checked));
}

/// Puts something else in a file's place.
fn replace(path: &Path, how: &str) {
    fs::remove_file(path).expect("it was a file");
    match how {
        "a pipe" => {
            let name = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no zero");
            // SAFETY: the name is a string that ends.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0, "a pipe is made");
        }
        "a socket" => drop(UnixListener::bind(path).expect("a socket")),
        "a folder" => fs::create_dir(path).expect("a folder"),
        "a device node" => std::os::unix::fs::symlink("/dev/zero", path).expect("a link"),
        "a loop" => std::os::unix::fs::symlink(path, path).expect("a link"),
        "a huge file" => {
            let file = fs::File::create(path).expect("a file");
            file.set_len(10 << 30).expect("a sparse file");
        }
        other => unreachable!("{other}"),
    }
}

#[test]
fn what_is_no_plain_file_in_a_folder_is_refused_at_once() {
    let scratch = Scratch::new("nofile");
    let fast = scratch.file("fast");
    let args = [SMALL, &["--fast", &fast, "--fast-capacity", "16MiB"]].concat();
    Server::start(&scratch, &args).terminate();
    let data = scratch.file("data");
    let names = [
        "data/device.toml",
        "data/lock",
        "data/generation",
        "data/shard-0/data",
        "data/shard-0/oob",
        "data/shard-0/blocks",
        "fast/fast.toml",
        "fast/lock",
        "fast/generation",
        "fast/shard-0/data",
        "fast/shard-0/oob",
        "fast/shard-0/blocks",
    ];
    let kinds = ["a pipe", "a socket", "a folder", "a device node", "a loop", "a huge file"];
    for name in names {
        let (path, kept) = (scratch.path().join(name), scratch.path().join("kept"));
        if !path.exists() {
            // Not every tier has every file.
            continue;
        }
        for kind in kinds {
            fs::copy(&path, &kept).expect("a copy");
            replace(&path, kind);
            for command in ["check", "inspect", "serve"] {
                let begun = Instant::now();
                let http: &[&str] = if command == "serve" { &["--http", "none"] } else { &[] };
                // What is larger than it must be, or a lock of any size, may be let pass.
                if kind == "a huge file" && (command == "serve" || !name.ends_with(".toml")) {
                    continue;
                }
                let output = weir(&[&[command, "--data", &data], http].concat());
                let text = said(&output);
                assert!(!output.status.success(), "{command}: {name} is {kind}: {text}");
                assert!(!text.contains("panicked"), "{command}: {name} is {kind}: {text}");
                let took = begun.elapsed();
                assert!(took < Duration::from_secs(20), "{command}: {name} is {kind}: {took:?}");
            }
            match kind {
                "a folder" => fs::remove_dir(&path).expect("it was a folder"),
                _ => fs::remove_file(&path).expect("it goes"),
            }
            fs::rename(&kept, &path).expect("it comes back");
        }
    }
    let checked = weir(&["check", "--data", &data]);
    assert!(checked.status.success(), "all is as it was: {}", said(&checked));
}

#[test]
fn a_config_that_is_huge_or_no_file_is_refused() {
    let scratch = Scratch::new("hugeconfig");
    let config = scratch.file("weir.toml");
    fs::File::create(&config).and_then(|file| file.set_len(10 << 30)).expect("a sparse file");
    for config in [config.as_str(), "/dev/zero", "/"] {
        let begun = Instant::now();
        let refused = weir(&["serve", "--config", config, "--data", &scratch.file("data")]);
        assert_eq!(refused.status.code(), Some(2), "{config}: {}", said(&refused));
        assert!(said(&refused).contains(config), "{}", said(&refused));
        assert!(begun.elapsed() < Duration::from_secs(20), "{config}");
    }
    // A pipe that a person names is one that a person fills.
    let script = format!(
        "echo '[device]' | {} serve --config /dev/stdin --memory --http nonsense",
        crate::tools::weir_path().display()
    );
    let piped = crate::tools::output("sh", &["-c", &script]);
    assert!(said(&piped).contains("nonsense"), "the config was read: {}", said(&piped));
    assert!(!scratch.data().join("device.toml").exists());
}
