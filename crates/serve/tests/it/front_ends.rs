//! Sockets, limits, shutdown, HTTP: what surrounds the requests.

use crate::client::{Client, READ, WRITE};
use crate::{FOLDER, Folder, MEMORY, config, http, pattern, start};
use serve::{ServeError, Server};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

#[test]
fn the_client_beyond_the_limit_is_refused_and_the_others_go_on() {
    let folder = Folder::new();
    let server = start(&folder, MEMORY);
    let mut clients: Vec<Client> =
        (0..100).map(|_| Client::connect(&folder.socket(), "data").unwrap()).collect();
    assert!(Client::connect(&folder.socket(), "data").is_err());
    for (i, client) in clients.iter_mut().enumerate() {
        client.write(i as u64 * 4096, &[i as u8; 4096]).unwrap();
    }
    let mut last = clients.pop().unwrap();
    assert_eq!(last.read(50 * 4096, 4096), Ok(vec![50; 4096]));
    server.shut_down().unwrap();
}

#[test]
fn clients_that_do_not_read_their_replies_hold_up_nobody() {
    let folder = Folder::new();
    let server = start(&folder, MEMORY);
    let mut stallers = Vec::new();
    for _ in 0..4 {
        let mut staller = Client::connect(&folder.socket(), "data").unwrap();
        // Far more than the socket and the connection's share of buffers take; the server must
        // stop reading. The writer gives up when it blocks.
        let patience = std::time::Duration::from_millis(300);
        staller.stream.set_write_timeout(Some(patience)).unwrap();
        let mut sent = 0;
        while sent < 100_000 && staller.send(READ, 0, 1 << 20).is_ok() {
            sent += 1;
        }
        assert!(sent < 100_000, "the server took every request of a client that reads nothing");
        stallers.push(staller);
    }
    // One read is being sent and one waits for that: no more is begun.
    assert!(buffer_bytes(&server) <= 4 * (2 << 20));
    // These hold more than all request buffers: they announce data that never comes.
    let len = (stallers[0].size as u32).min(32 << 20);
    for _ in 0..(64 << 20) / len + 1 {
        let mut staller = Client::connect(&folder.socket(), "data").unwrap();
        staller.send(WRITE, 0, len).unwrap();
        stallers.push(staller);
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while buffer_bytes(&server) < 64 << 20 {
        assert!(std::time::Instant::now() < deadline, "{} bytes", buffer_bytes(&server));
    }
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    let bytes = pattern(5, 100_000);
    client.write(777, &bytes).unwrap();
    assert!(client.read(777, 100_000).unwrap() == bytes);
    assert!(buffer_bytes(&server) <= (64 << 20) + stallers.len() * (32 << 20));
    drop(stallers);
    client.flush().unwrap();
    server.shut_down().unwrap();
}

#[test]
fn a_client_that_never_chooses_an_export_is_dropped_in_time() {
    let folder = Folder::new();
    let server = start(&folder, MEMORY);
    let mut silent = UnixStream::connect(folder.socket()).unwrap();
    let mut all = Vec::new();
    silent.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 18, "the greeting, then the end");
    server.shut_down().unwrap();
}

