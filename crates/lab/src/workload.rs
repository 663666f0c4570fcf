//! Synthetic workloads: which operation comes next, where, how large and when, from a seed.
//!
//! Invariants: the same seed gives the same operations; every operation lies within the logical
//! space; a flush has no address.

use flash::{Random, SECOND};
use ftl::FastShare;

/// Where the operations go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pattern {
    /// Every place equally likely.
    Uniform,
    /// The place of popularity rank `k` with a probability proportional to `k^-theta`. Ranks are
    /// scattered over the space.
    Zipf {
        /// The exponent: above 0; 0.99 is YCSB's.
        theta: f64,
    },
    /// The same with the ranks in the order of the places: neighbours are about as popular.
    ZipfLocal {
        /// The exponent, as above.
        theta: f64,
    },
    /// The first `fraction` of the space gets `share` of the operations.
    HotCold {
        /// Share of the space that is hot, in 0 to 1.
        fraction: f64,
        /// Share of the operations that go there, in 0 to 1.
        share: f64,
    },
    /// One after the other, again from the start at the end.
    Sequential,
}

/// When operations are submitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// The next one when fewer than `depth` are in flight.
    Closed {
        /// Operations in flight.
        depth: u32,
    },
    /// At exponentially distributed distances, whatever is in flight (Poisson arrivals).
    Open {
        /// Operations a second of virtual time.
        rate: f64,
    },
}

/// A workload. The shares of reads, trims and flushes are probabilities; the rest are writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Probability of a read.
    pub reads: f64,
    /// Probability of a trim.
    pub trims: f64,
    /// Probability of a flush.
    pub flushes: f64,
    /// Share of the writes and trims that are FUA.
    pub fua: f64,
    /// Share of the writes that are atomic.
    pub atomic: f64,
    /// Sizes in blocks, and how often each: the weights need not sum up to anything.
    pub sizes: Vec<(u32, f64)>,
    /// Where.
    pub pattern: Pattern,
    /// When.
    pub arrival: Arrival,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            reads: 0.0,
            trims: 0.0,
            flushes: 0.0,
            fua: 0.0,
            atomic: 0.0,
            sizes: vec![(1, 1.0)],
            pattern: Pattern::Uniform,
            arrival: Arrival::Closed { depth: 32 },
        }
    }
}

impl Workload {
    /// `Err` names the field, its value, what is wrong and a value that works.
    pub fn validate(&self, logical_blocks: u32) -> Result<(), String> {
        let shares = [
            ("reads", self.reads),
            ("trims", self.trims),
            ("flushes", self.flushes),
            ("fua", self.fua),
            ("atomic", self.atomic),
            ("reads + trims + flushes", self.reads + self.trims + self.flushes),
        ];
        for (name, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                return Err(format!("{name} = {value}: a share lies in 0 to 1, for example 0.5"));
            }
        }
        if self.sizes.is_empty() {
            return Err("sizes is empty: give at least one, for example [(1, 1.0)]".into());
        }
        for &(blocks, weight) in &self.sizes {
            if blocks == 0 || blocks > logical_blocks || weight.is_nan() || weight <= 0.0 {
                return Err(format!(
                    "size ({blocks}, {weight}): 1 to {logical_blocks} blocks and a weight above 0, \
                     for example (1, 1.0)"
                ));
            }
        }
        let share_is_legal = |value: f64| (0.0..=1.0).contains(&value);
        match self.pattern {
            Pattern::Zipf { theta } | Pattern::ZipfLocal { theta }
                if !(theta > 0.0 && theta < 10.0) =>
            {
                return Err(format!("theta = {theta}: above 0 and below 10, for example 0.99"));
            }
            Pattern::HotCold { fraction, share }
                if !share_is_legal(fraction) || !share_is_legal(share) =>
            {
                return Err(format!(
                    "hot-cold {fraction}:{share}: both lie in 0 to 1, for example 0.2:0.8"
                ));
            }
            _ => {}
        }
        match self.arrival {
            Arrival::Closed { depth: 0 } => Err("depth = 0: at least 1, for example 32".into()),
            Arrival::Open { rate } if rate.is_nan() || rate <= 0.0 => {
                Err(format!("rate = {rate}: operations a second above 0, for example 10000"))
            }
            _ => Ok(()),
        }
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Read.
    Read,
    /// Write.
    Write {
        /// Durable before the reply.
        fua: bool,
        /// All or nothing.
        atomic: bool,
    },
    /// Trim.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Flush.
    Flush,
}

