//! `kill -9` under load. A client keeps 16 requests in flight and a model of what may be found
//! afterwards; the server dies at an instant that the seed chooses; the next one must show, for
//! every block, the last acknowledged version or one that was in flight, never a mixture.
//!
//! With several shards there is a connection on each, and the model is one: a flush on any of them
//! covers what all of them got acknowledged before.
//!
//! What the model holds the server to: an acknowledged write is programmed, so it survives the end
//! of the process without a flush. A trim may come undone unless it was FUA or a later flush was
//! acknowledged. What recovery showed once stays (reads never go backwards).

use crate::nbd::{Answer, Client, FLAG_FUA, FLUSH, READ, TRIM, WRITE};
use crate::scratch::Scratch;
use crate::server::{SMALL, SMALL_ON_TWO_SHARDS, Server};
use flash::Random;
use std::collections::BTreeMap;
use std::fs;

const BLOCK: usize = flash::BLOCK_BYTES;
/// Blocks that the load covers: the whole of the small device, the head of a larger one.
const BLOCKS_MAX: u64 = 16_384;
const DEPTH: usize = 16;
const RUN_BLOCKS_MAX: u64 = 64;
/// The version of a block that was never written, or trimmed.
const ZEROES: u64 = 0;

#[test]
fn acknowledged_writes_survive_sixty_kills_under_load() {
    survive("kill", SMALL, 1, 60);
}

#[test]
fn acknowledged_writes_survive_kills_of_two_shards_with_a_client_on_each() {
    survive("kill2", SMALL_ON_TWO_SHARDS, 2, 40);
}

#[test]
fn acknowledged_writes_survive_kills_behind_a_fast_tier() {
    let fast = Scratch::new("killfast-tier");
    let path = fast.file("fast");
    let mut args = SMALL_ON_TWO_SHARDS.to_vec();
    args.extend(["--fast", &path, "--fast-capacity", "48MiB"]);
    survive("killfast", &args, 2, 12);
}

#[test]
fn acknowledged_writes_survive_kills_on_paced_flash() {
    survive("killmlc", &[], 1, 8);
}

#[test]
fn acknowledged_writes_survive_kills_of_a_server_on_a_plain_file() {
    let own = Scratch::new("killfile-device");
    let scratch = Scratch::new("killfile");
    let (device, config) = (own.file("device.img"), own.file("weir.toml"));
    let socket = scratch.data().join("nbd.sock");
    let text = format!(
        "[device]\nkind = \"file\"\npath = {device:?}\nchannels = 2\n[nbd]\nunix = {socket:?}\n\
         [[volume]]\nname = \"default\"\nsize = \"64MiB\"\n"
    );
    fs::write(&config, text).expect("a config");
    let args = ["--config", &*config, "--data", &*device];
    survive_on(&scratch, ("killfile", &own), &args, 1, 20);
}

/// Kills of each cell of the table by `WEIR_E2E_KILLS`, which is shared among them; one each without. A
/// release run has 200: `WEIR_E2E_KILLS=200 ./x e2e every_kind_of_server`.
fn kills_of_a_cell(cells: u32) -> u32 {
    let wanted = std::env::var("WEIR_E2E_KILLS").ok();
    let wanted = wanted.map(|text| text.parse::<u32>().expect("WEIR_E2E_KILLS is a number"));
    wanted.map_or(1, |kills| kills.div_ceil(cells))
}

/// What is served in a cell of the table, in the words of a config.
const KINDS: [(&str, &str, usize); 4] = [
    ("one tier", "profile = \"instant\"\n", 1),
    ("fast tier", "profile = \"instant\"\n[device.fast]\npath = FAST\ncapacity = \"48MiB\"\n", 1),
    ("file", "kind = \"file\"\nchannels = 2\n", 1),
    ("two shards", "profile = \"instant\"\nshards = 2\n", 2),
];

