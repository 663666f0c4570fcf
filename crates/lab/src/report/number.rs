//! How numbers are printed: fixed rules, so that one report is the same bytes on any machine.
//!
//! Invariant: nothing here asks the platform's mathematical library, whose last digit differs from
//! one to another: powers of ten are parsed, logarithms are those of the `libm` crate.

/// Four significant digits, no trailing zeros, commas from 10,000 on: for people.
pub fn plain(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = exponent_of(value);
    if !(-5..15).contains(&exponent) {
        let text = format!("{value:.3e}");
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", trimmed(mantissa));
    }
    let decimals = usize::try_from(3 - exponent).unwrap_or(0);
    let text = format!("{value:.decimals$}");
    with_commas(trimmed(&text))
}

/// A coordinate in a drawing: two decimals, no trailing zeros.
pub fn coordinate(value: f64) -> String {
    let text = format!("{value:.2}");
    match trimmed(&text) {
        "-0" => "0".to_owned(),
        short => short.to_owned(),
    }
}

/// The power of ten of the first digit, after rounding to four digits.
pub fn exponent_of(value: f64) -> i32 {
    let text = format!("{value:.3e}");
    text.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0)
}

/// Ten to the power of `exponent`, correctly rounded.
pub fn ten_to(exponent: i32) -> f64 {
    format!("1e{exponent}").parse().unwrap_or(f64::MAX)
}

