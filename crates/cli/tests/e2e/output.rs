//! What a command does with its output: told to a full disk, to a reader that goes away, of a server that does not
//! answer.

use crate::scratch::Scratch;
use crate::server::{SMALL, Server};
use crate::tools::{root_and, said, weir, weir_path};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_full_disk_behind_standard_output_is_an_error_and_not_the_end_of_a_command() {
    let scratch = Scratch::new("full-output");
    let server = Server::start(&scratch, SMALL);
    let data = scratch.file("data");
    for args in [
        &["status", "--json", "--data", &data][..],
        &["status", "--data", &data],
        &["top", "--count", "1", "--interval", "0.1", "--data", &data],
        &["ctl", "policy", "list", "--data", &data],
        &["lab", "devices"],
        &["completions", "bash"],
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
        let output = Command::new(weir_path()).args(args).stdout(full).output().expect("it runs");
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(
            text.contains("standard output") && text.contains("No space left"),
            "{args:?}: {text}"
        );
    }
    server.terminate();
}

#[test]
fn top_ends_with_its_reader_and_prints_one_line_of_json_a_look() {
    let scratch = Scratch::new("top-reader");
    let server = Server::start(&scratch, SMALL);
    let data = scratch.file("data");
    for json in [&[][..], &["--json"]] {
        let mut top = Command::new(weir_path())
            .args(["top", "--interval", "0.05", "--data", &data])
            .args(json)
            .env("TERM", "dumb")
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut out = BufReader::new(top.stdout.take().expect("a pipe"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it prints");
        assert!(!line.contains('\x1b'), "no terminal is cleared: {line:?}");
        drop(out);
        let begun = Instant::now();
        let status = loop {
            match top.try_wait().expect("it is ours") {
                Some(status) => break status,
                None => assert!(begun.elapsed() < Duration::from_secs(60), "it goes on"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
    }
    let args = ["top", "--json", "--count", "2", "--interval", "0.05", "--data", &data];
    let text = said(&weir(&args));
    let looks: Vec<_> = text.lines().map(serde_json::from_str::<serde_json::Value>).collect();
    assert!(looks.len() == 2 && looks.iter().all(Result::is_ok), "{text}");
    server.terminate();
}

#[test]
fn a_server_that_is_stopped_is_told_of_as_such() {
    let scratch = Scratch::new("stopped");
    let server = Server::start(&scratch, SMALL);
    server.signal(libc::SIGSTOP);
    let asked = weir(&["status", "--data", &scratch.file("data")]);
    server.signal(libc::SIGCONT);
    let text = said(&asked);
    assert_eq!(asked.status.code(), Some(2), "{text}");
    assert!(text.contains("no answer within") && text.contains("stopped, or stuck"), "{text}");
    server.terminate();
}

/// The journal's socket, held by the test where no systemd has it.
struct Journal(UnixDatagram);

const JOURNAL: &str = "/run/systemd/journal/socket";

impl Journal {
    fn new(test: &str) -> Option<Self> {
        if Path::new(JOURNAL).exists() {
            // It is somebody's: the entries would be in his journal.
            return None;
        }
        if !root_and(test, "/run") {
            return None;
        }
        fs::create_dir_all(Path::new(JOURNAL).parent().expect("a folder")).expect("a folder");
        let socket = UnixDatagram::bind(JOURNAL).expect("nobody has it");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Some(Self(socket))
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = fs::remove_file(JOURNAL);
    }
}

#[test]
fn the_journal_gets_each_value_as_a_field_and_a_server_without_one_serves() {
    let (scratch, more) = (Scratch::new("journal"), ["--log-format", "journald", "--log", "info"]);
    let args = [SMALL, &more].concat();
    let journal = Journal::new("the_journal_gets_each_value_as_a_field");
    let server = Server::start(&scratch, &args);
    drop(server.connect());
    if let Some(Journal(socket)) = &journal {
        let mut entry = [0; 64 << 10];
        loop {
            let len = socket.recv(&mut entry).expect("a client came and went");
            // The first datagram asks whether there is a journal, and is empty.
            if len == 0 {
                continue;
            }
            let text = String::from_utf8_lossy(&entry[..len]);
            assert!(text.contains("SYSLOG_IDENTIFIER") && text.contains("weir"), "{text}");
            if text.contains("F_CLIENT") || text.contains("F_VOLUME") {
                break;
            }
        }
    }
    drop(journal);
    server.terminate();
    if !Path::new(JOURNAL).exists() {
        let server = Server::start(&scratch, &args);
        assert!(server.log().contains("systemd's journal"), "{}", server.log());
        server.terminate();
    }
}

#[test]
fn top_ends_with_its_terminal_also_where_nobody_tells_it() {
    let scratch = Scratch::new("top-terminal");
    let server = Server::start(&scratch, SMALL);
    let (mut master, slave) = terminal();
    let mut top = Command::new(weir_path());
    top.args(["top", "--data", &scratch.file("data")]).env("TERM", "xterm");
    top.stdin(slave.try_clone().expect("a descriptor"));
    top.stdout(slave.try_clone().expect("a descriptor")).stderr(slave);
    // SAFETY: signal may be called between fork and exec.
    unsafe {
        top.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut child = top.spawn().expect("it runs");
    // What it was started with is open here still, until this goes.
    drop(top);
    let mut drawn = [0; 4096];
    assert!(master.read(&mut drawn).expect("it draws") > 0);
    drop(master);
    let begun = Instant::now();
    while child.try_wait().expect("it is ours").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it goes on without a terminal");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.terminate();
}

/// Both ends of a terminal of 40 lines; no process that is started meanwhile has one of them.
fn terminal() -> (File, File) {
    let open = |path: &str| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY).open(path).expect("a terminal")
    };
    let master = open("/dev/ptmx");
    let mut name = [0u8; 64];
    let size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open, and what is pointed to is as long as is said.
    let done = unsafe {
        libc::unlockpt(master.as_raw_fd())
            | libc::ptsname_r(master.as_raw_fd(), name.as_mut_ptr().cast(), name.len())
            | libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &size)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let name = std::ffi::CStr::from_bytes_until_nul(&name).expect("a name");
    let slave = open(name.to_str().expect("a name of ASCII"));
    (master, slave)
}
