//! Groups by update interval: blocks that are overwritten equally often live together.

use super::gaps::Gaps;
use super::params::Params;
use super::{Handles, MoveView, Shape, StreamPolicy, WriteView};

/// A block goes to the group of the mean of its last update intervals, whether the host writes it or GC
/// moves it; each group is two octaves wide. One lifetime says little of how long the next will be,
/// as under Zipf a block's lifetimes are spread like those of any chance; their mean says it well. How hot a group
/// may be is counted in overwrites of the volume, so that groups mean the same on a small one.
///
/// The mean is a byte a block: the logarithm of the interval, in eighths of an octave. It is moved by a
/// part of the difference with each overwrite, and rounded up or down by chance, else differences below
/// a step would never add up. When the block was written last needs no table: the band that it lies in says it
/// ([`WriteView::age`]). What GC moves has lived for its age at least, and counts as overwritten no more often
/// than that.
///
/// That is the separation by update frequency of Lomet and Luo ("Efficiently reclaiming space in a log
/// structured store", 2020), with a memory. Their victims, of minimum declining cost, are told by how fast bands
/// lose valid blocks; in groups like these `cost-benefit` chooses about the same ones.
///
/// Groups whose blocks turn out to live equally long share a handle ([`Gaps`]): under uniform writes there is one.
///
/// What is trimmed keeps its mean: an address that a file system uses again has the use that it had.
/// With `chunk` several neighbours share a mean, for less memory and what it then tells.
pub struct Interval {
    groups: u8,
    window: u64,
    chunk_shift: u32,
    /// Logarithm, as in `means`, of the interval at which group 0 ends.
    first_end: u8,
    /// What is taken for the interval of a block that was not overwritten yet.
    unknown: u8,
    /// Of each chunk; [`NONE`] if it was not overwritten yet.
    means: Vec<u8>,
    gaps: Gaps,
}

/// No interval is known.
const NONE: u8 = 0;
/// Steps of an octave, and their logarithm.
const STEPS: u64 = 1 << STEP_BITS;
const STEP_BITS: u32 = 3;
/// Width of a group in steps.
const GROUP_STEPS: u8 = 2 * STEPS as u8;
/// Octaves of intervals.
const OCTAVES: u32 = 32;

/// The logarithm of an interval that is given in eighths of a block.
#[inline]
fn encode(eighths: u64) -> u8 {
    let eighths = eighths.clamp(STEPS + 1, (1 << (OCTAVES + STEP_BITS)) - 1);
    let octave = eighths.ilog2() - STEP_BITS;
    (octave << STEP_BITS) as u8 | (eighths >> octave & (STEPS - 1)) as u8
}

/// The interval of a logarithm, in eighths of a block.
#[inline]
fn decode(mean: u8) -> u64 {
    (STEPS + (u64::from(mean) & (STEPS - 1))) << (mean >> STEP_BITS)
}

impl Interval {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        let groups = params.number("handles", (2, 16), 8)? as u8;
        let window = params.number("window", (1, 64), 4)?;
        let (chunk_shift, chunks) = params.chunk(shape, 1)?;
        let volume = encode(u64::from(shape.blocks) * STEPS);
        // The middle of the groups is where every block is overwritten once in an overwrite of the volume.
        let first_end = volume.saturating_sub((groups / 2 - 1) * GROUP_STEPS);
        let unknown = volume.saturating_add(GROUP_STEPS);
        let (means, gaps) = (vec![NONE; chunks], Gaps::new(groups, shape.blocks));
        Ok(Self { groups, window, chunk_shift, first_end, unknown, means, gaps })
    }

    /// What is known of `lba`.
    #[inline]
    fn mean(&self, lba: u32) -> u8 {
        match self.means[(lba >> self.chunk_shift) as usize] {
            NONE => self.unknown,
            mean => mean,
        }
    }

    /// The mean of `lba` after one more interval.
    #[inline]
    fn learn(&mut self, lba: u32, interval: u64, now: u64) -> u8 {
        let mean = &mut self.means[(lba >> self.chunk_shift) as usize];
        let interval = interval.saturating_mul(STEPS);
        *mean = if *mean == NONE {
            encode(interval)
        } else {
            let old = decode(*mean);
            let new = old - old / self.window + interval / self.window;
            // What lies between two steps goes to either, so that it is right on average.
            let step = 1 << (new.max(1).ilog2().saturating_sub(STEP_BITS));
            let chance = (now as u32 ^ lba.rotate_left(16)).wrapping_mul(0x9e37_79b1);
            encode(new + ((u64::from(chance) * step) >> 32))
        };
        *mean
    }

    /// The group of a mean.
    #[inline]
    fn group(&self, mean: u8) -> u8 {
        let beyond = mean.saturating_sub(self.first_end.saturating_sub(GROUP_STEPS));
        (beyond / GROUP_STEPS).min(self.groups - 1)
    }
}

