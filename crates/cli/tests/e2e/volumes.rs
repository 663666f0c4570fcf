//! Volumes that are made, deleted, renamed and get other sizes while the server serves others: what clients see of it,
//! what is left after a `kill -9` at any instant, and what is refused.

use crate::nbd::{Client, FLAG_FUA, TRIM};
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{run, said, weir};
use crate::volume_tool::{refused, volume};
use flash::Random;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Longest until what was left of a volume is trimmed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What NBD says of a volume that is gone, of what does not fit, and of a range beyond the end.
const ESHUTDOWN: u32 = 108;
const ENOSPC: u32 = 28;
const EINVAL: u32 = 22;

/// A device of two volumes, with room for more.
fn config(scratch: &Scratch, device: &str) -> String {
    let text = format!(
        "[device]\n{device}capacity = \"128MiB\"\n\
         [[volume]]\nname = \"neighbour\"\nsize = \"24MiB\"\n\
         [[volume]]\nname = \"old\"\nsize = \"16MiB\"\n"
    );
    let path = scratch.file("weir.toml");
    fs::write(&path, text).expect("a config");
    path
}

fn start(scratch: &Scratch, config: &str) -> Server {
    Server::start(scratch, &["--config", config])
}

/// One request to the control socket.
fn ask(control: &Path, method: &str, path: &str, body: &str) -> io::Result<(u16, Value)> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let code = answer.get(9..12).and_then(|code| code.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let code = code.ok_or_else(|| io::Error::other("no answer"))?;
    Ok((code, serde_json::from_str(body).unwrap_or_default()))
}

fn listed(server: &Server) -> Value {
    let (code, value) = ask(&server.control(), "GET", "/volumes", "").expect("an answer");
    assert_eq!(code, 200, "{value}");
    value
}

/// Names and sizes, in the order in which they were made.
fn sizes(listed: &Value) -> Vec<(String, u64)> {
    let volumes = listed["volumes"].as_array().expect("volumes");
    let one = |volume: &Value| {
        (volume["name"].as_str().unwrap().to_owned(), volume["size_bytes"].as_u64().unwrap())
    };
    volumes.iter().map(one).collect()
}

/// Waits until what volumes have left is trimmed; then nothing of the room is lost.
fn all_is_trimmed(server: &Server) -> Value {
    let begun = Instant::now();
    loop {
        let value = listed(server);
        let number = |key: &str| value[key].as_u64().expect("a number");
        let sum: u64 = sizes(&value).iter().map(|(_, bytes)| bytes).sum();
        let room = sum + number("free_bytes") + number("leaving_bytes");
        assert_eq!(room, number("device_bytes"), "{value}");
        if number("leaving_bytes") == 0 {
            return value;
        }
        assert!(begun.elapsed() < PATIENCE, "it is never trimmed: {value}\n{}", server.log());
        std::thread::yield_now();
    }
}

fn holds(client: &mut Client, bytes: u64, byte: u8) {
    for at in (0..bytes).step_by(MIB as usize) {
        let data = client.read(at, MIB.min(bytes - at) as u32);
        assert!(data.iter().all(|&found| found == byte), "{byte} at {at}: {:?}", &data[..16]);
    }
}

fn fill(client: &mut Client, bytes: u64, byte: u8) {
    for at in (0..bytes).step_by(MIB as usize) {
        client.write(at, &vec![byte; MIB.min(bytes - at) as usize]);
    }
}

