//! Volumes as disks of guests, by a client that drives rings as a guest does; what it does right, and all that it may do
//! wrong. Beside each wrong one another guest or an NBD client goes on.

use crate::client::Client;
use crate::guest::*;
use crate::{Folder, config, http, pattern};
use serve::Server;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Two disks, of two shards.
const DISKS: &str = "[device]\nkind = \"memory\"\ncapacity = \"64MiB\"\nop_percent = 50\nshards = 2\n\
    [[volume]]\nname = \"disk\"\nsize = \"16MiB\"\nvhost = \"disk.vhost\"\n\
    [[volume]]\nname = \"fixed\"\nsize = \"4MiB\"\nvhost = \"fixed.vhost\"\nread_only = true\n";

fn start(folder: &Folder) -> Server {
    Server::start(&config(&folder.0, DISKS)).unwrap_or_else(|error| panic!("{error}"))
}

fn disk(folder: &Folder) -> PathBuf {
    folder.0.join("disk.vhost")
}

fn nbd(folder: &Folder) -> Client {
    Client::connect(&folder.socket(), "disk").unwrap()
}

#[test]
fn what_a_guest_writes_is_what_others_read_on_every_ring() {
    for driver in ["auto", "threads"] {
        let folder = Folder::new();
        let device = format!("{DISKS}[runtime]\ndriver = \"{driver}\"\n");
        let server = Server::start(&config(&folder.0, &device));
        exchange(&folder, server.unwrap_or_else(|error| panic!("{error}")));
    }
}

fn exchange(folder: &Folder, server: Server) {
    let mut client = nbd(folder);
    for features in
        [u64::MAX, !EVENT_INDEX, !(EVENT_INDEX | FLUSH | INDIRECT), PROTOCOL | VERSION_1]
    {
        let mut guest = Guest::connect_with(&disk(folder), 3, features);
        let settings = guest.settings();
        assert_eq!(u64_of(&settings), (16 << 20) / 512);
        for queue in 0..3 {
            let bytes = pattern(queue as u64 + 1, 3 << 20);
            guest.write(queue, 2048 * queue as u64 + 1, &bytes[..1 << 20]);
            assert!(
                client.read(2048 * queue as u64 * 512 + 512, 1 << 20).unwrap() == bytes[..1 << 20]
            );
            client.write(5000, &bytes[1 << 20..]).unwrap();
            let read = guest.read(queue, 9, 1 << 20);
            assert!(read[..392] == client.read(9 * 512, 392).unwrap());
            assert!(read[392..] == bytes[1 << 20..][..(1 << 20) - 392]);
            // Within one block, over the border of two, and over that of two shards.
            for (sector, len) in [(3, 512), (7, 1024), (2047, 1024), (2040, 8192)] {
                let bytes = pattern(sector + 9, len);
                guest.write(queue, sector, &bytes);
                assert!(guest.read((queue + 1) % 3, sector, len) == bytes);
                assert!(client.read(sector * 512, len).unwrap() == bytes);
            }
            guest.sync(queue);
            let zero = |guest: &mut Guest, sector, sectors: usize| {
                guest.read(queue, sector, 512 * sectors).iter().all(|&byte| byte == 0)
            };
            assert_eq!(guest.range(queue, DISCARD, (2048, 16), 0), 0);
            assert!(zero(&mut guest, 2048, 16));
            for flags in [0, 1] {
                guest.write(queue, 100, &pattern(4, 8192));
                assert_eq!(guest.range(queue, ZEROES, (103, 11), flags), 0);
                assert!(zero(&mut guest, 103, 11) && !zero(&mut guest, 100, 3));
            }
            let (status, name) = guest.request(queue, (NAME, 0), &[], 20);
            assert_eq!((status, &name[..5]), (0, &b"disk\0"[..]));
        }
        // All rings at once, with some under way on each.
        let mut heads = Vec::new();
        for round in 0..4 {
            for queue in 0..3 {
                let at = BUFFERS + (queue as u64) * (4 << 20) + round * 65536;
                let data = pattern(round * 3 + queue as u64, 16384);
                let parts =
                    guest.parts(at, (OUT, 4096 + (round * 3 + queue as u64) * 32), &data, 0);
                heads.push((queue, guest.submit(queue, &parts), parts));
            }
        }
        for _ in 0..heads.len() {
            let queue = heads[0].0;
            let (head, _) = guest.wait(queue);
            let at = heads.iter().position(|(q, h, _)| (*q, *h) == (queue, head)).unwrap();
            let (_, _, parts) = heads.swap_remove(at);
            assert_eq!(guest.status_of(&parts).1, 0);
        }
        for part in 0..12 {
            assert!(client.read((4096 + part * 32) * 512, 16384).unwrap() == pattern(part, 16384));
        }
        // All end, and say where they would go on.
        guest.wire.acked(RESET_OWNER, &[], &[]);
        for queue in 0..3 {
            assert_eq!(guest.stop(queue), u32::from(guest.queues[queue as usize].available));
        }
    }
    server.shut_down().unwrap();
}

