//! Lanes against arithmetic, fits against plain maps, and whole replays on a small device.

use super::precondition::{Precondition, precondition};
use super::{Fit, FitError, FitKind, Issue, LaneOptions, Lanes, Looped, Next, Pace, Part, Survey};
use super::{begun, edges, inner, outer, run, run_until};
use crate::device::nand_of;
use crate::device_file::{DeviceSpec, Scale};
use crate::driver::Sim;
use crate::target::{SimTarget, Target};
use crate::trace::{Op, Options, Place, Reader, Record, TraceError};
use flash::Instant;
use ftl::{FormatOptions, Settings};
use nand::{Faults, Layout};
use std::io::Cursor;

fn record(time_ns: u64, op: Op, offset: u64, length: u64) -> Record {
    Record { time_ns, op, fua: false, offset, length, volume: 0, response_ns: None }
}

type Good = Vec<Result<Record, TraceError>>;

fn lane(part: Part, pace: Pace, write_cap: Option<u64>) -> LaneOptions {
    LaneOptions { part, pace, write_cap }
}

fn lanes(options: &[LaneOptions], records: &[Record]) -> Lanes<'static> {
    let of = |options: &LaneOptions| {
        let records: Good = records.iter().copied().map(Ok).collect();
        (*options, Box::new(records.into_iter()) as super::Records<'static>)
    };
    Lanes::new(options.iter().map(of).collect())
}

fn issue(next: Next) -> Issue {
    match next {
        Next::Issue(issue) => issue,
        other => panic!("an issue was due: {other:?}"),
    }
}

const OPEN: Pace = Pace::Timestamps { load: 2.0, in_flight_max: 2 };

#[test]
fn an_open_lane_issues_by_the_timestamps_and_the_load() {
    let records = [10, 20, 30].map(|time| record(time, Op::Read, 0, 4096));
    let mut lanes = lanes(&[lane(Part::All, OPEN, None)], &records);
    assert_eq!(lanes.next(0).unwrap(), Next::Wait(Some(5)));
    assert_eq!(issue(lanes.next(5).unwrap()).due_ns, 5);
    assert_eq!(lanes.next(9).unwrap(), Next::Wait(Some(10)));
    assert_eq!(issue(lanes.next(11).unwrap()).due_ns, 10);
    assert_eq!(lanes.next(100).unwrap(), Next::Wait(None), "two are in flight");
    lanes.completed(0);
    assert_eq!(issue(lanes.next(100).unwrap()).due_ns, 15, "late, and due when it was due");
    assert_eq!(lanes.next(100).unwrap(), Next::End);
    assert_eq!(lanes.in_flight(), 2);
}

#[test]
fn closed_lanes_keep_their_depths_apart() {
    let ops = [Op::Read, Op::Write, Op::Read, Op::Flush];
    let records = ops.map(|op| record(7, op, 0, 4096));
    let options =
        [lane(Part::Reads, Pace::Depth(1), None), lane(Part::Others, Pace::Depth(2), None)];
    let mut lanes = lanes(&options, &records);
    let issued: Vec<Op> = (0..3).map(|_| issue(lanes.next(0).unwrap()).record.op).collect();
    assert_eq!(issued, [Op::Read, Op::Write, Op::Flush]);
    assert_eq!(lanes.next(0).unwrap(), Next::Wait(None));
    lanes.completed(0);
    assert_eq!(issue(lanes.next(1).unwrap()), Issue { lane: 0, record: records[2], due_ns: 1 });
    assert_eq!(lanes.next(1).unwrap(), Next::End);
}

#[test]
fn the_write_cap_spaces_writes_and_nothing_else() {
    let records =
        [record(0, Op::Write, 0, 1000), record(0, Op::Flush, 0, 0), record(0, Op::Write, 0, 1000)];
    let mut lanes = lanes(&[lane(Part::All, Pace::Depth(9), Some(1_000_000))], &records);
    assert_eq!(issue(lanes.next(0).unwrap()).due_ns, 0);
    assert_eq!(issue(lanes.next(0).unwrap()).record.op, Op::Flush);
    assert_eq!(lanes.next(0).unwrap(), Next::Wait(Some(1_000_000)));
    assert_eq!(issue(lanes.next(1_000_000).unwrap()).due_ns, 1_000_000);
}

#[test]
fn a_depth_of_nothing_leaves_a_part_out() {
    let records = [record(0, Op::Read, 0, 1), record(0, Op::Write, 0, 1)];
    let options =
        [lane(Part::Reads, Pace::Depth(1), None), lane(Part::Others, Pace::Depth(0), None)];
    let mut lanes = lanes(&options, &records);
    assert_eq!(issue(lanes.next(0).unwrap()).record.op, Op::Read);
    assert_eq!(lanes.next(0).unwrap(), Next::End);
}

