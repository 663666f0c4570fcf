//! `weir bench --markdown`: the figures as a page for people, with when and where they were measured.

use super::{Figure, short};
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where and of what figures are.
pub struct Place {
    date: String,
    commit: Option<String>,
    machine: String,
    kernel: String,
    build: &'static str,
    command: String,
}

impl Place {
    /// This machine, now; `names` are those that were asked for.
    pub fn here(names: &[String], quick: bool) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let names = if names.is_empty() { "all".to_owned() } else { names.join(" ") };
        let quick = if quick { " --quick" } else { "" };
        Self {
            date: date(since.as_secs()),
            commit: commit(),
            machine: format!(
                "{}, {} processors",
                processor(&read("/proc/cpuinfo")),
                super::cores()
            ),
            kernel: if kernel.is_empty() { "unknown".into() } else { format!("Linux {kernel}") },
            build: if cfg!(debug_assertions) { "dev" } else { "release" },
            command: format!("weir bench {names} --markdown{quick}"),
        }
    }
}

/// How the page begins. What follows is a row for each figure as soon as it is measured, so that a run that is cut short
/// leaves what it has.
pub fn head(place: &Place) -> String {
    let mut out = format!(
        "# Figures\n\nWritten by `{}`.\n\n- date: {}\n- machine: {}\n- kernel: {}\n- build: weir {}, {}\n",
        place.command,
        place.date,
        place.machine,
        place.kernel,
        env!("CARGO_PKG_VERSION"),
        place.build,
    );
    if let Some(commit) = &place.commit {
        let _ = writeln!(out, "- commit: {commit}");
    }
    out.push_str("\n| figure | value | goal | | |\n|---|---|---|---|---|\n");
    out
}

/// Its last line.
pub fn end(figures: &[Figure]) -> String {
    format!("\n{}\n", super::goals_met(figures))
}

/// The row of a figure.
pub fn row(figure: &Figure) -> String {
    let note = figure.note.replace('|', "\\|").replace('\n', " ");
    let (value, verdict, note) = match figure.value {
        Some(value) if figure.is_met() => (short(value), "met", note),
        Some(value) => (short(value), "**missed**", note),
        None => ("-".into(), "**missed**", format!("not measured: {note}")),
    };
    let (name, unit, goal) = (&figure.name, figure.unit, figure.goal.text());
    let value = format!("{value} {unit}");
    format!("| `{name}` | {} | {goal} | {verdict} | {note} |\n", value.trim_end())
}

/// The first processor's model.
fn processor(cpuinfo: &str) -> &str {
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    model.and_then(|line| line.split_once(": ")).map_or("unknown processor", |(_, model)| model)
}

/// Of the repository in which it runs, if it is one; with a plus if something there is not committed.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).filter(|commit| !commit.is_empty())?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { commit } else { format!("{commit}+") })
}

/// The day of so many seconds since 1970, as 2026-11-25.
fn date(seconds: u64) -> String {
    let seconds = seconds as libc::time_t;
    // SAFETY: all zeroes is a time like any other, and the call writes within it.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&seconds, &mut time);
        time
    };
    format!("{:04}-{:02}-{:02}", 1900 + time.tm_year, time.tm_mon + 1, time.tm_mday)
}

#[cfg(test)]
mod tests {
    use super::super::{Figure, Goal};
    use super::{Place, date, end, head, processor, row};

    #[test]
    fn a_page_tells_where_and_when_and_what_was_missed_and_why() {
        let place = Place {
            date: date(1_795_651_200),
            commit: Some("0123456789ab+".into()),
            machine: format!("{}, 2 processors", processor("vendor_id: x\nmodel name\t: EPYC 9\n")),
            kernel: "Linux 6.1".into(),
            build: "release",
            command: "weir bench all --markdown".into(),
        };
        let figures = [
            Figure::new("quick", 1.0, "ns", Goal::AtMost(2.0)).note("80 % used"),
            Figure::new("slow", 3.0, "ns", Goal::AtMost(2.0)).note("copies | are most"),
            Figure::missing("absent", "x", Goal::AtLeast(1.0), "fio is not installed"),
        ];
        let page = head(&place) + &figures.each_ref().map(row).concat() + &end(&figures);
        for line in [
            "Written by `weir bench all --markdown`.",
            "1 of 3 goals met",
            "- date: 2026-11-26",
            "- machine: EPYC 9, 2 processors",
            "- commit: 0123456789ab+",
            "| `quick` | 1.000 ns | <= 2.000 | met | 80 % used |",
            "| `slow` | 3.000 ns | <= 2.000 | **missed** | copies \\| are most |",
            "| `absent` | - x | >= 1.000 | **missed** | not measured: fio is not installed |",
        ] {
            assert!(page.lines().any(|it| it == line), "{line}: {page}");
        }
    }
}
