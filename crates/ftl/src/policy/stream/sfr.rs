//! AutoStream's SFR: sequentiality, frequency, recency.

use super::params::{CHUNK_BLOCKS, Params};
use super::{Handles, Shape, StreamPolicy, WriteView};

/// A write that goes on where the one before it ended joins its stream. Any other counts for its
/// chunk; the count is halved with every `decay` written since the chunk's last write; the stream
/// is the logarithm of the count.
pub struct Sfr {
    handles: u8,
    chunk_shift: u32,
    chunks: Vec<Chunk>,
    decay_inverse: f32,
    /// Count from which on a chunk belongs to stream `index + 1`.
    thresholds: Vec<f32>,
    /// 2^(-index/64)
    halving: [f32; 64],
    /// Where a write would go on.
    end: u32,
    stream: u8,
}

/// 8 bytes for 1 MiB: 8 MiB for a device of 1 TiB. Time wraps after 16 TiB written; a chunk that was
/// not written for just so long is taken for a hot one, once.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    count: f32,
    written_at: u32,
}

impl Sfr {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        let handles = params.handles(8)?;
        let (chunk_shift, chunks) = params.chunk(shape, CHUNK_BLOCKS)?;
        let decay = params.blocks_or_share("decay", shape, u64::from(shape.blocks / 4).max(1))?;
        let base = params.base(2.0)? as f32;
        let thresholds = std::iter::successors(Some(base), |last| Some(last * base));
        // Roots are exact everywhere, as powers are not.
        let step = (0..6).fold(0.5f64, |power, _| power.sqrt());
        let mut halving = [1.0; 64];
        let mut power = 1.0;
        for entry in &mut halving {
            *entry = power as f32;
            power *= step;
        }
        Ok(Self {
            handles,
            chunk_shift,
            chunks: vec![Chunk::default(); chunks],
            decay_inverse: 1.0 / decay as f32,
            thresholds: thresholds.take(usize::from(handles) - 1).collect(),
            halving,
            end: u32::MAX,
            stream: 0,
        })
    }

    /// 2^(-elapsed/decay)
    fn faded(&self, elapsed: u32) -> f32 {
        let periods = elapsed as f32 * self.decay_inverse;
        if periods >= 120.0 {
            return 0.0;
        }
        let whole = periods as u32;
        let part = ((periods - whole as f32) * 64.0) as usize;
        self.halving[part.min(63)] * f32::from_bits((127 - whole) << 23)
    }
}

impl StreamPolicy for Sfr {
    fn name(&self) -> &'static str {
        "sfr"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.handles, moved: 1 }
    }

    fn warm(&self, lbas: &[u32]) {
        super::warm_each(lbas, |lba| {
            self.chunks.get((lba >> self.chunk_shift) as usize).map_or(0, |c| c.written_at)
        });
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let sequential = write.lba == self.end;
        self.end = write.lba + 1;
        if !sequential {
            let now = write.now as u32;
            let index = (write.lba >> self.chunk_shift) as usize;
            let before = self.chunks[index];
            let count = before.count * self.faded(now.wrapping_sub(before.written_at)) + 1.0;
            self.chunks[index] = Chunk { count, written_at: now };
            self.stream = self.thresholds.iter().filter(|&&least| count >= least).count() as u8;
        }
        self.stream.min(write.handles.host - 1)
    }

    fn trimmed(&mut self, first: u32, blocks: u32) {
        // What a chunk holds next has nothing to do with what is gone.
        for index in super::whole_chunks(first, blocks, self.chunk_shift, self.chunks.len()) {
            self.chunks[index] = Chunk::default();
        }
    }

    fn memory_bytes(&self) -> u64 {
        (self.chunks.len() * size_of::<Chunk>()) as u64
    }
}