/// One operation. `lba` and `blocks` are 0 for a flush.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Op {
    /// What.
    pub action: Action,
    /// First logical block.
    pub lba: u32,
    /// How many.
    pub blocks: u32,
}

/// Most blocks of an atomic write (`flash::Operation::Write::atomic`).
const ATOMIC_BLOCKS_MAX: u32 = 64;

/// Shares of the fast tier for so many volumes of one size, whose weights differ; none for one.
pub fn fast_shares(logical_blocks: u32, volumes: u32) -> Vec<FastShare> {
    let size = logical_blocks / volumes.max(1);
    let share = |volume| {
        let rest = if volume == volumes - 1 { logical_blocks % volumes } else { 0 };
        FastShare { first: volume * size, blocks: size + rest, weight: 1 + volume }
    };
    if volumes < 2 { Vec::new() } else { (0..volumes).map(share).collect() }
}

/// Draws operations from a workload.
#[derive(Clone, Debug)]
pub struct Generator {
    workload: Workload,
    logical_blocks: u32,
    /// Running sums of the size weights.
    size_sums: Vec<f64>,
    zipf: Option<Zipf>,
    random: Random,
    next: u32,
    /// No operation is of two of so many volumes; see [`Generator::among`].
    volumes: u32,
}

impl Generator {
    /// Draws from `workload` over `logical_blocks` blocks.
    pub fn new(workload: Workload, logical_blocks: u32, seed: u64) -> Result<Self, String> {
        workload.validate(logical_blocks)?;
        let mut sum = 0.0;
        let size_sums = (workload.sizes.iter())
            .map(|&(_, weight)| {
                sum += weight;
                sum
            })
            .collect();
        let zipf = match workload.pattern {
            Pattern::Zipf { theta } => Some(Zipf::new(logical_blocks, theta)),
            Pattern::ZipfLocal { theta } => {
                Some(Zipf { scatter: 1, ..Zipf::new(logical_blocks, theta) })
            }
            _ => None,
        };
        let random = Random::new(seed);
        Ok(Self { workload, logical_blocks, size_sums, zipf, random, next: 0, volumes: 1 })
    }

    /// The workload it draws from.
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Nanoseconds from one open-loop arrival to the next; 0 in a closed loop.
    pub fn gap_ns(&mut self) -> u64 {
        match self.workload.arrival {
            Arrival::Closed { .. } => 0,
            Arrival::Open { rate } => {
                (-libm::log(1.0 - self.random.fraction()) / rate * SECOND as f64) as u64
            }
        }
    }

    /// The same on volumes of one size, of which an operation is cut off at the end: those of
    /// [`fast_shares`].
    pub fn among(mut self, volumes: u32) -> Self {
        self.volumes = volumes.max(1);
        self
    }

    /// What of `blocks` blocks from `lba` on is of the same volume.
    fn in_volume(&self, lba: u32, blocks: u32) -> u32 {
        let size = self.logical_blocks / self.volumes;
        let volume = (lba / size).min(self.volumes - 1);
        if volume == self.volumes - 1 { blocks } else { blocks.min((volume + 1) * size - lba) }
    }

    /// A sequential pattern goes on from here.
    pub fn start_at(&mut self, lba: u32) {
        self.next = lba;
    }

