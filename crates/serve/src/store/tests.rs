//! A store's HTTP by the client that programs have, over the engine in memory.

use super::*;
use crate::sockets::{Access, Speaks, listen_unix};
use ::store::remote::{Room, UnitRoom};
use ::store::services::{Engine, Memory as Model, PIECE_BYTES};
use client::http::request;
use client::store::{Cell, Range};
use client::{Error, Place};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(20);
/// A slow body is granted 2 s, and what it sent is worth 1.6 s more.
const SLOW_PATIENCE: Duration = Duration::from_secs(9);

/// A store that is served.
struct Served {
    client: client::Store,
    path: PathBuf,
    model: Arc<Model>,
    service: Arc<Service>,
    _http: Http,
    _socket: SocketFile,
}

impl Served {
    fn start(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-store-{}-{name}", std::process::id()));
        let asked = Speaks::WhenAsked("HEAD / HTTP/1.0\r\n\r\n");
        let (listener, socket) = listen_unix(&path, Access::OWNER, asked).unwrap();
        let model = Arc::new(Model::new(4));
        let service = Service::on(Arc::clone(&model) as Arc<dyn Engine>, |_| ()).unwrap();
        let service = Arc::new(service);
        let listeners = Listeners { control: Some(listener), tcp: None };
        let clients = Clients { nbd: 0, newcomers: 0, http: 0, control: 200 };
        let http = start(listeners, Rules::default(), clients, Arc::clone(&service)).unwrap();
        let client = client::Store::at(Path::new(&path));
        Self { client, path, model, service, _http: http, _socket: socket }
    }

    fn place(&self) -> Place {
        Place::Socket(self.path.clone())
    }

    /// Status and reason of any request.
    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, String) {
        let answer = request(&self.place(), (method, path), "", body, PATIENCE).unwrap();
        (answer.status, answer.reason())
    }
}

fn code(error: Error) -> u32 {
    match error {
        Error::Refused { code, .. } => code,
        other => panic!("{other}"),
    }
}

/// All values by the slices that they are in, page by page, are those of a range over all slices.
fn slices_side_by_side_are_what_the_store_has(store: &client::Store) {
    let slices = store.status().unwrap()["slices"].as_array().unwrap().len() as u32;
    let mut all = Vec::new();
    for slice in 0..slices {
        let mut from = None::<Vec<u8>>;
        loop {
            let (from_key, slice) = (from.as_deref(), Some(slice));
            let range = Range { from: from_key, limit: 3, slice, ..Range::default() };
            let (pairs, next) = store.scan(&range).unwrap();
            assert!(pairs.is_sorted());
            all.extend(pairs);
            from = next;
            if from.is_none() {
                break;
            }
        }
    }
    all.sort_unstable();
    assert!(slices > 1 && all == store.scan(&Range::default()).unwrap().0);
}