#[test]
fn a_read_only_volume_says_so_and_refuses_what_would_change_it() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut guest = Guest::connect(&folder.0.join("fixed.vhost"), 1);
    assert_eq!(guest.offered & READ_ONLY, READ_ONLY);
    assert!(guest.read(0, 0, 4096).iter().all(|&byte| byte == 0));
    assert_eq!(guest.request(0, (OUT, 0), &[1; 512], 0).0, 1);
    assert_eq!(guest.range(0, DISCARD, (0, 8), 0), 1);
    assert_eq!(guest.range(0, ZEROES, (0, 8), 0), 1);
    guest.sync(0);
    let status =
        http::over_tcp(server.ready().http.unwrap(), "GET", "/metrics", "Host: localhost\r\n", b"");
    let refused = "weir_requests_refused_total{volume=\"fixed\"} 3";
    assert!(status.1.contains(refused), "{}", status.1);
    assert_eq!(server.ready().vhost[1], ("fixed".into(), folder.0.join("fixed.vhost")));
    server.shut_down().unwrap();
    assert!(!disk(&folder).exists(), "the socket goes with the server");
}

#[test]
fn a_volume_that_grows_is_seen_at_once_and_one_that_is_deleted_takes_its_guest_with_it() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut guest = Guest::connect(&disk(&folder), 2);
    let change = |method, name: &str, body: &str| {
        let control = server.ready().control.clone().unwrap();
        let head = "Host: weir\r\nContent-Type: application/json\r\n";
        let path = format!("/volumes/{name}");
        let answer = http::over_unix(&control, method, &path, head, body.as_bytes());
        assert_eq!(answer.0, 200, "{answer:?}");
    };
    assert_eq!(guest.request(0, (OUT, 32768), &[1; 512], 0).0, 1);
    change("PATCH", "disk", "{\"size_bytes\": 25165824}");
    let mut told = [0; 12];
    guest.channel.read_exact(&mut told).unwrap();
    assert_eq!(told[..], [2u32, 1, 0].map(u32::to_le_bytes).concat());
    assert_eq!(u64_of(&guest.settings()), (24 << 20) / 512);
    guest.write(1, 32768, &pattern(1, 4096));
    assert!(guest.read(0, 32768, 4096) == pattern(1, 4096));
    change("PATCH", "disk", "{\"name\": \"other\"}");
    guest.sync(0);
    change("DELETE", "other", "");
    assert!(guest.wire.receive().is_none(), "the session ends");
    let late = Wire::connect(&disk(&folder));
    late.send(GET_FEATURES, &[], &[]);
    assert!(late.receive().is_none(), "there is no such volume");
    let mut other = Guest::connect(&folder.0.join("fixed.vhost"), 1);
    other.sync(0);
    server.shut_down().unwrap();
}

/// A guest that was told nothing but to greet.
fn greeted(folder: &Folder) -> Guest {
    let mut guest = Guest::connect(&disk(folder), 0);
    guest.queues = Guest::rings(2);
    guest
}

