//! What mathematics says about write amplification under uniform random writes, to hold the
//! simulator against. `alpha` is physical over logical capacity, in slots that GC can use.

/// Principal branch of Lambert's W for -1/e < `x` < 0: the `w` in (-1, 0) with `w e^w = x`.
fn lambert_w0(x: f64) -> f64 {
    // Good to a few percent near the branch point, where Newton's steps would be tiny.
    let root = (2.0 * (1.0 + std::f64::consts::E * x).max(0.0)).sqrt();
    let mut w = -1.0 + root - root * root / 3.0;
    for _ in 0..100 {
        // Halley's method.
        let e = libm::exp(w);
        let error = w * e - x;
        let slope = e * (w + 1.0) - (w + 2.0) * error / (2.0 * w + 2.0);
        let step = error / slope;
        if !step.is_finite() || step.abs() < 1e-15 {
            break;
        }
        w -= step;
    }
    w
}

/// Write amplification of the FIFO victim policy (Desnoyers, SYSTOR 2012).
pub fn waf_fifo(alpha: f64) -> f64 {
    alpha / (alpha + lambert_w0(-alpha * libm::exp(-alpha)))
}

/// Least write amplification of two classes of data that are kept apart, each uniform in itself: the
/// first has the share `fraction` of the data and `share` of the writes. The over-provisioning is
/// divided between them as is best (Stoica and Ailamaki, VLDB 2013); bands are large.
pub fn waf_two_classes(alpha: f64, fraction: f64, share: f64) -> f64 {
    let waf = |hot: f64| {
        let cold = (alpha - fraction * hot) / (1.0 - fraction);
        share * waf_fifo(hot) + (1.0 - share) * waf_fifo(cold)
    };
    // Convex between the division that leaves one or the other class nothing: thirds of it.
    let (mut low, mut high) = (1.0 + 1e-9, (alpha - (1.0 - fraction)) / fraction - 1e-9);
    for _ in 0..200 {
        let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if waf(left) < waf(right) { high = right } else { low = left }
    }
    waf(low)
}

/// Least write amplification of classes of data that are kept apart, each uniform in itself: of the
/// first `fractions` of the data and the second of the writes. As [`waf_two_classes`], of any number.
pub fn waf_classes(alpha: f64, classes: &[(f64, f64)]) -> f64 {
    let slope = |alpha: f64| {
        let step = 1e-5 * (alpha - 1.0);
        (waf_fifo(alpha - step) - waf_fifo(alpha + step)) / (2.0 * step)
    };
    // What one more slot saves is the same in every class; bisect for that price, and in it for the
    // room that each class gets at the price. All by their logarithms.
    let room = |price: f64, (fraction, share): (f64, f64)| {
        let (mut low, mut high) = (-14.0, 6.0);
        for _ in 0..60 {
            let middle: f64 = (low + high) / 2.0;
            let saved = slope(1.0 + libm::exp(middle)) * share / fraction;
            if saved > price { low = middle } else { high = middle }
        }
        libm::exp(low)
    };
    let (mut low, mut high) = (-20.0, 30.0);
    for _ in 0..60 {
        let price = libm::exp((low + high) / 2.0);
        let taken: f64 = classes.iter().map(|&class| class.0 * room(price, class)).sum();
        if taken > alpha - 1.0 { low = (low + high) / 2.0 } else { high = (low + high) / 2.0 }
    }
    let price = libm::exp((low + high) / 2.0);
    classes.iter().map(|&class| class.1 * waf_fifo(1.0 + room(price, class))).sum()
}

/// Write amplification of the greedy victim policy with `slots` per band (Desnoyers, 2012).
pub fn waf_greedy(alpha: f64, slots: f64) -> f64 {
    let k = (1.0 + 1.0 / (2.0 * slots)) * alpha;
    let x0 = 0.5 - slots / alpha * lambert_w0(-k * libm::exp(-k));
    slots / (slots - (x0 - 1.0))
}

/// Write amplification of the victim policy that takes the emptiest of `d` bands drawn at random
/// (mean field, Van Houdt 2013). With `d = 1` the victim is random.
pub fn waf_d_choices(alpha: f64, slots: u32, d: u32) -> f64 {
    let valid = f64::from(slots) / alpha;
    // The rate of invalidations decides how full bands are on average: bisect for the known mean.
    let (mut low, mut high) = (0.0, f64::from(slots));
    for _ in 0..60 {
        let rate = (low + high) / 2.0;
        if mean_valid(rate, slots, d) < valid { low = rate } else { high = rate }
    }
    let valid_of_victim = f64::from(slots) - valid / ((low + high) / 2.0);
    f64::from(slots) / (f64::from(slots) - valid_of_victim)
}

/// Mean valid slots of a band: with `m` the share of bands with `i` valid slots and `above` of those
/// with more, `m i = rate (1 - (above + m)^d)`.
fn mean_valid(rate: f64, slots: u32, d: u32) -> f64 {
    let (mut above, mut mean) = (0.0, 0.0);
    for i in (1..=slots).rev().map(f64::from) {
        let (mut low, mut high) = (0.0, 1.0 - above);
        for _ in 0..50 {
            let m: f64 = (low + high) / 2.0;
            if m * i < rate * (1.0 - libm::pow(above + m, f64::from(d))) {
                low = m
            } else {
                high = m
            }
        }
        above += low;
        mean += low * i;
    }
    mean
}

#[cfg(test)]
mod tests {
    use super::{waf_classes, waf_d_choices, waf_fifo, waf_greedy, waf_two_classes};

    /// Values computed independently, in another language.
    #[test]
    fn the_closed_forms_match_published_values() {
        let near = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 5e-4, "{found} where {expected} is right");
        };
        near(waf_fifo(1.07), 7.8172);
        near(waf_fifo(1.10), 5.6775);
        near(waf_fifo(1.28), 2.4814);
        near(waf_fifo(2.0), 1.2550);
        near(waf_greedy(1.07, 64.0), 7.0014);
        near(waf_greedy(1.10, 64.0), 5.2418);
        near(waf_greedy(1.28, 256.0), 2.4610);
        near(waf_two_classes(1.10, 0.2, 0.8), 3.889);
        near(waf_two_classes(1.07, 0.1, 0.9), 3.271);
        near(waf_two_classes(1.28, 0.05, 0.95), 1.170);
        near(waf_classes(1.10, &[(1.0, 1.0)]), 5.6775);
        near(waf_classes(1.10, &[(0.2, 0.8), (0.8, 0.2)]), 3.8889);
        near(waf_classes(1.28, &[(0.05, 0.95), (0.95, 0.05)]), 1.1701);
        // Classes that differ in nothing are one.
        near(waf_classes(1.07, &[(0.25, 0.25); 4]), 7.8172);
        near(waf_d_choices(1.07, 64, 10), 7.3230);
        near(waf_d_choices(1.28, 64, 2), 3.2453);
        near(waf_d_choices(1.28, 64, 1), 4.571);
    }
}
