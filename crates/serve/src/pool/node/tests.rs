//! Nodes over sockets: asked by a plain client, over memory and files, stopped and started.

use super::*;
use crate::device::{KeptOptions, Kind, Losses, RawOptions};
use crate::medium::Injections;
use crate::pool::block::Block;
use crate::runtime::buffer::Buffer;
use ::pool::message::{Answer, Ask, AskId, BandHeader, Refusal, Slot};
use ::pool::wire::{self, Decoded, Hello, Message};
use ::pool::words::{BandName, BandShape, Generation, Members, PoolId, VolumeId};
use flash::Random;
use ftl::raw::RawSettings;
use nand::{Faults, Profile};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

const POOL: PoolId = PoolId(0x5eed);
const SHAPE: BandShape = BandShape { pages: 8, slots_per_page: 4 };

pub(in crate::pool) fn device(kind: Kind) -> DeviceOptions {
    // In a file a raw block is of 4 MiB.
    let blocks = if matches!(kind, Kind::File { .. }) { 16_384 } else { 4096 };
    let raw = RawOptions { gang: 1, spare: None, blocks, settings: RawSettings::default() };
    DeviceOptions {
        kind,
        volumes: Vec::new(),
        blocks_min: 0,
        op_percent: 0,
        channels: 2,
        dies_per_channel: 1,
        shards: 1,
        faults: Faults::default(),
        raw: Some(raw),
        fast: None,
        kept: KeptOptions::default(),
        losses: Losses::default(),
        injections: Injections::default(),
        dilate: 1,
    }
}

pub(in crate::pool) fn options(node: u32, kind: Kind) -> NodeOptions {
    NodeOptions {
        node: NodeId(node),
        caller: Caller { pool: POOL, name: format!("node {node}"), tls: None },
        tls: None,
        listen: "127.0.0.1:0".parse().unwrap(),
        guests_max: 16,
        device: device(kind),
        store: RawStoreSettings::default(),
        settings: NodeSettings::default(),
        expectation: Box::new(|_| Default::default()),
        driver: DriverChoice::Auto,
    }
}

fn start(options: NodeOptions) -> Result<RunningNode, ServeError> {
    super::start(options, |_| Ok(()))
}

fn memory() -> Kind {
    Kind::Memory { profile: Profile::builtin("instant").expect("it is built in") }
}

/// A client that asks one thing at a time.
struct Client {
    stream: TcpStream,
    bytes: Vec<u8>,
    asked: u64,
}

impl Client {
    fn connect(address: SocketAddr, hello: &Hello) -> (Self, Message<Vec<u8>>) {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
        let mut client = Self { stream, bytes: Vec::new(), asked: 0 };
        client.say(&Message::Hello(hello.clone()));
        let answer = client.hear().expect("a node greets");
        (client, answer)
    }

    fn of(node: &RunningNode, number: u32) -> Self {
        let hello = Hello { pool: POOL, node: NodeId(number), name: "test".into(), facts: None };
        let (client, answer) = Self::connect(node.address, &hello);
        assert!(matches!(answer, Message::Hello(Hello { facts: Some(_), .. })), "{answer:?}");
        client
    }

    fn say(&mut self, message: &Message<Block>) {
        let encoded = message.encode().unwrap();
        self.stream.write_all(&encoded.head).unwrap();
        for block in encoded.payload {
            self.stream.write_all(block.bytes()).unwrap();
        }
    }

    /// `None`: the node has hung up.
    fn hear(&mut self) -> Option<Message<Vec<u8>>> {
        loop {
            if let Decoded::Message { message, head_bytes, payload_slots } =
                wire::decode(&self.bytes).unwrap()
            {
                let end = head_bytes + payload_slots as usize * 4096;
                if self.bytes.len() >= end {
                    let rest = self.bytes.split_off(end);
                    let whole = std::mem::replace(&mut self.bytes, rest);
                    let of = |i: u32| whole[head_bytes + i as usize * 4096..][..4096].to_vec();
                    return Some(message.with_data(of));
                }
            }
            let mut more = [0; 8192];
            match self.stream.read(&mut more) {
                Ok(0) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the node neither answers nor hangs up: {error}"),
                Ok(count) => self.bytes.extend(&more[..count]),
            }
        }
    }

    fn ask(&mut self, ask: Ask<Block>) -> Answer<Vec<u8>> {
        self.asked += 1;
        self.say(&Message::Ask { id: AskId(self.asked), ask });
        match self.hear() {
            Some(Message::Answer { id, answer, .. }) => {
                assert_eq!(id.0, self.asked);
                answer
            }
            other => panic!("{other:?}"),
        }
    }
}

