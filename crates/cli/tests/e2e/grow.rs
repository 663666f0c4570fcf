//! Devices that become larger: what they held is there, what came can be used, and whatever cuts a growth off, the
//! next one or the next start goes on with it.

use crate::nbd::Client;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{pattern, run, said, weir, weir_path};
use crate::volume_tool::{try_volume, volume};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 48 * MIB;

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
    let it = Grown::new(name, device);
    let old = pattern(1, SIZE as usize);
    let server = it.serve();
    write_all(&mut server.connect_to("old"), &old);
    server.terminate();

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

fn copy(from: &str, to: &str) {
    run("rm", &["-rf", to]);
    run("cp", &["-r", "--sparse=always", from, to]);
}

/// A growth is killed at instants all over it. Whoever comes next, another growth or a server, goes on with it.
fn survives_kills(name: &str, device: &str) {
    let it = Grown::new(name, device);
    let old = pattern(5, SIZE as usize);
    let server = it.serve();
    write_all(&mut server.connect_to("old"), &old);
    server.terminate();
    let before = it.scratch.file("before");
    copy(&it.device, &before);
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
        if step % 2 == 0 {
            it.grown(&["--channels", "6"]);
        }
        let server = it.serve();
        holds(&mut server.connect_to("old"), &old);
        let made = try_volume(&it.scratch, &["create", "new", "--size", "40MiB"]);
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

#[test]
fn a_growth_that_was_cut_off_after_its_first_step_is_finished_by_the_next_start() {
    let it = Grown::new("grow-cut", INSTANT);
    let old = pattern(6, SIZE as usize);
    let server = it.serve();
    write_all(&mut server.connect_to("old"), &old);
    server.terminate();
    let before = it.scratch.file("before");
    copy(&it.device, &before);
    it.grown(&["--channels", "4"]);
    let in_device = |name: &str| format!("{}/{name}", it.device);
    run("cp", &[&in_device("device.toml"), &format!("{before}/growing")]);
    copy(&before, &it.device);
    // One of its files is longer already, and has no mark at its end.
    let file = fs::File::options().write(true).open(in_device("shard-0/oob")).expect("the file");
    let length = file.metadata().expect("its length").len();
    file.set_len(length * 2).expect("it is longer");
    let inspect = weir(&["inspect", "--data", &it.device]);
    let text = said(&inspect);
    assert_eq!(inspect.status.code(), Some(2), "{text}");
    assert!(text.contains("growth") && text.contains("weir grow"), "{text}");
    let server = it.serve();
    holds(&mut server.connect_to("old"), &old);
    volume(&it.scratch, &["create", "new", "--size", "40MiB"]);
    server.terminate();
    assert!(!Path::new(&in_device("growing")).exists());
    // What is not as Weir has written it is not gone on with.
    let text = fs::read_to_string(in_device("device.toml")).expect("a description");
    fs::write(in_device("growing"), text.replace("channels = 4", "channels = 6")).expect("written");
    assert!(Server::start_or_refuse(&it.scratch, &it.args()).is_none());
}

#[test]
fn what_cannot_grow_says_so_and_stays_as_it_is() {
    let it = Grown::new("grow-not", INSTANT);
    let nowhere = weir(&["grow", "--data", &it.scratch.file("nowhere"), "--channels", "4"]);
    assert!(said(&nowhere).contains("no device"), "{}", said(&nowhere));
    let server = it.serve();
    it.is_refused(&["--channels", "4"], "in use by process");
    volume(&it.scratch, &["resize", "old", "40MiB", "--shrink"]);
    volume(&it.scratch, &["snapshot", "old", "monday"]);
    server.terminate();
    it.is_refused(&["--channels", "4"], "snapshots");
    it.is_refused(&["--capacity", "tiny"], "is no size");
    it.is_refused(&["--capacity", "8MiB"], "");
    let server = it.serve();
    volume(&it.scratch, &["delete", "old@monday"]);
    let begun = Instant::now();
    while volume(&it.scratch, &["snapshots"]).contains("monday") {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never leaves");
    }
    server.terminate();
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
