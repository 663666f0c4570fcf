//! Files that do not belong together: each is refused by name before anything is written, and when it
//! is put back everything is there.

use crate::client::Client;
use crate::{FOLDER, Folder, config, pattern, start};
use serve::Server;
use serve::offline::with_device;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const LEN: usize = 3 << 20;

/// What every file below a folder holds, but for locks and sockets.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(one) = folders.pop() {
        for entry in std::fs::read_dir(&one).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.is_file() && !path.ends_with("lock") {
                all.insert(
                    path.strip_prefix(folder).unwrap().into(),
                    std::fs::read(&path).unwrap(),
                );
            }
        }
    }
    all
}

/// Length and time of the last change of every file below a folder, but for locks and sockets.
fn stamps(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(one) = folders.pop() {
        for entry in std::fs::read_dir(&one).unwrap() {
            let path = entry.unwrap().path();
            let about = path.metadata().unwrap();
            if about.is_dir() {
                folders.push(path);
            } else if about.is_file() && !path.ends_with("lock") {
                all.insert(path, (about.len(), about.modified().unwrap()));
            }
        }
    }
    all
}

fn put(folder: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (path, bytes) in files {
        std::fs::write(folder.join(path), bytes).unwrap();
    }
}

/// A device that was stopped well.
fn made(device: &str, seed: u64) -> Folder {
    let folder = Folder::new();
    write(&folder, device, seed);
    folder
}

fn write(folder: &Folder, device: &str, seed: u64) {
    let server = start(folder, device);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    client.write(0, &pattern(seed, LEN)).unwrap();
    client.flush().unwrap();
    server.shut_down().unwrap();
}

fn holds(folder: &Folder, device: &str, seed: u64) {
    let server = start(folder, device);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    assert!(client.read(0, LEN).unwrap() == pattern(seed, LEN));
    server.shut_down().unwrap();
}

/// What `weir check` and a server say.
fn refusals(folder: &Folder, device: &str) -> [String; 2] {
    let config = config(&folder.0, device);
    let checked = with_device(&config.device.kind, &config.ftl, true, |_| ());
    let served = Server::start(&config).map(drop);
    [
        checked.expect_err("it is no whole device").to_string(),
        served.expect_err("it is no whole device").to_string(),
    ]
}

fn devices() -> [String; 2] {
    let small = FOLDER.replace("16MiB", "6MiB");
    let shards = format!("{small}\nshards = 2");
    let fast = "fast = { path = \"fast\", profile = \"instant\", capacity = \"24MiB\" }";
    [shards, format!("{small}\n{fast}")]
}

#[test]
fn a_file_of_another_device_shard_or_time_is_refused_by_name_and_nothing_is_written() {
    for device in devices() {
        let folder = made(&device, 1);
        let old = tree(&folder.0);
        write(&folder, &device, 2);
        let good = tree(&folder.0);
        let others = tree(&made(&device, 3).0);
        let mut cases = 0;
        for (path, bytes) in &good {
            for (what, wrong) in wrongs(path, bytes, &old, &others, &good) {
                if wrong.as_ref() == Some(bytes) {
                    continue;
                }
                cases += 1;
                let file = folder.0.join(path);
                match &wrong {
                    Some(wrong) => std::fs::write(&file, wrong).unwrap(),
                    None => std::fs::remove_file(&file).unwrap(),
                }
                let before = stamps(&folder.0);
                for told in refusals(&folder, &device) {
                    let place =
                        if path.ends_with("device.toml") { "dev" } else { path.to_str().unwrap() };
                    // A device.toml of another device makes all the others strangers, and a generation
                    // that is too old all the others too new.
                    let blamed = told.contains(place)
                        || told.contains("device.toml")
                        || (path.ends_with("generation") && told.contains("generation"))
                        || (path.ends_with("fast.toml") && told.contains("fast"));
                    assert!(blamed, "{what} {}: {told}", path.display());
                    assert!(
                        told.contains("; ") || told.contains("no device"),
                        "how to mend it: {told}"
                    );
                }
                assert!(
                    stamps(&folder.0) == before,
                    "{what} {}: something was written",
                    path.display()
                );
                std::fs::write(&file, bytes).unwrap();
            }
        }
        assert!(cases > 40, "{cases} cases");
        holds(&folder, &device, 2);
        // All of an older time together are a device.
        put(&folder.0, &old);
        holds(&folder, &device, 1);
    }
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// What may come to lie in the place of a file; `None`: nothing.
fn wrongs(
    path: &Path,
    bytes: &[u8],
    old: &Files,
    others: &Files,
    good: &Files,
) -> Vec<(&'static str, Option<Vec<u8>>)> {
    let mut wrongs = vec![
        ("missing", None),
        ("another device's", Some(others[path].clone())),
        ("truncated", Some(bytes[..bytes.len() / 2].to_vec())),
        ("empty", Some(Vec::new())),
    ];
    let text = path.extension().is_some_and(|extension| extension == "toml");
    if !text {
        wrongs.push(("old", Some(old[path].clone())));
        let mut zeroed = bytes.to_vec();
        let len = zeroed.len();
        zeroed[len - 640..].fill(0);
        wrongs.push(("without a mark", Some(zeroed)));
    }
    let text = path.to_str().unwrap();
    if text.contains("shard-0") {
        let other = PathBuf::from(text.replace("shard-0", "shard-1"));
        wrongs.extend(good.get(&other).map(|other| ("another shard's", Some(other.clone()))));
    }
    wrongs
}

#[test]
fn one_damaged_copy_of_each_mark_harms_nobody() {
    for device in devices() {
        let folder = made(&device, 1);
        for (path, mut bytes) in tree(&folder.0) {
            if path.extension().is_none_or(|extension| extension != "toml") {
                let at = bytes.len() - 640 + 7;
                bytes[at] ^= 0x55;
                std::fs::write(folder.0.join(&path), bytes).unwrap();
            }
        }
        holds(&folder, &device, 1);
    }
}

#[test]
fn a_device_without_marks_gets_them_at_the_first_open_for_writing() {
    for device in devices() {
        let folder = made(&device, 1);
        let text = std::fs::read_to_string(folder.0.join("dev/device.toml")).unwrap();
        let layout = text.parse::<toml::Table>().unwrap()["layout"].clone();
        let number = |key: &str| layout[key].as_integer().unwrap() as usize;
        let blocks = number("channels") * number("dies_per_channel") * number("blocks_per_plane");
        let records = blocks * 16;
        for (path, bytes) in tree(&folder.0) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let bare = match name {
                "device.toml" | "fast.toml" => {
                    let text = String::from_utf8(bytes).unwrap();
                    let (new, old) = if name == "fast.toml" { (3, 2) } else { (2, 1) };
                    let text =
                        text.replace(&format!("version = {new}"), &format!("version = {old}"));
                    text.into_bytes()
                }
                "generation" => bytes[..12].to_vec(),
                // Of records there may be less than a sector; all else fills whole ones.
                _ => {
                    let whole = name == "blocks" && path.starts_with("dev");
                    let bytes = &bytes[..bytes.len() - 640];
                    bytes[..if whole { records } else { bytes.len() }].to_vec()
                }
            };
            std::fs::write(folder.0.join(&path), bare).unwrap();
        }
        let config = config(&folder.0, &device);
        let before = stamps(&folder.0);
        with_device(&config.device.kind, &config.ftl, true, |_| ()).unwrap();
        assert!(stamps(&folder.0) == before, "who only looks changes nothing");
        holds(&folder, &device, 1);
        let text = std::fs::read_to_string(folder.0.join("dev/device.toml")).unwrap();
        assert!(text.contains("version = 2"), "{text}");
        let others = tree(&made(&device, 3).0);
        std::fs::write(folder.0.join("dev/shard-0/oob"), &others[Path::new("dev/shard-0/oob")])
            .unwrap();
        let told = refusals(&folder, &device);
        assert!(told.iter().all(|told| told.contains("another device")), "{told:?}");
    }
}

