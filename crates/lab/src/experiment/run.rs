//! Measures experiments: each case on a device of its own, its points one after the other on that
//! device (as the source did it), devices in parallel.

use super::curves::{Course, Curve, Kind, SLICES};
use super::file::{self, At, Case, DeviceChoice, Experiment, Prepare};
use super::metric::Wanted;
use super::waf::WafCase;
use super::{ExperimentError, Kept, Row, kept, metric, select};
use crate::device_file::Scale;
use crate::driver::Failure;
use crate::load::{self, Window};
use crate::report::Interval;
use crate::target::Target;
use crate::tenant::{self, Tenants, Until};
use flash::{Instant, Random};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender};

/// What the command line decides.
#[derive(Clone, Debug)]
pub struct Options {
    /// How large, how long.
    pub scale: file::Scale,
    /// Variables to change.
    pub set: Vec<(String, String)>,
    /// Of everything that is drawn.
    pub seed: u64,
    /// So many seeds, from that one on.
    pub seeds: u64,
    /// Cases at a time.
    pub threads: usize,
}

/// What a case measured at one combination of sweep values.
#[derive(Clone, Debug, Default)]
pub struct PointResult {
    /// The combination.
    pub at: At,
    /// By metric.
    pub values: BTreeMap<String, f64>,
    /// Likewise, where this is of several seeds: in which the mean lies at 95 %.
    pub intervals: BTreeMap<String, Interval>,
    /// What figures want beyond that, by their own names.
    pub curves: BTreeMap<String, Curve>,
}

/// What was measured at a point with one seed.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Measures {
    /// By metric.
    pub values: BTreeMap<String, f64>,
    /// What figures want beyond that, by their own names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub curves: BTreeMap<String, Curve>,
}

/// What a case measured.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Its name.
    pub case: String,
    /// It stands for what Weir is compared to.
    pub baseline: bool,
    /// In the order of [`Experiment::points`], of which it may not have all.
    pub points: Vec<PointResult>,
}

/// What an experiment measured with one seed, or the means of several.
#[derive(Clone, Debug)]
pub struct Results {
    /// In the order of the file.
    pub cases: Vec<CaseResult>,
}

/// A point is done.
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Name of the experiment.
    pub experiment: &'a str,
    /// Name of the case.
    pub case: &'a str,
    /// Points done so far, of all experiments.
    pub done: usize,
    /// All of them.
    pub total: usize,
}

/// Told of each point while experiments run, by the thread that measured it.
pub type Progress<'a> = &'a (dyn Fn(Told<'_>) + Sync);

/// Runs every case at every point, with each seed. What `kept` has of them is not run again.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    kept: &Kept,
    progress: Progress<'_>,
) -> Result<Vec<Results>, ExperimentError> {
    let mut all = Vec::new();
    run_all(&[experiment], options, kept, progress, &mut |_, results| {
        all = results;
        Ok(())
    })?;
    Ok(all)
}

/// Likewise for several experiments, whose cases share the threads. `finished` is told of each, in their
/// order, as soon as all of it is measured; an error of it ends the run.
pub fn run_all(
    experiments: &[&Experiment],
    options: &Options,
    kept: &Kept,
    progress: Progress<'_>,
    finished: &mut dyn FnMut(usize, Vec<Results>) -> Result<(), ExperimentError>,
) -> Result<(), ExperimentError> {
    let plans = experiments.iter().map(|experiment| Plan::new(experiment, options));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    let jobs: Vec<(usize, Job)> = (plans.iter().enumerate())
        .flat_map(|(plan, of)| of.jobs(options).map(move |job| (plan, job)))
        .collect();
    let (done, total) = (AtomicUsize::new(0), jobs.iter().map(|(_, job)| job.points.len()).sum());
    let work = |number: u64, sender: &Sender<(usize, Measured)>| {
        let (plan, job) = &jobs[number as usize];
        let told = |case: &str| {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Told { experiment: &plans[*plan].experiment.name, case, done, total });
        };
        let key = kept::key(&plans[*plan], options, job);
        let values = match kept.get(&key, job.points.len()) {
            Some(values) => {
                job.points.iter().for_each(|&(case, _)| told(&plans[*plan].cases[case][0].name));
                values.to_vec()
            }
            None => {
                let values = run_job(&plans[*plan], job, &told);
                let values = values.map_err(|error| Failure(error.0))?;
                kept.add(&key, &values);
                values
            }
        };
        tell_rows(&plans[*plan], options, job, &values, kept);
        // Nobody listens once an experiment could not be told.
        sender.send((number as usize, values)).map_err(|_| Failure("ended".into()))
    };
    std::thread::scope(|scope| {
        let (sender, results) = std::sync::mpsc::channel();
        let count = jobs.len() as u64;
        let workers = scope.spawn(move || {
            crate::parallel::for_each_seed(0..count, options.threads, |job| work(job, &sender))
        });
        let told = tell_in_order(&plans, &jobs, options, results, finished);
        let worked = workers.join().expect("a panic of a job is a failure");
        told?;
        worked.map(|_| ()).map_err(|error| ExperimentError(error.failure.0))
    })
}

