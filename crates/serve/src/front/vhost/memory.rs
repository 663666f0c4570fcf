//! A guest's memory, as its hypervisor shares it: some regions of files, each at an address of the guest, and at one of
//! the hypervisor, by which it tells where rings are.
//!
//! Invariant: regions do not overlap, neither by the one address nor by the other; what lies between them is nobody's,
//! and nothing there is ever touched, whatever a guest names.

use super::mapping::{BadMapping, Mapping};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

/// Most regions of a guest.
pub const REGIONS_MAX: usize = 8;

/// What is told of a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Region {
    /// Where the guest has it.
    pub guest: u64,
    /// Its size.
    pub bytes: u64,
    /// Where the hypervisor has it.
    pub user: u64,
    /// Where in its file it begins.
    pub offset: u64,
}

/// What is wrong with a table of regions.
#[derive(Debug)]
pub enum BadMemory {
    /// There are none, or too many.
    Count(usize),
    /// One has no bytes, or reaches beyond all addresses.
    Range(Region),
    /// Two of them overlap.
    Overlap(Region, Region),
    /// Its file.
    File(Region, BadMapping),
}

impl fmt::Display for BadMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |region: &Region| {
            format!("the region of {:#x} bytes at {:#x}", region.bytes, region.guest)
        };
        match self {
            Self::Count(count) => {
                write!(f, "the guest's memory has {count} regions: 1 to {REGIONS_MAX} are known")
            }
            Self::Range(region) => write!(f, "{} of the guest's memory is none", at(region)),
            Self::Overlap(one, other) => {
                write!(f, "{} of the guest's memory overlaps {}", at(one), at(other))
            }
            Self::File(region, why) => write!(f, "{} of the guest's memory {why}", at(region)),
        }
    }
}

struct Mapped {
    region: Region,
    mapping: Mapping,
}

/// See the head of this file.
pub struct Memory {
    /// By the guest's addresses.
    regions: Vec<Mapped>,
}

impl Memory {
    /// Maps these regions, each of a file of its own.
    pub fn map(regions: &[Region], files: &[OwnedFd]) -> Result<Self, BadMemory> {
        if regions.is_empty() || regions.len() > REGIONS_MAX || regions.len() != files.len() {
            return Err(BadMemory::Count(regions.len()));
        }
        check(regions)?;
        let mut mapped = Vec::with_capacity(regions.len());
        for (&region, file) in regions.iter().zip(files) {
            let mapping = Mapping::of(file, region.offset, region.bytes);
            let mapping = mapping.map_err(|why| BadMemory::File(region, why))?;
            mapped.push(Mapped { region, mapping });
        }
        mapped.sort_unstable_by_key(|mapped| mapped.region.guest);
        Ok(Self { regions: mapped })
    }

    /// True if all bytes from `address` on are the guest's, of which no bytes have all.
    pub fn covers(&self, address: u64, bytes: u64) -> bool {
        let (mut at, mut left) = (address, bytes);
        while left > 0 {
            let Some((_, here)) = self.find(at, left) else { return false };
            left -= here;
            // What is found ends before the end of all addresses, or is all that was looked for.
            at = at.wrapping_add(here);
        }
        true
    }

    /// Copies from the guest. False, and nothing is promised of `into`, if not all of it is the guest's.
    pub fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let (mut at, mut done) = (address, 0);
        while done < into.len() {
            let Some((from, here)) = self.find(at, (into.len() - done) as u64) else {
                return false;
            };
            let to = &mut into[done..done + here as usize];
            // SAFETY: `find` gives so many bytes of a mapping; the slice is ours alone.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
            done += here as usize;
            at = at.wrapping_add(here);
        }
        true
    }

    /// Copies to the guest. False, and a part may be copied, if not all of it is the guest's.
    pub fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let (mut at, mut done) = (address, 0);
        while done < bytes.len() {
            let Some((to, here)) = self.find(at, (bytes.len() - done) as u64) else { return false };
            let from = &bytes[done..done + here as usize];
            // SAFETY: as in `read`; what is shared is not lent to anybody.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
            done += here as usize;
            at = at.wrapping_add(here);
        }
        true
    }

    /// Where the bytes are that the hypervisor has at an address, if one region has all of them.
    pub fn of_hypervisor(&self, user: u64, bytes: u64) -> Option<NonNull<u8>> {
        let mapped = self.regions.iter().find(|mapped| {
            let Region { user: first, bytes: all, .. } = mapped.region;
            user.checked_sub(first).is_some_and(|inside| inside < all && bytes <= all - inside)
        })?;
        // SAFETY: within the region, as just found.
        Some(unsafe { mapped.mapping.start().add((user - mapped.region.user) as usize) })
    }

    /// A part of it was taken away.
    pub fn is_spoilt(&self) -> bool {
        self.regions.iter().any(|mapped| mapped.mapping.is_spoilt())
    }

    /// Where an address is, and how many of `bytes` (not 0) follow each other there.
    fn find(&self, address: u64, bytes: u64) -> Option<(NonNull<u8>, u64)> {
        let mapped = self.regions.iter().find(|mapped| {
            address.checked_sub(mapped.region.guest).is_some_and(|at| at < mapped.region.bytes)
        })?;
        let inside = address - mapped.region.guest;
        // SAFETY: within the region, as just found.
        let start = unsafe { mapped.mapping.start().add(inside as usize) };
        Some((start, bytes.min(mapped.region.bytes - inside)))
    }
}

