//! Devices that become larger: what they held is there, what came can be used, and whatever cuts a growth off, the
//! next one or the next start goes on with it.

use crate::nbd::Client;
use crate::scratch::{Scratch, Tmpfs};
use crate::server::Server;
use crate::tools::{pattern, root_and, run, said, weir, weir_path};
use crate::volume_tool::{try_volume, volume};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;
/// Behind what a file of a shard holds.
const MARKS_BYTES: u64 = 640;

/// A device of one volume, which has all of it.
struct Grown {
    scratch: Scratch,
    device: String,
    /// The sockets lie beside it, in the folder where the tests' tools look for them.
    sockets: [String; 4],
}

impl Grown {
    /// Makes it, as `device` says.
    fn new(name: &str, device: &str) -> Self {
        let scratch = Scratch::new(name);
        let is_file = device.contains("\"file\"");
        let place = scratch.file(if is_file { "data.img" } else { "data" });
        fs::create_dir_all(scratch.data()).expect("a folder");
        let sockets = ["--socket", "data/nbd.sock", "--control", "data/control.sock"];
        let sockets = sockets.map(|it| match it.starts_with("data") {
            true => scratch.file(it),
            false => it.into(),
        });
        let config = scratch.file("weir.toml");
        let text = format!("[device]\n{device}[[volume]]\nname = \"old\"\nsize = \"48MiB\"\n");
        fs::write(&config, text).expect("a config");
        let made = weir(&["format", "--config", &config, "--data", &place]);
        assert!(made.status.success(), "{}", said(&made));
        Self { scratch, device: place, sockets }
    }

    /// The same, with all of it written, and what was.
    fn filled(name: &str, device: &str, seed: u64) -> (Self, Vec<u8>) {
        let (it, image) = (Self::new(name, device), pattern(seed, SIZE as usize));
        let server = it.serve();
        write_all(&mut server.connect_to("old"), &image);
        server.terminate();
        (it, image)
    }

    fn args(&self) -> Vec<&str> {
        let sockets = self.sockets.iter().map(String::as_str);
        ["--data", self.device.as_str()].into_iter().chain(sockets).collect()
    }

    fn serve(&self) -> Server {
        Server::start(&self.scratch, &self.args())
    }

    fn grow(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = weir(&[&["grow", "--data", &self.device], args].concat());
        (output.status.code(), said(&output))
    }

    fn grown(&self, args: &[&str]) -> String {
        let (code, text) = self.grow(args);
        assert_eq!(code, Some(0), "{text}");
        text
    }

    fn is_refused(&self, args: &[&str], wanted: &str) {
        let (code, text) = self.grow(args);
        assert!(code == Some(2) && text.contains(wanted), "{args:?}: {wanted:?}: {text}");
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.device)
    }

    fn is_growing(&self) -> bool {
        Path::new(&self.file("growing")).exists()
    }

    fn checks_clean(&self) {
        let check = weir(&["check", "--data", &self.device]);
        assert!(check.status.success(), "{}", said(&check));
    }
}

fn write_all(client: &mut Client, image: &[u8]) {
    for (at, part) in (0..).step_by(MIB as usize).zip(image.chunks(MIB as usize)) {
        client.write(at, part);
    }
    client.flush();
}

fn holds(client: &mut Client, image: &[u8]) {
    for (at, part) in (0..).step_by(MIB as usize).zip(image.chunks(MIB as usize)) {
        assert!(client.read(at, part.len() as u32) == part, "at {at}");
    }
}

/// A device of which all is written, which grows, and all of which is written again; and once more.
fn grows(name: &str, device: &str) {
    let (it, old) = Grown::filled(name, device, 1);

    let told = it.grown(&["--channels", "4"]);
    assert!(told.contains("has 4 channels now (2 before)"), "{told}");
    assert!(it.grown(&["--channels", "4"]).contains("already"));
    it.is_refused(&["--channels", "2"], "has 4 channels");
    it.checks_clean();

    let mut server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    volume(&it.scratch, &["create", "new", "--size", "40MiB"]);
    let new = pattern(2, 40 * MIB as usize);
    let again = pattern(3, SIZE as usize);
    write_all(&mut server.connect_to("new"), &new);
    write_all(&mut server.connect_to("old"), &again);
    server.kill();

    // What was acknowledged before a kill is there after a growth, too.
    let told = it.grown(&["--capacity", "200MiB"]);
    assert!(told.contains("and 200 MiB"), "{told}");
    let server = it.serve();
    holds(&mut server.connect_to("old"), &again);
    holds(&mut server.connect_to("new"), &new);
    volume(&it.scratch, &["resize", "new", "152MiB"]);
    let larger = pattern(4, 152 * MIB as usize);
    write_all(&mut server.connect_to("new"), &larger);
    write_all(&mut server.connect_to("old"), &old);
    holds(&mut server.connect_to("new"), &larger);
    server.terminate();
    it.checks_clean();
    let server = it.serve();
    holds(&mut server.connect_to("new"), &larger);
    holds(&mut server.connect_to("old"), &old);
    server.terminate();
}

