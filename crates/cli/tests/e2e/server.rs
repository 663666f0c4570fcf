//! A running `weir serve`. Dropped without being stopped, it is killed, so that no test leaves a
//! server behind.

use crate::nbd::Client;
use crate::refuse;
use crate::scratch::Scratch;
use crate::tools::{weir, weir_path};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest from the start of the process to its `ready` line, and from SIGTERM to its end.
const PATIENCE: Duration = Duration::from_secs(60);

/// What most tests use: no pacing, small.
pub const SMALL: &[&str] = &["--profile", "instant", "--capacity", "64MiB"];

/// The same on two threads.
pub const SMALL_ON_TWO_SHARDS: &[&str] =
    &["--profile", "instant", "--capacity", "64MiB", "--shards", "2"];

pub struct Server {
    child: Child,
    data: PathBuf,
    log: PathBuf,
    /// What it said when it was ready: `ready`, and an address a volume and socket.
    ready: String,
}

impl Server {
    /// Starts `weir serve` on the scratch directory's device and returns when it says `ready`.
    pub fn start(scratch: &Scratch, args: &[&str]) -> Self {
        Self::spawn(scratch, args).until_ready()
    }

    /// The same, with at most so many open files.
    pub fn start_with_files(scratch: &Scratch, args: &[&str], files: u64) -> Self {
        let prepare = |command: &mut Command| {
            limit_files(command, files);
            refuse::as_told(command);
        };
        Self::spawn_with(scratch, args, prepare).until_ready()
    }

    /// The same where the system refuses `calls`.
    pub fn start_where(scratch: &Scratch, args: &[&str], calls: &[refuse::Refused]) -> Self {
        Self::spawn_with(scratch, args, |command| refuse::refuse(command, calls)).until_ready()
    }

