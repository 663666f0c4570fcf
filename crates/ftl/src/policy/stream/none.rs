//! Nothing is sorted.

use super::params::Params;
use super::{Handles, Shape, StreamPolicy, WriteView};

/// The handle that comes with the request, whatever is written; what GC moves goes together, and with
/// `moved=0` not even apart from what the host writes, as in a simple drive.
#[derive(Clone, Copy, Debug)]
pub struct Unsorted {
    handles: u8,
    moved: u8,
}

impl Unsorted {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        let handles = params.handles(shape.handles)?;
        Ok(Self { handles, moved: params.number("moved", (0, 1), 1)? as u8 })
    }
}

impl StreamPolicy for Unsorted {
    fn name(&self) -> &'static str {
        "none"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.handles, moved: self.moved }
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        write.hint.handle % write.handles.host
    }
}
