//! The engine, its core and its medium over every store, in virtual time, with every fault on: what a
//! server does when the flash and the files below fail, without its sockets and its clock.
//!
//! Held to: every piece ends within a bound of media time; a read gives what was acknowledged or an
//! error; the core never breaks a rule of the medium; a stop ends. By seed.

use crate::device::{Device, DeviceOptions, Kind, VolumeOptions};
use crate::medium::Injections;
use crate::runtime::buffer::Buffer;
use crate::runtime::ring::{DriverChoice, Ring};
use crate::runtime::shard::{Engine, Finished, Milestone, Origin, Piece, Work};
use crate::server::{run_until_milestone, start_engine, virtual_turn};
use flash::{BLOCK_BYTES, Instant, Random, SECOND};
use ftl::{Input, Settings};
use nand::{Faults, Profile};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const BLOCKS: u32 = 2048;
const RUN_MAX: u32 = 16;
const DEPTH: usize = 12;
const PIECES: u32 = 1500;
/// Most media time from a piece to its end: on a device that is nearly worn out it waits for many bands to be
/// emptied, with slow commands among them.
const BOUND_NS: u64 = 30 * SECOND;

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

struct Given {
    work: Work,
    lba: u32,
    blocks: u32,
    version: u64,
    at: Instant,
    buffer: Buffer,
}

/// What a run met.
#[derive(Debug, Default)]
struct Met {
    errors: u32,
    unclean: u32,
    program_failures: u64,
}

struct Rig {
    engine: Engine,
    ring: Ring,
    now: Instant,
    given: BTreeMap<u32, Given>,
    next: u32,
    /// What each block may be read as, now.
    model: Vec<BTreeSet<u64>>,
    busy: BTreeSet<u32>,
    random: Random,
    lies: bool,
    /// Turns in a row after which nothing was under way.
    idle_turns: u32,
}

impl Rig {
    fn submit(&mut self) {
        let (lba, blocks) = loop {
            let space = if self.random.chance(0.5) { BLOCKS / 8 } else { BLOCKS };
            let lba = self.random.below(space.into()) as u32;
            let blocks = (1 + self.random.below(RUN_MAX.into()) as u32).min(BLOCKS - lba);
            if (lba..lba + blocks).all(|lba| !self.busy.contains(&lba)) {
                break (lba, blocks);
            }
        };
        let fua = self.random.chance(0.2);
        let version = u64::from(self.next) + 1;
        let work = match self.random.below(20) {
            0..=4 => Work::Read,
            5 | 6 => Work::Trim { fua },
            7 => Work::Flush,
            _ => Work::Write { fua, handle: 0, atomic: false },
        };
        let (lba, blocks) = if work == Work::Flush { (0, 0) } else { (lba, blocks) };
        let mut buffer = Buffer::new(blocks.max(1));
        if let Work::Write { .. } = work {
            for (i, block) in buffer.bytes_mut().chunks_mut(BLOCK_BYTES).enumerate() {
                stamp(block, lba + i as u32, version);
            }
        }
        self.busy.extend(lba..lba + blocks);
        let origin = Origin { shard: 0, request: self.next };
        let view = buffer.view(0, blocks);
        self.engine.note_time(self.now);
        self.engine.submit(Piece { origin, work, lba, blocks, view });
        let given = Given { work, lba, blocks, version, at: self.now, buffer };
        self.given.insert(self.next, given);
        self.next += 1;
    }

