//! The control plane and the controller of a pool as processes: made by commands, killed, on a full disk, and
//! before strangers.

use crate::nbd::Client;
use crate::scratch::{Scratch, Tmpfs};
use crate::tools::said as told_by;
use crate::tools::{output, pattern, root_and, said, weir, weir_path};
use pool::control::contract::Change;
use serde_json::Value;
use serve::pool::config::PartConfig;
use serve::pool::plane::{CommitEnd, PlaneCalls};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nothing here takes as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An address that nobody has, and that the system does not give to anybody else so soon.
pub fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
    listener.local_addr().expect("it has one")
}

/// Makes certificates for `parts` in `certs` of the scratch directory; returns the pool's number.
pub fn certificates(scratch: &Scratch, certs: &str, parts: &[&str]) -> String {
    let folder = scratch.file(certs);
    let args: Vec<&str> = ["pool", "certs", &folder].iter().chain(parts).copied().collect();
    let made = weir(&args);
    assert!(made.status.success(), "{}", said(&made));
    fs::read_to_string(Path::new(&folder).join("pool.id")).expect("it is there").trim().to_owned()
}

/// Writes the config of a part, with more sections behind those that all have.
pub fn config(scratch: &Scratch, (pool, certs, part): (&str, &str, &str), more: &str) -> String {
    let path = scratch.file(&format!("{certs}-{part}.toml"));
    let text = format!(
        "[pool]\nid = \"{pool}\"\nauthority = \"{certs}/authority.pem\"\ncertificate = \
         \"{certs}/{part}.pem\"\nkey = \"{certs}/{part}.key\"\n{more}"
    );
    fs::write(&path, text).expect("a scratch file");
    path
}

/// A part of a pool as a process; killed when it is dropped.
struct Part {
    child: Child,
    log: PathBuf,
    /// Where it is reached, as it says itself.
    ready: String,
}

impl Part {
    /// Starts it, and returns when it says that it is ready.
    fn start(scratch: &Scratch, what: &str, config: &str) -> Self {
        Self::start_as(scratch, (what, what), config)
    }

    /// The same, of a part of which there are several, by a name of its own.
    fn start_as(scratch: &Scratch, (what, name): (&str, &str), config: &str) -> Self {
        let mut part = Self::begin(scratch, (what, name), config);
        assert!(part.is_ready(), "{what} is not ready: {}", part.said());
        part
    }

