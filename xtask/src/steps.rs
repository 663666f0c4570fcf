//! A run of several programs, one after the other: how long each took, what its tests came to, and which
//! of them stepped aside. All of it is told at the end, where a reader looks first.

use crate::{cargo_path, root};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// See the head of this file.
pub struct Steps {
    begun: Instant,
    done: Vec<Step>,
    /// Where tests note that they stepped aside.
    skipped: PathBuf,
}

struct Step {
    name: &'static str,
    took: Duration,
    tests: Tests,
    /// Those that failed, by name.
    failures: Vec<String>,
    good: bool,
}

/// What test runners said in their closing lines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tests {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Steps {
    /// None yet. `target` is cargo's folder for what it makes.
    pub fn new(target: &Path) -> Result<Self, String> {
        let skipped = target.join("skipped-tests");
        let shown = skipped.display();
        fs::create_dir_all(target).map_err(|error| format!("{}: {error}", target.display()))?;
        fs::write(&skipped, "").map_err(|error| format!("{shown}: {error}"))?;
        Ok(Self { begun: Instant::now(), done: Vec::new(), skipped })
    }

    /// Runs cargo, and shows and counts what it prints.
    pub fn cargo(
        &mut self,
        name: &'static str,
        words: &[&str],
        args: &[String],
    ) -> Result<(), String> {
        self.cargo_where(name, words, args, &[])
    }

    /// The same in an environment with these words beside.
    pub fn cargo_where(
        &mut self,
        name: &'static str,
        words: &[&str],
        args: &[String],
        environment: &[(&str, &str)],
    ) -> Result<(), String> {
        let mut command = Command::new(cargo_path());
        command.args(words).args(args).current_dir(root()).env("WEIR_SKIPPED", &self.skipped);
        command.envs(environment.iter().copied());
        let shown = format!("{command:?}");
        eprintln!("$ cargo {} {}", words.join(" "), args.join(" "));
        let begun = Instant::now();
        let mut child =
            command.stdout(Stdio::piped()).spawn().map_err(|e| format!("{shown}: {e}"))?;
        let said = child.stdout.take().expect("it was piped");
        let (tests, failures) = passed_on(BufReader::new(said), &mut std::io::stdout());
        let status = child.wait().map_err(|error| format!("{shown}: {error}"))?;
        let good = status.success();
        self.done.push(Step { name, took: begun.elapsed(), tests, failures, good });
        if good {
            Ok(())
        } else {
            Err(format!("failed ({status}): {name}: cargo {}", words.join(" ")))
        }
    }

    /// Tells the steps and what was skipped. A skip in CI is a failure: there nobody reads on.
    pub fn end(self, result: Result<(), String>) -> Result<(), String> {
        print!("{}", self.table());
        let skipped = fs::read_to_string(&self.skipped)
            .map_err(|error| format!("{}: {error}", self.skipped.display()))?;
        let skipped = skips(&skipped);
        if !skipped.is_empty() {
            println!("\nNot run, for what is missing on this machine:\n  {}", skipped.join("\n  "));
        }
        result?;
        let in_ci =
            std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false");
        match skipped.len() {
            count if count > 0 && in_ci => Err(format!("{count} tests were skipped, in CI")),
            _ => Ok(()),
        }
    }

    fn table(&self) -> String {
        let mut text = format!(
            "\n{:<28}{:>9}{:>9}{:>9}{:>9}\n",
            "step", "time", "passed", "failed", "ignored"
        );
        let mut all = Tests::default();
        for step in &self.done {
            all = all.and(step.tests);
            text.push_str(&line(step.name, step.took, step.tests));
            text.push_str(if step.good { "\n" } else { "   FAILED\n" });
        }
        text.push_str(&line("all", self.begun.elapsed(), all));
        text.push('\n');
        for step in &self.done {
            for failure in &step.failures {
                text.push_str(&format!("failed in {}: {failure}\n", step.name));
            }
        }
        text
    }
}

impl Tests {
    fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }

    /// What a closing line of a test runner says; nothing if `line` is none.
    fn of(line: &str) -> Self {
        let mut tests = Self::default();
        let Some(counts) = line.trim().strip_prefix("test result: ") else { return tests };
        // "ok. 5 passed; 0 failed; ..."
        let counts = counts.split_once(". ").map_or(counts, |(_, counts)| counts);
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else { continue };
            let number = number.parse().unwrap_or(0);
            match what {
                "passed" => tests.passed = number,
                "failed" => tests.failed = number,
                "ignored" => tests.ignored = number,
                _ => {}
            }
        }
        tests
    }
}

/// Copies line by line, counts what test runners say, and notes the names of what failed.
fn passed_on(mut from: impl BufRead, to: &mut impl Write) -> (Tests, Vec<String>) {
    let (mut tests, mut failures) = (Tests::default(), Vec::new());
    let mut line = Vec::new();
    // A pipe that breaks ends here; the exit status of the program tells the rest.
    while from.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let text = String::from_utf8_lossy(&line);
        tests = tests.and(Tests::of(&text));
        // "test group::name ... FAILED"
        let failed =
            text.trim_end().strip_prefix("test ").and_then(|t| t.strip_suffix(" ... FAILED"));
        failures.extend(failed.map(str::to_owned));
        line.clear();
    }
    (tests, failures)
}

/// Each skip once, in order.
fn skips(noted: &str) -> Vec<&str> {
    let mut skips: Vec<&str> = noted.lines().filter(|line| !line.is_empty()).collect();
    skips.sort_unstable();
    skips.dedup();
    skips
}

fn line(name: &str, took: Duration, tests: Tests) -> String {
    let seconds = took.as_secs();
    let time = format!("{}:{:02}", seconds / 60, seconds % 60);
    let Tests { passed, failed, ignored } = tests;
    format!("{name:<28}{time:>9}{passed:>9}{failed:>9}{ignored:>9}")
}

#[cfg(test)]
mod tests {
    use super::{Tests, passed_on, skips};

    #[test]
    fn closing_lines_are_counted_and_all_is_passed_on() {
        let said = "running 3 tests\ntest a ... ok\ntest b::c ... FAILED\n\n\
            test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.1s\n\
            test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out\nno newline";
        let mut shown = Vec::new();
        let (tests, failures) = passed_on(said.as_bytes(), &mut shown);
        assert_eq!(tests, Tests { passed: 7, failed: 3, ignored: 1 });
        assert_eq!(failures, ["b::c"]);
        assert_eq!(String::from_utf8(shown).unwrap(), said);
    }

    #[test]
    fn a_skip_is_told_once() {
        assert_eq!(skips("SKIPPED: b: x\nSKIPPED: a: y\nSKIPPED: b: x\n").len(), 2);
        assert!(skips("").is_empty());
    }
}
