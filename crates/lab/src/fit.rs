//! Which values of a few constants bring a model closest to what was measured: a pattern search (Hooke and
//! Jeeves, JACM 8(2), 1961) on a logarithmic scale, without derivatives and without chance.
//!
//! What the error is and how a model is measured is the caller's. The same knobs, start and errors lead to
//! the same place.

use std::collections::HashMap;

/// A constant that is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Not below this, which is above zero.
    pub least: f64,
    /// Nor above this.
    pub most: f64,
    /// Whole numbers only.
    pub whole: bool,
}

/// How long to look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// The first step, as a factor: 1.5 tries a value a half larger and one a third smaller.
    pub step: f64,
    /// Ends when the step has shrunk to less than this factor.
    pub step_least: f64,
    /// No round begins after so many measurements; what is left of one tries each knob once more.
    pub tries_max: u32,
}

/// Where the search ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// A value of each knob.
    pub at: Vec<f64>,
    /// The error there.
    pub error: f64,
    /// How many places were measured.
    pub tries: u32,
}

/// The place near `start` where `error` is least. A place is measured once; one whose error is not a number
/// loses against any other.
///
/// # Errors
/// The first error of `error`.
pub fn search<E>(
    knobs: &[Knob],
    start: &[f64],
    effort: Effort,
    mut error: impl FnMut(&[f64]) -> Result<f64, E>,
) -> Result<Found, E> {
    assert_eq!(knobs.len(), start.len(), "a start has a value for each knob");
    let mut seen = Seen { errors: HashMap::new(), measure: &mut error };
    let mut base = clamped(knobs, start);
    let mut least = seen.error(&base)?;
    let mut step = effort.step;
    let spent = |seen: &Seen<'_, E>| seen.errors.len() as u32 >= effort.tries_max;
    while step >= effort.step_least && !spent(&seen) {
        let (mut at, mut error) = (base.clone(), least);
        for knob in 0..knobs.len() {
            for factor in [step, 1.0 / step] {
                let tried = moved(knobs, &at, knob, factor);
                let tried_error = seen.error(&tried)?;
                if tried_error < error {
                    (at, error) = (tried, tried_error);
                    break;
                }
                if spent(&seen) {
                    break;
                }
            }
        }
        if error >= least {
            step = step.sqrt();
            continue;
        }
        // As far again in the direction that helped: the pattern.
        let further: Vec<f64> = at.iter().zip(&base).map(|(&to, &from)| to * to / from).collect();
        let further = clamped(knobs, &further);
        (base, least) = (at, error);
        let further_error = seen.error(&further)?;
        if further_error < least {
            (base, least) = (further, further_error);
        }
    }
    Ok(Found { at: base, error: least, tries: seen.errors.len() as u32 })
}

struct Seen<'a, E> {
    errors: HashMap<Vec<u64>, f64>,
    measure: &'a mut dyn FnMut(&[f64]) -> Result<f64, E>,
}

impl<E> Seen<'_, E> {
    fn error(&mut self, at: &[f64]) -> Result<f64, E> {
        let key: Vec<u64> = at.iter().map(|value| value.to_bits()).collect();
        if let Some(&known) = self.errors.get(&key) {
            return Ok(known);
        }
        let error = (self.measure)(at)?;
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.errors.insert(key, error);
        Ok(error)
    }
}

/// `at` with one knob turned by `factor`, a whole one at least by one.
fn moved(knobs: &[Knob], at: &[f64], knob: usize, factor: f64) -> Vec<f64> {
    let mut to = at.to_vec();
    to[knob] *= factor;
    if knobs[knob].whole && to[knob].round() == at[knob] {
        to[knob] = at[knob] + if factor > 1.0 { 1.0 } else { -1.0 };
    }
    clamped(knobs, &to)
}

fn clamped(knobs: &[Knob], at: &[f64]) -> Vec<f64> {
    let one = |(knob, &value): (&Knob, &f64)| {
        let value = if knob.whole { value.round() } else { value };
        value.clamp(knob.least, knob.most)
    };
    knobs.iter().zip(at).map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const EFFORT: Effort = Effort { step: 1.5, step_least: 1.001, tries_max: 2000 };
    const KNOB: Knob = Knob { least: 0.1, most: 1e6, whole: false };

    fn least(
        knobs: &[Knob],
        start: &[f64],
        effort: Effort,
        mut error: impl FnMut(&[f64]) -> f64,
    ) -> Found {
        search(knobs, start, effort, |at| Ok::<f64, Infallible>(error(at)))
            .expect("no error to pass on")
    }

    #[test]
    fn a_valley_is_followed_to_its_lowest_point() {
        // The product and the ratio of two constants, each known: a valley that runs across both.
        let error = |at: &[f64]| {
            let off = |ratio: f64| libm::log(ratio) * libm::log(ratio);
            off(at[0] * at[1] / 3000.0) + 0.1 * off(at[0] / at[1] / 30.0)
        };
        let found = least(&[KNOB, KNOB], &[1.0, 1.0], EFFORT, error);
        assert!((found.at[0] - 300.0).abs() < 3.0 && (found.at[1] - 10.0).abs() < 0.1, "{found:?}");
    }

    #[test]
    fn whole_numbers_move_by_one_where_a_step_is_less() {
        let knob = Knob { least: 1.0, most: 64.0, whole: true };
        let found =
            least(&[knob], &[2.0], Effort { step: 1.1, ..EFFORT }, |at| (at[0] - 7.0).abs());
        assert_eq!(found.at, [7.0]);
    }

    #[test]
    fn bounds_and_effort_hold() {
        let bounded = Knob { most: 5.0, ..KNOB };
        let found = least(&[bounded], &[1.0], EFFORT, |at| 1.0 / at[0]);
        assert_eq!(found.at, [5.0]);
        let mut measured = 0;
        let short = Effort { tries_max: 7, ..EFFORT };
        least(&[KNOB, KNOB, KNOB], &[1.0; 3], short, |at| {
            measured += 1;
            at.iter().sum()
        });
        assert!((7..=8).contains(&measured), "{measured}");
    }

    #[test]
    fn a_place_that_cannot_be_measured_loses_and_an_error_ends_it() {
        let found =
            least(&[KNOB], &[1.0], EFFORT, |at| if at[0] > 2.0 { f64::NAN } else { -at[0] });
        assert!(found.at[0] <= 2.0 && found.error.is_finite());
        assert_eq!(search(&[KNOB], &[1.0], EFFORT, |_| Err("out of paper")), Err("out of paper"));
    }
}
