//! From results to a report: claims judged, figures drawn, one table of all points.

use super::curves;
use super::file::{ClaimFile, Experiment, FigureFile, TableFile};
use super::seeds::{combined, interval, mean};
use super::select::{Selection, matches, number_of, text_of, value};
use super::{CaseResult, ExperimentError, Options, Results, metric_unit};
use crate::report::{
    Axis, Claim, Column, Figure, Interval, MEASURED, Origin, PLUS_MINUS, Report,
    Scale as AxisScale, Series, Style, Table, Value as Shown, Verdict,
};

/// The report of what [`super::run()`] measured: means, where that is several seeds.
pub fn report(
    experiment: &Experiment,
    options: &Options,
    seeds: &[Results],
) -> Result<Report, ExperimentError> {
    let claims = experiment.claims.iter().map(|claim| judged(experiment, claim, seeds));
    let claims = ranked(experiment, claims.collect::<Result<Vec<_>, _>>()?);
    let results = &combined(seeds);
    let variables = experiment.variables(options.scale, &options.set)?;
    let mut command = format!(
        "weir lab run {} --scale {} --seed {}",
        experiment.called.as_ref().unwrap_or(&experiment.name),
        options.scale.name(),
        options.seed
    );
    if options.seeds > 1 {
        command.push_str(&format!(" --seeds {}", options.seeds));
    }
    for (name, value) in &options.set {
        command.push_str(&format!(" --set {name}={value}"));
    }
    let figures = experiment.figures.iter().map(|file| figure(experiment, file, results));
    let curves = experiment.curves.iter().map(|file| curves::figure(experiment, file, seeds));
    Ok(Report {
        name: experiment.name.clone(),
        title: experiment.title.clone(),
        summary: experiment.summary.clone(),
        source: experiment.source.clone(),
        command,
        seed: options.seed,
        seeds: options.seeds,
        scale: options.scale.name().into(),
        parameters: variables.iter().map(|(name, value)| (name.clone(), text_of(value))).collect(),
        figures: figures.chain(curves).collect::<Result<Vec<_>, _>>()?,
        tables: (experiment.tables.iter().map(|file| source_table(experiment, file, results)))
            .chain([points_table(experiment, results)])
            .collect(),
        claims,
        notes: experiment.notes.clone(),
    })
}

/// The same claims, each beside what it is to be ranked beside.
fn ranked(experiment: &Experiment, claims: Vec<Claim>) -> Vec<Claim> {
    let is_misfit = |claim: &&Claim| claim.verdict() == Verdict::Misfit;
    let misfits = claims.iter().filter(is_misfit).map(|claim| claim.statement().id.clone());
    let misfits: Vec<String> = misfits.collect();
    let beside = |file: &ClaimFile| -> Vec<String> {
        file.beside.iter().filter(|id| misfits.contains(id)).cloned().collect()
    };
    let judged = claims.into_iter().zip(&experiment.claims);
    let ranked = judged.map(|(claim, file)| {
        let verdict = claim.verdict();
        let claim = claim.beside(beside(file));
        if claim.verdict() == verdict {
            return claim;
        }
        let others = claim.misfits().join(", ");
        claim.because(&format!("it is better than the source by more than the tolerance, but nothing is exceeded beside models that do not fit: {others}"))
    });
    ranked.collect()
}

fn judged(
    experiment: &Experiment,
    file: &ClaimFile,
    seeds: &[Results],
) -> Result<Claim, ExperimentError> {
    let wrong = |why: String| ExperimentError(format!("claim {:?}: {why}", file.id));
    let statement = experiment.statement(file)?;
    let selection = Selection::of_claim(file)?;
    let (measured, interval) = over_seeds(seeds, selection);
    let baseline = file.baseline.as_ref();
    let baseline = baseline.map(|other| over_seeds(seeds, selection.other(other)).0);
    let claim = match &file.contradicts {
        Some(why) => Claim::contradicts_itself(statement, measured, baseline, why),
        None => Claim::judged(statement, measured, baseline),
    };
    let claim = claim.map_err(|why| wrong(why.to_string()))?.with_interval(interval);
    // A reason in the file explains a miss; a claim that holds needs none, a contradiction has its own.
    Ok(match &file.reason {
        Some(reason) if claim.verdict().wants_reason() => claim.because(reason),
        _ => claim,
    })
}

