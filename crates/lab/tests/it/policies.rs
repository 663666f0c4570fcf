//! What the policies beside the defaults are for: each on a load that it is made for, against the
//! default.

use flash::{Hint, Instant, Random, SECOND};
use ftl::policy::{UnitWeights, WEIGHT_FULL};
use ftl::{BandStatus, FormatOptions, PolicyNames, Settings};
use lab::Sim;
use lab::figures::drive_ops;
use lab::load::{self, Client, Latency, Pace, Seen, Window};
use lab::streams::StreamRun;
use lab::switching::{SwitchRun, SwitchSeen};
use lab::target::SimTarget;
use lab::workload::{Action, Op, Pattern};
use nand::{Faults, Layout};

fn sim(
    profile: &str,
    layout: &Layout,
    utilization: f64,
    policies: PolicyNames,
    change: impl FnOnce(&mut nand::Profile),
) -> (Sim, u64) {
    let medium = lab::device::nand_of(profile, layout, Faults::default(), change).unwrap();
    let logical_blocks = (medium.geometry().slots() as f64 * utilization) as u32;
    let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
    let settings = Settings { policies, ..Settings::default() };
    let mut sim = Sim::format(medium, options, settings, Instant(0)).unwrap();
    sim.run_until_ready().unwrap();
    (sim, logical_blocks.into())
}

#[test]
fn age_adaptive_is_near_greedy_on_uniform_writes_and_near_cost_benefit_under_skew() {
    let waf = |victim: &str, pattern| {
        let run = StreamRun {
            bands: 512,
            overwrites: 5.0,
            victim: victim.into(),
            pattern,
            ..StreamRun::default()
        };
        run.scaled(8).measure("none").unwrap().waf
    };
    let [uniform, zipf] = [Pattern::Uniform, Pattern::Zipf { theta: 1.0 }].map(|pattern| {
        ["greedy", "cost-benefit", "age-adaptive"].map(|victim| waf(victim, pattern))
    });
    println!("uniform {uniform:?}, zipf {zipf:?}");
    // What cost-benefit loses on uniform writes, and the gain under skew that it loses it for.
    assert!(uniform[2] < uniform[1], "{uniform:?}");
    assert!(zipf[2] < 0.8 * zipf[0] && zipf[2] < 1.01 * zipf[1], "{zipf:?}");
}

/// Host blocks written until the first band is worn out, and data moved for wear, under this policy.
fn life(wear: &str) -> (u64, u64) {
    const ENDURANCE: u32 = 200;
    let layout = Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 128 };
    let policies = PolicyNames { wear: wear.into(), ..PolicyNames::default() };
    let (mut sim, blocks) = sim("instant", &layout, 0.75, policies, |profile| {
        (profile.pages_per_block, profile.endurance) = (32, ENDURANCE);
    });
    let (mut random, mut filled) = (Random::new(1), 0);
    let action = Action::Write { fua: false, atomic: false };
    while sim.ftl().status().units[0].erase_count_max < ENDURANCE {
        drive_ops(&mut sim, 8, 1000, || {
            filled += 1;
            // A tenth of the data is hot; the rest is written once.
            let lba = if filled <= blocks { filled - 1 } else { random.below(blocks / 10) };
            (Op { action, lba: lba as u32, blocks: 1 }, Hint::default())
        })
        .unwrap();
    }
    (sim.ftl().counter("host_blocks_written"), sim.ftl().counter("wear_moves"))
}

#[test]
fn under_rejuvenation_more_is_written_before_the_first_band_is_worn_out() {
    let [narrow, wide, rejuvenation] = ["static:4", "static", "rejuvenation"].map(life);
    println!("static:4 {narrow:?}, static {wide:?}, rejuvenation {rejuvenation:?}");
    // Each band wears as far as it should. A window that is always narrow moves data early, for bands
    // that have long to live; one that is always wide ends with bands that do.
    assert!(rejuvenation.0 as f64 > 1.05 * wide.0 as f64);
    assert!(rejuvenation.0 as f64 > 0.98 * narrow.0 as f64);
    let moves = |(written, moves): (u64, u64)| moves as f64 / written as f64;
    assert!(moves(rejuvenation) < moves(narrow));
}

