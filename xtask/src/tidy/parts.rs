//! Which part of a crate may use which: the tables of ARCHITECTURE.md, section "Parts", compared with the
//! paths in the sources. A crate with a table there is a house of parts: each module of its root is one,
//! and uses those that stand below it only.
//!
//! What still reaches up is counted in the table, by files. The number may only become smaller, and the
//! table says so at once: a number that is too large is a fault, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// One row of a table.
#[derive(Debug, PartialEq)]
pub struct Part {
    name: String,
    /// How many of its files use a part above it, by part.
    reaches_up: BTreeMap<String, usize>,
}

/// The parts of a crate, from the top down.
type House = Vec<Part>;

/// Reads the tables: `### crate`, then rows `| part | lives there | still reaches up to |`, where the
/// last cell is a dash or names parts with a number of files: `whole` 7, `gc` 1.
pub fn tables(architecture: &str) -> Result<BTreeMap<String, House>, String> {
    let section = architecture
        .split_once("\n## Parts\n")
        .ok_or("ARCHITECTURE.md: has no section \"## Parts\"")?
        .1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut houses = BTreeMap::new();
    for house in section.split("\n### ").skip(1) {
        let (name, text) = house.split_once('\n').unwrap_or((house, ""));
        let rows = text.lines().filter(|line| line.starts_with("| `"));
        let parts = rows.map(part).collect::<Result<House, String>>()?;
        if parts.is_empty() {
            return Err(format!("ARCHITECTURE.md: section Parts holds no table of {name}"));
        }
        houses.insert(name.trim().to_owned(), parts);
    }
    Ok(houses)
}

fn part(line: &str) -> Result<Part, String> {
    let wrong = || format!("ARCHITECTURE.md: not a row of a table of parts: {line}");
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [name, _, up] = cells[..] else { return Err(wrong()) };
    let mut reaches_up = BTreeMap::new();
    for entry in up.split(',').map(str::trim).filter(|entry| entry.contains('`')) {
        let mut pieces = entry.split('`').skip(1);
        let (above, count) = (pieces.next().unwrap_or_default(), pieces.next().unwrap_or_default());
        let count = count.trim().parse().map_err(|_| wrong())?;
        reaches_up.insert(above.to_owned(), count);
    }
    Ok(Part { name: name.trim_matches('`').to_owned(), reaches_up })
}

/// Compares the table of `krate` with its sources: (path from the crate's `src`, text).
pub fn check(krate: &str, house: &House, sources: &[(String, String)]) -> Vec<String> {
    let order: BTreeMap<&str, usize> =
        house.iter().enumerate().map(|(at, part)| (part.name.as_str(), at)).collect();
    let exported = exported(sources, &order);
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    let mut reaching: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (path, text) in sources {
        let name = path.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if matches!(path.as_str(), "lib.rs" | "main.rs") {
            continue;
        }
        let Some((&name, &at)) = order.get_key_value(name) else {
            faults.push(format!(
                "crates/{krate}/src/{path}: belongs to no part (ARCHITECTURE.md, Parts)"
            ));
            continue;
        };
        seen.insert(name);
        for word in used(path, text) {
            let part = exported
                .get(word.as_str())
                .copied()
                .or(order.get_key_value(&*word).map(|known| *known.0));
            let Some(above) = part.filter(|part| order[part] < at) else { continue };
            let files = reaching.entry((name, above)).or_default();
            if files.last() != Some(&path.as_str()) {
                files.push(path);
            }
        }
    }
    for part in house {
        if !seen.contains(part.name.as_str()) {
            faults.push(format!(
                "ARCHITECTURE.md: names the part {} of {krate}, which does not exist",
                part.name
            ));
        }
        faults.extend(reach_faults(krate, part, &reaching));
    }
    faults
}

/// What a part reaches up to, against what its row says.
fn reach_faults(
    krate: &str,
    part: &Part,
    reaching: &BTreeMap<(&str, &str), Vec<&str>>,
) -> Vec<String> {
    let mut faults = Vec::new();
    for ((_, above), files) in reaching.iter().filter(|((name, _), _)| *name == part.name) {
        let allowed = part.reaches_up.get(*above).copied().unwrap_or(0);
        if files.len() > allowed {
            faults.push(format!(
                "crates/{krate}/src/{}: {} files of {} use {above}, which stands above it, and {allowed} \
                 may: {} (ARCHITECTURE.md, Parts); use what is below, or return what happened",
                part.name,
                files.len(),
                part.name,
                files.join(", ")
            ));
        }
    }
    for (above, &allowed) in &part.reaches_up {
        let found = reaching.get(&(part.name.as_str(), above.as_str())).map_or(0, Vec::len);
        if found < allowed {
            faults.push(format!(
                "ARCHITECTURE.md: {found} files of {krate}'s {} still use {above}, not {allowed}: write \
                 {found}, so that it stays so",
                part.name
            ));
        }
    }
    faults
}

/// Names that the crate's root takes from its parts, so that `crate::Name` is no way around the order.
fn exported<'a>(
    sources: &[(String, String)],
    order: &BTreeMap<&'a str, usize>,
) -> BTreeMap<String, &'a str> {
    let mut names = BTreeMap::new();
    let roots = sources.iter().filter(|(path, _)| matches!(path.as_str(), "lib.rs" | "main.rs"));
    for (_, text) in roots {
        for statement in code(text).split("use ").skip(1) {
            let statement = statement.split(';').next().unwrap_or_default();
            let words = words(statement);
            let Some((&part, _)) = words.first().and_then(|first| order.get_key_value(&**first))
            else {
                continue;
            };
            names.extend(words.into_iter().skip(1).map(|word| (word, part)));
        }
    }
    // A module's own name means the module.
    names.retain(|name, _| !order.contains_key(name.as_str()));
    names
}

