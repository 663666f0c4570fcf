//! Puts a block on every unit of a running server by its ID, reads a granule of each back, lists them
//! and deletes them.
//!
//! ```text
//! weir serve --raw --memory --capacity 256MiB
//! cargo run -p client --example blocks -- weir-data/control.sock
//! ```

use client::{Blocks, Place};
use std::error::Error;

/// The key of this program's blocks: the high half of their IDs.
const KEY: u128 = 0xb10c << 64;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let place =
        args.next().ok_or("give the control socket; or HOST:PORT and the file of the token")?;
    let mut place: Place = place.parse()?;
    if let Some(token) = args.next() {
        place = place.with_token(&std::fs::read_to_string(token)?);
    }
    let blocks = Blocks::open(place)?;
    println!("blocks of {} bytes, read by {}", blocks.block_bytes(), blocks.granule_bytes());

    let mut granule = vec![0; blocks.granule_bytes() as usize];
    for number in 0..4 {
        let bytes = vec![number as u8 + 1; blocks.block_bytes() as usize];
        blocks.put(KEY | number, &bytes)?;
        blocks.get(KEY | number, blocks.granule_bytes(), &mut granule)?;
        assert_eq!(granule, bytes[..granule.len()], "what was put is read");
    }
    if let Err(refused) = blocks.put(KEY | 1, &vec![9; blocks.block_bytes() as usize]) {
        println!("put twice: {refused}");
    }
    for block in blocks.list()?.iter().filter(|block| block.id >> 64 == KEY >> 64) {
        println!("{:032x} is on unit {}", block.id, block.unit);
        blocks.delete(block.id)?;
    }
    Ok(())
}
