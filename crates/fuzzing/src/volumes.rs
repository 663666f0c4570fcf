//! The table of volumes that a device keeps in its root record: any bytes are a table, which encodes
//! back to the same bytes, or none. Once as they are, and once with a checksum that fits.

use serve::device::{decode_volumes, encode_volumes};

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    table(bytes);
    let body = &bytes[..bytes.len().saturating_sub(4)];
    table(&[body, &flash::crc(body).to_le_bytes()].concat());
}

fn table(bytes: &[u8]) {
    if let Some(table) = decode_volumes(bytes)
        && let Some(again) = encode_volumes(&table)
    {
        assert_eq!(again, bytes, "what was read is all there is");
    }
}
