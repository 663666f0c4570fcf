//! MiDAS (FAST'24): a chain of groups by age, as many and as large as the update intervals ask for.

use super::params::Params;
use super::{Handles, MoveView, Shape, StreamPolicy, WriteView};

/// Blocks that were overwritten young time and again go to the *hot* group, any other to the first
/// group of a chain; what GC moves goes down the chain as it ages, but stays with its like while it is
/// hot. Where the groups end, and how many
/// there are, is chosen anew with every `epoch` written, by a model of the chain: from the intervals at
/// which blocks were overwritten follows how much of a group is still valid when it has reached its
/// age, and from that the write amplification of any ends ([`Model::waf`]).
///
/// What differs from the published design:
/// - There a group is cleaned first in, first out when it exceeds its size. Here the victim policy
///   chooses among all bands; a group is a range of ages, and a block goes to the group of its
///   age, so it may stay or pass over groups.
/// - Intervals are told by the band that a block is overwritten in ([`WriteView::age`]), not by a sample
///   of addresses with a table of its own.
/// - A count of being hot, two bits, is shared by [`COUNTED`] neighbours: 16 MiB for a device of 1 TiB.
/// - The ends of the hot and of the first group are the same, and the model knows only a chain: where no
///   chain pays, as under two classes of even heat with little spare, nothing is hot. What GC finds in a hot band has a group of its own
///   and is a little less hot for it; there it joins the chain.
pub struct Midas {
    moved: u8,
    /// Two bits for every [`COUNTED`] blocks.
    hot: Vec<u8>,
    /// Overwrites by interval, see [`bucket`]; those before the last epoch count half, and so on.
    intervals: [u32; BUCKETS],
    epoch: u64,
    written: u64,
    model: Model,
    /// Ages at which the groups but the last end, rising; the first is that of the hot group, too.
    ends: Vec<u64>,
}

/// What the model knows of the device.
struct Model {
    /// Logical blocks, all of them live.
    live: f64,
    /// Slots.
    slots: f64,
    /// Share of the blocks that live longer than the start of each bucket.
    survive: [f64; BUCKETS],
    /// Blocks that are alive at an age below the start of each bucket.
    alive: [f64; BUCKETS],
}

/// Blocks that share a count of being hot.
const COUNTED: u32 = 4;
/// Counts in a byte.
const COUNTS: u32 = 4;
/// Half octaves of intervals up to 2^40 blocks, 4 PiB.
const BUCKETS: usize = 80;
/// From this count on a block is hot.
const HOT: u8 = 3;
/// A further group must save this share of what is written.
const GAIN_MIN: f64 = 0.005;
/// Without so many intervals the groups stay as they are.
const INTERVALS_MIN: u32 = 256;

/// The bucket of an interval.
fn bucket(interval: u64) -> usize {
    let interval = interval.max(2);
    let octave = interval.ilog2();
    (2 * octave as usize + (interval >> (octave - 1) & 1) as usize).min(BUCKETS - 1)
}

/// The least interval of a bucket.
fn start(bucket: usize) -> u64 {
    (2 + (bucket as u64 & 1)) << (bucket / 2) >> 1
}

impl Midas {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        let handles = params.number("handles", (3, 16), 8)?;
        let epoch = params.blocks("epoch", u64::from(shape.blocks / 4).max(1024))?;
        let spare = params.number("spare", (1, 400), 10)?;
        let live = f64::from(shape.blocks);
        let slots = live * (1.0 + spare as f64 / 100.0);
        let counts = shape.blocks.div_ceil(COUNTED).div_ceil(COUNTS);
        let (survive, alive) = ([0.0; BUCKETS], [0.0; BUCKETS]);
        Ok(Self {
            moved: handles as u8 - 2,
            hot: vec![0; counts as usize],
            intervals: [0; BUCKETS],
            epoch,
            written: 0,
            model: Model { live, slots, survive, alive },
            ends: Vec::with_capacity(handles as usize),
        })
    }

    /// Changes a block's count of being hot; the new one.
    fn count(&mut self, lba: u32, change: impl FnOnce(u8) -> u8) -> u8 {
        let at = lba / COUNTED;
        let shift = at % COUNTS * 2;
        let byte = &mut self.hot[(at / COUNTS) as usize];
        let count = *byte >> shift & 3;
        let next = change(count);
        *byte ^= (count ^ next) << shift;
        next
    }

    /// Chooses the ends anew from the intervals that were seen.
    fn adapt(&mut self) {
        self.written = 0;
        if self.intervals.iter().sum::<u32>() < INTERVALS_MIN {
            return;
        }
        self.model.learn(&self.intervals);
        self.intervals.iter_mut().for_each(|count| *count /= 2);
        // One of the groups is for what is hot.
        let ends = self.model.best(usize::from(self.moved).saturating_sub(1).max(1));
        self.ends.clear();
        self.ends.extend(ends.into_iter().map(start));
    }
}

