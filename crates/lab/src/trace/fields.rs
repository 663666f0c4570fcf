//! The fields of a line, as numbers. Every error says which field, what stands there and what
//! should.

use super::{Op, Reason};
use flash::SECOND;

/// Takes fields off a line, by name so that errors can tell.
pub(super) struct Fields<'a, I: Iterator<Item = &'a str>>(I);

/// Fields between commas, without the spaces around them.
pub(super) fn commas(line: &str) -> Fields<'_, impl Iterator<Item = &str>> {
    Fields(line.split(',').map(str::trim))
}

/// Fields between spaces.
pub(super) fn words(line: &str) -> Fields<'_, impl Iterator<Item = &str>> {
    Fields(line.split_ascii_whitespace())
}

impl<'a, I: Iterator<Item = &'a str>> Fields<'a, I> {
    /// The next field as it is.
    pub(super) fn text(&mut self, name: &str) -> Result<&'a str, Reason> {
        self.0.next().ok_or_else(|| format!("ends before the {name}"))
    }

    /// The next field as a whole number.
    pub(super) fn number(&mut self, name: &str) -> Result<u64, Reason> {
        number(self.text(name)?, name)
    }

    /// The next field as the number of a volume.
    pub(super) fn volume(&mut self, name: &str) -> Result<u32, Reason> {
        let number = self.number(name)?;
        u32::try_from(number).map_err(|_| format!("the {name} is {number}: more than 32 bits"))
    }

    /// The next field, a decimal number of units of `unit_ns`, in nanoseconds.
    pub(super) fn time(&mut self, name: &str, unit_ns: u64) -> Result<u64, Reason> {
        let text = self.text(name)?;
        time(text, unit_ns).ok_or_else(|| format!("the {name} is {text:?}: must be a number"))
    }

    /// The next field, if there is one.
    pub(super) fn optional(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    /// Nothing may follow.
    pub(super) fn end(mut self) -> Result<(), Reason> {
        match self.0.next() {
            Some(more) => Err(format!("has a field too many: {more:?}")),
            None => Ok(()),
        }
    }
}

pub(super) fn number(text: &str, name: &str) -> Result<u64, Reason> {
    // `u64::from_str` takes a plus sign; no trace has one.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (text.parse().ok().filter(|_| digits))
        .ok_or_else(|| format!("the {name} is {text:?}: must be a whole number"))
}

/// "1.25" units of `unit_ns` as nanoseconds, exactly; digits below a nanosecond are cut off.
pub(super) fn time(text: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut ns = whole.parse::<u64>().ok()?.checked_mul(unit_ns)?;
    let mut place_ns = unit_ns;
    for digit in fraction.bytes().take(9) {
        // A unit below a nanosecond's place has no whole part left: exact for powers of ten.
        place_ns /= 10;
        ns = ns.checked_add(u64::from(digit - b'0') * place_ns)?;
    }
    Some(ns)
}

/// "R" or "W" in either case, or the whole words.
pub(super) fn read_or_write(text: &str) -> Result<Op, Reason> {
    match text {
        "R" | "r" => Ok(Op::Read),
        "W" | "w" => Ok(Op::Write),
        _ if text.eq_ignore_ascii_case("read") => Ok(Op::Read),
        _ if text.eq_ignore_ascii_case("write") => Ok(Op::Write),
        _ => Err(format!("the operation is {text:?}: must be R or W")),
    }
}

/// The letters that the kernel's tracing gives a request: `R` read, `W` write, `D` discard, `F`
/// flush when it comes first and FUA after another letter, `N` neither (write zeroes, or a
/// passthrough command), then `S` sync, `A` read-ahead, `M` metadata. Write zeroes is a trim here. A
/// write that asks for a flush first is a write: its flush comes as a request of its own.
pub(super) fn rwbs(letters: &str) -> Result<(Op, bool), Reason> {
    let wrong = || format!("the letters are {letters:?}: must be of R W D E F N S A M");
    let body = letters.strip_prefix('F').unwrap_or(letters);
    let flush_first = body.len() < letters.len();
    let mut rest = body.chars();
    let first = rest.next();
    // "FF" is an empty flush; "FS" is one whose operation shows no letter.
    let op = match first {
        Some('R') => Op::Read,
        Some('W') => Op::Write,
        Some('D') => Op::Trim,
        // Write zeroes lets the device drop what is there, as a trim does.
        Some('N') if !flush_first => Op::Trim,
        Some('F' | 'S' | 'N') | None if flush_first => Op::Flush,
        _ => return Err(wrong()),
    };
    let mut fua = false;
    for letter in rest {
        match letter {
            'F' => fua = true,
            'S' | 'A' | 'M' | 'E' => {}
            _ => return Err(wrong()),
        }
    }
    Ok((op, fua && matches!(op, Op::Write | Op::Trim)))
}

/// Bytes as sectors of 512, for a format that is written.
pub(super) fn sector(bytes: u64) -> Result<u64, Reason> {
    if !bytes.is_multiple_of(512) {
        return Err(format!("{bytes} bytes are no whole sectors of 512"));
    }
    Ok(bytes / 512)
}

/// Nanoseconds as seconds with nine decimals.
pub(super) fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / SECOND, ns % SECOND)
}

#[cfg(test)]
mod tests {
    use super::{number, rwbs, time};
    use crate::trace::Op;

    #[test]
    fn decimal_times_are_exact() {
        assert_eq!(time("1.000000001", 1_000_000_000), Some(1_000_000_001));
        assert_eq!(time("251.926920", 1_000_000_000), Some(251_926_920_000));
        assert_eq!(time("7", 100), Some(700));
        assert_eq!(time("1.99", 1), Some(1));
        for wrong in ["", ".5", "1e3", "-1", "1.2.3", "99999999999999999999"] {
            assert_eq!(time(wrong, 1_000_000_000), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_have_digits_only() {
        assert_eq!(number("42", "size"), Ok(42));
        for wrong in ["", "+1", "-1", "4k", "1.0", "18446744073709551616"] {
            assert!(number(wrong, "size").unwrap_err().contains("size"), "{wrong}");
        }
    }

    #[test]
    fn kernel_letters_mean_what_the_kernel_means() {
        assert_eq!(rwbs("R"), Ok((Op::Read, false)));
        assert_eq!(rwbs("RAM"), Ok((Op::Read, false)));
        assert_eq!(rwbs("WS"), Ok((Op::Write, false)));
        assert_eq!(rwbs("WFS"), Ok((Op::Write, true)));
        assert_eq!(rwbs("FWFSM"), Ok((Op::Write, true)));
        assert_eq!(rwbs("DS"), Ok((Op::Trim, false)));
        assert_eq!(rwbs("DE"), Ok((Op::Trim, false)));
        assert_eq!(rwbs("FF"), Ok((Op::Flush, false)));
        assert_eq!(rwbs("F"), Ok((Op::Flush, false)));
        assert_eq!(rwbs("NS"), Ok((Op::Trim, false)));
        for wrong in ["", "X", "WQ", "S"] {
            assert!(rwbs(wrong).is_err(), "{wrong}");
        }
    }
}
