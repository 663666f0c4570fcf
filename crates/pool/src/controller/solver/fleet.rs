//! All drives that a plan is made for, and what is asked of them.

use super::shape::{RATE, Shape};

/// One drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drive {
    /// Its kind: a place in [`Fleet::shapes`].
    pub shape: usize,
    /// Of what its kind carries it carries so much; 0 if it is gone.
    pub scale: f64,
    /// What it fails together with.
    pub domain: usize,
    /// At most so many reads a second go there.
    pub reads_max: f64,
    /// At most so many writes a second go there: wear, room.
    pub writes_max: f64,
}

/// The drives of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// Kinds of drives.
    pub shapes: Vec<Shape>,
    /// The drives.
    pub drives: Vec<Drive>,
    /// Failure domains: those of drives are below.
    pub domains: usize,
}

impl Fleet {
    /// Domains of drives that carry anything.
    pub fn domains_live(&self) -> usize {
        let mut live = vec![false; self.domains];
        for drive in self.drives.iter().filter(|drive| drive.scale > 0.0 && drive.writes_max > 0.0)
        {
            live[drive.domain] |= !self.shapes[drive.shape].is_empty();
        }
        live.iter().filter(|live| **live).count()
    }
}

/// What the drives together are to do, a second. Build it with [`Demand::of_clients`] from what clients ask.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Demand {
    /// Reads of all drives.
    pub reads: f64,
    /// Writes of all drives: every copy counts.
    pub writes: f64,
}

impl Demand {
    /// What reads and writes of clients become at the drives: each write goes to all replicas, and for each
    /// write GC moves `waf - 1` more, which it reads first.
    pub fn of_clients(reads: f64, writes: f64, replicas: u32, waf: f64) -> Self {
        let moved = writes * (waf - 1.0).max(0.0);
        Self { reads: reads + moved, writes: f64::from(replicas) * (writes + moved) }
    }
}

/// What a plan has to keep to besides what drives carry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Copies of a block.
    pub replicas: u32,
    /// Only who holds a block can serve its reads. In the steady state a drive holds as large a part of the
    /// blocks as of the writes; where all blocks are as likely to be read, its part of the reads is at most
    /// `replicas` times that.
    pub is_local: bool,
    /// No two copies of a block in one failure domain: of the writes each gets at most its `replicas`-th part.
    pub is_apart: bool,
    /// The search ends when the plan costs at most so much more than the best, as a part.
    pub gap_max: f64,
}

impl Default for Terms {
    fn default() -> Self {
        Self { replicas: 2, is_local: true, is_apart: true, gap_max: 5e-4 }
    }
}

/// A problem in the solver's units: what it is made of, and the bounds that follow from its terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Problem<'a> {
    pub fleet: &'a Fleet,
    pub demand: Demand,
    /// Reads of a drive for each of its writes, at most.
    pub reads_per_write: f64,
    /// Writes of a domain.
    pub domain_writes_max: f64,
    /// Demand as a multiple of what was asked; see [`Problem::times`].
    terms: Terms,
}

/// Of a kind that is not asked for at all so much is planned for each of the other: every plan has weights
/// for both.
const TRACE: f64 = 1e-6;

impl<'a> Problem<'a> {
    pub fn new(fleet: &'a Fleet, demand: Demand, terms: Terms) -> Self {
        let (reads, writes) = (demand.reads / RATE, demand.writes / RATE);
        let demand = Demand { reads: reads.max(writes * TRACE), writes: writes.max(reads * TRACE) };
        let copies = f64::from(terms.replicas);
        let reads_per_write =
            if terms.is_local { copies * demand.reads / demand.writes } else { f64::INFINITY };
        let domain_writes_max = if terms.is_apart { demand.writes / copies } else { f64::INFINITY };
        Self { fleet, demand, reads_per_write, domain_writes_max, terms }
    }

    /// The same, were so many times as much asked.
    pub fn times(&self, times: f64) -> Self {
        let demand =
            Demand { reads: self.demand.reads * times, writes: self.demand.writes * times };
        let domain_writes_max = self.domain_writes_max * times;
        Self { demand, domain_writes_max, ..*self }
    }

    pub fn gap_max(&self) -> f64 {
        self.terms.gap_max
    }

    /// At most so many reads and writes of a drive, as parts of its scale.
    pub fn caps(&self, drive: &Drive) -> (f64, f64) {
        let writes = (drive.writes_max / RATE).min(self.domain_writes_max);
        (drive.reads_max / RATE / drive.scale, writes / drive.scale)
    }
}
