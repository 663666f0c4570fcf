//! What a source said, what Weir measures, and the verdict.
//!
//! Invariant: a verdict is never written by hand. It comes from [`judge`], also when a claim is read
//! back from JSON; only that a source contradicts itself is said by a person, who must give the
//! reason.

use super::number;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number, a range or a text, as it is printed.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(from = "RawValue", into = "RawValue")]
pub enum Value {
    /// One number.
    Number(f64),
    /// From the first to the second, both included: `0.13-0.17`.
    Range(f64, f64),
    /// Anything else.
    Text(String),
}

/// How a [`Value`] stands in JSON: a number, or a text that may be a range.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum RawValue {
    Number(f64),
    Text(String),
}

impl From<RawValue> for Value {
    fn from(raw: RawValue) -> Self {
        match raw {
            RawValue::Number(number) => Self::Number(number),
            RawValue::Text(text) => Self::from(text),
        }
    }
}

impl From<Value> for RawValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Number(number) => Self::Number(number),
            Value::Range(low, high) => Self::Text(format!("{low}-{high}")),
            Value::Text(text) => Self::Text(text),
        }
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        // The first minus may be a sign, any other may stand behind an exponent's `e`.
        let range = text.match_indices('-').find_map(|(at, _)| {
            let (low, high) = (text[..at].parse().ok()?, text[at + 1..].parse().ok()?);
            Some((low, high))
        });
        range.map_or_else(|| Self::Text(text.to_owned()), |(low, high)| Self::Range(low, high))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl Value {
    /// Whether every number in it is finite.
    pub fn is_finite(&self) -> bool {
        match self {
            Self::Number(number) => number.is_finite(),
            Self::Range(low, high) => low.is_finite() && high.is_finite(),
            Self::Text(_) => true,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => f.write_str(&number::plain(*number)),
            Self::Range(low, high) => {
                write!(f, "{}–{}", number::plain(*low), number::plain(*high))
            }
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Which side of what was said is good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Goal {
    /// Neither: the closer the better.
    Equal,
    /// More is better.
    AtLeast,
    /// Less is better.
    AtMost,
}

/// How far the measured value may be from what was said, in percent of it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tolerance {
    goal: Goal,
    percent: f64,
}

impl Tolerance {
    /// As close as `percent` to either side.
    pub fn equal_within(percent: f64) -> Self {
        Self { goal: Goal::Equal, percent }
    }

    /// At least what was said, less `percent`; more than `percent` above it exceeds.
    pub fn at_least(percent: f64) -> Self {
        Self { goal: Goal::AtLeast, percent }
    }

    /// At most what was said, and `percent` more; more than `percent` below it exceeds.
    pub fn at_most(percent: f64) -> Self {
        Self { goal: Goal::AtMost, percent }
    }
}

const WORDS: [(Goal, &str); 3] = [
    (Goal::Equal, "within"),
    (Goal::AtLeast, "at least, within"),
    (Goal::AtMost, "at most, within"),
];

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(goal, _)| *goal == self.goal).map_or("", |(_, word)| word);
        match word.split_once(',') {
            Some((bare, _)) if self.percent == 0.0 => f.write_str(bare),
            _ => write!(f, "{word} {} %", self.percent),
        }
    }
}

impl From<Tolerance> for String {
    fn from(tolerance: Tolerance) -> Self {
        tolerance.to_string()
    }
}

impl TryFrom<String> for Tolerance {
    type Error = BadClaim;

    fn try_from(text: String) -> Result<Self, BadClaim> {
        match text.as_str() {
            "at least" => return Ok(Self::at_least(0.0)),
            "at most" => return Ok(Self::at_most(0.0)),
            _ => (),
        }
        let parsed = WORDS.iter().find_map(|(goal, word)| {
            let percent = text.strip_prefix(word)?.strip_suffix(" %")?.strip_prefix(' ')?;
            Some(Self { goal: *goal, percent: percent.parse().ok()? })
        });
        parsed.ok_or(BadClaim::Tolerance)
    }
}

/// Of what a claim is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// What a source says of its system, measured of Weir.
    Source,
    /// What is said of another system, measured of the model of it that Weir is compared with.
    Baseline,
    /// A goal of Weir's own.
    Own,
}

impl Class {
    /// All, in the order in which they are told.
    pub const ALL: [Self; 3] = [Self::Source, Self::Baseline, Self::Own];

