//! Raw units: made, listed, written, read, erased and misused by clients, killed and mounted again.

use crate::scratch::Scratch;
use crate::server::Server;
use crate::tools::{output, pattern, run, said, weir};
use client::{Blocks, Device, Error, Place, Unit};
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// SDF in small: two dies to a unit, raw blocks of 8 MiB written whole, reads of 8 KiB.
const SDF: &[&str] = &[
    "--raw",
    "--gang",
    "2",
    "--read-granule",
    "8KiB",
    "--capacity",
    "256MiB",
    "--channels",
    "2",
    "--profile",
    "mlc-25nm",
];

const GRANULE: usize = 8192;

fn device(server: &Server) -> Device {
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    Device::open(&uri).unwrap().with_http(server.control().as_path())
}

fn refusal(result: Result<(), Error>) -> String {
    match result {
        Err(Error::Refused { message, .. }) => message,
        other => panic!("expected a refusal, not {other:?}"),
    }
}

fn read(unit: &mut Unit, offset: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    unit.read(offset, &mut into).unwrap();
    into
}

fn json(args: &[&str]) -> Value {
    let result = weir(args);
    assert!(result.status.success(), "{args:?}: {}", said(&result));
    serde_json::from_slice(&result.stdout).unwrap()
}

#[test]
fn units_are_written_read_and_erased_and_survive_a_kill() {
    let scratch = Scratch::new("raw");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let made = weir(&[&["format", "--data", data], SDF].concat());
    assert!(made.status.success() && said(&made).contains("2 raw units"), "{}", said(&made));

    let mut server = Server::start(&scratch, &[]);
    let list = format!("nbd+unix:///?socket={}", server.socket().display());
    let listed: Value =
        serde_json::from_str(&run("nbdinfo", &["--list", "--json", &list])).unwrap();
    let exports = listed["exports"].as_array().unwrap();
    assert_eq!(exports.len(), 2, "{listed}");
    for (unit, export) in exports.iter().enumerate() {
        assert_eq!(export["export-name"], format!("unit/{unit}").as_str());
        assert_eq!(export["block_size_minimum"], GRANULE);
        assert_eq!(export["block_size_preferred"], 8 << 20);
        assert_eq!(export["can_trim"], true);
        assert_eq!(export["can_zero"], false);
    }

    let device = device(&server);
    assert_eq!(device.units(), 2);
    let mut unit = device.unit(1).unwrap();
    let raw_block = unit.shape().raw_block_bytes;
    assert_eq!((raw_block, unit.shape().whole_blocks), (8 << 20, true));
    let (first, second) = (pattern(1, raw_block as usize), pattern(2, raw_block as usize));
    unit.write(0, &first).unwrap();
    unit.write(raw_block * 3, &second).unwrap();
    assert!(read(&mut unit, 5 * GRANULE as u64, GRANULE) == first[5 * GRANULE..6 * GRANULE]);
    unit.write(raw_block, &second).unwrap();
    unit.erase(1).unwrap();
    let status = unit.status().unwrap();
    assert_eq!((status.raw_blocks_full, status.raw_blocks_torn), (2, 0), "{status:?}");
    let full: Vec<u32> = status.raw_blocks.iter().map(|block| block.raw_block).collect();
    assert_eq!(full, [0, 3]);
    let other = &device.status().unwrap()[0];
    assert_eq!((other.unit, other.raw_blocks_full), (0, 0));
    // What is acknowledged is on this medium only after a flush: its cells are shared by pages.
    unit.flush().unwrap();

    server.kill();
    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    let inspect = json(&["inspect", "--data", data, "--json"]);
    assert_eq!(inspect["shards"][0]["units"][1]["raw_blocks_full"], 2, "{inspect}");
    assert_eq!(inspect["shards"][0]["raw"]["raw_block_bytes"], 8 << 20);

    let server = Server::start(&scratch, &[]);
    let device = self::device(&server);
    let mut unit = device.unit(1).unwrap();
    assert!(read(&mut unit, 0, raw_block as usize) == first, "acknowledged and flushed");
    assert!(read(&mut unit, 3 * raw_block, raw_block as usize) == second);
    let reason = refusal(unit.read(raw_block, &mut [0; GRANULE]));
    assert!(reason.contains("not written"), "erased before the kill: {reason}");
    let status = weir(&["status", "--data", data]);
    assert!(said(&status).contains("raw units: running"), "{}", said(&status));
    server.terminate();
    let inspect = weir(&["inspect", "--data", data]);
    assert!(said(&inspect).contains("2 units of"), "{}", said(&inspect));
}

