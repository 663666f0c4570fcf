//! Constants with which cases of an experiment come nearest to the figures of its source's tables: one set of
//! them for all rows.

use super::select::{matches, number_of, text_of};
use super::{Experiment, ExperimentError, Kept, Options, run};
use crate::fit::{Effort, Knob, search};
use toml::Value;

/// A constant that is looked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted {
    /// A variable of the experiment, or with a dot a key of the device files, such as `firmware.command_ns`.
    pub name: String,
    /// Where the search begins.
    pub start: f64,
    /// Its bounds.
    pub knob: Knob,
}

/// A figure of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// Of the table.
    pub row: String,
    /// Label of its column.
    pub column: String,
    /// Of the column.
    pub metric: String,
    /// What the source has.
    pub said: f64,
    /// What was measured.
    pub measured: f64,
}

impl Beside {
    /// How far the measured figure is off, as the logarithm of the ratio: twice as much is as far as half.
    pub fn off(&self) -> f64 {
        libm::log(self.measured / self.said)
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Fitted {
    /// The value of each constant, in the order in which they were wanted.
    pub at: Vec<f64>,
    /// See [`error()`].
    pub error: f64,
    /// How many places were measured.
    pub tries: u32,
    /// Each figure there.
    pub beside: Vec<Beside>,
}

/// A place that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried<'a> {
    /// The value of each constant.
    pub at: &'a [f64],
    /// How far the figures are off there, or why it cannot be measured.
    pub error: &'a Result<f64, ExperimentError>,
}

/// Every figure that the source's tables have of these cases, with the means of all seeds beside it.
///
/// # Errors
/// As of [`super::run()`]; and if no table has a figure of the cases.
pub fn beside(
    experiment: &Experiment,
    cases: &[String],
    options: &Options,
) -> Result<Vec<Beside>, ExperimentError> {
    let reduced = experiment.reduced(cases, &[])?;
    measured(&reduced, options)
}

fn measured(experiment: &Experiment, options: &Options) -> Result<Vec<Beside>, ExperimentError> {
    let seeds = run(experiment, options, &Kept::default(), &|_| ())?;
    let results = super::seeds::combined(&seeds);
    let mut all = Vec::new();
    for table in &experiment.tables {
        for column in &table.column {
            let case = results.cases.iter().find(|case| case.case == column.case);
            let points = case.map_or(&[][..], |case| &case.points);
            for point in points.iter().filter(|point| matches(&point.at, &column.at)) {
                let row = point.at.iter().find(|(name, _)| *name == table.rows);
                let row = row.map(|(_, value)| text_of(value)).unwrap_or_default();
                let Some(said) = column.paper.get(&row).and_then(number_of) else { continue };
                let measured = point.values.get(&column.metric).copied().unwrap_or(f64::NAN);
                let (column, metric) = (column.label.clone(), column.metric.clone());
                all.push(Beside { row, column, metric, said, measured });
            }
        }
    }
    if all.is_empty() {
        let name = &experiment.name;
        return Err(ExperimentError(format!("{name}: no table has a figure of these cases")));
    }
    Ok(all)
}

/// A figure counts as at most so far off, which is three times what it should be or a third: what no constant
/// brings near must not decide about the others.
const OFF_MOST: f64 = 1.1;

/// The root of the mean square of how far the figures are off, none more than [`OFF_MOST`].
pub fn error(beside: &[Beside]) -> f64 {
    let off = beside.iter().map(|figure| figure.off().abs().min(OFF_MOST));
    let sum: f64 = off.map(|off| off * off).sum();
    (sum / beside.len() as f64).sqrt()
}

/// Looks for the constants, from their starts on. `told` hears of each place that was tried; one that cannot be
/// measured only loses.
///
/// # Errors
/// As of [`beside`] at the start.
pub fn fit(
    experiment: &Experiment,
    cases: &[String],
    wanted: &[Wanted],
    options: &Options,
    effort: Effort,
    told: &mut dyn FnMut(Tried<'_>),
) -> Result<Fitted, ExperimentError> {
    let knobs: Vec<Knob> = wanted.iter().map(|wanted| wanted.knob).collect();
    let start: Vec<f64> = wanted.iter().map(|wanted| wanted.start).collect();
    let mut first = true;
    let found = search(&knobs, &start, effort, |at| {
        let error = at_values(experiment, cases, wanted, options, at).map(|all| error(&all));
        told(Tried { at, error: &error });
        match (error, std::mem::take(&mut first)) {
            (Err(why), true) => Err(why),
            (error, _) => Ok(error.unwrap_or(f64::NAN)),
        }
    })?;
    let beside = at_values(experiment, cases, wanted, options, &found.at)?;
    Ok(Fitted { error: error(&beside), at: found.at, tries: found.tries, beside })
}

fn at_values(
    experiment: &Experiment,
    cases: &[String],
    wanted: &[Wanted],
    options: &Options,
    at: &[f64],
) -> Result<Vec<Beside>, ExperimentError> {
    let mut keys: Vec<(&str, Value)> = Vec::new();
    let mut options = options.clone();
    for (Wanted { name, knob, .. }, &value) in wanted.iter().zip(at) {
        if !name.contains('.') {
            options.set.push((name.clone(), value.to_string()));
        } else if knob.whole {
            keys.push((name, Value::Integer(value as i64)));
        } else {
            keys.push((name, Value::Float(value)));
        }
    }
    measured(&experiment.reduced(cases, &keys)?, &options)
}

#[cfg(test)]
mod tests {
    use super::super::Scale;
    use super::*;

    /// A drive whose commands take 40 us of its firmware, beside one where they take 4.
    const TABLE: &str = r#"
name = "try"
title = "A try"
source = "nowhere"
summary = "Nothing."
columns = ["read_iops"]
[small]
measure = "20ms"
[full]
measure = "20ms"
[sweep]
depth = [1, 8]
[[case]]
name = "fitted"
device = "intel-320"
blocks_per_plane = 16
measure = "$measure"
[case.set.firmware]
command_ns = 4_000
[[case.prepare]]
pattern = "sequential"
bytes = "64KiB"
depth = 16
times = 0.05
[[case.client]]
reads = 1.0
bytes = "4KiB"
span = 0.05
depth = "$depth"
[[case]]
name = "other"
device = "sdf"
measure = "$measure"
[[case.client]]
bytes = "8MiB"
erase_first = true
[[table]]
title = "t"
rows = "depth"
[[table.column]]
label = "reads"
case = "fitted"
metric = "read_iops"
paper = { 1 = SAID1, 8 = SAID8 }
[[claim]]
id = "c"
said = 1
unit = "1/s"
tolerance = "at least"
case = "other"
metric = "write_iops"
at = { depth = 8 }
"#;

    fn options() -> Options {
        Options { scale: Scale::Small, set: Vec::new(), seed: 1, seeds: 1, threads: 1 }
    }

    fn wanted() -> Vec<Wanted> {
        let knob = Knob { least: 1_000.0, most: 200_000.0, whole: true };
        vec![Wanted { name: "firmware.command_ns".into(), start: 4_000.0, knob }]
    }

    fn experiment(said: [f64; 2]) -> Experiment {
        let text = TABLE.replace("SAID1", &format!("{:.1}", said[0]));
        Experiment::parse(&text.replace("SAID8", &format!("{:.1}", said[1]))).expect("it is whole")
    }

    #[test]
    fn a_constant_that_was_changed_is_found_from_the_table_it_makes() {
        let cases = ["fitted".to_owned()];
        let truth = at_values(&experiment([1.0; 2]), &cases, &wanted(), &options(), &[40_000.0]);
        let truth = truth.expect("it is measured");
        let experiment = experiment([truth[0].measured, truth[1].measured]);
        let before = error(&beside(&experiment, &cases, &options()).expect("it is measured"));
        let effort = Effort { step: 3.0, step_least: 1.02, tries_max: 40 };
        let mut told = 0;
        let mut count = |tried: Tried<'_>| told += u32::from(tried.error.is_ok());
        let found = fit(&experiment, &cases, &wanted(), &options(), effort, &mut count);
        let found = found.expect("it is measured");
        assert!(before > 0.1 && found.error < 0.1 * before, "seed 1: {before}, {found:?}");
        assert!((found.at[0] / 40_000.0 - 1.0).abs() < 0.05, "seed 1: {found:?}");
        assert_eq!(told, found.tries);
    }

    #[test]
    fn what_cannot_be_fitted_is_named() {
        let experiment = experiment([1.0; 2]);
        let wrong = |cases: &[&str], name: &str| {
            let cases: Vec<String> = cases.iter().map(|&case| case.into()).collect();
            let mut wanted = wanted();
            wanted[0].name = name.into();
            at_values(&experiment, &cases, &wanted, &options(), &[4_000.0]).expect_err(name).0
        };
        assert!(wrong(&["third"], "firmware.command_ns").contains("no case is called \"third\""));
        let other = beside(&experiment, &["other".to_owned()], &options()).expect_err("no table");
        assert!(other.0.contains("no table has a figure"), "{other}");
        assert!(wrong(&["fitted"], "firmware.speed").contains("speed"));
        assert!(wrong(&["fitted"], "loudness").contains("loudness"));
    }
}
