//! What all drives answer at given prices: each does what gains it most over its cost.
//!
//! Drives that are alike answer alike, so one of them is asked.
//!
//! A drive that is bound (locality, caps) answers by a linear program of four rows, which goes on from its last
//! answer. The bound on what it can gain is computed from the multipliers of its rows, not from its answer.

use super::fleet::Problem;
use super::shape::{IDLE, Mix, Shape};
use super::simplex::Simplex;
use crate::profile::Point;
use std::collections::BTreeMap;

/// Prices of the demand, in the solver's units of cost for a rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Prices {
    pub read: f64,
    pub write: f64,
    /// What a write in each domain costs besides; empty where no domain is full.
    pub domains: Vec<f64>,
}

/// The answer of all drives at once: a plan, though not yet one that meets the demand.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    /// All in all.
    pub rates: Point,
    /// What the drives gain together over their costs, at most.
    pub gain: f64,
    /// By drive: a point, [`IDLE`], or beyond [`MIXED`] a mix.
    choices: Vec<u32>,
    mixes: Vec<Mix>,
}

const MIXED: u32 = 1 << 31;
const NOTHING: u32 = MIXED - 1;

impl Answer {
    /// What a drive does, as a part of its scale.
    pub fn mix(&self, shape: &Shape, drive: usize) -> Mix {
        let mut mix = Mix::default();
        match self.choices[drive] {
            NOTHING => {}
            choice if choice >= MIXED => mix = self.mixes[(choice - MIXED) as usize],
            choice => mix.add(shape, choice as usize, 1.0),
        }
        mix
    }
}

/// Asks drives.
pub(super) struct Asking<'a> {
    problem: Problem<'a>,
    /// By drive: a place in `alike`.
    places: Vec<u32>,
    alike: Vec<Alike>,
}

/// Drives of one shape and with the same bounds: at the same prices all of them answer the same.
struct Alike {
    bound: Bound,
    /// What the last of them answered, in this turn.
    last: Option<Answered>,
}

#[derive(Clone, Copy)]
struct Answered {
    /// What a write cost besides.
    dearer: f64,
    gain: f64,
    rates: Point,
    choice: u32,
}

impl<'a> Asking<'a> {
    pub fn new(problem: Problem<'a>) -> Self {
        let (mut known, mut alike) = (BTreeMap::new(), Vec::new());
        let drives = problem.fleet.drives.iter();
        let places = drives.map(|drive| {
            let (reads_max, writes_max) =
                if drive.scale > 0.0 { problem.caps(drive) } else { (0.0, 0.0) };
            let key = (drive.shape, reads_max.to_bits(), writes_max.to_bits());
            *known.entry(key).or_insert_with(|| {
                let shape = &problem.fleet.shapes[drive.shape];
                let bound = Bound::new(shape, reads_max, writes_max);
                alike.push(Alike { bound, last: None });
                alike.len() as u32 - 1
            })
        });
        let places = places.collect();
        Self { problem, places, alike }
    }

    /// What all drives do at these prices.
    pub fn ask(&mut self, prices: &Prices) -> Answer {
        let fleet = self.problem.fleet;
        let mut answer = Answer::default();
        answer.choices.reserve(fleet.drives.len());
        self.alike.iter_mut().for_each(|alike| alike.last = None);
        for (drive, place) in fleet.drives.iter().zip(&self.places) {
            let alike = &mut self.alike[*place as usize];
            let dearer = prices.domains.get(drive.domain).copied().unwrap_or(0.0);
            let answered = match alike.last.filter(|last| last.dearer == dearer) {
                _ if drive.scale <= 0.0 => Answered::NOTHING,
                Some(last) => last,
                None => {
                    let per_write = self.problem.reads_per_write;
                    let asked = Asked::new(prices.read, prices.write - dearer, per_write);
                    let shape = &fleet.shapes[drive.shape];
                    let mut answered =
                        alike.bound.asked(shape, per_write, &asked, &mut answer.mixes);
                    answered.dearer = dearer;
                    alike.last = Some(answered);
                    answered
                }
            };
            let Answered { gain, rates, choice, .. } = answered;
            answer.choices.push(choice);
            answer.gain += gain * drive.scale;
            answer.rates.reads += rates.reads * drive.scale;
            answer.rates.writes += rates.writes * drive.scale;
            answer.rates.cost += rates.cost * drive.scale;
        }
        answer
    }

    /// What is asked.
    pub fn problem(&self) -> &Problem<'a> {
        &self.problem
    }
}

/// The prices at which one drive is asked.
struct Asked {
    read: f64,
    write: f64,
    /// Its writes do harm: it is spared all that its reads need not have.
    is_spared: bool,
    writes_per_read: f64,
}

impl Asked {
    /// A write is worth less than nothing where its domain is full.
    fn new(read: f64, write: f64, reads_per_write: f64) -> Self {
        let writes_per_read = if reads_per_write.is_finite() { 1.0 / reads_per_write } else { 0.0 };
        if write >= 0.0 {
            return Self { read, write, is_spared: false, writes_per_read };
        }
        // Each read brings the writes with it that a local drive has to have.
        let read = (read + write * writes_per_read).max(0.0);
        Self { read, write: 0.0, is_spared: true, writes_per_read }
    }
}

