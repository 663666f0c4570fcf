//! The token of those who may do all over TCP: a line in a file that only the server's user reads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A secret. It is never shown.
pub struct Token(Vec<u8>);

/// Random bytes of a token that is made here; written in hex.
const TOKEN_BYTES: usize = 32;
/// Shorter ones could be guessed.
const CHARS_MIN: usize = 16;
const CHARS_MAX: usize = 4096;

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The one in the file; if there is no file, a new one is put there.
    ///
    /// # Errors
    /// What is wrong with the file, and the mend.
    pub fn load_or_make(path: &Path) -> Result<Self, String> {
        match Self::load(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::make(path),
            other => other,
        }
        .map_err(|error| format!("the token of HTTP (http.token_file): {error}"))
    }

    fn load(path: &Path) -> io::Result<Self> {
        // A pipe must not hold up the start.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let wrong = |reason: &str| Err(io::Error::other(reason));
        if !metadata.is_file() {
            return wrong("is no plain file: name another");
        }
        if metadata.mode() & 0o077 != 0 {
            return wrong("others may read or write it: chmod 600 it, if they did not already");
        }
        let mut text = String::new();
        file.take(CHARS_MAX as u64 + 2).read_to_string(&mut text)?;
        let token = text.trim();
        let sound = token.bytes().all(|byte| byte.is_ascii_graphic());
        if !sound || !(CHARS_MIN..=CHARS_MAX).contains(&token.len()) {
            return wrong("must hold 16 to 4096 visible characters: remove it, and one is made");
        }
        Ok(Self(token.into()))
    }

    fn make(path: &Path) -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(format!("{token}\n").as_bytes())?;
        Ok(Self(token.into()))
    }

    /// True if it is what an `Authorization` header shows.
    pub fn is_shown(&self, header: &str) -> bool {
        let Some((scheme, shown)) = header.split_once(' ') else { return false };
        let shown = shown.trim().as_bytes();
        // All of it is looked at, so that the time tells nothing of how much was right.
        let differs = shown.iter().zip(&self.0).fold(0, |sum, (a, b)| sum | (a ^ b));
        scheme.eq_ignore_ascii_case("bearer") && shown.len() == self.0.len() && differs == 0
    }
}

#[cfg(test)]
mod tests {
    use super::Token;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_kept_to_its_owner_and_no_other_is_believed() {
        let path = std::env::temp_dir().join(format!("weir-token-{}", std::process::id()));
        fs::remove_file(&path).ok();
        let token = Token::load_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        let text = text.trim();
        assert_eq!(text.len(), 64);
        assert!(token.is_shown(&format!("Bearer {text}")));
        assert!(Token::load_or_make(&path).unwrap().is_shown(&format!("bearer {text}")));
        let longer = format!("Bearer {text}0");
        for wrong in
            ["", "Bearer", "Bearer ", text, &format!("Basic {text}"), &longer, &longer[..70]]
        {
            assert!(!token.is_shown(wrong), "{wrong}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(Token::load_or_make(&path).unwrap_err().contains("chmod 600"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for bad in ["", "short", "with a space in it all", "0123456789\u{7f}abcdef"] {
            fs::write(&path, bad).unwrap();
            assert!(Token::load_or_make(&path).unwrap_err().contains("16 to 4096"), "{bad}");
        }
        fs::remove_file(&path).unwrap();
        assert!(Token::load_or_make(std::path::Path::new("/dev/null")).is_err());
        assert!(Token::load_or_make(std::path::Path::new("/no/such/folder/token")).is_err());
    }
}
