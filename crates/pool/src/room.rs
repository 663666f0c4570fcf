//! Whether nodes can hold volumes, before these are made: each copy of a band takes a raw block, and copies of a band
//! lie in different failure domains. A raw block holds bands up to a length. For volumes that are *thin* no room is kept;
//! only what they hold by now is gone.

use crate::control::values::VolumeRecord;
use crate::controller::Room;
use crate::volume::{Wanted, plan};
use crate::words::{DomainId, MEMBERS_MAX, VolumeId};
use std::collections::BTreeMap;

/// The raw blocks of nodes, and the volumes that are to lie on them.
#[derive(Clone, Debug, Default)]
pub struct Rooms {
    nodes: Vec<(DomainId, Room)>,
    volumes: Vec<Kept>,
}

/// What a volume may take.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kept {
    bands: u64,
    copies: u64,
    /// Of each band.
    pages: u32,
}

impl From<&VolumeRecord> for Kept {
    fn from(record: &VolumeRecord) -> Self {
        let (bands, copies) = (record.bands.into(), record.replicas.into());
        Self { bands, copies, pages: record.shape.pages }
    }
}

impl Rooms {
    /// A node has these raw blocks.
    pub fn add_node(&mut self, domain: DomainId, room: Room) {
        self.nodes.push((domain, room));
    }

    /// A volume may take all of its bands, unless it is thin.
    pub fn add_volume(&mut self, record: &VolumeRecord) {
        if !record.is_thin {
            self.volumes.push(record.into());
        }
    }

    /// How many raw blocks there are.
    pub fn raw_blocks(&self) -> u64 {
        self.nodes.iter().map(|(_, room)| u64::from(room.bands)).sum()
    }

    /// Of them, those that hold something.
    pub fn used(&self) -> u64 {
        self.nodes.iter().map(|(_, room)| u64::from(room.used)).sum()
    }

    /// In so many failure domains.
    pub fn domains(&self) -> usize {
        self.of_domains(0, |_| 0).len()
    }

    /// Of the nodes that take bands, those that hold none of this volume, as their raw blocks are too small.
    pub fn too_small_for(&self, record: &VolumeRecord) -> usize {
        self.nodes.iter().filter(|(_, room)| room.pages < record.shape.pages).count()
    }

    /// Pages of the longest band that all its copies find a raw block for.
    pub fn pages_max(&self, copies: u8) -> u32 {
        let mut longest: BTreeMap<DomainId, u32> = BTreeMap::new();
        for (domain, room) in &self.nodes {
            let of = longest.entry(*domain).or_default();
            *of = room.pages.max(*of);
        }
        let mut longest: Vec<u32> = longest.into_values().collect();
        longest.sort_unstable_by(|a, b| b.cmp(a));
        let last = self.copies(copies.into()) as usize;
        last.checked_sub(1).map_or(0, |last| longest[last])
    }

    /// How many of them are kept for volumes.
    pub fn taken(&self) -> u64 {
        self.volumes.iter().map(|of| of.bands * self.copies(of.copies)).sum()
    }

    /// Whether all bands of another volume find a place beside all that is kept for others, and beside what is there by
    /// now.
    pub fn holds(&self, record: &VolumeRecord) -> bool {
        let another = Kept::from(record);
        let kept: Vec<Kept> = self.volumes.iter().copied().chain([another]).collect();
        // Who takes long bands takes short ones, too: those of at least a length have only the nodes that take these.
        // That may still be too little where short ones are in the way of long ones, in a domain that has both.
        kept.iter().all(|least| {
            let long: Vec<Kept> =
                kept.iter().copied().filter(|of| of.pages >= least.pages).collect();
            self.finds_places(&long, least.pages, |room| room.bands)
        }) && self
            .finds_places(&[another], another.pages, |room| room.bands.saturating_sub(room.used))
    }

