//! From measured points to the one figure that a claim is about.

use super::file::{
    At, Case, ClaimFile, CrossoverFile, Experiment, LargestFile, Scale, SelectFile, TableFile,
};
use super::metric::metric_unit;
use super::{CaseResult, ExperimentError, PointResult, Results};
use crate::report::Class;
use flash::quantity;
use toml::{Table, Value};

/// A selection with what it leaves to another: the baseline of a claim has the claim's metric and
/// points unless it says otherwise.
#[derive(Clone, Copy)]
pub(super) struct Selection<'a> {
    pub select: &'a SelectFile,
    pub metric: &'a str,
    pub at: &'a Table,
    pub over: Option<&'a str>,
}

impl<'a> Selection<'a> {
    pub fn of_claim(claim: &'a ClaimFile) -> Result<Self, ExperimentError> {
        let select = &claim.select;
        let metric = select
            .metric
            .as_deref()
            .ok_or_else(|| ExperimentError(format!("claim {:?}: needs a metric", claim.id)))?;
        Ok(Self { select, metric, at: &select.at, over: select.over.as_deref() })
    }

    /// `other`, with what it does not say taken from this one.
    pub fn other(self, other: &'a SelectFile) -> Self {
        Self {
            select: other,
            metric: other.metric.as_deref().unwrap_or(self.metric),
            at: if other.at.is_empty() { self.at } else { &other.at },
            over: other.over.as_deref().or(self.over),
        }
    }
}

/// Checks what can be known of figures and claims before anything has run.
pub(super) fn check(experiment: &Experiment) -> Result<(), ExperimentError> {
    let wrong = |place: String, why: String| Err(ExperimentError(format!("{place}: {why}")));
    for figure in &experiment.figures {
        let place = format!("figure {:?}", figure.id);
        if figure.x != "case" && !experiment.sweeps.iter().any(|(name, _)| *name == figure.x) {
            return wrong(place, format!("x = {:?} is neither a sweep nor \"case\"", figure.x));
        }
        check_place(experiment, &figure.cases, &figure.at)
            .map_err(|why| ExperimentError(format!("{place}: {why}")))?;
    }
    for table in &experiment.tables {
        let place = format!("table {:?}", table.title);
        check_table(experiment, table).map_err(|why| ExperimentError(format!("{place}: {why}")))?;
    }
    for claim in &experiment.claims {
        let place = format!("claim {:?}", claim.id);
        experiment.statement(claim)?;
        let selection = Selection::of_claim(claim)?;
        check_selection(experiment, selection)
            .and_then(|()| match &claim.baseline {
                Some(other) => check_selection(experiment, selection.other(other)),
                None => Ok(()),
            })
            .map_err(|why| ExperimentError(format!("{place}: {why}")))?;
        if let Some(id) = claim.beside.iter().find(|id| !is_of_a_baseline(experiment, id)) {
            return wrong(place, format!("beside = {id:?}: there is no such claim of a baseline"));
        }
        let unit = unit_of(selection)?;
        if let Some(unit) = unit.filter(|unit| *unit != claim.unit) {
            return wrong(
                place,
                format!("unit = {:?}, but it is measured in {unit:?}", claim.unit),
            );
        }
    }
    Ok(())
}

/// Whether a case is measured at a point: it may name values of sweeps.
pub(super) fn is_measured(case: &Case, point: &At) -> bool {
    point.iter().all(|(name, value)| match case.at.get(name) {
        Some(Value::Array(values)) => values.contains(value),
        _ => true,
    })
}

/// Checks that the values of sweeps at which a case is measured are lists of such.
pub(super) fn check_measured(experiment: &Experiment, case: &Case) -> Result<(), ExperimentError> {
    let wrong = |why: String| {
        let place = format!("experiment {}, case {:?}", experiment.name, case.name);
        Err(ExperimentError(format!("{place}: {why}")))
    };
    for (name, values) in &case.at {
        let Some(list) = values.as_array().filter(|list| !list.is_empty()) else {
            return wrong(format!("at.{name} = {values}: a list of values of that sweep"));
        };
        for value in list {
            let one = Table::from_iter([(name.clone(), value.clone())]);
            check_at(experiment, &one).or_else(wrong)?;
        }
    }
    Ok(())
}