/// A config of raw units in the plain file or disk at `path`, with its sockets in the scratch folder.
pub fn config_of(scratch: &Scratch, path: &str) -> String {
    let config = scratch.file("raw.toml");
    let text = format!(
        "[device]\nmode = \"raw\"\nkind = \"file\"\npath = {path:?}\ncapacity = \"256MiB\"\nchannels = 4\n\
         [raw]\ngang = 2\nread_granule = \"8KiB\"\n\
         [nbd]\nunix = \"data/nbd.sock\"\n[http]\naddress = \"127.0.0.1:0\"\n\
         [control]\nunix = \"data/control.sock\"\n"
    );
    std::fs::create_dir_all(scratch.data()).expect("a folder for the sockets");
    std::fs::write(&config, text).expect("a config");
    config
}

/// Raw units at `path`: written, killed, looked at by each tool, and started again.
pub fn survive_a_kill_at(scratch: &Scratch, path: &str) {
    let config = config_of(scratch, path);
    let args = ["--config", &*config, "--data", path];
    let made = weir(&["format", "--config", &config, "--data", path]);
    assert!(made.status.success() && said(&made).contains("2 raw units"), "{}", said(&made));
    let mut server = Server::start(scratch, &args);
    let device = self::device(&server);
    let mut unit = device.unit(1).unwrap();
    let raw_block = unit.shape().raw_block_bytes;
    assert_eq!((raw_block, unit.shape().page_bytes), (8 << 20, 64 << 10));
    let (first, second) = (pattern(1, raw_block as usize), pattern(2, raw_block as usize));
    unit.write(0, &first).unwrap();
    unit.write(raw_block * 3, &second).unwrap();
    unit.write(raw_block, &second).unwrap();
    unit.erase(1).unwrap();
    unit.flush().unwrap();
    let second_owner = weir(&["check", "--data", path]);
    assert!(said(&second_owner).contains("in use"), "{}", said(&second_owner));
    server.kill();
    let check = weir(&["check", "--data", path]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    let inspect = json(&["inspect", "--data", path, "--json"]);
    assert_eq!(inspect["shards"][0]["units"][1]["raw_blocks_full"], 2, "{inspect}");
    let server = Server::start(scratch, &args);
    let mut unit = self::device(&server).unit(1).unwrap();
    assert!(read(&mut unit, 0, raw_block as usize) == first, "acknowledged and flushed");
    assert!(read(&mut unit, 3 * raw_block, raw_block as usize) == second);
    let reason = refusal(unit.read(raw_block, &mut [0; GRANULE]));
    assert!(reason.contains("not written"), "erased before the kill: {reason}");
    unit.write(raw_block, &first).unwrap();
    server.terminate();
    let check = weir(&["check", "--data", path]);
    assert_eq!(check.status.code(), Some(0), "{}", said(&check));
    assert!(said(&check).contains("last shutdown clean"), "{}", said(&check));
    let block = weir(&["serve", "--data", path, "--op-percent", "7"]);
    assert!(!block.status.success(), "it is no device of volumes");
}

#[test]
fn raw_units_in_a_plain_file_survive_a_kill_and_every_tool_reads_them() {
    let scratch = Scratch::new("rawfile");
    let path = scratch.file("drive");
    // A file that holds something of somebody's is left alone.
    std::fs::write(&path, "a letter").unwrap();
    let config = config_of(&scratch, &path);
    let refused = weir(&["format", "--config", &config, "--data", &path]);
    assert!(said(&refused).contains("--force"), "{}", said(&refused));
    assert_eq!(std::fs::read(&path).unwrap(), b"a letter");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    survive_a_kill_at(&scratch, &path);
    // A byte of what the header says of the raw units: told, and nothing is opened.
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"G", 72).unwrap();
    let check = weir(&["check", "--data", &path]);
    assert_eq!(check.status.code(), Some(2), "{}", said(&check));
    assert!(said(&check).contains("what the header says of the raw units"), "{}", said(&check));
}

