//! One axis of a plot: which values it spans, where each lies on it, and which are labelled.
//!
//! Invariants: a place is a fraction from 0 to 1; the number of ticks is bounded whatever the values
//! are; ticks lie on round numbers of the unit that the label names.

use super::number::{Unit, exponent_of, plain, short, ten_to, with_commas};
use super::{Axis, Scale};

/// Where an axis stands decides how generous it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// Along the bottom: spans what there is.
    Bottom,
    /// Up the left side: spans round numbers, and zero where nothing is below it.
    Left {
        /// Room above the largest value, as a share of it.
        headroom: f64,
    },
}

/// A labelled or bare line of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The value.
    pub value: f64,
    /// What stands beside it; empty for a bare line.
    pub label: String,
}

/// An axis ready to draw.
#[derive(Clone, Debug)]
pub struct Span {
    low: f64,
    high: f64,
    layout: Layout,
    /// In order.
    pub ticks: Vec<Tick>,
    /// The unit of the labels, where they do not carry their own.
    pub unit: String,
    /// Power of ten from the axis's own unit to that of the labels.
    pub power: i32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Linear,
    Logarithmic,
    Categories(usize),
}

impl Span {
    /// The span of an axis for these values.
    pub fn new(axis: &Axis, values: &[f64], side: Side) -> Self {
        if let Some(categories) = &axis.categories {
            let layout = Layout::Categories(categories.len());
            let unit = axis.unit.clone();
            return Self { low: 0.0, high: 1.0, layout, ticks: Vec::new(), unit, power: 0 };
        }
        match axis.scale {
            Scale::Linear => Self::linear(axis, values, side),
            Scale::Log => Self::logarithmic(axis, values, side),
        }
    }

    /// Where a value lies, from 0 to 1; `None` if the axis has no place for it.
    pub fn place(&self, value: f64) -> Option<f64> {
        let place = match self.layout {
            Layout::Linear => (value - self.low) / (self.high - self.low),
            Layout::Logarithmic if value <= 0.0 => return None,
            Layout::Logarithmic => {
                let low = libm::log10(self.low);
                (libm::log10(value) - low) / (libm::log10(self.high) - low)
            }
            Layout::Categories(count) => (value + 0.5) / count.max(1) as f64,
        };
        Some(place.clamp(0.0, 1.0))
    }

    /// Where bars begin: at zero, or at the end nearest to it.
    pub fn base(&self) -> f64 {
        match self.layout {
            Layout::Linear => {
                (0.0 - self.low).clamp(0.0, self.high - self.low) / (self.high - self.low)
            }
            Layout::Logarithmic | Layout::Categories(_) => 0.0,
        }
    }

    fn linear(axis: &Axis, values: &[f64], side: Side) -> Self {
        let (mut low, mut high) = extent(values.iter().copied()).unwrap_or((0.0, 1.0));
        match side {
            Side::Left { headroom } => {
                (low, high) = (low.min(0.0), high.max(0.0));
                high += headroom * high;
                low += headroom * low;
            }
            Side::Bottom if low >= 0.0 && low < 0.25 * high => low = 0.0,
            Side::Bottom => (),
        }
        // Values that differ by rounding only are one value, and need some room about it.
        let size = low.abs().max(high.abs());
        if high - low <= size * 1e-9 {
            let room = if size == 0.0 { 1.0 } else { size / 2.0 };
            (low, high) = match side {
                Side::Left { .. } if size == 0.0 => (0.0, 1.0),
                _ => (low - room, high + room),
            };
        }
        let step = round_step((high - low) / if side == Side::Bottom { 8.0 } else { 5.0 });
        if side != Side::Bottom {
            // Half steps, lest a value just above a tick leaves half the plot empty.
            let half = step / 2.0;
            low = libm::floor(low / half + 1e-9) * half;
            high = libm::ceil(high / half - 1e-9) * half;
        } else {
            let room = (high - low) * 0.02;
            (low, high) = (if low == 0.0 { low } else { low - room }, high + room);
        }
        let unit = Unit::parse(&axis.unit);
        let (mut power, name) = unit.fitting(&axis.unit, low.abs().max(high.abs()));
        let mut suffix = "";
        if let (Unit::Opaque(_), exponent @ 4..15) = (unit, exponent_of(low.abs().max(high.abs())))
        {
            power = exponent / 3 * 3;
            suffix = ["", "k", "M", "G", "T"][power as usize / 3];
        }
        let mut span =
            Self { low, high, layout: Layout::Linear, ticks: Vec::new(), unit: name, power };
        span.ticks = linear_ticks(low, high, step, power, suffix);
        if !suffix.is_empty() {
            span.power = 0;
        }
        span
    }