impl Answered {
    const NOTHING: Self = Self {
        dearer: 0.0,
        gain: 0.0,
        rates: Point { reads: 0.0, writes: 0.0, cost: 0.0 },
        choice: NOTHING,
    };
}

/// What bounds a drive, and its linear program once it needed one.
struct Bound {
    reads_max: f64,
    writes_max: f64,
    program: Option<Box<Simplex<4>>>,
}

/// Numbers of the columns that spare a drive a read or a write.
const SPARE_READ: usize = 1 << 20;
const SPARE_WRITE: usize = SPARE_READ + 1;
/// A drive's program ends after so many columns came in, whatever is left to gain; one that turns in a circle
/// ends here. Its bound holds all the same.
const TURNS_MAX: usize = 60;

impl Bound {
    fn new(shape: &Shape, reads_max: f64, writes_max: f64) -> Self {
        // What the drive cannot do anyway bounds it as well as infinity would, and can be reckoned with.
        let (mut reads, mut writes) = (0.0f64, 0.0f64);
        for at in 0..shape.len() {
            reads = reads.max(shape.point(at).reads);
            writes = writes.max(shape.point(at).writes);
        }
        let (reads_max, writes_max) = (reads_max.min(reads), writes_max.min(writes));
        Self { reads_max, writes_max, program: None }
    }

    /// What a drive answers; a mix is added to those of all.
    fn asked(
        &mut self,
        shape: &Shape,
        per_write: f64,
        asked: &Asked,
        mixes: &mut Vec<Mix>,
    ) -> Answered {
        let (gain, at) = shape.best(asked.read, asked.write);
        if at == IDLE {
            return Answered::NOTHING;
        }
        let point = shape.point(at);
        if self.allows(point, per_write) && !asked.is_spared {
            return Answered { gain, rates: point, choice: at as u32, ..Answered::NOTHING };
        }
        let (gain, mut mix) = self.answer(shape, per_write, asked.read, asked.write);
        if asked.is_spared {
            mix.rates.writes = mix.rates.reads * asked.writes_per_read;
        }
        mixes.push(mix);
        let choice = MIXED + mixes.len() as u32 - 1;
        Answered { gain, rates: mix.rates, choice, ..Answered::NOTHING }
    }

    fn allows(&self, point: Point, reads_per_write: f64) -> bool {
        point.reads <= self.reads_max
            && point.writes <= self.writes_max
            && point.reads <= reads_per_write * point.writes
    }

    /// What it gains at most, and a mix within its bounds that gains as much.
    fn answer(&mut self, shape: &Shape, reads_per_write: f64, read: f64, write: f64) -> (f64, Mix) {
        // Rows: time, reads less what the writes allow, reads, writes.
        let (local, per) = if reads_per_write.is_finite() {
            (1.0 / (1.0 + reads_per_write), reads_per_write / (1.0 + reads_per_write))
        } else {
            (0.0, 0.0)
        };
        let limits = [1.0, 0.0, self.reads_max, self.writes_max];
        let program = self.program.get_or_insert_with(|| Box::new(Simplex::new(limits)));
        program.reprice(|id| match id {
            SPARE_READ => -read,
            SPARE_WRITE => -write,
            at => {
                let point = shape.point(at);
                read * point.reads + write * point.writes - point.cost
            }
        });
        let least = 1e-11 * (1.0 + read + write);
        let mut bound = f64::INFINITY;
        for _ in 0..TURNS_MAX {
            let duals = program.duals();
            let [time, locality, reads, writes] = duals.map(|dual| dual.max(0.0));
            let read_left = read - local * locality - reads;
            let write_left = write + per * locality - writes;
            let (gain, at) = shape.best(read_left.max(0.0), write_left.max(0.0));
            bound = bound.min(gain + reads * self.reads_max + writes * self.writes_max);
            let entered = if program.enter_slack(&duals, least) {
                true
            } else if read_left < -least {
                program.enter(SPARE_READ, -read, &[0.0, -local, -1.0, 0.0])
            } else if write_left < -least {
                program.enter(SPARE_WRITE, -write, &[0.0, per, 0.0, -1.0])
            } else if at != IDLE && gain > time + least {
                let point = shape.point(at);
                let over = local * point.reads - per * point.writes;
                let gains = read * point.reads + write * point.writes - point.cost;
                program.enter(at, gains, &[1.0, over, point.reads, point.writes])
            } else {
                false
            };
            if !entered {
                break;
            }
        }
        let mut mix = Mix::default();
        for (id, share) in program.parts().filter(|part| part.0 < SPARE_READ && part.1 > 0.0) {
            mix.add(shape, id, share);
        }
        mix.rates.reads = (mix.rates.reads - program.value(SPARE_READ)).max(0.0);
        mix.rates.writes = (mix.rates.writes - program.value(SPARE_WRITE)).max(0.0);
        (bound, mix)
    }
}
