//! The experiment file: TOML, checked whole before anything runs.
//!
//! A text value `"$name"` stands for a variable: of the scale (`[small]`, `[full]`), of a sweep, or
//! set on the command line. Everything is resolved once for each point before the first one runs,
//! so a mistake in the last case is found before the first has cost an hour.

use super::ExperimentError;
use super::client::{ClientFile, Duration, clients};
use super::curves::CurveFile;
use super::devices::Devices;
use super::keys;
use super::select;
use super::tenants::{TenantFile, missing_traces};
use super::waf::{WafCase, WafFile};
use crate::device_file::Read;
use crate::load::Client;
use crate::report::{Class, Statement, Tolerance, Value as Shown};
use crate::tenant::Part;
use serde::Deserialize;
use toml::{Table, Value};

/// How large the devices are and how long the runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scale {
    /// Minutes for all experiments together.
    Small,
    /// As the source ran it, as far as memory allows.
    Full,
}

impl Scale {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Full => "full",
        }
    }
}

/// An experiment, checked.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Short name, as in `weir lab run NAME`.
    pub name: String,
    /// What to give to `weir lab run` instead, such as the path of its file.
    pub called: Option<String>,
    /// One line.
    pub title: String,
    /// Paper and place in it.
    pub source: String,
    /// A few sentences.
    pub summary: String,
    /// What a reader must know of the figures.
    pub notes: Vec<String>,
    /// A latency above it is a spike.
    pub spike_ns: u64,
    /// Of a processor, a seed at the small scale takes about so many: the longest are measured first.
    pub seconds: f64,
    /// Metrics that the table shows.
    pub columns: Vec<String>,
    /// Names and values of the sweeps, in the order of the file.
    pub sweeps: Vec<(String, Vec<Value>)>,
    pub(super) figures: Vec<FigureFile>,
    /// Figures of distributions, and over time.
    pub(super) curves: Vec<CurveFile>,
    pub(super) claims: Vec<ClaimFile>,
    pub(super) tables: Vec<TableFile>,
    /// What a value of a sweep brings with it: by sweep, by value.
    with: Table,
    scales: [Table; 2],
    cases: Vec<Table>,
    /// The devices that the cases name.
    pub(super) devices: Devices,
    /// Checksum of the file, and of those that it names.
    pub(super) sum: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExperimentFile {
    name: String,
    title: String,
    source: String,
    summary: String,
    #[serde(default)]
    notes: Vec<String>,
    spike: Option<Duration>,
    #[serde(default)]
    seconds: f64,
    columns: Vec<String>,
    small: Table,
    full: Table,
    #[serde(default)]
    sweep: Table,
    #[serde(default)]
    with: Table,
    case: Vec<Table>,
    #[serde(default)]
    table: Vec<TableFile>,
    #[serde(default)]
    figure: Vec<Table>,
    #[serde(default)]
    claim: Vec<ClaimFile>,
}

/// A figure to draw.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigureFile {
    pub id: String,
    pub title: String,
    /// A sweep, or "case".
    pub x: String,
    pub x_label: String,
    #[serde(default)]
    pub x_unit: String,
    #[serde(default)]
    pub x_log: bool,
    /// A metric.
    pub y: String,
    pub y_label: String,
    #[serde(default)]
    pub y_log: bool,
    #[serde(default)]
    pub bars: bool,
    /// All, unless given.
    #[serde(default)]
    pub cases: Vec<String>,
    /// Values of the other sweeps.
    #[serde(default)]
    pub at: Table,
    /// The source's points, by the name of the series.
    #[serde(default)]
    pub paper: Vec<PaperSeries>,
    #[serde(default)]
    pub note: String,
}

/// Points of the source, or a bound.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperSeries {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// A bound by arithmetic instead of something measured.
    #[serde(default)]
    pub bound: bool,
}

/// A table of the source, with what was measured beside each of its figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableFile {
    pub title: String,
    /// The sweep whose values are the rows.
    pub rows: String,
    /// Those values in the order of the source; unless given, in that of the sweep.
    #[serde(default)]
    pub order: Vec<Value>,
    pub column: Vec<TableColumn>,
    #[serde(default)]
    pub note: String,
}

