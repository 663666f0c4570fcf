//! Nothing is sorted.

use super::params::Params;
use super::{Handles, Shape, StreamPolicy, WriteView};

/// The handle that comes with the request, whatever is written; what GC moves goes together.
#[derive(Clone, Copy, Debug)]
pub struct Unsorted {
    handles: u8,
}

impl Unsorted {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        Ok(Self { handles: params.handles(shape.handles)? })
    }
}

impl StreamPolicy for Unsorted {
    fn name(&self) -> &'static str {
        "none"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.handles, moved: 1 }
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        write.hint.handle % write.handles.host
    }
}
