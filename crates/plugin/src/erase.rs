//! When to erase: one call for a unit with a band to erase.

use crate::guest::Guest;
use ftl::policy::{ErasePolicy, EraseView, Fault};
use wasmtime::TypedFunc;

const FUEL: u64 = 10_000;

/// See the head of this file.
pub struct WasmErase {
    guest: Guest,
    now: TypedFunc<(i32, i32, i64, i64, i32, i32), i32>,
}

impl WasmErase {
    pub fn new(mut guest: Guest) -> Result<Self, String> {
        let now = guest.required("erase_now")?;
        Ok(Self { guest, now })
    }
}

impl ErasePolicy for WasmErase {
    fn name(&self) -> &'static str {
        "wasm"
    }

    fn fault(&mut self) -> Option<Fault> {
        self.guest.take_fault()
    }

    fn erase_now(&mut self, view: &EraseView) -> bool {
        let params = (
            view.reads_waiting as i32,
            view.appends_waiting as i32,
            (view.now - view.quiet_since) as i64,
            view.idle_ns as i64,
            view.bands_clean as i32,
            view.asked as i32,
        );
        match self.guest.call(&self.now, FUEL, params) {
            Some(0) => false,
            Some(1) => true,
            Some(answer) => {
                self.guest.out_of_range(format!("it answered {answer}, neither 0 nor 1"));
                view.reads_waiting == 0
            }
            // As the default does.
            None => view.reads_waiting == 0,
        }
    }
}
