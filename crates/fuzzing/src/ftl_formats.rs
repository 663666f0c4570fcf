//! The FTL's on-flash records. Bytes straight from the fuzzer must be refused or read without a
//! panic; bytes with their checksum mended get past the first check and must encode back to what
//! they were read from.

use flash::{BLOCK_BYTES, OOB_BYTES, SlotId};
use ftl::format::{Footer, Root, decode_header, encode_header, uuid_crc};
use ftl::raw::LaneRecord;
use ftl::raw::format::{decode_raw_header, encode_raw_header};
use ftl::raw::ids::Id;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let _ = Root::decode(bytes);
    let _ = Footer::decode(bytes);
    let _ = LaneRecord::decode(bytes);
    header(bytes);
    raw_header(bytes);
    if let Some(id) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<Id>().ok()) {
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    let mut block = [0; BLOCK_BYTES];
    let length = bytes.len().min(BLOCK_BYTES - 4);
    block[..length].copy_from_slice(&bytes[..length]);
    for magic in [None, Some(b"WeirRoot"), Some(b"WeirFoot"), Some(b"WeirRawU")] {
        if let Some(magic) = magic {
            block[..8].copy_from_slice(magic);
        }
        let sum = flash::crc(&block[..BLOCK_BYTES - 4]);
        block[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        if let Some(Ok(root)) = Root::decode(&block) {
            assert_eq!(Root::decode(&root.encode()[..]), Some(Ok(root)));
        }
        if let Some(footer) = Footer::decode(&block) {
            assert_eq!(Footer::decode(&footer.encode()[..]), Some(footer));
        }
        if let Some(Ok(record)) = LaneRecord::decode(&block) {
            assert_eq!(LaneRecord::decode(&record.encode()[..]), Some(Ok(record)));
        }
    }
}

/// The first 32 bytes as an OOB, once as they are and once with a checksum that fits.
fn header(bytes: &[u8]) {
    let mut oob = [0; OOB_BYTES];
    let length = bytes.len().min(OOB_BYTES);
    oob[..length].copy_from_slice(&bytes[..length]);
    let (slot, device) = (SlotId(7), uuid_crc(9));
    let _ = decode_header(&oob, slot, device);

    let mut covered = [0; OOB_BYTES];
    covered[..28].copy_from_slice(&oob[4..]);
    covered[28..].copy_from_slice(&slot.0.to_le_bytes());
    let sum = flash::crc_append(device, &covered);
    oob[..4].copy_from_slice(&sum.to_le_bytes());
    if let Some(header) = decode_header(&oob, slot, device) {
        // Bytes that mean nothing in a kind are not kept.
        let again = encode_header(&header, slot, device);
        assert_eq!(decode_header(&again, slot, device), Some(header), "{header:?}");
        assert_eq!(decode_header(&oob, SlotId(8), device), None, "another slot's is refused");
    }
}

/// The same as the OOB of a raw block's slot, whose tag is an ID.
fn raw_header(bytes: &[u8]) {
    let mut oob = [0; OOB_BYTES];
    let length = bytes.len().min(OOB_BYTES);
    oob[..length].copy_from_slice(&bytes[..length]);
    let (slot, device, data) = (SlotId(7), uuid_crc(9), 3);
    let _ = decode_raw_header(&oob, slot, device, data);

    let mut covered = [0; OOB_BYTES + 4];
    covered[..28].copy_from_slice(&oob[4..]);
    covered[28..32].copy_from_slice(&slot.0.to_le_bytes());
    covered[32..].copy_from_slice(&u32::to_le_bytes(data));
    let sum = flash::crc_append(device, &covered);
    oob[..4].copy_from_slice(&sum.to_le_bytes());
    if let Some(header) = decode_raw_header(&oob, slot, device, data) {
        let again = encode_raw_header(&header, slot, device, data);
        assert_eq!(decode_raw_header(&again, slot, device, data), Some(header));
        assert_eq!(decode_raw_header(&oob, SlotId(8), device, data), None, "another slot's");
    }
}
