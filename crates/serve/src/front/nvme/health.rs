//! The health of the device, as the SMART log tells it. Each shard says how its part is, after work at most once a
//! second; whoever asks for the log, on whichever shard, gets the sum.

use std::sync::{Mutex, PoisonError};

/// What a shard knows of its part of the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Health {
    /// Blocks that hosts have read.
    pub blocks_read: u64,
    /// Blocks that hosts have written.
    pub blocks_written: u64,
    /// Reads of hosts.
    pub reads: u64,
    /// Writes of hosts.
    pub writes: u64,
    /// Reads that gave no data back.
    pub media_errors: u64,
    /// Blocks that went to flash, for whatever reason.
    pub blocks_programmed: u64,
    /// Blocks that were erased.
    pub blocks_erased: u64,
    /// Erases of all blocks so far, also before this start.
    pub erases: u64,
    /// Erases that all blocks together are made for.
    pub endurance: u64,
    /// Flash beyond what the volumes hold, in blocks, as the device was made.
    pub spare: u64,
    /// Of it, what has been retired.
    pub retired: u64,
    /// 1 if nothing is written any more.
    pub read_only: u64,
}

impl Health {
    fn add(&mut self, part: &Self) {
        self.blocks_read += part.blocks_read;
        self.blocks_written += part.blocks_written;
        self.reads += part.reads;
        self.writes += part.writes;
        self.media_errors += part.media_errors;
        self.blocks_programmed += part.blocks_programmed;
        self.blocks_erased += part.blocks_erased;
        self.erases += part.erases;
        self.endurance += part.endurance;
        self.spare += part.spare;
        self.retired += part.retired;
        self.read_only += part.read_only;
    }

    /// Spare flash that is left, in percent.
    fn spare_left(&self) -> u8 {
        let left = self.spare.saturating_sub(self.retired);
        (left * 100).checked_div(self.spare).unwrap_or(100).min(100) as u8
    }

    /// The SMART log (NVMe base specification 2.0, figure 207).
    pub fn log(&self) -> Vec<u8> {
        let mut log = vec![0; 512];
        let spare_left = self.spare_left();
        let low = u8::from(spare_left < SPARE_THRESHOLD);
        log[0] = low | if self.read_only > 0 { 0b1000 } else { 0 };
        // Emulated flash and files have no temperature; 27 degrees, as the field must say something.
        log[1..3].copy_from_slice(&300u16.to_le_bytes());
        let used = (self.erases * 100).checked_div(self.endurance).unwrap_or(0).min(255);
        (log[3], log[4], log[5]) = (spare_left, SPARE_THRESHOLD, used as u8);
        // Data units are thousands of sectors, rounded up.
        let units = |blocks: u64| (blocks * 8).div_ceil(1000);
        for (at, value) in [
            (32, units(self.blocks_read)),
            (48, units(self.blocks_written)),
            (64, self.reads),
            (80, self.writes),
            (160, self.media_errors),
        ] {
            log[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        log
    }
}

/// Percent of the spare flash below which the log warns.
const SPARE_THRESHOLD: u8 = 10;

/// What the shards last said, each at most once a second, so that a lock for each costs nothing.
pub struct Healths(Vec<Mutex<Health>>);

impl Healths {
    /// Of so many shards.
    pub fn new(shards: usize) -> Self {
        Self((0..shards).map(|_| Mutex::default()).collect())
    }

    /// A shard says how its part is.
    pub fn tell(&self, shard: usize, health: Health) {
        *self.0[shard].lock().unwrap_or_else(PoisonError::into_inner) = health;
    }

    /// Of the whole device.
    pub fn sum(&self) -> Health {
        let mut sum = Health::default();
        for part in &self.0 {
            sum.add(&part.lock().unwrap_or_else(PoisonError::into_inner));
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_sums_what_all_shards_say() {
        let healths = Healths::new(2);
        let one = Health {
            blocks_read: 125,
            blocks_written: 126,
            reads: 3,
            writes: 4,
            media_errors: 1,
            blocks_programmed: 150,
            blocks_erased: 64,
            erases: 50,
            endurance: 1000,
            spare: 100,
            retired: 30,
            read_only: 0,
        };
        healths.tell(0, one);
        healths.tell(1, Health { erases: 250, ..one });
        let log = healths.sum().log();
        let value = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
        assert_eq!((log[0], log[3], log[4], log[5]), (0, 70, 10, 15));
        assert_eq!([32, 48, 64, 80, 160].map(value), [2, 3, 6, 8, 2]);
    }

    #[test]
    fn a_device_without_spare_flash_or_that_is_not_written_to_warns() {
        let worn = Health { spare: 100, retired: 91, erases: 9, endurance: 1, ..Health::default() };
        assert_eq!(worn.log()[..6], [1, 44, 1, 9, 10, 255]);
        let read_only = Health { read_only: 1, ..Health::default() };
        assert_eq!(read_only.log()[..6], [8, 44, 1, 100, 10, 0]);
    }
}