const INSTANT: &str = "profile = \"instant\"\nchannels = 2\ndies_per_channel = 1\n";
const FILE: &str = "kind = \"file\"\nchannels = 2\n";

#[test]
fn an_emulated_device_grows() {
    grows("grow-nand", INSTANT);
}

#[test]
fn an_emulated_device_of_two_shards_grows() {
    grows("grow-nand2", &format!("{INSTANT}shards = 2\n"));
}

#[test]
fn a_file_grows() {
    grows("grow-file", FILE);
}

#[test]
fn a_file_of_two_shards_grows() {
    grows("grow-file2", &format!("{FILE}shards = 2\n"));
}

/// What exports hold, by their names.
type Images = Vec<(&'static str, Vec<u8>)>;

/// A device with a snapshot, a clone of it, and what all three hold.
fn with_snapshot(name: &str, device: &str) -> (Grown, Images) {
    let it = Grown::new(name, device);
    let server = it.serve();
    volume(&it.scratch, &["resize", "old", "16MiB", "--shrink"]);
    let monday = pattern(8, 16 * MIB as usize);
    write_all(&mut server.connect_to("old"), &monday);
    volume(&it.scratch, &["snapshot", "old", "monday"]);
    volume(&it.scratch, &["clone", "old@monday", "trial"]);
    let (mut old, mut trial) = (monday.clone(), monday.clone());
    old[..5 * MIB as usize].copy_from_slice(&pattern(9, 5 * MIB as usize));
    trial[3 * MIB as usize..7 * MIB as usize].copy_from_slice(&pattern(10, 4 * MIB as usize));
    write_all(&mut server.connect_to("old"), &old[..5 * MIB as usize]);
    server.connect_to("trial").write(3 * MIB, &trial[3 * MIB as usize..7 * MIB as usize]);
    server.connect_to("trial").flush();
    server.terminate();
    (it, vec![("old", old), ("old@monday", monday), ("trial", trial)])
}

fn all_hold(server: &Server, images: &Images) {
    images.iter().for_each(|(name, image)| holds(&mut server.connect_to(name), image));
}

/// A device with snapshots and clones that grows twice: they are what they were, and so are those that come between.
fn grows_with_snapshots(name: &str, device: &str) {
    let (it, mut images) = with_snapshot(name, device);
    it.grown(&["--channels", "4"]);
    it.checks_clean();
    let mut server = it.serve();
    all_hold(&server, &images);
    volume(&it.scratch, &["create", "new", "--size", "40MiB"]);
    write_all(&mut server.connect_to("new"), &pattern(11, 40 * MIB as usize));
    volume(&it.scratch, &["snapshot", "trial", "tuesday"]);
    images.push(("trial@tuesday", images[2].1.clone()));
    images[2].1 = pattern(12, 16 * MIB as usize);
    write_all(&mut server.connect_to("trial"), &images[2].1);
    all_hold(&server, &images);
    server.kill();

    it.grown(&["--capacity", "200MiB"]);
    it.checks_clean();
    let server = it.serve();
    all_hold(&server, &images);
    volume(&it.scratch, &["resize", "new", "120MiB"]);
    write_all(&mut server.connect_to("new"), &pattern(13, 120 * MIB as usize));
    all_hold(&server, &images);
    for gone in ["trial@tuesday", "trial", "old@monday"] {
        volume(&it.scratch, &["delete", gone]);
    }
    server.terminate();
    let server = it.serve();
    holds(&mut server.connect_to("old"), &images[0].1);
    holds(&mut server.connect_to("new"), &pattern(13, 120 * MIB as usize));
    server.terminate();
    it.checks_clean();
}

#[test]
fn an_emulated_device_with_snapshots_grows() {
    grows_with_snapshots("grow-snap", INSTANT);
    grows_with_snapshots("grow-snap2", &format!("{INSTANT}shards = 2\n"));
}

#[test]
fn a_file_with_snapshots_grows() {
    grows_with_snapshots("grow-snapf", FILE);
    grows_with_snapshots("grow-snapf2", &format!("{FILE}shards = 2\n"));
}

fn copy(from: &str, to: &str) {
    run("rm", &["-rf", to]);
    run("cp", &["-r", "--sparse=always", from, to]);
}

/// A growth is killed at instants all over it. Whoever comes next, another growth or a server, goes on with it; who only
/// looks sees what there was.
fn survives_kills(name: &str, device: &str) {
    let (it, images) = with_snapshot(name, device);
    let before = it.scratch.file("before");
    copy(&it.device, &before);
    let config = it.scratch.file("read-only.toml");
    fs::write(&config, "[ftl]\nread_only = true\n").expect("a config");
    let looking = [&it.args()[..], &["--config", &config]].concat();
    let begun = Instant::now();
    it.grown(&["--channels", "6"]);
    let whole = begun.elapsed();
    let (mut larger, steps) = (0, 24);
    for step in 0..steps {
        copy(&before, &it.device);
        let mut growth = Command::new(weir_path())
            .args(["grow", "--channels", "6", "--data", &it.device])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weir starts");
        std::thread::sleep(whole * step / steps);
        growth.kill().expect("it is killed");
        growth.wait().expect("it ends");
        // Files that are becoming longer are looked at by nobody.
        if let Some(server) = Server::start_or_refuse(&it.scratch, &looking) {
            all_hold(&server, &images);
            server.terminate();
        }
        if step % 2 == 0 {
            it.grown(&["--channels", "6"]);
        }
        let server = it.serve();
        all_hold(&server, &images);
        let made = try_volume(&it.scratch, &["create", "new", "--size", "60MiB"]);
        larger += u32::from(made.status.success());
        server.terminate();
        it.checks_clean();
    }
    assert!(larger >= steps / 2, "{larger} of {steps} are larger");
}

#[test]
fn a_growth_of_an_emulated_device_that_is_killed_goes_on() {
    survives_kills("grow-kill", &format!("{INSTANT}shards = 2\n"));
}

#[test]
fn a_growth_of_a_file_that_is_killed_goes_on() {
    survives_kills("grow-killf", FILE);
}

/// A device of two shards whose growth was cut off behind its first step, and what it holds.
fn cut_off(name: &str) -> (Grown, Vec<u8>) {
    let (it, old) = Grown::filled(name, &format!("{INSTANT}shards = 2\n"), 6);
    let before = it.scratch.file("before");
    copy(&it.device, &before);
    it.grown(&["--channels", "4"]);
    let larger = fs::read_to_string(it.file("device.toml")).expect("a description");
    copy(&before, &it.device);
    fs::write(it.file("growing"), growing(&it, &larger)).expect("written");
    copy(&it.device, &before);
    (it, old)
}

/// What stands in `growing` while the device, as it is, becomes the one of this description.
fn growing(it: &Grown, larger: &str) -> String {
    let master = fs::read(it.file("generation")).expect("where it is in its opens");
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| master[at + i]));
    let (generation, id) = (number(0), number(512 + 56));
    format!("# The device is made larger after open {generation}, whose id is {id:016x}.\n{larger}")
}