fn is_of_a_baseline(experiment: &Experiment, id: &str) -> bool {
    let claim = experiment.claims.iter().find(|claim| claim.id == id);
    claim.is_some_and(|claim| experiment.class_of(claim) == Class::Baseline)
}

fn check_table(experiment: &Experiment, table: &TableFile) -> Result<(), String> {
    let sweep = experiment.sweeps.iter().find(|(name, _)| *name == table.rows);
    let (_, values) =
        sweep.ok_or_else(|| format!("rows = {:?}: there is no such sweep", table.rows))?;
    if let Some(value) = table.order.iter().find(|value| !values.contains(value)) {
        return Err(format!("order: {value} is not a value of the sweep {:?}", table.rows));
    }
    for column in &table.column {
        check_case(experiment, &column.case)?;
        check_at(experiment, &column.at)?;
        metric_unit(&column.metric).map_err(|error| error.0)?;
        for (row, figure) in &column.paper {
            if !values.iter().any(|value| text_of(value) == *row) || number_of(figure).is_none() {
                return Err(format!(
                    "column {:?}: paper.{row} = {figure}: a number for a value of the sweep {:?}",
                    column.label, table.rows
                ));
            }
        }
    }
    Ok(())
}

/// The unit of what a selection gives, where it is the metric's own.
fn unit_of(selection: Selection<'_>) -> Result<Option<&'static str>, ExperimentError> {
    let select = selection.select;
    let unit = metric_unit(selection.metric)?;
    let plain = select.per.is_none()
        && select.crossover.is_none()
        && select.largest.is_none()
        && selection.over != Some("spread");
    Ok(plain.then_some(unit))
}

fn check_selection(experiment: &Experiment, selection: Selection<'_>) -> Result<(), String> {
    let select = selection.select;
    check_case(experiment, &select.case)?;
    check_at(experiment, selection.at)?;
    check_has_points(experiment, &select.case, selection.at)?;
    metric_unit(selection.metric).map_err(|error| error.0)?;
    match selection.over {
        None | Some("max" | "min" | "mean" | "spread") => {}
        Some(other) => return Err(format!("over = {other:?}: one of max, min, mean, spread")),
    }
    if let Some(per) = &select.per {
        check_selection(experiment, selection.other(per))?;
    }
    let along = select.crossover.iter().map(|c| &c.along);
    for along in along.chain(select.largest.iter().map(|l| &l.along)) {
        if !experiment.sweeps.iter().any(|(name, _)| name == along) {
            return Err(format!("along = {along:?}: there is no such sweep"));
        }
    }
    select.crossover.iter().try_for_each(|crossover| check_case(experiment, &crossover.case))
}

/// Checks that there are these cases and points.
pub(super) fn check_place(
    experiment: &Experiment,
    cases: &[String],
    at: &Table,
) -> Result<(), String> {
    cases.iter().try_for_each(|case| check_case(experiment, case))?;
    check_at(experiment, at)
}

fn check_case(experiment: &Experiment, case: &str) -> Result<(), String> {
    let names = (0..experiment.cases()).map(|index| experiment.case_name(index));
    if names.clone().any(|name| name == case) {
        return Ok(());
    }
    Err(format!(
        "case {case:?}: there is no such one; there are {}",
        names.collect::<Vec<_>>().join(", ")
    ))
}

/// Checks that a case is measured at any point that fits.
fn check_has_points(experiment: &Experiment, name: &str, at: &Table) -> Result<(), String> {
    let number = (0..experiment.cases()).find(|&number| experiment.case_name(number) == name);
    let points = experiment.points().into_iter().filter(|point| matches(point, at));
    for point in points {
        let case = experiment.case(number.expect("it is known"), Scale::Small, &[], &point);
        if is_measured(&case.map_err(|why| why.0)?, &point) {
            return Ok(());
        }
    }
    Err(format!("case {name:?} is not measured there"))
}

fn check_at(experiment: &Experiment, at: &Table) -> Result<(), String> {
    for (name, value) in at {
        let sweep = experiment.sweeps.iter().find(|(sweep, _)| sweep == name);
        let (_, values) = sweep.ok_or_else(|| format!("at.{name}: there is no such sweep"))?;
        if !values.contains(value) {
            return Err(format!("at.{name} = {value}: not a value of that sweep"));
        }
    }
    Ok(())
}

/// The number that a sweep's value stands for, if it does.
pub(super) fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Float(number) => Some(*number),
        Value::String(text) => quantity::bytes(text).map(|bytes| bytes as f64),
        _ => None,
    }
}

