//! What is wrong with the keys of an experiment file, all of it at once and each with its line: keys that
//! are missing, that nobody knows, or whose values are of another kind.
//!
//! Each table of the file is read as what it is to be. If that fails for a key, the key is noted and mended (taken
//! out, or put in from an example), and the table is read again, until nothing is left to be mended. So the
//! structs of the file are the only place that says which keys there are.

use super::client::ClientFile;
use super::curves::CurveFile;
use super::file::{
    CaseFile, ClaimFile, ExperimentFile, FigureFile, PaperSeries, SelectFile, TableColumn,
    TableFile, substitute,
};
use super::tenants::TenantFile;
use super::waf::WafFile;
use serde::de::DeserializeOwned;
use toml::de::{DeArray, DeTable, DeValue, Error};
use toml::{Table, Value};

/// A kind of table within the file.
struct Section {
    path: &'static [&'static str],
    /// Keys whose tables are sections of their own.
    parts: &'static [&'static str],
    /// Values for the keys that it must have.
    example: &'static str,
    check: fn(&Table) -> Result<(), Error>,
}

fn reads<T: DeserializeOwned>(table: &Table) -> Result<(), Error> {
    table.clone().try_into::<T>().map(|_| ())
}

fn reads_figure(table: &Table) -> Result<(), Error> {
    if table.contains_key("kind") { reads::<CurveFile>(table) } else { reads::<FigureFile>(table) }
}

const SELECT: &str = "case = \"one\"";

const SECTIONS: [Section; 13] = [
    Section {
        path: &[],
        parts: &["case", "figure", "table", "claim"],
        example: "name = \"mine\"\ntitle = \"One line\"\nsource = \"where it is from\"\n\
                  summary = \"what it shows\"\ncolumns = [\"iops\"]\nsmall = {}\nfull = {}\n\
                  case = [{ name = \"one\" }]",
        check: reads::<ExperimentFile>,
    },
    Section {
        path: &["case"],
        parts: &["prepare", "client", "tenant", "waf"],
        example: "name = \"one\"",
        check: reads::<CaseFile>,
    },
    Section {
        path: &["case", "prepare"],
        parts: &[],
        example: "bytes = \"64KiB\"",
        check: reads::<ClientFile>,
    },
    Section {
        path: &["case", "client"],
        parts: &[],
        example: "bytes = \"4KiB\"",
        check: reads::<ClientFile>,
    },
    Section {
        path: &["case", "tenant"],
        parts: &[],
        example: "name = \"database\"\nkind = \"mysql\"",
        check: reads::<TenantFile>,
    },
    Section {
        path: &["case", "waf"],
        parts: &[],
        example: "stream = \"none\"\nslots = 128\nop = 10",
        check: reads::<WafFile>,
    },
    Section {
        path: &["figure"],
        parts: &["paper"],
        example: "id = \"mean\"\ntitle = \"Mean latency\"\nx = \"depth\"\nx_label = \"in flight\"\n\
                  y = \"io_mean\"\ny_label = \"latency\"\nof = \"read\"",
        check: reads_figure,
    },
    Section {
        path: &["figure", "paper"],
        parts: &[],
        example: "name = \"paper\"\npoints = [[1, 2.5]]",
        check: reads::<PaperSeries>,
    },
    Section {
        path: &["table"],
        parts: &["column"],
        example: "title = \"Table 1\"\nrows = \"depth\"\ncolumn = []",
        check: reads::<TableFile>,
    },
    Section {
        path: &["table", "column"],
        parts: &[],
        example: "label = \"reads\"\ncase = \"one\"\nmetric = \"read_mean\"",
        check: reads::<TableColumn>,
    },
    Section {
        path: &["claim"],
        parts: &["baseline", "per"],
        example: "id = \"fast\"\nsaid = 1.5\nunit = \"ms\"\ntolerance = \"within 5 %\"\n\
                  case = \"one\"",
        check: reads::<ClaimFile>,
    },
    Section {
        path: &["claim", "baseline"],
        parts: &["per"],
        example: SELECT,
        check: reads::<SelectFile>,
    },
    Section {
        path: &["claim", "per"],
        parts: &["per"],
        example: SELECT,
        check: reads::<SelectFile>,
    },
];

/// A table of the file, and where it stands: keys, and numbers in lists.
type Found<'a> = (Vec<Step>, &'a Table);

