//! Names of files and folders: absolute, with single slashes and nothing to resolve.

use crate::api::Error;

/// Longest name that is taken: a record of it fits a block.
const BYTES_MAX: usize = 1024;

/// `path` as the store keeps it. What does not begin with a slash is taken from the root.
pub fn clean(path: &str) -> Result<String, Error> {
    let mut clean = String::with_capacity(path.len() + 1);
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(Error::Usage(format!("{path}: a name in the store has no `..`")));
        }
        clean.push('/');
        clean.push_str(part);
    }
    if clean.len() > BYTES_MAX {
        return Err(Error::Usage(format!("a name in the store has at most {BYTES_MAX} bytes")));
    }
    if clean.is_empty() {
        clean.push('/');
    }
    Ok(clean)
}

/// The folder that a clean path is in; `None` of the root, which is always there.
pub fn parent(path: &str) -> Option<&str> {
    let (parent, name) = path.rsplit_once('/')?;
    (!name.is_empty()).then_some(if parent.is_empty() { "/" } else { parent })
}

/// Whether a clean path is in a folder, however deep.
pub fn is_below(path: &str, folder: &str) -> bool {
    let below = path.strip_prefix(folder.trim_end_matches('/'));
    below.is_some_and(|below| below.starts_with('/'))
}

/// Files of raw blocks are told by their names, as RocksDB's are: `.sst`, and `.blob` of its BlobDB.
pub fn is_table(path: &str) -> bool {
    // A backup's has another name until it is whole, and is not moved from one to the other by that.
    let path = path.strip_suffix(".tmp").unwrap_or(path);
    path.ends_with(".sst") || path.ends_with(".blob")
}

/// RocksDB's names of the files that say which tables a database has.
pub fn names_tables(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with("MANIFEST"))
}

/// RocksDB's name of the file that says which manifest counts: it is replaced when a database was found whole.
pub fn says_what_is_current(path: &str) -> bool {
    path.ends_with("/CURRENT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_clean_or_refused() {
        for (given, kept) in [
            ("/db/000001.sst", "/db/000001.sst"),
            ("//db///./a/", "/db/a"),
            ("db/a", "/db/a"),
            ("", "/"),
            ("/", "/"),
        ] {
            assert_eq!(clean(given).as_deref(), Ok(kept), "{given}");
        }
        assert!(clean("/db/../a").is_err());
        assert!(clean(&"a".repeat(2000)).is_err());
        assert_eq!(parent("/"), None);
        assert_eq!(parent("/db"), Some("/"));
        assert_eq!(parent("/db/a"), Some("/db"));
        assert!(is_below("/db/a/1", "/db") && is_below("/db", "/") && !is_below("/dbs/1", "/db"));
        assert!(is_table("/db/1.sst") && !is_table("/db/1.log"));
        assert!(is_table("/backup/.1_2_3.sst.tmp") && !is_table("/backup/meta/1.tmp"));
    }
}