/// A case and a metric of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableColumn {
    pub label: String,
    pub case: String,
    pub metric: String,
    /// Values of the other sweeps.
    #[serde(default)]
    pub at: Table,
    /// What the source has, by row; nothing where it has nothing.
    #[serde(default)]
    pub paper: Table,
}

/// A claim to judge.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimFile {
    pub id: String,
    /// Unless given: of a baseline if its case is one, else of the source.
    pub class: Option<Class>,
    /// The experiment's, unless given.
    pub source: Option<String>,
    pub said: Value,
    pub unit: String,
    pub tolerance: String,
    #[serde(flatten)]
    pub select: SelectFile,
    pub baseline: Option<SelectFile>,
    /// Claims of this file about baselines that it is ranked beside: nothing is exceeded where one of them does
    /// not fit.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Why a miss is a miss.
    pub reason: Option<String>,
    /// Which figures of the source cannot all be true.
    pub contradicts: Option<String>,
}

impl ClaimFile {
    /// What is said: a number, a range, or a text.
    pub fn said(&self) -> Result<Shown, ExperimentError> {
        match &self.said {
            Value::String(text) => Ok(Shown::from(text.as_str())),
            other => select::number_of(other).map(Shown::from).ok_or_else(|| {
                let why = "a number, or a range such as \"0.13-0.17\"";
                ExperimentError(format!("claim {:?}: said = {other}: {why}", self.id))
            }),
        }
    }
}

/// Which measured figure. Exactly one point, or one value made of several.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SelectFile {
    pub case: String,
    pub metric: Option<String>,
    #[serde(default)]
    pub at: Table,
    /// "max", "min", "mean" or "spread" (max - min as a share of the mean) of all points that fit.
    pub over: Option<String>,
    /// Divided by this.
    pub per: Option<Box<SelectFile>>,
    /// The least value of a sweep from which on the metric is not below that of another case.
    pub crossover: Option<CrossoverFile>,
    /// The greatest value of a sweep up to which the metric is at most this.
    pub largest: Option<LargestFile>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CrossoverFile {
    pub along: String,
    pub case: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LargestFile {
    pub along: String,
    pub at_most: f64,
}

/// A case at one point, everything resolved.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub name: String,
    pub baseline: bool,
    /// Measured at these values of the sweeps only; of a sweep that is not named, at all.
    pub at: Table,
    /// Goes on with the device that this case leaves, instead of preparing one like it.
    pub after: Option<String>,
    pub device: DeviceChoice,
    pub prepare: Vec<Prepare>,
    /// Nobody uses the device for so long, from the last of its preparation on.
    pub settle_ns: u64,
    pub warmup_ns: u64,
    pub measure_ns: u64,
    pub clients: Vec<Client>,
    /// Instead of clients.
    pub tenants: Vec<Part>,
    /// How often they write the device over before the warm-up.
    pub age: f64,
    /// How often they do while it is measured; 0: by time.
    pub writes: f64,
    /// Instead of a device and everything else: write amplification of a list of writes.
    pub waf: Option<WafCase>,
}

/// What has to be made anew when it changes from one point to the next.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeviceChoice {
    /// A device that comes with Weir, a kind of flash, or a file of either.
    pub name: String,
    /// Keys of that file to change.
    pub set: Table,
    /// Blocks of each plane: how capacity is scaled.
    pub blocks_per_plane: Option<u32>,
    /// Share of each plane's blocks that are bad from the factory.
    pub factory_bad: f64,
}

/// Something done to the device before its first point.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prepare {
    pub client: Client,
    /// How often the client's part of the space is gone over.
    pub times: f64,
    /// Go on, up to `times`, only until WAF is stable over a quarter of the space.
    pub steady: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseFile {
    name: String,
    #[serde(default)]
    baseline: bool,
    #[serde(default)]
    at: Table,
    after: Option<String>,
    #[serde(default)]
    device: String,
    #[serde(default)]
    set: Table,
    blocks_per_plane: Option<u32>,
    #[serde(default)]
    factory_bad: f64,
    #[serde(default)]
    prepare: Vec<ClientFile>,
    #[serde(default)]
    settle: Duration,
    #[serde(default)]
    warmup: Duration,
    #[serde(default)]
    measure: Duration,
    #[serde(default)]
    client: Vec<ClientFile>,
    #[serde(default)]
    tenant: Vec<TenantFile>,
    #[serde(default)]
    age: f64,
    #[serde(default)]
    writes: f64,
    waf: Option<WafFile>,
}

