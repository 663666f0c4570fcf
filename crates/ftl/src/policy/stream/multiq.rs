//! AutoStream's Multi-Q: queues of chunks, from cold to hot.

use super::params::{CHUNK_BLOCKS, Params};
use super::{Handles, Shape, StreamPolicy, WriteView};

/// The stream of a write is its chunk's queue. A chunk rises one queue when it has been written often
/// enough, and sinks one when it was not written for as long as the hottest chunk lives. Then its writes
/// count as the fewest that lead to the queue it sinks to, so it has to be written anew to rise.
///
/// Invariants: a chunk that was ever written is on exactly the list of its queue, least recently
/// changed first; the others are on none.
pub struct MultiQ {
    chunk_shift: u32,
    chunks: Vec<Chunk>,
    queues: Vec<Queue>,
    /// Writes that a chunk needs for the queue above each.
    thresholds: Vec<u32>,
    hottest: u32,
    hottest_count: u32,
    hottest_written_at: u32,
    lifetime: u32,
    /// Nothing expires before: the least of the queues' times, or less. One look at it with every write
    /// is all that most writes need.
    sinks_at: u32,
    last: (u32, u8),
}

/// 16 bytes for 1 MiB: 16 MiB for a device of 1 TiB. Time wraps after 16 TiB written; a chunk that
/// was not written for half of that sinks late.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    expires_at: u32,
    /// Writes in the upper 24 bits, the queue below.
    count_and_queue: u32,
    before: u32,
    after: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    /// When the first expires: looked at often, which must not miss the cache for it.
    expires_at: u32,
}

const NONE: u32 = u32::MAX;
const COUNT_MAX: u32 = (1 << 24) - 1;
/// Nothing expires before the hottest chunk was written twice.
const LIFETIME_UNKNOWN: u32 = u32::MAX / 2;

impl MultiQ {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        let handles = params.handles(8)?;
        let (chunk_shift, chunks) = params.chunk(shape, CHUNK_BLOCKS)?;
        let base = params.base(2.0)?;
        let thresholds = std::iter::successors(Some(base), |last| Some(last * base));
        let chunk = Chunk { expires_at: 0, count_and_queue: 0, before: NONE, after: NONE };
        Ok(Self {
            chunk_shift,
            chunks: vec![chunk; chunks],
            queues: vec![Queue { first: NONE, last: NONE, expires_at: 0 }; usize::from(handles)],
            thresholds: thresholds
                .map(|count| count.ceil().min(f64::from(COUNT_MAX)) as u32)
                .take(usize::from(handles) - 1)
                .collect(),
            hottest: NONE,
            hottest_count: 0,
            hottest_written_at: 0,
            lifetime: LIFETIME_UNKNOWN,
            sinks_at: LIFETIME_UNKNOWN,
            last: (NONE, 0),
        })
    }

    /// Counts a write of `chunk`.
    fn note(&mut self, chunk: u32, now: u32) {
        let entry = self.chunks[chunk as usize];
        let (count, mut queue) = (entry.count_and_queue >> 8, entry.count_and_queue & 0xff);
        if count > 0 {
            self.unlink(entry, queue, now);
        }
        let count = (count + 1).min(COUNT_MAX);
        if chunk == self.hottest {
            self.lifetime = now.wrapping_sub(self.hottest_written_at).min(LIFETIME_UNKNOWN);
            (self.hottest_count, self.hottest_written_at) = (count, now);
        } else if count > self.hottest_count {
            (self.hottest, self.hottest_count, self.hottest_written_at) = (chunk, count, now);
        }
        queue +=
            u32::from(self.thresholds.get(queue as usize).is_some_and(|&least| count >= least));
        self.push(chunk, (count, queue), now);
        if is_past(self.sinks_at, now) {
            self.sink(now);
        }
    }

    /// The head of each queue goes one queue down if it was not written for too long.
    #[inline(never)]
    fn sink(&mut self, now: u32) {
        for queue in 1..self.queues.len() as u32 {
            let Queue { first: chunk, expires_at, .. } = self.queues[queue as usize];
            if chunk == NONE || !is_past(expires_at, now) {
                continue;
            }
            let entry = self.chunks[chunk as usize];
            self.unlink(entry, queue, now);
            // Else its very next write would take it up again, however long that took to come.
            let count = queue.checked_sub(2).map_or(1, |below| self.thresholds[below as usize]);
            self.push(chunk, (count, queue - 1), now);
            if chunk == self.hottest {
                self.choose_hottest(chunk, now);
            }
        }
        self.sinks_at = now.wrapping_add(LIFETIME_UNKNOWN);
        for queue in &self.queues[1..] {
            if queue.first != NONE {
                self.sinks_at = earlier(self.sinks_at, queue.expires_at, now);
            }
        }
    }

    /// The chunk that was written last in the highest queue succeeds `old`.
    fn choose_hottest(&mut self, old: u32, now: u32) {
        let mut lasts = self.queues.iter().rev().map(|queue| queue.last);
        let next = lasts.find(|&chunk| chunk != NONE && chunk != old).unwrap_or(old);
        self.hottest = next;
        self.hottest_count = self.chunks[next as usize].count_and_queue >> 8;
        self.hottest_written_at = now;
    }

    #[inline]
    fn push(&mut self, chunk: u32, (count, queue): (u32, u32), now: u32) {
        let list = &mut self.queues[queue as usize];
        let before = std::mem::replace(&mut list.last, chunk);
        let expires_at = now.wrapping_add(self.lifetime);
        if before == NONE {
            (list.first, list.expires_at) = (chunk, expires_at);
            self.sinks_at = earlier(self.sinks_at, expires_at, now);
        } else {
            self.chunks[before as usize].after = chunk;
        }
        let count_and_queue = count << 8 | queue;
        self.chunks[chunk as usize] = Chunk { expires_at, count_and_queue, before, after: NONE };
    }

    /// Takes the chunk of `entry` from the list of its queue.
    #[inline]
    fn unlink(&mut self, entry: Chunk, queue: u32, now: u32) {
        let Chunk { before, after, .. } = entry;
        let list = &mut self.queues[queue as usize];
        match after {
            NONE => list.last = before,
            after => self.chunks[after as usize].before = before,
        }
        match before {
            NONE => {
                list.first = after;
                if let Some(next) = self.chunks.get(after as usize) {
                    list.expires_at = next.expires_at;
                    self.sinks_at = earlier(self.sinks_at, next.expires_at, now);
                }
            }
            before => self.chunks[before as usize].after = after,
        }
    }
}

