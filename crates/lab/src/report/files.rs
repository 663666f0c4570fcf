//! Puts a report on disk: the page, and beside it each figure as SVG and as PNG.

use super::index::{Run, html_of_all};
use super::listing::claims_markdown;
use super::{PNG_BUILT_IN, Report, ReportError, html, png, svg};
use std::fs;
use std::path::{Path, PathBuf};

/// Writes `PATH.html` with its figures beside it as `PATH-FIGURE.svg` and, where the build has it, `.png`; or, if
/// `path` does not end in `.html`, into the directory `path`, under the report's name. Returns what it
/// wrote.
pub fn write(report: &Report, path: &Path) -> Result<Vec<PathBuf>, ReportError> {
    // Everything is rendered first: a report that cannot be drawn leaves no half of it behind.
    let mut files = vec![(String::new(), html(report)?.into_bytes())];
    for figure in &report.figures {
        files.push((format!("-{}.svg", figure.id), svg(figure)?.into_bytes()));
        if PNG_BUILT_IN {
            files.push((format!("-{}.png", figure.id), png(figure)?));
        }
    }
    let is_page = path.extension().is_some_and(|extension| extension == "html");
    let page = if is_page { path.to_owned() } else { path.join(format!("{}.html", report.name)) };
    let directory = page.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(directory) = directory {
        let failed = |error| ReportError::File { path: directory.to_owned(), error };
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let mut written = Vec::new();
    for (ending, bytes) in files {
        let mut path = page.clone();
        if !ending.is_empty() {
            let mut name = page.file_stem().unwrap_or_default().to_owned();
            name.push(ending);
            path.set_file_name(name);
        }
        fs::write(&path, bytes).map_err(|error| ReportError::File { path: path.clone(), error })?;
        written.push(path);
    }
    Ok(written)
}

/// Writes `index.html` into `folder`, all claims and figures of reports whose pages lie beside it, and the claims
/// as Markdown, `claims.md`.
pub fn write_index(reports: &[Report], run: &Run, folder: &Path) -> Result<(), ReportError> {
    let files =
        [("index.html", html_of_all(reports, run)?), ("claims.md", claims_markdown(reports, run))];
    let failed = |path: &Path, error| ReportError::File { path: path.to_owned(), error };
    fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for (name, text) in files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
