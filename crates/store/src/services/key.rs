//! What the three services call their things within the engine: pure functions from names to keys and back. The engine
//! orders keys by bytes, so each is made so that things come in the order of their names, no two things have one key, and
//! what belongs together is one range.
//!
//! ```text
//!   k KEY                                    a value of the key-value service
//!   t TABLE, ROW, FAMILY, COLUMN             a cell; each name with zeroes escaped and an end of its own
//!   f COMPONENT 0 COMPONENT 0 ... NAME       a file, complete: its id, size and checksum
//!   c ID NUMBER                              a piece of a file's bytes; both big-endian
//!   u ID                                     a file that is being written; its pieces go if that ends early
//! ```
//!
//! The slice of a thing is the hash of the part of its key that keeps together what must be changed in one piece: the key, the
//! row with its table, the first component of the path.

use super::Refused;

/// Longest key of the key-value service.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest name of a table, a row, a family or a column.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest path of a file.
pub const PATH_BYTES_MAX: usize = 1024;
/// Longest component of a path.
pub const COMPONENT_BYTES_MAX: usize = 255;

const VALUE: u8 = b'k';
const CELL: u8 = b't';
const FILE: u8 = b'f';
const PIECE: u8 = b'c';
const UPLOAD: u8 = b'u';

/// A range of the engine's keys: from the first up to, not with, the second.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyRange {
    /// The first.
    pub from: Vec<u8>,
    /// Behind the last.
    pub to: Vec<u8>,
}

impl KeyRange {
    /// All that begins so. There is always something behind it: no key begins with the largest byte.
    fn of_prefix(prefix: Vec<u8>) -> Self {
        let to = behind(&prefix);
        Self { from: prefix, to }
    }

    /// If a key is in it.
    pub fn has(&self, key: &[u8]) -> bool {
        *self.from <= *key && *key < *self.to
    }
}

/// The least key that is larger than all which begin so.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut to = prefix.to_vec();
    while to.last() == Some(&u8::MAX) {
        to.pop();
    }
    let last = to.last_mut().expect("every key begins with a letter");
    *last += 1;
    to
}

/// The slice that a part of a key is hashed to. It is a part of the format: FNV-1a, mixed as SplitMix64 does, because the
/// high bits choose.
pub fn slice_of(part: &[u8], slices: u32) -> u32 {
    let fold = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = part.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    ((u128::from(hash) * u128::from(slices)) >> 64) as u32
}

/// Where a thing is: the slice, and its key there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct At {
    /// The slice.
    pub slice: u32,
    /// The key in it.
    pub key: Vec<u8>,
}

/// A value of the key-value service.
pub fn value(key: &[u8], slices: u32) -> Result<At, Refused> {
    check("key", key, 1, KEY_BYTES_MAX)?;
    let key = [&[VALUE], key].concat();
    Ok(At { slice: slice_of(&key, slices), key })
}

/// The key that a key of the engine is for.
pub fn value_name(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(&[VALUE])
}

/// Values from `from` up to, not with, `to`, that begin with `prefix`.
pub fn values(prefix: &[u8], from: Option<&[u8]>, to: Option<&[u8]>) -> KeyRange {
    let whole = KeyRange::of_prefix([&[VALUE], prefix].concat());
    let of = |key: &[u8]| [&[VALUE], key].concat();
    KeyRange {
        from: from.map(of).map_or(whole.from.clone(), |from| from.max(whole.from)),
        to: to.map(of).map_or(whole.to.clone(), |to| to.min(whole.to)),
    }
}

/// Which cell.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Cell {
    /// The table; it is there when it has a cell.
    pub table: Vec<u8>,
    /// The row.
    pub row: Vec<u8>,
    /// The family of columns.
    pub family: Vec<u8>,
    /// The column; may be empty.
    pub column: Vec<u8>,
}

impl Cell {
    /// Where it is.
    pub fn at(&self, slices: u32) -> Result<At, Refused> {
        check("table", &self.table, 1, NAME_BYTES_MAX)?;
        check("row", &self.row, 1, NAME_BYTES_MAX)?;
        check("family", &self.family, 1, NAME_BYTES_MAX)?;
        check("column", &self.column, 0, NAME_BYTES_MAX)?;
        let mut key = vec![CELL];
        escape(&self.table, &mut key);
        escape(&self.row, &mut key);
        let slice = slice_of(&key, slices);
        escape(&self.family, &mut key);
        escape(&self.column, &mut key);
        Ok(At { slice, key })
    }

