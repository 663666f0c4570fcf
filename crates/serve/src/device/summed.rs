//! A checksum as the last line of a text that Weir has written, which tells whether anybody has changed it
//! since: a text may be well-formed with another number in it. Texts of older builds have none.

/// What its last line tells of a text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Summed {
    /// It is as it was written.
    Right,
    /// It is not.
    Wrong,
    /// It has no checksum.
    Without,
}

/// What the last line begins with.
const BEGINNING: &str = "# crc32c ";

/// The same with its checksum. A text ends with a line's end.
pub fn with_sum(text: String) -> String {
    let sum = flash::crc(text.as_bytes());
    format!("{text}{BEGINNING}{sum:08x}\n")
}

/// Whether the text is as it was written. Line ends after the checksum do not count.
pub fn of(text: &str) -> Summed {
    // Wherever it stands: somebody may have written behind it, or taken the end of the line before.
    let Some((before, sum)) = text.rsplit_once(BEGINNING) else { return Summed::Without };
    match u32::from_str_radix(sum.trim_end(), 16) {
        Ok(sum) if sum == flash::crc(before.as_bytes()) => Summed::Right,
        _ => Summed::Wrong,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_change_of_a_text_is_noticed_and_one_without_a_checksum_is_taken() {
        let text = "# a device\nblocks = 7\nop_percent = 25\n".to_string();
        assert_eq!(of(&text), Summed::Without);
        assert_eq!(of(""), Summed::Without);
        let summed = with_sum(text.clone());
        assert_eq!(of(&summed), Summed::Right);
        assert_eq!(of(&format!("{summed}\n")), Summed::Right);
        for at in 0..text.len() {
            let mut changed = summed.clone().into_bytes();
            changed[at] ^= 1;
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(of(&changed), Summed::Wrong, "byte {at}");
        }
        assert_eq!(of(&summed.replace("blocks = 7\n", "")), Summed::Wrong);
        assert_eq!(of(&format!("{summed}blocks = 8\n")), Summed::Wrong);
        assert_eq!(of("# crc32c what\n"), Summed::Wrong);
    }
}
