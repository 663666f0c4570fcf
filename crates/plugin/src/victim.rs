//! Which band to reclaim. The module keeps the view in its memory: arrays side by side, in which only
//! the chunks are written anew where bands came or went since it was asked last, and the counts of
//! valid slots, which change all the time and lie packed on both sides.

use crate::guest::Guest;
use flash::{BlockId, Random};
use ftl::policy::{CHUNK_BANDS, Fault, FullBands, VictimPolicy};
use wasmtime::TypedFunc;

/// Bytes of the arrays for one band: opened u64, valid, block, erases and unit u32.
const BAND_BYTES: usize = 24;

/// Fuel beside that for each band.
const FUEL: u64 = 50_000;
const FUEL_PER_BAND: u64 = 100;

/// See the head of this file.
pub struct WasmVictim {
    guest: Guest,
    room: TypedFunc<(i32, i32), i32>,
    pick: TypedFunc<(i32, i32, i64), i32>,
    /// Where the arrays are, for how many bands and units.
    at: usize,
    bands: usize,
    units: usize,
    /// [`FullBands::moves`] when they were written last.
    moves: Option<u64>,
}

impl WasmVictim {
    pub fn new(mut guest: Guest) -> Result<Self, String> {
        let room = guest.required("victim_room")?;
        let pick = guest.required("victim_pick")?;
        Ok(Self { guest, room, pick, at: 0, bands: 0, units: 0, moves: None })
    }

    /// Room for that many.
    fn make_room(&mut self, bands: usize, units: usize) -> Option<()> {
        if bands <= self.bands && units <= self.units {
            return Some(());
        }
        let bands = bands.next_power_of_two().max(CHUNK_BANDS);
        let bytes = bands * BAND_BYTES + units * 4;
        self.at = self.guest.room(&self.room, (bands as i32, units as i32), bytes)?;
        (self.bands, self.units, self.moves) = (bands, units, None);
        Some(())
    }

    /// Brings the arrays up to date.
    fn write(&mut self, bands: &dyn FullBands) {
        let (capacity, len) = (self.bands, bands.len());
        let bytes = self.guest.bytes_mut(self.at, capacity * BAND_BYTES + self.units * 4);
        let (opened, rest) = bytes.split_at_mut(capacity * 8);
        let (valid, rest) = rest.split_at_mut(capacity * 4);
        let (block, rest) = rest.split_at_mut(capacity * 4);
        let (erases, rest) = rest.split_at_mut(capacity * 4);
        let (unit, supply) = rest.split_at_mut(capacity * 4);
        let columns = bands.columns();
        for chunk in 0..len.div_ceil(CHUNK_BANDS) {
            if self.moves.is_some_and(|moves| !bands.moved_since(chunk, moves)) {
                continue;
            }
            for index in chunk * CHUNK_BANDS..((chunk + 1) * CHUNK_BANDS).min(len) {
                let view = bands.band(index);
                put(block, index, view.block.0);
                put(erases, index, view.erase_count);
                put(unit, index, view.unit);
                let at = columns.opened[index];
                opened[index * 8..index * 8 + 8].copy_from_slice(&at.to_le_bytes());
            }
        }
        // Of arrays of four bytes, not slices of them: it becomes one copy of all.
        for (bytes, count) in valid.as_chunks_mut::<4>().0.iter_mut().zip(columns.slots_valid) {
            *bytes = count.to_le_bytes();
        }
        for (index, bytes) in supply.chunks_exact_mut(4).enumerate().take(bands.units() as usize) {
            bytes.copy_from_slice(&bands.supply(index as u32).to_le_bytes());
        }
        self.moves = Some(bands.moves());
    }
}

fn put(bytes: &mut [u8], index: usize, value: u32) {
    bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
}

impl VictimPolicy for WasmVictim {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn fault(&mut self) -> Option<Fault> {
        self.guest.take_fault()
    }

    fn pick(&mut self, bands: &dyn FullBands, _: &mut Random) -> Option<BlockId> {
        let len = bands.len();
        if len == 0 {
            return None;
        }
        self.make_room(len, bands.units() as usize)?;
        self.write(bands);
        let slots = bands.slots();
        let fuel = FUEL + FUEL_PER_BAND * len as u64;
        let params = (len as i32, slots as i32, bands.pages() as i64);
        let answer = self.guest.call(&self.pick, fuel, params)?;
        match usize::try_from(answer) {
            Ok(index) if index < len => Some(bands.columns().blocks[index]),
            _ => {
                self.guest.out_of_range(format!("it picked band {answer} of {len}"));
                None
            }
        }
    }
}
