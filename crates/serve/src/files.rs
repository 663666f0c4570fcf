//! Files that are opened by a name under which anybody may have put anything: a FIFO that nobody
//! writes would be waited for without end, a device node may act on being opened, a huge file would
//! be read whole.
//!
//! Invariants: what is opened is a plain file (or, where that is meant, a disk), looked at before and
//! after; opening never waits; what is read whole has a bound. Files that are Weir's own, which it
//! makes and writes by names that it chose, are never followed through a link: whoever may put one into
//! a folder would have any file of the server's user written. Names that people give may be links.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Largest text that is read whole: a config, a description, a profile. Those that people write
/// have a few KiB.
pub const TEXT_BYTES_MAX: u64 = 1 << 20;

const NO_PLAIN_FILE: &str = "is no plain file";

/// Opens a plain file of Weir's own, or makes one if `options` say so.
///
/// # Errors
/// It is something else, a link included, or what the system says.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_with(path, options, 0)
}

/// Opens a plain file that a person named.
///
/// # Errors
/// It is something else, or what the system says.
pub fn open_named(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    open_checked(path, options, 0, FileType::is_file, NO_PLAIN_FILE)
}

/// Opens a plain file or a disk, with `flags` of the system's beside.
///
/// # Errors
/// It is something else, or what the system says.
pub fn open_or_disk(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    let meant = |kind: &FileType| kind.is_file() || kind.is_block_device();
    open_checked(path, options, flags, meant, "is neither a plain file nor a disk")
}

/// The same for a plain file of Weir's own only.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    let flags = flags | libc::O_NOFOLLOW;
    open_checked(path, options, flags, FileType::is_file, NO_PLAIN_FILE)
}

/// What the system says of a plain file of Weir's own.
///
/// # Errors
/// As [`open`].
pub fn look(path: &Path) -> io::Result<Metadata> {
    let metadata = path.symlink_metadata()?;
    let kind = metadata.file_type();
    if kind.is_file() { Ok(metadata) } else { Err(unfit(NO_PLAIN_FILE, kind)) }
}

/// Makes a plain file without content, in place of the content of one that is there.
///
/// # Errors
/// As [`open`].
pub fn create(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(true))
}

/// Writes a plain file whole, in place of what may be there.
///
/// # Errors
/// As [`open`], or what the system says of the write.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    create(path)?.write_all(bytes)
}

/// Reads a plain file of at most `bytes_max`.
///
/// # Errors
/// It is something else or larger, or what the system says.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    read_bounded(open_named(path, OpenOptions::new().read(true))?, bytes_max)
}

/// Reads the text of a plain file, if it is no larger than texts are.
///
/// # Errors
/// As [`read`], or it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    text(read(path, TEXT_BYTES_MAX)?)
}

/// Reads a text that a person named, which may come through a pipe.
///
/// # Errors
/// It is larger than texts are, or not UTF-8, or what the system says.
pub fn read_named_text(path: &Path) -> io::Result<String> {
    rest_of_text(File::open(path)?)
}

/// Reads what is left of a file as text.
///
/// # Errors
/// It is larger than texts are, or not UTF-8, or what the system says.
pub fn rest_of_text(file: File) -> io::Result<String> {
    text(read_bounded(file, TEXT_BYTES_MAX)?)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| invalid("is no text: it is not UTF-8".into()))
}

/// All of it, and an error instead of more than `bytes_max`.
fn read_bounded(file: File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(invalid(format!("is larger than the {bytes_max} bytes it may have")));
    }
    Ok(bytes)
}

fn open_checked(
    path: &Path,
    options: &mut OpenOptions,
    flags: i32,
    meant: impl Fn(&FileType) -> bool,
    refusal: &str,
) -> io::Result<File> {
    let check = |kind: FileType| match meant(&kind) {
        true => Ok(()),
        false => Err(unfit(refusal, kind)),
    };
    let follows = flags & libc::O_NOFOLLOW == 0;
    // Before: to open some things is to use them.
    if let Ok(there) = if follows { path.metadata() } else { path.symlink_metadata() } {
        check(there.file_type())?;
    }
    let file = options.custom_flags(flags | libc::O_NONBLOCK).open(path)?;
    // After: it may have been changed for another meanwhile.
    check(file.metadata()?.file_type())?;
    // Only opening is not to wait. A ring would take the flag for a wish to fail instead.
    // SAFETY: no memory is involved.
    let cleared = unsafe {
        let now = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, now & !libc::O_NONBLOCK)
    };
    if cleared < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}