const MIB: u64 = 1 << 20;

fn reader(text: &str) -> Result<Reader, TraceError> {
    Reader::from_read("trace", Cursor::new(text.as_bytes().to_vec()), &Options::default())
}

fn survey(text: &str, kind: FitKind) -> Survey {
    Survey::read(&mut reader(text).unwrap(), kind, &mut |_| {}).unwrap()
}

/// Two volumes: 3 MiB, of which the last is used, and 1 MiB and a bit.
const TWO: &str = "0 5 4096 2048 0\n10 7 0 2056 1\n20 7 8 8 0\n";

fn pieces(fit: &Fit, volume: u32, offset: u64, length: u64) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    fit.pieces(&Record { volume, ..record(0, Op::Read, offset, length) }, &mut pieces);
    pieces
}

#[test]
fn volumes_lie_behind_each_other_and_what_lies_beyond_is_told_with_its_line() {
    let survey = survey(TWO, FitKind::Refuse);
    assert_eq!((survey.requests, survey.changes, survey.volumes()), (3, 2, 2));
    assert_eq!((survey.duration_ns, survey.period_ns()), (20, 30));
    assert_eq!(survey.span_bytes(FitKind::Refuse), 5 * MIB);
    let fit = Fit::new(&survey, FitKind::Refuse, 5 * MIB).unwrap();
    assert_eq!(pieces(&fit, 7, 4096, 4096), [(3 * MIB + 4096, 4096)]);
    let refused = Fit::new(&survey, FitKind::Refuse, 4 * MIB).unwrap_err();
    let end = 4 * MIB + 4096;
    let place = Some(Place::Line(2));
    assert_eq!(refused, FitError::Beyond { place, volume: 7, end, capacity: 4 * MIB });
    assert!(refused.to_string().contains("line 2") && refused.to_string().contains("--fit"));
}

#[test]
fn wrapping_scaling_and_packing_stay_on_the_device() {
    let packed = survey(TWO, FitKind::Pack);
    assert_eq!(packed.span_bytes(FitKind::Pack), 3 * MIB);
    let fit = Fit::new(&packed, FitKind::Pack, 3 * MIB).unwrap();
    assert_eq!(pieces(&fit, 5, 2 * MIB, MIB), [(0, MIB)]);
    assert_eq!(pieces(&fit, 7, 0, MIB + 4096), [(MIB, MIB + 4096)]);
    assert!(pieces(&fit, 5, 0, MIB).is_empty(), "only a trim may want it");
    assert!(matches!(Fit::new(&packed, FitKind::Pack, 2 * MIB), Err(FitError::TooLarge { .. })));
    let plain = survey(TWO, FitKind::Wrap);
    let fit = Fit::new(&plain, FitKind::Wrap, 2 * MIB).unwrap();
    assert_eq!(pieces(&fit, 7, 512 * 1024, MIB), [(MIB + 512 * 1024, 512 * 1024), (0, 512 * 1024)]);
    let fit = Fit::new(&plain, FitKind::Scale, 2 * MIB).unwrap();
    assert_eq!(pieces(&fit, 7, 0, 4096), [(MIB, 4096)]);
    assert_eq!(pieces(&fit, 5, 2 * MIB + 5, 4096), [(5, 4096)]);
    let fit = Fit::new(&plain, FitKind::Scale, 9 * MIB).unwrap();
    assert_eq!(pieces(&fit, 7, 0, 4096), [(3 * MIB, 4096)], "a trace that fits is not scaled");
    assert!(Fit::new(&plain, FitKind::Wrap, 4096).is_err());
}

#[test]
fn a_trim_of_nearly_everything_takes_no_time() {
    let end = 1u64 << 60;
    let text = format!("0.0,W,0,8,x\n0.1,D,2048,{},x\n0.2,W,{},8,x\n", end / 512, end / 512);
    let trim = record(0, Op::Trim, MIB, end);
    for (kind, expected) in [
        (FitKind::Wrap, vec![(0, 4 * MIB)]),
        (FitKind::Scale, vec![(0, 4 * MIB)]),
        (FitKind::Pack, vec![(MIB, MIB)]),
    ] {
        let fit = Fit::new(&survey(&text, kind), kind, 4 * MIB).unwrap();
        let mut pieces = Vec::new();
        fit.pieces(&trim, &mut pieces);
        assert_eq!(pieces, expected, "{kind:?}");
    }
    let many: String = (0..9).map(|i| format!("{i} {i} {} 8 0\n", (1u64 << 53) - 8)).collect();
    assert!(Fit::new(&survey(&many, FitKind::Wrap), FitKind::Wrap, 4 * MIB).is_err());
}