    fn take_finished(&mut self, met: &mut Met) {
        let mut finished = Vec::new();
        self.engine.take_finished(&mut finished);
        for Finished { origin, result, .. } in finished {
            let given = self.given.remove(&origin.request).expect("a piece that was given");
            met.errors += u32::from(result.is_err());
            for i in 0..given.blocks {
                let lba = given.lba + i;
                self.busy.remove(&lba);
                let may = &mut self.model[lba as usize];
                let version = match given.work {
                    Work::Read => {
                        let block =
                            &given.buffer.bytes()[i as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                        if result.is_ok() {
                            let found = read_stamp(block, lba);
                            assert!(may.contains(&found), "block {lba} is {found}, may be {may:?}");
                        } else {
                            assert!(self.lies, "block {lba}: {result:?} though nothing lies");
                        }
                        continue;
                    }
                    Work::Trim { .. } => 0,
                    _ => given.version,
                };
                if result.is_ok() {
                    may.clear();
                }
                may.insert(version);
            }
        }
    }

    fn step(&mut self, met: &mut Met) {
        virtual_turn(&mut self.engine, &mut self.ring, &mut self.now).expect("the ring works");
        self.take_finished(met);
        if let Some((_, oldest)) = self.given.first_key_value() {
            // What the ring has just ended is dealt with in the next turn.
            let idle = self.ring.under_way() == 0 && self.engine.deadline().is_none();
            self.idle_turns = if idle { self.idle_turns + 1 } else { 0 };
            let idle = self.idle_turns > 1;
            let late = self.now > oldest.at + BOUND_NS;
            let state = || {
                let index = self.engine.late_index();
                format!(
                    "{:?}; {}",
                    index.map(|index| self.engine.core.waits_for(index)),
                    self.engine.core.explain()
                )
            };
            assert!(!idle && !late, "a piece has no end: {:?}: {}", oldest.work, state());
        }
    }
}

fn stamp(block: &mut [u8], lba: u32, version: u64) {
    for pair in block.chunks_mut(16) {
        pair[..8].copy_from_slice(&u64::from(lba).to_le_bytes());
        pair[8..].copy_from_slice(&version.to_le_bytes());
    }
}

fn read_stamp(block: &[u8], lba: u32) -> u64 {
    let version = u64::from_le_bytes(block[8..16].try_into().expect("eight bytes"));
    let mut expected = vec![0; BLOCK_BYTES];
    if version > 0 {
        stamp(&mut expected, lba, version);
    }
    assert!(block == expected, "block {lba} is torn or misplaced: {:?}", &block[..32]);
    version
}

/// Faults of all kinds, drawn; and whether they may make blocks unreadable.
fn faults(seed: u64, random: &mut Random) -> (Faults, Injections, bool) {
    let kind = seed / 3 % 4;
    let lies = kind == 3;
    let mut rate = |on: bool, most: f64| if on { random.fraction() * most } else { 0.0 };
    let faults = Faults {
        seed,
        program_fail: rate(kind != 2, 0.002),
        erase_fail: rate(kind != 2, 0.01),
        correctable: rate(true, 0.05),
        uncorrectable: rate(lies, 0.001),
        ..Faults::default()
    };
    let injections = Injections {
        seed,
        slow: rate(true, 0.05),
        slow_ns: SECOND / 100,
        flush_fail: rate(kind == 1 || kind == 2, 0.02),
        io_error: rate(kind != 2, 0.0005),
        lost_writes: rate(lies, 0.002),
        stray_writes: rate(lies, 0.002),
        stray_reads: rate(lies, 0.002),
        flipped_reads: rate(lies, 0.002),
    };
    (faults, injections, lies)
}

fn kind_of(seed: u64, folder: &Path) -> Kind {
    let names = ["instant", "slc", "mlc-25nm"];
    let profile = Profile::builtin(names[seed as usize / 12 % 3]).expect("built in");
    match seed % 3 {
        0 => Kind::File { path: folder.join("dev.img") },
        _ => Kind::Nand { path: folder.join("dev"), profile },
    }
}

fn run(seed: u64, met: &mut Met) {
    let folder = std::env::temp_dir().join(format!("weir-faults-{seed}-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).expect("a folder");
    let scratch = Scratch(folder);
    let mut random = Random::new(seed);
    let (faults, injections, lies) = faults(seed, &mut random);
    let volume = VolumeOptions { name: "v".into(), blocks: BLOCKS.into(), read_only: false };
    let options = DeviceOptions {
        kind: kind_of(seed, &scratch.0),
        volumes: vec![volume],
        blocks_min: 0,
        op_percent: 100,
        channels: 2,
        dies_per_channel: 1,
        shards: 1,
        faults,
        raw: None,
        fast: None,
        kept: crate::kept::KeptOptions::off(),
        losses: Default::default(),
        injections,
        dilate: 1,
    };
    let settings = Settings::default();
    let mut device = Device::create(&options, &settings).expect("a device");
    let (medium, format) = (device.media.remove(0), device.formats.remove(0));
    let mut ring = Ring::new(256, DriverChoice::Auto).expect("a ring");
    let core = options.core_settings(&settings);
    let started = start_engine(Box::new(medium), Some(format), core, &mut ring);
    let (mut engine, now, _) = started.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    engine.medium.inject(injections, 0);
    let model = vec![BTreeSet::from([0]); BLOCKS as usize];
    let (given, busy) = (BTreeMap::new(), BTreeSet::new());
    let mut rig =
        Rig { engine, ring, now, given, next: 0, model, busy, random, lies, idle_turns: 0 };
    while rig.next < PIECES || !rig.given.is_empty() {
        while rig.next < PIECES && rig.given.len() < DEPTH {
            rig.submit();
        }
        rig.step(met);
    }
    met.program_failures += rig.engine.medium.program_failures();
    rig.engine.core.handle(rig.now, Input::Shutdown);
    let begun = rig.now;
    let end = run_until_milestone(&mut rig.engine, &mut rig.ring, &mut rig.now);
    match end {
        Ok(Milestone::Stopped(durable)) => met.unclean += u32::from(!durable),
        other => panic!("the stop ended as {other:?}"),
    }
    assert!(rig.now < begun + 2 * BOUND_NS, "the stop took {} ns", rig.now - begun);
    while rig.ring.under_way() > 0 {
        rig.ring.enter(None, &mut Vec::new()).expect("the ring works");
    }
}

#[test]
fn every_piece_and_every_stop_ends_whatever_the_medium_does() {
    let one = std::env::var("SERVE_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let many = std::env::var("SERVE_FAULTS").ok().and_then(|count| count.parse::<u64>().ok());
    let mut met = Met::default();
    for seed in one.map_or(0..many.unwrap_or(36), |seed| seed..seed + 1) {
        println!("SERVE_SEED={seed} repeats what follows");
        run(seed, &mut met);
    }
    println!("{met:?}");
    let all = met.errors > 0 && met.unclean > 0 && met.program_failures > 0;
    assert!(one.is_some() || all, "too little was met: {met:?}");
}