    /// The next operation.
    pub fn draw(&mut self) -> Op {
        let workload = &self.workload;
        let (reads, trims) = (workload.reads, workload.reads + workload.trims);
        let (flushes, fua, atomic) = (trims + workload.flushes, workload.fua, workload.atomic);
        // A workload of writes only (the common case of WAF runs) draws nothing here.
        let kind = if flushes > 0.0 { self.random.fraction() } else { 1.0 };
        if kind >= trims && kind < flushes {
            return Op { action: Action::Flush, lba: 0, blocks: 0 };
        }
        let blocks = self.size();
        let lba = self.place(blocks);
        let blocks = self.in_volume(lba, blocks);
        if kind < reads {
            return Op { action: Action::Read, lba, blocks };
        }
        let fua = fua > 0.0 && self.random.chance(fua);
        if kind < trims {
            return Op { action: Action::Trim { fua }, lba, blocks };
        }
        let atomic = atomic > 0.0 && blocks <= ATOMIC_BLOCKS_MAX && self.random.chance(atomic);
        Op { action: Action::Write { fua, atomic }, lba, blocks }
    }

    fn size(&mut self) -> u32 {
        let sizes = &self.workload.sizes;
        if sizes.len() == 1 {
            return sizes[0].0;
        }
        let total = self.size_sums[self.size_sums.len() - 1];
        let drawn = self.random.fraction() * total;
        let at = self.size_sums.partition_point(|&sum| sum <= drawn).min(sizes.len() - 1);
        sizes[at].0
    }

    /// A place for `blocks` blocks. Popularity is that of the first block.
    fn place(&mut self, blocks: u32) -> u32 {
        let last = self.logical_blocks - blocks;
        let places = u64::from(last) + 1;
        match self.workload.pattern {
            Pattern::Uniform => self.random.below(places) as u32,
            Pattern::HotCold { fraction, share } => {
                let hot = ((places as f64 * fraction) as u64).clamp(1, places);
                if hot == places || self.random.chance(share) {
                    self.random.below(hot) as u32
                } else {
                    (hot + self.random.below(places - hot)) as u32
                }
            }
            Pattern::Zipf { .. } | Pattern::ZipfLocal { .. } => {
                let zipf = self.zipf.as_ref().expect("made with the generator");
                zipf.draw(&mut self.random).min(last)
            }
            Pattern::Sequential => {
                if self.next > last {
                    self.next = 0;
                }
                let lba = self.next;
                self.next += blocks;
                lba
            }
        }
    }
}

/// Zipf-distributed places by rejection-inversion (Hörmann and Derflinger, 1996): exact for every
/// exponent above 0, constant memory, 1.1 draws or fewer on average.
#[derive(Clone, Debug)]
struct Zipf {
    places: u32,
    theta: f64,
    integral_low: f64,
    integral_high: f64,
    accept: f64,
    /// Multiplier that scatters ranks over the space; has no factor in common with `places`.
    scatter: u64,
}

impl Zipf {
    fn new(places: u32, theta: f64) -> Self {
        let gcd = |mut a: u64, mut b: u64| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        // About the golden section of the space, so that neighbours in rank lie far apart.
        let mut scatter = (f64::from(places) * 0.618_033_988_75) as u64 | 1;
        while gcd(scatter, u64::from(places)) != 1 {
            scatter += 2;
        }
        let mut zipf =
            Self { places, theta, integral_low: 0.0, integral_high: 0.0, accept: 0.0, scatter };
        zipf.integral_low = zipf.integral(1.5) - 1.0;
        zipf.integral_high = zipf.integral(f64::from(places) + 0.5);
        zipf.accept = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        libm::exp(-self.theta * libm::log(x))
    }