/// Random writes on a device of 16 units that GC keeps busy.
fn beside_gc(unit: &str) -> Seen {
    let layout = Layout { channels: 4, dies_per_channel: 4, blocks_per_plane: 48 };
    let policies = PolicyNames { unit: unit.into(), ..PolicyNames::default() };
    let (sim, blocks) = sim("mlc-50nm", &layout, 0.8, policies, |profile| profile.planes = 1);
    let mut target = SimTarget::new(sim);
    let fill = Client::filling(blocks);
    load::run(&mut target, &[fill], Window::WHENEVER, 1).unwrap();
    let age = Client { pace: Pace::Depth(64), ios_max: blocks, ..Client::default() };
    load::run(&mut target, &[age], Window::WHENEVER, 1).unwrap();
    let client = Client { pace: Pace::Depth(8), ..Client::default() };
    let window = Window { warmup_ns: SECOND, measure_ns: 20 * SECOND };
    load::run(&mut target, &[client], window, 2).unwrap().remove(0)
}

#[test]
fn compaction_aware_writes_wait_less_for_gc() {
    let [usual, aware] = ["shortest-queue", "compaction-aware"].map(beside_gc);
    let p99_ms = |seen: &Seen| seen.writes.quantile_ns(0.99) as f64 / 1e6;
    let told = |seen: &Seen| format!("{} writes, p99 {:.1} ms", seen.writes.count(), p99_ms(seen));
    println!("shortest-queue: {}; compaction-aware: {}", told(&usual), told(&aware));
    assert!(p99_ms(&aware) < p99_ms(&usual));
    // As victims are taken where bands are short, GC keeps all units busy anyway.
    assert!(aware.writes.count() as f64 > 0.99 * usual.writes.count() as f64);
}

/// A small device under full load, where what a switch costs would show.
fn switched(per_second: u64, switches: Vec<(&'static str, &'static str)>) -> SwitchSeen {
    let run = SwitchRun {
        layout: Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 24 },
        measure_ns: 5 * SECOND,
        every_ns: SECOND.checked_div(per_second).unwrap_or(0),
        switches,
        ..SwitchRun::default()
    };
    run.measure().unwrap()
}

#[test]
fn a_policy_that_is_put_in_charge_again_changes_no_request() {
    let same = [
        ("stream", "none"),
        ("victim", "greedy"),
        ("unit", "shortest-queue"),
        ("wear", "static"),
        ("erase", "read-first"),
    ];
    let [still, again] =
        [(0, Vec::new()), (100, same.to_vec())].map(|(often, switches)| switched(often, switches));
    assert!(again.switches > 400 && again.beside.count() > 1000, "{}", again.switches);
    let told =
        |seen: &Seen| [&seen.reads, &seen.writes].map(|of| (of.count(), of.mean_ns(), of.max_ns()));
    assert_eq!(told(&still.seen), told(&again.seen));
}

#[test]
fn streams_that_are_switched_all_the_time_pad_no_pages() {
    let streams = ["sepbit", "none", "multiq", "sfr", "midas", "hint"].map(|name| ("stream", name));
    let (still, often) = (switched(0, Vec::new()), switched(120, streams.to_vec()));
    println!("WAF {:.2} with {} switches, {:.2} without", often.waf, often.switches, still.waf);
    assert!(often.switches > 500 && often.waf < 1.3 * still.waf, "{:.2}", often.waf);
}

/// With six handles instead of two few appends go to each, and a page that waits for the one it shares
/// cells with holds up the bands that GC has drained.
#[test]
fn no_write_waits_for_a_handle_that_is_rarely_used() {
    let run = SwitchRun {
        layout: Layout { channels: 4, dies_per_channel: 4, blocks_per_plane: 48 },
        measure_ns: 5 * SECOND,
        ..SwitchRun::default()
    };
    let sepbit = SwitchRun { steady: Some(("stream", "sepbit")), ..run.clone() };
    let [none, sepbit] = [run, sepbit].map(|run| run.measure().unwrap().seen.writes);
    let ms = |ns: u64| ns as f64 / 1e6;
    let told = |seen: &Latency| format!("{} writes, {:.0} ms", seen.count(), ms(seen.max_ns()));
    println!("none: {}; sepbit: {}", told(&none), told(&sepbit));
    assert!(sepbit.max_ns() < 2 * none.max_ns());
    assert!(5 * sepbit.count() > 4 * none.count());
}

/// The bands that handles have begun are filled when these are gone, however few are free.
#[test]
fn bands_of_handles_that_are_gone_are_filled_by_others() {
    let run = SwitchRun {
        layout: Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 48 },
        ..SwitchRun::default()
    };
    let mut target = run.device().unwrap();
    let mut open_after = |policy, ios_max| {
        target.sim_mut().ftl_mut().set_policy("stream", policy).unwrap();
        let client = Client { pace: Pace::Depth(32), ios_max, ..Client::default() };
        load::run(&mut target, &[client], Window::WHENEVER, 3).unwrap();
        let bands = target.sim().ftl().bands();
        bands.iter().filter(|band| band.state == "open").count()
    };
    let begun = open_after("midas", 100_000);
    let (one_each, left) = (2 * 4, open_after("none", 12_000));
    println!("{begun} open with many handles, {left} some time after");
    assert!(begun > one_each, "{begun}");
    assert!(left <= one_each, "{left} bands are open");
}