/// Puts together what the jobs measure, until they end.
fn tell_in_order(
    plans: &[Plan<'_>],
    jobs: &[(usize, Job)],
    options: &Options,
    results: Receiver<(usize, Measured)>,
    finished: &mut dyn FnMut(usize, Vec<Results>) -> Result<(), ExperimentError>,
) -> Result<(), ExperimentError> {
    let mut left: Vec<usize> = vec![0; plans.len()];
    jobs.iter().for_each(|(plan, _)| left[*plan] += 1);
    let mut measured: Vec<Option<Measured>> = vec![None; jobs.len()];
    let mut next = 0;
    for (number, values) in results {
        measured[number] = Some(values);
        left[jobs[number].0] -= 1;
        while left.get(next) == Some(&0) {
            let of_plan = jobs.iter().zip(&measured).filter(|((plan, _), _)| *plan == next);
            let of_plan = of_plan.map(|((_, job), values)| (job, values.as_ref().expect("done")));
            finished(next, plans[next].results(options, of_plan))?;
            next += 1;
        }
    }
    Ok(())
}

/// Tells what a job measured, each point and those that are the same.
fn tell_rows(plan: &Plan<'_>, options: &Options, job: &Job, values: &Measured, kept: &Kept) {
    let mut rows = Vec::new();
    for (&(case, first), measures) in job.points.iter().zip(values) {
        let alike = plan.measured(case).filter(|&point| plan.first_alike(case, point) == first);
        rows.extend(alike.map(|point| Row {
            experiment: &plan.experiment.name,
            scale: options.scale.name(),
            seed: job.seed,
            case: &plan.cases[case][point].name,
            at: &plan.points[point],
            values: &measures.values,
        }));
    }
    kept.tell(&rows);
}

/// What was measured at each point of a job.
type Measured = Vec<Measures>;

/// Points that one device goes through, one after the other, with one seed.
pub(super) struct Job {
    pub seed: u64,
    /// Indices of cases, and of [`Experiment::points`].
    pub points: Vec<(usize, usize)>,
}

/// All cases of an experiment, resolved at all points.
pub(super) struct Plan<'a> {
    pub experiment: &'a Experiment,
    points: Vec<At>,
    /// By case, by point.
    cases: Vec<Vec<Case>>,
}

impl<'a> Plan<'a> {
    pub fn new(experiment: &'a Experiment, options: &Options) -> Result<Self, ExperimentError> {
        if let Some(missing) = experiment.missing_trace(options.scale, &options.set)? {
            return Err(ExperimentError(format!("experiment {}: {missing}", experiment.name)));
        }
        let points = experiment.points();
        let case = |index| {
            let points = points.iter();
            points.map(|at| experiment.case(index, options.scale, &options.set, at)).collect()
        };
        let cases = (0..experiment.cases()).map(case).collect::<Result<_, _>>()?;
        Ok(Self { experiment, points, cases })
    }

