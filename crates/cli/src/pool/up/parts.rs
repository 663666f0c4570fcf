//! The processes of a pool on one machine: started one after the other, watched, started again, ended together.

use crate::Failure;
use crate::output::say;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long a part may take to be ready: a client waits for a lease.
const READY: Duration = Duration::from_secs(60);
/// How long a part may take to end.
const END: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);

struct Part {
    name: String,
    command: &'static str,
    config: PathBuf,
    child: Child,
    life: Life,
}

enum Life {
    Runs,
    /// It has ended, and is to be started again then.
    Again(Instant),
    /// It was started again, and is not ready yet.
    Comes(Box<Coming>),
}

/// A process that is not ready yet.
struct Coming {
    child: Child,
    lines: Receiver<String>,
    /// It must be ready by then.
    until: Instant,
    said: String,
}

enum Stand {
    Coming,
    Ready,
    Failed(Failure),
}

/// See the head of this file. What runs ends when this is dropped.
pub struct Parts {
    folder: PathBuf,
    restart_after: Duration,
    parts: Vec<Part>,
    /// Locked as long as any part runs, as each has it open: whoever started them may have been killed.
    running: fs::File,
}

static TOLD: AtomicBool = AtomicBool::new(false);

extern "C" fn tell(_: libc::c_int) {
    TOLD.store(true, Ordering::Relaxed);
}

impl Parts {
    /// None yet: waits for those of a `weir pool up` that was killed.
    pub fn new(folder: &Path, restart_after: Duration) -> Result<Self, Failure> {
        fs::create_dir_all(folder.join("log"))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let path = folder.join("parts.lock");
        let running =
            fs::File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let until = Instant::now() + END;
        while running.try_lock().is_err() {
            if Instant::now() > until {
                return Err(format!(
                    "{}: parts of a `weir pool up` that was killed still run: end them, their processes are in the \
                     files *.pid",
                    folder.display()
                ));
            }
            std::thread::sleep(LOOK);
        }
        Ok(Self { folder: folder.into(), restart_after, parts: Vec::new(), running })
    }

