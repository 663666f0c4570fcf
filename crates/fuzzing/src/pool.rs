//! A hostile client or node, whoever talks with the control plane or the controller, and a drive that holds
//! anything: heads of messages, whole messages, and slots of the raw store.
//!
//! The first byte chooses which. Checksums are made right, or nothing behind them would ever be reached.

use flash::BLOCK_BYTES;
use pool::control::wire as control;
use pool::node::raw::format::{AppendHeader, Footer, LogSlot};
use pool::wire::{BODY_BYTES_MAX, Decoded, HEAD_BYTES, PAYLOAD_SLOTS_MAX, decode};

/// Runs the target on one input.
pub fn run(input: &[u8]) {
    let Some((which, bytes)) = input.split_first() else { return };
    if which & 2 != 0 {
        plane(bytes);
        let mut sound = bytes.to_vec();
        let whole = sound.get(4..8).and_then(|length| length.try_into().ok());
        let whole = whole.map(|length| control::HEAD_BYTES + u32::from_le_bytes(length) as usize);
        if let Some(message) = whole.and_then(|whole| sound.get_mut(..whole)) {
            let sum = flash::crc_append(flash::crc(&message[..8]), &message[12..]);
            message[8..12].copy_from_slice(&sum.to_le_bytes());
            plane(&sound);
        }
    } else if which & 1 == 0 {
        as_found(bytes);
        let mut sound = bytes.to_vec();
        if let Some(head) = head_of(&mut sound) {
            let sum = flash::crc_append(flash::crc_append(0, &head[..8]), &head[12..]);
            head[8..12].copy_from_slice(&sum.to_le_bytes());
            as_found(&sound);
        }
    } else {
        slot(bytes);
    }
}

/// The bytes that the length in a head says are all of it.
fn head_of(bytes: &mut [u8]) -> Option<&mut [u8]> {
    let length = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?) as usize;
    bytes.get_mut(..HEAD_BYTES.checked_add(length)?)
}

fn as_found(bytes: &[u8]) {
    match decode(bytes) {
        Ok(Decoded::More(wanted)) => {
            assert!(wanted > bytes.len(), "what is there is not asked for again");
            assert!(wanted <= HEAD_BYTES + BODY_BYTES_MAX, "a head is bounded");
        }
        Ok(Decoded::Message { message, head_bytes, payload_slots }) => {
            assert!(payload_slots <= PAYLOAD_SLOTS_MAX, "what follows is bounded");
            let encoded = message.encode().expect("what was decoded fits");
            assert_eq!(encoded.head, bytes[..head_bytes], "there is one encoding");
            let numbers: Vec<u32> = encoded.payload.into_iter().copied().collect();
            assert!(numbers.iter().copied().eq(0..payload_slots), "the data are numbered");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn plane(bytes: &[u8]) {
    match control::decode(bytes) {
        Ok(control::Decoded::More(wanted)) => {
            assert!(wanted > bytes.len(), "what is there is not asked for again");
            assert!(wanted <= control::HEAD_BYTES + control::BODY_BYTES_MAX, "it is bounded");
        }
        Ok(control::Decoded::Message { message, bytes: length }) => {
            let encoded = message.encode().expect("what was decoded fits");
            assert_eq!(encoded, bytes[..length], "there is one encoding");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn slot(bytes: &[u8]) {
    let mut block = vec![0; BLOCK_BYTES];
    let length = bytes.len().min(BLOCK_BYTES - 4);
    block[..length].copy_from_slice(&bytes[..length]);
    let sum = flash::crc(&block[..BLOCK_BYTES - 4]);
    block[BLOCK_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    if let Some(header) = AppendHeader::decode(&block) {
        assert_eq!(AppendHeader::decode(&header.encode()[..]), Some(header));
    }
    if let Some(footer) = Footer::decode(&block) {
        assert_eq!(Footer::decode(&footer.encode()[..]), Some(footer));
    }
    if let Some(log) = LogSlot::decode(&block) {
        assert_eq!(LogSlot::decode(&log.encode()[..]), Some(log));
    }
}
