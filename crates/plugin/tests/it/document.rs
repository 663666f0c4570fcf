//! docs/policies.md is held to the code: its table lists every built-in policy as the catalogue does,
//! and every function that a module may export.

use ftl::policy::catalogue::CATALOGUE;
use std::path::Path;

fn document() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policies.md");
    std::fs::read_to_string(path).unwrap()
}

/// The rows of the table below this heading, by cell.
fn rows(text: &str, heading: &str) -> Vec<Vec<String>> {
    let table = text.split(&format!("\n{heading}\n")).nth(1).expect("the heading is there");
    let lines = table.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let cells = |line: &str| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

#[test]
fn the_document_lists_every_built_in_policy_with_its_parameters() {
    let told: Vec<[String; 4]> = rows(&document(), "## The built-in policies")
        .into_iter()
        .map(|row| [0, 1, 2, 3].map(|cell| row[cell].clone()))
        .collect();
    let known: Vec<[String; 4]> = CATALOGUE
        .iter()
        .map(|entry| {
            [
                entry.decision.into(),
                format!("`{}`", entry.name),
                entry.params.into(),
                entry.about.into(),
            ]
        })
        .collect();
    assert_eq!(told, known);
}

#[test]
fn the_document_lists_every_function_of_a_module() {
    let told: Vec<String> =
        rows(&document(), "### What a module is").into_iter().map(|row| row[0].clone()).collect();
    let known: Vec<String> = plugin::functions().map(|name| format!("`{name}`")).collect();
    assert_eq!(told, known);
}