fn unfit(refusal: &str, kind: FileType) -> io::Error {
    invalid(format!("{refusal}, but {}", words(kind)))
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

fn words(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() => "a device node",
        kind if kind.is_block_device() => "a disk",
        kind if kind.is_symlink() => "a link",
        _ => "a file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-files-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn what_is_no_plain_file_is_refused_at_once_by_its_kind() {
        let folder = folder("kinds");
        let fifo = folder.join("fifo");
        let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
        // SAFETY: the name is a string that ends.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let _listener = UnixListener::bind(folder.join("socket")).unwrap();
        std::os::unix::fs::symlink("loop", folder.join("loop")).unwrap();
        std::os::unix::fs::symlink("fifo", folder.join("link")).unwrap();
        let all: [fn(&mut OpenOptions) -> &mut OpenOptions; 3] =
            [|o| o.read(true), |o| o.read(true).write(true), |o| o.write(true).create(true)];
        for (name, own, named) in [
            ("fifo", "a pipe", "a pipe"),
            ("link", "a link", "a pipe"),
            ("socket", "a socket", "a socket"),
            ("", "a folder", "a folder"),
            ("/dev/null", "a device node", "a device node"),
            ("/dev/tty", "a device node", "a device node"),
            ("loop", "a link", ""),
        ] {
            let path = folder.join(name);
            for options in all {
                let error = open(&path, options(&mut OpenOptions::new())).unwrap_err();
                assert!(error.to_string().contains(own), "{name}: {error}");
                let error = open_named(&path, options(&mut OpenOptions::new())).unwrap_err();
                assert!(error.to_string().contains(named), "{name}: {error}");
                let error = open_or_disk(&path, options(&mut OpenOptions::new()), 0).unwrap_err();
                assert!(error.to_string().contains(named), "{name}: {error}");
            }
            assert!(read_text(&path).is_err(), "{name}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_link_in_place_of_a_file_of_ours_is_not_followed_and_one_that_is_named_is() {
        let folder = folder("links");
        let (precious, link) = (folder.join("precious"), folder.join("link"));
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink("precious", &link).unwrap();
        std::os::unix::fs::symlink("nothing", folder.join("dangling")).unwrap();
        let write = || OpenOptions::new().read(true).write(true).create(true).clone();
        for name in ["link", "dangling"] {
            let path = folder.join(name);
            assert!(open(&path, &mut write()).unwrap_err().to_string().contains("a link"));
            assert!(open_with(&path, &mut write(), libc::O_DSYNC).is_err(), "{name}");
            assert!(create(&path).is_err() && super::write(&path, b"x").is_err(), "{name}");
        }
        assert!(!folder.join("nothing").exists(), "nothing was made through a link");
        assert_eq!(read_text(&link).unwrap(), "precious");
        assert!(open_named(&link, OpenOptions::new().read(true)).is_ok());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_too_large_is_not_read_whole() {
        let folder = folder("large");
        let path = folder.join("sparse");
        File::create(&path).unwrap().set_len(10 << 30).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("1048576"));
        assert!(read_named_text(&path).unwrap_err().to_string().contains("1048576"));
        assert!(read_named_text(Path::new("/dev/zero")).is_err());
        std::fs::write(&path, [b'a'; 100]).unwrap();
        assert_eq!(read(&path, 100).unwrap().len(), 100);
        assert!(read(&path, 99).is_err());
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("UTF-8"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_opened_file_waits_as_files_do() {
        let folder = folder("flags");
        let path = folder.join("file");
        let file = open(&path, OpenOptions::new().write(true).create(true)).unwrap();
        // SAFETY: no memory is involved.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        assert_eq!(flags & libc::O_NONBLOCK, 0);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