impl StreamPolicy for Interval {
    fn name(&self) -> &'static str {
        "interval"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.groups, moved: self.groups }
    }

    fn uses_age(&self) -> bool {
        true
    }

    fn warm(&self, lbas: &[u32]) {
        let mean = |lba: u32| self.means.get((lba >> self.chunk_shift) as usize);
        super::warm_each(lbas, |lba| mean(lba).map_or(0, |&mean| mean.into()));
    }

    /// On a small device GC's share one.
    fn handles_least(&self) -> u8 {
        self.groups + 1
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let before = self.mean(write.lba);
        let mean = match write.age {
            Some(age) => {
                self.gaps.overwritten(self.group(before), age);
                self.learn(write.lba, age, write.now)
            }
            None => before,
        };
        self.gaps.written();
        self.gaps.handle(self.group(mean), write.handles.host)
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        let known = decode(self.mean(moved.lba));
        let lived = moved.age.saturating_mul(STEPS);
        self.gaps.handle(self.group(encode(known.max(lived))), moved.handles.moved)
    }

    fn memory_bytes(&self) -> u64 {
        self.means.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Handles, MoveView, Origin, Shape, StreamPolicy, WriteView, params::Params};
    use super::{GROUP_STEPS, Interval, STEPS, decode, encode};
    use flash::{Hint, Random};

    fn made(text: &str, blocks: u32) -> Interval {
        let shape = Shape { blocks, handles: 1 };
        Interval::new(&mut Params::parse(text).unwrap(), shape).unwrap()
    }

    fn write(policy: &mut Interval, lba: u32, now: u64, age: Option<u64>) -> u8 {
        let handles = policy.handles();
        let hint = Hint::default();
        policy.place_write(&WriteView { lba, continues: false, hint, now, age, handles })
    }

    #[test]
    fn an_interval_and_its_logarithm_are_an_eighth_apart_at_most_and_rise_together() {
        for byte in 1..=u8::MAX {
            assert_eq!(encode(decode(byte)), byte);
            assert!(byte == 1 || decode(byte) > decode(byte - 1));
        }
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            let eighths = (random.next_u64() >> (29 + random.below(30))).max(STEPS + 1);
            let (below, step) = (decode(encode(eighths)), eighths / STEPS);
            assert!(below <= eighths && eighths - below <= step, "{eighths}: {below}");
        }
        assert_eq!(
            (encode(0), encode(u64::MAX)),
            (1, u8::MAX),
            "what is known is never as unknown"
        );
    }

    #[test]
    fn the_mean_of_a_block_is_that_of_its_intervals_though_each_tells_little() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut policy = made("interval:window=8", 1 << 16);
            let mean = 1 << (4 + seed % 12);
            let (mut now, mut sum, rounds) = (0, 0.0, 20_000);
            for _ in 0..rounds {
                let interval = 1 + random.below(2 * mean - 1);
                now += interval;
                sum += decode(policy.learn(7, interval, now)) as f64 / STEPS as f64;
            }
            let off = sum / f64::from(rounds) / mean as f64 - 1.0;
            assert!(off.abs() < 0.05, "seed={seed}: {off:+.3} off {mean}");
        }
    }

    #[test]
    fn a_block_is_in_the_group_of_its_interval_whoever_writes_it() {
        let blocks = 1 << 16;
        let mut policy = made("interval", blocks);
        for (octave, group) in
            [(4, 0), (9, 0), (10, 1), (13, 2), (15, 3), (16, 4), (19, 5), (22, 7)]
        {
            let (lba, age) = (octave, 1 << octave);
            assert_eq!(write(&mut policy, lba, 1 << 30, Some(age)), group, "2^{octave}");
            let handles = policy.handles();
            let view = MoveView { lba, now: 1 << 30, age: 1, from: Origin::Unknown, handles };
            assert_eq!(policy.place_move(&view), group, "2^{octave}");
            // Who lived longer than that is colder than it was.
            let view = MoveView { age: age << 2, ..view };
            assert_eq!(policy.place_move(&view), if octave < 8 { 0 } else { (group + 1).min(7) });
            // With fewer handles neighbours share one.
            let few = Handles { host: 4, moved: 4 };
            let view = MoveView { age: 1, handles: few, ..view };
            assert_eq!(policy.place_move(&view), group / 2);
        }
    }

    #[test]
    fn what_was_never_overwritten_is_cold_until_it_is() {
        let mut policy = made("interval", 1 << 16);
        assert_eq!(write(&mut policy, 3, 1, None), 5, "as if overwritten every fourth time");
        assert_eq!(write(&mut policy, 3, 101, Some(100)), 0);
        // A block that was trimmed is what it was.
        policy.trimmed(3, 1);
        assert_eq!(write(&mut policy, 3, 1000, None), 0);
    }

    #[test]
    fn a_block_that_turned_hot_or_cold_is_in_its_new_group_after_two_windows() {
        let mut policy = made("interval", 1 << 16);
        let mut now = 0;
        let mut go = |policy: &mut Interval, age: u64, times: u32| {
            (0..times).fold(0, |_, _| {
                now += age;
                write(policy, 9, now, Some(age))
            })
        };
        assert_eq!(go(&mut policy, 1 << 17, 8), 4);
        let falling: Vec<u8> = (0..16).map(|_| go(&mut policy, 1 << 11, 1)).collect();
        assert!(falling.is_sorted_by(|one, other| one >= other), "{falling:?}");
        assert!(falling[8] < 4 && falling[15] <= 2, "{falling:?}");
        // One long interval says more: half of it at least was spent cold.
        assert!(go(&mut policy, 1 << 17, 2) >= 3);
    }

    #[test]
    fn neighbours_share_a_mean_if_they_are_told_to() {
        let mut policy = made("interval:chunk=64KiB", 1 << 16);
        assert_eq!(policy.memory_bytes(), 1 << 12);
        write(&mut policy, 16, 100, Some(64));
        assert_eq!(policy.mean(31), encode(64 * STEPS));
        assert_eq!(policy.mean(32), policy.unknown);
        assert_eq!(policy.first_end, encode(STEPS << 16) - 3 * GROUP_STEPS);
    }
}
