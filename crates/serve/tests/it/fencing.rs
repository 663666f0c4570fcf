//! Two servers of one device, as from two machines: the locks do not reach from one to the other. The
//! older one must neither acknowledge anything nor harm what the newer one has acknowledged.

use crate::client::{Client, FLUSH, TRIM};
use crate::{FILE, FOLDER, Folder, config, pattern, start};
use serve::Server;
use serve::offline::with_device;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Takes the locks from whoever holds files below `folder`, and lets the device tell that its server
/// runs on another machine.
fn as_from_another_machine(folder: &Path) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        if std::fs::read_link(&path).is_ok_and(|target| target.starts_with(folder)) {
            let fd: i32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            // SAFETY: no memory is involved.
            unsafe { libc::flock(fd, libc::LOCK_UN) };
        }
    }
    let masters = [("dev/generation", 512), ("dev.img", 4096 + 512)];
    for (name, at) in masters {
        let Ok(file) = std::fs::File::options().read(true).write(true).open(folder.join(name))
        else {
            continue;
        };
        for copy in [at, at + 512] {
            let mut mark = [0; 128];
            file.read_exact_at(&mut mark, copy).unwrap();
            assert_eq!(mark[..8], *b"WEIRMARK");
            mark[64] ^= 1;
            let sum = flash::crc(&mark[..124]);
            mark[124..].copy_from_slice(&sum.to_le_bytes());
            file.write_all_at(&mark, copy).unwrap();
        }
    }
}

/// Writes, flushes and trims without end; tells when the last request that succeeded was sent.
fn press_on(
    mut client: Client,
    region: u64,
    block: usize,
    raw: bool,
    stop: &AtomicBool,
) -> Instant {
    let mut last = Instant::now();
    let bytes = pattern(99, block);
    for at in (0..region).step_by(block).cycle() {
        if stop.load(Ordering::Relaxed) {
            return last;
        }
        let sent = Instant::now();
        if raw {
            // Refused where nothing is written.
            client.try_simple(TRIM, at, block as u32).ok();
        }
        let written = client.try_write(at, &bytes);
        let flushed = client.try_simple(FLUSH, 0, 0);
        if matches!(written, Ok(0)) || matches!(flushed, Ok(0)) {
            last = sent;
        } else if written.is_err() && flushed.is_err() {
            // It hung up.
            return last;
        }
    }
    last
}

#[test]
fn a_server_that_lost_its_device_acknowledges_nothing_and_harms_nothing() {
    let with_fast =
        |device: &str, keys: &str| format!("{device}\nfast = {{ path = \"fast\", {keys} }}");
    let nand = "profile = \"instant\", capacity = \"24MiB\"";
    let raw = format!("{}\nmode = \"raw\"", FOLDER.replace("op_percent = 50\n", ""));
    for (name, device) in [
        ("folder", FOLDER.to_string()),
        ("two shards", format!("{FOLDER}\nshards = 2")),
        ("folder and fast tier", with_fast(FOLDER, nand)),
        ("file", FILE.to_string()),
        ("file and fast tier", with_fast(FILE, "kind = \"file\", capacity = \"64MiB\"")),
        ("raw units", raw),
    ] {
        take_over(name, &device);
    }
}

fn take_over(name: &str, device: &str) {
    let folder = Folder::new();
    let is_raw = device.contains("raw");
    let export = if is_raw { "unit/1" } else { "data" };
    let old = start(&folder, device);
    let block = old.ready().raw.map_or(64 << 10, |shape| shape.raw_block_bytes() as usize);
    let mut client = Client::connect(&folder.socket(), export).unwrap();
    let region = if is_raw { 2 * block as u64 } else { 2 << 20 };
    if !is_raw {
        client.write(0, &pattern(1, region as usize)).unwrap();
        client.flush().unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let presses = scope.spawn(move || press_on(client, region, block, is_raw, stop));
        // Much is under way, of one shard for the clients of another, when it ends.
        let more = if device.contains("shards") { 12 } else { 0 };
        for client in (0..more).map(|_| Client::connect(&folder.socket(), export).unwrap()) {
            scope.spawn(move || press_on(client, region, 1 << 20, is_raw, stop));
        }
        std::thread::sleep(Duration::from_millis(50));
        as_from_another_machine(&folder.0);
        std::fs::remove_file(folder.socket()).unwrap();
        std::fs::remove_file(folder.0.join("control.sock")).unwrap();
        let new = start(&folder, device);
        let began = Instant::now();
        let mut client = Client::connect(&folder.socket(), export).unwrap();
        let mut bytes = pattern(2, region as usize);
        if is_raw {
            for at in (0..region).step_by(block) {
                client.try_simple(TRIM, at, block as u32).unwrap();
            }
        }
        for (at, bytes) in (0..).step_by(block).zip(bytes.chunks(block)) {
            client.write(at, bytes).unwrap();
        }
        client.flush().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert!(client.read(0, bytes.len()).unwrap() == bytes, "{name}: harmed while both ran");
        stop.store(true, Ordering::Relaxed);
        let last = presses.join().unwrap();
        assert!(last < began, "{name}: a success {:?} after the other began", last - began);
        let ended = old.shut_down().unwrap_err().to_string();
        assert!(
            ended.contains("another server") && ended.contains("generation 2"),
            "{name}: {ended}"
        );
        if !is_raw {
            let more = pattern(3, block);
            client.write(region, &more).unwrap();
            bytes.extend(more);
        }
        client.flush().unwrap();
        new.shut_down().unwrap();
        read_back(name, &folder, device, export, &bytes);
    });
}

fn read_back(name: &str, folder: &Folder, device: &str, export: &str, bytes: &[u8]) {
    let config = config(&folder.0, device);
    with_device(&config.device.kind, &config.ftl, true, |shards| {
        assert!(shards.iter().all(|shard| shard.report().clean), "{name}");
    })
    .unwrap_or_else(|error| panic!("{name}: {error}"));
    let server = start(folder, device);
    let mut client = Client::connect(&folder.socket(), export).unwrap();
    assert!(client.read(0, bytes.len()).unwrap() == bytes, "{name}: harmed");
    server.shut_down().unwrap();
}

/// A server that nobody asks for anything finds it, too, and ends by itself.
#[test]
fn an_idle_server_that_lost_its_device_ends_by_itself_and_tells_its_clients() {
    for device in [FOLDER, FILE] {
        let folder = Folder::new();
        let mut old = start(&folder, device);
        let mut client = Client::connect(&folder.socket(), "data").unwrap();
        client.write(0, &pattern(1, 4096)).unwrap();
        as_from_another_machine(&folder.0);
        std::fs::remove_file(folder.socket()).unwrap();
        std::fs::remove_file(folder.0.join("control.sock")).unwrap();
        let new: Server = start(&folder, device);
        let ended = old.join().unwrap_err().to_string();
        assert!(ended.contains("generation 2"), "{ended}");
        assert!(!matches!(client.try_simple(FLUSH, 0, 0), Ok(0)), "no success after the end");
        new.shut_down().unwrap();
    }
}
