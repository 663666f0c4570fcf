//! Rules for Markdown: links lead somewhere, paths in backticks exist, commands are real. A
//! document that names what is gone is worse than none.

use super::read;
use crate::COMMANDS;
use std::path::Path;

/// The documents that every newcomer is sent to.
const REQUIRED: &[&str] =
    &["README.md", "ARCHITECTURE.md", "STYLE.md", "GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md"];
/// A word in backticks that begins with one of these is a path from the root.
const PATH_HEADS: &[&str] =
    &["crates/", "docs/", "xtask/", "fuzz/", "experiments/", "traces/", ".ci/"];

/// The faults of one document.
pub fn check(root: &Path, path: &Path, name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let here = path.parent().unwrap_or(root);
    for (index, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", index + 1);
        for link in links(line) {
            let target = link.split('#').next().unwrap_or_default();
            let outside = link.contains("://") || link.starts_with("mailto:");
            if !outside && !target.is_empty() && !here.join(target).exists() {
                faults.push(format!("{at}: the link leads nowhere: {link}"));
            }
        }
        for word in code_words(line) {
            let is_path = PATH_HEADS.iter().any(|head| word.starts_with(head));
            let is_pattern = word.contains(['*', '<', '{', ' ', '$']);
            let file = word.split(':').next().unwrap_or_default();
            if is_path && !is_pattern && !root.join(file).exists() {
                faults.push(format!("{at}: no such path: {word}"));
            }
        }
        for command in commands(line).filter(|command| !is_command(command)) {
            faults.push(format!("{at}: no such command: cargo xtask {command}"));
        }
    }
    faults
}

/// The documents that must exist, and ./x, which must offer every command that the README names.
pub fn required(root: &Path) -> Result<Vec<String>, String> {
    let mut faults = Vec::new();
    for name in REQUIRED.iter().filter(|name| !root.join(name).exists()) {
        faults.push(format!("{name}: is missing"));
    }
    let script = read(&root.join("x"))?;
    for name in ["README.md", "CONTRIBUTING.md"] {
        let text = read(&root.join(name))?;
        for command in words_after(&text, "./x ") {
            if !script.contains(&format!("./x {command}")) {
                faults.push(format!("{name}: no such command: ./x {command}"));
            }
        }
    }
    Ok(faults)
}

/// The targets of `[text](target)`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// The words in backticks.
fn code_words(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn commands(line: &str) -> impl Iterator<Item = &str> {
    words_after(line, "cargo xtask ")
}

fn words_after<'a>(text: &'a str, head: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(head).skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
        let word = &rest[..end.unwrap_or(rest.len())];
        (!word.is_empty()).then_some(word)
    })
}

fn is_command(word: &str) -> bool {
    COMMANDS.iter().any(|(name, _)| *name == word)
}

#[cfg(test)]
mod tests {
    use super::check;
    use std::path::Path;

    fn faults(text: &str) -> Vec<String> {
        let root = crate::root();
        check(&root, &root.join("README.md"), "README.md", text)
    }

    #[test]
    fn what_exists_is_accepted() {
        assert_eq!(
            faults(
                "[a](Cargo.toml) [b](https://example.org) [c](#here) `crates/flash/src/lib.rs`\n\
                 `crates/*/Cargo.toml` `cargo xtask tidy` cargo xtask COMMAND\n"
            ),
            [""; 0]
        );
        assert!(Path::new(&crate::root()).join("crates").exists());
    }

    #[test]
    fn what_is_gone_is_found() {
        assert_eq!(faults("[a](no/such/file.md)").len(), 1);
        assert_eq!(faults("see `crates/flash/src/gone.rs`").len(), 1);
        assert_eq!(faults("run `cargo xtask vanish`").len(), 1);
    }
}
