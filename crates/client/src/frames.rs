//! Keys and values as a body of HTTP: for each, two lengths of four bytes, little-endian, then both. A value of the largest
//! length is none: a deletion in a write, nothing found in an answer.

const NONE: u32 = u32::MAX;
const HEAD_BYTES: usize = 8;

/// A key, and its value if it has one.
pub type Frame = (Vec<u8>, Option<Vec<u8>>);

/// Appends one.
pub fn encode(key: &[u8], value: Option<&[u8]>, into: &mut Vec<u8>) {
    into.extend((key.len() as u32).to_le_bytes());
    into.extend(value.map_or(NONE, |value| value.len() as u32).to_le_bytes());
    into.extend(key);
    into.extend(value.unwrap_or_default());
}

/// How long one is that has a value.
pub fn length((key, value): &(Vec<u8>, Vec<u8>)) -> usize {
    HEAD_BYTES + key.len() + value.len()
}

/// All that a body holds; `None` if it is cut off.
pub fn decode(mut body: &[u8]) -> Option<Vec<Frame>> {
    let mut frames = Vec::new();
    while !body.is_empty() {
        let (head, rest) = body.split_at_checked(HEAD_BYTES)?;
        let number =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (key, rest) = rest.split_at_checked(number(0) as usize)?;
        let (value, rest) = match number(4) {
            NONE => (None, rest),
            bytes => {
                let (value, rest) = rest.split_at_checked(bytes as usize)?;
                (Some(value.to_vec()), rest)
            }
        };
        frames.push((key.to_vec(), value));
        body = rest;
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    #[test]
    fn frames_come_back_and_each_cut_is_found() {
        let mut body = Vec::new();
        encode(b"key", Some(b"value"), &mut body);
        encode(b"", Some(b""), &mut body);
        encode(b"gone", None, &mut body);
        let expected = [
            (b"key".to_vec(), Some(b"value".to_vec())),
            (vec![], Some(vec![])),
            (b"gone".to_vec(), None),
        ];
        assert_eq!(decode(&body).unwrap(), expected);
        let whole = [0, 16, 24, body.len()];
        for cut in 0..body.len() {
            assert_eq!(decode(&body[..cut]).is_some(), whole.contains(&cut), "{cut}");
        }
        assert_eq!(
            decode(&[0xfe, 0xff, 0xff, 0xff, 1, 0, 0, 0, 9]),
            None,
            "no memory is taken for it"
        );
    }
}
