//! Which drives write when: a table of a few slots, gone through again and again.
//!
//! A plan says of a drive that it reads for three quarters of the time, say, and writes for one. It matters which
//! drives write together, for their blocks can be read nowhere else while they
//! do. In the steady state the table decides who holds what, and so what each drive has to serve in each slot.
//! So a table can be judged as a whole: how full is the fullest drive in any slot? It is made better by changes
//! of single entries and by swaps, a few at each turn, as long as there is time; so it finds good tables within
//! seconds and is never finished. The changes it tries are drawn from a seed that is always the same.

use super::super::solver::Demand;
use crate::profile::LoadModel;
use flash::Random;

/// Slots of a table.
const SLOTS: usize = 10;
/// Of larger pools there is no time to judge enough tables.
pub(super) const DRIVES_MAX: usize = 32;
/// Looks at a pair of drives in a slot, at one turn: some milliseconds.
const LOOKS: usize = 1_000_000;
/// After so many searches in vain the table is left as it is, until demand or drives change: the sum of powers
/// doubles when drives are a twentieth fuller.
const FRUITLESS_MAX: u32 = 50;
/// Changes at once at the beginning of a search.
const KICKS: usize = 3;
/// Times that reads are moved between the drives of each pair, to judge a slot.
const SWEEPS: usize = 8;
/// Worse than any drive is full.
const NO_WRITERS: f64 = 1e12;
/// A drive that writes is taken to serve this part of what it writes as reads that nobody else can.
const BESIDE_WRITES: f64 = 0.02;

/// The modes, as places in arrays.
pub(super) const READS: usize = 0;
pub(super) const WRITES: usize = 1;
pub(super) const MIXED: usize = 2;
const MODES: usize = 3;

/// Of its time a drive has these parts in each mode, by the plan.
pub(super) type Times = [f64; MODES];

/// A drive, as the table sees it: in each mode what it could read, and how much of the writes it gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card<'a> {
    times: Times,
    model: &'a LoadModel,
    pub rates: [(f64, f64); MODES],
}

impl<'a> Card<'a> {
    /// Of a drive that is to be in its modes as `times` says; mixed it does reads and writes as all do. Of the
    /// writes it gets as much less as `writes_max` is less than what it carries.
    pub fn new(
        times: Times,
        model: &'a LoadModel,
        demand: Demand,
        is_live: bool,
        writes_max: f64,
    ) -> Self {
        let (reads, writes) = (model.peak(0.0), model.peak(100.0));
        let share = demand.writes / (demand.reads + demand.writes).max(f64::MIN_POSITIVE);
        let both = model.peak(100.0 * share);
        let mut rates = [(0.0, 0.0); MODES];
        if is_live {
            rates[READS] = (reads, 0.0);
            let part = if writes > 0.0 { (writes_max / writes).min(1.0) } else { 0.0 };
            rates[WRITES] = (writes * BESIDE_WRITES, writes * part);
            rates[MIXED] = (both * (1.0 - share), both * share * part);
        }
        Self { times, model, rates }
    }
}

/// The table, and how good it is.
#[derive(Debug)]
pub(super) struct Table {
    /// By slot and drive.
    modes: Vec<Vec<usize>>,
    at: usize,
    random: Random,
    /// How good it was, and how many searches since have not made it better.
    judged: f64,
    fruitless: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self { modes: Vec::new(), at: 0, random: Random::new(1), judged: 0.0, fruitless: 0 }
    }
}

impl Table {
    /// Modes in the slot that is on now.
    pub fn now(&self) -> &[usize] {
        &self.modes[self.at]
    }

    /// The next slot is on.
    pub fn turn(&mut self) {
        self.at = (self.at + 1) % SLOTS;
    }

