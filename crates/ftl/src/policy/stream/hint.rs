//! What the host says.

use super::params::Params;
use super::{Handles, MoveView, Origin, Shape, StreamPolicy, WriteView};
use flash::Lifetime;

/// The handle of the request's lifetime class, or where it has none the request's own handle; what
/// GC moves stays apart by the handle it came through, goes together with `moved=1`, or with the host's
/// first handle with `moved=0`.
#[derive(Clone, Copy, Debug)]
pub struct ByHint {
    handles: u8,
    moved: u8,
}

impl ByHint {
    pub(super) fn new(params: &mut Params<'_>, shape: Shape) -> Result<Self, String> {
        // One for each class of a Linux write hint.
        let default = if shape.handles > 1 { shape.handles } else { Lifetime::CLASSES };
        let handles = params.handles(default)?;
        let moved = params.number("moved", (0, u64::from(handles)), u64::from(handles))? as u8;
        Ok(Self { handles, moved })
    }
}

impl StreamPolicy for ByHint {
    fn name(&self) -> &'static str {
        "hint"
    }

    fn handles(&self) -> Handles {
        Handles { host: self.handles, moved: self.moved }
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let host = write.handles.host;
        match write.hint.lifetime.class() {
            // Spread over what there is, the order kept.
            Some(class) => {
                (u16::from(class) * u16::from(host.min(Lifetime::CLASSES))
                    / u16::from(Lifetime::CLASSES)) as u8
            }
            None => write.hint.handle % host,
        }
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        let last = moved.handles.moved.saturating_sub(1);
        match moved.from {
            Origin::Host(handle) | Origin::Moved(handle) => handle.min(last),
            // It was there before the mount: it has lived long.
            Origin::Unknown => last,
        }
    }
}