    /// The cell that a key of the engine is for.
    pub fn of(key: &[u8]) -> Option<Self> {
        let mut rest = key.strip_prefix(&[CELL])?;
        let mut next = || unescape(&mut rest);
        let cell = Self { table: next()?, row: next()?, family: next()?, column: next()? };
        rest.is_empty().then_some(cell)
    }
}

/// All cells of a row, and the slice that they are in.
pub fn row(table: &[u8], row: &[u8], slices: u32) -> Result<(u32, KeyRange), Refused> {
    check("table", table, 1, NAME_BYTES_MAX)?;
    check("row", row, 1, NAME_BYTES_MAX)?;
    let mut key = vec![CELL];
    escape(table, &mut key);
    escape(row, &mut key);
    Ok((slice_of(&key, slices), KeyRange::of_prefix(key)))
}

/// Cells of a table, of its rows from `from` up to, not with, `to`; without a table those of all.
pub fn cells(table: Option<&[u8]>, from: Option<&[u8]>, to: Option<&[u8]>) -> KeyRange {
    let mut key = vec![CELL];
    let Some(table) = table else { return KeyRange::of_prefix(key) };
    escape(table, &mut key);
    let whole = KeyRange::of_prefix(key.clone());
    let of = |row: &[u8]| {
        let mut key = key.clone();
        escape(row, &mut key);
        key
    };
    KeyRange { from: from.map_or(whole.from, of), to: to.map_or(whole.to, of) }
}

/// The first key that may lie behind a cell.
pub fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Appends a name, so that names keep their order and none begins another: a zero byte is followed by the largest
/// byte, and the end is a zero and a one.
fn escape(name: &[u8], key: &mut Vec<u8>) {
    for &byte in name {
        key.push(byte);
        if byte == 0 {
            key.push(u8::MAX);
        }
    }
    key.extend([0, 1]);
}

/// Cuts a name off a key.
fn unescape(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    loop {
        match **rest {
            [0, 1, ..] => {
                *rest = &rest[2..];
                return Some(name);
            }
            [0, u8::MAX, ..] => {
                name.push(0);
                *rest = &rest[2..];
            }
            [0, ..] | [] => return None,
            [byte, ..] => {
                name.push(byte);
                *rest = &rest[1..];
            }
        }
    }
}

fn check(what: &str, name: &[u8], least: usize, most: usize) -> Result<(), Refused> {
    if (least..=most).contains(&name.len()) {
        return Ok(());
    }
    let count = name.len();
    Err(Refused::Usage(format!("the {what} has {count} bytes: {least} to {most} are allowed")))
}

/// The path of a file, or of a folder, which is there when a file is in it: components without an empty one, `.` or `..`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct FilePath(Vec<String>);

impl FilePath {
    /// Reads `a/b/c`; a slash at the end makes no difference.
    pub fn parse(text: &str) -> Result<Self, Refused> {
        let bad = |why: String| {
            Err(Refused::Usage(format!("path: {why}: for example photos/2026/cat.png")))
        };
        let text = text.strip_suffix('/').unwrap_or(text);
        if text.len() > PATH_BYTES_MAX {
            return bad(format!("{} bytes are too many: {PATH_BYTES_MAX} are allowed", text.len()));
        }
        for component in text.split('/') {
            match component {
                "" => return bad("a component is empty".into()),
                "." | ".." => return bad(format!("`{component}` is no name here")),
                _ if component.len() > COMPONENT_BYTES_MAX => {
                    return bad(format!("a component has more than {COMPONENT_BYTES_MAX} bytes"));
                }
                _ if component.contains('\0') => return bad("a component has a zero byte".into()),
                _ => {}
            }
        }
        Ok(Self(text.split('/').map(str::to_owned).collect()))
    }

    /// The path that a key of the engine is for.
    pub fn of(key: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(key.strip_prefix(&[FILE])?).ok()?;
        Some(Self(text.split('\0').map(str::to_owned).collect()))
    }

    /// Where the file is.
    pub fn at(&self, slices: u32) -> At {
        At { slice: self.slice(slices), key: self.key() }
    }

    /// The slice of all whose first component is this one's.
    pub fn slice(&self, slices: u32) -> u32 {
        slice_of(&[&[FILE], self.0[0].as_bytes()].concat(), slices)
    }

