//! The coarse rows in the folder of a device, `history.json`: written whole beside the old file, then put in its
//! place. Whatever is wrong with one, nothing but the history of a day is lost: it begins anew.

use super::Columns;
use super::sample::{COLUMNS, Row};
use crate::files;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Another version is another server's: nothing here is worth a conversion.
const VERSION: u32 = 1;
/// A column that this version does not know is left out, one that is missing has nothing to tell.
#[derive(Deserialize)]
struct Found {
    version: u32,
    uuid: String,
    at_unix_ms: Vec<u64>,
    columns: BTreeMap<String, Vec<Option<f32>>>,
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    uuid: String,
    at_unix_ms: &'a [u64],
    columns: &'a BTreeMap<&'static str, Vec<Option<f32>>>,
}

/// Where it is.
pub fn path(folder: &Path) -> PathBuf {
    folder.join("history.json")
}

/// The rows of the device of this uuid; none if there is no file.
pub fn read(folder: &Path, uuid: u128) -> Result<Vec<Row>, String> {
    let text = match files::read_text(&path(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.map_err(|error| error.to_string())?,
    };
    let found: Found = serde_json::from_str(&text)
        .map_err(|error| format!("is no history, or not all of one: {error}"))?;
    if found.version != VERSION {
        return Err(format!("has version {}, and this is {VERSION}", found.version));
    }
    if found.uuid != name_of(uuid) {
        return Err(format!("is of another device, {}", found.uuid));
    }
    let rows = found.at_unix_ms.len();
    if let Some((name, _)) = found.columns.iter().find(|(_, column)| column.len() != rows) {
        return Err(format!("has {rows} rows, but not so many of {name}"));
    }
    let value = |name: &str, row: usize| found.columns.get(name).and_then(|column| column[row]);
    let row = |(row, &at_unix_ms): (usize, &u64)| Row {
        at_unix_ms,
        values: COLUMNS.map(|name| value(name, row)),
    };
    Ok(found.at_unix_ms.iter().enumerate().map(row).collect())
}

/// Puts these rows in the place of those that are there.
pub fn write(folder: &Path, uuid: u128, rows: &Columns) -> io::Result<()> {
    let written = Written {
        version: VERSION,
        uuid: name_of(uuid),
        at_unix_ms: &rows.at_unix_ms,
        columns: &rows.values,
    };
    let (file, new) = (path(folder), folder.join("history.json.new"));
    files::write(&new, serde_json::to_string(&written)?.as_bytes())?;
    fs::File::open(&new)?.sync_data()?;
    fs::rename(&new, &file)
}

fn name_of(uuid: u128) -> String {
    format!("{uuid:032x}")
}
