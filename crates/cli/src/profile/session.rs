//! One measurement of a drive: the generator's own limit first, then the drive is overwritten, then every share of
//! writes is swept, and what is known so far is in the file after each.

use super::file::Out;
use super::generator::{Lane, Load, run, together};
use super::place::Place;
use crate::Failure;
use crate::output::Progress;
use lab::drives::{Limit, Plan, Profile, Seen, Sweep};
use serve::probe::Drive;
use std::time::{Duration, Instant};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wishes {
    /// Percent, rising.
    pub shares: Vec<f64>,
    /// How long a load counts.
    pub seconds: f64,
    /// How many loads to try at each share.
    pub loads: usize,
    /// Microseconds at which latency has run away.
    pub latency_most_us: f64,
    /// Overwrite it first.
    pub fill: bool,
    /// Of all that is drawn.
    pub seed: u64,
}

/// One share of writes.
pub struct Share {
    pub writes_percent: f64,
    /// All loads of it.
    pub sweep: Sweep,
    /// Nobody interrupted it.
    pub is_whole: bool,
}

/// All that was measured.
pub struct Measured {
    /// Requests a second of the generator with no drive in its way.
    pub generator_most: f64,
    pub lanes: u32,
    pub driver: String,
    pub shares: Vec<Share>,
    /// Somebody did.
    pub interrupted: bool,
}

/// Of the memory that stands for a drive without one.
const NULL_BLOCKS: u64 = 4096;
/// More than any generator asks for.
const NULL_IOPS: f64 = 2e7;
/// Between loads the drive rests: what was too much for it is done by then.
const REST: Duration = Duration::from_millis(250);
/// Of what counts, so much comes before that does not.
const WARMUP_SHARE: f64 = 0.25;
const WARMUP_NS_MOST: f64 = 1e9;
/// So many requests are awaited at light loads, for at most so many times the seconds.
const REQUESTS_LEAST: f64 = 1_000.0;
const LONGER_MOST: f64 = 5.0;
/// Who waits for a place so many times the latency that has run away is given up.
const PATIENCE: f64 = 10.0;

