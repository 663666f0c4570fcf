//! Every line of "Examples:" that `--help` shows is run by a shell, in the order in which people read it. What this
//! machine must not or cannot do stands in a table with its reason, so that nothing is left out by oversight.
//!
//! Each subcommand's page has a folder of its own, with the files that its examples name. Pages are found in what
//! the built binary prints, so a new subcommand is held to it without anybody thinking of it.

use crate::refuse;
use crate::scratch::Scratch;
use crate::tools::{run, said, search_path, weir, weir_path};
use crate::trace::msr_lines;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Longest that an example may take, or until it is ready, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a shell says of a program that died of SIGTERM.
const TERMINATED: i32 = 128 + libc::SIGTERM;

/// Subcommands that are tried at once: much of it waits.
const THREADS: usize = 3;

/// Examples that are not run, and why.
const EXCUSED: &[(&str, &str)] = &[
    (
        "(cd mine && cargo build --release --target wasm32-unknown-unknown)",
        "it needs Rust's target for WebAssembly, and the crate of modules from elsewhere",
    ),
    ("weir pool found --config admin.toml", "it needs etcd: etcd.rs runs it"),
    (
        "weir rocksdb -- db_bench --db=/bench --benchmarks=fillrandom,readrandom",
        "it needs two servers beside it: rocksdb.rs runs it",
    ),
    ("weir rocksdb -- ldb --db=/bench checkconsistency", "as the one before"),
    (
        "weir store serve",
        "it needs two servers beside it: the other examples of `weir store` run on such a one",
    ),
    ("weir store serve --slices 16 --cache 1GiB --http none", "as the one before"),
    ("weir store repair", "it needs a store that nobody serves: store_small.rs runs it"),
    (
        "weir store dump | weir store load --data other-store",
        "it needs a second store: store.rs runs it",
    ),
    ("weir attach default", "it needs root and Linux's ublk driver: attach.rs attaches in a guest"),
    ("weir attach data --data /var/lib/weir", "as the one before"),
    ("weir attach nbd://10.0.0.5/data --nbd", "as the one before"),
    ("weir attach unit/0 --data weir-zones", "the same: attach_zoned.rs attaches in a guest"),
    ("weir attach nvme://10.0.0.5:4420/unit/0 --name far", "as the one before"),
    ("weir detach default", "as the one before"),
    ("weir detach /dev/ublkb0", "as the one before"),
    ("weir bench", "15 minutes"),
    ("weir bench all --quick", "minutes"),
    ("weir bench pool", "minutes"),
    ("weir bench all --json | jq '.[] | select(.met | not)'", "15 minutes"),
    ("weir bench all --markdown > docs/figures.md", "15 minutes"),
    ("weir lab claims", "an hour"),
    ("weir lab claims --json", "an hour"),
    ("weir lab claims --only sdf-bandwidth,sdf-capacity --report out/", "minutes"),
    ("weir lab soak --minutes 10", "10 minutes; `./x soak` is the same"),
    ("weir lab soak --minutes 600 --threads 8 --seed 1000000", "10 hours"),
    ("weir lab fit my.csv --device nvme-tlc --tries 200 --out my.toml", "minutes"),
    ("weir profile /dev/nvme1n1 --yes", "half an hour, and a drive that may be overwritten"),
    ("weir profile /dev/nvme1n1 --read-only", "minutes, and a drive"),
];