#[test]
fn acknowledged_writes_survive_kills_of_every_kind_of_server_with_and_without_kept_memory() {
    let zoned = std::env::var("WEIR_E2E_ZONED").ok();
    if zoned.is_none() {
        println!(
            "SKIPPED: the zoned cells: WEIR_E2E_ZONED names no zoned disk; zoned.rs has kills in a guest"
        );
    }
    let kinds = KINDS.len() as u32 + 1 + u32::from(zoned.is_some());
    let rounds = kills_of_a_cell(2 * kinds);
    for kept in ["auto", "off"] {
        for (at, (name, device, shards)) in KINDS.into_iter().enumerate() {
            println!("{name}, kept memory {kept}: {rounds} kills");
            let own = Scratch::new(&format!("kills-{kept}{at}-device"));
            survive_cell(&own, &own.file("device"), (device, kept), shards, rounds);
        }
        if let Some(disk) = &zoned {
            println!("zoned, kept memory {kept}: {rounds} kills");
            let own = Scratch::new(&format!("kills-{kept}-zoned"));
            let kind = "kind = \"file\"\n";
            let format = ["format", "--force", "--data", disk, "--capacity", "64MiB"];
            let made = crate::tools::weir(&format);
            assert!(made.status.success(), "{}", crate::tools::said(&made));
            survive_cell(&own, disk, (kind, kept), 1, rounds);
        }
        println!("raw, kept memory {kept}: {rounds} kills");
        survive_raw(kept, rounds);
    }
}

fn survive_cell(
    own: &Scratch,
    device: &str,
    (kind, kept): (&str, &str),
    shards: usize,
    rounds: u32,
) {
    let scratch = Scratch::new(&format!("kc{shards}"));
    let (config, socket) = (own.file("weir.toml"), scratch.data().join("nbd.sock"));
    // Where the clients of this server look for it: the device is elsewhere.
    let control = scratch.data().join("control.sock");
    fs::create_dir_all(scratch.data()).expect("a folder");
    let kind = kind.replace("FAST", &format!("{:?}", own.file("fast")));
    let text = format!(
        "[device]\npath = {device:?}\nkept_memory = {kept:?}\n{kind}[nbd]\nunix = {socket:?}\n\
         [control]\nunix = {control:?}\n[[volume]]\nname = \"default\"\nsize = \"64MiB\"\n"
    );
    fs::write(&config, text).expect("a config");
    let args = ["--config", &*config, "--data", device];
    survive_on(&scratch, ("kills", own), &args, shards, rounds);
}

/// Raw units: pages written in order to several raw blocks at a time; what was acknowledged is read after
/// each kill, and what was written without an answer is whole or not there.
fn survive_raw(kept: &str, rounds: u32) {
    let seed = seed();
    println!("WEIR_E2E_SEED={seed} repeats this run's requests");
    let mut random = Random::new(seed);
    let scratch = Scratch::new(&format!("kills-raw-{kept}"));
    let config = scratch.file("weir.toml");
    let socket = scratch.data().join("nbd.sock");
    let text = format!(
        "[device]\nkept_memory = {kept:?}\nprofile = \"instant\"\nchannels = 2\n\
                        [nbd]\nunix = {socket:?}\n"
    );
    fs::write(&config, text).expect("a config");
    let args = ["--config", &*config, "--raw", "--write", "page", "--capacity", "64MiB"];
    let mut server = Server::start(&scratch, &args);
    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
    let shape = client::Device::open(&uri).expect("raw units").unit(0).expect("a unit").shape();
    let (raw_block, page) = (shape.raw_block_bytes, shape.page_bytes);
    // Of each raw block that is used: pages acknowledged, and the version they have.
    let mut blocks = [(0u64, 0u64); 4];
    for round in 1..=u64::from(rounds) {
        let context = format!("seed={seed} round={round}");
        let mut client = Client::connect(&server.socket(), "unit/0").expect("a client");
        let mut sent = blocks;
        let mut in_flight = BTreeMap::new();
        for _ in 0..20 + random.below(200) {
            let at = random.below(blocks.len() as u64) as usize;
            if sent[at].0 * page == raw_block && in_flight.values().all(|&(of, _)| of != at) {
                let offset = at as u64 * raw_block;
                let cookie = client.send(TRIM, 0, offset, raw_block as u32, &[]);
                sent[at] = (0, sent[at].1 + 1);
                in_flight.insert(cookie.expect("the server is alive"), (at, 0));
                while !in_flight.is_empty() {
                    let answer = client.receive().expect("an answer");
                    assert_eq!(answer.error, 0, "{context}");
                    note_raw(&mut blocks, &sent, in_flight.remove(&answer.cookie));
                }
            }
            if sent[at].0 * page < raw_block {
                let (number, version) = sent[at];
                let data = raw_page(at, number, version, page);
                let offset = at as u64 * raw_block + number * page;
                let cookie = client.send(WRITE, 0, offset, page as u32, &data);
                in_flight.insert(cookie.expect("the server is alive"), (at, number + 1));
                sent[at].0 += 1;
            }
            if in_flight.len() >= 8 {
                let answer = client.receive().expect("an answer");
                assert_eq!(answer.error, 0, "{context}");
                note_raw(&mut blocks, &sent, in_flight.remove(&answer.cookie));
            }
        }
        server.kill();
        while let Ok(answer) = client.receive() {
            assert_eq!(answer.error, 0, "{context}");
            note_raw(&mut blocks, &sent, in_flight.remove(&answer.cookie));
        }
        server = Server::start(&scratch, &args);
        let mut client = Client::connect(&server.socket(), "unit/0").expect("a client");
        for (at, block) in blocks.iter_mut().enumerate() {
            let shape = (raw_block, page);
            *block = begun_anew(&mut client, (at, *block), sent[at].1, shape, &context);
        }
    }
    server.terminate();
}

