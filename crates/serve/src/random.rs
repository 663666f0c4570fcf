//! Numbers that nobody else has.

use std::io;

/// Drawn by the system.
///
/// # Errors
/// What the system says.
pub fn number() -> io::Result<u128> {
    let mut bytes = [0u8; 16];
    // SAFETY: 16 writable bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != 16 {
        return Err(io::Error::last_os_error());
    }
    Ok(u128::from_le_bytes(bytes))
}