fn band(life: u64) -> BandName {
    BandName { volume: VolumeId(1), band: 5, life }
}

fn page(seed: u8) -> Vec<Slot<Block>> {
    let mut buffer = Buffer::new(SHAPE.slots_per_page);
    buffer.bytes_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = seed ^ i as u8);
    let slot = |data: Block| {
        use ::pool::node::store::Data;
        Slot { oob: [seed; flash::OOB_BYTES], crc: data.crc(), data: Some(data) }
    };
    Block::all_of(buffer).into_iter().map(slot).collect()
}

fn append(life: u64, generation: u64, at: u32) -> Ask<Block> {
    let members = Members::new(&[NodeId(1), NodeId(2)]).unwrap();
    let open = (at == 0).then_some(BandHeader { members, shape: SHAPE });
    let generation = Generation(generation);
    Ask::Append { band: band(life), generation, page: at, open, slots: page(at as u8) }
}

fn read(life: u64, slot: u32) -> Ask<Block> {
    Ask::Read { band: band(life), generation: Generation(1), slot, count: 2, urgent: true }
}

fn check_page(answer: Answer<Vec<u8>>, at: u32) {
    let Answer::Slots(slots) = answer else { panic!("{answer:?}") };
    assert_eq!(slots.len(), 2);
    for (slot, expected) in slots.into_iter().zip(page(at as u8)) {
        let slot = slot.expect("it is sound");
        assert_eq!((slot.oob, slot.crc), (expected.oob, expected.crc));
        assert_eq!(slot.data.as_deref(), expected.data.as_ref().map(|data| &data.bytes()[..]));
    }
}

#[test]
fn a_node_takes_pages_gives_them_back_and_refuses_who_is_fenced() {
    let node = start(options(1, memory())).unwrap();
    let mut client = Client::of(&node, 1);
    for at in 0..4 {
        assert_eq!(client.ask(append(9, 1, at)), Answer::Done);
    }
    check_page(client.ask(read(9, 8)), 2);
    let fence = Ask::Fence { volume: VolumeId(1), generation: Generation(2), owner: 0 };
    assert_eq!(client.ask(fence), Answer::Done);
    let stale = Answer::Refused(Refusal::Stale { highest: Generation(2) });
    assert_eq!(client.ask(append(9, 1, 4)), stale);
    let status = node.status().unwrap();
    assert_eq!((status.guests, status.done.writes), (vec!["test".to_owned()], 16));
    node.stop().unwrap();
    assert!(client.hear().is_none(), "a node that stops hangs up");
}

