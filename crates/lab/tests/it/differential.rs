//! The lab beside what others computed or ran: mathematics, two independent simulators, MQSim. What they
//! say, and how near the lab has to come, is in `references.rs`.

use crate::THREADS;
use crate::references::{
    MQSIM, PLACEMENT, PLACEMENT_WITHIN, Placement, SEPBIT, SEPBIT_BLOCKS, SEPBIT_OP_PERCENT,
    SEPBIT_SLOTS, SEPBIT_WITHIN, UNIFORM, UNIFORM_TO_MONTE_CARLO, UNIFORM_TO_THEORY, Uniform,
};
use lab::experiment::{Experiment, Kept, Options, Scale, builtin, report, run};
use lab::figures::{waf, waf_theory};
use lab::parallel::for_each_seed;
use lab::report::Verdict;
use lab::streams::StreamRun;

const SLOTS: u32 = 64;

/// All rows are measured and told before one of them fails the test.
fn judge(rows: Vec<(String, bool)>) {
    rows.iter().for_each(|(row, _)| println!("{row}"));
    let off: Vec<&String> = rows.iter().filter(|(_, near)| !near).map(|(row, _)| row).collect();
    assert!(off.is_empty(), "too far off: {off:#?}");
}

#[test]
fn uniform_writes_are_amplified_as_mathematics_and_a_monte_carlo_say() {
    let measure = |row: u64| {
        let Uniform { victim, op_percent, monte_carlo } = UNIFORM[row as usize];
        let waf = waf(op_percent, victim, SLOTS)?;
        let to_theory = waf.measured / waf.theory - 1.0;
        // The Monte Carlo had exactly this spare space; the FTL has it nearly.
        let exact = waf_theory(victim, 1.0 + op_percent / 100.0, SLOTS).expect("it has one");
        let to_monte_carlo = waf.measured / waf.theory * exact / monte_carlo - 1.0;
        let near = to_theory.abs() < UNIFORM_TO_THEORY
            && to_monte_carlo.abs() < UNIFORM_TO_MONTE_CARLO
            && (waf.alpha / (1.0 + op_percent / 100.0) - 1.0).abs() < 0.01
            && waf.measured >= 1.0
            && waf.measured_all >= waf.measured;
        let row = format!(
            "{victim} at {op_percent} %: {to_theory:+.4} off theory, {to_monte_carlo:+.4} off the \
             Monte Carlo: {waf:?}"
        );
        Ok((row, near))
    };
    judge(for_each_seed(0..UNIFORM.len() as u64, THREADS, measure).expect("all are measured"));
}

/// Each row on the device of `run`, beside what was found elsewhere.
fn judge_placement(references: &[Placement], run: &StreamRun, within: f64) {
    let measure = |row: u64| {
        let Placement { pattern, stream, victim, waf } = references[row as usize];
        let run = StreamRun { pattern, victim: victim.into(), ..run.clone() };
        let found = run.measure(stream)?;
        let off = found.waf / waf - 1.0;
        let row = format!(
            "{pattern:?}, {stream}, {victim}: {:.3} for {waf:.2}, {off:+.4} off; alpha {:.4}",
            found.waf, found.alpha
        );
        Ok((row, off.abs() < within))
    };
    judge(for_each_seed(0..references.len() as u64, THREADS, measure).expect("all are measured"));
}

#[test]
fn placement_amplifies_writes_as_an_independent_simulator_says() {
    judge_placement(PLACEMENT, &StreamRun::default().scaled(4), PLACEMENT_WITHIN);
}

#[test]
fn placement_amplifies_writes_as_the_simulator_of_sepbit_says() {
    let run = StreamRun {
        bands: SEPBIT_BLOCKS / SEPBIT_SLOTS,
        slots_per_band: SEPBIT_SLOTS,
        op_percent: SEPBIT_OP_PERCENT,
        overwrites: 5.0,
        ..StreamRun::default()
    };
    judge_placement(SEPBIT, &run, SEPBIT_WITHIN);
}

#[test]
fn the_default_device_of_mqsim_does_what_mqsim_says() {
    let experiment = Experiment::parse(builtin("mqsim").expect("it is built in")).expect("whole");
    let (scale, set) = (Scale::Small, Vec::new());
    let options = Options { scale, set, seed: 1, seeds: 1, threads: THREADS };
    let results = run(&experiment, &options, &Kept::default(), &|_| {}).expect("it runs");
    let report = report(&experiment, &options, &results).expect("it is judged");
    let tolerances = report
        .claims
        .iter()
        .map(|claim| (claim.statement().id.as_str(), claim.statement().tolerance.to_string()));
    let expected = MQSIM.iter().map(|&(id, tolerance)| (id, tolerance.to_owned()));
    assert_eq!(tolerances.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    for claim in &report.claims {
        let explained = claim.reason().is_some();
        assert!(claim.verdict() == Verdict::Fits || explained, "{claim:?}");
    }
}
