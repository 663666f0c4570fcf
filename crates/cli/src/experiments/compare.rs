//! `weir lab compare`: two runs of an experiment, such as of two commits, beside each other.

use crate::output::{print, print_json};
use crate::{End, Failure};
use lab::report::{self, Comparison, Report, Side};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir lab run my.toml --seeds 5 --json before.json\n  \
    weir lab run my.toml --seeds 5 --json after.json      with another build, or another --set\n  \
    weir lab compare before.json after.json --report out.html\n\n\
    A difference is marked where its interval at 95 % (Welch's, over the seeds) does not have zero in it; so of \
    a hundred that are none, five are. Of runs with one seed nothing is marked.")]
pub struct Args {
    /// Report of a run, as `weir lab run --json FILE` writes it
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The other one
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Write a page with the table, and the plots side by side
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<End, Failure> {
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let name = |path: &Path| path.display().to_string();
    let (a, b) =
        (Side { label: name(&args.a), report: &a }, Side { label: name(&args.b), report: &b });
    let comparison = Comparison::new(&a, &b).map_err(|error| error.to_string())?;
    if let Some(path) = &args.report {
        let page = comparison.html().map_err(|error| error.to_string())?;
        std::fs::write(path, page)
            .map_err(|error| format!("{}: cannot be written: {error}", path.display()))?;
    }
    if args.json {
        print_json(&serde_json::to_value(&comparison.differences).expect("no odd keys"));
    } else {
        print(&comparison.text());
    }
    Ok(End::Good)
}

fn read(path: &Path) -> Result<Report, Failure> {
    let text = serve::files::read_named_text(path)
        .map_err(|error| format!("{}: cannot be read: {error}", path.display()))?;
    let ending = path.extension().and_then(|ending| ending.to_str());
    if ending.is_some_and(|ending| ["jsonl", "csv"].contains(&ending)) {
        return Err(format!(
            "{}: has the rows of --results; a comparison is of reports: give the file of `weir lab run --json FILE`",
            path.display()
        ));
    }
    let report: Report = serde_json::from_str(&text).map_err(|error| {
        format!("{}: is no report as `weir lab run --json` writes it: {error}", path.display())
    })?;
    report::text(&report).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(report)
}
