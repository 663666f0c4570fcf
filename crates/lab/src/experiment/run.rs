//! Measures an experiment: each case on a device of its own, its points one after the other on that
//! device (as the source did it), cases in parallel.

use super::file::{self, At, Case, DeviceChoice, Experiment, Prepare};
use super::{ExperimentError, Kept, kept, metric};
use crate::device_file::{DeviceSpec, Scale};
use crate::driver::Failure;
use crate::load::{self, Window};
use crate::target::Target;
use crate::tenant::{self, Tenants, Until};
use flash::Random;
use std::collections::BTreeMap;

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
    /// Likewise, where this is of several seeds: the least and the most of them.
    pub extremes: BTreeMap<String, (f64, f64)>,
}

/// What a case measured.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Its name.
    pub case: String,
    /// It stands for what Weir is compared to.
    pub baseline: bool,
    /// In the order of [`Experiment::points`].
    pub points: Vec<PointResult>,
}

/// What an experiment measured with one seed, or the means of several.
#[derive(Clone, Debug)]
pub struct Results {
    /// In the order of the file.
    pub cases: Vec<CaseResult>,
}

/// Told while an experiment runs: the case and how many of all points are done.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Sync);

/// Runs every case at every point, with each seed. What `kept` has of them is not run again.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    kept: &Kept,
    progress: Progress<'_>,
) -> Result<Vec<Results>, ExperimentError> {
    if let Some(missing) = experiment.missing_trace(options.scale, &options.set)? {
        return Err(ExperimentError(format!("experiment {}: {missing}", experiment.name)));
    }
    let (points, cases) = (experiment.points(), experiment.cases());
    let jobs = cases as u64 * options.seeds;
    let total = points.len() * jobs as usize;
    let done = std::sync::atomic::AtomicUsize::new(0);
    let results = crate::parallel::for_each_seed(0..jobs, options.threads, |job| {
        let (index, seed) = ((job % cases as u64) as usize, options.seed + job / cases as u64);
        let told = |case: &str| {
            let count = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            progress(case, count, total);
        };
        let key = kept::key(experiment, options, index, seed);
        if let Some((baseline, values)) = kept.get(&key, points.len()) {
            let at = points.iter().cloned().zip(values.iter().cloned());
            let points = at.map(|(at, values)| PointResult { at, values, ..Default::default() });
            let case = experiment.case_name(index).to_owned();
            let points = points.inspect(|_| told(&case)).collect();
            return Ok(CaseResult { case, baseline, points });
        }
        let result = run_case(experiment, options, (index, seed), &points, &told)
            .map_err(|error| Failure(error.0))?;
        kept.add(&key, &result);
        Ok(result)
    });
    let mut results = results.map_err(|error| ExperimentError(error.failure.0))?.into_iter();
    let seeds =
        (0..options.seeds).map(|_| Results { cases: results.by_ref().take(cases).collect() });
    Ok(seeds.collect())
}

/// A device and how far its time has come.
struct Device {
    target: Box<dyn Target>,
    /// They go on from point to point.
    tenants: Tenants,
    parts: Vec<tenant::Part>,
    choice: DeviceChoice,
    prepare: Vec<Prepare>,
}

fn run_case(
    experiment: &Experiment,
    options: &Options,
    (index, seed): (usize, u64),
    points: &[At],
    told: &dyn Fn(&str),
) -> Result<CaseResult, ExperimentError> {
    let mut random = Random::new(seed ^ (index as u64).wrapping_mul(0x9e37_79b9));
    let mut device: Option<Device> = None;
    let mut results = Vec::new();
    let mut baseline = false;
    for at in points {
        let case = experiment.case(index, options.scale, &options.set, at)?;
        let wrong = |why: String| {
            ExperimentError(format!("experiment {}, case {:?}: {why}", experiment.name, case.name))
        };
        baseline = case.baseline;
        if let Some(waf) = &case.waf {
            let values = waf.measure(random.next_u64()).map_err(|why| wrong(why.0))?;
            results.push(PointResult { at: at.clone(), values, ..PointResult::default() });
            told(&case.name);
            continue;
        }
        let reusable = device.take_if(|device| {
            device.choice == case.device
                && device.prepare == case.prepare
                && device.parts == case.tenants
        });
        let mut used = match reusable {
            Some(device) => device,
            None => {
                // The old one's memory goes first: devices are large.
                drop(device.take());
                make_device(&case, random.next_u64()).map_err(wrong)?
            }
        };
        let values = measure(&mut used, &case, experiment.spike_ns, random.next_u64());
        let values = values.map_err(|why| wrong(why.0))?;
        results.push(PointResult { at: at.clone(), values, ..PointResult::default() });
        device = Some(used);
        told(&case.name);
    }
    Ok(CaseResult { case: experiment.case_name(index).to_owned(), baseline, points: results })
}

fn make_device(case: &Case, seed: u64) -> Result<Device, String> {
    let DeviceChoice { name, set, blocks_per_plane, factory_bad } = &case.device;
    let spec = DeviceSpec::builtin_with(name, set)?;
    let scale = blocks_per_plane.map_or(Scale::FULL, Scale::BlocksPerPlane);
    let faults = nand::Faults { seed, factory_bad: *factory_bad, ..nand::Faults::default() };
    let target = spec.build(scale, &faults, seed)?;
    let tenants = tenant::parts(&case.tenants, target.bytes(), seed, &mut |path| {
        tenant::requests(path).map(|(requests, bytes)| (requests.into(), bytes))
    })?;
    let mut device = Device {
        target,
        tenants,
        parts: case.tenants.clone(),
        choice: case.device.clone(),
        prepare: case.prepare.clone(),
    };
    device.age(case.age).map_err(|why| why.0)?;
    for (step, prepare) in (0..).zip(&case.prepare) {
        device.prepare(prepare, seed ^ (step + 1)).map_err(|why| format!("prepare: {why}"))?;
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
    spike_ns: u64,
    seed: u64,
) -> Result<BTreeMap<String, f64>, Failure> {
    let window = Window { warmup_ns: case.warmup_ns, measure_ns: case.measure_ns };
    if !case.tenants.is_empty() {
        return measure_tenants(device, case, window, spike_ns);
    }
    let before = device.target.counts();
    let seen = load::run(&mut *device.target, &case.clients, window, seed)?;
    if let Some((client, error)) =
        case.clients.iter().zip(&seen).find_map(|(client, seen)| Some((client, seen.first_error?)))
    {
        return Err(Failure(format!("client {:?}: {error:?}", client.name)));
    }
    let clients = case.clients.iter().zip(seen);
    let clients = clients.map(|(client, seen)| (client.name.clone(), client.threads, seen));
    Ok(metric::metrics(&clients.collect::<Vec<_>>(), before, &*device.target, spike_ns))
}

/// The warm-up is not part of what the device did, either: it may be of another tenant's making.
fn measure_tenants(
    device: &mut Device,
    case: &Case,
    window: Window,
    spike_ns: u64,
) -> Result<BTreeMap<String, f64>, Failure> {
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
    let mut values = metric::metrics(&named, before, &*device.target, spike_ns);
    for tenant in device.tenants.list() {
        if let Some(profile) = tenant.profile() {
            metric::add_profile(&mut values, tenant.name(), &profile.figures());
        }
    }
    Ok(values)
}