    /// The word in JSON and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Baseline => "baseline",
            Self::Own => "own",
        }
    }

    /// Of what its claims are, for a heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::Source => "Claims of sources about their systems",
            Self::Baseline => "Fit of baselines",
            Self::Own => "Goals of our own",
        }
    }

    /// What is told of a figure of this class.
    fn verdict(self, found: Found) -> Verdict {
        match (self, found) {
            (Self::Source, Found::Within) => Verdict::Reproduced,
            (Self::Source, Found::Better) => Verdict::Exceeded,
            (Self::Source | Self::Own, Found::Worse) => Verdict::Missed,
            (Self::Baseline, Found::Within) => Verdict::Fits,
            (Self::Baseline, Found::Better | Found::Worse) => Verdict::Misfit,
            (Self::Own, Found::Within | Found::Better) => Verdict::Met,
        }
    }
}

/// How a measured figure stands to what was said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Found {
    Within,
    Better,
    Worse,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Measured as the source says, within the tolerance.
    Reproduced,
    /// Better than the source says by more than the tolerance.
    Exceeded,
    /// A goal of Weir's own is reached.
    Met,
    /// Worse than said by more than the tolerance.
    Missed,
    /// A baseline is as what it stands for, within the tolerance.
    Fits,
    /// A baseline is not, on whichever side.
    Misfit,
    /// The source's own figures cannot all be true.
    ContradictsItself,
}

impl Verdict {
    /// All, the good ones first.
    pub const ALL: [Self; 7] = [
        Self::Reproduced,
        Self::Exceeded,
        Self::Met,
        Self::Fits,
        Self::Missed,
        Self::Misfit,
        Self::ContradictsItself,
    ];

    /// Whether it is not as was said, which wants a reason.
    pub fn wants_reason(self) -> bool {
        matches!(self, Self::Missed | Self::Misfit)
    }

    /// The word in JSON and in every table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Exceeded => "exceeded",
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Fits => "fits",
            Self::Misfit => "misfit",
            Self::ContradictsItself => "contradicts-itself",
        }
    }
}

/// Why there is no verdict.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadClaim {
    /// A number is not finite, or a range runs backwards.
    Number,
    /// A tolerance that is not a percentage of at least 0, or not in words this module prints.
    Tolerance,
    /// A text against a number, or a range as a measured value.
    Kinds,
    /// A contradiction without a reason.
    Reason,
    /// The verdict that was read is not the one the numbers bear.
    Forged,
}

impl fmt::Display for BadClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number => "a number is not finite or a range runs backwards: correct the figure",
            Self::Tolerance => "a tolerance is `within N %`, `at least[, within N %]` or `at most`",
            Self::Kinds => "a number is judged by a number or a range, a text by a text",
            Self::Reason => "`contradicts-itself` needs a reason: say which figures disagree",
            Self::Forged => "the verdict is not the one its numbers bear: run the claim again",
        })
    }
}

impl std::error::Error for BadClaim {}

/// The verdict on `measured`. Texts must be the same; numbers are held against the tolerance; a text
/// where a number was said tells why none could be measured, which is a miss. Better than said is only
/// what is so by more than a stated tolerance, and nothing is by percents better than zero.
pub fn judge(
    class: Class,
    said: &Value,
    measured: &Value,
    tolerance: Tolerance,
) -> Result<Verdict, BadClaim> {
    compare(said, measured, tolerance).map(|found| class.verdict(found))
}

fn compare(said: &Value, measured: &Value, tolerance: Tolerance) -> Result<Found, BadClaim> {
    if !said.is_finite() || !measured.is_finite() {
        return Err(BadClaim::Number);
    }
    if !tolerance.percent.is_finite() || tolerance.percent < 0.0 {
        return Err(BadClaim::Tolerance);
    }
    let (low, high, measured) = match (said, measured) {
        (Value::Text(said), Value::Text(measured)) => {
            return Ok(if said == measured { Found::Within } else { Found::Worse });
        }
        // In place of a number stands why there is none: it never crosses, nothing ended in time.
        (Value::Number(_) | Value::Range(..), Value::Text(_)) => return Ok(Found::Worse),
        (Value::Number(said), Value::Number(measured)) => (*said, *said, *measured),
        (Value::Range(low, high), Value::Number(measured)) => (*low, *high, *measured),
        _ => return Err(BadClaim::Kinds),
    };
    if low > high {
        return Err(BadClaim::Number);
    }
    let share = tolerance.percent / 100.0;
    let (floor, ceiling) = (low - share * low.abs(), high + share * high.abs());
    let beyond = if share > 0.0 && high != 0.0 { Found::Better } else { Found::Within };
    Ok(match tolerance.goal {
        _ if (floor..=ceiling).contains(&measured) => Found::Within,
        Goal::AtLeast if measured > ceiling => beyond,
        Goal::AtMost if measured < floor => beyond,
        Goal::Equal | Goal::AtLeast | Goal::AtMost => Found::Worse,
    })
}

