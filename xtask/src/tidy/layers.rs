//! Which crate may depend on which: the table in ARCHITECTURE.md, section "Crates", compared with
//! what cargo sees. Tests may use more (dev-dependencies are free): only what ships has layers.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One row of the table.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// No clock, thread, file, socket or unordered map.
    pub pure: bool,
    /// The crates of this workspace that it may depend on.
    pub may_use: Vec<String>,
}

/// Reads the table: `| crate | pure | lives there | may depend on |`, names in backticks.
pub fn table(architecture: &str) -> Result<BTreeMap<String, Row>, String> {
    let section = architecture
        .split_once("\n## Crates\n")
        .ok_or("ARCHITECTURE.md: has no section \"## Crates\"")?
        .1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, pure, _, may_use] = cells[..] else {
            return Err(format!("ARCHITECTURE.md: not a row of four cells: {line}"));
        };
        let row = Row { pure: pure == "yes", may_use: quoted(may_use) };
        rows.insert(quoted(name).concat(), row);
    }
    if rows.is_empty() {
        return Err("ARCHITECTURE.md: section Crates holds no table".to_owned());
    }
    Ok(rows)
}

/// Compares the table with `cargo metadata`.
pub fn check(table: &BTreeMap<String, Row>, metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: Vec<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let mut faults = Vec::new();
    for package in packages {
        let name = text(&package["name"]);
        faults.extend(integration_tests(&name, package));
        if name == "xtask" {
            continue;
        }
        let Some(row) = table.get(&name) else {
            faults.push(format!("crates/{name}: missing in the crate table of ARCHITECTURE.md"));
            continue;
        };
        for dependency in package["dependencies"].as_array().map_or(&[][..], Vec::as_slice) {
            let on = text(&dependency["name"]);
            let ships = dependency["kind"] != "dev";
            if ships && names.contains(&on) && !row.may_use.contains(&on) {
                faults.push(format!(
                    "crates/{name}/Cargo.toml: may not depend on {on} (ARCHITECTURE.md, Crates)"
                ));
            }
        }
    }
    for name in table.keys().filter(|name| !names.contains(name)) {
        faults.push(format!("ARCHITECTURE.md: names the crate {name}, which does not exist"));
    }
    faults
}

/// Each integration-test binary is linked on its own: one a crate.
fn integration_tests(name: &str, package: &Value) -> Option<String> {
    let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let tests = targets.iter().filter(|target| target["kind"][0] == "test").count();
    (tests > 1).then(|| format!("crates/{name}: {tests} integration-test binaries; make them one"))
}

/// What every pure crate must carry.
pub fn pure_crates(root: &Path, table: &BTreeMap<String, Row>) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, _) in table.iter().filter(|(_, row)| row.pure) {
        if !root.join(format!("crates/{name}/clippy.toml")).exists() {
            faults.push(format!("crates/{name}: a pure crate needs a clippy.toml"));
        }
        let library = root.join(format!("crates/{name}/src/lib.rs"));
        let text = std::fs::read_to_string(library).unwrap_or_default();
        if !text.contains("#![warn(missing_docs)]") {
            faults.push(format!("crates/{name}/src/lib.rs: needs #![warn(missing_docs)]"));
        }
    }
    faults
}

/// The words in backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::{check, table};
    use serde_json::json;

    const TEXT: &str = "# A\n\n## Crates\n| crate | pure | lives there | may depend on |\n\
        |---|---|---|---|\n| `flash` | yes | words | nothing |\n\
        | `ftl` | yes | the FTL | `flash` |\n\n## Next\n| `not` | a | row | `x` |\n";

    #[test]
    fn the_table_is_read_from_its_section_only() {
        let table = table(TEXT).unwrap();
        assert_eq!(table.keys().collect::<Vec<_>>(), ["flash", "ftl"]);
        assert_eq!(table["ftl"].may_use, ["flash"]);
        assert!(table["flash"].pure && table["flash"].may_use.is_empty());
    }

    #[test]
    fn an_upward_dependency_is_found_and_a_test_dependency_is_not() {
        let package = |name: &str, dependencies| json!({"name": name, "dependencies": dependencies, "targets": []});
        let upward = json!([{"name": "ftl", "kind": null}]);
        let metadata = json!({"packages": [
            package("flash", upward),
            package("ftl", json!([{"name": "flash", "kind": "dev"}, {"name": "serde"}])),
        ]});
        let faults = check(&table(TEXT).unwrap(), &metadata);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("crates/flash/Cargo.toml: may not depend on ftl"));
    }

    #[test]
    fn two_test_binaries_of_one_crate_are_one_too_many() {
        let targets = json!([{"kind": ["test"]}, {"kind": ["test"]}]);
        let metadata = json!({"packages": [
            {"name": "flash", "dependencies": [], "targets": targets},
            {"name": "ftl", "dependencies": [], "targets": []},
        ]});
        assert_eq!(check(&table(TEXT).unwrap(), &metadata).len(), 1);
    }
}