/// The mean of a selection, and how sure it is.
fn over_seeds(seeds: &[Results], selection: Selection<'_>) -> (Shown, Option<Interval>) {
    let values = seeds.iter().map(|results| value(results, selection));
    match values.collect::<Result<Vec<f64>, String>>() {
        Ok(values) => (Shown::from(mean(&values)), interval(&values)),
        // What cannot be measured (it never crosses, it is too slow everywhere) is a miss with a reason.
        Err(why) => (Shown::Text(why), None),
    }
}

fn points_table(experiment: &Experiment, results: &Results) -> Table {
    let column = |label: &str, unit: &str| Column { label: label.into(), unit: unit.into() };
    let mut columns = vec![column("case", "")];
    columns.extend(experiment.sweeps.iter().map(|(name, _)| column(name, "")));
    let points = || results.cases.iter().flat_map(|case| &case.points);
    let several = points().any(|point| !point.intervals.is_empty());
    for metric in &experiment.columns {
        columns.push(column(&metric.replace('_', " "), metric_unit(metric).unwrap_or_default()));
        columns.extend(several.then(|| column(PLUS_MINUS, "")));
    }
    let mut rows = Vec::new();
    for case in &results.cases {
        for point in &case.points {
            let mut row = vec![Shown::Text(case.case.clone())];
            row.extend(point.at.iter().map(|(_, value)| Shown::Text(text_of(value))));
            let shown = |found: Option<f64>| {
                found.map_or_else(|| Shown::Text(String::new()), Shown::Number)
            };
            for metric in &experiment.columns {
                row.push(shown(point.values.get(metric).copied()));
                let half = point.intervals.get(metric).map(|it| (it.high - it.low) / 2.0);
                row.extend(several.then(|| shown(half)));
            }
            rows.push(row);
        }
    }
    let note = if several {
        "Means over the seeds; with ± of it the interval in which the mean lies at 95 %."
    } else {
        ""
    };
    Table { title: MEASURED.into(), columns, rows, note: note.into() }
}

/// A table of the source: each figure measured, and beside it what the source has.
fn source_table(experiment: &Experiment, file: &TableFile, results: &Results) -> Table {
    let mut columns = vec![Column { label: file.rows.clone(), unit: String::new() }];
    for column in &file.column {
        let unit = metric_unit(&column.metric).unwrap_or_default();
        columns.push(Column { label: column.label.clone(), unit: unit.into() });
        if !column.paper.is_empty() {
            columns.push(Column { label: format!("{}, paper", column.label), unit: unit.into() });
        }
    }
    let sweep = experiment.sweeps.iter().find(|(name, _)| *name == file.rows);
    let swept = sweep.map_or(&[][..], |(_, values)| values);
    let values = if file.order.is_empty() { swept } else { &file.order };
    let rows = values.iter().map(|value| {
        let mut row = vec![Shown::Text(text_of(value))];
        for column in &file.column {
            let mut at = column.at.clone();
            at.insert(file.rows.clone(), value.clone());
            let case = results.cases.iter().find(|case| case.case == column.case);
            let points = case.map_or(&[][..], |case| &case.points);
            let point = points.iter().find(|point| matches(&point.at, &at));
            let figure = point.and_then(|point| point.values.get(&column.metric));
            let shown = |figure: Option<f64>| {
                figure.map_or_else(|| Shown::Text(String::new()), Shown::Number)
            };
            row.push(shown(figure.copied()));
            if !column.paper.is_empty() {
                row.push(shown(column.paper.get(&text_of(value)).and_then(number_of)));
            }
        }
        row
    });
    Table { title: file.title.clone(), columns, rows: rows.collect(), note: file.note.clone() }
}