    fn logarithmic(axis: &Axis, values: &[f64], side: Side) -> Self {
        let positive: Vec<f64> = values.iter().copied().filter(|value| *value > 0.0).collect();
        let (mut low, mut high) = extent(positive.iter().copied()).unwrap_or((1.0, 10.0));
        let doublings = side == Side::Bottom && mostly_doublings(&positive);
        if side != Side::Bottom {
            let headroom = if let Side::Left { headroom } = side { 1.0 + headroom } else { 1.0 };
            (low, high) = (decade_below(low), decade_above(high * headroom));
            if low == high {
                high = low * 10.0;
            }
        } else {
            // Some room at both ends, so that a marker does not sit on the frame.
            let room = libm::pow(high / low, 0.03);
            let room = if high <= low * (1.0 + 1e-9) { 3.0 } else { room };
            (low, high) = (low / room, high * room);
        }
        let ticks = match doublings {
            true => doubling_ticks(low, high, &axis.unit),
            false => decade_ticks(low, high, &axis.unit),
        };
        // Labels such as `250 µs` carry their unit; those of opaque units do not.
        let unit = match Unit::parse(&axis.unit) {
            Unit::Opaque(unit) => unit.to_owned(),
            _ => String::new(),
        };
        Self { low, high, layout: Layout::Logarithmic, ticks, unit, power: 0 }
    }
}

fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |extent, value| {
        let (low, high) = extent.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is at least `rough`.
fn round_step(rough: f64) -> f64 {
    let decade = decade_below(rough);
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * decade);
    steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * decade)
}

/// The power of ten at or below a positive value.
fn decade_below(value: f64) -> f64 {
    // Shortest digits, not rounded ones: 9.9999 lies below 10.
    let text = format!("{value:e}");
    let exponent = text.split_once('e').and_then(|(_, exponent)| exponent.parse().ok());
    ten_to(exponent.unwrap_or(0))
}

fn decade_above(value: f64) -> f64 {
    let below = decade_below(value);
    if below >= value { below } else { below * 10.0 }
}

