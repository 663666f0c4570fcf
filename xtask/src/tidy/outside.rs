//! The repository stands alone: no file of it names a path outside. What is beside one clone is not
//! beside the next, so a test that finds something there proves nothing about the clone.

use super::ROOT_ENTRIES;
use std::path::Path;

/// Where people have their own files: no path of the project begins with one of these.
const OWN: &[&str] = &["work", "home", "root", "Users"];
/// What tests give as a name to see it refused.
const HOSTILE: &[&str] = &["x", "escape"];

/// The faults of one file.
pub fn check(root: &Path, path: &Path, name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", index + 1);
        for (climbs, rest) in climbing(line) {
            if !HOSTILE.contains(&rest) && !stays(root, path, climbs, rest) {
                let up = "../".repeat(climbs);
                faults.push(format!("{at}: {up}{rest} is not in the repository: bring it in"));
            }
        }
        for word in absolute(line) {
            faults.push(format!(
                "{at}: {word} is on one machine only: give a path in the repository"
            ));
        }
    }
    faults
}

/// Every path of a line that begins with `..`: how often it climbs, and what comes then.
fn climbing(line: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = line[from..].find("../").map(|at| from + at) {
        let mut rest = &line[at..];
        let mut climbs = 0;
        while let Some(more) = rest.strip_prefix("../") {
            (climbs, rest) = (climbs + 1, more);
        }
        // `a/../b` begins at `a`; what is joined to a folder begins here, with a slash or without.
        let before = line[..at].strip_suffix('/').unwrap_or(&line[..at]);
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || "/.".contains(c));
        // A last `..` without a slash is one more.
        if rest == ".." || rest.starts_with("..\"") {
            (climbs, rest) = (climbs + 1, "");
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && !"._-/".contains(c));
        if begins {
            found.push((climbs, &rest[..end.unwrap_or(rest.len())]));
        }
        from = line.len() - rest.len();
    }
    found
}

/// If the path leads to something of the repository, from the file's folder or one above it: a crate's
/// own folder is where its tests begin.
fn stays(root: &Path, path: &Path, climbs: usize, rest: &str) -> bool {
    let first = rest.split('/').next().unwrap_or_default();
    let bases = path.ancestors().skip(1).take_while(|base| base.starts_with(root));
    bases.filter_map(|base| base.ancestors().nth(climbs)).any(|place| {
        let made = place == root && ROOT_ENTRIES.contains(&first);
        place.starts_with(root) && (first.is_empty() || made || place.join(first).exists())
    })
}

/// The absolute paths of a line that begin in a folder of somebody's own.
fn absolute(line: &str) -> impl Iterator<Item = &str> {
    OWN.iter().flat_map(move |own| {
        line.match_indices(own).filter_map(move |(at, _)| {
            let before = &line[..at];
            let slash = before.strip_suffix('/')?;
            let begins = !slash.ends_with(|c: char| c.is_alphanumeric() || "/._-}~$>".contains(c));
            let rest = &line[at + own.len()..];
            (begins && rest.starts_with('/')).then(|| {
                let end = rest.find(|c: char| !c.is_alphanumeric() && !"._-/".contains(c));
                &line[at - 1..at + own.len() + end.unwrap_or(rest.len())]
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::check;

    fn faults(name: &str, text: &str) -> Vec<String> {
        let root = crate::root();
        check(&root, &root.join(name), name, text)
    }

    #[test]
    fn what_leads_out_is_found_from_the_root_and_from_a_crate() {
        for (name, text) in [
            ("x", concat!("[ -f \"${BOOT:-..", "/shared/tools/boot.sh}\" ] || return")),
            ("CONTRIBUTING.md", concat!("by default `..", "/shared/tools`")),
            ("crates/cli/tests/e2e/trace.rs", concat!("root.join(\"..", "/../../shared/data\")")),
            ("experiments/profiles.toml", concat!("traces = \"..", "/shared/data/traces\"")),
            ("crates/cli/Cargo.toml", concat!("path = \"..", "/..", "/..", "/beside\"")),
            ("docs/traces.md", concat!("see /ho", "me/me/traces and so on")),
            ("x", concat!("cp /wo", "rk/shared/tools/boot.sh .")),
            (
                "crates/lab/src/lib.rs",
                concat!("concat!(env!(\"DIR\"), \"/..", "/..", "/../shared\")"),
            ),
            ("crates/cli/src/main.rs", concat!("\"/ro", "ot/data\"")),
        ] {
            let found = faults(name, text);
            assert_eq!(found.len(), 1, "{name}: {text}: {found:?}");
        }
    }

    #[test]
    fn what_stays_is_accepted() {
        for (name, text) in [
            (
                "crates/cli/src/plugin/new.rs",
                "include_str!(concat!(\"../../../../plugins/\", $name))",
            ),
            ("crates/serve/src/config/tests.rs", "Path::new(DIR).join(\"../..\")"),
            (
                "crates/serve/src/config/tests.rs",
                "concat!(env!(\"DIR\"), \"/../../docs/config.md\")",
            ),
            ("crates/cli/tests/e2e/guest.rs", "join(\"../../target\")"),
            ("docs/policies.md", "[the plugins](../plugins/README.md), a/../b, and so on ..."),
            ("README.md", "https://example.org/home/x, $HOME/x, $work/root/x, /tmp/home/x"),
        ] {
            let found = faults(name, text);
            assert!(found.is_empty(), "{name}: {text}: {found:?}");
        }
    }
}
