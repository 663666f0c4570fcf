//! The peak: how many times the demand the drives carry together, and by what each of them does then.
//!
//! Each drive has an edge of what it can carry, from most reads to most writes, on which each further write
//! costs more reads than the one before. Caps and locality cut a piece off either end. All drives begin with
//! most reads; then the pieces of all edges are taken in the order of reads lost for a write, cheapest first,
//! until reads and writes are in the ratio of the demand. No other choice of as many writes loses fewer reads,
//! so this is the most, and at most one drive is on its way from one end of a piece to the other.
//!
//! A failure domain is a drive made of its drives: its edge is theirs merged, cut where it reaches the writes
//! that it may have.

use super::fleet::Problem;
use crate::profile::Point;

/// What the drives carry at most in the ratio of the demand.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Most {
    /// Times the demand.
    pub times: f64,
    /// What each drive does then, in the solver's units. Costs are no less than need be.
    pub drives: Vec<Point>,
}

/// A piece of a drive's edge: what it changes, and whose it is.
#[derive(Clone, Copy, Debug)]
struct Piece {
    drive: usize,
    change: Point,
}

impl Piece {
    fn lost_per_write(&self) -> f64 {
        -self.change.reads / self.change.writes
    }
}

/// Tries of a multiple, where domains are full.
const TRIES: usize = 40;
/// A multiple is known as well as that.
const EXACT: f64 = 1e-7;
const ROUNDING: f64 = 1e-12;

/// See the head of the file.
pub(super) fn most(problem: &Problem<'_>) -> Most {
    let free = with_caps_of(problem, f64::INFINITY);
    if problem.domain_writes_max.is_infinite() {
        return free;
    }
    // Caps of domains are parts of the writes of the plan itself: the peak is the largest multiple that is
    // carried with its own caps. What is carried with the caps of a larger one is no less than the peak, so
    // each try lowers the upper end, or raises the lower one.
    let first = with_caps_of(problem, free.times);
    if first.times >= free.times {
        return first;
    }
    let (mut low, mut high) = (0.0, first.times);
    let mut best = Most { times: 0.0, drives: vec![Point::default(); first.drives.len()] };
    for turn in 0..TRIES {
        if high - low <= EXACT * high {
            break;
        }
        let tried_at = if turn % 2 == 0 { high * (1.0 - EXACT) } else { (low + high) / 2.0 };
        let tried = with_caps_of(problem, tried_at);
        // Where all domains are full they carry just what their caps say, but for rounding.
        if tried.times < tried_at * (1.0 - ROUNDING) {
            high = tried.times;
            continue;
        }
        // It keeps to the caps of what it was tried at when it is scaled to that.
        low = tried_at;
        let part = (low / tried.times).min(1.0);
        best.drives = tried.drives.iter().map(|drive| scaled(*drive, part)).collect();
        best.times = low;
    }
    best
}

/// The most with the caps that a demand of `times` as much would have.
fn with_caps_of(problem: &Problem<'_>, times: f64) -> Most {
    let fleet = problem.fleet;
    let capped = problem.times(times);
    let mut drives = vec![Point::default(); fleet.drives.len()];
    let mut pieces: Vec<Piece> = Vec::with_capacity(8 * drives.len());
    for (at, drive) in fleet.drives.iter().enumerate().filter(|(_, drive)| drive.scale > 0.0) {
        let (reads_max, writes_max) = capped.caps(drive);
        let chain = fleet.shapes[drive.shape].chain();
        let bounds = Bounds { reads_max, reads_per_write: problem.reads_per_write };
        let begin = cut(chain, bounds, writes_max, |change| {
            pieces.push(Piece { drive: at, change: scaled(change, drive.scale) });
        });
        drives[at] = scaled(begin, drive.scale);
    }
    if capped.domain_writes_max.is_finite() {
        pieces = within_domains(&capped, pieces, &mut drives);
    }
    let times = merge(problem, pieces, &mut drives);
    for drive in &mut drives {
        // The sum of all its pieces, but for rounding.
        drive.reads = drive.reads.max(0.0);
    }
    Most { times, drives }
}

/// What bounds a drive at the end of its edge with most reads.
#[derive(Clone, Copy)]
struct Bounds {
    reads_max: f64,
    reads_per_write: f64,
}

impl Bounds {
    /// How far a point is beyond either bound.
    fn beyond(&self, p: Point) -> [f64; 2] {
        let local = if self.reads_per_write.is_finite() {
            p.reads - self.reads_per_write * p.writes
        } else {
            f64::NEG_INFINITY
        };
        [p.reads - self.reads_max, local]
    }

    fn holds(&self, p: Point) -> bool {
        self.beyond(p).iter().all(|beyond| *beyond <= 0.0)
    }

