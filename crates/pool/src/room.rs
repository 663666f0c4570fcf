//! Whether nodes can hold volumes, before these are made: each copy of a band takes a raw block, and copies of a band
//! lie in different failure domains. For volumes that are *thin* no room is kept; only what they hold by now is gone.

use crate::control::values::VolumeRecord;
use crate::volume::{Wanted, plan};
use crate::words::{DomainId, MEMBERS_MAX, VolumeId};
use std::collections::BTreeMap;

/// The raw blocks of nodes, and the volumes that are to lie on them.
#[derive(Clone, Debug, Default)]
pub struct Rooms {
    /// Raw blocks of each failure domain, and those of them that hold something.
    domains: BTreeMap<DomainId, (u64, u64)>,
    /// Bands and copies of each.
    volumes: Vec<(u64, u64)>,
}

impl Rooms {
    /// A node has so many raw blocks, of which some hold something.
    pub fn add_node(&mut self, domain: DomainId, raw_blocks: u32, used: u32) {
        let (of, of_used) = self.domains.entry(domain).or_default();
        (*of, *of_used) = (*of + u64::from(raw_blocks), *of_used + u64::from(used));
    }

    /// A volume may take all of its bands, unless it is thin.
    pub fn add_volume(&mut self, record: &VolumeRecord) {
        if !record.is_thin {
            self.volumes.push((record.bands.into(), record.replicas.into()));
        }
    }

    /// How many raw blocks there are.
    pub fn raw_blocks(&self) -> u64 {
        self.domains.values().map(|(raw_blocks, _)| raw_blocks).sum()
    }

    /// Of them, those that hold something.
    pub fn used(&self) -> u64 {
        self.domains.values().map(|(_, used)| used).sum()
    }

    /// In so many failure domains.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// How many of them are kept for volumes.
    pub fn taken(&self) -> u64 {
        self.volumes.iter().map(|(bands, replicas)| bands * self.copies(*replicas)).sum()
    }

    /// Whether all bands of another volume find a place beside all that is kept for others, and beside what is there by
    /// now.
    pub fn holds(&self, record: &VolumeRecord) -> bool {
        let another = (record.bands.into(), record.replicas.into());
        let kept: Vec<(u64, u64)> = self.volumes.iter().copied().chain([another]).collect();
        self.finds_places(&kept, |(raw_blocks, _)| raw_blocks)
            && self.finds_places(&[another], |(raw_blocks, used)| raw_blocks.saturating_sub(used))
    }

    /// Whether all these bands and copies find a place where each domain has so many raw blocks.
    ///
    /// Copies of bands and the domains that they lie in are the ones of a matrix whose rows have as many ones as
    /// a band has copies, and whose columns at most as many as a domain has raw blocks. By Gale and Ryser there is
    /// one if no set of rows has more ones than the columns let it; the worst sets are all bands with at least so
    /// many copies.
    fn finds_places(&self, volumes: &[(u64, u64)], room: impl Fn((u64, u64)) -> u64) -> bool {
        let all = || volumes.iter().copied();
        (1..=MEMBERS_MAX as u64).all(|least| {
            let many = || all().filter(|(_, replicas)| self.copies(*replicas) >= least);
            let bands: u64 = many().map(|(bands, _)| bands).sum();
            let copies: u64 = many().map(|(bands, replicas)| bands * self.copies(replicas)).sum();
            copies <= self.domains.values().map(|&of| room(of).min(bands)).sum()
        })
    }

    /// Logical blocks of the largest volume like this one that finds a place.
    pub fn blocks_max(&self, wanted: &Wanted) -> u64 {
        let holds = |blocks: u64| {
            let like = Wanted { blocks, ..wanted.clone() };
            plan(VolumeId(0), &like).is_ok_and(|record| self.holds(&record))
        };
        let (mut fits, mut too_many) = (0, wanted.blocks + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if holds(middle) { fits = middle } else { too_many = middle }
        }
        fits
    }

    /// Where domains are missing there are no more copies than domains: the volume goes on with these, or waits.
    fn copies(&self, replicas: u64) -> u64 {
        replicas.min(self.domains.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;

    fn rooms(raw_blocks: &[u32]) -> Rooms {
        let mut rooms = Rooms::default();
        for (domain, raw_blocks) in (0..).zip(raw_blocks) {
            rooms.add_node(DomainId(domain), *raw_blocks, 0);
        }
        rooms
    }

    fn volume(bands: u32, replicas: u8) -> VolumeRecord {
        let record = plan(VolumeId(1), &Wanted::new("v", 1)).expect("it can be");
        VolumeRecord { bands, replicas, ..record }
    }

    /// Band after band goes where most is left, those with most copies first: that finds a place if there is one.
    fn places(mut left: Vec<u32>, volumes: &[(u32, u8)]) -> bool {
        let mut volumes = volumes.to_vec();
        volumes.sort_by_key(|(_, replicas)| std::cmp::Reverse(*replicas));
        for (bands, replicas) in volumes {
            for _ in 0..bands {
                left.sort_by_key(|raw_blocks| std::cmp::Reverse(*raw_blocks));
                for raw_blocks in &mut left[..usize::from(replicas)] {
                    let Some(less) = raw_blocks.checked_sub(1) else { return false };
                    *raw_blocks = less;
                }
            }
        }
        true
    }

    #[test]
    fn volumes_fit_where_placing_band_after_band_finds_places_for_them() {
        let mut found = [0, 0];
        for seed in 0..3000 {
            let random = &mut Random::new(seed);
            let domains: Vec<u32> = (0..4).map(|_| random.below(12) as u32).collect();
            let some = |random: &mut Random| (random.below(8) as u32, 1 + random.below(4) as u8);
            let volumes: Vec<(u32, u8)> = (0..1 + random.below(3)).map(|_| some(random)).collect();
            let mut rooms = rooms(&domains);
            let (last, others) = volumes.split_last().expect("one at least");
            others.iter().for_each(|of| rooms.add_volume(&volume(of.0, of.1)));
            let fits = rooms.holds(&volume(last.0, last.1));
            assert_eq!(
                fits,
                places(domains.clone(), &volumes),
                "seed={seed}: {domains:?} {volumes:?}"
            );
            found[usize::from(fits)] += 1;
        }
        assert!(found.iter().all(|&count| count > 500), "{found:?}");
    }

    #[test]
    fn one_large_domain_is_of_no_use_to_second_copies_and_few_domains_hold_fewer_copies() {
        assert!(
            rooms(&[100, 10]).holds(&volume(10, 2)) && !rooms(&[100, 10]).holds(&volume(11, 2))
        );
        assert!(rooms(&[100]).holds(&volume(100, 2)), "it goes on with one copy");
        let mut all = rooms(&[50, 50]);
        all.add_volume(&volume(40, 2));
        assert_eq!((all.raw_blocks(), all.taken(), all.domains()), (100, 80, 2));
        assert!(all.holds(&volume(10, 2)) && !all.holds(&volume(11, 2)));
    }

    #[test]
    fn the_largest_volume_that_fits_does_and_none_larger_does() {
        let rooms = rooms(&[700, 700, 700]);
        let wanted = Wanted::new("v", 1 << 28);
        let most = rooms.blocks_max(&wanted);
        let holds = |blocks| {
            let record = plan(VolumeId(1), &Wanted { blocks, ..wanted.clone() });
            rooms.holds(&record.expect("it can be"))
        };
        assert!(most > 1 << 20 && holds(most) && !holds(most + 1), "{most}");
        assert_eq!(Rooms::default().blocks_max(&Wanted::new("v", 0)), 0);
    }
}