    /// From now on a signal ends all of them, in their order.
    pub fn heed_signals() {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the handler only sets a flag.
            unsafe { libc::signal(signal, tell as *const () as libc::sighandler_t) };
        }
    }

    /// The process of a part that was started.
    pub fn process(&self, name: &str) -> Option<u32> {
        self.parts.iter().find(|part| part.name == name).map(|part| part.child.id())
    }

    /// Kills a part and forgets it.
    pub fn kill(&mut self, name: &str) {
        let (gone, stay): (Vec<Part>, _) = self.parts.drain(..).partition(|part| part.name == name);
        self.parts = stay;
        for mut part in gone {
            end(&mut part.child, libc::SIGKILL);
            part.child.wait().ok();
        }
    }

    /// Starts a part and waits until it is ready; what it has said by then.
    pub fn start(
        &mut self,
        name: &str,
        command: &[&'static str; 1],
        config: &Path,
    ) -> Result<String, Failure> {
        let (child, said) = self.begin(name, command[0], config)?;
        let (name, config) = (name.to_owned(), config.to_owned());
        self.parts.push(Part { name, command: command[0], config, child, life: Life::Runs });
        Ok(said)
    }

    fn begin(
        &self,
        name: &str,
        command: &'static str,
        config: &Path,
    ) -> Result<(Child, String), Failure> {
        let mut coming = self.spawn(name, command, config)?;
        loop {
            match self.stand(name, &mut coming) {
                Stand::Ready => return Ok((coming.child, coming.said)),
                Stand::Failed(why) => return Err(why),
                Stand::Coming => std::thread::sleep(LOOK / 10),
            }
        }
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join("log").join(format!("{name}.log"))
    }

    /// Why a part is not there, with the end of what it has logged.
    fn failed(&self, name: &str, reason: &str) -> Failure {
        let log = self.log(name);
        let tail = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = tail.lines().rev().take(5).collect();
        let lines: Vec<String> =
            lines.into_iter().rev().map(|line| line.chars().take(300).collect()).collect();
        format!("{name}: {reason} (its log is {}):\n{}", log.display(), lines.join("\n"))
    }

    fn spawn(&self, name: &str, command: &'static str, config: &Path) -> Result<Coming, Failure> {
        let failed = |error: std::io::Error| self.failed(name, &error.to_string());
        let file = fs::OpenOptions::new().create(true).append(true).open(self.log(name));
        let mut command_line = Command::new("/proc/self/exe");
        command_line
            .args(["--log", "info", "pool", command, "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.map_err(failed)?)
            // A signal of the terminal is for `up`, which ends its parts in their order.
            .process_group(0);
        let running = self.running.as_raw_fd();
        // A client that is to stop in order waits for nodes, which end at the same time.
        let signal = if command == "client" { libc::SIGKILL } else { libc::SIGTERM };
        // SAFETY: both calls are safe between fork and exec. A part does not outlive whoever watches it.
        unsafe {
            command_line.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, signal);
                libc::fcntl(running, libc::F_SETFD, 0);
                Ok(())
            })
        };
        let mut child = command_line.spawn().map_err(failed)?;
        // Whoever hears that it is there may kill it, before we have heard.
        fs::write(pid_file(&self.folder, name), format!("{}\n", child.id())).ok();
        let out = child.stdout.take().expect("it is piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                // Nobody listens any more once it was ready.
                send.send(line).ok();
            }
        });
        Ok(Coming { child, lines, until: Instant::now() + READY, said: String::new() })
    }

    /// Whether a part that was begun is ready by now. One that will not be is ended.
    fn stand(&self, name: &str, coming: &mut Coming) -> Stand {
        let why = loop {
            match coming.lines.try_recv() {
                Ok(line) => {
                    coming.said += &format!("{line}\n");
                    if line.starts_with("ready") {
                        return Stand::Ready;
                    }
                }
                Err(TryRecvError::Empty) if Self::is_told() => break "was told to end",
                Err(TryRecvError::Empty) if Instant::now() < coming.until => return Stand::Coming,
                Err(_) => break "did not become ready",
            }
        };
        end(&mut coming.child, libc::SIGTERM);
        coming.child.wait().ok();
        forget_pid(&self.folder, name);
        Stand::Failed(self.failed(name, why))
    }

    /// Whether a signal has come that ends all of it.
    pub fn is_told() -> bool {
        TOLD.load(Ordering::Relaxed)
    }

    /// Watches until a signal; what ends by itself is started again.
    pub fn watch(&mut self) {
        while !Self::is_told() {
            std::thread::sleep(LOOK);
            for at in 0..self.parts.len() {
                self.look(at);
            }
        }
        say("ending\n");
    }

    /// Looks after a part without waiting for it: others may have to be started before it is ready.
    fn look(&mut self, at: usize) {
        let restart_after = self.restart_after;
        let part = &mut self.parts[at];
        let name = part.name.clone();
        match std::mem::replace(&mut part.life, Life::Runs) {
            Life::Runs => {
                let Ok(Some(status)) = part.child.try_wait() else { return };
                let seconds = restart_after.as_secs();
                say(&format!("{name} has ended ({status}); it is started again in {seconds} s\n"));
                part.life = Life::Again(Instant::now() + restart_after);
                forget_pid(&self.folder, &name);
            }
            Life::Again(at_time) if Instant::now() < at_time => part.life = Life::Again(at_time),
            Life::Again(_) => {
                let (command, config) = (part.command, part.config.clone());
                self.parts[at].life = match self.spawn(&name, command, &config) {
                    Ok(coming) => Life::Comes(Box::new(coming)),
                    Err(error) => {
                        say(&format!("{error}\n"));
                        Life::Again(Instant::now() + restart_after)
                    }
                };
            }
            Life::Comes(mut coming) => match self.stand(&name, &mut coming) {
                Stand::Coming => self.parts[at].life = Life::Comes(coming),
                Stand::Ready => {
                    self.parts[at].child = coming.child;
                    say(&format!("{name} is back\n"));
                }
                Stand::Failed(error) => {
                    say(&format!("{error}\n"));
                    self.parts[at].life = Life::Again(Instant::now() + restart_after);
                }
            },
        }
    }
}

impl Drop for Parts {
    /// The client goes first: it gives its volume back.
    fn drop(&mut self) {
        for part in self.parts.iter_mut().rev() {
            if let Life::Comes(coming) = std::mem::replace(&mut part.life, Life::Runs) {
                part.child = coming.child;
            }
            end(&mut part.child, libc::SIGTERM);
            let until = Instant::now() + END;
            while matches!(part.child.try_wait(), Ok(None)) && Instant::now() < until {
                std::thread::sleep(LOOK / 10);
            }
            part.child.kill().ok();
            part.child.wait().ok();
            forget_pid(&self.folder, &part.name);
        }
    }
}

fn end(child: &mut Child, signal: libc::c_int) {
    if matches!(child.try_wait(), Ok(None)) {
        // SAFETY: no memory is involved. The child was not waited for, so that its number is still its own.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
    }
}

fn pid_file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.pid"))
}

fn forget_pid(folder: &Path, name: &str) {
    fs::remove_file(pid_file(folder, name)).ok();
}

/// The process of a part.
pub fn pid(folder: &Path, name: &str) -> Result<libc::pid_t, Failure> {
    let path = pid_file(folder, name);
    let text = fs::read_to_string(&path).map_err(|error| {
        format!(
            "{}: {error}: is `weir pool up` running there, and has it such a node?",
            path.display()
        )
    })?;
    let pid: libc::pid_t = text
        .trim()
        .parse()
        .map_err(|_| format!("{}: holds no number of a process", path.display()))?;
    let runs = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let config = format!("{name}.toml");
    if !String::from_utf8_lossy(&runs).contains(&config) {
        return Err(format!(
            "{}: process {pid} is not this node: is `weir pool up` running there?",
            path.display()
        ));
    }
    Ok(pid)
}
