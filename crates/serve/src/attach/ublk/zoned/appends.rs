//! The appends of a disk that are asked and not answered, in a file that outlives the process: the driver asks the next process
//! for all that this one has not answered, and an append that was carried out must not be carried out again. What lies where
//! in the zone does not tell, since others go before and behind it.
//!
//! The file is on a file system in memory, as records are. It has a place of [`NOTE_BYTES`] for each append that is under way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const NOTE_BYTES: usize = 16;

/// An append, by what makes it another than others: where, how long, and of which data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Note {
    /// The first block of its zone.
    pub zone: u64,
    /// Blocks of its data, at least 1.
    pub blocks: u32,
    /// Their CRC-32C.
    pub crc: u32,
}

impl Note {
    fn to_bytes(self) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        bytes[..8].copy_from_slice(&self.zone.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[12..].copy_from_slice(&self.crc.to_le_bytes());
        bytes
    }

    /// `None` if the place is free.
    fn of(bytes: &[u8; NOTE_BYTES]) -> Option<Self> {
        let [zone @ .., a, b, c, d, e, f, g, h] = *bytes;
        let (blocks, crc) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        (blocks > 0).then_some(Self { zone: u64::from_le_bytes(zone), blocks, crc })
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Appends {
    file: File,
    /// Places that are free, and the first behind all.
    free: Vec<u32>,
    end: u32,
    /// What a process before has left, by its place.
    left: Vec<(u32, Note)>,
}

impl Appends {
    /// Of a new device, or with what the process before has left of one that was there.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn open(path: &Path, was_there: bool) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(!was_there).open(path)?;
        let mut all = vec![0; file.metadata()?.len() as usize];
        file.read_exact_at(&mut all, 0)?;
        let (mut free, mut left) = (Vec::new(), Vec::new());
        let (places, _) = all.as_chunks();
        for (place, bytes) in places.iter().enumerate() {
            match Note::of(bytes) {
                Some(note) => left.push((place as u32, note)),
                None => free.push(place as u32),
            }
        }
        Ok(Self { file, free, end: places.len() as u32, left })
    }

    fn put(&self, place: u32, bytes: &[u8; NOTE_BYTES]) -> io::Result<()> {
        self.file.write_all_at(bytes, u64::from(place) * NOTE_BYTES as u64)
    }

    /// Notes one that is going to be asked. Its place, which is to be given back when it is answered.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn note(&mut self, note: Note) -> io::Result<u32> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        });
        self.put(place, &note.to_bytes())?;
        Ok(place)
    }

    /// The one of this place is answered.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn answered(&mut self, place: u32) -> io::Result<()> {
        self.put(place, &[0; NOTE_BYTES])?;
        self.free.push(place);
        Ok(())
    }

    /// Whether the process before may have carried this one out. It is known to be answered from then on.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn was_left(&mut self, note: Note) -> io::Result<bool> {
        let Some(at) = self.left.iter().position(|(_, left)| *left == note) else {
            return Ok(false);
        };
        let (place, _) = self.left.swap_remove(at);
        self.answered(place)?;
        Ok(true)
    }

    /// A zone is emptied: whatever was appended to it is gone.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn forget(&mut self, concerns: impl Fn(u64) -> bool) -> io::Result<()> {
        while let Some(at) = self.left.iter().position(|(_, left)| concerns(left.zone)) {
            let (place, _) = self.left.swap_remove(at);
            self.answered(place)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_that_a_process_has_not_answered_are_known_to_the_next_one_once() {
        let path = std::env::temp_dir().join(format!("weir-appends-{}", std::process::id()));
        let note = |zone, crc| Note { zone, blocks: 2, crc };
        let mut first = Appends::open(&path, false).unwrap();
        let places = [1, 2, 3].map(|crc| first.note(note(0, crc)).unwrap());
        first.note(note(1024, 1)).unwrap();
        first.answered(places[1]).unwrap();
        assert!(!first.was_left(note(0, 1)).unwrap(), "its own ones are no other's");
        drop(first);
        let mut second = Appends::open(&path, true).unwrap();
        assert!(!second.was_left(note(0, 2)).unwrap(), "it was answered");
        assert!(second.was_left(note(0, 1)).unwrap());
        assert!(!second.was_left(note(0, 1)).unwrap(), "and now it is");
        // A new one takes no place that is still somebody's.
        second.note(note(2048, 9)).unwrap();
        drop(second);
        let mut third = Appends::open(&path, true).unwrap();
        third.forget(|zone| zone == 1024).unwrap();
        let left: Vec<bool> = [(0, 3), (1024, 1), (2048, 9)]
            .map(|(zone, crc)| third.was_left(note(zone, crc)).unwrap())
            .into();
        assert_eq!(left, [true, false, true]);
        drop(third);
        let mut other = Appends::open(&path, false).unwrap();
        assert!(!other.was_left(note(0, 3)).unwrap(), "another device");
        std::fs::remove_file(path).unwrap();
    }
}