fn trimmed(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Commas between the thousands, but not in a number of four digits, which reads well without.
pub fn with_commas(text: &str) -> String {
    let (sign, digits) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = digits.split_once('.').map_or((digits, ""), |(w, f)| (w, f));
    if whole.len() < 5 {
        return text.to_owned();
    }
    let mut out = sign.to_owned();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

/// Prefixes by their power of ten.
const DECIMAL: [(i32, &str); 10] = [
    (-12, "p"),
    (-9, "n"),
    (-6, "µ"),
    (-3, "m"),
    (0, ""),
    (3, "k"),
    (6, "M"),
    (9, "G"),
    (12, "T"),
    (15, "P"),
];
/// Prefixes by their power of 1024.
const BINARY: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
/// Units that take a prefix. Others (%, IOPS, pages) are printed as they are.
const BASES: [&str; 6] = ["s", "B/s", "B", "Hz", "W", "J"];

/// What a unit is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit<'a> {
    /// A power of ten and a base that takes prefixes.
    Decimal(i32, &'a str),
    /// A power of 1024 and a base: KiB, MiB/s.
    Binary(u32, &'a str),
    /// Anything else.
    Opaque(&'a str),
}

impl<'a> Unit<'a> {
    /// Takes a unit apart.
    pub fn parse(text: &'a str) -> Self {
        for base in BASES {
            let Some(prefix) = text.strip_suffix(base) else { continue };
            let prefix = if prefix == "u" { "µ" } else { prefix };
            if let Some(&(power, _)) = DECIMAL.iter().find(|(_, name)| *name == prefix) {
                return Self::Decimal(power, base);
            }
            if let Some(power) = BINARY.iter().position(|name| *name == prefix) {
                return Self::Binary(power as u32, base);
            }
        }
        Self::Opaque(text)
    }

    /// The power of ten to divide by, and the unit's new name, for values as large as `largest`.
    /// A unit that fits is left as it is, so that an axis reads as the source does.
    pub fn fitting(self, text: &str, largest: f64) -> (i32, String) {
        let exponent = exponent_of(largest);
        if largest == 0.0 || (-1..4).contains(&exponent) {
            return (0, text.to_owned());
        }
        match self {
            Self::Decimal(power, base) => {
                let (chosen, prefix) = prefix_for(power + exponent);
                (chosen - power, format!("{prefix}{base}"))
            }
            Self::Binary(..) | Self::Opaque(_) => (0, text.to_owned()),
        }
    }
}

/// The largest prefix that leaves at least one digit before the point.
fn prefix_for(exponent: i32) -> (i32, &'static str) {
    let fitting = DECIMAL.iter().rev().find(|(power, _)| *power <= exponent);
    *fitting.unwrap_or(&DECIMAL[0])
}

/// A number with the prefix or suffix that keeps it short: `250 µs`, `20k`, `8 MiB`.
pub fn short(value: f64, unit: &str) -> String {
    match Unit::parse(unit) {
        Unit::Decimal(power, base) if value != 0.0 => {
            let (chosen, prefix) = prefix_for(power + exponent_of(value));
            format!("{} {prefix}{base}", plain(value * ten_to(power - chosen)))
        }
        Unit::Binary(power, base) => {
            let (mut value, mut power) = (value, power as usize);
            while value.abs() >= 1024.0 && power + 1 < BINARY.len() {
                (value, power) = (value / 1024.0, power + 1);
            }
            format!("{} {}{base}", plain(value), BINARY[power])
        }
        Unit::Decimal(..) => plain(value),
        Unit::Opaque(_) => suffixed(value),
    }
}

/// Bytes for people: `512 bytes`, `1.5 KiB`, `8 GiB`.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        _ => short(bytes as f64 / 1024.0, "KiB"),
    }
}

/// Two sizes that differ, for people: to the byte where they would read the same.
pub fn bytes_apart(one: u64, other: u64) -> (String, String) {
    let texts = (bytes(one), bytes(other));
    if texts.0 != texts.1 {
        return texts;
    }
    let exact = |bytes: u64| format!("{} bytes", with_commas(&bytes.to_string()));
    (exact(one), exact(other))
}

/// A count with k, M, G or T; beyond that, or for a small fraction, with an exponent.
fn suffixed(value: f64) -> String {
    let exponent = exponent_of(value);
    if value == 0.0 || (-3..4).contains(&exponent) {
        return plain(value);
    }
    let (power, suffix) = prefix_for(exponent);
    if (3..=12).contains(&power) && exponent < 15 {
        format!("{}{suffix}", plain(value * ten_to(-power)))
    } else {
        let text = format!("{value:.1e}");
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{power}", trimmed(mantissa))
    }
}

/// A unit as people write it.
pub fn unit_name(unit: &str) -> &str {
    if unit == "us" { "µs" } else { unit }
}

/// A value with its unit, for a tooltip: `1.23 GB/s`, `22,005 IOPS`.
pub fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => plain(value),
        unit => format!("{} {}", plain(value), unit_name(unit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people_have_four_digits_and_commas() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (0.963_71, "0.9637"),
            (1234.4, "1234"),
            (22_005.0, "22,005"),
            (-1_234_567.0, "-1,234,567"),
            (0.000_123_4, "0.0001234"),
            (9999.96, "10,000"),
            (1e-9, "1e-9"),
            (1.5e20, "1.5e20"),
        ];
        for (value, expected) in cases {
            assert_eq!(plain(value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_unit_takes_the_prefix_that_keeps_the_number_short() {
        assert_eq!(short(0.000_25, "s"), "250 µs");
        assert_eq!(short(100.0, "us"), "100 µs");
        assert_eq!(short(2_000.0, "ms"), "2 s");
        assert_eq!(short(0.5, "GB/s"), "500 MB/s");
        assert_eq!(short(8192.0, "KiB"), "8 MiB");
        assert_eq!(
            (bytes(512), bytes(1536), bytes(9 << 40)),
            ("512 bytes".into(), "1.5 KiB".into(), "9 TiB".into())
        );
        assert_eq!(bytes_apart(8 << 30, 3 << 40), ("8 GiB".into(), "3 TiB".into()));
        let close = bytes_apart((8 << 30) + 512, 8 << 30);
        assert_eq!(close, ("8,589,935,104 bytes".into(), "8,589,934,592 bytes".into()));
        assert_eq!(short(250_000.0, "IOPS"), "250k");
        assert_eq!(short(1e-12, "%"), "1e-12");
    }

    #[test]
    fn a_unit_that_fits_stays_as_the_source_has_it() {
        assert_eq!(Unit::parse("GB/s").fitting("GB/s", 0.96), (0, "GB/s".to_owned()));
        assert_eq!(Unit::parse("s").fitting("s", 0.003), (-3, "ms".to_owned()));
        assert_eq!(Unit::parse("%").fitting("%", 0.003), (0, "%".to_owned()));
    }
}