#[test]
fn strangers_and_those_who_mean_another_node_are_told_and_sent_away() {
    let node = start(options(1, memory())).unwrap();
    for hello in [
        Hello { pool: PoolId(9), node: NodeId(1), name: "other".into(), facts: None },
        Hello { pool: POOL, node: NodeId(2), name: "lost".into(), facts: None },
    ] {
        let (mut client, answer) = Client::connect(node.address, &hello);
        let Message::Hello(own) = answer else { panic!("{answer:?}") };
        assert_eq!((own.pool, own.node), (POOL, NodeId(1)));
        assert!(client.hear().is_none());
    }
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    // And it goes on serving.
    assert_eq!(Client::of(&node, 1).ask(append(9, 1, 0)), Answer::Done);
    node.stop().unwrap();
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weir-node-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn in_folder(path: &Path) -> Kind {
    let profile = Profile::builtin("instant").expect("it is built in");
    Kind::Nand { path: path.into(), profile }
}

#[test]
fn from_when_another_process_has_the_device_a_node_says_of_nothing_that_it_is_done() {
    let folder = Folder::new("taken");
    let node = start(options(1, in_folder(&folder.0))).unwrap();
    let mut client = Client::of(&node, 1);
    assert_eq!(client.ask(append(9, 1, 0)), Answer::Done);
    // At once behind a look of the node, which holds for a while where something is only written.
    let path = folder.0.join("generation");
    let mut bytes = std::fs::read(&path).unwrap();
    let generation = u64::from_le_bytes(bytes[..8].try_into().unwrap()) + 1;
    bytes[..12].copy_from_slice(&crate::medium::encode_generation(generation));
    std::fs::write(&path, &bytes).unwrap();
    client.say(&Message::Ask { id: AskId(9), ask: append(9, 1, 1) });
    let answer = client.hear();
    let done = matches!(answer, Some(Message::Answer { answer: Answer::Done, .. }));
    assert!(!done, "{answer:?}");
    let ended = node.join().expect_err("it is another's").to_string();
    assert!(ended.contains("acknowledges nothing any more"), "{ended}");
}

#[test]
fn a_node_on_files_has_after_a_restart_what_it_had_and_is_no_other_node() {
    let folder = Folder::new("restart");
    std::fs::create_dir_all(&folder.0).unwrap();
    for kind in [in_folder(&folder.0.join("flash")), in_file(&folder.0.join("drive"))] {
        comes_back_as_it_was(&kind);
    }
}

fn comes_back_as_it_was(kind: &Kind) {
    let node = start(options(1, kind.clone())).unwrap();
    let mut client = Client::of(&node, 1);
    for at in 0..3 {
        assert_eq!(client.ask(append(9, 1, at)), Answer::Done);
    }
    let seal = Ask::Seal { band: band(9), generation: Generation(1), pages: 3 };
    assert_eq!(client.ask(seal), Answer::Done);
    node.stop().unwrap();
    let error = start(options(2, kind.clone())).err().unwrap().to_string();
    assert!(error.contains("node.id = 1"), "{error}");
    let node = start(options(1, kind.clone())).unwrap();
    assert_eq!(node.found.bands.len(), 1);
    assert!(node.found.bands[0].entry.sealed);
    check_page(Client::of(&node, 1).ask(read(9, 8)), 2);
    node.stop().unwrap();
}

fn in_file(path: &Path) -> Kind {
    Kind::File { path: path.into() }
}

fn flush() -> Ask<Block> {
    Ask::Flush { volume: VolumeId(1), generation: Generation(1) }
}

#[test]
fn a_node_on_a_file_is_not_durable_before_a_flush_and_says_so() {
    let folder = Folder::new("volatile");
    std::fs::create_dir_all(&folder.0).unwrap();
    let path = folder.0.join("drive");
    let node = start(options(1, in_file(&path))).unwrap();
    assert!(!node.found.durable, "clients have to flush it");
    let mut client = Client::of(&node, 1);
    assert_eq!(client.ask(append(9, 1, 0)), Answer::Done);
    assert_eq!(client.ask(flush()), Answer::Done);
    assert_eq!(client.ask(append(9, 1, 1)), Answer::Done);
    // What power loss may leave behind: nothing of what no flush covers, in a copy that was never closed.
    let copy = folder.0.join("copy");
    std::fs::copy(&path, &copy).unwrap();
    lose(&copy, 1);
    let other = start(options(1, in_file(&copy))).unwrap();
    assert_eq!(other.found.bands.len(), 1);
    assert_eq!(other.found.bands[0].entry.pages, 1, "what was flushed, and no more");
    check_page(Client::of(&other, 1).ask(read(9, 0)), 0);
    other.stop().unwrap();
    node.stop().unwrap();
}

/// A file of which power loss has kept any part of what changed: program units whole, or not, or by sectors.
fn mixed(before: &[u8], after: &[u8], random: &mut Random) -> Vec<u8> {
    const SECTOR: usize = 4096;
    /// The sectors before the blocks, and those of a program unit.
    const HEAD: usize = 1024;
    const UNIT: usize = 17;
    assert_eq!(before.len(), after.len());
    let mut image = after.to_vec();
    let changed = |at: usize| before[at..at + SECTOR] != after[at..at + SECTOR];
    let (mut unit, mut fate) = (usize::MAX, 0);
    for sector in (0..after.len() / SECTOR).filter(|&sector| changed(sector * SECTOR)) {
        let of = sector.checked_sub(HEAD).map_or(sector, |at| HEAD + at / UNIT);
        if of != unit {
            (unit, fate) = (of, random.below(3));
        }
        if fate == 1 || fate == 2 && random.chance(0.5) {
            let at = sector * SECTOR;
            image[at..at + SECTOR].copy_from_slice(&before[at..at + SECTOR]);
        }
    }
    image
}

/// Clears the program unit in which page `lost` of the band begins, as a cache that lost its power does.
fn lose(path: &Path, lost: u32) {
    const SECTOR: usize = 4096;
    let mut bytes = std::fs::read(path).unwrap();
    let begins = |sector: &[u8]| {
        let header = ::pool::node::raw::format::AppendHeader::decode(sector);
        header.is_some_and(|header| header.page == lost)
    };
    let at = bytes.chunks_exact(SECTOR).position(begins).expect("it was written");
    // The sector before it has the OOBs of the program unit.
    bytes[(at - 1) * SECTOR..][..17 * SECTOR].fill(0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_was_flushed_survives_the_loss_of_any_part_of_what_was_not() {
    let folder = Folder::new("power");
    std::fs::create_dir_all(&folder.0).unwrap();
    for seed in 1..=4 {
        println!("seed {seed}");
        lose_power(&folder.0, &mut Random::new(seed));
    }
}

fn lose_power(folder: &Path, random: &mut Random) {
    let (path, image) = (folder.join("drive"), folder.join("image"));
    [&path, &image].iter().for_each(|old| drop(std::fs::remove_file(old)));
    let node = start(options(1, in_file(&path))).unwrap();
    let mut client = Client::of(&node, 1);
    let mut written: BTreeMap<u64, u32> = (1..=3).map(|life| (life, 0)).collect();
    let mut flushed = (written.clone(), std::fs::read(&path).unwrap());
    for step in 0..24 {
        let life = 1 + random.below(3);
        let at = written[&life];
        if at < SHAPE.pages {
            assert_eq!(client.ask(append(life, 1, at)), Answer::Done);
            written.insert(life, at + 1);
        }
        if step == 3 || random.chance(0.1) {
            assert_eq!(client.ask(flush()), Answer::Done);
            flushed = (written.clone(), std::fs::read(&path).unwrap());
        }
    }
    let (durable, before) = flushed;
    std::fs::write(&image, mixed(&before, &std::fs::read(&path).unwrap(), random)).unwrap();
    let other = start(options(1, in_file(&image))).unwrap();
    let mut reader = Client::of(&other, 1);
    for (life, pages) in durable {
        let found = other.found.bands.iter().find(|found| found.entry.band == band(life));
        let there = found.map_or(0, |found| found.entry.pages);
        assert!(
            (pages..=written[&life]).contains(&there),
            "{pages} of {life} were flushed: {there}"
        );
        for at in 0..there {
            let answer = reader.ask(read(life, at * SHAPE.slots_per_page));
            if at < pages {
                check_page(answer, at);
            } else if let Answer::Slots(slots) = answer {
                // What no flush covers may be unreadable, and never anything else than it was.
                for (slot, expected) in slots.into_iter().zip(page(at as u8)) {
                    assert!(slot.is_none_or(|slot| slot.crc == expected.crc));
                }
            }
        }
    }
    other.stop().unwrap();
    node.stop().unwrap();
}

#[test]
fn a_file_that_another_node_has_open_and_one_that_holds_something_are_refused() {
    let folder = Folder::new("taken");
    std::fs::create_dir_all(&folder.0).unwrap();
    let path = folder.0.join("drive");
    let node = start(options(1, in_file(&path))).unwrap();
    let error = start(options(1, in_file(&path))).err().unwrap().to_string();
    assert!(error.contains("drive") && error.contains("in use"), "{error}");
    node.stop().unwrap();
    let foreign = folder.0.join("letter");
    std::fs::write(&foreign, b"dear reader").unwrap();
    let error = start(options(1, in_file(&foreign))).err().unwrap().to_string();
    assert!(error.contains("letter") && error.contains("not Weir's"), "{error}");
    assert_eq!(std::fs::read(&foreign).unwrap(), b"dear reader");
    // A device in block mode is none either.
    let block = folder.0.join("block");
    let volume = crate::device::VolumeOptions { name: "v".into(), blocks: 4096, read_only: false };
    let of_volumes = DeviceOptions {
        op_percent: 25,
        volumes: vec![volume],
        raw: None,
        ..device(in_file(&block))
    };
    let mut made = Device::create(&of_volumes, &Settings::default()).unwrap();
    made.commit().unwrap();
    drop(made);
    let error = start(options(1, in_file(&block))).err().unwrap().to_string();
    assert!(error.contains("was formatted with mode = \"block\""), "{error}");
}

#[test]
fn a_band_is_copied_from_node_to_node() {
    let from = start(options(1, memory())).unwrap();
    let to = start(options(2, memory())).unwrap();
    let mut client = Client::of(&from, 1);
    for at in 0..8 {
        assert_eq!(client.ask(append(9, 1, at)), Answer::Done);
    }
    let seal = Ask::Seal { band: band(9), generation: Generation(1), pages: 8 };
    assert_eq!(client.ask(seal), Answer::Done);
    to.tell(Notice::Addresses([(NodeId(1), from.address.to_string())].into()));
    let mut client = Client::of(&to, 2);
    let members = Members::new(&[NodeId(1), NodeId(2)]).unwrap();
    let copy = Ask::Copy {
        band: band(9),
        generation: Generation(1),
        from: Members::new(&[NodeId(1)]).unwrap(),
        header: BandHeader { members, shape: SHAPE },
        pages: 8,
        bytes_per_s_max: 1 << 30,
    };
    // The link between them may still be on its way.
    let answer = (0..50).map(|_| client.ask(copy.clone())).find(|answer| *answer == Answer::Done);
    assert_eq!(answer, Some(Answer::Done));
    check_page(client.ask(read(9, 28)), 7);
    drop(from);
    to.stop().unwrap();
}
