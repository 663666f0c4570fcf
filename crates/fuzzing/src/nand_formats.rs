//! What the emulated NAND reads back: block records of a device file, and device profiles that a
//! user wrote.

use nand::{BlockRecord, Profile};

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    for record in bytes.chunks_exact(BlockRecord::BYTES) {
        let record = record.try_into().expect("a whole record");
        if let Some(decoded) = BlockRecord::decode(record) {
            assert_eq!(BlockRecord::decode(&decoded.encode()), Some(decoded));
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Err(error) = Profile::parse(text)
    {
        assert!(!error.to_string().is_empty(), "an error says what is wrong");
    }
}
