//! Blocks by ID, for the HTTP thread: what it asks goes through [`Ids`] to the engine, beside what the
//! clients of NBD do with the same units.
//!
//! Invariant: the memory of a put or get stays here from its first step to its answer.

use super::{Engine, Life, Origin, Piece, Shard, Work};
use crate::runtime::buffer::{Buffer, View};
use flash::{BLOCK_BYTES, RequestError, Slab};
use ftl::raw::ids::{Id, IdCounts, IdError, Ids, Placed, Step};

/// The `shard` of an [`Origin`] that is a request here.
pub const IDS: usize = usize::MAX;

/// What is asked of a block.
pub enum IdWork {
    /// Write it: whole, from a buffer of its size.
    Put(Buffer),
    /// Read from this logical block on, as many as the buffer holds.
    Get(u32, Buffer),
    /// Erase it.
    Delete,
}

/// The outcome, and the memory that came with the work.
pub type IdAnswer = (Result<(), IdError>, Option<Buffer>);

/// A request for a block by its ID.
pub struct IdRequest {
    /// The block.
    pub id: Id,
    /// What to do.
    pub work: IdWork,
    /// Gets the outcome, on the shard's thread.
    pub answer: Box<dyn FnOnce(IdAnswer) + Send>,
}

/// Some of the blocks that are there.
#[derive(Clone, Debug)]
pub struct IdList {
    /// By number.
    pub blocks: Vec<Placed>,
    /// What was asked since the mount.
    pub counts: IdCounts,
}

struct Pending {
    buffer: Option<Buffer>,
    answer: Box<dyn FnOnce(IdAnswer) + Send>,
}

/// The requests under way.
pub struct Desk {
    /// Why there are no IDs, or what decides.
    ids: Result<Ids, IdError>,
    pending: Slab<Pending>,
}

impl Desk {
    /// Of the units of `engine`, if it has any.
    pub fn of(engine: &Engine) -> Option<Self> {
        let ids = Ids::mounted(engine.core.raw()?);
        Some(Self { ids, pending: Slab::default() })
    }

    /// Nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }
}

impl Shard {
    pub(super) fn list_ids(&self, after: Option<u64>, count: usize) -> Result<IdList, IdError> {
        let (Some(desk), Some(raw)) = (&self.desk, self.engine.core.raw()) else {
            return Err(IdError::PageWrites);
        };
        let ids = desk.ids.as_ref().map_err(|&error| error)?;
        Ok(IdList { blocks: ids.list(raw, after, count), counts: ids.counts() })
    }

    pub(super) fn ask_id(&mut self, request: IdRequest) {
        let IdRequest { id, work, answer } = request;
        let refusal = match (&self.desk, self.life) {
            (_, life) if life != Life::Serving => Some(IdError::Units(RequestError::ShuttingDown)),
            (None, _) => Some(IdError::PageWrites),
            (Some(_), _) if self.engine.medium.fenced() => {
                Some(IdError::Units(RequestError::Failed))
            }
            (Some(desk), _) => desk.ids.as_ref().err().copied(),
        };
        if let Some(error) = refusal {
            return answer((Err(error), None));
        }
        let (Some(desk), Some(raw)) = (&mut self.desk, self.engine.core.raw()) else { return };
        let Ok(ids) = &mut desk.ids else { return };
        match work {
            IdWork::Put(buffer) => {
                let token = desk.pending.insert(Pending { buffer: Some(buffer), answer });
                ids.put(raw, token.into(), id);
            }
            IdWork::Get(first, buffer) => {
                let blocks = buffer.blocks();
                let token = desk.pending.insert(Pending { buffer: Some(buffer), answer });
                ids.get(raw, token.into(), id, first, blocks);
            }
            IdWork::Delete => {
                let token = desk.pending.insert(Pending { buffer: None, answer });
                ids.delete(raw, token.into(), id);
            }
        }
        self.step_ids();
    }

    /// A piece of a request here is done.
    pub(super) fn id_done(&mut self, token: u32, result: Result<(), RequestError>) {
        let (Some(desk), Some(raw)) = (&mut self.desk, self.engine.core.raw()) else { return };
        if let Ok(ids) = &mut desk.ids {
            ids.ended(raw, token.into(), result);
        }
        self.step_ids();
    }

    /// Carries out what the layer wants.
    fn step_ids(&mut self) {
        let Some(Desk { ids: Ok(ids), pending }) = &mut self.desk else { return };
        while let Some(step) = ids.poll() {
            let (work, token, lba, blocks) = match step {
                Step::Write { token, id, lba, blocks } => {
                    (Work::Put { tag: id.0 }, token, lba, blocks)
                }
                Step::Read { token, lba, blocks } => (Work::Read, token, lba, blocks),
                Step::Erase { token, lba, blocks } => {
                    (Work::Trim { fua: true }, token, lba, blocks)
                }
                Step::Reply { token, result } => {
                    let Pending { buffer, answer } = pending.remove(token as u32);
                    answer((result, buffer));
                    continue;
                }
            };
            let buffer = pending[token as u32].buffer.as_ref();
            let view = buffer.map_or(View::NONE, |buffer| buffer.view(0, blocks));
            let origin = Origin { shard: IDS, request: token as u32 };
            self.engine.submit(Piece { origin, work, lba: lba.0, blocks, view });
        }
    }
}

/// Bytes as whole logical blocks; `None` if they are none.
pub fn whole_blocks(bytes: u64) -> Option<u32> {
    let block = BLOCK_BYTES as u64;
    bytes.is_multiple_of(block).then(|| u32::try_from(bytes / block).ok()).flatten()
}
