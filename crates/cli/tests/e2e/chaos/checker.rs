//! What each block of the volume may hold, by what was sent, acknowledged and read.
//!
//! A block carries its number, its version and the seed, and all its bytes follow from them. Versions of a block grow
//! by one with each write, and only one write of a block is under way at a time. So:
//! - a read shows a version that is at least the last one acknowledged or read before it began, and at most the last
//!   one sent;
//! - a write that was never acknowledged may be there or not, but once a read with no write of the block under way has
//!   shown an older version it is *dead*: it never comes back, whoever was to write it;
//! - what a client sends after another one has taken the volume over is never seen at all.

use flash::{BLOCK_BYTES, Random};

/// Versions from here on were only given to clients that do not have the volume any more.
const STALE: u64 = 1 << 40;

/// What was expected of a block when a read of it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    floor: u64,
    /// The last version sent by then; unchanged and not under way, the read settles what the block holds.
    sent: u64,
    quiet: bool,
}

#[derive(Clone, Debug)]
struct Block {
    /// What it may hold, oldest first; never empty.
    may: Vec<u64>,
    sent: u64,
    under_way: bool,
    dead: Vec<u64>,
}

/// The blocks from `first` on.
pub struct Checker {
    seed: u64,
    first: u64,
    blocks: Vec<Block>,
}

impl Checker {
    /// Of a volume that was never written.
    pub fn new(seed: u64, first: u64, blocks: u64) -> Self {
        let block = Block { may: vec![0], sent: 0, under_way: false, dead: Vec::new() };
        Self { seed, first, blocks: vec![block; blocks as usize] }
    }

    /// If a write of it is under way.
    pub fn is_under_way(&self, block: u64) -> bool {
        self.of(block).under_way
    }

    /// The next version of a block, which is sent now.
    pub fn send(&mut self, block: u64) -> u64 {
        let of = self.of_mut(block);
        assert!(!of.under_way, "one write of a block at a time");
        of.sent += 1;
        of.may.push(of.sent);
        of.under_way = true;
        of.sent
    }

    /// It was acknowledged, by a client that may have lost the volume since (`late`).
    pub fn acknowledged(&mut self, block: u64, version: u64, late: bool) -> Result<(), String> {
        let of = self.of_mut(block);
        if !late {
            of.under_way = false;
        }
        if of.dead.contains(&version) {
            return Err(format!(
                "block {block}: version {version} was acknowledged, and another client had shown {:?} before",
                of.may
            ));
        }
        of.may.retain(|&may| may >= version);
        Ok(())
    }

    /// It was refused, so it may be there or not.
    pub fn refused(&mut self, block: u64) {
        self.of_mut(block).under_way = false;
    }

    /// Another client has the volume: what is under way on the old one is not waited for.
    pub fn taken_over(&mut self) {
        self.blocks.iter_mut().for_each(|block| block.under_way = false);
    }

    /// A read is sent now.
    pub fn expect(&self, block: u64) -> Expected {
        let of = self.of(block);
        Expected { floor: of.may[0], sent: of.sent, quiet: !of.under_way }
    }

    /// What it shows.
    pub fn read(&mut self, block: u64, expected: Expected, data: &[u8]) -> Result<(), String> {
        let version = self.version(block, data)?;
        let of = self.of_mut(block);
        let wrong = |what: &str| {
            Err(format!("block {block}: version {version} {what} ({expected:?}, now {of:?})"))
        };
        if version >= STALE {
            return wrong("was written by a client that had lost the volume");
        }
        if version < expected.floor {
            return wrong("is older than what was acknowledged or read before");
        }
        if version > of.sent {
            return wrong("was never sent");
        }
        if of.dead.contains(&version) {
            return wrong("came back from the dead");
        }
        of.may.retain(|&may| may >= version);
        if expected.quiet && expected.sent == of.sent && !of.under_way {
            of.dead.extend(of.may.iter().filter(|&&may| may > version));
            of.may = vec![version];
        }
        Ok(())
    }

    /// If a client that has lost the volume shows what the block cannot hold any more.
    pub fn is_out_of_date(&self, block: u64, data: &[u8]) -> bool {
        self.version(block, data).map_or(true, |version| version < self.of(block).may[0])
    }