fn come_and_go(name: &str, device: &str) {
    let scratch = Scratch::new(name);
    let server = start(&scratch, &config(&scratch, device));
    let fio = format!("--uri=nbd+unix:///neighbour?socket={}", server.socket().display());
    let load = std::thread::spawn(move || {
        let workload = ["--rw=randrw", "--bsrange=4k-64k", "--size=24m", "--io_size=96m"];
        let verify = [
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_backlog=64",
            "--verify_state_save=0",
            "--randseed=3",
        ];
        let args = [
            &["--name=neighbour", "--ioengine=nbd", &fio, "--iodepth=8"],
            &workload[..],
            &verify[..],
        ];
        run("fio", &args.concat())
    });
    let mut old = server.connect_to("old");
    fill(&mut old, 16 * MIB, 0x11);
    let told = volume(&scratch, &["create", "new", "--size", "8MiB"]);
    assert!(told.contains("new: made, 8 MiB"), "{told}");
    let mut new = server.connect_to("new");
    assert_eq!(new.size, 8 * MIB);
    holds(&mut new, 8 * MIB, 0);
    fill(&mut new, 8 * MIB, 0x22);
    let place = format!("nbd+unix:///?socket={}", server.socket().display());
    let list = run("nbdinfo", &["--list", "--json", &place]);
    let list: Value = serde_json::from_str(&list).expect("JSON");
    let names: Vec<_> =
        list["exports"].as_array().unwrap().iter().map(|export| &export["export-name"]).collect();
    assert_eq!(names, ["neighbour", "old", "new"]);

    // Larger: seen at the next connection, and all of it zeroes.
    volume(&scratch, &["resize", "new", "40MiB"]);
    assert_eq!(
        new.errno_of(crate::nbd::READ, 0, 8 * MIB, 4096),
        EINVAL,
        "what it does not know of"
    );
    let mut larger = server.connect_to("new");
    assert_eq!(larger.size, 40 * MIB);
    holds(&mut larger, 8 * MIB, 0x22);
    larger.write(40 * MIB - 4096, &[0x33; 4096]);
    assert!(larger.read(20 * MIB, 4096).iter().all(|&byte| byte == 0));

    // Smaller only if that is said; what is beyond the end is refused at once.
    refused(&scratch, &["resize", "new", "4MiB"], "--shrink");
    volume(&scratch, &["resize", "new", "4MiB", "--shrink"]);
    assert_eq!(larger.try_write(4 * MIB, &[1; 4096]), Err(ENOSPC));
    assert_eq!(larger.try_read(4 * MIB, 4096), Err(EINVAL));
    assert_eq!(larger.errno_of(TRIM, FLAG_FUA, 4 * MIB, 4096), EINVAL);
    holds(&mut larger, 4 * MIB, 0x22);

    volume(&scratch, &["rename", "new", "renamed"]);
    assert!(Client::connect(&server.socket(), "new").is_err());
    holds(&mut server.connect_to("renamed"), 4 * MIB, 0x22);
    holds(&mut larger, 4 * MIB, 0x22);

    rest_is_empty(&scratch, &server, old);
    load.join().expect("fio verifies its data");

    let list = volume(&scratch, &["list"]);
    assert!(list.contains("renamed") && list.contains("0 bytes of "), "{list}");
    outlive(&scratch, server);
}

/// Deletes the volume whose client this is, and makes another of all that is left.
fn rest_is_empty(scratch: &Scratch, server: &Server, mut old: Client) {
    // A client of a volume that is deleted is hung up on; what it had is nobody's.
    volume(scratch, &["delete", "old"]);
    assert!(old.is_ready(PATIENCE), "it is told");
    match old.receive() {
        Ok(answer) => assert_eq!(answer.error, ESHUTDOWN),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
    }
    assert!(Client::connect(&server.socket(), "old").is_err());
    // It takes all that is left, also what was the others'.
    let free = all_is_trimmed(server)["free_bytes"].as_u64().expect("a number");
    volume(scratch, &["create", "rest", "--size", &format!("{}KiB", free >> 10)]);
    refused(scratch, &["create", "more", "--size", "4KiB"], "belong to no volume");
    holds(&mut server.connect_to("rest"), free, 0);
}