fn check(regions: &[Region]) -> Result<(), BadMemory> {
    for (at, one) in regions.iter().enumerate() {
        let ends = |start: u64| start.checked_add(one.bytes).is_some();
        if one.bytes == 0 || !ends(one.guest) || !ends(one.user) || !ends(one.offset) {
            return Err(BadMemory::Range(*one));
        }
        let overlap = |a: u64, b: u64, bytes: u64| a < b + bytes && b < a + one.bytes;
        let met = regions[..at].iter().find(|other| {
            overlap(one.guest, other.guest, other.bytes)
                || overlap(one.user, other.user, other.bytes)
        });
        if let Some(other) = met {
            return Err(BadMemory::Overlap(*one, *other));
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::super::mapping::shared_file;
    use super::*;

    /// Memory of these regions (guest's address and bytes), in a file each; the hypervisor has it 1 TiB higher.
    pub fn memory(regions: &[(u64, u64)]) -> Memory {
        let (regions, files): (Vec<Region>, Vec<OwnedFd>) = regions
            .iter()
            .map(|&(guest, bytes)| {
                let region = Region { guest, bytes, user: guest + (1 << 40), offset: 0 };
                (region, shared_file(c"guest", bytes).unwrap())
            })
            .unzip();
        Memory::map(&regions, &files).unwrap()
    }

    #[test]
    fn what_goes_over_the_border_of_two_regions_is_copied_and_what_goes_into_a_hole_is_not() {
        let memory = memory(&[(0x3000, 0x1000), (0x1000, 0x2000), (0x8000, 0x1000)]);
        let bytes: Vec<u8> = (0..0x1800u32).map(|i| (i % 251) as u8).collect();
        assert!(memory.write(0x2400, &bytes));
        let mut found = vec![0; bytes.len()];
        assert!(memory.read(0x2400, &mut found));
        assert!(found == bytes);
        for (address, len, is_there) in [
            (0x1000, 0x3000, true),
            (0x1000, 0x3001, false),
            (0xfff, 1, false),
            (0x3fff, 2, false),
            (0x8000, 0x1000, true),
            (0x9000, 0, true),
            (u64::MAX, 2, false),
            (0x8fff, u64::MAX, false),
        ] {
            assert_eq!(memory.covers(address, len), is_there, "{len:#x} at {address:#x}");
        }
        assert!(!memory.read(0x3fff, &mut [0; 2]) && !memory.write(0x4000, &[0]));
        let user = |user: u64, bytes| memory.of_hypervisor((1 << 40) + user, bytes).is_some();
        assert!(user(0x1000, 0x2000) && !user(0x1000, 0x2001) && !user(0x7fff, 1));
        assert!(!memory.is_spoilt());
    }

    #[test]
    fn tables_that_overlap_or_hold_nothing_are_refused() {
        let region = |guest, bytes, user| Region { guest, bytes, user, offset: 0 };
        let file = || shared_file(c"guest", 0x4000).unwrap();
        let map = |regions: &[Region]| {
            let files: Vec<OwnedFd> = regions.iter().map(|_| file()).collect();
            Memory::map(regions, &files).map(drop)
        };
        let one = region(0x1000, 0x1000, 0x100_0000);
        assert!(map(&[one, region(0x2000, 0x1000, 0x100_1000)]).is_ok());
        assert!(matches!(map(&[]), Err(BadMemory::Count(0))));
        assert!(matches!(map(&[one; 9]), Err(BadMemory::Count(9))));
        let wrong = [
            region(0x1fff, 0x1000, 0x200_0000),
            region(0x0, 0x1001, 0x200_0000),
            region(0x1400, 0x100, 0x200_0000),
            region(0x8000, 0x1000, 0x100_0fff),
        ];
        for other in wrong {
            assert!(matches!(map(&[one, other]), Err(BadMemory::Overlap(..))), "{other:?}");
        }
        for none in [
            region(0x9000, 0, 0x300_0000),
            region(u64::MAX, 2, 0x300_0000),
            region(0x9000, 0x1000, u64::MAX - 5),
            Region { offset: u64::MAX, ..one },
        ] {
            assert!(matches!(map(&[none]), Err(BadMemory::Range(_))), "{none:?}");
        }
        let short = region(0, 0x5000, 0x400_0000);
        assert!(matches!(map(&[short]), Err(BadMemory::File(_, BadMapping::Short { .. }))));
        assert!(matches!(Memory::map(&[one], &[]), Err(BadMemory::Count(1))));
    }
}
