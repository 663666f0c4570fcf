//! Which free band to open, and whether cold data moves.

use crate::guest::Guest;
use ftl::policy::{Fault, Purpose, WearPolicy, WearView};
use wasmtime::TypedFunc;

const FUEL: u64 = 10_000;
const FUEL_PER_BAND: u64 = 100;

/// See the head of this file.
pub struct WasmWear {
    guest: Guest,
    room: TypedFunc<i32, i32>,
    pick: TypedFunc<(i32, i32), i32>,
    moves: Option<TypedFunc<(i32, i32), i32>>,
    /// Where the erase counts go, and for how many bands.
    at: usize,
    bands: usize,
}

impl WasmWear {
    pub fn new(mut guest: Guest) -> Result<Self, String> {
        let room = guest.required("wear_room")?;
        let pick = guest.required("wear_pick")?;
        let moves = guest.function("wear_move")?;
        Ok(Self { guest, room, pick, moves, at: 0, bands: 0 })
    }

    fn picked(&mut self, erase_counts: &[u32], purpose: Purpose) -> Option<usize> {
        let len = erase_counts.len();
        if len > self.bands {
            let bands = len.next_power_of_two();
            self.at = self.guest.room(&self.room, bands as i32, bands * 4)?;
            self.bands = bands;
        }
        let bytes = self.guest.bytes_mut(self.at, len * 4);
        for (bytes, count) in bytes.chunks_exact_mut(4).zip(erase_counts) {
            bytes.copy_from_slice(&count.to_le_bytes());
        }
        let purpose = match purpose {
            Purpose::Host => 0,
            Purpose::Relocate => 1,
            Purpose::Checkpoint => 2,
            Purpose::Destage => 3,
        };
        let fuel = FUEL + FUEL_PER_BAND * len as u64;
        let answer = self.guest.call(&self.pick, fuel, (len as i32, purpose))?;
        let index = usize::try_from(answer).ok().filter(|&index| index < len);
        if index.is_none() {
            self.guest.out_of_range(format!("it picked free band {answer} of {len}"));
        }
        index
    }
}

impl WearPolicy for WasmWear {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn fault(&mut self) -> Option<Fault> {
        self.guest.take_fault()
    }

    fn pick_free(&mut self, erase_counts: &[u32], purpose: Purpose) -> usize {
        self.picked(erase_counts, purpose).unwrap_or(usize::MAX)
    }

    fn move_wanted(&mut self, view: &WearView) -> bool {
        let Some(function) = &self.moves else { return false };
        let params = (view.erase_count_least_full as i32, view.erase_count_most as i32);
        match self.guest.call(function, FUEL, params) {
            Some(0) | None => false,
            Some(1) => true,
            Some(answer) => {
                self.guest.out_of_range(format!("it answered {answer}, neither 0 nor 1"));
                false
            }
        }
    }
}