fn linear_ticks(low: f64, high: f64, step: f64, power: i32, suffix: &str) -> Vec<Tick> {
    let shown_step = step * ten_to(-power);
    let text = format!("{shown_step:.2e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = mantissa.trim_end_matches('0').len().saturating_sub(2) as i32;
    let decimals = digits - exponent.parse::<i32>().unwrap_or(0);
    let first = libm::ceil(low / step - 1e-9);
    let mut ticks = Vec::new();
    for index in 0..40 {
        let value = (first + f64::from(index)) * step;
        if value > high + step * 1e-6 {
            break;
        }
        let shown = value * ten_to(-power);
        let label = match usize::try_from(decimals.max(0)) {
            Ok(decimals) if decimals <= 8 && shown.abs() < 1e6 => {
                with_commas(&format!("{:.decimals$}", if shown == 0.0 { 0.0 } else { shown }))
            }
            _ => plain(shown),
        };
        let label = if value == 0.0 { "0".to_owned() } else { format!("{label}{suffix}") };
        ticks.push(Tick { value, label });
    }
    ticks
}

fn decade_ticks(low: f64, high: f64, unit: &str) -> Vec<Tick> {
    let decades = libm::log10(high / low);
    let labelled: &[u32] = if decades < 3.5 { &[1, 2, 5] } else { &[1] };
    let stride = libm::ceil(decades / 8.0).max(1.0) as i32;
    let (first, last) = (exponent_of(decade_below(low)), exponent_of(decade_above(high)));
    let mut ticks = Vec::new();
    for exponent in first..=last {
        // Long axes keep every n-th decade; those between would crowd.
        if exponent.rem_euclid(stride) != 0 {
            continue;
        }
        let multiples = if stride == 1 && decades < 6.0 { 9 } else { 1 };
        for multiple in 1..=multiples {
            let value = f64::from(multiple) * ten_to(exponent);
            if value < low * (1.0 - 1e-9) || value > high * (1.0 + 1e-9) {
                continue;
            }
            let bare = !labelled.contains(&multiple);
            let label = if bare { String::new() } else { short(value, unit) };
            ticks.push(Tick { value, label });
        }
    }
    if ticks.iter().filter(|tick| !tick.label.is_empty()).count() >= 2 {
        return ticks;
    }
    // Less than a decade, with no two round numbers in it: round steps, placed by logarithm.
    let mut ticks = linear_ticks(low, high, round_step((high - low) / 5.0), 0, "");
    for tick in &mut ticks {
        tick.label = short(tick.value, unit);
    }
    ticks
}

/// Whether most different values are powers of two: block sizes, queue depths, batches.
fn mostly_doublings(values: &[f64]) -> bool {
    let mut different = values.to_vec();
    different.sort_by(f64::total_cmp);
    different.dedup();
    let is_doubling = |value: &&f64| value.to_bits() & ((1 << 52) - 1) == 0;
    let doublings = different.iter().filter(is_doubling).count();
    let (Some(low), Some(high)) = (different.first(), different.last()) else { return false };
    doublings >= 3 && 3 * doublings >= 2 * different.len() && high / low < (1_u64 << 40) as f64
}

fn doubling_ticks(low: f64, high: f64, unit: &str) -> Vec<Tick> {
    let first = libm::ceil(libm::log2(low) - 1e-9);
    let last = libm::floor(libm::log2(high) + 1e-9);
    let count = (last - first) as u32 + 1;
    let stride = count.div_ceil(12).max(1);
    let ticks = (0..count).step_by(stride as usize).map(|index| {
        let value = libm::exp2(first + f64::from(index));
        Tick { value, label: short(value, unit) }
    });
    ticks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEFT: Side = Side::Left { headroom: 0.0 };

    fn axis(unit: &str, scale: Scale) -> Axis {
        Axis { label: String::new(), unit: unit.to_owned(), scale, categories: None }
    }

    fn labels(axis: &Axis, values: &[f64], side: Side) -> Vec<String> {
        let span = Span::new(axis, values, side);
        span.ticks.into_iter().map(|tick| tick.label).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn a_linear_axis_has_round_ticks_in_a_fitting_unit() {
        let seconds = axis("s", Scale::Linear);
        assert_eq!(labels(&seconds, &[0.0, 0.0042], LEFT), ["0", "1", "2", "3", "4"]);
        assert_eq!(Span::new(&seconds, &[0.0042], LEFT).unit, "ms");
        let rate = axis("GB/s", Scale::Linear);
        assert_eq!(labels(&rate, &[0.7, 1.2], LEFT), ["0", "0.25", "0.50", "0.75", "1.00", "1.25"]);
        let iops = axis("IOPS", Scale::Linear);
        assert_eq!(
            labels(&iops, &[470_000.0], LEFT),
            ["0", "100k", "200k", "300k", "400k", "500k"]
        );
    }

    #[test]
    fn a_logarithmic_axis_labels_decades_with_prefixes() {
        let seconds = axis("us", Scale::Log);
        assert_eq!(
            labels(&seconds, &[30.0, 400_000.0], Side::Bottom),
            ["100 µs", "1 ms", "10 ms", "100 ms"]
        );
        let narrow = labels(&axis("", Scale::Log), &[1.2, 1.8], Side::Bottom);
        assert!(narrow.len() >= 3, "{narrow:?}");
    }

    #[test]
    fn sizes_and_depths_get_ticks_at_powers_of_two() {
        let sizes = labels(&axis("KiB", Scale::Log), &[8.0, 64.0, 512.0, 1024.0], Side::Bottom);
        assert_eq!(sizes.first().map(String::as_str), Some("8 KiB"));
        assert_eq!(sizes.last().map(String::as_str), Some("1 MiB"));
        let batch = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 44.0];
        assert_eq!(
            labels(&axis("", Scale::Log), &batch, Side::Bottom),
            ["1", "2", "4", "8", "16", "32"]
        );
    }

    #[test]
    fn ticks_are_few_and_places_within_the_axis_whatever_the_values() {
        let sizes = [0.0, 1e-100, 1e-9, 0.1, 1.0, 1.0 + 1e-12, 3.0, 1e9, 1e17, 1e100];
        for scale in [Scale::Linear, Scale::Log] {
            for side in [LEFT, Side::Bottom, Side::Left { headroom: 0.1 }] {
                for low in sizes.into_iter().chain(sizes.map(|size| -size)) {
                    for high in sizes {
                        let what = format!("{scale:?} {side:?} {low:e} to {high:e}");
                        let span = Span::new(&axis("s", scale), &[low, high], side);
                        assert!(span.ticks.len() <= 60, "{what}: {}", span.ticks.len());
                        for value in [low, high] {
                            let place = span.place(value);
                            assert!(place.is_some() || value <= 0.0, "{what}");
                            assert!(
                                place.is_none_or(|place| (0.0..=1.0).contains(&place)),
                                "{what}"
                            );
                        }
                    }
                }
            }
        }
    }
}
