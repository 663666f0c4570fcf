//! Streams: which data should live together. A stream policy sees each block that the host writes
//! and each block that GC moves, and names the placement handle for it; data of one handle shares
//! bands, so blocks that die together free whole bands.
//!
//! Time is the FTL's sequence number: one a block written (an atomic group and a trim take one,
//! too). It survives power cuts, as it lies beside every block on flash. What a policy has learned
//! does not: it learns anew after a mount.
//!
//! Invariants:
//! - one look into one table for each write, nothing for a read;
//! - tables are made when the policy is, from the number of logical blocks, and never grow;
//! - the same calls give the same answers, to the bit, on every machine: no libm.
//!
//! To add one: a file here and a line in [`by_name`].

mod gaps;
mod hint;
mod interval;
mod midas;
mod multiq;
mod none;
mod params;
mod sepbit;
mod sfr;

use super::Fault;
use flash::Hint;
use params::Params;

pub use hint::ByHint;
pub use interval::Interval;
pub use midas::Midas;
pub use multiq::MultiQ;
pub use none::Unsorted;
pub use sepbit::SepBit;
pub use sfr::Sfr;

/// Most placement handles of one policy, for the host or for relocation.
pub const HANDLES_MAX: u8 = 16;

/// How many placement handles there are of each kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Handles {
    /// For what the host writes, at least 1.
    pub host: u8,
    /// For what GC moves. A policy that wants none has it go where the host's first handle goes.
    pub moved: u8,
}

/// The handle that a band was filled by.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// The host's, of this number.
    Host(u8),
    /// GC's, of this number.
    Moved(u8),
    /// Filled before the last mount, or for another volume.
    Unknown,
}

/// A block that the host writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteView {
    /// Which, counted from the start of the volume.
    pub lba: u32,
    /// The block follows the one before it in the same request.
    pub continues: bool,
    /// What the host says about it.
    pub hint: Hint,
    /// Time now.
    pub now: u64,
    /// Time since the block was written last, as the mean of its band; `None` if it holds nothing,
    /// or if the policy does not use it.
    pub age: Option<u64>,
    /// The handles there are: maybe fewer than the policy wants.
    pub handles: Handles,
}

/// A block that GC moves.
#[derive(Clone, Copy, Debug)]
pub struct MoveView {
    /// Which, counted from the start of the volume.
    pub lba: u32,
    /// Time now.
    pub now: u64,
    /// Time since the host wrote it.
    pub age: u64,
    /// The handle of the band it leaves.
    pub from: Origin,
    /// The handles there are: maybe fewer than the policy wants.
    pub handles: Handles,
}

/// Chooses the placement handle of each block.
pub trait StreamPolicy: Send {
    /// Its name in configs.
    fn name(&self) -> &'static str;
    /// What broke it since it was asked last; only a policy from outside breaks.
    fn fault(&mut self) -> Option<Fault> {
        None
    }
    /// The handles it would use: 1 to [`HANDLES_MAX`] for the host, up to as many for relocation.
    fn handles(&self) -> Handles;
    /// Handles for which a device keeps bands whatever its over-provisioning: all of them, unless it says otherwise. It
    /// has more where there are bands to spare.
    fn handles_least(&self) -> u8 {
        let Handles { host, moved } = self.handles();
        host + moved
    }
    /// Whether it looks at [`WriteView::age`].
    fn uses_age(&self) -> bool {
        false
    }
    /// These blocks are about to be written: what it looks at for each may be brought into the
    /// processor's cache, all at once, where each by itself would wait for memory. Changes nothing.
    fn warm(&self, _lbas: &[u32]) {}
    /// The host's handle for a block, below `write.handles.host`.
    fn place_write(&mut self, write: &WriteView) -> u8;
    /// The relocation handle for a block, below `moved.handles.moved`.
    fn place_move(&mut self, _moved: &MoveView) -> u8 {
        0
    }
    /// These blocks hold nothing any more.
    fn trimmed(&mut self, _first: u32, _blocks: u32) {}
    /// A band of this origin is empty, `lifetime` after it was opened.
    fn reclaimed(&mut self, _from: Origin, _lifetime: u64) {}
    /// Bytes of its tables.
    fn memory_bytes(&self) -> u64 {
        0
    }
}

/// What a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Logical blocks of the volume.
    pub blocks: u32,
    /// Host handles of `none` and `hint`, unless they say otherwise.
    pub handles: u8,
}

/// Names of the stream policies. Each takes parameters: `sfr:handles=8,decay=1GiB`.
pub const STREAMS: &[&str] = &["none", "hint", "multiq", "sfr", "sepbit", "midas", "interval"];

/// The policy called `text`: a name of [`STREAMS`], alone or with parameters after a colon.
///
/// # Errors
/// An unknown name or parameter, or a value out of range: says what is allowed.
pub fn by_name(text: &str, shape: Shape) -> Result<Box<dyn StreamPolicy>, String> {
    let mut params = Params::parse(text)?;
    let policy: Box<dyn StreamPolicy> = match params.name() {
        "none" => Box::new(Unsorted::new(&mut params, shape)?),
        "hint" => Box::new(ByHint::new(&mut params, shape)?),
        "multiq" => Box::new(MultiQ::new(&mut params, shape)?),
        "sfr" => Box::new(Sfr::new(&mut params, shape)?),
        "sepbit" => Box::new(SepBit::new(&mut params)?),
        "midas" => Box::new(Midas::new(&mut params, shape)?),
        "interval" => Box::new(Interval::new(&mut params, shape)?),
        _ => return Err(super::unknown("stream", text, STREAMS)),
    };
    params.finish()?;
    Ok(policy)
}

/// Makes the processor read what follows from each of `lbas`, and wait for none of it.
fn warm_each(lbas: &[u32], look: impl Fn(u32) -> u32) {
    let sum = lbas.iter().fold(0, |sum: u32, &lba| sum.wrapping_add(look(lba)));
    // Else nothing would have to be read.
    std::hint::black_box(sum);
}

/// The chunks that lie whole within these blocks; the last one may end with the volume.
fn whole_chunks(first: u32, blocks: u32, shift: u32, chunks: usize) -> std::ops::Range<usize> {
    let from = u64::from(first).div_ceil(1 << shift) as usize;
    let end = ((u64::from(first) + u64::from(blocks)) >> shift) as usize;
    from..end.clamp(from, chunks.max(from))
}

#[cfg(test)]
mod tests;
