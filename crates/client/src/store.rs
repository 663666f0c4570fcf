//! A store that `weir store serve` serves: values by key, cells of tables, and immutable files.

use crate::http::{self, Answer, Place};
use crate::{Error, frames, percent};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io::{Read, Write};
use std::time::Duration;

/// How long the store may take: a put may wait for compaction.
const PATIENCE: Duration = Duration::from_secs(180);
/// A status waits for nothing.
const STATUS_PATIENCE: Duration = Duration::from_secs(10);
/// `weir store compact` writes slices anew.
const COMPACT_PATIENCE: Duration = Duration::from_secs(24 * 3600);
const FRAMES: &str = "Accept: application/octet-stream\r\n";
const NEXT: &str = "weir-next";

/// A client of a store. A put, a delete or a rename is durable when it returns.
///
/// ```no_run
/// let store = client::Store::at(std::path::Path::new("weir-store/control.sock"));
/// store.put(b"user:7", b"Ada")?;
/// assert_eq!(store.get(b"user:7")?.as_deref(), Some(&b"Ada"[..]));
/// let cell = client::store::Cell::new("links", "example.org", "to", "www.example.com");
/// store.put_cell(&cell, b"an anchor")?;
/// store.put_file("photos/cat.png", &mut &b"..."[..], 3)?;
/// # Ok::<(), client::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    place: Place,
}

/// Which values, or rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    /// That begin so; of values only.
    pub prefix: &'a [u8],
    /// From this on.
    pub from: Option<&'a [u8]>,
    /// Up to, not with, this.
    pub to: Option<&'a [u8]>,
    /// At most so many; 0 is as many as the store gives at a time.
    pub limit: usize,
    /// In this slice alone, of values only: who reads all of a large store reads its slices side by side.
    pub slice: Option<u32>,
}

/// Keys and values, and where the rest begins if there is more.
pub type Values = (Vec<(Vec<u8>, Vec<u8>)>, Option<Vec<u8>>);

/// The name of a cell.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Cell {
    /// Its table.
    pub table: Vec<u8>,
    /// Its row.
    pub row: Vec<u8>,
    /// Its family of columns.
    pub family: Vec<u8>,
    /// Its column; may be empty.
    pub column: Vec<u8>,
}

impl Cell {
    /// From text.
    pub fn new(table: &str, row: &str, family: &str, column: &str) -> Self {
        let [table, row, family, column] = [table, row, family, column].map(|text| text.into());
        Self { table, row, family, column }
    }

    /// The part of a URL behind `/table/`.
    pub fn path(&self) -> String {
        let names = [&self.table, &self.row, &self.family, &self.column];
        names.map(|name| percent::encode(name)).join("/")
    }

    /// The cell that such a part names.
    pub fn of_path(path: &str) -> Option<Self> {
        let names: Vec<Vec<u8>> = path.split('/').map(percent::decode).collect::<Option<_>>()?;
        let [table, row, family, column] = names.try_into().ok()?;
        Some(Self { table, row, family, column })
    }
}

/// Cells and their values, and behind which one the rest begins if there is more.
pub type Cells = (Vec<(Cell, Vec<u8>)>, Option<Cell>);

/// What is in a folder.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct File {
    /// Its name; in a list of all files its path.
    pub name: String,
    /// A folder, which has no more than its name.
    pub folder: bool,
    /// Bytes of a file.
    pub bytes: Option<u64>,
    /// When it was completed, in seconds since 1970.
    pub modified: Option<u64>,
}

/// Files, and behind which name the rest begins if there is more.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub struct Files {
    /// In order.
    pub files: Vec<File>,
    /// The last name, if there is more.
    pub next: Option<String>,
}

impl Store {
    /// The store whose HTTP is at `place`: its control socket, or an address with the token ([`Place::with_token`]).
    pub fn at(place: impl Into<Place>) -> Self {
        Self { place: place.into() }
    }