    /// The bytes of a version.
    pub fn data(&self, block: u64, version: u64) -> Vec<u8> {
        data(self.seed, block, version)
    }

    /// Bytes that nobody may ever see.
    pub fn stale(&self, block: u64) -> Vec<u8> {
        data(self.seed, block, STALE)
    }

    fn version(&self, block: u64, bytes: &[u8]) -> Result<u64, String> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let version = word(16);
        let expected =
            if version == 0 { vec![0; BLOCK_BYTES] } else { data(self.seed, block, version) };
        if bytes == expected {
            return Ok(version);
        }
        Err(format!(
            "block {block}: damaged, or of another place: seed {}, block {}, version {version}, first wrong byte {:?}",
            word(0),
            word(8),
            bytes.iter().zip(&expected).position(|(found, expected)| found != expected)
        ))
    }

    fn of(&self, block: u64) -> &Block {
        &self.blocks[(block - self.first) as usize]
    }

    fn of_mut(&mut self, block: u64) -> &mut Block {
        &mut self.blocks[(block - self.first) as usize]
    }
}

fn data(seed: u64, block: u64, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK_BYTES);
    for word in [seed, block, version] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    let mut random = Random::new(seed ^ block.rotate_left(32) ^ version.rotate_left(8));
    while bytes.len() < BLOCK_BYTES {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(times: u64) -> Checker {
        let mut checker = Checker::new(7, 10, 4);
        for _ in 0..times {
            let version = checker.send(11);
            checker.acknowledged(11, version, false).expect("it is alive");
        }
        checker
    }

    fn show(checker: &mut Checker, version: u64) -> Result<(), String> {
        let bytes = if version == 0 { vec![0; BLOCK_BYTES] } else { checker.data(11, version) };
        let expected = checker.expect(11);
        checker.read(11, expected, &bytes)
    }

    #[test]
    fn what_was_acknowledged_has_to_be_there_and_nothing_that_was_never_sent() {
        let mut checker = written(3);
        assert!(show(&mut checker, 3).is_ok());
        assert!(show(&mut checker, 2).unwrap_err().contains("older"));
        assert!(show(&mut checker, 0).unwrap_err().contains("older"));
        assert!(show(&mut checker, 4).unwrap_err().contains("never sent"));
        let stale = checker.stale(11);
        let expected = checker.expect(11);
        assert!(checker.read(11, expected, &stale).unwrap_err().contains("lost the volume"));
    }

    #[test]
    fn a_torn_block_and_one_of_another_place_are_damage() {
        let mut checker = written(2);
        let expected = checker.expect(11);
        let mut torn = checker.data(11, 2);
        torn[4000..].fill(0);
        assert!(checker.read(11, expected, &torn).unwrap_err().contains("4000"));
        let elsewhere = checker.data(12, 2);
        assert!(checker.read(11, expected, &elsewhere).unwrap_err().contains("block 12"));
    }

    #[test]
    fn what_was_not_acknowledged_may_be_there_or_not_but_stays_as_it_was_seen() {
        let mut lost = written(1);
        lost.send(11);
        lost.taken_over();
        assert!(show(&mut lost, 1).is_ok());
        assert!(show(&mut lost, 2).unwrap_err().contains("dead"));
        assert!(lost.acknowledged(11, 2, true).unwrap_err().contains("acknowledged"));
        let mut there = written(1);
        there.send(11);
        there.taken_over();
        assert!(show(&mut there, 2).is_ok());
        assert!(show(&mut there, 1).unwrap_err().contains("older"));
    }

    #[test]
    fn a_read_beside_a_write_shows_either_and_never_goes_back() {
        let mut checker = written(1);
        checker.send(11);
        let (early, later) = (checker.expect(11), checker.expect(11));
        let (one, two) = (checker.data(11, 1), checker.data(11, 2));
        assert!(checker.read(11, early, &one).is_ok());
        assert!(checker.read(11, later, &two).is_ok());
        assert!(show(&mut checker, 1).unwrap_err().contains("older"));
    }
}
