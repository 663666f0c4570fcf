//! The file that a profile is written to. It is whole at every instant: what is new is written beside it first.

use crate::Failure;
use lab::drives::Profile;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file of one's own.
pub struct Out {
    path: PathBuf,
    beside: PathBuf,
    /// It is there.
    pub is_written: bool,
}

impl Out {
    /// Looks whether it can be written: what cannot must not cost an hour.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        if path.extension().is_none_or(|ending| ending != "csv") {
            return Err(format!("--out {}: a profile's name ends in .csv", path.display()));
        }
        if path.exists() {
            return Err(format!(
                "--out {}: is there already: name another file, or remove it if nobody needs it",
                path.display()
            ));
        }
        let beside = path.with_extension("csv.new");
        let made = fs::File::create(&beside);
        made.map_err(|error| format!("--out {}: cannot be made: {error}", path.display()))?;
        Ok(Self { path: path.into(), beside, is_written: false })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the profile in place of what was kept before, if there is anything in it.
    pub fn keep(&mut self, profile: &Profile) -> Result<(), Failure> {
        if profile.curves.is_empty() {
            return Ok(());
        }
        let written = fs::File::create(&self.beside).and_then(|mut file| {
            file.write_all(profile.to_text().as_bytes())?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&self.beside, &self.path))
            .map_err(|error| format!("{}: cannot be written: {error}", self.path.display()))?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        // Not there if the last of it was kept.
        fs::remove_file(&self.beside).ok();
    }
}
