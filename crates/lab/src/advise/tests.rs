//! A small trace laid out by hand, and whole advices on it.

use super::recorded::Recorded;
use super::{Advice, AdviseError, BEHIND_DEPTH, Choice, Drive, Options, Playing};
use super::{advise, choose, report, span};
use crate::device_file::DeviceSpec;
use crate::streams::ChangeKind;
use crate::trace::{Op, Options as ReadOptions, Reader};
use nand::Profile;
use std::fmt::Write;

/// As lines of the kernel's block_rq events.
fn lines(requests: impl IntoIterator<Item = (&'static str, u64, u64)>) -> String {
    let mut text = String::new();
    for (at, (op, sector, sectors)) in requests.into_iter().enumerate() {
        let _ = writeln!(text, "{:.6},{op},{sector},{sectors},x", at as f64 * 1e-3);
    }
    text
}

fn read(text: String) -> Result<Recorded, AdviseError> {
    let bytes = std::io::Cursor::new(text.into_bytes());
    let mut reader = Reader::from_read("trace.block-rq", bytes, &ReadOptions::default())?;
    Recorded::read(&mut reader, None, &mut |_| {})
}

/// A hot quarter that gets six of eight requests, and the rest, written and read now and then.
fn skewed(requests: u64) -> String {
    let mut random = flash::Random::new(5);
    lines((0..requests).map(|at| match at % 8 {
        0 => ("W", random.below(4096) * 8, 8),
        7 => ("R", random.below(4096) * 8, 8),
        _ => ("W", random.below(1024) * 8, 8),
    }))
}

fn options(drive: Drive) -> Options {
    Options {
        drive,
        streams: vec!["none".into(), "sepbit".into()],
        victims: vec!["cost-benefit".into()],
        op_percents: vec![15.0],
        overwrites: 1.0,
        load: 1.0,
        depth: None,
        seed: 1,
        threads: 2,
    }
}

fn slc() -> Drive {
    Drive::of_flash(Profile::builtin("slc").expect("built in"), (2, 1), None)
}

#[test]
fn a_trace_is_packed_and_its_parts_of_blocks_widened_or_left() {
    let text = lines([
        ("W", 4096 * 100, 8),
        ("W", 3, 6),
        ("R", 2048, 8),
        ("D", 1, 16),
        ("D", 4096 * 100, 4096),
        ("FF", 0, 0),
    ]);
    let trace = read(text).unwrap();
    let facts = &trace.facts;
    assert_eq!((facts.touched_bytes, facts.logical_bytes), (3 << 20, 16 << 20));
    assert_eq!(facts.kinds, [1, 2, 2, 1]);
    assert_eq!((facts.wipes, facts.blocks_written), (0, 3), "the trim of a MiB is no wipe of 16");
    let offsets: Vec<u64> = trace.requests.iter().map(|request| request.offset).collect();
    assert_eq!(offsets, [2 << 20, 3 * 512, 1 << 20, 512, 2 << 20, 0]);
    let changes: Vec<_> = trace.changes.list.iter().map(|c| (c.kind, c.lba, c.blocks)).collect();
    use ChangeKind::{Trim, Write};
    assert_eq!(changes, [(Write, 512, 1), (Write, 0, 2), (Trim, 1, 1), (Trim, 512, 256)]);
    assert_eq!(trace.warm, 4, "it does not write the capacity");
    let free = trace.without_flushes();
    assert!(free.requests.iter().all(|request| request.op != Op::Flush));
}

#[test]
fn a_new_file_system_in_the_trace_does_not_wipe_the_device_in_every_round() {
    let text = lines([("D", 0, 65_536), ("W", 0, 2048 * 16), ("D", 0, 65_536)]);
    let trace = read(text).unwrap();
    assert_eq!((trace.facts.wipes, trace.facts.kinds), (2, [0, 1, 0, 0]));
}

#[test]
fn the_end_that_warms_a_device_up_comes_first() {
    // 16 MiB is the least capacity: the last 32 writes of a MiB.
    let trace = read(lines((0..60).map(|at| ("W", at % 8 * 2048, 2048)))).unwrap();
    assert_eq!(trace.warm, 32);
    let (first, last) = (trace.changes.list[0].lba, trace.changes.list.last().unwrap().lba);
    assert_eq!((first, last), (28 % 8 * 256, 27 % 8 * 256), "from write 28 to write 27");
}

#[test]
fn a_trace_without_writes_or_requests_is_refused() {
    assert!(matches!(read(lines([("R", 0, 8)])), Err(AdviseError::NoWrites { requests: 1 })));
    assert!(matches!(read("# nothing\n".into()), Err(AdviseError::Empty | AdviseError::Trace(_))));
}

#[test]
fn streams_pay_under_skew_the_oracle_pays_more_and_the_same_seed_gives_the_same() {
    let trace = read(skewed(40_000)).unwrap();
    let run = || advise(&trace, &options(slc()), &|_, _| {}).unwrap();
    let advice = run();
    let [none, sepbit] = &advice.rows[..] else { panic!("two rows: {advice:?}") };
    assert!(sepbit.waf() < none.waf(), "{} against {}", sepbit.waf(), none.waf());
    assert!(advice.bounds[0].waf.waf < sepbit.waf(), "{:?}", advice.bounds);
    let timed = none.timed.as_ref().unwrap();
    assert!(timed.before.steady, "{timed:?}");
    assert_eq!((timed.reads.count(), timed.writes.count()), (5000, 35_000));
    assert!(timed.writes.mean_ns() > 100_000.0, "SLC programs in 300 us");
    assert_eq!(advice.playing, Playing::Timestamps(1.0));
    // 35 of 40 requests a ms write 4 KiB: 3.4 MiB/s on the drive of 1 TiB that is named, endurance 100 000.
    let rate = 4096.0 * 35_000.0 / (39_999.0 * 1e-3);
    assert!(none.drive.flash_bytes() > 1 << 40, "{:?}", none.drive);
    let flash = none.drive.flash_bytes() as f64 * 1e5;
    let years = flash / (rate * none.waf() * 365.25 * 86_400.0);
    assert!((none.years / years - 1.0).abs() < 1e-9, "{} years, not {years}", none.years);
    let by_reason: f64 = timed.by_reason.parts().iter().map(|(.., value)| value).sum();
    assert!((by_reason - timed.waf).abs() < 1e-9, "{:?} of {}", timed.by_reason, timed.waf);
    assert!(timed.by_reason.gc > 0.1 && timed.by_reason.checkpoints > 0.0, "{:?}", timed.by_reason);

    let choice = choose(&advice, 5.0);
    let page = |advice| {
        let report = report(advice, &choose(advice, 5.0), "t", "weir advise t", 1);
        crate::report::html(&report).unwrap()
    };
    assert!(choice.why.contains(&format!("{:.2}", advice.rows[choice.row.unwrap()].waf())));
    assert_eq!(page(&advice), page(&run()), "to the byte");
}

#[test]
fn a_device_that_falls_behind_is_measured_in_a_closed_loop() {
    let trace = read(skewed(20_000)).unwrap();
    let slow = Options { load: 100.0, ..options(slc()) };
    let advice = advise(&trace, &slow, &|_, _| {}).unwrap();
    assert!(advice.behind && matches!(advice.playing, Playing::Depth(_)), "{:?}", advice.playing);
    let how = super::how(&advice).join(" ");
    assert!(how.contains("cannot keep up"), "{how}");
    // The number of drives is what one can do: a little less of the load it carries, a little more it does not.
    let needs = advice.needs(&advice.rows[0]).expect("it is overloaded");
    let headline = advice.headline(&advice.rows[0]).expect("it is overloaded");
    assert!(needs > 2.0 && headline.contains("cannot carry this trace; it needs"), "{headline}");
    for (share, behind) in [(0.8, false), (1.4, true)] {
        let at = Options { load: 100.0 / needs * share, ..options(slc()) };
        let advice = advise(&trace, &at, &|_, _| {}).unwrap();
        assert_eq!(advice.behind, behind, "{share} of what one of {needs} drives can do");
    }
    // Every row is that of the closed loop, the first one too, however many run at a time.
    let depth = Options { depth: Some(BEHIND_DEPTH), threads: 9, ..options(slc()) };
    let asked = advise(&trace, &depth, &|_, _| {}).unwrap();
    assert!(!asked.behind);
    let ends = |advice: &Advice| {
        let timed = advice.rows.iter().map(|row| row.timed.as_ref().unwrap());
        timed.map(|timed| (timed.writes.max_ns(), timed.bytes_per_s.to_bits())).collect::<Vec<_>>()
    };
    assert_eq!(ends(&advice), ends(&asked));
}

#[test]
fn devices_without_an_ftl_or_too_small_are_refused_with_a_mend() {
    let trace = read(skewed(1000)).unwrap();
    let refusal = |name: &str| {
        let device = DeviceSpec::builtin(name).expect("built in");
        let drive = Drive::of_file(device, None);
        advise(&trace, &options(drive), &|_, _| {}).unwrap_err().to_string()
    };
    assert!(refusal("sdf").contains("raw units"));
    assert!(refusal("wsr").contains("fast tier"));
    assert!(refusal("ts8-2-x11").contains("ts8-2"));
    let mut small = DeviceSpec::builtin("intel-320").expect("built in");
    if let crate::device_file::Inside::Ftl(flash, _) = &mut small.inside {
        flash.layout = nand::Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 2 };
    }
    let small = Drive::of_file(small, None);
    let refusal = advise(&trace, &options(small), &|_, _| {}).unwrap_err().to_string();
    assert!(refusal.contains("--sample 1/"), "{refusal}");
}

