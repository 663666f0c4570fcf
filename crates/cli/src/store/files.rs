//! `weir store file`: immutable files by path.

use super::{At, missing, opened, told};
use crate::output::{print, print_json, table};
use crate::{End, Failure};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    weir store file put web.csv.gz traces/2026/web.csv.gz\n  \
    weir store file list traces/2026\n  \
    weir store file get traces/2026/web.csv.gz again.csv.gz\n  \
    weir store file rename traces/2026 traces/old\n  \
    weir store file delete traces/old/web.csv.gz\n\n\
    A file is seen when all of it is durable, and never changes. A folder is there as long as a file is in it.")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Write a file into the store
    #[command(after_help = "Examples:\n  \
        weir store file put disk.blkparse traces/disk.blkparse")]
    Put {
        /// What is written
        file: PathBuf,
        /// Its path in the store
        path: String,
        #[command(flatten)]
        at: At,
    },
    /// Read a file of the store
    #[command(after_help = "Examples:\n  \
        weir store file put big.csv traces/big.csv\n  \
        weir store file get traces/big.csv > copy.csv\n  \
        weir store file get traces/big.csv copy-too.csv")]
    Get {
        /// Its path in the store
        path: String,
        /// Where it goes; must not be there [default: standard output]
        file: Option<PathBuf>,
        #[command(flatten)]
        at: At,
    },
    /// List a folder, or with --all every file
    #[command(after_help = "Examples:\n  \
        weir store file list\n  \
        weir store file list traces/2026 --json\n  \
        weir store file list --all")]
    List {
        /// The folder [default: the top]
        #[arg(default_value = "", conflicts_with = "all")]
        folder: String,
        /// Every file by its path
        #[arg(long)]
        all: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        at: At,
    },
    /// Give a file, or a folder with all that is in it, another name; the first component stays
    #[command(after_help = "Examples:\n  \
        weir store file put my.toml lab/draft.toml\n  \
        weir store file rename lab/draft.toml lab/final.toml")]
    Rename {
        /// What it is called
        from: String,
        /// What it is to be called
        to: String,
        #[command(flatten)]
        at: At,
    },
    /// Delete files
    #[command(after_help = "Examples:\n  \
        weir store file put mine.wasm plugins/mine.wasm\n  \
        weir store file delete plugins/mine.wasm")]
    Delete {
        /// Their paths
        #[arg(required = true)]
        paths: Vec<String>,
        #[command(flatten)]
        at: At,
    },
}

/// Does what is asked.
pub fn run(args: &Args) -> Result<End, Failure> {
    match &args.command {
        Command::Put { file, path, at } => {
            let mut from = opened(file)?;
            let size = from.metadata().map_err(|error| format!("{}: {error}", file.display()))?;
            if !size.is_file() {
                return Err(format!(
                    "{}: is no plain file, so its size is not known",
                    file.display()
                ));
            }
            at.store()?.put_file(path, &mut from, size.len()).map_err(told)?;
            Ok(End::Good)
        }
        Command::Get { path, file, at } => get(path, file.as_ref(), at),
        Command::List { folder, all, json, at } => list(folder, *all, *json, at),
        Command::Rename { from, to, at } => {
            at.store()?.rename(from, to).map_err(told)?;
            Ok(End::Good)
        }
        Command::Delete { paths, at } => {
            let store = at.store()?;
            for path in paths {
                store.delete_file(path).map_err(told)?;
            }
            Ok(End::Good)
        }
    }
}

fn get(path: &str, file: Option<&PathBuf>, at: &At) -> Result<End, Failure> {
    let store = at.store()?;
    let Some(file) = file else {
        let mut out = std::io::stdout().lock();
        let found = store.file(path, &mut out).map_err(told)?;
        out.flush().map_err(|error| format!("standard output cannot be written: {error}"))?;
        return Ok(if found { End::Good } else { missing(path) });
    };
    let failed = |error| format!("{}: {error}", file.display());
    let mut into = File::create_new(file).map_err(failed)?;
    let found = store.file(path, &mut into).map_err(told);
    if !matches!(found, Ok(true)) {
        // Half a file would pass for the whole one.
        std::fs::remove_file(file).ok();
    }
    Ok(if found? { End::Good } else { missing(path) })
}

fn list(folder: &str, all: bool, json: bool, at: &At) -> Result<End, Failure> {
    let store = at.store()?;
    let (mut files, mut behind) = (Vec::new(), None::<String>);
    loop {
        let page = match all {
            true => store.all_files(behind.as_deref()),
            false => store.list(folder, behind.as_deref()),
        };
        let page = page.map_err(told)?;
        files.extend(page.files);
        behind = page.next;
        if behind.is_none() {
            break;
        }
    }
    if json {
        let told = files.iter().map(|file| {
            json!({ "name": file.name, "folder": file.folder, "bytes": file.bytes, "modified": file.modified })
        });
        print_json(&json!({ "files": told.collect::<Vec<_>>() }));
        return Ok(End::Good);
    }
    let row = |file: &client::store::File| match (file.folder, file.bytes) {
        (true, _) => vec![format!("{}/", file.name)],
        (false, Some(bytes)) => vec![file.name.clone(), crate::size::bytes(bytes)],
        (false, None) => vec![file.name.clone(), "DAMAGED".into()],
    };
    print(&table(&files.iter().map(row).collect::<Vec<_>>()));
    Ok(End::Good)
}
