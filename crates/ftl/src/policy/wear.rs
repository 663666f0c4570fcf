//! Which free band to open, and when cold data must move so that its band wears too.

use super::{Purpose, WearPolicy, WearView};

/// No levelling: the first free band.
#[derive(Clone, Copy, Debug)]
pub struct Unlevelled;

impl WearPolicy for Unlevelled {
    fn name(&self) -> &'static str {
        "none"
    }

    fn pick_free(&mut self, _: &[u32], _: Purpose) -> usize {
        0
    }

    fn move_wanted(&mut self, _: &WearView) -> bool {
        false
    }
}

/// The least worn free band. Bands with cold data never come round.
#[derive(Clone, Copy, Debug)]
pub struct Dynamic;

impl WearPolicy for Dynamic {
    fn name(&self) -> &'static str {
        "dynamic"
    }

    fn pick_free(&mut self, erase_counts: &[u32], _: Purpose) -> usize {
        least(erase_counts)
    }

    fn move_wanted(&mut self, _: &WearView) -> bool {
        false
    }
}

/// As `Dynamic`, and relocated data goes to the most worn free band; when the most worn band is
/// ahead of the least worn full one by more than `spread_max` erases, that one's data moves.
#[derive(Clone, Copy, Debug)]
pub struct Static {
    /// Erases that the most worn band may be ahead.
    pub spread_max: u32,
}

impl WearPolicy for Static {
    fn name(&self) -> &'static str {
        "static"
    }

    fn pick_free(&mut self, erase_counts: &[u32], purpose: Purpose) -> usize {
        if purpose == Purpose::Relocate { most(erase_counts) } else { least(erase_counts) }
    }

    fn move_wanted(&mut self, view: &WearView) -> bool {
        view.spread() > self.spread_max
    }
}

/// As `Static`, with a window that closes as the flash ages (Murugan and Du, Rejuvenator, 2011): bands
/// may be apart by a share of the erases that the most worn one has left. While there are many,
/// data moves for wear hardly ever; in the end all bands have the same few left.
#[derive(Clone, Copy, Debug)]
pub struct Rejuvenation {
    /// The window, in percent of the erases left.
    pub percent: u32,
}

/// Narrower no window is: data would move for every erase.
const WINDOW_MIN: u32 = 2;

impl WearPolicy for Rejuvenation {
    fn name(&self) -> &'static str {
        "rejuvenation"
    }

    fn pick_free(&mut self, erase_counts: &[u32], purpose: Purpose) -> usize {
        if purpose == Purpose::Relocate { most(erase_counts) } else { least(erase_counts) }
    }

    fn move_wanted(&mut self, view: &WearView) -> bool {
        let left = u64::from(view.endurance.saturating_sub(view.erase_count_most));
        let window = (left * u64::from(self.percent) / 100) as u32;
        view.spread() > window.max(WINDOW_MIN)
    }
}

/// As `Static`, but data moves only when the application asks.
#[derive(Clone, Copy, Debug)]
pub struct Asked;

impl WearPolicy for Asked {
    fn name(&self) -> &'static str {
        "asked"
    }

    fn pick_free(&mut self, erase_counts: &[u32], purpose: Purpose) -> usize {
        if purpose == Purpose::Relocate { most(erase_counts) } else { least(erase_counts) }
    }

    fn move_wanted(&mut self, _: &WearView) -> bool {
        false
    }
}

fn least(erase_counts: &[u32]) -> usize {
    (0..erase_counts.len()).min_by_key(|&index| (erase_counts[index], index)).unwrap_or(0)
}

fn most(erase_counts: &[u32]) -> usize {
    (0..erase_counts.len())
        .max_by_key(|&index| (erase_counts[index], usize::MAX - index))
        .unwrap_or(0)
}