impl CaseFile {
    fn case(self) -> Result<Case, String> {
        let mut prepare = Vec::new();
        for (number, file) in self.prepare.into_iter().enumerate() {
            let (times, steady) = (file.times.unwrap_or(1.0), file.steady);
            if !(0.0..=1000.0).contains(&times) {
                return Err(format!("prepare: times = {times}: 0 to 1000, for example 1.0"));
            }
            // A variable may say that a point needs none of it.
            if times > 0.0 && file.threads > 0 {
                prepare.push(Prepare { client: file.client(number)?, times, steady });
            }
        }
        let clients = clients(self.client)?;
        if !(0.0..=0.5).contains(&self.factory_bad) {
            return Err(format!(
                "factory_bad = {}: a share of the blocks from 0 to 0.5, for example 0.0025",
                self.factory_bad
            ));
        }
        let waf = self.waf.map(WafFile::case).transpose()?;
        let tenants = self.tenant.into_iter().map(TenantFile::part);
        let tenants = tenants.collect::<Result<Vec<_>, String>>()?;
        let shares: f64 = tenants.iter().map(|tenant| tenant.share).sum();
        if shares > 1.0 + 1e-9 {
            return Err(format!("the tenants' shares sum up to {shares}: at most 1"));
        }
        if !(0.0..=1000.0).contains(&self.age) {
            return Err(format!("age = {}: 0 to 1000 times the device, for example 2.0", self.age));
        }
        let kinds = [clients.is_empty(), tenants.is_empty(), waf.is_none()];
        if kinds.iter().filter(|absent| !**absent).count() != 1 {
            return Err(
                "a case needs clients, or tenants, or a waf table, and only one of them".into()
            );
        }
        let by_writes = !tenants.is_empty() && self.writes > 0.0 && self.writes <= 1000.0;
        if waf.is_none() && (self.measure.0 > 0) == by_writes {
            return Err("a case needs a measure above \"0s\", or with tenants writes, how often \
                        the device is written over, above 0 and at most 1000; not both"
                .into());
        }
        Ok(Case {
            name: self.name,
            baseline: self.baseline,
            at: self.at,
            after: self.after,
            device: DeviceChoice {
                name: self.device,
                set: self.set,
                blocks_per_plane: self.blocks_per_plane,
                factory_bad: self.factory_bad,
            },
            prepare,
            settle_ns: self.settle.0,
            warmup_ns: self.warmup.0,
            measure_ns: self.measure.0,
            clients,
            tenants,
            age: self.age,
            writes: self.writes,
            waf,
        })
    }
}

/// A combination of sweep values.
pub type At = Vec<(String, Value)>;

impl Experiment {
    /// Reads a file whole, and resolves every case at both scales to see that it can be.
    pub fn parse(text: &str) -> Result<Self, ExperimentError> {
        Self::parse_with(text, &|name| Err(format!("{name}: no other file is read here")))
    }

    /// Likewise, of a file that names files of devices: `read` gives their texts, by their names there.
    pub fn parse_with(text: &str, read: Read<'_>) -> Result<Self, ExperimentError> {
        let wrong = |error: toml::de::Error| ExperimentError(error.to_string());
        let table: Table = text.parse().map_err(wrong)?;
        let problems = keys::problems(text, &table, &first_variables(&table));
        match problems.as_slice() {
            [] => {}
            [only] => return Err(ExperimentError(only.clone())),
            many => {
                let many = format!("{} keys are wrong:\n  {}", many.len(), many.join("\n  "));
                return Err(ExperimentError(many));
            }
        }
        let file: ExperimentFile = table.try_into().map_err(wrong)?;
        let (mut figures, mut curves): (Vec<FigureFile>, Vec<CurveFile>) = Default::default();
        for figure in file.figure {
            match figure.contains_key("kind") {
                true => curves.push(figure.try_into().map_err(wrong)?),
                false => figures.push(figure.try_into().map_err(wrong)?),
            }
        }
        let mut sweeps = Vec::new();
        for (name, values) in file.sweep {
            match values {
                Value::Array(values) if !values.is_empty() => sweeps.push((name, values)),
                other => {
                    return Err(ExperimentError(format!(
                        "sweep.{name} = {other}: a list of values, for example [1, 2, 4]"
                    )));
                }
            }
        }
        let mut experiment = Self {
            name: file.name,
            called: None,
            title: file.title,
            source: file.source,
            summary: file.summary.trim().to_owned(),
            notes: file.notes,
            spike_ns: file.spike.map_or(50_000_000, |spike| spike.0),
            seconds: file.seconds,
            columns: file.columns,
            sweeps,
            figures,
            curves,
            claims: file.claim,
            tables: file.table,
            with: file.with,
            scales: [file.small, file.full],
            cases: file.case,
            devices: Devices::default(),
            sum: flash::crc(text.as_bytes()),
        };
        experiment.check_names()?;
        experiment.load_devices(&[], read)?;
        experiment.check()?;
        Ok(experiment)
    }

