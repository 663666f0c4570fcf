//! A network of its own: each machine a network namespace, all on one bridge that leads nowhere else.
//!
//! Everybody knows everybody's link address for good, so that nothing has to be asked on the wire. That is how a path
//! is cut, too, and only in one direction if need be: who sends takes a link address for the right one that nobody
//! has. What is sent is lost without a word, as behind a broken switch.

use crate::tools::{is_root, output, run, said, search_path};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Nobody has it.
const NOWHERE: &str = "02:77:00:00:ff:ff";

/// Networks of this process, so that tests beside each other have names of their own.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// See the head of this file. It goes away with the test.
pub struct Network {
    name: String,
    machines: Vec<String>,
}

impl Network {
    /// One of these machines; why not, in words, where it cannot be had.
    pub fn new(machines: &[String]) -> Result<Self, String> {
        if !is_root() {
            return Err("it needs root and network namespaces".into());
        }
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-{}-{number}", std::process::id());
        let hub = format!("{name}-hub");
        let made = output("ip", &["netns", "add", &hub]);
        // From here on it is taken down whatever comes.
        let network = Self { name, machines: machines.to_vec() };
        let bridge = output("ip", &["-n", &hub, "link", "add", "br0", "type", "bridge"]);
        for tried in [made, bridge] {
            if !tried.status.success() {
                return Err(format!("no network namespace or no bridge in it: {}", said(&tried)));
            }
        }
        run("ip", &["-n", &hub, "link", "set", "br0", "up"]);
        for at in 0..machines.len() {
            network.plug_in(at, &hub);
        }
        Ok(network)
    }

    fn plug_in(&self, at: usize, hub: &str) {
        let space = self.space(&self.machines[at]);
        let port = format!("p{at}");
        run("ip", &["netns", "add", &space]);
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", &space];
        run("ip", &[&["-n", hub, "link", "add", &port][..], &pair].concat());
        run("ip", &["-n", hub, "link", "set", &port, "master", "br0", "up"]);
        run("ip", &["-n", &space, "link", "set", "lo", "up"]);
        run("ip", &["-n", &space, "link", "set", "eth0", "address", &hardware(at), "up"]);
        run("ip", &["-n", &space, "addr", "add", &format!("{}/24", address(at)), "dev", "eth0"]);
        for other in (0..self.machines.len()).filter(|&other| other != at) {
            self.sends_to(at, other, &hardware(other));
        }
    }

    /// Where a machine is found.
    pub fn address(&self, machine: &str) -> String {
        address(self.number(machine))
    }

    /// Everything that `from` sends to `to` is lost.
    pub fn cut(&self, from: &str, to: &str) {
        self.sends_to(self.number(from), self.number(to), NOWHERE);
    }

    /// It arrives again.
    pub fn mend(&self, from: &str, to: &str) {
        let to = self.number(to);
        self.sends_to(self.number(from), to, &hardware(to));
    }

    fn sends_to(&self, from: usize, to: usize, hardware: &str) {
        let space = self.space(&self.machines[from]);
        let path = ["lladdr", hardware, "dev", "eth0", "nud", "permanent"];
        run("ip", &[&["-n", &space, "neigh", "replace", &address(to)][..], &path].concat());
    }

    /// What a machine sends goes out no faster; `None`: as fast as it can. False where the system cannot do that.
    pub fn slow(&self, machine: &str, kbit_per_s: Option<u32>) -> bool {
        let space = self.space(machine);
        let on = ["-n", &space, "qdisc"];
        let Some(rate) = kbit_per_s.map(|rate| format!("{rate}kbit")) else {
            return output("tc", &[&on[..], &["del", "dev", "eth0", "root"]].concat())
                .status
                .success();
        };
        let shaped = ["root", "tbf", "rate", &rate, "burst", "32kb", "latency", "400ms"];
        let all = [&on[..], &["replace", "dev", "eth0"], &shaped].concat();
        output("tc", &all).status.success()
    }

    /// A program on a machine. Becomes that program by `exec`, so that the process is that of the program.
    pub fn command(&self, machine: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(machine))).arg(program);
        command.env("PATH", search_path());
        command
    }

    fn space(&self, machine: &str) -> String {
        format!("{}-{machine}", self.name)
    }

    fn number(&self, machine: &str) -> usize {
        let found = self.machines.iter().position(|name| name == machine);
        found.unwrap_or_else(|| panic!("{machine} is a machine of the network"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let hub = "hub".to_owned();
        for machine in self.machines.iter().chain([&hub]) {
            let space = self.space(machine);
            if PathBuf::from("/run/netns").join(&space).exists() {
                Command::new("ip")
                    .env("PATH", search_path())
                    .args(["netns", "del", &space])
                    .status()
                    .ok();
            }
        }
    }
}

fn address(at: usize) -> String {
    format!("10.77.0.{}", at + 1)
}

fn hardware(at: usize) -> String {
    format!("02:77:00:00:00:{:02x}", at + 1)
}

#[test]
fn a_path_is_cut_in_one_direction_and_mended() {
    let machines = ["a".to_owned(), "b".to_owned()];
    let network = match Network::new(&machines) {
        Ok(network) => network,
        Err(why) => return crate::tools::skipped("a_path_is_cut_in_one_direction", &why),
    };
    let arrives = |from: &str, to: &str| {
        let talks = format!(
            "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\ns.sendto(b'x',('{}',7))",
            network.address(to)
        );
        let hears = "import socket,sys\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                     s.bind(('',7))\nprint('bound',flush=True)\ns.settimeout(0.5)\ns.recv(1)";
        let mut listens = network.command(to, "/usr/bin/python3");
        listens.args(["-c", hears]).stdout(std::process::Stdio::piped());
        let mut listens = listens.stderr(std::process::Stdio::null()).spawn().expect("it starts");
        let mut bound = [0; 6];
        let out = listens.stdout.as_mut().expect("a pipe");
        std::io::Read::read_exact(out, &mut bound).expect("it listens");
        let sent = network.command(from, "/usr/bin/python3").args(["-c", &talks]).status();
        assert!(sent.expect("it starts").success());
        listens.wait().expect("it ends").success()
    };
    assert!(arrives("a", "b") && arrives("b", "a"));
    network.cut("a", "b");
    assert!(!arrives("a", "b") && arrives("b", "a"));
    network.mend("a", "b");
    assert!(arrives("a", "b"));
}