fn figure(
    experiment: &Experiment,
    file: &FigureFile,
    results: &Results,
) -> Result<Figure, ExperimentError> {
    let shown = |case: &&CaseResult| file.cases.is_empty() || file.cases.contains(&case.case);
    let cases: Vec<&CaseResult> = results.cases.iter().filter(shown).collect();
    let categories = categories(experiment, file, &cases);
    let mut series: Vec<Series> = Vec::new();
    if file.x == "case" {
        series.push(by_case(file, &cases));
    } else {
        series.extend(cases.iter().map(|case| along(file, case, categories.is_some())));
    }
    series.retain(|series| !series.points.is_empty());
    series.extend(file.paper.iter().map(|paper| Series {
        name: paper.name.clone(),
        origin: if paper.bound { Origin::Bound } else { Origin::Paper },
        style: if paper.bound { Style::Line } else { Style::Points },
        points: paper.points.clone(),
        error_bars: None,
    }));
    let scale = |log| if log { AxisScale::Log } else { AxisScale::Linear };
    Ok(Figure {
        id: file.id.clone(),
        title: file.title.clone(),
        x: Axis {
            label: file.x_label.clone(),
            unit: file.x_unit.clone(),
            scale: scale(file.x_log),
            categories,
        },
        y: Axis {
            label: file.y_label.clone(),
            unit: metric_unit(&file.y)?.into(),
            scale: scale(file.y_log),
            categories: None,
        },
        series,
        note: file.note.clone(),
    })
}

/// The names along x, if they are not numbers.
fn categories(
    experiment: &Experiment,
    file: &FigureFile,
    cases: &[&CaseResult],
) -> Option<Vec<String>> {
    if file.x == "case" {
        return Some(cases.iter().map(|case| case.case.clone()).collect());
    }
    let (_, values) = experiment.sweeps.iter().find(|(name, _)| *name == file.x)?;
    let numbers =
        values.iter().all(|value| matches!(value, toml::Value::Integer(_) | toml::Value::Float(_)));
    (file.bars || !numbers).then(|| values.iter().map(text_of).collect())
}

fn origin(case: &CaseResult) -> Origin {
    if case.baseline { Origin::Baseline } else { Origin::Weir }
}

fn along(file: &FigureFile, case: &CaseResult, by_category: bool) -> Series {
    let (mut points, mut bars) = (Vec::new(), Vec::new());
    let shown = case.points.iter().filter(|point| matches(&point.at, &file.at));
    for (index, point) in shown.enumerate() {
        let x = point.at.iter().find(|(name, _)| *name == file.x);
        let x = x.and_then(|(_, value)| number_of(value)).filter(|_| !by_category);
        if let Some(&y) = point.values.get(&file.y) {
            points.push((x.unwrap_or(index as f64), y));
            bars.extend(point.intervals.get(&file.y));
        }
    }
    let style = if file.bars { Style::Bars } else { Style::Line };
    let error_bars = error_bars(&points, bars);
    Series { name: case.case.clone(), origin: origin(case), style, points, error_bars }
}

/// An interval as it is drawn: nothing that is measured is below zero, and a mean of equal values may be beside
/// them by a rounding.
pub(super) fn drawn(interval: &Interval, mean: f64) -> (f64, f64) {
    (interval.low.max(0.0).min(mean), interval.high.max(mean))
}

/// The intervals of several seeds, where every point has them.
fn error_bars(points: &[(f64, f64)], bars: Vec<&Interval>) -> Option<Vec<(f64, f64)>> {
    let all = !bars.is_empty() && bars.len() == points.len();
    all.then(|| {
        let around = |(&(_, y), it): (&(f64, f64), &Interval)| drawn(it, y);
        points.iter().zip(bars).map(around).collect()
    })
}

fn by_case(file: &FigureFile, cases: &[&CaseResult]) -> Series {
    let (mut points, mut bars) = (Vec::new(), Vec::new());
    for (index, case) in cases.iter().enumerate() {
        let point = case.points.iter().find(|point| matches(&point.at, &file.at));
        if let Some((point, &y)) = point.and_then(|it| Some((it, it.values.get(&file.y)?))) {
            points.push((index as f64, y));
            bars.extend(point.intervals.get(&file.y));
        }
    }
    let error_bars = error_bars(&points, bars);
    Series { name: "Weir".into(), origin: Origin::Weir, style: Style::Bars, points, error_bars }
}