fn buffer_bytes(server: &Server) -> usize {
    let (sender, receiver) = mpsc::channel();
    server.control().status(0, serve::Wanted::default(), move |status| {
        sender.send(status.buffer_bytes).unwrap()
    });
    receiver.recv().unwrap()
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_payload_leaves_nothing_behind() {
    let folder = Folder::new();
    let server = start(&folder, MEMORY);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    client.write(0, &[7; 300_000]).unwrap();
    for cut in [0, 1, 4096, 100_000] {
        let mut vanishing = Client::connect(&folder.socket(), "data").unwrap();
        vanishing.send(WRITE, 0, 300_000).unwrap();
        vanishing.stream.write_all(&vec![9; cut]).unwrap();
        drop(vanishing);
    }
    let mut vanishing = Client::connect(&folder.socket(), "data").unwrap();
    for _ in 0..50 {
        vanishing.send(READ, 0, 300_000).unwrap();
    }
    drop(vanishing);
    assert_eq!(client.read(0, 300_000), Ok(vec![7; 300_000]));
    // The last client's buffers come back when the kernel has told that it is gone.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while buffer_bytes(&server) > 512 << 10 {
        assert!(std::time::Instant::now() < deadline, "buffers leaked");
        client.flush().unwrap();
    }
    server.shut_down().unwrap();
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_taken_over() {
    let folder = Folder::new();
    let server = start(&folder, MEMORY);
    let error = Server::start(&config(&folder.0, MEMORY)).err().expect("refused");
    assert!(error.to_string().contains("in use"), "{error}");
    server.shut_down().unwrap();
    assert!(!folder.socket().exists());
    // A server that was killed leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(folder.socket()).unwrap());
    assert!(UnixStream::connect(folder.socket()).is_err());
    let server = start(&folder, MEMORY);
    Client::connect(&folder.socket(), "data").unwrap();
    server.shut_down().unwrap();
    std::fs::write(folder.socket(), "precious").unwrap();
    let error = Server::start(&config(&folder.0, MEMORY)).err().expect("refused");
    assert!(matches!(error, ServeError::Listen { .. }), "{error}");
    assert_eq!(std::fs::read(folder.socket()).unwrap(), b"precious");
}

#[test]
fn a_shutdown_answers_what_is_in_flight() {
    let folder = Folder::new();
    let server = start(&folder, FOLDER);
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    client.write(0, &[1; 65536]).unwrap();
    server.shut_down().unwrap();
    let mut rest = Vec::new();
    client.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
}

fn get(server: &Server, path: &str) -> (u16, String) {
    let address = server.ready().http.expect("HTTP is on");
    http::over_tcp(address, "GET", path, "Host: localhost\r\n", b"")
}

fn switch(server: &Server, body: &str) -> (u16, String) {
    let control = server.ready().control.as_ref().expect("a control socket");
    let head = "Host: weir\r\nContent-Type: application/json\r\n";
    http::over_unix(control, "POST", "/policy", head, body.as_bytes())
}

/// A value is as the schema says: no key is missing and none is there that the schema does not tell.
fn conforms(
    api: &serde_json::Value,
    schema: &serde_json::Value,
    value: &serde_json::Value,
    place: &str,
) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').unwrap();
        return conforms(api, api.pointer(pointer).unwrap(), value, place);
    }
    if let Some(kinds) = schema["anyOf"].as_array() {
        let resolved = kinds.iter().map(|kind| {
            let pointer = kind["$ref"].as_str().and_then(|name| name.strip_prefix('#'));
            pointer.map_or(kind, |pointer| api.pointer(pointer).unwrap())
        });
        let knows = |kind: &&serde_json::Value| match value.as_object() {
            Some(object) => object.keys().all(|key| kind["properties"].get(key).is_some()),
            None => kind["type"] == "null",
        };
        let kind = resolved.clone().find(knows);
        let kind = kind.unwrap_or_else(|| panic!("{place} is none of its kinds: {value}"));
        return conforms(api, kind, value, place);
    }
    let kind = match value {
        serde_json::Value::Object(_) => "object",
        serde_json::Value::Array(_) => "array",
        serde_json::Value::String(_) => "string",
        serde_json::Value::Bool(_) => "boolean",
        serde_json::Value::Number(number) if number.is_f64() => "number",
        serde_json::Value::Number(_) => "integer",
        serde_json::Value::Null => "null",
    };
    let kinds = &schema["type"];
    let fits = kinds == kind || kinds.as_array().is_some_and(|kinds| kinds.contains(&kind.into()));
    assert!(fits, "{place} is {kind}, the schema says {kinds}");
    for item in value.as_array().into_iter().flatten() {
        conforms(api, &schema["items"], item, &format!("{place}[]"));
    }
    let Some(object) = value.as_object() else { return };
    let rest = schema.get("additionalProperties").filter(|rest| rest.is_object());
    for (key, value) in object {
        let told = schema["properties"].get(key).or(rest);
        let told = told.unwrap_or_else(|| panic!("{place}.{key} is not in the schema"));
        conforms(api, told, value, &format!("{place}.{key}"));
    }
    for key in schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key) {
        let needed = schema["required"].as_array();
        if needed.is_some_and(|needed| !needed.contains(&key.as_str().into())) {
            continue;
        }
        assert!(object.contains_key(key), "{place}.{key} is missing");
    }
}

