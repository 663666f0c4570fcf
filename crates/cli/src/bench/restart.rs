//! Restart after `kill -9`, by the wall clock: from the start of the process until a client has had its
//! first read and its first write answered. A device on a sparse file, some of it written, and random
//! writes in flight at the kill; each kill once with kept memory and once without, the same device. The
//! figure is the longest of the restarts that resumed; the note tells the others. Of the large devices,
//! which are measured when they are named only, those without kept memory are a figure of their own: so
//! it is after a power loss.

use super::nbd::Folder;
use super::{Figure, Goal, Request, measured};
use client::wire::{command, header, negotiate_simple, simple_reply};
use client::{Stream, parse};
use flash::{BLOCK_BYTES, Random};
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const UNIT: &str = "ms";
const GOAL: Goal = Goal::AtMost(1000.0);
/// Without kept memory, for each TiB.
const POWER_LOSS_GOAL: Goal = Goal::AtMost(5000.0);
/// What the names of the large devices begin with.
const LARGE: &str = "restart-1tib";
/// Kills, each with and without kept memory.
const KILLS: usize = 3;
/// What is written in order before the first kill.
const FILL_BYTES: u64 = 1 << 30;
/// Random writes before each kill, and those in flight.
const WRITES: u32 = 20_000;
const DEPTH: u32 = 32;

/// A device to be killed.
struct Case {
    name: &'static str,
    gib: u64,
    /// More of the config.
    config: &'static str,
    quick: bool,
}

const CASES: [Case; 6] = [
    Case { name: "restart-16gib", gib: 16, config: "", quick: true },
    Case { name: "restart-64gib", gib: 64, config: "", quick: false },
    Case { name: "restart-256gib", gib: 256, config: "", quick: false },
    Case {
        name: "restart-256gib-map-16mib",
        gib: 256,
        config: "[ftl]\nmap_memory = \"16MiB\"\n",
        quick: false,
    },
    Case { name: LARGE, gib: 1024, config: "", quick: false },
    Case {
        name: "restart-1tib-map-64mib",
        gib: 1024,
        config: "[ftl]\nmap_memory = \"64MiB\"\n",
        quick: false,
    },
];

pub fn after_kills(request: &mut Request<'_>) {
    for case in &CASES {
        let named = !case.is_large() || request.names.iter().any(|name| name.starts_with(LARGE));
        if !named || !request.wants(case.name) || request.quick && !case.quick {
            continue;
        }
        let took = measure(case);
        let figure = took.as_ref().map(|took| took.figure(case)).map_err(String::clone);
        (request.sink)(measured(case.name, UNIT, GOAL, figure));
        if case.is_large() {
            let name = format!("{}-power-loss", case.name);
            let figure = took.map(|took| took.figure_without(&name));
            (request.sink)(measured(&name, UNIT, POWER_LOSS_GOAL, figure));
        }
    }
}

impl Case {
    fn is_large(&self) -> bool {
        self.name.starts_with(LARGE)
    }
}

/// What a restart took.
#[derive(Clone, Copy, Default)]
struct Took {
    read_ms: f64,
    write_ms: f64,
}

/// What the restarts with and without kept memory took, the longest of each.
#[derive(Clone, Copy)]
struct Longest {
    kept: Took,
    cold: Took,
}

impl Longest {
    fn figure(&self, case: &Case) -> Figure {
        let Self { kept, cold } = self;
        Figure::new(case.name, kept.write_ms, UNIT, GOAL).note(format!(
            "the longest of {KILLS}, first read {:.0}; without kept memory {:.0}, first read {:.0}",
            kept.read_ms, cold.write_ms, cold.read_ms
        ))
    }

    fn figure_without(&self, name: &str) -> Figure {
        let note = format!("the longest of {KILLS}, first read {:.0}", self.cold.read_ms);
        Figure::new(name, self.cold.write_ms, UNIT, POWER_LOSS_GOAL).note(note)
    }
}