/// What examples name and a test must leave alone, and what they are run with instead.
const STAND_INS: &[(&str, &str)] = &[
    // Tests use no fixed port.
    ("weir serve", "weir serve --http 127.0.0.1:0"),
    ("--http 127.0.0.1:8420", "--http $(cat weir-data/http-address)"),
    ("10.0.0.1:7402", "$(jq -r '\"127.0.0.1:\\(.ports[0])\"' \"$POOL\"/layout.json)"),
    ("--data weir-small --http none", "--data weir-small"),
    // Not the machine's disks and folders.
    ("/var/lib/weir", "weir-data"),
    ("/dev/sdx", "./disk.img"),
    ("/dev/vg/weir", "./disk.img"),
    ("/dev/nvme0n1", "./fast.img"),
    ("/dev/nvme1n1", "./disk.img"),
    ("/mnt/ssd/pool", "drives"),
    // All of a file is written.
    ("--fast-capacity 8GiB", "--fast-capacity 512MiB"),
    // The devices that grow are small.
    ("--capacity 64GiB", "--capacity 256MiB"),
    ("--capacity 2TiB", "--capacity 256MiB"),
    // The volume `data` of the pool that is there is in use, and there already.
    // Its nodes are small, and these volumes stay empty.
    ("volume create data --size 1TiB", "volume create mine --thin --size 1TiB"),
    ("volume create data --size 2TiB", "volume create mine --size 2TiB"),
    ("volume create fast --size", "volume create fast --thin --size"),
    ("pool volume delete data", "pool volume delete mine"),
    ("pool volume resize data 2TiB", "pool volume resize mine 2MiB"),
    ("pool volume resize data 8TiB", "pool volume resize mine 8MiB"),
    // The device there is small.
    ("volume create data --size 4GiB", "volume create data --size 8MiB"),
    ("volume create gold --size 512MiB", "volume create gold --size 4MiB"),
    ("volume resize data 8GiB", "volume resize data 8MiB"),
    ("volume resize data 1GiB", "volume resize data 1MiB"),
];

/// What a shell does before an example that begins so: what somebody who tries it would have.
const BEFORE: &[(&str, &str)] = &[
    ("weir serve --raw", "rm -rf weir-data"),
    ("weir serve --data /var", "rm -rf weir-data"),
    ("weir serve --config", "rm -rf weir-data"),
    ("weir serve --data /dev", "rm -f disk.img && truncate -s 1G disk.img"),
    ("weir format --config", "rm -r weir-data"),
    ("weir format --raw", "rm -r weir-data"),
    ("weir format --data weir-data --force", "test -e weir-data/device.toml"),
    ("weir format --data /dev", "truncate -s 34G disk.img"),
    ("weir format --data weir-data --attach-fast", "truncate -s 1G fast.img"),
    ("weir grow --data weir-data", "rm -rf weir-data && weir format --capacity 64MiB"),
    (
        "weir grow --data /dev",
        "truncate -s 0 disk.img && weir format --data disk.img --capacity 64MiB",
    ),
    ("weir ctl policy set all victim=wasm:mine", "weir ctl policy load mine.wasm --name mine"),
    (
        "weir plugin test mine/target",
        "mkdir -p mine/target/wasm32-unknown-unknown/release && \
         cp mine.wasm mine/target/wasm32-unknown-unknown/release",
    ),
    ("weir pool up", "rm -rf weir-pool drives"),
    (
        "weir pool kill",
        "rm -rf weir-pool && ln -s \"$POOL\" weir-pool && \
         until weir pool ask weir-pool/node-3.sock status; do sleep 0.1; done",
    ),
    (
        "weir volume", // One volume, and room for others.
        "weir volume list --json | jq -r '(.volumes[] | select(.clone_of) | .name), .snapshots[].name, \
         (.volumes[] | select(.clone_of | not) | .name)' | \
         while read -r name; do weir volume delete \"$name\"; done; \
         weir volume create data --size 4MiB",
    ),
    ("weir volume create", "weir volume delete data"),
    ("weir volume delete", "weir volume create old --size 4MiB"),
    ("weir volume delete old@", "weir volume snapshot old monday"),
    ("weir volume delete data@", "weir volume snapshot data monday"),
    ("weir volume clone data@", "weir volume snapshot data monday"),
    (
        "weir volume clone gold@",
        "weir volume create gold --size 4MiB; weir volume snapshot gold v1",
    ),
    ("weir pool volume create", "weir pool volume delete mine --config admin.toml || true"),
    (
        "weir pool volume delete",
        "weir pool volume create mine --thin --size 1MiB --config admin.toml || true",
    ),
    (
        "weir pool volume resize",
        "weir pool volume delete mine --config admin.toml; \
         weir pool volume create mine --thin --size 1MiB --config admin.toml",
    ),
    (
        "weir pool client", // Bands as the drives of `pool up` take them.
        "weir pool volume create other --thin --size 1MiB --band 1740KiB --config admin.toml",
    ),
    ("weir replay web.csv.gz --target /dev", "truncate -s 64M disk.img"),
    ("weir replay web.csv.gz --target 'nbd", "test -S weir-data/nbd.sock"),
    ("weir profile test.img", "truncate -s 16M test.img"),
    ("weir lab devices my-ssd.toml", "weir lab new my-ssd && mv my-ssd-device.toml my-ssd.toml"),
    (
        "weir completions",
        "mkdir -p ~/.local/share/bash-completion/completions ~/.zfunc ~/.config/fish/completions",
    ),
];