#[test]
fn a_server_that_may_only_read_writes_nothing_at_all() {
    let file = crate::FILE.replace("64MiB", "6MiB");
    for device in devices().into_iter().chain([file]) {
        let folder = made(&device, 1);
        let (before, bytes) = (stamps(&folder.0), tree(&folder.0));
        let lock = || std::fs::read(folder.0.join("dev/lock")).ok();
        let locked = lock();
        let server = start(&folder, &format!("{device}\n[ftl]\nread_only = true"));
        let mut client = Client::connect(&folder.socket(), "data").unwrap();
        assert!(client.flags & 2 != 0, "the export is read-only: {:#x}", client.flags);
        assert!(client.read(0, LEN).unwrap() == pattern(1, LEN));
        client.flush().unwrap();
        assert!(client.write(0, &[1; 4096]).is_err());
        server.shut_down().unwrap();
        assert!(stamps(&folder.0) == before && tree(&folder.0) == bytes && lock() == locked);
        holds(&folder, &device, 1);
    }
    let folder = Folder::new();
    let device = format!("{FOLDER}\n[ftl]\nread_only = true");
    let refused = Server::start(&config(&folder.0, &device)).map(drop).unwrap_err().to_string();
    assert!(refused.contains("no device here") && !folder.0.join("dev").exists(), "{refused}");
}

#[test]
fn tiers_of_different_times_are_refused_and_together_again_they_are_whole() {
    let device = &devices()[1];
    let folder = made(device, 1);
    let old = tree(&folder.0);
    write(&folder, device, 2);
    let new = tree(&folder.0);
    let of = |files: &Files, tier: &str| -> Files {
        files
            .iter()
            .filter(|(path, _)| path.starts_with(tier))
            .map(|(p, b)| (p.clone(), b.clone()))
            .collect()
    };
    for (tier, words) in
        [("dev", "older than the fast tier"), ("fast", "older than the capacity tier")]
    {
        put(&folder.0, &of(&old, tier));
        let before = stamps(&folder.0);
        for told in refusals(&folder, device) {
            assert!(told.contains(words) && told.contains("bring back"), "{told}");
        }
        assert!(stamps(&folder.0) == before, "something was written");
        put(&folder.0, &of(&new, tier));
    }
    // The same number of opens, from copies that went different ways.
    put(&folder.0, &old);
    write(&folder, device, 4);
    let fork = tree(&folder.0);
    put(&folder.0, &of(&new, "fast"));
    for told in refusals(&folder, device) {
        assert!(told.contains("different ways"), "{told}");
    }
    put(&folder.0, &fork);
    holds(&folder, device, 4);
}
