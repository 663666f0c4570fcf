//! Snapshots of volumes: that each is one instant under load, over shards; what is left after a `kill -9` while they are
//! taken and given up; devices that are full; and what is refused.

use crate::nbd::{Client, FLAG_FUA, TRIM};
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{run, said, weir};
use crate::volume_tool::{refused, try_volume, volume};
use flash::Random;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(60);
const EPERM: u32 = 1;
const ENOSPC: u32 = 28;

fn start(scratch: &Scratch, device: &str, volume_mib: u64) -> Server {
    let text = format!(
        "[device]\nprofile = \"instant\"\n{device}\n[[volume]]\nname = \"data\"\nsize = \"{volume_mib}MiB\"\n"
    );
    let path = scratch.file("weir.toml");
    fs::write(&path, text).expect("a config");
    Server::start(scratch, &["--config", &path])
}

fn listed(scratch: &Scratch) -> Value {
    serde_json::from_str(&volume(scratch, &["list", "--json"])).expect("JSON")
}

/// The names of the snapshots, and the room that each takes.
fn snapshots(scratch: &Scratch) -> BTreeMap<String, u64> {
    let listed = listed(scratch);
    let all = listed["snapshots"].as_array().expect("snapshots");
    let one = |snapshot: &Value| {
        let name = snapshot["name"].as_str().expect("a name").to_owned();
        (name, snapshot["held_bytes"].as_u64().expect("a number"))
    };
    all.iter().map(one).collect()
}

fn whole(client: &mut Client) -> Vec<u8> {
    let size = client.size;
    (0..size).step_by(MIB as usize).flat_map(|at| client.read(at, MIB as u32)).collect()
}

fn fill(client: &mut Client, bytes: u64, byte: u8) {
    for at in (0..bytes).step_by(MIB as usize) {
        client.write(at, &vec![byte; MIB.min(bytes - at) as usize]);
    }
}

/// Writers that write one request after the other, each of which lies on two shards. Each block has its writer's count,
/// and that of the other writer which was acknowledged when the request began.
struct Writers {
    issued: [AtomicU64; 2],
    acknowledged: [AtomicU64; 2],
    over: AtomicBool,
}

/// Areas of a writer, and blocks of each.
const AREAS: u64 = 11;
const AREA_BLOCKS: usize = 64;

/// Where an area of a writer begins: half of it lies before the end of a stripe.
fn area(writer: usize, number: u64) -> u64 {
    (2 * number + writer as u64 + 1) * MIB - (AREA_BLOCKS * BLOCK / 2) as u64
}

impl Writers {
    fn write(&self, writer: usize, mut client: Client) {
        for count in 1u64.. {
            if self.over.load(Ordering::Acquire) {
                return;
            }
            let other = self.acknowledged[1 - writer].load(Ordering::Acquire);
            let mut block = vec![0; BLOCK];
            block[..8].copy_from_slice(&count.to_le_bytes());
            block[8..16].copy_from_slice(&other.to_le_bytes());
            self.issued[writer].store(count, Ordering::Release);
            client.write(area(writer, count % AREAS), &block.repeat(AREA_BLOCKS));
            self.acknowledged[writer].store(count, Ordering::Release);
        }
    }

    fn counts(of: &[AtomicU64; 2]) -> [u64; 2] {
        [of[0].load(Ordering::Acquire), of[1].load(Ordering::Acquire)]
    }
}

/// What of a writer a volume shows: its count, and what it knew of the other one.
fn count_of(data: &[u8], writer: usize) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
    let mut found = Vec::new();
    for at in 0..AREAS {
        let first = area(writer, at) as usize;
        let told = (number(first), number(first + 8));
        for block in 0..AREA_BLOCKS {
            let at = first + block * BLOCK;
            assert_eq!((number(at), number(at + 8)), told, "half a request is in it");
        }
        found.push(told);
    }
    let &(last, known) = found.iter().max().expect("areas");
    for (at, (count, _)) in (0..AREAS).zip(&found) {
        let expected = (0..=last).rev().find(|count| count % AREAS == at).unwrap_or(0);
        assert_eq!(*count, expected, "a write is missing before another that is there: {found:?}");
    }
    (last, known)
}

