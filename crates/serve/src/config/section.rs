//! Reads a section of a TOML file key by key. What is wrong is noted and a default takes its
//! place, so that one run tells all errors.

use std::fmt;
use std::net::SocketAddr;
use toml::{Table, Value};

/// What is wrong with one key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigError {
    /// The key with its section, or "the file".
    pub key: String,
    /// Its value as written; empty if it is missing.
    pub value: String,
    /// What is wrong.
    pub reason: String,
    /// A line that works.
    pub example: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, reason, example } = self;
        let given = if value.is_empty() { String::new() } else { format!(" = {value}") };
        write!(f, "{key}{given}: {reason}; for example: {example}")
    }
}

/// A section being read.
pub struct Section<'a> {
    prefix: String,
    table: Table,
    /// As it was before anything was taken from it.
    written: Table,
    /// All errors of the file.
    pub errors: &'a mut Vec<ConfigError>,
}

impl<'a> Section<'a> {
    /// The section whose keys are named with `prefix`.
    pub fn new(prefix: impl Into<String>, table: Table, errors: &'a mut Vec<ConfigError>) -> Self {
        Self { prefix: prefix.into(), written: table.clone(), table, errors }
    }

    /// Notes an error of `key`.
    pub fn refuse(&mut self, key: &str, value: &str, reason: impl Into<String>, example: &str) {
        self.errors.push(ConfigError {
            key: format!("{}{key}", self.prefix),
            value: value.into(),
            reason: reason.into(),
            example: format!("{key} = {example}"),
        });
    }

    /// Notes an error of `key`, with its value as it is written.
    pub fn refuse_written(&mut self, key: &str, reason: impl Into<String>, example: &str) {
        let value = self.written(key).map(Value::to_string).unwrap_or_default();
        self.refuse(key, &value, reason, example);
    }

    /// The value of a key, converted by `convert`; `None` if it is missing or wrong.
    fn take<T>(
        &mut self,
        key: &str,
        example: &str,
        convert: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.table.remove(key)?;
        match convert(&value) {
            Ok(converted) => Some(converted),
            Err(reason) => {
                self.refuse(key, &value.to_string(), reason, example);
                None
            }
        }
    }