    /// ∫ x^-theta dx, written so that it is smooth where theta is 1.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.theta) * log;
        log * if t.abs() > 1e-8 { libm::expm1(t) / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.theta)).max(-1.0);
        let ratio = if t.abs() > 1e-8 { libm::log1p(t) / t } else { 1.0 - t / 2.0 };
        libm::exp(ratio * y)
    }

    fn rank(&self, random: &mut Random) -> u32 {
        loop {
            let span = self.integral_low - self.integral_high;
            let drawn = self.integral_high + random.fraction() * span;
            let x = self.inverse(drawn);
            let rank = (x + 0.5).clamp(1.0, f64::from(self.places)).floor();
            if rank - x <= self.accept || drawn >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u32;
            }
        }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let rank = u64::from(self.rank(random) - 1);
        (rank * self.scatter % u64::from(self.places)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, Arrival, Generator, Pattern, Workload, Zipf};
    use flash::Random;

    #[test]
    fn zipf_ranks_follow_the_law() {
        for theta in [0.5, 0.99, 1.0, 1.2] {
            let (places, draws, seed) = (1000, 400_000, 7);
            let (zipf, mut random) = (Zipf::new(places, theta), Random::new(seed));
            let mut seen = vec![0u32; places as usize + 1];
            for _ in 0..draws {
                seen[zipf.rank(&mut random) as usize] += 1;
            }
            let total: f64 = (1..=places).map(|k| libm::pow(f64::from(k), -theta)).sum();
            for rank in [1u32, 2, 3, 10, 100] {
                let expected = libm::pow(f64::from(rank), -theta) / total * f64::from(draws);
                let spread = 5.0 * expected.sqrt() + 1.0;
                let found = f64::from(seen[rank as usize]);
                assert!(
                    (found - expected).abs() < spread,
                    "theta={theta} rank={rank}: {found} drawn, {expected:.0} expected, seed={seed}"
                );
            }
        }
    }

    #[test]
    fn zipf_scatters_every_rank_to_a_place_of_its_own() {
        let zipf = Zipf::new(997, 1.0);
        let mut seen = vec![false; 997];
        for rank in 0..997u64 {
            seen[(rank * zipf.scatter % 997) as usize] = true;
        }
        assert!(seen.iter().all(|&place| place));
    }

    #[test]
    fn operations_stay_within_the_space_and_keep_the_mix() {
        let workload = Workload {
            reads: 0.5,
            trims: 0.1,
            flushes: 0.05,
            fua: 0.2,
            atomic: 0.3,
            sizes: vec![(1, 3.0), (8, 1.0)],
            ..Workload::default()
        };
        for pattern in [
            Pattern::Uniform,
            Pattern::Sequential,
            Pattern::Zipf { theta: 0.9 },
            Pattern::ZipfLocal { theta: 0.9 },
            Pattern::HotCold { fraction: 0.2, share: 0.8 },
        ] {
            let workload = Workload { pattern, ..workload.clone() };
            let mut generator = Generator::new(workload, 100, 3).expect("a legal workload");
            let (mut reads, mut large) = (0, 0);
            for _ in 0..100_000 {
                let op = generator.draw();
                assert!(op.lba + op.blocks <= 100, "{op:?}");
                assert_eq!(op.action == Action::Flush, op.blocks == 0, "{op:?}");
                reads += u32::from(op.action == Action::Read);
                large += u32::from(op.blocks == 8);
            }
            assert!((49_000..51_000).contains(&reads), "{reads} reads of {pattern:?}");
            assert!((22_500..25_000).contains(&large), "{large} large ones of {pattern:?}");
        }
    }

    #[test]
    fn hot_blocks_get_their_share() {
        let pattern = Pattern::HotCold { fraction: 0.1, share: 0.9 };
        let workload = Workload { pattern, ..Workload::default() };
        let mut generator = Generator::new(workload, 1000, 5).expect("a legal workload");
        let hot = (0..100_000).filter(|_| generator.draw().lba < 100).count();
        assert!((89_500..90_500).contains(&hot), "{hot}");
    }

    #[test]
    fn open_loop_gaps_have_the_mean_of_the_rate() {
        let workload = Workload { arrival: Arrival::Open { rate: 1e6 }, ..Workload::default() };
        let mut generator = Generator::new(workload, 1000, 5).expect("a legal workload");
        let total: u64 = (0..100_000).map(|_| generator.gap_ns()).sum();
        assert!((98_000_000..102_000_000).contains(&total), "{total}");
    }

    #[test]
    fn a_refusal_names_the_field_and_a_value_that_works() {
        let workload = Workload { reads: 1.5, ..Workload::default() };
        let error = Generator::new(workload, 10, 1).expect_err("more than all are reads");
        assert!(error.contains("reads = 1.5") && error.contains("for example"), "{error}");
        let workload = Workload { sizes: vec![(11, 1.0)], ..Workload::default() };
        assert!(Generator::new(workload, 10, 1).is_err());
    }
}