#[test]
fn a_looped_trace_goes_on_in_time() {
    let looped = Looped::new(|| reader("0 0 8 8 0\n10 0 8 8 0\n"), 3, 20);
    let times: Vec<u64> = looped.map(|record| record.unwrap().time_ns).collect();
    assert_eq!(times, [0, 10, 20, 30, 40, 50]);
}

#[test]
fn edges_and_insides_of_ranges_are_whole_blocks() {
    let edges = |offset, bytes| edges(offset, bytes).collect::<Vec<_>>();
    assert!(edges(0, 8192).is_empty());
    assert_eq!(edges(512, 512), [0]);
    assert_eq!(edges(512, 4096), [0, 4096]);
    assert_eq!(edges(4096, 5000), [8192]);
    assert_eq!(inner((512, 4096), 4096), (4096, 0));
    assert_eq!(inner((512, 8192), 4096), (4096, 4096));
    assert_eq!(outer((4096, 4096), 8192), (0, 8192));
    assert_eq!(outer((8000, 200), 4096), (4096, 8192));
    assert_eq!(begun((8192, 8192), 8192), (8192, 8192));
    assert_eq!(begun((4096, 2048), 8192), (8192, 0), "the block was begun before");
}

fn target() -> SimTarget {
    target_of(12)
}

fn target_of(blocks_per_plane: u32) -> SimTarget {
    let layout = Layout { channels: 2, dies_per_channel: 1, blocks_per_plane };
    let medium = nand_of("slc", &layout, Faults::default(), |_| {}).expect("built-in");
    let settings = Settings::default();
    let max = ftl::logical_blocks_max(medium.geometry(), &medium.health(), &settings);
    let options = FormatOptions { logical_blocks: max * 7 / 10, uuid: 1, label: Vec::new() };
    let mut sim = Sim::format(medium, options, settings, Instant(0)).expect("fits the medium");
    sim.run_until_ready().expect("formats");
    SimTarget::new(sim)
}

#[test]
fn a_replay_answers_every_record_once_and_twice_the_same() {
    let text: String = (0..3000)
        .map(|i| {
            format!("{}.{:06},{},{},{},x\n", i / 1000, i % 1000 * 1000, letters(i), place(i), 9)
        })
        .collect();
    let replay = || {
        let mut target = target();
        precondition(&mut target, Precondition::Fill, 1, &mut |_| {}).unwrap();
        assert!(target.bytes() > 6010 * 512, "the trace fits");
        let fit = Fit::whole(target.bytes());
        let pace = Pace::Timestamps { load: 50.0, in_flight_max: 64 };
        let records = Box::new(reader(&text).unwrap());
        let mut lanes = Lanes::new(vec![(lane(Part::All, pace, None), records)]);
        let (tally, elapsed_ns) = run(&mut target, &mut lanes, &fit, &mut |_| {}).unwrap();
        (tally, elapsed_ns, target.sim().trace_hash())
    };
    let (tally, elapsed_ns, hash) = replay();
    assert_eq!((tally.requests(), tally.errors()), (3000, 0));
    let counts = Op::ALL.map(|op| tally.kind(op).requests);
    assert_eq!(counts, [1500, 750, 375, 375]);
    assert_eq!(tally.partial_writes, 750, "9 sectors are never whole blocks");
    assert!(elapsed_ns >= 3_000_000_000 / 50 - 1_000_000);
    assert!(tally.kind(Op::Read).latency.mean_ns() > 10_000.0);
    assert_eq!(replay().2, hash);
}

#[test]
fn a_replay_that_ends_with_what_is_answered_at_once_ends() {
    let mut target = target();
    let fit = Fit::whole(target.bytes());
    let records = [record(0, Op::Read, 0, 4096), record(5, Op::Trim, 0, 100)];
    let mut lanes = lanes(&[lane(Part::All, Pace::Depth(1), None)], &records);
    let (tally, _) = run(&mut target, &mut lanes, &fit, &mut |_| {}).unwrap();
    assert_eq!((tally.requests(), tally.errors()), (2, 0));
}