    /// Takes a key away, whatever its value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.table.remove(key)
    }

    /// Where a section may be, a text stands for one of its keys.
    pub fn table_of_text(&mut self, section: &str, key: &str) {
        if let Some(Value::String(text)) = self.table.get(section) {
            let table = Table::from_iter([(key.to_owned(), Value::from(text.as_str()))]);
            self.table.insert(section.into(), table.into());
        }
    }

    /// What is written as this key, whether or not it was taken.
    pub fn written(&self, key: &str) -> Option<&Value> {
        self.written.get(key)
    }

    /// True if the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// A text.
    pub fn text(&mut self, key: &str, example: &str) -> Option<String> {
        self.take(key, example, |value| match value {
            Value::String(text) if text.is_empty() => Err("must not be empty".into()),
            Value::String(text) => Ok(text.clone()),
            _ => Err("must be text in quotes".into()),
        })
    }

    /// An IP address and a port.
    pub fn address(&mut self, key: &str, example: &str) -> Option<SocketAddr> {
        let text = self.text(key, example)?;
        match text.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                let reason = "must be an IP address and a port";
                self.refuse(key, &format!("{text:?}"), reason, example);
                None
            }
        }
    }

    /// Several texts; none if the key is missing.
    pub fn texts(&mut self, key: &str, example: &str) -> Vec<String> {
        let texts = self.take(key, example, |value| {
            let array = value.as_array().ok_or("must be texts in brackets")?;
            let texts = array.iter().map(|item| item.as_str().map(str::to_owned));
            let texts = texts.collect::<Option<Vec<_>>>().ok_or("must be texts in quotes")?;
            match texts.iter().any(String::is_empty) {
                true => Err("none may be empty".to_owned()),
                false => Ok(texts),
            }
        });
        texts.unwrap_or_default()
    }

    /// An integer within bounds.
    pub fn integer(&mut self, key: &str, min: u64, max: u64, example: &str) -> Option<u64> {
        self.take(key, example, |value| {
            let number = value.as_integer().ok_or("must be an integer")?;
            u64::try_from(number)
                .ok()
                .filter(|number| (min..=max).contains(number))
                .ok_or_else(|| format!("must be {min} to {max}"))
        })
    }

    /// A fraction from 0 to `max`.
    pub fn fraction(&mut self, key: &str, max: f64, example: &str) -> Option<f64> {
        self.take(key, example, |value| {
            let number = value.as_float().or(value.as_integer().map(|number| number as f64));
            number
                .filter(|number| (0.0..=max).contains(number))
                .ok_or_else(|| format!("must be a number from 0 to {max}"))
        })
    }

    /// True or false.
    pub fn flag(&mut self, key: &str) -> Option<bool> {
        self.take(key, "true", |value| value.as_bool().ok_or("must be true or false".into()))
    }

    /// A number of bytes such as `"8GiB"`.
    pub fn size(&mut self, key: &str, example: &str) -> Option<u64> {
        self.take(key, example, |value| {
            let text = value.as_str().ok_or("must be a size in quotes")?;
            flash::quantity::bytes(text)
                .ok_or_else(|| "must be a number with KiB, MiB, GiB, TiB, PiB, KB, MB, GB, TB or PB, and below 16384 PiB".into())
        })
    }

    /// Nanoseconds, as `"100us"`.
    pub fn duration(&mut self, key: &str, example: &str) -> Option<u64> {
        self.take(key, example, |value| {
            let text = value.as_str().ok_or("must be a duration in quotes")?;
            flash::quantity::duration_ns(text)
                .ok_or_else(|| "must be a number with ns, us, ms, s, min, h or d".into())
        })
    }

    /// One of `choices`.
    pub fn choice(&mut self, key: &str, choices: &[&str]) -> Option<String> {
        let example = format!("{:?}", choices[0]);
        self.take(key, &example, |value| {
            let text = value.as_str().ok_or("must be text in quotes")?;
            choices
                .contains(&text)
                .then(|| text.to_string())
                .ok_or_else(|| format!("must be one of {}", choices.join(", ")))
        })
    }

    /// A section within this one; empty if it is missing.
    pub fn section(&mut self, key: &str) -> Section<'_> {
        let table = self.take(key, "a section", |value| {
            value.as_table().cloned().ok_or_else(|| format!("must be a section: [{key}]"))
        });
        let prefix = format!("{}{key}.", self.prefix);
        Section::new(prefix, table.unwrap_or_default(), self.errors)
    }

    /// Sections of the same name: `[[key]]`.
    pub fn sections(&mut self, key: &str) -> Vec<Table> {
        let tables = self.take(key, "sections", |value| {
            let array = value.as_array().ok_or_else(|| format!("must be sections: [[{key}]]"))?;
            let tables = array.iter().map(|item| item.as_table().cloned());
            tables.collect::<Option<Vec<_>>>().ok_or_else(|| format!("must be sections: [[{key}]]"))
        });
        tables.unwrap_or_default()
    }

    /// Refuses keys that nobody has asked for. `known` lists those there are.
    pub fn finish(self, known: &[&str]) {
        for (key, value) in self.table {
            let nearest = known.iter().min_by_key(|known| distance(known, &key));
            let known_keys = known.join(", ");
            self.errors.push(ConfigError {
                key: format!("{}{key}", self.prefix),
                value: value.to_string(),
                reason: format!("there is no such key; known here: {known_keys}"),
                example: format!("{} = ...", nearest.unwrap_or(&"")),
            });
        }
    }
}

/// How many letters must change to make one word the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
