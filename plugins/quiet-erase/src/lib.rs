//! An erase policy for Weir: when an empty band is erased. This one does it as soon as no host read
//! waits, and without regard to that when the unit has no band ready.
//!
//! The host calls `erase_now` for a unit with a band to erase. It erases all the same when space
//! demands it. Nothing else is there: no imports, no clock, no random numbers.
#![cfg_attr(target_arch = "wasm32", no_std)]

/// A unit with a band to erase.
struct Unit {
    /// Host reads that wait for it or run on it.
    reads_waiting: u32,
    /// Programs that wait for it or run on it.
    #[allow(dead_code)]
    appends_waiting: u32,
    /// Since its last command ended.
    #[allow(dead_code)]
    quiet_ns: u64,
    /// What the settings call idle.
    #[allow(dead_code)]
    idle_ns: u64,
    /// Its bands that are erased and ready.
    bands_clean: u32,
    /// Its bands that the application asked to erase.
    #[allow(dead_code)]
    asked: u32,
}

/// Erase now? The same view must get the same answer.
fn erase_wanted(unit: &Unit) -> bool {
    unit.reads_waiting == 0 || unit.bands_clean == 0
}

// What follows is the interface, version 1; there is nothing to change.

#[unsafe(no_mangle)]
pub extern "C" fn weir_abi() -> i32 {
    1
}

#[unsafe(no_mangle)]
pub extern "C" fn erase_now(
    reads_waiting: u32,
    appends_waiting: u32,
    quiet_ns: u64,
    idle_ns: u64,
    bands_clean: u32,
    asked: u32,
) -> u32 {
    erase_wanted(&Unit { reads_waiting, appends_waiting, quiet_ns, idle_ns, bands_clean, asked })
        .into()
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
    fn reads_go_first_while_there_is_a_band_ready() {
        let unit = |reads_waiting, bands_clean| Unit {
            reads_waiting,
            appends_waiting: 0,
            quiet_ns: 0,
            idle_ns: 0,
            bands_clean,
            asked: 0,
        };
        assert!(!erase_wanted(&unit(1, 1)));
        assert!(erase_wanted(&unit(0, 1)) && erase_wanted(&unit(1, 0)));
    }
}