    /// Fits the table to a plan, and makes it better.
    pub fn improve(&mut self, cards: &[Card<'_>], demand: Demand) {
        if self.modes.first().is_none_or(|modes| modes.len() != cards.len()) {
            self.begin(cards);
        }
        let pairs = cards.len() * cards.len() / 2;
        let tries = LOOKS / (SLOTS * SWEEPS * pairs).max(1);
        let mut best = self.judge(cards, demand);
        if best > 2.0 * self.judged || best < 0.5 * self.judged {
            self.fruitless = 0;
        }
        self.judged = best;
        if self.fruitless >= FRUITLESS_MAX {
            return;
        }
        let kept = (best, self.modes.clone());
        // From a table that no single change makes better a few at once may lead to a better one.
        if tries > 4 * KICKS {
            for _ in 0..KICKS {
                let (slot, drive, to) =
                    (self.draw(SLOTS), self.draw(cards.len()), self.draw(MODES));
                self.modes[slot][drive] = to;
            }
            best = self.judge(cards, demand);
        }
        for _ in 0..tries {
            best = self.change(cards, demand, best);
        }
        if best > kept.0 {
            self.modes = kept.1;
        }
        self.fruitless = if best < 0.99 * kept.0 { 0 } else { self.fruitless + 1 };
        self.judged = best.min(kept.0);
    }

    /// Tries one change, and keeps it if it is none for the worse; how good the table is then.
    fn change(&mut self, cards: &[Card<'_>], demand: Demand, best: f64) -> f64 {
        let (slot, other, drive) = (self.draw(SLOTS), self.draw(SLOTS), self.draw(cards.len()));
        let (was, there) = (self.modes[slot][drive], self.modes[other][drive]);
        let drawn = self.draw(MODES);
        let is_swap = self.random.chance(0.5);
        let to = if is_swap { there } else { drawn };
        if to == was {
            return best;
        }
        self.modes[slot][drive] = to;
        if is_swap {
            self.modes[other][drive] = was;
        }
        let judged = self.judge(cards, demand);
        if judged <= best {
            return judged;
        }
        self.modes[other][drive] = there;
        self.modes[slot][drive] = was;
        best
    }

    fn draw(&mut self, below: usize) -> usize {
        self.random.below(below as u64) as usize
    }

    /// Gives each drive its times, equal drives at different ones.
    fn begin(&mut self, cards: &[Card<'_>]) {
        self.modes = vec![vec![READS; cards.len()]; SLOTS];
        (self.at, self.fruitless) = (0, 0);
        for (drive, card) in cards.iter().enumerate() {
            let slots = |share: f64| (share * SLOTS as f64 + 0.5) as usize;
            let (writes, mixed) = (slots(card.times[WRITES]), slots(card.times[MIXED]));
            for turn in 0..SLOTS {
                // 3 and 10 have no common divisor, so every slot is met once.
                let slot = (7 * drive + drive / SLOTS + 3 * turn) % SLOTS;
                self.modes[slot][drive] = match turn {
                    turn if turn < writes => WRITES,
                    turn if turn < writes + mixed => MIXED,
                    _ if card.times[READS] > 0.0 => READS,
                    _ => MIXED,
                };
            }
        }
    }

    /// How full drives are over all slots in the steady state: the sum of high powers, so that the fullest
    /// count nearly alone.
    fn judge(&self, cards: &[Card<'_>], demand: Demand) -> f64 {
        let count = cards.len();
        let mut held = vec![0.0; count * count];
        let mut writes = Vec::with_capacity(SLOTS);
        let mut judged = 0.0;
        for modes in &self.modes {
            let weights: Vec<f64> =
                modes.iter().zip(cards).map(|(mode, card)| card.rates[*mode].1).collect();
            let copies = draws(&weights, &mut held);
            // Too few drives write in this slot.
            judged += NO_WRITERS * (1.0 - copies.iter().sum::<f64>()).max(0.0);
            writes.push(copies);
        }
        for (modes, writes) in self.modes.iter().zip(&writes) {
            let capacities: Vec<f64> =
                modes.iter().zip(cards).map(|(mode, card)| card.rates[*mode].0).collect();
            let reads = spread(&held, &capacities);
            for (at, card) in cards.iter().enumerate() {
                let (reads, writes) = (reads[at] * demand.reads, writes[at] * demand.writes);
                let load = reads + writes;
                if load > 0.0 {
                    let full = load / card.model.peak(100.0 * writes / load).max(1.0);
                    let fourth = full * full * full * full;
                    judged += fourth * fourth * fourth * fourth;
                }
            }
        }
        judged
    }
}

/// Adds to `held` how often each two drives are drawn together, by weight and without replacement, and gives
/// the part of all copies that each drive gets.
fn draws(weights: &[f64], held: &mut [f64]) -> Vec<f64> {
    let (count, all) = (weights.len(), weights.iter().sum::<f64>());
    let mut copies = vec![0.0; count];
    for a in 0..count {
        for b in a + 1..count {
            let (x, y) = (weights[a] / all, weights[b] / all);
            if x > 0.0 && y > 0.0 && x < 1.0 && y < 1.0 {
                let drawn = x * y * (1.0 / (1.0 - x) + 1.0 / (1.0 - y));
                held[a * count + b] += drawn / SLOTS as f64;
                copies[a] += drawn / 2.0;
                copies[b] += drawn / 2.0;
            }
        }
    }
    copies
}

/// Parts of the reads that drives get when they are as full as each other as far as can be.
fn spread(held: &[f64], capacities: &[f64]) -> Vec<f64> {
    let count = capacities.len();
    let mut loads = vec![0.0; count];
    let mut parts = vec![0.0; held.len()];
    for a in 0..count {
        for b in a + 1..count {
            let both = held[a * count + b];
            let part =
                both * capacities[a] / (capacities[a] + capacities[b]).max(f64::MIN_POSITIVE);
            parts[a * count + b] = part;
            loads[a] += part;
            loads[b] += both - part;
        }
    }
    for _ in 0..SWEEPS {
        for a in 0..count {
            for b in a + 1..count {
                let both = held[a * count + b];
                let (x, y) = (capacities[a], capacities[b]);
                if both <= 0.0 || x + y <= 0.0 {
                    continue;
                }
                let part = &mut parts[a * count + b];
                let moves = ((loads[b] * x - loads[a] * y) / (x + y)).clamp(-*part, both - *part);
                *part += moves;
                loads[a] += moves;
                loads[b] -= moves;
            }
        }
    }
    loads
}