#[test]
fn misuse_is_refused_with_the_reason_and_the_server_goes_on() {
    let scratch = Scratch::new("rawmisuse");
    let server = Server::start(&scratch, SDF);
    let device = device(&server);
    let mut unit = device.unit(0).unwrap();
    let raw_block = unit.shape().raw_block_bytes;
    let bytes = pattern(3, raw_block as usize);
    let mut granule = [0; GRANULE];
    let reason = refusal(unit.read(0, &mut granule));
    assert!(reason.contains("not written"), "{reason}");
    unit.write(0, &bytes).unwrap();
    let reason = refusal(unit.write(0, &bytes));
    assert!(reason.contains("erase it"), "{reason}");
    let reason = refusal(unit.write(raw_block, &bytes[..GRANULE]));
    assert!(reason.contains("whole"), "half a raw block: {reason}");
    let reason = refusal(unit.read(512, &mut granule));
    assert!(reason.contains("multiples of 8192"), "{reason}");
    let reason = refusal(unit.read(unit.size_bytes(), &mut granule));
    assert!(reason.contains("exceed"), "{reason}");
    let reason = refusal(unit.erase(unit.raw_blocks()));
    assert!(reason.contains("exceed"), "{reason}");
    match device.unit(2) {
        Err(Error::Usage(reason)) => assert!(reason.contains("0 to 1"), "{reason}"),
        _ => panic!("there is no unit 2"),
    }
    unit.read(0, &mut granule).unwrap();
    assert!(granule == bytes[..GRANULE], "the handle is as good as before");

    // What a tool sees: data where it is written, holes that are not zeroes elsewhere.
    let uri = format!("nbd+unix:///unit/0?socket={}", server.socket().display());
    let map = run("nbdinfo", &["--map", "--json", &uri]);
    let map: Value = serde_json::from_str(&map).unwrap();
    assert_eq!((&map[0]["length"], &map[0]["type"]), (&(8 << 20).into(), &0.into()), "{map}");
    assert_eq!(map[1]["type"], 1, "a hole, and not zeroes: {map}");
    server.terminate();
}

#[test]
fn pages_are_written_in_order_and_each_unit_of_tssd_is_a_die() {
    let scratch = Scratch::new("rawpages");
    let args = ["--raw", "--write", "page", "--erase", "background", "--capacity", "64MiB"];
    let flash = ["--profile", "instant", "--channels", "3", "--dies-per-channel", "2"];
    let server = Server::start(&scratch, &[&args[..], &flash[..]].concat());
    let device = device(&server);
    assert_eq!(device.units(), 6);
    let mut unit = device.unit(5).unwrap();
    let page = unit.shape().page_bytes as usize;
    let bytes = pattern(4, 3 * page);
    unit.write(0, &bytes[..page]).unwrap();
    let reason = refusal(unit.write(2 * page as u64, &bytes[2 * page..]));
    assert!(reason.contains("in order"), "{reason}");
    unit.write(page as u64, &bytes[page..]).unwrap();
    assert!(read(&mut unit, 0, 3 * page) == bytes);
    assert_eq!(unit.status().unwrap().raw_blocks_open, 1);
    unit.erase(0).unwrap();
    unit.write(0, &bytes[..page]).unwrap();
    server.terminate();
}

