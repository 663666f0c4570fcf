//! The files of a package below a prefix, as the file system's hierarchy has them: what the tarball and the
//! Debian package have in common.

use super::{Made, copy, make_folder, run, write};
use crate::root;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Where shells look for completions, below a prefix: each shell, its file, and Debian's file if that is
/// another.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "share/bash-completion/completions/weir", "share/bash-completion/completions/weir"),
    ("zsh", "share/zsh/site-functions/_weir", "share/zsh/vendor-completions/_weir"),
    (
        "fish",
        "share/fish/vendor_completions.d/weir.fish",
        "share/fish/vendor_completions.d/weir.fish",
    ),
];

/// Documents that somebody who only runs Weir needs.
const DOCUMENTS: [&str; 2] = ["README.md", "LICENSE-MIT"];

/// Puts binary, man pages, completions, documents and what systemd reads below `prefix`, which is called
/// `installed` on the machine that it is installed on.
pub fn lay_out(made: &Made, prefix: &Path, installed: &str) -> Result<(), String> {
    copy(&made.binary, &prefix.join("bin/weir"))?;
    let man = prefix.join("share/man/man1");
    make_folder(&man)?;
    run(&made.binary.to_string_lossy(), [OsStr::new("manual"), man.as_os_str()])?;
    for page in sorted(&man)? {
        run("gzip", [OsStr::new("--no-name"), OsStr::new("-9"), page.as_os_str()])?;
    }
    for (shell, everywhere, debian) in COMPLETIONS {
        let text = run(&made.binary.to_string_lossy(), ["completions", shell])?;
        write(&prefix.join(if installed == "/usr" { debian } else { everywhere }), text)?;
    }
    let documents = prefix.join("share/doc/weir");
    for name in DOCUMENTS {
        copy(&root().join(name), &documents.join(name))?;
    }
    for path in sorted(&root().join("docs"))? {
        if path.extension().is_some_and(|extension| extension == "md") {
            copy(&path, &documents.join(path.file_name().unwrap_or_default()))?;
        }
    }
    let packaging = root().join("packaging");
    let unit = packaging.join("weir.service");
    let unit = fs::read_to_string(&unit).map_err(|error| format!("{}: {error}", unit.display()))?;
    let unit = unit.replace("/usr/bin/weir", &format!("{installed}/bin/weir"));
    write(&prefix.join("lib/systemd/system/weir.service"), unit)?;
    copy(&packaging.join("sysusers.conf"), &prefix.join("lib/sysusers.d/weir.conf"))?;
    copy(&packaging.join("tmpfiles.conf"), &prefix.join("lib/tmpfiles.d/weir.conf"))
}

/// What is in a folder, in order.
pub fn sorted(folder: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut paths: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}