    /// Whether all these bands and copies find a place where nodes that take bands of so many pages have so many raw
    /// blocks.
    ///
    /// Copies of bands and the domains that they lie in are the ones of a matrix whose rows have as many ones as
    /// a band has copies, and whose columns at most as many as a domain has raw blocks. By Gale and Ryser there is
    /// one if no set of rows has more ones than the columns let it; the worst sets are all bands with at least so
    /// many copies.
    fn finds_places(&self, volumes: &[Kept], pages: u32, room: impl Fn(&Room) -> u32) -> bool {
        let domains = self.of_domains(pages, room);
        let copies = |of: &Kept| self.copies(of.copies);
        (1..=MEMBERS_MAX as u64).all(|least| {
            let many = || volumes.iter().filter(|of| copies(of) >= least);
            let bands: u64 = many().map(|of| of.bands).sum();
            let all: u64 = many().map(|of| of.bands * copies(of)).sum();
            all <= domains.values().map(|&of| of.min(bands)).sum()
        })
    }

    /// Raw blocks of each failure domain, of nodes that take bands of so many pages.
    fn of_domains(&self, pages: u32, room: impl Fn(&Room) -> u32) -> BTreeMap<DomainId, u64> {
        let mut domains = BTreeMap::new();
        for (domain, of) in self.nodes.iter().filter(|(_, of)| of.pages >= pages) {
            *domains.entry(*domain).or_default() += u64::from(room(of));
        }
        domains
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
        replicas.min(self.domains() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::BandShape;
    use flash::Random;

    fn rooms(raw_blocks: &[u32]) -> Rooms {
        let mut rooms = Rooms::default();
        for (domain, raw_blocks) in (0..).zip(raw_blocks) {
            let room = Room { bands: *raw_blocks, used: 0, pages: 136 };
            rooms.add_node(DomainId(domain), room);
        }
        rooms
    }

    fn record(of: &Kept) -> VolumeRecord {
        let record = plan(VolumeId(1), &Wanted::new("v", 1)).expect("it can be");
        let shape = BandShape { pages: of.pages, ..record.shape };
        VolumeRecord { bands: of.bands as u32, replicas: of.copies as u8, shape, ..record }
    }

    fn volume(bands: u64, copies: u64) -> VolumeRecord {
        record(&Kept { bands, copies, pages: 136 })
    }

    /// Band after band goes where most is left of what takes it, the longest first, of these those with most copies:
    /// that finds a place if there is one, where a domain has nodes of one kind.
    fn places(mut left: Vec<Room>, volumes: &[Kept]) -> bool {
        let mut volumes = volumes.to_vec();
        volumes.sort_by_key(|of| std::cmp::Reverse((of.pages, of.copies)));
        for of in volumes {
            for _ in 0..of.bands {
                left.sort_by_key(|room| std::cmp::Reverse((room.pages >= of.pages, room.bands)));
                for room in &mut left[..of.copies as usize] {
                    let Some(less) = room.bands.checked_sub(1) else { return false };
                    if room.pages < of.pages {
                        return false;
                    }
                    room.bands = less;
                }
            }
        }
        true
    }

    #[test]
    fn volumes_fit_where_placing_band_after_band_finds_places_for_them() {
        let mut found = [0, 0];
        for seed in 0..6000 {
            let random = &mut Random::new(seed);
            let kinds = [64, if random.chance(0.5) { 136 } else { 64 }];
            let pages = |random: &mut Random| kinds[random.below(2) as usize];
            let some = |random: &mut Random| {
                let (bands, pages) = (random.below(12) as u32, pages(random));
                Room { bands, used: 0, pages }
            };
            let domains: Vec<Room> = (0..4).map(|_| some(random)).collect();
            let some = |random: &mut Random| {
                let (bands, copies) = (random.below(8), 1 + random.below(4));
                Kept { bands, copies, pages: pages(random) }
            };
            let volumes: Vec<Kept> = (0..1 + random.below(3)).map(|_| some(random)).collect();
            let mut rooms = Rooms::default();
            (0..).zip(&domains).for_each(|(domain, room)| rooms.add_node(DomainId(domain), *room));
            let (last, others) = volumes.split_last().expect("one at least");
            others.iter().for_each(|of| rooms.add_volume(&record(of)));
            let fits = rooms.holds(&record(last));
            let placed = places(domains.clone(), &volumes);
            let is_right = fits == placed || (fits && kinds[0] != kinds[1]);
            assert!(is_right, "seed={seed}: {fits} {domains:?} {volumes:?}");
            found[usize::from(placed)] += 1;
        }
        assert!(found.iter().all(|&count| count > 1000), "{found:?}");
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
