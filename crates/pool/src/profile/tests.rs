//! Profiles that are right, wrong and odd.

use super::raw::{File, Import, Repair, import};
use super::*;

const TWO: &str = "writes,iops,lost,p50,p90,p99,p999,p9999\n\
    0,1000,0,70,80,90,100,110\n0,2000,0,70,900,2000,inf,inf\n0,3000,7,70,90,90,100,110\n\
    50,1000,0,70,80,90,100,110\n";

#[test]
fn every_published_profile_is_read_and_written_back() {
    for name in Profile::names() {
        let profile = Profile::builtin(name).expect("it is known");
        assert!(profile.curves.len() >= 3, "{name}");
        for writes in [0.0, 100.0] {
            let curve = profile.curve(writes).expect("both ends were measured");
            assert!(curve.peak(Quantile::P90).is_some(), "{name} at {writes} %");
        }
        let again = Profile::parse(name, &profile.to_text()).expect("it was written by us");
        assert_eq!(again.curves, profile.curves);
    }
    assert!(Profile::builtin("other").is_none());
}

#[test]
fn a_peak_is_the_last_load_that_was_carried() {
    let profile = Profile::parse("two", TWO).expect("it is right");
    let reads = profile.curve(0.0).expect("it is there");
    let peak = |quantile| reads.peak(quantile).expect("the first load was carried");
    assert_eq!(peak(Quantile::P90), Peak { iops: 2000.0, is_bounded: true });
    assert_eq!(peak(Quantile::P99), Peak { iops: 1000.0, is_bounded: true });
    let strict = Slo { quantile: Quantile::P50, us: 70.0 };
    assert_eq!(reads.peak_within(strict), None);
    let mixed = profile.curve(50.0).expect("it is there");
    let unbounded = Peak { iops: 1000.0, is_bounded: false };
    assert_eq!(mixed.peak(Quantile::P90), Some(unbounded));
}

#[test]
fn bad_profiles_are_refused_with_the_line() {
    let refused = |from: &str, to: &str, says: &str| {
        let why = Profile::parse("p", &TWO.replace(from, to)).expect_err(to).to_string();
        assert!(why.contains(says) && why.contains("line"), "{why}");
    };
    refused("writes,", "", "begins with");
    refused("50,1000,0", "50,1000", "7 fields");
    refused("50,1000,0", "50,x,0", "iops = \"x\"");
    refused("50,1000,0", "50,NaN,0", "iops = \"NaN\"");
    refused("50,1000,0", "50,inf,0", "iops is infinite");
    refused("50,1000,0", "50,0,0", "above 0");
    refused("50,1000,0", "-1,1000,0", "writes");
    refused("50,1000,0", "150,1000,0", "at most 100");
    refused("70,900,2000", "70,900,800", "never fall");
    let turned = "writes,iops,lost,p50,p90,p99,p999,p9999\n9,1,0,1,1,1,1,1\n8,1,0,1,1,1,1,1\n";
    assert!(
        Profile::parse("p", turned).expect_err("turned").to_string().contains("sort the lines")
    );
    let half = &TWO[..TWO.len() - 1];
    let why = Profile::parse("p", half).expect_err("who knows what is gone").to_string();
    assert!(why.contains("line 5") && why.contains("cut off"), "{why}");
    assert!(Profile::parse("p", HEADER).expect_err("empty").to_string().contains("no line"));
    let why = LoadModel::new(&Profile::parse("p", TWO).expect("it is right"), Slo::default(), 1.0);
    assert!(why.expect_err("no writes alone").to_string().contains("at 100 % of writes"));
}

const RAW_HEADER: &str = "SerialNumber,Distribution,Target,Actual,Dropped,NeverSent,Median,90th,99th,99.9th,99.99th,Start,StartTsc";

fn raw_text(lines: &[&str]) -> String {
    let mut text = format!("{RAW_HEADER}\n");
    for line in lines {
        text += &format!("{line},17,97\n");
    }
    text
}