/// Of a raw block all acknowledged pages are there, and what else is there was written. A kill may have left
/// it open, and it takes no more then: it is erased, and has a new version.
fn begun_anew(
    client: &mut Client,
    (at, block): (usize, (u64, u64)),
    version: u64,
    (raw_block, page): (u64, u64),
    context: &str,
) -> (u64, u64) {
    let mut number = 0;
    while number * page < raw_block {
        let offset = at as u64 * raw_block + number * page;
        let Ok(found) = client.try_read(offset, page as u32) else { break };
        let whole = found == raw_page(at, number, version, page);
        assert!(whole, "{context}: page {number} of raw block {at} is not what was written");
        number += 1;
    }
    let acknowledged = if block.1 == version { block.0 } else { 0 };
    assert!(number >= acknowledged, "{context}: {number} of {acknowledged} pages are there");
    let erased = client.errno_of(TRIM, 0, at as u64 * raw_block, raw_block as u32);
    assert_eq!(erased, 0, "{context}");
    (0, version + 1)
}

/// An answer came: so many pages of a raw block are acknowledged.
fn note_raw(blocks: &mut [(u64, u64)], sent: &[(u64, u64)], done: Option<(usize, u64)>) {
    let (at, pages) = done.expect("an answer to what was asked");
    blocks[at] = (pages, sent[at].1);
}

fn raw_page(at: usize, number: u64, version: u64, bytes: u64) -> Vec<u8> {
    stamp(at as u64 * 100_000 + number, version).repeat(bytes as usize / BLOCK)
}

#[test]
fn a_flush_on_one_connection_covers_what_another_got_acknowledged() {
    let scratch = Scratch::new("multiconn");
    let mut server = Server::start(&scratch, SMALL_ON_TWO_SHARDS);
    let blocks = server.connect().size / BLOCK as u64;
    let run = RUN_BLOCKS_MAX * BLOCK as u64;
    for version in 1..=5 {
        let mut clients = server.connect_to_each_shard(2);
        for first in (0..blocks).step_by(RUN_BLOCKS_MAX as usize) {
            let data: Vec<u8> =
                (first..first + RUN_BLOCKS_MAX).flat_map(|l| stamp(l, version)).collect();
            clients[1].write(first * BLOCK as u64, &data);
        }
        for at in (0..blocks * BLOCK as u64).step_by(2 * run as usize) {
            assert_eq!(clients[1].errno_of(TRIM, 0, at, run as u32), 0, "trim at {at}");
        }
        // The system's cache outlives a killed process, so the kill alone cannot tell whether the
        // flush reached the FTL of the other shard; its counter can.
        let before = server.counters("host_flushes");
        clients[0].flush();
        let after = server.counters("host_flushes");
        assert!(
            before.len() == 2 && before.iter().zip(&after).all(|(before, after)| before < after),
            "a flush reaches both shards: {before:?}, then {after:?}"
        );
        server.kill();
        server = Server::start(&scratch, SMALL_ON_TWO_SHARDS);
        let mut client = server.connect();
        for first in (0..blocks).step_by(RUN_BLOCKS_MAX as usize) {
            let trimmed = (first / RUN_BLOCKS_MAX).is_multiple_of(2);
            let expected = if trimmed { ZEROES } else { version };
            let data = client.read(first * BLOCK as u64, run as u32);
            for (lba, bytes) in (first..).zip(data.chunks(BLOCK)) {
                assert_eq!(read_stamp(lba, bytes, "after the flush"), expected, "block {lba}");
            }
        }
    }
    server.terminate();
}

