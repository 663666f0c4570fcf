//! `--results`: what each case measured at each point with each seed, in a file for other tools, as it goes.

use crate::Failure;
use lab::experiment::{At, Experiment, Kept, Row, text_of};
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// How the file is written.
#[derive(Clone, Copy)]
enum Format {
    /// A JSON object a line: one case, point and seed.
    JsonLines,
    /// A line for each metric of those, with a column for each sweep.
    Csv,
}

/// A file of results.
pub struct Rows {
    path: PathBuf,
    format: Format,
    sweeps: Vec<String>,
    file: Mutex<File>,
    /// The first write that failed.
    failed: Mutex<Option<io::Error>>,
}

impl Rows {
    /// Begins the file anew.
    pub fn create(path: &Path, experiments: &[&Experiment]) -> Result<Arc<Self>, Failure> {
        let format = match path.extension().and_then(|extension| extension.to_str()) {
            Some("jsonl") => Format::JsonLines,
            Some("csv") => Format::Csv,
            _ => {
                return Err(format!(
                    "--results {}: the name ends in .jsonl (JSON lines) or in .csv",
                    path.display()
                ));
            }
        };
        let failed = |error| format!("{}: cannot be written: {error}", path.display());
        let mut sweeps: Vec<String> = Vec::new();
        for (name, _) in experiments.iter().flat_map(|experiment| &experiment.sweeps) {
            if !sweeps.contains(name) {
                sweeps.push(name.clone());
            }
        }
        let mut file = File::create(path).map_err(failed)?;
        if let Format::Csv = format {
            let fixed = ["experiment", "scale", "seed", "case"].map(str::to_owned);
            let names = fixed.into_iter().chain(sweeps.clone());
            let line = csv(names.chain(["metric", "value"].map(str::to_owned)));
            file.write_all(line.as_bytes()).map_err(failed)?;
        }
        let (file, failed) = (Mutex::new(file), Mutex::new(None));
        Ok(Arc::new(Self { path: path.to_owned(), format, sweeps, file, failed }))
    }

    /// Has all rows from now on.
    pub fn of(self: &Arc<Self>, kept: Kept) -> Kept {
        let this = self.clone();
        kept.telling(move |rows| this.write(rows))
    }

    /// Rows of one device: all of them, or, if power goes, none or a part.
    fn write(&self, rows: &[Row<'_>]) {
        let text: String = match self.format {
            Format::JsonLines => rows.iter().map(|row| format!("{}\n", as_json(row))).collect(),
            Format::Csv => rows.iter().map(|row| self.as_csv(row)).collect(),
        };
        let written = self.file.lock().expect("no writer panics").write_all(text.as_bytes());
        if let Err(error) = written {
            self.failed.lock().expect("no writer panics").get_or_insert(error);
        }
    }

    fn as_csv(&self, row: &Row<'_>) -> String {
        let at = |sweep: &String| {
            let found = row.at.iter().find(|(name, _)| name == sweep);
            found.map_or_else(String::new, |(_, value)| text_of(value))
        };
        let fixed = [row.experiment, row.scale, &row.seed.to_string(), row.case].map(str::to_owned);
        let start: Vec<String> = fixed.into_iter().chain(self.sweeps.iter().map(at)).collect();
        let of = |(metric, value): (&String, &f64)| {
            csv(start.iter().cloned().chain([metric.clone(), value.to_string()]))
        };
        row.values.iter().map(of).collect()
    }

    /// Whether all was written.
    pub fn finish(&self) -> Result<(), Failure> {
        let failed = self.failed.lock().expect("no writer panics").take();
        match failed {
            Some(error) => Err(format!("{}: not all was written: {error}", self.path.display())),
            None => Ok(()),
        }
    }
}

fn as_json(row: &Row<'_>) -> Value {
    json!({
        "experiment": row.experiment,
        "scale": row.scale,
        "seed": row.seed,
        "case": row.case,
        "at": at_json(row.at),
        "values": row.values,
    })
}

fn at_json(at: &At) -> Value {
    let value = |value: &toml::Value| serde_json::to_value(value).expect("it came from a file");
    Value::Object(at.iter().map(|(name, it)| (name.clone(), value(it))).collect::<Map<_, _>>())
}

/// A line of comma-separated values as RFC 4180 has it.
fn csv(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cell_with_a_comma_or_a_quote_is_quoted() {
        let cells = ["TSSD, album", "4 \"big\" ones", "7"].map(str::to_owned);
        assert_eq!(super::csv(cells.into_iter()), "\"TSSD, album\",\"4 \"\"big\"\" ones\",7\n");
    }
}
