//! The processes of a pool: what drives the state machines of the crate `pool` over sockets, threads and files.

#[cfg(any(test, feature = "certs"))]
pub mod certs;
pub mod config;
pub mod controller;
mod doors;
mod error;
mod frames;
pub mod plane;
pub mod records;
pub mod status;
pub mod tls;

pub use error::PoolError;

/// A number that nobody else has: of a pool, of a part of it for as long as it runs.
///
/// # Errors
/// What the system says.
pub fn drawn() -> Result<u128, PoolError> {
    let mut bytes = [0u8; 16];
    // SAFETY: 16 writable bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != 16 {
        let error = std::io::Error::last_os_error();
        return Err(PoolError::System { doing: "draw a number", error });
    }
    Ok(u128::from_le_bytes(bytes))
}