    /// The key of the file.
    pub fn key(&self) -> Vec<u8> {
        [&[FILE], self.0.join("\0").as_bytes()].concat()
    }

    /// Keys of all files below the folder.
    pub fn below(&self) -> KeyRange {
        let mut from = self.key();
        from.push(0);
        KeyRange::of_prefix(from)
    }

    /// The folders that it is in, from the outermost.
    pub fn folders(&self) -> impl Iterator<Item = Self> + '_ {
        (1..self.0.len()).map(|count| Self(self.0[..count].to_vec()))
    }

    /// If it is `other`, or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The name below a folder of `depth` components, and if that is a folder's.
    pub fn child(&self, depth: usize) -> Option<(&str, bool)> {
        Some((self.0.get(depth)?.as_str(), self.0.len() > depth + 1))
    }

    /// How many components it has.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// The path of a name in this folder.
    pub fn with(&self, name: &str) -> Self {
        Self(self.0.iter().cloned().chain([name.to_owned()]).collect())
    }

    /// The same below `to` instead of `from`, which it is within.
    pub fn moved(&self, from: &Self, to: &Self) -> Self {
        Self(to.0.iter().chain(&self.0[from.0.len()..]).cloned().collect())
    }
}

impl std::fmt::Display for FilePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

/// Keys of all files.
pub fn files() -> KeyRange {
    KeyRange::of_prefix(vec![FILE])
}

/// A piece of the file of an id.
pub fn piece(id: u64, number: u32) -> Vec<u8> {
    [&[PIECE], &id.to_be_bytes()[..], &number.to_be_bytes()].concat()
}

/// All pieces of a file.
pub fn pieces(id: u64) -> KeyRange {
    KeyRange::of_prefix([&[PIECE], &id.to_be_bytes()[..]].concat())
}

/// What says that a file is being written.
pub fn upload(id: u64) -> Vec<u8> {
    [&[UPLOAD], &id.to_be_bytes()[..]].concat()
}

/// All that say so.
pub fn uploads() -> KeyRange {
    KeyRange::of_prefix(vec![UPLOAD])
}

