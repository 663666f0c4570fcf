//! Two servers of one device, as from two machines: the first was stopped (a machine that hangs, a guest that
//! is moved) with much under way, and goes on after the second one has the device.

use crate::nbd::{Client, FLAG_FUA, WRITE};
use crate::scratch::Scratch;
use crate::server::Server;
use std::fs;
use std::time::Duration;

const BLOCK: usize = flash::BLOCK_BYTES;
const DEPTH: u64 = 32;

/// Keeps writes in flight until the server says that it is over.
fn write_on(mut client: Client, seed: u64) {
    let data = vec![7; BLOCK];
    let blocks = (0..).map(|i: u64| (i * 7919 + seed * 104_729) % 16_384);
    for (sent, block) in (0..).zip(blocks) {
        let at = block * BLOCK as u64;
        let went = client.send(WRITE, FLAG_FUA, at, BLOCK as u32, &data);
        if went.is_err() || sent >= DEPTH && client.receive().is_err() {
            return;
        }
    }
}

#[test]
fn a_server_that_goes_on_after_another_took_its_device_ends_with_status_2() {
    let args = ["--profile", "slc", "--capacity", "64MiB", "--shards", "2"];
    for round in 0..6 {
        let scratch = Scratch::new("fenced");
        let (socket, control) = (scratch.file("nbd2.sock"), scratch.file("control2.sock"));
        let mut old = Server::start(&scratch, &args);
        let clients: Vec<Client> = (0..8).map(|_| old.connect()).collect();
        std::thread::scope(|scope| {
            for (seed, client) in (round * 100..).zip(clients) {
                scope.spawn(move || write_on(client, seed));
            }
            std::thread::sleep(Duration::from_millis(100 + 37 * round));
            old.signal(libc::SIGSTOP);
            fs::remove_file(scratch.data().join("lock")).expect("the lock goes");
            let new = Server::start(&scratch, &["--socket", &socket, "--control", &control]);
            old.signal(libc::SIGCONT);
            let status = old.wait().expect("it ends by itself");
            let log = old.log();
            assert_eq!(status.code(), Some(2), "round {round}: {log}");
            assert!(log.contains("another server has opened the device"), "{log}");
            assert!(!log.contains("panicked at"), "{log}");
            new.terminate();
        });
    }
}
