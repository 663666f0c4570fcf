//! Measured figures against mathematics.

use lab::figures::{raw_rates, waf};
use nand::Layout;

fn near_theory(op_percent: f64, victim: &str) {
    let waf = waf(op_percent, victim, 64).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{victim} at {op_percent} %: {waf:?}");
    let error = waf.measured / waf.theory - 1.0;
    assert!(error.abs() < 0.03, "{victim} at {op_percent} %: {waf:?} is {error:+.4} off");
    assert!((waf.alpha / (1.0 + op_percent / 100.0) - 1.0).abs() < 0.01, "{waf:?}");
    assert!(waf.measured >= 1.0 && waf.measured_all >= waf.measured, "{waf:?}");
}

#[test]
fn fifo_amplifies_writes_as_theory_says() {
    [7.0, 10.0, 28.0].into_iter().for_each(|op| near_theory(op, "fifo"));
}

#[test]
fn greedy_amplifies_writes_as_theory_says() {
    [7.0, 10.0, 28.0].into_iter().for_each(|op| near_theory(op, "greedy"));
}

#[test]
fn raw_bandwidth_follows_from_the_data_sheet() {
    let layout = Layout { channels: 4, dies_per_channel: 2, blocks_per_plane: 8 };
    for profile in ["slc", "mlc-50nm", "mlc-25nm", "tlc", "qlc"] {
        let rates = raw_rates(profile, &layout).unwrap_or_else(|failure| panic!("{failure}"));
        println!("{profile}: {rates:?}");
        for (name, (measured, bound)) in
            [("program", rates.program), ("read", rates.read), ("erase", rates.erase)]
        {
            let share = measured / bound;
            assert!((0.9..=1.001).contains(&share), "{profile} {name}: {share:.3} of the bound");
        }
    }
}