/// How a sweep's value is printed.
pub fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn matches(at: &At, wanted: &Table) -> bool {
    wanted.iter().all(|(name, value)| at.iter().any(|(n, v)| n == name && v == value))
}

fn case_of<'a>(results: &'a Results, name: &str) -> Result<&'a CaseResult, String> {
    let found = results.cases.iter().find(|case| case.case == name);
    found.ok_or_else(|| format!("case {name:?} was not run"))
}

fn metric_of(point: &PointResult, metric: &str) -> Result<f64, String> {
    let found = point.values.get(metric).copied();
    found.ok_or_else(|| format!("nothing was measured as {metric:?}: no such I/O ended in time"))
}

/// The figure that a selection is about.
pub(super) fn value(results: &Results, selection: Selection<'_>) -> Result<f64, String> {
    let select = selection.select;
    if let Some(crossover) = &select.crossover {
        return first_not_below(results, selection, crossover);
    }
    let measured = match &select.largest {
        Some(largest) => largest_within(results, selection, largest)?,
        None => plain(results, selection)?,
    };
    match &select.per {
        Some(per) => Ok(measured / value(results, selection.other(per))?),
        None => Ok(measured),
    }
}

fn plain(results: &Results, selection: Selection<'_>) -> Result<f64, String> {
    let case = case_of(results, &selection.select.case)?;
    let points = case.points.iter().filter(|point| matches(&point.at, selection.at));
    let values = points.map(|point| metric_of(point, selection.metric));
    let values = values.collect::<Result<Vec<f64>, String>>()?;
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    match (selection.over, values.as_slice()) {
        (_, []) => Err("no point fits".into()),
        (None, &[value]) => Ok(value),
        (None, many) => Err(format!("{} points fit: say which, or over = \"max\"", many.len())),
        (Some("max"), _) => Ok(max),
        (Some("min"), _) => Ok(min),
        (Some("spread"), _) => Ok((max - min) / mean),
        (Some(_), _) => Ok(mean),
    }
}

/// Values of a metric along a sweep, in ascending order of the sweep.
fn along(
    results: &Results,
    case: &str,
    sweep: &str,
    selection: Selection<'_>,
) -> Result<Vec<(f64, f64)>, String> {
    let mut values = Vec::new();
    for point in &case_of(results, case)?.points {
        if !matches(&point.at, selection.at) {
            continue;
        }
        let at = point.at.iter().find(|(name, _)| name == sweep);
        let at = at.and_then(|(_, value)| number_of(value));
        let at = at.ok_or_else(|| format!("sweep {sweep:?} has values that are no numbers"))?;
        values.push((at, metric_of(point, selection.metric)?));
    }
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(values)
}

fn first_not_below(
    results: &Results,
    selection: Selection<'_>,
    crossover: &CrossoverFile,
) -> Result<f64, String> {
    let ours = along(results, &selection.select.case, &crossover.along, selection)?;
    let other = along(results, &crossover.case, &crossover.along, selection)?;
    // From there on it stays above: a touch in the noise is no crossover.
    let mut first = None;
    for (&(at, value), &(_, other)) in ours.iter().zip(&other) {
        if value < other {
            first = None;
        } else if first.is_none() {
            first = Some(at);
        }
    }
    first.ok_or_else(|| format!("it stays below {:?}", crossover.case))
}

fn largest_within(
    results: &Results,
    selection: Selection<'_>,
    largest: &LargestFile,
) -> Result<f64, String> {
    let values = along(results, &selection.select.case, &largest.along, selection)?;
    let within = values.iter().take_while(|(_, value)| *value <= largest.at_most);
    let last = within.last().map(|(at, _)| *at);
    last.ok_or_else(|| format!("it is above {} everywhere", largest.at_most))
}