    /// Where on the way to a point within the bounds these begin to hold.
    fn enters(&self, from: Point, to: Point) -> Point {
        let mut part: f64 = 0.0;
        for (out, inside) in self.beyond(from).into_iter().zip(self.beyond(to)) {
            if out > 0.0 {
                part = part.max(out / (out - inside));
            }
        }
        between(from, to, part)
    }
}

/// Where a drive begins with its caps, and the pieces of its edge that are left, which `piece` is told.
fn cut(chain: &[Point], bounds: Bounds, writes_max: f64, mut piece: impl FnMut(Point)) -> Point {
    let Some(first) = chain.first() else { return Point::default() };
    let mut begin = bounds.holds(*first).then_some(*first);
    let mut here = *first;
    for next in &chain[1..] {
        if here.writes >= writes_max {
            break;
        }
        let part = (writes_max - here.writes) / (next.writes - here.writes);
        let to = if part < 1.0 { between(here, *next, part) } else { *next };
        if begin.is_none() && bounds.holds(to) {
            here = bounds.enters(here, to);
            begin = Some(here);
        }
        if begin.is_some() && to.writes > here.writes {
            piece(minus(to, here));
        }
        here = to;
    }
    // Too few writes or too many reads wherever it stops: it is spared what is too much.
    let begin = begin.unwrap_or(here);
    let most = begin.writes.min(writes_max);
    let (mut reads, mut writes) = (begin.reads.min(bounds.reads_max), 0.0);
    if bounds.reads_per_write.is_finite() {
        reads = reads.min(bounds.reads_per_write * most);
        writes = (reads / bounds.reads_per_write).min(most);
    }
    // The writes that these reads need not have are a piece that costs no reads.
    if most > writes {
        piece(Point { writes: most - writes, ..Point::default() });
    }
    Point { reads, writes, cost: begin.cost }
}

/// Cuts each domain where it reaches the writes that it may have.
fn within_domains(
    problem: &Problem<'_>,
    mut pieces: Vec<Piece>,
    drives: &mut [Point],
) -> Vec<Piece> {
    let fleet = problem.fleet;
    let domain = |drive: usize| fleet.drives[drive].domain;
    let mut writes = vec![0.0; fleet.domains];
    for (at, point) in drives.iter().enumerate() {
        writes[domain(at)] += point.writes;
    }
    let most = problem.domain_writes_max;
    for (at, point) in drives.iter_mut().enumerate() {
        let all = writes[domain(at)];
        if all > most {
            point.writes *= most / all;
            if problem.reads_per_write.is_finite() {
                point.reads = point.reads.min(problem.reads_per_write * point.writes);
            }
        }
    }
    sort(&mut pieces);
    let mut kept = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        let all = &mut writes[domain(piece.drive)];
        let room = most - *all;
        if room <= 0.0 {
            continue;
        }
        let part = (room / piece.change.writes).min(1.0);
        piece.change = scaled(piece.change, part);
        *all += piece.change.writes;
        kept.push(piece);
    }
    kept
}

/// Takes pieces until reads and writes are in the ratio of the demand; how many times that is.
fn merge(problem: &Problem<'_>, mut pieces: Vec<Piece>, drives: &mut [Point]) -> f64 {
    let demand = problem.demand;
    let mut all = drives.iter().fold(Point::default(), |sum, drive| plus(sum, *drive));
    sort(&mut pieces);
    for piece in pieces {
        let next = plus(all, piece.change);
        if next.reads * demand.writes >= next.writes * demand.reads {
            all = next;
            drives[piece.drive] = plus(drives[piece.drive], piece.change);
            continue;
        }
        // The ray of the demand ends within this piece, or was passed before it.
        let short = all.reads * demand.writes - all.writes * demand.reads;
        let per = piece.change.writes * demand.reads - piece.change.reads * demand.writes;
        if short > 0.0 {
            let part = scaled(piece.change, short / per);
            all = plus(all, part);
            drives[piece.drive] = plus(drives[piece.drive], part);
        }
        break;
    }
    (all.reads / demand.reads).min(all.writes / demand.writes)
}

fn sort(pieces: &mut [Piece]) {
    pieces.sort_by(|a, b| {
        a.lost_per_write().total_cmp(&b.lost_per_write()).then(a.drive.cmp(&b.drive))
    });
}

fn scaled(p: Point, by: f64) -> Point {
    Point { reads: p.reads * by, writes: p.writes * by, cost: p.cost * by }
}

fn plus(a: Point, b: Point) -> Point {
    Point { reads: a.reads + b.reads, writes: a.writes + b.writes, cost: a.cost + b.cost }
}

fn minus(a: Point, b: Point) -> Point {
    plus(a, scaled(b, -1.0))
}

fn between(from: Point, to: Point, part: f64) -> Point {
    plus(from, scaled(minus(to, from), part))
}