    /// Waits until it says that it is ready, or ends.
    fn is_ready(&mut self) -> bool {
        let out = BufReader::new(self.child.stdout.take().expect("a pipe"));
        let (to, ready) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = out.lines().map_while(Result::ok);
            to.send(lines.find(|line| line.starts_with("ready"))).ok();
        });
        let line = ready.recv_timeout(PATIENCE).unwrap_or(None);
        let ready = line.as_ref().map(|line| line.trim_start_matches("ready").trim().to_owned());
        self.ready = ready.unwrap_or_default();
        line.is_some()
    }

    /// Starts it, and does not wait.
    fn begin(scratch: &Scratch, part: (&str, &str), config: &str) -> Self {
        Self::begin_with(scratch, part, config, &[])
    }

    fn begin_with(
        scratch: &Scratch,
        (what, name): (&str, &str),
        config: &str,
        more: &[&str],
    ) -> Self {
        let log = scratch.path().join(format!("{name}.log"));
        let file = File::create(&log).expect("a scratch file");
        let mut command = Command::new(weir_path());
        command.args(["pool", what, "--config", config]).args(more).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(file).spawn().expect("weir starts");
        Self { child, log, ready: String::new() }
    }

    /// Ends it well.
    fn stop(mut self) {
        // SAFETY: no memory is involved, and the child was not waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        assert!(self.ended().success(), "{}", self.said());
    }

    fn kill(mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
    }

    fn ended(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end: {}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn done(args: &[&str]) -> String {
    let output = weir(args);
    assert!(output.status.success(), "{args:?}: {}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&done(args)).expect("JSON")
}

#[test]
fn a_pool_is_made_by_commands_and_outlives_its_plane_and_its_controller() {
    let scratch = Scratch::new("pool");
    let id = certificates(&scratch, "certs", &["plane", "controller", "admin"]);
    let plane = format!("[plane]\naddress = \"{}\"\n", free_address());
    let of = |part| config(&scratch, (&id, "certs", part), &plane);
    let admin = of("admin");
    let told = weir(&["pool", "nodes", "--config", &admin]);
    assert!(!told.status.success() && said(&told).contains("weir pool plane"), "{}", said(&told));

    let plane_config = of("plane");
    let server = Part::start(&scratch, "plane", &plane_config);
    for node in ["1", "2", "3"] {
        let address = format!("10.0.0.{node}:7402");
        let args = ["pool", "join", node, "--domain", node, "--address", &address];
        done(&[&args[..], &["--profile", "sdm000024c8d", "--config", &admin]].concat());
    }
    done(&["pool", "drain", "3", "--config", &admin]);
    done(&["pool", "volume", "create", "data", "--size", "10GiB", "--config", &admin]);
    let listen = format!("{plane}[controller]\nlisten = \"{}\"\n", free_address());
    let controller_config = config(&scratch, (&id, "certs", "controller"), &listen);
    let controller = Part::start(&scratch, "controller", &controller_config);
    let status = || json(&["pool", "status", "--json", "--config", &admin]);
    let until = |what: &str, fits: &dyn Fn(&Value) -> bool| {
        let begun = Instant::now();
        loop {
            let status = status();
            if fits(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {status:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let is_planned = |status: &Value| {
        status["controller"]["plan"]["policy"] == "solver"
            && status["weights"]["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3)
    };
    let planned = until("no plan", &is_planned);
    assert_eq!(planned["nodes"][2]["state"], "draining");
    assert_eq!(planned["volumes"][0]["name"], "data");

    // The plane is killed: what it acknowledged is there, and the controller finds it again.
    server.kill();
    let _server = Part::start(&scratch, "plane", &plane_config);
    let after = until("no plan after the plane was killed", &is_planned);
    assert_eq!((&after["nodes"], &after["volumes"]), (&planned["nodes"], &planned["volumes"]));
    // Without a controller there are no weights, by and by, and everything else is there.
    controller.kill();
    let alone = until("the controller is still there", &|status| status["controller"].is_null());
    assert!(alone["weights"].is_null() && alone["nodes"] == planned["nodes"]);

    // Whoever has certificates of another authority sees nothing, whatever it says it is.
    certificates(&scratch, "theirs", &["admin"]);
    let stranger = config(&scratch, (&id, "theirs", "admin"), &plane);
    let told = weir(&["pool", "nodes", "--config", &stranger]);
    assert!(!told.status.success() && said(&told).contains("authority"), "{}", said(&told));
    assert_eq!(output("ls", &[&scratch.file("certs/pool.id")]).status.code(), Some(0));
}

/// A node that has less than it acknowledged would have a client that opens a volume believe that the rest was never written.
#[test]
fn a_node_whose_drive_is_gone_another_or_an_older_copy_does_not_start() {
    let scratch = Scratch::new("pool-drive");
    let id = certificates(&scratch, "certs", &["plane", "node-1", "admin"]);
    let plane = format!("[plane]\naddress = \"{}\"\n", free_address());
    let of = |part| config(&scratch, (&id, "certs", part), &plane);
    let (_server, admin) = (Part::start(&scratch, "plane", &of("plane")), of("admin"));
    let drive = "[node]\nid = 1\nlisten = \"127.0.0.1:0\"\n[device]\nmode = \"raw\"\nkind = \"file\"\n\
                 path = \"drive\"\nchannels = 1\ncapacity = \"32MiB\"\n[raw]\ngang = 1\n";
    let node = config(&scratch, (&id, "certs", "node-1"), &format!("{plane}{drive}"));
    let start = || Part::start(&scratch, "node", &node);
    let [drive, first, killed, closed] =
        ["drive", "first", "killed", "closed"].map(|name| scratch.file(name));
    let copy = |from: &str, to: &str| assert!(fs::copy(from, to).is_ok(), "{from} is not copied");
    let refused = |wanted: &str| {
        // More than once: a start that is refused makes the drive no younger.
        for _ in 0..3 {
            let said = said(&weir(&["pool", "node", "--config", &node]));
            assert!(said.contains(wanted) && said.contains("weir pool replace 1"), "{said}");
        }
    };
    start().stop();
    copy(&drive, &first);
    start().kill();
    copy(&drive, &killed);
    start().stop();
    copy(&drive, &closed);
    fs::remove_file(&drive).expect("removed");
    refused("is no drive, and node 1 has one");
    assert!(!Path::new(&drive).exists(), "none is made");
    for older in [&first, &killed] {
        copy(older, &drive);
        refused("is an older copy of the drive of node 1");
        assert!(fs::read(older).expect("read") == fs::read(&drive).expect("read"), "written to");
    }
    let format = ["format", "--data", &drive, "--raw", "--capacity", "32MiB", "--force"];
    assert!(weir(&format).status.success());
    refused("is not the drive of node 1");
    copy(&closed, &drive);
    let file = File::options().write(true).open(&drive).expect("it opens");
    file.set_len(16 << 20).expect("it is cut");
    refused("a backup is of no use");
    copy(&closed, &drive);
    start().kill();
    let node_1 = start();
    let join = ["pool", "join", "1", "--domain", "1", "--address", &node_1.ready];
    done(&[&join[..], &["--config", &admin]].concat());
    node_1.stop();
    done(&["pool", "replace", "1", "--by", "none", "--config", &admin]);
    fs::remove_file(&drive).expect("removed");
    let told = said(&weir(&["pool", "node", "--config", &node]));
    assert!(told.contains("was given up: let an empty drive join"), "{told}");
}

#[test]
fn a_plane_on_a_full_disk_says_so_and_has_all_that_it_acknowledged() {
    if !root_and("a_plane_on_a_full_disk", "/dev/null") {
        return;
    }
    let scratch = Scratch::new("pool-full");
    let id = certificates(&scratch, "certs", &["plane", "admin"]);
    let disk = Tmpfs::new(&scratch.path().join("small"), "size=600k");
    let more = format!("[plane]\naddress = \"{}\"\ndata = \"small/plane\"\n", free_address());
    let plane_config = config(&scratch, (&id, "certs", "plane"), &more);
    let admin = config(&scratch, (&id, "certs", "admin"), &more);
    let calls = || {
        let plane = PartConfig::load(Path::new(&admin)).and_then(|config| config.plane());
        PlaneCalls::connect(&plane.expect("a sound config")).expect("a thread")
    };
    let mut server = Part::start(&scratch, "plane", &plane_config);
    let (mut asking, mut acknowledged) = (calls(), 0u8);
    loop {
        let value = vec![acknowledged; 50_000];
        let put = Change::Put { key: format!("test/{acknowledged:03}"), value, lease: None };
        match asking.commit(Vec::new(), vec![put]) {
            Ok(CommitEnd::Committed(_)) => acknowledged += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => break,
        }
        assert!(acknowledged < 20, "the disk is never full");
    }
    assert_eq!(server.ended().code(), Some(2), "{}", server.said());
    let told = server.said();
    assert!(told.contains("plane.log") && told.contains("make room"), "{told}");
    disk.remount("size=10M");
    let _server = Part::start(&scratch, "plane", &plane_config);
    let found = calls().range(("test/".into(), "test0".into())).expect("it answers");
    let values: Vec<u8> = found.iter().map(|(_, kept)| kept.value[0]).collect();
    assert_eq!(values, (0..acknowledged).collect::<Vec<u8>>());
    assert!(acknowledged > 5);
}

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = (48 << 20) / BLOCK as u64;

fn connect(scratch: &Scratch) -> Client {
    Client::connect(&scratch.path().join("nbd.sock"), "data").expect("it is served")
}

/// Writes all of a volume, and now and then has it made durable.
fn write_all(scratch: &Scratch, seed: u64) {
    let mut client = connect(scratch);
    for at in 0..BLOCKS {
        client.write(at * BLOCK as u64, &pattern(seed << 16 | at, BLOCK));
        if at % 64 == 63 {
            client.flush();
        }
    }
    client.flush();
}

fn check_all(scratch: &Scratch, seed: u64) {
    let mut client = connect(scratch);
    for at in 0..BLOCKS {
        let found = client.read(at * BLOCK as u64, BLOCK as u32);
        assert!(found == pattern(seed << 16 | at, BLOCK), "block {at} of {seed}");
    }
}

/// It panicked, as a page of its records was programmed again that had found no room.
#[test]
fn a_node_on_a_full_file_system_says_so_and_takes_writes_again_when_there_is_room() {
    if !root_and("a_node_on_a_full_file_system", "/dev/null") {
        return;
    }
    let scratch = Scratch::new("pool-node-full");
    let parts = ["plane", "node-1", "node-2", "node-3", "client", "admin"];
    let id = certificates(&scratch, "certs", &parts);
    let plane = format!("[plane]\naddress = \"{}\"\n", free_address());
    let of =
        |part: &str, more: &str| config(&scratch, (&id, "certs", part), &format!("{plane}{more}"));
    let disk = Tmpfs::new(&scratch.path().join("small"), "size=24M");
    let _plane = Part::start(&scratch, "plane", &of("plane", ""));
    let admin = of("admin", "");
    let configs: Vec<String> = (1..=3)
        .map(|node| {
            let place = if node == 3 { "small/" } else { "" };
            let drive = format!(
                "[node]\nid = {node}\nlisten = \"127.0.0.1:0\"\n[device]\nmode = \"raw\"\nkind = \"file\"\npath = \
                 \"{place}drive-{node}\"\nchannels = 4\ncapacity = \"128MiB\"\n[raw]\ngang = 1\n"
            );
            of(&format!("node-{node}"), &drive)
        })
        .collect();
    let start = |node: usize| {
        let part = Part::start_as(&scratch, ("node", &format!("node-{node}")), &configs[node - 1]);
        let number = node.to_string();
        let join = ["pool", "join", &number, "--domain", &number, "--address", &part.ready];
        done(&[&join[..], &["--config", &admin]].concat());
        part
    };
    let _others = (start(1), start(2));
    let small = start(3);
    let create = ["pool", "volume", "create", "data", "--size", "48MiB", "--band", "3MiB"];
    done(&[&create[..], &["--config", &admin]].concat());
    let served = "[client]\nvolume = \"data\"\n[nbd]\nunix = \"nbd.sock\"\n[http]\naddress = \"127.0.0.1:0\"\n";
    let _client = Part::start(&scratch, "client", &of("client", served));
    let write = |seed| write_all(&scratch, seed);
    let check = |seed| check_all(&scratch, seed);
    write(1);
    write(2);
    check(2);
    let said = small.said();
    assert!(said.contains("drive-3") && said.contains("room"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    // It starts on the full disk, too.
    small.kill();
    let small = start(3);
    write(3);
    check(3);
    assert!(!small.said().contains("panicked"), "{}", small.said());
    disk.remount("size=400M");
    let used = || {
        let drive = fs::metadata(scratch.path().join("small/drive-3")).expect("it is there");
        std::os::unix::fs::MetadataExt::blocks(&drive) * 512
    };
    let begun = Instant::now();
    for seed in 4.. {
        write(seed);
        check(seed);
        if used() > 30 << 20 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it takes nothing: {}", small.said());
    }
    assert!(!small.said().contains("panicked"), "{}", small.said());
    small.stop();
}

/// A pool of processes: the control plane, nodes on plain files, and a volume of two copies.
struct Whole {
    scratch: Scratch,
    id: String,
    plane: String,
    admin: String,
    _plane: Part,
    nodes: Vec<Option<Part>>,
}

impl Whole {
    fn new(name: &str, nodes: usize) -> Self {
        let scratch = Scratch::new(name);
        let parts: Vec<String> = (1..=nodes).map(|node| format!("node-{node}")).collect();
        let parts = parts.iter().map(String::as_str).chain(["plane", "client", "admin"]);
        let id = certificates(&scratch, "certs", &parts.collect::<Vec<_>>());
        let plane = format!("[plane]\naddress = \"{}\"\n", free_address());
        let of = |part: &str| config(&scratch, (&id, "certs", part), &plane);
        let (server, admin) = (Part::start(&scratch, "plane", &of("plane")), of("admin"));
        let nodes = (0..nodes).map(|_| None).collect();
        Self { scratch, id, plane, admin, _plane: server, nodes }
    }

    /// Each in a domain of its own.
    fn start_node(&mut self, node: usize) {
        let more = format!(
            "{}[node]\nid = {node}\nlisten = \"127.0.0.1:0\"\n[device]\nmode = \"raw\"\nkind = \"file\"\npath = \
             \"drive-{node}\"\nchannels = 4\ncapacity = \"128MiB\"\n[raw]\ngang = 1\n",
            self.plane
        );
        let name = format!("node-{node}");
        let config = config(&self.scratch, (&self.id, "certs", &name), &more);
        let part = Part::start_as(&self.scratch, ("node", &name), &config);
        let number = node.to_string();
        let join = ["pool", "join", &number, "--domain", &number, "--address", &part.ready];
        done(&[&join[..], &["--config", &self.admin]].concat());
        self.nodes[node - 1] = Some(part);
    }

    fn create(&self) {
        self.create_with(&[]);
    }

    fn create_with(&self, more: &[&str]) {
        let create = ["pool", "volume", "create", "data", "--size", "48MiB", "--band", "3MiB"];
        done(&[&create[..], more, &["--config", &self.admin]].concat());
    }

    fn client_config(&self, more: &str) -> String {
        let served = format!(
            "{}[client]\nvolume = \"data\"\ncontrol = \"client.sock\"\n{more}[nbd]\nunix = \"nbd.sock\"\n[http]\n\
             address = \"127.0.0.1:0\"\n",
            self.plane
        );
        config(&self.scratch, (&self.id, "certs", "client"), &served)
    }

    /// Waits until a client says this of what it waits for.
    fn until_told(&self, client: &Part, is_it: impl Fn(&str) -> bool) {
        let socket = self.scratch.file("client.sock");
        let begun = Instant::now();
        while !is_it(&told_by(&weir(&["pool", "ask", &socket]))) {
            assert!(begun.elapsed() < PATIENCE, "{}", client.said());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until a node is reached and no band lacks a copy.
    fn until_whole(&self, node: usize) {
        let socket = self.scratch.file("client.sock");
        let begun = Instant::now();
        let is_whole = || {
            let status = json(&["pool", "ask", &socket]);
            let repair = &status["repair"];
            let has_both = status["nodes"][node]["up"] == true;
            has_both && repair["bands_lacking"] == 0 && repair["copying"] == 0
        };
        // For a while: all bands are looked at every five seconds.
        let mut calm = 0;
        while calm < 60 {
            assert!(begun.elapsed() < PATIENCE, "{:#}", json(&["pool", "ask", &socket]));
            std::thread::sleep(Duration::from_millis(100));
            calm = if is_whole() { calm + 1 } else { 0 };
        }
    }

    fn start_client(&self) -> Part {
        Part::start(&self.scratch, "client", &self.client_config(""))
    }
}

/// A client heard how full nodes are when it reached them, and never again: it took those that it had filled itself for
/// empty ones, and the new one for as full as they.
#[test]
fn bands_move_to_a_node_that_joins_a_pool_that_was_filled_since_its_client_began() {
    let mut pool = Whole::new("pool-rebalance", 4);
    (1..=3).for_each(|node| pool.start_node(node));
    pool.create();
    let _client = pool.start_client();
    // Twice: bands that still take writes, and those that no checkpoint covers yet, do not move, and of so small a volume
    // they are as many as the others otherwise.
    (1..=2).for_each(|seed| write_all(&pool.scratch, seed));
    pool.start_node(4);
    let socket = pool.scratch.file("client.sock");
    let begun = Instant::now();
    let reached = || {
        let status = json(&["pool", "ask", &socket]);
        status["nodes"].as_array().is_some_and(|nodes| nodes.len() == 4 && nodes[3]["up"] == true)
    };
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "the new node is not reached");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Garbage collection behind those writes empties bands, also such as have moved.
    let programs = || json(&["pool", "ask", &socket])["counters"]["programs"].as_u64();
    let mut last = None;
    while last != programs() {
        assert!(begun.elapsed() < PATIENCE, "garbage is collected without end");
        last = programs();
        std::thread::sleep(Duration::from_secs(1));
    }
    // First as far as it goes.
    weir(&["pool", "rebalance", &socket, "--within", "20", "--wait"]);
    let spread = json(&["pool", "rebalance", &socket, "--within", "35", "--wait", "--json"]);
    let apart = &spread["repair"]["apart"];
    assert!(apart["percent"].as_f64().is_some_and(|percent| percent <= 35.0), "{spread:#}");
    assert!(apart["emptiest"]["bands_used"].as_u64() >= Some(5), "{spread:#}");
    check_all(&pool.scratch, 2);
}

#[test]
fn a_client_says_which_nodes_its_volume_cannot_do_without_and_that_it_was_deleted() {
    let mut pool = Whole::new("pool-told", 4);
    (1..=2).for_each(|node| pool.start_node(node));
    pool.create();
    let client = pool.start_client();
    write_all(&pool.scratch, 1);
    client.stop();
    // The others have nothing of it.
    (3..=4).for_each(|node| pool.start_node(node));
    (0..2).for_each(|at| pool.nodes[at].take().expect("it runs").kill());
    // It is told to go on, and cannot.
    let config = pool.client_config("go_on = true\n");
    let mut client = Part::begin(&pool.scratch, ("client", "client-alone"), &config);
    assert!(!client.ended().success(), "{}", client.said());
    let said = client.said();
    assert!(said.contains("without nodes 1, 2, which are away"), "{said}");
    assert!(said.contains("Bring them back") && !said.contains("never formatted"), "{said}");
    // Else it waits, and says for whom.
    let waits = Part::begin(&pool.scratch, ("client", "client-waits"), &pool.client_config(""));
    pool.until_told(&waits, |text| {
        text.contains("waiting for") && (text.contains("nodes 1, 2") || text.contains("nodes 2, 1"))
    });
    waits.kill();
    (1..=2).for_each(|node| pool.start_node(node));
    let mut client = pool.start_client();
    check_all(&pool.scratch, 1);
    done(&["pool", "volume", "delete", "data", "--force", "--config", &pool.admin]);
    assert_eq!(client.ended().code(), Some(2), "{}", client.said());
    let said = client.said();
    assert!(
        said.contains("was deleted from the pool") && !said.contains("another client"),
        "{said}"
    );
}

#[test]
fn after_the_loss_of_nodes_what_was_found_is_shown_to_who_salvages_it_and_nothing_that_was_never_written()
 {
    let mut pool = Whole::new("pool-salvage", 4);
    (1..=3).for_each(|node| pool.start_node(node));
    pool.create();
    let client = pool.start_client();
    (1..=2).for_each(|seed| write_all(&pool.scratch, seed));
    client.stop();
    let config = pool.client_config("go_on = true\n");
    let mut served = None;
    // What recovery begins with lies on two nodes: one of these is left by two of the three pairs.
    for lost in [[1, 2], [1, 3], [2, 3]] {
        lost.iter().for_each(|node| pool.nodes[node - 1].take().expect("it runs").kill());
        let part = ("client", "client-salvage");
        let mut client = Part::begin_with(&pool.scratch, part, &config, &["--salvage"]);
        if client.is_ready() {
            served = Some((client, lost));
            break;
        }
        assert!(!client.ended().success(), "{}", client.said());
        assert!(client.said().contains("Too little is left for --salvage"), "{}", client.said());
        lost.iter().for_each(|node| pool.start_node(*node));
    }
    let (client, lost) = served.expect("one of them");
    let [unreadable, newest, ..] = kinds_of_blocks(&pool.scratch);
    assert!(unreadable > 0 && newest > 0, "{unreadable} {newest}");
    pool.start_node(4);
    for node in lost.map(|node| node.to_string()) {
        done(&["pool", "replace", &node, "--by", "none", "--config", &pool.admin]);
    }
    client.stop();
    // Who does not go on waits for what was given up, and says so.
    let waits = Part::begin(&pool.scratch, ("client", "client-waits"), &pool.client_config(""));
    pool.until_told(&waits, |text| text.contains("were given up") && text.contains("client.go_on"));
    waits.kill();
    let client = Part::start(&pool.scratch, "client", &pool.client_config("go_on = true\n"));
    // When all was written anew nothing is lost any more that anybody would wait for.
    (3..=4).for_each(|seed| write_all(&pool.scratch, seed));
    check_all(&pool.scratch, 4);
    let is_clear =
        |text: &str, node: &usize| text.contains(&format!("needed any more of node {node}\\n"));
    pool.until_told(&client, |text| lost.iter().all(|node| is_clear(text, node)));
    client.stop();
    let _client = Part::start(&pool.scratch, "client", &pool.client_config(""));
    check_all(&pool.scratch, 4);
}

/// A client of a volume that was written to, begun while the first two nodes are away and so waiting for them.
fn waits_for_nodes(pool: &mut Whole) -> Part {
    (1..=pool.nodes.len()).for_each(|node| pool.start_node(node));
    pool.create();
    let client = pool.start_client();
    write_all(&pool.scratch, 1);
    client.stop();
    (0..2).for_each(|node| pool.nodes[node].take().expect("it runs").kill());
    let config = pool.client_config("");
    let client = Part::begin(&pool.scratch, ("client", "client-waits"), &config);
    pool.until_told(&client, |text| text.contains("waiting for"));
    client
}

/// It knew where nodes were when it began.
#[test]
fn a_client_that_waits_for_nodes_hears_where_they_are_now() {
    let mut pool = Whole::new("pool-addresses", 3);
    let mut client = waits_for_nodes(&mut pool);
    // Each listens where the system has it listen, and says so.
    (1..=2).for_each(|node| pool.start_node(node));
    assert!(client.is_ready(), "{}", client.said());
    check_all(&pool.scratch, 1);
}

/// Blocks of 4 KiB that cannot be read, have what was written last, what was written before, and zeroes.
fn kinds_of_blocks(scratch: &Scratch) -> [usize; 4] {
    let mut client = connect(scratch);
    let mut counts = [0; 4];
    for at in 0..BLOCKS {
        let [older, newest] = [1, 2].map(|seed| pattern(seed << 16 | at, BLOCK));
        for part in (0..BLOCK).step_by(4096) {
            let known = [&newest, &older].map(|data| &data[part..part + 4096]);
            let kind = match client.try_read(at * BLOCK as u64 + part as u64, 4096) {
                Err(_) => 0,
                Ok(found) if found == known[0] => 1,
                Ok(found) if found == known[1] => 2,
                Ok(found) => {
                    assert!(found.iter().all(|byte| *byte == 0), "block {at} was never so");
                    3
                }
            };
            counts[kind] += 1;
        }
    }
    counts
}

/// With `--go-on` a band was begun with one copy whenever a node was not there at that moment, and kept it for as long as
/// it was open, and where nothing was written for ever: what was flushed went with that node.
#[test]
fn a_volume_that_goes_on_with_one_node_has_both_copies_when_both_are_there() {
    let mut pool = Whole::new("pool-goes-on", 2);
    pool.start_node(1);
    pool.create_with(&["--go-on"]);
    let _client = pool.start_client();
    write_all(&pool.scratch, 1);
    pool.start_node(2);
    pool.until_whole(1);
    pool.nodes[0].take().expect("it runs").kill();
    check_all(&pool.scratch, 1);
    pool.start_node(1);
    write_all(&pool.scratch, 2);
    pool.until_whole(0);
    pool.nodes[1].take().expect("it runs").kill();
    check_all(&pool.scratch, 2);
}

/// Its stop took the 30 s that it may take, and ended with status 2 whatever had been flushed.
#[test]
fn a_client_that_has_too_few_nodes_to_write_to_stops_soon_and_says_what_is_lost_by_it() {
    let mut pool = Whole::new("pool-cutoff", 2);
    (1..=2).for_each(|node| pool.start_node(node));
    pool.create();
    let (all, half) = ("none of its nodes can be reached", "too few of its nodes can be reached");
    for (gone, flushed, status, words) in [
        (2, true, 0, ["All that was acknowledged had been flushed", all]),
        (2, false, 2, ["65536 bytes were not flushed", all]),
        (1, true, 0, ["All that was acknowledged had been flushed", half]),
        (1, false, 2, ["65536 bytes were not flushed", half]),
    ] {
        let mut client = pool.start_client();
        let mut nbd = connect(&pool.scratch);
        nbd.write(0, &pattern(1, BLOCK));
        if flushed {
            nbd.flush();
        }
        (0..gone).for_each(|node| pool.nodes[node].take().expect("it runs").kill());
        let begun = Instant::now();
        // SAFETY: no memory is involved, and the child was not waited for.
        unsafe { libc::kill(client.child.id() as libc::pid_t, libc::SIGTERM) };
        let ended = client.ended();
        assert!(begun.elapsed() < Duration::from_secs(28), "{:?}", begun.elapsed());
        assert_eq!(ended.code(), Some(status), "{}", client.said());
        let told = client.said();
        assert!(words.iter().all(|words| told.contains(words)), "{told}");
        assert!(told.contains("node 1"), "which it is: {told}");
        (1..=gone).for_each(|node| pool.start_node(node));
    }
}

/// They hung without a word.
#[test]
fn who_asks_for_a_volume_that_waits_for_its_nodes_hears_so_after_a_moment() {
    let mut pool = Whole::new("pool-notopen", 2);
    let mut client = waits_for_nodes(&mut pool);
    let socket = pool.scratch.path().join("nbd.sock");
    let begun = Instant::now();
    let refused = Client::connect(&socket, "data").err().expect("there is nothing to serve");
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(9), "most openings are over by then: {took:?}");
    let told = refused.to_string();
    assert!(told.contains("volume data is not open yet") && told.contains('1'), "{told}");
    // Who comes a moment before it is open is served.
    let waits = std::thread::spawn(move || {
        let begun = Instant::now();
        loop {
            match Client::connect(&socket, "data") {
                Ok(mut client) => return client.read(0, BLOCK as u32),
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
        }
    });
    (1..=2).for_each(|node| pool.start_node(node));
    assert!(client.is_ready(), "{}", client.said());
    assert!(waits.join().expect("it is served") == pattern(1 << 16, BLOCK));
    check_all(&pool.scratch, 1);
}

#[test]
fn a_node_that_was_given_up_says_so_when_it_starts() {
    let mut pool = Whole::new("pool-givenup", 3);
    (1..=3).for_each(|node| pool.start_node(node));
    done(&["pool", "replace", "3", "--by", "none", "--config", &pool.admin]);
    pool.nodes[2].take().expect("it runs").stop();
    let config = pool.scratch.file("certs-node-3.toml");
    let node = Part::start_as(&pool.scratch, ("node", "node-3"), &config);
    let begun = Instant::now();
    while !node.said().contains("the pool has given node 3 up") {
        assert!(begun.elapsed() < PATIENCE, "{}", node.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(node.said().contains("join under a new number"), "{}", node.said());
    node.stop();
}