/// Whether `at` has passed.
#[inline]
fn is_past(at: u32, now: u32) -> bool {
    now.wrapping_sub(at) as i32 > 0
}

/// The one of two times that comes first, seen from `now`.
#[inline]
fn earlier(one: u32, other: u32, now: u32) -> u32 {
    let left = |at: u32| at.wrapping_sub(now) as i32;
    if left(other) < left(one) { other } else { one }
}

impl StreamPolicy for MultiQ {
    fn name(&self) -> &'static str {
        "multiq"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.queues.len() as u8, moved: 1 }
    }

    fn warm(&self, lbas: &[u32]) {
        let chunk = |index: u32| self.chunks.get(index as usize);
        super::warm_each(lbas, |lba| chunk(lba >> self.chunk_shift).map_or(0, |c| c.before));
        // Taking a chunk from its list changes those beside it there.
        super::warm_each(lbas, |lba| {
            let Some(&Chunk { before, after, .. }) = chunk(lba >> self.chunk_shift) else {
                return 0;
            };
            let beside = |index| chunk(index).map_or(0, |c| c.expires_at);
            beside(before).wrapping_add(beside(after))
        });
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let chunk = write.lba >> self.chunk_shift;
        // A request counts once for each chunk it touches.
        if !write.continues || self.last.0 != chunk {
            let queue = self.chunks[chunk as usize].count_and_queue as u8;
            self.last = (chunk, queue);
            self.note(chunk, write.now as u32);
        }
        self.last.1.min(write.handles.host - 1)
    }

    fn trimmed(&mut self, first: u32, blocks: u32) {
        // What a chunk holds next has nothing to do with what is gone.
        for index in super::whole_chunks(first, blocks, self.chunk_shift, self.chunks.len()) {
            let entry = self.chunks[index];
            if entry.count_and_queue >> 8 > 0 {
                // Without a time: what is first in a queue now may have expired.
                self.unlink(entry, entry.count_and_queue & 0xff, self.sinks_at);
                self.chunks[index].count_and_queue = 0;
            }
            if self.hottest == index as u32 {
                (self.hottest, self.hottest_count) = (NONE, 0);
            }
        }
    }

    fn memory_bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<Chunk>()) as u64
    }
}