/// The same, and its description is the new one; it was not mounted since.
fn described_anew(name: &str) -> (Grown, Vec<u8>) {
    let (it, old) = cut_off(name);
    // Who says something wrong of it is refused behind that.
    let wrong = weir(&["serve", "--data", &it.device, "--profile", "slc"]);
    assert!(wrong.status.code() == Some(2) && !it.is_growing(), "{}", said(&wrong));
    (it, old)
}

#[test]
fn a_growth_that_was_cut_off_after_its_first_step_is_finished_by_the_next_start() {
    let (it, old) = cut_off("grow-cut");
    // One of its files is longer already, and has no mark at its end.
    let file = fs::File::options().write(true).open(it.file("shard-0/oob")).expect("the file");
    let length = fs::metadata(it.file("shard-0/oob")).expect("its length").len();
    file.set_len(2 * (length - MARKS_BYTES) + MARKS_BYTES).expect("it is longer");
    let inspect = weir(&["inspect", "--data", &it.device]);
    let text = said(&inspect);
    assert_eq!(inspect.status.code(), Some(2), "{text}");
    assert!(text.contains("growth") && text.contains("weir grow"), "{text}");
    let server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    volume(&it.scratch, &["create", "new", "--size", "40MiB"]);
    server.terminate();
    assert!(!it.is_growing());
    it.checks_clean();
}