#[test]
fn a_replay_that_may_end_early_ends_only_when_it_takes_longer() {
    let replay = |end_ns| {
        let mut target = target();
        let fit = Fit::whole(target.bytes());
        let records: Vec<Record> = (0..500).map(|i| record(0, Op::Write, i << 12, 4096)).collect();
        let mut lanes = lanes(&[lane(Part::All, Pace::Depth(4), None)], &records);
        let (tally, took_ns) =
            run_until(end_ns, &mut target, &mut lanes, &fit, &mut |_| {}).unwrap();
        (tally.requests(), took_ns)
    };
    let (all, whole_ns) = replay(u64::MAX);
    assert_eq!(all, 500);
    assert_eq!(replay(whole_ns), (500, whole_ns), "just in time");
    let (some, half_ns) = replay(whole_ns / 2);
    assert!(0 < some && some < 400 && whole_ns / 2 < half_ns && half_ns < whole_ns, "{some}");
    let (most, late_ns) = replay(whole_ns - 1);
    assert!(most <= 500 && late_ns >= whole_ns, "{most} in {late_ns} of {whole_ns}");
}

fn letters(i: u64) -> &'static str {
    ["R", "WS", "R", "WFS", "R", "D", "R", "FF"][i as usize % 8]
}

fn place(i: u64) -> u64 {
    if letters(i) == "FF" { 0 } else { i * 7919 % 6000 }
}

#[test]
fn random_writes_reach_a_steady_state_that_is_told() {
    // On a few bands a round differs from the next by chance.
    let mut target = target_of(48);
    let found = precondition(&mut target, Precondition::Random, 3, &mut |_| {}).unwrap();
    assert!(found.steady, "{found:?}");
    let [.., before, last] = found.rounds[..] else { panic!("too few rounds: {found:?}") };
    assert!((last / before - 1.0).abs() <= 0.02 && last > 1.05, "{found:?}");
}

/// A built-in device with few channels and blocks.
fn device(name: &str, blocks: u32, set: &str) -> Box<dyn Target> {
    let set = set.parse().expect("it is TOML");
    let spec = DeviceSpec::builtin_with(name, &set).expect("it is built in");
    spec.build(Scale::BlocksPerPlane(blocks), &Faults::default(), 1).expect("it is not too small")
}

fn replayed(target: &mut dyn Target, text: &str, depth: u32) -> (super::Tally, u64) {
    let fit = Fit::whole(target.bytes());
    fit.check_writes(&mut reader(text).unwrap(), target.rules()).unwrap();
    let records = Box::new(reader(text).unwrap());
    let mut lanes = Lanes::new(vec![(lane(Part::All, Pace::Depth(depth), None), records)]);
    run(target, &mut lanes, &fit, &mut |_| {}).unwrap()
}

#[test]
fn a_drive_and_an_array_are_replayed_on_as_the_ftl_is() {
    let text: String =
        (0..2000).map(|i| format!("0.{i:06},{},{},9,x\n", letters(i), place(i))).collect();
    let few = "[layout]\nchannels = 2\ndies_per_channel = 1";
    for (name, blocks, set) in [
        ("intel-320", 64, few),
        ("gen3", 64, few),
        ("ts8-2-x11", 16, "[array]\ncount = 2\nchunk_bytes = 4096"),
    ] {
        let replay = || {
            let mut target = device(name, blocks, set);
            precondition(&mut *target, Precondition::Fill, 1, &mut |_| {}).unwrap();
            let (tally, elapsed_ns) = replayed(&mut *target, &text, 4);
            (
                tally.requests(),
                tally.errors(),
                elapsed_ns,
                target.counts(),
                target.counter("erases"),
            )
        };
        let first = replay();
        assert_eq!((first.0, first.1), (2000, 0), "{name}");
        assert!(first.3.bytes_programmed > first.3.bytes_written / 2, "{name}: {:?}", first.3);
        assert_eq!(replay(), first, "{name}: the same each time");
    }
}

#[test]
fn raw_units_are_erased_before_each_write_and_take_whole_ones_only() {
    let set = "[layout]\nchannels = 2\n[raw]\nspare = 0";
    let mut target = device("sdf", 8, set);
    assert_eq!(target.flash_bytes(), 2 * 8 * 8 * MIB);
    assert_eq!(target.bytes(), 2 * 6 * 8 * MIB, "two blocks of each lane hold its records");
    // The same 8 MiB twice, and reads of a part of a granule.
    let text = "0.0,W,16384,16384,x\n0.1,W,16384,16384,x\n0.2,R,16392,8,x\n0.3,R,16384,1,x\n";
    let (tally, _) = replayed(&mut *target, text, 1);
    assert_eq!((tally.requests(), tally.errors(), tally.partial_writes), (4, 0, 0));
    assert_eq!(target.counts().bytes_written, 16 * MIB);
    let fit = Fit::whole(target.bytes());
    let wrong = "0.0,R,0,8,x\n0.1,W,8,16384,x\n";
    let error = fit.check_writes(&mut reader(wrong).unwrap(), target.rules()).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("line 2") && said.contains("8388608 bytes"), "{said}");
    fit.check_writes(&mut reader(wrong).unwrap(), super::Rules::default()).unwrap();
}
