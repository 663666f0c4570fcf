//! Files of a person's hand, read key by key: every key is taken once with its rule, what is left at
//! the end is unknown, and each error names key, value, reason and an example. Profiles and device
//! files are read with it.

use toml::{Table, Value};

/// What is wrong with a file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyError {
    /// What the file describes: "profile", "device".
    pub file: &'static str,
    /// The key with the tables it is in, or "the file".
    pub key: String,
    /// Its value as written; empty if it is missing.
    pub value: String,
    /// What is wrong.
    pub reason: String,
    /// A line that works.
    pub example: String,
}

impl std::fmt::Display for KeyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { file, key, value, reason, example } = self;
        if value.is_empty() {
            write!(f, "{file}: {key}: {reason}; for example: {example}")
        } else {
            write!(f, "{file}: {key} = {value}: {reason}; for example: {example}")
        }
    }
}

impl std::error::Error for KeyError {}

/// All that is wrong with a file: at least one thing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyErrors(Vec<KeyError>);

impl std::fmt::Display for KeyErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, others @ ..] = self.0.as_slice() else { return Ok(()) };
        if others.is_empty() {
            return write!(f, "{first}");
        }
        write!(f, "{}: {} keys are wrong:", first.file, self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl std::error::Error for KeyErrors {}

/// Most errors that are told of one file: whoever has more begins with a file that works.
const ERRORS_MAX: usize = 40;

/// Reads a file of `toml_text`, or says all that is wrong with it and not only what comes first: what `read` refuses
/// is mended from the example that it gives, or taken out where nobody knows the key, and the file is read again.
///
/// # Errors
/// At least one key is wrong. What stands on a choice that is wrong itself, as a `kind`, is not looked at.
pub fn read_whole<T>(
    toml_text: &str,
    read: impl Fn(&str) -> Result<T, KeyError>,
) -> Result<T, KeyErrors> {
    let mut error = match read(toml_text) {
        Ok(read) => return Ok(read),
        Err(error) => error,
    };
    let mut errors = Vec::new();
    let mut table = toml_text.parse::<Table>().unwrap_or_default();
    while errors.len() < ERRORS_MAX && mend(&mut table, &error) {
        errors.push(error);
        error = match read(&table.to_string()) {
            Ok(_) => return Err(KeyErrors(errors)),
            Err(error) => error,
        };
        // What its own example does not mend is told of once, and so is what follows from a mend.
        if errors.iter().any(|known: &KeyError| known.key == error.key) {
            return Err(KeyErrors(errors));
        }
    }
    errors.push(error);
    Err(KeyErrors(errors))
}

/// Changes `table` so that `error` is no more, if its key is in there and nothing else hangs on it.
fn mend(table: &mut Table, error: &KeyError) -> bool {
    let path: Vec<&str> = error.key.split('.').collect();
    let [around @ .., last] = path.as_slice() else { return false };
    if ["kind", "like"].contains(&error.key.as_str()) {
        return false;
    }
    let mut place = table;
    for part in around {
        let within = place.get_mut(*part).and_then(Value::as_table_mut);
        let Some(within) = within else { return false };
        place = within;
    }
    // The rules that tie keys together name them without the tables that they are in.
    if place.remove(*last).is_none() && !error.value.is_empty() {
        return false;
    }
    let Ok(example) = error.example.parse::<Table>() else { return !error.value.is_empty() };
    let mut value = &Value::Table(example);
    for part in &path {
        match value.get(part) {
            Some(within) => value = within,
            // The example is one of another key, for who wrote one that nobody knows.
            None => return true,
        }
    }
    place.insert((*last).to_owned(), value.clone());
    true
}

/// A TOML table from which keys are taken one by one; what is left at the end is unknown.
#[derive(Debug)]
pub struct Keys {
    file: &'static str,
    table: Table,
    /// The tables around this one, each with its dot.
    prefix: String,
    /// A line that works, for who wrote an unknown key.
    example: &'static str,
}

impl Keys {
    /// The keys of a whole file about a `file` ("profile", "device").
    pub fn parse(
        file: &'static str,
        toml_text: &str,
        example: &'static str,
    ) -> Result<Self, KeyError> {
        let table = toml_text.parse().map_err(|error: toml::de::Error| KeyError {
            file,
            key: "the file".into(),
            value: String::new(),
            reason: format!("not TOML: {}", error.to_string().trim_end()),
            example: example.into(),
        })?;
        Ok(Self { file, table, prefix: String::new(), example })
    }

    /// Whether `key` is there and was not taken yet.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Whether `key` is there and is a table.
    pub fn has_table(&self, key: &str) -> bool {
        self.table.get(key).is_some_and(Value::is_table)
    }

    /// Takes the table `key`, if it is there. Its own keys are taken from what this returns.
    pub fn table(&mut self, key: &str, example: &'static str) -> Result<Option<Self>, KeyError> {
        let table = match self.table.remove(key) {
            None => return Ok(None),
            Some(Value::Table(table)) => table,
            Some(other) => {
                let reason = format!("must be a table [{}{key}]", self.prefix);
                return Err(self.wrong(key, Some(&other), reason, example));
            }
        };
        let prefix = format!("{}{key}.", self.prefix);
        Ok(Some(Self { file: self.file, table, prefix, example }))
    }

    /// Puts the keys of `changes` in the place of those here; tables within are changed key by key.
    pub fn change(&mut self, changes: Self) {
        for (key, value) in changes.table {
            match (self.table.get_mut(&key), value) {
                (Some(Value::Table(here)), Value::Table(there)) => here.extend(there),
                (_, value) => {
                    self.table.insert(key, value);
                }
            }
        }
        (self.file, self.prefix) = (changes.file, changes.prefix);
    }

    /// A text.
    pub fn text(&mut self, key: &str, example: &str) -> Result<String, KeyError> {
        match self.required(key, example)? {
            // It is printed: on a terminal it would do what it says, or stand where it does not belong.
            Value::String(text) if text.chars().any(is_control) => {
                let text = Value::String(text.escape_debug().to_string());
                Err(self.wrong(key, Some(&text), "must have no control characters".into(), example))
            }
            Value::String(text) => Ok(text),
            other => Err(self.wrong(key, Some(&other), "must be a text".into(), example)),
        }
    }

    /// A text, or an empty one if it is not there.
    pub fn text_or(&mut self, key: &str, example: &str) -> Result<String, KeyError> {
        if self.table.contains_key(key) { self.text(key, example) } else { Ok(String::new()) }
    }

    /// A list of texts, at least one.
    pub fn texts(&mut self, key: &str, example: &str) -> Result<Vec<String>, KeyError> {
        let value = self.required(key, example)?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = value.as_array().and_then(|list| list.iter().map(text).collect());
        match texts {
            Some(texts) if !Vec::is_empty(&texts) => Ok(texts),
            _ => Err(self.wrong(key, Some(&value), "must be a list of texts".into(), example)),
        }
    }

    /// A whole number within bounds.
    pub fn integer(
        &mut self,
        key: &str,
        min: u32,
        max: u32,
        example: &str,
    ) -> Result<u32, KeyError> {
        let value = self.required(key, example)?;
        match value.as_integer() {
            Some(n) if (i64::from(min)..=i64::from(max)).contains(&n) => Ok(n as u32),
            _ => {
                let reason = format!("must be a whole number from {min} to {max}");
                Err(self.wrong(key, Some(&value), reason, example))
            }
        }
    }

    /// A whole number within bounds, or `default` if it is not there.
    pub fn integer_or(
        &mut self,
        key: &str,
        min: u32,
        max: u32,
        default: u32,
    ) -> Result<u32, KeyError> {
        if !self.table.contains_key(key) {
            return Ok(default);
        }
        self.integer(key, min, max, &default.to_string())
    }

    /// A whole number of bytes (or anything else that may exceed 32 bits).
    pub fn large(&mut self, key: &str, max: u64, example: &str) -> Result<u64, KeyError> {
        let value = self.required(key, example)?;
        match value.as_integer().and_then(|n| u64::try_from(n).ok()) {
            Some(n) if n <= max => Ok(n),
            _ => {
                let reason = format!("must be a whole number from 0 to {max}");
                Err(self.wrong(key, Some(&value), reason, example))
            }
        }
    }

    /// The same, or `default` if it is not there.
    pub fn large_or(&mut self, key: &str, max: u64, default: u64) -> Result<u64, KeyError> {
        if self.has(key) { self.large(key, max, &default.to_string()) } else { Ok(default) }
    }

    /// Whole nanoseconds.
    pub fn time(&mut self, key: &str, example: &str) -> Result<u64, KeyError> {
        let value = self.required(key, example)?;
        time_of(&value).ok_or_else(|| self.wrong(key, Some(&value), TIME_RULE.into(), example))
    }

    /// Whole nanoseconds, or 0 if it is not there.
    pub fn time_or_0(&mut self, key: &str) -> Result<u64, KeyError> {
        if self.table.contains_key(key) { self.time(key, "100_000") } else { Ok(0) }
    }

    /// A list of whole nanoseconds, at least one.
    pub fn times(&mut self, key: &str, example: &str) -> Result<Vec<u64>, KeyError> {
        let value = self.required(key, example)?;
        let times = value.as_array().map(|list| list.iter().map(time_of).collect());
        match times {
            Some(Some(times)) if !Vec::is_empty(&times) => Ok(times),
            _ => {
                let reason =
                    format!("must be a list with one entry a page level; each {TIME_RULE}");
                Err(self.wrong(key, Some(&value), reason, example))
            }
        }
    }

    /// A number within bounds.
    pub fn number(
        &mut self,
        key: &str,
        min: f64,
        max: f64,
        example: &str,
    ) -> Result<f64, KeyError> {
        let value = self.required(key, example)?;
        let number = value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        match number {
            Some(n) if (min..=max).contains(&n) => Ok(n),
            _ => {
                let reason = format!("must be a number from {min} to {max}");
                Err(self.wrong(key, Some(&value), reason, example))
            }
        }
    }

    /// A number within bounds, or `default` if it is not there.
    pub fn number_or(
        &mut self,
        key: &str,
        min: f64,
        max: f64,
        default: f64,
    ) -> Result<f64, KeyError> {
        if !self.has(key) {
            return Ok(default);
        }
        self.number(key, min, max, &default.to_string())
    }

    /// True or false, or false if it is not there.
    pub fn flag_or_false(&mut self, key: &str) -> Result<bool, KeyError> {
        if self.has(key) { self.flag(key) } else { Ok(false) }
    }

    /// True or false.
    pub fn flag(&mut self, key: &str) -> Result<bool, KeyError> {
        match self.required(key, "true")? {
            Value::Boolean(flag) => Ok(flag),
            other => Err(self.wrong(key, Some(&other), "must be true or false".into(), "true")),
        }
    }

    fn required(&mut self, key: &str, example: &str) -> Result<Value, KeyError> {
        self.table
            .remove(key)
            .ok_or_else(|| self.wrong(key, None, "this key is missing".into(), example))
    }

    /// `Err` if a key was not taken.
    pub fn refuse_unknown(&self) -> Result<(), KeyError> {
        match self.table.iter().next() {
            None => Ok(()),
            Some((key, value)) => {
                let reason = "no such key; remove it, or look for a typing error".into();
                let mut error = self.wrong(key, Some(value), reason, "");
                error.example = self.example.into();
                Err(error)
            }
        }
    }

    /// The error about `key`, whose `value` breaks a rule of the caller.
    pub fn refuse(
        &self,
        key: &str,
        value: impl std::fmt::Display,
        reason: String,
        example: &str,
    ) -> KeyError {
        let mut error = self.wrong(key, None, reason, example);
        error.value = value.to_string();
        error
    }

    fn wrong(&self, key: &str, value: Option<&Value>, reason: String, example: &str) -> KeyError {
        let key = format!("{}{key}", self.prefix);
        KeyError {
            file: self.file,
            value: value.map(Value::to_string).unwrap_or_default(),
            reason,
            example: format!("{key} = {example}"),
            key,
        }
    }
}

/// Control characters, and those that turn the direction of writing round.
fn is_control(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Up to 10 s: no command of a real part takes longer.
fn time_of(value: &Value) -> Option<u64> {
    let ns = u64::try_from(value.as_integer()?).ok()?;
    (ns <= 10_000_000_000).then_some(ns)
}

const TIME_RULE: &str = "must be whole nanoseconds from 0 to 10_000_000_000";
