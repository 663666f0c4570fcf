//! The folder of an open device, which somebody may move: its data and its generation are written through
//! files that stay open, its marks and its description by name. Those go where the folder is now, and
//! never to another one that took its place.

use super::DeviceError;
use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A folder that is kept in sight.
pub struct Home(File);

impl Home {
    /// The folder that is at `path` now.
    pub fn of(path: &Path) -> Result<Self, DeviceError> {
        File::open(path).map(Self).map_err(DeviceError::io(path, "open the folder"))
    }

    /// Where it is now; `path` is where it was last.
    pub fn now(&self, path: &Path) -> Result<PathBuf, DeviceError> {
        let own = self.0.metadata().map_err(DeviceError::io(path, "find the folder"))?;
        let is_there = |path: &PathBuf| fs::metadata(path).is_ok_and(|found| same(&found, &own));
        let path = path.to_owned();
        if is_there(&path) {
            return Ok(path);
        }
        // The kernel follows it.
        let moved = fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        if let Some(now) = moved.ok().filter(is_there) {
            tracing::warn!("{}: was moved to {} while it was open", path.display(), now.display());
            return Ok(now);
        }
        let reason =
            "the folder was removed while it was open, or moved to where it cannot be found";
        let mend =
            "bring it back if it is still somewhere: the next start recovers as after a crash";
        Err(DeviceError::invalid(&path, reason, mend))
    }
}

fn same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_found_where_it_was_moved_and_not_in_what_took_its_place() {
        let base = std::env::temp_dir().join(format!("weir-home-{}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir_all(base.join("one")).unwrap();
        let home = Home::of(&base.join("one")).unwrap();
        assert_eq!(home.now(&base.join("one")).unwrap(), base.join("one"));
        fs::rename(base.join("one"), base.join("two")).unwrap();
        assert_eq!(home.now(&base.join("one")).unwrap(), base.join("two"));
        fs::create_dir(base.join("one")).unwrap();
        assert_eq!(home.now(&base.join("one")).unwrap(), base.join("two"));
        fs::remove_dir(base.join("two")).unwrap();
        let gone = home.now(&base.join("one")).unwrap_err().to_string();
        assert!(gone.contains("removed"), "{gone}");
        fs::remove_dir_all(base).unwrap();
    }
}