    fn check_names(&self) -> Result<(), ExperimentError> {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 80 || !self.name.chars().all(fits) {
            let why =
                "it names files, so it is of a-z, 0-9 and -; for example: name = \"my-reads\"";
            return Err(ExperimentError(format!("name = {:?}: {why}", self.name)));
        }
        for (sweep, values) in &self.with {
            let known = self.sweeps.iter().find(|(name, _)| name == sweep);
            let known = known.map(|(_, values)| values.iter().map(select::text_of));
            let known: Vec<String> = known.into_iter().flatten().collect();
            let own = values.as_table().map(Table::iter).into_iter().flatten();
            let names = own.filter(|(_, variables)| variables.is_table()).map(|(name, _)| name);
            let count = values.as_table().map_or(0, Table::len);
            if names.filter(|name| known.contains(name)).count() != count || count == 0 {
                return Err(ExperimentError(format!(
                    "with.{sweep}: tables of variables by the values of a sweep; this one has: {}",
                    known.join(", ")
                )));
            }
        }
        for metric in self.columns.iter().chain(self.figures.iter().map(|figure| &figure.y)) {
            super::metric_unit(metric)?;
        }
        super::curves::check(self)
    }

    fn check(&self) -> Result<(), ExperimentError> {
        for scale in [Scale::Small, Scale::Full] {
            for case in 0..self.cases.len() {
                for at in self.points() {
                    let resolved = self.case(case, scale, &[], &at)?;
                    select::check_measured(self, &resolved)?;
                    self.check_after(case, &resolved, scale, &at)?;
                }
            }
        }
        select::check(self)
    }

    /// What goes on with another case's device has the same one, and no preparation of its own.
    fn check_after(
        &self,
        number: usize,
        case: &Case,
        scale: Scale,
        at: &At,
    ) -> Result<(), ExperimentError> {
        let Some(after) = &case.after else { return Ok(()) };
        let wrong = |why: &str| {
            let place = format!("experiment {}, case {:?}", self.name, case.name);
            Err(ExperimentError(format!("{place}: after = {after:?}: {why}")))
        };
        let Some(earlier) = (0..number).find(|&earlier| self.case_name(earlier) == after) else {
            return wrong("the name of a case above this one");
        };
        let earlier = self.case(earlier, scale, &[], at)?;
        if select::is_measured(case, at) && !select::is_measured(&earlier, at) {
            return wrong("that case is not measured wherever this one is");
        }
        if earlier.device != case.device || earlier.waf.is_some() || case.waf.is_some() {
            return wrong("its device must be the same one, with the same keys");
        }
        if !case.prepare.is_empty()
            || case.settle_ns > 0
            || !case.tenants.is_empty()
            || !earlier.tenants.is_empty()
        {
            return wrong(
                "it has the device as that case leaves it: no prepare, no settle, and no tenants",
            );
        }
        Ok(())
    }

