//! Which of a row of groups deserve a handle of their own.

/// Groups in the order of how long their blocks are thought to live; most of them.
pub(super) const GROUPS_MAX: usize = super::HANDLES_MAX as usize;

/// Two neighbours are told apart if the blocks of one do live longer than those of the other: an open band
/// for each is lost to GC, and data sorted by noise gains nothing for it. What is compared is not what the
/// groups were made by, but how long their blocks lived *after* they were put there: if all blocks are
/// overwritten equally often, the next interval is the same in every group, however far apart the last ones
/// were.
///
/// Of fewer handles than groups the widest gaps get them.
#[derive(Debug)]
pub(super) struct Gaps {
    groups: usize,
    /// Of each group: overwrites of its blocks and the sum of their intervals, both halved at each look.
    seen: [(u64, u64); GROUPS_MAX],
    /// There is a gap before this group.
    open: [bool; GROUPS_MAX],
    /// By the number of handles there are, the handle of each group.
    handles: [[u8; GROUPS_MAX]; GROUPS_MAX + 1],
    /// Writes until the next look, and from one to the next.
    left: u64,
    every: u64,
}

/// Overwrites of a group that tell its mean interval well enough: to an eighth, as these are spread like those of
/// any chance.
const SEEN_LEAST: u64 = 64;
/// Fewest writes from one look to the next.
const EVERY_LEAST: u64 = 4096;
/// Sixteenths of the lower mean interval by which the upper one is a gap beyond it, and ceases to be one: what
/// goes to and fro leaves open bands behind.
const OPENS: u64 = 24;
const CLOSES: u64 = 20;

impl Gaps {
    /// For so many groups of a volume of so many blocks. Until something is known, all are told apart.
    pub fn new(groups: u8, blocks: u32) -> Self {
        let groups = usize::from(groups);
        let every = u64::from(blocks).max(EVERY_LEAST);
        let spread = |handles: usize| {
            let mut of = [0; GROUPS_MAX];
            for (group, handle) in of.iter_mut().enumerate().take(groups) {
                *handle = (group * handles.min(groups) / groups) as u8;
            }
            of
        };
        Self {
            groups,
            seen: [(0, 0); GROUPS_MAX],
            open: [true; GROUPS_MAX],
            handles: std::array::from_fn(spread),
            left: every,
            every,
        }
    }

    /// The handle of `group`, of so many that there are.
    #[inline]
    pub fn handle(&self, group: u8, handles: u8) -> u8 {
        self.handles[usize::from(handles).min(GROUPS_MAX)][usize::from(group)]
    }

    /// A block that was in `group` is overwritten, after `interval`.
    #[inline]
    pub fn overwritten(&mut self, group: u8, interval: u64) {
        let (count, sum) = &mut self.seen[usize::from(group)];
        *count += 1;
        *sum = sum.saturating_add(interval);
    }

    /// A block is written.
    #[inline]
    pub fn written(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.every;
            self.look();
        }
    }

    fn look(&mut self) {
        if let Some(gaps) = self.gaps() {
            for (group, open) in self.open.iter_mut().enumerate() {
                *open = gaps[group] >= if *open { CLOSES } else { OPENS };
            }
            for handles in 1..=GROUPS_MAX {
                self.handles[handles] = self.spread(&gaps, handles);
            }
        }
        for (count, sum) in &mut self.seen {
            (*count, *sum) = (*count / 2, *sum / 2);
        }
    }

    /// How wide the gap before each group is, in sixteenths; `None` if no group is known.
    fn gaps(&self) -> Option<[u64; GROUPS_MAX]> {
        let known = |group: &usize| self.seen[*group].0 >= SEEN_LEAST;
        let last = (0..self.groups).rev().find(known)?;
        let mut gaps = [0; GROUPS_MAX];
        let mut below: Option<u64> = None;
        for group in (0..=last).filter(known) {
            let (count, sum) = self.seen[group];
            let mean = (sum / count).max(1);
            gaps[group] = below.map_or(0, |below| mean.saturating_mul(16) / below);
            below = Some(mean);
        }
        // What lies beyond is hardly ever overwritten: it is colder than all that is.
        if last + 1 < self.groups {
            gaps[last + 1] = u64::MAX;
        }
        Some(gaps)
    }

    /// The handle of each group if there are so many handles.
    fn spread(&self, gaps: &[u64; GROUPS_MAX], handles: usize) -> [u8; GROUPS_MAX] {
        let mut widest: Vec<usize> = (1..self.groups).filter(|&group| self.open[group]).collect();
        widest.sort_by_key(|&group| (std::cmp::Reverse(gaps[group]), group));
        widest.truncate(handles - 1);
        let before = |group: usize| widest.iter().filter(|&&gap| gap <= group).count() as u8;
        std::array::from_fn(before)
    }
}

