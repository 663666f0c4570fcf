//! What of a device file is measured, and where its constants are: all of a device, or one of the like members
//! over which an array spreads its addresses, which gets its share of the requests.

use crate::device_file::{DeviceSpec, Inside, Scale, builtin_table, merge, whole_table};
use crate::target::Target;
use toml::{Table, Value};

/// A device file that can be measured beside a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The file as it was given.
    given: Table,
    /// The part as a device of its own.
    whole: Table,
    /// Like parts of the device.
    count: u32,
    /// Where in the file the constants of the part are.
    place: &'static [&'static str],
}

impl Part {
    /// Of the text of a device file.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn of(text: &str) -> Result<Self, String> {
        let spec = DeviceSpec::parse(text).map_err(|error| error.to_string())?;
        let given: Table = text.parse().expect("it was parsed");
        let mut whole = whole_table(text).map_err(|error| error.to_string())?;
        let (mut count, mut place): (u32, &[&str]) = (1, &[]);
        if let Inside::Array(members) = &spec.inside
            && members.chunk_bytes > 0
            && spec.front.is_transparent()
        {
            let array = &whole["array"];
            let name = array["member"].as_str().expect("it was parsed");
            let mut member = builtin_table(name).expect("it was parsed");
            let changes = array.get("member_changes").and_then(Value::as_table);
            merge(&mut member, changes.unwrap_or(&Table::new()));
            whole = member;
            (count, place) = (members.count, &["array", "member_changes"]);
        }
        Ok(Self { given, whole, count, place })
    }

    /// Like parts of the device; 1 if it is measured as a whole.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The value of a key (`table.key`): of a list, as a flash profile has it for the pages of a cell, the first.
    pub fn value(&self, key: &str) -> Option<f64> {
        let value = inner(&self.whole, key)?;
        number(value.as_array().map_or(Some(value), |list| list.first())?)
    }

    /// The same with keys at other, whole values; the others of a list change in proportion.
    #[must_use]
    pub fn with(&self, keys: &[(&str, f64)]) -> Self {
        let mut part = self.clone();
        for &(key, value) in keys {
            let changed = match inner(&self.whole, key).and_then(Value::as_array) {
                Some(list) => {
                    let numbers: Vec<f64> = list.iter().filter_map(number).collect();
                    let first = numbers.first().copied().unwrap_or(value);
                    Value::Array(numbers.iter().map(|other| whole(other * value / first)).collect())
                }
                None => whole(value),
            };
            let path: Vec<&str> = key.split('.').collect();
            put(&mut part.whole, &path, changed.clone());
            put(&mut part.given, &[self.place, &path].concat(), changed);
        }
        part
    }

    /// The file.
    pub fn file(&self) -> &Table {
        &self.given
    }

    /// Makes the part, with so few blocks of each plane that it has about `flash_bytes`.
    ///
    /// # Errors
    /// Why no device can be made of it.
    pub fn build(&self, flash_bytes: u64, seed: u64) -> Result<Box<dyn Target>, String> {
        let spec = DeviceSpec::parse(&self.whole.to_string()).map_err(|error| error.to_string())?;
        let share = flash_bytes as f64 / spec.figures().raw_bytes;
        spec.build(Scale::Share(share.min(1.0)), &nand::Faults::default(), seed)
    }
}

fn inner<'a>(file: &'a Table, key: &str) -> Option<&'a Value> {
    let (table, name) = key.split_once('.').expect("a key is of a table");
    file.get(table)?.get(name)
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

fn whole(value: f64) -> Value {
    Value::Integer(value.round() as i64)
}

/// Sets what stands at a path.
fn put(file: &mut Table, path: &[&str], value: Value) {
    let (name, tables) = path.split_last().expect("a path names something");
    let mut change = Table::from_iter([((*name).to_owned(), value)]);
    for table in tables.iter().rev() {
        change = Table::from_iter([((*table).to_owned(), Value::Table(change))]);
    }
    merge(file, &change);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARRAY: &str = "name = \"x\"\nkind = \"array\"\n[array]\nmember = \"nvme-tlc-part\"\n\
        count = 8\nchunk_bytes = 4096\nmember_changes.link.queue_depth = 7\n";

    #[test]
    fn a_member_of_an_array_is_a_part_and_its_constants_are_changes_of_the_member() {
        let part = Part::of(ARRAY).expect("it is right");
        assert_eq!((part.count(), part.value("link.queue_depth")), (8, Some(7.0)));
        let times = part.whole["profile_changes"]["read_ns"].as_array().expect("a list").len();
        let reads = part.value("profile_changes.read_ns").expect("the member has it");
        let changed =
            part.with(&[("profile_changes.read_ns", 2.0 * reads), ("cache.bytes", 2097152.0)]);
        assert_eq!(changed.value("profile_changes.read_ns"), Some(2.0 * reads));
        let again = Part::of(&changed.file().to_string()).expect("it is right still");
        assert_eq!(again.whole, changed.whole);
        let list = &changed.file()["array"]["member_changes"]["profile_changes"]["read_ns"];
        assert_eq!(list.as_array().map(Vec::len), Some(times));
        assert_eq!(again.value("cache.bytes"), Some(2097152.0));
    }

    #[test]
    fn a_device_of_its_own_is_measured_as_a_whole() {
        let part = Part::of("name = \"x\"\nlike = \"intel-320\"\n").expect("it is right");
        assert_eq!((part.count(), part.value("link.queue_depth")), (1, Some(32.0)));
        let changed = part.with(&[("link.queue_depth", 9.0)]);
        assert_eq!(changed.file()["link"]["queue_depth"].as_integer(), Some(9));
        assert!(changed.file().contains_key("like"), "only what changed is written");
        assert!(Part::of("name = 1").is_err());
    }
}
