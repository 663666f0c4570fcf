//! `weir completions` and `weir manual`: what shells and `man` read, made of the command line itself, so that
//! nothing in it is forgotten and nothing is told twice. Packages hold both.

use crate::{End, Failure};
use clap_complete::Shell;
use std::fs;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir completions bash > ~/.local/share/bash-completion/completions/weir\n  \
    weir completions zsh > ~/.zfunc/_weir\n      in a folder of the shell's fpath\n  \
    weir completions fish > ~/.config/fish/completions/weir.fish\n\n\
    Packages bring them along.")]
pub struct CompletionsArgs {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  weir manual man1 && man -l man1/weir-serve.1")]
pub struct ManualArgs {
    /// The folder they go to; made if it is not there
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

pub fn completions(args: &CompletionsArgs, command: clap::Command) -> Result<End, Failure> {
    crate::output::print(&completion(args.shell, command));
    Ok(End::Good)
}

/// What a shell reads.
pub fn completion(shell: Shell, mut command: clap::Command) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "weir", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

pub fn write(args: &ManualArgs, command: clap::Command) -> Result<End, Failure> {
    let failed =
        |error| format!("{}: the man pages cannot be written: {error}", args.folder.display());
    fs::create_dir_all(&args.folder).map_err(failed)?;
    // The long form is for `weir --version`; in the head of a page it would take two lines.
    clap_mangen::generate_to(command.long_version(None), &args.folder).map_err(failed)?;
    Ok(End::Good)
}