#[test]
fn values_of_any_bytes_are_put_got_scanned_and_deleted_one_by_one_and_many_at_a_time() {
    let served = Served::start("values");
    let store = &served.client;
    let keys: Vec<Vec<u8>> = (0..40_u8).map(|at| vec![at, b'/', 255, b'%', at]).collect();
    for key in &keys {
        store.put(key, &key.repeat(3)).unwrap();
    }
    store.put(b"empty", b"").unwrap();
    assert_eq!(store.get(&keys[7]).unwrap(), Some(keys[7].repeat(3)));
    assert_eq!(store.get(b"empty").unwrap(), Some(vec![]));
    assert_eq!(store.get(b"none").unwrap(), None);
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).chain([&b"none"[..]]).collect();
    let got = store.get_all(&asked).unwrap();
    assert_eq!((got[39].clone(), got[40].clone()), (Some(keys[39].repeat(3)), None));
    let (mut all, mut from) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let range = Range { from: from.as_deref(), limit: 7, ..Range::default() };
        let (pairs, next) = store.scan(&range).unwrap();
        all.extend(pairs.into_iter().map(|(key, _)| key));
        from = next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(all, keys.iter().cloned().chain([b"empty".to_vec()]).collect::<Vec<_>>());
    let changes = [(&keys[0][..], None), (&b"new"[..], Some(&b"1"[..])), (&keys[1][..], None)];
    store.write(changes).unwrap();
    let range = Range { to: Some(&[3]), ..Range::default() };
    assert_eq!(store.scan(&range).unwrap().0.len(), 1);
    slices_side_by_side_are_what_the_store_has(store);
    let (pairs, _) = store.scan(&Range { prefix: b"ne", ..Range::default() }).unwrap();
    assert_eq!(pairs, [(b"new".to_vec(), b"1".to_vec())]);
    store.delete(b"new").unwrap();
    store.delete(b"new").unwrap();
    assert_eq!(store.get(b"new").unwrap(), None);
    // What was answered is durable.
    assert!(served.model.cut().keys() >= 39);
    // One wrong change of many: none is made.
    let large = vec![0; ::store::services::VALUE_BYTES_MAX + 1];
    let refused = store.write([(&b"good"[..], Some(&b"1"[..])), (&b"bad"[..], Some(&large[..]))]);
    assert_eq!(code(refused.unwrap_err()), 413);
    assert_eq!(store.get(b"good").unwrap(), None);
    let (_, told) = served.answer("GET", "/kv?prefix=em&values=true", &[]);
    assert!(told.contains(r#""key":"empty","value":"""#), "{told}");
}

#[test]
fn cells_are_put_got_and_read_by_rows_and_ranges() {
    let served = Served::start("cells");
    let store = &served.client;
    for row in 0..30 {
        for column in ["x", "y/z", ""] {
            let cell = Cell::new("t/1", &format!("{row:02}"), "f", column);
            store.put_cell(&cell, format!("{row}{column}").as_bytes()).unwrap();
        }
    }
    store.put_cell(&Cell::new("u", "00", "g", "x"), b"other").unwrap();
    assert_eq!(store.cell(&Cell::new("t/1", "07", "f", "y/z")).unwrap(), Some(b"7y/z".to_vec()));
    let (row, more) = store.row(b"t/1", b"07").unwrap();
    assert_eq!((row.len(), more), (3, None));
    assert_eq!(row[0], (Cell::new("t/1", "07", "f", ""), b"7".to_vec()));
    let (mut cells, mut behind) = (Vec::new(), None);
    loop {
        let range = Range { from: Some(b"10"), to: Some(b"20"), limit: 7, ..Range::default() };
        let (page, next) =
            store.cells(Some(b"t/1"), &range, (behind.as_ref(), Some(b"f"))).unwrap();
        cells.extend(page);
        behind = next;
        if behind.is_none() {
            break;
        }
    }
    assert_eq!(cells.len(), 30);
    assert!(cells.is_sorted());
    let (all, _) = store.cells(None, &Range::default(), (None, None)).unwrap();
    assert_eq!(all.len(), 91);
    let (new, old) = (Cell::new("t/1", "07", "new", ""), Cell::new("t/1", "07", "f", ""));
    store.write_cells([(&new, Some(&b"1"[..])), (&old, None)]).unwrap();
    assert_eq!((store.cell(&new).unwrap(), store.cell(&old).unwrap()), (Some(b"1".to_vec()), None));
    store.delete_cell(&new).unwrap();
    assert_eq!(store.row(b"t/1", b"07").unwrap().0.len(), 2);
    store.delete_row(b"t/1", b"07").unwrap();
    assert_eq!(store.row(b"t/1", b"07").unwrap().0.len(), 0);
    assert_eq!(served.answer("GET", "/table/t%2F1/08/f/x", &[]), (200, "8x".into()));
}

#[test]
fn files_are_streamed_listed_renamed_and_read_in_part() {
    let served = Served::start("files");
    let store = &served.client;
    let bytes: Vec<u8> = (0..PIECE_BYTES * 5 / 2).map(|at| (at % 253) as u8).collect();
    let put = |path: &str, bytes: &[u8]| store.put_file(path, &mut &bytes[..], bytes.len() as u64);
    put("a b/\u{e9}/large", &bytes).unwrap();
    put("a b/small", b"1").unwrap();
    put("other", b"").unwrap();
    let read = |path: &str| {
        let mut into = Vec::new();
        store.file(path, &mut into).unwrap().then_some(into)
    };
    assert_eq!(read("a b/\u{e9}/large").unwrap(), bytes);
    assert_eq!((read("other"), read("none")), (Some(vec![]), None));
    assert_eq!(code(put("a b/small", b"2").unwrap_err()), 409);
    let head = format!("Range: bytes={}-{}\r\n", PIECE_BYTES - 3, PIECE_BYTES * 2 + 4);
    let path = ("GET", "/fs/a%20b/%C3%A9/large");
    let part = request(&served.place(), path, &head, &[], PATIENCE).unwrap();
    assert_eq!((part.status, &part.body[..]), (206, &bytes[PIECE_BYTES - 3..PIECE_BYTES * 2 + 5]));
    let beyond =
        request(&served.place(), path, "Range: bytes=99999999-\r\n", &[], PATIENCE).unwrap();
    assert_eq!(beyond.status, 416);
    let names = |files: client::store::Files| -> Vec<String> {
        files.files.into_iter().map(|file| file.name).collect()
    };
    assert_eq!(names(store.list("", None).unwrap()), ["a b", "other"]);
    assert_eq!(names(store.list("a b", None).unwrap()), ["small", "\u{e9}"]);
    assert_eq!(names(store.list("a b/", Some("small")).unwrap()), ["\u{e9}"]);
    assert_eq!(store.rename("a b/\u{e9}", "a b/b/c").unwrap(), 1);
    assert_eq!(names(store.all_files(None).unwrap()), ["a b/b/c/large", "a b/small", "other"]);
    assert_eq!(code(store.rename("a b/b", "c").unwrap_err()), 400);
    assert_eq!(read("a b/b/c/large").unwrap(), bytes);
    store.delete_file("a b/b/c/large").unwrap();
    assert_eq!(code(store.delete_file("a b/b/c/large").unwrap_err()), 404);
    let status = store.scrub().and_then(|_| store.scrubbed()).unwrap();
    assert_eq!(status["failed"], serde_json::Value::Null, "{status}");
    store.compact().unwrap();
    store.compact_slice(3).unwrap();
    assert_eq!(store.status().unwrap()["mode"], "store");
}

#[test]
fn what_is_wrong_with_a_request_is_told_with_the_mend() {
    let served = Served::start("hostile");
    let large = vec![0; ::store::services::VALUE_BYTES_MAX + 1];
    let long = format!("/kv/{}", "k".repeat(1025));
    for (method, path, body, code, told) in [
        ("PUT", "/kv/%f", &b"1"[..], 400, "two hex digits"),
        ("PUT", "/kv/key", &large, 413, "/fs"),
        ("PUT", &*long, b"1", 400, "1 to 1024"),
        ("PUT", "/kv/key?sync=false", b"1", 400, "nothing is asked"),
        ("GET", "/kv/none", b"", 404, "no such value"),
        ("GET", "/kv?limit=0", b"", 400, "1 to 10000"),
        ("GET", "/kv?start=a", b"", 400, "prefix, from, to"),
        ("POST", "/kv?do=write", b"123", 400, "two lengths"),
        ("POST", "/kv?do=delete", b"", 400, "get or write"),
        ("POST", "/kv?do=get", &[0; 8], 400, "0 bytes"),
        ("PUT", "/table/t/r", b"1", 400, "/table/TABLE/ROW/FAMILY/COLUMN"),
        ("PUT", "/table/t/r//c", b"1", 400, "family"),
        ("PUT", "/table/t/r/f/c/d", b"1", 400, "%2F"),
        ("GET", "/table?from=a", b"", 400, "name it"),
        ("GET", "/table/t?behind=x", b"", 400, "next"),
        ("DELETE", "/table/t", b"", 400, "a row"),
        ("POST", "/table?do=get", b"", 400, "must be write"),
        ("POST", "/table?do=write", &[1, 0, 0, 0, 0, 0, 0, 0, b'x'], 400, "a cell is"),
        ("PUT", "/fs/a/../b", b"1", 400, "is no name"),
        ("PUT", "/fs/a/", b"1", 400, "a folder"),
        ("PUT", "/fs/%ff", b"1", 400, "UTF-8"),
        ("PUT", "/fs/a//b", b"1", 400, "empty"),
        ("GET", "/fs/none", b"", 404, "no such file"),
        ("GET", "/fs/a/?all=true", b"", 400, "/fs/ itself"),
        ("POST", "/fs/a", b"", 400, "to:"),
        ("POST", "/fs/a/b?to=c/d", b"", 400, "first component"),
        ("POST", "/fs/a/b?to=a/d", b"", 404, "no such file"),
    ] {
        let answer = served.answer(method, path, body);
        assert!(answer.0 == code && answer.1.contains(told), "{method} {path}: {answer:?}");
    }
    for (method, path, code) in [
        ("GET", "/other", 404),
        ("GET", "/kv/", 404),
        ("PATCH", "/kv/a", 405),
        ("PUT", "/fs/", 405),
        ("GET", "/compact", 405),
    ] {
        let (status, told) = served.answer(method, path, b"");
        assert!(
            status == code && told.contains("/openapi.json"),
            "{method} {path}: {status} {told}"
        );
    }
    for (method, path) in [
        ("GET", "/status?x=1"),
        ("GET", "/healthz?x"),
        ("GET", "/readyz?verbose=1"),
        ("GET", "/metrics?name=up"),
        ("GET", "/openapi.json?x=1"),
        ("GET", "/scrub?x=1"),
        ("POST", "/scrub?x=1"),
    ] {
        let (status, told) = served.answer(method, path, b"");
        assert!(
            status == 400 && told.contains("nothing is asked"),
            "{method} {path}: {status} {told}"
        );
    }
    assert_eq!(served.model.keys(), 1, "only what the store says of itself");
}

#[test]
fn a_slice_is_a_number_that_the_store_has() {
    let served = Served::start("slices");
    for (method, path, told) in [
        ("GET", "/kv?slice=9", "this store has the slices 0 to "),
        ("GET", "/kv?slice=-1", "slice: must be a number from 0 on"),
        ("POST", "/compact?slice=4294967295", "this store has the slices 0 to "),
        ("POST", "/compact?slice=-1", "slice: must be a number from 0 on"),
        ("POST", "/compact?slices=1", "what is known here is slice"),
    ] {
        let answer = served.answer(method, path, b"");
        assert!(answer.0 == 400 && answer.1.contains(told), "{method} {path}: {answer:?}");
    }
    assert_eq!(served.model.keys(), 1, "only what the store says of itself");
}

#[test]
fn who_leaves_in_the_middle_of_a_file_leaves_nothing() {
    let served = Served::start("leaves");
    let before = served.model.keys();
    let mut stream = UnixStream::connect(&served.path).unwrap();
    let bytes = PIECE_BYTES * 3;
    let head = format!("PUT /fs/a HTTP/1.1\r\nHost: weir\r\nContent-Length: {bytes}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![7; PIECE_BYTES * 2]).unwrap();
    let begun = Instant::now();
    let until = |what: &str, met: &dyn Fn() -> bool| {
        while !met() {
            assert!(begun.elapsed() < PATIENCE, "{what}: {} keys", served.model.keys());
            std::thread::yield_now();
        }
    };
    until("its pieces come", &|| served.model.keys() >= before + 2);
    // Nobody else has the path meanwhile.
    assert_eq!(served.answer("PUT", "/fs/a", b"1").0, 409);
    drop(stream);
    until("its pieces go", &|| served.model.keys() == before);
    until("the path is free", &|| served.answer("PUT", "/fs/a", b"1").0 == 201);
    // A body without a length is as good.
    let mut stream = UnixStream::connect(&served.path).unwrap();
    let chunked = "PUT /fs/b HTTP/1.1\r\nHost: weir\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    stream.write_all(chunked.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!(served.answer("GET", "/fs/b", b""), (200, "abcde".into()));
}

#[test]
fn who_waits_for_units_holds_up_nobody_who_needs_none() {
    let served = Served::start("stuck");
    let store = &served.client;
    store.put(b"cold", b"1").unwrap();
    served.model.hold();
    std::thread::scope(|scope| {
        // More than are worked on at a time, and many keys at a time among them.
        let waits = |at: usize| {
            let ours = client::Store::at(Path::new(&served.path));
            move || match at % 8 {
                0 => ours.get_all(&[b"cold", b"none"]).map(|_| ()),
                _ => ours.get(b"cold").map(|_| ()),
            }
        };
        let waiting: Vec<_> = (0..THREADS + 10).map(|at| scope.spawn(waits(at))).collect();
        let begun = Instant::now();
        while served.model.waiting() < THREADS {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        for round in 0..20_u8 {
            store.put(b"warm", &[round]).unwrap();
            assert_eq!(store.get(b"warm").unwrap(), Some(vec![round]));
            assert_eq!(store.get(&[round]).unwrap(), None);
            for path in ["/metrics", "/status", "/readyz"] {
                assert_eq!(served.answer("GET", path, b"").0, 200, "{path}");
            }
        }
        served.model.release();
        for waiting in waiting {
            waiting.join().unwrap().unwrap();
        }
    });
}

#[test]
fn bodies_that_do_not_come_hold_up_nobody_and_are_ended_when_others_wait() {
    let served = Served::start("slow");
    let store = &served.client;
    store.put(b"k", b"1").unwrap();
    let begin = |bytes: usize| {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        let head = "PUT /kv/slow HTTP/1.1\r\nHost: weir\r\nContent-Length: 1048576\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&vec![7; bytes]).unwrap();
        stream
    };
    // All the memory of bodies is held by some who stop in the middle, and more send a byte.
    let slow: Vec<UnixStream> = (0..64).map(|_| begin(100 << 10)).collect();
    let slower: Vec<UnixStream> = (0..40).map(|_| begin(1)).collect();
    let begun = Instant::now();
    let large = vec![3; 1 << 20];
    assert_eq!(store.get(b"k").unwrap(), Some(b"1".to_vec()));
    store.put(b"small", &large[..60 << 10]).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "neither needs a place");
    store.put(b"large", &large).unwrap();
    assert!(begun.elapsed() < SLOW_PATIENCE, "{:?}", begun.elapsed());
    let ended = slow.into_iter().filter_map(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).ok().map(|()| answer)
    });
    let ended: Vec<[u8; 12]> = ended.collect();
    assert!(!ended.is_empty() && ended.iter().all(|answer| answer == b"HTTP/1.1 408"), "{ended:?}");
    drop(slower);
}