    /// The first point where a case is what it is here: one that does not use the variable of a sweep
    /// is the same at each of its values, and measured once.
    fn first_alike(&self, case: usize, point: usize) -> usize {
        let cases = &self.cases[case];
        let is_first = |&other: &usize| cases[other] == cases[point];
        self.measured(case).find(is_first).unwrap_or(point)
    }

    /// The points where a case is measured, or one like it.
    fn measured(&self, case: usize) -> impl Iterator<Item = usize> {
        let cases = self.cases[case].iter().zip(&self.points).enumerate();
        cases.filter(|(_, (case, at))| select::is_measured(case, at)).map(|(point, _)| point)
    }

    /// The point of another case, of that name, whose device a case goes on with.
    fn at_or_alike(&self, name: &str, point: usize) -> (usize, usize) {
        let found = self.cases.iter().position(|case| case[0].name == name);
        let case = found.expect("the file was checked: there is such a case");
        (case, self.first_alike(case, point))
    }

    /// Every seed gives the same at all points of a case, so it is measured with the first one only.
    fn draws_nothing(&self, case: usize) -> bool {
        let waf = |case: &Case| case.waf.as_ref().is_some_and(WafCase::draws_nothing);
        self.cases[case].iter().all(waf)
    }

    /// In the order of seeds, cases and points.
    pub fn jobs(&self, options: &Options) -> impl Iterator<Item = Job> {
        let mut jobs: Vec<Job> = Vec::new();
        for seed in options.seed..options.seed + options.seeds {
            let mut job_of: BTreeMap<(usize, usize), usize> = BTreeMap::new();
            for (case, at) in self.cases.iter().enumerate() {
                if seed > options.seed && self.draws_nothing(case) {
                    continue;
                }
                let own =
                    self.measured(case).filter(|&point| self.first_alike(case, point) == point);
                let mut last: Option<usize> = None;
                for point in own {
                    let same = last.filter(|&last| at[last].goes_on_with(&at[point]));
                    let before = match (same, &at[point].after) {
                        (Some(last), _) => Some((case, last)),
                        (None, Some(after)) => Some(self.at_or_alike(after, point)),
                        (None, None) => None,
                    };
                    let job = before.map(|before| job_of[&before]).unwrap_or_else(|| {
                        jobs.push(Job { seed, points: Vec::new() });
                        jobs.len() - 1
                    });
                    jobs[job].points.push((case, point));
                    job_of.insert((case, point), job);
                    last = Some(point);
                }
            }
        }
        jobs.into_iter()
    }

    /// What the jobs measured, by seed and case.
    fn results<'b>(
        &self,
        options: &Options,
        jobs: impl Iterator<Item = (&'b Job, &'b Measured)>,
    ) -> Vec<Results> {
        let mut measured: BTreeMap<(u64, usize, usize), &Measures> = BTreeMap::new();
        for (job, values) in jobs {
            let points = job.points.iter().zip(values);
            measured
                .extend(points.map(|(&(case, point), values)| ((job.seed, case, point), values)));
        }
        let point = |seed: u64, case: usize, point: usize| {
            let seed = if self.draws_nothing(case) { options.seed } else { seed };
            let found = measured[&(seed, case, self.first_alike(case, point))];
            PointResult {
                at: self.points[point].clone(),
                values: found.values.clone(),
                curves: found.curves.clone(),
                ..PointResult::default()
            }
        };
        let case = |seed: u64, (case, at): (usize, &Vec<Case>)| CaseResult {
            case: self.experiment.case_name(case).to_owned(),
            baseline: at.iter().any(|case| case.baseline),
            points: self.measured(case).map(|at| point(seed, case, at)).collect(),
        };
        let seeds = options.seed..options.seed + options.seeds;
        seeds
            .map(|seed| Results {
                cases: self.cases.iter().enumerate().map(|of| case(seed, of)).collect(),
            })
            .collect()
    }
}

