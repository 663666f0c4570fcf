//! What an application that knows its own load decides: when a unit erases, and when cold data moves
//! to level wear. With the policies `asked` nothing of it happens without being asked, unless space
//! demands it; under other policies what is asked for happens beside what they decide. And what a
//! medium that knows its own health asks for: that a band which it cannot mend is emptied.

use crate::space::bands::BandState;
use crate::whole::Ftl;
use flash::BlockId;

impl Ftl {
    /// Erases up to `bands` emptied bands of `unit`, as soon as the unit's queue comes to it.
    /// Returns how many are there to be erased; what empties later is not meant. Drain
    /// [`Ftl::poll`] after it.
    pub fn ask_erase(&mut self, unit: u32, bands: u32) -> Result<u32, String> {
        self.check_unit(unit)?;
        let asked = (self.bands.dirty(unit).len() as u32).min(bands);
        self.units[unit as usize].erases_asked = asked;
        self.dispatch(unit);
        Ok(asked)
    }

    /// Moves the data of up to `bands` full bands of `unit`, the least worn first, so that these
    /// bands wear too. Returns how many will be moved. Drain [`Ftl::poll`] after it.
    pub fn ask_wear_move(&mut self, unit: u32, bands: u32) -> Result<u32, String> {
        self.check_unit(unit)?;
        let first = unit * self.geometry.blocks_per_unit;
        let all = (first..first + self.geometry.blocks_per_unit).map(BlockId);
        let mut full: Vec<_> = all
            .filter(|&block| self.bands[block].state == BandState::Full)
            .filter(|&block| !self.reclaim.wanted.iter().any(|wanted| wanted.0 == block))
            .map(|block| (self.bands[block].erase_count, block))
            .collect();
        full.sort_unstable();
        full.truncate(bands as usize);
        self.counters.wear_moves_asked += full.len() as u64;
        self.counters.wear_moves += full.len() as u64;
        let moves = full.iter().map(|&(_, block)| (block, "wear: the application asked"));
        self.reclaim.wanted.extend(moves);
        self.stirred = true;
        Ok(full.len() as u32)
    }

    /// Empties a band and erases it: the medium cannot mend what of it is damaged. What can be read of it is written anew
    /// elsewhere; of what cannot, its blocks say so from then on. A restart knows nothing of it. Drain [`Ftl::poll`]
    /// after it.
    pub fn ask_refresh(&mut self, block: BlockId) {
        let life = (block, self.bands[block].erase_count);
        if !self.refreshing.contains(&life) {
            self.refreshing.push(life);
        }
        self.stirred = true;
    }

    /// Goes on with the bands that are to be emptied, and forgets those that were erased.
    pub(crate) fn refresh_asked(&mut self) {
        for (block, erase_count) in std::mem::take(&mut self.refreshing) {
            let band = &self.bands[block];
            let is_over = matches!(band.state, BandState::Clean | BandState::Retired);
            if is_over || band.erase_count != erase_count {
                continue;
            }
            match band.state {
                BandState::Full => self.refresh(block),
                BandState::Open => self.fill_up(block),
                BandState::Checkpoint if self.checkpoint.is_idle() => self.checkpoint.want(),
                BandState::Dirty => self.erase_dirty(self.geometry.unit_of(block)),
                _ => {}
            }
            self.refreshing.push((block, erase_count));
        }
    }

    /// Whether one of them holds nothing any more, and waits for what nothing else may move on.
    pub(crate) fn refreshing_drains(&self) -> bool {
        self.refreshing.iter().any(|&(block, _)| self.bands[block].state == BandState::Draining)
    }

    fn erase_dirty(&mut self, unit: u32) {
        self.units[unit as usize].erases_asked = self.bands.dirty(unit).len() as u32;
        self.dispatch(unit);
    }

    fn check_unit(&self, unit: u32) -> Result<(), String> {
        if unit >= self.geometry.units {
            return Err(format!("unit {unit}: there are {}, from 0 on", self.geometry.units));
        }
        if !self.may_write() {
            return Err(format!("unit {unit}: nothing is erased or moved now, see the phase"));
        }
        if self.units[unit as usize].gone {
            return Err(format!("unit {unit} no longer answers"));
        }
        Ok(())
    }
}