    /// Puts a value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.ask("PUT", &value_path(key), "", value).map(drop)
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.found(&value_path(key))
    }

    /// Deletes a value, if there is one.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.ask("DELETE", &value_path(key), "", &[]).map(drop)
    }

    /// Puts and, without a value, deletes: all or none.
    pub fn write<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<(), Error> {
        let mut body = Vec::new();
        for (key, value) in changes {
            frames::encode(key, value, &mut body);
        }
        self.ask("POST", "/kv?do=write", "", &body).map(drop)
    }

    /// The values of many keys, in their order. The store reads from many units at a time.
    pub fn get_all(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut body = Vec::new();
        for key in keys {
            frames::encode(key, Some(&[]), &mut body);
        }
        let answer = self.ask("POST", "/kv?do=get", FRAMES, &body)?;
        let values = self.frames(&answer)?;
        let values: Vec<_> = values.into_iter().map(|(_, value)| value).collect();
        match values.len() == keys.len() {
            true => Ok(values),
            false => Err(Error::Protocol(format!(
                "{}: {} values for {} keys",
                self.place,
                values.len(),
                keys.len()
            ))),
        }
    }

    /// Values in the order of their keys.
    pub fn scan(&self, range: &Range<'_>) -> Result<Values, Error> {
        let slice = range.slice.map(|slice| slice.to_string());
        let prefix = Some(range.prefix).filter(|it| !it.is_empty());
        let slice = slice.as_ref().map(|text| text.as_bytes());
        let query = query(range, &[("prefix", prefix), ("slice", slice)]);
        let answer = self.ask("GET", &format!("/kv?values=true{query}"), FRAMES, &[])?;
        let pairs = self.frames(&answer)?.into_iter();
        let pairs = pairs.map(|(key, value)| (key, value.unwrap_or_default())).collect();
        let next = answer.field(NEXT).map(|text| self.decoded(text)).transpose()?;
        Ok((pairs, next))
    }

    /// Puts a cell.
    pub fn put_cell(&self, cell: &Cell, value: &[u8]) -> Result<(), Error> {
        self.ask("PUT", &format!("/table/{}", cell.path()), "", value).map(drop)
    }

    /// Puts and, without a value, deletes cells: all or none.
    pub fn write_cells<'a>(
        &self,
        changes: impl IntoIterator<Item = (&'a Cell, Option<&'a [u8]>)>,
    ) -> Result<(), Error> {
        let mut body = Vec::new();
        for (cell, value) in changes {
            frames::encode(cell.path().as_bytes(), value, &mut body);
        }
        self.ask("POST", "/table?do=write", "", &body).map(drop)
    }

    /// The value of a cell.
    pub fn cell(&self, cell: &Cell) -> Result<Option<Vec<u8>>, Error> {
        self.found(&format!("/table/{}", cell.path()))
    }

    /// Deletes a cell, if it is there.
    pub fn delete_cell(&self, cell: &Cell) -> Result<(), Error> {
        self.ask("DELETE", &format!("/table/{}", cell.path()), "", &[]).map(drop)
    }

    /// Deletes all cells of a row.
    pub fn delete_row(&self, table: &[u8], row: &[u8]) -> Result<(), Error> {
        self.ask("DELETE", &row_path(table, row), "", &[]).map(drop)
    }

    /// The cells of a row.
    pub fn row(&self, table: &[u8], row: &[u8]) -> Result<Cells, Error> {
        let answer = self.ask("GET", &row_path(table, row), FRAMES, &[])?;
        self.cells_of(&answer)
    }

    /// Cells of the rows of a table, behind one, of a family or of all; without a table those of all tables.
    pub fn cells(
        &self,
        table: Option<&[u8]>,
        range: &Range<'_>,
        (behind, family): (Option<&Cell>, Option<&[u8]>),
    ) -> Result<Cells, Error> {
        let table = table.map_or(String::new(), |table| format!("/{}", percent::encode(table)));
        let behind = behind.map_or(String::new(), |cell| {
            format!("&behind={}", percent::encode(cell.path().as_bytes()))
        });
        let path =
            format!("/table{table}?values=true{}{behind}", query(range, &[("family", family)]));
        let answer = self.ask("GET", &path, FRAMES, &[])?;
        self.cells_of(&answer)
    }

    /// Writes a file of `bytes` bytes, which is seen when all of it is durable.
    pub fn put_file(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Error> {
        let url = file_path(path);
        let sent = http::upload(&self.place, ("PUT", &url), (from, bytes), PATIENCE);
        accepted(sent).map(drop)
    }

    /// Writes all of a file to `into`; false if there is none.
    pub fn file(&self, path: &str, into: &mut dyn Write) -> Result<bool, Error> {
        match accepted(http::download(&self.place, &file_path(path), into, PATIENCE)) {
            Ok(_) => Ok(true),
            Err(Error::Refused { code: 404, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a file.
    pub fn delete_file(&self, path: &str) -> Result<(), Error> {
        self.ask("DELETE", &file_path(path), "", &[]).map(drop)
    }

    /// Gives a file, or a folder, another name; its first component stays. How many files that were.
    pub fn rename(&self, from: &str, to: &str) -> Result<u64, Error> {
        let path = format!("{}?to={}", file_path(from), percent::encode(to.as_bytes()));
        let answer: Value = self.json("POST", &path)?;
        Ok(answer["files"].as_u64().unwrap_or(0))
    }

    /// What is in a folder (`""` is the top), behind a name.
    pub fn list(&self, folder: &str, behind: Option<&str>) -> Result<Files, Error> {
        let folder = folder.trim_end_matches('/');
        let slash = if folder.is_empty() { "" } else { "/" };
        let behind = behind_query(behind).replacen('&', "?", 1);
        self.json("GET", &format!("{}{slash}{behind}", file_path(folder)))
    }

    /// Every file by its path, behind one.
    pub fn all_files(&self, behind: Option<&str>) -> Result<Files, Error> {
        self.json("GET", &format!("/fs/?all=true{}", behind_query(behind)))
    }

    /// How the store does.
    pub fn status(&self) -> Result<Value, Error> {
        const PATH: &str = "/status";
        let answer = http::request(&self.place, ("GET", PATH), "", &[], STATUS_PATIENCE);
        self.parsed(PATH, &accepted(answer)?)
    }

    /// Has everything read and compared; how far that is, [`Store::scrubbed`] tells.
    pub fn scrub(&self) -> Result<Value, Error> {
        self.json("POST", "/scrub")
    }

    /// How far the last scrub is.
    pub fn scrubbed(&self) -> Result<Value, Error> {
        self.json("GET", "/scrub")
    }

    /// Has all slices written anew, without what was deleted.
    pub fn compact(&self) -> Result<(), Error> {
        self.compacted("/compact")
    }

    /// Has one slice written so.
    pub fn compact_slice(&self, slice: u32) -> Result<(), Error> {
        self.compacted(&format!("/compact?slice={slice}"))
    }

    fn compacted(&self, path: &str) -> Result<(), Error> {
        let answer = http::request(&self.place, ("POST", path), "", &[], COMPACT_PATIENCE);
        accepted(answer).map(drop)
    }

    fn found(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.ask("GET", path, "", &[]) {
            Ok(answer) => Ok(Some(answer.body)),
            Err(Error::Refused { code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn frames(&self, answer: &Answer) -> Result<Vec<frames::Frame>, Error> {
        let wrong = || {
            Error::Protocol(format!("{}: the answer cannot be read: is it a store?", self.place))
        };
        frames::decode(&answer.body).ok_or_else(wrong)
    }

    fn decoded(&self, text: &str) -> Result<Vec<u8>, Error> {
        percent::decode(text)
            .ok_or_else(|| Error::Protocol(format!("{}: tells of the key {text}", self.place)))
    }

    fn cells_of(&self, answer: &Answer) -> Result<Cells, Error> {
        let cell = |path: &str| {
            let wrong = || Error::Protocol(format!("{}: tells of the cell {path}", self.place));
            Cell::of_path(path).ok_or_else(wrong)
        };
        let mut cells = Vec::new();
        for (path, value) in self.frames(answer)? {
            cells.push((cell(&String::from_utf8_lossy(&path))?, value.unwrap_or_default()));
        }
        Ok((cells, answer.field(NEXT).map(cell).transpose()?))
    }

    fn json<T: DeserializeOwned>(&self, method: &str, path: &str) -> Result<T, Error> {
        self.parsed(path, &self.ask(method, path, "", &[])?)
    }

    fn parsed<T: DeserializeOwned>(&self, path: &str, answer: &Answer) -> Result<T, Error> {
        let wrong =
            |error| Error::Protocol(format!("{}{path}: {error}: is it a store?", self.place));
        serde_json::from_slice(&answer.body).map_err(wrong)
    }

    fn ask(&self, method: &str, path: &str, head: &str, body: &[u8]) -> Result<Answer, Error> {
        // An empty value has a length too.
        let length = if body.is_empty() && method != "GET" { "Content-Length: 0\r\n" } else { "" };
        let head = format!("{length}{head}");
        accepted(http::request(&self.place, (method, path), &head, body, PATIENCE))
    }
}

fn accepted(answer: Result<Answer, String>) -> Result<Answer, Error> {
    let answer = answer.map_err(|error| Error::Io(std::io::Error::other(error)))?;
    match answer.status {
        200..=299 => Ok(answer),
        code => Err(Error::Refused { code: code.into(), message: answer.reason() }),
    }
}

fn value_path(key: &[u8]) -> String {
    format!("/kv/{}", percent::encode(key))
}

fn row_path(table: &[u8], row: &[u8]) -> String {
    format!("/table/{}/{}", percent::encode(table), percent::encode(row))
}

fn file_path(path: &str) -> String {
    format!("/fs/{}", percent::encode_path(path))
}

fn behind_query(behind: Option<&str>) -> String {
    behind.map_or(String::new(), |name| format!("&behind={}", percent::encode(name.as_bytes())))
}

fn query(range: &Range<'_>, more: &[(&str, Option<&[u8]>)]) -> String {
    let ends = [("from", range.from), ("to", range.to)];
    let all = more.iter().chain(&ends);
    let texts =
        all.filter_map(|(name, value)| Some(format!("&{name}={}", percent::encode((*value)?))));
    let mut text: String = texts.collect();
    if range.limit > 0 {
        text.push_str(&format!("&limit={}", range.limit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_a_path_of_four_names_whatever_is_in_them() {
        let cell = Cell {
            table: b"a/b".to_vec(),
            row: vec![0, 255],
            family: b"%".to_vec(),
            column: vec![],
        };
        assert_eq!(cell.path(), "a%2Fb/%00%FF/%25/");
        assert_eq!(Cell::of_path(&cell.path()), Some(cell));
        for other in ["", "a/b/c", "a/b/c/d/e", "a/b/c/%f"] {
            assert_eq!(Cell::of_path(other), None, "{other}");
        }
    }

    #[test]
    fn a_range_is_a_query_that_keeps_any_bytes() {
        let range = Range { from: Some(b"a&b"), to: Some(&[0]), limit: 3, ..Range::default() };
        assert_eq!(
            query(&range, &[("prefix", Some(b"="))]),
            "&prefix=%3D&from=a%26b&to=%00&limit=3"
        );
        assert_eq!(query(&Range::default(), &[("family", None)]), "");
    }
}
