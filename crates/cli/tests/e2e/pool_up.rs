//! `weir pool up`: a whole pool of processes in one command, and what its volume survives: nodes that are killed one
//! after the other, a slow one, the client killed, all of it stopped and started.

use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::tools::{pattern, run, said, weir, weir_path};
use serde_json::Value;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const PIECE: usize = 256 << 10;

/// A running `weir pool up`. It is told to end when it is dropped, and waits for its parts.
struct Up {
    child: Child,
    data: PathBuf,
    said: Receiver<String>,
}

impl Up {
    fn start(scratch: &Scratch, args: &[&str]) -> Self {
        let data = scratch.data();
        let log = File::create(scratch.file("up.log")).expect("a log");
        let mut child = Command::new(weir_path())
            .args(["pool", "up", "--restart-after", "3", "--data"])
            .arg(&data)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("weir starts");
        let out = child.stdout.take().expect("it is piped");
        let (send, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let up = Self { child, data, said };
        up.wait_for("ready");
        up
    }

    /// Waits for a line that begins so.
    fn wait_for(&self, begins: &str) {
        let until = Instant::now() + PATIENCE;
        let mut lines = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(line) if line.starts_with(begins) => return,
                Ok(line) => lines.push(line),
                Err(error) => panic!("no line {begins:?} ({error}):\n{}", lines.join("\n")),
            }
        }
    }

    fn client(&self) -> Client {
        Client::connect(&self.data.join("nbd.sock"), "data").expect("the volume is served")
    }

    fn command(&self, args: &[&str]) {
        let data = self.data.display().to_string();
        let mut all = vec!["pool"];
        all.extend(args);
        all.extend(["--data", &data]);
        let output = weir(&all);
        assert!(output.status.success(), "{}", said(&output));
    }

    fn ask(&self, part: &str) -> Value {
        let socket = self.data.join(format!("{part}.sock")).display().to_string();
        let text = run(weir_path().to_str().expect("a path of text"), &["pool", "ask", &socket]);
        serde_json::from_str(&text).expect("JSON")
    }

    /// What its client says after a round of scrub.
    fn scrub(&self) -> Value {
        let socket = self.data.join("client.sock").display().to_string();
        let args = ["pool", "scrub", &socket, "now", "--wait", "--json"];
        let text = run(weir_path().to_str().expect("a path of text"), &args);
        serde_json::from_str(&text).expect("JSON")
    }

    /// A band with data that nobody has is told of until what is sound of it was written anew.
    fn scrub_till_sound(&self) {
        let socket = self.data.join("client.sock").display().to_string();
        let begun = Instant::now();
        loop {
            let output = weir(&["pool", "scrub", &socket, "now", "--wait"]);
            if output.status.success() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{}", said(&output));
        }
    }

    /// Nobody tells its parts: they end as it does.
    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    fn stop(mut self) {
        // SAFETY: no memory is involved, and the child was not waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // SAFETY: no memory is involved. If it has ended already its number may be nobody's, but not another's: it is
        // a child that is waited for here.
        if matches!(self.child.try_wait(), Ok(None)) {
            unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
            self.child.wait().ok();
        }
    }
}

fn write(client: &mut Client, seed: u64, pieces: std::ops::Range<u64>) {
    for piece in pieces {
        client.write(piece * PIECE as u64, &pattern(seed << 16 | piece, PIECE));
    }
    client.flush();
}

fn check(client: &mut Client, seed: u64, pieces: std::ops::Range<u64>) {
    for piece in pieces {
        let found = client.read(piece * PIECE as u64, PIECE as u32);
        assert!(found == pattern(seed << 16 | piece, PIECE), "piece {piece} of {seed}");
    }
}