const READS: [&str; 3] = [
    "S1,constant,1000,1000,0,3,70,80,90,100,110",
    "S1,constant,2000,2000,0,3,70,79,95,100,110",
    "S1,constant,3000,2500,500,3,170,280,inf,inf,inf",
];
const WRITES: [&str; 2] =
    ["S1,constant,500,500,0,3,20,30,40,50,60", "S1,constant,900,900,0,3,21,31,41,51,61"];

#[test]
fn published_files_become_a_profile_and_what_was_mended_is_told() {
    let (reads, writes) = (raw_text(&READS), raw_text(&WRITES));
    let odd = raw_text(&[
        "S1,constant,500,500,0,3,20,30,40,50,60",
        "S1,constant,600,480,0,3,20,30,40,50,60",
    ]);
    let files = [
        File { name: "S1_1000w.csv", text: &writes },
        File { name: "S1_250w.csv", text: &odd },
        File { name: "S1_100r.csv", text: &reads },
    ];
    let Import { profile, repairs } = import(&files).expect("all can be mended");
    assert_eq!(profile.name, "s1");
    let shares: Vec<f64> = profile.curves.iter().map(|curve| curve.writes_percent).collect();
    assert_eq!(shares, [0.0, 25.0, 100.0]);
    assert_eq!(profile.curves[1].points.len(), 1, "the load that fell is left out");
    assert!(repairs.contains(&Repair::LoadFell { file: "S1_250w.csv".into(), line: 3 }));
    assert!(repairs.contains(&Repair::LatencyFell { file: "S1_100r.csv".into(), loads: 1 }));
    let told: Vec<String> = repairs.iter().map(Repair::to_string).collect();
    assert!(told.iter().any(|told| told.contains("S1_250w.csv, line 3")), "{told:?}");
    let missing = Repair::ShareMissing { writes_percent: 30.0, answered_by: 100.0 };
    assert!(repairs.contains(&missing));
    let model = LoadModel::new(&profile, Slo::default(), 1.0).expect("it is whole");
    assert_eq!(model.peak(30.0), 900.0);
    assert_eq!(model.latency(2000.0, 0.0), Some(80.0), "a latency never falls");
}

#[test]
fn bad_published_files_are_refused_with_file_line_and_mend() {
    let whole = |reads: &[&str], name: &str, also: &[(&str, &[&str])]| {
        let mut texts = vec![(name.to_owned(), raw_text(reads))];
        texts.extend(also.iter().map(|(name, lines)| ((*name).to_owned(), raw_text(lines))));
        let files: Vec<File<'_>> = texts.iter().map(|(name, text)| File { name, text }).collect();
        import(&files).expect_err("it is wrong").to_string()
    };
    let refused = |line: &str, says: &str| {
        let why = whole(&[READS[0], line], "S1_100r.csv", &[("S1_1000w.csv", &WRITES)]);
        assert!(why.contains("S1_100r.csv") && why.contains("line 3"), "{why}");
        assert!(why.contains(says), "{why}");
    };
    refused("S2,constant,2000,2000,0,3,70,80,90,100,110", "drive \"S2\" among those of \"S1\"");
    refused("S1,constant,2000,-5,0,3,70,80,90,100,110", "Actual = \"-5\"");
    refused("S1,constant,2000,inf,0,3,70,80,90,100,110", "Actual is infinite");
    refused("S1,constant,inf,2000,0,3,70,80,90,100,110", "Target is infinite");
    refused("S1,constant,2000,2000,NaN,3,70,80,90,100,110", "Dropped");
    refused("S1,constant,2000,2000,0,3,-70,80,90,100,110", "Median");
    refused("S1,constant,2000,2000,0,3,70,80,70,100,110", "never fall");
    refused("S1,constant,2000,2000", "6 fields");
    assert!(whole(&[], "S1_100r.csv", &[]).contains("no line follows"));
    assert!(whole(&READS, "S1.csv", &[]).contains("share of writes"));
    assert!(whole(&READS, "S1_1001w.csv", &[]).contains("share of writes"));
    let twice = whole(&READS, "S1_100r.csv", &[("T_100r.csv", &READS)]);
    assert!(twice.contains("T_100r.csv") && twice.contains("another file"));
    assert!(whole(&READS, "S1_100r.csv", &[]).contains("at 10 % of writes"));
    assert!(whole(&WRITES, "S1_1000w.csv", &[]).contains("at 0 % of writes"));
    let cut = raw_text(&READS);
    let files = [File { name: "S1_100r.csv", text: &cut[..cut.len() - 1] }];
    let why = import(&files).expect_err("the end is gone").to_string();
    assert!(why.contains("line 4") && why.contains("cut off"), "{why}");
    assert!(import(&[]).expect_err("nothing").to_string().contains("no line"));
}

