//! Sizes, counts and times as people read them.

/// Bytes with a binary unit and three digits or so.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        return format!("{value:.0} {}", UNITS[unit]);
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// What `option` says is a size.
pub fn bytes_of(option: &str, text: &str) -> Result<u64, crate::Failure> {
    let bytes = flash::quantity::bytes(text);
    bytes.ok_or_else(|| format!("{option} {text}: is no size: for example 512MiB or 8GiB"))
}

/// The shortest config text that means exactly so many bytes.
pub fn config_text(bytes: u64) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 30) => format!("{}GiB", b >> 30),
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{}MiB", b >> 20),
        // The config knows no unit below it; volumes are whole logical blocks.
        b => format!("{}KiB", b.div_ceil(1 << 10)),
    }
}

/// A count with a thin grouping of thousands.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{bytes, config_text, count};

    #[test]
    fn sizes_are_short_and_right() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(8 << 30), "8 GiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(10_106_000_000), "9.4 GiB");
    }

    #[test]
    fn config_sizes_mean_exactly_what_was_given() {
        assert_eq!(config_text(8 << 30), "8GiB");
        assert_eq!(config_text(64 << 20), "64MiB");
        assert_eq!(config_text(12 << 10), "12KiB");
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1 234 567");
    }
}