/// What a source says, before anything is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Which claim: short, unique among all claims.
    pub id: String,
    /// Of what it is.
    pub class: Class,
    /// Paper and place in it.
    pub source: String,
    /// What it says.
    pub said: Value,
    /// Unit of what is said and measured; empty if there is none.
    pub unit: String,
    /// How close the measured value must come.
    pub tolerance: Tolerance,
}

impl Statement {
    /// What is said, in which unit, and how near the measured value has to come: `390 MB/s, within 15 %`.
    pub fn in_words(&self) -> String {
        let unit = number::unit_name(&self.unit);
        let gap = if unit.is_empty() { "" } else { " " };
        format!("{}{gap}{unit}, {}", self.said, self.tolerance)
    }
}

/// In which what was measured with several seeds lies at 95 %.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Interval {
    /// From here.
    pub low: f64,
    /// To here.
    pub high: f64,
    /// So many seeds.
    pub seeds: u32,
}

/// A statement with what was measured, and the verdict.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "RawClaim", into = "RawClaim")]
pub struct Claim {
    statement: Statement,
    measured: Value,
    interval: Option<Interval>,
    baseline: Option<Value>,
    /// Models of what it is ranked beside that are not as what they stand for: ids of their claims.
    misfits: Vec<String>,
    verdict: Verdict,
    reason: Option<String>,
}

impl Claim {
    /// A claim with the verdict that its numbers bear.
    pub fn judged(
        statement: Statement,
        measured: impl Into<Value>,
        baseline: Option<Value>,
    ) -> Result<Self, BadClaim> {
        let measured = measured.into();
        if baseline.as_ref().is_some_and(|baseline| !baseline.is_finite()) {
            return Err(BadClaim::Number);
        }
        let verdict = judge(statement.class, &statement.said, &measured, statement.tolerance)?;
        let (interval, misfits, reason) = (None, Vec::new(), None);
        Ok(Self { statement, measured, interval, baseline, misfits, verdict, reason })
    }

    /// A claim whose source contradicts itself, with the reason: which figures cannot all be true.
    pub fn contradicts_itself(
        statement: Statement,
        measured: impl Into<Value>,
        baseline: Option<Value>,
        reason: &str,
    ) -> Result<Self, BadClaim> {
        let measured = measured.into();
        let values = [Some(&statement.said), Some(&measured), baseline.as_ref()];
        if !values.into_iter().flatten().all(Value::is_finite) {
            return Err(BadClaim::Number);
        }
        if reason.trim().is_empty() {
            return Err(BadClaim::Reason);
        }
        let (verdict, reason) = (Verdict::ContradictsItself, Some(reason.to_owned()));
        let (interval, misfits) = (None, Vec::new());
        Ok(Self { statement, measured, interval, baseline, misfits, verdict, reason })
    }

    /// The same claim with the reason for its verdict: why it was missed, how it was exceeded.
    pub fn because(mut self, reason: &str) -> Self {
        self.reason = Some(reason.to_owned());
        self
    }

    /// The same claim, ranked beside models of which the claims with these ids do not fit: nothing is exceeded
    /// beside those, and what the source has is all that was reached.
    pub fn beside(mut self, misfits: Vec<String>) -> Self {
        self.misfits = misfits;
        self.verdict = self.ranked(self.verdict);
        self
    }

    fn ranked(&self, verdict: Verdict) -> Verdict {
        let exceeds = verdict == Verdict::Exceeded && !self.misfits.is_empty();
        if exceeds { Verdict::Reproduced } else { verdict }
    }

    /// The same claim, with how sure its figure is.
    pub fn with_interval(mut self, interval: Option<Interval>) -> Self {
        self.interval = interval;
        self
    }