#[test]
fn what_is_not_of_this_growth_is_refused_before_anything_is_written() {
    let (it, old) = cut_off("grow-whose");
    let exchange = || {
        let names = ["shard-0", "shard-1", "aside"].map(|name| it.file(name));
        for (from, to) in [(0, 2), (1, 0), (2, 1)] {
            fs::rename(&names[from], &names[to]).expect("it is moved");
        }
    };
    exchange();
    it.is_refused(&["--channels", "4"], "shard");
    exchange();
    let data = fs::File::options().write(true).open(it.file("shard-1/data")).expect("the file");
    let length = data.metadata().expect("its length").len();
    data.set_len(length - (1 << 20)).expect("it is cut");
    it.is_refused(&["--channels", "4"], "shard-1/data");
    let before = it.scratch.file("before");
    copy(&before, &it.device);
    // What is not as Weir has written it, or is of another device.
    let growing = fs::read_to_string(it.file("growing")).expect("a description");
    let unsigned = growing.rsplit_once("# crc32c").expect("its checksum").0;
    for text in [
        growing.replace("channels = 2", "channels = 3"),
        unsigned.replace("blocks_per_plane = ", "blocks_per_plane = 1"),
        unsigned.replace("shards = 2", "shards = 1"),
    ] {
        fs::write(it.file("growing"), text).expect("written");
        it.is_refused(&["--channels", "4"], "growing");
        assert!(Server::start_or_refuse(&it.scratch, &it.args()).is_none());
    }
    fs::write(it.file("growing"), growing).expect("written");
    let server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    server.terminate();
    it.checks_clean();
}

/// True if nothing of a device, a folder or a file, is other than it was.
fn is_same(one: &str, other: &str) -> bool {
    let args = ["-rq", "-x", "lock", "-x", "history.json", one, other];
    Command::new("diff").args(args).status().expect("diff starts").success()
}

#[test]
fn a_growth_that_was_cut_off_is_of_no_copy_of_another_time() {
    let (it, old) = cut_off("grow-other-time");
    let copied = it.scratch.file("copied");
    copy(&it.device, &copied);
    fs::remove_file(format!("{copied}/growing")).expect("removed");
    it.grown(&["--channels", "4"]);
    let larger = fs::read_to_string(it.file("device.toml")).expect("a description");
    // The copy is put back, and the growth of a later open is still there.
    let later = growing(&it, &larger);
    copy(&copied, &it.device);
    fs::write(it.file("growing"), later).expect("written");
    copy(&it.device, &copied);
    it.is_refused(&["--channels", "4"], "at another time");
    assert!(Server::start_or_refuse(&it.scratch, &it.args()).is_none());
    assert!(is_same(&it.device, &copied), "it was written");
    fs::remove_file(it.file("growing")).expect("removed");
    let server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    server.terminate();
    it.checks_clean();
}

/// What a killed server kept of the larger device tells that this one is an older copy.
fn an_older_copy_does_not_grow(name: &str, device: &str) {
    let (it, old) = Grown::filled(name, device, 9);
    let copied = it.scratch.file("copied");
    copy(&it.device, &copied);
    it.grown(&["--channels", "6"]);
    let mut server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    server.kill();
    let grown = it.scratch.file("grown");
    copy(&it.device, &grown);
    copy(&copied, &it.device);
    let check = weir(&["check", "--data", &it.device]);
    let text = said(&check);
    assert!(check.status.code() != Some(0) && text.contains("is an older copy"), "{text}");
    it.is_refused(&["--channels", "8"], "is an older copy");
    assert!(is_same(&it.device, &copied), "it was written");
    copy(&grown, &it.device);
    let server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    server.terminate();
    it.checks_clean();
}