/// The seed of this run: `WEIR_E2E_SEED`, or the clock's.
fn seed() -> u64 {
    std::env::var("WEIR_E2E_SEED").ok().map_or_else(
        || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.expect("the clock is past 1970").as_nanos() as u64
        },
        |text| text.parse().expect("WEIR_E2E_SEED is a number"),
    )
}

/// Kills a server `rounds` times, with load from a client on each of its shards.
fn survive(name: &str, args: &[&str], shards: usize, rounds: u32) {
    let scratch = Scratch::new(name);
    survive_on(&scratch, (name, &scratch), args, shards, rounds);
}

/// The same with the device in another scratch directory.
fn survive_on(
    scratch: &Scratch,
    (name, device): (&str, &Scratch),
    args: &[&str],
    shards: usize,
    rounds: u32,
) {
    let seed = seed();
    println!("{name}: WEIR_E2E_SEED={seed} repeats this run's requests");
    let mut random = Random::new(seed);
    let mut server = Server::start(scratch, args);
    let mut model = Model::new(server.connect().size / BLOCK as u64);
    let mut kept = KeptMemory::default();
    for round in 0..rounds {
        let context = format!("seed={seed} round={round}");
        let replies = 1 + random.below(400);
        let clients = server.connect_to_each_shard(shards);
        load(&mut server, clients, &mut model, &mut random, replies, &context);
        while random.chance(0.3) {
            kept.spoil(device, &mut random);
            kill_during_recovery(scratch, args, &mut random);
        }
        kept.spoil(device, &mut random);
        server = Server::start(scratch, args);
        model.settle(&mut server.connect(), &context);
    }
    println!(
        "{name}: {rounds} kills, {} requests acknowledged, {} in flight at a kill; kept memory spoilt \
         {} times",
        model.acknowledged, model.lost, kept.spoilt
    );
    assert!(
        rounds < 4 || model.lost > 0,
        "no kill found a request in flight: the test tested nothing"
    );
    server.terminate();
}

/// What becomes of kept memory between a kill and the next start. Whatever it is, the next server must
/// show the same data.
#[derive(Default)]
struct KeptMemory {
    /// As it was after an earlier kill.
    old: Option<Vec<u8>>,
    spoilt: u32,
}