    /// How sure the measured figure is, where several seeds tell.
    pub fn interval(&self) -> Option<Interval> {
        self.interval
    }

    /// Whether every figure of the interval bears the same verdict. One seed tells nothing of that. Verdicts change
    /// with the distance from what is said, so its ends and the figure that is nearest to that speak for all.
    pub fn is_certain(&self) -> bool {
        let Some(Interval { low, high, .. }) = self.interval else { return true };
        let Statement { class, said, tolerance, .. } = &self.statement;
        let nearest = match *said {
            Value::Number(said) => said.max(low).min(high),
            Value::Range(least, _) => least.max(low).min(high),
            Value::Text(_) => low,
        };
        let same = |figure: f64| {
            let verdict = judge(*class, said, &Value::Number(figure), *tolerance);
            verdict.map(|verdict| self.ranked(verdict)) == Ok(self.verdict)
        };
        self.verdict == Verdict::ContradictsItself || [low, nearest, high].into_iter().all(same)
    }

    /// The verdict as tables have it: with a question mark where other seeds may bear another one.
    pub fn verdict_text(&self) -> String {
        format!("{}{}", self.verdict.name(), if self.is_certain() { "" } else { "?" })
    }

    /// What the source says.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// What Weir measures.
    pub fn measured(&self) -> &Value {
        &self.measured
    }

    /// What the baseline measures, the same way.
    pub fn baseline(&self) -> Option<&Value> {
        self.baseline.as_ref()
    }

    /// Claims of models that it is ranked beside and that do not fit.
    pub fn misfits(&self) -> &[String] {
        &self.misfits
    }

    /// What became of it.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Why.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

/// A claim in JSON.
#[derive(Deserialize, Serialize)]
struct RawClaim {
    id: String,
    class: Class,
    source: String,
    said: Value,
    measured: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interval: Option<Interval>,
    baseline: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    misfits: Vec<String>,
    unit: String,
    tolerance: Tolerance,
    verdict: Verdict,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certain: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<Claim> for RawClaim {
    fn from(claim: Claim) -> Self {
        let certain = claim.interval.map(|_| claim.is_certain());
        let Claim { statement, measured, interval, baseline, misfits, verdict, reason } = claim;
        let Statement { id, class, source, said, unit, tolerance } = statement;
        Self {
            id,
            class,
            source,
            said,
            measured,
            interval,
            baseline,
            misfits,
            unit,
            tolerance,
            verdict,
            certain,
            reason,
        }
    }
}

impl TryFrom<RawClaim> for Claim {
    type Error = BadClaim;