pub struct Session<'a> {
    place: &'a Place,
    wishes: &'a Wishes,
    processors: usize,
    lanes: u32,
    /// Counts up, so that no two loads ask the same.
    seed: u64,
    stop: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> Session<'a> {
    pub fn new(place: &'a Place, wishes: &'a Wishes, stop: &'a (dyn Fn() -> bool + Sync)) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (lanes, seed) = (place.lanes(processors), wishes.seed);
        Self { place, wishes, processors, lanes, seed, stop }
    }

    /// Measures everything, and keeps it in `out`.
    pub fn measure(mut self, name: &str, out: &mut Out) -> Result<Measured, Failure> {
        let (generator_most, driver) = self.generator()?;
        let mut measured = Measured {
            generator_most,
            lanes: self.lanes,
            driver,
            shares: Vec::new(),
            interrupted: false,
        };
        if self.wishes.fill && !self.place.fill(self.seed, self.stop)? {
            measured.interrupted = true;
            return Ok(measured);
        }
        let mut progress = Progress::new("measuring");
        let begun = Instant::now();
        for (at, writes_percent) in self.wishes.shares.iter().copied().enumerate() {
            let mut sweep = Sweep::new(self.plan(generator_most));
            let mut is_whole = true;
            while let Some(load) = sweep.next() {
                let known = sweep.seen().len();
                progress.tell(&self.state(writes_percent, (at, known), load, begun.elapsed()));
                let Some(seen) = self.load(load, writes_percent)? else {
                    is_whole = false;
                    break;
                };
                sweep.saw(seen);
            }
            if sweep.seen().is_empty() {
                measured.interrupted = true;
                break;
            }
            measured.shares.push(Share { writes_percent, sweep, is_whole });
            out.keep(&measured.profile(name))?;
            if !is_whole {
                measured.interrupted = true;
                break;
            }
        }
        Ok(measured)
    }

    fn plan(&self, load_most: f64) -> Plan {
        Plan::usual(load_most, self.wishes.loads, self.wishes.latency_most_us)
    }

    /// Where it is, and how long it will take at least.
    fn state(
        &self,
        writes: f64,
        (at, known): (usize, usize),
        load: f64,
        so_far: Duration,
    ) -> String {
        let all = self.wishes.shares.len() * self.wishes.loads;
        let done = at * self.wishes.loads + known;
        let each = self.wishes.seconds * (1.0 + WARMUP_SHARE) + REST.as_secs_f64();
        let seconds = match done {
            0..=2 => each * (all - done) as f64,
            _ => so_far.as_secs_f64() / done as f64 * (all - done) as f64,
        };
        format!(
            "{writes} % of writes, load {} of {}, {load:.0} a second; about {} min left",
            known + 1,
            self.wishes.loads,
            (seconds / 60.0).ceil()
        )
    }

    /// Requests a second of this generator against memory, and what carries them.
    fn generator(&mut self) -> Result<(f64, String), Failure> {
        let failed = |error| format!("memory to measure the generator with: {error}");
        let drive = Drive::null(NULL_BLOCKS).map_err(failed)?;
        let driver = super::target::Direct::new(&drive, 1, 1, self.seed)?.driver();
        let null = Place::Drive(drive);
        let load = Load {
            iops: NULL_IOPS,
            writes_percent: 0.0,
            blocks: null.blocks(),
            warmup_ns: 100_000_000,
            measure_ns: 400_000_000,
            patience_ns: 1_000_000,
            seed: self.seed,
        };
        let seen = self.lanes(&null, load)?;
        let most = seen.map_or(0.0, |seen| seen.point.iops);
        Ok((most.max(1.0), driver))
    }

    /// What comes of a load; `None` if somebody interrupts it.
    fn load(&mut self, iops: f64, writes_percent: f64) -> Result<Option<Seen>, Failure> {
        let seconds = self.wishes.seconds;
        let longer = (REQUESTS_LEAST / iops).min(seconds * LONGER_MOST);
        let measure_ns = seconds.max(longer) * 1e9;
        let load = Load {
            iops,
            writes_percent,
            blocks: self.place.blocks(),
            warmup_ns: (measure_ns * WARMUP_SHARE).min(WARMUP_NS_MOST) as u64,
            measure_ns: measure_ns as u64,
            patience_ns: (self.wishes.latency_most_us * 1e3 * PATIENCE) as u64,
            seed: self.seed,
        };
        self.seed += u64::from(self.lanes);
        let seen = self.lanes(self.place, load)?;
        std::thread::sleep(REST);
        Ok(seen)
    }

    /// The same load from all lanes at once: independent arrivals add up to what they are.
    fn lanes(&self, place: &Place, load: Load) -> Result<Option<Seen>, Failure> {
        let each = Load { iops: load.iops / f64::from(self.lanes), ..load };
        let lane = |number: u32| -> Result<Option<Lane>, Failure> {
            be_punctual(self.processors);
            let seed = load.seed + u64::from(number);
            let mut target = place.target(self.lanes, seed)?;
            run(&mut *target, &Load { seed, ..each }, self.stop)
        };
        let lanes: Vec<Result<Option<Lane>, Failure>> = std::thread::scope(|scope| {
            let lane = &lane;
            let threads: Vec<_> =
                (0..self.lanes).map(|number| scope.spawn(move || lane(number))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|lane| lane.expect("a lane reports what is wrong")).collect()
        });
        let lanes: Option<Vec<Lane>> = lanes.into_iter().collect::<Result<_, _>>()?;
        Ok(lanes.map(|lanes| together(load.iops, &lanes)))
    }
}

/// The thread goes first where it may, and is woken when it wants: a measurement is short, and what else runs on the
/// machine must not make the drive look slow. On a machine with one processor it would keep the kernel from answering.
fn be_punctual(processors: usize) {
    // SAFETY: the parameter is valid for the call. All are wishes; refusing them harms nothing, as lateness is
    // measured.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000 as libc::c_ulong);
        let first = libc::sched_param { sched_priority: 1 };
        if processors < 2 || libc::sched_setscheduler(0, libc::SCHED_RR, &raw const first) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

impl Measured {
    /// What of it is the drive's.
    pub fn profile(&self, name: &str) -> Profile {
        let curve = |share: &Share| share.sweep.curve(share.writes_percent);
        let curves = self.shares.iter().filter_map(curve).collect();
        Profile { name: name.into(), curves, sum: 0 }
    }

    /// Loads at which the generator was the limit.
    pub fn left_out(&self) -> usize {
        self.count(|seen| seen.limit == Limit::Generator)
    }

    /// Loads of which the drive ended nothing in the time that counts.
    pub fn unanswered(&self) -> usize {
        self.count(|seen| seen.limit == Limit::Drive && seen.is_unanswered())
    }

    fn count(&self, is: impl Fn(&&Seen) -> bool) -> usize {
        self.shares.iter().flat_map(|share| share.sweep.seen()).filter(is).count()
    }
}