    fn until_ready(self) -> Self {
        let mut server = self;
        let stdout = server.child.stdout.take().expect("stdout is a pipe");
        let (sender, receiver) = mpsc::channel();
        // Goes on reading after `ready`: a server must never block on a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(line) if line.starts_with("ready") => {
                    server.ready = line;
                    return server;
                }
                Ok(_) => {}
                Err(end) => panic!("the server did not become ready ({end}):\n{}", server.log()),
            }
        }
    }

    /// The same for a device that may be refused: `None` if it was, in so many words and in time.
    pub fn start_or_refuse(scratch: &Scratch, args: &[&str]) -> Option<Self> {
        let mut server = Self::spawn(scratch, args);
        let stdout = server.child.stdout.take().expect("stdout is a pipe");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let deadline = Instant::now() + PATIENCE;
        loop {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("ready") => {
                    server.ready = line;
                    return Some(server);
                }
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(end) => panic!("the server neither starts nor ends ({end}):\n{}", server.log()),
            }
        }
        let status = server.wait();
        server.assert_no_panic();
        assert_eq!(status.and_then(|status| status.code()), Some(2), "{}", server.log());
        None
    }

    /// Sends a signal and gives the exit status and how long the end took. Panics if it takes longer than
    /// `bound`, or if the server panicked.
    pub fn stop(mut self, signal: i32, bound: Duration) -> (ExitStatus, Duration) {
        let begun = Instant::now();
        self.signal(signal);
        let status = self.wait().unwrap_or_else(|| panic!("it never ends:\n{}", self.log()));
        let took = begun.elapsed();
        assert!(took < bound, "the stop took {took:?}:\n{}", self.log());
        self.assert_no_panic();
        (status, took)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("a pid fits");
        // SAFETY: kill takes no pointer; the child is not reaped yet, so the pid is still its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "the signal was sent");
    }

    /// Starts the process and does not wait for it. Nothing reads its standard output until then.
    pub fn spawn(scratch: &Scratch, args: &[&str]) -> Self {
        Self::spawn_with(scratch, args, refuse::as_told)
    }

    fn spawn_with(scratch: &Scratch, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let log = scratch.path().join("serve.log");
        let stderr = OpenOptions::new().create(true).append(true).open(&log).expect("a log file");
        let mut command = Command::new(weir_path());
        command.args(["serve", "--http", "127.0.0.1:0"]).args(args);
        if !args.contains(&"--data") {
            command.arg("--data").arg(scratch.data());
        }
        prepare(&mut command);
        heed_sighup(&mut command);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("weir starts");
        Self { child, data: scratch.data(), log, ready: String::new() }
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn socket(&self) -> PathBuf {
        self.data.join("nbd.sock")
    }

    /// Where it listens for TCP, if told to.
    pub fn tcp_port(&self) -> u16 {
        let address = self.ready.split(' ').find_map(|uri| uri.strip_prefix("nbd://"));
        let port = address.and_then(|address| address.split(['/', ':']).nth(1)?.parse().ok());
        port.unwrap_or_else(|| panic!("no TCP address in {:?}", self.ready))
    }

    /// Where its HTTP listens.
    pub fn http(&self) -> std::net::SocketAddr {
        let text = std::fs::read_to_string(self.data.join("http-address")).expect("an address");
        text.trim().parse().expect("an address and a port")
    }

    /// Its control socket.
    pub fn control(&self) -> PathBuf {
        self.data.join("control.sock")
    }

    /// The volume as libnbd, QEMU and fio name it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///default?socket={}", self.socket().display())
    }

    /// A client of our own on the default volume.
    pub fn connect(&self) -> Client {
        self.connect_to("default")
    }

    /// A client of our own on this volume.
    pub fn connect_to(&self, volume: &str) -> Client {
        Client::connect(&self.socket(), volume)
            .unwrap_or_else(|error| panic!("{volume}: cannot connect: {error}\n{}", self.log()))
    }

    /// A client of our own on each shard: whoever accepts a connection keeps it, and the status tells
    /// who that was.
    pub fn connect_to_each_shard(&self, shards: usize) -> Vec<Client> {
        if shards == 1 {
            return vec![self.connect()];
        }
        let mut chosen: Vec<Option<Client>> = (0..shards).map(|_| None).collect();
        // These stay connected until the end, so that a count which grows tells of the new one.
        let mut unwanted = Vec::new();
        let mut before = self.connections();
        for _ in 0..50 {
            let client = self.connect();
            let after = self.connections();
            assert_eq!(after.len(), shards, "the device's shards");
            let shard = (0..shards).find(|&shard| after[shard] > before[shard]);
            before = after;
            match shard {
                Some(shard) if chosen[shard].is_none() => chosen[shard] = Some(client),
                _ => unwanted.push(client),
            }
            if chosen.iter().all(Option::is_some) {
                return chosen.into_iter().flatten().collect();
            }
        }
        panic!("one shard accepts no client: {before:?}");
    }

    /// Clients connected to each shard.
    fn connections(&self) -> Vec<u64> {
        self.shards(|shard| &shard["connections"])
    }

    /// A counter of each shard's FTL.
    pub fn counters(&self, name: &str) -> Vec<u64> {
        self.shards(|shard| &shard["counters"][name])
    }

    /// A number of each shard's status.
    fn shards(&self, number: impl Fn(&Value) -> &Value) -> Vec<u64> {
        let status = weir(&["status", "--json", "--data", self.data.to_str().expect("UTF-8")]);
        let status: Value =
            serde_json::from_slice(&status.stdout).unwrap_or_else(|e| panic!("{e}: {status:?}"));
        let shards = status["shards"].as_array().expect("shards");
        shards.iter().map(|shard| number(shard).as_u64().expect("a count")).collect()
    }

    /// SIGTERM; the server must end by itself with status 0.
    pub fn terminate(mut self) {
        let pid = i32::try_from(self.child.id()).expect("a pid fits");
        // SAFETY: kill takes no pointer; the child is not reaped yet, so the pid is still its own.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0, "SIGTERM was sent");
        let status =
            self.wait().unwrap_or_else(|| panic!("SIGTERM had no effect:\n{}", self.log()));
        assert_eq!(status.code(), Some(0), "SIGTERM ends with status 0:\n{}", self.log());
        self.assert_no_panic();
    }

    /// SIGKILL, as the out-of-memory killer would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.assert_no_panic();
    }

    /// The process is still there.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the child can be waited for").is_none()
    }

    /// The exit status, or `None` if it does not come in time.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the child can be waited for") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Everything the server wrote to standard error, over all its lives in this scratch directory.
    pub fn log(&self) -> String {
        read_lossy(&self.log)
    }

    fn assert_no_panic(&self) {
        let log = self.log();
        assert!(!log.contains("panicked at"), "the server panicked:\n{log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that the command starts may have at most so many open files, and not raise that.
fn limit_files(command: &mut Command, files: u64) {
    let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
    let set = move || {
        // SAFETY: the limit is readable. Nothing else happens between fork and exec.
        match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the closure only makes a system call.
    unsafe { command.pre_exec(set) };
}

/// Whoever runs the tests may have had them ignore SIGHUP (`nohup`), which a server would inherit, and heed.
fn heed_sighup(command: &mut Command) {
    let heed = || {
        // SAFETY: no memory is involved.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
        Ok(())
    };
    // SAFETY: between fork and exec only one system call is made.
    unsafe { command.pre_exec(heed) };
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