/// Examples that go on until somebody ends them, by how they begin; and whether they say that they are ready.
const GO_ON: &[(&str, bool)] = &[
    ("weir serve", true),
    ("weir top", false),
    ("weir pool up", true),
    ("weir pool plane", true),
    ("weir pool node ", true),
    ("weir pool client", true),
    ("weir pool controller", true),
    ("weir pool top", false),
];

/// Examples that may end with status 1, which is an answer: on a busy machine no load tells of the drive.
const ANSWER_ONE: &[&str] = &["weir profile test.img"];

/// Examples that speak with a server, by what is in them.
const SERVED: &[&str] =
    &["weir status", "weir top", "weir ctl", "weir volume", "weir-data/nbd.sock"];

/// Examples that look at a device that is there and not served.
const FORMATTED: &[&str] = &["weir check", "weir inspect"];

/// A subcommand's help.
struct Page {
    words: Vec<String>,
    lines: Vec<String>,
}

/// Every subcommand that people see, as the binary tells it.
fn pages() -> Vec<Page> {
    fn below(words: &[String], pages: &mut Vec<Page>) {
        let args = words.iter().map(String::as_str).chain(["--help"]).collect::<Vec<_>>();
        let output = weir(&args);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        let help = String::from_utf8(output.stdout).expect("text");
        pages.push(Page { words: words.to_vec(), lines: examples(&help) });
        for line in section(&help, "Commands:") {
            // What is said of a command goes on further to the right.
            let name = line.strip_prefix("  ").filter(|line| !line.starts_with(' '));
            let name = name.and_then(|line| line.split(' ').next());
            if let Some(name) = name.filter(|name| *name != "help") {
                below(&[words, &[name.to_owned()]].concat(), pages);
            }
        }
    }
    let mut pages = Vec::new();
    below(&[], &mut pages);
    pages
}

/// The lines under a head, to the next empty one.
fn section<'a>(help: &'a str, head: &str) -> impl Iterator<Item = &'a str> {
    let lines = help.lines().skip_while(move |line| *line != head).skip(1);
    lines.take_while(|line| !line.trim().is_empty())
}

/// What people would type of it, without what is said of it beside.
fn examples(help: &str) -> Vec<String> {
    let lines = section(help, "Examples:").filter_map(|line| line.strip_prefix("  "));
    let lines = lines.filter(|line| line.starts_with("weir ") || line.starts_with('('));
    lines.map(|line| line.split("  ").next().unwrap_or_default().into()).collect()
}

/// Where a page's examples are run.
struct Place {
    folder: PathBuf,
    /// Links to `weir` of this build, before all else.
    path: String,
    /// The folder of the pool that is there.
    pool: PathBuf,
    server: Option<Running>,
}