    /// The same with these cases only, with what the tables have of them, and without figures and claims; in their
    /// device files keys such as `firmware.command_ns` have these values.
    pub(super) fn reduced(
        &self,
        cases: &[String],
        keys: &[(&str, Value)],
    ) -> Result<Self, ExperimentError> {
        let known: Vec<&str> = (0..self.cases()).map(|case| self.case_name(case)).collect();
        if let Some(unknown) = cases.iter().find(|case| !known.contains(&case.as_str())) {
            let known = known.join(", ");
            let why = format!("{}: no case is called {unknown:?}; there are {known}", self.name);
            return Err(ExperimentError(why));
        }
        let is_kept = |name: &str| cases.iter().any(|case| case == name);
        let (figures, curves, claims) = Default::default();
        let mut reduced = Self { figures, curves, claims, ..self.clone() };
        reduced.cases.retain(|case| case.get("name").and_then(Value::as_str).is_some_and(is_kept));
        for table in &mut reduced.tables {
            table.column.retain(|column| is_kept(&column.case));
        }
        for case in &mut reduced.cases {
            keys.iter().for_each(|(key, value)| set_key(case, key, value));
        }
        reduced.check()?;
        Ok(reduced)
    }

    /// Ids of the claims, in the order of the file.
    pub fn claim_ids(&self) -> Vec<&str> {
        self.claims.iter().map(|claim| claim.id.as_str()).collect()
    }

    /// What each claim says, and why it is missed where it is, in the order of the file.
    pub fn statements(&self) -> Vec<(Statement, Option<&str>)> {
        let of = |claim| self.statement(claim).expect("it was checked");
        self.claims.iter().map(|claim| (of(claim), claim.reason.as_deref())).collect()
    }

    pub(super) fn statement(&self, claim: &ClaimFile) -> Result<Statement, ExperimentError> {
        let tolerance = Tolerance::try_from(claim.tolerance.clone());
        let wrong = |why| ExperimentError(format!("claim {:?}: {why}", claim.id));
        Ok(Statement {
            id: claim.id.clone(),
            class: self.class_of(claim),
            source: claim.source.clone().unwrap_or_else(|| self.source.clone()),
            said: claim.said()?,
            unit: claim.unit.clone(),
            tolerance: tolerance.map_err(wrong)?,
        })
    }

    /// Unless a claim has one: of a baseline if its case is one, else of the source.
    pub(super) fn class_of(&self, claim: &ClaimFile) -> Class {
        let is_case = |case: &&Table| {
            case.get("name").and_then(Value::as_str) == Some(claim.select.case.as_str())
        };
        let case = self.cases.iter().find(is_case);
        let baseline = case.and_then(|case| case.get("baseline")).and_then(Value::as_bool);
        let class = if baseline == Some(true) { Class::Baseline } else { Class::Source };
        claim.class.unwrap_or(class)
    }

    /// How many cases there are.
    pub fn cases(&self) -> usize {
        self.cases.len()
    }

    /// Whether each of these cases, or all if none is named, has clients.
    pub(super) fn has_clients(&self, cases: &[String]) -> bool {
        let is_named = |case: &&Table| {
            let name = case.get("name").and_then(Value::as_str).unwrap_or_default();
            cases.is_empty() || cases.iter().any(|named| named == name)
        };
        self.cases.iter().filter(is_named).all(|case| case.contains_key("client"))
    }

    /// Name of a case.
    pub fn case_name(&self, case: usize) -> &str {
        self.cases[case].get("name").and_then(Value::as_str).unwrap_or("?")
    }

    /// Every combination of the sweeps' values, the last sweep quickest.
    pub fn points(&self) -> Vec<At> {
        let mut points: Vec<At> = vec![Vec::new()];
        for (name, values) in &self.sweeps {
            points = (points.iter())
                .flat_map(|point| {
                    values.iter().map(move |value| {
                        let mut point = point.clone();
                        point.push((name.clone(), value.clone()));
                        point
                    })
                })
                .collect();
        }
        points
    }

    /// The variables of a scale, with what the command line sets.
    pub fn variables(
        &self,
        scale: Scale,
        set: &[(String, String)],
    ) -> Result<Table, ExperimentError> {
        let mut variables = self.scales[scale as usize].clone();
        for (name, text) in set {
            if !variables.contains_key(name) {
                let known = variables.keys().cloned().collect::<Vec<_>>().join(", ");
                return Err(ExperimentError(format!(
                    "--set {name}={text}: {} has no such variable; it has {known}",
                    self.name
                )));
            }
            variables.insert(name.clone(), value_of(text));
        }
        Ok(variables)
    }