impl Case {
    /// The device that was used for this case may go on with the other.
    fn goes_on_with(&self, next: &Case) -> bool {
        self.waf.is_none()
            && next.waf.is_none()
            && self.device == next.device
            && self.prepare == next.prepare
            && self.settle_ns == next.settle_ns
            && self.tenants == next.tenants
    }
}

/// A device and how far its time has come.
struct Device {
    target: Box<dyn Target>,
    /// They go on from point to point.
    tenants: Tenants,
}

fn run_job(plan: &Plan<'_>, job: &Job, told: &dyn Fn(&str)) -> Result<Measured, ExperimentError> {
    let (first_case, first_point) = job.points[0];
    let drawn = (first_case as u64) << 32 | first_point as u64;
    let mut random = Random::new(job.seed ^ drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut device: Option<Device> = None;
    let mut results = Vec::new();
    for &(case, point) in &job.points {
        let case = &plan.cases[case][point];
        let values = run_point(&mut device, case, plan.experiment, &mut random);
        results.push(values.map_err(|why| {
            let name = &plan.experiment.name;
            ExperimentError(format!("experiment {name}, case {:?}: {why}", case.name))
        })?);
        told(&case.name);
    }
    Ok(results)
}

fn run_point(
    device: &mut Option<Device>,
    case: &Case,
    experiment: &Experiment,
    random: &mut Random,
) -> Result<Measures, String> {
    if let Some(waf) = &case.waf {
        let values = waf.measure(random.next_u64()).map_err(|why| why.0)?;
        return Ok(Measures { values, ..Measures::default() });
    }
    if device.is_none() {
        *device = Some(make_device(experiment, case, random.next_u64())?);
    }
    let device = device.as_mut().expect("it was just made");
    measure(device, case, experiment, random.next_u64()).map_err(|why| why.0)
}

fn make_device(experiment: &Experiment, case: &Case, seed: u64) -> Result<Device, String> {
    let DeviceChoice { blocks_per_plane, factory_bad, .. } = &case.device;
    let spec = experiment.devices.spec(&case.device)?;
    let scale = blocks_per_plane.map_or(Scale::FULL, Scale::BlocksPerPlane);
    let faults = nand::Faults { seed, factory_bad: *factory_bad, ..nand::Faults::default() };
    let target = spec.build(scale, &faults, seed)?;
    let tenants = tenant::parts(&case.tenants, target.bytes(), seed, &mut |path| {
        tenant::requests(path).map(|(requests, bytes)| (requests.into(), bytes))
    })?;
    let mut device = Device { target, tenants };
    device.age(case.age).map_err(|why| why.0)?;
    for (step, prepare) in (0..).zip(&case.prepare) {
        device.prepare(prepare, seed ^ (step + 1)).map_err(|why| format!("prepare: {why}"))?;
    }
    if case.settle_ns > 0 {
        let settled = device.settle(case.settle_ns);
        settled.map_err(|why| format!("settle: {why}"))?;
    }
    Ok(device)
}

/// A stable WAF: the last quarter of the space differs by less than this from the one before.
const STEADY: f64 = 0.02;

impl Device {
    /// The tenants' files are written, and they work until they have written the device over so often.
    fn age(&mut self, times: f64) -> Result<(), Failure> {
        if self.tenants.list().is_empty() {
            return Ok(());
        }
        self.tenants.fill(&mut *self.target)?;
        let bytes = (self.target.bytes() as f64 * times) as u64;
        self.tenants.run(&mut *self.target, Until::Written(bytes)).map(|_| ())
    }

    fn prepare(&mut self, prepare: &Prepare, seed: u64) -> Result<(), Failure> {
        let client = &prepare.client;
        let space = self.target.bytes() as f64 * client.span;
        let ios = |times: f64| {
            let ios = space * times / client.bytes as f64 / f64::from(client.threads);
            (ios.ceil() as u64).max(1)
        };
        if !prepare.steady {
            return self.go_over(client, ios(prepare.times), seed);
        }
        let mut last = f64::NAN;
        for quarter in 0..(prepare.times * 4.0).ceil() as u64 {
            let before = self.target.counts();
            self.go_over(client, ios(0.25), seed.wrapping_add(quarter << 32))?;
            let after = self.target.counts();
            let waf = (after.bytes_programmed - before.bytes_programmed) as f64
                / (after.bytes_written - before.bytes_written).max(1) as f64;
            // The first whole overwrite is never steady: GC may not have begun.
            if quarter >= 4 && (waf / last - 1.0).abs() < STEADY {
                return Ok(());
            }
            last = waf;
        }
        Ok(())
    }

    /// Time passes, in which the device does what it left for later.
    fn settle(&mut self, ns: u64) -> Result<(), Failure> {
        let end = Instant(self.target.now().0.saturating_add(ns));
        while let Some(next) = self.target.deadline().filter(|&next| next <= end) {
            self.target.advance(next)?;
        }
        self.target.advance(end)
    }

    /// The client does so many I/Os a thread, and all of them end.
    fn go_over(&mut self, client: &load::Client, ios: u64, seed: u64) -> Result<(), Failure> {
        let client = load::Client { ios_max: ios, ..client.clone() };
        let window = Window { warmup_ns: 0, measure_ns: u64::MAX };
        let seen = load::run(&mut *self.target, std::slice::from_ref(&client), window, seed)?;
        match seen[0].first_error {
            Some(error) => Err(Failure(format!("{:?}: {error:?}", client.name))),
            None => Ok(()),
        }
    }
}

fn measure(
    device: &mut Device,
    case: &Case,
    experiment: &Experiment,
    seed: u64,
) -> Result<Measures, Failure> {
    let window = Window { warmup_ns: case.warmup_ns, measure_ns: case.measure_ns };
    let curves = &experiment.curves;
    let wanted = Wanted { spike_ns: experiment.spike_ns, curves };
    if !case.tenants.is_empty() {
        return measure_tenants(device, case, window, &wanted);
    }
    let before = device.target.counts();
    let over_time = curves.iter().any(|curve| curve.kind == Kind::OverTime);
    let slices = if over_time { SLICES } else { 0 };
    let (seen, counts) =
        load::run_sliced(&mut *device.target, &case.clients, window, slices, seed)?;
    if let Some((client, error)) =
        case.clients.iter().zip(&seen).find_map(|(client, seen)| Some((client, seen.first_error?)))
    {
        return Err(Failure(format!("client {:?}: {error:?}", client.name)));
    }
    let clients = case.clients.iter().zip(seen);
    let clients = clients.map(|(client, seen)| (client.name.clone(), client.threads, seen));
    let (clients, course) = (clients.collect::<Vec<_>>(), Course { counts: &counts });
    Ok(metric::metrics(&clients, before, &*device.target, &course, &wanted))
}

/// The warm-up is not part of what the device did, either: it may be of another tenant's making.
fn measure_tenants(
    device: &mut Device,
    case: &Case,
    window: Window,
    wanted: &Wanted<'_>,
) -> Result<Measures, Failure> {
    let warmup = Window { warmup_ns: 0, measure_ns: window.warmup_ns };
    device.tenants.run(&mut *device.target, Until::Time(warmup))?;
    let before = device.target.counts();
    let until = if case.writes > 0.0 {
        Until::Written((device.target.bytes() as f64 * case.writes) as u64)
    } else {
        Until::Time(Window { warmup_ns: 0, ..window })
    };
    let seen = device.tenants.run(&mut *device.target, until)?;
    let names = device.tenants.list().iter().map(|tenant| tenant.name().to_owned());
    let named: Vec<_> = names.zip(seen).map(|(name, seen)| (name, 1, seen)).collect();
    let course = Course { counts: &[] };
    let mut measures = metric::metrics(&named, before, &*device.target, &course, wanted);
    for tenant in device.tenants.list() {
        if let Some(profile) = tenant.profile() {
            metric::add_profile(&mut measures.values, tenant.name(), &profile.figures());
        }
    }
    Ok(measures)
}
