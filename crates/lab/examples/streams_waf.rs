//! Prints write amplification by stream policy:
//! `cargo run --release -p lab --example streams_waf -- [scale=4] [bands=2048] [victim=cost-benefit] [op=10]
//! [load=zipf] [POLICY]...`

use lab::streams::StreamRun;
use lab::workload::Pattern;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut run = StreamRun::default();
    let (mut scale, mut streams, mut loads) = (4, Vec::new(), Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("scale", value)) => scale = value.parse()?,
            Some(("victim", value)) => run.victim = value.into(),
            Some(("op", value)) => run.op_percent = value.parse()?,
            Some(("overwrites", value)) => run.overwrites = value.parse()?,
            Some(("bands", value)) => run.bands = value.parse()?,
            Some(("load", value)) => loads.push(value.to_string()),
            _ => streams.push(argument),
        }
    }
    if streams.is_empty() {
        let names =
            ["none", "hint:handles=2", "multiq", "sfr", "sepbit", "midas", "interval", "oracle"];
        streams = names.map(String::from).to_vec();
    }
    if loads.is_empty() {
        loads = ["zipf", "zipf-local", "hot-cold"].map(String::from).to_vec();
    }
    run = run.scaled(scale);
    println!("{} blocks, OP {} %, victim {}", run.logical_blocks(), run.op_percent, run.victim);
    for load in loads {
        run.pattern = match load.as_str() {
            "zipf" => Pattern::Zipf { theta: 1.0 },
            "zipf-local" => Pattern::ZipfLocal { theta: 1.0 },
            "uniform" => Pattern::Uniform,
            "hot-cold" => Pattern::HotCold { fraction: 0.2, share: 0.8 },
            other => return Err(format!("{other}: zipf, zipf-local, hot-cold, uniform").into()),
        };
        for stream in &streams {
            let begun = std::time::Instant::now();
            let got = run.measure(stream)?;
            println!(
                "{load:10} {stream:24} WAF {:.3} ({:.3} with checkpoints), alpha {:.4}, {} handles, \
                 {:.1} % of moves elsewhere; {:.1} s",
                got.waf,
                got.waf_all,
                got.alpha,
                got.handles,
                100.0 * got.fallbacks,
                begun.elapsed().as_secs_f64()
            );
        }
    }
    Ok(())
}