    fn try_from(raw: RawClaim) -> Result<Self, BadClaim> {
        let RawClaim {
            id,
            class,
            source,
            said,
            measured,
            interval,
            baseline,
            misfits,
            unit,
            tolerance,
            verdict,
            certain,
            reason,
        } = raw;
        let statement = Statement { id, class, source, said, unit, tolerance };
        if verdict == Verdict::ContradictsItself {
            let reason = reason.as_deref().unwrap_or("");
            let claim = Self::contradicts_itself(statement, measured, baseline, reason)?;
            return Ok(claim.beside(misfits).with_interval(interval));
        }
        let claim = Self::judged(statement, measured, baseline)?.beside(misfits);
        let claim = Self { reason, interval, ..claim };
        let same = claim.verdict == verdict && certain.is_none_or(|it| it == claim.is_certain());
        if same { Ok(claim) } else { Err(BadClaim::Forged) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(said: &str, tolerance: Tolerance) -> Statement {
        let said = said.parse().map_or_else(|_| Value::from(said), Value::Number);
        let (id, source) = ("sdf-write".to_owned(), "SDF, table 4".to_owned());
        let class = Class::Source;
        Statement { id, class, source, said, unit: "GB/s".to_owned(), tolerance }
    }

    #[test]
    fn a_verdict_follows_from_said_measured_tolerance_and_direction() {
        use Verdict::{Exceeded, Missed, Reproduced};
        let cases = [
            ("100", 104.0, Tolerance::equal_within(5.0), Reproduced),
            ("100", 106.0, Tolerance::equal_within(5.0), Missed),
            ("100", 94.0, Tolerance::equal_within(5.0), Missed),
            ("100", 106.0, Tolerance::at_least(5.0), Exceeded),
            ("100", 95.0, Tolerance::at_least(5.0), Reproduced),
            ("100", 94.0, Tolerance::at_least(5.0), Missed),
            ("3", 2.9, Tolerance::at_most(0.0), Reproduced),
            ("3", 2.8, Tolerance::at_most(5.0), Exceeded),
            ("0", -1.0, Tolerance::at_most(5.0), Reproduced),
            ("3", 3.0, Tolerance::at_most(0.0), Reproduced),
            ("3", 3.1, Tolerance::at_most(0.0), Missed),
            ("0", 0.0, Tolerance::at_most(0.0), Reproduced),
            ("-10", -10.4, Tolerance::equal_within(5.0), Reproduced),
            ("0.13-0.17", 0.15, Tolerance::equal_within(0.0), Reproduced),
            ("0.13-0.17", 0.12, Tolerance::at_most(0.0), Reproduced),
            ("0.13-0.17", 0.12, Tolerance::at_most(5.0), Exceeded),
            ("0.13-0.17", 0.18, Tolerance::at_most(0.0), Missed),
        ];
        for (said, measured, tolerance, expected) in cases {
            let claim = Claim::judged(statement(said, tolerance), measured, None).unwrap();
            assert_eq!(claim.verdict(), expected, "{said} {tolerance} against {measured}");
        }
    }

    #[test]
    fn a_baseline_fits_or_does_not_and_a_goal_of_our_own_is_met_or_missed() {
        let (at_least, at_most) = (Tolerance::at_least(5.0), Tolerance::at_most(0.0));
        let cases = [
            (Class::Baseline, 106.0, at_least, Verdict::Misfit),
            (Class::Baseline, 94.0, at_least, Verdict::Misfit),
            (Class::Baseline, 104.0, at_least, Verdict::Fits),
            (Class::Baseline, 50.0, at_most, Verdict::Fits),
            (Class::Own, 106.0, at_least, Verdict::Met),
            (Class::Own, 94.0, at_least, Verdict::Missed),
        ];
        for (class, measured, tolerance, expected) in cases {
            let found = judge(class, &Value::Number(100.0), &Value::Number(measured), tolerance);
            assert_eq!(found, Ok(expected), "{class:?}: {measured} {tolerance}");
        }
    }

    #[test]
    fn nothing_is_exceeded_beside_a_model_that_does_not_fit() {
        let judged = |measured: f64, misfits: &[&str]| {
            let said = statement("100", Tolerance::at_least(5.0));
            let misfits = misfits.iter().map(|&id| id.to_owned()).collect();
            let interval = Some(Interval { low: measured - 1.0, high: measured + 1.0, seeds: 5 });
            Claim::judged(said, measured, None).unwrap().beside(misfits).with_interval(interval)
        };
        assert_eq!(judged(120.0, &[]).verdict(), Verdict::Exceeded);
        let beside = judged(120.0, &["cache-writes"]);
        assert_eq!(beside.verdict_text(), "reproduced");
        assert_eq!(judged(105.0, &["cache-writes"]).verdict_text(), "reproduced");
        assert_eq!(judged(105.0, &[]).verdict_text(), "reproduced?");
        assert_eq!(judged(90.0, &["cache-writes"]).verdict(), Verdict::Missed);
        let json = serde_json::to_string(&beside).unwrap();
        assert!(json.contains(r#""misfits":["cache-writes"]"#), "{json}");
        assert_eq!(serde_json::from_str::<Claim>(&json).unwrap(), beside);
        let forged = json.replace(r#""misfits":["cache-writes"],"#, "");
        assert!(serde_json::from_str::<Claim>(&forged).is_err(), "it would be exceeded");
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        let within = Tolerance::equal_within(5.0);
        let number = |value: f64| Value::Number(value);
        assert_eq!(
            judge(Class::Source, &number(f64::NAN), &number(1.0), within),
            Err(BadClaim::Number)
        );
        assert_eq!(
            judge(Class::Source, &number(1.0), &number(f64::INFINITY), within),
            Err(BadClaim::Number)
        );
        assert_eq!(
            judge(Class::Source, &Value::Range(2.0, 1.0), &number(1.0), within),
            Err(BadClaim::Number)
        );
        assert_eq!(
            judge(Class::Source, &"flat".into(), &number(1.0), within),
            Err(BadClaim::Kinds)
        );
        let negative = Tolerance::equal_within(-1.0);
        assert_eq!(
            judge(Class::Source, &number(1.0), &number(1.0), negative),
            Err(BadClaim::Tolerance)
        );
        let silent = Claim::contradicts_itself(statement("1", within), 1.0, None, " ");
        assert_eq!(silent, Err(BadClaim::Reason));
    }

    #[test]
    fn texts_are_reproduced_only_if_they_are_the_same() {
        let said = statement("linear up to the cap", Tolerance::equal_within(0.0));
        let same = Claim::judged(said.clone(), "linear up to the cap", None).unwrap();
        assert_eq!(same.verdict(), Verdict::Reproduced);
        assert_eq!(Claim::judged(said, "flat", None).unwrap().verdict(), Verdict::Missed);
    }

    #[test]
    fn json_has_the_promised_keys_and_comes_back_the_same() {
        let said = statement("0.13-0.17", Tolerance::at_most(5.0));
        let claim = Claim::judged(said, 0.15, Some(Value::Number(3.0))).unwrap();
        let json = serde_json::to_string(&claim).unwrap();
        let expected = concat!(
            r#"{"id":"sdf-write","class":"source","source":"SDF, table 4","said":"0.13-0.17","measured":0.15,"#,
            r#""baseline":3.0,"unit":"GB/s","tolerance":"at most, within 5 %","#,
            r#""verdict":"reproduced"}"#
        );
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Claim>(&json).unwrap(), claim);
        let contradiction = Claim::contradicts_itself(
            statement("14", Tolerance::at_least(0.0)),
            "not possible",
            None,
            "14x is 40 Gb/s over a link of 10",
        );
        let json = serde_json::to_string(&contradiction.unwrap()).unwrap();
        assert!(json.contains(r#""verdict":"contradicts-itself""#), "{json}");
        assert!(serde_json::from_str::<Claim>(&json).is_ok());
    }

    #[test]
    fn a_verdict_is_certain_where_its_whole_interval_bears_it() {
        let judged = |low, high| {
            let said = statement("100", Tolerance::equal_within(5.0));
            let interval = Some(Interval { low, high, seeds: 5 });
            Claim::judged(said, (low + high) / 2.0, None).unwrap().with_interval(interval)
        };
        assert_eq!(judged(96.0, 104.0).verdict_text(), "reproduced");
        // Both ends are missed, on either side of what is said.
        assert_eq!(judged(94.0, 106.0).verdict_text(), "reproduced?");
        assert_eq!(judged(104.0, 112.0).verdict_text(), "missed?");
        // So is the mean, but what is said lies between.
        assert_eq!(judged(60.0, 120.0).verdict_text(), "missed?");
        assert_eq!(judged(60.0, 80.0).verdict_text(), "missed");
        let json = serde_json::to_string(&judged(104.0, 112.0)).unwrap();
        assert!(json.contains(r#""interval":{"low":104.0,"high":112.0,"seeds":5}"#), "{json}");
        let back = serde_json::from_str::<Claim>(&json).unwrap();
        assert_eq!(back, judged(104.0, 112.0));
        let forged = json.replace(r#""certain":false"#, r#""certain":true"#);
        assert!(forged != json && serde_json::from_str::<Claim>(&forged).is_err());
    }

    #[test]
    fn a_verdict_written_by_hand_is_refused() {
        let said = statement("100", Tolerance::equal_within(5.0));
        let json = serde_json::to_string(&Claim::judged(said, 50.0, None).unwrap()).unwrap();
        for forged in ["reproduced", "exceeded"] {
            let forged = json.replace("missed", forged);
            let error = serde_json::from_str::<Claim>(&forged).unwrap_err().to_string();
            assert!(error.contains("not the one its numbers bear"), "{error}");
        }
        let unexplained = json.replace("missed", "contradicts-itself");
        let error = serde_json::from_str::<Claim>(&unexplained).unwrap_err().to_string();
        assert!(error.contains("needs a reason"), "{error}");
    }

    #[test]
    fn every_tolerance_reads_back_as_it_prints() {
        for percent in [0.0, 0.1, 5.0, 12.5] {
            for make in [Tolerance::equal_within, Tolerance::at_least, Tolerance::at_most] {
                let tolerance = make(percent);
                assert_eq!(Tolerance::try_from(tolerance.to_string()), Ok(tolerance));
            }
        }
        assert_eq!(Tolerance::try_from("roughly".to_owned()), Err(BadClaim::Tolerance));
    }
}