/// The id of the file that is being written.
pub fn upload_id(key: &[u8]) -> Option<u64> {
    key.strip_prefix(&[UPLOAD])?.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Names in which the bytes that are escaped are frequent.
    fn name() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0), Just(1), Just(u8::MAX), any::<u8>()];
        proptest::collection::vec(byte, 1..6)
    }

    fn cell() -> impl Strategy<Value = Cell> {
        (name(), name(), name(), proptest::collection::vec(any::<u8>(), 0..3))
            .prop_map(|(table, row, family, column)| Cell { table, row, family, column })
    }

    fn path() -> impl Strategy<Value = FilePath> {
        proptest::collection::vec("[a-c!\u{1}\u{7f}]{1,3}", 1..4).prop_map(FilePath)
    }

    proptest! {
        #[test]
        fn cells_keep_their_order_and_come_back_as_they_were(a in cell(), b in cell()) {
            let (at, bt) = (a.at(7).unwrap(), b.at(7).unwrap());
            prop_assert_eq!(at.key.cmp(&bt.key), a.cmp(&b));
            prop_assert_eq!(Cell::of(&at.key), Some(a.clone()));
            let same_row = (&a.table, &a.row) == (&b.table, &b.row);
            prop_assert!(!same_row || at.slice == bt.slice, "a row is in one slice");
            let (slice, whole) = row(&a.table, &a.row, 7).unwrap();
            prop_assert_eq!(whole.has(&bt.key), same_row);
            prop_assert!(slice == at.slice && whole.has(&at.key));
        }

        #[test]
        fn a_range_of_rows_has_exactly_its_rows(a in cell(), from in name(), to in name()) {
            let key = a.at(1).unwrap().key;
            let range = cells(Some(&a.table), Some(&from), Some(&to));
            prop_assert_eq!(range.has(&key), from <= a.row && a.row < to);
            prop_assert!(cells(Some(&a.table), None, None).has(&key) && cells(None, None, None).has(&key));
            let other = [&*a.table, &[0]].concat();
            prop_assert!(!cells(Some(&other), None, None).has(&key), "another table's");
        }

        #[test]
        fn a_prefix_has_exactly_the_values_that_begin_so(
            key in name(),
            prefix in proptest::collection::vec(prop_oneof![Just(u8::MAX), any::<u8>()], 0..3),
            from in name(),
        ) {
            let at = value(&key, 3).unwrap();
            prop_assert_eq!(value_name(&at.key), Some(&*key));
            prop_assert_eq!(values(&prefix, None, None).has(&at.key), key.starts_with(&prefix));
            let ranged = values(&prefix, Some(&from), None).has(&at.key);
            prop_assert_eq!(ranged, key.starts_with(&prefix) && from <= key);
            let ranged = values(&prefix, None, Some(&from)).has(&at.key);
            prop_assert_eq!(ranged, key.starts_with(&prefix) && key < from);
        }

        #[test]
        fn files_of_a_folder_are_one_range_and_come_back_as_they_were(a in path(), b in path()) {
            prop_assert_eq!(FilePath::of(&a.key()), Some(a.clone()));
            prop_assert_eq!(a.key() == b.key(), a == b);
            let is_below = b.is_within(&a) && a != b;
            prop_assert_eq!(a.below().has(&b.key()), is_below);
            prop_assert!(!is_below || a.slice(9) == b.slice(9), "a folder is in one slice");
            let text = a.to_string();
            prop_assert_eq!(FilePath::parse(&text), Ok(a.clone()));
            let moved = a.moved(&a, &b);
            prop_assert_eq!(moved, b);
        }

        #[test]
        fn no_two_kinds_of_things_share_a_key(
            key in name(),
            cell in cell(),
            path in path(),
            id in any::<u64>(),
            number in any::<u32>(),
        ) {
            let keys = [
                value(&key, 1).unwrap().key,
                cell.at(1).unwrap().key,
                path.key(),
                piece(id, number),
                upload(id),
            ];
            let ranges = [values(&[], None, None), cells(None, None, None), files(), pieces(id), uploads()];
            for (at, key) in keys.iter().enumerate() {
                for (of, range) in ranges.iter().enumerate() {
                    prop_assert_eq!(range.has(key), at == of, "{} in {}", at, of);
                }
            }
            prop_assert_eq!(upload_id(&keys[4]), Some(id));
            prop_assert!(!pieces(id.wrapping_add(1)).has(&keys[3]));
        }

        #[test]
        fn any_bytes_are_read_or_refused(key in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(cell) = Cell::of(&key) {
                // Empty names are none that we write; whatever else is read is what was written.
                prop_assert!(cell.at(1).map_or(true, |at| at.key == key));
            }
            let _ = (FilePath::of(&key), value_name(&key), upload_id(&key));
        }
    }

    /// A change of it would lose what stores hold.
    #[test]
    fn the_hash_is_a_part_of_the_format_and_spreads() {
        let slices: Vec<u32> = ["", "k", "ka", "kb", "fphotos"]
            .iter()
            .map(|part| slice_of(part.as_bytes(), 1000))
            .collect();
        assert_eq!(slices, [957, 544, 410, 112, 992]);
        let mut counts = [0_u32; 8];
        for number in 0..8000 {
            counts[slice_of(format!("kuser{number}").as_bytes(), 8) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    }

    #[test]
    fn names_of_a_wrong_length_and_paths_that_climb_are_refused_with_the_mend() {
        let told = |refused: Refused| refused.to_string();
        assert!(told(value(&[], 1).unwrap_err()).contains("1 to 1024"));
        assert!(
            value(&[7; KEY_BYTES_MAX], 1).is_ok() && value(&[7; KEY_BYTES_MAX + 1], 1).is_err()
        );
        let cell = |family: &[u8]| Cell {
            table: b"t".into(),
            row: b"r".into(),
            family: family.into(),
            column: Vec::new(),
        };
        assert!(cell(b"f").at(1).is_ok());
        assert!(told(cell(b"").at(1).unwrap_err()).contains("family"));
        let long = "x".repeat(COMPONENT_BYTES_MAX + 1);
        let deep = "x/".repeat(PATH_BYTES_MAX);
        for bad in ["", "/", "a//b", "/a", "a/../b", ".", "a/.", "a\0b", &long, &deep] {
            let refused = FilePath::parse(bad).map_or_else(told, |_| String::new());
            assert!(refused.contains("for example"), "{bad}: {refused}");
        }
        assert_eq!(FilePath::parse("a/b/"), FilePath::parse("a/b"));
    }
}