#[test]
fn no_room_is_507_and_a_failed_engine_is_said_on_every_write_while_reads_go_on() {
    let served = Served::start("full");
    let store = &served.client;
    store.put(b"k", b"1").unwrap();
    let room = |free| {
        let unit = UnitRoom { raw_blocks_free: free, raw_blocks: 1000, ..UnitRoom::default() };
        Ok(Room { units: vec![unit] })
    };
    served.service.set_room(room(3));
    assert_eq!(code(store.put(b"k", b"2").unwrap_err()), 507);
    assert_eq!(code(store.put_file("f", &mut &b"1"[..], 1).unwrap_err()), 507);
    let (code_now, told) = served.answer("GET", "/readyz", b"");
    assert!(code_now == 503 && told.contains("3 raw blocks are free"), "{code_now} {told}");
    store.delete(b"other").unwrap();
    served.service.set_room(Err("the door is shut".into()));
    let (code_now, told) = served.answer("GET", "/readyz", b"");
    assert!(code_now == 503 && told.contains("the door is shut"), "{code_now} {told}");
    assert_eq!(store.status().unwrap()["units_why"], "the door is shut");
    served.service.set_room(room(500));
    assert_eq!(served.answer("GET", "/readyz", b"").0, 200);
    store.put(b"k", b"2").unwrap();
    assert_eq!(served.answer("GET", "/healthz", b"").0, 200);
    served.model.fail(Some(Refused::Failed("the small volume is gone".into())));
    let refused = store.put(b"k", b"3").unwrap_err();
    assert!(refused.to_string().contains("the small volume is gone"), "{refused}");
    served.model.fail(None);
    assert_eq!(code(store.put(b"k", b"4").unwrap_err()), 500);
    assert_eq!(served.answer("GET", "/healthz", b"").0, 503);
    assert_eq!(served.answer("GET", "/readyz", b"").0, 503);
    assert_eq!(store.get(b"k").unwrap(), Some(b"2".to_vec()));
}

