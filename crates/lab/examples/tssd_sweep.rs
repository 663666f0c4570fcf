//! Prints the read latencies of a part of a TSSD beside capped random writes:
//! `cargo run --release -p lab --example tssd_sweep -- [slo=5ms] [suspend] [small] [CAP_MB]...`

use flash::quantity::duration_ns;
use ftl::Settings;
use lab::tail::{TailDevice, TailLoad};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut device = TailDevice::default();
    let mut settings = Settings::default();
    let mut caps = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("slo", value)) => {
                settings.read_slo_ns = duration_ns(value).ok_or("a duration, for example 5ms")?
            }
            Some(("low", value)) => settings.bands_free_low = value.parse()?,
            Some(("unit", value)) => settings.policies.unit = value.into(),
            Some(("erase", value)) => settings.policies.erase = value.into(),
            None if argument == "suspend" => device.suspend = true,
            None if argument == "small" => {
                (device.channels, device.blocks_per_unit) = (4, 128);
            }
            _ => caps.push(argument.parse()?),
        }
    }
    if caps.is_empty() {
        caps = vec![0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 44.0, 60.0];
    }
    let medium = device.precondition(&settings)?;
    println!("{device:?}, SLO {} ns", settings.read_slo_ns);
    for cap in caps {
        let load = TailLoad { cap_bytes_per_s: cap * 1e6, ..TailLoad::default() };
        println!("cap {cap:4}: {}", device.measure(&medium, &settings, &load)?);
    }
    Ok(())
}
