//! Diffie-Hellman over the finite fields of RFC 7919, by which a challenge is tied to a secret that only the two ends of a
//! dialogue know. Their primes follow from the digits of e, as the RFC says, and a test holds them against what it prints.

use num_bigint::BigUint;
use std::sync::OnceLock;

/// Groups: NVMe's number, the bits of the prime, and what makes it one. Larger ones are left out: hosts offer these too,
/// and whoever says a name that is known has a shard work for them before he has shown anything.
const GROUPS: [(u8, usize, u32); 3] =
    [(1, 2048, 560_316), (2, 3072, 2_625_351), (3, 4096, 5_736_041)];
/// None: the challenge goes as it is.
pub const NULL: u8 = 0;
/// Bytes of our exponents: beyond the 325 bits that the RFC wants for the largest group.
const EXPONENT_BYTES: usize = 42;

/// Our side of a group, for as long as the process lives.
struct Side {
    prime: BigUint,
    exponent: BigUint,
    public: Vec<u8>,
}

/// Draws bytes that nobody can guess; false if the system has none.
pub type Draw = fn(&mut [u8]) -> bool;

/// Our sides of the groups that were asked for.
#[derive(Default)]
pub struct Groups([OnceLock<Option<Side>>; GROUPS.len()]);

impl Groups {
    /// The first of our groups among these; those of the fewest bits come first, which all are enough.
    pub fn choose(offered: &[u8]) -> Option<u8> {
        let known = GROUPS.iter().map(|group| group.0).chain([NULL]);
        known.into_iter().find(|group| offered.contains(group))
    }

    fn side(&self, group: u8, draw: Draw) -> Option<&Side> {
        let at = GROUPS.iter().position(|known| known.0 == group)?;
        self.0[at].get_or_init(|| Side::new(GROUPS[at].1, GROUPS[at].2, draw)).as_ref()
    }

    /// What the other end needs; nothing for [`NULL`].
    pub fn public(&self, group: u8, draw: Draw) -> Option<Vec<u8>> {
        match group {
            NULL => Some(Vec::new()),
            _ => self.side(group, draw).map(|side| side.public.clone()),
        }
    }

    /// The secret that follows from what the other end has sent; `None` if that is none.
    pub fn shared(&self, group: u8, theirs: &[u8], draw: Draw) -> Option<Vec<u8>> {
        let side = self.side(group, draw)?;
        let value = BigUint::from_bytes_be(theirs);
        let one = BigUint::from(1u8);
        // 0, 1 and p - 1 would make a secret that everybody knows.
        if theirs.len() != side.public.len() || value <= one || value + &one >= side.prime {
            return None;
        }
        let secret = BigUint::from_bytes_be(theirs).modpow(&side.exponent, &side.prime);
        Some(padded(&secret, side.public.len()))
    }
}

impl Side {
    fn new(bits: usize, offset: u32, draw: Draw) -> Option<Self> {
        let prime = prime(bits, offset);
        let mut bytes = [0; EXPONENT_BYTES];
        if !draw(&mut bytes) {
            return None;
        }
        // Never so small that it could be found.
        bytes[0] |= 0x80;
        let exponent = BigUint::from_bytes_be(&bytes);
        let public = padded(&BigUint::from(2u8).modpow(&exponent, &prime), bits / 8);
        Some(Self { prime, exponent, public })
    }
}

/// A number in so many bytes.
fn padded(number: &BigUint, bytes: usize) -> Vec<u8> {
    let digits = number.to_bytes_be();
    let mut padded = vec![0; bytes - digits.len()];
    padded.extend(digits);
    padded
}

/// 2^b - 2^(b-64) + (floor(2^(b-130) e) + offset) 2^64 - 1.
fn prime(bits: usize, offset: u32) -> BigUint {
    let one = BigUint::from(1u8);
    // Beyond the digits that are wanted, so that what the terms are cut off by cannot reach them.
    let spare = 64;
    let (mut sum, mut term) = (BigUint::ZERO, &one << (bits - 130 + spare));
    for divisor in 1u32.. {
        if term == BigUint::ZERO {
            break;
        }
        sum += &term;
        term /= divisor;
    }
    let digits = (sum >> spare) + offset;
    (&one << bits) - (&one << (bits - 64)) + (digits << 64) - one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primes_are_those_that_the_rfc_prints() {
        let begins = "ffffffffffffffffadf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695";
        let ends = ["886b423861285c97ffffffffffffffff", "66c62e37ffffffffffffffff"];
        let (two, one) = (BigUint::from(2u8), BigUint::from(1u8));
        for ((_, bits, offset), end) in GROUPS.into_iter().zip(ends) {
            let prime = prime(bits, offset);
            let text = prime.to_str_radix(16);
            assert!(text.starts_with(begins) && text.ends_with(end), "{bits}: {text}");
        }
        // Of a safe prime, 2 has half of the order: a digit that is wrong is found by that.
        for (_, bits, offset) in GROUPS {
            let prime = prime(bits, offset);
            assert_eq!(prime.bits() as usize, bits);
            assert_eq!(two.modpow(&((&prime - &one) >> 1), &prime), one, "{bits}");
        }
    }

    #[test]
    fn both_ends_find_the_same_secret_and_values_that_give_it_away_are_refused() {
        let ours: Draw = |bytes| {
            bytes.fill(7);
            true
        };
        let theirs: Draw = |bytes| {
            bytes.fill(9);
            true
        };
        let (a, b) = (Groups::default(), Groups::default());
        let (of_a, of_b) = (a.public(1, ours).unwrap(), b.public(1, theirs).unwrap());
        assert_eq!(of_a.len(), 256);
        let secret = a.shared(1, &of_b, ours).unwrap();
        assert_eq!(b.shared(1, &of_a, theirs), Some(secret));
        let prime = prime(2048, 560_316);
        let near = |less: u8| padded(&(&prime - BigUint::from(less)), 256);
        for bad in [padded(&BigUint::ZERO, 256), padded(&BigUint::from(1u8), 256), near(1), near(0)]
        {
            assert_eq!(a.shared(1, &bad, ours), None);
        }
        assert_eq!(a.shared(1, &of_b[1..], ours), None);
        assert_eq!((a.shared(9, &of_b, ours), a.public(9, ours)), (None, None));
        assert_eq!(Groups::default().public(1, |_| false), None);
    }

    #[test]
    fn a_group_is_taken_before_none() {
        assert_eq!(Groups::choose(&[0, 5, 2]), Some(2));
        assert_eq!((Groups::choose(&[0]), Groups::choose(&[4, 5, 9])), (Some(0), None));
    }

    /// `cargo test --release -p serve what_a_group_costs -- --ignored --nocapture`
    #[test]
    #[ignore = "it only measures"]
    fn what_a_group_costs() {
        let draw: Draw = |bytes| {
            bytes.fill(0xa7);
            true
        };
        for (group, bits, _) in GROUPS {
            let groups = Groups::default();
            let theirs = groups.public(group, draw).unwrap();
            let begun = crate::cpu::thread_ns();
            for _ in 0..20 {
                groups.shared(group, &theirs, draw).unwrap();
            }
            let us = (crate::cpu::thread_ns() - begun) / 20_000;
            println!("ffdhe{bits}: {us} us of processor time a dialogue");
        }
    }
}
