//! Measured figures against mathematics.

use lab::figures::raw_rates;
use nand::Layout;

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