impl Place {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("PATH", &self.path).env("POOL", &self.pool);
        command.env("LC_ALL", "C").env("HOME", self.folder.join("home"));
        for other in ["XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "WEIR_LOG"] {
            command.env_remove(other);
        }
        refuse::as_told(&mut command);
        command.stdin(Stdio::null());
        command
    }

    /// Runs one to its end.
    fn shell(&self, script: &str) -> Output {
        let seconds = PATIENCE.as_secs().to_string();
        let script = format!("set -o pipefail; {script}");
        let mut command = self.command("timeout");
        command.args(["--kill-after=5", &seconds, "bash", "-c", &script]);
        command.output().expect("coreutils' timeout starts")
    }

    /// Does what comes before it.
    fn prepare(&mut self, line: &str) -> Result<(), String> {
        let served = SERVED.iter().any(|part| line.contains(part));
        match self.server.take() {
            Some(server) if served => self.server = Some(server),
            Some(server) => server.end()?,
            None if served => {
                let there = self.folder.join("weir-data/device.toml").exists();
                let config = if there { "" } else { "--config weir.toml" };
                let script = format!("weir serve --http 127.0.0.1:0 {config}");
                self.server = Some(Running::start(self, &script, true)?);
            }
            None => {}
        }
        let looked_at = FORMATTED.iter().any(|part| line.starts_with(part));
        if looked_at && !self.folder.join("weir-data").exists() {
            ended_well(&self.shell("weir format --config weir.toml"))?;
        }
        for (_, script) in BEFORE.iter().filter(|(begins, _)| line.starts_with(begins)) {
            ended_well(&self.shell(script))
                .map_err(|error| format!("before it, {script}: {error}"))?;
        }
        Ok(())
    }

    /// Runs an example; what is wrong with it.
    fn example(&mut self, line: &str) -> Result<(), String> {
        self.prepare(line)?;
        let mut script = line.to_owned();
        for (named, instead) in STAND_INS {
            script = script.replace(named, instead);
        }
        match GO_ON.iter().find(|(begins, _)| line.starts_with(begins)) {
            Some((_, says_ready)) => Running::start(self, &script, *says_ready)?.end(),
            None => {
                let output = self.shell(&script);
                let is_an_answer = ANSWER_ONE.iter().any(|begins| line.starts_with(begins));
                if is_an_answer && output.status.code() == Some(1) {
                    return Ok(());
                }
                ended_well(&output)
            }
        }
    }
}

fn ended_well(output: &Output) -> Result<(), String> {
    let text = said(output);
    if output.status.success() && !text.contains("panicked at") {
        return Ok(());
    }
    Err(format!("{}: {text}", output.status))
}

/// An example that goes on, or a server for others. It is ended by SIGTERM, and killed when it is dropped.
struct Running {
    child: Child,
    script: String,
    says_ready: bool,
    out: PathBuf,
    log: PathBuf,
}