impl Model {
    fn learn(&mut self, intervals: &[u32; BUCKETS]) {
        let all: f64 = intervals.iter().map(|&count| f64::from(count)).sum();
        let (mut longer, mut alive) = (all, 0.0);
        for (at, &count) in intervals.iter().enumerate() {
            self.survive[at] = longer / all;
            self.alive[at] = alive;
            longer -= f64::from(count);
            let width = start(at + 1) - start(at);
            alive += (self.survive[at] + longer / all) / 2.0 * width as f64;
        }
    }

    /// Slots written for one that the host writes, if the groups end at the starts of these buckets,
    /// which rise: what is valid at the end of a group is written to the next; the last one takes the
    /// space that is left and is cleaned at the valid ratio which that gives it.
    fn waf(&self, ends: &[usize]) -> f64 {
        let (mut waf, mut slots, mut before) = (1.0, self.slots, 0);
        for &end in ends {
            let coming = if before == 0 { 1.0 } else { self.survive[before] };
            slots -= coming * (start(end) - if before == 0 { 0 } else { start(before) }) as f64;
            waf += self.survive[end];
            before = end;
        }
        let (coming, younger) =
            if before == 0 { (1.0, 0.0) } else { (self.survive[before], self.alive[before]) };
        let live = (self.live - younger).max(0.0);
        if slots <= live {
            return f64::INFINITY;
        }
        let valid = valid_when_cleaned(live / slots);
        waf + coming * valid / (1.0 - valid)
    }

    /// The ends of at most so many groups behind which another begins: one more as long as it pays,
    /// each where it pays most.
    fn best(&self, most: usize) -> Vec<usize> {
        let mut ends: Vec<usize> = Vec::with_capacity(most);
        let mut waf = self.waf(&ends);
        while ends.len() < most {
            let Some((more, at)) = self.best_further(&ends) else { break };
            if more >= waf * (1.0 - GAIN_MIN) {
                break;
            }
            ends.insert(ends.partition_point(|&end| end < at), at);
            waf = more;
            // Each of the others may lie better now.
            for index in 0..ends.len() {
                let old = ends.remove(index);
                let (better, at) = self.best_further(&ends).unwrap_or((f64::INFINITY, old));
                let at = if better < waf { at } else { old };
                waf = waf.min(better);
                ends.insert(ends.partition_point(|&end| end < at), at);
            }
        }
        ends
    }

    /// The least that one more end leads to, and where that is.
    fn best_further(&self, ends: &[usize]) -> Option<(f64, usize)> {
        let mut best: Option<(f64, usize)> = None;
        let mut tried = Vec::with_capacity(ends.len() + 1);
        for at in 1..BUCKETS {
            let place = ends.partition_point(|&end| end < at);
            if ends.get(place) == Some(&at) {
                continue;
            }
            tried.clear();
            tried.extend_from_slice(ends);
            tried.insert(place, at);
            let waf = self.waf(&tried);
            if best.is_none_or(|(least, _)| waf < least) {
                best = Some((waf, at));
            }
        }
        best.filter(|(waf, _)| waf.is_finite())
    }
}

/// The valid ratio of bands that are cleaned, of a group that is valid by `used` on average and whose
/// blocks are all as likely to be overwritten: the solution v of used = (v - 1) / ln v, as a table.
fn valid_when_cleaned(used: f64) -> f64 {
    const STEP: f64 = 0.05;
    const VALID: [f64; 21] = [
        0.0, 0.0, 0.0, 0.001, 0.007, 0.02, 0.041, 0.07, 0.107, 0.152, 0.203, 0.261, 0.324, 0.393,
        0.467, 0.546, 0.629, 0.715, 0.804, 0.9, 1.0,
    ];
    let place = used.clamp(0.0, 0.999) / STEP;
    let below = (place as usize).min(VALID.len() - 2);
    VALID[below] + (VALID[below + 1] - VALID[below]) * (place - below as f64)
}