/// Waits until the client reaches a node.
fn wait_for_node(up: &Up, node: usize) {
    let begun = Instant::now();
    while up.ask("client")["nodes"][node - 1]["up"] != true {
        assert!(begun.elapsed() < PATIENCE, "{}", up.ask("client"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until repair has nothing to do: a copy that moves away takes its damage with it.
fn wait_for_repair(up: &Up) {
    let begun = Instant::now();
    let has_work = |status: &Value| {
        let counts = ["bands_lacking", "bands_draining", "bands_spreading", "copying"];
        counts.iter().any(|count| status["repair"][*count] != 0)
    };
    while has_work(&up.ask("client")) {
        assert!(begun.elapsed() < PATIENCE, "{}", up.ask("client"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Flips bits of each of these blocks below a drive, which may run, wherever it has them: also where it had them before they
/// moved. False if the drive does not have one of them.
fn damage(drive: &str, blocks: &[u8]) -> bool {
    let bytes = std::fs::read(drive).expect("a plain file");
    let file = File::options().write(true).open(drive).expect("a plain file");
    let is_flipped = |block: &[u8]| {
        let chunks = bytes.chunks(4096).enumerate();
        let all: Vec<_> = chunks.filter(|(_, chunk)| *chunk == block).map(|(at, _)| at).collect();
        for at in &all {
            file.write_all_at(&[!block[0]], *at as u64 * 4096).expect("it is written");
        }
        !all.is_empty()
    };
    let are_flipped = blocks.chunks(4096).all(is_flipped);
    file.sync_all().expect("it is written");
    are_flipped
}

/// Each block of a drive.
fn blocks_of(drive: &str) -> HashSet<Vec<u8>> {
    std::fs::read(drive).expect("a plain file").chunks(4096).map(<[u8]>::to_vec).collect()
}

/// What an administrator does meanwhile.
fn look_after(up: &Up) {
    up.command(&["wear", "2", "95"]);
    assert_eq!(up.ask("node-2")["worn_percent"], 95.0);
    let path = |name: &str| up.data.join(name).display().to_string();
    let (client, config) = (path("client.sock"), path("admin.toml"));
    let json = |args: &[&str]| -> Value {
        let text = run(weir_path().to_str().expect("a path of text"), &[&["pool"], args].concat());
        serde_json::from_str(&text).expect("JSON")
    };
    let scrubbed = json(&["scrub", &client, "now", "--wait", "--json"]);
    assert!(scrubbed["repair"]["scrub_rounds"].as_u64() >= Some(1), "{scrubbed}");
    assert_eq!(scrubbed["scrub"], "idle", "after a round it goes on as usual");
    let spread = weir(&["pool", "rebalance", &client, "--within", "5", "--wait", "--json"]);
    let text = String::from_utf8_lossy(&spread.stderr);
    // Of so small a volume most bands take writes and stay where they are.
    assert!(spread.status.success() || text.contains("still differ by"), "{}", said(&spread));
    let spread: Value = serde_json::from_slice(&spread.stdout).expect("JSON");
    assert_eq!(spread["repair"]["bands_spreading"], 0, "{spread}");
    let node = path("node-2.sock");
    let top = [
        "pool",
        "top",
        "--config",
        &config,
        "--interval",
        "0.2",
        "--count",
        "1",
        "--json",
        &client,
        &node,
    ];
    // On a machine with much else to do the control plane may be late for one look.
    let looks = std::iter::repeat_with(|| weir(&top)).take(10);
    let looks = looks.inspect(|look| println!("{}", said(look)));
    let shown = looks.into_iter().find(|look| look.status.success()).expect("a look that succeeds");
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["status"]["nodes"].as_array().map(Vec::len), Some(3), "{shown}");
    assert_eq!(shown["parts"][&node]["node"], 2, "{shown}");
    assert!(shown["parts"][&client]["asks_per_sec"].is_number(), "{shown}");
    let refused = weir(&["pool", "scrub", &path("nbd.sock"), "now"]);
    assert!(said(&refused).contains("no part of a pool"), "{}", said(&refused));
    let refused = weir(&["pool", "scrub", &path("node-1.sock")]);
    assert!(said(&refused).contains("this is no client"), "{}", said(&refused));
}

#[test]
fn a_volume_survives_that_its_nodes_are_killed_one_after_the_other_and_all_is_started_again() {
    let scratch = Scratch::new("pool-up");
    let args = ["--nodes", "3", "--ssds", "1", "--size", "32MiB"];
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    write(&mut client, 1, 0..64);
    for (node, seed) in [(1, 2), (2, 3), (3, 4)] {
        up.command(&["kill", &node.to_string()]);
        // With two of three machines left both copies still find a place.
        write(&mut client, seed, 0..32);
        check(&mut client, seed, 0..32);
        up.wait_for(&format!("node-{node} is back"));
        wait_for_node(&up, node);
    }
    check(&mut client, 4, 0..32);
    check(&mut client, 1, 32..64);
    up.command(&["slow", "2", "40"]);
    assert_eq!(up.ask("node-2")["slow_ms"], 40);
    write(&mut client, 5, 0..8);
    check(&mut client, 5, 0..8);
    look_after(&up);
    drop(client);
    up.stop();
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    check(&mut client, 5, 0..8);
    check(&mut client, 4, 8..32);
    check(&mut client, 1, 32..64);
    up.stop();
}

#[test]
fn a_pool_on_plain_files_survives_a_killed_node_and_a_restart() {
    let scratch = Scratch::new("pool-up-files");
    let drives = scratch.file("drives");
    let args = ["--nodes", "3", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    write(&mut client, 1, 0..64);
    up.command(&["kill", "1"]);
    write(&mut client, 2, 0..32);
    check(&mut client, 2, 0..32);
    up.wait_for("node-1 is back");
    wait_for_node(&up, 1);
    write(&mut client, 3, 0..16);
    wait_for_repair(&up);
    // What was written last lies in bands that take more.
    let last = &pattern(3 << 16 | 15, PIECE)[PIECE - 4096..];
    let damaged = (1..=3).find(|node| damage(&format!("{drives}/drive-{node}"), last));
    assert!(damaged.is_some(), "a drive has it");
    let scrubbed = up.scrub();
    let found = &scrubbed["repair"]["scrub_found"];
    assert!(found["copies_damaged"].as_u64() >= Some(1), "{found}");
    assert_eq!((&found["bands_unsound"], &found["bands_unlike"]), (&0.into(), &0.into()));
    assert_eq!(scrubbed["repair"]["bands_damaged"], 0, "it was copied anew");
    drop(client);
    up.stop();
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    check(&mut client, 3, 0..16);
    check(&mut client, 2, 16..32);
    check(&mut client, 1, 32..64);
    up.stop();
    let mut begins = [0; 8];
    let mut file = File::open(format!("{drives}/drive-1")).expect("a plain file");
    std::io::Read::read_exact(&mut file, &mut begins).expect("it is read");
    assert_eq!(&begins, b"WEIRFILE");
}

/// No other node can take the copy.
#[test]
fn a_damaged_copy_is_made_anew_where_there_are_only_as_many_nodes_as_copies() {
    let scratch = Scratch::new("pool-up-two");
    let drives = scratch.file("drives");
    let args = ["--nodes", "2", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    write(&mut client, 1, 0..64);
    let some = &pattern(1 << 16 | 7, PIECE)[..4096];
    assert!(damage(&format!("{drives}/drive-1"), some), "the drive has it");
    let found = up.scrub();
    assert!(found["repair"]["scrub_found"]["copies_damaged"].as_u64() >= Some(1), "{found}");
    assert_eq!(found["repair"]["bands_damaged"], 0, "{found}");
    assert_eq!(up.scrub()["repair"]["scrub_found"]["copies_damaged"], 0, "nothing is damaged now");
    check(&mut client, 1, 0..64);
    up.stop();
}

#[test]
fn a_pool_that_was_killed_is_up_again_at_once_and_has_what_was_flushed() {
    let scratch = Scratch::new("pool-up-killed");
    let drives = scratch.file("drives");
    let args = ["--nodes", "3", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    let up = Up::start(&scratch, &args);
    write(&mut up.client(), 1, 0..32);
    up.kill();
    let up = Up::start(&scratch, &args);
    check(&mut up.client(), 1, 0..32);
    up.stop();
}

/// A killed node listed its copy as one that ends at the damaged page: what the other one had damaged was lost.
#[test]
fn copies_that_are_damaged_at_different_places_are_together_one_that_is_sound() {
    let scratch = Scratch::new("pool-up-parts");
    let drives = scratch.file("drives");
    let args = ["--nodes", "4", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    write(&mut client, 1, 0..64);
    // What was written last lies in bands that take more, and each piece in one of them.
    let last = pattern(1 << 16 | 63, PIECE);
    let damage_at = |at: usize, not: Option<usize>| {
        let block = &last[at * 4096..][..4096];
        let mut others = (1..=4).filter(|node| Some(*node) != not);
        others.find(|node| damage(&format!("{drives}/drive-{node}"), block)).expect("it is there")
    };
    let first = damage_at(0, None);
    let other = damage_at(PIECE / 4096 - 1, Some(first));
    for node in [first, other] {
        up.command(&["kill", &node.to_string()]);
        up.wait_for(&format!("node-{node} is back"));
        wait_for_node(&up, node);
    }
    check(&mut client, 1, 0..64);
    drop(client);
    up.stop();
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    check(&mut client, 1, 0..64);
    let begun = Instant::now();
    loop {
        let found = up.scrub();
        let repair = &found["repair"];
        if repair["bands_lacking"] == 0 && repair["scrub_found"]["copies_damaged"] == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{found}");
    }
    check(&mut client, 1, 0..64);
    up.stop();
}

/// Nobody has all of the band, and no other node can take a copy of what both have: repair tried for ever. It is written
/// anew elsewhere, also what was there alone.
#[test]
fn what_only_two_damaged_copies_have_together_is_written_anew_where_no_third_node_can_take_it() {
    let scratch = Scratch::new("pool-up-two-parts");
    let drives = scratch.file("drives");
    let args = ["--nodes", "2", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    write(&mut client, 1, 0..64);
    // A piece lies in one band.
    let piece = pattern(1 << 16 | 20, PIECE);
    for (node, block) in [(1, &piece[..4096]), (2, &piece[PIECE - 4096..])] {
        assert!(damage(&format!("{drives}/drive-{node}"), block), "drive {node} has it");
    }
    let found = up.scrub();
    assert!(found["repair"]["scrub_found"]["copies_damaged"].as_u64() >= Some(1), "{found}");
    assert_eq!(found["repair"]["bands_lacking"], 0, "{found}");
    assert_eq!(up.scrub()["repair"]["scrub_found"]["copies_damaged"], 0, "nothing is damaged now");
    check(&mut client, 1, 0..64);
    up.stop();
}

/// The damaged copy said where its bands ended, and the sound one was cut there: flushed blocks were what they had been
/// before, and scrub found nothing.
#[test]
fn damage_at_the_end_of_one_copy_takes_nothing_from_the_other() {
    let scratch = Scratch::new("pool-up-ends");
    let drives = scratch.file("drives");
    let args = ["--nodes", "2", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    // The last pages of bands that are open: of each of two drives in its turn, after a kill and after an end in order.
    for (seed, node, is_killed) in [(1, 1, true), (2, 2, true), (3, 1, false)] {
        let up = Up::start(&scratch, &args);
        write(&mut up.client(), seed, 0..32);
        if is_killed {
            up.kill();
        } else {
            up.stop();
        }
        let last: Vec<u8> = (28..32).flat_map(|piece| pattern(seed << 16 | piece, PIECE)).collect();
        assert!(damage(&format!("{drives}/drive-{node}"), &last), "it is there");
        let up = Up::start(&scratch, &args);
        check(&mut up.client(), seed, 0..32);
        let found = up.scrub();
        assert_eq!(found["repair"]["bands_lacking"], 0, "{found}");
        check(&mut up.client(), seed, 0..32);
        up.stop();
    }
}

/// The last page of each copy counted as not written where a slot of it was damaged, and scrub said of pages before it that
/// no node has them.
#[test]
fn damage_at_the_end_of_all_copies_takes_nothing_that_is_sound_on_one_of_them() {
    let scratch = Scratch::new("pool-up-all-ends");
    let drives = scratch.file("drives");
    let args = ["--nodes", "3", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    // The second time the very last ones are sound in the first copy, so that its damage is not at the end.
    for (seed, sound_from) in [(1, usize::MAX), (2, PIECE / 4096 - 3)] {
        let up = Up::start(&scratch, &args);
        write(&mut up.client(), seed, 0..32);
        up.kill();
        // Of the last blocks every other one in the first copy, and the others in the second.
        // These are less than eight pages, of which it is told what is left of them.
        let last = pattern(seed << 16 | 31, PIECE);
        let names = [1, 2, 3].map(|node| format!("{drives}/drive-{node}"));
        let blocks = names.each_ref().map(|drive| blocks_of(drive));
        let mut damaged = [const { Vec::new() }; 3];
        for (at, block) in last.chunks(4096).enumerate() {
            let copies: Vec<usize> =
                (0..3).filter(|drive| blocks[*drive].contains(block)).collect();
            assert_eq!(copies.len(), 2, "{copies:?}");
            if at >= sound_from && at % 2 == 0 {
                continue;
            }
            damaged[copies[at % 2]].extend_from_slice(block);
        }
        for (drive, blocks) in names.iter().zip(&damaged) {
            assert!(damage(drive, blocks), "they are there");
        }
        let up = Up::start(&scratch, &args);
        check(&mut up.client(), seed, 0..32);
        let found = up.scrub();
        assert_eq!(found["repair"]["bands_lacking"], 0, "{found}");
        check(&mut up.client(), seed, 0..32);
        up.stop();
    }
}

/// Nobody knew whose a block was that is damaged on all nodes: each that it may have been was refused, nearly all of the
/// volume, which was read-only. At the end of a band what was sound of the last page went with it.
#[test]
fn a_block_that_is_damaged_on_all_nodes_takes_no_other_with_it() {
    let scratch = Scratch::new("pool-up-one");
    let drives = scratch.file("drives");
    let args = ["--nodes", "2", "--ssds", "1", "--size", "32MiB", "--dir", &*drives];
    // So long after the last flush all is killed, or ends in order.
    for (seed, killed_after_ms) in [(1, Some(0)), (2, Some(30)), (3, Some(30)), (4, None)] {
        let up = Up::start(&scratch, &args);
        let mut client = up.client();
        // Extents of several lengths, with a flush behind some.
        let blocks_of = |extent: u64| 1 + (extent * 37 + seed * 11) % 63;
        let extent_of =
            |extent: u64| pattern(seed << 16 | extent, blocks_of(extent) as usize * 4096);
        for extent in 0..12 {
            client.write(extent * PIECE as u64, &extent_of(extent));
            if extent % 4 == 3 {
                client.flush();
            }
        }
        drop(client);
        match killed_after_ms {
            Some(ms) => {
                std::thread::sleep(Duration::from_millis(ms));
                up.kill();
            }
            None => up.stop(),
        }
        let extent = 8 + seed % 4;
        let at = blocks_of(extent) / 2;
        let damaged = &extent_of(extent)[at as usize * 4096..][..4096];
        for node in 1..=2 {
            assert!(damage(&format!("{drives}/drive-{node}"), damaged), "it is there");
        }
        let up = Up::start(&scratch, &args);
        let mut client = up.client();
        for (extent, block) in (0..12).flat_map(|of| (0..blocks_of(of)).map(move |at| (of, at))) {
            let place = extent * PIECE as u64 + block * 4096;
            let wanted = &extent_of(extent)[block as usize * 4096..][..4096];
            let found = client.try_read(place, 4096);
            if wanted != damaged {
                assert!(found.is_ok_and(|found| found == wanted), "{extent}/{block} of {seed}");
            } else if killed_after_ms.is_none() {
                assert!(found.is_err(), "all that was there is told of at a clean stop");
            } else {
                // What was flushed last is not told of yet for some ms: the power may have torn it before its flush.
                assert!(found.is_err() || found.is_ok_and(|found| found != wanted));
            }
        }
        client.write(extent * PIECE as u64 + at * 4096, damaged);
        client.flush();
        drop(client);
        up.scrub_till_sound();
        let found = up.client().read(extent * PIECE as u64 + at * 4096, 4096);
        assert!(found == damaged, "it can be written again");
        up.stop();
    }
}

#[test]
fn a_volume_grows_under_its_clients_and_keeps_what_it_holds_and_who_decides() {
    let scratch = Scratch::new("pool-up-grows");
    let args = ["--nodes", "3", "--ssds", "1", "--size", "32MiB", "--memory"];
    let up = Up::start(&scratch, &args);
    let mut client = up.client();
    write(&mut client, 1, 0..128);
    let path = |name: &str| up.data.join(name).display().to_string();
    let (control, config) = (path("control.sock"), path("admin.toml"));
    let good = |args: &[&str]| run(weir_path().to_str().expect("a path of text"), args);
    good(&["ctl", "policy", "set", "all", "victim=fifo", "--control", &control]);
    let resize =
        |size: &str| weir(&["pool", "volume", "resize", "data", size, "--config", &config]);
    let text = said(&resize("16MiB"));
    assert!(text.contains("only grows"), "{text}");
    let text = said(&resize("4GiB"));
    assert!(text.contains("raw blocks") && text.contains("--thin"), "{text}");
    let text = said(&resize("1TiB"));
    assert!(text.contains("1024 lanes"), "{text}");
    assert!(resize("48MiB").status.success());
    // A client that is connected goes on meanwhile, with the size that it was told.
    let (begun, mut seed) = (Instant::now(), 1);
    let size = || up.client().size;
    while size() != 48 << 20 {
        assert!(begun.elapsed() < PATIENCE, "it has {} bytes", size());
        seed += 1;
        write(&mut client, seed, 0..16);
        check(&mut client, seed, 0..16);
    }
    let mut larger = up.client();
    write(&mut larger, 1, 128..192);
    check(&mut larger, 1, 16..192);
    check(&mut client, seed, 0..16);
    let shown = good(&["ctl", "policy", "show", "--control", &control]);
    assert!(shown.contains("the volume has grown"), "{shown}");
    assert!(shown.lines().any(|line| line.contains("victim") && line.contains("fifo")), "{shown}");
    let listed = good(&["pool", "volume", "list", "--config", &config]);
    assert!(listed.contains("48 MiB"), "{listed}");
    drop((client, larger));
    up.stop();
}

/// It ended with status 2 and the words of a failure.
#[test]
fn a_pool_that_is_told_to_end_before_it_is_ready_ends_in_order() {
    let scratch = Scratch::new("pool-up-early");
    for after_ms in [300, 800, 1500] {
        let child = Command::new(weir_path())
            .args(["pool", "up", "--nodes", "2", "--ssds", "1", "--size", "32MiB", "--data"])
            .arg(scratch.data())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("weir starts");
        std::thread::sleep(Duration::from_millis(after_ms));
        // SAFETY: no memory is involved, and the child was not waited for.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "after {after_ms} ms: {}", said(&output));
    }
}

#[test]
fn what_cannot_be_a_pool_is_told_before_anything_is_made() {
    let scratch = Scratch::new("pool-up-wrong");
    let data = scratch.data().display().to_string();
    let text = said(&weir(&["pool", "up", "--data", &data, "--nodes", "1"]));
    assert!(text.contains("--replicas 2") && text.contains("--nodes 2"), "{text}");
    let text = said(&weir(&["pool", "up", "--data", &data, "--size", "5"]));
    assert!(text.contains("--size 5"), "{text}");
    for size in ["100TiB", "4000000TiB"] {
        let text = said(&weir(&["pool", "up", "--data", &data, "--size", size]));
        assert!(text.contains(size) && text.contains("more drives"), "{text}");
    }
    let text = said(&weir(&["pool", "up", "--data", &data, "--disk", "/dev/null"]));
    assert!(text.contains("name 8"), "{text}");
    let text = said(&weir(&["pool", "kill", "1", "--data", &data]));
    assert!(text.contains("node-1.pid"), "{text}");
    assert!(!scratch.data().exists(), "nothing is made");
    std::fs::create_dir_all(scratch.data()).expect("a folder");
    std::fs::write(scratch.data().join("mine"), "x").expect("a file");
    let text = said(&weir(&["pool", "up", "--data", &data]));
    assert!(text.contains("another folder"), "{text}");
}