const _: () = assert!(size_of::<Chunk>() == 16, "16 MiB for a device of 1 TiB");

#[cfg(test)]
mod tests {
    use super::super::{Handles, Shape, StreamPolicy, WriteView, params::Params};
    use super::{LIFETIME_UNKNOWN, MultiQ};
    use flash::{Hint, Random};

    fn multiq(text: &str) -> MultiQ {
        let shape = Shape { blocks: 8 << 8, handles: 1 };
        MultiQ::new(&mut Params::parse(text).unwrap(), shape).unwrap()
    }

    #[test]
    fn the_papers_example_expires_chunk_d_at_18() {
        let (c, d) = (2, 3);
        let mut queues = multiq("multiq");
        queues.note(c, 5);
        queues.note(c, 11);
        assert_eq!((queues.hottest, queues.lifetime), (c, 6));
        queues.note(d, 12);
        assert_eq!(queues.chunks[d as usize].expires_at, 18);
    }

    #[test]
    fn chunks_sink_as_if_every_queue_were_looked_at_with_every_write() {
        let mut random = Random::new(5);
        // Time wraps on the way.
        for start in [0, u64::from(u32::MAX) - 3000, u64::from(u32::MAX / 2) - 3000] {
            let (mut lazy, mut eager) = (multiq("multiq"), multiq("multiq"));
            for now in start..start + 20_000 {
                if random.chance(0.01) {
                    let first = random.below(7 << 8) as u32;
                    lazy.trimmed(first, 600);
                    eager.trimmed(first, 600);
                }
                // Two of eight chunks are hot, for a while.
                let hot = (now >> 10) as u32 % 8;
                let chunk = if random.chance(0.8) { hot } else { random.below(8) as u32 };
                let lba = chunk << 8 | random.below(256) as u32;
                let handles = Handles { host: 8, moved: 1 };
                let (hint, continues, age) = (Hint::default(), random.chance(0.2), None);
                let view = WriteView { lba, continues, hint, now, age, handles };
                eager.sinks_at = (now as u32).wrapping_sub(1);
                assert_eq!(lazy.place_write(&view), eager.place_write(&view), "at {now}");
            }
        }
    }

    #[test]
    fn a_chunk_rises_with_its_count_and_sinks_one_queue_when_its_time_is_over() {
        let mut queues = multiq("multiq:handles=4");
        let queue_of = |queues: &MultiQ, chunk: usize| queues.chunks[chunk].count_and_queue & 0xff;
        for now in 1..=8 {
            queues.note(1, now);
        }
        assert_eq!(queue_of(&queues, 1), 3, "8 writes: log2 is 3");
        // Expires at 9; another chunk's write at 10 sees it.
        queues.note(2, 10);
        assert_eq!((queue_of(&queues, 1), queue_of(&queues, 2)), (2, 0));
        assert_eq!(queues.hottest, 2, "the next becomes the hottest");
    }

    #[test]
    fn a_chunk_that_sank_rises_again_only_when_it_was_written_often_enough() {
        let mut queues = multiq("multiq:handles=4");
        let queue_of = |queues: &MultiQ| queues.chunks[1].count_and_queue & 0xff;
        for now in 1..=8 {
            queues.note(1, now);
        }
        queues.note(2, 10);
        assert_eq!(queue_of(&queues), 2, "it sank from 3");
        // It counts as written four times, so four writes more lead to 3.
        for now in 11..=13 {
            queues.note(1, now);
            assert_eq!(queue_of(&queues), 2, "at {now}");
        }
        queues.note(1, 14);
        assert_eq!(queue_of(&queues), 3);
        // Down to the last queue, where one write counts.
        for now in 1..=3 {
            queues.sinks_at = now * (LIFETIME_UNKNOWN / 4) - 1;
            queues.sink(now * (LIFETIME_UNKNOWN / 4));
        }
        assert_eq!((queue_of(&queues), queues.chunks[1].count_and_queue >> 8), (0, 1));
    }
}
