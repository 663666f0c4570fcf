//! A wear policy for Weir: which free band is opened, and when cold data moves so that its band
//! wears too. This one opens the least worn band, the most worn one for data that GC moves, and moves
//! cold data when bands are 32 erases apart.
//!
//! The host calls `wear_room` when a unit has more free bands than before, and writes their erase
//! counts to the address that it answers; then `wear_pick`. Optional: `wear_move`. Nothing else is
//! there: no imports, no clock, no random numbers.
#![cfg_attr(target_arch = "wasm32", no_std)]

/// What a band is opened for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// Data from the host.
    Host,
    /// Data that GC moves: colder than the host's.
    Relocate,
    /// A checkpoint, which lives for one interval.
    Checkpoint,
}

/// The free band to open, as an index into their erase counts. The same view must get the same
/// answer.
fn pick(erases: &[u32], purpose: Purpose) -> usize {
    let mut best = 0;
    for index in 1..erases.len() {
        let better = match purpose {
            Purpose::Relocate => erases[index] > erases[best],
            Purpose::Host | Purpose::Checkpoint => erases[index] < erases[best],
        };
        if better {
            best = index;
        }
    }
    best
}

/// Whether the data of the least worn full band should move.
fn move_wanted(erases_least_full: u32, erases_most: u32) -> bool {
    erases_most.saturating_sub(erases_least_full) > 32
}

// What follows is the interface, version 1; there is nothing to change.

static mut ROOM: usize = 0;

#[unsafe(no_mangle)]
pub extern "C" fn weir_abi() -> i32 {
    1
}

/// Room for the erase counts of so many bands: its address.
#[unsafe(no_mangle)]
pub extern "C" fn wear_room(bands: usize) -> usize {
    let at = allocate(bands * 4);
    unsafe { ROOM = at };
    at
}

#[unsafe(no_mangle)]
pub extern "C" fn wear_pick(len: usize, purpose: u32) -> usize {
    // The host has written so many counts there.
    let erases = unsafe { core::slice::from_raw_parts(ROOM as *const u32, len) };
    let purpose = match purpose {
        0 => Purpose::Host,
        1 => Purpose::Relocate,
        _ => Purpose::Checkpoint,
    };
    pick(erases, purpose)
}

#[unsafe(no_mangle)]
pub extern "C" fn wear_move(erases_least_full: u32, erases_most: u32) -> u32 {
    move_wanted(erases_least_full, erases_most).into()
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
    fn cold_data_goes_to_worn_bands() {
        assert_eq!(pick(&[3, 9, 1], Purpose::Relocate), 1);
        assert_eq!(pick(&[3, 9, 1], Purpose::Host), 2);
        assert!(move_wanted(1, 40) && !move_wanted(10, 40));
    }
}
