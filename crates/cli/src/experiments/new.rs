//! `weir lab new`: files to begin with, which run as they stand.

use crate::output::print;
use crate::{End, Failure};
use lab::experiment;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir lab new mine && weir lab run mine.toml --report mine.html\n\n\
    It writes mine.toml, an experiment, and mine-device.toml, its device, with a comment at every key.")]
pub struct Args {
    /// Name of the experiment, with a folder before it if wanted: a-z, 0-9 and -
    #[arg(value_name = "NAME")]
    name: PathBuf,
}

/// The experiment, and the device.
const START: [(&str, &str); 2] =
    [(".toml", include_str!("start.toml")), ("-device.toml", include_str!("start-device.toml"))];

pub fn run(args: &Args) -> Result<End, Failure> {
    let named = args.name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = named.strip_suffix(".toml").unwrap_or(named);
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 40 || !name.chars().all(fits) {
        return Err(format!(
            "lab new {}: the name is of a-z, 0-9 and -, at most 40: it names files; for example: my-reads",
            args.name.display()
        ));
    }
    if experiment::builtin(name).is_some() {
        return Err(format!(
            "lab new {}: Weir has an experiment of that name (`weir lab list`): give another one",
            args.name.display()
        ));
    }
    let folder = args.name.parent().unwrap_or(Path::new(""));
    let paths = START.map(|(ending, _)| folder.join(format!("{name}{ending}")));
    if let Some(there) = paths.iter().find(|path| path.exists()) {
        return Err(format!("{}: is there already: give another name", there.display()));
    }
    if !folder.as_os_str().is_empty() {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("{}: cannot be made: {error}", folder.display()))?;
    }
    for (path, (_, text)) in paths.iter().zip(START) {
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        let text = text.replace("NAME", name);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| format!("{}: cannot be written: {error}", path.display()))?;
    }
    let [experiment, device] = paths.map(|path| path.display().to_string());
    print(&format!(
        "{experiment}  the experiment\n{device}  its device\n\nweir lab run {experiment} --report \
         {}.html\n",
        experiment.trim_end_matches(".toml")
    ));
    Ok(End::Good)
}
