//! Which data lives together: one call for each block that is written or moved. What the policy knows
//! of the volume it keeps in its own memory.

use crate::guest::Guest;
use ftl::policy::Fault;
use ftl::policy::stream::{HANDLES_MAX, Handles, MoveView, Origin, Shape, StreamPolicy, WriteView};
use wasmtime::TypedFunc;

/// Fuel for a block.
const FUEL: u64 = 20_000;
/// Blocks of a trim that give one unit of fuel more.
const TRIM_BLOCKS_PER_FUEL: u64 = 64;
/// Blocks of the volume for which it may have one byte: 32 MiB for 1 TiB.
const BLOCKS_PER_BYTE: usize = 8;

type Write = TypedFunc<(i32, i32, i32, i32, i64, i64), i32>;
type Move = TypedFunc<(i32, i32, i32, i64, i64), i32>;

/// See the head of this file.
pub struct WasmStream {
    guest: Guest,
    write: Write,
    moves: Option<Move>,
    trim: Option<TypedFunc<(i32, i32), ()>>,
    reclaimed: Option<TypedFunc<(i32, i64), ()>>,
    handles: Handles,
    uses_age: bool,
}

impl WasmStream {
    pub fn new(mut guest: Guest, shape: Shape) -> Result<Self, String> {
        let write = guest.required("stream_write")?;
        let moves = guest.function("stream_move")?;
        let trim = guest.function("stream_trim")?;
        let reclaimed = guest.function("stream_reclaimed")?;
        let start = guest.required::<i32, i32>("stream_start")?;
        guest.grant(shape.blocks as usize / BLOCKS_PER_BYTE);
        let answer = guest.set_up(&start, shape.blocks as i32);
        let answer = answer.ok_or_else(|| guest.last_words())?;
        let handles = Handles { host: answer as u8, moved: (answer >> 8) as u8 };
        let good = 1..=HANDLES_MAX;
        if !good.contains(&handles.host) || !good.contains(&handles.moved) || answer >> 17 != 0 {
            return Err(format!(
                "it wants {} handles for the host and {} for GC ({answer:#x}): each is 1 to \
                 {HANDLES_MAX}",
                handles.host, handles.moved
            ));
        }
        let uses_age = answer >> 16 & 1 == 1;
        Ok(Self { guest, write, moves, trim, reclaimed, handles, uses_age })
    }

    /// `answer` as a handle below `handles`; what is none breaks the policy.
    #[inline]
    fn handle(&mut self, answer: Option<i32>, handles: u8) -> u8 {
        match answer {
            Some(handle) if (0..i32::from(handles)).contains(&handle) => handle as u8,
            Some(handle) => {
                self.guest.out_of_range(format!("it chose handle {handle} of {handles}"));
                u8::MAX
            }
            None => u8::MAX,
        }
    }
}

fn packed(handles: Handles) -> i32 {
    i32::from(handles.host) | i32::from(handles.moved) << 8
}

fn number(from: Origin) -> i32 {
    match from {
        Origin::Host(handle) => i32::from(handle),
        Origin::Moved(handle) => 256 | i32::from(handle),
        Origin::Unknown => -1,
    }
}

impl StreamPolicy for WasmStream {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn fault(&mut self) -> Option<Fault> {
        self.guest.take_fault()
    }

    fn handles(&self) -> Handles {
        self.handles
    }

    fn uses_age(&self) -> bool {
        self.uses_age
    }

    fn place_write(&mut self, write: &WriteView) -> u8 {
        let class = write.hint.lifetime.class().map_or(0, |class| i32::from(class) + 1);
        let hint = i32::from(write.hint.handle) | class << 8;
        let age = write.age.map_or(-1, |age| age as i64);
        let (lba, flags, handles) =
            (write.lba as i32, i32::from(write.continues), packed(write.handles));
        let params = (lba, flags, hint, handles, write.now as i64, age);
        let answer = self.guest.call(&self.write, FUEL, params);
        self.handle(answer, write.handles.host)
    }

    fn place_move(&mut self, moved: &MoveView) -> u8 {
        let Some(function) = &self.moves else { return 0 };
        let (now, age) = (moved.now as i64, moved.age as i64);
        let params = (moved.lba as i32, number(moved.from), packed(moved.handles), now, age);
        let answer = self.guest.call(function, FUEL, params);
        self.handle(answer, moved.handles.moved)
    }

    fn trimmed(&mut self, first: u32, blocks: u32) {
        if let Some(function) = &self.trim {
            let fuel = FUEL + u64::from(blocks) / TRIM_BLOCKS_PER_FUEL;
            self.guest.call(function, fuel, (first as i32, blocks as i32));
        }
    }

    fn reclaimed(&mut self, from: Origin, lifetime: u64) {
        if let Some(function) = &self.reclaimed {
            self.guest.call(function, FUEL, (number(from), lifetime as i64));
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.guest.memory_bytes() as u64
    }
}
