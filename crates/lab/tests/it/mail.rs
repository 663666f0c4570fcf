//! Many small durable writes, as a mail server's: none is refused while space is free, whatever the
//! flash, the shape, the pace and the rate of flushes; what they cost is bounded; and bad bands that
//! leave enough are no reason to refuse, those that leave too little are one that is told.

use super::{THREADS, passed, seeds};
use flash::{MILLISECOND, Random};
use ftl::Settings;
use lab::Failure;
use lab::mail::{self, MailDevice, MailLoad, MailPace, MailReport};
use lab::parallel::for_each_seed;
use nand::{Faults, Profile};

fn run(device: &MailDevice, load: &MailLoad) -> Result<MailReport, Failure> {
    mail::run(device, load, &Settings::default())
}

/// Any flash that comes with Weir, in any shape that a format takes, under any such load.
fn drawn(seed: u64) -> (MailDevice, MailLoad) {
    let mut random = Random::new(seed);
    let mut pick = |many: &[u32]| many[random.below(many.len() as u64) as usize];
    let profiles = Profile::builtin_names();
    let device = MailDevice {
        profile: profiles[seed as usize % profiles.len()].into(),
        pages_per_block: pick(&[12, 13, 16, 24, 32, 48, 64, 96]),
        units: pick(&[1, 2, 4, 8]),
        blocks_per_unit: pick(&[24, 32, 48, 64]),
        op_percent: pick(&[0, 7, 15, 25, 28, 50]),
        factory_bad: [0.0, 0.0, 0.02][pick(&[0, 1, 2]) as usize],
    };
    let depth = pick(&[1, 4, 16, 64]);
    let pace = match pick(&[0, 1, 2]) {
        0 => MailPace::Writers(depth),
        1 => MailPace::Depth(depth),
        _ => MailPace::Rate(f64::from(pick(&[200, 2_000, 20_000]))),
    };
    let load = MailLoad {
        pace,
        writes_per_flush: pick(&[0, 1, 1, 1, 4, 32]),
        fua: pick(&[0, 0, 1]) == 1,
        utilization: f64::from(pick(&[50, 80, 95, 99])) / 100.0,
        filled: pick(&[0, 1, 1]) == 1,
        deletes: f64::from(pick(&[0, 10, 30, 50])) / 100.0,
        operations: 8_000,
        seed,
    };
    (device, load)
}

#[test]
fn no_small_durable_write_is_refused_while_space_is_free() {
    let result = for_each_seed(seeds(0..120), THREADS, |seed| {
        let (device, load) = drawn(seed);
        let report =
            run(&device, &load).map_err(|why| Failure(format!("{device:?} {load:?}: {why}")))?;
        if report.refused + report.trims_refused + report.failed > 0 {
            return Err(Failure(format!("{device:?} {load:?}: {report}; {}", report.refusal)));
        }
        Ok(report)
    });
    passed("no_small_durable_write_is_refused_while_space_is_free", result);
}

/// What the issue measured: 9 and more blocks programmed for each block written, and most writes refused.
#[test]
fn sixteen_writers_that_flush_each_write_cost_little() {
    for (profile, pages) in [("mlc-25nm", 256), ("mlc-50nm", 128), ("tlc", 96)] {
        let device = MailDevice {
            profile: profile.into(),
            pages_per_block: pages,
            units: 8,
            blocks_per_unit: 32,
            op_percent: 25,
            factory_bad: 0.0,
        };
        let load = MailLoad { utilization: 0.8, operations: 30_000, ..MailLoad::default() };
        let report = run(&device, &load).expect("runs");
        println!("{profile}: {report}");
        assert_eq!(report.refused + report.failed, 0, "{profile}: {report}");
        assert!(report.waf < 2.5, "{profile}: {report}");
        // Two rounds, each as long as a word line and what the units have queued.
        assert!(report.flushes.max_ns() < 100 * MILLISECOND, "{profile}: {report}");
    }
}

/// 48 bands, of which more and more fail: while those that are left suffice nothing is refused.
#[test]
fn bad_bands_are_no_reason_to_refuse_while_what_is_left_suffices() {
    let result = for_each_seed(seeds(0..24), THREADS, |seed| {
        let profiles = ["slc", "mlc-50nm", "mlc-25nm", "tlc"];
        let device = MailDevice {
            profile: profiles[seed as usize % 4].into(),
            pages_per_block: 24,
            units: 4,
            blocks_per_unit: 12,
            op_percent: 150,
            factory_bad: 0.0,
        };
        let erase_fail = [0.02, 0.02, 0.06][seed as usize / 4 % 3];
        let faults = Faults { seed, erase_fail, program_fail: 5e-4, ..Faults::default() };
        let load = MailLoad {
            utilization: 0.9,
            deletes: 0.1,
            operations: 8_000,
            seed,
            ..MailLoad::default()
        };
        let medium = device.medium(faults)?;
        let report = mail::run_with(medium, &device, &load, &Settings::default())?;
        let [end, refusal] = &report.warnings;
        let told = |warnings: &[String]| warnings.iter().any(|text| text.contains("bad bands"));
        let silent = report.refused > 0 && !told(refusal);
        // Where not even what was written can be moved, the device fails as a whole.
        let broken = report.failed > 0 && !told(end);
        if report.refused_early > 0 || broken || silent {
            return Err(Failure(format!("{device:?}: {report}, {refusal:?}; {}", report.refusal)));
        }
        if report.bands_bad > 20 && !told(end) {
            return Err(Failure(format!(
                "{} bad bands, and no warning: {end:?}",
                report.bands_bad
            )));
        }
        println!("seed {seed}: {} bad, {report}, {end:?}", report.bands_bad);
        Ok(report)
    });
    let reports = passed("bad_bands_are_no_reason_to_refuse_while_what_is_left_suffices", result);
    assert!(reports.iter().any(|report| report.bands_bad >= 15), "bands fail");
}

/// A device that is full, and of which bands fail until writes are refused: trims go on, and make room. Not on
/// all: where one more program fails as GC or a checkpoint works with the last band, nothing can be placed any
/// more, the record of a trim as little as anything else. Of 121 devices it was 5.
#[test]
fn trims_go_on_however_many_bands_are_bad() {
    let result = for_each_seed(seeds(0..60), THREADS, |seed| {
        let device = MailDevice {
            profile: ["slc", "mlc-25nm", "tlc"][seed as usize % 3].into(),
            pages_per_block: 24,
            units: [2, 4][seed as usize / 3 % 2],
            blocks_per_unit: 16,
            op_percent: 60,
            factory_bad: 0.0,
        };
        let faults = Faults { seed, program_fail: 1e-3, ..Faults::default() };
        let medium = device.medium(faults)?;
        let load = MailLoad {
            utilization: 1.0,
            deletes: [0.0, 0.02][seed as usize / 6 % 2],
            operations: 8_000,
            seed,
            ..MailLoad::default()
        };
        let report = mail::run_with(medium, &device, &load, &Settings::default())?;
        println!(
            "seed {seed}: {} bad, {report}, {} trims refused, {:?}",
            report.bands_bad, report.trims_refused, report.warnings
        );
        Ok(report)
    });
    let reports = passed("trims_go_on_however_many_bands_are_bad", result);
    let stuck: Vec<&MailReport> =
        reports.iter().filter(|report| report.trims_refused > 0).collect();
    assert!(stuck.len() <= reports.len() / 10, "{stuck:?}");
    let refused = reports.iter().filter(|report| report.refused > 0).count();
    assert!(refused >= 8, "{refused} devices ran full");
}