    /// The first trace that a case needs and that is not there; nobody needs to run it then.
    pub fn missing_trace(
        &self,
        scale: Scale,
        set: &[(String, String)],
    ) -> Result<Option<String>, ExperimentError> {
        for case in 0..self.cases.len() {
            for at in self.points() {
                let case = self.case(case, scale, set, &at)?;
                if let Some(missing) = missing_traces(&case) {
                    return Ok(Some(missing));
                }
            }
        }
        Ok(None)
    }

    /// The variables that a value of a sweep brings with it.
    fn brought_by(&self, sweep: &str, value: &Value) -> Option<&Table> {
        self.with.get(sweep)?.as_table()?.get(&select::text_of(value))?.as_table()
    }

    /// A case at a point, resolved.
    pub(super) fn case(
        &self,
        case: usize,
        scale: Scale,
        set: &[(String, String)],
        at: &At,
    ) -> Result<Case, ExperimentError> {
        let mut variables = self.variables(scale, set)?;
        for (name, value) in at {
            variables.insert(name.clone(), value.clone());
            for (name, value) in self.brought_by(name, value).into_iter().flatten() {
                let mut value = value.clone();
                substitute(&mut value, &variables)
                    .map_err(|why| ExperimentError(format!("experiment {}: {why}", self.name)))?;
                variables.insert(name.clone(), value);
            }
        }
        let place = format!("experiment {}, case {:?}", self.name, self.case_name(case));
        let wrong = |why: String| ExperimentError(format!("{place}: {why}"));
        let mut table = Value::Table(self.cases[case].clone());
        substitute(&mut table, &variables).map_err(wrong)?;
        let file: CaseFile = table.try_into().map_err(|error| wrong(error.to_string()))?;
        file.case().map_err(wrong)
    }
}

/// The variables of the first point at the small scale, as far as the file is in order.
fn first_variables(file: &Table) -> Table {
    let table = |key: &str| file.get(key).and_then(Value::as_table);
    let mut variables = table("small").cloned().unwrap_or_default();
    for (name, values) in table("sweep").into_iter().flatten() {
        let Some(value) = values.as_array().and_then(|values| values.first()) else { continue };
        variables.insert(name.clone(), value.clone());
        let brought = table("with").and_then(|with| with.get(name)?.as_table());
        let brought = brought.and_then(|with| with.get(&select::text_of(value))?.as_table());
        for (name, value) in brought.into_iter().flatten() {
            let mut value = value.clone();
            if substitute(&mut value, &variables).is_ok() {
                variables.insert(name.clone(), value);
            }
        }
    }
    variables
}

/// Gives a key of a case's device file, such as `firmware.command_ns`, a value.
fn set_key(case: &mut Table, key: &str, value: &Value) {
    let mut place = case.entry("set").or_insert_with(|| Value::Table(Table::new()));
    for part in key.split('.') {
        if !place.is_table() {
            *place = Value::Table(Table::new());
        }
        let table = place.as_table_mut().expect("it was just made one");
        place = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
    }
    *place = value.clone();
}

/// What a text on the command line means: a number or a flag if it looks like one.
fn value_of(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        return Value::Integer(number);
    }
    if let Ok(number) = text.parse::<f64>() {
        return Value::Float(number);
    }
    match text {
        "true" => Value::Boolean(true),
        "false" => Value::Boolean(false),
        _ => Value::String(text.into()),
    }
}

/// Replaces every `"$name"`.
pub(super) fn substitute(value: &mut Value, variables: &Table) -> Result<(), String> {
    match value {
        Value::String(text) => {
            if let Some(name) = text.strip_prefix('$') {
                let known = || variables.keys().cloned().collect::<Vec<_>>().join(", ");
                let found = variables.get(name);
                *value = found.cloned().ok_or_else(|| {
                    format!("\"${name}\": no such variable; there are {}", known())
                })?;
            }
            Ok(())
        }
        Value::Array(values) => {
            values.iter_mut().try_for_each(|value| substitute(value, variables))
        }
        Value::Table(table) => {
            table.iter_mut().try_for_each(|(_, value)| substitute(value, variables))
        }
        _ => Ok(()),
    }
}