#[test]
fn status_metrics_and_policies_are_served_over_http() {
    let folder = Folder::new();
    let server = start(&folder, &format!("{MEMORY}\nshards = 2"));
    let mut client = Client::connect(&folder.socket(), "data").unwrap();
    client.write(0, &pattern(1, 4 << 20)).unwrap();
    client.flush().unwrap();
    let (code, body) = get(&server, "/status");
    assert_eq!(code, 200, "{body}");
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    let writes = &status["volumes"][0]["latency"]["write"];
    assert_eq!((&writes["bytes"], &writes["errors"]), (&(4 << 20).into(), &0.into()), "{writes}");
    let (median, longest) = (writes["p50_ns"].as_u64(), writes["max_ns"].as_u64());
    assert!(median > Some(0) && median <= longest, "{writes}");
    assert_eq!(status["latency"]["requests"]["write"], *writes, "there is one volume");
    assert_eq!(status["latency"]["stages"]["device"]["write"]["count"], writes["count"]);
    assert_eq!(status["counters"]["host_blocks_written"], 1024);
    assert_eq!(status["shards"].as_array().unwrap().len(), 2);
    assert!(status["waf"].as_f64().unwrap() >= 1.0, "{}", status["waf"]);
    assert_eq!(status["shards"][0]["policies"]["victim"], "greedy");
    assert!(!status["shards"][0]["wear"].as_array().unwrap().is_empty());
    let (code, body) = switch(&server, r#"{"decision":"victim","name":"fifo"}"#);
    assert_eq!(code, 200, "{body}");
    let (code, body) = switch(&server, r#"{"decision":"victim","name":"best"}"#);
    assert_eq!(code, 400, "{body}");
    let (_, body) = get(&server, "/status");
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status["shards"][1]["policies"]["victim"], "fifo");
    let (code, body) = get(&server, "/metrics");
    assert_eq!(code, 200);
    assert!(body.contains("weir_host_blocks_written_total{shard=\"0\"}"), "{body}");
    let writes = "weir_request_duration_seconds_count{volume=\"data\",op=\"write\"}";
    assert!(body.contains(writes) && !body.contains("# EOF"), "{body}");
    let open = "Host: localhost\r\nAccept: application/openmetrics-text\r\n";
    let (code, body) = http::over_tcp(server.ready().http.unwrap(), "GET", "/metrics", open, b"");
    assert!(code == 200 && body.contains(writes) && body.contains("# EOF"), "{body}");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(get(&server, path).0, 200, "{path}");
    }
    assert!(body.contains("weir_unit_bands_free{shard=\"1\",unit=\"0\"}"), "{body}");
    let (code, body) = get(&server, "/openapi.json");
    assert_eq!(code, 200);
    let api: serde_json::Value = serde_json::from_str(&body).unwrap();
    conforms(&api, &api["components"]["schemas"]["Status"], &status, "status");
    for (path, methods) in api["paths"].as_object().unwrap() {
        let expected = match methods.get("get") {
            // Data, and the keys to them, are not told over TCP without a token.
            Some(_) if path.starts_with("/blocks") => 403,
            Some(_) => 200,
            None => 405,
        };
        let asked = path.replace("{unit}", "0").replace("{file}", "page.js");
        assert_eq!(get(&server, &asked).0, expected, "{path}");
    }
    let (_, history) = get(&server, "/history");
    let history: serde_json::Value = serde_json::from_str(&history).unwrap();
    conforms(&api, &api["components"]["schemas"]["History"], &history, "history");
    assert_eq!(get(&server, "/history?since=soon").0, 400);
    assert_eq!(get(&server, "/").0, 200);
    assert_eq!(get(&server, "/page/index.html").0, 404, "it has one address");
    server.shut_down().unwrap();
}

