//! Numbers with a unit, as people write them in config files and on command lines.

/// Bytes: `"8GiB"`, `"1.5 KiB"`, `"10MB"`.
pub fn bytes(text: &str) -> Option<u64> {
    parse_scaled(text, &SIZES)
}

/// Nanoseconds: `"100us"`, `"2 h"`.
pub fn duration_ns(text: &str) -> Option<u64> {
    parse_scaled(text, &DURATIONS)
}

const SIZES: [(&str, u64); 10] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
];

const DURATIONS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// A number, an optional fraction, and a unit.
fn parse_scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim())?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*scale);
    }
    let scaled = number.parse::<f64>().ok()? * *scale as f64;
    (scaled.is_finite() && scaled < u64::MAX as f64).then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::{bytes, duration_ns};

    #[test]
    fn sizes_and_durations_are_numbers_with_units() {
        assert_eq!(bytes("8GiB"), Some(8 << 30));
        assert_eq!(bytes("1.5 KiB"), Some(1536));
        assert_eq!((bytes("2PiB"), bytes("2PB")), (Some(2 << 50), Some(2_000_000_000_000_000)));
        assert_eq!(duration_ns("100us"), Some(100_000));
        for wrong in ["", "8", "GiB", "8 Gib", "-1GiB", "1e3KiB", "99999999999TiB", "1..2KiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