#[test]
fn a_model_is_the_profile_between_its_loads_and_never_falls() {
    for name in Profile::names() {
        let profile = Profile::builtin(name).expect("it is known");
        let model = LoadModel::new(&profile, Slo::default(), 1.0).expect("it is whole");
        for curve in &profile.curves {
            let share = curve.writes_percent / 100.0;
            let peak = curve.peak(Quantile::P90).map_or(0.0, |peak| peak.iops);
            assert_eq!(model.peak(curve.writes_percent), peak, "{name}");
            let mut before = 0.0;
            for step in 1..=100 {
                let load = peak * f64::from(step) / 100.0 * (1.0 - 1e-12);
                let us = model.latency(load * (1.0 - share), load * share).expect("it is carried");
                assert!(us >= before && us < 1000.0, "{name} {share} {load}: {us} after {before}");
                before = us;
            }
            assert_eq!(model.latency(peak * 1.01 * (1.0 - share), peak * 1.01 * share), None);
            let beyond = model.expected(peak * 2.0 * (1.0 - share), peak * 2.0 * share);
            assert!(beyond >= before && beyond < 1000.0, "{name}");
        }
        let damped = LoadModel::new(&profile, Slo::default(), DAMPING).expect("it is whole");
        assert!((damped.peak(0.0) - DAMPING * model.peak(0.0)).abs() < 1e-6);
        assert!(LoadModel::new(&profile, Slo::default(), 0.0).is_err());
        assert!(LoadModel::new(&profile, Slo::default(), f64::NAN).is_err());
    }
}

#[test]
fn a_share_is_rounded_up_to_one_that_was_measured() {
    let profile = Profile::builtin("s39wna0kc01659").expect("it is known");
    let model = LoadModel::new(&profile, Slo::default(), 1.0).expect("it is whole");
    assert_eq!(model.peak(10.1), model.peak(20.0));
    assert_eq!(model.peak(0.5), model.peak(10.0));
    assert_eq!(model.peak(100.0 * 0.1 / 1.0), model.peak(10.0));
    assert!(model.points().iter().all(|point| point.cost > 0.0));
}

#[test]
fn the_load_within_a_latency_has_that_latency() {
    let profile = Profile::builtin("s47ana0m403393").expect("it is known");
    let model = LoadModel::new(&profile, Slo::default(), 1.0).expect("it is whole");
    for (share, us) in [(0.0, 150.0), (30.0, 300.0), (100.0, 500.0)] {
        let load = model.curve(share).load_within(us);
        let (reads, writes) = (load * (1.0 - share / 100.0), load * share / 100.0);
        let back = model.latency(reads, writes).expect("it is carried");
        assert!(back <= us + 1e-6 && load <= model.peak(share), "{share}: {back} for {us}");
        assert!(model.latency(reads * 1.01, writes * 1.01).is_none_or(|more| more > us));
    }
    assert_eq!(model.curve(0.0).load_within(1.0), 0.0);
    assert_eq!(model.curve(0.0).load_within(1e9), model.peak(0.0));
}