/// What is said wrongly: how it is called, the message, what it says, and descriptors that it brings.
type Said = (&'static str, u32, Vec<u8>, Vec<OwnedFd>);

fn file() -> OwnedFd {
    Shared::new(BYTES).file.try_clone().unwrap()
}

fn num(queue: u32, value: u32) -> Vec<u8> {
    u32s(&[queue, value])
}

fn wrong_words() -> Vec<Said> {
    vec![
        ("features not offered", SET_FEATURES, u64s(&[1 << 26]), vec![]),
        ("protocol not offered", SET_PROTOCOL_FEATURES, u64s(&[1 << 15]), vec![]),
        ("unknown message", 99, vec![], vec![]),
        ("a log", 6, u64s(&[4096, 0]), vec![file()]),
        ("short features", SET_FEATURES, vec![0; 7], vec![]),
        ("long features", SET_FEATURES, vec![0; 9], vec![]),
        ("too long a message", SET_FEATURES, vec![0; 5000], vec![]),
        ("no such ring", SET_VRING_NUM, num(256, 64), vec![]),
        ("no entries", SET_VRING_NUM, num(0, 0), vec![]),
        ("odd entries", SET_VRING_NUM, num(0, 100), vec![]),
        ("many entries", SET_VRING_NUM, num(0, 2048), vec![]),
        ("a far base", SET_VRING_BASE, num(0, 1 << 16), vec![]),
        ("a kick that is no event", SET_VRING_KICK, u64s(&[0]), vec![file()]),
        ("a kick of nothing", SET_VRING_KICK, u64s(&[0]), vec![]),
        ("a kick that is none", SET_VRING_KICK, u64s(&[0x100]), vec![]),
        ("a call that is no event", SET_VRING_CALL, u64s(&[0]), vec![file()]),
        ("a call for no ring", GET_VRING_BASE, num(300, 0), vec![]),
        ("settings beyond the end", GET_CONFIG, u32s(&[250, 10, 0]), vec![]),
        ("settings that change", 25, u32s(&[0, 0, 0]), vec![]),
        (
            "inflight of no rings",
            GET_INFLIGHT_FD,
            [vec![0; 16], vec![0, 0, 64, 0]].concat(),
            vec![],
        ),
        (
            "inflight that is short",
            SET_INFLIGHT_FD,
            [u64s(&[16, 0]), vec![2, 0, 64, 0]].concat(),
            vec![file()],
        ),
        (
            "inflight beyond its file",
            SET_INFLIGHT_FD,
            [u64s(&[1 << 40, 0]), vec![2, 0, 64, 0]].concat(),
            vec![file()],
        ),
        ("descriptors with nothing", SET_OWNER, vec![], vec![file()]),
    ]
}

fn wrong_memory() -> Vec<Said> {
    let table = |regions: &[[u64; 4]]| {
        let regions = regions.iter().map(|region| u64s(region));
        [u32s(&[regions.len() as u32, 0])].into_iter().chain(regions).collect::<Vec<_>>().concat()
    };
    let whole = [GUEST, BYTES, USER, 0];
    vec![
        ("no memory at all", SET_MEM_TABLE, table(&[]), vec![]),
        ("memory without files", SET_MEM_TABLE, table(&[whole]), vec![]),
        ("memory of two files", SET_MEM_TABLE, table(&[whole]), vec![file(), file()]),
        (
            "memory beyond its file",
            SET_MEM_TABLE,
            table(&[[GUEST, BYTES + 1, USER, 0]]),
            vec![file()],
        ),
        (
            "memory from beyond its file",
            SET_MEM_TABLE,
            table(&[[GUEST, 4096, USER, BYTES]]),
            vec![file()],
        ),
        ("memory of no bytes", SET_MEM_TABLE, table(&[[GUEST, 0, USER, 0]]), vec![file()]),
        ("memory over the end", SET_MEM_TABLE, table(&[[u64::MAX, 4096, USER, 0]]), vec![file()]),
        (
            "memory that overlaps",
            SET_MEM_TABLE,
            table(&[whole, [GUEST + BYTES - 1, 4096, 2 * USER, 0]]),
            vec![file(), file()],
        ),
        (
            "more memory than told",
            SET_MEM_TABLE,
            [u32s(&[2, 0]), u64s(&whole)].concat(),
            vec![file()],
        ),
        ("memory that is no file", SET_MEM_TABLE, table(&[whole]), vec![eventfd()]),
        ("too many regions", SET_MEM_TABLE, table(&[whole; 9]), (0..9).map(|_| file()).collect()),
    ]
}

#[test]
fn who_says_what_he_must_not_is_dropped_and_the_next_one_is_served() {
    let folder = Folder::new();
    let server = start(&folder);
    let wrong = wrong_words().into_iter().chain(wrong_memory());
    for (what, request, body, files) in wrong {
        let guest = greeted(&folder);
        guest.wire.send(request, &body, &files.iter().collect::<Vec<_>>());
        assert!(guest.wire.receive().is_none(), "{what}: it is dropped");
    }
    let mut guest = Guest::connect(&disk(&folder), 2);
    guest.write(1, 0, &pattern(1, 4096));
    assert!(nbd(&folder).read(0, 4096).unwrap() == pattern(1, 4096));
    server.shut_down().unwrap();
}

#[test]
fn rings_that_lie_nowhere_or_change_while_they_run_end_their_session() {
    let folder = Folder::new();
    let server = start(&folder);
    let places =
        |queue: u32, places: [u64; 3]| [u32s(&[queue, 0]), u64s(&places), u64s(&[0])].concat();
    // Rings that lie nowhere: once all is known of them.
    for places in [
        places(0, [USER + BYTES - 16, USER + USED, USER + AVAILABLE]),
        places(0, [USER + 8, USER + USED, USER + AVAILABLE]),
        places(0, [USER, USER + BYTES, USER + AVAILABLE]),
        places(0, [USER, USER + USED, 0]),
    ] {
        let guest = greeted(&folder);
        guest.wire.acked(SET_VRING_ADDR, &places, &[]);
        guest.wire.acked(SET_VRING_NUM, &num(0, ENTRIES.into()), &[]);
        guest.wire.acked(SET_VRING_KICK, &u64s(&[0]), &[&guest.queues[0].kick]);
        guest.wire.send(SET_VRING_ENABLE, &num(0, 1), &[]);
        assert!(guest.wire.receive().is_none(), "the ring lies nowhere");
    }
    // What changes under a ring that runs; and whoever wants an answer gets one.
    for (request, body) in [
        (SET_VRING_NUM, num(0, 64)),
        (SET_VRING_BASE, num(0, 0)),
        (SET_VRING_ADDR, places(0, [USER, USER + USED, USER + AVAILABLE])),
    ] {
        let guest = Guest::connect(&disk(&folder), 1);
        guest.wire.send_flagged(request, 9, &body, &[]);
        let (_, body, _) = guest.wire.receive().expect("an answer");
        assert_eq!(u64_of(&body), 1);
        assert!(guest.wire.receive().is_none());
    }
    let mut guest = Guest::connect(&disk(&folder), 2);
    guest.write(1, 0, &pattern(1, 4096));
    assert!(nbd(&folder).read(0, 4096).unwrap() == pattern(1, 4096));
    server.shut_down().unwrap();
}

#[test]
fn chains_that_are_none_come_back_and_rings_that_contradict_themselves_end_alone() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut guest = Guest::connect(&disk(&folder), 2);
    guest.write(0, 0, &pattern(1, 4096));
    let at = BUFFERS + (8 << 20);
    let (head, status) = ((GUEST + at, 16, false), (GUEST + at + 100, 1, true));
    guest.memory.put(at, &[0; 16]);
    // Outside, in a hole, over the end; the wrong way round; without a place for a status; loops.
    let outside = |part: Part| vec![head, part, status];
    for parts in [
        outside((GUEST + BYTES, 512, true)),
        outside((GUEST - 512, 512, true)),
        outside((GUEST + BYTES - 511, 512, true)),
        outside((u64::MAX - 10, 512, true)),
        outside((GUEST, u32::MAX, true)),
        vec![(GUEST + at + 200, 512, true), head, status],
        vec![head],
        vec![(GUEST + at, 15, false), status],
    ] {
        let head = guest.submit(0, &parts);
        let (came, written) = guest.wait(0);
        assert!(came == head && written <= 1, "{parts:?}");
    }
    let head = guest.lay_out(0, &[head, status]);
    guest.describe(0, head + 1, status, 3, head);
    guest.offer(0, head);
    assert_eq!(guest.wait(0), (head, 0));
    assert!(guest.read(0, 0, 4096) == pattern(1, 4096), "the ring goes on");

    // A jump, a descriptor that is not there, one that is in flight already.
    let breaks: [fn(&mut Guest); 2] = [
        |guest| {
            let index = guest.queues[0].available.wrapping_add(ENTRIES + 1);
            guest.memory.word(AVAILABLE + 2).store(index, Ordering::Release);
            signal(&guest.queues[0].kick);
        },
        |guest| guest.offer(0, ENTRIES),
    ];
    for break_it in breaks {
        break_it(&mut guest);
        assert!(signalled(&guest.queues[0].broken, 20_000), "it is told to be broken");
        guest.write(1, 64, &pattern(2, 4096));
        assert!(nbd(&folder).read(64 * 512, 4096).unwrap() == pattern(2, 4096));
        // A guest that starts it anew is served.
        guest.stop(0);
        guest.queues[0].available = guest.queues[0].seen;
        guest.memory.word(AVAILABLE + 2).store(guest.queues[0].available, Ordering::Release);
        guest.start(0);
        assert!(guest.read(0, 64, 4096) == pattern(2, 4096));
    }
    server.shut_down().unwrap();
}