impl StreamPolicy for Midas {
    fn name(&self) -> &'static str {
        "midas"
    }

    fn handles(&self) -> Handles {
        Handles { host: 2, moved: self.moved }
    }

    fn uses_age(&self) -> bool {
        true
    }

    fn warm(&self, lbas: &[u32]) {
        super::warm_each(lbas, |lba| {
            self.hot.get((lba / COUNTED / COUNTS) as usize).map_or(0, |&counts| counts.into())
        });
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        self.written += 1;
        if self.written >= self.epoch {
            self.adapt();
        }
        let young = self.ends.first().copied().unwrap_or(0);
        let next = self.count(write.lba, |count| match write.age {
            Some(age) if age < young => (count + 1).min(HOT),
            Some(_) => count.saturating_sub(1),
            None => count,
        });
        if let Some(age) = write.age {
            self.intervals[bucket(age)] += 1;
        }
        u8::from(next < HOT).min(write.handles.host - 1)
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        let last = moved.handles.moved - 1;
        let mut hot = false;
        self.count(moved.lba, |count| {
            hot = count == HOT;
            count - u8::from(hot)
        });
        if hot {
            return 0;
        }
        // Behind the first group, which nothing is moved to.
        let older = self.ends.iter().skip(1).take_while(|&&end| moved.age >= end).count();
        (1 + older as u8).min(last)
    }

    fn trimmed(&mut self, first: u32, blocks: u32) {
        // What is written next has nothing to do with what is gone.
        let from = first.div_ceil(COUNTED * COUNTS) as usize;
        let end = ((u64::from(first) + u64::from(blocks)) / u64::from(COUNTED * COUNTS)) as usize;
        if from < end {
            self.hot[from..end].fill(0);
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.hot.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Origin, Shape, params::Params};
    use super::*;
    use flash::Hint;

    fn midas(text: &str, blocks: u32) -> Midas {
        Midas::new(&mut Params::parse(text).unwrap(), Shape { blocks, handles: 1 }).unwrap()
    }

    fn write(lba: u32, age: Option<u64>, midas: &mut Midas) -> u8 {
        let handles = midas.handles();
        let hint = Hint::default();
        midas.place_write(&WriteView { lba, continues: false, hint, now: 0, age, handles })
    }

    #[test]
    fn every_interval_lies_in_the_bucket_that_starts_at_or_below_it() {
        for interval in (2..5000).chain([1 << 20, (1 << 20) - 1, 1 << 39, 3 << 38]) {
            let at = bucket(interval);
            assert!(start(at) <= interval && interval < start(at + 1), "{interval}: bucket {at}");
        }
        assert_eq!(bucket(0), bucket(2));
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_model_puts_an_end_behind_the_intervals_of_a_hot_part() {
        // Nine of ten overwrites come after about 1000 blocks, the rest after 65536.
        let mut policy = midas("midas:epoch=400MiB", 16_384);
        for lba in 0..1000 {
            let age = if lba % 10 == 0 { 65_536 } else { 1000 };
            write(lba, Some(age), &mut policy);
        }
        assert!(policy.ends.is_empty(), "one group until something is known");
        policy.adapt();
        let first = policy.ends[0];
        assert!(first > 1000 && first < 65_536, "{:?}", policy.ends);
        let ends: Vec<usize> = policy.ends.iter().map(|&end| bucket(end)).collect();
        assert!(policy.model.waf(&ends) < 0.5 * policy.model.waf(&[]), "{ends:?}");
    }

    #[test]
    fn data_overwritten_young_three_times_is_hot_until_it_is_not() {
        let mut policy = midas("midas", 1 << 20);
        policy.ends = vec![100, 1000];
        let ages = [99, 1, 50, 50, 100, 99];
        let classes = ages.map(|age| write(8, Some(age), &mut policy));
        assert_eq!(classes, [1, 1, 0, 0, 1, 0]);
        policy.trimmed(0, 16);
        assert_eq!(write(8, None, &mut policy), 1);
    }

    #[test]
    fn what_gc_moves_goes_down_the_chain_as_it_ages() {
        let mut policy = midas("midas:handles=5", 1 << 20);
        policy.ends = vec![100, 1000, 10_000];
        let handles = policy.handles();
        assert_eq!(handles, Handles { host: 2, moved: 3 });
        let place = |age| {
            let from = Origin::Host(1);
            policy.place_move(&MoveView { lba: 0, now: 0, age, from, handles })
        };
        let mut place = place;
        assert_eq!([50, 999, 1000, 9999, 10_000, 1 << 40].map(&mut place), [1, 1, 2, 2, 2, 2]);
    }

    #[test]
    fn what_is_still_hot_when_gc_finds_it_stays_with_its_like_once() {
        let mut policy = midas("midas", 1 << 20);
        policy.ends = vec![100, 1000];
        for _ in 0..3 {
            write(8, Some(50), &mut policy);
        }
        let handles = policy.handles();
        let view = MoveView { lba: 8, now: 0, age: 150, from: Origin::Host(0), handles };
        assert_eq!([(); 2].map(|()| policy.place_move(&view)), [0, 1]);
    }
}
