//! Looks for constants with which cases of an experiment come nearest to its source's tables, and prints every
//! figure of them beside the source's:
//! `cargo run --release -p lab --example fit_table -- EXPERIMENT case=NAME... [tries=N] [step=FACTOR] [KEY=START]...`
//!
//! KEY is a variable of the experiment, or with a dot a key of the device file; it is looked for from a
//! sixteenth to sixteen times START. Without a KEY, the cases are measured as they are.

use lab::experiment::fit::{Beside, Tried, Wanted, beside, error, fit};
use lab::experiment::{Experiment, Options, Scale, builtin};
use lab::fit::{Effort, Knob};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("name an experiment, for example wsr-table case=cache")?;
    let text = builtin(&name).ok_or_else(|| format!("no experiment is called {name:?}"))?;
    let experiment = Experiment::parse(text)?;
    let mut options =
        Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 1, threads: 2 };
    let mut effort = Effort { step: 1.5, step_least: 1.05, tries_max: 40 };
    let (mut cases, mut wanted) = (Vec::new(), Vec::new());
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("{argument}: KEY=VALUE, for example tries=40"))?;
        match key {
            "case" => cases.push(value.to_owned()),
            "tries" => effort.tries_max = value.parse()?,
            "step" => effort.step = value.parse()?,
            "seeds" => options.seeds = value.parse()?,
            "threads" => options.threads = value.parse()?,
            _ => wanted.push(constant(key, value)?),
        }
    }
    if wanted.is_empty() {
        print(&beside(&experiment, &cases, &options)?);
        return Ok(());
    }
    let mut told = |Tried { at, error }: Tried<'_>| {
        let values: Vec<String> =
            wanted.iter().zip(at).map(|(of, value)| format!("{}={value}", of.name)).collect();
        match error {
            Ok(error) => println!("{error:.4}  {}", values.join(" ")),
            Err(why) => println!("none    {}: {why}", values.join(" ")),
        }
    };
    let found = fit(&experiment, &cases, &wanted, &options, effort, &mut told)?;
    println!("{} places were measured", found.tries);
    for (of, value) in wanted.iter().zip(&found.at) {
        println!("{} = {value}", of.name);
    }
    print(&found.beside);
    Ok(())
}

fn constant(name: &str, start: &str) -> Result<Wanted, String> {
    let value: f64 = start.parse().ok().filter(|value| *value > 0.0).ok_or_else(|| {
        format!("{name}={start}: a number above 0 to begin with, for example caching.line_ns=1800")
    })?;
    let whole = !start.contains('.');
    let knob = Knob { least: value / 16.0, most: value * 16.0, whole };
    Ok(Wanted { name: name.into(), start: value, knob })
}

fn print(all: &[Beside]) {
    println!("| row | column | metric | said | measured | off |");
    println!("|---|---|---|---|---|---|");
    for Beside { row, column, metric, said, measured } in all {
        let off = 100.0 * (measured / said - 1.0);
        println!("| {row} | {column} | {metric} | {said} | {measured:.3} | {off:+.0} % |");
    }
    println!("root of the mean square of ln(measured / said), each at most 1.1: {:.3}", error(all));
}