#[test]
fn a_device_is_opened_in_the_mode_it_was_made_with_or_refused() {
    let scratch = Scratch::new("rawmode");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let small = ["--capacity", "64MiB", "--profile", "instant"];
    let made = weir(&[&["format", "--raw", "--data", data], &small[..]].concat());
    assert!(made.status.success(), "{}", said(&made));
    let config = scratch.file("block.toml");
    std::fs::write(&config, "[device]\nmode = \"block\"\n").unwrap();
    let refused = weir(&["serve", "--config", &config, "--data", data]);
    assert!(!refused.status.success());
    let text = said(&refused);
    assert!(text.contains("device.mode = \"block\"") && text.contains("made with raw"), "{text}");
    let refused = weir(&["serve", "--data", data, "--gang", "2"]);
    assert!(said(&refused).contains("--gang 2"), "{}", said(&refused));

    let refused = weir(&["serve", "--data", data, "--capacity", "1GiB"]);
    assert!(said(&refused).contains("offer 64 MiB"), "{}", said(&refused));

    let block = scratch.file("block");
    let made = weir(&[&["format", "--data", &block], &small[..]].concat());
    assert!(made.status.success(), "{}", said(&made));
    let refused = weir(&["serve", "--data", &block, "--raw"]);
    assert!(said(&refused).contains("--raw: the device there was made with block"));

    // The flash itself tells too, should the description lie.
    let description = format!("{data}/device.toml");
    let text = std::fs::read_to_string(&description).unwrap();
    let (head, rest) = text.split_once("[raw]").unwrap();
    let rest = &rest[rest.find("[layout]").unwrap()..rest.find("# crc32c").unwrap()];
    std::fs::write(&description, format!("{head}{rest}")).unwrap();
    let check = weir(&["check", "--data", data]);
    assert_eq!(check.status.code(), Some(2), "{}", said(&check));
    assert!(said(&check).contains("raw units"), "{}", said(&check));
}

#[test]
fn what_cannot_be_raw_units_is_refused_with_the_mend() {
    let scratch = Scratch::new("rawrefused");
    let data = scratch.file("device");
    for (args, told) in [
        (&["--shards", "2"][..], "shards"),
        (&["--gang", "3"], "gang = 3"),
        (&["--write", "half"], "raw.write"),
        (&["--read-granule", "12KiB"], "raw.read_granule"),
        (&["--spare", "0.95"], "raw.spare"),
        (&["--op-percent", "7"], "op_percent"),
    ] {
        let refused = weir(&[&["format", "--raw", "--data", &data], args].concat());
        let text = said(&refused);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(told), "{args:?}: {text}");
    }
    let refused = weir(&["format", "--gang", "2", "--data", &data]);
    assert!(said(&refused).contains("mode = \"raw\""), "{}", said(&refused));
    let nothing = output("ls", &[&data]);
    assert!(!nothing.status.success(), "nothing was made: {}", said(&nothing));
}

fn code(result: Result<(), Error>) -> (u32, String) {
    match result {
        Err(Error::Refused { code, message }) => (code, message),
        other => panic!("expected a refusal, not {other:?}"),
    }
}

#[test]
fn blocks_by_id_go_round_the_units_and_survive_a_kill() {
    let scratch = Scratch::new("rawids");
    let data = scratch.data();
    let data = data.to_str().expect("UTF-8");
    let made = weir(&[&["format", "--data", data], SDF].concat());
    assert!(made.status.success(), "{}", said(&made));

    let mut server = Server::start(&scratch, &[]);
    let blocks = Blocks::open(server.control().as_path()).unwrap();
    assert_eq!((blocks.block_bytes(), blocks.granule_bytes()), (8 << 20, GRANULE as u64));
    let id = |number: u64| 0xb10c << 64 | u128::from(number);
    let bytes = |number: u64| pattern(number, 8 << 20);
    for number in 10..14 {
        blocks.put(id(number), &bytes(number)).unwrap();
    }
    blocks.delete(id(11)).unwrap();
    // Cut off in the middle: never there.
    let mut torn = UnixStream::connect(server.control()).unwrap();
    let head = format!("PUT /blocks/{:032x} HTTP/1.1\r\nHost: a\r\n", id(20));
    torn.write_all(format!("{head}Content-Length: 8388608\r\n\r\n").as_bytes()).unwrap();
    torn.write_all(&bytes(20)[..3 << 20]).unwrap();
    server.kill();

    let server = Server::start(&scratch, &[]);
    let blocks = Blocks::open(server.control().as_path()).unwrap();
    let listed = blocks.list().unwrap();
    let found: Vec<(u128, u32)> = listed.iter().map(|block| (block.id, block.unit)).collect();
    assert_eq!(found, [(id(10), 0), (id(12), 0), (id(13), 1)]);
    let mut into = vec![0; 8 << 20];
    for number in [10, 12, 13] {
        blocks.get(id(number), 0, &mut into).unwrap();
        assert!(into == bytes(number), "block {number} after a kill");
    }
    let mut granule = vec![0; GRANULE];
    blocks.get(id(13), 5 * GRANULE as u64, &mut granule).unwrap();
    assert!(granule == bytes(13)[5 * GRANULE..6 * GRANULE]);
    for number in [11, 20] {
        assert_eq!(code(blocks.get(id(number), 0, &mut granule)).0, 404, "{number}");
    }
    // The same by place: an erase there takes the block with it.
    let at = listed[2].raw_block;
    device(&server).unit(1).unwrap().erase(at).unwrap();
    assert_eq!(code(blocks.get(id(13), 0, &mut granule)).0, 404);
    blocks.put(id(13), &bytes(5)).unwrap();
    blocks.get(id(13), 0, &mut granule).unwrap();
    assert!(granule == bytes(5)[..GRANULE]);
    server.terminate();
}