#[test]
fn the_least_over_provisioning_that_lasts_is_chosen() {
    let trace = read(skewed(10_000)).unwrap();
    let both = Options { op_percents: vec![28.0, 10.0], ..options(slc()) };
    let advice = advise(&trace, &both, &|_, _| {}).unwrap();
    let chosen = |years| advice.rows[choose(&advice, years).row.unwrap()].op_percent;
    let most = |op| {
        let alike = advice.rows.iter().filter(|row| row.op_percent == op);
        alike.map(|row| row.years).fold(0.0, f64::max)
    };
    assert!(most(28.0) > most(10.0));
    assert_eq!(chosen(0.0), 10.0);
    assert_eq!(chosen(1000.0 * most(28.0)), 28.0, "none lasts: the longest");
    assert_eq!(span(0.5), "182.6 days");
}

/// A drive as large as what the trace touches is measured itself; what stands for a larger one leaves GC as
/// much of each logical block.
#[test]
fn what_is_measured_is_the_drive_or_leaves_gc_as_much() {
    let profile = || Profile::builtin("slc").expect("built in");
    let bytes = 64 << 20;
    for stream in ["none", "midas"] {
        let choice = Choice { stream, victim: "cost-benefit", op_percent: 7.0, seed: 1 };
        let whole = Drive::of_flash(profile(), (2, 1), Some(bytes));
        let sized = whole.sized(choice, bytes).unwrap();
        let built = whole.build(choice, bytes).unwrap();
        assert_eq!((built.bytes(), built.flash_bytes()), (bytes, sized.flash_bytes()), "{stream}");
        assert!(whole.is_whole(bytes) && sized.percent_left() >= 7.0, "{sized:?}");

        let large = Drive::of_flash(profile(), (2, 1), None);
        let sized = large.sized(choice, bytes).unwrap();
        assert_eq!(sized.logical_blocks, 1 << 28);
        let built = large.build(choice, bytes).unwrap();
        assert_eq!(built.bytes(), bytes);
        let share = built.flash_bytes() as f64 / bytes as f64;
        assert!(share > sized.flash_share(), "what it lacks comes on top: {share} for {sized:?}");
    }
    let mut file = DeviceSpec::builtin("intel-320").expect("built in");
    if let crate::device_file::Inside::Ftl(flash, _) = &mut file.inside {
        flash.layout = nand::Layout { channels: 1, dies_per_channel: 1, blocks_per_plane: 512 };
    }
    let choice = Choice { stream: "none", victim: "greedy", op_percent: 15.0, seed: 1 };
    let sized = Drive::of_file(file.clone(), None).sized(choice, bytes).unwrap();
    assert!((sized.flash_share() / 1.15 - 1.0).abs() < 1e-5, "all of its flash: {sized:?}");
    let smaller = Drive::of_file(file, Some(bytes)).sized(choice, bytes).unwrap();
    assert!(smaller.logical_blocks * 4096 >= bytes && smaller.flash_bytes() < sized.flash_bytes());
}
