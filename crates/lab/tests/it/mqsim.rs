//! Differential: the emulator and the FTL on MQSim's default device, beside what MQSim printed for the same
//! requests. The figures and their tolerances are the experiment's (`experiments/mqsim.toml`).

use crate::THREADS;
use lab::experiment::{Experiment, Kept, Options, Scale, builtin, report, run};
use lab::report::Verdict;

#[test]
fn the_default_device_of_mqsim_does_what_mqsim_says() {
    let experiment = Experiment::parse(builtin("mqsim").expect("it is built in")).expect("whole");
    let (scale, set) = (Scale::Small, Vec::new());
    let options = Options { scale, set, seed: 1, seeds: 1, threads: THREADS };
    let results = run(&experiment, &options, &Kept::default(), &|_, _, _| {}).expect("it runs");
    let report = report(&experiment, &options, &results).expect("it is judged");
    for claim in &report.claims {
        let explained = claim.reason().is_some();
        assert!(claim.verdict() == Verdict::Fits || explained, "{claim:?}");
    }
}