impl KeptMemory {
    fn spoil(&mut self, scratch: &Scratch, random: &mut Random) {
        let Some(path) = scratch.kept().pop() else { return };
        let Ok(mut bytes) = fs::read(&path) else { return };
        // Cut short last time, and the server was killed again before it made it anew.
        if bytes.len() <= 4096 {
            return;
        }
        let choice = random.below(10);
        if choice == 9 || self.old.is_none() {
            self.old = Some(bytes.clone());
        }
        match choice {
            0 => {
                fs::remove_file(&path).expect("it can be removed");
                self.spoilt += 1;
                return;
            }
            1 | 2 => {
                // Not the head, whose checksum would have it refused as a whole.
                for _ in 0..1 + random.below(64) {
                    let at = 4096 + random.below(bytes.len() as u64 - 4096) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
            }
            3 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            4 => bytes = self.old.clone().expect("there is one"),
            _ => return,
        }
        // Written over, so that it stays its owner's alone.
        fs::write(&path, bytes).expect("it can be written");
        self.spoilt += 1;
    }
}

/// Starts a server and kills it while it recovers, or shortly after: recovery may be interrupted
/// anywhere. The one place where a test sleeps, because the instant is what is being drawn.
fn kill_during_recovery(scratch: &Scratch, args: &[&str], random: &mut Random) {
    let mut server = Server::spawn(scratch, args);
    std::thread::sleep(std::time::Duration::from_micros(random.below(30_000)));
    server.kill();
}

/// Keeps requests in flight until `replies` came, then kills the server and takes the replies that
/// had been sent: those count as acknowledged too.
fn load(
    server: &mut Server,
    mut clients: Vec<Client>,
    model: &mut Model,
    random: &mut Random,
    replies: u64,
    context: &str,
) {
    for _ in 0..replies {
        while model.in_flight.len() < DEPTH {
            let chosen = random.below(clients.len() as u64) as usize;
            model.submit(chosen, &mut clients[chosen], random);
        }
        // Of one with a request in flight, so that a reply must come.
        let waiting = random.below(DEPTH as u64) as usize;
        let chosen = model.in_flight.keys().nth(waiting).expect("as many are in flight").0;
        let answer = clients[chosen]
            .receive()
            .unwrap_or_else(|e| panic!("{context}: {e}\n{}", server.log()));
        model.take(chosen, &answer, context);
    }
    if random.chance(0.3) {
        // Half a write on the wire when the end comes: it must leave no trace.
        let half = crate::nbd::header(WRITE, 0, u64::MAX, 0, RUN_BLOCKS_MAX as u32 * BLOCK as u32);
        let _ = clients[0].send_raw(&half);
        let _ = clients[0].send_raw(&vec![0xee; BLOCK * 3 + 17]);
    }
    server.kill();
    for (index, client) in clients.iter_mut().enumerate() {
        while let Ok(answer) = client.receive() {
            model.take(index, &answer, context);
        }
    }
}

/// What each block may hold.
struct Model {
    blocks: Vec<Block>,
    in_flight: BTreeMap<RequestId, InFlight>,
    version_next: u64,
    acknowledged: u64,
    lost: u64,
}

/// A client, and the cookie of one of its requests.
type RequestId = (usize, u64);

#[derive(Clone)]
struct Block {
    /// What a read returns now, if nothing is in flight for the block.
    current: u64,
    /// What may be found after a kill.
    survivors: Vec<u64>,
    /// The trim that was acknowledged last.
    trimmed_by: RequestId,
    /// A request for it is in flight; no second one is sent, as their order would be open.
    busy: bool,
}

struct InFlight {
    first: u64,
    count: u64,
    what: What,
}

enum What {
    Write {
        version: u64,
    },
    Trim {
        fua: bool,
    },
    Read,
    /// Blocks, and their trim, that was acknowledged before the flush was sent.
    Flush {
        trimmed: Vec<(u64, RequestId)>,
    },
}

impl Model {
    fn new(blocks: u64) -> Self {
        let block =
            Block { current: ZEROES, survivors: vec![ZEROES], trimmed_by: (0, 0), busy: false };
        Self {
            blocks: vec![block; usize::try_from(blocks.min(BLOCKS_MAX)).expect("it fits")],
            in_flight: BTreeMap::new(),
            version_next: 1,
            acknowledged: 0,
            lost: 0,
        }
    }

    /// Draws a request and sends it.
    fn submit(&mut self, index: usize, client: &mut Client, random: &mut Random) {
        if random.chance(0.03) {
            let trimmed = (0..self.blocks.len() as u64)
                .filter(|&lba| self.is_trimmed(lba))
                .map(|lba| (lba, self.blocks[lba as usize].trimmed_by))
                .collect();
            let cookie = client.send(FLUSH, 0, 0, 0, &[]).expect("the server is alive");
            let flush = InFlight { first: 0, count: 0, what: What::Flush { trimmed } };
            self.in_flight.insert((index, cookie), flush);
            return;
        }
        let (first, count) = self.draw_run(random);
        let (offset, length) = (first * BLOCK as u64, count as u32 * BLOCK as u32);
        let fua = random.chance(0.2);
        let flags = if fua { FLAG_FUA } else { 0 };
        let kind = random.below(10);
        let (cookie, what) = match kind {
            0 => (client.send(READ, 0, offset, length, &[]), What::Read),
            1 => (client.send(TRIM, flags, offset, length, &[]), What::Trim { fua }),
            _ => {
                let version = self.version_next;
                self.version_next += 1;
                let data: Vec<u8> =
                    (first..first + count).flat_map(|l| stamp(l, version)).collect();
                (client.send(WRITE, flags, offset, length, &data), What::Write { version })
            }
        };
        let cookie = cookie.expect("the server is alive");
        for block in &mut self.blocks[first as usize..(first + count) as usize] {
            block.busy = true;
            match what {
                What::Write { version } => block.survivors.push(version),
                What::Trim { .. } => block.survivors.push(ZEROES),
                What::Read | What::Flush { .. } => {}
            }
        }
        self.in_flight.insert((index, cookie), InFlight { first, count, what });
    }