fn measure(case: &Case) -> Result<Longest, String> {
    let folder = Folder::at(std::env::temp_dir());
    for (name, place) in [("kept", "auto"), ("cold", "off")] {
        let text = format!(
            "[device]\nkind = \"file\"\npath = \"device\"\ncapacity = \"{}GiB\"\nshards = 2\n\
             op_percent = 15\nkept_memory = \"{place}\"\n[nbd]\nunix = \"nbd.sock\"\n[http]\n\
             enabled = false\n{}",
            case.gib, case.config
        );
        let file = folder.0.join(format!("{name}.toml"));
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let mut random = Random::new(1);
    let mut server = Server::start(&folder.0, "kept")?;
    server.client.fill(case.gib << 30)?;
    let (mut kept, mut cold) = (Vec::new(), Vec::new());
    for _ in 0..KILLS {
        for (name, took) in [("kept", &mut kept), ("cold", &mut cold)] {
            server.client.load(case.gib << 30, &mut random)?;
            drop(server);
            server = Server::start(&folder.0, name)?;
            took.push(server.took);
            if name == "cold" {
                // The next kill is to find kept memory again, which takes a start that makes it.
                drop(server);
                server = Server::start(&folder.0, "kept")?;
            }
        }
    }
    server.end()?;
    let longest = |list: &[Took]| Took {
        read_ms: list.iter().map(|took| took.read_ms).fold(0.0, f64::max),
        // The write comes after the read.
        write_ms: list.iter().map(|took| took.write_ms).fold(0.0, f64::max),
    };
    Ok(Longest { kept: longest(&kept), cold: longest(&cold) })
}

/// A server with a client; killed when it is dropped.
struct Server {
    child: Child,
    client: Client,
    took: Took,
}

/// A connection that keeps requests in flight.
struct Client {
    stream: Stream,
    in_flight: u32,
}

impl Server {
    fn start(folder: &Path, config: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("where is weir? {error}"))?;
        let begun = Instant::now();
        let child = Command::new(program)
            .args(["serve", "--config"])
            .arg(folder.join(format!("{config}.toml")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("weir cannot be started: {error}"))?;
        let mut guard = Guard(Some(child));
        let stream = connect(&folder.join("nbd.sock"), &mut guard)?;
        let mut client = Client { stream, in_flight: 0 };
        let ms = || begun.elapsed().as_secs_f64() * 1e3;
        let text = |error: std::io::Error| error.to_string();
        client.send(command::READ, 0, BLOCK_BYTES as u32, &[]).map_err(text)?;
        client.take(BLOCK_BYTES).map_err(text)?;
        let read_ms = ms();
        client.send(command::WRITE, 0, BLOCK_BYTES as u32, &[1; BLOCK_BYTES]).map_err(text)?;
        client.take(0).map_err(text)?;
        let took = Took { read_ms, write_ms: ms() };
        let child = guard.0.take().ok_or("the server is gone")?;
        Ok(Self { child, client, took })
    }

    /// SIGTERM, so that nothing of it remains.
    fn end(mut self) -> Result<(), String> {
        let process = i32::try_from(self.child.id()).map_err(|error| error.to_string())?;
        // SAFETY: no memory is involved; it is our child and not reaped, so the id is its own.
        unsafe { libc::kill(process, libc::SIGTERM) };
        self.child.wait().map(drop).map_err(|error| error.to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Kills a server that did not come up.
struct Guard(Option<Child>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// As soon as the server greets. The socket of one that was killed may still accept.
fn connect(socket: &Path, server: &mut Guard) -> Result<Stream, String> {
    let (address, _) = parse(&format!("nbd+unix:///default?socket={}", socket.display()))?;
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let tried = Stream::dial(&address).and_then(|mut stream| {
            negotiate_simple(&mut stream, "default")?;
            Ok(stream)
        });
        match tried {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => return Err(format!("no server: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
        let child = server.0.as_mut().ok_or("the server is gone")?;
        if let Ok(Some(status)) = child.try_wait() {
            return Err(format!("the server ended at once ({status})"));
        }
    }
}

impl Client {
    fn send(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(&header(kind, 0, 0, offset, length))?;
        self.stream.write_all(data)?;
        self.in_flight += 1;
        Ok(())
    }

    /// The next reply, of a read of so many bytes.
    fn take(&mut self, bytes: usize) -> std::io::Result<()> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let (error, _) = simple_reply(&head).map_err(std::io::Error::other)?;
        if error != 0 {
            return Err(std::io::Error::other(format!("the server answered error {error}")));
        }
        self.stream.read_exact(&mut vec![0; bytes])?;
        self.in_flight -= 1;
        Ok(())
    }

    /// Writes at these offsets, and leaves the last in flight.
    fn write_at(&mut self, offsets: impl Iterator<Item = u64>, bytes: &[u8]) -> Result<(), String> {
        let mut write = |offset| {
            if self.in_flight >= DEPTH {
                self.take(0)?;
            }
            self.send(command::WRITE, offset, bytes.len() as u32, bytes)
        };
        for offset in offsets {
            write(offset).map_err(|error| format!("a write at {offset}: {error}"))?;
        }
        Ok(())
    }

    fn fill(&mut self, bytes: u64) -> Result<(), String> {
        let run = vec![7; 1 << 20];
        self.write_at((0..FILL_BYTES.min(bytes)).step_by(run.len()), &run)
    }

    fn load(&mut self, bytes: u64, random: &mut Random) -> Result<(), String> {
        let blocks = bytes / BLOCK_BYTES as u64;
        let offsets = (0..WRITES).map(|_| random.below(blocks) * BLOCK_BYTES as u64);
        self.write_at(offsets, &[9; BLOCK_BYTES])
    }
}
