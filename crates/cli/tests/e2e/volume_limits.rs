//! Limits of a volume: they hold for all its clients over all shards, keep nobody else waiting, are told, and go at once.

use crate::nbd::{Client, READ, WRITE};
use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{run, said, weir};
use crate::volume_tool::volume;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const BLOCK: u32 = flash::BLOCK_BYTES as u32;
/// Longest until what waits for nothing is answered.
const PATIENCE: Duration = Duration::from_secs(30);
const ESHUTDOWN: u32 = 108;

fn start(scratch: &Scratch, limits: &str) -> Server {
    let text = format!(
        "[device]\nprofile = \"instant\"\nshards = 2\ncapacity = \"64MiB\"\n\
         [[volume]]\nname = \"limited\"\nsize = \"16MiB\"\n{limits}\
         [[volume]]\nname = \"free\"\nsize = \"16MiB\"\n"
    );
    let path = scratch.file("weir.toml");
    fs::write(&path, text).expect("a config");
    Server::start(scratch, &["--config", &path])
}

/// Asks for so many blocks, one request each, and does not wait for them.
fn ask(client: &mut Client, command: u16, count: u32) {
    for block in 0..count {
        let data = if command == WRITE { vec![5; BLOCK as usize] } else { Vec::new() };
        let offset = u64::from(block * BLOCK);
        client.send(command, 0, offset, BLOCK, &data).expect("the request is sent");
    }
}

fn answers(client: &mut Client, count: u32) {
    for _ in 0..count {
        let answer = client.receive().expect("an answer");
        assert_eq!(answer.error, 0);
    }
}

fn status(scratch: &Scratch) -> Value {
    let data = scratch.data();
    let output = weir(&["status", "--json", "--data", data.to_str().expect("UTF-8")]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", said(&output)))
}

fn waiting(scratch: &Scratch) -> u64 {
    let status = status(scratch);
    let shards = status["shards"].as_array().expect("shards");
    shards.iter().map(|shard| shard["requests_limited"].as_u64().expect("a number")).sum()
}

#[test]
fn a_limit_holds_for_all_clients_of_a_volume_together_and_keeps_nobody_else_waiting() {
    let scratch = Scratch::new("limits");
    let server = start(&scratch, "iops = 20\nburst = \"50ms\"\n");
    // Clients of both shards.
    let mut clients: Vec<Client> = (0..4).map(|_| server.connect_to("limited")).collect();
    let begun = Instant::now();
    for client in &mut clients {
        ask(client, READ, 10);
    }
    let mut free = server.connect_to("free");
    ask(&mut free, WRITE, 100);
    answers(&mut free, 100);
    assert!(waiting(&scratch) > 0, "nobody waits");
    for client in &mut clients {
        answers(client, 10);
    }
    // 40 of them at 20 a second; two go at once, and one more for another shard.
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(1750), "{took:?}");
    assert_eq!(waiting(&scratch), 0);
    let slow = run("curl", &["-sS", &format!("http://{}/slow", server.http())]);
    let slow: Value = serde_json::from_str(&slow).expect("JSON");
    let first = &slow["slow"][0];
    assert_eq!((&first["volume"], &first["why"][0]["cause"]), (&"limited".into(), &"limit".into()));
    server.terminate();
}

#[test]
fn writes_wait_with_their_data_and_bytes_are_limited_too() {
    let scratch = Scratch::new("limitbytes");
    let server = start(&scratch, "");
    let told = volume(&scratch, &["limit", "limited", "--bandwidth", "64KiB", "--burst", "1ms"]);
    assert!(told.contains("64 KiB a second"), "{told}");
    let mut client = server.connect_to("limited");
    let begun = Instant::now();
    ask(&mut client, WRITE, 20);
    answers(&mut client, 20);
    // The first goes at once; 19 blocks of 4 KiB are paid for before the last one.
    assert!(begun.elapsed() >= Duration::from_millis(1150), "{:?}", begun.elapsed());
    assert!(client.read(0, 4 * BLOCK).iter().all(|&byte| byte == 5));
    server.terminate();
}

#[test]
fn a_limit_that_is_lifted_lets_in_at_once_who_waits() {
    let scratch = Scratch::new("limitlift");
    let server = start(&scratch, "iops = 1\n");
    let mut clients = [server.connect_to("limited"), server.connect_to("limited")];
    clients.iter_mut().for_each(|client| ask(client, READ, 100));
    let list = volume(&scratch, &["list"]);
    assert!(list.contains("1 requests a second"), "{list}");
    let begun = Instant::now();
    volume(&scratch, &["limit", "limited"]);
    clients.iter_mut().for_each(|client| answers(client, 100));
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    server.terminate();
    // What the config says counts at each start.
    let server = start(&scratch, "iops = 1\n");
    let list = volume(&scratch, &["list"]);
    assert!(list.contains("1 requests a second"), "{list}");
    server.terminate();
    // Without it what was said last is on the device.
    let server = start(&scratch, "");
    volume(&scratch, &["limit", "free", "--iops", "7"]);
    server.terminate();
    let server = start(&scratch, "");
    let list = volume(&scratch, &["list"]);
    assert!(list.contains("7 requests a second"), "{list}");
    server.terminate();
}

#[test]
fn nobody_waits_for_a_volume_that_is_deleted_or_a_server_that_stops() {
    let scratch = Scratch::new("limitend");
    let server = start(&scratch, "iops = 1\n");
    let mut client = server.connect_to("limited");
    ask(&mut client, READ, 100);
    client.receive().expect("the first goes at once");
    volume(&scratch, &["delete", "limited"]);
    let mut refused = 0;
    while let Ok(answer) = client.receive() {
        assert!(answer.error == 0 || answer.error == ESHUTDOWN, "{answer:?}");
        refused += u32::from(answer.error == ESHUTDOWN);
    }
    assert!(refused > 50, "{refused}");

    volume(&scratch, &["limit", "free", "--iops", "1"]);
    let mut client = server.connect_to("free");
    ask(&mut client, WRITE, 100);
    client.receive().expect("the first goes at once");
    let mut gone = server.connect_to("free");
    ask(&mut gone, WRITE, 50);
    drop(gone);
    server.terminate();
}
