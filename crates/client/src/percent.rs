//! Any bytes as a part of a URL's path or query.

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

fn stands_for_itself(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Letters, digits and `-._~` stand for themselves; anything else is `%` and two hex digits.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    append(bytes, &mut text);
    String::from_utf8(text).expect("it is ASCII")
}

/// Appends what [`encode`] makes of it.
pub fn append(bytes: &[u8], into: &mut Vec<u8>) {
    for &byte in bytes {
        match stands_for_itself(byte) {
            true => into.push(byte),
            false => {
                let digit = |half: u8| DIGITS[usize::from(half)];
                into.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
}

/// How long that is.
pub fn length(bytes: &[u8]) -> usize {
    bytes.iter().map(|&byte| if stands_for_itself(byte) { 1 } else { 3 }).sum()
}

/// The same of a path, whose slashes stay.
pub fn encode_path(path: &str) -> String {
    let parts: Vec<String> = path.split('/').map(|part| encode(part.as_bytes())).collect();
    parts.join("/")
}

/// The bytes that a text stands for; `None` if a `%` is not followed by two hex digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let [first, after @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let [high, low, after @ ..] = after else { return None };
        let digit = |byte: u8| char::from(byte).to_digit(16);
        bytes.push((digit(*high)? << 4 | digit(*low)?) as u8);
        rest = after;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode, encode_path, length};

    #[test]
    fn any_bytes_come_back_and_what_is_cut_off_is_refused() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(length(&all), encode(&all).len());
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(encode(b"a/b c%"), "a%2Fb%20c%25");
        assert_eq!(encode_path("a b/\u{e9}"), "a%20b/%C3%A9");
        assert_eq!(decode("%4a%4B+"), Some(b"JK+".to_vec()));
        for bad in ["%", "a%4", "%4g", "%%41", "%+1"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