#[test]
fn the_streams_of_a_volume_are_switched_by_its_name_while_it_is_written() {
    let folder = Folder::new();
    let volume = |name: &str, more: &str| {
        format!("\n[[volume]]\nname = \"{name}\"\nsize = \"16MiB\"\n{more}")
    };
    let config = format!("{MEMORY}{}{}", volume("a", ""), volume("b", "streams = \"sepbit\""));
    let server = start(&folder, &config);
    let mut client = Client::connect(&folder.socket(), "b").unwrap();
    let streams = |server: &Server| -> Vec<String> {
        let status: serde_json::Value = serde_json::from_str(&get(server, "/status").1).unwrap();
        let all = status["shards"][0]["streams"].as_array().unwrap().clone();
        all.iter().map(|one| one["stream"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(streams(&server), ["none", "sepbit", "none"]);
    for (round, name) in [(1, "sfr:handles=4"), (2, "multiq"), (3, "none"), (4, "sepbit")] {
        client.write(0, &pattern(round, 8 << 20)).unwrap();
        let body = format!(r#"{{"decision":"stream/b","name":"{name}"}}"#);
        assert_eq!(switch(&server, &body).0, 200, "{name}");
        assert_eq!(streams(&server), ["none", name, "none"]);
        client.write(8 << 20, &pattern(round, 8 << 20)).unwrap();
        assert!(client.read(0, 16 << 20).unwrap() == pattern(round, 8 << 20).repeat(2), "{name}");
    }
    for (wrong, said) in [
        (r#"{"decision":"stream/c","name":"sfr"}"#, "there are a, b"),
        (r#"{"decision":"stream","name":"sfrr"}"#, "sepbit"),
        (r#"{"decision":"stream","name":"sfr:handles=99"}"#, "from 1 to 16"),
    ] {
        let (code, body) = switch(&server, wrong);
        assert!(code == 400 && body.contains(said), "{wrong}: {code} {body}");
    }
    assert_eq!(switch(&server, r#"{"decision":"stream","name":"sfr"}"#).0, 200);
    assert_eq!(streams(&server), ["sfr", "sfr", "sfr"]);
    server.shut_down().unwrap();
}

#[test]
fn the_mapping_of_a_volume_is_switched_while_it_is_served() {
    let folder = Folder::new();
    let volume =
        |name: &str, mib: u32| format!("[[volume]]\nname = \"{name}\"\nsize = \"{mib}MiB\"\n");
    let config = format!(
        "[device]\nkind = \"memory\"\nprofile = \"instant\"\ncapacity = \"256MiB\"\n[ftl]\n\
         map_memory = \"128KiB\"\nmap_piece_blocks = 64\n{}{}",
        volume("a", 16),
        volume("b", 128)
    );
    let server = start(&folder, &config);
    let mut client = Client::connect(&folder.socket(), "a").unwrap();
    client.write(0, &pattern(1, 16 << 20)).unwrap();
    let status =
        || -> serde_json::Value { serde_json::from_str(&get(&server, "/status").1).unwrap() };
    let mapping = |at: usize| status()["shards"][0]["mappings"][at]["mapping"].clone();
    assert_eq!((mapping(0), mapping(1)), ("cached".into(), "cached".into()));
    let (code, body) = switch(&server, r#"{"decision":"mapping/a","name":"page"}"#);
    assert_eq!(code, 200, "{body}");
    assert_eq!((mapping(0), mapping(1)), ("page".into(), "cached".into()));
    assert!(client.read(0, 16 << 20).unwrap() == pattern(1, 16 << 20));
    for (wrong, said) in [
        (r#"{"decision":"mapping/b","name":"page"}"#, "map_memory"),
        (r#"{"decision":"mapping","name":"page"}"#, "map_memory"),
        (r#"{"decision":"mapping/c","name":"page"}"#, "there are a, b"),
        (r#"{"decision":"mapping/a","name":"block"}"#, "page, cached"),
    ] {
        let (code, body) = switch(&server, wrong);
        assert!(code == 400 && body.contains(said), "{wrong}: {code} {body}");
    }
    assert_eq!((mapping(0), mapping(1)), ("page".into(), "cached".into()));
    let (code, body) = switch(&server, r#"{"decision":"mapping","name":"cached"}"#);
    assert_eq!(code, 200, "{body}");
    let shard = &status()["shards"][0];
    let last = shard["policy_switches"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["decision"], &last["from"]), (&"mapping".into(), &"page, cached".into()));
    assert_eq!(shard["policy_switches"][0]["decision"], "mapping/a");
    assert!(client.read(0, 16 << 20).unwrap() == pattern(1, 16 << 20));
    server.shut_down().unwrap();
}

#[test]
fn raw_units_tell_their_state_over_http_and_keep_it_apart() {
    let folder = Folder::new();
    let raw = "[device]\nkind = \"memory\"\nmode = \"raw\"\ncapacity = \"32MiB\"\n[raw]\ngang = 2";
    let server = start(&folder, raw);
    let shape = server.ready().raw.expect("raw units");
    assert_eq!(server.ready().volumes.len(), 4);
    let block = shape.raw_block_bytes();
    let mut unit = Client::connect(&folder.socket(), "unit/1").unwrap();
    assert_eq!(unit.size, u64::from(shape.lanes.raw_blocks) * block);
    unit.write(2 * block, &pattern(5, block as usize)).unwrap();
    let json = |path: &str| -> serde_json::Value {
        let (code, body) = get(&server, path);
        assert_eq!(code, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    let api = json("/openapi.json");
    let paths = [("/status", "Status"), ("/units", "Units"), ("/units/1", "RawUnit")];
    for (path, schema) in paths {
        conforms(&api, &api["components"]["schemas"][schema], &json(path), path);
    }
    let control = server.ready().control.clone().unwrap();
    let blocks = http::over_unix(&control, "GET", "/blocks", "Host: weir\r\n", b"").1;
    let blocks: serde_json::Value = serde_json::from_str(&blocks).unwrap();
    conforms(&api, &api["components"]["schemas"]["Blocks"], &blocks, "/blocks");
    let units = json("/units");
    assert_eq!((&units["mode"], units["raw"]["gang"].as_u64()), (&"raw".into(), Some(2)));
    let full: Vec<u64> = units["units"].as_array().unwrap().iter().map(full_of).collect();
    assert_eq!(full, [0, 1, 0, 0]);
    let blocks = &json("/units/1")["raw_blocks"];
    assert_eq!((&blocks[0]["raw_block"], &blocks[0]["state"]), (&2.into(), &"full".into()));
    assert_eq!(blocks.as_array().unwrap().len(), 1);
    for wrong in ["/units/4", "/units/x", "/units/-1"] {
        assert_eq!(get(&server, wrong).0, 404, "{wrong}");
    }
    let (code, body) = switch(&server, r#"{"decision":"victim","name":"fifo"}"#);
    assert!(code == 400 && body.contains("raw units"), "{body}");
    let (_, metrics) = get(&server, "/metrics");
    for name in ["weir_unit_raw_blocks_full{shard=\"0\",unit=\"1\"} 1", "weir_lane_records_total"] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    assert!(!metrics.contains("weir_bands_free"), "what only the FTL has: {metrics}");
    // Write zeroes is neither offered nor taken.
    assert_eq!(unit.flags & 1 << 6, 0);
    assert_eq!(unit.simple(crate::client::ZEROES, 0, 4096), Err(95));
    server.shut_down().unwrap();
}

fn full_of(unit: &serde_json::Value) -> u64 {
    unit["raw_blocks_full"].as_u64().unwrap()
}
