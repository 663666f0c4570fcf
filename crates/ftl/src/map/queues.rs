//! Which piece of the map leaves DRAM when another one comes: 2Q (Johnson and Shasha, 1994) with a CLOCK for
//! the pieces in steady use.
//!
//! A piece that comes stays among the *recent* ones, in the order of their coming, and however often
//! it is used there it leaves in that order: a scan, or a long sequential read that uses a piece a
//! thousand times in a row and never again, pushes out nothing but its like. One that is wanted
//! again soon after it left goes to the *steady* ones, of which the first that was not used since
//! the hand came by leaves.

use std::collections::VecDeque;

/// Share of the frames for recent pieces, as a divisor.
const RECENT_SHARE: u32 = 5;

/// One bit for each of many.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    pub fn new(count: u32) -> Self {
        Self { words: vec![0; count.div_ceil(64) as usize] }
    }

    pub fn get(&self, index: u32) -> bool {
        self.words[index as usize / 64] >> (index % 64) & 1 != 0
    }

    pub fn set(&mut self, index: u32, value: bool) {
        let (word, bit) = (&mut self.words[index as usize / 64], 1 << (index % 64));
        if value { *word |= bit } else { *word &= !bit }
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Moves every set bit here from `other`.
    pub fn take(&mut self, other: &mut Self) {
        for (word, from) in self.words.iter_mut().zip(&mut other.words) {
            *word |= std::mem::take(from);
        }
    }
}

/// How a frame is used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Heat {
    /// It came lately: what uses it says little.
    #[default]
    Recent,
    /// Not used since the hand came by.
    Cool,
    Warm,
}

#[derive(Clone, Debug)]
pub(super) struct Queues {
    recent: VecDeque<u32>,
    steady: VecDeque<u32>,
    recent_max: usize,
    /// Pieces that left `recent` last, and whether a piece is one of them.
    left: VecDeque<u32>,
    left_max: usize,
    has_left: Bits,
    pub heat: Vec<Heat>,
}

impl Queues {
    pub fn new(frames: u32, pieces: u32) -> Self {
        Self {
            recent: VecDeque::new(),
            steady: VecDeque::new(),
            recent_max: (frames / RECENT_SHARE) as usize,
            left: VecDeque::new(),
            left_max: frames as usize,
            has_left: Bits::new(pieces),
            heat: vec![Heat::Recent; frames as usize],
        }
    }

    /// Most bytes of DRAM for each frame, and for each piece.
    pub const BYTES_PER_FRAME: u64 = 9;
    pub const BITS_PER_PIECE: u64 = 1;

    /// `piece` is in `frame` now.
    pub fn add(&mut self, frame: u32, piece: u32) {
        if self.has_left.get(piece) {
            // It stays on the list of those that left, as another bit would be needed to find it.
            self.has_left.set(piece, false);
            self.heat[frame as usize] = Heat::Cool;
            self.steady.push_back(frame);
        } else {
            self.heat[frame as usize] = Heat::Recent;
            self.recent.push_back(frame);
        }
    }

    /// `frame` was used.
    #[inline]
    pub fn touch(&mut self, frame: u32) {
        let heat = &mut self.heat[frame as usize];
        if *heat == Heat::Cool {
            *heat = Heat::Warm;
        }
    }

    /// The frame that leaves, of those that `may_leave`; it is on no queue any more. `piece_of` a
    /// frame is what it holds.
    pub fn evict(
        &mut self,
        may_leave: impl Fn(u32) -> bool,
        piece_of: impl Fn(u32) -> u32,
    ) -> Option<u32> {
        if self.recent.len() > self.recent_max
            && let Some(frame) = self.evict_recent(&may_leave)
        {
            self.note_left(piece_of(frame));
            return Some(frame);
        }
        if let Some(frame) = self.evict_steady(&may_leave) {
            return Some(frame);
        }
        let frame = self.evict_recent(&may_leave)?;
        self.note_left(piece_of(frame));
        Some(frame)
    }

    fn evict_recent(&mut self, may_leave: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.recent.iter().position(|&frame| may_leave(frame))?;
        self.recent.remove(at)
    }

    fn evict_steady(&mut self, may_leave: impl Fn(u32) -> bool) -> Option<u32> {
        // The second time round every frame is cool.
        for _ in 0..2 * self.steady.len() {
            let frame = self.steady.pop_front()?;
            let heat = &mut self.heat[frame as usize];
            if may_leave(frame) && *heat == Heat::Cool {
                return Some(frame);
            }
            *heat = Heat::Cool;
            self.steady.push_back(frame);
        }
        None
    }

    fn note_left(&mut self, piece: u32) {
        self.has_left.set(piece, true);
        self.left.push_back(piece);
        if self.left.len() > self.left_max
            && let Some(oldest) = self.left.pop_front()
        {
            self.has_left.set(oldest, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Queues;

    /// Frames by piece, as the map keeps them.
    struct Cache {
        queues: Queues,
        pieces: Vec<u32>,
        misses: u32,
    }

    impl Cache {
        fn new(frames: u32, pieces: u32) -> Self {
            Self {
                queues: Queues::new(frames, pieces),
                pieces: vec![u32::MAX; frames as usize],
                misses: 0,
            }
        }

        fn use_piece(&mut self, piece: u32) {
            if let Some(frame) = self.pieces.iter().position(|&of| of == piece) {
                self.queues.touch(frame as u32);
                return;
            }
            self.misses += 1;
            let pieces = &self.pieces;
            let free = pieces.iter().position(|&of| of == u32::MAX).map(|frame| frame as u32);
            let frame = free
                .or_else(|| self.queues.evict(|_| true, |frame| pieces[frame as usize]))
                .expect("nothing is pinned");
            self.pieces[frame as usize] = piece;
            self.queues.add(frame, piece);
        }
    }

    #[test]
    fn a_scan_pushes_out_nothing_that_is_in_steady_use() {
        let mut cache = Cache::new(40, 10_000);
        for round in 0..100 {
            for piece in 0..20 {
                cache.use_piece(piece);
            }
            // Something passes by, so that the hot pieces get to leave and come back.
            cache.use_piece(500 + round);
        }
        cache.misses = 0;
        for piece in 1000..6000 {
            for _ in 0..100 {
                cache.use_piece(piece);
            }
            cache.use_piece(piece % 20);
        }
        assert_eq!(cache.misses, 5000, "only what is scanned misses");
    }

    #[test]
    fn frames_that_may_not_leave_stay() {
        let mut queues = Queues::new(4, 10);
        (0..4).for_each(|frame| queues.add(frame, frame));
        assert_eq!(queues.evict(|frame| frame == 2, |frame| frame), Some(2));
        assert_eq!(queues.evict(|_| false, |frame| frame), None);
    }
}
