//! A unit policy for Weir: which unit takes the next page. This one takes the unit with the least
//! time of commands waiting (LOCS's least weighted queue).
//!
//! The host calls `unit_room` when there are more units than before, and writes a record for each
//! unit that can take the page to the address that it answers; then `unit_pick`. Nothing else is
//! there: no imports, no clock, no random numbers.
#![cfg_attr(target_arch = "wasm32", no_std)]

/// A unit that can take the page.
#[repr(C)]
struct Unit {
    /// Its number.
    unit: u32,
    appends_waiting: u32,
    reads_waiting: u32,
    bands_free: u32,
    erases_running: u32,
    /// 1: a band is open there, 0: one would have to be opened.
    open: u32,
}

/// The page, and how long commands take here.
struct Page {
    /// The unit of the last page.
    last: u32,
    /// Its first logical block, counted in pages.
    #[allow(dead_code)]
    index: u32,
    /// Units of the device.
    #[allow(dead_code)]
    units: u32,
    read_ns: u64,
    program_ns: u64,
    erase_ns: u64,
}

/// The unit for the page, as an index into `units`. The same view must get the same answer.
fn pick(units: &[Unit], page: &Page) -> usize {
    let key = |unit: &Unit| {
        let work_ns = u64::from(unit.reads_waiting) * page.read_ns
            + u64::from(unit.appends_waiting) * page.program_ns
            + u64::from(unit.erases_running) * page.erase_ns;
        (work_ns, unit.open == 0, unit.unit != page.last, u32::MAX - unit.bands_free)
    };
    let mut best = 0;
    for index in 1..units.len() {
        if key(&units[index]) < key(&units[best]) {
            best = index;
        }
    }
    best
}

// What follows is the interface, version 1; there is nothing to change.

static mut ROOM: usize = 0;

#[unsafe(no_mangle)]
pub extern "C" fn weir_abi() -> i32 {
    1
}

/// Room for the records of so many units: its address.
#[unsafe(no_mangle)]
pub extern "C" fn unit_room(units: usize) -> usize {
    let at = allocate(units * size_of::<Unit>());
    unsafe { ROOM = at };
    at
}

#[unsafe(no_mangle)]
pub extern "C" fn unit_pick(
    len: usize,
    last: u32,
    index: u32,
    units: u32,
    read_ns: u64,
    program_ns: u64,
    erase_ns: u64,
) -> usize {
    // The host has written so many records there.
    let list = unsafe { core::slice::from_raw_parts(ROOM as *const Unit, len) };
    pick(list, &Page { last, index, units, read_ns, program_ns, erase_ns })
}

/// New memory, whole pages of it. Only while the host asks for room may a policy take some.
#[cfg(target_arch = "wasm32")]
fn allocate(bytes: usize) -> usize {
    core::arch::wasm32::memory_grow(0, bytes.div_ceil(65536)) * 65536
}

/// For tests on this machine.
#[cfg(not(target_arch = "wasm32"))]
fn allocate(bytes: usize) -> usize {
    vec![0u64; bytes.div_ceil(8)].leak().as_mut_ptr() as usize
}

#[cfg(target_arch = "wasm32")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    core::arch::wasm32::unreachable()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erase_counts_for_more_than_a_program() {
        let unit = |unit, appends_waiting, erases_running| Unit {
            unit,
            appends_waiting,
            reads_waiting: 0,
            bands_free: 1,
            erases_running,
            open: 1,
        };
        let page =
            Page { last: 0, index: 0, units: 2, read_ns: 1, program_ns: 10, erase_ns: 100 };
        assert_eq!(pick(&[unit(0, 0, 1), unit(1, 2, 0)], &page), 1);
    }
}
