//! How a range of bytes falls into blocks.

use super::BLOCK;

/// Blocks of zeroes that one piece writes when a range must keep its space.
pub const ZEROES_BLOCKS: u32 = 256;

/// Part of a range of bytes, in whole blocks or within one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Part {
    /// First block, counted from the one that holds the first byte.
    pub block: u64,
    /// How many.
    pub blocks: u64,
    /// Bytes `from..to` of the only block, if not all of them.
    pub within: Option<(u16, u16)>,
}

/// Parts of `len` bytes at `offset`: perhaps a piece of a block, whole blocks, a piece of a block.
pub fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let (head, end) = (offset % BLOCK, offset % BLOCK + len);
    let whole_first = if head > 0 { 1 } else { 0 };
    let whole_end = end / BLOCK;
    let within = |block: u64, from: u64, to: u64| {
        let bounds = Some((from as u16, to as u16));
        (from < to).then_some(Part { block, blocks: 1, within: bounds })
    };
    let first = if head > 0 { within(0, head, end.min(BLOCK)) } else { None };
    let whole = (whole_end > whole_first).then(|| Part {
        block: whole_first,
        blocks: whole_end - whole_first,
        within: None,
    });
    let tail_is_head = head > 0 && whole_end == 0;
    let last = if tail_is_head { None } else { within(whole_end, 0, end % BLOCK) };
    first.into_iter().chain(whole).chain(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_byte_of_a_range_once() {
        for offset in [0, 1, 511, 4095, 4096, 5000] {
            for len in [1u64, 2, 511, 512, 4095, 4096, 4097, 8191, 8192, 12_289] {
                let mut covered = Vec::new();
                for part in parts(offset, len) {
                    let start = part.block * BLOCK;
                    let (from, to) = match part.within {
                        Some((from, to)) => (start + u64::from(from), start + u64::from(to)),
                        None => (start, start + part.blocks * BLOCK),
                    };
                    assert!(from < to, "offset {offset}, len {len}: {part:?}");
                    covered.extend(from..to);
                }
                let head = offset % BLOCK;
                assert!(covered.into_iter().eq(head..head + len), "offset {offset}, len {len}");
            }
        }
    }
}
