//! Why requests were slow, as a server tells it that really was: flash whose erases take long, and one shard.

use crate::client::{Client, READ, WRITE};
use crate::{Folder, http, pattern, start};
use serde_json::Value;
use serve::Server;

/// Flash that reads quickly and erases slowly.
const PROFILE: &str = r#"
name = "slow"
description = "erases that take 20 ms"
source = "none"
page_bytes = 4096
oob_bytes = 128
pages_per_block = 64
planes = 1
bits_per_cell = 1
pairing = "none"
read_ns = [20_000]
program_ns = [200_000]
erase_ns = 20_000_000
command_ns = 0
bus_ns_per_byte = 0.0
cache_read = true
cache_program = true
partial_read = true
endurance = 100_000
factory_bad_max = 0.02
ecc_bits_per_kib = 8
[rber]
epsilon = 8.34e-7
alpha = 3.30e-13
k = 1.71
beta = 5.56e-21
m = 2.49
n = 3.33
gamma = 6.26e-15
p = 1.76
q = 0.47
"#;

fn slow_flash(folder: &Folder) -> Server {
    std::fs::write(folder.0.join("slow.toml"), PROFILE).unwrap();
    let device = "[device]\nkind = \"memory\"\nprofile = \"slow.toml\"\ncapacity = \"16MiB\"\n\
                  op_percent = 60\nchannels = 2\nshards = 1";
    start(folder, device)
}

fn slow(server: &Server) -> Vec<Value> {
    let address = server.ready().http.unwrap();
    let (code, body) = http::over_tcp(address, "GET", "/slow", "Host: localhost\r\n", b"");
    assert_eq!(code, 200, "{body}");
    let value: Value = serde_json::from_str(&body).unwrap();
    value["slow"].as_array().unwrap().clone()
}

/// The microseconds of each cause of these requests, in all.
fn us_of(slow: &[Value], op: &str, cause: &str) -> f64 {
    let why = slow.iter().filter(|slow| slow["op"] == op).flat_map(|slow| slow["why"].as_array());
    let parts = why.flatten().filter(|part| part["cause"] == cause);
    parts.map(|part| part["us"].as_f64().unwrap()).sum()
}

/// Overwrites a volume until GC has work, reading beside it.
fn overwrite(client: &mut Client, rounds: u64) {
    let size = client.size;
    let block = pattern(1, 1 << 16);
    let mut random = flash::Random::new(7);
    for _ in 0..rounds {
        let mut sent = Vec::new();
        for _ in 0..16 {
            let offset = random.below(size >> 16) << 16;
            sent.push((client.send(WRITE, offset, 1 << 16).unwrap(), false));
            std::io::Write::write_all(&mut client.stream, &block).unwrap();
            let offset = random.below(size >> 12) << 12;
            sent.push((client.send(READ, offset, 4096).unwrap(), true));
        }
        for _ in 0..sent.len() {
            let (cookie, error) = client.reply().unwrap();
            assert_eq!(error, 0);
            if sent.contains(&(cookie, true)) {
                std::io::Read::read_exact(&mut client.stream, &mut [0; 4096]).unwrap();
            }
        }
    }
}

#[test]
fn slow_tells_the_slowest_first_with_all_of_their_time_and_erases_by_unit() {
    let folder = Folder::new();
    let server = slow_flash(&folder);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    assert_eq!(slow(&server), [Value::Null; 0], "nothing was slow yet");
    overwrite(&mut client, 30);
    let all = slow(&server);
    assert!(all.len() >= 20 && all.len() <= 100, "{}", all.len());
    let totals: Vec<f64> = all.iter().map(|slow| slow["total_us"].as_f64().unwrap()).collect();
    assert!(totals.is_sorted_by(|a, b| a >= b), "slowest first: {totals:?}");
    for slow in &all {
        let why = slow["why"].as_array().unwrap();
        let sum: f64 = why.iter().map(|part| part["us"].as_f64().unwrap()).sum();
        let total = slow["total_us"].as_f64().unwrap();
        assert!(sum <= total + 1.0 && sum > 0.9 * total, "what is told is all of it: {slow}");
        for part in why.iter().filter(|part| part["cause"] == "erase") {
            let unit = part["unit"].as_u64().expect("an erase has a unit");
            let told = slow["told"].as_str().unwrap();
            let short = part["us"].as_f64().unwrap() * 40.0 < total;
            assert!(short || told.contains(&format!("an erase of unit {unit}")), "{slow}");
        }
    }
    // How much of what is a matter of the machine's load: tests in virtual time say that it is right.
    let erases = us_of(&all, "read", "erase") + us_of(&all, "write", "erase");
    assert!(erases > 0.0, "{all:#?}");
    let gc = ["gc_pace", "gc_free_band"].map(|cause| us_of(&all, "write", cause));
    assert!(gc.iter().sum::<f64>() > 0.0, "{all:#?}");
    server.shut_down().unwrap();
}

#[test]
fn a_new_device_has_no_gc_to_wait_for_and_full_queues_are_told_as_such() {
    let folder = Folder::new();
    let server = slow_flash(&folder);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    // 256 pages of 200 us on two units: most wait until a unit takes them.
    let block = pattern(1, 1 << 20);
    for at in 0..4 {
        client.write(at << 20, &block).unwrap();
    }
    let all = slow(&server);
    let of = |cause: &str| us_of(&all, "write", cause);
    assert_eq!(of("gc_free_band") + of("gc_pace"), 0.0, "{all:#?}");
    assert!(of("unit_queues") > 0.0, "{all:#?}");
    server.shut_down().unwrap();
}

#[test]
fn the_status_has_the_five_slowest_and_where_the_time_of_all_went() {
    let folder = Folder::new();
    let server = slow_flash(&folder);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    overwrite(&mut client, 10);
    let address = server.ready().http.unwrap();
    let body = http::over_tcp(address, "GET", "/status", "Host: localhost\r\n", b"").1;
    let status: Value = serde_json::from_str(&body).unwrap();
    // What a core tells apart is of the device's time.
    for op in ["read", "write"] {
        let mean =
            |stage: &str| status["latency"]["stages"][stage][op]["mean_ns"].as_f64().unwrap();
        let apart: f64 = ["place", "queue", "medium", "safety"].map(mean).iter().sum();
        let device = mean("device");
        assert!(apart <= device * 1.01, "{op}: {apart} of {device}");
        assert!(mean("medium") > 0.0 && mean("queue") > 0.0, "{op}");
    }
    let units = status["shards"][0]["units"].as_array().unwrap();
    assert!(units.iter().all(|unit| unit["tier"] == "capacity" && unit["erases"].is_u64()));
    let programmed = |unit: &Value| unit["bytes_programmed"].as_u64().unwrap();
    let written = 10 * 16 * (1 << 16);
    assert!(units.iter().map(programmed).sum::<u64>() >= written, "{units:?}");
    let streams = status["shards"][0]["streams"].as_array().unwrap();
    let by_handle = |stream: &Value| stream["bytes_host"][0].as_u64().unwrap();
    assert!(streams.iter().map(by_handle).sum::<u64>() >= written - (1 << 20), "{streams:?}");
    let told =
        |slow: &[Value]| -> Vec<Value> { slow.iter().map(|slow| slow["told"].clone()).collect() };
    let five = told(status["slow"].as_array().unwrap());
    assert_eq!(five, told(&slow(&server))[..5]);
    server.shut_down().unwrap();
}