/// The first words of all paths of the file that begin at the crate's root.
fn used(path: &str, text: &str) -> Vec<String> {
    let text = code(text);
    let inner = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let to_root = "super::".repeat(inner.split('/').count());
    let mut found = Vec::new();
    for start in ["crate::", &to_root] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back();
            if !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$')) {
                found.extend(firsts(&text[at + start.len()..]));
            }
        }
    }
    found
}

/// The first word of a path, or of each path of a group in braces.
fn firsts(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return words(path).into_iter().take(1).collect();
    };
    let (mut depth, mut begins, mut found) = (0, true, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && is_word(c) => {
                found.extend(words(&group[at..]).into_iter().take(1));
                begins = false;
            }
            _ => {}
        }
    }
    found
}

fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text without comments and without the tests at its end, which may use everything.
fn code(text: &str) -> String {
    let ships = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = ships.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The sources of `krate` that ship, among all files of the repository.
pub fn sources(
    root: &Path,
    krate: &str,
    files: &[std::path::PathBuf],
) -> Result<Vec<(String, String)>, String> {
    let folder = root.join(format!("crates/{krate}/src"));
    let mut sources = Vec::new();
    for path in files {
        let Ok(inner) = path.strip_prefix(&folder) else { continue };
        let inner = inner.to_string_lossy().into_owned();
        let tests = inner.split('/').any(|piece| matches!(piece, "tests" | "tests.rs"));
        if inner.ends_with(".rs") && !tests {
            sources.push((inner, super::read(path)?));
        }
    }
    Ok(sources)
}

#[cfg(test)]
mod tests {
    use super::{check, tables};

    const TEXT: &str = "# A\n\n## Parts\nHow they stand.\n\n### ftl\n\n| part | lives there | still reaches up to |\n\
        |---|---|---|\n| `whole` | all | - |\n| `gc` | victims | `whole` 1 |\n| `space` | bands | - |\n\n## Next\n";

    fn faults(sources: &[(&str, &str)]) -> Vec<String> {
        let whole = ("whole.rs", "use crate::gc::Victim;\nuse crate::space::Band;\n");
        let lib =
            ("lib.rs", "mod gc;\npub use gc::Victim;\npub use whole::{\n    Device, Other,\n};\n");
        let rest = [("space/mod.rs", ""), ("gc/mod.rs", "use crate::whole::Device;\n")];
        let named = |name: &str| sources.iter().any(|(path, _)| *path == name);
        let all = rest.into_iter().filter(|(path, _)| !named(path)).chain([whole, lib]);
        let all: Vec<_> = all
            .chain(sources.iter().copied())
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .collect();
        check("ftl", &tables(TEXT).unwrap()["ftl"], &all)
    }

    #[test]
    fn what_uses_the_parts_below_it_is_right() {
        assert_eq!(faults(&[]), [""; 0]);
        assert_eq!(faults(&[("gc/mod.rs", "use crate::{space::Band, whole::Device};\n")]), [""; 0]);
    }

    #[test]
    fn whatever_way_a_part_reaches_up_is_found() {
        for text in [
            "use crate::gc::Victim;",
            "use crate::Victim;",
            "use crate::{\n    space::{Band},\n    gc::{Victim},\n};",
            "fn a() -> crate::gc::Victim {}",
            "use super::gc::Victim;",
            "use crate::Device;",
        ] {
            let faults = faults(&[("space/mod.rs", text)]);
            assert_eq!(faults.len(), 1, "{text}: {faults:?}");
            assert!(faults[0].contains("stands above it"), "{}", faults[0]);
        }
        assert_eq!(faults(&[("space/deep/a.rs", "use super::super::super::gc::Victim;")]).len(), 1);
    }

    #[test]
    fn comments_and_tests_may_name_everything() {
        let text = "/// See [`crate::gc::Victim`].\n#[cfg(test)]\nmod tests {\n    use crate::gc::Victim;\n}\n";
        assert_eq!(faults(&[("space/mod.rs", text)]), [""; 0]);
    }

    #[test]
    fn what_reaches_up_is_counted_and_the_count_only_falls() {
        let more = faults(&[("gc/victims.rs", "use crate::whole::Device;")]);
        assert!(more.len() == 1 && more[0].contains("2 files of gc use whole"), "{more:?}");
        let fewer = faults(&[("gc/mod.rs", "")]);
        assert!(fewer.len() == 1 && fewer[0].contains("write 0"), "{fewer:?}");
    }

    #[test]
    fn a_module_without_a_row_and_a_row_without_a_module_are_found() {
        assert_eq!(faults(&[("new.rs", "")]).len(), 1);
        let text = TEXT.replace("| `space` |", "| `gone` |");
        let house = &tables(&text).unwrap()["ftl"];
        assert_eq!(
            check(
                "ftl",
                house,
                &[
                    ("gc/mod.rs".into(), "use crate::whole::D;".into()),
                    ("whole.rs".into(), String::new())
                ]
            )
            .len(),
            1
        );
    }
}