    /// A run of blocks with nothing in flight. Half of the runs fall into an eighth of the space,
    /// so that some blocks are rewritten often and GC has something to move.
    fn draw_run(&self, random: &mut Random) -> (u64, u64) {
        let blocks = self.blocks.len() as u64;
        loop {
            let space = if random.chance(0.5) { blocks / 8 } else { blocks };
            let first = random.below(space);
            let count = if random.chance(0.5) { 1 } else { 1 + random.below(RUN_BLOCKS_MAX) };
            let count = count.min(blocks - first);
            let run = &self.blocks[first as usize..(first + count) as usize];
            if run.iter().all(|block| !block.busy) {
                return (first, count);
            }
        }
    }

    /// Applies a reply.
    fn take(&mut self, client: usize, answer: &Answer, context: &str) {
        let id = (client, answer.cookie);
        let done = self.in_flight.remove(&id).expect("a reply to what was asked");
        assert_eq!(answer.error, 0, "{context}: blocks {}+{}", done.first, done.count);
        self.acknowledged += 1;
        for lba in done.first..done.first + done.count {
            let block = &mut self.blocks[lba as usize];
            block.busy = false;
            match done.what {
                What::Write { version } => {
                    block.current = version;
                    block.survivors = vec![version];
                }
                What::Trim { fua } => {
                    block.current = ZEROES;
                    block.trimmed_by = id;
                    if fua {
                        block.survivors = vec![ZEROES];
                    }
                }
                What::Read => {
                    let at = (lba - done.first) as usize * BLOCK;
                    let found = read_stamp(lba, &answer.data[at..at + BLOCK], context);
                    assert_eq!(found, block.current, "{context}: block {lba} before the kill");
                }
                What::Flush { .. } => {}
            }
        }
        if let What::Flush { trimmed } = done.what {
            for (lba, trim) in trimmed {
                // Written or trimmed again since: nothing to learn from this flush.
                if self.is_trimmed(lba) && self.blocks[lba as usize].trimmed_by == trim {
                    self.blocks[lba as usize].survivors = vec![ZEROES];
                }
            }
        }
    }

    /// An acknowledged trim is the last thing that happened to the block.
    fn is_trimmed(&self, lba: u64) -> bool {
        let block = &self.blocks[lba as usize];
        !block.busy && block.current == ZEROES
    }

    /// Reads every block after a recovery and compares. What is found is what must stay.
    fn settle(&mut self, client: &mut Client, context: &str) {
        self.lost += self.in_flight.len() as u64;
        self.in_flight.clear();
        let chunk = 256;
        for first in (0..self.blocks.len()).step_by(chunk) {
            let count = chunk.min(self.blocks.len() - first);
            let data = client.read((first * BLOCK) as u64, (count * BLOCK) as u32);
            for (index, bytes) in data.chunks(BLOCK).enumerate() {
                let lba = first + index;
                let found = read_stamp(lba as u64, bytes, context);
                let block = &mut self.blocks[lba];
                assert!(
                    block.survivors.contains(&found),
                    "{context}: block {lba} holds version {found}, may hold {:?}",
                    block.survivors
                );
                *block = Block {
                    current: found,
                    survivors: vec![found],
                    trimmed_by: (0, 0),
                    busy: false,
                };
            }
        }
    }
}

/// A block full of its address and version, so that every 16 bytes tell where they come from.
fn stamp(lba: u64, version: u64) -> Vec<u8> {
    let mut pair = [0; 16];
    pair[..8].copy_from_slice(&lba.to_le_bytes());
    pair[8..].copy_from_slice(&version.to_le_bytes());
    pair.repeat(BLOCK / 16)
}

/// The version that a block holds. Panics if it is torn or belongs elsewhere.
fn read_stamp(lba: u64, bytes: &[u8], context: &str) -> u64 {
    if bytes.iter().all(|&byte| byte == 0) {
        return ZEROES;
    }
    let version = u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes"));
    assert!(
        bytes == stamp(lba, version),
        "{context}: block {lba} is torn or misplaced: {:?}...",
        &bytes[..32]
    );
    version
}