#[test]
fn a_snapshot_under_load_is_one_instant_over_all_shards_and_stays_so() {
    let scratch = Scratch::new("snapload");
    let server = start(&scratch, "shards = 2\ncapacity = \"160MiB\"", 24);
    let writers = Writers {
        issued: Default::default(),
        acknowledged: Default::default(),
        over: AtomicBool::new(false),
    };
    let mut copies = Vec::new();
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (writers, client) = (&writers, server.connect_to("data"));
            scope.spawn(move || writers.write(writer, client));
        }
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(150));
            let name = format!("s{round}");
            let before = Writers::counts(&writers.acknowledged);
            let told = volume(&scratch, &["snapshot", "data", &name]);
            let after = Writers::counts(&writers.issued);
            assert!(told.contains(&format!("data@{name}: taken, 24 MiB")), "{told}");
            let data = whole(&mut server.connect_to(&format!("data@{name}")));
            let counts = [count_of(&data, 0), count_of(&data, 1)];
            for writer in 0..2 {
                let (count, known) = counts[writer];
                let bounds = before[writer]..=after[writer];
                assert!(bounds.contains(&count), "{count} is not of {bounds:?}");
                assert!(known <= counts[1 - writer].0, "what came before a write is not there");
            }
            copies.push((name, data));
        }
        writers.over.store(true, Ordering::Release);
    });
    println!("snapload: {:?} writes", Writers::counts(&writers.acknowledged));
    let uri = |name: &str| format!("nbd+unix:///data@{name}?socket={}", server.socket().display());
    for (name, data) in &copies {
        let copy = scratch.file(name);
        fs::write(&copy, data).expect("a copy");
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &copy, &uri(name)]);
    }
    let held = snapshots(&scratch);
    assert!(held.len() == 6 && held["data@s5"] > 0, "{held:?}");
    // They are there after a stop, and what is left when one is given up is right.
    server.terminate();
    let check = weir(&["check", "--data", scratch.data().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
    let server = Server::start(&scratch, &[]);
    volume(&scratch, &["delete", "data@s2"]);
    assert!(Client::connect(&server.socket(), "data@s2").is_err());
    for (name, data) in copies.iter().filter(|(name, _)| name != "s2") {
        assert!(whole(&mut server.connect_to(&format!("data@{name}"))) == *data, "{name}");
    }
    server.terminate();
}

/// Kills the server at an instant that is drawn, while others go on; it is not to be reaped before this has ended.
fn kill_soon(server: &Server, random: &mut Random) -> JoinHandle<()> {
    let pid = i32::try_from(server.pid()).expect("a pid fits");
    let spins = random.below(1 << 22);
    std::thread::spawn(move || {
        (0..spins).for_each(|_| std::hint::spin_loop());
        // SAFETY: kill takes no pointer; the child is not reaped before this thread has ended.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    })
}

/// Snapshots as they must be.
struct Expected {
    /// What each is filled with.
    marks: BTreeMap<String, u8>,
    /// What the volume is filled with now.
    mark: u8,
    taken: u32,
}

impl Expected {
    /// Takes a snapshot, or gives one up. What nobody was told the end of: its name, and whether it was to go.
    fn change(&mut self, scratch: &Scratch, random: &mut Random) -> Option<(String, bool)> {
        let drops = !self.marks.is_empty() && (self.marks.len() > 6 || random.chance(0.4));
        let (name, output) = if drops {
            let at = random.below(self.marks.len() as u64) as usize;
            let name = self.marks.keys().nth(at).expect("one of them").clone();
            let output = try_volume(scratch, &["delete", &name]);
            (name, output)
        } else {
            self.taken += 1;
            let name = format!("s{}", self.taken);
            let output = try_volume(scratch, &["snapshot", "data", &name]);
            (format!("data@{name}"), output)
        };
        if !output.status.success() {
            return Some((name, drops));
        }
        self.settle(name, drops);
        None
    }

    fn settle(&mut self, name: String, drops: bool) {
        match drops {
            true => self.marks.remove(&name),
            false => self.marks.insert(name, self.mark),
        };
    }

    fn check(&self, server: &Server) {
        for (name, byte) in &self.marks {
            let data = whole(&mut server.connect_to(name));
            assert!(data.iter().all(|found| found == byte), "{name} is not {byte}");
        }
        let data = whole(&mut server.connect_to("data"));
        assert!(data.iter().all(|found| *found == self.mark), "the volume is not {}", self.mark);
    }
}

#[test]
fn snapshots_are_there_as_a_whole_or_not_at_all_after_a_kill_at_any_instant() {
    let seed =
        std::env::var("WEIR_E2E_SEED").ok().map_or(7, |text| text.parse().expect("a number"));
    println!("WEIR_E2E_SEED={seed} repeats the changes");
    let mut random = Random::new(seed);
    let scratch = Scratch::new("snapkill");
    let begin = |scratch: &Scratch| start(scratch, "shards = 2\ncapacity = \"96MiB\"", 8);
    let mut server = begin(&scratch);
    let mut expected = Expected { marks: BTreeMap::new(), mark: 1, taken: 0 };
    let mut in_doubt = 0;
    fill(&mut server.connect_to("data"), 8 * MIB, expected.mark);
    for kill in 0..12 {
        for _ in 0..random.below(3) {
            assert_eq!(expected.change(&scratch, &mut random), None, "nobody was killed");
            // The next one holds something else.
            expected.mark = expected.mark % 200 + 1;
            fill(&mut server.connect_to("data"), 8 * MIB, expected.mark);
        }
        let killer = kill_soon(&server, &mut random);
        let open = expected.change(&scratch, &mut random);
        killer.join().expect("it kills");
        server.kill();
        server = begin(&scratch);
        let found = snapshots(&scratch);
        if let Some((name, drops)) = open
            && found.contains_key(&name) != drops
        {
            in_doubt += 1;
            expected.settle(name, drops);
        }
        assert!(found.keys().eq(expected.marks.keys()), "kill {kill}: {found:?}");
        expected.check(&server);
    }
    println!("snapkill: after {in_doubt} of 12 kills a change was there that nobody was told of");
    for name in expected.marks.keys() {
        volume(&scratch, &["delete", name]);
    }
    server.terminate();
    let check = weir(&["check", "--data", scratch.data().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
}

#[test]
fn a_full_device_refuses_changes_that_a_snapshot_leaves_no_room_for_and_goes_on_without_it() {
    let scratch = Scratch::new("snapfull");
    let server = start(&scratch, "capacity = \"48MiB\"", 48);
    let mut client = server.connect_to("data");
    fill(&mut client, 48 * MIB, 1);
    volume(&scratch, &["snapshot", "data", "old"]);
    let mut written = 0;
    while written < 48 * MIB && client.try_write(written, &[2; 64 << 10]) == Ok(()) {
        written += 64 << 10;
    }
    println!("snapfull: {} KiB beyond a full device", written >> 10);
    assert!(written < 48 * MIB, "a device that is full has no room for as much again");
    assert_eq!(client.try_write(47 * MIB, &[2; 64 << 10]), Err(ENOSPC));
    // What is there can be read, and nothing is lost of either.
    let mut old = server.connect_to("data@old");
    assert!(whole(&mut old).iter().all(|&byte| byte == 1));
    assert!(client.read(0, 4096).iter().all(|&byte| byte == if written > 0 { 2 } else { 1 }));
    assert!(client.read(46 * MIB, 4096).iter().all(|&byte| byte == 1));
    assert_eq!(client.errno_of(TRIM, FLAG_FUA, 40 * MIB, 1 << 20), 0, "trims go on");
    assert!(whole(&mut old).iter().all(|&byte| byte == 1));
    drop(old);
    volume(&scratch, &["delete", "data@old"]);
    let begun = Instant::now();
    while client.try_write(44 * MIB, &[3; 1 << 20]).is_err() {
        assert!(begun.elapsed() < PATIENCE, "its room never comes back");
        std::thread::sleep(Duration::from_millis(50));
    }
    fill(&mut client, 48 * MIB, 4);
    assert!(whole(&mut client).iter().all(|&byte| byte == 4));
    server.terminate();
}

#[test]
fn a_fast_tier_is_attached_only_if_it_has_room_for_what_snapshots_take() {
    let scratch = Scratch::new("snaptier");
    let server = start(&scratch, "capacity = \"512MiB\"", 400);
    fill(&mut server.connect_to("data"), MIB, 1);
    for number in 0..30 {
        volume(&scratch, &["snapshot", "data", &format!("s{number}")]);
    }
    server.terminate();
    let (data, fast) = (scratch.data(), scratch.file("fast"));
    let attach = |capacity: &str| {
        let device = ["format", "--attach-fast", "--data", data.to_str().unwrap()];
        weir(&[&device[..], &["--fast", &fast, "--fast-capacity", capacity]].concat())
    };
    // Without snapshots so much would do.
    let refused = attach("8MiB");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("map (with its snapshots)"), "{}", said(&refused));
    assert!(!std::path::Path::new(&fast).exists(), "it is not there before it is attached");
    let attached = attach("64MiB");
    assert!(attached.status.success(), "{}", said(&attached));
    let server = Server::start(&scratch, &[]);
    fill(&mut server.connect_to("data"), 100 * MIB, 2);
    let mut oldest = server.connect_to("data@s0");
    assert!(oldest.read(0, MIB as u32).iter().all(|&byte| byte == 1));
    assert!(oldest.read(MIB, MIB as u32).iter().all(|&byte| byte == 0));
    assert_eq!(snapshots(&scratch).len(), 30);
    server.terminate();
}

#[test]
fn what_cannot_be_done_with_snapshots_is_refused_and_says_why() {
    let scratch = Scratch::new("snaprefused");
    let server = start(&scratch, "capacity = \"64MiB\"", 8);
    fill(&mut server.connect_to("data"), 8 * MIB, 1);
    let told = volume(&scratch, &["snapshot", "data", "monday"]);
    assert!(told.contains("data@monday: taken"), "{told}");
    for (args, wanted) in [
        (&["snapshot", "data", "monday"][..], "choose another name"),
        (&["snapshot", "data", "a@b"], "no @"),
        (&["snapshot", "data", ""], "1 to 64 bytes"),
        (&["snapshot", "none", "x"], "there are data, data@monday"),
        (&["snapshot", "data@monday", "x"], "is a snapshot"),
        (&["resize", "data@monday", "4MiB", "--shrink"], "is a snapshot"),
        (&["rename", "data@monday", "x"], "is a snapshot"),
        (&["limit", "data@monday", "--iops", "5"], "is a snapshot"),
        (&["create", "data@monday", "--size", "4MiB"], "choose another name"),
        (&["delete", "data"], "delete data@monday before"),
        (&["delete", "data@tuesday"], "there are data, data@monday"),
    ] {
        refused(&scratch, args, wanted);
    }
    let mut snapshot = server.connect_to("data@monday");
    assert_eq!(snapshot.try_write(0, &[9; 4096]), Err(EPERM));
    // Its volume may get another name and size, and be written.
    volume(&scratch, &["rename", "data", "now"]);
    volume(&scratch, &["resize", "now", "4MiB", "--shrink"]);
    volume(&scratch, &["create", "other", "--size", "12MiB"]);
    fill(&mut server.connect_to("now"), 4 * MIB, 2);
    fill(&mut server.connect_to("other"), 12 * MIB, 3);
    assert!(whole(&mut snapshot).iter().all(|&byte| byte == 1));
    assert!(volume(&scratch, &["snapshots"]).contains("now@monday  8 MiB"));
    assert_eq!(volume(&scratch, &["snapshots", "other"]), "there are no snapshots\n");
    // As many as there is room for, and then a reason.
    let mut taken = 1;
    let full = loop {
        let output = try_volume(&scratch, &["snapshot", "now", &format!("s{taken}")]);
        if !output.status.success() {
            break said(&output);
        }
        taken += 1;
        assert!(taken < 200, "it has no end");
    };
    println!("snaprefused: {taken} snapshots, then {full}");
    assert!(taken > 10 && full.contains("snapshot"), "{taken}: {full}");
    server.terminate();
    let server = Server::start(&scratch, &[]);
    assert_eq!(snapshots(&scratch).len(), taken);
    assert!(whole(&mut server.connect_to("now@monday")).iter().all(|&byte| byte == 1));
    server.terminate();

    let scratch = Scratch::new("snapcached");
    let device = "capacity = \"256MiB\"\n[ftl]\nmap_memory = \"64KiB\"\nmap_piece_blocks = 64\n";
    let server = start(&scratch, device, 8);
    refused(&scratch, &["snapshot", "data", "x"], "map_memory");
    assert!(volume(&scratch, &["create", "more", "--size", "4MiB"]).contains("made"));
    server.terminate();
}

/// Marks a stretch of a volume with a byte of its own.
fn mark(client: &mut Client, at_mib: u64, byte: u8) {
    client.write(at_mib * MIB, &vec![byte; MIB as usize]);
}

/// The byte that each MiB is filled with.
fn marks(server: &Server, name: &str) -> Vec<u8> {
    let data = whole(&mut server.connect_to(name));
    let pieces = data.chunks_exact(MIB as usize);
    pieces
        .map(|piece| {
            assert!(piece.iter().all(|byte| *byte == piece[0]), "{name}: more than one byte a MiB");
            piece[0]
        })
        .collect()
}

#[test]
fn clones_begin_as_a_snapshot_is_and_each_goes_its_own_way() {
    let scratch = Scratch::new("clones");
    let mut server = start(&scratch, "shards = 2\ncapacity = \"64MiB\"", 8);
    let mut data = server.connect_to("data");
    (0..6).for_each(|at| mark(&mut data, at, 1));
    volume(&scratch, &["snapshot", "data", "one"]);
    let told = volume(&scratch, &["clone", "data@one", "twin"]);
    assert!(told.contains("twin: made of data@one, 8 MiB"), "{told}");
    assert_eq!(marks(&server, "twin"), [1, 1, 1, 1, 1, 1, 0, 0]);
    // Neither sees what is changed of the other; what is trimmed of a clone is nothing.
    mark(&mut data, 0, 2);
    let mut twin = server.connect_to("twin");
    mark(&mut twin, 1, 3);
    mark(&mut twin, 7, 4);
    assert_eq!(twin.errno_of(TRIM, FLAG_FUA, 2 * MIB, MIB as u32), 0);
    assert_eq!(marks(&server, "data"), [2, 1, 1, 1, 1, 1, 0, 0]);
    assert_eq!(marks(&server, "twin"), [1, 3, 0, 1, 1, 1, 0, 4]);
    // A clone of a clone.
    volume(&scratch, &["snapshot", "twin", "two"]);
    volume(&scratch, &["clone", "twin@two", "third"]);
    mark(&mut twin, 3, 5);
    mark(&mut server.connect_to("third"), 4, 6);
    volume(&scratch, &["resize", "third", "9MiB"]);
    let after = |server: &Server| {
        assert_eq!(marks(server, "data@one"), [1, 1, 1, 1, 1, 1, 0, 0]);
        assert_eq!(marks(server, "twin"), [1, 3, 0, 5, 1, 1, 0, 4]);
        assert_eq!(marks(server, "twin@two"), [1, 3, 0, 1, 1, 1, 0, 4]);
        assert_eq!(marks(server, "third"), [1, 3, 0, 1, 6, 1, 0, 4, 0]);
    };
    after(&server);
    // What others need stays, and what cannot be is told with what can.
    refused(&scratch, &["delete", "data@one"], "delete twin before");
    refused(&scratch, &["delete", "twin"], "delete twin@two before");
    refused(&scratch, &["delete", "twin@two"], "delete third before");
    refused(&scratch, &["clone", "data", "x"], "weir volume snapshot data NAME");
    refused(&scratch, &["clone", "data@none", "x"], "data@one");
    refused(&scratch, &["clone", "data@one", "twin"], "choose another name");
    refused(&scratch, &["resize", "twin", "4MiB", "--shrink"], "does not become smaller");
    let told = volume(&scratch, &["list"]);
    assert!(told.contains("clone of data@one") && told.contains("clone of twin@two"), "{told}");
    // They are there after a kill, and after a stop, and the device is sound.
    drop((data, twin));
    server.kill();
    let server = Server::start(&scratch, &[]);
    after(&server);
    server.terminate();
    let check = weir(&["check", "--data", scratch.data().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
    let server = Server::start(&scratch, &[]);
    after(&server);
    // Given up one after the other, and what was theirs is the next volume's, empty.
    for name in ["third", "twin@two", "twin", "data@one"] {
        volume(&scratch, &["delete", name]);
    }
    volume(&scratch, &["create", "new", "--size", "56MiB"]);
    assert!(marks(&server, "new").iter().all(|byte| *byte == 0));
    assert_eq!(marks(&server, "data"), [2, 1, 1, 1, 1, 1, 0, 0]);
    server.terminate();
}

/// Clones of one snapshot come and go while the server is killed: each is there whole or not at all, and no volume that is
/// made since shows anything of one.
#[test]
fn clones_are_there_as_a_whole_or_not_at_all_after_a_kill_at_any_instant() {
    let seed =
        std::env::var("WEIR_E2E_SEED").ok().map_or(7, |text| text.parse().expect("a number"));
    println!("WEIR_E2E_SEED={seed} repeats the changes");
    let mut random = Random::new(seed);
    let scratch = Scratch::new("clonekill");
    let begin = |scratch: &Scratch| start(scratch, "shards = 2\ncapacity = \"48MiB\"", 8);
    let mut server = begin(&scratch);
    fill(&mut server.connect_to("data"), 8 * MIB, 9);
    volume(&scratch, &["snapshot", "data", "gold"]);
    fill(&mut server.connect_to("data"), 8 * MIB, 200);
    let mut made: BTreeMap<String, u8> = BTreeMap::new();
    let mut there = 0;
    for kill in 1..=10u8 {
        let drops = made.len() == 3 || !made.is_empty() && random.chance(0.4);
        let killer = kill_soon(&server, &mut random);
        let (name, output) = if drops {
            let name = made.keys().next().expect("one of them").clone();
            let output = try_volume(&scratch, &["delete", &name]);
            (name, output)
        } else {
            let name = format!("c{kill}");
            let output = try_volume(&scratch, &["clone", "data@gold", &name]);
            (name, output)
        };
        killer.join().expect("it kills");
        server.kill();
        server = begin(&scratch);
        let listed = volume(&scratch, &["list"]);
        let is_there = listed.lines().any(|line| line.starts_with(&format!("{name} ")));
        there += u32::from(is_there);
        if output.status.success() {
            assert_eq!(is_there, !drops, "what was answered is so: {listed}");
        }
        match (is_there, drops) {
            (true, false) => {
                assert!(marks(&server, &name).iter().all(|byte| *byte == 9), "{name}");
                mark(&mut server.connect_to(&name), 3, kill);
                server.connect_to(&name).flush();
                made.insert(name, kill);
            }
            (false, true) => {
                made.remove(&name);
            }
            _ => {}
        }
        for (name, byte) in &made {
            let found = marks(&server, name);
            assert_eq!(found, [9, 9, 9, *byte, 9, 9, 9, 9], "{name}");
        }
        assert!(marks(&server, "data@gold").iter().all(|byte| *byte == 9));
        // What is free shows nothing of a clone.
        let free = format!("{}MiB", 40 - 8 * made.len());
        volume(&scratch, &["create", "rest", "--size", &free]);
        assert!(marks(&server, "rest").iter().all(|byte| *byte == 0), "after kill {kill}");
        volume(&scratch, &["delete", "rest"]);
    }
    println!("clonekill: {there} of 10 there after the kill, {} at the end", made.len());
    server.terminate();
}

#[test]
fn a_clone_of_a_volume_that_few_hosts_see_is_seen_by_no_others() {
    let scratch = Scratch::new("clonehosts");
    let text = "[device]\nprofile = \"instant\"\ncapacity = \"32MiB\"\n[[volume]]\nname = \"data\"\nsize = \"8MiB\"\n\
                nvme_hosts = [\"nqn.2026-01.org.example:me\"]\n[nvme]\ntcp = \"127.0.0.1:0\"\ntcp_plain = true\n";
    let path = scratch.file("weir.toml");
    fs::write(&path, text).expect("a config");
    let server = Server::start(&scratch, &["--config", &path]);
    volume(&scratch, &["snapshot", "data", "x"]);
    refused(&scratch, &["clone", "data@x", "trial"], "say the same of \"trial\" there");
    server.terminate();
    let wish = "[[volume]]\nname = \"trial\"\nsize = \"8MiB\"\nnvme_hosts = [\"nqn.2026-01.org.example:me\"]\n";
    fs::write(&path, format!("{text}{wish}")).expect("a config");
    let server = Server::start(&scratch, &["--config", &path]);
    volume(&scratch, &["clone", "data@x", "trial"]);
    server.terminate();
}