/// A device that offers all that it could be formatted with, written once and a quarter over, after `arm`.
fn fill_to_the_brim(stream: &str, stripe_units: u32, arm: fn(Sim, Settings) -> Sim) {
    // Stripes count on larger devices only.
    let blocks_per_plane = if stripe_units == 1 { 24 } else { 160 };
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane };
    let medium = lab::device::nand_of("instant", &layout, Faults::default(), |_| {}).unwrap();
    let least = Settings { stripe_units: 1, ..Settings::default() };
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &least);
    let options = FormatOptions { logical_blocks: max, uuid: 1, label: Vec::new() };
    let mut sim = Sim::format(medium, options, least, Instant(0)).unwrap();
    sim.run_until_ready().unwrap();
    let policies = PolicyNames { stream: stream.into(), ..PolicyNames::default() };
    let mut sim = arm(sim, Settings { policies, stripe_units, ..Settings::default() });
    let mut lbas = (0..max).chain((0..).map(|n: u64| (n * 7919 % u64::from(max)) as u32));
    drive_ops(&mut sim, 8, u64::from(max) * 5 / 4, || {
        let lba = lbas.next().expect("it has no end");
        let action = Action::Write { fua: false, atomic: false };
        (Op { action, lba, blocks: 1 }, Hint::default())
    })
    .unwrap_or_else(|failure| panic!("{stream}, {stripe_units} units a stripe: {failure}"));
}

#[test]
fn a_switch_to_more_handles_takes_no_room_from_a_full_device() {
    for stream in ftl::policy::stream::STREAMS {
        fill_to_the_brim(stream, 1, |mut sim, settings| {
            sim.ftl_mut().set_policy("stream", &settings.policies.stream).unwrap();
            sim
        });
    }
}

#[test]
fn a_restart_with_more_handles_or_wider_stripes_takes_no_room_from_a_full_device() {
    let wider = [("none", 0)];
    for (stream, stripe_units) in
        ftl::policy::stream::STREAMS.iter().map(|&it| (it, 1)).chain(wider)
    {
        fill_to_the_brim(stream, stripe_units, |sim, settings| {
            let mut sim = Sim::mount(sim.into_medium(), settings, Instant(0)).unwrap();
            sim.run_until_ready().unwrap();
            sim
        });
    }
}

/// Erases of each unit under these weights, set while the device runs, for four times its size written.
fn erases_under(unit_policy: &str, weights: &[u16]) -> Vec<u32> {
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 24 };
    let policies = PolicyNames { unit: unit_policy.into(), ..PolicyNames::default() };
    let (mut sim, blocks) = sim("instant", &layout, 0.4, policies, |_| {});
    let geometry = *sim.medium().geometry();
    let erases = |sim: &Sim| -> Vec<u32> {
        let counts = sim.medium().health().erase_counts;
        let units = counts.chunks(geometry.blocks_per_unit as usize);
        units.map(|unit| unit.iter().sum()).collect()
    };
    let (mut random, action) = (Random::new(1), Action::Write { fua: false, atomic: false });
    let mut write = |sim: &mut Sim, times: u64| {
        drive_ops(sim, 8, times * blocks, || {
            (Op { action, lba: random.below(blocks) as u32, blocks: 1 }, Hint::default())
        })
        .unwrap();
    };
    write(&mut sim, 2);
    let weights = UnitWeights { next: weights.to_vec(), open: Vec::new() };
    sim.ftl_mut().set_unit_weights(&weights);
    let before = erases(&sim);
    write(&mut sim, 4);
    erases(&sim).iter().zip(before).map(|(after, before)| after - before).collect()
}

#[test]
fn a_unit_of_weight_0_takes_no_new_band_while_others_can_under_any_policy() {
    for policy in ["shortest-queue", "weighted-queue", "compaction-aware", "round-robin"] {
        let erases = erases_under(policy, &[256, 0, 256]);
        println!("{policy}: {erases:?}");
        // What the unit had is overwritten, and erased at most once; where no other has a clean one it takes one more.
        assert!(erases[1] <= 28, "{policy}: {erases:?}");
        for unit in [0, 2, 3] {
            assert!(erases[unit] > 24, "{policy}: {erases:?}");
        }
    }
    let erases = erases_under("shortest-queue", &[0; 4]);
    assert!(erases.iter().all(|&erases| erases > 24), "no unit was left alone: {erases:?}");
}