/// The volumes are the same when the device is served again, whatever a config says of them.
fn outlive(scratch: &Scratch, server: Server) {
    let before = sizes(&listed(&server));
    server.terminate();
    let check = weir(&["check", "--data", scratch.data().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
    // The config speaks of volumes that were there once: the device knows better.
    let server = start(scratch, &scratch.file("weir.toml"));
    assert_eq!(sizes(&listed(&server)), before);
    assert!(
        server.log().contains("\"old\" of the config is not on the device"),
        "{}",
        server.log()
    );
    holds(&mut server.connect_to("renamed"), 4 * MIB, 0x22);
    server.terminate();
    // And without a config they are the same.
    let server = Server::start(scratch, &[]);
    assert_eq!(sizes(&listed(&server)), before);
    server.terminate();
}

#[test]
fn volumes_come_and_go_beside_a_neighbour_that_is_busy() {
    come_and_go("volumes", "profile = \"instant\"\nshards = 2\n");
}

#[test]
fn volumes_come_and_go_behind_a_fast_tier() {
    let own = Scratch::new("volumesfast-tier");
    let fast = own.file("fast");
    come_and_go(
        "volumesfast",
        &format!("profile = \"instant\"\nfast = {{ path = {fast:?}, capacity = \"48MiB\" }}\n"),
    );
}

/// The volumes as they must be: what was answered, and perhaps one change more.
struct Expected {
    now: Vec<(String, u64)>,
    next_mark: u8,
    /// What each volume is filled with, by name.
    marks: std::collections::BTreeMap<String, u8>,
}

impl Expected {
    /// A change, as a request, and the volumes after it.
    fn draw(&self, random: &mut Random) -> (&'static str, String, String, Vec<(String, u64)>) {
        let mut after = self.now.clone();
        let others: Vec<usize> = (1..after.len()).collect();
        let chosen =
            (!others.is_empty()).then(|| others[random.below(others.len() as u64) as usize]);
        let size = MIB * (1 + random.below(12));
        match (random.below(5), chosen) {
            (1, Some(at)) => {
                let (name, _) = after.remove(at);
                ("DELETE", format!("/volumes/{name}"), String::new(), after)
            }
            (2, Some(at)) => {
                let body = json!({ "size_bytes": size, "shrink": true }).to_string();
                after[at].1 = size;
                ("PATCH", format!("/volumes/{}", after[at].0), body, after)
            }
            (3, Some(at)) => {
                let name = format!("r{}", random.below(1 << 40));
                let path = format!("/volumes/{}", after[at].0);
                after[at].0.clone_from(&name);
                ("PATCH", path, json!({ "name": name }).to_string(), after)
            }
            _ => {
                let name = format!("v{}", random.below(1 << 40));
                after.push((name.clone(), size));
                let body = json!({ "name": name, "size_bytes": size }).to_string();
                ("POST", "/volumes".into(), body, after)
            }
        }
    }

    /// The marks go with the names.
    fn settle(&mut self, after: Vec<(String, u64)>) {
        if after.len() == self.now.len() {
            for (before, after) in self.now.iter().zip(&after) {
                if let Some(mark) = self.marks.remove(&before.0) {
                    self.marks.insert(after.0.clone(), mark);
                }
            }
        }
        self.marks.retain(|name, _| after.iter().any(|(known, _)| known == name));
        self.now = after;
    }

    /// Every volume holds its own data and zeroes, and nobody else's. Those that are new get a mark.
    fn check(&mut self, server: &Server) {
        for (name, bytes) in self.now.iter().skip(1) {
            let mut client = server.connect_to(name);
            assert_eq!(client.size, *bytes, "{name}");
            let mark = self.marks.get(name).copied();
            for at in (0..*bytes).step_by(MIB as usize) {
                let data = client.read(at, MIB as u32);
                let is_own = |&byte: &u8| byte == 0 || Some(byte) == mark;
                assert!(data.iter().all(is_own), "{name}, {mark:?}: {:?} at {at}", &data[..8]);
            }
            if mark.is_none() {
                self.next_mark = self.next_mark % 200 + 2;
                fill(&mut client, *bytes, self.next_mark);
                self.marks.insert(name.clone(), self.next_mark);
            }
        }
    }
}

fn survive_kills(name: &str, device: &str, kills: u32) {
    let seed =
        std::env::var("WEIR_E2E_SEED").ok().map_or(5, |text| text.parse().expect("a number"));
    println!("{name}: WEIR_E2E_SEED={seed} repeats the changes");
    let mut random = Random::new(seed);
    let scratch = Scratch::new(name);
    let config = config(&scratch, device);
    let mut server = start(&scratch, &config);
    fill(&mut server.connect_to("neighbour"), 24 * MIB, 1);
    server.connect_to("neighbour").flush();
    let mut expected =
        Expected { now: sizes(&listed(&server)), next_mark: 0, marks: Default::default() };
    let mut in_doubt = 0;
    for kill in 0..kills {
        expected.check(&server);
        let (answered, spins) = (random.below(6), random.below(1 << 21));
        let (begin, begun) = mpsc::channel::<()>();
        let pid = i32::try_from(server.pid()).expect("a pid fits");
        let killer = std::thread::spawn(move || {
            begun.recv().ok();
            (0..spins).for_each(|_| std::hint::spin_loop());
            // SAFETY: kill takes no pointer; the child is not reaped before this thread has ended.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        });
        let mut open = None;
        for number in 0.. {
            if number == answered {
                begin.send(()).ok();
            }
            let (method, path, body, after) = expected.draw(&mut random);
            match ask(&server.control(), method, &path, &body) {
                Ok((200, _)) => expected.settle(after),
                // No room: nothing has changed.
                Ok((409, value)) => assert!(value["error"].is_string(), "{value}"),
                Ok((code, value)) if code != 503 => {
                    panic!("{method} {path} {body}: {code} {value}")
                }
                _ => {
                    open = Some(after);
                    break;
                }
            }
        }
        drop(begin);
        killer.join().expect("it kills");
        server.kill();
        server = start(&scratch, &config);
        let found = sizes(&listed(&server));
        if found != expected.now {
            in_doubt += 1;
            let after = open.expect("a change was under way");
            assert_eq!(found, after, "kill {kill}: neither before nor after: {:?}", expected.now);
            expected.settle(after);
        }
        holds(&mut server.connect_to("neighbour"), 24 * MIB, 1);
        if kill % 3 == 0 {
            all_is_trimmed(&server);
        }
    }
    expected.check(&server);
    all_is_trimmed(&server);
    println!(
        "{name}: {kills} kills, after {in_doubt} of which a change was there that nobody was told of"
    );
    server.terminate();
    let check = weir(&["check", "--data", scratch.data().to_str().unwrap()]);
    assert!(check.status.success(), "{}", said(&check));
}

#[test]
fn volumes_are_as_before_or_after_a_change_that_a_kill_has_cut_off() {
    survive_kills("volkill", "profile = \"instant\"\nshards = 2\n", 12);
}

#[test]
fn volumes_are_as_before_or_after_a_change_that_a_kill_has_cut_off_on_a_file() {
    let own = Scratch::new("volkillfile-device");
    let scratch = Scratch::new("volkillfile");
    let file = own.file("device.img");
    let text = format!(
        "[device]\nkind = \"file\"\npath = {file:?}\nchannels = 2\ncapacity = \"128MiB\"\n\
         [[volume]]\nname = \"a\"\nsize = \"16MiB\"\n\
         [nbd]\nunix = {:?}\n[control]\nunix = {:?}\n",
        scratch.file("nbd.sock"),
        scratch.file("control.sock")
    );
    let config = scratch.file("weir.toml");
    fs::write(&config, text).expect("a config");
    let control = scratch.file("control.sock");
    let args = ["--config", &*config, "--data", &*file];
    let mut made = 0u64;
    for round in 0..6u64 {
        let mut server = Server::start(&scratch, &args);
        let (_, listed) = ask(Path::new(&control), "GET", "/volumes", "").expect("an answer");
        let found = sizes(&listed).len() as u64;
        assert!(found == made + 1 || found == made + 2 && round > 0, "{made} were made: {listed}");
        made = found - 1;
        for _ in 0..2 {
            let body = json!({ "name": format!("v{made}"), "size_bytes": MIB }).to_string();
            let (code, value) =
                ask(Path::new(&control), "POST", "/volumes", &body).expect("an answer");
            assert_eq!(code, 200, "{value}");
            made += 1;
        }
        server.kill();
    }
}

#[test]
fn what_cannot_be_changed_is_refused_and_says_why() {
    let scratch = Scratch::new("volrefused");
    let server = start(&scratch, &config(&scratch, "profile = \"instant\"\n"));
    refused(&scratch, &["create", "neighbour", "--size", "4MiB"], "choose another name");
    refused(&scratch, &["create", "a/b", "--size", "4MiB"], "no / or ?");
    refused(&scratch, &["create", "", "--size", "4MiB"], "1 to 64 bytes");
    refused(&scratch, &["create", "x", "--size", "5KiB"], "multiple of 4096");
    refused(&scratch, &["create", "x", "--size", "1GiB"], "belong to no volume");
    refused(&scratch, &["delete", "none"], "there are neighbour, old");
    refused(&scratch, &["resize", "none", "4MiB"], "no volume is called");
    refused(&scratch, &["rename", "old", "neighbour"], "choose another name");
    refused(&scratch, &["limit", "old", "--burst", "1s"], "no effect");
    for (method, path, body, code) in [
        ("POST", "/volumes", "{", 400),
        ("POST", "/volumes", r#"{"name":"x"}"#, 422),
        ("POST", "/volumes", r#"{"name":"x","size_bytes":-1}"#, 422),
        ("POST", "/volumes", r#"{"name":"x","size_bytes":18446744073709547520}"#, 409),
        ("POST", "/volumes", r#"{"name":"x","size_bytes":4096,"colour":1}"#, 422),
        ("PATCH", "/volumes/old", "{}", 400),
        ("PATCH", "/volumes/old", r#"{"name":"x","size_bytes":4096}"#, 400),
        ("PATCH", "/volumes/old", r#"{"size_bytes":0}"#, 400),
        ("PATCH", "/volumes/none", r#"{"name":"x"}"#, 404),
        ("DELETE", "/volumes/none", "", 404),
        ("DELETE", "/volumes/%ff", "", 400),
    ] {
        let (found, value) = ask(&server.control(), method, path, body).expect("an answer");
        assert_eq!(found, code, "{method} {path} {body}: {value}");
        assert!(value["error"].is_string() || found == 400, "{method} {path} {body}: {value}");
    }
    // Over TCP nobody changes anything without the token.
    let port = server.http().port();
    let url = format!("http://127.0.0.1:{port}/volumes/old");
    let curl = run("curl", &["-sS", "-o", "/dev/null", "-w", "%{http_code}", "-X", "DELETE", &url]);
    assert_eq!(curl, "403");
    assert_eq!(sizes(&listed(&server)).len(), 2, "nothing has changed");
    server.terminate();
    other_capacities(&scratch);

    let scratch = Scratch::new("volraw");
    let server = Server::start(&scratch, &["--raw", "--profile", "instant", "--capacity", "64MiB"]);
    refused(&scratch, &["create", "x", "--size", "4MiB"], "raw units has no volumes");
    server.terminate();
}

/// The capacity of the config is the device's, before its volumes were changed and after.
fn other_capacities(scratch: &Scratch) {
    let path = scratch.file("weir.toml");
    let text = fs::read_to_string(&path).expect("a config");
    for changed in [false, true] {
        fs::write(&path, text.replace("128MiB", "256MiB")).expect("a config");
        let data = scratch.data();
        let data = data.to_str().expect("UTF-8");
        let refused = weir(&["serve", "--http", "none", "--data", data, "--config", &path]);
        let told = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains("says 256MiB") && told.contains("with 128MiB"), "{told}");
        fs::write(&path, &text).expect("a config");
        let server = start(scratch, &path);
        if !changed {
            volume(scratch, &["delete", "old"]);
        }
        server.terminate();
    }
}

#[test]
fn a_device_that_is_read_only_keeps_its_volumes() {
    let scratch = Scratch::new("volreadonly");
    let path = config(&scratch, "profile = \"instant\"\n");
    start(&scratch, &path).terminate();
    let text = fs::read_to_string(&path).expect("a config") + "[ftl]\nread_only = true\n";
    fs::write(&path, text).expect("a config");
    let server = start(&scratch, &path);
    refused(&scratch, &["delete", "old"], "read-only");
    assert!(volume(&scratch, &["list"]).contains("none can be changed"));
    server.terminate();
}

/// What it left is trimmed in the background, and again at the next start.
#[test]
fn a_server_that_is_stopped_right_behind_a_deletion_calls_nothing_an_error() {
    let scratch = Scratch::new("volstop");
    let config = config(&scratch, "profile = \"instant\"\nshards = 2\n");
    for round in 0..10 {
        let mut server = start(&scratch, &config);
        volume(&scratch, &["create", "new", "--size", "64MiB"]);
        volume(&scratch, &["delete", "new"]);
        std::thread::sleep(Duration::from_millis(10 * round));
        server.signal(libc::SIGTERM);
        let status = server.wait().expect("it ends");
        let log = server.log();
        assert!(status.success() && !log.contains("ERROR"), "{round}: {status}: {log}");
    }
}

#[test]
fn series_and_history_of_a_volume_end_with_it() {
    let scratch = Scratch::new("volseries");
    let server = start(&scratch, &config(&scratch, "profile = \"instant\"\n"));
    volume(&scratch, &["create", "short", "--size", "4MiB"]);
    fill(&mut server.connect_to("short"), 4 * MIB, 7);
    fill(&mut server.connect_to("old"), 4 * MIB, 7);
    let metrics =
        |server: &Server| run("curl", &["-sS", &format!("http://{}/metrics", server.http())]);
    let text = metrics(&server);
    assert!(text.contains("volume=\"short\"") && text.contains("volume=\"old\""), "{text}");
    volume(&scratch, &["delete", "short"]);
    let text = metrics(&server);
    assert!(!text.contains("volume=\"short\"") && text.contains("volume=\"old\""), "{text}");
    let data = scratch.data();
    let status = weir(&["status", "--json", "--data", data.to_str().unwrap()]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let names: Vec<_> = status["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
    assert_eq!(names, ["neighbour", "old"]);
    let of_all = &status["latency"]["ops"]["write"]["count"];
    let of_old = &status["volumes"][1]["latency"]["write"]["count"];
    assert!(of_all.is_null() || of_all.as_u64() > of_old.as_u64(), "{of_all} {of_old}");
    server.terminate();
}