#[cfg(test)]
mod tests {
    use super::{GROUPS_MAX, Gaps};

    /// Handles of four groups, the intervals of whose blocks are these, with so many handles.
    fn handles(gaps: &mut Gaps, intervals: [u64; 4], handles: u8) -> [u8; 4] {
        for _ in 0..1024 {
            for (group, interval) in (0..).zip(intervals) {
                if interval > 0 {
                    gaps.overwritten(group, interval);
                }
                gaps.written();
            }
        }
        [0, 1, 2, 3].map(|group| gaps.handle(group, handles))
    }

    #[test]
    fn groups_share_a_handle_if_their_blocks_live_equally_long() {
        let mut gaps = Gaps::new(4, 1);
        assert_eq!([0, 1, 2, 3].map(|group| gaps.handle(group, 4)), [0, 1, 2, 3], "at first");
        assert_eq!(handles(&mut gaps, [100, 110, 105, 100], 4), [0, 0, 0, 0]);
        assert_eq!(handles(&mut gaps, [100, 110, 1000, 1000], 4), [0, 0, 1, 1]);
        for _ in 0..8 {
            handles(&mut gaps, [10, 100, 1000, 10_000], 4);
        }
        assert_eq!(handles(&mut gaps, [10, 100, 1000, 10_000], 4), [0, 1, 2, 3]);
    }

    #[test]
    fn of_few_handles_the_widest_gaps_get_them() {
        for (count, wanted) in [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (3, [0, 0, 1, 2])] {
            let mut gaps = Gaps::new(4, 1);
            assert_eq!(handles(&mut gaps, [10, 20, 400, 1600], count), wanted, "{count}");
        }
        let gaps = Gaps::new(8, 1);
        assert_eq!([0, 1, 6, 7].map(|group| gaps.handle(group, 4)), [0, 0, 3, 3], "at first");
        assert_eq!((0..GROUPS_MAX as u8).map(|group| gaps.handle(group, 1)).max(), Some(0));
    }

    #[test]
    fn what_is_never_overwritten_is_apart_from_what_is_and_needs_one_handle() {
        let mut gaps = Gaps::new(4, 1);
        assert_eq!(handles(&mut gaps, [0, 50, 0, 0], 4), [0, 0, 1, 1]);
        let mut gaps = Gaps::new(4, 1);
        assert_eq!(handles(&mut gaps, [0, 0, 0, 0], 4), [0, 1, 2, 3], "nothing is known");
    }

    #[test]
    fn a_gap_closes_later_than_it_opens() {
        let mut gaps = Gaps::new(4, 1);
        assert_eq!(handles(&mut gaps, [100, 140, 140, 140], 4), [0, 1, 1, 1], "it was open");
        for _ in 0..8 {
            handles(&mut gaps, [100, 100, 100, 100], 4);
        }
        assert_eq!(handles(&mut gaps, [100, 140, 140, 140], 4), [0, 0, 0, 0], "it was not");
        for _ in 0..8 {
            handles(&mut gaps, [100, 160, 160, 160], 4);
        }
        assert_eq!(handles(&mut gaps, [100, 160, 160, 160], 4), [0, 1, 1, 1]);
    }
}