/// A unit whose band is not wanted takes pages all the same, in another band, and no room is lost by it.
#[test]
fn a_band_that_is_not_wanted_is_put_aside_and_filled_when_it_is_wanted_again() {
    let layout = Layout { channels: 2, dies_per_channel: 2, blocks_per_plane: 48 };
    let (mut sim, blocks) = sim("instant", &layout, 0.4, PolicyNames::default(), |_| {});
    let open = |sim: &Sim| -> Vec<BandStatus> {
        let bands = sim.ftl().bands().into_iter();
        bands.filter(|band| band.state == "open" && band.slots_written > 0).collect()
    };
    let (mut random, action) = (Random::new(1), Action::Write { fua: false, atomic: false });
    let mut write = |sim: &mut Sim, count: u64| {
        drive_ops(sim, 8, count, || {
            (Op { action, lba: random.below(blocks) as u32, blocks: 1 }, Hint::default())
        })
        .unwrap();
        sim.verify().unwrap();
    };
    let weigh = |sim: &mut Sim, bands: &[BandStatus], of_these: u16| {
        let open = bands.iter().map(|band| (band.block, of_these)).collect();
        sim.ftl_mut().set_unit_weights(&UnitWeights { next: Vec::new(), open });
    };
    write(&mut sim, 100);
    let first = open(&sim);
    weigh(&mut sim, &first, 0);
    write(&mut sim, 100);
    let both = open(&sim);
    let is_first = |band: &&BandStatus| first.iter().any(|other| other.block == band.block);
    let written = |bands: &[BandStatus]| -> u32 {
        bands.iter().filter(is_first).map(|band| band.slots_written).sum()
    };
    let page = sim.medium().geometry().slots_per_page;
    assert!(written(&both) <= written(&first) + page, "{first:?}, then {both:?}");
    assert!(both.len() > first.len(), "{both:?}");
    let second: Vec<BandStatus> = both.iter().filter(|band| !is_first(band)).cloned().collect();
    weigh(&mut sim, &second, 0);
    write(&mut sim, 100);
    let later = open(&sim);
    assert!(written(&later) >= written(&both) + 90, "{both:?}, then {later:?}");
    assert_eq!(later.len(), both.len(), "no other was opened: {later:?}");
    // All alike again: what was put aside is filled, and GC has it as any other.
    weigh(&mut sim, &[], WEIGHT_FULL);
    write(&mut sim, 4 * blocks);
    let last = open(&sim);
    assert!(
        last.iter().all(|band| !both
            .iter()
            .any(|other| other.block == band.block && other.slots_written == band.slots_written)),
        "{both:?}, and {last:?} at the end"
    );
}

/// How often writes were held back for GC, and the fewest bands that were free meanwhile.
fn held_back(bands_ahead: u32) -> (u64, u64) {
    let layout = Layout { channels: 4, dies_per_channel: 2, blocks_per_plane: 64 };
    let medium = lab::device::nand_of("mlc-25nm", &layout, Faults::default(), |_| {}).unwrap();
    let logical_blocks = (medium.geometry().slots() as f64 * 0.6) as u32;
    let options = FormatOptions { logical_blocks, uuid: 1, label: Vec::new() };
    let settings = Settings { bands_free_low: 100, bands_ahead, ..Settings::default() };
    let mut sim = Sim::format(medium, options, settings, Instant(0)).unwrap();
    sim.run_until_ready().unwrap();
    let (mut random, action) = (Random::new(1), Action::Write { fua: false, atomic: false });
    let mut fewest = u64::MAX;
    for _ in 0..30 {
        drive_ops(&mut sim, 64, u64::from(logical_blocks) / 10, || {
            (
                Op { action, lba: random.below(logical_blocks.into()) as u32, blocks: 1 },
                Hint::default(),
            )
        })
        .unwrap();
        sim.verify().unwrap();
        fewest = fewest.min(sim.ftl().counter("bands_free"));
    }
    (sim.ftl().counter("writes_throttled"), fewest)
}

#[test]
fn a_host_that_may_be_ahead_of_gc_is_held_back_less_and_uses_no_more_room_than_that() {
    let ((none, fewest_none), (some, fewest_some)) = (held_back(0), held_back(16));
    println!("held back {none} times, {fewest_none} free; ahead {some} times, {fewest_some} free");
    assert!(10 * some < 9 * none, "{some} of {none}");
    assert!(fewest_some + 20 >= fewest_none, "{fewest_some} free, {fewest_none} without");
}