#[test]
fn misuse_of_ids_is_refused_with_the_reason_and_a_full_unit_has_room_again_after_a_delete() {
    let scratch = Scratch::new("rawidmisuse");
    let server = Server::start(&scratch, &[SDF, &["--memory"]].concat());
    let place = Place::from(server.control().as_path());
    let blocks = Blocks::open(place.clone()).unwrap();
    let bytes = pattern(1, 8 << 20);
    let ask = |method: &str, path: &str, head: &str, body: &[u8]| {
        let patience = Duration::from_secs(60);
        let answer = client::http::request(&place, (method, path), head, body, patience).unwrap();
        (u32::from(answer.status), answer.reason())
    };
    let one = format!("/blocks/{:032x}", 1);
    for (method, path, head, body, status, why) in [
        ("GET", "/blocks/1", "", &[][..], 400, "32 hex digits"),
        ("PUT", "/blocks/zz", "", &bytes[..], 400, "32 hex digits"),
        ("GET", one.as_str(), "", &[], 404, "no such block"),
        ("DELETE", &one, "", &[], 404, "no such block"),
        ("PUT", &one, "", &bytes[..4096], 400, "exactly 8388608 bytes"),
        ("PUT", &one, "", &[], 400, "exactly 8388608 bytes"),
        ("GET", &one, "Range: bytes=4096-12287\r\n", &[], 416, "multiples of 8192"),
        ("GET", &one, "Range: bytes=8388608-\r\n", &[], 416, "multiples of 8192"),
        ("GET", "/blocks?limit=0", "", &[], 400, "limit"),
        ("POST", "/blocks", "", &[], 405, ""),
    ] {
        let (code, reason) = ask(method, path, head, body);
        assert!(code == status && reason.contains(why), "{method} {path}: {code} {reason}");
    }
    let units = u128::from(device(&server).units());
    blocks.put(1, &bytes).unwrap();
    assert_eq!(code(blocks.put(1, &bytes)).0, 409);
    let (status, reason) = code(blocks.put(3 << 64 | 1, &bytes));
    assert!(status == 409 && reason.contains("delete that one first"), "{status} {reason}");
    let (status, reason) = code(blocks.get(3 << 64 | 1, 0, &mut [0; GRANULE]));
    assert!(status == 404 && reason.contains("another key"), "{status} {reason}");
    let mut put = 0;
    let full = loop {
        put += 1;
        match blocks.put(1 + put * units, &bytes) {
            Ok(()) => assert!(put < 64, "never full"),
            Err(error) => break code(Err(error)),
        }
    };
    assert!(full.0 == 507 && full.1.contains("unit 1 is full"), "{full:?}");
    blocks.delete(1).unwrap();
    blocks.put(1 + put * units, &bytes).unwrap();
    assert_eq!(blocks.list().unwrap().len() as u128, put);
    server.terminate();

    let scratch = Scratch::new("noids");
    let server = Server::start(&scratch, &[]);
    let (status, reason) = code(Blocks::open(server.control().as_path()).map(|_| ()));
    assert!(status == 404 && reason.contains("serve --raw"), "{status} {reason}");
    server.terminate();
}
