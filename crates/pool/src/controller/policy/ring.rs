//! Segregation by a ring, as in Sandook's artifact: the nodes stand in a circle, the next few serve writes and
//! the others reads, and each time the writers move on by as many as they are. How many write follows from
//! what nodes carry when reads and writes are mixed. It knows nothing of which blocks lie where.

use super::super::weights::Mode;
use super::plain::equally_late;
use super::{Allotment, Decision, NodeView, Policy, View};
use flash::Instant;

/// Fewer than that many nodes cannot be told apart.
const NODES_MIN: usize = 3;
const WRITERS_MIN: usize = 2;

/// The ring.
#[derive(Debug)]
pub(super) struct Ring {
    /// Weights follow the profiles; else all are equal.
    is_weighted: bool,
    /// Where the writers begin, and how many they are.
    first: usize,
    writers: usize,
    readers: usize,
    moves_at: Option<Instant>,
}

impl Ring {
    pub fn new(is_weighted: bool) -> Self {
        Self { is_weighted, first: 0, writers: 0, readers: 0, moves_at: None }
    }

    /// The fewest nodes, from `from` on around, that carry `load` at a share of writes.
    fn needed(view: &View<'_>, live: &[usize], from: usize, percent: f64, load: f64) -> usize {
        let (mut carried, mut count) = (0.0, 0);
        while carried < load && count < live.len() {
            let node = &view.nodes[live[(from + count) % live.len()]];
            carried += node.model.peak(percent);
            count += 1;
        }
        count
    }

    fn turn(&mut self, view: &View<'_>, live: &[usize], percent: f64) {
        let count = live.len();
        let is_due = self.moves_at.is_none_or(|at| view.now >= at);
        let from = if is_due { (self.first + self.writers) % count } else { self.first % count };
        let need = Self::needed(view, live, from, percent, view.demand.writes);
        let writers = count.min(WRITERS_MIN.max(need + 1));
        let readers = Self::needed(view, live, from + writers, percent, view.demand.reads);
        if is_due || writers > self.writers || readers > self.readers {
            (self.first, self.writers, self.readers) = (from, writers, readers);
            self.moves_at = Some(view.now + view.slot_ns);
        }
    }
}

impl Policy for Ring {
    fn plan(&mut self, view: &View<'_>) -> Decision {
        let live: Vec<usize> = (0..view.nodes.len()).filter(|at| view.nodes[*at].is_live).collect();
        let (reads, writes) = (view.demand.reads, view.demand.writes);
        let mut modes = vec![Mode::Mixed; view.nodes.len()];
        if live.len() >= NODES_MIN && reads > 0.0 && writes > 0.0 {
            self.turn(view, &live, 100.0 * writes / (reads + writes));
            for (place, at) in live.iter().enumerate() {
                let ahead = (place + live.len() - self.first % live.len()) % live.len();
                modes[*at] = if ahead < self.writers { Mode::Writes } else { Mode::Reads };
            }
        }
        let mut nodes: Vec<Allotment> =
            modes.iter().map(|mode| Allotment { mode: *mode, ..Allotment::default() }).collect();
        let serves = |mode: Mode, at: &usize| modes[*at] != mode;
        let readers: Vec<usize> =
            live.iter().copied().filter(|at| serves(Mode::Writes, at)).collect();
        let writers: Vec<usize> =
            live.iter().copied().filter(|at| serves(Mode::Reads, at)).collect();
        for (at, weight) in readers.iter().zip(self.weights(view, &readers, 0.0, reads)) {
            nodes[*at].read = weight;
        }
        for (at, weight) in writers.iter().zip(self.weights(view, &writers, 100.0, writes)) {
            nodes[*at].write = weight;
        }
        Decision { nodes, ..Decision::default() }
    }
}

impl Ring {
    fn weights(&self, view: &View<'_>, of: &[usize], percent: f64, load: f64) -> Vec<f64> {
        if !self.is_weighted {
            return vec![1.0; of.len()];
        }
        let nodes: Vec<&NodeView<'_>> = of.iter().map(|at| &view.nodes[*at]).collect();
        equally_late(&nodes, percent, load)
    }
}