#[test]
fn memory_that_is_taken_away_ends_its_rings_and_nothing_else() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut other = Guest::connect(&folder.0.join("fixed.vhost"), 1);
    let mut guest = Guest::connect(&disk(&folder), 2);
    guest.write(0, 0, &pattern(1, 65536));
    let parts = guest.parts(BUFFERS, (OUT, 0), &pattern(2, 65536), 0);
    let head = guest.lay_out(0, &parts);
    // The rings stay, the data goes.
    let file = guest.memory.file.try_clone().unwrap();
    // SAFETY: no memory is involved; what is cut off is not looked at any more here.
    let cut = unsafe { libc::ftruncate(std::os::fd::AsRawFd::as_raw_fd(&file), BUFFERS as i64) };
    assert_eq!(cut, 0);
    guest.offer(0, head);
    assert!(signalled(&guest.queues[0].broken, 20_000), "its ring is told to be broken");
    drop(guest);
    assert!(nbd(&folder).read(0, 65536).unwrap() == pattern(1, 65536), "no zeroes are written");
    other.sync(0);
    let mut next = Guest::connect(&disk(&folder), 1);
    assert!(next.read(0, 0, 65536) == pattern(1, 65536));
    server.shut_down().unwrap();
}

#[test]
fn a_server_does_again_what_the_one_before_it_left_undone_in_the_same_order() {
    let folder = Folder::new();
    let server = start(&folder);
    let mut guest = Guest::connect(&disk(&folder), 2);
    guest.write(1, 0, &pattern(1, 4096));
    server.shut_down().unwrap();
    assert!(guest.wire.receive().is_none());
    // As if that server had been killed with these in flight: noted in this order, two of the same place.
    let extent = guest.inflight.as_ref().unwrap();
    let track = Shared::map(extent.0.try_clone().unwrap(), u64_of(&extent.1));
    let queue_bytes = u64_of(&extent.1) / 2;
    let mut heads = Vec::new();
    for (number, seed) in [(0, 5), (1, 6), (2, 7)] {
        let at = BUFFERS + (4 << 20) + number * 16384;
        let parts = guest.parts(at, (OUT, 8), &pattern(seed, 4096), 0);
        heads.push((guest.submit(1, &parts), parts));
    }
    for (counter, place) in [(70u64, 2), (80, 0)] {
        let entry = queue_bytes + 16 + u64::from(heads[place].0) * 16;
        track.put(entry + 8, &counter.to_le_bytes());
        track.put(entry, &[1]);
    }
    // The one in between was answered, and the server ended before it had noted that.
    let (middle, used) = (heads[1].0, guest.queues[1].at() + USED);
    let index = guest.memory.word(used + 2).load(Ordering::Acquire);
    let back = u32s(&[middle.into(), 1]);
    guest.memory.put(used + 4 + 8 * u64::from(index % ENTRIES), &back);
    guest.memory.word(used + 2).store(index.wrapping_add(1), Ordering::Release);
    track.put(queue_bytes + 16 + u64::from(middle) * 16, &[1]);
    track.put(queue_bytes + 12, &middle.to_le_bytes());

    let server = start(&folder);
    guest.reconnect(&disk(&folder));
    assert_eq!(guest.wait(1), (middle, 1));
    let came: Vec<u16> = (0..2).map(|_| guest.wait(1).0).collect();
    let mut wanted = [heads[2].0, heads[0].0];
    wanted.sort_unstable();
    assert!(came.contains(&wanted[0]) && came.contains(&wanted[1]), "{came:?}");
    for place in [0, 2] {
        assert_eq!(guest.status_of(&heads[place].1).1, 0);
    }
    // The device in memory began anew: so it holds what was done again, the later one last.
    assert!(guest.read(0, 8, 4096) == pattern(5, 4096));
    assert!(guest.wait_for(1, 100).is_none(), "nothing comes back twice");
    guest.write(1, 16, &pattern(9, 512));
    server.shut_down().unwrap();
}

#[test]
fn the_socket_of_a_server_that_is_there_is_not_taken_over() {
    let folder = Folder::new();
    let server = start(&folder);
    let (other, taken) = (Folder::new(), disk(&folder).display().to_string());
    let second = Server::start(&config(&other.0, &DISKS.replace("disk.vhost", &taken)));
    let error = second.err().expect("it is refused").to_string();
    assert!(error.contains("in use"), "{error}");
    let mut guest = Guest::connect(&disk(&folder), 1);
    guest.sync(0);
    server.shut_down().unwrap();
}
