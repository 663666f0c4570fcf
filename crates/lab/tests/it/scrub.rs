//! Worn flash forgets what it holds within months. The scrub finds that in time.

use flash::{BlockId, Hint, Instant, SECOND};
use ftl::{FormatOptions, Settings};
use lab::Sim;
use lab::medium::SimMedium;
use nand::{BlockRecord, Faults, Layout, Nand, Profile};

const DAY: u64 = 86_400 * SECOND;
const BLOCKS: u32 = 2000;

/// A TLC device half way through its life, with data, left alone for a time.
fn aged(seed: u64, scrub_period_ns: u64, alone_ns: u64) -> Sim {
    let mut profile = Profile::builtin("tlc").expect("a built-in profile");
    profile.pages_per_block = 48;
    let layout = Layout { channels: 2, dies_per_channel: 1, blocks_per_plane: 16 };
    let faults = Faults { seed, wear_errors: true, ..Faults::default() };
    let mut nand = Nand::new(&profile, &layout, faults).expect("a sound profile");
    for block in (0..nand.geometry().blocks()).map(BlockId) {
        nand.restore(block, BlockRecord { erase_count: 1000, ..BlockRecord::default() });
    }
    let settings = Settings { scrub_period_ns, refresh_bits: 52, ..Settings::default() };
    let options = FormatOptions { logical_blocks: BLOCKS, uuid: 1, label: Vec::new() };
    let medium = SimMedium::nand(nand);
    let mut sim = Sim::format(medium, options, settings, Instant(0)).expect("it fits");
    sim.run_until_ready().expect("a new device");
    for lba in (0..BLOCKS).step_by(8) {
        let stamps: Vec<u64> = (0..8).map(|i| u64::from(lba) + i + 1).collect();
        sim.write(0, lba, &stamps, (false, false), Hint::default());
        sim.run_until_answered().expect("answered");
    }
    sim.flush(0);
    sim.run_until_answered().expect("answered");
    let end = Instant(sim.now().0 + alone_ns);
    sim.run_until_idle(end).expect("nothing fails");
    sim
}

fn lost(sim: &mut Sim) -> usize {
    let observed = sim.read_all(BLOCKS).expect("every read is answered");
    for (lba, stamp) in (0..).zip(&observed) {
        assert!(stamp.is_none_or(|stamp| stamp == lba + 1), "block {lba} shows {stamp:?}");
    }
    observed.iter().filter(|stamp| stamp.is_none()).count()
}

#[test]
fn scrub_moves_data_before_it_fades() {
    let (seed, period) = (3, 20 * DAY);
    let mut alone = aged(seed, 0, 1500 * DAY);
    let faded = lost(&mut alone);
    let mut sim = aged(seed, period, 1500 * DAY);
    let scrubbed = sim.ftl().counter("pages_scrubbed");
    let refreshes = sim.ftl().counter("refreshes");
    let gone = lost(&mut sim);
    println!("seed {seed}: {faded} blocks fade; scrubbed {scrubbed} pages, {refreshes} refreshes");
    assert!(faded > 100, "seed {seed}: the flash is too good to show anything: {faded}");
    assert_eq!(gone, 0, "seed {seed}: blocks faded in spite of the scrub");
    assert!(refreshes > 0, "seed {seed}: nothing was moved");
    // The checkpoint was renewed, too: the device mounts from it.
    let now = sim.now();
    let settings = sim.settings().clone();
    let medium = sim.shutdown().expect("a clean end");
    let mut sim = Sim::mount(medium, settings, now).expect("legal");
    let report = sim.run_until_ready().expect("it mounts");
    assert_eq!((report.rebuilt, report.clean), (None, true), "seed {seed}");
}

/// Reads at random moments; the slowest, and the pages scrubbed and the time gone meanwhile.
fn read_on(sim: &mut Sim, gap_ns: u64) -> (u64, u64, u64) {
    let (begun, before) = (sim.now(), sim.ftl().counter("pages_scrubbed"));
    let mut slowest = 0;
    for round in 0..4000u32 {
        sim.read(0, round * 7 % BLOCKS, 1);
        sim.run_until_answered().expect("answered");
        let read = sim.take_finished().expect("it was answered");
        slowest = slowest.max(read.finished - read.submitted);
        sim.release(read);
        let pause = Instant(sim.now().0 + u64::from(round % 97) * gap_ns);
        sim.run_until_idle(pause).expect("nothing fails");
    }
    (slowest, sim.ftl().counter("pages_scrubbed") - before, sim.now() - begun)
}

#[test]
fn scrub_keeps_its_rate_and_stays_out_of_the_way_of_reads() {
    let (seed, period) = (5, SECOND);
    let mut sim = aged(seed, period, SECOND);
    let geometry = *sim.medium().geometry();
    let step = period / u64::from(geometry.blocks() * geometry.pages_per_block);
    let (alone, none, _) = read_on(&mut aged(seed, 0, SECOND), step / 40);
    let (slowest, scrubbed, time) = read_on(&mut sim, step / 40);
    println!("seed {seed}: {scrubbed} pages in {} steps", time / step);
    println!("seed {seed}: slowest read {slowest} ns, {alone} ns without a scrub");
    assert!(none == 0 && scrubbed > 100 && scrubbed <= time / step + 1, "seed {seed}");
    // A read waits for at most one page that is being read for the scrub.
    let profile = Profile::builtin("tlc").expect("a built-in profile");
    let page_ns = profile.read_ns.iter().max().expect("TLC has read times");
    let bus_ns = f64::from(profile.page_bytes * profile.planes) * profile.bus_ns_per_byte * 1.2;
    assert!(slowest <= alone + page_ns + bus_ns as u64, "seed {seed}: a read took {slowest} ns");
}
