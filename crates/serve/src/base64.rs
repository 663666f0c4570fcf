//! Base64 (RFC 4648, with padding), as JSON carries bytes, and secrets of NVMe hosts are written.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as letters.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let group = part.iter().fold(0u32, |group, &byte| group << 8 | u32::from(byte));
        let group = group << (8 * (3 - part.len()));
        for at in 0..4 {
            let letter = LETTERS[(group >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= part.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The bytes that letters stand for; `None` if they are none of this kind.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let letters = text.trim_end_matches('=');
    let pads = text.len() - letters.len();
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for part in letters.as_bytes().chunks(4) {
        let mut group = 0;
        for letter in part {
            let at = LETTERS.iter().position(|known| known == letter)?;
            group = group << 6 | at as u32;
        }
        let group = group << (6 * (4 - part.len()));
        bytes.extend(&group.to_be_bytes()[1..part.len()]);
        // Bits beyond the last byte would make two texts of one.
        if group.trailing_zeros() < 8 * (4 - part.len() as u32) {
            return None;
        }
    }
    let whole = (4 - letters.len() % 4) % 4;
    (pads == whole && pads < 3).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flash::Random;

    #[test]
    fn texts_are_those_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        for text in ["Z", "Zg", "Zg=", "Zh==", "Z===", "Zm9=", "Zm 9", "Zg==Zg==", "===="] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    #[test]
    fn all_bytes_come_back() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let bytes: Vec<u8> = (0..random.below(100)).map(|_| random.next_u64() as u8).collect();
            assert_eq!(decode(&encode(&bytes)), Some(bytes), "seed={seed}");
        }
    }
}