#[test]
fn an_older_copy_of_before_a_growth_is_told_and_stays_as_it_is() {
    an_older_copy_does_not_grow("grow-older", INSTANT);
    an_older_copy_does_not_grow("grow-olderf", FILE);
}

#[test]
fn a_device_that_is_described_and_not_grown_is_looked_at_and_grows_before_a_fast_tier_comes() {
    let (it, old) = described_anew("grow-half");
    it.checks_clean();
    let inspect = weir(&["inspect", "--data", &it.device]);
    assert!(inspect.status.success(), "{}", said(&inspect));
    let config = it.scratch.file("read-only.toml");
    fs::write(&config, "[ftl]\nread_only = true\n").expect("a config");
    let server = Server::start(&it.scratch, &[&it.args()[..], &["--config", &config]].concat());
    holds(&mut server.connect_to("old"), &old);
    server.terminate();
    let fast = it.scratch.file("fast");
    let server = Server::start(&it.scratch, &[&it.args()[..], &["--fast", &fast]].concat());
    holds(&mut server.connect_to("old"), &old);
    volume(&it.scratch, &["create", "new", "--size", "40MiB"]);
    let new = pattern(7, 40 * MIB as usize);
    write_all(&mut server.connect_to("new"), &new);
    server.terminate();
    it.checks_clean();
}

#[test]
fn a_growth_that_finds_no_room_below_ends_says_where_and_goes_on() {
    if !root_and("a growth on a full disk", "/proc/mounts") {
        return;
    }
    let (mut it, images) = with_snapshot("grow-full", &format!("{INSTANT}shards = 2\n"));
    let folder = it.scratch.file("full");
    let mounted = Tmpfs::new(Path::new(&folder), "size=1g");
    let device = format!("{folder}/device");
    copy(&it.device, &device);
    it.device = device;
    let used = run("df", &["--output=used", "-B1", &folder]);
    let used: u64 = used.lines().last().and_then(|line| line.trim().parse().ok()).expect("bytes");
    let (mut told, weir) = (0, weir_path());
    for free_kib in [0, 40, 80, 120] {
        mounted.remount(&format!("size={}", used + (free_kib << 10)));
        // It is killed if it does not end by itself.
        let args = ["-s", "KILL", "60", &weir.to_string_lossy(), "grow", "--capacity"];
        let args = [&args[..], &["100MiB", "--data", &it.device]].concat();
        let output = Command::new("timeout").args(args).output().expect("timeout starts");
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{free_kib} KiB free: {text}");
        assert!(text.contains("nothing is lost"), "{text}");
        told += u32::from(text.contains("/data: the file system or disk below is full"));
    }
    assert!(told > 0, "nobody said where");
    mounted.remount("size=1g");
    it.grown(&["--capacity", "100MiB"]);
    assert!(it.grown(&["--capacity", "100MiB"]).contains("already"));
    let server = it.serve();
    all_hold(&server, &images);
    server.terminate();
    it.checks_clean();
}

#[test]
fn what_cannot_grow_says_so_and_stays_as_it_is() {
    let it = Grown::new("grow-not", INSTANT);
    let nowhere = weir(&["grow", "--data", &it.scratch.file("nowhere"), "--channels", "4"]);
    assert!(said(&nowhere).contains("no device"), "{}", said(&nowhere));
    let server = it.serve();
    it.is_refused(&["--channels", "4"], "in use by process");
    server.terminate();
    it.is_refused(&["--capacity", "tiny"], "is no size");
    it.is_refused(&["--capacity", "8MiB"], "grows only");
    it.grown(&["--channels", "4"]);
    it.checks_clean();

    let formatted = |name: &str, args: &[&str], wanted: &str| {
        let scratch = Scratch::new(name);
        let data = scratch.file("data");
        let format = ["format", "--data", &data, "--capacity", "64MiB"];
        let made = weir(&[&format, args].concat());
        assert!(made.status.success(), "{}", said(&made));
        let refused = weir(&["grow", "--data", &data, "--channels", "8"]);
        let text = said(&refused);
        assert!(refused.status.code() == Some(2) && text.contains(wanted), "{text}");
    };
    formatted("grow-raw", &["--raw"], "raw units");
    let beside = it.scratch.file("fast");
    formatted("grow-fast", &["--fast", &beside], "fast tier");
}