#[test]
fn over_tcp_data_is_for_who_has_the_token() {
    let service = Service::on(Arc::new(Model::new(1)), |_| ()).unwrap();
    let (socket, address) = crate::sockets::listen_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listeners = Listeners { control: None, tcp: Some((socket, address)) };
    let clients = Clients { nbd: 0, newcomers: 0, http: 16, control: 0 };
    let _http = start(listeners, Rules::default(), clients, Arc::new(service)).unwrap();
    let store = client::Store::at(address);
    assert_eq!(store.status().unwrap()["mode"], "store");
    assert!([401, 403].contains(&code(store.put(b"k", b"1").unwrap_err())));
    assert!([401, 403].contains(&code(store.get(b"k").unwrap_err())));
    assert!([401, 403].contains(&code(store.scan(&Range::default()).unwrap_err())));
}

#[test]
fn every_route_is_described_and_nothing_else() {
    let (_, routes) = routes(Arc::new(Rules::default())).into_parts();
    let plain = |path: &str| path.replace("{*", "{");
    let there: BTreeSet<String> =
        routes.iter().map(|(method, path, _)| format!("{method} {}", plain(path))).collect();
    let served = Served::start("openapi");
    let answer = request(&served.place(), ("GET", "/openapi.json"), "", &[], PATIENCE).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<String> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    assert_eq!(described, there);
    // What it says of the state is what the state is.
    let status = served.client.status().unwrap();
    let told = status.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let schema = &document["components"]["schemas"]["Status"];
    let known = schema["properties"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(told, known);
    let required: Vec<String> = serde_json::from_value(schema["required"].clone()).unwrap();
    assert_eq!(told, required.into_iter().collect());
}

#[test]
fn what_is_asked_and_refused_is_counted_as_prometheus_wants_it() {
    let served = Served::start("metrics");
    let store = &served.client;
    store.put(b"k", &[7; 1000]).unwrap();
    assert_eq!(store.get(b"k").unwrap(), Some(vec![7; 1000]));
    assert_eq!(store.get(b"none").unwrap(), None);
    store.get_all(&[b"k", b"none"]).unwrap();
    let unit = UnitRoom { unit: 5, raw_blocks_free: 3, raw_blocks: 1000, ..UnitRoom::default() };
    served.service.set_room(Ok(Room { units: vec![unit] }));
    assert_eq!(code(store.put(b"k", b"2").unwrap_err()), 507);
    assert_eq!(served.answer("PUT", "/kv/%f", b"1").0, 400);
    served.model.fail_reads(Some(Refused::Damaged("a bit is wrong".into())));
    assert_eq!(code(store.get(b"k").unwrap_err()), 500);
    let (status, text) = served.answer("GET", "/metrics", b"");
    assert_eq!(status, 200);
    for line in [
        "weir_store_request_duration_seconds_count{service=\"kv\",op=\"put\"} 3",
        "weir_store_request_duration_seconds_count{service=\"kv\",op=\"get\"} 3",
        "weir_store_request_duration_seconds_count{service=\"kv\",op=\"get_many\"} 1",
        "weir_store_received_bytes_total{service=\"kv\",op=\"put\"} 1002",
        "weir_store_requests_refused_total{reason=\"full\"} 1",
        "weir_store_requests_refused_total{reason=\"usage\"} 1",
        "weir_store_requests_refused_total{reason=\"damaged\"} 1",
        "weir_store_requests_refused_total{reason=\"failed\"} 0",
        "weir_store_commits_total 1",
        "weir_store_syncs_total 1",
        // The key with the letter of its service, and the value.
        "weir_store_committed_bytes_total 1002",
        "weir_store_unit_raw_blocks_free{unit=\"5\"} 3",
        "weir_store_units_answer 1",
        "weir_store_ready 0",
        "weir_store_stopped 0",
        "weir_store_slice_keys{slice=\"3\"} 0",
        "weir_store_compaction_written_bytes_total 0",
        "# TYPE weir_store_raw_blocks_erased_total counter",
    ] {
        assert!(
            text.lines().any(|found| found == line || found == format!("{line}.0")),
            "{line}: {text}"
        );
    }
    for line in text.lines().filter(|line| line.starts_with("# TYPE")) {
        let [_, _, name, kind] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        assert!(text.contains(&format!("# HELP {name} ")), "{line}");
    }
}