impl Running {
    /// Starts it, and returns when it is ready; or has said something, if it does not say that it is.
    fn start(place: &Place, script: &str, says_ready: bool) -> Result<Self, String> {
        let (out, log) = (place.folder.join("said.out"), place.folder.join("said.log"));
        let file = |path: &Path| fs::File::create(path).expect("a file");
        // The shell outlives the signal, so that it tells how its programs ended.
        let trapped = format!("trap : TERM; set -o pipefail; {script}");
        let mut command = place.command("bash");
        command.args(["-c", &trapped]).stdout(file(&out)).stderr(file(&log)).process_group(0);
        let child = command.spawn().expect("bash starts");
        let mut running = Self { child, script: script.into(), says_ready, out, log };
        let begun = Instant::now();
        // What `jq` says comes when it ends.
        let piped = script.contains(" | ");
        while begun.elapsed() < PATIENCE {
            let said = fs::read_to_string(&running.out).unwrap_or_default();
            let is_ready = said.lines().any(|line| line.starts_with("ready"));
            let pipe_has_run = piped && begun.elapsed() > Duration::from_secs(3);
            if is_ready || !says_ready && (!said.is_empty() || pipe_has_run) {
                return Ok(running);
            }
            if let Some(status) = running.child.try_wait().expect("it can be waited for") {
                return Err(format!("{}: {status}: {}", running.script, running.said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("{}: neither ready nor at its end: {}", running.script, running.said()))
    }

    /// SIGTERM to what the shell has started; it must end by itself, have said something, and no error.
    fn end(mut self) -> Result<(), String> {
        let begun = Instant::now();
        // Once: `weir serve` ends at once on a second signal.
        for pid in children(self.child.id()) {
            // SAFETY: no memory is involved. A child of the shell that was not waited for keeps its number.
            unsafe { libc::kill(pid, libc::SIGTERM) };
        }
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                break status;
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{}: SIGTERM had no effect: {}", self.script, self.said()));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let said = self.said();
        let has_failed = said.lines().any(|line| line.starts_with("error"));
        // Who only shows something may die of the signal.
        let ended = status.success() || !self.says_ready && status.code() == Some(TERMINATED);
        if !ended || has_failed || said.is_empty() || said.contains("panicked at") {
            return Err(format!("{}: {status}: {said}", self.script));
        }
        Ok(())
    }

    fn said(&self) -> String {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        read(&self.out) + &read(&self.log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: no memory is involved. The group is that of the child, which was not waited for.
            unsafe { libc::kill(-(self.child.id() as libc::pid_t), libc::SIGKILL) };
            self.child.wait().ok();
        }
    }
}

/// The processes named `weir` that a shell has started and waits for.
fn children(shell: u32) -> Vec<libc::pid_t> {
    let path = format!("/proc/{shell}/task/{shell}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    let is_weir = |pid: &libc::pid_t| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "weir")
    };
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_weir).collect()
}

/// The files that examples name.
struct Inputs {
    scratch: Scratch,
    path: String,
}

impl Inputs {
    fn new() -> Self {
        let scratch = Scratch::new("examples");
        for folder in ["bin", "files"] {
            fs::create_dir(scratch.path().join(folder)).expect("a folder");
        }
        std::os::unix::fs::symlink(weir_path(), scratch.path().join("bin/weir")).expect("a link");
        let path = format!("{}:{}", scratch.file("bin"), search_path());
        let inputs = Self { scratch, path };
        inputs.traces();
        inputs.drives();
        let greedy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/greedy/greedy.wasm");
        fs::copy(greedy, inputs.file("mine.wasm")).expect("a module");
        inputs.experiment();
        inputs
    }

    fn file(&self, name: &str) -> String {
        self.scratch.file(&format!("files/{name}"))
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).expect("a file");
    }

    fn traces(&self) {
        let lines = msr_lines(2000);
        for name in ["web.csv", "pgbench.csv"] {
            self.write(name, &lines);
            run("gzip", &[&self.file(name)]);
        }
        // A request each 10 ms, for 40 seconds: of these a minute can be cut.
        let slower = |(index, line): (u64, &str)| {
            let (_, rest) = line.split_once(',').expect("a time");
            format!("{},{rest}\n", 128_000_000_000_000_000 + index * 100_000)
        };
        let slow: String = (0..).zip(msr_lines(4000).lines()).map(slower).collect();
        self.write("web_0.csv", &slow);
        run("gzip", &[&self.file("web_0.csv")]);
        self.write("disks.csv", &lines.replace(",web,1,", ",web,3,"));
        run("gzip", &[&self.file("disks.csv")]);
        let mut unsound: Vec<&str> = lines.lines().collect();
        unsound[4] = "not a request";
        unsound.swap(7, 8);
        self.write("big.csv", &unsound.join("\n"));
        let line = |i: u64| {
            let (action, sector) = (if i.is_multiple_of(2) { 'Q' } else { 'D' }, i / 2 * 8);
            format!("8,0 3 {i} {}.{:09} 697 {action} WS {sector} + 8 [fio]\n", i / 100, i % 100)
        };
        self.write("disk.blkparse", &(1..400).map(line).collect::<String>());
    }

    /// What was published of a drive.
    fn drives(&self) {
        let head = "SerialNumber,Distribution,Target,Actual,Dropped,NeverSent,Median,90th,99th,99.9th,99.99th,\
                    Start,StartTsc";
        let line = "S1,constant,1000,1000,0,3,70,80,90,100,110,17,97";
        for share in ["100r", "250w", "1000w"] {
            self.write(&format!("S1_{share}.csv"), &format!("{head}\n{line}\n"));
        }
    }

    /// An experiment that takes a moment, and a device of two volumes with a fast tier.
    fn experiment(&self) {
        run(weir_path().to_str().expect("UTF-8"), &["lab", "new", &self.file("my")]);
        let text = fs::read_to_string(self.file("my.toml")).expect("it was written");
        let shorter = |line: &str| match line.split(' ').next() {
            Some("blocks") => "blocks = 14\n".into(),
            Some("measure") if !line.contains('$') => "measure = \"50ms\"\n".into(),
            Some("depth") if line.contains('[') => "depth = [1, 16]\n".into(),
            Some("steady") => "steady = false\n".into(),
            Some("overwrites") => "overwrites = 0.1\n".into(),
            _ => format!("{line}\n"),
        };
        self.write("my.toml", &text.lines().map(shorter).collect::<String>());
        self.write(
            "weir.toml",
            "[device]\npath = \"weir-data\"\nprofile = \"slc\"\n[device.fast]\ncapacity = \"64MiB\"\n\
             [[volume]]\nname = \"default\"\nsize = \"256MiB\"\n[[volume]]\nname = \"data\"\nsize = \"256MiB\"\nstreams = \"sepbit\"\n\
             [http]\naddress = \"127.0.0.1:0\"\n",
        );
    }

    /// A folder for a page, with all of it.
    fn place(&self, name: &str) -> Place {
        let folder = self.scratch.path().join(name);
        fs::create_dir_all(folder.join("home")).expect("a folder");
        for entry in fs::read_dir(self.scratch.path().join("files")).expect("a folder").flatten() {
            fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
        }
        let pool = self.scratch.path().join("up/weir-pool");
        Place { folder, path: self.path.clone(), pool, server: None }
    }
}

/// What a part of the pool that is there has in its config and a second one must not have.
const OWN: &[(&str, &str, &str)] = &[
    ("plane", "data = ", "data = \"plane-too\""),
    ("node-1", "id = 1", "id = 9"),
    ("node-1", "listen = ", "listen = \"127.0.0.1:0\""),
    ("node-1", "control = ", "control = \"too.sock\""),
    ("node-1", "path = ", "path = \"drive-too\""),
    ("client", "name = ", "name = \"too\""),
    ("client", "volume = ", "volume = \"other\""),
    ("client", "control = ", "control = \"too.sock\""),
];

/// Puts into a page's folder what somebody who has a pool has at hand.
fn lay_pool(place: &Place) {
    let link = |name: &str, target: &Path| {
        std::os::unix::fs::symlink(target, place.folder.join(name)).expect("a link");
    };
    link("weir-pool", &place.pool);
    link("client.sock", &place.pool.join("client.sock"));
    let certs = format!("\"{}/certs/", place.pool.display());
    for part in ["admin", "controller", "plane", "node-1", "client"] {
        let name = format!("{part}.toml");
        let text = fs::read_to_string(place.pool.join(&name)).expect("`pool up` has written it");
        let own = |line: &str| {
            let own = OWN.iter().find(|(of, begins, _)| *of == part && line.starts_with(begins));
            if part == "plane" && line.starts_with("address = ") {
                let free =
                    std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
                return format!("address = \"{}\"\n", free.expect("a free port"));
            }
            own.map_or_else(|| format!("{line}\n"), |(_, _, own)| format!("{own}\n"))
        };
        let text = text.replace("\"certs/", &certs).lines().map(own).collect::<String>();
        fs::write(place.folder.join(name), text).expect("a config");
    }
}

/// Runs the pages of a subcommand and of those below it, one after the other; what is wrong with them.
fn run_pages(inputs: &Inputs, pages: &[&Page]) -> Vec<String> {
    let of_pool = pages.iter().any(|page| page.words.first().is_some_and(|word| word == "pool"));
    let up = of_pool.then(|| {
        let place = inputs.place("up");
        let script = "weir pool up --nodes 4 --ssds 1 --size 32MiB --restart-after 1";
        Running::start(&place, script, true).unwrap_or_else(|error| panic!("{error}"))
    });
    let of_store = pages.iter().any(|page| page.words.first().is_some_and(|word| word == "store"));
    let store = of_store.then(|| store_up(inputs));
    let mut faults = Vec::new();
    for page in pages {
        let name = if page.words.is_empty() { "weir".into() } else { page.words.join("-") };
        let mut place = inputs.place(&name);
        if of_pool {
            lay_pool(&place);
        }
        if store.is_some() {
            let target = inputs.scratch.path().join("store-up/weir-store");
            std::os::unix::fs::symlink(target, place.folder.join("weir-store")).expect("a link");
        }
        let lines = page.lines.iter().filter(|line| EXCUSED.iter().all(|(of, _)| of != line));
        for line in lines {
            let begun = Instant::now();
            let done = place.example(line);
            println!("{:6.1} s  {name}: {line}", begun.elapsed().as_secs_f64());
            if let Err(error) = done {
                faults.push(format!("weir {} --help says `{line}`: {error}", page.words.join(" ")));
            }
        }
        faults.extend(place.server.take().and_then(|server| server.end().err()));
    }
    faults.extend(up.and_then(|up| up.end().err()));
    // The store before what it lies on.
    let ended = store.into_iter().flatten().filter_map(|server| server.end().err());
    faults.extend(ended);
    faults
}

/// A store, and before its end the two servers that it needs.
fn store_up(inputs: &Inputs) -> Vec<Running> {
    let start = |name: &str, script: &str| {
        Running::start(&inputs.place(name), script, true).unwrap_or_else(|error| panic!("{error}"))
    };
    let units = "weir serve --raw --profile instant --gang 2 --channels 2 --erase background --capacity 512MiB \
                 --data weir-units --http none";
    let small = "weir serve --profile instant --capacity 256MiB --data weir-small --http none";
    let [on, beside] =
        ["store-units/weir-units", "store-small/weir-small"].map(|at| inputs.scratch.file(at));
    let store = format!("weir store serve --units {on} --small {beside} --http none");
    let mut all = vec![start("store-units", units), start("store-small", small)];
    all.insert(0, start("store-up", &store));
    all
}

/// What tables say of examples that are no more.
fn stale(pages: &[Page]) -> Vec<String> {
    let lines: Vec<&String> = pages.iter().flat_map(|page| &page.lines).collect();
    let none = |is_of: &dyn Fn(&str) -> bool| !lines.iter().any(|line| is_of(line));
    let excused = EXCUSED.iter().map(|(of, _)| *of).filter(|of| none(&|line| line == *of));
    let begins = BEFORE.iter().map(|(of, _)| *of).chain(GO_ON.iter().map(|(of, _)| *of));
    let begins = begins.chain(FORMATTED.iter().chain(ANSWER_ONE).copied());
    let begins = begins.filter(|of| none(&|line| line.starts_with(of)));
    let holds = STAND_INS.iter().map(|(of, _)| *of).chain(SERVED.iter().copied());
    let holds = holds.filter(|of| none(&|line| line.contains(of)));
    excused.chain(begins).chain(holds).map(str::to_owned).collect()
}

#[test]
fn every_example_of_help_runs_or_is_excused_with_a_reason() {
    let mut pages = pages();
    assert!(pages.iter().all(|page| !page.lines.is_empty()), "command_line.rs holds them to it");
    assert_eq!(stale(&pages), [""; 0], "tables of examples.rs tell of examples that no page shows");
    // What several pages show is run where it comes first.
    let mut seen = BTreeSet::new();
    for page in &mut pages {
        page.lines.retain(|line| seen.insert(line.clone()));
    }
    let inputs = Inputs::new();
    let first = |page: &Page| page.words.first().cloned().unwrap_or_default();
    let groups: Vec<Vec<&Page>> = {
        let names: BTreeSet<String> = pages.iter().map(first).collect();
        let of = |name: &String| pages.iter().filter(|page| first(page) == *name).collect();
        names.iter().map(of).collect()
    };
    let todo = Mutex::new(groups);
    let next = || todo.lock().expect("no panic").pop();
    let work = || -> Vec<String> {
        std::iter::from_fn(next).flat_map(|group| run_pages(&inputs, &group)).collect()
    };
    let faults: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|worker| worker.join().expect("it does not panic"));
        ended.flatten().collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_example_that_fails_is_told_with_what_it_said() {
    let inputs = Inputs::new();
    let mut place = inputs.place("wrong");
    for (line, part) in [
        ("weir trace stat no.csv", "no.csv"),
        ("weir trace stat no.csv | cat", "no.csv"),
        ("weir serve --config no.toml", "no.toml"),
    ] {
        let error = place.example(line).expect_err(line);
        assert!(error.contains(part), "{error}");
    }
}
