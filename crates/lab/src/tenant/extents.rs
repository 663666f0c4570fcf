//! Files of a tenant: which extents of its part are free. Next fit, as file systems on flash go on
//! where they allocated last.

/// Bytes of an extent.
pub const EXTENT_BYTES: u64 = 1 << 20;

/// A file: where its pieces are, in order.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct File {
    /// First byte and bytes of each piece.
    pub pieces: Vec<(u64, u64)>,
    /// Bytes in it.
    pub bytes: u64,
}

impl File {
    /// The places of the `bytes` from `from` on, piece by piece.
    pub fn places(&self, from: u64, bytes: u64) -> Vec<(u64, u64)> {
        let (mut at, mut places) = (0, Vec::new());
        let end = (from + bytes).min(self.bytes);
        for &(offset, length) in &self.pieces {
            let (first, last) = (from.max(at), end.min(at + length));
            if first < last {
                places.push((offset + (first - at), last - first));
            }
            at += length;
        }
        places
    }
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Extents {
    base: u64,
    used: Vec<bool>,
    free: u64,
    next: usize,
}

impl Extents {
    /// All extents from `base` to `end` are free.
    pub fn new(base: u64, end: u64) -> Self {
        let count = ((end - base) / EXTENT_BYTES) as usize;
        Self { base, used: vec![false; count], free: count as u64, next: 0 }
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        self.free * EXTENT_BYTES
    }

    /// Room for a file; neighbours are joined. `None` if there is not enough.
    pub fn allocate(&mut self, bytes: u64) -> Option<File> {
        let mut wanted = bytes.div_ceil(EXTENT_BYTES);
        if wanted > self.free {
            return None;
        }
        self.free -= wanted;
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        while wanted > 0 {
            let index = self.next;
            self.next = (self.next + 1) % self.used.len();
            if std::mem::replace(&mut self.used[index], true) {
                continue;
            }
            wanted -= 1;
            let offset = self.base + index as u64 * EXTENT_BYTES;
            match pieces.last_mut() {
                Some((first, length)) if *first + *length == offset => *length += EXTENT_BYTES,
                _ => pieces.push((offset, EXTENT_BYTES)),
            }
        }
        Some(File { pieces, bytes })
    }

    /// The file is deleted.
    pub fn release(&mut self, file: &File) {
        for &(offset, length) in &file.pieces {
            let first = (offset - self.base) / EXTENT_BYTES;
            for index in first..first + length / EXTENT_BYTES {
                assert!(
                    std::mem::replace(&mut self.used[index as usize], false),
                    "an extent of a file was free"
                );
                self.free += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EXTENT_BYTES, Extents};

    #[test]
    fn files_never_share_an_extent_and_come_back_whole() {
        let mut extents = Extents::new(EXTENT_BYTES, 9 * EXTENT_BYTES);
        let first = extents.allocate(3 * EXTENT_BYTES - 5).expect("there is room");
        let second = extents.allocate(4 * EXTENT_BYTES).expect("there is room");
        assert_eq!(first.pieces, [(EXTENT_BYTES, 3 * EXTENT_BYTES)]);
        assert_eq!(extents.allocate(2 * EXTENT_BYTES), None);
        extents.release(&first);
        // Next fit: the last free one, then from the start.
        let third = extents.allocate(3 * EXTENT_BYTES).expect("there is room");
        assert_eq!(
            third.pieces,
            [(8 * EXTENT_BYTES, EXTENT_BYTES), (EXTENT_BYTES, 2 * EXTENT_BYTES)]
        );
        extents.release(&second);
        extents.release(&third);
        assert_eq!(extents.free_bytes(), 8 * EXTENT_BYTES);
    }

    #[test]
    fn the_places_of_a_file_are_cut_at_its_pieces_and_end_with_it() {
        let mut extents = Extents::new(0, 4 * EXTENT_BYTES);
        let first = extents.allocate(EXTENT_BYTES).expect("there is room");
        extents.allocate(2 * EXTENT_BYTES).expect("there is room");
        extents.release(&first);
        let file = extents.allocate(2 * EXTENT_BYTES - 4096).expect("there is room");
        let places = file.places(EXTENT_BYTES - 4096, 3 * EXTENT_BYTES);
        assert_eq!(places, [(4 * EXTENT_BYTES - 4096, 4096), (0, EXTENT_BYTES - 4096)]);
    }
}
