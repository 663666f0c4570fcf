//! What holds for every subcommand alike: its help has examples that it takes, and a script can read what it
//! prints. A new subcommand is held to it without anybody thinking of it.

use crate::Cli;
use clap::{Command, CommandFactory, Parser};

/// Subcommands that print nothing a script would read in JSON, and why.
const WITHOUT_JSON: &[(&str, &str)] = &[
    (
        "serve",
        "the line that begins with `ready` is for scripts; `weir status --json` tells the rest",
    ),
    ("format", "it makes a device; `weir inspect --json` tells what came of it"),
    ("grow", "one line tells what it came to; `weir inspect --json` what is there"),
    ("plugin new", "it writes files"),
    ("lab new", "it writes files"),
    ("pool up", "it serves; `weir pool status --json` tells of it"),
    ("pool kill", "it says what it did; `weir pool status --json` tells what came of it"),
    ("pool slow", "as kill"),
    ("pool wear", "as kill"),
    ("pool node", "it serves"),
    ("pool client", "it serves"),
    ("pool ask", "what it prints is JSON"),
    ("pool certs", "it writes files"),
    ("pool plane", "it serves"),
    ("pool found", "`weir pool nodes --json` tells what came of it"),
    ("pool controller", "it serves"),
    ("pool join", "`weir pool nodes --json` tells what came of it"),
    ("pool drain", "as join"),
    ("pool replace", "as join"),
    ("pool volume delete", "`weir pool volume list --json` tells what came of it"),
    ("trace convert", "it writes a trace; `weir trace stat --json` tells what is in it"),
    ("trace cut", "as convert"),
    ("rocksdb", "what is printed is the program's"),
    (
        "store serve",
        "the line that begins with `ready` is for scripts; `weir store status --json` tells the rest",
    ),
    ("store compact", "it says nothing; `weir store status --json` tells what came of it"),
    ("store put", "it says nothing"),
    ("store get", "what it prints is the value"),
    ("store delete", "it says nothing"),
    ("store table put", "it says nothing"),
    ("store table delete", "it says nothing"),
    ("store file put", "it says nothing"),
    ("store file get", "what it prints is the file"),
    ("store file rename", "it says nothing"),
    ("store file delete", "it says nothing"),
    ("store dump", "what it prints is the dump"),
    ("store load", "it says nothing"),
    ("completions", "what it prints is for a shell"),
];

/// Every subcommand that people see, by its words; those with subcommands of their own before these.
fn all() -> Vec<(String, Command)> {
    fn below(words: &str, command: &Command, all: &mut Vec<(String, Command)>) {
        for child in command.get_subcommands() {
            if child.is_hide_set() || child.get_name() == "help" {
                continue;
            }
            let words = format!("{words} {}", child.get_name());
            all.push((words.trim().into(), child.clone()));
            below(&words, child, all);
        }
    }
    let (mut command, mut all) = (Cli::command(), Vec::new());
    // Options of all subcommands come to each by this.
    command.build();
    below("", &command, &mut all);
    all
}

/// The lines of help that are commands of ours, without what is said of them beside.
fn examples(command: &Command) -> Vec<String> {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let Some((_, help)) = help.split_once("Examples:\n") else { return Vec::new() };
    let block = help.split("\n\n").next().unwrap_or_default();
    let lines = block.lines().map(str::trim).filter(|line| line.starts_with("weir "));
    lines.map(|line| line.split("  ").next().unwrap_or_default().into()).collect()
}

/// What a shell would start: each program with its arguments.
fn started(line: &str) -> Vec<Vec<String>> {
    let words = shlex::split(line).unwrap_or_else(|| panic!("{line}: a shell cannot read it"));
    let mut programs = vec![Vec::new()];
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match &*word {
            "|" | "&&" => programs.push(Vec::new()),
            // Where its output goes.
            ">" => _ = words.next(),
            "&" => {}
            _ => programs.last_mut().expect("never empty").push(word),
        }
    }
    programs.retain(|program| program.first().is_some_and(|name| name == "weir"));
    programs
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn every_subcommand_has_examples_and_takes_them() {
    let mut faults = Vec::new();
    for (words, command) in all() {
        let examples = examples(&command);
        if !examples.iter().any(|line| line.starts_with(&format!("weir {words}"))) {
            faults.push(format!("weir {words} --help has no example of itself: {examples:?}"));
        }
        for (line, program) in
            examples.iter().flat_map(|line| started(line).into_iter().map(move |it| (line, it)))
        {
            if let Err(error) = Cli::try_parse_from(program) {
                faults
                    .push(format!("weir {words} --help says `{line}`, which is refused: {error}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_subcommand_prints_json_or_says_why_it_does_not() {
    let leaves = all().into_iter().filter(|(_, command)| !command.has_subcommands());
    for (words, command) in leaves {
        let has = command.get_arguments().any(|arg| arg.get_long() == Some("json"));
        let excused = WITHOUT_JSON.iter().any(|(name, _)| *name == words);
        assert_ne!(has, excused, "weir {words}: --json, or a line in WITHOUT_JSON, and not both");
    }
    let known: Vec<String> = all().into_iter().map(|(words, _)| words).collect();
    for (name, _) in WITHOUT_JSON {
        assert!(known.iter().any(|words| words == name), "weir {name} is no more");
    }
}

#[test]
fn man_pages_and_completions_have_every_subcommand() {
    let folder = std::env::temp_dir().join(format!("weir-manual-{}", std::process::id()));
    let args = crate::manual::ManualArgs { folder: folder.clone() };
    crate::manual::write(&args, Cli::command()).expect("the pages are written");
    for (words, _) in all() {
        let page = folder.join(format!("weir-{}.1", words.replace(' ', "-")));
        let text = std::fs::read_to_string(&page);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains("Examples:"), "{}", page.display());
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
    for shell in ["bash", "zsh", "fish"] {
        let text = crate::manual::completion(shell.parse().expect("a shell"), Cli::command());
        for (words, _) in all() {
            let last = words.rsplit(' ').next().unwrap_or_default();
            assert!(text.contains(last), "{shell} knows nothing of {words}");
        }
    }
}
