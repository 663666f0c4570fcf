//! Which unit takes the next page: the module gets a record of six numbers for each that can.

use crate::guest::Guest;
use ftl::policy::{Fault, PageView, UnitPolicy, UnitView};
use wasmtime::TypedFunc;

/// Unit, appends waiting, reads waiting, bands free, erases running, open; u32 each.
const RECORD_BYTES: usize = 24;
const FUEL: u64 = 10_000;
const FUEL_PER_UNIT: u64 = 200;

type Pick = TypedFunc<(i32, i32, i32, i32, i64, i64, i64), i32>;

/// See the head of this file.
pub struct WasmUnit {
    guest: Guest,
    room: TypedFunc<i32, i32>,
    pick: Pick,
    /// Where the records go, and for how many units.
    at: usize,
    units: usize,
}

impl WasmUnit {
    pub fn new(mut guest: Guest) -> Result<Self, String> {
        let room = guest.required("unit_room")?;
        let pick = guest.required("unit_pick")?;
        Ok(Self { guest, room, pick, at: 0, units: 0 })
    }

    fn picked(&mut self, units: &[UnitView], page: &PageView) -> Option<usize> {
        let len = units.len();
        if len > self.units {
            let most = len.max(page.units as usize);
            self.at = self.guest.room(&self.room, most as i32, most * RECORD_BYTES)?;
            self.units = most;
        }
        let bytes = self.guest.bytes_mut(self.at, len * RECORD_BYTES);
        for (bytes, view) in bytes.chunks_exact_mut(RECORD_BYTES).zip(units) {
            let record = [
                view.unit,
                view.appends_waiting,
                view.reads_waiting,
                view.bands_free,
                view.erases_running,
                u32::from(view.open),
            ];
            for (bytes, number) in bytes.chunks_exact_mut(4).zip(record) {
                bytes.copy_from_slice(&number.to_le_bytes());
            }
        }
        let costs = &page.costs;
        let params = (
            len as i32,
            page.last as i32,
            page.index as i32,
            page.units as i32,
            costs.read_ns as i64,
            costs.program_ns as i64,
            costs.erase_ns as i64,
        );
        let fuel = FUEL + FUEL_PER_UNIT * len as u64;
        let answer = self.guest.call(&self.pick, fuel, params)?;
        let index = usize::try_from(answer).ok().filter(|&index| index < len);
        if index.is_none() {
            self.guest.out_of_range(format!("it picked unit {answer} of {len}"));
        }
        index
    }
}

impl UnitPolicy for WasmUnit {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn fault(&mut self) -> Option<Fault> {
        self.guest.take_fault()
    }

    fn pick(&mut self, units: &[UnitView], page: &PageView) -> usize {
        self.picked(units, page).unwrap_or(usize::MAX)
    }
}
