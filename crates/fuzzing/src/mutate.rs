//! Inputs made of others by a seed: the changes that find most in decoders.

use flash::Random;

/// Numbers at the borders of what fields hold.
const BORDERS: [u64; 12] = [
    0,
    1,
    7,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

/// The same as people write them, and what breaks a line or a value.
const WORDS: [&[u8]; 14] = [
    b"0",
    b"-1",
    b"18446744073709551616",
    b"1e308",
    b"nan",
    b"\"",
    b"[",
    b"]",
    b"\n",
    b"=",
    b",",
    b"\0",
    b"\xff\xfe",
    b"99999999999999999999TiB",
];

/// Longest input: what a decoder does with more it does with this.
const BYTES_MAX: usize = 16 << 10;

/// Makes inputs.
pub struct Mutator {
    random: Random,
}

impl Mutator {
    /// The same `random`, the same inputs.
    pub fn new(random: Random) -> Self {
        Self { random }
    }

    /// One of `seeds`, changed in one to eight places.
    ///
    /// # Panics
    /// If there are no seeds.
    pub fn input(&mut self, seeds: &[&[u8]]) -> Vec<u8> {
        let mut bytes = self.one_of(seeds).to_vec();
        for _ in 0..1 + self.random.below(8) {
            self.change(&mut bytes, seeds);
        }
        bytes.truncate(BYTES_MAX);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, seeds: &[&[u8]]) {
        let at = self.place(bytes.len());
        match self.random.below(9) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.random.below(8),
            1 if at < bytes.len() => bytes[at] = self.random.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..at + self.place((bytes.len() - at).min(64)))),
            4 => {
                let piece = bytes[at..at + self.place((bytes.len() - at).min(256))].to_vec();
                let to = self.place(bytes.len());
                bytes.splice(to..to, piece);
            }
            5 => {
                let number = self.one_of(&BORDERS);
                let width = 1usize << self.random.below(4);
                let ends = [number.to_le_bytes(), number.to_be_bytes()];
                let field =
                    if self.random.chance(0.5) { &ends[0][..width] } else { &ends[1][8 - width..] };
                let end = bytes.len().min(at + width);
                bytes.splice(at..end, field.iter().copied());
            }
            6 => {
                let word = self.one_of(&WORDS);
                bytes.splice(at..at, word.iter().copied());
            }
            7 => {
                let other = self.one_of(seeds);
                let from = self.place(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let count = 1 + self.random.below(16);
                let noise: Vec<u8> = (0..count).map(|_| self.random.below(256) as u8).collect();
                bytes.splice(at..at, noise);
            }
        }
    }

    /// From 0 to `len`, both possible.
    fn place(&mut self, len: usize) -> usize {
        self.random.below(len as u64 + 1) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_input_again_and_most_make_another() {
        let seeds: [&[u8]; 2] = [b"hello, world", b""];
        let input = |seed| Mutator::new(Random::new(seed)).input(&seeds);
        let mut inputs: Vec<Vec<u8>> = (0..1000).map(input).collect();
        assert_eq!(inputs[7], input(7));
        inputs.sort();
        inputs.dedup();
        // Some changes leave nothing, or of the empty seed what it was.
        assert!(inputs.len() > 800, "{}", inputs.len());
    }
}
