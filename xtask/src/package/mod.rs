//! `cargo xtask package`: what is given to people who do not build, of one binary: a tarball, a Debian package
//! and an OCI image. The same commit and binary give the same bytes.
//!
//! Debian's own tools do what they are for (`dpkg-shlibdeps`, `dpkg-deb`, `tar`, `gzip`); only the image, a
//! folder of JSON and layers, is made here, so that no container engine is needed.

mod deb;
mod image;
mod tarball;
mod tree;

use crate::commands::{target_folder, weir_binary};
use crate::root;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// For `cargo xtask help`, and whoever gets it wrong.
const USAGE: &str = "package [--profile release | --binary PATH] [--version VERSION] [--to DIR] [--only tarball|deb|image] [--fast]";

/// What all packages are made of.
struct Made {
    version: String,
    /// As Debian, and the OCI, call the processor.
    architecture: &'static str,
    /// The stripped binary.
    binary: PathBuf,
    /// For what is put together.
    work: PathBuf,
    /// Where packages go.
    to: PathBuf,
    /// Of all files in them: that of the commit.
    seconds: String,
    /// How hard `gzip` tries.
    level: &'static str,
}

type Make = fn(&Made) -> Result<PathBuf, String>;

const KINDS: [(&str, Make); 3] =
    [("tarball", tarball::make), ("deb", deb::make), ("image", image::make)];

#[derive(Default)]
struct Options {
    profile: Option<String>,
    binary: Option<PathBuf>,
    version: Option<String>,
    to: Option<PathBuf>,
    only: Option<String>,
    fast: bool,
}

/// Makes all three and tells their names.
pub fn package(args: &[String]) -> Result<(), String> {
    let options = options(args)?;
    let to = match options.to {
        Some(to) => std::path::absolute(to).map_err(|error| format!("--to: {error}"))?,
        None => target_folder()?.join("package"),
    };
    let built = match options.binary {
        Some(binary) => binary,
        None => weir_binary(options.profile.as_deref().unwrap_or("release"))?,
    };
    let work = to.join("work");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    }
    make_folder(&work)?;
    let binary = work.join("weir");
    run("strip", [OsStr::new("-o"), binary.as_os_str(), built.as_os_str()])?;
    let version = options.version.map_or_else(version, Ok)?;
    let made = Made {
        version,
        architecture: architecture()?,
        binary,
        work: work.clone(),
        to,
        seconds: git(&["log", "-1", "--format=%ct"]).unwrap_or_else(|_| "0".into()),
        level: if options.fast { "-1" } else { "-9" },
    };
    for (kind, make) in KINDS {
        if options.only.as_deref().is_some_and(|only| only != kind) {
            continue;
        }
        let package = make(&made)?;
        let bytes = package.metadata().map_or(0, |found| found.len());
        println!("{:>6.1} MiB  {}", bytes as f64 / f64::from(1 << 20), package.display());
    }
    fs::remove_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))
}

fn options(args: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().ok_or(format!("{arg} needs a value: {USAGE}"));
        match arg.as_str() {
            "--profile" => options.profile = Some(value()?),
            "--binary" => options.binary = Some(value()?.into()),
            "--version" => options.version = Some(value()?),
            "--to" => options.to = Some(value()?.into()),
            "--only" => options.only = Some(value()?),
            "--fast" => options.fast = true,
            _ => return Err(format!("{arg}: no such option: {USAGE}")),
        }
    }
    if let Some(only) = &options.only
        && !KINDS.iter().any(|(kind, _)| kind == only)
    {
        return Err(format!("--only {only}: must be tarball, deb or image"));
    }
    let odd = |c: char| !c.is_ascii_alphanumeric() && !".+~".contains(c);
    match &options.version {
        Some(version)
            if version.contains(odd) || !version.starts_with(|c: char| c.is_ascii_digit()) =>
        {
            Err(format!(
                "--version {version}: must be a digit, then letters, digits, `.`, `+`, `~`"
            ))
        }
        _ => Ok(options),
    }
}

/// That of the workspace; of a commit which has no tag of it, with its date and hash: what is newer is newer
/// to a package manager.
fn version() -> Result<String, String> {
    let version = env!("CARGO_PKG_VERSION");
    let tagged = git(&["tag", "--points-at", "HEAD"])?;
    if tagged.lines().any(|tag| tag == format!("v{version}")) {
        return Ok(version.into());
    }
    let commit = git(&["log", "-1", "--date=format:%Y%m%d.%H%M%S", "--format=%cd.%h"])?;
    Ok(format!("{version}+git{commit}"))
}

fn architecture() -> Result<&'static str, String> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(format!("{other}: packages are made on x86_64 and aarch64")),
    }
}

fn git(args: &[&str]) -> Result<String, String> {
    let root = root();
    let root = [OsStr::new("-C"), root.as_os_str()];
    Ok(run("git", root.into_iter().chain(args.iter().map(OsStr::new)))?.trim().into())
}

/// Runs a program and returns what it printed.
fn run<A: AsRef<OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
) -> Result<String, String> {
    said(Command::new(program).args(args))
}

/// The same, of one that is put together.
fn said(command: &mut Command) -> Result<String, String> {
    let shown = format!("{command:?}");
    let output = command.output().map_err(|error| {
        format!("{shown}: {error}: `./x package` installs what it needs (dpkg-dev, binutils)")
    })?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("failed ({}): {shown}\n{why}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How a tar file is packed.
enum Pack {
    Plain,
    Gzip,
}

/// A tar file of `names` in `folder`, which tells nothing of this machine.
fn tar(
    made: &Made,
    (folder, names): (&Path, &[&str]),
    owner: u32,
    pack: Pack,
    to: &Path,
) -> Result<(), String> {
    let mut command = Command::new("tar");
    command.args(["--sort=name", "--numeric-owner", "--format=gnu"]);
    command.args([format!("--owner={owner}"), format!("--group={owner}")]);
    command.arg(format!("--mtime=@{}", made.seconds));
    if let Pack::Gzip = pack {
        command.arg(format!("--use-compress-program=gzip --no-name {}", made.level));
    }
    command.arg("--create").arg("--file").arg(to).arg("--directory").arg(folder).args(names);
    said(&mut command).map(drop)
}

fn make_folder(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file, and the folders that lead to it.
fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), String> {
    path.parent().map_or(Ok(()), make_folder)?;
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// Copies a file with its permissions, and makes the folders that lead to it.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), make_folder)?;
    let copied = fs::copy(from, to);
    copied.map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

#[cfg(test)]
mod tests {
    use super::options;

    fn refused(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        options(&args).err().unwrap_or_default()
    }

    #[test]
    fn options_that_are_wrong_are_named() {
        assert_eq!(refused(&["--fast", "--version", "0.2.0~rc1+x", "--profile", "quick"]), "");
        for (args, word) in [
            (&["--version", "v1"][..], "--version v1"),
            (&["--version", "1 2"][..], "--version 1 2"),
            (&["--version"][..], "--version needs a value"),
            (&["--slow"][..], "--slow"),
            (&["--only", "rpm"][..], "--only rpm"),
        ] {
            assert!(refused(args).contains(word), "{args:?}: {}", refused(args));
        }
    }
}