#[derive(Clone, Debug)]
enum Step {
    Key(&'static str),
    Number(usize),
}

/// Each problem in a line, by where it stands. Variables have the values that `variables` has.
pub(super) fn problems(text: &str, table: &Table, variables: &Table) -> Vec<String> {
    let parsed = DeTable::parse(text).ok();
    let mut problems: Vec<(usize, String)> = Vec::new();
    for section in &SECTIONS {
        for (place, found) in found(table, section.path) {
            let name = match section.path {
                [] => "the file".to_owned(),
                path => format!("[{}]", path.join(".")),
            };
            let mut own = found.clone();
            for part in section.parts {
                match own.get_mut(*part) {
                    Some(Value::Array(list)) => list.clear(),
                    Some(Value::Table(_)) => drop(own.remove(*part)),
                    _ => {}
                }
            }
            if section.path.first() == Some(&"case") && !resolve(&mut own, variables) {
                // The variable is told of when the case is resolved.
                continue;
            }
            for (key, why) in wrong_keys(section, own) {
                let root = parsed.as_ref().map(|root| root.get_ref());
                let line = root.and_then(|root| line(text, root, &place, key.as_deref()));
                let line = line.unwrap_or(1);
                problems.push((line, format!("line {line}, {name}: {why}")));
            }
        }
    }
    problems.sort();
    problems.into_iter().map(|(_, problem)| problem).collect()
}

fn resolve(table: &mut Table, variables: &Table) -> bool {
    table.iter_mut().all(|(_, value)| substitute(value, variables).is_ok())
}

/// The tables at a path, each element of lists on the way.
fn found<'a>(table: &'a Table, path: &[&'static str]) -> Vec<Found<'a>> {
    let mut all: Vec<Found<'a>> = vec![(Vec::new(), table)];
    for &key in path {
        let mut deeper = Vec::new();
        for (place, table) in all {
            let mut place = place;
            place.push(Step::Key(key));
            match table.get(key) {
                Some(Value::Table(table)) => deeper.push((place, table)),
                Some(Value::Array(list)) => {
                    let tables = list.iter().enumerate();
                    deeper.extend(tables.filter_map(|(at, value)| {
                        let place = place.iter().cloned().chain([Step::Number(at)]).collect();
                        Some((place, value.as_table()?))
                    }));
                }
                _ => {}
            }
        }
        all = deeper;
    }
    all
}

/// Each key that is wrong, and why. What is wrong and cannot be mended ends it, without a key.
fn wrong_keys(section: &Section, mut table: Table) -> Vec<(Option<String>, String)> {
    let example: Table = section.example.parse().expect("an example is TOML");
    let mut wrong = Vec::new();
    // Each turn takes a key out or puts one in: a bound, should a table be odd beyond that.
    for _ in 0..100 {
        let Err(error) = (section.check)(&table) else { break };
        let message = error.message().lines().next().unwrap_or_default().to_owned();
        let named = message.split('`').nth(1).map(str::to_owned);
        match named {
            Some(key) if message.starts_with("unknown field") && table.remove(&key).is_some() => {
                let known = message.split_once(", ").map_or("", |(_, known)| known);
                let known = known.replace('`', "");
                let known = if known.is_empty() { known } else { format!(": {known}") };
                wrong.push((Some(key.clone()), format!("nobody knows the key {key}{known}")));
            }
            Some(key)
                if message.starts_with("missing field")
                    && !table.contains_key(&key)
                    && example.contains_key(&key) =>
            {
                let value = &example[&key];
                wrong.push((
                    None,
                    format!("the key {key} is missing; for example: {key} = {value}"),
                ));
                table.insert(key, value.clone());
            }
            _ => match misfit(section, &table, &example) {
                Some(key) => {
                    wrong.push((Some(key.clone()), format!("{key} = {}: {message}", table[&key])));
                    table.remove(&key);
                    let mended = example.get(&key).map(|value| (key, value.clone()));
                    table.extend(mended);
                }
                None => {
                    wrong.push((None, message));
                    break;
                }
            },
        }
    }
    wrong
}

/// The first key whose value is of another kind than it has to be: without it the error is another one.
fn misfit(section: &Section, table: &Table, example: &Table) -> Option<String> {
    let error = (section.check)(table).err()?.message().to_owned();
    let differs = |key: &&String| {
        let mut without = table.clone();
        without.remove(*key);
        if let Some(value) = example.get(*key) {
            without.insert((*key).clone(), value.clone());
        }
        (section.check)(&without).map_or_else(|other| other.message() != error, |()| true)
    };
    table.keys().find(differs).cloned()
}

/// The line of a key, or else of the table that it should be in.
fn line(text: &str, root: &DeTable<'_>, place: &[Step], key: Option<&str>) -> Option<usize> {
    let mut table = Some(root);
    let mut at = 0;
    let mut list = None;
    for step in place {
        let value = match step {
            Step::Key(key) => table?.get(*key)?,
            Step::Number(number) => list.and_then(|list: &DeArray<'_>| list.get(*number))?,
        };
        at = value.span().start;
        (table, list) = match value.get_ref() {
            DeValue::Table(table) => (Some(table), None),
            DeValue::Array(values) => (None, Some(values)),
            _ => return None,
        };
    }
    if let Some((key, _)) = key.and_then(|key| table?.get_key_value(key)) {
        at = key.span().start;
    }
    Some(1 + text.as_bytes().get(..at)?.iter().filter(|&&byte| byte == b'\n').count())
}
