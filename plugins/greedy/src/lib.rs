//! A victim policy for Weir: which band GC reclaims next.
//!
//! The host calls `victim_room` when there are more bands than before, and writes its view to the
//! address that it answers; then `victim_pick`, for every victim. Between the calls it brings the
//! view up to date. Nothing else is there: no imports, no clock, no random numbers.
#![cfg_attr(target_arch = "wasm32", no_std)]

/// The view, as arrays side by side; index `i` is the same band in each.
struct View {
    /// Counted in pages appended on the device: when each band was opened. The smaller, the older.
    #[allow(dead_code)]
    opened: &'static [u64],
    /// Slots that must be moved before the band can be erased.
    valid: &'static [u32],
    /// Its address.
    block: &'static [u32],
    /// How often it was erased.
    #[allow(dead_code)]
    erases: &'static [u32],
    /// The unit it lies on.
    unit: &'static [u32],
    /// For each unit: bands that it has to be opened, 2 for more.
    supply: &'static [u32],
}

/// The band to reclaim next, as an index below `len`, of bands with `slots` slots each; `now` is the
/// number of pages appended so far. The same view must get the same answer.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
fn pick(view: &View, len: usize, slots: u32, _now: u64) -> usize {
    // The fewest valid slots; among nearly as few, the band of a unit that is short of bands, for
    // appends go on only on units that have one.
    let valid = &view.valid[..len];
    let most = least(valid) + slots / 128;
    let (mut best, mut best_key) = (0, (u32::MAX, u32::MAX, u32::MAX));
    let mut look = |from: usize, counts: &[u32]| {
        for (index, &count) in (from..).zip(counts) {
            if count <= most {
                let key = (view.supply[view.unit[index] as usize], count, view.block[index]);
                if key < best_key {
                    (best, best_key) = (index, key);
                }
            }
        }
    };
    let (chunks, rest) = valid.as_chunks::<16>();
    for (number, counts) in chunks.iter().enumerate() {
        // Few bands have so few: most chunks are passed by.
        if counts.iter().fold(0, |few, &count| few | u32::from(count <= most)) != 0 {
            look(16 * number, counts);
        }
    }
    look(16 * chunks.len(), rest);
    best
}

/// The least of some counts: many at a time, so that the compiler takes SIMD for it, and as each turn
/// of a loop costs what a few instructions do, for it is counted.
#[cfg_attr(target_arch = "wasm32", target_feature(enable = "simd128"))]
fn least(counts: &[u32]) -> u32 {
    let (chunks, rest) = counts.as_chunks::<32>();
    let mut lanes = [u32::MAX; 32];
    for chunk in chunks {
        for (lane, &count) in lanes.iter_mut().zip(chunk) {
            *lane = count.min(*lane);
        }
    }
    lanes.iter().chain(rest).fold(u32::MAX, |least, &count| least.min(count))
}

// What follows is the interface, version 1; there is nothing to change.

/// Bands and units that there is room for, and where.
static mut ROOM: (usize, usize, usize) = (0, 0, 0);

#[unsafe(no_mangle)]
pub extern "C" fn weir_abi() -> i32 {
    1
}

/// Room for the view of so many bands on so many units: its address.
#[unsafe(no_mangle)]
pub extern "C" fn victim_room(bands: usize, units: usize) -> usize {
    let at = allocate(bands * 24 + units * 4);
    unsafe { ROOM = (at, bands, units) };
    at
}

#[unsafe(no_mangle)]
pub extern "C" fn victim_pick(len: usize, slots: u32, now: u64) -> usize {
    let (at, bands, units) = unsafe { ROOM };
    // The host has written arrays of these lengths there, one behind the other.
    let array = |offset: usize, len: usize| unsafe {
        core::slice::from_raw_parts((at + offset * bands) as *const u32, len)
    };
    let view = View {
        opened: unsafe { core::slice::from_raw_parts(at as *const u64, bands) },
        valid: array(8, bands),
        block: array(12, bands),
        erases: array(16, bands),
        unit: array(20, bands),
        supply: array(24, units),
    };
    pick(&view, len, slots, now)
}

/// New memory, whole pages of it. Only while the host asks for room may a policy take some.
#[cfg(target_arch = "wasm32")]
fn allocate(bytes: usize) -> usize {
    core::arch::wasm32::memory_grow(0, bytes.div_ceil(65536)) * 65536
}

/// For tests of `pick` on this machine.
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
    fn the_band_with_the_fewest_valid_slots_is_picked() {
        let view = View {
            opened: &[1, 2, 3],
            valid: &[300, 20, 500],
            block: &[7, 8, 9],
            erases: &[0, 0, 0],
            unit: &[0, 0, 0],
            supply: &[2],
        };
        assert_eq!(pick(&view, 3, 512, 10), 1);
    }
}
